//! The process that fetches ahead of recovery. It outlives `restore_command`, and its exit must not disturb
//! process 1, its new parent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use walden_archive::Archive;
use walden_archive::prefetch::Spool;
use walden_archive::store::Folder;
use walden_format::lsn::SegmentName;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_server::account;
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{back_up_and_archive, program_for, recovered, text, wait_until_archived, work};
use crate::archive_faults::strace;
use crate::archive_interrupted::wait_for_handler;
use crate::material::{Run, golden, make_archive, walden, write};

walden_testing::tests! {
    fetching_ahead_ends_with_0_or_1_whatever_goes_wrong,
    fetching_ahead_ends_with_0_or_1_at_any_signal,
    fetching_ahead_ends_with_its_server,
    fetching_ahead_ends_with_1_where_it_cannot_start_threads,
    a_postmaster_that_is_process_1_does_not_take_fetching_ahead_for_a_backend,
    nothing_is_fetched_ahead_for_pg_rewind on [18, 19],
}

const FIRST: &str = "00000001000000000000000A";
const SECOND: &str = "00000001000000000000000B";

/// An archive of two segments, and a folder for prefetched segments.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { root: tempfile::tempdir().unwrap() };
        let wal = place.path("wal");
        for name in [FIRST, SECOND] {
            write(&wal, name, &golden("18.6")[name]);
        }
        let imported = walden(&["archive", "import", "--repo", text(&place.path("repo")), text(&wal)]);
        assert_eq!(imported.code, 0, "{imported:?}");
        fs::create_dir(place.path("pg_wal")).unwrap();
        // The PID file of a running server that is not in recovery.
        write(place.root.path(), "postmaster.pid", b"");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the prefetch command as `get` runs it after a request for the first segment.
    fn prefetch(&self, idle: &str) -> Command {
        let repo = self.path("repo");
        let archive = Archive::new(Box::new(Folder::new(&repo)));
        let spool = Spool::new(&self.path("pg_wal"), &archive);
        spool.note(SegmentName::parse(FIRST).unwrap()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(["archive", "prefetch", "--idle", idle, "--repo", text(&repo)]);
        command.arg("--log").arg(self.path("log")).arg(self.path("pg_wal"));
        command
    }

    fn last_failure(&self) -> Value {
        let log = fs::read_to_string(self.path("log")).unwrap();
        let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&last["command"], &last["outcome"]), (&"prefetch".into(), &"failed".into()), "{last:#}");
        last
    }
}

fn fetching_ahead_ends_with_0_or_1_whatever_goes_wrong() {
    let place = Place::new();
    let good = Run::execute(&mut place.prefetch("1"));
    assert_eq!((good.code, place.path("log").exists()), (0, false), "{good:?}");
    assert_eq!(fs::read_dir(place.path("pg_wal")).unwrap().count(), 0);

    // Wrong usage, and an archive that cannot be opened.
    let (wal, broken) = (place.path("pg_wal"), write(place.root.path(), "broken.toml", b"[archive\n"));
    let wrong: [&[&str]; 6] = [
        &[],
        &["--no-such-option", text(&wal)],
        &["--idle", "soon", text(&wal)],
        &[text(&wal)],
        &["--repo", "ftp://x/y", text(&wal)],
        &["--config", text(&broken), text(&wal)],
    ];
    for arguments in wrong {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(["archive", "prefetch"]).args(arguments).current_dir(place.root.path());
        let run = Run::execute(command.env_remove("WALDEN_REPO").env_remove("WALDEN_CONFIG"));
        assert!(run.code == 1 && !run.stderr.is_empty(), "{arguments:?}: {run:?}");
    }

    // An unwritable spool, a damaged object, a removed archive.
    let (repo, log, file) = (place.path("repo"), place.path("log"), write(place.root.path(), "file", b""));
    let unwritable =
        walden(&["archive", "prefetch", "--repo", text(&repo), "--log", text(&log), text(&file)]);
    assert_eq!(unwritable.code, 1, "{unwritable:?}");
    place.last_failure();
    let object = repo.join(format!("wal/00000001/00000000/{SECOND}.wlz"));
    let good = fs::read(&object).unwrap();
    fs::write(&object, &good[..good.len() / 2]).unwrap();
    let damaged = Run::execute(&mut place.prefetch("20"));
    assert!(damaged.code == 1 && damaged.stderr.contains(SECOND), "{damaged:?}");
    assert!(place.last_failure()["message"].as_str().unwrap().contains(SECOND));
    fs::remove_dir_all(&repo).unwrap();
    let gone = Run::execute(&mut place.prefetch("20"));
    assert_eq!(gone.code, 1, "{gone:?}");
    assert!(place.last_failure()["message"].as_str().unwrap().contains("cannot find an archive"));
}

