//! What recovery to a moment needs, and whether the moment can be reached.
//!
//! Recovery to a time stops before the first commit or abort after it (`recoveryStopsBefore` in `xlogrecovery.c`). If the log has none,
//! PostgreSQL refuses to end recovery: the moment cannot be reached, though the end of the log can.

use std::ops::ControlFlow;

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, StreamInfo, Visitor};

use crate::archive::{Archive, ArchiveError};
use crate::base::BackupStart;
use crate::get;
use crate::log::{Ends, Log, LogSegment};
use crate::name::ArchivedFile;

/// Where recovery starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecoveryStart {
    /// With a segment.
    Segment(SegmentName),
    /// With a base backup.
    Backup {
        /// From where the log is replayed.
        start: Lsn,
        /// The timeline there, if it is known.
        timeline: Option<Timeline>,
        /// Up to where it is replayed before the files are consistent, if that is known.
        end: Option<Lsn>,
        /// The timeline there, if it is known.
        end_timeline: Option<Timeline>,
    },
}

impl From<&BackupStart> for RecoveryStart {
    fn from(backup: &BackupStart) -> RecoveryStart {
        let &BackupStart { start, timeline, end, end_timeline, .. } = backup;
        RecoveryStart::Backup { start, timeline, end, end_timeline }
    }
}

/// What recovery to a moment reads.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The log, from the start to the segment in which recovery stops.
    pub log: Log,
    /// The last commit or abort that recovery replays, if there is one since the start.
    pub last: Option<TransactionEnd>,
    /// The commit or abort that recovery stops before.
    pub stop: TransactionEnd,
}

/// The end of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TransactionEnd {
    /// The segment that has it.
    pub segment: String,
    /// Where its record starts, if that was looked up.
    pub lsn: Option<String>,
    /// When it was, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
}

/// Why a moment cannot be recovered to.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The archive's.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The start is on none of the timelines that are followed, or behind the position at which its own was left for the next one.
    #[error("cannot recover along timeline {followed}: expected {}", other_timeline(*.timeline, *.left_at, .found))]
    OtherTimeline {
        /// The timeline that is followed.
        followed: Timeline,
        /// The start's.
        timeline: Timeline,
        /// Where that was left, if it is one of those that are followed.
        left_at: Option<Lsn>,
        /// What the start is.
        found: String,
    },
    /// The segment at the start is not archived.
    #[error(
        "cannot recover: expected segment {segment}, at which recovery starts, in the archive, found {}",
        .partial.as_ref().map_or_else(|| "none".to_owned(), |partial| format!("{partial}, which recovery does not ask for"))
    )]
    NoStart {
        /// The segment.
        segment: String,
        /// The `.partial` in its place.
        partial: Option<String>,
    },
    /// A segment was removed meanwhile.
    #[error(
        "cannot recover: expected segment {0} in the archive, found it removed since the archive was listed"
    )]
    Gone(String),
    /// The moment is not between the first and the last that can be reached.
    #[error("cannot recover to {}: {}", time_text(*.moment), reachable(*.earliest, *.latest, .ends_at))]
    Unreachable {
        /// The moment.
        moment: i64,
        /// The first that can be reached.
        earliest: Option<i64>,
        /// The last that can be reached lies before this: there is no commit or abort behind it.
        latest: Option<i64>,
        /// What ends the log.
        ends_at: LogEnd,
    },
}

/// What ends a log that recovery reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogEnd {
    /// Nothing is archived behind it.
    Nothing,
    /// The absence of this segment.
    Missing(String),
    /// This `.partial`, which recovery does not ask for.
    Partial(String),
}

