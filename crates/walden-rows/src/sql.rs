//! Changes as SQL: statements that revert them, and statements that repeat them.
//!
//! A statement finds a row by the table's primary key, if there is one. The columns that the statement
//! changes must have the values that the WAL has, so that the statement fails if another transaction has
//! changed them since. Without a key, a statement finds the row by all its columns, and changes one of
//! several equal rows. Statements are for the table alone (`ONLY`): tables that inherit from it have rows of
//! their own, perhaps with the same key or at the same TID. The caller passes the table of the change, with
//! the names that the table has where the statement is run ([`NamesAtEnd`](crate::NamesAtEnd)). Columns that
//! the table no longer has there are marked as dropped. Statements need the settings of [`SETTINGS`], under
//! which literals are read as they were printed. Statements are run in blocks of PL/pgSQL ([`Batch`]), which
//! check that each statement changes one row and need no objects in the database.

mod large_objects;

use std::fmt::{self, Write};

use walden_source::names::Identifier;

pub use large_objects::creates_large_object;

use crate::change::{Cell, Image, Operation, Row, RowChange, Table, TableColumn};
use crate::encoding::is_exact;
use crate::types::{is_builtin, oid};
use crate::value::Value;

/// Settings that precede statements in their transaction: settings under which literals are read as they were
/// printed, and unique constraints that are checked when all rows have their values.
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
";

/// Statements of a block. PostgreSQL keeps the plan of each until the block's end: with hundreds, a statement
/// takes longer.
const MAX_BATCH_STATEMENTS: usize = 20;
/// Bytes of lines after which a block ends, at any number of statements.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Why the value of a column is left out that the table no longer has.
const DROPPED: &str = "the column was dropped since";
/// Why no statement names a table or a column.
const NO_NAME: &str = "its name is no text in the database's encoding";

/// What makes or reverts a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The statement for a [`Batch`], with a check that it changed one row; `None` if no statement is
    /// necessary.
    pub text: Option<String>,
    /// The columns that the statement omits, with the reason, or the reason for a missing statement.
    pub left_out: Option<String>,
    /// Whether only some columns of an update, or columns that were dropped since, are left out. Otherwise,
    /// no statement of an older change of the row finds it as it has to be.
    pub is_partial: bool,
}

/// What reverts a change.
pub fn undo(change: &RowChange, table: &Table) -> Statement {
    let opposite = match change.operation {
        Operation::Insert => Operation::Delete,
        Operation::Delete => Operation::Insert,
        Operation::Update => Operation::Update,
    };
    statement(change, table, opposite, [&change.after, &change.before])
}

/// What makes a change again.
pub fn redo(change: &RowChange, table: &Table) -> Statement {
    statement(change, table, change.operation, [&change.before, &change.after])
}

fn statement(change: &RowChange, table: &Table, operation: Operation, [from, to]: [&Image; 2]) -> Statement {
    let left_out = |why| Statement { text: None, left_out: Some(why), is_partial: false };
    if let Some(made) = large_objects::statement(change, operation, [from, to]) {
        return made.unwrap_or_else(left_out);
    }
    if !is_exact(&table.schema) || !is_exact(&table.name) {
        return left_out(format!("table {table}: {NO_NAME}, or its schema's is not"));
    }
    let made = match operation {
        Operation::Insert => row(to).and_then(|to| insert(table, to)),
        Operation::Delete => row(from).and_then(|from| delete(table, from)),
        Operation::Update => row(from).and_then(|from| update(table, from, row(to)?)),
    };
    match made {
        Ok(statement) => {
            let text = statement.text.map(|text| checked(&text, operation, change, table));
            Statement { text, ..statement }
        }
        Err(why) => left_out(why),
    }
}

/// A statement that fails unless it meets one row. A trigger or rule that keeps an insert from the table
/// leaves none.
fn checked(text: &str, operation: Operation, change: &RowChange, table: &Table) -> String {
    let failure = match operation {
        Operation::Insert => "the row was not inserted",
        Operation::Update | Operation::Delete => "the row differs from the WAL",
    };
    let RowChange { operation, lsn, xid, .. } = change;
    let message = format!("{failure}: {} of {table} at {lsn} by transaction {xid}", operation.name());
    // In the format of RAISE, a percent sign is a place for a value.
    let message = message.replace('\'', "''").replace('%', "%%");
    format!(
        "{text};\nGET DIAGNOSTICS met = ROW_COUNT; IF met <> 1 THEN RAISE EXCEPTION '{message} (met % rows)', met; END IF;"
    )
}

/// Statements and comments that are run together.
#[derive(Debug, Default)]
pub struct Batch {
    lines: String,
    statements: usize,
}

impl Batch {
    /// Adds a [`Statement::text`], another statement, or a comment.
    pub fn push(&mut self, text: &str) {
        self.statements += usize::from(!text.starts_with("--"));
        self.lines.push_str(text);
        self.lines.push('\n');
    }

