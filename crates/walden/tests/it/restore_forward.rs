//! `walden restore`, judged by PostgreSQL: one copy of a base backup is recovered by PostgreSQL alone,
//! another one by Walden.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use postgres::Client;
use serde_json::Value;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode};
use walden_redo::page::checksum;
use walden_redo::{PAGE_BYTES, Page};
use walden_server::account;
use walden_source::datadir::{ControlFile, DatabaseState};
use walden_testing::{ALL_SERVERS, Outcome, postgres};

use crate::archive::{program_for, text, wait_until_archived, wait_until_promoted};
use crate::material::{Run, make_archive, say, walden};

walden_testing::tests! {
    #[slow] a_restored_directory_is_that_of_a_restart_point on ALL_SERVERS,
    a_restore_from_an_archive_continues_from_there on [17],
    recovery_stops_at_each_kind_of_target on ALL_SERVERS,
    a_target_in_the_drop_of_a_database_comes_with_a_warning on [14, 17],
    a_promotion_is_followed on [18],
    a_record_that_is_not_replayed_is_left_to_postgresql on [15, 19],
    what_cannot_be_restored_is_refused_before_anything_is_written on [18],
    #[slow] a_backup_advances_in_steps_as_in_one on [15, 19],
    tablespaces_get_new_folders on [14, 18],
    a_copy_of_a_stopped_server_is_a_backup on [17],
    random_positions_are_reached_as_by_postgresql on [16],
    each_kind_of_target_is_reached_and_kills_are_survived on [16],
    #[slow] hundreds_of_targets_are_reached_and_kills_are_survived on [15, 19],
    #[slow] a_backup_advances_in_random_steps_as_in_one on [15, 19],
    a_killed_exchange_is_completed_by_the_next_advance on [15],
    tablespaces_that_wal_creates_get_new_folders on [14, 18],
    compressed_segments_are_decoded_by_several_threads on [17],
    images_that_are_overwritten_are_not_restored on [15, 19],
}

/// Settings of all servers here.
const SETTINGS: &[(&str, &str)] = &[
    ("autovacuum", "off"),
    ("max_prepared_transactions", "20"),
    ("wal_level", "logical"),
    ("max_wal_size", "1GB"),
    ("checkpoint_timeout", "1h"),
];

/// A server whose base backup was taken while it worked.
pub struct Primary {
    pub cluster: Cluster,
    pub backup: PathBuf,
}

impl Primary {
    pub fn start(installation: &Installation, settings: &[(&str, &str)]) -> Primary {
        Primary::start_with(installation, settings, true, 1)
    }

    fn start_with(
        installation: &Installation,
        settings: &[(&str, &str)],
        checksums: bool,
        segment_mb: u32,
    ) -> Primary {
        let builder = ClusterBuilder::new(installation.clone())
            .checksums(checksums)
            .wal_segsize_mb(segment_mb)
            .archive(true);
        let all = SETTINGS.iter().chain(settings);
        let builder = all.fold(builder, |builder, (name, value)| builder.setting(name, value));
        let cluster = builder.start().unwrap();
        let backup = cluster.dir().join("backup");
        Primary { cluster, backup }
    }

    fn major(&self) -> u32 {
        self.cluster.major()
    }

    pub fn client(&self, database: &str) -> Client {
        self.cluster.client(database).unwrap()
    }

    /// Takes a base backup as pg_basebackup does, while `work` changes the tables.
    pub fn back_up(&self, work: impl FnMut(&mut Client) + Send) {
        let mut client = self.client("postgres");
        let (start, stop) = match self.major() {
            14 => (
                "SELECT pg_start_backup('x', true, false)",
                "SELECT labelfile FROM pg_stop_backup(false, false)",
            ),
            _ => ("SELECT pg_backup_start('x', true)", "SELECT labelfile FROM pg_backup_stop(false)"),
        };
        client.batch_execute(start).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (mut work, mut client, is_done) = (work, self.client("postgres"), &is_done);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    work(&mut client);
                }
            });
            copy_running(&self.cluster.data_dir(), &self.backup);
            is_done.store(true, Ordering::Relaxed);
        });
        let label: String = client.query_one(stop, &[]).unwrap().get(0);
        fs::write(self.backup.join("backup_label"), label).unwrap();
        // `pg_backup_stop(false)` returns before its last segment is archived.
        wait_until_archived(&mut client);
    }

    /// Makes a checkpoint while nothing else is written, and a restore point after it.
    pub fn checkpoint_and_name(&self, name: &str) {
        let mut client = self.client("postgres");
        client.batch_execute("CHECKPOINT").unwrap();
        client.batch_execute(&format!("SELECT pg_create_restore_point('{name}')")).unwrap();
    }

    pub fn archive_all(&self) {
        let mut client = self.client("postgres");
        client.batch_execute("SELECT pg_switch_wal()").unwrap();
        wait_until_archived(&mut client);
    }

    /// Creates an archive and pushes all archived segments. Returns its folder.
    pub fn push_all(&self) -> PathBuf {
        let repo = self.cluster.dir().join("repo");
        make_archive(&repo);
        let entries = fs::read_dir(self.cluster.archive_dir()).unwrap();
        let mut segments: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        segments.sort();
        for segment in &segments {
            let pushed = walden(&["archive", "push", "--repo", text(&repo), text(segment)]);
            assert_eq!(pushed.code, 0, "{pushed:?}");
        }
        account::chown_all(&repo).unwrap();
        repo
    }

    pub fn restore_command(&self) -> String {
        format!("cp {}/%f \"%p\"", self.cluster.archive_dir().display())
    }

    /// A server for a data directory of this one's.
    pub fn server_of(&self, data: &Path) -> ClusterBuilder {
        let builder = ClusterBuilder::new(self.cluster.installation().clone()).copy_of(data);
        let builder = SETTINGS.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        let builder = builder.setting("archive_mode", "off").setting("hot_standby", "off");
        match self.major() {
            14 => builder,
            _ => builder.setting("allow_in_place_tablespaces", "on"),
        }
    }

    /// Recovers the backup with PostgreSQL alone, to a restore point. Returns a copy of the data directory at
    /// that point, and the promoted server.
    fn recover_alone(&self, name: &str) -> (PathBuf, Cluster) {
        let postgres = self.cluster.installation().postgres();
        let of_backup = self.backup.file_name().unwrap().to_str().unwrap();
        let kept = self.cluster.dir().join(format!("{of_backup}_alone_{name}"));
        let builder = self
            .server_of(&self.backup)
            .setting("restore_command", &self.restore_command())
            .setting("recovery_target_name", name);
        let action = |data: &Path, action: &str| {
            let path = data.join("postgresql.auto.conf");
            let text = fs::read_to_string(&path).unwrap_or_default();
            fs::write(path, format!("{text}recovery_target_action = '{action}'\n")).unwrap();
        };
        let cluster = builder.start_after(|data| {
            fs::write(data.join("recovery.signal"), "")?;
            action(data, "shutdown");
            account::chown_all(data)?;
            let mut command = account::command(&postgres, data)?;
            let output = command.arg("-D").arg(data).stdin(Stdio::null()).output()?;
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(log.contains("recovery stopping at restore point"), "{log}");
            copy_running(data, &kept);
            action(data, "promote");
            Ok(())
        });
        let cluster = cluster.unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&cluster);
        (kept, cluster)
    }

    /// Restores the backup to a target with Walden. Returns the data directory and the printed JSON.
    pub fn restore(&self, target: &str, folder: &str) -> (PathBuf, Value) {
        self.restore_with(target, folder, "3")
    }

    fn restore_with(&self, target: &str, folder: &str, threads: &str) -> (PathBuf, Value) {
        let data = self.cluster.dir().join(folder);
        let wal = self.cluster.archive_dir();
        let arguments =
            ["restore", "--wal", text(&wal), "--base", text(&self.backup), "-o", text(&data), "--to", target];
        let options = ["--target-action", "promote", "--format", "json", "--threads", threads];
        let run = walden(&[&arguments[..], &options].concat());
        assert_eq!(run.code, 0, "{run:?}");
        (data, serde_json::from_str(&run.stdout).unwrap())
    }
}

/// Copies a data directory without its WAL. A server may be using it: files come and go.
pub fn copy_running(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let Ok(entries) = fs::read_dir(from) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let (name, kind) = (path.file_name().unwrap().to_str().unwrap(), fs::symlink_metadata(&path));
        let target = to.join(name);
        if kind.is_ok_and(|kind| kind.is_dir()) {
            match name {
                "pg_wal" => fs::create_dir(&target).unwrap(),
                _ => copy_running(&path, &target),
            }
        } else if !name.starts_with("postmaster.") {
            let _ = fs::copy(&path, &target);
        }
    }
}

