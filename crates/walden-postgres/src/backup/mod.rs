//! Base backups over ordinary connections: one session starts and stops the backup, others read its files.
//!
//! Documentation: "Making a Base Backup Using the Low Level API", "Generic File Access Functions". Names of
//! files are sent as bytes, because a database of another encoding than SQL_ASCII converts text.

mod rules;
mod summaries;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::Row;
use postgres::error::SqlState;
use postgres::types::ToSql;
use sha2::{Digest as _, Sha256};
use walden_format::lsn::{Lsn, Timeline};

use crate::connection::{Client, ConnectionError, Parameters, QueryError};

pub use summaries::{Changes, SummaryFile};

/// Longest time for the start of a backup: a spread checkpoint takes a part of `checkpoint_timeout`, which is
/// at most a day.
const START_WITHIN: Duration = Duration::from_secs(26 * 3600);
/// Longest time for other answers: the server reads up to 16 MB of files, or waits for its end of the backup.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);
/// Most folders within each other. The server follows links, which may lead to a folder above.
const MAX_DEPTH: usize = 32;
/// Settings that would end a session that waits.
const SETTINGS: &str = "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0; \
    SET idle_in_transaction_session_timeout = 0; SET bytea_output = 'hex'";

/// Why a backup over ordinary connections fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileBackupError {
    /// The server cannot be reached.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The server does not answer a query, or reports an error.
    #[error("cannot {what}")]
    Query {
        /// The purpose of the query.
        what: String,
        /// The cause.
        #[source]
        source: QueryError,
    },
    /// The server's answer is unexpected.
    #[error("the server's answer: expected {expected}, found {found}")]
    Answer {
        /// The expected answer.
        expected: &'static str,
        /// The answer.
        found: String,
    },
}

impl FileBackupError {
    /// Returns whether another connection may succeed: this one is lost, or the server did not answer.
    pub fn is_of_connection(&self) -> bool {
        match self {
            FileBackupError::Connection(_) => true,
            FileBackupError::Query { source: QueryError::Silent { .. }, .. } => true,
            FileBackupError::Query { source, .. } => match source.code() {
                None => true,
                Some(code) => code.code().starts_with("08") || code.code().starts_with("57P"),
            },
            FileBackupError::Answer { .. } => false,
        }
    }
}

walden_format::diagnostics! { FileBackupError {
    Self::Connection(error) => of(error),
    Self::Query { .. } => "backup-query": "the server's log has details; --jobs 0 receives the base backup over the replication protocol instead",
    Self::Answer { .. } => "backup-query": "check that host and port are those of a PostgreSQL server, and not of a connection pooler; --jobs 0 receives the base backup over the replication protocol instead",
} }

fn failed(what: impl Into<String>) -> impl FnOnce(QueryError) -> FileBackupError {
    let what = what.into();
    move |source| FileBackupError::Query { what, source }
}

/// The properties of a server that a backup depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFacts {
    /// Such as `18.1 (Debian 18.1-1)`.
    pub version: String,
    /// The major version.
    pub major: u32,
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Bytes of a segment of WAL.
    pub segment_bytes: u64,
    /// Blocks of 8192 bytes of a file of a relation, except for its last one.
    pub blocks_per_file: u32,
    /// Permissions of files, such as `0o600`.
    pub file_mode: u32,
    /// Whether pages have checksums.
    pub has_checksums: bool,
    /// Name of the folder of this version in tablespaces, such as `PG_18_202506291`.
    version_folder: String,
}

/// A file or folder of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFile {
    /// The path in the data directory, or in the folder of the tablespace.
    pub path: PathBuf,
    /// Its size in bytes; 0 of a folder.
    pub bytes: u64,
    /// When it was modified, in seconds since 1970-01-01 00:00:00 UTC.
    pub modified: i64,
    /// Whether it is a folder.
    pub is_folder: bool,
}

