//! The received WAL on this machine's disk, until it is archived.
//!
//! ```text
//! 000000010000000000000007           a complete segment that waits to be archived
//! 000000010000000000000008.partial   the segment that is being received, with zeros after the received bytes
//! 00000002.history                   a timeline history that waits to be archived
//! ```
//!
//! A partial segment of an earlier timeline than the newest is the segment in which its timeline ended, and
//! is archived as a partial segment.
//!
//! A position counts as durable once the file that holds it and, before that, the file's name were
//! synchronised. A file whose synchronisation failed is never trusted again: the operating system may return
//! bytes from memory that it will not write. So after any error, and in a new process, a partial segment is
//! copied to a new file, which then takes its name.

use std::io::{self, ErrorKind};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use walden_archive::name::ArchivedFile;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::record::Record;
use walden_format::stream::{Decoder, Progress, StreamInfo, Visitor};

use crate::disk::{Disk, DiskFile};

/// Suffix of the names of unfinished files.
const UNFINISHED: &str = ".new";
/// The file prepared for the next segment.
const SPARE: &str = "spare.new";

/// Why received WAL cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpoolError {
    /// The disk's.
    #[error("cannot {action} {}", path.display())]
    Disk {
        /// The failed operation.
        action: &'static str,
        /// Path of the segment's file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server sends other WAL than before.
    #[error(
        "the server's WAL differs from the WAL received before: at {at} in {name}, expected the bytes in {}, found other bytes",
        path.display()
    )]
    Different {
        /// The first byte that differs.
        at: Lsn,
        /// The segment.
        name: SegmentName,
        /// The file with the received bytes.
        path: PathBuf,
    },
    /// The server does not continue where the received WAL ends.
    #[error("the server sent WAL from a wrong position: expected {expected}, found {found}")]
    Order {
        /// The end of the received WAL.
        expected: Lsn,
        /// Where the server continues.
        found: Lsn,
    },
}

walden_format::diagnostics! { SpoolError {
    Self::Disk { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => "receive-disk-full" as "disk_full": "make room for the spool: until then nothing more is acknowledged, and the server keeps its WAL",
    Self::Disk { .. } => "receive-disk" as "disk": "check the spool's disk: until it works nothing more is acknowledged",
    Self::Different { .. } => "receive-different" as "different": "nothing was overwritten. The server has another history than the received WAL: it was restored, or another server answers. Compare both; to continue with the server's WAL, move the spool away and use a new archive",
    Self::Order { .. } => "receive-order" as "order": "nothing was lost: the WAL is requested again from the last complete record. If the error persists, check the network between the server and this process",
} }

/// The received WAL, except for archived segments.
pub struct Spool<'d> {
    disk: &'d dyn Disk,
    size: SegmentSize,
    /// State shared by the threads that receive and synchronise.
    shared: Mutex<Shared>,
    /// Held while a file is created. If two threads filled a file at the same time on a disk with room for
    /// one, both would fail.
    making: Mutex<()>,
    /// Whether the disk had no room for the last file that was created. No file is prepared until a file
    /// finds room again.
    lacks_room: AtomicBool,
}

#[derive(Default)]
struct Shared {
    /// Segments that are received completely and are not synchronised or not verified yet, oldest first.
    complete: Vec<Open>,
    current: Option<Open>,
    /// The segment that was being received when the last connection ended. The open file is trusted.
    last: Option<Open>,
    /// End of the durable WAL.
    durable: Lsn,
    /// End of the records that were received with the right checksums.
    verified: Lsn,
    /// Synchronising has failed: nothing is synchronised again until the files are forgotten.
    has_sync_failed: bool,
}

/// A segment that is being received.
#[derive(Clone)]
struct Open {
    name: SegmentName,
    file: Arc<dyn DiskFile>,
    /// Range of records received over an earlier connection, with which new bytes are compared.
    known: Range<Lsn>,
    /// End of the written bytes.
    end: Lsn,
}

/// Where to continue receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The timeline.
    pub timeline: Timeline,
    /// The first wanted byte, at the start of a page.
    pub start: Lsn,
    /// Information from the start of the segment, if `start` is not its first byte.
    pub info: Option<StreamInfo>,
}

