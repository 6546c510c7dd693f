//! Rows whose values `ALTER TABLE` computes by an expression that is not in the WAL.

use std::path::Path;

use postgres::Client;
use walden_lab::{Cluster, StopMode};
use walden_testing::{ALL_SERVERS, Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, walden};

walden_testing::tests! {
    computed_values_are_not_set_back on ALL_SERVERS,
}

/// Statements for each table, each in its own transaction.
const WORK: &[&str] = &[
    "UPDATE computed SET v = 10 WHERE id = 1",
    "UPDATE computed SET w = 'changed' WHERE id = 2",
    "DELETE FROM computed WHERE id = 3",
    "ALTER TABLE computed ALTER v TYPE int USING v * 2",
    "UPDATE computed SET v = 7 WHERE id = 2",
    "UPDATE longer SET l = 'changed'",
    "ALTER TABLE longer ALTER l TYPE varchar(30) USING upper(l)",
    // None of these statements recomputes existing values.
    "UPDATE rewritten SET v = 10, w = 'changed', l = 'changed', z = 11 WHERE id < 3",
    "VACUUM FULL rewritten",
    "BEGIN; ALTER TABLE rewritten ALTER v TYPE int USING 0; ROLLBACK",
    // The rewrite stores the default in the rows, after which the catalog has none for them.
    "ALTER TABLE rewritten ADD d int DEFAULT 5",
    "ALTER TABLE rewritten ALTER z TYPE bigint, ALTER l TYPE varchar(30)",
    "DELETE FROM rewritten WHERE id > 1",
    "ALTER TABLE rewritten ADD u uuid DEFAULT gen_random_uuid(), ALTER v SET STATISTICS 50",
    "ALTER TABLE rewritten ALTER v TYPE int",
    "CLUSTER rewritten USING rewritten_pkey",
    "UPDATE rewritten SET v = 12",
];

const NOT_SET_BACK: &str = "ALTER COLUMN ... TYPE has most likely recomputed";

fn run(client: &mut Client, script: &str) {
    client.batch_execute(script).unwrap_or_else(|error| panic!("{error:?}: {script}"));
}

/// Returns the rows of a table, limited to the initial columns.
fn contents(cluster: &Cluster, table: &str) -> Vec<String> {
    let query = format!("SELECT (id, v, w, l, z)::text FROM {table} ORDER BY id");
    let rows = cluster.client("postgres").unwrap().query(&query, &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Returns a script's lines about changes that it does not revert.
fn not_reverted(script: &Run) -> Vec<&str> {
    script.stdout.lines().filter_map(|line| line.strip_prefix("-- NOT REVERTED: ")).collect()
}

fn rows_of(wal: &Path, (option, path): (&str, &Path), table: &str, more: &[&str]) -> Run {
    let (wal, path) = (wal.to_str().unwrap(), path.to_str().unwrap());
    walden(&[&["rows", wal, option, path, "--relation", table], more].concat())
}

fn computed_values_are_not_set_back(version: u32) -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(version)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    for table in ["computed", "longer", "rewritten"] {
        let made = format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, v int DEFAULT 3, w text, l varchar(20), z int);
            INSERT INTO {table} VALUES (1, 1, 'a', 'x', 1), (2, 2, 'b', 'y', 2), (3, 3, 'c', 'z', 3)"
        );
        run(&mut client, &made);
    }
    run(&mut client, "CHECKPOINT");
    drop(client);
    let before = contents(&cluster, "rewritten");
    cluster.stop(StopMode::Fast).unwrap();
    let base = cluster.dir().join("backup");
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    for statement in WORK {
        run(&mut client, statement);
    }
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    let wal = cluster.data_dir().join("pg_wal");
    let undo = |table: &str| rows_of(&wal, ("--base", &base), table, &["--undo"]);

    let script = undo("computed");
    let note = "has most likely recomputed the column v of computed for all rows";
    assert!(script.code == 1 && script.stderr.contains(note), "{script:?}");
    let lines = not_reverted(&script);
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (line, start) in
        lines.iter().zip(["computed at ", "delete of computed at ", "update of computed at "])
    {
        assert!(line.starts_with(start) && line.contains(NOT_SET_BACK), "{lines:#?}");
    }
    run(&mut client, &script.stdout);
    assert_eq!(contents(&cluster, "computed"), ["(1,20,a,x,1)", "(2,4,b,y,2)"], "{}", script.stdout);

    let script = undo("longer");
    assert!(script.code == 1 && script.stderr.contains("recomputed the column l of longer"), "{script:?}");
    assert_eq!(not_reverted(&script).len(), 4, "{script:?}");

    let script = undo("rewritten");
    let columns = not_reverted(&script);
    assert!(script.code == 1 && columns.iter().all(|line| line.contains(": ADD COLUMN ")), "{script:?}");
    assert!(columns.len() == 2 && !script.stderr.contains("anew"), "{script:?}");
    run(&mut client, &script.stdout);
    assert_eq!(contents(&cluster, "rewritten"), before, "{}", script.stdout);

    let names = cluster.dir().join("names.json");
    let dsn = cluster.dsn("postgres");
    let saved = walden(&["explain", "--names", &dsn, "--save-names", names.to_str().unwrap()]);
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    let found = rows_of(&wal, ("--names", &names), "public.computed", &[]);
    assert!(found.stderr.contains(note), "{found:?}");
    Ok(())
}
