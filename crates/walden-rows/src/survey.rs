//! The first pass: how transactions end, and how the catalogs change.

use std::ops::ControlFlow;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::payload::xact::{TransactionEnd, plain_end};
use walden_format::payload::xlog::{Checkpoint, WalLevel};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::{Record, RelFileLocator};
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_format::transam::precedes;
use walden_redo::Replay;

use crate::Gap;
use crate::catalog::{
    Class, Key, Layout, Row, TypeUpdate, is_large_object_catalog, is_likely_row, mappings, read, type_update,
    type_version,
};
use crate::change::Outcome;
use crate::early_commits::EarlyCommits;
use crate::encoding::Encoding;
use crate::heap::{self, Action, Bytes, Collector, TupleChange};

/// A change of a catalog's row.
#[derive(Debug)]
pub(crate) struct CatalogChange {
    pub lsn: Lsn,
    pub xid: u32,
    pub key: Key,
    /// The row before; `None` if there was no row, or if `is_old_unknown`.
    pub old: Option<Row>,
    pub new: Option<Row>,
    pub is_old_unknown: bool,
    /// Set for columns only.
    pub type_update: TypeUpdate,
}

impl CatalogChange {
    /// Whether it creates a table, column or type.
    pub fn is_created(&self) -> bool {
        self.old.is_none() && !self.is_old_unknown && self.new.is_some()
    }
}

/// Results of the first pass.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// How transactions that may matter ended; `parents` are their parent transactions.
    ends: FxHashMap<u32, Outcome>,
    parents: FxHashMap<u32, u32>,
    pub changes: Vec<CatalogChange>,
    /// Number of unreadable changes of catalog rows, and the LSN of the first unreadable change.
    pub unread: Option<(u64, Lsn)>,
    /// A catalog that seems to be in a file that the names do not contain, and the first record that shows
    /// it.
    pub misplaced: Option<(u32, Lsn)>,
    /// Files of transient relations, for example those that a rewrite fills.
    pub transient: FxHashSet<u32>,
    /// Transient files that were filled row by row, as by `ALTER TABLE`. `VACUUM FULL` and `CLUSTER` log
    /// whole pages (`rewriteheap.c`).
    pub filled_by_rows: FxHashSet<u32>,
    /// Transactions that a crash or a promotion ended without a record, with the first record that shows it.
    lost: FxHashMap<u32, Lsn>,
    /// Files that catalogs have within the WAL and that are missing in [`Survey::catalogs`].
    pub catalog_files: FxHashMap<RelFileLocator, u32>,
    /// Tablespaces from and to which the WAL moves the database.
    pub tablespaces: FxHashSet<u32>,
    /// The next transaction ID at the WAL's start, or at the first later record that contains it.
    pub next_xid: Option<u32>,
    /// Commits of transactions that may have changes before the WAL's start.
    pub early_commits: EarlyCommits,
    /// Whether the WAL contains a record of [`Survey::wanted_xid`].
    pub has_wanted_xid: bool,
    /// Files of tables that were created under `wal_level` minimal, in WAL order.
    pub made_without_lock: Vec<MadeFile>,
    /// Transactions that changed large objects, with the first record of each.
    pub large_objects: FxHashMap<u32, Lsn>,
    /// Sequences that `nextval()`, `setval()` or a command changed, with the first record of each. If a
    /// transaction is requested, by transaction; otherwise the transaction is 0.
    pub sequences: FxHashMap<(RelFileLocator, u32), Lsn>,
    /// Position up to which the WAL was read.
    pub reached: Lsn,
    /// Damage at which reading stopped.
    pub damage: Option<Gap>,
}

/// A new file of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MadeFile {
    pub lsn: Lsn,
    pub xid: u32,
    pub relation: u32,
}

impl Findings {
    pub fn outcome(&self, xid: u32) -> Outcome {
        // A prepared transaction may end after a crash.
        let lost = || self.lost.get(&xid).map(|&lsn| Outcome::Aborted { lsn });
        self.ends.get(&xid).copied().or_else(lost).unwrap_or(Outcome::Unfinished)
    }

    /// Whether a transaction ended without a record before `lsn`, or with the record at `lsn`.
    pub fn is_lost_at(&self, xid: u32, lsn: Lsn) -> bool {
        !self.ends.contains_key(&xid) && self.lost.get(&xid).is_some_and(|&lost| lost <= lsn)
    }

