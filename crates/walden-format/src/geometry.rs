//! Positions of page headers in WAL, and conversion between LSNs and usable byte positions.
//!
//! A record's bytes are interrupted by the headers of the pages that it crosses, so the LSN after a record
//! depends on where it starts. PostgreSQL also counts *usable* byte positions, which exclude all page
//! headers: reserving space for a record adds its length to such a position (`ReserveXLogInsertLocation` and
//! `XLogBytePosToRecPtr` in `xlog.c`). This module computes both without loops over pages.

use crate::lsn::{Lsn, SegmentSize};
use crate::page::{self, LONG_HEADER, SHORT_HEADER, is_page_size};

/// The sizes that determine where WAL has page headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    segment_size: SegmentSize,
    /// Binary logarithm of a page's size in bytes.
    page_shift: u32,
}

impl Geometry {
    /// The smallest WAL page (`XLOG_BLCKSZ`), in bytes.
    pub const MIN_PAGE_BYTES: u32 = page::MIN_PAGE_BYTES;
    /// The largest WAL page, in bytes.
    pub const MAX_PAGE_BYTES: u32 = page::MAX_PAGE_BYTES;
    /// The page size of all published packages of PostgreSQL, in bytes.
    pub const DEFAULT_PAGE_BYTES: u32 = 8192;

    /// WAL with segments of `segment_size` and pages of `page_bytes`; `None` if PostgreSQL cannot be built
    /// with such pages: their size is a power of two from [`Self::MIN_PAGE_BYTES`] to
    /// [`Self::MAX_PAGE_BYTES`].
    pub const fn new(segment_size: SegmentSize, page_bytes: u32) -> Option<Geometry> {
        if is_page_size(page_bytes) {
            Some(Geometry { segment_size, page_shift: page_bytes.trailing_zeros() })
        } else {
            None
        }
    }

    /// WAL with segments of `segment_size` and pages of 8 kB.
    pub const fn with_default_pages(segment_size: SegmentSize) -> Geometry {
        Geometry { segment_size, page_shift: Self::DEFAULT_PAGE_BYTES.trailing_zeros() }
    }

    /// The size of the segments.
    #[inline]
    pub fn segment_size(self) -> SegmentSize {
        self.segment_size
    }

    /// The size of WAL pages, in bytes.
    #[inline]
    pub fn page_bytes(self) -> u64 {
        1 << self.page_shift
    }

    /// The offset of `lsn` in its page, in bytes.
    #[inline]
    pub fn offset_in_page(self, lsn: Lsn) -> u64 {
        lsn.0 & (self.page_bytes() - 1)
    }

    /// Bytes of the header of the page that starts at `page`: the first page of a segment has a long one.
    #[inline]
    pub fn header_bytes(self, page: Lsn) -> usize {
        if self.segment_size.offset_of(page) == 0 { LONG_HEADER } else { SHORT_HEADER }
    }

    /// Returns the LSN up to which WAL that has been received up to `end` can be decoded: the page's start if
    /// the page's header is incomplete, otherwise `end`.
    #[inline]
    pub fn decodable_end(self, end: Lsn) -> Lsn {
        let in_page = self.offset_in_page(end);
        let page = Lsn(end.0 - in_page);
        if in_page < self.header_bytes(page) as u64 { page } else { end }
    }

    /// Bytes of the headers of all pages that start in `from..to`.
    #[inline]
    pub fn header_bytes_between(self, from: Lsn, to: Lsn) -> u64 {
        let starts = |shift: u32| {
            // Counts the pages or segments that start before a position.
            let before = |lsn: Lsn| (lsn.0 >> shift) + u64::from(lsn.0 & ((1 << shift) - 1) != 0);
            before(to).saturating_sub(before(from))
        };
        let (pages, segments) = (starts(self.page_shift), starts(self.segment_size.shift()));
        pages * SHORT_HEADER as u64 + segments * (LONG_HEADER - SHORT_HEADER) as u64
    }

    /// The pages that start after `from` and before `to`, and the bytes of their headers.
    pub fn pages_between(self, from: Lsn, to: Lsn) -> impl Iterator<Item = (Lsn, usize)> + use<> {
        let first = ((from.0 >> self.page_shift) + 1).saturating_mul(self.page_bytes());
        (first..to.0)
            .step_by(self.page_bytes() as usize)
            .map(move |page| (Lsn(page), self.header_bytes(Lsn(page))))
    }

    /// Returns the LSN after the last byte of a record of `bytes` bytes that starts at `start`, before
    /// alignment. If the record fills its last page exactly, the result is the start of the next page, not
    /// the end of that page's header.
    ///
    /// `start` must be after its page's header, as the start of every record is.
    #[inline]
    pub fn record_end(self, start: Lsn, bytes: u64) -> Lsn {
        let left_in_page = self.page_bytes() - self.offset_in_page(start);
        if bytes <= left_in_page {
            return start.plus(bytes);
        }
        self.end_at(self.usable_position(start).saturating_add(bytes))
    }

    /// Usable bytes of a page: all bytes except its header.
    #[inline]
    fn usable_page_bytes(self) -> u64 {
        self.page_bytes() - SHORT_HEADER as u64
    }

    /// Usable bytes of a segment: the bytes available to records (`UsableBytesInSegment`).
    #[inline]
    pub fn usable_segment_bytes(self) -> u64 {
        (self.segment_size.bytes() >> self.page_shift) * self.usable_page_bytes()
            - (LONG_HEADER - SHORT_HEADER) as u64
    }

