//! Selection of tables.

use rustc_hash::FxHashSet;
use walden_format::record::RelFileLocator;
use walden_source::names::{FIRST_USER_OID, split_name};

use crate::catalog::{Catalog, Class, Row, is_large_object_catalog};
use crate::survey::Findings;

/// Tables in the user's notation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Each element of the list.
    Several(Vec<Wanted>),
    /// Each element of the list, all in the database with this name.
    InDatabase(String, Vec<Wanted>),
    /// All tables of users in a database, present and future, and large objects. Excludes materialized views,
    /// whose rows `REFRESH` computes.
    All(Database),
    /// `NAME`, `SCHEMA.NAME` or `DATABASE.SCHEMA.NAME`, quoted where SQL requires it.
    Name(String),
    /// The file of a relation.
    File(RelFileLocator),
}

/// A database of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Database {
    /// By its OID.
    Oid(u32),
    /// By its name.
    Name(String),
    /// The only database in which users have created tables.
    Only,
}

/// A hint on the notation of names, if a name contains characters that SQL would fold to lower case or
/// interpret.
pub(crate) fn spelling_hint(name: &str) -> Option<&'static str> {
    let is_special = name.contains(|c: char| c == '"' || c.is_uppercase()) || split_name(name).len() > 3;
    is_special.then_some(
        "upper and lower case count, also without quotes; a part with a dot or a quote in it is written in quotes, and a quote \
         within it twice, as in public.\"a \"\"b\"\".c\"",
    )
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Several(members) | Wanted::InDatabase(_, members) => {
                for (index, member) in members.iter().enumerate() {
                    write!(f, "{}{member}", if index == 0 { "" } else { ", " })?;
                }
                match self {
                    Wanted::InDatabase(database, _) => write!(f, " in the database {database}"),
                    _ => Ok(()),
                }
            }
            Wanted::All(Database::Oid(database)) => write!(f, "all tables of the database {database}"),
            Wanted::All(Database::Name(name)) => write!(f, "all tables of the database {name}"),
            Wanted::All(Database::Only) => f.write_str("all tables"),
            Wanted::Name(name) => f.write_str(name),
            Wanted::File(file) => file.fmt(f),
        }
    }
}

impl Wanted {
    /// The single tables or sets of tables.
    pub(crate) fn members(&self) -> &[Wanted] {
        match self {
            Wanted::Several(members) | Wanted::InDatabase(_, members) => members,
            one => std::slice::from_ref(one),
        }
    }

    /// The database's name, if it is given, also as a part of a table's name.
    pub(crate) fn database_name(&self) -> Option<String> {
        match self {
            Wanted::InDatabase(name, _) => Some(name.clone()),
            Wanted::Several(members) => members.iter().find_map(Wanted::database_name),
            Wanted::Name(name) => split_name(name).into_iter().rev().nth(2),
            Wanted::All(Database::Name(name)) => Some(name.clone()),
            Wanted::All(_) | Wanted::File(_) => None,
        }
    }

    /// The database's name, if it is given on its own.
    pub(crate) fn own_database_name(&self) -> Option<&str> {
        match self {
            Wanted::InDatabase(name, _) | Wanted::All(Database::Name(name)) => Some(name),
            _ => None,
        }
    }

    /// The database's OID, if it is known.
    pub(crate) fn database(&self) -> Option<u32> {
        match self {
            Wanted::Several(members) | Wanted::InDatabase(_, members) => {
                members.iter().find_map(Wanted::database)
            }
            Wanted::All(Database::Oid(database)) => Some(*database),
            Wanted::File(file) => Some(file.database),
            Wanted::All(_) | Wanted::Name(_) => None,
        }
    }

    /// Whether all tables of a database are selected.
    pub(crate) fn is_all(&self) -> bool {
        matches!(self, Wanted::All(_))
    }

