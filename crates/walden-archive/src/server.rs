//! The server that asks for a file, as far as its data directory says which cluster it is of.

use std::path::Path;

use walden_source::datadir::ControlFile;

use crate::archive::{Archive, ArchiveError};
use crate::get::GetError;
use crate::name::ArchivedFile;
use crate::push::system_id_of_server;

/// Confirms that the archive is that of the server which asks for a file, if its data directory is known: the one whose `pg_wal` the
/// target is in, or else the working directory, in which PostgreSQL runs `restore_command`.
///
/// # Errors
/// [`GetError::OtherCluster`], and [`GetError::Archive`] if it cannot be found out whose archive it is.
pub fn expect_own_archive(archive: &Archive, file: ArchivedFile, target: &Path) -> Result<(), GetError> {
    let above = target.parent().and_then(Path::parent);
    let server =
        above.into_iter().chain([Path::new("")]).find_map(|data| Some((data, system_id_of_server(data)?)));
    let Some((data, system_id)) = server else { return Ok(()) };
    archive.expect_cluster(system_id).map_err(|error| match error {
        ArchiveError::OtherCluster { location, expected: found, .. } => {
            let (name, control) = (file.to_string(), data.join(ControlFile::PATH));
            GetError::OtherCluster { name, location, control, expected: system_id, found }
        }
        source => GetError::Archive { name: file.to_string(), source },
    })
}
