//! One file after another into its coded form, and back.
//!
//! What a file leaves behind (pages, transactions, what usually follows what) helps with the next one, so files are decoded
//! in the order in which they were encoded, from a *restart* on: a file at which nothing is known yet.

use std::io::Cursor;
use std::ops::ControlFlow;

use walden_format::lsn::Lsn;
use walden_format::page::LONG_HEADER;
use walden_format::record::Record;
use walden_format::stream::{Decoder as StreamDecoder, Progress, StreamInfo, Visitor};
use walden_format::version::Major;

pub use crate::columns::Class;
use crate::columns::{self, Coder, Column, Kind};
pub use crate::entropy::Statistics;
use crate::entropy::{Packer, Unpacker};
use crate::framing::{AT_ONCE, Compared, PageWriter, Pages, StreamingSink};
pub use crate::framing::{Input, Original, start_of};
use crate::record::Model;
use crate::{Corrupt, corrupt};

/// How a file is coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Form {
    /// Its bytes, compressed as they are: whatever is no segment of this server's WAL.
    Bytes = 0,
    /// Its records.
    Records = 1,
}

/// A file in its coded form.
#[derive(Debug)]
pub struct Encoded {
    /// How it is coded.
    pub form: Form,
    /// Whether nothing before it is needed to decode it.
    pub restart: bool,
    /// What [`Decoder::decode`] takes.
    pub content: Vec<u8>,
}

/// What both directions may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory for the pages that are replayed; what does not fit goes to a temporary file.
    pub page_memory: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { page_memory: 64 << 20 }
    }
}

/// Encodes files.
pub struct Encoder {
    level: u8,
    limits: Limits,
    alone: bool,
    failure: Option<String>,
    state: Option<State<columns::Encoder, Packer>>,
}

/// Decodes files.
pub struct Decoder {
    limits: Limits,
    alone: bool,
    failure: Option<String>,
    state: Option<State<columns::Decoder, Unpacker>>,
}

/// A segment in columns, of which all is known that there was in it.
pub struct Understood<'e> {
    /// The hash (BLAKE3) of the segment's bytes.
    pub hash: [u8; 32],
    state: &'e mut State<columns::Encoder, Packer>,
    restart: bool,
    alone: bool,
}

impl Understood<'_> {
    /// Compresses the columns.
    pub fn pack(self) -> Encoded {
        let State { coder, entropy, model, .. } = self.state;
        if self.alone {
            // What it knows is of no use any more, and its room is.
            model.forget();
        }
        Encoded { form: Form::Records, restart: self.restart, content: coder.chunk(entropy) }
    }
}

/// What one file leaves behind for the next.
struct State<S, E> {
    coder: S,
    entropy: E,
    framing: Framing,
    model: Model,
}

impl<S, E> State<S, E> {
    /// Why pages could not be kept, if so.
    fn failure(&self) -> Option<String> {
        self.model.failure().map(ToString::to_string)
    }
}

/// The columns of what frames records.
struct Framing {
    numbers: Column,
    bytes: Column,
}

impl Framing {
    fn new<S: Coder>(coder: &mut S) -> Result<Framing, Corrupt> {
        Ok(Framing {
            numbers: coder.column(Kind::Symbols(Class::Framing))?,
            bytes: coder.column(Kind::Bytes(Class::Raw))?,
        })
    }
}

impl Encoder {
    /// `level` is from 1, fast, to 9, small.
    pub fn new(level: u8, limits: Limits) -> Encoder {
        Encoder { level, limits, alone: false, failure: None, state: None }
    }

    /// Every file is a restart: nothing is kept that only helps with the next one.
    pub fn alone(self) -> Encoder {
        Encoder { alone: true, ..self }
    }

    /// Makes the next file one that can be decoded without those before it.
    pub fn restart(&mut self) {
        self.state = None;
    }

    /// What became of each class of columns since the last restart.
    pub fn statistics(&self) -> &[Statistics] {
        self.state.as_ref().map_or(&[], |state| state.entropy.statistics())
    }

