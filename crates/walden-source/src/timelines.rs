//! One log along a timeline and its ancestors.
//!
//! A promotion begins a timeline in the middle of a segment: the new timeline's first segment repeats the old one's records up to
//! the switch. Recovery reads that segment on the new timeline (`XLogFileReadAnyTLI`), and so does a log that follows timelines.

use walden_format::lsn::{Lsn, SegmentSize, Timeline};

use crate::inventory::{Ignored, IgnoredReason, Inventory, Run, SegmentFile};

/// A timeline as far as a log follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The timeline.
    pub timeline: Timeline,
    /// Where it was left for the next one; nothing for the last.
    pub end: Option<Lsn>,
}

/// The timeline on which a log that follows `stretches` reads the segment with a number; the stretches are in the log's order.
pub fn timeline_of(stretches: &[Stretch], number: u64, size: SegmentSize) -> Option<Timeline> {
    let has_it = |stretch: &&Stretch| stretch.end.is_none_or(|end| number < size.segment_of(end));
    stretches.iter().find(has_it).map(|stretch| stretch.timeline)
}

impl Inventory {
    /// Leaves of one cluster only the segments that the log along `stretches` has, and joins them across changes of timelines.
    ///
    /// What is left out is in [`Inventory::ignored`]. Nothing may be left.
    pub fn follow(&mut self, system_id: u64, stretches: &[Stretch]) {
        let size = self.runs.iter().find(|run| run.system_id == system_id).map(|run| run.segment_size);
        let Some(size) = size else { return };
        let runs = self.runs.extract_if(.., |run| run.system_id == system_id);
        let mut segments: Vec<SegmentFile> = runs.flat_map(|run| run.segments).collect();
        let is_followed = |segment: &SegmentFile| {
            timeline_of(stretches, size.segment_of(segment.start), size) == Some(segment.name.timeline)
        };
        let ignored = segments.extract_if(.., |segment| !is_followed(segment));
        let reason = IgnoredReason::OtherTimeline;
        self.ignored.extend(ignored.map(|segment| Ignored { path: segment.path, reason }));
        segments.sort_by_key(|segment| (segment.version, segment.start));
        for segment in segments {
            let continues = |run: &&mut Run| {
                run.system_id == system_id && run.version == segment.version && run.end() == segment.start
            };
            match self.runs.last_mut().filter(continues) {
                Some(run) => {
                    run.timeline = segment.name.timeline;
                    run.segments.push(segment);
                }
                None => self.runs.push(Run {
                    system_id,
                    timeline: segment.name.timeline,
                    segment_size: segment.segment_size,
                    version: segment.version,
                    segments: vec![segment],
                }),
            }
        }
        self.is_one_log = true;
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use walden_format::lsn::SegmentName;
    use walden_format::version::Major;

    use super::*;
    use crate::open::Compression;

    const SIZE: u64 = 1 << 20;

    fn segment(timeline: Timeline, number: u64) -> SegmentFile {
        let size = SegmentSize::new(SIZE).unwrap();
        let name = SegmentName::new(timeline, number, size);
        SegmentFile {
            path: PathBuf::from(name.to_string()),
            name,
            partial: false,
            compression: Compression::None,
            member: None,
            store: None,
            needs_previous: false,
            size_on_disk: SIZE,
            start: Lsn(number * SIZE),
            version: Major::V17,
            system_id: 7,
            segment_size: size,
            page_bytes: 8192,
        }
    }

    fn run(timeline: Timeline, numbers: std::ops::Range<u64>) -> Run {
        let segments: Vec<_> = numbers.map(|number| segment(timeline, number)).collect();
        let segment_size = segments[0].segment_size;
        Run { system_id: 7, timeline, segment_size, version: Major::V17, segments }
    }

    fn names(inventory: &Inventory) -> Vec<Vec<String>> {
        let of = |run: &Run| run.segments.iter().map(|segment| segment.name.to_string()).collect();
        inventory.runs.iter().map(of).collect()
    }

    #[test]
    fn the_segment_of_a_switch_is_read_on_the_new_timeline() {
        let runs = vec![run(1, 1..6), run(2, 3..5), run(3, 4..7)];
        let mut inventory = Inventory { runs, ..Inventory::default() };
        let stretches = [
            Stretch { timeline: 1, end: Some(Lsn(3 * SIZE + 100)) },
            // At a segment's start: that segment is the next timeline's.
            Stretch { timeline: 2, end: Some(Lsn(4 * SIZE)) },
            Stretch { timeline: 3, end: None },
        ];
        inventory.follow(7, &stretches);
        let expected = [(1, 1), (1, 2), (2, 3), (3, 4), (3, 5), (3, 6)];
        let expected = expected.map(|(timeline, number)| segment(timeline, number).name.to_string());
        assert_eq!(names(&inventory), [expected.to_vec()]);
        assert_eq!(inventory.runs[0].timeline, 3);
        assert_eq!(inventory.ignored.len(), 4);
        assert!(inventory.gaps().is_empty());
    }

    #[test]
    fn a_gap_at_a_switch_is_one() {
        let mut inventory = Inventory { runs: vec![run(1, 1..4), run(2, 5..6)], ..Inventory::default() };
        let stretches =
            [Stretch { timeline: 1, end: Some(Lsn(3 * SIZE + 8)) }, Stretch { timeline: 2, end: None }];
        inventory.follow(7, &stretches);
        assert_eq!(inventory.runs.len(), 2);
        let gaps = inventory.gaps();
        assert_eq!((gaps.len(), gaps[0].segments), (1, 2));
        assert_eq!(gaps[0].last.timeline, 2);
    }

    #[test]
    fn of_another_cluster_nothing_is_followed() {
        let mut inventory = Inventory { runs: vec![run(1, 1..2)], ..Inventory::default() };
        inventory.follow(8, &[Stretch { timeline: 1, end: None }]);
        assert_eq!(inventory.runs.len(), 1);
        assert!(!inventory.is_one_log);
    }
}
