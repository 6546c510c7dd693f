//! Names read from a server.

use std::fs::File;

use walden_format::record::RelFileLocator;
use walden_format::version::Major;
use walden_lab::ClusterBuilder;
use walden_postgres::names;
use walden_source::names::{Names, Persistence, RelationKind, Resolved, builtin};
use walden_testing::{ALL_SERVERS, Outcome, postgres};

walden_testing::tests! {
    a_servers_names_are_those_of_its_files on ALL_SERVERS,
}

/// Uses a server of its own, and those in `WALDEN_TEST_DSN` (separated by `;`; databases are created there).
fn a_servers_names_are_those_of_its_files(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?).wal_segsize_mb(1).start().unwrap();
    check_server(
        &cluster.dsn("postgres"),
        &|database| cluster.dsn(database),
        Some(cluster.system_identifier()),
    );
    if major == ALL_SERVERS[0]
        && let Ok(others) = std::env::var("WALDEN_TEST_DSN")
    {
        for dsn in others.split(';') {
            check_server(dsn, &|database| format!("{dsn} dbname={database}"), None);
        }
    }
    Ok(())
}

fn check_server(dsn: &str, of_database: &dyn Fn(&str) -> String, system_id: Option<u64>) {
    let connect = |dsn: &str| postgres::Client::connect(dsn, postgres::NoTls).unwrap();
    let mut client = connect(dsn);
    let version: i32 =
        client.query_one("SHOW server_version_num", &[]).unwrap().get::<_, String>(0).parse().unwrap();
    check_builtin_names(&mut client, version);
    client.batch_execute("DROP DATABASE IF EXISTS \"Shop\"").unwrap();
    client.batch_execute("DROP DATABASE IF EXISTS closed").unwrap();
    client.batch_execute("CREATE DATABASE \"Shop\"").unwrap();
    client.batch_execute("CREATE DATABASE closed").unwrap();
    client.batch_execute("ALTER DATABASE closed ALLOW_CONNECTIONS false").unwrap();
    drop(client);
    let mut shop = connect(&of_database("\"Shop\"").replace("dbname=\"Shop\"", "dbname=Shop"));
    let statements = [
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id serial PRIMARY KEY, body text, tags int[])",
        "CREATE INDEX orders_tags ON sales.orders USING gin (tags)",
        "CREATE UNLOGGED TABLE scratch (id int)",
        "CREATE TABLE part (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "CREATE MATERIALIZED VIEW totals AS SELECT count(*) FROM sales.orders",
        "CREATE TEMPORARY TABLE gone (id int)",
        "VACUUM FULL pg_class",
        "VACUUM FULL pg_database",
    ];
    for statement in statements {
        shop.batch_execute(statement).unwrap();
    }
    let names = names::read(dsn).unwrap();
    assert_eq!(names.notes, ["database closed: it allows no connections"]);
    assert_eq!(names.origin.server_version_num, Some(version as u32));
    assert!(names.origin.system_id.is_some() && names.origin.lsn.is_some() && names.origin.read_at.is_some());
    if system_id.is_some() {
        assert_eq!(names.origin.system_id, system_id);
    }
    let has_effective_level = names.settings.contains_key("effective_wal_level");
    assert_eq!((has_effective_level, names.settings.contains_key("wal_level")), (version >= 190_000, true));

    // Every file of the database, as the server itself names it.
    let database: u32 =
        shop.query_one("SELECT oid FROM pg_database WHERE datname = 'Shop'", &[]).unwrap().get(0);
    assert_eq!(names.database(database).unwrap().name, "Shop");
    let query = "SELECT oid, relname::text, pg_relation_filepath(oid) FROM pg_class
                 WHERE pg_relation_filepath(oid) IS NOT NULL AND relpersistence <> 't'";
    let rows = shop.query(query, &[]).unwrap();
    assert!(rows.len() > 200);
    let locator = |path: &str| {
        let parts: Vec<_> = path.split('/').collect();
        match parts.as_slice() {
            ["global", file] => {
                RelFileLocator { tablespace: 1664, database: 0, relation: file.parse().unwrap() }
            }
            ["base", database, file] => RelFileLocator {
                tablespace: 1663,
                database: database.parse().unwrap(),
                relation: file.parse().unwrap(),
            },
            _ => panic!("{path}"),
        }
    };
    for row in rows {
        let (oid, name, path) = (row.get::<_, u32>(0), row.get::<_, String>(1), row.get::<_, String>(2));
        let Resolved::Current(relation) = names.resolve(locator(&path)) else { panic!("{name} {path}") };
        assert_eq!((relation.oid, &relation.name), (oid, &name));
        assert_eq!(names.by_oid(database, oid), Some(relation));
    }
    let find = |name: &str| names.relations().find(|r| r.database == database && r.name == name).unwrap();
    let orders = find("orders");
    assert_eq!(orders.to_string(), "sales.orders");
    let toast = find(&format!("pg_toast_{}", orders.oid));
    let toast_index = find(&format!("pg_toast_{}_index", orders.oid));
    for part in [find("orders_pkey"), find("orders_tags"), toast, toast_index] {
        assert_eq!(names.table_of(database, part), orders, "{part}");
    }
    assert_eq!(find("orders_tags").access_method.as_deref(), Some("gin"));
    assert_eq!(find("orders_id_seq").kind, RelationKind::Sequence);
    assert_eq!(find("totals").kind, RelationKind::MaterializedView);
    assert_eq!(find("part").kind, RelationKind::PartitionedTable);
    assert_eq!(find("part_1").partition_of, Some(find("part").oid));
    assert_eq!(find("scratch").persistence, Persistence::Unlogged);
    assert_eq!(toast.kind, RelationKind::Toast);
    assert!(find("pg_class").is_catalog() && !orders.is_catalog());
    assert!(!names.relations().any(|r| r.name == "gone"));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.json");
    names.write(File::create(&path).unwrap()).unwrap();
    let mut saved = Names::load(&path).unwrap();
    assert_eq!(saved.origin, names.origin);
    assert_eq!(saved.relations().count(), names.relations().count());

    // Rewritten after it was saved: both files resolve to the name.
    let path_of = "SELECT pg_relation_filepath('sales.orders')";
    let old: String = shop.query_one(path_of, &[]).unwrap().get(0);
    shop.batch_execute("VACUUM FULL sales.orders").unwrap();
    let new: String = shop.query_one(path_of, &[]).unwrap().get(0);
    assert_ne!(old, new);
    saved.merge(names::read(dsn).unwrap()).unwrap();
    assert!(matches!(saved.resolve(locator(&old)), Resolved::Rewritten(r) if r.name == "orders"));
    assert!(matches!(saved.resolve(locator(&new)), Resolved::Current(r) if r.name == "orders"));

    drop(shop);
    let mut client = connect(dsn);
    client.batch_execute("ALTER DATABASE closed ALLOW_CONNECTIONS true").unwrap();
    client.batch_execute("DROP DATABASE closed").unwrap();
    client.batch_execute("DROP DATABASE \"Shop\"").unwrap();
}

/// Compares `catalogs.txt` with the server. A newer version may have more catalogs.
fn check_builtin_names(client: &mut postgres::Client, version: i32) {
    let major = Major::all().find(|major| major.number() / 10_000 == version as u32 / 10_000);
    let query = "SELECT c.oid, c.relname::text, c.relkind::text, c.relisshared, pg_relation_filenode(c.oid)
                 FROM pg_class c WHERE c.oid < 12000 AND c.relkind IN ('r', 'i', 't')";
    for row in client.query(query, &[]).unwrap() {
        let (oid, name, shared) = (row.get::<_, u32>(0), row.get::<_, String>(1), row.get::<_, bool>(3));
        let database = if shared { 0 } else { 5 };
        let Some(builtin) = builtin::by_oid(database, oid, major) else {
            assert!(version >= 200_000, "{oid} {name} is not in catalogs.txt");
            continue;
        };
        assert_eq!(builtin.name, name, "{oid}");
        assert_eq!(builtin.kind.letter().to_string(), row.get::<_, String>(2), "{name}");
        // Relations that have not been rewritten; here, those that all databases share.
        if !shared {
            assert_eq!(row.get::<_, u32>(4), oid, "the file of {name}");
        }
    }
}
