//! Checks whether recovery replayed all the WAL that it should have. PostgreSQL treats a missing segment as
//! the end of the WAL and promotes, and the data it has replayed so far are consistent.

use std::time::Duration;

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName};

use super::{DrillError, DrillOptions, Target};
use crate::archive::{Archive, ArchiveError};
use crate::objects::name::{ArchivedFile, Object};
use crate::restore::get;
use crate::restore::log::{Log, LogSegment};
use crate::restore::recovery::PARTIAL_HINT;

/// The first version of PostgreSQL that refuses to end recovery before its target (`PerformWalRecovery` in
/// `xlogrecovery.c`).
const REFUSES_TO_END_EARLY: u32 = 13;

/// How long a segment may be archived later than one after it.
const ARCHIVING: Duration = Duration::from_secs(5);

/// Remedy for a gap.
const MENDING: &str = "walden archive check --against searches a server for it; without it, later WAL can only be restored from a later base backup";

/// Returns why a server of a major version did not replay all the WAL in the earlier listing `log`, or `None`
/// if it did.
///
/// # Errors
/// The store's errors, and unreadable summaries.
pub fn find_shortfall(
    archive: &Archive,
    log: &Log,
    options: &DrillOptions,
    major: u32,
    reached: Lsn,
) -> Result<Option<String>, ArchiveError> {
    if options.settings.iter().any(|(name, _)| is_target(name)) {
        // The settings contain another target, so any end is acceptable.
        return Ok(None);
    }
    match options.target {
        Target::End => before_end(archive, log, reached),
        Target::Time(_) | Target::RestorePoint(_) if major >= REFUSES_TO_END_EARLY => Ok(None),
        Target::Time(_) | Target::RestorePoint(_) => at_gap(archive, log, reached),
    }
}

/// Reports a missing segment in the WAL, or one that is archived only as a `.partial`, as a possible reason
/// for not reaching the target.
pub fn end_text(archive: &Archive, log: &Log) -> Option<String> {
    if let Some(missing) = log.clone().cut_at_gap() {
        return Some(format!(
            "recovery ends before segment {missing}, which is not in the archive: {MENDING}"
        ));
    }
    // Errors here are ignored, because recovery has already failed.
    let last = log.segments.last()?;
    if let Ok(Some((missing, later))) = get::find_lost_end(archive, last.name) {
        return Some(format!(
            "recovery ends before segment {missing}, which is missing although later WAL existed, as shown by {later}. {MENDING}"
        ));
    }
    let partial = log.partial_at(archive, last.number + 1).ok()??;
    Some(format!("recovery does not read {partial}, which follows the last segment: {PARTIAL_HINT}"))
}

/// An incomplete segment after the archived WAL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UnreadPartial {
    /// Its name.
    pub file: String,
    /// The end of its WAL.
    pub end_lsn: Option<String>,
}

/// Returns the `.partial` that follows the archived WAL, which recovery to the end does not read.
///
/// # Errors
/// The store's errors, and unreadable summaries.
pub(super) fn find_unread_partial(
    archive: &Archive,
    log: &Log,
    target: &Target,
) -> Result<Option<UnreadPartial>, ArchiveError> {
    let Some(last) = log.segments.last().filter(|_| *target == Target::End) else { return Ok(None) };
    let Some(file) = log.partial_at(archive, last.number + 1)? else { return Ok(None) };
    let contents = get::read_contents(archive, Object::File(file), 0)?;
    let end_lsn = contents.last().map(|contents| contents.end.clone());
    Ok(Some(UnreadPartial { file: file.to_string(), end_lsn }))
}

fn is_target(setting: &str) -> bool {
    let setting = setting.to_ascii_lowercase();
    matches!(setting.strip_prefix("recovery_target"), Some("" | "_lsn" | "_name" | "_time" | "_xid"))
}

