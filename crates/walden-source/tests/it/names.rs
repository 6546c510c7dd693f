//! Names: from servers, files, and rewrites.

use std::fs::File;

use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_format::version::Major;
use walden_lab::{ClusterBuilder, Wanted, find_or_install};
use walden_source::names::{
    DEFAULT_TABLESPACE, Database, Names, NamesError, Persistence, Relation, RelationKind, Resolved, builtin,
};

fn file(relation: u32) -> RelFileLocator {
    RelFileLocator { tablespace: DEFAULT_TABLESPACE, database: 5, relation }
}

fn table(oid: u32, name: &str) -> Relation {
    Relation {
        database: 5,
        shared: false,
        oid,
        schema: "public".to_owned(),
        name: name.to_owned(),
        kind: RelationKind::Table,
        persistence: Persistence::Permanent,
        access_method: Some("heap".to_owned()),
        table: None,
        partition_of: None,
        scans: None,
        is_required: None,
    }
}

fn name(names: &Names, relation: u32) -> Option<String> {
    names.resolve(file(relation)).relation().map(ToString::to_string)
}

#[test]
fn relations_are_written_as_in_sql() {
    let with =
        |schema: &str, name: &str| Relation { schema: schema.to_owned(), ..table(16400, name) }.to_string();
    assert_eq!(with("public", "orders"), "orders");
    assert_eq!(with("sales", "orders"), "sales.orders");
    assert_eq!(with("pg_catalog", "pg_class"), "pg_class");
    assert_eq!(with("pg_toast", "pg_toast_16400"), "pg_toast_16400");
    assert_eq!(with("Sales", "the \"best\""), "\"Sales\".\"the \"\"best\"\"\"");
    assert_eq!(with("public", "a\u{1b}[31m\nb"), "\"a\\u{1b}[31m\\nb\"");
    assert_eq!(with("public", "größe"), "\"größe\"");
}

#[test]
fn catalogs_have_names_without_a_server() {
    let names = Names::builtin(Some(Major::V15));
    assert_eq!(name(&names, 1259).as_deref(), Some("pg_class"));
    let index = names.resolve(file(2662)).relation().unwrap();
    assert_eq!((index.name.as_str(), index.kind), ("pg_class_oid_index", RelationKind::Index));
    assert_eq!(names.table_of(5, index).name, "pg_class");
    // A TOAST table's index belongs to the table.
    let toast_index = names.resolve(file(2841)).relation().unwrap();
    assert_eq!(names.table_of(5, toast_index).name, "pg_statistic");
    assert_eq!(names.resolve(file(16384)), Resolved::Unresolved);
    assert_eq!(names.tablespace(1663), Some("pg_default"));
}

#[test]
fn rewrites_are_followed_both_ways() {
    let mut names = Names::default();
    names.add(table(16400, "orders"), Some(file(16500)));
    for (old, new) in [(16400, 16450), (16450, 16500), (16500, 16600), (1249, 16700)] {
        names.learn_rewrite(file(old), file(new));
    }
    assert!(matches!(names.resolve(file(16500)), Resolved::Current(_)));
    for other in [16400, 16450, 16600] {
        assert!(
            matches!(names.resolve(file(other)), Resolved::Rewritten(r) if r.name == "orders"),
            "{other}"
        );
    }
    assert_eq!(name(&names, 16700).as_deref(), Some("pg_attribute"));
    // Numbers that are used again can make a circle.
    names.learn_rewrite(file(17000), file(17001));
    names.learn_rewrite(file(17001), file(17000));
    assert_eq!(names.resolve(file(17000)), Resolved::Unresolved);
}

#[test]
fn merging_keeps_old_files_and_takes_new_names() {
    let mut old = Names::default();
    old.origin.system_id = Some(1);
    old.add(table(16400, "orders"), Some(file(16400)));
    old.add(table(16401, "dropped"), Some(file(16401)));
    old.add(table(16402, "was_a_table"), Some(file(16402)));
    old.add_database(5, Database { name: "app".to_owned(), tablespace: DEFAULT_TABLESPACE });
    let mut new = Names::default();
    new.origin.system_id = Some(1);
    new.add(table(16400, "purchases"), Some(file(16500)));
    let index = Relation { kind: RelationKind::Index, ..table(16402, "now_an_index") };
    new.add(index, Some(file(16502)));
    old.merge(new).unwrap();
    assert!(matches!(old.resolve(file(16400)), Resolved::Rewritten(r) if r.name == "purchases"));
    assert!(matches!(old.resolve(file(16500)), Resolved::Current(r) if r.name == "purchases"));
    assert!(matches!(old.resolve(file(16401)), Resolved::Current(r) if r.name == "dropped"));
    assert_eq!(name(&old, 16402).as_deref(), Some("was_a_table"));
    assert_eq!(name(&old, 16502).as_deref(), Some("now_an_index"));
    assert_eq!(old.by_oid(5, 16402).unwrap().name, "now_an_index");

    // What was merged survives being saved.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.json");
    old.write(File::create(&path).unwrap()).unwrap();
    let loaded = Names::load(&path).unwrap();
    for number in [16400, 16401, 16402, 16500, 16502] {
        assert_eq!(loaded.resolve(file(number)), old.resolve(file(number)), "{number}");
    }
    assert_eq!(loaded.by_oid(5, 16402), old.by_oid(5, 16402));
    assert_eq!(loaded.database(5), old.database(5));

    let mut other = Names::default();
    other.origin.system_id = Some(2);
    assert!(matches!(old.merge(other), Err(NamesError::OtherCluster { expected: 1, found: 2 })));
}

