//! Finds missing segments, and stores acknowledgements of known gaps.
//!
//! ```text
//! gaps/00000001/FIRST-LAST.json    who acknowledged the gap, when and why
//! ```
//!
//! An acknowledgement is created once and never replaced. An acknowledgement covers exactly its segments: if
//! a gap grows, the additional segments are a new gap next to the acknowledged gap.
//!
//! Missing timeline histories are not gaps and cannot be acknowledged, because recovery needs them to follow
//! a timeline to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};
use walden_format::lsn::{SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::history::{Ancestor, History};
use crate::inventory::snapshot::Snapshot;
use crate::objects::name::{ArchivedFile, HISTORY, Object, WAL, timeline_prefix};

/// Key prefix of acknowledgements.
pub const GAPS: &str = "gaps/";

/// Remedy for a missing timeline history.
pub const HISTORY_HINT: &str = "walden archive check --against DSN --repair fetches it from a server of the cluster, and walden \
                                       archive push archives a copy; without it, recovery from an earlier timeline assumes that the timeline does not exist";

/// A range of missing segments.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Gap {
    /// The first missing segment.
    pub first: String,
    /// The last missing segment.
    pub last: String,
    /// Number of missing segments.
    pub segments: u64,
    /// The acknowledgement, if the gap is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Acknowledgement>,
}

impl Gap {
    /// Returns whether the gap is not acknowledged.
    pub fn is_new(&self) -> bool {
        self.acknowledged.is_none()
    }

    /// Returns how many of these segments are in the gap.
    pub(crate) fn count(&self, segments: &BTreeSet<String>) -> u64 {
        segments.range::<String, _>(&self.first..=&self.last).count() as u64
    }
}

/// An acknowledgement of a gap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// The first segment.
    pub first: String,
    /// The last segment.
    pub last: String,
    /// Who acknowledged the gap.
    pub by: String,
    /// Time of the acknowledgement, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
    /// Why the segments are missing.
    pub reason: String,
}

impl Acknowledgement {
    /// Reconstructs an acknowledgement from its key.
    fn parse_key(key: &str) -> Option<Acknowledgement> {
        let (first, last) = key.rsplit('/').next()?.strip_suffix(".json")?.split_once('-')?;
        let reason = "encrypted: reading it needs a private key".to_owned();
        Some(Acknowledgement {
            first: first.to_owned(),
            last: last.to_owned(),
            by: "somebody".to_owned(),
            time: 0,
            reason,
        })
    }

    /// Returns the key of the acknowledgement's object.
    pub(crate) fn key(&self, timeline: u32) -> String {
        format!("{GAPS}{timeline:08X}/{}-{}.json", self.first, self.last)
    }
}

/// Reads the acknowledgements. Also returns the keys of invalid acknowledgements.
///
/// Without a private key (`is_locked`), the keys of encrypted objects still show which segments are
/// acknowledged.
///
/// # Errors
/// Errors of the store.
pub fn acknowledged(
    archive: &Archive,
    is_locked: bool,
) -> Result<(Vec<Acknowledgement>, Vec<String>), ArchiveError> {
    let mut keys = Vec::new();
    archive.store().list(GAPS, &mut |listed| keys.push(listed.key))?;
    keys.sort();
    let (mut acknowledged, mut unknown) = (Vec::new(), Vec::new());
    for key in keys {
        let parsed: io::Result<Acknowledgement> = if is_locked {
            Acknowledgement::parse_key(&key).ok_or_else(|| io::ErrorKind::InvalidData.into())
        } else {
            match archive.store().read(&key).map_err(ArchiveError::from) {
                // A damaged object acknowledges no gap and does not invalidate other acknowledgements.
                Err(error) if error.is_damage() => Err(io::Error::other(error)),
                content => serde_json::from_slice(&content?).map_err(io::Error::other),
            }
        };
        let timeline = |one: &Acknowledgement| SegmentName::parse(&one.first).map(|first| first.timeline);
        match parsed {
            // An acknowledgement that contradicts its key acknowledges no gap.
            Ok(one) if timeline(&one).is_some_and(|timeline| one.key(timeline) == key) => {
                acknowledged.push(one);
            }
            _ => unknown.push(key),
        }
    }
    Ok((acknowledged, unknown))
}

