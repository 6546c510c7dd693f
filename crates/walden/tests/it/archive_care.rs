//! An archive over the years: gaps, acknowledged gaps, status and metrics.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres::Client;
use serde_json::Value;
use walden_format::lsn::Lsn;
use walden_format::rmgr::{info, rmid};
use walden_format::version::Major;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::writer::LogWriter;
use walden_testing::{Outcome, postgres};

use crate::material::{Run, golden, link_program, make_archive, walden, write};

walden_testing::tests! {
    holes_that_a_failover_leaves_are_found_and_filled,
    a_standby_that_cannot_continue_is_named,
    gaps_are_acknowledged_in_writing,
    status_and_metrics_say_what_is_wrong,
    a_place_without_an_archive_is_never_well,
    a_damaged_object_does_not_hide_what_the_others_say,
    a_damaged_segment_does_not_hide_the_queue_behind_it,
    a_server_that_archives_elsewhere_is_found,
    a_server_that_archives_nothing_is_found,
    a_failure_to_push_what_is_archived_is_over,
    the_exporter_serves_metrics_and_nothing_else,
    the_exporter_answers_while_the_store_does_not,
    status_ends_while_the_store_does_not_answer,
    what_the_server_says_is_said_while_the_store_does_not_answer,
    every_bad_input_is_refused,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn list(repo: &Path) -> (i32, Value) {
    let run = walden(&["archive", "list", "--format", "json", "--repo", text(repo)]);
    (run.code, json(&run))
}

pub fn wait(mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(120), "it takes too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn switch(client: &mut Client, round: i32) {
    let insert =
        format!("INSERT INTO t SELECT i, md5(i::text) FROM generate_series({round}, {round} + 3000) i");
    client.batch_execute(&insert).unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
}

fn wait_until_archived(client: &mut Client) {
    let ready = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    wait(|| client.query_one(ready, &[]).unwrap().get::<_, i64>(0) == 0);
}

/// While a standby was stopped, `prune` removed the WAL that it needs next, and no server has it.
fn a_standby_that_cannot_continue_is_named() -> Outcome {
    let installation = postgres(16)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let folder = primary.make_folder("bin").unwrap();
    let (program, repo) = (link_program(&folder), primary.make_folder("repo").unwrap());
    make_archive(&repo);
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", push.as_str())]).unwrap();
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int, v text)").unwrap();
    drop(client);
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    primary.start().unwrap();
    let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
    let standby = ClusterBuilder::new(installation)
        .copy_of(&backup)
        .setting("primary_conninfo", &primary.dsn("postgres"))
        .setting("restore_command", &get)
        .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
        .unwrap();
    let dsn = standby.dsn("postgres");
    let on_standby = || walden(&["archive", "check", "--repo", text(&repo), "--dsn", &dsn]);
    let mut client = primary.client("postgres").unwrap();
    switch(&mut client, 0);
    wait_until_archived(&mut client);
    let run = on_standby();
    assert!(!run.stdout.contains("cannot continue"), "{run:?}");
    standby.stop(StopMode::Fast).unwrap();
    (1..5).for_each(|round| switch(&mut client, round));
    wait_until_archived(&mut client);
    let last = client.query_one("SELECT last_archived_wal FROM pg_stat_archiver", &[]).unwrap();
    let last: String = last.get(0);
    drop(client);
    primary.stop(StopMode::Fast).unwrap();
    let prune = ["archive", "prune", "--repo", text(&repo), "--older-than", &last, "--apply"];
    let pruned = walden(&prune);
    assert!(pruned.code <= 1, "{pruned:?}");
    standby.start().unwrap();
    let run = on_standby();
    assert!(run.code == 1 && run.stdout.contains("cannot continue from 0/"), "{run:?}");
    assert!(run.stdout.contains(&format!("the archive starts with {last}")), "{run:?}");
    // The same by status, and to the standby itself.
    let status =
        |server: [&str; 2]| walden(&["archive", "status", "--repo", text(&repo), server[0], server[1]]);
    let run = status(["--dsn", &dsn]);
    assert!(run.code == 1 && run.stdout.contains("does not stream and cannot continue from 0/"), "{run:?}");
    let data = standby.data_dir();
    let run = status(["--data", text(&data)]);
    assert!(run.stdout.contains("note: unless the standby streams, it cannot continue from 0/"), "{run:?}");
    let (_, next) = run.stdout.split_once("cannot continue from 0/").unwrap();
    let next = &next[next.find('(').unwrap() + 1..next.find(')').unwrap()];
    let target = data.join("pg_wal/RECOVERYXLOG");
    let run = walden(&["archive", "get", "--repo", text(&repo), next, text(&target)]);
    assert!(run.code == 1 && run.stderr.contains("is not in the archive"), "{run:?}");
    assert!(
        run.stderr.contains(&format!("HINT: walden archive prune kept the WAL from {last} on")),
        "{run:?}"
    );
    // A segment that is not archived yet needs no remedy.
    let later = walden(&["archive", "get", "--repo", text(&repo), "0000000100000000000000F0", text(&target)]);
    assert!(later.code == 1 && !later.stderr.contains("HINT"), "{later:?}");
    Ok(())
}

