//! Fetching ahead of recovery: segments that `restore_command` is going to ask for lie ready when it does.
//!
//! A process of its own fills a *spool*, a folder on the file system of the server's `pg_wal`, from where segments are handed over by
//! a rename. It goes on while recovery does, and ends by itself when nothing was asked for some time or the archive has no more.
//! Objects never change, so what lies in the spool is right however long it lies there; of an archive of another cluster or another
//! place nothing is handed over, as each has a spool of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::get::{self, GetError, Incoming, PackMembers};
use crate::history::History;
use crate::name::{ArchivedFile, Object};

/// How far and how long segments are fetched ahead.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchOptions {
    /// Segments that lie ready at most.
    pub segments: usize,
    /// Segments that are fetched at the same time.
    pub threads: usize,
    /// The process ends after so long without a request.
    pub idle: Duration,
}

impl Default for PrefetchOptions {
    fn default() -> PrefetchOptions {
        PrefetchOptions { segments: 16, threads: 2, idle: Duration::from_secs(30) }
    }
}

/// Segments that lie ready.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
}

/// The file that says what was asked for last.
const POSITION: &str = "position";
/// The file that is locked by the process that fetches.
const LOCK: &str = "lock";

impl Spool {
    /// The spool for an archive, in a folder beside the segments of a server.
    pub fn new(beside: &Path, archive: &Archive) -> Spool {
        let place = blake3::hash(archive.store().location().as_bytes());
        Spool { folder: beside.join(format!("walden-prefetch-{}", &place.to_hex()[..16])) }
    }

    /// Where the segments lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Hands a segment over, if it lies ready.
    ///
    /// # Errors
    /// The file system's.
    pub fn take(&self, segment: SegmentName, target: &Path) -> io::Result<bool> {
        match fs::rename(self.folder.join(segment.to_string()), target) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::CrossesDevices) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Says what was asked for, so that what follows it is fetched.
    ///
    /// # Errors
    /// The file system's.
    pub fn note(&self, segment: SegmentName) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let temporary = self.folder.join(format!(".{POSITION}.{}.tmp", std::process::id()));
        File::create(&temporary)?.write_all(segment.to_string().as_bytes())?;
        fs::rename(temporary, self.folder.join(POSITION))
    }

    /// What was asked for last.
    fn position(&self) -> Option<SegmentName> {
        SegmentName::parse(&fs::read_to_string(self.folder.join(POSITION)).ok()?)
    }

    /// Takes the lock of the process that fetches; nothing if there is such a process.
    ///
    /// # Errors
    /// The file system's.
    pub fn lock(&self) -> io::Result<Option<File>> {
        fs::create_dir_all(&self.folder)?;
        let file = File::create(self.folder.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes segments that are none of these.
    fn keep(&self, wanted: &[SegmentName]) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let segment = name.to_str().and_then(SegmentName::parse);
            if segment.is_some_and(|segment| !wanted.contains(&segment)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    fn has(&self, segment: SegmentName) -> bool {
        self.folder.join(segment.to_string()).exists()
    }
}

/// A segment that is wanted, and the object that holds it with its bytes.
type Ahead = (SegmentName, (Object, u64));

/// Fetches segments into a spool until nothing is asked for any more; `lock` is [`Spool::lock`]'s.
///
/// # Errors
/// What kept a segment from being fetched: whoever asks for it gets the error once more, and at its right place.
pub fn prefetch(
    archive: &Archive,
    spool: &Spool,
    lock: File,
    options: &PrefetchOptions,
) -> Result<(), GetError> {
    let failed = |source| GetError::Archive { name: "segments ahead".to_owned(), source };
    let write = |source| GetError::Write { path: spool.folder.clone(), source };
    let bytes = archive.identity().map_err(failed)?.segment_bytes;
    let Some(size) = SegmentSize::new(bytes) else { return Ok(()) };
    let histories = archive.histories().map_err(failed)?;
    let way = Way { histories, size };
    let mut last = (None, Instant::now());
    loop {
        let position = spool.position();
        if position != last.0 {
            last = (position, Instant::now());
        }
        let Some(position) = position.filter(|_| last.1.elapsed() < options.idle) else { break };
        let wanted = way.ahead(archive, position, options.segments).map_err(failed)?;
        spool.keep(&wanted.iter().map(|(segment, _)| *segment).collect::<Vec<_>>()).map_err(write)?;
        let missing: Vec<_> = wanted.into_iter().filter(|(segment, _)| !spool.has(*segment)).collect();
        if missing.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        fetch(archive, spool, &missing, position, options)?;
    }
    drop(lock);
    Ok(())
}

/// Fetches segments until all are there or something later is asked for.
fn fetch(
    archive: &Archive,
    spool: &Spool,
    missing: &[Ahead],
    position: SegmentName,
    options: &PrefetchOptions,
) -> Result<(), GetError> {
    // Segments of one pack are one piece of work: each is decoded from the one before.
    let mut work: Vec<&[Ahead]> = Vec::new();
    for (at, (_, (object, _))) in missing.iter().enumerate() {
        match work.last_mut() {
            Some(run) if matches!(object, Object::Pack(_)) && run[0].1.0 == *object => {
                *run = &missing[at - run.len()..=at];
            }
            _ => work.push(&missing[at..=at]),
        }
    }
    let next = Mutex::new(work.into_iter());
    let error = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let run = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                    let Some(run) = run else { break };
                    if let Err(found) = fetch_run(archive, spool, run, position) {
                        *error.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(found);
                        break;
                    }
                }
            });
        }
    });
    error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