    /// Whether it is time to run it.
    pub fn is_full(&self) -> bool {
        self.statements >= MAX_BATCH_STATEMENTS || self.lines.len() >= MAX_BATCH_BYTES
    }

    /// Takes out what there is: comments as they are, statements as a block of PL/pgSQL.
    pub fn take(&mut self) -> String {
        let Batch { lines, statements } = std::mem::take(self);
        if statements == 0 {
            return lines;
        }
        let mut tag = "$walden$".to_owned();
        for number in 1.. {
            if !lines.contains(&tag) {
                break;
            }
            tag = format!("$walden{number}$");
        }
        // A table may have a column that is named as a variable is: `met`, or PL/pgSQL's own `found`.
        format!("DO {tag}\n#variable_conflict use_column\nDECLARE met bigint;\nBEGIN\n{lines}END {tag};\n")
    }
}

/// Statements without which an update cannot set identity columns that are `GENERATED ALWAYS`, each with what
/// takes it back.
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
        .filter(|((column, old), (_, new))| column.column.is_identity_always && !old.is_same(new))
        .filter(|((column, _), _)| {
            [&table.schema, &table.name, &column.column.name].into_iter().all(|name| is_exact(name))
        })
        .map(|((column, _), _)| [altered(column, "BY DEFAULT"), altered(column, "ALWAYS")])
        .collect()
}

/// The end of a script: what takes [`identity_alterations`] and [`defer_foreign_keys`] back, once deferred
/// constraints have been checked, and `COMMIT`.
pub fn ending<'a>(alterations: impl Iterator<Item = &'a str>) -> String {
    let alterations: String = alterations.map(|line| format!("{line}\n")).collect();
    let checked = if alterations.is_empty() { "" } else { "SET CONSTRAINTS ALL IMMEDIATE;\n" };
    format!("{checked}{alterations}COMMIT;\n")
}

/// Returns two blocks: the first block defers the foreign keys between the tables to the end of the
/// transaction, the second block reverts this. A row may come before the row that it refers to, as a cascade
/// logs the referenced table first. The blocks find the keys in `pg_constraint`.
///
/// Deferring does not delay the actions of a key, such as `ON DELETE CASCADE`. `acting` contains pairs of a
/// table and of a table whose rows must not change by such an action: the first block drops a key that has an
/// action from the second to the first, and the second block adds it again. Each pair of tables of `together`
/// is such a pair.
pub fn defer_foreign_keys<'t>(
    tables: impl Iterator<Item = &'t Table>,
    acting: impl Iterator<Item = (&'t Table, &'t Table)>,
    together: impl Iterator<Item = &'t Table>,
) -> [String; 2] {
    let literal = |table: &Table| format!("'{}'", Qualified(table).to_string().replace('\'', "''"));
    let mut names: Vec<String> = tables.map(literal).collect();
    let mut acting: Vec<String> =
        acting.map(|(on, by)| format!("({}, {})", literal(on), literal(by))).collect();
    let mut together: Vec<String> = together.map(literal).collect();
    for list in [&mut names, &mut acting, &mut together] {
        list.sort_unstable();
        list.dedup();
    }
    let block = |names: &str, rest: &str| {
        let tag = (0..).map(|number| format!("$walden{number}$")).find(|tag| !names.contains(tag.as_str()));
        let tag = tag.unwrap_or_default();
        format!("DO {tag}\nDECLARE key record;\nBEGIN\n{rest}END {tag};")
    };
    let names = names.join(", ");
    let root = |table: &str| format!("coalesce(pg_partition_root({table}::regclass), {table}::regclass)");
    let mut acts = Vec::new();
    if !acting.is_empty() {
        let (a, b, pairs) = (root("a"), root("b"), acting.join(", "));
        acts.push(format!("(confrelid, conrelid) IN\n(SELECT {a}, {b} FROM (VALUES {pairs}) pairs (a, b))"));
    }
    if !together.is_empty() {
        let list = format!("(SELECT {} FROM unnest(ARRAY[{}]) n)", root("n"), together.join(", "));
        acts.push(format!("confrelid IN {list} AND conrelid IN {list}"));
    }
    let acts = match acts.is_empty() {
        true => "false".to_owned(),
        false => format!(
            "(confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd')) AND ({})",
            acts.join("\nOR ")
        ),
    };
    let first = format!(
        "FOR key IN WITH named AS (SELECT {} AS t FROM unnest(ARRAY[{names}]) n)\n\
         SELECT oid, conrelid::regclass AS t, conname, condeferrable, obj_description(oid, 'pg_constraint') AS comment,\n\
         pg_get_constraintdef(oid) AS definition, {acts} AS acts\n\
         FROM pg_constraint WHERE contype = 'f' AND conparentid = 0\n\
         AND conrelid IN (SELECT t FROM named) AND confrelid IN (SELECT t FROM named) ORDER BY oid\n\
         LOOP\n\
         IF key.acts THEN\n\
         EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', key.t, key.conname);\n\
         PERFORM set_config('walden.foreign_keys', concat(current_setting('walden.foreign_keys', true),\n\
         format('ALTER TABLE %s ADD CONSTRAINT %I %s; ', key.t, key.conname, key.definition),\n\
         format('COMMENT ON CONSTRAINT %I ON %s IS %L; ', key.conname, key.t, key.comment)), true);\n\
         ELSIF NOT key.condeferrable THEN\n\
         EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE INITIALLY DEFERRED', key.t, key.conname);\n\
         PERFORM set_config('walden.foreign_keys', concat(current_setting('walden.foreign_keys', true),\n\
         format('ALTER TABLE %s ALTER CONSTRAINT %I NOT DEFERRABLE; ', key.t, key.conname)), true);\n\
         END IF;\n\
         END LOOP;\n",
        root("n")
    );
    let back = "EXECUTE coalesce(current_setting('walden.foreign_keys', true), '');\n";
    [block(&first, &first), block("", back)]
}