/// The files of a tablespace (its OID), or of the data directory (`None`).
pub type ServerFiles = (Option<u32>, Vec<ServerFile>);

/// The end of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoppedBackup {
    /// The end of the WAL that the backup needs.
    pub end: Lsn,
    /// The timeline there.
    pub timeline: Timeline,
    /// The content of `backup_label`.
    pub label: Vec<u8>,
    /// The content of `tablespace_map`.
    pub tablespace_map: Vec<u8>,
}

impl StoppedBackup {
    /// Returns the timeline at the start, according to `backup_label`.
    pub fn start_timeline(&self) -> Option<Timeline> {
        let label = String::from_utf8_lossy(&self.label);
        label.lines().find_map(|line| line.strip_prefix("START TIMELINE: ")?.trim().parse().ok())
    }

    /// Returns the tablespaces of `tablespace_map`: each line starts with an OID.
    pub fn tablespaces(&self) -> Vec<u32> {
        // A backslash precedes line breaks in paths.
        let mut is_escaped = false;
        let lines = self.tablespace_map.split(|&byte| {
            let is_end = byte == b'\n' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        });
        let oid = |line: &[u8]| {
            let digits = line.split(|&byte| byte == b' ').next()?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        };
        lines.filter_map(oid).collect()
    }
}

/// The start time of a server, which identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerStart(i64);

/// A session of a backup.
#[derive(Debug)]
pub struct BackupSession {
    client: Client,
    major: u32,
    /// When the server was started, in microseconds: no two servers have the same.
    server_started: i64,
}

/// A range of a file in the data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRange<'p> {
    /// The path in the data directory.
    pub path: &'p Path,
    /// Where it starts.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

impl BackupSession {
    /// Connects to the server.
    ///
    /// # Errors
    /// The connection fails, or the server is older than PostgreSQL 14.
    pub fn connect(parameters: &Parameters) -> Result<BackupSession, FileBackupError> {
        let mut client = parameters.connect_anywhere()?;
        client.set_limit(ANSWER_WITHIN);
        let query = "SELECT current_setting('server_version_num')::int4, \
             (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8";
        let version = client.query_one(query, &[]).map_err(failed("read the server's version"))?;
        let major = get::<i32>(&version, 0)?.unsigned_abs() / 10_000;
        let server_started = get(&version, 1)?;
        if major < 14 {
            let found = format!("version {major}");
            return Err(FileBackupError::Answer { expected: "a server of PostgreSQL 14 or later", found });
        }
        let transaction_timeout = if major >= 17 { "; SET transaction_timeout = 0" } else { "" };
        client
            .simple_query(&format!("{SETTINGS}{transaction_timeout}"))
            .map_err(failed("prepare a session"))?;
        Ok(BackupSession { client, major, server_started })
    }

    /// Connects another session to the same server, which several hosts or a balancer do not ensure.
    ///
    /// # Errors
    /// The errors of [`BackupSession::connect`], and another server.
    pub fn connect_again(
        parameters: &Parameters,
        server: ServerStart,
    ) -> Result<BackupSession, FileBackupError> {
        let session = BackupSession::connect(parameters)?;
        match session.server_start() == server {
            true => Ok(session),
            false => Err(FileBackupError::Answer {
                expected: "the server that has started the backup",
                found: "another server, or one that was restarted".to_owned(),
            }),
        }
    }

    /// Returns the start time of the server.
    pub fn server_start(&self) -> ServerStart {
        ServerStart(self.server_started)
    }

    /// Returns the functions that the role may not call, such as `pg_backup_start(text, boolean)`, and the
    /// command that permits it.
    ///
    /// # Errors
    /// The query fails.
    pub fn missing_rights(&mut self) -> Result<Option<String>, FileBackupError> {
        let (start, stop) = match self.major {
            15.. => ("pg_backup_start(text, boolean)", "pg_backup_stop(boolean)"),
            _ => ("pg_start_backup(text, boolean, boolean)", "pg_stop_backup(boolean, boolean)"),
        };
        let functions = [
            start,
            stop,
            "pg_ls_dir(text, boolean, boolean)",
            "pg_stat_file(text, boolean)",
            "pg_read_binary_file(text, bigint, bigint, boolean)",
        ];
        self.missing_rights_of(&functions)
    }

