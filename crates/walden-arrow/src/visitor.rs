//! Visits the records of one segment: collects rows, and accounts for all bytes.
//!
//! The accounting is the same as in `walden-explain`: a record belongs to the segment in which it starts, and
//! a page header to the segment that contains it. The rest of a record that started earlier counts only in
//! the first segment of the WAL.

use std::ops::ControlFlow;

use walden_explain::tally::{Bucket, Buckets};
use walden_format::geometry::Geometry;
use walden_format::lsn::Lsn;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xact;
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::{Kind, KindTable, rmid};
use walden_format::simple::SimpleRecord;
use walden_format::stream::Visitor;
use walden_source::inventory::Run;

use crate::columns::NO_TIME;

/// Receives each record.
pub(crate) trait Observer: Send {
    /// Receives a record that counts. `time` is the time of the last transaction end, up to and including
    /// this record.
    fn record(&mut self, record: &Record<'_>, kind: Kind, time: i64) -> ControlFlow<()>;

    /// Same as [`Observer::record`].
    fn simple(&mut self, record: &SimpleRecord<'_>, kind: Kind, time: i64) -> ControlFlow<()>;
}

/// Tables of sums have no rows derived from records.
impl Observer for () {
    fn record(&mut self, _: &Record<'_>, _: Kind, _: i64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[inline(always)]
    fn simple(&mut self, _: &SimpleRecord<'_>, _: Kind, _: i64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Sums over the records that start in a segment, and the bytes around them.
#[derive(Clone, Debug)]
pub(crate) struct SegmentSums {
    /// Start of the first record that counts, or of the padding, abandoned record or tail of the WAL with
    /// which a range starts.
    pub first: Option<Lsn>,
    /// Start LSN of the record before the first record that counts, by the `xl_prev` of the latter.
    pub previous: Option<Lsn>,
    /// Bytes of page headers before `first`.
    pub lead_headers: u64,
    /// Width of the page header immediately before `first` that belongs to a range which starts here.
    pub first_header: u64,
    /// Bytes of a record that started in an earlier segment.
    pub lead_continuation: u64,
    pub framing: Buckets,
    pub records: u64,
    pub record_bytes: u64,
    pub image_bytes: u64,
    pub commits: u64,
    pub aborts: u64,
    /// Times of the first and the last transaction end; [`NO_TIME`] without one.
    pub times: (i64, i64),
}

impl Default for SegmentSums {
    fn default() -> SegmentSums {
        SegmentSums {
            first: None,
            previous: None,
            lead_headers: 0,
            first_header: 0,
            lead_continuation: 0,
            framing: Buckets::default(),
            records: 0,
            record_bytes: 0,
            image_bytes: 0,
            commits: 0,
            aborts: 0,
            times: (NO_TIME, NO_TIME),
        }
    }
}

/// The visitor of one segment.
pub(crate) struct SegmentVisitor<O> {
    kinds: &'static KindTable,
    geometry: Geometry,
    segment_end: Lsn,
    from: Option<Lsn>,
    /// Start and width of the last page header before the first record that counts.
    lead_header: Option<(Lsn, u64)>,
    /// Time of the last transaction end so far, including ends before the first record that counts;
    /// [`NO_TIME`] if unknown.
    pub now: i64,
    pub sums: SegmentSums,
    pub observer: O,
}

impl<O: Observer> SegmentVisitor<O> {
    /// Creates a visitor for a segment of a run; only records from `from` count. `now` is the time of the
    /// last transaction end before the segment, if it is known.
    pub fn new(run: &Run, segment: usize, from: Option<Lsn>, now: i64, observer: O) -> SegmentVisitor<O> {
        SegmentVisitor {
            kinds: KindTable::for_version(run.version),
            geometry: run.geometry(),
            segment_end: run.segments[segment].start.plus(run.segment_size.bytes()),
            from,
            lead_header: None,
            now,
            sums: SegmentSums::default(),
            observer,
        }
    }

    /// Starts to count at `first`.
    #[cold]
    fn begin_range(&mut self, first: Lsn) {
        self.sums.first_header = self.header_before(first);
        self.sums.first = Some(first);
    }

    /// Starts a range without a record at the bytes after the last record, unless these bytes start before
    /// the range: then the preceding range contains all of these bytes.
    pub fn begin_with_tail(&mut self, tail: Lsn) {
        if self.sums.first.is_none() && self.is_from(tail) {
            self.begin_range(tail);
        }
    }

    /// Returns the width of the page header immediately before the first position of a range, if the range
    /// includes the header; otherwise 0.
    ///
    /// As in `walden-explain`: no earlier record continues after this header, so a range that ends at the
    /// record does not include the header.
    fn header_before(&self, first: Lsn) -> u64 {
        let Some((start, width)) = self.lead_header else { return 0 };
        if self.is_from(start) && start.plus(width) == first { width } else { 0 }
    }

    /// Whether a position is at or after the start of the range.
    fn is_from(&self, lsn: Lsn) -> bool {
        self.from.is_some_and(|from| from <= lsn)
    }

    fn ended(&mut self, committed: bool, time: Timestamp) {
        self.now = time.unix_micros();
        if self.sums.first.is_none() {
            // Before the range: the time applies to records in it, but no sum counts the end.
            return;
        }
        let (first, _) = self.sums.times;
        self.sums.times = (if first == NO_TIME { self.now } else { first }, self.now);
        *if committed { &mut self.sums.commits } else { &mut self.sums.aborts } += 1;
    }

    #[inline(never)]
    fn maybe_ended(&mut self, record: &Record<'_>) {
        match payload::parse(record) {
            Ok(Payload::Commit(end)) => self.ended(true, end.time),
            Ok(Payload::Abort(end)) => self.ended(false, end.time),
            // Other transaction records, and malformed records, end no transaction.
            Ok(_) | Err(_) => {}
        }
    }
}

impl<O: Observer> Visitor for SegmentVisitor<O> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.sums.first.is_none() {
            if self.from.is_some_and(|from| record.lsn < from) {
                if record.header.rmid == rmid::XACT {
                    self.maybe_ended(record);
                }
                return ControlFlow::Continue(());
            }
            self.begin_range(record.lsn);
            self.sums.previous = Some(record.header.prev);
        }
        self.sums.records += 1;
        self.sums.record_bytes += u64::from(record.header.total_len) + u64::from(record.alignment);
        self.sums.image_bytes += u64::from(record.image_bytes());
        if record.header.rmid == rmid::XACT {
            self.maybe_ended(record);
        }
        let kind = self.kinds.kind(record.header.rmid, record.header.info);
        self.observer.record(record, kind, self.now)
    }

    #[inline(always)]
    fn simple_record(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
        if self.sums.first.is_none() {
            return record.as_record(|record| self.record(record));
        }
        let header = record.header();
        self.sums.records += 1;
        self.sums.record_bytes += u64::from(record.aligned_len());
        if header.rmid == rmid::XACT {
            match xact::plain_simple_end(&record) {
                Some((committed, time)) => self.ended(committed, time),
                None => record.as_record(|record| self.maybe_ended(record)),
            }
        }
        let kind = self.kinds.kind(header.rmid, header.info);
        self.observer.simple(&record, kind, self.now)
    }

    fn page_header(&mut self, lsn: Lsn, width: usize) {
        let is_lead = self.sums.first.is_none();
        if is_lead {
            self.lead_header = Some((lsn, width as u64));
        }
        if lsn >= self.segment_end {
            return;
        }
        match is_lead {
            true => self.sums.lead_headers += width as u64,
            false => self.sums.framing.add(Bucket::PageHeader, width as u64),
        }
    }

    fn continuation(&mut self, _lsn: Lsn, bytes: u64) {
        self.sums.lead_continuation += bytes;
    }

    fn abandoned(&mut self, lsn: Lsn, bytes: u64) {
        if self.sums.first.is_none() && self.is_from(lsn) {
            self.begin_range(lsn);
        }
        if self.sums.first.is_some() || self.from.is_none() {
            self.sums.framing.add(Bucket::Abandoned, bytes);
        }
    }

    fn padding(&mut self, lsn: Lsn, bytes: u64) {
        if self.sums.first.is_none() {
            // A range that ends within the padding includes the whole page in which it ends, so the next
            // range starts with a page. Since version 11, PostgreSQL writes these pages without headers
            // (`CopyXLogRecordToWAL` in `xlog.c`).
            let is_page = self.geometry.offset_in_page(lsn) == 0 && self.is_from(lsn);
            if !is_page && self.header_before(lsn) == 0 {
                return;
            }
            self.begin_range(lsn);
        }
        self.sums.framing.add(Bucket::SwitchPadding, bytes);
    }
}

/// Finds the last transaction end.
pub(crate) struct LastEnd;

impl Observer for LastEnd {
    fn record(&mut self, _: &Record<'_>, _: Kind, _: i64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[inline(always)]
    fn simple(&mut self, _: &SimpleRecord<'_>, _: Kind, _: i64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Finds the first transaction end.
pub(crate) struct FirstEnd;

impl Observer for FirstEnd {
    fn record(&mut self, _: &Record<'_>, _: Kind, time: i64) -> ControlFlow<()> {
        if time == NO_TIME { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    #[inline(always)]
    fn simple(&mut self, _: &SimpleRecord<'_>, _: Kind, time: i64) -> ControlFlow<()> {
        if time == NO_TIME { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}