/// The primary is lost before it archived segments that its standby has received, and marked as done.
fn holes_that_a_failover_leaves_are_found_and_filled() -> Outcome {
    let installation = postgres(18)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let folder = primary.make_folder("bin").unwrap();
    let (program, repo) = (link_program(&folder), primary.make_folder("repo").unwrap());
    // A standby that starts before the first push finds an archive.
    let config = folder.join("walden.toml");
    let init = walden(&["archive", "init", "--repo", repo.to_str().unwrap(), "-o", config.to_str().unwrap()]);
    assert_eq!(init.code, 0, "{init:?}");
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int, v text)").unwrap();
    drop(client);
    primary.configure(&[("archive_mode", "on"), ("archive_command", push.as_str())]).unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    primary.start().unwrap();
    let standby = ClusterBuilder::new(installation)
        .copy_of(&backup)
        .setting("primary_conninfo", &primary.dsn("postgres"))
        .setting(
            "restore_command",
            &format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display()),
        )
        .setting("wal_keep_size", "100MB")
        .setting("archive_mode", "on")
        .setting("archive_command", &push)
        .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
        .unwrap();
    let mut client = primary.client("postgres").unwrap();
    for round in 0..3 {
        switch(&mut client, round);
    }
    wait_until_archived(&mut client);
    assert_whole(&repo, &standby, 0);
    // Checks that a standby cannot perform are skipped, and the others run.
    let dsn = standby.dsn("postgres");
    let on_standby = walden(&["archive", "check", "--repo", text(&repo), "--dsn", &dsn, "--switch"]);
    assert!(on_standby.stdout.contains("not tried: the server is a standby"), "{on_standby:?}");
    assert!(!on_standby.stdout.contains("recovery is in progress"), "{on_standby:?}");
    assert!(on_standby.stdout.contains("  archiver "), "{on_standby:?}");
    // From now on, the primary archives nothing.
    client.batch_execute("ALTER SYSTEM SET archive_command = '/bin/false'").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for round in 3..6 {
        switch(&mut client, round);
    }
    let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
    let mut receiver = standby.client("postgres").unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
    wait(|| receiver.query_one(&replayed, &[]).unwrap().get(0));
    // The primary itself shows that files are waiting.
    let waiting = json(&check(&repo, &primary, &[]));
    assert!(
        waiting["waiting"].as_u64() >= Some(3) && waiting["missing"].as_array().unwrap().is_empty(),
        "{waiting:#}"
    );
    drop(client);
    primary.crash().unwrap();
    receiver.batch_execute("SELECT pg_promote()").unwrap();
    switch(&mut receiver, 6);
    wait_until_archived(&mut receiver);

    let (code, listing) = list(&repo);
    assert_eq!(code, 1, "{listing:#}");
    let gap = &listing["timelines"][0]["gaps"][0];
    assert!(gap["segments"].as_u64() >= Some(3), "{listing:#}");
    let found = check(&repo, &standby, &[]);
    assert_eq!(found.code, 1, "{found:?}");
    let missing = json(&found)["missing"].as_array().unwrap().clone();
    assert_eq!(missing.len() as u64, gap["segments"].as_u64().unwrap(), "{found:?}");
    assert!(missing.iter().all(|one| one["mark"] == "done" && one["outcome"] == "found"), "{missing:#?}");
    assert_eq!(list(&repo), (1, listing), "a dry run changes nothing");
    let repaired = check(&repo, &standby, &["--repair"]);
    assert_eq!(repaired.code, 0, "{repaired:?}");
    assert!(json(&repaired)["missing"].as_array().unwrap().iter().all(|one| one["outcome"] == "filled"));
    assert_eq!(list(&repo).0, 0);
    assert_whole(&repo, &standby, 0);
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    // The archive of another cluster is not filled.
    let other = repo.join("../other");
    let (name, content) = golden("18.6").pop_first().unwrap();
    let segment = write(&other, &name, &content);
    let other = other.join("archive");
    make_archive(&other);
    assert_eq!(walden(&["archive", "push", "--repo", text(&other), text(&segment)]).code, 0);
    let refused = check(&other, &standby, &["--repair"]);
    assert!(refused.code == 3 && refused.stderr.contains("belongs to another cluster"), "{refused:?}");
    Ok(())
}

fn check(repo: &Path, server: &Cluster, more: &[&str]) -> Run {
    let dsn = server.dsn("postgres");
    let all = ["archive", "check", "--format", "json", "--repo", text(repo), "--against", &dsn];
    walden(&[&all, more].concat())
}

fn assert_whole(repo: &Path, server: &Cluster, code: i32) {
    let run = check(repo, server, &[]);
    assert_eq!(run.code, code, "{run:?}");
    let found = json(&run);
    assert!(
        found["compared"].as_u64() > Some(0) && found["missing"].as_array().unwrap().is_empty(),
        "{found:#}"
    );
}

