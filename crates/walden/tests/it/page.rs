//! Single pages from the WAL: after they replace damaged pages, the server reads the same content as before.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Need, Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, walden};

walden_testing::tests! {
    damaged_pages_are_reconstructed_from_the_log on [15, 19],
    pages_are_described_as_pageinspect_does on [15, 19],
}

const PAGE: u64 = 8192;

const FIRST_WORK: &str = "
    CREATE TABLE orders (id int, customer text, amount numeric, note text);
    INSERT INTO orders SELECT i, md5(i::text), i * 1.5, CASE WHEN i % 7 = 0 THEN repeat('n', i % 50) END
        FROM generate_series(1, 4000) i;
    CREATE INDEX orders_customer ON orders (customer);
    CREATE SEQUENCE numbers;
    SELECT nextval('numbers') FROM generate_series(1, 40);
    UPDATE orders SET amount = amount + 1 WHERE id % 5 = 0;
    VACUUM orders";

const SECOND_WORK: &str = "
    UPDATE orders SET amount = amount + 1, note = 'again' WHERE id % 11 = 0;
    DELETE FROM orders WHERE id % 13 = 0;
    VACUUM orders;
    INSERT INTO orders SELECT i, md5(i::text), i, 'late' FROM generate_series(4001, 6000) i;
    UPDATE orders SET customer = customer || 'x' WHERE id % 17 = 0;
    BEGIN;
    UPDATE orders SET note = 'never' WHERE id % 3 = 0;
    ROLLBACK";

const TABLE_BLOCK: u64 = 3;
/// A leaf page: block 0 is the metapage.
const INDEX_BLOCK: u64 = 1;

/// Queries that read the content through the table and through the index.
const ROWS: [&str; 2] = [
    "SELECT md5(string_agg(orders::text, ',' ORDER BY id)) FROM orders",
    "SET enable_seqscan = off; SET enable_bitmapscan = off",
];
const BY_INDEX: &str =
    "SELECT md5(string_agg(amount::text, ',' ORDER BY customer)) FROM orders WHERE customer >= '' AND id > 0";

struct Files {
    table: String,
    index: String,
}

fn damaged_pages_are_reconstructed_from_the_log(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?)
        .checksums(true)
        .setting("wal_keep_size", "1GB")
        .setting("autovacuum", "off")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    run(&mut client, FIRST_WORK);
    let path = |client: &mut Client, relation: &str| -> String {
        client.query_one("SELECT pg_relation_filepath($1::text::regclass)", &[&relation]).unwrap().get(0)
    };
    let files = Files { table: path(&mut client, "orders"), index: path(&mut client, "orders_customer") };
    // The second part's segments start after this switch.
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    let backup = cluster.dir().join("backup");
    copy(&cluster.data_dir(), &backup);

    // Without full-page images, only the backup has the earlier pages.
    cluster.configure(&[("full_page_writes", "off")]).unwrap();
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let row = client.query_one("SELECT pg_walfile_name(pg_current_wal_lsn())", &[]).unwrap();
    let first_segment: String = row.get(0);
    run(&mut client, SECOND_WORK);
    let expected = read_all(&mut client).unwrap();
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    let late_wal = cluster.dir().join("late");
    cluster.collect_wal(&first_segment, &late_wal).unwrap();
    let all_wal = cluster.data_dir().join("pg_wal");

    check_history(&all_wal, &files);
    let blocks = [(&files.table, TABLE_BLOCK), (&files.index, INDEX_BLOCK)];
    let healthy = blocks.map(|(file, block)| read_page(&cluster, file, block));
    for (file, block) in blocks {
        damage(&cluster, file, block);
    }
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let error = read_all(&mut client).unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("XX001"), "{error}");
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();

    for ((file, block), healthy) in blocks.into_iter().zip(healthy) {
        let run = rebuild(&late_wal, None, file, block, &cluster.dir().join("none"));
        assert_eq!(run.code, 1, "{}", run.stderr);
        assert!(run.stderr.contains("--base"), "{}", run.stderr);

        let out = cluster.dir().join(format!("page-{block}"));
        let run = rebuild(&late_wal, Some(&backup), file, block, &out);
        assert_eq!(run.code, 0, "{}", run.stderr);
        let page = fs::read(&out).unwrap();
        let run = rebuild(&all_wal, None, file, block, &out);
        assert_eq!(run.code, 2, "the file exists: {run:?}");
        assert_eq!(fs::read(&out).unwrap(), page);

        let from_log = cluster.dir().join(format!("page-{block}-log"));
        let run = rebuild(&all_wal, None, file, block, &from_log);
        assert_eq!(run.code, 0, "{run:?}");
        // Both are the original page, except for hint bits, which are not in the WAL.
        for page in [&page, &fs::read(&from_log).unwrap()] {
            assert_eq!(page.len() as u64, PAGE);
            assert_eq!(page[..8], healthy[..8], "LSN of {file} block {block}");
            assert_eq!(page[12..18], healthy[12..18], "lower, upper and special of {file} block {block}");
        }
        let path = cluster.data_dir().join(file);
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&page, block * PAGE).unwrap();
    }
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    assert_eq!(read_all(&mut client).unwrap(), expected);
    // The pages can also be changed.
    run(&mut client, "UPDATE orders SET amount = amount; VACUUM orders");
    assert_eq!(read_all(&mut client).unwrap(), expected);
    client
        .batch_execute("CREATE EXTENSION amcheck")
        .map_err(|error| Need::Amcheck.missing(&format!("PostgreSQL {}: {error}", cluster.major())))?;
    client.batch_execute("SELECT bt_index_check('orders_customer', true)").unwrap();
    assert!(client.query("SELECT * FROM verify_heapam('orders')", &[]).unwrap().is_empty());
    Ok(())
}

