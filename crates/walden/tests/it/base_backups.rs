//! Base backups in the archive: servers that are restored from them, damage, failures in the middle, and
//! removal.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postgres::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder};
use walden_server::account;
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{json, program_for, text, wait_until_archived, wait_until_promoted};
use crate::material::{Run, make_archive, walden};
use crate::restore_forward::{amcheck, content, expect_same_content};

walden_testing::tests! {
    a_stored_backup_is_restored on [14, 15, 18, 19],
    a_stored_backup_is_advanced_in_the_archive on [15, 18],
    an_encrypted_archive_holds_backups_and_a_killed_one_is_removed,
    backups_that_a_rule_does_not_keep_are_removed,
    what_cannot_be_stored_leaves_no_backup,
}

/// A server that archives, with a tablespace.
pub struct Site {
    pub cluster: Cluster,
    pub repo: PathBuf,
    pub program: PathBuf,
    pub tablespace: PathBuf,
}

impl Site {
    pub fn start(version: u32, segment_mb: u32) -> Result<Site, Missing> {
        let installation = postgres(version)?;
        let cluster = ClusterBuilder::new(installation)
            .wal_segsize_mb(segment_mb)
            .checksums(true)
            .setting("autovacuum", "off")
            .setting("archive_mode", "on")
            .setting("archive_command", "/bin/false")
            .setting("wal_level", "replica")
            .setting("max_wal_senders", "4")
            .start()
            .unwrap();
        let repo = cluster.make_folder("repo").unwrap();
        let program = program_for(&cluster);
        let tablespace = cluster.dir().join("fast");
        Ok(Site { cluster, repo, program, tablespace })
    }

    /// Lets the server archive to a new archive, and creates tables.
    pub fn prepare(&self) -> Client {
        make_archive(&self.repo);
        self.cluster.make_folder("fast").unwrap();
        self.archive_with("--repo", &self.repo);
        let mut client = self.cluster.client("postgres").unwrap();
        for sql in [
            &format!("CREATE TABLESPACE fast LOCATION '{}'", self.tablespace.display()),
            "CREATE TABLE large AS SELECT g i, md5(g::text) t, repeat(md5(g::text), 20) v FROM generate_series(1, 60000) g",
            "CREATE INDEX ON large (i)",
            "CREATE TABLE in_fast TABLESPACE fast AS SELECT g i, md5(g::text) t FROM generate_series(1, 3000) g",
            "CREATE DATABASE other",
            "CHECKPOINT",
            "SELECT pg_switch_wal()",
        ] {
            client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        self.wait_until_archived(&mut client);
        client
    }

    pub fn archive_with(&self, option: &str, path: &Path) {
        let push = format!("{} archive push {option} {} %p", self.program.display(), path.display());
        let mut client = self.cluster.client("postgres").unwrap();
        client.batch_execute(&format!("ALTER SYSTEM SET archive_command = '{push}'")).unwrap();
        client.batch_execute("SELECT pg_reload_conf()").unwrap();
    }

    pub fn wait_until_archived(&self, client: &mut Client) {
        // The command of the start fails.
        client.batch_execute("SELECT pg_stat_reset_shared('archiver')").unwrap();
        wait_until_archived(client);
    }

    pub fn create(&self, options: &[&str]) -> Run {
        let dsn = self.cluster.dsn("postgres");
        let arguments = ["backup", "create", &dsn, "--checkpoint", "fast", "--format", "json"];
        walden(&[&arguments[..], &["--repo", text(&self.repo)], options].concat())
    }

    pub fn created(&self, options: &[&str]) -> Value {
        let run = self.create(options);
        assert_eq!(run.code, 0, "{run:?}");
        parsed(&run)
    }

    pub fn list(&self) -> Value {
        json(&["archive", "list", "--format", "json", "--repo", text(&self.repo)])
    }

    pub fn restore(&self, to: &Path, options: &[&str]) -> Run {
        let get = format!("{} archive get --repo {} %f \"%p\"", self.program.display(), self.repo.display());
        let mapping = format!("{}={}", self.tablespace.display(), to.with_extension("fast").display());
        let mapping = match self.tablespace.exists() {
            true => &["--tablespace-mapping", &mapping][..],
            false => &[],
        };
        let arguments = ["restore", "--repo", text(&self.repo), "-o", text(to)];
        let settings = ["--restore-command", &get, "--target-action", "promote", "--format", "json"];
        walden(&[&arguments[..], mapping, &settings, options].concat())
    }

    /// Starts a server on a restored data directory, in which it stays.
    pub fn start_restored(&self, data: &Path) -> Cluster {
        let space = data.with_extension("fast");
        let entries = fs::read_dir(data.join("pg_tblspc")).unwrap().map(|entry| entry.unwrap().path());
        let links: Vec<PathBuf> = entries.filter(|path| path.is_symlink()).collect();
        for link in &links {
            assert_eq!(fs::read_link(link).unwrap(), space);
            // The lab copies the directory without the link.
            fs::remove_file(link).unwrap();
        }
        let builder = ClusterBuilder::new(self.cluster.installation().clone()).copy_of(data);
        let builder = builder.setting("archive_mode", "off").setting("autovacuum", "off");
        let builder = builder.setting("allow_in_place_tablespaces", "on");
        let server = builder.start_after(|copy| {
            for link in &links {
                symlink(&space, copy.join("pg_tblspc").join(link.file_name().unwrap()))?;
                account::chown_all(&space)?;
            }
            Ok(())
        });
        let server = server.unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&server);
        server
    }

