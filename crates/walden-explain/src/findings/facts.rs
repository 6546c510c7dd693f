//! What rules know: cells by table, evidence, names, checkpoints.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::page::LONG_HEADER;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::info::{btree, heap, heap2, xact, xlog};
use walden_format::rmgr::{Kind, rmid};
use walden_format::version::Major;
use walden_source::names::FIRST_USER_OID;

use super::ledger::Claim;
use super::percent_text;
use crate::checkpoints::{Checkpoint, CheckpointSettings};
use crate::evidence::{EmptiedTransactions, Evidence};
use crate::explanation::Explanation;
use crate::group::{Cell, Owner};
use crate::labels::{Label, Labels, Part};
use crate::old_transactions::OldTransaction;
use crate::tally::{Bucket, Tally};

/// Input of the rules.
pub(super) struct Facts<'a> {
    pub explanation: &'a Explanation,
    /// The sums to explain, for the explanation's whole WAL or a part of it.
    pub cells: &'a [(Cell, Tally)],
    pub labels: &'a Labels<'a>,
    pub checkpoints: &'a [Checkpoint],
    /// The server's settings, as far as names have them.
    pub settings: &'a BTreeMap<String, String>,
    /// Tables with their indexes and TOAST tables; without names each relation by itself.
    pub tables: Vec<Table>,
    /// Files that were dropped by transactions that also created files: `TRUNCATE` and rewrites replace them.
    replaced: FxHashSet<RelFileLocator>,
    /// Databases with new files that have the numbers of catalogs, as `CREATE DATABASE` and initdb make them.
    copied_databases: FxHashSet<u32>,
}

/// A table with its indexes and its TOAST table.
pub(super) struct Table {
    pub name: String,
    pub sql: SqlName,
    pub is_catalog: bool,
    pub part: Part,
    pub relations: Vec<Relation>,
}

/// One file of a relation: after a rewrite, the relation has another file.
pub(super) struct Relation {
    pub file: RelFileLocator,
    pub name: String,
    pub sql: SqlName,
    pub part: Part,
    pub is_index: bool,
    /// For an index of a partition whose table is merged with others: the name of the partitioned index. Else
    /// the same as `name`.
    pub index_name: String,
    /// Indexes of its cells in [`Facts::cells`], of all forks.
    pub cells: Vec<usize>,
    pub evidence: Evidence,
    pub was_created: bool,
    /// LSN of the commit record that dropped the file.
    pub dropped_at: Option<Lsn>,
    /// The rewrite that wrote this file as the new file of a relation.
    pub written_by: Option<Rewriting>,
    /// Whether the relation's rows were, or may have been, rewritten into a new file when this file was
    /// dropped.
    pub is_replaced: bool,
}

/// An index with all its files: `REINDEX` and rewrites create a new file. A partitioned index has the files
/// of all partitions.
pub(super) struct Index<'a> {
    pub name: &'a str,
    /// The last file of the index.
    pub last: &'a Relation,
    pub files: Vec<&'a Relation>,
    /// Evidence of all of its files.
    pub evidence: Evidence,
}

/// A transaction that wrote a relation whole into a new file, and kept its rows.
#[derive(Clone, Copy)]
pub(super) struct Rewriting {
    pub xid: u32,
    /// Whether it copied the file to another tablespace.
    pub is_move: bool,
    /// Whether it was `REPACK (CONCURRENTLY)`; since 19.
    pub is_concurrent: bool,
    /// Whether the relation was unlogged before, as `ALTER TABLE ... SET LOGGED` finds it.
    pub was_unlogged: bool,
    /// Whether the rows that this rewrite writes are logged: with `wal_level=minimal`, a transaction logs no
    /// rows in files that it creates itself, but at its commit images of the files' pages if these are few
    /// (`smgrDoPendingSyncs`).
    pub has_logged_rows: bool,
}

/// A relation's name as statements have it.
#[derive(Clone)]
pub(super) struct SqlName {
    name: String,
    /// A phrase for the database in which statements have to run, if the WAL has several databases.
    place: String,
}

