//! When what was written: times and checkpoints of a log, read before it is split by them.
//!
//! A record's time is that of the first transaction that ended after it; a checkpoint's cycle starts at its redo
//! pointer, which lies before the checkpoint's record. Neither is known while a segment is read, so splitting by them,
//! or cutting at a time, takes a first pass.

use std::ops::ControlFlow;

use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_source::inventory::Run;
use walden_source::scan::{ScanOptions, scan};

use crate::explain::{Bound, ExplainError};

/// Times and redo pointers of a log.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// From each position on, the transactions that end do so at or after that second (since 1970-01-01 UTC).
    seconds: Vec<(Lsn, i64)>,
    /// Redo pointers of the checkpoints, ascending, and when each checkpoint began.
    pub redo: Vec<(Lsn, i64)>,
}

impl Timeline {
    /// Reads all runs. What can't be read ends the pass; the pass that counts will say why.
    pub fn read(runs: &[Run], threads: usize, mut progress: impl FnMut(u64)) -> Timeline {
        let mut timeline = Timeline::default();
        for run in runs {
            let options = ScanOptions { threads, from: None, to: None };
            let mut last_end = None;
            scan(
                run,
                options,
                |_| SegmentTimes::default(),
                |outcome| {
                    timeline.append(outcome.visitor, &mut last_end);
                    progress(run.segment_size.bytes());
                    ControlFlow::Continue(())
                },
            );
        }
        timeline.redo.sort_unstable();
        timeline.redo.dedup_by_key(|(lsn, _)| *lsn);
        timeline
    }

    fn append(&mut self, times: SegmentTimes, last_end: &mut Option<Lsn>) {
        for (start, second) in times.seconds {
            if self.seconds.last().is_none_or(|last| second > last.1) {
                self.seconds.push((start.or(*last_end).unwrap_or(Lsn(0)), second));
            }
        }
        *last_end = times.last_end.or(*last_end);
        self.redo.extend(times.redo);
    }

    /// First and last second in which a transaction ended.
    pub fn span(&self) -> Option<(i64, i64)> {
        Some((self.seconds.first()?.1, self.seconds.last()?.1))
    }

    /// Where the records start that belong to transactions which end at `second` or later; nothing if none does.
    pub fn position_of(&self, second: i64) -> Option<Lsn> {
        let index = self.seconds.partition_point(|(_, at)| *at < second);
        self.seconds.get(index).map(|(lsn, _)| *lsn)
    }

    /// The positions that bounds stand for.
    ///
    /// # Errors
    ///
    /// [`ExplainError::TimeAfterEnd`] when nothing ends at or after the time to start at. A time to end at may be later
    /// than everything: the range goes to the end.
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

    /// Cuts the log into spans of `width` seconds: where each but the first starts, and when the first does.
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
    /// Nothing for where: right after the last transaction's end in an earlier segment.
    seconds: Vec<(Option<Lsn>, i64)>,
    last_end: Option<Lsn>,
    redo: Vec<(Lsn, i64)>,
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
                // Times are taken before positions, so they may go back a little.
                if self.seconds.last().is_none_or(|last| second > last.1) {
                    self.seconds.push((self.last_end, second));
                }
                self.last_end = Some(record.end);
            }
            Ok(Payload::Checkpoint(checkpoint)) => {
                self.redo.push((checkpoint.redo, checkpoint.time));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_at_the_end_but_must_not_start_after_it() {
        let timeline = Timeline { seconds: vec![(Lsn(10), 100), (Lsn(20), 200)], redo: Vec::new() };
        let (early, between, late) = (Bound::Time(50), Bound::Time(150), Bound::Time(201));
        assert_eq!(timeline.range(Some(early), Some(between)).unwrap(), (Some(Lsn(10)), Some(Lsn(20))));
        assert_eq!(timeline.range(None, Some(late)).unwrap(), (None, None));
        assert!(matches!(timeline.range(Some(late), None), Err(ExplainError::TimeAfterEnd)));
        let lsn = Bound::Lsn(Lsn(7));
        assert_eq!(timeline.range(Some(lsn), Some(lsn)).unwrap(), (Some(Lsn(7)), Some(Lsn(7))));
    }
}
