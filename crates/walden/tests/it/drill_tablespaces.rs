//! A drill on the machine of the running original: records about tablespaces must not change files of the
//! original.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::{program_for, text, wait_until_archived};
use crate::material::{make_archive, walden};

walden_testing::tests! {
    #[slow] tablespaces_of_the_original_stay_as_they_are on [14, 15, 17, 18, 19],
    settings_that_leave_the_folder_are_refused,
}

/// Tables in tablespaces, with their databases.
const TABLES: &[(&str, &str)] = &[
    ("postgres", "in_old"),
    ("postgres", "in_new"),
    ("postgres", "in_inner"),
    ("postgres", "in_place"),
    ("postgres", "in_again"),
    ("copied", "content"),
    ("moved", "content"),
];

/// The folders of tablespaces in `spaces`. The third one is inside the second.
const FOLDERS: &[&str] = &["old", "new", "new/inner", "dropped"];

/// Statements after the base backup. `{file_copy}` is the strategy that copies files.
const AFTER_BACKUP: &[(&str, &str)] = &[
    ("postgres", "CREATE TABLESPACE new LOCATION '{spaces}/new'"),
    (
        "postgres",
        "CREATE TABLE in_new TABLESPACE new AS SELECT g, repeat('x', 100) v FROM generate_series(1, 5000) g",
    ),
    ("postgres", "CREATE TABLESPACE inside LOCATION '{spaces}/new/inner'"),
    ("postgres", "CREATE TABLE in_inner TABLESPACE inside AS SELECT g, 'x' v FROM generate_series(1, 500) g"),
    ("postgres", "SET allow_in_place_tablespaces = on"),
    ("postgres", "CREATE TABLESPACE in_place LOCATION ''"),
    (
        "postgres",
        "CREATE TABLE in_place TABLESPACE in_place AS SELECT g, 'x' v FROM generate_series(1, 50) g",
    ),
    ("postgres", "CREATE DATABASE copied TEMPLATE source TABLESPACE new {file_copy}"),
    ("postgres", "CREATE DATABASE moved TEMPLATE source {file_copy}"),
    ("postgres", "ALTER DATABASE moved SET TABLESPACE new"),
    ("postgres", "CREATE TABLESPACE dropped LOCATION '{spaces}/dropped'"),
    ("postgres", "CREATE TABLE in_dropped (g int) TABLESPACE dropped"),
    ("postgres", "DROP TABLE in_dropped"),
    ("postgres", "DROP TABLESPACE dropped"),
    ("postgres", "CREATE TABLESPACE again LOCATION '{spaces}/dropped'"),
    ("postgres", "CREATE TABLE in_again TABLESPACE again AS SELECT g, 'x' v FROM generate_series(1, 70) g"),
    ("postgres", "UPDATE in_old SET v = 'archived'"),
];

/// Returns every file and folder below a folder, with its permissions and content; for links, their targets.
fn contents(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode();
    found.insert(folder.to_owned(), (mode(folder), Vec::new()));
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap();
        if kind.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            found.insert(path, (0, target.into_os_string().into_encoded_bytes()));
        } else if kind.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), (mode(&path), fs::read(&path).unwrap()));
        }
    }
    found
}

fn count_query(table: &str) -> String {
    format!("SELECT count(*) || ' ' || count(DISTINCT v) || ' ' || sum(hashtext(v)) FROM {table}")
}

/// Returns the number of rows of each table, and a sum over their content.
fn rows(primary: &Cluster) -> Vec<String> {
    let row = |&(database, table): &(&str, &str)| {
        let mut client = primary.client(database).unwrap();
        client.query_one(&count_query(table), &[]).unwrap().get::<_, String>(0)
    };
    TABLES.iter().map(row).collect()
}

fn execute(client: &mut Client, statement: &str) {
    client.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
}

