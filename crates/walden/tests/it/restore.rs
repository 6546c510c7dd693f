//! Restoring from the archive: as a source of other commands, as plain files, by replay, and by recovery of a
//! server on a copy.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Need, Outcome, postgres};

use crate::archive::{
    back_up_and_archive, content, json, program_for, recovered, text, wait_until_archived, work,
};
use crate::material::{explain_json, golden, make_archive, walden, write};
use crate::rows_names::{ascii_database, run_bytes};

walden_testing::tests! {
    an_archive_is_explained_as_its_segments_are,
    an_archive_is_read_rather_than_a_servers_file,
    files_are_exported_and_none_is_replaced,
    an_incremental_backup_is_refused_by_its_name,
    #[slow] an_archive_is_read_replayed_and_restored on [15, 17, 19],
    a_drill_has_room_for_large_segments,
    a_drill_does_not_wait_for_prepared_transactions on [15, 19],
    a_drill_counts_tables_with_names_that_are_no_text,
    a_drill_accepts_that_the_archive_grows on [15, 19],
    an_interrupted_drill_leaves_nothing,
}

/// Creates an archive of the golden segments of 18, and the segments as files.
fn archived(folder: &Path) -> (PathBuf, PathBuf) {
    let (repo, wal) = (folder.join("repo"), folder.join("wal"));
    make_archive(&repo);
    // Omits the last segment, which the server had not filled.
    let segments: BTreeMap<String, Vec<u8>> = golden("18.6").into_iter().take(2).collect();
    for (name, bytes) in &segments {
        let path = write(&wal, name, bytes);
        let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&path)]);
        assert_eq!(pushed.code, 0, "{pushed:?}");
    }
    (repo, wal)
}

/// A running server uses a file again for a later segment while it is read.
fn an_archive_is_read_rather_than_a_servers_file() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, wal) = archived(folder.path());
    for sources in [[&repo, &wal], [&wal, &repo]] {
        let run = walden(&["explain", text(sources[0]), text(sources[1])]);
        assert_eq!(run.code, 0, "{run:?}");
        for name in golden("18.6").keys().take(2) {
            let kept = repo.join(format!("wal/00000001/00000000/{name}.wlz"));
            let left_out =
                format!("{} holds the same segment as {}", wal.join(name).display(), kept.display());
            assert!(run.stderr.contains(&left_out), "{left_out}: {run:?}");
        }
    }
}

/// The error uses the name given by the user, not that of the temporary file.
fn an_incremental_backup_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, wal) = archived(folder.path());
    let name = "00000001000000000000000A.00000028.backup";
    let content =
        "START WAL LOCATION: 0/A00028 (file 00000001000000000000000A)\nINCREMENTAL FROM LSN: 0/900028\n";
    let path = write(&wal, name, content.as_bytes());
    let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&path)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let output = folder.path().join("until");
    let run = |command: &str| {
        let until = ["--until", "2026-11-20 10:00Z", "--base", name, "-o", text(&output)];
        walden(&[&["archive", command, "--repo", text(&repo)], &until[..]].concat())
    };
    for (command, code) in [("get", 200), ("export", 3)] {
        let run = run(command);
        let says = |text: &str| run.stderr.contains(text);
        assert!(run.code == code && says(&format!("cannot use {name} as a base backup")), "{run:?}");
        assert!(says("expected a full backup") && !says("backup_label"), "{run:?}");
    }
}

