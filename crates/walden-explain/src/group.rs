//! Dimensions to group bytes by, and the keys of groups.

use std::str::FromStr;

use walden_format::record::{Fork, RelFileLocator};

use crate::writers::WriterKey;

/// A property of records to group by. Several dimensions yield a group for each combination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dimension {
    /// A fork of a relation.
    Relation,
    /// A record kind.
    Record,
    /// A top-level transaction with its subtransactions.
    Xid,
    /// A database.
    Database,
    /// A time span, by commit timestamps.
    Time,
    /// A checkpoint cycle, from redo pointer to redo pointer.
    Checkpoint,
    /// The schema of a relation.
    Schema,
    /// A partitioned table with its partitions, or another table, each with its indexes and its TOAST table.
    Partition,
    /// A tablespace.
    Tablespace,
    /// The part of a table's name that a pattern matches.
    Pattern,
    /// The table that was vacuumed, for records that vacuum writes.
    Vacuum,
    /// The user of the transaction, from the server's log.
    User,
    /// The application of the transaction's session, from the server's log.
    Application,
    /// The client address of the transaction's session, from the server's log.
    Client,
    /// The transaction's statements, from the server's log.
    Statement,
}

/// One row per dimension: its name on the command line and in JSON.
pub const DIMENSIONS: [(Dimension, &str); 15] = [
    (Dimension::Relation, "relation"),
    (Dimension::Record, "record"),
    (Dimension::Xid, "xid"),
    (Dimension::Database, "database"),
    (Dimension::Time, "time"),
    (Dimension::Checkpoint, "checkpoint"),
    (Dimension::Schema, "schema"),
    (Dimension::Partition, "partition"),
    (Dimension::Tablespace, "tablespace"),
    (Dimension::Pattern, "group"),
    (Dimension::Vacuum, "vacuum"),
    (Dimension::User, "user"),
    (Dimension::Application, "application"),
    (Dimension::Client, "client"),
    (Dimension::Statement, "statement"),
];

impl Dimension {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        DIMENSIONS[self as usize].1
    }

    /// Whether its groups consist of relations, by their names.
    pub fn is_of_relations(self) -> bool {
        use Dimension::{Partition, Pattern, Schema, Tablespace, Vacuum};
        matches!(self, Schema | Partition | Tablespace | Pattern | Vacuum)
    }

    /// Whether its groups consist of transactions, by the server's log.
    pub fn is_of_writers(self) -> bool {
        use Dimension::{Application, Client, Statement, User};
        matches!(self, User | Application | Client | Statement)
    }

    /// The dimension with this name.
    pub fn from_name(name: &str) -> Option<Dimension> {
        DIMENSIONS.iter().find(|row| row.1 == name).map(|row| row.0)
    }
}

/// The relation that bytes belong to, if any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A fork of a relation.
    Relation(RelFileLocator, Fork),
    /// No relation: the record refers to no block.
    None,
    /// Not part of a record: page headers, padding, the end of the WAL.
    Framing,
}

/// The finest group that is always counted: owner and record kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cell {
    /// The owner.
    pub owner: Owner,
    /// Index of the record kind; `None` for framing.
    pub kind: Option<u16>,
}

impl Cell {
    /// Bytes outside of records.
    pub const FRAMING: Cell = Cell { owner: Owner::Framing, kind: None };
}

/// The key of a group: only the view's dimensions are set, so that equal groups have equal keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupKey {
    /// The owner, if grouped by relation or by a property of its name.
    pub owner: Option<Owner>,
    /// The database, if grouped by database; the inner `None` for bytes that belong to none.
    pub database: Option<Option<u32>>,
    /// The record kind, if grouped by record or by vacuum; the inner `None` for framing.
    pub kind: Option<Option<u16>>,
    /// The transaction ID, if grouped by it.
    pub xid: Option<u32>,
    /// The number of the time span, if grouped by time.
    pub time: Option<u32>,
    /// The number of the checkpoint cycle, if grouped by checkpoint.
    pub checkpoint: Option<u32>,
    /// Whether the records have a transaction ID, if grouped by vacuum, which has none.
    pub in_transaction: Option<bool>,
    /// The writer, if grouped by a property in the server's log.
    pub writer: Option<WriterKey>,
}

