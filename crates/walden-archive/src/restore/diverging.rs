//! Finds servers that wrote concurrently: a promoted copy, such as a test restore that archives by mistake,
//! and the original, which continues on the timeline that the copy left.

use std::fmt;

use serde::Serialize;
use walden_format::lsn::Timeline;
use walden_source::timelines::Stretch;

use crate::archive::{Archive, ArchiveError};
use crate::restore::log::{Ends, Log, LogSegment};

/// A timeline that one server continued to write after another timeline had branched off from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Diverging {
    /// The timeline.
    pub timeline: Timeline,
    /// The timeline that branched off.
    pub left_by: Timeline,
    /// LSN of the branch.
    pub left_at: String,
}

impl fmt::Display for Diverging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diverging { timeline, left_by, left_at } = self;
        write!(
            f,
            "timeline {timeline} continues after {left_at}, where timeline {left_by} left it, with commits later than the first one of \
             timeline {left_by}: two servers have written at the same time"
        )
    }
}

/// Remedy for WAL of two servers.
pub const DIVERGING_HINT: &str = "name the timeline of the server that you need with --timeline; walden archive list shows the times of each. If a test \
     server was promoted with this archive's archive_command, change its archive_command and move its timeline out of the archive";

/// Returns the first ancestor of a timeline that was written concurrently with its descendant: after the
/// branch, the ancestor has a commit or abort that is later than the descendant's first commit or abort.
/// After recovery to a moment, the ancestor also has WAL after the branch, but only with earlier times. The
/// default is the newest timeline that has segments. `start` is the timeline of a base backup, if a backup is
/// used: recovery cannot follow an earlier timeline.
///
/// # Errors
/// The archive cannot be listed or read.
pub fn find_diverging(
    archive: &Archive,
    timeline: Option<Timeline>,
    start: Option<Timeline>,
) -> Result<Option<Diverging>, ArchiveError> {
    // Without histories, no ancestor is known, and finding the newest timeline would list all segments.
    if archive.histories()?.is_empty() {
        return Ok(None);
    }
    // Only the stretches are needed: there is no segment with this number.
    let log = Log::find(archive, timeline, u64::MAX..=u64::MAX)?;
    let is_possible = |stretch: &Stretch| start.is_none_or(|start| stretch.timeline >= start);
    for pair in log.stretches.windows(2).filter(|pair| is_possible(&pair[0])) {
        let Some(left_at) = pair[0].end else { continue };
        let branch = log.size.segment_of(left_at);
        let segments_of = |timeline| -> Result<Vec<LogSegment>, ArchiveError> {
            let range = branch..=u64::MAX;
            let mut segments = Log::find_single_timeline(archive, timeline, range)?.segments;
            segments.retain(|segment| !segment.is_partial);
            Ok(segments)
        };
        let left = segments_of(pair[0].timeline)?;
        if !left.is_empty() && overlap(archive, branch, &left, &segments_of(pair[1].timeline)?)? {
            let left_at = left_at.to_string();
            return Ok(Some(Diverging { timeline: pair[0].timeline, left_by: pair[1].timeline, left_at }));
        }
    }
    Ok(None)
}

/// Returns whether a timeline has a commit or abort later than the first commit or abort of a timeline that
/// branched off it. The segments of both timelines are given from the segment of the branch on, which has the
/// number `branch`.
pub(crate) fn overlap(
    archive: &Archive,
    branch: u64,
    left: &[LogSegment],
    later: &[LogSegment],
) -> Result<bool, ArchiveError> {
    let Some((_, last)) = find_times(archive, left, true)? else { return Ok(false) };
    // The segment of the branch starts with a copy of the ancestor's WAL.
    let (at_branch, behind) = later.split_at(later.partition_point(|segment| segment.number <= branch));
    let first = match find_times(archive, behind, false)? {
        Some((first, _)) => Some(first),
        None => find_times(archive, at_branch, true)?.map(|(_, last)| last),
    };
    Ok(first.is_some_and(|first| first < last))
}

/// Returns the times of the first and the last end of a transaction in the last segment, or in the first
/// segment, that has any. Skips segments whose summaries are damaged, which are reported where they are read.
fn find_times(
    archive: &Archive,
    segments: &[LogSegment],
    is_last: bool,
) -> Result<Option<(i64, i64)>, ArchiveError> {
    /// Segments without a commit that are looked at.
    const MAX_SEGMENTS: usize = 16;
    let mut ends = Ends::new(archive, segments);
    let count = segments.len();
    for at in 0..count.min(MAX_SEGMENTS) {
        match ends.find(if is_last { count - 1 - at } else { at }) {
            Ok(Some(times)) => return Ok(Some(times)),
            Err(error) if !error.is_damage() => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    Ok(None)
}
