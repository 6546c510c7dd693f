//! `dml-matrix`: the volume of each kind of statement, with and without full-page images.
//!
//! Table and statements are those of a published comparison (Franck Pachot, 2018, PostgreSQL 10, 1,000,000
//! rows); its figures are in the table of statements. After the checkpoint before each statement, the first
//! change of each page logs an image.

use anyhow::Result;
use postgres::Client;
use serde_json::{Value, json};

use super::Context;
use crate::cluster::insert_lsn;

struct Statement {
    name: &'static str,
    sql: &'static str,
    /// MB with full_page_writes on and off, as published for 1,000,000 rows.
    published: [Option<f64>; 2],
}

/// `$rows` is the workload's size.
const STATEMENTS: &[Statement] = &[
    Statement {
        name: "insert",
        sql: "INSERT INTO demo SELECT n, n, n, n, n, n, lpad('x', 100, 'x') FROM generate_series(1, $rows) n",
        published: [Some(159.80), Some(140.65)],
    },
    Statement { name: "update", sql: "UPDATE demo SET b = b + 1", published: [Some(347.36), Some(213.02)] },
    Statement {
        name: "sparse update",
        sql: "UPDATE demo SET b = b + 1 WHERE mod(a, 10) = 1",
        published: [Some(151.27), Some(9.65)],
    },
    Statement { name: "delete", sql: "DELETE FROM demo", published: [Some(196.22), Some(40.41)] },
    Statement { name: "vacuum", sql: "VACUUM demo", published: [Some(14.67), None] },
];

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    // If the user sets full_page_writes, only that column of the matrix is run.
    let fixed = context.own_settings.iter().any(|(name, _)| name == "full_page_writes");
    let columns: &[Option<&str>] = if fixed { &[None] } else { &[Some("on"), Some("off")] };
    let mut client = context.cluster.client("postgres")?;
    let mut results = Vec::new();
    context.progress.counted("dml-matrix: running", (columns.len() * STATEMENTS.len()) as u64);
    for column in columns {
        if let Some(value) = column {
            client.batch_execute(&format!("ALTER SYSTEM SET full_page_writes = {value}"))?;
            client.batch_execute("SELECT pg_reload_conf()")?;
            drop(client);
            // The checkpointer applies the setting (UpdateFullPageWrites) before it runs a checkpoint.
            client = context.cluster.client("postgres")?;
            client.batch_execute("CHECKPOINT")?;
        }
        client.batch_execute(
            "DROP TABLE IF EXISTS demo;
             CREATE TABLE demo (a int, b int, c int, d int, e int, f int, g text);
             INSERT INTO demo VALUES (0, 0, 0, 0, 0, 0, lpad('x', 100, 'x'))",
        )?;
        for statement in STATEMENTS {
            results.push(measure(&mut client, statement, context.size)?);
            context.progress.advance(1);
        }
    }
    Ok(json!({ "statements": results }))
}

fn measure(client: &mut Client, statement: &Statement, rows: u64) -> Result<Value> {
    client.batch_execute("CHECKPOINT")?;
    let full_page_writes: String =
        client.query_one("SELECT current_setting('full_page_writes')", &[])?.get(0);
    let before = insert_lsn(client)?;
    client.batch_execute(&statement.sql.replace("$rows", &rows.to_string()))?;
    let after = insert_lsn(client)?;
    let published = statement.published[usize::from(full_page_writes != "on")];
    Ok(json!({
        "statement": statement.name,
        "sql": statement.sql.replace("$rows", &rows.to_string()),
        "full_page_writes": full_page_writes,
        "lsn_before": before.to_string(),
        "lsn_after": after.to_string(),
        "bytes": after.bytes_since(before),
        "bytes_per_row": after.bytes_since(before) as f64 / rows as f64,
        "published_mb_for_1000000_rows": published,
    }))
}
