//! The second pass: records to rows.

use std::ops::ControlFlow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::payload::xact::plain_end;
use walden_format::payload::{self, Payload};
use walden_format::record::{Record, RelFileLocator};
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_format::transam::RunningTransactions;
use walden_redo::Replay;
use walden_redo::page::Tid;
use walden_redo::page::toast_pointer::ToastPointer;
use walden_source::datadir::DataDir;
use walden_source::names::{Column, Missing};

use crate::catalog::{Catalog, Key, Row as CatalogRow, TypeUpdate};
use crate::cell::{DAMAGED, NO_CHUNKS, cell_in_row};
use crate::change::{
    Cell, Entry, Event, EventKind, Image, Operation, Outcome, Row, RowChange, Table, TableColumn, is_shown,
};
use crate::decode::{printed, value};
use crate::encoding::is_exact;
use crate::heap::{Action, Bytes, Collector, TupleChange};
use crate::retyping::keeps_values;
use crate::start::Pending;
use crate::stored_value::{Stored, decompress};
use crate::survey::{CatalogChange, Findings};
use crate::toast::Chunks;
use crate::tuple::Tuple;

const NOT_THESE: &str = "the row does not fit the columns that are known: they were others then";
const NO_COLUMNS: &str = "the columns are not known";
const NOT_KEY: &str = "the WAL has the key's columns alone";
const NO_DEFAULT: &str =
    "the names have the column's default with bytes that are no text in the database's encoding";

/// Selects changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Position of the first record whose change is returned; replay starts earlier.
    pub from: Option<Lsn>,
    /// Position of the first record that is no longer read.
    pub to: Option<Lsn>,
    /// Only changes of this transaction: toplevel, or a subtransaction.
    pub xid: Option<u32>,
    /// Only these operations; all if empty. Events are always returned.
    pub operations: Vec<Operation>,
    /// Whether changes that were rolled back are returned, too.
    pub with_aborted: bool,
}

/// Numbers of rows and events, and of incompletely known rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Number of changes that were returned.
    pub changes: u64,
    /// Number of `changes` whose row before is unknown or incomplete.
    pub before_unknown: u64,
    /// Number of `changes` whose row after is unknown or incomplete.
    pub after_unknown: u64,
    /// Number of changes omitted because their transaction was rolled back.
    pub aborted: u64,
    /// Number of changes and events of transactions whose end is not in the range.
    pub unfinished: u64,
    /// Number of truncations, rewrites and drops.
    pub events: u64,
}

/// The event for a table's new file, by its persistence before and after.
fn rewrite(before: char, after: char, file: RelFileLocator) -> EventKind {
    match (before, after) {
        ('p', 'u') => EventKind::SetUnlogged { file },
        ('u', 'p') => EventKind::SetLogged { file },
        _ => EventKind::Rewrite { file },
    }
}

impl Counts {
    /// Returns lines for the user about omitted changes and incompletely known rows.
    pub fn notes(&self) -> Vec<String> {
        let many = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let mut notes = Vec::new();
        if self.aborted > 0 {
            notes.push(format!("{} rolled back and left out", many(self.aborted, "change")));
        }
        if self.unfinished > 0 {
            notes.push(format!(
                "{} of transactions whose end is not in the range, marked as unfinished",
                many(self.unfinished, "change")
            ));
        }
        if self.before_unknown > 0 || self.after_unknown > 0 {
            notes.push(format!(
                "of {}, {} before and {} after are not known whole; each says why",
                many(self.changes, "change"),
                many(self.before_unknown, "row"),
                many(self.after_unknown, "row")
            ));
        }
        notes
    }
}

pub(crate) struct Reader<'c, F> {
    pub findings: &'c Findings,
    /// Where replay starts; the segment may start earlier.
    pub start: Lsn,
    /// Index of the next change of the catalogs.
    pub next: usize,
    pub catalog: Catalog,
    pub pending: Pending,
    /// Previous rows that catalog changes replaced, in case their transactions abort.
    pub replaced: Vec<(u32, Key, Option<CatalogRow>)>,
    /// The wanted tables.
    pub tables: FxHashSet<u32>,
    /// All files that the tables and their TOAST tables have at any time.
    pub files: FxHashSet<RelFileLocator>,
    pub toast_files: FxHashSet<RelFileLocator>,
    /// The tables' current files.
    pub current: FxHashMap<RelFileLocator, u32>,
    pub known: FxHashMap<u32, Arc<Table>>,
    pub replay: Replay,
    pub base: Option<DataDir>,
    pub chunks: Chunks,
    /// Inserts that are not confirmed yet.
    pub speculative: FxHashMap<(RelFileLocator, Tid), (Lsn, TupleChange)>,
    pub filter: Filter,
    pub last_outcome: Option<(u32, Outcome)>,
    pub counts: Counts,
    pub tuples: Vec<TupleChange>,
    pub failure: Option<std::io::Error>,
    pub each: F,
}

