//! The first pass: what became of the transactions, and how the catalogs change.

use std::ops::ControlFlow;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::payload::xact::{TransactionEnd, plain_end};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::{Record, RelFileLocator};
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_redo::{Observer, Replay, Touched};

use crate::catalog::{Class, Key, Layout, Row, read};
use crate::change::Outcome;
use crate::encoding::Encoding;
use crate::heap::{self, Action, Bytes, TupleChange};

/// A change of a catalog's row.
#[derive(Debug)]
pub(crate) struct CatalogChange {
    pub lsn: Lsn,
    pub xid: u32,
    pub key: Key,
    /// The row before; nothing if there was none or `is_old_unknown`.
    pub old: Option<Row>,
    pub new: Option<Row>,
    pub is_old_unknown: bool,
}

/// What the first pass found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// What became of the transactions that may matter, with their toplevel transactions.
    ends: FxHashMap<u32, Outcome>,
    parents: FxHashMap<u32, u32>,
    pub changes: Vec<CatalogChange>,
    /// Changes of catalogs' rows that could not be read, and the first of them.
    pub unread: Option<(u64, Lsn)>,
    /// Files that transient relations had, such as those that a rewrite fills.
    pub transient: FxHashSet<u32>,
    /// How far the log was read.
    pub reached: Lsn,
}

impl Findings {
    pub fn outcome(&self, xid: u32) -> Outcome {
        self.ends.get(&xid).copied().unwrap_or(Outcome::Unfinished)
    }

    /// The toplevel transaction of one, as far as the log says it.
    pub fn top(&self, xid: u32) -> u32 {
        // The rollback of a subtransaction names those within it, and what is said of that one may come later.
        let parent = |xid: &u32| self.parents.get(xid).copied();
        std::iter::successors(Some(xid), parent).take(MAX_NESTING).last().unwrap_or(xid)
    }
}

/// Subtransactions within each other that are followed. The log names the toplevel transaction, or the outermost one that was rolled
/// back.
const MAX_NESTING: usize = 8;

/// Reads records for [`Findings`].
pub(crate) struct Survey<'c> {
    pub findings: Findings,
    pub replay: Replay,
    pub layouts: &'c FxHashMap<u32, Layout>,
    /// Whether a relation has the name of a table that matters.
    pub is_wanted: &'c (dyn Fn(&Class) -> bool + Sync),
    /// The catalogs' files.
    pub catalogs: FxHashMap<RelFileLocator, u32>,
    /// The database.
    pub database: u32,
    /// The encoding of its names.
    pub encoding: Encoding,
    /// Files of relations that do not matter. Others may be files that a wanted table had or will have.
    pub other_files: FxHashSet<RelFileLocator>,
    /// Relations that are known not to matter.
    pub others: FxHashSet<u32>,
    /// Transactions that may matter.
    pub interesting: FxHashSet<u32>,
    /// Where replay starts; the segment may start before.
    pub start: Lsn,
    /// Ends before the first record from here on.
    pub to: Option<Lsn>,
    pub tuples: Vec<TupleChange>,
}

/// Keeps the changes of tuples that a record makes.
struct Collector<'t>(&'t mut Vec<TupleChange>);

impl Observer for Collector<'_> {
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        heap::changes(record, touched, self.0);
    }
}

impl Visitor for Survey<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.to.is_some_and(|to| record.lsn >= to) || self.replay.store.failure().is_some() {
            return ControlFlow::Break(());
        }
        if record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        let xid = record.header.xid;
        if let Some(top) = record.toplevel_xid {
            self.findings.parents.insert(xid, top);
        }
        match record.blocks.first() {
            Some(first) => {
                if record.blocks.iter().any(|block| self.catalogs.contains_key(&block.relation)) {
                    self.interesting.insert(xid);
                    self.catalog_record(record);
                } else if heap::is_heap(record)
                    && first.relation.database == self.database
                    && !self.other_files.contains(&first.relation)
                {
                    self.interesting.insert(xid);
                }
            }
            None if record.header.rmid == rmid::XACT => self.transaction(record),
            None if record.header.rmid == rmid::SMGR => {
                if let Ok(Payload::StorageTruncate(_)) = payload::parse(record) {
                    self.interesting.insert(xid);
                }
                self.replay.apply(record, &mut ());
            }
            None => self.replay.apply(record, &mut ()),
        }
        ControlFlow::Continue(())
    }
}