/// An acknowledged gap is no longer a problem, but growth beyond it is.
fn gaps_are_acknowledged_in_writing() {
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("archive");
    make_archive(&repo);
    let mut segments = golden("18.6");
    segments.pop_last();
    let push = |name: &str, content: &[u8]| {
        let path = write(folder.path(), name, content);
        let run = walden(&["archive", "push", "--repo", text(&repo), text(&path)]);
        assert_eq!(run.code, 0, "{run:?}");
    };
    segments.iter().for_each(|(name, content)| push(name, content));
    assert_eq!(list(&repo).0, 0);
    // Two timelines branched off this one, the later one in 0000001F.
    push("00000002.history", b"1\t0/1F00028\tno recovery target specified\n");
    let last = segments.keys().next_back().unwrap();
    let next = u64::from_str_radix(&last[16..], 16).unwrap() + 1;
    let name = |number: u64| format!("0000000100000000{number:08X}");
    let (code, listing) = list(&repo);
    let checked = walden(&["archive", "check", "--repo", text(&repo)]);
    assert!(checked.code == 1 && checked.stdout.contains("segments are missing"), "{checked:?}");
    let gap = &listing["timelines"][0]["gaps"][0];
    assert_eq!((code, &gap["first"], &gap["last"]), (1, &Value::from(name(next)), &Value::from(name(0x1E))));

    let acknowledge = |first: u64, last: u64| {
        let range = format!("{}..{}", name(first), name(last));
        let all =
            ["archive", "acknowledge-gap", "--repo", text(&repo), &range, "--reason", "disk of db1 lost"];
        walden(&[&all[..], &["--by", "ann@db1"]].concat())
    };
    // Only missing segments can be acknowledged.
    for (first, end) in [(next - 1, 0x1E), (next, 0x1F), (0x1E, next)] {
        let refused = acknowledge(first, end);
        assert!(refused.code == 3 && refused.stderr.contains("cannot acknowledge"), "{refused:?}");
    }
    assert_eq!(acknowledge(next, 0x1C).code, 0);
    let (code, listing) = list(&repo);
    let gaps = listing["timelines"][0]["gaps"].as_array().unwrap();
    assert_eq!((code, gaps.len()), (1, 2), "{listing:#}");
    assert_eq!(gaps[0]["acknowledged"]["reason"], "disk of db1 lost");
    assert_eq!(gaps[0]["acknowledged"]["by"], "ann@db1");
    assert_eq!(gaps[1]["first"], Value::from(name(0x1D)));
    assert_eq!(acknowledge(0x1D, 0x1E).code, 0);
    assert_eq!(list(&repo).0, 0);
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert!(verified.stdout.contains("acknowledged by ann@db1 on 20"), "{verified:?}");
    // After the first acknowledgement, nothing remains to acknowledge.
    assert_eq!(acknowledge(0x1D, 0x1E).code, 3);
    push("00000003.history", b"1\t0/2100028\tno recovery target specified\n");
    let (code, listing) = list(&repo);
    assert_eq!(code, 1);
    let gaps = listing["timelines"][0]["gaps"].as_array().unwrap();
    let new: Vec<_> = gaps.iter().filter(|gap| gap["acknowledged"].is_null()).collect();
    assert_eq!((gaps.len(), new.len()), (3, 1), "{listing:#}");
    assert_eq!((&new[0]["first"], &new[0]["last"]), (&Value::from(name(0x1F)), &Value::from(name(0x20))));
    // The history of an intermediate timeline is missing, which cannot be acknowledged.
    assert_eq!(acknowledge(0x1F, 0x20).code, 0);
    assert_eq!(list(&repo).0, 0);
    push("00000004.history", b"1\t0/2100028\tpromoted\n3\t0/2300028\tpromoted\n");
    fs::remove_file(repo.join("history/00000003.history.wlz")).unwrap();
    let (code, listing) = list(&repo);
    assert_eq!(
        (code, &listing["missing_histories"][0]),
        (1, &Value::from("00000003.history")),
        "{listing:#}"
    );
    for command in ["list", "verify", "status", "check"] {
        let run = walden(&["archive", command, "--repo", text(&repo)]);
        assert!(run.code == 1 && run.stdout.contains("00000003.history"), "{run:?}");
        assert!(run.stdout.contains("check --against DSN --repair"), "{run:?}");
    }
}

/// A server's data directory with two segments that are ready, and a configuration with a log file.
pub struct Site {
    folder: tempfile::TempDir,
    pub segments: BTreeMap<String, Vec<u8>>,
}

