//! `walden watch` compared with servers: its sums must equal those of `walden explain` over the same range,
//! to the byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{ALL_SERVERS, Need, Outcome, postgres};

use crate::archive::text;
use crate::material::{explain_json, sum, walden};

walden_testing::tests! {
    sums_equal_explain on ALL_SERVERS,
    a_promotion_is_followed,
    a_connection_is_followed on [15, 19],
    an_idle_server_is_followed_at_once,
    a_connection_goes_on_behind_removed_segments,
    switched_segments_are_read_before_they_are_removed,
    a_switch_ends_the_segment_at_once on [15, 19],
    a_checkpoint_in_progress_is_found,
    a_server_that_does_not_run_has_no_next_checkpoint,
    lines_add_up_and_have_names,
    metrics_are_what_prometheus_reads,
    #[slow] a_lost_connection_is_reported_and_renewed on [15, 19],
    the_view_works_in_a_terminal,
    sources_without_wal_are_refused,
    settings_and_names_follow_the_server on [15],
    an_interrupt_ends_a_watch_that_still_connects,
}

/// A watching process, killed on drop.
struct Watching {
    child: Child,
    saved: PathBuf,
    lines: PathBuf,
    log: PathBuf,
}

impl Watching {
    fn start(source: &str, folder: &Path, options: &[&str]) -> Watching {
        let (saved, lines, log) =
            (folder.join("watch.json"), folder.join("watch.lines"), folder.join("watch.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(["watch", source, "--save", text(&saved)])
            .args(options)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&lines).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Watching { child, saved, lines, log }
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.lines).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Stops the process, and returns the document that it saved.
    fn stop(mut self) -> Value {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        serde_json::from_slice(&fs::read(&self.saved).unwrap()).unwrap()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server with segments of 1 MB, which it recycles often, and an archive that keeps all of them.
fn small_segments(major: u32) -> Result<Cluster, walden_testing::Missing> {
    let builder = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .archive(true)
        .setting("max_wal_size", "24MB")
        .setting("min_wal_size", "24MB")
        .setting("wal_level", "replica")
        // Under the load of other tests, the watching process may be delayed.
        .setting("wal_keep_size", "12MB")
        .setting("checkpoint_timeout", "30s");
    let cluster = builder.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE big (id int PRIMARY KEY, fill text); CREATE TABLE small (id int, fill text);
             ALTER TABLE big ALTER fill SET STORAGE EXTERNAL",
        )
        .unwrap();
    Ok(cluster)
}

/// Executes each statement separately: together they would be one transaction.
fn execute(client: &mut postgres::Client, statements: &str) {
    for statement in statements.split(';') {
        client.batch_execute(statement).unwrap();
    }
}

fn load(cluster: &Cluster, from: u32) {
    let mut client = cluster.client("postgres").unwrap();
    execute(
        &mut client,
        &format!(
            "INSERT INTO big SELECT n, repeat('x', n % 5000) FROM generate_series({from}, {from} + 4000) n;
             INSERT INTO small SELECT n, 'y' FROM generate_series(1, 20000) n;
             UPDATE small SET fill = fill || 'z' WHERE id % 3 = 0;
             SELECT pg_logical_emit_message(false, 'long', repeat('m', 3000000));
             BEGIN; DELETE FROM small WHERE id % 2 = 0; ROLLBACK;
             TRUNCATE small; VACUUM big"
        ),
    );
    for number in 0..300 {
        client.execute("INSERT INTO small VALUES ($1, 'one')", &[&number]).unwrap();
        if number % 100 == 0 {
            execute(&mut client, "SELECT pg_switch_wal(); CHECKPOINT");
        }
    }
}

/// Waits until all WAL of a stopped server is decoded.
fn settle(watching: &Watching) {
    let mut last = (Value::Null, Instant::now());
    let began = Instant::now();
    while last.1.elapsed() < Duration::from_secs(4) {
        thread::sleep(Duration::from_millis(200));
        let lsn = watching.lines().last().map(|line| line["lsn"].clone()).unwrap_or_default();
        if lsn != last.0 {
            last = (lsn, Instant::now());
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{}", watching.log());
    }
}

/// Compares the fields in which explanations of the same range must agree.
fn compare(watched: &Value, explained: &Value) {
    for field in
        ["file_bytes", "records", "buckets", "images", "relations", "record_kinds", "checkpoints", "time"]
    {
        let (one, other) = (&watched[field], &explained[field]);
        if field == "checkpoints" {
            // The causes may differ, as watch knows the server's settings.
            let places = |list: &Value| -> Vec<[Value; 4]> {
                let of = |one: &Value| ["lsn", "redo", "time", "distance"].map(|field| one[field].clone());
                list["list"].as_array().unwrap().iter().map(of).collect()
            };
            assert_eq!(places(one), places(other));
            continue;
        }
        assert_eq!(one, other, "{field} of {:#} and {:#}", watched["ranges"], explained["ranges"]);
    }
    let transactions = |document: &Value| {
        let all = &document["transactions"];
        ["committed", "aborted", "open", "bytes", "system_bytes"].map(|field| all[field].clone())
    };
    assert_eq!(transactions(watched), transactions(explained));
}

fn sums_equal_explain(major: u32) -> Outcome {
    let cluster = small_segments(major)?;
    // Leaves recycled segments ahead, as on a server that has run for a while.
    load(&cluster, 100_000);
    // Another test covers whether WAL is read in time, which depends on the machine's load.
    cluster.configure(&[("wal_keep_size", "2GB")]).unwrap();
    cluster.reload();
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir();
    let watching = Watching::start(text(&data), folder.path(), &["--interval", "1s", "--format", "json"]);
    while watching.lines().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    load(&cluster, 0);
    cluster.restart(StopMode::Fast).unwrap();
    load(&cluster, 10_000);
    cluster.crash().unwrap();
    cluster.start().unwrap();
    load(&cluster, 20_000);
    cluster.stop(StopMode::Fast).unwrap();
    settle(&watching);
    let lines = watching.lines();
    assert_eq!(watching.log(), "", "nothing was missed");
    let watched = watching.stop();
    let ranges = watched["ranges"].as_array().unwrap();
    assert_eq!(ranges.len(), 1, "{ranges:?}");
    let bound = |end: &str| ranges[0][end].as_str().unwrap().to_owned();
    let wal = data.join("pg_wal");
    let explained = explain_json(&[
        "--savings".to_owned(),
        "never".to_owned(),
        "--from".to_owned(),
        bound("start"),
        "--to".to_owned(),
        bound("end"),
        text(&cluster.archive_dir()).to_owned(),
        text(&wal).to_owned(),
    ]);
    assert!(explained["file_bytes"].as_u64().unwrap() > 40 << 20, "{}", explained["file_bytes"]);
    compare(&watched, &explained);
    // The printed lines have the same sums.
    let of_lines: u64 = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(of_lines, watched["file_bytes"].as_u64().unwrap());
    for line in &lines {
        let of = |list: &str| -> u64 {
            line[list].as_array().unwrap().iter().map(|group| group["bytes"].as_u64().unwrap()).sum()
        };
        let bytes = line["bytes"].as_u64().unwrap();
        assert_eq!(sum(&line["buckets"]), bytes);
        assert_eq!([of("relations"), of("record_kinds"), of("databases")], [bytes; 3]);
    }
    for (cause, images) in watched["images"].as_object().unwrap() {
        for member in ["count", "bytes", "uncompressed_bytes"] {
            let number = |images: &Value| images[member].as_u64().unwrap();
            let of_lines: u64 = lines.iter().map(|line| number(&line["images_by_cause"][cause])).sum();
            assert_eq!(of_lines, number(images), "{member} of {cause}");
        }
    }
    // The WAL ends there.
    let all = explain_json(&["--savings", "never", text(&cluster.archive_dir()), text(&wal)]);
    let last = all["ranges"].as_array().unwrap().last().unwrap();
    let tail: u64 = ["zero_tail", "recycled_tail", "torn_tail"]
        .map(|bucket| all["buckets"][bucket].as_u64().unwrap_or_default())
        .iter()
        .sum();
    let lsn = |text: &str| text.parse::<walden_format::lsn::Lsn>().unwrap().0;
    assert_eq!(lsn(last["end"].as_str().unwrap()) - tail, lsn(&bound("end")));
    Ok(())
}

/// Two ranges result, one on each timeline.
fn a_promotion_is_followed() -> Outcome {
    let cluster = small_segments(15)?;
    load(&cluster, 0);
    cluster.stop(StopMode::Fast).unwrap();
    let standby = ClusterBuilder::new(postgres(15)?)
        .copy_of(&cluster.data_dir())
        .archive(true)
        // Right after a promotion there are no recycled segments, and a checkpoint would remove new ones
        // immediately.
        .setting("wal_keep_size", "200MB")
        .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = standby.data_dir();
    let watching = Watching::start(text(&data), folder.path(), &["--interval", "1s", "--format", "json"]);
    while watching.lines().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    let mut client = standby.client("postgres").unwrap();
    client.execute("SELECT pg_promote()", &[]).unwrap();
    drop(client);
    load(&standby, 50_000);
    standby.stop(StopMode::Fast).unwrap();
    settle(&watching);
    let watched = watching.stop();
    let ranges = watched["ranges"].as_array().unwrap();
    let last = ranges.last().unwrap();
    assert_eq!(last["timeline"], 2, "{ranges:?}");
    let bound = |range: &Value, end: &str| range[end].as_str().unwrap().to_owned();
    let explained = explain_json(&[
        "--savings".to_owned(),
        "never".to_owned(),
        "--timeline".to_owned(),
        "2".to_owned(),
        "--from".to_owned(),
        bound(&ranges[0], "start"),
        "--to".to_owned(),
        bound(last, "end"),
        text(&standby.archive_dir()).to_owned(),
        text(&data.join("pg_wal")).to_owned(),
    ]);
    assert!(explained["file_bytes"].as_u64().unwrap() > 10 << 20);
    compare(&watched, &explained);
    Ok(())
}

fn a_connection_is_followed(major: u32) -> Outcome {
    let cluster = small_segments(major)?;
    let folder = tempfile::tempdir().unwrap();
    let watching =
        Watching::start(&cluster.dsn("postgres"), folder.path(), &["--interval", "1s", "--format", "json"]);
    while watching.lines().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    load(&cluster, 0);
    settle(&watching);
    // Watch reconnects, however late, and misses no WAL.
    cluster.configure(&[("wal_keep_size", "64MB")]).unwrap();
    cluster.restart(StopMode::Fast).unwrap();
    load(&cluster, 10_000);
    cluster.stop(StopMode::Fast).unwrap();
    settle(&watching);
    let watched = watching.stop();
    let ranges = watched["ranges"].as_array().unwrap();
    assert_eq!(ranges.len(), 1, "{ranges:?}");
    let explained = explain_json(&[
        "--savings",
        "never",
        "--from",
        ranges[0]["start"].as_str().unwrap(),
        "--to",
        ranges[0]["end"].as_str().unwrap(),
        text(&cluster.archive_dir()),
        text(&cluster.data_dir().join("pg_wal")),
    ]);
    assert!(explained["file_bytes"].as_u64().unwrap() > 10 << 20);
    for field in ["file_bytes", "records", "buckets", "images", "record_kinds"] {
        assert_eq!(watched[field], explained[field], "{field}");
    }
    Ok(())
}

/// Returns the LSN at which the next record starts, and the LSN up to which the WAL is durable.
fn ends(client: &mut postgres::Client) -> (u64, u64) {
    let row = client
        .query_one("SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text", &[])
        .unwrap();
    let lsn = |at: usize| row.get::<_, String>(at).parse::<walden_format::lsn::Lsn>().unwrap().0;
    (lsn(0), lsn(1))
}

/// The end of the WAL may be a segment's start, be inside its first page, or be that page's end.
fn an_idle_server_is_followed_at_once() -> Outcome {
    const PAGE_BYTES: u64 = 8192;
    /// Size of the message whose transaction is measured.
    const MESSAGE_BYTES: u64 = 1000;
    let cluster = small_segments(15)?;
    let mut client = cluster.client("postgres").unwrap();
    let dsn = cluster.dsn("postgres");
    let watch = || {
        // The server writes WAL that is not durable yet.
        thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        let run = walden(&["watch", &dsn, "--once", "--interval", "1s", "--format", "json"]);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let line: Value = serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap();
        assert_eq!((&line["missed_bytes"], &line["problem"]), (&Value::from(0), &Value::Null), "{line:#}");
    };
    let emit = |client: &mut postgres::Client, bytes: u64| {
        let message = format!("SELECT pg_logical_emit_message(true, 'fill', repeat('m', {bytes}))");
        client.batch_execute(&message).unwrap();
    };
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    watch();
    emit(&mut client, 10);
    watch();
    let mut is_filled = false;
    for _ in 0..20 {
        client.batch_execute("SELECT pg_switch_wal()").unwrap();
        let before = ends(&mut client).0;
        emit(&mut client, MESSAGE_BYTES);
        let behind = ends(&mut client).0;
        let left = PAGE_BYTES - behind % PAGE_BYTES;
        // Other processes may write, too.
        if behind / PAGE_BYTES != before / PAGE_BYTES || behind - before > left {
            continue;
        }
        emit(&mut client, MESSAGE_BYTES + left - (behind - before));
        thread::sleep(Duration::from_secs(1));
        is_filled = ends(&mut client).1.is_multiple_of(PAGE_BYTES);
        if is_filled {
            break;
        }
    }
    assert!(is_filled, "{:?}", ends(&mut client));
    watch();
    Ok(())
}

/// WAL that the server has removed is reported as missing, and the remaining WAL is counted.
fn a_connection_goes_on_behind_removed_segments() -> Outcome {
    let cluster = small_segments(15)?;
    cluster.configure(&[("wal_keep_size", "0")]).unwrap();
    cluster.reload();
    let folder = tempfile::tempdir().unwrap();
    let watching =
        Watching::start(&cluster.dsn("postgres"), folder.path(), &["--interval", "1s", "--format", "json"]);
    while watching.lines().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    let pid = rustix::process::Pid::from_child(&watching.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").unwrap();
    load(&cluster, 0);
    load(&cluster, 10_000);
    execute(&mut client, "CHECKPOINT; CHECKPOINT");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let began = Instant::now();
    while watching.lines().last().is_none_or(|line| line["missed_bytes"] == 0) {
        thread::sleep(Duration::from_millis(200));
        assert!(began.elapsed() < Duration::from_secs(60), "{}", watching.log());
    }
    load(&cluster, 20_000);
    settle(&watching);
    let lines = watching.lines();
    let last = lines.last().unwrap();
    assert_eq!(last["problem"], Value::Null, "{}", watching.log());
    assert!(watching.log().contains("is not counted: the server has removed it"), "{}", watching.log());
    let watched = watching.stop();
    let ranges = watched["ranges"].as_array().unwrap();
    assert!(ranges.len() >= 2, "{ranges:?}");
    let lsn =
        |range: &Value, end: &str| range[end].as_str().unwrap().parse::<walden_format::lsn::Lsn>().unwrap().0;
    // On a slow machine, the server may get ahead a second time.
    let missed: u64 = ranges.windows(2).map(|two| lsn(&two[1], "start") - lsn(&two[0], "end")).sum();
    assert_eq!(missed, last["missed_bytes"].as_u64().unwrap());
    let all = lsn(&ranges[ranges.len() - 1], "end") - lsn(&ranges[0], "start");
    assert_eq!(watched["file_bytes"].as_u64().unwrap(), all - missed);
    Ok(())
}

/// Almost all bytes are unused, and a checkpoint removes segments soon after they are written.
fn switched_segments_are_read_before_they_are_removed() -> Outcome {
    let builder = ClusterBuilder::new(postgres(15)?).setting("wal_keep_size", "0");
    let cluster = builder.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir();
    let watching = Watching::start(text(&data), folder.path(), &["--interval", "1s", "--format", "json"]);
    while watching.lines().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    for number in 0..60 {
        let message =
            "SELECT pg_logical_emit_message(true, 'switch', repeat('m', 1000)); SELECT pg_switch_wal()";
        execute(&mut client, message);
        thread::sleep(Duration::from_millis(100));
        if number % 30 == 29 {
            client.batch_execute("CHECKPOINT").unwrap();
        }
    }
    settle(&watching);
    let lines = watching.lines();
    let last = lines.last().unwrap();
    assert_eq!((&last["missed_bytes"], watching.log()), (&Value::from(0), String::new()), "{last:#}");
    let bytes: u64 = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert!(bytes > 58 * (16 << 20), "{bytes}");
    Ok(())
}

/// On an idle server, no record follows a switch for minutes. The files must end where the server says.
fn a_switch_ends_the_segment_at_once(major: u32) -> Outcome {
    let cluster = small_segments(major)?;
    let mut client = cluster.client("postgres").unwrap();
    let position = |client: &mut postgres::Client| -> walden_format::lsn::Lsn {
        let row = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap();
        row.get::<_, String>(0).parse().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir();
    let watching = Watching::start(text(&data), folder.path(), &["--interval", "1s", "--format", "json"]);
    let began = Instant::now();
    let lsn_of = |line: &Value| line["lsn"].as_str().unwrap().parse::<walden_format::lsn::Lsn>().unwrap();
    // Other processes of the server may write between two calls.
    let is_settled = |client: &mut postgres::Client| {
        execute(client, "INSERT INTO small VALUES (1, 'x'); SELECT pg_switch_wal()");
        let before = position(client);
        let run = walden(&["watch", text(&data), "--once", "--interval", "1s", "--format", "json"]);
        assert_eq!(run.code, 0, "{run:?}");
        thread::sleep(Duration::from_secs(2));
        let line: Value = serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap();
        let lines = watching.lines();
        let found = [Some(&line), lines.last()].map(|line| line.map(lsn_of));
        // The insert position is after the next segment's header.
        let expected = Some(walden_format::lsn::Lsn(before.0 - before.0 % (1 << 20)));
        (position(client) == before).then_some((found, [expected; 2]))
    };
    let (found, expected) = loop {
        if let Some(settled) = is_settled(&mut client) {
            break settled;
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    };
    assert_eq!(found, expected);
    let watched = watching.stop();
    let [start, end] = ["start", "end"].map(|field| {
        let range = &watched["ranges"].as_array().unwrap()[0];
        range[field].as_str().unwrap().parse::<walden_format::lsn::Lsn>().unwrap()
    });
    assert_eq!(watched["file_bytes"].as_u64().unwrap(), end.0 - start.0);
    assert_eq!(Some(end), expected[1]);
    Ok(())
}

/// `pg_control` does not include the checkpoint yet, but since 17 the WAL does.
fn a_checkpoint_in_progress_is_found() -> Outcome {
    let cluster = small_segments(17)?;
    let mut client = cluster.client("postgres").unwrap();
    // Creates dirty pages, so that a spread checkpoint takes some time.
    execute(&mut client, "CHECKPOINT; INSERT INTO small SELECT n, 'y' FROM generate_series(1, 100000) n");
    let mut backup = cluster.client("postgres").unwrap();
    // This thread ends with the server.
    thread::spawn(move || backup.batch_execute("SELECT pg_backup_start('slow', false)"));
    thread::sleep(Duration::from_secs(2));
    // The checkpoint's first record reaches the files with the next commit.
    execute(&mut client, "INSERT INTO small VALUES (0, 'z')");
    thread::sleep(Duration::from_secs(1));
    let data = cluster.data_dir();
    let run = walden(&["watch", text(&data), "--once", "--interval", "1s", "--format", "json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let line: Value = serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap();
    let checkpoint = &line["checkpoint"];
    let is = ["running", "may_be_running"].map(|member| checkpoint[member].as_bool());
    assert_eq!(is, [Some(true), Some(false)], "{checkpoint:#}");
    let finished = client.query_one("SELECT redo_lsn::text FROM pg_control_checkpoint()", &[]).unwrap();
    assert_ne!(checkpoint["redo"].as_str(), Some(finished.get::<_, &str>(0)), "{checkpoint:#}");
    assert!(checkpoint["seconds_since"].as_f64().unwrap() < 60.0, "{checkpoint:#}");
    Ok(())
}

/// Covers every kind of end, and the restart. New WAL shows that the server runs, whatever process
/// `postmaster.pid` names.
fn a_server_that_does_not_run_has_no_next_checkpoint() -> Outcome {
    let cluster = small_segments(15)?;
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir();
    let pid_file = data.join("postmaster.pid");
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let own = fs::read_to_string(&pid_file).unwrap();
    let (_, rest) = own.split_once('\n').unwrap();
    // As for a server in a container. The server checks the file once a minute, and shuts down if it is not
    // its own.
    fs::write(&pid_file, format!("{}\n{rest}", gone.id())).unwrap();
    let watching = Watching::start(text(&data), folder.path(), &["--interval", "1s", "--format", "json"]);
    let wait_for = |state: &str| {
        let began = Instant::now();
        let line = loop {
            let last = watching.lines().pop();
            // `pg_control` may have been read after the WAL.
            let is_it = |line: &Value| line["server_state"] == state && !line["checkpoint"].is_null();
            if let Some(line) = last.filter(is_it) {
                break line;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "not {state}: {}", watching.log());
            thread::sleep(Duration::from_millis(50));
        };
        let checkpoint = &line["checkpoint"];
        let is_stopped = state != "running";
        assert_eq!(checkpoint["server_stopped"], is_stopped, "{state}: {checkpoint:#}");
        assert_eq!(checkpoint["bytes_left"].is_null(), is_stopped, "{state}: {checkpoint:#}");
        for member in ["seconds_left", "seconds_left_by_time", "seconds_left_by_volume", "cause"] {
            assert!(!is_stopped || checkpoint[member].is_null(), "{state}: {checkpoint:#}");
        }
    };
    wait_for("process_missing");
    let mut client = cluster.client("postgres").unwrap();
    execute(&mut client, "INSERT INTO small VALUES (0, 'z')");
    wait_for("running");
    drop(client);
    fs::write(&pid_file, own).unwrap();
    cluster.crash().unwrap();
    wait_for("crashed");
    let run = walden(&["watch", text(&data), "--once", "--interval", "1s"]);
    assert!(run.stdout.contains("; the server is not running; it was not shut down cleanly\n"), "{run:?}");
    cluster.start().unwrap();
    wait_for("running");
    cluster.stop(StopMode::Fast).unwrap();
    wait_for("shut_down");
    cluster.start().unwrap();
    wait_for("running");
    let pid = rustix::process::Pid::from_raw(cluster.pid().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("process_missing");
    let note = format!("note: the process {} of postmaster.pid is not here: ", pid.as_raw_nonzero());
    let began = Instant::now();
    while !watching.log().contains(&note) {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", watching.log());
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Names come from the server, and follow a rewrite.
fn lines_add_up_and_have_names() -> Outcome {
    let cluster = small_segments(15)?;
    let folder = tempfile::tempdir().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("SELECT pg_create_physical_replication_slot('s', true)").unwrap();
    let dsn = cluster.dsn("postgres");
    let options = ["--interval", "1s", "--format", "json", "--names", &dsn, "--top", "1000"];
    let options = [&options[..], &["--by", "schema,partition,tablespace", "--group", "_(t[0-9])$"]].concat();
    client
        .batch_execute(
            "CREATE SCHEMA events; CREATE TABLE events.log (id int, note text) PARTITION BY RANGE (id);
             CREATE TABLE events.one PARTITION OF events.log FOR VALUES FROM (0) TO (1000);
             CREATE TABLE events.two PARTITION OF events.log FOR VALUES FROM (1000) TO (2000);
             CREATE TABLE part_t1 (id int PRIMARY KEY); CREATE TABLE part_t2 (id int)",
        )
        .unwrap();
    let watching = Watching::start(text(&cluster.data_dir()), folder.path(), &options);
    while watching.lines().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    client
        .batch_execute("INSERT INTO small SELECT n, repeat('a', 100) FROM generate_series(1, 30000) n")
        .unwrap();
    execute(
        &mut client,
        "VACUUM FULL small; INSERT INTO small SELECT n, 'b' FROM generate_series(1, 30000) n;
         INSERT INTO events.log SELECT n, repeat('c', 50) FROM generate_series(1, 1999) n;
         INSERT INTO part_t1 SELECT generate_series(1, 2000); INSERT INTO part_t2 SELECT generate_series(1, 1000)",
    );
    thread::sleep(Duration::from_secs(3));
    let lines = watching.lines();
    let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
    for line in &lines {
        for group in line["relations"].as_array().unwrap() {
            let name = group["label"]["text"].as_str().unwrap().to_owned();
            *by_name.entry(name).or_default() += group["bytes"].as_u64().unwrap();
        }
    }
    assert!(by_name["small"] > 5_000_000, "{by_name:?}");
    let unnamed: u64 = by_name.iter().filter(|(name, _)| name.contains('/')).map(|(_, bytes)| bytes).sum();
    assert!(unnamed < 100_000, "{by_name:?}");
    let mut groups: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for line in &lines {
        for list in line["groups"].as_array().unwrap() {
            let rows = || list["rows"].as_array().unwrap().iter();
            let all: u64 = rows().map(|row| row["bytes"].as_u64().unwrap()).sum();
            assert_eq!(all, line["bytes"].as_u64().unwrap(), "{}", list["by"]);
            for row in rows() {
                let of = (list["by"].as_str().unwrap(), row["label"]["text"].as_str().unwrap());
                *groups.entry(of).or_default() += row["bytes"].as_u64().unwrap();
            }
        }
    }
    let mut causes: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for line in &lines {
        let rows = || line["causes"].as_array().unwrap().iter();
        let all: u64 = rows().map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(all, line["bytes"].as_u64().unwrap(), "{line:#}");
        for row in rows() {
            let text = |name: &str| row[name].as_str().unwrap_or_default();
            let cause = (text("relation"), text("activity"), text("mechanism"));
            *causes.entry(cause).or_default() += row["bytes"].as_u64().unwrap();
        }
    }
    assert!(causes[&("small", "insert", "row_data")] > 2_000_000, "{causes:#?}");
    assert!(causes[&("part_t1", "insert", "index_entry")] > 100_000, "{causes:#?}");
    assert!(
        causes.keys().any(|(relation, activity, _)| (*relation, *activity) == ("small", "rewrite")),
        "{causes:#?}"
    );
    let both = by_name["events.one"] + by_name["events.two"];
    assert_eq!(groups[&("partition", "events.log")], both, "{groups:#?}");
    assert!(groups[&("schema", "events")] >= both && both > 100_000, "{groups:#?}");
    assert!(groups[&("schema", "public")] > by_name["small"], "{groups:#?}");
    assert!(groups[&("tablespace", "pg_default")] > by_name["small"], "{groups:#?}");
    assert_eq!(groups[&("group", "t1")], by_name["part_t1"] + by_name["part_t1_pkey"], "{groups:#?}");
    assert_eq!(groups[&("group", "t2")], by_name["part_t2"], "{groups:#?}");
    let last = lines.last().unwrap();
    let slot = &last["slots"][0];
    assert_eq!((slot["name"].as_str(), slot["active"].as_bool()), (Some("s"), Some(false)), "{last:#}");
    assert!(slot["lag_bytes"].as_u64().unwrap() > 5_000_000, "{slot}");
    let checkpoint = &last["checkpoint"];
    assert_eq!(checkpoint["max_wal_size"], 24 << 20);
    assert_eq!(checkpoint["checkpoint_timeout_seconds"], 30);
    let left = checkpoint["bytes_left"].as_u64().unwrap();
    assert!(left <= 13 << 20, "{checkpoint}");
    Ok(())
}

/// Returns the samples of a page: name with labels, and value. Checks the same as `promtool check metrics`.
fn parse_metrics(page: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut helped, mut typed) = (BTreeSet::new(), BTreeMap::new());
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(helped.insert(name.to_owned()) && !text.is_empty(), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert!(typed.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(typed.contains_key(name) && helped.contains(name), "{line}");
            if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                check_labels(labels.strip_prefix('{').unwrap().strip_suffix('}').unwrap());
            }
            let value: f64 = value.parse().unwrap();
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    samples
}

/// Checks labels of the form `name="value",...` with `\\`, `\"` and `\n` escaped.
fn check_labels(labels: &str) {
    let mut rest = labels;
    let mut names = BTreeSet::new();
    loop {
        let (name, value) = rest.split_once("=\"").unwrap();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_') && names.insert(name), "{labels}");
        let mut characters = value.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (_, '\\') => assert!(matches!(characters.next().unwrap().1, '\\' | '"' | 'n'), "{labels}"),
                (at, '"') => break at,
                (_, character) => assert_ne!(character, '\n'),
            }
        };
        match value[end + 1..].strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                assert_eq!(&value[end + 1..], "");
                return;
            }
        }
    }
}

fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// Also checks that the dashboard queries only existing metrics.
fn metrics_are_what_prometheus_reads() -> Outcome {
    let cluster = small_segments(15)?;
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE \"odd \"\"name\\\n\" (id int); SELECT pg_create_physical_replication_slot('s', true)").unwrap();
    let dsn = cluster.dsn("postgres");
    let mut child = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args([
            "watch",
            text(&cluster.data_dir()),
            "--listen",
            "127.0.0.1:0",
            "--relations",
            "5",
            "--names",
            &dsn,
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("serving http://").unwrap().strip_suffix("/metrics").unwrap();
    client.batch_execute("INSERT INTO \"odd \"\"name\\\n\" SELECT generate_series(1, 100000)").unwrap();
    load(&cluster, 0);
    thread::sleep(Duration::from_secs(2));
    let samples = parse_metrics(&get(address));
    let sum_of = |name: &str| -> f64 {
        samples
            .iter()
            .filter(|(series, _)| series.starts_with(&format!("{name}{{")))
            .map(|(_, value)| value)
            .sum()
    };
    let count_of = |name: &str| samples.keys().filter(|series| series.starts_with(name)).count();
    let bytes = sum_of("walden_watch_wal_bytes_total");
    assert!(bytes > 20e6, "{samples:#?}");
    assert_eq!(sum_of("walden_watch_kind_bytes_total"), bytes);
    assert_eq!(sum_of("walden_watch_database_bytes_total"), bytes);
    assert_eq!(sum_of("walden_watch_relation_bytes_total"), bytes);
    assert_eq!(samples["walden_watch_relation_ended_bytes_total"], 0.0);
    let relations = count_of("walden_watch_relation_bytes_total");
    assert!(relations <= 10 * 5 + 2, "{samples:#?}");
    assert!(samples.keys().any(|series| series.contains("odd ")), "{samples:#?}");
    assert_eq!(samples["walden_watch_up"], 1.0);
    assert!(samples[r#"walden_watch_slot_lag_bytes{slot="s",type="physical"}"#] > 20e6);
    assert_eq!(samples["walden_watch_max_wal_size_bytes"], f64::from(24 << 20));
    assert!(sum_of("walden_watch_checkpoints_total") > 0.0);
    // Counters must not decrease.
    load(&cluster, 10_000);
    thread::sleep(Duration::from_secs(2));
    let later = parse_metrics(&get(address));
    for (series, value) in samples.iter().filter(|(series, _)| series.contains("_total")) {
        // A relation may have been named meanwhile.
        if let Some(later) = later.get(series) {
            assert!(later >= value, "{series}: {value}, then {later}");
        }
    }
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana/walden-watch.json");
    let dashboard: Value = serde_json::from_slice(&fs::read(dashboard).unwrap()).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            asked.extend(words.filter(|word| word.starts_with("walden_")).map(str::to_owned));
        }
    }
    assert!(asked.len() > 10, "{asked:?}");
    for metric in asked {
        assert!(
            later.keys().any(|series| series.split('{').next() == Some(&metric)),
            "{metric} is not served"
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
    Ok(())
}

/// A process that serves metrics, killed on drop.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(arguments: &[&str], log: &Path) -> Serving {
        let child = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(["watch", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stderr(fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        let mut started = Serving { child, address: String::new() };
        let began = Instant::now();
        loop {
            let told = fs::read_to_string(log).unwrap();
            let serving = told.lines().find_map(|line| line.strip_prefix("serving http://"));
            if let Some(address) = serving.and_then(|line| line.strip_suffix("/metrics")) {
                address.clone_into(&mut started.address);
                return started;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{told}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the samples are as expected.
    fn wait_until(&self, what: &str, is_so: impl Fn(&BTreeMap<String, f64>) -> bool) {
        let began = Instant::now();
        loop {
            let samples = parse_metrics(&get(&self.address));
            if is_so(&samples) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(90), "{what}: {samples:#?}");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// While the server cannot be queried, its last state is not reported as the present one.
fn a_lost_connection_is_reported_and_renewed(major: u32) -> Outcome {
    let cluster = small_segments(major)?;
    let folder = tempfile::tempdir().unwrap();
    let (dsn, data) = (cluster.dsn("postgres"), cluster.data_dir());
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("SELECT pg_create_physical_replication_slot('before', true)").unwrap();
    let logs = [folder.path().join("dsn.log"), folder.path().join("files.log")];
    let by_dsn = Serving::start(&[&dsn], &logs[0]);
    let by_files = Serving::start(&[text(&data), "--names", &dsn], &logs[1]);
    let watching = Watching::start(&dsn, folder.path(), &["--interval", "1s", "--format", "json"]);
    let lag = |slot: &str| format!("walden_watch_slot_lag_bytes{{slot=\"{slot}\",type=\"physical\"}}");
    let is_queried =
        |samples: &BTreeMap<String, f64>| samples.get("walden_watch_server_queried") == Some(&1.0);
    let has = |samples: &BTreeMap<String, f64>, slot: &str| samples.contains_key(&lag(slot));
    for serving in [&by_dsn, &by_files] {
        serving.wait_until("queried", |samples| is_queried(samples) && has(samples, "before"));
    }
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    by_dsn.wait_until("a stopped server", |samples| {
        let is_running = samples.get("walden_watch_server_running") == Some(&1.0);
        !is_queried(samples) && !is_running && !has(samples, "before") && samples["walden_watch_up"] == 0.0
    });
    by_files.wait_until("a stopped server", |samples| {
        !is_queried(samples) && samples["walden_watch_server_running"] == 0.0
    });
    let wait_for_problem = |is_expected: bool| {
        let began = Instant::now();
        while watching.lines().last().is_none_or(|line| line["server_problem"].is_null() == is_expected) {
            assert!(began.elapsed() < Duration::from_secs(60), "{:#?}", watching.lines().last());
            thread::sleep(Duration::from_millis(200));
        }
    };
    wait_for_problem(true);
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    execute(
        &mut client,
        "SELECT pg_drop_replication_slot('before'); SELECT pg_create_physical_replication_slot('after', true);
         CREATE TABLE made_later AS SELECT generate_series(1, 100000)",
    );
    let is_current = |samples: &BTreeMap<String, f64>| {
        is_queried(samples)
            && samples["walden_watch_server_running"] == 1.0
            && !has(samples, "before")
            && has(samples, "after")
            && samples.keys().any(|series| series.contains("relation=\"made_later\""))
    };
    by_dsn.wait_until("a started server", is_current);
    by_files.wait_until("a started server", is_current);
    // As an administrator does.
    execute(
        &mut client,
        "SELECT pg_drop_replication_slot('after'); SELECT pg_create_physical_replication_slot('last', true);
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
    );
    for serving in [&by_dsn, &by_files] {
        serving.wait_until("a new session", |samples| {
            is_queried(samples) && !has(samples, "after") && has(samples, "last")
        });
    }
    for log in &logs {
        let told = fs::read_to_string(log).unwrap();
        assert!(!told.contains("panicked"), "{told}");
        assert!(
            told.contains("cannot query the server") && told.contains("the server answers again"),
            "{told}"
        );
    }
    wait_for_problem(false);
    Ok(())
}

/// A separate terminal, in tmux.
struct Terminal {
    tmux: PathBuf,
    socket: PathBuf,
}

impl Terminal {
    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.tmux).arg("-S").arg(&self.socket).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys", "-t", "w"], keys].concat());
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-t", "w"])
    }

    fn wait_for(&self, what: &str) -> String {
        self.wait_until(|screen| screen.contains(what), &format!("no {what}"))
    }

    /// Presses Esc, and waits until the screen has changed. If another key followed immediately, both would
    /// be read as one key with Alt.
    fn escape(&self, from: &str) {
        self.keys(&["Escape"]);
        self.wait_until(|screen| !screen.contains(from), &format!("still {from}"));
    }

    fn wait_until(&self, is_so: impl Fn(&str) -> bool, otherwise: &str) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{otherwise} in\n{screen}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new(&self.tmux).arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn the_view_works_in_a_terminal() -> Outcome {
    let tmux = Need::Tmux.find()?;
    let cluster = small_segments(15)?;
    let folder = tempfile::tempdir().unwrap();
    let terminal = Terminal { tmux, socket: folder.path().join("tmux") };
    let names = folder.path().join("names.json");
    let saved = walden(&["explain", "--names", &cluster.dsn("postgres"), "--save-names", text(&names)]);
    assert_eq!(saved.code, 0, "{saved:?}");
    let command = format!(
        "cd '{}' && '{}' watch '{}' --names '{}' --by schema; echo ended with $?; sleep 100",
        folder.path().display(),
        env!("CARGO_BIN_EXE_walden"),
        cluster.data_dir().display(),
        names.display()
    );
    terminal.run(&["-f", "/dev/null", "new-session", "-d", "-s", "w", "-x", "110", "-y", "30", &command]);
    terminal.wait_for("Relations");
    load(&cluster, 0);
    let screen = terminal.wait_for("big_pkey");
    for expected in ["PostgreSQL 15", "now", "1 min", "5 min", "Checkpoint", "max_wal_size"] {
        assert!(screen.contains(expected), "no {expected} in\n{screen}");
    }
    // Opens the first row's details, and returns.
    terminal.keys(&["Enter"]);
    terminal.wait_for("Esc back");
    terminal.escape("Esc back");
    terminal.keys(&["Tab"]);
    terminal.wait_for("Tables");
    terminal.keys(&["Tab"]);
    terminal.wait_for("Kinds of records");
    terminal.keys(&["/", "H", "e", "a", "p", "Enter"]);
    let screen = terminal.wait_for("filter: Heap");
    assert!(screen.contains("Heap INSERT") && !screen.contains("Btree"), "{screen}");
    terminal.escape("filter: Heap");
    terminal.keys(&["6"]);
    terminal.wait_for("Schemas");
    // Causes, in a window of the usual size.
    terminal.run(&["resize-window", "-t", "w", "-x", "80", "-y", "24"]);
    terminal.keys(&["5"]);
    let screen = terminal.wait_for("big: INSERT row by row: index entries");
    assert!(screen.contains("share") && !screen.contains("5 min  ") && !screen.contains("why"), "{screen}");
    terminal.run(&["resize-window", "-t", "w", "-x", "110", "-y", "30"]);
    terminal.keys(&["1"]);
    terminal.keys(&["p"]);
    terminal.wait_for("paused");
    terminal.keys(&["p"]);
    terminal.keys(&["?"]);
    terminal.wait_for("any key closes");
    terminal.keys(&["x"]);
    terminal.keys(&["w"]);
    terminal.wait_for("saved");
    let file = fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("walden-watch-"));
    let document: Value = serde_json::from_slice(&fs::read(file.unwrap()).unwrap()).unwrap();
    assert_eq!(document["format"], "walden explain");
    assert_eq!(sum(&document["buckets"]), document["file_bytes"].as_u64().unwrap());
    // A narrow window has fewer columns, not truncated ones.
    terminal.run(&["resize-window", "-t", "w", "-x", "60", "-y", "10"]);
    let screen = terminal.wait_for("q quit  ? help  Tab list  s sort  / filter  p pause");
    assert!(screen.contains("share") && screen.contains("1 min") && !screen.contains("why"), "{screen}");
    terminal.keys(&["?"]);
    terminal.wait_for("Down: more");
    for _ in 0..20 {
        terminal.keys(&["Down"]);
    }
    terminal.wait_for("consistency.");
    terminal.keys(&["x"]);
    terminal.run(&["resize-window", "-t", "w", "-x", "40", "-y", "8"]);
    terminal.wait_for("WAL");
    terminal.keys(&["q"]);
    terminal.wait_for("ended with 0");
    Ok(())
}

fn sources_without_wal_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = walden(&["watch", "--once", text(folder.path())]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("found no segment with valid WAL"), "{run:?}");
    let run = walden(&["watch", "--once", text(&folder.path().join("missing"))]);
    assert!(run.code == 3 && run.stderr.contains("cannot read"), "{run:?}");
    let missing = format!("host={} port=6449 user=nobody", folder.path().display());
    let run = walden(&["watch", "--once", &missing]);
    assert!(run.code != 0 && run.stderr.contains("is the server running"), "{run:?}");
    assert!(!run.stderr.contains("recycled"), "{run:?}");
    let run = walden(&["watch", "--set", "max_wal_size=much", text(folder.path())]);
    assert!(run.code == 2 && run.stderr.contains("max_wal_size"), "{run:?}");
    for grouping in ["--by=schema", "--group=t"] {
        let run = walden(&["watch", "--once", grouping, text(folder.path())]);
        assert!(run.code == 2 && run.stderr.contains("--names"), "{run:?}");
    }
}

/// The server accepts the connection, but never responds.
fn an_interrupt_ends_a_watch_that_still_connects() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut child = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["watch", "--once", &format!("host=127.0.0.1 port={port} user=nobody sslmode=disable")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _connection = listener.accept().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it still connects");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The server does not run when the watch starts, and reloads its settings later.
fn settings_and_names_follow_the_server(major: u32) -> Outcome {
    let cluster = small_segments(major)?;
    cluster.stop(StopMode::Fast).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dsn = cluster.dsn("postgres");
    let options = ["--interval", "1s", "--format", "json", "--names", &dsn];
    let watching = Watching::start(text(&cluster.data_dir()), folder.path(), &options);
    let wait_for = |what: &str, is: &dyn Fn(&Value) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !watching.lines().last().is_some_and(is) {
            assert!(Instant::now() < deadline, "{what}: {:?}, {}", watching.lines().last(), watching.log());
            thread::sleep(Duration::from_millis(100));
        }
    };
    wait_for("start", &|_| true);
    assert!(watching.log().contains("warning: no names: "), "{}", watching.log());
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let timeout =
        |seconds: u64| move |line: &Value| line["checkpoint"]["checkpoint_timeout_seconds"] == seconds;
    wait_for("the server's settings", &timeout(30));
    // Only the server has this setting.
    execute(&mut client, "ALTER SYSTEM SET checkpoint_timeout = '1h'; SELECT pg_reload_conf()");
    wait_for("a reload", &timeout(3600));
    wait_for("names", &|line| {
        client_insert(&cluster);
        line["relations"].as_array().unwrap().iter().any(|group| group["label"]["text"] == "small")
    });
    Ok(())
}

fn client_insert(cluster: &Cluster) {
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("INSERT INTO small SELECT n, 'y' FROM generate_series(1, 1000) n").unwrap();
}
