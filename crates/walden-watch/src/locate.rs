//! Finds the data directory of a server over a connection to the server.

use std::io;
use std::path::{Path, PathBuf};

use walden_postgres::connection::{self, ConnectionError, QueryError};
use walden_source::datadir::ControlFile;

use crate::process::PostmasterFile;
use crate::running;

/// Why the data directory of a server is not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocateError {
    /// The server cannot be reached.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The server does not reveal its data directory.
    #[error("cannot ask the server for its data directory")]
    Query(#[source] QueryError),
    /// The server's answer has other columns than expected.
    #[error("the server's answer to the query of its data directory has unexpected types")]
    Answer(#[source] postgres::Error),
    /// The data directory is on this machine, and this user may not read it.
    #[error("cannot read the server's data directory {}: this user may not", path.display())]
    Closed {
        /// The data directory.
        path: PathBuf,
    },
    /// The data directory is not on this machine.
    #[error("cannot find the server's data directory {} on this machine", path.display())]
    Elsewhere {
        /// The data directory, as the server names it.
        path: PathBuf,
    },
}

walden_format::diagnostics! { LocateError {
    Self::Connection(error) => of(error),
    Self::Query(_) => "server-settings-refused": "the user needs pg_read_all_settings (GRANT pg_monitor TO ...); or name the data directory itself",
    Self::Answer(_) => none,
    Self::Closed { .. } => "server-files-closed": "run the command as the user that owns the data directory (sudo -u postgres walden ..., or as root: runuser -u postgres -- walden ...)",
    Self::Elsewhere { .. } => "server-elsewhere": "explain reads files: run walden on the server's machine, or receive the log here (walden receive --dsn ... --repo FOLDER --slot walden \
         --create-slot) and explain FOLDER; walden watch takes the connection string and shows WAL as it is written",
} }

/// Queries the server's location. The query requires `pg_read_all_settings`.
const WHERE_IT_IS: &str = "SELECT current_setting('data_directory'), (SELECT system_identifier FROM pg_control_system()), \
     extract(epoch FROM pg_postmaster_start_time())::bigint";
/// Maximum time in seconds from the start of the postmaster until it records its start time.
const MAX_START_SECONDS: i64 = 60;

/// Finds the data directory of a server on this machine.
///
/// # Errors
/// The server cannot be reached or does not reveal its data directory, or this user cannot read it.
pub fn find_data_directory(dsn: &str) -> Result<PathBuf, LocateError> {
    let mut client = connection::connect(dsn)?;
    let row = client.query_one(WHERE_IT_IS, &[]).map_err(LocateError::Query)?;
    let named: String = row.try_get(0).map_err(LocateError::Answer)?;
    // SQL has no unsigned integers.
    let system_id = row.try_get::<_, i64>(1).map_err(LocateError::Answer)?.cast_unsigned();
    let started: i64 = row.try_get(2).map_err(LocateError::Answer)?;
    let named = PathBuf::from(named);
    // A server in a container reports a path inside it, so its directory is found through running processes.
    let candidates =
        || std::iter::once(named.clone()).chain(running::servers().into_iter().map(|server| server.data));
    match candidates().find(|data| is_of_server(data, system_id, started)) {
        Some(data) => Ok(data),
        None => Err(no_local_files(named.clone())),
    }
}

/// Returns whether a data directory belongs to a server, according to the content of its files.
fn is_of_server(data: &Path, system_id: u64, started: i64) -> bool {
    // Compares start times: a standby on its primary's machine has the same system identifier.
    let is_started = |file: PostmasterFile| {
        file.started.is_some_and(|first| (0..=MAX_START_SECONDS).contains(&(started - first)))
    };
    ControlFile::read_data_directory(data).is_some_and(|control| control.system_identifier == system_id)
        && PostmasterFile::read(data).is_ok_and(is_started)
}

fn no_local_files(path: PathBuf) -> LocateError {
    let closed = std::fs::metadata(path.join(ControlFile::PATH))
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    match closed {
        true => LocateError::Closed { path },
        false => LocateError::Elsewhere { path },
    }
}
