//! Fetching ahead of recovery: segments that `restore_command` is going to ask for lie ready when it does.
//!
//! A process of its own fills a *spool*, a folder on the file system of the server's `pg_wal`, from where segments are handed over by
//! a rename. It goes on while recovery does, and ends by itself when nothing was asked for some time; with recovery, the spool goes too.
//! Objects never change, so what lies in the spool is right however long it lies there, unless the power fails; of an archive in another
//! place nothing is handed over, as each has a spool of its own, nor of another cluster.

mod next_segments;
mod schedule;
mod spool;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use walden_format::lsn::SegmentName;

use self::next_segments::{Ahead, NextSegments};
use self::schedule::{Job, Schedule, Wanted};
pub use self::spool::Spool;
pub(crate) use self::spool::{FOLDER_PREFIX, LOCK};
use crate::archive::{Archive, ArchiveError};
use crate::out::get::{self, GetError, PackMembers};
use crate::pending::Incoming;
use crate::store::Store;
use crate::stored::name::{ArchivedFile, Object, PackName};

/// How far and how long segments are fetched ahead.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchOptions {
    /// Segments that lie ready at most.
    pub segments: usize,
    /// Segments that are fetched at the same time.
    pub threads: usize,
    /// The process ends after so long without a request for another segment than the last one.
    pub idle: Duration,
}

impl Default for PrefetchOptions {
    fn default() -> PrefetchOptions {
        PrefetchOptions { segments: 16, threads: 2, idle: Duration::from_secs(30) }
    }
}

/// Until it is looked once more what is asked for.
const PAUSE: Duration = Duration::from_millis(5);
/// How often the server's process is checked.
const SERVER_INTERVAL: Duration = Duration::from_millis(250);
/// Until the archive is listed once more, if nothing else was asked for: each time twice as long as before, as each listing is a request.
/// A standby that waits at the archive's end asks for the same segment again and again, which is nothing new: the process ends after
/// [`PrefetchOptions::idle`].
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// From so many listings, one after the other, an object may have vanished: what it held is in another one, which is looked for.
const MAX_VANISHED: u32 = 8;

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
    let identity = archive.identity().map_err(failed)?;
    let size = archive.segment_size().map_err(failed)?;
    let should_sync = spool.prepare(identity).map_err(|source| cannot_write(spool, source))?;
    let fetcher = Fetcher {
        archive,
        spool,
        should_sync,
        segment_bytes: size.bytes(),
        schedule: Schedule::new(options.threads),
        outcome: Mutex::new(Outcome::default()),
    };
    let next_segments = NextSegments::new(archive, size).map_err(failed)?;
    let result = std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| fetcher.work());
        }
        let result = fetcher.follow(next_segments, options);
        fetcher.schedule.stop();
        result
    });
    if result.is_ok() && spool.is_left_over() {
        spool.remove();
    }
    drop(lock);
    result
}

fn cannot_write(spool: &Spool, source: std::io::Error) -> GetError {
    GetError::Write { path: spool.folder().to_owned(), source }
}

struct Fetcher<'a> {
    archive: &'a Archive,
    spool: &'a Spool,
    /// Segments have to be durable before they get their names.
    should_sync: bool,
    segment_bytes: u64,
    schedule: Schedule<'a>,
    outcome: Mutex<Outcome>,
}

/// What became of segments.
#[derive(Default)]
struct Outcome {
    error: Option<GetError>,
    /// Listings, one after the other, of which an object was not there any more.
    vanished: u32,
    /// Since the listing was read last.
    is_listing_old: bool,
}

