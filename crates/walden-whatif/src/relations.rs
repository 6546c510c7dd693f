//! Changes of tables and indexes by name, with the affected files.

use rustc_hash::FxHashSet;
use walden_explain::group::Owner;
use walden_explain::{ExplainError, Request, rewrites};
use walden_format::record::RelFileLocator;
use walden_source::block::parse_file;
use walden_source::inventory::Run;
use walden_source::names::{Names, Relation, RelationKind, Resolved};

use crate::objects::{Change, ObjectChange};

/// The changes to try, by names of tables and indexes, or by their files as text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NamedChanges {
    /// Indexes that are dropped.
    pub drop_index: Vec<String>,
    /// Tables that get a B-tree index, with the size of a key in bytes.
    pub add_index: Vec<(String, u32)>,
    /// Tables with another `fillfactor`, in percent.
    pub fillfactor: Vec<(String, u8)>,
}

walden_format::setters!(NamedChanges {
    drop_index: Vec<String>,
    add_index: Vec<(String, u32)>,
    fillfactor: Vec<(String, u8)>,
});

impl NamedChanges {
    /// Returns whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.drop_index.is_empty() && self.add_index.is_empty() && self.fillfactor.is_empty()
    }
}

/// Why a table or index cannot be changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelationError {
    /// There is no such relation.
    #[error("no table or index is called {0}")]
    Unknown(String),
    /// Several relations have the name.
    #[error("cannot use {0}: more than one table or index has this name")]
    Ambiguous(String),
    /// The relation is of another kind.
    #[error("cannot use {option}: expected {expected}, found the {kind} {relation}")]
    OtherKind {
        /// The option that names the relation.
        option: &'static str,
        /// The expected kind, with its article.
        expected: &'static str,
        /// The kind that was found.
        kind: RelationKind,
        /// The name of the relation.
        relation: String,
    },
}

walden_format::diagnostics! { RelationError {
    Self::Unknown(name) => "relation-unknown": format!(
        "give --names with a connection string or a saved file, or TABLESPACE/DATABASE/FILE as numbers \
         (SELECT pg_relation_filepath('{name}') says base/DATABASE/FILE)"
    ),
    Self::Ambiguous(_) => "relation-ambiguous": "write DATABASE.SCHEMA.NAME",
    Self::OtherKind { .. } => "relation-kind",
} }

