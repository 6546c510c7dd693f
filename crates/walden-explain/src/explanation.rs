//! The result of an explanation, as numbers; [`Document`](crate::document::Document) adds names and texts.

use std::cmp::Reverse;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline as TimelineId};
use walden_format::payload::xlog::{Checkpoint, WalLevel};
use walden_format::record::RelFileLocator;
use walden_format::version::Major;
use walden_source::clock::StepBack;
use walden_source::scan::{Damage, Tail};

use crate::checkpoints::CheckpointRecord;
use crate::evidence::{DecodingEvidence, Evidence};
use crate::group::{Cell, Dimension, GroupKey, ViewSpec};
use crate::image_sample::Sample;
use crate::old_transactions::OldTransaction;
use crate::slices::TENTHS;
use crate::tally::{Bucket, Buckets, ImageTable, ImageTally, Tally};

/// The bytes of a WAL range by bucket, owner, record kind and other dimensions.
#[derive(Debug)]
pub struct Explanation {
    /// PostgreSQL major version that wrote the WAL.
    pub version: Major,
    /// The cluster's system identifier.
    pub system_id: u64,
    /// `wal_segment_size`
    pub segment_size: SegmentSize,
    /// The contiguous ranges that were read.
    pub ranges: Vec<Range>,
    /// Number of bytes in all ranges; the sum of `buckets`.
    pub file_bytes: u64,
    /// Number of records that start in the ranges.
    pub records: u64,
    /// Bytes by bucket.
    pub buckets: Buckets,
    /// Full-page images by cause and compression.
    pub images: ImageTable,
    /// Uncompressed images in segments that contain no compressed image, excluding images of
    /// `wal_consistency_checking`. In other segments, an uncompressed image is one that compression did not
    /// make smaller (`XLogCompressBackupBlock`).
    pub uncompressed: ImageTally,
    /// The input of [`crate::savings::estimate`], if the request asked for it.
    pub sample: Option<Sample>,
    /// Sums by owner and record kind, largest first.
    pub cells: Vec<(Cell, Tally)>,
    /// The views of the request, in its order.
    pub views: Vec<View>,
    /// The largest transactions, largest first.
    pub transactions: Vec<Transaction>,
    /// Sums over all transactions.
    pub transaction_sums: TransactionSums,
    /// The checkpoints, in WAL order, including unfinished checkpoints.
    pub checkpoints: Vec<CheckpointRecord>,
    /// First and last transaction end, in microseconds since 1970-01-01 UTC.
    pub time_span: Option<(i64, i64)>,
    /// Where commit times go back, if the range or a view depends on times.
    pub step_back: Option<StepBack>,
    /// Server settings that are logged in the WAL.
    pub logged_settings: LoggedSettings,
    /// Number of segment switches.
    pub switches: u64,
    /// Number of base backup ends.
    pub backups: u64,
    /// Evidence in the records of each relation beyond their bytes, by relation.
    pub evidence: Vec<(RelFileLocator, Evidence)>,
    /// Evidence about data logged for logical decoding.
    pub decoding: DecodingEvidence,
    /// Main forks that were created.
    pub created: FxHashSet<RelFileLocator>,
    /// Files of unlogged relations, whose init forks were created.
    pub unlogged: FxHashSet<RelFileLocator>,
    /// The transaction that was the oldest one for most of the WAL, by snapshots of the transactions in
    /// progress.
    pub old_transaction: Option<OldTransaction>,
    /// Files of relations that were dropped, with the commit record that did so.
    pub dropped: FxHashMap<RelFileLocator, Lsn>,
    /// Main forks created for new relations, including those that `make_new_heap` creates for a rewrite, and
    /// the transactions that did so. Other created main forks are new files of existing relations, as
    /// `TRUNCATE` and `REINDEX` create them. Locks show the difference: the OID of a new relation is the
    /// number of its first file. With `wal_level=minimal` no locks are logged, and the map is empty.
    pub new_relations: FxHashMap<RelFileLocator, u32>,
    /// Main forks created for the transient relations of rewrites. These files belong to other relations
    /// since their transaction ended. The dropped OIDs in commit records show this, with or without logged
    /// locks; since 15.
    pub transient: FxHashSet<RelFileLocator>,
    /// Files in `dropped` for which the WAL does not show whether their relation was emptied or rewritten
    /// into another file. Transactions that logged no locks dropped them, as with `wal_level=minimal`.
    pub perhaps_rewritten: FxHashSet<RelFileLocator>,
    /// Transactions that replaced files of relations: see [`crate::rewrites`].
    pub rewrites: Vec<Rewrite>,
    /// Start of the first time span in seconds since 1970-01-01 UTC, and the width of each in seconds.
    pub spans: Option<(i64, i64)>,
    /// The checkpoint cycles if a view is by checkpoint, starting with the one before the first redo pointer.
    pub cycles: Vec<Cycle>,
    /// The damage at which reading stopped, if any.
    pub damage: Option<Arc<Damage>>,
}

