//! Groups of relations by name, and the WAL of VACUUM, compared with a server.

use std::fs;

use serde_json::Value;
use walden_lab::ClusterBuilder;
use walden_testing::{Outcome, postgres};

use crate::material::{explain_json, say, walden};

walden_testing::tests! {
    relations_are_grouped_by_their_names,
    vacuum_is_found on [15, 17, 19],
}

/// Returns the groups of a view with their names and bytes.
fn groups(json: &Value, view: usize) -> Vec<(String, u64, u64)> {
    let view = &json["views"][view];
    assert!(view["rest"].is_null());
    let rows = view["groups"].as_array().unwrap().iter();
    let of = |row: &Value| {
        let text = row["keys"][0]["text"].as_str().unwrap();
        let text = text.strip_prefix("postgres: ").unwrap_or(text).to_owned();
        (text, row["bytes"].as_u64().unwrap(), row["records"].as_u64().unwrap())
    };
    let all: Vec<_> = rows.map(of).collect();
    let sum: u64 = all.iter().map(|row| row.1).sum();
    assert_eq!(sum, json["file_bytes"].as_u64().unwrap(), "{view:#}");
    all
}

/// Returns the bytes of the groups whose name matches.
fn bytes(groups: &[(String, u64, u64)], fits: impl Fn(&str) -> bool) -> u64 {
    groups.iter().filter(|row| fits(&row.0)).map(|row| row.1).sum()
}

fn relations_are_grouped_by_their_names() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?).setting("autovacuum", "off").start().unwrap();
    let place = cluster.make_folder("fast").unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute(&format!("CREATE TABLESPACE fast LOCATION '{}'", place.display())).unwrap();
    client
        .batch_execute(
            "CREATE SCHEMA tenant_1; CREATE SCHEMA tenant_22;
             CREATE TABLE tenant_1.orders (id int PRIMARY KEY, note text) TABLESPACE fast;
             CREATE TABLE tenant_22.orders (id int PRIMARY KEY, note text);
             ALTER TABLE tenant_22.orders ALTER note SET STORAGE EXTERNAL;
             CREATE TABLE measured (id int, at int) PARTITION BY RANGE (at);
             CREATE TABLE measured_old PARTITION OF measured FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
             CREATE TABLE measured_old_1 PARTITION OF measured_old FOR VALUES FROM (0) TO (500);
             CREATE TABLE measured_old_2 PARTITION OF measured_old FOR VALUES FROM (500) TO (100000);
             CREATE TABLE measured_new PARTITION OF measured FOR VALUES FROM (10) TO (20);
             CREATE INDEX ON measured (id);
             INSERT INTO measured SELECT n, n % 20 FROM generate_series(1, 2000) n;
             INSERT INTO tenant_1.orders SELECT n, md5(n::text) FROM generate_series(1, 2000) n;
             INSERT INTO tenant_22.orders SELECT n, repeat(md5(n::text), 200) FROM generate_series(1, 200) n;",
        )
        .unwrap();
    let (dsn, wal) = (cluster.dsn("postgres"), cluster.data_dir().join("pg_wal"));
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("names.json");
    let saved = saved.to_str().unwrap();
    let by = [
        "--by",
        "schema",
        "--by",
        "partition",
        "--by",
        "tablespace",
        "--by",
        "relation",
        "--group",
        r"tenant_(\d+)",
    ];
    let explained = |names: &[&str]| {
        let run = explain_json(&[names, &by[..], &[wal.to_str().unwrap()]].concat());
        (0..5).map(|view| groups(&run, view)).collect::<Vec<_>>()
    };
    let views = explained(&["--names", &dsn, "--save-names", saved]);
    drop(client);
    cluster.stop(walden_lab::StopMode::Fast).unwrap();
    let [schemas, partitions, tablespaces, relations, tenants] = &views[..] else {
        panic!("views are missing")
    };
    let of_tables = |start: &str| bytes(relations, |name| name.starts_with(start));
    let toast = bytes(relations, |name| name.starts_with("pg_toast_16"));
    let one = |groups: &[(String, u64, u64)], name: &str| bytes(groups, |group| group == name);
    assert!(toast > 1_000_000, "{toast}");
    // Each table includes its TOAST table.
    let (first, second) = (one(schemas, "tenant_1"), one(schemas, "tenant_22"));
    assert_eq!(first + second, of_tables("tenant_") + toast);
    assert!(first >= of_tables("tenant_1.") && second > of_tables("tenant_22.") + 1_000_000);
    assert_eq!((one(tenants, "1"), one(tenants, "22")), (first, second));
    assert!(one(partitions, "measured") > 100_000);
    assert_eq!(one(partitions, "measured"), of_tables("measured"));
    assert_eq!(bytes(partitions, |name| name.starts_with("measured_")), 0);
    assert_eq!(one(partitions, "tenant_22.orders"), second);
    // The table and its TOAST table are in the tablespace, but its primary key is not.
    assert_eq!(one(tablespaces, "fast"), first - of_tables("tenant_1.orders_pkey"));
    assert!(one(tablespaces, "pg_default") > 0 && one(tablespaces, "pg_global") > 0);
    // A saved file yields the same result. The WAL has grown by the shutdown.
    let again = explained(&["--names", saved]);
    assert_eq!(one(&again[1], "measured"), one(partitions, "measured"));
    assert_eq!(one(&again[4], "22"), one(tenants, "22"));
    // The format's version has not changed, so files of names from older versions can be read.
    let old: Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    assert_eq!(old["walden_names"], 1);
    Ok(())
}

