//! Makes a base backup of a server, and stores it in an archive.
//!
//! If the role may call the functions, several ordinary connections read the files (`files`). Otherwise, the
//! server sends the backup over one replication connection.

mod files;
mod unchanged;

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::base_backups::{
    BaseBackupError, NewBackup, StoredBackup, Writer, WriterOptions, first_missing_segment,
};
use walden_postgres::backup::{BackupSession, FileBackupError};
use walden_postgres::connection::Parameters;
use walden_postgres::replication::{BackupPart, BaseBackupOptions, Replication, ReplicationError};
use walden_source::error_text;

/// Longest `backup_manifest` in bytes.
const MAX_MANIFEST_BYTES: usize = 1 << 30;
/// How often the archive is asked for missing WAL.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why a base backup was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The server cannot be reached, or ends the backup.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
    /// The server ends the backup after warnings.
    #[error("{source}; the server has warned: {}", warnings.join("; "))]
    Warned {
        /// The warnings.
        warnings: Vec<String>,
        /// The error.
        source: Box<ReplicationError>,
    },
    /// The files of the server cannot be read.
    #[error(transparent)]
    Files(#[from] FileBackupError),
    /// The server has damaged pages.
    #[error(
        "cannot store a base backup: expected valid checksums of all pages, found {pages} invalid: {}",
        first.join(", ")
    )]
    Checksums {
        /// Number of pages.
        pages: u64,
        /// The first of them: path and block.
        first: Vec<String>,
    },
    /// A standby has followed its primary to another timeline.
    #[error("cannot store a base backup: expected timeline {start} at its end, found {end}")]
    Timeline {
        /// The timeline at the start.
        start: u32,
        /// The timeline at the end.
        end: u32,
    },
    /// The server changes `pg_control` all the time, or it is damaged.
    #[error("cannot store a base backup: global/pg_control: {problem}")]
    Control {
        /// The expected and the found value.
        problem: String,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The backup cannot be stored.
    #[error(transparent)]
    Store(#[from] BaseBackupError),
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The server archives nowhere, or elsewhere.
    #[error(
        "cannot store a base backup in {location}: expected an archive with the WAL of this server, found an empty one"
    )]
    NoWal {
        /// Location of the archive.
        location: String,
    },
}

walden_format::diagnostics! { BackupError {
    Self::Replication(error) => of(error),
    Self::Warned { source, .. } => of(source),
    Self::Files(error) => of(error),
    Self::Store(error) => of(error),
    Self::Archive(error) => of(error),
    Self::Checksums { .. } => "backup-checksums": "the storage of the server may be damaged: walden recover-block reconstructs pages from the archive; --no-verify-checksums stores the pages as they are",
    Self::Timeline { .. } => "backup-timeline": "the primary of this standby was replaced during the backup. Make the backup again: it continues with the stored pieces",
    Self::Control { .. } => "backup-control": "make the backup again: it continues with the stored pieces. If the file is damaged, the server does not start again",
    Self::Thread(_) => "backup-thread": "the limits of the process (ulimit -u) may be reached: raise them, or use a smaller --jobs",
    Self::NoWal { .. } => "backup-no-wal": "set up archiving first: walden archive check --dsn DSN --switch tests it; a base backup is useless without its WAL",
} }

/// A step of a backup, for progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The server writes a checkpoint.
    Checkpoint,
    /// The server expects to send this number of bytes.
    Started(u64),
    /// The server's WAL summaries do not reach the start of the backup yet.
    WaitingForSummaries,
    /// This number of bytes was received since the last step.
    Received(u64),
    /// The archive does not have all WAL of the backup yet.
    WaitingForWal,
}

/// How a backup is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackupOptions {
    /// The server's part.
    pub server: BaseBackupOptions,
    /// The archive's part.
    pub writer: WriterOptions,
    /// How long to wait for its WAL in the archive.
    pub wait_for_wal: Duration,
    /// Number of connections that read files; 0 for the replication protocol.
    pub jobs: usize,
}

