//! Prints changes: for people, as CSV, as JSON, and as SQL that makes them again.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::io::Write;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};
use walden_format::payload::Timestamp;

use crate::commit_order::CommitOrder;
pub use crate::print_error::PrintError;
use crate::value::Value;
use crate::{Cell, Entry, EventKind, Gap, Image, NamesAtEnd, Operation, Outcome, Row, RowChange, Table, sql};

/// Bytes that are printed at a time.
const BLOCK: usize = 64 << 10;

/// How changes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people: of an update the columns that changed.
    #[default]
    Table,
    /// A line per change, the rows as JSON.
    Csv,
    /// A line of JSON per change.
    Json,
    /// SQL that makes the changes again.
    Sql,
}

/// The order in which changes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The order of the WAL, in which transactions alternate.
    #[default]
    Log,
    /// Transaction by transaction, in the order of their commits; after these the changes that did not
    /// commit.
    Commit,
}

/// Prints entries in the order in which they arrive, or in the order of their commits.
#[derive(Debug)]
pub struct Printer<W> {
    out: W,
    format: Format,
    /// For SQL.
    names: NamesAtEnd,
    /// In SQL, statements that are printed as one block with the next statements.
    batch: sql::Batch,
    text: String,
    /// A value as JSON, for CSV.
    json: Vec<u8>,
    /// In CSV, the table of the last row: the printer prepares a table once for consecutive rows.
    relation: Option<Relation>,
    /// The last time of a commit, and its text.
    time: Option<(Timestamp, String)>,
    /// In SQL, what updates of identity columns needed, and what takes it back.
    alterations: BTreeSet<[String; 2]>,
    /// Where entries are kept until all commits are known, if they are not printed in the log's order.
    by_commit: Option<CommitOrder>,
}

/// What rows of a table have in common in CSV.
#[derive(Debug)]
struct Relation {
    table: Arc<Table>,
    /// The field with its name.
    name: String,
    /// Each column's name in a quoted field, as the key of a JSON object.
    keys: Vec<String>,
}

impl Relation {
    fn new(table: &Arc<Table>) -> Result<Relation, serde_json::Error> {
        let mut name = String::new();
        push_quoted(&mut name, &table.to_string());
        let mut keys = Vec::with_capacity(table.columns.len());
        for column in &table.columns {
            let mut key = String::new();
            push_doubled(&mut key, &serde_json::to_string(&column.column.name)?);
            key.push(':');
            keys.push(key);
        }
        Ok(Relation { table: Arc::clone(table), name, keys })
    }
}

impl<W: Write> Printer<W> {
    /// Creates a printer, and prints why changes may be missing. `names` are the names of tables at the
    /// end of the WAL, which SQL uses.
    ///
    /// # Errors
    /// Errors of the output and of the temporary file.
    pub fn new(
        mut out: W,
        format: Format,
        order: Order,
        names: NamesAtEnd,
        gaps: &[Gap],
    ) -> Result<Printer<W>, PrintError> {
        let mut text = String::new();
        match format {
            Format::Csv => text.push_str("lsn,time,state,xid,top_xid,relation,operation,before,after\n"),
            Format::Json => {
                for gap in gaps {
                    text.push_str(&serde_json::to_string(&GapLine(gap))?);
                    text.push('\n');
                }
            }
            Format::Sql => {
                for gap in gaps {
                    text.push_str(&gap_comment(gap));
                }
                let _ = write!(text, "BEGIN;\n{}", sql::SETTINGS);
            }
            _ => {}
        }
        let by_commit = (order == Order::Commit).then(CommitOrder::new).transpose()?;
        if by_commit.is_some() {
            out.write_all(std::mem::take(&mut text).as_bytes()).map_err(PrintError::Output)?;
        }
        Ok(Printer {
            out,
            by_commit,
            format,
            names,
            batch: sql::Batch::default(),
            text,
            json: Vec::new(),
            relation: None,
            time: None,
            alterations: BTreeSet::new(),
        })
    }

