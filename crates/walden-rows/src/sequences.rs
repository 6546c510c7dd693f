//! Changes of sequences, which are no changes of rows.

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_source::names::Identifier;

use crate::catalog::{Catalog, Class, Row};
use crate::read::Filter;
use crate::survey::{CatalogChange, Findings};

/// Sequences that changed and existed before.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// The record, the name in SQL syntax, and what changed, in WAL order.
    pub by_commands: Vec<(Lsn, String, &'static str)>,
    /// Names in SQL syntax of sequences whose values were drawn or set, sorted; those without a known name by
    /// their file.
    pub by_values: Vec<String>,
}

impl Changed {
    /// Finds the sequences that selected changes of catalogs alter or drop, and those with a record of the
    /// filter's transaction. `catalog` is the state at the WAL's start.
    pub fn find(
        catalog: &Catalog,
        findings: &Findings,
        filter: &Filter,
        is_asked: &dyn Fn(&CatalogChange) -> bool,
    ) -> Changed {
        let name = |class: &Class| match catalog.schema_of(class) {
            "" => Identifier(&class.name).to_string(),
            schema => format!("{}.{}", Identifier(schema), Identifier(&class.name)),
        };
        let mut by_files: FxHashMap<RelFileLocator, Class> = FxHashMap::default();
        let mut current: FxHashMap<u32, Class> = FxHashMap::default();
        for class in catalog.classes().filter(|class| class.kind == 'S') {
            current.insert(class.oid, class.clone());
            by_files.extend(catalog.files(class).into_iter().map(|file| (file, class.clone())));
        }
        let (mut created, mut altered) = (FxHashSet::default(), FxHashSet::default());
        let mut by_commands = Vec::new();
        for change in &findings.changes {
            let sequence = |row: &Option<Row>| match row {
                Some(Row::Class(class)) if class.kind == 'S' => Some(class.clone()),
                _ => None,
            };
            let (old, new) = (sequence(&change.old), sequence(&change.new));
            let Some(class) = new.as_ref().or(old.as_ref()).filter(|class| class.persistence != 't') else {
                continue;
            };
            let before = match change.is_old_unknown {
                true => current.get(&class.oid).cloned(),
                false => old.clone(),
            };
            let what = match (&before, &new) {
                (None, Some(_)) if change.is_created() => {
                    if is_asked(change) {
                        created.insert(class.oid);
                    }
                    None
                }
                (Some(_), None) => Some("the sequence was dropped"),
                (Some(before), Some(new)) if before.file != new.file => Some(
                    "ALTER SEQUENCE, or TRUNCATE ... RESTART IDENTITY: the sequence keeps its new definition and value",
                ),
                _ => None,
            };
            if let Some(what) = what.filter(|_| is_asked(change) && !created.contains(&class.oid)) {
                altered.insert(class.oid);
                by_commands.push((change.lsn, name(class), what));
            }
            if let Some(new) = new {
                by_files.extend(catalog.files(&new).into_iter().map(|file| (file, new.clone())));
                current.insert(new.oid, new);
            }
        }
        let is_of_filter =
            |xid: u32| filter.xid.is_none_or(|wanted| wanted == xid || wanted == findings.top(xid));
        let files = findings.sequences.keys().filter(|(_, xid)| is_of_filter(*xid)).map(|(file, _)| file);
        let mut by_values: Vec<String> = files
            .filter_map(|file| match by_files.get(file) {
                Some(class) if created.contains(&class.oid) || altered.contains(&class.oid) => None,
                Some(class) => Some(name(class)),
                None => Some(format!("the sequence in file {}", file.relation)),
            })
            .collect();
        by_values.sort_unstable();
        by_values.dedup();
        Changed { by_commands, by_values }
    }
}
