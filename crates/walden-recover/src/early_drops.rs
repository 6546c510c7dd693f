//! Databases and tablespaces whose files recovery removes although it stops before the commit of their drop.

use std::fmt;
use std::ops::ControlFlow;

use serde::{Serialize, Serializer};
use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_source::inventory::Run;
use walden_source::scan::{ScanOptions, scan_in_order};

use crate::target::end_of_transaction;

/// A database or tablespace whose record of removal precedes the end of recovery, while the commit of its
/// transaction does not. PostgreSQL removes the files when it replays the record (`dbase_redo` in
/// `dbcommands.c`, `tblspc_redo` in `tablespace.c`), so they are lost. Files of dropped tables are removed at
/// the commit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EarlyDrop {
    /// LSN of the record.
    #[serde(serialize_with = "serialize_as_text")]
    pub lsn: Lsn,
    /// LSN of the record before it: recovery keeps the files if this is the last record.
    #[serde(skip)]
    pub previous: Lsn,
    /// OID of the dropped database.
    pub database: Option<u32>,
    /// OID of the dropped tablespace.
    pub tablespace: Option<u32>,
}

impl fmt::Display for EarlyDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, oid) = match (self.database, self.tablespace) {
            (Some(oid), _) => ("database", oid),
            (None, oid) => ("tablespace", oid.unwrap_or_default()),
        };
        write!(f, "replay removes the files of {what} {oid} at {}, before the commit of its drop", self.lsn)
    }
}

fn serialize_as_text<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// The drops and the ends of transactions in a part of the WAL.
#[derive(Debug, Default)]
pub struct DropEvents {
    drops: Vec<DropRecord>,
    ends: Vec<(Lsn, u32)>,
}

/// A record that removes the files of a database or tablespace.
#[derive(Debug)]
struct DropRecord {
    lsn: Lsn,
    previous: Lsn,
    transaction: u32,
    database: Option<u32>,
    tablespace: Option<u32>,
}

impl DropEvents {
    /// Returns whether a record may remove a database or tablespace before its transaction ends.
    pub(crate) fn may_be_drop(record: &Record<'_>) -> bool {
        // ALTER DATABASE SET TABLESPACE removes the old files without a transaction id, after its commit.
        matches!(record.header.rmid, rmid::DBASE | rmid::TBLSPC) && record.header.xid != 0
    }

    /// Notes a record if it is a drop or the end of a transaction.
    pub fn note(&mut self, record: &Record<'_>) {
        if let Some((transaction, _)) = end_of_transaction(record) {
            self.ends.push((record.lsn, transaction));
        }
        let transaction = record.header.xid;
        if !DropEvents::may_be_drop(record) {
            return;
        }
        let (database, tablespace) = match payload::parse(record) {
            Ok(Payload::DatabaseDrop(drop)) => (Some(drop.database), None),
            Ok(Payload::TablespaceDrop(drop)) => (None, Some(drop.tablespace)),
            _ => return,
        };
        let (lsn, previous) = (record.lsn, record.header.prev);
        self.drops.push(DropRecord { lsn, previous, transaction, database, tablespace });
    }

    /// Returns the drops before the LSN at which recovery stops whose transactions did not end before it. A
    /// drop is followed by its commit at once, so the last two segments suffice.
    pub fn find_early(last_segments: &[&DropEvents], stop: Lsn) -> Vec<EarlyDrop> {
        let has_ended = |drop: &DropRecord| {
            let mut ends = last_segments.iter().flat_map(|events| &events.ends);
            ends.any(|(lsn, transaction)| *transaction == drop.transaction && drop.lsn < *lsn && *lsn < stop)
        };
        let drops = last_segments.iter().flat_map(|events| &events.drops);
        let early = drops.filter(|drop| drop.lsn < stop && !has_ended(drop));
        early
            .map(|drop| EarlyDrop {
                lsn: drop.lsn,
                previous: drop.previous,
                database: drop.database,
                tablespace: drop.tablespace,
            })
            .collect()
    }
}

impl Visitor for DropEvents {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        // The end of a transaction matters only after its drop.
        if record.header.rmid != rmid::XACT || !self.drops.is_empty() {
            self.note(record);
        }
        ControlFlow::Continue(())
    }
}

/// Finds the early drops of a recovery that starts at `start` and stops before `stop`.
/// `last_drop` is the last record before the stop that may be one.
pub(crate) fn find_early_drops(run: &Run, start: Lsn, stop: Lsn, last_drop: Option<Lsn>) -> Vec<EarlyDrop> {
    let size = run.segment_size;
    let first = size.start_of(size.segment_of(stop).saturating_sub(1)).max(start);
    if last_drop.is_none_or(|lsn| lsn < first) {
        return Vec::new();
    }
    let mut events = DropEvents::default();
    let options = ScanOptions::new(1).from(Some(first)).to(Some(stop));
    scan_in_order(run, options, &mut events, |_| {});
    events.drops.retain(|drop| drop.lsn >= start);
    DropEvents::find_early(&[&events], stop)
}
