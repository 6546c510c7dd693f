//! Scans a run of segments in parallel: each segment is decoded by one thread, and the outcomes are merged in
//! WAL order.
//!
//! A thread decodes the records that start in its segment, and reads later segments only for the end of the
//! last record. So an outcome depends only on the segment, never on the number of threads. Threads stay at
//! most a few segments ahead of the merge, so memory does not grow with the run.

use std::fmt;
use std::io;
use std::ops::{ControlFlow, Range};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread::ScopedJoinHandle;

use walden_format::crc::record_crc;
use walden_format::fault::{Fault, FaultKind};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::page::PageHeader;
use walden_format::record::{MAX_RECORD_BYTES, RECORD_HEADER, Record, RecordHeader};
use walden_format::stream::{Decoder, Progress, StreamInfo, Visitor};

use crate::compression::Compression;
use crate::decoding::is_decoded_whole;
use crate::inventory::Run;
use crate::segment_file::SegmentFile;
use crate::windows::{Direct, ReadingThread, SharedMembers, Windows, decoders};
use crate::workers::run_in_order;

/// Bytes read at a time for the end of a record in the next segment.
const SPILL_WINDOW: usize = 64 << 10;

/// Options of a scan.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScanOptions {
    /// Maximum number of threads, including the calling one; 0 counts as 1.
    pub threads: usize,
    /// Start of the range. Segments that end before this LSN are not opened.
    pub from: Option<Lsn>,
    /// End of the range: only records that start before this LSN are decoded.
    pub to: Option<Lsn>,
    /// Memory for segments that [`scan_shared`] decompresses by several threads; without it, one thread
    /// decompresses in windows.
    pub decoded_bytes: usize,
}

impl ScanOptions {
    /// Creates options with the defaults of the other fields.
    pub fn new(threads: usize) -> ScanOptions {
        ScanOptions { threads, from: None, to: None, decoded_bytes: 0 }
    }
}

walden_format::setters!(ScanOptions {
    from: Option<Lsn>,
    to: Option<Lsn>,
    decoded_bytes: usize,
});

/// The result of decoding one segment.
#[derive(Debug)]
pub struct SegmentOutcome<V> {
    /// Index of the segment in the run, from 0.
    pub index: usize,
    /// The visitor. It has received all bytes from the segment's start to `position`, except for the page
    /// headers of later segments, and except for a record that starts before this segment and ends after it.
    pub visitor: V,
    /// Start of the segment.
    pub start: Lsn,
    /// LSN up to which all bytes were reported.
    pub position: Lsn,
    /// Why decoding ended at `position`.
    pub end: SegmentEnd,
    /// At the end of WAL: whether `position` is after the end of a record that started in an earlier segment,
    /// if there is one, and that record is valid.
    pub is_behind_continuation: bool,
    first: Option<(Lsn, Lsn)>,
    last: Option<Lsn>,
}

impl<V> SegmentOutcome<V> {
    /// Returns the LSN of the last record that starts in the segment, if one does and is complete.
    pub fn last_record(&self) -> Option<Lsn> {
        self.last
    }
}

/// A visitor that ignores all records.
pub struct Nothing;

