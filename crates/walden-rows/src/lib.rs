#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod catalog;
mod cell;
mod change;
mod choose;
mod columns;
mod commit_order;
mod decode;
mod dependents;
mod early_commits;
pub mod encoding;
mod heap;
mod names_at_end;
mod places;
pub mod print;
mod print_error;
mod read;
mod retyping;
mod script;
mod select;
mod sequences;
pub mod sql;
mod start;
mod stored_value;
mod survey;
mod toast;
mod tuple;
mod types;
pub mod value;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::{Record, RelFileLocator};
use walden_format::stream::Visitor;
use walden_format::transam::precedes;
use walden_format::version::Major;
use walden_redo::{BasePages, PageStore, Replay, StoreOptions};
use walden_source::datadir::{DataDir, DataDirError};
use walden_source::inventory::Run;
use walden_source::names::Names;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_again, scan_in_order};

pub use catalog::is_large_object_catalog;
pub use cell::tuple_values;
pub use change::{
    Cell, Entry, Event, EventKind, Image, Operation, Outcome, Row, RowChange, Table, TableColumn,
};
pub use choose::{Chosen, choose, databases_of, gap_at_unreadable};
pub use columns::{ColumnType, TypedColumn};
pub use names_at_end::NamesAtEnd;
pub use read::{Counts, Filter};
pub use script::Script;
pub use select::{Database, Wanted};
use types::Kind;
pub use types::{Types, oid};

use catalog::{Catalog, Key, Layout, Row as CatalogRow};
use read::Reader;
use start::{Pending, Start};
use survey::{CatalogChange, Findings, Survey};

/// The changes to read, and their sources.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The tables, with their partitions if they have any.
    pub table: Wanted,
    /// A base backup, or the data directory of a stopped server, that the WAL continues from.
    pub base: Option<PathBuf>,
    /// The changes to return. Columns and transactions are known up to its end.
    pub filter: Filter,
    /// Bytes of memory for pages; further pages go to a temporary file.
    pub memory_bytes: usize,
    /// Number of threads; with more than one, a second thread reads and decodes ahead.
    pub threads: usize,
}

impl Options {
    /// Creates options to read all changes of the tables on one thread, without a base backup.
    pub fn new(table: Wanted, memory_bytes: usize) -> Options {
        Options { table, base: None, filter: Filter::default(), memory_bytes, threads: 1 }
    }
}

walden_format::setters!(Options {
    base: Option<PathBuf>,
    filter: Filter,
    threads: usize,
});

