//! Checks a file before its archiving is acknowledged.
//!
//! PostgreSQL may remove a segment once `archive_command` succeeds, so this is the last chance to detect
//! damage while the original still exists. The check decodes every record, verifies its checksum, and refuses
//! files that PostgreSQL never archives.

use std::io::{self, Read};
use std::ops::ControlFlow;

use walden_format::crossing::CrossingFault;
use walden_format::fault::{Fault, FaultKind};
use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::page::UnreadPageHeader;
use walden_format::record::Record;
use walden_format::stream::{Decoder, Progress, StreamInfo, Visitor};
use walden_format::version::UnreadableMagic;

use crate::history::{History, HistoryError};
use crate::objects::contents::{Contents, Survey};
use crate::objects::name::ArchivedFile;

/// Number of bytes that are read at a time, then hashed and decoded while they are in the processor's cache.
/// A multiple of every page size.
const CHUNK: usize = 256 << 10;
/// Largest accepted history or backup label, in bytes.
pub(crate) const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Size of the smallest segments in bytes. Every segment size is a multiple of this size, so an LSN's offset
/// in its segment, modulo this size, does not depend on the segment size.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;

/// The result of checking a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Checked {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub hash: [u8; 32],
    /// The cluster that wrote the file, if the file states it.
    pub cluster: Option<Cluster>,
    /// Contents of a segment, for lists and searches by time.
    pub contents: Option<Contents>,
    /// Warnings about a file that is archived anyway.
    pub warnings: Vec<String>,
    /// Every record of the segment has a valid checksum, up to the segment's end.
    pub is_sound: bool,
    /// The file is damaged, and [`Rules::accept_damaged`] allowed it.
    pub is_damage_accepted: bool,
    /// The records are valid, but the file was compressed as bytes because decoding did not reproduce it.
    pub is_as_bytes: bool,
}

impl Checked {
    /// Creates the result for a file whose size and BLAKE3 are the only known facts.
    pub(crate) fn from_hash(bytes: u64, hash: [u8; 32]) -> Checked {
        Checked {
            bytes,
            hash,
            cluster: None,
            contents: None,
            warnings: Vec::new(),
            is_sound: false,
            is_damage_accepted: false,
            is_as_bytes: false,
        }
    }
}

/// The cluster that wrote a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// System identifier from `initdb`.
    pub system_id: u64,
    /// Segment size of the cluster.
    pub segment_size: SegmentSize,
}

/// Start of the warning about accepted damage. Summaries of the first versions indicate accepted damage only
/// by this text.
pub(crate) const ACCEPTED: &str = "archived although it is";

/// How strictly a file is checked.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rules<'h> {
    /// Whether to archive damaged records with a warning, because the server itself wrote them this way.
    pub accept_damaged: bool,
    /// Whether to archive segments of PostgreSQL versions that Walden cannot read, as bytes. The page headers
    /// are checked, the records are not.
    pub accept_unknown_versions: bool,
    /// Timeline histories, which state where each timeline starts and where its ancestors ended.
    pub histories: &'h [History],
}

/// What to do about a server whose WAL `pg_resetwal` started again.
pub const RESET_HINT: &str = "pg_resetwal discards WAL and restarts it on the same timeline, so no earlier base backup can be recovered past it. Give the server a new archive (walden archive init --repo with another place), set \
                                     archive_command to it, reload the server, and take a new base backup; the archive here stays as it is, for \
                                     recovery to before the reset. If pg_resetwal was not run on your primary, stop this server from archiving: it is a copy on which it was run";

