//! Reads and writes WAL page headers.
//!
//! ```text
//! offset  width
//!      0      2  xlp_magic       names the major version that wrote the page
//!      2      2  xlp_info        flags, see [`flags`]
//!      4      4  xlp_tli         timeline of the page's first record
//!      8      8  xlp_pageaddr    LSN of the page's start
//!     16      4  xlp_rem_len     remaining bytes of a record that started on an earlier page
//!     20      4  padding, zeros
//! the first page of each segment continues:
//!     24      8  xlp_sysid       system identifier of the cluster
//!     32      4  xlp_seg_size    bytes of a segment
//!     36      4  xlp_xlog_blcksz bytes of a page
//! ```
//!
//! `XLogPageHeaderData` and `XLogLongPageHeaderData` in `access/xlog_internal.h`. The padding is as on a
//! 64-bit machine, or on a 32-bit machine that aligns 8-byte numbers to 8 bytes. 32-bit x86 aligns them to 4:
//! there `xlp_sysid` is at offset 20, and the header has 36 bytes.

use std::fmt;
use std::ops::Range;

use crate::lsn::{Lsn, SegmentSize, Timeline};
use crate::reader::Reader;
use crate::version::{Major, UnreadableMagic};

/// Bytes of the header of most pages (`SizeOfXLogShortPHD`).
pub const SHORT_HEADER: usize = 24;
/// Bytes of the header of a segment's first page (`SizeOfXLogLongPHD`).
pub const LONG_HEADER: usize = 40;

/// The smallest and the largest WAL page (`XLOG_BLCKSZ`), in bytes.
pub(crate) const MIN_PAGE_BYTES: u32 = 1 << 10;
pub(crate) const MAX_PAGE_BYTES: u32 = 1 << 16;

/// Whether PostgreSQL can be built with WAL pages of this size.
pub(crate) const fn is_page_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_PAGE_BYTES && bytes <= MAX_PAGE_BYTES
}

/// The ranges of `xlp_rem_len` and of the padding after it in a header.
pub(crate) const REMAINING_LENGTH: Range<usize> = 16..20;
pub(crate) const HEADER_PADDING: Range<usize> = 20..24;

/// Flags of a page (`XLP_*`).
pub mod flags {
    use crate::version::Major;

    /// The page's first bytes continue a record that started on an earlier page (`XLP_FIRST_IS_CONTRECORD`).
    pub const FIRST_IS_CONTRECORD: u16 = 0x0001;
    /// The header is a long one (`XLP_LONG_HEADER`).
    pub const LONG_HEADER: u16 = 0x0002;
    /// A removable backup block may follow (`XLP_BKP_REMOVABLE`). Nearly all pages have this flag up to 18.
    pub const BKP_REMOVABLE: u16 = 0x0004;

    /// The server abandoned the record that an earlier page started, and this page starts with the record
    /// that reports it (`XLP_FIRST_IS_OVERWRITE_CONTRECORD`). The bit moved in 19, when [`BKP_REMOVABLE`] was
    /// dropped.
    pub const fn overwrite_contrecord(version: Major) -> u16 {
        if version as u8 >= Major::V19 as u8 { 0x0004 } else { 0x0008 }
    }

    /// All flags that `version` has (`XLP_ALL_FLAGS`).
    pub const fn all(version: Major) -> u16 {
        if version as u8 >= Major::V19 as u8 { 0x0007 } else { 0x000F }
    }
}

/// A page header as stored; [`crate::stream::Decoder`] checks whether it belongs at its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeader {
    /// The major version that wrote the page.
    pub version: Major,
    /// All flag bits, see [`flags`].
    pub info: u16,
    /// Timeline of the page's first record.
    pub timeline: Timeline,
    /// The LSN of the page's start.
    pub address: Lsn,
    /// Remaining bytes of a record that started on an earlier page.
    pub remaining: u32,
    /// The fields that only the first page of a segment has.
    pub long: Option<LongHeader>,
}

/// The additional fields of a segment's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongHeader {
    /// The system identifier that initdb gave the cluster.
    pub system_id: u64,
    /// Bytes of a segment, as written: see [`LongHeader::segment_size`].
    pub segment_bytes: u32,
    /// Bytes of a page of the log (`XLOG_BLCKSZ`), as written.
    pub page_bytes: u32,
}

impl LongHeader {
    /// The size of the cluster's segments, if it is one that PostgreSQL accepts.
    pub fn segment_size(&self) -> Option<SegmentSize> {
        SegmentSize::new(self.segment_bytes.into())
    }

    fn read(reader: &mut Reader<'_>) -> Option<LongHeader> {
        Some(LongHeader { system_id: reader.u64()?, segment_bytes: reader.u32()?, page_bytes: reader.u32()? })
    }

    fn has_valid_sizes(&self) -> bool {
        self.segment_size().is_some() && is_page_size(self.page_bytes)
    }
}