/// Returns whether objects are encrypted and no private key is configured.
pub(crate) fn is_locked(archive: &Archive) -> Result<bool, ArchiveError> {
    Ok(archive.encrypted().is_encrypted()? && archive.encrypted().options().identity.is_none())
}

/// Reads the acknowledgements, and skips invalid acknowledgements.
///
/// # Errors
/// Errors of the store.
pub(crate) fn all_acknowledged(archive: &Archive) -> Result<Vec<Acknowledgement>, ArchiveError> {
    Ok(acknowledged(archive, is_locked(archive)?)?.0)
}

/// Returns the last segment of a timeline's last acknowledged gap, according to the keys alone. A later
/// segment existed when the gap was acknowledged.
pub(crate) fn last_acknowledged(
    archive: &Archive,
    timeline: Timeline,
) -> Result<Option<SegmentName>, ArchiveError> {
    let mut last = None;
    archive.store().list(&format!("{GAPS}{timeline:08X}/"), &mut |listed| {
        let found = Acknowledgement::parse_key(&listed.key).and_then(|one| SegmentName::parse(&one.last));
        last = last.max(found.filter(|name| name.timeline == timeline));
    })?;
    Ok(last)
}

/// Returns the gaps that two listings have in common, with the acknowledgements of the second.
///
/// Segments are archived concurrently, so a segment can appear before its predecessor. A later listing no
/// longer has that gap.
pub(crate) fn in_both(before: &[Gap], after: &[Gap], size: SegmentSize) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for gap in after {
        for other in before {
            // Names on one timeline sort by position.
            let (first, last) = ((&gap.first).max(&other.first), (&gap.last).min(&other.last));
            let number = |name: &str| SegmentName::parse(name)?.number(size);
            if first <= last
                && let (Some(from), Some(to)) = (number(first), number(last))
            {
                gaps.push(Gap {
                    first: first.clone(),
                    last: last.clone(),
                    segments: to - from + 1,
                    acknowledged: gap.acknowledged.clone(),
                });
            }
        }
    }
    gaps
}

/// Splits the gap `first..=last` on one timeline at the boundaries of acknowledged ranges.
pub(crate) fn divide(
    (first, last): (SegmentName, SegmentName),
    size: SegmentSize,
    acknowledged: &[Acknowledgement],
) -> Vec<Gap> {
    let (Some(mut next), Some(end)) = (first.number(size), last.number(size)) else { return Vec::new() };
    let name = |number| SegmentName::new(first.timeline, number, size).to_string();
    let mut known: Vec<(u64, u64, &Acknowledgement)> = Vec::new();
    for one in acknowledged {
        let ends = (SegmentName::parse(&one.first), SegmentName::parse(&one.last));
        if let (Some(from), Some(to)) = ends
            && from.timeline == first.timeline
            && let (Some(from), Some(to)) = (from.number(size), to.number(size))
        {
            known.push((from, to, one));
        }
    }
    known.sort_by_key(|&(from, to, _)| (from, to));
    let mut gaps = Vec::new();
    let mut add = |from: u64, to: u64, by: Option<&Acknowledgement>| {
        let acknowledged = by.cloned();
        gaps.push(Gap { first: name(from), last: name(to), segments: to - from + 1, acknowledged });
    };
    for (from, to, one) in known {
        let (from, to) = (from.max(next), to.min(end));
        if from > to {
            continue;
        }
        if from > next {
            add(next, from - 1, None);
        }
        add(from, to, Some(one));
        next = to + 1;
    }
    if next <= end {
        add(next, end, None);
    }
    gaps
}

/// Returns the ancestors of a timeline, oldest first, from the timeline's own history or from the history of
/// a descendant.
pub(crate) fn ancestors_of(timeline: Timeline, histories: &BTreeMap<Timeline, History>) -> &[Ancestor] {
    let by_descendant = || {
        histories.values().find_map(|history| {
            let at = history.ancestors.iter().position(|ancestor| ancestor.timeline == timeline)?;
            history.ancestors.get(..at)
        })
    };
    let own = histories.get(&timeline).map(|history| history.ancestors.as_slice());
    own.or_else(by_descendant).unwrap_or_default()
}