/// Why a file is not archived.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The file cannot be read.
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    /// The file contradicts its name.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// The property that was compared.
        what: &'static str,
        /// The value required by the name or by PostgreSQL's rules.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// Walden cannot read the PostgreSQL version of the pages.
    #[error("cannot read the segment: by its magic {magic:04X}, the first page (offset 0) was {reason}")]
    UnknownVersion {
        /// Magic number of the first page.
        magic: u16,
        /// The version that the magic number identifies.
        reason: UnreadableMagic,
    },
    /// The pages belong to another timeline, and there is no evidence that the named timeline starts in this
    /// segment.
    #[error(
        "the pages' timeline: expected {expected}, or a record or history that shows its start in this segment, found {found}"
    )]
    Timeline {
        /// Timeline of the name.
        expected: Timeline,
        /// Timeline of the pages.
        found: Timeline,
    },
    /// The records are damaged.
    #[error("damaged at {} (offset {offset}): expected {}, found {}", fault.at, fault.expected(), fault.found())]
    Damaged {
        /// Offset of the damage in the file.
        offset: u64,
        /// The damage.
        fault: Fault,
    },
    /// The segment is unwritten after its last record: the server is still writing it, or its end was lost.
    #[error(
        "the segment is not complete: its records end at {end} (offset {offset}), and nothing was written after that"
    )]
    Incomplete {
        /// End of the last record.
        end: Lsn,
        /// Offset of this end in the file.
        offset: u64,
    },
    /// The segment does not follow the previous one: one of the two belongs to a different history.
    #[error(
        "the link to {before}: expected the first record, at {at} (offset {offset}), to point back at {expected}, found {found}"
    )]
    Link {
        /// Name of the previous segment.
        before: String,
        /// Start of the first record.
        at: Lsn,
        /// Offset of this start in the file.
        offset: u64,
        /// Start of the previous segment's last record.
        expected: String,
        /// Start of the previous record according to the first record.
        found: Lsn,
    },
    /// A record that started in an earlier segment and ends in this segment is damaged, here or in an earlier
    /// segment.
    #[error(
        "damaged at {at}: the record, which starts in {before}, is damaged there or in this segment: {fault}"
    )]
    Crossing {
        /// Name of the previous segment.
        before: String,
        /// Start of the record.
        at: Lsn,
        /// The damage.
        fault: CrossingFault,
    },
    /// `pg_resetwal` restarted the WAL at the start of this segment.
    #[error(
        "the link to {before}: expected the first record, at {at} (offset {offset}), to point back at {expected}, found a pg_resetwal checkpoint: a shutdown checkpoint without a previous record (xl_prev 0/00000000)"
    )]
    Reset {
        /// Name of the previous segment.
        before: String,
        /// Start LSN of the first record.
        at: Lsn,
        /// Offset of this start in the file.
        offset: u64,
        /// Start LSN of the previous segment's last record.
        expected: String,
    },
    /// The file is not a timeline history as PostgreSQL writes it.
    #[error("the timeline history is damaged")]
    History(#[from] HistoryError),
}

impl Refusal {
    /// Returns the reason for rejecting the header of a segment's first page.
    pub fn from_page_fault(kind: FaultKind) -> Refusal {
        if let Some((magic, reason)) = kind.unknown_version() {
            return Refusal::UnknownVersion { magic, reason };
        }
        let fault = Fault { lsn: Lsn(0), at: Lsn(0), kind };
        Refusal::Mismatch { what: "the first page", expected: fault.expected(), found: fault.found() }
    }
}

