//! An explanation with names: the JSON of `walden explain --format json`, and the source of its tables and
//! pages.
//!
//! `docs/json.md` describes the fields. A change other than an addition raises [`FORMAT_VERSION`].

mod build;

use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value};
use walden_format::diagnostic::Hint;
use walden_source::names::Names;

use crate::checkpoints::CheckpointSettings;
use crate::explanation::SettingChange;
use crate::findings::Finding;
use crate::findings::causes::{Activity, Mechanism};
use crate::labels::Label;
use crate::tally::Bucket;
use crate::writers::{Counts, Writers};

pub use self::build::images_by_cause;

/// Version of the JSON format.
pub const FORMAT_VERSION: u32 = 1;

/// An explanation with names, grouped and sorted for reading.
///
/// Sizes are in bytes. LSNs are text, as `16/B374D848`. Times are RFC 3339 in UTC: `2026-11-20T22:00:00Z`.
/// Times of transactions have six digits after the second. Shares are from 0 to 1. `None` is `null`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// `walden explain`.
    pub format: &'static str,
    /// [`FORMAT_VERSION`]
    pub format_version: u32,
    /// Major version of the PostgreSQL that wrote the WAL.
    pub postgresql: String,
    /// The cluster's system identifier; a string, as it exceeds the precision of JSON numbers in many
    /// readers.
    pub system_identifier: String,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of bytes in all ranges.
    pub file_bytes: u64,
    /// Number of bytes of WAL: `file_bytes` without the unused end of the last segment. Shares are relative
    /// to this number.
    pub wal_bytes: u64,
    /// Number of records that start in the ranges.
    pub records: u64,
    /// Bytes by bucket, including empty buckets; the sum is `file_bytes`.
    pub buckets: Map<String, Value>,
    /// Full-page images by cause: `count`, `bytes` as stored, `uncompressed_bytes`, `saved_by_compression`
    /// (bytes), and
    /// `by_compression`, with the methods that occur.
    pub images: Map<String, Value>,
    /// The contiguous ranges that were read, in their order.
    pub ranges: Vec<RangeDocument>,
    /// First and last transaction end; `None` if no transaction ends in the ranges.
    pub time: Option<TimeSpan>,
    /// Where commit times go back, if the range or a view depends on times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_back: Option<StepBackDocument>,
    /// Server settings logged in the WAL, as of its end, by name. Settings that the ranges do not contain are
    /// absent.
    pub settings: Map<String, Value>,
    /// Changes of the settings in `settings` within the WAL, at most the first 100.
    pub setting_changes: Vec<SettingChange>,
    /// Bytes by table, including its indexes, TOAST table and maps, largest first. With a limit, the last
    /// element sums up the other tables; its part is `rest`.
    pub relations: Vec<RelationDocument>,
    /// Bytes by record kind, largest first; with a limit, the last element sums up all other kinds; its part
    /// is `rest`.
    pub record_kinds: Vec<GroupDocument>,
    /// How transactions ended, and the bytes they wrote.
    pub transactions: TransactionsDocument,
    /// The checkpoints in the ranges, and the distances between them.
    pub checkpoints: CheckpointsDocument,
    /// The views requested by `--by`, in its order.
    pub views: Vec<ViewDocument>,
    /// Results of joining transactions with the server's log; absent if no log was provided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogDocument>,
    /// The checkpoint cycles in WAL order; empty unless a view is by checkpoint.
    pub cycles: Vec<CycleDocument>,
    /// Causes of all bytes of WAL, largest first: statement or task, relation, and mechanism. Each byte has
    /// one cause, and the sum is `wal_bytes`. Beyond 1000 causes, or a limit, the last element sums up all
    /// other causes.
    pub causes: Vec<CauseDocument>,
    /// Causes as in `causes`, divided further by statement, if there is a view of statements and cells.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statement_causes: Vec<CauseDocument>,
    /// The findings: causes, then settings, each list by the remedy's saving.
    pub findings: Vec<Finding>,
    /// The damage at which reading stopped, if any.
    pub damage: Option<DamageDocument>,
}