impl Visitor for Nothing {
    fn record(&mut self, _: &Record<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// How the decoding of a segment ended.
#[derive(Debug)]
pub enum SegmentEnd {
    /// At its end, or at the end of its last record in a later segment.
    Complete,
    /// At the end of the range, or where the visitor stopped.
    Limit,
    /// At the end of the WAL, in this segment.
    EndOfLog(Tail),
    /// At damage after `position`.
    Damaged(Damage),
}

/// Numbers of bytes, by kind, between the last record and the end of the segment in which the WAL ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// Bytes of the start of a record that continues in a segment that is not in the run.
    pub cut_record: u64,
    /// Zero bytes, which the server never wrote.
    pub zero: u64,
    /// Bytes of pages of an earlier segment or timeline, in a recycled file.
    pub recycled: u64,
    /// All other bytes: those of a record that was partly written when the server stopped.
    pub torn: u64,
    /// The fault at which decoding ended; `None` if `cut_record` is not 0.
    pub fault: Option<Fault>,
}

impl Tail {
    /// Returns the number of bytes of all kinds.
    pub fn bytes(&self) -> u64 {
        self.cut_record + self.zero + self.recycled + self.torn
    }
}

/// Damage: WAL that cannot be decoded although valid WAL follows.
#[derive(Debug)]
pub struct Damage {
    /// Path of the file.
    pub path: PathBuf,
    /// Name of the segment.
    pub segment: SegmentName,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// LSN of the page or record.
    pub lsn: Lsn,
    /// The problem.
    pub kind: DamageKind,
}

/// Why the rest of a segment cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum DamageKind {
    /// The content is not valid WAL.
    Fault(Fault),
    /// The file is shorter than a segment.
    Truncated {
        /// Bytes of a complete segment.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A running server recycled the file before it was read.
    Recycled {
        /// The fault of the content that the server has written meanwhile.
        fault: Fault,
        /// Start of the next segment of the run that has not been recycled.
        next: Option<Lsn>,
    },
    /// The file could not be read or decompressed.
    Io(io::Error),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "{path}: segment {}, offset {} (LSN {}): ", self.segment, self.offset, self.lsn)?;
        match &self.kind {
            DamageKind::Fault(fault) => write!(f, "{fault}"),
            DamageKind::Truncated { expected, found } => {
                write!(f, "cannot read the whole segment: expected {expected} bytes, found {found}")
            }
            DamageKind::Recycled { fault, next } => {
                write!(
                    f,
                    "{fault}: a running server recycled the file for a later segment while it was read"
                )?;
                match next {
                    Some(next) => write!(f, "; the next segment that still exists starts at {next}"),
                    None => Ok(()),
                }
            }
            DamageKind::Io(error) => write!(f, "cannot read the segment: {error}"),
        }
    }
}

impl std::error::Error for Damage {}

walden_format::diagnostics! { Damage {
    Self { kind: DamageKind::Recycled { .. }, .. } => "wal-recycled": "everything before this place was read; for WAL after it, read from the next existing segment on (--from), or give the \
         archive to which the server archives as a further source",
    Self { kind: DamageKind::Fault(_), .. } => "wal-damaged": "everything before this place was read; take another copy of this segment (archive, standby, backup) \
         and try again, or read from a later segment",
    Self { kind: DamageKind::Truncated { .. }, .. } => "wal-truncated": "everything before this place was read; copy the segment again, or name it with the suffix .partial if \
         it was still being written",
    Self { kind: DamageKind::Io(error), .. } if error.kind() == io::ErrorKind::NotFound => "wal-removed": "everything before this place was read; the file has been removed or renamed since it was found, as a running server \
         does at the end of a checkpoint, and walden archive prune: try again, with a newer base backup if one is read, or read from a later segment",
    Self { kind: DamageKind::Io(_), .. } => "wal-unreadable": "everything before this place was read; check the file's permissions, its compression and the disk",
} }

/// Returns whether a page has the address of the same page in a later segment, for any segment size.
fn is_page_of_later_segment(kind: &FaultKind) -> bool {
    match *kind {
        FaultKind::PageAddress { expected, found } => {
            found > expected && found.bytes_since(expected).is_multiple_of(SegmentSize::MIN.bytes())
        }
        _ => false,
    }
}

/// Returns whether a fault is due to a running server that has written a later segment into a file.
fn is_overwritten(file: &SegmentFile, fault: &FaultKind) -> bool {
    file.is_recycled() || file.compression == Compression::None && is_page_of_later_segment(fault)
}

