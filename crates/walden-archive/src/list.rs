//! What there is: timelines, their segments, what is missing between them, and which moments can be restored to.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use walden_format::lsn::{SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::contents::RestorePoint;
use crate::gaps::{self, Acknowledgement};
use crate::get;
use crate::history::History;
use crate::name::{ArchivedFile, BACKUP, HISTORY, Object, WAL};
use crate::parts;
use crate::snapshot::Snapshot;
use crate::store::Listed;

pub use crate::gaps::Gap;

/// What an archive holds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Listing {
    /// Where it is.
    pub location: String,
    /// The cluster's system identifier.
    pub system_identifier: String,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The objects are encrypted.
    pub encrypted: bool,
    /// The objects could not be looked into, as no private key was named: parents of timelines, times and restore points are missing.
    pub locked: bool,
    /// The timelines, in ascending order.
    pub timelines: Vec<TimelineListing>,
    /// Backup history files, by name.
    pub backups: Vec<String>,
    /// Objects that are none of an archive's.
    pub unknown: Vec<String>,
}

impl Listing {
    /// What is missing, of all timelines.
    pub fn gaps(&self) -> Vec<Gap> {
        self.timelines.iter().flat_map(|timeline| timeline.gaps.iter().cloned()).collect()
    }
}

/// What an archive holds of a timeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TimelineListing {
    /// The timeline.
    pub timeline: Timeline,
    /// The timeline that it descends from, if its history is archived.
    pub parent: Option<Timeline>,
    /// Where it left that timeline.
    pub begins_at: Option<String>,
    /// The first segment.
    pub first_segment: Option<String>,
    /// The last segment.
    pub last_segment: Option<String>,
    /// Complete segments.
    pub segments: u64,
    /// The last segment of a timeline that was left, if archived.
    pub partial_segment: Option<String>,
    /// The end of what is archived of the segment that is being written, as `walden receive --ack-after archive` does.
    pub live_end: Option<String>,
    /// Segments missing between the first and the last, and up to where another timeline left this one.
    pub gaps: Vec<Gap>,
    /// Bytes of the segments before compression.
    pub raw_bytes: u64,
    /// Bytes of their objects.
    pub stored_bytes: u64,
    /// Objects that hold them.
    pub objects: u64,
    /// The first commit or abort, in microseconds since 1970-01-01 00:00:00 UTC.
    pub first_commit_time: Option<i64>,
    /// The last one: the latest moment that recovery to a time can reach.
    pub last_commit_time: Option<i64>,
    /// Named restore points, in the segments that were looked into.
    pub restore_points: Vec<RestorePoint>,
}

/// How much of the archive is read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ListOptions {
    /// Read the summary of each segment, for all restore points, in place of those that the first and last moments need.
    pub all_summaries: bool,
}

/// Lists an archive.
///
/// # Errors
/// The store's, and summaries that cannot be read.
pub fn list(archive: &Archive, options: ListOptions) -> Result<Listing, ArchiveError> {
    Ok(list_objects(archive, Some(options))?.0)
}

