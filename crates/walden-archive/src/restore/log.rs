//! Finds the archived segments along a timeline and its ancestors, as recovery reads them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::clock::Clock;
use walden_source::timelines::{Stretch, timeline_of};

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::inventory::gaps::{self, Acknowledgement, Gap};
use crate::inventory::snapshot::Snapshot;
use crate::objects::contents::{Checkpoint, Contents};
use crate::objects::name::{ArchivedFile, Object, WAL, log_prefix, timeline_prefix};
use crate::restore::get;

/// A segment and the object that contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSegment {
    /// The segment.
    pub name: SegmentName,
    /// Segment number, which does not depend on the timeline.
    pub number: u64,
    /// Whether this is the incomplete last segment (`.partial`) of a timeline that another timeline
    /// continues.
    pub is_partial: bool,
    /// The object.
    pub object: Object,
    /// Stored size of the object in bytes.
    pub bytes: u64,
}

impl LogSegment {
    /// Returns the file that PostgreSQL archived.
    pub fn file(&self) -> ArchivedFile {
        match self.is_partial {
            true => ArchivedFile::Partial(self.name),
            false => ArchivedFile::Segment(self.name),
        }
    }
}

/// The WAL along a timeline and its ancestors.
#[derive(Clone, Debug)]
pub struct Log {
    /// Segment size.
    pub size: SegmentSize,
    /// The timelines in WAL order. Never empty.
    pub stretches: Vec<Stretch>,
    /// The archived segments in WAL order.
    pub segments: Vec<LogSegment>,
}

/// Maximum number of folders, each for 4 GB of WAL, that are listed separately instead of listing the entire
/// timeline.
const MAX_LISTED_FOLDERS: u64 = 64;

impl Log {
    /// Finds the segments with numbers in `range` along `timeline`, or by default along the newest timeline
    /// that has segments.
    ///
    /// The result is empty if the archive has none of these segments. If a timeline's history is not
    /// archived, its ancestors are unknown, and the result starts with its own first segment.
    ///
    /// # Errors
    /// Errors of the store, and unreadable histories.
    pub fn find(
        archive: &Archive,
        timeline: Option<Timeline>,
        range: RangeInclusive<u64>,
    ) -> Result<Log, ArchiveError> {
        let histories = archive.histories()?;
        let timeline = match timeline {
            Some(timeline) => timeline,
            None => newest_timeline(archive, &histories)?,
        };
        Log::along(archive, timeline, histories.get(&timeline), range)
    }

    /// Finds the segments that recovery requests, starting with number `first`, along `timeline`. By default,
    /// it follows the timeline that PostgreSQL considers the latest, given the timeline on which recovery
    /// starts.
    ///
    /// The result contains no `.partial`. PostgreSQL archives the last segment of an abandoned timeline under
    /// this name so that recovery does not read it (`CleanupAfterArchiveRecovery` in `xlog.c`).
    ///
    /// # Errors
    /// The errors of [`Log::find`].
    pub fn find_for_recovery(
        archive: &Archive,
        timeline: Option<Timeline>,
        start: Option<Timeline>,
        first: u64,
    ) -> Result<Log, ArchiveError> {
        let histories = archive.histories()?;
        let latest = || match (start, histories.keys().next_back()) {
            (Some(start), _) => Ok(latest_timeline(start, &histories)),
            (None, Some(&newest)) => Ok(newest),
            (None, None) => newest_timeline(archive, &histories),
        };
        let timeline = timeline.map_or_else(latest, Ok)?;
        let mut log = Log::along(archive, timeline, histories.get(&timeline), first..=u64::MAX)?;
        log.segments.retain(|segment| !segment.is_partial);
        Ok(log)
    }