/// Why rows cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// The table is unknown.
    #[error(
        "cannot find the table {0}: give the names of its server (--names), or a base backup that has it (--base); of a table \
         that was made within the WAL, name the database too, as in DATABASE.SCHEMA.TABLE"
    )]
    NoTable(String),
    /// The names contain the table, but the base backup does not.
    #[error(
        "cannot find {0} in the base backup, although the names have it: the table or its database was made after the \
         backup; leave the base backup (--base) out"
    )]
    NotInBase(String),
    /// The name belongs to an object that is no table.
    #[error(
        "cannot read rows of {name}, which is {kind}: expected a table, a partitioned table or a materialized view"
    )]
    NotATable {
        /// The name.
        name: String,
        /// The kind of object, with its article.
        kind: &'static str,
    },
    /// The name matches more than one table.
    #[error("more than one table is named {0}: write the table as DATABASE.SCHEMA.TABLE")]
    Ambiguous(String),
    /// More than one database contains tables of users.
    #[error("tables of users are in several databases: choose one of these (--database): {0}")]
    SeveralDatabases(String),
    /// The database is unknown.
    #[error("cannot find the database {0}: the names (--names) or the base backup (--base) must contain it")]
    NoDatabase(String),
    /// The table is known, but its columns are not.
    #[error(
        "the columns of {0} are not known: save the names again with this version of Walden (--save-names), or give a \
         base backup (--base)"
    )]
    NoColumns(String),
    /// The table has no columns.
    #[error("the table {0} has no columns, so that a file or a query has none for its rows")]
    WithoutColumns(String),
    /// The catalogs of this version are unknown.
    #[error("cannot read the catalogs of PostgreSQL {0}: expected 14 to 19")]
    Version(Major),
    /// There is no WAL.
    #[error("cannot read rows: expected WAL segments, found none")]
    NoLog,
    /// The base backup belongs to another cluster than the WAL.
    #[error(
        "the base backup belongs to the cluster with the system identifier {base}, the WAL to {log}: give the base backup of the \
         cluster that wrote the WAL"
    )]
    OtherCluster {
        /// System identifier of the base backup.
        base: u64,
        /// System identifier of the WAL.
        log: u64,
    },
    /// The WAL does not contain the position from which the base backup must be replayed.
    #[error(
        "the WAL does not contain {from}, at which replay of {} has to start{}",
        base.display(),
        log.map_or_else(String::new, |(start, end)| format!(", and the segments are from {start} to {end}"))
    )]
    NotContinued {
        /// The folder of the base backup.
        base: PathBuf,
        /// The LSN at which replay has to start.
        from: Lsn,
        /// The start LSN of the first segment and the end LSN of the last segment.
        log: Option<(Lsn, Lsn)>,
    },
    /// The range ends before the position from which the base backup has to be replayed.
    #[error(
        "the range ends at {to}, and the base backup {} starts at {from}: replay starts there, after the range",
        base.display()
    )]
    EndsBeforeBase {
        /// The folder of the base backup.
        base: PathBuf,
        /// The LSN at which replay of the base backup has to start.
        from: Lsn,
        /// The LSN at which the range ends.
        to: Lsn,
    },
    /// The range starts after the WAL that continues the base backup.
    #[error(
        "the range starts at {from}, and the WAL that continues the base backup {} ends at {end}: {why}",
        base.display()
    )]
    StartsAfterBase {
        /// The folder of the base backup.
        base: PathBuf,
        /// Where the range starts.
        from: Lsn,
        /// Where the WAL that continues the base backup ends.
        end: Lsn,
        /// Why it does not continue.
        why: String,
    },
    /// The folder is no base backup.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The base backup cannot be read.
    #[error("cannot read the catalogs of {}", path.display())]
    Base {
        /// Folder of the base backup.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A page could not be kept or read.
    #[error("{0}")]
    Store(String),
    /// A TOAST table of the base backup cannot be read, or its values cannot be stored.
    #[error("cannot read values of a TOAST table")]
    Toast(#[source] io::Error),
}

walden_format::diagnostics! { RowsError {
    Self::NoTable(name) => "table-missing": select::spelling_hint(name),
    Self::NotInBase(_) => "table-missing",
    Self::NotATable { .. } => "table-kind",
    Self::Ambiguous(_) => "table-ambiguous",
    Self::SeveralDatabases(_) | Self::NoDatabase(_) => "table-database",
    Self::NoColumns(_) | Self::WithoutColumns(_) => "table-columns",
    Self::Version(_) => "table-version",
    Self::NoLog => "table-without-wal",
    Self::OtherCluster { .. } => "table-other-cluster",
    Self::NotContinued { .. } => "table-not-continued": "add the segments from that position on",
    Self::EndsBeforeBase { to, .. } => "table-range":
        format!("use a base backup that started before {to} (--base), or read the range with names (--names) in place of a base backup"),
    Self::StartsAfterBase { .. } => "table-range":
        "use a base backup that was taken after that (--base), or read the range with names (--names) in place of a base backup",
    Self::DataDir(error) => of(error),
    Self::Store(_) => "table-pages",
    Self::Base { .. } | Self::Toast(_) => none,
} }

/// The changes of a table's rows in a run of WAL.
///
/// The WAL is read twice. [`RowChanges::survey`] collects how transactions ended and how the table's columns
/// and files change. [`RowChanges::read`] replays the table's pages and returns the rows.
///
/// A clone shares the survey's results.
#[derive(Clone, Debug)]
pub struct RowChanges {
    run: Arc<Run>,
    options: Options,
    findings: Arc<Findings>,
    catalog: Catalog,
    pending: Pending,
    tables: FxHashSet<u32>,
    start: Lsn,
    /// Reasons why changes may be missing or be read with the wrong columns. The notes contain them too,
    /// except for damage, which [`Summary::damage`] contains.
    pub gaps: Vec<Gap>,
    /// Information for the caller, for example rows of catalogs that could not be read.
    pub notes: Vec<String>,
}

/// A part of the WAL that is missing or could not be followed, so changes may be missing or be read with the
/// wrong columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The first record that could not be followed.
    pub from: Lsn,
    /// The problem and its remedy, on one line.
    pub why: String,
}

/// A table that was created within the WAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreatedTable {
    /// OID of the table.
    pub oid: u32,
    /// LSN of the record that creates the table.
    pub lsn: Lsn,
}

/// How far the WAL was read, and the counts.
#[derive(Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Start of the range; replay may have started earlier.
    pub from: Lsn,
    /// Position up to which the WAL was read.
    pub reached: Lsn,
    /// Damage at which reading stopped.
    pub damage: Option<Damage>,
    /// Numbers of rows and events.
    pub counts: Counts,
}

