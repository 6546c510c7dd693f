//! Reports an archive's status: its contents, the queue of files to archive, and problems.

use std::collections::BTreeSet;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::Serialize;
use walden_format::lsn::{SegmentName, Timeline};

use crate::archive::{Archive, ArchiveError, LogListings};
use crate::base_backups;
use crate::inspect::list::{self, Diverging, ListOptions, Listing, Reset, RestorableRange};
use crate::inventory::gaps::{self, Gap};
use crate::inventory::verified::{self, LastRun, VerifiedAt};
use crate::objects::contents::MinimalWal;
use crate::objects::name::ArchivedFile;
use crate::objects::object::Finding;

/// An archive's contents in numbers.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Holdings {
    /// Location of the archive.
    pub location: String,
    /// System identifier of the cluster, or `None` before anything was archived.
    pub system_identifier: Option<String>,
    /// Number of complete segments.
    pub segments: u64,
    /// Number of their objects.
    pub objects: u64,
    /// Size of the segments before compression, in bytes.
    pub raw_bytes: u64,
    /// Stored size of their objects, in bytes.
    pub stored_bytes: u64,
    /// Last segment of the latest timeline.
    pub last_segment: Option<String>,
    /// Time of the first commit or abort after the last gap, in microseconds since 1970-01-01 00:00:00 UTC:
    /// the oldest moment that a base backup started after the gap and completed before this time can be
    /// restored to.
    pub oldest_restorable: Option<i64>,
    /// Time of the last commit or abort on the latest timeline. Recovery to a time can reach every moment
    /// from `oldest_restorable` up to but excluding this time.
    pub newest_restorable: Option<i64>,
    /// Reachable ranges along the latest timeline and its ancestors, in WAL order. The last range equals the
    /// two times above.
    pub restorable: Vec<RestorableRange>,
    /// Number of missing segments that do not wait to be archived.
    pub missing_segments: u64,
    /// Number of missing segments that are acknowledged.
    pub acknowledged_segments: u64,
    /// Where `pg_resetwal` started the WAL again right after missing segments that are not acknowledged.
    pub resets: Vec<Reset>,
    /// WAL that was written with `wal_level = minimal`.
    pub minimal_wal: Vec<MinimalWal>,
    /// As of [`Listing::has_all_gaps`]: else more segments may be missing.
    #[serde(rename = "gaps_complete")]
    pub has_all_gaps: bool,
    /// See [`Listing::timelines_without_segments`].
    pub timelines_without_segments: Vec<Timeline>,
    /// See [`Listing::missing_histories`].
    pub missing_histories: Vec<String>,
    /// Timelines that one server continued to write although another server had already branched off from
    /// them.
    pub diverging: Vec<Diverging>,
    /// Number of segments with a version that Walden cannot read, according to the summaries that were read,
    /// or to the last `verify` if it found more.
    pub unknown_version_segments: u64,
    /// Number of base backups in the archive.
    pub base_backups: u64,
    /// Stored bytes of their objects, also of incomplete ones.
    pub base_backup_bytes: u64,
    /// When the newest of them was started, in microseconds since 1970-01-01 00:00:00 UTC.
    pub newest_base_backup: Option<i64>,
    /// Number of objects that do not belong to an archive.
    pub unknown_objects: u64,
    /// Damaged objects among those that were read for times.
    pub unreadable: Vec<Finding>,
    /// The last run of `verify`.
    pub verified: Option<VerifiedAt>,
    /// The archive is encrypted and its keys are missing.
    #[serde(rename = "keys_missing")]
    pub are_keys_missing: bool,
    /// The results of `verify` are encrypted, as in the first versions, and no private key is configured.
    #[serde(rename = "verification_locked")]
    pub is_verification_locked: bool,
}

impl Holdings {
    /// Returns the number of missing segments from the last run of `verify` with a private key, if it exceeds
    /// the number known without one.
    pub fn missing_by_verify(&self) -> Option<u64> {
        let found = self.verified.as_ref().filter(|_| !self.has_all_gaps)?.missing_segments;
        (found > self.missing_segments).then_some(found)
    }

    /// Returns the compression ratio: bytes of WAL for each stored byte.
    pub fn ratio(&self) -> Option<f64> {
        (self.stored_bytes > 0).then(|| self.raw_bytes as f64 / self.stored_bytes as f64)
    }
}

