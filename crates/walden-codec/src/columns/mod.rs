//! Columns: streams of values of one kind.
//!
//! A model creates a column when it first needs the column. Encoder and decoder run the same model and create
//! the same columns in the same order, so the compressed form does not store the meaning of a column.
//!
//! At the end of each segment the columns are compressed into a *chunk* and cleared. A column exists until
//! the next keyframe.

mod decoder;
mod encoder;

use walden_format::record::RelFileLocator;
use walden_recompress::pglz::same_start;

pub use self::decoder::Decoder;
pub use self::encoder::Encoder;
use crate::Corrupt;
use crate::column_kind::Kind;

/// Number of a column, in the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Column(u32);

/// Number of bytes that each column counts against the limit in addition to its content, which also limits
/// the number of empty columns.
const COLUMN_WEIGHT: usize = 16;

/// A direction: encoding or decoding. A model is written once, against this trait.
pub trait Coder {
    /// Creates a column.
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt>;

    /// Creates a column for values of all relations. Statistics do not attribute the column to the relation
    /// that is being coded.
    fn shared_column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.column(kind)
    }

    /// Sets the relation of later values, for statistics.
    fn set_relation(&mut self, _: Option<RelFileLocator>) {}

    /// Codes a number. Encoding writes `value` and returns it. Decoding ignores it and returns the number
    /// that was written.
    fn symbol(&mut self, column: Column, value: u64) -> Result<u64, Corrupt>;

    /// Codes a number. Only encoding calls `value`.
    fn symbol_with(&mut self, column: Column, value: impl FnOnce() -> u64) -> Result<u64, Corrupt>;

    /// Codes bytes. Encoding writes `source`, of length `len`. Decoding reads `len` bytes. Both append them
    /// to `target`.
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

    /// Codes byte ranges (offset, length) of `target`. Encoding writes them to the column. Decoding reads
    /// them into `target`.
    fn in_place(
        &mut self,
        column: Column,
        places: impl Iterator<Item = (usize, usize)>,
        target: &mut [u8],
    ) -> Result<(), Corrupt>;

    /// Returns the bytes of a column that are not decoded yet; empty when encoding.
    fn remaining(&self, column: Column) -> &[u8];
}

/// Returns the length of the run of `value` at the start of a column's bytes. `value` is below 128.
fn repeated(ahead: &[u8], value: u8) -> usize {
    match ahead.first() {
        // The run ends where a byte differs from its predecessor.
        Some(&first) if first == value => 1 + same_start(&ahead[1..], ahead),
        _ => 0,
    }
}

/// When decoding: returns how many of the next `max` numbers of each column equal the number given for it,
/// which is below 128.
pub fn count_repeated<S: Coder>(coder: &S, same: &[(Column, u8)], max: usize) -> usize {
    same.iter().fold(max, |max, &(column, value)| {
        let ahead = coder.remaining(column);
        repeated(&ahead[..max.min(ahead.len())], value)
    })
}