/// Why bytes are not a page header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PageHeaderError {
    /// Fewer bytes than a header has.
    Short,
    /// A magic that Walden does not read, and its meaning.
    Magic(u16, UnreadableMagic),
    /// Flag bits that this version does not have.
    Flags(u16),
}

impl fmt::Display for PageHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageHeaderError::Short => f.write_str("expected a whole page header, found the end of the data"),
            PageHeaderError::Magic(magic, _) => write!(f, "cannot decode page magic {magic:04X}"),
            PageHeaderError::Flags(flags) => {
                write!(f, "page flags {flags:04X}, which this version does not have")
            }
        }
    }
}

impl std::error::Error for PageHeaderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PageHeaderError::Magic(_, reason) => Some(reason),
            _ => None,
        }
    }
}

impl PageHeader {
    /// Reads the header at the start of a page; `page` may be a prefix of the page.
    ///
    /// # Errors
    /// There are fewer bytes than the header has, or its magic or flags do not belong to a version that
    /// Walden reads.
    pub fn parse(page: &[u8]) -> Result<PageHeader, PageHeaderError> {
        let mut reader = Reader::new(page);
        let magic = reader.u16().ok_or(PageHeaderError::Short)?;
        let version = Major::from_magic(magic).map_err(|reason| PageHeaderError::Magic(magic, reason))?;
        let header = PageHeader::after_magic(&mut reader, version)?;
        if header.long.is_some_and(|long| !long.has_valid_sizes()) {
            let mut unpadded = Reader::new(&page[HEADER_PADDING.start..]);
            if LongHeader::read(&mut unpadded).is_some_and(|long| long.has_valid_sizes()) {
                return Err(PageHeaderError::Magic(magic, UnreadableMagic::FourByteAlignment(version)));
            }
        }
        Ok(header)
    }

    fn after_magic(reader: &mut Reader<'_>, version: Major) -> Result<PageHeader, PageHeaderError> {
        let short = PageHeaderError::Short;
        let info = reader.u16().ok_or(short)?;
        if info & !flags::all(version) != 0 {
            return Err(PageHeaderError::Flags(info));
        }
        let timeline = reader.u32().ok_or(short)?;
        let address = Lsn(reader.u64().ok_or(short)?);
        let remaining = reader.u32().ok_or(short)?;
        reader.take(4).ok_or(short)?;
        let long = match info & flags::LONG_HEADER {
            0 => None,
            _ => Some(LongHeader::read(reader).ok_or(short)?),
        };
        Ok(PageHeader { version, info, timeline, address, remaining, long })
    }

    /// Returns the header as PostgreSQL writes it in the first [`PageHeader::width`] bytes, followed by
    /// zeros.
    ///
    /// [`PageHeader::long`] alone determines whether the header is a long one; the flag in `info` is set
    /// accordingly.
    pub fn to_bytes(&self) -> [u8; LONG_HEADER] {
        let mut bytes = [0; LONG_HEADER];
        let long_flag = if self.long.is_some() { flags::LONG_HEADER } else { 0 };
        let info = self.info & !flags::LONG_HEADER | long_flag;
        bytes[0..2].copy_from_slice(&self.version.magic().to_le_bytes());
        bytes[2..4].copy_from_slice(&info.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.timeline.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.remaining.to_le_bytes());
        if let Some(long) = &self.long {
            bytes[24..32].copy_from_slice(&long.system_id.to_le_bytes());
            bytes[32..36].copy_from_slice(&long.segment_bytes.to_le_bytes());
            bytes[36..40].copy_from_slice(&long.page_bytes.to_le_bytes());
        }
        bytes
    }

    /// Bytes of this header: [`SHORT_HEADER`] or [`LONG_HEADER`].
    pub fn width(&self) -> usize {
        if self.long.is_some() { LONG_HEADER } else { SHORT_HEADER }
    }

    /// Whether the page's first bytes continue a record that started on an earlier page.
    pub fn continues_record(&self) -> bool {
        self.info & flags::FIRST_IS_CONTRECORD != 0
    }

    /// Whether the server abandoned the record that an earlier page started, so that this page starts with an
    /// `OVERWRITE_CONTRECORD` record.
    pub fn overwrites_record(&self) -> bool {
        self.info & flags::overwrite_contrecord(self.version) != 0
    }
}

/// The first version of PostgreSQL whose page headers have this layout: 9.3.
const FIRST_MAGIC: u16 = 0xD075;

/// The header of a page of a version that Walden does not read, such as a newer one.
///
/// The layout of page headers has been the same since 9.3. The rest of the page and the flags of a new
/// version are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnreadPageHeader {
    /// The page's magic.
    pub magic: u16,
    /// Timeline of the page's first record.
    pub timeline: Timeline,
    /// The LSN of the page's start.
    pub address: Lsn,
    /// The fields that only the first page of a segment has.
    pub long: Option<LongHeader>,
}

