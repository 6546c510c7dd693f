//! Tests whether scripts are marked `Complete` correctly, and scripts over several tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use postgres::Client;
use walden_lab::{Cluster, StopMode};
use walden_testing::{Missing, Need, Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, walden};
use crate::restore_forward::copy_running;

walden_testing::tests! {
    nulls_and_blanks_are_compared_exactly,
    a_backup_that_starts_late_is_a_gap,
    a_backup_that_is_older_than_the_start_is_no_gap,
    a_gap_before_the_backup_does_not_matter,
    unlogged_tables_are_not_complete,
    columns_that_change_are_events,
    a_transaction_over_several_tables_is_reverted,
    a_script_over_cascading_keys_is_reverted,
    changes_of_subtransactions_alone_are_reverted on [15, 19],
    all_tables_come_in_the_order_of_commits,
    sequences_are_not_reverted on [14, 15, 19],
    a_transaction_from_before_the_backup_is_a_gap on [15, 18],
}

pub(crate) fn run(client: &mut Client, script: &str) {
    client.batch_execute(script).unwrap_or_else(|error| panic!("{error:?}: {script}"));
}

pub(crate) fn server(version: u32) -> Result<(Cluster, Client), Missing> {
    let cluster = cluster_that_keeps_wal(postgres(version)?).start().unwrap();
    let client = cluster.client("postgres").unwrap();
    Ok((cluster, client))
}

/// Stops the server, and copies its data as a base.
pub(crate) fn copy_base(cluster: &Cluster, client: Client, name: &str) -> (Client, PathBuf) {
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    let base = cluster.dir().join(name);
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    (cluster.client("postgres").unwrap(), base)
}

pub(crate) fn rows(cluster: &Cluster, base: &Path, more: &[&str]) -> Run {
    let wal = cluster.data_dir().join("pg_wal");
    walden(&[&["rows", wal.to_str().unwrap(), "--base", base.to_str().unwrap()], more].concat())
}

