//! The fields of the JSON, described in `docs/json.md`. The parent module computes them.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::labels::Part;

/// Version of the JSON format.
pub const FORMAT_VERSION: u32 = 1;

/// The unit that A is scaled by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Seconds: rates are compared.
    Second,
    /// Committed transactions: the WAL of a transaction is compared.
    Transaction,
    /// Nothing: the bytes are compared as they are.
    Total,
}

/// The change between two ranges.
///
/// Sizes are in bytes; LSNs and times are formatted as in [`Document`](crate::document::Document); `None` is
/// `null`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// `walden diff`.
    pub format: &'static str,
    /// [`FORMAT_VERSION`]
    pub format_version: u32,
    /// The first range.
    pub a: SideDocument,
    /// The second one.
    pub b: SideDocument,
    /// The unit by which A was scaled to B's length.
    pub per: Per,
    /// All of the WAL written.
    pub total: Change,
    /// By the purpose of bytes.
    pub buckets: Vec<Change>,
    /// By cause: relation, statement or task, mechanism.
    pub causes: Vec<Change>,
    /// By relation and fork.
    pub relations: Vec<Change>,
    /// By kind of record.
    pub record_kinds: Vec<Change>,
    /// Full-page images by cause; one row sums up the bytes without images.
    pub images: Vec<ImageChange>,
    /// The requested views.
    pub views: Vec<ViewChange>,
    /// Explanations of the change, largest first; single causes precede changes of amounts.
    pub findings: Vec<DiffFinding>,
    /// Limits of the comparison.
    pub notes: Vec<String>,
}

/// One of the two ranges.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SideDocument {
    /// Name of the range, such as `before`.
    pub name: String,
    /// Major version of the PostgreSQL that wrote it.
    pub postgresql: String,
    /// The cluster's system identifier, as text.
    pub system_identifier: String,
    /// LSN of its first byte.
    pub start: String,
    /// LSN after its last byte.
    pub end: String,
    /// When the first transaction in the range ended; `None` if no transaction ended in the range.
    pub first_time: Option<String>,
    /// When the last transaction in the range ended; `None` if no transaction ended in the range.
    pub last_time: Option<String>,
    /// Duration of the range in seconds, with fractions.
    pub seconds: f64,
    /// Bytes written: without the unwritten end of the last segment.
    pub bytes: u64,
    /// Number of transactions that committed.
    pub transactions: u64,
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// Number of cycles, from redo pointer to redo pointer, that are entirely in the range.
    pub whole_cycles: u64,
    /// Number of checkpoints by cause, of causes that occur.
    pub checkpoints_by_cause: Map<String, Value>,
    /// Mean distance between redo pointers, in bytes; `None` with fewer than two checkpoints.
    pub mean_checkpoint_distance: Option<u64>,
    /// Mean time between the starts of consecutive checkpoints, in seconds; `None` with fewer than two
    /// checkpoints.
    pub mean_checkpoint_interval_seconds: Option<f64>,
    /// Server settings that are logged in the WAL, as of its end, by name.
    pub settings: Map<String, Value>,
    /// Rate over time: seconds since the start of the first span, and bytes per second. Empty without times.
    pub rate: Vec<(f64, f64)>,
    /// Width of the spans, in seconds; `None` without times.
    pub span_seconds: Option<i64>,
}

/// Bytes in A and B, and their difference.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The object that the bytes belong to.
    pub label: String,
    /// The kind of object; in views, the kind of object of the first dimension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// The table that an index or other dependent object belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Whether A, B or both have bytes of this row.
    pub status: Status,
    /// Bytes in A.
    pub a_bytes: u64,
    /// Bytes in B.
    pub b_bytes: u64,
    /// The bytes of A over the length of B.
    pub a_scaled_bytes: u64,
    /// `b_bytes` less `a_scaled_bytes`.
    pub change_bytes: i64,
    /// Share of the whole change; above 1 or below 0 if others counteract it. `None` if the whole does not
    /// change.
    pub share_of_change: Option<f64>,
    /// Bytes per second in A and B, and the difference; `None` if a range has no length in time.
    pub per_second: Option<Rates>,
    /// Bytes per committed transaction in A and B, and the difference; `None` if a range has none.
    pub per_transaction: Option<Rates>,
    /// The change in bytes at equal transactions per second: the part that their number does not explain.
    /// `None` if a range has no transactions.
    pub change_at_same_transactions: Option<i64>,
    /// Whether the change is above the noise within the ranges; null if unknown.
    pub beyond_noise: Option<bool>,
    /// Images in A and B.
    #[serde(skip)]
    pub(super) images: (u64, u64),
    /// Bytes of forced images in B.
    #[serde(skip)]
    pub(super) b_forced: u64,
    /// Bytes of images after checkpoints in A and B.
    #[serde(skip)]
    pub(super) checkpoint_images: (u64, u64),
    /// The label of the relation without its fork, to find all forks of one; `None` for groups that are no
    /// relation.
    #[serde(skip)]
    pub(super) relation: Option<String>,
}

/// A quantity in A and B.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rates {
    /// The quantity in A.
    pub a: f64,
    /// The quantity in B.
    pub b: f64,
    /// `b` less `a`.
    pub change: f64,
}

/// Where something occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// In A and in B.
    Both,
    /// Only in B.
    New,
    /// Only in A.
    Gone,
}

/// Full-page images of one cause in A and B.
#[derive(Clone, Debug, Serialize)]
pub struct ImageChange {
    /// The bytes of A and B. In JSON, these fields are fields of the enclosing object.
    #[serde(flatten)]
    pub change: Change,
    /// Number of images in A.
    pub a_count: u64,
    /// Number of images in B.
    pub b_count: u64,
    /// Mean bytes of an image in A, as stored; `None` without any.
    pub a_mean_bytes: Option<u64>,
    /// Mean bytes of an image in B, as stored; `None` without any.
    pub b_mean_bytes: Option<u64>,
}

/// A view in A and B.
#[derive(Clone, Debug, Serialize)]
pub struct ViewChange {
    /// The dimensions' names.
    pub by: Vec<&'static str>,
    /// The groups, by the size of their change.
    pub groups: Vec<Change>,
}

/// An explanation of part of the change.
#[derive(Clone, Debug, Serialize)]
pub struct DiffFinding {
    /// The rule that found it.
    pub rule: &'static str,
    /// The explanation as text.
    pub text: String,
    /// Subject of the finding: a relation, a setting, the work.
    pub points_at: String,
    /// Bytes of the change, over the length of B, that the finding explains. Findings may overlap: a new
    /// index also has images.
    pub change_bytes: i64,
    /// `change_bytes` as a share of the whole change; `None` if the whole does not change.
    pub share_of_change: Option<f64>,
}
