//! Results for the caller: rows before and after changes, and events of tables.

use std::fmt;
use std::sync::Arc;

use walden_format::lsn::Lsn;
use walden_format::payload::Timestamp;
use walden_format::record::RelFileLocator;
use walden_redo::page::Tid;
use walden_source::names::{Column, Identifier};

use crate::value::Value;

/// A table in its state at the time of a change.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// OID of the table.
    pub oid: u32,
    /// OID of the table's database.
    pub database: u32,
    /// Name of the table's schema; empty if unknown.
    pub schema: String,
    /// Name of the table.
    pub name: String,
    /// The columns of a tuple, including dropped columns.
    pub(crate) stored: Vec<Column>,
    /// The columns of a [`Row`], in the order of its cells.
    pub columns: Vec<TableColumn>,
    /// Whether later columns exist where statements are run.
    pub has_new_columns: bool,
}

/// A column of a [`Table`].
#[derive(Clone, PartialEq, Debug)]
pub struct TableColumn {
    /// The column as in the catalogs.
    pub column: Column,
    /// Name of the column's type in SQL syntax; `None` if the type is unknown.
    pub type_name: Option<String>,
    /// Whether it has another type where statements are run, in which its values have another meaning
    /// ([`NamesAtEnd`](crate::NamesAtEnd)).
    pub is_retyped: bool,
    /// Whether it has other values where statements are run: it was most likely recomputed since (`ALTER
    /// COLUMN ... TYPE ... USING`).
    pub is_computed_anew: bool,
    /// The attributes of composite types that its values contain or may contain: the type's OID and the
    /// attribute's number.
    pub(crate) attributes: Vec<(u32, i16)>,
    /// Whether these attributes differ where statements are run.
    pub has_other_attributes: bool,
    /// Whether values of its type can be read, including all nested values.
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

/// Whether rows show a column: it was not dropped, and is not computed on read.
pub(crate) fn is_shown(column: &Column) -> bool {
    !column.is_dropped && !column.is_virtual
}

/// The name with its schema, in SQL syntax.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.schema.is_empty() {
            write!(f, "{}.", Identifier(&self.schema))?;
        }
        Identifier(&self.name).fmt(f)
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The transaction committed.
    Committed {
        /// Time of the commit.
        time: Timestamp,
        /// LSN of the commit record.
        lsn: Lsn,
    },
    /// The transaction was rolled back, or a savepoint with the change was rolled back, or a crash or a
    /// promotion ended the transaction.
    Aborted {
        /// LSN of the record of the rollback, or of the record that ends recovery after a crash or a
        /// promotion.
        lsn: Lsn,
    },
    /// The transaction ended after the range.
    Unfinished,
}

impl Outcome {
    /// Returns the outcome's name in lower case.
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
    /// All operations.
    pub const ALL: [Operation; 3] = [Operation::Insert, Operation::Update, Operation::Delete];

    /// The operation with this name in lower case.
    pub fn from_name(name: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns the operation's name in lower case.
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
    /// Unknown, for this reason.
    Unknown(&'static str),
}

impl Cell {
    /// Whether two cells of a column are equal. A value known only as text equals the value with that text.
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
    /// No row: before an insert, after a delete.
    None,
    /// The row; single cells may be unknown.
    Row(Row),
    /// Unknown, for this reason.
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
    /// The toplevel transaction, as returned by `txid_current()`.
    pub top_xid: u32,
    /// How the transaction ended.
    pub outcome: Outcome,
    /// The table.
    pub table: Arc<Table>,
    /// The kind of change.
    pub operation: Operation,
    /// The row before.
    pub before: Image,
    /// The row after.
    pub after: Image,
    /// TID of the row before.
    pub old_tid: Option<Tid>,
    /// TID of the row after.
    pub new_tid: Option<Tid>,
    /// Whether this delete moves the row to another partition. The next insert contains the row.
    pub is_moved: bool,
}

/// An event that affects a table as a whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Transaction or subtransaction.
    pub xid: u32,
    /// The toplevel transaction.
    pub top_xid: u32,
    /// How the transaction ended.
    pub outcome: Outcome,
    /// The table in its state before the event.
    pub table: Arc<Table>,
    /// What happened.
    pub kind: EventKind,
    /// The affected column, by its previous name, or the name of a new column.
    pub column: Option<String>,
}

/// What happened to a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// All rows were removed (`TRUNCATE`). The WAL does not contain them.
    Truncate,
    /// The rows were written to another file: `VACUUM FULL`, `CLUSTER`, some forms of `ALTER TABLE`.
    Rewrite {
        /// The new file.
        file: RelFileLocator,
    },
    /// A rewrite by `ALTER TABLE ... SET UNLOGGED`: later changes are not in the WAL.
    SetUnlogged {
        /// The new file.
        file: RelFileLocator,
    },
    /// A rewrite by `ALTER TABLE ... SET LOGGED`: changes while the table was unlogged are not in the WAL.
    SetLogged {
        /// The new file.
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
    /// A generated column became an ordinary one (`ALTER COLUMN ... DROP EXPRESSION`).
    DropExpression,
    /// A column got another type or modifier, or the attributes of its composite type were changed.
    AlterColumn {
        /// Whether the text of each value stays the same.
        keeps_values: bool,
    },
}

impl EventKind {
    /// Returns the name in lower case.
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
            EventKind::AlterColumn { .. } | EventKind::DropExpression => "alter-column",
        }
    }

    /// The new file of the rows, if it changes.
    pub fn file(self) -> Option<RelFileLocator> {
        match self {
            EventKind::Rewrite { file } | EventKind::SetUnlogged { file } | EventKind::SetLogged { file } => {
                Some(file)
            }
            _ => None,
        }
    }
}

/// A result of [`crate::RowChanges::read`], in WAL order.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A row changed.
    Change(RowChange),
    /// A table was affected as a whole.
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

    /// The table in its state at the time of the change.
    pub fn table(&self) -> &Arc<Table> {
        match self {
            Entry::Change(change) => &change.table,
            Entry::Event(event) => &event.table,
        }
    }

    /// How the transaction ended.
    pub fn outcome(&self) -> Outcome {
        match self {
            Entry::Change(change) => change.outcome,
            Entry::Event(event) => event.outcome,
        }
    }
}