pub(crate) fn contents(client: &mut Client, table: &str) -> Vec<String> {
    let query = format!("SELECT whole::text FROM {table} whole ORDER BY whole::text COLLATE \"C\"");
    client.query(&query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

pub(crate) fn position(client: &mut Client) -> String {
    client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0)
}

/// PostgreSQL's operators would match another row first.
fn nulls_and_blanks_are_compared_exactly() -> Outcome {
    for version in [14, 16, 18] {
        let (cluster, mut client) = server(version)?;
        run(
            &mut client,
            "CREATE TYPE cn AS (x int); CREATE DOMAIN dn AS cn; CREATE TYPE nested AS (n cn);
            CREATE TABLE tn (a int, e cn); INSERT INTO tn VALUES (1, ROW(NULL));
            CREATE TABLE dn_t (a int, e dn); INSERT INTO dn_t VALUES (1, ROW(NULL));
            CREATE TABLE nested_t (a int, e nested); INSERT INTO nested_t VALUES (1, ROW(ROW(NULL)));
            CREATE TABLE blanks (a int, b bpchar); INSERT INTO blanks VALUES (1, 'x');
            CREATE TABLE of_names (a int, b regclass[]); INSERT INTO of_names VALUES (1, NULL)",
        );
        let (mut client, base) = copy_base(&cluster, client, "backup");
        let tables = ["tn", "dn_t", "nested_t", "blanks", "of_names"];
        let before = tables.map(|table| contents(&mut client, table));
        run(
            &mut client,
            "INSERT INTO tn VALUES (1, NULL); INSERT INTO dn_t VALUES (1, NULL);
            INSERT INTO nested_t VALUES (1, ROW(NULL)); INSERT INTO blanks VALUES (1, 'x  ');
            INSERT INTO of_names VALUES (1, '{pg_class}')",
        );
        run(&mut client, "SELECT pg_switch_wal()");
        for (table, before) in tables.iter().zip(before) {
            let script = rows(&cluster, &base, &["--relation", table, "--undo"]);
            assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
            run(&mut client, &script.stdout);
            assert_eq!(contents(&mut client, table), before, "{version}: {}", script.stdout);
        }
    }
    Ok(())
}

/// As with ON_ERROR_ROLLBACK of psql, or exception handlers of PL/pgSQL: the top-level transaction itself
/// changes nothing.
fn changes_of_subtransactions_alone_are_reverted(version: u32) -> Outcome {
    let (cluster, mut client) = server(version)?;
    run(
        &mut client,
        "CREATE TABLE a (i int); INSERT INTO a VALUES (1), (2); CREATE TABLE b (i int); INSERT INTO b TABLE a",
    );
    let (mut client, base) = copy_base(&cluster, client, "backup");
    run(&mut client, "BEGIN");
    let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
    run(
        &mut client,
        "SAVEPOINT s; DELETE FROM a WHERE i = 1; RELEASE s; SAVEPOINT s; DELETE FROM b; RELEASE s; COMMIT;
        INSERT INTO a VALUES (3)",
    );
    run(&mut client, "SELECT pg_switch_wal()");
    let script = rows(&cluster, &base, &["--xid", &xid, "--undo"]);
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    run(&mut client, &script.stdout);
    assert_eq!(contents(&mut client, "a"), ["(1)", "(2)", "(3)"]);
    assert_eq!(contents(&mut client, "b"), ["(1)", "(2)"]);
    Ok(())
}

/// The change was made before the backup, or before the given segments.
fn a_backup_that_starts_late_is_a_gap() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(&mut client, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)");
    run(&mut client, "SELECT pg_switch_wal(); CHECKPOINT");
    let (mut client, early) = copy_base(&cluster, client, "early");
    let from = position(&mut client);
    let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
    run(&mut client, "DELETE FROM t WHERE id = 1");
    run(&mut client, "SELECT pg_switch_wal()");
    let deleted = (xid.parse::<u32>().unwrap() + 1).to_string();
    let (mut client, late) = copy_base(&cluster, client, "late");
    let start: String =
        client.query_one("SELECT redo_lsn::text FROM pg_control_checkpoint()", &[]).unwrap().get(0);
    run(&mut client, "INSERT INTO t VALUES (3)");
    run(&mut client, "SELECT pg_switch_wal()");
    for bounds in [["--from", &from], ["--xid", &deleted]] {
        let asked = |base: &Path, more: &[&str]| {
            rows(&cluster, base, &[&["--relation", "t"], more, &bounds[..]].concat())
        };
        let script = asked(&early, &["--undo"]);
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
        let script = asked(&late, &["--undo"]);
        assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE"), "{script:?}");
        let why = "the base backup starts at 0/";
        assert!(script.stdout.contains(&format!("-- Changes may be missing: {why}")), "{script:?}");
        assert!(script.stderr.contains(&format!("note: {why}")), "{script:?}");
        let first = script.stdout.lines().next().unwrap();
        assert!(!first.contains(&format!("from {from} ")), "{start}: {first}");
        let found = asked(&late, &["--format", "json"]);
        assert!(found.code == 1 && found.stdout.contains(r#""operation":"incomplete""#), "{found:?}");
    }
    // Without a bound, the script covers the WAL since the backup.
    let script = rows(&cluster, &late, &["--relation", "t", "--undo"]);
    let note = "the WAL before it, from 0/01000000 on, is not read";
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    assert!(script.stderr.contains(note), "{script:?}");
    assert!(
        script.stdout.lines().any(|line| line.starts_with("-- Note: ") && line.contains(note)),
        "{script:?}"
    );
    let (wal, late) = (cluster.data_dir().join("pg_wal"), late.to_str().unwrap());
    for condition in [format!("xid = {deleted}"), format!("lsn >= lsn('{from}')")] {
        let query = format!("SELECT lsn FROM row_changes('t') WHERE {condition}");
        let found = walden(&["sql", &query, wal.to_str().unwrap(), "--base", late]);
        assert!(found.code == 1 && found.stderr.contains("note: the base backup starts at 0/"), "{found:?}");
    }
    Ok(())
}

/// No transaction ends between the backup's start and the time, as on a quiet server, so the time's position
/// precedes the backup.
fn a_backup_that_is_older_than_the_start_is_no_gap() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(&mut client, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE TABLE u ()");
    let backup = |client: &mut Client, name: &str| {
        let base = cluster.dir().join(name);
        run(client, "SELECT pg_backup_start('x', true)");
        copy_running(&cluster.data_dir(), &base);
        let label = client.query_one("SELECT labelfile FROM pg_backup_stop(false)", &[]).unwrap();
        fs::write(base.join("backup_label"), label.get::<_, String>(0)).unwrap();
        base
    };
    // Reads the time without a transaction ID.
    let time_after_a_pause = |client: &mut Client| -> String {
        thread::sleep(Duration::from_millis(1500));
        let time = "SELECT date_trunc('second', clock_timestamp())::text";
        let time = client.query_one(time, &[]).unwrap().get(0);
        thread::sleep(Duration::from_millis(1100));
        time
    };
    let early = time_after_a_pause(&mut client);
    let base = backup(&mut client, "quiet");
    let from = time_after_a_pause(&mut client);
    run(&mut client, "DELETE FROM t WHERE id = 1");
    run(&mut client, "SELECT pg_switch_wal()");
    let script = rows(&cluster, &base, &["--relation", "t", "--from", &from, "--undo"]);
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    assert_eq!(script.stdout.matches("INSERT INTO").count(), 1, "{script:?}");
    // Nothing changed between the backup's start and the time.
    let until = rows(&cluster, &base, &["--relation", "t", "--to", &from, "--undo"]);
    assert!(until.code == 0 && until.stdout.contains("-- Complete"), "{until:?}");
    assert!(
        !until.stdout.contains("INSERT INTO") && !until.stderr.contains("use a base backup"),
        "{until:?}"
    );
    let until = rows(&cluster, &base, &["--relation", "t", "--to", &early, "--undo"]);
    assert!(
        until.code == 3 && until.stderr.contains("hint: use a base backup that started before 0/"),
        "{until:?}"
    );
    // A transaction that ends in the range has changed the table before the backup.
    let mut other = cluster.client("postgres").unwrap();
    run(&mut other, "BEGIN; INSERT INTO t VALUES (3)");
    // Its record reaches the files, without the end of a transaction.
    run(&mut client, "SELECT pg_switch_wal()");
    let base = backup(&mut client, "in-progress");
    let from = time_after_a_pause(&mut client);
    run(&mut other, "INSERT INTO t VALUES (4); COMMIT");
    run(&mut client, "SELECT pg_switch_wal()");
    let script = rows(&cluster, &base, &["--relation", "t", "--from", &from, "--undo"]);
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE"), "{script:?}");
    assert!(script.stderr.contains("note: the base backup starts at 0/"), "{script:?}");
    Ok(())
}

/// Segments from before the backup's start are not read, so none is missed.
fn a_gap_before_the_backup_does_not_matter() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(&mut client, "CREATE TABLE t (id int PRIMARY KEY)");
    for id in 1..5 {
        run(&mut client, &format!("INSERT INTO t VALUES ({id})"));
        run(&mut client, "SELECT pg_switch_wal()");
    }
    let (mut client, base) = copy_base(&cluster, client, "backup");
    run(&mut client, "DELETE FROM t WHERE id = 1");
    run(&mut client, "SELECT pg_switch_wal()");
    let (wal, base) = (cluster.dir().join("with a gap"), base.to_str().unwrap());
    fs::create_dir(&wal).unwrap();
    let missing = "000000010000000000000002";
    for entry in fs::read_dir(cluster.data_dir().join("pg_wal")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.ends_with(missing) {
            fs::copy(&path, wal.join(path.file_name().unwrap())).unwrap();
        }
    }
    let wal = wal.to_str().unwrap();
    let warns = |arguments: &[&str]| {
        let found = walden(arguments);
        assert!(found.code == 0, "{found:?}");
        found.stderr.contains("warning: ") && found.stderr.contains(missing)
    };
    let rows = ["rows", wal, "--relation", "t", "--base", base];
    assert!(!warns(&rows) && !warns(&[&rows[..], &["--undo"]].concat()));
    assert!(!warns(&["sql", "SELECT count(*) FROM row_changes('t')", wal, "--base", base]));
    assert!(warns(&["explain", wal]));
    Ok(())
}

fn unlogged_tables_are_not_complete() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(
        &mut client,
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY); CREATE TABLE l (id int PRIMARY KEY); CREATE TABLE kept (id int)",
    );
    let (mut client, base) = copy_base(&cluster, client, "backup");
    run(&mut client, "INSERT INTO u VALUES (1); INSERT INTO kept VALUES (1)");
    run(&mut client, "ALTER TABLE l SET UNLOGGED");
    run(&mut client, "INSERT INTO l VALUES (1)");
    let middle = position(&mut client);
    run(&mut client, "ALTER TABLE l SET LOGGED");
    let after = position(&mut client);
    run(&mut client, "INSERT INTO l VALUES (2)");
    run(&mut client, "CREATE UNLOGGED TABLE later (id int)");
    run(&mut client, "SELECT pg_switch_wal()");
    let undo = |table: &str, more: &[&str]| {
        rows(&cluster, &base, &[&["--relation", table, "--undo"], more].concat())
    };
    for (table, more) in [("u", &[][..]), ("later", &[]), ("l", &[]), ("l", &["--from", &middle])] {
        let script = undo(table, more);
        let why = format!("-- Changes may be missing: {table} is unlogged at 0/");
        assert!(script.code == 1 && script.stdout.contains(&why), "{script:?}");
        assert!(script.stdout.contains("-- NOT COMPLETE"), "{script:?}");
    }
    for (table, more) in [("kept", &[][..]), ("l", &["--from", &after])] {
        let script = undo(table, more);
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    }
    Ok(())
}