    /// Tables that committed transactions dropped.
    pub fn dropped_tables(&self) -> FxHashSet<u32> {
        let is_committed = |xid: u32| matches!(self.outcome(xid), Outcome::Committed { .. });
        let dropped = |change: &CatalogChange| match (change.key, &change.new) {
            (Key::Class(oid), None) if is_committed(change.xid) => Some(oid),
            _ => None,
        };
        self.changes.iter().filter_map(dropped).collect()
    }

    /// The toplevel transaction of a transaction, if the WAL shows it.
    pub fn top(&self, xid: u32) -> u32 {
        // The rollback of a subtransaction lists its own subtransactions. A later record may name its parent.
        let parent = |xid: &u32| self.parents.get(xid).copied();
        std::iter::successors(Some(xid), parent).take(MAX_NESTING).last().unwrap_or(xid)
    }

    /// Sets how a transaction ended.
    #[cfg(test)]
    pub fn set_end(&mut self, xid: u32, outcome: Outcome) {
        self.ends.insert(xid, outcome);
    }

    /// Records how a transaction and its subtransactions ended, except for those that are not interesting.
    fn note_end(
        &mut self,
        interesting: &FxHashSet<u32>,
        xid: u32,
        subxacts: impl IntoIterator<Item = u32>,
        outcome: Outcome,
    ) {
        let is_commit = matches!(outcome, Outcome::Committed { .. });
        let top = self.top(xid);
        for subxact in subxacts {
            if !interesting.contains(&subxact) {
                self.parents.remove(&subxact);
                continue;
            }
            if is_commit {
                self.parents.insert(subxact, xid);
            } else {
                // The transaction that was rolled back may itself be a subtransaction, whose toplevel
                // transaction may be known.
                self.parents.entry(subxact).or_insert(top);
            }
            // A subtransaction that was rolled back on its own stays so.
            self.ends.entry(subxact).or_insert(outcome);
        }
        if interesting.contains(&xid) {
            self.ends.entry(xid).or_insert(outcome);
        } else {
            self.parents.remove(&xid);
        }
    }
}

/// Maximum depth of nested subtransactions. The WAL names the toplevel transaction, or the outermost one that
/// was rolled back.
const MAX_NESTING: usize = 8;

