//! Rows by saved names, which are from another time than the WAL.

use std::path::{Path, PathBuf};

use postgres::Client;
use walden_lab::{Cluster, StopMode};
use walden_testing::{Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, walden};

walden_testing::tests! {
    labels_that_are_defaults_are_those_at_the_end,
    catalogs_that_say_more_of_tables_are_noticed,
    names_that_are_no_text_are_in_no_script on [15, 18],
    one_database_does_not_keep_the_others_from_being_read,
    a_table_is_named_with_its_database_apart,
    a_database_that_is_newer_than_the_backup_is_read_by_names,
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

/// Creates a SQL_ASCII database, which contains whatever bytes clients sent.
pub(crate) fn ascii_database(cluster: &Cluster, client: &mut Client) -> Client {
    let made = "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    run(client, made);
    cluster.client("ascii").unwrap()
}

/// Runs a statement that may be no UTF-8, which the client cannot send.
pub(crate) fn run_bytes(client: &mut Client, statement: &[u8]) {
    let hex: String = statement.iter().map(|byte| format!("{byte:02x}")).collect();
    run(client, &format!("DO $$ BEGIN EXECUTE convert_from('\\x{hex}', 'SQL_ASCII'); END $$"));
}

/// Returns the lines of a script that are no comments.
fn sql_of(script: &Run) -> String {
    script.stdout.lines().filter(|line| !line.starts_with("-- ")).collect::<Vec<_>>().join("\n")
}

/// Tables, columns and labels whose names differ only in bytes that are not UTF-8, and one that has U+FFFD.
fn names_that_are_no_text_are_in_no_script(version: u32) -> Outcome {
    const MADE: &[&[u8]] = &[
        b"CREATE TABLE \"x\xe9\" (id int PRIMARY KEY, v int)",
        b"CREATE TABLE \"x\xe8\" (id int PRIMARY KEY, v int)",
        b"CREATE TABLE \"x\xef\xbf\xbd\" (id int PRIMARY KEY, v int)",
        b"CREATE SCHEMA \"s\xe9\"",
        b"CREATE TABLE \"s\xe9\".t (id int PRIMARY KEY, v int)",
        b"CREATE TABLE columns (id int PRIMARY KEY, v int, \"c\xe9\" int, \"g\xe9\" int GENERATED ALWAYS AS IDENTITY)",
        b"CREATE TABLE keys (\"k\xe9\" int PRIMARY KEY, v int)",
        b"CREATE TABLE keyless (id int, \"c\xe9\" int, v int)",
        b"CREATE TYPE label AS ENUM ('\xe9', '\xe8', 'ok')",
        b"CREATE TABLE labels (id int PRIMARY KEY, v int, e label, a label[])",
        b"CREATE TABLE defaults (id int PRIMARY KEY, v int)",
        b"CREATE TABLE plain (id int PRIMARY KEY, v int)",
        b"INSERT INTO \"x\xe9\" VALUES (1, 1)",
        b"INSERT INTO \"x\xe8\" VALUES (1, 1)",
        b"INSERT INTO \"x\xef\xbf\xbd\" VALUES (1, 1)",
        b"INSERT INTO \"s\xe9\".t VALUES (1, 1)",
        b"INSERT INTO columns VALUES (1, 1, 1), (2, 1, 1), (3, 1, 1)",
        b"INSERT INTO keys VALUES (1, 1)",
        b"INSERT INTO keyless VALUES (1, 1, 1)",
        b"INSERT INTO labels VALUES (1, 1, '\xe9', '{ok}'), (2, 1, 'ok', '{\xe8}'), (3, 1, '\xe8', NULL)",
        b"INSERT INTO defaults VALUES (1, 1)",
        b"ALTER TABLE defaults ADD t text DEFAULT '\xe9', ADD e label DEFAULT '\xe8'",
        b"INSERT INTO plain VALUES (1, 1)",
    ];
    const CHANGES: &[&[u8]] = &[
        b"UPDATE \"x\xe9\" SET v = 2",
        b"UPDATE \"x\xe8\" SET v = 3",
        b"UPDATE \"s\xe9\".t SET v = 2",
        // The statement of this one needs no other column.
        b"UPDATE columns SET v = 2 WHERE id = 1",
        b"UPDATE columns SET v = 2, \"c\xe9\" = 2, \"g\xe9\" = DEFAULT WHERE id = 2",
        b"DELETE FROM columns WHERE id = 3",
        b"UPDATE keys SET v = 2",
        b"UPDATE keyless SET v = 2",
        b"UPDATE labels SET v = 2, e = 'ok', a = NULL",
        b"UPDATE defaults SET v = 2, t = NULL, e = 'ok'",
        b"UPDATE plain SET v = 2",
    ];
    let cluster = cluster_that_keeps_wal(postgres(version)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let mut client = ascii_database(&cluster, &mut client);
    MADE.iter().for_each(|statement| run_bytes(&mut client, statement));
    let base = cluster.dir().join("backup");
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    let mut client = cluster.client("ascii").unwrap();
    let from: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    // Images of the pages, for reading by names.
    run(&mut client, "CHECKPOINT");
    CHANGES.iter().for_each(|statement| run_bytes(&mut client, statement));
    run(&mut client, "SELECT pg_switch_wal()");
    let (wal, dsn) = (cluster.data_dir().join("pg_wal"), cluster.dsn("postgres"));
    for source in [["--base", base.to_str().unwrap()], ["--names", &dsn]] {
        let rows = |more: &[&str]| {
            let all = ["rows", wal.to_str().unwrap(), "--database", "ascii", "--all", "--from", &from];
            walden(&[&all, &source[..], more].concat())
        };
        let script = rows(&["--undo"]);
        assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE"), "{script:?}");
        for redone in [&script, &rows(&["--format", "sql"])] {
            assert!(!sql_of(redone).contains('\u{FFFD}'), "{redone:?}");
        }
        let reasons = script.stdout.lines().filter(|line| line.starts_with("-- NOT REVERTED: ")).count();
        // Each change except for the one of `columns` with ID 1 and that of `plain`.
        assert_eq!(reasons, 11, "{script:?}");
        let open = script.stdout.strip_suffix("COMMIT;\n").unwrap_or_else(|| panic!("{script:?}"));
        run(&mut client, open);
        let query = "SELECT (SELECT v FROM plain), (SELECT v FROM \"x\u{FFFD}\"),
            (SELECT string_agg(v::text, ' ' ORDER BY id) FROM columns), (SELECT string_agg(v::text, ' ' ORDER BY id) FROM labels)";
        let found = client.query_one(query, &[]).unwrap();
        let found: (i32, i32, String, String) = (found.get(0), found.get(1), found.get(2), found.get(3));
        assert_eq!(found, (1, 1, "1 1".to_owned(), "2 2 2".to_owned()), "{}", script.stdout);
        run(&mut client, "ROLLBACK");
    }
    Ok(())
}

/// A database whose name is not UTF-8, names in another one that are not, and one that the role cannot read.
fn one_database_does_not_keep_the_others_from_being_read() -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(15)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let mut ascii = ascii_database(&cluster, &mut client);
    let statements = [
        "CREATE TABLE known (id int)",
        "CREATE DATABASE latin",
        "CREATE DATABASE closed",
        "CREATE ROLE reader LOGIN",
    ];
    statements.iter().for_each(|statement| run(&mut client, statement));
    run_bytes(&mut ascii, b"ALTER DATABASE latin RENAME TO \"caf\xe9\"");
    run_bytes(&mut ascii, b"CREATE TABLE \"x\xe9\" (id int, \"c\xe9\" text DEFAULT '\xe9')");
    let close = "REVOKE SELECT ON pg_catalog.pg_class FROM PUBLIC";
    run(&mut cluster.client("closed").unwrap(), close);
    let file = cluster.dir().join("names.json");
    let saved_by = |dsn: &str| {
        let file = file.to_str().unwrap();
        walden(&["explain", "--names", &format!("{dsn} user=reader"), "--save-names", file, "--force"])
    };
    for database in ["postgres", "ascii"] {
        let saved = saved_by(&cluster.dsn(database));
        assert_eq!(saved.code, 0, "{saved:?}");
        for warning in ["database \"caf\u{FFFD}\": its name is not UTF-8", "database closed: "] {
            assert!(saved.stderr.contains(&format!("warning: no names of {warning}")), "{saved:?}");
        }
        assert_eq!(saved.stderr.lines().count(), 2, "{saved:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        for name in ["known", "x\u{FFFD}", "c\u{FFFD}", "caf\u{FFFD}"] {
            assert!(text.contains(&format!("\"{name}\"")), "{name}: {text}");
        }
        let watched = walden(&["retention", "--dsn", &cluster.dsn(database)]);
        watched.assert_no_panic();
        assert!(watched.code <= 1, "{watched:?}");
    }
    // A file with names is not replaced by one without.
    run(&mut client, close);
    run(&mut ascii, close);
    run(&mut cluster.client("template1").unwrap(), close);
    let before = std::fs::read(&file).unwrap();
    let saved = saved_by(&cluster.dsn("postgres"));
    assert!(saved.code == 3 && saved.stderr.contains("error: cannot save names to "), "{saved:?}");
    assert!(std::fs::read(&file).unwrap() == before);
    Ok(())
}

/// Two databases have a table of the same name.
fn a_table_is_named_with_its_database_apart() -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(15)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let databases = ["first", "Second.db"];
    for database in databases {
        run(&mut client, &format!("CREATE DATABASE \"{database}\""));
        run(&mut cluster.client(database).unwrap(), "CREATE TABLE same (id int)");
    }
    run(&mut cluster.client("first").unwrap(), "CREATE TABLE one (id int)");
    drop(client);
    let base = cluster.dir().join("backup");
    cluster.stop(StopMode::Fast).unwrap();
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    for database in databases {
        run(&mut cluster.client(database).unwrap(), &format!("INSERT INTO same VALUES ({})", database.len()));
    }
    let mut client = cluster.client("postgres").unwrap();
    run(&mut client, "SELECT pg_switch_wal()");
    let (wal, dsn) = (cluster.data_dir().join("pg_wal"), cluster.dsn("postgres"));
    for source in [["--base", base.to_str().unwrap()], ["--names", &dsn]] {
        let rows = |more: &[&str]| walden(&[&["rows", wal.to_str().unwrap()], &source[..], more].concat());
        let ambiguous = rows(&["--relation", "public.same"]);
        assert!(
            ambiguous.code == 3 && ambiguous.stderr.contains("more than one table is named"),
            "{ambiguous:?}"
        );
        for database in databases {
            for name in [
                vec!["public.same".to_owned()],
                vec![format!("\"{database}\".public.same"), "same".to_owned()],
            ] {
                let mut asked = vec!["--database", database, "--format", "csv"];
                name.iter().for_each(|name| asked.extend(["--relation", name]));
                let found = rows(&asked);
                assert!(found.code == 0 && found.stdout.lines().count() == 2, "{found:?}");
                assert!(found.stdout.contains(&format!("\"\"id\"\":{}", database.len())), "{found:?}");
            }
        }
        let missing = rows(&["--relation", "one", "--database", "Second.db"]);
        assert!(missing.code == 3 && missing.stderr.contains("cannot find the table one"), "{missing:?}");
        let missing = rows(&["--relation", "same", "--database", "third"]);
        assert!(
            missing.code == 3 && missing.stderr.contains("cannot find the database third"),
            "{missing:?}"
        );
        let other = rows(&["--relation", "first.public.same", "--database", "Second.db"]);
        assert!(other.code == 2 && other.stderr.contains("another database"), "{other:?}");
    }
    Ok(())
}