    fn missing_rights_of(&mut self, functions: &[&str]) -> Result<Option<String>, FileBackupError> {
        let query = "SELECT f FROM unnest($1::text[]) AS f WHERE NOT has_function_privilege(f, 'EXECUTE')";
        let what = "read the rights of the role";
        let rows = self.client.query(query, &[&functions]).map_err(failed(what))?;
        let missing: Vec<String> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
        if missing.is_empty() {
            return Ok(None);
        }
        let names = "SELECT quote_ident(current_user), current_database()::text";
        let names = self.client.query_one(names, &[]).map_err(failed(what))?;
        let (role, database): (String, String) = (get(&names, 0)?, get(&names, 1)?);
        Ok(Some(format!(
            "GRANT EXECUTE ON FUNCTION {} TO {role}, in the database {database}",
            missing.join(", ")
        )))
    }

    /// Reads the properties of the server.
    ///
    /// # Errors
    /// The query fails, or pages have another size than 8192 bytes.
    pub fn facts(&mut self) -> Result<ServerFacts, FileBackupError> {
        let query = "SELECT current_setting('server_version'), s.system_identifier, s.catalog_version_no, \
             (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_segment_size'), \
             (SELECT setting::int8 FROM pg_settings WHERE name = 'segment_size'), \
             current_setting('block_size'), current_setting('data_directory_mode'), \
             current_setting('data_checksums') FROM pg_control_system() AS s";
        let row = self.client.query_one(query, &[]).map_err(failed("read the server's settings"))?;
        let (block, mode): (String, String) = (get(&row, 5)?, get(&row, 6)?);
        if block != "8192" {
            return Err(FileBackupError::Answer { expected: "blocks of 8192 bytes", found: block });
        }
        let mode = u32::from_str_radix(&mode, 8)
            .map_err(|_| FileBackupError::Answer { expected: "data_directory_mode", found: mode })?;
        let major = self.major;
        Ok(ServerFacts {
            version: get(&row, 0)?,
            major,
            system_identifier: get::<i64>(&row, 1)?.cast_unsigned(),
            segment_bytes: get::<i64>(&row, 3)?.cast_unsigned(),
            blocks_per_file: u32::try_from(get::<i64>(&row, 4)?).unwrap_or_default(),
            file_mode: mode & 0o666,
            has_checksums: get::<String>(&row, 7)? == "on",
            version_folder: format!("PG_{major}_{}", get::<i32>(&row, 2)?),
        })
    }

    /// Returns whether pages have checksums now: PostgreSQL 19 enables and disables them while it runs.
    ///
    /// # Errors
    /// The query fails.
    pub fn has_checksums(&mut self) -> Result<bool, FileBackupError> {
        let row = self.client.query_one("SELECT current_setting('data_checksums')", &[]);
        Ok(get::<String>(&row.map_err(failed("read data_checksums"))?, 0)? == "on")
    }

    /// Starts a backup, and waits for its checkpoint. Returns its redo pointer. The backup ends with the
    /// session.
    ///
    /// # Errors
    /// The query fails.
    pub fn start(&mut self, label: &str, is_fast: bool) -> Result<Lsn, FileBackupError> {
        let query = match self.major {
            15.. => "SELECT pg_backup_start($1, $2)::text",
            _ => "SELECT pg_start_backup($1, $2, false)::text",
        };
        self.client.set_limit(START_WITHIN);
        let row = self.client.query_one(query, &[&label, &is_fast]);
        self.client.set_limit(ANSWER_WITHIN);
        lsn(&row.map_err(failed("start a backup"))?, 0)
    }

