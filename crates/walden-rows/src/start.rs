//! The state of the catalogs at the WAL's start.

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_source::datadir::DataDir;
use walden_source::names::{DEFAULT_TABLESPACE, Names};

use crate::RowsError;
use crate::catalog::{self, By, Catalog, DatabaseRow, Key, Layout, Loaded, Row, Version};
use crate::change::Outcome;
use crate::select::Wanted;
use crate::survey::Findings;

/// The source of the state.
#[derive(Debug)]
pub(crate) enum Start {
    /// A base backup's catalogs, in their state when the files were copied.
    Base { database: u32, loaded: Loaded },
    /// Names of a server at a position.
    Names {
        catalog: Box<Catalog>,
        files: FxHashMap<u32, RelFileLocator>,
        /// Files of catalogs from earlier saved names.
        former: Vec<(RelFileLocator, u32)>,
        at: Option<Lsn>,
    },
}

/// Catalog changes that a transaction made before the WAL's start and committed within the WAL.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub inserted: FxHashMap<u32, Vec<Row>>,
    pub deleted: FxHashMap<u32, Vec<Row>>,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.inserted.is_empty() && self.deleted.is_empty()
    }
}

impl Start {
    /// Reads the catalogs of the base backup's database that contains the wanted table; includes columns of
    /// some other tables.
    pub fn from_base(
        path: &Path,
        wanted: &Wanted,
        also: &FxHashSet<u32>,
        layouts: &FxHashMap<u32, Layout>,
    ) -> Result<Start, RowsError> {
        let failed = |error| RowsError::Base { path: path.into(), error };
        let mut data = DataDir::open(path)?;
        let mut databases = catalog::databases(path).map_err(failed)?;
        if let Some(wanted) = wanted.database() {
            databases.retain(|(database, _)| *database == wanted);
        }
        let rows = catalog::database_rows(&mut data).map_err(failed)?;
        if let Some(name) = wanted.database_name() {
            databases.retain(|(database, _)| rows.get(database).is_some_and(|row| row.name == name));
        }
        if let Some(name) = wanted.own_database_name().filter(|_| databases.is_empty()) {
            return Err(RowsError::NoDatabase(name.to_owned()));
        }
        let (mut found, mut others) = (Vec::new(), Vec::new());
        for (database, tablespace) in databases {
            let mut selection = Selection::new(wanted, also);
            let encoding = rows.get(&database).map(|row| row.encoding).unwrap_or_default();
            let keeps = |row: &Row, versions: &[Version]| selection.keeps(row, versions);
            let loaded = catalog::load(&mut data, (database, tablespace), layouts, encoding, keeps);
            let start = Start::Base { database, loaded: loaded.map_err(failed)? };
            if selection.has_any { found.push(start) } else { others.push(start) }
        }
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => later(others, &rows).ok_or_else(|| RowsError::NoTable(wanted.to_string())),
            _ => {
                let names = found.iter().map(|start| match start {
                    Start::Base { database, .. } => rows.get(database).map_or("", |row| &row.name),
                    Start::Names { .. } => "",
                });
                Err(ambiguous(wanted, names))
            }
        }
    }

    /// Selects the database that contains the wanted table from names.
    pub fn from_names(names: &Names, wanted: &Wanted) -> Result<Start, RowsError> {
        let database_name = wanted.database_name();
        let mut databases: Vec<u32> = match wanted.database() {
            Some(database) => vec![database],
            None => databases_of_tables(names, wanted),
        };
        if let Some(wanted) = wanted.own_database_name() {
            databases.retain(|oid| names.database(*oid).is_some_and(|known| known.name == wanted));
        }
        // The name may be from before a table was renamed, or one that a table gets within the WAL.
        if databases.is_empty() {
            databases = databases_of_names(names, database_name.as_deref());
        }
        databases.sort_unstable();
        databases.dedup();
        let database = match databases.as_slice() {
            [database] => *database,
            [] => {
                return Err(match wanted.own_database_name() {
                    Some(name) => RowsError::NoDatabase(name.to_owned()),
                    None => RowsError::NoTable(wanted.to_string()),
                });
            }
            several => {
                let name = |oid: &u32| names.database(*oid).map_or("", |database| database.name.as_str());
                return Err(ambiguous(wanted, several.iter().map(name)));
            }
        };
        let catalog = catalog::from_names(names, database);
        let default_tablespace =
            names.database(database).map_or(DEFAULT_TABLESPACE, |known| known.tablespace);
        let files = catalog::catalog_files(names, database, default_tablespace);
        let former = catalog::former_files(names, database, &files);
        Ok(Start::Names { catalog: Box::new(catalog), files, former, at: names.origin.lsn })
    }

    /// The files of the catalogs, by OID.
    pub fn catalog_files(&self) -> &FxHashMap<u32, RelFileLocator> {
        match self {
            Start::Base { loaded, .. } => &loaded.files,
            Start::Names { files, .. } => files,
        }
    }

    /// Returns the files that initdb assigns to the catalogs, and the files in earlier names. Names from
    /// after a rewrite contain only the new files.
    pub fn earlier_files(&self, rough: &Catalog) -> Vec<(RelFileLocator, u32)> {
        let Start::Names { files, former, .. } = self else { return Vec::new() };
        let (tablespace, database) = (rough.tablespace, rough.database);
        let initial = files.keys().map(|&oid| (RelFileLocator { tablespace, database, relation: oid }, oid));
        initial.chain(former.iter().copied()).collect()
    }

    /// Catalogs that may have been rewritten between the WAL, which starts at `start`, and the time of the
    /// names. A catalog in the file that initdb assigned was never rewritten, unless the names are older than
    /// the WAL.
    pub fn uncertain_catalogs(&self, start: Lsn) -> FxHashSet<u32> {
        let Start::Names { files, at, .. } = self else { return FxHashSet::default() };
        let are_older = at.is_some_and(|at| at < start);
        let was_moved = |catalog: &u32| files.get(catalog).is_some_and(|file| file.relation != *catalog);
        // For all other catalogs, most WAL after older names contains no record, so a search for their
        // records would never end early.
        let others = catalog::OTHER_CATALOGS.into_iter().filter(was_moved);
        let distinct = catalog::DISTINCT_CATALOGS.into_iter();
        distinct.filter(|catalog| are_older || was_moved(catalog)).chain(others).collect()
    }

    /// The rows that were valid when the files were copied, or the names were read.
    pub fn rough(&self) -> Catalog {
        match self {
            Start::Names { catalog, .. } => Catalog::clone(catalog),
            Start::Base { database, loaded } => {
                let mut catalog = Catalog::new(*database, Some(loaded.tablespace), loaded.encoding);
                for version in loaded.versions.iter().filter(|version| version.is_current()) {
                    catalog.set(version.row.key(), Some(version.row.clone()));
                }
                catalog
            }
        }
    }

    /// Transactions in the row versions of the base backup's catalogs.
    pub fn transactions(&self) -> FxHashSet<u32> {
        let Start::Base { loaded, .. } = self else { return FxHashSet::default() };
        let of = |by: By| match by {
            By::Transaction { xid, .. } => Some(xid),
            _ => None,
        };
        loaded
            .versions
            .iter()
            .flat_map(|version| [of(version.inserted), of(version.deleted)])
            .flatten()
            .collect()
    }

    /// The state at the WAL's start.
    pub fn settle(self, findings: &Findings) -> (Catalog, Pending) {
        match self {
            Start::Base { database, loaded } => settle_base(database, loaded, findings),
            Start::Names { mut catalog, at, .. } => {
                roll_back(&mut catalog, at, findings);
                catalog.settle();
                (*catalog, Pending::default())
            }
        }
    }
}