    /// Prints an entry.
    ///
    /// # Errors
    /// Errors of the output and of the temporary file.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), PrintError> {
        match self.format {
            Format::Table => self.people(entry),
            Format::Csv => self.csv(entry)?,
            Format::Json => {
                self.text.push_str(&serde_json::to_string(&Line(entry))?);
                self.text.push('\n');
            }
            Format::Sql => self.sql(entry),
        }
        if let Some(by_commit) = &mut self.by_commit {
            by_commit.add(entry.outcome(), &self.text)?;
            self.text.clear();
        }
        if self.text.len() < BLOCK { Ok(()) } else { self.flush() }
    }

    /// Prints everything that is not printed yet.
    ///
    /// # Errors
    /// Errors of the output and of the temporary file.
    pub fn finish(mut self) -> Result<(), PrintError> {
        if self.format == Format::Sql {
            self.text.push_str(&self.batch.take());
            self.text.push_str(&sql::ending(self.alterations.iter().map(|[_, back]| back.as_str())));
        }
        if let Some(by_commit) = self.by_commit.take() {
            by_commit.print(&mut self.out)?;
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), PrintError> {
        let text = std::mem::take(&mut self.text);
        self.out.write_all(text.as_bytes()).map_err(PrintError::Output)
    }

    fn people(&mut self, entry: &Entry) {
        let out = &mut self.text;
        let (lsn, ended) = (entry.lsn(), ended(entry.outcome()));
        match entry {
            Entry::Event(event) => {
                let what = match event.kind {
                    EventKind::Truncate => "truncate",
                    EventKind::Rewrite { .. } => "rewrite of",
                    EventKind::SetUnlogged { .. } => "set unlogged",
                    EventKind::SetLogged { .. } => "set logged",
                    EventKind::Drop => "drop of",
                    EventKind::AddColumn => "add column to",
                    EventKind::DropColumn => "drop column of",
                    EventKind::SetExpression => "set expression of",
                    EventKind::AlterColumn { .. } | EventKind::DropExpression => "alter column of",
                };
                let _ = writeln!(out, "{lsn}  {ended}  xid {}  {what} {}", event.xid, event.table);
                if let Some(column) = &event.column {
                    let _ = writeln!(out, "    {}", one_line(column));
                }
                if let Some(file) = event.kind.file() {
                    let _ = writeln!(out, "    its rows are in the file {file} from here on");
                }
            }
            Entry::Change(change) => {
                let what = match change.operation {
                    Operation::Insert => "insert into",
                    Operation::Update => "update of",
                    Operation::Delete if change.is_moved => "move to another partition from",
                    Operation::Delete => "delete from",
                };
                let top = match change.top_xid == change.xid {
                    true => String::new(),
                    false => format!(" of {}", change.top_xid),
                };
                let _ = writeln!(out, "{lsn}  {ended}  xid {}{top}  {what} {}", change.xid, change.table);
                rows(change, out);
            }
        }
    }

    fn csv(&mut self, entry: &Entry) -> Result<(), PrintError> {
        let out = &mut self.text;
        let (xid, top_xid, table, operation) = match entry {
            Entry::Event(event) => (event.xid, event.top_xid, &event.table, event.kind.name()),
            Entry::Change(change) => (change.xid, change.top_xid, &change.table, change.operation.name()),
        };
        if self.relation.as_ref().is_none_or(|last| !Arc::ptr_eq(&last.table, table)) {
            self.relation = Some(Relation::new(table)?);
        }
        let Some(relation) = &self.relation else { return Ok(()) };
        let time = match entry.outcome() {
            Outcome::Committed { time, .. } => {
                if self.time.as_ref().is_none_or(|(last, _)| *last != time) {
                    self.time = Some((time, time.to_string()));
                }
                self.time.as_ref().map_or("", |(_, text)| text)
            }
            Outcome::Aborted { .. } | Outcome::Unfinished => "",
        };
        // Field by field: a format string is several times slower, and there may be millions of rows.
        let _ = write!(out, "{}", entry.lsn());
        let (mut xid_text, mut top_xid_text) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (xid, top_xid) = (xid_text.format(xid), top_xid_text.format(top_xid));
        for field in [time, entry.outcome().name(), xid, top_xid, &relation.name, operation] {
            out.push(',');
            out.push_str(field);
        }
        let images = match entry {
            Entry::Event(_) => [None, None],
            Entry::Change(change) => [change.before.row(), change.after.row()],
        };
        for row in images {
            out.push(',');
            if let Some(row) = row {
                push_object(out, &relation.keys, row, &mut self.json)?;
            }
        }
        out.push('\n');
        Ok(())
    }

    fn sql(&mut self, entry: &Entry) {
        let batch = &mut self.batch;
        match entry {
            Entry::Change(change) if change.outcome == Outcome::Unfinished => {
                let table = sql::in_comment(&change.table.name);
                batch.push(&format!("-- unfinished: a change of {table} at {}", change.lsn));
            }
            Entry::Change(change) => {
                let change = self.names.relabel(change);
                let table = self.names.rename(&change);
                let sql::Statement { text, left_out, .. } = sql::redo(&change, &table);
                if let Some(why) = left_out {
                    batch.push(&format!("-- left out: {}", said(&change, &why)));
                }
                if let Some(text) = text {
                    for alteration in sql::identity_alterations(&change, &table) {
                        if !self.alterations.contains(&alteration) {
                            batch.push(&alteration[0]);
                            self.alterations.insert(alteration);
                        }
                    }
                    batch.push(&text);
                }
            }
            Entry::Event(event) => {
                let (kind, table) = (event.kind.name(), sql::in_comment(&event.table.name));
                let column = event.column.iter().map(|name| format!(": {}", sql::in_comment(name)));
                let column: String = column.collect();
                batch.push(&format!("-- {kind} of {table} at {}{column}", event.lsn));
            }
        }
        if batch.is_full() {
            self.text.push_str(&batch.take());
        }
    }
}

