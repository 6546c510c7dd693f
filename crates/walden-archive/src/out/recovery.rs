//! What recovery to a moment needs, and whether the moment can be reached.
//!
//! Recovery to a time stops before the first commit or abort after it (`recoveryStopsBefore` in `xlogrecovery.c`). If the log has none,
//! PostgreSQL refuses to end recovery: the moment cannot be reached, though the end of the log can.

use std::ops::ControlFlow;

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, StreamInfo, Visitor};

use crate::archive::{Archive, ArchiveError};
use crate::inventory::gaps::{self, HISTORY_HINT};
use crate::inventory::parts;
use crate::out::base::BackupStart;
use crate::out::get;
use crate::out::log::{Ends, Log, LogSegment};
use crate::stored::name::ArchivedFile;

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

impl RecoveryStart {
    /// The number of the segment that recovery starts in.
    fn number(self, size: SegmentSize) -> u64 {
        match self {
            RecoveryStart::Segment(name) => name.number(size).unwrap_or(u64::MAX),
            RecoveryStart::Backup { start, .. } => size.segment_of(start),
        }
    }
}

/// What recovery to a moment reads.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The log, from the start to the segment in which recovery stops. It has no segment if recovery starts in one that is being written.
    pub log: Log,
    /// The segment behind it, if recovery stops in one that is being written, as far as the archive has parts of it.
    pub begun: Option<SegmentName>,
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
    /// The history of a timeline that recovery has to follow is missing: PostgreSQL ends on an earlier one.
    #[error(
        "cannot recover: expected {0} in the archive, as its timeline was archived, or one that descends from it, found none"
    )]
    NoHistory(String),
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
            RecoveryError::NoHistory(_) => Some(HISTORY_HINT),
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
    let begun = match reached == log.segments.len() {
        true => begun_behind(archive, &log, start, missing)?,
        false => None,
    };
    let in_begun = begun.as_ref().map(|begun| begun.events.ends.as_slice()).unwrap_or_default();
    let is_later = |time| time > moment;
    let stop = match log.segments.get(reached) {
        Some(segment) => first_end(&ends_in(archive, log.size, segment)?, is_later),
        None => first_end(in_begun, is_later),
    };
    let is_consistent = |lsn: Lsn| consistent_at.is_none_or(|consistent| lsn >= consistent);
    let (before, Some((lsn, time))) = stop else {
        return Err(unreachable(archive, &log, start, moment, missing)?);
    };
    if !is_consistent(lsn) {
        return Err(unreachable(archive, &log, start, moment, missing)?);
    }
    let name = |index: usize| match (log.segments.get(index), &begun) {
        (Some(segment), _) => segment.name.to_string(),
        (None, Some(begun)) => begun.name.to_string(),
        // Whatever stops recovery is in one of these.
        (None, None) => String::new(),
    };
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
    if let (None, RecoveryStart::Backup { start: position, .. }) = (&last, start)
        && first_checkpoint(&mut ends, begun.as_ref(), position, reached)?.is_some_and(|time| moment < time)
    {
        // A backup has all that was committed before it began: PostgreSQL would stop, at a later state than was asked for.
        return Err(unreachable(archive, &log, start, moment, missing)?);
    }
    let stop = end(reached, (lsn, time));
    log.segments.truncate(reached + 1);
    Ok(Recovery { log, begun: begun.map(|begun| begun.name), last, stop })
}

/// A segment that is being written, as far as the archive has parts of it.
struct Begun {
    name: SegmentName,
    events: Events,
}

/// The segment behind the last one of a log, or the one that recovery starts in if the log has none, if the archive has parts of it, and no
/// segment is missing before it.
fn begun_behind(
    archive: &Archive,
    log: &Log,
    start: RecoveryStart,
    missing: Option<SegmentName>,
) -> Result<Option<Begun>, RecoveryError> {
    if missing.is_some() {
        return Ok(None);
    }
    let number = log.segments.last().map_or(start.number(log.size), |last| last.number + 1);
    let name = SegmentName::new(log.timeline_of(number), number, log.size);
    let content = parts::assemble(archive, name)?;
    Ok(content.map(|content| Begun { name, events: events_of(&content, name, log.size) }))
}

