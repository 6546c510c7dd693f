//! Changes as SQL: what reverts them, and what makes them again.
//!
//! A row is found by the table's primary key, if there is one, and has to have the values that the log has in the columns that are
//! changed, so that a statement fails where somebody has changed them since. Without a key it is found by all its columns, and of
//! several equal rows one is taken. Statements
//! are for the table alone (`ONLY`): tables that inherit from it have rows of their own, perhaps with the same key or at the same place.
//! A statement is made with the table that the caller gives: the change's, by the names that it has where the statement is run
//! ([`NamesAtEnd`](crate::NamesAtEnd)), with the columns marked as dropped that it no longer has there. Statements need the settings of
//! [`SETTINGS`], under which literals mean what they say.

use std::fmt::{self, Write};

use walden_source::names::Identifier;

use crate::change::{Cell, Image, Operation, Row, RowChange, Table, TableColumn};
use crate::types::oid;
use crate::value::Value;

/// What statements need before them in their transaction: settings under which literals are read as they were printed, unique
/// constraints that are checked when all rows have their values, and the table by which each statement says that it met one row.
pub const SETTINGS: &str = "\
SET LOCAL client_encoding = 'UTF8';
SET LOCAL standard_conforming_strings = on;
SET LOCAL datestyle = 'ISO, YMD';
SET LOCAL intervalstyle = 'postgres';
SET LOCAL timezone = 'UTC';
SET LOCAL extra_float_digits = 1;
SET LOCAL lc_monetary = 'C';
SET LOCAL xmloption = content;
SET LOCAL bytea_output = hex;
SET LOCAL array_nulls = on;
SET CONSTRAINTS ALL DEFERRED;
CREATE TEMPORARY TABLE walden_check (rows_met bigint CONSTRAINT \"the row is not as the log has it\" CHECK (rows_met = 1)) ON COMMIT DROP;
";

const RETYPED: &str = "the type of a column was changed since";
const OTHER_ATTRIBUTES: &str = "attributes were added to the composite type of a column since, or dropped";

/// The statement that reverts a change, without a line's end; nothing if there is nothing to revert.
///
/// # Errors
/// Why there is none: something of the row is not known.
pub fn undo(change: &RowChange, table: &Table) -> Result<Option<String>, &'static str> {
    let RowChange { before, after, .. } = change;
    match change.operation {
        Operation::Insert => delete(table, row(after)?).map(Some),
        Operation::Delete => insert(table, row(before)?).map(Some),
        Operation::Update => update(table, row(after)?, row(before)?),
    }
}

/// The statement that makes a change again; nothing if no column changed.
///
/// # Errors
/// Why there is none: something of the row is not known.
pub fn redo(change: &RowChange, table: &Table) -> Result<Option<String>, &'static str> {
    let RowChange { before, after, .. } = change;
    match change.operation {
        Operation::Insert => insert(table, row(after)?).map(Some),
        Operation::Delete => delete(table, row(before)?).map(Some),
        Operation::Update => update(table, row(before)?, row(after)?),
    }
}

/// Statements without which an update cannot set identity columns that are `GENERATED ALWAYS`, each with what takes it back.
pub fn identity_alterations(change: &RowChange, table: &Table) -> Vec<[String; 2]> {
    let (Some(before), Some(after)) = (change.before.row(), change.after.row()) else { return Vec::new() };
    let altered = |column: &TableColumn, how: &str| {
        format!(
            "ALTER TABLE ONLY {} ALTER COLUMN {} SET GENERATED {how};",
            Qualified(table),
            Name(&column.column.name)
        )
    };
    columns(table, before)
        .zip(columns(table, after))
        .filter(|((column, old), (_, new))| column.column.is_identity_always && old != new)
        .map(|((column, _), _)| [altered(column, "BY DEFAULT"), altered(column, "ALWAYS")])
        .collect()
}

/// The end of a script: what takes [`identity_alterations`] back, once deferred constraints have been checked, and `COMMIT`.
pub fn ending<'a>(alterations: impl Iterator<Item = &'a str>) -> String {
    let alterations: String = alterations.map(|line| format!("{line}\n")).collect();
    let checked = if alterations.is_empty() { "" } else { "SET CONSTRAINTS ALL IMMEDIATE;\n" };
    format!("{checked}{alterations}COMMIT;\n")
}

fn row(image: &Image) -> Result<&Row, &'static str> {
    match image {
        Image::Row(row) => Ok(row),
        Image::Unknown(why) => Err(why),
        Image::None => Err("the record has no row"),
    }
}

