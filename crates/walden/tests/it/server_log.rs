//! Attribution of WAL: transactions joined with servers' message logs, in every format.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Outcome, postgres};

use crate::material::{explain, explain_json, say, walden};

walden_testing::tests! {
    every_form_of_log_names_users_and_statements on [15, 17, 19],
    a_log_that_cannot_be_joined_says_why,
}

const PREFIX: &str = "%m [%p] %q%u@%d %a %h %v %x ";

/// Starts a server that writes its message log in all formats at the same time.
fn server(major: u32, more: &[(&str, &str)]) -> Result<Cluster, walden_testing::Missing> {
    let mut builder = ClusterBuilder::new(postgres(major)?)
        .setting("logging_collector", "on")
        .setting("log_destination", "stderr,csvlog,jsonlog")
        .setting("log_filename", "server.log")
        .setting("log_file_mode", "0644")
        .setting("log_line_prefix", PREFIX)
        .setting("autovacuum", "off");
    for (name, value) in more {
        builder = builder.setting(name, value);
    }
    Ok(builder.start().unwrap())
}

fn connect(cluster: &Cluster, user: &str, application: &str) -> postgres::Client {
    cluster.config().user(user).application_name(application).connect(postgres::NoTls).unwrap()
}

fn position(client: &mut postgres::Client) -> String {
    client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0)
}

