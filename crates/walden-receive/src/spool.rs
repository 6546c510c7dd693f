//! The log on this machine's disk, from its receipt to its archiving.
//!
//! ```text
//! 000000010000000000000007           a segment that is complete and waits to be archived
//! 000000010000000000000008.partial   the segment that is received, zeros behind what has come
//! 00000002.history                   a timeline's history that waits to be archived
//! ```
//!
//! A partial segment of an earlier timeline than the newest is one that its timeline ended in; it is archived under its name.
//!
//! A position counts as durable once the file that holds it was synchronised, and its name before that. What failed to be
//! synchronised once is never trusted again: the operating system may hold bytes that it will not write, and give them back when they
//! are read. So after any error, and in a new process, a partial segment is copied to a new file, which then takes its name.

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use walden_archive::name::ArchivedFile;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::record::Record;
use walden_format::stream::{Decoder, Progress, StreamInfo, Visitor};

use crate::disk::{Disk, DiskFile};

/// What the name of a file ends with that is not finished.
const UNFINISHED: &str = ".new";
/// The file that is made ahead for the segment that comes next.
const SPARE: &str = "spare.new";

/// Why the log cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The disk's.
    #[error("cannot {action} {}", path.display())]
    Disk {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The server sends another log than before.
    #[error(
        "the server's log is not the one received before: at {at} in {name}, expected the bytes in {}, found others",
        path.display()
    )]
    Different {
        /// The first byte that differs.
        at: Lsn,
        /// The segment.
        name: SegmentName,
        /// Where its content lies.
        path: PathBuf,
    },
    /// The server does not go on where it was.
    #[error("expected the log from {expected} on, found {found}")]
    Order {
        /// The end of what was received.
        expected: Lsn,
        /// Where the server goes on.
        found: Lsn,
    },
}

/// The log that was received, up to the segments that are archived.
pub struct Spool<'d> {
    disk: &'d dyn Disk,
    size: SegmentSize,
    /// What the thread that receives and the one that synchronises share.
    shared: Mutex<Shared>,
    /// Held while a file is made: two threads that fill one each would take the room from each other where there is room for one.
    making: Mutex<()>,
    /// The last file that was to be made found no room: until one does, none is made ahead.
    lacks_room: AtomicBool,
}

#[derive(Default)]
struct Shared {
    /// Segments that have come as a whole and are not synchronised yet, the oldest first.
    complete: Vec<Open>,
    current: Option<Open>,
    /// The segment that was received over the last connection, whose file is trusted.
    last: Option<Open>,
    /// The end of what is durable.
    durable: Lsn,
    /// The end of the records that have come with the right checksums.
    verified: Lsn,
    /// Something could not be made durable: until the files are forgotten, nothing is synchronised again.
    has_sync_failed: bool,
}

/// A segment that is received.
#[derive(Clone)]
struct Open {
    name: SegmentName,
    file: Arc<dyn DiskFile>,
    /// Where there are records that were received before: they are compared with what comes.
    known: Range<Lsn>,
    /// The end of what was written.
    end: Lsn,
}

/// Where to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The timeline.
    pub timeline: Timeline,
    /// The first byte that is wanted, at the start of a page.
    pub start: Lsn,
    /// What the start of the segment says, if that lies before.
    pub info: Option<StreamInfo>,
}

/// Complete records of a segment: where the first and the last one start, and where that ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Records {
    first: Lsn,
    last: Lsn,
    end: Lsn,
    info: StreamInfo,
}

