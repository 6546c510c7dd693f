//! The server that asks for a file, as far as its data directory says which cluster it is of.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use walden_source::datadir::ControlFile;
use walden_source::regular_file;

use crate::archive::{Archive, ArchiveError};
use crate::out::get::GetError;
use crate::stored::check;
use crate::stored::name::ArchivedFile;

/// Confirms that the archive is that of the server which asks for a file, if its data directory is known: the one whose `pg_wal` the
/// target is in, or else the working directory, in which PostgreSQL runs `restore_command`.
///
/// # Errors
/// [`GetError::OtherCluster`], and [`GetError::Archive`] if it cannot be found out whose archive it is.
pub fn expect_own_archive(archive: &Archive, file: ArchivedFile, target: &Path) -> Result<(), GetError> {
    let Some((control, system_id)) = asking_server(target) else { return Ok(()) };
    archive.expect_cluster(system_id).map_err(|error| match error {
        ArchiveError::OtherCluster { location, expected: found, .. } => {
            let name = file.to_string();
            GetError::OtherCluster { name, location, control, expected: system_id, found }
        }
        source => GetError::Archive { name: file.to_string(), source },
    })
}

/// The control file of the server that asks for a file, and its system identifier, as far as its data directory is known: see
/// [`expect_own_archive`].
pub fn asking_server(target: &Path) -> Option<(PathBuf, u64)> {
    let above = target.parent().and_then(Path::parent);
    let mut places = above.into_iter().chain([Path::new("")]);
    places.find_map(|data| Some((data.join(ControlFile::PATH), system_id_of_server(data)?)))
}

/// The cluster that a file comes from which does not say so itself: that of the server in whose `pg_wal` it is, or of segments that
/// lie beside it. Unknown where there is neither.
///
/// A history of another cluster would end recovery with a wrong timeline, and a backup history file of one would count as a backup
/// when WAL is removed.
pub(crate) fn system_id_beside(path: &Path) -> Option<u64> {
    let folder = path.parent()?;
    // `%p` is relative to the data directory, in which PostgreSQL runs the command; `pg_wal` itself may be a link.
    let data = folder.parent().unwrap_or(Path::new(""));
    if let Some(system_id) = system_id_of_server(data) {
        return Some(system_id);
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        let name = path.file_name()?.to_str()?;
        let ArchivedFile::Segment(_) = ArchivedFile::parse(name)? else { return None };
        let mut first = Vec::new();
        regular_file::open(&path).ok()?.take(FIRST_BYTES as u64).read_to_end(&mut first).ok()?;
        check::system_id_of(&first)
    })
}

/// The system identifier of the server whose data directory it is, if that can be read.
pub(crate) fn system_id_of_server(data: &Path) -> Option<u64> {
    Some(ControlFile::of_data_directory(data)?.system_identifier)
}

/// Bytes of a segment that have its first page's header.
pub(crate) const FIRST_BYTES: usize = 64;
