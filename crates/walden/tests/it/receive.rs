//! `walden receive`, tested with servers that lose all data: each commit that a client saw must exist after
//! recovery.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use walden_archive::name::ArchivedFile;
use walden_archive::parts::{self, Part};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode};
use walden_postgres::connection::Parameters;
use walden_postgres::replication::{Progress, Replication};
use walden_receive::spool::complete_segments;
use walden_testing::{ALL_SERVERS, Missing, Outcome, postgres};

use crate::archive::{recovered, text};
use crate::material::{link_program, make_archive, walden};

walden_testing::tests! {
    no_commit_is_lost on ALL_SERVERS,
    a_commit_in_the_archive_outlives_the_spool on [15, 18, 19],
    a_bad_network_loses_nothing,
    a_promoted_standby_is_followed,
    an_old_primary_is_rewound,
    what_is_received_is_what_the_server_archives,
    several_servers_are_received_by_one_service,
    trouble_is_named,
    a_server_without_older_histories_is_received,
    a_slot_of_before_is_received_from_its_start on [14, 15],
    an_old_spool_goes_on_behind_the_archive,
    a_gap_is_skipped_on_request on [15, 19],
    an_invalidated_slot_is_replaced on [15, 16, 17, 18],
    a_receiver_whose_server_is_silent_stops_at_once,
    a_lost_spool_is_restored_from_parts on [15, 19],
}

