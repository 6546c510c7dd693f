//! Names: built in, from files, and rewrites.

use std::fs::File;

use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_format::version::Major;
use walden_source::names::{
    DEFAULT_TABLESPACE, Database, Names, NamesError, Persistence, Relation, RelationKind, Resolved,
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
        covered_by: None,
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
    // Reused numbers can form a cycle.
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
    old.add_database(
        5,
        Database {
            name: "app".to_owned(),
            tablespace: DEFAULT_TABLESPACE,
            encoding: None,
            statistics_reset: None,
        },
    );
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

    // Merged names survive being saved.
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
    // A cut or foreign file is refused, not half read.
    for len in [0, 1, text.len() / 2, text.len() - 2] {
        std::fs::write(&path, &text[..len]).unwrap();
        assert!(matches!(Names::load(&path), Err(NamesError::Format { .. })), "{len}");
    }
    std::fs::write(&path, text.replace("\"walden_names\": 1", "\"walden_names\": 2")).unwrap();
    assert!(Names::load(&path).unwrap_err().to_string().contains("version 2"));
    assert!(matches!(Names::load(&folder.path().join("none")), Err(NamesError::File { .. })));
}
