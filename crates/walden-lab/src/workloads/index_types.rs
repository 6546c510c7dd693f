//! `index-types`: rows of a table whose indexes log tuples that repeat the rows: points and ranges in GiST
//! and SP-GiST, words in SP-GiST and bloom (Generic records), and documents that the server compresses.

use anyhow::Result;
use serde_json::{Value, json};

use super::Context;

/// Rows per transaction.
const BATCH: u64 = 1000;

pub(super) fn setup(context: &Context<'_>) -> Result<()> {
    let mut client = context.cluster.client("postgres")?;
    client.batch_execute(
        "CREATE TABLE places (id int, at point, span int4range, name text);
         CREATE INDEX ON places USING gist (at);
         CREATE INDEX ON places USING spgist (at);
         CREATE INDEX ON places USING gist (span);
         CREATE INDEX ON places USING spgist (name);
         CREATE TABLE documents (id int, body jsonb)",
    )?;
    // Not all packages of PostgreSQL include its extensions.
    if !client.query("SELECT FROM pg_available_extensions WHERE name = 'bloom'", &[])?.is_empty() {
        client.batch_execute("CREATE EXTENSION bloom; CREATE INDEX ON places USING bloom (id, name)")?;
    }
    Ok(())
}

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    let mut client = context.cluster.client("postgres")?;
    context.progress.counted("index-types: running", context.size);
    // The same content in each run with the same seed.
    let seed = context.seed as f64 / u64::MAX as f64;
    client.batch_execute(&format!("SELECT setseed({seed})"))?;
    let mut done = 0;
    while done < context.size {
        let count = BATCH.min(context.size - done);
        let (first, last) = (done + 1, done + count);
        client.batch_execute(&format!(
            "INSERT INTO places
                 SELECT n, point(random() * 1000, random() * 1000),
                     int4range((random() * 100000)::int, 100000 + (random() * 1000)::int),
                     'place ' || n * 7919 % 9973 || ' ' || md5(n::text)
                 FROM generate_series({first}, {last}) n;
             INSERT INTO documents
                 SELECT n, jsonb_build_object('id', n, 'entries', (
                     SELECT jsonb_agg(jsonb_build_object('key', 'entry ' || m, 'value', n * m % 1009, 'text', md5((n + m)::text)))
                     FROM generate_series(1, 40) m))
                 FROM generate_series({first}, {last}, 20) n"
        ))?;
        done += count;
        context.progress.advance(count);
    }
    Ok(json!({ "rows": done }))
}
