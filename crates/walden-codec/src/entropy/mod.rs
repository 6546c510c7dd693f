//! Entropy coding of columns. zstd is the general compressor, after transposing rows and replacing frequent
//! words of text by numbers. Levels 7 and above use context mixing.
//!
//! - [`packer`], [`unpacker`]: the columns of a class, or other bytes, to a [`part`] and back.
//! - [`layout`]: the columns of a class as one content for zstd, with rows transposed into planes.
//! - [`dictionary`]: text with frequent words as numbers.
//! - [`zstd_coder`]: zstd, with or without a prefix.
//! - [`mixing`]: context mixing and the range coder.

mod content;
mod dictionary;
mod headed;
mod layout;
mod level;
mod mixing;
mod packer;
mod part;
mod plane_cost;
mod state;
mod transpose;
mod unpacker;
mod zstd_coder;

pub use self::content::Content;
pub use self::packer::Packer;
pub use self::unpacker::{ColumnEntry, Unpacker};
use crate::column_kind::CLASSES;

/// Class number of a directory of columns.
const DIRECTORY: usize = CLASSES.len();
/// Class number for contents of a file that is coded as bytes, after the numbers of all column classes.
const FORM_BYTES: usize = CLASSES.len() + 1;

#[cfg(test)]
mod tests;