impl<'a> Fetcher<'a> {
    /// Keeps the schedule at what comes after the position.
    fn follow(&self, mut next_segments: NextSegments<'a>, options: &PrefetchOptions) -> Result<(), GetError> {
        let failed = |source| GetError::Archive { name: "segments ahead".to_owned(), source };
        let mut packs = BTreeMap::new();
        let (mut last, mut looked, mut pause) = ((None, Instant::now()), None, FIRST_LOOK);
        let (server, mut server_seen) = (self.spool.server_process(), Instant::now());
        loop {
            let position = self.spool.position();
            if position != last.0 {
                if position < last.0 {
                    self.schedule.forget_fetched();
                }
                (last, looked, pause) = ((position, Instant::now()), None, FIRST_LOOK);
            }
            let Some(position) = position.filter(|_| last.1.elapsed() < options.idle) else { return Ok(()) };
            if server_seen.elapsed() > SERVER_INTERVAL {
                server_seen = Instant::now();
                // Recovery has ended with its server, and the next one starts a process of its own.
                if server.is_some() && self.spool.server_process() != server {
                    return Ok(());
                }
            }
            if self.take_outcome()? {
                next_segments.forget_listing();
                packs.clear();
                looked = None;
            }
            let is_due = looked.is_some_and(|looked: Instant| looked.elapsed() > pause);
            if is_due || looked.is_none() {
                let count = options.segments.min(self.spool.room(self.segment_bytes));
                self.look_ahead(&mut next_segments, &mut packs, position, count).map_err(failed)?;
                looked = Some(Instant::now());
                pause *= 1 + u32::from(is_due);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Schedules what comes after a position and is not there.
    fn look_ahead(
        &self,
        next_segments: &mut NextSegments<'a>,
        packs: &mut BTreeMap<PackName, PackMembers<&'a dyn Store>>,
        position: SegmentName,
        count: usize,
    ) -> Result<(), ArchiveError> {
        let ahead = next_segments.following(position, count)?;
        // The one that is asked for now may be taken at any moment.
        let useful: BTreeSet<_> = ahead.iter().map(|(segment, _)| *segment).chain([position]).collect();
        // What is left over takes space, and is right all the same.
        let _ = self.spool.keep(&useful);
        match self.find_keyframes(ahead, packs) {
            Ok(missing) => self.schedule.set(missing, useful),
            Err(error) if error.is_not_found() => self.lock_outcome().add_vanished(error)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The segments that do not lie ready, with the keyframes of those in packs.
    fn find_keyframes(
        &self,
        ahead: Vec<Ahead>,
        packs: &mut BTreeMap<PackName, PackMembers<&'a dyn Store>>,
    ) -> Result<Vec<Wanted>, ArchiveError> {
        let used = |pack: &PackName| ahead.iter().any(|(_, (object, _))| *object == Object::Pack(*pack));
        packs.retain(|pack, _| used(pack));
        let mut missing = Vec::new();
        for ahead in ahead {
            let (segment, (object, bytes)) = ahead;
            if self.spool.has(segment) {
                continue;
            }
            let keyframe = match object {
                Object::File(_) => None,
                Object::Pack(pack) => {
                    let members = match packs.entry(pack) {
                        Entry::Occupied(members) => members.into_mut(),
                        Entry::Vacant(free) => free.insert(PackMembers::open(self.archive, pack, bytes)?),
                    };
                    Some(members.keyframe_of(segment))
                }
            };
            missing.push(Wanted::new(ahead, keyframe));
        }
        Ok(missing)
    }

    /// Whether objects have vanished since the last call.
    fn take_outcome(&self) -> Result<bool, GetError> {
        let mut outcome = self.lock_outcome();
        match outcome.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut outcome.is_listing_old)),
        }
    }

    fn lock_outcome(&self) -> std::sync::MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches what the schedule hands out.
    fn work(&self) {
        // What is announced is for speed alone.
        let announce = |coming: &BTreeSet<SegmentName>| {
            let _ = self.spool.announce(coming.iter());
        };
        while let Some(Job { segments, mut members }) = self.schedule.claim(announce) {
            let result = segments.iter().try_for_each(|wanted| {
                let result = self.fetch(wanted, &mut members);
                self.schedule.finish(wanted.segment, matches!(result, Ok(true)), announce);
                result.map(|_| ())
            });
            let is_good = result.is_ok();
            self.lock_outcome().add(result);
            self.schedule.end(&segments, members.filter(|_| is_good), announce);
        }
    }

    /// Fetches a segment; false if it is of no use any more.
    fn fetch(
        &self,
        wanted: &Wanted,
        members: &mut Option<PackMembers<&'a dyn Store>>,
    ) -> Result<bool, GetError> {
        let segment = wanted.segment;
        // After a jump elsewhere, what follows here is of no use.
        if !self.schedule.is_useful(segment) {
            return Ok(false);
        }
        let failed = |source| GetError::Archive { name: segment.to_string(), source };
        let write = |source| cannot_write(self.spool, source);
        let mut output = Incoming::create(&self.spool.path(segment)).map_err(write)?;
        match wanted.object {
            Object::Pack(pack) => {
                let members = match members {
                    Some(members) => members,
                    None => {
                        members.insert(PackMembers::open(self.archive, pack, wanted.bytes).map_err(failed)?)
                    }
                };
                members.go_to(segment).and_then(|()| members.decode_next(&mut output)).map_err(failed)?;
            }
            object @ Object::File(_) => {
                let file = ArchivedFile::Segment(segment);
                get::decode(self.archive, file, object, wanted.bytes, &mut output).map_err(failed)?;
            }
        }
        match self.should_sync {
            true => output.publish_durably(),
            false => output.publish(),
        }
        .map_err(write)?;
        Ok(true)
    }
}

impl Outcome {
    fn add(&mut self, result: Result<(), GetError>) {
        let error = match result {
            Ok(()) => {
                self.vanished = 0;
                return;
            }
            Err(GetError::Archive { name, source }) if source.is_not_found() => {
                self.add_vanished(source).err().map(|source| GetError::Archive { name, source })
            }
            Err(error) => Some(error),
        };
        self.error = error.or(self.error.take());
    }

    /// An object is not where it was listed: the listing is to be read again, unless that has not helped.
    fn add_vanished(&mut self, error: ArchiveError) -> Result<(), ArchiveError> {
        // Once for a listing: when what it has was packed, everything that is still to be fetched by it has vanished.
        self.vanished += u32::from(!self.is_listing_old);
        self.is_listing_old = true;
        if self.vanished < MAX_VANISHED { Ok(()) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Cause, StoreError};

    fn vanished() -> ArchiveError {
        let (key, location) = ("wal/1".to_owned(), "/archive".to_owned());
        ArchiveError::Store(StoreError {
            operation: "read",
            key,
            location,
            cause: Cause::NotFound,
            source: None,
        })
    }

    /// All that a listing has was packed: that is no reason to give up, unless it happens with one listing after the other.
    #[test]
    fn everything_in_a_listing_may_have_vanished() {
        let mut outcome = Outcome::default();
        for listing in 1..MAX_VANISHED {
            outcome.is_listing_old = false;
            for _ in 0..20 {
                assert!(outcome.add_vanished(vanished()).is_ok(), "listing {listing}");
            }
        }
        outcome.is_listing_old = false;
        assert!(outcome.add_vanished(vanished()).is_err());
    }
}
