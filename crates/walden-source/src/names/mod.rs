//! Names of databases, tablespaces and relations for the numbers in the WAL.
//!
//! The WAL identifies a relation by its file number, which changes when the relation is rewritten (`VACUUM
//! FULL`, `CLUSTER`, `REINDEX`, `TRUNCATE`, many `ALTER TABLE` commands). So names come from a server's
//! catalogs, from a file saved earlier, from both, and from rewrites seen in the WAL. Names of system
//! catalogs are built in.

pub mod builtin;
mod column;
mod relation;
mod saved;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_format::version::Major;

pub use self::column::{Column, Missing, Type};
pub use self::relation::{FIRST_USER_OID, Identifier, Persistence, Relation, RelationKind};

/// The tablespace `pg_default`, which databases use by default.
pub const DEFAULT_TABLESPACE: u32 = 1663;
/// The tablespace `pg_global` of the shared relations.
pub const GLOBAL_TABLESPACE: u32 = 1664;

/// The names of a cluster. Unknown objects are unresolved.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The server or file from which the names were read.
    pub origin: Origin,
    /// Problems while reading the names, for the user.
    pub notes: Vec<String>,
    /// The server's settings that concern the WAL, in the units of `pg_settings`, such as `300 s`.
    pub settings: BTreeMap<String, String>,
    version: Option<Major>,
    databases: FxHashMap<u32, Database>,
    tablespaces: FxHashMap<u32, String>,
    relations: Vec<Relation>,
    by_oid: FxHashMap<(u32, u32), usize>,
    files: FxHashMap<RelFileLocator, NamedFile>,
    /// Columns of tables, by database and OID.
    columns: FxHashMap<(u32, u32), Vec<Column>>,
    /// User-defined types, by database and OID.
    types: FxHashMap<(u32, u32), Type>,
    /// Pairs of a child table and its parent table, by database; partitions included. Files of earlier
    /// versions have no pairs.
    inherits: FxHashMap<u32, Vec<(u32, u32)>>,
    /// From the file before a rewrite to the file after it, and back.
    successors: FxHashMap<RelFileLocator, RelFileLocator>,
    predecessors: FxHashMap<RelFileLocator, RelFileLocator>,
}

/// The source of names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// The server's version string, such as `18.6`.
    pub server_version: Option<String>,
    /// The version as a number, such as 180006.
    pub server_version_num: Option<u32>,
    /// The cluster's system identifier; servers report it since 9.6.
    pub system_id: Option<u64>,
    /// When the catalogs were read, in UTC as `2026-01-31T12:00:00Z`.
    pub read_at: Option<String>,
    /// The server's insert position when the names were read.
    pub lsn: Option<Lsn>,
}

/// A database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Database {
    /// Name of the database.
    pub name: String,
    /// The tablespace of its relations without a tablespace of their own.
    pub tablespace: u32,
    /// The database's encoding, such as `UTF8` (`pg_encoding_to_char`).
    pub encoding: Option<String>,
    /// When the database's statistics were reset, in UTC (`pg_stat_database.stats_reset`).
    pub statistics_reset: Option<String>,
}

/// The relation of a file number, if it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved<'a> {
    /// The current file of a relation, according to the newest source of names.
    Current(&'a Relation),
    /// An earlier or later file of a relation that was rewritten.
    Rewritten(&'a Relation),
    /// A system catalog, found by its number only.
    BuiltIn(&'static Relation),
    /// Unknown: dropped or rewritten before the names were read, created later, or in a database that was not
    /// read.
    Unresolved,
}

/// Why reading names failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// The file cannot be read or written.
    #[error("cannot read or write names in {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: std::io::Error,
    },
    /// The file is not a file of names.
    #[error("cannot read names from {}: expected a file saved by --save-names, found {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The content that was found.
        what: String,
    },
    /// The names belong to two clusters.
    #[error("cannot add names of another cluster: expected system identifier {expected}, found {found}")]
    OtherCluster {
        /// System identifier of the existing names.
        expected: u64,
        /// System identifier of the names to add.
        found: u64,
    },
}

walden_format::diagnostics! { NamesError {
    Self::File { .. } => none,
    Self::Format { .. } => "names-format": "walden explain --names DSN --save-names FILE writes such a file",
    Self::OtherCluster { .. } => "names-other-cluster": "take the names from the server that wrote the WAL",
} }

#[derive(Clone, Copy, Debug)]
struct NamedFile {
    relation: usize,
    current: bool,
}

