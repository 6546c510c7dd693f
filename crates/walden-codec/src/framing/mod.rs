//! Page headers and alignment around the records of a segment: derived when decoding, verified when encoding.
//!
//! A page header follows from the page's position and from the record that continues on the page, except for
//! its other flags and its timeline ([`HeaderFields`]). Only changes of these fields between pages are coded.

mod first_page;
mod original;
mod sink;

use walden_format::page::{PageHeader, SHORT_HEADER, flags};

pub use self::first_page::{FirstPage, start_of};
pub use self::original::{Input, Original};
pub use self::sink::{ComparingSink, FLUSH_BYTES, PageSink, StreamingSink};

/// Page header fields that do not follow from the page's position and its records.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeaderFields {
    /// `xlp_info` without the two derived flags (continued record, long header). The remaining flags change
    /// within a segment that initdb writes, where base backups start and end (`XLP_BKP_REMOVABLE`), and after
    /// a crash (`XLP_FIRST_IS_OVERWRITE_CONTRECORD`).
    pub flags: u16,
    /// `xlp_tli`, which increases within the segment that is written at a promotion.
    pub timeline: u32,
}

impl HeaderFields {
    const DERIVED: u16 = flags::FIRST_IS_CONTRECORD | flags::LONG_HEADER;

    /// Creates fields from their values; `None` if the flags include a derived one.
    pub fn new(flags: u16, timeline: u32) -> Option<HeaderFields> {
        (flags & HeaderFields::DERIVED == 0).then_some(HeaderFields { flags, timeline })
    }

    fn from_header(header: &PageHeader) -> HeaderFields {
        HeaderFields { flags: header.info & !HeaderFields::DERIVED, timeline: header.timeline }
    }
}

/// A page from which on headers have different fields.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeaderChange {
    /// Number of the page in the segment, from 0.
    pub page: u32,
    /// Header fields from that page on.
    pub fields: HeaderFields,
}

/// Writes the pages of a segment with its records.
pub struct PageWriter<P> {
    first: FirstPage,
    /// A power of two.
    page_bytes: usize,
    /// The destination of the pages.
    pub out: P,
    /// Bytes of the current record that are still to be written.
    left: u32,
    /// Fields of the last page header.
    fields: HeaderFields,
    /// Changes of header fields: all changes of the segment when decoding, the changes up to the last header
    /// when encoding.
    changes: Vec<HeaderChange>,
    /// Number of changes before the next header.
    changes_done: usize,
}

impl<P: PageSink> PageWriter<P> {
    /// Starts a segment with a first page and the changes of its header fields (empty when encoding).
    pub fn new(first: FirstPage, changes: Vec<HeaderChange>, out: P) -> PageWriter<P> {
        let fields = HeaderFields::from_header(&first.header);
        PageWriter { page_bytes: first.page_bytes(), first, out, left: 0, fields, changes, changes_done: 0 }
    }

    /// Returns the pages at which header fields change.
    pub fn changes(&self) -> &[HeaderChange] {
        &self.changes
    }

    /// Returns whether the segment is full.
    pub fn is_full(&self) -> bool {
        self.out.len() >= self.first.segment_bytes()
    }

    /// Returns whether the next byte is the first of a page.
    pub fn is_at_page_start(&self) -> bool {
        self.out.len() & (self.page_bytes - 1) == 0
    }

    /// Returns the number of record bytes that fit in the remaining segment.
    pub fn space_left(&self) -> usize {
        let at = self.out.len();
        let left = self.first.segment_bytes().saturating_sub(at);
        let start = self.first.start();
        // If a page starts here, its header is still to be written.
        let (from, to) = (start.plus(at as u64), start.plus(self.first.segment_bytes() as u64));
        left.saturating_sub(self.first.info.geometry().header_bytes_between(from, to) as usize)
    }

    /// Writes a record or its remainder. `left` is the number of remaining bytes of the record, and `bytes`
    /// the part of them to write.
    pub fn record(&mut self, bytes: &[u8], left: u32) {
        self.left = left;
        let mut remaining = bytes;
        while !remaining.is_empty() && !self.is_full() {
            self.header();
            let space = self.page_bytes - (self.out.len() & (self.page_bytes - 1));
            let (now, later) = remaining.split_at(space.min(remaining.len()));
            self.out.put_record_bytes(now);
            self.left = self.left.saturating_sub(now.len() as u32);
            remaining = later;
        }
        if self.left == 0 {
            self.align();
        }
    }

    /// Ends the last record before its end, where a crash cut it off.
    pub fn abandon_record(&mut self) {
        self.left = 0;
    }

    /// Writes zeros up to the next possible record start (`MAXALIGN`), at most to the end of the page, which
    /// is aligned.
    fn align(&mut self) {
        self.out.put_zeros_to(self.out.len().next_multiple_of(8));
    }

