//! `walden retention` compared with servers: its results must agree with `pg_ls_waldir` and the servers'
//! views.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use walden_format::lsn::Lsn;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{ALL_SERVERS, Outcome, postgres};

use crate::archive::text;
use crate::material::walden;

walden_testing::tests! {
    each_byte_has_its_holder on ALL_SERVERS,
    the_remedy_for_a_stale_position_of_a_slot_works on [15, 19],
    the_remedy_for_a_slot_behind_a_prepared_transaction_works on [15, 18],
    a_checkpoint_releases_partial_segments_as_predicted on [14, 19],
    a_connection_string_in_the_place_of_the_folder_is_explained,
}

const MB: u64 = 1 << 20;

fn execute(client: &mut postgres::Client, statements: &str) {
    for statement in statements.split(';') {
        client.batch_execute(statement).unwrap();
    }
}

/// Runs the command. Returns the exit status and the document, whose sums must equal the folder's size.
fn retention(cluster: &Cluster, arguments: &[&str]) -> (i32, Value) {
    let run = walden(&[&["retention", "--format", "json"], arguments].concat());
    assert!(run.code <= 1, "{run:?}");
    let document: Value = serde_json::from_str(&run.stdout).unwrap();
    let holders = document["holders"].as_array().unwrap();
    let of_holders: u64 = holders.iter().map(|holder| holder["bytes"].as_u64().unwrap()).sum();
    assert_eq!(of_holders, document["bytes"], "{document:#}");
    // The server's own listing omits folders inside of pg_wal.
    let mut client = cluster.client("postgres").unwrap();
    let query = "SELECT sum(size)::bigint FROM pg_ls_waldir()";
    let listed = client.query_one(query, &[]).unwrap().get::<_, i64>(0).cast_unsigned();
    let below = ["archive_status", "summaries"].map(|name| held(&document, "other", name));
    assert_eq!(of_holders - below.iter().sum::<u64>(), listed, "{document:#}");
    (run.code, document)
}

/// Returns the bytes attributed to a holder.
fn held(document: &Value, kind: &str, name: &str) -> u64 {
    let holders = document["holders"].as_array().unwrap();
    let is_it = |holder: &&Value| holder["kind"] == kind && holder["name"] == name;
    holders.iter().filter(is_it).map(|holder| holder["bytes"].as_u64().unwrap()).sum()
}

fn write(client: &mut postgres::Client, megabytes: u32) {
    for _ in 0..megabytes {
        client.batch_execute("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 900)").unwrap();
    }
}

