//! The tables, columns and types of a database at a position in the WAL.
//!
//! The state at the WAL's start comes from a base backup's catalogs or from saved names. From there on it
//! follows the changes of catalog rows in the WAL.

mod base;
mod large_objects;
mod layout;
mod names;
mod row;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::record::RelFileLocator;
use walden_source::names::{Column, DEFAULT_TABLESPACE, Type};

pub(crate) use self::base::{By, DatabaseRow, Loaded, Version, database_rows, databases, load, mappings};
pub use self::large_objects::is_large_object_catalog;
pub(crate) use self::large_objects::{PG_LARGEOBJECT, PG_LARGEOBJECT_METADATA};
pub(crate) use self::layout::{Layout, layouts, name};
pub(crate) use self::names::{FIRST_MADE, catalog_files, former_files, from_names};
pub(crate) use self::row::{
    Class, DISTINCT_CATALOGS, Key, OTHER_CATALOGS, Row, TypeUpdate, is_likely_row, read, type_update,
    type_version,
};
use crate::change::Table;
use crate::encoding::Encoding;
use crate::types::Types;

/// Schemas that initdb creates (`pg_namespace.dat`).
const INITIAL_SCHEMAS: [(u32, &str); 3] = [(11, "pg_catalog"), (99, "pg_toast"), (2200, "public")];
/// Maximum number of partition levels.
const MAX_PARTITION_DEPTH: usize = 64;

/// The rows of the catalogs at a position in the WAL.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    pub database: u32,
    /// The database's default tablespace.
    pub tablespace: u32,
    /// The database's default tablespaces before or after the database is moved.
    pub other_tablespaces: Vec<u32>,
    rows: FxHashMap<Key, Row>,
    pub types: Types,
    /// Composite types whose columns may have changed, by their relations.
    composites: FxHashMap<u32, u32>,
    /// Schemas of relations from the names, for relations whose rows in the WAL contain only the schema's
    /// OID.
    pub schemas_by_names: FxHashMap<u32, String>,
    stale: FxHashSet<u32>,
}

impl Catalog {
    pub fn new(database: u32, tablespace: Option<u32>, encoding: Encoding) -> Catalog {
        let tablespace = tablespace.unwrap_or(DEFAULT_TABLESPACE);
        let types = Types::for_encoding(encoding);
        Catalog { database, tablespace, types, ..Catalog::default() }
    }

    /// Inserts or replaces the row with a key, or removes it. Returns the previous row.
    ///
    /// Names do not contain schemas' OIDs. If the schema of a row from the WAL is unknown, the relation keeps
    /// its current one.
    pub fn set(&mut self, key: Key, row: Option<Row>) -> Option<Row> {
        let row = row.map(|row| self.with_schema(row));
        self.update_types(key, row.as_ref());
        match row {
            Some(row) => self.rows.insert(key, row),
            None => self.rows.remove(&key),
        }
    }

    fn with_schema(&self, mut row: Row) -> Row {
        let is_known = |namespace: u32| self.rows.contains_key(&Key::Namespace(namespace));
        let before = self.rows.get(&row.key());
        match (&mut row, before) {
            (Row::Class(Class { namespace, .. }), Some(Row::Class(before))) if !is_known(*namespace) => {
                *namespace = before.namespace;
            }
            (Row::Type { namespace, .. }, Some(Row::Type { namespace: before, .. }))
                if !is_known(*namespace) =>
            {
                *namespace = *before;
            }
            _ => {}
        }
        row
    }

    pub fn get(&self, key: Key) -> Option<&Row> {
        self.rows.get(&key)
    }