/// Scans a run. `make` creates a visitor for each segment, and `merge` gets the outcomes in WAL order, on the
/// calling thread.
///
/// Starts at most `options.threads - 1` threads, fewer for large segments that are decoded as a whole
/// ([`Run::decoding_threads`]). These threads have ended when this function returns. The first damage ends
/// the scan: `merge` gets the damage in the outcome of its segment.
pub fn scan<V: Visitor + Send>(
    run: &Run,
    options: ScanOptions,
    make: impl Fn(usize) -> V + Sync,
    mut merge: impl FnMut(SegmentOutcome<V>) -> ControlFlow<()>,
) {
    let groups = groups(run, wanted_segments(run, options));
    let mut link = Link::default();
    let threads = run.decoding_threads(options.threads);
    run_in_order(
        0..groups.len(),
        threads,
        Direct::new,
        |windows, group| {
            // Threads share the segments that a store decodes. Those of a pack are decoded in order.
            let next = groups.get(group + 1).filter(|next| threads > 1 && next.len() == 1);
            if let Some(next) = next.and_then(|next| run.segments.get(next.start))
                && next.store.is_some()
                && is_decoded_whole(next)
            {
                windows.prepare(next);
            }
            let mut outcomes = Vec::with_capacity(groups[group].len());
            for index in groups[group].clone() {
                let outcome = read_settled(run, index, options, || make(index), windows);
                let is_last = outcome.end.is_last();
                outcomes.push(outcome);
                if is_last {
                    break;
                }
            }
            outcomes
        },
        |outcomes| {
            for mut outcome in outcomes {
                link.check(&mut outcome, run);
                let is_last = outcome.end.is_last();
                if merge(outcome).is_break() || is_last {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        },
    );
}

/// Returns the groups of segments that one worker reads: a single segment, or the members of a pack from one
/// keyframe to the next, which several workers would otherwise decode repeatedly.
fn groups(run: &Run, wanted: Range<usize>) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for index in wanted {
        match groups.last_mut() {
            Some(group) if run.segments[index].needs_previous => group.end = index + 1,
            _ => groups.push(index..index + 1),
        }
    }
    groups
}

impl SegmentEnd {
    /// Returns whether reading ends here.
    fn is_last(&self) -> bool {
        !matches!(self, SegmentEnd::Complete)
    }
}

/// Scans a run in WAL order with one visitor.
///
/// If `options` allow more than one thread, a second one reads ahead and decompresses. Calls `done` with the
/// bytes of each segment that was read. Returns the position reached, and how the scan ended.
pub fn scan_in_order<V: Visitor>(
    run: &Run,
    options: ScanOptions,
    visitor: &mut V,
    done: impl FnMut(u64),
) -> (Lsn, SegmentEnd) {
    scan_again(run, options, Lsn(0), visitor, done)
}

/// As [`scan_in_order`], without verifying the checksums of records before `checked`, which an earlier scan
/// has verified.
pub fn scan_again<V: Visitor>(
    run: &Run,
    options: ScanOptions,
    checked: Lsn,
    visitor: &mut V,
    done: impl FnMut(u64),
) -> (Lsn, SegmentEnd) {
    let wanted = wanted_segments(run, options);
    if options.threads < 2 {
        return in_order(run, wanted, options, checked, visitor, done, &mut Direct::new());
    }
    std::thread::scope(|scope| {
        let mut thread = ReadingThread::new(1);
        let mut ahead = thread.add_reader();
        thread.start(scope, &run.segments[wanted.clone()]);
        in_order(run, wanted, options, checked, visitor, done, &mut ahead)
    })
}

/// As [`scan_again`], with a thread for each visitor. Each visitor gets all records. The segments are read
/// and decompressed once, by a further thread, or by several if the options have memory for that.
///
/// No visitor gets more than some MB, or two segments, ahead of another visitor. Calls `done` for the first
/// visitor, which runs on the calling thread, and `ended` for each visitor that gets no more records: a
/// visitor that waits for another visitor must then stop waiting. Returns the results in the order of the
/// visitors.
pub fn scan_shared<V: Visitor + Send>(
    run: &Run,
    options: ScanOptions,
    checked: Lsn,
    visitors: &mut [V],
    done: impl FnMut(u64),
    ended: impl Fn(&mut V) + Sync,
) -> Vec<(Lsn, SegmentEnd)> {
    let wanted = wanted_segments(run, options);
    let Some((first, others)) = visitors.split_first_mut() else { return Vec::new() };
    let ended = &ended;
    std::thread::scope(|scope| {
        let decoders = decoders(&run.segments[wanted.clone()], options.threads, options.decoded_bytes);
        let mut thread = ReadingThread::new(decoders);
        let mut ahead = thread.add_reader();
        let others: Vec<_> = others
            .iter_mut()
            .map(|visitor| {
                let (mut ahead, wanted) = (thread.add_reader(), wanted.clone());
                scope.spawn(move || {
                    let ends = Ends(visitor, ended);
                    in_order(run, wanted, options, checked, &mut *ends.0, |_| {}, &mut ahead)
                })
            })
            .collect();
        thread.start(scope, &run.segments[wanted.clone()]);
        let mut results = {
            let ends = Ends(first, ended);
            vec![in_order(run, wanted, options, checked, &mut *ends.0, done, &mut ahead)]
        };
        drop(ahead);
        let join = |other: ScopedJoinHandle<'_, _>| other.join().unwrap_or_else(|panic| resume_unwind(panic));
        results.extend(others.into_iter().map(join));
        results
    })
}

/// Calls `ended` for a visitor when it gets no more records, even if it panics.
struct Ends<'v, V, F: Fn(&mut V)>(&'v mut V, &'v F);

impl<V, F: Fn(&mut V)> Drop for Ends<'_, V, F> {
    fn drop(&mut self) {
        self.1(self.0);
    }
}