/// Changes of all kinds that recovery replays.
pub fn work(primary: &Primary, round: i32) {
    let mut client = primary.client("postgres");
    let mut run = |sql: &str| client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    run("INSERT INTO log SELECT g, repeat('x', g % 300) FROM generate_series(1, 3000) g");
    run(&format!("UPDATE main SET t = t || '{round}' WHERE i % 7 = {round}"));
    run(&format!("DELETE FROM main WHERE i % 11 = {round}"));
    run(&format!("DROP TABLE IF EXISTS kinds{}", round - 1));
    run(&format!(
        "CREATE TABLE kinds{round} AS SELECT g i, md5(g::text) t, ARRAY[g, g % 10] a, int4range(g, g + 5) r, \
         point(g, g % 100) p, to_tsvector(md5(g::text)) v FROM generate_series(1, 1500) g"
    ));
    for method in ["btree(t)", "gin(a)", "gist(r)", "brin(i)", "hash(t)", "spgist(p)", "gin(v)"] {
        run(&format!("CREATE INDEX ON kinds{round} USING {method}"));
    }
    run(&format!(
        "INSERT INTO kinds{round} SELECT g i, md5(g::text) t, ARRAY[g, g % 10] a, int4range(g, g + 5) r, \
         point(g, g % 100) p, to_tsvector('x' || g) v FROM generate_series(1, 900) g"
    ));
    run(&format!("DELETE FROM kinds{round} WHERE i % 5 = 0"));
    for sql in
        ["VACUUM main", "VACUUM (FREEZE) log", "TRUNCATE cut", "DELETE FROM log WHERE i > 300", "VACUUM log"]
    {
        run(sql);
    }
    run(&format!("VACUUM kinds{round}"));
    run(
        "BEGIN; SAVEPOINT x; INSERT INTO cut VALUES (1); SAVEPOINT y; INSERT INTO cut VALUES (2); ROLLBACK TO y; \
         SAVEPOINT z; INSERT INTO cut VALUES (3); RELEASE z; COMMIT",
    );
    run("BEGIN; CREATE TABLE never (i int); INSERT INTO never VALUES (1); ROLLBACK");
    for (name, end) in [("kept", ""), ("done", "COMMIT PREPARED"), ("undone", "ROLLBACK PREPARED")] {
        run(&format!(
            "BEGIN; INSERT INTO prepared VALUES ({round}); SAVEPOINT s; INSERT INTO prepared VALUES (0)"
        ));
        run(&format!("PREPARE TRANSACTION '{name}{round}'"));
        if !end.is_empty() {
            run(&format!("{end} '{name}{round}'"));
        }
    }
    if round > 1 {
        run(&format!("COMMIT PREPARED 'kept{}'", round - 1));
    }
    run(&format!("CREATE UNLOGGED TABLE unlogged{round} (i int PRIMARY KEY)"));
    run(&format!("INSERT INTO unlogged{round} VALUES (1)"));
    run("CLUSTER main USING main_pkey");
    run("VACUUM FULL pg_class");
    run("SELECT nextval('counter') FROM generate_series(1, 50)");
    run(&format!(
        "SELECT pg_replication_origin_session_setup('origin'); BEGIN; \
         SELECT pg_replication_origin_xact_setup('0/{round}00', now()); INSERT INTO cut VALUES (9); COMMIT; \
         SELECT pg_replication_origin_session_reset()"
    ));
    lock_together(primary);
    let strategies = match primary.major() {
        14 => ["", ""],
        _ => ["STRATEGY file_copy", "STRATEGY wal_log"],
    };
    for (index, strategy) in strategies.iter().enumerate() {
        run(&format!("CREATE DATABASE d{round}_{index} TEMPLATE source {strategy}"));
    }
    primary
        .client(&format!("d{round}_0"))
        .batch_execute("CREATE TABLE own AS SELECT generate_series(1, 500) i")
        .unwrap();
    run(&format!("CREATE DATABASE again{round} TEMPLATE d{round}_0 {}", strategies[0]));
    run(&format!("DROP DATABASE d{round}_0"));
    if primary.major() >= 15 {
        run("SET allow_in_place_tablespaces = on");
        run(&format!("CREATE TABLESPACE space{round} LOCATION ''"));
        run(&format!(
            "CREATE TABLE placed{round} TABLESPACE space{round} AS SELECT generate_series(1, 100) i"
        ));
        if round > 1 {
            run(&format!("DROP TABLE placed{}", round - 1));
            run(&format!("DROP TABLESPACE space{}", round - 1));
        }
    }
}

/// Two transactions lock and update the same rows: multixacts.
fn lock_together(primary: &Primary) {
    let (mut one, mut other) = (primary.client("postgres"), primary.client("postgres"));
    for _ in 0..20 {
        one.batch_execute("BEGIN; SELECT * FROM shared WHERE i <= 40 FOR KEY SHARE").unwrap();
        other.batch_execute("BEGIN; SELECT * FROM shared WHERE i <= 40 FOR SHARE; COMMIT").unwrap();
        other.batch_execute("UPDATE shared SET t = t || 'x' WHERE i <= 20").unwrap();
        one.batch_execute("COMMIT").unwrap();
    }
}

pub fn create_tables(primary: &Primary) {
    let mut client = primary.client("postgres");
    for sql in [
        "CREATE TABLE main (i int PRIMARY KEY, t text)",
        "INSERT INTO main SELECT g, md5(g::text) FROM generate_series(1, 5000) g",
        "CREATE INDEX ON main (t)",
        "CREATE TABLE log (i int, t text)",
        "CREATE TABLE cut (i int)",
        "INSERT INTO cut SELECT generate_series(1, 3000)",
        "CREATE TABLE prepared (i int)",
        "CREATE TABLE busy (i int PRIMARY KEY, n int)",
        "INSERT INTO busy SELECT g, 0 FROM generate_series(1, 20000) g",
        "CREATE TABLE shared (i int PRIMARY KEY, t text)",
        "INSERT INTO shared SELECT g, '' FROM generate_series(1, 100) g",
        "CREATE SEQUENCE counter",
        "CREATE UNLOGGED TABLE unlogged (i int)",
        "INSERT INTO unlogged VALUES (1)",
        "VACUUM main",
        "VACUUM cut",
        "CREATE DATABASE source",
        "SELECT pg_replication_origin_create('origin')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    primary.client("source").batch_execute("CREATE TABLE t AS SELECT generate_series(1, 1000) i").unwrap();
}

/// The content of every table in every database, as checksums.
pub fn content(cluster: &Cluster) -> BTreeMap<(String, String), (i64, String)> {
    let mut all = BTreeMap::new();
    let databases = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY 1";
    for row in cluster.client("postgres").unwrap().query(databases, &[]).unwrap() {
        let database: String = row.get(0);
        let mut client = cluster.client(&database).unwrap();
        // Statistics of replication slots and the like change by themselves.
        let tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'm', 'S') \
                      AND relpersistence = 'p' ORDER BY 1";
        for row in client.query(tables, &[]).unwrap() {
            let table: String = row.get(0);
            let sql = format!(
                "SELECT count(*), coalesce(md5(string_agg(t::text, ',' ORDER BY t::text)), '') FROM (SELECT * FROM {table}) t"
            );
            let row =
                client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{database}, {table}: {error:?}"));
            all.insert((database.clone(), table), (row.get(0), row.get(1)));
        }
    }
    all
}

pub fn expect_same_content(
    found: &BTreeMap<(String, String), (i64, String)>,
    expected: &BTreeMap<(String, String), (i64, String)>,
) {
    let differs =
        |(table, content): &(&(String, String), &(i64, String))| expected.get(*table) != Some(*content);
    let different: Vec<_> = found.iter().filter(differs).map(|(table, _)| table).collect();
    assert!(different.is_empty() && found.len() == expected.len(), "{different:?}");
}

/// Runs amcheck on all tables and indexes, where the installation has it. How many were checked.
pub fn amcheck(cluster: &Cluster) -> usize {
    let mut client = cluster.client("postgres").unwrap();
    if client.batch_execute("CREATE EXTENSION amcheck").is_err() {
        return 0;
    }
    let problems = "SELECT c.oid::regclass::text, v.msg FROM pg_class c, LATERAL verify_heapam(c.oid) v \
                    WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence = 'p'";
    let problems = client.query(problems, &[]).unwrap();
    let texts: Vec<String> = problems
        .iter()
        .map(|row| format!("{}: {}", row.get::<_, String>(0), row.get::<_, String>(1)))
        .collect();
    assert!(texts.is_empty(), "{texts:?}");
    let checked = "SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
                   JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND c.relpersistence = 'p' AND i.indisvalid";
    client.query(checked, &[]).unwrap().len()
}

/// Every file below some folders of a data directory, by its path.
pub fn files_of(data: &Path, folders: &[&str]) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left: Vec<PathBuf> = folders.iter().map(|folder| data.join(folder)).collect();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    drop(found.insert(path.strip_prefix(data).unwrap().to_owned(), fs::read(&path).unwrap()))
                }
            }
        }
    }
    found
}

fn expect_same_names(expected: &BTreeMap<PathBuf, Vec<u8>>, found: &BTreeMap<PathBuf, Vec<u8>>) {
    let missing: Vec<&PathBuf> = expected.keys().filter(|path| !found.contains_key(*path)).collect();
    let surplus: Vec<&PathBuf> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
}

/// Returns the path of the main fork of an init fork.
fn main_of_init(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(path.file_name()?.to_str()?.strip_suffix("_init")?))
}

