//! Contains the documents stored in an archive for its finder: a README and the specification of the formats.

use crate::store::{Store, StoreError};

/// Key of the document to read first.
pub const README: &str = "README.txt";

/// Keys and texts of the documents.
///
/// In the repository they are links to the project's documentation. A package of this crate contains them as
/// files.
pub const DOCUMENTS: [(&str, &str); 5] = [
    (README, include_str!("../../documents/README.txt")),
    ("docs/archive-reference.md", include_str!("../../documents/archive-reference.md")),
    ("docs/archive-restore.md", include_str!("../../documents/archive-restore.md")),
    ("docs/format.md", include_str!("../../documents/format.md")),
    ("docs/format-model.md", include_str!("../../documents/format-model.md")),
];

/// Stores the missing documents. Existing documents stay, because they describe the objects that were written
/// with them. The README comes last because it marks the location as an archive.
///
/// # Errors
/// Errors of the store.
pub fn store(store: &dyn Store) -> Result<(), StoreError> {
    for (key, text) in DOCUMENTS.into_iter().rev() {
        store.create(key, text.as_bytes())?;
    }
    Ok(())
}