impl<'d> Spool<'d> {
    /// Uses what is on a disk.
    ///
    /// # Errors
    /// The disk's, as of all functions here.
    pub fn open(disk: &'d dyn Disk, size: SegmentSize) -> Result<Spool<'d>, SpoolError> {
        let (shared, making) = (Mutex::default(), Mutex::default());
        let spool = Spool { disk, size, shared, making, lacks_room: AtomicBool::new(false) };
        for name in spool.names()? {
            if name.ends_with(UNFINISHED) {
                disk.remove(&name).map_err(|source| spool.failed("remove", &name, source))?;
            }
        }
        Ok(spool)
    }

    /// Where to go on: in the first partial segment of the newest timeline, at the page with the last complete record, else behind the
    /// last complete segment. There are several partial ones if a process was killed before it synchronised the first.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn position(&self) -> Result<Option<Position>, SpoolError> {
        let segments = self.files()?.into_iter().filter_map(|file| match file {
            ArchivedFile::Segment(name) => Some((name, false)),
            ArchivedFile::Partial(name) => Some((name, true)),
            ArchivedFile::History(_) | ArchivedFile::Backup(..) => None,
        });
        let segments: Vec<(SegmentName, bool)> = segments.collect();
        let newest = segments.iter().map(|(name, _)| name.timeline).max();
        let of_newest = segments.iter().filter(|(name, _)| Some(name.timeline) == newest);
        let first_partial = of_newest.clone().filter(|(_, is_partial)| *is_partial).min();
        let Some(&(name, is_partial)) = first_partial.or(of_newest.max()) else { return Ok(None) };
        let Some(start) = name.start(self.size) else { return Ok(None) };
        let timeline = name.timeline;
        if !is_partial {
            return Ok(Some(Position { timeline, start: start.plus(self.size.bytes()), info: None }));
        }
        let partial = ArchivedFile::Partial(name).to_string();
        let find = || find_records(name, self.size, &*self.disk.open(&partial)?);
        let records = find().map_err(|source| self.failed("read", &partial, source))?;
        let position = records.map(|records| {
            let page = u64::from(records.info.page_bytes);
            Position {
                timeline,
                start: Lsn(records.last.0 - records.last.0 % page),
                info: Some(records.info),
            }
        });
        Ok(Some(position.filter(|it| it.start > start).unwrap_or(Position { timeline, start, info: None })))
    }

