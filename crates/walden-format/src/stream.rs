//! Decodes pages of WAL into records.
//!
//! A [`Decoder`] receives WAL pages in order, any number at a time, and calls a [`Visitor`] for each page
//! header, record and unused area. It does no I/O. A record within a page is decoded in place; one that
//! crosses pages is assembled in a buffer that is reused.
//!
//! At any time, the reported ranges add up to the bytes from the start of the stream to
//! [`Decoder::position`]: no byte is reported twice or left out.
//!
//! The decoder makes the checks of `XLogDecodeNextRecord` in `xlogreader.c`.

use std::ops::{ControlFlow, Range};

use crate::crc::Sse42;
use crate::crc::{BEFORE, CrcWork, Portable, RecordCrc, crc32c_append, record_crc};
#[cfg(target_arch = "x86_64")]
use crate::crossing::{Beginning, Continuation};
use crate::fault::{Fault, FaultKind};
use crate::geometry::Geometry;
use crate::lsn::{Lsn, SegmentSize, Timeline};
use crate::page::{HEADER_PADDING, LONG_HEADER, PageHeader, PageHeaderError, REMAINING_LENGTH};
use crate::record::{
    self, BlockRef, CRC_OFFSET, MAX_BLOCKS, MAX_RECORD_BYTES, RECORD_HEADER, Record, RecordHeader,
};
use crate::simple::{self, SimpleRecord};
use crate::version::Major;

/// The maximum number of bytes of a page-crossing record that are kept in memory; further bytes are only
/// checksummed.
///
/// A record's headers take less than 2 kB, so they are always kept.
pub const MAX_HELD_BYTES: usize = 16 << 20;
/// Bytes of a record in which its headers are looked for first: copying this many costs nothing.
const FIRST_HELD_BYTES: usize = 128;
/// Records up to this length are kept as a whole.
const SHORT_RECORD: u32 = 1024;

/// The part of a record that a [`Visitor`] reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeededPart {
    /// Its headers, up to the first block's data.
    Headers,
    /// Its headers and its main data, but not the images and the data of its blocks.
    MainData,
    /// The whole record.
    All,
}

/// The events that a [`Decoder`] reports, in WAL order.
pub trait Visitor {
    /// A page header of `width` bytes at `lsn`. The headers of pages that a record crosses are reported right
    /// after the record.
    fn page_header(&mut self, lsn: Lsn, width: usize) {
        let _ = (lsn, width);
    }

    /// A complete record whose checksum is right. [`ControlFlow::Break`] ends the stream after it.
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()>;

    /// A complete record with at most one block and no image, before conversion to a [`Record`]. Visitors may
    /// override this to avoid that cost; by default it calls [`Visitor::record`].
    #[inline(always)]
    fn simple_record(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
        record.as_record(|record| self.record(record))
    }

    /// The part that [`Visitor::record`] reads of a record that crosses pages. It gets the record without the
    /// rest, or with zeros in its place. `record` has the headers; its checksum is not verified yet.
    fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        let _ = record;
        NeededPart::All
    }

    /// `bytes` bytes at `lsn` that end a record which started before the stream, including alignment.
    fn continuation(&mut self, lsn: Lsn, bytes: u64) {
        let _ = (lsn, bytes);
    }

    /// `bytes` bytes at `lsn` of a record that a crash cut off (`XLP_FIRST_IS_OVERWRITE_CONTRECORD`).
    fn abandoned(&mut self, lsn: Lsn, bytes: u64) {
        let _ = (lsn, bytes);
    }

    /// `bytes` unused bytes at `lsn`, between an `XLOG_SWITCH` record and the end of its segment.
    fn padding(&mut self, lsn: Lsn, bytes: u64) {
        let _ = (lsn, bytes);
    }
}

impl<V: Visitor> Visitor for &mut V {
    fn page_header(&mut self, lsn: Lsn, width: usize) {
        (**self).page_header(lsn, width);
    }

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        (**self).record(record)
    }

    #[inline(always)]
    fn simple_record(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
        (**self).simple_record(record)
    }

    fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        (**self).needed_part(record)
    }

    fn continuation(&mut self, lsn: Lsn, bytes: u64) {
        (**self).continuation(lsn, bytes);
    }

    fn abandoned(&mut self, lsn: Lsn, bytes: u64) {
        (**self).abandoned(lsn, bytes);
    }

    fn padding(&mut self, lsn: Lsn, bytes: u64) {
        (**self).padding(lsn, bytes);
    }
}

