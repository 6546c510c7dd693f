//! Receives a base backup (`BASE_BACKUP`) of PostgreSQL 14 to 19.
//!
//! Documentation: "Streaming Replication Protocol". Since PostgreSQL 15, one stream has all tar archives and
//! the manifest, each announced by a message. Before, each is a stream of its own, and the two empty blocks
//! at the end of a tar archive are left out (`basebackup.c`).

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use walden_format::lsn::{Lsn, Timeline};

use super::message::{Message, strings};
use super::{Replication, ReplicationError, protocol, unexpected};

/// Longest time until the first answer: a spread checkpoint takes a part of `checkpoint_timeout`, which is at
/// most a day.
const BEGIN_WITHIN: Duration = Duration::from_secs(26 * 3600);
/// Longest time without a message later: the server reads its files, or waits for its end of the backup.
const SILENT_FOR: Duration = Duration::from_secs(600);
/// The two empty blocks that end a tar archive.
const END_OF_TAR: [u8; 1024] = [0; 1024];

/// How a server makes a base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BaseBackupOptions {
    /// The label in `backup_label`.
    pub label: String,
    /// Whether the server writes the checkpoint immediately rather than spread over time.
    pub is_fast: bool,
    /// Maximum rate in kB a second; the server accepts 32 to 1048576.
    pub max_rate: Option<u32>,
    /// Whether the server verifies the checksums of its pages, if it has any.
    pub verify_checksums: bool,
}

impl BaseBackupOptions {
    /// Creates options with a spread checkpoint, without a limit, and with verified checksums.
    pub fn new(label: String) -> BaseBackupOptions {
        BaseBackupOptions { label, is_fast: false, max_rate: None, verify_checksums: true }
    }

    /// The command: since PostgreSQL 15 with options in parentheses.
    fn command(&self, major: u32) -> String {
        let label = format!("'{}'", self.label.replace('\'', "''"));
        let mut text = String::new();
        if major >= 15 {
            let checkpoint = if self.is_fast { "fast" } else { "spread" };
            let _ = write!(
                text,
                "BASE_BACKUP (LABEL {label}, PROGRESS, CHECKPOINT '{checkpoint}', WAIT false, TABLESPACE_MAP, MANIFEST 'yes', \
                 MANIFEST_CHECKSUMS 'CRC32C', VERIFY_CHECKSUMS {}",
                self.verify_checksums
            );
            if let Some(rate) = self.max_rate {
                let _ = write!(text, ", MAX_RATE {rate}");
            }
            return text + ")";
        }
        let _ = write!(text, "BASE_BACKUP LABEL {label} PROGRESS{}", if self.is_fast { " FAST" } else { "" });
        text += " NOWAIT";
        if let Some(rate) = self.max_rate {
            let _ = write!(text, " MAX_RATE {rate}");
        }
        text += " TABLESPACE_MAP";
        if !self.verify_checksums {
            text += " NOVERIFY_CHECKSUMS";
        }
        text + " MANIFEST 'yes' MANIFEST_CHECKSUMS 'CRC32C'"
    }
}

/// The start of a base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupBegin {
    /// The redo pointer of its checkpoint.
    pub start: Lsn,
    /// The timeline there.
    pub timeline: Timeline,
    /// The tar archives that follow: tablespaces, and the data directory as the last one.
    pub archives: Vec<BackupArchive>,
}

/// A tar archive of a base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupArchive {
    /// The tablespace; `None` for the data directory.
    pub oid: Option<u32>,
    /// The folder of the tablespace on the server.
    pub location: Option<String>,
    /// The server's estimate of its size in bytes.
    pub bytes: Option<u64>,
}

/// A part of a base backup, in the order in which the server sends it.
#[derive(PartialEq, Eq, Debug)]
pub enum BackupPart<'b> {
    /// The tar archive of a tablespace, or of the data directory, follows.
    Archive(Option<u32>),
    /// `backup_manifest` follows.
    Manifest,
    /// Bytes of the archive or the manifest.
    Content(&'b [u8]),
    /// The backup is complete.
    End {
        /// The end of the WAL that it needs.
        end: Lsn,
        /// The timeline there.
        timeline: Timeline,
    },
}

