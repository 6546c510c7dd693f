//! Rows by saved names, which are from another time than the WAL.

use std::path::{Path, PathBuf};

use postgres::Client;
use walden_lab::{Cluster, StopMode};
use walden_testing::{Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, walden};

walden_testing::tests! {
    labels_that_are_defaults_are_those_at_the_end,
    catalogs_that_say_more_of_tables_are_noticed,
}

fn run(client: &mut Client, script: &str) {
    client.batch_execute(script).unwrap_or_else(|error| panic!("{error:?}: {script}"));
}

/// Starts a segment whose first record is a checkpoint's. Returns the segment's name.
fn begin_segment(client: &mut Client) -> String {
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    run(client, "CHECKPOINT");
    let query = "SELECT pg_walfile_name(redo_lsn) FROM pg_control_checkpoint()";
    client.query_one(query, &[]).unwrap().get(0)
}

fn save_names(cluster: &Cluster, file: &str) -> PathBuf {
    let (names, dsn) = (cluster.dir().join(file), cluster.dsn("postgres"));
    let saved = walden(&["explain", "--names", &dsn, "--save-names", names.to_str().unwrap()]);
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    names
}

/// Stops the server, and copies its WAL starting with a segment.
fn stop_and_collect_wal(cluster: &Cluster, first: &str) -> PathBuf {
    cluster.stop(StopMode::Fast).unwrap();
    let wal = cluster.dir().join("collected");
    cluster.collect_wal(first, &wal).unwrap();
    wal
}

fn rows_of(wal: &Path, names: &Path, table: &str, more: &[&str]) -> Run {
    let (wal, names) = (wal.to_str().unwrap(), names.to_str().unwrap());
    walden(&[&["rows", wal, "--names", names, "--relation", table], more].concat())
}

/// Rows are older than an enum column, whose labels are then renamed: one gets a name that another one had.
fn labels_that_are_defaults_are_those_at_the_end() -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(15)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    run(
        &mut client,
        "CREATE TYPE mood AS ENUM ('low', 'high');
        CREATE DOMAIN any_mood AS mood;
        CREATE TABLE felt (id int PRIMARY KEY);
        INSERT INTO felt VALUES (1), (2);
        ALTER TABLE felt ADD m mood DEFAULT 'low', ADD d any_mood DEFAULT 'high'",
    );
    let early = save_names(&cluster, "early.json");
    let first = begin_segment(&mut client);
    for statement in [
        "DELETE FROM felt WHERE id = 2",
        "ALTER TYPE mood RENAME VALUE 'low' TO 'very low'",
        "ALTER TYPE mood RENAME VALUE 'high' TO 'low'",
    ] {
        run(&mut client, statement);
    }
    drop(client);
    let late = save_names(&cluster, "late.json");
    let wal = stop_and_collect_wal(&cluster, &first);
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    for names in [&early, &late] {
        let shown = rows_of(&wal, names, "public.felt", &["--format", "json"]);
        assert!(shown.stdout.contains(r#""before":{"id":2,"m":"low","d":"high"}"#), "{names:?}: {shown:?}");
        let script = rows_of(&wal, names, "public.felt", &["--undo"]);
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{names:?}: {script:?}");
        run(&mut client, &script.stdout);
        let query = "DELETE FROM felt WHERE id = 2 RETURNING felt::text";
        let row: String = client.query_one(query, &[]).unwrap().get(0);
        assert_eq!(row, r#"(2,"very low",low)"#, "{names:?}: {}", script.stdout);
    }
    Ok(())
}

/// When the names are read, the catalogs are in other files than at the end of the WAL; before that, they
/// were in other files than initdb's.
fn catalogs_that_say_more_of_tables_are_noticed() -> Outcome {
    for (catalog, statement) in [
        ("pg_index", "ALTER TABLE moved DROP CONSTRAINT moved_pkey; ALTER TABLE moved ADD PRIMARY KEY (v)"),
        ("pg_enum", "ALTER TYPE mood RENAME VALUE 'low' TO 'high'"),
        ("pg_namespace", "ALTER SCHEMA here RENAME TO there"),
        ("pg_inherits", "ALTER TABLE child INHERIT moved"),
    ] {
        let cluster = cluster_that_keeps_wal(postgres(15)?).start().unwrap();
        let mut client = cluster.client("postgres").unwrap();
        run(
            &mut client,
            "CREATE TYPE mood AS ENUM ('low'); CREATE SCHEMA here;
            CREATE TABLE moved (id int PRIMARY KEY, v int NOT NULL, m mood);
            CREATE TABLE child (id int NOT NULL, v int NOT NULL, m mood)",
        );
        run(&mut client, &format!("VACUUM FULL {catalog}"));
        let first = begin_segment(&mut client);
        run(&mut client, "INSERT INTO moved VALUES (1, 1, 'low')");
        run(&mut client, statement);
        let end: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
        run(&mut client, &format!("VACUUM FULL {catalog}"));
        drop(client);
        let names = save_names(&cluster, "names.json");
        let wal = stop_and_collect_wal(&cluster, &first);
        let found = rows_of(&wal, &names, "public.moved", &["--to", &end]);
        let note = format!("{catalog} was rewritten (VACUUM FULL) between the log and the names");
        assert!(found.code == 1 && found.stderr.contains(&note), "{catalog}: {found:?}");
    }
    Ok(())
}
