//! Reads the segments of a run in order, and accounts for all bytes.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use walden_explain::tally::{Bucket, Buckets};
use walden_format::lsn::Lsn;
use walden_source::inventory::Run;
use walden_source::scan::{
    Damage, ScanOptions, SegmentEnd, SegmentOutcome, is_begun_before, log_ends_before, scan,
};

use crate::columns::NO_TIME;
use crate::visitor::{FirstEnd, LastEnd, Observer, SegmentSums, SegmentVisitor};

/// Consecutive segments of a run, for one of several readers.
///
/// However a run is divided into parts, the parts together yield each row of the run once: the rest of a
/// record that started in the preceding part belongs to the preceding part, whose reader continues into this
/// part's segments to read it.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The run.
    pub run: &'a Run,
    /// Indexes of segments in the run.
    pub segments: Range<usize>,
}

impl<'a> Part<'a> {
    /// Returns a part with all segments of a run.
    pub fn all(run: &'a Run) -> Part<'a> {
        Part { run, segments: 0..run.segments.len() }
    }

    /// Returns the part of a run whose records can start between two positions, `to` excluded.
    pub fn between(run: &'a Run, from: Option<Lsn>, to: Option<Lsn>) -> Part<'a> {
        let size = run.segment_size.bytes();
        let starts_before = |lsn: Lsn| run.segments.partition_point(|segment| segment.start < lsn);
        let start = from.map_or(0, |from| run.segments.partition_point(|one| one.start.plus(size) <= from));
        let end = to.map_or(run.segments.len(), starts_before);
        Part { run, segments: start..end.max(start) }
    }

    /// Divides parts into about `count` parts of about the same number of segments.
    pub fn divide(parts: &[Part<'a>], count: usize) -> Vec<Part<'a>> {
        let segments: usize = parts.iter().map(|part| part.segments.len()).sum();
        let each = segments.div_ceil(count.max(1)).max(1);
        let cut = |part: &Part<'a>| {
            let Part { run, segments } = part.clone();
            let ends = segments.clone().step_by(each).map(|start| (start + each).min(segments.end));
            // Do not divide where the next segment is decoded from the preceding one.
            let whole = |end: usize| (end..segments.end).find(|next| !run.segments[*next].needs_previous);
            let mut start = segments.start;
            let mut pieces = Vec::new();
            for end in ends.map(|end| whole(end).unwrap_or(segments.end)) {
                if end > start {
                    pieces.push(Part { run, segments: start..end });
                    start = end;
                }
            }
            pieces
        };
        parts.iter().flat_map(cut).collect()
    }

    /// Returns the units that must be read together: a segment, or the members of a pack from one keyframe to
    /// the next.
    pub(crate) fn units(&self) -> Vec<Part<'a>> {
        let mut units: Vec<Part<'a>> = Vec::new();
        for index in self.segments.clone() {
            match units.last_mut() {
                Some(unit) if self.run.segments[index].needs_previous => unit.segments.end = index + 1,
                _ => units.push(Part { run: self.run, segments: index..index + 1 }),
            }
        }
        units
    }
}

/// The records that count, and how they are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub from: Option<Lsn>,
    pub to: Option<Lsn>,
    pub threads: usize,
    /// Whether segments are read one after the other, each only after all earlier rows were consumed.
    pub in_turn: bool,
    /// The time of the last transaction end before the part, or [`NO_TIME`] if it is not needed; `None` to
    /// search for it.
    pub known_time: Option<i64>,
}

/// A segment that was read.
pub(crate) struct ReadSegment<O> {
    pub index: usize,
    pub sums: SegmentSums,
    /// Bytes outside of records that count.
    pub framing: Buckets,
    pub observer: O,
    /// Time of the last transaction end before the segment.
    pub time_before: i64,
    /// Time of the last transaction end in or before the segment.
    pub time_after: i64,
}

/// Reads a part. `make` creates an observer for each segment, and `consume` receives the observers in WAL
/// order. Returns the damage at which reading ended, if any.
pub(crate) fn read_segments<O: Observer>(
    part: &Part<'_>,
    bounds: Bounds,
    make: impl Fn() -> O + Sync,
    mut consume: impl FnMut(ReadSegment<O>) -> ControlFlow<()>,
) -> Option<Arc<Damage>> {
    let Part { run, segments } = part;
    if segments.is_empty() {
        return None;
    }
    let size = run.segment_size.bytes();
    let part_start = run.segments[segments.start].start;
    let is_last_part = segments.end == run.segments.len();
    let part_end = if is_last_part { None } else { Some(run.segments[segments.end].start) };
    // A bound before the run has no effect on it.
    let from = bounds.from.filter(|from| *from > run.start());
    let scan_from = from.unwrap_or(part_start).max(part_start);
    let scan_to = [bounds.to, part_end].into_iter().flatten().min();
    // Segments of the part that end before the range are not read: the time before the range is the time
    // before the first segment that is read.
    let first_read = run.segments.partition_point(|segment| segment.start.plus(size) <= scan_from);
    if first_read >= segments.end {
        return None;
    }
    let begins_before = segments.start > 0 && from.is_none_or(|from| from < part_start);
    let mut start = match from {
        Some(from) if from >= part_start => Start::AtRecord,
        Some(from) => Start::InEarlierPart { from },
        None if segments.start == 0 || is_begun_before(run, segments.start) => Start::AtSegment,
        None => Start::Begun,
    };
    let known_time = AtomicI64::new(bounds.known_time.unwrap_or_else(|| time_before(run, first_read)));
    let make_visitor = |index: usize| {
        let now = if bounds.in_turn { known_time.load(Ordering::Relaxed) } else { NO_TIME };
        SegmentVisitor::new(run, index, from, now, make())
    };
    let options = ScanOptions::new(bounds.threads).from(Some(scan_from)).to(scan_to);
    let mut damage = None;
    scan(run, options, make_visitor, |outcome| {
        let SegmentOutcome {
            index,
            mut visitor,
            start: segment_start,
            position,
            end,
            is_behind_continuation,
            ..
        } = outcome;
        let is_first = index == segments.start && begins_before;
        if is_first && visitor.sums.first.is_none() && log_ends_before(run, index) {
            // An earlier part contains the end of the WAL.
            return ControlFlow::Break(());
        }
        if let SegmentEnd::EndOfLog(tail) = &end
            && tail.bytes() > 0
            && is_behind_continuation
        {
            visitor.begin_with_tail(position);
        }
        let SegmentVisitor { sums, observer, now, .. } = visitor;
        let mut framing = sums.framing;
        start.add_lead(run, index, &sums, &mut framing);
        let segment_end = segment_start.plus(size);
        if start.has_begun()
            && let Some(to) = bounds.to
            && (to <= segment_end || index + 1 == segments.end)
        {
            // The last record may continue in segments that are otherwise not read.
            let unread = to.0.checked_next_multiple_of(size).map_or(Lsn(u64::MAX), Lsn).max(segment_end);
            if position > unread {
                framing.add(Bucket::PageHeader, run.geometry().header_bytes_between(unread, position));
            }
        }
        match end {
            SegmentEnd::EndOfLog(tail) if start.has_begun() => {
                framing.add(Bucket::CutRecord, tail.cut_record);
                framing.add(Bucket::ZeroTail, tail.zero);
                framing.add(Bucket::RecycledTail, tail.recycled);
                framing.add(Bucket::TornTail, tail.torn);
            }
            SegmentEnd::Damaged(found) => damage = Some(Arc::new(found)),
            SegmentEnd::Complete | SegmentEnd::Limit | SegmentEnd::EndOfLog(_) => {}
        }
        let time_before = known_time.load(Ordering::Relaxed);
        let time_after = if now == NO_TIME { time_before } else { now };
        known_time.store(time_after, Ordering::Relaxed);
        consume(ReadSegment { index, sums, framing, observer, time_before, time_after })
    });
    damage
}

/// How the bytes before a segment's first record count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// The WAL starts with the segment, or in an earlier record that continues: all bytes count.
    AtSegment,
    /// The range starts at a record, or without one: of earlier bytes, only a page header immediately before
    /// the range's first record counts, if the range includes the header.
    AtRecord,
    /// The range starts in an earlier part: it has started, unless the last record in that part started
    /// before `from`.
    InEarlierPart { from: Lsn },
    /// The range has started: the continuation was counted before, the page headers were not.
    Begun,
}

