//! Reports of `status` and `check` for servers whose files the archive refuses, or that do not belong to the
//! archive.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use postgres::Client;
use walden_format::lsn::Lsn;
use walden_format::rmgr::{info, rmid};
use walden_format::version::Major;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::writer::LogWriter;
use walden_testing::{Outcome, postgres};

use crate::archive::{program_for, text};
use crate::archive_care::{Site, switch, wait};
use crate::material::{Run, make_archive, walden, write};

walden_testing::tests! {
    a_damaged_object_of_a_file_that_waits_is_a_problem_at_once,
    a_server_that_is_not_the_archives_own_has_nothing_archived,
    a_switch_has_succeeded_once_the_servers_own_segment_is_archived,
    a_library_that_is_not_installed_is_named on [15, 18],
}

/// Returns status and finding of each check, by name.
fn checks(run: &Run) -> BTreeMap<String, (String, String)> {
    let report: serde_json::Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let all = report["checks"].as_array().unwrap().iter();
    all.map(|check| (text(&check["name"]), (text(&check["status"]), text(&check["found"])))).collect()
}

fn a_damaged_object_of_a_file_that_waits_is_a_problem_at_once() {
    for is_empty in [false, true] {
        let site = Site::new("");
        let first = site.segments.keys().next().unwrap();
        assert_eq!(site.push(first).code, 0);
        let (code, report, _) = site.status();
        assert_eq!((code, report["lag"]["files"].as_u64()), (0, Some(0)), "{report:#}");
        let object = site.repo().join(format!("wal/00000001/00000000/{first}.wlz"));
        let mut content = fs::read(&object).unwrap();
        if is_empty {
            // This is detected without a push.
            fs::write(&object, "").unwrap();
            let (_, report, metrics) = site.status();
            assert_eq!(
                (report["lag"]["files"].as_u64(), report["lag"]["next_missing"].as_bool()),
                (Some(1), Some(true)),
                "{report:#}"
            );
            assert_eq!(metrics["walden_archive_lag_segments"], 1.0);
        } else {
            let middle = content.len() / 2;
            content[middle] ^= 1;
            fs::write(&object, content).unwrap();
        }
        // The error that the server gets.
        let pushed = site.push(first);
        assert!(pushed.code == 1 && pushed.stderr.contains("Move the damaged object"), "{pushed:?}");
        let (code, report, metrics) = site.status();
        let problems = report["problems"].as_array().unwrap().iter();
        let said = format!("{first}, last tried at ");
        let said = problems.filter_map(|problem| problem.as_str()).find(|text| text.starts_with(&said));
        assert!(code == 1 && said.is_some_and(|text| text.contains("; hint: ")), "{report:#}");
        assert_eq!(
            (metrics["walden_archive_failing_files"], metrics["walden_archive_lag_segments"]),
            (1.0, 1.0)
        );
        let check = site.walden(&["check", "--format", "json", "--data", text(&site.data())]);
        let all = checks(&check);
        let (status, found) = &all["failures"];
        assert!(check.code == 1 && status == "fail" && found.contains(first), "{check:?}");
        // After the object is moved away, the next push archives the segment.
        fs::remove_file(&object).unwrap();
        assert_eq!(site.push(first).code, 0);
        let (code, report, metrics) = site.status();
        assert_eq!((code, metrics["walden_archive_failing_files"]), (0, 0.0), "{report:#}");
        let check = site.walden(&["check", "--format", "json"]);
        assert_eq!(checks(&check)["failures"].0, "ok", "{check:?}");
    }
}

/// Writes a segment with this name as another server on the same timeline would.
pub fn other_segment(folder: &Path, name: &str, system_id: u64) -> std::path::PathBuf {
    let mut writer = LogWriter::new(Major::V15);
    let number = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let start = number(&name[16..]) << 20;
    (writer.info.timeline, writer.info.system_id) = (number(&name[..8]) as u32, system_id);
    (writer.start, writer.previous) = (Lsn(start), Lsn(start - 32));
    writer.main_data(rmid::XLOG, info::xlog::NOOP, b"of another server");
    writer.switch();
    write(folder, name, &writer.bytes)
}