fn fetch_run(archive: &Archive, spool: &Spool, run: &[Ahead], position: SegmentName) -> Result<(), GetError> {
    let Some(&(first, (object, bytes))) = run.first() else { return Ok(()) };
    let failed = |source| GetError::Archive { name: first.to_string(), source };
    let Object::Pack(pack) = object else {
        return get::get(archive, ArchivedFile::Segment(first), &spool.folder.join(first.to_string()));
    };
    let mut members = PackMembers::open(archive, pack, bytes, first).map_err(failed)?;
    for (segment, _) in run {
        while members.next_segment().is_some_and(|next| next < *segment) {
            members.decode_next(&mut io::sink()).map_err(failed)?;
        }
        let mut output = Incoming::create(&spool.folder.join(segment.to_string()))?;
        members.decode_next(&mut output).map_err(failed)?;
        output.publish()?;
        // After a jump elsewhere, what follows here is of no use.
        if spool.position().is_none_or(|now| now.timeline != position.timeline || now < position) {
            break;
        }
    }
    Ok(())
}

/// Which segments follow each other.
struct Way {
    histories: BTreeMap<Timeline, History>,
    size: SegmentSize,
}

impl Way {
    /// The archived segments after a position, with their objects, up to the first that is missing.
    fn ahead(
        &self,
        archive: &Archive,
        position: SegmentName,
        count: usize,
    ) -> Result<Vec<Ahead>, ArchiveError> {
        let mut found = Vec::new();
        let mut folder = None;
        let mut at = position;
        while found.len() < count
            && let Some(number) = at.number(self.size)
        {
            let next = SegmentName::new(at.timeline, number + 1, self.size);
            // A timeline that was left goes on in the one that left it.
            let child = self.child_in(at.timeline, number + 1);
            let mut candidates = child
                .into_iter()
                .map(|timeline| SegmentName::new(timeline, number + 1, self.size))
                .chain([next]);
            let hit = loop {
                let Some(candidate) = candidates.next() else { break None };
                let key = (candidate.timeline, candidate.log);
                if folder.as_ref().is_none_or(|(known, _)| *known != key) {
                    folder = Some((key, archive.segments_beside(candidate)?));
                }
                let object =
                    folder.as_ref().and_then(|(_, folder)| folder.find(ArchivedFile::Segment(candidate)));
                if let Some(object) = object {
                    break Some((candidate, object));
                }
            };
            let Some(hit) = hit else { break };
            at = hit.0;
            found.push(hit);
        }
        Ok(found)
    }

    /// The latest timeline that left this one in a segment. Recovery that has come further stays on this one.
    fn child_in(&self, timeline: Timeline, number: u64) -> Option<Timeline> {
        let left = |history: &&History| {
            let switch: Option<Lsn> = history.end_of(timeline);
            switch.is_some_and(|switch| self.size.segment_of(switch) == number)
        };
        self.histories.values().filter(left).map(|history| history.timeline).max()
    }
}
