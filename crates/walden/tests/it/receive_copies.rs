//! `walden receive` into two repositories that are away at random times: each commit that a client saw must
//! exist after recovery, and both repositories must be equal in the end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use walden_format::lsn::Lsn;
use walden_lab::Installation;
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{recovered, text};
use crate::archive_copies::come_back;
use crate::material::{link_program, make_archive, walden};
use crate::receive::{Clients, Primary, Random, Receiving, assert_complete, status_of, wait};

walden_testing::tests! {
    a_commit_outlives_a_repository_and_the_spool on [15, 19],
    the_repository_with_the_newest_wal_is_waited_for,
    ten_outages_lose_nothing,
    #[slow] a_hundred_outages_lose_nothing,
}

const OPTIONS: &[&str] = &["--synchronous", "--ack-after", "archive", "--slot", "walden", "--create-slot"];

/// A server whose commits wait for a receiver, which archives into two repositories.
struct Site {
    primary: Primary,
    config: PathBuf,
    repos: [PathBuf; 2],
    spool: PathBuf,
}

impl Site {
    fn new(version: u32, acknowledge: usize) -> Result<Site, Missing> {
        let primary = Primary::start(&postgres(version)?);
        let folder = primary.cluster.dir().to_owned();
        let repos = ["one", "two"].map(|name| folder.join(name));
        repos.iter().for_each(|repo| make_archive(repo));
        let config = folder.join("walden.toml");
        let site = Site { primary, config, repos, spool: folder.join("spool") };
        site.acknowledge(acknowledge);
        Ok(site)
    }

    fn acknowledge(&self, acknowledge: usize) {
        let [one, two] = &self.repos;
        let toml = format!("[archive]\nrepo = [{one:?}, {two:?}]\nacknowledge = {acknowledge}\n");
        fs::write(&self.config, toml).unwrap();
    }

    fn receive(&self, options: &[&str]) -> Receiving {
        let options = [OPTIONS, options].concat();
        Receiving::configured(&self.primary.dsn(), &self.config, &self.spool, &options)
    }

    fn leave(&self, repo: usize) {
        fs::rename(&self.repos[repo], self.repos[repo].with_extension("away")).unwrap();
    }

    fn come_back(&self, repo: usize) {
        come_back(&self.repos[repo]);
    }

    /// Ends the server and removes its data.
    fn lose_server(&self) {
        self.primary.cluster.crash().unwrap();
        fs::remove_dir_all(self.primary.cluster.data_dir()).unwrap();
    }