/// Returns how many times a server is destroyed: `WALDEN_RPO_ROUNDS`, or the default.
fn rounds(default: u32) -> u32 {
    std::env::var("WALDEN_RPO_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}

/// A receiver process, killed on drop.
pub struct Receiving {
    child: Child,
    log: PathBuf,
}

impl Receiving {
    pub fn start(dsn: &str, repo: &Path, spool: &Path, options: &[&str]) -> Receiving {
        Receiving::start_with(dsn, ["--repo", text(repo)], spool, options)
    }

    /// Starts a receiver into the repositories of a configuration file.
    pub fn configured(dsn: &str, config: &Path, spool: &Path, options: &[&str]) -> Receiving {
        Receiving::start_with(dsn, ["--config", text(config)], spool, options)
    }

    fn start_with(dsn: &str, place: [&str; 2], spool: &Path, options: &[&str]) -> Receiving {
        let log = spool.with_extension("log");
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(["receive", "--dsn", dsn, "--spool", text(spool)])
            .args(place)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .unwrap();
        Receiving { child, log }
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Requests a stop. Returns how long it took, and the exit status.
    pub fn stop(mut self) -> (Duration, Option<i32>) {
        let began = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        (began.elapsed(), status.code())
    }

    /// Waits until the process ends on its own. Returns its exit status and output.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        (status.code(), self.said())
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a field of the receiver's last status.
pub fn status_of(spool: &Path, field: &str) -> Value {
    let json = fs::read(spool.join("status.json")).unwrap_or_default();
    serde_json::from_slice::<Value>(&json).map(|status| status[field].clone()).unwrap_or_default()
}

pub fn wait(what: &str, mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what} takes too long");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A pseudorandom generator, with the same sequence in each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A server whose commits wait for the receiver, and a base backup of it.
pub struct Primary {
    pub cluster: Cluster,
    pub backup: PathBuf,
}

const SETTINGS: [(&str, &str); 4] = [
    ("synchronous_standby_names", "walden"),
    ("wal_level", "replica"),
    ("wal_keep_size", "64MB"),
    // Segments of 1 MB end often, and the server must not run out of disk space.
    ("max_wal_size", "64MB"),
];

impl Primary {
    pub fn start(installation: &Installation) -> Primary {
        Primary::listening(installation, "")
    }

    /// Starts a server that listens on an address, not only on a socket.
    fn listening(installation: &Installation, address: &str) -> Primary {
        let builder = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1);
        let cluster = builder.setting("listen_addresses", address).start().unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE acknowledged (worker int, number int, fill text)").unwrap();
        drop(client);
        cluster.stop(StopMode::Fast).unwrap();
        let backup = cluster.dir().join("backup");
        cluster.copy_data(&backup).unwrap();
        cluster.configure(&SETTINGS).unwrap();
        cluster.start().unwrap();
        Primary { cluster, backup }
    }

    pub fn dsn(&self) -> String {
        self.cluster.dsn("postgres")
    }

    /// Waits until commits wait for the receiver.
    pub fn wait_until_synchronous(&self) {
        let mut client = self.cluster.client("postgres").unwrap();
        client.batch_execute("SET synchronous_commit = local").unwrap();
        wait("the synchronous standby", || {
            let states = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            client.query_one(states, &[]).unwrap().get::<_, i64>(0) == 1
        });
    }
}

/// Clients that insert rows, one per transaction, and record those whose commit was acknowledged.
pub struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
    noted: Arc<Mutex<BTreeSet<(i32, i32)>>>,
}

impl Clients {
    pub fn start(cluster: &Cluster, count: i32, first: i32) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let noted = Arc::new(Mutex::new(BTreeSet::new()));
        let worker = |worker: i32| {
            let (config, stop, noted) = (cluster.config(), stop.clone(), noted.clone());
            thread::spawn(move || {
                let mut config = config;
                let Ok(mut client) = config.dbname("postgres").connect(postgres::NoTls) else { return };
                let mut number = first;
                while !stop.load(Ordering::SeqCst) {
                    number += 1;
                    let fill = "x".repeat(number as usize % 700);
                    let insert = "INSERT INTO acknowledged VALUES ($1, $2, $3)";
                    if client.execute(insert, &[&worker, &number, &fill]).is_err() {
                        return;
                    }
                    noted.lock().unwrap().insert((worker, number));
                }
            })
        };
        let threads = (0..count).map(worker).collect();
        Clients { stop, threads, noted }
    }

    pub fn count(&self) -> usize {
        self.noted.lock().unwrap().len()
    }

    /// Ends the clients, or waits until the server is gone. Returns the rows whose commits were acknowledged.
    pub fn end(self) -> BTreeSet<(i32, i32)> {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        Arc::into_inner(self.noted).unwrap().into_inner().unwrap()
    }
}

/// Recovers from a base backup, archive and spool. Returns the server and its rows.
fn recover(
    installation: &Installation,
    backup: &Path,
    repo: &Path,
    spool: &Path,
) -> (Cluster, BTreeSet<(i32, i32)>) {
    let folder = backup.parent().unwrap();
    let linked = folder.join("walden");
    let program = if linked.exists() { linked } else { link_program(folder) };
    // The server's account reads files that another account received. Permissions are the user's task, and
    // not tested here.
    walden_server::account::chown_all(spool).unwrap();
    walden_server::account::chown_all(repo).unwrap();
    let get = format!(
        "{} archive get --repo {} --spool {} %f \"%p\"",
        program.display(),
        repo.display(),
        spool.display()
    );
    let settings = [("restore_command", get.as_str()), ("recovery_target_timeline", "latest")];
    let cluster = recovered(installation, backup, &settings);
    let mut client = cluster.client("postgres").unwrap();
    let rows = client.query("SELECT worker, number FROM acknowledged", &[]).unwrap();
    let rows = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    drop(client);
    (cluster, rows)
}

pub fn assert_complete(noted: &BTreeSet<(i32, i32)>, found: &BTreeSet<(i32, i32)>, what: &str) {
    let lost: Vec<_> = noted.difference(found).take(5).collect();
    assert!(lost.is_empty(), "{what}: of {} acknowledged rows, lost {lost:?}...", noted.len());
}

/// Kills the server and removes its data at random times. In some rounds, the receiver is killed and
/// restarted before. Everything acknowledged to a client must exist after recovery from archive and spool.
fn no_commit_is_lost(version: u32) -> Outcome {
    let installation = postgres(version)?;
    for round in 0..rounds(if version == 15 { 6 } else { 2 }) {
        let mut random = Random(u64::from(version) << 32 | u64::from(round));
        let primary = Primary::start(&installation);
        let (repo, spool) = (primary.cluster.dir().join("repo"), primary.cluster.dir().join("spool"));
        make_archive(&repo);
        let options = ["--synchronous", "--slot", "walden", "--create-slot"];
        let mut receiving = Receiving::start(&primary.dsn(), &repo, &spool, &options);
        primary.wait_until_synchronous();
        let clients = Clients::start(&primary.cluster, 4, 0);
        let restarts = random.below(3);
        for _ in 0..restarts {
            thread::sleep(Duration::from_millis(random.below(600)));
            receiving.kill();
            thread::sleep(Duration::from_millis(random.below(100)));
            receiving = Receiving::start(&primary.dsn(), &repo, &spool, &options);
        }
        let wanted = clients.count() + 20 + random.below(400) as usize;
        wait("work", || clients.count() >= wanted);
        // Kills both in either order: a lost machine takes one of them first.
        if random.below(2) == 0 {
            primary.cluster.crash().unwrap();
            receiving.kill();
        } else {
            receiving.kill();
            thread::sleep(Duration::from_millis(random.below(50)));
            primary.cluster.crash().unwrap();
        }
        fs::remove_dir_all(primary.cluster.data_dir()).unwrap();
        let noted = clients.end();
        let (_restored, found) = recover(&installation, &primary.backup, &repo, &spool);
        assert_complete(&noted, &found, &format!("{version}, round {round}, {restarts} restarts"));
    }
    Ok(())
}

/// The server and the spool are lost at the same time, and in some rounds the spool alone before that. With
/// `--ack-after archive`, everything acknowledged to a client must be in the archive.
fn a_commit_in_the_archive_outlives_the_spool(version: u32) -> Outcome {
    let installation = postgres(version)?;
    for round in 0..rounds(2) {
        let mut random = Random(u64::from(version) << 40 | u64::from(round));
        let primary = Primary::start(&installation);
        let (repo, spool) = (primary.cluster.dir().join("repo"), primary.cluster.dir().join("spool"));
        make_archive(&repo);
        let options = ["--synchronous", "--ack-after", "archive", "--slot", "walden", "--create-slot"];
        let mut receiving = Receiving::start(&primary.dsn(), &repo, &spool, &options);
        primary.wait_until_synchronous();
        let clients = Clients::start(&primary.cluster, 4, 0);
        for _ in 0..round % 3 + 1 {
            thread::sleep(Duration::from_millis(100 + random.below(600)));
            receiving.kill();
            if random.below(3) > 0 {
                fs::remove_dir_all(&spool).unwrap();
            }
            receiving = Receiving::start(&primary.dsn(), &repo, &spool, &options);
        }
        let wanted = clients.count() + 20 + random.below(400) as usize;
        wait("work", || clients.count() >= wanted);
        receiving.kill();
        primary.cluster.crash().unwrap();
        fs::remove_dir_all(primary.cluster.data_dir()).unwrap();
        fs::remove_dir_all(&spool).unwrap();
        fs::create_dir(&spool).unwrap();
        let noted = clients.end();

        let archive =
            |arguments: &[&str]| walden(&[&["archive"], arguments, &["--repo", text(&repo)]].concat());
        let listing = archive(&["list", "--format", "json"]);
        let listing: Value = serde_json::from_str(&listing.stdout).unwrap();
        assert!(listing["timelines"][0]["live_end"].is_string(), "{listing:#}");
        let verified = archive(&["verify"]);
        assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
        let (_restored, found) = recover(&installation, &primary.backup, &repo, &spool);
        assert_complete(&noted, &found, &format!("{version}, round {round}"));
    }
    Ok(())
}

/// A proxy that simulates a bad network.
struct Proxy {
    port: u16,
    /// Bytes from the server after which each connection is cut; 0 for never.
    cut_after: Arc<AtomicU64>,
    /// Number of bytes from the server per flipped bit; 0 for none.
    flip_every: Arc<AtomicU64>,
    /// Delay of each part in milliseconds.
    delay: Arc<AtomicU32>,
    /// Maximum size of a part in bytes.
    part: Arc<AtomicU32>,
    connections: Arc<AtomicU32>,
}

impl Proxy {
    fn start(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            port: listener.local_addr().unwrap().port(),
            cut_after: Arc::default(),
            flip_every: Arc::default(),
            delay: Arc::default(),
            part: Arc::new(AtomicU32::new(65536)),
            connections: Arc::default(),
        };
        let (cut, flip) = (proxy.cut_after.clone(), proxy.flip_every.clone());
        let (delay, part, connections) = (proxy.delay.clone(), proxy.part.clone(), proxy.connections.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let back = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    let mut back = back;
                    let _ = std::io::copy(&mut back.0, &mut back.1);
                    let _ = back.1.shutdown(Shutdown::Both);
                });
                let (cut, flip, delay, part) = (cut.clone(), flip.clone(), delay.clone(), part.clone());
                thread::spawn(move || forward(server, client, &cut, &flip, &delay, &part));
            }
        });
        proxy
    }
}

