//! What a caller gets: rows before and after, and what happened to tables.

use std::fmt;
use std::sync::Arc;

use walden_format::lsn::Lsn;
use walden_format::payload::Timestamp;
use walden_format::record::RelFileLocator;
use walden_redo::page::Tid;
use walden_source::names::{Column, Identifier};

use crate::value::Value;

/// A table as it was when a change was made to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// OID of its database.
    pub database: u32,
    /// Name of its schema; empty if it is not known.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The columns that a tuple has, dropped ones included.
    pub(crate) stored: Vec<Column>,
    /// The columns of a [`Row`], in its order.
    pub columns: Vec<TableColumn>,
    /// Whether it has columns where statements are run that were added since.
    pub has_new_columns: bool,
}

/// A column of a [`Table`].
#[derive(Clone, PartialEq, Debug)]
pub struct TableColumn {
    /// The column as the catalogs have it.
    pub column: Column,
    /// Its type's name, as SQL has it; nothing if the type is not known.
    pub type_name: Option<String>,
    /// Whether it has another type where statements are run, in which its values mean something else
    /// ([`NamesAtEnd`](crate::NamesAtEnd)).
    pub is_retyped: bool,
    /// Whether it has other values where statements are run, as it was most likely computed anew since (`ALTER COLUMN ... TYPE ... USING`).
    pub is_computed_anew: bool,
    /// The attributes of composite types that its values have, or may have within them: the type's OID and the attribute's number.
    pub(crate) attributes: Vec<(u32, i16)>,
    /// Whether these are others where statements are run.
    pub has_other_attributes: bool,
    /// Whether values of its type are read, with all that they may have within them.
    pub(crate) is_read: bool,
    /// Whether it is or contains a type whose OIDs the server prints as names.
    pub(crate) prints_names: bool,
}

impl TableColumn {
    pub(crate) fn new(column: Column) -> TableColumn {
        TableColumn {
            column,
            type_name: None,
            is_retyped: false,
            is_computed_anew: false,
            attributes: Vec::new(),
            has_other_attributes: false,
            is_read: true,
            prints_names: false,
        }
    }
}

impl Table {
    pub(crate) fn new(oid: u32, database: u32, schema: String, name: String, stored: Vec<Column>) -> Table {
        let shown = stored.iter().filter(|column| is_shown(column)).cloned();
        let columns = shown.map(TableColumn::new).collect();
        Table { oid, database, schema, name, stored, columns, has_new_columns: false }
    }
}

/// Whether a row has a column: it was not dropped, and is not computed when it is read.
pub(crate) fn is_shown(column: &Column) -> bool {
    !column.is_dropped && !column.is_virtual
}

/// The name with its schema, as SQL has it.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.schema.is_empty() {
            write!(f, "{}.", Identifier(&self.schema))?;
        }
        Identifier(&self.name).fmt(f)
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It committed.
    Committed {
        /// When.
        time: Timestamp,
        /// LSN of the commit record.
        lsn: Lsn,
    },
    /// It was rolled back, or the savepoint was within which the change was made, or a crash or a promotion ended it.
    Aborted {
        /// LSN of the record that says so; after a crash or a promotion, of the one that ends recovery.
        lsn: Lsn,
    },
    /// Its end is not in the range: it ended later.
    Unfinished,
}

impl Outcome {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Committed { .. } => "committed",
            Outcome::Aborted { .. } => "aborted",
            Outcome::Unfinished => "unfinished",
        }
    }
}

/// Insert, update or delete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Operation {
    Insert,
    Update,
    Delete,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 3] = [Operation::Insert, Operation::Update, Operation::Delete];

    /// The operation with this name in lower case.
    pub fn from_name(name: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Insert => "insert",
            Operation::Update => "update",
            Operation::Delete => "delete",
        }
    }
}

/// A value in a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// Null.
    Null,
    /// A value.
    Value(Value),
    /// Not known, for this reason.
    Unknown(&'static str),
}

impl Cell {
    /// Whether two cells of a column are the same. A value that is known by its text alone is the one that is printed so.
    pub fn is_same(&self, other: &Cell) -> bool {
        match (self, other) {
            (Cell::Value(Value::Printed(text)), Cell::Value(value))
            | (Cell::Value(value), Cell::Value(Value::Printed(text))) => value.to_string() == *text,
            _ => self == other,
        }
    }
}

/// A row: a cell for each of [`Table::columns`].
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The cells.
    pub cells: Vec<Cell>,
}

