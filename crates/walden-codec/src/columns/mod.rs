//! Columns: streams of values of one kind.
//!
//! Models create columns when they first need them. Encoder and decoder run the same model and create the same columns in the
//! same order, so that a column needs no name in the compressed form. (Comments call creating a column "naming" it.)
//!
//! At the end of each segment the columns are compressed into a *chunk* and emptied. A column exists from one keyframe to the
//! next.

mod decoder;
mod encoder;
mod leb128;

use walden_format::record::RelFileLocator;
use walden_redo::compress::pglz::same_start;

pub use self::decoder::{Decoder, Wanted};
pub use self::encoder::{Content, Encoder};
pub use self::leb128::{MAX_LEB128_BYTES, get_leb128, narrow, put_leb128};
use crate::{Corrupt, corrupt};

/// The number of a column, in the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Column(u32);

/// The values of a column, and its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Numbers, most of them small, as LEB128.
    Symbols(Class),
    /// Rows of so many bytes, 1 or more.
    Rows(Class, u16),
    /// Bytes without a fixed width.
    Bytes(Class),
}

/// Bytes that a column counts against the limit in addition to its content, so that many empty ones are limited, too.
const COLUMN_WEIGHT: usize = 16;

/// The class of a column: columns of a class have similar content and are compressed together.
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
    /// Block data of unknown form.
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

/// All classes, in the order in which they are stored.
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
    /// Its name, as `docs/format.md` has it.
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

impl Kind {
    /// The class in which the column is compressed.
    pub fn class(self) -> Class {
        match self {
            Kind::Symbols(class) | Kind::Rows(class, _) | Kind::Bytes(class) => class,
        }
    }

    /// The layout of the column's bytes.
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
    /// Rows of this width in bytes.
    Rows(u16),
    /// Bytes without structure.
    Bytes,
}

impl Form {
    /// Its number in the directory of a chunk.
    pub fn code(self) -> u64 {
        match self {
            Form::Symbols => 0,
            Form::Bytes => 1,
            Form::Rows(width) => 1 + u64::from(width),
        }
    }

    pub(super) fn from_code(code: u64) -> Result<Form, Corrupt> {
        Ok(match code {
            0 => Form::Symbols,
            1 => Form::Bytes,
            width => {
                Form::Rows(u16::try_from(width - 1).map_err(|_| {
                    corrupt("cannot read the directory of columns: expected a form up to 65536")
                })?)
            }
        })
    }
}

/// One of the two directions, encoding or decoding. A model is written once, against this trait.
pub trait Coder {
    /// Creates a column.
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt>;

    /// Creates a column whose values belong to several relations, although it is created while one of them is coded.
    fn shared_column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.column(kind)
    }

    /// Sets the relation that later values belong to, for statistics.
    fn set_relation(&mut self, _: Option<RelFileLocator>) {}

    /// Codes a number: encoding writes `value` and returns it, decoding ignores it and returns the one that was written.
    fn symbol(&mut self, column: Column, value: u64) -> Result<u64, Corrupt>;

    /// Codes a number; only encoding calls `value`.
    fn symbol_with(&mut self, column: Column, value: impl FnOnce() -> u64) -> Result<u64, Corrupt>;

    /// Codes bytes: encoding writes `source`, of length `len`, decoding reads `len`; either way they are appended to `target`.
    fn bytes(
        &mut self,
        column: Column,
        source: &[u8],
        len: usize,
        target: &mut Vec<u8>,
    ) -> Result<(), Corrupt>;

    /// Codes `N` bytes.
    fn array<const N: usize>(&mut self, column: Column, source: &[u8; N]) -> Result<[u8; N], Corrupt>;

    /// Codes bytes without zeros, terminated by a zero in the column, and appends them to `target`.
    fn text(&mut self, column: Column, source: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt>;

    /// Codes the same number, below 128, `times` times.
    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt>;

    /// Codes byte ranges (offset, length) of `target`: encoding writes them to the column, decoding reads them into `target`.
    fn in_place(
        &mut self,
        column: Column,
        places: impl Iterator<Item = (usize, usize)>,
        target: &mut [u8],
    ) -> Result<(), Corrupt>;

    /// The bytes of a column that are not decoded yet; empty when encoding.
    fn remaining(&self, column: Column) -> &[u8];
}

/// Length of the run of `value` at the start, for numbers below 128.
fn repeated(ahead: &[u8], value: u8) -> usize {
    match ahead.first() {
        // As long as each is the same as the one before it.
        Some(&first) if first == value => 1 + same_start(&ahead[1..], ahead),
        _ => 0,
    }
}

/// When decoding: how many of the next `max` numbers of each column equal the column's given number, which is below 128.
pub fn count_repeated<S: Coder>(coder: &S, same: &[(Column, u8)], max: usize) -> usize {
    same.iter().fold(max, |max, &(column, value)| {
        let ahead = coder.remaining(column);
        repeated(&ahead[..max.min(ahead.len())], value)
    })
}
