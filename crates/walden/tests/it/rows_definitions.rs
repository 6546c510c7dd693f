//! Scripts over tables whose definitions change within the range, verified by PostgreSQL.

use std::path::Path;

use postgres::Client;
use walden_lab::Cluster;
use walden_testing::{ALL_SERVERS, Need, Outcome};

use crate::material::{Run, walden};
use crate::rows_complete::{contents, copy_base, position, rows, run, server};

walden_testing::tests! {
    expressions_of_generated_columns_are_followed on [17, 18, 19],
    #[slow] columns_of_enums_are_followed on ALL_SERVERS,
    tables_that_are_created_are_named,
    values_of_more_types_are_read,
}

/// An LSN, and the rows of a table at that LSN.
struct Moment {
    from: String,
    rows: Vec<String>,
}

impl Moment {
    fn now(client: &mut Client, table: &str) -> Moment {
        Moment { from: position(client), rows: contents(client, table) }
    }
}

/// Runs statements one at a time, and returns the moment before each.
fn work(client: &mut Client, table: &str, statements: &[&str]) -> Vec<Moment> {
    let mut moments = Vec::new();
    for statement in statements {
        moments.push(Moment::now(client, table));
        run(client, statement);
    }
    run(client, "SELECT pg_switch_wal()");
    moments
}

fn undo(cluster: &Cluster, base: &Path, table: &str, from: &str) -> Run {
    rows(cluster, base, &["--relation", table, "--undo", "--from", from])
}

/// Runs a script and a query, and rolls the script back.
fn after_script(client: &mut Client, script: &Run, query: &str) -> Vec<String> {
    let open = script.stdout.strip_suffix("COMMIT;\n").unwrap_or_else(|| panic!("{script:?}"));
    run(client, open);
    let found = client.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    run(client, "ROLLBACK");
    found
}

