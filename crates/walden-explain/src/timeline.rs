//! Times and checkpoints by position, read in a first pass.
//!
//! A record's time is the time of the first transaction end after it. A checkpoint cycle starts at its redo
//! pointer, which precedes the checkpoint record. Neither times nor cycles are known while a segment is read,
//! so views by time or checkpoint, and bounds by time, need a first pass.

use std::ops::ControlFlow;

use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_source::clock::{Clock, StepBack};
use walden_source::inventory::Run;
use walden_source::scan::{ScanOptions, scan};

use crate::request::{Bound, ExplainError};

/// Microseconds of a second.
const SECOND: i64 = 1_000_000;

/// Times and redo pointers of the WAL.
#[derive(Clone, Debug, Default)]
pub struct Timeline<'a> {
    /// Clock by position: transactions that end after the LSN end at or after the time, in seconds since
    /// 1970-01-01 UTC.
    seconds: Vec<(Lsn, i64)>,
    /// Redo pointers of the checkpoints, including unfinished checkpoints, ascending, and the start of each
    /// checkpoint in seconds since 1970-01-01 UTC.
    pub redo: Vec<(Lsn, i64)>,
    clock: Clock,
    /// The runs that were read. The clock has whole seconds, so memory does not grow with the number of
    /// transactions. For a bound within a second, that second is read again.
    runs: &'a [Run],
    threads: usize,
}