/// Version, identity and sizes of a stream, which all its segments must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamInfo {
    /// PostgreSQL's major version.
    pub version: Major,
    /// The timeline in the segments' names; no page may have a later timeline.
    pub timeline: Timeline,
    /// The cluster's system identifier, compared with every segment's.
    pub system_id: u64,
    /// Size of a segment (`wal_segment_size`).
    pub segment_size: SegmentSize,
    /// Size of WAL pages (`XLOG_BLCKSZ`), in bytes: a power of two from 1 kB to 64 kB.
    pub page_bytes: u32,
    /// Size of data pages (`BLCKSZ`) in bytes; WAL does not contain it.
    pub data_page_bytes: u32,
}

impl StreamInfo {
    /// Reads version, timeline, system identifier and sizes from the first page of a segment; data pages are
    /// assumed to have 8 kB.
    ///
    /// # Errors
    /// The page header is invalid, is not a long header, or has sizes that PostgreSQL does not support.
    pub fn from_first_page(first_page: &[u8]) -> Result<StreamInfo, FaultKind> {
        let header = PageHeader::parse(first_page).map_err(FaultKind::PageHeader)?;
        let long = header.long.ok_or(FaultKind::PageHeaderWidth { long_expected: true })?;
        let (segment_bytes, page_bytes) = (long.segment_bytes, long.page_bytes);
        let is_valid = |size: &SegmentSize| Geometry::new(*size, page_bytes).is_some();
        let segment_size = long.segment_size().filter(is_valid);
        Ok(StreamInfo {
            version: header.version,
            timeline: header.timeline,
            system_id: long.system_id,
            segment_size: segment_size.ok_or(FaultKind::Geometry { segment_bytes, page_bytes })?,
            page_bytes,
            data_page_bytes: 8192,
        })
    }

    /// Positions of page headers. A page size that PostgreSQL does not support is treated as 8 kB.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        let default = Geometry::with_default_pages(self.segment_size);
        Geometry::new(self.segment_size, self.page_bytes).unwrap_or(default)
    }
}

/// Whether a [`Decoder`] accepts more pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// All pushed bytes are decoded, and the decoder expects more.
    More,
    /// The limit is reached, or the visitor returned [`ControlFlow::Break`].
    Done,
}

/// A record whose end has not been pushed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// LSN of the record's start.
    pub lsn: Lsn,
    /// `xl_tot_len` in bytes. It is not checked until the record's header is complete.
    pub total_len: u32,
}

/// The position of a [`Decoder`] from which another decoder can resume: see [`Decoder::resume_at`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The end of the bytes that have been reported.
    pub position: Lsn,
    /// Start LSN of the last complete record; `None` if unknown.
    pub previous: Option<Lsn>,
    /// Whether the rest of the segment is unused, after a switch record.
    pub is_switched: bool,
}

#[derive(Debug)]
enum State {
    /// Before the first page, which may start with the end of a record that started before the stream.
    Start,
    /// Within a record that started before the stream; has the number of bytes until the record's end.
    Skipping(u32),
    /// Between two records.
    Between,
    /// In a record that crosses pages.
    Within(Partial),
    /// After a switch record, up to the end of its segment.
    Switched,
    /// At the limit, or stopped by the visitor.
    Done,
}

#[derive(Debug)]
struct Partial {
    lsn: Lsn,
    total_len: u32,
    got: u32,
    /// CRC of the bytes after the header so far; `None` if the checksum need not be verified.
    crc: Option<u32>,
    holding: Holding,
}

/// Which bytes of a record that crosses pages are kept in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holding {
    /// All bytes so far: the headers are not complete.
    Headers,
    /// All bytes, up to [`MAX_HELD_BYTES`].
    All,
    /// Zeros, and all bytes from this offset in the record on.
    From(usize),
    /// No further bytes.
    Nothing,
}