/// A checkpoint keeps files that the slot no longer needs, because its `catalog_xmin` has not advanced. Each
/// step of the remedy is carried out.
fn the_remedy_for_a_stale_position_of_a_slot_works(major: u32) -> Outcome {
    let builder = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("wal_level", "logical")
        .setting("max_wal_size", "32MB")
        .setting("min_wal_size", "2MB")
        .setting("autovacuum", "off");
    let cluster = builder.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let mut run = |statement: &str| {
        client.simple_query(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    };
    let confirm = "SELECT count(*) FROM pg_logical_slot_get_changes('s', NULL, NULL)";
    run("SELECT pg_create_logical_replication_slot('s', 'test_decoding')");
    run("SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 500000))) FROM generate_series(1, 16)");
    run("CHECKPOINT");
    run(confirm);
    let dsn = cluster.dsn("postgres");
    let removable = || held(&retention(&cluster, &["--dsn", &dsn]).1, "removable", "");
    assert!(removable() > 4 * MB, "{}", removable());
    let document = retention(&cluster, &["--dsn", &dsn]).1;
    let remedy = document["remedies"][0]["text"].as_str().unwrap();
    let message = "SELECT pg_logical_emit_message(true, 'walden', '')";
    assert!(remedy.starts_with("CHECKPOINT removes") && remedy.contains(message), "{remedy}");
    for statement in ["CHECKPOINT", message, "CHECKPOINT", confirm, "CHECKPOINT"] {
        run(statement);
    }
    assert_eq!(removable(), 0);
    Ok(())
}

/// The slot's consumer polls, so it is not connected when the command runs.
fn the_remedy_for_a_slot_behind_a_prepared_transaction_works(major: u32) -> Outcome {
    let builder = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("wal_level", "logical")
        .setting("max_prepared_transactions", "2")
        .setting("max_wal_size", "8MB")
        .setting("min_wal_size", "2MB")
        .setting("autovacuum", "off");
    let cluster = builder.start().unwrap();
    let (data, dsn) = (cluster.data_dir(), cluster.dsn("postgres"));
    let mut client = cluster.client("postgres").unwrap();
    execute(&mut client, "CREATE TABLE t (fill text)");
    let mut run = |statement: &str| {
        client.simple_query(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    };
    run("SELECT pg_create_logical_replication_slot('polled', 'test_decoding')");
    run("BEGIN; INSERT INTO t VALUES ('prepared'); PREPARE TRANSACTION 'it''s stuck'");
    let poll = "SELECT count(*) FROM pg_logical_slot_get_changes('polled', NULL, NULL)";
    let mut write_and_poll = || {
        run("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 4000)");
        // Writes the record of running transactions from which the slot advances.
        run("CHECKPOINT");
        run(poll);
        run("CHECKPOINT");
    };
    (0..3).for_each(|_| write_and_poll());
    let slot = || {
        let (code, document) = retention(&cluster, &[text(&data), "--dsn", &dsn]);
        let remedies = document["remedies"].as_array().unwrap();
        let remedy = remedies.iter().find_map(|one| {
            one["text"]
                .as_str()
                .filter(|text| text.contains("slot polled") && !text.starts_with("CHECKPOINT"))
        });
        (code, remedy.unwrap_or_default().to_owned(), held(&document, "slot", "polled"))
    };
    let (code, remedy, before) = slot();
    assert_eq!(code, 1);
    assert!(before > 8 * MB, "{before}");
    let rollback = "ROLLBACK PREPARED 'it''s stuck'";
    assert!(remedy.starts_with("end the prepared transaction") && remedy.contains(rollback), "{remedy}");
    assert!(remedy.contains("let the client of slot polled come back and confirm"), "{remedy}");
    cluster.client("postgres").unwrap().simple_query(rollback).unwrap();
    (0..2).for_each(|_| write_and_poll());
    let (_, remedy, after) = slot();
    assert!(after < before / 2 && !remedy.contains("prepared"), "{before}, {after}: {remedy}");
    Ok(())
}

/// `.partial` files around the redo pointer, as a promotion leaves them. The server's checkpoint removes
/// those that the command has announced.
fn a_checkpoint_releases_partial_segments_as_predicted(major: u32) -> Outcome {
    let builder = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("max_wal_size", "32MB")
        .setting("min_wal_size", "2MB")
        .setting("wal_recycle", "off")
        .setting("autovacuum", "off");
    let cluster = builder.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    execute(&mut client, "CREATE TABLE t (fill text); CHECKPOINT");
    write(&mut client, 6);
    execute(&mut client, "SELECT pg_switch_wal(); INSERT INTO t VALUES ('x')");
    let wal = cluster.data_dir().join("pg_wal");
    let current: String =
        client.query_one("SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &[]).unwrap().get(0);
    let current = u64::from_str_radix(&current[16..], 16).unwrap();
    let partial = |number: u64| wal.join(format!("0000000100000000{number:08X}.partial"));
    let numbers = current - 4..=current;
    for number in numbers.clone() {
        fs::copy(wal.join(format!("0000000100000000{number:08X}")), partial(number)).unwrap();
    }
    let data = cluster.data_dir();
    let (_, document) = retention(&cluster, &[text(&data)]);
    let announced = document["remedies"][0]["releases_bytes"].as_u64().unwrap();
    let before = document["bytes"].as_u64().unwrap();
    execute(&mut client, "CHECKPOINT");
    let kept: Vec<u64> = numbers.filter(|number| partial(*number).exists()).collect();
    assert_eq!(kept, [current - 1, current]);
    let (_, document) = retention(&cluster, &[text(&data)]);
    assert_eq!(before - document["bytes"].as_u64().unwrap(), announced, "{document:#}");
    Ok(())
}

fn each_byte_has_its_holder(major: u32) -> Outcome {
    let builder = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("max_wal_size", "8MB")
        .setting("min_wal_size", "4MB")
        .setting("wal_level", "logical")
        .setting("archive_mode", "on")
        .setting("archive_command", "false")
        .setting("max_replication_slots", "4");
    let cluster = builder.start().unwrap();
    let data = cluster.data_dir();
    let (data, dsn) = (text(&data), cluster.dsn("postgres"));
    let mut client = cluster.client("postgres").unwrap();
    execute(&mut client, "CREATE TABLE t (fill text); CREATE DATABASE other");
    write(&mut client, 10);
    execute(&mut client, "CHECKPOINT");

    a_failing_archiver_keeps_files(&cluster, &mut client, data, &dsn);
    an_archiver_that_gets_on_lets_them_go(&cluster, &mut client, data, &dsn);
    an_inactive_slot_keeps_files(&cluster, &mut client, data, &dsn);
    wal_keep_size_keeps_what_it_says(&cluster, &mut client, data);
    who_may_not_look_is_told_what_to_do(&mut client, &dsn);
    a_slot_is_lost_as_the_server_says(&cluster, &mut client, data, &dsn);
    drop(client);
    a_server_that_is_down_is_told_by_its_files(&cluster);
    Ok(())
}

fn who_may_not_look_is_told_what_to_do(client: &mut postgres::Client, dsn: &str) {
    execute(client, "CREATE ROLE visitor LOGIN");
    let dsn = format!("{dsn} user=visitor");
    let run = walden(&["retention", "--dsn", &dsn]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("permission denied for function pg_ls_waldir"), "{run:?}");
    assert!(run.stderr.contains("hint: the user needs pg_monitor"), "{run:?}");
    execute(client, "GRANT pg_monitor TO visitor");
    let run = walden(&["retention", "--dsn", &dsn]);
    assert!(run.code <= 1, "{run:?}");
}

/// Only the archiver keeps files, because it fails. This is detected from its marks, and by the server's own
/// report.
fn a_failing_archiver_keeps_files(cluster: &Cluster, client: &mut postgres::Client, data: &str, dsn: &str) {
    let (_, document) = retention(cluster, &[data]);
    assert!(held(&document, "archiver", "") > 8 * MB, "{document:#}");
    let redo: Lsn = document["redo_lsn"].as_str().unwrap().parse().unwrap();
    let began = Instant::now();
    while client.query_one("SELECT failed_count FROM pg_stat_archiver", &[]).unwrap().get::<_, i64>(0) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(200));
    }
    let (code, document) = retention(cluster, &[data, "--dsn", dsn]);
    assert_eq!((code, &document["archiver"]["failing"]), (1, &Value::Bool(true)), "{document:#}");
    assert!(
        document["remedies"][0]["text"].as_str().unwrap().contains("archive_command = 'false'"),
        "{document:#}"
    );
    let query = "SELECT redo_lsn::text FROM pg_control_checkpoint()";
    let said: String = client.query_one(query, &[]).unwrap().get(0);
    assert_eq!(redo, said.parse().unwrap());
    let waiting = "SELECT sum(size)::bigint FROM pg_ls_waldir() WHERE name || '.ready' IN \
                   (SELECT name FROM pg_ls_archive_statusdir())";
    let waiting = client.query_one(waiting, &[]).unwrap().get::<_, i64>(0).cast_unsigned();
    let archiver =
        document["holders"].as_array().unwrap().iter().find(|one| one["kind"] == "archiver").unwrap();
    let kept_by_recovery = held(&document, "recovery", "");
    let holds = archiver["holds_bytes"].as_u64().unwrap();
    assert!(holds <= waiting && holds + kept_by_recovery >= waiting, "{waiting}, {document:#}");
}

fn an_archiver_that_gets_on_lets_them_go(
    cluster: &Cluster,
    client: &mut postgres::Client,
    data: &str,
    dsn: &str,
) {
    execute(client, "ALTER SYSTEM SET archive_command = 'true'; SELECT pg_reload_conf()");
    let began = Instant::now();
    loop {
        execute(client, "SELECT pg_switch_wal(); CHECKPOINT");
        let (_, document) = retention(cluster, &[data, "--dsn", dsn]);
        if held(&document, "archiver", "") == 0 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(90), "{document:#}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// Files and server report the same about an inactive slot. A logical slot's backlog includes writes of
/// another database.
fn an_inactive_slot_keeps_files(cluster: &Cluster, client: &mut postgres::Client, data: &str, dsn: &str) {
    execute(client, "SELECT pg_create_physical_replication_slot('standby', true)");
    execute(client, "SELECT pg_create_logical_replication_slot('changes', 'test_decoding')");
    write(client, 10);
    let mut other = cluster.client("other").unwrap();
    execute(&mut other, "CREATE TABLE t (fill text)");
    write(&mut other, 20);
    execute(client, "CREATE TABLE u (fill text); CREATE PUBLICATION p FOR TABLE u; CHECKPOINT");
    let (code, by_sql) = retention(cluster, &[data, "--dsn", dsn]);
    assert_eq!(code, 1);
    let (_, by_files) = retention(cluster, &[data]);
    let slots = |document: &Value| -> BTreeMap<String, (u64, Value)> {
        let holders = document["holders"].as_array().unwrap().iter().filter(|one| one["kind"] == "slot");
        let of = |one: &Value| (one["holds_bytes"].as_u64().unwrap(), one["slot"]["restart_lsn"].clone());
        holders.map(|one| (one["name"].as_str().unwrap().to_owned(), of(one))).collect()
    };
    assert_eq!(slots(&by_sql), slots(&by_files));
    assert!(slots(&by_sql)["standby"].0 > 25 * MB, "{by_sql:#}");
    let query = "SELECT slot_name::text, restart_lsn::text FROM pg_replication_slots";
    for row in client.query(query, &[]).unwrap() {
        let (name, restart): (String, String) = (row.get(0), row.get(1));
        let found: Lsn = slots(&by_files)[&name].1.as_str().unwrap().parse().unwrap();
        assert_eq!(found, restart.parse().unwrap(), "{name}");
    }
    for (document, published) in [(&by_sql, true), (&by_files, false)] {
        let backlog = &document["backlogs"][0];
        let bytes = |field: &str| backlog[field].as_u64().unwrap();
        assert_eq!(backlog["slot"], "changes");
        assert_eq!(
            bytes("own_database_bytes") + bytes("other_databases_bytes") + bytes("shared_bytes"),
            bytes("bytes")
        );
        let ratio = bytes("other_databases_bytes") as f64 / bytes("own_database_bytes") as f64;
        assert!((1.5..2.5).contains(&ratio), "{backlog}");
        assert_eq!(
            backlog["unpublished_bytes"].as_u64().is_some_and(|bytes| bytes > 9 * MB),
            published,
            "{backlog}"
        );
    }
    // SQL alone yields the same result, except that the disk is unknown.
    let (_, elsewhere) = retention(cluster, &["--dsn", dsn]);
    assert_eq!((slots(&elsewhere), &elsewhere["disk_bytes"]), (slots(&by_sql), &Value::Null));
    assert!(by_sql["disk_full_seconds"].as_f64().unwrap() > 0.0, "{by_sql:#}");
    // Like the exit status, the text states a remedy.
    let run = walden(&["retention", data, "--dsn", dsn]);
    assert!(run.stdout.contains("pg_drop_replication_slot('standby')"), "{}", run.stdout);
}

/// Without slots, it keeps whole segments before the current one.
fn wal_keep_size_keeps_what_it_says(cluster: &Cluster, client: &mut postgres::Client, data: &str) {
    execute(
        client,
        "SELECT pg_drop_replication_slot('standby'); SELECT pg_drop_replication_slot('changes');
         ALTER SYSTEM SET wal_keep_size = '12MB'; SELECT pg_reload_conf()",
    );
    write(client, 20);
    execute(client, "CHECKPOINT; CHECKPOINT");
    let began = Instant::now();
    loop {
        let (_, document) = retention(cluster, &[data]);
        let kept = held(&document, "wal_keep_size", "") + held(&document, "recovery", "");
        let is_settled = held(&document, "archiver", "") == 0 && held(&document, "removable", "") == 0;
        if is_settled && (12 * MB..=14 * MB).contains(&kept) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(90), "{document:#}");
        execute(client, "INSERT INTO u VALUES ('x'); CHECKPOINT");
        thread::sleep(Duration::from_secs(1));
    }
}

/// With `max_slot_wal_keep_size`, the remaining bytes must equal the server's own value, and the slot cannot
/// fill the disk.
fn a_slot_is_lost_as_the_server_says(
    cluster: &Cluster,
    client: &mut postgres::Client,
    data: &str,
    dsn: &str,
) {
    execute(
        client,
        "ALTER SYSTEM SET wal_keep_size = 0; ALTER SYSTEM SET max_slot_wal_keep_size = '20MB'; SELECT pg_reload_conf();
         SELECT pg_create_physical_replication_slot('forgotten', true)",
    );
    write(client, 5);
    let said = |client: &mut postgres::Client| -> Option<i64> {
        client.query_one("SELECT safe_wal_size FROM pg_replication_slots", &[]).unwrap().get(0)
    };
    // The WAL in the files ends with the switch; the server continues in the next segment.
    execute(client, "SELECT pg_switch_wal()");
    let began = Instant::now();
    // Waits until the setting is in effect, and nothing is written between two queries.
    let left = loop {
        let before = said(client);
        let documents = [&["--dsn", dsn][..], &[data, "--dsn", dsn], &[data]]
            .map(|arguments| retention(cluster, arguments).1);
        if before.is_some() && said(client) == before {
            for document in documents {
                assert_eq!(document["growing"], false, "{document:#}");
                let slot = document["holders"].as_array().unwrap().iter().find(|one| one["kind"] == "slot");
                assert_eq!(slot.unwrap()["safe_wal_size"].as_i64(), before, "{document:#}");
            }
            break before;
        }
        assert!(began.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(200));
    };
    assert!(left.is_some_and(|left| left > 0), "{left:?}");
    let run = walden(&["retention", data, "--dsn", dsn]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("it is lost after another "), "{}", run.stdout);
    write(client, 30);
    execute(client, "CHECKPOINT");
    let status: String = client.query_one("SELECT wal_status FROM pg_replication_slots", &[]).unwrap().get(0);
    assert_eq!(status, "lost");
    let run = walden(&["retention", data, "--dsn", dsn]);
    assert!(run.stdout.contains("Slot forgotten: lost"), "{}", run.stdout);
    assert!(run.stdout.contains("pg_drop_replication_slot('forgotten')"), "{}", run.stdout);
}

/// As in a crash loop on a full disk, when the answer is most urgent.
fn a_server_that_is_down_is_told_by_its_files(cluster: &Cluster) {
    let (data, dsn) = (cluster.data_dir(), cluster.dsn("postgres"));
    cluster.stop(StopMode::Fast).unwrap();
    let run = walden(&["retention", text(&data), "--dsn", &dsn]);
    assert!(run.code <= 1, "{run:?}");
    assert!(run.stderr.contains("warning: cannot connect to "), "{run:?}");
    assert!(run.stdout.contains("crash recovery"), "{run:?}");
    assert!(run.stdout.contains("Warning: the server is stopped.\n"), "{run:?}");
    let run = walden(&["retention", "--dsn", &dsn]);
    assert_eq!(run.code, 3, "{run:?}");

    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    execute(&mut client, "ALTER SYSTEM SET wal_keep_size = '12MB'; SELECT pg_reload_conf()");
    write(&mut client, 4);
    execute(&mut client, "CHECKPOINT");
    drop(client);
    let pid_file = fs::read(data.join("postmaster.pid")).unwrap();
    cluster.crash().unwrap();
    let check = |state: &str, warning: &str| {
        let run = walden(&["retention", text(&data)]);
        assert!(run.stdout.contains(&format!("Warning: {warning}")), "{run:?}");
        let run = walden(&["retention", text(&data), "--format", "json"]);
        let document: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(document["server_state"], state, "{document:#}");
        assert!(document["warnings"][0].as_str().unwrap().starts_with(warning), "{document:#}");
        let remedies = document["remedies"].as_array().unwrap();
        let is_after_start = |remedy: &Value| remedy["text"].as_str().unwrap().contains("after its start");
        assert!(!remedies.is_empty() && remedies.iter().all(is_after_start), "{document:#}");
    };
    check("crashed", "the server is not running; it was not shut down cleanly");
    // The state after `kill -9`.
    fs::write(data.join("postmaster.pid"), pid_file).unwrap();
    check("process_missing", "the process ");
}

fn a_connection_string_in_the_place_of_the_folder_is_explained() -> Outcome {
    for source in ["host=db1 port=5432", "postgresql://db1/postgres"] {
        let run = walden(&["retention", source]);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.contains("a server is given by --dsn"), "{run:?}");
    }
    Ok(())
}
