//! How an archive is doing: what it holds, what waits to be archived, and what is wrong.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::Serialize;
use walden_format::lsn::{SegmentName, Timeline};

use crate::archive::{Archive, ArchiveError, LogListings};
use crate::inspect::list::{self, Diverging, ListOptions, Listing, RestorableRange};
use crate::inventory::gaps::{self, Gap};
use crate::inventory::verified::{self, LastRun, VerifiedAt};
use crate::stored::name::ArchivedFile;
use crate::stored::object::Finding;

/// What an archive holds, in numbers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Holdings {
    /// Where it is.
    pub location: String,
    /// The cluster's system identifier; none before anything was archived.
    pub system_identifier: Option<String>,
    /// Complete segments.
    pub segments: u64,
    /// Objects that hold them.
    pub objects: u64,
    /// Bytes of the segments before compression.
    pub raw_bytes: u64,
    /// Bytes of their objects.
    pub stored_bytes: u64,
    /// The last segment of the latest timeline.
    pub last_segment: Option<String>,
    /// The first commit or abort behind the last gap, in microseconds since 1970-01-01 00:00:00 UTC: the oldest moment that a base
    /// backup from before and behind the gap can be restored to.
    pub oldest_restorable: Option<i64>,
    /// The last one on the latest timeline: recovery to a time can reach every moment from the oldest one to before this one.
    pub newest_restorable: Option<i64>,
    /// What can be restored along the latest timeline and its ancestors, in the log's order: the last of these ranges is the same.
    pub restorable: Vec<RestorableRange>,
    /// Segments that are missing and do not wait to be archived.
    pub missing_segments: u64,
    /// Segments that are missing and acknowledged.
    pub acknowledged_segments: u64,
    /// As of [`Listing::has_all_gaps`]: else more segments may be missing.
    pub has_all_gaps: bool,
    /// As of [`Listing::timelines_without_segments`].
    pub timelines_without_segments: Vec<Timeline>,
    /// Timeline histories that are missing, as of [`Listing::missing_histories`].
    pub missing_histories: Vec<String>,
    /// Timelines on which one server went on while another one wrote a timeline that had left them.
    pub diverging: Vec<Diverging>,
    /// Segments of a version that Walden does not read, by the summaries that were read, or by the last `verify` if it found more.
    pub unknown_version_segments: u64,
    /// Objects that are none of an archive's.
    pub unknown_objects: u64,
    /// Objects that were looked into for times, and are damaged.
    pub unreadable: Vec<Finding>,
    /// The last run of `verify`.
    pub verified: Option<VerifiedAt>,
    /// The archive is encrypted, and its keys are not there.
    pub are_keys_missing: bool,
    /// What `verify` has found is encrypted, as by the first versions, and no private key was named.
    pub is_verification_locked: bool,
}

impl Holdings {
    /// Segments that the last run of `verify` has found missing, with a private key, and that are not known to be missing without one.
    pub fn missing_by_verify(&self) -> Option<u64> {
        let found = self.verified.as_ref().filter(|_| !self.has_all_gaps)?.missing_segments;
        (found > self.missing_segments).then_some(found)
    }

    /// Bytes of WAL for each byte stored.
    pub fn ratio(&self) -> Option<f64> {
        (self.stored_bytes > 0).then(|| self.raw_bytes as f64 / self.stored_bytes as f64)
    }
}

