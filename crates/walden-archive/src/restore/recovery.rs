//! Determines the files that recovery to a moment needs, and whether it can reach the moment.
//!
//! Recovery to a time stops before the first later commit or abort (`recoveryStopsBefore` in
//! `xlogrecovery.c`). If the WAL contains none, PostgreSQL refuses to end recovery, so the moment is
//! unreachable even though the end of the WAL is reachable.

use std::ops::ControlFlow;

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_recover::{DropEvents, EarlyDrop};
use walden_source::workers;

use crate::archive::{Archive, ArchiveError};
use crate::inventory::gaps::{self, HISTORY_HINT};
use crate::inventory::parts;
use crate::inventory::verified;
use crate::objects::contents::{Contents, MinimalWal};
use crate::objects::name::{ArchivedFile, Object};
use crate::restore::base::BackupStart;
use crate::restore::diverging::{DIVERGING_HINT, Diverging, find_diverging};
use crate::restore::get;
use crate::restore::log::{Ends, Log, LogSegment};

/// Where recovery starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecoveryStart {
    /// Starts at a segment.
    Segment(SegmentName),
    /// Starts from a base backup.
    Backup {
        /// LSN at which replay starts.
        start: Lsn,
        /// Timeline of the start, if known.
        timeline: Option<Timeline>,
        /// LSN that replay must reach to make the files consistent, if known.
        end: Option<Lsn>,
        /// Timeline of this LSN, if known.
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
    /// Returns the number of the segment in which recovery starts.
    fn number(self, size: SegmentSize) -> u64 {
        match self {
            RecoveryStart::Segment(name) => name.number(size).unwrap_or(u64::MAX),
            RecoveryStart::Backup { start, .. } => size.segment_of(start),
        }
    }
}

/// The WAL that recovery to a moment reads.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Segments from the start to the one in which recovery stops. Empty if recovery starts in an incomplete
    /// segment.
    pub log: Log,
    /// The next segment, if recovery stops in an incomplete one, which the archive contains in parts.
    pub begun: Option<SegmentName>,
    /// The last commit or abort that recovery replays, if there is one after the start.
    pub last: Option<TransactionEnd>,
    /// The commit or abort before which recovery stops.
    pub stop: TransactionEnd,
    /// Databases and tablespaces whose files recovery removes, although it stops before their transactions
    /// end.
    pub early_drops: Vec<EarlyDrop>,
}

/// The end of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TransactionEnd {
    /// The segment that contains its record.
    pub segment: String,
    /// LSN of its record, if it was determined.
    pub lsn: Option<String>,
    /// Time in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
}

/// Reasons for failing to recover to a moment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The start is not on one of the followed timelines, or is after the point where its timeline ended.
    #[error("cannot recover along timeline {followed}: expected {}", other_timeline(*.timeline, *.left_at, .found))]
    OtherTimeline {
        /// The followed timeline.
        followed: Timeline,
        /// Timeline of the start.
        timeline: Timeline,
        /// LSN at which the timeline of the start ended, if recovery follows this timeline.
        left_at: Option<Lsn>,
        /// Description of the start.
        found: String,
    },
    /// A required timeline history is missing. PostgreSQL would end recovery on an earlier timeline.
    #[error(
        "cannot recover: the history {0} is missing in the archive, although its timeline, or a timeline that descends from it, was archived"
    )]
    NoHistory(String),
    /// The first segment is not archived.
    #[error(
        "cannot recover: expected segment {segment}, at which recovery starts, in the archive, found {}",
        .partial.as_ref().map_or_else(|| "none".to_owned(), |partial| format!("{partial}, which recovery does not read"))
    )]
    NoStart {
        /// Name of the segment.
        segment: String,
        /// Name of the `.partial` that exists instead.
        partial: Option<String>,
    },
    /// Two servers wrote the WAL, and no timeline was named.
    #[error("cannot choose a timeline: {0}")]
    Diverging(Diverging),
    /// A segment was removed in the meantime.
    #[error(
        "cannot recover: expected segment {0} in the archive, found it removed since the archive was listed"
    )]
    Gone(String),
    /// WAL before the moment was written with `wal_level = minimal`.
    #[error("cannot recover to {}: {minimal}", time_text(*.moment))]
    MinimalWal {
        /// The requested moment.
        moment: i64,
        /// The first WAL of `wal_level = minimal` before the moment.
        minimal: MinimalWal,
    },
    /// The moment is outside the reachable range.
    #[error("cannot recover to {}: {}", time_text(*.moment), reachable(*.earliest, *.latest, .ends_at))]
    Unreachable {
        /// The requested moment.
        moment: i64,
        /// The first reachable moment.
        earliest: Option<i64>,
        /// The end of the reachable range (exclusive), because no later commit or abort exists.
        latest: Option<i64>,
        /// The end of the WAL.
        ends_at: LogEnd,
    },
}