/// The error for a selection that matches several databases.
fn ambiguous<'n>(wanted: &Wanted, databases: impl Iterator<Item = &'n str>) -> RowsError {
    match wanted {
        Wanted::All(_) => RowsError::SeveralDatabases(databases.collect::<Vec<_>>().join(", ")),
        _ => RowsError::Ambiguous(wanted.to_string()),
    }
}

/// Whether the names contain a table of the given name. A file number may belong to any relation.
pub(crate) fn is_in_names(names: &Names, wanted: &Wanted) -> bool {
    !databases_of_tables(names, wanted).is_empty()
}

/// Whether the names contain a database with this name.
pub(crate) fn is_database_in_names(names: &Names, name: &str) -> bool {
    !databases_of_names(names, Some(name)).is_empty()
}

/// The databases of the names that contain one of the wanted tables, for those selected by name.
fn databases_of_tables(names: &Names, wanted: &Wanted) -> Vec<u32> {
    let database_name = wanted.database_name();
    let of = |member: &Wanted| match member {
        Wanted::Name(name) => databases_with(names, name, database_name.as_deref()),
        _ => Vec::new(),
    };
    wanted.members().iter().flat_map(of).collect()
}

/// The databases of the names that contain a table with this name.
fn databases_with(names: &Names, name: &str, database_name: Option<&str>) -> Vec<u32> {
    let parts = walden_source::names::split_name(name);
    let fits = |relation: &&walden_source::names::Relation| {
        let mut parts = parts.iter().rev();
        parts.next() == Some(&relation.name)
            && parts.next().is_none_or(|schema| *schema == relation.schema)
            && matches!(relation.kind.letter(), 'r' | 'p' | 'm')
            // Every database contains these.
            && !catalog::is_large_object_catalog(relation.oid)
    };
    let is_meant = |oid: &u32| {
        database_name
            .is_none_or(|wanted| names.database(*oid).is_some_and(|database| database.name == wanted))
    };
    names.relations().filter(fits).map(|relation| relation.database).filter(is_meant).collect()
}

/// Candidate databases for a table whose name no relation has: the databases with users' relations, if there
/// are any.
fn databases_of_names(names: &Names, wanted: Option<&str>) -> Vec<u32> {
    let is_meant = |database: u32| {
        database != 0
            && wanted.is_none_or(|wanted| names.database(database).is_some_and(|known| known.name == wanted))
    };
    let of = |is: &dyn Fn(u32) -> bool| -> Vec<u32> {
        let relations = names.relations().filter(|relation| is(relation.oid) && is_meant(relation.database));
        relations.map(|relation| relation.database).collect::<FxHashSet<u32>>().into_iter().collect()
    };
    let all = of(&|_| true);
    if all.len() > 1 { of(&|oid| oid >= walden_source::names::FIRST_USER_OID) } else { all }
}