/// A position at which commit times go back.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepBackDocument {
    /// The first commit or abort record after the step.
    pub lsn: String,
    /// The latest time before the step.
    pub from: String,
    /// The first time after the step.
    pub to: String,
}

impl Document {
    /// Bytes by bucket, largest first, without empty buckets and the unused end of the last segment.
    pub fn wal_buckets(&self) -> Vec<(Bucket, u64)> {
        let bytes = |bucket: Bucket| self.buckets.get(bucket.name()).and_then(Value::as_u64).unwrap_or(0);
        let all = Bucket::all().filter(|bucket| !bucket.is_unused()).map(|bucket| (bucket, bytes(bucket)));
        let mut sums: Vec<(Bucket, u64)> = all.filter(|(_, bytes)| *bytes > 0).collect();
        sums.sort_by_key(|(bucket, bytes)| (std::cmp::Reverse(*bytes), *bucket));
        sums
    }
}

/// A contiguous range of WAL.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RangeDocument {
    /// The timeline in the segments' names.
    pub timeline: u32,
    /// LSN of the range's first byte.
    pub start: String,
    /// LSN after the range's last byte, which may be after the last record.
    pub end: String,
    /// Name of the segment that `start` is in.
    pub first_segment: String,
    /// Name of the last segment that was read for the range.
    pub last_segment: String,
    /// Distance from `start` to `end` in bytes.
    pub bytes: u64,
    /// A description of the bytes after the last record; `None` if the WAL does not end in this range.
    pub end_of_log: Option<String>,
}

/// First and last transaction end.
#[derive(Clone, Debug, Serialize)]
pub struct TimeSpan {
    /// When the first transaction ended.
    pub first: String,
    /// When the last transaction ended.
    pub last: String,
    /// Seconds between them, in fractions.
    pub seconds: f64,
}

/// A table with its indexes, its TOAST table and their maps; or a relation whose table is unknown; or bytes
/// of no relation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RelationDocument {
    /// The table, relation or other owner.
    pub label: Label,
    /// The sums over all parts. In JSON, these fields are fields of the enclosing object.
    #[serde(flatten)]
    pub sum: TallyDocument,
    /// A group per fork of the heap, the indexes, TOAST and the maps, largest first.
    pub parts: Vec<GroupDocument>,
}

/// The bytes that have one cause.
#[derive(Clone, Debug, Serialize)]
pub struct CauseDocument {
    /// The statements of the transaction that wrote the bytes; only in [`Document::statement_causes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// The kind of statement or task that wrote the bytes.
    pub activity: Activity,
    /// The table that the statement or task wrote to, also through an index or the TOAST table; the written
    /// relation itself if its table is unknown; `None` if the records refer to no relation.
    pub relation: Option<String>,
    /// How the statement or task wrote the bytes.
    pub mechanism: Mechanism,
    /// Number of bytes of WAL that have this cause.
    pub bytes: u64,
    /// `bytes` as a share of `wal_bytes`.
    pub share: f64,
    /// Number of records.
    pub records: u64,
    /// Number of full-page images.
    pub images: u64,
    /// In the last element, the number of causes that this element sums up; absent if all causes are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folded: Option<u64>,
}

impl CauseDocument {
    /// Returns relation, activity and mechanism as text.
    pub fn label(&self) -> String {
        let relation = self.relation.as_ref().map_or(String::new(), |name| format!("{name}: "));
        format!("{relation}{}: {}", self.activity.description(), self.mechanism.description())
    }
}

/// A group of records, with its bytes and counts.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GroupDocument {
    /// One label per dimension.
    pub keys: Vec<Label>,
    /// The group's sums. In JSON, these fields are fields of the enclosing object.
    #[serde(flatten)]
    pub sum: TallyDocument,
}

