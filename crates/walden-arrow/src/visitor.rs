//! Visits the records of one segment: rows, and the accounting of all bytes.
//!
//! The accounting is that of `walden-explain`: a record belongs to the segment that it starts in, headers of pages to the segment
//! that they are in, and the rest of a record that began before belongs to nobody but the first segment of a log.

use std::ops::ControlFlow;

use walden_explain::tally::{Bucket, Buckets};
use walden_format::lsn::Lsn;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xact;
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::{Kind, KindTable, rmid};
use walden_format::simple::SimpleRecord;
use walden_format::stream::Visitor;

use crate::columns::NO_TIME;

/// Who is told of each record.
pub(crate) trait Observer: Send {
    /// A record that counts, after `time`, the last transaction end's, was set to its own if it is one.
    fn record(&mut self, record: &Record<'_>, kind: Kind, time: i64) -> ControlFlow<()>;

    /// As [`Observer::record`].
    fn simple(&mut self, record: &SimpleRecord<'_>, kind: Kind, time: i64) -> ControlFlow<()>;
}

/// Tables of sums have no rows that records are made of.
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
    /// Start of the first record that counts.
    pub first: Option<Lsn>,
    /// Bytes of page headers before it.
    pub lead_headers: u64,
    /// Bytes of a record that began in an earlier segment.
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
            lead_headers: 0,
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
    segment_end: Lsn,
    from: Option<Lsn>,
    now: i64,
    pub sums: SegmentSums,
    pub observer: O,
}

impl<O: Observer> SegmentVisitor<O> {
    /// For the segment up to `segment_end`; only records from `from` on count. `now` is the time of the last transaction end
    /// before the segment, if it is known.
    pub fn new(
        kinds: &'static KindTable,
        segment_end: Lsn,
        from: Option<Lsn>,
        now: i64,
        observer: O,
    ) -> SegmentVisitor<O> {
        SegmentVisitor { kinds, segment_end, from, now, sums: SegmentSums::default(), observer }
    }

    fn ended(&mut self, committed: bool, time: Timestamp) {
        self.now = time.unix_micros();
        let (first, _) = self.sums.times;
        self.sums.times = (if first == NO_TIME { self.now } else { first }, self.now);
        *if committed { &mut self.sums.commits } else { &mut self.sums.aborts } += 1;
    }

    #[inline(never)]
    fn maybe_ended(&mut self, record: &Record<'_>) {
        match payload::parse(record) {
            Ok(Payload::Commit(end)) => self.ended(true, end.time),
            Ok(Payload::Abort(end)) => self.ended(false, end.time),
            // Other records of transactions, and malformed ones, end none.
            Ok(_) | Err(_) => {}
        }
    }
}

impl<O: Observer> Visitor for SegmentVisitor<O> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.sums.first.is_none() {
            if self.from.is_some_and(|from| record.lsn < from) {
                return ControlFlow::Continue(());
            }
            self.sums.first = Some(record.lsn);
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
        if lsn >= self.segment_end {
            return;
        }
        match self.sums.first {
            None => self.sums.lead_headers += width as u64,
            Some(_) => self.sums.framing.add(Bucket::PageHeader, width as u64),
        }
    }

    fn continuation(&mut self, _lsn: Lsn, bytes: u64) {
        self.sums.lead_continuation += bytes;
    }

    fn abandoned(&mut self, _lsn: Lsn, bytes: u64) {
        if self.sums.first.is_some() || self.from.is_none() {
            self.sums.framing.add(Bucket::Abandoned, bytes);
        }
    }

    fn padding(&mut self, _lsn: Lsn, bytes: u64) {
        if self.sums.first.is_some() {
            self.sums.framing.add(Bucket::SwitchPadding, bytes);
        }
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
