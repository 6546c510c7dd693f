//! The state of the catalogs from a server's saved names.

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;
use walden_source::names::{Column, Missing, Names, Persistence, Relation, RelationKind, Resolved};

use super::large_objects::large_object_rows;
use super::layout::oid;
use super::{Catalog, Class, Row};
use crate::encoding::{Encoding, is_exact};
use crate::types::Types;

/// First number for namespaces, as names do not contain their OIDs.
const FIRST_NAMESPACE: u32 = 0xF000_0000;
/// First OID of rows that represent primary keys, as names do not contain their OIDs.
pub(crate) const FIRST_MADE: u32 = 0xE000_0000;

/// Builds a database's catalog from names.
pub(crate) fn from_names(names: &Names, database: u32) -> Catalog {
    let known = names.database(database);
    // Names saved by earlier versions have no encoding.
    let encoding =
        known.and_then(|known| Encoding::from_name(known.encoding.as_deref()?)).unwrap_or_default();
    let mut catalog = Catalog::new(database, known.map(|known| known.tablespace), encoding);
    let mut schemas: Vec<String> = Vec::new();
    let mut namespace = |catalog: &mut Catalog, schema: &str| {
        let index = schemas.iter().position(|known| known == schema).unwrap_or_else(|| {
            schemas.push(schema.to_owned());
            schemas.len() - 1
        });
        let oid = FIRST_NAMESPACE + index as u32;
        let row = Row::Namespace { oid, name: schema.to_owned() };
        catalog.set(row.key(), Some(row));
        oid
    };
    for of in names.types(database) {
        let namespace = namespace(&mut catalog, &of.schema);
        let mut of = of.clone();
        if let Some(columns) = names.columns(database, of.relation).filter(|_| of.columns.is_empty()) {
            of.columns = columns.to_vec();
        }
        for (oid, label) in std::mem::take(&mut of.labels) {
            let row = Row::Enum { oid, of: of.oid, label };
            catalog.set(row.key(), Some(row));
        }
        // For an `ALTER TYPE`, the WAL contains only the attributes that the command changes. All other
        // attributes must already be present.
        if of.kind == 'c' {
            for column in &of.columns {
                let row = Row::Attribute { relation: of.relation, column: column.clone() };
                catalog.set(row.key(), Some(row));
            }
        }
        let row = Row::Type { of, namespace };
        catalog.set(row.key(), Some(row));
    }
    let (files, toast_tables) = (current_files(names, database), toast_tables(names, database));
    let mut made = FIRST_MADE;
    for relation in names.relations().filter(|relation| relation.database == database) {
        let namespace = namespace(&mut catalog, &relation.schema);
        catalog.schemas_by_names.insert(relation.oid, relation.schema.clone());
        let toast = toast_tables.get(&relation.oid).copied().unwrap_or(0);
        let file = files.get(&relation.oid);
        let row = Row::Class(Class {
            oid: relation.oid,
            name: relation.name.clone(),
            namespace,
            file: file.map_or(0, |file| file.relation),
            tablespace: file.map_or(0, |file| file.tablespace),
            toast,
            kind: relation.kind.letter(),
            persistence: match relation.persistence {
                Persistence::Permanent => 'p',
                Persistence::Unlogged => 'u',
                Persistence::Temporary => 't',
            },
        });
        catalog.set(row.key(), Some(row));
        if let Some(parent) = relation.partition_of {
            let row = Row::Inherits { child: relation.oid, parent };
            catalog.set(row.key(), Some(row));
        }
        let columns = names.columns(database, relation.oid).unwrap_or(&[]);
        let key: Vec<i16> =
            columns.iter().filter(|column| column.is_key).map(|column| column.number).collect();
        if !key.is_empty() {
            let row = Row::Index { oid: made, table: relation.oid, columns: key };
            made += 1;
            catalog.set(row.key(), Some(row));
        }
        for column in columns {
            let row = Row::Attribute { relation: relation.oid, column: column.clone() };
            catalog.set(row.key(), Some(row));
        }
    }
    for &(child, parent) in names.inherits(database).unwrap_or_default() {
        let row = Row::Inherits { child, parent };
        catalog.set(row.key(), Some(row));
    }
    for row in large_object_rows() {
        catalog.set(row.key(), Some(row));
    }
    catalog.settle();
    let labelled: Vec<Row> = catalog.rows().filter_map(|row| with_label(&catalog.types, row)).collect();
    for row in labelled {
        catalog.set(row.key(), Some(row));
    }
    catalog
}

/// A column whose default is an enum label, with its value instead: the label may be renamed and reused for
/// another value.
fn with_label(types: &Types, row: &Row) -> Option<Row> {
    let Row::Attribute { relation, column } = row else { return None };
    let Missing::Text(label) = &column.missing else { return None };
    // Several labels may have the same inexact text.
    if !is_exact(label) {
        return None;
    }
    let value = types.labelled(column.type_oid, label)?;
    let missing = Missing::Bytes(value.to_le_bytes().to_vec());
    Some(Row::Attribute { relation: *relation, column: Column { missing, ..column.clone() } })
}