fn an_archive_is_explained_as_its_segments_are() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, wal) = archived(folder.path());
    let of_files = explain_json(&[text(&wal), "--by", "record"]);
    for source in [text(&repo).to_owned(), format!("file://{}", repo.display())] {
        let of_archive = explain_json(&[&source, "--by", "record"]);
        for field in ["buckets", "records", "ranges", "views"] {
            assert_eq!(of_archive[field], of_files[field], "{source}: {field}");
        }
    }
    let range = ["--from", "0/B00100", "--to", "0/B40000"];
    let of_range = |source: &Path| explain_json(&[&[text(source)], &range[..]].concat());
    assert_eq!(of_range(&repo)["buckets"], of_range(&wal)["buckets"]);
    let checked = json(&["redo", "check", "--format", "json", text(&repo)]);
    assert_eq!(checked, json(&["redo", "check", "--format", "json", text(&wal)]));
    assert!(checked["records"].as_u64().unwrap() > 500 && checked["different"] == 0);
    let traced = |source: &Path| {
        let mut forecast = json(&[
            "whatif",
            "--set",
            "wal_compression=lz4",
            "--format",
            "json",
            text(source),
        ])["predictions"]
            .take();
        // Depends on the replay speed of this machine, which is measured each time.
        assert!(forecast[0].as_object_mut().unwrap().remove("recovery_seconds").is_some());
        forecast
    };
    assert_eq!(traced(&repo), traced(&wal));
    let nowhere = walden(&["explain", "--timeline", "7", text(&repo)]);
    assert!(nowhere.code == 3 && nowhere.stderr.contains("along timeline 7"), "{nowhere:?}");
}

fn files_are_exported_and_none_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, wal) = archived(folder.path());
    let target = folder.path().join("out");
    let export = |more: &[&str]| {
        let all = ["archive", "export", "--format", "json", "--repo", text(&repo), "-o", text(&target)];
        walden(&[&all, more].concat())
    };
    let first = export(&["--to", "00000001000000000000000A"]);
    assert_eq!((first.code, exported(&target).len()), (0, 1), "{first:?}");
    let all: Value = serde_json::from_str(&export(&[]).stdout).unwrap();
    assert_eq!(
        (&all["written"], &all["unchanged"], &all["segments"]),
        (&1.into(), &1.into(), &2.into()),
        "{all:#}"
    );
    assert_eq!(exported(&target), exported(&wal));
    // An existing file with other content stays, and the error names it.
    let segment = target.join("00000001000000000000000B");
    fs::write(&segment, "mine").unwrap();
    let refused = export(&[]);
    assert!(refused.code == 3 && refused.stderr.contains(text(&segment)), "{refused:?}");
    assert_eq!(fs::read_to_string(&segment).unwrap(), "mine");
    assert_eq!(exported(&target).len(), 2, "no temporary file is left");
    let beyond =
        export(&["--from", "0/B00000", "--to", "0/E00000", "-o", text(&folder.path().join("other"))]);
    assert_ne!(beyond.code, 0, "-o twice is wrong usage");
    fs::remove_file(&segment).unwrap();
    let gap = export(&["--from", "0/B00000", "--to", "0/E00000"]);
    let gaps: Value = serde_json::from_str(&gap.stdout).unwrap();
    assert_eq!((gap.code, &gaps["gaps"][0]["segments"]), (1, &3.into()), "{gap:?}");
    // A damaged object yields no file.
    fs::remove_file(&segment).unwrap();
    let object = repo.join("wal/00000001/00000000/00000001000000000000000B.wlz");
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).unwrap();
    let damaged = export(&[]);
    assert!(damaged.code == 3 && !segment.exists(), "{damaged:?}");
}

