//! The header of a page of the log.
//!
//! ```text
//! offset  width
//!      0      2  xlp_magic      which version wrote the page
//!      2      2  xlp_info       flags
//!      4      4  xlp_tli        timeline of the page's first record
//!      8      8  xlp_pageaddr   LSN of the page
//!     16      4  xlp_rem_len    bytes left of a record that began on an earlier page
//!     20      4  padding
//! the first page of each segment goes on:
//!     24      8  xlp_sysid      system identifier of the cluster
//!     32      4  xlp_seg_size   bytes of a segment
//!     36      4  xlp_xlog_blcksz bytes of a page
//! ```

use crate::lsn::{Lsn, SegmentSize, Timeline};
use crate::reader::Reader;
use crate::version::{Major, UnreadableMagic};

/// Width of the header of most pages, in bytes.
pub const SHORT_HEADER: usize = 24;
/// Width of the header of a segment's first page, in bytes.
pub const LONG_HEADER: usize = 40;

const FIRST_IS_CONTRECORD: u16 = 0x0001;
const HAS_LONG_HEADER: u16 = 0x0002;
/// Until 18; gone since.
const BKP_REMOVABLE: u16 = 0x0004;

/// A page header as its bytes say; whether it belongs where it stands is the stream's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeader {
    /// Who wrote the page.
    pub version: Major,
    /// All flag bits.
    pub info: u16,
    /// Timeline of the page's first record.
    pub timeline: Timeline,
    /// Where the page belongs.
    pub address: Lsn,
    /// Bytes left of a record that began on an earlier page.
    pub remaining: u32,
    /// Only on the first page of a segment.
    pub long: Option<LongHeader>,
}

/// What only the first page of a segment says.
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
}

/// Why bytes are no page header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageHeaderError {
    /// Fewer bytes than a header has.
    Short,
    /// A magic that can't be decoded, and what it is.
    Magic(u16, UnreadableMagic),
    /// Flag bits that this version does not have.
    Flags(u16),
}

impl PageHeader {
    /// Reads the header at the start of a page.
    pub fn parse(page: &[u8]) -> Result<PageHeader, PageHeaderError> {
        let mut reader = Reader::new(page);
        let magic = reader.u16().ok_or(PageHeaderError::Short)?;
        let version = Major::from_magic(magic).map_err(|reason| PageHeaderError::Magic(magic, reason))?;
        PageHeader::after_magic(&mut reader, version)
    }

    fn after_magic(reader: &mut Reader<'_>, version: Major) -> Result<PageHeader, PageHeaderError> {
        let short = PageHeaderError::Short;
        let info = reader.u16().ok_or(short)?;
        let flags = if version >= Major::V19 { 0x0007 } else { 0x000F };
        if info & !flags != 0 {
            return Err(PageHeaderError::Flags(info));
        }
        let timeline = reader.u32().ok_or(short)?;
        let address = Lsn(reader.u64().ok_or(short)?);
        let remaining = reader.u32().ok_or(short)?;
        reader.take(4).ok_or(short)?;
        let long = if info & HAS_LONG_HEADER != 0 {
            Some(LongHeader {
                system_id: reader.u64().ok_or(short)?,
                segment_bytes: reader.u32().ok_or(short)?,
                page_bytes: reader.u32().ok_or(short)?,
            })
        } else {
            None
        };
        Ok(PageHeader { version, info, timeline, address, remaining, long })
    }

    /// Bytes of this header.
    pub fn width(&self) -> usize {
        if self.long.is_some() { LONG_HEADER } else { SHORT_HEADER }
    }

    /// The page's first bytes continue a record that began on an earlier page.
    pub fn continues_record(&self) -> bool {
        self.info & FIRST_IS_CONTRECORD != 0
    }

    /// The record that an earlier page began was abandoned; this page begins with the record that says so.
    ///
    /// The flag moved in 19, when `BKP_REMOVABLE` was dropped.
    pub fn overwrites_record(&self) -> bool {
        let bit = if self.version >= Major::V19 { BKP_REMOVABLE } else { 0x0008 };
        self.info & bit != 0
    }
}
