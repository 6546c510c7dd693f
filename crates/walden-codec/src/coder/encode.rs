//! Encodes segments to columns, and columns to bytes.

use std::io::Cursor;
use std::ops::ControlFlow;

use super::magics::{COPIES_READER, MIN_READER};
use walden_format::fault::FaultKind;
use walden_format::lsn::Lsn;
use walden_format::page::{LONG_HEADER, PageHeader, PageHeaderError, SHORT_HEADER};
use walden_format::record::Record;
use walden_format::stream::{Decoder as StreamDecoder, Progress, Visitor};
use walden_format::version::Major;

use super::frame::{Abandoned, End, FrameColumns, SegmentFrame, total_len_of};
use super::{Encoded, Fallback, Form, Limits, Original, State, least_reader, max_column_weight};
use crate::columns::{self, Coder};
use crate::entropy::Packer;
use crate::framing::{ComparingSink, FirstPage, PageSink, PageWriter};
use crate::record::Model;

/// Lowest level that uses transforms with slow decoding. From this level on, values that the server
/// compressed are always coded uncompressed, and index tuples are predicted from their heap tuples whenever
/// these are known.
const MIN_THOROUGH_LEVEL: u8 = 4;

/// Sampling while reading ahead: after [`QUIET_PIECES`] pieces in a row without a new schema, only every
/// [`QUIET_STEP`]th piece is read, until one has a new schema. A table or index that appears later and
/// matters for size spans more than one piece.
const QUIET_PIECES: usize = 4;
const QUIET_STEP: usize = 4;

/// Options of an [`Encoder`].
#[derive(Clone, Copy)]
struct Options {
    level: u8,
    limits: Limits,
    is_alone: bool,
}

/// Encodes files.
pub struct Encoder {
    options: Options,
    was_keyframe: bool,
    fallback: Option<Fallback>,
    failure: Option<String>,
    state: Option<State<columns::Encoder, Packer>>,
}

/// Columns of a segment, verified to decode to the same bytes.
pub(crate) struct SegmentColumns<'e> {
    /// BLAKE3 hash of the segment's bytes.
    pub hash: [u8; 32],
    state: &'e mut State<columns::Encoder, Packer>,
    keyframe: bool,
    is_alone: bool,
}

impl SegmentColumns<'_> {
    /// Returns the weight of the columns, see [`Limits::columns`].
    pub fn column_weight(&self) -> usize {
        self.state.coder.weight()
    }

    /// Returns the maximum number of blocks kept at one time since the keyframe.
    pub fn blocks(&self) -> usize {
        self.state.model.most_blocks()
    }

    /// Returns the oldest reader version that decodes the segment.
    pub fn least_reader(&self) -> u16 {
        if self.state.model.uses_copies() { COPIES_READER } else { MIN_READER }
    }

    /// Compresses the columns.
    pub fn pack(self) -> Encoded {
        let State { coder, entropy, model, .. } = self.state;
        if self.is_alone {
            // No later file needs the model, and compression can use its memory.
            model.forget();
        }
        Encoded { form: Form::Records, keyframe: self.keyframe, content: coder.chunk(entropy) }
    }
}

impl Encoder {
    /// Creates an encoder of level 1 (fastest) to 9 (smallest). Level 0 encodes bytes only.
    pub fn new(level: u8, limits: Limits) -> Encoder {
        let options = Options { level, limits, is_alone: false };
        Encoder { options, was_keyframe: false, fallback: None, failure: None, state: None }
    }

    /// Makes every file a keyframe and drops state that only improves later files.
    pub fn alone(mut self) -> Encoder {
        self.options.is_alone = true;
        self
    }

    /// Makes the next file a keyframe.
    pub fn begin_keyframe(&mut self) {
        self.state = None;
    }