impl RowChanges {
    /// Reads the WAL once. `done` receives the bytes of each segment that was read.
    ///
    /// # Errors
    /// The table or its columns are unknown, or the base backup cannot be read.
    pub fn survey(
        chosen: Chosen,
        names: &Names,
        options: Options,
        mut done: impl FnMut(u64),
    ) -> Result<RowChanges, RowsError> {
        let run = Arc::new(chosen.run);
        let layouts = catalog::layouts(run.version).ok_or(RowsError::Version(run.version))?;
        // Some tables look unrelated at the WAL's start, but get the name or become partitions within it. The
        // survey is repeated to collect their data. It is also repeated if the WAL moves catalogs
        // to other files.
        let mut known = Known::default();
        let (mut catalog, pending, tables, findings, from) = loop {
            let start = match &options.base {
                Some(base) => {
                    let start = Start::from_base(base, &options.table, &known.tables, &layouts);
                    start.map_err(|error| match error {
                        RowsError::NoTable(_) => no_table(names, &options.table, true),
                        RowsError::NoDatabase(name) if start::is_database_in_names(names, &name) => {
                            RowsError::NotInBase(options.table.to_string())
                        }
                        other => other,
                    })?
                }
                None => Start::from_names(names, &options.table)?,
            };
            let (store, base) = store(&options)?;
            let from = base.as_ref().map(DataDir::redo_from);
            let (findings, others) =
                survey(&run, &options, (store, from), &start, &known, &layouts, &mut done)?;
            let mut missed = options.table.tables(&start.rough(), &findings);
            let (mut catalog, pending) = start.settle(&findings);
            catalog.other_tablespaces =
                findings.tablespaces.iter().copied().filter(|oid| *oid != catalog.tablespace).collect();
            let tables = options.table.tables(&catalog, &findings);
            missed.extend(&tables);
            missed.retain(|oid| others.contains(oid));
            if !known.extend(missed, &findings) {
                break (catalog, pending, tables, findings, from);
            }
        };
        catalog.types.pads_lsn = run.version >= Major::V19;
        for wanted in options.table.members() {
            if wanted.tables(&catalog, &findings).is_empty() {
                return Err(match wanted.other_kind(&catalog) {
                    Some(kind) => RowsError::NotATable { name: wanted.to_string(), kind },
                    None => no_table(names, wanted, options.base.is_some()),
                });
            }
        }
        if options.table.is_ambiguous(&catalog) {
            return Err(RowsError::Ambiguous(options.table.to_string()));
        }
        let has_columns = |oid: &u32| {
            catalog.get(Key::Attribute(*oid, 1)).is_some()
                || findings.changes.iter().any(|change| change.key == Key::Attribute(*oid, 1))
        };
        // A base backup contains all columns, and names contain the columns of all tables or of no table.
        // Names with columns contain inheritance, too.
        let has_all_columns = options.base.is_some()
            || names.has_columns(catalog.database)
            || names.inherits(catalog.database).is_some();
        if !has_all_columns && !tables.iter().any(has_columns) {
            return Err(RowsError::NoColumns(options.table.to_string()));
        }
        let mut gaps: Vec<Gap> = chosen.gap.into_iter().collect();
        let start = from.unwrap_or(run.start());
        gaps.extend(gap_at_start(&options.filter, &findings, &run, start, options.base.is_some(), &gaps));
        if let Some(xid) = options.filter.xid.filter(|_| !findings.has_wanted_xid && gaps.is_empty()) {
            let reached = findings.reached;
            let why =
                format!("the WAL has no record of transaction {xid}: it is read from {start} to {reached}");
            gaps.push(Gap { from: start, why });
        }
        gaps.extend(early_commits(&options, &findings, start));
        gaps.extend(self::gaps(&findings, options.base.is_some()));
        gaps.extend(unlogged_rows(&tables, &catalog, &findings, options.filter.from));
        gaps.extend(unlogged(&tables, &catalog, &findings, options.filter.from.unwrap_or(start).max(start)));
        let mut notes: Vec<String> = gaps.iter().map(|gap| gap.why.clone()).collect();
        // Readers of the WAL also get the damage itself.
        gaps.extend(findings.damage.clone());
        notes.extend(unread_before(&run, start, &options.filter));
        notes.extend(computed_anew(&tables, &findings, &options.filter));
        if options.base.is_none()
            && names.inherits(catalog.database).is_none()
            && has_plain(&tables, &catalog)
        {
            notes.push(
                "the names do not say which tables inherit from others, whose changes may be missing: save the names again with \
                 this version of Walden (--save-names)"
                    .to_owned(),
            );
        }
        notes.extend(large_objects_left_out(&tables, &catalog, &findings, &options.filter));
        let wanted = options.table.members().iter();
        notes.extend(wanted.filter_map(|wanted| namesake(wanted, &tables, &catalog, &findings)));
        let findings = Arc::new(findings);
        Ok(RowChanges { run, options, findings, catalog, pending, tables, start, gaps, notes })
    }

