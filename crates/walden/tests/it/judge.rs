//! WAL for which PostgreSQL's own replay differs from the server's pages, timelines that branch off, and
//! checkpoints interrupted by a crash.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::wait_until_promoted;
use crate::material::{explain_json, redo_check, say, walden};

walden_testing::tests! {
    maps_that_create_database_copies_are_no_difference on [17, 19],
    bits_that_are_cleared_before_their_record_are_no_difference,
    pages_are_known_across_a_switch_of_timelines on [17, 19],
    checkpoints_that_a_crash_cut_off_count on [17, 19],
    settings_that_change_in_the_log_are_named on [17, 19],
}

fn number(json: &Value, path: &str) -> u64 {
    json.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {json:#}"))
}

fn sql(cluster: &Cluster, database: &str, statements: &[&str]) {
    let mut client = cluster.client(database).unwrap();
    for statement in statements {
        client.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

fn wal(cluster: &Cluster) -> PathBuf {
    cluster.data_dir().join("pg_wal")
}

/// `CREATE DATABASE` logs visibility maps without their bits, so PostgreSQL's recovery loses them.
fn maps_that_create_database_copies_are_no_difference(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("wal_consistency_checking", "all")
        .setting("wal_keep_size", "1GB")
        .setting("autovacuum", "off")
        .start()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    cluster.stop(StopMode::Fast).unwrap();
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    sql(&cluster, "postgres", &["CREATE DATABASE d STRATEGY wal_log", "CHECKPOINT"]);
    sql(&cluster, "d", &["CREATE TABLE x (a int)", "VACUUM pg_attribute", "VACUUM pg_class"]);
    cluster.stop(StopMode::Fast).unwrap();
    let (wal, data) = (wal(&cluster), cluster.data_dir());
    let (code, json) = redo_check(&[Path::new("--base"), &base, Path::new("--pgdata"), &data, &wal]);
    assert_eq!((code, number(&json, "/different")), (0, 0), "{json:#}");
    assert!(number(&json, "/images/copied_maps") > 0, "{json:#}");
    assert!(number(&json, "/pages/copied_maps") > 10, "{json:#}");
    let table = walden(&[Path::new("redo"), Path::new("check"), Path::new("--base"), &base, &wal]);
    assert!(table.stdout.contains("whose bits CREATE DATABASE does not log"), "{}", table.stdout);
    // In a data file, the difference is explained only for such maps, and only if the file's map lacks no
    // bit. A bit that another map lacks is a difference.
    let map = fs::read_dir(data.join("base/1")).unwrap().map(|entry| entry.unwrap().path());
    let map = map.filter(|path| path.to_str().unwrap().ends_with("_vm")).find(|path| {
        let bytes = fs::read(path).unwrap();
        // Changed since the base, so that it is compared.
        bytes != fs::read(base.join(path.strip_prefix(&data).unwrap())).unwrap_or_default()
    });
    if let Some(map) = map {
        let mut bytes = fs::read(&map).unwrap();
        bytes[24] ^= 1;
        fs::write(&map, bytes).unwrap();
        let (code, json) = redo_check(&[Path::new("--base"), &base, Path::new("--pgdata"), &data, &wal]);
        assert_eq!((code, number(&json, "/different")), (1, 1), "{json:#}");
    }
    Ok(())
}

/// Updates a table while VACUUM sets the bits of its map, until a bit is cleared before the corresponding
/// record is written.
fn bits_that_are_cleared_before_their_record_are_no_difference() -> Outcome {
    const ROWS: u32 = 2000;
    let cluster = ClusterBuilder::new(postgres(15)?)
        .setting("wal_consistency_checking", "heap,heap2")
        .setting("wal_keep_size", "4GB")
        .setting("max_wal_size", "4GB")
        .setting("synchronous_commit", "off")
        .setting("autovacuum", "off")
        .start()
        .unwrap();
    let rows = format!("INSERT INTO t SELECT i, 0, repeat('x', 1500) FROM generate_series(1, {ROWS}) i");
    let table = "CREATE TABLE t (id int PRIMARY KEY, v int, p text) WITH (fillfactor = 50)";
    sql(&cluster, "postgres", &[table, &rows, "VACUUM t", "CHECKPOINT"]);
    let until = Instant::now() + Duration::from_secs(6);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut client = cluster.client("postgres").unwrap();
                let update = client.prepare("UPDATE t SET v = v + 1 WHERE id = $1").unwrap();
                let mut id = number * 251;
                while Instant::now() < until {
                    id = (id + 7919) % ROWS as i32;
                    client.execute(&update, &[&id]).unwrap();
                }
            });
        }
        let mut client = cluster.client("postgres").unwrap();
        while Instant::now() < until {
            client.batch_execute("VACUUM t").unwrap();
        }
    });
    cluster.stop(StopMode::Fast).unwrap();
    let (code, json) = redo_check(&[&wal(&cluster)]);
    assert_eq!((code, number(&json, "/different")), (0, 0), "{json:#}");
    let maps = json["by_record"].as_array().unwrap().iter().filter(|row| row["page"] == "visibility map");
    let compared: u64 =
        maps.map(|row| number(row, "/counts/exact") + number(row, "/counts/cleared_early")).sum();
    assert!(compared > 1000, "{json:#}");
    say(&format!("{compared} maps, {} with bits cleared early", number(&json, "/images/cleared_early")));
    Ok(())
}