/// A base backup that a server sends.
pub struct BackupStream<'r> {
    replication: &'r mut Replication,
    begin: BackupBegin,
    /// Before PostgreSQL 15: the archives that are not announced yet.
    left: Option<VecDeque<Option<u32>>>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A stream follows.
    Between,
    /// Before PostgreSQL 15: in the stream of an archive.
    Archive,
    /// In the stream of all archives, or of the manifest.
    Stream,
    /// The last stream has ended.
    Ending,
    Ended,
}

impl Replication {
    /// Starts a base backup. The server does not wait until its WAL is archived.
    ///
    /// # Errors
    /// As [`Replication::identify`], and a version before PostgreSQL 14.
    pub fn start_backup(
        &mut self,
        options: &BaseBackupOptions,
    ) -> Result<BackupStream<'_>, ReplicationError> {
        let major = self.major().unwrap_or_default();
        if major < 14 {
            let found = format!("version {}", self.version());
            return Err(ReplicationError::Protocol { expected: "a server of PostgreSQL 14 or later", found });
        }
        self.notices.clear();
        self.send_query(&options.command(major))?;
        let first = self.one_result(BEGIN_WITHIN)?;
        let first = first.into_iter().next().unwrap_or_default();
        let (start, timeline) =
            position(&first).ok_or_else(|| unexpected("the start of the backup", &first))?;
        let rows = self.one_result(SILENT_FOR)?;
        let archives: Option<Vec<BackupArchive>> = rows.iter().map(|row| archive_of(row)).collect();
        let archives = archives.ok_or_else(|| {
            unexpected("tablespaces: number, folder and size", rows.first().map_or(&[][..], Vec::as_slice))
        })?;
        let left = (major < 15).then(|| archives.iter().map(|archive| archive.oid).collect());
        let begin = BackupBegin { start, timeline, archives };
        Ok(BackupStream { replication: self, begin, left, state: State::Between })
    }

    /// Returns the rows of the next result of a command that has several.
    fn one_result(&mut self, within: Duration) -> Result<Vec<Vec<Option<Vec<u8>>>>, ReplicationError> {
        let mut rows = Vec::new();
        self.transport.deadline = Some(Instant::now() + within);
        loop {
            let message = self.wait_for_message()?;
            match message.kind {
                b'T' => {}
                b'D' => {
                    let row = super::message::parse_row(message.content);
                    rows.push(row.ok_or_else(|| protocol("a row", &message))?);
                }
                b'C' => return Ok(rows),
                _ => return Err(protocol("a result of the base backup", &message)),
            }
        }
    }
}

impl BackupStream<'_> {
    /// Returns the start of the backup.
    pub fn begin(&self) -> &BackupBegin {
        &self.begin
    }

    /// Returns warnings and notices of the server since the last call, such as pages with a wrong checksum.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.replication.notices)
    }

    /// Returns the next part, and waits for it.
    ///
    /// # Errors
    /// The server ends the backup with an error, such as after a wrong checksum of a page; an invalid
    /// message; a lost connection.
    pub fn next_part(&mut self) -> Result<BackupPart<'_>, ReplicationError> {
        loop {
            if self.state == State::Ending || self.state == State::Ended {
                return self.end();
            }
            self.replication.transport.deadline = Some(Instant::now() + SILENT_FOR);
            let range = self.replication.wait_for_range()?;
            let message = Message::whole(&self.replication.buffer[range.clone()]);
            match (message.kind, self.state) {
                (b'H', State::Between) => match &mut self.left {
                    None => self.state = State::Stream,
                    Some(left) => {
                        return Ok(match left.pop_front() {
                            Some(oid) => {
                                self.state = State::Archive;
                                BackupPart::Archive(oid)
                            }
                            None => {
                                self.state = State::Stream;
                                BackupPart::Manifest
                            }
                        });
                    }
                },
                (b'd', State::Archive) => return Ok(BackupPart::Content(self.content(range, 0))),
                (b'd', State::Stream) if self.left.is_some() => {
                    return Ok(BackupPart::Content(self.content(range, 0)));
                }
                (b'd', State::Stream) => match message.content.split_first() {
                    Some((b'd', _)) => return Ok(BackupPart::Content(self.content(range, 1))),
                    Some((b'n', texts)) => {
                        let name = strings(texts).next().unwrap_or_default();
                        let oid = oid_of(&name).ok_or(ReplicationError::Protocol {
                            expected: "the tar archive of a tablespace",
                            found: name.chars().take(80).collect(),
                        })?;
                        return Ok(BackupPart::Archive(oid));
                    }
                    Some((b'm', _)) => return Ok(BackupPart::Manifest),
                    Some((b'p', _)) => {}
                    _ => return Err(protocol("a part of the base backup", &message)),
                },
                (b'c', State::Archive) => {
                    self.state = State::Between;
                    return Ok(BackupPart::Content(&END_OF_TAR));
                }
                (b'c', State::Stream) => self.state = State::Ending,
                _ => return Err(protocol("a part of the base backup", &message)),
            }
        }
    }

    fn content(&self, range: Range<usize>, skipped: usize) -> &[u8] {
        let content = Message::whole(&self.replication.buffer[range]).content;
        content.get(skipped..).unwrap_or_default()
    }

    /// Reads the position of the end, and the end of the command.
    fn end(&mut self) -> Result<BackupPart<'_>, ReplicationError> {
        if self.state == State::Ended {
            let (expected, found) =
                ("no part after the end of the base backup", "a request for one".to_owned());
            return Err(ReplicationError::Protocol { expected, found });
        }
        let rows = self.replication.one_result(SILENT_FOR)?;
        let row = rows.into_iter().next().unwrap_or_default();
        let (end, timeline) = position(&row).ok_or_else(|| unexpected("the end of the backup", &row))?;
        self.replication.rows()?;
        self.state = State::Ended;
        Ok(BackupPart::End { end, timeline })
    }
}