/// The reason for the end of the WAL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogEnd {
    /// No later segment is archived.
    Nothing,
    /// The named segment is missing.
    Missing(String),
    /// Only the named `.partial` file exists, which recovery does not request.
    Partial(String),
}

walden_format::diagnostics! { RecoveryError {
    Self::Archive(error) => of(error),
    Self::OtherTimeline { .. } => "recovery-other-timeline": "name the timeline with --timeline; walden archive list shows them",
    Self::NoStart { partial: Some(_), .. } => "recovery-no-start": PARTIAL_HINT,
    Self::NoStart { partial: None, .. } => "recovery-no-start": "use a base backup whose WAL is archived; walden archive list shows the archived WAL",
    Self::NoHistory(_) => "recovery-no-history": HISTORY_HINT,
    Self::Diverging(_) => "recovery-diverging": DIVERGING_HINT,
    Self::MinimalWal { .. } => "recovery-minimal-wal": "use a base backup that started after it, or a time before it",
    Self::Gone(_) => "recovery-segment-removed": "try again; walden archive list shows the archived segments",
    Self::Unreachable { ends_at: LogEnd::Partial(_), .. } => "recovery-unreachable": PARTIAL_HINT,
    Self::Unreachable { .. } => "recovery-unreachable": "to reach WAL after the last commit or abort, recover to the end of WAL, without a target time",
} }

/// Remedy for recovering the WAL in a `.partial`.
pub(crate) const PARTIAL_HINT: &str = "recovery reads a .partial file only if it is placed in the server's pg_wal without this ending; walden archive get fetches it";

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
        LogEnd::Partial(partial) => format!(" ({partial} follows, which recovery does not read)"),
    };
    match (earliest, latest) {
        (Some(earliest), Some(latest)) if earliest < latest => format!(
            "expected a time from {} to before {}, the last commit or abort in the WAL{end}",
            time_text(earliest),
            time_text(latest)
        ),
        _ => format!(
            "no time can be reached from this start, because too few transactions end in the WAL{end}"
        ),
    }
}

/// Determines the files for recovery to `moment`, along `timeline` or the newest one. `moment` is in
/// microseconds since 1970-01-01 00:00:00 UTC.
///
/// # Errors
/// The moment is unreachable, or the archive failed.
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
        // The clock may have been set back, so a commit after the moment counts wherever it is.
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
        // Unreachable: one of these contains the record at which recovery stops.
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
                ends.find(index)?.map(|(_, time)| TransactionEnd { segment: name(index), lsn: None, time })
            }
            None => None,
        },
    };
    if let (None, RecoveryStart::Backup { start: position, .. }) = (&last, start)
        && first_checkpoint(&mut ends, begun.as_ref(), position, reached)?.is_some_and(|time| moment < time)
    {
        // A backup contains everything committed before it started, so PostgreSQL would stop at a later state
        // than requested.
        return Err(unreachable(archive, &log, start, moment, missing)?);
    }
    let stop = end(reached, (lsn, time));
    log.segments.truncate(reached + 1);
    if let Some(minimal) = find_minimal_wal(archive, &log, start, lsn)? {
        return Err(RecoveryError::MinimalWal { moment, minimal });
    }
    let in_log = &log.segments[log.segments.len().saturating_sub(2)..];
    let mut decoded = Vec::new();
    for segment in in_log {
        match events_in(archive, log.size, segment) {
            // Reported when the segment itself is read.
            Err(RecoveryError::Archive(error)) if error.is_damage() => {}
            events => decoded.push(events?),
        }
    }
    let events = decoded.iter().chain(begun.as_ref().map(|begun| &begun.events));
    let drops: Vec<&DropEvents> = events.map(|events| &events.drops).collect();
    let early_drops = DropEvents::find_early(&drops, lsn);
    Ok(Recovery { log, begun: begun.map(|begun| begun.name), last, stop, early_drops })
}

