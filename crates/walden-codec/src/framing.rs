//! Segments to what is in their pages, and back.
//!
//! A page's header is told by its place and by how much of a record it goes on with.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::rc::Rc;

use walden_format::lsn::Lsn;
use walden_format::page::{LONG_HEADER, SHORT_HEADER};
use walden_format::stream::StreamInfo;

const CONTINUES: u16 = 0x0001;
const LONG: u16 = 0x0002;

/// Where a segment begins whose first page has this header.
pub fn start_of(first: &[u8; LONG_HEADER]) -> Lsn {
    Lsn(u64::from_le_bytes(first[8..16].try_into().unwrap_or_default()))
}

/// What can be read more than once.
pub trait Input: Read + Seek {}

impl<I: Read + Seek + ?Sized> Input for I {}

/// A segment to encode, read twice, a piece at a time: little of it is ever in memory.
///
/// Only what is read the second time is encoded and hashed. Should the file have changed since the first, that has looked
/// ahead for nothing, and no more.
pub struct Original<'i> {
    input: &'i mut dyn Input,
    /// Where it begins in `input`.
    from: u64,
    bytes: usize,
    /// As it is at first; what is read the second time must begin like this.
    start: Option<[u8; LONG_HEADER]>,
    /// What was read the second time and not let go: consecutive pieces.
    held: VecDeque<Rc<Vec<u8>>>,
    /// Which piece the first of them is.
    first_held: usize,
    /// Room of a piece that was let go.
    spare: Vec<u8>,
    hasher: blake3::Hasher,
}

impl<'i> Original<'i> {
    /// Bytes of each piece but the last one: pages of any size, and no more than a fast cache has room for.
    pub const PIECE: usize = 256 << 10;

    /// All that `input` has from where it is on.
    ///
    /// # Errors
    /// The file system's.
    pub fn of(input: &'i mut dyn Input) -> io::Result<Original<'i>> {
        let from = input.stream_position()?;
        let bytes = input.seek(SeekFrom::End(0))?.saturating_sub(from);
        input.seek(SeekFrom::Start(from))?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut start = Vec::new();
        (&mut *input).take(LONG_HEADER as u64).read_to_end(&mut start)?;
        input.seek(SeekFrom::Start(from))?;
        let start = start.try_into().ok();
        let (held, spare, hasher) = (VecDeque::new(), Vec::new(), blake3::Hasher::new());
        Ok(Original { input, from, bytes, start, held, first_held: 0, spare, hasher })
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.bytes.div_ceil(Self::PIECE)
    }

    /// The header of the first page, if there are as many bytes.
    pub fn start(&self) -> Option<[u8; LONG_HEADER]> {
        self.start
    }

    /// Reads it for the first time: the first piece, and then the ones that `see` asks for, each behind the one before;
    /// nothing if one can't be read.
    pub fn see_ahead(&mut self, mut see: impl FnMut(usize, &[u8]) -> Option<usize>) -> Option<()> {
        let mut piece = std::mem::take(&mut self.spare);
        let (mut wanted, mut at) = (0, 0);
        while wanted < self.pieces() {
            if wanted != at {
                let from = self.from + (wanted * Self::PIECE) as u64;
                self.input.seek(SeekFrom::Start(from)).ok()?;
            }
            self.read(wanted, &mut piece)?;
            at = wanted + 1;
            match see(wanted, &piece) {
                Some(next) => wanted = next.max(at),
                None => break,
            }
        }
        self.spare = piece;
        self.input.seek(SeekFrom::Start(self.from)).ok().map(drop)
    }

    /// A piece of what is read for the second time, unless it was let go or can't be read.
    pub fn piece(&mut self, number: usize) -> Option<Rc<Vec<u8>>> {
        let at = number.checked_sub(self.first_held)?;
        while self.held.len() <= at {
            let mut piece = std::mem::take(&mut self.spare);
            self.read(self.first_held + self.held.len(), &mut piece)?;
            self.hasher.update(&piece);
            self.held.push_back(Rc::new(piece));
        }
        self.held.get(at).cloned()
    }

    /// Reads the next piece, all of it or nothing.
    fn read(&mut self, number: usize, piece: &mut Vec<u8>) -> Option<()> {
        let wanted = self.bytes.checked_sub(number * Self::PIECE)?.min(Self::PIECE);
        piece.clear();
        piece.reserve_exact(wanted);
        let got = (&mut *self.input).take(wanted as u64).read_to_end(piece).ok()?;
        (wanted > 0 && got == wanted).then_some(())
    }

    /// Bytes within a page, if they are held.
    fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let (number, at) = (range.start / Self::PIECE, range.start % Self::PIECE);
        self.held.get(number.checked_sub(self.first_held)?)?.get(at..at + range.len())
    }