    /// Returns the number of usable bytes before `lsn` (`XLogRecPtrToBytePos`). An LSN within a page's header
    /// counts as the page's first usable byte.
    #[inline]
    pub fn usable_position(self, lsn: Lsn) -> u64 {
        let in_segment = self.segment_size.offset_of(lsn);
        let (page, offset) = (in_segment >> self.page_shift, self.offset_in_page(lsn));
        let in_segment = if page == 0 {
            offset.saturating_sub(LONG_HEADER as u64)
        } else {
            page * self.usable_page_bytes() - (LONG_HEADER - SHORT_HEADER) as u64
                + offset.saturating_sub(SHORT_HEADER as u64)
        };
        self.segment_size.segment_of(lsn) * self.usable_segment_bytes() + in_segment
    }

    /// Returns the LSN of the byte at a usable position (`XLogBytePosToRecPtr`), for the start of a record.
    #[inline]
    pub fn start_at(self, position: u64) -> Lsn {
        let (segment, in_segment) = self.split(position);
        let first_page = self.page_bytes() - LONG_HEADER as u64;
        let offset = if in_segment < first_page {
            in_segment + LONG_HEADER as u64
        } else {
            let beyond = in_segment - first_page;
            let (page, offset) = (beyond / self.usable_page_bytes(), beyond % self.usable_page_bytes());
            self.page_bytes() * (1 + page) + offset + SHORT_HEADER as u64
        };
        self.segment_size.start_of(segment).plus(offset)
    }

    /// Returns the LSN after the byte that precedes a usable position (`XLogBytePosToEndRecPtr`), for the end
    /// of a record.
    #[inline]
    pub fn end_at(self, position: u64) -> Lsn {
        match position.checked_sub(1) {
            Some(last) => self.start_at(last).plus(1),
            None => Lsn(0),
        }
    }

    /// Splits a usable position into its segment's number and the usable bytes before it in that segment.
    #[inline]
    fn split(self, position: u64) -> (u64, u64) {
        (position / self.usable_segment_bytes(), position % self.usable_segment_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_geometry() -> impl Strategy<Value = Geometry> {
        (20..=30_u32, 10..=16_u32).prop_map(|(segment, page)| {
            Geometry::new(SegmentSize::new(1 << segment).unwrap(), 1 << page).unwrap()
        })
    }

    /// Computes `record_end` page by page.
    fn record_end_by_pages(geometry: Geometry, start: Lsn, bytes: u64) -> Lsn {
        let (mut at, mut left) = (start, bytes);
        loop {
            let in_page = geometry.page_bytes() - geometry.offset_in_page(at);
            if left <= in_page {
                return at.plus(left);
            }
            left -= in_page;
            at = at.plus(in_page);
            at = at.plus(geometry.header_bytes(at) as u64);
        }
    }

    #[test]
    fn other_page_sizes_are_refused() {
        for bytes in [0, 1, 512, 1000, 8191, 12288, 1 << 17] {
            assert_eq!(Geometry::new(SegmentSize::DEFAULT, bytes), None, "{bytes}");
        }
        let default = Geometry::with_default_pages(SegmentSize::DEFAULT);
        assert_eq!(Geometry::new(SegmentSize::DEFAULT, 8192), Some(default));
    }

    #[test]
    fn headers_are_decoded_whole() {
        let geometry = Geometry::with_default_pages(SegmentSize::DEFAULT);
        let segment = SegmentSize::DEFAULT.start_of(3);
        for (page, header) in [(segment, LONG_HEADER), (segment.plus(8192), SHORT_HEADER)] {
            for bytes in 0..100 {
                let end = page.plus(bytes);
                let expected = if bytes < header as u64 { page } else { end };
                assert_eq!(geometry.decodable_end(end), expected);
            }
        }
    }

    proptest! {
        #[test]
        fn usable_positions_and_lsns_round_trip(geometry in any_geometry(), position in 0..1_u64 << 44) {
            let start = geometry.start_at(position);
            prop_assert_eq!(geometry.usable_position(start), position);
            prop_assert!(geometry.start_at(position + 1) > start);
            let page = Lsn(start.0 - geometry.offset_in_page(start));
            prop_assert!(start >= page.plus(geometry.header_bytes(page) as u64));
            // A record's end is the next record's start, unless a page starts there.
            let end = geometry.end_at(position);
            let header = if geometry.offset_in_page(end) == 0 { geometry.header_bytes(end) as u64 } else { 0 };
            prop_assert_eq!(end.plus(header), start);
        }

        #[test]
        fn a_record_ends_where_its_pages_say(
            geometry in any_geometry(),
            position in 0..1_u64 << 40,
            bytes in prop_oneof![24..200_u64, 24..70_000_u64, Just(5_000_000)],
        ) {
            let start = geometry.start_at(position);
            let end = geometry.record_end(start, bytes);
            prop_assert_eq!(end, record_end_by_pages(geometry, start, bytes));
            let headers = geometry.header_bytes_between(start, end);
            prop_assert_eq!(end.bytes_since(start), bytes + headers);
            let pages: u64 = geometry.pages_between(start, end).map(|(_, width)| width as u64).sum();
            prop_assert_eq!(pages, headers);
        }

        #[test]
        fn no_position_overflows(geometry in any_geometry(), from: u64, to: u64, bytes: u64) {
            geometry.header_bytes_between(Lsn(from), Lsn(to));
            geometry.record_end(Lsn(from), bytes);
            geometry.start_at(from);
            geometry.end_at(from);
            geometry.usable_position(Lsn(from));
            prop_assert!(geometry.pages_between(Lsn(from), Lsn(to)).take(3).count() <= 3);
        }
    }
}