/// Returns the timeline's last ancestor that can have a complete segment before the timeline. An ancestor
/// that starts and ends in the same segment has none, as after two promotions within one segment.
pub(crate) fn with_whole_segments(ancestors: &[Ancestor], size: SegmentSize) -> Option<&Ancestor> {
    let began_in = |at: usize| Some(size.segment_of(ancestors.get(at.checked_sub(1)?)?.end));
    let is_whole = |&at: &usize| began_in(at) != Some(size.segment_of(ancestors[at].end));
    (0..ancestors.len()).rev().find(is_whole).and_then(|at| ancestors.get(at))
}

/// Returns the number of the object's first segment, which may be a partial one.
pub(crate) fn first_number(object: Object, size: SegmentSize) -> Option<u64> {
    match object {
        Object::File(ArchivedFile::Partial(name)) => name.number(size),
        _ => object.segments()?.0.number(size),
    }
}

/// Adds segments of which the archive has only parts to the segments of their timeline, if an acknowledged
/// gap starts in them: `receive --accept-gap` acknowledges a gap from the last received record on.
pub(crate) fn add_parts(
    first_numbers: &mut BTreeMap<Timeline, u64>,
    parts: impl Iterator<Item = SegmentName>,
    acknowledged: &[Acknowledgement],
    size: SegmentSize,
) {
    for segment in parts {
        let is_lost = acknowledged.iter().any(|gap| gap.first == segment.to_string());
        if let Some(number) = segment.number(size).filter(|_| is_lost) {
            let first = first_numbers.entry(segment.timeline).or_insert(number);
            *first = number.min(*first);
        }
    }
}

/// The segments that must exist on a timeline, even if they are not archived.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Expected {
    /// Number of the segment in which the timeline starts.
    first: Option<u64>,
    /// Number of the segment after the last complete segment.
    end: Option<u64>,
}

impl Expected {
    /// Derives the expected segments from the histories and from the first segment of each timeline, complete
    /// or not. WAL before the start of the archive is not missing, whether the archive starts with its first
    /// push or was pruned. So a timeline must have only the segments that follow an archived segment, of the
    /// timeline itself or of an ancestor.
    pub fn from_histories(
        timeline: Timeline,
        histories: &BTreeMap<Timeline, History>,
        first_numbers: &BTreeMap<Timeline, u64>,
        size: SegmentSize,
    ) -> Expected {
        let ancestors = ancestors_of(timeline, histories);
        let begin = ancestors.last().map(|parent| size.segment_of(parent.end));
        let is_followed = ancestors.iter().any(|ancestor| {
            first_numbers.get(&ancestor.timeline).is_some_and(|&first| first <= size.segment_of(ancestor.end))
        });
        // Every descendant needs this timeline up to its switch, so the last switch counts.
        let switches = histories.values().filter_map(|history| history.end_of(timeline));
        let own_first = first_numbers.get(&timeline).copied();
        Expected {
            first: begin.filter(|_| is_followed).or(own_first),
            end: switches.max().map(|switch| size.segment_of(switch)),
        }
    }

    /// Also expects the segments up to `newest`, which was in the archive.
    pub fn up_to(self, newest: Option<u64>) -> Expected {
        Expected { end: self.end.max(newest.map(|newest| newest + 1)), ..self }
    }

    /// Returns the missing segments of a timeline. `ranges` are the first and last numbers of its segments,
    /// sorted by the first.
    pub fn missing(
        self,
        timeline: Timeline,
        ranges: impl IntoIterator<Item = (u64, u64)>,
        size: SegmentSize,
        acknowledged: &[Acknowledgement],
    ) -> Vec<Gap> {
        let name = |number| SegmentName::new(timeline, number, size);
        let mut missing = Vec::new();
        let mut next = self.first;
        for (from, to) in ranges {
            if let Some(next) = next.filter(|&next| next < from) {
                missing.extend(divide((name(next), name(from - 1)), size, acknowledged));
            }
            next = Some(next.unwrap_or(0).max(to + 1));
        }
        if let (Some(next), Some(end)) = (next, self.end)
            && next < end
        {
            missing.extend(divide((name(next), name(end - 1)), size, acknowledged));
        }
        missing
    }
}