fn columns_that_change_are_events() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(
        &mut client,
        "CREATE TYPE c AS (x int);
        CREATE TABLE t (id int PRIMARY KEY, gone text, v varchar(5), c c); INSERT INTO t VALUES (1, 'a', 'b'), (2, 'aa', 'bb')",
    );
    let (mut client, base) = copy_base(&cluster, client, "backup");
    for statement in [
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE t DROP COLUMN gone",
        "ALTER TABLE t ADD COLUMN e int DEFAULT 7, ALTER v TYPE text",
        "ALTER TABLE t ALTER v TYPE char(3)",
        "ALTER TYPE c ADD ATTRIBUTE y int",
        "BEGIN; CREATE TABLE made (a int); ALTER TABLE made ADD b int; COMMIT",
        "SELECT pg_switch_wal()",
    ] {
        run(&mut client, statement);
    }
    let found = rows(&cluster, &base, &["--relation", "t", "--format", "json"]);
    let lines = found.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let events: Vec<(String, String)> = lines
        .filter(|line| line["column"].is_string())
        .map(|line| {
            (line["operation"].as_str().unwrap().to_owned(), line["column"].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [
        ("drop-column", "gone"),
        ("alter-column", "v"),
        ("add-column", "e"),
        ("alter-column", "v"),
        ("alter-column", "c"),
    ];
    let mut events: Vec<(&str, &str)> =
        events.iter().map(|(kind, name)| (kind.as_str(), name.as_str())).collect();
    // ALTER TABLE changes types before it adds columns.
    events[1..3].sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(events, expected, "{found:?}");
    let script = rows(&cluster, &base, &["--relation", "t", "--undo"]);
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE"), "{script:?}");
    for reason in [
        "column gone = 'a': the column was dropped since",
        "DROP COLUMN gone: the column and its values are lost",
        "ADD COLUMN e: the column stays",
    ] {
        assert!(script.stdout.contains(reason), "{reason}: {script:?}");
    }
    let made = rows(&cluster, &base, &["--relation", "made", "--undo"]);
    assert!(made.code == 0 && made.stdout.contains("-- Complete"), "{made:?}");
    Ok(())
}

/// Foreign keys that cascade, refer to each other, and to their own table.
fn a_transaction_over_several_tables_is_reverted() -> Outcome {
    const MADE: &str = "
        CREATE TABLE parent (id int PRIMARY KEY, v text);
        CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
        CREATE TABLE kin (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE);
        CREATE TABLE a (id int PRIMARY KEY, b int);
        CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a ON DELETE CASCADE);
        ALTER TABLE a ADD CONSTRAINT \"to 'b'\" FOREIGN KEY (b) REFERENCES b ON DELETE CASCADE;
        CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree);
        CREATE TABLE parts (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE) PARTITION BY RANGE (id);
        CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
        CREATE TABLE other (id int);
        INSERT INTO parent SELECT i, 'v' || i FROM generate_series(1, 9) i;
        INSERT INTO child SELECT i, i % 9 + 1 FROM generate_series(1, 30) i;
        INSERT INTO kin SELECT i, i % 9 + 1 FROM generate_series(1, 30) i;
        INSERT INTO parts SELECT i, i % 9 + 1 FROM generate_series(1, 30) i;
        INSERT INTO a VALUES (1, NULL); INSERT INTO b VALUES (1, 1); UPDATE a SET b = 1;
        INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2)";
    const TABLES: [&str; 7] = ["parent", "child", "kin", "a", "b", "tree", "parts"];
    for version in [14, 18] {
        let (cluster, mut client) = server(version)?;
        run(&mut client, MADE);
        let (mut client, base) = copy_base(&cluster, client, "backup");
        let before = TABLES.map(|table| contents(&mut client, table));
        run(&mut client, "INSERT INTO other VALUES (1)");
        run(&mut client, "BEGIN");
        let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
        run(
            &mut client,
            "UPDATE parent SET id = 20 WHERE id = 3; SAVEPOINT s; DELETE FROM parent WHERE id < 3; RELEASE s;
            INSERT INTO parent VALUES (21, 'new'); INSERT INTO child VALUES (40, 21); DELETE FROM a; DELETE FROM tree; COMMIT",
        );
        run(&mut client, "SELECT pg_switch_wal()");
        let script = rows(&cluster, &base, &["--xid", &xid, "--undo"]);
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
        assert!(
            script.stdout.starts_with("-- Reverts the changes of all tables by transaction"),
            "{script:?}"
        );
        let mut several = vec!["--undo", "--xid", &xid];
        TABLES.iter().for_each(|table| several.extend(["--relation", table]));
        let named = rows(&cluster, &base, &several);
        let statements = |script: &Run| script.stdout.split_once("BEGIN;").map(|(_, rest)| rest.to_owned());
        assert_eq!(statements(&named), statements(&script), "{named:?}");
        run(&mut client, &script.stdout);
        for (table, before) in TABLES.iter().zip(before) {
            assert_eq!(contents(&mut client, table), before, "{version}: {table}: {}", script.stdout);
        }
        let deferrable = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND condeferrable";
        assert_eq!(client.query_one(deferrable, &[]).unwrap().get::<_, i64>(0), 0, "{version}");
        assert_eq!(contents(&mut client, "other"), ["(1)"]);
        let missing = rows(&cluster, &base, &["--relation", "parent", "--relation", "nothing"]);
        assert!(missing.code == 3 && missing.stderr.contains("cannot find the table nothing"), "{missing:?}");
        assert_eq!(rows(&cluster, &base, &["--undo"]).code, 2);
        let unknown = rows(&cluster, &base, &["--xid", "1000000", "--undo"]);
        assert!(unknown.code == 3 && unknown.stderr.contains("has no change by it"), "{unknown:?}");
    }
    Ok(())
}

