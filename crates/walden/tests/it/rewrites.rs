//! Relations that are rewritten while their WAL is written keep their names: compared with a server's own
//! catalogs.

use std::collections::BTreeMap;

use walden_lab::ClusterBuilder;
use walden_testing::{Outcome, postgres};

use crate::material::{cluster_that_keeps_wal, explain_json};

walden_testing::tests! {
    files_of_before_a_rewrite_have_their_relations_names on [15, 19],
    files_of_dropped_relations_have_no_name on [14, 18],
    a_rewrite_under_minimal_is_no_staging_table,
}

const STATEMENTS: [&str; 6] = [
    "VACUUM FULL t",
    "TRUNCATE t",
    "REINDEX TABLE t",
    "CLUSTER t USING ta",
    "ALTER TABLE t ALTER plain TYPE bigint",
    // Rebuilds the index on the column, after the others.
    "ALTER TABLE t ALTER a TYPE varchar(1000) USING lower(a)",
];

const FILES: &str = "SELECT c.oid::regclass::text, pg_relation_filenode(c.oid)::bigint FROM pg_class c
    WHERE c.relname IN ('t', 't_pkey', 'ta', 'tb')";

fn files_of_before_a_rewrite_have_their_relations_names(major: u32) -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(major)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE t (id int PRIMARY KEY, plain int, a text, b text);
             CREATE INDEX ta ON t (a); CREATE INDEX tb ON t (b)",
        )
        .unwrap();
    let start: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    // File number -> relation, as observed on the server over time.
    let mut truth: BTreeMap<i64, String> = BTreeMap::new();
    for statement in STATEMENTS {
        client
            .batch_execute(
                "INSERT INTO t SELECT i, i, md5(i::text), repeat(md5(i::text), 20) FROM generate_series(1, 200) i
                 ON CONFLICT (id) DO UPDATE SET plain = t.plain + 1, a = t.a || 'x'",
            )
            .unwrap();
        truth.extend(client.query(FILES, &[]).unwrap().iter().map(|row| (row.get(1), row.get(0))));
        client.batch_execute(statement).unwrap();
    }
    truth.extend(client.query(FILES, &[]).unwrap().iter().map(|row| (row.get(1), row.get(0))));
    client.batch_execute("CHECKPOINT").unwrap();

    let wal = cluster.data_dir().join("pg_wal");
    let dsn = cluster.dsn("postgres");
    let arguments = ["--names", &dsn, "--from", &start, wal.to_str().unwrap(), "--by", "relation"];
    let document = explain_json(&arguments);
    let mut old_files = 0;
    for group in document["views"][0]["groups"].as_array().unwrap() {
        let label = &group["keys"][0];
        let Some(file) = label["file"].as_str() else { continue };
        let number: i64 = file.rsplit('/').next().unwrap().parse().unwrap();
        let Some(expected) = truth.get(&number) else { continue };
        assert_eq!(label["name"].as_str(), Some(expected.as_str()), "{label}");
        let is_marked = label["text"].as_str().unwrap().ends_with(" (before its rewrite)");
        assert_eq!(is_marked, label["rewritten"] == true, "{label}");
        old_files += usize::from(is_marked);
    }
    // Four relations, each with the files before six rewrites (REINDEX keeps the table's own file).
    assert!(old_files >= 15, "{old_files}");
    Ok(())
}

