//! The segments that an archive has, and those of a base backup's WAL that are missing.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::inventory::snapshot::Snapshot;
use crate::objects::backup_files::WalRange;
use crate::objects::name::{ArchivedFile, Object, log_prefix};

/// The archive's segments.
pub(crate) struct Segments {
    size: SegmentSize,
    /// For each timeline, inclusive ranges of segment numbers in ascending order that neither touch nor
    /// overlap.
    ranges: BTreeMap<Timeline, Vec<(u64, u64)>>,
    /// Partial segments.
    partial: Vec<(Timeline, u64)>,
}

impl Segments {
    pub fn new(objects: &BTreeMap<Object, u64>, size: SegmentSize) -> Segments {
        let mut segments = Segments { size, ranges: BTreeMap::new(), partial: Vec::new() };
        // Sorted by their first segments.
        for object in objects.keys() {
            if let Object::File(ArchivedFile::Partial(name)) = object {
                segments.partial.extend(name.number(size).map(|number| (name.timeline, number)));
            }
            let Some((first, last)) = object.segments() else { continue };
            let (Some(from), Some(to)) = (first.number(size), last.number(size)) else { continue };
            let ranges = segments.ranges.entry(first.timeline).or_default();
            match ranges.last_mut() {
                Some(range) if from <= range.1 + 1 => range.1 = range.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        segments
    }

    /// Returns the number of a timeline's last complete segment.
    pub fn last_of(&self, timeline: Timeline) -> Option<u64> {
        self.ranges.get(&timeline)?.last().map(|range| range.1)
    }

    fn has(&self, timeline: Timeline, number: u64) -> bool {
        let ranges = self.ranges.get(&timeline).map_or(&[][..], Vec::as_slice);
        let at = ranges.partition_point(|range| range.1 < number);
        ranges.get(at).is_some_and(|range| range.0 <= number)
    }

    /// Returns the reason why recovery cannot make a backup with this WAL consistent, such as the first
    /// missing segment.
    pub fn problem_of(&self, ranges: &[WalRange]) -> Option<String> {
        if ranges.last().is_some_and(|range| range.end.is_none()) {
            // Includes a backup that is in progress.
            return Some("its end is unknown: its history file is empty, or it has no manifest".to_owned());
        }
        let missing = self.first_missing(ranges)?;
        Some(format!("{missing} is not in the archive"))
    }

    /// Returns the first segment of these ranges that is missing.
    pub fn first_missing(&self, ranges: &[WalRange]) -> Option<SegmentName> {
        let timelines: Vec<Timeline> = ranges.iter().map(|range| range.timeline).collect();
        ranges.iter().find_map(|range| self.missing_in(range, &timelines))
    }

    fn missing_in(&self, range: &WalRange, timelines: &[Timeline]) -> Option<SegmentName> {
        let (first, last) = numbers(range, self.size);
        // A timeline's last segment is complete on the timeline that continues it.
        let has = |number: u64| {
            let mut later = timelines.iter().filter(|timeline| **timeline >= range.timeline);
            later.any(|&timeline| self.has(timeline, number))
                || (number == last && self.partial.contains(&(range.timeline, number)))
        };
        // Each number is in a range that the archive has, or the search ends.
        let missing = (first..=last).find(|&number| !has(number))?;
        Some(SegmentName::new(range.timeline, missing, self.size))
    }
}

/// Returns the numbers of the first and the last segment of a range.
fn numbers(range: &WalRange, size: SegmentSize) -> (u64, u64) {
    let first = size.segment_of(range.start);
    let last = range.end.map_or(first, |end| size.segment_of(Lsn(end.0.saturating_sub(1))));
    (first, last.max(first))
}

/// Lists the segments of a backup's WAL, and returns the first one that is missing.
///
/// # Errors
/// The store's errors.
pub(crate) fn first_missing(
    archive: &Archive,
    ranges: &[WalRange],
) -> Result<Option<SegmentName>, ArchiveError> {
    let size = archive.segment_size()?;
    let mut prefixes = BTreeSet::new();
    for range in ranges {
        // The last segment of a timeline may be complete only on the one that continues it.
        for timeline in ranges.iter().map(|other| other.timeline).filter(|&it| it >= range.timeline) {
            let (first, last) = numbers(range, size);
            let (first, last) =
                (SegmentName::new(timeline, first, size), SegmentName::new(timeline, last, size));
            let of_log = |log| log_prefix(SegmentName { timeline, log, segment: 0 });
            prefixes.extend((first.log..=last.log).map(of_log));
        }
    }
    let prefixes: Vec<String> = prefixes.into_iter().collect();
    let objects = Snapshot::take(archive.store(), &prefixes)?.objects;
    Ok(Segments::new(&objects, size).first_missing(ranges))
}
