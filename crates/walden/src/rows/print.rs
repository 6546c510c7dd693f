//! Changes in the formats of `--format`.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Map, Value as Json, json};
use walden_rows::value::Value;
use walden_rows::{Cell, Entry, EventKind, Image, Operation, Outcome, Row, RowChange, Table, sql};

use super::RowsFormat;
use crate::terminal;

/// Bytes that are printed at a time.
const BLOCK: usize = 64 << 10;

/// Prints entries as they come.
pub(super) struct Printer {
    format: RowsFormat,
    text: String,
}

impl Printer {
    pub fn new(format: RowsFormat) -> Result<Printer> {
        let mut text = String::new();
        match format {
            RowsFormat::Csv => text.push_str("lsn,time,state,xid,top_xid,relation,operation,before,after\n"),
            RowsFormat::Sql => {
                let _ = write!(text, "BEGIN;\n{}", sql::SETTINGS);
            }
            RowsFormat::Table | RowsFormat::Json => {}
        }
        Ok(Printer { format, text })
    }

    pub fn entry(&mut self, entry: &Entry) -> Result<()> {
        match self.format {
            RowsFormat::Table => self.people(entry),
            RowsFormat::Csv => self.csv(entry),
            RowsFormat::Json => self.text.push_str(&format!("{}\n", document(entry))),
            RowsFormat::Sql => self.sql(entry),
        }
        if self.text.len() < BLOCK { Ok(()) } else { self.flush() }
    }

    pub fn finish(mut self) -> Result<()> {
        if self.format == RowsFormat::Sql {
            self.text.push_str("COMMIT;\n");
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        terminal::print_data(std::mem::take(&mut self.text).as_bytes())
    }

    fn people(&mut self, entry: &Entry) {
        let out = &mut self.text;
        let (lsn, ended) = (entry.lsn(), ended(entry.outcome()));
        match entry {
            Entry::Event(event) => {
                let what = match event.kind {
                    EventKind::Truncate => "truncate",
                    EventKind::Rewrite { .. } => "rewrite of",
                    EventKind::Drop => "drop of",
                };
                let _ = writeln!(out, "{lsn}  {ended}  xid {}  {what} {}", event.xid, event.table);
                if let EventKind::Rewrite { file } = event.kind {
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

    fn csv(&mut self, entry: &Entry) {
        let document = document(entry);
        let names = ["lsn", "time", "state", "xid", "top_xid", "relation", "operation", "before", "after"];
        let fields = names.map(|name| match &document[name] {
            Json::Null => String::new(),
            Json::String(text) => quoted(text),
            other => quoted(&other.to_string()),
        });
        self.text.push_str(&fields.join(","));
        self.text.push('\n');
    }

    fn sql(&mut self, entry: &Entry) {
        let out = &mut self.text;
        match entry {
            Entry::Change(change) => match sql::redo(change) {
                Ok(Some(statement)) => out.push_str(&format!("{statement}\n")),
                Ok(None) => {}
                Err(why) => {
                    let _ = writeln!(out, "-- not known: {}", said(change, why));
                }
            },
            Entry::Event(event) => {
                let (kind, table) = (event.kind.name(), sql::in_comment(&event.table.name));
                let _ = writeln!(out, "-- {kind} of {table} at {}", event.lsn);
            }
        }
    }
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// A change that cannot be made or reverted, for a comment.
pub(super) fn said(change: &RowChange, why: &str) -> String {
    let table = sql::in_comment(&change.table.name);
    format!("{} of {table} at {}: {why}", change.operation.name(), change.lsn)
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
                if old != new || matches!(new, Cell::Unknown(_)) {
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
                let _ = writeln!(out, "  {sign} {}: {}", column.column.name, shown(cell));
            }
        }
    }
}

/// A cell on one line.
fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Null => "NULL".to_owned(),
        Cell::Unknown(why) => format!("(not known: {why})"),
        Cell::Value(value @ (Value::Text(_) | Value::Char(_) | Value::Json(_) | Value::Printed(_))) => {
            format!(
                "'{}'",
                value.to_string().escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
            )
        }
        Cell::Value(value) => value.to_string(),
    }
}

/// An entry as JSON.
fn document(entry: &Entry) -> Json {
    let (time, state) = match entry.outcome() {
        Outcome::Committed { time, .. } => (Some(time.to_string()), "committed"),
        Outcome::Aborted { .. } => (None, "aborted"),
        Outcome::Unfinished => (None, "unfinished"),
    };
    match entry {
        Entry::Event(event) => {
            let mut document = json!({
                "lsn": event.lsn.to_string(),
                "time": time,
                "state": state,
                "xid": event.xid,
                "top_xid": event.top_xid,
                "relation": event.table.to_string(),
                "operation": event.kind.name(),
            });
            if let EventKind::Rewrite { file } = event.kind {
                document["file"] = json!(file.to_string());
            }
            document
        }
        Entry::Change(change) => {
            let mut document = json!({
                "lsn": change.lsn.to_string(),
                "time": time,
                "state": state,
                "xid": change.xid,
                "top_xid": change.top_xid,
                "relation": change.table.to_string(),
                "operation": change.operation.name(),
            });
            if change.is_moved {
                document["moved"] = json!(true);
            }
            let tids = [("old_tid", change.old_tid), ("new_tid", change.new_tid)];
            for (name, tid) in tids.into_iter().filter_map(|(name, tid)| Some((name, tid?))) {
                document[name] = json!(tid.to_string());
            }
            let images = [("before", &change.before), ("after", &change.after)];
            for (name, image) in images {
                add_image(&mut document, name, &change.table, image);
            }
            document
        }
    }
}

fn add_image(document: &mut Json, name: &str, table: &Table, image: &Image) {
    match image {
        Image::None => {}
        Image::Unknown(why) => document[format!("{name}_unknown")] = json!(why),
        Image::Row(row) => {
            document[name] = object(table, row);
            let unknown = table.columns.iter().zip(&row.cells).filter_map(|(column, cell)| match cell {
                Cell::Unknown(why) => Some((column.column.name.clone(), json!(why))),
                _ => None,
            });
            let unknown: Map<String, Json> = unknown.collect();
            if !unknown.is_empty() {
                document[format!("{name}_unknown_columns")] = Json::Object(unknown);
            }
        }
    }
}

/// A row by the names of its columns, without what is not known.
fn object(table: &Table, row: &Row) -> Json {
    let cells = table.columns.iter().zip(&row.cells).filter_map(|(column, cell)| {
        let value = match cell {
            Cell::Unknown(_) => return None,
            Cell::Null => Json::Null,
            Cell::Value(Value::Bool(value)) => json!(value),
            Cell::Value(Value::Int2(value)) => json!(value),
            Cell::Value(Value::Int4(value)) => json!(value),
            Cell::Value(Value::Oid(value)) => json!(value),
            Cell::Value(value) => json!(value.to_string()),
        };
        Some((column.column.name.clone(), value))
    });
    Json::Object(cells.collect())
}