    /// Returns the offset at which the next record starts.
    pub fn next_start(&mut self) -> usize {
        if !self.is_full() {
            self.header();
        }
        self.out.len()
    }

    /// Writes the header of a page that starts here.
    fn header(&mut self) {
        let at = self.out.len();
        if at & (self.page_bytes - 1) != 0 {
            return;
        }
        if at == 0 {
            self.out.put(&self.first.bytes);
            return;
        }
        self.next_fields((at / self.page_bytes) as u32);
        let continues = if self.left > 0 { flags::FIRST_IS_CONTRECORD } else { 0 };
        let header = PageHeader {
            info: self.fields.flags | continues,
            timeline: self.fields.timeline,
            address: self.first.start().plus(at as u64),
            remaining: self.left,
            long: None,
            ..self.first.header
        };
        self.out.put(&header.to_bytes()[..SHORT_HEADER]);
    }

    /// Takes the fields of a page header from the original or from the changes.
    fn next_fields(&mut self, page: u32) {
        let original: Option<&[u8; SHORT_HEADER]> = self.out.peek();
        if let Some(header) = original.and_then(|original| PageHeader::parse(original).ok()) {
            let fields = HeaderFields::from_header(&header);
            if fields != self.fields {
                self.changes.push(HeaderChange { page, fields });
            }
        }
        if let Some(change) = self.changes.get(self.changes_done)
            && change.page <= page
        {
            self.fields = change.fields;
            self.changes_done += 1;
        }
    }
}