impl UnreadPageHeader {
    /// Reads the header at the start of a page. Returns `None` if there are fewer bytes than the header has,
    /// if Walden reads the version, if the header has another layout or byte order, or if the magic is not
    /// PostgreSQL's.
    pub fn parse(page: &[u8]) -> Option<UnreadPageHeader> {
        let mut reader = Reader::new(page);
        let magic = reader.u16()?;
        if !UnreadPageHeader::has_layout(magic) {
            return None;
        }
        let info = reader.u16()?;
        let (timeline, address) = (reader.u32()?, Lsn(reader.u64()?));
        reader.take(SHORT_HEADER - 16)?;
        let long = match info & flags::LONG_HEADER {
            0 => None,
            _ => Some(LongHeader::read(&mut reader)?),
        };
        Some(UnreadPageHeader { magic, timeline, address, long })
    }

    /// Whether pages with this magic have this layout and are of a version that Walden does not read.
    pub fn has_layout(magic: u16) -> bool {
        match Major::from_magic(magic) {
            Err(UnreadableMagic::Newer | UnreadableMagic::Development(_)) => true,
            Err(UnreadableMagic::TooOld(_)) => magic >= FIRST_MAGIC,
            Ok(_) => false,
            Err(
                UnreadableMagic::BigEndian(_)
                | UnreadableMagic::FourByteAlignment(_)
                | UnreadableMagic::NotWal,
            ) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_of_every_version_round_trip(
            at in 0..12_usize,
            info: u16,
            timeline: u32,
            address: u64,
            remaining: u32,
            long: Option<(u64, u32, u32)>,
        ) {
            let version = Major::all().nth(at).unwrap();
            let long = long.map(|(system_id, segment_bytes, page_bytes)| LongHeader { system_id, segment_bytes, page_bytes });
            let long_flag = if long.is_some() { flags::LONG_HEADER } else { 0 };
            let info = info & flags::all(version) & !flags::LONG_HEADER | long_flag;
            let header = PageHeader { version, info, timeline, address: Lsn(address), remaining, long };
            let bytes = header.to_bytes();
            prop_assert_eq!(PageHeader::parse(&bytes[..header.width()]), Ok(header));
            prop_assert_eq!(PageHeader::parse(&bytes[..header.width() - 1]), Err(PageHeaderError::Short));
            prop_assert!(bytes[header.width()..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn headers_aligned_to_4_bytes_are_recognized() {
        let long = LongHeader { system_id: 7 << 61 | 9, segment_bytes: 1 << 24, page_bytes: 8192 };
        for version in Major::all() {
            let (timeline, address) = (3, Lsn(0x0500_0000));
            let header = PageHeader { version, info: 0, timeline, address, remaining: 9, long: Some(long) };
            let mut bytes = header.to_bytes().to_vec();
            assert!(PageHeader::parse(&bytes).is_ok());
            bytes.drain(HEADER_PADDING);
            // The length of the first record.
            bytes.extend([114, 0, 0, 0]);
            let reason = UnreadableMagic::FourByteAlignment(version);
            assert_eq!(PageHeader::parse(&bytes), Err(PageHeaderError::Magic(version.magic(), reason)));
            assert_eq!(UnreadPageHeader::parse(&bytes), None);
            // Neither layout.
            bytes[29] = 1;
            assert!(PageHeader::parse(&bytes).is_ok());
        }
    }

    #[test]
    fn headers_of_versions_that_are_not_read_have_the_same_layout() {
        let long = LongHeader { system_id: 7, segment_bytes: 1 << 24, page_bytes: 8192 };
        let (timeline, address) = (3, Lsn(0x0500_0000));
        let header =
            PageHeader { version: Major::V18, info: 0, timeline, address, remaining: 9, long: Some(long) };
        let mut bytes = header.to_bytes();
        let mut parse = |magic: u16| {
            bytes[..2].copy_from_slice(&magic.to_le_bytes());
            UnreadPageHeader::parse(&bytes)
        };
        for magic in [0xD1F0, 0xD115, 0xD075, 0xD07E] {
            let expected = UnreadPageHeader { magic, timeline, address, long: Some(long) };
            assert_eq!(parse(magic), Some(expected));
        }
        for magic in [0xD118, 0xD071, 0x18D1, 0, 0xFFFF] {
            assert_eq!(parse(magic), None, "{magic:04X}");
        }
        parse(0xD1F0);
        for width in 0..LONG_HEADER {
            assert_eq!(UnreadPageHeader::parse(&bytes[..width]), None, "{width}");
        }
    }

    #[test]
    fn flags_of_other_versions_are_refused() {
        for version in Major::all() {
            let mut bytes = [0; SHORT_HEADER];
            bytes[..2].copy_from_slice(&version.magic().to_le_bytes());
            bytes[2] = 0x08;
            let expected = if version >= Major::V19 { Err(PageHeaderError::Flags(8)) } else { Ok(true) };
            assert_eq!(
                PageHeader::parse(&bytes).map(|header| header.overwrites_record()),
                expected,
                "{version}"
            );
        }
    }
}