fn row(image: &Image) -> Result<&Row, String> {
    match image {
        Image::Row(row) => Ok(row),
        Image::Unknown(why) => Err((*why).to_owned()),
        Image::None => Err("the record has no row".to_owned()),
    }
}

/// The columns of a table with a row's cells, but for those that were dropped since.
fn columns<'a>(table: &'a Table, row: &'a Row) -> impl Iterator<Item = (&'a TableColumn, &'a Cell)> + Clone {
    table.columns.iter().zip(&row.cells).filter(|(column, _)| !column.column.is_dropped)
}

/// The values of columns that were dropped since, each with its reason, as far as a row has others than
/// `other`.
fn dropped_values(table: &Table, row: &Row, other: Option<&Row>) -> Vec<String> {
    let mut lost = Vec::new();
    for (index, (column, cell)) in table.columns.iter().zip(&row.cells).enumerate() {
        let TableColumn { column, .. } = column;
        let is_same = other.and_then(|other| other.cells.get(index)).is_some_and(|other| other.is_same(cell));
        if column.is_dropped && !column.is_generated && !is_same {
            let name = Identifier(&column.name);
            match cell {
                Cell::Null => {}
                Cell::Unknown(why) => lost.push(format!("column {name}: {why}; {DROPPED}")),
                Cell::Value(value) => lost.push(format!("column {name} = {}: {DROPPED}", on_one_line(value))),
            }
        }
    }
    lost
}

fn insert(table: &Table, row: &Row) -> Result<Statement, String> {
    let stored = columns(table, row).filter(|(column, _)| !column.column.is_generated);
    let (mut names, mut values, mut left_out) = (String::new(), String::new(), Vec::new());
    for (column, cell) in stored {
        match column_literal(column, cell) {
            Ok(literal) => {
                let comma = if names.is_empty() { "" } else { ", " };
                let _ = write!(names, "{comma}{}", Name(&column.column.name));
                let _ = write!(values, "{comma}{literal}");
            }
            Err(why) => left_out.push(why),
        }
    }
    let lost = dropped_values(table, row, None);
    // Without a column, it would be another row.
    if !left_out.is_empty() {
        left_out.extend(lost);
        return Err(left_out.join("; "));
    }
    let is_identity = columns(table, row).any(|(column, _)| column.column.is_identity_always);
    let overriding = if is_identity { " OVERRIDING SYSTEM VALUE" } else { "" };
    let text = match names.is_empty() {
        true => format!("INSERT INTO {} DEFAULT VALUES", Qualified(table)),
        false => format!("INSERT INTO {} ({names}){overriding} VALUES ({values})", Qualified(table)),
    };
    let is_partial = !lost.is_empty();
    Ok(Statement { text: Some(text), left_out: is_partial.then(|| lost.join("; ")), is_partial })
}

fn delete(table: &Table, row: &Row) -> Result<Statement, String> {
    let condition = condition(table, row, |_| true, false)?;
    let text = format!("DELETE FROM ONLY {} WHERE {condition}", Qualified(table));
    Ok(Statement { text: Some(text), left_out: None, is_partial: false })
}

fn update(table: &Table, from: &Row, to: &Row) -> Result<Statement, String> {
    let mut assignments = String::new();
    let (mut changed, mut left_out) = (Vec::new(), Vec::new());
    let mut is_key_changed = false;
    for ((column, old), (_, new)) in columns(table, from).zip(columns(table, to)) {
        if old.is_same(new) && !matches!(old, Cell::Unknown(_)) || column.column.is_generated {
            continue;
        }
        match column_literal(column, new) {
            Ok(literal) => {
                let comma = if assignments.is_empty() { "" } else { ", " };
                let _ = write!(assignments, "{comma}{} = {literal}", Name(&column.column.name));
                changed.push(column.column.number);
                is_key_changed |= column.column.is_key;
            }
            // The other columns do not depend on it, and no statement compares its values.
            Err(why) if !is_usable(column) && !column.column.is_key => {
                left_out.push(why);
            }
            Err(why) => return Err(why),
        }
    }
    let text = match assignments.is_empty() {
        true => None,
        false => {
            let is_compared =
                |column: &TableColumn| is_key_changed || changed.contains(&column.column.number);
            let condition = condition(table, from, is_compared, is_key_changed)?;
            Some(format!("UPDATE ONLY {} SET {assignments} WHERE {condition}", Qualified(table)))
        }
    };
    left_out.extend(dropped_values(table, to, Some(from)));
    let is_partial = !left_out.is_empty();
    let left_out = is_partial.then(|| left_out.join("; "));
    Ok(Statement { text, left_out, is_partial })
}

