//! Identifies the cluster of the server that requests a file, from its data directory.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use walden_source::datadir::ControlFile;
use walden_source::regular_file;

use crate::archive::{Archive, ArchiveError};
use crate::out::get::GetError;
use crate::stored::check;
use crate::stored::name::ArchivedFile;

/// Checks that the archive belongs to the server that requests a file, if its data directory is known. This
/// is the one whose `pg_wal` contains the target, or the working directory, in which PostgreSQL runs
/// `restore_command`.
///
/// # Errors
/// [`GetError::OtherCluster`], and [`GetError::Archive`] if the archive's cluster cannot be determined.
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

/// Returns the control file and system identifier of the server that requests a file, if its data directory
/// is known (see [`expect_own_archive`]).
pub fn asking_server(target: &Path) -> Option<(PathBuf, u64)> {
    let above = target.parent().and_then(Path::parent);
    let mut places = above.into_iter().chain([Path::new("")]);
    places.find_map(|data| Some((data.join(ControlFile::PATH), system_id_of_server(data)?)))
}

/// Returns the cluster of a file that does not state it: that of the server whose `pg_wal` contains the file,
/// or of the segments next to it. Returns `None` if neither exists.
///
/// A history of another cluster would make recovery end on a wrong timeline, and a backup history file of
/// another cluster would count as a backup when removing WAL.
pub(crate) fn system_id_beside(path: &Path) -> Option<u64> {
    let folder = path.parent()?;
    // `%p` is relative to the data directory, in which PostgreSQL runs the command. `pg_wal` itself may be a
    // link.
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

/// Returns the system identifier of a data directory, if it can be read.
pub(crate) fn system_id_of_server(data: &Path) -> Option<u64> {
    Some(ControlFile::of_data_directory(data)?.system_identifier)
}

/// Number of bytes of a segment that contain its first page's header.
pub(crate) const FIRST_BYTES: usize = 64;
