//! Entropy coding: columns to few bytes and back. A general compressor (zstd), with rows transposed and words of text replaced
//! by their numbers before; from level 7 on, context mixing.
//!
//! - [`packer`], [`unpacker`]: the columns of a class, or other bytes, to a [`part`] and back.
//! - [`layout`]: the columns of a class as one content for zstd, rows transposed into planes.
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
pub use self::packer::{Packer, Statistics};
pub use self::unpacker::{ColumnEntry, Unpacker};
use crate::column_kind::CLASSES;

/// The class of a directory of columns.
const DIRECTORY: usize = CLASSES.len();
/// The class of a file that is coded as bytes.
const FORM_BYTES: usize = CLASSES.len() + 1;

#[cfg(test)]
mod tests;