/// A script inserts children before their parents, as cascades log them the other way round. Reverting that
/// script deletes parents first, whose keys must not cascade then.
fn a_script_over_cascading_keys_is_reverted() -> Outcome {
    const MADE: &str = "
        CREATE TABLE parent (id int PRIMARY KEY, code text UNIQUE);
        CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
        COMMENT ON CONSTRAINT child_parent_fkey ON child IS 'it''s the key';
        CREATE TABLE kin (id int PRIMARY KEY, code text DEFAULT 'd');
        ALTER TABLE kin ADD CONSTRAINT \"to 'parent'\" FOREIGN KEY (code) REFERENCES parent (code)
            ON DELETE SET DEFAULT ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED;
        CREATE TABLE heir (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE);
        CREATE TABLE parts (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE) PARTITION BY RANGE (id);
        CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
        CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE);
        INSERT INTO parent SELECT i, 'c' || i FROM generate_series(1, 5) i;
        INSERT INTO parent VALUES (9, 'd');
        INSERT INTO child SELECT i, i % 5 + 1 FROM generate_series(1, 30) i;
        INSERT INTO kin SELECT i, 'c' || i % 5 + 1 FROM generate_series(1, 30) i;
        INSERT INTO heir SELECT i, i % 5 + 1 FROM generate_series(1, 30) i;
        INSERT INTO parts SELECT i, i % 5 + 1 FROM generate_series(1, 30) i;
        INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2);
        CREATE VIEW keys AS SELECT conrelid::regclass, conname, pg_get_constraintdef(oid),
            obj_description(oid, 'pg_constraint') FROM pg_constraint WHERE contype = 'f' AND conparentid = 0";
    const TABLES: [&str; 6] = ["parent", "child", "kin", "heir", "parts", "tree"];
    // With more tables, the script does not contain their order.
    for (version, more_tables) in [(14, 0), (18, 0), (18, 70)] {
        let (cluster, mut client) = server(version)?;
        run(&mut client, MADE);
        for number in 0..more_tables {
            run(&mut client, &format!("CREATE TABLE more{number} AS SELECT 1 v"));
        }
        let (mut client, base) = copy_base(&cluster, client, "backup");
        let expected_keys = contents(&mut client, "keys");
        let mut states = vec![TABLES.map(|table| contents(&mut client, table))];
        let mut change =
            "DELETE FROM parent WHERE id = 1; UPDATE parent SET id = 20, code = 'new' WHERE id = 2; \
            DELETE FROM tree WHERE id = 1"
                .to_owned();
        (0..more_tables).for_each(|number| change += &format!("; UPDATE more{number} SET v = 2"));
        // A change, the script that reverts it, the script that reverts this script, and one more.
        for round in 0..4 {
            run(&mut client, "BEGIN");
            let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
            run(&mut client, &change);
            if round == 0 {
                run(&mut client, "COMMIT");
            }
            states.push(TABLES.map(|table| contents(&mut client, table)));
            assert_eq!(
                states.last(),
                states.get(if round % 2 == 0 { 1 } else { 0 }),
                "{version}, {round}: {change}"
            );
            assert_eq!(contents(&mut client, "keys"), expected_keys, "{version}, {round}: {change}");
            run(&mut client, "SELECT pg_switch_wal()");
            let script = rows(&cluster, &base, &["--xid", &xid, "--undo"]);
            assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
            assert_eq!(script.stdout.contains("(VALUES ("), more_tables == 0, "{version}, {round}");
            change = script.stdout;
        }
        // A script for a table that refers to itself.
        let before = contents(&mut client, "tree");
        let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
        run(&mut client, "DELETE FROM tree WHERE id = 1");
        run(&mut client, "SELECT pg_switch_wal()");
        assert!(contents(&mut client, "tree").is_empty());
        let next: u32 = xid.parse().unwrap();
        let script =
            rows(&cluster, &base, &["--xid", &(next + 1).to_string(), "--relation", "tree", "--undo"]);
        run(&mut client, &script.stdout);
        assert_eq!(contents(&mut client, "tree"), before, "{version}: {script:?}");
    }
    Ok(())
}

