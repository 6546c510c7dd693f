//! One run of segments, read in parallel: each segment by one thread, what was found merged in the log's order.
//!
//! A thread takes the records that start in its segment and reads on into the next ones only for the end of the last
//! record. What it reports therefore depends on the segment alone, never on the number of threads. Threads don't get
//! further ahead of the merge than a few segments, so memory does not grow with the run.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};

use walden_format::crc::record_crc;
use walden_format::fault::{Fault, FaultKind};
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::page::PageHeader;
use walden_format::record::{RECORD_HEADER, RecordHeader};
use walden_format::stream::{Decoder, Progress, StreamInfo, Visitor};

use crate::inventory::{Run, SegmentFile};
use crate::windows::{Ahead, Direct, Windows};

/// Bytes read at a time for the end of a record in the next segment.
const SPILL_WINDOW: usize = 64 << 10;

/// How to scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// Threads that decode; at least 1.
    pub threads: usize,
    /// Records from this position on. Segments that end before it are not opened.
    pub from: Option<Lsn>,
    /// Records that start before this position.
    pub to: Option<Lsn>,
}

/// What a thread learned of one segment.
#[derive(Debug)]
pub struct SegmentOutcome<V> {
    /// Which of the run's segments.
    pub index: usize,
    /// What was reported to it adds up to the bytes from the segment's start to `position`, without those of later
    /// segments' page headers and with the rest of the last record there.
    pub visitor: V,
    /// Where the segment starts.
    pub start: Lsn,
    /// Everything before this has been reported.
    pub position: Lsn,
    /// How it ended.
    pub end: SegmentEnd,
    first: Option<(Lsn, Lsn)>,
    last: Option<Lsn>,
}

/// How a segment ended.
#[derive(Debug)]
pub enum SegmentEnd {
    /// At its end, or with its last record in a later segment.
    Complete,
    /// At the limit asked for, or where the visitor had enough.
    Limit,
    /// The log ends in this segment.
    EndOfLog(Tail),
    /// What follows `position` can't be read.
    Damaged(Damage),
}

/// What is between the last record and the end of the segment that the log ends in; bytes that add up to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// The beginning of a record whose rest is in a segment that is not at hand.
    pub cut_record: u64,
    /// Never written, or zeroed before use.
    pub zero: u64,
    /// Pages left from the file's earlier life as another segment.
    pub recycled: u64,
    /// Anything else: a record that was being written when the server stopped.
    pub torn: u64,
    /// Why the log ends here, unless it is for `cut_record`.
    pub fault: Option<Fault>,
}

/// A place where the log can't be read although it goes on, with the file that it is in.
#[derive(Debug)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// The segment.
    pub segment: SegmentName,
    /// Bytes into the segment.
    pub offset: u64,
    /// The page or record that can't be read.
    pub lsn: Lsn,
    /// What is wrong.
    pub kind: DamageKind,
}

/// What is wrong with a segment.
#[derive(Debug)]
pub enum DamageKind {
    /// Its bytes.
    Fault(Fault),
    /// It is shorter than a segment.
    Truncated {
        /// Bytes of a whole segment.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// It could not be read or decompressed.
    Io(io::Error),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "{path}: segment {}, offset {} (LSN {}): ", self.segment, self.offset, self.lsn)?;
        match &self.kind {
            DamageKind::Fault(fault) => write!(f, "{fault}"),
            DamageKind::Truncated { expected, found } => {
                write!(f, "the segment ends too early: expected {expected} bytes, found {found}")
            }
            DamageKind::Io(error) => write!(f, "expected readable data, found: {error}"),
        }
    }
}

impl std::error::Error for Damage {}

impl Damage {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self.kind {
            DamageKind::Fault(_) => {
                "everything before this place was read; take another copy of this segment (archive, standby, backup) \
                 and try again, or read from a later segment"
            }
            DamageKind::Truncated { .. } => {
                "everything before this place was read; copy the segment again, or name it with the suffix .partial if \
                 it was still being written"
            }
            DamageKind::Io(_) => {
                "everything before this place was read; check the file's permissions, its compression and the disk"
            }
        }
    }
}