    /// Encodes a file as records, or as bytes if that is not possible. After bytes, the next file is a
    /// keyframe.
    pub fn encode(&mut self, original: &[u8]) -> Encoded {
        let mut input = Cursor::new(original);
        let columns = Original::from_input(&mut input).ok().and_then(|original| self.fill_columns(original));
        match columns {
            Some(columns) => columns.pack(),
            None => self.encode_bytes(original),
        }
    }

    /// Encodes the records of a segment to columns. Returns `None` if that is not possible; then the next
    /// file is a keyframe.
    pub(crate) fn fill_columns(&mut self, original: Original<'_>) -> Option<SegmentColumns<'_>> {
        if self.options.is_alone {
            self.begin_keyframe();
        }
        let keyframe = self.state.is_none();
        self.was_keyframe = keyframe;
        let hash = self.encode_records(original);
        self.fallback = hash.as_ref().err().cloned();
        let hash = hash.ok();
        // The decoder would have a page that the encoder could not keep, so their predictions would differ.
        self.failure = self.state.as_ref().and_then(State::failure);
        if hash.is_none() || self.failure.is_some() {
            self.state = None;
        }
        let is_alone = self.options.is_alone;
        self.state.as_mut().zip(hash).map(|(state, hash)| SegmentColumns { hash, state, keyframe, is_alone })
    }

    /// Returns the reason why the last file could not be coded as records.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// Returns whether [`Encoder::fill_columns`] failed only because decoding would exceed [`Limits`].
    pub(crate) fn has_exceeded_limits(&self) -> bool {
        self.fallback == Some(Fallback::Limits)
    }

    /// Returns whether the last segment was encoded as a keyframe.
    pub(crate) fn was_keyframe(&self) -> bool {
        self.was_keyframe
    }

    /// Returns and clears the temporary-file error that made [`Encoder::fill_columns`] fail, if any.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Encodes a file or a piece of one as bytes. The next file is a keyframe.
    pub fn encode_bytes(&mut self, original: &[u8]) -> Encoded {
        self.state = None;
        let mut content = Vec::new();
        Packer::new(self.options.level, false).part(original, &mut content);
        Encoded { form: Form::Bytes, keyframe: true, content }
    }

    /// Fills the columns from a segment and returns the hash of the segment's bytes.
    fn encode_records(&mut self, mut original: Original<'_>) -> Result<[u8; 32], Fallback> {
        let first = first_page(&original)?;
        let State { coder, frame: frame_columns, model, .. } = match &mut self.state {
            Some(state) => state,
            None => {
                let state = self.options.new_state(first.info.version);
                self.state.insert(state.ok_or(Fallback::Columns)?)
            }
        };
        model.start(first.info.version, first.segment_bytes());
        read_ahead(&mut original, &first, model).ok_or(Fallback::Input)?;
        if !original.piece(0).ok_or(Fallback::Input)?.starts_with(&first.bytes) {
            return Err(Fallback::Input);
        }
        let head = head_of(&mut original, &first).ok_or(Fallback::Input)?;
        let pages = PageWriter::new(first, Vec::new(), ComparingSink::new(original));
        let max_weight = max_column_weight(first.segment_bytes()).min(self.options.limits.columns);
        let mut feed = Feed::new(first, model, coder, pages, max_weight);
        let head_missing = feed.head(&head, first.header.remaining).ok_or(Fallback::Head)?;
        let tail = feed.run()?;
        let Feed { model, coder, mut pages, frame, abandoned, .. } = feed;
        model.finish(coder).map_err(|_| Fallback::Columns)?;
        let (end, tail) = tail_of(&mut pages, &first, tail).ok_or(Fallback::Input)?;
        let mut scratch = Vec::new();
        coder
            .bytes(frame_columns.bytes, &first.bytes, LONG_HEADER, &mut scratch)
            .map_err(|_| Fallback::Columns)?;
        let changes = pages.changes().to_vec();
        let frame = SegmentFrame { end, tail_bytes: tail.len(), head_missing, changes, ..frame };
        frame.code(coder, frame_columns.numbers, first.pages()).map_err(|_| Fallback::Columns)?;
        for bytes in [&head].into_iter().chain(&abandoned).chain([&tail]) {
            coder
                .bytes(frame_columns.bytes, bytes, bytes.len(), &mut scratch)
                .map_err(|_| Fallback::Columns)?;
        }
        let weight = coder.weight();
        if weight > self.options.limits.columns || model.most_blocks() > self.options.limits.blocks {
            return Err(Fallback::Limits);
        }
        if weight > max_column_weight(first.segment_bytes()) {
            return Err(Fallback::Columns);
        }
        pages.out.original.hash().ok_or(Fallback::Input)
    }
}

impl Options {
    /// Creates the state of a keyframe.
    fn new_state(self, version: Major) -> Option<State<columns::Encoder, Packer>> {
        let Options { level, limits, is_alone } = self;
        let mut coder = columns::Encoder::default();
        let frame = FrameColumns::new(&mut coder).ok()?;
        let mut model = Model::new(version, limits);
        if level < MIN_THOROUGH_LEVEL {
            model.set_fast_mode();
        }
        if is_alone {
            model.drop_unread_pages();
        }
        Some(State { coder, entropy: Packer::new(level, !is_alone), frame, model })
    }
}

/// Parses and validates the first page of a segment.
fn first_page(original: &Original<'_>) -> Result<FirstPage, Fallback> {
    let start = original.start().ok_or(Fallback::FirstPage(FaultKind::PageHeader(PageHeaderError::Short)))?;
    let mut first = FirstPage::parse(&start).map_err(Fallback::FirstPage)?;
    // Accept pages of any later timeline: the timeline in the file's name is unknown here.
    first.info.timeline = u32::MAX;
    if least_reader(first.info.version).is_none_or(|reader| reader > MIN_READER) {
        return Err(Fallback::Version(first.info.version));
    }
    if original.bytes() != first.segment_bytes() {
        let (stated, found) = (first.segment_bytes() as u64, original.bytes() as u64);
        return Err(Fallback::Size { stated, found });
    }
    if first.info.segment_size.offset_of(first.start()) != 0 {
        return Err(Fallback::Address(first.start()));
    }
    Ok(first)
}

/// Returns a stream decoder for the records of a segment from an offset on.
fn stream_from(first: &FirstPage, offset: usize) -> StreamDecoder {
    let (start, end) = (first.start().plus(offset as u64), first.start().plus(first.segment_bytes() as u64));
    StreamDecoder::new(first.info, start, end)
}

/// Passes the upcoming records to the model, so that it can choose schemas.
fn read_ahead(original: &mut Original<'_>, first: &FirstPage, model: &mut Model) -> Option<()> {
    /// Passes records to the model's survey.
    struct Ahead<'m>(&'m mut Model);