fn in_order<V: Visitor>(
    run: &Run,
    wanted: Range<usize>,
    options: ScanOptions,
    checked: Lsn,
    visitor: &mut V,
    mut done: impl FnMut(u64),
    windows: &mut impl Windows,
) -> (Lsn, SegmentEnd) {
    let mut link = Link::default();
    let mut reached = run.segments.get(wanted.start).map_or(Lsn::INVALID, |segment| segment.start);
    for index in wanted {
        let mut outcome = read_segment(run, index, options, checked, &mut *visitor, windows);
        link.check(&mut outcome, run);
        reached = outcome.position;
        done(run.segment_size.bytes());
        match outcome.end {
            SegmentEnd::Complete => {}
            end => return (reached, end),
        }
    }
    (reached, SegmentEnd::Complete)
}

/// Returns the parameters for decoding a segment.
pub fn stream_info(segment: &SegmentFile) -> StreamInfo {
    StreamInfo {
        version: segment.version,
        timeline: segment.name.timeline,
        system_id: segment.system_id,
        segment_size: segment.segment_size,
        page_bytes: segment.page_bytes,
        data_page_bytes: 8192,
    }
}

fn wanted_segments(run: &Run, options: ScanOptions) -> Range<usize> {
    let size = run.segment_size.bytes();
    let before = |lsn: Lsn| run.segments.iter().take_while(|segment| segment.start < lsn).count();
    let first = options
        .from
        .map_or(0, |from| run.segments.iter().take_while(|segment| segment.start.plus(size) <= from).count());
    let last = options.to.map_or(run.segments.len(), before);
    first..last.max(first)
}

/// Checks that the first record of a segment links back to the last record of the previous segment, and that
/// the position never decreases.
#[derive(Default)]
struct Link {
    previous: Option<Lsn>,
    reached: Lsn,
}

impl Link {
    fn check<V>(&mut self, outcome: &mut SegmentOutcome<V>, run: &Run) {
        // A record that starts before this segment and ends after it was read with the segment in which it
        // starts.
        outcome.position = outcome.position.max(self.reached);
        self.reached = outcome.position;
        let begins_here = self.previous.is_none() && outcome.first.is_none();
        if begins_here && outcome.is_behind_continuation && matches!(outcome.end, SegmentEnd::EndOfLog(_)) {
            // The continuation is complete, but was not verified: the record starts before the scanned range.
            outcome.is_behind_continuation = !log_ends_before(run, outcome.index);
        }
        if let (Some((lsn, prev)), Some(previous)) = (outcome.first, self.previous)
            && prev != previous
        {
            let kind = FaultKind::PreviousLink { expected: Some(previous), found: prev };
            let fault = Fault { lsn, at: lsn.plus(8), kind };
            outcome.end = SegmentEnd::Damaged(damage_at(run, fault.at, lsn, DamageKind::Fault(fault)));
        }
        self.previous = outcome.last.or(self.previous);
    }
}

/// Returns whether WAL ends in a record that starts before a segment. The remaining bytes of the run then
/// belong to the tail of the segment in which that record starts.
pub fn log_ends_before(run: &Run, segment: usize) -> bool {
    let options = ScanOptions::new(1);
    for index in (0..segment).rev() {
        let outcome = read_segment(run, index, options, Lsn(0), Nothing, &mut Direct::new());
        let is_end = matches!(outcome.end, SegmentEnd::EndOfLog(_));
        // If no record starts in this segment, the record started in an earlier one.
        if is_end || outcome.first.is_some() {
            return is_end;
        }
    }
    false
}

