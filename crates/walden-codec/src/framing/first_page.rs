//! The first page of a segment, whose header describes the segment.

use walden_format::fault::FaultKind;
use walden_format::lsn::Lsn;
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::stream::StreamInfo;

/// Returns the LSN of a segment whose first page has this header; 0 if it is not a page header.
pub fn start_of(first: &[u8; LONG_HEADER]) -> Lsn {
    PageHeader::parse(first).map_or(Lsn(0), |header| header.address)
}

/// The header of a segment's first page.
#[derive(Clone, Copy, Debug)]
pub struct FirstPage {
    /// The encoded header.
    pub bytes: [u8; LONG_HEADER],
    /// Fields of the header.
    pub header: PageHeader,
    /// Version, timeline, system identifier and sizes in the header.
    pub info: StreamInfo,
}

impl FirstPage {
    /// Decodes the header.
    ///
    /// # Errors
    /// Returns an error if a field has a value that PostgreSQL does not write.
    pub fn parse(bytes: &[u8; LONG_HEADER]) -> Result<FirstPage, FaultKind> {
        let info = StreamInfo::from_first_page(bytes)?;
        let header = PageHeader::parse(bytes).map_err(FaultKind::PageHeader)?;
        Ok(FirstPage { bytes: *bytes, header, info })
    }

    /// Returns the LSN of the segment's start.
    pub fn start(&self) -> Lsn {
        self.header.address
    }

    /// Returns the segment's size in bytes.
    pub fn segment_bytes(&self) -> usize {
        self.info.segment_size.bytes() as usize
    }

    /// Returns the page size in bytes.
    pub fn page_bytes(&self) -> usize {
        self.info.page_bytes as usize
    }

    /// Returns the number of pages in the segment.
    pub fn pages(&self) -> u32 {
        (self.segment_bytes() / self.page_bytes()) as u32
    }

    /// Returns the header length of the page at an offset in the segment, in bytes.
    pub fn header_bytes(&self, page: usize) -> usize {
        self.info.geometry().header_bytes(self.start().plus(page as u64))
    }

    /// Returns the offset after `bytes` bytes of a record, counted from an offset in the segment.
    pub fn record_end(&self, from: usize, bytes: usize) -> usize {
        let geometry = self.info.geometry();
        let position = geometry.usable_position(self.start().plus(from as u64)).saturating_add(bytes as u64);
        geometry.end_at(position).bytes_since(self.start()) as usize
    }
}