/// A contiguous range of WAL.
#[derive(Clone, Debug)]
pub struct Range {
    /// The timeline of the range's segments.
    pub timeline: TimelineId,
    /// Start LSN.
    pub start: Lsn,
    /// End LSN, including the tail.
    pub end: Lsn,
    /// The range's first segment.
    pub first_segment: SegmentName,
    /// The range's last segment.
    pub last_segment: SegmentName,
    /// Distance from `start` to `end`, in bytes.
    pub bytes: u64,
    /// The bytes after the last record, if the WAL ends in this range.
    pub tail: Option<Tail>,
}

/// Sums grouped by one or more dimensions.
#[derive(Clone, Debug)]
pub struct View {
    /// The dimensions.
    pub spec: ViewSpec,
    /// The groups, largest first.
    pub rows: Vec<(GroupKey, Tally)>,
    /// Number of smaller groups that are not in `rows`, and the sums over these groups.
    pub rest: (u64, Tally),
}

/// A transaction, including its subtransactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The top-level transaction ID.
    pub xid: u32,
    /// How the transaction ended.
    pub outcome: Outcome,
    /// When the transaction ended, in microseconds since 1970-01-01 UTC.
    pub time: Option<i64>,
    /// Number of records.
    pub records: u64,
    /// Bytes of the records, including alignment and the records of subtransactions.
    pub bytes: u64,
    /// Portion of `bytes` in full-page images.
    pub image_bytes: u64,
    /// Number of subtransactions listed in the transaction's commit or abort record.
    pub subtransactions: u32,
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The transaction committed.
    Committed,
    /// The transaction was rolled back.
    Aborted,
    /// The transaction was prepared, and its end is not in the WAL.
    Prepared,
    /// The transaction's end is not in the WAL.
    Open,
}

impl Outcome {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Prepared => "prepared",
            Outcome::Open => "open",
        }
    }
}

/// Sums over all transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionSums {
    /// Number of committed transactions.
    pub committed: u64,
    /// Number of rolled back transactions.
    pub aborted: u64,
    /// Number of transactions whose end is not in the WAL.
    pub open: u64,
    /// Bytes of all transactions.
    pub bytes: u64,
    /// Bytes of rolled back transactions, with all of their subtransactions.
    pub aborted_bytes: u64,
    /// Portion of `aborted` without an abort record: a crash ended them, or a recovery that ended before
    /// their record.
    pub cut_off: u64,
    /// Number of distinct transactions in `cut_off`: segments that two timelines share contain a transaction
    /// twice.
    pub cut_off_xids: u64,
    /// Portion of `aborted_bytes` in the transactions of `cut_off`.
    pub cut_off_bytes: u64,
    /// Bytes of records that belong to no transaction, such as records of vacuum, checkpoints and initdb's
    /// bootstrap.
    pub system_bytes: u64,
    /// Number of records that belong to no transaction.
    pub system_records: u64,
    /// Number of subtransactions of committed transactions, and of rolled back subtransactions whose
    /// transaction the WAL names.
    pub subtransactions: u64,
    /// Portion of `subtransactions` that were rolled back: rollbacks to savepoints and caught errors.
    pub aborted_subtransactions: u64,
    /// Bytes of rolled back subtransactions in transactions that were not rolled back; no byte is also in
    /// `aborted_bytes`.
    pub aborted_subtransaction_bytes: u64,
}

/// Settings that are logged in the WAL, as of its end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoggedSettings {
    /// `full_page_writes`.
    pub full_page_writes: Option<bool>,
    /// `wal_level`.
    pub wal_level: Option<WalLevel>,
    /// Whether logical decoding is on. A logical slot enables it even if `wal_level` is `replica`; since 19.
    pub logical_decoding: Option<bool>,
    /// `wal_log_hints`.
    pub wal_log_hints: Option<bool>,
    /// Changes of these settings within the WAL, at most the first 100.
    pub changes: Vec<SettingChange>,
}

/// Maximum number of recorded changes of settings.
pub const MAX_SETTING_CHANGES: usize = 100;

/// A change of a setting, in effect from a record on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SettingChange {
    /// LSN of the record.
    #[serde(serialize_with = "as_text")]
    pub lsn: Lsn,
    /// The setting's name.
    pub name: &'static str,
    /// The setting's value before the record.
    pub before: String,
    /// The setting's value from the record on.
    pub after: String,
}

fn as_text<S: serde::Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

impl LoggedSettings {
    pub(crate) fn set_full_page_writes(&mut self, lsn: Lsn, on: bool) {
        let before = self.full_page_writes.replace(on);
        self.note(lsn, "full_page_writes", before.map(on_or_off), on_or_off(on));
    }

    pub(crate) fn set_wal_level(&mut self, lsn: Lsn, level: WalLevel) {
        let before = self.wal_level.replace(level);
        self.note(lsn, "wal_level", before.map(|level| level.to_string()), level.to_string());
    }