/// Lists an archive, with all objects by what they are. Without `options` no object is read but histories, and those only if they can
/// be: the listing has no times.
pub(crate) fn list_objects(
    archive: &Archive,
    options: Option<ListOptions>,
) -> Result<(Listing, Vec<(Object, u64)>), ArchiveError> {
    let mut all = Vec::new();
    let identity = archive.identity()?.clone();
    let encrypted = archive.encrypted().is_encrypted()?;
    let locked = encrypted && archive.encrypted().options().identity.is_none();
    let mut listing = Listing {
        location: archive.store().location().to_owned(),
        system_identifier: identity.system_identifier,
        segment_bytes: identity.segment_bytes,
        encrypted,
        locked,
        timelines: Vec::new(),
        backups: Vec::new(),
        unknown: Vec::new(),
    };
    let mut timelines: BTreeMap<Timeline, BTreeMap<Object, u64>> = BTreeMap::new();
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    listing.unknown.extend(wal.unknown);
    for (object, bytes) in wal.objects {
        all.push((object, bytes));
        timelines.entry(object.timeline()).or_default().insert(object, bytes);
    }
    for prefix in [BACKUP, HISTORY] {
        archive.store().list(prefix, &mut |listed| match add_to(&mut all, &listed) {
            Some(Object::File(file @ ArchivedFile::Backup(..))) => listing.backups.push(file.to_string()),
            Some(object) => {
                timelines.entry(object.timeline()).or_default();
            }
            None => listing.unknown.push(listed.key),
        })?;
    }
    listing.backups.sort();
    let live = parts::ends(archive)?;
    for (segment, _) in &live {
        timelines.entry(segment.timeline).or_default();
    }
    let (acknowledged, unknown) = gaps::acknowledged(archive, locked)?;
    listing.unknown.extend(unknown);
    let histories = match options {
        _ if locked => BTreeMap::new(),
        Some(_) => archive.histories()?,
        None => archive.histories().unwrap_or_default(),
    };
    let size = SegmentSize::new(identity.segment_bytes).unwrap_or(SegmentSize::DEFAULT);
    let with_segments: BTreeSet<Timeline> =
        timelines.iter().filter(|(_, objects)| !objects.is_empty()).map(|(&timeline, _)| timeline).collect();
    for (timeline, objects) in timelines {
        let expected = Expected::of(timeline, &histories, &with_segments, size);
        let mut found = segments(timeline, &objects, size, &acknowledged, expected);
        if let Some(parent) = histories.get(&timeline).and_then(|history| history.parent()) {
            found.parent = Some(parent.timeline);
            found.begins_at = Some(parent.end.to_string());
        }
        // Parts of a segment that is archived were to be removed.
        let live = live.iter().find(|(segment, _)| segment.timeline == timeline);
        let live = live.filter(|(segment, _)| found.last_segment.as_ref() < Some(&segment.to_string()));
        let live_end = live.and_then(|(segment, end)| Some(segment.start(size)?.plus(u64::from(*end))));
        found.live_end = live_end.map(|end| end.to_string());
        if let Some(options) = options.filter(|_| !locked) {
            times(archive, &objects, options, &mut found)?;
        }
        listing.timelines.push(found);
    }
    all.sort_unstable();
    Ok((listing, all))
}

/// The last segment of the newest timeline that has any: where a copy of the log goes on. Nothing if the archive is empty.
///
/// # Errors
/// The store's.
pub fn newest_segment(archive: &Archive) -> Result<Option<SegmentName>, ArchiveError> {
    match archive.identity() {
        Err(ArchiveError::Missing(_)) => return Ok(None),
        other => other?,
    };
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    Ok(wal.objects.into_keys().filter_map(|object| object.segments()).map(|(_, last)| last).max())
}

/// What an object is; one that is an archive's is added to all of them.
fn add_to(all: &mut Vec<(Object, u64)>, listed: &Listed) -> Option<Object> {
    let object = Object::of_key(&listed.key)?;
    all.push((object, listed.bytes));
    Some(object)
}

/// Which segments a timeline has for certain, although they may not be archived.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// The number of the segment that it begins in.
    first: Option<u64>,
    /// The number of the segment behind the last complete one.
    end: Option<u64>,
}

impl Expected {
    /// By the histories. Where an archive begins is nobody's loss: of a timeline, only what follows archived segments is expected.
    fn of(
        timeline: Timeline,
        histories: &BTreeMap<Timeline, History>,
        with_segments: &BTreeSet<Timeline>,
        size: SegmentSize,
    ) -> Expected {
        let parent = histories.get(&timeline).and_then(History::parent);
        let parent = parent.filter(|parent| with_segments.contains(&parent.timeline));
        // Each timeline that left this one needs it up to there, and the last one needs all.
        let switches = histories.values().filter_map(|history| history.end_of(timeline));
        Expected {
            first: parent.map(|parent| size.segment_of(parent.end)),
            end: switches.max().map(|switch| size.segment_of(switch)),
        }
    }
}

