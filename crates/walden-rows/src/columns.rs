//! The columns of tables across the WAL, for readers that need a single set.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::{Catalog, Key, Row};
use crate::change::is_shown;
use crate::types::Kind;

/// A column by name, with each type that columns of this name have in the WAL: several if partitions differ,
/// or after an `ALTER TABLE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypedColumn {
    /// Name of the column.
    pub name: String,
    /// Distinct types of the column; at least one.
    pub types: Vec<ColumnType>,
}

/// A type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnType {
    /// OID of the built-in type, or of a domain's base type; `None` for enums, arrays and others.
    pub builtin: Option<u32>,
    /// `atttypmod`; for a domain, the `typtypmod` of the domain over the base type.
    pub typmod: i32,
}

/// Collects the columns of tables from the state at the WAL's start and from later rows.
pub(crate) fn union<'r>(
    catalog: &Catalog,
    tables: &FxHashSet<u32>,
    later: impl Iterator<Item = &'r Row>,
) -> Vec<TypedColumn> {
    let mut tables: Vec<u32> = tables.iter().copied().collect();
    // A partitioned table is older than its partitions.
    tables.sort_unstable();
    let mut union = Union::default();
    let of_table =
        |relation: u32| (1..=i16::MAX).map_while(move |number| catalog.get(Key::Attribute(relation, number)));
    tables.iter().flat_map(|table| of_table(*table)).for_each(|row| union.add(catalog, row));
    let is_theirs =
        |row: &&Row| matches!(row, Row::Attribute { relation, .. } if tables.binary_search(relation).is_ok());
    later.filter(is_theirs).for_each(|row| union.add(catalog, row));
    union.columns
}

#[derive(Default)]
struct Union {
    columns: Vec<TypedColumn>,
    places: FxHashMap<String, usize>,
}

impl Union {
    fn add(&mut self, catalog: &Catalog, row: &Row) {
        let Row::Attribute { column, .. } = row else { return };
        if !is_shown(column) {
            return;
        }
        let builtin = match catalog.types.kind(column.type_oid) {
            Kind::Base(oid) => Some(oid),
            _ => None,
        };
        let of = ColumnType { builtin, typmod: catalog.types.typmod(column.type_oid, column.typmod) };
        match self.places.get(&column.name) {
            Some(&place) => {
                let types = &mut self.columns[place].types;
                if !types.contains(&of) {
                    types.push(of);
                }
            }
            None => {
                self.places.insert(column.name.clone(), self.columns.len());
                self.columns.push(TypedColumn { name: column.name.clone(), types: vec![of] });
            }
        }
    }
}
