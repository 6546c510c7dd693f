//! Why a base backup cannot be rolled forward.

use std::io;
use std::path::{Path, PathBuf};

use walden_format::lsn::{Lsn, Timeline};
use walden_redo::{BlockKey, State};
use walden_source::datadir::{ControlError, DataDirError};
use walden_source::scan::Damage;

use crate::support::Unsupported;

/// Why a base backup cannot be rolled forward.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The base backup is not a data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A file or folder cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// "read", "write", "create" or "copy".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The base backup has something that this version does not restore.
    #[error("cannot restore {}: expected {expected}, found {found}", base.display())]
    Base {
        /// The base backup.
        base: PathBuf,
        /// The supported form.
        expected: &'static str,
        /// The content of the backup.
        found: String,
        /// The remedy.
        hint: &'static str,
    },
    /// The target directory is in use.
    #[error("cannot restore to {}: expected an empty or missing directory, found {found}", path.display())]
    Target {
        /// The directory.
        path: PathBuf,
        /// Content of the file.
        found: String,
        /// The remedy.
        hint: &'static str,
    },
    /// The existing data directory cannot be restored over.
    #[error("cannot restore over {}: expected {expected}, found {found}", path.display())]
    Existing {
        /// The folder.
        path: PathBuf,
        /// The supported content.
        expected: &'static str,
        /// The content found.
        found: String,
        /// The remedy.
        hint: &'static str,
    },
    /// Another run reads or writes the folder.
    #[error("cannot use {}: another run of walden reads or writes it", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Another run replaced the folder in the meantime.
    #[error("cannot use {}: another run has replaced it in the meantime", path.display())]
    Replaced {
        /// The folder.
        path: PathBuf,
    },
    /// A tablespace has no new folder.
    #[error(
        "cannot restore the tablespace {oid}: expected a new folder for it, found that of the base backup, {}", folder.display()
    )]
    Unmapped {
        /// The tablespace.
        oid: u32,
        /// Folder of the tablespace.
        folder: PathBuf,
    },
    /// A folder has a new one, but is not that of a tablespace.
    #[error("cannot map {}: expected the folder of a tablespace, found {}", old.display(), none_if_empty(found))]
    Mapping {
        /// The folder.
        old: PathBuf,
        /// The folders of the tablespaces of the base backup and the WAL.
        found: String,
    },
    /// PostgreSQL replays the record that creates a tablespace with a new folder.
    #[error(
        "cannot create the tablespace of {lsn} in a new folder: expected a checkpoint between that record and the target, found the last one at {redo}{}: PostgreSQL would create it in {}", before(unsupported), path.display()
    )]
    MappedAfter {
        /// The folder in the record.
        path: PathBuf,
        /// The record.
        lsn: Lsn,
        /// The redo pointer from which PostgreSQL replays.
        redo: Lsn,
        /// The record before which the checkpoint must be, because Walden does not replay it.
        unsupported: Option<Unsupported>,
    },
    /// A base backup cannot be replaced as a whole.
    #[error("cannot advance {} in place: expected a backup in one folder, found tablespaces in others", base.display())]
    InPlace {
        /// The base backup.
        base: PathBuf,
    },
    /// The WAL is of another cluster.
    #[error(
        "cannot recover with this WAL: expected system identifier {expected}, the base backup's, found {found}"
    )]
    OtherCluster {
        /// The base backup's.
        expected: u64,
        /// The WAL's.
        found: u64,
    },
    /// The WAL does not contain the position at which recovery starts.
    #[error(
        "cannot start recovery at {start} on timeline {timeline}: expected WAL from there on, found {found}"
    )]
    NoStart {
        /// The backup's redo pointer.
        start: Lsn,
        /// The timeline there.
        timeline: Timeline,
        /// The range of the WAL.
        found: String,
    },
    /// The WAL ends before the target.
    #[error("cannot recover to {target}: expected it in WAL from {start} on, found the end of WAL at {end}")]
    TargetNotReached {
        /// The target.
        target: String,
        /// Where the WAL starts.
        start: Lsn,
        /// Where it ends.
        end: Lsn,
    },
    /// The target is a subtransaction, whose end has no record of its own.
    #[error(
        "cannot recover to transaction {xid}: it is a subtransaction of {top_level}, and recovery stops at the end of a transaction"
    )]
    Subtransaction {
        /// The target.
        xid: u32,
        /// The transaction that it belongs to.
        top_level: u32,
    },
    /// The target is a transaction that did not end.
    #[error(
        "cannot recover to transaction {xid}: expected its end in WAL from {start} on, found {} at {lsn}, and the end of WAL at {end}",
        if *.is_prepared { "PREPARE TRANSACTION" } else { "its last record" }
    )]
    Unfinished {
        /// The target.
        xid: u32,
        /// Where the WAL starts.
        start: Lsn,
        /// The transaction's last record.
        lsn: Lsn,
        /// Whether that record prepares the transaction.
        is_prepared: bool,
        /// Where the WAL ends.
        end: Lsn,
    },
    /// The target is before the end of the base backup.
    #[error("cannot recover to {target}: expected a target after the end of the base backup ({backup})")]
    TargetTooEarly {
        /// The target.
        target: String,
        /// The end of the backup, or the time of its checkpoint.
        backup: String,
    },
    /// The server wrote WAL that recovery must not skip (`CheckRequiredParameterValues` in `xlogrecovery.c`).
    #[error(
        "cannot recover across {lsn}: expected WAL with wal_level replica or logical, found minimal: changes of the data are not in it"
    )]
    MinimalWal {
        /// The record of the change of `wal_level`.
        lsn: Lsn,
    },
    /// Segments are missing before later WAL.
    #[error("cannot recover to {target}: expected WAL at {end}, found a gap before {later}")]
    Gap {
        /// The target.
        target: String,
        /// The end of the WAL that continues the backup.
        end: Lsn,
        /// Where the WAL after the gap starts.
        later: Lsn,
    },
    /// `pg_resetwal` restarted the WAL before the target.
    #[error(
        "cannot recover to {target}: pg_resetwal restarted the WAL at {at}, and recovery ends at the last record before that, at {last}"
    )]
    Restarted {
        /// The target.
        target: String,
        /// The last record that recovery reaches.
        last: Lsn,
        /// Where the WAL was restarted.
        at: Lsn,
    },
    /// The WAL ends before the base backup does.
    #[error(
        "cannot complete the base backup: expected the record of its end in WAL from {start} on, found the end of WAL at {end}"
    )]
    NoEndOfBackup {
        /// The backup's redo pointer.
        start: Lsn,
        /// Where the WAL ends.
        end: Lsn,
    },
    /// The WAL is damaged.
    #[error("{0}")]
    Damage(Box<Damage>),
    /// A record could not be replayed although the survey accepted it.
    #[error("cannot replay the record at {lsn}: {reason}")]
    Record {
        /// The record.
        lsn: Lsn,
        /// Why.
        reason: String,
    },
    /// A page is not known at the end of replay.
    #[error("cannot write {page} at {redo}: expected its content from the base backup or an image in WAL, found {}", state_text(*.state))]
    UnknownPage {
        /// The page.
        page: BlockKey,
        /// The redo pointer.
        redo: Lsn,
        /// State of the page.
        state: State,
    },
    /// Pages could not be kept.
    #[error("cannot keep pages: {0}")]
    Pages(String),
    /// `pg_control` cannot be changed.
    #[error("cannot write pg_control: {0}")]
    Control(#[from] ControlError),
}