fn current_segment(client: &mut Client) -> String {
    client.query_one("SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &[]).unwrap().get(0)
}

fn a_server_that_is_not_the_archives_own_has_nothing_archived() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?)
        .wal_segsize_mb(1)
        .setting("archive_mode", "on")
        .setting("archive_command", "false")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    switch(&mut client, 0);
    // The checkpoint also marks files left by initdb, so that no more files become ready later.
    client.batch_execute("CHECKPOINT").unwrap();
    let marks = "SELECT left(name, 24) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    let mut ready = Vec::new();
    wait(|| {
        ready = client.query(marks, &[]).unwrap().iter().map(|row| row.get::<_, String>(0)).collect();
        !ready.is_empty()
    });
    // Without look-ahead, a segment is not compared with the previous one.
    let push = |repo: &Path, path: &Path, look_ahead: &str| {
        let options = ["archive", "push", "--look-ahead", look_ahead, "--repo", text(repo), text(path)];
        let pushed = walden(&options);
        assert_eq!(pushed.code, 0, "{pushed:?}");
    };
    // The archive of another cluster, with the same names, and a later timeline.
    let other = cluster.dir().join("other");
    make_archive(&other);
    for name in ready.iter().map(String::as_str).chain(["000000030000000000000040"]) {
        push(&other, &other_segment(&cluster.dir().join("segments"), name, 7777), "0");
    }
    let expected = "give each cluster its own archive";
    expect_nothing_archived(&cluster, &other, ready.len(), expected, "server");
    // The cluster's own archive: all waiting files are archived, but not marked yet.
    let own = cluster.dir().join("own");
    make_archive(&own);
    push(&own, &cluster.data_dir().join("pg_wal").join(&ready[0]), "64");
    let (dsn, data) = (cluster.dsn("postgres"), cluster.data_dir());
    for (of_status, of_check) in [(["--dsn", dsn.as_str()], "--dsn"), (["--pgdata", text(&data)], "--data")] {
        let status = walden(&[&["archive", "status", "--repo", text(&own)][..], &of_status[..]].concat());
        assert!(status.stdout.contains("nothing waits, "), "{status:?}");
        let options = ["archive", "check", "--format", "json", "--repo", text(&own), of_check, of_status[1]];
        let check = walden(&options);
        let found = checks(&check);
        let (status, waits) = &found["backlog"];
        assert!(status == "ok" && waits.starts_with("nothing waits, "), "{check:?}");
        assert_eq!(found["segment size"].0, "ok", "{check:?}");
    }
    // An archive from before pg_resetwal changed the segment size.
    let resized = cluster.dir().join("resized");
    make_archive(&resized);
    let json = fs::read_to_string(own.join("archive.json")).unwrap();
    assert!(json.contains("1048576"), "{json}");
    fs::write(resized.join("archive.json"), json.replace("1048576", "16777216")).unwrap();
    let expected = "segments of 1 MB, and the archive has segments of 16 MB";
    expect_nothing_archived(&cluster, &resized, ready.len(), expected, "segment size");
    Ok(())
}

/// Expects that `status` and `check` report it, by files and by SQL, regardless of names, and that the server
/// does not switch segments.
fn expect_nothing_archived(cluster: &Cluster, repo: &Path, ready: usize, problem: &str, failing: &str) {
    let mut client = cluster.client("postgres").unwrap();
    let segment = current_segment(&mut client);
    let (dsn, data) = (cluster.dsn("postgres"), cluster.data_dir());
    let waits = if ready == 1 { "1 file waits".to_owned() } else { format!("{ready} files wait") };
    for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]] {
        let options = ["archive", "status", "--repo", text(repo)];
        let status = |more: &[&str]| walden(&[&options[..], &server[..], more].concat());
        let line = status(&[]);
        assert!(line.code == 1 && line.stdout.contains(problem) && line.stdout.contains(&waits), "{line:?}");
        let report: serde_json::Value = serde_json::from_str(&status(&["--format", "json"]).stdout).unwrap();
        assert_eq!(
            (report["lag"]["files"].as_u64(), report["arrives"].as_bool()),
            (Some(ready as u64), Some(false)),
            "{report:#}"
        );
        assert!(report["lag"]["bytes"].as_u64() > Some(0), "{report:#}");
    }
    let options = ["archive", "check", "--format", "json", "--repo", text(repo)];
    let by_files = walden(&[&options[..], &["--data", text(&data)]].concat());
    let by_sql = walden(&[&options[..], &["--dsn", &dsn, "--switch", "--wait", "5"]].concat());
    let failing_by_files = if failing == "server" { "data directory" } else { failing };
    for (check, failing) in [(&by_files, failing_by_files), (&by_sql, failing)] {
        let found = checks(check);
        assert!(check.code == 1 && found[failing].0 == "fail", "{check:?}");
        assert!(found["backlog"].1.starts_with(&waits), "{check:?}");
    }
    let found = checks(&by_sql);
    assert_eq!(found.contains_key("timeline"), failing != "server", "{by_sql:?}");
    let (status, switched) = &found["switch"];
    assert!(status == "fail" && switched.starts_with("not tried"), "{by_sql:?}");
    assert_eq!(current_segment(&mut client), segment);
}

