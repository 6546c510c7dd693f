//! Values of variable length (`varatt.h`, before 16 in `postgres.h`), as on little-endian machines.
//!
//! ```text
//! offset  width
//!      0      1  header: lowest bit 1, above it the size, header included, in 7 bits (`varattrib_1b`)
//!      1         content
//!
//!      0      1  1: a size of 0
//!      1      1  tag: the kind of reference (`varattrib_1b_e`); 18 for a TOAST table
//!      2     16  `varatt_external`
//!
//!      0      4  header: lowest 2 bits 0, or 2 if compressed; above them the size with header (`varattrib_4b`)
//!      4      4  if compressed: raw length in 30 bits, method in 2 (`va_tcinfo`)
//!      4 or 8    content
//! ```
//!
//! Headers of 4 bytes are aligned to 4 bytes. The padding before them is zero, unlike any header of 1 byte.

/// Bytes of a header of 4 bytes (`VARHDRSZ`).
pub const LONG_HEADER_BYTES: usize = 4;
/// Bytes of a header of 4 bytes and of `va_tcinfo` (`VARHDRSZ_COMPRESSED`).
pub const COMPRESSED_HEADER_BYTES: usize = LONG_HEADER_BYTES + COMPRESSION_INFO_BYTES;
/// Bytes of `va_tcinfo`.
pub const COMPRESSION_INFO_BYTES: usize = 4;
/// Maximum number of bytes of content with a header of 1 byte (`VARATT_SHORT_MAX` less the header).
pub const MAX_SHORT_CONTENT: usize = 0x7F - 1;
/// Bytes of a reference to a value in a TOAST table (`TOAST_POINTER_SIZE`).
pub const TOAST_POINTER_BYTES: usize = TOAST_POINTER_HEADER.len() + TOAST_POINTER_CONTENT;
/// Bytes of `varatt_external`, which locates the value.
pub const TOAST_POINTER_CONTENT: usize = 16;
/// The first bytes of a reference to a value in a TOAST table: a size of 0 and `VARTAG_ONDISK`.
pub const TOAST_POINTER_HEADER: [u8; 2] = [1, 18];
/// Bytes of a value's content in each chunk of a TOAST table but its last (`TOAST_MAX_CHUNK_SIZE` with pages
/// of 8 kB).
pub const TOAST_CHUNK_BYTES: usize = 1996;

/// A header of 1 byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShortHeader {
    /// The header of a value.
    Value {
        /// Bytes, header included.
        size: usize,
    },
    /// The first byte of a reference to a value elsewhere; its tag follows.
    External,
}

impl ShortHeader {
    /// Decodes a value's first byte; `None` if it starts a header of 4 bytes, or is padding before one.
    #[inline]
    pub fn decode(first: u8) -> Option<ShortHeader> {
        match first {
            1 => Some(ShortHeader::External),
            first if first & 1 == 1 => Some(ShortHeader::Value { size: usize::from(first >> 1) }),
            _ => None,
        }
    }

    /// Encodes the header for `content_bytes` bytes of content, at most [`MAX_SHORT_CONTENT`].
    #[inline]
    pub fn byte(content_bytes: usize) -> u8 {
        debug_assert!(content_bytes <= MAX_SHORT_CONTENT);
        (content_bytes as u8 + 1) << 1 | 1
    }
}

/// A header of 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongHeader {
    /// Bytes, header included; less than 2^30.
    pub size: u32,
    /// Whether the content is compressed.
    pub is_compressed: bool,
}

impl LongHeader {
    const IS_COMPRESSED: u32 = 2;

    /// Reads the header at the start of a value; `None` if it is not a header of 4 bytes.
    #[inline]
    pub fn read(value: &[u8]) -> Option<LongHeader> {
        let word = u32::from_le_bytes(*value.first_chunk()?);
        (word & 1 == 0)
            .then_some(LongHeader { size: word >> 2, is_compressed: word & Self::IS_COMPRESSED != 0 })
    }

    /// Builds the header of a value; `None` if the value is too long.
    #[inline]
    pub fn new(size: usize, is_compressed: bool) -> Option<LongHeader> {
        let size = u32::try_from(size).ok().filter(|&size| size < 1 << 30)?;
        Some(LongHeader { size, is_compressed })
    }

    /// Returns the four bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; LONG_HEADER_BYTES] {
        (self.size << 2 | if self.is_compressed { Self::IS_COMPRESSED } else { 0 }).to_le_bytes()
    }
}

/// The field between header and content of a compressed value (`va_tcinfo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressionInfo {
    /// Bytes of the content before compression; less than 2^30.
    pub raw_bytes: u32,
    /// `ToastCompressionId`: see [`toast_compression`].
    pub method: u8,
}

/// Numbers of compression methods (`ToastCompressionId`), under PostgreSQL's names.
#[allow(missing_docs)]
pub mod toast_compression {
    pub const PGLZ: u8 = 0;
    pub const LZ4: u8 = 1;
}

impl CompressionInfo {
    /// Number of bits of the length.
    const LENGTH_BITS: u32 = 30;

    /// Reads the four bytes.
    #[inline]
    pub fn from_bytes(bytes: [u8; COMPRESSION_INFO_BYTES]) -> CompressionInfo {
        let word = u32::from_le_bytes(bytes);
        let raw_bytes = word & ((1 << Self::LENGTH_BITS) - 1);
        CompressionInfo { raw_bytes, method: (word >> Self::LENGTH_BITS) as u8 }
    }

    /// Describes content of `raw_bytes` bytes; `None` if there are too many.
    #[inline]
    pub fn new(raw_bytes: usize, method: u8) -> Option<CompressionInfo> {
        let raw_bytes = u32::try_from(raw_bytes).ok().filter(|&bytes| bytes < 1 << Self::LENGTH_BITS)?;
        Some(CompressionInfo { raw_bytes, method: method & 3 })
    }

    /// Returns the four bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; COMPRESSION_INFO_BYTES] {
        (self.raw_bytes | u32::from(self.method) << Self::LENGTH_BITS).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for content in 0..=MAX_SHORT_CONTENT {
            let header = ShortHeader::decode(ShortHeader::byte(content));
            assert_eq!(header, Some(ShortHeader::Value { size: content + 1 }));
        }
        assert_eq!(ShortHeader::decode(TOAST_POINTER_HEADER[0]), Some(ShortHeader::External));
        assert_eq!([0, 2, 0xFE].map(ShortHeader::decode), [None; 3]);
        for (size, is_compressed) in [(4, false), (70_000, true), ((1 << 30) - 1, true)] {
            let header = LongHeader::new(size, is_compressed).expect("a header");
            assert_eq!(LongHeader::read(&header.to_bytes()), Some(header));
            assert_eq!(ShortHeader::decode(header.to_bytes()[0]), None);
        }
        assert_eq!(LongHeader::new(1 << 30, false), None);
        assert_eq!(LongHeader::new(5, true).expect("a header").to_bytes(), [22, 0, 0, 0]);
        let info = CompressionInfo::new(300, toast_compression::LZ4).expect("a length");
        assert_eq!(info.to_bytes(), [0x2C, 1, 0, 0x40]);
        assert_eq!(CompressionInfo::from_bytes(info.to_bytes()), info);
    }
}
