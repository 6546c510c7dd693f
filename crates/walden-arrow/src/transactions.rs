//! The table `transactions`: sums by transaction, including the transaction's subtransactions.

use std::ops::ControlFlow;

use arrow::array::ArrayRef;
use arrow::datatypes::{UInt32Type, UInt64Type};
use rustc_hash::FxHashMap;
use walden_format::lsn::{Lsn, Timeline};
use walden_format::payload::xact::{self, TransactionEnd};
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::info::RMGR_MASK;
use walden_format::rmgr::info::xlog::CHECKPOINT_SHUTDOWN;
use walden_format::rmgr::{Kind, rmid};
use walden_format::simple::SimpleRecord;
use walden_format::transam::{FIRST_NORMAL_XID, RunningTransactions};
use walden_source::inventory::Run;
use walden_source::subtransactions::Subtransactions;

use crate::columns::{NO_TIME, label_rows, numbers, times};
use crate::options::{Emit, ReadError, ReadOptions};
use crate::schema::Table;
use crate::segments::{Bounds, Part, read_segments};
use crate::visitor::Observer;

/// Reads the table.
pub(crate) fn read(runs: &[Run], options: &ReadOptions, emit: &mut Emit<'_>) -> Result<(), ReadError> {
    let mut open = Open::default();
    let mut rows = TransactionRows::default();
    let bounds = Bounds {
        from: options.from,
        to: options.to,
        threads: options.threads,
        in_turn: false,
        // The transaction ends carry their own times.
        known_time: Some(NO_TIME),
    };
    for run in runs {
        let mut outcome = Ok(ControlFlow::Continue(()));
        let damage = read_segments(&Part::all(run), bounds, SegmentTransactions::default, |read| {
            open.add(read.observer, run.timeline, &mut rows);
            if rows.0.len() >= options.batch_rows {
                outcome = flush(std::mem::take(&mut rows), options, emit);
            }
            if matches!(outcome, Ok(ControlFlow::Continue(()))) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if outcome?.is_break() {
            return Ok(());
        }
        if let Some(damage) = damage {
            let _ = flush(rows, options, emit)?;
            return Err(ReadError::Damaged(damage));
        }
        open.timeline = run.timeline;
    }
    open.close_all(&mut rows);
    flush(rows, options, emit).map(|_| ())
}

fn flush(
    rows: TransactionRows,
    options: &ReadOptions,
    emit: &mut Emit<'_>,
) -> Result<ControlFlow<()>, ReadError> {
    let mut rest = rows.0.as_slice();
    while !rest.is_empty() {
        let (these, others) = rest.split_at(rest.len().min(options.batch_rows.max(1)));
        let batch = options.batch(Table::Transactions, these.len(), |name| column(these, name))?;
        if emit(batch).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        rest = others;
    }
    Ok(ControlFlow::Continue(()))
}

/// Sums over the records of a transaction.
#[derive(Clone, Copy, Debug)]
struct Sums {
    first: Lsn,
    last: Lsn,
    records: u64,
    bytes: u64,
    image_bytes: u64,
}

impl Sums {
    fn merge(&mut self, other: &Sums) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.records += other.records;
        self.bytes += other.bytes;
        self.image_bytes += other.image_bytes;
    }
}

/// The transaction data of a segment.
#[derive(Default)]
struct SegmentTransactions {
    sums: FxHashMap<u32, Sums>,
    events: Vec<Event>,
}

enum Event {
    End {
        xid: u32,
        subxids: Vec<u32>,
        committed: bool,
        time: i64,
        lsn: Lsn,
    },
    Prepared {
        xid: u32,
        subxids: Vec<u32>,
    },
    /// The subtransactions of a transaction.
    Assigned {
        top: u32,
        subxids: Vec<u32>,
    },
    /// The running transactions: all older transactions that are not prepared have ended.
    Running(RunningTransactions),
}

impl SegmentTransactions {
    fn add(&mut self, xid: u32, lsn: Lsn, bytes: u32, image_bytes: u32) {
        // initdb's bootstrap transaction never ends.
        if xid >= FIRST_NORMAL_XID {
            let (bytes, image_bytes) = (bytes.into(), image_bytes.into());
            let one = Sums { first: lsn, last: lsn, records: 1, bytes, image_bytes };
            self.sums.entry(xid).and_modify(|sums| sums.merge(&one)).or_insert(one);
        }
    }

    fn event(&mut self, record: &Record<'_>) {
        let event = match payload::parse(record) {
            Ok(Payload::Commit(end)) => end_event(&end, true, record),
            Ok(Payload::Abort(end)) => end_event(&end, false, record),
            Ok(Payload::Prepare(prepare)) => {
                Event::Prepared { xid: record.header.xid, subxids: prepare.subxids().collect() }
            }
            Ok(Payload::Assignment(assignment)) => {
                Event::Assigned { top: assignment.top_xid, subxids: assignment.subxacts.collect() }
            }
            Ok(Payload::RunningXacts(running)) => {
                Event::Running(RunningTransactions::from_snapshot(&running))
            }
            Ok(Payload::Checkpoint(checkpoint)) if checkpoint.shutdown => {
                Event::Running(RunningTransactions::at_shutdown(&checkpoint))
            }
            Ok(_) | Err(_) => return,
        };
        self.events.push(event);
    }
}

fn end_event(end: &TransactionEnd<'_>, committed: bool, record: &Record<'_>) -> Event {
    Event::End {
        xid: end.twophase_xid.unwrap_or(record.header.xid),
        subxids: end.subxacts.collect(),
        committed,
        time: end.time.unix_micros(),
        lsn: record.lsn,
    }
}

/// Whether records of a kind may contain transaction events.
#[inline(always)]
fn has_events(rmid: u8, info: u8) -> bool {
    let is_shutdown = || info & RMGR_MASK == CHECKPOINT_SHUTDOWN;
    matches!(rmid, rmid::XACT | rmid::STANDBY) || rmid == rmid::XLOG && is_shutdown()
}

impl Observer for SegmentTransactions {
    fn record(&mut self, record: &Record<'_>, _: Kind, _: i64) -> ControlFlow<()> {
        let xid = record.header.xid;
        let bytes = record.header.total_len + u32::from(record.alignment);
        self.add(xid, record.lsn, bytes, record.image_bytes());
        if let Some(top) = record.toplevel_xid {
            self.events.push(Event::Assigned { top, subxids: vec![xid] });
        }
        if has_events(record.header.rmid, record.header.info) {
            self.event(record);
        }
        ControlFlow::Continue(())
    }

    #[inline(always)]
    fn simple(&mut self, record: &SimpleRecord<'_>, _: Kind, _: i64) -> ControlFlow<()> {
        let header = record.header();
        self.add(header.xid, record.lsn, record.aligned_len(), 0);
        match (header.rmid, xact::plain_simple_end(record)) {
            (rmid::XACT, Some((committed, time))) => self.events.push(Event::End {
                xid: header.xid,
                subxids: Vec::new(),
                committed,
                time: time.unix_micros(),
                lsn: record.lsn,
            }),
            (rmid, _) if has_events(rmid, header.info) => record.as_record(|record| self.event(record)),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Transactions in progress.
#[derive(Default)]
struct Open {
    timeline: Timeline,
    sums: FxHashMap<u32, OpenTransaction>,
    /// Includes the rows of transactions that were rolled back while older transactions ran: a later record
    /// may still show that they are subtransactions.
    subtransactions: Subtransactions<Row>,
}

#[derive(Default)]
struct OpenTransaction {
    sums: Option<Sums>,
    is_prepared: bool,
}

impl OpenTransaction {
    fn merge(&mut self, sums: Option<&Sums>) {
        match (&mut self.sums, sums) {
            (Some(mine), Some(sums)) => mine.merge(sums),
            (mine @ None, Some(sums)) => *mine = Some(*sums),
            (_, None) => {}
        }
    }
}

impl Open {
    fn add(&mut self, segment: SegmentTransactions, timeline: Timeline, rows: &mut TransactionRows) {
        self.timeline = timeline;
        for (xid, sums) in &segment.sums {
            self.sums.entry(*xid).or_default().merge(Some(sums));
        }
        for event in segment.events {
            match event {
                Event::Prepared { xid, subxids } => {
                    subxids.into_iter().for_each(|subxid| self.assign(subxid, xid));
                    self.sums.entry(xid).or_default().is_prepared = true;
                }
                Event::Assigned { top, subxids } => {
                    subxids.into_iter().for_each(|subxid| self.assign(subxid, top));
                }
                Event::Running(running) => self.close_ended(&running, rows),
                Event::End { xid, subxids, committed, time, lsn } => {
                    let outcome = if committed { "committed" } else { "aborted" };
                    self.end(xid, &subxids, outcome, time, lsn, rows);
                }
            }
        }
    }

    /// Assigns a subtransaction, which may have been rolled back before, to its transaction.
    fn assign(&mut self, subxid: u32, top: u32) {
        let rolled_back = self.subtransactions.assign(subxid, top);
        // The transaction is in progress even if it has written no records itself.
        self.sums.entry(top).or_default().merge(rolled_back.map(|row| row.sums).as_ref());
    }

    fn end(
        &mut self,
        xid: u32,
        subxids: &[u32],
        outcome: &'static str,
        time: i64,
        lsn: Lsn,
        rows: &mut TransactionRows,
    ) {
        let top = match outcome {
            "aborted" => self.subtransactions.roll_back(xid, subxids),
            _ => None,
        };
        // A subtransaction's children belong to the toplevel transaction.
        let known = if top.is_some() { Vec::new() } else { self.subtransactions.end(xid) };
        let mut ended = self.sums.remove(&xid).unwrap_or_default();
        for subxid in subxids.iter().chain(&known) {
            if let Some(of_sub) = self.sums.remove(subxid) {
                ended.merge(of_sub.sums.as_ref());
            }
        }
        match top {
            Some(top) => self.sums.entry(top).or_default().merge(ended.sums.as_ref()),
            None => {
                let sums = ended.sums.unwrap_or(Sums {
                    first: lsn,
                    last: lsn,
                    records: 0,
                    bytes: 0,
                    image_bytes: 0,
                });
                let sums = Sums { last: sums.last.max(lsn), ..sums };
                let subtransactions = subxids.len() as u32;
                let row = Row { timeline: self.timeline, xid, outcome, time, sums, subtransactions };
                match outcome {
                    "aborted" => rows.add_rolled_back(self.subtransactions.hold(xid, row)),
                    _ => rows.0.push(row),
                }
            }
        }
    }

    /// Ends transactions that a crash ended without a record.
    fn close_ended(&mut self, running: &RunningTransactions, rows: &mut TransactionRows) {
        for xid in self.open_transactions(|xid| running.has_ended(xid)) {
            if !self.sums.get(&xid).is_some_and(|open| open.is_prepared) {
                self.end_without_record(xid, "aborted", rows);
            }
        }
        rows.add_rolled_back(self.subtransactions.take_decided(running));
    }

    /// Returns the transactions in progress, ascending. Possibly only the subtransactions of a transaction
    /// have written records.
    fn open_transactions(&self, is_of: impl Fn(u32) -> bool) -> Vec<u32> {
        let tops = self.sums.keys().copied().filter(|xid| self.subtransactions.top_of(*xid) == *xid);
        let mut xids: Vec<u32> = tops.filter(|xid| is_of(*xid)).collect();
        xids.sort_unstable();
        xids
    }

    /// Returns the sums of a transaction in progress and its subtransactions, if they wrote any records.
    fn sums_with_subtransactions(&self, xid: u32) -> Option<Sums> {
        let open = self.sums.get(&xid)?;
        let parts = self.subtransactions.get(xid).iter().filter_map(|subxid| self.sums.get(subxid)?.sums);
        open.sums.into_iter().chain(parts).reduce(|mut all, sums| {
            all.merge(&sums);
            all
        })
    }

    fn end_without_record(&mut self, xid: u32, outcome: &'static str, rows: &mut TransactionRows) {
        match self.sums_with_subtransactions(xid) {
            Some(sums) => self.end(xid, &[], outcome, NO_TIME, sums.last, rows),
            None => {
                self.sums.remove(&xid);
                self.subtransactions.end(xid);
            }
        }
    }

    /// Handles the end of the WAL.
    fn close_all(mut self, rows: &mut TransactionRows) {
        let first = |xid: &u32| self.sums_with_subtransactions(*xid).map(|sums| sums.first);
        let mut xids = self.open_transactions(|_| true);
        xids.sort_by_cached_key(first);
        for xid in xids {
            let is_prepared = self.sums.get(&xid).is_some_and(|open| open.is_prepared);
            self.end_without_record(xid, if is_prepared { "prepared" } else { "open" }, rows);
        }
        rows.add_rolled_back(self.subtransactions.take_all());
    }
}

struct Row {
    timeline: Timeline,
    xid: u32,
    outcome: &'static str,
    time: i64,
    sums: Sums,
    subtransactions: u32,
}

#[derive(Default)]
struct TransactionRows(Vec<Row>);

impl TransactionRows {
    /// Adds rows that can no longer turn out to be subtransactions, in the order of their last records.
    fn add_rolled_back(&mut self, mut rows: Vec<Row>) {
        rows.sort_unstable_by_key(|row| row.sums.last);
        self.0.append(&mut rows);
    }
}

fn column(rows: &[Row], name: &str) -> ArrayRef {
    let sum = |sum: &dyn Fn(&Sums) -> u64| numbers::<UInt64Type>(rows.iter().map(|row| sum(&row.sums)), None);
    match name {
        "timeline" => numbers::<UInt32Type>(rows.iter().map(|row| row.timeline), None),
        "xid" => numbers::<UInt32Type>(rows.iter().map(|row| row.xid), None),
        "outcome" => label_rows(rows.iter().map(|row| Some(row.outcome))),
        "end_time" => times(rows.iter().map(|row| row.time)),
        "start_lsn" => sum(&|sums| sums.first.0),
        "end_lsn" => sum(&|sums| sums.last.0),
        "records" => sum(&|sums| sums.records),
        "bytes" => sum(&|sums| sums.bytes),
        "fpi_length" => sum(&|sums| sums.image_bytes),
        "subtransactions" => numbers::<UInt32Type>(rows.iter().map(|row| row.subtransactions), None),
        _ => unreachable!("transactions has no column {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(xid: u32, subxids: &[u32], committed: bool) -> Event {
        Event::End { xid, subxids: subxids.to_vec(), committed, time: 1, lsn: Lsn(900) }
    }

    /// Number and bytes of each record of a segment's transactions, and the segment's events.
    type Segment<'a> = (&'a [(u32, u32)], Vec<Event>);

    /// Returns number, outcome and bytes of the rows of segments.
    fn rows_of(segments: Vec<Segment<'_>>) -> Vec<(u32, &'static str, u64)> {
        let (mut open, mut rows, mut written) = (Open::default(), TransactionRows::default(), 0);
        for (records, events) in segments {
            let mut segment = SegmentTransactions::default();
            for (xid, bytes) in records {
                segment.add(*xid, Lsn(100 + u64::from(*xid)), *bytes, 0);
                written += u64::from(*bytes);
            }
            segment.events = events;
            open.add(segment, 1, &mut rows);
        }
        open.close_all(&mut rows);
        let rows: Vec<_> = rows.0.iter().map(|row| (row.xid, row.outcome, row.sums.bytes)).collect();
        assert_eq!(rows.iter().map(|row| row.2).sum::<u64>(), written, "no byte is lost: {rows:?}");
        rows
    }

    fn assigned(top: u32, subxids: &[u32]) -> Event {
        Event::Assigned { top, subxids: subxids.to_vec() }
    }

    #[test]
    fn what_subtransactions_wrote_is_their_transactions() {
        let records: &[(u32, u32)] = &[(10, 1), (11, 20), (12, 300)];
        let events =
            vec![assigned(10, &[11]), end(11, &[], false), assigned(10, &[12]), end(10, &[12], true)];
        assert_eq!(rows_of(vec![(records, events)]), [(10, "committed", 321)]);
        // The outer one's only record is its end.
        let events = vec![assigned(10, &[12]), end(11, &[12], false), end(10, &[], true)];
        assert_eq!(rows_of(vec![(records, events)]), [(10, "committed", 321)]);
        // A subtransaction that contains another subtransaction is assigned after its rollback.
        let none: &[(u32, u32)] = &[];
        let segments = vec![
            (records, vec![end(11, &[12], false)]),
            (none, vec![assigned(10, &[11, 12]), end(10, &[], false)]),
        ];
        assert_eq!(rows_of(segments), [(10, "aborted", 321)]);
    }

    #[test]
    fn a_transaction_may_write_by_its_subtransactions_alone() {
        let records: &[(u32, u32)] = &[(11, 20)];
        assert_eq!(rows_of(vec![(records, vec![assigned(10, &[11])])]), [(10, "open", 20)]);
    }
}