fn a_database_that_is_newer_than_the_backup_is_read_by_names() -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(15)?).start().unwrap();
    let base = cluster.dir().join("backup");
    cluster.stop(StopMode::Fast).unwrap();
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    run(&mut cluster.client("postgres").unwrap(), "CREATE DATABASE later");
    let mut client = cluster.client("later").unwrap();
    run(&mut client, "CREATE TABLE t (id int)");
    run(&mut client, "INSERT INTO t VALUES (7)");
    run(&mut client, "SELECT pg_switch_wal()");
    let (wal, dsn) = (cluster.data_dir().join("pg_wal"), cluster.dsn("postgres"));
    let options = ["--names", &dsn, "--format", "csv"];
    let rows = |more: &[&str]| walden(&[&["rows", wal.to_str().unwrap()], &options[..], more].concat());
    for table in [&["--database", "later", "--relation", "public.t"][..], &["--relation", "later.public.t"]] {
        let refused = rows(&[&["--base", base.to_str().unwrap()], table].concat());
        let expected = "in the base backup, although the names have it";
        assert!(refused.code == 3 && refused.stderr.contains(expected), "{refused:?}");
        let found = rows(table);
        assert!(found.code == 0 && found.stdout.contains("\"\"id\"\":7"), "{found:?}");
    }
    Ok(())
}
