//! Kinds of columns: the layout of their values, and the class in which they are compressed.
//!
//! A *row* is a value of fixed width, stored below the previous one as in a matrix. (Rows of tables are
//! called tuples here.)

use crate::{Corrupt, corrupt};

/// Layout and class of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Numbers, mostly small, as LEB128.
    Symbols(Class),
    /// Values of a fixed width in bytes, 1 or more: rows of a matrix, which are transposed for compression.
    Rows(Class, u16),
    /// Bytes without a fixed width.
    Bytes(Class),
}

impl Kind {
    /// Returns the class in which the column is compressed.
    pub fn class(self) -> Class {
        match self {
            Kind::Symbols(class) | Kind::Rows(class, _) | Kind::Bytes(class) => class,
        }
    }

    /// Returns the layout of the column's bytes.
    pub fn form(self) -> Form {
        match self {
            Kind::Symbols(_) => Form::Symbols,
            Kind::Rows(_, width) => Form::Rows(width.max(1)),
            Kind::Bytes(_) => Form::Bytes,
        }
    }
}

/// The layout of a column's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Numbers as LEB128.
    Symbols,
    /// Rows of a matrix, of this width in bytes.
    Rows(u16),
    /// Bytes without structure.
    Bytes,
}

impl Form {
    /// Returns the number that denotes the form in the directory of a chunk.
    pub fn code(self) -> u64 {
        match self {
            Form::Symbols => 0,
            Form::Bytes => 1,
            Form::Rows(width) => 1 + u64::from(width),
        }
    }

    /// Returns the form that `code` denotes in the directory of a chunk.
    pub fn from_code(code: u64) -> Result<Form, Corrupt> {
        Ok(match code {
            0 => Form::Symbols,
            1 => Form::Bytes,
            width => Form::Rows(u16::try_from(width - 1).map_err(|_| {
                corrupt("cannot read the directory of columns: expected a column form of at most 65536")
            })?),
        })
    }
}

/// Class of a column. Columns of a class have similar content and are compressed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    /// Page headers and other bytes around records.
    Framing,
    /// Shapes of records.
    Shapes,
    /// Transaction ids.
    Transactions,
    /// Relations and block numbers.
    Blocks,
    /// Main data of records.
    MainData,
    /// Lengths and forms of block data.
    BlockData,
    /// Block data that no predictor codes.
    Payload,
    /// Headers and lengths of heap tuples.
    TupleHeaders,
    /// Attributes of fixed width.
    Fixed,
    /// Attributes of any length.
    Text,
    /// Values that the server compressed, in uncompressed form.
    Expanded,
    /// Index tuples.
    IndexTuples,
    /// Headers of full-page images.
    ImageHeaders,
    /// Deltas of full-page images.
    ImageDeltas,
    /// Page headers and line pointers of full-page images.
    PageHeaders,
    /// Full-page images that are not predicted.
    ImageBytes,
    /// Bytes outside of records.
    Raw,
}

/// All classes, in storage order.
pub const CLASSES: [Class; 17] = [
    Class::Framing,
    Class::Shapes,
    Class::Transactions,
    Class::Blocks,
    Class::MainData,
    Class::BlockData,
    Class::Payload,
    Class::TupleHeaders,
    Class::Fixed,
    Class::Text,
    Class::Expanded,
    Class::IndexTuples,
    Class::ImageHeaders,
    Class::ImageDeltas,
    Class::PageHeaders,
    Class::ImageBytes,
    Class::Raw,
];

impl Class {
    /// Returns the class's name in `docs/format.md`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Framing => "framing",
            Class::Shapes => "shapes",
            Class::Transactions => "transactions",
            Class::Blocks => "blocks",
            Class::MainData => "main data",
            Class::BlockData => "block data",
            Class::Payload => "payload",
            Class::TupleHeaders => "tuple headers",
            Class::Fixed => "fixed",
            Class::Text => "text",
            Class::Expanded => "expanded",
            Class::IndexTuples => "index tuples",
            Class::ImageHeaders => "image headers",
            Class::ImageDeltas => "image deltas",
            Class::PageHeaders => "page headers",
            Class::ImageBytes => "image bytes",
            Class::Raw => "raw",
        }
    }
}
