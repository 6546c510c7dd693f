//! The names of tables at the WAL's end, where statements are run.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_source::names::Column;

use crate::catalog::{Catalog, FIRST_MADE, Key, Row};
use crate::change::{Cell, Event, Image, Outcome, RowChange, Table, is_shown};
use crate::retyping::{ComputedAnew, computed_anew, keeps_values};
use crate::start::Pending;
use crate::survey::Findings;
use crate::value::{Range, Value};

/// The names that tables and their columns have at the end of the surveyed WAL, their dropped and retyped
/// columns, and their primary keys. Dropped tables have their last names. Also contains the labels of enums
/// at that position.
#[derive(Clone, Debug)]
pub struct NamesAtEnd {
    /// Names by tables' OIDs.
    tables: FxHashMap<u32, TableNames>,
    /// Labels that were renamed, by the OIDs of their rows in `pg_enum`.
    labels: FxHashMap<u32, String>,
    /// Tables that were dropped.
    dropped: FxHashSet<u32>,
    /// The last table that was renamed, with the number of later rewrites that recomputed columns. Rows of a
    /// table usually follow each other.
    last: Option<(Arc<Table>, usize, Arc<Table>)>,
}

#[derive(Clone, Debug)]
struct TableNames {
    /// Empty if unknown.
    schema: String,
    name: String,
    /// By the columns' numbers.
    columns: FxHashMap<i16, ColumnAtEnd>,
    /// Numbers of the columns that were dropped within the WAL. Numbers are never reused.
    dropped: FxHashSet<i16>,
    /// Numbers of the primary key's columns; empty without a key.
    key: Vec<i16>,
    /// Columns whose values were recomputed, in WAL order.
    computed: Vec<ComputedAnew>,
}

#[derive(Clone, Debug)]
struct ColumnAtEnd {
    /// The column as in the catalogs. The type is 0 if unknown.
    column: Column,
    /// The attributes of composite types in the column's values: the type's OID and the attribute's number.
    attributes: Vec<(u32, i16)>,
}

impl NamesAtEnd {
    /// Collects the names of tables; `catalog` and `pending` are the state at the WAL's start.
    pub(crate) fn collect(
        tables: &FxHashSet<u32>,
        mut catalog: Catalog,
        pending: &Pending,
        findings: &Findings,
    ) -> NamesAtEnd {
        let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
        let has_names = |row: &&Row| match row {
            Row::Class(class) => tables.contains(&class.oid),
            // A dropped column gets another name. Other relations' columns are attributes of composite types.
            Row::Attribute { relation, column } => !tables.contains(relation) || !column.is_dropped,
            Row::Namespace { .. } | Row::Type { .. } => true,
            _ => false,
        };
        let keys = keys_at_end(&catalog, pending, findings);
        let labels = renamed_labels(pending, findings);
        // The WAL's version of a row is newer.
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
        let computed = computed_anew(tables, findings);
        let names = |oid: &u32| {
            let dropped = dropped.get(oid).cloned().unwrap_or_default();
            let key = keys.get(oid).cloned().unwrap_or_default();
            let computed = computed.get(oid).cloned().unwrap_or_default();
            Some((*oid, TableNames { computed, ..TableNames::from_catalog(&catalog, *oid, dropped, key)? }))
        };
        let dropped = findings.dropped_tables();
        NamesAtEnd { tables: tables.iter().filter_map(names).collect(), labels, dropped, last: None }
    }

    /// Whether a table was dropped.
    pub fn is_dropped(&self, table: u32) -> bool {
        self.dropped.contains(&table)
    }

    /// The name of a table with its schema, in SQL syntax.
    pub fn table_name(&self, table: u32) -> Option<String> {
        let TableNames { schema, name, .. } = self.tables.get(&table)?;
        Some(Table::new(table, 0, schema.clone(), name.clone(), Vec::new()).to_string())
    }