/// Returns the files in a folder.
fn exported(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// A primary that archived its work, and the number of rows of its table at three times.
struct Archived {
    primary: Cluster,
    program: PathBuf,
    repo: PathBuf,
    backup: PathBuf,
    /// Path of the table's file, relative to the data directory.
    file: String,
    /// Time before the last work, as formatted by the server.
    time: String,
    rows: [i64; 3],
}

fn archive_work(version: u32) -> Result<Archived, walden_testing::Missing> {
    let installation = postgres(version)?;
    // With checksums, a page that a test changes would count as damaged and not be compared.
    let primary = ClusterBuilder::new(installation).wal_segsize_mb(1).checksums(false).start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("repo").unwrap();
    make_archive(&repo);
    let mut client = primary.client("postgres").unwrap();
    // Later work continues in these rows' page, so the WAL starts with an image of it.
    let create = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT -i, 'early' FROM generate_series(1, 10) i";
    client.batch_execute(create).unwrap();
    let file: String = client.query_one("SELECT pg_relation_filepath('t')", &[]).unwrap().get(0);
    drop(client);
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.restart(StopMode::Fast).unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    primary.start().unwrap();
    let mut client = primary.client("postgres").unwrap();
    let mut rows = [0; 3];
    let count = |client: &mut Client| client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0);
    work(&mut client, 0);
    rows[0] = count(&mut client);
    client.batch_execute("SELECT pg_create_restore_point('before_more')").unwrap();
    // The first change of a page after a checkpoint writes an image.
    client.batch_execute("CHECKPOINT").unwrap();
    work(&mut client, 1);
    rows[1] = count(&mut client);
    std::thread::sleep(Duration::from_millis(20));
    let time = client.query_one("SELECT clock_timestamp()::text", &[]).unwrap().get(0);
    std::thread::sleep(Duration::from_millis(20));
    client.batch_execute("CHECKPOINT").unwrap();
    work(&mut client, 2);
    rows[2] = count(&mut client);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    primary.stop(StopMode::Fast).unwrap();
    Ok(Archived { primary, program, repo, backup, file, time, rows })
}

fn an_archive_is_read_replayed_and_restored(version: u32) -> Outcome {
    let archived = archive_work(version)?;
    replay(&archived);
    fetch_until(&archived);
    let has_amcheck = drill(&archived);
    drill_at_gap(&archived);
    follow_a_promotion(&archived);
    // Published packages never contain it.
    match version == 15 && !has_amcheck {
        true => Err(Need::Amcheck.missing("no PostgreSQL 15 with pg_amcheck is installed")),
        false => Ok(()),
    }
}

