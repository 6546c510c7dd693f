//! Whether scripts are marked `Complete` correctly.

use std::path::{Path, PathBuf};

use postgres::Client;
use walden_lab::{Cluster, StopMode};
use walden_testing::{Missing, Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, walden};

walden_testing::tests! {
    nulls_and_blanks_are_compared_exactly,
}

fn run(client: &mut Client, script: &str) {
    client.batch_execute(script).unwrap_or_else(|error| panic!("{error:?}: {script}"));
}

fn server(version: u32) -> Result<(Cluster, Client), Missing> {
    let cluster = cluster_that_keeps_wal(postgres(version)?).start().unwrap();
    let client = cluster.client("postgres").unwrap();
    Ok((cluster, client))
}

/// Copies the server's data as a base while it is stopped.
fn copy_base(cluster: &Cluster, client: Client, name: &str) -> (Client, PathBuf) {
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    let base = cluster.dir().join(name);
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    (cluster.client("postgres").unwrap(), base)
}

fn rows(cluster: &Cluster, base: &Path, more: &[&str]) -> Run {
    let wal = cluster.data_dir().join("pg_wal");
    walden(&[&["rows", wal.to_str().unwrap(), "--base", base.to_str().unwrap()], more].concat())
}

fn contents(client: &mut Client, table: &str) -> Vec<String> {
    let query = format!("SELECT whole::text FROM {table} whole ORDER BY whole::text COLLATE \"C\"");
    client.query(&query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// The operators of PostgreSQL find another row first.
fn nulls_and_blanks_are_compared_exactly() -> Outcome {
    for version in [14, 16, 18] {
        let (cluster, mut client) = server(version)?;
        run(
            &mut client,
            "CREATE TYPE cn AS (x int); CREATE DOMAIN dn AS cn; CREATE TYPE nested AS (n cn);
            CREATE TABLE tn (a int, e cn); INSERT INTO tn VALUES (1, ROW(NULL));
            CREATE TABLE dn_t (a int, e dn); INSERT INTO dn_t VALUES (1, ROW(NULL));
            CREATE TABLE nested_t (a int, e nested); INSERT INTO nested_t VALUES (1, ROW(ROW(NULL)));
            CREATE TABLE blanks (a int, b bpchar); INSERT INTO blanks VALUES (1, 'x');
            CREATE TABLE of_names (a int, b regclass[]); INSERT INTO of_names VALUES (1, NULL)",
        );
        let (mut client, base) = copy_base(&cluster, client, "backup");
        let tables = ["tn", "dn_t", "nested_t", "blanks", "of_names"];
        let before = tables.map(|table| contents(&mut client, table));
        run(
            &mut client,
            "INSERT INTO tn VALUES (1, NULL); INSERT INTO dn_t VALUES (1, NULL);
            INSERT INTO nested_t VALUES (1, ROW(NULL)); INSERT INTO blanks VALUES (1, 'x  ');
            INSERT INTO of_names VALUES (1, '{pg_class}')",
        );
        run(&mut client, "SELECT pg_switch_wal()");
        for (table, before) in tables.iter().zip(before) {
            let script = rows(&cluster, &base, &["--relation", table, "--undo"]);
            assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
            run(&mut client, &script.stdout);
            assert_eq!(contents(&mut client, table), before, "{version}: {}", script.stdout);
        }
    }
    Ok(())
}