impl SqlName {
    pub fn from_label(label: &Label) -> SqlName {
        // A statement with a file's number is refused. Several names that are not UTF-8 may be shown alike.
        let is_exact = |name: &&String| !name.contains(char::REPLACEMENT_CHARACTER);
        let Some(name) = label.name.as_ref().filter(is_exact) else {
            return SqlName { name: format!("[name of {}]", label.text), place: String::new() };
        };
        let place = |database: &String| match database.starts_with("database ") {
            true => format!("in {database}: "),
            false => format!("in database {database}: "),
        };
        let place = label.database.as_ref().filter(|_| *name != label.text).map(place);
        SqlName { name: name.clone(), place: place.unwrap_or_default() }
    }

    /// The name of each of the parts of a partitioned table or index.
    fn of_parts(whole: &str, part: &SqlName, noun: &str) -> SqlName {
        SqlName { name: format!("[{noun}]"), place: format!("{}for each {noun} of {whole}: ", part.place) }
    }

    /// Returns a statement that names the relation, with the given text before and after the name.
    pub fn statement(&self, before: &str, behind: &str) -> String {
        format!("{}{before} {}{behind}", self.place, self.name)
    }
}

impl<'a> Facts<'a> {
    pub fn new(
        explanation: &'a Explanation,
        cells: &'a [(Cell, Tally)],
        labels: &'a Labels<'a>,
        checkpoints: &'a [Checkpoint],
        settings: &'a BTreeMap<String, String>,
    ) -> Facts<'a> {
        let of_catalogs = explanation.created.iter().filter(|file| file.relation < FIRST_USER_OID);
        let copied_databases = of_catalogs.map(|file| file.database).collect();
        let replaced = explanation.rewrites.iter().flat_map(|one| one.dropped.iter().copied()).collect();
        let mut facts = Facts {
            explanation,
            cells,
            labels,
            checkpoints,
            settings,
            tables: Vec::new(),
            replaced,
            copied_databases,
        };
        facts.tables = facts.group_tables();
        facts
    }

    /// The server's settings for checkpoints, if names have them all.
    pub fn checkpoint_settings(&self) -> Option<CheckpointSettings> {
        CheckpointSettings::from_settings(self.settings, self.explanation.version)
    }

    /// Returns the end LSN of initdb's WAL, if the WAL starts with it.
    ///
    /// The first record of a cluster is the checkpoint of `BootStrapXLOG`, at the start of segment 1. Then
    /// the bootstrap process and the one that fills the catalogs end, each with a shutdown checkpoint.
    pub fn initdb_end(&self) -> Option<Lsn> {
        /// Shutdown checkpoints of initdb after the first record.
        const SHUTDOWNS: usize = 2;
        let begin = self.first_record();
        let checkpoints = self.explanation.checkpoints.iter().filter(|one| one.shutdown);
        let mut shutdowns = checkpoints.map(|one| one.lsn).skip_while(|lsn| *lsn != begin);
        shutdowns.next()?;
        shutdowns.nth(SHUTDOWNS - 1).or_else(|| self.explanation.ranges.last().map(|range| range.end))
    }

    /// Returns the bytes of WAL that initdb wrote; 0 if the WAL does not start with initdb.
    pub fn initdb_bytes(&self) -> u64 {
        self.initdb_end().map_or(0, |end| end.bytes_since(self.first_record()))
    }

    /// Where the first record of a cluster is.
    fn first_record(&self) -> Lsn {
        Lsn(self.explanation.segment_size.bytes() + LONG_HEADER as u64)
    }

    /// A transaction that was open for half of the WAL or more, while many others started.
    pub fn old_transaction(&self) -> Option<OldTransaction> {
        /// Fewer are no long time.
        const MIN_YOUNGER: u32 = 1000;
        let old = self.explanation.old_transaction?;
        let is_long = self.share(old.bytes()) >= 0.5 && old.younger >= MIN_YOUNGER;
        is_long.then_some(old)
    }

    fn group_tables(&self) -> Vec<Table> {
        let evidence: FxHashMap<RelFileLocator, Evidence> =
            self.explanation.evidence.iter().copied().collect();
        let mut files: BTreeMap<RelFileLocator, Vec<usize>> = BTreeMap::new();
        for (at, (cell, _)) in self.cells.iter().enumerate() {
            if let Owner::Relation(file, _) = cell.owner {
                files.entry(file).or_default().push(at);
            }
        }
        let mut tables: BTreeMap<String, Table> = BTreeMap::new();
        for (file, cells) in files {
            let owner = Owner::Relation(file, Fork::MAIN);
            let table = self.labels.table_of(owner);
            let label = self.labels.owner(owner);
            let is_index = match label.part {
                Part::Index | Part::ToastIndex => true,
                Part::Relation => self.has_only_index_records(&cells),
                _ => false,
            };
            let relation = Relation {
                file,
                sql: SqlName::from_label(&label),
                index_name: label.text.clone(),
                name: label.text,
                part: label.part,
                is_index,
                cells,
                evidence: evidence.get(&file).copied().unwrap_or_default(),
                was_created: self.explanation.created.contains(&file),
                dropped_at: self.explanation.dropped.get(&file).copied(),
                written_by: None,
                is_replaced: self.explanation.perhaps_rewritten.contains(&file),
            };
            let (name, sql) = (table.text.clone(), SqlName::from_label(&table));
            let is_catalog = self.labels.is_catalog(owner);
            let entry = tables.entry(table.text).or_insert_with(|| Table {
                name,
                sql,
                is_catalog,
                part: table.part,
                relations: Vec::new(),
            });
            entry.relations.push(relation);
        }
        let mut tables = self.merge_partitions(tables.into_values());
        self.mark_rewritten(&mut tables);
        tables
    }

    /// Merges the partitions of a table, if there are several: work of a partitioned table is often spread so
    /// that each partition has a small share.
    fn merge_partitions(&self, tables: impl Iterator<Item = Table>) -> Vec<Table> {
        let mut roots: BTreeMap<String, (Label, Vec<Table>)> = BTreeMap::new();
        for table in tables {
            let Some(owner) = table.relations.first().map(|one| Owner::Relation(one.file, Fork::MAIN)) else {
                continue;
            };
            let root = self.labels.partition_root(owner);
            roots.entry(root.text.clone()).or_insert_with(|| (root, Vec::new())).1.push(table);
        }
        let merge = |(name, (root, mut parts)): (String, (Label, Vec<Table>))| -> Option<Table> {
            let first = parts.pop()?;
            if parts.is_empty() {
                return Some(first);
            }
            let whole = root.name.as_deref().unwrap_or(&name);
            let sql = SqlName::of_parts(whole, &first.sql, "partition");
            let mut relations = first.relations;
            relations.extend(parts.into_iter().flat_map(|part| part.relations));
            for index in relations.iter_mut().filter(|one| one.is_index) {
                let root = self.labels.root_of_index(Owner::Relation(index.file, Fork::MAIN));
                index.index_name = root.map_or_else(|| index.name.clone(), |root| root.text);
            }
            relations.sort_by_key(|one| one.file);
            Some(Table { name, sql, relations, ..first })
        };
        roots.into_iter().filter_map(merge).collect()
    }

    /// Marks rewritten tables, and distinguishes rewrites from other transactions that gave a relation a new
    /// file.
    ///
    /// `VACUUM FULL`, `CLUSTER`, `REPACK`, `REFRESH MATERIALIZED VIEW` and forms of `ALTER TABLE` fill a
    /// transient relation, and swap its file with the relation's (`make_new_heap`, `finish_heap_swap`).
    /// `TRUNCATE` gives the relation an empty file (`RelationSetNewRelfilenumber`), as `SET TABLESPACE` does
    /// with a copy in another tablespace. `REPACK (CONCURRENTLY)` makes transient indexes as well
    /// (`build_new_indexes`).
    fn mark_rewritten(&self, tables: &mut [Table]) {
        let relations = tables.iter().flat_map(|table| &table.relations);
        let indexes: FxHashMap<RelFileLocator, Part> =
            relations.filter(|one| one.is_index).map(|one| (one.file, one.part)).collect();
        let mut written_by: FxHashMap<RelFileLocator, Rewriting> = FxHashMap::default();
        let mut replaced: FxHashSet<RelFileLocator> = FxHashSet::default();
        for rewrite in &self.explanation.rewrites {
            let old: FxHashSet<_> = rewrite.dropped.iter().copied().collect();
            let new: FxHashSet<_> = rewrite.created.iter().copied().collect();
            let old_by_table = self.by_table(old.difference(&new).copied());
            for (table, new) in self.by_table(new.difference(&old).copied()) {
                let heaps = || new.iter().filter(|file| !indexes.contains_key(file));
                // An old file that has no name may belong to any table, except to a new table, whose OID is
                // the number of its file.
                let unnamed =
                    || old_by_table.get(&None).filter(|_| heaps().any(|file| !self.is_first_file(*file)));
                let Some(old) = old_by_table.get(&table).or_else(unnamed) else { continue };
                let is_move = heaps().any(|file| old.iter().all(|old| old.tablespace != file.tablespace));
                let has_new_relation = heaps().any(|file| self.explanation.new_relations.contains_key(file));
                let is_swap =
                    has_new_relation || heaps().any(|file| self.explanation.transient.contains(file));
                if is_move || is_swap {
                    let is_own = |file: &&RelFileLocator| {
                        indexes.get(*file).is_some_and(|part| *part != Part::ToastIndex)
                    };
                    let own_indexes = || new.iter().filter(is_own);
                    // ALTER TABLE may add an index, but then replaces fewer files than it makes.
                    let is_concurrent = is_swap
                        && self.explanation.version >= Major::V19
                        && rewrite.created.len() == rewrite.dropped.len()
                        && own_indexes().next().is_some()
                        && own_indexes().all(|file| self.explanation.new_relations.contains_key(file));
                    let rewriting = Rewriting {
                        xid: rewrite.xid,
                        is_move: !is_swap,
                        is_concurrent,
                        was_unlogged: old.iter().any(|file| self.explanation.unlogged.contains(file)),
                        // Without locks, the level is `minimal`.
                        has_logged_rows: has_new_relation,
                    };
                    written_by.extend(new.iter().map(|file| (*file, rewriting)));
                    replaced.extend(old);
                }
            }
        }
        for relation in tables.iter_mut().flat_map(|table| &mut table.relations) {
            relation.written_by = written_by.get(&relation.file).copied();
            relation.is_replaced |= replaced.contains(&relation.file);
        }
    }

    fn is_first_file(&self, file: RelFileLocator) -> bool {
        self.labels.owner(Owner::Relation(file, Fork::MAIN)).oid == Some(file.relation)
    }

    /// Files by the table that they belong to, `None` if they have no name.
    fn by_table(
        &self,
        files: impl Iterator<Item = RelFileLocator>,
    ) -> FxHashMap<Option<String>, Vec<RelFileLocator>> {
        let mut tables: FxHashMap<Option<String>, Vec<RelFileLocator>> = FxHashMap::default();
        for file in files {
            let table = self.labels.table_of(Owner::Relation(file, Fork::MAIN));
            tables.entry((table.part != Part::Relation).then_some(table.text)).or_default().push(file);
        }
        tables
    }

    /// Whether a relation was dropped together with this file, and did not get a new file.
    pub fn is_gone(&self, relation: &Relation) -> bool {
        let is_replaced = relation.is_replaced || self.replaced.contains(&relation.file);
        relation.dropped_at.is_some() && !is_replaced
    }

    /// The transaction that made a file.
    pub fn creator_of(&self, file: RelFileLocator) -> Option<u32> {
        let replaced = || self.explanation.rewrites.iter().find(|one| one.created.contains(&file));
        self.explanation.new_relations.get(&file).copied().or_else(|| Some(replaced()?.xid))
    }

    /// Whether `CREATE DATABASE` copied a file from the template: the others of a database are of new
    /// relations, or of rewrites.
    pub fn is_copied(&self, relation: &Relation) -> bool {
        self.copied_databases.contains(&relation.file.database)
            && relation.was_created
            && relation.written_by.is_none()
            && !self.explanation.new_relations.contains_key(&relation.file)
    }

    /// Bytes that a transaction wrote, without images and of images, at most: only the largest transactions
    /// are known by themselves.
    pub fn bytes_of(&self, xid: u32) -> (u64, u64) {
        let transactions = &self.explanation.transactions;
        let transaction = transactions.iter().find(|one| one.xid == xid).or(transactions.last());
        transaction.map_or((0, 0), |one| (one.bytes.saturating_sub(one.image_bytes), one.image_bytes))
    }

    /// Without names, a relation with index records only is an index.
    fn has_only_index_records(&self, cells: &[usize]) -> bool {
        let managers = cells.iter().filter_map(|cell| self.kind(*cell)).map(Kind::rmid);
        let mut has_any = false;
        let are_all = managers.into_iter().all(|manager| {
            let is_index = is_index_manager(manager);
            has_any |= is_index;
            is_index || manager == rmid::XLOG
        });
        has_any && are_all
    }

    pub fn share(&self, bytes: u64) -> f64 {
        self.explanation.share(bytes)
    }

    /// A share in percent, as text.
    pub fn percent(&self, bytes: u64) -> String {
        percent_text(self.share(bytes))
    }

    /// The kind of a cell's records.
    pub fn kind(&self, cell: usize) -> Option<Kind> {
        kind_of(&self.cells[cell].0)
    }

    pub fn tally(&self, cell: usize) -> &Tally {
        &self.cells[cell].1
    }

    /// The tables of users.
    pub fn user_tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(|table| !table.is_catalog)
    }

    /// Cells of relations whose records have one of these kinds: the resource manager, and the kind's bits.
    pub fn cells<'b>(
        &'b self,
        relations: impl IntoIterator<Item = &'b Relation>,
        is_wanted: impl Fn(u8, u8) -> bool + Copy + 'b,
    ) -> impl Iterator<Item = usize> {
        let is_wanted =
            move |cell: &usize| self.kind(*cell).is_some_and(|kind| is_wanted(kind.rmid(), kind.info()));
        relations.into_iter().flat_map(|relation| relation.cells.iter().copied()).filter(is_wanted)
    }

    /// Cells of records of one of these kinds that belong to no relation.
    pub fn cells_without_relation(&self, is_wanted: impl Fn(u8, u8) -> bool) -> Vec<usize> {
        let cells = self.cells.iter().enumerate();
        let is_its = |cell: &Cell| {
            cell.owner == Owner::None && kind_of(cell).is_some_and(|kind| is_wanted(kind.rmid(), kind.info()))
        };
        cells.filter(|(_, (cell, _))| is_its(cell)).map(|(at, _)| at).collect()
    }

    /// The cells of a relation's main fork. Images of maps say nothing of how the relation was written: to
    /// truncate a table is to log a page of each (`FreeSpaceMapPrepareTruncateRel`,
    /// `visibilitymap_prepare_truncate`).
    pub fn main_fork(&self, relation: &Relation) -> impl Iterator<Item = usize> {
        let owner = |cell: usize| self.cells[cell].0.owner;
        let is_main =
            move |cell: &usize| matches!(owner(*cell), Owner::Relation(_, fork) if fork == Fork::MAIN);
        relation.cells.iter().copied().filter(is_main)
    }

    pub fn records(&self, cells: impl Iterator<Item = usize>) -> u64 {
        cells.map(|cell| self.tally(cell).records).sum()
    }

    pub fn bucket(&self, cells: impl Iterator<Item = usize>, bucket: Bucket) -> u64 {
        cells.map(|cell| self.tally(cell).buckets.get(bucket)).sum()
    }

    /// Returns a claim of a share of the cells' bytes without images (`plain`), and of a share of their
    /// images.
    pub fn claim(&self, cells: impl Iterator<Item = usize>, plain: f64, images: f64) -> Claim {
        let mut claim = Claim::default();
        self.extend(&mut claim, cells, plain, images);
        claim
    }

    pub fn extend(&self, claim: &mut Claim, cells: impl Iterator<Item = usize>, plain: f64, images: f64) {
        cells.for_each(|cell| claim.add_share(cell, self.tally(cell), plain, images));
    }

    /// Adds plain bytes of a relation's records of some kinds, in the order of its cells.
    pub fn extend_plain(&self, claim: &mut Claim, cells: impl Iterator<Item = usize>, bytes: u64) {
        let mut bytes = bytes;
        for cell in cells {
            let tally = self.tally(cell);
            let part = bytes.min(tally.bytes() - tally.buckets.images());
            claim.add_plain(cell, part);
            bytes -= part;
        }
    }

    /// Adds bytes of images of a relation's records of some kinds, in the order of its cells.
    pub fn extend_images(&self, claim: &mut Claim, cells: impl Iterator<Item = usize>, bytes: u64) {
        let mut bytes = bytes;
        for cell in cells {
            let part = bytes.min(self.tally(cell).buckets.images());
            claim.add_images(cell, part);
            bytes -= part;
        }
    }

    /// Adds commit records of transactions.
    pub fn extend_commits(&self, claim: &mut Claim, transactions: u64) {
        /// Commit records with lists of files, messages or subtransactions are longer.
        const MOST_BYTES: u64 = 48;
        let is_commit = |manager: u8, info: u8| manager == rmid::XACT && info & xact::OPMASK == xact::COMMIT;
        let cells = self.cells_without_relation(is_commit);
        let bytes: u64 = cells.iter().map(|cell| self.tally(*cell).bytes()).sum();
        let mean = bytes / self.records(cells.iter().copied()).max(1);
        self.extend_plain(claim, cells.into_iter(), transactions * mean.min(MOST_BYTES));
    }
}