/// Replays all of the WAL from the backup, and compares each full-page image.
fn replay(archived: &Archived) {
    let Archived { repo, backup, file, .. } = archived;
    let arguments = ["--repo", text(repo), "--replay", "--base", text(backup), "--format", "json"];
    let run = walden(&[&["archive", "verify"], &arguments[..]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let verified: Value = serde_json::from_str(&run.stdout).unwrap();
    let number = |name: &str| verified[name].as_u64().unwrap();
    assert!(number("segments") > 3 && number("replayed_images") > 0, "{verified:#}");
    assert_eq!((number("different"), &verified["gaps"]), (0, &Value::Array(Vec::new())), "{verified:#}");
    assert!(verified["replay"]["records"].as_u64().unwrap() > 10_000, "{verified:#}");
    let by_threads = || {
        ["1", "2", "5"].map(|threads| {
            let run = walden(&[&["archive", "verify", "--threads", threads], &arguments[..]].concat());
            let verified: Value = serde_json::from_str(&run.stdout).unwrap();
            (run.code, verified["replayed_images"].clone(), verified["replay"].clone())
        })
    };
    let [one, two, five] = by_threads();
    assert_eq!(one, (0, verified["replayed_images"].clone(), verified["replay"].clone()));
    assert!(one == two && one == five, "{one:?} {two:?} {five:?}");
    // With pages from another time, images differ from the replayed pages.
    let path = backup.join(file);
    let original = fs::read(&path).unwrap();
    let mut changed = original.clone();
    // Changes the tuple at the end of the first page, which was inserted first.
    changed[8192 - 8] ^= 0x55;
    fs::write(&path, changed).unwrap();
    let [one, two, five] = by_threads();
    fs::write(&path, original).unwrap();
    assert_eq!(one.0, 1, "{one:?}");
    assert!(one == two && one == five, "{one:?} {two:?} {five:?}");
}

/// Fetches the files for recovery to a time, and tries times that cannot be reached.
fn fetch_until(archived: &Archived) {
    let Archived { repo, backup, time, primary, .. } = archived;
    let target = primary.dir().join("until");
    let get = |until: &str, start: &[&str]| {
        let all = [
            "archive",
            "get",
            "--repo",
            text(repo),
            "--until",
            until,
            "-o",
            text(&target),
            "--format",
            "json",
        ];
        walden(&[&all[..], start].concat())
    };
    let run = get(time, &["--base", text(backup)]);
    assert_eq!(run.code, 0, "{run:?}");
    let found: Value = serde_json::from_str(&run.stdout).unwrap();
    let listing = json(&["archive", "list", "--format", "json", "--repo", text(repo)]);
    let all = listing["timelines"][0]["segments"].as_u64().unwrap();
    let fetched = found["segments"].as_u64().unwrap();
    assert!(fetched > 1 && fetched < all, "{fetched} of {all}: {found:#}");
    let (moment, last) = (found["moment"].as_i64().unwrap(), found["last_before"]["time"].as_i64().unwrap());
    let stop = found["stops_before"]["time"].as_i64().unwrap();
    assert!(last <= moment && moment < stop, "{found:#}");
    assert_eq!(found["stops_before"]["segment"], found["last_segment"], "{found:#}");
    assert_eq!(exported(&target).len() as u64, fetched);
    // Starting from a segment, the same files are needed, and already exist.
    let first = found["first_segment"].as_str().unwrap();
    let again: Value = serde_json::from_str(&get(time, &["--from", first]).stdout).unwrap();
    assert_eq!((&again["written"], &again["unchanged"]), (&0.into(), &fetched.into()));
    // Times after the last commit, and before the backup's start, cannot be reached.
    for until in ["2199-01-01 00:00Z", "2001-01-01"] {
        let run = get(until, &["--base", text(backup)]);
        assert!(run.code == 1 && run.stderr.contains("expected a time from"), "{run:?}");
    }
    let without_start = get(time, &[]);
    let expected = "--until needs to know where recovery starts";
    assert!(without_start.code == 200 && without_start.stderr.contains(expected), "{without_start:?}");
    let nowhere = get(time, &["--from", "0000000100000000000000F0"]);
    assert!(nowhere.code == 1 && nowhere.stderr.contains("0000000100000000000000F0"), "{nowhere:?}");
    assert_eq!(
        get("soon", &["--base", text(backup)]).code,
        200,
        "wrong usage must not look like a missing file"
    );
}

/// Tests restores. Returns whether pg_amcheck was one of the checks.
fn drill(archived: &Archived) -> bool {
    let Archived { primary, repo, backup, time, rows, .. } = archived;
    let folder = primary.make_folder("drill").unwrap();
    let bin = primary.installation().bin_dir.clone();
    let run = |more: &[&str]| {
        let all = ["archive", "drill", "--repo", text(repo), "--base", text(backup), "--bin", text(&bin)];
        let run = walden(&[&all[..], &["--folder", text(&folder), "--format", "json"], more].concat());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "something is left: {run:?}");
        run
    };
    let whole = run(&[]);
    assert_eq!(whole.code, 0, "{whole:?}");
    let whole: Value = serde_json::from_str(&whole.stdout).unwrap();
    let checked = &whole["checked"];
    assert!(
        checked["rows"].as_i64().unwrap() > rows[2] && checked["tables"].as_u64().unwrap() > 100,
        "{whole:#}"
    );
    assert!(
        whole["wal_bytes"].as_u64().unwrap() > 3 << 20 && whole["recovery_seconds"].as_f64().unwrap() > 0.0
    );
    assert!(whole["reached_time"].as_i64().is_some() && whole["timeline"] == 2, "{whole:#}");
    let has_amcheck = bin.join("pg_amcheck").exists();
    assert_eq!(checked["amcheck"], if has_amcheck { "passed" } else { "not_there" }, "{whole:#}");
    let count = ["--no-amcheck", "--query", "SELECT count(*) FROM t"];
    for (target, expected) in [
        (vec![], rows[2]),
        (vec!["--until", time.as_str()], rows[1]),
        (vec!["--restore-point", "before_more"], rows[0]),
    ] {
        let drill = run(&[&count[..], &target].concat());
        assert_eq!(drill.code, 0, "{target:?}: {drill:?}");
        let drill: Value = serde_json::from_str(&drill.stdout).unwrap();
        assert_eq!(
            drill["checked"]["queries"][0]["rows"][0][0],
            expected.to_string(),
            "{target:?}: {drill:#}"
        );
        assert_eq!(drill["checked"]["amcheck"], "not_asked");
        assert!(["rows", "tables", "databases"].iter().all(|name| drill["checked"][name].is_null()));
    }
    // The archive shows which times can be reached: nothing is copied for an unreachable one.
    let late = run(&["--no-amcheck", "--until", "2199-01-01 00:00Z"]);
    assert!(late.code == 1 && late.stderr.contains("expected a time from"), "{late:?}");
    assert!(!late.stderr.contains("copying"), "{late:?}");
    let missing = run(&["--no-amcheck", "--restore-point", "nowhere"]);
    let expected = "restore point nowhere is not in the archive; known: ";
    assert!(missing.code == 1 && missing.stderr.contains(expected), "{missing:?}");
    assert!(missing.stderr.contains("before_more") && !missing.stderr.contains("copying"), "{missing:?}");
    let wrong = run(&["--no-amcheck", "--query", "SELECT * FROM nowhere"]);
    assert!(wrong.code == 1 && wrong.stdout.contains("nowhere"), "{wrong:?}");
    let other = run(&["--no-amcheck", "--bin", "/nowhere"]);
    assert_ne!(other.code, 0);
    // The original is unchanged.
    assert!(!backup.join("recovery.signal").exists() && !backup.join("backup_label.old").exists());
    has_amcheck
}

/// PostgreSQL treats a missing segment as the end of the WAL and promotes. Later WAL is lost, which the drill
/// must report.
fn drill_at_gap(archived: &Archived) {
    let Archived { primary, repo, backup, time, .. } = archived;
    let bin = primary.installation().bin_dir.clone();
    let run = |more: &[&str]| {
        let all = ["archive", "drill", "--repo", text(repo), "--base", text(backup), "--bin", text(&bin)];
        walden(&[&all[..], &["--no-amcheck", "--query", "SELECT 1", "--format", "json"], more].concat())
    };
    let whole: Value = serde_json::from_str(&run(&[]).stdout).unwrap();
    let start: Lsn = whole["start_lsn"].as_str().unwrap().parse().unwrap();
    // The segment (of 1 MB) after the one in which recovery starts.
    let missing = SegmentName::new(1, (start.0 >> 20) + 1, SegmentSize::new(1 << 20).unwrap()).to_string();
    let (object, aside) =
        (repo.join(format!("wal/00000001/00000000/{missing}.wlz")), primary.dir().join("aside"));
    fs::rename(&object, &aside).unwrap();
    let to_the_end = run(&[]);
    assert_eq!(to_the_end.code, 1, "{to_the_end:?}");
    let drill: Value = serde_json::from_str(&to_the_end.stdout).unwrap();
    let [problem] = &drill["checked"]["problems"].as_array().unwrap()[..] else { panic!("{drill:#}") };
    let expected = format!("segment {missing} is missing");
    assert!(problem.as_str().unwrap().contains(&expected), "{drill:#}");
    let to_a_time = run(&["--until", time]);
    assert!(to_a_time.code == 1 && to_a_time.stderr.contains(&missing), "{to_a_time:?}");
    // A recovery target that ends recovery early is no error.
    let on_purpose = run(&["--set", "recovery_target=immediate"]);
    assert_eq!(on_purpose.code, 0, "{on_purpose:?}");
    fs::rename(&aside, &object).unwrap();
}

/// A restored server archives its own timeline, and reading then follows the switch.
fn follow_a_promotion(archived: &Archived) {
    let Archived { primary, repo, backup, program, time, .. } = archived;
    let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    let settings = [
        ("restore_command", get.as_str()),
        ("recovery_target_time", time),
        ("archive_mode", "on"),
        ("archive_command", &push),
    ];
    let restored = recovered(primary.installation(), backup, &settings);
    let mut client = restored.client("postgres").unwrap();
    work(&mut client, 5);
    // Makes the number of rows differ from the first timeline's at its end.
    client.batch_execute("DELETE FROM t WHERE id >= 200000 AND id % 3 = 0").unwrap();
    let expected = content(&mut client);
    assert!(!expected.is_empty());
    let rows: i64 = client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    restored.stop(StopMode::Fast).unwrap();
    drill_across_the_switch(archived, rows);

    let run = walden(&[
        "archive",
        "verify",
        "--repo",
        text(repo),
        "--replay",
        "--base",
        text(backup),
        "--format",
        "json",
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    let verified: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        (&verified["replay"]["timeline"], &verified["different"]),
        (&2.into(), &0.into()),
        "{verified:#}"
    );
    let explained = walden(&["explain", "--format", "json", text(repo)]);
    assert!(
        explained.code == 0 && explained.stderr.contains("along timeline 2, after timeline 1 until"),
        "{explained:?}"
    );
    let ranges = explained.json()["ranges"].as_array().unwrap().len();
    assert_eq!(ranges, 1, "one log across the switch");
    let target = primary.dir().join("two");
    let all = [
        "archive",
        "export",
        "--repo",
        text(repo),
        "--timeline",
        "2",
        "-o",
        text(&target),
        "--format",
        "json",
    ];
    let exported_json = json(&all);
    let names: Vec<String> = exported(&target).into_keys().collect();
    assert!(names.contains(&"00000002.history".to_owned()), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("000000010")), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("000000020")), "{names:?}");
    // Plain files with the history next to them are followed like the archive.
    let of_files = explain_json(&[text(&target), "--timeline", "2"]);
    assert_eq!(of_files["buckets"], explained.json()["buckets"]);
    assert_eq!(exported_json["gaps"].as_array().unwrap().len(), 0);
}