/// Returns whether the record that continues at a segment's start started before the run.
pub fn is_begun_before(run: &Run, segment: usize) -> bool {
    let (first, start) = (&run.segments[0], run.segments[segment].start);
    // Including page headers, no record takes more than twice its length.
    if start.bytes_since(first.start) > 2 * u64::from(MAX_RECORD_BYTES) {
        return false;
    }
    let mut windows = Direct::for_starts(SharedMembers::default(), run.geometry().page_bytes() as usize);
    if windows.open(first).is_err() {
        return false;
    }
    let (page, _) = windows.next();
    PageHeader::parse(page).is_ok_and(|header| {
        let end = run.geometry().record_end(first.start.plus(header.width() as u64), header.remaining.into());
        header.continues_record() && end > start
    })
}

fn damage_at(run: &Run, at: Lsn, lsn: Lsn, mut kind: DamageKind) -> Damage {
    let number = run.segment_size.segment_of(at);
    let place = run.segments.iter().find(|s| run.segment_size.segment_of(s.start) == number);
    // The end of the last segment counts as part of the last segment.
    let file = place.or(run.segments.last());
    if let DamageKind::Fault(fault) = &kind
        && let Some(file) = file.filter(|file| is_overwritten(file, &fault.kind))
    {
        let mut later = run.segments.iter().filter(|later| later.start > file.start);
        let next = later.find(|later| !later.is_recycled()).map(|later| later.start);
        kind = DamageKind::Recycled { fault: *fault, next };
    }
    Damage {
        path: file.map(|file| file.path.clone()).unwrap_or_default(),
        segment: file.map_or(SegmentName::new(run.timeline, number, run.segment_size), |file| file.name),
        offset: file.map_or(0, |file| at.0.saturating_sub(file.start.0)),
        lsn,
        kind,
    }
}

/// Reads a segment, and repeats this if a running server may have written to it meanwhile.
///
/// If a server writes pages between two reads, the first read finds the end of WAL and the second read finds
/// more WAL after this end, which looks like damage. Real damage is found at the same LSN again; if a server
/// writes, the next read gets further.
fn read_settled<V: Visitor>(
    run: &Run,
    index: usize,
    options: ScanOptions,
    make: impl Fn() -> V,
    windows: &mut Direct,
) -> SegmentOutcome<V> {
    let mut outcome = read_segment(run, index, options, Lsn(0), make(), windows);
    while matches!(outcome.end, SegmentEnd::Damaged(_)) {
        let again = read_segment(run, index, options, Lsn(0), make(), windows);
        if again.position <= outcome.position {
            break;
        }
        outcome = again;
    }
    outcome
}

fn read_segment<V: Visitor>(
    run: &Run,
    index: usize,
    options: ScanOptions,
    checked: Lsn,
    mut visitor: V,
    windows: &mut impl Windows,
) -> SegmentOutcome<V> {
    let segment = &run.segments[index];
    let segment_end = segment.start.plus(run.segment_size.bytes());
    let limit = options.to.map_or(segment_end, |to| to.min(segment_end));
    let mut decoder = Decoder::new(stream_info(segment), segment.start, limit).checked_until(checked);
    let end = match feed_segment(run, index, &mut decoder, &mut visitor, windows) {
        Ok(SegmentEnd::Complete) if limit < segment_end || decoder.stopped() => SegmentEnd::Limit,
        Ok(end) => end,
        Err(kind) => {
            let at = decoder.position();
            SegmentEnd::Damaged(damage_at(run, at, at, kind))
        }
    };
    SegmentOutcome {
        index,
        visitor,
        start: segment.start,
        position: decoder.position(),
        end,
        is_behind_continuation: decoder.place().is_some(),
        first: decoder.first(),
        last: decoder.previous(),
    }
}