/// Summarizes a listing of the archive. `waiting` returns the segments that wait to be archived. `waiting` is
/// called only if segments are missing.
///
/// # Errors
/// [`ArchiveError::Missing`] if no archive exists at the location, and the store's errors.
pub fn holdings(archive: &Archive, waiting: &dyn Fn() -> Vec<SegmentName>) -> Result<Holdings, ArchiveError> {
    // The queue matters even if nothing was archived yet.
    let mut listing = list::list_if_any(archive, ListOptions::default())?;
    let mut gaps = listing.as_ref().map(Listing::gaps).unwrap_or_default();
    // A segment missing from the first listing because of out-of-order archiving is waiting now or is in the
    // second listing.
    let mut waits = BTreeSet::new();
    if gaps.iter().any(Gap::is_new) {
        waits.extend(waiting().iter().map(SegmentName::to_string));
        let second = list::list(archive, ListOptions::default())?;
        gaps = gaps::in_both(&gaps, &second.gaps(), archive.segment_size()?);
        listing = Some(second);
    }
    let are_keys_missing = match &listing {
        Some(listing) => listing.are_keys_missing,
        None => archive.encrypted().are_keys_missing()?,
    };
    let unreadable = match &listing {
        Some(listing) => listing.unreadable.clone(),
        None => archive.encrypted().key_findings()?,
    };
    let last_run = verified::last(archive)?;
    let timelines = listing.as_ref().map(|listing| listing.timelines.as_slice()).unwrap_or_default();
    let sum = |number: fn(&list::TimelineListing) -> u64| timelines.iter().map(number).sum();
    let missing = |gap: &Gap| gap.segments.saturating_sub(gap.count(&waits));
    let is_lasting = |gap: &&Gap| !gap.is_new() || missing(gap) > 0;
    let lasting: Vec<&Gap> = gaps.iter().filter(is_lasting).collect();
    let restorable = listing.as_ref().map(Listing::restorable).unwrap_or_default();
    let minimal_wal: Vec<MinimalWal> =
        timelines.iter().flat_map(|timeline| timeline.minimal_wal.iter().cloned()).collect();
    let restorable = before_what_waits(restorable, &lasting, &minimal_wal);
    let newest = restorable.iter().rev().find_map(RestorableRange::commit_times);
    let backups = base_backups::Totals::list(archive)?;
    Ok(Holdings {
        base_backups: backups.backups,
        base_backup_bytes: backups.stored_bytes,
        newest_base_backup: backups.newest.map(Timestamp::as_microsecond),
        location: archive.store().location().to_owned(),
        system_identifier: listing.as_ref().map(|listing| listing.system_identifier.clone()),
        segments: sum(|timeline| timeline.segments),
        objects: sum(|timeline| timeline.objects),
        raw_bytes: sum(|timeline| timeline.raw_bytes),
        stored_bytes: sum(|timeline| timeline.stored_bytes),
        last_segment: timelines.iter().rev().find_map(|timeline| timeline.last_segment.clone()),
        oldest_restorable: newest.map(|(first, _)| first),
        newest_restorable: newest.map(|(_, last)| last),
        restorable,
        missing_segments: gaps.iter().filter(|gap| gap.is_new()).map(missing).sum(),
        acknowledged_segments: gaps.iter().filter(|gap| !gap.is_new()).map(|gap| gap.segments).sum(),
        resets: resets_after_gaps(timelines),
        minimal_wal,
        has_all_gaps: listing.as_ref().is_none_or(|listing| listing.has_all_gaps),
        timelines_without_segments: listing
            .as_ref()
            .map(|it| it.timelines_without_segments.clone())
            .unwrap_or_default(),
        missing_histories: listing.as_ref().map(|it| it.missing_histories.clone()).unwrap_or_default(),
        diverging: listing.as_ref().map(|it| it.diverging.clone()).unwrap_or_default(),
        unknown_version_segments: {
            let verified = last_run.clone().found().map_or(0, |run| run.unknown_version_segments);
            sum(|timeline| timeline.unknown_version_segments).max(verified)
        },
        unknown_objects: listing.as_ref().map_or(0, |listing: &Listing| listing.unknown.len() as u64),
        unreadable,
        are_keys_missing,
        is_verification_locked: last_run == LastRun::Locked,
        verified: last_run.found(),
    })
}

/// The resets of the WAL right after gaps that are not acknowledged.
fn resets_after_gaps(timelines: &[list::TimelineListing]) -> Vec<Reset> {
    let resets = timelines.iter().flat_map(|timeline| {
        // A range of the timeline starts after each gap.
        let is_after_gap = |reset: &&Reset| {
            let mut ranges = timeline.restorable.iter();
            ranges.any(|range| range.first_segment == reset.segment)
                && timeline.gaps.iter().any(|gap| gap.is_new() && gap.last < reset.segment)
        };
        timeline.resets.iter().filter(is_after_gap)
    });
    resets.cloned().collect()
}

