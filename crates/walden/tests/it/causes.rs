//! Causes of all bytes of WAL, and findings about work that no rule knows, on real servers.

use postgres::Client;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Outcome, postgres};

use crate::material::explain_json;

walden_testing::tests! {
    each_byte_has_one_cause on [15, 19],
    unknown_work_is_described_by_its_largest_cause on [15, 19],
    batches_that_are_repeated_are_found on [15, 19],
    images_of_a_backup_are_not_those_of_checkpoints on [15, 19],
    no_remedy_concerns_what_the_wal_created_or_dropped on [15, 19],
}

fn server(major: u32) -> Result<ClusterBuilder, walden_testing::Missing> {
    // With checksums, hint bits cause images.
    let builder = ClusterBuilder::new(postgres(major)?).checksums(false);
    Ok([
        ("wal_keep_size", "1GB"),
        ("autovacuum", "off"),
        ("max_prepared_transactions", "10"),
        ("bgwriter_lru_maxpages", "0"),
    ]
    .iter()
    .fold(builder, |builder, (name, value)| builder.setting(name, value)))
}

fn position(client: &mut Client) -> String {
    client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0)
}

/// Runs statements, each as one query string. Returns the range of their WAL.
fn run(client: &mut Client, statements: &[&str]) -> [String; 2] {
    let from = position(client);
    for statement in statements {
        client.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    [from, position(client)]
}

/// Explains a range of WAL with the server's names.
fn explain_range(cluster: &Cluster, [from, to]: &[String; 2]) -> Value {
    let (dsn, wal) = (cluster.dsn("postgres"), cluster.data_dir().join("pg_wal"));
    explain_json(&["--names", &dsn, "--from", from, "--to", to, wal.to_str().unwrap()])
}

fn explain_work(cluster: &Cluster, statements: &[&str]) -> Value {
    let mut client = cluster.client("postgres").unwrap();
    let range = run(&mut client, statements);
    // The last page reaches the disk.
    client.batch_execute("CHECKPOINT").unwrap();
    explain_range(cluster, &range)
}

fn bytes(causes: &[Value], is_its: impl Fn(&Value) -> bool) -> u64 {
    causes.iter().filter(|cause| is_its(cause)).map(|cause| cause["bytes"].as_u64().unwrap()).sum()
}

/// The largest causes in a line.
fn summary(causes: &[Value]) -> String {
    let one = |cause: &Value| {
        let relation = cause["relation"].as_str().unwrap_or("-");
        format!("{} {relation} {} {}", cause["activity"], cause["mechanism"], cause["bytes"])
    };
    causes.iter().take(8).map(one).collect::<Vec<_>>().join(", ")
}

const SCHEMA: &str = "
    CREATE TABLE customer (id int PRIMARY KEY, name text);
    INSERT INTO customer SELECT i, md5(i::text) FROM generate_series(1, 2000) i;
    CREATE TABLE orders (id int PRIMARY KEY, customer int, state int, n int, note text) WITH (fillfactor = 40);
    CREATE INDEX orders_state ON orders (state);
    CREATE TABLE child (customer int REFERENCES customer, n int);
    CREATE TABLE document (id int PRIMARY KEY, body text);
    ALTER TABLE document ALTER body SET STORAGE EXTERNAL;
    CREATE SEQUENCE number; CREATE TABLE loaded (id int, note text);
    CREATE TABLE packed AS SELECT i, md5(i::text) FROM generate_series(1, 5000) i;
    CREATE TABLE place (region int, n int) PARTITION BY LIST (region);
    CREATE TABLE place_1 PARTITION OF place FOR VALUES IN (1);
    CREATE TABLE place_2 PARTITION OF place FOR VALUES IN (2);
    INSERT INTO place SELECT 1, i FROM generate_series(1, 3000) i;
    CREATE MATERIALIZED VIEW summary AS SELECT id, name FROM customer;
    CHECKPOINT";

/// Work with the activity, the relation and the mechanism of a cause with a fifth of the activity's bytes or
/// more, and the least share of the activity in the WAL without page headers.
const WORK: &[(&[&str], &str, &str, &str, f64)] = &[
    (
        &["INSERT INTO orders SELECT i, i, i % 7, 0, md5(i::text) FROM generate_series(1, 5000) i"],
        "insert",
        "orders",
        "row_data",
        0.95,
    ),
    (&["UPDATE orders SET n = n + 1 WHERE id % 2 = 0"], "update", "orders", "row_data", 0.8),
    (&["UPDATE orders SET state = state + 1 WHERE id % 2 = 1"], "update", "orders", "missed_hot", 0.8),
    (&["SELECT count(*) FROM (SELECT 1 FROM orders FOR UPDATE) s"], "row_lock", "orders", "lock", 0.7),
    (&["DELETE FROM orders WHERE id % 3 = 0"], "delete", "orders", "row_data", 0.8),
    (&["VACUUM (FREEZE) orders"], "vacuum", "orders", "freeze", 0.6),
    (
        &["COPY loaded FROM PROGRAM 'seq -f ''%g,some text for each row'' 5000' (FORMAT csv)"],
        "copy",
        "loaded",
        "row_data",
        0.9,
    ),
    (
        &["INSERT INTO child SELECT 1 + i % 2000, i FROM generate_series(1, 2000) i"],
        "insert",
        "child",
        "row_data",
        0.3,
    ),
    (
        &["INSERT INTO document SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 200) i"],
        "insert",
        "document",
        "toast",
        0.9,
    ),
    (&["UPDATE document SET body = body || 'x' WHERE id > 100"], "update", "document", "toast", 0.9),
    (
        &["SELECT count(nextval('number')) FROM generate_series(1, 100000)"],
        "sequence",
        "number",
        "sequence_value",
        0.9,
    ),
    (&["UPDATE place SET region = 2"], "partition_move", "place", "row_data", 0.7),
    (&["CREATE INDEX loaded_note ON loaded (note)"], "index_build", "loaded", "forced_image", 0.2),
    (&["VACUUM FULL packed"], "rewrite", "packed", "forced_image", 0.5),
    (&["REFRESH MATERIALIZED VIEW summary"], "refresh", "summary", "row_data", 0.5),
    (&["SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))"], "message", "", "message", 0.9),
    (
        &["CHECKPOINT", "UPDATE loaded SET note = 'x' WHERE id % 50 = 0"],
        "update",
        "loaded",
        "first_touch_image",
        0.9,
    ),
    (&["SELECT pg_switch_wal()"], "switch", "", "padding", 0.9),
];

fn each_byte_has_one_cause(major: u32) -> Outcome {
    let cluster = server(major)?.start().unwrap();
    cluster.client("postgres").unwrap().batch_execute(SCHEMA).unwrap();
    // Without a checkpoint in between, only the first work with a page has its image.
    let mut client = cluster.client("postgres").unwrap();
    let ranges: Vec<_> = WORK.iter().map(|(statements, ..)| run(&mut client, statements)).collect();
    client.batch_execute("CHECKPOINT").unwrap();
    let mut wrong = Vec::new();
    for ((statements, activity, relation, mechanism, least), range) in WORK.iter().zip(ranges) {
        let document = explain_range(&cluster, &range);
        let causes = document["causes"].as_array().unwrap();
        let total = document["wal_bytes"].as_u64().unwrap();
        assert_eq!(bytes(causes, |_| true), total, "{statements:?}");
        let headers = bytes(causes, |cause| cause["mechanism"] == "page_header");
        let of_activity = bytes(causes, |cause| cause["activity"] == *activity);
        let share = of_activity as f64 / (total - headers) as f64;
        let is_expected = |cause: &Value| {
            let is_of_relation = cause["relation"].as_str().unwrap_or("") == *relation;
            cause["activity"] == *activity && is_of_relation && cause["mechanism"] == *mechanism
        };
        let expected = bytes(causes, is_expected);
        if share < *least || expected * 5 < of_activity {
            wrong.push(format!(
                "{statements:?}: {share:.2}, {expected} of {of_activity} in {}",
                summary(causes)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Whole: all work, with that of initdb.
    let wal = cluster.data_dir().join("pg_wal");
    for names in [&[][..], &["--names", &cluster.dsn("postgres")]] {
        for top in [&[][..], &["--top", "5"]] {
            let document = explain_json(&[&[wal.to_str().unwrap()], names, top].concat());
            let causes = document["causes"].as_array().unwrap();
            assert_eq!(bytes(causes, |_| true), document["wal_bytes"].as_u64().unwrap());
            assert!(top.is_empty() || (causes.len() == 6 && causes[5]["folded"].as_u64().unwrap() > 20));
        }
    }
    Ok(())
}

/// The first cause among the findings.
fn first_cause(document: &Value) -> &Value {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().find(|one| one["kind"] == "cause").unwrap_or_else(|| panic!("{findings:#?}"))
}

/// Rows with used indexes of several kinds, so that no rule has a reason to drop one.
const READINGS: &str = "
    CREATE TABLE reading (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device int, at timestamptz, value numeric, span int4range);
    CREATE INDEX reading_device ON reading (device, at); CREATE INDEX reading_at ON reading (at);
    CREATE INDEX reading_value ON reading (value); CREATE INDEX reading_span ON reading USING gist (span);
    INSERT INTO reading (device, at, value, span) SELECT i % 50, now(), i, int4range(i, i + 5) FROM generate_series(1, 2000) i;
    CREATE TABLE metric (day int, n int, note text) PARTITION BY LIST (day);
    DO $$ BEGIN FOR i IN 1..20 LOOP EXECUTE format('CREATE TABLE metric_%s PARTITION OF metric FOR VALUES IN (%s)', i, i); END LOOP; END $$;
    CREATE TABLE other (n int, note text);
    SET enable_seqscan = off;
    SELECT count(*) FROM reading WHERE device = 5; SELECT count(value) FROM reading WHERE at > now();
    SELECT count(at) FROM reading WHERE value = 5; SELECT count(at) FROM reading WHERE span @> 5;
    SELECT pg_stat_force_next_flush(); CHECKPOINT";

/// Work that no rule knows, with the object of its first finding and texts of its sentence and remedy.
const UNKNOWN: &[(&str, &str, &[&str])] = &[
    (
        "DO $$ BEGIN FOR i IN 1..4000 LOOP
           INSERT INTO reading (device, at, value, span) VALUES (i % 50, clock_timestamp(), i, int4range(i, i + 9));
           INSERT INTO other VALUES (i, 'x'); IF i % 20 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        "reading",
        &["rows inserted one by one into reading (table", "its 5 indexes", "drop or merge indexes"],
    ),
    (
        "DO $$ BEGIN FOR i IN 1..6000 LOOP INSERT INTO metric VALUES (1 + i % 20, i, md5(i::text));
           IF i % 20 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        "metric",
        &["6000 rows inserted one by one into metric", "COPY"],
    ),
    (
        "DO $$ BEGIN FOR i IN 1..40 LOOP DELETE FROM reading WHERE id BETWEEN i * 20 AND i * 20 + 15; COMMIT;
           INSERT INTO other SELECT i, md5(j::text) FROM generate_series(1, 150) j; COMMIT; END LOOP; END $$",
        "other",
        &["6000 rows inserted one by one into other"],
    ),
];

fn unknown_work_is_described_by_its_largest_cause(major: u32) -> Outcome {
    let cluster = server(major)?.setting("wal_compression", "on").start().unwrap();
    cluster.client("postgres").unwrap().batch_execute(READINGS).unwrap();
    for (statement, object, texts) in UNKNOWN {
        let document = explain_work(&cluster, &[statement]);
        let first = first_cause(&document);
        assert_eq!(
            (&first["rule"], &first["points_at"]),
            (&"main-table".into(), &(*object).into()),
            "{document:#}"
        );
        let said = format!("{} -> {}", first["text"], first["remedy"]);
        texts.iter().for_each(|text| assert!(said.contains(text), "{text}: {said}"));
        assert!(first["saves_bytes"].is_null(), "{first}");
        // The sentence's share is that of the causes.
        let causes = document["causes"].as_array().unwrap();
        let of_object = |cause: &Value| cause["relation"] == *object;
        assert_eq!(first["bytes"].as_u64().unwrap(), bytes(causes, of_object), "{first}");
    }
    Ok(())
}

/// No transaction made half of the deletes.
fn batches_that_are_repeated_are_found(major: u32) -> Outcome {
    let cluster = server(major)?.setting("wal_compression", "on").start().unwrap();
    let table = "CREATE TABLE batch (id int PRIMARY KEY, note text)";
    cluster.client("postgres").unwrap().batch_execute(table).unwrap();
    let fill = "INSERT INTO batch SELECT i, md5(i::text) FROM generate_series(1, 6000) i";
    let document = explain_work(&cluster, &[fill, "DELETE FROM batch", "VACUUM batch"].repeat(6));
    let first = first_cause(&document);
    assert_eq!((&first["rule"], &first["points_at"]), (&"bulk-delete".into(), &"batch".into()), "{first:#}");
    assert!(first["text"].as_str().unwrap().starts_with("6 transactions deleted at least 3"), "{first:#}");
    Ok(())
}

/// With `full_page_writes = off`, the server writes images of first touches only during a base backup.
fn images_of_a_backup_are_not_those_of_checkpoints(major: u32) -> Outcome {
    let cluster = server(major)?.setting("full_page_writes", "off").start().unwrap();
    cluster.client("postgres").unwrap().batch_execute(SCHEMA).unwrap();
    let start = if major >= 15 { "pg_backup_start" } else { "pg_start_backup" };
    let start = format!("SELECT {start}('x', true)");
    let update = "INSERT INTO customer SELECT i, 'x' FROM generate_series(10000, 12000) i";
    let document = explain_work(&cluster, &["CHECKPOINT", &start, update]);
    let causes = document["causes"].as_array().unwrap();
    assert!(bytes(causes, |cause| cause["mechanism"] == "backup_image") > 0, "{causes:#?}");
    assert_eq!(bytes(causes, |cause| cause["mechanism"] == "first_touch_image"), 0, "{causes:#?}");
    assert_eq!(bytes(causes, |_| true), document["wal_bytes"].as_u64().unwrap());
    Ok(())
}

/// Indexes that the WAL creates are never to be dropped, nor those of constraints; a table that it drops
/// needs no remedy.
fn no_remedy_concerns_what_the_wal_created_or_dropped(major: u32) -> Outcome {
    let cluster = server(major)?.setting("wal_compression", "on").start().unwrap();
    cluster.client("postgres").unwrap().batch_execute(READINGS).unwrap();
    let insert = "INSERT INTO fresh SELECT i, md5(i::text), i, i % 100 FROM generate_series(1, 6000) i";
    let work = [
        "CREATE TABLE fresh (id int PRIMARY KEY, key text UNIQUE, n int, state int)",
        "CREATE INDEX fresh_n ON fresh (n); CREATE INDEX fresh_n_state ON fresh (n, state)",
        insert,
        "UPDATE fresh SET state = state + 1 WHERE id % 2 = 0",
    ];
    let document = explain_work(&cluster, &work);
    for finding in document["findings"].as_array().unwrap() {
        let remedy = finding["remedy"].as_str().unwrap();
        assert!(!remedy.contains("DROP INDEX") && !remedy.contains("drop or merge"), "{finding:#}");
        assert!(finding["rule"] != "unused-index" || finding["saves_bytes"].is_null(), "{finding:#}");
    }
    let work = [
        "INSERT INTO fresh SELECT i, md5(i::text), i, i FROM generate_series(6001, 9000) i",
        "DROP TABLE fresh",
    ];
    let document = explain_work(&cluster, &work);
    for finding in document["findings"].as_array().unwrap() {
        let remedy = finding["remedy"].as_str().unwrap();
        let is_about_statement =
            remedy.contains("ALTER") || remedy.contains("DROP INDEX") || remedy.contains("drop or merge");
        assert!(!is_about_statement, "{finding:#}");
    }
    Ok(())
}