impl<'a> Timeline<'a> {
    /// Reads all runs with `threads` threads. Damage ends a run; the pass that counts reports it.
    pub fn read(runs: &'a [Run], threads: usize, mut progress: impl FnMut(u64)) -> Timeline<'a> {
        let mut timeline = Timeline { runs, threads, ..Timeline::default() };
        let mut begun = Vec::new();
        for run in runs {
            let options = ScanOptions::new(threads);
            let mut last_end = None;
            scan(
                run,
                options,
                |_| SegmentTimes::default(),
                |outcome| {
                    timeline.append(outcome.visitor, &mut last_end, &mut begun);
                    progress(run.segment_size.bytes());
                    ControlFlow::Continue(())
                },
            );
        }
        timeline.redo.sort_unstable();
        timeline.redo.dedup_by_key(|(lsn, _)| *lsn);
        timeline.add_unfinished(begun);
        timeline
    }

    /// Adds the redo pointers in `begun` that have no checkpoint record, with the time of the last
    /// transaction end before each.
    fn add_unfinished(&mut self, mut begun: Vec<Lsn>) {
        begun.sort_unstable();
        begun.dedup();
        begun.retain(|lsn| self.redo.binary_search_by_key(lsn, |(redo, _)| *redo).is_err());
        for lsn in begun {
            let after = self.seconds.partition_point(|(from, _)| *from <= lsn);
            let second = self.seconds.get(after.saturating_sub(1)).map_or(0, |(_, second)| *second);
            self.redo.push((lsn, second));
        }
        self.redo.sort_unstable();
    }

    fn append(&mut self, times: SegmentTimes, last_end: &mut Option<Lsn>, begun: &mut Vec<Lsn>) {
        begun.extend(times.begun);
        for (start, second) in times.seconds {
            if self.seconds.last().is_none_or(|last| second > last.1) {
                self.seconds.push((start.or(*last_end).unwrap_or(Lsn(0)), second));
            }
        }
        self.clock.append(times.clock);
        *last_end = times.last_end.or(*last_end);
        self.redo.extend(times.redo);
    }

    /// The part of the clock that the range between two positions needs, starting with the second in force at
    /// the range's start.
    fn within(&self, from: Option<Lsn>, to: Option<Lsn>) -> &[(Lsn, i64)] {
        let first = from.map_or(0, |from| self.seconds.partition_point(|(lsn, _)| *lsn <= from));
        let end = to.map_or(self.seconds.len(), |to| self.seconds.partition_point(|(lsn, _)| *lsn < to));
        self.seconds.get(first.saturating_sub(1)..end).unwrap_or(&[])
    }

    /// Returns the start LSN of the records of the first transaction that ends at or after a time. The time
    /// is in microseconds since 1970-01-01 UTC; `None` if no transaction ends then.
    pub fn position_of(&self, micros: i64) -> Option<Lsn> {
        let second = micros.div_euclid(SECOND);
        let index = self.seconds.partition_point(|(_, at)| *at < second);
        let (start, found) = *self.seconds.get(index)?;
        match found == second && micros.rem_euclid(SECOND) > 0 {
            true => self.position_within(start, micros),
            false => Some(start),
        }
    }

    /// As [`Self::position_of`], for a time within a second; the first transaction that ends in this second
    /// ends after `start`.
    fn position_within(&self, start: Lsn, micros: i64) -> Option<Lsn> {
        let mut position = None;
        // Runs before the run that contains the second have no transaction end in it.
        for run in self.runs.iter().filter(|run| run.end() > start) {
            let mut last_end = start;
            let options = ScanOptions::new(self.threads).from(Some(start));
            let make = |_: usize| FirstEnd { start, micros, last_end: None, found: None };
            scan(run, options, make, |outcome| {
                if let Some(begin) = outcome.visitor.found {
                    position = Some(begin.unwrap_or(last_end));
                    return ControlFlow::Break(());
                }
                last_end = outcome.visitor.last_end.unwrap_or(last_end);
                ControlFlow::Continue(())
            });
            if position.is_some() {
                break;
            }
        }
        position
    }

    /// Returns the earliest and the latest time at which a transaction ends, in seconds since 1970-01-01 UTC;
    /// `None` if no transaction ends.
    pub fn times(&self) -> Option<(i64, i64)> {
        let (earliest, latest) = self.clock.times()?;
        Some((earliest.div_euclid(SECOND), latest.div_euclid(SECOND)))
    }

    /// Returns where the times of transactions go back, in WAL order.
    pub fn steps_back(&self) -> &[StepBack] {
        self.clock.steps_back()
    }

    /// Returns the step back that makes a bound ambiguous: transactions that end at its time or later are
    /// before and after the step.
    pub fn ambiguous(&self, bounds: [Option<Bound>; 2]) -> Option<StepBack> {
        let times = bounds.into_iter().filter_map(|bound| match bound {
            Some(Bound::Time(micros)) => Some(micros),
            _ => None,
        });
        let times: Vec<i64> = times.collect();
        let is_within = |step: &&StepBack| times.iter().any(|at| step.is_ambiguous(*at));
        self.steps_back().iter().find(is_within).copied()
    }

    /// Converts bounds to positions.
    ///
    /// # Errors
    ///
    /// [`ExplainError::TimeAfterEnd`] if no transaction ends at or after the start. An end after the last
    /// transaction is no bound.
    pub fn range(
        &self,
        from: Option<Bound>,
        to: Option<Bound>,
    ) -> Result<(Option<Lsn>, Option<Lsn>), ExplainError> {
        let position = |bound| match bound {
            Bound::Lsn(lsn) => Some(lsn),
            Bound::Time(micros) => self.position_of(micros),
        };
        let start =
            from.map(|from| position(from).ok_or(ExplainError::TimeAfterEnd(self.times()))).transpose()?;
        // No transaction ends before. A checkpoint that started by then proves that the WAL covers the time
        // since.
        let start = match (start, from) {
            (Some(Lsn(0)), Some(Bound::Time(micros))) => {
                let log_start = self.runs.iter().map(Run::start).min().unwrap_or_default();
                let first = self.redo.iter().find(|(lsn, _)| *lsn >= log_start);
                let first = first.filter(|(_, second)| *second <= micros.div_euclid(SECOND));
                Some(first.map_or(Lsn(0), |(lsn, _)| *lsn))
            }
            (start, _) => start,
        };
        Ok((start, to.and_then(position)))
    }

    /// As [`Timeline::range`], for replay on a base backup that starts at an LSN.
    ///
    /// A time means the position after the last transaction that ended before it. On a quiet server, a backup
    /// that was taken before the end of the range may start after that position: its checkpoint proves that
    /// the range ends after the backup's start. The range then ends one byte after the backup's start,
    /// because a range up to the start has no change that replay shows.
    ///
    /// # Errors
    ///
    /// As [`Timeline::range`].
    pub fn range_on_base(
        &self,
        from: Option<Bound>,
        to: Option<Bound>,
        base: Lsn,
    ) -> Result<(Option<Lsn>, Option<Lsn>), ExplainError> {
        let (start, end) = self.range(from, to)?;
        // Checkpoints have the time of their start, without fractions of seconds.
        let is_earlier =
            |micros: i64, (redo, second): &(Lsn, i64)| *redo == base && *second < micros.div_euclid(SECOND);
        let end = match (end, to) {
            (Some(end), Some(Bound::Time(micros)))
                if end < base && self.redo.iter().any(|checkpoint| is_earlier(micros, checkpoint)) =>
            {
                Some(base.plus(1))
            }
            _ => end,
        };
        Ok((start, end))
    }

    /// Splits the range between two positions into spans of `width` seconds or, without a width, of the
    /// smallest common width that yields at most `max_spans`. `None` if no transaction ends in the range.
    pub fn spans(
        &self,
        (from, to): (Option<Lsn>, Option<Lsn>),
        width: Option<i64>,
        max_spans: i64,
    ) -> Option<Spans> {
        let clock = self.within(from, to);
        let ((_, first), (_, last)) = (*clock.first()?, *clock.last()?);
        let width = width.unwrap_or_else(|| span_width(last - first, max_spans));
        let mut span = first.div_euclid(width);
        let mut spans = Spans { starts: Vec::new(), begin: span * width, width };
        for (lsn, second) in clock {
            while second.div_euclid(width) > span {
                spans.starts.push(*lsn);
                span += 1;
            }
        }
        Some(spans)
    }
}

/// Consecutive spans of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spans {
    /// The start of each span but the first.
    pub starts: Vec<Lsn>,
    /// The time at which the first span starts, in seconds since 1970-01-01 UTC.
    pub begin: i64,
    /// Width of each span in seconds.
    pub width: i64,
}

