//! The compression formats of segment files.

use std::fmt;

/// The supported compression formats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Compression {
    None,
    Gzip,
    Lz4,
    Zstd,
    Xz,
    /// The format before xz; WAL-G's `lzma`.
    Lzma,
    Bzip2,
    Brotli,
    /// Compressed by `walden compress`, alone or in a pack.
    Walden,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
            Compression::Lzma => "lzma",
            Compression::Bzip2 => "bzip2",
            Compression::Brotli => "brotli",
            Compression::Walden => "walden",
        })
    }
}