/// Interleaved transactions, compared with test_decoding, and all of them in one script.
fn all_tables_come_in_the_order_of_commits() -> Outcome {
    let builder = cluster_that_keeps_wal(postgres(15)?).setting("wal_level", "logical");
    let cluster = builder.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    run(
        &mut client,
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (0)",
    );
    run(&mut client, "CREATE DATABASE other");
    let (mut client, base) = copy_base(&cluster, client, "backup");
    let mut second = cluster.client("postgres").unwrap();
    let slot = client.batch_execute("SELECT pg_create_logical_replication_slot('judge', 'test_decoding')");
    slot.map_err(|error| Need::Pageinspect.missing(&format!("a slot of test_decoding: {error}")))?;
    let from = position(&mut client);
    run(&mut client, "BEGIN; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)");
    run(&mut second, "BEGIN; INSERT INTO a VALUES (2); SAVEPOINT s; INSERT INTO b VALUES (2); RELEASE s");
    run(&mut client, "DELETE FROM a WHERE id = 0; SAVEPOINT s; INSERT INTO b VALUES (99); ROLLBACK TO s");
    run(
        &mut second,
        "INSERT INTO b VALUES (3); COMMIT; CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (4)",
    );
    run(&mut client, "INSERT INTO b VALUES (5); COMMIT; SELECT pg_switch_wal()");
    let query = "SELECT data FROM pg_logical_slot_get_changes('judge', NULL, NULL) WHERE data LIKE 'table%'";
    let decoded: Vec<String> = client.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let all = |more: &[&str]| rows(&cluster, &base, &[&["--all", "--from", &from], more].concat());
    let as_decoded = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        let row = if line["after"].is_null() { &line["before"] } else { &line["after"] };
        format!("table {}: {}: id[integer]:{}", text("relation"), text("operation").to_uppercase(), row["id"])
    };
    let json = |more: &[&str]| -> Vec<String> {
        let found = all(&[&["--format", "json"], more].concat());
        assert_eq!(found.code, 0, "{found:?}");
        found.stdout.lines().map(as_decoded).collect()
    };
    assert_eq!(json(&["--order", "commit"]), decoded);
    let in_log = json(&[]);
    assert_ne!(in_log, decoded);
    assert_eq!(in_log.len(), decoded.len());
    for format in ["csv", "table"] {
        let [ordered, plain] =
            ["commit", "log"].map(|order| all(&["--order", order, "--format", format]).stdout);
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(sorted(&ordered), sorted(&plain), "{format}");
        assert_eq!(ordered.lines().next() == plain.lines().next(), format == "csv", "{format}");
    }
    assert_eq!(all(&["--database", "postgres", "--format", "json"]).stdout.lines().count(), decoded.len());
    let script = all(&["--undo"]);
    assert!(
        script.code == 0 && script.stdout.contains("-- Reverts the changes of all tables from "),
        "{script:?}"
    );
    run(&mut client, &script.stdout);
    let left = ["a", "b", "c"].map(|table| contents(&mut client, table).join(""));
    assert_eq!(left, ["(0)", "", ""]);
    for (wrong, code, expected) in [
        (&["--database", "nowhere"][..], 3, "cannot find the database nowhere"),
        (&["--relation", "a"], 2, "cannot be used with"),
        (&["--order", "commit", "--undo"], 2, "--order commit is for"),
    ] {
        let found = all(wrong);
        assert!(found.code == code && found.stderr.contains(expected), "{found:?}");
    }
    // User tables in two databases.
    drop((client, second));
    run(&mut cluster.client("other").unwrap(), "CREATE TABLE d (id int)");
    let (_client, base) = copy_base(&cluster, cluster.client("postgres").unwrap(), "later");
    let found = rows(&cluster, &base, &["--all"]);
    assert!(found.code == 3 && found.stderr.contains("(--database): "), "{found:?}");
    assert!(["other", "postgres"].iter().all(|name| found.stderr.contains(name)), "{found:?}");
    Ok(())
}

