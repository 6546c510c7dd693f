//! The archiver's backlog, according to `archive_status`.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;

/// Files that wait to be archived.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Archiver {
    /// Number of files that are ready to be archived.
    pub ready_files: u64,
    /// Size of the waiting files in bytes.
    pub ready_bytes: u64,
    /// Seconds for which the oldest waiting file has waited.
    pub oldest_seconds: f64,
}

/// Reads the files in `archive_status` of a `pg_wal` folder. Returns `None` if it does not exist.
pub fn archiver_of(wal: &Path) -> Option<Archiver> {
    let mut archiver = Archiver::default();
    let now = SystemTime::now();
    for entry in fs::read_dir(wal.join("archive_status")).ok()?.flatten() {
        let name = entry.file_name();
        let Some(file) = name.to_str().and_then(|name| name.strip_suffix(".ready")) else { continue };
        archiver.ready_files += 1;
        archiver.ready_bytes += fs::metadata(wal.join(file)).map_or(0, |metadata| metadata.len());
        let since = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let waited = since.and_then(|since| now.duration_since(since).ok()).unwrap_or_default();
        archiver.oldest_seconds = archiver.oldest_seconds.max(waited.as_secs_f64());
    }
    Some(archiver)
}
