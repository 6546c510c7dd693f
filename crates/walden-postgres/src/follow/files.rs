//! Follows the files of a running server.
//!
//! PostgreSQL writes complete pages in the order of the WAL, and writes the last page again whenever it has
//! more records. Files of later segments may exist already: recycled files with old pages. So WAL ends at the
//! first invalid page or record, and the next call continues at this position. A page's address and timeline
//! and a record's checksum and link to the previous record distinguish new WAL from old or half-written WAL:
//! after a promotion, recycled files may have pages of the previous timeline at the same addresses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use walden_format::fault::Fault;
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, Place, StreamInfo, Visitor};
use walden_format::version::Major;

use super::arrivals::Arrivals;
use super::{FollowError, Follower, GapReason, MAX_POLL_BYTES, News, Polled};
use walden_source::history::History;
use walden_source::regular_file;
use walden_source::scan::Nothing;
use walden_source::timelines::{Stretch, timeline_of};

/// Largest timeline history that is read, in bytes; it has a line for each ancestor.
const MAX_HISTORY: u64 = 16 << 20;
/// Bytes of the first read of a call: usually enough for the new WAL.
const FIRST_WINDOW: usize = 32 << 10;
/// Bytes of each further read.
const WINDOW: usize = 256 << 10;
/// Pages before the end of WAL in which the last record is searched for first.
const PAGES_BACK: u64 = 16;
/// Most segments before the end of WAL in which a record is searched for: records have at most 1 GB.
const SEGMENTS_BACK: usize = 80;
/// How long a position must stay undecodable, with WAL after it, before it counts as damaged.
const DAMAGED_AFTER: Duration = Duration::from_secs(3);
/// Segments that are held open, starting with the current one: they can still be read after a checkpoint
/// recycles or removes them.
const HELD_AHEAD: usize = 32;
/// Most bytes before the position in which a checkpoint in progress is searched for; reading them takes a
/// fraction of a second.
const MAX_SEARCH_BYTES: u64 = 128 << 20;
/// Shortest and longest time between two listings of the folder while no WAL arrives; the time grows.
const LIST_EVERY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Follows the WAL in a folder: `pg_wal` of a primary or a standby.
#[derive(Debug)]
pub struct FolderFollower {
    folder: PathBuf,
    info: StreamInfo,
    place: Place,
    /// The timeline of the last page that was read.
    page_timeline: Timeline,
    buffer: Vec<u8>,
    held: Held,
    /// Since when no WAL arrived, and when the folder was last listed.
    idle: Option<Idle>,
}

/// Whether a checkpoint was in progress at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointSearch {
    /// A checkpoint had started and was not complete.
    Begun {
        /// Redo pointer of the checkpoint.
        redo: Lsn,
        /// The time of the last transaction that ended before the checkpoint, in seconds since 1970-01-01
        /// UTC.
        time: Option<i64>,
    },
    /// No checkpoint was in progress.
    None,
    /// The WAL was not searched completely from the last checkpoint to the position.
    Unknown,
}

/// Segments that are held open.
#[derive(Debug, Default)]
struct Held {
    files: BTreeMap<SegmentName, File>,
    /// Newly arrived segments.
    arrivals: Option<Arrivals>,
}

impl Held {
    /// Keeps the segment with the position and the existing segments after it open, and closes all other
    /// files.
    fn advance(&mut self, folder: &Path, info: StreamInfo, position: Lsn) -> Result<(), FollowError> {
        let size = info.segment_size;
        let first = size.segment_of(position);
        let near = first..first + HELD_AHEAD as u64;
        self.files.retain(|name, _| {
            name.timeline == info.timeline && name.number(size).is_some_and(|number| near.contains(&number))
        });
        self.hold_from(folder, info, position)
    }

    /// Additionally keeps the segment with a position and the existing segments after it open.
    fn hold_from(&mut self, folder: &Path, info: StreamInfo, position: Lsn) -> Result<(), FollowError> {
        let size = info.segment_size;
        let first = size.segment_of(position);
        let near = first..first + HELD_AHEAD as u64;
        // Arrived segments far from the position are closed by `advance`.
        self.files.extend(self.arrivals.iter().flat_map(Arrivals::take));
        for name in near.map(|number| SegmentName::new(info.timeline, number, size)) {
            if self.files.contains_key(&name) {
                continue;
            }
            let Some(file) = open(folder, name)? else { break };
            self.files.insert(name, file);
        }
        Ok(())
    }

