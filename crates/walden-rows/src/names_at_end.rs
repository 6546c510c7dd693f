//! The names that tables have where statements are run: at the log's end.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::{Catalog, FIRST_MADE, Key, Row};
use crate::change::{Outcome, Table};
use crate::start::Pending;
use crate::survey::Findings;
use crate::types::oid;

/// The names that tables and their columns have at the end of the log that was surveyed, which columns they no longer have or have with
/// another type, and their primary keys; of tables that were dropped, the names that they had last.
#[derive(Clone, Debug)]
pub struct NamesAtEnd {
    /// By their OIDs.
    tables: FxHashMap<u32, TableNames>,
    /// The last table that was renamed: rows of a table come one after the other.
    last: Option<(Arc<Table>, Arc<Table>)>,
}

#[derive(Clone, Debug)]
struct TableNames {
    /// Empty if it is not known.
    schema: String,
    name: String,
    /// By the columns' numbers.
    columns: FxHashMap<i16, ColumnAtEnd>,
    /// Numbers of the columns that were dropped within the log. None is given to another column.
    dropped: FxHashSet<i16>,
    /// Numbers of the primary key's columns; none without one.
    key: Vec<i16>,
}

#[derive(Clone, Debug)]
struct ColumnAtEnd {
    name: String,
    /// 0 if it is not known.
    type_oid: u32,
    is_identity_always: bool,
    /// As in [`TableColumn`](crate::TableColumn).
    attributes: Vec<(u32, i16)>,
}

impl NamesAtEnd {
    /// Those of tables; `catalog` and `pending` are the state at the log's start.
    pub(crate) fn of(
        tables: &FxHashSet<u32>,
        mut catalog: Catalog,
        pending: &Pending,
        findings: &Findings,
    ) -> NamesAtEnd {
        let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
        let has_names = |row: &&Row| match row {
            Row::Class(class) => tables.contains(&class.oid),
            // A column that is dropped gets another name. The others are attributes of composite types.
            Row::Attribute { relation, column } => !tables.contains(relation) || !column.is_dropped,
            Row::Namespace { .. } | Row::Type { .. } => true,
            _ => false,
        };
        let keys = keys_at_end(&catalog, pending, findings);
        // What the log has of a row is newer.
        let pending = pending.inserted.iter().filter(|(xid, _)| is_committed(**xid));
        let pending = pending.flat_map(|(_, rows)| rows);
        let logged = findings.changes.iter().filter(|change| is_committed(change.xid));
        let logged = logged.filter_map(|change| change.new.as_ref());
        let mut dropped: FxHashMap<u32, FxHashSet<i16>> = FxHashMap::default();
        for row in pending.chain(logged) {
            if let Row::Attribute { relation, column } = row
                && column.is_dropped
            {
                dropped.entry(*relation).or_default().insert(column.number);
            }
            if has_names(&row) {
                catalog.set(row.key(), Some(row.clone()));
            }
        }
        catalog.refresh_composites();
        let names = |oid: &u32| {
            let dropped = dropped.get(oid).cloned().unwrap_or_default();
            let key = keys.get(oid).cloned().unwrap_or_default();
            Some((*oid, TableNames::of(&catalog, *oid, dropped, key)?))
        };
        NamesAtEnd { tables: tables.iter().filter_map(names).collect(), last: None }
    }

    /// A table as it was at a change, by the names of the end.
    pub fn rename(&mut self, table: &Arc<Table>) -> Arc<Table> {
        if let Some((last, renamed)) = &self.last
            && Arc::ptr_eq(last, table)
        {
            return Arc::clone(renamed);
        }
        let renamed = match self.tables.get(&table.oid) {
            Some(names) => Arc::new(names.rename(table)),
            None => Arc::clone(table),
        };
        self.last = Some((Arc::clone(table), Arc::clone(&renamed)));
        renamed
    }
}

