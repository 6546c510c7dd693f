//! Which segments become which packs.
//!
//! Packs begin at multiples of their size in the log, so that every run, of any process, plans the same ones. A pack is planned once
//! nothing more is expected in its range: it lies before the newest segments, or the timeline was left. What is missing in it then
//! (the archive begins there, or a segment comes late) leaves shorter runs.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::{SegmentName, SegmentSize, Timeline};

use super::Stored;
use crate::archive::{Archive, ArchiveError};
use crate::stored::contents::Contents;
use crate::stored::name::{ArchivedFile, Object, PackName};
use crate::stored::object;

/// What runs are made by.
pub(super) struct Rules<'a> {
    pub size: SegmentSize,
    /// Segments of a pack at most.
    pub segments: u64,
    /// The newest segments of a timeline that are not packed.
    pub keep: u64,
    /// By timeline, the number of the segment before which all may be packed; nothing if all may.
    pub ends: Option<&'a BTreeMap<Timeline, u64>>,
    /// The timelines that others have left.
    pub left: &'a BTreeSet<Timeline>,
}

/// The fewest segments that are worth a pack.
const MIN_SEGMENTS: u64 = 2;

/// What is to be packed.
#[derive(Default)]
pub(super) struct Plan {
    /// The runs of segments that are to be packs, in the order of the log.
    pub runs: Vec<PackName>,
    /// Segments that may be packed, and belong to a pack in whose range others may not yet.
    pub unfilled_segments: u64,
    /// Segments that may be packed, and have none beside them in the range of their pack: a pack of one is no use.
    pub single_segments: u64,
}

/// Plans packs.
pub(super) fn plan(stored: &Stored, rules: &Rules<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut timelines: BTreeMap<Timeline, Vec<u64>> = BTreeMap::new();
    for name in stored.singles.keys() {
        let is_packed = stored.packs.keys().any(|pack| pack.contains(*name));
        if let Some(number) = name.number(rules.size).filter(|_| !is_packed) {
            timelines.entry(name.timeline).or_default().push(number);
        }
    }
    for (timeline, numbers) in timelines {
        let packed = stored.packs.keys().filter(|pack| pack.first.timeline == timeline);
        let newest =
            packed.filter_map(|pack| pack.last.number(rules.size)).chain(numbers.iter().copied()).max();
        let before = (newest.unwrap_or(0) + 1).saturating_sub(rules.keep);
        let before = match rules.ends {
            Some(ends) => before.min(ends.get(&timeline).copied().unwrap_or(0)),
            None => before,
        };
        plan_timeline(timeline, &numbers, before, rules, &mut plan);
    }
    plan
}

fn plan_timeline(timeline: Timeline, numbers: &[u64], before: u64, rules: &Rules<'_>, plan: &mut Plan) {
    let in_log = (1_u64 << 32) / rules.size.bytes();
    let segments = rules.segments.min(in_log);
    if segments < MIN_SEGMENTS {
        return;
    }
    // Which pack of the log a segment belongs to. The last one of a log may be shorter.
    let group_of = |number: u64| (number / in_log, number % in_log / segments);
    let group_end =
        |number: u64| (number / in_log * in_log) + ((number % in_log / segments + 1) * segments).min(in_log);
    let is_left = rules.left.contains(&timeline);
    let numbers = numbers.iter().copied().filter(|&number| number < before);
    let (numbers, unfilled): (Vec<u64>, Vec<u64>) =
        numbers.partition(|&number| is_left || group_end(number) <= before);
    plan.unfilled_segments += unfilled.len() as u64;
    let mut run: Vec<u64> = Vec::new();
    let mut close = |run: &mut Vec<u64>| {
        if let (Some(&first), Some(&last)) = (run.first(), run.last())
            && run.len() as u64 >= MIN_SEGMENTS
        {
            let name = |number| SegmentName::new(timeline, number, rules.size);
            plan.runs.push(PackName { first: name(first), last: name(last) });
        } else {
            plan.single_segments += run.len() as u64;
        }
        run.clear();
    };
    for number in numbers {
        let goes_on =
            run.last().is_some_and(|&last| last + 1 == number && group_of(last) == group_of(number));
        if !goes_on {
            close(&mut run);
        }
        run.push(number);
    }
    close(&mut run);
}