    /// Returns a change with the labels that enums have at the end.
    pub fn relabel<'c>(&self, change: &'c RowChange) -> Cow<'c, RowChange> {
        if self.labels.is_empty() {
            return Cow::Borrowed(change);
        }
        let mut relabelled = change.clone();
        for image in [&mut relabelled.before, &mut relabelled.after] {
            let Image::Row(row) = image else { continue };
            for cell in &mut row.cells {
                if let Cell::Value(value) = cell {
                    relabel(value, &self.labels);
                }
            }
        }
        Cow::Owned(relabelled)
    }

    /// Returns a change's table at the time of the change, with the names at the end.
    pub fn rename(&mut self, change: &RowChange) -> Arc<Table> {
        let table = &change.table;
        let names = self.tables.get(&table.oid);
        let computed = match names {
            Some(names) => names.computed_after(change.lsn),
            None => &[],
        };
        if let Some((last, later, renamed)) = &self.last
            && Arc::ptr_eq(last, table)
            && *later == computed.len()
        {
            return Arc::clone(renamed);
        }
        let renamed = match names {
            Some(names) => Arc::new(names.rename(table, computed)),
            None => Arc::clone(table),
        };
        self.last = Some((Arc::clone(table), computed.len(), Arc::clone(&renamed)));
        renamed
    }

    /// The columns that a rewrite most likely recomputed, although their types keep values (`ALTER COLUMN ...
    /// TYPE ... USING`).
    pub fn computed_by(&self, rewrite: &Event) -> Vec<&str> {
        let names = self.tables.get(&rewrite.table.oid);
        let computed = names.into_iter().flat_map(|names| &names.computed);
        let of_it = computed.filter(|computed| computed.lsn == rewrite.lsn && computed.is_type_kept);
        of_it.map(|computed| computed.name.as_str()).collect()
    }
}

/// Labels of enums that `ALTER TYPE ... RENAME VALUE` changed, in their state at the end of the WAL.
fn renamed_labels(pending: &Pending, findings: &Findings) -> FxHashMap<u32, String> {
    let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
    let pending = pending.inserted.iter().filter(|(xid, _)| is_committed(**xid));
    let pending = pending.flat_map(|(_, rows)| rows);
    let logged = findings.changes.iter().filter(|change| is_committed(change.xid));
    // A label that was added is the one that values already have.
    let logged = logged.filter(|change| change.old.is_some() || change.is_old_unknown);
    let rows = pending.chain(logged.filter_map(|change| change.new.as_ref()));
    let label = |row: &Row| match row {
        Row::Enum { oid, label, .. } => Some((*oid, label.clone())),
        _ => None,
    };
    rows.filter_map(label).collect()
}

fn relabel(value: &mut Value, labels: &FxHashMap<u32, String>) {
    match value {
        Value::Enum { oid, label } => {
            if let Some(renamed) = labels.get(oid) {
                *label = Some(renamed.clone());
            }
        }
        Value::Array(array) => {
            array.elements.iter_mut().flatten().for_each(|element| relabel(element, labels));
        }
        Value::Record(columns) => {
            columns.iter_mut().flatten().for_each(|column| relabel(column, labels));
        }
        Value::Range(range) => relabel_bounds(range, labels),
        Value::Multirange(ranges) => ranges.iter_mut().for_each(|range| relabel_bounds(range, labels)),
        _ => {}
    }
}

fn relabel_bounds(range: &mut Range, labels: &FxHashMap<u32, String>) {
    let bounds = [&mut range.lower, &mut range.upper];
    bounds.into_iter().flatten().for_each(|bound| relabel(bound, labels));
}

/// Returns the primary keys of tables at the end of the WAL; for a dropped table, its last primary key.
fn keys_at_end(catalog: &Catalog, pending: &Pending, findings: &Findings) -> FxHashMap<u32, Vec<i16>> {
    let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
    let changes = || findings.changes.iter().filter(move |change| is_committed(change.xid));
    let dropped = findings.dropped_tables();
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
        // Names do not contain the OIDs of indexes.
        indexes.retain(|known, (of, _)| *known < FIRST_MADE || *of != *table);
        match new {
            Some(Row::Index { columns, .. }) => indexes.insert(oid, (*table, columns.clone())),
            _ => indexes.remove(&oid),
        };
    }
    indexes.into_values().collect()
}

