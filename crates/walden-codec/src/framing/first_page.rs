//! The first page of a segment, whose header says what the segment is.

use walden_format::fault::FaultKind;
use walden_format::lsn::Lsn;
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::stream::StreamInfo;

/// The LSN of a segment whose first page has this header; 0 if it is none.
pub fn start_of(first: &[u8; LONG_HEADER]) -> Lsn {
    PageHeader::parse(first).map_or(Lsn(0), |header| header.address)
}

/// The header of a segment's first page.
#[derive(Clone, Copy, Debug)]
pub struct FirstPage {
    /// The header's bytes.
    pub bytes: [u8; LONG_HEADER],
    /// The header's fields.
    pub header: PageHeader,
    /// Version, timeline, system identifier and sizes in the header.
    pub info: StreamInfo,
}

impl FirstPage {
    /// Reads the header.
    ///
    /// # Errors
    /// Fields that PostgreSQL does not write.
    pub fn parse(bytes: &[u8; LONG_HEADER]) -> Result<FirstPage, FaultKind> {
        let info = StreamInfo::of_segment(bytes)?;
        let header = PageHeader::parse(bytes).map_err(FaultKind::PageHeader)?;
        Ok(FirstPage { bytes: *bytes, header, info })
    }

    /// LSN of the segment's start.
    pub fn start(&self) -> Lsn {
        self.header.address
    }

    /// The segment's size in bytes.
    pub fn segment_bytes(&self) -> usize {
        self.info.segment_size.bytes() as usize
    }

    /// The size of its pages in bytes.
    pub fn page_bytes(&self) -> usize {
        self.info.page_bytes as usize
    }

    /// Number of pages in the segment.
    pub fn pages(&self) -> u32 {
        (self.segment_bytes() / self.page_bytes()) as u32
    }

    /// Bytes of the header of the page that begins at an offset in the segment.
    pub fn header_bytes(&self, page: usize) -> usize {
        self.info.geometry().header_bytes(self.start().plus(page as u64))
    }

    /// The offset behind so many bytes of a record that goes on at an offset in the segment.
    pub fn record_end(&self, from: usize, bytes: usize) -> usize {
        let geometry = self.info.geometry();
        let position = geometry.usable_position(self.start().plus(from as u64)).saturating_add(bytes as u64);
        geometry.end_at(position).bytes_since(self.start()) as usize
    }
}
