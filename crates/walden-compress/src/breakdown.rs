//! Attributes the bytes of compressed files.

use std::path::Path;

use serde_json::{Value, json};
use walden_codec::coder::{Breakdown, Bytes};
use walden_report::table::{Look, Row, table};
use walden_report::units;

use crate::ratio;

/// Number of relations that get a row of their own.
const MAX_RELATIONS: usize = 20;

/// Maximum number of members coded as bytes that are listed with the reason.
const MAX_AS_BYTES: usize = 20;

/// Byte counts of a file, or of several files together.
#[derive(Debug)]
pub struct Counted<'f> {
    /// The file's path; `None` for several files.
    pub path: Option<&'f Path>,
    /// Size of the compressed file, in bytes.
    pub file_bytes: u64,
    /// Total size of the members' originals, in bytes.
    pub original_bytes: u64,
    /// Number of members.
    pub members: u64,
    /// The bytes by column class and by relation.
    pub breakdown: Breakdown,
    /// Members that are coded as bytes: name and reason.
    pub as_bytes: &'f [(String, String)],
}

/// Returns the JSON of the counts of each file and of all files.
pub fn document(files: &[Counted<'_>]) -> Value {
    as_json(files, &sum(files))
}

/// Formats the sum of all files as tables; empty without files.
pub fn tables(files: &[Counted<'_>], look: Look) -> String {
    if files.is_empty() { String::new() } else { as_tables(files, &sum(files), look) }
}

/// Returns the sum of all files.
fn sum<'f>(files: &[Counted<'_>]) -> Counted<'f> {
    let mut sum = Counted {
        path: None,
        file_bytes: 0,
        original_bytes: 0,
        members: 0,
        breakdown: Breakdown::default(),
        as_bytes: &[],
    };
    for file in files {
        sum.file_bytes += file.file_bytes;
        sum.original_bytes += file.original_bytes;
        sum.members += file.members;
        sum.breakdown.merge(&file.breakdown);
    }
    sum
}

impl Counted<'_> {
    /// Returns the size of the container: headers, checksums, names, index.
    fn container_bytes(&self) -> u64 {
        self.file_bytes.saturating_sub(self.breakdown.total().stored)
    }

    /// Returns the last rows of both tables.
    fn others(&self) -> Vec<(String, Bytes)> {
        let (directory, bytes) = (self.breakdown.directory(), self.breakdown.bytes());
        let container = Bytes { raw: 0, stored: self.container_bytes() };
        let rows = [("column directory", directory), ("not in columns", bytes), ("container", container)];
        let is_there = |(_, bytes): &(&str, Bytes)| bytes.stored > 0;
        rows.into_iter().filter(is_there).map(|(label, bytes)| (label.to_owned(), bytes)).collect()
    }
}

fn as_tables(files: &[Counted<'_>], sum: &Counted<'_>, look: Look) -> String {
    let head: &[&str] = &["raw", "stored", "ratio", "share"];
    let title = match files {
        [Counted { path: Some(path), .. }] => format!("Bytes of {} by column class", path.display()),
        _ => format!("Bytes of {} files by column class", files.len()),
    };
    let mut classes: Vec<(String, Bytes)> =
        sum.breakdown.classes().map(|(class, bytes)| (class.name().to_owned(), bytes)).collect();
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.stored));
    classes.extend(sum.others());
    let mut text = table(look, &title, ("column class", head), &rows(&classes, sum.file_bytes)) + "\n";
    let mut relations = relations(&sum.breakdown);
    relations.extend(sum.others());
    text += &table(look, "By relation", ("relation", head), &rows(&relations, sum.file_bytes));
    text += &format!(
        "\n{} members, {} in {}, {}\n",
        sum.members,
        units::bytes(sum.original_bytes),
        units::bytes(sum.file_bytes),
        ratio(sum.original_bytes, sum.file_bytes)
    );
    let as_bytes: Vec<&(String, String)> = files.iter().flat_map(|file| file.as_bytes).collect();
    if !as_bytes.is_empty() {
        text += &format!("\n{} members stored as bytes:\n", as_bytes.len());
    }
    for (name, reason) in as_bytes.iter().take(MAX_AS_BYTES) {
        text += &format!("  {name}: {reason}\n");
    }
    if let Some(others) = as_bytes.len().checked_sub(MAX_AS_BYTES).filter(|others| *others > 0) {
        text += &format!("  and {others} others\n");
    }
    text
}