impl RecoveryError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            RecoveryError::Archive(error) => error.hint(),
            RecoveryError::OtherTimeline { .. } => {
                Some("name the timeline with --timeline; walden archive list shows them")
            }
            RecoveryError::NoStart { partial: Some(_), .. }
            | RecoveryError::Unreachable { ends_at: LogEnd::Partial(_), .. } => Some(PARTIAL_HINT),
            RecoveryError::NoStart { partial: None, .. } => {
                Some("use a base backup whose log is archived; walden archive list shows what is")
            }
            RecoveryError::Gone(_) => Some("try again; walden archive list shows what is there"),
            RecoveryError::Unreachable { .. } => Some(
                "what came after the last commit or abort is reached by the end of the log, without a target time",
            ),
        }
    }
}

/// How to recover what a `.partial` has.
pub(crate) const PARTIAL_HINT: &str = "recovery reads what a .partial has only if the file is put into the server's pg_wal without \
                                       this ending; walden archive get fetches it";

fn other_timeline(timeline: Timeline, left_at: Option<Lsn>, found: &str) -> String {
    match left_at {
        None => {
            format!(
                "a base backup of a timeline that it descends from, found {found}, on timeline {timeline}"
            )
        }
        Some(left_at) => format!(
            "a base backup of timeline {timeline} that ended before {left_at}, where that timeline was left, found {found}"
        ),
    }
}

fn time_text(micros: i64) -> String {
    Timestamp::from_unix_micros(micros).to_string()
}

fn reachable(earliest: Option<i64>, latest: Option<i64>, ends_at: &LogEnd) -> String {
    let end = match ends_at {
        LogEnd::Nothing => String::new(),
        LogEnd::Missing(segment) => format!(" (segment {segment} is missing)"),
        LogEnd::Partial(partial) => format!(" ({partial} follows, which recovery does not ask for)"),
    };
    match (earliest, latest) {
        (Some(earliest), Some(latest)) if earliest < latest => format!(
            "expected a moment from {} to before {}, the last commit or abort in the log{end}",
            time_text(earliest),
            time_text(latest)
        ),
        _ => format!("no moment can be reached from this start, as too few transactions end in the log{end}"),
    }
}

/// Finds what recovery from a start to a moment reads, along `timeline` or the newest one; `moment` is microseconds since 1970-01-01
/// 00:00:00 UTC.
///
/// # Errors
/// A moment that cannot be reached, and the archive's errors.
pub fn recovery_to(
    archive: &Archive,
    start: RecoveryStart,
    timeline: Option<Timeline>,
    moment: i64,
) -> Result<Recovery, RecoveryError> {
    let mut log = log_from(archive, start, timeline)?;
    let missing = log.cut_at_gap();
    let consistent_at = match start {
        RecoveryStart::Backup { end, .. } => end,
        RecoveryStart::Segment(_) => None,
    };
    let mut ends = Ends::new(archive, &log.segments);
    let mut reached = ends.first_reaching(moment.saturating_add(1))?;
    if reached == log.segments.len() {
        // The clock may have been set back since: a commit after the moment is one wherever it is.
        reached = ends.first_after(moment)?.unwrap_or(reached);
    }
    let stop = match log.segments.get(reached) {
        Some(segment) => first_end(archive, log.size, segment, |time| time > moment)?,
        None => (None, None),
    };
    let is_consistent = |lsn: Lsn| consistent_at.is_none_or(|consistent| lsn >= consistent);
    let (before, Some((lsn, time))) = stop else {
        return Err(unreachable(archive, &log, consistent_at, moment, missing)?);
    };
    if !is_consistent(lsn) {
        return Err(unreachable(archive, &log, consistent_at, moment, missing)?);
    }
    let name = |index: usize| log.segments[index].name.to_string();
    let end = |index, (lsn, time): (Lsn, i64)| TransactionEnd {
        segment: name(index),
        lsn: Some(lsn.to_string()),
        time,
    };
    let last = match before {
        Some(before) => Some(end(reached, before)),
        None => match ends.last_known(reached)? {
            Some(index) => {
                ends.of(index)?.map(|(_, time)| TransactionEnd { segment: name(index), lsn: None, time })
            }
            None => None,
        },
    };
    if let (None, RecoveryStart::Backup { start, .. }) = (&last, start)
        && let Some(begun) = ends.first_checkpoint(start, reached)?.filter(|&begun| moment < begun)
    {
        // A backup has all that was committed before it began: PostgreSQL would stop, at a later state than was asked for.
        let latest = match ends.last_known(log.segments.len())? {
            Some(last) => ends.of(last)?.map(|(_, time)| time),
            None => None,
        };
        let ends_at = log_end(archive, &log, missing)?;
        return Err(RecoveryError::Unreachable { moment, earliest: Some(begun), latest, ends_at });
    }
    let stop = end(reached, (lsn, time));
    log.segments.truncate(reached + 1);
    Ok(Recovery { log, last, stop })
}