#[test]
fn a_saved_file_is_what_its_description_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.json");
    let mut names = Names::default();
    names.origin.system_id = Some(u64::MAX);
    names.origin.lsn = Some(Lsn(0x16B_3748));
    names.add_tablespace(1663, "pg_default");
    names.add(Relation { name: "q\"\u{7}\n".to_owned(), ..table(16400, "") }, Some(file(16500)));
    names.write(File::create(&path).unwrap()).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["walden_names"], 1);
    assert_eq!(json["system_identifier"], u64::MAX.to_string());
    assert_eq!(json["relations"][0]["files"], serde_json::json!([[1663, 5, 16500]]));
    assert_eq!(Names::load(&path).unwrap().origin, names.origin);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    // Anything cut or foreign is refused, not half read.
    for len in [0, 1, text.len() / 2, text.len() - 2] {
        std::fs::write(&path, &text[..len]).unwrap();
        assert!(matches!(Names::load(&path), Err(NamesError::Format { .. })), "{len}");
    }
    std::fs::write(&path, text.replace("\"walden_names\": 1", "\"walden_names\": 2")).unwrap();
    assert!(Names::load(&path).unwrap_err().to_string().contains("version 2"));
    assert!(matches!(Names::load(&folder.path().join("none")), Err(NamesError::File { .. })));
}

#[test]
fn a_server_that_is_not_there_is_a_clear_error() {
    let chain = |text: &str| {
        let error = Names::read(text).unwrap_err();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let error = chain("host=/no/such/folder user=nobody dbname=x");
    assert!(error.contains("cannot read names from the server") && error.contains("No such file"), "{error}");
    assert!(chain("host=x nonsense=1").contains("nonsense"));
}

/// On a server of its own, and on those in `WALDEN_TEST_DSN` (separated by `;`; databases are created there).
#[test]
fn a_servers_names_are_those_of_its_files() {
    let cluster =
        ClusterBuilder::new(find_or_install(Wanted::Any).unwrap()).wal_segsize_mb(1).start().unwrap();
    check_server(
        &cluster.dsn("postgres"),
        &|database| cluster.dsn(database),
        Some(cluster.system_identifier()),
    );
    if let Ok(others) = std::env::var("WALDEN_TEST_DSN") {
        for dsn in others.split(';') {
            check_server(dsn, &|database| format!("{dsn} dbname={database}"), None);
        }
    }
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
    let names = Names::read(dsn).unwrap();
    assert_eq!(names.notes, ["database closed: it allows no connections"]);
    assert_eq!(names.origin.server_version_num, Some(version as u32));
    assert!(names.origin.system_id.is_some() && names.origin.lsn.is_some() && names.origin.read_at.is_some());
    if system_id.is_some() {
        assert_eq!(names.origin.system_id, system_id);
    }

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

    // Rewritten since it was saved: both files have the name.
    let path_of = "SELECT pg_relation_filepath('sales.orders')";
    let old: String = shop.query_one(path_of, &[]).unwrap().get(0);
    shop.batch_execute("VACUUM FULL sales.orders").unwrap();
    let new: String = shop.query_one(path_of, &[]).unwrap().get(0);
    assert_ne!(old, new);
    saved.merge(Names::read(dsn).unwrap()).unwrap();
    assert!(matches!(saved.resolve(locator(&old)), Resolved::Rewritten(r) if r.name == "orders"));
    assert!(matches!(saved.resolve(locator(&new)), Resolved::Current(r) if r.name == "orders"));

    drop(shop);
    let mut client = connect(dsn);
    client.batch_execute("ALTER DATABASE closed ALLOW_CONNECTIONS true").unwrap();
    client.batch_execute("DROP DATABASE closed").unwrap();
    client.batch_execute("DROP DATABASE \"Shop\"").unwrap();
}

/// `catalogs.txt` against the server. A version newer than it is may have more catalogs.
fn check_builtin_names(client: &mut postgres::Client, version: i32) {
    let major = Major::all().find(|major| major.number() / 10_000 == version as u32 / 10_000);
    let query = "SELECT c.oid, c.relname::text, c.relkind::text, c.relisshared, pg_relation_filenode(c.oid)
                 FROM pg_class c WHERE c.oid < 12000 AND c.relkind IN ('r', 'i', 't')";
    for row in client.query(query, &[]).unwrap() {
        let (oid, name, shared) = (row.get::<_, u32>(0), row.get::<_, String>(1), row.get::<_, bool>(3));
        let database = if shared { 0 } else { 5 };
        let Some(builtin) = builtin::by_oid(database, oid, major) else {
            assert!(version >= 190_000, "{oid} {name} is not in catalogs.txt");
            continue;
        };
        assert_eq!(builtin.name, name, "{oid}");
        assert_eq!(builtin.kind.letter().to_string(), row.get::<_, String>(2), "{name}");
        // Of what nobody rewrote, which here are those that all databases share.
        if !shared {
            assert_eq!(row.get::<_, u32>(4), oid, "the file of {name}");
        }
    }
}