fn tablespaces_of_the_original_stay_as_they_are(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let bin = installation.bin_dir.clone();
    let primary =
        ClusterBuilder::new(installation).wal_segsize_mb(1).setting("autovacuum", "off").start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("repo").unwrap();
    make_archive(&repo);
    let spaces = primary.make_folder("spaces").unwrap();
    for folder in FOLDERS {
        primary.make_folder(&format!("spaces/{folder}")).unwrap();
    }
    let mut client = primary.client("postgres").unwrap();
    execute(&mut client, &format!("CREATE TABLESPACE old LOCATION '{}/old'", spaces.display()));
    execute(
        &mut client,
        "CREATE TABLE in_old TABLESPACE old AS SELECT g, 'x' v FROM generate_series(1, 300) g",
    );
    execute(&mut client, "CREATE DATABASE source");
    let mut source = primary.client("source").unwrap();
    execute(&mut source, "CREATE TABLE content AS SELECT g, 'x' v FROM generate_series(1, 900) g");
    drop((client, source));
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    // Copies the links to tablespaces, too.
    let copied = Command::new("cp").arg("-a").args([&primary.data_dir(), &backup]).status().unwrap();
    assert!(copied.success());
    primary.start().unwrap();

    let mut client = primary.client("postgres").unwrap();
    let file_copy = if version >= 15 { "STRATEGY file_copy" } else { "" };
    for (_, statement) in AFTER_BACKUP {
        execute(&mut client, &statement.replace("{spaces}", text(&spaces)).replace("{file_copy}", file_copy));
    }
    let archived = rows(&primary);
    execute(&mut client, "SELECT pg_switch_wal()");
    wait_until_archived(&mut client);
    // The original continues, so its files are newer than the archive.
    primary.configure(&[("archive_command", "/bin/false")]).unwrap();
    primary.reload();
    for (database, table) in TABLES {
        let mut client = primary.client(database).unwrap();
        execute(&mut client, &format!("UPDATE {table} SET v = 'live' WHERE g % 3 = 0"));
        execute(&mut client, &format!("INSERT INTO {table} SELECT g, 'new' FROM generate_series(1, 200) g"));
    }
    execute(&mut client, "CHECKPOINT");
    let live = rows(&primary);
    let named = [&spaces, &backup, &repo];
    let before = named.map(|folder| contents(folder));

    let folder = primary.make_folder("drill").unwrap();
    // A copy inside of the backup would be copied into itself.
    let all = ["archive", "drill", "--repo", text(&repo), "--base", text(&backup), "--bin", text(&bin)];
    let run = walden(&[&all[..], &["--folder", text(&backup.join("base"))]].concat());
    assert!(run.code == 3 && run.stderr.contains("a folder in the backup"), "{run:?}");
    for database in ["postgres", "copied", "moved"] {
        let of_database: Vec<(String, &String)> = TABLES
            .iter()
            .zip(&archived)
            .filter(|((of, _), _)| *of == database)
            .map(|((_, table), expected)| (count_query(table), expected))
            .collect();
        let how = ["--folder", text(&folder), "--database", database, "--no-amcheck", "--format", "json"];
        let queries = of_database.iter().flat_map(|(query, _)| ["--query", query.as_str()]);
        let run = walden(&all.into_iter().chain(how).chain(queries).collect::<Vec<_>>());
        assert_eq!(run.code, 0, "{run:?}");
        let drill: Value = serde_json::from_str(&run.stdout).unwrap();
        let paths = drill["redirected_tablespaces"].as_array().unwrap().iter();
        let paths: Vec<&str> = paths.map(|space| space["path"].as_str().unwrap()).collect();
        let expected =
            ["new", "new/inner", "dropped", "dropped"].map(|name| format!("{}/{name}", spaces.display()));
        assert_eq!(paths, expected, "{drill:#}");
        for (index, (query, expected)) in of_database.iter().enumerate() {
            assert_eq!(drill["checked"]["queries"][index]["rows"][0][0], **expected, "{query}: {drill:#}");
        }
        let after = named.map(|folder| contents(folder));
        for (before, after) in before.iter().zip(&after) {
            let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
            let changed: Vec<&PathBuf> = before.keys().chain(after.keys()).filter(differs).collect();
            assert!(changed.is_empty(), "{changed:?}");
        }
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    // Checks the original's content, also after it reads its files again.
    assert_eq!(rows(&primary), live);
    drop(client);
    primary.crash().unwrap();
    primary.start().unwrap();
    assert_eq!(rows(&primary), live);
    Ok(())
}

fn settings_that_leave_the_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for setting in [
        "data_directory=/tmp",
        "RESTORE_COMMAND=true",
        "archive_mode=on",
        "external_pid_file=/tmp/x",
        "log_directory=/tmp",
        "recovery_end_command=true",
        "include=/tmp/x",
        "listen_addresses=*",
    ] {
        let run = walden(&[
            "archive",
            "drill",
            "--repo",
            text(folder.path()),
            "--base",
            "/nothing",
            "--set",
            setting,
        ]);
        let name = setting.split('=').next().unwrap();
        assert!(run.code == 2 && run.stderr.contains(&format!("cannot set {name}")), "{run:?}");
    }
}
