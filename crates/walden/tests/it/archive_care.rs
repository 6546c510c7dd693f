//! What becomes of an archive over the years: holes, gaps that are known.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::material::{Run, golden, walden, write};

walden_testing::tests! {
    holes_that_a_failover_leaves_are_found_and_filled,
    gaps_are_acknowledged_in_writing,
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

fn wait(mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(120), "it takes too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn switch(client: &mut Client, round: i32) {
    let insert =
        format!("INSERT INTO t SELECT i, md5(i::text) FROM generate_series({round}, {round} + 3000) i");
    client.batch_execute(&insert).unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
}

fn wait_until_archived(client: &mut Client) {
    let ready = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    wait(|| client.query_one(ready, &[]).unwrap().get::<_, i64>(0) == 0);
}

/// The primary is lost before it has archived what its standby has received, and marked as done.
fn holes_that_a_failover_leaves_are_found_and_filled() -> Outcome {
    let installation = postgres(18)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let folder = primary.make_folder("bin").unwrap();
    let (program, repo) = (folder.join("walden"), primary.make_folder("repo").unwrap());
    fs::copy(env!("CARGO_BIN_EXE_walden"), &program).unwrap();
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
    // From here on the primary archives nothing.
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
    // The primary itself shows that they wait.
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
    // Another cluster's archive is not filled.
    let other = repo.join("../other");
    let (name, content) = golden("18.6").pop_first().unwrap();
    let segment = write(&other, &name, &content);
    let other = other.join("archive");
    assert_eq!(walden(&["archive", "push", "--repo", text(&other), text(&segment)]).code, 0);
    let refused = check(&other, &standby, &["--repair"]);
    assert!(refused.code == 3 && refused.stderr.contains("another cluster's archive"), "{refused:?}");
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

/// What is acknowledged is no longer wrong; what grows beyond it is.
fn gaps_are_acknowledged_in_writing() {
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("archive");
    let mut segments = golden("18.6");
    segments.pop_last();
    let push = |name: &str, content: &[u8]| {
        let path = write(folder.path(), name, content);
        let run = walden(&["archive", "push", "--repo", text(&repo), text(&path)]);
        assert_eq!(run.code, 0, "{run:?}");
    };
    segments.iter().for_each(|(name, content)| push(name, content));
    assert_eq!(list(&repo).0, 0);
    // Two timelines left this one, the later one in 0000001F.
    push("00000002.history", b"1\t0/1F00028\tno recovery target specified\n");
    let last = segments.keys().next_back().unwrap();
    let next = u64::from_str_radix(&last[16..], 16).unwrap() + 1;
    let name = |number: u64| format!("0000000100000000{number:08X}");
    let (code, listing) = list(&repo);
    let gap = &listing["timelines"][0]["gaps"][0];
    assert_eq!((code, &gap["first"], &gap["last"]), (1, &Value::from(name(next)), &Value::from(name(0x1E))));

    let acknowledge = |first: u64, last: u64| {
        let range = format!("{}..{}", name(first), name(last));
        let all =
            ["archive", "acknowledge-gap", "--repo", text(&repo), &range, "--reason", "disk of db1 lost"];
        walden(&[&all[..], &["--by", "ann@db1"]].concat())
    };
    // Not more than what is missing.
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
    // Acknowledged once: there is nothing left to acknowledge.
    assert_eq!(acknowledge(0x1D, 0x1E).code, 3);
    push("00000003.history", b"1\t0/2100028\tno recovery target specified\n");
    let (code, listing) = list(&repo);
    assert_eq!(code, 1);
    let gaps = listing["timelines"][0]["gaps"].as_array().unwrap();
    let new: Vec<_> = gaps.iter().filter(|gap| gap["acknowledged"].is_null()).collect();
    assert_eq!((gaps.len(), new.len()), (3, 1), "{listing:#}");
    assert_eq!((&new[0]["first"], &new[0]["last"]), (&Value::from(name(0x1F)), &Value::from(name(0x20))));
}
