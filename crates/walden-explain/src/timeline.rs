//! Times and checkpoints by position, read in a first pass.
//!
//! The time of a record is that of the first transaction end behind it; a checkpoint cycle starts at its redo pointer, which
//! lies before the checkpoint record. Neither is known while a segment is read, so views by them and bounds by time need a first
//! pass.

use std::ops::ControlFlow;

use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_source::inventory::Run;
use walden_source::scan::{ScanOptions, scan};

use crate::request::{Bound, ExplainError};

/// Times and redo pointers of the WAL.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Clock by position: transactions that end behind the LSN end at or after the time, in seconds since 1970-01-01 UTC.
    seconds: Vec<(Lsn, i64)>,
    /// Redo pointers of the checkpoints, unfinished ones included, ascending, and the begin of each checkpoint in seconds since
    /// 1970-01-01 UTC.
    pub redo: Vec<(Lsn, i64)>,
}

impl Timeline {
    /// Reads all runs with `threads` threads. Damage ends a run; the pass that counts reports it.
    pub fn read(runs: &[Run], threads: usize, mut progress: impl FnMut(u64)) -> Timeline {
        let mut timeline = Timeline::default();
        let mut begun = Vec::new();
        for run in runs {
            let options = ScanOptions { threads, from: None, to: None };
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

    /// Adds those of the redo pointers `begun` whose checkpoint has no record, with the time of the last transaction end before.
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
        *last_end = times.last_end.or(*last_end);
        self.redo.extend(times.redo);
    }

    /// First and last transaction end, in seconds since 1970-01-01 UTC.
    pub fn span(&self) -> Option<(i64, i64)> {
        Some((self.seconds.first()?.1, self.seconds.last()?.1))
    }

    /// The start of the records of transactions that end at `second` or later; `None` if there are none.
    pub fn position_of(&self, second: i64) -> Option<Lsn> {
        let index = self.seconds.partition_point(|(_, at)| *at < second);
        self.seconds.get(index).map(|(lsn, _)| *lsn)
    }

    /// Converts bounds to positions.
    ///
    /// # Errors
    ///
    /// [`ExplainError::TimeAfterEnd`] if no transaction ends at or after the start. An end behind the last transaction is no bound.
    pub fn range(
        &self,
        from: Option<Bound>,
        to: Option<Bound>,
    ) -> Result<(Option<Lsn>, Option<Lsn>), ExplainError> {
        let position = |bound| match bound {
            Bound::Lsn(lsn) => Some(lsn),
            Bound::Time(second) => self.position_of(second),
        };
        let from = from.map(|from| position(from).ok_or(ExplainError::TimeAfterEnd)).transpose()?;
        Ok((from, to.and_then(position)))
    }

    /// Splits the WAL into spans of `width` seconds. Returns the start LSN of each span but the first, and the start time of the
    /// first.
    pub fn spans(&self, width: i64) -> (Vec<Lsn>, i64) {
        let Some((first, _)) = self.span() else { return (Vec::new(), 0) };
        let mut span = first.div_euclid(width);
        let start = span * width;
        let mut cuts = Vec::new();
        for (lsn, second) in &self.seconds {
            while second.div_euclid(width) > span {
                cuts.push(*lsn);
                span += 1;
            }
        }
        (cuts, start)
    }
}

#[derive(Default)]
struct SegmentTimes {
    /// `None`: right behind the last transaction end of an earlier segment.
    seconds: Vec<(Option<Lsn>, i64)>,
    last_end: Option<Lsn>,
    redo: Vec<(Lsn, i64)>,
    begun: Vec<Lsn>,
}

impl Visitor for SegmentTimes {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if !matches!(record.header.rmid, rmid::XLOG | rmid::XACT) {
            return ControlFlow::Continue(());
        }
        match payload::parse(record) {
            Ok(Payload::Commit(end) | Payload::Abort(end)) => {
                let second = end.time.unix_micros().div_euclid(1_000_000);
                // The time is taken before the insert position is reserved, so it may go back a little.
                if self.seconds.last().is_none_or(|last| second > last.1) {
                    self.seconds.push((self.last_end, second));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redo_pointer_whose_checkpoint_has_no_record_counts() {
        let seconds = vec![(Lsn(10), 100), (Lsn(20), 200), (Lsn(30), 300)];
        let mut timeline = Timeline { seconds, redo: vec![(Lsn(12), 101), (Lsn(40), 310)] };
        timeline.add_unfinished(vec![Lsn(40), Lsn(25), Lsn(12), Lsn(25)]);
        assert_eq!(timeline.redo, [(Lsn(12), 101), (Lsn(25), 200), (Lsn(40), 310)]);
    }

    #[test]
    fn a_range_may_end_but_not_start_behind_the_last_transaction() {
        let timeline = Timeline { seconds: vec![(Lsn(10), 100), (Lsn(20), 200)], redo: Vec::new() };
        let (early, between, late) = (Bound::Time(50), Bound::Time(150), Bound::Time(201));
        assert_eq!(timeline.range(Some(early), Some(between)).unwrap(), (Some(Lsn(10)), Some(Lsn(20))));
        assert_eq!(timeline.range(None, Some(late)).unwrap(), (None, None));
        assert!(matches!(timeline.range(Some(late), None), Err(ExplainError::TimeAfterEnd)));
        let lsn = Bound::Lsn(Lsn(7));
        assert_eq!(timeline.range(Some(lsn), Some(lsn)).unwrap(), (Some(Lsn(7)), Some(Lsn(7))));
    }
}