/// Decodes pages into records, see the [module](self).
#[derive(Debug)]
pub struct Decoder {
    info: StreamInfo,
    state: State,
    /// The end of the bytes that have been reported.
    position: Lsn,
    /// Address of the next page to be pushed.
    next_page: Lsn,
    limit: Lsn,
    /// Bytes of the first page that an earlier decoder has reported.
    skipped: usize,
    /// Checksums of records that end before this position are not verified, see [`Decoder::checked_until`].
    checked: Lsn,
    /// See [`Decoder::with_checked_padding`].
    is_padding_checked: bool,
    first: Option<(Lsn, Lsn)>,
    previous: Option<Lsn>,
    stopped: bool,
    timeline: Timeline,
    held: Vec<u8>,
    continued: Option<Continuation>,
    blocks: Vec<BlockRef>,
    #[cfg(target_arch = "x86_64")]
    sse42: Option<Sse42>,
}

impl Decoder {
    /// Creates a decoder for a stream that starts with the page at `start`, which must be a page's address,
    /// and ends before the first record that starts at `limit` or later.
    pub fn new(info: StreamInfo, start: Lsn, limit: Lsn) -> Decoder {
        Decoder {
            info,
            state: State::Start,
            position: start,
            next_page: start,
            limit,
            skipped: 0,
            checked: Lsn(0),
            is_padding_checked: false,
            first: None,
            previous: None,
            stopped: false,
            timeline: 0,
            held: Vec::new(),
            continued: None,
            blocks: Vec::with_capacity(MAX_BLOCKS),
            #[cfg(target_arch = "x86_64")]
            sse42: Sse42::detect(),
        }
    }

    /// Resumes where another decoder stopped, for example at the end of WAL that is still being written. The
    /// first page to push is the page that contains `place`; bytes before `place` are not reported again. An
    /// incomplete record is decoded from its start. Pages after a switch record are not checked: if WAL is
    /// still being written, push them only once they are known to be written, for example by the address in
    /// their header.
    pub fn resume_at(info: StreamInfo, place: Place, limit: Lsn) -> Decoder {
        let skipped = place.position.0 % u64::from(info.page_bytes);
        let state = if place.is_switched { State::Switched } else { State::Between };
        Decoder {
            state,
            position: place.position,
            next_page: Lsn(place.position.0 - skipped),
            skipped: skipped as usize,
            previous: place.previous,
            ..Decoder::new(info, place.position, limit)
        }
    }

    /// Returns the position at which another decoder can resume, also after a fault; `None` before the first
    /// record, at the limit, and after the visitor stopped the stream.
    pub fn place(&self) -> Option<Place> {
        let is_switched = match self.state {
            State::Between | State::Within(_) => false,
            State::Switched => true,
            State::Start | State::Skipping(_) | State::Done => return None,
        };
        Some(Place { position: self.position, previous: self.previous, is_switched })
    }

    /// Skips the checksums of records that end at or before `checked`, for a second pass over WAL whose
    /// checksums have been verified. If the WAL has changed since, wrong records may be reported, but bounds
    /// are still checked.
    pub fn checked_until(self, checked: Lsn) -> Decoder {
        Decoder { checked, ..self }
    }

    /// Rejects padding that is not zero: after records, up to the next multiple of eight bytes, and in page
    /// headers, including the field for the remaining length if no record continues.
    ///
    /// No checksum covers these bytes, and PostgreSQL does not read them. It clears each page of its WAL
    /// buffers before it copies records into the page (`AdvanceXLInsertBuffer` in `xlog.c`), so nonzero bytes
    /// are damage.
    pub fn with_checked_padding(self) -> Decoder {
        Decoder { is_padding_checked: true, ..self }
    }

    /// Sets the timeline of the page that precedes the first page, see [`Decoder::page_timeline`].
    pub fn after_page_of(self, timeline: Timeline) -> Decoder {
        Decoder { timeline, ..self }
    }

    /// The stream's properties that were passed in.
    pub fn info(&self) -> StreamInfo {
        self.info
    }

    /// The LSN up to which all bytes have been reported to the visitor.
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// LSN of the first complete record, and its `xl_prev`.
    pub fn first(&self) -> Option<(Lsn, Lsn)> {
        self.first
    }

    /// The address of the last page that was pushed: after an error, the page in which it was found. An
    /// invalid record may start in an earlier page.
    pub fn last_page(&self) -> Lsn {
        Lsn(self.next_page.0.saturating_sub(u64::from(self.info.page_bytes)))
    }