    /// Encodes a file.
    ///
    /// What can't be understood is coded as bytes, and the file after it is a restart.
    pub fn encode(&mut self, original: &[u8]) -> Encoded {
        let mut input = Cursor::new(original);
        let understood = Original::of(&mut input).ok().and_then(|original| self.understand(original));
        match understood {
            Some(understood) => understood.pack(),
            None => self.encode_bytes(original),
        }
    }

    /// Puts a segment into columns, if its records are understood.
    ///
    /// If they are not, the next file is a restart.
    pub fn understand(&mut self, original: Original<'_>) -> Option<Understood<'_>> {
        if self.alone {
            self.restart();
        }
        let restart = self.state.is_none();
        let hash = self.records(original);
        // A page that could not be kept is known to the decoder: what follows from it would differ.
        self.failure = self.state.as_ref().and_then(State::failure);
        if hash.is_none() || self.failure.is_some() {
            self.state = None;
        }
        let alone = self.alone;
        self.state.as_mut().zip(hash).map(|(state, hash)| Understood { hash, state, restart, alone })
    }

    /// Why the last segment was not understood, if not for what is in it: a temporary file could not be written or read.
    /// Told once.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Encodes a file, or a piece of one, as bytes; the next file is a restart.
    pub fn encode_bytes(&mut self, original: &[u8]) -> Encoded {
        self.state = None;
        let mut content = Vec::new();
        Packer::new(self.level, false).part(original, &mut content);
        Encoded { form: Form::Bytes, restart: true, content }
    }
}

impl Decoder {
    /// Knows nothing yet.
    pub fn new(limits: Limits) -> Decoder {
        Decoder { limits, alone: false, failure: None, state: None }
    }

    /// For files that are all restarts: nothing is kept that only helps with the next one.
    pub fn alone(self) -> Decoder {
        Decoder { alone: true, ..self }
    }

    /// Decodes a file that had so many bytes; `out` gets them, some at a time.
    ///
    /// What `out` has been given is right only if this succeeds.
    pub fn decode(
        &mut self,
        encoded: &Encoded,
        bytes: usize,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Corrupt> {
        if encoded.restart {
            self.state = None;
        }
        let decoded = match encoded.form {
            Form::Bytes => {
                let mut rest = &encoded.content[..];
                Unpacker::new(false).part(&mut rest, bytes).map(|decoded| {
                    out(&decoded);
                    decoded.len()
                })
            }
            Form::Records => self.records(&encoded.content, bytes, encoded.restart, out),
        };
        self.failure = self.state.as_ref().and_then(State::failure);
        if decoded.is_err() || self.failure.is_some() || self.alone || encoded.form == Form::Bytes {
            self.state = None;
        }
        if self.failure.is_some() {
            return Err(corrupt("pages could not be kept in a temporary file"));
        }
        if decoded? == bytes { Ok(()) } else { Err(corrupt("the file has another length than it says")) }
    }

    /// Why the last file could not be decoded, if not for what is in it: a temporary file could not be written or read.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

/// Decodes the columns of segments and nothing more: what an independent decoder of `docs/format.md` is compared with.
#[derive(Default)]
pub struct ColumnDecoder {
    state: Option<(columns::Decoder, Unpacker)>,
}

/// One column of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnContent<'c> {
    /// The column, by the order in which columns are named from a keyframe on.
    pub number: usize,
    /// With which others it is compressed.
    pub class: Class,
    /// 0 symbols, 1 bytes, *n* rows of *n* - 1 bytes.
    pub form: u64,
    /// What it has in this segment.
    pub bytes: &'c [u8],
}

impl ColumnDecoder {
    /// Decodes the columns of a segment of so many bytes; those before it since its keyframe have to come first.
    ///
    /// # Errors
    /// Columns that are not as they were written.
    pub fn decode(&mut self, encoded: &Encoded, bytes: usize) -> Result<Vec<ColumnContent<'_>>, Corrupt> {
        if encoded.restart {
            self.state = None;
        }
        let fresh = || (columns::Decoder::default(), Unpacker::new(true));
        let (columns, unpacker) = self.state.get_or_insert_with(fresh);
        columns.chunk(unpacker, &encoded.content, most_bytes(bytes))?;
        let content = |(number, (class, form, bytes)): (usize, (Class, columns::Form, _))| ColumnContent {
            number,
            class,
            form: form.code(),
            bytes,
        };
        Ok(columns.contents().enumerate().map(content).filter(|column| !column.bytes.is_empty()).collect())
    }
}

/// From this level on, nothing is left out that takes decoding long: values that the server compressed are coded as they were
/// before, which takes a fifth of it where there are many; index tuples are told by their rows wherever these are known.
const THOROUGH: u8 = 4;

/// What ends the records of a segment.
const END_FULL: u64 = 0;
/// A record that goes on in the next segment.
const END_CUT: u64 = 1;
/// Empty pages after a switch record.
const END_SWITCH: u64 = 2;
/// Anything, as it is.
const END_BYTES: u64 = 3;

/// Looking ahead, so many pieces in a row that told the model nothing new are enough to look at only one of so many until
/// one does: tables and indexes that come later have more than a piece of the log, if they have much of it.
const QUIET: usize = 4;
const THEN_EACH: usize = 4;

/// Shows the model what will come.
struct Ahead<'s> {
    model: &'s mut Model,
}

