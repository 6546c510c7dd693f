//! `archive_library = 'walden_archive'` in servers of version 15: the module is built against their headers,
//! and `walden archive serve` is killed, stopped and restarted while they run.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postgres::Client;
use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode};
use walden_server::account;
use walden_testing::{Missing, Outcome, server_headers};

use crate::archive::{content, json, program_for, recovered, text, wait_until_archived, work};
use crate::archive_serve::{kill, wait_for};
use crate::material::{make_archive, walden};

walden_testing::tests! {
    a_server_archives_by_the_library_and_recovers,
    nothing_is_lost_whatever_becomes_of_serve,
    a_server_shuts_down_while_serve_hangs,
    refusals_are_in_the_servers_log,
}

/// A server with the module, and the process that archives for it.
struct Pair {
    serve: Option<Child>,
    program: PathBuf,
    repo: PathBuf,
    cluster: Cluster,
}

/// Builds the module as users do.
fn build(pg_config: &Path, folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archive_library");
    for name in ["Makefile", "walden_archive.c"] {
        fs::copy(source.join(name), folder.join(name)).unwrap();
    }
    let made = Command::new("make")
        .args(["-C", text(folder), "--silent", "COPT=-Werror"])
        .arg(format!("PG_CONFIG={}", pg_config.display()))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Pair {
    fn start() -> Result<Pair, Missing> {
        let (installation, pg_config) = server_headers()?;
        Ok(Pair::start_with(installation, &pg_config))
    }

    fn start_with(installation: Installation, pg_config: &Path) -> Pair {
        let cluster = ClusterBuilder::new(installation).wal_segsize_mb(1).start().unwrap();
        let folder = cluster.make_folder("library").unwrap();
        build(pg_config, &folder);
        let (program, repo) = (program_for(&cluster), cluster.make_folder("archives").unwrap().join("repo"));
        make_archive(&repo);
        let socket = cluster.make_folder("serve").unwrap().join("socket");
        cluster
            .configure(&[
                ("archive_mode", "on"),
                ("archive_library", text(&folder.join("walden_archive"))),
                ("walden.socket", text(&socket)),
                ("walden.repo", text(&repo)),
            ])
            .unwrap();
        cluster.restart(StopMode::Fast).unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
        Pair { serve: None, program, repo, cluster }
    }

    fn start_serve(&mut self) {
        let folder = self.cluster.dir().join("serve");
        let log = fs::File::options().create(true).append(true).open(folder.with_extension("log")).unwrap();
        let mut command = account::command(&self.program, self.cluster.dir()).unwrap();
        command
            .args(["archive", "serve", "--repo", text(&self.repo), "--level", "1"])
            .args(["--data", text(&self.cluster.data_dir()), "--socket", text(&folder.join("socket"))])
            .stderr(Stdio::from(log));
        self.serve = Some(command.spawn().unwrap());
    }

    fn signal_serve(&self, signal: &str) {
        kill(signal, self.serve.as_ref().unwrap());
    }

    fn kill_serve(&mut self) {
        let mut serve = self.serve.take().unwrap();
        kill("-KILL", &serve);
        serve.wait().unwrap();
    }

    fn client(&self) -> Client {
        self.cluster.client("postgres").unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.cluster.log_path()).unwrap()
    }

    fn marked(&self, mark: &str) -> BTreeSet<String> {
        let marks = fs::read_dir(self.cluster.data_dir().join("pg_wal/archive_status")).unwrap();
        let names = marks.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| Some(name.strip_suffix(mark)?.to_owned())).collect()
    }

    /// Waits until all WAL is archived and marked as done.
    fn wait_until_all_is_done(&self) {
        let mut client = self.client();
        let mut switched = None;
        wait_for("archiving", || {
            // After three failures the archiver sleeps for a minute, unless another segment is ready.
            if switched.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(3)) {
                // Executed separately: in one transaction, the commit would follow the switch.
                for statement in ["CHECKPOINT", "SELECT txid_current()", "SELECT pg_switch_wal()"] {
                    client.batch_execute(statement).unwrap();
                }
                switched = Some(Instant::now());
            }
            let is_archived =
                "SELECT last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1) FROM pg_stat_archiver";
            let is_archived: Option<bool> = client.query_one(is_archived, &[]).unwrap().get(0);
            is_archived == Some(true) && self.marked(".ready").is_empty()
        });
    }

    /// Compares the server's WAL with the archive's content.
    fn expect_all(&self, first: &str) {
        let listing = json(&["archive", "list", "--format", "json", "--repo", text(&self.repo)]);
        let timeline = &listing["timelines"][0];
        assert_eq!(timeline["gaps"], serde_json::json!([]), "{listing:#}");
        assert_eq!(timeline["first_segment"], first, "{listing:#}");
        let last = self.marked(".done").into_iter().rfind(|name| name.len() == 24).unwrap();
        assert_eq!(timeline["last_segment"], last, "{listing:#}");
        let verified = walden(&["archive", "verify", "--repo", text(&self.repo)]);
        assert_eq!(verified.code, 0, "{verified:?}");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Must not panic here, as a second panic would end all tests.
            eprintln!("{}", fs::read_to_string(self.cluster.log_path()).unwrap_or_default());
        }
        if let Some(serve) = &mut self.serve {
            let _ = serve.kill();
            let _ = serve.wait();
        }
    }
}