/// Returns the files of the catalogs: the files in the names, otherwise the files that initdb assigns.
pub(crate) fn catalog_files(names: &Names, database: u32, tablespace: u32) -> FxHashMap<u32, RelFileLocator> {
    let known = current_files(names, database);
    let all = [
        oid::PG_CLASS,
        oid::PG_ATTRIBUTE,
        oid::PG_TYPE,
        oid::PG_NAMESPACE,
        oid::PG_ENUM,
        oid::PG_INHERITS,
        oid::PG_INDEX,
        oid::PG_RANGE,
    ];
    let initial = |relation| RelFileLocator { tablespace, database, relation };
    all.map(|oid| (oid, known.get(&oid).copied().unwrap_or(initial(oid)))).into_iter().collect()
}

/// Previous files of the catalogs, if earlier saved names are among these.
pub(crate) fn former_files(
    names: &Names,
    database: u32,
    files: &FxHashMap<u32, RelFileLocator>,
) -> Vec<(RelFileLocator, u32)> {
    let of_catalogs = names.files().filter(|(file, relation)| {
        relation.database == database && files.get(&relation.oid).is_some_and(|current| current != file)
    });
    of_catalogs.map(|(file, relation)| (file, relation.oid)).collect()
}

/// The files of relations by their OIDs.
fn current_files(names: &Names, database: u32) -> FxHashMap<u32, RelFileLocator> {
    let is_current = |(file, relation): &(RelFileLocator, &Relation)| {
        relation.database == database && matches!(names.resolve(*file), Resolved::Current(_))
    };
    names.files().filter(is_current).map(|(file, relation)| (relation.oid, file)).collect()
}

/// The TOAST tables by the OIDs of their tables.
fn toast_tables(names: &Names, database: u32) -> FxHashMap<u32, u32> {
    let is_toast =
        |relation: &&Relation| relation.kind == RelationKind::Toast && relation.database == database;
    names.relations().filter(is_toast).filter_map(|toast| Some((toast.table?, toast.oid))).collect()
}

#[cfg(test)]
mod tests {
    use rustc_hash::FxHashSet;
    use walden_source::names::Type;

    use super::*;
    use crate::catalog::Key;

    #[test]
    fn tables_that_inherit_belong_to_their_parents() {
        let mut names = Names::default();
        names.set_inherits(5, vec![(20_001, 20_000), (20_002, 20_001), (20_002, 20_010)]);
        let catalog = from_names(&names, 5);
        let descendants = |oid: u32| {
            let mut oids = FxHashSet::from_iter([oid]);
            catalog.add_partitions(&mut oids);
            oids
        };
        assert_eq!(descendants(20_000), FxHashSet::from_iter([20_000, 20_001, 20_002]));
        assert_eq!(descendants(20_010), FxHashSet::from_iter([20_010, 20_002]));
    }

    #[test]
    fn defaults_that_are_labels_are_values() {
        let mut names = Names::default();
        let labels = vec![(7, "low".to_owned()), (8, "high".to_owned()), (9, "inexact \u{FFFD}".to_owned())];
        names.add_type(5, Type { oid: 20_000, kind: 'e', length: 4, align: 'i', labels, ..Type::default() });
        let of = Type { oid: 20_001, kind: 'd', base: 20_000, length: 4, align: 'i', ..Type::default() };
        names.add_type(5, of);
        let types = from_names(&names, 5).types;
        let missing = |type_oid: u32, text: &str| {
            let missing = Missing::Text(text.to_owned());
            let column = Column { missing, ..Column::plain(1, "c", type_oid, 4, 'i') };
            match with_label(&types, &Row::Attribute { relation: 20_010, column }) {
                Some(Row::Attribute { column, .. }) => Some(column.missing),
                _ => None,
            }
        };
        let high = Some(Missing::Bytes(vec![8, 0, 0, 0]));
        assert_eq!([missing(20_000, "high"), missing(20_001, "high")], [high.clone(), high]);
        assert_eq!([missing(20_000, "other"), missing(25, "high")], [None, None]);
        assert_eq!(missing(20_000, "inexact \u{FFFD}"), None);
    }

    /// `ALTER TYPE ... ADD ATTRIBUTE` within the WAL adds an attribute to the attributes in the names.
    #[test]
    fn attributes_of_composite_types_follow_the_log() {
        let column = |number| Column::plain(number, "c", 23, 4, 'i');
        let mut names = Names::default();
        let (oid, relation) = (20_001, 20_000);
        let of = Type {
            oid,
            kind: 'c',
            length: -1,
            align: 'd',
            relation,
            columns: vec![column(1), column(2)],
            ..Type::default()
        };
        names.add_type(5, of);
        let mut catalog = from_names(&names, 5);
        let row = Row::Attribute { relation, column: column(3) };
        catalog.set(Key::Attribute(relation, 3), Some(row));
        catalog.refresh_composites();
        assert_eq!(catalog.types.columns(oid).map(<[Column]>::len), Some(3));
    }
}