/// Returns a condition that is true for the row alone, or for one of several equal rows. `is_compared`
/// selects the columns that must have the row's values in addition to the key, as far as they can be
/// compared. If a constraint is deferred, several rows may have the key for a while (`may_be_twice`).
fn condition(
    table: &Table,
    row: &Row,
    is_compared: impl Fn(&TableColumn) -> bool,
    may_be_twice: bool,
) -> Result<String, String> {
    let not_found = |why: String| format!("the row cannot be found by {why}");
    // When a column of the key was dropped, the key was dropped too: several rows may have the same values in
    // the remaining columns.
    let has_key = !table.columns.iter().any(|column| column.column.is_key && column.column.is_dropped);
    let key = columns(table, row).filter(|(column, _)| has_key && column.column.is_key);
    // A column that became part of the key later may have been null.
    if key.clone().next().is_some() && !key.clone().any(|(_, cell)| *cell == Cell::Null) {
        let mut parts = Vec::new();
        for (column, cell) in key {
            parts.push(key_equality(column, cell).map_err(not_found)?);
        }
        let is_other = |column: &TableColumn| !column.column.is_key && is_compared(column);
        let others =
            columns(table, row).filter(|(column, cell)| is_other(column) && is_comparable(column, cell));
        parts.extend(others.filter_map(|(column, cell)| equality(column, cell).ok()));
        let condition = parts.join(" AND ");
        return Ok(if may_be_twice { one_of(table, &condition) } else { condition });
    }
    if table.has_new_columns {
        return Err(not_found("all its columns: others were added since".to_owned()));
    }
    let mut parts = Vec::with_capacity(row.cells.len());
    // A generated column depends on other columns, and may have another expression by now (`SET EXPRESSION`).
    for (column, cell) in columns(table, row).filter(|(column, _)| !column.column.is_generated) {
        parts.push(equality(column, cell).map_err(not_found)?);
    }
    // All rows of a table without columns are equal.
    let condition = if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") };
    Ok(one_of(table, &condition))
}

fn one_of(table: &Table, condition: &str) -> String {
    format!("ctid IN (SELECT ctid FROM ONLY {} WHERE {condition} LIMIT 1)", Qualified(table))
}

/// Whether a column's value identifies the row of the WAL. Values that are computed, or that are known only
/// as a server's text, may differ.
fn is_comparable(column: &TableColumn, cell: &Cell) -> bool {
    !column.column.is_generated && !matches!(cell, Cell::Unknown(_) | Cell::Value(Value::Printed(_)))
}

/// A condition that is true if a column has exactly this value: if PostgreSQL prints it alike.
fn equality(column: &TableColumn, cell: &Cell) -> Result<String, String> {
    let name = Name(&column.column.name);
    let literal = column_literal(column, cell)?;
    let type_oid = column.column.type_oid;
    Ok(match cell {
        // The text of these values has names, which depend on the settings; binary comparison of the rows
        // uses the OIDs.
        Cell::Value(Value::Array(_) | Value::Record(_)) if column.prints_names => match &column.type_name {
            Some(type_name) if is_exact(type_name) => {
                format!("record_image_eq(ROW({name}), ROW({literal}::{type_name}))")
            }
            _ => return Err(format!("column {name}: the name of its type is not known")),
        },
        Cell::Value(value) => match comparison(type_oid, value) {
            Comparison::Operator => format!("{name} = {literal}"),
            Comparison::Bytes => format!("{name} = {literal} COLLATE \"C\""),
            Comparison::Cast => format!("{name}::text = {literal} COLLATE \"C\""),
            Comparison::Output => format!("concat({name}) = {literal} COLLATE \"C\""),
        },
        _ if is_builtin(type_oid) => format!("{name} IS NULL"),
        // `IS NULL` is also true for a composite value whose attributes are all null.
        _ => format!("{name} IS NOT DISTINCT FROM NULL"),
    })
}

/// Returns the condition for a column of the primary key. Only the equality operator of the column's type can
/// use the index.
fn key_equality(column: &TableColumn, cell: &Cell) -> Result<String, String> {
    let exact = equality(column, cell)?;
    let Cell::Value(value) = cell else { return Ok(exact) };
    // A domain over an enum has no operator.
    if matches!(value, Value::Enum { .. })
        || comparison(column.column.type_oid, value) == Comparison::Operator
    {
        return Ok(exact);
    }
    Ok(format!("{} = {} AND {exact}", Name(&column.column.name), column_literal(column, cell)?))
}