/// The primary keys of tables at the end of the log; of tables that were dropped, those that they had last.
fn keys_at_end(catalog: &Catalog, pending: &Pending, findings: &Findings) -> FxHashMap<u32, Vec<i16>> {
    let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
    let changes = || findings.changes.iter().filter(move |change| is_committed(change.xid));
    let dropped: FxHashSet<u32> = changes()
        .filter_map(|change| match (change.key, &change.new) {
            (Key::Class(oid), None) => Some(oid),
            _ => None,
        })
        .collect();
    let mut indexes: FxHashMap<u32, (u32, Vec<i16>)> = FxHashMap::default();
    let pending_rows = |rows: &FxHashMap<u32, Vec<Row>>| -> Vec<Row> {
        rows.iter().filter(|(xid, _)| is_committed(**xid)).flat_map(|(_, rows)| rows.clone()).collect()
    };
    let removed: FxHashSet<Key> = pending_rows(&pending.deleted).iter().map(Row::key).collect();
    let added = pending_rows(&pending.inserted);
    for row in catalog.rows().filter(|row| !removed.contains(&row.key())).chain(&added) {
        if let Row::Index { oid, table, columns } = row {
            indexes.insert(*oid, (*table, columns.clone()));
        }
    }
    for change in changes() {
        let Key::Index(oid) = change.key else { continue };
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        let Some(Row::Index { table, .. }) = new.or(old) else { continue };
        if new.is_none() && dropped.contains(table) {
            continue;
        }
        // Names do not have the OIDs of indexes.
        indexes.retain(|known, (of, _)| *known < FIRST_MADE || *of != *table);
        match new {
            Some(Row::Index { columns, .. }) => indexes.insert(oid, (*table, columns.clone())),
            _ => indexes.remove(&oid),
        };
    }
    indexes.into_values().collect()
}

impl TableNames {
    fn of(catalog: &Catalog, oid: u32, dropped: FxHashSet<i16>, key: Vec<i16>) -> Option<TableNames> {
        let class = catalog.class(oid)?;
        let column = |number| match catalog.get(Key::Attribute(oid, number)) {
            Some(Row::Attribute { column, .. }) => {
                let at_end = ColumnAtEnd {
                    name: column.name.clone(),
                    type_oid: column.type_oid,
                    is_identity_always: column.is_identity_always,
                    attributes: catalog.types.attributes(column.type_oid),
                };
                Some((number, at_end))
            }
            _ => None,
        };
        let columns = (1..=i16::MAX).map_while(column).collect();
        let schema = catalog.schema_of(class).to_owned();
        Some(TableNames { schema, name: class.name.clone(), columns, dropped, key })
    }

    fn rename(&self, table: &Table) -> Table {
        let mut renamed = Table { name: self.name.clone(), ..table.clone() };
        if !self.schema.is_empty() {
            renamed.schema.clone_from(&self.schema);
        }
        for column in &mut renamed.columns {
            if let Some(at_end) = self.columns.get(&column.column.number) {
                column.column.name.clone_from(&at_end.name);
                column.column.is_identity_always = at_end.is_identity_always;
                column.is_retyped = !keeps_values(column.column.type_oid, at_end.type_oid);
                column.has_other_attributes =
                    column.column.type_oid == at_end.type_oid && column.attributes != at_end.attributes;
            }
            column.column.is_dropped |= self.dropped.contains(&column.column.number);
        }
        // The key that the server has where statements are run, as far as the table had its columns: others may be given twice by then.
        let numbers: Vec<i16> = renamed
            .columns
            .iter()
            .filter(|column| !column.column.is_dropped)
            .map(|column| column.column.number)
            .collect();
        let has_key = self.key.iter().all(|number| numbers.contains(number));
        for column in &mut renamed.columns {
            column.column.is_key = has_key && self.key.contains(&column.column.number);
        }
        renamed
    }
}

/// Whether values of a column mean the same in the type that it gets: all do in a wider one of the same kind.
fn keeps_values(before: u32, after: u32) -> bool {
    let is_wider = match before {
        oid::INT2 => matches!(after, oid::INT4 | oid::INT8 | oid::NUMERIC),
        oid::INT4 => matches!(after, oid::INT8 | oid::NUMERIC),
        oid::INT8 => after == oid::NUMERIC,
        oid::VARCHAR => after == oid::TEXT,
        oid::TEXT => after == oid::VARCHAR,
        _ => false,
    };
    before == after || is_wider || before == 0 || after == 0
}