    /// Whether the visitor returned [`ControlFlow::Break`].
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the start LSN of the last complete record.
    pub fn previous(&self) -> Option<Lsn> {
        self.previous
    }

    /// The timeline in the header of the last valid page; 0 before the first page.
    ///
    /// Timelines never decrease along WAL. So a page of an earlier timeline after the last record does not
    /// continue the WAL, even with the expected address: a promoted server recycles files of its previous
    /// timeline.
    pub fn page_timeline(&self) -> Timeline {
        self.timeline
    }

    /// Returns the record that starts in the pages pushed so far and ends after them.
    pub fn unfinished(&self) -> Option<Unfinished> {
        match &self.state {
            State::Within(partial) => Some(Unfinished { lsn: partial.lsn, total_len: partial.total_len }),
            _ => None,
        }
    }

    /// The pushed part of that record, unless its checksum is not verified: see [`Decoder::checked_until`].
    pub fn beginning(&self) -> Option<Beginning> {
        let State::Within(partial) = &self.state else { return None };
        Some(Beginning {
            lsn: partial.lsn,
            total_len: partial.total_len,
            bytes: partial.got,
            header: self.held.iter().take(RECORD_HEADER).copied().collect(),
            crc: partial.crc?,
        })
    }

    /// The part of a record that the stream starts with, if the record started before.
    pub fn continued(&self) -> Option<&Continuation> {
        self.continued.as_ref()
    }

    /// Decodes the next bytes of WAL: whole pages, except that the very last page may be shorter.
    ///
    /// # Errors
    /// A page or record is invalid. After that the decoder must not be used, except for its position.
    pub fn push(&mut self, bytes: &[u8], visitor: &mut impl Visitor) -> Result<Progress, Fault> {
        for page in bytes.chunks(self.info.page_bytes as usize) {
            if self.reached_limit() {
                self.state = State::Done;
            }
            if let State::Done = self.state {
                return Ok(Progress::Done);
            }
            let address = self.next_page;
            self.next_page = address.plus(u64::from(self.info.page_bytes));
            self.page(page, address, visitor)?;
        }
        if self.reached_limit() {
            self.state = State::Done;
        }
        Ok(if let State::Done = self.state { Progress::Done } else { Progress::More })
    }

    fn reached_limit(&self) -> bool {
        !matches!(self.state, State::Within(_) | State::Skipping(_)) && self.position >= self.limit
    }