impl Site {
    pub fn new(more: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let mut segments = golden("18.6");
        segments.pop_last();
        let site = Site { folder, segments };
        for (name, content) in &site.segments {
            write(&site.data(), &format!("pg_wal/{name}"), content);
            write(&site.data(), &format!("pg_wal/archive_status/{name}.ready"), b"");
        }
        make_archive(&site.repo());
        let [repo, log] = [site.repo(), site.log()].map(|path| path.display().to_string());
        let configuration = format!("[archive]\nrepo = \"{repo}\"\nlog = \"{log}\"\n{more}\n");
        fs::write(site.configuration(), configuration).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn repo(&self) -> PathBuf {
        self.path("archive")
    }

    pub fn log(&self) -> PathBuf {
        self.path("walden.log")
    }

    fn configuration(&self) -> PathBuf {
        self.path("walden.toml")
    }

    pub fn walden(&self, arguments: &[&str]) -> Run {
        let configuration = self.configuration();
        let config = ["--config", text(&configuration)];
        walden(&[&["archive"], arguments, &config[..]].concat())
    }

    pub fn push(&self, name: &str) -> Run {
        self.walden(&["push", text(&self.data().join("pg_wal").join(name))])
    }

    /// Returns the exit status, the report, and the metrics.
    pub fn status(&self) -> (i32, Value, Metrics) {
        let (data, file) = (self.data(), self.path("walden.prom"));
        let run =
            self.walden(&["status", "--format", "json", "--pgdata", text(&data), "--textfile", text(&file)]);
        (run.code, json(&run), parse(&fs::read_to_string(file).unwrap()))
    }

    /// Replaces the archive by one in an object store at a local port.
    fn use_store_at(&self, port: u16) {
        let configuration = format!(
            "[archive]\nrepo = \"s3://bucket/main\"\n[archive.store]\nendpoint = \"http://127.0.0.1:{port}\"\n\
             access_key_id = \"somebody\"\nsecret_access_key = \"secret\"\nregion = \"us-east-1\"\n"
        );
        fs::write(self.configuration(), configuration).unwrap();
    }

    fn entries(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.log()).unwrap();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Values by name and labels.
pub type Metrics = BTreeMap<String, f64>;

/// Parses an exposition as strictly as its specification: a help line, a type line, then samples of that
/// name.
pub fn parse(text: &str) -> Metrics {
    let is_name = |name: &str| {
        let mut letters = name.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    };
    let (mut metrics, mut helped, mut typed, mut seen) = (Metrics::new(), None, None, Vec::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let name = help.split_once(' ').unwrap().0;
            assert!(is_name(name) && !seen.contains(&name), "{line}");
            seen.push(name);
            helped = Some(name);
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(helped == Some(name) && ["gauge", "counter"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            typed = Some(name);
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = sample.split('{').next().unwrap();
        assert_eq!(Some(name), typed, "{line}");
        if let Some(labels) = sample[name.len()..].strip_prefix('{') {
            for label in labels.strip_suffix('}').unwrap().split(',') {
                let (name, value) = label.split_once('=').unwrap();
                assert!(is_name(name) && value.starts_with('"') && value.ends_with('"'), "{line}");
            }
        }
        assert_eq!(metrics.insert(sample.to_owned(), value.parse().unwrap()), None, "{line}");
    }
    metrics
}

fn status_and_metrics_say_what_is_wrong() {
    let site = Site::new("backlog_warning = 1\nlog_format = \"json\"");
    let names: Vec<&String> = site.segments.keys().collect();
    let count = names.len() as f64;
    let bytes: usize = site.segments.values().map(Vec::len).sum();
    // More files wait than the limit.
    let (code, report, metrics) = site.status();
    assert_eq!((code, report["lag"]["files"].as_u64()), (1, Some(names.len() as u64)), "{report:#}");
    assert!(
        report["problems"][0].as_str().unwrap().contains("files wait to be archived, more than 1"),
        "{report:#}"
    );
    assert_eq!(
        (metrics["walden_archive_lag_segments"], metrics["walden_archive_lag_bytes"]),
        (count, bytes as f64)
    );
    assert!(metrics["walden_archive_lag_seconds"] >= 0.0 && metrics["walden_archive_up"] == 0.0);
    assert!(metrics["walden_archive_ready_seconds"] >= metrics["walden_archive_lag_seconds"]);
    assert!(metrics["walden_archive_status_timestamp_seconds"] > 1e9);
    // If the metrics file cannot be written, the status line is still printed.
    let nowhere = site.path("nowhere/walden.prom");
    let unwritten = site.walden(&["status", "--textfile", text(&nowhere)]);
    assert!(unwritten.code == 3 && !unwritten.stdout.is_empty(), "{unwritten:?}");
    assert!(!unwritten.stderr.contains("recycled meanwhile"), "{unwritten:?}");
    assert!(!metrics.contains_key("walden_archive_last_verified_timestamp_seconds"));
    // One call archives all files. The server marks them as done later.
    let pushed = site.push(names[0]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let warning: Value = serde_json::from_str(pushed.stderr.trim()).unwrap();
    assert!(warning["warning"].as_str().unwrap().contains("files wait to be archived"), "{warning}");
    let entries = site.entries();
    assert_eq!(entries.len(), names.len());
    assert!(entries.iter().all(|entry| entry["outcome"] == "archived" && entry["stored"].as_u64() > Some(0)));
    let (code, report, metrics) = site.status();
    assert_eq!((code, metrics["walden_archive_lag_segments"]), (0, 0.0), "{report:#}");
    assert_eq!(metrics["walden_archive_ready_files"], count);
    assert_eq!(metrics["walden_archive_archived_files_total"], count);
    assert_eq!(metrics["walden_archive_archived_raw_bytes_total"], bytes as f64);
    assert!(metrics["walden_archive_compression_ratio"] > 1.0);
    assert!(
        metrics["walden_archive_newest_restorable_timestamp_seconds"]
            >= metrics["walden_archive_oldest_restorable_timestamp_seconds"]
    );

    // A file that cannot be archived remains a problem until it is archived.
    let next = "0000000100000000000000F0";
    write(&site.data(), &format!("pg_wal/{next}"), &site.segments[names[0]]);
    let failed = site.push(next);
    assert_eq!(failed.code, 1, "{failed:?}");
    let said: Value = serde_json::from_str(failed.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&said["outcome"], &said["cause"]),
        (&Value::from("failed"), &Value::from("mismatch")),
        "{said}"
    );
    let (code, report, metrics) = site.status();
    assert!(
        code == 1 && report["problems"][0].as_str().unwrap().contains(", is not archived: "),
        "{report:#}"
    );
    assert_eq!(metrics["walden_archive_failures_total{command=\"push\",cause=\"mismatch\"}"], 1.0);
    let line = site.walden(&["status"]);
    assert!(
        line.code == 1 && line.stdout.starts_with("PROBLEM: ") && line.stdout.lines().count() == 1,
        "{line:?}"
    );
    fs::write(site.log(), "").unwrap();

    // After a verification, and after damage.
    assert_eq!(site.walden(&["verify"]).code, 0);
    let (code, report, metrics) = site.status();
    assert_eq!((code, metrics["walden_archive_last_verified_damaged_objects"]), (0, 0.0), "{report:#}");
    let folder = site.repo().join("wal/00000001/00000000");
    let object = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let mut content = fs::read(&object).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&object, content).unwrap();
    assert_eq!(site.walden(&["verify"]).code, 1);
    let (code, report, metrics) = site.status();
    assert_eq!((code, metrics["walden_archive_last_verified_damaged_objects"]), (1, 1.0), "{report:#}");
    // Recovery appears in the metrics, too.
    let target = site.path("RECOVERYXLOG");
    let codes = names.iter().map(|name| site.walden(&["get", "--prefetch", "0", name, text(&target)]).code);
    assert!(codes.collect::<Vec<_>>().contains(&200));
    assert_eq!(site.walden(&["get", "--prefetch", "0", next, text(&target)]).code, 1);
    let (.., metrics) = site.status();
    assert_eq!(metrics["walden_archive_fetched_files_total"], count - 1.0);
    assert_eq!(metrics["walden_archive_failures_total{command=\"get\",cause=\"damaged_object\"}"], 1.0);
    // An unwritable log file does not prevent archiving.
    fs::remove_file(site.log()).unwrap();
    fs::create_dir(site.log()).unwrap();
    let sound = names.iter().find(|name| !object.to_string_lossy().contains(name.as_str())).unwrap();
    let pushed = site.push(sound);
    assert!(pushed.code == 0 && pushed.stderr.contains("cannot append to the activity log"), "{pushed:?}");
}

/// As if a file system were not mounted, or the path were wrong: nothing is created there.
fn a_place_without_an_archive_is_never_well() {
    let site = Site::new("");
    fs::remove_dir_all(site.repo()).unwrap();
    for is_mount_point in [false, true] {
        if is_mount_point {
            fs::create_dir(site.repo()).unwrap();
        }
        let (code, report, metrics) = site.status();
        assert_eq!((code, metrics["walden_archive_up"]), (3, 0.0), "{report:#}");
        let problem = report["problems"][0].as_str().unwrap();
        assert!(problem.contains("cannot find an archive") && problem.contains("mount the file system"));
        let check = site.walden(&["check"]);
        assert!(check.code == 1 && check.stdout.contains("mount the file system"), "{check:?}");
        assert!(!check.stdout.contains("push and get"), "{check:?}");
        assert_eq!(site.repo().exists(), is_mount_point);
    }
    assert_eq!(fs::read_dir(site.repo()).unwrap().count(), 0);
}

fn a_server_that_archives_elsewhere_is_found() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).archive(true).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    let repo = cluster.dir().join("repo");
    make_archive(&repo);
    let push_all = || {
        for entry in fs::read_dir(cluster.archive_dir()).unwrap() {
            let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&entry.unwrap().path())]);
            assert_eq!(pushed.code, 0, "{pushed:?}");
        }
    };
    let dsn = cluster.dsn("postgres");
    let check = |name: &str| {
        let run = walden(&["archive", "check", "--format", "json", "--repo", text(&repo), "--dsn", &dsn]);
        let report = json(&run);
        let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("{report:#}"));
        (check["status"].as_str().unwrap().to_owned(), check["found"].as_str().unwrap().to_owned())
    };
    let archiver = || check("archiver");
    for round in 0..2 {
        switch(&mut client, round);
        wait_until_archived(&mut client);
        // This applies to an empty archive, too: the server's settings may name another archive.
        let (status, found) = archiver();
        assert!(status == "fail" && found.contains("is not in"), "{status}: {found}");
        for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&cluster.data_dir())]] {
            let run = walden(&[&["archive", "status", "--repo", text(&repo)][..], &server[..]].concat());
            assert!(run.code == 1 && run.stdout.contains("it archives elsewhere"), "{run:?}");
        }
        push_all();
        assert_eq!(archiver().0, "ok");
    }
    // The switch does not wait for segments that the server archives elsewhere.
    let began = Instant::now();
    let options = ["archive", "check", "--repo", text(&repo), "--dsn", &dsn, "--switch", "--wait", "100"];
    let switched = walden(&options);
    assert!(switched.code == 1 && switched.stdout.contains("the server archives elsewhere"), "{switched:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    wait_until_archived(&mut client);
    push_all();
    // This also finds a server that does not report its last archived file: its WAL grows, but does not
    // arrive.
    for round in 2..6 {
        switch(&mut client, round);
    }
    wait_until_archived(&mut client);
    // The archiver reports a file after marking it.
    std::thread::sleep(Duration::from_millis(200));
    client.batch_execute("SELECT pg_stat_reset_shared('archiver')").unwrap();
    let behind = walden(&["archive", "status", "--repo", text(&repo), "--dsn", &dsn]);
    assert!(behind.code == 1 && behind.stdout.contains("nothing waits to be archived"), "{behind:?}");
    push_all();
    // Status reports an archive of another cluster.
    let other = cluster.dir().join("other");
    make_archive(&other);
    let (name, content) = golden("18.6").pop_first().unwrap();
    let pushed =
        walden(&["archive", "push", "--repo", text(&other), text(&write(cluster.dir(), &name, &content))]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let data = cluster.data_dir();
    for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]] {
        for (repo, code) in [(&repo, 0), (&other, 1)] {
            let run = walden(&[&["archive", "status", "--repo", text(repo)][..], &server[..]].concat());
            let is_other = run.stdout.contains("give each cluster its own archive");
            assert_eq!((run.code, is_other), (code, code == 1), "{run:?}");
        }
    }
    // Another server was promoted, and archived a segment of its own timeline.
    assert_eq!(check("timeline"), ("ok".to_owned(), "the server writes timeline 1".to_owned()));
    let query = "SELECT system_identifier FROM pg_control_system()";
    let system_id: i64 = client.query_one(query, &[]).unwrap().get(0);
    let mut writer = LogWriter::new(Major::V15);
    (writer.info.timeline, writer.info.system_id) = (2, system_id.cast_unsigned());
    (writer.start, writer.previous) = (Lsn(0x40 << 20), Lsn((0x40 << 20) - 32));
    writer.main_data(rmid::XLOG, info::xlog::NOOP, b"of timeline 2");
    writer.switch();
    let segment = write(cluster.dir(), "000000020000000000000040", &writer.bytes);
    let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&segment)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let expected = "the server writes timeline 1, and the archive has timeline 2";
    let (status, found) = check("timeline");
    assert!(status == "warn" && found.contains(expected), "{status}: {found}");
    for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]] {
        let options = ["archive", "status", "--format", "json", "--repo", text(&repo)];
        let run = walden(&[&options[..], &server[..]].concat());
        let report = json(&run);
        assert!(report["notes"][0].as_str().is_some_and(|note| note.contains(expected)), "{report:#}");
    }
    Ok(())
}