/// `nextval()` and `setval()` are not transactional; commands change the definition of a sequence.
fn sequences_are_not_reverted(version: u32) -> Outcome {
    let (cluster, mut client) = server(version)?;
    run(
        &mut client,
        "CREATE TABLE t (id serial PRIMARY KEY, v int); CREATE SEQUENCE drawn; CREATE SEQUENCE \"Altered\"; CREATE SEQUENCE gone; \
         CREATE SEQUENCE idle; INSERT INTO t (v) SELECT 1 FROM generate_series(1, 5)",
    );
    let (mut client, base) = copy_base(&cluster, client, "backup");
    let mut undo = |work: &str| {
        run(&mut client, "BEGIN");
        let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
        run(&mut client, &format!("UPDATE t SET v = v + 1; {work}; COMMIT; SELECT pg_switch_wal()"));
        rows(&cluster, &base, &["--xid", &xid, "--undo"])
    };
    let script = undo("SELECT 1");
    assert!(script.code == 0 && !script.stdout.contains("sequence"), "{script:?}");
    let script = undo(
        "SELECT setval('drawn', 5000); SAVEPOINT s; INSERT INTO t (v) SELECT 2 FROM generate_series(1, 99)",
    );
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    let note = "-- Note: nextval() or setval() changed sequences, which keep their values: public.drawn, public.t_id_seq\n";
    assert!(script.stdout.contains(note), "{script:?}");
    let script = undo(
        "ALTER SEQUENCE \"Altered\" INCREMENT 7; DROP SEQUENCE gone; CREATE SEQUENCE own; SELECT nextval('own')",
    );
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE: 2 changes are"), "{script:?}");
    for expected in ["-- NOT REVERTED: public.\"Altered\" at ", "-- NOT REVERTED: public.gone at "] {
        assert!(script.stdout.contains(expected), "{expected}: {script:?}");
    }
    assert!(!["nextval()", "public.own", "idle"].iter().any(|it| script.stdout.contains(it)), "{script:?}");
    // The rows of a single table are reverted, and its sequence is none of them.
    let one = rows(&cluster, &base, &["--relation", "t", "--undo"]);
    assert!(one.code == 0 && !one.stdout.contains("sequence"), "{one:?}");
    let all = rows(&cluster, &base, &["--all", "--undo"]);
    assert!(all.code == 1 && all.stdout.contains("values: public.drawn, public.t_id_seq\n"), "{all:?}");
    Ok(())
}