    /// All bytes from a place on, unless some were let go.
    pub fn all_from(&mut self, at: usize) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(self.bytes.saturating_sub(at));
        for number in at / Self::PIECE..self.pieces() {
            let piece = self.piece(number)?;
            all.extend_from_slice(piece.get(at.saturating_sub(number * Self::PIECE)..)?);
        }
        Some(all)
    }

    /// The content of pages from one place to another, without their headers.
    pub fn content(&mut self, from: usize, to: usize, page_bytes: usize) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        let mut at = from;
        while at < to {
            let within = at % page_bytes;
            if within == 0 {
                at += if at == 0 { LONG_HEADER } else { SHORT_HEADER };
                continue;
            }
            let end = (at - within + page_bytes).min(to);
            self.piece(at / Self::PIECE)?;
            content.extend_from_slice(self.get(at..end)?);
            at = end;
        }
        Some(content)
    }

    /// Lets pieces go that end before a place.
    fn let_go_before(&mut self, at: usize) {
        while self.first_held < at / Self::PIECE
            && let Some(piece) = self.held.pop_front()
        {
            self.first_held += 1;
            self.spare = Rc::try_unwrap(piece).unwrap_or_default();
        }
    }

    /// The hash of all that was encoded, once the last piece was read.
    pub fn hash(&self) -> Option<[u8; 32]> {
        let is_read = self.first_held + self.held.len() == self.pieces();
        is_read.then(|| *self.hasher.finalize().as_bytes())
    }
}

/// Where pages go.
pub trait Pages {
    /// Bytes so far.
    fn len(&self) -> usize;

    /// Takes what comes next.
    fn put(&mut self, bytes: &[u8]);

    /// The same of a record's bytes, which encoding has from there: between the right headers, they are the right ones.
    fn put_record(&mut self, bytes: &[u8]);

    /// Takes zeros up to this length.
    fn put_zeros_to(&mut self, len: usize);
}

/// Decoding hands them on, some at a time, which stay in a fast cache until then.
pub struct StreamingSink<'o> {
    out: &'o mut dyn FnMut(&[u8]),
    handed_on: usize,
    next: Vec<u8>,
}

/// Bytes that are handed on at a time, about.
pub const AT_ONCE: usize = 128 << 10;

impl<'o> StreamingSink<'o> {
    /// To `out`.
    pub fn new(out: &'o mut dyn FnMut(&[u8])) -> StreamingSink<'o> {
        StreamingSink { out, handed_on: 0, next: Vec::with_capacity(AT_ONCE) }
    }

    /// Hands on what is left.
    pub fn finish(&mut self) {
        (self.out)(&self.next);
        self.handed_on += self.next.len();
        self.next.clear();
    }
}

impl Pages for StreamingSink<'_> {
    fn len(&self) -> usize {
        self.handed_on + self.next.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.next.len() + bytes.len() > AT_ONCE {
            self.finish();
        }
        self.next.extend_from_slice(bytes);
    }