/// Drops the ranges after segments that wait to be archived. Recovery reaches these ranges only once the
/// waiting segments are archived, and then no gap precedes them.
fn before_what_waits(
    mut ranges: Vec<RestorableRange>,
    lasting: &[&Gap],
    minimal_wal: &[MinimalWal],
) -> Vec<RestorableRange> {
    // Names along one timeline sort by position.
    let lasts = |pair: &[RestorableRange]| {
        let is_between = |gap: &&Gap| pair[0].last_segment < gap.first && gap.last < pair[1].first_segment;
        let is_minimal =
            |one: &MinimalWal| pair[0].last_segment < one.segment && one.segment < pair[1].first_segment;
        lasting.iter().any(is_between) || minimal_wal.iter().any(is_minimal)
    };
    if let Some(at) = ranges.windows(2).position(|pair| !lasts(pair)) {
        ranges.truncate(at + 1);
    }
    ranges
}

/// A file that a server marked as ready to be archived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuedFile {
    /// Kind and name of the file.
    pub file: ArchivedFile,
    /// Size in bytes.
    pub bytes: u64,
    /// Time since which it is ready.
    pub since: SystemTime,
}

impl QueuedFile {
    fn seconds_waited(&self, now: SystemTime) -> f64 {
        now.duration_since(self.since).unwrap_or_default().as_secs_f64()
    }
}

/// How far an archive lags behind its server.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Lag {
    /// Number of files that the server marked as ready, including archived files that it has not marked as
    /// done yet.
    pub ready_files: u64,
    /// Seconds since the oldest ready file became ready.
    pub ready_seconds: f64,
    /// The first ready file, which the server requests repeatedly until it is archived, regardless of how
    /// many files wait.
    pub next_file: Option<String>,
    /// Whether the archive lacks `next_file`.
    #[serde(rename = "next_missing")]
    pub is_next_missing: bool,
    /// Number of ready files that the archive lacks.
    pub files: u64,
    /// Size in bytes of the ready files that the archive lacks.
    pub bytes: u64,
    /// Seconds since the oldest ready file that the archive lacks became ready.
    pub seconds: f64,
}

impl Lag {
    /// Returns the lag if no file of the queue is archived.
    pub fn from_queue(queue: &[QueuedFile], now: SystemTime) -> Lag {
        let mut lag = Lag::from_ready_files(queue, now);
        queue.iter().for_each(|queued| lag.add(queued, now));
        lag
    }

    fn from_ready_files(queue: &[QueuedFile], now: SystemTime) -> Lag {
        let waited = queue.iter().map(|queued| queued.seconds_waited(now));
        let next = queue.iter().min_by_key(|queued| queued.file.archiving_order());
        Lag {
            ready_files: queue.len() as u64,
            ready_seconds: waited.fold(0.0, f64::max),
            next_file: next.map(|queued| queued.file.to_string()),
            ..Lag::default()
        }
    }

    /// Adds an unarchived file.
    fn add(&mut self, queued: &QueuedFile, now: SystemTime) {
        self.files += 1;
        self.bytes += queued.bytes;
        self.seconds = self.seconds.max(queued.seconds_waited(now));
        self.is_next_missing |= self.next_file.as_ref() == Some(&queued.file.to_string());
    }
}

/// Determines which files of a server's queue are unarchived. `is_refused` returns true for files that count
/// as unarchived although the archive has their names, because the archived content is damaged or different.
///
/// # Errors
/// Errors of the store.
pub fn lag(
    archive: &Archive,
    queue: &[QueuedFile],
    is_refused: &dyn Fn(ArchivedFile) -> bool,
    now: SystemTime,
) -> Result<Lag, ArchiveError> {
    let mut lag = Lag::from_ready_files(queue, now);
    let mut listings = LogListings::default();
    for queued in queue {
        let found = match queued.file {
            ArchivedFile::Segment(name) => listings.find(archive, name)?,
            _ => archive.find(queued.file)?,
        };
        // An object with 0 bytes is invalid. The file is refused until that object is moved away.
        let is_archived = found.is_some_and(|(_, bytes)| bytes > 0) && !is_refused(queued.file);
        if !is_archived {
            lag.add(queued, now);
        }
    }
    Ok(lag)
}