impl TableNames {
    fn from_catalog(
        catalog: &Catalog,
        oid: u32,
        dropped: FxHashSet<i16>,
        key: Vec<i16>,
    ) -> Option<TableNames> {
        let class = catalog.class(oid)?;
        let column = |number| match catalog.get(Key::Attribute(oid, number)) {
            Some(Row::Attribute { column, .. }) => {
                let at_end = ColumnAtEnd {
                    column: column.clone(),
                    attributes: catalog.types.attributes(column.type_oid),
                };
                Some((number, at_end))
            }
            _ => None,
        };
        let columns = (1..=i16::MAX).map_while(column).collect();
        let schema = catalog.schema_of(class).to_owned();
        Some(TableNames { schema, name: class.name.clone(), columns, dropped, key, computed: Vec::new() })
    }

    /// The columns that were recomputed after a record.
    fn computed_after(&self, lsn: Lsn) -> &[ComputedAnew] {
        let before = self.computed.partition_point(|computed| computed.lsn <= lsn);
        &self.computed[before..]
    }

    /// Renames a table and its columns. `computed` are the columns that were recomputed since.
    fn rename(&self, table: &Table, computed: &[ComputedAnew]) -> Table {
        let mut renamed = Table { name: self.name.clone(), ..table.clone() };
        if !self.schema.is_empty() {
            renamed.schema.clone_from(&self.schema);
        }
        for column in &mut renamed.columns {
            if let Some(at_end) = self.columns.get(&column.column.number) {
                column.column.name.clone_from(&at_end.column.name);
                column.column.is_identity_always = at_end.column.is_identity_always;
                // After `DROP EXPRESSION`, previously computed values are ordinary values.
                column.column.is_generated = at_end.column.is_generated;
                column.is_retyped = !keeps_values(&column.column, &at_end.column);
                let is_same_type = column.column.type_oid == at_end.column.type_oid;
                column.has_other_attributes = is_same_type && column.attributes != at_end.attributes;
            }
            column.column.is_dropped |= self.dropped.contains(&column.column.number);
            column.is_computed_anew = computed.iter().any(|known| known.number == column.column.number);
        }
        renamed.has_new_columns = self.columns.iter().any(|(number, at_end)| {
            usize::try_from(*number).is_ok_and(|number| number > table.stored.len())
                && is_shown(&at_end.column)
                && !self.dropped.contains(number)
        });
        // The server's key where statements are run, if the table already had its columns: the values of an
        // earlier key may be duplicates by then.
        let numbers: Vec<i16> = renamed
            .columns
            .iter()
            .filter(|column| !column.column.is_dropped)
            .map(|column| column.column.number)
            .collect();
        // A generated key may have another expression by then (`SET EXPRESSION`).
        let is_generated =
            |number: &i16| self.columns.get(number).is_some_and(|at_end| at_end.column.is_generated);
        let has_key = self.key.iter().all(|number| numbers.contains(number) && !is_generated(number));
        for column in &mut renamed.columns {
            column.column.is_key = has_key && self.key.contains(&column.column.number);
        }
        renamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Array, Dimension};

    #[test]
    fn labels_are_renamed_at_any_depth() {
        let of = |oid, label: &str| Value::Enum { oid, label: Some(label.to_owned()) };
        let values = |first: &str| {
            let array = Array {
                dimensions: vec![Dimension { length: 2, lower: 1 }],
                elements: vec![Some(of(7, first)), None],
                element_type: 20_000,
            };
            let range = Range {
                is_empty: false,
                lower: Some(Box::new(of(7, first))),
                upper: None,
                has_lower: true,
                has_upper: false,
            };
            let (range, several) = (Value::Range(range.clone()), Value::Multirange(vec![range]));
            let columns = [Value::Array(array), range, several, of(8, "kept")];
            Value::Record(columns.into_iter().map(Some).chain([None]).collect())
        };
        let mut value = values("old");
        relabel(&mut value, &FxHashMap::from_iter([(7, "new".to_owned())]));
        assert_eq!(value, values("new"));
    }
}