/// A drill follows the newest timeline, or, on request, an older one to its end.
fn drill_across_the_switch(archived: &Archived, rows: i64) {
    let Archived { primary, repo, backup, rows: on_first, .. } = archived;
    let bin = &primary.installation().bin_dir;
    let folder = primary.make_folder("drill-across").unwrap();
    for (more, expected) in [(&[][..], rows), (&["--timeline", "1"], on_first[2])] {
        let all = ["archive", "drill", "--repo", text(repo), "--base", text(backup), "--bin", text(bin)];
        let how = ["--folder", text(&folder), "--no-amcheck", "--query", "SELECT count(*) FROM t"];
        let drill = walden(&[&all[..], &how, &["--format", "json"], more].concat());
        assert_eq!(drill.code, 0, "{more:?}: {drill:?}");
        let drill: Value = serde_json::from_str(&drill.stdout).unwrap();
        assert_eq!(drill["checked"]["queries"][0]["rows"][0][0], expected.to_string(), "{more:?}: {drill:#}");
        // The server itself starts one more timeline.
        assert_eq!(drill["timeline"], 3, "{more:?}: {drill:#}");
    }
    assert_ne!(rows, on_first[2]);
}

/// The defaults of `min_wal_size` and `max_wal_size` are too small for segments of 64 MB and of 1 GB. This
/// tests 64 MB.
fn a_drill_has_room_for_large_segments() -> Outcome {
    let primary = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(64).start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("repo").unwrap();
    make_archive(&repo);
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.restart(StopMode::Fast).unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    primary.start().unwrap();
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t AS SELECT generate_series(1, 1000) i").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    primary.stop(StopMode::Fast).unwrap();
    let bin = &primary.installation().bin_dir;
    let all = ["archive", "drill", "--repo", text(&repo), "--base", text(&backup), "--bin", text(bin)];
    let count = ["--no-amcheck", "--query", "SELECT count(*) FROM t", "--format", "json"];
    let size = ["--query", "SHOW min_wal_size"];
    // The user's setting takes precedence.
    for (more, expected) in [(&[][..], "128MB"), (&["--set", "min_wal_size=256MB"], "256MB")] {
        let drill = json(&[&all[..], &count, &size, more].concat());
        let values: Vec<&Value> =
            (0..2).map(|query| &drill["checked"]["queries"][query]["rows"][0][0]).collect();
        assert_eq!(values, ["1000", expected], "{drill:#}");
    }
    Ok(())
}