/// The server's segments are recycled, and no file ever waits.
fn a_server_that_archives_nothing_is_found() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).start().unwrap();
    let repo = cluster.dir().join("repo");
    make_archive(&repo);
    let (dsn, data) = (cluster.dsn("postgres"), cluster.data_dir());
    let status = |server: [&str; 2], more: &[&str]| {
        let all = [&["archive", "status", "--repo", text(&repo)][..], &server[..], more].concat();
        walden(&all)
    };
    let off = "archive_mode is off";
    for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]] {
        let run = status(server, &[]);
        assert!(run.code == 1 && run.stdout.contains(off), "{run:?}");
        // Streaming to a receiver does not require archive_mode.
        let run = status(server, &["--spool", text(&cluster.dir().join("spool"))]);
        assert!(!run.stdout.contains(off), "{run:?}");
    }
    let check = walden(&["archive", "check", "--repo", text(&repo), "--data", text(&data)]);
    assert!(check.code == 1 && check.stdout.contains(off), "{check:?}");
    // The hint is a command that works.
    let check = walden(&["archive", "check", "--repo", text(&repo), "--dsn", &dsn]);
    let command = format!("archive push --repo {} %p'", repo.display());
    assert!(check.code == 1 && check.stdout.contains(&command), "{check:?}");
    // If the server's WAL is received, the receiver is checked.
    let spool = cluster.dir().join("spool");
    fs::create_dir(&spool).unwrap();
    for server in [["--dsn", dsn.as_str()], ["--data", text(&data)]] {
        let options = ["archive", "check", "--repo", text(&repo), "--spool", text(&spool)];
        let check = || walden(&[&options[..], &server[..]].concat());
        let not_run = check();
        assert!(not_run.code == 1 && not_run.stdout.contains("walden receive has not run"), "{not_run:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let status = serde_json::json!({
            "state": "streaming", "server": "db1", "timeline": 1, "received_lsn": "0/01000000",
            "flushed_lsn": "0/01000000", "server_lsn": "0/01000000", "lag_bytes": 0, "lag_seconds": 0.0,
            "waiting_files": 0, "interruptions": 0, "time": now.as_micros() as u64,
        });
        write(&spool, "status.json", status.to_string().as_bytes());
        let runs = check();
        assert!(runs.code == 0 && runs.stdout.contains("receiving timeline 1 from db1"), "{runs:?}");
        assert!(!runs.stdout.contains("archive_mode"), "{runs:?}");
        fs::remove_file(spool.join("status.json")).unwrap();
    }
    // With a library other than Walden's, Walden's socket is not queried.
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("ALTER SYSTEM SET archive_library = 'basic_archive'").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let setting = "SELECT current_setting('archive_library') = 'basic_archive'";
    wait(|| client.query_one(setting, &[]).unwrap().get(0));
    let check = walden(&["archive", "check", "--repo", text(&repo), "--dsn", &dsn]);
    assert!(check.code == 1 && check.stdout.contains("basic_archive: another library archives"), "{check:?}");
    assert!(!check.stdout.contains("listens at"), "{check:?}");
    Ok(())
}