    /// Surveys, as [`RowChanges::survey`] does, the part of the WAL that [`choose()`] selects. The notes
    /// mention other parts.
    ///
    /// # Errors
    /// The range has no WAL to read, or an error of [`RowChanges::survey`].
    pub fn survey_part_of(
        runs: &[Run],
        names: &Names,
        options: Options,
        done: impl FnMut(u64),
    ) -> Result<RowChanges, RowsError> {
        let runs = runs.iter().map(|run| Run { segments: run.segments.clone(), ..*run });
        let chosen = choose(runs.collect(), options.base.as_deref(), &options.filter)?;
        let note = chosen.note;
        let mut changes = RowChanges::survey(chosen, names, options, done)?;
        changes.notes.splice(0..0, note.map(str::to_owned));
        Ok(changes)
    }

    /// The requested changes.
    pub fn filter(&self) -> &Filter {
        &self.options.filter
    }

    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.run.segments.len()
    }

    /// A gap if changes that a filter selects may precede the WAL's start.
    pub fn gap_at_start(&self, filter: &Filter) -> Option<Gap> {
        let has_base = self.options.base.is_some();
        gap_at_start(filter, &self.findings, &self.run, self.start, has_base, &self.gaps)
    }

    /// Returns the columns that the tables have anywhere in the surveyed WAL.
    ///
    /// # Errors
    /// The tables have no columns.
    pub fn columns(&self) -> Result<Vec<TypedColumn>, RowsError> {
        let is_given = |xid: u32| {
            self.options.filter.with_aborted || !matches!(self.findings.outcome(xid), Outcome::Aborted { .. })
        };
        let pending = self.pending.inserted.values().flatten();
        let changes = self.findings.changes.iter().filter(|change| is_given(change.xid));
        let later = pending.chain(changes.filter_map(|change| change.new.as_ref()));
        let columns = columns::union(&self.catalog, &self.tables, later);
        match columns.is_empty() {
            true => Err(RowsError::WithoutColumns(self.options.table.to_string())),
            false => Ok(columns),
        }
    }

    /// Whether a change was committed by a transaction of the filter, and is in its range.
    fn is_asked(&self, change: &CatalogChange) -> bool {
        let filter = &self.options.filter;
        matches!(self.findings.outcome(change.xid), Outcome::Committed { .. })
            && filter.from.is_none_or(|from| change.lsn >= from)
            && filter.xid.is_none_or(|xid| xid == change.xid || xid == self.findings.top(change.xid))
    }

    /// The tables that the selected transactions created, in WAL order.
    pub fn created_tables(&self) -> Vec<CreatedTable> {
        let is_asked = |change: &&CatalogChange| change.is_created() && self.is_asked(change);
        let created = |change: &CatalogChange| match change.key {
            Key::Class(oid) if self.tables.contains(&oid) => Some(CreatedTable { oid, lsn: change.lsn }),
            _ => None,
        };
        self.findings.changes.iter().filter(is_asked).filter_map(created).collect()
    }

    /// The sequences that the selected changes altered or dropped, and those whose values were drawn or set.
    /// Empty if single tables are selected.
    pub(crate) fn changed_sequences(&self) -> sequences::Changed {
        match self.options.table.is_all() {
            true => {
                sequences::Changed::find(&self.catalog, &self.findings, &self.options.filter, &|change| {
                    self.is_asked(change)
                })
            }
            false => sequences::Changed::default(),
        }
    }

    /// The names that the tables have at the end of the surveyed WAL, where statements are run.
    pub fn names_at_end(&self) -> NamesAtEnd {
        NamesAtEnd::collect(&self.tables, self.catalog.clone(), &self.pending, &self.findings)
    }

    /// Reads the WAL again, and passes the changes that `filter` selects to `each` in WAL order; `each` may
    /// stop it. `done` receives the bytes of each segment that was read.
    ///
    /// # Errors
    /// A page could not be stored, or the base backup cannot be read.
    pub fn read(
        &self,
        filter: &Filter,
        done: impl FnMut(u64),
        each: impl FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<Summary, RowsError> {
        let (store, base) = store(&self.options)?;
        let (files, toast_files) = self.files();
        let mut reader = Reader {
            findings: &self.findings,
            start: self.start,
            next: 0,
            current: FxHashMap::default(),
            catalog: self.catalog.clone(),
            pending: self.pending.clone(),
            replaced: Vec::new(),
            tables: self.tables.clone(),
            files,
            toast_files,
            known: FxHashMap::default(),
            replay: Replay::new(store),
            base,
            chunks: toast::Chunks::default(),
            speculative: FxHashMap::default(),
            filter: filter.clone(),
            last_outcome: None,
            counts: Counts::default(),
            tuples: Vec::new(),
            failure: None,
            each,
        };
        for oid in reader.tables.clone() {
            let files =
                reader.catalog.class(oid).map(|class| reader.catalog.files(class)).unwrap_or_default();
            reader.current.extend(files.into_iter().map(|file| (file, oid)));
        }
        // The survey already checked all checksums.
        let options = ScanOptions::new(self.options.threads).from(Some(self.start));
        let (reached, end) = scan_again(&self.run, options, self.findings.reached, &mut reader, done);
        if let Some(failure) = reader.replay.store.failure() {
            return Err(RowsError::Store(failure.to_string()));
        }
        if let Some(error) = reader.failure {
            return Err(RowsError::Toast(error));
        }
        let damage = match end {
            SegmentEnd::Damaged(damage) => Some(damage),
            _ => None,
        };
        let from = filter.from.map_or(self.start, |from| from.max(self.start));
        Ok(Summary { from, reached, damage, counts: reader.counts })
    }

    /// Returns all files that the tables and their TOAST tables have in the range, and the subset of the
    /// TOAST tables.
    fn files(&self) -> (FxHashSet<RelFileLocator>, FxHashSet<RelFileLocator>) {
        let rows = || {
            let changes = self.findings.changes.iter();
            let logged = changes.flat_map(|change| [&change.old, &change.new]).flatten();
            let pending = self.pending.inserted.values().flatten();
            logged.chain(pending).filter_map(|row| match row {
                CatalogRow::Class(class) => Some(class),
                _ => None,
            })
        };
        let all = || self.catalog.classes().chain(rows());
        let is_wanted = |oid: u32| self.tables.contains(&oid);
        let toast: FxHashSet<u32> =
            all().filter(|class| is_wanted(class.oid) && class.toast != 0).map(|class| class.toast).collect();
        let of = |is: &dyn Fn(u32) -> bool| -> FxHashSet<RelFileLocator> {
            all().filter(|class| is(class.oid)).flat_map(|class| self.catalog.files(class)).collect()
        };
        let toast_files = of(&|oid| toast.contains(&oid));
        let mut files = of(&is_wanted);
        files.extend(&toast_files);
        (files, toast_files)
    }
}