/// Compares a restored data directory that no server has used with one that PostgreSQL left at the same
/// restart point. Returns the number of pages.
fn compare_directories(alone: &Path, restored: &Path) -> usize {
    let states = ["pg_xact", "pg_multixact", "pg_commit_ts", "pg_twophase"];
    let (expected, found) = (files_of(alone, &states), files_of(restored, &states));
    expect_same_names(&expected, &found);
    for (path, content) in &expected {
        assert!(*content == found[path], "{} differs", path.display());
    }
    let origins = Path::new("pg_logical/replorigin_checkpoint");
    assert_eq!(fs::read(alone.join(origins)).unwrap(), fs::read(restored.join(origins)).unwrap());

    let is_relation = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !["pg_internal.init", "pg_control", "config_exec_params.new"].contains(&name)
            && !name.contains("_fsm")
    };
    let folders = ["base", "global", "pg_tblspc"];
    let (mut expected, mut found) = (files_of(alone, &folders), files_of(restored, &folders));
    for files in [&mut expected, &mut found] {
        // PostgreSQL removes the main forks of unlogged relations when it starts.
        let unlogged: Vec<PathBuf> = files.keys().filter_map(|path| main_of_init(path)).collect();
        files.retain(|path, _| is_relation(path) && !unlogged.contains(path));
    }
    expect_same_names(&expected, &found);
    let mut pages = 0;
    for (path, content) in &expected {
        let (name, other) = (path.display(), &found[path]);
        assert_eq!(content.len(), other.len(), "{name}");
        let is_paged = content.len() % PAGE_BYTES == 0 && !content.is_empty();
        if !is_paged {
            assert!(content == other, "{name} differs");
            continue;
        }
        for (block, (one, other)) in content.chunks(PAGE_BYTES).zip(other.chunks(PAGE_BYTES)).enumerate() {
            let at: Vec<usize> = (0..PAGE_BYTES).filter(|&at| one[at] != other[at]).take(20).collect();
            assert!(at.is_empty(), "{name} block {block} differs at {at:?}");
            pages += 1;
        }
    }
    pages
}

/// Checks that every page of relations has the right checksum.
fn check_checksums(data: &Path) {
    for (path, content) in files_of(data, &["base", "global", "pg_tblspc"]) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let segment: u32 = name.split_once('.').map_or(0, |(_, segment)| segment.parse().unwrap_or(0));
        if !name.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        for (block, bytes) in content.chunks_exact(PAGE_BYTES).enumerate() {
            let mut page = Page::default();
            page.0.copy_from_slice(bytes);
            let block = segment * 131_072 + block as u32;
            assert!(page.is_new() || checksum::is_sound(&page, block), "{} block {block}", path.display());
        }
    }
}

/// Changes rows while a backup is taken, some pages several times.
pub fn keep_busy(client: &mut Client) {
    client.batch_execute("UPDATE busy SET n = n + 1 WHERE i % 50 = (random() * 50)::int").unwrap();
    client.batch_execute("CREATE TABLE gone AS SELECT generate_series(1, 500) i; DROP TABLE gone").unwrap();
}

/// The directory that Walden writes is, byte for byte, the one that PostgreSQL leaves when it recovers the
/// same backup and makes a restart point at the same checkpoint. Servers that are started on both reach the
/// same state at later targets.
fn a_restored_directory_is_that_of_a_restart_point(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let timestamps = if version.is_multiple_of(2) { "on" } else { "off" };
    let full_page_writes = if version == 19 { "off" } else { "on" };
    let settings = [("track_commit_timestamp", timestamps), ("full_page_writes", full_page_writes)];
    let (has_checksums, segment_mb) = match version {
        15 => (true, 16),
        16 => (false, 1),
        18 => (true, 64),
        _ => (true, 1),
    };
    let primary = Primary::start_with(&installation, &settings, has_checksums, segment_mb);
    create_tables(&primary);
    primary.back_up(keep_busy);
    work(&primary, 1);
    primary.client("postgres").batch_execute("CHECKPOINT").unwrap();
    work(&primary, 2);
    work(&primary, 3);
    primary.checkpoint_and_name("at_checkpoint");
    let mut client = primary.client("postgres");
    (0..5).for_each(|_| keep_busy(&mut client));
    lock_together(&primary);
    client.batch_execute("COMMIT PREPARED 'kept3'").unwrap();
    client.batch_execute("BEGIN; INSERT INTO prepared VALUES (4); PREPARE TRANSACTION 'kept4'").unwrap();
    client.batch_execute("SELECT pg_create_restore_point('later')").unwrap();
    keep_busy(&mut client);
    primary.archive_all();

    let (alone, expected) = primary.recover_alone("at_checkpoint");
    let (data, json) = primary.restore("name:at_checkpoint", "at_checkpoint");
    let pages = compare_directories(&alone, &data);
    if has_checksums {
        check_checksums(&data);
    }
    // The pages are divided among the threads.
    for threads in ["1", "2", "7"] {
        let (data, _) = primary.restore_with("name:at_checkpoint", &format!("with_{threads}"), threads);
        assert_eq!(compare_directories(&alone, &data), pages, "{threads} threads");
    }
    assert!(pages > 3000, "{pages} pages");
    assert_eq!(json["restored"]["prepared_transactions"], 1, "{json}");
    let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    expect_same_content(&content(&server), &content(&expected));
    let checked = amcheck(&server);
    drop((server, expected));

    // The checkpoint is the same; PostgreSQL replays the records after it.
    let (_, expected) = primary.recover_alone("later");
    let (data, json) = primary.restore("name:later", "later");
    assert!(json["plan"]["remaining_wal_bytes"].as_u64().unwrap() > 100_000, "{json}");
    let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    expect_same_content(&content(&server), &content(&expected));
    amcheck(&server);
    let mut client = server.client("postgres").unwrap();
    for sql in ["COMMIT PREPARED 'kept4'", "INSERT INTO main VALUES (-1, '')", "VACUUM"] {
        client.batch_execute(sql).unwrap();
    }
    say(&format!(
        "PostgreSQL {version}: {pages} pages are those of a restart point, {checked} indexes pass amcheck"
    ));
    Ok(())
}

/// An archive is read by Walden, and then by PostgreSQL through the `restore_command` that Walden has
/// written.
fn a_restore_from_an_archive_continues_from_there(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    work(&primary, 1);
    primary.checkpoint_and_name("here");
    keep_busy(&mut primary.client("postgres"));
    primary.archive_all();
    let repo = primary.push_all();
    let (data, program) = (primary.cluster.dir().join("restored"), program_for(&primary.cluster));
    let mut command = Command::new(&program);
    command.args(["restore", "--repo", text(&repo), "--base", text(&primary.backup), "-o", text(&data)]);
    let run = Run::execute(command.args(["--target-action", "promote"]));
    assert!(
        run.code == 0 && run.stdout.contains("Walden replays") && run.stdout.contains("Restored in"),
        "{run:?}"
    );
    let settings = fs::read_to_string(data.join("postgresql.auto.conf")).unwrap();
    assert!(settings.contains("archive get --repo"), "{settings}");
    let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    let (mut found, mut expected) = (content(&server), content(&primary.cluster));
    for content in [&mut found, &mut expected] {
        // WAL has a sequence's values ahead of those that were given out.
        assert!(content.remove(&("postgres".to_owned(), "counter".to_owned())).is_some());
    }
    expect_same_content(&found, &expected);
    Ok(())
}

/// Returns the state in `pg_control`.
fn state_of(data: &Path) -> DatabaseState {
    ControlFile::parse(&fs::read(data.join(ControlFile::PATH)).unwrap()).unwrap().state
}

