//! One WAL stream along a timeline and its ancestors.
//!
//! A promotion starts a timeline in the middle of a segment: the new timeline's first segment repeats the old
//! one's records up to the switch. Recovery reads that segment on the new timeline (`XLogFileReadAnyTLI`),
//! and so does this module.

use std::ops::ControlFlow;

use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;

use crate::inventory::{Ignored, IgnoredReason, Inventory, Run};
use crate::scan::{ScanOptions, scan_in_order};
use crate::segment_file::SegmentFile;

/// The part of a timeline that belongs to a WAL stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The timeline.
    pub timeline: Timeline,
    /// The LSN at which the stream switches to the next timeline; `None` for the last timeline.
    pub end: Option<Lsn>,
}

/// Returns the timeline on which the segment with a number is read along `stretches`, which are in WAL order.
pub fn timeline_of(stretches: &[Stretch], number: u64, size: SegmentSize) -> Option<Timeline> {
    let has_it = |stretch: &&Stretch| stretch.end.is_none_or(|end| number < size.segment_of(end));
    stretches.iter().find(has_it).map(|stretch| stretch.timeline)
}

impl Inventory {
    /// Keeps only those segments of a cluster that belong to the WAL along `stretches`, and joins them across
    /// timeline switches.
    ///
    /// The other segments are added to [`Inventory::ignored`]. No segment may remain.
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
                run.system_id == system_id
                    && run.version == segment.version
                    && run.end() == segment.start
                    && !segment.is_restarted
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

impl Run {
    /// Returns whether this WAL continues from a position on a timeline at which the state is known.
    ///
    /// The segment of a switch is on the new timeline, and repeats the old one's records. If the position is
    /// on the old timeline but in a later segment, it belongs to WAL that this run does not follow.
    pub fn goes_on_from(&self, position: Lsn, timeline: Timeline) -> bool {
        let size = self.segment_size.bytes();
        let has_it = |segment: &SegmentFile| segment.start <= position && position < segment.start.plus(size);
        let Some(index) = self.segments.iter().position(has_it) else { return false };
        let timeline_at = |index: usize| self.segments[index].name.timeline;
        let here = timeline_at(index);
        let is_first = index == 0 || timeline_at(index - 1) < here;
        here == timeline || here > timeline && is_first
    }
}

/// The WAL of a timeline, with the available segments of its ancestors.
#[derive(Debug)]
pub struct Lineage {
    /// The segments of the ancestors, then the segments of the timeline itself.
    pub run: Run,
    /// The LSN of the first record that no earlier lineage contains; `None` if no earlier lineage contains
    /// any.
    pub new_from: Option<Lsn>,
}

/// Joins each run with the runs of its ancestors if there is no gap between them, because the state of pages
/// remains known across a switch of timelines.
///
/// A timeline that ends where the next timeline starts is joined to the next timeline. A timeline with later
/// records, for example of a primary that was not stopped before its standby was promoted, is also a lineage
/// of its own, and comes first.
pub fn lineages(mut runs: Vec<Run>) -> Vec<Lineage> {
    runs.sort_by_key(|run| (run.system_id, run.version, run.timeline, run.start()));
    let mut lineages: Vec<Lineage> = Vec::with_capacity(runs.len());
    for run in runs {
        let switch = Switch::find(&run);
        let parent = switch.and_then(|switch| {
            lineages.iter().rposition(|lineage| switch.is_from(&lineage.run, &run)).map(|at| (at, switch))
        });
        let Some((at, switch)) = parent else {
            lineages.push(Lineage { run, new_from: None });
            continue;
        };
        let ancestor = &lineages[at].run;
        let before = ancestor.segments.iter().filter(|segment| segment.start < run.start()).cloned();
        let segments = before.chain(run.segments.iter().cloned()).collect();
        let is_left = ancestor.timeline == switch.previous && !goes_beyond(ancestor, run.start(), switch.lsn);
        let joined = Run { segments, ..run };
        match is_left {
            true => lineages[at].run = joined,
            false => lineages.push(Lineage { run: joined, new_from: Some(switch.lsn) }),
        }
    }
    lineages
}

/// The start of a timeline, from the record that contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Switch {
    /// LSN of the record that names the previous timeline: an end-of-recovery record or a checkpoint.
    lsn: Lsn,
    /// The previous timeline.
    previous: Timeline,
}