fn a_failure_to_push_what_is_archived_is_over() {
    let site = Site::new("");
    let first = site.segments.keys().next().unwrap();
    let elsewhere = site.path("elsewhere").join(first);
    assert_eq!(site.walden(&["push", text(&elsewhere)]).code, 1);
    let (code, report, _) = site.status();
    assert!(code == 1 && report["activity"]["unresolved_failure"]["file"] == first.as_str(), "{report:#}");
    assert_eq!(site.push(first).code, 0);
    // A wrong path, after the server's own call, and a wrong name.
    assert_eq!(site.walden(&["push", text(&elsewhere)]).code, 1);
    assert_eq!(site.walden(&["push", "nope"]).code, 1);
    let (_, report, _) = site.status();
    assert_eq!(
        (&report["activity"]["unresolved_failure"], &report["problems"]),
        (&Value::Null, &Value::Array(Vec::new()))
    );
}

fn a_damaged_object_does_not_hide_what_the_others_say() {
    let site = Site::new("");
    let first = site.segments.keys().next().unwrap();
    assert_eq!(site.push(first).code, 0);
    let object = site.repo().join(format!("wal/00000001/00000000/{first}.wlz"));
    fs::File::options().write(true).open(&object).unwrap().set_len(1000).unwrap();
    let listed = site.walden(&["list"]);
    assert!(listed.code == 1 && listed.stdout.contains("Timeline 1"), "{listed:?}");
    assert!(listed.stdout.contains(&format!("DAMAGED: wal/00000001/00000000/{first}.wlz")), "{listed:?}");
    let (code, report, _) = site.status();
    assert_eq!((code, report["holdings"]["unreadable"].as_array().unwrap().len()), (1, 1), "{report:#}");
    let pushed = site.push(first);
    assert!(pushed.code == 1 && pushed.stderr.contains("Move the damaged object"), "{pushed:?}");
    fs::rename(&object, site.path("aside")).unwrap();
    assert_eq!(site.push(first).code, 0);
    assert_eq!(site.walden(&["list"]).code, 0);
}