/// Executes statements separately, as VACUUM requires.
fn run(client: &mut Client, statements: &str) {
    statements.split(';').for_each(|statement| client.batch_execute(statement).unwrap());
}

fn read_all(client: &mut Client) -> Result<[String; 2], postgres::Error> {
    client.batch_execute("RESET enable_seqscan; RESET enable_bitmapscan")?;
    let by_table = client.query_one(ROWS[0], &[])?.get(0);
    client.batch_execute(ROWS[1])?;
    let by_index = client.query_one(BY_INDEX, &[])?.get(0);
    Ok([by_table, by_index])
}

fn rebuild(wal: &Path, base: Option<&Path>, file: &str, block: u64, out: &Path) -> Run {
    let block = block.to_string();
    let [wal, out] = [wal, out].map(|path| path.to_str().unwrap());
    let mut arguments = vec!["page", wal, "--relation", file, "--block", &block, "--at", "end", "--out", out];
    if let Some(base) = base {
        arguments.extend(["--base", base.to_str().unwrap()]);
    }
    walden(&arguments)
}

/// Checks that the blocks' history is plausible, and that all forms of the command work.
fn check_history(wal: &Path, files: &Files) {
    let wal = wal.to_str().unwrap();
    for (file, block) in [(&files.table, TABLE_BLOCK), (&files.index, INDEX_BLOCK)] {
        let block = block.to_string();
        let of = |more: &[&str]| {
            let mut arguments = vec!["page", wal, "--relation", file, "--block", &block, "--format", "json"];
            arguments.extend(more);
            let run = walden(&arguments);
            assert_eq!(run.code, 0, "{run:?}");
            serde_json::from_str::<Value>(&run.stdout).unwrap()
        };
        let history = of(&[]);
        let records = history["records"].as_array().unwrap();
        assert!(!records.is_empty());
        for record in records {
            assert_eq!(record["page"], "exact", "{record}");
            let has_xid = record["xid"].as_u64() != Some(0);
            assert_eq!(record["committed"].is_boolean(), has_xid, "{record}");
        }
        if file == &files.table {
            assert!(records.iter().any(|record| record["committed"] == false), "an aborted transaction");
        }
        // After each record, the page's LSN is the record's end, unless the record does not set it.
        let (first, last) = (&records[0], &records[records.len() - 1]);
        let end = |record: &Value| record["end_lsn"].as_str().unwrap().to_owned();
        let page = of(&["--at", &end(first)]);
        assert_eq!(page["page"]["header"]["pd_lsn"], first["end_lsn"]);
        assert!(!page["page"]["items"].as_array().unwrap().is_empty());
        let changes = of(&["--diff", &end(first), "end"]);
        assert_eq!(changes["before"]["lsn"], first["end_lsn"]);
        assert_eq!(changes["after"]["last_record"]["lsn"], last["lsn"]);
        let changed: Vec<&Value> = changes["changes"].as_array().unwrap().iter().collect();
        assert!(changed.iter().any(|change| change["field"] == "pd_lsn"), "{changes}");
        assert!(of(&["--diff", "end", "end"])["changes"].as_array().unwrap().is_empty());
        // The message is limited to the range: later records may touch the block.
        let at = end(last);
        let run = walden(&["page", wal, "--relation", file, "--block", "60000", "--at", &at]);
        let expected = format!("no record up to {at} touches block 60000");
        assert!(run.code == 1 && run.stderr.contains(&expected), "{run:?}");
    }
    let arguments = ["page", wal, "--relation", &files.table, "--block", "60000"];
    let run = walden(&arguments);
    assert_eq!((run.code, run.errors().len()), (1, 1), "{run:?}");
    assert!(run.stderr.contains("blocks that records touch: 0-"), "{}", run.stderr);
    let run = walden(&["page", wal, "--relation", "orders", "--block", "0"]);
    assert_eq!(run.code, 2, "{run:?}");
}