/// Adds a field of CSV.
fn push_quoted(out: &mut String, text: &str) {
    if !text.contains([',', '"', '\n', '\r']) {
        out.push_str(text);
        return;
    }
    out.push('"');
    push_doubled(out, text);
    out.push('"');
}

/// Adds a part of a quoted field of CSV.
fn push_doubled(out: &mut String, text: &str) {
    for (index, piece) in text.split('"').enumerate() {
        if index > 0 {
            out.push_str("\"\"");
        }
        out.push_str(piece);
    }
}

/// Adds a row as a JSON object in a field of CSV: the output of [`Object`], quoted. `keys` are the keys of
/// [`Relation`].
fn push_object(out: &mut String, keys: &[String], row: &Row, json: &mut Vec<u8>) -> Result<(), PrintError> {
    let mut begin = "\"{";
    for (key, cell) in keys.iter().zip(&row.cells) {
        if matches!(cell, Cell::Unknown(_)) {
            continue;
        }
        out.push_str(std::mem::replace(&mut begin, ","));
        out.push_str(key);
        match cell {
            Cell::Value(Value::Int2(value)) => out.push_str(itoa::Buffer::new().format(*value)),
            Cell::Value(Value::Int4(value)) => out.push_str(itoa::Buffer::new().format(*value)),
            Cell::Value(Value::Int8(value)) => {
                out.push_str("\"\"");
                out.push_str(itoa::Buffer::new().format(*value));
                out.push_str("\"\"");
            }
            cell => {
                json.clear();
                serde_json::to_writer(&mut *json, &JsonCell(cell))?;
                push_doubled(out, &String::from_utf8_lossy(json));
            }
        }
    }
    // An object without fields needs no quotes.
    out.push_str(if begin == "," { "}\"" } else { "{}" });
    Ok(())
}

/// Why a script may lack changes, as a comment.
pub(crate) fn gap_comment(gap: &Gap) -> String {
    format!("-- Changes may be missing: {}\n", gap.why)
}

/// A change that cannot be made or reverted, for a comment.
pub(crate) fn said(change: &RowChange, why: &str) -> String {
    format!("{}: {why}", subject(change))
}

/// A change, for a comment.
pub(crate) fn subject(change: &RowChange) -> String {
    let table = sql::in_comment(&change.table.name);
    format!("{} of {table} at {}", change.operation.name(), change.lsn)
}

fn ended(outcome: Outcome) -> String {
    match outcome {
        Outcome::Committed { time, .. } => time.to_string(),
        Outcome::Aborted { .. } => "rolled back".to_owned(),
        Outcome::Unfinished => "unfinished".to_owned(),
    }
}

/// The rows of a change, for people: of an update the key and what changed.
fn rows(change: &RowChange, out: &mut String) {
    let names = change.table.columns.iter().map(|column| (&column.column.name, column.column.is_key));
    match (&change.before, &change.after) {
        (Image::Row(before), Image::Row(after)) => {
            for ((name, is_key), (old, new)) in names.zip(before.cells.iter().zip(&after.cells)) {
                let name = one_line(name);
                if !old.is_same(new) || matches!(new, Cell::Unknown(_)) {
                    let _ = writeln!(out, "    {name}: {} -> {}", shown(old), shown(new));
                } else if is_key {
                    let _ = writeln!(out, "    {name}: {}", shown(new));
                }
            }
        }
        (before, after) => {
            image("-", "before", &change.table, before, out);
            image("+", "after", &change.table, after, out);
        }
    }
}

fn image(sign: &str, when: &str, table: &Table, image: &Image, out: &mut String) {
    match image {
        Image::None => {}
        Image::Unknown(why) => {
            let _ = writeln!(out, "  {sign} the row {when} is not known: {why}");
        }
        Image::Row(row) => {
            for (column, cell) in table.columns.iter().zip(&row.cells) {
                let _ = writeln!(out, "  {sign} {}: {}", one_line(&column.column.name), shown(cell));
            }
        }
    }
}

