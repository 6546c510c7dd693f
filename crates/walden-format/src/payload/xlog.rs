//! Checkpoints and settings: the resource manager XLOG.
//!
//! Structures: `CheckPoint` in `catalog/pg_control.h`, the others in `access/xlog_internal.h`. 17.0 changed
//! some of them after its betas (402b586d0a), so the sources at its branch point differ from the records that
//! 17 writes.

use std::fmt;

use super::listing::listing;
use super::{Fields, Parsed, Payload, PayloadError, Text, Timestamp};
use crate::lsn::{Lsn, Timeline};
use crate::record::Record;
use crate::rmgr::info::xlog::CHECKPOINT_SHUTDOWN;
use crate::version::Major;

/// `MAXFNAMELEN`
const RESTORE_POINT_NAME: usize = 64;

/// `CHECKPOINT_SHUTDOWN` and `CHECKPOINT_ONLINE`: the state that recovery starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Whether the server was shut down; otherwise it continued writing during the checkpoint.
    pub shutdown: bool,
    /// The position at which recovery starts: pages changed for the first time after it get images.
    pub redo: Lsn,
    /// `ThisTimeLineID`: the timeline of the checkpoint.
    pub timeline: Timeline,
    /// The previous timeline; the same as `timeline` unless this checkpoint starts a timeline.
    pub previous_timeline: Timeline,
    /// `fullPageWrites`: whether `full_page_writes` is on.
    pub full_page_writes: bool,
    /// `wal_level`; since 17.
    pub wal_level: Option<WalLevel>,
    /// Logical decoding is on; since 19.
    pub logical_decoding: Option<bool>,
    /// The next transaction: epoch in the upper half, xid in the lower.
    pub next_xid: u64,
    /// `nextOid`: the next OID to be assigned.
    pub next_oid: u32,
    /// `nextMulti`: the next multixact id to be assigned.
    pub next_multi: u32,
    /// `nextMultiOffset`: the next offset in `pg_multixact/members`.
    pub next_multi_offset: u64,
    /// The oldest transaction that a tuple can name (`datfrozenxid` over all databases).
    pub oldest_xid: u32,
    /// `oldestXidDB`: OID of the database with the minimum `datfrozenxid`.
    pub oldest_xid_database: u32,
    /// The oldest multixact that a tuple can name.
    pub oldest_multi: u32,
    /// `oldestMultiDB`: OID of the database with the minimum `datminmxid`.
    pub oldest_multi_database: u32,
    /// The time of the checkpoint in seconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
    /// The oldest transaction with a commit timestamp.
    pub oldest_commit_ts_xid: u32,
    /// The newest transaction with a commit timestamp.
    pub newest_commit_ts_xid: u32,
    /// The oldest running transaction; 0 unless hot standbys need it.
    pub oldest_active_xid: u32,
}

pub(crate) fn checkpoint<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let shutdown = record.rmgr_info() == CHECKPOINT_SHUTDOWN;
    let redo = fields.lsn("redo")?;
    let timeline = fields.u32("ThisTimeLineID")?;
    let previous_timeline = fields.u32("PrevTimeLineID")?;
    let full_page_writes = fields.bool("fullPageWrites")?;
    let wal_level = if fields.since(Major::V17) { Some(wal_level(fields)?) } else { None };
    let logical_decoding =
        if fields.since(Major::V19) { Some(fields.bool("logicalDecodingEnabled")?) } else { None };
    let next_xid = if fields.since(Major::V12) {
        fields.u64("nextXid")?
    } else {
        let epoch = fields.u32("nextXidEpoch")?;
        u64::from(epoch) << 32 | u64::from(fields.u32("nextXid")?)
    };
    let next_oid = fields.u32("nextOid")?;
    let next_multi = fields.u32("nextMulti")?;
    let next_multi_offset = multixact_offset(fields, "nextMultiOffset")?;
    let checkpoint = Checkpoint {
        shutdown,
        redo,
        timeline,
        previous_timeline,
        full_page_writes,
        wal_level,
        logical_decoding,
        next_xid,
        next_oid,
        next_multi,
        next_multi_offset,
        oldest_xid: fields.u32("oldestXid")?,
        oldest_xid_database: fields.u32("oldestXidDB")?,
        oldest_multi: fields.u32("oldestMulti")?,
        oldest_multi_database: fields.u32("oldestMultiDB")?,
        time: fields.i64("time")?,
        oldest_commit_ts_xid: fields.u32("oldestCommitTsXid")?,
        newest_commit_ts_xid: fields.u32("newestCommitTsXid")?,
        oldest_active_xid: fields.u32("oldestActiveXid")?,
    };
    fields.padded_to(8, "CheckPoint")?;
    Ok(Payload::Checkpoint(checkpoint))
}

