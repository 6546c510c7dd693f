//! Prefetches segments during recovery, so that they are ready when `restore_command` requests them.
//!
//! A separate process fills a *spool*, a folder on the file system of the server's `pg_wal`, and
//! `restore_command` moves segments from there by a rename. The process runs during recovery, and ends if no
//! segment is requested for some time. The spool is removed when recovery ends. Objects never change, so
//! segments in the spool stay valid indefinitely unless a power failure occurs. Segments from another archive
//! or cluster are never used: each archive has a separate spool, which records its cluster.

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
use crate::objects::name::{ArchivedFile, Object, PackName};
use crate::pending::Incoming;
use crate::restore::get::{self, GetError, PackMembers};
use crate::store::Store;

/// Limits for prefetching.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PrefetchOptions {
    /// Maximum number of segments that are ready.
    pub segments: usize,
    /// Number of segments fetched concurrently.
    pub threads: usize,
    /// The process ends if no different segment is requested for this time.
    pub idle: Duration,
}

walden_format::setters!(PrefetchOptions { segments: usize, threads: usize, idle: Duration });

impl Default for PrefetchOptions {
    fn default() -> PrefetchOptions {
        PrefetchOptions { segments: 16, threads: 2, idle: Duration::from_secs(30) }
    }
}

/// Interval between checks of the requested position.
const PAUSE: Duration = Duration::from_millis(5);
/// Interval between checks of the server's process.
const SERVER_INTERVAL: Duration = Duration::from_millis(250);
/// First pause before the archive is listed again while the position does not change. The pause doubles each
/// time to limit requests. A standby that waits at the archive's end requests the same segment repeatedly,
/// which does not count as a new request: the process ends after [`PrefetchOptions::idle`].
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// Maximum number of consecutive listings with a missing object. After each, the process searches for the
/// object that contains the segments now.
const MAX_VANISHED: u32 = 8;

/// Fetches segments into a spool until requests stop. `lock` comes from [`Spool::lock`].
///
/// # Errors
/// The error that prevented fetching a segment. The process that requests the segment encounters the same
/// error and reports it.
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
    /// Segments must be durable before they get their names.
    should_sync: bool,
    segment_bytes: u64,
    schedule: Schedule<'a>,
    outcome: Mutex<Outcome>,
}

/// Results of fetching segments.
#[derive(Default)]
struct Outcome {
    error: Option<GetError>,
    /// Number of consecutive listings with an object that has disappeared.
    vanished: u32,
    /// An object has disappeared since the listing.
    is_listing_old: bool,
}

impl<'a> Fetcher<'a> {
    /// Updates the schedule with the segments after the requested position.
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
                // Recovery ended, or its server did. The next server starts its own process.
                if server.is_some() && self.spool.server_process() != server || self.spool.is_left_over() {
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

    /// Schedules the segments after a position that are not in the spool.
    fn look_ahead(
        &self,
        next_segments: &mut NextSegments<'a>,
        packs: &mut BTreeMap<PackName, PackMembers<&'a dyn Store>>,
        position: SegmentName,
        count: usize,
    ) -> Result<(), ArchiveError> {
        let ahead = next_segments.following(position, count)?;
        // The requested segment may be taken at any moment.
        let useful: BTreeSet<_> = ahead.iter().map(|(segment, _)| *segment).chain([position]).collect();
        // An error only leaves files that take space.
        let _ = self.spool.keep(&useful);
        match self.find_keyframes(ahead, packs) {
            Ok(missing) => self.schedule.set(missing, useful),
            Err(error) if error.is_not_found() => self.lock_outcome().add_vanished(error)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the segments that are not in the spool, with their keyframes if they are in packs.
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

    /// Returns whether objects have disappeared since the last call.
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

    /// Fetches the segments that the schedule assigns.
    fn work(&self) {
        // Announcements only improve speed, so errors are ignored.
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

    /// Fetches a segment. Returns false if it is no longer needed.
    fn fetch(
        &self,
        wanted: &Wanted,
        members: &mut Option<PackMembers<&'a dyn Store>>,
    ) -> Result<bool, GetError> {
        let segment = wanted.segment;
        // Recovery may have jumped to another position.
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

    /// Handles an object that has disappeared: requests a new listing, or returns the error if new listings
    /// have not helped.
    fn add_vanished(&mut self, error: ArchiveError) -> Result<(), ArchiveError> {
        // Counted once per listing: if a pack replaced the listed objects, all remaining objects have
        // disappeared.
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

    /// All objects of a listing may be packed. This is an error only if it happens for many consecutive
    /// listings.
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
