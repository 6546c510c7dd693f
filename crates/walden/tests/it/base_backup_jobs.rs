//! Base backups whose files several connections read: judged by PostgreSQL's own tools, continued after
//! kills, with what has changed only, and without rights.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;
use walden_archive::archive::Archive;
use walden_archive::base_backups;
use walden_archive::store::Folder;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_server::account;
use walden_testing::Outcome;

use crate::archive::text;
use crate::base_backups::{Site, files_below, number, parsed};
use crate::material::{Run, walden};
use crate::restore_forward::{amcheck, content, expect_same_content};

walden_testing::tests! {
    a_busy_server_is_stored_by_several_connections on [14, 15, 18, 19],
    a_killed_backup_is_continued on [15],
    a_small_change_is_all_that_is_sent on [15, 18],
    unchanged_files_are_not_read_with_wal_summaries on [17, 18],
    rights_and_lost_connections_decide_how_files_are_read on [14, 15],
    invalid_pages_are_refused_and_read_again on [15],
    a_standby_is_stored_by_several_connections on [15, 18],
}

/// Unpacks a stored backup as it is, and returns its folder.
fn unpack(site: &Site, name: &str) -> PathBuf {
    let archive = Archive::new(Box::new(Folder::new(&site.repo)));
    let backup = base_backups::find(&archive, name).unwrap();
    let stored = base_backups::open(&archive, &[], &backup, 2).unwrap();
    let folder = site.cluster.dir().join(format!("unpacked-{name}"));
    for tablespace in std::iter::once(None).chain(stored.tablespaces.iter().copied().map(Some)) {
        let place = match tablespace {
            Some(oid) => folder.join("pg_tblspc").join(format!("{oid}")),
            None => folder.clone(),
        };
        fs::create_dir_all(&place).unwrap();
        tar::Archive::new(stored.streams.open(tablespace, None).unwrap()).unpack(&place).unwrap();
    }
    fs::write(folder.join("backup_manifest"), &stored.manifest).unwrap();
    folder
}