/// How a column is compared with a literal exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comparison {
    /// The type's operator: equal values are printed alike.
    Operator,
    /// The operator without the column's collation, which may be nondeterministic.
    Bytes,
    /// The value's text: the type has no operator, or one for which values that are printed otherwise are
    /// equal.
    Cast,
    /// The text of the type's output function: a cast of `bpchar` removes blanks at the end.
    Output,
}

fn comparison(type_oid: u32, value: &Value) -> Comparison {
    match value {
        Value::Text(_) => match type_oid {
            oid::TEXT | oid::VARCHAR | oid::NAME => Comparison::Bytes,
            oid::XML => Comparison::Cast,
            // A domain may be over `bpchar`.
            _ => Comparison::Output,
        },
        Value::Printed(_) => match type_oid {
            oid::BYTEA
            | oid::FLOAT4
            | oid::FLOAT8
            | oid::MONEY
            | oid::DATE
            | oid::TIME
            | oid::TIMESTAMP
            | oid::TIMESTAMPTZ => Comparison::Operator,
            oid::XML => Comparison::Cast,
            // The text of the others does not depend on settings, and not all types have an operator.
            _ => Comparison::Output,
        },
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
        | Value::Record(_) => Comparison::Cast,
        // Zeros of both signs are equal.
        Value::Float4(value) if value.0 == 0.0 => Comparison::Cast,
        Value::Float8(value) if value.0 == 0.0 => Comparison::Cast,
        _ => Comparison::Operator,
    }
}

/// Whether values that the column had mean something else, or nothing, where the statement is run.
fn has_other_values(column: &TableColumn) -> bool {
    column.is_retyped || column.is_computed_anew || column.has_other_attributes
}

/// Returns whether statements can name a column, and the column's old values are valid values of the column
/// where the statements are run.
fn is_usable(column: &TableColumn) -> bool {
    column.is_read && !has_other_values(column) && is_exact(&column.column.name)
}

/// A cell as a literal of the column as it is where the statement is run.
fn column_literal(column: &TableColumn, cell: &Cell) -> Result<String, String> {
    let name = Identifier(&column.column.name);
    if !is_exact(&column.column.name) {
        return Err(format!("column {name}: {NO_NAME}"));
    }
    let value = match cell {
        Cell::Null => return Ok("NULL".to_owned()),
        Cell::Unknown(why) => return Err(format!("column {name}: {why}")),
        Cell::Value(value) => value,
    };
    let why = if column.is_retyped {
        "its type was changed since"
    } else if column.is_computed_anew {
        "ALTER COLUMN ... TYPE has most likely recomputed its values since"
    } else if column.has_other_attributes {
        "attributes of its composite type, or of one within it, were added or dropped since"
    } else if has_unknown(value) {
        "its type is not known, or it is no text in the database's encoding"
    } else {
        return Ok(literal(value));
    };
    Err(format!("column {name} = {}: {why}", on_one_line(value)))
}

/// A value as a literal without a type, which takes the column's.
fn literal(value: &Value) -> String {
    let text = value.to_string();
    match value {
        // With a minus sign, it is an expression.
        Value::Int2(0..) | Value::Int4(0..) | Value::Int8(0..) => text,
        // Only 15 and later read the printed text of these bytes.
        Value::Char(byte @ 0x80..) => format!("(({})::\"char\")", byte.cast_signed()),
        _ => format!("'{}'", text.replace('\'', "''")),
    }
}

/// A value as a literal for a comment.
fn on_one_line(value: &Value) -> String {
    let text = value.to_string().replace('\'', "''");
    match text.contains(['\n', '\r']) {
        true => format!("E'{}'", text.replace('\\', r"\\").replace('\n', r"\n").replace('\r', r"\r")),
        false => format!("'{text}'"),
    }
}

