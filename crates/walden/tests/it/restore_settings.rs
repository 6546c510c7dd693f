//! The settings of a server that `walden restore` has written, judged by PostgreSQL.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;
use walden_lab::{ClusterBuilder, StopMode};
use walden_server::account;
use walden_testing::{ALL_SERVERS, Outcome, postgres};

use crate::archive::{text, wait_until_promoted};
use crate::material::walden;
use crate::restore_forward::Primary;

walden_testing::tests! {
    a_restored_server_starts_with_what_recovery_requires_and_leaves_the_original_alone on ALL_SERVERS,
}

/// Settings of the server at its base backup.
const LOW: [(&str, &str); 5] = [
    ("max_connections", "20"),
    ("max_worker_processes", "4"),
    ("max_wal_senders", "4"),
    ("max_prepared_transactions", "0"),
    ("max_locks_per_transaction", "64"),
];
/// Settings later on.
const HIGH: [(&str, &str); 5] = [
    ("max_connections", "60"),
    ("max_worker_processes", "12"),
    ("max_wal_senders", "15"),
    ("max_prepared_transactions", "5"),
    ("max_locks_per_transaction", "80"),
];

fn count(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Restores with the options, and returns the exit status, the output and the messages.
fn restore(primary: &Primary, data: &Path, options: &[&str]) -> (String, String) {
    let wal = primary.cluster.archive_dir();
    let arguments = ["restore", "--wal", text(&wal), "--base", text(&primary.backup), "-o", text(data)];
    let run = walden(&[&arguments[..], &["--to", "name:here"], options].concat());
    assert_eq!(run.code, 0, "{run:?}");
    (run.stdout, run.stderr)
}

/// The backup is that of a standby which cleans up an archive and applies WAL late. Later, the original gets
/// larger settings, which the control file of the restored server has, with a prepared transaction. A record
/// that is left to PostgreSQL lets it replay a checkpoint of its own.
fn a_restored_server_starts_with_what_recovery_requires_and_leaves_the_original_alone(
    version: u32,
) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &LOW);
    let mut client = primary.client("postgres");
    client.batch_execute("CREATE TABLE rows (i int)").unwrap();
    primary.back_up(|client| client.batch_execute("INSERT INTO rows VALUES (0)").unwrap());
    drop(client);
    let folder = primary.cluster.make_folder("original").unwrap();
    let path = |name: &str| folder.join(name);
    let marks = [path("cleaned"), path("ended")];
    fs::write(path("trigger"), "").unwrap();
    let mut standby = vec![
        ("archive_cleanup_command", format!("touch {}", marks[0].display())),
        ("recovery_end_command", format!("touch {}", marks[1].display())),
        ("recovery_min_apply_delay", "1h".to_owned()),
    ];
    standby.extend((version <= 15).then(|| ("promote_trigger_file", path("trigger").display().to_string())));
    standby.extend((version >= 17).then(|| ("sync_replication_slots", "on".to_owned())));
    let lines: String = standby.iter().map(|(name, value)| format!("{name} = '{value}'\n")).collect();
    let main = primary.backup.join("postgresql.conf");
    fs::write(&main, fs::read_to_string(&main).unwrap() + &lines).unwrap();

    let cluster = &primary.cluster;
    cluster.configure(&HIGH).unwrap();
    cluster.restart(StopMode::Fast).unwrap();
    let prepare = "BEGIN; INSERT INTO rows VALUES (1); PREPARE TRANSACTION 'kept'";
    primary.client("postgres").batch_execute(prepare).unwrap();
    primary.client("postgres").batch_execute("CHECKPOINT").unwrap();
    cluster.configure(&[("track_commit_timestamp", "on")]).unwrap();
    cluster.restart(StopMode::Fast).unwrap();
    let mut client = primary.client("postgres");
    for _ in 0..2 {
        client.batch_execute("INSERT INTO rows VALUES (2)").unwrap();
        client.batch_execute("CHECKPOINT").unwrap();
    }
    let rows = count(&mut client, "SELECT count(*) FROM rows");
    primary.checkpoint_and_name("here");
    client.batch_execute("INSERT INTO rows VALUES (3)").unwrap();
    primary.archive_all();

    let data = cluster.dir().join("restored");
    let (plan, _) = restore(&primary, &data, &["--dry-run"]);
    for (low, high) in LOW.iter().zip(HIGH) {
        let expected = format!("{} = {} ({} in the backup)", high.0, high.1, low.1);
        assert!(plan.contains(&expected), "{expected}: {plan}");
    }
    let (json, stderr) = restore(&primary, &data, &["--format", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["plan"]["left_to_postgresql"].is_string(), "{json}");
    assert_eq!(json["restored"]["prepared_transactions"], 1, "{json}");
    let names: Vec<&str> = standby.iter().map(|(name, _)| *name).collect();
    assert_eq!(json["settings"]["disabled"], serde_json::json!(names), "{json}");
    assert_eq!(json["settings"]["raised"].as_array().unwrap().len(), 5, "{json}");
    assert!(!stderr.contains("data_directory"), "{stderr}");

    account::chown_all(&folder).unwrap();
    let server = ClusterBuilder::new(installation).copy_of(&data).setting("archive_mode", "off").start();
    let server = server.unwrap_or_else(|error| panic!("{error:#}"));
    let mut client = server.client("postgres").unwrap();
    let paused = "SELECT (pg_is_in_recovery() AND pg_is_wal_replay_paused())::int::int8";
    wait_until("the target is not reached", || count(&mut client, paused) == 1);
    assert_eq!(count(&mut client, "SELECT count(*) FROM rows"), rows);
    // A restart point, at which a standby would clean up.
    client.batch_execute("CHECKPOINT").unwrap();
    wait_until("no restart point", || {
        let log = fs::read_to_string(server.log_path()).unwrap();
        log.contains("restartpoint complete") || log.contains("recovery restart point at")
    });
    assert_eq!(count(&mut client, paused), 1);
    client.batch_execute("SELECT pg_wal_replay_resume()").unwrap();
    wait_until_promoted(&server);
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_prepared_xacts"), 1);
    for mark in &marks {
        assert!(!mark.exists(), "{}", mark.display());
    }
    assert!(path("trigger").exists());
    Ok(())
}