/// Counts a timeline's segments and finds what is missing between them.
fn segments(
    timeline: Timeline,
    objects: &BTreeMap<Object, u64>,
    size: SegmentSize,
    acknowledged: &[Acknowledgement],
    expected: Expected,
) -> TimelineListing {
    let mut listing = TimelineListing {
        timeline,
        parent: None,
        begins_at: None,
        first_segment: None,
        last_segment: None,
        segments: 0,
        partial_segment: None,
        live_end: None,
        gaps: Vec::new(),
        raw_bytes: 0,
        stored_bytes: 0,
        objects: objects.len() as u64,
        first_commit_time: None,
        last_commit_time: None,
        restore_points: Vec::new(),
    };
    let mut ranges = Vec::new();
    for (object, bytes) in objects {
        listing.stored_bytes += bytes;
        match *object {
            Object::File(ArchivedFile::Segment(name)) => ranges.push((name, name)),
            Object::File(ArchivedFile::Partial(name)) => listing.partial_segment = Some(name.to_string()),
            Object::Pack(pack) => ranges.push((pack.first, pack.last)),
            Object::File(_) => {}
        }
    }
    ranges.sort();
    let name = |number| SegmentName::new(timeline, number, size);
    let mut next: Option<u64> = expected.first.filter(|_| !ranges.is_empty());
    for (first, last) in ranges {
        let (Some(from), Some(to)) = (first.number(size), last.number(size)) else { continue };
        listing.first_segment.get_or_insert_with(|| first.to_string());
        if let Some(next) = next.filter(|&next| next < from) {
            listing.gaps.extend(gaps::divide((name(next), name(from - 1)), size, acknowledged));
        }
        // A pack whose own objects are not removed yet counts once.
        let counted = next.unwrap_or(from).max(from);
        listing.segments += (to + 1).saturating_sub(counted);
        if next.is_none_or(|next| to + 1 > next) {
            next = Some(to + 1);
            listing.last_segment = Some(last.to_string());
        }
    }
    if let (Some(next), Some(end)) = (next, expected.end)
        && next < end
    {
        listing.gaps.extend(gaps::divide((name(next), name(end - 1)), size, acknowledged));
    }
    listing.raw_bytes = listing.segments * size.bytes();
    listing
}

/// Reads when the first and the last transaction ended, from the ends inwards until there is one.
fn times(
    archive: &Archive,
    objects: &BTreeMap<Object, u64>,
    options: ListOptions,
    listing: &mut TimelineListing,
) -> Result<(), ArchiveError> {
    let mut summaries = BTreeMap::new();
    let mut contents = |object: &Object, bytes: u64| -> Result<_, ArchiveError> {
        if let Some(known) = summaries.get(object) {
            return Ok(Clone::clone(known));
        }
        let read = get::read_contents(archive, *object, bytes)?;
        summaries.insert(*object, read.clone());
        Ok(read)
    };
    for (object, &bytes) in objects {
        if let Some(time) = contents(object, bytes)?.iter().find_map(|it| it.first_end_of_transaction) {
            listing.first_commit_time = Some(time);
            break;
        }
    }
    for (object, &bytes) in objects.iter().rev() {
        if let Some(time) = contents(object, bytes)?.iter().rev().find_map(|it| it.last_end_of_transaction) {
            listing.last_commit_time = Some(time);
            break;
        }
    }
    if options.all_summaries {
        for (object, &bytes) in objects {
            contents(object, bytes)?;
        }
    }
    listing.restore_points = summaries.into_values().flatten().flat_map(|it| it.restore_points).collect();
    // Of a segment that is in a pack and in its own object, only once.
    let mut seen = BTreeSet::new();
    listing.restore_points.retain(|point| seen.insert((point.lsn.clone(), point.name.clone())));
    Ok(())
}