    impl Visitor for Ahead<'_> {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            self.0.survey(record);
            ControlFlow::Continue(())
        }
    }

    // The second pass verifies checksums.
    let stream = |piece: usize| stream_from(first, piece * Original::PIECE).checked_until(Lsn(u64::MAX));
    let (mut ahead, mut next, mut quiet) = (stream(0), 0, 0);
    original.read_ahead(|number, piece| {
        if number != next {
            ahead = stream(number);
        }
        next = number + 1;
        let goes_on = matches!(ahead.push(piece, &mut Ahead(model)), Ok(Progress::More));
        quiet = if model.found_new_schema() { 0 } else { quiet + 1 };
        goes_on.then_some(number + if quiet < QUIET_PIECES { 1 } else { QUIET_STEP })
    })
}

/// Passes records to the model, as long as the surrounding bytes match the original.
struct Feed<'s, 'i> {
    first: FirstPage,
    model: &'s mut Model,
    coder: &'s mut columns::Encoder,
    /// Pages as decoding will write them.
    pages: PageWriter<ComparingSink<'i>>,
    /// Framing so far.
    frame: SegmentFrame,
    /// Bytes of abandoned records.
    abandoned: Vec<Vec<u8>>,
    /// Whether a page header or the padding before a record differs from what decoding would write.
    is_odd: bool,
    /// Record that would decode to different bytes.
    failed: Option<Lsn>,
    /// Maximum weight of the columns.
    max_weight: usize,
    /// Offset in the segment at which the columns are measured next.
    measure_at: usize,
}