    /// Opens the file of a segment. If the file is gone, returns the file that was kept open, and true, which
    /// means that it is complete.
    fn open(&self, folder: &Path, name: SegmentName) -> Result<Option<(File, bool)>, FollowError> {
        if let Some(file) = open(folder, name)? {
            return Ok(Some((file, false)));
        }
        let cloned = self.files.get(&name).map(File::try_clone).transpose();
        let cloned =
            cloned.map_err(|error| FollowError::Io { path: folder.join(name.to_string()), error })?;
        Ok(cloned.map(|file| (file, true)))
    }
}

#[derive(Debug)]
struct Idle {
    since: Instant,
    listed: Option<Instant>,
}

impl FolderFollower {
    /// Starts at the present end of WAL in a `pg_wal` folder.
    ///
    /// # Errors
    /// The folder cannot be read, or has no segment with valid WAL.
    pub fn at_end(folder: &Path) -> Result<FolderFollower, FollowError> {
        let segments = segments_in(folder)?;
        let mut last = None;
        for (index, name) in segments.iter().enumerate().rev() {
            let Some(found) = read_first_page(folder, *name)? else { continue };
            let is_first = index == 0 || segments[index - 1].timeline != name.timeline;
            if is_first || !is_earlier(found.timeline, name.timeline) {
                last = Some((index, found));
                break;
            }
        }
        let Some((index, found)) = last else { return Err(without_wal(folder, &segments)) };
        let name = segments[index];
        let info = StreamInfo { timeline: name.timeline, ..found };
        let start = name.start(info.segment_size).unwrap_or_default();
        let last_page = last_valid_page(folder, name, found)?;
        let page_bytes = u64::from(info.page_bytes);
        let near = Lsn(last_page.0.saturating_sub(PAGES_BACK * page_bytes).max(start.0));
        let earlier = segments[..index].iter().rev().take(SEGMENTS_BACK).map_while(|earlier| {
            (earlier.timeline == name.timeline).then(|| earlier.start(info.segment_size)).flatten()
        });
        for from in [near, start].into_iter().chain(earlier) {
            if let Some(place) = locate(folder, info, from)? {
                return Ok(FolderFollower::at(folder, info, place));
            }
        }
        Err(FollowError::NoWal { path: folder.into() })
    }

    fn at(folder: &Path, info: StreamInfo, place: Place) -> FolderFollower {
        FolderFollower {
            folder: folder.into(),
            info,
            place,
            page_timeline: 0,
            buffer: vec![0; WINDOW],
            held: Held { arrivals: Arrivals::watch(folder), ..Held::default() },
            idle: None,
        }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the position at which the server writes next: after a segment switch, the start of the next
    /// segment.
    pub fn write_position(&self) -> Lsn {
        let (position, size) = (self.place.position, self.info.segment_size);
        match self.place.is_switched {
            true => size.start_of(size.segment_of(Lsn(position.0.saturating_sub(1))) + 1),
            false => position,
        }
    }

    /// Searches for a checkpoint that is in progress at the position, after `since`, the redo pointer of the
    /// last complete one. Before PostgreSQL 17, WAL does not show the start of a checkpoint.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub fn search_checkpoint(&mut self, since: Lsn) -> Result<CheckpointSearch, FollowError> {
        let position = self.place.position;
        let from = since.max(Lsn(position.0.saturating_sub(MAX_SEARCH_BYTES)));
        let page = Lsn(from.0 - from.0 % u64::from(self.info.page_bytes));
        let mut decoder = Decoder::new(self.info, page, position);
        let mut begun = BegunCheckpoint { since, last_end: None, found: None };
        read_records(&self.folder, &mut self.held, &mut decoder, page, &mut self.buffer, &mut begun)?;
        let is_searched = decoder.position() >= position;
        Ok(match begun.found {
            Some((redo, time)) if is_searched => CheckpointSearch::Begun { redo, time },
            None if is_searched && from == since => CheckpointSearch::None,
            _ => CheckpointSearch::Unknown,
        })
    }