/// The columns of a table with a row's cells, but for those that were dropped since.
fn columns<'a>(table: &'a Table, row: &'a Row) -> impl Iterator<Item = (&'a TableColumn, &'a Cell)> + Clone {
    table.columns.iter().zip(&row.cells).filter(|(column, _)| !column.column.is_dropped)
}

fn insert(table: &Table, row: &Row) -> Result<String, &'static str> {
    let stored = columns(table, row).filter(|(column, _)| !column.column.is_generated);
    let (mut names, mut values) = (String::new(), String::new());
    for (column, cell) in stored.clone() {
        let comma = if names.is_empty() { "" } else { ", " };
        let _ = write!(names, "{comma}{}", Name(&column.column.name));
        let _ = write!(values, "{comma}{}", column_literal(column, cell)?);
    }
    if names.is_empty() {
        return Ok(format!("INSERT INTO {} DEFAULT VALUES;", Qualified(table)));
    }
    let is_identity = columns(table, row).any(|(column, _)| column.column.is_identity_always);
    let overriding = if is_identity { " OVERRIDING SYSTEM VALUE" } else { "" };
    Ok(format!("INSERT INTO {} ({names}){overriding} VALUES ({values});", Qualified(table)))
}

fn delete(table: &Table, row: &Row) -> Result<String, &'static str> {
    let condition = condition(table, row, |_| true, false)?;
    Ok(of_one_row(&format!("DELETE FROM ONLY {} WHERE {condition}", Qualified(table))))
}

/// A statement that fails unless it meets one row.
fn of_one_row(statement: &str) -> String {
    format!(
        "WITH met AS ({statement} RETURNING 1) INSERT INTO pg_temp.walden_check SELECT count(*) FROM met HAVING count(*) <> 1;"
    )
}

fn update(table: &Table, from: &Row, to: &Row) -> Result<Option<String>, &'static str> {
    let mut assignments = String::new();
    let mut changed = Vec::new();
    let mut is_key_changed = false;
    for ((column, old), (_, new)) in columns(table, from).zip(columns(table, to)) {
        if old == new && !matches!(old, Cell::Unknown(_)) || column.column.is_generated {
            continue;
        }
        let comma = if assignments.is_empty() { "" } else { ", " };
        let _ =
            write!(assignments, "{comma}{} = {}", Name(&column.column.name), column_literal(column, new)?);
        changed.push(column.column.number);
        is_key_changed |= column.column.is_key;
    }
    if assignments.is_empty() {
        return Ok(None);
    }
    let is_compared = |column: &TableColumn| is_key_changed || changed.contains(&column.column.number);
    let condition = condition(table, from, is_compared, is_key_changed)?;
    Ok(Some(of_one_row(&format!("UPDATE ONLY {} SET {assignments} WHERE {condition}", Qualified(table)))))
}

/// What is true for a row alone, or of several equal ones for one. Besides the key, `is_compared` says which columns must have the
/// row's values, as far as they can be compared. Where a constraint is deferred, several rows may have the key for a while.
fn condition(
    table: &Table,
    row: &Row,
    is_compared: impl Fn(&TableColumn) -> bool,
    may_be_twice: bool,
) -> Result<String, &'static str> {
    // With one of its columns, the key was dropped: other rows may have the same values in the others.
    let has_key = !table.columns.iter().any(|column| column.column.is_key && column.column.is_dropped);
    let key = columns(table, row).filter(|(column, _)| has_key && column.column.is_key);
    // A column that became part of the key later may have been null.
    if key.clone().next().is_some() && !key.clone().any(|(_, cell)| *cell == Cell::Null) {
        let mut parts = Vec::new();
        for (column, cell) in key {
            parts.push(format!("{} = {}", Name(&column.column.name), column_literal(column, cell)?));
        }
        let is_other = |column: &TableColumn| !column.column.is_key && is_compared(column);
        let others =
            columns(table, row).filter(|(column, cell)| is_other(column) && is_comparable(column, cell));
        parts.extend(others.filter_map(|(column, cell)| equality(column, cell).ok()));
        let condition = parts.join(" AND ");
        return Ok(if may_be_twice { one_of(table, &condition) } else { condition });
    }
    let mut parts = Vec::with_capacity(row.cells.len());
    for (column, cell) in columns(table, row) {
        parts.push(equality(column, cell)?);
    }
    // All rows of a table without columns are equal.
    let condition = if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") };
    Ok(one_of(table, &condition))
}

