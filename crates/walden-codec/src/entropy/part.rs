//! Layout of a stored part:
//!
//! ```text
//! coder       1 byte: 0 stored, 1 zstd, 2 zstd with a prefix, 3 zstd of dictionary-coded text.
//!             Plus an effort from 0 to 2: 4 zstd of a content that context mixing also learns, 8 context
//!             mixing of each column, 16 context mixing of one content, 24 context mixing of
//!             dictionary-coded text
//! raw         LEB128: bytes after decompression
//! stored      LEB128: bytes that follow the checksum
//! checksum    4 bytes: CRC-32C of the stored bytes
//! ...
//! ```

use walden_format::crc::crc32c_append;

use super::zstd_coder;
use crate::leb128::{get_leb128, put_leb128};
use crate::{Corrupt, corrupt};

/// Coder: stored without compression.
pub const CODER_STORED: u8 = 0;
/// Coder: one zstd frame.
pub const CODER_ZSTD: u8 = 1;
/// Coder: zstd with earlier contents of the class as a prefix.
pub const CODER_ZSTD_PREFIX: u8 = 2;
/// Coder: zstd of dictionary-coded text.
pub const CODER_DICTIONARY: u8 = 3;
/// Coder: zstd of a content that context mixing also learns; plus the effort.
pub const CODER_LEARNED: u8 = 4;
/// Coder: context mixing of each column; plus the effort.
pub const CODER_MIXED_COLUMNS: u8 = 8;
/// Coder: context mixing of one content; plus the effort.
pub const CODER_MIXED: u8 = 16;
/// Coder: context mixing of dictionary-coded text; plus the effort.
pub const CODER_MIXED_DICTIONARY: u8 = 24;

/// Maximum number of content bytes per stored byte, if context mixing decodes or learns the part. Context
/// mixing takes a few hundred nanoseconds per byte of content, so this ratio bounds the processor time for a
/// small file.
pub const MAX_MIXING_RATIO: usize = 1024;
/// Maximum number of content bytes per stored byte, if zstd decodes the part: the most compact block of zstd
/// has 4 bytes for 128 KiB.
const MAX_ZSTD_RATIO: usize = 1 << 15;

/// Appends a part with its header.
pub fn put_part(coder: u8, raw: usize, stored: &[u8], out: &mut Vec<u8>) {
    out.push(coder);
    put_leb128(out, raw as u64);
    put_leb128(out, stored.len() as u64);
    out.extend(crc32c_append(0, stored).to_le_bytes());
    out.extend_from_slice(stored);
}

/// A part that is not decompressed yet.
pub struct Part<'a> {
    /// Number of the coder (`CODER_*`).
    pub coder: u8,
    /// Length in bytes after decompression.
    pub raw: usize,
    /// Compressed bytes.
    pub stored: &'a [u8],
}

impl<'a> Part<'a> {
    /// Reads a part of at most `max` bytes after decompression, and advances the input.
    pub fn read(input: &mut &'a [u8], max: usize) -> Result<Part<'a>, Corrupt> {
        let cut = || corrupt("cannot read a part: it is cut short");
        let (&coder, after) = input.split_first().ok_or_else(cut)?;
        *input = after;
        let raw = usize::try_from(get_leb128(input)?).unwrap_or(usize::MAX);
        let stored = usize::try_from(get_leb128(input)?).unwrap_or(usize::MAX);
        if raw > max {
            return Err(corrupt("cannot read a part: expected fewer bytes than it states"));
        }
        let (checksum, after) = input.split_first_chunk::<4>().ok_or_else(cut)?;
        let (stored, after) = after.split_at_checked(stored).ok_or_else(cut)?;
        *input = after;
        if crc32c_append(0, stored) != u32::from_le_bytes(*checksum) {
            return Err(corrupt("cannot read a part: expected the bytes of its checksum"));
        }
        let ratio = match coder {
            CODER_STORED => 1,
            CODER_ZSTD..CODER_LEARNED => MAX_ZSTD_RATIO,
            _ => MAX_MIXING_RATIO,
        };
        if raw.div_ceil(ratio) > stored.len() {
            return Err(corrupt(
                "cannot read a part: expected more stored bytes for the length that it states",
            ));
        }
        Ok(Part { coder, raw, stored })
    }

    /// Returns whether the content becomes part of the prefix of later contents.
    pub fn is_prefix(&self) -> bool {
        matches!(self.coder, CODER_STORED | CODER_ZSTD | CODER_ZSTD_PREFIX)
    }

    /// Returns the effort of context mixing that learns the content without coding it.
    pub fn learned_effort(&self) -> Option<u8> {
        (CODER_LEARNED..CODER_MIXED_COLUMNS).contains(&self.coder).then(|| self.coder - CODER_LEARNED)
    }

    /// Returns the content of a learned part, and the choices of the encoder's context mixing.
    pub fn with_choices(&self, zstd: &mut zstd_coder::Decompressor) -> Result<(Vec<u8>, Vec<u8>), Corrupt> {
        let mut input = self.stored;
        let count = usize::try_from(get_leb128(&mut input)?).unwrap_or(usize::MAX);
        let stored = usize::try_from(get_leb128(&mut input)?).unwrap_or(usize::MAX);
        let (stored, content) =
            input.split_at_checked(stored).ok_or_else(|| corrupt("cannot read a part: it is cut short"))?;
        // Each choice applies to at least one byte.
        if count > self.raw {
            return Err(corrupt("cannot read a part: expected fewer choices than bytes"));
        }
        let mut chosen = Vec::new();
        if count > 0 {
            zstd.decompress(stored, &[], count, &mut chosen)?;
        }
        let mut raw = Vec::new();
        zstd.decompress(content, &[], self.raw, &mut raw)?;
        if raw.len() == self.raw && chosen.len() == count {
            Ok((raw, chosen))
        } else {
            Err(corrupt("cannot decompress a part: expected the length that it states"))
        }
    }
}