impl Table {
    /// Returns ` of TABLE`, the suffix of an index name. Without names the table is unknown, and the suffix
    /// is empty.
    pub fn behind(&self, index: &Relation) -> String {
        match index.part == Part::Relation || index.name == self.name {
            true => String::new(),
            false => format!(" of {}", self.name),
        }
    }

    /// The table's own files.
    pub fn heaps(&self) -> impl Iterator<Item = &Relation> {
        self.relations.iter().filter(|one| !one.is_index && !one.is_toast())
    }

    /// Returns the files of the table's indexes, without the indexes of its TOAST table.
    pub fn index_files(&self) -> impl Iterator<Item = &Relation> {
        self.relations.iter().filter(|one| one.is_index && one.part != Part::ToastIndex)
    }

    /// Returns the files of the table's indexes, grouped by index.
    pub fn indexes(&self) -> Vec<Index<'_>> {
        let mut indexes: BTreeMap<&str, Index<'_>> = BTreeMap::new();
        for file in self.index_files() {
            let index = indexes.entry(&file.index_name).or_insert_with(|| Index {
                name: &file.index_name,
                last: file,
                files: Vec::new(),
                evidence: Evidence::default(),
            });
            if index.last.dropped_at.is_some() {
                index.last = file;
            }
            index.files.push(file);
            index.evidence.merge(&file.evidence);
        }
        indexes.into_values().collect()
    }

    /// Whether it was dropped within the WAL.
    pub fn is_gone(&self, facts: &Facts<'_>) -> bool {
        let is_heap = |one: &&Relation| !one.is_index && !one.is_toast();
        let has_heap = self.relations.iter().any(|one| is_heap(&one));
        let mut own = self.relations.iter().filter(|one| is_heap(one) || !has_heap);
        own.all(|one| facts.is_gone(one))
    }

    /// Number of transactions, by counts of its evidence: those with records of several tables count if the
    /// table has partitions.
    pub fn emptied(&self, counts: EmptiedTransactions) -> u64 {
        let mut names = self.heaps().map(|one| one.name.as_str());
        let first = names.next();
        let has_partitions = names.any(|name| Some(name) != first);
        counts.of_one + if has_partitions { counts.of_several } else { 0 }
    }

    /// Evidence of all of its own files.
    pub fn evidence(&self) -> Evidence {
        let mut sum = Evidence::default();
        self.heaps().for_each(|heap| sum.merge(&heap.evidence));
        sum
    }
}

