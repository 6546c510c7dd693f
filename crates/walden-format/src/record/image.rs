//! Full-page images in a record: their headers.
//!
//! ```text
//! offset  width
//!      0      2  length       bytes of the image as stored
//!      2      2  hole_offset  offset of the page's unused middle
//!      4      1  bimg_info    flags
//!      5      2  hole_length  only if the image has a hole and is compressed
//! ```
//!
//! An uncompressed image omits its hole, so the hole's length is the page size minus the image's length.
//! `XLogRecordBlockImageHeader` in `access/xlogrecord.h`; `XLogRecordAssemble` writes it, `DecodeXLogRecord`
//! reads it.

use super::RecordError;
use crate::reader::Reader;
use crate::version::Major;

/// How a full-page image is compressed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Compression {
    None,
    Pglz,
    Lz4,
    Zstd,
}

/// The flags of an image (`bimg_info`, `BKPIMAGE_*`). The meaning of the bits depends on the version: 10
/// added the flag that redo applies the image, 15 renumbered the flags and gave each compression method its
/// own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ImageInfo(pub u8);

/// `BKPIMAGE_HAS_HOLE`, in all versions.
const HAS_HOLE: u8 = 0x01;
/// `BKPIMAGE_IS_COMPRESSED` until 14: with pglz.
const IS_COMPRESSED_14: u8 = 0x02;
/// `BKPIMAGE_APPLY` of 10 to 14.
const APPLY_14: u8 = 0x04;
/// `BKPIMAGE_APPLY` since 15.
const APPLY: u8 = 0x02;
/// `BKPIMAGE_COMPRESS_PGLZ`, `_LZ4` and `_ZSTD` since 15.
const COMPRESS_PGLZ: u8 = 0x04;
const COMPRESS_LZ4: u8 = 0x08;
const COMPRESS_ZSTD: u8 = 0x10;
const COMPRESSED: u8 = COMPRESS_PGLZ | COMPRESS_LZ4 | COMPRESS_ZSTD;

impl ImageInfo {
    /// Returns the flags that `version` writes for an image with these properties; `None` if `version` does
    /// not support the compression method.
    pub fn new(
        has_hole: bool,
        is_applied: bool,
        compression: Compression,
        version: Major,
    ) -> Option<ImageInfo> {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let hole = bit(has_hole, HAS_HOLE);
        if version >= Major::V15 {
            let method = match compression {
                Compression::None => 0,
                Compression::Pglz => COMPRESS_PGLZ,
                Compression::Lz4 => COMPRESS_LZ4,
                Compression::Zstd => COMPRESS_ZSTD,
            };
            return Some(ImageInfo(hole | bit(is_applied, APPLY) | method));
        }
        let method = match compression {
            Compression::None => 0,
            Compression::Pglz => IS_COMPRESSED_14,
            Compression::Lz4 | Compression::Zstd => return None,
        };
        Some(ImageInfo(hole | bit(is_applied && version >= Major::V10, APPLY_14) | method))
    }

    /// Whether the page's unused middle is omitted.
    #[inline]
    pub fn has_hole(self) -> bool {
        self.0 & HAS_HOLE != 0
    }

    /// Whether redo restores the image. Before 10 it always does.
    #[inline]
    pub fn is_applied(self, version: Major) -> bool {
        let bit = if version >= Major::V15 { APPLY } else { APPLY_14 };
        version < Major::V10 || self.0 & bit != 0
    }

    /// Whether the image is compressed by any method (`BKPIMAGE_COMPRESSED`).
    #[inline]
    pub fn is_compressed(self, version: Major) -> bool {
        self.0 & if version >= Major::V15 { COMPRESSED } else { IS_COMPRESSED_14 } != 0
    }