/// The log from the start on; its first segment is the one that recovery starts with.
fn log_from(
    archive: &Archive,
    start: RecoveryStart,
    timeline: Option<Timeline>,
) -> Result<Log, RecoveryError> {
    let size = archive.segment_size()?;
    let (number, start_timeline) = match start {
        RecoveryStart::Segment(name) => (name.number(size).unwrap_or(u64::MAX), Some(name.timeline)),
        RecoveryStart::Backup { start, timeline, .. } => (size.segment_of(start), timeline),
    };
    let log = Log::of_recovery(archive, timeline, start_timeline, number)?;
    check_timelines(&log, start)?;
    if log.segments.first().is_none_or(|first| first.number != number) {
        let segment = SegmentName::new(log.timeline_of(number), number, size).to_string();
        let partial = log.partial_at(archive, number)?.map(|partial| partial.to_string());
        return Err(RecoveryError::NoStart { segment, partial });
    }
    Ok(log)
}

/// Whether a log goes through the start, and through the position at which a backup is consistent, on the timelines that these are on:
/// PostgreSQL refuses others (`InitWalRecovery` in `xlogrecovery.c`), or finds no checkpoint at the start.
///
/// # Errors
/// The start or that position is on another timeline, or behind where its timeline was left.
pub(crate) fn check_timelines(log: &Log, start: RecoveryStart) -> Result<(), RecoveryError> {
    let check = |timeline: Option<Timeline>, position: Lsn, found: String| {
        let Some(timeline) = timeline else { return Ok(()) };
        let stretch = log.stretches.iter().find(|stretch| stretch.timeline == timeline);
        if stretch.is_some_and(|stretch| stretch.end.is_none_or(|end| position < end)) {
            return Ok(());
        }
        let left_at = stretch.and_then(|stretch| stretch.end);
        Err(RecoveryError::OtherTimeline { followed: log.timeline(), timeline, left_at, found })
    };
    match start {
        RecoveryStart::Segment(name) => {
            let start = name.start(log.size).unwrap_or(Lsn(u64::MAX));
            check(Some(name.timeline), start, format!("segment {name}"))
        }
        RecoveryStart::Backup { start, timeline, end, end_timeline } => {
            check(timeline, start, format!("one that starts at {start}"))?;
            let last_byte = |end: Lsn| Lsn(end.0.saturating_sub(1));
            end.map_or(Ok(()), |end| check(end_timeline, last_byte(end), format!("one that ended at {end}")))
        }
    }
}

/// Says which moments can be reached instead.
fn unreachable(
    archive: &Archive,
    log: &Log,
    consistent_at: Option<Lsn>,
    moment: i64,
    missing: Option<SegmentName>,
) -> Result<RecoveryError, RecoveryError> {
    let mut ends = Ends::new(archive, &log.segments);
    let mut latest = None;
    if let Some(last) = ends.last_known(log.segments.len())? {
        latest = ends.of(last)?.map(|(_, time)| time);
    }
    let consistent_in = consistent_at.map_or(0, |lsn| log.size.segment_of(lsn));
    let mut earliest = None;
    for (index, segment) in log.segments.iter().enumerate() {
        if segment.number < consistent_in || ends.of(index)?.is_none() {
            continue;
        }
        earliest = match consistent_at.filter(|_| segment.number == consistent_in) {
            // A moment is reached by stopping before an end behind the consistent position, so an earlier end is one.
            Some(consistent) => last_end_before(archive, log, segment, consistent)?,
            None => ends.of(index)?.map(|(first, _)| first),
        };
        if earliest.is_some() {
            break;
        }
    }
    Ok(RecoveryError::Unreachable { moment, earliest, latest, ends_at: log_end(archive, log, missing)? })
}

