//! What the bytes can be grouped by, and the groups.

use walden_format::record::{Fork, RelFileLocator};

/// A direction to split the log in. Several together make combinations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dimension {
    /// A fork of a relation.
    Relation,
    /// A kind of record.
    Record,
    /// A transaction, subtransactions counted with their toplevel one.
    Xid,
    /// A database.
    Database,
    /// A span of time, by commit timestamps.
    Time,
    /// From one checkpoint's redo pointer to the next one's.
    Checkpoint,
}

/// One row per dimension: its name on the command line and in JSON.
pub const DIMENSIONS: [(Dimension, &str); 6] = [
    (Dimension::Relation, "relation"),
    (Dimension::Record, "record"),
    (Dimension::Xid, "xid"),
    (Dimension::Database, "database"),
    (Dimension::Time, "time"),
    (Dimension::Checkpoint, "checkpoint"),
];

impl Dimension {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        DIMENSIONS[self as usize].1
    }

    /// The dimension with this name.
    pub fn from_name(name: &str) -> Option<Dimension> {
        DIMENSIONS.iter().find(|row| row.1 == name).map(|row| row.0)
    }
}

/// Whom bytes belong to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A fork of a relation.
    Relation(RelFileLocator, Fork),
    /// No relation: the record refers to no block.
    None,
    /// No record: page headers, padding, the end of the log.
    Framing,
}

/// The finest split that is always made: whom the bytes belong to and by which kind of record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cell {
    /// Whom.
    pub owner: Owner,
    /// Index of the record's kind; nothing for framing.
    pub kind: Option<u16>,
}

impl Cell {
    /// Bytes outside of records.
    pub const FRAMING: Cell = Cell { owner: Owner::Framing, kind: None };
}

/// A group of a view: only what the view's dimensions ask for is set, so that equal groups have equal keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupKey {
    /// Whom, if split by relation.
    pub owner: Option<Owner>,
    /// The database, if split by database: nothing within for bytes that belong to none.
    pub database: Option<Option<u32>>,
    /// The kind of record, if split by record: nothing within for framing.
    pub kind: Option<Option<u16>>,
    /// The transaction, if split by it.
    pub xid: Option<u32>,
    /// The number of the span of time, if split by time.
    pub time: Option<u32>,
    /// The number of the checkpoint cycle, if split by checkpoint.
    pub checkpoint: Option<u32>,
}

/// Dimensions of a view, in the order asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewSpec {
    /// At least one, none twice.
    pub dimensions: Vec<Dimension>,
}

impl ViewSpec {
    /// By one dimension.
    pub fn by(dimension: Dimension) -> ViewSpec {
        ViewSpec { dimensions: vec![dimension] }
    }

    /// Splits by this dimension.
    pub fn has(&self, dimension: Dimension) -> bool {
        self.dimensions.contains(&dimension)
    }

    /// Needs more than the cells that are always counted.
    pub fn needs_pieces(&self) -> bool {
        self.has(Dimension::Xid) || self.has(Dimension::Time) || self.has(Dimension::Checkpoint)
    }

    /// Needs to know times or checkpoints before the log is read.
    pub fn needs_timeline(&self) -> bool {
        self.has(Dimension::Time) || self.has(Dimension::Checkpoint)
    }

    /// The part of a group's key that the cell decides.
    pub fn key_of_cell(&self, cell: Cell) -> GroupKey {
        let database = match cell.owner {
            Owner::Relation(locator, _) => Some(locator.database),
            Owner::None | Owner::Framing => None,
        };
        GroupKey {
            owner: self.has(Dimension::Relation).then_some(cell.owner),
            database: self.has(Dimension::Database).then_some(database),
            kind: self.has(Dimension::Record).then_some(cell.kind),
            xid: None,
            time: None,
            checkpoint: None,
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
}
