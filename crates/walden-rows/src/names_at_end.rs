//! The names that tables have where statements are run: at the log's end.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_source::names::Column;

use crate::catalog::{Catalog, FIRST_MADE, Key, Row};
use crate::change::{Cell, Image, Outcome, RowChange, Table};
use crate::start::Pending;
use crate::survey::Findings;
use crate::types::oid;
use crate::value::{Range, Value};

/// The names that tables and their columns have at the end of the log that was surveyed, which columns they no longer have or have with
/// another type, and their primary keys; of tables that were dropped, the names that they had last. Also the labels that enums have there.
#[derive(Clone, Debug)]
pub struct NamesAtEnd {
    /// By their OIDs.
    tables: FxHashMap<u32, TableNames>,
    /// Labels that were renamed, by the OIDs of their rows in `pg_enum`.
    labels: FxHashMap<u32, String>,
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
    /// As the catalogs have it. The type is 0 if it is not known.
    column: Column,
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
        let labels = renamed_labels(pending, findings);
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
        NamesAtEnd { tables: tables.iter().filter_map(names).collect(), labels, last: None }
    }

    /// A change with the labels of enums that they have at the end.
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

/// Labels of enums that `ALTER TYPE ... RENAME VALUE` has changed, as they are at the end of the log.
fn renamed_labels(pending: &Pending, findings: &Findings) -> FxHashMap<u32, String> {
    let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
    let pending = pending.inserted.iter().filter(|(xid, _)| is_committed(**xid));
    let pending = pending.flat_map(|(_, rows)| rows);
    let logged = findings.changes.iter().filter(|change| is_committed(change.xid));
    // A label that is added is the one that values have.
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
                    column: column.clone(),
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
                column.column.name.clone_from(&at_end.column.name);
                column.column.is_identity_always = at_end.column.is_identity_always;
                // After `DROP EXPRESSION`, values that were computed are values like others.
                column.column.is_generated = at_end.column.is_generated;
                column.is_retyped = !keeps_values(&column.column, &at_end.column);
                let is_same_type = column.column.type_oid == at_end.column.type_oid;
                column.has_other_attributes = is_same_type && column.attributes != at_end.attributes;
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

/// Whether values of a column mean the same, and fit, in the type that it gets: all do in a wider one of the same kind.
fn keeps_values(before: &Column, after: &Column) -> bool {
    let (from, to) = (before.type_oid, after.type_oid);
    // Digits of the largest integers.
    let fits_numeric = |digits: i32| match numeric(after.typmod) {
        Some((precision, scale)) => scale >= 0 && precision - scale >= digits,
        None => true,
    };
    match (from, to) {
        (0, _) | (_, 0) => true,
        _ if from == to => keeps_modifier(before, after),
        (oid::INT2, oid::INT4 | oid::INT8) | (oid::INT4, oid::INT8) => true,
        (oid::INT2, oid::NUMERIC) => fits_numeric(5),
        (oid::INT4, oid::NUMERIC) => fits_numeric(10),
        (oid::INT8, oid::NUMERIC) => fits_numeric(19),
        (oid::VARCHAR, oid::TEXT) => true,
        (oid::TEXT | oid::VARCHAR, oid::TEXT | oid::VARCHAR) => after.typmod < 0,
        _ => false,
    }
}

/// Whether each value that the modifier of a column's type allows is the same under the one that the column gets.
fn keeps_modifier(before: &Column, after: &Column) -> bool {
    /// Digits of a second that are stored.
    const MAX_PRECISION: i32 = 6;
    if before.typmod == after.typmod {
        return true;
    }
    let precision = |typmod: i32| if typmod < 0 { MAX_PRECISION } else { typmod };
    match before.type_oid {
        // Without one, blanks at the end count.
        oid::BPCHAR => before.typmod >= 0 && after.typmod >= before.typmod,
        _ if after.typmod < 0 => true,
        oid::VARCHAR | oid::VARBIT => before.typmod >= 0 && after.typmod >= before.typmod,
        oid::TIME | oid::TIMETZ | oid::TIMESTAMP | oid::TIMESTAMPTZ => {
            precision(after.typmod) >= precision(before.typmod)
        }
        // With another scale, a value is printed with other digits, by which it is compared.
        oid::NUMERIC => match (numeric(before.typmod), numeric(after.typmod)) {
            (Some((before, scale)), Some((after, scale_after))) => scale == scale_after && before <= after,
            _ => false,
        },
        _ => false,
    }
}

/// Precision and scale of a `numeric`; nothing without (`make_numeric_typmod`).
fn numeric(typmod: i32) -> Option<(i32, i32)> {
    /// `VARHDRSZ`
    const HEADER: i32 = 4;
    /// The bits of the scale, of which the highest one is the sign.
    const SCALE: i32 = 0x7FF;
    const SIGN: i32 = 0x400;
    let bits = typmod.checked_sub(HEADER).filter(|bits| *bits >= 0)?;
    Some(((bits >> 16) & 0xFFFF, ((bits & SCALE) ^ SIGN) - SIGN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Array, Dimension};

    #[test]
    fn values_that_fit_are_kept() {
        let column = |type_oid, typmod| Column { typmod, ..Column::plain(1, "c", type_oid, -1, 'i') };
        let numeric = |precision: i32, scale: i32| {
            let bits = (precision << 16) | (scale & 0x7FF);
            column(oid::NUMERIC, bits + 4)
        };
        let varchar = |length: i32| column(oid::VARCHAR, length + 4);
        let (int4, text) = (column(oid::INT4, -1), column(oid::TEXT, -1));
        let any_numeric = column(oid::NUMERIC, -1);
        for (before, after, is_kept) in [
            (numeric(10, 2), numeric(12, 2), true),
            (numeric(10, 2), any_numeric.clone(), true),
            (numeric(10, 2), numeric(10, 1), false),
            (numeric(10, 2), numeric(11, 3), false),
            (numeric(10, -2), numeric(11, -2), true),
            (any_numeric.clone(), numeric(10, 2), false),
            (varchar(20), varchar(30), true),
            (varchar(20), varchar(15), false),
            (varchar(20), text.clone(), true),
            (text.clone(), varchar(20), false),
            (text.clone(), column(oid::VARCHAR, -1), true),
            (column(oid::TIMESTAMP, 3), column(oid::TIMESTAMP, -1), true),
            (column(oid::TIMESTAMP, -1), column(oid::TIMESTAMP, 6), true),
            (column(oid::TIMESTAMP, 6), column(oid::TIMESTAMP, 0), false),
            (int4.clone(), column(oid::INT8, -1), true),
            (int4.clone(), numeric(12, 2), true),
            (int4.clone(), numeric(10, 2), false),
            (column(oid::INT8, -1), int4.clone(), false),
            (column(0, -1), int4.clone(), true),
            (column(oid::BIT, 3), column(oid::BIT, 4), false),
        ] {
            assert_eq!(keeps_values(&before, &after), is_kept, "{before:?} to {after:?}");
        }
    }

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
