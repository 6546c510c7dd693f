//! Decodes bytes to columns, and columns to segments.

use super::magics::FORMAT_VERSION;
use walden_format::lsn::Lsn;
use walden_format::page::LONG_HEADER;
use walden_format::version::Major;

use super::frame::{End, FrameColumns, SegmentFrame, total_len_of};
use super::{Encoded, Form, Limits, State, least_reader, max_column_weight};
use crate::columns::{self, Coder};
use crate::entropy::Unpacker;
use crate::framing::{FLUSH_BYTES, FirstPage, PageSink, PageWriter, StreamingSink};
use crate::meter::Metered;
use crate::record::Model;
use crate::{Corrupt, corrupt};

/// Options of a [`Decoder`].
#[derive(Clone, Copy)]
struct Options {
    limits: Limits,
    is_alone: bool,
    is_metered: bool,
}

/// Decodes files.
pub struct Decoder {
    options: Options,
    metered: Option<Metered>,
    failure: Option<String>,
    state: Option<State<columns::Decoder, Unpacker>>,
}

impl Decoder {
    /// Creates a decoder without state.
    pub fn new(limits: Limits) -> Decoder {
        let options = Options { limits, is_alone: false, is_metered: false };
        Decoder { options, metered: None, failure: None, state: None }
    }

    /// Configures the decoder for files that are all keyframes: state that only improves later files is
    /// dropped.
    pub fn alone(mut self) -> Decoder {
        self.options.is_alone = true;
        self
    }

    /// Enables counting the bytes of columns by class and relation, from the next keyframe on.
    pub(crate) fn meter(&mut self) {
        self.options.is_metered = true;
    }

    /// Returns and clears the byte counts of the last file, if it was decoded as records.
    pub(crate) fn take_metered(&mut self) -> Option<Metered> {
        self.metered.take()
    }