/// Bytes and counts of a group of records.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TallyDocument {
    /// Bytes in all buckets.
    pub bytes: u64,
    /// `bytes`, without the unused end of the last segment, as a share of `wal_bytes`.
    pub share: f64,
    /// Number of records.
    pub records: u64,
    /// Number of full-page images.
    pub images: u64,
    /// Bytes of full-page images, as stored.
    pub image_bytes: u64,
    /// Bytes by bucket, without empty buckets.
    pub buckets: Map<String, Value>,
}

impl TallyDocument {
    /// Returns `bytes` without the unused end of the last segment.
    pub fn wal_bytes(&self) -> u64 {
        let bytes = |bucket: Bucket| self.buckets.get(bucket.name()).and_then(Value::as_u64).unwrap_or(0);
        let unused: u64 = Bucket::all().filter(|bucket| bucket.is_unused()).map(bytes).sum();
        self.bytes.saturating_sub(unused)
    }
}

/// How transactions ended, and the bytes they wrote. Subtransactions count with their toplevel transaction.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TransactionsDocument {
    /// Number of transactions that committed.
    pub committed: u64,
    /// Number of transactions that were rolled back, or that a crash ended.
    pub aborted: u64,
    /// Number of transactions whose end is not in the WAL, including prepared transactions.
    pub open: u64,
    /// Bytes of all transactions' records, with alignment.
    pub bytes: u64,
    /// Portion of `bytes` in transactions that are counted in `aborted`.
    pub aborted_bytes: u64,
    /// Number of records without a transaction, such as records of vacuum, checkpoints and initdb's
    /// bootstrap.
    pub system_records: u64,
    /// Bytes of the records without a transaction, with alignment.
    pub system_bytes: u64,
    /// The transactions with most `bytes`, largest first; at most [`Request::top`](crate::Request::top).
    pub largest: Vec<TransactionDocument>,
}

/// The records of one transaction, including its subtransactions, within the ranges.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TransactionDocument {
    /// The toplevel transaction's ID.
    pub xid: u32,
    /// `committed`, `aborted`, `prepared` or `open`.
    pub outcome: &'static str,
    /// When the transaction ended; `None` if its end is not in the WAL, or a crash ended it.
    pub time: Option<String>,
    /// Number of the transaction's records.
    pub records: u64,
    /// Bytes of the transaction's records, with alignment.
    pub bytes: u64,
    /// `bytes` as a share of `wal_bytes`.
    pub share: f64,
    /// Portion of `bytes` in full-page images, as stored.
    pub image_bytes: u64,
    /// Number of subtransactions in the transaction's end record; 0 without an end record.
    pub subtransactions: u32,
}

/// The checkpoints in the ranges, and the distances between them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckpointsDocument {
    /// Number of checkpoints, including unfinished checkpoints.
    pub count: u64,
    /// Number by cause, of causes that occur: see [`CheckpointDocument::cause`].
    pub by_cause: Map<String, Value>,
    /// Number of checkpoints without a record in the WAL: a crash interrupted them, or the WAL ends before
    /// the record.
    pub unfinished: u64,
    /// Whether the causes were determined by known settings, not inferred.
    pub causes_from_settings: bool,
    /// Mean of [`CheckpointDocument::distance`], in bytes; `None` with fewer than two checkpoints.
    pub mean_distance: Option<u64>,
    /// Mean of all [`CheckpointDocument::interval_seconds`] that are not negative; `None` if there are none.
    pub mean_interval_seconds: Option<f64>,
    /// All checkpoints, in WAL order.
    pub list: Vec<CheckpointDocument>,
}

