//! `pg_control` as archive recovery leaves it at a restart point (`CreateRestartPoint` in `xlog.c`).

use walden_format::crc::crc32c_append;
use walden_format::lsn::{Lsn, Timeline};
use walden_format::payload::xlog::{ParameterChange, WalLevel};

use super::{CONTROL_LAYOUTS, ControlError, ControlFile};

/// `DB_SHUTDOWNED_IN_RECOVERY`
const SHUT_DOWN_IN_RECOVERY: u32 = 2;
/// `DB_IN_ARCHIVE_RECOVERY`
const IN_ARCHIVE_RECOVERY: u32 = 5;
/// Offset of `state`.
const STATE: usize = 16;
/// Offset of `time`.
const TIME: usize = 24;
/// Offset of `checkPoint`.
const CHECKPOINT: usize = 32;
/// Offset of `checkPointCopy`.
const CHECKPOINT_COPY: usize = 40;

/// `minRecoveryPoint` is this far before `wal_log_hints`, and so are the next fields, in every version since
/// 14.
pub(super) const MIN_RECOVERY_POINT: usize = 40;
const MIN_RECOVERY_TIMELINE: usize = 32;
const BACKUP_START_POINT: usize = 24;
const BACKUP_END_POINT: usize = 16;
const BACKUP_END_REQUIRED: usize = 8;
const WAL_LEVEL: usize = 4;
/// `unloggedLSN` follows the checkpoint.
const UNLOGGED_LSN: usize = 48;
/// `track_commit_timestamp` is this far after `wal_log_hints`.
pub(super) const TRACK_COMMIT_TIMESTAMP: usize = 24;

/// A checkpoint record at which recovery restarts.
#[derive(Clone, Copy, Debug)]
pub struct RestartPoint<'a> {
    /// LSN of the checkpoint record.
    pub checkpoint: Lsn,
    /// The record's main data (`CheckPoint`).
    pub data: &'a [u8],
    /// End of the record, up to which recovery must replay before the server accepts connections.
    pub end: Lsn,
    /// The timeline at that position.
    pub timeline: Timeline,
    /// The last change of settings before the checkpoint's redo pointer.
    pub settings: Option<&'a ParameterChange>,
    /// Current time, in seconds since 1970-01-01 UTC.
    pub time: i64,
    /// Whether all files will be synchronized before `pg_control` is written, as those of a standby that was
    /// shut down. Otherwise PostgreSQL synchronizes each file of the data directory when it starts
    /// (`StartupXLOG`).
    pub is_synchronized: bool,
}

impl RestartPoint<'_> {
    /// Changes the content of a `pg_control` to the state of an archive recovery that was shut down, or
    /// interrupted, at this restart point.
    ///
    /// # Errors
    /// The content is not a valid `pg_control`, or the checkpoint is not of its version.
    pub fn change_control_file(&self, bytes: &mut [u8]) -> Result<(), ControlError> {
        ControlFile::parse(bytes)?;
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let layout = CONTROL_LAYOUTS.iter().find(|layout| layout.version == version);
        let layout = layout.ok_or(ControlError::Version(version))?;
        let hints = layout.wal_log_hints;
        let expected = hints - UNLOGGED_LSN - CHECKPOINT_COPY;
        if self.data.len() != expected {
            return Err(ControlError::Checkpoint { expected, found: self.data.len() });
        }
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let state = if self.is_synchronized { SHUT_DOWN_IN_RECOVERY } else { IN_ARCHIVE_RECOVERY };
        put(STATE, &state.to_le_bytes());
        put(TIME, &self.time.to_le_bytes());
        put(CHECKPOINT, &self.checkpoint.0.to_le_bytes());
        put(CHECKPOINT_COPY, self.data);
        put(hints - MIN_RECOVERY_POINT, &self.end.0.to_le_bytes());
        put(hints - MIN_RECOVERY_TIMELINE, &self.timeline.to_le_bytes());
        put(hints - BACKUP_START_POINT, &[0; 8]);
        put(hints - BACKUP_END_POINT, &[0; 8]);
        put(hints - BACKUP_END_REQUIRED, &[0]);
        if let Some(settings) = self.settings {
            put(hints - WAL_LEVEL, &wal_level_number(settings.wal_level).to_le_bytes());
            put(hints, &[u8::from(settings.wal_log_hints)]);
            let sizes = [
                settings.max_connections,
                settings.max_worker_processes,
                settings.max_wal_senders.unwrap_or_default(),
                settings.max_prepared_transactions,
                settings.max_locks_per_transaction,
            ];
            for (index, size) in sizes.into_iter().enumerate() {
                put(hints + 4 + 4 * index, &size.to_le_bytes());
            }
            put(hints + TRACK_COMMIT_TIMESTAMP, &[u8::from(settings.track_commit_timestamp)]);
        }
        let crc = crc32c_append(0, &bytes[..layout.crc]);
        bytes[layout.crc..layout.crc + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }
}

/// The number of a level in `pg_control`, in every version since 14.
fn wal_level_number(level: WalLevel) -> i32 {
    match level {
        WalLevel::Minimal => 0,
        WalLevel::Archive | WalLevel::HotStandby | WalLevel::Replica => 1,
        WalLevel::Logical => 2,
        WalLevel::Unknown(level) => level,
    }
}
