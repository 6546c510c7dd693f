//! Labels of groups: names if known, otherwise numbers.

use std::collections::HashSet;

use regex::Regex;
use serde::Serialize;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::Kind;
use walden_format::version::Major;
use walden_source::counted;
use walden_source::names::{Identifier, MAX_PARTITION_LEVELS, Names, Relation, RelationKind, Resolved};

use crate::explanation::Explanation;
use crate::group::{Cell, Owner};
use crate::writers::Writers;

/// The kind of object that a label refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Part {
    Table,
    Index,
    Toast,
    ToastIndex,
    Sequence,
    MaterializedView,
    /// A relation of unknown kind.
    Relation,
    FreeSpaceMap,
    VisibilityMap,
    InitFork,
    /// Records that refer to no block.
    NoRelation,
    /// Page headers, padding, the end of the WAL.
    Framing,
    Record,
    Xid,
    Database,
    Time,
    Checkpoint,
    Schema,
    /// A partitioned table with its partitions, or another table.
    Partition,
    Tablespace,
    /// Relations whose name matches a pattern.
    Group,
    Vacuum,
    User,
    Application,
    Client,
    Statement,
    /// Groups that are not listed.
    Rest,
}

/// The label of a group, with the numbers of its object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Label {
    /// The kind of object.
    pub part: Part,
    /// The text to show.
    pub text: String,
    /// The relation's file, `tablespace/database/relfilenumber`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The fork, for relations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// The relation's OID, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oid: Option<u32>,
    /// The relation's name with its schema, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The database's name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The table that the relation belongs to, if it is another relation and known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Whether this is the label of a file that the relation had before a rewrite.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rewritten: bool,
}

impl Label {
    /// Creates the label of a group that is no relation.
    pub fn plain(part: Part, text: &str) -> Label {
        Label {
            part,
            text: text.to_owned(),
            file: None,
            fork: None,
            oid: None,
            name: None,
            database: None,
            table: None,
            rewritten: false,
        }
    }

    pub(crate) fn rest(count: u64, what: &str) -> Label {
        Label::plain(Part::Rest, &counted(count, &format!("more {what}")))
    }

    /// Adds a mark to the text if the label refers to a file from before a relation's rewrite. Without it,
    /// two groups of a view would have the same text.
    pub(crate) fn marked(mut self) -> Label {
        if self.rewritten {
            self.text.push_str(BEFORE_REWRITE);
        }
        self
    }

    /// The text without that mark: the same for all files of a relation.
    pub(crate) fn unmarked_text(&self) -> &str {
        self.text.strip_suffix(BEFORE_REWRITE).filter(|_| self.rewritten).unwrap_or(&self.text)
    }

    /// Returns the relation's role within its table, as a text.
    pub fn part_text(&self) -> String {
        let name = self.name.as_deref().or(self.file.as_deref()).unwrap_or(&self.text);
        let rewritten = if self.rewritten { BEFORE_REWRITE } else { "" };
        match self.part {
            Part::Table | Part::MaterializedView => format!("heap{rewritten}"),
            Part::Index => format!("index {name}{rewritten}"),
            Part::Toast => format!("TOAST{rewritten}"),
            Part::ToastIndex => format!("TOAST index{rewritten}"),
            Part::Relation => format!("main fork{rewritten}"),
            Part::FreeSpaceMap => format!("free space map{}{rewritten}", self.describe_owner()),
            Part::VisibilityMap => format!("visibility map{}{rewritten}", self.describe_owner()),
            Part::InitFork => format!("init fork{}{rewritten}", self.describe_owner()),
            _ => self.text.clone(),
        }
    }

    /// The relation of a map, if it is not the table itself.
    fn describe_owner(&self) -> String {
        match (&self.table, &self.name) {
            (Some(_), Some(name)) => format!(" of {name}"),
            _ => String::new(),
        }
    }
}

/// Whether vacuum wrote records of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VacuumWork {
    /// Only vacuum writes records of this kind in this form.
    Sure,
    /// Queries that prune pages write the same records.
    OrPruning,
    /// The catalog's page and tuple counts and oldest transactions of a table or database.
    Statistics,
    /// Vacuum does not write records of this kind, or the writer cannot be determined.
    None,
}