/// Returns the missing segments among these objects, by timeline: gaps between a timeline's segments, and
/// missing segments from its start up to its end or its newest known segment. This includes timelines without
/// any object.
pub(crate) fn missing_among(
    objects: impl IntoIterator<Item = Object>,
    histories: &BTreeMap<Timeline, History>,
    newest_known: &BTreeMap<Timeline, SegmentName>,
    size: SegmentSize,
    acknowledged: &[Acknowledgement],
) -> Vec<(Timeline, Gap)> {
    let mut ranges: BTreeMap<Timeline, Vec<(u64, u64)>> = BTreeMap::new();
    let mut first_numbers: BTreeMap<Timeline, u64> = BTreeMap::new();
    for object in objects {
        let Some(first) = first_number(object, size) else { continue };
        let known = first_numbers.entry(object.timeline()).or_insert(first);
        *known = first.min(*known);
        if let Some(last) = object.segments().and_then(|(_, last)| last.number(size)) {
            ranges.entry(object.timeline()).or_default().push((first, last));
        }
    }
    let timelines: BTreeSet<Timeline> = ranges.keys().copied().chain(in_histories(histories)).collect();
    let mut missing = Vec::new();
    for timeline in timelines {
        let mut ranges = ranges.remove(&timeline).unwrap_or_default();
        ranges.sort_unstable();
        let newest = newest_known.get(&timeline).and_then(|name| name.number(size));
        let expected = Expected::from_histories(timeline, histories, &first_numbers, size).up_to(newest);
        let gaps = expected.missing(timeline, ranges, size, acknowledged);
        missing.extend(gaps.into_iter().map(|gap| (timeline, gap)));
    }
    missing
}

/// Returns the timelines that have a history, and the ancestors in these histories.
pub(crate) fn in_histories(histories: &BTreeMap<Timeline, History>) -> impl Iterator<Item = Timeline> {
    let ancestors =
        histories.values().flat_map(|history| history.ancestors.iter().map(|ancestor| ancestor.timeline));
    histories.keys().copied().chain(ancestors)
}

/// Returns the timelines whose history is missing, given the timelines with WAL, the timelines with a history
/// (readable or not), and the histories that were read.
///
/// Recovery finds the latest timeline by requesting one history after another (`findNewestTimeLine` in
/// `timeline.c`), so it ends before a timeline with a missing history. The first timeline in the archive
/// needs no history, because recovery that starts on it does not request one.
pub(crate) fn without_history(
    with_wal: &BTreeSet<Timeline>,
    with_history: &BTreeSet<Timeline>,
    histories: &BTreeMap<Timeline, History>,
) -> Vec<Timeline> {
    let Some(&first) = with_wal.first() else { return Vec::new() };
    let mut known = with_wal.clone();
    for history in histories.values() {
        known.extend(history.ancestors.iter().map(|ancestor| ancestor.timeline));
        known.extend(&history.without_log);
    }
    known.into_iter().filter(|timeline| *timeline > first && !with_history.contains(timeline)).collect()
}

/// Returns the archive's timelines whose history is missing although the archive has their WAL or a
/// descendant's history.
///
/// # Errors
/// Errors of the store.
pub fn timelines_without_history(archive: &Archive) -> Result<Vec<Timeline>, ArchiveError> {
    // PostgreSQL archives a history before the timeline's first segment, so the later listing of histories
    // includes it.
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    let histories = if is_locked(archive)? { BTreeMap::new() } else { archive.undamaged_histories()?.0 };
    listed_without_history(archive, &wal.objects, &histories)
}