/// Number of summaries read concurrently.
const SUMMARY_THREADS: usize = 8;

/// Finds WAL of `wal_level = minimal` between the start of recovery and the LSN at which it stops, according
/// to the summaries and the last `verify`.
fn find_minimal_wal(
    archive: &Archive,
    log: &Log,
    start: RecoveryStart,
    stop: Lsn,
) -> Result<Option<MinimalWal>, ArchiveError> {
    let from = match start {
        RecoveryStart::Backup { start, .. } => start,
        // A backup may start at any LSN of its segment.
        RecoveryStart::Segment(name) => name.start(log.size).unwrap_or_default().plus(log.size.bytes()),
    };
    let mut objects: Vec<(Object, u64)> =
        log.segments.iter().map(|segment| (segment.object, segment.bytes)).collect();
    objects.dedup();
    let read = |&(object, bytes): &(Object, u64)| get::read_contents(archive, object, bytes);
    let mut found = verified::last_readable(archive)?.map(|run| run.minimal_wal).unwrap_or_default();
    for contents in workers::map_in_order(&objects, SUMMARY_THREADS, read) {
        match contents {
            // Reported when the segment itself is read.
            Err(error) if error.is_damage() => {}
            contents => found.extend(contents?.iter().filter_map(Contents::minimal_wal)),
        }
    }
    let is_replayed = |minimal: &MinimalWal| {
        let lsn = minimal.lsn.parse::<Lsn>().ok();
        lsn.is_some_and(|lsn| from <= lsn && lsn < stop)
            && log.segments.iter().any(|segment| segment.name.to_string() == minimal.segment)
    };
    Ok(found.into_iter().find(is_replayed))
}

/// The archived parts of an incomplete segment.
struct Begun {
    name: SegmentName,
    events: Events,
}

/// Returns the segment after the last archived segment, or the segment in which recovery starts if no segment
/// is archived. Returns `None` if the archive has no parts of the returned segment or if an earlier segment
/// is missing.
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

/// Returns the time of the first checkpoint at or after a position, in the segments up to `index` and then in
/// an incomplete segment.
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

/// Finds the WAL for recovery, from the segment in which recovery starts.
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
    let log = Log::find_for_recovery(archive, timeline, start_timeline, number)?;
    check_timelines(&log, start)?;
    let reached = match start {
        RecoveryStart::Backup { end_timeline, .. } => end_timeline.or(start_timeline),
        RecoveryStart::Segment(_) => start_timeline,
    };
    if timeline.is_none()
        && let Some(diverging) = find_diverging(archive, Some(log.timeline()), reached)?
    {
        return Err(RecoveryError::Diverging(diverging));
    }
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

/// Checks that the histories exist by which PostgreSQL chooses the timeline: the history of the requested
/// timeline, or by default the histories of all timelines later than the start's, because PostgreSQL requests
/// one history after another and stops at the first missing history.
///
/// # Errors
/// [`RecoveryError::NoHistory`], and the store's errors.
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

/// Checks that the start, and the position at which the backup is consistent, lie on the followed timelines.
/// PostgreSQL rejects other starts (`InitWalRecovery` in `xlogrecovery.c`) or finds no checkpoint there.
///
/// # Errors
/// The start or that position is on another timeline, or after the end of its timeline.
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

/// Returns an error that describes the reachable range.
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
        (None, Some(last)) => ends.find(last)?.map(|(_, time)| time),
        (None, None) => None,
    };
    let earliest = earliest(archive, log, &mut ends, begun.as_ref(), start)?;
    Ok(RecoveryError::Unreachable { moment, earliest, latest, ends_at: log_end(archive, log, missing)? })
}