    /// Lets the server answer: a lost session, which ends the backup, is noticed early.
    ///
    /// # Errors
    /// The query fails.
    pub fn keep_alive(&mut self) -> Result<(), FileBackupError> {
        self.client.simple_query("SELECT 1").map(drop).map_err(failed("continue the backup"))
    }

    /// Ends the backup. The server does not wait until its WAL is archived.
    ///
    /// # Errors
    /// The query fails, for example because the standby was promoted.
    pub fn stop(&mut self) -> Result<StoppedBackup, FileBackupError> {
        let function =
            if self.major >= 15 { "pg_backup_stop(false)" } else { "pg_stop_backup(false, false)" };
        let query = format!(
            "SELECT lsn::text, convert_to(labelfile, getdatabaseencoding()), \
             convert_to(coalesce(spcmapfile, ''), getdatabaseencoding()) FROM {function}"
        );
        let row = self.client.query_one(&query, &[]).map_err(failed("end the backup"))?;
        // A standby's end is that of its minimum recovery point.
        let timeline = "SELECT CASE WHEN pg_is_in_recovery() THEN \
             (SELECT min_recovery_end_timeline FROM pg_control_recovery()) \
             ELSE (SELECT timeline_id FROM pg_control_checkpoint()) END";
        let timeline = self.client.query_one(timeline, &[]).map_err(failed("read the timeline"))?;
        Ok(StoppedBackup {
            end: lsn(&row, 0)?,
            timeline: get::<i32>(&timeline, 0)?.cast_unsigned(),
            label: get(&row, 1)?,
            tablespace_map: get(&row, 2)?,
        })
    }

