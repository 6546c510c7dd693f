//! Reads a segment to encode, in two passes and in pieces.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{Deref, Range};
use std::rc::Rc;

use walden_format::lsn::Lsn;
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::record::{RECORD_HEADER, RecordHeader};
use walden_format::rmgr::rmid;

use super::first_page::FirstPage;

/// An input that can be read more than once.
pub trait Input: Read + Seek {}

impl<I: Read + Seek + ?Sized> Input for I {}

/// A file to encode, which is read in two passes, in pieces. Of a file that is not in memory, only a few
/// pieces are held at a time.
///
/// The first pass only plans ([`Original::read_ahead`]). The second pass is encoded and hashed. If the file
/// changes between them, the plan is worse and the result is still correct.
pub struct Original<'i> {
    source: Source<'i>,
    bytes: usize,
    /// Header of the first page in the first pass. The second pass must start with the same bytes.
    start: Option<[u8; LONG_HEADER]>,
    /// Whether the first pass has found a first record without a previous one.
    is_restarted: bool,
}

enum Source<'i> {
    Read(Box<Pieces<'i>>),
    /// Content in memory and its BLAKE3 hash.
    Checked(&'i [u8], [u8; 32]),
}

/// An input that is read in pieces.
struct Pieces<'i> {
    input: &'i mut dyn Input,
    /// Position of the file's first byte in `input`.
    from: u64,
    bytes: usize,
    /// Consecutive pieces of the second pass that are not released yet.
    held: VecDeque<Rc<Vec<u8>>>,
    /// Number of the first held piece.
    first_held: usize,
    /// Buffer of a released piece, for reuse.
    spare: Vec<u8>,
    hasher: blake3::Hasher,
}

/// Consecutive bytes of a file.
#[derive(Clone)]
pub enum Piece<'i> {
    /// Bytes read from an input.
    Read(Rc<Vec<u8>>),
    /// Bytes in memory.
    InMemory(&'i [u8]),
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Read(bytes) => bytes,
            Piece::InMemory(bytes) => bytes,
        }
    }
}

impl<'i> Original<'i> {
    /// Bytes of each piece but the last: a multiple of every page size, and small enough for a processor's
    /// cache.
    pub const PIECE: usize = 256 << 10;

    /// Creates an original from the content of `input`, starting at its current position.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn from_input(input: &'i mut dyn Input) -> io::Result<Original<'i>> {
        let from = input.stream_position()?;
        let bytes = input.seek(SeekFrom::End(0))?.saturating_sub(from);
        input.seek(SeekFrom::Start(from))?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut start = Vec::new();
        (&mut *input).take((LONG_HEADER + RECORD_HEADER) as u64).read_to_end(&mut start)?;
        input.seek(SeekFrom::Start(from))?;
        let (held, spare, hasher) = (VecDeque::new(), Vec::new(), blake3::Hasher::new());
        let pieces = Pieces { input, from, bytes, held, first_held: 0, spare, hasher };
        Ok(Original::new(Source::Read(Box::new(pieces)), bytes, &start))
    }

    /// Creates an original from content that the caller verified: `hash` is its BLAKE3 hash, and its records
    /// have correct checksums. Neither is computed again.
    pub fn checked(content: &'i [u8], hash: [u8; 32]) -> Original<'i> {
        Original::new(Source::Checked(content, hash), content.len(), content)
    }

    fn new(source: Source<'i>, bytes: usize, start: &[u8]) -> Original<'i> {
        let is_restarted = is_restarted(start);
        Original { source, bytes, start: start.first_chunk().copied(), is_restarted }
    }

    /// Returns whether the segment starts with a record that has no previous one, as `pg_resetwal` writes it
    /// (`WriteEmptyXLOG` in `pg_resetwal.c`).
    pub fn is_restarted(&self) -> bool {
        self.is_restarted
    }

    /// Returns whether the caller verified the checksums of records.
    pub fn is_checked(&self) -> bool {
        matches!(self.source, Source::Checked(..))
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.bytes.div_ceil(Self::PIECE)
    }

    /// Returns the header of the first page, if the file is long enough.
    pub fn start(&self) -> Option<[u8; LONG_HEADER]> {
        self.start
    }

    /// Runs the first pass: visits the first piece, then each piece that `visit` returns, in increasing
    /// order. Returns `None` if a piece cannot be read.
    pub fn read_ahead(&mut self, mut visit: impl FnMut(usize, &[u8]) -> Option<usize>) -> Option<()> {
        match &mut self.source {
            Source::Read(pieces) => pieces.read_ahead(visit),
            Source::Checked(content, _) => {
                let mut wanted = 0;
                while let Some(piece) = piece_of(content, wanted) {
                    match visit(wanted, piece) {
                        Some(next) => wanted = next.max(wanted + 1),
                        None => break,
                    }
                }
                Some(())
            }
        }
    }

    /// Returns a piece of the second pass; `None` if it was released or cannot be read.
    pub fn piece(&mut self, number: usize) -> Option<Piece<'i>> {
        match &mut self.source {
            Source::Read(pieces) => pieces.piece(number).map(Piece::Read),
            Source::Checked(content, _) => piece_of(content, number).map(Piece::InMemory),
        }
    }

    /// Returns bytes within one page, if they are in memory.
    #[inline]
    pub fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        match &self.source {
            Source::Read(pieces) => pieces.get(range),
            Source::Checked(content, _) => content.get(range),
        }
    }

    /// Returns all bytes from an offset on; `None` if some were released.
    pub fn all_from(&mut self, at: usize) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(self.bytes.saturating_sub(at));
        for number in at / Self::PIECE..self.pieces() {
            let piece = self.piece(number)?;
            all.extend_from_slice(piece.get(at.saturating_sub(number * Self::PIECE)..)?);
        }
        Some(all)
    }

    /// Returns the content of a segment's pages between two offsets, without page headers.
    pub fn content(&mut self, from: usize, to: usize, first: &FirstPage) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        let mut at = from;
        while at < to {
            let within = at % first.page_bytes();
            if within == 0 {
                at += first.header_bytes(at);
                continue;
            }
            let end = (at - within + first.page_bytes()).min(to);
            self.piece(at / Self::PIECE)?;
            content.extend_from_slice(self.get(at..end)?);
            at = end;
        }
        Some(content)
    }

    /// Releases the pieces that end before an offset.
    pub fn release_before(&mut self, at: usize) {
        if let Source::Read(pieces) = &mut self.source {
            pieces.release_before(at);
        }
    }

    /// Returns the BLAKE3 hash of the second pass, once the last piece was read.
    pub fn hash(&self) -> Option<[u8; 32]> {
        match &self.source {
            Source::Read(pieces) => pieces.hash(self.pieces()),
            Source::Checked(_, hash) => Some(*hash),
        }
    }
}