/// Returns the timelines whose history is missing, given a listing of WAL and the histories that were read
/// after this listing.
///
/// # Errors
/// Errors of the store.
pub(crate) fn listed_without_history(
    archive: &Archive,
    wal: &BTreeMap<Object, u64>,
    histories: &BTreeMap<Timeline, History>,
) -> Result<Vec<Timeline>, ArchiveError> {
    let with_wal: BTreeSet<Timeline> = wal.keys().map(|object| object.timeline()).collect();
    let mut with_history: BTreeSet<Timeline> = BTreeSet::new();
    archive.store().list(HISTORY, &mut |listed| {
        with_history.extend(timeline_of_history(Object::parse_key(&listed.key)));
    })?;
    Ok(without_history(&with_wal, &with_history, histories))
}

/// Notice for an archive whose histories cannot be read.
pub const GAPS_UNKNOWN: &str = "without a private key, some gaps remain unknown because only histories show them: at the end of a timeline that was left, or on a timeline without segments";

/// Returns the timelines that have a history but no WAL, and lie between an earlier timeline with WAL and a
/// later timeline.
///
/// Names alone do not show why. Only the histories show whether a timeline without segments lost them, or
/// ended in the segment in which it started ([`Expected::from_histories`]). Reading histories of an encrypted
/// archive takes a private key.
pub(crate) fn without_wal(with_wal: &BTreeSet<Timeline>, with_history: &BTreeSet<Timeline>) -> Vec<Timeline> {
    let (Some(first), Some(last)) = (with_wal.first(), with_wal.last().max(with_history.last())) else {
        return Vec::new();
    };
    let is_between = |timeline: &Timeline| first < timeline && timeline < last;
    with_history.difference(with_wal).copied().filter(is_between).collect()
}

/// Returns the timeline of a history object.
pub(crate) fn timeline_of_history(object: Option<Object>) -> Option<Timeline> {
    match object {
        Some(Object::File(ArchivedFile::History(timeline))) => Some(timeline),
        _ => None,
    }
}