/// Reads records into [`Findings`].
pub(crate) struct Survey<'c> {
    pub findings: Findings,
    pub replay: Replay,
    pub layouts: &'c FxHashMap<u32, Layout>,
    /// Whether a relation has the name of a wanted table.
    pub is_wanted: &'c (dyn Fn(&Class) -> bool + Sync),
    /// The catalogs' files.
    pub catalogs: FxHashMap<RelFileLocator, u32>,
    /// The database.
    pub database: u32,
    /// The encoding of the database's names.
    pub encoding: Encoding,
    /// Files of unrelated relations. Other files may belong to a wanted table at some time.
    pub other_files: FxHashSet<RelFileLocator>,
    /// Files of the catalogs of large objects.
    pub large_object_files: FxHashSet<RelFileLocator>,
    /// Relations that are known to be unrelated.
    pub others: FxHashSet<u32>,
    /// Transactions that may matter.
    pub interesting: FxHashSet<u32>,
    /// Interesting transactions that have a record since the server's last start.
    pub active: FxHashSet<u32>,
    /// Prepared transactions that have not ended, with their subtransactions.
    pub prepared: FxHashMap<u32, FxHashSet<u32>>,
    /// Whether the catalogs' files at the WAL's start are uncertain. Names from after a rewrite contain only
    /// the new files.
    pub looks_for_old_files: bool,
    /// Files of the database with changes of heap tuples that belong neither to the catalogs nor to unrelated
    /// relations.
    pub unknown_files: FxHashSet<RelFileLocator>,
    /// Files that transactions in progress have created.
    pub created: FxHashMap<u32, FxHashSet<RelFileLocator>>,
    /// Catalogs that transactions in progress have rewritten.
    pub rewritten: FxHashMap<u32, FxHashSet<u32>>,
    /// The database's default tablespaces, before and after the database is moved.
    pub tablespaces: FxHashSet<u32>,
    /// Catalogs that may be in unknown files, because the WAL has had no record of their known files so far.
    pub unmet: FxHashSet<u32>,
    /// Files of relations that are known at the WAL's start.
    pub named_files: FxHashSet<RelFileLocator>,
    /// OIDs of users' relations that are known at the WAL's start.
    pub relations: FxHashSet<u32>,
    /// Catalogs that seem to have rows in an unknown file, with the first record of one.
    pub suspects: FxHashMap<u32, Lsn>,
    /// Whether the server has `wal_level` minimal; `None` if no record has shown it since the server's last
    /// start with other settings.
    pub is_minimal: Option<bool>,
    /// New files of tables since then, while no record has shown the level.
    pub made_meanwhile: Vec<MadeFile>,
    /// The last version of a table's column types that an update has set.
    pub type_versions: FxHashMap<u32, Vec<u8>>,
    /// The requested transaction.
    pub wanted_xid: Option<u32>,
    /// Start of the requested range.
    pub from: Option<Lsn>,
    /// Where replay starts; the segment may start earlier.
    pub start: Lsn,
    /// The pass ends before the first record at or after this position.
    pub to: Option<Lsn>,
    pub tuples: Vec<TupleChange>,
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
        if self.wanted_xid.is_some_and(|wanted| wanted == xid || record.toplevel_xid == Some(wanted)) {
            self.findings.has_wanted_xid = true;
        }
        match record.blocks.first() {
            Some(first) => {
                if self.large_object_files.contains(&first.relation) {
                    self.note_large_object(record);
                }
                if record.header.rmid == rmid::SEQ && first.relation.database == self.database {
                    self.note_sequence(record, first.relation);
                }
                if record.blocks.iter().any(|block| self.catalogs.contains_key(&block.relation)) {
                    self.note_change(xid);
                    self.note_met(record);
                    self.catalog_record(record);
                } else if heap::is_heap(record)
                    && first.relation.database == self.database
                    && !self.other_files.contains(&first.relation)
                {
                    self.note_change(xid);
                    self.note_filled(record, first.relation.relation);
                    if self.looks_for_old_files {
                        self.unknown_files.insert(first.relation);
                    }
                    if !self.unmet.is_empty() && !self.named_files.contains(&first.relation) {
                        self.look_for_catalog_rows(record);
                    }
                }
            }
            None if record.header.rmid == rmid::XACT => self.transaction(record),
            None if record.header.rmid == rmid::SMGR => {
                match payload::parse(record) {
                    Ok(Payload::StorageTruncate(_)) => self.note_change(xid),
                    Ok(Payload::StorageCreate(created))
                        if self.looks_for_old_files && created.relation.database == self.database =>
                    {
                        self.created.entry(xid).or_default().insert(created.relation);
                    }
                    _ => {}
                }
                self.replay.apply(record, &mut ());
            }
            None if matches!(record.header.rmid, rmid::XLOG | rmid::RELMAP | rmid::DBASE) => {
                self.server_record(record);
                self.replay.apply(record, &mut ());
            }
            None => {
                // Locks and running transactions are logged only for standbys (`XLogStandbyInfoActive`).
                if record.header.rmid == rmid::STANDBY {
                    self.note_wal_level(false);
                    if self.findings.next_xid.is_none()
                        && let Ok(Payload::RunningXacts(running)) = payload::parse(record)
                    {
                        self.findings.next_xid = Some(running.next_xid);
                    }
                }
                self.replay.apply(record, &mut ());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Survey<'_> {
    fn note_change(&mut self, xid: u32) {
        self.interesting.insert(xid);
        self.active.insert(xid);
    }

    /// Records that a transient relation gets rows.
    fn note_filled(&mut self, record: &Record<'_>, file: u32) {
        let findings = &mut self.findings;
        if findings.transient.contains(&file)
            && !findings.filled_by_rows.contains(&file)
            && matches!(payload::parse(record), Ok(Payload::Insert(_) | Payload::MultiInsert(_)))
        {
            findings.filled_by_rows.insert(file);
        }
    }

    /// Records a transaction that changes large objects.
    fn note_large_object(&mut self, record: &Record<'_>) {
        let is_change = matches!(
            payload::parse(record),
            Ok(Payload::Insert(_) | Payload::MultiInsert(_) | Payload::Update(_) | Payload::Delete(_))
        );
        if is_change {
            self.note_change(record.header.xid);
            self.findings.large_objects.entry(record.header.xid).or_insert(record.lsn);
        }
    }

    /// Records a change of a sequence in the range, which no rollback reverts.
    fn note_sequence(&mut self, record: &Record<'_>, file: RelFileLocator) {
        if self.from.is_some_and(|from| record.lsn < from) {
            return;
        }
        let xid = if self.wanted_xid.is_some() { record.header.xid } else { 0 };
        if xid != 0 {
            self.note_change(xid);
        }
        self.findings.sequences.entry((file, xid)).or_insert(record.lsn);
    }

    /// Classifies an update of a column's row as a step of `ALTER COLUMN ... TYPE`.
    fn type_update(&mut self, relation: u32, tuple: &TupleChange) -> TypeUpdate {
        let Bytes::Whole(new) = &tuple.new else { return TypeUpdate::No };
        if tuple.action != Action::Update {
            return TypeUpdate::No;
        }
        if let Some(version) = type_version(self.layouts, new) {
            let before = match &tuple.old {
                Bytes::Whole(old) => type_version(self.layouts, old),
                _ => None,
            };
            if before.as_ref() == Some(&version) {
                return TypeUpdate::No;
            }
            // The columns after the one that gets a type also get its version.
            if self.type_versions.get(&relation) == Some(&version) {
                return TypeUpdate::No;
            }
            self.type_versions.insert(relation, version);
        }
        match &tuple.old {
            Bytes::Whole(old) => type_update(self.layouts, old, new),
            // The old row is unknown, so the update may be one.
            _ => TypeUpdate::Same,
        }
    }

    /// Whether a transaction has created a column or changed its type.
    fn has_just_changed(&self, xid: u32, column: Key) -> bool {
        let changes = self.findings.changes.iter().rev().filter(|change| change.xid == xid);
        let mut of_column = changes.filter(|change| change.key == column);
        of_column.any(|change| change.is_created() || change.type_update == TypeUpdate::Other)
    }

    /// Records the `wal_level` of a record. The level was the same since the server's last start with other
    /// settings.
    fn note_wal_level(&mut self, is_minimal: bool) {
        if is_minimal {
            self.findings.made_without_lock.append(&mut self.made_meanwhile);
        }
        self.made_meanwhile.clear();
        self.is_minimal = Some(is_minimal);
    }

    /// Adds new files that no record has shown the `wal_level` of. At any level other than minimal, the WAL
    /// would contain the lock that a transaction takes to create a table's file (`LogAccessExclusiveLock`).
    pub fn settle_wal_level(&mut self) {
        self.findings.made_without_lock.append(&mut self.made_meanwhile);
    }

    /// Records a table's new file. Under `wal_level` minimal, the transaction that creates the file need not
    /// log the rows that it inserts.
    fn note_made_file(&mut self, (lsn, xid): (Lsn, u32), old: Option<&Row>, class: &Class) {
        let file_before = match old {
            Some(Row::Class(old)) => old.file,
            _ => 0,
        };
        if class.file == 0 || class.file == file_before || class.persistence != 'p' {
            return;
        }
        let made = MadeFile { lsn, xid, relation: class.oid };
        match self.is_minimal {
            Some(true) => self.findings.made_without_lock.push(made),
            Some(false) => {}
            None => self.made_meanwhile.push(made),
        }
    }

    /// Records the next transaction ID at a checkpoint's start, which may precede the first snapshot of
    /// running transactions.
    fn note_next_xid(&mut self, checkpoint: &Checkpoint) {
        // The lower half is the ID without its epoch.
        let next = checkpoint.next_xid as u32;
        if checkpoint.redo == self.start {
            self.findings.early_commits.set_next_xid(next);
        }
        if checkpoint.redo >= self.start && self.findings.next_xid.is_none_or(|known| precedes(next, known)) {
            self.findings.next_xid = Some(next);
        }
    }

    /// Handles starts of the server, and records that move catalogs to other files.
    fn server_record(&mut self, record: &Record<'_>) {
        let payload = payload::parse(record);
        if let Ok(Payload::Checkpoint(checkpoint)) = &payload {
            self.note_next_xid(checkpoint);
        }
        let wal_level = match &payload {
            Ok(Payload::Checkpoint(checkpoint)) => checkpoint.wal_level,
            Ok(Payload::CheckpointRedo(redo)) => Some(redo.wal_level),
            Ok(Payload::EndOfRecovery(end)) => end.wal_level,
            Ok(Payload::ParameterChange(change)) => {
                self.settle_wal_level();
                Some(change.wal_level)
            }
            _ => None,
        };
        match (wal_level, &payload) {
            (Some(level), _) => self.note_wal_level(level == WalLevel::Minimal),
            // A checkpoint that standbys can use contains the oldest running transaction
            // (`CreateCheckPoint`).
            (None, Ok(Payload::Checkpoint(checkpoint))) if !checkpoint.shutdown => {
                self.note_wal_level(checkpoint.oldest_active_xid == 0);
            }
            _ => {}
        }
        match payload {
            // A server writes one of these after recovery from a crash. At a shutdown all transactions have
            // ended.
            Ok(Payload::Checkpoint(checkpoint)) if checkpoint.shutdown => self.end_lost(record.lsn),
            Ok(Payload::EndOfRecovery(_)) => self.end_lost(record.lsn),
            Ok(Payload::RelationMapUpdate(update)) if update.database == self.database => {
                for (oid, file) in mappings(update.map).unwrap_or_default() {
                    self.note_catalog_file(oid, update.tablespace, file);
                    // The map lists all mapped catalogs, including those that are not rewritten.
                    let file = RelFileLocator {
                        tablespace: update.tablespace,
                        database: self.database,
                        relation: file,
                    };
                    let xid = record.header.xid;
                    if self.created.get(&xid).is_some_and(|created| created.contains(&file)) {
                        self.note_rewrite(xid, oid);
                    }
                }
            }
            // `ALTER DATABASE ... SET TABLESPACE` copies the database to itself (`movedb`).
            Ok(Payload::DatabaseCreate(created)) if created.database == self.database => {
                if let Some((database, tablespace)) = created.source
                    && database == self.database
                {
                    self.findings.tablespaces.extend([tablespace, created.tablespace]);
                }
            }
            _ => {}
        }
    }

    fn note_catalog_file(&mut self, oid: u32, tablespace: u32, file: u32) {
        let file = RelFileLocator { tablespace, database: self.database, relation: file };
        if is_large_object_catalog(oid) {
            self.large_object_files.insert(file);
        }
        if file.relation != 0 && self.layouts.contains_key(&oid) && !self.catalogs.contains_key(&file) {
            self.findings.catalog_files.insert(file, oid);
        }
    }

    fn note_rewrite(&mut self, xid: u32, catalog: u32) {
        if self.looks_for_old_files && self.layouts.contains_key(&catalog) {
            self.rewritten.entry(xid).or_default().insert(catalog);
        }
    }

    /// Finds a rewritten catalog's previous file. The commit of the rewriting transaction drops this file
    /// together with the files of the catalog's indexes. The file with changes of heap tuples belongs to the
    /// catalog.
    fn note_old_file(&mut self, record: &Record<'_>, top: u32, end: &TransactionEnd<'_>, is_commit: bool) {
        if !self.looks_for_old_files {
            return;
        }
        let mut rewritten = FxHashSet::default();
        for xid in end.subxacts.chain([top]) {
            self.created.remove(&xid);
            rewritten.extend(self.rewritten.remove(&xid).unwrap_or_default());
        }
        let dropped: Vec<RelFileLocator> = end.dropped_relations.collect();
        if !is_commit || rewritten.is_empty() {
            return;
        }
        // Exclude catalogs whose previous files are known.
        let known: FxHashSet<u32> =
            dropped.iter().filter_map(|file| self.catalogs.get(file).copied()).collect();
        rewritten.retain(|catalog| !known.contains(catalog));
        let unknown: Vec<RelFileLocator> =
            dropped.into_iter().filter(|file| self.unknown_files.contains(file)).collect();
        match (unknown.as_slice(), Vec::from_iter(rewritten).as_slice()) {
            // The WAL contains no change from before the rewrite.
            ([], _) | (_, []) => {}
            ([file], [catalog]) => {
                self.findings.catalog_files.insert(*file, *catalog);
            }
            _ => {
                let unread = self.findings.unread.get_or_insert((0, record.lsn));
                unread.0 += 1;
            }
        }
    }

    /// Ends transactions that were in progress and have no end record. Prepared transactions continue.
    fn end_lost(&mut self, lsn: Lsn) {
        let findings = &mut self.findings;
        let is_prepared = |xid: u32| {
            self.prepared.contains_key(&xid) || self.prepared.values().any(|subxacts| subxacts.contains(&xid))
        };
        let is_lost = |xid: &u32| *xid != 0 && !findings.ends.contains_key(xid) && !is_prepared(*xid);
        let lost: Vec<u32> = self.active.drain().filter(is_lost).collect();
        for xid in lost {
            findings.lost.entry(xid).or_insert(lsn);
        }
    }

    fn transaction(&mut self, record: &Record<'_>) {
        if let Some((is_commit, time)) = plain_end(record) {
            let outcome = outcome(record, is_commit, time);
            if is_commit {
                self.findings.early_commits.note(record.header.xid, record.lsn);
            }
            self.findings.note_end(&self.interesting, record.header.xid, std::iter::empty(), outcome);
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
            Ok(Payload::Prepare(prepare)) => {
                self.prepared.insert(prepare.xid, prepare.subxids().collect());
            }
            _ => {}
        }
    }

    fn full_end(&mut self, record: &Record<'_>, end: &TransactionEnd<'_>, is_commit: bool) {
        let top = end.twophase_xid.unwrap_or(record.header.xid);
        let outcome = outcome(record, is_commit, end.time);
        let is_prepared_here = self.prepared.remove(&top).is_some();
        if is_commit && end.database.is_none_or(|database| database == self.database) {
            match end.twophase_xid.is_some() && !is_prepared_here {
                true => self.findings.early_commits.note_prepared(top, record.lsn),
                false => self.findings.early_commits.note(top, record.lsn),
            }
        }
        self.note_old_file(record, top, end, is_commit);
        self.findings.note_end(&self.interesting, top, end.subxacts, outcome);
    }

    fn catalog_record(&mut self, record: &Record<'_>) {
        self.tuples.clear();
        self.replay.apply(record, &mut Collector::new(&mut self.tuples));
        for tuple in std::mem::take(&mut self.tuples) {
            let Some(&catalog) = self.catalogs.get(&tuple.file) else { continue };
            self.catalog_change(record, catalog, &tuple);
        }
    }

    /// A catalog with a record in a known file is stored in this file: the WAL contains any rewrite of the
    /// catalog.
    fn note_met(&mut self, record: &Record<'_>) {
        if self.unmet.is_empty() {
            return;
        }
        for catalog in record.blocks.iter().filter_map(|block| self.catalogs.get(&block.relation)) {
            self.unmet.remove(catalog);
        }
    }

    /// Searches for rows of catalogs by their columns. A catalog that was rewritten between the WAL and the
    /// names is in a file that the names do not contain. The rows are not followed, as a user's table may
    /// have the same columns.
    fn look_for_catalog_rows(&mut self, record: &Record<'_>) {
        self.tuples.clear();
        self.replay.apply(record, &mut Collector::new(&mut self.tuples));
        let (layouts, encoding) = (self.layouts, self.encoding);
        for tuple in &self.tuples {
            for bytes in [&tuple.old, &tuple.new] {
                let Bytes::Whole(bytes) = bytes else { continue };
                for &catalog in &self.unmet {
                    if !is_likely_row(catalog, layouts, encoding, bytes) {
                        continue;
                    }
                    // Rows of `pg_inherits` consist of numbers only, so rows of a user's table may look the
                    // same.
                    let is_known = match read(catalog, layouts, encoding, bytes) {
                        Some(Row::Inherits { parent, .. }) => self.relations.contains(&parent),
                        _ => true,
                    };
                    if is_known {
                        self.suspects.entry(catalog).or_insert(record.lsn);
                    }
                }
            }
        }
    }

    /// At the WAL's end, returns the first catalog that had no record in a known file, but seems to be in an
    /// unknown file.
    pub fn misplaced(&self) -> Option<(u32, Lsn)> {
        let suspects = self.suspects.iter().filter(|(catalog, _)| self.unmet.contains(catalog));
        suspects.map(|(catalog, lsn)| (*catalog, *lsn)).min_by_key(|(catalog, lsn)| (*lsn, *catalog))
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
        // An irrelevant row, such as that of an index other than a primary key.
        let Some(key) = new.as_ref().or(old.as_ref()).map(Row::key) else { return };
        if let Some(Row::Class(class)) = &new
            && (class.name.starts_with("pg_temp_") || class.name.starts_with("pg_toast_"))
            && tuple.action == Action::Insert
        {
            self.findings.transient.insert(class.file);
        }
        if let Some(Row::Class(class)) = &new
            && !is_old_unknown
        {
            self.note_made_file((record.lsn, record.header.xid), old.as_ref(), class);
        }
        // The relation gets another file, and the row does not show the previous one.
        if let Some(Row::Class(class)) = &new
            && is_old_unknown
            && class.file != 0
        {
            let is_new =
                |created: &FxHashSet<RelFileLocator>| created.iter().any(|file| file.relation == class.file);
            if self.created.get(&record.header.xid).is_some_and(is_new) {
                self.note_rewrite(record.header.xid, class.oid);
            }
        }
        for row in [&old, &new] {
            if let Some(Row::Class(class)) = row
                && (self.layouts.contains_key(&class.oid) || is_large_object_catalog(class.oid))
            {
                for tablespace in self.tablespaces.clone() {
                    self.note_catalog_file(class.oid, tablespace, class.file);
                }
            }
        }
        // The relation gets the name, or had it before.
        let has_name = |row: &Option<Row>| matches!(row, Some(Row::Class(class)) if (self.is_wanted)(class));
        let is_named = has_name(&old) || has_name(&new);
        if !is_named && matches!(key, Key::Class(oid) | Key::Attribute(oid, _) if self.others.contains(&oid))
        {
            return;
        }
        let (lsn, xid) = (record.lsn, record.header.xid);
        let type_update = match key {
            Key::Attribute(relation, _) => self.type_update(relation, tuple),
            _ => TypeUpdate::No,
        };
        let type_update = match type_update {
            // A column that is added, or gets another type, gets its expression afterwards.
            TypeUpdate::Expression if self.has_just_changed(xid, key) => TypeUpdate::No,
            other => other,
        };
        self.findings.changes.push(CatalogChange { lsn, xid, key, old, new, is_old_unknown, type_update });
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
        // 12 was rolled back with 11, and then the WAL named 10 as the parent of 11. 20 and 21 form a cycle.
        let parents = FxHashMap::from_iter([(12, 11), (11, 10), (20, 21), (21, 20)]);
        let findings = Findings { parents, ..Findings::default() };
        assert_eq!([12, 11, 10, 9].map(|xid| findings.top(xid)), [10, 10, 10, 9]);
        assert!([20, 21].contains(&findings.top(20)));
    }

    #[test]
    fn what_a_crash_ended_is_aborted() {
        let (lost, committed) = (FxHashMap::from_iter([(10, Lsn(100)), (11, Lsn(100))]), Lsn(200));
        let end = Outcome::Committed { time: Timestamp(0), lsn: committed };
        let findings = Findings { lost, ends: FxHashMap::from_iter([(11, end)]), ..Findings::default() };
        let outcomes = [10, 11, 12].map(|xid| findings.outcome(xid));
        assert_eq!(outcomes, [Outcome::Aborted { lsn: Lsn(100) }, end, Outcome::Unfinished]);
        let is_lost = [Lsn(99), Lsn(100)].map(|lsn| findings.is_lost_at(10, lsn));
        assert_eq!((is_lost, findings.is_lost_at(11, committed)), ([false, true], false));
    }

    #[test]
    fn unrelated_transactions_are_not_kept() {
        let mut findings =
            Findings { parents: FxHashMap::from_iter([(11, 10), (13, 10)]), ..Findings::default() };
        let interesting = FxHashSet::from_iter([12, 14]);
        let aborted = Outcome::Aborted { lsn: Lsn(100) };
        findings.note_end(&interesting, 11, [12], aborted);
        // The toplevel transaction of 12 is the toplevel transaction of 11, although 11 is forgotten.
        assert_eq!((findings.top(12), findings.outcome(12)), (10, aborted));
        let committed = Outcome::Committed { time: Timestamp(0), lsn: Lsn(200) };
        findings.note_end(&interesting, 10, [13, 14], committed);
        assert_eq!(findings.parents, FxHashMap::from_iter([(12, 10), (14, 10)]));
        assert_eq!((findings.outcome(12), findings.outcome(14)), (aborted, committed));
        findings.note_end(&interesting, 20, [], committed);
        assert_eq!(findings.ends.len(), 2);
    }
}