    /// The effective level, if the WAL records more than `wal_level`: since 19.
    pub fn effective_wal_level(&self) -> Option<WalLevel> {
        self.wal_level.zip(self.logical_decoding).map(|(level, is_on)| level.effective(is_on))
    }

    pub(crate) fn set_logical_decoding(&mut self, lsn: Lsn, on: bool) {
        let was_on = self.logical_decoding.replace(on).unwrap_or(!on);
        if let Some(level) = self.wal_level {
            let [before, after] = [was_on, on].map(|is_on| level.effective(is_on).to_string());
            self.note(lsn, "effective_wal_level", Some(before), after);
        }
    }

    /// Records the settings in a checkpoint record, as of the checkpoint's redo pointer. Logical decoding may
    /// have been switched since.
    pub(crate) fn set_by_checkpoint(&mut self, lsn: Lsn, checkpoint: &Checkpoint) {
        self.set_full_page_writes(lsn, checkpoint.full_page_writes);
        if let Some(level) = checkpoint.wal_level {
            self.set_wal_level(lsn, level);
        }
        match (checkpoint.logical_decoding, self.logical_decoding) {
            (Some(on), None) => self.logical_decoding = Some(on),
            (Some(on), Some(_)) if checkpoint.shutdown => self.set_logical_decoding(lsn, on),
            _ => {}
        }
    }

    pub(crate) fn set_wal_log_hints(&mut self, lsn: Lsn, on: bool) {
        let before = self.wal_log_hints.replace(on);
        self.note(lsn, "wal_log_hints", before.map(on_or_off), on_or_off(on));
    }

    fn note(&mut self, lsn: Lsn, name: &'static str, before: Option<String>, after: String) {
        if let Some(before) = before.filter(|before| *before != after)
            && self.changes.len() < MAX_SETTING_CHANGES
        {
            self.changes.push(SettingChange { lsn, name, before, after });
        }
    }
}

/// Formats the value of a boolean setting.
pub(crate) fn on_or_off(on: bool) -> String {
    if on { "on".into() } else { "off".into() }
}

/// The files that a transaction created and dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rewrite {
    /// The transaction.
    pub xid: u32,
    /// The new files, in the order in which they were created.
    pub created: Vec<RelFileLocator>,
    /// The old files, in the order of the commit record.
    pub dropped: Vec<RelFileLocator>,
    /// Databases and OIDs of the relations that the transaction dropped, transient ones included; empty
    /// before 15.
    pub dropped_relations: Vec<(u32, u32)>,
    /// Whether the transaction logged its locks, which show the relations that it created.
    pub has_logged_locks: bool,
}

/// Bytes, and bytes of full-page images among them, of each tenth of a checkpoint cycle.
pub type Along = [(u64, u64); TENTHS as usize];

/// The WAL from one checkpoint's redo pointer to the next checkpoint's redo pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// Redo pointer at which the cycle starts, and the start of its checkpoint in seconds since 1970-01-01
    /// UTC; `None` for the WAL before the first redo pointer.
    pub start: Option<(Lsn, i64)>,
    /// Bytes by position within the cycle.
    pub along: Along,
}

impl Explanation {
    /// Returns the number of bytes of WAL: `file_bytes` without the unused end of the last segment.
    pub fn wal_bytes(&self) -> u64 {
        self.file_bytes - self.buckets.unused()
    }

    /// The share of bytes in the WAL: a fraction, 0 if there is no WAL.
    pub fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.wal_bytes().max(1) as f64
    }

    /// Groups the sums by relation, record kind or database. A view by transaction, time or checkpoint must
    /// be requested before reading; here it has no rows.
    pub fn view_by(&self, dimensions: &[Dimension]) -> View {
        let spec = ViewSpec { dimensions: dimensions.to_vec() };
        let rows = if spec.needs_pieces() { Vec::new() } else { rows_of_cells(&spec, &self.cells) };
        View { spec, rows, rest: Default::default() }
    }

    /// Bytes of records, without framing.
    pub fn record_bytes(&self) -> u64 {
        Bucket::all().filter(|bucket| !bucket.is_framing()).map(|bucket| self.buckets.get(bucket)).sum()
    }
}

pub(crate) fn rows_of_cells(spec: &ViewSpec, cells: &[(Cell, Tally)]) -> Vec<(GroupKey, Tally)> {
    let mut groups: FxHashMap<GroupKey, Tally> = FxHashMap::default();
    for (cell, tally) in cells {
        groups.entry(spec.key_of_cell(*cell)).or_default().merge(tally);
    }
    let mut rows: Vec<_> = groups.into_iter().collect();
    sort_by_bytes(&mut rows);
    rows
}

/// Sorts the largest first and ties by key, so that the output is deterministic.
pub(crate) fn sort_by_bytes<K: Ord + Copy>(rows: &mut [(K, Tally)]) {
    rows.sort_by_key(|(key, tally)| (Reverse(tally.wal_bytes()), *key));
}