/// Returns the reason why a table is not found, based on the names.
fn no_table(names: &Names, wanted: &Wanted, has_base: bool) -> RowsError {
    let table = wanted.to_string();
    match has_base && start::is_in_names(names, wanted) {
        true => RowsError::NotInBase(table),
        false => RowsError::NoTable(table),
    }
}

fn store(options: &Options) -> Result<(PageStore, Option<DataDir>), RowsError> {
    let base = options.base.as_deref().map(DataDir::open).transpose()?;
    let pages = options.base.as_deref().map(DataDir::open).transpose()?;
    let hints = base.as_ref().map(|data| data.control().hint_settings());
    let pages = pages.map(|data| Box::new(data) as Box<dyn BasePages>);
    let memory_bytes = options.memory_bytes;
    let mut store = PageStore::new(StoreOptions::default().memory_bytes(memory_bytes).base(pages));
    if let Some(settings) = hints {
        store.hint_logging().note_settings(settings);
    }
    Ok((store, base))
}

/// Results of a survey that the next survey needs from the WAL's start.
#[derive(Debug, Default)]
struct Known {
    /// Wanted tables that look unrelated at the WAL's start.
    tables: FxHashSet<u32>,
    /// Further files of catalogs.
    catalogs: FxHashMap<RelFileLocator, u32>,
    /// Tablespaces from and to which the WAL moves the database.
    tablespaces: FxHashSet<u32>,
}

impl Known {
    /// Adds a survey's results. Returns whether any result is new.
    fn extend(&mut self, missed: FxHashSet<u32>, findings: &Findings) -> bool {
        let count = |known: &Known| known.tables.len() + known.catalogs.len() + known.tablespaces.len();
        let before = count(self);
        self.tables.extend(missed);
        self.catalogs.extend(&findings.catalog_files);
        self.tablespaces.extend(&findings.tablespaces);
        count(self) > before
    }
}

