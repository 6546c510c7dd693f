//! Oracle next to PostgreSQL: published figures, those of the model, and measured ones if a database is
//! given.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Lab;
use super::definition::{Statement, Table};
use super::report::megabytes;
use crate::oracle_model::{RowChanges, estimate};

const CASE: &str = "oracle";
const BACKUP: &str = "oracle in backup mode";

/// Runs statements on Oracle through its thin Python driver and prints the change of its statistics.
const ADAPTER: &str = include_str!("../../experiments/oracle.py");

/// Adds Oracle's figures. `changes` are the row changes of each statement, by its name.
pub(super) fn add(
    lab: &mut Lab<'_>,
    table: &Table,
    rows: &str,
    changes: Option<&[(String, RowChanges)]>,
) -> Result<()> {
    let measured = match lab.options.oracle_dsn.clone() {
        Some(dsn) => {
            lab.options.progress.phase("Oracle: running the statements");
            Some(measure(lab, &dsn, table, rows)?)
        }
        None => {
            lab.unavailable.push(
                "Oracle: no database was given (--oracle-dsn); its figures are those of a model".into(),
            );
            None
        }
    };
    let (mut details, mut errors) = (Vec::new(), Vec::new());
    for statement in lab.definition.statements.clone() {
        if statement.oracle.is_none() {
            continue;
        }
        let of_statement = |all: &&(String, RowChanges)| all.0 == statement.name;
        let row_changes = changes.and_then(|all| all.iter().find(of_statement)).map(|(_, of)| of);
        let real = measured.as_ref().and_then(|all| all.get(&statement.name));
        let (detail, error) = add_statement(lab, &statement, row_changes, real);
        details.push(detail);
        errors.extend(error);
    }
    if lab.sizes == lab.definition.sizes.full && !errors.is_empty() {
        lab.notes.push(format!(
            "error of the model of Oracle against the published figures: {}",
            errors.join("; ")
        ));
    }
    if changes.is_some() {
        lab.notes.push(
            "Oracle's model reads the row changes from PostgreSQL's WAL without images; six of its constants were fitted \
             to the two updates in normal mode, everything else is predicted"
                .into(),
        );
    }
    lab.details.insert("oracle".into(), Value::Array(details));
    Ok(())
}

/// Adds the figures of a statement. Returns its details, and a description of the model's error.
fn add_statement(
    lab: &mut Lab<'_>,
    statement: &Statement,
    row_changes: Option<&RowChanges>,
    real: Option<&Value>,
) -> (Value, Option<String>) {
    let name = &statement.name;
    let estimate = row_changes.map(estimate);
    let counter = |counter: &str| Some(megabytes(real?.get(counter)?.as_u64()?));
    let published = statement.oracle_published;
    let mb = |bytes: f64| bytes / f64::from(1u32 << 20);
    let mut add =
        |case: &str, measure: &str, measured: Option<f64>, published: Option<f64>, predicted: Option<f64>| {
            let (published, predicted) = (published.map(mb), predicted.map(mb));
            lab.figures.add_all(case, name, measure, measured, published, predicted);
            published.zip(predicted).map(|(published, predicted)| 100.0 * (predicted / published - 1.0))
        };
    let normal = add(
        CASE,
        "redo_mb",
        counter("redo size"),
        published.map(|all| all.redo),
        estimate.map(|all| all.redo),
    );
    let undo = counter("undo change vector size");
    let undo = add(CASE, "undo_mb", undo, published.map(|all| all.undo), estimate.map(|all| all.undo));
    let published_backup = published.map(|all| all.backup_redo);
    let backup = add(BACKUP, "redo_mb", None, published_backup, estimate.map(|all| all.backup_redo));
    let mark = if estimate.is_some_and(|estimate| estimate.fitted) { " (fitted)" } else { "" };
    let error = normal.zip(undo).zip(backup).map(|((normal, undo), backup)| {
        format!("{name} {normal:+.1} %{mark}, its undo {undo:+.1} %{mark}, in backup mode {backup:+.1} %")
    });
    let detail = json!({
        "statement": name,
        "row_changes": row_changes,
        "model": estimate,
        "published": published,
        "measured": real,
        "error_percent": { "redo": normal, "undo": undo, "backup_redo": backup },
    });
    (detail, error)
}

/// Runs the statements on Oracle. Returns the counters by the statement's name.
fn measure(lab: &Lab<'_>, dsn: &str, table: &Table, rows: &str) -> Result<Value> {
    let statements: Vec<Value> = lab
        .definition
        .statements
        .iter()
        .filter_map(|one| {
            Some(json!({ "name": one.name, "sql": one.oracle.as_ref()?.replace("$rows", rows) }))
        })
        .collect();
    let setup: Vec<&str> = table.oracle.split(';').map(str::trim).filter(|sql| !sql.is_empty()).collect();
    // The password goes through standard input, because other users can see a process's arguments.
    let job = json!({ "dsn": dsn, "setup": setup, "statements": statements }).to_string();
    let mut child = Command::new("python3")
        .args(["-c", ADAPTER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run python3, which the driver of Oracle needs")?;
    let written = child.stdin.take().context("cannot write to python3")?.write_all(job.as_bytes());
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "Oracle: {}",
        error.trim().lines().last().unwrap_or("the adapter failed")
    );
    // If the adapter ends before it has read all input, its own error is more informative.
    written.context("cannot write to python3")?;
    serde_json::from_slice(&output.stdout).context("cannot parse the output of the adapter for Oracle")
}