/// Lets PostgreSQL compare an unpacked backup with its manifest, where the installation has the program.
fn verify(site: &Site, folder: &Path) {
    let bin = &site.cluster.installation().bin_dir;
    let installed = Path::new("/usr/lib/postgresql/15/bin/pg_verifybackup").to_owned();
    let program = [bin.join("pg_verifybackup"), installed].into_iter().find(|it| it.exists());
    // That of 15 does not know version 2 of the manifest.
    let Some(program) = program.filter(|it| it.starts_with(bin) || site.cluster.major() < 17) else { return };
    let output = Command::new(program).args(["-n", "-e", text(folder)]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Lets PostgreSQL verify all checksums of a stopped cluster.
fn verify_pages(cluster: &Cluster) {
    cluster.stop(StopMode::Fast).unwrap();
    let program = cluster.installation().bin_dir.join("pg_checksums");
    if program.exists() {
        let output =
            Command::new(program).args(["--check", "-D", text(&cluster.data_dir())]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Ends the work of another thread, also after a panic.
struct Ending<'f>(&'f AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes tables, and creates and drops relations and databases, until the flag is set.
fn work(cluster: &Cluster, is_done: &AtomicBool, rounds: &AtomicU64) {
    let mut client = cluster.client("postgres").unwrap();
    while !is_done.load(Ordering::Relaxed) {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        for sql in [
            format!(
                "UPDATE large SET t = md5(i::text || {round}) WHERE i BETWEEN {0} AND {0} + 500",
                700 * (round % 80)
            ),
            format!(
                "CREATE TABLE short_{round} AS SELECT g i, repeat('x', 500) v FROM generate_series(1, 4000) g"
            ),
            "INSERT INTO unlogged SELECT g FROM generate_series(1, 1000) g".to_owned(),
            format!("DROP TABLE IF EXISTS short_{}", round.wrapping_sub(1)),
            "TRUNCATE scratch".to_owned(),
            "INSERT INTO scratch SELECT g, repeat('y', 700) FROM generate_series(1, 7000) g".to_owned(),
            "CHECKPOINT".to_owned(),
        ] {
            client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        if round.is_multiple_of(4) {
            client.batch_execute(&format!("CREATE DATABASE short_{round}")).unwrap();
        } else if round % 4 == 2 {
            client.batch_execute(&format!("DROP DATABASE short_{}", round - 2)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Under load, with tablespaces of both kinds and unlogged tables. The restored server has what the original
/// has, and so has one that was received over the replication protocol.
fn a_busy_server_is_stored_by_several_connections(version: u32) -> Outcome {
    let site = Site::start(version, 16)?;
    let mut client = site.prepare();
    for sql in [
        "CREATE UNLOGGED TABLE unlogged (v int)",
        "CREATE INDEX ON unlogged (v)",
        "CREATE TABLE scratch (i int, v text)",
        "SET allow_in_place_tablespaces = on",
        "CREATE TABLESPACE inside LOCATION ''",
        "CREATE TABLE in_inside TABLESPACE inside AS SELECT 'inside' t",
    ] {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let (is_done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (first, second, received) = std::thread::scope(|scope| {
        scope.spawn(|| work(&site.cluster, &is_done, &rounds));
        let _ending = Ending(&is_done);
        while rounds.load(Ordering::Relaxed) < 2 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let first = site.created(&["--jobs", "3", "--max-rate", "30MB", "--label", "by files"]);
        let second = site.created(&["--jobs", "3"]);
        let received = site.created(&["--jobs", "0"]);
        (first, second, received)
    });
    assert_eq!((&first["jobs"], &received["jobs"], &first["note"]), (&3.into(), &0.into(), &Value::Null));
    assert!(number(&second, "unchanged_bytes") > 0, "{version}: {second}");
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    let expected = content(&site.cluster);
    for backup in [&first, &second, &received] {
        // Up to 15, BASE_BACKUP leaves out tablespaces in place if it sends tablespace_map.
        if version < 16 && backup["jobs"] == 0 {
            continue;
        }
        let name = backup["name"].as_str().unwrap();
        let folder = unpack(&site, name);
        verify(&site, &folder);
        for left_out in ["postmaster.pid", "pg_wal/000000010000000000000001", "pg_notify/0000"] {
            assert!(!folder.join(left_out).exists(), "{left_out}");
        }
        assert!(folder.join("pg_wal/archive_status").is_dir() && folder.join("pg_replslot").is_dir());
        let data = site.cluster.dir().join(format!("restored-{name}"));
        let restored = site.restore(&data, &["--base", name, "--verify-base"]);
        assert_eq!(restored.code, 0, "{version}: {restored:?}");
        let server = site.start_restored(&data);
        expect_same_content(&content(&server), &expected);
        let unlogged = "SELECT count(*) FROM unlogged";
        let count: i64 = server.client("postgres").unwrap().query_one(unlogged, &[]).unwrap().get(0);
        assert_eq!(count, 0);
        amcheck(&server);
        verify_pages(&server);
    }
    let checked = walden(&["archive", "verify", "--repo", text(&site.repo)]);
    assert_eq!(checked.code, 0, "{checked:?}");
    Ok(())
}

/// Starts a slow backup, and waits until it has stored this number of notes.
fn start_slow(site: &Site, notes: usize, options: &[&str]) -> Child {
    let dsn = site.cluster.dsn("postgres");
    let child = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["backup", "create", &dsn, "--checkpoint", "fast", "--repo", text(&site.repo)])
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while noted(site) < notes {
        assert!(began.elapsed() < Duration::from_secs(120), "no notes");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

/// The number of notes of stored pieces.
fn noted(site: &Site) -> usize {
    let is_note = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("progress-");
    files_below(&site.repo.join("base")).iter().filter(|path| is_note(path)).count()
}

/// Kills backups in the middle: the next one takes their pieces over, and removes what is left of them. An
/// encrypted archive needs its private key for that.
fn a_killed_backup_is_continued(version: u32) -> Outcome {
    let site = Site::start(version, 16)?;
    let mut client = site.prepare();
    client
        .batch_execute("CREATE TABLE huge AS SELECT g i, md5(g::text) || md5((g + 1)::text) v FROM generate_series(1, 1200000) g")
        .unwrap();
    client.batch_execute("CHECKPOINT; SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    for jobs in ["2", "1"] {
        let mut child = start_slow(&site, 1, &["--jobs", jobs, "--max-rate", "12MB"]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(site.list()["stored_backups"].as_array().unwrap().len(), 0);
    }
    let whole = number(&site.created(&["--jobs", "2"]), "continued_bytes");
    let created = site.list()["stored_backups"][0]["name"].as_str().unwrap().to_owned();
    assert!(whole >= 16 << 20, "{whole}");
    // Nothing is left of the killed ones but pieces of the new one.
    assert_eq!(noted(&site), 0);
    let list = site.list();
    let unfinished = list["unfinished_backups"].as_array().unwrap();
    assert!(unfinished.iter().all(|backup| backup["state"] != "in_progress"), "{list:#}");
    let started = files_below(&site.repo.join("base")).into_iter().filter(|it| it.ends_with("started.json"));
    assert_eq!(started.count(), 1);
    verify(&site, &unpack(&site, &created));
    let restored = site.restore(&site.cluster.dir().join("restored"), &["--verify-base"]);
    assert_eq!(restored.code, 0, "{restored:?}");

    // One over the replication protocol does not store again what a killed one has.
    client
        .batch_execute(
            "CREATE TABLE more AS SELECT g i, sha256(g::text::bytea) v FROM generate_series(1, 600000) g",
        )
        .unwrap();
    client.batch_execute("CHECKPOINT; SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    let mut child = start_slow(&site, 1, &["--jobs", "1", "--max-rate", "12MB"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = site.pieces().len();
    let received = site.created(&["--jobs", "0"]);
    let changed = number(&received, "new_bytes");
    let all = walden(&["archive", "verify", "--repo", text(&site.repo)]);
    assert!(
        all.code == 0 && before > 0 && changed < number(&received, "stored_bytes") / 2,
        "{all:?} {received}"
    );
    Ok(())
}

/// The server sends only parts of files that have changed. What the backup takes over is still complete.
fn a_small_change_is_all_that_is_sent(version: u32) -> Outcome {
    let site = Site::start(version, 1)?;
    let mut client = site.prepare();
    client
        .batch_execute(
            "CREATE TABLE huge AS SELECT g i, repeat(md5(g::text), 10) v FROM generate_series(1, 200000) g",
        )
        .unwrap();
    client.batch_execute("CREATE INDEX ON huge (i); CHECKPOINT").unwrap();
    let first = site.created(&["--jobs", "2"]);
    let bytes = number(&first, "bytes");
    assert!(bytes > 100 << 20 && number(&first, "unchanged_bytes") == 0, "{first}");
    client.batch_execute("UPDATE huge SET v = 'x' WHERE i = 100000; CHECKPOINT").unwrap();
    let second = site.created(&["--jobs", "2"]);
    let (sent, unchanged) = (number(&second, "received_bytes"), number(&second, "unchanged_bytes"));
    assert!(sent < 64 << 20 && sent < bytes / 2 && sent + unchanged >= bytes * 9 / 10, "{second}");
    assert!(number(&second, "new_bytes") < number(&second, "stored_bytes") / 2, "{second}");
    // Without the first one, the second is complete.
    let prune = ["archive", "prune", "--keep-backups", "1", "--apply", "--repo", text(&site.repo)];
    assert_eq!(walden(&prune).code, 0);
    let name = second["name"].as_str().unwrap();
    verify(&site, &unpack(&site, name));
    // A copy of the archive serves a third one.
    let third = site.created(&["--jobs", "2"]);
    assert!(number(&third, "received_bytes") <= sent, "{third}");
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    let data = site.cluster.dir().join("restored");
    let restored = site.restore(&data, &["--verify-base"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let server = site.start_restored(&data);
    expect_same_content(&content(&server), &content(&site.cluster));
    Ok(())
}

/// With WAL summaries, the server does not read what no WAL has changed. Relations that were cut, written
/// again or replaced by others of the same name and size are read. Without a summary, everything is read.
fn unchanged_files_are_not_read_with_wal_summaries(version: u32) -> Outcome {
    let site = Site::start(version, 16)?;
    let mut client = site.prepare();
    let run = |client: &mut Client, commands: &[&str]| {
        for sql in commands {
            client.batch_execute(sql).unwrap_or_else(|error| panic!("{version}: {sql}: {error}"));
        }
    };
    run(&mut client, &["ALTER SYSTEM SET summarize_wal = on", "SELECT pg_reload_conf()"]);
    let rows = "repeat(md5(g::text), 10) v FROM generate_series";
    run(
        &mut client,
        &[
            &format!("CREATE TABLE huge AS SELECT g i, {rows}(1, 500000) g"),
            "CREATE INDEX ON huge (i)",
            &format!("CREATE TABLE changed AS SELECT g i, {rows}(1, 100000) g"),
            &format!("CREATE TABLE growing TABLESPACE fast AS SELECT g i, {rows}(1, 60000) g"),
            &format!("CREATE TABLE cut AS SELECT g i, {rows}(1, 60000) g"),
            &format!("CREATE TABLE emptied AS SELECT g i, {rows}(1, 20000) g"),
            "CREATE DATABASE model",
            "VACUUM",
        ],
    );
    // A change on the same page keeps the size.
    let mut model = site.cluster.client("model").unwrap();
    run(
        &mut model,
        &[
            "CREATE TABLE marks (i int, v \"char\", filler text) WITH (fillfactor = 40)",
            "INSERT INTO marks SELECT g, 'a', repeat('x', 300) FROM generate_series(1, 30000) g",
            "CHECKPOINT",
        ],
    );
    drop(model);
    let copy = "CREATE DATABASE copy TEMPLATE model OID 90001 STRATEGY file_copy";
    run(&mut client, &[copy]);
    let marks = || -> (String, i64) {
        let mut copy = site.cluster.client("copy").unwrap();
        let query = "SELECT pg_relation_filepath('marks'), pg_relation_size('marks')";
        let row = copy.query_one(query, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    let before = marks();
    let first = site.created(&["--jobs", "2"]);
    assert_eq!((number(&first, "unread_bytes"), &first["note"]), (0, &Value::Null), "{first}");

    run(&mut client, &["DROP DATABASE copy"]);
    let mut model = site.cluster.client("model").unwrap();
    run(&mut model, &["UPDATE marks SET v = 'b'"]);
    drop(model);
    run(
        &mut client,
        &[
            copy,
            "UPDATE changed SET v = 'x' WHERE i BETWEEN 5000 AND 5010",
            &format!("INSERT INTO growing SELECT g, {rows}(1, 30000) g"),
            "DELETE FROM cut WHERE i > 30000",
            "VACUUM cut",
            &format!("INSERT INTO cut SELECT -g, {rows}(30001, 60000) g"),
            "TRUNCATE emptied",
            &format!("INSERT INTO emptied SELECT -g, {rows}(1, 20000) g"),
            "VACUUM changed",
            "CHECKPOINT",
        ],
    );
    assert_eq!(marks(), before, "the test needs a file of the same name and size");
    let second = site.created(&["--jobs", "2"]);
    let (bytes, unread) = (number(&second, "bytes"), number(&second, "unread_bytes"));
    assert_eq!(second["note"], Value::Null, "{second}");
    assert!(unread > bytes / 2 && unread <= number(&second, "unchanged_bytes"), "{second}");
    let expect_complete = |created: &Value| {
        site.cluster.client("postgres").unwrap().batch_execute("SELECT pg_switch_wal()").unwrap();
        site.wait_until_archived(&mut site.cluster.client("postgres").unwrap());
        let name = created["name"].as_str().unwrap();
        verify(&site, &unpack(&site, name));
        let data = site.cluster.dir().join(format!("restored-{name}"));
        let restored = site.restore(&data, &["--base", name, "--verify-base"]);
        assert_eq!(restored.code, 0, "{version}: {restored:?}");
        let server = site.start_restored(&data);
        expect_same_content(&content(&server), &content(&site.cluster));
        let old = "SELECT count(*) FROM marks WHERE v <> 'b'";
        let old: i64 = server.client("copy").unwrap().query_one(old, &[]).unwrap().get(0);
        assert_eq!(old, 0, "{version}: rows of the dropped database");
        amcheck(&server);
        verify_pages(&server);
    };
    expect_complete(&second);

    // A role that may not read summaries.
    run(
        &mut client,
        &[
            "CREATE ROLE backup LOGIN",
            "GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), pg_backup_stop(boolean), \
             pg_ls_dir(text, boolean, boolean), pg_stat_file(text, boolean), \
             pg_read_binary_file(text, bigint, bigint, boolean) TO backup",
            "REVOKE EXECUTE ON FUNCTION pg_wal_summary_contents(bigint, pg_lsn, pg_lsn) FROM PUBLIC",
        ],
    );
    let dsn = format!("{} user=backup", site.cluster.dsn("postgres").replace("user=postgres", ""));
    let create =
        ["backup", "create", &dsn, "--checkpoint", "fast", "--format", "json", "--repo", text(&site.repo)];
    let create = || {
        let run = walden(&create);
        assert_eq!(run.code, 0, "{run:?}");
        (parsed(&run), run.stderr)
    };
    let (third, stderr) = create();
    let note = third["note"].as_str().unwrap();
    assert!(note.starts_with("GRANT EXECUTE ON FUNCTION pg_wal_summary_contents"), "{third}");
    assert!(
        stderr.contains("note: the server has read whole files") && third["unread_bytes"] == 0,
        "{stderr}"
    );
    run(&mut client, &[note.split_once(", in the database").unwrap().0]);
    let (fourth, _) = create();
    assert!(fourth["note"].is_null() && number(&fourth, "unread_bytes") > bytes / 2, "{fourth}");

    // A hole: the summary that starts where the last backup does.
    run(&mut client, &["UPDATE changed SET v = 'y' WHERE i = 7", "CHECKPOINT"]);
    let summary = "SELECT upper(lpad(to_hex(tli), 8, '0') || lpad(to_hex((start_lsn - '0/0')::int8), 16, '0') \
         || lpad(to_hex((end_lsn - '0/0')::int8), 16, '0')) || '.summary' \
         FROM pg_available_wal_summaries() WHERE start_lsn = $1::text::pg_lsn";
    let start = fourth["start_lsn"].as_str().unwrap();
    let began = Instant::now();
    let summary: String = loop {
        if let Some(row) = client.query_opt(summary, &[&start]).unwrap() {
            break row.get(0);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no summary from {start}");
        std::thread::sleep(Duration::from_millis(100));
    };
    fs::remove_file(site.cluster.data_dir().join("pg_wal/summaries").join(summary)).unwrap();
    run(&mut client, &["UPDATE huge SET v = 'y' WHERE i = 7"]);
    let (fifth, _) = create();
    assert!(fifth["note"].as_str().unwrap().contains(&format!("found none at {start}")), "{fifth}");
    assert!(fifth["unread_bytes"] == 0 && number(&fifth, "unchanged_bytes") > bytes / 2, "{fifth}");
    expect_complete(&fifth);
    Ok(())
}

/// Without the right to call functions, the replication protocol is used, and the missing command is named. A
/// lost connection of a reader is replaced; the loss of the one that holds the backup ends it.
fn rights_and_lost_connections_decide_how_files_are_read(version: u32) -> Outcome {
    let site = Site::start(version, 1)?;
    let mut client = site.prepare();
    client.batch_execute("CREATE ROLE backup LOGIN REPLICATION").unwrap();
    let dsn = format!("{} user=backup", site.cluster.dsn("postgres").replace("user=postgres", ""));
    let create = |options: &[&str]| -> Run {
        let arguments = ["backup", "create", &dsn, "--checkpoint", "fast", "--format", "json"];
        walden(&[&arguments[..], &["--repo", text(&site.repo)], options].concat())
    };
    let fallen_back = create(&[]);
    assert_eq!(fallen_back.code, 0, "{fallen_back:?}");
    assert_eq!(parsed(&fallen_back)["jobs"], 0);
    let note = parsed(&fallen_back)["note"].as_str().unwrap().to_owned();
    assert!(note.contains("pg_read_binary_file") && fallen_back.stderr.contains("note: "), "{fallen_back:?}");
    // The note has the command.
    let (grant, _) = note[note.find("GRANT").unwrap()..].split_once(", in the database").unwrap();
    client.batch_execute(grant).unwrap();
    let by_files = create(&[]);
    assert_eq!((by_files.code, &parsed(&by_files)["note"]), (0, &Value::Null), "{by_files:?}");
    assert!(parsed(&by_files)["jobs"].as_u64().unwrap() >= 2, "{by_files:?}");

    // The first of three sessions holds the backup.
    let sessions = "SELECT pid FROM pg_stat_activity WHERE usename = 'backup' ORDER BY backend_start";
    let start = || {
        Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(["backup", "create", &dsn, "--checkpoint", "fast", "--format", "json", "--jobs", "2"])
            .args(["--max-rate", "8MB", "--repo", text(&site.repo)])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let wait_for_sessions = || -> Vec<i32> {
        let mut client = site.cluster.client("postgres").unwrap();
        let began = Instant::now();
        loop {
            let rows = client.query(sessions, &[]).unwrap();
            if rows.len() == 3 {
                break rows.iter().map(|row| row.get(0)).collect();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{} sessions", rows.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    client.batch_execute("UPDATE large SET t = 'new'; CHECKPOINT").unwrap();
    let terminate = |client: &mut Client, pid: i32| {
        client.query("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
    };
    let (child, pids) = (start(), wait_for_sessions());
    terminate(&mut client, pids[1]);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let created: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(created["warnings"].to_string().contains("new connection"), "{created:#}");
    verify(&site, &unpack(&site, created["name"].as_str().unwrap()));

    client.batch_execute("UPDATE large SET t = 'newer'; CHECKPOINT").unwrap();
    let (child, pids) = (start(), wait_for_sessions());
    terminate(&mut client, pids[0]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    Ok(())
}

/// A page with a wrong checksum ends the backup, with its place. A backup that has stored it does not hide it
/// from the next one.
fn invalid_pages_are_refused_and_read_again(version: u32) -> Outcome {
    let site = Site::start(version, 1)?;
    let mut client = site.prepare();
    let path: String = client.query_one("SELECT pg_relation_filepath('large')", &[]).unwrap().get(0);
    client.batch_execute("CHECKPOINT").unwrap();
    let file = site.cluster.data_dir().join(&path);
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[7 * 8192 + 5000] ^= 1;
    fs::write(&file, &damaged).unwrap();
    let refused = site.create(&["--jobs", "2"]);
    assert!(refused.code == 3 && refused.stderr.contains(&format!("{path} block 7")), "{refused:?}");
    let accepted = site.create(&["--jobs", "2", "--no-verify-checksums"]);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    // Also one whose pieces are known is refused.
    let refused = site.create(&["--jobs", "2"]);
    assert!(refused.code == 3 && refused.stderr.contains(&format!("{path} block 7")), "{refused:?}");
    fs::write(&file, &whole).unwrap();
    let good = site.created(&["--jobs", "2"]);
    let restored = site.restore(&site.cluster.dir().join("restored"), &["--verify-base"]);
    assert_eq!(restored.code, 0, "{restored:?} {good}");
    Ok(())
}

/// A backup of a standby, whose WAL the primary archives.
fn a_standby_is_stored_by_several_connections(version: u32) -> Outcome {
    let site = Site::start(version, 16)?;
    make_in_place(&site);
    let mut client = site.cluster.client("postgres").unwrap();
    client.batch_execute("SELECT pg_create_physical_replication_slot('standby', true)").unwrap();
    let copy = site.cluster.dir().join("copy");
    client.batch_execute("CHECKPOINT").unwrap();
    site.cluster.stop(StopMode::Fast).unwrap();
    site.cluster.copy_data(&copy).unwrap();
    site.cluster.start().unwrap();
    let primary = site.cluster.dsn("postgres");
    let builder = ClusterBuilder::new(site.cluster.installation().clone()).copy_of(&copy);
    let builder = builder
        .setting("primary_conninfo", &primary.replace('\'', "''"))
        .setting("primary_slot_name", "standby")
        .setting("archive_mode", "off");
    let standby = builder
        .start_after(|data| {
            fs::write(data.join("standby.signal"), "")?;
            account::chown(&data.join("standby.signal"))
        })
        .unwrap_or_else(|error| panic!("{error:#}"));
    let (is_done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let created = std::thread::scope(|scope| {
        scope.spawn(|| work(&site.cluster, &is_done, &rounds));
        let _ending = Ending(&is_done);
        let dsn = standby.dsn("postgres");
        let run = walden(&[
            "backup",
            "create",
            &dsn,
            "--checkpoint",
            "fast",
            "--jobs",
            "2",
            "--format",
            "json",
            "--repo",
            text(&site.repo),
        ]);
        assert_eq!(run.code, 0, "{run:?}");
        parsed(&run)
    });
    assert_eq!(created["jobs"], 2, "{created}");
    let mut client = site.cluster.client("postgres").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    verify(&site, &unpack(&site, created["name"].as_str().unwrap()));
    let data = site.cluster.dir().join("restored");
    let restored = site.restore(&data, &["--verify-base"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let server = site.start_restored(&data);
    expect_same_content(&content(&server), &content(&site.cluster));
    amcheck(&server);
    Ok(())
}

/// Prepares tables as [`Site::prepare`] does, without a tablespace in another folder, which a standby on the
/// same machine would use, too.
fn make_in_place(site: &Site) {
    crate::material::make_archive(&site.repo);
    site.archive_with("--repo", &site.repo);
    let mut client = site.cluster.client("postgres").unwrap();
    for sql in [
        "CREATE TABLE large AS SELECT g i, md5(g::text) t, repeat(md5(g::text), 20) v FROM generate_series(1, 60000) g",
        "CREATE UNLOGGED TABLE unlogged (v int)",
        "CREATE TABLE scratch (i int, v text)",
        "SELECT pg_switch_wal()",
    ] {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    site.wait_until_archived(&mut client);
}