fn one_of(table: &Table, condition: &str) -> String {
    format!("ctid IN (SELECT ctid FROM ONLY {} WHERE {condition} LIMIT 1)", Qualified(table))
}

/// Whether a column's value says that the row is the log's. What is computed, or is known by a server's text alone, may differ.
fn is_comparable(column: &TableColumn, cell: &Cell) -> bool {
    !column.column.is_generated && !matches!(cell, Cell::Unknown(_) | Cell::Value(Value::Printed(_)))
}

/// What is true if a column has exactly this value: types whose operator for it is missing or takes other values for equal are
/// compared by their text.
fn equality(column: &TableColumn, cell: &Cell) -> Result<String, &'static str> {
    let name = Name(&column.column.name);
    let literal = column_literal(column, cell)?;
    Ok(match cell {
        Cell::Value(_) if is_compared_by_text(column.column.type_oid, cell) => {
            format!("{name}::text = {literal}")
        }
        Cell::Value(_) => format!("{name} = {literal}"),
        _ => format!("{name} IS NULL"),
    })
}

fn is_compared_by_text(type_oid: u32, cell: &Cell) -> bool {
    let Cell::Value(value) = cell else { return false };
    match value {
        Value::Text(_) => type_oid == oid::XML,
        Value::Printed(_) => matches!(type_oid, oid::JSON | oid::XML),
        // A domain over an enum has no operators.
        Value::Enum { .. }
        | Value::Json(_)
        | Value::Jsonb(_)
        | Value::Numeric(_)
        | Value::Interval(_)
        | Value::TimeTz { .. }
        | Value::Point(_)
        | Value::Line(_)
        | Value::Lseg(_)
        | Value::Box(_)
        | Value::Path { .. }
        | Value::Polygon(_)
        | Value::Circle(_)
        | Value::Array(_)
        | Value::Vector(_)
        | Value::Range(_)
        | Value::Multirange(_)
        | Value::Record(_) => true,
        // Zeros of both signs are equal.
        Value::Float4(value) => value.0 == 0.0,
        Value::Float8(value) => value.0 == 0.0,
        _ => false,
    }
}

/// A cell as a literal of the column as it is where the statement is run.
fn column_literal(column: &TableColumn, cell: &Cell) -> Result<String, &'static str> {
    match cell {
        Cell::Value(_) if column.is_retyped => Err(RETYPED),
        Cell::Value(Value::Record(values))
            if column.attributes.is_some_and(|count| count != values.len()) =>
        {
            Err(OTHER_ATTRIBUTES)
        }
        cell => literal(cell),
    }
}

/// A cell as a literal without a type, which takes the column's.
fn literal(cell: &Cell) -> Result<String, &'static str> {
    match cell {
        Cell::Null => Ok("NULL".to_owned()),
        Cell::Unknown(why) => Err(why),
        Cell::Value(value) if has_unknown(value) => Err(
            "a value cannot be read: it is of a type that is not known, or no text in the database's encoding",
        ),
        Cell::Value(Value::Int2(_) | Value::Int4(_) | Value::Int8(_)) => Ok(plain(cell)),
        // Its printed form is read since 15 only.
        Cell::Value(Value::Char(byte @ 0x80..)) => Ok(format!("(({})::\"char\")", byte.cast_signed())),
        Cell::Value(value) => Ok(format!("'{}'", value.to_string().replace('\'', "''"))),
    }
}

/// A number that is not negative as it is, others in quotes: `-1` is an expression.
fn plain(cell: &Cell) -> String {
    let Cell::Value(value) = cell else { return String::new() };
    let text = value.to_string();
    if text.starts_with('-') { format!("'{text}'") } else { text }
}

/// Whether a value or one within it is bytes that mean nothing to its type, or an OID instead of a label.
fn has_unknown(value: &Value) -> bool {
    let any = |values: &[Option<Value>]| values.iter().flatten().any(has_unknown);
    match value {
        Value::Unknown(_) | Value::Enum { label: None, .. } => true,
        Value::Array(array) => any(&array.elements),
        Value::Record(columns) => any(columns),
        Value::Range(range) => {
            [&range.lower, &range.upper].into_iter().flatten().any(|bound| has_unknown(bound))
        }
        Value::Multirange(ranges) => ranges.iter().any(|range| has_unknown(&Value::Range(range.clone()))),
        _ => false,
    }
}

/// An identifier, always in quotes: a word of SQL may be a column's name.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.replace('"', "\"\""))
    }
}

struct Qualified<'a>(&'a Table);

