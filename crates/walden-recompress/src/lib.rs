//! Reproduces the compression of PostgreSQL, byte for byte.
//!
//! PostgreSQL compresses full-page images and values with pglz, lz4 or zstd. `walden compress` stores them
//! uncompressed, which its entropy coding compresses better, and has to reproduce the compressed bytes
//! exactly when decoding.
//!
//! [`Recompressor`] uses the libraries that this crate is built with. The output of lz4 and zstd may change
//! with their version, so it serves for estimates of sizes and for comparisons. [`lz4`], [`pglz`] and
//! [`zstd`] are this crate's own compressors, which reproduce the output of certain releases and never
//! change, so that files may depend on them.

#![forbid(unsafe_code)]

use std::cell::RefCell;

use ::zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use ::zstd::zstd_safe::{DCtx, ErrorCode};
use walden_format::record::Compression;

pub mod lz4;
pub mod pglz;
pub mod zstd;

use self::pglz::Pglz;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

thread_local! {
    /// Cached per thread: creating one takes as long as decompressing a page.
    static ZSTD: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The reason why bytes cannot be decompressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecompressError {
    /// The bytes are not valid output of the method, or do not fit.
    Corrupt,
    /// Memory is lacking; the bytes may be valid.
    NoMemory,
}

/// A compression method of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// pglz, PostgreSQL's own format.
    Pglz,
    /// An LZ4 block, without the LZ4 frame format.
    Lz4,
    /// A zstd frame.
    Zstd,
}

impl Method {
    /// Returns the method of a full-page image; `None` if it is not compressed.
    pub fn from_compression(compression: Compression) -> Option<Method> {
        match compression {
            Compression::None => None,
            Compression::Pglz => Some(Method::Pglz),
            Compression::Lz4 => Some(Method::Lz4),
            Compression::Zstd => Some(Method::Zstd),
        }
    }

    /// Decompresses `stored` into `raw`, which it should fill exactly. Returns the number of bytes written,
    /// or `None` if `stored` is corrupt, or memory is lacking: see [`Method::try_decompress`].
    pub fn decompress(self, stored: &[u8], raw: &mut [u8]) -> Option<usize> {
        self.try_decompress(stored, raw).ok()
    }

    /// Decompresses like [`Method::decompress`], but returns the reason of a failure.
    ///
    /// # Errors
    /// `stored` is corrupt, or memory is lacking.
    pub fn try_decompress(self, stored: &[u8], raw: &mut [u8]) -> Result<usize, DecompressError> {
        match self {
            Method::Pglz => pglz::decompress(stored, raw).ok_or(DecompressError::Corrupt),
            Method::Lz4 => {
                lz4_flex::block::decompress_into(stored, raw).map_err(|_| DecompressError::Corrupt)
            }
            Method::Zstd => ZSTD.with_borrow_mut(|context| {
                let context = match context {
                    Some(context) => context,
                    none => none.insert(DCtx::try_create().ok_or(DecompressError::NoMemory)?),
                };
                context.decompress(raw, stored).map_err(convert_zstd_error)
            }),
        }
    }
}

fn convert_zstd_error(error: ErrorCode) -> DecompressError {
    const NO_MEMORY: ErrorCode = (ZSTD_ErrorCode::ZSTD_error_memory_allocation as ErrorCode).wrapping_neg();
    match error {
        NO_MEMORY => DecompressError::NoMemory,
        _ => DecompressError::Corrupt,
    }
}

/// Compresses with the same parameters as a server, by the linked libraries.
pub struct Recompressor {
    pglz: Pglz,
    zstd: Option<::zstd::bulk::Compressor<'static>>,
}

impl Default for Recompressor {
    fn default() -> Recompressor {
        Recompressor::new()
    }
}

impl Recompressor {
    /// Creates a recompressor; its tables are reused from call to call.
    pub fn new() -> Recompressor {
        let zstd = ::zstd::bulk::Compressor::new(::zstd::DEFAULT_COMPRESSION_LEVEL).ok();
        Recompressor { pglz: Pglz::new(), zstd }
    }

    /// Replaces the content of `out` by `raw`, compressed as a server compresses a full-page image or a
    /// value. Returns false, with `out` empty, if the server would store it uncompressed.
    pub fn compress(&mut self, method: Method, raw: &[u8], out: &mut Vec<u8>) -> bool {
        let len = match method {
            Method::Pglz => return self.pglz.compress(raw, out),
            Method::Lz4 => ::lz4::block::compress_bound(raw.len()).ok().and_then(|bound| {
                out.resize(bound, 0);
                ::lz4::block::compress_to_buffer(raw, None, false, out).ok()
            }),
            Method::Zstd => self.zstd.as_mut().and_then(|zstd| {
                out.resize(::zstd::zstd_safe::compress_bound(raw.len()), 0);
                zstd.compress_to_buffer(raw, out.as_mut_slice()).ok()
            }),
        };
        out.truncate(len.unwrap_or(0));
        len.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value from a row of `pg_statistic` as a server stored it, without its header and raw size.
    const VALUE: [u8; 24] = [
        0x04, 0x01, 0x00, 0x03, 0x01, 0xBC, 0x02, 0x00, 0x00, 0x0D, 0x08, 0x00, 0x00, 0x00, 0x01, 0x10, 0x6F,
        0x12, 0x83, 0x3A, 0x01, 0x0F, 0x04, 0x1E,
    ];

    #[test]
    fn images_of_all_methods_decompress_to_what_they_were() {
        let raw: Vec<u8> = (0..8000u32).map(|n| if n % 7 < 4 { (n / 70) as u8 } else { 0 }).collect();
        let mut recompressor = Recompressor::new();
        for method in [Method::Pglz, Method::Lz4, Method::Zstd] {
            let mut stored = vec![1; 3];
            assert!(recompressor.compress(method, &raw, &mut stored));
            let mut back = vec![0; raw.len()];
            assert_eq!(method.decompress(&stored, &mut back), Some(raw.len()));
            assert_eq!(back, raw);
        }
    }

    #[test]
    fn a_lack_of_memory_is_no_fault_of_the_bytes() {
        let code = |code: ZSTD_ErrorCode| (code as ErrorCode).wrapping_neg();
        assert_eq!(
            convert_zstd_error(code(ZSTD_ErrorCode::ZSTD_error_memory_allocation)),
            DecompressError::NoMemory
        );
        for method in [Method::Pglz, Method::Lz4, Method::Zstd] {
            let result = method.try_decompress(&[0xFF; 9], &mut [0; 100]);
            assert_eq!(result, Err(DecompressError::Corrupt), "{method:?}");
        }
    }

    #[test]
    fn a_value_is_compressed_as_a_server_did() {
        let (mut raw, mut stored) = (vec![0; 72], Vec::new());
        assert_eq!(Method::Pglz.decompress(&VALUE, &mut raw), Some(raw.len()));
        assert!(Recompressor::new().compress(Method::Pglz, &raw, &mut stored));
        assert_eq!(stored, VALUE);
    }
}