fn a_server_archives_by_the_library_and_recovers() -> Outcome {
    let mut pair = Pair::start()?;
    pair.start_serve();
    wait_for("start", || pair.cluster.dir().join("serve/socket").exists());
    pair.cluster.stop(StopMode::Fast).unwrap();
    let backup = pair.cluster.dir().join("backup");
    pair.cluster.copy_data(&backup).unwrap();
    pair.cluster.start().unwrap();
    let mut client = pair.client();
    for round in 0..3 {
        work(&mut client, round);
    }
    let expected = content(&mut client);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    let check = |more: &[&str]| {
        let dsn = pair.cluster.dsn("postgres");
        walden(&[&["archive", "check", "--dsn", &dsn, "--repo", text(&pair.repo)], more].concat())
    };
    let checked = check(&["--switch"]);
    assert!(checked.code == 0 && checked.stdout.contains("a process listens at"), "{checked:?}");
    pair.wait_until_all_is_done();
    assert!(!pair.log().contains("could not archive"), "{}", pair.log());
    pair.serve.as_mut().map(|serve| serve.kill().and_then(|()| serve.wait())).unwrap().unwrap();
    let checked = check(&[]);
    assert!(checked.code == 1 && checked.stdout.contains("no process listens at"), "{checked:?}");
    pair.cluster.crash().unwrap();
    pair.expect_all(&first_segment(&pair));

    let get = format!("{} archive get --repo {} %f \"%p\"", pair.program.display(), pair.repo.display());
    let settings = [("archive_mode", "off"), ("restore_command", get.as_str())];
    let restored = recovered(pair.cluster.installation(), &backup, &settings);
    assert_eq!(content(&mut restored.client("postgres").unwrap()), expected);
    Ok(())
}

/// Returns the first segment that was ready: archiving started with the server's second start.
fn first_segment(pair: &Pair) -> String {
    let listing = json(&["archive", "list", "--format", "json", "--repo", text(&pair.repo)]);
    let first = listing["timelines"][0]["first_segment"].as_str().unwrap().to_owned();
    // No earlier segment may have been ready.
    assert!(pair.marked(".ready").iter().all(|name| *name >= first));
    first
}

/// The process is missing at first, killed by SIGKILL at various times, stopped (SIGSTOP) and continued,
/// while the server works.
fn nothing_is_lost_whatever_becomes_of_serve() -> Outcome {
    let mut pair = Pair::start()?;
    let mut client = pair.client();
    work(&mut client, 0);
    wait_for("a failure", || pair.log().contains("Could not connect to walden archive serve"));
    let log = pair.log();
    assert!(log.contains("HINT:  Start walden archive serve"), "{log}");
    let archiver = |client: &mut Client| -> i32 {
        client
            .query_one("SELECT pid FROM pg_stat_activity WHERE backend_type = 'archiver'", &[])
            .unwrap()
            .get(0)
    };
    let first = pair.marked(".ready").into_iter().chain(pair.marked(".done")).min().unwrap();
    let at_start = archiver(&mut client);
    for round in 1..8_u64 {
        pair.start_serve();
        work(&mut client, round as i32);
        std::thread::sleep(Duration::from_millis(round * 97 % 400));
        pair.kill_serve();
    }
    // A hung process is abandoned after ten seconds of silence, and then asked again.
    pair.start_serve();
    pair.wait_until_all_is_done();
    pair.signal_serve("-STOP");
    work(&mut client, 8);
    let began = Instant::now();
    wait_for("giving up", || pair.log().contains("has not shown any sign of life"));
    assert!(began.elapsed() > Duration::from_secs(7), "{:?}", began.elapsed());
    client.batch_execute("CHECKPOINT").unwrap();
    pair.signal_serve("-CONT");
    pair.wait_until_all_is_done();
    pair.expect_all(&first);
    // The server was not disturbed: not even its archiver restarted.
    assert_eq!(archiver(&mut client), at_start);
    let log = pair.log();
    assert!(!log.contains("PANIC") && !log.contains("terminated by signal"), "{log}");
    Ok(())
}