fn forward(
    mut server: TcpStream,
    mut client: TcpStream,
    cut: &AtomicU64,
    flip: &AtomicU64,
    delay: &AtomicU32,
    part: &AtomicU32,
) {
    let (mut passed, mut buffer) = (0_u64, vec![0; 65536]);
    loop {
        let size = (part.load(Ordering::SeqCst) as usize).clamp(1, buffer.len());
        let Ok(bytes @ 1..) = server.read(&mut buffer[..size]) else { break };
        let pause = delay.load(Ordering::SeqCst);
        if pause > 0 {
            thread::sleep(Duration::from_millis(pause.into()));
        }
        let every = flip.load(Ordering::SeqCst);
        if every > 0 && passed / every != (passed + bytes as u64) / every {
            buffer[bytes / 2] ^= 16;
        }
        passed += bytes as u64;
        let limit = cut.load(Ordering::SeqCst);
        if (limit > 0 && passed > limit) || client.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Connections are cut, delayed, split into small parts, and have flipped bits. No acknowledged commit is
/// lost, and no flipped bit is archived.
fn a_bad_network_loses_nothing() -> Outcome {
    let installation = postgres(15)?;
    let primary = Primary::listening(&installation, "127.0.0.1");
    let port = primary.cluster.config().get_ports()[0];
    let (repo, spool) = (primary.cluster.dir().join("repo"), primary.cluster.dir().join("spool"));
    make_archive(&repo);
    let proxy = Proxy::start(port);
    let user = primary.cluster.config().get_user().unwrap().to_owned();
    let dsn = format!("host=127.0.0.1 port={} user={user} sslmode=disable", proxy.port);
    let options = ["--synchronous", "--slot", "walden", "--create-slot", "--timeout", "2"];
    let receiving = Receiving::start(&dsn, &repo, &spool, &options);
    primary.wait_until_synchronous();
    let clients = Clients::start(&primary.cluster, 4, 0);
    let more = |rows: usize| {
        let wanted = clients.count() + rows;
        wait("work", || clients.count() >= wanted);
    };
    more(50);
    proxy.cut_after.store(60_000, Ordering::SeqCst);
    more(1500);
    proxy.delay.store(5, Ordering::SeqCst);
    proxy.part.store(777, Ordering::SeqCst);
    more(100);
    proxy.delay.store(0, Ordering::SeqCst);
    proxy.part.store(65536, Ordering::SeqCst);
    proxy.cut_after.store(0, Ordering::SeqCst);
    proxy.flip_every.store(100_000, Ordering::SeqCst);
    wait("damage", || receiving.said().contains("the received WAL is damaged"));
    proxy.flip_every.store(0, Ordering::SeqCst);
    let before = proxy.connections.load(Ordering::SeqCst);
    assert!(before > 3, "{before} connections: nothing was cut");
    more(50);
    primary.cluster.crash().unwrap();
    receiving.kill();
    fs::remove_dir_all(primary.cluster.data_dir()).unwrap();
    let noted = clients.end();
    let (_restored, found) = recover(&installation, &primary.backup, &repo, &spool);
    assert_complete(&noted, &found, "a bad network");
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    Ok(())
}

/// A standby is promoted while WAL is received from it. The archive then has both timelines, and recovery
/// follows the switch.
fn a_promoted_standby_is_followed() -> Outcome {
    let installation = postgres(15)?;
    let primary = Primary::start(&installation);
    primary.cluster.configure(&[("synchronous_standby_names", "")]).unwrap();
    primary.cluster.reload();
    let standby = ClusterBuilder::new(installation.clone())
        .copy_of(&primary.backup)
        .setting("primary_conninfo", &primary.dsn())
        .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
        .unwrap();
    let (repo, spool) = (primary.cluster.dir().join("repo"), primary.cluster.dir().join("spool"));
    make_archive(&repo);
    // Received from the standby, as in cascading replication.
    let receiving =
        Receiving::start(&standby.dsn("postgres"), &repo, &spool, &["--slot", "w", "--create-slot"]);
    let clients = Clients::start(&primary.cluster, 2, 0);
    wait("work", || clients.count() > 1500);
    let mut noted = clients.end();
    let mut client = primary.cluster.client("postgres").unwrap();
    let end: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0);
    drop(client);
    let mut client = standby.client("postgres").unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
    wait("replay", || client.query_one(&replayed, &[]).unwrap().get(0));
    primary.cluster.crash().unwrap();
    client.execute("SELECT pg_promote()", &[]).unwrap();
    drop(client);
    let clients = Clients::start(&standby, 2, 1_000_000);
    wait("work", || clients.count() > 1500);
    noted.extend(clients.end());
    let mut client = standby.client("postgres").unwrap();
    let end: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0);
    wait("the received WAL", || {
        let flushed = format!("SELECT coalesce(max(flush_lsn), '0/0') >= '{end}' FROM pg_stat_replication");
        client.query_one(&flushed, &[]).unwrap().get(0)
    });
    drop(client);
    let (took, code) = receiving.stop();
    assert!(took < Duration::from_secs(2) && code == Some(0), "{took:?} {code:?}");
    standby.crash().unwrap();
    let (_restored, found) = recover(&installation, &primary.backup, &repo, &spool);
    assert_complete(&noted, &found, "promotion");
    let listing = crate::archive::json(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
    let timelines: Vec<u64> =
        listing["timelines"].as_array().unwrap().iter().filter_map(|one| one["timeline"].as_u64()).collect();
    assert_eq!(timelines, [1, 2], "{listing:#}");
    assert_eq!(listing["timelines"][0]["gaps"].as_array().unwrap().len(), 0, "{listing:#}");
    assert!(listing["timelines"][0]["partial_segment"].is_string(), "{listing:#}");
    Ok(())
}

/// An old primary continues after its standby was promoted. `pg_rewind` rewinds it with WAL from the archive.
/// As a standby of the new primary, it then replaces that one as the source of received WAL.
fn an_old_primary_is_rewound() -> Outcome {
    let installation = postgres(15)?;
    let Some(pg_rewind) = installation.program("pg_rewind") else {
        return Err(Missing { reason: "needs pg_rewind of PostgreSQL 15".to_owned() });
    };
    let primary = Primary::start(&installation);
    let old = &primary.cluster;
    old.configure(&[("synchronous_standby_names", ""), ("wal_log_hints", "on")]).unwrap();
    old.restart(StopMode::Fast).unwrap();
    let standby = ClusterBuilder::new(installation.clone())
        .copy_of(&primary.backup)
        .setting("primary_conninfo", &primary.dsn())
        .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
        .unwrap();
    let (repo, spool) = (old.dir().join("repo"), old.dir().join("spool"));
    make_archive(&repo);
    let receiving = Receiving::start(&standby.dsn("postgres"), &repo, &spool, &[]);
    let flush_lsn = |cluster: &Cluster| -> String {
        let mut client = cluster.client("postgres").unwrap();
        client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0)
    };
    let wait_until_replayed = |cluster: &Cluster, end: &str| {
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        let mut client = cluster.client("postgres").unwrap();
        wait("replay", || client.query_one(&replayed, &[]).unwrap().get(0));
    };
    let work = |cluster: &Cluster, first: i32, rows: usize| {
        let clients = Clients::start(cluster, 2, first);
        wait("work", || clients.count() > rows);
        clients.end()
    };
    let mut noted = work(old, 0, 6000);
    wait_until_replayed(&standby, &flush_lsn(old));
    standby.client("postgres").unwrap().execute("SELECT pg_promote()", &[]).unwrap();
    let lost = work(old, 5_000_000, 1500);
    noted.extend(work(&standby, 1_000_000, 1500));
    standby.client("postgres").unwrap().execute("CHECKPOINT", &[]).unwrap();
    old.stop(StopMode::Fast).unwrap();

    // The old primary no longer has the WAL before the switch.
    let listing = crate::archive::json(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
    let archived = listing["timelines"][0]["last_segment"].as_str().unwrap().to_owned();
    let mut removed = 0;
    for entry in fs::read_dir(old.data_dir().join("pg_wal")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() && entry.file_name().to_str().unwrap() <= archived.as_str() {
            fs::remove_file(entry.path()).unwrap();
            removed += 1;
        }
    }
    assert!(removed > 0);
    let program = link_program(old.dir());
    // Files archived later belong to another account.
    let end: Lsn = flush_lsn(&standby).parse().unwrap();
    wait("archiving of the standby's WAL", || {
        let durable = status_of(&spool, "flushed_lsn").as_str().and_then(|lsn| lsn.parse::<Lsn>().ok());
        durable >= Some(end) && complete_segments(&spool).unwrap().is_empty()
    });
    walden_server::account::chown_all(&repo).unwrap();
    let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
    let as_standby = [
        ("restore_command", get),
        ("primary_conninfo", standby.dsn("postgres")),
        ("hot_standby", "on".to_owned()),
    ];
    old.configure(&as_standby).unwrap();
    // pg_rewind copies the source's configuration, too.
    let configuration = old.data_dir().join("postgresql.conf");
    let own = fs::read(&configuration).unwrap();
    let mut command = walden_server::account::command(&pg_rewind, old.dir()).unwrap();
    command.arg("-D").arg(old.data_dir()).args(["--restore-target-wal", "--no-ensure-shutdown"]);
    let output = command.args(["--source-server", &standby.dsn("postgres")]).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("servers diverged"), "{said}");
    fs::write(&configuration, own).unwrap();
    fs::write(old.data_dir().join("standby.signal"), "").unwrap();
    walden_server::account::chown_all(&old.data_dir()).unwrap();
    old.start().unwrap();

    // WAL is now received from the old primary, into the same place.
    let (took, code) = receiving.stop();
    assert!(took < Duration::from_secs(2) && code == Some(0), "{took:?} {code:?}");
    walden_server::account::chown_all(&repo).unwrap();
    let receiving = Receiving::start(&old.dsn("postgres"), &repo, &spool, &[]);
    noted.extend(work(&standby, 2_000_000, 1500));
    let end = flush_lsn(&standby);
    wait_until_replayed(old, &end);
    let mut client = old.client("postgres").unwrap();
    wait("the received WAL", || {
        let flushed = format!("SELECT coalesce(max(flush_lsn), '0/0') >= '{end}' FROM pg_stat_replication");
        client.query_one(&flushed, &[]).unwrap().get(0)
    });
    drop(client);
    receiving.kill();
    old.crash().unwrap();
    standby.crash().unwrap();
    let (_restored, found) = recover(&installation, &primary.backup, &repo, &spool);
    assert_complete(&noted, &found, "rewind");
    assert_eq!(found.intersection(&lost).count(), 0, "rows of the timeline that was left");
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    Ok(())
}

