//! `load`: fills tables and builds indexes, like a restore or a migration.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use postgres::Client;
use serde_json::{Value, json};

use super::Context;
use crate::cluster::insert_lsn;
use crate::data::Random;

/// Statements after the COPYs; the WAL of each is measured.
const STEPS: &[(&str, &str)] = &[
    ("primary key of reading", "ALTER TABLE reading ADD PRIMARY KEY (id)"),
    ("b-tree of two columns", "CREATE INDEX reading_sensor_at ON reading (sensor, at)"),
    ("BRIN", "CREATE INDEX reading_at ON reading USING brin (at) WITH (pages_per_range = 16)"),
    ("primary key of article", "ALTER TABLE article ADD PRIMARY KEY (id)"),
    ("GIN of text", "CREATE INDEX article_words ON article USING gin (to_tsvector('simple', body))"),
    ("primary key of document (uuid)", "ALTER TABLE document ADD PRIMARY KEY (id)"),
    ("GIN of jsonb", "CREATE INDEX document_content ON document USING gin (content jsonb_path_ops)"),
    (
        "b-tree of an expression",
        "CREATE INDEX document_keys ON document ((content::text COLLATE \"C\")) WHERE length(content::text) < 1000",
    ),
    ("vacuum freeze", "VACUUM (FREEZE, ANALYZE) reading, article, document"),
];

pub(super) fn setup(context: &Context<'_>) -> Result<()> {
    let mut client = context.cluster.client("postgres")?;
    client.batch_execute(
        "CREATE TABLE reading (id bigint, sensor int, at timestamptz, value numeric, state smallint, note text);
         CREATE TABLE article (id int, title text, author text, tags text[], body text, price numeric(10, 2));
         CREATE TABLE document (id uuid, at timestamptz, content jsonb)",
    )?;
    Ok(())
}

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    let mut client = context.cluster.client("postgres")?;
    let mut steps = Vec::new();
    let bytes = context.size * 1024 * 1024;
    context.progress.counted("load: copying", bytes);
    for (index, (table, share, row)) in TABLES.iter().enumerate() {
        let before = insert_lsn(&mut client)?;
        let rows = copy(&mut client, context, table, bytes * share / 100, index as u64, *row)?;
        let after = insert_lsn(&mut client)?;
        steps.push(json!({
            "step": format!("copy {table}"), "rows": rows,
            "lsn_before": before.to_string(), "lsn_after": after.to_string(), "bytes": after.bytes_since(before),
        }));
    }
    context.progress.counted("load: building indexes", STEPS.len() as u64);
    for (name, sql) in STEPS {
        let before = insert_lsn(&mut client)?;
        client.batch_execute(sql)?;
        let after = insert_lsn(&mut client)?;
        steps.push(json!({ "step": name, "lsn_before": before.to_string(), "lsn_after": after.to_string(), "bytes": after.bytes_since(before) }));
        context.progress.advance(1);
    }
    Ok(json!({ "steps": steps }))
}

/// Appends one row in COPY's text format.
type Row = fn(&mut Random, u64, &mut String);

/// Table, its share of the volume in per cent, and the function that generates its rows.
const TABLES: &[(&str, u64, Row)] =
    &[("reading", 50, reading), ("article", 30, article), ("document", 20, document)];

fn reading(random: &mut Random, number: u64, line: &mut String) {
    let second = number * 3;
    let (day, rest) = (second / 86_400, second % 86_400);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let (month, day) = (1 + day / 28 % 12, 1 + day % 28);
    let micro = random.below(1_000_000);
    let sensor = 1 + random.below(500);
    _ = write!(
        line,
        "{number}\t{sensor}\t2025-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micro:06}+00\t"
    );
    _ = write!(line, "{}.{:04}\t{}\t", random.between(-50, 900), random.below(10_000), random.below(8));
    if random.chance(20) {
        let words = 2 + random.below(6);
        line.push_str(&random.sentence(words));
    } else {
        line.push_str("\\N");
    }
}

fn article(random: &mut Random, number: u64, line: &mut String) {
    // Some are longer than a page, so that TOAST stores them.
    let length = if random.chance(3) { 9000 } else { 200 + random.below(1800) } as usize;
    let words = 3 + random.below(5);
    let (title, author) = (random.sentence(words), random.name());
    let (first, second) = (random.word(), random.word());
    let body = random.text(length).replace('\n', "\\n");
    _ = write!(line, "{number}\t{title}\t{author}\t{{{first},{second}}}\t{body}\t{}", random.amount(1000));
}

fn document(random: &mut Random, _number: u64, line: &mut String) {
    let (id, at) = (random.uuid(), random.moment());
    _ = write!(line, "{id}\t{at}\t{}", random.json(2));
}

/// Copies rows until `bytes` bytes have been sent; returns the number of rows.
fn copy(
    client: &mut Client,
    context: &Context<'_>,
    table: &str,
    bytes: u64,
    stream: u64,
    row: Row,
) -> Result<u64> {
    let mut random = Random::new(context.seed, stream);
    let mut writer = client.copy_in(&format!("COPY {table} FROM STDIN"))?;
    let (mut sent, mut rows) = (0, 0);
    let mut line = String::new();
    while sent < bytes {
        rows += 1;
        row(&mut random, rows, &mut line);
        line.push('\n');
        if line.len() > 64 * 1024 || sent + line.len() as u64 >= bytes {
            writer.write_all(line.as_bytes())?;
            sent += line.len() as u64;
            context.progress.advance(line.len() as u64);
            line.clear();
        }
    }
    writer.finish()?;
    Ok(rows)
}
