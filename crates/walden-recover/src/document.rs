//! JSON documents of a recovery.

use std::path::Path;

use serde::Serialize;
use walden_format::lsn::Timeline;

use crate::duration::ExpectedDuration;
use crate::early_drops::EarlyDrop;
use crate::plan::{Plan, UnreadPartial};
use crate::restore::Restored;

/// The plan of a recovery as a JSON document.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct PlanDocument {
    /// Path of the base backup.
    pub base: String,
    /// Where replay starts.
    pub start_lsn: String,
    /// The end of the base backup, from which on the state is consistent.
    pub consistent_lsn: String,
    /// The target.
    pub target: String,
    /// Where recovery stops.
    pub stop_lsn: String,
    /// The next restore point of the same name.
    pub next_of_name: Option<String>,
    /// The timeline at the target.
    pub timeline: Timeline,
    /// Time of the last commit or abort before the target, in microseconds since 1970-01-01 00:00:00 UTC.
    pub last_commit: Option<i64>,
    /// Number of checkpoints from the end of the backup to the target.
    pub checkpoints: u64,
    /// The last of them, from which PostgreSQL continues.
    pub checkpoint: Option<CheckpointDocument>,
    /// Bytes of WAL that Walden replays.
    pub replayed_wal_bytes: u64,
    /// Bytes of WAL that PostgreSQL replays.
    pub remaining_wal_bytes: u64,
    /// The first record that Walden does not replay.
    pub left_to_postgresql: Option<String>,
    /// Databases and tablespaces whose files are removed before the commit of their drop.
    pub early_drops: Vec<EarlyDrop>,
    /// The `.partial` that recovery does not read.
    pub unread_partial: Option<PartialDocument>,
    /// The expected duration of Walden's part.
    pub expected_duration: ExpectedDuration,
}

/// A checkpoint in a [`PlanDocument`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckpointDocument {
    /// Start of the checkpoint record.
    pub lsn: String,
    /// Redo pointer of the checkpoint.
    pub redo_lsn: String,
    /// Its time in seconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
}

/// An incomplete segment in a [`PlanDocument`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PartialDocument {
    /// Name of the file.
    pub file: String,
    /// The end of its WAL.
    pub end_lsn: String,
}

impl PlanDocument {
    /// Creates the document. `base` is the path of the base backup, and `partial` the incomplete segment
    /// after the WAL.
    pub fn new(
        base: &Path,
        plan: &Plan,
        partial: Option<&UnreadPartial>,
        duration: ExpectedDuration,
    ) -> PlanDocument {
        let checkpoint = plan.checkpoint.as_ref().map(|checkpoint| CheckpointDocument {
            lsn: checkpoint.lsn.to_string(),
            redo_lsn: checkpoint.fields.redo.to_string(),
            time: checkpoint.fields.time,
        });
        PlanDocument {
            base: base.display().to_string(),
            start_lsn: plan.start.to_string(),
            consistent_lsn: plan.consistent.to_string(),
            target: plan.target.to_string(),
            stop_lsn: plan.stop.to_string(),
            next_of_name: plan.next_of_name.map(|lsn| lsn.to_string()),
            timeline: plan.timeline,
            last_commit: plan.last_commit,
            checkpoints: plan.checkpoints,
            checkpoint,
            replayed_wal_bytes: plan.replayed_bytes(),
            remaining_wal_bytes: plan.remaining_bytes(),
            left_to_postgresql: plan.unsupported.as_ref().map(ToString::to_string),
            early_drops: plan.early_drops.clone(),
            unread_partial: partial.map(|UnreadPartial { file, end }| PartialDocument {
                file: file.clone(),
                end_lsn: end.to_string(),
            }),
            expected_duration: duration,
        }
    }
}

/// The result of a recovery as a JSON document.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct RestoredDocument {
    /// Duration.
    pub seconds: f64,
    /// Bytes copied from the base backup.
    pub copied_bytes: u64,
    /// Records replayed.
    pub records: u64,
    /// Pages written.
    pub pages: u64,
    /// Transactions that are prepared at the end of replay.
    pub prepared_transactions: u64,
}

impl RestoredDocument {
    /// Creates the document of a recovery that took `seconds`.
    pub fn new(restored: &Restored, seconds: f64) -> RestoredDocument {
        RestoredDocument {
            seconds,
            copied_bytes: restored.copied_bytes,
            records: restored.records,
            pages: restored.pages,
            prepared_transactions: restored.prepared_transactions as u64,
        }
    }
}
