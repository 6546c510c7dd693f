//! Changes as SQL: what reverts them, and what makes them again.
//!
//! A row is found by the table's primary key, if there is one; else by all its columns, and of several equal rows one is taken. Statements
//! are for the table alone (`ONLY`): tables that inherit from it have rows of their own, perhaps with the same key or at the same place.
//! A statement is made with the table that the caller gives: the change's, by the names that it has where the statement is run
//! ([`NamesAtEnd`](crate::NamesAtEnd)), with the columns marked as dropped that it no longer has there. Statements need the settings of
//! [`SETTINGS`], under which literals mean what they say.

use std::fmt::{self, Write};

use walden_source::names::Identifier;

use crate::change::{Cell, Image, Operation, Row, RowChange, Table, TableColumn};
use crate::types::oid;
use crate::value::Value;

/// Settings under which the statements' literals are read as they were printed.
pub const SETTINGS: &str = "\
SET LOCAL client_encoding = 'UTF8';
SET LOCAL standard_conforming_strings = on;
SET LOCAL datestyle = 'ISO, YMD';
SET LOCAL intervalstyle = 'postgres';
SET LOCAL timezone = 'UTC';
SET LOCAL extra_float_digits = 1;
SET LOCAL lc_monetary = 'C';
SET LOCAL xmloption = content;
";

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
        let _ = write!(values, "{comma}{}", literal(cell)?);
    }
    if names.is_empty() {
        return Ok(format!("INSERT INTO {} DEFAULT VALUES;", Qualified(table)));
    }
    let is_identity = columns(table, row).any(|(column, _)| column.column.is_identity_always);
    let overriding = if is_identity { " OVERRIDING SYSTEM VALUE" } else { "" };
    Ok(format!("INSERT INTO {} ({names}){overriding} VALUES ({values});", Qualified(table)))
}

fn delete(table: &Table, row: &Row) -> Result<String, &'static str> {
    Ok(format!("DELETE FROM ONLY {} WHERE {};", Qualified(table), condition(table, row)?))
}

fn update(table: &Table, from: &Row, to: &Row) -> Result<Option<String>, &'static str> {
    let mut assignments = String::new();
    for ((column, old), (_, new)) in columns(table, from).zip(columns(table, to)) {
        if old == new && !matches!(old, Cell::Unknown(_)) || column.column.is_generated {
            continue;
        }
        let comma = if assignments.is_empty() { "" } else { ", " };
        let _ = write!(assignments, "{comma}{} = {}", Name(&column.column.name), literal(new)?);
    }
    if assignments.is_empty() {
        return Ok(None);
    }
    let condition = condition(table, from)?;
    Ok(Some(format!("UPDATE ONLY {} SET {assignments} WHERE {condition};", Qualified(table))))
}

/// What is true for a row alone, or of several equal ones for one.
fn condition(table: &Table, row: &Row) -> Result<String, &'static str> {
    // With one of its columns, the key was dropped: other rows may have the same values in the others.
    let has_key = !table.columns.iter().any(|column| column.column.is_key && column.column.is_dropped);
    let key = columns(table, row).filter(|(column, _)| has_key && column.column.is_key);
    // A column that became part of the key later may have been null.
    if key.clone().next().is_some() && !key.clone().any(|(_, cell)| *cell == Cell::Null) {
        let mut parts = Vec::new();
        for (column, cell) in key {
            parts.push(format!("{} = {}", Name(&column.column.name), literal(cell)?));
        }
        return Ok(parts.join(" AND "));
    }
    let mut parts = Vec::with_capacity(row.cells.len());
    for (column, cell) in columns(table, row) {
        parts.push(equality(column, cell)?);
    }
    // All rows of a table without columns are equal.
    let condition = if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") };
    let table = Qualified(table);
    Ok(format!("ctid IN (SELECT ctid FROM ONLY {table} WHERE {condition} LIMIT 1)"))
}

/// What is true if a column has exactly this value: types whose operator for it is missing or takes other values for equal are
/// compared by their text.
fn equality(column: &TableColumn, cell: &Cell) -> Result<String, &'static str> {
    let name = Name(&column.column.name);
    let literal = literal(cell)?;
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
        Value::Json(_)
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

/// A cell as a literal without a type, which takes the column's.
fn literal(cell: &Cell) -> Result<String, &'static str> {
    match cell {
        Cell::Null => Ok("NULL".to_owned()),
        Cell::Unknown(why) => Err(why),
        Cell::Value(value) if has_unknown(value) => Err("a value's type cannot be read"),
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
            format!(r#"UPDATE ONLY {table} SET "a ""b""" = 'it''s' WHERE "id" = '-1';"#)
        );
        assert_eq!(
            redo(&update).unwrap().unwrap(),
            format!(r#"UPDATE ONLY {table} SET "a ""b""" = NULL WHERE "id" = '-1';"#)
        );
        let insert = change(Operation::Insert, false, Image::None, new);
        assert_eq!(
            undo(&insert).unwrap().unwrap(),
            format!(
                r#"DELETE FROM ONLY {table} WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = '-1' AND "a ""b""" IS NULL LIMIT 1);"#
            )
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
        let expected = format!(
            r#"UPDATE ONLY {table} SET "a ""b""" = 'old' WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "a ""b""" = 'new' LIMIT 1);"#
        );
        assert_eq!(without(&update, 1), Some(expected));
        let delete = change(Operation::Delete, true, old.clone(), Image::None);
        assert_eq!(without(&delete, 2), Some(format!(r#"INSERT INTO {table} ("id") VALUES (1);"#)));
        let mut insert = change(Operation::Insert, true, Image::None, old);
        assert_eq!(without(&insert, 2), Some(format!(r#"DELETE FROM ONLY {table} WHERE "id" = 1;"#)));
        // A value that is not known is not needed.
        insert.after = image(1, Cell::Unknown("no chunks"));
        assert_eq!(without(&insert, 2), Some(format!(r#"DELETE FROM ONLY {table} WHERE "id" = 1;"#)));
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
            format!(r#"UPDATE ONLY {table} SET "a ""b""" = '-0' WHERE "id" = 1;"#)
        );
        let insert = change(Operation::Insert, false, Image::None, of(f64::NAN));
        assert_eq!(
            undo(&insert).unwrap().unwrap(),
            format!(
                r#"DELETE FROM ONLY {table} WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = 1 AND "a ""b""" = 'NaN' LIMIT 1);"#
            )
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