    /// Returns the rows of a server that recovers from the configured repositories, or from one of them.
    fn recover(&self, installation: &Installation, repo: Option<usize>) -> BTreeSet<(i32, i32)> {
        let folder = self.primary.cluster.dir();
        let linked = folder.join("walden");
        let program = if linked.exists() { linked } else { link_program(folder) };
        // The server's account reads files that another account wrote.
        self.repos.iter().filter(|repo| repo.exists()).for_each(|repo| {
            walden_server::account::chown_all(repo).unwrap();
        });
        let named = repo.map(|repo| format!("--repo {} ", self.repos[repo].display())).unwrap_or_default();
        let get =
            format!("{} archive get {named}--config {} %f \"%p\"", program.display(), self.config.display());
        let settings = [("restore_command", get.as_str()), ("recovery_target_timeline", "latest")];
        let cluster = recovered(installation, &self.primary.backup, &settings);
        let mut client = cluster.client("postgres").unwrap();
        let rows = client.query("SELECT worker, number FROM acknowledged", &[]).unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

/// Returns the files in a folder of a repository, relative to it.
fn files(repo: &Path, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![repo.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(repo).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

/// The server, the spool and one of two repositories are lost at the same time. Both have acknowledged each
/// part before, so the other one has everything. In between, one is away while the spool is lost.
fn a_commit_outlives_a_repository_and_the_spool(version: u32) -> Outcome {
    let installation = postgres(version)?;
    for round in 0..2 {
        let mut random = Random(u64::from(version) << 32 | round);
        let site = Site::new(version, 2)?;
        let mut receiving = site.receive(&[]);
        site.primary.wait_until_synchronous();
        let clients = Clients::start(&site.primary.cluster, 4, 0);
        for _ in 0..2 {
            wait("work", || clients.count() >= 20);
            let away = random.below(2) as usize;
            site.leave(away);
            thread::sleep(Duration::from_millis(100 + random.below(300)));
            receiving.kill();
            fs::remove_dir_all(&site.spool).unwrap();
            receiving = site.receive(&[]);
            wait("the stream", || status_of(&site.spool, "state") == "streaming");
            // One of two repositories cannot acknowledge anything.
            thread::sleep(Duration::from_millis(500));
            let before = clients.count();
            thread::sleep(Duration::from_millis(300));
            assert_eq!(clients.count(), before, "{}", receiving.said());
            site.come_back(away);
            wait("commits", || clients.count() > before + 20);
        }
        receiving.kill();
        site.lose_server();
        fs::remove_dir_all(&site.spool).unwrap();
        let noted = clients.end();
        let lost = random.below(2) as usize;
        fs::remove_dir_all(&site.repos[lost]).unwrap();
        let found = site.recover(&installation, Some(1 - lost));
        assert_complete(&noted, &found, &format!("{version}, round {round}, without repository {lost}"));
    }
    Ok(())
}

/// One repository suffices to acknowledge. If the spool is lost and only the other one can be reached, the
/// receiver must not continue from there.
fn the_repository_with_the_newest_wal_is_waited_for() -> Outcome {
    let installation = postgres(18)?;
    let site = Site::new(18, 1)?;
    let mut receiving = site.receive(&[]);
    site.primary.wait_until_synchronous();
    let mut client = site.primary.cluster.client("postgres").unwrap();
    client.batch_execute("INSERT INTO acknowledged VALUES (0, 1)").unwrap();
    site.leave(0);
    client
        .batch_execute("INSERT INTO acknowledged VALUES (0, 2); SELECT pg_switch_wal(); INSERT INTO acknowledged VALUES (0, 3)")
        .unwrap();
    receiving.kill();
    fs::remove_dir_all(&site.spool).unwrap();
    site.leave(1);
    site.come_back(0);
    receiving = site.receive(&[]);
    wait("the refusal", || receiving.said().contains("expected 2 of 2 repositories"));
    let said = receiving.said();
    assert!(said.contains("reached 1") && said.contains(text(&site.repos[1])), "{said}");
    assert!(said.contains("--ignore-unreachable"), "{said}");
    thread::sleep(Duration::from_millis(500));
    assert!(!receiving.said()[said.len()..].contains("receiving from"), "{}", receiving.said());
    assert_eq!(status_of(&site.spool, "cause"), "unreachable");
    assert_eq!(files(&site.spool, "").iter().filter(|name| name.contains("partial")).count(), 0);
    // Once it is back, receiving continues on its own.
    site.come_back(1);
    wait("the stream", || status_of(&site.spool, "state") == "streaming");
    client.batch_execute("INSERT INTO acknowledged VALUES (0, 4)").unwrap();
    wait("the other repository", || files(&site.repos[0], "wal") == files(&site.repos[1], "wal"));
    // In an emergency, the administrator decides.
    site.leave(1);
    client.batch_execute("INSERT INTO acknowledged VALUES (0, 5)").unwrap();
    receiving.kill();
    fs::remove_dir_all(&site.spool).unwrap();
    receiving = site.receive(&["--ignore-unreachable"]);
    wait("the stream", || status_of(&site.spool, "state") == "streaming");
    client.batch_execute("INSERT INTO acknowledged VALUES (0, 6)").unwrap();
    site.come_back(1);
    receiving.kill();
    site.lose_server();
    let found = site.recover(&installation, None);
    assert_eq!(found, (1..=6).map(|number| (0, number)).collect());
    Ok(())
}

fn ten_outages_lose_nothing() -> Outcome {
    outages_lose_nothing(1, 6)?;
    outages_lose_nothing(2, 4)
}

fn a_hundred_outages_lose_nothing() -> Outcome {
    outages_lose_nothing(1, 50)?;
    outages_lose_nothing(2, 50)
}

/// One of two repositories at a time is away at random moments while pgbench and clients work. Now and then
/// the receiver is killed, and the spool lost. In the end, both repositories are equal without a command, and
/// each has all acknowledged rows.
fn outages_lose_nothing(acknowledge: usize, outages: u64) -> Outcome {
    const VERSION: u32 = 18;
    let installation = postgres(VERSION)?;
    let mut random = Random(outages << 8 | acknowledge as u64);
    let site = Site::new(VERSION, acknowledge)?;
    let cluster = &site.primary.cluster;
    let mut receiving = Some(site.receive(&[]));
    site.primary.wait_until_synchronous();
    cluster.pgbench("postgres", &["-i", "-q", "-s", "1"]).unwrap();
    let clients = Clients::start(cluster, 2, 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                cluster.pgbench("postgres", &["-c", "2", "-T", "1", "-n"]).unwrap();
            }
        });
        for _ in 0..outages {
            let before = clients.count();
            let away = random.below(2) as usize;
            site.leave(away);
            thread::sleep(Duration::from_millis(random.below(1200)));
            if random.below(4) == 0 {
                receiving.take().unwrap().kill();
                if random.below(2) == 0 {
                    fs::remove_dir_all(&site.spool).unwrap();
                }
                receiving = Some(site.receive(&[]));
                thread::sleep(Duration::from_millis(random.below(500)));
            }
            site.come_back(away);
            wait("commits", || clients.count() >= before + 5);
            thread::sleep(Duration::from_millis(random.below(300)));
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let receiving = receiving.unwrap();
    let noted = clients.end();
    assert!(noted.len() as u64 >= 5 * outages);
    let mut client = cluster.client("postgres").unwrap();
    let switched: String = client.query_one("SELECT pg_switch_wal()::text", &[]).unwrap().get(0);
    let switched: Lsn = switched.parse().unwrap();
    // Without a command, and while the server runs.
    let lists = || site.repos.each_ref().map(|repo| files(repo, "wal"));
    let is_archived = || {
        let archived = status_of(&site.spool, "archived_lsn");
        archived.as_str().and_then(|lsn| lsn.parse::<Lsn>().ok()) >= Some(switched)
    };
    let is_equal = || lists()[0] == lists()[1];
    wait("the catch-up", || {
        let is_done = is_archived() && is_equal();
        assert!(is_done || !receiving.said().contains("panicked"), "{}", receiving.said());
        is_done
    });
    let status = walden(&["archive", "status", "--config", text(&site.config), "--format", "json"]);
    let report: Value = serde_json::from_str(&status.stdout).unwrap();
    let missing: Vec<&Value> =
        report["copies"].as_array().unwrap().iter().map(|copy| &copy["missing_files"]).collect();
    assert_eq!(missing, [0, 0], "{status:?}");
    receiving.kill();
    drop(client);
    site.lose_server();
    fs::remove_dir_all(&site.spool).unwrap();
    let folder = site.repos[0].parent().unwrap();
    for name in &lists()[0] {
        let Some(segment) = Path::new(name).file_name().and_then(|name| name.to_str()?.get(..24)) else {
            continue;
        };
        let contents = site.repos.each_ref().map(|repo| {
            let file = folder.join("RECOVERYXLOG");
            let run = walden(&["archive", "get", "--repo", text(repo), segment, text(&file)]);
            assert_eq!(run.code, 0, "{run:?}");
            fs::read(file).unwrap()
        });
        assert!(contents[0] == contents[1], "{segment}");
    }
    for repo in 0..2 {
        let run = walden(&["archive", "verify", "--repo", text(&site.repos[repo])]);
        assert_eq!(run.code, 0, "{run:?}");
        assert_complete(&noted, &site.recover(&installation, Some(repo)), &format!("repository {repo}"));
    }
    Ok(())
}