/// A prepared transaction keeps its locks after recovery, and no session of the drill ends it.
fn a_drill_does_not_wait_for_prepared_transactions(version: u32) -> Outcome {
    let builder = ClusterBuilder::new(postgres(version)?).setting("max_prepared_transactions", "5");
    let primary = builder.wal_segsize_mb(1).start().unwrap();
    let repo = primary.make_folder("repo").unwrap();
    make_archive(&repo);
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE \"a.\"\"b\" (i int PRIMARY KEY, t text)").unwrap();
    client.batch_execute("CREATE TABLE free AS SELECT generate_series(1, 70) i").unwrap();
    drop(client);
    let backup = back_up_and_archive(&primary, &program_for(&primary), &repo);
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("BEGIN; TRUNCATE \"a.\"\"b\"; PREPARE TRANSACTION 'pending'").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    let bin = &primary.installation().bin_dir;
    let all = ["archive", "drill", "--repo", text(&repo), "--base", text(&backup), "--bin", text(bin)];
    let run = walden(&all);
    assert_eq!(run.code, 0, "{run:?}");
    for line in [
        "pending: prepared transaction 'pending' of postgres in database postgres",
        "table public.\"a.\"\"b\" in postgres not read: locked by prepared transaction 'pending'",
    ] {
        assert!(run.stdout.contains(line), "{run:?}");
    }
    // The user's own query fails instead.
    let queries = ["--query", "SELECT count(*) FROM \"a.\"\"b\"", "--query", "SELECT count(*) FROM free"];
    let how = ["--set", "lock_timeout=1s", "--format", "json"];
    let run = walden(&[&all[..], &queries, &how].concat());
    assert_eq!(run.code, 1, "{run:?}");
    let checked = &serde_json::from_str::<Value>(&run.stdout).unwrap()["checked"];
    assert!(checked["problems"][0].as_str().unwrap().contains("lock timeout"), "{checked:#}");
    assert_eq!(checked["queries"][0]["rows"][0][0], "70", "{checked:#}");
    assert_eq!(checked["prepared_transactions"][0]["name"], "pending", "{checked:#}");
    Ok(())
}