/// The database in which a table missing in the backup is created later: the only database, or the only one
/// of users.
fn later(mut databases: Vec<Start>, rows: &FxHashMap<u32, DatabaseRow>) -> Option<Start> {
    let name = |start: &Start| match start {
        Start::Base { database, .. } => rows.get(database).map_or("", |row| &row.name),
        Start::Names { .. } => "",
    };
    if databases.len() > 1 {
        let is_users = |start: &Start| !matches!(name(start), "postgres" | "template0" | "template1");
        let has_users = databases.iter().any(is_users);
        databases.retain(|start| if has_users { is_users(start) } else { name(start) == "postgres" });
    }
    if databases.len() == 1 { databases.pop() } else { None }
}

fn settle_base(database: u32, loaded: Loaded, findings: &Findings) -> (Catalog, Pending) {
    let mut catalog = Catalog::new(database, Some(loaded.tablespace), loaded.encoding);
    let mut pending = Pending::default();
    // Whether the row version was so at the WAL's start, and which transaction in the WAL makes it so.
    let verdict = |by: By| match by {
        By::Nobody => (false, None),
        By::Frozen => (true, None),
        By::Transaction { xid, committed } => match findings.outcome(xid) {
            Outcome::Unfinished => (committed, None),
            Outcome::Committed { .. } => (false, Some(xid)),
            Outcome::Aborted { .. } => (false, None),
        },
    };
    for Version { row, inserted, deleted } in loaded.versions {
        let ((is_there, coming), (is_gone, going)) = (verdict(inserted), verdict(deleted));
        // A row version that one transaction created and deleted, perhaps in two of its subtransactions, was
        // never valid.
        let top = |xid: Option<u32>| xid.map(|xid| findings.top(xid));
        if coming.is_some() && top(coming) == top(going) || is_gone {
            continue;
        }
        if let Some(xid) = coming {
            pending.inserted.entry(xid).or_default().push(row.clone());
        }
        if let Some(xid) = going {
            pending.deleted.entry(xid).or_default().push(row.clone());
        }
        if is_there {
            catalog.set(row.key(), Some(row));
        }
    }
    catalog.settle();
    (catalog, pending)
}

/// Reverts changes of the catalogs in the WAL from before the names were read.
fn roll_back(catalog: &mut Catalog, at: Option<Lsn>, findings: &Findings) {
    let is_before = |lsn: Lsn| at.is_none_or(|at| lsn < at);
    for change in findings.changes.iter().rev().filter(|change| is_before(change.lsn)) {
        let Outcome::Committed { lsn, .. } = findings.outcome(change.xid) else { continue };
        if !is_before(lsn) || change.is_old_unknown {
            continue;
        }
        catalog.set(change.key, change.old.clone());
    }
}

/// Selects rows of a base backup: the rows of all relations, but the columns only of relevant relations.
struct Selection<'w> {
    wanted: &'w Wanted,
    /// Other relations whose columns are kept.
    also: &'w FxHashSet<u32>,
    columns_of: Option<FxHashSet<u32>>,
    has_any: bool,
}

impl<'w> Selection<'w> {
    fn new(wanted: &'w Wanted, also: &'w FxHashSet<u32>) -> Selection<'w> {
        Selection { wanted, also, columns_of: None, has_any: false }
    }

    fn keeps(&mut self, row: &Row, versions: &[Version]) -> bool {
        match row {
            Row::Attribute { relation, .. } => {
                if self.columns_of.is_none() {
                    self.columns_of = Some(self.choose(versions));
                }
                self.columns_of.as_ref().is_some_and(|oids| oids.contains(relation))
            }
            Row::Index { table, .. } => self.columns_of.as_ref().is_some_and(|oids| oids.contains(table)),
            _ => true,
        }
    }

    /// Returns the relations whose columns are relevant: the wanted relations, their partitions, composite
    /// types.
    fn choose(&mut self, versions: &[Version]) -> FxHashSet<u32> {
        let mut catalog = Catalog::default();
        for version in versions {
            if matches!(version.row.key(), Key::Namespace(_) | Key::Inherits(..)) {
                catalog.set(version.row.key(), Some(version.row.clone()));
            }
        }
        let mut oids = self.also.clone();
        for version in versions {
            if let Row::Class(class) = &version.row
                && self.wanted.is(class, catalog.schema_of(class))
            {
                oids.insert(class.oid);
                // Every database contains these.
                self.has_any |= version.is_current() && !catalog::is_large_object_catalog(class.oid);
            }
        }
        catalog.add_partitions(&mut oids);
        for version in versions {
            if let Row::Type { of, .. } = &version.row
                && of.kind == 'c'
                && of.oid >= walden_source::names::FIRST_USER_OID
            {
                oids.insert(of.relation);
            }
        }
        oids
    }
}