    /// The files that wait to be archived, histories first.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn waiting(&self) -> Result<Vec<ArchivedFile>, SpoolError> {
        // A segment with which its timeline ended is no partial one: it gets its name by the next `sync`, which may be at it now, so this
        // is asked before the names are.
        let complete: Vec<SegmentName> = self.shared().complete.iter().map(|open| open.name).collect();
        let files = self.files()?;
        let segments = |file: &&ArchivedFile| !matches!(file, ArchivedFile::History(_));
        let newest = files.iter().filter(segments).map(|file| file.timeline()).max();
        let mut waiting = files.clone();
        waiting.retain(|file| match file {
            ArchivedFile::Partial(name) => Some(name.timeline) < newest && !complete.contains(name),
            _ => true,
        });
        waiting.sort_by_key(|file| (!matches!(file, ArchivedFile::History(_)), file.to_string()));
        Ok(waiting)
    }

    /// The partial segments.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn partials(&self) -> Result<Vec<ArchivedFile>, SpoolError> {
        let mut files = self.files()?;
        files.retain(|file| matches!(file, ArchivedFile::Partial(_)));
        Ok(files)
    }

    /// Where the files lie.
    pub fn folder(&self) -> PathBuf {
        self.disk.path("")
    }

    /// Removes a file that is archived.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn remove(&self, file: ArchivedFile) -> Result<(), SpoolError> {
        let name = file.to_string();
        self.disk.remove(&name).map_err(|source| self.failed("remove", &name, source))
    }

    /// Whether a partial segment is here.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn has_partial(&self, name: SegmentName) -> Result<bool, SpoolError> {
        Ok(self.names()?.contains(&ArchivedFile::Partial(name).to_string()))
    }

    /// Removes a partial segment whose whole segment is archived, if that has the same records; whether it has.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn remove_archived_partial(&self, name: SegmentName, archived: &[u8]) -> Result<bool, SpoolError> {
        let is_same = self.has_records_of_partial(name, archived)?;
        if is_same {
            // Nothing is written to it any more.
            self.shared().last = None;
            self.remove(ArchivedFile::Partial(name))?;
        }
        Ok(is_same)
    }

    /// Whether these first bytes of a segment contain all complete records of its partial segment.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn has_records_of_partial(&self, name: SegmentName, archived: &[u8]) -> Result<bool, SpoolError> {
        let partial = ArchivedFile::Partial(name).to_string();
        let read = || {
            let content = self.disk.open(&partial)?;
            let Some(records) = find_records(name, self.size, &*content)? else { return Ok((0, Vec::new())) };
            let start = self.size.offset_of(records.first);
            let mut bytes = vec![0; records.end.bytes_since(records.first) as usize];
            content.read_exact_at(&mut bytes, start)?;
            Ok((start as usize, bytes))
        };
        let (start, received) = read().map_err(|source| self.failed("read", &partial, source))?;
        Ok(archived.get(start..).is_some_and(|archived| archived.starts_with(&received)))
    }

    /// The end of the complete records in a partial segment; its start if the file is missing or has no complete record.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn partial_end(&self, name: SegmentName) -> Result<Lsn, SpoolError> {
        let start = self.size.start_of(name.number(self.size).unwrap_or_default());
        if !self.has_partial(name)? {
            return Ok(start);
        }
        let partial = ArchivedFile::Partial(name).to_string();
        let find = || find_records(name, self.size, &*self.disk.open(&partial)?);
        let records = find().map_err(|source| self.failed("read", &partial, source))?;
        Ok(records.map_or(start, |records| records.end))
    }

    /// Writes the first bytes of a segment to a durable file: a complete segment, or a partial one with zeros after the bytes. Replaces a
    /// partial segment.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn restore(&self, name: SegmentName, bytes: &[u8]) -> Result<(), SpoolError> {
        let partial = ArchivedFile::Partial(name).to_string();
        let is_complete = bytes.len() as u64 == self.size.bytes();
        let target = if is_complete { name.to_string() } else { partial.clone() };
        let unfinished = format!("{partial}{UNFINISHED}");
        let has_partial = self.has_partial(name)?;
        let _making = self.making();
        let written = self.or_remove(&unfinished, || {
            let file = self.take_spare(&unfinished)?;
            file.write_all_at(bytes, 0)?;
            file.sync()?;
            self.disk.rename(&unfinished, &target)?;
            if is_complete && has_partial {
                self.disk.remove(&partial)?;
            }
            self.disk.sync_names()
        });
        self.shared().last = None;
        written.map_err(|source| self.failed("write", &target, source))
    }

    /// Keeps a timeline's history, durable.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn keep_history(&self, timeline: Timeline, content: &[u8]) -> Result<(), SpoolError> {
        let name = ArchivedFile::History(timeline).to_string();
        let unfinished = format!("{name}{UNFINISHED}");
        let _making = self.making();
        let written = self.or_remove(&unfinished, || {
            let file = self.disk.create(&unfinished, content.len() as u64)?;
            file.write_all_at(content, 0)?;
            file.sync()?;
            self.disk.rename(&unfinished, &name)?;
            self.disk.sync_names()
        });
        written.map_err(|source| self.failed("write", &name, source))
    }

    /// The end of what is durable.
    pub fn durable(&self) -> Lsn {
        self.shared().durable
    }

    /// The timeline ended at `end`, where another one begins: what was written is no longer gone on with. What was received behind
    /// the end, from a server that has failed since, is kept, and says nothing about the other timeline.
    pub fn leave(&self, end: Lsn) {
        let mut shared = self.shared();
        (shared.current, shared.last) = (None, None);
        // Segments behind the end stay partial: the other timeline's records say nothing about the last one of theirs.
        shared.complete.retain(|open| open.end <= end);
        shared.durable = shared.durable.min(end);
        shared.verified = shared.verified.min(end);
    }

    /// Notes that a connection has ended: what comes over the next one is compared with the records that are there. What follows them
    /// is written once more, so it is durable only once it is synchronised again.
    pub fn end_connection(&self) {
        let mut shared = self.shared();
        shared.durable = shared.durable.min(shared.verified);
        if !shared.complete.is_empty() {
            // Their last record has not come as a whole: from the first of them on, all is asked for again.
            *shared = Shared { durable: shared.durable, ..Shared::default() };
        } else if let Some(current) = shared.current.take() {
            shared.last = Some(current);
        }
    }

    /// Forgets which files are open, as after an error: what they hold may not be what reading them gives.
    pub fn forget_open_files(&self) {
        *self.shared() = Shared::default();
    }

    /// Writes the next bytes of a timeline's log, which go on where the last ones ended or begin a segment. Bytes that were received
    /// before are compared.
    ///
    /// # Errors
    /// As [`Spool::open`], [`SpoolError::Different`] and [`SpoolError::Order`].
    pub fn write(&self, timeline: Timeline, start: Lsn, mut bytes: &[u8]) -> Result<(), SpoolError> {
        let mut at = start;
        while !bytes.is_empty() {
            let offset = self.size.offset_of(at);
            let mut open = self.open_at(timeline, at)?;
            if open.end != at {
                return Err(SpoolError::Order { expected: open.end, found: at });
            }
            let in_segment = (self.size.bytes() - offset).min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(in_segment);
            self.compare(&open, at, now)?;
            let partial = ArchivedFile::Partial(open.name).to_string();
            open.file.write_all_at(now, offset).map_err(|source| self.failed("write", &partial, source))?;
            (at, bytes) = (at.plus(in_segment as u64), later);
            open.end = at;
            let mut shared = self.shared();
            match self.size.offset_of(at) {
                0 => {
                    shared.complete.push(open);
                    shared.current = None;
                }
                _ => shared.current = Some(open),
            }
        }
        Ok(())
    }

    /// All records up to here have come with the right checksums.
    pub fn note_verified(&self, verified: Lsn) {
        self.shared().verified = verified;
    }

    /// Makes all that was written durable, and gives complete segments their names as soon as their last record is verified, which may
    /// end in the next one; gives back the end of what is durable.
    ///
    /// # Errors
    /// As [`Spool::open`]. What was written is not to be trusted then, and each call fails until [`Spool::forget_open_files`].
    pub fn sync(&self) -> Result<Lsn, SpoolError> {
        if self.shared().has_sync_failed {
            return Err(self.failed("synchronise", "", io::Error::other("an earlier attempt failed")));
        }
        self.sync_open_files().inspect_err(|_| self.shared().has_sync_failed = true)
    }

    fn sync_open_files(&self) -> Result<Lsn, SpoolError> {
        let (complete, current, verified) = {
            let shared = self.shared();
            (shared.complete.clone(), shared.current.clone(), shared.verified)
        };
        for open in complete.iter().chain(&current) {
            let partial = ArchivedFile::Partial(open.name).to_string();
            open.file.sync().map_err(|source| self.failed("synchronise", &partial, source))?;
            let mut shared = self.shared();
            shared.durable = shared.durable.max(open.end);
        }
        for open in complete.iter().filter(|open| open.end <= verified) {
            let (partial, name) = (ArchivedFile::Partial(open.name).to_string(), open.name.to_string());
            let rename = || {
                self.disk.rename(&partial, &name)?;
                self.disk.sync_names()
            };
            rename().map_err(|source| self.failed("rename", &partial, source))?;
            self.shared().complete.retain(|other| other.name != open.name);
        }
        Ok(self.durable())
    }

    /// Makes a file for the segment that comes next, unless there is one.
    ///
    /// # Errors
    /// As [`Spool::open`], and [`io::ErrorKind::StorageFull`] where what is received has found no room since.
    pub fn prepare(&self) -> Result<(), SpoolError> {
        let _making = self.making();
        if self.names()?.iter().any(|name| name == SPARE) {
            return Ok(());
        }
        if self.lacks_room.load(Ordering::SeqCst) {
            return Err(self.failed("create", SPARE, io::ErrorKind::StorageFull.into()));
        }
        // Under another name as long as it is filled: what has this one is whole.
        let filling = format!("filling{UNFINISHED}");
        let prepared = self.or_remove(&filling, || {
            self.disk.create(&filling, self.size.bytes())?;
            self.disk.rename(&filling, SPARE)
        });
        prepared.map_err(|source| self.failed("create", SPARE, source))
    }

    /// The segment that is received, at a position.
    fn open_at(&self, timeline: Timeline, at: Lsn) -> Result<Open, SpoolError> {
        let number = self.size.segment_of(at);
        let (name, start) = (SegmentName::new(timeline, number, self.size), self.size.start_of(number));
        let (current, last) = {
            let mut shared = self.shared();
            (shared.current.clone(), shared.last.take_if(|last| last.name == name))
        };
        if let Some(open) = current {
            return match open.name == name && open.end == at {
                true => Ok(open),
                false => Err(SpoolError::Order { expected: open.end, found: at }),
            };
        }
        let partial = ArchivedFile::Partial(name).to_string();
        let has_partial = self.names()?.contains(&partial);
        let (file, known) = match last {
            Some(last) => {
                let records = find_records(name, self.size, &*last.file);
                (last.file, records.map_err(|source| self.failed("read", &partial, source))?)
            }
            None if has_partial => {
                self.renew(name, &partial).map_err(|source| self.failed("copy", &partial, source))?
            }
            None => {
                let file = self.create_partial(&partial);
                (file.map_err(|source| self.failed("create", &partial, source))?, None)
            }
        };
        let known = known.map_or(start..start, |records| records.first..records.end);
        if at > known.end {
            return Err(SpoolError::Order { expected: known.end, found: at });
        }
        Ok(Open { name, file, known, end: at })
    }

    /// A file of zeros under a durable name.
    fn create_partial(&self, partial: &str) -> io::Result<Arc<dyn DiskFile>> {
        let unfinished = format!("{partial}{UNFINISHED}");
        let _making = self.making();
        self.or_remove(&unfinished, || {
            let file = self.take_spare(&unfinished)?;
            self.disk.rename(&unfinished, partial)?;
            self.disk.sync_names()?;
            Ok(file)
        })
    }

    /// Copies a partial segment to a new file that takes its name. Gives back which records it has.
    fn renew(&self, name: SegmentName, partial: &str) -> io::Result<(Arc<dyn DiskFile>, Option<Records>)> {
        let unfinished = format!("{partial}{UNFINISHED}");
        let _making = self.making();
        let from = self.disk.open(partial)?;
        let to = self.or_remove(&unfinished, || {
            let to = self.take_spare(&unfinished)?;
            let mut offset = 0;
            while offset < self.size.bytes() {
                let part = read_part(&*from, offset, self.size)?;
                to.write_all_at(&part, offset)?;
                offset += part.len() as u64;
            }
            to.sync()?;
            self.disk.rename(&unfinished, partial)?;
            self.disk.sync_names()?;
            Ok(to)
        })?;
        let records = find_records(name, self.size, &*to)?;
        Ok((to, records))
    }

    /// A segment's file of zeros: the one that was made ahead, for which there need be no room, else a new one.
    fn take_spare(&self, unfinished: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.disk.rename(SPARE, unfinished) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.create(unfinished, self.size.bytes())
            }
            renamed => renamed.and_then(|()| self.disk.open(unfinished)),
        }
    }

    /// Writes a file that gets its name at the end. Where that fails, it is removed: what is left of it on a full disk would keep the
    /// next attempt from finding room, as would the file that was made ahead.
    fn or_remove<T>(&self, unfinished: &str, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let written = write();
        let is_full = written.as_ref().is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        });
        if written.is_err() {
            let _ = self.disk.remove(unfinished);
        }
        if is_full {
            let _ = self.disk.remove(SPARE);
        }
        self.lacks_room.store(is_full, Ordering::SeqCst);
        written
    }

    fn making(&self) -> MutexGuard<'_, ()> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads bytes of a segment that were received; nothing if it is archived and gone.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn read(&self, name: SegmentName, range: Range<u64>) -> Result<Option<Vec<u8>>, SpoolError> {
        let (segment, partial) = (name.to_string(), ArchivedFile::Partial(name).to_string());
        // A partial segment may get its name between two looks.
        for candidate in [&segment, &partial, &segment] {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let read = self.disk.open(candidate).and_then(|file| file.read_exact_at(&mut bytes, range.start));
            match read {
                Ok(()) => return Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.failed("read", candidate, error)),
            }
        }
        Ok(None)
    }

    /// Compares records that were received before with what comes.
    fn compare(&self, open: &Open, at: Lsn, bytes: &[u8]) -> Result<(), SpoolError> {
        let (start, end) = (open.known.start.max(at), open.known.end.min(at.plus(bytes.len() as u64)));
        if start >= end {
            return Ok(());
        }
        let partial = ArchivedFile::Partial(open.name).to_string();
        let mut before = vec![0; end.bytes_since(start) as usize];
        let read = open.file.read_exact_at(&mut before, self.size.offset_of(start));
        read.map_err(|source| self.failed("read", &partial, source))?;
        let now = &bytes[start.bytes_since(at) as usize..][..before.len()];
        match before.iter().zip(now).position(|(before, now)| before != now) {
            None => Ok(()),
            Some(offset) => Err(SpoolError::Different {
                at: start.plus(offset as u64),
                name: open.name,
                path: self.disk.path(&partial),
            }),
        }
    }

    fn files(&self) -> Result<Vec<ArchivedFile>, SpoolError> {
        Ok(self.names()?.iter().filter_map(|name| ArchivedFile::parse(name)).collect())
    }

    fn names(&self) -> Result<Vec<String>, SpoolError> {
        self.disk.list().map_err(|source| self.failed("list", "", source))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, action: &'static str, name: &str, source: io::Error) -> SpoolError {
        SpoolError::Disk { action, path: self.disk.path(name), source }
    }
}