/// A SQL_ASCII database has tables whose names are not UTF-8. The name of another database is not, either.
fn a_drill_counts_tables_with_names_that_are_no_text() -> Outcome {
    let primary = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).start().unwrap();
    let repo = primary.make_folder("repo").unwrap();
    make_archive(&repo);
    let mut client = primary.client("postgres").unwrap();
    let mut ascii = ascii_database(&primary, &mut client);
    client.batch_execute("CREATE TABLE free AS SELECT generate_series(1, 70) i").unwrap();
    for statement in
        [&b"CREATE TABLE \"x\xe9\" AS SELECT generate_series(1, 500) i"[..], b"CREATE TABLE \"x\xe8\" ()"]
    {
        run_bytes(&mut ascii, statement);
    }
    drop((client, ascii));
    let backup = back_up_and_archive(&primary, &program_for(&primary), &repo);
    let bin = &primary.installation().bin_dir;
    let drill = || {
        let all = ["archive", "drill", "--repo", text(&repo), "--base", text(&backup), "--bin", text(bin)];
        let run = walden(&[&all[..], &["--no-amcheck", "--format", "json"]].concat());
        let checked = serde_json::from_str::<Value>(&run.stdout);
        (run.code, checked.unwrap_or_else(|_| panic!("{run:?}"))["checked"].take())
    };
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    let (code, before) = drill();
    assert!(code == 0 && before["problems"] == serde_json::json!([]), "{before:#}");
    let tables = |database: &str| {
        let query = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relpersistence = 'p'";
        primary.client(database).unwrap().query_one(query, &[]).unwrap().get::<_, i64>(0)
    };
    let all_tables: i64 = ["postgres", "ascii", "template1"].into_iter().map(tables).sum();
    assert!(before["databases"] == 3 && before["tables"] == all_tables, "{all_tables}: {before:#}");
    run_bytes(
        &mut primary.client("ascii").unwrap(),
        b"INSERT INTO \"x\xe9\" SELECT generate_series(1, 1000)",
    );
    client.batch_execute("CREATE DATABASE latin").unwrap();
    run_bytes(&mut primary.client("ascii").unwrap(), b"ALTER DATABASE latin RENAME TO \"caf\xe9\"");
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    let (code, checked) = drill();
    let problem = "cannot connect to the database caf\u{FFFD}: expected a name in UTF-8, found other bytes";
    assert!(code == 1 && checked["problems"] == serde_json::json!([problem]), "{checked:#}");
    assert!(checked["databases"] == 3 && checked["tables"] == all_tables, "{checked:#}");
    let rows = [before, checked].map(|checked| checked["rows"].as_u64().unwrap());
    // A few rows of catalogs are added, too.
    assert!((1000..1100).contains(&(rows[1] - rows[0])), "{rows:?}");
    Ok(())
}

