//! Large objects in scripts, verified by PostgreSQL.

use postgres::Client;
use walden_lab::StopMode;
use walden_testing::Outcome;

use crate::material::{Run, walden};
use crate::rows_complete::{copy_base, position, rows, run, server};

walden_testing::tests! {
    large_objects_are_restored on [14, 15, 19],
    large_objects_that_changed_since_stop_a_script,
}

const MADE: &str = "
    CREATE ROLE keeper; CREATE ROLE reader;
    CREATE TABLE documents (id int PRIMARY KEY, image oid); CREATE TABLE others (id int PRIMARY KEY);
    SELECT lo_from_bytea(n, decode(repeat(md5(n::text), 600), 'hex')) FROM generate_series(70001, 70006) n;
    ALTER LARGE OBJECT 70001 OWNER TO keeper;
    SELECT lo_put(70004, 90000, 'after a hole!');
    GRANT SELECT, UPDATE ON LARGE OBJECT 70001 TO reader; GRANT SELECT ON LARGE OBJECT 70005 TO reader, keeper;
    GRANT SELECT ON LARGE OBJECT 70006 TO keeper WITH GRANT OPTION; GRANT UPDATE ON LARGE OBJECT 70006 TO PUBLIC, keeper;
    SET ROLE keeper; GRANT SELECT ON LARGE OBJECT 70006 TO reader, PUBLIC; RESET ROLE;
    INSERT INTO documents SELECT n, n FROM generate_series(70001, 70006) n";

/// Pages are rewritten, added, truncated and removed; objects are created and removed, and change owners and
/// privileges.
const WORK: &str = "
    SELECT lo_unlink(70001); DELETE FROM documents WHERE id = 70001;
    SELECT lo_put(70002, 3000, 'within'); SELECT lo_put(70002, 20000, 'beyond the end');
    SELECT lo_truncate(lo_open(70003, x'60000'::int), 2500);
    SELECT lo_put(70004, 40000, 'in a hole');
    ALTER LARGE OBJECT 70005 OWNER TO keeper;
    REVOKE SELECT ON LARGE OBJECT 70006 FROM keeper CASCADE; REVOKE UPDATE ON LARGE OBJECT 70006 FROM CURRENT_USER;
    GRANT SELECT ON LARGE OBJECT 70003 TO reader WITH GRANT OPTION; GRANT UPDATE ON LARGE OBJECT 70002 TO PUBLIC;
    SELECT lo_from_bytea(70010, 'new'); GRANT SELECT ON LARGE OBJECT 70010 TO PUBLIC; ALTER LARGE OBJECT 70010 OWNER TO keeper;
    SELECT lo_create(70011); SELECT lo_put(70011, 0, 'short-lived'); SELECT lo_unlink(70011);
    INSERT INTO documents VALUES (70010, 70010)";