walden_format::diagnostics! { Refusal {
    Self::Io(error) if error.kind() == std::io::ErrorKind::NotFound => "push-file-missing" as "unreadable": "check the path: archive_command passes it as %p, relative to the data directory",
    Self::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => "push-file-denied" as "unreadable": "only PostgreSQL's user can read its files: run walden as that user, as archive_command does; if another user owns the file, give it to that user (chown)",
    Self::Io(_) => "push-file-unreadable" as "unreadable": "PostgreSQL keeps the file and offers it again; see the system's log for why it cannot be read",
    Self::Mismatch { .. } => "push-mismatch" as "mismatch": "PostgreSQL keeps the file and offers it again; find out what wrote or renamed it before you remove anything",
    Self::UnknownVersion { magic, .. } if UnreadPageHeader::has_layout(*magic) => "push-unknown-version" as "unknown_version": "PostgreSQL keeps the file, and pg_wal fills until it is archived: install a Walden that reads this version, or set accept_unknown_versions = true in walden.toml (--accept-unknown-versions), which archives such segments as bytes and verifies them by their hash alone",
    Self::UnknownVersion { .. } => "push-unknown-version" as "unknown_version": "PostgreSQL keeps the file, and pg_wal fills until it is archived: archive the WAL of this server with another program",
    Self::Timeline { .. } => "push-timeline" as "mismatch": "if the timeline starts in this segment, put its history file next to it. Otherwise, the segment was renamed or copied: PostgreSQL keeps the file; find out what did so before you remove anything",
    Self::Damaged { .. } | Self::Crossing { .. } => "push-damaged" as "damaged": "PostgreSQL keeps the file and offers it again; check the disk and memory of this server. If the server itself wrote the damage, take a new base backup and archive the file with --accept-damaged",
    Self::Incomplete { .. } => "push-incomplete" as "incomplete": "if the server is still writing this segment, it is archived once it is full; if the server already writes the next one, find another copy, such as on a standby",
    Self::Link { .. } => "push-link" as "mismatch": "PostgreSQL keeps the file and offers it again; another server, a clone or a second one that was promoted to this timeline, has written one of the two segments: find out which one is the primary and stop the other from archiving",
    Self::Reset { .. } => "push-reset" as "mismatch": RESET_HINT,
    Self::History(_) => "push-history" as "history": "compare it with the copies on the standbys and in other archives; never edit history files",
} }

/// Checks a file with these bytes.
///
/// # Errors
/// The reason that the file is incomplete or not one that PostgreSQL archives.
pub fn check(file: ArchivedFile, content: &mut dyn Read, rules: Rules<'_>) -> Result<Checked, Refusal> {
    match file {
        ArchivedFile::Segment(name) => check_segment(name, false, &mut Reading::new(content), rules),
        ArchivedFile::Partial(name) => check_segment(name, true, &mut Reading::new(content), rules),
        ArchivedFile::History(timeline) => {
            let text = read_text(content)?;
            History::check(timeline, &text)?;
            Ok(plain(&text, Vec::new()))
        }
        ArchivedFile::Backup(name, offset) => check_backup(name, offset, content),
    }
}

/// Checks a file in memory.
///
/// # Errors
/// Like [`check`].
pub fn check_held(file: ArchivedFile, content: &[u8], rules: Rules<'_>) -> Result<Checked, Refusal> {
    match file {
        ArchivedFile::Segment(name) => check_segment(name, false, &mut Held(content), rules),
        ArchivedFile::Partial(name) => check_segment(name, true, &mut Held(content), rules),
        _ => check(file, &mut &content[..], rules),
    }
}

/// A file in chunks of [`CHUNK`] bytes. The last one may be shorter.
trait Chunks {
    /// Returns the next chunk, which is empty at the end.
    fn next(&mut self) -> io::Result<&[u8]>;
}

/// The remaining bytes of a file in memory.
struct Held<'c>(&'c [u8]);

impl Chunks for Held<'_> {
    fn next(&mut self) -> io::Result<&[u8]> {
        let (next, left) = self.0.split_at(self.0.len().min(CHUNK));
        self.0 = left;
        Ok(next)
    }
}

/// A file that is read in chunks.
struct Reading<'c> {
    content: &'c mut dyn Read,
    chunk: Vec<u8>,
}

impl<'c> Reading<'c> {
    fn new(content: &'c mut dyn Read) -> Reading<'c> {
        Reading { content, chunk: vec![0; CHUNK] }
    }
}

impl Chunks for Reading<'_> {
    fn next(&mut self) -> io::Result<&[u8]> {
        let filled = read_full(self.content, &mut self.chunk)?;
        Ok(&self.chunk[..filled])
    }
}

fn plain(content: &[u8], warnings: Vec<String>) -> Checked {
    let hash = *blake3::hash(content).as_bytes();
    Checked { warnings, ..Checked::from_hash(content.len() as u64, hash) }
}

