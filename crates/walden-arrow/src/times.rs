//! Finds the segments of a run with records of a time range.

use std::ops::Range;

use walden_source::inventory::Run;

use crate::segments::first_time;

/// A transaction takes its timestamp before it reserves the position of its commit in WAL, so times
/// occasionally decrease slightly: by less than this number of microseconds.
const MARGIN: i64 = 5 * 60 * 1_000_000;

/// Returns the segments that may have records whose `time` is between two times, in microseconds since
/// 1970-01-01 UTC, inclusive.
///
/// Reads a few segments, by bisection. Rows of other segments are outside the range; rows of these may have
/// any time.
pub fn segments_between(run: &Run, from: Option<i64>, to: Option<i64>) -> Range<usize> {
    let count = run.segments.len();
    // The first transaction end in the segment or later: a bound on all earlier times.
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

/// Returns the first element of a range for which `holds` is false, if it is true for all before and false
/// for all after.
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