fn a_server_shuts_down_while_serve_hangs() -> Outcome {
    let mut pair = Pair::start()?;
    pair.start_serve();
    let mut client = pair.client();
    work(&mut client, 0);
    pair.wait_until_all_is_done();
    let first = first_segment(&pair);
    pair.signal_serve("-STOP");
    work(&mut client, 1);
    drop(client);
    let began = Instant::now();
    pair.cluster.stop(StopMode::Fast).unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}\n{}", began.elapsed(), pair.log());
    assert!(!pair.marked(".ready").is_empty());
    // A process that failed before and is now missing ends a shutdown faster.
    pair.cluster.start().unwrap();
    pair.kill_serve();
    let began = Instant::now();
    pair.cluster.stop(StopMode::Fast).unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}\n{}", began.elapsed(), pair.log());
    pair.cluster.start().unwrap();
    pair.start_serve();
    pair.wait_until_all_is_done();
    pair.expect_all(&first);
    Ok(())
}

fn refusals_are_in_the_servers_log() -> Outcome {
    let mut pair = Pair::start()?;
    let mut client = pair.client();
    work(&mut client, 0);
    wait_for("a failure", || pair.log().contains("Could not connect"));
    // Flips a bit of a record on the disk.
    let damaged = pair.marked(".ready").into_iter().nth(1).unwrap();
    let path = pair.cluster.data_dir().join("pg_wal").join(&damaged);
    let segment = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    segment.read_exact_at(&mut byte, 700_000).unwrap();
    segment.write_all_at(&[byte[0] ^ 4], 700_000).unwrap();
    pair.start_serve();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_for("a refusal", || pair.log().contains("damaged at "));
    let log = pair.log();
    let line = log.lines().find(|line| line.contains("damaged at ")).unwrap();
    assert!(log.contains(&format!("ERROR:  cannot archive {damaged}")), "{log}");
    assert!(line.contains("DETAIL:") && line.contains("/") && line.contains("offset"), "{line}");
    assert!(log.contains("HINT:  PostgreSQL keeps the file and offers it again; check the disk"), "{log}");
    assert!(pair.marked(".ready").contains(&damaged));
    segment.write_all_at(&byte, 700_000).unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    pair.wait_until_all_is_done();
    pair.expect_all(&first_segment(&pair));

    // Wrong settings, one at a time. The server reads them while it runs.
    for (name, value, expected) in [
        (
            "walden.repo",
            "s3://elsewhere/archive",
            "walden.repo is s3://elsewhere/archive, and walden archive serve archives into",
        ),
        ("walden.socket", "", "\"walden.socket\" is not set"),
        ("walden.socket", "serve/socket", "\"walden.socket\" is \"serve/socket\"; expected an absolute path"),
    ] {
        pair.cluster.configure(&[(name, value)]).unwrap();
        pair.cluster.reload();
        wait_for(expected, || {
            client
                .batch_execute("INSERT INTO t SELECT max(id) + 1, '' FROM t; SELECT pg_switch_wal()")
                .unwrap();
            std::thread::sleep(Duration::from_millis(200));
            pair.log().contains(expected)
        });
    }
    // PostgreSQL itself checks the other settings when it loads the module.
    pair.cluster.configure(&[("walden.timeout", "0"), ("walden.unknown", "1")]).unwrap();
    drop(client);
    pair.cluster.restart(StopMode::Fast).unwrap();
    for expected in ["0 s is outside the valid range for parameter \"walden.timeout\"", "\"walden.unknown\""]
    {
        wait_for(expected, || pair.log().contains(expected));
    }
    Ok(())
}