impl Index<'_> {
    /// Returns the table's name in statements, or the names of its parts.
    pub fn sql(&self) -> SqlName {
        match self.name == self.last.name {
            true => self.last.sql.clone(),
            false => SqlName::of_parts(self.name, &self.last.sql, "index"),
        }
    }

    /// Whether the index existed before the first record of the WAL.
    pub fn is_old(&self) -> bool {
        self.files.iter().any(|file| !file.was_created)
    }

    /// Whether updates that change its columns can be HOT, as with the access methods that summarize
    /// (`amsummarizing`), since 16: BRIN.
    pub fn is_summarizing(&self, facts: &Facts<'_>) -> bool {
        let is_brin = |manager: u8, _: u8| manager == rmid::BRIN;
        facts.explanation.version >= Major::V16
            && (facts.labels.has_access_method(Owner::Relation(self.last.file, Fork::MAIN), "brin")
                || facts.cells(self.files.iter().copied(), is_brin).next().is_some())
    }

    /// Whether it has records of its own: most access methods build an index as images of its pages alone.
    pub fn has_entries(&self, facts: &Facts<'_>) -> bool {
        let is_its = |manager: u8, info: u8| is_index_manager(manager) && !is_index_vacuum(manager, info);
        facts.cells(self.files.iter().copied(), is_its).next().is_some()
    }
}

