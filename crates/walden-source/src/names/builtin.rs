//! The names of the system catalogs, which are known without a server: on a new cluster, a catalog's file
//! number is its OID, and OIDs are fixed in PostgreSQL's sources.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;
use walden_format::version::Major;

use super::{Persistence, Relation, RelationKind};

/// Returns the catalog whose first file this is. `VACUUM FULL` and similar commands create a new file, which
/// is not found here.
///
/// The version matters little: two of 290 catalogs have changed their name since 10.
pub fn by_file(locator: RelFileLocator, version: Option<Major>) -> Option<&'static Relation> {
    by_oid(locator.database, locator.relation, version)
}

/// Returns the catalog with this OID in a database. With the database 0, returns a shared catalog.
pub fn by_oid(database: u32, oid: u32, version: Option<Major>) -> Option<&'static Relation> {
    let number = version.map_or(NEWEST, |version| version.number() / 10_000).clamp(OLDEST, NEWEST);
    let candidates = CATALOGS.get(&oid)?;
    let row = candidates.iter().find(|row| row.versions.contains(&number)).or(candidates.last())?;
    let is_shared = row.relation.shared;
    (is_shared == (database == 0)).then_some(&row.relation)
}

/// Returns all catalogs of all versions.
pub fn all() -> impl Iterator<Item = &'static Relation> {
    CATALOGS.values().flatten().map(|row| &row.relation)
}

const OLDEST: u32 = 10;
const NEWEST: u32 = 19;

struct Row {
    relation: Relation,
    versions: std::ops::RangeInclusive<u32>,
}

static CATALOGS: LazyLock<FxHashMap<u32, Vec<Row>>> = LazyLock::new(|| {
    let mut catalogs: FxHashMap<u32, Vec<Row>> = FxHashMap::default();
    let lines = include_str!("catalogs.txt").lines().filter(|line| !line.starts_with('#'));
    for row in lines.filter_map(parse) {
        catalogs.entry(row.relation.oid).or_default().push(row);
    }
    catalogs
});

fn parse(line: &str) -> Option<Row> {
    let mut words = line.split_ascii_whitespace();
    let oid = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let kind = RelationKind::from_letter(words.next()?.chars().next()?);
    let table = words.next()?.parse().ok().filter(|table| *table != 0);
    let shared = words.next()? == "s";
    let versions = words.next()?.parse().ok()?..=words.next()?.parse().ok()?;
    let relation = Relation {
        database: 0,
        shared,
        oid,
        schema: if name.starts_with("pg_toast") { "pg_toast" } else { "pg_catalog" }.to_owned(),
        name,
        kind,
        persistence: Persistence::Permanent,
        access_method: Some(if kind == RelationKind::Index { "btree" } else { "heap" }.to_owned()),
        table,
        partition_of: None,
        scans: None,
        is_required: None,
        covered_by: None,
    };
    Some(Row { relation, versions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_and_every_table_is_there() {
        let lines = include_str!("catalogs.txt").lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(all().count(), lines);
        for relation in all() {
            assert!(relation.is_catalog());
            assert!(!matches!(relation.kind, RelationKind::Other(_)), "{relation}");
            if let Some(table) = relation.table {
                assert_eq!(CATALOGS[&table][0].relation.kind, RelationKind::Table, "{relation}");
            }
        }
    }

    #[test]
    fn a_catalog_is_found_where_it_belongs() {
        let file = |database, relation| RelFileLocator { tablespace: 1663, database, relation };
        let name = |file, version| by_file(file, version).map(|relation| relation.name.as_str());
        assert_eq!(name(file(5, 1259), None), Some("pg_class"));
        assert_eq!(name(file(0, 1259), None), None);
        assert_eq!(name(file(0, 1262), Some(Major::V14)), Some("pg_database"));
        assert_eq!(name(file(5, 2840), Some(Major::V9_5)), Some("pg_toast_2619"));
        assert_eq!(name(file(5, 3433), Some(Major::V14)), Some("pg_statistic_ext_data_stxoid_index"));
        assert_eq!(name(file(5, 3433), Some(Major::V19)), Some("pg_statistic_ext_data_stxoid_inh_index"));
        assert_eq!(name(file(5, 6466), Some(Major::V19)), Some("pg_propgraph_element"));
        assert_eq!(name(file(5, 16384), None), None);
    }
}