fn text(row: &[Option<Vec<u8>>], at: usize) -> Option<String> {
    Some(String::from_utf8_lossy(row.get(at)?.as_deref()?).into_owned())
}

/// Reads a row with a position and a timeline.
fn position(row: &[Option<Vec<u8>>]) -> Option<(Lsn, Timeline)> {
    Some((text(row, 0)?.parse().ok()?, text(row, 1)?.parse().ok()?))
}

/// Reads a row with a tablespace. That of the data directory has null values.
fn archive_of(row: &[Option<Vec<u8>>]) -> Option<BackupArchive> {
    let oid = match text(row, 0) {
        None => None,
        Some(number) => Some(number.parse().ok()?),
    };
    let kilobytes: Option<u64> = text(row, 2).and_then(|size| size.parse().ok());
    let bytes = kilobytes.and_then(|size| size.checked_mul(1024));
    Some(BackupArchive { oid, location: text(row, 1), bytes })
}

/// Returns the tablespace of a tar archive by its name, such as `16384.tar`.
fn oid_of(name: &str) -> Option<Option<u32>> {
    match name.strip_suffix(".tar")? {
        "base" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_version() {
        let mut options = BaseBackupOptions::new("it's".to_owned());
        assert_eq!(
            options.command(14),
            "BASE_BACKUP LABEL 'it''s' PROGRESS NOWAIT TABLESPACE_MAP MANIFEST 'yes' MANIFEST_CHECKSUMS 'CRC32C'"
        );
        options.is_fast = true;
        options.max_rate = Some(1024);
        options.verify_checksums = false;
        let new = options.command(18);
        for part in ["LABEL 'it''s'", "CHECKPOINT 'fast'", "VERIFY_CHECKSUMS false", "MAX_RATE 1024)"] {
            assert!(new.contains(part), "{new}");
        }
        assert!(
            options.command(14).contains(" FAST NOWAIT MAX_RATE 1024 TABLESPACE_MAP NOVERIFY_CHECKSUMS ")
        );
    }

    #[test]
    fn archives_are_named_after_their_tablespaces() {
        let names = ["base.tar", "16384.tar", "16384", "x.tar", "../1.tar"].map(oid_of);
        assert_eq!(names, [Some(None), Some(Some(16384)), None, None, None]);
    }

    #[test]
    fn rows_of_tablespaces_have_null_values_for_the_data_directory() {
        let bytes = |text: &str| Some(text.as_bytes().to_vec());
        let found = archive_of(&[bytes("16384"), bytes("/srv/fast"), bytes("7")]).unwrap();
        let expected =
            BackupArchive { oid: Some(16384), location: Some("/srv/fast".into()), bytes: Some(7168) };
        assert_eq!(found, expected);
        let base = archive_of(&[None, None, bytes("8")]).unwrap();
        assert_eq!((base.oid, base.location, base.bytes), (None, None, Some(8192)));
        assert_eq!(archive_of(&[bytes("x"), None, None]), None);
    }
}