/// `SET EXPRESSION` recomputes a stored column for all rows, and a virtual one whenever it is read.
fn expressions_of_generated_columns_are_followed(version: u32) -> Outcome {
    let (cluster, mut client) = server(version)?;
    let kinds: &[&str] = if version >= 18 { &["stored", "virtual"] } else { &["stored"] };
    let mut tables = Vec::new();
    for kind in kinds {
        let generated = format!("g int GENERATED ALWAYS AS (a * 2) {kind}");
        tables.push((format!("keyed_{kind}"), format!("a int PRIMARY KEY, b text, {generated}")));
        tables.push((format!("keyless_{kind}"), format!("a int, b text, {generated}")));
    }
    tables.push((
        "by_it".to_owned(),
        "a int, b text, g int GENERATED ALWAYS AS (a * 2) stored PRIMARY KEY".to_owned(),
    ));
    for (table, columns) in &tables {
        run(
            &mut client,
            &format!(
                "CREATE TABLE {table} ({columns}); INSERT INTO {table} VALUES (1, 'x'), (2, 'x'), (3, 'y')"
            ),
        );
    }
    let (mut client, base) = copy_base(&cluster, client, "backup");
    for (table, _) in &tables {
        let statements = [
            format!("INSERT INTO {table} VALUES (4, 'x'); UPDATE {table} SET b = 'z', a = 12 WHERE a = 2"),
            format!("DELETE FROM {table} WHERE a = 3"),
            format!("ALTER TABLE {table} ALTER g SET EXPRESSION AS (a * 3)"),
            format!(
                "INSERT INTO {table} VALUES (5, 'x'); UPDATE {table} SET a = 14 WHERE a = 4; DELETE FROM {table} WHERE a = 1"
            ),
        ];
        let statements = statements.each_ref().map(String::as_str);
        let moments = work(&mut client, table, &statements);
        for (index, moment) in moments.iter().enumerate() {
            let script = undo(&cluster, &base, table, &moment.from);
            let is_after = index == 3;
            assert_eq!(script.code, i32::from(!is_after), "{table} {index}: {script:?}");
            let reason = "SET EXPRESSION g: the column keeps its new expression";
            assert_eq!(script.stdout.matches(reason).count(), usize::from(!is_after), "{script:?}");
            let query = format!(
                "SELECT whole::text FROM (SELECT a, b, a * {} AS g FROM {table}) whole ORDER BY whole::text COLLATE \"C\"",
                if is_after { 3 } else { 2 }
            );
            assert_eq!(
                after_script(&mut client, &script, &query),
                moment.rows,
                "{table} {index}: {}",
                script.stdout
            );
        }
    }
    // The column stays, with another meaning.
    let from = position(&mut client);
    let mut altered = vec!["ALTER TABLE keyed_stored ALTER g DROP EXPRESSION"];
    let mut reasons = vec!["keyed_stored at ", "DROP EXPRESSION g: the column stays an ordinary one"];
    if version >= 18 {
        altered.extend([
            "ALTER TABLE keyless_virtual DROP g",
            "ALTER TABLE keyless_virtual ADD h int GENERATED ALWAYS AS (a) VIRTUAL",
            "ALTER TABLE keyed_virtual ALTER g TYPE text",
        ]);
        reasons.extend([
            "DROP COLUMN g: the column and its expression are lost",
            "ADD COLUMN h: the column stays",
            "a change of the type of column g: the column keeps it",
        ]);
    }
    run(&mut client, &altered.join("; "));
    run(&mut client, "SELECT pg_switch_wal()");
    let script = rows(&cluster, &base, &["--all", "--undo", "--from", &from]);
    let lines: Vec<&str> = script.stdout.lines().filter(|line| line.starts_with("-- NOT REVERTED")).collect();
    assert!(script.code == 1 && lines.len() == altered.len(), "{script:?}");
    for reason in reasons {
        assert!(lines.iter().any(|line| line.contains(reason)), "{reason}: {script:?}");
    }
    // An expression that a column has from its creation, or that comes with another type, is not a separate
    // event.
    let from = position(&mut client);
    run(&mut client, "BEGIN; CREATE TABLE made (a int, g int GENERATED ALWAYS AS (a * 2) STORED);
        ALTER TABLE made ADD h int GENERATED ALWAYS AS (a) STORED, ALTER g TYPE bigint; COMMIT; SELECT pg_switch_wal()");
    let found = rows(&cluster, &base, &["--relation", "made", "--from", &from, "--format", "json"]);
    assert!(found.code == 0 && !found.stdout.contains("set-expression"), "{found:?}");
    Ok(())
}

/// Enum columns that are added, changed, and filled within the range, in tables with and without a key.
fn columns_of_enums_are_followed(version: u32) -> Outcome {
    const STATEMENTS: &[&str] = &[
        "INSERT INTO {t} VALUES (4, 'low', 'high'), ({again}, 'low', 'high')",
        "ALTER TABLE {t} ADD added mood DEFAULT 'low'",
        "INSERT INTO {t} SELECT n, 'high', 'low', CASE WHEN n % 2 = 0 THEN 'high'::mood END FROM generate_series(10, 40) n",
        "ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high'",
        "INSERT INTO {t} VALUES (50, 'middle', 'middle', 'middle'), (51, 'low', 'low', 'low')",
        "ALTER TYPE mood RENAME VALUE 'low' TO 'lowest'; UPDATE {t} SET added = 'middle' WHERE id % 3 = 0",
        "ALTER TABLE {t} ALTER text_then_enum TYPE mood USING CASE text_then_enum WHEN 'low' THEN 'lowest' ELSE 'high' END::mood",
        "UPDATE {t} SET text_then_enum = 'middle' WHERE id % 4 = 0; DELETE FROM {t} WHERE id % 5 = 0",
        "ALTER TABLE {t} ALTER enum_then_text TYPE text",
        "INSERT INTO {t} VALUES (60, 'other', 'high', 'high'); UPDATE {t} SET enum_then_text = 'x' WHERE id < 20",
        "BEGIN; CREATE TYPE later_{t} AS ENUM ('one', 'two'); ALTER TABLE {t} ADD later later_{t} DEFAULT 'two';
            INSERT INTO {t} VALUES (70, 'y', 'high', 'high', 'one'); COMMIT",
        "INSERT INTO {t} SELECT n, 'y', 'high', NULL, 'two' FROM generate_series(80, 90) n; UPDATE {t} SET later = 'one' WHERE id = 11",
    ];
    for table in ["keyed", "keyless"] {
        let (cluster, mut client) = server(version)?;
        let (key, again) = if table == "keyed" { ("PRIMARY KEY", "5") } else { ("", "4") };
        run(
            &mut client,
            &format!(
                "CREATE TYPE mood AS ENUM ('low', 'high');
                CREATE TABLE {table} (id int {key}, enum_then_text mood, text_then_enum text);
                INSERT INTO {table} VALUES (1, 'low', 'low'), (2, 'high', 'high'), (3, NULL, NULL)"
            ),
        );
        if key.is_empty() {
            run(&mut client, "INSERT INTO keyless VALUES (2, 'high', 'high')");
        }
        let (mut client, base) = copy_base(&cluster, client, "backup");
        let statements: Vec<String> =
            STATEMENTS.iter().map(|text| text.replace("{t}", table).replace("{again}", again)).collect();
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        let moments = work(&mut client, table, &statements);
        let all = contents(&mut client, table);
        for (index, moment) in moments.iter().enumerate() {
            let script = undo(&cluster, &base, table, &moment.from);
            let query = format!("SELECT whole::text FROM {table} whole ORDER BY whole::text COLLATE \"C\"");
            let found = after_script(&mut client, &script, &query);
            // Only rows change after the last new column.
            let is_complete = index + 1 == moments.len();
            assert_eq!(
                script.stdout.contains("-- Complete"),
                is_complete,
                "{table} {index}: {}",
                script.stdout
            );
            assert_eq!(script.code, i32::from(!is_complete), "{table} {index}");
            match is_complete {
                true => assert_eq!(found, moment.rows, "{table} {index}: {}", script.stdout),
                // Labels are not renamed, and columns not removed: each of these is reported.
                false => assert!(script.stdout.contains("-- NOT REVERTED: "), "{script:?}"),
            }
            assert_eq!(contents(&mut client, table), all);
        }
    }
    Ok(())
}

fn tables_that_are_created_are_named() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(
        &mut client,
        "CREATE TABLE kept (id int PRIMARY KEY); CREATE TABLE gone (id int PRIMARY KEY); INSERT INTO gone VALUES (1)",
    );
    let (mut client, base) = copy_base(&cluster, client, "backup");
    run(&mut client, "BEGIN");
    let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
    run(&mut client, "INSERT INTO kept VALUES (1); INSERT INTO gone VALUES (2);
        CREATE TABLE \"Made\" AS SELECT 1 AS id; CREATE SCHEMA s; CREATE TABLE s.parts (id int) PARTITION BY RANGE (id);
        CREATE TABLE s.parts_1 PARTITION OF s.parts FOR VALUES FROM (0) TO (10); INSERT INTO s.parts VALUES (1);
        CREATE TABLE short_lived (id int); INSERT INTO short_lived VALUES (1); DROP TABLE short_lived; COMMIT");
    run(&mut client, "CREATE TABLE later (id int)");
    let script = rows(&cluster, &base, &["--xid", &xid, "--undo"]);
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    let created: Vec<&str> = script
        .stdout
        .lines()
        .filter_map(|line| line.split_once(": the table "))
        .map(|(_, rest)| rest)
        .collect();
    let expected = |name: &str| format!("{name} stays, without the rows; to remove it: DROP TABLE {name};");
    assert_eq!(created, ["public.\"Made\"", "s.parts", "s.parts_1"].map(expected), "{script:?}");
    assert!(!script.stdout.contains("short_lived") && !script.stdout.contains("later"), "{script:?}");
    run(&mut client, &script.stdout);
    assert_eq!(["kept", "\"Made\"", "s.parts"].map(|table| contents(&mut client, table).len()), [0; 3]);
    // After another transaction drops the table, the statements have nothing to change.
    run(
        &mut client,
        "INSERT INTO kept VALUES (1); INSERT INTO \"Made\" VALUES (1); INSERT INTO s.parts VALUES (1); DROP TABLE gone; SELECT pg_switch_wal()",
    );
    let script = rows(&cluster, &base, &["--xid", &xid, "--undo"]);
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE: 1 change is"), "{script:?}");
    let reason = "-- NOT REVERTED: insert of gone at ";
    let named = script.stdout.lines().find_map(|line| line.strip_prefix(reason));
    assert!(named.is_some_and(|rest| rest.ends_with("its table was dropped since")), "{script:?}");
    run(&mut client, &script.stdout);
    assert!(contents(&mut client, "kept").is_empty());
    Ok(())
}

/// `citext`, `refcursor`, text with control characters, integers that become wider, and a table without
/// columns.
fn values_of_more_types_are_read() -> Outcome {
    let (cluster, mut client) = server(15)?;
    // Debian has all extensions in one package.
    client
        .batch_execute("CREATE EXTENSION citext")
        .map_err(|error| Need::Pageinspect.missing(&format!("citext: {error}")))?;
    run(
        &mut client,
        "CREATE TABLE t (id int PRIMARY KEY, c citext, r refcursor, a text[]); CREATE TABLE keyless (c citext, r refcursor);
        CREATE TABLE nothing (); INSERT INTO nothing DEFAULT VALUES; INSERT INTO keyless VALUES ('Ab', 'one')",
    );
    let (mut client, base) = copy_base(&cluster, client, "backup");
    let before = contents(&mut client, "keyless");
    run(
        &mut client,
        "INSERT INTO keyless VALUES ('aB', 'one'); UPDATE keyless SET c = 'AB', r = 'two' WHERE c::text = 'Ab'",
    );
    run(
        &mut client,
        r"INSERT INTO t VALUES (1, 'Ab', 'one', ARRAY[E'\x1b[31mred\n']); UPDATE t SET c = 'AB', r = 'two'",
    );
    run(
        &mut client,
        "INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES;
        DELETE FROM nothing WHERE ctid IN (SELECT ctid FROM nothing LIMIT 1); INSERT INTO nothing DEFAULT VALUES",
    );
    run(
        &mut client,
        "ALTER TABLE t ALTER id TYPE bigint; INSERT INTO t VALUES (3000000000, 'x', NULL, NULL); SELECT pg_switch_wal()",
    );
    let printed = rows(&cluster, &base, &["--relation", "t"]);
    assert!(printed.code == 0 && printed.stdout.contains("+ c: 'Ab'"), "{printed:?}");
    assert!(
        printed.stdout.contains("c: 'Ab' -> 'AB'") && printed.stdout.contains("r: 'one' -> 'two'"),
        "{printed:?}"
    );
    assert!(!printed.stdout.contains('\u{1b}') && printed.stdout.contains(r"\u{1b}[31mred\n"), "{printed:?}");
    for (table, before) in [("t", Vec::new()), ("keyless", before)] {
        let script = rows(&cluster, &base, &["--relation", table, "--undo"]);
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
        run(&mut client, &script.stdout);
        assert_eq!(contents(&mut client, table), before, "{}", script.stdout);
    }
    let wal = cluster.data_dir().join("pg_wal");
    let (wal, base) = (wal.to_str().unwrap(), base.to_str().unwrap());
    let query = "SELECT max(arrow_typeof(after['id'])) AS type, sum(after['id']) AS sum, max(after['c']) AS c FROM row_changes('t')
        WHERE operation = 'insert'";
    let found = walden(&["sql", "--format", "csv", "--base", base, query, wal]);
    assert_eq!(found.stdout, "type,sum,c\nInt64,3000000001,x\n", "{found:?}");
    let (names, dsn) = (cluster.dir().join("names.json"), cluster.dsn("postgres"));
    let names = names.to_str().unwrap();
    assert_eq!(walden(&["explain", "--names", &dsn, "--save-names", names]).code, 0);
    // All rows of a table without columns are equal.
    for (source, changes, count) in [(["--names", names], 5, "0"), (["--base", base], 4, "1")] {
        let rows =
            |more: &[&str]| walden(&[&["rows", wal, "--relation", "nothing"], &source[..], more].concat());
        let printed = rows(&["--format", "json"]);
        assert!(printed.code == 0 && printed.stdout.lines().count() == changes, "{printed:?}");
        let script = rows(&["--undo"]);
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
        assert_eq!(after_script(&mut client, &script, "SELECT count(*)::text FROM nothing"), [count]);
        // This commit also flushes the record by which the script's transaction was aborted.
        run(&mut client, "SELECT pg_logical_emit_message(true, 'x', 'y')");
    }
    let query = "SELECT * FROM row_changes('nothing')";
    let nothing = walden(&["sql", "--base", base, query, wal]);
    assert!(nothing.code == 3 && nothing.stderr.contains("the table nothing has no columns"), "{nothing:?}");
    Ok(())
}