/// Received segments are identical to those that `archive_command` gets: both may fill the same archive.
fn what_is_received_is_what_the_server_archives() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).archive(true).start().unwrap();
    let (repo, spool) = (cluster.dir().join("repo"), cluster.dir().join("spool"));
    make_archive(&repo);
    let receiving =
        Receiving::start(&cluster.dsn("postgres"), &repo, &spool, &["--slot", "w", "--create-slot"]);
    wait("the connection", || receiving.said().contains("receiving from"));
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
        .unwrap();
    client
        .batch_execute("SELECT pg_switch_wal(); INSERT INTO t VALUES (0, ''); SELECT pg_switch_wal()")
        .unwrap();
    drop(client);
    wait("archiving", || {
        let listing = walden(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
        let listing: Value = serde_json::from_str(&listing.stdout).unwrap_or_default();
        listing["timelines"][0]["segments"].as_u64() > Some(4)
            && status_of(&spool, "waiting_files") == 0
            && status_of(&spool, "state") == "streaming"
    });
    let said = walden(&["archive", "status", "--repo", text(&repo), "--spool", text(&spool)]);
    assert!(said.code == 0 && said.stdout.contains("receiving timeline 1"), "{said:?}");
    let pid = rustix::process::Pid::from_child(&receiving.child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    wait("the status", || receiving.said().contains("behind the server"));
    // The server's shutdown waits until all WAL was received.
    cluster.stop(StopMode::Fast).unwrap();
    drop(receiving);
    let mut compared = 0;
    for entry in fs::read_dir(cluster.archive_dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !repo.join(format!("wal/00000001/00000000/{name}.wlz")).exists() {
            continue;
        }
        let path = cluster.archive_dir().join(&name);
        let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&path)]);
        assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""), "{name}");
        compared += 1;
    }
    assert!(compared > 4, "{compared} segments");
    Ok(())
}

/// Sections of `walden.toml`, each with its own archive, and the notifications to the service manager.
fn several_servers_are_received_by_one_service() -> Outcome {
    let installation = postgres(15)?;
    let start = || ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let servers = [start(), start()];
    let folder = tempfile::tempdir().unwrap();
    let section = |(number, server): (usize, &Cluster)| {
        let (dsn, place) = (server.dsn("postgres"), folder.path().join(number.to_string()));
        format!(
            "[[receive]]\nname = \"server {number}\"\ndsn = \"{dsn}\"\nrepo = \"{0}/repo\"\nspool = \"{0}/spool\"\n\
             slot = \"walden\"\ncreate_slot = true\n",
            place.display()
        )
    };
    for number in 0..servers.len() {
        make_archive(&folder.path().join(number.to_string()).join("repo"));
    }
    let config = folder.path().join("walden.toml");
    fs::write(&config, servers.iter().enumerate().map(section).collect::<String>()).unwrap();
    let manager = folder.path().join("notify");
    let socket = UnixDatagram::bind(&manager).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let log = folder.path().join("log");
    let child = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["receive", "--config", text(&config)])
        .env("NOTIFY_SOCKET", &manager)
        .env_remove("WALDEN_DSN")
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let receiving = Receiving { child, log };
    let told = || {
        let mut message = [0; 4096];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    wait("readiness", || told().starts_with("READY=1\nWATCHDOG=1\nSTATUS="));
    for (number, server) in servers.iter().enumerate() {
        let mut client = server.client("postgres").unwrap();
        client
            .batch_execute("CREATE TABLE t AS SELECT generate_series(1, 60000) i; SELECT pg_switch_wal()")
            .unwrap();
        let identity = folder.path().join(number.to_string()).join("repo/archive.json");
        wait("the archive", || identity.exists());
        let identity: Value = serde_json::from_slice(&fs::read(&identity).unwrap()).unwrap();
        assert_eq!(identity["system_identifier"], server.system_identifier().to_string());
        let segments = folder.path().join(number.to_string()).join("repo/wal/00000001/00000000");
        wait("segments", || fs::read_dir(&segments).is_ok_and(|objects| objects.count() > 2));
        assert!(
            receiving.said().contains(&format!("server {number}: receiving from")),
            "{}",
            receiving.said()
        );
    }
    let (_, code) = receiving.stop();
    assert_eq!(code, Some(0));
    wait("the end", || told() == "STOPPING=1");
    Ok(())
}

