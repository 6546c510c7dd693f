//! Reads the other files in a server's `pg_wal`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use walden_source::regular_file;

use crate::history::History;
use crate::objects::check;
use crate::objects::name::ArchivedFile;

/// Returns the files that are ready, in the order in which PostgreSQL requests them: history files first,
/// then by name.
///
/// `archive_status` is only read, because it belongs to PostgreSQL.
///
/// # Errors
/// The folder cannot be read.
pub fn ready_files(wal: &Path) -> io::Result<Vec<ArchivedFile>> {
    let mut ready = Vec::new();
    for entry in fs::read_dir(wal.join("archive_status"))? {
        let name = entry?.file_name();
        let file = name.to_str().and_then(|name| name.strip_suffix(".ready")).and_then(ArchivedFile::parse);
        ready.extend(file);
    }
    ready.sort_by_cached_key(|file| file.archiving_order());
    Ok(ready)
}

/// Reads the timeline histories next to the segments.
pub(crate) fn local_histories(wal: &Path) -> Vec<History> {
    let paths = fs::read_dir(wal).into_iter().flatten().flatten().map(|entry| entry.path());
    let history = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let Some(ArchivedFile::History(timeline)) = ArchivedFile::parse(name) else { return None };
        History::parse(timeline, &regular_file::read(&path, check::MAX_TEXT_BYTES).ok()?).ok()
    };
    paths.filter_map(history).collect()
}