impl Relation {
    pub fn is_toast(&self) -> bool {
        self.part == Part::Toast || (self.part == Part::Relation && self.evidence.toast_inserts > 0)
    }
}

pub(super) fn kind_of(cell: &Cell) -> Option<Kind> {
    Kind::from_index(cell.kind?.into())
}

pub(super) fn is_index_manager(manager: u8) -> bool {
    (rmid::BTREE..=rmid::GIST).contains(&manager) || matches!(manager, rmid::SPGIST | rmid::BRIN)
}

/// Records that are an image of a page and nothing else, as builds and rewrites write them.
pub(super) fn is_page_image(manager: u8, info: u8) -> bool {
    manager == rmid::XLOG && info == xlog::FPI
}

/// Records in which vacuum works on an index.
pub(super) fn is_index_vacuum(manager: u8, info: u8) -> bool {
    manager == rmid::BTREE
        && matches!(
            info,
            btree::VACUUM
                | btree::MARK_PAGE_HALFDEAD
                | btree::UNLINK_PAGE
                | btree::UNLINK_PAGE_META
                | btree::META_CLEANUP
                | btree::REUSE_PAGE
        )
}

pub(super) fn is_update(manager: u8, info: u8) -> bool {
    manager == rmid::HEAP && matches!(info & heap::OPMASK, heap::UPDATE | heap::HOT_UPDATE)
}