/// Each kind of problem is reported with a remedy, nothing is acknowledged wrongly, and the receiver retries
/// if the problem can be repaired.
fn trouble_is_named() -> Outcome {
    let installation = postgres(15)?;
    let cluster = ClusterBuilder::new(installation.clone())
        .wal_segsize_mb(1)
        .setting("max_wal_size", "8MB")
        .setting("min_wal_size", "2MB")
        .start()
        .unwrap();
    let (repo, spool) = (cluster.dir().join("repo"), cluster.dir().join("spool"));
    make_archive(&repo);
    let dsn = cluster.dsn("postgres");
    let says = |options: &[&str], spool: &Path, what: &str| {
        let receiving = Receiving::start(&dsn, &repo, spool, options);
        wait(what, || receiving.said().contains(what));
        receiving.said()
    };
    // A missing slot, and a created one.
    let said = says(&["--slot", "none"], &cluster.dir().join("a"), "does not exist");
    assert!(said.contains("HINT: make the slot with --create-slot"), "{said}");
    // A second process on the same spool.
    let first = Receiving::start(&dsn, &repo, &spool, &[]);
    wait("the connection", || first.said().contains("receiving from"));
    let said = first.said();
    assert_eq!(said.matches("WARNING: without a slot, the server may remove WAL").count(), 1, "{said}");
    let second = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["receive", "--dsn", &dsn, "--repo", text(&repo), "--spool", text(&spool)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(3) && said.contains("another process receives into it"), "{said}");
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
        .unwrap();
    wait("archiving", || repo.join("archive.json").exists());
    first.kill();
    // The server removes unreceived WAL, as there is no slot.
    for _ in 0..4 {
        client.batch_execute("UPDATE t SET md5 = md5 || 'x'; CHECKPOINT; SELECT pg_switch_wal()").unwrap();
    }
    client.batch_execute("CHECKPOINT").unwrap();
    let said = says(&[], &spool, "has already been removed");
    assert!(said.contains("HINT: the server has removed WAL"), "{said}");
    // The message is from the first process: this one has received nothing.
    assert_eq!(said.matches("receiving from").count(), 1, "{said}");
    trouble_is_said_after_the_end(&cluster, &mut client, &repo, &spool);
    wrong_settings_end_it(&cluster, &mut client);
    the_own_last_connection_is_named(&cluster, &mut client);
    drop(client);
    // Another cluster.
    let other = ClusterBuilder::new(installation).wal_segsize_mb(1).start().unwrap();
    let receiving = Receiving::start(&other.dsn("postgres"), &repo, &other.dir().join("spool"), &[]);
    let (code, said) = receiving.ended();
    assert!(
        code == Some(1) && said.contains("belongs to another cluster: expected system identifier"),
        "{said}"
    );
    Ok(())
}

