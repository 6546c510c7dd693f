//! Which segments of a run have records of a time.

use std::ops::Range;

use walden_source::inventory::Run;

use crate::segments::first_time;

/// A transaction takes its time before its commit gets its place in the log, so times go back a little now and then: by less than
/// this, in microseconds.
const MARGIN: i64 = 5 * 60 * 1_000_000;

/// The segments that may have records whose `time` lies between two, in microseconds since 1970-01-01 UTC, both included.
///
/// Looks into a few segments, by bisection. Rows of other segments are not of that time, rows of these may be of any.
pub fn segments_between(run: &Run, from: Option<i64>, to: Option<i64>) -> Range<usize> {
    let count = run.segments.len();
    // The first transaction end in the segment or behind; a bound on the times of what comes before.
    let first_from = |segment: usize| (segment..count).find_map(|index| first_time(run, index));
    let start = from.map_or(0, |from| {
        let ends_before =
            |segment: usize| first_from(segment + 1).is_some_and(|time| time.saturating_add(MARGIN) < from);
        partition(0..count, ends_before)
    });
    let end = to.map_or(count, |to| {
        let starts_before = |segment: usize| {
            let Some(before) = segment.checked_sub(1) else { return true };
            first_time(run, before).is_none_or(|time| time.saturating_sub(MARGIN) <= to)
        };
        partition(start..count, starts_before)
    });
    start..end.max(start)
}

/// The first of a range for which `holds` does not hold, if it holds for all before and none behind.
fn partition(range: Range<usize>, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_finds_the_border() {
        for border in 0..=9 {
            assert_eq!(partition(0..9, |index| index < border), border);
        }
        assert_eq!(partition(4..4, |_| true), 4);
    }
}