    /// The compression method; `None` if the bits of several are set, which no server writes.
    #[inline]
    pub fn compression(self, version: Major) -> Option<Compression> {
        if version < Major::V15 {
            let is_compressed = self.is_compressed(version);
            return Some(if is_compressed { Compression::Pglz } else { Compression::None });
        }
        match self.0 & COMPRESSED {
            0 => Some(Compression::None),
            COMPRESS_PGLZ => Some(Compression::Pglz),
            COMPRESS_LZ4 => Some(Compression::Lz4),
            COMPRESS_ZSTD => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// The header of an image, as written in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageHeader {
    /// Bytes of the image as stored.
    pub len: u16,
    /// The offset of the page's unused middle, in bytes; 0 if there is none.
    pub hole_offset: u16,
    /// The flags.
    pub info: ImageInfo,
    /// Bytes of the hole: `Some` if the image has a hole and is compressed, otherwise `None`.
    pub hole_len: Option<u16>,
}

impl ImageHeader {
    /// Bytes of a header without the hole's length (`SizeOfXLogRecordBlockImageHeader`).
    pub const WIDTH: usize = 5;
    /// Bytes of the hole's length (`SizeOfXLogRecordBlockCompressHeader`).
    pub const HOLE_LEN_WIDTH: usize = 2;

    /// Whether a header with these flags has the hole's length.
    #[inline]
    pub fn has_hole_len(info: ImageInfo, version: Major) -> bool {
        info.has_hole() && info.is_compressed(version)
    }

    /// Reads a header; `None` if it is truncated.
    #[inline]
    pub fn read(reader: &mut Reader<'_>, version: Major) -> Option<ImageHeader> {
        let len = reader.u16()?;
        let hole_offset = reader.u16()?;
        let info = ImageInfo(reader.u8()?);
        let hole_len = if Self::has_hole_len(info, version) { Some(reader.u16()?) } else { None };
        Some(ImageHeader { len, hole_offset, info, hole_len })
    }

    /// Appends the header.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice([self.len.to_le_bytes(), self.hole_offset.to_le_bytes()].as_flattened());
        out.push(self.info.0);
        if let Some(hole_len) = self.hole_len {
            out.extend_from_slice(&hole_len.to_le_bytes());
        }
    }

    /// Bytes of the header.
    #[inline]
    pub fn width(&self) -> usize {
        Self::WIDTH + if self.hole_len.is_some() { Self::HOLE_LEN_WIDTH } else { 0 }
    }
}

/// A full-page image within a record, decoded by [`super::decode`]: its sizes are consistent with each other
/// and the page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// The offset of its bytes from the record's start.
    pub offset: u32,
    /// Bytes as stored.
    pub len: u16,
    /// The offset of the page's unused middle, which the image omits.
    pub hole_offset: u16,
    /// Bytes of that hole; 0 if there is none.
    pub hole_len: u16,
    /// Bytes of its header in the record: 5, or 7 for a compressed image with a hole.
    pub header_len: u8,
    /// The flags as stored.
    pub info: ImageInfo,
    /// Whether redo restores the image. Other images exist only for `wal_consistency_checking`.
    pub apply: bool,
    /// The compression method of the bytes.
    pub compression: Compression,
}

impl Image {
    /// Reads the header of block `id`'s image in WAL whose data pages have `page_bytes`.
    #[inline(never)]
    pub(super) fn decode(
        reader: &mut Reader<'_>,
        id: u8,
        version: Major,
        page_bytes: u32,
    ) -> Result<Image, RecordError> {
        let header = ImageHeader::read(reader, version).ok_or(RecordError::HeaderCut)?;
        let ImageHeader { len, hole_offset, info, .. } = header;
        // If the bits of several methods are set, the newest method counts.
        let compression = info.compression(version).unwrap_or(Compression::Zstd);
        let stored = u32::from(len);
        let contradiction = RecordError::ImageHole(id);
        let hole_len = match (header.hole_len, info.has_hole()) {
            (Some(hole_len), _) => hole_len,
            // A page has at most 32 kB, so the hole fits.
            (None, true) => page_bytes.checked_sub(stored).ok_or(contradiction)? as u16,
            (None, false) => 0,
        };
        let is_valid = match info.has_hole() {
            true => {
                hole_offset != 0
                    && hole_len != 0
                    && u32::from(hole_offset) + u32::from(hole_len) <= page_bytes
                    && stored < page_bytes
            }
            false if compression == Compression::None => hole_offset == 0 && stored == page_bytes,
            false => hole_offset == 0 && stored < page_bytes,
        };
        if !is_valid {
            return Err(contradiction);
        }
        let header_len = header.width() as u8;
        let apply = info.is_applied(version);
        Ok(Image { offset: 0, len, hole_offset, hole_len, header_len, info, apply, compression })
    }