/// Whether a value or one within it is bytes that mean nothing to its type, or an OID instead of a label.
fn has_unknown(value: &Value) -> bool {
    let any = |values: &[Option<Value>]| values.iter().flatten().any(has_unknown);
    match value {
        Value::Unknown(_) | Value::Enum { label: None, .. } => true,
        Value::Enum { label: Some(label), .. } => !is_exact(label),
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
    use crate::value::{Float, Numeric, NumericSign};

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

    fn undo(change: &RowChange) -> Statement {
        super::undo(change, &change.table)
    }

    fn redo(change: &RowChange) -> Statement {
        super::redo(change, &change.table)
    }

    fn text(text: &str) -> Cell {
        Cell::Value(Value::Text(text.to_owned()))
    }

    /// A statement that makes or reverts a change whole.
    fn whole(change: &RowChange, text: &str) -> Statement {
        let operation = if text.starts_with("INSERT") { Operation::Insert } else { Operation::Update };
        let text = checked(text, operation, change, &change.table);
        Statement { text: Some(text), left_out: None, is_partial: false }
    }

    fn left_out(why: &str) -> Statement {
        Statement { text: None, left_out: Some(why.to_owned()), is_partial: false }
    }

    const NOTHING: Statement = Statement { text: None, left_out: None, is_partial: false };

    #[test]
    fn each_change_is_reverted_and_made_again() {
        let (old, new) = (image(-1, text("it's")), image(-1, Cell::Null));
        let update = change(Operation::Update, true, old.clone(), new.clone());
        let table = r#""public"."order""#;
        assert_eq!(
            undo(&update),
            whole(
                &update,
                &format!(
                    r#"UPDATE ONLY {table} SET "a ""b""" = 'it''s' WHERE "id" = '-1' AND "a ""b""" IS NULL"#
                )
            )
        );
        assert_eq!(
            redo(&update),
            whole(
                &update,
                &format!(
                    r#"UPDATE ONLY {table} SET "a ""b""" = NULL WHERE "id" = '-1' AND "a ""b""" = 'it''s' COLLATE "C""#
                )
            )
        );
        let insert = change(Operation::Insert, false, Image::None, new);
        assert_eq!(
            undo(&insert),
            whole(
                &insert,
                &format!(
                    r#"DELETE FROM ONLY {table} WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = '-1' AND "a ""b""" IS NULL LIMIT 1)"#
                )
            )
        );
        let delete = change(Operation::Delete, true, old, Image::None);
        assert_eq!(
            undo(&delete),
            whole(&delete, &format!(r#"INSERT INTO {table} ("id", "a ""b""") VALUES ('-1', 'it''s')"#))
        );
        let nothing = change(Operation::Update, true, image(1, Cell::Null), image(1, Cell::Null));
        assert_eq!(undo(&nothing), NOTHING);
    }

    /// The row before has the default of a column that names know as text, the row after the same value as it
    /// is stored.
    #[test]
    fn a_value_that_is_known_as_text_is_no_change() {
        let printed = |text: &str| Cell::Value(Value::Printed(text.to_owned()));
        let stored = Cell::Value(Value::Point([Float(1.0), Float(2.0)]));
        assert!(printed("(1,2)").is_same(&stored) && stored.is_same(&printed("(1,2)")));
        assert!(printed("(1,2)").is_same(&printed("(1,2)")) && !printed("(1,3)").is_same(&stored));
        assert!(!printed("").is_same(&Cell::Null));
        let mut update = change(Operation::Update, true, image(1, printed("(1,2)")), image(1, stored));
        assert_eq!((undo(&update), redo(&update)), (NOTHING, NOTHING));
        // Points have no operator that is named so.
        update.before = image(1, printed("(3,4)"));
        let table = Arc::get_mut(&mut update.table).expect("the change has its table alone");
        table.columns.iter_mut().for_each(|column| column.column.is_key = false);
        table.columns[1].column.type_oid = oid::POINT;
        let text = redo(&update).text.expect("a statement");
        assert!(text.contains(r#"concat("a ""b""") = '(3,4)' COLLATE "C""#), "{text}");
    }

    #[test]
    fn each_statement_is_followed_by_its_check() {
        let delete = change(Operation::Delete, true, image(1, Cell::Null), Image::None);
        let mut table = Table::clone(&delete.table);
        table.name = "50%'s".to_owned();
        let check = |failure: &str| {
            format!(
                "GET DIAGNOSTICS met = ROW_COUNT; IF met <> 1 THEN RAISE EXCEPTION '{failure}: delete of \
                 public.\"50%%''s\" at 0/00000001 by transaction 7 (met % rows)', met; END IF;"
            )
        };
        let (undone, redone) = (super::undo(&delete, &table).text, super::redo(&delete, &table).text);
        let (statement, after) = undone.as_deref().and_then(|text| text.split_once('\n')).unwrap();
        assert!(statement.starts_with("INSERT") && statement.ends_with(';'), "{statement}");
        assert_eq!(after, check("the row was not inserted"));
        let (statement, after) = redone.as_deref().and_then(|text| text.split_once('\n')).unwrap();
        assert!(statement.starts_with("DELETE") && statement.ends_with(';'), "{statement}");
        assert_eq!(after, check("the row differs from the WAL"));
    }

    #[test]
    fn a_block_ends_where_its_text_does_not() {
        let mut batch = Batch::default();
        assert_eq!(batch.take(), "");
        batch.push("-- a comment");
        assert_eq!(batch.take(), "-- a comment\n");
        batch.push("-- a comment");
        batch.push("one '$walden$' $walden1$;");
        assert_eq!(
            batch.take(),
            "DO $walden2$\n#variable_conflict use_column\nDECLARE met bigint;\nBEGIN\n\
             -- a comment\none '$walden$' $walden1$;\nEND $walden2$;\n"
        );
        assert_eq!(batch.take(), "");
        for count in 1..=MAX_BATCH_STATEMENTS {
            batch.push("one;");
            batch.push("-- a comment");
            assert_eq!(batch.is_full(), count == MAX_BATCH_STATEMENTS);
        }
        batch.take();
        batch.push(&"x".repeat(MAX_BATCH_BYTES));
        assert!(batch.is_full());
    }

    #[test]
    fn columns_that_the_table_no_longer_has_are_left_out() {
        let without = |change: &RowChange, number: i16| {
            let mut table = Table::clone(&change.table);
            let columns = table.columns.iter_mut().map(|column| &mut column.column);
            columns.for_each(|column| column.is_dropped = column.number == number);
            super::undo(change, &table)
        };
        let table = r#""public"."order""#;
        let (old, new) = (image(1, text("old")), image(1, text("new")));
        let update = change(Operation::Update, true, old.clone(), new);
        let gone = Some(r#"column "a ""b""" = 'old': the column was dropped since"#.to_owned());
        assert_eq!(without(&update, 2), Statement { text: None, left_out: gone.clone(), is_partial: true });
        // The key is gone.
        let expected = format!(
            r#"UPDATE ONLY {table} SET "a ""b""" = 'old' WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "a ""b""" = 'new' COLLATE "C" LIMIT 1)"#
        );
        assert_eq!(without(&update, 1), whole(&update, &expected));
        let delete = change(Operation::Delete, true, old.clone(), Image::None);
        let expected = format!(r#"INSERT INTO {table} ("id") VALUES (1)"#);
        let expected = Statement { left_out: gone, is_partial: true, ..whole(&delete, &expected) };
        assert_eq!(without(&delete, 2), expected);
        let empty = change(Operation::Delete, true, image(1, Cell::Null), Image::None);
        assert_eq!(without(&empty, 2).left_out, None);
        let mut insert = change(Operation::Insert, true, Image::None, old);
        let expected = whole(&insert, &format!(r#"DELETE FROM ONLY {table} WHERE "id" = 1"#));
        assert_eq!(without(&insert, 2), expected);
        // A value that is not known is not needed.
        insert.after = image(1, Cell::Unknown("no chunks"));
        assert_eq!((without(&insert, 2), undo(&insert)), (expected.clone(), expected));
    }

    /// A deferred constraint lets several rows have a key while the statements run.
    #[test]
    fn a_changed_key_selects_one_row() {
        let update = change(Operation::Update, true, image(1, text("a")), image(2, text("a")));
        let table = r#""public"."order""#;
        let expected = format!(
            r#"UPDATE ONLY {table} SET "id" = 1 WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = 2 AND "a ""b""" = 'a' COLLATE "C" LIMIT 1)"#
        );
        assert_eq!(undo(&update), whole(&update, &expected));
    }

    #[test]
    fn values_of_another_type_are_not_set() {
        let mut update = change(Operation::Update, true, image(1, text("old")), image(1, text("new")));
        let mut table = Table::clone(&update.table);
        let retyped = r#"column "a ""b""" = 'old': its type was changed since"#;
        table.columns[1].is_retyped = true;
        assert_eq!(super::undo(&update, &table), Statement { is_partial: true, ..left_out(retyped) });
        let delete = change(Operation::Delete, true, update.before.clone(), Image::None);
        assert_eq!(super::undo(&delete, &table), left_out(retyped));
        // Without a key, the row has to be found by the column.
        let mut keyless = table.clone();
        keyless.columns[0].column.is_key = false;
        let insert = change(Operation::Insert, false, Image::None, update.before.clone());
        let not_found = format!("the row cannot be found by {retyped}");
        assert_eq!(super::undo(&insert, &keyless), left_out(&not_found));
        update.before = image(1, Cell::Null);
        let expected = r#"UPDATE ONLY "public"."order" SET "a ""b""" = NULL WHERE "id" = 1"#;
        assert_eq!(super::undo(&update, &table), whole(&update, expected));
        table.columns[1].is_retyped = false;
        table.columns[1].has_other_attributes = true;
        update.before = image(1, Cell::Value(Value::Record(vec![None])));
        let why = super::undo(&update, &table).left_out.unwrap();
        assert!(why.starts_with(r#"column "a ""b""" = '()': attributes"#), "{why}");
    }

    /// A change is reverted as far as it can be.
    #[test]
    fn other_columns_than_those_of_another_type_are_set() {
        let row = |zoned: &str, count| {
            let cells = [Value::Int4(1), Value::Text(zoned.to_owned()), Value::Int4(count)];
            Image::Row(Row { cells: cells.map(Cell::Value).into() })
        };
        let mut update = change(Operation::Update, true, row("a\n'\\", 1), row("b", 2));
        let columns =
            [column(1, "id", oid::INT4, true), column(2, "at", oid::TEXT, false), column(3, "n", 23, false)];
        let mut table = Table::new(1, 5, "public".to_owned(), "order".to_owned(), columns.into());
        table.columns[1].is_retyped = true;
        update.table = Arc::new(table);
        let expected = Statement {
            left_out: Some(r"column at = E'a\n''\\': its type was changed since".to_owned()),
            is_partial: true,
            ..whole(&update, r#"UPDATE ONLY "public"."order" SET "n" = 1 WHERE "id" = 1 AND "n" = 2"#)
        };
        assert_eq!(undo(&update), expected);
        // An extension's type.
        let row = |bytes: u8, count| {
            let cells = [Value::Int4(1), Value::Unknown(vec![bytes]), Value::Int4(count)];
            Image::Row(Row { cells: cells.map(Cell::Value).into() })
        };
        (update.before, update.after) = (row(1, 1), row(2, 2));
        let table = Arc::get_mut(&mut update.table).expect("the change has its table alone");
        (table.columns[1].is_retyped, table.columns[1].is_read) = (false, false);
        let found = undo(&update);
        assert_eq!((&found.text, found.is_partial), (&expected.text, true));
        assert!(found.left_out.is_some_and(|why| why.contains("its type is not known")));
        // A value that is no text is of this row alone.
        let table = Arc::get_mut(&mut update.table).expect("the change has its table alone");
        table.columns[1].is_read = true;
        let found = undo(&update);
        assert_eq!((found.text, found.is_partial), (None, false));
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
        assert_eq!(undo(&changed(true, f64::NAN, f64::NAN)), NOTHING);
        assert_eq!(undo(&changed(true, 1.0, 1.0)), NOTHING);
        let table = r#""public"."order""#;
        let update = changed(true, -0.0, 0.0);
        let expected = format!(
            r#"UPDATE ONLY {table} SET "a ""b""" = '-0' WHERE "id" = 1 AND "a ""b"""::text = '0' COLLATE "C""#
        );
        assert_eq!(undo(&update), whole(&update, &expected));
        let insert = change(Operation::Insert, false, Image::None, of(f64::NAN));
        let expected = format!(
            r#"DELETE FROM ONLY {table} WHERE ctid IN (SELECT ctid FROM ONLY {table} WHERE "id" = 1 AND "a ""b""" = 'NaN' LIMIT 1)"#
        );
        assert_eq!(undo(&insert), whole(&insert, &expected));
    }

    /// The server's own operators and casts call these values equal to others, or null.
    #[test]
    fn values_that_are_printed_otherwise_are_others() {
        let condition = |type_oid, cell: Cell, is_key| {
            let mut of = TableColumn::new(column(1, "c", type_oid, is_key));
            of.attributes = vec![(20_000, 1)];
            if is_key { key_equality(&of, &cell) } else { equality(&of, &cell) }.expect("a condition")
        };
        let (record, value) = (Value::Record(vec![None]), Cell::Value);
        let numeric = || {
            let (sign, digits) = (NumericSign::Positive, vec![1, 5000]);
            value(Value::Numeric(Numeric { sign, weight: 0, scale: 2, digits }))
        };
        for (type_oid, cell, is_key, expected) in [
            (oid::INT4, Cell::Null, false, r#""c" IS NULL"#),
            (20_000, Cell::Null, false, r#""c" IS NOT DISTINCT FROM NULL"#),
            (20_000, value(record), false, r#""c"::text = '()' COLLATE "C""#),
            (oid::BPCHAR, text("x "), false, r#"concat("c") = 'x ' COLLATE "C""#),
            (20_001, text("x "), false, r#"concat("c") = 'x ' COLLATE "C""#),
            (oid::VARCHAR, text("x "), true, r#""c" = 'x ' AND "c" = 'x ' COLLATE "C""#),
            (oid::NUMERIC, numeric(), true, r#""c" = '1.50' AND "c"::text = '1.50' COLLATE "C""#),
            (oid::INT4, value(Value::Int4(1)), true, r#""c" = 1"#),
            (
                20_002,
                value(Value::Enum { oid: 1, label: Some("a".to_owned()) }),
                true,
                r#""c"::text = 'a' COLLATE "C""#,
            ),
        ] {
            assert_eq!(condition(type_oid, cell, is_key), expected);
        }
    }

    /// Numbers of `xid`, `cid` and the like are no integers; `"char"` has bytes that 14 does not read as it
    /// prints them since.
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
            assert_eq!(literal(&value), expected);
        }
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let delete = change(Operation::Delete, true, Image::Unknown("no page"), Image::None);
        assert_eq!(undo(&delete), left_out("no page"));
        let delete = change(Operation::Delete, true, image(1, Cell::Unknown("no chunks")), Image::None);
        assert_eq!(undo(&delete), left_out(r#"column "a ""b""": no chunks"#));
        let unknown = Cell::Value(Value::Unknown(vec![1]));
        let why = undo(&change(Operation::Delete, true, image(1, unknown), Image::None)).left_out.unwrap();
        assert!(why.starts_with(r#"column "a ""b""" = '\x01': its type is not known"#), "{why}");
    }
}