/// No file is archived ahead of a refused segment. Later files archived in other ways do not hide the queue.
fn a_damaged_segment_does_not_hide_the_queue_behind_it() {
    let site = Site::new("backlog_warning = 1");
    let names: Vec<&String> = site.segments.keys().collect();
    let (first, last) = (names[0], names[names.len() - 1]);
    let good = &site.segments[first];
    let mut damaged = good.clone();
    damaged[50_000] ^= 1;
    write(&site.data(), &format!("pg_wal/{first}"), &damaged);
    // PostgreSQL retries the same segment.
    for _ in 0..3 {
        assert_eq!(site.push(first).code, 1);
    }
    let outcomes = site.entries();
    assert!(outcomes.len() == 3 && outcomes.iter().all(|entry| entry["outcome"] == "failed"), "{outcomes:?}");
    // As another server of the cluster does, or an administrator manually.
    let path = site.data().join("pg_wal").join(last);
    assert_eq!(site.walden(&["push", "--look-ahead", "0", text(&path)]).code, 0);
    let stuck = format!("the server does not get past {first}");
    let failed = format!("{first}, last tried at ");
    let (code, report, metrics) = site.status();
    let problems = report["problems"].as_array().unwrap();
    assert!(code == 1 && problems.len() == 2, "{report:#}");
    assert!(problems[0].as_str().unwrap().contains(&stuck), "{report:#}");
    let problem = problems[1].as_str().unwrap();
    assert!(problem.starts_with(&failed) && problem.contains("; hint: "), "{report:#}");
    assert_eq!(
        (report["lag"]["files"].as_u64(), report["lag"]["next_file"].as_str()),
        (Some(1), Some(&**first))
    );
    assert_eq!((metrics["walden_archive_lag_segments"], metrics["walden_archive_failing_files"]), (1.0, 1.0));
    assert!(metrics["walden_archive_ready_files"] > metrics["walden_archive_backlog_limit_files"]);
    // Either source alone reveals it: the log file, and the queue.
    let alone = site.walden(&["status"]);
    assert!(alone.code == 1 && alone.stdout.contains(&failed), "{alone:?}");
    fs::remove_file(site.log()).unwrap();
    let (code, report, _) = site.status();
    assert!(code == 1 && report["problems"][0].as_str().unwrap().contains(&stuck), "{report:#}");
    // A short queue becomes a problem when it is old.
    write(&site.data(), &format!("pg_wal/archive_status/{last}.done"), b"");
    fs::remove_file(site.data().join(format!("pg_wal/archive_status/{last}.ready"))).unwrap();
    assert_eq!(site.status().0, 0);
    let mark = fs::File::options()
        .write(true)
        .open(site.data().join(format!("pg_wal/archive_status/{first}.ready")));
    mark.unwrap().set_modified(std::time::SystemTime::now() - Duration::from_secs(1000)).unwrap();
    let (code, report, metrics) = site.status();
    assert!(code == 1 && report["problems"][0].as_str().unwrap().contains("longer than"), "{report:#}");
    assert!(metrics["walden_archive_lag_seconds"] > metrics["walden_archive_backlog_limit_seconds"]);
    // The problem ends when that file is archived and marked as done: a server that does not mark it makes no
    // progress.
    write(&site.data(), &format!("pg_wal/{first}"), good);
    assert_eq!(site.push(first).code, 0);
    let (code, report, _) = site.status();
    let problem = report["problems"][0].as_str().unwrap();
    assert!(code == 1 && problem.contains("although the archive has a file of its name"), "{report:#}");
    fs::remove_file(site.data().join(format!("pg_wal/archive_status/{first}.ready"))).unwrap();
    let (code, report, metrics) = site.status();
    assert_eq!((code, metrics["walden_archive_failing_files"]), (0, 0.0), "{report:#}");
}

/// Prometheus abandons a scrape after ten seconds, but requests to a store are retried for longer.
fn the_exporter_answers_while_the_store_does_not() {
    if !cfg!(feature = "s3") {
        return;
    }
    let site = Site::new("");
    // The port is closed.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    site.use_store_at(port);
    let exporter = Exporter::start(&site);
    for _ in 0..4 {
        let began = Instant::now();
        let (status, body) = exporter.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let (metrics, count) = (parse(&body), site.segments.len() as f64);
        assert_eq!((metrics["walden_archive_up"], metrics["walden_archive_ready_files"]), (0.0, count));
    }
}

/// Monitoring abandons a check after some seconds, and would then not know the queue, either.
fn status_ends_while_the_store_does_not_answer() {
    if !cfg!(feature = "s3") {
        return;
    }
    let site = Site::new("");
    // The port accepts connections, but never reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    site.use_store_at(listener.local_addr().unwrap().port());
    let (data, began) = (site.data(), Instant::now());
    let run = site.walden(&["status", "--format", "json", "--timeout", "1", "--pgdata", text(&data)]);
    assert!(run.code == 3 && began.elapsed() < Duration::from_secs(20), "{:?}: {run:?}", began.elapsed());
    let report = json(&run);
    assert_eq!(report["problems"][0], "the archive was not read within 1 s: see --timeout");
    assert_eq!(report["lag"]["files"], site.segments.len());
}