/// A name on one line, with control characters escaped.
fn one_line(name: &str) -> String {
    name.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// A cell on one line.
fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Null => "NULL".to_owned(),
        Cell::Unknown(why) => format!("(not known: {why})"),
        Cell::Value(value @ (Value::Text(_) | Value::Char(_) | Value::Json(_) | Value::Printed(_))) => {
            format!("'{}'", one_line(&value.to_string()))
        }
        Cell::Value(value) => {
            // Arrays and others have text within them.
            let text = value.to_string();
            if text.contains(char::is_control) { one_line(&text) } else { text }
        }
    }
}

/// Why changes may be missing, as it is in JSON.
struct GapLine<'a>(&'a Gap);

impl Serialize for GapLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("lsn", &Shown(self.0.from))?;
        map.serialize_entry("operation", "incomplete")?;
        map.serialize_entry("why", &self.0.why)?;
        map.end()
    }
}

/// An entry as it is in JSON.
struct Line<'a>(&'a Entry);

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let (xid, top_xid, table, operation) = match self.0 {
            Entry::Event(event) => (event.xid, event.top_xid, &event.table, event.kind.name()),
            Entry::Change(change) => (change.xid, change.top_xid, &change.table, change.operation.name()),
        };
        let time = match self.0.outcome() {
            Outcome::Committed { time, .. } => Some(time),
            Outcome::Aborted { .. } | Outcome::Unfinished => None,
        };
        map.serialize_entry("lsn", &Shown(self.0.lsn()))?;
        map.serialize_entry("time", &time.map(Shown))?;
        map.serialize_entry("state", self.0.outcome().name())?;
        map.serialize_entry("xid", &xid)?;
        map.serialize_entry("top_xid", &top_xid)?;
        map.serialize_entry("relation", &Shown(table))?;
        map.serialize_entry("operation", operation)?;
        match self.0 {
            Entry::Event(event) => {
                if let Some(file) = event.kind.file() {
                    map.serialize_entry("file", &Shown(file))?;
                }
                if let Some(column) = &event.column {
                    map.serialize_entry("column", column)?;
                }
            }
            Entry::Change(change) => add_change(&mut map, change)?,
        }
        map.end()
    }
}

/// Serializes the fields that only changes have.
fn add_change<M: SerializeMap>(map: &mut M, change: &RowChange) -> Result<(), M::Error> {
    if change.is_moved {
        map.serialize_entry("moved", &true)?;
    }
    for (name, tid) in [("old_tid", change.old_tid), ("new_tid", change.new_tid)] {
        if let Some(tid) = tid {
            map.serialize_entry(name, &Shown(tid))?;
        }
    }
    let before = ("before", "before_unknown", "before_unknown_columns", &change.before);
    let after = ("after", "after_unknown", "after_unknown_columns", &change.after);
    for (name, unknown, unknown_columns, image) in [before, after] {
        match image {
            Image::None => {}
            Image::Unknown(why) => map.serialize_entry(unknown, why)?,
            Image::Row(row) => {
                map.serialize_entry(name, &Object(&change.table, row))?;
                if !row.is_known() {
                    map.serialize_entry(unknown_columns, &UnknownColumns(&change.table, row))?;
                }
            }
        }
    }
    Ok(())
}

/// Something as its text.
struct Shown<T>(T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A row by the names of its columns, without unknown values.
struct Object<'a>(&'a Table, &'a Row);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (column, cell) in self.0.columns.iter().zip(&self.1.cells) {
            if !matches!(cell, Cell::Unknown(_)) {
                map.serialize_entry(&column.column.name, &JsonCell(cell))?;
            }
        }
        map.end()
    }
}

/// A cell in JSON: numbers that every reader has as they are, and all else as PostgreSQL prints it.
struct JsonCell<'a>(&'a Cell);

impl Serialize for JsonCell<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Cell::Unknown(_) | Cell::Null => serializer.serialize_unit(),
            Cell::Value(Value::Bool(value)) => serializer.serialize_bool(*value),
            Cell::Value(Value::Int2(value)) => serializer.serialize_i16(*value),
            Cell::Value(Value::Int4(value)) => serializer.serialize_i32(*value),
            Cell::Value(Value::Oid(value)) => serializer.serialize_u32(*value),
            Cell::Value(
                Value::Text(text) | Value::Json(text) | Value::Jsonb(text) | Value::Printed(text),
            ) => serializer.serialize_str(text),
            Cell::Value(value) => serializer.collect_str(value),
        }
    }
}

/// Why columns of a row are not known, by their names.
struct UnknownColumns<'a>(&'a Table, &'a Row);

impl Serialize for UnknownColumns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (column, cell) in self.0.columns.iter().zip(&self.1.cells) {
            if let Cell::Unknown(why) = cell {
                map.serialize_entry(&column.column.name, why)?;
            }
        }
        map.end()
    }
}