impl Switch {
    /// Searches the first segment of a run, which contains the switch if the run has the start of its
    /// timeline.
    fn find(run: &Run) -> Option<Switch> {
        let first = run.segments.first()?;
        if first.name.timeline < 2 {
            return None;
        }
        let mut search = SwitchSearch { timeline: first.name.timeline, found: None };
        let to = Some(first.start.plus(run.segment_size.bytes()));
        scan_in_order(run, ScanOptions::new(1).to(to), &mut search, |_| ());
        search.found
    }

    /// Returns whether `run` continues `ancestor` without a gap: `ancestor` has the previous segment, on the
    /// timeline that was left or on one of its ancestors.
    fn is_from(&self, ancestor: &Run, run: &Run) -> bool {
        let is_same = (ancestor.system_id, ancestor.version, ancestor.segment_size)
            == (run.system_id, run.version, run.segment_size);
        let size = run.segment_size.bytes();
        let before = ancestor.segments.iter().find(|segment| segment.start.plus(size) == run.start());
        let is_left = |before: &SegmentFile| {
            before.name.timeline == self.previous || ancestor.timeline == self.previous
        };
        is_same && before.is_some_and(is_left)
    }
}

struct SwitchSearch {
    timeline: Timeline,
    found: Option<Switch>,
}

impl Visitor for SwitchSearch {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.header.rmid != rmid::XLOG {
            return ControlFlow::Continue(());
        }
        let (timeline, previous) = match payload::parse(record) {
            Ok(Payload::EndOfRecovery(end)) => (end.timeline, end.previous_timeline),
            Ok(Payload::Checkpoint(checkpoint)) => (checkpoint.timeline, checkpoint.previous_timeline),
            _ => return ControlFlow::Continue(()),
        };
        if timeline != self.timeline || previous == timeline {
            return ControlFlow::Continue(());
        }
        self.found = Some(Switch { lsn: record.lsn, previous });
        ControlFlow::Break(())
    }
}

/// Returns whether a run has a record that ends after `switch`; reads it from `from` on.
fn goes_beyond(run: &Run, from: Lsn, switch: Lsn) -> bool {
    struct Beyond {
        switch: Lsn,
        found: bool,
    }
    impl Visitor for Beyond {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            self.found |= record.end > self.switch;
            if self.found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    if run.end() <= from {
        return false;
    }
    let mut beyond = Beyond { switch, found: false };
    scan_in_order(run, ScanOptions::new(1).from(Some(from)), &mut beyond, |_| ());
    beyond.found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use walden_format::lsn::SegmentName;
    use walden_format::version::Major;

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn segment(timeline: Timeline, number: u64) -> SegmentFile {
        let size = SegmentSize::new(SIZE).unwrap();
        SegmentFile::plain(Path::new(""), SegmentName::new(timeline, number, size), size)
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
            // At a segment's start: that segment belongs to the next timeline.
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
    fn a_log_goes_on_from_positions_on_its_own_timelines_alone() {
        let mut log = run(1, 2..4);
        log.segments.extend([segment(2, 4), segment(2, 5), segment(3, 6)]);
        let goes_on = |timeline, number| log.goes_on_from(Lsn(number * SIZE + 40), timeline);
        // The last number of each timeline is the segment of a switch, which contains some of that timeline.
        for (timeline, numbers) in [(1, [2, 3, 4]), (2, [4, 5, 6])] {
            assert!(numbers.iter().all(|&number| goes_on(timeline, number)), "{timeline}");
        }
        assert!(goes_on(3, 6));
        // Left before, not started yet, and missing.
        for (timeline, number) in [(1, 5), (2, 3), (3, 5), (1, 1), (3, 7)] {
            assert!(!goes_on(timeline, number), "{timeline} {number}");
        }
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
    fn another_cluster_is_not_followed() {
        let mut inventory = Inventory { runs: vec![run(1, 1..2)], ..Inventory::default() };
        inventory.follow(8, &[Stretch { timeline: 1, end: None }]);
        assert_eq!(inventory.runs.len(), 1);
        assert!(!inventory.is_one_log);
    }
}
