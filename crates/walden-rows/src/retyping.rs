//! Columns to which `ALTER COLUMN ... TYPE` assigns another type, or other values.
//!
//! The WAL does not contain an expression (`USING`). If a column's type does not reveal an expression, two
//! changes together do. The column's row in `pg_attribute` is rewritten without any other change, and in the
//! same transaction the table gets a file that was filled row by row. Without an expression, `ALTER TABLE`
//! keeps the file if the type keeps values, and `VACUUM FULL` and `CLUSTER` do not write the column's row.

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_source::names::Column;

use crate::catalog::{Key, Row, TypeUpdate};
use crate::change::Outcome;
use crate::survey::{CatalogChange, Findings};
use crate::types::oid;

/// A column that most likely has other values in all rows of a table, starting with a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ComputedAnew {
    /// LSN of the record by which the table gets the file with the new values.
    pub lsn: Lsn,
    pub xid: u32,
    /// The table's name at the record.
    pub table: String,
    /// The column's number.
    pub number: i16,
    /// The column's name at the record.
    pub name: String,
    /// Whether its type keeps values, so that nothing else shows the change.
    pub is_type_kept: bool,
}

/// Finds columns whose values an expression computed again, by table, in WAL order.
pub(crate) fn computed_anew(
    tables: &FxHashSet<u32>,
    findings: &Findings,
) -> FxHashMap<u32, Vec<ComputedAnew>> {
    let mut found: FxHashMap<u32, Vec<ComputedAnew>> = FxHashMap::default();
    // Each transaction's changes of a table's columns since the table got its file.
    let mut columns: FxHashMap<(u32, u32), Vec<&CatalogChange>> = FxHashMap::default();
    let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
    for change in findings.changes.iter().filter(|change| is_committed(change.xid)) {
        match (change.key, &change.new) {
            (Key::Attribute(table, _), Some(_)) if tables.contains(&table) => {
                columns.entry((table, change.xid)).or_default().push(change);
            }
            (Key::Class(table), Some(Row::Class(class))) if tables.contains(&table) => {
                let old = match &change.old {
                    Some(Row::Class(old)) => Some(old),
                    _ => None,
                };
                let is_filled = findings.filled_by_rows.contains(&class.file);
                // If the previous row is unknown, only a filled file is certainly new.
                if old.map_or(!is_filled, |old| old.file == class.file) {
                    continue;
                }
                let columns = columns.remove(&(table, change.xid)).unwrap_or_default();
                if is_filled {
                    let is_moved = old.is_some_and(|old| old.persistence != class.persistence);
                    found.entry(table).or_default().extend(find_recomputed_columns(
                        change,
                        &class.name,
                        &columns,
                        is_moved,
                    ));
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the columns that a rewrite recomputed. `columns` are the preceding changes of columns.
/// `is_explained` is whether the rewrite has a reason other than them.
fn find_recomputed_columns(
    rewrite: &CatalogChange,
    table: &str,
    columns: &[&CatalogChange],
    is_explained: bool,
) -> Vec<ComputedAnew> {
    let column = |row: &Option<Row>| match row {
        Some(Row::Attribute { column, .. }) => Some(column.clone()),
        _ => None,
    };
    let mut updates = Vec::new();
    let mut is_explained = is_explained;
    for change in columns {
        let Some(new) = column(&change.new) else { continue };
        let old = match column(&change.old) {
            Some(old) => old,
            None if change.is_old_unknown => new.clone(),
            // An added column may have a default that is computed for each row.
            None => {
                is_explained = true;
                continue;
            }
        };
        let needs_rewrite = !keeps_values(&old, &new) || is_converted(&old, &new);
        is_explained |= change.type_update == TypeUpdate::Other && needs_rewrite;
        updates.push((change.type_update, old, new));
    }
    let mut found: Vec<ComputedAnew> = Vec::new();
    for (update, old, new) in updates {
        let is_type_kept = keeps_values(&old, &new);
        let is_computed = match update {
            TypeUpdate::No | TypeUpdate::Expression => false,
            TypeUpdate::Same => true,
            TypeUpdate::Other => !is_type_kept || !is_explained && !is_converted(&old, &new),
        };
        // A generated column has no expression in `USING`.
        if is_computed && !new.is_generated && !found.iter().any(|known| known.number == new.number) {
            let (lsn, xid, number) = (rewrite.lsn, rewrite.xid, new.number);
            let table = table.to_owned();
            found.push(ComputedAnew { lsn, xid, table, number, name: new.name, is_type_kept });
        }
    }
    found
}

/// Whether kept values are converted, so that `ALTER TABLE` rewrites the table even without an expression
/// (`ATColumnChangeRequiresRewrite`).
fn is_converted(before: &Column, after: &Column) -> bool {
    match (before.type_oid, after.type_oid) {
        (oid::INT2, oid::INT4 | oid::INT8 | oid::NUMERIC) => true,
        (oid::INT4, oid::INT8 | oid::NUMERIC) | (oid::INT8, oid::NUMERIC) => true,
        // Blanks are added.
        (oid::BPCHAR, oid::BPCHAR) => before.typmod != after.typmod,
        _ => false,
    }
}

/// Whether values of a column keep their meaning and fit in its new type, as in any wider type of the same
/// kind.
pub(crate) fn keeps_values(before: &Column, after: &Column) -> bool {
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

/// Whether each value allowed by the previous type modifier is the same under the new one.
fn keeps_modifier(before: &Column, after: &Column) -> bool {
    /// Number of stored digits of a second's fraction.
    const MAX_PRECISION: i32 = 6;
    if before.typmod == after.typmod {
        return true;
    }
    let precision = |typmod: i32| if typmod < 0 { MAX_PRECISION } else { typmod };
    match before.type_oid {
        // Without a modifier, trailing blanks are significant.
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

/// Precision and scale of a `numeric`; `None` without them (`make_numeric_typmod`).
fn numeric(typmod: i32) -> Option<(i32, i32)> {
    /// `VARHDRSZ`
    const HEADER: i32 = 4;
    /// The bits of the scale, whose highest bit is the sign.
    const SCALE: i32 = 0x7FF;
    const SIGN: i32 = 0x400;
    let bits = typmod.checked_sub(HEADER).filter(|bits| *bits >= 0)?;
    Some(((bits >> 16) & 0xFFFF, ((bits & SCALE) ^ SIGN) - SIGN))
}

#[cfg(test)]
mod tests {
    use walden_format::payload::Timestamp;

    use super::*;
    use crate::catalog::Class;

    const TABLE: u32 = 16_384;

    fn column(number: i16, type_oid: u32, typmod: i32) -> Column {
        Column { typmod, ..Column::plain(number, &format!("c{number}"), type_oid, -1, 'i') }
    }

    fn column_change(lsn: u64, old: Option<&Column>, new: &Column, type_update: TypeUpdate) -> CatalogChange {
        let row = |column: &Column| Row::Attribute { relation: TABLE, column: column.clone() };
        CatalogChange {
            lsn: Lsn(lsn),
            xid: 7,
            key: Key::Attribute(TABLE, new.number),
            old: old.map(row),
            new: Some(row(new)),
            is_old_unknown: false,
            type_update,
        }
    }

    fn table_change(lsn: u64, files: [u32; 2]) -> CatalogChange {
        let [old, new] = files.map(|file| {
            Some(Row::Class(Class {
                oid: TABLE,
                name: "t".to_owned(),
                namespace: 2200,
                file,
                tablespace: 0,
                toast: 0,
                kind: 'r',
                persistence: 'p',
            }))
        });
        let (key, type_update) = (Key::Class(TABLE), TypeUpdate::No);
        CatalogChange { lsn: Lsn(lsn), xid: 7, key, old, new, is_old_unknown: false, type_update }
    }

    /// The numbers of the recomputed columns, with the positions.
    fn found(changes: Vec<CatalogChange>, outcome: Outcome) -> Vec<(u64, i16, bool)> {
        let mut findings = Findings::default();
        findings.changes.extend(changes);
        findings.filled_by_rows.extend([2, 3]);
        findings.set_end(7, outcome);
        let found = computed_anew(&FxHashSet::from_iter([TABLE]), &findings);
        let of_table = found.into_values().flatten();
        of_table.map(|found| (found.lsn.0, found.number, found.is_type_kept)).collect()
    }

    #[test]
    fn values_that_an_expression_computes_are_noticed() {
        let (int, wide, text) =
            (column(1, oid::INT4, -1), column(1, oid::INT8, -1), column(1, oid::TEXT, -1));
        let (short, long) = (column(2, oid::VARCHAR, 24), column(2, oid::VARCHAR, 34));
        let (same, other) = (TypeUpdate::Same, TypeUpdate::Other);
        let committed = Outcome::Committed { time: Timestamp(0), lsn: Lsn(99) };
        let rewritten = |changes: Vec<CatalogChange>| found(changes, committed);
        let nothing: [(u64, i16, bool); 0] = [];
        let using = || column_change(1, Some(&int), &int, same);
        assert_eq!(rewritten(vec![using(), table_change(2, [1, 2])]), [(2, 1, true)]);
        // Whole pages were logged, or no file was written, or the column was changed in another way.
        assert_eq!(rewritten(vec![using(), table_change(2, [1, 9])]), nothing);
        assert_eq!(rewritten(vec![using(), table_change(2, [1, 1])]), nothing);
        let renamed = column_change(1, Some(&int), &int, TypeUpdate::No);
        assert_eq!(rewritten(vec![renamed, table_change(2, [1, 2])]), nothing);
        // The change belongs to the first rewrite, not to the next one.
        let twice = vec![using(), table_change(2, [1, 2]), table_change(3, [2, 3])];
        assert_eq!(rewritten(twice), [(2, 1, true)]);
        // Values of these types are converted without an expression; values of another type have another
        // meaning.
        assert_eq!(
            rewritten(vec![column_change(1, Some(&int), &wide, other), table_change(2, [1, 2])]),
            nothing
        );
        let retyped = vec![column_change(1, Some(&int), &text, other), table_change(2, [1, 2])];
        assert_eq!(rewritten(retyped), [(2, 1, false)]);
        // A greater length requires no rewrite, but need not be the rewrite's reason.
        let longer = || column_change(1, Some(&short), &long, other);
        assert_eq!(rewritten(vec![longer(), table_change(2, [1, 2])]), [(2, 2, true)]);
        let both = vec![longer(), column_change(1, Some(&int), &wide, other), table_change(2, [1, 2])];
        assert_eq!(rewritten(both), nothing);
        let with_new = vec![longer(), column_change(1, None, &int, TypeUpdate::No), table_change(2, [1, 2])];
        assert_eq!(rewritten(with_new), nothing);
        assert_eq!(found(vec![using(), table_change(2, [1, 2])], Outcome::Aborted { lsn: Lsn(99) }), nothing);
    }

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
}