/// Whether vacuum wrote records of a kind.
pub(crate) fn vacuum_work(version: Major, kind: Option<Kind>, in_transaction: bool) -> VacuumWork {
    let Some(kind) = kind else { return VacuumWork::None };
    match (kind.resource_manager(version).as_ref(), kind.name(version).as_ref()) {
        // Vacuum has no transaction, except when it truncates the table's end under a lock.
        (
            "Heap2",
            "PRUNE_VACUUM_SCAN" | "PRUNE_VACUUM_CLEANUP" | "VACUUM" | "FREEZE_PAGE" | "CLEANUP_INFO",
        ) => VacuumWork::Sure,
        ("Btree", "VACUUM" | "MARK_PAGE_HALFDEAD" | "UNLINK_PAGE" | "UNLINK_PAGE_META" | "META_CLEANUP")
        | ("Gin", "VACUUM_PAGE" | "VACUUM_DATA_LEAF_PAGE" | "DELETE_PAGE")
        | ("Gist", "PAGE_DELETE")
        | ("SPGist", "VACUUM_LEAF" | "VACUUM_ROOT" | "VACUUM_REDIRECT") => VacuumWork::Sure,
        _ if in_transaction => VacuumWork::None,
        // log_heap_visible(): also called by COPY FREEZE, which has a transaction.
        ("Heap2", "VISIBLE") => VacuumWork::Sure,
        // hashbucketcleanup() and GiST's scan of an index's pages. Insertions that do the same have a
        // transaction.
        ("Hash", "DELETE" | "SPLIT_CLEANUP" | "SQUEEZE_PAGE" | "MOVE_PAGE_CONTENTS" | "UPDATE_META_PAGE")
        | ("Gist", "PAGE_UPDATE")
        | ("Gin", "UPDATE_META_PAGE" | "DELETE_LISTPAGE" | "INSERT" | "SPLIT")
        | ("BRIN", _) => VacuumWork::Sure,
        // heap_page_prune_opt() in a read-only query has no transaction either.
        ("Heap2", "PRUNE" | "CLEAN") => VacuumWork::OrPruning,
        // vac_update_relstats() and vac_update_datfrozenxid()
        ("Heap", "INPLACE") => VacuumWork::Statistics,
        _ => VacuumWork::None,
    }
}

/// Marks a file from before a relation's rewrite, whose name comes from the file after it.
const BEFORE_REWRITE: &str = " (before its rewrite)";

/// The label of relations without a name; [`NOT_IN_NAMES`] if other relations of their database have names.
const NOT_NAMED: &str = "(not named: --names gives names)";
const NOT_IN_NAMES: &str = "(not in the names: dropped or rewritten)";

/// The match of a pattern in a name: the texts of its capture groups, or the whole match.
fn group_of(pattern: &Regex, name: &str) -> Option<String> {
    let captures = pattern.captures(name)?;
    let groups: Vec<&str> = captures.iter().skip(1).flatten().map(|group| group.as_str()).collect();
    match groups.is_empty() {
        true => captures.get(0).map(|all| all.as_str().to_owned()),
        false => Some(groups.join(", ")),
    }
}

/// The databases of an explanation's relations; shared relations belong to none.
pub(crate) fn databases_of(explanation: &Explanation) -> HashSet<u32> {
    let database = |cell: &Cell| match cell.owner {
        Owner::Relation(locator, _) if locator.database != 0 => Some(locator.database),
        _ => None,
    };
    explanation.cells.iter().filter_map(|(cell, _)| database(cell)).collect()
}

/// Labels groups by names.
pub struct Labels<'a> {
    names: &'a Names,
    /// Whether the WAL contains more than one database, so that names are qualified by it.
    several_databases: bool,
}