    /// Decodes a file of `bytes` bytes and passes its bytes to `out` in pieces. The passed bytes are valid
    /// only if this function succeeds.
    ///
    /// # Errors
    /// Returns an error for content that no encoder writes, and for a [`Decoder::failure`].
    pub fn decode(
        &mut self,
        encoded: &Encoded,
        bytes: usize,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Corrupt> {
        if encoded.keyframe {
            self.state = None;
        }
        let decoded = match encoded.form {
            Form::Bytes => {
                let mut rest = &encoded.content[..];
                let mut unpacker = Unpacker::new(false).allow_mixing(self.options.limits.may_model);
                unpacker.part(&mut rest, bytes).and_then(|decoded| {
                    if !rest.is_empty() {
                        return Err(corrupt(
                            "cannot decode a member: expected one compressed part, found bytes after it",
                        ));
                    }
                    out(&decoded);
                    Ok(decoded.len())
                })
            }
            Form::Records => self.decode_records(&encoded.content, bytes, encoded.keyframe, out),
        };
        if decoded.is_ok() && encoded.form == Form::Records {
            self.metered = self.state.as_mut().and_then(|state| state.coder.take_metered());
        }
        self.failure = self.state.as_ref().and_then(State::failure);
        if decoded.is_err() || self.failure.is_some() || self.options.is_alone || encoded.form == Form::Bytes
        {
            self.state = None;
        }
        if self.failure.is_some() {
            return Err(corrupt("cannot keep pages in a temporary file"));
        }
        if decoded? == bytes {
            Ok(())
        } else {
            Err(corrupt("cannot decode the file: expected the stated length, found another"))
        }
    }

    /// Returns the temporary-file error that prevented decoding of the last file, if any.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Decodes the records and pages of a segment. Returns the number of bytes passed to `out`.
    fn decode_records(
        &mut self,
        stored: &[u8],
        bytes: usize,
        keyframe: bool,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, Corrupt> {
        let State { coder, frame: frame_columns, model, .. } = match &mut self.state {
            Some(state) => {
                let max_weight = max_column_weight(bytes).min(self.options.limits.columns);
                state.coder.chunk(&mut state.entropy, stored, max_weight)?;
                state
            }
            None if !keyframe => {
                return Err(corrupt(
                    "cannot decode the segment: expected the keyframe and all later members to be decoded before it",
                ));
            }
            state => state.insert(self.options.first_chunk(stored, bytes)?),
        };
        let mut segment =
            SegmentDecoder::start(coder, frame_columns, model, bytes, self.options.limits.blocks, out)?;
        let SegmentFrame { records, abandoned, end, tail_bytes, head_missing, .. } = segment.frame.clone();
        segment.head(head_missing)?;
        let mut done = 0;
        for abandoned in abandoned {
            let before = abandoned.records_before.min(records);
            segment.records(before - done)?;
            segment.abandoned(abandoned.bytes)?;
            done = before;
        }
        segment.records(records - done)?;
        segment.tail(end, tail_bytes)?;
        segment.finish()
    }
}

impl Options {
    /// Decompresses the columns of a keyframe and returns the initial state.
    fn first_chunk(self, stored: &[u8], bytes: usize) -> Result<State<columns::Decoder, Unpacker>, Corrupt> {
        let Options { limits, is_alone, is_metered } = self;
        let mut coder = columns::Decoder::default();
        let mut entropy = Unpacker::new(!is_alone).allow_mixing(limits.may_model);
        if is_metered {
            coder.meter();
        }
        coder.chunk(&mut entropy, stored, max_column_weight(bytes).min(limits.columns))?;
        let frame = FrameColumns::new(&mut coder)?;
        // Placeholder: each segment sets its own version before its first record.
        let model = Model::new(Major::V15, limits);
        Ok(State { coder, entropy, frame, model })
    }
}

/// Decodes one segment.
struct SegmentDecoder<'d, 'o> {
    coder: &'d mut columns::Decoder,
    columns: &'d FrameColumns,
    model: &'d mut Model,
    frame: SegmentFrame,
    pages: PageWriter<StreamingSink<'o>>,
    first: FirstPage,
    max_blocks: usize,
    /// Temporary buffer.
    scratch: Vec<u8>,
}

impl<'d, 'o> SegmentDecoder<'d, 'o> {
    /// Decodes the framing of a segment.
    fn start(
        coder: &'d mut columns::Decoder,
        columns: &'d FrameColumns,
        model: &'d mut Model,
        bytes: usize,
        max_blocks: usize,
        out: &'o mut dyn FnMut(&[u8]),
    ) -> Result<SegmentDecoder<'d, 'o>, Corrupt> {
        let first = coder.array(columns.bytes, &[0; LONG_HEADER])?;
        let first = FirstPage::parse(&first)
            .map_err(|_| corrupt("cannot decode the first page's header: expected PostgreSQL's fields"))?;
        if least_reader(first.info.version).is_none_or(|reader| reader > FORMAT_VERSION) {
            return Err(corrupt("cannot decode the segment: expected a page magic that the format codes"));
        }
        if first.segment_bytes() != bytes {
            return Err(corrupt("cannot decode the segment: expected the size that its first page states"));
        }
        let frame = SegmentFrame::default().code(coder, columns.numbers, first.pages())?;
        model.start(first.info.version, bytes);
        if frame.records > 0 {
            model.set_prev(Lsn(frame.first_prev));
        }
        let pages = PageWriter::new(first, frame.changes.clone(), StreamingSink::new(out));
        Ok(SegmentDecoder { coder, columns, model, frame, pages, first, max_blocks, scratch: Vec::new() })
    }

    /// Writes the remainder of a record that started in an earlier segment.
    fn head(&mut self, missing: usize) -> Result<(), Corrupt> {
        let total = self.first.header.remaining;
        let len = (total as usize)
            .min(self.pages.space_left())
            .checked_sub(missing)
            .ok_or_else(|| corrupt("cannot decode framing: expected less of a record to be missing"))?;
        self.raw(len, total)?;
        if missing > 0 {
            self.pages.abandon_record();
        }
        Ok(())
    }

    /// Writes `len` literal bytes of a record that has `left` bytes from there on.
    fn raw(&mut self, len: usize, left: u32) -> Result<(), Corrupt> {
        self.scratch.clear();
        self.coder.bytes(self.columns.bytes, &[], len, &mut self.scratch)?;
        self.pages.record(&self.scratch, left);
        Ok(())
    }

    /// Decodes `count` records.
    fn records(&mut self, count: u64) -> Result<(), Corrupt> {
        let (start, geometry) = (self.first.start(), self.first.info.geometry());
        for _ in 0..count {
            let at = self.pages.next_start();
            if at >= self.first.segment_bytes() {
                return Err(corrupt("cannot decode a record: expected it to start in the segment"));
            }
            let lsn = start.plus(at as u64);
            // The end depends on the record's length, which is known only after decoding it.
            let end = |len: usize| geometry.record_end(lsn, len as u64).aligned();
            self.model.record(self.coder, None, lsn, end)?;
            if self.model.out.len() > self.pages.space_left() {
                return Err(corrupt("cannot decode a record: expected it to end in the segment"));
            }
            if self.model.most_blocks() > self.max_blocks {
                return Err(corrupt(
                    "cannot decode a record: expected no more blocks than the file's header states",
                ));
            }
            self.pages.record(&self.model.out, self.model.out.len() as u32);
        }
        Ok(())
    }

    /// Writes the start of a record that a crash cut off at the end of a page.
    fn abandoned(&mut self, len: usize) -> Result<(), Corrupt> {
        self.pages.next_start();
        if len > self.pages.space_left() {
            return Err(corrupt("cannot decode an abandoned record: expected it to end in the segment"));
        }
        self.scratch.clear();
        self.coder.bytes(self.columns.bytes, &[], len, &mut self.scratch)?;
        self.pages.record(&self.scratch, total_len_of(&self.scratch));
        self.pages.abandon_record();
        if self.pages.is_at_page_start() {
            Ok(())
        } else {
            Err(corrupt("cannot decode an abandoned record: expected it to end with a page"))
        }
    }

    /// Writes the bytes after the last record.
    fn tail(&mut self, end: End, len: usize) -> Result<(), Corrupt> {
        match end {
            End::Full => {}
            End::Cut => {
                self.scratch.clear();
                self.coder.bytes(self.columns.bytes, &[], len, &mut self.scratch)?;
                self.pages.next_start();
                self.pages.record(&self.scratch, total_len_of(&self.scratch));
            }
            End::Bytes => {
                let mut left = len;
                while left > 0 {
                    let now = left.min(FLUSH_BYTES);
                    self.scratch.clear();
                    self.coder.bytes(self.columns.bytes, &[], now, &mut self.scratch)?;
                    self.pages.out.put(&self.scratch);
                    left -= now;
                }
                self.pages.out.put_zeros_to(self.first.segment_bytes().max(self.pages.out.len()));
            }
        }
        Ok(())
    }

    /// Flushes buffered bytes and returns the length of the segment.
    fn finish(mut self) -> Result<usize, Corrupt> {
        self.coder.finish()?;
        self.pages.out.flush();
        if self.pages.out.len() == self.first.segment_bytes() {
            Ok(self.first.segment_bytes())
        } else {
            Err(corrupt("cannot decode the segment: expected its pages to fill it"))
        }
    }
}