/// Compares with the extension pageinspect.
fn pages_are_described_as_pageinspect_does(major: u32) -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(major)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE EXTENSION pageinspect")
        .map_err(|error| Need::Pageinspect.missing(&format!("PostgreSQL {}: {error}", cluster.major())))?;
    run(&mut client, FIRST_WORK);
    run(&mut client, SECOND_WORK);
    client.batch_execute("CHECKPOINT").unwrap();
    let wal = cluster.data_dir().join("pg_wal");
    let dsn = cluster.dsn("postgres");
    let page = |relation: &str, block: i32| {
        let block = block.to_string();
        let wal = wal.to_str().unwrap();
        let arguments = [
            "page",
            wal,
            "--names",
            &dsn,
            "--relation",
            relation,
            "--block",
            &block,
            "--at",
            "end",
            "--format",
            "json",
        ];
        let run = walden(&arguments);
        assert_eq!(run.code, 0, "{run:?}");
        serde_json::from_str::<Value>(&run.stdout).unwrap()["page"].clone()
    };
    let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let mut compared = 0;
    for block in [0, 3, 10] {
        let items = page("public.orders", block)["items"].clone();
        let rows = client
            .query(
                "SELECT lp::int, lp_off::int, lp_flags::int, lp_len::int, t_xmin::text, t_xmax::text, t_ctid::text,
                        t_hoff::int, t_bits::text, encode(t_data, 'hex')
                 FROM heap_page_items(get_raw_page('orders', $1::int))",
                &[&block],
            )
            .unwrap();
        assert_eq!(rows.len(), items.as_array().unwrap().len());
        for (row, item) in rows.iter().zip(items.as_array().unwrap()) {
            let states = ["unused", "normal", "redirect", "dead"];
            assert_eq!(item["number"], row.get::<_, i32>(0));
            assert_eq!(item["offset"], row.get::<_, i32>(1), "{item}");
            assert_eq!(item["state"], states[row.get::<_, i32>(2) as usize]);
            assert_eq!(item["length"], row.get::<_, i32>(3), "{item}");
            let fields = &item["fields"];
            let Some(xmin) = row.get::<_, Option<String>>(4) else { continue };
            assert_eq!(text(&fields["t_xmin"]), xmin);
            assert_eq!(text(&fields["t_xmax"]), row.get::<_, String>(5));
            assert_eq!(text(&fields["t_ctid"]), row.get::<_, String>(6));
            assert_eq!(fields["t_hoff"], row.get::<_, i32>(7));
            if let Some(bits) = row.get::<_, Option<String>>(8) {
                let shown = text(&fields["t_bits"]);
                assert_eq!(bits[..shown.len()], shown);
            }
            assert_eq!(text(&item["data"]), row.get::<_, String>(9));
            compared += 1;
        }
    }
    let leaf = page("orders_customer", 1);
    let rows = client
        .query("SELECT itemoffset::int, ctid::text, itemlen::int, nulls FROM bt_page_items('orders_customer', 1)", &[])
        .unwrap();
    assert_eq!(rows.len(), leaf["items"].as_array().unwrap().len());
    for (row, item) in rows.iter().zip(leaf["items"].as_array().unwrap()) {
        assert_eq!(item["number"], row.get::<_, i32>(0));
        assert_eq!(text(&item["fields"]["ctid"]), row.get::<_, String>(1));
        assert_eq!(item["length"], row.get::<_, i32>(2));
        assert_eq!(item["fields"]["nulls"], row.get::<_, bool>(3));
        compared += 1;
    }
    assert!(compared > 100, "{compared}");
    let sequence = page("numbers", 0);
    assert_eq!(sequence["items"][0]["fields"]["is_called"], true);
    assert!(sequence["items"][0]["fields"]["last_value"].as_i64().unwrap() >= 40);
    Ok(())
}

fn read_page(cluster: &Cluster, file: &str, block: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    let file = fs::File::open(cluster.data_dir().join(file)).unwrap();
    file.read_exact_at(&mut page, block * PAGE).unwrap();
    page
}

/// Flips bits in every 501st byte of a page, including the header.
fn damage(cluster: &Cluster, file: &str, block: u64) {
    let mut page = read_page(cluster, file, block);
    for at in (13..page.len()).step_by(501) {
        page[at] ^= 0x5A;
    }
    let path: PathBuf = cluster.data_dir().join(file);
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&page, block * PAGE).unwrap();
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(status.success());
}