fn fetching_ahead_ends_with_0_or_1_at_any_signal() {
    let place = Place::new();
    for (signal, status) in [
        (Signal::TERM, 0),
        (Signal::INT, 0),
        (Signal::QUIT, 0),
        (Signal::HUP, 0),
        (Signal::USR1, 0),
        (Signal::USR2, 0),
        (Signal::ALARM, 0),
        // As after a failed allocation and a stack overflow.
        (Signal::ABORT, 1),
        (Signal::BUS, 1),
    ] {
        let mut command = place.prefetch("60");
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_handler(&mut running);
        // Signal handlers are installed one at a time.
        std::thread::sleep(Duration::from_millis(50));
        kill_process(Pid::from_child(&running), signal).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(status), "{signal:?}");
    }
    // The next process uses or removes leftover files.
    let next = Run::execute(&mut place.prefetch("1"));
    assert_eq!(next.code, 0, "{next:?}");
    assert_eq!(fs::read_dir(place.path("pg_wal")).unwrap().count(), 0);
}

/// When the server is killed, prefetching ends without waiting for another request.
fn fetching_ahead_ends_with_its_server() {
    let place = Place::new();
    let mut server = Command::new("sleep").arg("600").spawn().unwrap();
    write(place.root.path(), "postmaster.pid", format!("{}\n/data\n", server.id()).as_bytes());
    write(place.root.path(), "recovery.signal", b"");
    let mut command = place.prefetch("60");
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_handler(&mut running);
    std::thread::sleep(Duration::from_secs(1));
    assert!(running.try_wait().unwrap().is_none(), "the server runs");
    server.kill().unwrap();
    server.wait().unwrap();
    let killed = Instant::now();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
}

/// If a thread cannot be started, the standard library panics.
fn fetching_ahead_ends_with_1_where_it_cannot_start_threads() -> Outcome {
    let (strace, place) = (strace()?, Place::new());
    let prefetch = place.prefetch("20");
    let mut command = Command::new(strace);
    command.args(["-qq", "-o", "/dev/null", "-e", "trace=clone,clone3"]);
    command.args(["-e", "inject=clone,clone3:error=EAGAIN"]).arg(prefetch.get_program());
    let run = Run::execute(command.args(prefetch.get_args()));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(place.last_failure()["message"].as_str().unwrap().contains("panicked"));
    Ok(())
}

/// A server as in a container without an init process. The archive has damage that prefetching reaches, but
/// recovery does not.
fn a_postmaster_that_is_process_1_does_not_take_fetching_ahead_for_a_backend() -> Outcome {
    let installation = postgres(15)?;
    let mut unshare = unshare()?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&primary);
    let (repo, backup) = (primary.make_folder("repo").unwrap(), primary.dir().join("backup"));
    make_archive(&repo);
    primary.client("postgres").unwrap().batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.restart(StopMode::Fast).unwrap();
    primary.stop(StopMode::Fast).unwrap();
    primary.copy_data(&backup).unwrap();
    primary.start().unwrap();
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("SELECT pg_create_restore_point('soon'); SELECT pg_switch_wal()").unwrap();
    work(&mut client, 0);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    primary.stop(StopMode::Fast).unwrap();
    // The last object, at most 16 segments ahead.
    let folder = repo.join("wal/00000001/00000000");
    let mut objects: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    objects.sort();
    objects.truncate(12);
    let last = objects.last().unwrap();
    let good = fs::read(last).unwrap();
    fs::write(last, &good[..good.len() / 2]).unwrap();
    let (log, socket) = (primary.dir().join("prefetch.log"), primary.make_folder("s1").unwrap());
    let restore = format!(
        "{} archive get --repo {} --log {} %f \"%p\"",
        program.display(),
        repo.display(),
        log.display()
    );
    let settings = format!(
        "restore_command = '{restore}'\nrecovery_target_name = 'soon'\nrecovery_target_action = 'pause'\n\
         hot_standby = on\narchive_mode = off\nlisten_addresses = ''\nunix_socket_directories = '{}'\n",
        socket.display()
    );
    let mut conf = fs::read_to_string(backup.join("postgresql.conf")).unwrap();
    conf.push_str(&settings);
    fs::write(backup.join("postgresql.conf"), conf).unwrap();
    fs::write(backup.join("recovery.signal"), "").unwrap();
    let _ = fs::remove_file(backup.join("postgresql.auto.conf"));
    let server_log = primary.dir().join("process-1.log");
    walden_server::account::chown_all(primary.dir()).unwrap();
    let output = fs::File::create(&server_log).unwrap();
    unshare.arg(installation.bin_dir.join("postgres")).arg("-D").arg(&backup);
    let mut server = unshare.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
    let said = |text: &str| fs::read_to_string(&server_log).unwrap().contains(text);
    let began = Instant::now();
    // Waits until recovery is paused, and the prefetching process found the damage and ended.
    while !(said("pausing at the end of recovery") && log_says_failed(&log)) {
        let ended = server.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(&server_log).unwrap());
        assert!(began.elapsed() < Duration::from_secs(120), "{}", fs::read_to_string(&server_log).unwrap());
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(1));
    let crashed =
        said("terminating any other active server processes") || server.try_wait().unwrap().is_some();
    // Killing process 1 of a namespace kills all its processes.
    let children = format!("/proc/{0}/task/{0}/children", server.id());
    let first = fs::read_to_string(children).unwrap_or_default().trim().parse().ok().and_then(Pid::from_raw);
    first.into_iter().for_each(|first| kill_process(first, Signal::KILL).unwrap());
    server.wait().unwrap();
    assert!(!crashed, "{}", fs::read_to_string(&server_log).unwrap());
    Ok(())
}