impl<'a> Labels<'a> {
    /// Labels for the groups of an explanation.
    pub fn new(names: &'a Names, explanation: &Explanation) -> Labels<'a> {
        Labels { names, several_databases: databases_of(explanation).len() > 1 }
    }

    /// Creates labels that are qualified by the database if there are several.
    pub fn from_names(names: &'a Names, several_databases: bool) -> Labels<'a> {
        Labels { names, several_databases }
    }

    /// The label of an owner.
    pub fn owner(&self, owner: Owner) -> Label {
        match owner {
            Owner::None => Label::plain(Part::NoRelation, "(no relation: commits, checkpoints ...)"),
            Owner::Framing => Label::plain(Part::Framing, "(page headers, padding, tail)"),
            Owner::Relation(locator, fork) => self.relation(locator, fork),
        }
    }

    fn relation(&self, locator: RelFileLocator, fork: Fork) -> Label {
        let resolved = self.names.resolve(locator);
        let relation = resolved.relation();
        let main = relation.map_or(Part::Relation, |relation| self.part_of(locator, relation));
        let part = match fork {
            Fork::FREE_SPACE_MAP => Part::FreeSpaceMap,
            Fork::VISIBILITY_MAP => Part::VisibilityMap,
            Fork::INIT => Part::InitFork,
            _ => main,
        };
        let table = relation.map(|relation| self.names.table_of(locator.database, relation));
        let other_table = table.filter(|table| relation.is_some_and(|relation| relation.oid != table.oid));
        let name = relation.map(ToString::to_string);
        let mut text = self.with_database(locator, name.clone().unwrap_or_else(|| locator.to_string()));
        if fork != Fork::MAIN {
            text = format!("{text} {fork}");
        }
        Label {
            part,
            text,
            file: Some(locator.to_string()),
            fork: Some(fork.to_string()),
            oid: relation.map(|relation| relation.oid),
            name,
            database: Some(self.database_text(locator.database)),
            table: other_table.map(ToString::to_string),
            rewritten: matches!(resolved, Resolved::Rewritten(_)),
        }
    }

    fn part_of(&self, locator: RelFileLocator, relation: &Relation) -> Part {
        match relation.kind {
            RelationKind::Index | RelationKind::PartitionedIndex => {
                let parent = relation.table.and_then(|oid| self.names.by_oid(locator.database, oid));
                // If the TOAST table itself is missing, recognize the index by its schema and name.
                let of_toast = parent.is_some_and(|parent| parent.kind == RelationKind::Toast)
                    || (relation.name.starts_with("pg_toast_") && relation.schema == "pg_toast");
                if of_toast { Part::ToastIndex } else { Part::Index }
            }
            RelationKind::Toast => Part::Toast,
            RelationKind::Sequence => Part::Sequence,
            RelationKind::MaterializedView => Part::MaterializedView,
            RelationKind::Table | RelationKind::PartitionedTable => Part::Table,
            RelationKind::Other(_) => Part::Relation,
        }
    }

    /// The label of the table that an owner belongs to; without names, of the relation itself.
    pub fn table_of(&self, owner: Owner) -> Label {
        let Owner::Relation(locator, _) = owner else { return self.owner(owner) };
        let Some(relation) = self.names.resolve(locator).relation() else {
            return self.relation(locator, Fork::MAIN);
        };
        let table = self.names.table_of(locator.database, relation);
        let text = self.with_database(locator, table.to_string());
        Label {
            oid: Some(table.oid),
            name: Some(table.to_string()),
            database: Some(self.database_text(locator.database)),
            ..Label::plain(self.part_of(locator, table), &text)
        }
    }

    /// The label of a database; `None` for bytes that belong to none.
    pub fn database(&self, oid: Option<u32>) -> Label {
        let text = match oid {
            None => "(no database: commits, checkpoints, framing)".into(),
            Some(oid) => self.database_text(oid),
        };
        Label { oid, ..Label::plain(Part::Database, &text) }
    }

    /// Whether an owner belongs to a system catalog, by its name or by a relfilenumber assigned by initdb.
    pub fn is_catalog(&self, owner: Owner) -> bool {
        match owner {
            Owner::Relation(locator, _) => match self.names.resolve(locator).relation() {
                Some(relation) => self.names.table_of(locator.database, relation).is_catalog(),
                None => locator.relation < walden_source::names::FIRST_USER_OID,
            },
            Owner::None | Owner::Framing => false,
        }
    }

    /// Scans of an index since the statistics were reset, if the names come from a server.
    pub fn index_scans(&self, owner: Owner) -> Option<u64> {
        match owner {
            Owner::Relation(locator, _) => self.names.resolve(locator).relation()?.scans,
            Owner::None | Owner::Framing => None,
        }
    }

    /// A phrase for the start of the server's counting of an index's scans.
    pub fn statistics_since(&self, owner: Owner) -> String {
        let database = match owner {
            Owner::Relation(locator, _) => self.names.database(locator.database),
            Owner::None | Owner::Framing => None,
        };
        match database.and_then(|database| database.statistics_reset.as_deref()) {
            Some(time) => format!("since the statistics were reset at {time} UTC"),
            None => "since the statistics started (with the database, or after the last crash)".to_owned(),
        }
    }

    /// Whether an index enforces a constraint or identifies rows for replication; `None` if the names do not
    /// show it.
    pub fn is_required_index(&self, owner: Owner) -> Option<bool> {
        match owner {
            Owner::Relation(locator, _) => self.names.resolve(locator).relation()?.is_required,
            Owner::None | Owner::Framing => None,
        }
    }

    /// Whether an index has an access method, by names.
    pub(crate) fn has_access_method(&self, owner: Owner, method: &str) -> bool {
        let Owner::Relation(locator, _) = owner else { return false };
        let relation = self.names.resolve(locator).relation();
        relation.is_some_and(|relation| relation.access_method.as_deref() == Some(method))
    }

    /// The name of another index that starts with all columns of an index, if the names have one.
    pub(crate) fn covering_index(&self, owner: Owner) -> Option<String> {
        let Owner::Relation(locator, _) = owner else { return None };
        let index = self.names.resolve(locator).relation()?;
        let covering = self.names.by_oid(locator.database, index.covered_by?)?;
        Some(covering.to_string())
    }

    /// The label of the partitioned index that an index is a part of, at the root. The server drops a
    /// partitioned index only as a whole.
    pub(crate) fn root_of_index(&self, owner: Owner) -> Option<Label> {
        let Owner::Relation(locator, _) = owner else { return None };
        let root = self.root_index(locator.database, self.names.resolve(locator).relation()?)?;
        Some(Label {
            oid: Some(root.oid),
            name: Some(root.to_string()),
            database: Some(self.database_text(locator.database)),
            ..Label::plain(Part::Index, &self.with_database(locator, root.to_string()))
        })
    }

    /// Whether queries have used any part of the partitioned index that an index is a part of.
    pub(crate) fn is_partitioned_index_used(&self, owner: Owner) -> Option<bool> {
        let Owner::Relation(locator, _) = owner else { return None };
        let database = locator.database;
        let root = self.root_index(database, self.names.resolve(locator).relation()?)?;
        let is_part = |other: &Relation| {
            other.database == database
                && self.root_index(database, other).is_some_and(|other| other.oid == root.oid)
        };
        Some(self.names.files().any(|(_, other)| other.scans != Some(0) && is_part(other)))
    }

    fn root_index(&self, database: u32, index: &Relation) -> Option<&Relation> {
        if !matches!(index.kind, RelationKind::Index | RelationKind::PartitionedIndex) {
            return None;
        }
        let parent = |one: &Relation| self.names.by_oid(database, one.partition_of?);
        let mut root = parent(index)?;
        for _ in 0..MAX_PARTITION_LEVELS {
            let Some(next) = parent(root) else { break };
            root = next;
        }
        Some(root)
    }

    /// Whether an index is a partition of a partitioned index, which the names may or may not contain.
    pub(crate) fn is_index_partition(&self, owner: Owner) -> bool {
        let Owner::Relation(locator, _) = owner else { return false };
        self.names.resolve(locator).relation().is_some_and(|relation| relation.partition_of.is_some())
    }

    /// The label of the schema that a relation is in.
    pub fn schema(&self, owner: Owner) -> Label {
        let Owner::Relation(locator, _) = owner else { return self.owner(owner) };
        let relation = self.names.resolve(locator).relation();
        // TOAST tables have their own schema.
        let table = relation.map(|relation| self.names.table_of(locator.database, relation));
        let Some(table) = table else { return Label::plain(Part::Schema, self.not_named(locator)) };
        Label::plain(Part::Schema, &self.with_database(locator, Identifier(&table.schema).to_string()))
    }

    fn not_named(&self, locator: RelFileLocator) -> &'static str {
        if self.names.database(locator.database).is_some() { NOT_IN_NAMES } else { NOT_NAMED }
    }

    /// The label of the partitioned table at the root of a relation's table, or of the table itself.
    pub fn partition_root(&self, owner: Owner) -> Label {
        let Owner::Relation(locator, _) = owner else { return self.owner(owner) };
        let Some(relation) = self.names.resolve(locator).relation() else { return self.table_of(owner) };
        let mut table = self.names.table_of(locator.database, relation);
        for _ in 0..MAX_PARTITION_LEVELS {
            let parent = table.partition_of.and_then(|parent| self.names.by_oid(locator.database, parent));
            let Some(parent) = parent else { break };
            table = parent;
        }
        let mut label = Label::plain(Part::Partition, &self.with_database(locator, table.to_string()));
        label.oid = Some(table.oid);
        label.name = Some(table.to_string());
        label
    }

    /// The label of the tablespace that a relation's file is in.
    pub fn tablespace(&self, owner: Owner) -> Label {
        let Owner::Relation(locator, _) = owner else { return self.owner(owner) };
        let name = self.names.tablespace(locator.tablespace);
        let text = name.map_or_else(
            || format!("tablespace {}", locator.tablespace),
            |name| Identifier(name).to_string(),
        );
        Label { oid: Some(locator.tablespace), ..Label::plain(Part::Tablespace, &text) }
    }

    /// Returns the label of the group that a pattern assigns a relation to: the texts of its capture groups,
    /// or else the whole match.
    ///
    /// The pattern is searched in `DATABASE.SCHEMA.NAME` of the relation's table, so indexes are grouped with
    /// their table, and then of the relation itself.
    pub fn pattern(&self, owner: Owner, pattern: Option<&Regex>) -> Label {
        let Owner::Relation(locator, _) = owner else { return self.owner(owner) };
        let relation = self.names.resolve(locator).relation();
        let (Some(relation), Some(pattern)) = (relation, pattern) else {
            return Label::plain(Part::Group, self.not_named(locator));
        };
        let table = self.names.table_of(locator.database, relation);
        let full =
            |one: &Relation| format!("{}.{}.{}", self.database_text(locator.database), one.schema, one.name);
        let text = [table, relation].iter().find_map(|one| group_of(pattern, &full(one)));
        Label::plain(Part::Group, text.as_deref().unwrap_or("(no match)"))
    }

    /// Returns the label of vacuum's records for a table.
    ///
    /// If the server's log contains vacuums of the table, the label includes how many were automatic.
    pub(crate) fn vacuum(&self, owner: Owner, work: VacuumWork, writers: Option<&Writers>) -> Label {
        let table = self.table_of(owner).text;
        let known = || writers?.vacuums_of(&self.full_name(owner)?);
        if let (VacuumWork::Sure, Some((automatic, manual))) = (work, known()) {
            let (automatic, manual) = (automatic.count, manual);
            let text =
                format!("vacuum of {table} (by the WAL, {automatic} automatic, {manual} by statements)");
            return Label::plain(Part::Vacuum, &text);
        }
        let text = match work {
            VacuumWork::Sure => format!("vacuum of {table}"),
            VacuumWork::OrPruning => format!("vacuum of {table}, or pruning by queries"),
            VacuumWork::Statistics => format!("what vacuum or analyze learned, in {table}"),
            VacuumWork::None => "not known to be vacuum's".to_owned(),
        };
        Label::plain(Part::Vacuum, &text)
    }

    /// Returns `DATABASE.SCHEMA.TABLE` of a relation's table.
    fn full_name(&self, owner: Owner) -> Option<String> {
        let Owner::Relation(locator, _) = owner else { return None };
        let relation = self.names.resolve(locator).relation()?;
        let table = self.names.table_of(locator.database, relation);
        Some(format!("{}.{}.{}", self.database_text(locator.database), table.schema, table.name))
    }

    fn database_text(&self, oid: u32) -> String {
        match (oid, self.names.database(oid)) {
            (0, _) => "(shared)".into(),
            (_, Some(database)) => database.name.clone(),
            (_, None) => format!("database {oid}"),
        }
    }

    fn with_database(&self, locator: RelFileLocator, name: String) -> String {
        match (self.several_databases, self.names.database(locator.database)) {
            (true, Some(database)) => format!("{}: {name}", database.name),
            // The numbers of an unnamed relation include the database.
            (true, None) if locator.database != 0 && !name.contains('/') => {
                format!("database {}: {name}", locator.database)
            }
            _ => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use walden_source::names::Database;

    use super::*;

    #[test]
    fn relations_without_a_name_say_whether_their_database_has_names() {
        let file = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };
        let schema =
            |names: &Names| Labels::from_names(names, false).schema(Owner::Relation(file, Fork::MAIN)).text;
        let mut names = Names::default();
        assert_eq!(schema(&names), NOT_NAMED);
        names.add_database(
            5,
            Database { name: "shop".to_owned(), tablespace: 1663, encoding: None, statistics_reset: None },
        );
        assert_eq!(schema(&names), NOT_IN_NAMES);
    }

    #[test]
    fn maps_of_a_file_before_a_rewrite_are_marked() {
        let map = Label { rewritten: true, ..Label::plain(Part::VisibilityMap, "") };
        assert_eq!(map.part_text(), "visibility map (before its rewrite)");
        let map = Label { text: "public.t vm".to_owned(), ..map }.marked();
        assert_eq!(map.text, "public.t vm (before its rewrite)");
        assert_eq!(map.unmarked_text(), "public.t vm");
        // A table may be named like this.
        let table = Label::plain(Part::Table, "odd (before its rewrite)").marked();
        assert_eq!((table.text.as_str(), table.unmarked_text()), ("odd (before its rewrite)", &*table.text));
    }
}