impl<F: FnMut(Entry) -> ControlFlow<()>> Visitor for Reader<'_, F> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.filter.to.is_some_and(|to| record.lsn >= to) || self.replay.store.failure().is_some() {
            return ControlFlow::Break(());
        }
        if record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        if !self.pending.is_empty() && record.header.xid != 0 {
            self.begin_pending(record.header.xid);
        }
        let flow = match record.blocks.is_empty() {
            false if record.blocks.iter().any(|block| self.files.contains(&block.relation)) => {
                self.table_record(record)
            }
            false => ControlFlow::Continue(()),
            true if plain_end(record).is_some() => {
                self.transaction_end(record);
                ControlFlow::Continue(())
            }
            true => {
                match record.header.rmid {
                    rmid::XACT => self.transaction_end(record),
                    rmid::XLOG | rmid::STANDBY => self.take_back_lost(record),
                    _ => {}
                }
                let flow = match record.header.rmid {
                    rmid::SMGR => self.file_record(record),
                    _ => ControlFlow::Continue(()),
                };
                self.replay.apply(record, &mut ());
                flow
            }
        };
        flow?;
        let findings = self.findings;
        while let Some(change) = findings.changes.get(self.next).filter(|change| change.lsn <= record.lsn) {
            self.next += 1;
            self.catalog_change(change)?;
        }
        match self.failure {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}