/// Bytes of a segment that are read at a time: whole pages of any size.
const PART: u64 = 1 << 20;

fn read_part(file: &dyn DiskFile, offset: u64, size: SegmentSize) -> io::Result<Vec<u8>> {
    let mut part = vec![0; PART.min(size.bytes() - offset) as usize];
    file.read_exact_at(&mut part, offset)?;
    Ok(part)
}

/// The complete records with the right checksums that a partial segment begins with. The end of a record that an earlier segment
/// begins has no checksum of its own, so it is not among them.
fn find_records(name: SegmentName, size: SegmentSize, file: &dyn DiskFile) -> io::Result<Option<Records>> {
    #[derive(Default)]
    struct Last {
        start: Lsn,
        /// The end of a switch, behind which nothing is WAL: servers may send other bytes there.
        switch_end: Option<Lsn>,
    }
    impl Visitor for Last {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            self.start = record.lsn;
            if record.header.is_switch() {
                self.switch_end = Some(record.end);
            }
            ControlFlow::Continue(())
        }
    }
    let mut part = read_part(file, 0, size)?;
    let (Ok(info), Some(start)) = (StreamInfo::of_segment(&part), name.start(size)) else { return Ok(None) };
    let info = StreamInfo { timeline: name.timeline, ..info };
    let mut decoder = Decoder::new(info, start, start.plus(size.bytes())).with_checked_padding();
    let (mut last, mut offset) = (Last::default(), 0);
    // Where the log ends is what is asked, so why it does is not.
    while let Ok(Progress::More) = decoder.push(&part, &mut last) {
        offset += part.len() as u64;
        if offset == size.bytes() {
            break;
        }
        part = read_part(file, offset, size)?;
    }
    let end = last.switch_end.unwrap_or(decoder.position().max(last.start));
    let records = |(first, _): (Lsn, Lsn)| Records { first, last: last.start, end, info };
    Ok(decoder.first().map(records))
}

/// The complete segments in a spool, which wait to be archived.
///
/// # Errors
/// The file system's.
pub fn complete_segments(spool: &Path) -> io::Result<Vec<SegmentName>> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(spool)? {
        segments.extend(entry?.file_name().to_str().and_then(SegmentName::parse));
    }
    Ok(segments)
}