    /// Finds the segments with numbers in `range` along a timeline with this history, if it is known.
    fn along(
        archive: &Archive,
        timeline: Timeline,
        history: Option<&History>,
        range: RangeInclusive<u64>,
    ) -> Result<Log, ArchiveError> {
        let size = archive.segment_size()?;
        let stretches = stretches(timeline, history);
        let mut found = BTreeMap::new();
        for stretch in &stretches {
            let last = stretch.end.map_or(u64::MAX, |end| size.segment_of(end));
            let range = *range.start()..=last.min(*range.end());
            list_segments(archive, stretch.timeline, range, size, &mut found)?;
        }
        let follows = |segment: &LogSegment| {
            let is_last = segment.name.timeline == timeline;
            timeline_of(&stretches, segment.number, size) == Some(segment.name.timeline)
                && (is_last || !segment.is_partial)
                && range.contains(&segment.number)
        };
        let mut segments: Vec<LogSegment> = found.into_values().filter(follows).collect();
        segments.sort_by_key(|segment| (segment.number, segment.is_partial));
        segments.dedup_by_key(|segment| segment.number);
        Ok(Log { size, stretches, segments })
    }

    /// Finds the segments of one timeline, without segments of its ancestors.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn find_single_timeline(
        archive: &Archive,
        timeline: Timeline,
        range: RangeInclusive<u64>,
    ) -> Result<Log, ArchiveError> {
        let size = archive.segment_size()?;
        let mut found = BTreeMap::new();
        list_segments(archive, timeline, range, size, &mut found)?;
        Ok(Log { size, stretches: stretches(timeline, None), segments: in_order(found) })
    }

    /// Returns the complete segments from a number on that are in objects of one timeline.
    pub(crate) fn complete_segments(
        objects: &BTreeMap<Object, u64>,
        first: u64,
        size: SegmentSize,
    ) -> Vec<LogSegment> {
        let mut found = BTreeMap::new();
        let objects = objects.iter().map(|(object, bytes)| (*object, *bytes));
        add_segments(objects, first..=u64::MAX, size, &mut found);
        found.retain(|(_, is_partial), _| !*is_partial);
        in_order(found)
    }

    /// Returns the timeline on which this WAL has the segment with a number.
    pub fn timeline_of(&self, number: u64) -> Timeline {
        timeline_of(&self.stretches, number, self.size).unwrap_or(self.timeline())
    }

    /// Returns the last timeline.
    pub fn timeline(&self) -> Timeline {
        self.stretches.last().map_or(1, |stretch| stretch.timeline)
    }

    /// Returns the missing segments between the first and the last, split at the boundaries of acknowledged
    /// ranges.
    pub fn gaps(&self, acknowledged: &[Acknowledgement]) -> Vec<Gap> {
        let numbers =
            self.segments.windows(2).map(|pair| (pair[0].number + 1, pair[1].number.saturating_sub(1)));
        numbers.flat_map(|(first, last)| self.missing(first..=last, acknowledged)).collect()
    }

    /// Returns the segments of a range as gaps, by timeline, split at the boundaries of acknowledged ranges.
    pub fn missing(&self, range: RangeInclusive<u64>, acknowledged: &[Acknowledgement]) -> Vec<Gap> {
        let (mut first, last) = (*range.start(), *range.end());
        let mut missing = Vec::new();
        for stretch in &self.stretches {
            // The segment of a timeline switch is read from the later timeline.
            let end = stretch
                .end
                .map_or(last.saturating_add(1), |end| self.size.segment_of(end).min(last.saturating_add(1)));
            if first < end {
                let name = |number| SegmentName::new(stretch.timeline, number, self.size);
                missing.extend(gaps::divide((name(first), name(end - 1)), self.size, acknowledged));
                first = end;
            }
        }
        missing
    }

    /// Returns the `.partial` file with a segment number, if this WAL leads to its segment.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn partial_at(&self, archive: &Archive, number: u64) -> Result<Option<ArchivedFile>, ArchiveError> {
        let is_left_in = |stretch: &&Stretch| match stretch.end {
            Some(end) => self.size.segment_of(end) == number,
            None => stretch.timeline == self.timeline_of(number),
        };
        for stretch in self.stretches.iter().rev().filter(is_left_in) {
            let partial = ArchivedFile::Partial(SegmentName::new(stretch.timeline, number, self.size));
            if archive.find(partial)?.is_some() {
                return Ok(Some(partial));
            }
        }
        Ok(None)
    }

    /// Removes the segments after the first gap, and returns the first missing segment.
    pub fn cut_at_gap(&mut self) -> Option<SegmentName> {
        let at = self.segments.windows(2).position(|pair| pair[0].number + 1 != pair[1].number)?;
        let number = self.segments[at].number + 1;
        self.segments.truncate(at + 1);
        Some(SegmentName::new(self.timeline_of(number), number, self.size))
    }

    /// Keeps only the segments with the WAL between two times, in microseconds since 1970-01-01 00:00:00 UTC,
    /// based on when their transactions ended. Finds them by bisection, and keeps segments whose times are
    /// unknown.
    ///
    /// # Errors
    /// Errors of the store, and unreadable summaries.
    pub fn narrow(
        &mut self,
        archive: &Archive,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<(), ArchiveError> {
        let mut ends = Ends::new(archive, &self.segments);
        if (from.is_some() || to.is_some()) && ends.go_back()? {
            return Ok(());
        }
        let first = match from {
            None => 0,
            Some(from) => {
                let reached = ends.first_reaching(from)?;
                // The range starts after the last transaction before `from`, so the segment with that
                // transaction is included.
                ends.last_known(reached)?.unwrap_or(0)
            }
        };
        let last = match to {
            None => self.segments.len(),
            // Includes the next segment, in which the last record may end.
            Some(to) => ends.first_reaching(to)?.saturating_add(2).min(self.segments.len()),
        };
        self.segments.truncate(last);
        self.segments.drain(..first.min(last));
        Ok(())
    }
}

