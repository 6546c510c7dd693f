//! Columns: streams of values of one kind, to which the parts of records go.
//!
//! A model names columns as it goes. Encoder and decoder name the same ones in the same order, as both run the same model, so a
//! column needs no name in the compressed form.
//!
//! At the end of each segment the columns are compressed into a *chunk* and emptied. A column is named once for all chunks from
//! a keyframe to the next.

mod decoder;
mod encoder;
mod leb128;

use walden_format::record::RelFileLocator;
use walden_redo::compress::pglz::same_start;

pub use self::decoder::{Decoder, Wanted};
pub use self::encoder::{Content, Encoder};
pub use self::leb128::{MAX_LEB128_BYTES, get_leb128, narrow, put_leb128};
use crate::{Corrupt, corrupt};

/// A column, by the order in which columns are named.
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

/// What a column counts beside its bytes, so that many empty ones count, too.
const COLUMN_WEIGHT: usize = 16;

/// Columns of like content, which are compressed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    /// Page headers and what else is around records.
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
    /// Values that the server compressed, uncompressed.
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
    /// Bytes of no record.
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
    /// The class of the column.
    pub fn class(self) -> Class {
        match self {
            Kind::Symbols(class) | Kind::Rows(class, _) | Kind::Bytes(class) => class,
        }
    }

    /// The form of its bytes.
    pub fn form(self) -> Form {
        match self {
            Kind::Symbols(_) => Form::Symbols,
            Kind::Rows(_, width) => Form::Rows(width.max(1)),
            Kind::Bytes(_) => Form::Bytes,
        }
    }
}

/// The form of a column's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Numbers as LEB128.
    Symbols,
    /// Rows of a width.
    Rows(u16),
    /// Text, or anything.
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

/// One of the two directions. A model is written once, against this.
pub trait Coder {
    /// Names a column.
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt>;

    /// Names a column whose values belong to many relations, though it is named while one of them is coded.
    fn shared_column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.column(kind)
    }

    /// Notes, for statistics, to which relation the values belong that are coded from here on.
    fn set_relation(&mut self, _: Option<RelFileLocator>) {}

    /// Codes a number: encoding writes `value` and returns it, decoding ignores it and returns the one that was written.
    fn symbol(&mut self, column: Column, value: u64) -> Result<u64, Corrupt>;

    /// Codes a number that only encoding computes.
    fn symbol_with(&mut self, column: Column, value: impl FnOnce() -> u64) -> Result<u64, Corrupt>;

    /// Codes bytes: encoding writes `source`, of length `len`, decoding reads `len`; either way they are appended to `target`.
    fn bytes(
        &mut self,
        column: Column,
        source: &[u8],
        len: usize,
        target: &mut Vec<u8>,
    ) -> Result<(), Corrupt>;

    /// Codes so many bytes.
    fn array<const N: usize>(&mut self, column: Column, source: &[u8; N]) -> Result<[u8; N], Corrupt>;

    /// Codes bytes without zeros, which a zero ends in the column; they are appended to `target`.
    fn text(&mut self, column: Column, source: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt>;

    /// Codes the same number, below 128, so many times.
    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt>;

    /// Codes bytes in place, by offset and length: encoding writes what `target` has there, decoding writes to it.
    fn in_place(
        &mut self,
        column: Column,
        places: impl Iterator<Item = (usize, usize)>,
        target: &mut [u8],
    ) -> Result<(), Corrupt>;

    /// The bytes of a column that are still to be decoded; when encoding, none.
    fn remaining(&self, column: Column) -> &[u8];
}

/// How many of these numbers below 128 are `value`, from the first on.
fn repeated(ahead: &[u8], value: u8) -> usize {
    match ahead.first() {
        // As long as each is the same as the one before it.
        Some(&first) if first == value => 1 + same_start(&ahead[1..], ahead),
        _ => 0,
    }
}

/// When decoding, how many of the next `max` numbers of each of these columns are all the given one, below 128.
pub fn count_repeated<S: Coder>(coder: &S, same: &[(Column, u8)], max: usize) -> usize {
    same.iter().fold(max, |max, &(column, value)| {
        let ahead = coder.remaining(column);
        repeated(&ahead[..max.min(ahead.len())], value)
    })
}