fn a_switch_has_succeeded_once_the_servers_own_segment_is_archived() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&cluster);
    let folder = cluster.make_folder("site").unwrap();
    let (repo, config, log) = (folder.join("repo"), folder.join("walden.toml"), folder.join("walden.log"));
    make_archive(&repo);
    let toml = format!("[archive]\nrepo = \"{}\"\nlog = \"{}\"\n", repo.display(), log.display());
    fs::write(&config, toml).unwrap();
    let share = || {
        let shared = Command::new("chmod").args(["-R", "a+rwX", text(&folder)]).status();
        assert!(shared.unwrap().success());
    };
    share();
    cluster.stop(StopMode::Fast).unwrap();
    let push = format!("{} archive push --config {} %p", program.display(), config.display());
    cluster.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    cluster.start().unwrap();
    let (dsn, data) = (cluster.dsn("postgres"), cluster.data_dir());
    let run = |command: &str, more: &[&str]| {
        walden(&[&["archive", command, "--config", text(&config)], more].concat())
    };
    let check_switch = || {
        let run = run("check", &["--format", "json", "--dsn", &dsn, "--switch", "--wait", "100"]);
        checks(&run).remove("switch").unwrap_or_else(|| panic!("{run:?}"))
    };
    let (status, found) = check_switch();
    assert!(status == "ok" && found.contains(" arrived after "), "{status}: {found}");
    // Another server of the cluster has archived its own segment under this name.
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    let name = current_segment(&mut client);
    let other = other_segment(&folder.join("segments"), &name, cluster.system_identifier());
    let pushed = walden(&["archive", "push", "--look-ahead", "0", "--repo", text(&repo), text(&other)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    share();
    let (status, found) = check_switch();
    assert!(status == "fail" && found.contains("before the server had completed it"), "{status}: {found}");
    // The server's own segment is refused, and each command states the reason.
    let failed = "SELECT failed_count > 0 FROM pg_stat_archiver";
    wait(|| client.query_one(failed, &[]).unwrap().get(0));
    let is_said = |run: &Run, reason: &str| {
        assert!(run.code == 1 && run.stdout.contains(reason), "{run:?}");
        assert!(!run.stdout.contains("see the server's log"), "{run:?}");
    };
    let reason = format!("{name}, last tried at ");
    let by_sql = run("status", &["--dsn", &dsn]);
    is_said(&by_sql, &reason);
    is_said(&by_sql, &format!("the server's last attempt to archive failed, with {name}"));
    let by_files = run("status", &["--pgdata", text(&data)]);
    is_said(&by_files, &reason);
    assert!(by_files.stdout.contains("1 file waits"), "{by_files:?}");
    is_said(&run("check", &["--data", text(&data)]), &reason);
    is_said(&run("check", &["--dsn", &dsn]), "is archived already with other content");
    // The other segment is removed.
    fs::remove_file(repo.join(format!("wal/00000001/00000000/{name}.wlz"))).unwrap();
    let (status, found) = check_switch();
    assert!(status == "ok" && found.contains(" arrived after "), "{status}: {found}");
    let over = run("status", &["--pgdata", text(&data)]);
    assert!(over.code == 0 && !over.stdout.contains(&reason), "{over:?}");
    Ok(())
}

/// The server's archiver ends when it cannot load the library. Files that were archived elsewhere before do
/// not hide this.
fn a_library_that_is_not_installed_is_named(version: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(version)?).wal_segsize_mb(1).start().unwrap();
    let repo = cluster.make_folder("site").unwrap().join("repo");
    make_archive(&repo);
    cluster.configure(&[("archive_mode", "on"), ("archive_command", "true")]).unwrap();
    cluster.restart(StopMode::Fast).unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    switch(&mut client, 0);
    let archived = "SELECT archived_count > 0 FROM pg_stat_archiver";
    wait(|| client.query_one(archived, &[]).unwrap().get(0));
    let settings = [
        ("archive_command", ""),
        ("archive_library", "walden_archive"),
        ("walden.socket", "/nowhere/socket"),
    ];
    cluster.configure(&settings).unwrap();
    cluster.reload();
    let missing = "SELECT current_setting('archive_library') <> '' \
                   AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'archiver')";
    wait(|| client.query_one(missing, &[]).unwrap().get(0));
    switch(&mut client, 1);
    let dsn = cluster.dsn("postgres");
    let run =
        |command: &str, more: &[&str]| walden(&[&["archive", command, "--repo", text(&repo)], more].concat());
    let found = checks(&run("check", &["--format", "json", "--dsn", &dsn]));
    let (status, library) = &found["archive_library"];
    assert!(status == "fail" && library.ends_with("has no walden_archive.so"), "{found:?}");
    let (status, archiver) = &found["archiver"];
    assert!(status == "fail" && archiver.contains("no archiver process"), "{found:?}");
    let by_files = run("status", &["--data", text(&cluster.data_dir())]);
    assert!(by_files.stdout.contains("/nowhere/socket"), "{by_files:?}");
    let by_sql = run("status", &["--dsn", &dsn]);
    assert!(by_sql.stdout.contains("has no walden_archive.so"), "{by_sql:?}");
    let retention = walden(&["retention", "--dsn", &dsn]);
    assert!(
        retention.code == 1 && retention.stdout.contains("The server has no archiver process"),
        "{retention:?}"
    );
    assert!(
        retention.stdout.contains("repair archiving (archive_library = 'walden_archive')"),
        "{retention:?}"
    );
    Ok(())
}