    #[inline]
    fn put_record(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    #[inline]
    fn put_zeros_to(&mut self, len: usize) {
        self.next.resize(len - self.handed_on, 0);
    }
}

/// Encoding only compares them with the ones that there are.
pub struct Compared<'i> {
    /// What there is.
    pub original: Original<'i>,
    len: usize,
    is_same: bool,
}

impl<'i> Compared<'i> {
    /// Nothing of these yet.
    pub fn new(original: Original<'i>) -> Compared<'i> {
        Compared { original, len: 0, is_same: true }
    }

    /// Whether all so far was the same.
    pub fn is_same(&self) -> bool {
        self.is_same
    }

    /// Back to a length up to which all was the same.
    pub fn back_to(&mut self, len: usize) {
        (self.len, self.is_same) = (len, true);
    }

    /// Lets go of what was compared.
    pub fn let_go(&mut self) {
        self.original.let_go_before(self.len);
    }
}

impl Pages for Compared<'_> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.is_same &= self.original.get(self.len..end) == Some(bytes);
        self.len = end;
    }

    #[inline]
    fn put_record(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.is_same &= self.len <= self.original.bytes();
    }

    #[inline]
    fn put_zeros_to(&mut self, len: usize) {
        if len > self.len {
            let zeros = self.original.get(self.len..len);
            self.is_same &= zeros.is_some_and(|zeros| zeros.iter().all(|&byte| byte == 0));
        }
        self.len = len;
    }
}

/// Writes pages around what goes into them.
pub struct PageWriter<P> {
    /// The first page's header, all of it.
    first: [u8; LONG_HEADER],
    /// A power of two.
    page_bytes: usize,
    /// What has been written.
    pub out: P,
    /// Bytes that are left of the record being written.
    left: u32,
}

impl<P: Pages> PageWriter<P> {
    /// Starts a segment whose first page has this header.
    pub fn new(first: [u8; LONG_HEADER], info: &StreamInfo, out: P) -> PageWriter<P> {
        PageWriter { first, page_bytes: info.page_bytes as usize, out, left: 0 }
    }

    /// Bytes of the segment.
    fn segment_bytes(&self) -> usize {
        u32::from_le_bytes([self.first[32], self.first[33], self.first[34], self.first[35]]) as usize
    }

    /// Whether the segment is full.
    pub fn is_full(&self) -> bool {
        self.out.len() >= self.segment_bytes()
    }

    /// Room for content until the segment is full, from here on.
    pub fn room(&self) -> usize {
        let at = self.out.len();
        let left = self.segment_bytes().saturating_sub(at);
        let headers = left / self.page_bytes * SHORT_HEADER;
        let first = if at == 0 { LONG_HEADER - SHORT_HEADER } else { 0 };
        left.saturating_sub(headers + first)
    }

    /// Writes a record, or what is left of one: `left` is its length from here on, of which `bytes` are at hand.
    pub fn record(&mut self, bytes: &[u8], left: u32) {
        self.left = left;
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_full() {
            self.header();
            let room = self.page_bytes - (self.out.len() & (self.page_bytes - 1));
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.out.put_record(now);
            self.left = self.left.saturating_sub(now.len() as u32);
            rest = later;
        }
        if self.left == 0 {
            self.align();
        }
    }

    /// Zeros up to where the next record may start. A page's end is such a place.
    fn align(&mut self) {
        self.out.put_zeros_to(self.out.len().next_multiple_of(8));
    }

    /// Empty pages to the segment's end.
    pub fn fill(&mut self) {
        while !self.is_full() {
            self.header();
            self.out.put_zeros_to(self.out.len().next_multiple_of(self.page_bytes));
        }
    }

    /// Where the next record would start.
    pub fn next_start(&mut self) -> usize {
        if !self.is_full() {
            self.header();
        }
        self.out.len()
    }