/// One was prepared before the backup, and one is in progress at its checkpoint.
fn a_transaction_from_before_the_backup_is_a_gap(version: u32) -> Outcome {
    let builder = cluster_that_keeps_wal(postgres(version)?).setting("max_prepared_transactions", "5");
    let cluster = builder.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    run(&mut client, "CREATE TABLE t (i int)");
    let begin = |client: &mut Client| -> String {
        run(client, "BEGIN; INSERT INTO t VALUES (1)");
        client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0)
    };
    let prepared = begin(&mut client);
    run(&mut client, "PREPARE TRANSACTION 'p'");
    run(&mut client, "SELECT pg_switch_wal()");
    let (mut client, base) = copy_base(&cluster, client, "backup");
    let first: String = client.query_one("SELECT pg_walfile_name(pg_current_wal_lsn())", &[]).unwrap().get(0);
    // Without a transaction from before it, the range is complete.
    let mut open = cluster.client("postgres").unwrap();
    let running = begin(&mut open);
    let undone = rows(&cluster, &base, &["--relation", "t", "--undo"]);
    assert!(undone.code == 0 && undone.stdout.contains("-- Complete"), "{undone:?}");
    run(&mut client, "CHECKPOINT");
    run(&mut client, "COMMIT PREPARED 'p'");
    run(&mut open, "COMMIT");
    run(&mut client, "INSERT INTO t VALUES (2)");
    run(&mut client, "SELECT pg_switch_wal()");
    let undone = rows(&cluster, &base, &["--relation", "t", "--undo"]);
    let gap = format!("transaction {prepared} (committed at ");
    assert!(undone.code == 1 && undone.stdout.contains(&gap), "{undone:?}");
    assert!(undone.stdout.contains("-- NOT COMPLETE"), "{undone:?}");
    assert!(!undone.stdout.contains(&format!("{running} (committed")), "{undone:?}");
    let after = position(&mut client);
    run(&mut client, "INSERT INTO t VALUES (3)");
    let later = rows(&cluster, &base, &["--relation", "t", "--undo", "--from", &after]);
    assert!(later.code == 0 && later.stdout.contains("-- Complete"), "{later:?}");
    // Without a backup, a prepared transaction is known to be earlier by its end.
    let wal = cluster.dir().join("wal");
    fs::create_dir(&wal).unwrap();
    cluster.collect_wal(&first, &wal).unwrap();
    let dsn = cluster.dsn("postgres");
    let named =
        walden(&["rows", wal.to_str().unwrap(), "--names", &dsn, "--relation", "t", "--format", "sql"]);
    assert!(named.code == 1 && named.stdout.contains(&gap), "{named:?}");
    let running = begin(&mut open);
    run(&mut client, "SELECT pg_switch_wal()");
    let base = cluster.dir().join("running");
    run(&mut client, "SELECT pg_backup_start('x', true)");
    copy_running(&cluster.data_dir(), &base);
    let label = client.query_one("SELECT labelfile FROM pg_backup_stop(false)", &[]).unwrap();
    fs::write(base.join("backup_label"), label.get::<_, String>(0)).unwrap();
    run(&mut open, "INSERT INTO t VALUES (4); COMMIT");
    run(&mut client, "INSERT INTO t VALUES (5)");
    run(&mut client, "SELECT pg_switch_wal()");
    let undone = rows(&cluster, &base, &["--relation", "t", "--undo"]);
    let gap = format!("transaction {running} (committed at ");
    assert!(undone.code == 1 && undone.stdout.contains(&gap), "{undone:?}");
    Ok(())
}