/// Number of segments, in addition to the first segment, whose times are compared before a bisection.
const TIME_SAMPLES: usize = 16;

/// Times of the ends of transactions in segments, read from their summaries on demand.
pub struct Ends<'a> {
    archive: &'a Archive,
    segments: &'a [LogSegment],
    known: BTreeMap<Object, Vec<Times>>,
}

/// The relevant part of a segment's summary.
struct Times {
    /// Segment number according to the first record, if there is one.
    number: Option<u64>,
    /// Times of the first and the last end of a transaction.
    ends: Option<(i64, i64)>,
    /// Whether times go back within the segment.
    goes_back: bool,
    /// LSNs and times of checkpoints.
    checkpoints: Vec<(Lsn, i64)>,
}

impl Times {
    fn from_contents(contents: &Contents) -> Times {
        let first = contents.first_record.as_ref().and_then(|lsn| lsn.parse::<Lsn>().ok());
        let checkpoint = |found: &Checkpoint| Some((found.lsn.parse::<Lsn>().ok()?, found.time));
        Times {
            number: first.and_then(|lsn| lsn.0.checked_div(contents.segment_bytes)),
            ends: contents.ends_of_transactions(),
            goes_back: contents.goes_back(),
            checkpoints: contents.checkpoints.iter().filter_map(checkpoint).collect(),
        }
    }
}

