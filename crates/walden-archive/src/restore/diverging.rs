//! Finds servers that wrote concurrently: a promoted copy, such as a test restore that archives by mistake,
//! and the original, which continues on the timeline that the copy left.

use std::fmt;

use serde::Serialize;
use walden_format::lsn::Timeline;
use walden_source::timelines::Stretch;

use crate::archive::{Archive, ArchiveError};
use crate::restore::log::{Ends, Log};

/// A timeline that was written concurrently with one that had branched off from it.
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

/// Returns the first ancestor of a timeline that was written concurrently with its descendant: it has a
/// commit or abort after the branch that is later than the descendant's first one. After recovery to a
/// moment, the ancestor also has WAL after the branch, but only with earlier times. The default is the newest
/// timeline that has segments. `start` is the timeline of a base backup, if one is used: it cannot follow an
/// earlier one.
///
/// # Errors
/// The archive cannot be listed, or the summary of a segment is unreadable.
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
        let Some((_, last)) = times_of(archive, pair[0].timeline, branch, true)? else { continue };
        // The segment of the branch starts with a copy of the ancestor's WAL.
        let first = times_of(archive, pair[1].timeline, branch + 1, false)?;
        let first = match first {
            Some((first, _)) => Some(first),
            None => times_of(archive, pair[1].timeline, branch, true)?.map(|(_, last)| last),
        };
        if first.is_some_and(|first| first < last) {
            let left_at = left_at.to_string();
            return Ok(Some(Diverging { timeline: pair[0].timeline, left_by: pair[1].timeline, left_at }));
        }
    }
    Ok(None)
}

/// Returns the times of the first and the last end of a transaction in the last segment of a timeline that
/// has any, or in the first one, from a number on.
fn times_of(
    archive: &Archive,
    timeline: Timeline,
    number: u64,
    is_last: bool,
) -> Result<Option<(i64, i64)>, ArchiveError> {
    /// Segments without a commit that are looked at.
    const MAX_SEGMENTS: usize = 16;
    let mut log = Log::find_single_timeline(archive, timeline, number..=u64::MAX)?;
    log.segments.retain(|segment| !segment.is_partial);
    let mut ends = Ends::new(archive, &log.segments);
    let count = log.segments.len();
    for at in 0..count.min(MAX_SEGMENTS) {
        let index = if is_last { count - 1 - at } else { at };
        if let Some(times) = ends.find(index)? {
            return Ok(Some(times));
        }
    }
    Ok(None)
}
