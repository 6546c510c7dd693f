//! Compares two ranges: all lists are consistent, and the change made on a server is the reported cause.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use walden_format::lsn::Lsn;
use walden_lab::{Cluster, StopMode};
use walden_testing::{Missing, Outcome, postgres};

use crate::browser::Browser;
use crate::material::{cluster_that_keeps_wal, explain_json, golden, records_of, say, walden, write};

walden_testing::tests! {
    contributions_add_up_to_the_difference,
    names_are_whole_in_a_pipe,
    wrong_ranges_are_wrong_usage,
    what_was_changed_on_a_server_explains_the_change,
    logical_decoding_explains_larger_records,
}

fn diff(arguments: &[&str]) -> Value {
    let run = walden(&[&["diff", "--format", "json"], arguments].concat());
    assert_eq!(run.code, 0, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// Expects that every list adds up to the total, for A, B and the change.
fn assert_exact(diff: &Value) {
    let mut lists =
        vec![&diff["buckets"], &diff["causes"], &diff["relations"], &diff["record_kinds"], &diff["images"]];
    lists.extend(diff["views"].as_array().unwrap().iter().map(|view| &view["groups"]));
    for list in lists {
        for field in ["a_bytes", "b_bytes", "a_scaled_bytes", "change_bytes"] {
            let sum: i64 = list.as_array().unwrap().iter().map(|row| row[field].as_i64().unwrap()).sum();
            assert_eq!(sum, diff["total"][field].as_i64().unwrap(), "{field} of {list:#}");
        }
    }
    let total = &diff["total"];
    let (a, b) = (total["a_scaled_bytes"].as_i64().unwrap(), total["b_bytes"].as_i64().unwrap());
    assert_eq!(b - a, total["change_bytes"].as_i64().unwrap());
}

fn contributions_add_up_to_the_difference() {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    let mut records = Vec::new();
    for (name, segment) in golden("18.6") {
        records.extend(records_of(&segment));
        write(&wal, &name, &segment);
    }
    let source = wal.to_str().unwrap();
    let middle = records[records.len() / 2].lsn.to_string();
    // The error must refer to the given option.
    let late = walden(&["diff", "--at", "2100-01-01", source]);
    assert!(late.code == 3 && late.stderr.contains("cannot start at the given time"), "{late:?}");
    assert!(!late.stderr.contains("--from"), "{late:?}");
    for per in ["second", "transaction", "total"] {
        let by = ["--by", "schema", "--by", "vacuum,record", "--by", "database", "--by", "tablespace"];
        let found =
            diff(&[&["--at", &middle, "--per", per, "--group", "(pg_c)"][..], &by, &[source]].concat());
        assert_exact(&found);
        assert_eq!(found["views"].as_array().unwrap().len(), 5);
        // The two ranges cover everything except unwritten space.
        let explained = explain_json(&[source]);
        let unwritten: u64 = ["zero_tail", "recycled_tail", "torn_tail"]
            .map(|bucket| explained["buckets"][bucket].as_u64().unwrap())
            .iter()
            .sum();
        let both = |field: &str| found["total"][field].as_u64().unwrap();
        assert_eq!(both("a_bytes") + both("b_bytes") + unwritten, explained["file_bytes"].as_u64().unwrap());
    }
    // Comparing a source with itself shows no change.
    let same = diff(&[source, source]);
    assert_exact(&same);
    assert_eq!(same["total"]["change_bytes"], 0);
    assert!(same["relations"].as_array().unwrap().iter().all(|row| row["change_bytes"] == 0));
    assert_eq!(same["findings"].as_array().unwrap().len(), 0, "{same:#}");
    for arguments in [&[source, source][..], &["--at", &middle, source]] {
        let html = folder.path().join("diff.html");
        let run = walden(&[&["diff", "--force", "--html", html.to_str().unwrap()], arguments].concat());
        assert_eq!(run.code, 0, "{run:?}");
        assert!(run.stdout.contains("Relations, "), "{}", run.stdout);
        assert!(std::fs::read_to_string(&html).unwrap().contains("Kinds of records"));
    }
}

/// Piped output of explain and diff must contain whole names, so that it can be searched.
fn names_are_whole_in_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let (name, segment) = golden("18.6").pop_first().unwrap();
    let records = records_of(&segment);
    let middle = records[records.len() / 2].lsn.to_string();
    let wal = write(folder.path(), &name, &segment);
    let wal = wal.to_str().unwrap();

    let explained = explain_json(&[wal]);
    let mut relations = explained["relations"].as_array().unwrap().iter();
    let file = relations.find_map(|relation| relation["parts"][0]["keys"][0]["file"].as_str()).unwrap();
    let file: Vec<u32> = file.split('/').map(|number| number.parse().unwrap()).collect();
    let (schema, name) = ("s".repeat(63), "n".repeat(63));
    let whole = format!("{schema}.{name}");
    let relation = json!({
        "database": file[1], "oid": 99_999, "schema": schema, "name": name, "kind": "r", "persistence": "p", "files": [file],
    });
    let names = json!({ "walden_names": 1, "relations": [relation] }).to_string();
    let names = write(folder.path(), "names.json", names.as_bytes());
    for arguments in [&["explain"][..], &["diff", "--top", "0", "--at", &middle]] {
        let run = walden(&[arguments, &["--names", names.to_str().unwrap(), wal]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        assert!(run.stdout.contains(&whole) && !run.stdout.contains('…'), "{}", run.stdout);
    }
}

fn wrong_ranges_are_wrong_usage() {
    for arguments in [
        &["diff", "a"][..],
        &["diff", "a", "b", "--at", "0/1000000"],
        &["diff", "a", "--at", "0/1000000", "--window", "1h"],
        &["diff", "a", "--window", "1h"],
        &["diff", "a", "b", "c"],
        &["diff", "a", "b", "--group", "("],
        &["explain", "a", "--by", "group"],
    ] {
        let run = walden(arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {run:?}");
    }
}

/// Duration for which each state of the server is observed.
const PHASE: Duration = Duration::from_secs(13);

/// Does a constant amount of work per second until the phase ends, with two checkpoints.
fn work(cluster: &Cluster, next: &mut i64) -> Lsn {
    let mut client = cluster.client("postgres").unwrap();
    let begin = Instant::now();
    let (mut rounds, mut checkpoints) = (0, 0);
    while begin.elapsed() < PHASE {
        let text = format!(
            "INSERT INTO orders SELECT n, n % 1000, repeat(md5(n::text), 2) FROM generate_series({next}, {next} + 39) n;
             UPDATE orders SET amount = amount + 1 WHERE id IN
                 (SELECT 1 + (random() * 20000)::bigint FROM generate_series(1, 20))"
        );
        client.batch_execute(&text).unwrap();
        *next += 40;
        rounds += 1;
        if begin.elapsed() > (checkpoints + 1) * PHASE / 4 {
            client.batch_execute("CHECKPOINT").unwrap();
            checkpoints += 1;
        }
        let due = begin + rounds * Duration::from_millis(20);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    position(cluster)
}

fn position(cluster: &Cluster) -> Lsn {
    let row = cluster
        .client("postgres")
        .unwrap()
        .query_one("SELECT pg_current_wal_insert_lsn()::text", &[])
        .unwrap();
    row.get::<_, &str>(0).parse().unwrap()
}

/// A stopped server that was changed between phases of the same work, and the end LSN of each phase.
struct Changed {
    /// Keeps the folder with the WAL.
    _cluster: Cluster,
    folder: TempDir,
    names: PathBuf,
    wal: PathBuf,
    begin: Lsn,
    plain: Lsn,
    indexed: Lsn,
    resumed: Lsn,
    dropped: Lsn,
    compressed: Lsn,
}

fn changed_server() -> Result<Changed, Missing> {
    let cluster = cluster_that_keeps_wal(postgres(15)?)
        .setting("wal_keep_size", "4GB")
        .setting("max_wal_size", "4GB")
        .start()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names.json");
    let names_argument = names.to_str().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount int, note text)").unwrap();
    let mut next = 1;
    let fill = "INSERT INTO orders SELECT n, n % 1000, md5(n::text) FROM generate_series(1, 20000) n";
    client.batch_execute(fill).unwrap();
    next += 20000;
    client.batch_execute("CHECKPOINT").unwrap();
    let begin = position(&cluster);
    let plain = work(&cluster, &mut next);
    client.batch_execute("CREATE INDEX orders_note ON orders (note, id)").unwrap();
    let indexed = work(&cluster, &mut next);
    // Names are read while the index exists, and again after it was dropped.
    let dsn = cluster.dsn("postgres");
    let save = |from: &[&str]| {
        let given: Vec<&str> = from.iter().flat_map(|one| ["--names", one]).collect();
        let run = walden(&[&["explain", "--force", "--save-names", names_argument], &given[..]].concat());
        assert_eq!(run.code, 0, "{run:?}");
    };
    save(&[&dsn]);
    client.batch_execute("DROP INDEX orders_note").unwrap();
    // No work was done while names were read.
    let resumed = position(&cluster);
    let dropped = work(&cluster, &mut next);
    client.batch_execute("ALTER SYSTEM SET wal_compression = lz4").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let compressed = work(&cluster, &mut next);
    save(&[names_argument, &dsn]);
    let wal = cluster.data_dir().join("pg_wal");
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    Ok(Changed { _cluster: cluster, folder, names, wal, begin, plain, indexed, resumed, dropped, compressed })
}

fn what_was_changed_on_a_server_explains_the_change() -> Outcome {
    let server = changed_server()?;
    let Changed { begin, plain, indexed, resumed, dropped, compressed, .. } = server;
    let (names, wal) = (server.names.to_str().unwrap(), server.wal.to_str().unwrap());
    let between = |from: Lsn, at: Lsn, to: Lsn| {
        let (from, at, to) = (from.to_string(), at.to_string(), to.to_string());
        let arguments = [
            "--names", names, "--a-from", &from, "--a-to", &at, "--b-from", &at, "--b-to", &to, "--every",
            "1s", wal,
        ];
        let found = diff(&arguments);
        assert_exact(&found);
        assert_eq!(found["per"], "second");
        let table = walden(&[&["diff"], &arguments[..]].concat());
        say(table.stdout.split("Kinds of records").next().unwrap());
        found
    };
    let first = |found: &Value| {
        let finding = &found["findings"][0];
        let text = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        (text("rule"), text("points_at"), finding["text"].as_str().unwrap_or_default().to_owned())
    };
    let (rule, object, text) = first(&between(begin, plain, indexed));
    assert_eq!((rule.as_str(), object.as_str()), ("new-relation", "orders_note"), "{text}");
    assert!(text.starts_with("index orders_note is new and writes "), "{text}");
    let (rule, object, text) = first(&between(plain, indexed, dropped));
    assert_eq!((rule.as_str(), object.as_str()), ("gone-relation", "orders_note"), "{text}");
    assert!(text.starts_with("index orders_note was dropped"), "{text}");
    let found = between(resumed, dropped, compressed);
    let (rule, object, text) = first(&found);
    assert_eq!((rule.as_str(), object.as_str()), ("compression", "wal_compression"), "{text}");
    assert!(text.contains("compressed by lz4 and were not compressed"), "{text}");
    // The work was the same, so it must not be blamed.
    let work = found["findings"].as_array().unwrap().iter().find(|one| one["rule"] == "work");
    assert!(work.is_none_or(|one| one["share_of_change"].as_f64().unwrap().abs() < 0.3), "{work:?}");
    // By time, with equal time before and after.
    let time = &found["a"]["last_time"].as_str().unwrap()[..19];
    let by_time = diff(&["--names", names, "--at", &format!("{time}Z"), "--window", "10s", wal]);
    assert_exact(&by_time);
    assert_eq!(by_time["findings"][0]["rule"], "compression", "{:#}", by_time["findings"]);
    for side in ["a", "b"] {
        let seconds = by_time[side]["seconds"].as_f64().unwrap();
        assert!((9.0..=11.0).contains(&seconds), "{seconds}");
    }
    assert_page_draws(&server);
    // Two parts of one phase: no cause, and a note about the uncertainty.
    let half = Lsn((begin.0 + plain.0) / 2);
    let quarter = Lsn(begin.0 + (half.0 - begin.0) / 2);
    let noise = between(begin, quarter, half);
    let notes = noise["notes"].to_string();
    assert!(notes.contains("whole checkpoint cycle") || notes.contains("too short"), "{notes}");
    Ok(())
}

/// Expects charts of both rates over time, causes, relations, and kinds of records.
fn assert_page_draws(Changed { folder, names, wal, plain, indexed, .. }: &Changed) {
    let html = folder.path().join("diff.html");
    let (at, to) = (plain.to_string(), indexed.to_string());
    let run = walden(&[
        "diff",
        "--names",
        names.to_str().unwrap(),
        "--a-to",
        &at,
        "--b-to",
        &to,
        "--every",
        "1s",
        "--html",
        html.to_str().unwrap(),
        wal.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    if let Ok(mut browser) = Browser::start() {
        browser.look(1280, 900, false);
        browser.open(&html);
        assert_eq!(browser.evaluate("document.querySelectorAll('figure[data-chart]').length"), 4);
        assert_eq!(browser.evaluate("document.body.dataset.rendered"), "4");
        assert_eq!(browser.console_messages(), [""; 0]);
    }
}

/// Before 17, the WAL does not state `wal_level`, but the records show it.
fn logical_decoding_explains_larger_records() -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(15)?).setting("wal_level", "replica").start().unwrap();
    let update = || {
        let mut client = cluster.client("postgres").unwrap();
        for _ in 0..5 {
            client.batch_execute("CHECKPOINT").unwrap();
            client.batch_execute("UPDATE t SET n = n + 1 WHERE id % 5 = 0").unwrap();
            client.batch_execute("DELETE FROM t WHERE id IN (SELECT min(id) FROM t)").unwrap();
        }
        position(&cluster)
    };
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, n int, fill text)").unwrap();
    client.batch_execute("ALTER TABLE t REPLICA IDENTITY FULL").unwrap();
    let fill = "INSERT INTO t SELECT n, 0, repeat(md5(n::text), 10) FROM generate_series(1, 2000) n";
    client.batch_execute(fill).unwrap();
    let begin = position(&cluster);
    let replica = update();
    client.batch_execute("ALTER SYSTEM SET wal_level = logical").unwrap();
    drop(client);
    cluster.restart(StopMode::Fast).unwrap();
    let logical = update();
    let wal = cluster.data_dir().join("pg_wal");
    cluster.stop(StopMode::Fast).unwrap();
    let [from, at, to] = [begin, replica, logical].map(|lsn| lsn.to_string());
    let arguments = ["--a-from", &from, "--a-to", &at, "--b-from", &at, "--b-to", &to, wal.to_str().unwrap()];
    let found = diff(&arguments);
    let finding = &found["findings"][0];
    let text = finding["text"].as_str().unwrap();
    assert_eq!((&finding["rule"], &finding["points_at"]), (&"setting".into(), &"wal_level".into()), "{text}");
    assert!(text.starts_with("wal_level is logical and was not; tuples beside"), "{text}");
    // 2000 updates, each with an old tuple of 340 bytes.
    let change = finding["change_bytes"].as_i64().unwrap();
    assert!((680_000..900_000).contains(&change), "{text}");
    // The opposite comparison shows the same amount.
    let back =
        diff(&["--a-from", &at, "--a-to", &to, "--b-from", &from, "--b-to", &at, wal.to_str().unwrap()]);
    let finding = &back["findings"][0];
    assert!(finding["text"].as_str().unwrap().starts_with("wal_level is not logical and was"), "{finding}");
    assert!(finding["change_bytes"].as_i64().unwrap() < 0, "{finding}");
    Ok(())
}