listing!(Checkpoint: |it, list| list
    .field("redo", it.redo)
    .field("tli", it.timeline)
    .field("prev tli", it.previous_timeline)
    .field("fpw", it.full_page_writes)
    .some("wal_level", it.wal_level)
    .some("logical decoding", it.logical_decoding)
    .field("xid", format_args!("{}:{}", it.next_xid >> 32, it.next_xid as u32))
    .field("oid", it.next_oid)
    .field("multi", it.next_multi)
    .field("offset", it.next_multi_offset)
    .field("oldest xid", format_args!("{} in DB {}", it.oldest_xid, it.oldest_xid_database))
    .field("oldest multi", format_args!("{} in DB {}", it.oldest_multi, it.oldest_multi_database))
    .field("commit timestamp xids", format_args!("{}/{}", it.oldest_commit_ts_xid, it.newest_commit_ts_xid))
    .field("oldest running xid", it.oldest_active_xid)
    .field("time", Timestamp::from_unix_seconds(it.time)));

/// Multixact offsets were 32 bits wide until 18.
pub(crate) fn multixact_offset(fields: &mut Fields<'_>, field: &'static str) -> Result<u64, PayloadError> {
    if fields.since(Major::V19) { fields.u64(field) } else { fields.u32(field).map(u64::from) }
}

/// `CHECKPOINT_REDO`: where the redo pointer of the next `CHECKPOINT_ONLINE` points. Since 17.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointRedo {
    /// `wal_level`.
    pub wal_level: WalLevel,
}

pub(crate) fn checkpoint_redo<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::CheckpointRedo(CheckpointRedo { wal_level: wal_level(fields)? }))
}

listing!(CheckpointRedo: |it, list| list.field("wal_level", it.wal_level));

/// `NEXTOID`: OIDs below [`Self::oid`] may be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextOid {
    /// `nextOid`: the first OID that is not yet reserved.
    pub oid: u32,
}

pub(crate) fn next_oid<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::NextOid(NextOid { oid: fields.u32("nextOid")? }))
}

listing!(NextOid: |it, list| list.field("oid", it.oid));

/// `BACKUP_END`: a base backup has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackupEnd {
    /// Redo pointer of the checkpoint that the backup started with.
    pub start: Lsn,
}

pub(crate) fn backup_end<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::BackupEnd(BackupEnd { start: fields.lsn("startpoint")? }))
}

listing!(BackupEnd: |it, list| list.field("start", it.start));

/// `PARAMETER_CHANGE`: the settings that a standby must follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParameterChange {
    /// `max_connections`
    pub max_connections: i32,
    /// `max_worker_processes`
    pub max_worker_processes: i32,
    /// `max_wal_senders`; since 12.
    pub max_wal_senders: Option<i32>,
    /// `max_prepared_transactions`
    pub max_prepared_transactions: i32,
    /// `max_locks_per_transaction`
    pub max_locks_per_transaction: i32,
    /// `wal_level`
    pub wal_level: WalLevel,
    /// `wal_log_hints`
    pub wal_log_hints: bool,
    /// `track_commit_timestamp`
    pub track_commit_timestamp: bool,
}

pub(crate) fn parameter_change<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let change = ParameterChange {
        max_connections: fields.i32("MaxConnections")?,
        max_worker_processes: fields.i32("max_worker_processes")?,
        max_wal_senders: if fields.since(Major::V12) { Some(fields.i32("max_wal_senders")?) } else { None },
        max_prepared_transactions: fields.i32("max_prepared_xacts")?,
        max_locks_per_transaction: fields.i32("max_locks_per_xact")?,
        wal_level: wal_level(fields)?,
        wal_log_hints: fields.bool("wal_log_hints")?,
        track_commit_timestamp: fields.bool("track_commit_timestamp")?,
    };
    fields.padded_to(4, "xl_parameter_change")?;
    Ok(Payload::ParameterChange(change))
}

listing!(ParameterChange: |it, list| list
    .field("max_connections", it.max_connections)
    .field("max_worker_processes", it.max_worker_processes)
    .some("max_wal_senders", it.max_wal_senders)
    .field("max_prepared_transactions", it.max_prepared_transactions)
    .field("max_locks_per_transaction", it.max_locks_per_transaction)
    .field("wal_level", it.wal_level)
    .field("wal_log_hints", it.wal_log_hints)
    .field("track_commit_timestamp", it.track_commit_timestamp));

/// `RESTORE_POINT`: a named recovery target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestorePoint<'a> {
    /// `rp_time`: time of `pg_create_restore_point`.
    pub time: Timestamp,
    /// `rp_name`: the name for `recovery_target_name`.
    pub name: Text<'a>,
}

pub(crate) fn restore_point<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let time = fields.timestamp("rp_time")?;
    Ok(Payload::RestorePoint(RestorePoint { time, name: fields.char_array("rp_name", RESTORE_POINT_NAME)? }))
}

