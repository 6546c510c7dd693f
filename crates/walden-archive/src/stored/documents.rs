//! What an archive says of itself to whoever finds it: a README, and how everything in it is encoded.

use crate::store::{Store, StoreError};

/// The document to read first.
pub const README: &str = "README.txt";

/// The documents: keys and texts.
///
/// They are links into the project's documentation, which a package of this crate has as files.
pub const DOCUMENTS: [(&str, &str); 4] = [
    (README, include_str!("../../documents/README.txt")),
    ("docs/archive.md", include_str!("../../documents/archive.md")),
    ("docs/format.md", include_str!("../../documents/format.md")),
    ("docs/format-model.md", include_str!("../../documents/format-model.md")),
];

/// Stores the documents that are not there yet. Those that are stay as they are: they describe what was written with them. The README is
/// the last one, as the place is an archive from then on.
///
/// # Errors
/// The store's.
pub fn store(store: &dyn Store) -> Result<(), StoreError> {
    for (key, text) in DOCUMENTS.into_iter().rev() {
        store.create(key, text.as_bytes())?;
    }
    Ok(())
}