/// Ctrl-C while the server recovers or is being checked.
fn an_interrupted_drill_leaves_nothing() -> Outcome {
    let archived = archive_work(15)?;
    let Archived { primary, repo, backup, .. } = &archived;
    let folder = primary.make_folder("drill").unwrap();
    let bin = primary.installation().bin_dir.clone();
    for signal in ["INT", "KILL"] {
        let mut drill = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(["archive", "drill", "--repo", text(repo), "--base", text(backup), "--bin", text(&bin)])
            .args(["--folder", text(&folder), "--no-amcheck", "--query", "SELECT pg_sleep(60)"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = || -> Option<String> {
            let folder = fs::read_dir(&folder).ok()?.next()?.ok()?.path();
            fs::read_to_string(folder.join("data/postmaster.pid")).ok()?.lines().next().map(str::to_owned)
        };
        let pid = wait_for(server);
        let kill =
            Command::new("kill").args([&format!("-{signal}"), &drill.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let status = drill.wait().unwrap();
        assert_eq!(status.code(), (signal == "INT").then_some(130), "{signal}");
        wait_for(|| (fs::read_dir(&folder).unwrap().count() == 0).then_some(()));
        wait_for(|| (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    }
    Ok(())
}

fn wait_for<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server archives during the drill, whose recovery replays more than was archived when it began.
fn a_drill_accepts_that_the_archive_grows(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = ClusterBuilder::new(installation).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("own").unwrap();
    make_archive(&repo);
    let backup = back_up_and_archive(&primary, &program, &repo);
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int, v text)").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    let is_done = AtomicBool::new(false);
    let bin = primary.installation().bin_dir.clone();
    let drills = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                client.batch_execute("INSERT INTO t VALUES (1, 'one')").unwrap();
                client.batch_execute("SELECT pg_switch_wal()").unwrap();
                thread::sleep(Duration::from_millis(300));
            }
        });
        let drill = || {
            let all =
                ["archive", "drill", "--repo", text(&repo), "--base", text(&backup), "--bin", text(&bin)];
            walden(&[&all[..], &["--no-amcheck", "--query", "SELECT 1", "--format", "json"]].concat())
        };
        let drills = [drill(), drill()];
        is_done.store(true, Ordering::Relaxed);
        drills
    });
    for drill in drills {
        assert_eq!(drill.code, 0, "{drill:?}");
        let drill: Value = serde_json::from_str(&drill.stdout).unwrap();
        assert_eq!(drill["checked"]["problems"], Value::Array(Vec::new()), "{drill:#}");
    }
    Ok(())
}
