//! Columns of tables and types of users: what it takes to read a row's bytes.

use std::fmt;

use super::Identifier;

/// A column, as `pg_attribute` has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// `attnum`, from 1.
    pub number: i16,
    /// `attname`; of a dropped column what PostgreSQL calls it then.
    pub name: String,
    /// `atttypid`; 0 if it was dropped.
    pub type_oid: u32,
    /// `atttypmod`: the length of a `varchar`, for example.
    pub typmod: i32,
    /// `attlen`: bytes; -1 with a header of its length, -2 a text that ends with a zero.
    pub length: i16,
    /// `attalign`: `c`, `s`, `i` or `d`.
    pub align: char,
    /// `attstorage`: `p`, `e`, `m` or `x`.
    pub storage: char,
    /// Whether it was dropped: its bytes stay in the rows.
    pub is_dropped: bool,
    /// Whether it is computed from the others (`attgenerated`).
    pub is_generated: bool,
    /// Whether it is computed when it is read, so that rows do not have it (`attgenerated` is `v`; since 18).
    pub is_virtual: bool,
    /// Whether it is `GENERATED ALWAYS AS IDENTITY`, which an `INSERT` sets with `OVERRIDING SYSTEM VALUE` alone.
    pub is_identity_always: bool,
    /// Whether it is part of the primary key.
    pub is_key: bool,
    /// The value in rows from before the column was added (`attmissingval`).
    pub missing: Missing,
}

/// The value of a column in rows that are older than the column.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Missing {
    /// Null.
    #[default]
    Null,
    /// In its printed form.
    Text(String),
    /// As a tuple has it, without the header of its length.
    Bytes(Vec<u8>),
}

impl Column {
    /// A column that was not dropped, is not generated, no key, and stored as it is: `attnum`, name, `atttypid`, `attlen` and `attalign`.
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

/// A type that a user made, as `pg_type` and the catalogs beside it have it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Type {
    /// `pg_type.oid`
    pub oid: u32,
    /// Name of its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// `typtype`: `b` base, `c` composite, `d` domain, `e` enum, `r` range, `m` multirange.
    pub kind: char,
    /// `typlen`
    pub length: i16,
    /// `typalign`
    pub align: char,
    /// `typelem`: of an array the type of its elements.
    pub element: u32,
    /// Whether it is the array of another type (`typcategory` is `A`).
    pub is_array: bool,
    /// `typbasetype`: of a domain.
    pub base: u32,
    /// `typtypmod`: of a domain over a type with a modifier, such as `numeric(12,2)`.
    pub typmod: Option<i32>,
    /// `typrelid`: of a composite type, the relation that has its columns.
    pub relation: u32,
    /// Type of a range's or multirange's bounds.
    pub subtype: u32,
    /// OIDs and labels of an enum's values.
    pub labels: Vec<(u32, String)>,
    /// Columns of a composite type; none of a table's rows, where the table has them.
    pub columns: Vec<Column>,
}

/// The name as SQL has it.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The arrays of user types have names of their own.
        match self.schema.as_str() {
            "" | "pg_catalog" => Identifier(&self.name).fmt(f),
            schema => write!(f, "{}.{}", Identifier(schema), Identifier(&self.name)),
        }
    }
}
