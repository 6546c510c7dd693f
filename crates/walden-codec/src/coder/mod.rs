//! Encodes and decodes files in sequence.
//!
//! The state after a file (pages, transactions, statistics) improves the prediction of the next file. Files
//! are therefore decoded in the order in which they were encoded, starting from a *keyframe*: a file that
//! starts without state.

mod breakdown;
mod column_decoder;
mod decode;
mod encode;
mod fallback;
mod frame;
mod magics;

pub use self::breakdown::{Breakdown, Bytes};
#[doc(hidden)]
pub use self::column_decoder::{ColumnContent, ColumnDecoder};
pub use self::decode::Decoder;
pub use self::encode::Encoder;
pub use self::fallback::Fallback;
use self::frame::FrameColumns;
pub(crate) use self::magics::COPIES_READER;
pub use self::magics::{FORMAT_VERSION, MIN_READER, least_reader};
pub use crate::column_kind::Class;
pub use crate::framing::{Input, Original, start_of};
pub use crate::limits::{BLOCK_NOTES, Limits};
use crate::record::Model;

/// How a file is coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Form {
    /// Bytes, compressed as they are. Used for files that are not WAL segments or cannot be coded as records.
    Bytes = 0,
    /// Records of a segment.
    Records = 1,
}

/// A file in its coded form.
#[derive(Debug)]
pub struct Encoded {
    /// Whether the file is coded as bytes or as records.
    pub form: Form,
    /// Whether the file can be decoded without the previous files.
    pub keyframe: bool,
    /// Input of [`Decoder::decode`].
    pub content: Vec<u8>,
}

/// State carried from one file to the next: columns and entropy coder of one direction, and the model.
struct State<C, E> {
    coder: C,
    entropy: E,
    frame: FrameColumns,
    model: Model,
}

impl<C, E> State<C, E> {
    /// Returns the error of keeping pages in a temporary file, if any.
    fn failure(&self) -> Option<String> {
        self.model.failure().map(ToString::to_string)
    }
}

/// Returns the maximum total weight of the columns of a file of `bytes` bytes. Modelling may expand a file
/// slightly; this limit is well above that.
pub(crate) fn max_column_weight(bytes: usize) -> usize {
    4 * bytes + (1 << 16)
}

#[cfg(test)]
mod tests;