/// A time, an LSN, a transaction and a restore point, each with a checkpoint on either side.
fn recovery_stops_at_each_kind_of_target(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    let mut client = primary.client("postgres");
    client.batch_execute("CREATE TABLE steps (i int)").unwrap();
    primary.back_up(|client| client.batch_execute("INSERT INTO steps VALUES (0)").unwrap());
    client.batch_execute("DELETE FROM steps").unwrap();
    let mut targets = Vec::new();
    for step in 0..4 {
        client.batch_execute("CHECKPOINT").unwrap();
        let sql = format!("INSERT INTO steps VALUES ({step}) RETURNING pg_current_xact_id()::text");
        let xid: String = client.query_one(&sql, &[]).unwrap().get(0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let row = client.query_one(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00'), pg_current_wal_insert_lsn()::text",
            &[],
        );
        let row = row.unwrap();
        client.batch_execute(&format!("SELECT pg_create_restore_point('step{step}')")).unwrap();
        targets.push(match step {
            0 => row.get(0),
            1 => row.get(1),
            2 => format!("xid:{xid}"),
            _ => format!("name:step{step}"),
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        client.batch_execute("CHECKPOINT").unwrap();
    }
    let mut transaction = client.transaction().unwrap();
    let top: String = transaction.query_one("SELECT pg_current_xact_id()::text", &[]).unwrap().get(0);
    let mut nested = transaction.savepoint("nested").unwrap();
    let inserted = nested.query_one("INSERT INTO steps VALUES (99) RETURNING xmin::text", &[]).unwrap();
    let subtransaction: String = inserted.get(0);
    nested.commit().unwrap();
    transaction.commit().unwrap();
    primary.archive_all();
    let repeated = client.query_one("SELECT pg_create_restore_point('step3')::text", &[]).unwrap();
    assert!(repeated.get::<_, String>(0).contains('/'));
    let mut begin = |end: &str| -> String {
        let sql = "BEGIN; INSERT INTO steps VALUES (100)";
        client.batch_execute(sql).unwrap();
        let xid = client.query_one("SELECT pg_current_xact_id()::text", &[]).unwrap().get(0);
        client.batch_execute(end).unwrap();
        xid
    };
    let prepared = begin("PREPARE TRANSACTION 'kept'");
    let running = begin("SELECT pg_switch_wal()");
    primary.archive_all();
    client.batch_execute("ROLLBACK").unwrap();
    let to = format!("xid:{subtransaction}");
    let (wal, data) = (primary.cluster.archive_dir(), primary.cluster.dir().join("nested"));
    let arguments = ["restore", "--wal", text(&wal), "--base", text(&primary.backup), "-o", text(&data)];
    let run = walden(&[&arguments[..], &["--to", &to]].concat());
    let expected = format!("transaction {subtransaction}: it is a subtransaction of {top},");
    assert!(run.code == 3 && run.stderr.contains(&expected), "{expected}: {run:?}");
    for (xid, expected) in [(prepared, "found PREPARE TRANSACTION at"), (running, "found its last record at")]
    {
        let run = walden(&[&arguments[..], &["--to", &format!("xid:{xid}")]].concat());
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
        assert!(run.stderr.contains("recovery stops at the end of a transaction; --to "), "{run:?}");
    }
    // The message names the end of the backup, from which on a target is possible.
    let to = |target: &str| walden(&[&arguments[..], &["--dry-run", "--to", target]].concat());
    let label = fs::read_to_string(primary.backup.join("backup_label")).unwrap();
    let start = label.split_whitespace().find(|word| word.contains('/')).unwrap();
    let run = to(start);
    let end = run.stderr.split_once("the end of the base backup (at ").unwrap_or_else(|| panic!("{run:?}")).1;
    let end = end.split_once(')').unwrap().0;
    assert!(end.parse::<Lsn>().unwrap() > start.parse::<Lsn>().unwrap(), "{run:?}");
    assert_eq!(to(end).code, 0);
    for (step, target) in targets.iter().enumerate() {
        let (data, json) = primary.restore(target, &format!("step{step}"));
        assert!(json["plan"]["checkpoint"]["redo_lsn"].is_string(), "{target}: {json}");
        assert_eq!(json["plan"]["next_of_name"].is_string(), step == 3, "{target}: {json}");
        assert_eq!(state_of(&data), DatabaseState::ShutDownInRecovery, "{target}");
        let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{target}: {error:#}"));
        wait_until_promoted(&server);
        let log = fs::read_to_string(server.log_path()).unwrap();
        assert!(log.contains("database system was shut down in recovery at"), "{target}: {log}");
        let last = server.client("postgres").unwrap().query_one("SELECT max(i) FROM steps", &[]).unwrap();
        assert_eq!(last.get::<_, i32>(0), step as i32, "{target}: {json}");
    }
    Ok(())
}

/// PostgreSQL removes the files at a record before the commit. At the record before that, they exist.
fn a_target_in_the_drop_of_a_database_comes_with_a_warning(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    let mut client = primary.client("postgres");
    client.batch_execute("CREATE DATABASE victim").unwrap();
    primary.client("victim").batch_execute("CREATE TABLE kept AS SELECT 7 AS i").unwrap();
    primary.back_up(|client| client.batch_execute("SELECT txid_current()").unwrap());
    let sql = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00')";
    let before: String = client.query_one(sql, &[]).unwrap().get(0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    client.batch_execute("DROP DATABASE victim").unwrap();
    client.batch_execute("SELECT pg_create_restore_point('after')").unwrap();
    primary.archive_all();

    let (_, json) = primary.restore("name:after", "after");
    assert_eq!(json["plan"]["early_drops"], serde_json::json!([]), "{json}");
    let (data, wal) = (primary.cluster.dir().join("early"), primary.cluster.archive_dir());
    let arguments = ["restore", "--wal", text(&wal), "--base", text(&primary.backup), "-o", text(&data)];
    let run = walden(&[&arguments[..], &["--to", &before, "--dry-run"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("warning: replay removes the files of database "), "{run:?}");
    let (_, target) = run.stderr.split_once("--to ").unwrap_or_else(|| panic!("{run:?}"));
    let target = target.split([';', '\n']).next().unwrap();
    let (data, json) = primary.restore(target, "kept");
    assert_eq!(json["plan"]["early_drops"], serde_json::json!([]), "{json}");
    let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    // The drop marks the database as invalid before that record.
    let mut client = server.client("postgres").unwrap();
    client.batch_execute("UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'victim'").unwrap();
    let row = server.client("victim").unwrap().query_one("SELECT i FROM kept", &[]).unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
    Ok(())
}

/// A standby was promoted between the base backup and the target: the checkpoint is on the new timeline.
fn a_promotion_is_followed(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    work(&primary, 1);
    primary.checkpoint_and_name("promotion");
    keep_busy(&mut primary.client("postgres"));
    primary.archive_all();
    let (data, json) = primary.restore("name:promotion", "promoted");
    assert_eq!(json["plan"]["timeline"], 1, "{json}");
    let archive = format!("cp %p {}/%f", primary.cluster.archive_dir().display());
    let promoted =
        primary.server_of(&data).setting("archive_mode", "on").setting("archive_command", &archive);
    let promoted = promoted.start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&promoted);
    let mut client = promoted.client("postgres").unwrap();
    (0..3).for_each(|_| keep_busy(&mut client));
    for sql in ["CHECKPOINT", "DELETE FROM busy WHERE i % 3 = 0", "SELECT pg_create_restore_point('end')"] {
        client.batch_execute(sql).unwrap();
    }
    let expected = content(&promoted);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    let (data, json) = primary.restore("name:end", "end");
    assert_eq!(json["plan"]["timeline"], 2, "{json}");
    assert!(
        json["plan"]["remaining_wal_bytes"].as_u64().unwrap()
            < json["plan"]["replayed_wal_bytes"].as_u64().unwrap()
    );
    let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    let (mut found, mut expected) = (content(&server), expected);
    for content in [&mut found, &mut expected] {
        content.remove(&("postgres".to_owned(), "counter".to_owned()));
    }
    expect_same_content(&found, &expected);
    Ok(())
}

/// A record that Walden does not replay ends its part at the checkpoint before, and the plan names it.
fn a_record_that_is_not_replayed_is_left_to_postgresql(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    let mut client = primary.client("postgres");
    client.batch_execute("CHECKPOINT").unwrap();
    let folder = primary.cluster.make_folder("space").unwrap();
    client.batch_execute(&format!("CREATE TABLESPACE outside LOCATION '{}'", folder.display())).unwrap();
    client.batch_execute("CHECKPOINT").unwrap();
    keep_busy(&mut client);
    client.batch_execute("CHECKPOINT").unwrap();
    primary.archive_all();
    // PostgreSQL would write into the original's tablespace.
    let (wal, data) = (primary.cluster.archive_dir(), primary.cluster.dir().join("restored"));
    let run = walden(&["restore", "--wal", text(&wal), "--base", text(&primary.backup), "-o", text(&data)]);
    assert!(run.code == 3 && run.stderr.contains("has files on this machine"), "{run:?}");
    assert!(!data.exists());
    fs::rename(&folder, folder.with_extension("moved")).unwrap();
    let (data, json) = primary.restore("latest", "restored");
    let left = json["plan"]["left_to_postgresql"].as_str().unwrap();
    assert!(left.contains("Tablespace CREATE") && left.contains("outside of the data directory"), "{json}");
    assert_eq!(json["plan"]["checkpoints"], 3, "{json}");
    assert!(json["plan"]["remaining_wal_bytes"].as_u64().unwrap() > 10_000, "{json}");
    assert_eq!(fs::read_dir(data.join("pg_tblspc")).unwrap().count(), 0);
    Ok(())
}

/// Each refusal leaves no files, and prints a remedy.
fn what_cannot_be_restored_is_refused_before_anything_is_written(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    primary.checkpoint_and_name("here");
    primary.archive_all();
    primary.archive_all();
    let (wal, base) = (primary.cluster.archive_dir(), &primary.backup);
    let target = primary.cluster.dir().join("new");
    let refused = |base: &Path, wal: &Path, data: &Path, to: &str, expected: &str| {
        let arguments = ["restore", "--wal", text(wal), "--base", text(base), "-o", text(data), "--to", to];
        let run = walden(&arguments);
        assert!(run.code != 0 && run.stderr.contains(expected), "{expected}: {run:?}");
        assert!(!target.exists() && !target.with_extension("partial").exists(), "{expected}");
    };
    refused(base, &wal, base, "latest", "expected an empty or missing directory");
    // The copy would contain itself, or a server would find foreign files.
    let inside = base.join("base/new");
    refused(base, &wal, &inside, "latest", "it is inside the base backup");
    assert!(!inside.exists() && !inside.with_extension("partial").exists());
    refused(base, &wal, &primary.cluster.data_dir().join("new"), "latest", "it belongs to the server in");
    let archive = primary.cluster.dir().join("archive of another cluster");
    let configuration = primary.cluster.dir().join("walden.toml");
    let init = walden(&["archive", "init", "--repo", text(&archive), "-o", text(&configuration)]);
    assert_eq!(init.code, 0, "{init:?}");
    refused(base, &wal, &archive.join("new"), "latest", "is an archive, which only walden archive changes");
    refused(base, &wal, &target, "name:nowhere", "expected it in WAL from");
    refused(base, &wal, &target, "FF/0", "expected it in WAL from");
    refused(base, &wal, &target, "2020-01-01", "after the end of the base backup");
    refused(base, &wal, &target, "xid:2", "expected a transaction ID from 3 on");
    refused(&primary.cluster.data_dir(), &wal, &target, "latest", "its pages may be half written");
    refused(&wal, &wal, &target, "latest", "not a data directory");
    // Another cluster's WAL.
    let other = Primary::start(&installation, &[]);
    other.archive_all();
    refused(base, &other.cluster.archive_dir(), &target, "latest", "expected system identifier");
    // A missing segment before the target.
    let incomplete = primary.cluster.dir().join("incomplete");
    fs::create_dir(&incomplete).unwrap();
    let mut segments: Vec<PathBuf> = fs::read_dir(&wal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none())
        .collect();
    segments.sort();
    let start = fs::read_to_string(base.join("backup_label")).unwrap();
    let start = start.split(['(', ')']).nth(1).unwrap().strip_prefix("file ").unwrap().to_owned();
    for path in segments {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name != start {
            fs::copy(&path, incomplete.join(&name)).unwrap();
        }
    }
    refused(base, &incomplete, &target, "latest", "cannot start recovery at");
    // A gap after the backup: the WAL does not end there.
    fs::copy(wal.join(&start), incomplete.join(&start)).unwrap();
    let mut names: Vec<PathBuf> =
        fs::read_dir(&incomplete).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    fs::remove_file(&names[names.len() - 2]).unwrap();
    refused(base, &incomplete, &target, "latest", "found a gap before");
    refused(base, &incomplete, &target, "FF/0", "found a gap before");
    // Damage before later WAL is no end of the WAL either.
    let damaged = primary.cluster.dir().join("damaged");
    fs::create_dir(&damaged).unwrap();
    for entry in fs::read_dir(&wal).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, damaged.join(path.file_name().unwrap())).unwrap();
    }
    let name = names[names.len() - 2].file_name().unwrap().to_str().unwrap();
    let mut bytes = fs::read(damaged.join(name)).unwrap();
    // In the first record, after the long page header.
    bytes[48..60].iter_mut().for_each(|byte| *byte ^= 0x20);
    fs::write(damaged.join(name), bytes).unwrap();
    refused(base, &damaged, &target, "latest", "/damaged/0000");
    let link = primary.cluster.dir().join("link");
    let linked = primary.cluster.dir().join("linked");
    fs::create_dir(&linked).unwrap();
    symlink(&linked, &link).unwrap();
    refused(base, &wal, &link, "latest", "found a link");

    // A dry run writes nothing either.
    let arguments = ["restore", "--wal", text(&wal), "--base", text(base), "-o", text(&target), "--dry-run"];
    let run = walden(&arguments);
    assert!(run.code == 0 && run.stdout.contains("Walden replays"), "{run:?}");
    assert!(!target.exists());

    // A segment that pg_receivewal has not completed follows the WAL.
    let received = primary.cluster.dir().join("received");
    fs::create_dir(&received).unwrap();
    for path in fs::read_dir(&wal).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&path, received.join(path.file_name().unwrap())).unwrap();
    }
    let last = fs::read_dir(&received).unwrap().map(|entry| entry.unwrap().path());
    let last = last.filter(|path| path.extension().is_none()).max().unwrap();
    fs::rename(&last, last.with_extension("partial")).unwrap();
    let of_received =
        arguments.map(|argument| if argument == text(&wal) { text(&received) } else { argument });
    let run = walden(&[&of_received[..], &["--format", "json"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let unread = &serde_json::from_str::<Value>(&run.stdout).unwrap()["plan"]["unread_partial"];
    let name = last.file_name().unwrap().to_str().unwrap();
    assert_eq!(unread["file"], format!("{name}.partial"));
    let number = SegmentName::parse(name).unwrap();
    let start = number.start(SegmentSize::new(1 << 20).unwrap()).unwrap();
    let end: Lsn = unread["end_lsn"].as_str().unwrap().parse().unwrap();
    assert!(end > start && end.0 <= start.0 + (1 << 20), "{unread}");
    assert!(run.stderr.contains(&format!("does not read {name}.partial")), "{run:?}");

    // A dry run checks links as a restore does. A link to the folder of the server's log is left out.
    let elsewhere = primary.cluster.make_folder("elsewhere").unwrap();
    symlink(&elsewhere, base.join("log")).unwrap();
    let run = walden(&arguments);
    assert!(run.code == 0 && run.stderr.contains("without the link log"), "{run:?}");
    symlink(&elsewhere, base.join("base/99999")).unwrap();
    let run = walden(&arguments);
    assert!(run.code == 3 && run.stderr.contains("found the link base/99999"), "{run:?}");
    fs::remove_file(base.join("base/99999")).unwrap();

    // The folder of a killed restore is replaced, also if it is still empty. Another one is not.
    let partial = primary.cluster.dir().join("new.partial");
    fs::create_dir(&partial).unwrap();
    let run = walden(&arguments);
    assert_eq!(run.code, 0, "{run:?}");
    fs::write(partial.join("own"), "").unwrap();
    let run = walden(&arguments[..arguments.len() - 1]);
    assert!(run.code != 0 && run.stderr.contains("found one that Walden did not create"), "{run:?}");
    fs::write(partial.join("walden_restore_is_incomplete"), "").unwrap();
    let run = walden(&arguments[..arguments.len() - 1]);
    assert!(
        run.code == 0 && target.join("global/pg_control").exists() && !target.join("own").exists(),
        "{run:?}"
    );
    assert!(!partial.exists() && !target.join("walden_restore_is_incomplete").exists());

    // A restore that is interrupted reports what remains, and a second one replaces that.
    let interrupted = (0..20).find_map(|_| {
        let _ = fs::remove_dir_all(&target);
        let mut child = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(&arguments[..arguments.len() - 1])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while !partial.exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let kill = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        let output = child.wait_with_output().unwrap();
        (kill.success() && output.status.code() == Some(128 + 15)).then_some(output)
    });
    let interrupted = interrupted.expect("a restore is interrupted");
    let stderr = String::from_utf8_lossy(&interrupted.stderr);
    let expected = format!("note: the restore was interrupted; its files remain in {}", partial.display());
    assert!(stderr.contains(&expected) && stderr.contains("run the same command again"), "{stderr}");
    assert!(partial.exists() && !target.exists());
    let run = walden(&arguments[..arguments.len() - 1]);
    assert!(run.code == 0 && target.exists() && !partial.exists(), "{run:?}");

    // Changes from a time with wal_level = minimal are not in the WAL.
    let alter = |statements: &[&str]| {
        let mut client = primary.client("postgres");
        for statement in statements {
            client.batch_execute(&format!("ALTER SYSTEM {statement}")).unwrap();
        }
        drop(client);
        primary.cluster.restart(StopMode::Fast).unwrap();
    };
    alter(&[
        "SET wal_keep_size = '1GB'",
        "SET archive_mode = off",
        "SET max_wal_senders = 0",
        "SET wal_level = minimal",
    ]);
    alter(&["RESET archive_mode", "RESET max_wal_senders", "RESET wal_level"]);
    primary.client("postgres").batch_execute("CHECKPOINT; SELECT pg_switch_wal()").unwrap();
    let minimal = primary.cluster.dir().join("minimal");
    fs::create_dir(&minimal).unwrap();
    for folder in [primary.cluster.data_dir().join("pg_wal"), wal.clone()] {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.len() == 24 && path.is_file() {
                fs::copy(&path, minimal.join(&name)).unwrap();
            }
        }
    }
    let data = primary.cluster.dir().join("after minimal");
    let run = walden(&["restore", "--wal", text(&minimal), "--base", text(base), "-o", text(&data)]);
    assert!(run.code == 3 && run.stderr.contains("found minimal"), "{run:?}");
    assert!(!data.exists());
    Ok(())
}

/// Runs `walden backup advance`. Returns the JSON.
pub fn advance(primary: &Primary, backup: &Path, options: &[&str]) -> Value {
    let wal = primary.cluster.archive_dir();
    let arguments = ["backup", "advance", text(backup), "--wal", text(&wal), "--format", "json"];
    let run = walden(&[&arguments[..], options].concat());
    assert_eq!(run.code, 0, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// A backup that advances several times, in place, is the one that advances at once to a new folder.
/// PostgreSQL and Walden restore from it as from the original.
fn a_backup_advances_in_steps_as_in_one(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    let stepped = primary.cluster.dir().join("stepped");
    copy_running(&primary.backup, &stepped);
    for round in 1..=3 {
        work(&primary, round);
        primary.checkpoint_and_name(&format!("step{round}"));
        keep_busy(&mut primary.client("postgres"));
    }
    primary.client("postgres").batch_execute("SELECT pg_create_restore_point('end')").unwrap();
    primary.archive_all();

    let before = files_of(&primary.backup, &[""]);
    let at_once = primary.cluster.dir().join("at once");
    let json = advance(&primary, &primary.backup, &["-o", text(&at_once), "--to", "name:step3"]);
    assert!(json["advanced"]["pages"].as_u64().unwrap() > 3000, "{json}");
    assert!(files_of(&primary.backup, &[""]) == before, "the original has changed");
    for round in 1..=3 {
        let json = advance(&primary, &stepped, &["--to", &format!("name:step{round}")]);
        assert!(json["advanced"]["records"].as_u64().unwrap() > 1000, "{json}");
        assert!(!stepped.with_extension("partial").exists());
    }
    assert!(compare_directories(&at_once, &stepped) > 3000);
    check_checksums(&stepped);
    let label = |backup: &Path| fs::read_to_string(backup.join("backup_label")).unwrap();
    assert_eq!(label(&at_once), label(&stepped));
    assert!(label(&stepped).contains("LABEL: x\n"), "{}", label(&stepped));
    // Without a later checkpoint, nothing is written.
    let before = files_of(&stepped, &[""]);
    let json = advance(&primary, &stepped, &["--to", "name:step3"]);
    assert!(json["advanced"].is_null() && json["plan"]["checkpoint"].is_null(), "{json}");
    assert!(files_of(&stepped, &[""]) == before, "the backup has changed");
    // The folder of a killed run is removed, but no other folder.
    let partial = stepped.with_extension("partial");
    for (file, is_removed) in [("walden_restore_is_incomplete", true), ("PG_VERSION", false)] {
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join(file), "").unwrap();
        let (wal, to) = (primary.cluster.archive_dir(), ["--to", "name:step3"]);
        let run = walden(&[&["backup", "advance", text(&stepped), "--wal", text(&wal)], &to[..]].concat());
        assert_eq!((run.code, partial.exists()), (0, !is_removed), "{run:?}");
        assert_eq!(run.stderr.contains("which an interrupted run left"), is_removed, "{run:?}");
        let _ = fs::remove_dir_all(&partial);
    }
    assert!(files_of(&stepped, &[""]) == before, "the backup has changed");

    let (_, expected) = primary.recover_alone("end");
    let recovered = Primary { cluster: primary.cluster, backup: stepped };
    let (_, found) = recovered.recover_alone("end");
    expect_same_content(&content(&found), &content(&expected));
    amcheck(&found);
    drop(found);
    let (data, json) = recovered.restore("name:end", "restored");
    let server = recovered.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    assert!(json["plan"]["start_lsn"].is_string(), "{json}");
    expect_same_content(&content(&server), &content(&expected));
    Ok(())
}

/// Returns the position at which a server inserts WAL next.
fn insert_position(client: &mut Client) -> u64 {
    let row = client.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0')::text", &[]).unwrap();
    row.get::<_, String>(0).parse().unwrap()
}

/// Advances to random positions, some without a checkpoint between them, lead to the same backup as a single
/// advance to the last position.
fn a_backup_advances_in_random_steps_as_in_one(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    let mut client = primary.client("postgres");
    let start = insert_position(&mut client);
    for round in 1..=3 {
        work(&primary, round);
        for _ in 0..3 {
            keep_busy(&mut primary.client("postgres"));
            primary.client("postgres").batch_execute("CHECKPOINT").unwrap();
        }
    }
    let end = insert_position(&mut client);
    primary.archive_all();
    let target = |lsn: u64| format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF);
    let at_once = primary.cluster.dir().join("at once");
    advance(&primary, &primary.backup, &["-o", text(&at_once), "--to", &target(end)]);
    let mut random = random_numbers();
    for round in 0..restores(6) {
        let stepped = primary.cluster.dir().join(format!("stepped{round}"));
        copy_running(&primary.backup, &stepped);
        let mut steps: Vec<u64> = (0..1 + random(7)).map(|_| start + random(end - start)).collect();
        steps.sort_unstable();
        steps.push(end);
        let mut advanced = 0;
        for step in &steps {
            let threads = (1 + random(4)).to_string();
            let memory = ["4MB", "64MB"][random(2) as usize];
            let options = ["--to", &target(*step), "--threads", &threads, "--memory", memory];
            advanced += u32::from(!advance(&primary, &stepped, &options)["advanced"].is_null());
        }
        assert!(advanced > 0, "{steps:?}");
        assert!(compare_directories(&at_once, &stepped) > 2000, "{steps:?}");
        let label = |backup: &Path| fs::read_to_string(backup.join("backup_label")).unwrap();
        assert_eq!(label(&at_once), label(&stepped), "{steps:?}");
        check_checksums(&stepped);
        fs::remove_dir_all(&stepped).unwrap();
    }
    Ok(())
}

/// An advance that is killed before or after the exchange of the old and the new folder leaves a complete
/// backup, and a second one that no command takes for a backup and the next advance removes.
fn a_killed_exchange_is_completed_by_the_next_advance(version: u32) -> Outcome {
    const MARK: &str = "walden_restore_is_being_renamed";
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    let mut client = primary.client("postgres");
    for step in 1..=2 {
        keep_busy(&mut client);
        primary.checkpoint_and_name(&format!("step{step}"));
    }
    primary.archive_all();
    let backups = primary.cluster.make_folder("backups").unwrap();
    let (backup, partial) = (backups.join("main"), backups.join("main.partial"));
    let make = |path: &Path| copy_running(&primary.backup, path);
    let expected = primary.cluster.dir().join("expected");
    advance(&primary, &primary.backup, &["-o", text(&expected), "--to", "name:step2"]);
    for is_exchanged in [false, true] {
        let (old, new) = if is_exchanged { (&partial, &backup) } else { (&backup, &partial) };
        make(new);
        advance(&primary, new, &["--to", "name:step1"]);
        make(old);
        [&backup, &partial].iter().for_each(|path| fs::write(path.join(MARK), "").unwrap());
        advance(&primary, &backup, &["--to", "name:step2"]);
        assert!(!partial.exists() && !backup.join(MARK).exists());
        compare_directories(&expected, &backup);
        // Without a later checkpoint, only what is left is removed.
        make(&partial);
        [&backup, &partial].iter().for_each(|path| fs::write(path.join(MARK), "").unwrap());
        advance(&primary, &backup, &["--to", "name:step2"]);
        assert!(!partial.exists() && !backup.join(MARK).exists());
        compare_directories(&expected, &backup);
        fs::remove_dir_all(&backup).unwrap();
    }
    Ok(())
}

/// A tablespace outside of the backup is copied to a new folder, and replayed there. Neither the server's
/// folder nor the backup's is changed.
fn tablespaces_get_new_folders(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    let mut client = primary.client("postgres");
    let [kept, dropped] = ["kept", "dropped"].map(|name| {
        let folder = primary.cluster.make_folder(name).unwrap();
        client
            .batch_execute(&format!("CREATE TABLESPACE {name} LOCATION '{}'", folder.display()))
            .unwrap();
        client
            .batch_execute(&format!(
                "CREATE TABLE in_{name} TABLESPACE {name} AS SELECT g i, md5(g::text) t FROM generate_series(1, 3000) g"
            ))
            .unwrap();
        folder
    });
    client.batch_execute("CREATE TABLE busy AS SELECT g i, 0 n FROM generate_series(1, 500) g").unwrap();
    primary.back_up(keep_busy);
    // pg_basebackup copies a tablespace to the folder that its own --tablespace-mapping names.
    let mut copies = BTreeMap::new();
    for entry in fs::read_dir(primary.cluster.data_dir().join("pg_tblspc")).unwrap() {
        let entry = entry.unwrap();
        let original = fs::read_link(entry.path()).unwrap();
        let copy = original.with_extension("copy");
        copy_running(&original, &copy);
        symlink(&copy, primary.backup.join("pg_tblspc").join(entry.file_name())).unwrap();
        copies.insert(original, (copy, entry.file_name()));
    }
    for sql in [
        "UPDATE in_kept SET t = t || 'x' WHERE i % 3 = 0",
        "CREATE INDEX ON in_kept (t) TABLESPACE kept",
        "DROP TABLE in_dropped",
        "DROP TABLESPACE dropped",
        "CHECKPOINT",
        "DELETE FROM in_kept WHERE i % 7 = 0",
    ] {
        client.batch_execute(sql).unwrap();
    }
    primary.archive_all();

    let (wal, data) = (primary.cluster.archive_dir(), primary.cluster.dir().join("restored"));
    let run = |options: &[&str]| {
        let arguments = ["restore", "--wal", text(&wal), "--base", text(&primary.backup), "-o", text(&data)];
        walden(&[&arguments[..], &["--target-action", "promote"], options].concat())
    };
    let mapping =
        |original: &PathBuf, new: &Path| format!("{}={}", copies[original].0.display(), new.display());
    let new_kept = primary.cluster.dir().join("new_kept");
    let map_kept = ["--tablespace-mapping", &mapping(&kept, &new_kept)];
    let new_dropped = primary.cluster.dir().join("new_dropped");
    for (options, expected) in [
        (&[][..], "expected a new folder for it"),
        (&map_kept, "expected a new folder for it"),
        (&["--tablespace-mapping", "/nowhere=/elsewhere"], "expected a new folder for it"),
        (&["--tablespace-mapping", &mapping(&kept, &new_kept.join("a/b"))], "found no directory above it"),
        (
            &[&map_kept[..], &["--tablespace-mapping", &mapping(&dropped, &kept)]].concat(),
            "expected an empty or missing directory",
        ),
        (
            &[&map_kept[..], &["--tablespace-mapping", &mapping(&dropped, &new_kept.join("in"))]].concat(),
            "name a folder for each tablespace",
        ),
    ] {
        let run = run(options);
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
        assert!(!data.exists() && !new_kept.exists(), "{expected}");
    }
    let of_backup = files_of(&primary.backup, &["base", "global"]);
    let before: Vec<_> =
        copies.iter().map(|(old, (copy, _))| (files_of(old, &[""]), files_of(copy, &[""]))).collect();
    let run = run(&[&map_kept[..], &["--tablespace-mapping", &mapping(&dropped, &new_dropped)]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let after: Vec<_> =
        copies.iter().map(|(old, (copy, _))| (files_of(old, &[""]), files_of(copy, &[""]))).collect();
    assert!(before == after, "a folder that was not named has changed");
    assert!(files_of(&primary.backup, &["base", "global"]) == of_backup, "the base backup has changed");
    let place = data.join("pg_tblspc");
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "the dropped tablespace has no link");
    let link = place.join(&copies[&kept].1);
    assert_eq!(fs::read_link(&link).unwrap(), new_kept);
    assert!(
        files_of(&new_dropped, &[""]).is_empty() && !new_kept.join("walden_restore_is_incomplete").exists()
    );

    // The lab copies the directory without the link.
    fs::remove_file(&link).unwrap();
    let server = primary.server_of(&data).start_after(|copy| {
        symlink(&new_kept, copy.join("pg_tblspc").join(&copies[&kept].1))?;
        account::chown_all(&new_kept)
    });
    let server = server.unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    let sql = "SELECT count(*), md5(string_agg(t, ',' ORDER BY i)) FROM in_kept";
    let found = server.client("postgres").unwrap().query_one(sql, &[]).unwrap();
    let expected = client.query_one(sql, &[]).unwrap();
    assert_eq!(found.get::<_, i64>(0), expected.get::<_, i64>(0));
    assert_eq!(found.get::<_, String>(1), expected.get::<_, String>(1));
    amcheck(&server);
    Ok(())
}

/// A data directory that was copied while its server was stopped has no label.
fn a_copy_of_a_stopped_server_is_a_backup(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.cluster.stop(StopMode::Fast).unwrap();
    copy_running(&primary.cluster.data_dir(), &primary.backup);
    primary.cluster.start().unwrap();
    work(&primary, 1);
    primary.checkpoint_and_name("here");
    keep_busy(&mut primary.client("postgres"));
    primary.client("postgres").batch_execute("SELECT pg_create_restore_point('end')").unwrap();
    primary.archive_all();
    let (alone, _) = primary.recover_alone("here");
    let (data, json) = primary.restore("name:here", "restored");
    assert_eq!(json["plan"]["start_lsn"], json["plan"]["consistent_lsn"], "{json}");
    assert!(compare_directories(&alone, &data) > 2000);
    let advanced = primary.cluster.dir().join("advanced");
    advance(&primary, &primary.backup, &["-o", text(&advanced), "--to", "name:here"]);
    assert!(compare_directories(&alone, &advanced) > 2000);
    let statistics = Path::new("pg_stat/pgstat.stat");
    assert!(primary.backup.join(statistics).exists() && !data.join(statistics).exists());
    // Its files may be copied, and then PostgreSQL must synchronize them.
    assert_eq!(state_of(&advanced).to_string(), "in archive recovery");
    let (_, expected) = primary.recover_alone("end");
    let advanced = Primary { cluster: primary.cluster, backup: advanced };
    let (data, _) = advanced.restore("name:end", "later");
    let server = advanced.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    expect_same_content(&content(&server), &content(&expected));
    Ok(())
}

/// Number of restores in a test; WALDEN_RESTORES names a larger one for a long run.
fn restores(least: u64) -> u64 {
    let wanted = std::env::var("WALDEN_RESTORES").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(least)
}

/// Returns a function that returns a random number below another.
fn random_numbers() -> impl FnMut(u64) -> u64 {
    // A linear congruential generator (Knuth, MMIX); the upper bits are random enough.
    let mut state = 2026_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// At random positions, a restored server has the same content as one that PostgreSQL recovers alone.
fn random_positions_are_reached_as_by_postgresql(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    let mut client = primary.client("postgres");
    let start = insert_position(&mut client);
    for round in 1..=2 {
        work(&primary, round);
        (0..3).for_each(|_| keep_busy(&mut primary.client("postgres")));
        primary.client("postgres").batch_execute("CHECKPOINT").unwrap();
    }
    let end = insert_position(&mut client);
    primary.archive_all();
    let mut random = random_numbers();
    for index in 0..restores(6) {
        let lsn = start + random(end - start);
        let target = format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF);
        let alone = primary
            .server_of(&primary.backup)
            .setting("restore_command", &primary.restore_command())
            .setting("recovery_target_lsn", &target)
            .setting("recovery_target_action", "promote")
            .start_after(|data| Ok(fs::write(data.join("recovery.signal"), "")?))
            .unwrap_or_else(|error| panic!("{target}: {error:#}"));
        wait_until_promoted(&alone);
        let threads = (1 + random(4)).to_string();
        let (data, _) = primary.restore_with(&target, &format!("target{index}"), &threads);
        let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{target}: {error:#}"));
        wait_until_promoted(&server);
        expect_same_content(&content(&server), &content(&alone));
        fs::remove_dir_all(&data).unwrap();
    }
    Ok(())
}

/// A step of a single session: its transaction, and a position and a time after it and before the next one.
struct StepDone {
    xid: String,
    lsn: String,
    time: String,
}

/// Each transaction adds a row, so the rows show where recovery stopped. A restore that is killed at a random
/// moment is completed by the next one.
fn each_kind_of_target_is_reached_and_kills_are_survived(version: u32) -> Outcome {
    reach_targets_and_survive_kills(version, restores(30), restores(20))
}

/// The same, more often.
fn hundreds_of_targets_are_reached_and_kills_are_survived(version: u32) -> Outcome {
    reach_targets_and_survive_kills(version, restores(200), restores(50))
}

fn reach_targets_and_survive_kills(version: u32, targets: u64, kills: u64) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    let mut client = primary.client("postgres");
    client
        .batch_execute("CREATE TABLE steps (i int, xid text); CREATE TABLE busy (i int PRIMARY KEY, n int)")
        .unwrap();
    client.batch_execute("INSERT INTO busy SELECT g, 0 FROM generate_series(1, 2000) g").unwrap();
    primary.back_up(|client| client.batch_execute("UPDATE busy SET n = n + 1").unwrap());
    let mut steps = Vec::new();
    for step in 1..=60 {
        let sql = format!("INSERT INTO steps VALUES ({step}, pg_current_xact_id()::text) RETURNING xid");
        let xid = client.query_one(&sql, &[]).unwrap().get(0);
        let sql = "SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()::text";
        let row = client.query_one(sql, &[]).unwrap();
        let step_done = StepDone { xid, lsn: row.get(0), time: row.get(1) };
        client.batch_execute(&format!("SELECT pg_create_restore_point('step{step}')")).unwrap();
        steps.push(step_done);
        // The next commit is later than the time above, and recovery to it stops before a further commit.
        std::thread::sleep(std::time::Duration::from_millis(2));
        client.batch_execute("UPDATE busy SET n = n + 1 WHERE i % 10 = 0").unwrap();
        if step % 7 == 0 {
            client.batch_execute("CHECKPOINT").unwrap();
        }
    }
    primary.archive_all();
    let mut random = random_numbers();
    for index in 0..targets {
        let step = random(steps.len() as u64) as usize;
        let StepDone { xid, lsn, time } = &steps[step];
        let target = match index % 4 {
            0 => format!("xid:{xid}"),
            1 => lsn.clone(),
            2 => time.clone(),
            _ => format!("name:step{}", step + 1),
        };
        let threads = (1 + random(4)).to_string();
        let (data, _) = primary.restore_with(&target, &format!("target{index}"), &threads);
        let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{target}: {error:#}"));
        wait_until_promoted(&server);
        let rows = server.client("postgres").unwrap().query("SELECT i FROM steps ORDER BY i", &[]).unwrap();
        let rows: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(rows, (1..=step as i32 + 1).collect::<Vec<_>>(), "{target}");
        fs::remove_dir_all(&data).unwrap();
    }

    let wal = primary.cluster.archive_dir();
    let reference = primary.restore("latest", "reference").0;
    let data = primary.cluster.dir().join("killed");
    let arguments = ["restore", "--wal", text(&wal), "--base", text(&primary.backup), "-o", text(&data)];
    let started = std::time::Instant::now();
    assert_eq!(walden(&arguments).code, 0);
    let duration = started.elapsed().as_millis() as u64;
    let mut killed = 0;
    for _ in 0..kills {
        fs::remove_dir_all(&data).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        let mut child = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(random(duration)));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if !status.success() {
            killed += 1;
            assert!(!data.exists(), "an incomplete restore has its final name");
            let partial = data.with_extension("partial");
            let has_mark = partial.join("walden_restore_is_incomplete").exists();
            assert!(has_mark || !partial.join("global/pg_control").exists(), "a server could start");
            let run = walden(&arguments);
            assert_eq!(run.code, 0, "{run:?}");
        }
        assert!(!data.with_extension("partial").exists());
        compare_directories(&reference, &data);
    }
    say(&format!("{killed} restores were killed"));
    Ok(())
}

/// Tablespaces that WAL creates are created in the new folders, not in those that the records name.
fn tablespaces_that_wal_creates_get_new_folders(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    let mut client = primary.client("postgres");
    client.batch_execute("CREATE TABLE busy AS SELECT g i, 0 n FROM generate_series(1, 500) g").unwrap();
    primary.back_up(keep_busy);
    let [kept, again, late] =
        ["kept", "again", "late"].map(|name| primary.cluster.make_folder(name).unwrap());
    let create =
        |name: &str, folder: &Path| format!("CREATE TABLESPACE {name} LOCATION '{}'", folder.display());
    let fill = |name: &str| {
        format!(
            "CREATE TABLE in_{name} TABLESPACE {name} AS SELECT g i, md5(g::text) t FROM generate_series(1, 3000) g"
        )
    };
    for sql in [
        create("kept", &kept),
        fill("kept"),
        create("dropped", &again),
        fill("dropped"),
        "DROP TABLE in_dropped".to_owned(),
        "DROP TABLESPACE dropped".to_owned(),
        // In the folder of the dropped one.
        create("again", &again),
        fill("again"),
        "CHECKPOINT".to_owned(),
        "SELECT pg_create_restore_point('here')".to_owned(),
        "UPDATE in_kept SET t = t || 'x' WHERE i % 3 = 0".to_owned(),
        "SELECT pg_create_restore_point('end')".to_owned(),
        create("late", &late),
        fill("late"),
    ] {
        client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    primary.archive_all();
    let oid = |name: &str| -> u32 {
        let sql = "SELECT oid FROM pg_tablespace WHERE spcname = $1::text";
        primary.client("postgres").query_one(sql, &[&name]).unwrap().get(0)
    };

    let (wal, data) = (primary.cluster.archive_dir(), primary.cluster.dir().join("restored"));
    let new = |name: &str| primary.cluster.dir().join(format!("new {name}"));
    let mapping =
        |old: &Path, name: &str| format!("--tablespace-mapping={}={}", old.display(), new(name).display());
    let [map_kept, map_again, map_late] =
        [mapping(&kept, "kept"), mapping(&again, "again"), mapping(&late, "late")];
    let run = |command: &[&str], options: &[&str]| {
        walden(&[command, &["--wal", text(&wal), "-o", text(&data)], options].concat())
    };
    let base = text(&primary.backup);
    let restore = ["restore", "--base", base, "--target-action", "promote"];
    for (options, expected) in [
        (&[][..], "has files on this machine"),
        (
            &["--to", "name:end", &map_kept],
            "outside of the data directory, without --tablespace-mapping: PostgreSQL would",
        ),
        (&["--to", "name:here", &map_kept, &map_again, &map_late], "expected the folder of a tablespace"),
        (&[&map_kept, &map_again, &map_late], "expected a checkpoint between that record and the target"),
        (&[&map_kept, &map_again], "has files on this machine"),
    ] {
        let run = run(&restore, options);
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
        assert!(!data.exists() && !new("kept").exists(), "{expected}");
    }
    let originals = || [&kept, &again, &late].map(|folder| files_of(folder, &[""]));
    let before = originals();
    let expect_links = |names: &[&str]| {
        for name in names {
            assert_eq!(fs::read_link(data.join("pg_tblspc").join(oid(name).to_string())).unwrap(), new(name));
            assert!(!new(name).join("walden_restore_is_incomplete").exists());
        }
        assert_eq!(fs::read_dir(data.join("pg_tblspc")).unwrap().count(), names.len());
    };
    let restored = run(&restore, &["--to", "name:end", &map_kept, &map_again]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(before == originals(), "a folder of the original has changed");
    expect_links(&["kept", "again"]);
    // The lab copies the directory without the links.
    for name in ["kept", "again"] {
        fs::remove_file(data.join("pg_tblspc").join(oid(name).to_string())).unwrap();
    }
    let server = primary.server_of(&data).start_after(|copy| {
        for name in ["kept", "again"] {
            symlink(new(name), copy.join("pg_tblspc").join(oid(name).to_string()))?;
            account::chown_all(&new(name))?;
        }
        Ok(())
    });
    let server = server.unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    for table in ["in_kept", "in_again"] {
        let sql = format!("SELECT count(*), md5(string_agg(t, ',' ORDER BY i)) FROM {table}");
        let read = |client: &mut Client| -> (i64, String) {
            let row = client.query_one(&sql, &[]).unwrap();
            (row.get(0), row.get(1))
        };
        assert_eq!(read(&mut server.client("postgres").unwrap()), read(&mut client), "{table}");
    }
    amcheck(&server);
    drop(server);

    // A backup is advanced past these records, too.
    fs::remove_dir_all(&data).unwrap();
    ["kept", "again"].iter().for_each(|name| fs::remove_dir_all(new(name)).unwrap());
    client.batch_execute("CHECKPOINT").unwrap();
    primary.archive_all();
    let before = originals();
    let advanced = run(&["backup", "advance", base], &[&map_kept, &map_again, &map_late]);
    assert_eq!(advanced.code, 0, "{advanced:?}");
    expect_links(&["kept", "again", "late"]);
    assert!(before == originals(), "a folder of the original has changed");
    Ok(())
}

/// Replay of compressed segments yields the same files as that of plain ones, whatever their form.
fn compressed_segments_are_decoded_by_several_threads(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    work(&primary, 1);
    primary.checkpoint_and_name("end");
    primary.archive_all();
    let repo = primary.push_all();
    let (plain, _) = primary.restore("name:end", "plain");
    let compressed = primary.cluster.make_folder("compressed").unwrap();
    let wal = primary.cluster.archive_dir();
    let mut segments: Vec<PathBuf> = fs::read_dir(&wal).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    for (index, segment) in segments.iter().enumerate() {
        match index % 2 {
            0 => assert_eq!(walden(&["compress", text(segment), "-o", text(&compressed)]).code, 0),
            _ => {
                let target =
                    fs::File::create(compressed.join(segment.file_name().unwrap()).with_extension("gz"))
                        .unwrap();
                let gzip = Command::new("gzip").arg("-1c").arg(segment).stdout(target).status().unwrap();
                assert!(gzip.success());
            }
        }
    }
    let mut number = 0;
    let mut expect_same = |source: [&str; 2]| {
        // Too little memory for several decoders, and enough.
        for memory in ["4MB", "200MB"] {
            number += 1;
            let data = primary.cluster.dir().join(format!("restored{number}"));
            let arguments =
                ["restore", "--base", text(&primary.backup), "-o", text(&data), "--to", "name:end"];
            let options = ["--threads", "4", "--memory", memory, "--restore-command", "false"];
            let run = walden(&[&arguments[..], &source, &options].concat());
            assert_eq!(run.code, 0, "{run:?}");
            assert!(compare_directories(&plain, &data) > 2000);
            fs::remove_dir_all(&data).unwrap();
        }
    };
    expect_same(["--wal", text(&compressed)]);
    expect_same(["--repo", text(&repo)]);
    let packed = walden(&["archive", "pack", "--repo", text(&repo), "--keep", "0", "--segments", "16"]);
    assert_eq!(packed.code, 0, "{packed:?}");
    expect_same(["--repo", text(&repo)]);
    Ok(())
}

/// Frequent checkpoints, after which WAL has images of the same pages again. Overwritten images are cut out
/// of the decoded segments of an archive, but not of plain segments.
fn images_that_are_overwritten_are_not_restored(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = Primary::start(&installation, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    let mut client = primary.client("postgres");
    for round in 0..14 {
        let update = match round {
            // Others change pages after their images, too.
            0..12 => "UPDATE busy SET n = n + 1; UPDATE main SET t = t || 'x' WHERE i % 9 = 0",
            _ => "UPDATE shared SET t = t || 'y'",
        };
        client.batch_execute(update).unwrap();
        if round % 3 == 0 {
            client.batch_execute("VACUUM busy").unwrap();
            client.batch_execute("VACUUM main").unwrap();
        }
        if round == 9 {
            client.batch_execute("SELECT pg_create_restore_point('middle')").unwrap();
        }
        client.batch_execute("CHECKPOINT").unwrap();
    }
    primary.checkpoint_and_name("end");
    let strategy = if version == 14 { "" } else { "STRATEGY file_copy" };
    client.batch_execute(&format!("CREATE DATABASE copied TEMPLATE source {strategy}")).unwrap();
    primary.checkpoint_and_name("copied");
    primary.archive_all();
    let repo = primary.push_all();
    for target in ["name:middle", "name:end", "name:copied"] {
        let folder = target.replace(':', "_");
        let (plain, json) = primary.restore(target, &folder);
        assert!(json["plan"]["replayed_wal_bytes"].as_u64().unwrap() > 20 << 20, "{json}");
        // All segments have room; some have, once others are cut.
        for memory in ["1GB", "90MB"] {
            let data = primary.cluster.dir().join(format!("{folder}_{memory}"));
            let arguments = ["restore", "--repo", text(&repo), "--base", text(&primary.backup)];
            let options = ["-o", text(&data), "--to", target, "--threads", "2", "--memory", memory];
            let run = walden(&[&arguments[..], &options].concat());
            assert_eq!(run.code, 0, "{run:?}");
            assert!(compare_directories(&plain, &data) > 2000);
            fs::remove_dir_all(&data).unwrap();
        }
    }
    Ok(())
}