impl Visitor for Ahead<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.model.plan(record);
        ControlFlow::Continue(())
    }
}

/// Feeds records to the model, as long as they and the pages around them can be told from the records.
struct Feed<'s, 'i> {
    model: &'s mut Model,
    coder: &'s mut columns::Encoder,
    start: Lsn,
    /// What decoding will write.
    pages: PageWriter<Compared<'i>>,
    records: u64,
    first_prev: Option<Lsn>,
    switched: bool,
    /// Something between two records is not as it would be written: a page's header, or what fills up to the next record.
    odd: bool,
    failed: bool,
}

impl Visitor for Feed<'_, '_> {
    fn continuation(&mut self, _: Lsn, _: u64) {}

    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let from = self.pages.out.len();
        let at = self.pages.next_start();
        self.pages.record(record.bytes(), record.bytes().len() as u32);
        if self.start.plus(at as u64) != record.lsn || !self.pages.out.is_same() {
            self.pages.out.back_to(from);
            self.odd = true;
            return ControlFlow::Break(());
        }
        if self.first_prev.is_none() {
            self.first_prev = Some(record.header.prev);
            self.model.set_prev(record.header.prev);
        }
        let end = record.end;
        match self.model.record(self.coder, Some(record), record.lsn, |_| end) {
            Ok(()) if self.model.out == record.bytes() => self.records += 1,
            _ => {
                self.failed = true;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn padding(&mut self, _: Lsn, _: u64) {
        self.switched = true;
    }

    fn abandoned(&mut self, _: Lsn, _: u64) {
        self.odd = true;
    }
}

impl Encoder {
    /// Fills the columns, and gives the hash of what they have.
    fn records(&mut self, mut original: Original<'_>) -> Option<[u8; 32]> {
        let first = original.start()?;
        let info = StreamInfo::of_segment(&first).ok()?;
        let start = start_of(&first);
        let segment_bytes = info.segment_size.bytes() as usize;
        if original.bytes() != segment_bytes || info.segment_size.offset_of(start) != 0 {
            return None;
        }
        let State { coder, framing, model, .. } = match &mut self.state {
            Some(state) => state,
            state => {
                let mut coder = columns::Encoder::default();
                let framing = Framing::new(&mut coder).ok()?;
                let mut model = Model::new(info.version, self.limits);
                if self.level < THOROUGH {
                    model.hurry();
                }
                if self.alone {
                    model.ends_here();
                }
                let entropy = Packer::new(self.level, !self.alone);
                state.insert(State { coder, entropy, framing, model })
            }
        };
        model.start(info.version, segment_bytes);
        let stream =
            |from: usize| StreamDecoder::new(info, start.plus(from as u64), start.plus(segment_bytes as u64));
        // What is encoded is checked; to look ahead, there is no need.
        let stream_ahead = |piece: usize| stream(piece * Original::PIECE).checked_until(Lsn(u64::MAX));
        let (mut ahead, mut next, mut quiet) = (stream_ahead(0), 0, 0);
        original.see_ahead(|number, piece| {
            if number != next {
                ahead = stream_ahead(number);
            }
            next = number + 1;
            let goes_on = matches!(ahead.push(piece, &mut Ahead { model }), Ok(Progress::More));
            quiet = if model.has_news() { 0 } else { quiet + 1 };
            goes_on.then_some(number + if quiet < QUIET { 1 } else { THEN_EACH })
        })?;
        if !original.piece(0)?.starts_with(&first) {
            return None;
        }
        let page_bytes = info.page_bytes as usize;
        let head_total = u32::from_le_bytes(first[16..20].try_into().ok()?);
        let head = if head_total == 0 { Vec::new() } else { head_of(&mut original, head_total, page_bytes)? };
        let mut pages = PageWriter::new(first, &info, Compared::new(original));
        pages.record(&head, head_total);
        if !pages.out.is_same() {
            return None;
        }
        let (records, first_prev) = (0, None);
        let (switched, odd, failed) = (false, false, false);
        let mut feed = Feed { model, coder, start, pages, records, first_prev, switched, odd, failed };
        let mut stream = stream(0);
        let (mut progress, mut pieces) = (Ok(Progress::More), 0..feed.pages.out.original.pieces());
        while let (Ok(Progress::More), Some(number)) = (&progress, pieces.next()) {
            let piece = feed.pages.out.original.piece(number)?;
            progress = stream.push(&piece, &mut feed);
            drop(piece);
            feed.pages.out.let_go();
        }
        let whole = progress.is_ok() && !feed.odd;
        if feed.failed {
            return None;
        }
        let Feed { model, coder, records, first_prev, mut pages, switched, .. } = feed;
        model.finish(coder).ok()?;
        let from = pages.out.len();
        let (mut end, mut tail) = (END_FULL, Vec::new());
        if let Some(unfinished) = stream.unfinished().filter(|_| whole) {
            end = END_CUT;
            let from = unfinished.lsn.bytes_since(start) as usize;
            tail = pages.out.original.content(from, segment_bytes, page_bytes)?;
            pages.next_start();
            pages.record(&tail, total_of(&tail));
        } else if switched && whole {
            end = END_SWITCH;
            pages.fill();
        }
        // Up to there, each record was compared.
        if pages.out.len() != segment_bytes || !pages.out.is_same() {
            (end, tail) = (END_BYTES, pages.out.original.all_from(from)?);
        }
        let mut scratch = Vec::new();
        coder.bytes(framing.bytes, &first, LONG_HEADER, &mut scratch).ok()?;
        for value in [records, first_prev.map_or(0, |prev| prev.0), end, tail.len() as u64] {
            coder.symbol(framing.numbers, value).ok()?;
        }
        coder.bytes(framing.bytes, &head, head.len(), &mut scratch).ok()?;
        coder.bytes(framing.bytes, &tail, tail.len(), &mut scratch).ok()?;
        pages.out.original.hash().filter(|_| coder.bytes_held() <= most_bytes(segment_bytes))
    }
}

impl Decoder {
    /// How many bytes `out` got.
    fn records(
        &mut self,
        stored: &[u8],
        bytes: usize,
        restart: bool,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, Corrupt> {
        let State { coder, framing, model, .. } = match &mut self.state {
            Some(state) => {
                state.coder.chunk(&mut state.entropy, stored, most_bytes(bytes))?;
                state
            }
            None if !restart => return Err(corrupt("what came before the file is not known")),
            state => {
                let (mut coder, mut entropy) = (columns::Decoder::default(), Unpacker::new(!self.alone));
                coder.chunk(&mut entropy, stored, most_bytes(bytes))?;
                let framing = Framing::new(&mut coder)?;
                let model = Model::new(Major::V15, self.limits);
                state.insert(State { coder, entropy, framing, model })
            }
        };
        let mut first = Vec::new();
        coder.bytes(framing.bytes, &[], LONG_HEADER, &mut first)?;
        let first: [u8; LONG_HEADER] =
            first.try_into().map_err(|_| corrupt("the first page's header is cut short"))?;
        let info = StreamInfo::of_segment(&first).map_err(|_| corrupt("the first page's header can't be"))?;
        if info.segment_size.bytes() != bytes as u64 {
            return Err(corrupt("the segment has another size than its first page says"));
        }
        let start = start_of(&first);
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = coder.symbol(framing.numbers, 0)?;
        }
        let [count, first_prev, end, tail_bytes] = numbers;
        let mut pages = PageWriter::new(first, &info, StreamingSink::new(out));
        let head_total = u32::from_le_bytes(first[16..20].try_into().unwrap_or_default());
        let mut head = Vec::new();
        let head_here = (head_total as usize).min(pages.room());
        coder.bytes(framing.bytes, &[], head_here, &mut head)?;
        pages.record(&head, head_total);
        model.start(info.version, bytes);
        if count > 0 {
            model.set_prev(Lsn(first_prev));
        }
        for _ in 0..count {
            let at = pages.next_start();
            if at >= bytes {
                return Err(corrupt("more records than the segment has room for"));
            }
            let lsn = start.plus(at as u64);
            // The end depends on the record's length, and that on the record.
            let end = |len: usize| start.plus(end_of(at, len, info.page_bytes as usize) as u64);
            model.record(coder, None, lsn, end)?;
            if model.out.len() > pages.room() {
                return Err(corrupt("a record is longer than the segment has room for"));
            }
            pages.record(&model.out, model.out.len() as u32);
        }
        let mut tail_left = usize::try_from(tail_bytes).map_err(|_| corrupt("a length can't be"))?;
        let mut tail = Vec::new();
        match end {
            END_FULL => {}
            END_CUT => {
                coder.bytes(framing.bytes, &[], tail_left, &mut tail)?;
                pages.next_start();
                pages.record(&tail, total_of(&tail));
            }
            END_SWITCH => pages.fill(),
            // It may be nearly all of the segment.
            END_BYTES => {
                while tail_left > 0 {
                    let now = tail_left.min(AT_ONCE);
                    tail.clear();
                    coder.bytes(framing.bytes, &[], now, &mut tail)?;
                    pages.out.put(&tail);
                    tail_left -= now;
                }
            }
            _ => return Err(corrupt("the segment's end is of a kind that this version does not know")),
        }
        coder.finish()?;
        pages.out.finish();
        if pages.out.len() == bytes {
            Ok(bytes)
        } else {
            Err(corrupt("the segment has another length than it says"))
        }
    }
}

/// Columns of a file of so many bytes have at most this many together: modelling may add, but not this much.
fn most_bytes(bytes: usize) -> usize {
    4 * bytes + (1 << 16)
}

/// The length of a record of which perhaps not even the header is whole.
fn total_of(start: &[u8]) -> u32 {
    start.first_chunk().map_or(0, |total| u32::from_le_bytes(*total))
}

/// The rest of a record that began before the segment, as far as it is in it.
fn head_of(original: &mut Original<'_>, total: u32, page_bytes: usize) -> Option<Vec<u8>> {
    let end = original.bytes().min(total as usize + page_bytes + total as usize / 64);
    let mut head = original.content(0, end, page_bytes)?;
    head.truncate(total as usize);
    Some(head)
}

/// Where the next record could start after one of `len` bytes from `at` on.
fn end_of(at: usize, len: usize, page_bytes: usize) -> usize {
    let (mut at, mut left) = (at, len);
    loop {
        let room = page_bytes - at % page_bytes;
        if left <= room {
            return (at + left).next_multiple_of(8);
        }
        left -= room;
        at += room + 24;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walden_format::crc::record_crc;
    use walden_format::rmgr::rmid;

    const SEGMENT: usize = 4 << 20;

    /// INSERT of a row of a table, the two parts of which have another order in other tables.
    fn insert(table: u32, number: u32, prev: Lsn) -> Vec<u8> {
        const HAS_DATA: u8 = 0x20;
        // t_infomask2, t_infomask, t_hoff, and what is before the first attribute.
        const HEAD: [u8; 6] = [2, 0, 2, 8, 24, 0];
        let mixed = number.wrapping_mul(0x9E37_79B1);
        let text: Vec<u8> = (0..4 + mixed % 20).map(|at| b'a' + (mixed >> at) as u8 % 16).collect();
        let text = [&[(text.len() as u8 + 1) << 1 | 1][..], &text].concat();
        let mut row = if table == 1 { number.to_le_bytes().to_vec() } else { text.clone() };
        row.resize(row.len().next_multiple_of(4), 0);
        row.extend(if table == 1 { text } else { number.to_le_bytes().to_vec() });
        let mut bytes = vec![0; 24];
        bytes.extend([0, HAS_DATA]);
        bytes.extend(((HEAD.len() + row.len()) as u16).to_le_bytes());
        bytes.extend([1663, 5, table, number / 100].map(u32::to_le_bytes).as_flattened());
        // xl_heap_insert: the row's number, flags.
        bytes.extend([255, 3]);
        bytes.extend(HEAD);
        bytes.extend(row);
        bytes.extend([(number % 100) as u8 + 1, 0, 0]);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[8..16].copy_from_slice(&prev.0.to_le_bytes());
        bytes[17] = rmid::HEAP;
        let crc = record_crc(&bytes);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// A segment of rows of one table, and of another from a place on.
    fn segment(tables: [u32; 2], until: usize) -> Vec<u8> {
        let mut first = [0; LONG_HEADER];
        // PostgreSQL 15; a long header.
        first[..4].copy_from_slice(&[0x10, 0xD1, 2, 0]);
        first[4] = 1;
        first[8..16].copy_from_slice(&(SEGMENT as u64).to_le_bytes());
        first[32..36].copy_from_slice(&(SEGMENT as u32).to_le_bytes());
        first[36..40].copy_from_slice(&8192_u32.to_le_bytes());
        let info = StreamInfo::of_segment(&first).expect("a first page");
        let mut segment = Vec::new();
        let mut take = |bytes: &[u8]| segment.extend_from_slice(bytes);
        let mut pages = PageWriter::new(first, &info, StreamingSink::new(&mut take));
        pages.record(&[], 0);
        let mut prev = Lsn(0);
        for number in 0.. {
            let at = pages.next_start();
            let table = tables[usize::from(at >= until)];
            let record = insert(table, number, prev);
            if pages.room() < record.len() {
                break;
            }
            pages.record(&record, record.len() as u32);
            prev = Lsn((SEGMENT + at) as u64);
        }
        pages.fill();
        pages.out.finish();
        segment
    }

    #[test]
    fn a_table_that_comes_late_is_told_as_well_as_one_that_is_there_from_the_beginning() {
        let places = [SEGMENT / 16, SEGMENT - SEGMENT / 3];
        let sizes = places.map(|until| {
            let segment = segment([1, 2], until);
            let encoded = Encoder::new(3, Limits::default()).encode(&segment);
            assert!(encoded.form == Form::Records);
            let mut decoded = Vec::new();
            let mut take = |bytes: &[u8]| decoded.extend_from_slice(bytes);
            Decoder::new(Limits::default()).decode(&encoded, SEGMENT, &mut take).expect("its own");
            assert!(decoded == segment);
            encoded.content.len()
        });
        assert!(sizes[1] < sizes[0] + sizes[0] / 50, "{sizes:?} bytes");
    }
}
