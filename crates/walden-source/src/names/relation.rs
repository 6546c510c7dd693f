//! A relation: its name, kind and persistence, as in `pg_class`.

use std::fmt;

use walden_format::transam::FIRST_NORMAL_OID;

/// The first OID of objects that users create: smaller OIDs belong to objects that initdb creates
/// (`FirstNormalObjectId`).
pub const FIRST_USER_OID: u32 = FIRST_NORMAL_OID;

/// A relation with a file (a table, an index, a sequence), or a partitioned table or index, which has no
/// file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Relation {
    /// OID of the relation's database; 0 for a shared relation, and for built-in names.
    pub database: u32,
    /// Whether it is a shared catalog (`pg_class.relisshared`).
    pub shared: bool,
    /// OID of the relation, which never changes.
    pub oid: u32,
    /// Name of the relation's schema.
    pub schema: String,
    /// Name of the relation, without its schema.
    pub name: String,
    /// `pg_class.relkind`.
    pub kind: RelationKind,
    /// `pg_class.relpersistence`: whether changes of the relation are logged.
    pub persistence: Persistence,
    /// `heap`, `btree`, `gin`, ...; `None` for relations without one.
    pub access_method: Option<String>,
    /// OID of the owning table, for an index, a TOAST table, or a TOAST table's index. `None` for a table.
    pub table: Option<u32>,
    /// OID of the partitioned table or index to which it belongs as a partition.
    pub partition_of: Option<u32>,
    /// For an index: how often it was scanned since the server's statistics were reset.
    pub scans: Option<u64>,
    /// For an index: whether the index enforces a constraint or identifies rows for replication (primary key,
    /// unique, exclusion, replica identity), and is needed even if no query uses it.
    pub is_required: Option<bool>,
    /// OID of another B-tree index of the same table that starts with all columns of this index, in the same
    /// order, and has no condition. `None` for an index that enforces a constraint, or has a condition or
    /// expressions.
    pub covered_by: Option<u32>,
}

impl Relation {
    /// Returns whether initdb created it: a system catalog, or a table of the information schema.
    pub fn is_catalog(&self) -> bool {
        self.oid < FIRST_USER_OID
    }
}

impl fmt::Display for Relation {
    /// Formats the name as SQL does: with its schema, unless that is `public` or a catalog schema, and quoted
    /// where needed. The result is always printable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(self.schema.as_str(), "public" | "pg_catalog" | "pg_toast") {
            write!(f, "{}.", Identifier(&self.schema))?;
        }
        Identifier(&self.name).fmt(f)
    }
}

/// The kind of a relation (`pg_class.relkind`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum RelationKind {
    Table,
    Index,
    Sequence,
    Toast,
    MaterializedView,
    PartitionedTable,
    PartitionedIndex,
    /// A kind that Walden does not know.
    Other(char),
}

impl RelationKind {
    /// Returns the kind for a letter of `pg_class.relkind`.
    pub fn from_letter(letter: char) -> RelationKind {
        match letter {
            'r' => RelationKind::Table,
            'i' => RelationKind::Index,
            'S' => RelationKind::Sequence,
            't' => RelationKind::Toast,
            'm' => RelationKind::MaterializedView,
            'p' => RelationKind::PartitionedTable,
            'I' => RelationKind::PartitionedIndex,
            other => RelationKind::Other(other),
        }
    }

    /// Returns the letter in `pg_class.relkind`.
    pub fn letter(self) -> char {
        match self {
            RelationKind::Table => 'r',
            RelationKind::Index => 'i',
            RelationKind::Sequence => 'S',
            RelationKind::Toast => 't',
            RelationKind::MaterializedView => 'm',
            RelationKind::PartitionedTable => 'p',
            RelationKind::PartitionedIndex => 'I',
            RelationKind::Other(letter) => letter,
        }
    }
}

impl fmt::Display for RelationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelationKind::Table => f.write_str("table"),
            RelationKind::Index => f.write_str("index"),
            RelationKind::Sequence => f.write_str("sequence"),
            RelationKind::Toast => f.write_str("TOAST table"),
            RelationKind::MaterializedView => f.write_str("materialized view"),
            RelationKind::PartitionedTable => f.write_str("partitioned table"),
            RelationKind::PartitionedIndex => f.write_str("partitioned index"),
            RelationKind::Other(letter) => write!(f, "relation of kind \"{}\"", letter.escape_default()),
        }
    }
}

/// The persistence of a relation (`pg_class.relpersistence`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Persistence {
    /// Logged completely.
    Permanent,
    /// Only its creation is logged.
    Unlogged,
    /// Not logged.
    Temporary,
}

impl Persistence {
    /// Returns the persistence for a letter of `pg_class.relpersistence`.
    pub fn from_letter(letter: char) -> Persistence {
        match letter {
            'u' => Persistence::Unlogged,
            't' => Persistence::Temporary,
            _ => Persistence::Permanent,
        }
    }

    pub(super) fn letter(self) -> char {
        match self {
            Persistence::Permanent => 'p',
            Persistence::Unlogged => 'u',
            Persistence::Temporary => 't',
        }
    }
}

/// An SQL identifier, quoted where needed, on one line.
pub struct Identifier<'a>(pub &'a str);

impl fmt::Display for Identifier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts_plain = self.0.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '$';
        if starts_plain && self.0.chars().all(plain) {
            return f.write_str(self.0);
        }
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\"\"")?,
                c if c.is_control() => write!(f, "{}", c.escape_default())?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}