    /// Searches for the reason why no WAL arrives: another timeline, removed segments, damage.
    fn news(&mut self, fault: Option<Fault>, idle: Duration) -> Result<Option<News>, FollowError> {
        if let Some(news) = self.other_timeline()? {
            return Ok(Some(news));
        }
        let (info, size) = (self.info, self.info.segment_size);
        let here = size.segment_of(self.place.position);
        let is_here = self.folder.join(SegmentName::new(info.timeline, here, size).to_string()).exists();
        if is_here && idle < DAMAGED_AFTER {
            return Ok(None);
        }
        for name in segments_in(&self.folder)?.into_iter().filter(|name| name.timeline == info.timeline) {
            let Some(start) = name.start(size).filter(|start| size.segment_of(*start) > here) else {
                continue;
            };
            if read_later_info(&self.folder, name)?.is_none_or(|found| found.system_id != info.system_id) {
                continue;
            }
            let mut first = First { from: start, found: None };
            let mut decoder = Decoder::new(info, start, Lsn(u64::MAX));
            read_records(&self.folder, &mut self.held, &mut decoder, start, &mut self.buffer, &mut first)?;
            let Some((to, previous)) = first.found else { continue };
            // A record that is being written may cross into a segment that exists.
            if previous == self.place.position && fault.is_none() {
                continue;
            }
            let from = self.place.position;
            self.place = Place { position: to, previous: Some(previous), is_switched: false };
            let reason = match fault {
                Some(fault) if is_here => GapReason::Damaged(fault),
                _ => GapReason::Removed,
            };
            return Ok(Some(News::Gap { from, to, reason }));
        }
        Ok(None)
    }

    /// Continues on the newest timeline that descends from the current one, once that is read completely.
    fn other_timeline(&mut self) -> Result<Option<News>, FollowError> {
        let (present, size) = (self.info.timeline, self.info.segment_size);
        let Some(history) = newest_descendant(&self.folder, present)? else { return Ok(None) };
        let Some(end) = history.end_of(present) else { return Ok(None) };
        let position = self.place.position;
        let start = position.min(end);
        let mut stretches: Vec<Stretch> = history
            .ancestors
            .iter()
            .filter(|ancestor| ancestor.timeline >= present)
            .map(|ancestor| Stretch { timeline: ancestor.timeline, end: Some(ancestor.end) })
            .collect();
        stretches.push(Stretch { timeline: history.timeline, end: None });
        let Some(timeline) = timeline_of(&stretches, size.segment_of(start), size) else { return Ok(None) };
        let name = SegmentName::new(timeline, size.segment_of(start), size);
        if timeline == present
            || read_info(&self.folder, name)?.is_none_or(|it| it.system_id != self.info.system_id)
        {
            return Ok(None);
        }
        self.info.timeline = timeline;
        // If bytes are discarded, the page may be of an earlier timeline than the last page that was read.
        self.page_timeline = 0;
        if start < position {
            self.place = Place { position: start, previous: None, is_switched: false };
        }
        Ok(Some(News::Timeline { timeline, start, discarded: position.0 - start.0 }))
    }
}

impl Follower for FolderFollower {
    fn info(&self) -> StreamInfo {
        self.info
    }

    fn position(&self) -> Lsn {
        self.place.position
    }

    fn poll(&mut self, visitor: &mut impl Visitor, _: Duration) -> Result<Polled, FollowError> {
        let page = Lsn(self.place.position.0 - self.place.position.0 % u64::from(self.info.page_bytes));
        // Within a page, its own header has the timeline. Pages that were read ahead of the position may be
        // of a later timeline.
        let timeline = if page == self.place.position { self.page_timeline } else { 0 };
        let decoder = Decoder::resume_at(self.info, self.place, Lsn(u64::MAX));
        let mut decoder = decoder.after_page_of(timeline);
        let before = self.place;
        let ended = read_records(&self.folder, &mut self.held, &mut decoder, page, &mut self.buffer, visitor);
        self.place = decoder.place().unwrap_or(self.place);
        self.page_timeline = decoder.page_timeline();
        let ended = ended?;
        self.held.advance(&self.folder, self.info, self.place.position)?;
        if self.place != before {
            self.idle = None;
            return Ok(Polled { has_more: matches!(ended, Ended::Bytes), ..Polled::default() });
        }
        let idle = self.idle.get_or_insert(Idle { since: Instant::now(), listed: None });
        let pause = (idle.since.elapsed() / 4).clamp(LIST_EVERY[0], LIST_EVERY[1]);
        if idle.listed.is_some_and(|listed| listed.elapsed() < pause) {
            return Ok(Polled::default());
        }
        idle.listed = Some(Instant::now());
        let since = idle.since.elapsed();
        let fault = match ended {
            Ended::Fault(fault) => Some(fault),
            _ => None,
        };
        let news = self.news(fault, since)?;
        if news.is_some() {
            self.idle = None;
        }
        Ok(Polled { has_more: news.is_some(), news, ..Polled::default() })
    }
}