/// Without a slot, or with a lost one: the server has removed the next WAL, and no copy exists.
fn a_gap_is_skipped_on_request(version: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(version)?)
        .wal_segsize_mb(1)
        .setting("max_wal_size", "8MB")
        .setting("min_wal_size", "2MB")
        .setting("wal_keep_size", "0")
        .start()
        .unwrap();
    let (repo, spool) = (cluster.dir().join("repo"), cluster.dir().join("spool"));
    make_archive(&repo);
    let dsn = cluster.dsn("postgres");
    let start = |options: &[&str]| Receiving::start(&dsn, &repo, &spool, options);
    let mut client = cluster.client("postgres").unwrap();
    let first = start(&[]);
    wait("the connection", || first.said().contains("receiving from"));
    client
        .batch_execute("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
        .unwrap();
    // The archive has segments from before the gap.
    let listing = || {
        let run = walden(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
        serde_json::from_str::<Value>(&run.stdout).unwrap_or_default()
    };
    wait("archiving", || listing()["timelines"][0]["segments"].as_u64().is_some_and(|segments| segments > 0));
    first.kill();
    for _ in 0..4 {
        client.batch_execute("UPDATE t SET md5 = md5 || 'x'; CHECKPOINT; SELECT pg_switch_wal()").unwrap();
    }
    client.batch_execute("CHECKPOINT").unwrap();
    let stuck = start(&[]);
    wait("the error", || stuck.said().contains("has already been removed"));
    assert!(stuck.said().contains("--accept-gap"), "{}", stuck.said());
    assert_eq!(stuck.stop().1, Some(0));

    let skipping = start(&["--accept-gap"]);
    wait("the gap", || skipping.said().contains("the archive records the gap"));
    // Recovery must not end before the gap, even if no later segment is archived yet.
    // Received segments from before it may still wait to be archived.
    let listed = listing();
    let mut gaps = listed["timelines"][0]["gaps"].as_array().unwrap().iter();
    let gap = gaps.find(|gap| !gap["acknowledged"].is_null()).unwrap()["first"].as_str().unwrap();
    let got = walden(&["archive", "get", "--repo", text(&repo), gap, text(&cluster.dir().join("got"))]);
    assert!(got.code == 200 && got.stderr.contains("found a gap"), "{got:?}");
    // Writes so little that no checkpoint removes it before it is received.
    client.batch_execute("INSERT INTO t VALUES (0, 'y')").unwrap();
    let target: String = client.query_one("SELECT pg_switch_wal()::text", &[]).unwrap().get(0);
    let target: Lsn = target.parse().unwrap();
    let archived = || status_of(&spool, "archived_lsn").as_str().and_then(|lsn| lsn.parse::<Lsn>().ok());
    wait("the archive", || archived().is_some_and(|lsn| lsn >= target));
    let listing = listing();
    let gaps = listing["timelines"][0]["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 1, "{listing:#}");
    assert_eq!(gaps[0]["acknowledged"]["by"], "walden receive --accept-gap", "{listing:#}");
    let first_missing = gaps[0]["first"].as_str().unwrap();
    let listed = walden(&["archive", "list", "--repo", text(&repo)]);
    assert!(listed.code == 0 && listed.stdout.contains("the server had removed this WAL"), "{listed:?}");
    // The received part of the segment in which the gap starts is kept. If a record had continued into the
    // next segment, that one is partial, too.
    let partial = listing["timelines"][0]["partial_segment"].as_str().unwrap();
    assert!(partial >= first_missing && partial < gaps[0]["last"].as_str().unwrap(), "{listing:#}");
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert!(verified.code == 0 && verified.stdout.contains(first_missing), "{verified:?}");
    let got =
        walden(&["archive", "get", "--repo", text(&repo), first_missing, text(&cluster.dir().join("got"))]);
    assert!(got.code == 200 && got.stderr.contains("found a gap"), "{got:?}");
    assert_eq!(skipping.stop().1, Some(0));
    // The next process continues without the option.
    let after = start(&[]);
    wait("the connection", || after.said().matches("receiving from").count() > 2);
    let text_after = after.said().split("records the gap").last().unwrap().to_owned();
    assert!(!text_after.contains("has already been removed"), "{text_after}");
    Ok(())
}

/// PostgreSQL 16 and 17 stream with an invalidated slot, but keep no WAL for it.
fn an_invalidated_slot_is_replaced(version: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(version)?)
        .wal_segsize_mb(1)
        .setting("max_wal_size", "4MB")
        .setting("min_wal_size", "2MB")
        .setting("wal_keep_size", "0")
        .setting("max_slot_wal_keep_size", "3MB")
        .start()
        .unwrap();
    let (repo, spool) = (cluster.dir().join("repo"), cluster.dir().join("spool"));
    make_archive(&repo);
    let dsn = cluster.dsn("postgres");
    let start = |options: &[&str]| {
        Receiving::start(&dsn, &repo, &spool, &[&["--slot", "received"][..], options].concat())
    };
    let mut client = cluster.client("postgres").unwrap();
    let first = start(&["--create-slot"]);
    wait("the connection", || first.said().contains("receiving from"));
    wait("the first answer", || !status_of(&spool, "flushed_lsn").is_null());
    first.kill();
    let state = |client: &mut postgres::Client| -> String {
        let query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'received'";
        client.query_one(query, &[]).unwrap().get::<_, Option<String>>(0).unwrap_or_default()
    };
    wait("the loss of the slot", || {
        client.batch_execute("SELECT pg_logical_emit_message(false, 'x', repeat('y', 9000))").unwrap();
        client.batch_execute("SELECT pg_switch_wal()").unwrap();
        client.batch_execute("CHECKPOINT").unwrap();
        state(&mut client) == "lost"
    });
    let stuck = start(&[]);
    wait("the error", || status_of(&spool, "cause") == "slot_lost");
    let said = stuck.said();
    assert!(
        said.contains("has invalidated the replication slot") && said.contains("--create-slot"),
        "{said}"
    );
    stuck.kill();
    if matches!(version, 16 | 17) {
        an_invalidated_slot_in_use_holds_nothing(&cluster, &mut client, [&repo, &spool]);
    }
    let again = start(&["--create-slot", "--accept-gap"]);
    wait("the new slot", || again.said().contains("was dropped and created again"));
    wait("the gap", || again.said().contains("the archive records the gap"));
    wait("the new slot's state", || state(&mut client) == "reserved");
    assert_eq!(again.stop().1, Some(0));
    // It keeps WAL again.
    client.batch_execute("SELECT pg_logical_emit_message(false, 'x', 'y'); SELECT pg_switch_wal()").unwrap();
    client.batch_execute("CHECKPOINT").unwrap();
    let target: String = client.query_one("SELECT pg_switch_wal()::text", &[]).unwrap().get(0);
    let target: Lsn = target.parse().unwrap();
    let last = start(&["--create-slot"]);
    let received = || status_of(&spool, "flushed_lsn").as_str().and_then(|lsn| lsn.parse::<Lsn>().ok());
    wait("the WAL", || received().is_some_and(|lsn| lsn >= target));
    let said = last.said();
    assert_eq!(said.matches("created again").count(), 1, "{said}");
    assert_eq!(said.matches("the archive records the gap").count(), 1, "{said}");
    let listed = walden(&["archive", "list", "--repo", text(&repo)]);
    assert!(listed.code == 0 && listed.stdout.contains("the server had removed this WAL"), "{listed:?}");
    Ok(())
}

/// Another client streams with the slot.
fn an_invalidated_slot_in_use_holds_nothing(
    cluster: &Cluster,
    client: &mut postgres::Client,
    [repo, spool]: [&Path; 2],
) {
    let end: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0);
    let flushed: Lsn = end.parse().unwrap();
    let mut replication =
        Replication::connect(&Parameters::parse(&cluster.dsn("postgres")).unwrap()).unwrap();
    replication.start(Some("received"), 1, flushed).unwrap();
    wait("the slot's position", || {
        replication.report(Progress { received: flushed, flushed }, false).unwrap();
        let query = "SELECT wal_status FROM pg_replication_slots WHERE active";
        let row = client.query_opt(query, &[]).unwrap();
        row.is_some_and(|row| row.get::<_, Option<String>>(0).as_deref() == Some("unreserved"))
    });
    let dsn = cluster.dsn("postgres");
    let run = walden(&["retention", text(&cluster.data_dir()), "--dsn", &dsn]);
    assert!(run.stdout.contains("it holds nothing although"), "{run:?}");
    assert!(!run.stdout.contains("it is lost after"), "{run:?}");
    let check = ["archive", "check", "--repo", text(repo), "--spool", text(spool), "--dsn", &dsn];
    let run = walden(&check);
    assert!(run.code == 1 && run.stdout.contains("has invalidated the slot received"), "{run:?}");
}

/// A stopped server, or a network that drops everything: the connection is established, but no data arrives.
fn a_receiver_whose_server_is_silent_stops_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("repo");
    make_archive(&repo);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dsn =
        format!("host=127.0.0.1 port={} user=walden sslmode=disable", listener.local_addr().unwrap().port());
    let receiving = Receiving::start(&dsn, &repo, &folder.path().join("spool"), &[]);
    let connection = listener.accept().unwrap();
    thread::sleep(Duration::from_millis(200));
    let (elapsed, code) = receiving.stop();
    assert!(elapsed < Duration::from_secs(2) && code == Some(0), "{elapsed:?}, {code:?}");
    drop(connection);
    let status: Value =
        serde_json::from_slice(&fs::read(folder.path().join("spool/status.json")).unwrap()).unwrap();
    assert_eq!(status["state"], "stopped");
}

/// If the server has removed the WAL, none arrives, although the server is ahead.
fn trouble_is_said_after_the_end(
    cluster: &Cluster,
    client: &mut postgres::Client,
    repo: &Path,
    spool: &Path,
) {
    let end: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0);
    let end: Lsn = end.parse().unwrap();
    // The status of the previous process.
    fs::remove_file(spool.join("status.json")).unwrap();
    let receiving = Receiving::start(&cluster.dsn("postgres"), repo, spool, &[]);
    wait("the trouble", || status_of(spool, "cause") == "wal_removed");
    assert_eq!(receiving.stop().1, Some(0));
    let of = |field: &str| status_of(spool, field);
    assert_eq!((of("state"), of("cause")), (Value::from("stopped"), Value::from("wal_removed")));
    let lsn = |field: &str| of(field).as_str().unwrap().parse::<Lsn>().unwrap();
    assert!(lsn("server_lsn") >= end, "{} {end}", lsn("server_lsn"));
    let lag = lsn("server_lsn").bytes_since(lsn("flushed_lsn"));
    assert!(lag > 1 << 20 && of("lag_bytes") == lag, "{lag}");
    let run = walden(&["archive", "status", "--repo", text(repo), "--spool", text(spool)]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("has stopped; last trouble: "), "{run:?}");
    assert!(run.stdout.contains("hint: the server has removed WAL that is missing here"), "{run:?}");
    assert!(!run.stdout.contains(", 0 B behind "), "{run:?}");
}

