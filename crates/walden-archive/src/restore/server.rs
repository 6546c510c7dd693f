//! Identifies the cluster of the server that requests a file, from its data directory.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use walden_source::datadir::ControlFile;
use walden_source::regular_file;

use crate::archive::{Archive, ArchiveError};
use crate::objects::check;
use crate::objects::name::ArchivedFile;
use crate::restore::get::GetError;

/// A server that asks for a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskingServer {
    /// Path of the server's control file.
    pub control: PathBuf,
    /// The server's system identifier.
    pub system_id: u64,
    /// Size of the server's segments in bytes.
    pub segment_bytes: u64,
}

/// Confirms that the archive belongs to the cluster of the server that asks for a file, and has segments of
/// the server's size, if the server's data directory is known: the data directory whose `pg_wal` the target
/// is in, or else the working directory, in which PostgreSQL runs `restore_command`.
///
/// # Errors
/// [`GetError::OtherCluster`], [`GetError::OtherSegmentSize`], and [`GetError::Archive`] if the archive's
/// cluster is unknown.
pub fn expect_own_archive(archive: &Archive, file: ArchivedFile, target: &Path) -> Result<(), GetError> {
    let Some(AskingServer { control, system_id, segment_bytes }) = asking_server(target) else {
        return Ok(());
    };
    let is_own = archive.expect_cluster(system_id).and_then(|()| archive.expect_segment_bytes(segment_bytes));
    let name = file.to_string();
    is_own.map_err(|error| match error {
        ArchiveError::OtherCluster { location, expected: found, .. } => {
            GetError::OtherCluster { name, location, control, expected: system_id, found }
        }
        ArchiveError::OtherSegmentSize { location, expected: found, .. } => {
            GetError::OtherSegmentSize { name, location, control, expected: segment_bytes, found }
        }
        source => GetError::Archive { name, source },
    })
}

/// The server that asks for a file, as far as its data directory is known: see [`expect_own_archive`].
pub fn asking_server(target: &Path) -> Option<AskingServer> {
    let above = target.parent().and_then(Path::parent);
    let mut places = above.into_iter().chain([Path::new("")]);
    places.find_map(|data| {
        let control = ControlFile::read_data_directory(data)?;
        Some(AskingServer {
            control: data.join(ControlFile::PATH),
            system_id: control.system_identifier,
            segment_bytes: control.wal_segment_bytes.into(),
        })
    })
}

/// Returns the cluster of a file that does not state its cluster: the cluster of the server whose `pg_wal`
/// contains the file, or of the segments next to the file. Returns `None` if neither exists.
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
    Some(ControlFile::read_data_directory(data)?.system_identifier)
}

/// Number of bytes of a segment that contain its first page's header.
pub(crate) const FIRST_BYTES: usize = 64;