/// The error for a record whose fields cannot be read.
pub(crate) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn before(unsupported: &Option<Unsupported>) -> String {
    unsupported.as_ref().map_or_else(String::new, |unsupported| format!(" before {unsupported}"))
}

fn none_if_empty(folders: &str) -> &str {
    if folders.is_empty() {
        "no tablespaces outside of the base backup, in it or in the WAL"
    } else {
        folders
    }
}

fn state_text(state: State) -> String {
    match state {
        State::Exact => "it exact".into(),
        State::Unknown(unknown) => unknown.to_string(),
        State::Untracked => "a change by a resource manager that is not replayed".into(),
    }
}

impl RecoverError {
    /// The error of a file or folder.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecoverError {
        let path = path.to_owned();
        move |error| RecoverError::Io { action, path, error }
    }
}

walden_format::diagnostics! { RecoverError {
    Self::DataDir(error) => of(error),
    Self::Base { hint, .. } => "restore-base": *hint,
    Self::Target { hint, .. } => "restore-target": *hint,
    Self::Existing { hint, .. } => "restore-existing": *hint,
    Self::Unmapped { .. } | Self::Mapping { .. } => "restore-tablespace": "name both folders with --tablespace-mapping OLD=NEW",
    Self::MappedAfter { .. } => "restore-tablespace-created": "choose a target after the next checkpoint or before that record, or restore without this mapping on a machine without the original's files",
    Self::InPlace { .. } => "restore-in-place": "write the later backup to another folder, with -o FOLDER --tablespace-mapping OLD=NEW",
    Self::InUse { .. } => "restore-in-use": "wait until the other run ends",
    Self::Replaced { .. } => "restore-replaced": "run the command again, which reads the new one",
    Self::OtherCluster { .. } => "restore-other-cluster": "name a base backup and the WAL of one cluster",
    Self::NoStart { .. } => "restore-no-start": "name the archive or folder that has the WAL since the start of the base backup",
    Self::TargetNotReached { .. } => "restore-target-not-reached": "choose an earlier target, or --to latest for the end of the WAL",
    Self::Subtransaction { .. } => "restore-subtransaction": "name the transaction that it belongs to: --to xid:N",
    Self::Unfinished { lsn, is_prepared: true, .. } => "restore-unfinished": format!("recovery stops at the end of a transaction; --to {lsn} recovers to the record that prepares it, and the server can then commit it or roll it back"),
    Self::Unfinished { lsn, .. } => "restore-unfinished": format!("recovery stops at the end of a transaction; --to {lsn} recovers to its last record, and the server then rolls it back"),
    Self::TargetTooEarly { .. } => "restore-target-too-early": "use an earlier base backup",
    Self::MinimalWal { .. } => "restore-minimal-wal": "choose a target before that position, or use a base backup that was taken after it",
    Self::Gap { .. } => "restore-gap": "add the missing segments (walden archive list names them), or choose a target before the gap with --to LSN",
    Self::Restarted { .. } => "restore-reset": "choose that record or an earlier target with --to, or use a base backup that was taken after pg_resetwal",
    Self::NoEndOfBackup { .. } => "restore-no-end-of-backup": "add the WAL up to the end of the base backup, or use another base backup",
    Self::Damage(damage) => of(damage),
    Self::Record { .. } | Self::UnknownPage { .. } => "restore-replay": "recover with PostgreSQL alone; the base backup or the WAL may be damaged (walden redo check reads both)",
    Self::Pages(_) => "restore-pages": "TMPDIR names the folder of the temporary file; more --memory makes it smaller",
    Self::Io { .. } | Self::Control(_) => none,
} }
