//! Files to their coded form and back, one after another.
//!
//! The state that a file leaves behind (pages, transactions, statistics) helps with the next one, so files are decoded in
//! the order in which they were encoded, from a *keyframe* on: a file that starts with no state.

mod breakdown;
mod decode;
mod encode;
mod fallback;
mod frame;
mod magics;

pub use self::breakdown::{Breakdown, Bytes};
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
    /// Its bytes, compressed as they are: what is no segment, or cannot be coded as one.
    Bytes = 0,
    /// Its records.
    Records = 1,
}

/// A file in its coded form.
#[derive(Debug)]
pub struct Encoded {
    /// How it is coded.
    pub form: Form,
    /// Whether it is decoded without the files before it.
    pub keyframe: bool,
    /// The input of [`Decoder::decode`].
    pub content: Vec<u8>,
}

/// What one file leaves behind for the next: columns and entropy coder of one direction, and the model.
struct State<C, E> {
    coder: C,
    entropy: E,
    frame: FrameColumns,
    model: Model,
}

impl<C, E> State<C, E> {
    /// Why pages could not be kept, if so.
    fn failure(&self) -> Option<String> {
        self.model.failure().map(ToString::to_string)
    }
}

/// The most that the columns of a file of so many bytes may weigh together: modelling may add some bytes, but not this many.
pub(crate) fn max_column_weight(bytes: usize) -> usize {
    4 * bytes + (1 << 16)
}

#[cfg(test)]
mod tests;