/// When the first checkpoint of a log at or behind a position was made, up to the segment at `index`, and behind that in one that is being
/// written.
fn first_checkpoint(
    ends: &mut Ends<'_>,
    begun: Option<&Begun>,
    position: Lsn,
    index: usize,
) -> Result<Option<i64>, RecoveryError> {
    let found = ends.first_checkpoint(position, index)?;
    let in_begun = begun.into_iter().flat_map(|begun| &begun.events.checkpoints);
    Ok(found.or_else(|| in_begun.filter(|(lsn, _)| *lsn >= position).map(|(_, time)| *time).min()))
}

/// The log from the start on; its first segment is the one that recovery starts with.
fn log_from(
    archive: &Archive,
    start: RecoveryStart,
    timeline: Option<Timeline>,
) -> Result<Log, RecoveryError> {
    let size = archive.segment_size()?;
    let number = start.number(size);
    let start_timeline = match start {
        RecoveryStart::Segment(name) => Some(name.timeline),
        RecoveryStart::Backup { timeline, .. } => timeline,
    };
    check_histories(archive, timeline, start_timeline)?;
    let log = Log::of_recovery(archive, timeline, start_timeline, number)?;
    check_timelines(&log, start)?;
    if log.segments.first().is_none_or(|first| first.number != number) {
        let segment = SegmentName::new(log.timeline_of(number), number, size);
        let is_begun = log.segments.is_empty() && !parts::list(archive, segment)?.is_empty();
        if !is_begun {
            let partial = log.partial_at(archive, number)?.map(|partial| partial.to_string());
            return Err(RecoveryError::NoStart { segment: segment.to_string(), partial });
        }
    }
    Ok(log)
}

/// Whether the histories are there by which PostgreSQL finds the timeline that it follows: that of the named one, or else those of all
/// that are later than the start's, as it asks for one after the other and stops at the first that is missing.
///
/// # Errors
/// [`RecoveryError::NoHistory`], and the store's.
pub(crate) fn check_histories(
    archive: &Archive,
    timeline: Option<Timeline>,
    start: Option<Timeline>,
) -> Result<(), RecoveryError> {
    let start = start.unwrap_or(1);
    let is_needed = |missing: &Timeline| match timeline {
        Some(followed) => *missing == followed && followed > start,
        None => *missing > start,
    };
    match gaps::timelines_without_history(archive)?.into_iter().find(is_needed) {
        Some(missing) => Err(RecoveryError::NoHistory(ArchivedFile::History(missing).to_string())),
        None => Ok(()),
    }
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
    start: RecoveryStart,
    moment: i64,
    missing: Option<SegmentName>,
) -> Result<RecoveryError, RecoveryError> {
    let mut ends = Ends::new(archive, &log.segments);
    let begun = begun_behind(archive, log, start, missing)?;
    let in_begun = begun.as_ref().and_then(|begun| begun.events.ends.last().copied());
    let latest = match (in_begun, ends.last_known(log.segments.len())?) {
        (Some((_, time)), _) => Some(time),
        (None, Some(last)) => ends.of(last)?.map(|(_, time)| time),
        (None, None) => None,
    };
    let earliest = earliest(archive, log, &mut ends, begun.as_ref(), start)?;
    Ok(RecoveryError::Unreachable { moment, earliest, latest, ends_at: log_end(archive, log, missing)? })
}

/// The first moment that can be reached from a start.
///
/// Recovery must not stop before the position at which a backup is consistent, so a moment before an end of a transaction that comes
/// before that cannot be reached. Without such an end, all moments since the backup's checkpoint can: the backup has what was committed
/// before.
fn earliest(
    archive: &Archive,
    log: &Log,
    ends: &mut Ends<'_>,
    begun: Option<&Begun>,
    start: RecoveryStart,
) -> Result<Option<i64>, RecoveryError> {
    let in_begun = begun.map(|begun| begun.events.ends.as_slice()).unwrap_or_default();
    if let RecoveryStart::Backup { start, end, .. } = start {
        let consistent = end.unwrap_or(start);
        let is_replayed_before = |(lsn, _): &&(Lsn, i64)| (start..consistent).contains(lsn);
        if let Some((_, time)) = in_begun.iter().rev().find(is_replayed_before) {
            return Ok(Some(*time));
        }
        let segments =
            log.segments.partition_point(|segment| segment.number <= log.size.segment_of(consistent));
        for index in (0..segments).rev() {
            if ends.of(index)?.is_none() {
                continue;
            }
            let all = ends_in(archive, log.size, &log.segments[index])?;
            if let Some((_, time)) = all.iter().rev().find(is_replayed_before) {
                return Ok(Some(*time));
            }
        }
        if let Some(time) = first_checkpoint(ends, begun, start, log.segments.len())? {
            return Ok(Some(time));
        }
    }
    for index in 0..log.segments.len() {
        if let Some((first, _)) = ends.of(index)? {
            return Ok(Some(first));
        }
    }
    Ok(in_begun.first().map(|(_, time)| *time))
}