impl<F: FnMut(Entry) -> ControlFlow<()>> Reader<'_, F> {
    fn table_record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let mut tuples = std::mem::take(&mut self.tuples);
        tuples.clear();
        let mut collector = Collector::new(&mut tuples);
        self.replay.apply(record, &mut collector);
        let is_page_known = collector.is_page_known;
        let mut flow = ControlFlow::Continue(());
        for tuple in tuples.drain(..) {
            if self.toast_files.contains(&tuple.file) {
                if let Err(error) = self.chunks.take(&tuple, is_page_known) {
                    self.failure.get_or_insert(error);
                }
            } else if let Some(&oid) = self.current.get(&tuple.file) {
                flow = self.tuple_change(record, oid, tuple);
            }
            if flow.is_break() {
                break;
            }
        }
        self.tuples = tuples;
        flow
    }

    fn tuple_change(&mut self, record: &Record<'_>, oid: u32, tuple: TupleChange) -> ControlFlow<()> {
        let (lsn, xid) = (record.lsn, record.header.xid);
        let place = |tid: Option<Tid>| tid.map(|tid| (tuple.file, tid));
        match tuple.action {
            Action::SpeculativeInsert => {
                if let Some(place) = place(tuple.new_tid) {
                    self.speculative.insert(place, (lsn, tuple));
                }
                ControlFlow::Continue(())
            }
            Action::Retract => {
                if let Some(place) = place(tuple.old_tid) {
                    self.speculative.remove(&place);
                }
                ControlFlow::Continue(())
            }
            Action::Confirm => match place(tuple.new_tid).and_then(|place| self.speculative.remove(&place)) {
                Some((lsn, insert)) => self.emit(lsn, xid, oid, Operation::Insert, insert),
                None => ControlFlow::Continue(()),
            },
            Action::Insert => self.emit(lsn, xid, oid, Operation::Insert, tuple),
            Action::Update => self.emit(lsn, xid, oid, Operation::Update, tuple),
            Action::Delete | Action::Move => self.emit(lsn, xid, oid, Operation::Delete, tuple),
        }
    }

    /// How a transaction ended; mostly the same transaction as for the previous change.
    fn outcome(&mut self, xid: u32) -> Outcome {
        match self.last_outcome {
            Some((last, outcome)) if last == xid => outcome,
            _ => self.last_outcome.insert((xid, self.findings.outcome(xid))).1,
        }
    }

    /// Returns whether a transaction's change is wanted; counts omitted changes of aborted transactions.
    fn is_wanted(&mut self, lsn: Lsn, xid: u32, outcome: Outcome, operation: Option<Operation>) -> bool {
        let filter = &self.filter;
        let is_wanted = filter.from.is_none_or(|from| lsn >= from)
            && filter.xid.is_none_or(|wanted| wanted == xid || wanted == self.findings.top(xid))
            && operation.is_none_or(|operation| {
                filter.operations.is_empty() || filter.operations.contains(&operation)
            });
        let is_aborted = matches!(outcome, Outcome::Aborted { .. });
        if is_wanted && is_aborted && !filter.with_aborted {
            self.counts.aborted += 1;
            return false;
        }
        is_wanted
    }

    fn emit(
        &mut self,
        lsn: Lsn,
        xid: u32,
        oid: u32,
        operation: Operation,
        tuple: TupleChange,
    ) -> ControlFlow<()> {
        let outcome = self.outcome(xid);
        if !self.is_wanted(lsn, xid, outcome, Some(operation)) {
            return ControlFlow::Continue(());
        }
        let Some(table) = self.table(oid) else { return ControlFlow::Continue(()) };
        let before = self.image(&table, &tuple.old);
        let after = self.image(&table, &tuple.new);
        let is_unknown = |image: &Image| match image {
            Image::None => false,
            Image::Row(row) => !row.is_known(),
            Image::Unknown(_) => true,
        };
        self.counts.changes += 1;
        self.counts.before_unknown += u64::from(is_unknown(&before));
        self.counts.after_unknown += u64::from(is_unknown(&after));
        self.counts.unfinished += u64::from(outcome == Outcome::Unfinished);
        (self.each)(Entry::Change(RowChange {
            lsn,
            xid,
            top_xid: self.findings.top(xid),
            outcome,
            table,
            operation,
            before,
            after,
            old_tid: tuple.old_tid,
            new_tid: tuple.new_tid,
            is_moved: tuple.action == Action::Move,
        }))
    }

    fn event(
        &mut self,
        (lsn, xid): (Lsn, u32),
        table: Arc<Table>,
        kind: EventKind,
        column: Option<String>,
    ) -> ControlFlow<()> {
        let outcome = self.outcome(xid);
        if !self.is_wanted(lsn, xid, outcome, None) {
            return ControlFlow::Continue(());
        }
        self.counts.events += 1;
        self.counts.unfinished += u64::from(outcome == Outcome::Unfinished);
        let top_xid = self.findings.top(xid);
        (self.each)(Entry::Event(Event { lsn, xid, top_xid, outcome, table, kind, column }))
    }

    /// A table in its current state.
    fn table(&mut self, oid: u32) -> Option<Arc<Table>> {
        if let Some(table) = self.known.get(&oid) {
            return Some(Arc::clone(table));
        }
        let mut table = self.catalog.table(oid)?;
        for column in &mut table.columns {
            let type_oid = column.column.type_oid;
            column.type_name = self.catalog.types.name(type_oid);
            column.attributes = self.catalog.types.attributes(type_oid);
            column.is_read = self.catalog.types.is_read(type_oid);
            column.prints_names = self.catalog.types.prints_names(type_oid);
        }
        let table = Arc::new(table);
        self.known.insert(oid, Arc::clone(&table));
        Some(table)
    }

    fn image(&mut self, table: &Table, bytes: &Bytes) -> Image {
        let (bytes, is_key) = match bytes {
            Bytes::None => return Image::None,
            Bytes::Unknown(why) => return Image::Unknown(why),
            Bytes::Whole(bytes) => (bytes, false),
            Bytes::Key(bytes) => (bytes, true),
        };
        let Some(tuple) = Tuple::parse(bytes).filter(|tuple| tuple.natts() <= table.stored.len()) else {
            return Image::Unknown(if table.stored.is_empty() { NO_COLUMNS } else { NOT_THESE });
        };
        let mut attributes = tuple.attributes(&table.stored);
        let mut cells = Vec::with_capacity(table.columns.len());
        for (index, column) in table.stored.iter().enumerate() {
            let attribute = match attributes.next() {
                Some(Ok(attribute)) => Some(attribute),
                Some(Err(_)) => return Image::Unknown(NOT_THESE),
                None if index < tuple.natts() => return Image::Unknown(NOT_THESE),
                None => None,
            };
            if !is_shown(column) {
                continue;
            }
            cells.push(match attribute {
                Some(Some(stored)) => self.cell(column, stored),
                Some(None) if is_key && !column.is_key => Cell::Unknown(NOT_KEY),
                Some(None) => Cell::Null,
                None => self.missing(column),
            });
        }
        Image::Row(Row { cells })
    }

    fn cell(&mut self, column: &Column, stored: Stored<'_>) -> Cell {
        match cell_in_row(&self.catalog.types, column, stored) {
            Ok(cell) => cell,
            Err(pointer) => self.toasted(column, &pointer),
        }
    }

    fn toasted(&mut self, column: &Column, pointer: &ToastPointer) -> Cell {
        let class = self.catalog.class(pointer.relation);
        let files = class.map(|class| self.catalog.files(class)).unwrap_or_default();
        let Some((&file, others)) = files.split_first() else {
            return Cell::Unknown(NO_CHUNKS);
        };
        let store = &mut self.replay.store;
        let mut found = self.chunks.fetch(store, self.base.as_mut(), file, pointer);
        for &file in others {
            if let Ok(None) = found {
                found = self.chunks.fetch(store, None, file, pointer);
            }
        }
        match found {
            Ok(Some(bytes)) => {
                let bytes = if pointer.is_compressed() { decompress(&bytes) } else { Some(bytes) };
                match bytes {
                    Some(bytes) => Cell::Value(value(&self.catalog.types, column.type_oid, &bytes)),
                    None => Cell::Unknown(DAMAGED),
                }
            }
            Ok(None) => Cell::Unknown(NO_CHUNKS),
            Err(error) => {
                self.failure.get_or_insert(error);
                Cell::Unknown(NO_CHUNKS)
            }
        }
    }

    /// The value of a column that was added after the row was written.
    fn missing(&self, column: &Column) -> Cell {
        match &column.missing {
            Missing::Null => Cell::Null,
            Missing::Text(text) if !is_exact(text) => Cell::Unknown(NO_DEFAULT),
            Missing::Text(text) => Cell::Value(printed(&self.catalog.types, column.type_oid, text)),
            Missing::Bytes(bytes) => Cell::Value(value(&self.catalog.types, column.type_oid, bytes)),
        }
    }

    /// Reports a truncation in place: the table's file was created by the same transaction
    /// (`ExecuteTruncateGuts`). Vacuum also truncates files without rows (`lazy_truncate_heap`), but never a
    /// file that its transaction created.
    fn file_record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let Ok(Payload::StorageTruncate(cut)) = payload::parse(record) else {
            return ControlFlow::Continue(());
        };
        let xid = record.header.xid;
        let oid = self.current.get(&cut.relation).copied();
        let oid = oid.filter(|&oid| cut.blocks == 0 && xid != 0 && self.has_made(xid, oid, cut.relation));
        let table = oid.and_then(|oid| self.table(oid));
        match table {
            Some(table) => self.event((record.lsn, xid), table, EventKind::Truncate, None),
            None => ControlFlow::Continue(()),
        }
    }

    /// Whether a transaction in progress has created a table's file.
    fn has_made(&self, xid: u32, oid: u32, file: RelFileLocator) -> bool {
        let top = self.findings.top(xid);
        self.replaced.iter().any(|(of, key, before)| {
            let had_file = matches!(before, Some(CatalogRow::Class(class)) if class.file == file.relation);
            *key == Key::Class(oid) && self.findings.top(*of) == top && !had_file
        })
    }

    fn catalog_change(&mut self, change: &CatalogChange) -> ControlFlow<()> {
        let CatalogChange { lsn, xid, key, ref old, ref new, .. } = *change;
        let mut event = None;
        // A dropped table loses its columns first. Keep the table with its columns.
        if let (Key::Attribute(oid, _), None) = (key, new)
            && self.tables.contains(&oid)
        {
            self.table(oid);
        }
        if let Key::Class(oid) = key
            && self.tables.contains(&oid)
            && let Some(before) = self.catalog.class(oid).cloned()
            && let Some(table) = self.table(oid)
        {
            // Names do not contain the persistence.
            let persistence = match old {
                Some(CatalogRow::Class(old)) => old.persistence,
                _ => before.persistence,
            };
            match new {
                Some(CatalogRow::Class(after)) if after.file != before.file && before.file != 0 => {
                    let file = self.catalog.file(after);
                    // Names contain the OID of the database's tablespace where the catalog contains 0.
                    let tablespace = |file: Option<RelFileLocator>| file.map(|file| file.tablespace);
                    let is_moved = tablespace(file) != tablespace(self.catalog.file(&before));
                    let is_copied = self.findings.transient.contains(&after.file) || is_moved;
                    event = match (is_copied, file) {
                        (true, Some(file)) => Some((table, rewrite(persistence, after.persistence, file))),
                        _ => Some((table, EventKind::Truncate)),
                    };
                }
                None => event = Some((table, EventKind::Drop)),
                _ => {}
            }
        }
        let columns = self.column_events(change);
        let before = self.set(key, new.clone());
        self.replaced.push((xid, key, before));
        for (table, kind, name) in columns {
            self.event((lsn, xid), table, kind, Some(name))?;
        }
        match event {
            Some((table, kind)) => self.event((lsn, xid), table, kind, None),
            None => ControlFlow::Continue(()),
        }
    }

    /// Returns the column events that a catalog change causes. Columns of a table that the same transaction
    /// creates cause none.
    fn column_events(&mut self, change: &CatalogChange) -> Vec<(Arc<Table>, EventKind, String)> {
        let (Key::Attribute(relation, _), Some(CatalogRow::Attribute { column: new, .. })) =
            (change.key, &change.new)
        else {
            return Vec::new();
        };
        let old = match self.catalog.get(change.key) {
            Some(CatalogRow::Attribute { column, .. }) => Some(column),
            _ => None,
        };
        let kind = match old {
            None if new.is_dropped => return Vec::new(),
            None => EventKind::AddColumn,
            Some(_) if change.type_update == TypeUpdate::Expression => EventKind::SetExpression,
            Some(old) if old.is_dropped => return Vec::new(),
            Some(_) if new.is_dropped => EventKind::DropColumn,
            Some(old) if old.is_generated && !new.is_generated => EventKind::DropExpression,
            Some(old) => {
                let is_same_type = (old.type_oid, old.typmod) == (new.type_oid, new.typmod);
                if is_same_type && old.is_generated == new.is_generated {
                    return Vec::new();
                }
                EventKind::AlterColumn { keeps_values: keeps_values(old, new) }
            }
        };
        let name = old.unwrap_or(new).name.clone();
        // A table is also a composite type.
        let composite = self
            .catalog
            .composite(relation)
            .filter(|_| !matches!(kind, EventKind::SetExpression | EventKind::DropExpression));
        let mut events = composite.map(|composite| self.attribute_events(composite)).unwrap_or_default();
        let is_made = || {
            let top = self.findings.top(change.xid);
            self.replaced.iter().any(|(xid, key, before)| {
                *key == Key::Class(relation) && before.is_none() && self.findings.top(*xid) == top
            })
        };
        if self.tables.contains(&relation) && !(kind == EventKind::AddColumn && is_made()) {
            events.extend(self.table(relation).map(|table| (table, kind, name)));
        }
        events
    }

    /// The columns whose values contain attributes of a composite type.
    fn attribute_events(&mut self, composite: u32) -> Vec<(Arc<Table>, EventKind, String)> {
        let mut events = Vec::new();
        let mut oids: Vec<u32> = self.tables.iter().copied().collect();
        oids.sort_unstable();
        for table in oids.into_iter().filter_map(|oid| self.table(oid)) {
            let has = |column: &&TableColumn| column.attributes.iter().any(|(of, _)| *of == composite);
            for column in table.columns.iter().filter(has) {
                let kind = EventKind::AlterColumn { keeps_values: false };
                events.push((Arc::clone(&table), kind, column.column.name.clone()));
            }
        }
        events
    }

    fn set(&mut self, key: Key, row: Option<CatalogRow>) -> Option<CatalogRow> {
        if let Key::Attribute(relation, _) = key
            && let Some(composite) = self.catalog.composite(relation)
        {
            let has = |column: &TableColumn| column.attributes.iter().any(|(of, _)| *of == composite);
            self.known.retain(|_, table| !table.columns.iter().any(has));
        }
        match key {
            Key::Attribute(..) if row.is_none() => {}
            Key::Class(oid) | Key::Attribute(oid, _) if self.tables.contains(&oid) => {
                self.known.remove(&oid);
            }
            Key::Index(_) | Key::Enum(_) | Key::Range(_) | Key::Namespace(_) => self.known.clear(),
            Key::Type(oid) => {
                let uses = |table: &Arc<Table>| table.stored.iter().any(|column| column.type_oid == oid);
                self.known.retain(|_, table| !uses(table));
            }
            _ => {}
        }
        let before = self.catalog.set(key, row);
        self.catalog.refresh_composites();
        if let Key::Class(oid) = key {
            self.find_files(oid);
        }
        before
    }

    /// Updates a table's current files.
    fn find_files(&mut self, oid: u32) {
        if !self.tables.contains(&oid) {
            return;
        }
        self.current.retain(|_, of| *of != oid);
        let files = self.catalog.class(oid).map(|class| self.catalog.files(class)).unwrap_or_default();
        self.current.extend(files.into_iter().map(|file| (file, oid)));
    }

    /// Applies a transaction's catalog changes from before the WAL's start. The transaction itself sees these
    /// changes before its end; other transactions see them only afterwards.
    fn begin_pending(&mut self, xid: u32) {
        let findings = self.findings;
        let top = findings.top(xid);
        let keys = self.pending.inserted.keys().chain(self.pending.deleted.keys());
        let mut xids: Vec<u32> = keys.copied().filter(|of| findings.top(*of) == top).collect();
        if xids.is_empty() {
            return;
        }
        xids.sort_unstable();
        xids.dedup();
        // A backup also contains the transaction's later changes, which are in the WAL.
        let is_of_it =
            |xid: u32| findings.top(xid) == top && !matches!(findings.outcome(xid), Outcome::Aborted { .. });
        let logged: Vec<_> = findings.changes.iter().filter(|change| is_of_it(change.xid)).collect();
        for xid in &xids {
            if let Some(rows) = self.pending.inserted.get_mut(xid) {
                rows.retain(|row| !logged.iter().any(|change| change.new.as_ref() == Some(row)));
            }
            if let Some(rows) = self.pending.deleted.get_mut(xid) {
                rows.retain(|row| !logged.iter().any(|change| change.key == row.key()));
            }
        }
        self.apply_pending(&xids, &FxHashSet::default());
    }

    /// Applies transactions' catalog changes from before the WAL's start, except for the rows of `changed`.
    fn apply_pending(&mut self, xids: &[u32], changed: &FxHashSet<Key>) {
        for xid in xids {
            for row in self.pending.deleted.remove(xid).unwrap_or_default() {
                if !changed.contains(&row.key()) && self.catalog.get(row.key()) == Some(&row) {
                    self.set(row.key(), None);
                }
            }
        }
        for xid in xids {
            for row in self.pending.inserted.remove(xid).unwrap_or_default() {
                if !changed.contains(&row.key()) {
                    self.set(row.key(), Some(row));
                }
            }
        }
    }

    /// Reverts the catalog changes of transactions that a crash or a promotion ended without a record. A
    /// prepared transaction whose end is not in the range keeps its changes. This is safe because its locks
    /// prevent other transactions from using its tables.
    fn take_back_lost(&mut self, record: &Record<'_>) {
        if self.replaced.is_empty() {
            return;
        }
        let running = match payload::parse(record) {
            Ok(Payload::RunningXacts(running)) => Some(RunningTransactions::from_snapshot(&running)),
            Ok(Payload::Checkpoint(checkpoint)) if checkpoint.shutdown => {
                Some(RunningTransactions::at_shutdown(&checkpoint))
            }
            // No transaction has started yet.
            Ok(Payload::EndOfRecovery(_)) => None,
            _ => return,
        };
        let findings = self.findings;
        let is_lost = |xid: u32| {
            findings.is_lost_at(xid, record.lsn)
                || findings.outcome(xid) == Outcome::Unfinished
                    && running.as_ref().is_none_or(|running| running.has_ended(xid))
        };
        let (lost, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.replaced).into_iter().partition(|(xid, _, _)| is_lost(*xid));
        self.replaced = others;
        for (_, key, before) in lost.into_iter().rev() {
            self.set(key, before);
        }
    }

    fn transaction_end(&mut self, record: &Record<'_>) {
        if self.replaced.is_empty() && self.pending.is_empty() {
            return;
        }
        let (end, is_commit) = match payload::parse(record) {
            Ok(Payload::Commit(end)) => (end, true),
            Ok(Payload::Abort(end)) => (end, false),
            _ => return,
        };
        let mut xids: FxHashSet<u32> = end.subxacts.into_iter().collect();
        xids.insert(end.twophase_xid.unwrap_or(record.header.xid));
        let (own, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.replaced).into_iter().partition(|(xid, _, _)| xids.contains(xid));
        self.replaced = others;
        if !is_commit {
            for (_, key, before) in own.into_iter().rev() {
                self.set(key, before);
            }
            return;
        }
        // The WAL's versions of these rows are newer.
        let changed: FxHashSet<Key> = own.iter().map(|(_, key, _)| *key).collect();
        let xids: Vec<u32> = xids.into_iter().collect();
        self.apply_pending(&xids, &changed);
    }
}