/// If no retry can help, the process exits with an error instead of logging it.
fn wrong_settings_end_it(cluster: &Cluster, client: &mut postgres::Client) {
    let (repo, spool) = (cluster.dir().join("wrong-repo"), cluster.dir().join("wrong"));
    make_archive(&repo);
    let options = ["--repo", text(&repo), "--spool", text(&spool), "--slot", "Bad-Name"];
    let run = walden(&[&["receive", "--dsn", &cluster.dsn("postgres")], &options[..]].concat());
    assert!(run.code == 2 && run.stderr.contains("a slot cannot be named \"Bad-Name\""), "{run:?}");
    client.batch_execute("CREATE ROLE visitor LOGIN").unwrap();
    let dsn = format!("{} user=visitor", cluster.dsn("postgres"));
    let (code, said) = Receiving::start(&dsn, &repo, &spool, &[]).ended();
    assert!(code == Some(3) && said.contains("the user needs the attribute REPLICATION"), "{code:?}: {said}");
}

/// A server that has not detected a lost connection keeps the slot for it.
fn the_own_last_connection_is_named(cluster: &Cluster, client: &mut postgres::Client) {
    let (repo, spool) = (cluster.dir().join("own-repo"), cluster.dir().join("own"));
    make_archive(&repo);
    let options = ["--slot", "own", "--create-slot", "--timeout", "1"];
    let receiving = Receiving::start(&cluster.dsn("postgres"), &repo, &spool, &options);
    wait("the connection", || receiving.said().contains("receiving from"));
    let query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'own'";
    let pid = rustix::process::Pid::from_raw(client.query_one(query, &[]).unwrap().get(0)).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    wait("the server's answer", || receiving.said().contains("is active for PID"));
    let said = receiving.said();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(said.contains("the server has sent nothing"), "{said}");
    assert!(said.contains("HINT: this process used the slot before"), "{said}");
    wait("the next connection", || receiving.said()[said.len()..].contains("receiving from"));
}

/// A server restored without `pg_wal` has its own history and that of the timeline to which it recovered, but
/// not earlier ones.
fn a_server_without_older_histories_is_received() -> Outcome {
    let installation = postgres(15)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).archive(true).start().unwrap();
    let restore = format!("cp \"{}/%f\" \"%p\"", primary.archive_dir().display());
    primary.client("postgres").unwrap().batch_execute("CREATE TABLE t (i int)").unwrap();
    let mut restored: Option<Cluster> = None;
    for number in 1..=3 {
        let server = restored.as_ref().unwrap_or(&primary);
        let backup = primary.dir().join(format!("backup{number}"));
        server.stop(StopMode::Fast).unwrap();
        server.copy_data(&backup).unwrap();
        // The last segment is archived only now. All servers archive to the first one's folder.
        server.start().unwrap();
        let switch = "SELECT pg_walfile_name(pg_switch_wal())";
        let last: String = server.client("postgres").unwrap().query_one(switch, &[]).unwrap().get(0);
        wait("archiving", || primary.archive_dir().join(&last).exists());
        server.stop(StopMode::Fast).unwrap();
        restored = Some(recovered(&installation, &backup, &[("restore_command", restore.as_str())]));
    }
    let server = restored.unwrap();
    let has = |name: &str| server.data_dir().join("pg_wal").join(name).exists();
    assert!(!has("00000002.history") && has("00000003.history") && has("00000004.history"));
    let (repo, spool) = (primary.dir().join("repo"), primary.dir().join("spool"));
    make_archive(&repo);
    let options = ["--slot", "walden", "--create-slot"];
    let receiving = Receiving::start(&server.dsn("postgres"), &repo, &spool, &options);
    wait("the connection", || receiving.said().contains("receiving from"));
    let mut client = server.client("postgres").unwrap();
    client.batch_execute("INSERT INTO t VALUES (1)").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    client.batch_execute("INSERT INTO t VALUES (2)").unwrap();
    wait("archiving", || {
        let listing = walden(&["archive", "list", "--all", "--format", "json", "--repo", text(&repo)]);
        let listing: Value = serde_json::from_str(&listing.stdout).unwrap_or_default();
        let timelines = listing["timelines"].as_array().cloned().unwrap_or_default();
        timelines.iter().any(|one| one["timeline"] == 4 && one["segments"].as_u64() > Some(0))
    });
    assert!(!receiving.said().contains("could not open file"), "{}", receiving.said());
    Ok(())
}

/// A slot was created before any WAL was received, and the server has kept WAL for it since.
fn a_slot_of_before_is_received_from_its_start(version: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(version)?).wal_segsize_mb(1).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    for slot in ["kept", "other"] {
        let create = format!("SELECT pg_create_physical_replication_slot('{slot}', true)");
        client.batch_execute(&create).unwrap();
    }
    let query = "SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots WHERE slot_name = 'kept'";
    let first: String = client.query_one(query, &[]).unwrap().get(0);
    client.batch_execute("CREATE TABLE t (i int)").unwrap();
    for _ in 0..3 {
        client.batch_execute("INSERT INTO t VALUES (1); SELECT pg_switch_wal()").unwrap();
    }
    let repo = cluster.dir().join("repo");
    make_archive(&repo);
    // A missing database does not matter for replication, but prevents ordinary connections.
    let (dsn, spool) = (cluster.dsn("nowhere"), cluster.dir().join("nowhere"));
    let receiving = Receiving::start(&dsn, &repo, &spool, &["--slot", "other"]);
    wait("the connection", || receiving.said().contains("receiving from"));
    let is_warned = receiving.said().contains("from where on the server keeps WAL for the slot other");
    assert_eq!(is_warned, version < 15, "{}", receiving.said());
    receiving.kill();
    fs::remove_dir_all(&repo).unwrap();
    make_archive(&repo);

    let spool = cluster.dir().join("spool");
    let receiving = Receiving::start(&cluster.dsn("postgres"), &repo, &spool, &["--slot", "kept"]);
    wait("archiving", || {
        let run = walden(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
        let listing: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
        listing["timelines"][0]["first_segment"] == first.as_str()
    });
    let said = receiving.said();
    assert!(!said.contains("from where on the server keeps WAL"), "{said}");
    Ok(())
}