    pub fn class(&self, oid: u32) -> Option<&Class> {
        match self.rows.get(&Key::Class(oid)) {
            Some(Row::Class(class)) => Some(class),
            _ => None,
        }
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    pub fn classes(&self) -> impl Iterator<Item = &Class> {
        self.rows.values().filter_map(|row| match row {
            Row::Class(class) => Some(class),
            _ => None,
        })
    }

    /// The name of a schema; empty if unknown.
    pub fn schema(&self, namespace: u32) -> &str {
        match self.rows.get(&Key::Namespace(namespace)) {
            Some(Row::Namespace { name, .. }) => name,
            // Names do not contain schemas' OIDs, but initdb's schemas have fixed OIDs.
            _ => INITIAL_SCHEMAS.iter().find(|(oid, _)| *oid == namespace).map_or("", |(_, name)| name),
        }
    }

    /// The name of a relation's schema; empty if unknown.
    pub fn schema_of(&self, class: &Class) -> &str {
        match self.schema(class.namespace) {
            "" => self.schemas_by_names.get(&class.oid).map_or("", String::as_str),
            known => known,
        }
    }

    /// The file of a relation; `None` if it has none or is mapped.
    pub fn file(&self, class: &Class) -> Option<RelFileLocator> {
        let tablespace = if class.tablespace == 0 { self.tablespace } else { class.tablespace };
        (class.file != 0).then_some(RelFileLocator {
            tablespace,
            database: self.database,
            relation: class.file,
        })
    }

    /// All files of a relation while its file has this number: in a database that is moved, the tablespace
    /// changes.
    pub fn files(&self, class: &Class) -> Vec<RelFileLocator> {
        let Some(file) = self.file(class) else { return Vec::new() };
        let mut files = vec![file];
        if file.tablespace == self.tablespace || self.other_tablespaces.contains(&file.tablespace) {
            let others = self.other_tablespaces.iter().chain([&self.tablespace]);
            let others = others.filter(|&&tablespace| tablespace != file.tablespace);
            files.extend(others.map(|&tablespace| RelFileLocator { tablespace, ..file }));
        }
        files
    }

    /// Adds descendants of relations: partitions and their partitions.
    pub fn add_partitions(&self, oids: &mut FxHashSet<u32>) {
        for _ in 0..MAX_PARTITION_DEPTH {
            let before = oids.len();
            for row in self.rows.values() {
                if let Row::Inherits { child, parent } = row
                    && oids.contains(parent)
                {
                    oids.insert(*child);
                }
            }
            if oids.len() == before {
                return;
            }
        }
    }

    /// Returns a table with its columns, which may be none; `None` if it does not exist.
    pub fn table(&mut self, oid: u32) -> Option<Table> {
        self.refresh_composites();
        let class = self.class(oid)?.clone();
        let mut columns = self.columns(oid);
        for row in self.rows.values() {
            if let Row::Index { table, columns: key, .. } = row
                && *table == oid
            {
                columns.iter_mut().for_each(|column| column.is_key |= key.contains(&column.number));
            }
        }
        let schema = self.schema_of(&class).to_owned();
        Some(Table::new(oid, self.database, schema, class.name, columns))
    }

    /// The columns of a relation, starting with the first, up to a gap.
    fn columns(&self, relation: u32) -> Vec<Column> {
        let column = |number| match self.rows.get(&Key::Attribute(relation, number)) {
            Some(Row::Attribute { column, .. }) => Some(column.clone()),
            _ => None,
        };
        (1..=i16::MAX).map_while(column).collect()
    }

    fn update_types(&mut self, key: Key, new: Option<&Row>) {
        match (key, new) {
            (Key::Type(oid), Some(Row::Type { of, namespace })) => {
                let schema = self.schema(*namespace).to_owned();
                let before = self.types.get(oid);
                let (labels, columns, subtype) = before
                    .map(|before| (before.labels.clone(), before.columns.clone(), before.subtype))
                    .unwrap_or((of.labels.clone(), of.columns.clone(), of.subtype));
                if of.kind == 'c' {
                    self.composites.insert(of.relation, oid);
                    self.stale.insert(of.relation);
                }
                self.types.set(oid, Some(Type { schema, labels, columns, subtype, ..of.clone() }));
            }
            (Key::Type(oid), _) => drop(self.types.set(oid, None)),
            (Key::Enum(oid), new) => {
                let of = match (new, self.rows.get(&key)) {
                    (Some(Row::Enum { of, .. }), _) | (None, Some(Row::Enum { of, .. })) => *of,
                    _ => return,
                };
                let Some(found) = self.types.get_mut(of) else { return };
                found.labels.retain(|(label, _)| *label != oid);
                if let Some(Row::Enum { label, .. }) = new {
                    found.labels.push((oid, label.clone()));
                }
            }
            (Key::Range(_), Some(Row::Range { of, subtype, multirange })) => {
                for oid in [*of, *multirange] {
                    if let Some(found) = self.types.get_mut(oid) {
                        found.subtype = *subtype;
                    }
                }
            }
            (Key::Attribute(relation, _), _) if self.composites.contains_key(&relation) => {
                self.stale.insert(relation);
            }
            _ => {}
        }
    }

    /// The composite type whose attributes belong to a relation.
    pub fn composite(&self, relation: u32) -> Option<u32> {
        self.composites.get(&relation).copied()
    }

    /// Updates the columns of composite types that have changed.
    pub fn refresh_composites(&mut self) {
        for relation in std::mem::take(&mut self.stale) {
            let columns = self.columns(relation);
            let found = self.composites.get(&relation).and_then(|oid| self.types.get_mut(*oid));
            if let Some(found) = found.filter(|_| !columns.is_empty()) {
                found.columns = columns;
            }
        }
    }

    /// Resolves rows that were added before the types they belong to: labels and bounds.
    pub fn settle(&mut self) {
        let late: Vec<(Key, Row)> = self
            .rows
            .iter()
            .filter(|(key, _)| matches!(key, Key::Enum(_) | Key::Range(_)))
            .map(|(key, row)| (*key, row.clone()))
            .collect();
        for (key, row) in late {
            self.update_types(key, Some(&row));
        }
        let types: Vec<(u32, u32)> = self
            .rows
            .values()
            .filter_map(|row| match row {
                Row::Type { of, namespace } => Some((of.oid, *namespace)),
                _ => None,
            })
            .collect();
        for (oid, namespace) in types {
            let schema = self.schema(namespace).to_owned();
            if let Some(found) = self.types.get_mut(oid).filter(|_| !schema.is_empty()) {
                found.schema = schema;
            }
        }
    }
}