impl<'s, 'i> Feed<'s, 'i> {
    /// Bytes of the segment between two measurements. Measuring all columns is slow.
    const MEASURE_EACH: usize = 64 << 10;
    /// Bytes of columns reserved per remaining byte of the segment. Columns of records are hardly larger than
    /// the records, except for values and images that are decompressed.
    const RESERVED: usize = 2;

    fn new(
        first: FirstPage,
        model: &'s mut Model,
        coder: &'s mut columns::Encoder,
        pages: PageWriter<ComparingSink<'i>>,
        max_weight: usize,
    ) -> Feed<'s, 'i> {
        Feed {
            first,
            model,
            coder,
            pages,
            frame: SegmentFrame::default(),
            abandoned: Vec::new(),
            is_odd: false,
            failed: None,
            max_weight,
            measure_at: 0,
        }
    }

    /// Limits the expansion of values and images that the server compressed to the free part of the column
    /// limit.
    ///
    /// A compressed image adds 0 to 8 kB to the columns, depending on how much of its page is predicted. The
    /// budget is therefore the measured size of the columns, less the maximum expansion of each image since
    /// that measurement.
    fn limit_growth(&mut self, at: usize) {
        if at < self.measure_at {
            return;
        }
        self.measure_at = at + Self::MEASURE_EACH;
        let reserved = Self::RESERVED * self.first.segment_bytes().saturating_sub(at);
        self.model.set_growth_left(self.max_weight.saturating_sub(self.coder.weight() + reserved));
    }

    /// Writes the remainder of a record that started in an earlier segment. Returns the number of its missing
    /// bytes.
    fn head(&mut self, head: &[u8], total: u32) -> Option<usize> {
        let missing = (total as usize).min(self.pages.space_left()).saturating_sub(head.len());
        self.pages.record(head, total);
        if missing > 0 {
            self.pages.abandon_record();
        }
        self.pages.out.is_same().then_some(missing)
    }

    /// Codes all complete records. Returns the offset of an unfinished record after them, if there is one.
    ///
    /// # Errors
    /// Returns the reason if the segment cannot be coded as records.
    fn run(&mut self) -> Result<Option<usize>, Fallback> {
        let stream = stream_from(&self.first, 0);
        let mut stream = match self.pages.out.original.is_checked() {
            true => stream.checked_until(Lsn(u64::MAX)),
            false => stream,
        };
        let (mut progress, mut pieces) = (Ok(Progress::More), 0..self.pages.out.original.pieces());
        while let (Ok(Progress::More), Some(number)) = (&progress, pieces.next()) {
            let piece = self.pages.out.original.piece(number).ok_or(Fallback::Input)?;
            progress = stream.push(&piece, self);
            drop(piece);
            // The head may cover pieces that the stream has not received yet.
            self.pages.out.release_compared((number + 1) * Original::PIECE);
        }
        if let Some(lsn) = self.failed {
            return Err(Fallback::Record(lsn));
        }
        let unfinished = stream.unfinished().filter(|_| progress.is_ok() && !self.is_odd);
        Ok(unfinished.map(|unfinished| unfinished.lsn.bytes_since(self.first.start()) as usize))
    }

    /// Returns to the last position at which everything matched the original. The remaining segment is coded
    /// as bytes.
    fn give_up(&mut self, from: usize) {
        self.pages.rewind_to(from);
        self.is_odd = true;
    }
}