fn read_text(content: &mut dyn Read) -> Result<Vec<u8>, Refusal> {
    let mut text = Vec::new();
    content.take(MAX_TEXT_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_TEXT_BYTES {
        let (expected, found) = (format!("at most {MAX_TEXT_BYTES} bytes"), "more".to_owned());
        return Err(Refusal::Mismatch { what: "the file's size", expected, found });
    }
    Ok(text)
}

/// Checks a backup history file, whose first line states the LSN and the segment at which the backup's WAL
/// starts (`do_pg_backup_stop` in `xlog.c`).
///
/// PostgreSQL does not synchronize these files, so one can be empty after a crash. An empty file is accepted:
/// no restore needs it, and archiving must continue.
fn check_backup(name: SegmentName, offset: u32, content: &mut dyn Read) -> Result<Checked, Refusal> {
    let text = read_text(content)?;
    if text.iter().all(|&byte| byte == 0) {
        let warning = "the backup history file is empty, as after a crash of the server; archived as it is";
        return Ok(plain(&text, vec![warning.to_owned()]));
    }
    let line = String::from_utf8_lossy(text.split(|&byte| byte == b'\n').next().unwrap_or_default());
    let found = line.strip_prefix("START WAL LOCATION: ").and_then(|line| line.split_once(" (file "));
    let fits = found.is_some_and(|(lsn, file)| {
        let start = lsn.parse::<Lsn>().ok();
        file.strip_suffix(')') == Some(&name.to_string())
            && start.is_some_and(|lsn| lsn.0 % MIN_SEGMENT_BYTES == u64::from(offset) % MIN_SEGMENT_BYTES)
    });
    if !fits {
        let expected = format!("START WAL LOCATION: .../...{offset:06X} (file {name})");
        let found = line.chars().take(100).flat_map(char::escape_default).collect();
        return Err(Refusal::Mismatch { what: "the first line of the backup history file", expected, found });
    }
    Ok(plain(&text, Vec::new()))
}

fn check_segment(
    name: SegmentName,
    is_partial: bool,
    content: &mut dyn Chunks,
    rules: Rules<'_>,
) -> Result<Checked, Refusal> {
    let mut here = content.next()?;
    let info = match StreamInfo::from_first_page(here) {
        Err(kind) if rules.accept_unknown_versions && kind.unknown_version().is_some() => {
            let mut pages = UnreadPages::new(name, here).ok_or_else(|| Refusal::from_page_fault(kind))??;
            while !here.is_empty() {
                pages.observe(here);
                here = content.next()?;
            }
            return pages.finish(is_partial, rules.histories);
        }
        other => other.map_err(Refusal::from_page_fault)?,
    };
    let address = walden_format::page::PageHeader::parse(here).map_or(Lsn::INVALID, |header| header.address);
    let start = check_name(name, info.segment_size, (address, info.timeline))?;
    let mut older = (info.timeline < name.timeline).then(|| OlderPages::new(name, &info, start));
    // Pages before the timeline switch are copies of the parent's. Later pages belong to the new timeline
    // (`XLogInitNewTimeline` in `xlog.c`).
    let info = StreamInfo { timeline: name.timeline, ..info };
    let size = info.segment_size.bytes();
    let mut decoder = Decoder::new(info, start, start.plus(size)).with_checked_padding();
    let mut survey = Survey::new(name, &info);
    let mut hasher = blake3::Hasher::new();
    let (mut bytes, mut fault, mut pages_behind) = (0, None, PagesBehindFault::new(info, start));
    while !here.is_empty() {
        hasher.update(here);
        if fault.is_none() {
            match decoder.push(here, &mut survey) {
                Ok(Progress::More | Progress::Done) => {}
                Err(found) => fault = Some(found),
            }
        }
        if let Some(older) = &mut older {
            older.observe(here, bytes);
        }
        if let Some(found) = &fault {
            pages_behind.observe(here, bytes, found, decoder.page_timeline());
        }
        bytes += here.len() as u64;
        here = content.next()?;
    }
    if bytes != size {
        let (expected, found) =
            (format!("{size} bytes (the cluster's segment size)"), format!("{bytes} bytes"));
        return Err(Refusal::Mismatch { what: "the file's size", expected, found });
    }
    if let Some(older) = older
        && !survey.states_timeline
        && !older.may_lead_to(rules.histories, start.plus(size))
    {
        return Err(Refusal::Timeline { expected: name.timeline, found: older.timeline });
    }
    let mut warnings = Vec::new();
    let (end, is_sound) = (decoder.position(), fault.is_none());
    let mut is_damage_accepted = false;
    if let Some(fault) = fault {
        let offset = fault.at.bytes_since(start);
        let ends_here = is_partial || ends_in(rules.histories, name.timeline, start, start.plus(size), end);
        if ends_here && !pages_behind.log_goes_on {
            if !is_partial {
                warnings.push(format!(
                    "the timeline ends in this segment, at {end}; the bytes after that are unused"
                ));
            }
        } else if rules.accept_damaged {
            let refusal = Refusal::Damaged { offset, fault };
            is_damage_accepted = true;
            warnings.push(format!("{ACCEPTED} {refusal}"));
        } else if is_unwritten(&fault) && !pages_behind.log_goes_on {
            return Err(Refusal::Incomplete { end, offset: end.bytes_since(start) });
        } else {
            return Err(Refusal::Damaged { offset, fault });
        }
    }
    let cluster = Cluster { system_id: info.system_id, segment_size: info.segment_size };
    let (contents, hash) = (survey.finish(&decoder), *hasher.finalize().as_bytes());
    Ok(Checked {
        bytes,
        hash,
        cluster: Some(cluster),
        contents: Some(contents),
        warnings,
        is_sound,
        is_damage_accepted,
        is_as_bytes: false,
    })
}

/// Returns whether the fault looks like the unwritten part of a segment: zeros, or an older page of a
/// recycled file.
fn is_unwritten(fault: &Fault) -> bool {
    let is_older = match fault.kind {
        FaultKind::PageAddress { expected, found } => found < expected,
        FaultKind::PageTimeline { expected, found } => (1..expected).contains(&found),
        _ => false,
    };
    fault.is_unwritten() || is_older
}

/// Checks that the first page's address matches the name, and returns the segment's start.
fn check_name(
    name: SegmentName,
    size: SegmentSize,
    (address, timeline): (Lsn, Timeline),
) -> Result<Lsn, Refusal> {
    let mismatch = |what, expected: String, found: String| Refusal::Mismatch { what, expected, found };
    let start = name.start(size).ok_or_else(|| {
        let size = size.bytes() >> 20;
        mismatch("the name", format!("one that segments of {size} MB have"), name.to_string())
    })?;
    if address != start {
        let found = SegmentName::new(timeline, size.segment_of(address), size);
        let found = format!("{address}, which is in {found}");
        return Err(mismatch("the first page's address", start.to_string(), found));
    }
    // The first segment of a timeline starts with a copy of its parent's pages, including their headers.
    if timeline > name.timeline || timeline == 0 {
        let (expected, found) = (name.timeline.to_string(), timeline.to_string());
        return Err(mismatch("the first page's timeline", expected, found));
    }
    Ok(start)
}

/// Returns whether a history shows that this timeline ended within the segment, at or before the end of its
/// records.
fn ends_in(histories: &[History], timeline: Timeline, start: Lsn, segment_end: Lsn, end: Lsn) -> bool {
    let switches = histories.iter().filter_map(|history| history.end_of(timeline));
    switches.into_iter().any(|switch| start <= switch && switch < segment_end && switch <= end)
}

/// Tracks the pages of a segment that starts on an older timeline than the one in its name, as a timeline's
/// first segment does.
///
/// A page header has the timeline that wrote the page's first byte. A new timeline starts in the middle of
/// its parent's last page. If a segment switch follows on the same page, no page has the new timeline. Then
/// only the records show that the new timeline started: its first record, an end-of-recovery record or
/// checkpoint, contains both timelines. If this record continues in the next segment, only the timeline's
/// history shows the start.
struct OlderPages {
    name: SegmentName,
    page_bytes: usize,
    start: Lsn,
    /// Timeline of the last older page.
    timeline: Timeline,
    /// Start of the last older page.
    last: Lsn,
    /// At least one page has the timeline of the name.
    has_own: bool,
}

impl OlderPages {
    fn new(name: SegmentName, info: &StreamInfo, start: Lsn) -> OlderPages {
        let page_bytes = info.page_bytes as usize;
        OlderPages { name, page_bytes, start, timeline: info.timeline, last: start, has_own: false }
    }

    /// Processes the pages of `chunk`, which starts at `offset` in the segment.
    fn observe(&mut self, chunk: &[u8], offset: u64) {
        for (number, page) in chunk.chunks(self.page_bytes).enumerate() {
            let address = self.start.plus(offset + (number * self.page_bytes) as u64);
            match walden_format::page::PageHeader::parse(page) {
                Ok(header) if header.address != address => {}
                Ok(header) if header.timeline < self.name.timeline => {
                    (self.timeline, self.last) = (header.timeline, address);
                }
                Ok(header) => self.has_own |= header.timeline == self.name.timeline,
                Err(_) => {}
            }
        }
    }

    /// Returns whether a page or a history shows that the named timeline starts in the segment, after the
    /// start of the last older page. A timeline that starts at a segment boundary would have its own first
    /// page (`XLogInitNewTimeline`).
    fn may_lead_to(&self, histories: &[History], segment_end: Lsn) -> bool {
        let own = histories.iter().filter(|history| history.timeline == self.name.timeline);
        let mut begins = own.filter_map(|history| Some(history.parent()?.end));
        self.has_own || begins.any(|begin| self.last < begin && begin < segment_end)
    }
}

/// Checks a segment of a PostgreSQL version that Walden cannot read by its page headers.
///
/// Pages of a segment whose records are not checked. The segment's own pages come first. Zeros may follow a
/// segment switch, and pages of a recycled file may follow the end of a timeline.
struct UnreadPages {
    name: SegmentName,
    first: UnreadPageHeader,
    cluster: Cluster,
    page_bytes: usize,
    start: Lsn,
    hasher: blake3::Hasher,
    bytes: u64,
    /// Timeline of the last page that belongs to the segment.
    timeline: Timeline,
    older: OlderPages,
    /// Offset of the first page that does not belong to the segment, and offset of the first page after it
    /// that is not zero.
    end: Option<u64>,
    leftover: Option<u64>,
    /// Offset of a page that belongs to the segment but follows a page that does not.
    later: Option<u64>,
}

impl UnreadPages {
    /// Returns `None` if the first page's header is unreadable.
    fn new(name: SegmentName, first_page: &[u8]) -> Option<Result<UnreadPages, Refusal>> {
        let first = UnreadPageHeader::parse(first_page)?;
        let long = first.long?;
        let size = long.segment_size().filter(|&size| Geometry::new(size, long.page_bytes).is_some());
        let Some(segment_size) = size else {
            let kind = FaultKind::Geometry { segment_bytes: long.segment_bytes, page_bytes: long.page_bytes };
            return Some(Err(Refusal::from_page_fault(kind)));
        };
        let start = match check_name(name, segment_size, (first.address, first.timeline)) {
            Ok(start) => start,
            Err(refusal) => return Some(Err(refusal)),
        };
        let page_bytes = long.page_bytes as usize;
        let older =
            OlderPages { name, page_bytes, start, timeline: first.timeline, last: start, has_own: false };
        Some(Ok(UnreadPages {
            name,
            first,
            cluster: Cluster { system_id: long.system_id, segment_size },
            page_bytes,
            start,
            hasher: blake3::Hasher::new(),
            bytes: 0,
            timeline: first.timeline,
            older,
            end: None,
            leftover: None,
            later: None,
        }))
    }

    /// Checks the next chunk of the segment: entire pages, except at the end.
    fn observe(&mut self, chunk: &[u8]) {
        self.hasher.update(chunk);
        for page in chunk.chunks(self.page_bytes) {
            let offset = self.bytes;
            self.bytes += page.len() as u64;
            match UnreadPageHeader::parse(page).filter(|header| self.belongs(header, offset)) {
                Some(_) if self.end.is_some() => self.later = self.later.or(Some(offset)),
                Some(header) => self.note(header),
                None => {
                    self.end = self.end.or(Some(offset));
                    if page.iter().any(|&byte| byte != 0) {
                        self.leftover = self.leftover.or(Some(offset));
                    }
                }
            }
        }
    }

    fn belongs(&self, header: &UnreadPageHeader, offset: u64) -> bool {
        header.magic == self.first.magic
            && header.address == self.start.plus(offset)
            && (self.timeline..=self.name.timeline).contains(&header.timeline)
            && header.long.is_some() == (offset == 0)
    }

    fn note(&mut self, header: UnreadPageHeader) {
        self.timeline = header.timeline;
        if header.timeline < self.name.timeline {
            (self.older.timeline, self.older.last) = (header.timeline, header.address);
        } else {
            self.older.has_own = true;
        }
    }

    fn finish(self, is_partial: bool, histories: &[History]) -> Result<Checked, Refusal> {
        let (size, name) = (self.cluster.segment_size, self.name);
        let segment_end = self.start.plus(size.bytes());
        if self.bytes != size.bytes() {
            let expected = format!("{} bytes (the cluster's segment size)", size.bytes());
            let found = format!("{} bytes", self.bytes);
            return Err(Refusal::Mismatch { what: "the file's size", expected, found });
        }
        let end = self.end.unwrap_or(self.bytes);
        if let Some(later) = self.later {
            let expected = format!("the header of the page at {} (offset {end})", self.start.plus(end));
            let found = format!("another header, and pages of the segment from offset {later} on");
            return Err(Refusal::Mismatch { what: "the pages", expected, found });
        }
        let end_lsn = self.start.plus(end);
        let ends_here = is_partial || ends_in(histories, name.timeline, self.start, segment_end, end_lsn);
        if self.leftover.is_some() && !ends_here {
            return Err(Refusal::Incomplete { end: end_lsn, offset: end });
        }
        if self.first.timeline < name.timeline && !self.older.may_lead_to(histories, segment_end) {
            return Err(Refusal::Timeline { expected: name.timeline, found: self.older.timeline });
        }
        let magic = self.first.magic;
        Ok(Checked {
            cluster: Some(self.cluster),
            contents: Some(Contents::for_unknown_version(name, self.cluster.system_id, size, magic)),
            warnings: vec![format!(
                "this Walden does not read its version (page magic {magic:04X}): archived as bytes and verified by hash only"
            )],
            ..Checked::from_hash(self.bytes, *self.hasher.finalize().as_bytes())
        })
    }
}

/// Returns the system identifier in a segment's first page, even for a version that Walden cannot read.
pub fn system_id_of(first_page: &[u8]) -> Option<u64> {
    match StreamInfo::from_first_page(first_page) {
        Ok(info) => Some(info.system_id),
        Err(_) => Some(UnreadPageHeader::parse(first_page)?.long?.system_id),
    }
}

/// Searches for valid pages after a fault, which show that the WAL continues and that the fault is damage.
struct PagesBehindFault {
    info: StreamInfo,
    start: Lsn,
    log_goes_on: bool,
}

impl PagesBehindFault {
    fn new(info: StreamInfo, start: Lsn) -> PagesBehindFault {
        PagesBehindFault { info, start, log_goes_on: false }
    }

    /// Processes the pages of `chunk`, which starts at `offset` in the segment. `timeline` is the timeline of
    /// the last valid page before the fault.
    ///
    /// A page of an earlier timeline is left over from before a promotion, in a recycled file.
    fn observe(&mut self, chunk: &[u8], offset: u64, fault: &Fault, timeline: Timeline) {
        let page_bytes = self.info.page_bytes as usize;
        for (number, page) in chunk.chunks(page_bytes).enumerate() {
            let address = self.start.plus(offset + (number * page_bytes) as u64);
            let header = walden_format::page::PageHeader::parse(page);
            let belongs = header
                .is_ok_and(|header| header.address == address && !(1..timeline).contains(&header.timeline));
            // The page with the fault itself is valid here.
            self.log_goes_on |= belongs && address > fault.at;
        }
    }
}

fn read_full(content: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match content.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Visitor for Survey {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.observe(record);
        ControlFlow::Continue(())
    }
}