    /// The header of a page that starts here.
    fn header(&mut self) {
        let at = self.out.len();
        if at & (self.page_bytes - 1) != 0 {
            return;
        }
        if at == 0 {
            self.out.put(&self.first);
            return;
        }
        let info = u16::from_le_bytes([self.first[2], self.first[3]]) & !(CONTINUES | LONG);
        let info = info | if self.left > 0 { CONTINUES } else { 0 };
        let mut header = [0; SHORT_HEADER];
        header[0..2].copy_from_slice(&self.first[0..2]);
        header[2..4].copy_from_slice(&info.to_le_bytes());
        header[4..8].copy_from_slice(&self.first[4..8]);
        header[8..16].copy_from_slice(&start_of(&self.first).0.wrapping_add(at as u64).to_le_bytes());
        header[16..20].copy_from_slice(&self.left.to_le_bytes());
        self.out.put(&header);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    const PAGE: usize = 8192;

    fn info() -> StreamInfo {
        use walden_format::lsn::SegmentSize;
        use walden_format::version::Major;
        StreamInfo {
            version: Major::V18,
            timeline: 1,
            system_id: 7,
            segment_size: SegmentSize::new(1 << 20).expect("a size"),
            page_bytes: PAGE as u32,
            data_page_bytes: 8192,
        }
    }

    fn first() -> [u8; LONG_HEADER] {
        let mut first = [0; LONG_HEADER];
        first[2] = LONG as u8;
        first[10] = 0x30;
        first[32..36].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        first
    }

    #[test]
    fn what_was_let_go_is_gone_and_the_rest_is_there() {
        let bytes: Vec<u8> = (0..5 * Original::PIECE / 2).map(|at| (at / 1000) as u8).collect();
        let mut input = Cursor::new(&bytes[..]);
        let mut original = Original::of(&mut input).expect("it can be read");
        let (piece, end) = (Original::PIECE, bytes.len());
        assert_eq!((original.bytes(), original.pieces()), (end, 3));
        assert_eq!(original.start(), Some([0; LONG_HEADER]));
        assert_eq!(original.all_from(piece - 7).as_deref(), Some(&bytes[piece - 7..]));
        let content = original.content(piece - 30, piece + PAGE + 50, PAGE);
        let expected =
            [&bytes[piece - 30..piece], &bytes[piece + 24..piece + PAGE], &bytes[piece + PAGE + 24..][..26]];
        assert_eq!(content, Some(expected.concat()));
        original.let_go_before(2 * piece - 1);
        assert!(original.piece(0).is_none() && original.get(piece - 8..piece).is_none());
        assert_eq!((original.all_from(piece - 1), original.content(piece - 30, piece, PAGE)), (None, None));
        assert_eq!(original.all_from(piece).as_deref(), Some(&bytes[piece..]));
        original.let_go_before(piece);
        original.let_go_before(usize::MAX);
        assert_eq!((original.all_from(end - 1), original.bytes()), (None, end));
        assert_eq!(original.hash(), Some(*blake3::hash(&bytes).as_bytes()));
    }

    #[test]
    fn an_original_is_read_from_where_its_input_is_and_is_hashed_when_it_is_read_again() {
        let bytes: Vec<u8> = (0..3 * Original::PIECE + 5).map(|at| (at / 777) as u8).collect();
        let mut input = Cursor::new(&bytes[..]);
        input.set_position(5);
        let mut original = Original::of(&mut input).expect("it can be read");
        let mut seen = Vec::new();
        let see = |number, piece: &[u8]| {
            seen.push((number, piece.to_vec()));
            (number == 0).then_some(2)
        };
        assert_eq!(original.see_ahead(see), Some(()));
        let piece = |number: usize| bytes[5..][number * Original::PIECE..][..Original::PIECE].to_vec();
        assert!(seen == [(0, piece(0)), (2, piece(2))], "what was wanted");
        for number in 0..3 {
            assert_eq!(original.hash(), None, "not all is read");
            let piece = original.piece(number).expect("a piece");
            assert!(piece.starts_with(&bytes[number * Original::PIECE + 5..][..100]));
            drop(piece);
            original.let_go_before((number + 1) * Original::PIECE);
        }
        assert_eq!(original.hash(), Some(*blake3::hash(&bytes[5..]).as_bytes()));
    }

    /// A file that is another one each time it is read from its beginning.
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
    fn what_is_encoded_of_a_file_that_changes_is_what_is_hashed() {
        let version = |byte| vec![byte; Original::PIECE + 9];
        // Placed at the beginning to tell how it begins, to look ahead, and to be read.
        let later = vec![version(2), version(1), version(0)];
        let mut file = Changing { now: Cursor::new(version(0)), later };
        let mut original = Original::of(&mut file).expect("it can be read");
        let mut seen = Vec::new();
        let see = |number, piece: &[u8]| {
            seen.push(piece[0]);
            Some(number + 1)
        };
        assert_eq!(original.see_ahead(see), Some(()));
        assert_eq!(seen, [1, 1]);
        assert_eq!(original.all_from(0), Some(version(2)));
        assert_eq!(original.hash(), Some(*blake3::hash(&version(2)).as_bytes()));

        let later = vec![vec![1; 7], version(1), version(0)];
        let mut file = Changing { now: Cursor::new(version(0)), later };
        let mut original = Original::of(&mut file).expect("it can be read");
        assert_eq!(original.see_ahead(|number, _| Some(number + 1)), Some(()));
        assert!(original.piece(0).is_none() && original.hash().is_none(), "it was cut");
    }

    /// Records of many lengths, some longer than a page, and empty pages after them.
    fn write<P: Pages>(out: P) -> P {
        let mut pages = PageWriter::new(first(), &info(), out);
        for len in (24..).step_by(331).take(60).chain([300_000]) {
            pages.next_start();
            pages.record(&vec![len as u8; len], len as u32);
        }
        pages.fill();
        pages.out
    }

    /// Whether these are the pages that `write` writes.
    fn is_same(pages: &[u8]) -> bool {
        let mut input = Cursor::new(pages);
        let compared = write(compared(&mut input));
        compared.is_same() && compared.len() == pages.len()
    }

    fn compared<'i>(input: &'i mut Cursor<&[u8]>) -> Compared<'i> {
        let mut original = Original::of(input).expect("it can be read");
        for number in 0..original.pieces() {
            original.piece(number).expect("a piece");
        }
        Compared::new(original)
    }

    #[test]
    fn what_is_handed_on_is_compared_as_the_same() {
        let mut whole: Vec<u8> = Vec::new();
        let mut times = 0;
        let mut take = |bytes: &[u8]| {
            whole.extend_from_slice(bytes);
            times += 1;
        };
        let mut handed_on = write(StreamingSink::new(&mut take));
        handed_on.finish();
        assert_eq!(handed_on.len(), 1 << 20);
        assert!(whole.len() == 1 << 20 && times > 7, "{} bytes, {times} times", whole.len());
        assert!(whole[PAGE..].starts_with(&whole[..2]), "a page's magic");

        assert!(is_same(&whole));
        whole[36 * PAGE + 8] ^= 1;
        assert!(!is_same(&whole), "a page's address");
    }

    #[test]
    fn what_differs_is_seen_and_can_be_left_again() {
        let original = [[1; 16], [0; 16]].concat();
        let mut input = Cursor::new(&original[..]);
        let mut compared = compared(&mut input);
        compared.put(&[1; 16]);
        assert!(compared.is_same());
        compared.put(&[0, 0, 1]);
        assert!(!compared.is_same());
        compared.back_to(16);
        compared.put_zeros_to(32);
        assert!(compared.is_same() && compared.len() == 32);
        compared.put(&[0]);
        assert!(!compared.is_same(), "there is no more");
        compared.back_to(8);
        compared.put_zeros_to(16);
        assert!(!compared.is_same(), "no zeros");
    }
}