impl BackupOptions {
    /// Creates options.
    pub fn new(
        server: BaseBackupOptions,
        writer: WriterOptions,
        wait_for_wal: Duration,
        jobs: usize,
    ) -> BackupOptions {
        BackupOptions { server, writer, wait_for_wal, jobs }
    }
}

/// A stored backup.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct CreatedBackup {
    /// Location of the archive.
    pub location: String,
    /// Name of the backup.
    pub name: String,
    /// Its label.
    pub label: String,
    /// The timeline at its start.
    pub timeline: u32,
    /// Where recovery starts.
    pub start_lsn: String,
    /// Where the backup is consistent.
    pub end_lsn: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Stored bytes of all its pieces.
    pub stored_bytes: u64,
    /// Stored bytes of the pieces that no earlier backup had.
    pub new_bytes: u64,
    /// Number of connections that have read files; 0 for the replication protocol.
    pub jobs: usize,
    /// Bytes of files that the server has sent.
    pub received_bytes: u64,
    /// Bytes of files that were not sent, because the newest backup has them.
    pub unchanged_bytes: u64,
    /// Those of them that the server has not even read, because no WAL has changed them.
    pub unread_bytes: u64,
    /// Bytes of files that were not sent, because a backup that was interrupted has them.
    pub continued_bytes: u64,
    /// Duration in seconds, without the wait for WAL.
    pub seconds: f64,
    /// The first segment that the archive lacks, if it lacks any after the wait.
    pub missing_segment: Option<String>,
    /// Warnings of the server.
    pub warnings: Vec<String>,
    /// Whether pieces were stored again because no private key was named.
    #[serde(skip)]
    pub is_without_list: bool,
    /// Why the replication protocol was used although several connections were wanted, or why the server has
    /// read whole files although it summarizes its WAL.
    pub note: Option<String>,
}

/// A backup whose files are stored.
struct Made {
    backup: StoredBackup,
    jobs: usize,
    received_bytes: u64,
    unchanged_bytes: u64,
    unread_bytes: u64,
    continued_bytes: u64,
    warnings: Vec<String>,
    is_without_list: bool,
    note: Option<String>,
}

/// Makes a base backup, stores it, and waits for its WAL.
///
/// # Errors
/// The archive belongs to another cluster or has no WAL, the server ends the backup, or it cannot be stored.
/// Then no backup exists. The next one continues with the stored pieces, or `prune` removes them.
pub fn create(
    archive: &Archive,
    parameters: &Parameters,
    options: &BackupOptions,
    progress: &mut dyn FnMut(Step),
) -> Result<CreatedBackup, BackupError> {
    let started = Instant::now();
    let made = match connect_for_files(parameters, options.jobs) {
        Ok(session) => files::create(archive, parameters, session, options, progress)?,
        Err(note) => Made { note, ..receive(archive, parameters, options, progress)? },
    };
    let backup = made.backup;
    let seconds = started.elapsed().as_secs_f64();
    let missing_segment = wait_for_wal(archive, &backup, options.wait_for_wal, progress)?;
    let (timeline, start) = backup.start();
    Ok(CreatedBackup {
        location: archive.store().location().to_owned(),
        timeline,
        start_lsn: start.to_string(),
        end_lsn: backup.end().to_string(),
        name: backup.name,
        label: backup.label,
        bytes: backup.bytes,
        stored_bytes: backup.stored_bytes,
        new_bytes: backup.new_bytes,
        jobs: made.jobs,
        received_bytes: made.received_bytes,
        unchanged_bytes: made.unchanged_bytes,
        unread_bytes: made.unread_bytes,
        continued_bytes: made.continued_bytes,
        seconds,
        missing_segment,
        warnings: made.warnings,
        is_without_list: made.is_without_list,
        note: made.note,
    })
}