pub(super) fn is_delete(manager: u8, info: u8) -> bool {
    manager == rmid::HEAP && info & heap::OPMASK == heap::DELETE
}

pub(super) fn is_lock(manager: u8, info: u8) -> bool {
    manager == rmid::HEAP && info & heap::OPMASK == heap::LOCK
}

/// Inserts of heap tuples.
pub(super) fn is_insert(manager: u8, info: u8) -> bool {
    (manager == rmid::HEAP && info & heap::OPMASK == heap::INSERT)
        || (manager == rmid::HEAP2 && info & heap2::OPMASK == heap2::MULTI_INSERT)
}

/// Records of pruning, vacuuming, freezing and visibility on the heap.
pub(super) fn is_heap_vacuum(manager: u8, info: u8) -> bool {
    let kind = info & heap2::OPMASK;
    manager == rmid::HEAP2
        && !matches!(kind, heap2::MULTI_INSERT | heap2::LOCK_UPDATED | heap2::NEW_CID | heap2::REWRITE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::Part;

    #[test]
    fn statements_have_exact_names_alone() {
        let statement = |name: Option<&str>| {
            let plain = Label::plain(Part::Relation, name.unwrap_or("1663/5/16384"));
            let label = Label { name: name.map(str::to_owned), ..plain };
            SqlName::from_label(&label).statement("DROP INDEX", "")
        };
        assert_eq!(statement(Some("t_pkey")), "DROP INDEX t_pkey");
        assert_eq!(statement(Some("\"t\u{FFFD}\"")), "DROP INDEX [name of \"t\u{FFFD}\"]");
        assert_eq!(statement(None), "DROP INDEX [name of 1663/5/16384]");
    }
}