/// Why reading ended.
enum Ended {
    /// No more segments.
    NoFile,
    /// At a page or record that is not valid, or not valid yet.
    Fault(Fault),
    /// The limit of bytes was reached, or the visitor stopped.
    Bytes,
}

/// Decodes WAL from `page` on, until it ends or [`MAX_POLL_BYTES`] were read.
fn read_records(
    folder: &Path,
    held: &mut Held,
    decoder: &mut Decoder,
    mut page: Lsn,
    buffer: &mut [u8],
    visitor: &mut impl Visitor,
) -> Result<Ended, FollowError> {
    let info = decoder.info();
    let size = info.segment_size;
    let page_bytes = info.page_bytes as usize;
    let until = page.0.saturating_add(MAX_POLL_BYTES);
    let mut window = FIRST_WINDOW.next_multiple_of(page_bytes).min(buffer.len());
    loop {
        let name = SegmentName::new(info.timeline, size.segment_of(page), size);
        let Some((file, mut is_complete)) = held.open(folder, name)? else { return Ok(Ended::NoFile) };
        // During the read, further segments may arrive and be removed again.
        held.hold_from(folder, info, page)?;
        let segment_end = size.start_of(size.segment_of(page) + 1);
        while page < segment_end {
            if page.0 >= until && decoder.place().is_some_and(|place| !is_within(decoder, place)) {
                return Ok(Ended::Bytes);
            }
            let wanted = (window as u64).min(segment_end.0 - page.0) as usize;
            let got = read_at(&file, &mut buffer[..wanted], size.offset_of(page))
                .map_err(|error| FollowError::Io { path: folder.join(name.to_string()), error })?;
            let got = got - got % page_bytes;
            if got == 0 {
                return Ok(Ended::NoFile);
            }
            for bytes in buffer[..got].chunks_exact(page_bytes) {
                // The decoder does not check the pages after a switch, so make sure that the server has
                // written them.
                let is_switched = decoder.place().is_some_and(|place| place.is_switched);
                let is_here =
                    || is_here(bytes, page, decoder.page_timeline()) || is_unused(bytes, info.version);
                if is_switched && !is_complete && !is_here() {
                    // Once the next segment has WAL, the answer stays the same, so only the first of
                    // thousands of unused pages needs this check.
                    is_complete = next_begins(folder, info, page)?;
                    if !is_complete {
                        return Ok(Ended::NoFile);
                    }
                }
                match decoder.push(bytes, visitor) {
                    Ok(walden_format::stream::Progress::More) => {}
                    Ok(walden_format::stream::Progress::Done) => return Ok(Ended::Bytes),
                    Err(fault) => return Ok(Ended::Fault(fault)),
                }
                page = page.plus(page_bytes as u64);
            }
            window = buffer.len();
        }
    }
}

/// Returns whether a record is incomplete. `place` is then before the record, and reading continues.
fn is_within(decoder: &Decoder, place: Place) -> bool {
    decoder.unfinished().is_some_and(|unfinished| unfinished.lsn == place.position)
}

/// Returns whether a page has the expected address, and is no remainder of a timeline earlier than
/// `timeline`, the timeline of the previous page.
fn is_here(page: &[u8], address: Lsn, timeline: Timeline) -> bool {
    PageHeader::parse(page)
        .is_ok_and(|header| header.address == address && !is_earlier(header.timeline, timeline))
}

/// Returns whether a page after a switch is as PostgreSQL writes it from 11 on: without a header
/// (`CopyXLogRecordToWAL`). One that is not written yet has the same bytes, or a header of earlier WAL.
fn is_unused(page: &[u8], version: Major) -> bool {
    version >= Major::V11 && page.iter().all(|byte| *byte == 0)
}