/// The smallest common width that splits `seconds` into at most `max_spans` spans.
fn span_width(seconds: i64, max_spans: i64) -> i64 {
    const USUAL: [i64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 6 * 3600];
    let fits = |width: &&i64| seconds / **width < max_spans;
    USUAL.iter().find(fits).copied().unwrap_or_else(|| (seconds / max_spans / 86_400 + 1) * 86_400)
}

#[derive(Default)]
struct SegmentTimes {
    /// The position `None` means right after the last transaction end of an earlier segment.
    seconds: Vec<(Option<Lsn>, i64)>,
    last_end: Option<Lsn>,
    redo: Vec<(Lsn, i64)>,
    begun: Vec<Lsn>,
    clock: Clock,
}

impl Visitor for SegmentTimes {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if !matches!(record.header.rmid, rmid::XLOG | rmid::XACT) {
            return ControlFlow::Continue(());
        }
        match payload::parse(record) {
            Ok(Payload::Commit(end) | Payload::Abort(end)) => {
                let micros = end.time.unix_micros();
                let second = micros.div_euclid(SECOND);
                // The server takes the time before it reserves the insert position, so times may decrease
                // slightly.
                if self.seconds.last().is_none_or(|last| second > last.1) {
                    self.seconds.push((self.last_end, second));
                }
                self.clock.add(record.lsn, micros);
                self.last_end = Some(record.end);
            }
            Ok(Payload::Checkpoint(checkpoint)) => {
                self.redo.push((checkpoint.redo, checkpoint.time));
            }
            Ok(Payload::CheckpointRedo(_)) => self.begun.push(record.lsn),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Finds the first transaction end at a time or later.
struct FirstEnd {
    /// Records before this do not count.
    start: Lsn,
    micros: i64,
    last_end: Option<Lsn>,
    /// Start of the transaction's records. The inner `None` means right after the last transaction end of an
    /// earlier segment.
    found: Option<Option<Lsn>>,
}

impl Visitor for FirstEnd {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.header.rmid != rmid::XACT || record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        if let Ok(Payload::Commit(end) | Payload::Abort(end)) = payload::parse(record) {
            if end.time.unix_micros() >= self.micros {
                self.found = Some(self.last_end);
                return ControlFlow::Break(());
            }
            self.last_end = Some(record.end);
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redo_pointer_whose_checkpoint_has_no_record_counts() {
        let seconds = vec![(Lsn(10), 100), (Lsn(20), 200), (Lsn(30), 300)];
        let redo = vec![(Lsn(12), 101), (Lsn(40), 310)];
        let mut timeline = Timeline { seconds, redo, ..Timeline::default() };
        timeline.add_unfinished(vec![Lsn(40), Lsn(25), Lsn(12), Lsn(25)]);
        assert_eq!(timeline.redo, [(Lsn(12), 101), (Lsn(25), 200), (Lsn(40), 310)]);
    }

    #[test]
    fn a_bound_between_the_times_of_a_step_back_is_ambiguous() {
        let mut clock = Clock::default();
        let times = [(1, 100), (2, 40), (3, 120), (4, 60)];
        times.iter().for_each(|&(lsn, second)| clock.add(Lsn(lsn), second * SECOND));
        let timeline = Timeline { clock, ..Timeline::default() };
        let at = |second: i64| Some(Bound::Time(second * SECOND + 1));
        let lsn = |bounds| timeline.ambiguous(bounds).map(|step| step.lsn.0);
        assert_eq!(lsn([at(50), None]), Some(2));
        assert_eq!(lsn([at(5), at(110)]), Some(4));
        assert_eq!((lsn([at(100), None]), lsn([at(120), None])), (Some(2), Some(4)));
        assert_eq!(lsn([at(5), at(130)]), None);
        assert_eq!(lsn([Some(Bound::Lsn(Lsn(50))), None]), None);
    }

    /// The source contains an hour of WAL, the range half a minute.
    #[test]
    fn a_range_is_split_by_its_own_length() {
        let seconds: Vec<(Lsn, i64)> =
            (0..3600).map(|second| (Lsn(10 * second as u64), 1000 + second)).collect();
        let timeline = Timeline { seconds, ..Timeline::default() };
        let spans = |from: Option<u64>, to: Option<u64>, width| {
            let spans = timeline.spans((from.map(Lsn), to.map(Lsn)), width, 60).unwrap();
            (spans.begin, spans.width, spans.starts.len(), spans.starts.first().map(|lsn| lsn.0))
        };
        assert_eq!(spans(None, None, None), (960, 60, 60, Some(200)));
        assert_eq!(spans(Some(20_000), Some(20_300), None), (3000, 1, 29, Some(20_010)));
        assert_eq!(spans(Some(20_005), Some(20_300), Some(10)), (3000, 10, 2, Some(20_100)));
        assert_eq!(spans(Some(99_000), None, None), (4599, 1, 0, None), "after the last transaction");
        assert_eq!(timeline.spans((None, Some(Lsn(0))), None, 60), None);
        assert_eq!(Timeline::default().spans((None, None), None, 60), None);
    }

    #[test]
    fn a_range_that_ends_after_a_base_backup_started_does_not_end_before_it() {
        let seconds = vec![(Lsn(0), 100), (Lsn(10), 200), (Lsn(20), 300)];
        let redo = vec![(Lsn(5), 90), (Lsn(50), 250)];
        let timeline = Timeline { seconds, redo, ..Timeline::default() };
        let end = |second, base| {
            let to = Some(Bound::Time(second * SECOND));
            timeline.range_on_base(None, to, Lsn(base)).unwrap().1
        };
        // The last transaction before the backup ended at 200.
        assert_eq!((end(260, 50), end(300, 50), end(250, 50)), (Some(Lsn(51)), Some(Lsn(51)), Some(Lsn(20))));
        assert_eq!(
            (end(301, 50), end(200, 5), end(95, 5), end(80, 5)),
            (None, Some(Lsn(10)), Some(Lsn(6)), Some(Lsn(0)))
        );
        // No checkpoint is known to have started there.
        assert_eq!(end(260, 40), Some(Lsn(20)));
        let position = Some(Bound::Lsn(Lsn(20)));
        assert_eq!(timeline.range_on_base(None, position, Lsn(50)).unwrap(), (None, Some(Lsn(20))));
    }

    #[test]
    fn a_range_may_end_but_not_start_behind_the_last_transaction() {
        let seconds = vec![(Lsn(10), 100), (Lsn(20), 200)];
        let mut clock = Clock::default();
        // The clock was set back after the first transaction.
        [100, 90, 200].iter().for_each(|second| clock.add(Lsn(10), second * SECOND));
        let timeline = Timeline { seconds, clock, ..Timeline::default() };
        let [early, between, late] = [50, 150, 201].map(|second| Bound::Time(second * SECOND));
        assert_eq!(timeline.range(Some(early), Some(between)).unwrap(), (Some(Lsn(10)), Some(Lsn(20))));
        assert_eq!(timeline.range(None, Some(late)).unwrap(), (None, None));
        let error = timeline.range(Some(late), None).unwrap_err();
        assert_eq!(error, ExplainError::TimeAfterEnd(Some((90, 200))));
        let text = error.to_string();
        assert!(text.ends_with("the last one ends at 1970-01-01T00:03:20Z"), "{text}");
        let lsn = Bound::Lsn(Lsn(7));
        assert_eq!(timeline.range(Some(lsn), Some(lsn)).unwrap(), (Some(Lsn(7)), Some(Lsn(7))));
    }
}