impl<'a> Ends<'a> {
    /// Creates the lookup for segments in WAL order.
    pub fn new(archive: &'a Archive, segments: &'a [LogSegment]) -> Ends<'a> {
        Ends { archive, segments, known: BTreeMap::new() }
    }

    /// Returns the times of the first and last end of a transaction in a segment, or `None` if there is none
    /// or they are unknown.
    ///
    /// # Errors
    /// Errors of the store, and unreadable summaries.
    pub fn find(&mut self, index: usize) -> Result<Option<(i64, i64)>, ArchiveError> {
        Ok(self.times(index)?.and_then(|times| times.ends))
    }

    fn times(&mut self, index: usize) -> Result<Option<&Times>, ArchiveError> {
        let Some(segment) = self.segments.get(index) else { return Ok(None) };
        if !self.known.contains_key(&segment.object) {
            let contents = get::read_contents(self.archive, segment.object, segment.bytes)?;
            self.known.insert(segment.object, contents.iter().map(Times::from_contents).collect());
        }
        Ok(self.known.get(&segment.object).and_then(|all| match all.as_slice() {
            [one] => Some(one),
            several => several.iter().find(|times| times.number == Some(segment.number)),
        }))
    }

    /// Returns whether the times of a few segments go back, because the server's clock was set back. In that
    /// case, a bisection by time finds nothing that is certain.
    ///
    /// # Errors
    /// The errors of [`Ends::find`].
    pub fn go_back(&mut self) -> Result<bool, ArchiveError> {
        let mut clock = Clock::default();
        let last = self.segments.len().saturating_sub(1);
        let mut samples: Vec<usize> = (0..=TIME_SAMPLES).map(|sample| last * sample / TIME_SAMPLES).collect();
        samples.dedup();
        for index in samples {
            let Some(&Times { ends: Some((first, last)), goes_back, .. }) = self.times(index)? else {
                continue;
            };
            if goes_back || clock.would_go_back(first) {
                return Ok(true);
            }
            clock.add(Lsn::INVALID, first);
            clock.add(Lsn::INVALID, last);
        }
        Ok(false)
    }

    /// Returns the time of the first checkpoint at or after a position, in one of the segments up to `index`.
    ///
    /// # Errors
    /// The errors of [`Ends::find`].
    pub fn first_checkpoint(&mut self, position: Lsn, index: usize) -> Result<Option<i64>, ArchiveError> {
        for at in 0..=index.min(self.segments.len().saturating_sub(1)) {
            self.find(at)?;
            let Some(object) = self.segments.get(at).map(|segment| segment.object) else { break };
            let checkpoints = self.known.get(&object).into_iter().flatten().flat_map(|it| &it.checkpoints);
            let is_behind = |(lsn, time): &(Lsn, i64)| (*lsn >= position).then_some(*time);
            if let Some(found) = checkpoints.filter_map(is_behind).min() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds by bisection the first segment in which a transaction ended at or after `time`. Returns the
    /// number of segments if there is none.
    ///
    /// # Errors
    /// The errors of [`Ends::find`].
    pub fn first_reaching(&mut self, time: i64) -> Result<usize, ArchiveError> {
        let (mut low, mut high) = (0, self.segments.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let mut probe = middle;
            let last = loop {
                match self.find(probe)? {
                    Some((_, last)) => break Some(last),
                    None if probe == low => break None,
                    None => probe -= 1,
                }
            };
            match last.is_some_and(|last| last >= time) {
                true => high = probe,
                false => low = middle + 1,
            }
        }
        // If segments without known times lie between the last segment before the time and the first segment
        // after the time, returns the first segment after the time.
        while low < self.segments.len() && self.find(low)?.is_none_or(|(_, last)| last < time) {
            low += 1;
        }
        Ok(low)
    }

    /// Finds by a linear search the first segment whose last transaction ended after `time`.
    ///
    /// # Errors
    /// The errors of [`Ends::find`].
    pub fn first_after(&mut self, time: i64) -> Result<Option<usize>, ArchiveError> {
        for index in 0..self.segments.len() {
            if self.find(index)?.is_some_and(|(_, last)| last > time) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Returns the last segment before `index` in which a transaction ended.
    ///
    /// # Errors
    /// The errors of [`Ends::find`].
    pub fn last_known(&mut self, index: usize) -> Result<Option<usize>, ArchiveError> {
        for before in (0..index).rev() {
            if self.find(before)?.is_some() {
                return Ok(Some(before));
            }
        }
        Ok(None)
    }
}

/// Returns a timeline's ancestors and the timeline itself, each with the LSN at which it ends.
pub fn stretches(timeline: Timeline, history: Option<&History>) -> Vec<Stretch> {
    let ancestors = history.into_iter().flat_map(|history| &history.ancestors);
    ancestors
        .map(|ancestor| Stretch { timeline: ancestor.timeline, end: Some(ancestor.end) })
        .chain([Stretch { timeline, end: None }])
        .collect()
}

/// Returns the timeline that PostgreSQL considers the latest: the last timeline with an unbroken sequence of
/// histories, whether or not it has segments (`findNewestTimeLine` in `timeline.c`).
pub(crate) fn latest_timeline(start: Timeline, histories: &BTreeMap<Timeline, History>) -> Timeline {
    let has_history = |timeline: &Timeline| histories.contains_key(timeline);
    (start.saturating_add(1)..).take_while(has_history).last().unwrap_or(start)
}

/// Returns the newest timeline that has segments, or 1 if there are none.
fn newest_timeline(
    archive: &Archive,
    histories: &BTreeMap<Timeline, History>,
) -> Result<Timeline, ArchiveError> {
    for &timeline in histories.keys().rev() {
        let listed = Snapshot::take(archive.store(), &[timeline_prefix(timeline)])?;
        if !listed.objects.is_empty() {
            return Ok(timeline);
        }
    }
    let listed = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    Ok(listed.objects.keys().map(|object| object.timeline()).max().unwrap_or(1))
}

fn in_order(found: BTreeMap<(SegmentName, bool), LogSegment>) -> Vec<LogSegment> {
    let mut segments: Vec<LogSegment> = found.into_values().collect();
    segments.sort_by_key(|segment| (segment.number, segment.is_partial));
    segments
}

/// Finds the segments of a timeline with numbers in a range. A segment's own object takes precedence over a
/// pack that also contains it.
fn list_segments(
    archive: &Archive,
    timeline: Timeline,
    range: RangeInclusive<u64>,
    size: SegmentSize,
    found: &mut BTreeMap<(SegmentName, bool), LogSegment>,
) -> Result<(), ArchiveError> {
    if range.is_empty() {
        return Ok(());
    }
    let (first, last) = [range.start(), range.end()].map(|number| number / segments_per_log(size)).into();
    let folders: Vec<String> = match last - first < MAX_LISTED_FOLDERS {
        true => (first..=last)
            .map(|log| log_prefix(SegmentName::new(timeline, log * segments_per_log(size), size)))
            .collect(),
        false => vec![timeline_prefix(timeline)],
    };
    add_segments(Snapshot::take(archive.store(), &folders)?.objects, range, size, found);
    Ok(())
}

/// Adds the segments in objects, as [`list_segments`] does.
fn add_segments(
    objects: impl IntoIterator<Item = (Object, u64)>,
    range: RangeInclusive<u64>,
    size: SegmentSize,
    found: &mut BTreeMap<(SegmentName, bool), LogSegment>,
) {
    let mut add = |name: SegmentName, is_partial, object, bytes| {
        let Some(number) = name.number(size).filter(|number| range.contains(number)) else { return };
        let segment = LogSegment { name, number, is_partial, object, bytes };
        match object {
            Object::Pack(_) => drop(found.entry((name, is_partial)).or_insert(segment)),
            Object::File(_) => drop(found.insert((name, is_partial), segment)),
        }
    };
    for (object, bytes) in objects {
        match object {
            Object::File(ArchivedFile::Segment(name)) => add(name, false, object, bytes),
            Object::File(ArchivedFile::Partial(name)) => add(name, true, object, bytes),
            Object::Pack(pack) => {
                // The name of a pack is untrusted, so its length is limited to 4 GB of WAL.
                let last = u64::from(pack.last.segment).min(segments_per_log(size) - 1) as u32;
                for segment in pack.first.segment..=last {
                    add(SegmentName { segment, ..pack.first }, false, object, bytes);
                }
            }
            Object::File(ArchivedFile::History(_) | ArchivedFile::Backup(..)) => {}
        }
    }
}

fn segments_per_log(size: SegmentSize) -> u64 {
    (1 << 32) / size.bytes()
}
