//! The names that tables have where statements are run: at the log's end.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::{Catalog, Key, Row};
use crate::change::{Outcome, Table};
use crate::start::Pending;
use crate::survey::Findings;

/// The names that tables and their columns have at the end of the log that was surveyed; of what was dropped, those that it had
/// last.
#[derive(Clone, Debug)]
pub struct NamesAtEnd {
    /// By their OIDs.
    tables: FxHashMap<u32, TableNames>,
    /// The last table that was renamed: rows of a table come one after the other.
    last: Option<(Arc<Table>, Arc<Table>)>,
}

#[derive(Clone, Debug)]
struct TableNames {
    /// Empty if it is not known.
    schema: String,
    name: String,
    /// By the columns' numbers.
    columns: FxHashMap<i16, String>,
}

impl NamesAtEnd {
    /// Those of tables; `catalog` and `pending` are the state at the log's start.
    pub(crate) fn of(
        tables: &FxHashSet<u32>,
        mut catalog: Catalog,
        pending: &Pending,
        findings: &Findings,
    ) -> NamesAtEnd {
        let is_committed = |xid: u32| matches!(findings.outcome(xid), Outcome::Committed { .. });
        let has_names = |row: &&Row| match row {
            Row::Class(class) => tables.contains(&class.oid),
            // A column that is dropped gets another name.
            Row::Attribute { relation, column } => tables.contains(relation) && !column.is_dropped,
            Row::Namespace { .. } => true,
            _ => false,
        };
        // What the log has of a row is newer.
        let pending = pending.inserted.iter().filter(|(xid, _)| is_committed(**xid));
        let pending = pending.flat_map(|(_, rows)| rows);
        let logged = findings.changes.iter().filter(|change| is_committed(change.xid));
        let logged = logged.filter_map(|change| change.new.as_ref());
        for row in pending.chain(logged).filter(has_names) {
            catalog.set(row.key(), Some(row.clone()));
        }
        let names = |oid: &u32| Some((*oid, TableNames::of(&catalog, *oid)?));
        NamesAtEnd { tables: tables.iter().filter_map(names).collect(), last: None }
    }

    /// A table as it was at a change, by the names of the end.
    pub fn rename(&mut self, table: &Arc<Table>) -> Arc<Table> {
        if let Some((last, renamed)) = &self.last
            && Arc::ptr_eq(last, table)
        {
            return Arc::clone(renamed);
        }
        let renamed = match self.tables.get(&table.oid) {
            Some(names) => Arc::new(names.rename(table)),
            None => Arc::clone(table),
        };
        self.last = Some((Arc::clone(table), Arc::clone(&renamed)));
        renamed
    }
}

impl TableNames {
    fn of(catalog: &Catalog, oid: u32) -> Option<TableNames> {
        let class = catalog.class(oid)?;
        let column = |number| match catalog.get(Key::Attribute(oid, number)) {
            Some(Row::Attribute { column, .. }) => Some((number, column.name.clone())),
            _ => None,
        };
        let columns = (1..=i16::MAX).map_while(column).collect();
        Some(TableNames { schema: catalog.schema_of(class).to_owned(), name: class.name.clone(), columns })
    }

    fn rename(&self, table: &Table) -> Table {
        let mut renamed = Table { name: self.name.clone(), ..table.clone() };
        if !self.schema.is_empty() {
            renamed.schema.clone_from(&self.schema);
        }
        for column in &mut renamed.columns {
            if let Some(name) = self.columns.get(&column.column.number) {
                column.column.name.clone_from(name);
            }
        }
        renamed
    }
}