impl Survey<'_> {
    fn transaction(&mut self, record: &Record<'_>) {
        if let Some((is_commit, time)) = plain_end(record) {
            if self.interesting.contains(&record.header.xid) {
                self.end(record.header.xid, outcome(record, is_commit, time));
            }
            return;
        }
        self.replay.apply(record, &mut ());
        match payload::parse(record) {
            Ok(Payload::Commit(end)) => self.full_end(record, &end, true),
            Ok(Payload::Abort(end)) => self.full_end(record, &end, false),
            Ok(Payload::Assignment(assignment)) => {
                let parents = assignment.subxacts.into_iter().map(|xid| (xid, assignment.top_xid));
                self.findings.parents.extend(parents);
            }
            _ => {}
        }
    }

    fn full_end(&mut self, record: &Record<'_>, end: &TransactionEnd<'_>, is_commit: bool) {
        let top = end.twophase_xid.unwrap_or(record.header.xid);
        let outcome = outcome(record, is_commit, end.time);
        for xid in end.subxacts {
            if self.interesting.contains(&xid) {
                if is_commit {
                    self.findings.parents.insert(xid, top);
                } else {
                    // A subtransaction may be what was rolled back. The toplevel one may be known.
                    self.findings.parents.entry(xid).or_insert(top);
                }
                self.end(xid, outcome);
            }
        }
        if self.interesting.contains(&top) {
            self.end(top, outcome);
        }
    }

    /// A transaction that was aborted as a part of another one stays so.
    fn end(&mut self, xid: u32, outcome: Outcome) {
        self.findings.ends.entry(xid).or_insert(outcome);
    }

    fn catalog_record(&mut self, record: &Record<'_>) {
        self.tuples.clear();
        self.replay.apply(record, &mut Collector(&mut self.tuples));
        for tuple in std::mem::take(&mut self.tuples) {
            let Some(&catalog) = self.catalogs.get(&tuple.file) else { continue };
            self.catalog_change(record, catalog, &tuple);
        }
    }

    fn catalog_change(&mut self, record: &Record<'_>, catalog: u32, tuple: &TupleChange) {
        let row = |bytes: &Bytes| match bytes {
            Bytes::Whole(bytes) => read(catalog, self.layouts, self.encoding, bytes),
            _ => None,
        };
        let (old, new) = (row(&tuple.old), row(&tuple.new));
        let is_unknown = |bytes: &Bytes| matches!(bytes, Bytes::Unknown(_) | Bytes::Key(_));
        let new_unknown = is_unknown(&tuple.new);
        let is_old_unknown = is_unknown(&tuple.old);
        let is_delete = matches!(tuple.action, Action::Delete);
        if new_unknown || is_old_unknown && is_delete {
            let unread = self.findings.unread.get_or_insert((0, record.lsn));
            unread.0 += 1;
            return;
        }
        // A row that does not matter, such as that of an index which is no primary key.
        let Some(key) = new.as_ref().or(old.as_ref()).map(Row::key) else { return };
        if let Some(Row::Class(class)) = &new
            && (class.name.starts_with("pg_temp_") || class.name.starts_with("pg_toast_"))
            && tuple.action == Action::Insert
        {
            self.findings.transient.insert(class.file);
        }
        let gets_name = matches!(&new, Some(Row::Class(class)) if (self.is_wanted)(class));
        if !gets_name && matches!(key, Key::Class(oid) | Key::Attribute(oid, _) if self.others.contains(&oid))
        {
            return;
        }
        let (lsn, xid) = (record.lsn, record.header.xid);
        self.findings.changes.push(CatalogChange { lsn, xid, key, old, new, is_old_unknown });
    }
}

fn outcome(record: &Record<'_>, is_commit: bool, time: Timestamp) -> Outcome {
    match is_commit {
        true => Outcome::Committed { time, lsn: record.lsn },
        false => Outcome::Aborted { lsn: record.lsn },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtransaction_within_another_is_of_the_toplevel_transaction() {
        // 12 was rolled back with 11, and then the log named 10 as that one's; something is wrong with 20 and 21.
        let parents = FxHashMap::from_iter([(12, 11), (11, 10), (20, 21), (21, 20)]);
        let findings = Findings { parents, ..Findings::default() };
        assert_eq!([12, 11, 10, 9].map(|xid| findings.top(xid)), [10, 10, 10, 9]);
        assert!([20, 21].contains(&findings.top(20)));
    }
}