    /// Lists the files that a backup has.
    ///
    /// # Errors
    /// A query fails, or a link leads to a folder that contains it.
    pub fn list(&mut self, facts: &ServerFacts) -> Result<Vec<ServerFiles>, FileBackupError> {
        let mut archives = Vec::new();
        let mut in_place = Vec::new();
        for (name, ..) in self.read_folder(Path::new("pg_tblspc"))? {
            let Some(oid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let query = self.client.query_one("SELECT pg_tablespace_location($1)", &[&oid]);
            let location: String = match query {
                Ok(row) => get(&row, 0)?,
                // Dropped since.
                Err(error) if error.code() == Some(&SqlState::UNDEFINED_FILE) => continue,
                Err(error) => return Err(failed(format!("find the folder of tablespace {oid}"))(error)),
            };
            if !location.starts_with('/') {
                in_place.push(name);
                continue;
            }
            let root = Path::new("pg_tblspc").join(&name);
            let mut files = Vec::new();
            // Another version may use the same folder, during pg_upgrade.
            let version = PathBuf::from(&facts.version_folder);
            for (name, bytes, modified, is_folder) in self.read_folder(&root)? {
                if name.as_os_str() == version.as_os_str() && is_folder {
                    files.push(ServerFile { path: version.clone(), bytes, modified, is_folder });
                    self.list_below(&root, &version, 0, &in_place, &mut files)?;
                }
            }
            archives.push((Some(oid), files));
        }
        let mut files = Vec::new();
        self.list_below(Path::new(""), Path::new(""), 0, &in_place, &mut files)?;
        archives.push((None, files));
        Ok(archives)
    }

    /// Adds the files below `folder` of `root`, which is in the data directory.
    fn list_below(
        &mut self,
        root: &Path,
        folder: &Path,
        depth: usize,
        in_place: &[PathBuf],
        files: &mut Vec<ServerFile>,
    ) -> Result<(), FileBackupError> {
        let whole = root.join(folder);
        if depth > MAX_DEPTH {
            let found = whole.display().to_string();
            return Err(FileBackupError::Answer { expected: "at most 32 folders in each other", found });
        }
        let entries = self.read_folder(&whole)?;
        let names: HashSet<&OsStr> = entries.iter().map(|(name, ..)| name.as_os_str()).collect();
        let inside = whole.to_string_lossy();
        let siblings = |name: &str| names.contains(OsStr::new(name));
        for (name, bytes, modified, is_folder) in &entries {
            let text = name.to_string_lossy();
            if rules::is_excluded(&inside, &text, &siblings)
                // The tablespaces in other folders have archives of their own.
                || inside == "pg_tblspc" && !in_place.contains(name)
            {
                continue;
            }
            let path = folder.join(name);
            let file = ServerFile { path, bytes: *bytes, modified: *modified, is_folder: *is_folder };
            files.push(file.clone());
            if !is_folder || rules::is_empty_folder(&text) {
                continue;
            }
            if inside.is_empty() && text == "pg_wal" {
                let mut inner = vec!["archive_status"];
                inner.extend((self.major >= 17).then_some("summaries"));
                files.extend(
                    inner.iter().map(|name| ServerFile { path: file.path.join(name), ..file.clone() }),
                );
                continue;
            }
            self.list_below(root, &file.path, depth + 1, in_place, files)?;
        }
        Ok(())
    }

    /// Returns the entries of a folder: name, size in bytes, modification time, and whether it is a folder.
    fn read_folder(&mut self, folder: &Path) -> Result<Vec<(PathBuf, u64, i64, bool)>, FileBackupError> {
        let query = "SELECT convert_to(name, getdatabaseencoding()), s.size, \
             extract(epoch FROM s.modification)::int8, s.isdir \
             FROM pg_ls_dir(convert_from($1, getdatabaseencoding()), true, false) AS name, \
             LATERAL pg_stat_file(convert_from($1, getdatabaseencoding()) || '/' || name, true) AS s \
             WHERE s.size IS NOT NULL";
        let place = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let rows = self.client.query(query, &[&place.as_os_str().as_bytes()]);
        let rows = rows.map_err(failed(format!("list the folder {}", place.display())))?;
        let entry = |row: &Row| {
            let (name, is_folder): (Vec<u8>, bool) = (get(row, 0)?, get(row, 3)?);
            let bytes = if is_folder { 0 } else { get::<i64>(row, 1)?.max(0).cast_unsigned() };
            Ok((PathBuf::from(std::ffi::OsString::from_vec(name)), bytes, get(row, 2)?, is_folder))
        };
        rows.iter().map(entry).collect()
    }

    /// Returns the content of ranges, and its SHA-256, with which that of the server was compared. A range is
    /// shorter at the end of its file, and `None` if the file is missing.
    ///
    /// # Errors
    /// The query fails, or the content was changed on its way.
    #[expect(clippy::type_complexity, reason = "taken apart where it is called")]
    pub fn read(
        &mut self,
        ranges: &[ReadRange<'_>],
    ) -> Result<Vec<Option<(Vec<u8>, [u8; 32])>>, FileBackupError> {
        let rows = self.read_ranges("d, sha256(d)", ranges)?;
        let range = |row: &Row| {
            let (content, sum): (Option<Vec<u8>>, Option<Vec<u8>>) = (get(row, 0)?, get(row, 1)?);
            let Some((content, sum)) = content.zip(sum) else { return Ok(None) };
            let (expected, found): ([u8; 32], [u8; 32]) = (sum_of(&sum)?, Sha256::digest(&content).into());
            match found == expected {
                true => Ok(Some((content, found))),
                false => Err(FileBackupError::Answer {
                    expected: "content with the SHA-256 of the server",
                    found: "another SHA-256".to_owned(),
                }),
            }
        };
        rows.iter().map(range).collect()
    }

    /// Returns the SHA-256 of ranges, as [`BackupSession::read`] does.
    ///
    /// # Errors
    /// The query fails.
    pub fn digests(&mut self, ranges: &[ReadRange<'_>]) -> Result<Vec<Option<[u8; 32]>>, FileBackupError> {
        let rows = self.read_ranges("sha256(d)", ranges)?;
        let sum = |row: &Row| get::<Option<Vec<u8>>>(row, 0)?.as_deref().map(sum_of).transpose();
        rows.iter().map(sum).collect()
    }

    fn read_ranges(&mut self, columns: &str, ranges: &[ReadRange<'_>]) -> Result<Vec<Row>, FileBackupError> {
        // Without OFFSET 0, a file would be read for each column. ORDER BY would sort contents in temporary
        // files; the rows are in the order of the arrays, which is checked.
        let query = format!(
            "SELECT {columns}, n FROM (SELECT n, pg_read_binary_file(convert_from(p, getdatabaseencoding()), o, l, true) AS d \
             FROM unnest($1::bytea[], $2::int8[], $3::int8[]) WITH ORDINALITY AS f(p, o, l, n) OFFSET 0) AS f"
        );
        let paths: Vec<&[u8]> = ranges.iter().map(|range| range.path.as_os_str().as_bytes()).collect();
        let offsets: Vec<i64> = ranges.iter().map(|range| range.offset.cast_signed()).collect();
        let lengths: Vec<i64> = ranges.iter().map(|range| range.bytes.cast_signed()).collect();
        let parameters: [&(dyn ToSql + Sync); 3] = [&paths, &offsets, &lengths];
        let what = || match ranges {
            [first, ..] => format!("read {} from offset {}", first.path.display(), first.offset),
            [] => "read no file".to_owned(),
        };
        let rows = self.client.query(&query, &parameters).map_err(failed(what()))?;
        let numbers: Vec<i64> = rows.iter().map(|row| get(row, row.len() - 1)).collect::<Result<_, _>>()?;
        if !numbers.iter().copied().eq((1..).take(ranges.len())) {
            let found = format!("{} rows, or another order", rows.len());
            return Err(FileBackupError::Answer {
                expected: "a row for each range of a file, in order",
                found,
            });
        }
        Ok(rows)
    }

    /// Returns the content of a small file and when it was modified; `None` if it is missing.
    ///
    /// # Errors
    /// The query fails.
    pub fn read_small(&mut self, path: &str, bytes: u64) -> Result<Option<(Vec<u8>, i64)>, FileBackupError> {
        let query = "SELECT pg_read_binary_file($1, 0, $2, true), \
             extract(epoch FROM s.modification)::int8 FROM pg_stat_file($1, true) AS s";
        let row = self.client.query_one(query, &[&path, &bytes.cast_signed()]);
        let row = row.map_err(failed(format!("read {path}")))?;
        let content: Option<Vec<u8>> = get(&row, 0)?;
        Ok(content.zip(get::<Option<i64>>(&row, 1)?))
    }
}

fn get<'r, T: postgres::types::FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, FileBackupError> {
    row.try_get(column).map_err(|error| failed("read the server's answer")(error.into()))
}

fn lsn(row: &Row, column: usize) -> Result<Lsn, FileBackupError> {
    let text: String = get(row, column)?;
    text.parse().map_err(|_| FileBackupError::Answer { expected: "an LSN", found: text })
}

fn sum_of(bytes: &[u8]) -> Result<[u8; 32], FileBackupError> {
    let found = || FileBackupError::Answer {
        expected: "32 bytes of SHA-256",
        found: format!("{} bytes", bytes.len()),
    };
    bytes.try_into().map_err(|_| found())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_and_the_map_name_timeline_and_tablespaces() {
        let stopped = StoppedBackup {
            end: Lsn(1),
            timeline: 3,
            label: b"START WAL LOCATION: 0/2000028 (file 000000020000000000000002)\nSTART TIMELINE: 2\n"
                .to_vec(),
            tablespace_map: b"16384 /srv/fast\n16390 /srv/with space\\\n7 line\n".to_vec(),
        };
        assert_eq!(stopped.start_timeline(), Some(2));
        assert_eq!(stopped.tablespaces(), [16384, 16390]);
    }
}