/// Reads a run; `make` makes a visitor per segment, `merge` gets them in the log's order.
///
/// The first damage ends the scan: it is handed to `merge` with its segment, and nothing comes after it.
pub fn scan<V: Visitor + Send>(
    run: &Run,
    options: ScanOptions,
    make: impl Fn(usize) -> V + Sync,
    mut merge: impl FnMut(SegmentOutcome<V>) -> ControlFlow<()>,
) {
    let wanted = wanted_segments(run, options);
    let threads = options.threads.clamp(1, wanted.len().max(1));
    let queue = Queue::new(wanted, 2 * threads + 1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // If this thread panics, the merging one must not wait for ever.
                let _stop = StopOnPanic(&queue);
                let mut windows = Direct::new();
                while let Some(index) = queue.claim() {
                    queue.deliver(read_settled(run, index, options, || make(index), &mut windows));
                }
            });
        }
        let mut link = Link::default();
        while let Some(mut outcome) = queue.next() {
            link.check(&mut outcome, run);
            let last =
                matches!(outcome.end, SegmentEnd::Damaged(_) | SegmentEnd::EndOfLog(_) | SegmentEnd::Limit);
            if merge(outcome).is_break() || last {
                break;
            }
        }
        queue.stop();
    });
}

/// Reads a run in the log's order with one visitor, which therefore sees everything that came before a record.
///
/// With more than one thread allowed, another one reads ahead (and decompresses). `done` is told the bytes of each segment
/// read. Comes back with how far it got and why no further.
pub fn scan_in_order<V: Visitor>(
    run: &Run,
    options: ScanOptions,
    visitor: &mut V,
    done: impl FnMut(u64),
) -> (Lsn, SegmentEnd) {
    scan_again(run, options, Lsn(0), visitor, done)
}

/// As [`scan_in_order`] of what another scan found right up to `checked`: the checksums of records before that are not
/// computed again.
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
        let mut ahead = Ahead::start(scope, &run.segments[wanted.clone()]);
        in_order(run, wanted, options, checked, visitor, done, &mut ahead)
    })
}

fn in_order<V: Visitor>(
    run: &Run,
    wanted: std::ops::Range<usize>,
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

/// What a stream over this segment has to know.
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

fn wanted_segments(run: &Run, options: ScanOptions) -> std::ops::Range<usize> {
    let size = run.segment_size.bytes();
    let before = |lsn: Lsn| run.segments.iter().take_while(|segment| segment.start < lsn).count();
    let first = options
        .from
        .map_or(0, |from| run.segments.iter().take_while(|segment| segment.start.plus(size) <= from).count());
    let last = options.to.map_or(run.segments.len(), before);
    first..last.max(first)
}

/// Checks that each segment's first record follows the one before's last.
#[derive(Default)]
struct Link {
    previous: Option<Lsn>,
}

impl Link {
    fn check<V>(&mut self, outcome: &mut SegmentOutcome<V>, run: &Run) {
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

fn damage_at(run: &Run, at: Lsn, lsn: Lsn, kind: DamageKind) -> Damage {
    let number = run.segment_size.segment_of(at);
    let place = run.segments.iter().find(|s| run.segment_size.segment_of(s.start) == number);
    // The end of the last segment counts as being in it.
    let file = place.or(run.segments.last());
    Damage {
        path: file.map(|file| file.path.clone()).unwrap_or_default(),
        segment: file.map_or(SegmentName::new(run.timeline, number, run.segment_size), |file| file.name),
        offset: file.map_or(0, |file| at.0.saturating_sub(file.start.0)),
        lsn,
        kind,
    }
}

/// Reads a segment until it holds still.
///
/// A running server may write pages between two reads of its segment: the earlier read saw nothing where the later one
/// finds the log going on, which looks like damage. Damage stays where it is when read again; a server gets further.
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
        return finish_in_next(run, index, decoder, visitor);
    }
    Ok(SegmentEnd::Complete)
}

/// Reads the segments after `index` for the rest of its last record.
fn finish_in_next<V: Visitor>(
    run: &Run,
    index: usize,
    decoder: &mut Decoder,
    visitor: &mut V,
) -> Result<SegmentEnd, DamageKind> {
    let mut windows = Direct::of(SPILL_WINDOW);
    let mut next_start = run.segments[index].start.plus(run.segment_size.bytes());
    for segment in &run.segments[index + 1..] {
        windows.open(segment).map_err(DamageKind::Io)?;
        let mut offset = 0;
        while offset < run.segment_size.bytes() {
            let (window, stopped) = windows.next();
            let got = window.len();
            match decoder.push(window, visitor) {
                Ok(Progress::Done) => return Ok(SegmentEnd::Complete),
                Ok(Progress::More) => {}
                Err(fault) => {
                    // The end of the log in a record that crosses into the last segment.
                    let is_last = std::ptr::eq(segment, &run.segments[run.segments.len() - 1]);
                    let size = run.segment_size.bytes();
                    let place = FaultPlace { segment, offset, window: window.to_vec(), size, is_last };
                    return place.judge(fault, decoder, run, &mut windows);
                }
            }
            if let Some(error) = stopped {
                return Err(DamageKind::Io(error));
            }
            offset += got as u64;
            if got == 0 {
                break;
            }
        }
        next_start = next_start.plus(run.segment_size.bytes());
        if offset < run.segment_size.bytes() && !segment.partial {
            return Err(DamageKind::Truncated { expected: run.segment_size.bytes(), found: offset });
        }
    }
    let cut_record = next_start.0.saturating_sub(decoder.position().0);
    Ok(SegmentEnd::EndOfLog(Tail { cut_record, ..Tail::default() }))
}

/// A fault with what is needed to say whether it is the end of the log or damage.
struct FaultPlace<'a> {
    segment: &'a SegmentFile,
    /// Bytes of the segment before `window`.
    offset: u64,
    window: Vec<u8>,
    size: u64,
    is_last: bool,
}