impl PageWriter<ComparingSink<'_>> {
    /// Returns to a length up to which everything matched the original.
    pub fn rewind_to(&mut self, len: usize) {
        self.out.rewind_to(len);
        let is_before = |change: &HeaderChange| (change.page as usize) * self.page_bytes < len;
        self.changes_done = self.changes.iter().take_while(|change| is_before(change)).count();
        self.changes.truncate(self.changes_done);
        let first = HeaderFields::from_header(&self.first.header);
        self.fields = self.changes.last().map_or(first, |change| change.fields);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor, Read, Seek, SeekFrom};

    use walden_format::page::LONG_HEADER;

    use super::*;

    const PAGE: usize = 8192;

    fn first_page() -> FirstPage {
        FirstPage::parse(&first()).expect("a first page")
    }

    fn first() -> [u8; LONG_HEADER] {
        let mut first = [0; LONG_HEADER];
        // PostgreSQL 18.
        first[..3].copy_from_slice(&[0x18, 0xD1, flags::LONG_HEADER as u8]);
        first[10] = 0x30;
        first[32..36].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        first[36..40].copy_from_slice(&(PAGE as u32).to_le_bytes());
        first
    }

    #[test]
    fn released_pieces_are_gone_and_the_others_are_there() {
        let bytes: Vec<u8> = (0..5 * Original::PIECE / 2).map(|at| (at / 1000) as u8).collect();
        let mut input = Cursor::new(&bytes[..]);
        let mut original = Original::from_input(&mut input).expect("it can be read");
        let (piece, end) = (Original::PIECE, bytes.len());
        assert_eq!((original.bytes(), original.pieces()), (end, 3));
        assert_eq!(original.start(), Some([0; LONG_HEADER]));
        assert_eq!(original.all_from(piece - 7).as_deref(), Some(&bytes[piece - 7..]));
        let content = original.content(piece - 30, piece + PAGE + 50, &first_page());
        let expected =
            [&bytes[piece - 30..piece], &bytes[piece + 24..piece + PAGE], &bytes[piece + PAGE + 24..][..26]];
        assert_eq!(content, Some(expected.concat()));
        original.release_before(2 * piece - 1);
        assert!(original.piece(0).is_none() && original.get(piece - 8..piece).is_none());
        assert_eq!(
            (original.all_from(piece - 1), original.content(piece - 30, piece, &first_page())),
            (None, None)
        );
        assert_eq!(original.all_from(piece).as_deref(), Some(&bytes[piece..]));
        original.release_before(piece);
        original.release_before(usize::MAX);
        assert_eq!((original.all_from(end - 1), original.bytes()), (None, end));
        assert_eq!(original.hash(), Some(*blake3::hash(&bytes).as_bytes()));
    }

    #[test]
    fn an_original_is_read_from_where_its_input_is_and_is_hashed_when_it_is_read_again() {
        let bytes: Vec<u8> = (0..3 * Original::PIECE + 5).map(|at| (at / 777) as u8).collect();
        let mut input = Cursor::new(&bytes[..]);
        input.set_position(5);
        let mut original = Original::from_input(&mut input).expect("it can be read");
        let mut seen = Vec::new();
        let see = |number, piece: &[u8]| {
            seen.push((number, piece.to_vec()));
            (number == 0).then_some(2)
        };
        assert_eq!(original.read_ahead(see), Some(()));
        let piece = |number: usize| bytes[5..][number * Original::PIECE..][..Original::PIECE].to_vec();
        assert!(seen == [(0, piece(0)), (2, piece(2))], "the pieces that were asked for");
        for number in 0..3 {
            assert_eq!(original.hash(), None, "not all is read");
            let piece = original.piece(number).expect("a piece");
            assert!(piece.starts_with(&bytes[number * Original::PIECE + 5..][..100]));
            drop(piece);
            original.release_before((number + 1) * Original::PIECE);
        }
        assert_eq!(original.hash(), Some(*blake3::hash(&bytes[5..]).as_bytes()));
    }

    /// A file whose content changes each time it is read from its start.
    struct Changing {
        now: Cursor<Vec<u8>>,
        later: Vec<Vec<u8>>,
    }

    impl Read for Changing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.now.read(buffer)
        }
    }

    impl Seek for Changing {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            if to == SeekFrom::Start(0)
                && let Some(next) = self.later.pop()
            {
                self.now = Cursor::new(next);
            }
            self.now.seek(to)
        }
    }

    #[test]
    fn the_hash_of_a_changing_file_is_of_the_bytes_that_are_encoded() {
        let version = |byte| vec![byte; Original::PIECE + 9];
        // One version for each seek to the start: for the header, the first pass, and the second pass.
        let later = vec![version(2), version(1), version(0)];
        let mut file = Changing { now: Cursor::new(version(0)), later };
        let mut original = Original::from_input(&mut file).expect("it can be read");
        let mut seen = Vec::new();
        let see = |number, piece: &[u8]| {
            seen.push(piece[0]);
            Some(number + 1)
        };
        assert_eq!(original.read_ahead(see), Some(()));
        assert_eq!(seen, [1, 1]);
        assert_eq!(original.all_from(0), Some(version(2)));
        assert_eq!(original.hash(), Some(*blake3::hash(&version(2)).as_bytes()));

        let later = vec![vec![1; 7], version(1), version(0)];
        let mut file = Changing { now: Cursor::new(version(0)), later };
        let mut original = Original::from_input(&mut file).expect("it can be read");
        assert_eq!(original.read_ahead(|number, _| Some(number + 1)), Some(()));
        assert!(original.piece(0).is_none() && original.hash().is_none(), "it was cut");
    }

    /// Writes records of many lengths, some longer than a page, and empty pages after them.
    fn write<P: PageSink>(out: P) -> P {
        let mut pages = PageWriter::new(first_page(), Vec::new(), out);
        for len in (24..).step_by(331).take(60).chain([300_000]) {
            pages.next_start();
            pages.record(&vec![len as u8; len], len as u32);
        }
        while !pages.is_full() {
            let start = pages.next_start();
            pages.out.put_zeros_to((start + 1).next_multiple_of(PAGE));
        }
        pages.out
    }

    /// Returns whether the pages equal those of `write`.
    fn is_same(pages: &[u8]) -> bool {
        let mut input = Cursor::new(pages);
        let compared = write(compared(&mut input));
        compared.is_same() && compared.len() == pages.len()
    }

    fn compared<'i>(input: &'i mut Cursor<&[u8]>) -> ComparingSink<'i> {
        let mut original = Original::from_input(input).expect("it can be read");
        for number in 0..original.pieces() {
            original.piece(number).expect("a piece");
        }
        ComparingSink::new(original)
    }

    #[test]
    fn streamed_pages_compare_as_equal() {
        let mut whole: Vec<u8> = Vec::new();
        let mut times = 0;
        let mut take = |bytes: &[u8]| {
            whole.extend_from_slice(bytes);
            times += 1;
        };
        let mut streamed = write(StreamingSink::new(&mut take));
        streamed.flush();
        assert_eq!(streamed.len(), 1 << 20);
        assert!(whole.len() == 1 << 20 && times > 7, "{} bytes, {times} times", whole.len());
        assert!(whole[PAGE..].starts_with(&whole[..2]), "a page's magic");

        assert!(is_same(&whole));
        whole[36 * PAGE + 8] ^= 1;
        assert!(!is_same(&whole), "a page's address");
    }

    #[test]
    fn a_difference_is_found_and_can_be_rewound() {
        let original = [[1; 16], [0; 16]].concat();
        let mut input = Cursor::new(&original[..]);
        let mut compared = compared(&mut input);
        compared.put(&[1; 16]);
        assert!(compared.is_same());
        compared.put(&[0, 0, 1]);
        assert!(!compared.is_same());
        compared.rewind_to(16);
        compared.put_zeros_to(32);
        assert!(compared.is_same() && compared.len() == 32);
        compared.put(&[0]);
        assert!(!compared.is_same(), "there is no more");
        compared.rewind_to(8);
        compared.put_zeros_to(16);
        assert!(!compared.is_same(), "no zeros");
    }
}