    /// Whether a relation of a database is selected.
    pub(crate) fn is(&self, class: &Class, schema: &str) -> bool {
        // Includes partitioned tables and materialized views, but no internal or temporary relations.
        if !matches!(class.kind, 'r' | 'p' | 'm') || class.persistence == 't' {
            return false;
        }
        match self {
            Wanted::Several(members) | Wanted::InDatabase(_, members) => {
                members.iter().any(|member| member.is(class, schema))
            }
            // A rewrite fills a transient table with such a name (`pg_temp_OID`).
            Wanted::All(_) => {
                let is_users = class.oid >= FIRST_USER_OID && !class.name.starts_with("pg_temp_");
                is_users && class.kind != 'm' || is_large_object_catalog(class.oid)
            }
            Wanted::Name(name) => {
                let parts = split_name(name);
                let mut parts = parts.iter().rev();
                parts.next() == Some(&class.name)
                    && parts.next().is_none_or(|wanted| schema.is_empty() || wanted == schema)
            }
            Wanted::File(file) => class.file == file.relation,
        }
    }

    /// The kind of object with this name at the WAL's start, if it is no table.
    pub(crate) fn other_kind(&self, catalog: &Catalog) -> Option<&'static str> {
        let as_table = |class: &Class| Class { kind: 'r', persistence: 'p', ..class.clone() };
        let found = catalog.classes().find(|class| self.is(&as_table(class), catalog.schema_of(class)))?;
        Some(match found.kind {
            'v' => "a view",
            'S' => "a sequence",
            'i' | 'I' => "an index",
            'f' => "a foreign table",
            'c' => "a composite type",
            't' => "a TOAST table",
            _ if found.persistence == 't' => "a temporary table, whose rows are not in the WAL",
            _ => return None,
        })
    }

    /// Whether the selection matches tables of more than one schema at the WAL's start.
    pub(crate) fn is_ambiguous(&self, catalog: &Catalog) -> bool {
        match self {
            Wanted::Several(members) | Wanted::InDatabase(_, members) => {
                return members.iter().any(|member| member.is_ambiguous(catalog));
            }
            Wanted::All(_) => return false,
            Wanted::Name(_) | Wanted::File(_) => {}
        }
        let named = catalog.classes().filter(|class| self.is(class, catalog.schema_of(class)));
        named.map(|class| class.namespace).collect::<FxHashSet<u32>>().len() > 1
    }

    /// Returns the selected relations with their partitions, from the state at the WAL's start and the
    /// changes in the WAL.
    pub(crate) fn tables(&self, catalog: &Catalog, findings: &Findings) -> FxHashSet<u32> {
        if let Wanted::Several(members) | Wanted::InDatabase(_, members) = self {
            return members.iter().flat_map(|member| member.tables(catalog, findings)).collect();
        }
        let is = |class: &Class| self.is(class, catalog.schema_of(class));
        let mut oids: FxHashSet<u32> =
            catalog.classes().filter(|class| is(class)).map(|class| class.oid).collect();
        let rows = || findings.changes.iter().filter_map(|change| change.new.as_ref());
        // If no relation has the name or file at the start, one that gets it within the WAL counts.
        if oids.is_empty() || matches!(self, Wanted::All(_)) {
            oids.extend(rows().filter_map(|row| match row {
                Row::Class(class) if is(class) => Some(class.oid),
                _ => None,
            }));
        }
        loop {
            let before = oids.len();
            catalog.add_partitions(&mut oids);
            for row in rows() {
                if let Row::Inherits { child, parent } = row
                    && oids.contains(parent)
                {
                    oids.insert(*child);
                }
            }
            if oids.len() == before {
                return oids;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_be_spelled_otherwise_have_a_hint() {
        assert_eq!(["t", "public.t", "shop.public.t"].map(spelling_hint), [None; 3]);
        for name in ["PUBLIC.alt", "We\"ird Ta.ble", "a.b.c.d"] {
            assert!(spelling_hint(name).unwrap().contains("in quotes"), "{name}");
        }
    }
}