fn log_end(archive: &Archive, log: &Log, missing: Option<SegmentName>) -> Result<LogEnd, RecoveryError> {
    if let Some(missing) = missing {
        return Ok(LogEnd::Missing(missing.to_string()));
    }
    let Some(last) = log.segments.last() else { return Ok(LogEnd::Nothing) };
    let partial = log.partial_at(archive, last.number + 1)?;
    Ok(partial.map_or(LogEnd::Nothing, |partial| LogEnd::Partial(partial.to_string())))
}

type Found = (Option<(Lsn, i64)>, Option<(Lsn, i64)>);

/// The first end of a transaction whose time is as wanted, and the one before it.
fn first_end(all: &[(Lsn, i64)], is_wanted: impl Fn(i64) -> bool) -> Found {
    let at = all.iter().position(|(_, time)| is_wanted(*time));
    let before = at.and_then(|at| at.checked_sub(1)).and_then(|before| all.get(before));
    (before.copied(), at.and_then(|at| all.get(at)).copied())
}

/// The ends of transactions in a segment: where their records start, and when they were.
fn ends_in(
    archive: &Archive,
    size: SegmentSize,
    segment: &LogSegment,
) -> Result<Vec<(Lsn, i64)>, RecoveryError> {
    let content = get::with_object(archive, segment.file(), |object, bytes| {
        let mut content = Vec::new();
        get::decode(archive, segment.file(), object, bytes, &mut content)?;
        Ok(content)
    })?;
    let content = content.ok_or_else(|| RecoveryError::Gone(segment.name.to_string()))?;
    Ok(events_of(&content, segment.name, size).ends)
}

/// What matters to recovery in a segment's content, or in its beginning.
fn events_of(content: &[u8], name: SegmentName, size: SegmentSize) -> Events {
    let mut events = Events::default();
    if let (Ok(info), Some(start)) = (StreamInfo::of_segment(content), name.start(size)) {
        let info = StreamInfo { timeline: name.timeline, ..info };
        // What the log has behind damage, recovery does not reach either.
        let _ = Decoder::new(info, start, start.plus(size.bytes())).push(content, &mut events);
    }
    events
}

/// Where records start that matter to recovery, and their times in microseconds since 1970-01-01 00:00:00 UTC.
#[derive(Default)]
struct Events {
    /// The ends of transactions.
    ends: Vec<(Lsn, i64)>,
    checkpoints: Vec<(Lsn, i64)>,
}

impl Visitor for Events {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if matches!(record.header.rmid, rmid::XACT | rmid::XLOG) {
            match payload::parse(record) {
                Ok(Payload::Commit(end) | Payload::Abort(end)) => {
                    self.ends.push((record.lsn, end.time.unix_micros()));
                }
                Ok(Payload::Checkpoint(checkpoint)) => {
                    self.checkpoints.push((record.lsn, checkpoint.time.saturating_mul(1_000_000)));
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}

impl Recovery {
    /// The files that recovery asks for: the histories of its timelines, and the segments.
    pub fn files(&self) -> Vec<ArchivedFile> {
        let timelines =
            self.log.stretches.iter().map(|stretch| stretch.timeline).filter(|&timeline| timeline > 1);
        let segments = self.log.segments.iter().map(LogSegment::file);
        let begun = self.begun.map(ArchivedFile::Segment);
        timelines.map(ArchivedFile::History).chain(segments).chain(begun).collect()
    }
}