impl Start {
    /// Whether bytes count even if no record starts there.
    fn has_begun(self) -> bool {
        matches!(self, Start::AtSegment | Start::Begun)
    }

    fn add_lead(&mut self, run: &Run, segment: usize, sums: &SegmentSums, framing: &mut Buckets) {
        if let Start::InEarlierPart { from } = *self {
            let has_begun = match sums.previous {
                Some(previous) => previous >= from,
                None => has_begun_before(run, segment, from),
            };
            *self = if has_begun { Start::Begun } else { Start::AtRecord };
        }
        match *self {
            Start::AtSegment => {
                framing.add(Bucket::PageHeader, sums.lead_headers);
                framing.add(Bucket::BegunBefore, sums.lead_continuation);
                if sums.first.is_none() {
                    return;
                }
            }
            // The range does not start before the first record.
            Start::AtRecord if sums.first.is_none() => return,
            Start::AtRecord => framing.add(Bucket::PageHeader, sums.first_header),
            Start::InEarlierPart { .. } | Start::Begun => framing.add(Bucket::PageHeader, sums.lead_headers),
        }
        *self = Start::Begun;
    }
}

/// Whether a range that starts at `from` has started before a segment without a record whose `xl_prev` shows
/// it.
fn has_begun_before(run: &Run, segment: usize, from: Lsn) -> bool {
    let size = run.segment_size.bytes();
    let mut earlier = (0..segment).rev().take_while(|index| run.segments[*index].start.plus(size) > from);
    earlier.any(|index| {
        sums_of(run, index, || SegmentVisitor::new(run, index, Some(from), NO_TIME, ())).first.is_some()
    })
}

/// Returns the time at which the last transaction ended before a segment. Reads segments of the same run.
fn time_before(run: &Run, segment: usize) -> i64 {
    for index in (0..segment).rev() {
        let sums = sums_of(run, index, || SegmentVisitor::new(run, index, None, NO_TIME, LastEnd));
        let (_, time) = sums.times;
        if time != NO_TIME {
            return time;
        }
    }
    NO_TIME
}

/// Returns the time of the first transaction end in a segment; `None` without one.
pub(crate) fn first_time(run: &Run, segment: usize) -> Option<i64> {
    let sums = sums_of(run, segment, || SegmentVisitor::new(run, segment, None, NO_TIME, FirstEnd));
    let (time, _) = sums.times;
    (time != NO_TIME).then_some(time)
}

/// Returns the sums of a segment that is read separately.
fn sums_of<O: Observer>(run: &Run, index: usize, make: impl Fn() -> SegmentVisitor<O> + Sync) -> SegmentSums {
    let start = run.segments[index].start;
    let end = start.plus(run.segment_size.bytes());
    let options = ScanOptions::new(1).from(Some(start)).to(Some(end));
    let mut sums = SegmentSums::default();
    scan(
        run,
        options,
        |_| make(),
        |outcome| {
            sums = outcome.visitor.sums;
            ControlFlow::Continue(())
        },
    );
    sums
}