/// Returns the bytes of a view's groups, by label.
fn groups(json: &Value, view: usize) -> Vec<(String, u64)> {
    let rows = json["views"][view]["groups"].as_array().unwrap().iter();
    let all: Vec<(String, u64)> = rows
        .map(|row| (row["keys"][0]["text"].as_str().unwrap().to_owned(), row["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(all.iter().map(|row| row.1).sum::<u64>(), json["file_bytes"].as_u64().unwrap());
    all
}

fn bytes(groups: &[(String, u64)], name: &str) -> u64 {
    groups.iter().filter(|row| row.0 == name).map(|row| row.1).sum()
}

fn every_form_of_log_names_users_and_statements(major: u32) -> Outcome {
    // With logical, the WAL states the top-level transaction of each subtransaction, including rolled-back
    // ones.
    let is_logical = major >= 17;
    let level = if is_logical { "logical" } else { "replica" };
    let cluster =
        server(major, &[("log_statement", "all"), ("log_executor_stats", "on"), ("wal_level", level)])?;
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE ROLE app SUPERUSER LOGIN; CREATE ROLE \"re, port\" SUPERUSER LOGIN;
             CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE lines (id int, note text);",
        )
        .unwrap();
    let from = position(&mut client);
    let expected = write_transactions(&cluster);
    let to = position(&mut client);
    client.batch_execute("CREATE TABLE flushed ()").unwrap();
    let logs = cluster.data_dir().join("log");
    let wal = cluster.data_dir().join("pg_wal");
    let joined = |files: &[PathBuf]| {
        let mut arguments: Vec<String> = ["--from", &from, "--to", &to].map(str::to_owned).into();
        for view in ["user", "application", "statement", "client", "xid,user"] {
            arguments.extend(["--by".to_owned(), view.to_owned()]);
        }
        for file in files {
            arguments.extend(["--log".to_owned(), file.display().to_string()]);
        }
        arguments.push(wal.display().to_string());
        explain_json(&arguments)
    };
    let mut results = Vec::new();
    for name in ["server.csv", "server.json", "server.log"] {
        let json = joined(&[logs.join(name)]);
        say(&format!("PostgreSQL {major}, {name}: {}", json["log"]));
        assert_joined(&json, name, &expected, is_logical);
        assert_causes(&json);
        results.push((groups(&json, 0), groups(&json, 1)));
    }
    assert!(results[0] == results[1] && results[1] == results[2]);
    let folder = tempfile::tempdir().unwrap();
    let json = joined(&in_two_parts(&logs.join("server.json"), folder.path()));
    assert!(results[0] == (groups(&json, 0), groups(&json, 1)), "{}", json["log"]);
    // The table states how much was joined.
    let csv = logs.join("server.csv");
    let run = walden(&["explain", "--log", csv.to_str().unwrap(), wal.to_str().unwrap()]);
    assert!(
        run.stdout.contains("of the WAL of transactions is joined") && run.stdout.contains("By user"),
        "{run:?}"
    );
    assert!(run.stdout.contains("What wrote the WAL, by statement"), "{run:?}");
    let page = folder.path().join("page.html");
    let options = ["explain", "--log", csv.to_str().unwrap(), "--html", page.to_str().unwrap()];
    let written = walden(&[&options[..], &[wal.to_str().unwrap()]].concat());
    assert_eq!(written.code, 0, "{written:?}");
    assert!(fs::read_to_string(&page).unwrap().contains("What wrote the WAL, by statement"));
    Ok(())
}

/// The causes by statement add up to the WAL, and each statement has those of its kind.
fn assert_causes(json: &Value) {
    let all = |name: &str| json[name].as_array().unwrap().clone();
    let sum = |name: &str| all(name).iter().map(|one| one["bytes"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("statement_causes"), sum("causes")),
        (json["wal_bytes"].as_u64().unwrap(), sum("statement_causes"))
    );
    assert!(all("causes").iter().all(|one| one["statement"].is_null()));
    let has = |start: &str, activity: &str, mechanism: &str| {
        all("statement_causes").iter().any(|one| {
            one["statement"].as_str().is_some_and(|text| text.starts_with(start))
                && (one["activity"].as_str(), one["mechanism"].as_str()) == (Some(activity), Some(mechanism))
        })
    };
    for (start, activity, mechanism) in [
        ("DELETE FROM orders", "delete", "row_data"),
        ("INSERT INTO lines", "insert", "row_data"),
        ("(no transaction)", "server", "page_header"),
    ] {
        assert!(
            has(start, activity, mechanism),
            "{start} {activity} {mechanism}: {:#}",
            json["statement_causes"]
        );
    }
    assert!(!has("DELETE FROM orders", "insert", "row_data"));
}

/// Writes in transactions of every kind. Returns the IDs of some, with their users.
fn write_transactions(cluster: &Cluster) -> Vec<(String, &'static str)> {
    let mut app = connect(cluster, "app", "my \"shop\"");
    let mut report = connect(cluster, "re, port", "nightly");
    let mut expected = Vec::new();
    // A block with several statements. The first one is logged before the transaction has an ID.
    for round in 0..20 {
        let mut transaction = app.transaction().unwrap();
        let text = format!(
            "INSERT INTO orders\n\tSELECT n, 'it''s; \"{round}\"' FROM generate_series({}, {}) n",
            round * 100,
            round * 100 + 99
        );
        transaction.batch_execute(&text).unwrap();
        transaction
            .batch_execute(&format!("UPDATE orders SET note = 'x{round}' WHERE id < {round}"))
            .unwrap();
        let id: String = transaction.query_one("SELECT pg_current_xact_id()::text", &[]).unwrap().get(0);
        expected.push((id, "app"));
        transaction.commit().unwrap();
    }
    // Subtransactions, one of them rolled back, and an error.
    let mut transaction = report.transaction().unwrap();
    for round in 0..10 {
        let mut savepoint = transaction.savepoint("s").unwrap();
        savepoint
            .batch_execute(&format!(
                "INSERT INTO lines SELECT n, md5(n::text) FROM generate_series(1, {round}00) n"
            ))
            .unwrap();
        if round % 2 == 0 { savepoint.commit().unwrap() } else { savepoint.rollback().unwrap() }
    }
    expected
        .push((transaction.query_one("SELECT pg_current_xact_id()::text", &[]).unwrap().get(0), "re, port"));
    transaction.commit().unwrap();
    report.batch_execute("BEGIN; INSERT INTO lines VALUES (1, 'a'); SELECT 1 / 0").unwrap_err();
    report.batch_execute("ROLLBACK").unwrap();
    // Single-statement transactions, in both protocols.
    for id in 0..10 {
        app.batch_execute(&format!("DELETE FROM orders WHERE id IN ({id}, {})", id + 5000)).unwrap();
        report.execute("INSERT INTO lines VALUES ($1, 'prepared')", &[&id]).unwrap();
    }
    expected
}

/// Expects that each byte and each transaction is attributed to the user that the server reports, as far as
/// the WAL identifies its transaction.
fn assert_joined(json: &Value, name: &str, expected: &[(String, &str)], is_logical: bool) {
    let log = &json["log"];
    let users = groups(json, 0);
    let unknown = bytes(&users, "(not in the server's log)");
    let number = |field: &str| log[field].as_u64().unwrap();
    assert_eq!(number("joined_bytes") + unknown, number("transaction_bytes"), "{name}");
    assert!(number("statement_bytes") * 1000 > number("joined_bytes") * 999, "{name}: {log}");
    // All except the rolled-back savepoints, whose transaction the WAL does not state.
    let is_unknown = |row: &&Value| row["keys"][1]["text"] == "(not in the server's log)";
    let left = json["views"][4]["groups"].as_array().unwrap().iter().filter(is_unknown).count();
    assert_eq!(left, if is_logical { 0 } else { 5 }, "{name}: {log}");
    let (of_app, of_report) = (bytes(&users, "app"), bytes(&users, "re, port"));
    assert!(of_app > 100_000 && of_report > 100_000, "{users:?}");
    // Each transaction is attributed to the user that the server reports.
    for (xid, user) in expected {
        let row =
            json["views"][4]["groups"].as_array().unwrap().iter().find(|row| row["keys"][0]["text"] == *xid);
        assert_eq!(row.unwrap_or_else(|| panic!("no {xid}"))["keys"][1]["text"], *user, "{name}");
    }
    let applications = groups(json, 1);
    assert_eq!((bytes(&applications, "my \"shop\""), bytes(&applications, "nightly")), (of_app, of_report));
    assert!(bytes(&groups(json, 3), "[local]") >= of_app + of_report);
    let statements = groups(json, 2);
    for text in [
        "INSERT INTO orders SELECT n, $1 FROM generate_series($2, $3) n; UPDATE orders SET note = $1 WHERE id < $2",
        "INSERT INTO lines SELECT n, md5(n::text) FROM generate_series($1, $2) n",
        "DELETE FROM orders WHERE id IN ($1 /*, ... */)",
        "INSERT INTO lines VALUES ($1, $2)",
    ] {
        assert!(bytes(&statements, text) > 0, "{name}: {text} is not in {statements:#?}");
    }
}

/// Splits a log file as after rotation and compression: into two parts, the later one first.
fn in_two_parts(log: &Path, folder: &Path) -> [PathBuf; 2] {
    let text = fs::read_to_string(log).unwrap();
    let half = text[..text.len() / 2].rfind('\n').unwrap() + 1;
    let part = |name: &str, content: Vec<u8>| -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text.as_bytes()[..half]).unwrap();
    let first = part("b.json.1.gz", gzip.finish().unwrap());
    let second = part("a.json.zst", zstd::encode_all(&text.as_bytes()[half..], 1).unwrap());
    [second, first]
}

fn a_log_that_cannot_be_joined_says_why() -> Outcome {
    let cluster = server(15, &[("log_statement", "mod")])?;
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int)").unwrap();
    for id in 0..50 {
        client.batch_execute(&format!("INSERT INTO t VALUES ({id})")).unwrap();
    }
    let logs = cluster.data_dir().join("log");
    let wal = cluster.data_dir().join("pg_wal");
    let with = |log: &Path, more: &[&str]| {
        explain(&[&["--log", log.to_str().unwrap()], more, &[wal.to_str().unwrap()]].concat())
    };
    // Single-statement transactions have no ID when their statement is logged.
    let log = with(&logs.join("server.csv"), &[]).json()["log"].clone();
    assert!(log["joined_share"].as_f64().unwrap() < 0.5, "{log}");
    assert!(log["statements_without_xid"].as_u64().unwrap() >= 50, "{log}");
    assert!(log["hints"].to_string().contains("auto_explain.log_min_duration"), "{log}");
    // A prefix without the transaction, another prefix, and none.
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let plain = file("plain.log", "2026-11-20 22:00:00.125 UTC [77] LOG:  statement: SELECT 1\n");
    let run = with(&plain, &[]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("%x") && run.stderr.contains("plain.log"), "{}", run.stderr);
    let odd = file("odd.log", "<1234|postgres> LOG:  statement: SELECT 1\n");
    let run = with(&odd, &[]);
    assert!(run.code == 3 && run.stderr.contains("--log-line-prefix"), "{run:?}");
    let run = with(&odd, &["--log-line-prefix", "<%x|%u> "]);
    assert_eq!(run.code, 0, "{run:?}");
    let hints = run.json()["log"]["hints"].to_string();
    assert!(hints.contains("lacks %v, %c, %a, %h"), "{hints}");
    let run = with(&odd, &["--log-line-prefix", "%z"]);
    assert!(run.code == 3 && run.stderr.contains("%z"), "{run:?}");
    assert_eq!(walden(&["explain", "--by", "user", wal.to_str().unwrap()]).code, 2);
    Ok(())
}