/// Returns the largest relations, the sum of the others, and the bytes that belong to no relation.
fn relations(breakdown: &Breakdown) -> Vec<(String, Bytes)> {
    let mut named: Vec<(String, Bytes)> = Vec::new();
    let mut without = Bytes::default();
    for (relation, bytes) in breakdown.relations() {
        match relation {
            Some(relation) => named.push((relation.to_string(), bytes)),
            None => without = bytes,
        }
    }
    named.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.stored));
    let others = named.split_off(named.len().min(MAX_RELATIONS));
    if !others.is_empty() {
        let sum = |of: fn(&Bytes) -> u64| others.iter().map(|(_, bytes)| of(bytes)).sum();
        let bytes = Bytes { raw: sum(|bytes| bytes.raw), stored: sum(|bytes| bytes.stored) };
        named.push((format!("{} others", others.len()), bytes));
    }
    named.push(("no relation".to_owned(), without));
    named
}

fn rows(counted: &[(String, Bytes)], file_bytes: u64) -> Vec<Row> {
    let row = |label: &str, Bytes { raw, stored }: Bytes| Row {
        depth: 0,
        label: label.to_owned(),
        cells: vec![
            if raw > 0 { units::bytes(raw) } else { String::new() },
            units::bytes(stored),
            if raw > 0 { ratio(raw, stored) } else { String::new() },
            units::percent(stored as f64 / file_bytes.max(1) as f64),
        ],
        share: Some(stored as f64 / file_bytes.max(1) as f64),
    };
    let raw = counted.iter().map(|(_, bytes)| bytes.raw).sum();
    let stored = counted.iter().map(|(_, bytes)| bytes.stored).sum();
    let total = Row { share: None, ..row("total", Bytes { raw, stored }) };
    counted.iter().map(|(label, bytes)| row(label, *bytes)).chain([total]).collect()
}

fn as_json(files: &[Counted<'_>], sum: &Counted<'_>) -> Value {
    let mut object = describe_file(sum);
    object["format_version"] = json!(1);
    object["files"] = files.iter().map(describe_file).collect();
    object
}

fn describe_file(found: &Counted<'_>) -> Value {
    let bytes = |Bytes { raw, stored }: Bytes| json!({ "raw_bytes": raw, "stored_bytes": stored });
    let classes: Vec<Value> = found
        .breakdown
        .classes()
        .map(|(class, Bytes { raw, stored })| {
            json!({ "class": class.name(), "raw_bytes": raw, "stored_bytes": stored })
        })
        .collect();
    let relations: Vec<Value> = found
        .breakdown
        .relations()
        .map(|(relation, Bytes { raw, stored })| {
            json!({
                "tablespace": relation.map(|relation| relation.tablespace),
                "database": relation.map(|relation| relation.database),
                "relation": relation.map(|relation| relation.relation),
                "raw_bytes": raw,
                "stored_bytes": stored,
            })
        })
        .collect();
    let mut object = json!({
        "compressed_bytes": found.file_bytes,
        "original_bytes": found.original_bytes,
        "members": found.members,
        "classes": classes,
        "relations": relations,
        "column_directory": bytes(found.breakdown.directory()),
        "not_in_columns": bytes(found.breakdown.bytes()),
        "container_bytes": found.container_bytes(),
    });
    if let Some(path) = found.path {
        object["as_bytes"] =
            found.as_bytes.iter().map(|(name, reason)| json!({ "name": name, "reason": reason })).collect();
        object["file"] = json!(path.to_string_lossy());
    }
    object
}