/// Returns whether the archive has WAL of this timeline and of an earlier timeline, so that recovery needs
/// the history of this timeline.
///
/// # Errors
/// Errors of the store.
pub(crate) fn needs_history(archive: &Archive, timeline: Timeline) -> Result<bool, ArchiveError> {
    let has_wal = |timeline: Timeline| -> Result<bool, ArchiveError> {
        let mut has_object = false;
        archive.store().list(&timeline_prefix(timeline), &mut |listed| {
            has_object |= Object::parse_key(&listed.key).is_some();
        })?;
        Ok(has_object)
    };
    // A standby repeatedly requests the history of the next timeline, which usually has no objects.
    if !has_wal(timeline)? {
        return Ok(false);
    }
    // Usually the previous timeline has WAL. Otherwise a single listing covers all earlier timelines.
    let is_earlier = |object: &Object| object.timeline() < timeline;
    Ok((timeline > 1 && has_wal(timeline - 1)?)
        || Snapshot::take(archive.store(), &[WAL.to_owned()])?.objects.keys().any(is_earlier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_are_needed_behind_the_first_timeline_that_has_wal() {
        let histories: BTreeMap<Timeline, History> = [(4, &b"1\t0/1\tx\n2\t0/2\tx\n3\t0/3\tx\n"[..])]
            .map(|(timeline, text)| (timeline, History::parse(timeline, text).unwrap()))
            .into();
        let missing = |with_wal: &[Timeline], with_history: &[Timeline], histories: &BTreeMap<_, _>| {
            let set = |timelines: &[Timeline]| timelines.iter().copied().collect::<BTreeSet<_>>();
            without_history(&set(with_wal), &set(with_history), histories)
        };
        let none = BTreeMap::new();
        assert_eq!(missing(&[1, 2, 4], &[2, 4], &histories), [3]);
        assert_eq!(missing(&[1, 2], &[], &none), [2]);
        assert_eq!(missing(&[1, 5], &[4], &histories), [2, 3, 5]);
        // An archive that starts on timeline 3, or was pruned up to the start of timeline 3.
        assert!(missing(&[3, 4], &[4], &histories).is_empty());
        assert_eq!(missing(&[3, 5], &[4], &histories), [5]);
        assert!(missing(&[], &[4], &histories).is_empty());
    }

    #[test]
    fn a_timeline_without_wal_is_named_if_others_have_some_before_and_behind_it() {
        let without = |with_wal: &[Timeline], with_history: &[Timeline]| {
            without_wal(&with_wal.iter().copied().collect(), &with_history.iter().copied().collect())
        };
        assert_eq!(without(&[1, 3], &[2, 3]), [2]);
        assert!(without(&[1, 2, 3], &[2, 3]).is_empty());
        // The newest timeline may have nothing archived yet.
        assert!(without(&[1, 2], &[2, 3]).is_empty());
        assert_eq!(without(&[1], &[2, 3]), [2]);
        // The archive starts after this timeline.
        assert!(without(&[3], &[2, 3]).is_empty());
        assert!(without(&[], &[2, 3]).is_empty());
    }

    #[test]
    fn segments_of_a_lost_timeline_are_missing() {
        const SIZE: SegmentSize = SegmentSize::DEFAULT;
        fn file(timeline: Timeline, number: u64) -> Object {
            Object::File(ArchivedFile::Segment(SegmentName::new(timeline, number, SIZE)))
        }
        let history = |timeline, text: &str| (timeline, History::parse(timeline, text.as_bytes()).unwrap());
        let second = || history(2, "1\t0/100002E8\tx\n");
        let third = || history(3, "1\t0/100002E8\tx\n2\t0/130000A0\tx\n");
        // First and last segment number of each timeline.
        let missing = |ranges: &[(Timeline, u64, u64)], histories: Vec<(Timeline, History)>| {
            let of_range = |&(timeline, first, last): &(Timeline, u64, u64)| {
                (first..=last).map(move |at| file(timeline, at))
            };
            let objects = ranges.iter().flat_map(of_range);
            let gaps = missing_among(objects, &histories.into_iter().collect(), &BTreeMap::new(), SIZE, &[]);
            let number = |name: &str| SegmentName::parse(name).unwrap().number(SIZE).unwrap();
            let gap = |(timeline, gap): (Timeline, Gap)| (timeline, number(&gap.first), number(&gap.last));
            gaps.into_iter().map(gap).collect::<Vec<_>>()
        };
        let both = || vec![second(), third()];
        assert_eq!(missing(&[(1, 1, 0x12), (2, 0x10, 0x12), (3, 0x13, 0x15)], both()), []);
        assert_eq!(missing(&[(1, 1, 0x12), (3, 0x13, 0x15)], both()), [(2, 0x10, 0x12)]);
        // Without the timeline's own history, and with a missing start of the next timeline.
        assert_eq!(missing(&[(1, 1, 0x12), (3, 0x13, 0x15)], vec![third()]), [(2, 0x10, 0x12)]);
        let found = missing(&[(1, 1, 0xE), (3, 0x14, 0x15)], both());
        assert_eq!(found, [(1, 0xF, 0xF), (2, 0x10, 0x12), (3, 0x13, 0x13)]);
        // WAL before the start of the archive is not missing.
        assert_eq!(missing(&[(3, 0x13, 0x15)], both()), []);
        assert_eq!(missing(&[(3, 0x14, 0x15)], both()), []);
        // The old primary continued, and its WAL before the switch was pruned.
        assert_eq!(missing(&[(1, 0x14, 0x18), (3, 0x14, 0x15)], both()), []);
        assert_eq!(missing(&[], both()), []);
        // A timeline that ends in the segment in which it starts has no segment of its own.
        let in_one = vec![second(), history(3, "1\t0/100002E8\tx\n2\t0/100003E8\tx\n")];
        assert_eq!(missing(&[(1, 1, 0x10), (3, 0x10, 0x15)], in_one), []);
    }

    #[test]
    fn segments_after_an_incomplete_first_one_are_missing() {
        const SIZE: SegmentSize = SegmentSize::DEFAULT;
        let complete = Object::File(ArchivedFile::Segment(segment(0xA)));
        let missing = |objects: &[Object], acknowledged: &[Acknowledgement]| {
            let objects = objects.iter().copied();
            let gaps =
                missing_among(objects, &BTreeMap::new(), &BTreeMap::new(), SIZE, acknowledged).into_iter();
            gaps.map(|(_, gap)| (gap.first.clone(), gap.last.clone(), gap.is_new())).collect::<Vec<_>>()
        };
        let gap = |first, last, is_new| (segment(first).to_string(), segment(last).to_string(), is_new);
        let partial = Object::File(ArchivedFile::Partial(segment(1)));
        assert_eq!(missing(&[partial, complete], &[]), [gap(1, 9, true)]);
        let known = [acknowledgement(1, 9)];
        assert_eq!(missing(&[partial, complete], &known), [gap(1, 9, false)]);
        // The WAL before the gap was pruned.
        assert_eq!(missing(&[complete], &known), []);
        let first_number = |parts: u32, acknowledged: &[Acknowledgement]| {
            let mut first_numbers = BTreeMap::from([(1, 0xA)]);
            add_parts(&mut first_numbers, [segment(parts)].into_iter(), acknowledged, SIZE);
            first_numbers[&1]
        };
        assert_eq!((first_number(1, &known), first_number(1, &[]), first_number(2, &known)), (1, 0xA, 0xA));
        // The timeline was left within its only segment.
        assert_eq!(missing(&[partial], &[]), []);
    }

    fn segment(number: u32) -> SegmentName {
        SegmentName { timeline: 1, log: 0, segment: number }
    }

    fn acknowledgement(first: u32, last: u32) -> Acknowledgement {
        let (first, last) = (segment(first).to_string(), segment(last).to_string());
        Acknowledgement { first, last, by: "me".to_owned(), time: 1, reason: "known".to_owned() }
    }

    /// Returns the first and last segment of each gap, and whether it is acknowledged.
    fn divided(first: u32, last: u32, acknowledged: &[(u32, u32)]) -> Vec<(u32, u32, bool)> {
        let acknowledged: Vec<_> =
            acknowledged.iter().map(|&(first, last)| acknowledgement(first, last)).collect();
        let gaps = divide((segment(first), segment(last)), SegmentSize::DEFAULT, &acknowledged);
        let number = |name: &str| SegmentName::parse(name).unwrap().segment;
        let sum: u64 = gaps.iter().map(|gap| gap.segments).sum();
        assert_eq!(sum, u64::from(last - first + 1));
        gaps.iter().map(|gap| (number(&gap.first), number(&gap.last), gap.acknowledged.is_some())).collect()
    }

    #[test]
    fn what_grows_beyond_an_acknowledgement_is_new() {
        assert_eq!(divided(5, 9, &[]), [(5, 9, false)]);
        assert_eq!(divided(5, 9, &[(5, 9)]), [(5, 9, true)]);
        assert_eq!(divided(5, 9, &[(6, 7)]), [(5, 5, false), (6, 7, true), (8, 9, false)]);
        assert_eq!(divided(4, 10, &[(5, 9)]), [(4, 4, false), (5, 9, true), (10, 10, false)]);
        assert_eq!(divided(5, 9, &[(1, 20)]), [(5, 9, true)]);
        assert_eq!(divided(5, 9, &[(8, 20), (1, 6), (5, 5)]), [(5, 6, true), (7, 7, false), (8, 9, true)]);
        assert_eq!(divided(5, 9, &[(1, 4), (10, 12)]), [(5, 9, false)]);
    }

    #[test]
    fn a_gap_is_what_two_listings_lack() {
        let gaps = |ranges: &[(u32, u32)]| -> Vec<Gap> {
            let divide = |&(first, last)| divide((segment(first), segment(last)), SegmentSize::DEFAULT, &[]);
            ranges.iter().flat_map(divide).collect()
        };
        let left = |before: &[(u32, u32)], after: &[(u32, u32)]| {
            in_both(&gaps(before), &gaps(after), SegmentSize::DEFAULT)
        };
        assert_eq!(left(&[(4, 10)], &[(4, 10)]), gaps(&[(4, 10)]));
        assert_eq!(left(&[(4, 10)], &[(5, 6), (9, 12)]), gaps(&[(5, 6), (9, 10)]));
        assert_eq!(left(&[(4, 4), (8, 8)], &[(6, 8)]), gaps(&[(8, 8)]));
        assert_eq!(left(&[(4, 5)], &[(6, 8)]), gaps(&[]));
    }
}