/// Learns from a run which files relations had before they were rewritten, as `walden explain` does.
/// Returns the files for which the run has records. Without a server's names there is nothing to learn.
/// `done` receives the bytes that were read.
///
/// # Errors
/// The WAL cannot be explained.
pub fn learn(
    names: &mut Names,
    run: &Run,
    threads: usize,
    done: impl FnMut(u64),
) -> Result<Vec<RelFileLocator>, ExplainError> {
    if names.files().next().is_none() {
        return Ok(Vec::new());
    }
    let request = Request::new(threads).top(0);
    let explanation = walden_explain::explain(std::slice::from_ref(run), &request, done)?;
    names.set_version(explanation.version);
    rewrites::learn(&explanation, names);
    let file = |owner| match owner {
        Owner::Relation(file, _) => Some(file),
        Owner::None | Owner::Framing => None,
    };
    let mut files: Vec<RelFileLocator> =
        explanation.cells.iter().filter_map(|(cell, _)| file(cell.owner)).collect();
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

/// Relations by name, with all of their files.
#[derive(Debug)]
pub struct Relations<'a> {
    names: &'a Names,
    /// Files from before rewrites.
    rewritten: Vec<(RelFileLocator, &'a Relation)>,
}

impl<'a> Relations<'a> {
    /// Combines names with the `files` of the trace, which [`learn`] returned for these names.
    pub fn new(names: &'a Names, files: &[RelFileLocator]) -> Relations<'a> {
        let rewritten = |file: &RelFileLocator| match names.resolve(*file) {
            Resolved::Rewritten(relation) => Some((*file, relation)),
            _ => None,
        };
        Relations { names, rewritten: files.iter().filter_map(rewritten).collect() }
    }

    /// Returns all current and former files, each with its relation.
    fn files(&self) -> impl Iterator<Item = (RelFileLocator, &'a Relation)> {
        self.names.files().chain(self.rewritten.iter().copied())
    }
}

/// Returns the requested changes of tables and indexes, with the affected files.
///
/// # Errors
/// A name that is unknown, ambiguous, or of an object of another kind.
pub fn changes(wanted: &NamedChanges, relations: &Relations<'_>) -> Result<Vec<ObjectChange>, RelationError> {
    let mut all = Vec::new();
    for name in &wanted.drop_index {
        let files = Object::find(name, relations)?;
        const KINDS: [RelationKind; 2] = [RelationKind::Index, RelationKind::PartitionedIndex];
        files.expect(&KINDS, ("--drop-index", "an index"))?;
        let table = files.relation.and_then(|index| relations.names.by_oid(index.database, index.table?));
        let table = table.map(|table| Object::new(table, relations));
        let indexes = table.as_ref().map(|table| table.indexes(relations)).unwrap_or_default();
        let others = indexes.difference(&files.files).copied().collect();
        let what = format!("drop index {name}");
        let table = table.map(|table| table.files).unwrap_or_default();
        all.push(ObjectChange { what, change: Change::DropIndex(files.files), table, indexes: others });
    }
    let tables = wanted.add_index.iter().map(|(name, bytes)| {
        (name, Change::AddIndex(*bytes), format!("add an index on {name}, keys of {bytes} bytes"))
    });
    let fills = wanted.fillfactor.iter().map(|(name, percent)| {
        (name, Change::FillFactor(*percent), format!("fillfactor of {name} to {percent}"))
    });
    for (name, change, what) in tables.chain(fills) {
        let table = Object::find(name, relations)?;
        let option = if matches!(change, Change::AddIndex(_)) { "--add-index" } else { "--fillfactor" };
        const KINDS: [RelationKind; 3] =
            [RelationKind::Table, RelationKind::MaterializedView, RelationKind::PartitionedTable];
        table.expect(&KINDS, (option, "a table"))?;
        all.push(ObjectChange { what, change, indexes: table.indexes(relations), table: table.files });
    }
    Ok(all)
}

/// A relation and all its files, including files of its partitions and files from before rewrites.
#[derive(Default)]
struct Object<'a> {
    relation: Option<&'a Relation>,
    files: FxHashSet<RelFileLocator>,
}

impl<'a> Object<'a> {
    fn find(name: &str, relations: &Relations<'a>) -> Result<Object<'a>, RelationError> {
        if let Some((file, _)) = parse_file(name) {
            let relation = relations.names.resolve(file).relation();
            let mut object = relation.map(|relation| Object::new(relation, relations)).unwrap_or_default();
            object.files.insert(file);
            return Ok(object);
        }
        let found = relations.names.named(name);
        let Some(relation) = found.first() else {
            return Err(RelationError::Unknown(name.to_owned()));
        };
        if found.len() > 1 {
            return Err(RelationError::Ambiguous(name.to_owned()));
        }
        Ok(Object::new(relation, relations))
    }

    fn new(relation: &'a Relation, relations: &Relations<'a>) -> Object<'a> {
        let is_its = |of: &Relation| relations.names.is_within(of, relation);
        let files = relations.files().filter(|(_, of)| is_its(of)).map(|(file, _)| file);
        Object { relation: Some(relation), files: files.collect() }
    }

    /// Refuses a relation of another kind, if the names state its kind.
    fn expect(
        &self,
        kinds: &[RelationKind],
        (option, expected): (&'static str, &'static str),
    ) -> Result<(), RelationError> {
        match self.relation {
            Some(relation) if !kinds.contains(&relation.kind) => {
                let (kind, relation) = (relation.kind, relation.to_string());
                Err(RelationError::OtherKind { option, expected, kind, relation })
            }
            _ => Ok(()),
        }
    }

    /// Returns the files of the table's indexes.
    fn indexes(&self, relations: &Relations<'_>) -> FxHashSet<RelFileLocator> {
        let Some(table) = self.relation else { return FxHashSet::default() };
        let is_its = |index: &Relation| {
            let of = index.table.and_then(|oid| relations.names.by_oid(index.database, oid));
            index.kind == RelationKind::Index && of.is_some_and(|of| relations.names.is_within(of, table))
        };
        relations.files().filter(|(_, of)| is_its(of)).map(|(file, _)| file).collect()
    }
}

#[cfg(test)]
mod tests {
    use walden_source::names::Persistence;

    use super::*;

    #[test]
    fn changes_are_of_relations_that_can_have_them() {
        let mut names = Names::default();
        let all = [
            ("orders", RelationKind::Table),
            ("orders_pkey", RelationKind::Index),
            ("orders_id_seq", RelationKind::Sequence),
            ("totals", RelationKind::MaterializedView),
            ("pg_toast_1", RelationKind::Toast),
        ];
        for (oid, (name, kind)) in (20_000..).zip(all) {
            let relation = Relation {
                database: 5,
                shared: false,
                oid,
                schema: "public".to_owned(),
                name: name.to_owned(),
                kind,
                persistence: Persistence::Permanent,
                access_method: None,
                table: None,
                partition_of: None,
                scans: None,
                is_required: None,
                covered_by: None,
            };
            names.add(relation, Some(RelFileLocator { tablespace: 1663, database: 5, relation: oid }));
        }
        let relations = Relations::new(&names, &[]);
        let is_index = |name: &str| {
            let found = Object::find(name, &relations).unwrap();
            found
                .expect(&[RelationKind::Index], ("--drop-index", "an index"))
                .map_err(|error| error.to_string())
        };
        assert_eq!(is_index("orders_pkey"), Ok(()));
        assert_eq!(is_index("1663/5/20001"), Ok(()));
        // A file without a known name may be an index.
        assert_eq!(is_index("1663/5/29999"), Ok(()));
        let refused = "cannot use --drop-index: expected an index, found the table orders";
        assert_eq!(is_index("public.orders"), Err(refused.to_owned()));
        assert_eq!(is_index("1663/5/20000"), Err(refused.to_owned()));
        assert!(["orders_id_seq", "totals", "pg_toast_1"].iter().all(|name| is_index(name).is_err()));
    }
}