/// Reads the WAL once. Also returns the relations that were treated as unrelated.
fn survey(
    run: &Run,
    options: &Options,
    (store, from): (PageStore, Option<Lsn>),
    start: &Start,
    known: &Known,
    layouts: &FxHashMap<u32, Layout>,
    done: impl FnMut(u64),
) -> Result<(Findings, FxHashSet<u32>), RowsError> {
    let rough = start.rough();
    let mut wanted = options.table.tables(&rough, &Findings::default());
    wanted.extend(&known.tables);
    let mut tablespaces = known.tablespaces.clone();
    tablespaces.insert(rough.tablespace);
    let files = start.catalog_files().iter().map(|(oid, file)| (*file, *oid));
    let earlier = start.earlier_files(&rough);
    let files = files.chain(earlier).chain(known.catalogs.iter().map(|(file, oid)| (*file, *oid)));
    let in_tablespaces = |(file, oid): (RelFileLocator, u32)| {
        let moved = tablespaces.iter().map(move |&tablespace| (RelFileLocator { tablespace, ..file }, oid));
        moved.chain([(file, oid)])
    };
    let is_other = |class: &&catalog::Class| {
        !wanted.contains(&class.oid)
            && !matches!(class.kind, 'c' | 't' | 'p' | 'S')
            && !class.name.starts_with("pg_temp_")
    };
    let mut survey = Survey {
        findings: Findings::default(),
        replay: Replay::new(store),
        layouts,
        is_wanted: &|class| options.table.is(class, ""),
        catalogs: files.flat_map(in_tablespaces).collect(),
        database: rough.database,
        encoding: rough.types.encoding,
        other_files: rough.classes().filter(is_other).filter_map(|class| rough.file(class)).collect(),
        large_object_files: rough
            .classes()
            .filter(|class| is_large_object_catalog(class.oid))
            .flat_map(|class| rough.files(class))
            .collect(),
        others: rough.classes().filter(is_other).map(|class| class.oid).collect(),
        interesting: start.transactions(),
        active: FxHashSet::default(),
        prepared: FxHashMap::default(),
        looks_for_old_files: matches!(start, Start::Names { .. }),
        unknown_files: FxHashSet::default(),
        created: FxHashMap::default(),
        rewritten: FxHashMap::default(),
        tablespaces: tablespaces.clone(),
        unmet: start.uncertain_catalogs(from.unwrap_or(run.start())),
        named_files: rough.classes().filter_map(|class| rough.file(class)).collect(),
        relations: rough
            .classes()
            .filter(|class| class.oid >= walden_source::names::FIRST_USER_OID)
            .map(|class| class.oid)
            .collect(),
        suspects: FxHashMap::default(),
        is_minimal: None,
        made_meanwhile: Vec::new(),
        type_versions: FxHashMap::default(),
        wanted_xid: options.filter.xid,
        from: options.filter.from,
        start: from.unwrap_or(run.start()),
        to: options.filter.to,
        tuples: Vec::new(),
    };
    let scan = ScanOptions::new(options.threads).from(from);
    let (reached, end) = scan_in_order(run, scan, &mut survey, done);
    survey.findings.reached = reached;
    // The damage also ends the second pass.
    if let SegmentEnd::Damaged(Damage { segment, offset, lsn, .. }) = end {
        let why =
            format!("the segment {segment} is damaged at offset {offset}: it is not read from {lsn} on");
        survey.findings.damage = Some(Gap { from: lsn, why });
    }
    survey.findings.misplaced = survey.misplaced();
    survey.settle_wal_level();
    if let Some(failure) = survey.replay.store.failure() {
        return Err(RowsError::Store(failure.to_string()));
    }
    Ok((survey.findings, survey.others))
}

/// Tables whose changes are not in the WAL for all or part of the range that starts at `from`.
fn unlogged(tables: &FxHashSet<u32>, catalog: &Catalog, findings: &Findings, from: Lsn) -> Vec<Gap> {
    let found = tables.iter().filter_map(|&oid| {
        let mut class = catalog.class(oid).map(|class| (from, class));
        for change in findings.changes.iter().filter(|change| change.key == Key::Class(oid)) {
            let is_logged = class.is_none_or(|(_, class)| class.persistence == 'p');
            if change.lsn > from && !is_logged {
                break;
            }
            if let Some(CatalogRow::Class(new)) = &change.new
                && !matches!(findings.outcome(change.xid), Outcome::Aborted { .. })
            {
                class = Some((change.lsn.max(from), new));
            }
        }
        class.filter(|(_, class)| class.persistence != 'p')
    });
    let mut gaps: Vec<Gap> = found
        .map(|(from, class)| {
            let what = if class.persistence == 't' { "temporary" } else { "unlogged" };
            let name = sql::in_comment(&class.name);
            let why = format!("{name} is {what} at {from}: as long as it is, its changes are not in the WAL");
            Gap { from, why }
        })
        .collect();
    gaps.sort_unstable_by(|one, other| (one.from, &one.why).cmp(&(other.from, &other.why)));
    gaps
}