/// For each timeline, the segment after the last one that holds something of a moment or of one before it.
///
/// Everything before that is as old, unless the server's clock was set: then more or less is packed, and nothing is wrong with that.
pub(super) fn ends_before(
    archive: &Archive,
    stored: &Stored,
    moment: i64,
    size: SegmentSize,
) -> Result<BTreeMap<Timeline, u64>, ArchiveError> {
    let mut ends = BTreeMap::new();
    let singles =
        stored.singles.iter().map(|(name, bytes)| (Object::File(ArchivedFile::Segment(*name)), *bytes));
    let packs = stored.packs.iter().map(|(pack, bytes)| (Object::Pack(*pack), *bytes));
    let objects: BTreeMap<Object, u64> = singles.chain(packs).collect();
    for (object, bytes) in objects.into_iter().rev() {
        let Some((first, _)) = object.segments() else { continue };
        if ends.contains_key(&first.timeline) {
            continue;
        }
        let contents = match object::read_contents(archive.store(), object, bytes) {
            // Packed or pruned since it was listed: what is before it says as much.
            Err(error) if error.is_not_found() => continue,
            other => other?,
        };
        let old =
            contents.iter().rposition(|contents| newest_time(contents).is_some_and(|time| time <= moment));
        if let (Some(at), Some(first_number)) = (old, first.number(size)) {
            ends.insert(first.timeline, first_number + at as u64 + 1);
        }
    }
    Ok(ends)
}

/// The last moment that a segment's records name.
fn newest_time(contents: &Contents) -> Option<i64> {
    let checkpoints = contents.checkpoints.iter().map(|checkpoint| checkpoint.time);
    let points = contents.restore_points.iter().map(|point| point.time);
    checkpoints.chain(points).chain(contents.last_end_of_transaction).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: SegmentSize = SegmentSize::DEFAULT;

    fn stored(segments: impl IntoIterator<Item = u64>) -> Stored {
        let singles = segments.into_iter().map(|number| (SegmentName::new(1, number, SIZE), 1)).collect();
        Stored { singles, packs: BTreeMap::new() }
    }

    fn ranges(stored: &Stored, segments: u64, keep: u64, is_left: bool) -> Vec<(u64, u64)> {
        let left = is_left.then_some(1).into_iter().collect();
        let rules = Rules { size: SIZE, segments, keep, ends: None, left: &left };
        let number = |name: SegmentName| name.number(SIZE).unwrap();
        plan(stored, &rules).runs.into_iter().map(|run| (number(run.first), number(run.last))).collect()
    }

    #[test]
    fn packs_begin_at_multiples_and_the_newest_segments_stay() {
        let all = stored(3..=40);
        assert_eq!(ranges(&all, 8, 0, false), [(3, 7), (8, 15), (16, 23), (24, 31), (32, 39)]);
        assert_eq!(ranges(&all, 8, 4, false), [(3, 7), (8, 15), (16, 23), (24, 31)]);
        assert_eq!(ranges(&all, 8, 4, true), [(3, 7), (8, 15), (16, 23), (24, 31), (32, 36)]);
        assert_eq!(ranges(&all, 8, 100, true), []);
        assert_eq!(ranges(&all, 1, 0, true), []);
        let rules = Rules { size: SIZE, segments: 32, keep: 4, ends: None, left: &BTreeSet::new() };
        let plan = plan(&stored(33..=45), &rules);
        assert!(plan.runs.is_empty() && plan.unfilled_segments == 9);
    }

    #[test]
    fn no_pack_crosses_a_log_or_a_gap() {
        assert_eq!(ranges(&stored(250..=263), 6, 0, true), [(250, 251), (252, 255), (256, 261), (262, 263)]);
        // A single segment between gaps is no pack.
        let gaps = stored([8, 9, 10, 12, 14, 15, 16, 17, 30]);
        assert_eq!(ranges(&gaps, 8, 0, false), [(8, 10), (14, 15), (16, 17)]);
    }

    #[test]
    fn each_segment_is_in_a_run_or_counted_as_single_or_unfilled() {
        // 1 and 12 have none beside them; the pack of 30 may still be filled.
        let all = stored([1, 8, 9, 10, 12, 14, 15, 16, 17, 30]);
        let counts = |left: &BTreeSet<Timeline>| {
            let rules = Rules { size: SIZE, segments: 8, keep: 0, ends: None, left };
            let plan = plan(&all, &rules);
            let in_runs: u64 = plan.runs.iter().map(|run| run.segments()).sum();
            assert_eq!(in_runs + plan.single_segments + plan.unfilled_segments, 10);
            (plan.single_segments, plan.unfilled_segments)
        };
        assert_eq!(counts(&BTreeSet::new()), (2, 1));
        // Nothing more is expected of a timeline that was left.
        assert_eq!(counts(&BTreeSet::from([1])), (3, 0));
    }

    #[test]
    fn what_is_in_a_pack_is_not_packed_again() {
        let mut stored = stored(0..=20);
        let name = |number| SegmentName::new(1, number, SIZE);
        stored.packs.insert(PackName { first: name(0), last: name(3) }, 1);
        stored.packs.insert(PackName { first: name(16), last: name(23) }, 1);
        assert_eq!(ranges(&stored, 8, 0, false), [(4, 7), (8, 15)]);
    }
}