listing!(RestorePoint<'_>: |it, list| list.field("name", it.name).field("time", it.time));

/// `FPW_CHANGE`: `full_page_writes` changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FullPageWritesChange {
    /// The new value of `full_page_writes`.
    pub enabled: bool,
}

pub(crate) fn full_page_writes_change<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::FullPageWritesChange(FullPageWritesChange { enabled: fields.bool("fullPageWrites")? }))
}

listing!(FullPageWritesChange: |it, list| list.field("fpw", it.enabled));

/// `END_OF_RECOVERY`: a standby was promoted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndOfRecovery {
    /// `end_time`: time of the promotion.
    pub time: Timestamp,
    /// `ThisTimeLineID`: the new timeline.
    pub timeline: Timeline,
    /// `PrevTimeLineID`: the timeline before the promotion.
    pub previous_timeline: Timeline,
    /// `wal_level`; since 17.
    pub wal_level: Option<WalLevel>,
}

pub(crate) fn end_of_recovery<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let end = EndOfRecovery {
        time: fields.timestamp("end_time")?,
        timeline: fields.u32("ThisTimeLineID")?,
        previous_timeline: fields.u32("PrevTimeLineID")?,
        wal_level: if fields.since(Major::V17) { Some(wal_level(fields)?) } else { None },
    };
    fields.padded_to(8, "xl_end_of_recovery")?;
    Ok(Payload::EndOfRecovery(end))
}

listing!(EndOfRecovery: |it, list| list
    .field("tli", it.timeline)
    .field("prev tli", it.previous_timeline)
    .field("time", it.time)
    .some("wal_level", it.wal_level));

/// `OVERWRITE_CONTRECORD`: the server abandoned a record that a crash cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverwriteContrecord {
    /// `overwritten_lsn`: LSN of the incomplete record.
    pub overwritten: Lsn,
    /// `overwrite_time`: time at which it was abandoned.
    pub time: Timestamp,
}

pub(crate) fn overwrite_contrecord<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::OverwriteContrecord(OverwriteContrecord {
        overwritten: fields.lsn("overwritten_lsn")?,
        time: fields.timestamp("overwrite_time")?,
    }))
}

listing!(OverwriteContrecord: |it, list| list.field("lsn", it.overwritten).field("time", it.time));

/// `LOGICAL_DECODING_STATUS_CHANGE`: logical decoding was enabled or disabled. Since 19.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogicalDecodingStatusChange {
    /// Whether it is enabled now.
    pub enabled: bool,
}

pub(crate) fn logical_decoding_status_change<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let enabled = fields.bool("status")?;
    Ok(Payload::LogicalDecodingStatusChange(LogicalDecodingStatusChange { enabled }))
}

listing!(LogicalDecodingStatusChange: |it, list| list.field("enabled", it.enabled));

/// Reads a kind without main data.
pub(crate) fn nothing<'a>(_: &Record<'a>, _: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::Nothing)
}

/// Reads a kind whose main data is a meaningless `int`, because a record cannot be empty.
pub(crate) fn dummy<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    fields.i32("dummy")?;
    Ok(Payload::Nothing)
}

/// The setting `wal_level`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WalLevel {
    /// `minimal`
    Minimal,
    /// `archive`; 9.5 only.
    Archive,
    /// `hot_standby`; 9.5 only.
    HotStandby,
    /// `replica`; since 9.6.
    Replica,
    /// `logical`
    Logical,
    /// A number that has no name in this version.
    Unknown(i32),
}

impl WalLevel {
    /// Returns the level that determines the contents of WAL (`effective_wal_level`). Since 19, a server with
    /// `replica` writes WAL as with `logical` while logical decoding is enabled, which it is as long as a
    /// logical slot exists.
    pub fn effective(self, is_decoding: bool) -> WalLevel {
        if is_decoding && self == WalLevel::Replica { WalLevel::Logical } else { self }
    }
}

fn wal_level(fields: &mut Fields<'_>) -> Result<WalLevel, PayloadError> {
    let level = fields.i32("wal_level")?;
    Ok(match (level, fields.since(Major::V9_6)) {
        (0, _) => WalLevel::Minimal,
        (1, true) => WalLevel::Replica,
        (1, false) => WalLevel::Archive,
        (2, false) => WalLevel::HotStandby,
        (2, true) | (3, false) => WalLevel::Logical,
        _ => WalLevel::Unknown(level),
    })
}

/// Prints the value as in `postgresql.conf`.
impl fmt::Display for WalLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WalLevel::Minimal => f.write_str("minimal"),
            WalLevel::Archive => f.write_str("archive"),
            WalLevel::HotStandby => f.write_str("hot_standby"),
            WalLevel::Replica => f.write_str("replica"),
            WalLevel::Logical => f.write_str("logical"),
            WalLevel::Unknown(level) => write!(f, "? ({level})"),
        }
    }
}