/// Maximum number of consecutive rewrites that are followed: reused file numbers may form a cycle.
const MAX_CHAIN: usize = 10_000;
/// Maximum number of partition levels: names from a damaged file may form a cycle.
pub const MAX_PARTITION_LEVELS: usize = 64;

impl Names {
    /// Returns only the names of the system catalogs, for a version.
    pub fn builtin(version: Option<Major>) -> Names {
        Names { version, ..Names::default() }
    }

    /// Reads names from a file written by [`Names::write`].
    ///
    /// # Errors
    /// The file cannot be read, or is not a file of names.
    pub fn load(path: &Path) -> Result<Names, NamesError> {
        saved::load(path)
    }

    /// Returns whether a file is a file of names, in any version of the format.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_saved(path: &Path) -> io::Result<bool> {
        saved::is_saved(path)
    }

    /// Writes all names as JSON.
    ///
    /// The file is one object. Its members are `walden_names` (the version of the format, 1),
    /// `server_version`, `server_version_num`, `system_identifier` (a string: JSON's numbers are not exact
    /// for some), `read_at` and `lsn` (each may be null), `settings` (an object of strings), and five arrays:
    ///
    /// - `databases`: `oid`, `name`, `tablespace`, `encoding`, `statistics_reset`.
    /// - `tablespaces`: `oid`, `name`.
    /// - `types`: the user-defined types.
    /// - `relations`: `database`, `oid`, `schema`, `name`, `kind`, `persistence`, `access_method`, `table`,
    ///   `partition_of`, `scans`, `files`, `columns`.
    /// - `inherits`: `database`, `pairs` of `inhrelid` and `inhparent`. Files of earlier versions lack it.
    ///
    /// A file of a relation is `[tablespace, database, number]`; the first file in `files` is the current
    /// file, or null if the current file is not known. `kind` and `persistence` are the letters of
    /// `pg_class`. Columns have the names of `pg_attribute`. Readers ignore unknown members.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        saved::write(self, out)
    }

    /// Sets the version that wrote the WAL, for the names of system catalogs.
    pub fn set_version(&mut self, version: Major) {
        self.version = Some(version);
    }

    /// Adds names that were read later than `self`. The later names take precedence; old files and dropped
    /// relations are kept.
    ///
    /// # Errors
    /// Both have a system identifier and they differ. Nothing is changed in that case.
    pub fn merge(&mut self, newer: Names) -> Result<(), NamesError> {
        if let (Some(expected), Some(found)) = (self.origin.system_id, newer.origin.system_id)
            && expected != found
        {
            return Err(NamesError::OtherCluster { expected, found });
        }
        for file in self.files.values_mut() {
            // A relation that was not read this time, because its database refused the connection, keeps its
            // file.
            let relation = &self.relations[file.relation];
            file.current &= !newer.by_oid.contains_key(&(relation.database, relation.oid));
        }
        let Names {
            origin,
            notes,
            settings,
            version,
            databases,
            tablespaces,
            relations,
            by_oid: _,
            files,
            columns,
            types,
            inherits,
            ..
        } = newer;
        self.settings.extend(settings);
        self.origin = Origin {
            server_version: origin.server_version.or(self.origin.server_version.take()),
            server_version_num: origin.server_version_num.or(self.origin.server_version_num),
            system_id: origin.system_id.or(self.origin.system_id),
            read_at: origin.read_at.or(self.origin.read_at.take()),
            lsn: origin.lsn.or(self.origin.lsn),
        };
        self.notes.extend(notes);
        self.version = version.or(self.version);
        self.databases.extend(databases);
        self.tablespaces.extend(tablespaces);
        self.columns.extend(columns);
        self.types.extend(types);
        self.inherits.extend(inherits);
        let moved: Vec<usize> = relations.into_iter().map(|relation| self.add_relation(relation)).collect();
        for (locator, file) in files {
            self.files.insert(locator, NamedFile { relation: moved[file.relation], current: file.current });
        }
        for (old, new) in newer.successors {
            self.learn_rewrite(old, new);
        }
        Ok(())
    }

    /// Returns the inheritance pairs of a database, `inhrelid` and `inhparent`, or `None` if they are not
    /// known.
    pub fn inherits(&self, database: u32) -> Option<&[(u32, u32)]> {
        self.inherits.get(&database).map(Vec::as_slice)
    }

    /// Sets the inheritance pairs of a database, `inhrelid` and `inhparent`.
    pub fn set_inherits(&mut self, database: u32, pairs: Vec<(u32, u32)>) {
        self.inherits.insert(database, pairs);
    }

    /// Adds a database.
    pub fn add_database(&mut self, oid: u32, database: Database) {
        self.databases.insert(oid, database);
    }

    /// Adds a tablespace.
    pub fn add_tablespace(&mut self, oid: u32, name: &str) {
        self.tablespaces.insert(oid, name.to_owned());
    }

    /// Adds a relation, and its file if it has one.
    pub fn add(&mut self, relation: Relation, file: Option<RelFileLocator>) {
        let relation = self.add_relation(relation);
        if let Some(file) = file {
            self.files.insert(file, NamedFile { relation, current: true });
        }
    }

    /// Sets the columns of a table.
    pub fn set_columns(&mut self, database: u32, table: u32, columns: Vec<Column>) {
        self.columns.insert((database, table), columns);
    }

    /// Returns the columns of a table in order of `attnum`, including dropped columns, or `None` if the
    /// columns are not known.
    pub fn columns(&self, database: u32, table: u32) -> Option<&[Column]> {
        self.columns.get(&(database, table)).map(Vec::as_slice)
    }

    /// Returns whether the columns of a database's tables are known.
    pub fn has_columns(&self, database: u32) -> bool {
        self.columns.keys().any(|(of, _)| *of == database)
    }

    /// Adds a user-defined type.
    pub fn add_type(&mut self, database: u32, added: Type) {
        self.types.insert((database, added.oid), added);
    }

    /// Adds the label of an enum's value to its type.
    pub fn add_label(&mut self, database: u32, of: u32, value: u32, label: &str) {
        if let Some(found) = self.types.get_mut(&(database, of)) {
            found.labels.push((value, label.to_owned()));
        }
    }

    /// Returns the user-defined types in a database.
    pub fn types(&self, database: u32) -> impl Iterator<Item = &Type> {
        self.types.iter().filter(move |((of, _), _)| *of == database).map(|(_, found)| found)
    }

    /// Adds a rewrite of a relation from the file `old` to the file `new`. A name of either file then applies
    /// to both.
    pub fn learn_rewrite(&mut self, old: RelFileLocator, new: RelFileLocator) {
        if old != new {
            self.successors.insert(old, new);
            self.predecessors.insert(new, old);
        }
    }

    /// Returns the relation of a file.
    pub fn resolve(&self, file: RelFileLocator) -> Resolved<'_> {
        let direct = self.resolve_directly(file);
        if direct != Resolved::Unresolved {
            return direct;
        }
        for links in [&self.successors, &self.predecessors] {
            let mut next = links.get(&file);
            for _ in 0..MAX_CHAIN {
                let Some(file) = next else { break };
                match self.resolve_directly(*file) {
                    Resolved::Current(relation) | Resolved::Rewritten(relation) => {
                        return Resolved::Rewritten(relation);
                    }
                    Resolved::BuiltIn(relation) => return Resolved::BuiltIn(relation),
                    Resolved::Unresolved => next = links.get(file),
                }
            }
        }
        Resolved::Unresolved
    }

    fn resolve_directly(&self, file: RelFileLocator) -> Resolved<'_> {
        if let Some(named) = self.files.get(&file) {
            let relation = &self.relations[named.relation];
            return if named.current { Resolved::Current(relation) } else { Resolved::Rewritten(relation) };
        }
        builtin::by_file(file, self.version).map_or(Resolved::Unresolved, Resolved::BuiltIn)
    }

    /// Returns the files of the relations with a name ([`Names::named`]). The flag is set for the current
    /// file of a relation. Sorted by file.
    pub fn files_of(&self, name: &str) -> Vec<(RelFileLocator, &Relation, bool)> {
        let named = self.named(name);
        let files = self.files.iter().map(|(file, of)| (*file, &self.relations[of.relation], of.current));
        let mut found: Vec<_> = files.filter(|(_, relation, _)| named.contains(relation)).collect();
        found.sort_unstable_by_key(|(file, _, _)| *file);
        found
    }

    /// Returns the relations with a name, also those without a file.
    ///
    /// `name` is `NAME`, `SCHEMA.NAME` or `DATABASE.SCHEMA.NAME`, in quotes where SQL needs them, or the same
    /// after `DATABASE: `, as reports print names of several databases.
    pub fn named(&self, name: &str) -> Vec<&Relation> {
        let labels = name.match_indices(": ").map(|(at, _)| (Some(&name[..at]), &name[at + 2..]));
        let mut found = std::iter::once((None, name)).chain(labels);
        let found = found.find_map(|(database, name)| {
            let found = self.named_by(database, &split_name(name));
            (!found.is_empty()).then_some(found)
        });
        found.unwrap_or_default()
    }

    fn named_by(&self, in_database: Option<&str>, parts: &[String]) -> Vec<&Relation> {
        let Some((last, above)) = parts.split_last() else { return Vec::new() };
        let in_database = above.iter().rev().nth(1).map(String::as_str).or(in_database);
        let fits = |relation: &&Relation| {
            let database = || self.databases.get(&relation.database).map(|database| database.name.as_str());
            relation.name == *last
                && above.last().is_none_or(|schema| relation.schema == *schema)
                && in_database.is_none_or(|wanted| {
                    database() == Some(wanted) || wanted == format!("database {}", relation.database)
                })
                && above.len() <= 2
        };
        self.relations.iter().filter(fits).collect()
    }

    /// Returns whether a relation is a part of a partitioned table or index, at any level, or is it itself.
    pub fn is_within(&self, relation: &Relation, partitioned: &Relation) -> bool {
        let parent = |one: &&Relation| self.by_oid(relation.database, one.partition_of?);
        let mut levels = std::iter::successors(Some(relation), parent).take(MAX_PARTITION_LEVELS);
        levels.any(|one| one.oid == partitioned.oid && one.database == partitioned.database)
    }

    /// Returns every file with the relation to which it belongs or belonged.
    pub fn files(&self) -> impl Iterator<Item = (RelFileLocator, &Relation)> {
        self.files.iter().map(|(file, named)| (*file, &self.relations[named.relation]))
    }

    /// Returns the relation with this OID in a database; a shared relation is found with any database.
    pub fn by_oid(&self, database: u32, oid: u32) -> Option<&Relation> {
        let known = self.by_oid.get(&(database, oid)).or_else(|| self.by_oid.get(&(0, oid)));
        let builtin = || {
            let of = |database| builtin::by_oid(database, oid, self.version);
            of(database).or_else(|| of(0))
        };
        known.map(|index| &self.relations[*index]).or_else(builtin)
    }

    /// Returns the table that owns a relation (an index, a TOAST table or its index), or the relation itself.
    ///
    /// `database` is the one in the WAL; built-in names exist in every database.
    pub fn table_of<'a>(&'a self, database: u32, relation: &'a Relation) -> &'a Relation {
        relation.table.and_then(|table| self.by_oid(database, table)).unwrap_or(relation)
    }

    /// Returns a database.
    pub fn database(&self, oid: u32) -> Option<&Database> {
        self.databases.get(&oid)
    }

    /// Returns a tablespace's name.
    pub fn tablespace(&self, oid: u32) -> Option<&str> {
        let builtin = || match oid {
            DEFAULT_TABLESPACE => Some("pg_default"),
            GLOBAL_TABLESPACE => Some("pg_global"),
            _ => None,
        };
        self.tablespaces.get(&oid).map(String::as_str).or_else(builtin)
    }

    /// Returns all relations from servers or files, in no order.
    pub fn relations(&self) -> impl Iterator<Item = &Relation> {
        self.by_oid.values().map(|index| &self.relations[*index])
    }

    fn add_relation(&mut self, relation: Relation) -> usize {
        let key = (relation.database, relation.oid);
        match self.by_oid.get(&key) {
            Some(index) if self.relations[*index].kind == relation.kind => {
                self.relations[*index] = relation;
                *index
            }
            // The OID of a dropped relation was reused. The old files keep the old name.
            _ => {
                let index = self.relations.len();
                self.relations.push(relation);
                self.by_oid.insert(key, index);
                index
            }
        }
    }
}

/// Splits a qualified name. In quotes, dots are ordinary characters and a doubled quote is one quote.
pub fn split_name(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_quoted = false;
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let part = parts.last_mut().expect("there is always a part");
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => part.extend(chars.next()),
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => parts.push(String::new()),
            c => part.push(c),
        }
    }
    parts
}

impl<'a> Resolved<'a> {
    /// Returns the relation, if there is one.
    pub fn relation(self) -> Option<&'a Relation> {
        match self {
            Resolved::Current(relation) | Resolved::Rewritten(relation) | Resolved::BuiltIn(relation) => {
                Some(relation)
            }
            Resolved::Unresolved => None,
        }
    }
}