/// The server's queue grows when a store is down, so its state must be reported then.
fn what_the_server_says_is_said_while_the_store_does_not_answer() -> Outcome {
    if !cfg!(feature = "s3") {
        return Ok(());
    }
    let cluster = ClusterBuilder::new(postgres(15)?)
        .wal_segsize_mb(1)
        .setting("archive_mode", "on")
        .setting("archive_command", "/bin/false")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    switch(&mut client, 0);
    let has_failed = "SELECT failed_count > 0 FROM pg_stat_archiver";
    wait(|| client.query_one(has_failed, &[]).unwrap().get(0));
    let site = Site::new("");
    let dsn = cluster.dsn("postgres");
    // The first port accepts connections, but never reads from them. The second one is closed.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (silent.local_addr().unwrap().port(), Some(silent));
    let gone = (TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(), None);
    for ((port, listener), timeout) in [(silent, "1"), (gone, "60")] {
        site.use_store_at(port);
        let run = site.walden(&["status", "--format", "json", "--timeout", timeout, "--dsn", &dsn]);
        assert_eq!(run.code, 3, "{run:?}");
        let report = json(&run);
        let problems: Vec<&str> =
            report["problems"].as_array().unwrap().iter().map(|problem| problem.as_str().unwrap()).collect();
        let is_late = problems[0] == "the archive was not read within 1 s: see --timeout";
        assert_eq!(is_late, listener.is_some(), "{report:#}");
        assert!(
            problems.iter().any(|problem| problem.contains("last attempt to archive failed")),
            "{report:#}"
        );
        assert!(report["lag"]["files"].as_u64() > Some(0), "{report:#}");
    }
    Ok(())
}

/// An exporter process, stopped on drop.
pub struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    fn start(site: &Site) -> Exporter {
        let (configuration, data) = (site.configuration(), site.data());
        Exporter::with(&["--config", text(&configuration), "--pgdata", text(&data)])
    }

    pub fn with(arguments: &[&str]) -> Exporter {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(["archive", "exporter", "--listen", "127.0.0.1:0", "--refresh", "0"]).args(arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving http://").unwrap().strip_suffix("/metrics").unwrap();
        Exporter { address: address.to_owned(), child }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Returns the status line and the body of a response.
    pub fn ask(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        // The exporter may close the connection before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn the_exporter_serves_metrics_and_nothing_else() {
    let site = Site::new("");
    let exporter = Exporter::start(&site);
    let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (status, body) = exporter.ask(get);
    assert_eq!(status, "HTTP/1.1 200 OK");
    let count = site.segments.len() as f64;
    assert_eq!(parse(&body)["walden_archive_lag_segments"], count);
    // A silent connection does not block other clients.
    let silent = exporter.connect();
    assert_eq!(site.push(site.segments.keys().next().unwrap()).code, 0);
    let metrics = parse(&exporter.ask(get).1);
    assert_eq!((metrics["walden_archive_lag_segments"], metrics["walden_archive_segments"]), (0.0, count));
    assert_eq!(metrics["walden_archive_archived_files_total"], count);
    for (request, expected) in [
        ("GET /other HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("GET / HTTP/1.0\r\n\r\n", "200 OK"),
        ("GET /metrics?name[]=x HTTP/1.1\r\n\r\n", "200 OK"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("GET /metrics\r\n\r\n", "400 Bad Request"),
        ("\0\x01\x02\r\n\r\n", "400 Bad Request"),
    ] {
        assert_eq!(exporter.ask(request).0, format!("HTTP/1.1 {expected}"), "{request:?}");
    }
    // A request that is too long is not read completely, and the next one is answered.
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let (status, _) = exporter.ask(&long);
    assert!(status.is_empty() || status == "HTTP/1.1 400 Bad Request", "{status}");
    // An unreadable archive changes a metric, and does not end the exporter.
    let identity = site.repo().join("archive.json");
    fs::write(&identity, "{").unwrap();
    let metrics = parse(&exporter.ask(get).1);
    assert_eq!((metrics["walden_archive_up"], metrics["walden_archive_ready_files"]), (0.0, count));
    assert!(!metrics.contains_key("walden_archive_segments"));
    // Nor does a removed archive.
    fs::remove_dir_all(site.repo()).unwrap();
    let metrics = parse(&exporter.ask(get).1);
    assert_eq!((metrics["walden_archive_up"], metrics["walden_archive_problems"]), (0.0, 1.0));
    // The silent connection is closed after the time limit.
    let mut silent = silent;
    let mut answer = Vec::new();
    let _ = silent.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
}

/// Walden must refuse every bad input. The same run measures how other archivers handle them.
fn every_bad_input_is_refused() -> Outcome {
    postgres(15)?;
    postgres(14)?;
    let run = walden(&["bench", "bad-inputs", "--format", "json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let outcomes = json(&run);
    let rows = outcomes["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9, "{outcomes:#}");
    for row in rows {
        let own = &row["archivers"][0];
        assert_eq!((&own["archiver"], own["status"].as_i64()), (&Value::from("walden"), Some(1)), "{row:#}");
        // The previously archived content stays, and nothing else is restored.
        let is_taken = row["input"].as_str().unwrap().ends_with("under the same name");
        let restored = if is_taken { "first_content" } else { "nothing" };
        assert_eq!(own["restored"], restored, "{row:#}");
    }
    Ok(())
}