/// Returns the first of the tables' files that a server with `wal_level` minimal created within the range. A
/// transaction that creates a table's file writes the file to disk before it commits, instead of logging the
/// rows that it inserts (`RelationNeedsWAL`).
fn unlogged_rows(
    tables: &FxHashSet<u32>,
    catalog: &Catalog,
    findings: &Findings,
    range_from: Option<Lsn>,
) -> Option<Gap> {
    // Rows that were committed before the range are not requested.
    let is_in_range = |xid: u32| match findings.outcome(xid) {
        Outcome::Committed { lsn, .. } => range_from.is_none_or(|from| lsn >= from),
        Outcome::Aborted { .. } | Outcome::Unfinished => false,
    };
    let made = findings.made_without_lock.iter();
    let made = made.filter(|made| tables.contains(&made.relation)).find(|made| is_in_range(made.xid))?;
    let name = catalog.class(made.relation).map_or("a table that is made there", |class| &class.name);
    Some(Gap {
        from: made.lsn,
        why: format!(
            "the server had wal_level = minimal: the rows that a transaction puts into a table that it has made, truncated or \
             rewritten are not in the WAL, as of {} by transaction {} at {}",
            sql::in_comment(name),
            made.xid,
            made.lsn
        ),
    })
}

/// Rewrites within the range that changed a column's values without changing its type.
fn computed_anew(tables: &FxHashSet<u32>, findings: &Findings, filter: &Filter) -> Vec<String> {
    let is_asked = |computed: &&retyping::ComputedAnew| {
        computed.is_type_kept
            && filter.from.is_none_or(|from| computed.lsn >= from)
            && filter.xid.is_none_or(|xid| xid == computed.xid || xid == findings.top(computed.xid))
    };
    let mut found = Vec::new();
    for computed in retyping::computed_anew(tables, findings).values() {
        for computed in computed.iter().filter(is_asked) {
            let note = format!(
                "ALTER TABLE at {} by transaction {} has most likely recomputed the column {} of {} for all rows (USING), which \
                 no change shows",
                computed.lsn,
                computed.xid,
                sql::in_comment(&computed.name),
                sql::in_comment(&computed.table)
            );
            found.push((computed.lsn, note));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, note)| note).collect()
}

/// A note if large objects changed that are not selected, but that the selected tables may refer to.
fn large_objects_left_out(
    tables: &FxHashSet<u32>,
    catalog: &Catalog,
    findings: &Findings,
    filter: &Filter,
) -> Option<String> {
    let refers = |row: &CatalogRow| match row {
        CatalogRow::Attribute { relation, column } => {
            tables.contains(relation) && catalog.types.kind(column.type_oid) == Kind::Base(oid::OID)
        }
        _ => false,
    };
    if tables.iter().any(|table| is_large_object_catalog(*table)) || !catalog.rows().any(refers) {
        return None;
    }
    let is_asked = |xid: u32, lsn: Lsn| {
        matches!(findings.outcome(xid), Outcome::Committed { .. })
            && filter.from.is_none_or(|from| lsn >= from)
            && filter.xid.is_none_or(|wanted| wanted == xid || wanted == findings.top(xid))
    };
    let asked = findings.large_objects.iter().filter(|(xid, lsn)| is_asked(**xid, **lsn));
    let (lsn, xid) = asked.map(|(xid, lsn)| (*lsn, *xid)).min()?;
    Some(format!(
        "large objects changed as well, the first at {lsn} by transaction {xid}, and are not among these changes: add --relation \
         pg_catalog.pg_largeobject --relation pg_catalog.pg_largeobject_metadata, or select all tables (--all)"
    ))
}

/// Returns whether a table in `tables` may have children that inherit from it without being partitions.
fn has_plain(tables: &FxHashSet<u32>, catalog: &Catalog) -> bool {
    tables.iter().filter_map(|oid| catalog.class(*oid)).any(|class| class.kind == 'r')
}

/// A gap if the range starts before the WAL does, or if transactions changed something between the start of
/// the range and the base backup, unless one of the `known` gaps covers that; or if the filter's transaction
/// may have changes before the WAL's start.
fn gap_at_start(
    filter: &Filter,
    findings: &Findings,
    run: &Run,
    start: Lsn,
    has_base: bool,
    known: &[Gap],
) -> Option<Gap> {
    let (what, remedy) = match has_base {
        true => ("base backup", "an earlier base backup (--base)"),
        false => ("WAL", "the segments before it"),
    };
    let is_known = known.iter().any(|gap| gap.from < start);
    if let Some(from) = filter.from.filter(|from| *from < start && !is_known)
        && (!has_base || has_changes_between(run, from, filter.to.map_or(start, |to| to.min(start))))
    {
        let why = format!(
            "the {what} starts at {start}, after the start of the range: changes before it are not read; give {remedy}, or start the \
             range there (--from {start})"
        );
        return Some(Gap { from, why });
    }
    let xid = filter.xid?;
    let verb = match findings.next_xid {
        Some(next) if !precedes(xid, next) => return None,
        Some(_) if has_base || !findings.has_wanted_xid => "started",
        _ => "may have started",
    };
    let why = format!(
        "the {what} starts at {start}, and transaction {xid} {verb} earlier: its changes before that position are not read; give {remedy}"
    );
    Some(Gap { from: filter.from.unwrap_or_default(), why })
}