impl FaultPlace<'_> {
    /// The log goes on behind damage and does not go on behind its end: looks for valid pages and records there.
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
        let page_of_fault = (fault.at.0.saturating_sub(self.segment.start.0) / page_bytes as u64) as usize;
        // A fault at a page boundary or in a record that began before: the page at hand is the last one pushed.
        let start = (page_of_fault * page_bytes).saturating_sub(self.offset as usize);
        let page = self.window.get(start..).unwrap_or(&[]);
        let page = &page[..page.len().min(page_bytes)];
        if goes_on_in_page(page, fault, page_of_fault as u64 * page_bytes as u64 + self.segment.start.0) {
            return damaged();
        }
        let mut tail = Tail { fault: Some(fault), ..Tail::default() };
        let position = decoder.position().0;
        let here = self.segment.start.0 + self.offset + start as u64;
        // Pages before the faulty one that hold the beginning of the record.
        tail.torn += here.saturating_sub(position);
        let from = (position.saturating_sub(here) as usize).min(page.len());
        if is_zero_or_foreign(page, here, self.segment) == Some(PageLeft::Recycled) && from == 0 {
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
                match is_zero_or_foreign(page, lsn, self.segment) {
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
    /// It belongs here: the log goes on.
    Valid,
    Zero,
    Recycled,
}

fn is_zero_or_foreign(page: &[u8], lsn: u64, segment: &SegmentFile) -> Option<PageLeft> {
    match PageHeader::parse(page) {
        Ok(header) if header.address.0 == lsn && header.version == segment.version => Some(PageLeft::Valid),
        Ok(_) => Some(PageLeft::Recycled),
        Err(_) => is_zero(page).then_some(PageLeft::Zero),
    }
}

/// Word by word: the end of the log may be 16 MB of zeros, as long to look at as to decode.
fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<64>();
    let zero = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    words.iter().all(|word| zero(word)) && zero(rest)
}

/// Whether a whole record that points back to the faulty place or beyond it follows in the same page.
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

/// Hands out segments in order and takes outcomes back in order, with a bound on how far apart the two get.
struct Queue<V> {
    state: Mutex<QueueState<V>>,
    changed: Condvar,
    ahead: usize,
}

struct QueueState<V> {
    next_claim: usize,
    next_merge: usize,
    end: usize,
    stopped: bool,
    ready: BTreeMap<usize, SegmentOutcome<V>>,
}

impl<V> Queue<V> {
    fn new(segments: std::ops::Range<usize>, ahead: usize) -> Queue<V> {
        let state = QueueState {
            next_claim: segments.start,
            next_merge: segments.start,
            end: segments.end,
            stopped: false,
            ready: BTreeMap::new(),
        };
        Queue { state: Mutex::new(state), changed: Condvar::new(), ahead }
    }

    fn claim(&self) -> Option<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.stopped || state.next_claim >= state.end {
                return None;
            }
            if state.next_claim < state.next_merge + self.ahead {
                state.next_claim += 1;
                return Some(state.next_claim - 1);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn deliver(&self, outcome: SegmentOutcome<V>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ready.insert(outcome.index, outcome);
        self.changed.notify_all();
    }

    fn next(&self) -> Option<SegmentOutcome<V>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.stopped || state.next_merge >= state.end {
                return None;
            }
            let wanted = state.next_merge;
            if let Some(outcome) = state.ready.remove(&wanted) {
                state.next_merge += 1;
                self.changed.notify_all();
                return Some(outcome);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.changed.notify_all();
    }
}

struct StopOnPanic<'a, V>(&'a Queue<V>);

impl<V> Drop for StopOnPanic<'_, V> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