fn log_end(archive: &Archive, log: &Log, missing: Option<SegmentName>) -> Result<LogEnd, RecoveryError> {
    if let Some(missing) = missing {
        return Ok(LogEnd::Missing(missing.to_string()));
    }
    let Some(last) = log.segments.last() else { return Ok(LogEnd::Nothing) };
    let partial = log.partial_at(archive, last.number + 1)?;
    Ok(partial.map_or(LogEnd::Nothing, |partial| LogEnd::Partial(partial.to_string())))
}

/// The time of the last transaction end before a position; else of the first one behind it.
fn last_end_before(
    archive: &Archive,
    log: &Log,
    segment: &LogSegment,
    position: Lsn,
) -> Result<Option<i64>, RecoveryError> {
    let all = ends_in(archive, log.size, segment)?;
    let before = all.iter().rev().find(|(lsn, _)| *lsn < position);
    Ok(before.or(all.first()).map(|(_, time)| *time))
}

type Found = (Option<(Lsn, i64)>, Option<(Lsn, i64)>);

/// The first end of a transaction in a segment whose time is as wanted, and the one before it.
fn first_end(
    archive: &Archive,
    size: walden_format::lsn::SegmentSize,
    segment: &LogSegment,
    is_wanted: impl Fn(i64) -> bool,
) -> Result<Found, RecoveryError> {
    let all = ends_in(archive, size, segment)?;
    let at = all.iter().position(|(_, time)| is_wanted(*time));
    let before = at.and_then(|at| at.checked_sub(1)).and_then(|before| all.get(before));
    Ok((before.copied(), at.and_then(|at| all.get(at)).copied()))
}

/// The ends of transactions in a segment: where their records start, and when they were.
fn ends_in(
    archive: &Archive,
    size: walden_format::lsn::SegmentSize,
    segment: &LogSegment,
) -> Result<Vec<(Lsn, i64)>, RecoveryError> {
    let content = get::with_object(archive, segment.file(), |object, bytes| {
        let mut content = Vec::new();
        get::decode(archive, segment.file(), object, bytes, &mut content)?;
        Ok(content)
    })?;
    let content = content.ok_or_else(|| RecoveryError::Gone(segment.name.to_string()))?;
    let mut visitor = TransactionEnds(Vec::new());
    if let (Ok(info), Some(start)) = (StreamInfo::of_segment(&content), segment.name.start(size)) {
        let info = StreamInfo { timeline: segment.name.timeline, ..info };
        // What the log has behind damage, recovery does not reach either.
        let _ = Decoder::new(info, start, start.plus(size.bytes())).push(&content, &mut visitor);
    }
    Ok(visitor.0)
}

struct TransactionEnds(Vec<(Lsn, i64)>);

impl Visitor for TransactionEnds {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.header.rmid == rmid::XACT
            && let Ok(Payload::Commit(end) | Payload::Abort(end)) = payload::parse(record)
        {
            self.0.push((record.lsn, end.time.unix_micros()));
        }
        ControlFlow::Continue(())
    }
}

impl Recovery {
    /// The files that recovery asks for: the histories of its timelines, and the segments.
    pub fn files(&self) -> Vec<ArchivedFile> {
        let timelines =
            self.log.stretches.iter().map(|stretch| stretch.timeline).filter(|&timeline| timeline > 1);
        timelines.map(ArchivedFile::History).chain(self.log.segments.iter().map(LogSegment::file)).collect()
    }
}