/// A gap if transactions committed in the range whose changes before the WAL's start are in it too. For a
/// requested transaction, [`gap_at_start`] decides.
fn early_commits(options: &Options, findings: &Findings, start: Lsn) -> Option<Gap> {
    let filter = &options.filter;
    if filter.xid.is_some() || filter.from.is_some_and(|from| from > start) {
        return None;
    }
    let has_base = options.base.is_some();
    let (what, remedy) = match has_base {
        true => ("base backup", "an earlier base backup (--base)"),
        false => ("WAL", "the segments before it"),
    };
    let found = findings.early_commits.describe(has_base)?;
    let why = format!(
        "the {what} starts at {start}, and these started earlier, so that changes before that position are not read: {found}; give \
         {remedy}, or start the range later (--from)"
    );
    Some(Gap { from: filter.from.unwrap_or_default(), why })
}

/// Returns whether a transaction has written records between two positions, or the WAL there is not known.
///
/// A bound by time is the LSN after the last transaction that ended before this time. On a quiet server, a
/// base backup that was taken before this time may start after this LSN, and then no change is missing.
fn has_changes_between(run: &Run, from: Lsn, to: Lsn) -> bool {
    struct FirstChange {
        from: Lsn,
        to: Lsn,
        /// Whether a record at `to` or later was reached.
        is_past: bool,
        is_found: bool,
    }
    impl Visitor for FirstChange {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            self.is_past = record.lsn >= self.to;
            self.is_found = !self.is_past && record.lsn >= self.from && record.header.xid != 0;
            if self.is_past || self.is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    if from >= to {
        return false;
    }
    if from < run.start() {
        return true;
    }
    let mut first = FirstChange { from, to, is_past: false, is_found: false };
    let (reached, _) = scan_in_order(run, ScanOptions::new(1).from(Some(from)), &mut first, |_| ());
    first.is_found || !first.is_past && reached < to
}

/// A note if segments before the base backup are not read although the filter sets no start.
fn unread_before(run: &Run, start: Lsn, filter: &Filter) -> Option<String> {
    let segment = |lsn| run.segment_size.segment_of(lsn);
    let is_bounded = filter.from.is_some() || filter.xid.is_some();
    let from = run.start();
    (!is_bounded && segment(from) < segment(start)).then(|| {
        format!(
            "the base backup starts at {start}: the WAL before it, from {from} on, is not read; give an earlier base backup (--base) \
             for changes before it"
        )
    })
}

fn gaps(findings: &Findings, has_base: bool) -> Vec<Gap> {
    let hint = match has_base {
        true => "",
        false => "; a base backup (--base) has these pages",
    };
    let unread = findings.unread.map(|(count, from)| Gap {
        from,
        why: format!(
            "{count} changes of the catalogs could not be read, the first at {from}, as their pages are not known. If the table's \
             columns or file were changed there, rows may be missing or unknown{hint}"
        ),
    });
    let misplaced = findings.misplaced.map(|(catalog, from)| Gap {
        from,
        why: format!(
            "{} was rewritten (VACUUM FULL) between the log and the names: what seem to be changes of it, the first at {from}, are \
             in a file that the names do not have. If the table's columns or file were changed there, rows may be missing or \
             wrong; give names that were saved before it was rewritten as well (--names), or a base backup (--base)",
            catalog::name(catalog)
        ),
    });
    unread.into_iter().chain(misplaced).collect()
}

/// A note on another table that gets the wanted table's name within the WAL, for example if the table is
/// dropped and recreated.
fn namesake(
    wanted: &Wanted,
    tables: &FxHashSet<u32>,
    catalog: &Catalog,
    findings: &Findings,
) -> Option<String> {
    let Wanted::Name(name) = wanted else { return None };
    findings.changes.iter().find_map(|change| {
        let Some(CatalogRow::Class(class)) = &change.new else { return None };
        let is_committed = matches!(findings.outcome(change.xid), Outcome::Committed { .. });
        if tables.contains(&class.oid) || !is_committed || !wanted.is(class, catalog.schema_of(class)) {
            return None;
        }
        let file = catalog.file(class)?;
        Some(format!(
            "another table is named {name} from {} on, whose rows are not among these: it is in the file {file}",
            change.lsn
        ))
    })
}