/// Another receiver has archived WAL that an old spool lacks, and the server has removed it.
fn an_old_spool_goes_on_behind_the_archive() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?)
        .wal_segsize_mb(1)
        .setting("max_wal_size", "8MB")
        .setting("min_wal_size", "2MB")
        // WAL of autovacuum after the last switch would be only in the new spool.
        .setting("autovacuum", "off")
        .start()
        .unwrap();
    let (repo, old, new) = (cluster.dir().join("repo"), cluster.dir().join("old"), cluster.dir().join("new"));
    make_archive(&repo);
    let dsn = cluster.dsn("postgres");
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
        .unwrap();
    let receiving = Receiving::start(&dsn, &repo, &old, &[]);
    wait("the connection", || receiving.said().contains("receiving from"));
    client.batch_execute("SELECT pg_create_restore_point('received')").unwrap();
    let query = "SELECT pg_walfile_name(pg_current_wal_lsn()), pg_current_wal_lsn()::text";
    let row = client.query_one(query, &[]).unwrap();
    let (segment, end): (String, String) = (row.get(0), row.get(1));
    let end: Lsn = end.parse().unwrap();
    wait("the restore point", || {
        status_of(&old, "flushed_lsn").as_str().and_then(|lsn| lsn.parse::<Lsn>().ok()) >= Some(end)
    });
    receiving.kill();
    let partial = old.join(format!("{segment}.partial"));
    assert!(partial.exists());
    // With a slot, the server keeps the WAL that this spool lacks.
    let receiving = Receiving::start(&dsn, &repo, &new, &["--slot", "new", "--create-slot"]);
    wait("the connection", || receiving.said().contains("receiving from"));
    for _ in 0..4 {
        client.batch_execute("UPDATE t SET md5 = md5 || 'x'; CHECKPOINT").unwrap();
        let switched: String = client.query_one("SELECT pg_switch_wal()::text", &[]).unwrap().get(0);
        let switched: Lsn = switched.parse().unwrap();
        // Waits for all segments up to there, as several are archived at a time.
        wait("archiving", || {
            status_of(&new, "archived_lsn").as_str().and_then(|lsn| lsn.parse::<Lsn>().ok()) >= Some(switched)
        });
    }
    receiving.kill();
    client.batch_execute("CHECKPOINT").unwrap();
    assert!(!cluster.data_dir().join("pg_wal").join(&segment).exists());
    let receiving = Receiving::start(&dsn, &repo, &old, &[]);
    let began = receiving.said().len();
    wait("the connection", || receiving.said()[began..].contains("receiving from"));
    let row = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap();
    let (position, status) = (row.get::<_, String>(0), status_of(&new, "archived_lsn"));
    assert!(
        !receiving.said().contains("has already been removed"),
        "{}; the server is at {position}, archived to {status}",
        receiving.said()
    );
    assert!(!partial.exists());
    let listing = walden(&["archive", "list", "--repo", text(&repo)]);
    assert_eq!(listing.code, 0, "{listing:?}");
    Ok(())
}

/// The spool was lost after complete segments were acknowledged, but before they were archived as a whole.
/// The archive has only parts of them, and the server has removed them.
fn a_lost_spool_is_restored_from_parts(version: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(version)?)
        .wal_segsize_mb(1)
        .setting("max_wal_size", "8MB")
        .setting("min_wal_size", "2MB")
        .setting("autovacuum", "off")
        .start()
        .unwrap();
    let (repo, spool) = (cluster.dir().join("repo"), cluster.dir().join("spool"));
    make_archive(&repo);
    let dsn = cluster.dsn("postgres");
    let options = ["--synchronous", "--ack-after", "archive", "--slot", "walden", "--create-slot"];
    let receiving = Receiving::start(&dsn, &repo, &spool, &options);
    wait("the connection", || receiving.said().contains("receiving from"));
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
        .unwrap();
    let position = |client: &mut postgres::Client| -> Lsn {
        client
            .query_one("SELECT pg_current_wal_lsn()::text", &[])
            .unwrap()
            .get::<_, String>(0)
            .parse()
            .unwrap()
    };
    let lsn_of = |field: &str| status_of(&spool, field).as_str().and_then(|lsn| lsn.parse::<Lsn>().ok());
    let switched: String = client.query_one("SELECT pg_switch_wal()::text", &[]).unwrap().get(0);
    client.batch_execute("INSERT INTO t VALUES (0, 'in the segment that is being written')").unwrap();
    let (switched, end) = (switched.parse::<Lsn>().unwrap(), position(&mut client));
    wait("archiving", || lsn_of("flushed_lsn") >= Some(end) && lsn_of("archived_lsn") >= Some(switched));
    receiving.kill();
    fs::remove_dir_all(&spool).unwrap();

    // Keeps only parts of the two newest complete segments.
    let size = SegmentSize::new(1 << 20).unwrap();
    let archive = walden_archive::Archive::new(Box::new(walden_archive::store::Folder::new(&repo)));
    let number = size.segment_of(end);
    let lost = [number - 2, number - 1].map(|number| SegmentName::new(1, number, size));
    let mut contents = Vec::new();
    for segment in lost {
        let file = cluster.dir().join(segment.to_string());
        let get = walden(&["archive", "get", "--repo", text(&repo), &segment.to_string(), text(&file)]);
        assert_eq!(get.code, 0, "{get:?}");
        let content = fs::read(&file).unwrap();
        let object = archive.find(ArchivedFile::Segment(segment)).unwrap().unwrap().0;
        fs::remove_file(repo.join(object.key())).unwrap();
        for (start, end) in [(0, 5000), (5000, 1 << 20)] {
            let bytes = &content[start as usize..end as usize];
            parts::store(&archive, Part { segment, start, end }, bytes).unwrap();
        }
        contents.push(content);
    }
    client.batch_execute("CHECKPOINT").unwrap();
    for segment in lost {
        assert!(!cluster.data_dir().join("pg_wal").join(segment.to_string()).exists(), "{segment}");
    }

    let receiving = Receiving::start(&dsn, &repo, &spool, &options);
    client.batch_execute("INSERT INTO t VALUES (0, 'after the spool was lost')").unwrap();
    let end = position(&mut client);
    wait("the archive", || {
        assert!(!receiving.said().contains("has already been removed"), "{}", receiving.said());
        lsn_of("flushed_lsn") >= Some(end) && lsn_of("archived_lsn") >= Some(switched)
    });
    for (segment, content) in lost.into_iter().zip(contents) {
        assert!(archive.find(ArchivedFile::Segment(segment)).unwrap().is_some(), "{segment}");
        let file = cluster.dir().join(format!("{segment}.again"));
        let get = walden(&["archive", "get", "--repo", text(&repo), &segment.to_string(), text(&file)]);
        assert!(get.code == 0 && fs::read(&file).unwrap() == content, "{segment}: {get:?}");
    }
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    Ok(())
}
