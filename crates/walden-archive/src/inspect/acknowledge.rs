//! Records acknowledgements of gaps: who acknowledged a gap, when and why.

use std::time::{SystemTime, UNIX_EPOCH};

use walden_format::lsn::SegmentName;

use crate::archive::{Archive, ArchiveError};
use crate::inspect::list::{self, ListOptions};
use crate::inventory::gaps::{Acknowledgement, Gap};
use crate::store::Created;

/// Acknowledges missing segments durably.
///
/// # Errors
/// The segments are not missing, or the archive failed.
pub fn acknowledge(
    archive: &Archive,
    first: SegmentName,
    last: SegmentName,
    by: &str,
    reason: &str,
) -> Result<Acknowledgement, GapError> {
    if first.timeline != last.timeline || first > last {
        return Err(GapError::Range { first, last });
    }
    let gaps = list::list(archive, ListOptions::default())?.gaps();
    let open = || gaps.iter().filter(|gap| gap.is_new());
    // Names on one timeline sort by position.
    let (first_name, last_name) = (first.to_string(), last.to_string());
    let holds = |gap: &Gap| gap.first <= first_name && last_name <= gap.last;
    if !open().any(holds) {
        let found: Vec<_> = open().map(|gap| format!("{} to {}", gap.first, gap.last)).collect();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        return Err(GapError::NotMissing { first, last, found });
    }
    Ok(record(archive, first, last, by, reason)?)
}

/// Records that a timeline's segments are lost permanently, as [`acknowledge`] does, before a later segment
/// shows that they are missing.
///
/// # Errors
/// Errors of the archive.
pub fn record(
    archive: &Archive,
    first: SegmentName,
    last: SegmentName,
    by: &str,
    reason: &str,
) -> Result<Acknowledgement, ArchiveError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let acknowledgement = Acknowledgement {
        first: first.to_string(),
        last: last.to_string(),
        by: by.to_owned(),
        time: i64::try_from(now).unwrap_or(i64::MAX),
        reason: reason.to_owned(),
    };
    let json = serde_json::to_vec_pretty(&acknowledgement).unwrap_or_default();
    let key = acknowledgement.key(first.timeline);
    match archive.store().create(&key, &json)? {
        Created::New => Ok(acknowledgement),
        // Another process acknowledged the same segments concurrently.
        Created::Exists => {
            let there = archive.store().read(&key)?;
            archive.store().make_durable(&key)?;
            Ok(serde_json::from_slice(&there).unwrap_or(acknowledgement))
        }
    }
}

/// Reasons for not acknowledging a gap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GapError {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The names are not a valid range of segments.
    #[error(
        "cannot acknowledge {first} to {last}: expected two segments of one timeline, the earlier one first"
    )]
    Range {
        /// The first segment.
        first: SegmentName,
        /// The last segment.
        last: SegmentName,
    },
    /// Some of the segments are not missing.
    #[error(
        "cannot acknowledge {first} to {last}: expected segments that are missing and not acknowledged, found {found}"
    )]
    NotMissing {
        /// The first segment.
        first: SegmentName,
        /// The last segment.
        last: SegmentName,
        /// The existing gaps.
        found: String,
    },
}

walden_format::diagnostics! { GapError {
    Self::Archive(error) => of(error),
    Self::Range { .. } => "gap-range",
    Self::NotMissing { .. } => "gap-not-missing",
} }