    /// Returns the image's header as stored in the record.
    pub fn header(&self) -> ImageHeader {
        let has_hole_len = usize::from(self.header_len) > ImageHeader::WIDTH;
        let hole_len = has_hole_len.then_some(self.hole_len);
        ImageHeader { len: self.len, hole_offset: self.hole_offset, info: self.info, hole_len }
    }

    /// Bytes of the image in the record, including its header.
    #[inline]
    pub fn record_bytes(&self) -> u32 {
        u32::from(self.len) + u32::from(self.header_len)
    }

    /// Bytes of the image without compression.
    #[inline]
    pub fn uncompressed_len(&self, page_bytes: u32) -> u32 {
        match self.compression {
            Compression::None => self.len.into(),
            _ => page_bytes.saturating_sub(self.hole_len.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const METHODS: [Compression; 4] =
        [Compression::None, Compression::Pglz, Compression::Lz4, Compression::Zstd];

    #[test]
    fn flags_of_every_version_round_trip() {
        for version in Major::all() {
            for (has_hole, is_applied, method) in [false, true]
                .into_iter()
                .flat_map(|hole| [false, true].map(|apply| (hole, apply)))
                .flat_map(|(hole, apply)| METHODS.map(|method| (hole, apply, method)))
            {
                let Some(info) = ImageInfo::new(has_hole, is_applied, method, version) else {
                    assert!(version < Major::V15 && matches!(method, Compression::Lz4 | Compression::Zstd));
                    continue;
                };
                assert_eq!(info.has_hole(), has_hole);
                assert_eq!(info.is_applied(version), is_applied || version < Major::V10);
                assert_eq!(info.compression(version), Some(method), "{version}");
                assert_eq!(info.is_compressed(version), method != Compression::None);
            }
        }
    }

    proptest! {
        #[test]
        fn headers_are_written_as_they_were_read(at in 0..12_usize, bytes: [u8; 7]) {
            let version = Major::all().nth(at).unwrap();
            let mut reader = Reader::new(&bytes);
            let header = ImageHeader::read(&mut reader, version).unwrap();
            let width = bytes.len() - reader.left();
            let mut out = Vec::new();
            header.write(&mut out);
            prop_assert_eq!(&out, &bytes[..width]);
            prop_assert_eq!(header.width(), width);
            prop_assert_eq!(ImageHeader::read(&mut Reader::new(&bytes[..width - 1]), version), None);
        }

        #[test]
        fn decoded_images_keep_their_header(at in 0..12_usize, bytes: [u8; 7], hole in 1..8000_u16) {
            let version = Major::all().nth(at).unwrap();
            let mut bytes = bytes;
            // Random bytes almost never form a valid image: make the sizes consistent.
            bytes[0..2].copy_from_slice(&(8192 - hole).to_le_bytes());
            bytes[2..4].copy_from_slice(&24_u16.to_le_bytes());
            bytes[4] |= HAS_HOLE;
            if let Ok(image) = Image::decode(&mut Reader::new(&bytes), 0, version, 8192) {
                let mut out = Vec::new();
                image.header().write(&mut out);
                prop_assert_eq!(&out, &bytes[..usize::from(image.header_len)]);
            }
        }
    }
}