/// A checkpoint, with its distance from the previous checkpoint.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckpointDocument {
    /// LSN of the checkpoint's record, or of its `CHECKPOINT_REDO` if the record is missing.
    pub lsn: String,
    /// Redo pointer: the LSN at which recovery would start.
    pub redo: String,
    /// When the checkpoint started, in whole seconds.
    pub time: String,
    /// The trigger: `volume`, `time`, `requested`, `shutdown`, or `first` for the first checkpoint in the
    /// WAL.
    pub cause: &'static str,
    /// Whether the WAL contains the checkpoint's record; if not, `time` is approximate.
    pub finished: bool,
    /// Bytes from the previous redo pointer to `redo`; `None` for the first.
    pub distance: Option<u64>,
    /// Seconds from the start of the previous checkpoint to the start of this checkpoint, negative if the
    /// clock was set back; `None` for the first.
    pub interval_seconds: Option<i64>,
}

/// A checkpoint cycle, from redo pointer to redo pointer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CycleDocument {
    /// The start time and the redo pointer of the checkpoint that starts the cycle, formatted like the labels
    /// of views by checkpoint.
    pub label: String,
    /// The cause of the checkpoint that starts the cycle: see [`CheckpointDocument::cause`]. `None` before
    /// the first redo pointer.
    pub cause: Option<&'static str>,
    /// Bytes of WAL in the cycle.
    pub bytes: u64,
    /// Portion of `bytes` in full-page images, as stored.
    pub image_bytes: u64,
    /// Share of full-page images in the bytes of each tenth of the cycle, by position; `None` for a tenth
    /// without bytes in the WAL.
    pub image_share_along: Vec<Option<f64>>,
}

/// Bytes by one or more dimensions.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ViewDocument {
    /// The dimensions' names.
    pub by: Vec<&'static str>,
    /// Width of the time spans, in seconds; absent if time is no dimension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_seconds: Option<i64>,
    /// The groups, largest first; in WAL order if all dimensions are time or checkpoint.
    pub groups: Vec<GroupDocument>,
    /// The sums over all groups that are not listed; `None` if all groups are listed.
    pub rest: Option<RestDocument>,
}

/// How many transactions could be joined with the server's log.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogDocument {
    /// Counts of the server's log. In JSON, these fields are fields of the enclosing object.
    #[serde(flatten)]
    pub counts: Counts,
    /// Bytes of records of transactions; all other bytes belong to no transaction.
    pub transaction_bytes: u64,
    /// Portion of `transaction_bytes` in transactions found in the server's log.
    pub joined_bytes: u64,
    /// Portion of `joined_bytes` in transactions whose statement is known.
    pub statement_bytes: u64,
    /// `joined_bytes` as a share of `transaction_bytes`; 0 if `transaction_bytes` is 0.
    pub joined_share: f64,
    /// Settings that would raise `joined_share`, as sentences.
    pub hints: Vec<String>,
}

/// Groups that are not listed, summed up.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RestDocument {
    /// Number of groups that are not listed.
    pub groups: u64,
    /// Their sums. In JSON, these fields are fields of the enclosing object.
    #[serde(flatten)]
    pub sum: TallyDocument,
}

/// The damage at which reading stopped.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DamageDocument {
    /// Path of the file.
    pub file: String,
    /// Name of the segment.
    pub segment: String,
    /// Offset within the segment, in bytes; for a compressed segment, within its content.
    pub offset: u64,
    /// LSN of the page or record that cannot be read.
    pub lsn: String,
    /// The complete message, including the expected and the found value.
    pub message: String,
    /// The stable code.
    pub code: &'static str,
    /// What to do.
    pub hint: Hint,
}

/// The inputs of a document in addition to the WAL.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Names of relations, databases and tablespaces.
    pub names: &'a Names,
    /// The settings that trigger checkpoints, if known.
    pub checkpoint_settings: Option<CheckpointSettings>,
    /// Maximum number of groups per list; `None` for all.
    pub top: Option<usize>,
    /// The pattern of views by group.
    pub pattern: Option<&'a Regex>,
    /// The writers of transactions from the server's log, if it was provided.
    pub writers: Option<&'a Writers>,
}
