//! Plans which segments go into which packs.
//!
//! Packs start at multiples of their size, so that every run of every process plans the same packs. A pack is
//! planned once no more segments are expected in its range: the newest segments are after it, or the timeline
//! has ended. Missing segments in the range then result in shorter runs, for example if the archive starts
//! there or a segment arrives late.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::{SegmentName, SegmentSize, Timeline};

use super::Stored;
use crate::archive::{Archive, ArchiveError};
use crate::objects::contents::Contents;
use crate::objects::name::{ArchivedFile, Object, PackName};
use crate::objects::object;

/// The rules for planning runs.
pub(super) struct Rules<'a> {
    pub size: SegmentSize,
    /// Maximum number of segments in a pack.
    pub segments: u64,
    /// Number of newest segments on a timeline that are not packed.
    pub keep: u64,
    /// For each timeline, the number of the segment before which segments may be packed, or `None` if all
    /// may.
    pub ends: Option<&'a BTreeMap<Timeline, u64>>,
    /// Timelines that other timelines have left.
    pub left: &'a BTreeSet<Timeline>,
}

/// Minimum number of segments in a pack.
const MIN_SEGMENTS: u64 = 2;

/// The plan for packing.
#[derive(Default)]
pub(super) struct Plan {
    /// The runs of segments that become packs, in WAL order.
    pub runs: Vec<PackName>,
    /// Number of segments that may be packed, but whose pack includes segments that may not be packed yet.
    pub unfilled_segments: u64,
    /// Number of segments that may be packed, but have no neighbor in the range of their pack.
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
    // Identifies the pack of a segment by the 4 GB of WAL and the pack's index in it. The last pack in these
    // 4 GB may be shorter.
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

/// Returns, for each timeline, the number after the last segment whose newest time is at or before a moment.
///
/// Earlier segments are at least as old, unless the server's clock was reset. In that case more or fewer
/// segments are packed, which is harmless.
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
            // Packed or pruned since the listing. Earlier objects give the same answer.
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

/// Returns the latest time in a segment's records.
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
        // A single segment between gaps is not packed.
        let gaps = stored([8, 9, 10, 12, 14, 15, 16, 17, 30]);
        assert_eq!(ranges(&gaps, 8, 0, false), [(8, 10), (14, 15), (16, 17)]);
    }

    #[test]
    fn each_segment_is_in_a_run_or_counted_as_single_or_unfilled() {
        // 1 and 12 have no neighbor; the pack of 30 may still be filled.
        let all = stored([1, 8, 9, 10, 12, 14, 15, 16, 17, 30]);
        let counts = |left: &BTreeSet<Timeline>| {
            let rules = Rules { size: SIZE, segments: 8, keep: 0, ends: None, left };
            let plan = plan(&all, &rules);
            let in_runs: u64 = plan.runs.iter().map(|run| run.segments()).sum();
            assert_eq!(in_runs + plan.single_segments + plan.unfilled_segments, 10);
            (plan.single_segments, plan.unfilled_segments)
        };
        assert_eq!(counts(&BTreeSet::new()), (2, 1));
        // No more segments are expected on a timeline that has ended.
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
