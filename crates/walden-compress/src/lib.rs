#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod breakdown;
pub mod check;
mod compress;
mod decompress;
mod error;
mod inputs;
mod pack;
mod segment_sink;
mod show;

use std::path::Path;

pub use compress::{CompressOptions, Compressor, Done};
pub use decompress::{DecompressOptions, Decompressor, hint_of};
pub use error::{FileError, VerifyError};
pub use inputs::{Input, gather, gather_compressed};
pub use pack::pack_folder;
pub use show::{document, form_name, ratio, table};

/// File name extension of a compressed segment.
pub const SEGMENT_ENDING: &str = "wlz";
/// File name extension of a pack.
pub const PACK_ENDING: &str = "wpk";
/// Maximum number of files whose results are listed individually.
const MAX_ROWS: usize = 50;
/// The name of standard input in messages.
const STDIN: &str = "standard input";

/// Returns whether a file name means standard input and output.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}