/// Returns whether a page's timeline is earlier than `timeline`. Timelines start at 1.
fn is_earlier(of_page: Timeline, timeline: Timeline) -> bool {
    (1..timeline).contains(&of_page)
}

/// Returns whether the segment after the one with this page has WAL, which means that the earlier one is
/// written completely.
fn next_begins(folder: &Path, info: StreamInfo, page: Lsn) -> Result<bool, FollowError> {
    let size = info.segment_size;
    let next = SegmentName::new(info.timeline, size.segment_of(page) + 1, size);
    Ok(read_later_info(folder, next)?.is_some())
}

/// Finds the first record at or after a position, and the previous record.
struct First {
    from: Lsn,
    found: Option<(Lsn, Lsn)>,
}

impl Visitor for First {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.lsn < self.from {
            return ControlFlow::Continue(());
        }
        self.found = Some((record.lsn, record.header.prev));
        ControlFlow::Break(())
    }
}

/// Finds the last checkpoint that started after a position and is not complete.
struct BegunCheckpoint {
    since: Lsn,
    /// When the last transaction ended.
    last_end: Option<i64>,
    /// Redo pointer of the checkpoint, and about when the checkpoint started.
    found: Option<(Lsn, Option<i64>)>,
}

impl Visitor for BegunCheckpoint {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if !matches!(record.header.rmid, rmid::XLOG | rmid::XACT) {
            return ControlFlow::Continue(());
        }
        match payload::parse(record) {
            Ok(Payload::Commit(end) | Payload::Abort(end)) => {
                self.last_end = Some(end.time.unix_micros().div_euclid(1_000_000));
            }
            Ok(Payload::CheckpointRedo(_)) if record.lsn > self.since => {
                self.found = Some((record.lsn, self.last_end));
            }
            Ok(Payload::Checkpoint(_)) => self.found = None,
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns the end of WAL, searched from a page on, or `None` if no record ends after that page.
fn locate(folder: &Path, info: StreamInfo, from: Lsn) -> Result<Option<Place>, FollowError> {
    let mut decoder = Decoder::new(info, from, Lsn(u64::MAX));
    read_records(folder, &mut Held::default(), &mut decoder, from, &mut vec![0; WINDOW], &mut Nothing)?;
    Ok(decoder.place().filter(|place| place.previous.is_some()))
}

/// Returns the segments of a folder, ordered by timeline and position.
fn segments_in(folder: &Path) -> Result<Vec<SegmentName>, FollowError> {
    let failed = |error| FollowError::Io { path: folder.into(), error };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.extend(name.to_str().and_then(SegmentName::parse));
    }
    // Names sort like numbers.
    names.sort_by_cached_key(ToString::to_string);
    Ok(names)
}

/// Returns version, timeline and sizes of a segment, or `None` if the file is gone or has no WAL for its
/// name.
fn read_info(folder: &Path, name: SegmentName) -> Result<Option<StreamInfo>, FollowError> {
    Ok(read_first_page(folder, name)?.map(|found| StreamInfo { timeline: name.timeline, ..found }))
}

/// Reads as [`read_info`] does, for a segment that is not the first segment of its timeline. Only the first
/// segment starts with a page of an earlier timeline; any other file that starts so is recycled.
fn read_later_info(folder: &Path, name: SegmentName) -> Result<Option<StreamInfo>, FollowError> {
    let found = read_first_page(folder, name)?.filter(|found| !is_earlier(found.timeline, name.timeline));
    Ok(found.map(|found| StreamInfo { timeline: name.timeline, ..found }))
}

/// Returns why no segment of a folder can be read: they may be of an unknown PostgreSQL version.
fn without_wal(folder: &Path, segments: &[SegmentName]) -> FollowError {
    let unknown = segments.iter().rev().find_map(|&name| {
        let mut start = [0; LONG_HEADER];
        let got = read_at(&open(folder, name).ok()??, &mut start, 0).ok()?;
        let (magic, reason) = StreamInfo::from_first_page(&start[..got]).err()?.unknown_version()?;
        let page = format!("the page at offset 0 of {}", folder.join(name.to_string()).display());
        Some(FollowError::UnknownVersion { page, magic, reason })
    });
    unknown.unwrap_or_else(|| FollowError::NoWal { path: folder.into() })
}

/// Returns the information in a segment's first page, including that page's timeline, or `None` if the file
/// is gone or has no WAL for its name.
fn read_first_page(folder: &Path, name: SegmentName) -> Result<Option<StreamInfo>, FollowError> {
    let Some(file) = open(folder, name)? else { return Ok(None) };
    let mut start = [0; LONG_HEADER];
    let path = || folder.join(name.to_string());
    let got = read_at(&file, &mut start, 0).map_err(|error| FollowError::Io { path: path(), error })?;
    let Ok(info) = StreamInfo::from_first_page(&start[..got]) else { return Ok(None) };
    let is_its_own = name.start(info.segment_size).is_some_and(|address| is_here(&start[..got], address, 0));
    Ok(is_its_own.then_some(info))
}

/// Returns the address of a segment's last page with WAL, by binary search: pages are written in order.
/// `info` is from the first page.
fn last_valid_page(folder: &Path, name: SegmentName, info: StreamInfo) -> Result<Lsn, FollowError> {
    let start = name.start(info.segment_size).unwrap_or_default();
    let Some(file) = open(folder, name)? else { return Ok(start) };
    let page_bytes = u64::from(info.page_bytes);
    let (mut low, mut high) = (0, info.segment_size.bytes() / page_bytes);
    while high - low > 1 {
        let middle = low.midpoint(high);
        let mut header = [0; LONG_HEADER];
        let got = read_at(&file, &mut header, middle * page_bytes)
            .map_err(|error| FollowError::Io { path: folder.join(name.to_string()), error })?;
        match is_here(&header[..got], start.plus(middle * page_bytes), info.timeline) {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(start.plus(low * page_bytes))
}

fn open(folder: &Path, name: SegmentName) -> Result<Option<File>, FollowError> {
    let path = folder.join(name.to_string());
    match regular_file::open(&path) {
        Ok(file) => Ok(Some(file)),
        // A file that is not a regular file is not a segment, whatever its name.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
            Ok(None)
        }
        Err(error) => Err(FollowError::Io { path, error }),
    }
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Returns the history of the newest timeline that descends from a timeline.
fn newest_descendant(folder: &Path, of: Timeline) -> Result<Option<History>, FollowError> {
    let failed = |error| FollowError::Io { path: folder.into(), error };
    let mut newest: Option<History> = None;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(hex) = name.strip_suffix(".history").filter(|hex| hex.len() == 8) else { continue };
        let Ok(timeline) = Timeline::from_str_radix(hex, 16) else { continue };
        if timeline <= of || newest.as_ref().is_some_and(|newest| newest.timeline > timeline) {
            continue;
        }
        // A half-written history is read again later.
        let Ok(content) = regular_file::read(&path, MAX_HISTORY) else { continue };
        newest = match History::parse(timeline, &content) {
            Ok(history) if history.end_of(of).is_some() => Some(history),
            _ => newest,
        };
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_a_version_that_is_not_read_are_named() {
        for (magic, expected) in [
            (0xD1F0_u16, "newer than 19"),
            (0xD115, "a development snapshot, a beta or a fork of PostgreSQL 17"),
            (0xD075, "written by PostgreSQL 9.3, which is too old"),
            (0xD118_u16.swap_bytes(), "written by PostgreSQL 18 on a big-endian machine"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            // A file for later use comes last.
            fs::write(folder.path().join("000000010000000000000008"), vec![0; 8192]).unwrap();
            let page = [&magic.to_le_bytes()[..], &[0; 8190]].concat();
            fs::write(folder.path().join("000000010000000000000007"), page).unwrap();
            let error = FolderFollower::at_end(folder.path()).unwrap_err().to_string();
            assert!(error.contains("offset 0 of ") && error.contains("000000010000000000000007"), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_fifo_is_no_segment_whatever_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["000000010000000000000001", "00000002.history"] {
            walden_testing::make_fifo(&folder.path().join(name));
        }
        let error = FolderFollower::at_end(folder.path()).unwrap_err();
        assert!(matches!(error, FollowError::NoWal { .. }), "{error}");
        assert!(newest_descendant(folder.path(), 1).unwrap().is_none());
    }
}