impl fmt::Display for Qualified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.schema.is_empty() {
            write!(f, "{}.", Name(&self.0.schema))?;
        }
        Name(&self.0.name).fmt(f)
    }
}

/// A name in a comment, on one line.
pub fn in_comment(name: &str) -> String {
    Identifier(name).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walden_format::lsn::Lsn;
    use walden_source::names::Column;

    use super::*;
    use crate::change::Outcome;
    use crate::value::Float;

    fn column(number: i16, name: &str, type_oid: u32, is_key: bool) -> Column {
        Column { is_key, ..Column::plain(number, name, type_oid, -1, 'i') }
    }

    fn change(operation: Operation, is_key: bool, before: Image, after: Image) -> RowChange {
        let columns = vec![column(1, "id", oid::INT4, is_key), column(2, "a \"b\"", oid::TEXT, false)];
        let table = Arc::new(Table::new(1, 5, "public".to_owned(), "order".to_owned(), columns));
        RowChange {
            lsn: Lsn(1),
            xid: 7,
            top_xid: 7,
            outcome: Outcome::Unfinished,
            table,
            operation,
            before,
            after,
            old_tid: None,
            new_tid: None,
            is_moved: false,
        }
    }

    fn image(id: i32, text: Cell) -> Image {
        Image::Row(Row { cells: vec![Cell::Value(Value::Int4(id)), text] })
    }

    fn undo(change: &RowChange) -> Result<Option<String>, &'static str> {
        super::undo(change, &change.table)
    }

    fn redo(change: &RowChange) -> Result<Option<String>, &'static str> {
        super::redo(change, &change.table)
    }

    fn text(text: &str) -> Cell {
        Cell::Value(Value::Text(text.to_owned()))
    }

    #[test]
    fn each_change_is_reverted_and_made_again() {
        let (old, new) = (image(-1, text("it's")), image(-1, Cell::Null));
        let update = change(Operation::Update, true, old.clone(), new.clone());
        let table = r#""public"."order""#;
        assert_eq!(
            undo(&update).unwrap().unwrap(),
            of_one_row(&format!(
                r#"UPDATE ONLY {table} SET "a ""b""" = 'it''s' WHERE "id" = '-1' AND "a ""b""" IS NULL"#
            ))
        );
        assert_eq!(
            redo(&update).unwrap().unwrap(),
            of_one_row(&format!(
                r#"UPDATE ONLY {table} SET "a ""b""" = NULL WHERE "id" = '-1' AND "a ""b""" = 'it''s'"#
            ))
        );
        let insert = change(Operation::Insert, false, Image::None, new);
        assert_eq!(
            undo(&insert).unwrap().unwrap(),
            of_one_row(&format!(
                r#"DELETE FROM ONLY {table} WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = '-1' AND "a ""b""" IS NULL LIMIT 1)"#
            ))
        );
        let delete = change(Operation::Delete, true, old, Image::None);
        assert_eq!(
            undo(&delete).unwrap().unwrap(),
            format!(r#"INSERT INTO {table} ("id", "a ""b""") VALUES ('-1', 'it''s');"#)
        );
        let nothing = change(Operation::Update, true, image(1, Cell::Null), image(1, Cell::Null));
        assert_eq!(undo(&nothing).unwrap(), None);
    }

    #[test]
    fn columns_that_the_table_no_longer_has_are_left_out() {
        let without = |change: &RowChange, number: i16| {
            let mut table = Table::clone(&change.table);
            let columns = table.columns.iter_mut().map(|column| &mut column.column);
            columns.for_each(|column| column.is_dropped = column.number == number);
            super::undo(change, &table).unwrap()
        };
        let table = r#""public"."order""#;
        let (old, new) = (image(1, text("old")), image(1, text("new")));
        let update = change(Operation::Update, true, old.clone(), new);
        assert_eq!(without(&update, 2), None);
        // The key is gone.
        let expected = of_one_row(&format!(
            r#"UPDATE ONLY {table} SET "a ""b""" = 'old' WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "a ""b""" = 'new' LIMIT 1)"#
        ));
        assert_eq!(without(&update, 1), Some(expected));
        let delete = change(Operation::Delete, true, old.clone(), Image::None);
        assert_eq!(without(&delete, 2), Some(format!(r#"INSERT INTO {table} ("id") VALUES (1);"#)));
        let mut insert = change(Operation::Insert, true, Image::None, old);
        let expected = Some(of_one_row(&format!(r#"DELETE FROM ONLY {table} WHERE "id" = 1"#)));
        assert_eq!(without(&insert, 2), expected);
        // A value that is not known is not needed.
        insert.after = image(1, Cell::Unknown("no chunks"));
        assert_eq!((without(&insert, 2), undo(&insert)), (expected.clone(), Ok(expected)));
    }

    /// A deferred constraint lets several rows have a key while the statements run.
    #[test]
    fn of_a_key_that_changes_one_row_is_taken() {
        let update = change(Operation::Update, true, image(1, text("a")), image(2, text("a")));
        let table = r#""public"."order""#;
        let expected = of_one_row(&format!(
            r#"UPDATE ONLY {table} SET "id" = 1 WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = 2 AND "a ""b""" = 'a' LIMIT 1)"#
        ));
        assert_eq!(undo(&update), Ok(Some(expected)));
    }

    #[test]
    fn values_of_another_type_are_not_set() {
        let mut update = change(Operation::Update, true, image(1, text("old")), image(1, text("new")));
        let mut table = Table::clone(&update.table);
        table.columns[1].is_retyped = true;
        assert_eq!(super::undo(&update, &table), Err(RETYPED));
        update.before = image(1, Cell::Null);
        let expected = r#"UPDATE ONLY "public"."order" SET "a ""b""" = NULL WHERE "id" = 1"#;
        assert_eq!(super::undo(&update, &table), Ok(Some(of_one_row(expected))));
        table.columns[1].is_retyped = false;
        table.columns[1].attributes = Some(2);
        update.before = image(1, Cell::Value(Value::Record(vec![None])));
        assert_eq!(super::undo(&update, &table), Err(OTHER_ATTRIBUTES));
    }

    #[test]
    fn identity_columns_can_be_set_meanwhile() {
        let update = change(Operation::Update, true, image(1, text("a")), image(2, text("a")));
        let mut table = Table::clone(&update.table);
        assert!(identity_alterations(&update, &table).is_empty());
        table.columns[0].column.is_identity_always = true;
        let altered = r#"ALTER TABLE ONLY "public"."order" ALTER COLUMN "id" SET GENERATED"#;
        let expected = [format!("{altered} BY DEFAULT;"), format!("{altered} ALWAYS;")];
        assert_eq!(identity_alterations(&update, &table), [expected]);
    }

    /// `NaN = NaN` and `0 = -0` are true in SQL.
    #[test]
    fn floats_are_changed_if_their_bytes_are() {
        let of = |value: f64| image(1, Cell::Value(Value::Float8(Float(value))));
        let changed = |is_key, old, new| change(Operation::Update, is_key, of(old), of(new));
        assert_eq!(undo(&changed(true, f64::NAN, f64::NAN)), Ok(None));
        assert_eq!(undo(&changed(true, 1.0, 1.0)), Ok(None));
        let table = r#""public"."order""#;
        assert_eq!(
            undo(&changed(true, -0.0, 0.0)).unwrap().unwrap(),
            of_one_row(&format!(
                r#"UPDATE ONLY {table} SET "a ""b""" = '-0' WHERE "id" = 1 AND "a ""b"""::text = '0'"#
            ))
        );
        let insert = change(Operation::Insert, false, Image::None, of(f64::NAN));
        assert_eq!(
            undo(&insert).unwrap().unwrap(),
            of_one_row(&format!(
                r#"DELETE FROM ONLY {table} WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = 1 AND "a ""b""" = 'NaN' LIMIT 1)"#
            ))
        );
    }

    /// Numbers of `xid`, `cid` and the like are no integers; `"char"` has bytes that 14 does not read as it prints them since.
    #[test]
    fn literals_take_the_type_of_their_column() {
        let cases = [
            (Value::Oid(3_000_000_000), "'3000000000'"),
            (Value::Int4(7), "7"),
            (Value::Int8(-7), "'-7'"),
            (Value::Char(b'x'), "'x'"),
            (Value::Char(0xC3), "((-61)::\"char\")"),
        ];
        for (value, expected) in cases {
            assert_eq!(literal(&Cell::Value(value)).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let delete = change(Operation::Delete, true, Image::Unknown("no page"), Image::None);
        assert_eq!(undo(&delete), Err("no page"));
        let delete = change(Operation::Delete, true, image(1, Cell::Unknown("no chunks")), Image::None);
        assert_eq!(undo(&delete), Err("no chunks"));
        let unknown = Cell::Value(Value::Unknown(vec![1]));
        assert!(undo(&change(Operation::Delete, true, image(1, unknown), Image::None)).is_err());
    }
}