fn feed_segment<V: Visitor>(
    run: &Run,
    index: usize,
    decoder: &mut Decoder,
    visitor: &mut V,
    windows: &mut impl Windows,
) -> Result<SegmentEnd, DamageKind> {
    let segment = &run.segments[index];
    let size = run.segment_size.bytes();
    let is_last = index + 1 == run.segments.len();
    windows.open(segment).map_err(DamageKind::Io)?;
    let mut offset = 0;
    while offset < size {
        let (window, stopped) = windows.next();
        let got = window.len();
        match decoder.push(window, visitor) {
            Ok(Progress::Done) => return Ok(SegmentEnd::Complete),
            Ok(Progress::More) => {}
            Err(fault) => {
                let place = FaultPlace { segment, offset, window: window.to_vec(), size, is_last };
                return place.judge(fault, decoder, run, windows);
            }
        }
        offset += got as u64;
        if let Some(error) = stopped {
            return Err(DamageKind::Io(error));
        }
        if got == 0 {
            break;
        }
    }
    if offset < size {
        if !(segment.partial && is_last) {
            return Err(DamageKind::Truncated { expected: size, found: offset });
        }
        let torn = (segment.start.0 + offset).saturating_sub(decoder.position().0);
        return Ok(SegmentEnd::EndOfLog(Tail { torn, ..Tail::default() }));
    }
    if decoder.unfinished().is_some() {
        return finish_in_next(run, index, decoder, visitor, windows.members());
    }
    Ok(SegmentEnd::Complete)
}

/// Reads the segments after `index` for the end of its last record.
fn finish_in_next<V: Visitor>(
    run: &Run,
    index: usize,
    decoder: &mut Decoder,
    visitor: &mut V,
    members: SharedMembers,
) -> Result<SegmentEnd, DamageKind> {
    let mut windows = Direct::for_starts(members, SPILL_WINDOW);
    let mut next_start = run.segments[index].start.plus(run.segment_size.bytes());
    for segment in &run.segments[index + 1..] {
        // The decoder's position is the record, which starts in an earlier segment.
        let damaged = |offset: u64, kind| {
            let at = segment.start.plus(offset);
            Ok(SegmentEnd::Damaged(damage_at(run, at, at, kind)))
        };
        if let Err(error) = windows.open(segment) {
            return damaged(0, DamageKind::Io(error));
        }
        let mut offset = 0;
        while offset < run.segment_size.bytes() {
            let (window, stopped) = windows.next();
            let got = window.len();
            match decoder.push(window, visitor) {
                Ok(Progress::Done) => return Ok(SegmentEnd::Complete),
                Ok(Progress::More) => {}
                Err(fault) => {
                    // The end of WAL in a record that crosses into the last segment.
                    let is_last = std::ptr::eq(segment, &run.segments[run.segments.len() - 1]);
                    let size = run.segment_size.bytes();
                    let place = FaultPlace { segment, offset, window: window.to_vec(), size, is_last };
                    return place
                        .judge(fault, decoder, run, &mut windows)
                        .or_else(|kind| damaged(offset, kind));
                }
            }
            offset += got as u64;
            if let Some(error) = stopped {
                return damaged(offset, DamageKind::Io(error));
            }
            if got == 0 {
                break;
            }
        }
        next_start = next_start.plus(run.segment_size.bytes());
        if offset < run.segment_size.bytes() && !segment.partial {
            let kind = DamageKind::Truncated { expected: run.segment_size.bytes(), found: offset };
            return damaged(offset, kind);
        }
    }
    let cut_record = next_start.0.saturating_sub(decoder.position().0);
    Ok(SegmentEnd::EndOfLog(Tail { cut_record, ..Tail::default() }))
}

/// A fault, with the information to distinguish the end of WAL from damage.
struct FaultPlace<'a> {
    segment: &'a SegmentFile,
    /// Bytes of the segment before `window`.
    offset: u64,
    window: Vec<u8>,
    size: u64,
    is_last: bool,
}