/// The dimensions of a view, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewSpec {
    /// Not empty, without duplicates.
    pub dimensions: Vec<Dimension>,
}

/// A text that is not a valid view.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub struct ViewError(String);

impl FromStr for ViewSpec {
    type Err = ViewError;

    /// Parses comma-separated names of dimensions: `relation,record`.
    fn from_str(text: &str) -> Result<ViewSpec, ViewError> {
        let mut dimensions = Vec::new();
        for name in text.split(',') {
            let dimension = Dimension::from_name(name.trim()).ok_or_else(|| {
                let known: Vec<&str> = DIMENSIONS.iter().map(|row| row.1).collect();
                ViewError(format!("\"{name}\" is none of {}", known.join(", ")))
            })?;
            if dimensions.contains(&dimension) {
                return Err(ViewError(format!("{name} is there twice")));
            }
            dimensions.push(dimension);
        }
        Ok(ViewSpec { dimensions })
    }
}

impl ViewSpec {
    /// A view by one dimension.
    pub fn by(dimension: Dimension) -> ViewSpec {
        ViewSpec { dimensions: vec![dimension] }
    }

    /// The view from which causes are listed by statement.
    pub fn by_statement_and_cell() -> ViewSpec {
        ViewSpec { dimensions: vec![Dimension::Statement, Dimension::Relation, Dimension::Record] }
    }

    /// Whether it groups by this dimension.
    pub fn has(&self, dimension: Dimension) -> bool {
        self.dimensions.contains(&dimension)
    }

    /// Whether it needs more than the cells that are always counted.
    pub fn needs_pieces(&self) -> bool {
        self.is_by_transaction() || self.has(Dimension::Vacuum) || self.needs_timeline()
    }

    /// Whether it groups by transactions or their properties in the server's log.
    pub fn is_by_transaction(&self) -> bool {
        self.has(Dimension::Xid) || self.is_by_writer()
    }

    /// Whether it groups by properties of transactions in the server's log.
    pub fn is_by_writer(&self) -> bool {
        self.dimensions.iter().any(|one| one.is_of_writers())
    }

    /// Whether it groups by a property that the cell determines.
    pub fn is_by_cell(&self) -> bool {
        self.has(Dimension::Record) || self.has(Dimension::Database) || self.is_by_owner()
    }

    fn is_by_owner(&self) -> bool {
        self.dimensions.iter().any(|one| *one == Dimension::Relation || one.is_of_relations())
    }

    /// Whether it requires times or checkpoints before the records are read.
    pub fn needs_timeline(&self) -> bool {
        self.has(Dimension::Time) || self.has(Dimension::Checkpoint)
    }

    /// The part of a group's key that the cell determines.
    pub fn key_of_cell(&self, cell: Cell) -> GroupKey {
        let database = match cell.owner {
            Owner::Relation(locator, _) => Some(locator.database),
            Owner::None | Owner::Framing => None,
        };
        GroupKey {
            owner: self.is_by_owner().then_some(cell.owner),
            database: self.has(Dimension::Database).then_some(database),
            kind: (self.has(Dimension::Record) || self.has(Dimension::Vacuum)).then_some(cell.kind),
            xid: None,
            time: None,
            checkpoint: None,
            in_transaction: None,
            writer: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimension_names_round_trip() {
        for (dimension, name) in DIMENSIONS {
            assert_eq!(dimension.name(), name);
            assert_eq!(Dimension::from_name(name), Some(dimension));
        }
    }

    #[test]
    fn views_are_lists_of_dimensions() {
        let view: ViewSpec = "relation,record".parse().unwrap();
        assert_eq!(view.dimensions, [Dimension::Relation, Dimension::Record]);
        assert!("relation,relation".parse::<ViewSpec>().is_err());
        assert!("table".parse::<ViewSpec>().unwrap_err().to_string().contains("relation, record, xid"));
    }
}
