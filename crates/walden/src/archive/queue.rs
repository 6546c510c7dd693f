//! Files that a server has ready to be archived: by its data directory, or by SQL.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::name::ArchivedFile;
use walden_archive::push;
use walden_archive::status::QueuedFile;
use walden_source::counted;

/// How many files wait.
pub fn waiting(files: u64) -> String {
    format!("{} {}", counted(files, "file"), if files == 1 { "waits" } else { "wait" })
}

/// The server whose queue is looked at.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub struct QueueOptions {
    /// The server's data directory, for how far the archive is behind
    #[arg(long, value_name = "DIR", env = "PGDATA")]
    pub pgdata: Option<PathBuf>,

    /// The server, as libpq writes it, for the same by SQL
    #[arg(long, value_name = "DSN")]
    pub dsn: Option<String>,
}

impl QueueOptions {
    /// The files that are ready; nothing if no server was named.
    pub fn read(&self) -> Result<Option<Vec<QueuedFile>>> {
        match (&self.dsn, &self.pgdata) {
            (Some(dsn), _) => by_sql(dsn).map(Some),
            (None, Some(data)) => by_data_directory(data).map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn by_data_directory(data: &Path) -> Result<Vec<QueuedFile>> {
    let wal = data.join("pg_wal");
    let ready = push::ready_files(&wal)
        .with_context(|| format!("cannot read {}", wal.join("archive_status").display()))?;
    let queued = |file: ArchivedFile| {
        let mark = fs::metadata(wal.join("archive_status").join(format!("{file}.ready")));
        // Archived and marked as done meanwhile.
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

fn by_sql(dsn: &str) -> Result<Vec<QueuedFile>> {
    let mut client = walden_source::connection::connect(dsn)?;
    let mut queue = Vec::new();
    for row in client.query(READY, &[]).context("cannot ask the server for what is ready to be archived")? {
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