/// VACUUM itself reports how many records it wrote.
fn vacuum_is_found(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?)
        // With checksums, hint bit images do not show whether VACUUM wrote them.
        .checksums(false)
        .setting("autovacuum", "off")
        .setting("log_min_messages", "info")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text);
             CREATE INDEX orders_note ON orders (note);
             INSERT INTO orders SELECT n, md5(n::text) FROM generate_series(1, 20000) n;
             CREATE TABLE other (id int);
             INSERT INTO other SELECT n FROM generate_series(1, 20000) n;",
        )
        .unwrap();
    client.batch_execute("VACUUM orders").unwrap();
    client.batch_execute("DELETE FROM orders WHERE id % 3 = 0; DELETE FROM other WHERE id < 15000").unwrap();
    client.batch_execute("CHECKPOINT").unwrap();
    let position = |client: &mut postgres::Client| -> String {
        client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0)
    };
    let from = position(&mut client);
    client.batch_execute("VACUUM (VERBOSE, FREEZE) orders").unwrap();
    let to = position(&mut client);
    // VACUUM has no transaction whose commit would flush the WAL.
    client.batch_execute("CREATE TABLE flushed ()").unwrap();
    let log = fs::read_to_string(cluster.log_path()).unwrap();
    // "WAL usage: 123 records, 45 full page images, 6789 bytes", for the table and for its TOAST table.
    let usages = log.lines().filter_map(|line| line.split("WAL usage: ").nth(1));
    let written: u64 = usages.map(|usage| usage.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    let wal = cluster.data_dir().join("pg_wal");
    let json = explain_json(&[
        "--names",
        &cluster.dsn("postgres"),
        "--from",
        &from,
        "--to",
        &to,
        "--by",
        "vacuum",
        "--by",
        "vacuum,relation",
        wal.to_str().unwrap(),
    ]);
    let found = groups(&json, 0);
    say(&format!("PostgreSQL {major}: {written} records by VACUUM, {found:?}"));
    let of_vacuum: u64 = found.iter().filter(|row| row.0.contains("vacuum")).map(|row| row.2).sum();
    let others: u64 = found.iter().filter(|row| row.0.starts_with("not known")).map(|row| row.2).sum();
    let not_known = "not known to be vacuum's";
    assert!(
        found.iter().all(|row| row.0 == not_known || row.0.contains("orders") || row.0.contains("pg_")),
        "{found:?}"
    );
    let of_vacuum = of_vacuum - others;
    assert!(written > 300, "{log}");
    assert!(of_vacuum <= written && of_vacuum * 100 >= written * 99, "{of_vacuum} of {written}: {found:?}");
    // Its indexes are listed separately.
    let by_relation = json["views"][1]["groups"].as_array().unwrap();
    let of = |relation: &str| {
        let keys = |row: &&Value, at: usize| row["keys"][at]["text"].as_str().unwrap().to_owned();
        by_relation.iter().any(|row| keys(&row, 0) == "vacuum of orders" && keys(&row, 1) == relation)
    };
    assert!(of("orders") && of("orders_note") && of("orders_pkey"), "{by_relation:#?}");
    // A query that prunes must not count as VACUUM.
    let from = to;
    client
        .batch_execute(
            "SELECT count(*) FROM other; SET enable_seqscan = off; UPDATE other SET id = id WHERE id = 19999",
        )
        .unwrap();
    let to = position(&mut client);
    let run = walden(&[
        "explain",
        "--format",
        "json",
        "--names",
        &cluster.dsn("postgres"),
        "--from",
        &from,
        "--to",
        &to,
        "--by",
        "vacuum",
        wal.to_str().unwrap(),
    ]);
    let found = groups(&run.json(), 0);
    say(&format!("{found:?}"));
    assert!(found.iter().all(|row| row.0 != "vacuum of other"), "{found:?}");
    Ok(())
}