    fn page(&mut self, page: &[u8], address: Lsn, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let starts_segment = self.info.segment_size.offset_of(address) == 0;
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            return self.rest_of_page(page, skipped, address, starts_segment, visitor);
        }
        if let State::Switched = self.state {
            if !starts_segment {
                self.unused_page(page, address, visitor);
                return Ok(());
            }
            self.state = State::Between;
        }
        let header = self.page_header(page, address, starts_segment)?;
        let mut at = header.width();
        if let State::Within(partial) = &self.state {
            if header.overwrites_record() {
                self.abandon(address, visitor);
                if self.reached_limit() {
                    return Ok(());
                }
            } else {
                let remaining = partial.total_len - partial.got;
                check_continuation(&header, address, remaining)?;
                match self.resume(page, at, address, visitor)? {
                    Some(end) => at = end,
                    None => return Ok(()),
                }
                return self.records(page, at, address, visitor);
            }
        }
        visitor.page_header(address, header.width());
        self.position = address.plus(header.width() as u64);
        match self.state {
            State::Start => {
                let rest = if header.continues_record() { header.remaining } else { 0 };
                at = self.skip(rest, page, at, address, visitor)?;
            }
            State::Skipping(rest) if !header.overwrites_record() => {
                check_continuation(&header, address, rest)?;
                at = self.skip(rest, page, at, address, visitor)?;
            }
            _ if header.continues_record() => {
                return Err(Fault { lsn: address, at: address, kind: FaultKind::ContinuationUnexpected });
            }
            _ => self.state = State::Between,
        }
        self.records(page, at, address, visitor)
    }

    /// Decodes the rest of a page whose first `skipped` bytes an earlier decoder has reported.
    fn rest_of_page(
        &mut self,
        page: &[u8],
        skipped: usize,
        address: Lsn,
        starts_segment: bool,
        visitor: &mut impl Visitor,
    ) -> Result<(), Fault> {
        if let State::Switched = self.state {
            let rest = page.len().saturating_sub(skipped) as u64;
            if rest > 0 {
                visitor.padding(self.position, rest);
            }
            self.position = self.position.plus(rest);
            return Ok(());
        }
        self.page_header(page, address, starts_segment)?;
        self.records(page, skipped, address, visitor)
    }

    fn page_header(&mut self, page: &[u8], address: Lsn, starts_segment: bool) -> Result<PageHeader, Fault> {
        let fault = |kind| Fault { lsn: address, at: address, kind };
        let header = PageHeader::parse(page).map_err(|error| fault(FaultKind::PageHeader(error)))?;
        if header.version != self.info.version {
            let (expected, found) = (self.info.version, header.version);
            return Err(fault(FaultKind::PageVersion { expected, found }));
        }
        if header.address != address {
            return Err(fault(FaultKind::PageAddress { expected: address, found: header.address }));
        }
        if header.long.is_some() != starts_segment {
            return Err(fault(FaultKind::PageHeaderWidth { long_expected: starts_segment }));
        }
        if let Some(long) = header.long {
            let (expected, found) = (self.info.system_id, long.system_id);
            if expected != found {
                return Err(fault(FaultKind::SystemId { expected, found }));
            }
            let (segment_bytes, page_bytes) = (long.segment_bytes, long.page_bytes);
            if u64::from(segment_bytes) != self.info.segment_size.bytes()
                || page_bytes != self.info.page_bytes
            {
                return Err(fault(FaultKind::Geometry { segment_bytes, page_bytes }));
            }
        }
        // At a promotion, the new timeline's first segment starts as a copy of the old one's, so pages of
        // earlier timelines are valid, but the timeline never decreases.
        if header.timeline > self.info.timeline || header.timeline < self.timeline {
            let expected = if header.timeline < self.timeline { self.timeline } else { self.info.timeline };
            return Err(fault(FaultKind::PageTimeline { expected, found: header.timeline }));
        }
        self.timeline = header.timeline;
        self.check_padding(page, HEADER_PADDING, address, address)?;
        if !header.continues_record() {
            self.check_padding(page, REMAINING_LENGTH, address, address)?;
        }
        Ok(header)
    }

    /// Checks the padding of the page header or record at `lsn`, in a page at `address`.
    #[inline]
    fn check_padding(&self, page: &[u8], padding: Range<usize>, lsn: Lsn, address: Lsn) -> Result<(), Fault> {
        if !self.is_padding_checked {
            return Ok(());
        }
        let bytes = page.get(padding.clone()).unwrap_or_default();
        match bytes.iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(offset) => {
                let at = address.plus((padding.start + offset) as u64);
                Err(Fault { lsn, at, kind: FaultKind::Padding { found: bytes[offset] } })
            }
        }
    }

    /// Skips `rest` bytes of a record that started before the stream. Returns the offset in the page where
    /// the next record starts.
    fn skip(
        &mut self,
        rest: u32,
        page: &[u8],
        at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) -> Result<usize, Fault> {
        let here = page.len() - at;
        let lsn = address.plus(at as u64);
        if rest > 0 {
            let continued = self.continued.get_or_insert_default();
            continued.push(&page[at..page.len().min(at + rest as usize)]);
            continued.is_last = rest as usize <= here;
        }
        let skipped = if rest as usize > here {
            self.state = State::Skipping(rest - here as u32);
            here
        } else {
            self.state = State::Between;
            let skipped = (record::aligned_len(rest) as usize).min(here);
            self.check_padding(page, at + rest as usize..at + skipped, lsn, address)?;
            skipped
        };
        if skipped > 0 {
            visitor.continuation(lsn, skipped as u64);
        }
        self.position = lsn.plus(skipped as u64);
        Ok(at + skipped)
    }

    /// Decodes all records that start in the page at offset `at` or later.
    fn records(
        &mut self,
        page: &[u8],
        at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) -> Result<(), Fault> {
        #[cfg(target_arch = "x86_64")]
        if let Some(sse42) = self.sse42 {
            return sse42.run(PageRecords { decoder: self, page, at, address, visitor });
        }
        Portable.run(PageRecords { decoder: self, page, at, address, visitor })
    }

    #[inline(always)]
    fn records_checked_by(
        &mut self,
        crc: impl RecordCrc,
        page: &[u8],
        mut at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) -> Result<(), Fault> {
        if let State::Skipping(_) = self.state {
            return Ok(());
        }
        let is_checked = self.is_checked(page, address);
        while let State::Between = self.state {
            at = self.simple_records(crc, page, at, address, visitor);
            let lsn = address.plus(at as u64);
            if lsn >= self.limit {
                self.state = State::Done;
            }
            let State::Between = self.state else { break };
            let Some(start) = page.get(at..).and_then(|rest| rest.first_chunk()) else { break };
            let total_len = u32::from_le_bytes(*start);
            if !(RECORD_HEADER as u32..=MAX_RECORD_BYTES).contains(&total_len) {
                let kind =
                    if total_len == 0 { FaultKind::NoRecord } else { FaultKind::RecordLength(total_len) };
                return Err(Fault { lsn, at: lsn, kind });
            }
            let Some(bytes) = page.get(at..at + total_len as usize) else {
                // The headers of the crossed pages take fewer bytes than one header plus the record itself.
                let end = lsn.plus(2 * u64::from(total_len) + LONG_HEADER as u64);
                let crc = (end > self.checked).then_some(0);
                let holding = if total_len > SHORT_RECORD { Holding::Headers } else { Holding::All };
                let partial = Partial { lsn, total_len, got: 0, crc, holding };
                self.held.clear();
                self.state = State::Within(partial);
                self.resume(page, at, address, visitor)?;
                break;
            };
            let crc = match page.get(at.wrapping_sub(BEFORE)..).and_then(|around| around.first_chunk()) {
                _ if is_checked => None,
                Some(around) if simple::LENGTHS.contains(&bytes.len()) => Some(crc.crc_around(around, bytes)),
                _ => Some(record_crc(bytes)),
            };
            at = self.any_record(bytes, crc, page, at, address, visitor)?;
        }
        Ok(())
    }

    /// The fast path: decodes consecutive valid [`SimpleRecord`]s from offset `at`. Returns the offset of the
    /// first other record, which [`Decoder::any_record`] decodes or rejects.
    #[inline(always)]
    fn simple_records(
        &mut self,
        crc: impl RecordCrc,
        page: &[u8],
        mut at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) -> usize {
        let Some(mut previous) = self.previous else { return at };
        let limit = (self.limit.0.saturating_sub(address.0)).min(page.len() as u64) as usize;
        if address.0.checked_add(page.len() as u64).is_none() {
            return at;
        }
        let (start, version, is_checked) = (at, self.info.version, self.is_checked(page, address));
        while at < limit {
            let Some(record) = SimpleRecord::at(page, at, address, version) else { break };
            let header = record.header();
            if header.prev != previous || !is_checked && record.crc(crc) != header.crc {
                break;
            }
            let next = at + record.aligned_len() as usize;
            let padding = at + header.total_len as usize..next;
            if self.check_padding(page, padding, record.lsn, address).is_err() {
                break;
            }
            previous = record.lsn;
            at = next;
            if visitor.simple_record(record).is_break() {
                self.state = State::Done;
                self.stopped = true;
                break;
            }
        }
        if at > start {
            self.position = address.plus(at as u64);
            self.previous = Some(previous);
        }
        at
    }

    /// Whether the checksums of records that end in the page are not verified.
    #[inline(always)]
    fn is_checked(&self, page: &[u8], address: Lsn) -> bool {
        address.plus(page.len() as u64) <= self.checked
    }

    /// Decodes a record within a page. `crc` is its computed checksum, or `None` if it is not verified.
    /// Returns the offset of the next record.
    #[inline(never)]
    fn any_record(
        &mut self,
        bytes: &[u8],
        crc: Option<u32>,
        page: &[u8],
        at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) -> Result<usize, Fault> {
        let lsn = address.plus(at as u64);
        let header = checked_header(bytes, lsn, self.previous)?;
        if let Some(crc) = crc {
            check_crc(crc, &header, lsn)?;
        }
        // A truncated segment may lack the alignment after its last record.
        let end = page.len().min(at + record::aligned_len(header.total_len) as usize);
        self.check_padding(page, at + bytes.len()..end, lsn, address)?;
        let range = (lsn, address.plus(end as u64));
        let StreamInfo { version, data_page_bytes, .. } = self.info;
        let decoded = record::decode(bytes, header, range, version, data_page_bytes, &mut self.blocks);
        let mut record = decoded.map_err(|error| Fault { lsn, at: lsn, kind: FaultKind::Record(error) })?;
        record.alignment = (end - at - bytes.len()) as u8;
        self.position = range.1;
        self.first = self.first.or(Some((lsn, header.prev)));
        self.previous = Some(lsn);
        let flow = visitor.record(&record);
        if flow.is_break() || header.is_switch() {
            self.after_record(header, flow, page, end, address, visitor);
        }
        Ok(end)
    }

    /// Keeps the page's part of the current record in memory, as far as the visitor needs it.
    fn hold(&mut self, piece: &[u8], visitor: &impl Visitor) {
        let first = FIRST_HELD_BYTES.saturating_sub(self.held.len()).min(piece.len());
        let (first, rest) = piece.split_at(first);
        for part in [first, rest] {
            let State::Within(partial) = &self.state else { return };
            if partial.holding == Holding::Nothing {
                return;
            }
            let kept = MAX_HELD_BYTES.saturating_sub(self.held.len()).min(part.len());
            let zeros = match partial.holding {
                Holding::From(start) => start.saturating_sub(self.held.len()).min(kept),
                _ => 0,
            };
            self.held.resize(self.held.len() + zeros, 0);
            self.held.extend_from_slice(&part[zeros..kept]);
            self.choose_holding(visitor);
        }
    }

    /// Asks the visitor which part of the current record it needs, once all headers are in memory.
    fn choose_holding(&mut self, visitor: &impl Visitor) {
        let State::Within(partial) = &mut self.state else { return };
        if partial.holding != Holding::Headers {
            return;
        }
        let Some(header) = RecordHeader::parse(&self.held) else { return };
        let StreamInfo { version, data_page_bytes, .. } = self.info;
        // The end is not known yet.
        let range = (partial.lsn, partial.lsn);
        // After an error, the headers continue in the next page, or the complete record is invalid, too.
        let decoded = record::decode(&self.held, header, range, version, data_page_bytes, &mut self.blocks);
        if let Ok(record) = decoded {
            partial.holding = match visitor.needed_part(&record) {
                NeededPart::Headers => Holding::Nothing,
                NeededPart::MainData => {
                    Holding::From(record.header.total_len.saturating_sub(record.main_len) as usize)
                }
                NeededPart::All => Holding::All,
            };
        }
    }

    /// Appends the page's part of the current record. If the record ends in the page, reports it and returns
    /// the offset of the next one.
    fn resume(
        &mut self,
        page: &[u8],
        at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) -> Result<Option<usize>, Fault> {
        let State::Within(partial) = &mut self.state else { return Ok(Some(at)) };
        let lsn = partial.lsn;
        let rest = page.get(at..).unwrap_or(&[]);
        let taken = rest.len().min((partial.total_len - partial.got) as usize);
        let piece = &rest[..taken];
        let header_bytes = RECORD_HEADER.saturating_sub(partial.got as usize).min(taken);
        partial.crc = partial.crc.map(|crc| crc32c_append(crc, &piece[header_bytes..]));
        let had_header = partial.got as usize >= RECORD_HEADER;
        partial.got += taken as u32;
        self.hold(piece, visitor);
        let State::Within(partial) = &mut self.state else { return Ok(Some(at)) };
        // Checked as soon as the header is complete, so that a corrupt length does not consume many pages.
        if !had_header && partial.got as usize >= RECORD_HEADER {
            checked_header(&self.held, lsn, self.previous)?;
        }
        if partial.got < partial.total_len {
            return Ok(None);
        }
        let header = checked_header(&self.held, lsn, self.previous)?;
        if let Some(crc) = partial.crc {
            check_crc(crc32c_append(crc, &self.held[..CRC_OFFSET]), &header, lsn)?;
        }
        let end = page.len().min(at + record::aligned_len(taken as u32) as usize);
        self.check_padding(page, at + taken..end, lsn, address)?;
        let range = (lsn, address.plus(end as u64));
        let decoded = record::decode(
            &self.held,
            header,
            range,
            self.info.version,
            self.info.data_page_bytes,
            &mut self.blocks,
        );
        let mut record = decoded.map_err(|error| Fault { lsn, at: lsn, kind: FaultKind::Record(error) })?;
        record.alignment = (end - at - taken) as u8;
        self.state = State::Between;
        self.position = range.1;
        self.first = self.first.or(Some((lsn, header.prev)));
        self.previous = Some(lsn);
        let flow = visitor.record(&record);
        for (page, width) in self.info.geometry().pages_between(lsn, address.plus(at as u64)) {
            visitor.page_header(page, width);
        }
        self.after_record(header, flow, page, end, address, visitor);
        Ok(Some(end))
    }

    #[cold]
    fn after_record(
        &mut self,
        header: RecordHeader,
        flow: ControlFlow<()>,
        page: &[u8],
        at: usize,
        address: Lsn,
        visitor: &mut impl Visitor,
    ) {
        if header.is_switch() {
            // No padding follows a switch record that ends exactly at the segment's end.
            let lsn = address.plus(at as u64);
            if self.info.segment_size.offset_of(lsn) != 0 {
                self.state = State::Switched;
                let bytes = (page.len() - at.min(page.len())) as u64;
                if bytes > 0 {
                    visitor.padding(lsn, bytes);
                }
                self.position = lsn.plus(bytes);
            }
        }
        if flow.is_break() {
            self.state = State::Done;
            self.stopped = true;
        }
    }

    /// Reports a page after a switch record. It should consist of a header and zeros, but PostgreSQL does not
    /// read it, so nothing is checked.
    fn unused_page(&mut self, page: &[u8], address: Lsn, visitor: &mut impl Visitor) {
        let header = PageHeader::parse(page).ok().filter(|header| header.address == address);
        let width = header.map_or(0, |header| header.width());
        if width > 0 {
            visitor.page_header(address, width);
        }
        visitor.padding(address.plus(width as u64), (page.len() - width) as u64);
        self.position = address.plus(page.len() as u64);
    }

    /// Reports the current record as abandoned: a crash cut it off, and the page at `address` starts with a
    /// new record.
    fn abandon(&mut self, address: Lsn, visitor: &mut impl Visitor) {
        let State::Within(partial) = std::mem::replace(&mut self.state, State::Between) else { return };
        visitor.abandoned(partial.lsn, partial.got.into());
        for (page, width) in self.info.geometry().pages_between(partial.lsn, address) {
            visitor.page_header(page, width);
        }
        self.position = address;
    }
}