/// Returns a piece of a content; `None` past its end.
fn piece_of(content: &[u8], number: usize) -> Option<&[u8]> {
    content.chunks(Original::PIECE).nth(number)
}

impl Pieces<'_> {
    fn read_ahead(&mut self, mut visit: impl FnMut(usize, &[u8]) -> Option<usize>) -> Option<()> {
        let mut piece = std::mem::take(&mut self.spare);
        let (mut wanted, mut at) = (0, 0);
        while wanted < self.bytes.div_ceil(Original::PIECE) {
            if wanted != at {
                let from = self.from + (wanted * Original::PIECE) as u64;
                self.input.seek(SeekFrom::Start(from)).ok()?;
            }
            self.read(wanted, &mut piece)?;
            at = wanted + 1;
            match visit(wanted, &piece) {
                Some(next) => wanted = next.max(at),
                None => break,
            }
        }
        self.spare = piece;
        self.input.seek(SeekFrom::Start(self.from)).ok().map(drop)
    }

    fn piece(&mut self, number: usize) -> Option<Rc<Vec<u8>>> {
        let at = number.checked_sub(self.first_held)?;
        while self.held.len() <= at {
            let mut piece = std::mem::take(&mut self.spare);
            self.read(self.first_held + self.held.len(), &mut piece)?;
            self.hasher.update(&piece);
            self.held.push_back(Rc::new(piece));
        }
        self.held.get(at).cloned()
    }

    /// Reads the next piece. Fails if it is incomplete.
    fn read(&mut self, number: usize, piece: &mut Vec<u8>) -> Option<()> {
        let wanted = self.bytes.checked_sub(number * Original::PIECE)?.min(Original::PIECE);
        piece.clear();
        piece.reserve_exact(wanted);
        let got = (&mut *self.input).take(wanted as u64).read_to_end(piece).ok()?;
        (wanted > 0 && got == wanted).then_some(())
    }

    fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let (number, at) = (range.start / Original::PIECE, range.start % Original::PIECE);
        self.held.get(number.checked_sub(self.first_held)?)?.get(at..at + range.len())
    }

    fn release_before(&mut self, at: usize) {
        while self.first_held < at / Original::PIECE
            && let Some(piece) = self.held.pop_front()
        {
            self.first_held += 1;
            self.spare = Rc::try_unwrap(piece).unwrap_or_default();
        }
    }

    fn hash(&self, pieces: usize) -> Option<[u8; 32]> {
        let is_read = self.first_held + self.held.len() == pieces;
        is_read.then(|| *self.hasher.finalize().as_bytes())
    }
}

/// Returns whether the segment with these first bytes starts with a record that has no previous one.
fn is_restarted(start: &[u8]) -> bool {
    // The rest of a record can look like the header of such a record.
    let starts_record = PageHeader::parse(start).is_ok_and(|header| !header.continues_record());
    let first = start.get(LONG_HEADER..).and_then(RecordHeader::parse);
    starts_record
        && first.is_some_and(|first| {
            first.prev == Lsn::INVALID && first.rmid == rmid::XLOG && first.total_len > 0
        })
}

#[cfg(test)]
mod tests {
    use walden_format::page::{LongHeader, flags};
    use walden_format::version::Major;

    use super::*;

    #[test]
    fn the_rest_of_a_record_is_no_restart() {
        let start = |info| {
            let long = LongHeader { system_id: 1, segment_bytes: 1 << 20, page_bytes: 8192 };
            let header = PageHeader {
                version: Major::V18,
                info,
                timeline: 1,
                address: Lsn(5 << 20),
                remaining: 0,
                long: Some(long),
            };
            let mut start = header.to_bytes().to_vec();
            // A record of the resource manager XLOG without a previous one, or a part of a page.
            start.extend([114, 0, 0, 0]);
            start.resize(LONG_HEADER + RECORD_HEADER, 0);
            start
        };
        assert!(is_restarted(&start(0)));
        assert!(!is_restarted(&start(flags::FIRST_IS_CONTRECORD)));
        assert!(!is_restarted(b"no segment"));
    }
}
