//! The server is stopped, however this process ends.
//!
//! The process that ends is this test binary again, which then only runs [`child`].

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use walden_lab::{ClusterBuilder, Wanted, find_or_install};

walden_testing::tests! {
    interrupted_by_sigint,
    interrupted_by_sigterm,
    killed_by_sigkill,
}

const IS_CHILD: &str = "WALDEN_TEST_KILL_CHILD";

/// Whether this process was started to be killed.
pub fn is_child() -> bool {
    env::var_os(IS_CHILD).is_some()
}

/// Starts a cluster, prints its process id and folder, and waits to be killed.
pub fn child() -> ! {
    let cluster = ClusterBuilder::new(find_or_install(Wanted::Any).unwrap()).start().unwrap();
    println!("started {} {}", cluster.pid().unwrap(), cluster.dir().display());
    // A session that is busy when its server is stopped.
    let mut client = cluster.client("postgres").unwrap();
    let error = client.batch_execute("SELECT pg_sleep(600)").unwrap_err();
    drop(cluster);
    panic!("{error}");
}

fn interrupted_by_sigint() {
    let child = start();
    assert_eq!(end(child, Signal::INT).code(), Some(130));
}

fn interrupted_by_sigterm() {
    let child = start();
    assert_eq!(end(child, Signal::TERM).code(), Some(143));
}

fn killed_by_sigkill() {
    let child = start();
    assert_eq!(end(child, Signal::KILL).signal(), Some(9));
}

struct Started {
    child: Child,
    server: u32,
    dir: PathBuf,
}

fn start() -> Started {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(IS_CHILD, "1");
    let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| Some(line.unwrap().strip_prefix("started ")?.to_owned())).unwrap();
    let (server, dir) = line.split_once(' ').unwrap();
    // Continue reading, so that the child never waits for a full pipe.
    thread::spawn(move || lines.for_each(drop));
    let started = Started { child, server: server.parse().unwrap(), dir: dir.into() };
    assert!(runs(started.server) && started.dir.is_dir());
    thread::sleep(Duration::from_millis(300));
    started
}

/// Sends the signal, and waits until the server and the folder are gone.
fn end(mut started: Started, signal: Signal) -> std::process::ExitStatus {
    kill_process(Pid::from_child(&started.child), signal).unwrap();
    let status = started.child.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline && (runs(started.server) || started.dir.exists()) {
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!runs(started.server), "the server still runs");
    assert!(!started.dir.exists(), "{} is still there", started.dir.display());
    status
}

/// Whether a process runs. A process that has ended counts as not running even if no parent has reaped it.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
