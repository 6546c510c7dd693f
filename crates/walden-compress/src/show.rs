//! The results of compression, as a table and as JSON.

use serde_json::{Value, json};
use walden_codec::coder::Form;
use walden_report::table::{Look, Row, table as rows_as_table};
use walden_report::units;

use crate::{Done, MAX_ROWS};

/// Returns the JSON of the results. `failed` is the number of files that could not be compressed.
pub fn document(results: &[Done], failed: usize, seconds: f64, is_verified: bool) -> Value {
    let outputs: Vec<Value> = results.iter().map(as_json).collect();
    let (files, original, stored) = sums(results);
    json!({
        "format_version": 1,
        "outputs": outputs,
        "files": files,
        "failed": failed,
        "original_bytes": original,
        "compressed_bytes": stored,
        "seconds": seconds,
        "verified": is_verified,
    })
}

/// Formats the results as a table and a line of sums; empty without results.
pub fn table(results: &[Done], seconds: f64, is_verified: bool, look: Look) -> String {
    let (files, original, stored) = sums(results);
    if files == 0 {
        return String::new();
    }
    let mut text = String::new();
    if files <= MAX_ROWS {
        let rows: Vec<Row> = results.iter().flat_map(rows).collect();
        let head: &[&str] = &["original", "compressed", "ratio", "as"];
        text = rows_as_table(look, "Compressed", ("file", head), &rows) + "\n";
    }
    let verified = if is_verified { "verified" } else { "not verified" };
    text + &format!(
        "{files} files, {} to {}, {}, {}/s, {verified}\n",
        units::bytes(original),
        units::bytes(stored),
        ratio(original, stored),
        units::bytes((original as f64 / seconds.max(1e-6)) as u64)
    )
}

/// Returns the number of files, and the bytes of their originals and of their compressed forms.
fn sums(results: &[Done]) -> (usize, u64, u64) {
    (
        results.iter().map(|done| done.members.len()).sum(),
        results.iter().map(Done::original_bytes).sum(),
        results.iter().map(|done| done.output_bytes).sum(),
    )
}

/// Returns the compression factor: original size over compressed size.
pub fn ratio(original: u64, stored: u64) -> String {
    format!("{:.2}x", original as f64 / stored.max(1) as f64)
}

/// Returns the name of a member's form, for the table.
pub fn form_name(form: Form) -> &'static str {
    match form {
        Form::Records => "records",
        Form::Bytes => "bytes",
    }
}

fn rows(done: &Done) -> Vec<Row> {
    let row = |depth, label: String, original, stored, form: &str| Row {
        depth,
        label,
        cells: vec![units::bytes(original), units::bytes(stored), ratio(original, stored), form.to_owned()],
        share: None,
    };
    match &done.members[..] {
        [(_, added)] => {
            let form = form_name(added.entry.head.form);
            vec![row(0, done.output.display().to_string(), added.entry.end.bytes, done.output_bytes, form)]
        }
        members => {
            let whole =
                row(0, done.output.display().to_string(), done.original_bytes(), done.output_bytes, "");
            let each = members.iter().map(|(input, added)| {
                let form = form_name(added.entry.head.form);
                let name = input.relative.display().to_string();
                row(1, name, added.entry.end.bytes, added.entry.stored, form)
            });
            std::iter::once(whole).chain(each).collect()
        }
    }
}

fn as_json(done: &Done) -> Value {
    let members: Vec<Value> = done
        .members
        .iter()
        .map(|(input, added)| {
            json!({
                "file": input.path.to_string_lossy(),
                "name": String::from_utf8_lossy(&added.entry.head.meta.name),
                "form": form_name(added.entry.head.form),
                "keyframe": added.entry.head.keyframe,
                "original_bytes": added.entry.end.bytes,
                "compressed_bytes": added.entry.stored,
            })
        })
        .collect();
    json!({
        "output": done.output.to_string_lossy(),
        "original_bytes": done.original_bytes(),
        "compressed_bytes": done.output_bytes,
        "members": members,
    })
}