/// Connects a session that may read files. The error is the reason for the replication protocol, if the
/// caller has not chosen it.
fn connect_for_files(parameters: &Parameters, jobs: usize) -> Result<BackupSession, Option<String>> {
    if jobs == 0 {
        return Err(None);
    }
    let mut session = BackupSession::connect(parameters).map_err(|error| Some(error_text(&error)))?;
    match session.missing_rights().map_err(|error| Some(error_text(&error)))? {
        None => Ok(session),
        Some(grant) => Err(Some(format!("the role may not read files: {grant}"))),
    }
}

/// Refuses an archive of another cluster, and one without WAL.
fn expect_archive(archive: &Archive, system_identifier: u64, segment_bytes: u64) -> Result<(), BackupError> {
    match archive.identity() {
        Err(ArchiveError::Empty(location)) => return Err(BackupError::NoWal { location }),
        other => drop(other?),
    }
    archive.expect_cluster(system_identifier)?;
    Ok(archive.expect_segment_bytes(segment_bytes)?)
}

/// Receives a base backup over the replication protocol, and stores it.
fn receive(
    archive: &Archive,
    parameters: &Parameters,
    options: &BackupOptions,
    progress: &mut dyn FnMut(Step),
) -> Result<Made, BackupError> {
    let mut server = Replication::connect(parameters)?;
    let system = server.identify()?;
    expect_archive(archive, system.system_id, server.segment_size()?.bytes())?;
    let server_version = server.version().to_owned();
    progress(Step::Checkpoint);
    let mut stream = server.start_backup(&options.server)?;
    let expected = stream.begin().archives.iter().filter_map(|tar| tar.bytes).sum();
    let new = NewBackup {
        label: options.server.label.clone(),
        server_version,
        system_identifier: system.system_id,
        start: stream.begin().start,
    };
    let mut writer = Writer::begin(archive, new, options.writer)?;
    let is_without_list = writer.is_without_list();
    progress(Step::Started(expected));
    let (mut manifest, mut warnings, mut received_bytes) = (None::<Vec<u8>>, Vec::new(), 0);
    loop {
        let part = stream.next_part();
        match part {
            Ok(BackupPart::Archive(tablespace)) => writer.start_archive(tablespace)?,
            Ok(BackupPart::Manifest) => manifest = Some(Vec::new()),
            Ok(BackupPart::Content(bytes)) => {
                progress(Step::Received(bytes.len() as u64));
                received_bytes += bytes.len() as u64;
                match &mut manifest {
                    None => writer.add(bytes)?,
                    Some(text) if text.len() + bytes.len() <= MAX_MANIFEST_BYTES => {
                        text.extend_from_slice(bytes)
                    }
                    Some(_) => {
                        let problem =
                            format!("expected a manifest of at most {MAX_MANIFEST_BYTES} bytes, found more");
                        return Err(BaseBackupError::Content(problem).into());
                    }
                }
            }
            Ok(BackupPart::End { .. }) => break,
            Err(source) => {
                warnings.extend(stream.take_notices());
                return Err(match warnings.is_empty() {
                    true => source.into(),
                    false => BackupError::Warned { warnings, source: Box::new(source) },
                });
            }
        }
    }
    warnings.extend(stream.take_notices());
    let backup = writer.finish(&manifest.unwrap_or_default())?;
    Ok(Made {
        backup,
        jobs: 0,
        received_bytes,
        unchanged_bytes: 0,
        unread_bytes: 0,
        continued_bytes: 0,
        warnings,
        is_without_list,
        note: None,
    })
}

/// Waits until the archive has the WAL of a backup. Returns the first segment that is still missing.
fn wait_for_wal(
    archive: &Archive,
    backup: &StoredBackup,
    time: Duration,
    progress: &mut dyn FnMut(Step),
) -> Result<Option<String>, ArchiveError> {
    let began = Instant::now();
    loop {
        let missing = first_missing_segment(archive, backup)?;
        if missing.is_none() || began.elapsed() >= time {
            return Ok(missing);
        }
        progress(Step::WaitingForWal);
        sleep(POLL_INTERVAL.min(time.saturating_sub(began.elapsed())));
    }
}
