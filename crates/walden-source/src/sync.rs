//! Makes files durable.

use std::fs::File;
use std::io;
use std::path::Path;

/// Syncs a file, or a folder, so that its entries are durable.
///
/// # Errors
/// The file or folder cannot be opened or synced.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
