//! A server's WAL files, read by SQL.

use std::collections::BTreeMap;
use std::io::{self, Read};

use walden_archive::against::{Facts, Mark, Server, ServerError, ServerFile};
use walden_archive::name::ArchivedFile;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_postgres::connection::{Client, ConnectionError, connect};

/// A server that is read by SQL only.
pub struct SqlServer {
    client: Client,
}

impl SqlServer {
    /// Connects to a server.
    ///
    /// # Errors
    /// The errors of [`connect`].
    pub fn connect(dsn: &str) -> Result<SqlServer, ConnectionError> {
        Ok(SqlServer { client: connect(dsn)? })
    }
}

/// Timeline and end of the server's complete WAL: written by a primary, or received and replayed by a
/// standby.
const FACTS: &str = "
SELECT (SELECT system_identifier FROM pg_control_system()),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'),
       pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery()
            THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text
            ELSE pg_current_wal_lsn()::text END,
       CASE WHEN pg_is_in_recovery()
            THEN greatest((SELECT max(received_tli) FROM pg_stat_wal_receiver),
                          (SELECT timeline_id FROM pg_control_checkpoint()))
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END";

/// Files in `pg_wal`, and their marks in `archive_status`.
const FILES: &str = "SELECT name, size FROM pg_ls_waldir()";
const MARKS: &str = "SELECT name FROM pg_ls_archive_statusdir()";

impl Server for SqlServer {
    fn facts(&mut self) -> Result<Facts, ServerError> {
        let row = self.client.query_one(FACTS, &[])?;
        let written: Option<String> = row.try_get(3)?;
        Ok(Facts {
            // SQL has no unsigned integers: a large identifier arrives as a negative one.
            system_identifier: row.try_get::<_, i64>(0)?.cast_unsigned(),
            segment_bytes: row.try_get::<_, i64>(1)?.cast_unsigned(),
            is_standby: row.try_get(2)?,
            written: written.map_or(Ok(Lsn::INVALID), |lsn| lsn.parse())?,
            timeline: row.try_get::<_, i32>(4)?.cast_unsigned(),
        })
    }

    fn files(&mut self) -> Result<Vec<ServerFile>, ServerError> {
        let mut marks = BTreeMap::new();
        for row in self.client.query(MARKS, &[])? {
            let name: String = row.try_get(0)?;
            let mark = match name.rsplit_once('.') {
                Some((file, "done")) => Some((file, Mark::Done)),
                Some((file, "ready")) => Some((file, Mark::Ready)),
                _ => None,
            };
            marks.extend(mark.map(|(file, mark)| (file.to_owned(), mark)));
        }
        let mut files = Vec::new();
        for row in self.client.query(FILES, &[])? {
            let name: String = row.try_get(0)?;
            let Some(file) = ArchivedFile::parse(&name) else { continue };
            let bytes = row.try_get::<_, i64>(1)?.cast_unsigned();
            files.push(ServerFile { file, bytes, mark: marks.get(&name).copied().unwrap_or(Mark::None) });
        }
        files.sort_by_key(|one| (!matches!(one.file, ArchivedFile::History(_)), one.file.to_string()));
        Ok(files)
    }

    fn open(&mut self, file: ArchivedFile) -> Box<dyn Read + '_> {
        Box::new(FileOfServer { client: &mut self.client, file, at: 0, chunk: Vec::new(), taken: 0 })
    }
}

/// A file in `pg_wal`, read in chunks.
struct FileOfServer<'a> {
    client: &'a mut Client,
    file: ArchivedFile,
    /// Offset of the next chunk.
    at: i64,
    chunk: Vec<u8>,
    /// Bytes of the chunk already returned.
    taken: usize,
}

/// Reads a file from a server's `pg_wal`, at most the bytes of the largest segment.
///
/// # Errors
/// The user may not read files of the server, or the server has removed the file.
pub fn read_file(client: &mut Client, file: ArchivedFile) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut input = FileOfServer { client, file, at: 0, chunk: Vec::new(), taken: 0 };
    (&mut input).take(SegmentSize::MAX.bytes()).read_to_end(&mut content)?;
    Ok(content)
}

/// Bytes per query.
const CHUNK: i64 = 1 << 20;

impl Read for FileOfServer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() && !buffer.is_empty() {
            let path = format!("pg_wal/{}", self.file);
            let row = self
                .client
                .query_one("SELECT pg_read_binary_file($1, $2, $3, true)", &[&path, &self.at, &CHUNK])
                .map_err(io::Error::other)?;
            let chunk: Option<Vec<u8>> = row.try_get(0).map_err(io::Error::other)?;
            let gone =
                || io::Error::new(io::ErrorKind::NotFound, "the server has removed or renamed it meanwhile");
            self.chunk = chunk.ok_or_else(gone)?;
            self.at += self.chunk.len() as i64;
            self.taken = 0;
        }
        let left = &self.chunk[self.taken..];
        let bytes = left.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&left[..bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}