impl Row {
    /// Whether each cell is known.
    pub fn is_known(&self) -> bool {
        !self.cells.iter().any(|cell| matches!(cell, Cell::Unknown(_)))
    }
}

/// A row before or after a change.
#[derive(Clone, PartialEq, Debug)]
pub enum Image {
    /// There is none: before an insert, after a delete.
    None,
    /// The row; single cells may be unknown.
    Row(Row),
    /// Not known, for this reason.
    Unknown(&'static str),
}

impl Image {
    /// The row, if it is known.
    pub fn row(&self) -> Option<&Row> {
        match self {
            Image::Row(row) => Some(row),
            _ => None,
        }
    }
}

/// A change of a row.
#[derive(Clone, PartialEq, Debug)]
pub struct RowChange {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Transaction or subtransaction that made the change.
    pub xid: u32,
    /// The toplevel transaction, which `txid_current()` returned.
    pub top_xid: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// The table.
    pub table: Arc<Table>,
    /// What was done.
    pub operation: Operation,
    /// The row before.
    pub before: Image,
    /// The row after.
    pub after: Image,
    /// Where the row was.
    pub old_tid: Option<Tid>,
    /// Where the row is.
    pub new_tid: Option<Tid>,
    /// A delete that moves the row to another partition, where the next insert has it.
    pub is_moved: bool,
}

/// Something that happened to a table as a whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Transaction or subtransaction.
    pub xid: u32,
    /// The toplevel transaction.
    pub top_xid: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// The table, as it was before.
    pub table: Arc<Table>,
    /// What happened.
    pub kind: EventKind,
    /// The column that it happened to, by its name before; of one that is added, its name.
    pub column: Option<String>,
}

/// What happened to a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// All rows were removed (`TRUNCATE`). They are not in the log.
    Truncate,
    /// The rows were written to another file: `VACUUM FULL`, `CLUSTER`, some forms of `ALTER TABLE`.
    Rewrite {
        /// The file after it.
        file: RelFileLocator,
    },
    /// A rewrite by `ALTER TABLE ... SET UNLOGGED`: what is changed from here on is not in the log.
    SetUnlogged {
        /// The file after it.
        file: RelFileLocator,
    },
    /// A rewrite by `ALTER TABLE ... SET LOGGED`: what was changed before it, since the table is unlogged, is not in the log.
    SetLogged {
        /// The file after it.
        file: RelFileLocator,
    },
    /// The table was dropped.
    Drop,
    /// A column was added (`ALTER TABLE ... ADD COLUMN`).
    AddColumn,
    /// A column was dropped with its values.
    DropColumn,
    /// A generated column got another expression (`ALTER COLUMN ... SET EXPRESSION`).
    SetExpression,
    /// A column got another type or modifier, the attributes of its composite type were changed, or it is generated and was not, or
    /// the other way round.
    AlterColumn {
        /// Whether each value is printed as before.
        keeps_values: bool,
    },
}

impl EventKind {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Truncate => "truncate",
            EventKind::Rewrite { .. } => "rewrite",
            EventKind::SetUnlogged { .. } => "set-unlogged",
            EventKind::SetLogged { .. } => "set-logged",
            EventKind::Drop => "drop",
            EventKind::AddColumn => "add-column",
            EventKind::DropColumn => "drop-column",
            EventKind::SetExpression => "set-expression",
            EventKind::AlterColumn { .. } => "alter-column",
        }
    }

    /// The file that the rows are in from here on, if it is another one.
    pub fn file(self) -> Option<RelFileLocator> {
        match self {
            EventKind::Rewrite { file } | EventKind::SetUnlogged { file } | EventKind::SetLogged { file } => {
                Some(file)
            }
            _ => None,
        }
    }
}

/// What [`crate::RowChanges::read`] gives, in the log's order.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A row changed.
    Change(RowChange),
    /// Something happened to a table.
    Event(Event),
}

impl Entry {
    /// LSN of the record.
    pub fn lsn(&self) -> Lsn {
        match self {
            Entry::Change(change) => change.lsn,
            Entry::Event(event) => event.lsn,
        }
    }

    /// The table, as it was when it was changed.
    pub fn table(&self) -> &Arc<Table> {
        match self {
            Entry::Change(change) => &change.table,
            Entry::Event(event) => &event.table,
        }
    }

    /// What became of the transaction.
    pub fn outcome(&self) -> Outcome {
        match self {
            Entry::Change(change) => change.outcome,
            Entry::Event(event) => event.outcome,
        }
    }
}