/// Returns the first moment that is reachable from a start.
///
/// Recovery must not stop before the backup is consistent, so the last end of a transaction before that point
/// is the first reachable moment. If there is none, all moments since the backup's checkpoint are reachable,
/// because the backup contains everything committed before.
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
            if ends.find(index)?.is_none() {
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
        if let Some((first, _)) = ends.find(index)? {
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
    if let Some(partial) = log.partial_at(archive, last.number + 1)? {
        return Ok(LogEnd::Partial(partial.to_string()));
    }
    let lost = get::find_lost_end(archive, last.name)?;
    Ok(lost.map_or(LogEnd::Nothing, |(missing, _)| LogEnd::Missing(missing.to_string())))
}

type Found = (Option<(Lsn, i64)>, Option<(Lsn, i64)>);

/// Returns the first end of a transaction with a matching time, and the end of a transaction before it.
fn first_end(all: &[(Lsn, i64)], is_wanted: impl Fn(i64) -> bool) -> Found {
    let at = all.iter().position(|(_, time)| is_wanted(*time));
    let before = at.and_then(|at| at.checked_sub(1)).and_then(|before| all.get(before));
    (before.copied(), at.and_then(|at| all.get(at)).copied())
}

/// Returns the LSNs and times of the ends of transactions in a segment, or `None` if the archive does not
/// have it. Reads the whole segment.
pub(crate) fn ends_of(
    archive: &Archive,
    size: SegmentSize,
    segment: SegmentName,
) -> Result<Option<Vec<(Lsn, i64)>>, ArchiveError> {
    let file = ArchivedFile::Segment(segment);
    let content = get::with_object(archive, file, |object, bytes| {
        let mut content = Vec::new();
        get::decode(archive, file, object, bytes, &mut content)?;
        Ok(content)
    })?;
    Ok(content.map(|content| events_of(&content, segment, size).ends))
}

/// Returns the LSNs and times of the ends of transactions in a segment.
fn ends_in(
    archive: &Archive,
    size: SegmentSize,
    segment: &LogSegment,
) -> Result<Vec<(Lsn, i64)>, RecoveryError> {
    Ok(events_in(archive, size, segment)?.ends)
}

fn events_in(archive: &Archive, size: SegmentSize, segment: &LogSegment) -> Result<Events, RecoveryError> {
    let content = get::with_object(archive, segment.file(), |object, bytes| {
        let mut content = Vec::new();
        get::decode(archive, segment.file(), object, bytes, &mut content)?;
        Ok(content)
    })?;
    let content = content.ok_or_else(|| RecoveryError::Gone(segment.name.to_string()))?;
    Ok(events_of(&content, segment.name, size))
}

/// Parses the relevant records in a segment or its first part.
fn events_of(content: &[u8], name: SegmentName, size: SegmentSize) -> Events {
    let mut events = Events::default();
    if let (Ok(info), Some(start)) = (StreamInfo::from_first_page(content), name.start(size)) {
        let info = StreamInfo { timeline: name.timeline, ..info };
        // Recovery does not reach records after damage either.
        let _ = Decoder::new(info, start, start.plus(size.bytes())).push(content, &mut events);
    }
    events
}

/// LSNs of relevant records, with their times in microseconds since 1970-01-01 00:00:00 UTC.
#[derive(Default)]
struct Events {
    /// Ends of transactions.
    ends: Vec<(Lsn, i64)>,
    checkpoints: Vec<(Lsn, i64)>,
    drops: DropEvents,
}

impl Visitor for Events {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let lsn = record.lsn;
        if !matches!(record.header.rmid, rmid::XACT | rmid::XLOG | rmid::DBASE | rmid::TBLSPC) {
            return ControlFlow::Continue(());
        }
        self.drops.note(record);
        match payload::parse(record) {
            Ok(Payload::Commit(end) | Payload::Abort(end)) => self.ends.push((lsn, end.time.unix_micros())),
            Ok(Payload::Checkpoint(checkpoint)) => {
                self.checkpoints.push((lsn, checkpoint.time.saturating_mul(1_000_000)));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Recovery {
    /// Returns the files that recovery requests: the histories of its timelines, and the segments.
    pub fn files(&self) -> Vec<ArchivedFile> {
        let timelines =
            self.log.stretches.iter().map(|stretch| stretch.timeline).filter(|&timeline| timeline > 1);
        let segments = self.log.segments.iter().map(LogSegment::file);
        let begun = self.begun.map(ArchivedFile::Segment);
        timelines.map(ArchivedFile::History).chain(segments).chain(begun).collect()
    }
}
