//! Files that a server has ready for archiving, from its data directory or by SQL.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use walden_archive::name::ArchivedFile;
use walden_archive::push;
use walden_archive::status::{Lag, QueuedFile};
use walden_output::is_data_directory;
use walden_postgres::connection::Client;
use walden_report::units;
use walden_source::counted;

use crate::error::{ArchivingError, Result};
use crate::place::Place;

/// Formats the number of waiting files.
pub fn waiting(files: u64) -> String {
    format!("{} {}", counted(files, "file"), if files == 1 { "waits" } else { "wait" })
}

/// Returns "is" or "are" for a number of things.
pub fn be(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// Summarizes the waiting files.
pub fn describe(lag: &Lag) -> String {
    match lag {
        Lag { files: 0, ready_files: 0, .. } => "nothing waits".to_owned(),
        Lag { files: 0, ready_files, .. } => {
            let (files, be) = (counted(*ready_files, "file"), be(*ready_files));
            format!("nothing waits, {files} {be} not marked as done yet")
        }
        Lag { files, ready_files, bytes, seconds, .. } => {
            let (waiting, bytes, seconds) = (waiting(*files), units::bytes(*bytes), units::seconds(*seconds));
            let ready = match ready_files > files {
                true => format!(" of {ready_files} ready ones"),
                false => String::new(),
            };
            format!("{waiting}{ready} ({bytes}, the oldest for {seconds})")
        }
    }
}

/// The server whose queue is read. The connection is used if both are given.
#[derive(Clone, Debug, Default)]
pub struct QueueOptions {
    /// Data directory of the server.
    pub pgdata: Option<PathBuf>,
    /// Connection to the server: a libpq string or URL.
    pub dsn: Option<String>,
}

impl QueueOptions {
    /// Returns whether a server is named.
    pub fn names_server(&self) -> bool {
        self.dsn.is_some() || self.pgdata.is_some()
    }

    /// Returns the named server, or else the one whose data directory is the working directory or has the
    /// configuration.
    pub fn or_beside_configuration(self, place: &Place) -> QueueOptions {
        if self.names_server() {
            return self;
        }
        let configuration = place.configuration().ok().and_then(|(_, path)| path);
        let beside = configuration.and_then(|path| Some(path.parent()?.to_owned()));
        let pgdata = iter::once(PathBuf::from(".")).chain(beside).find(|path| is_data_directory(path));
        QueueOptions { pgdata, ..self }
    }

    /// Reads the ready files; `None` if no server was named.
    ///
    /// # Errors
    /// The errors of [`read_data_directory`] and [`query_server`], and a server that cannot be reached.
    pub fn read(&self) -> Result<Option<Vec<QueuedFile>>> {
        match (&self.dsn, &self.pgdata) {
            (Some(dsn), _) => query_server(&mut walden_postgres::connection::connect(dsn)?).map(Some),
            (None, Some(data)) => read_data_directory(data).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// Reads the ready files from a data directory.
///
/// # Errors
/// `archive_status` cannot be read.
pub fn read_data_directory(data: &Path) -> Result<Vec<QueuedFile>> {
    let wal = data.join("pg_wal");
    let ready = push::ready_files(&wal)
        .map_err(ArchivingError::read(wal.join("archive_status").display().to_string()))?;
    let queued = |file: ArchivedFile| {
        let mark = fs::metadata(wal.join("archive_status").join(format!("{file}.ready")));
        // The file was archived and marked as done in the meantime.
        let since = mark.and_then(|mark| mark.modified()).ok()?;
        let bytes = fs::metadata(wal.join(file.to_string())).map_or(0, |metadata| metadata.len());
        Some(QueuedFile { file, bytes, since })
    };
    Ok(ready.into_iter().filter_map(queued).collect())
}

/// Needs `pg_monitor`.
const READY: &str = "
SELECT mark.name, coalesce(wal.size, 0), extract(epoch FROM mark.modification)::float8
FROM pg_ls_archive_statusdir() AS mark LEFT JOIN pg_ls_waldir() AS wal ON mark.name = wal.name || '.ready'
WHERE mark.name LIKE '%.ready'";

/// Reads the ready files by SQL.
///
/// # Errors
/// The user may not see them, or the server does not answer.
pub fn query_server(client: &mut Client) -> Result<Vec<QueuedFile>> {
    let mut queue = Vec::new();
    let rows = client.query(READY, &[]).map_err(ArchivingError::query(
        "cannot query the server for the files that are ready to be archived",
    ))?;
    for row in rows {
        let name: String = row.try_get(0)?;
        let Some(file) = name.strip_suffix(".ready").and_then(ArchivedFile::parse) else { continue };
        let since = Duration::try_from_secs_f64(row.try_get(2)?).unwrap_or_default();
        let bytes = row.try_get::<_, i64>(1)?.cast_unsigned();
        queue.push(QueuedFile {
            file,
            bytes,
            since: UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH),
        });
    }
    Ok(queue)
}