/// Copies the segments of one timeline to a folder.
fn timeline(wal: &Path, timeline: u32, to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(wal).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if name.len() == 24 && name.starts_with(&format!("{timeline:08X}")) {
            fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
    to.to_owned()
}

/// After a promotion, known pages remain known: from a server that stopped at the switch, and from one that
/// continued.
fn pages_are_known_across_a_switch_of_timelines(major: u32) -> Outcome {
    let builder = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("wal_consistency_checking", "all")
        .setting("wal_keep_size", "1GB")
        .setting("autovacuum", "off");
    let first = builder.clone().start().unwrap();
    sql(
        &first,
        "postgres",
        &["CREATE TABLE t AS SELECT i, md5(i::text) AS text FROM generate_series(1, 20000) i", "CHECKPOINT"],
    );
    first.stop(StopMode::Fast).unwrap();
    let second = builder
        .copy_of(&first.data_dir())
        .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
        .unwrap();
    sql(&second, "postgres", &["SELECT pg_promote()"]);
    wait_until_promoted(&second);
    sql(&second, "postgres", &["UPDATE t SET text = 'second' WHERE i % 40 = 0"]);
    second.stop(StopMode::Fast).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let of_first = timeline(&wal(&first), 1, &folder.path().join("1"));
    let of_second = timeline(&wal(&second), 2, &folder.path().join("2"));
    let (_, alone) = redo_check(&[&of_second]);
    let (_, before) = redo_check(&[&of_first]);
    let (code, joined) = redo_check(&[&of_first, &of_second]);
    assert_eq!((code, number(&joined, "/different")), (0, 0), "{joined:#}");
    let unknown = |json| number(json, "/images/unknown_before");
    assert!(unknown(&alone) > unknown(&joined) + 50, "{alone:#} {joined:#}");
    // Records that the second timeline's first segment repeats are counted once.
    assert!(number(&joined, "/records") < number(&alone, "/records") + number(&before, "/records"));
    let known = number(&joined, "/images_compared");
    assert!(known > number(&before, "/images_compared") + 500, "{before:#} {joined:#}");

    // The first server continues after the switch. Its records are compared, and do not affect the second
    // timeline.
    first.start().unwrap();
    sql(&first, "postgres", &["UPDATE t SET text = 'first' WHERE i % 40 = 1"]);
    first.stop(StopMode::Fast).unwrap();
    let of_first = timeline(&wal(&first), 1, &folder.path().join("on"));
    let (code, both) = redo_check(&[&of_first, &of_second]);
    assert_eq!((code, number(&both, "/different")), (0, 0), "{both:#}");
    assert!(number(&both, "/images_compared") > known + 500, "{joined:#} {both:#}");
    assert!(unknown(&both) < unknown(&alone), "{alone:#} {both:#}");
    Ok(())
}

/// A server crashes while it writes a checkpoint: the checkpoint has no record, but its redo pointer still
/// counts.
fn checkpoints_that_a_crash_cut_off_count(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .checksums(false)
        .setting("wal_keep_size", "1GB")
        .setting("autovacuum", "off")
        .setting("max_wal_size", "16MB")
        .setting("bgwriter_lru_maxpages", "0")
        .start()
        .unwrap();
    sql(
        &cluster,
        "postgres",
        &["CREATE TABLE t AS SELECT i, md5(i::text) AS text FROM generate_series(1, 30000) i", "CHECKPOINT"],
    );
    let began = Instant::now();
    let is_started = || fs::read_to_string(cluster.log_path()).unwrap().contains("checkpoint starting: wal");
    // A checkpoint triggered only by the WAL distance spreads its writes over minutes.
    for number in 0.. {
        sql(
            &cluster,
            "postgres",
            &[&format!("UPDATE t SET text = 'a{number}' WHERE i % 20 = {}", number % 20)],
        );
        if is_started() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{}", cluster.log_tail());
    }
    sql(&cluster, "postgres", &["UPDATE t SET text = 'b' WHERE i % 20 = 7"]);
    cluster.crash().unwrap();
    // Until 18, the server's log line does not name the completed checkpoint.
    let log = fs::read_to_string(cluster.log_path()).unwrap();
    let (_, since) = log.rsplit_once("checkpoint starting: wal").unwrap();
    assert!(!since.contains("checkpoint complete"), "it was not cut off: {since}");
    cluster.start().unwrap();
    sql(&cluster, "postgres", &["UPDATE t SET text = 'c' WHERE i % 20 = 9"]);
    cluster.stop(StopMode::Fast).unwrap();

    let wal = wal(&cluster);
    let wal = wal.to_str().unwrap();
    let explained = explain_json(&["--by", "checkpoint", wal]);
    let list = explained.pointer("/checkpoints/list").unwrap().as_array().unwrap();
    let cut_off: Vec<&Value> = list.iter().filter(|one| one["finished"] == false).collect();
    assert_eq!(number(&explained, "/checkpoints/unfinished"), 1, "{list:#?}");
    let redo = cut_off[0]["redo"].as_str().unwrap();
    let cycles = explained["cycles"].as_array().unwrap();
    assert!(
        cycles.iter().any(|cycle| cycle["label"].as_str().unwrap().ends_with(redo)),
        "{redo}: {cycles:#?}"
    );

    let run = walden(&["whatif", "--format", "json", "--set", "max_wal_size=1GB", wal]);
    assert_eq!(run.code, 0, "{run:?}");
    let forecast: Value = serde_json::from_str(&run.stdout).unwrap();
    let check = &forecast["self_check"];
    assert!(number(check, "/decisions") > 1000, "{check:#}");
    assert_eq!((number(check, "/missing_images"), number(check, "/unexpected_images")), (0, 0), "{check:#}");
    Ok(())
}

/// `wal_level` needs a restart, `full_page_writes` a reload; the WAL records both.
fn settings_that_change_in_the_log_are_named(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("wal_keep_size", "1GB")
        .start()
        .unwrap();
    sql(&cluster, "postgres", &["CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) i"]);
    cluster.configure(&[("wal_level", "logical")]).unwrap();
    cluster.restart(StopMode::Fast).unwrap();
    sql(&cluster, "postgres", &["UPDATE t SET i = i + 1"]);
    cluster.configure(&[("full_page_writes", "off")]).unwrap();
    cluster.reload();
    let shows = || {
        let mut client = cluster.client("postgres").unwrap();
        client.query_one("SHOW full_page_writes", &[]).unwrap().get::<_, String>(0)
    };
    let began = Instant::now();
    while shows() != "off" {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    sql(&cluster, "postgres", &["CHECKPOINT", "UPDATE t SET i = i + 1", "CHECKPOINT"]);
    cluster.stop(StopMode::Fast).unwrap();
    let wal = wal(&cluster);
    let wal = wal.to_str().unwrap();
    let explained = explain_json(&[wal]);
    let changes = explained["setting_changes"].as_array().unwrap();
    let of = |name: &str| {
        let change = changes.iter().find(|change| change["name"] == name);
        let change = change.unwrap_or_else(|| panic!("no {name} in {changes:#?}"));
        ["before", "after"].map(|field| change[field].as_str().unwrap().to_owned())
    };
    assert_eq!(of("wal_level"), ["replica", "logical"]);
    assert_eq!(of("full_page_writes"), ["on", "off"]);
    let table = walden(&["explain", "--full", wal]);
    assert!(table.stdout.contains("wal_level changes from replica to logical at "), "{}", table.stdout);
    let forecast = walden(&["whatif", "--set", "max_wal_size=2GB", wal]);
    assert!(forecast.stdout.contains("wal_level changes from replica to logical"), "{}", forecast.stdout);
    Ok(())
}