/// Lists an archive and sums up. `waiting` names segments that wait to be archived; it is asked only where some are missing.
///
/// # Errors
/// [`ArchiveError::Missing`] in a place that has no archive, and the store's.
pub fn holdings(archive: &Archive, waiting: &dyn Fn() -> Vec<SegmentName>) -> Result<Holdings, ArchiveError> {
    // Where nothing was archived yet, what waits is of interest all the same.
    let mut listing = list::list_if_any(archive, ListOptions::default())?;
    let mut gaps = listing.as_ref().map(Listing::gaps).unwrap_or_default();
    // What is archived out of order waits after the first listing, or is in the second.
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
    let restorable = before_what_waits(restorable, &lasting);
    let newest = restorable.iter().rev().find_map(RestorableRange::commit_times);
    Ok(Holdings {
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

/// Drops the ranges behind segments that wait to be archived. Recovery does not get to them before these are archived, and then there is no
/// gap before them.
fn before_what_waits(mut ranges: Vec<RestorableRange>, lasting: &[&Gap]) -> Vec<RestorableRange> {
    // Names along one log sort as their positions do.
    let lasts = |pair: &[RestorableRange]| {
        let is_between = |gap: &&Gap| pair[0].last_segment < gap.first && gap.last < pair[1].first_segment;
        lasting.iter().any(is_between)
    };
    if let Some(at) = ranges.windows(2).position(|pair| !lasts(pair)) {
        ranges.truncate(at + 1);
    }
    ranges
}

/// A file that a server has marked as ready to be archived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuedFile {
    /// Which.
    pub file: ArchivedFile,
    /// Its bytes.
    pub bytes: u64,
    /// Since when it is ready.
    pub since: SystemTime,
}

impl QueuedFile {
    fn seconds_waited(&self, now: SystemTime) -> f64 {
        now.duration_since(self.since).unwrap_or_default().as_secs_f64()
    }
}

/// How far an archive is behind its server.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Lag {
    /// Files that the server has marked as ready, with those that are archived and not marked as done yet.
    pub ready_files: u64,
    /// Seconds that the oldest of these has been ready.
    pub ready_seconds: f64,
    /// The first of these, which the server asks for until it is archived, however many behind it are.
    pub next_file: Option<String>,
    /// Whether the archive does not have it.
    pub is_next_missing: bool,
    /// Of the ready files, those that the archive does not have.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds that the oldest of them has waited.
    pub seconds: f64,
}

impl Lag {
    /// If nothing of a queue is archived.
    pub fn of_queue(queue: &[QueuedFile], now: SystemTime) -> Lag {
        let mut lag = Lag::of_ready(queue, now);
        queue.iter().for_each(|queued| lag.add(queued, now));
        lag
    }

    fn of_ready(queue: &[QueuedFile], now: SystemTime) -> Lag {
        let waited = queue.iter().map(|queued| queued.seconds_waited(now));
        let next = queue.iter().min_by_key(|queued| queued.file.archiving_order());
        Lag {
            ready_files: queue.len() as u64,
            ready_seconds: waited.fold(0.0, f64::max),
            next_file: next.map(|queued| queued.file.to_string()),
            ..Lag::default()
        }
    }

    /// Adds a file that is not archived.
    fn add(&mut self, queued: &QueuedFile, now: SystemTime) {
        self.files += 1;
        self.bytes += queued.bytes;
        self.seconds = self.seconds.max(queued.seconds_waited(now));
        self.is_next_missing |= self.next_file.as_ref() == Some(&queued.file.to_string());
    }
}

/// What of a server's queue is not archived. `is_refused` names files that are not although the archive has their names, as what it has
/// is damaged, or another content.
///
/// # Errors
/// The store's.
pub fn lag(
    archive: &Archive,
    queue: &[QueuedFile],
    is_refused: &dyn Fn(ArchivedFile) -> bool,
    now: SystemTime,
) -> Result<Lag, ArchiveError> {
    let mut lag = Lag::of_ready(queue, now);
    let mut listings = LogListings::default();
    for queued in queue {
        let found = match queued.file {
            ArchivedFile::Segment(name) => listings.find(archive, name)?,
            _ => archive.find(queued.file)?,
        };
        // No object was stored with 0 bytes. The file is refused until that one is moved away.
        let is_archived = found.is_some_and(|(_, bytes)| bytes > 0) && !is_refused(queued.file);
        if !is_archived {
            lag.add(queued, now);
        }
    }
    Ok(lag)
}