impl FaultPlace<'_> {
    /// Decides whether a fault is damage or the end of WAL: only damage has valid pages or records after it.
    fn judge(
        &self,
        fault: Fault,
        decoder: &Decoder,
        run: &Run,
        windows: &mut impl Windows,
    ) -> Result<SegmentEnd, DamageKind> {
        let damaged =
            || Ok(SegmentEnd::Damaged(damage_at(run, fault.at, fault.lsn, DamageKind::Fault(fault))));
        if !self.is_last {
            return damaged();
        }
        let page_bytes = self.segment.page_bytes as usize;
        let address = decoder.last_page().0;
        let start = address.saturating_sub(self.segment.start.0 + self.offset) as usize;
        let page = self.window.get(start..).unwrap_or(&[]);
        let page = &page[..page.len().min(page_bytes)];
        let timeline = decoder.page_timeline();
        let is_of_earlier_timeline = is_of_earlier_timeline(page, timeline);
        // A recycled file has pages of an earlier segment. Pages of a later segment mean that the file has
        // been reused for the later segment: the WAL continued here, and has been overwritten.
        if !is_of_earlier_timeline && is_overwritten(self.segment, &fault.kind) {
            return damaged();
        }
        if !is_of_earlier_timeline && goes_on_in_page(page, fault, address) {
            return damaged();
        }
        let mut tail = Tail { fault: Some(fault), ..Tail::default() };
        let position = decoder.position().0;
        let here = self.segment.start.0 + self.offset + start as u64;
        // Pages before the fault that contain the start of the record.
        tail.torn += here.saturating_sub(position);
        let from = (position.saturating_sub(here) as usize).min(page.len());
        if is_zero_or_foreign(page, here, self.segment, timeline) == Some(PageLeft::Recycled) && from == 0 {
            tail.recycled += page.len() as u64;
        } else {
            let rest = &page[from..];
            let used = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            tail.torn += used as u64;
            tail.zero += (rest.len() - used) as u64;
        }
        let mut lsn = here + page.len() as u64;
        let end = self.segment.start.0 + self.size;
        let mut pages_here = self.window.get(start + page.len()..).unwrap_or(&[]);
        loop {
            for page in pages_here.chunks(page_bytes) {
                match is_zero_or_foreign(page, lsn, self.segment, timeline) {
                    Some(PageLeft::Valid) => return damaged(),
                    Some(PageLeft::Zero) => tail.zero += page.len() as u64,
                    Some(PageLeft::Recycled) => tail.recycled += page.len() as u64,
                    None => tail.torn += page.len() as u64,
                }
                lsn += page.len() as u64;
            }
            let (more, stopped) = windows.next();
            if let Some(error) = stopped {
                return Err(DamageKind::Io(error));
            }
            if more.is_empty() {
                break;
            }
            pages_here = more;
        }
        if lsn < end && !self.segment.partial {
            return Err(DamageKind::Truncated { expected: self.size, found: lsn - self.segment.start.0 });
        }
        Ok(SegmentEnd::EndOfLog(tail))
    }
}

#[derive(PartialEq)]
enum PageLeft {
    /// The page belongs here: the WAL continues.
    Valid,
    Zero,
    Recycled,
}

/// Classifies a page after the end of WAL. `timeline` is the timeline of the last valid page before this
/// page.
fn is_zero_or_foreign(page: &[u8], lsn: u64, segment: &SegmentFile, timeline: Timeline) -> Option<PageLeft> {
    match PageHeader::parse(page) {
        Ok(_) if is_of_earlier_timeline(page, timeline) => Some(PageLeft::Recycled),
        Ok(header) if header.address.0 == lsn && header.version == segment.version => Some(PageLeft::Valid),
        Ok(_) => Some(PageLeft::Recycled),
        Err(_) => is_zero(page).then_some(PageLeft::Zero),
    }
}

/// Returns whether a page is of an earlier timeline than the last valid page. Such a page is from before a
/// promotion, even if it has the address that belongs there: files that were restored, or written on the
/// previous timeline, are recycled with their content. Timelines start at 1.
fn is_of_earlier_timeline(page: &[u8], timeline: Timeline) -> bool {
    PageHeader::parse(page).is_ok_and(|header| (1..timeline).contains(&header.timeline))
}

/// Compares 64 bytes at a time: the end of WAL may be 16 MB of zeros.
fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<64>();
    let zero = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    words.iter().all(|word| zero(word)) && zero(rest)
}

/// Returns whether the page has a complete record that links back to the fault's LSN or a later LSN.
fn goes_on_in_page(page: &[u8], fault: Fault, address: u64) -> bool {
    let first = (fault.lsn.0.saturating_sub(address) as usize + 8) & !7;
    (first..page.len().saturating_sub(RECORD_HEADER)).step_by(8).any(|at| {
        let Some(header) = RecordHeader::parse(&page[at..]) else { return false };
        let here = address + at as u64;
        let linked = header.prev >= fault.lsn && header.prev.0 < here;
        let length = header.total_len as usize;
        let Some(bytes) = page.get(at..at + length).filter(|bytes| linked && bytes.len() >= RECORD_HEADER)
        else {
            return false;
        };
        record_crc(bytes) == header.crc
    })
}
