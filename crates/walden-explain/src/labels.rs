//! What groups are called: names where they are known, numbers where not.

use std::collections::HashSet;

use serde::Serialize;
use walden_format::record::{Fork, RelFileLocator};
use walden_source::names::{Names, Relation, RelationKind, Resolved};

use crate::explain::Explanation;
use crate::group::{Cell, Owner};

/// What a label stands for.
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
    /// A relation whose kind is not known.
    Relation,
    FreeSpaceMap,
    VisibilityMap,
    InitFork,
    /// Records that refer to no block.
    NoRelation,
    /// Page headers, padding, the end of the log.
    Framing,
    Record,
    Xid,
    Database,
    Time,
    Checkpoint,
    /// What is not listed.
    Rest,
}

/// What a group is called, and the numbers behind it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Label {
    /// What it stands for.
    pub part: Part,
    /// For people.
    pub text: String,
    /// The relation's files, `tablespace/database/number`.
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
    /// The table that it belongs to, if known and another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// The relation has been rewritten since: these are files that it had before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rewritten: bool,
}

impl Label {
    pub(crate) fn plain(part: Part, text: &str) -> Label {
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
        Label::plain(Part::Rest, &format!("{count} more {what}{}", if count == 1 { "" } else { "s" }))
    }

    /// What it is within its table.
    pub fn part_text(&self) -> String {
        let name = self.name.as_deref().or(self.file.as_deref()).unwrap_or(&self.text);
        let rewritten = if self.rewritten { " (before its rewrite)" } else { "" };
        match self.part {
            Part::Table | Part::MaterializedView => format!("heap{rewritten}"),
            Part::Index => format!("index {name}{rewritten}"),
            Part::Toast => format!("TOAST{rewritten}"),
            Part::ToastIndex => format!("TOAST index{rewritten}"),
            Part::Relation => "main fork".into(),
            Part::FreeSpaceMap => format!("free space map{}", self.of_other()),
            Part::VisibilityMap => format!("visibility map{}", self.of_other()),
            Part::InitFork => format!("init fork{}", self.of_other()),
            _ => self.text.clone(),
        }
    }

    /// Of which relation a map is, if not of the table itself.
    fn of_other(&self) -> String {
        match (&self.table, &self.name) {
            (Some(_), Some(name)) => format!(" of {name}"),
            _ => String::new(),
        }
    }
}

/// Gives groups their labels.
pub struct Labels<'a> {
    names: &'a Names,
    /// More than one database is in the log, so that names need their database's.
    several_databases: bool,
}

impl<'a> Labels<'a> {
    /// Labels for what is in `explanation`.
    pub fn new(names: &'a Names, explanation: &Explanation) -> Labels<'a> {
        let database = |cell: &Cell| match cell.owner {
            Owner::Relation(locator, _) if locator.database != 0 => Some(locator.database),
            _ => None,
        };
        let databases: HashSet<u32> =
            explanation.cells.iter().filter_map(|(cell, _)| database(cell)).collect();
        Labels { names, several_databases: databases.len() > 1 }
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
                // A TOAST table's index belongs to the owner of the TOAST table; its schema tells it.
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

    /// The label of the table that an owner belongs to; without names a relation stands for itself.
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

    /// The label of a database; nothing: of what belongs to none.
    pub fn database(&self, oid: Option<u32>) -> Label {
        let text = match oid {
            None => "(no database: commits, checkpoints, framing)".into(),
            Some(oid) => self.database_text(oid),
        };
        Label { oid, ..Label::plain(Part::Database, &text) }
    }

    /// Belongs to a system catalog: by its name, or by a file number that initdb gave.
    pub fn is_catalog(&self, owner: Owner) -> bool {
        match owner {
            Owner::Relation(locator, _) => match self.names.resolve(locator).relation() {
                Some(relation) => self.names.table_of(locator.database, relation).is_catalog(),
                None => locator.relation < walden_source::names::FIRST_USER_OID,
            },
            Owner::None | Owner::Framing => false,
        }
    }

    /// How often an index was scanned since the statistics were reset, if the names' server said so.
    pub fn index_scans(&self, owner: Owner) -> Option<u64> {
        match owner {
            Owner::Relation(locator, _) => self.names.resolve(locator).relation()?.scans,
            Owner::None | Owner::Framing => None,
        }
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
            // The numbers of an unnamed relation say the database already.
            (true, None) if locator.database != 0 && !name.contains('/') => {
                format!("database {}: {name}", locator.database)
            }
            _ => name,
        }
    }
}