/// Returns each large object with its pages, and the dependencies on owners.
fn large_objects(client: &mut Client) -> Vec<String> {
    let query = "
        SELECT (oid, pg_get_userbyid(lomowner), lomacl, (SELECT array_agg((pageno, data) ORDER BY pageno)
            FROM pg_largeobject WHERE loid = m.oid))::text AS of FROM pg_largeobject_metadata m
        UNION ALL SELECT (objid, refobjid, deptype)::text FROM pg_shdepend WHERE classid = 2613
        UNION ALL SELECT documents::text FROM documents ORDER BY 1";
    client.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn large_objects_are_restored(version: u32) -> Outcome {
    let (cluster, mut client) = server(version)?;
    run(&mut client, MADE);
    let (mut client, base) = copy_base(&cluster, client, "backup");
    let before = large_objects(&mut client);
    let from = position(&mut client);
    run(&mut client, "BEGIN");
    let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
    run(&mut client, WORK);
    run(&mut client, "COMMIT; SELECT pg_switch_wal()");
    let after = large_objects(&mut client);
    assert_ne!(before, after);
    let script = rows(&cluster, &base, &["--xid", &xid, "--undo"]);
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    assert!(script.stdout.contains("run the script as a superuser"), "{script:?}");
    run(&mut client, &script.stdout);
    assert_eq!(large_objects(&mut client), before, "{version}: {}", script.stdout);
    let again = rows(&cluster, &base, &["--xid", &xid, "--format", "sql"]);
    run(&mut client, &again.stdout);
    assert_eq!(large_objects(&mut client), after, "{version}: {}", again.stdout);

    // Saved names do not include columns of catalogs.
    let names = cluster.dir().join("names.json");
    let names = names.to_str().unwrap();
    let wal = cluster.data_dir().join("pg_wal");
    let wal = wal.to_str().unwrap();
    assert_eq!(walden(&["explain", "--names", &cluster.dsn("postgres"), "--save-names", names, wal]).code, 0);
    let by_names = walden(&["rows", wal, "--names", names, "--xid", &xid, "--undo"]);
    let statements = |text: &str| text.split_once("BEGIN;").map(|(_, rest)| rest.to_owned());
    assert_eq!(statements(&by_names.stdout), statements(&script.stdout), "{by_names:?}");

    // Only one of the tables refers to large objects.
    let of = |relations: &[&str]| {
        let relations: Vec<&str> = relations.iter().flat_map(|name| ["--relation", name]).collect();
        rows(&cluster, &base, &[&relations[..], &["--undo", "--xid", &xid, "--from", &from]].concat())
    };
    let alone = of(&["documents"]);
    let note = "-- Note: large objects changed as well, the first at ";
    assert!(alone.stdout.lines().any(|line| line.starts_with(note) && line.contains(&xid)), "{alone:?}");
    let without = of(&["others"]);
    assert!(!without.stdout.contains("large object"), "{without:?}");
    let catalogs = ["pg_catalog.pg_largeobject", "pg_catalog.pg_largeobject_metadata"];
    let named = of(&[&["documents"], &catalogs[..]].concat());
    assert!(named.code == 0 && !named.stdout.contains(note), "{named:?}");
    assert_eq!(statements(&named.stdout), statements(&script.stdout));
    Ok(())
}

/// Large objects and privileges that changed again.
fn large_objects_that_changed_since_stop_a_script() -> Outcome {
    let (cluster, mut client) = server(15)?;
    run(&mut client, MADE);
    let (mut client, base) = copy_base(&cluster, client, "backup");
    let mut undo = |work: &str| {
        run(&mut client, "BEGIN");
        let xid: String = client.query_one("SELECT txid_current()::text", &[]).unwrap().get(0);
        run(&mut client, &format!("{work}; COMMIT; SELECT pg_switch_wal()"));
        rows(&cluster, &base, &["--xid", &xid, "--undo"])
    };
    let created = undo("SELECT lo_create(70020); SELECT lo_put(70020, 0, 'new')");
    let changed = undo("SELECT lo_put(70002, 0, 'changed')");
    let owned = undo("ALTER LARGE OBJECT 70005 OWNER TO keeper");
    let granted = undo("GRANT SELECT ON LARGE OBJECT 70003 TO keeper");
    let removed = undo("SELECT lo_unlink(70006)");
    for script in [&created, &changed, &owned, &granted, &removed] {
        assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    }
    let is_said = |script: &Run| script.stdout.contains("NOT with their comments and security labels");
    assert!(is_said(&removed) && !is_said(&created) && !is_said(&granted), "{removed:?}");
    run(
        &mut client,
        "SELECT lo_put(70020, 5000, 'more'); SELECT lo_put(70002, 2, 'again'); ALTER LARGE OBJECT 70005 OWNER TO CURRENT_USER; GRANT UPDATE ON LARGE OBJECT 70003 TO keeper",
    );
    for (script, expected) in [
        (&created, "large object 70020 has pages that the log does not have"),
        (&changed, "the row differs from the WAL: update of pg_catalog.pg_largeobject at "),
        (&owned, "the owner of large object 70005 differs from the WAL"),
        (&granted, "the privileges of large object 70003 differ from the WAL"),
    ] {
        let error = client.batch_execute(&script.stdout).unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.starts_with(expected), "{message}: {}", script.stdout);
        run(&mut client, "ROLLBACK");
    }
    run(&mut client, &removed.stdout);
    let restored: String = client.query_one("SELECT md5(lo_get(70006))", &[]).unwrap().get(0);
    let original = "SELECT md5(decode(repeat(md5('70006'), 600), 'hex'))";
    assert_eq!(restored, client.query_one(original, &[]).unwrap().get::<_, String>(0));
    let acl = "SELECT lomacl::text FROM pg_largeobject_metadata WHERE oid = 70006";
    let privileges: String = client.query_one(acl, &[]).unwrap().get(0);
    assert!(privileges.contains("keeper=r*w/") && privileges.contains("reader=r/keeper"), "{privileges}");
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    Ok(())
}
