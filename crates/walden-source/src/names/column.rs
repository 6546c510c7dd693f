//! Columns and user-defined types, as needed to decode a tuple.

use std::fmt;

use super::Identifier;

/// A column, as in `pg_attribute`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// `attnum`, from 1.
    pub number: i16,
    /// `attname`; for a dropped column, PostgreSQL's placeholder.
    pub name: String,
    /// `atttypid`; 0 if the column was dropped.
    pub type_oid: u32,
    /// `atttypmod`: the length of a `varchar`, for example.
    pub typmod: i32,
    /// `attlen`: bytes; -1 for a varlena, -2 for a zero-terminated string.
    pub length: i16,
    /// `attalign`: `c`, `s`, `i` or `d`.
    pub align: char,
    /// `attstorage`: `p`, `e`, `m` or `x`.
    pub storage: char,
    /// Whether the column was dropped. The bytes of its values stay in the tuples.
    pub is_dropped: bool,
    /// Whether it is computed from other columns (`attgenerated`).
    pub is_generated: bool,
    /// Whether it is computed when it is read, so that tuples do not contain it (`attgenerated` is `v`; since
    /// 18).
    pub is_virtual: bool,
    /// Whether it is `GENERATED ALWAYS AS IDENTITY`, so that an `INSERT` can set it only with `OVERRIDING
    /// SYSTEM VALUE`.
    pub is_identity_always: bool,
    /// Whether it is part of the primary key.
    pub is_key: bool,
    /// The value in tuples from before the column was added (`attmissingval`).
    pub missing: Missing,
}

/// The value of a column in tuples that are older than the column.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Missing {
    /// Null.
    #[default]
    Null,
    /// The value's text representation.
    Text(String),
    /// The value's bytes in a tuple, without the varlena header.
    Bytes(Vec<u8>),
}

impl Column {
    /// Returns an ordinary column, given `attnum`, name, `atttypid`, `attlen` and `attalign`: not dropped,
    /// not generated, not part of a key, and stored inline.
    pub fn plain(number: i16, name: &str, type_oid: u32, length: i16, align: char) -> Column {
        Column {
            number,
            name: name.to_owned(),
            type_oid,
            typmod: -1,
            length,
            align,
            storage: 'p',
            is_dropped: false,
            is_generated: false,
            is_virtual: false,
            is_identity_always: false,
            is_key: false,
            missing: Missing::Null,
        }
    }
}

/// A user-defined type, as in `pg_type` and related catalogs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Type {
    /// `pg_type.oid`
    pub oid: u32,
    /// Name of its schema.
    pub schema: String,
    /// Name of the type.
    pub name: String,
    /// `typtype`: `b` base, `c` composite, `d` domain, `e` enum, `r` range, `m` multirange.
    pub kind: char,
    /// `typlen`
    pub length: i16,
    /// `typalign`
    pub align: char,
    /// `typelem`: for an array, the type of its elements.
    pub element: u32,
    /// Whether it is the array of another type (`typcategory` is `A`).
    pub is_array: bool,
    /// `typbasetype`: for a domain, its base type.
    pub base: u32,
    /// `typtypmod`: for a domain over a type with a modifier, such as `numeric(12,2)`.
    pub typmod: Option<i32>,
    /// `typrelid`: for a composite type, the relation with its columns.
    pub relation: u32,
    /// For a range or multirange, the type of its bounds.
    pub subtype: u32,
    /// For an enum, the OIDs and labels of its values.
    pub labels: Vec<(u32, String)>,
    /// For a composite type, its columns; empty for a table's row type, because the table has them.
    pub columns: Vec<Column>,
}

/// Formats the name as SQL does.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The arrays of user types have names of their own.
        match self.schema.as_str() {
            "" | "pg_catalog" => Identifier(&self.name).fmt(f),
            schema => write!(f, "{}.{}", Identifier(schema), Identifier(&self.name)),
        }
    }
}