impl Visitor for Feed<'_, '_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.is_odd {
            return ControlFlow::Break(());
        }
        let from = self.pages.out.len();
        let at = self.pages.next_start();
        self.pages.record(record.bytes(), record.bytes().len() as u32);
        if self.first.start().plus(at as u64) != record.lsn || !self.pages.out.is_same() {
            self.give_up(from);
            return ControlFlow::Break(());
        }
        if self.frame.records == 0 {
            self.frame.first_prev = record.header.prev.0;
            self.model.set_prev(record.header.prev);
        }
        self.limit_growth(at);
        let end = record.end;
        match self.model.record(self.coder, Some(record), record.lsn, |_| end) {
            Ok(()) if self.model.out == record.bytes() => self.frame.records += 1,
            _ => {
                self.failed = Some(record.lsn);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn abandoned(&mut self, lsn: Lsn, bytes: u64) {
        let from = self.pages.out.len();
        let at = self.pages.next_start();
        let is_here = self.first.start().plus(at as u64) == lsn;
        let original = &mut self.pages.out.original;
        match content_of(original, &self.first, at, bytes as usize).filter(|_| is_here && !self.is_odd) {
            Some(content) => {
                self.pages.record(&content, total_len_of(&content));
                self.pages.abandon_record();
                if self.pages.out.is_same() && self.pages.is_at_page_start() {
                    let (records_before, bytes) = (self.frame.records, content.len());
                    self.frame.abandoned.push(Abandoned { records_before, bytes });
                    self.abandoned.push(content);
                } else {
                    self.give_up(from);
                }
            }
            None => self.give_up(from),
        }
    }
}

/// Returns how the segment ends after the last record, and the bytes of that end.
fn tail_of(
    pages: &mut PageWriter<ComparingSink<'_>>,
    first: &FirstPage,
    unfinished: Option<usize>,
) -> Option<(End, Vec<u8>)> {
    let from = pages.out.len();
    if let Some(at) = unfinished {
        let tail = pages.out.original.content(at, first.segment_bytes(), first)?;
        if pages.next_start() == at {
            pages.record(&tail, total_len_of(&tail));
            if pages.out.len() == first.segment_bytes() && pages.out.is_same() {
                return Some((End::Cut, tail));
            }
        }
        pages.rewind_to(from);
    }
    if from == first.segment_bytes() {
        return Some((End::Full, Vec::new()));
    }
    let mut tail = pages.out.original.all_from(from)?;
    tail.truncate(tail.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    Some((End::Bytes, tail))
}

/// Returns the available remainder of a record that started in an earlier segment.
fn head_of(original: &mut Original<'_>, first: &FirstPage) -> Option<Vec<u8>> {
    let mut head = content_of(original, first, 0, first.header.remaining as usize)?;
    // A crash may have cut it off. In that case, the next page has the flag
    // `XLP_FIRST_IS_OVERWRITE_CONTRECORD`.
    let (geometry, start) = (first.info.geometry(), first.start());
    for (page, _) in geometry.pages_between(start, start.plus(first.segment_bytes() as u64)) {
        let len = (geometry.usable_position(page) - geometry.usable_position(start)) as usize;
        if len >= head.len() {
            break;
        }
        let at = page.bytes_since(start) as usize;
        let header = PageHeader::parse(original.get(at..at + SHORT_HEADER)?).ok();
        if header.is_some_and(|header| header.overwrites_record()) {
            head.truncate(len);
            break;
        }
    }
    Some(head)
}

/// Returns `bytes` bytes of a record from an offset on, or fewer if the segment ends before.
fn content_of(original: &mut Original<'_>, first: &FirstPage, from: usize, bytes: usize) -> Option<Vec<u8>> {
    let end = original.bytes().min(first.record_end(from, bytes));
    original.content(from, end, first)
}