/// The work of [`Decoder::records`], compiled once for each [`RecordCrc`].
struct PageRecords<'a, V> {
    decoder: &'a mut Decoder,
    page: &'a [u8],
    at: usize,
    address: Lsn,
    visitor: &'a mut V,
}

impl<V: Visitor> CrcWork for PageRecords<'_, V> {
    type Output = Result<(), Fault>;

    #[inline(always)]
    fn with(self, crc: impl RecordCrc) -> Result<(), Fault> {
        self.decoder.records_checked_by(crc, self.page, self.at, self.address, self.visitor)
    }
}

fn check_continuation(header: &PageHeader, address: Lsn, expected: u32) -> Result<(), Fault> {
    let kind = if !header.continues_record() {
        FaultKind::ContinuationExpected { remaining: expected }
    } else if header.remaining != expected {
        FaultKind::ContinuationLength { expected, found: header.remaining }
    } else {
        return Ok(());
    };
    Err(Fault { lsn: address, at: address, kind })
}

#[inline]
fn checked_header(bytes: &[u8], lsn: Lsn, previous: Option<Lsn>) -> Result<RecordHeader, Fault> {
    // Callers have checked the length.
    let short = Fault { lsn, at: lsn, kind: FaultKind::PageHeader(PageHeaderError::Short) };
    let header = RecordHeader::parse(bytes).ok_or(short)?;
    let linked = match previous {
        Some(previous) => header.prev == previous,
        None => header.prev < lsn,
    };
    if !linked {
        let kind = FaultKind::PreviousLink { expected: previous, found: header.prev };
        return Err(Fault { lsn, at: lsn.plus(8), kind });
    }
    Ok(header)
}

#[inline]
fn check_crc(found: u32, header: &RecordHeader, lsn: Lsn) -> Result<(), Fault> {
    if found != header.crc {
        let kind = FaultKind::Checksum { expected: header.crc, found };
        return Err(Fault { lsn, at: lsn, kind });
    }
    Ok(())
}