fn before_end(archive: &Archive, log: &Log, reached: Lsn) -> Result<Option<String>, ArchiveError> {
    let (Some(first), Some((segment, last))) = (log.segments.first(), last_record(archive, log)?) else {
        return Ok(None);
    };
    if reached > last {
        return Ok(find_lost_segment(archive, log, segment, reached)?.map(|(missing, later)| {
            format!(
                "recovery ended at {reached}, the end of the archived WAL, before segment {missing}, which is missing although later WAL \
                 existed, as shown by {later}. {MENDING}"
            )
        }));
    }
    let found = format!(
        "recovery ended at {reached}, before the last record of the archived WAL, at {last} in segment {}",
        segment.name
    );
    let was_complete = log.clone().cut_at_gap().is_none();
    let now = Log::find_for_recovery(archive, Some(log.timeline()), None, first.number)?.cut_at_gap();
    Ok(match now {
        Some(missing) => Some(format!("{found}: segment {missing} is missing. {MENDING}")),
        None if was_complete => {
            Some(format!("{found}, although no segment is missing: walden archive verify finds the damage"))
        }
        // The segment was being archived: several segments are archived concurrently.
        None => None,
    })
}

/// Finds the missing segment at which recovery ended, and the evidence that it existed. Recovery also replays
/// segments that a server has archived since the earlier listing `log`, which ends with `last`.
fn find_lost_segment(
    archive: &Archive,
    log: &Log,
    last: LogSegment,
    reached: Lsn,
) -> Result<Option<(SegmentName, String)>, ArchiveError> {
    let mut now = Log::find_for_recovery(archive, Some(log.timeline()), None, last.number)?;
    let is_growing = now.segments.last().map(|it| it.number) != log.segments.last().map(|it| it.number);
    now.cut_at_gap();
    let end = now.segments.last().copied().unwrap_or(last);
    // Recovery has not requested segments that were archived after its end.
    if end.number > log.size.segment_of(reached) {
        return Ok(None);
    }
    let lost = get::find_lost_end(archive, end.name)?;
    if let Some((missing, _)) = lost.as_ref().filter(|_| is_growing) {
        // Several segments are archived concurrently.
        std::thread::sleep(ARCHIVING);
        if archive.find(ArchivedFile::Segment(*missing))?.is_some() {
            return Ok(None);
        }
    }
    Ok(lost)
}

/// Returns a description if recovery to a target may have ended at a gap.
fn at_gap(archive: &Archive, log: &Log, reached: Lsn) -> Result<Option<String>, ArchiveError> {
    let mut replayed = log.clone();
    let Some(missing) = replayed.cut_at_gap() else { return Ok(None) };
    let last = last_record(archive, &replayed)?;
    Ok(last.filter(|(_, last)| reached > *last).map(|_| {
        format!("recovery ended at {reached}, where segment {missing} is missing, and not at its target. {MENDING}")
    }))
}

/// Refuses a WAL whose newest segment has a version that Walden cannot read, because an early end of recovery
/// would go unnoticed.
pub(super) fn expect_known_version(archive: &Archive, log: &Log) -> Result<(), DrillError> {
    let Some(segment) = log.segments.last() else { return Ok(()) };
    let contents = get::read_contents(archive, segment.object, segment.bytes)?;
    let magic = contents.iter().rev().find_map(|it| it.unknown_magic.as_deref());
    match magic {
        None => Ok(()),
        Some(magic) => Err(DrillError::refused(format!(
            "cannot test the restore: segment {} is of a version of PostgreSQL that this Walden does not read (page magic {magic}), so it cannot check whether recovery reaches the end of the WAL",
            segment.name
        ))
        .with_hint("restore with restore_command = 'walden archive get', which returns each byte, or install a Walden that reads this version")),
    }
}

/// Returns the last complete record in the segments that recovery requests, and its segment.
fn last_record(archive: &Archive, log: &Log) -> Result<Option<(LogSegment, Lsn)>, ArchiveError> {
    for &segment in log.segments.iter().rev() {
        let contents = get::read_contents(archive, segment.object, segment.bytes)?;
        // A pack contains the contents of other segments too.
        let last = contents.iter().filter_map(|it| it.last_record.as_ref()?.parse::<Lsn>().ok());
        if let Some(last) = last.filter(|&last| log.size.segment_of(last) == segment.number).max() {
            return Ok(Some((segment, last)));
        }
    }
    Ok(None)
}