fn log_says_failed(log: &Path) -> bool {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().any(|line| line.contains("\"prefetch\"") && line.contains("\"failed\""))
}

/// Returns a command that runs another command as process 1, under the servers' account.
fn unshare() -> Result<Command, Missing> {
    let missing = || Missing { reason: "needs the right to make namespaces of processes (root)".to_owned() };
    let account = walden_server::account::server_account().ok().flatten().ok_or_else(missing)?;
    let isolated = ["--pid", "--fork", "--mount-proc"];
    let probe = Command::new("unshare").args(isolated).arg("true").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return Err(missing());
    }
    let mut command = Command::new("unshare");
    let (user, group) = (account.uid.to_string(), account.gid.to_string());
    command.args(isolated).args(["setpriv", "--reuid", &user, "--regid", &group, "--clear-groups"]);
    Ok(command)
}

/// `pg_rewind -c` lists the files in `pg_wal`, and runs `restore_command` after that. If a file disappears in
/// the meantime, it leaves a data directory that cannot be used.
fn nothing_is_fetched_ahead_for_pg_rewind(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let Some(pg_rewind) = installation.program("pg_rewind") else {
        return Err(Missing { reason: "needs pg_rewind".to_owned() });
    };
    let builder = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).checksums(true);
    let primary = builder.setting("min_wal_size", "2MB").setting("max_wal_size", "4MB").start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("own").unwrap();
    make_archive(&repo);
    let backup = back_up_and_archive(&primary, &program, &repo);
    let work_and_archive = |server: &Cluster, round: i32| {
        let mut client = server.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE IF NOT EXISTS t (id int, v text)").unwrap();
        work(&mut client, round);
        client.batch_execute("SELECT pg_switch_wal(); CHECKPOINT").unwrap();
        wait_until_archived(&mut client);
    };
    work_and_archive(&primary, 0);
    let command = |call: &str| format!("{} archive {call} --repo {}", program.display(), repo.display());
    let (get, push) = (format!("{} %f \"%p\"", command("get")), format!("{} %p", command("push")));
    primary.configure(&[("restore_command", &get)]).unwrap();
    let promoted = recovered(
        &installation,
        &backup,
        &[("restore_command", &get), ("archive_mode", "on"), ("archive_command", &push)],
    );
    // The process that fetched ahead for its recovery removes its folder, which pg_rewind would copy.
    let is_prefetching = |server: &Cluster| {
        let names = fs::read_dir(server.data_dir().join("pg_wal")).unwrap();
        names
            .into_iter()
            .any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("walden-prefetch"))
    };
    let began = Instant::now();
    while is_prefetching(&promoted) {
        assert!(began.elapsed() < Duration::from_secs(20), "the folder stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Meanwhile, the WAL with the branch is removed from the old primary, which has the archive for it.
    for round in 1..=3 {
        work_and_archive(&primary, round);
    }
    primary.stop(StopMode::Fast).unwrap();
    work_and_archive(&promoted, 4);
    let mut rewind = account::command(&pg_rewind, primary.dir()).unwrap();
    rewind.args(["--restore-target-wal", "-D", text(&primary.data_dir())]);
    rewind.args(["--source-server", &promoted.dsn("postgres")]);
    let run = Run::execute(&mut rewind);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("Done!"), "{run:?}");
    assert!(!is_prefetching(&primary));
    Ok(())
}