/// Migrations that drop relations and create or rewrite others in the same transaction.
fn files_of_dropped_relations_have_no_name(major: u32) -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(major)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE inv (id int PRIMARY KEY, amount int); CREATE INDEX inv_amount ON inv (amount);
             CREATE TABLE cust (id int PRIMARY KEY, email text); CREATE INDEX cust_email ON cust (email);
             CREATE INDEX cust_id ON cust (id); CREATE TABLE old_log (id serial, t text)",
        )
        .unwrap();
    let start: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    client
        .batch_execute(
            "INSERT INTO inv SELECT i, i FROM generate_series(1, 1000) i;
             INSERT INTO cust SELECT i, md5(i::text) FROM generate_series(1, 1000) i;
             INSERT INTO old_log (t) SELECT repeat('x', 50) FROM generate_series(1, 1000)",
        )
        .unwrap();
    let numbers = "SELECT c.oid::regclass::text, pg_relation_filenode(c.oid)::bigint FROM pg_class c
                   WHERE c.relname LIKE ANY ('{inv%,cust%,old_log%}')";
    let before: BTreeMap<String, i64> =
        client.query(numbers, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    for statements in [
        "DROP INDEX cust_email; CREATE INDEX inv_amount2 ON inv (amount DESC)",
        "DROP TABLE old_log; CREATE TABLE audit (id serial, t text)",
        "DROP INDEX cust_id; REINDEX INDEX inv_amount; CREATE INDEX inv_both ON inv (amount, id)",
    ] {
        client.batch_execute(&format!("BEGIN; {statements}; COMMIT")).unwrap();
    }
    client.batch_execute("CHECKPOINT").unwrap();
    let wal = cluster.data_dir().join("pg_wal");
    let dsn = cluster.dsn("postgres");
    let document =
        explain_json(&["--names", &dsn, "--from", &start, wal.to_str().unwrap(), "--by", "relation"]);
    let labels: Vec<_> =
        document["views"][0]["groups"].as_array().unwrap().iter().map(|group| &group["keys"][0]).collect();
    let name_of = |relation: &str| {
        let file = format!("/{}", before[relation]);
        let is_its =
            |label: &&&serde_json::Value| label["file"].as_str().is_some_and(|of| of.ends_with(&file));
        labels.iter().find(is_its).unwrap_or_else(|| panic!("{relation} is missing"))["name"].as_str()
    };
    for dropped in ["cust_email", "cust_id", "old_log", "old_log_id_seq"] {
        assert_eq!(name_of(dropped), None, "{dropped}");
    }
    // The commit record has the OIDs of dropped relations, and with them the one that is left.
    assert_eq!(name_of("inv_amount"), (major >= 15).then_some("inv_amount"));
    Ok(())
}

/// Under `wal_level=minimal`, no locks are logged. Since 15, commit records list the dropped relations.
fn a_rewrite_under_minimal_is_no_staging_table() -> Outcome {
    for (major, statement, is_staging) in [
        (14, "VACUUM FULL t", false),
        (15, "VACUUM FULL t", false),
        (18, "CLUSTER t USING t_pkey", false),
        (18, "ALTER TABLE t ALTER plain TYPE bigint", false),
        (15, "TRUNCATE t", true),
        (18, "DROP TABLE t", true),
        (19, "REPACK t USING INDEX t_pkey", false),
    ] {
        let cluster = ClusterBuilder::new(postgres(major)?)
            .setting("wal_level", "minimal")
            .setting("max_wal_senders", "0")
            .setting("wal_keep_size", "1GB")
            .setting("autovacuum", "off")
            .start()
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, plain int, a text)").unwrap();
        let start: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
        let file = "SELECT '1663/' || oid || '/' || pg_relation_filenode('t') FROM pg_database
                    WHERE datname = current_database()";
        let file: String = client.query_one(file, &[]).unwrap().get(0);
        client
            .batch_execute("INSERT INTO t SELECT i, i, repeat('x', 50) FROM generate_series(1, 50000) i")
            .unwrap();
        client.batch_execute(statement).unwrap();
        client.batch_execute("CHECKPOINT").unwrap();
        let wal = cluster.data_dir().join("pg_wal");
        let dsn = cluster.dsn("postgres");
        let common = ["--by", "relation", wal.to_str().unwrap()];
        // This also covers WAL that starts after the table's creation.
        for from in [&[][..], &["--from", &start]] {
            for names in [&[][..], &["--names", &dsn]] {
                let document = explain_json(&[&common[..], from, names].concat());
                let findings = document["findings"].as_array().unwrap();
                let has_staging = findings.iter().any(|one| one["rule"] == "staging-table");
                assert_eq!(has_staging, is_staging, "{major} {statement}, {names:?}: {findings:?}");
                let groups = document["views"][0]["groups"].as_array().unwrap();
                let label = groups.iter().map(|group| &group["keys"][0]).find(|label| label["file"] == file);
                let is_named = label.unwrap()["name"] == "t";
                assert_eq!(is_named, !is_staging && major >= 15 && !names.is_empty(), "{major} {statement}");
            }
        }
    }
    Ok(())
}