    /// The pieces in the archive, largest first.
    pub fn pieces(&self) -> Vec<PathBuf> {
        let mut pieces = files_below(&self.repo.join("base"));
        let is_piece = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem.len() >= 64);
        pieces.retain(is_piece);
        pieces.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().len()));
        pieces
    }
}

/// Reads the output of a command.
pub fn parsed(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// A number of a document.
pub fn number(document: &Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("{name}: {document:#}"))
}

pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A second backup stores changed pieces only. Each is restored, also after the first one was removed, and a
/// damaged piece is refused or read from a copy of the archive.
fn a_stored_backup_is_restored(version: u32) -> Outcome {
    let site = Site::start(version, 1)?;
    let mut client = site.prepare();
    let first = site.created(&["--label", "it's first"]);
    for sql in ["UPDATE large SET t = t || 'x' WHERE i = 5", "INSERT INTO in_fast SELECT 0, 'new'"] {
        client.batch_execute(sql).unwrap();
    }
    let second = site.created(&[]);
    let (stored, new) = (number(&second, "stored_bytes"), number(&second, "new_bytes"));
    assert_eq!(number(&first, "new_bytes"), number(&first, "stored_bytes"));
    assert!(number(&first, "bytes") > 60 << 20 && new < stored / 2, "{version}: {first} {second}");

    // Work after the backup is in the archive.
    client.batch_execute("DELETE FROM large WHERE i % 7 = 0; DELETE FROM in_fast WHERE i > 2900").unwrap();
    client.batch_execute("SELECT pg_create_restore_point('later')").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    let expected = content(&site.cluster);
    let list = site.list();
    let listed: Vec<&str> =
        list["stored_backups"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(listed, [first["name"].as_str().unwrap(), second["name"].as_str().unwrap()], "{list:#}");
    assert_eq!(list["stored_backups"][0]["label"], "it's first");
    let shown = walden(&["archive", "list", "--repo", text(&site.repo)]);
    assert!(shown.code == 0 && shown.stdout.contains("\"it's first\": "), "{shown:?}");
    let verified = walden(&["archive", "verify", "--format", "json", "--repo", text(&site.repo)]);
    assert_eq!((verified.code, &parsed(&verified)["base_backups"]), (0, &2.into()), "{verified:?}");

    // The newest one by default; another one by its name.
    for (folder, options) in [
        ("newest", &["--verify-base"][..]),
        ("named", &["--base", listed[0], "--to", "name:later"]),
        ("before", &["--to", second["start_lsn"].as_str().unwrap()]),
    ] {
        let data = site.cluster.dir().join(folder);
        let run = site.restore(&data, options);
        assert_eq!(run.code, 0, "{version}: {run:?}");
        let plan = parsed(&run)["plan"].clone();
        let used = if folder == "newest" { listed[1] } else { listed[0] };
        assert!(plan["base"].as_str().unwrap().ends_with(used), "{folder}: {plan:#}");
        if folder != "before" {
            let server = site.start_restored(&data);
            expect_same_content(&content(&server), &expected);
            amcheck(&server);
        }
    }

    // Without the first one, the second is still complete: its pieces stay.
    let pruned = walden(&[
        "archive",
        "prune",
        "--keep-backups",
        "1",
        "--apply",
        "--format",
        "json",
        "--repo",
        text(&site.repo),
    ]);
    assert_eq!((pruned.code, &parsed(&pruned)["removed_backups"][0]), (0, &first["name"]), "{pruned:?}");
    assert!(!site.repo.join("base").join(listed[0]).join("backup.json").exists());
    assert!(files_below(&site.repo.join("base").join(listed[0])).len() > 1, "pieces of the second");
    let verified = walden(&["archive", "verify", "--repo", text(&site.repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let bin = &site.cluster.installation().bin_dir;
    let drill = ["archive", "drill", "--no-amcheck", "--bin", text(bin), "--repo", text(&site.repo)];
    let drilled = walden(&drill);
    assert_eq!(drilled.code, 0, "{version}: {drilled:?}");

    // A damaged and a missing piece are named, and never restored.
    for damage in [flip_a_bit as fn(&Path), |path| fs::remove_file(path).unwrap()] {
        let piece = site.pieces()[0].clone();
        let whole = fs::read(&piece).unwrap();
        damage(&piece);
        let name = piece.file_name().unwrap().to_str().unwrap();
        let verified = walden(&["archive", "verify", "--repo", text(&site.repo)]);
        assert!(verified.code == 1 && verified.stdout.contains(name), "{verified:?}");
        let refused = site.restore(&site.cluster.dir().join("refused"), &[]);
        assert!(refused.code == 3 && refused.stderr.contains(name), "{refused:?}");
        assert!(!site.cluster.dir().join("refused").exists());
        fs::write(&piece, whole).unwrap();
    }
    Ok(())
}

/// Public keys suffice to store backups. A backup whose process was killed is none, and prune removes it once
/// it is old.
fn an_encrypted_archive_holds_backups_and_a_killed_one_is_removed() -> Outcome {
    let site = Site::start(15, 16)?;
    let key = site.cluster.dir().join("user.key");
    let made = walden(&["archive", "key", "generate", "-o", text(&key)]);
    let recipient = made.stdout.lines().next().unwrap().to_owned();
    let config = site.cluster.dir().join("walden.toml");
    let repo = site.cluster.dir().join("encrypted");
    let init = ["archive", "init", "--repo", text(&repo), "--recipient", &recipient, "-o", text(&config)];
    let init = walden(&init);
    assert_eq!(init.code, 0, "{init:?}");
    account::chown_all(&repo).unwrap();
    account::chown(&config).unwrap();
    let site = Site { repo, ..site };
    site.archive_with("--config", &config);
    let mut client = site.cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE large AS SELECT g i, md5(g::text) t FROM generate_series(1, 200000) g")
        .unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    let first = site.created(&[]);
    let second = site.create(&[]);
    assert!(second.code == 0 && second.stderr.contains("without a private key"), "{second:?}");
    let (new, stored) = (parsed(&second)["new_bytes"].clone(), parsed(&second)["stored_bytes"].clone());
    assert!(new.as_u64().unwrap() < stored.as_u64().unwrap() / 2, "{second:?}");
    assert!(site.pieces().iter().all(|piece| piece.extension().unwrap() == "age"));

    // Killed in the middle.
    let dsn = site.cluster.dsn("postgres");
    let mut killed = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args([
            "backup",
            "create",
            &dsn,
            "--checkpoint",
            "fast",
            "--max-rate",
            "2MB",
            "--repo",
            text(&site.repo),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let started =
        || files_below(&site.repo.join("base")).into_iter().filter(|it| it.ends_with("started.json.age"));
    while started().count() < 3 {
        assert!(began.elapsed() < Duration::from_secs(60), "not started");
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = Pid::from_child(&killed);
    kill_process(process, Signal::STOP).unwrap();
    let identity = ["--identity", text(&key), "--repo", text(&site.repo)];
    let list = json(&[&["archive", "list", "--format", "json"], &identity[..]].concat());
    assert_eq!(list["stored_backups"].as_array().unwrap().len(), 2, "{list:#}");
    assert_eq!(list["unfinished_backups"][0]["state"], "in_progress", "{list:#}");
    let abandoned = list["unfinished_backups"][0]["name"].as_str().unwrap();

    // While it may be in progress, no piece is removed.
    let prune = || {
        let arguments = ["archive", "prune", "--keep-backups", "1", "--apply", "--format", "json"];
        let run = walden(&[&arguments[..], &identity].concat());
        assert_eq!(run.code, 0, "{run:?}");
        parsed(&run)["freed"].clone()
    };
    let pieces = site.pieces().len();
    let freed = prune();
    assert!(freed["postponed"].as_str().unwrap().contains(abandoned), "{freed:#}");
    assert_eq!((site.pieces().len(), &freed["backups"][0]), (pieces, &first["name"]));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let list = json(&[&["archive", "list", "--format", "json"], &identity[..]].concat());
    let states = |list: &Value| {
        let unfinished = list["unfinished_backups"].as_array().unwrap();
        unfinished.iter().map(|it| (it["name"].clone(), it["state"].clone())).collect::<Vec<_>>()
    };
    let interrupted = [(abandoned.into(), "interrupted".into())];
    assert!(states(&list).contains(&interrupted[0]), "{list:#}");
    let freed = prune();
    assert!(freed["postponed"].is_null() && site.pieces().len() < pieces, "{freed:#}");
    assert!(files_below(&site.repo.join("base").join(abandoned)).is_empty());

    let verify = walden(&[&["archive", "verify"], &identity[..]].concat());
    assert_eq!(verify.code, 0, "{verify:?}");
    let data = site.cluster.dir().join("restored");
    let restored = site.restore(&data, &["--identity", text(&key), "--verify-base"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let locked = site.restore(&site.cluster.dir().join("locked"), &[]);
    assert!(locked.code == 3 && locked.stderr.contains("private key"), "{locked:?}");
    let listed = walden(&["archive", "list", "--repo", text(&site.repo)]);
    assert!(listed.stdout.contains("(--identity FILE), 1 base backup, times"), "{listed:?}");
    Ok(())
}

/// Backups between two kept ones are removed too; nothing else has changed, and the last backup is never
/// removed.
fn backups_that_a_rule_does_not_keep_are_removed() -> Outcome {
    let site = Site::start(15, 1)?;
    let mut client = site.prepare();
    let mut names = Vec::new();
    for round in 0..3 {
        client.batch_execute(&format!("UPDATE in_fast SET t = 'round {round}'")).unwrap();
        names.push(site.created(&[])["name"].as_str().unwrap().to_owned());
    }
    let prune = |options: &[&str]| {
        let arguments = ["archive", "prune", "--format", "json", "--repo", text(&site.repo)];
        let run = walden(&[&arguments[..], options].concat());
        assert_eq!(run.code, 0, "{run:?}");
        parsed(&run)
    };
    let left = || -> Vec<String> {
        let list = site.list();
        let backups = list["stored_backups"].as_array().unwrap().iter();
        backups.map(|backup| backup["name"].as_str().unwrap().to_owned()).collect()
    };
    // The plan names the removed backups, and removes nothing.
    let plan = prune(&["--keep", "daily=7"]);
    assert_eq!(plan["removed_backups"], serde_json::json!(names[..2]), "{plan:#}");
    assert_eq!(left(), names);
    assert!(prune(&["--apply"])["removed_backups"].as_array().unwrap().is_empty());
    let applied = prune(&["--keep", "last=2", "--apply"]);
    assert_eq!(applied["removed_backups"], serde_json::json!(names[..1]), "{applied:#}");
    assert_eq!(left(), names[1..]);
    prune(&["--keep-backups", "1", "--apply"]);
    assert_eq!(left(), names[2..]);
    prune(&["--keep", "yearly=1", "--apply"]);
    assert_eq!(left(), names[2..]);
    // Every piece that is left belongs to the last one: with it, all goes.
    let verified = walden(&["archive", "verify", "--repo", text(&site.repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let restored = site.restore(&site.cluster.dir().join("restored"), &["--verify-base"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    copies_replace_damaged_pieces(&site);
    Ok(())
}

/// A copy of the archive has the backups. With both, a damaged piece of one is read from the other, and
/// replaced by it.
fn copies_replace_damaged_pieces(site: &Site) {
    let second = site.cluster.make_folder("second").unwrap();
    make_archive(&second);
    let from = ["--repo", text(&second), "--from", text(&site.repo)];
    let copied = walden(&[&["archive", "copy", "--format", "json"], &from[..]].concat());
    assert_eq!((copied.code, &parsed(&copied)[0]["base_backups"]["copied"]), (0, &1.into()), "{copied:?}");
    let again = walden(&[&["archive", "copy", "--format", "json"], &from[..]].concat());
    assert_eq!((again.code, &parsed(&again)[0]["base_backups"]["objects"]), (0, &0.into()), "{again:?}");
    let other = Site {
        repo: second.clone(),
        cluster: ClusterBuilder::new(site.cluster.installation().clone()).start().unwrap(),
        program: site.program.clone(),
        tablespace: site.tablespace.clone(),
    };
    let piece = other.pieces()[0].clone();
    flip_a_bit(&piece);
    let config = site.cluster.dir().join("walden.toml");
    let list = format!(
        "[archive]\nrepo = [{:?}, {:?}]\nbackup_max_age_hours = 24\n",
        text(&second),
        text(&site.repo)
    );
    fs::write(&config, &list).unwrap();
    let mapping = format!("{}={}", site.tablespace.display(), site.cluster.dir().join("both.fast").display());
    let both = site.cluster.dir().join("both");
    let restored = walden(&[
        "restore",
        "--config",
        text(&config),
        "-o",
        text(&both),
        "--tablespace-mapping",
        &mapping,
        "--verify-base",
    ]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let repaired = walden(&[&["archive", "repair"], &from[..]].concat());
    assert_eq!(repaired.code, 0, "{repaired:?}");
    let verified = walden(&["archive", "verify", "--repo", text(&second)]);
    assert_eq!(verified.code, 0, "{verified:?}");

    // The age of the newest backup.
    let status = || walden(&["archive", "status", "--config", text(&config)]);
    assert!(status().stdout.contains("1 base backup, the newest"), "{:?}", status());
    fs::write(&config, list.replace("= 24", "= 0")).unwrap();
    let old = status();
    assert!(old.code == 1 && old.stdout.contains("walden backup create"), "{old:?}");
}

/// Another cluster's archive, an empty one, missing WAL, and a store that fails.
fn what_cannot_be_stored_leaves_no_backup() -> Outcome {
    let site = Site::start(18, 1)?;
    make_archive(&site.repo);
    let empty = site.create(&[]);
    assert!(empty.code == 3 && empty.stderr.contains("set up archiving first"), "{empty:?}");
    let mut client = site.prepare();
    let other = Site::start(15, 1)?;
    let foreign = other.create(&["--repo", text(&site.repo)][..0]);
    assert_eq!(foreign.code, 3, "{foreign:?}");
    let other = Site { repo: site.repo.clone(), ..other };
    let foreign = other.create(&[]);
    assert!(foreign.code == 3 && foreign.stderr.contains("belongs to another cluster"), "{foreign:?}");
    assert!(!site.repo.join("base").exists());
    drop(other);

    // The data is stored, and its WAL is missing.
    client.batch_execute("ALTER SYSTEM SET archive_command = '/bin/false'").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let late = site.create(&["--wait-for-wal", "1"]);
    assert!(late.code == 1 && late.stderr.contains("cannot be restored yet"), "{late:?}");
    let missing = parsed(&late)["missing_segment"].as_str().unwrap().to_owned();
    let list = walden(&["archive", "list", "--repo", text(&site.repo)]);
    assert!(list.code == 1 && list.stdout.contains(&format!("{missing} is MISSING")), "{list:?}");
    // It does not count: the only one is never removed.
    let pruned = walden(&["archive", "prune", "--keep-backups", "1", "--apply", "--repo", text(&site.repo)]);
    assert!(pruned.code == 1 && pruned.stdout.contains("nothing is removed"), "{pruned:?}");
    site.archive_with("--repo", &site.repo);
    site.wait_until_archived(&mut client);
    let list = walden(&["archive", "list", "--repo", text(&site.repo)]);
    assert_eq!(list.code, 0, "{list:?}");

    // A store that fails in the middle.
    client.batch_execute("UPDATE large SET t = 'changed'").unwrap();
    let folders = || fs::read_dir(site.repo.join("base")).unwrap().count();
    let before = folders();
    let dsn = site.cluster.dsn("postgres");
    let limited = Command::new("bash")
        .args(["-c", "ulimit -f 100; trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_walden")])
        .args(["backup", "create", &dsn, "--checkpoint", "fast", "--repo", text(&site.repo)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.code() == Some(3) && said.contains("cannot create base/"), "{said}");
    assert_eq!(folders(), before + 1);
    assert_eq!(site.list()["stored_backups"].as_array().unwrap().len(), 1);
    // The next one succeeds.
    site.created(&[]);
    assert_eq!(site.list()["stored_backups"].as_array().unwrap().len(), 2);
    Ok(())
}

/// A stored backup becomes a later one without the server, again and again; only changed pieces are stored.
/// The result is a backup as any other, also without the first one.
fn a_stored_backup_is_advanced_in_the_archive(version: u32) -> Outcome {
    let site = Site::start(version, 1)?;
    let mut client = site.prepare();
    client
        .batch_execute("CREATE TABLE still AS SELECT md5(g::text) t FROM generate_series(1, 400000) g")
        .unwrap();
    client.batch_execute("VACUUM (FREEZE) still").unwrap();
    let first = site.created(&["--label", "first"]);
    let work = site.cluster.dir().join("work");
    let run = |base: &str, options: &[&str]| {
        let arguments = ["backup", "advance", base, "--repo", text(&site.repo), "--format", "json"];
        walden(&[&arguments[..], &["--store", "--work", text(&work)], options].concat())
    };
    let advance = |options: &[&str]| {
        let run = run("latest", options);
        assert!(run.code == 0 && !work.exists(), "{version}: {run:?}");
        parsed(&run)
    };
    let mut names = vec![first["name"].as_str().unwrap().to_owned()];
    for round in 0..2 {
        for sql in [
            &format!("UPDATE large SET t = t || '{round}' WHERE i % 1000 = {round}"),
            &format!("INSERT INTO in_fast SELECT g, 'round {round}' FROM generate_series(1, 100) g"),
            &format!("CREATE TABLE added{round} TABLESPACE fast AS SELECT generate_series(1, 1000) i"),
            "CHECKPOINT",
            "SELECT pg_switch_wal()",
        ] {
            client.batch_execute(sql).unwrap();
        }
        site.wait_until_archived(&mut client);
        assert!(advance(&["--dry-run"])["stored"].is_null());
        let stored = advance(&[])["stored"].clone();
        let number = |name: &str| stored[name].as_u64().unwrap();
        assert!(number("new_bytes") < number("stored_bytes") * 2 / 3, "{version} {round}: {stored:#}");
        names.push(stored["name"].as_str().unwrap().to_owned());
        // Nothing follows.
        assert!(advance(&[])["stored"].is_null());
    }
    client.batch_execute("DELETE FROM large WHERE i % 7 = 0; SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    let expected = content(&site.cluster);
    let listed = || -> Vec<String> {
        let list = site.list();
        let backups = list["stored_backups"].as_array().unwrap().iter();
        backups.map(|backup| backup["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(), names);
    assert_eq!(site.list()["stored_backups"][2]["label"], "first");

    // Refusals, which store nothing.
    let folder = site.cluster.make_folder("folder").unwrap();
    let refused = run(text(&folder), &[]);
    assert!(refused.code == 3 && refused.stderr.contains("the name of one in the archive"), "{refused:?}");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("own"), "own").unwrap();
    let refused = run("latest", &[]);
    assert!(refused.code == 3 && refused.stderr.contains("one with files"), "{refused:?}");
    assert_eq!(fs::read(work.join("own")).unwrap(), b"own");
    fs::remove_dir_all(&work).unwrap();
    let missing = walden(&["backup", "advance", "latest", "--repo", text(&site.repo), "--store"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    assert_eq!(listed(), names);

    // Without the earlier ones, the last is complete.
    let keep = ["archive", "prune", "--keep-backups", "1", "--apply", "--repo", text(&site.repo)];
    let pruned = walden(&keep);
    assert_eq!(pruned.code, 0, "{pruned:?}");
    assert_eq!(listed(), names[2..]);
    let verified = walden(&["archive", "verify", "--repo", text(&site.repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let data = site.cluster.dir().join("restored");
    let restored = site.restore(&data, &["--verify-base"]);
    assert_eq!(restored.code, 0, "{version}: {restored:?}");
    let server = site.start_restored(&data);
    expect_same_content(&content(&server), &expected);
    amcheck(&server);
    drop(server);
    let bin = &site.cluster.installation().bin_dir;
    let drill = ["archive", "drill", "--no-amcheck", "--bin", text(bin), "--repo", text(&site.repo)];
    let drilled = walden(&drill);
    assert_eq!(drilled.code, 0, "{version}: {drilled:?}");
    // A backup of the server after it refers to its pieces.
    let next = site.created(&[]);
    assert!(next["new_bytes"].as_u64() < next["stored_bytes"].as_u64(), "{next:#}");
    Ok(())
}