/// The complete records of a segment: the start LSNs of the first and the last record, and the end LSN of the
/// last record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Records {
    first: Lsn,
    last: Lsn,
    end: Lsn,
    info: StreamInfo,
}

impl<'d> Spool<'d> {
    /// Opens the spool on a disk, and removes unfinished files.
    ///
    /// # Errors
    /// Errors of the disk, as for all functions of this type.
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

    /// Returns where to continue: in the first partial segment of the newest timeline, at the page with its
    /// last complete record. If there is no partial segment, after the last complete segment. Several partial
    /// segments exist if a process was killed before it synchronised the first one.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
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

    /// Returns the files that wait to be archived, histories first.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
    pub fn waiting(&self) -> Result<Vec<ArchivedFile>, SpoolError> {
        // A complete segment at the end of a timeline is not a partial segment: the next `sync` renames it.
        // `sync` may be running now, so `complete` is read before the names.
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

    /// Returns the partial segments.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
    pub fn partials(&self) -> Result<Vec<ArchivedFile>, SpoolError> {
        let mut files = self.files()?;
        files.retain(|file| matches!(file, ArchivedFile::Partial(_)));
        Ok(files)
    }

    /// Returns the folder of the files.
    pub fn folder(&self) -> PathBuf {
        self.disk.path("")
    }

    /// Removes an archived file.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
    pub fn remove(&self, file: ArchivedFile) -> Result<(), SpoolError> {
        let name = file.to_string();
        self.disk.remove(&name).map_err(|source| self.failed("remove", &name, source))
    }

    /// Returns whether a partial segment exists.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
    pub fn has_partial(&self, name: SegmentName) -> Result<bool, SpoolError> {
        Ok(self.names()?.contains(&ArchivedFile::Partial(name).to_string()))
    }

    /// Removes a partial segment whose complete segment is archived, if that has the same records. Returns
    /// whether it has.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
    pub fn remove_archived_partial(&self, name: SegmentName, archived: &[u8]) -> Result<bool, SpoolError> {
        let is_same = self.has_records_of_partial(name, archived)?;
        if is_same {
            // No more WAL is written to this file.
            self.shared().last = None;
            self.remove(ArchivedFile::Partial(name))?;
        }
        Ok(is_same)
    }

    /// Returns whether the first bytes of an archived segment contain all complete records of its partial
    /// segment.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
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

    /// Returns the end of the complete records in a partial segment, or the segment's start if the file is
    /// missing or has none.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
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

    /// Writes the first bytes of a segment to a durable file: a complete segment, or a partial one with zeros
    /// after the bytes. Replaces a partial segment.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
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

    /// Writes a timeline history durably.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
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

    /// Returns the end of the durable WAL.
    pub fn durable(&self) -> Lsn {
        self.shared().durable
    }

    /// Ends the current timeline at `end`, where another timeline starts: no more WAL is written to the files
    /// of the current timeline. WAL of it that was received after `end`, from a server that has failed since,
    /// is kept and does not affect the other timeline.
    pub fn leave(&self, end: Lsn) {
        let mut shared = self.shared();
        (shared.current, shared.last) = (None, None);
        // Segments after `end` stay partial: verified records of the other timeline do not verify their last
        // records.
        shared.complete.retain(|open| open.end <= end);
        shared.durable = shared.durable.min(end);
        shared.verified = shared.verified.min(end);
    }

    /// Records that a connection has ended. WAL from the next connection is compared with the complete
    /// records in the spool. WAL after these records is written again, and is durable only once it is
    /// synchronised again.
    pub fn end_connection(&self) {
        let mut shared = self.shared();
        shared.durable = shared.durable.min(shared.verified);
        if !shared.complete.is_empty() {
            // The last record of these segments is incomplete, so WAL is requested again from the first of
            // these segments on.
            *shared = Shared { durable: shared.durable, ..Shared::default() };
        } else if let Some(current) = shared.current.take() {
            shared.last = Some(current);
        }
    }

    /// Forgets the open files after an error: they may hold other bytes than reading returns.
    pub fn forget_open_files(&self) {
        *self.shared() = Shared::default();
    }

    /// Writes the next bytes of a timeline's WAL, which continue the previous bytes or start a segment.
    /// Compares them with bytes that were received before.
    ///
    /// # Errors
    /// The errors of [`Spool::open`], [`SpoolError::Different`] and [`SpoolError::Order`].
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

    /// Records that all records up to `verified` were received with the right checksums.
    pub fn note_verified(&self, verified: Lsn) {
        self.shared().verified = verified;
    }

    /// Makes all written WAL durable and returns its end. Renames each complete segment once its last record,
    /// which may end in the next segment, is verified.
    ///
    /// # Errors
    /// The errors of [`Spool::open`]. The written WAL is then not trusted, and each call fails until
    /// [`Spool::forget_open_files`].
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

    /// Creates the file for the next segment, unless it exists.
    ///
    /// # Errors
    /// The errors of [`Spool::open`], and [`io::ErrorKind::StorageFull`] if a file for received WAL has found
    /// no room since.
    pub fn prepare(&self) -> Result<(), SpoolError> {
        let _making = self.making();
        if self.names()?.iter().any(|name| name == SPARE) {
            return Ok(());
        }
        if self.lacks_room.load(Ordering::SeqCst) {
            return Err(self.failed("create", SPARE, io::ErrorKind::StorageFull.into()));
        }
        // Has another name while it is filled: a file named [`SPARE`] is complete.
        let filling = format!("filling{UNFINISHED}");
        let prepared = self.or_remove(&filling, || {
            self.disk.create(&filling, self.size.bytes())?;
            self.disk.rename(&filling, SPARE)
        });
        prepared.map_err(|source| self.failed("create", SPARE, source))
    }

    /// Opens the segment at a position for writing.
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

    /// Creates a file of zeros with a durable name.
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

    /// Copies a partial segment to a new file that takes its name. Returns the file and its complete records.
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

    /// Returns a segment's file of zeros: the prepared one, which needs no more room, or a new one.
    fn take_spare(&self, unfinished: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.disk.rename(SPARE, unfinished) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.create(unfinished, self.size.bytes())
            }
            renamed => renamed.and_then(|()| self.disk.open(unfinished)),
        }
    }

    /// Writes a file that gets its final name at the end. If that fails, removes the file, because on a full
    /// disk the remaining bytes would keep the next attempt from finding room. On a full disk, also removes
    /// the prepared file.
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

    /// Reads received bytes of a segment. Returns `None` if the segment is archived and removed.
    ///
    /// # Errors
    /// The errors of [`Spool::open`].
    pub fn read(&self, name: SegmentName, range: Range<u64>) -> Result<Option<Vec<u8>>, SpoolError> {
        let (segment, partial) = (name.to_string(), ArchivedFile::Partial(name).to_string());
        // A partial segment may be renamed between two attempts, so the full name is tried twice.
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

    /// Compares records that were received before with new bytes.
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

/// Bytes of a segment that are read at a time: a multiple of every page size.
const PART: u64 = 1 << 20;

fn read_part(file: &dyn DiskFile, offset: u64, size: SegmentSize) -> io::Result<Vec<u8>> {
    let mut part = vec![0; PART.min(size.bytes() - offset) as usize];
    file.read_exact_at(&mut part, offset)?;
    Ok(part)
}

/// Returns the complete records with the right checksums at the start of a partial segment. The rest of a
/// record that started in an earlier segment does not count, because it has no checksum of its own.
fn find_records(name: SegmentName, size: SegmentSize, file: &dyn DiskFile) -> io::Result<Option<Records>> {
    #[derive(Default)]
    struct Last {
        start: Lsn,
        /// The end LSN of a switch record. The bytes after it are not WAL, and servers may send different
        /// bytes.
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
    let (Ok(info), Some(start)) = (StreamInfo::from_first_page(&part), name.start(size)) else {
        return Ok(None);
    };
    let info = StreamInfo { timeline: name.timeline, ..info };
    let mut decoder = Decoder::new(info, start, start.plus(size.bytes())).with_checked_padding();
    let (mut last, mut offset) = (Last::default(), 0);
    // Only the end of the records matters, not the reason why they end.
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

/// Returns the complete segments in a spool, which wait to be archived.
///
/// # Errors
/// Errors of the file system.
pub fn complete_segments(spool: &Path) -> io::Result<Vec<SegmentName>> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(spool)? {
        segments.extend(entry?.file_name().to_str().and_then(SegmentName::parse));
    }
    Ok(segments)
}
