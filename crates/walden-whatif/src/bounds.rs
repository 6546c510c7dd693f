//! Lower bounds of `checkpoint_timeout` and `max_wal_size`, from a trace in which neither triggered a
//! checkpoint.

use walden_explain::checkpoints::Checkpoint;
use walden_format::lsn::Lsn;
use walden_format::version::Major;

use crate::settings::Settings;
use crate::survey::Survey;

const SECOND: i64 = 1_000_000;
/// Seconds until an idle server checks the timeout again (`CheckpointerMain`), and one for its clock's
/// resolution.
const RECHECK_SECONDS: i64 = 16;
/// Minimum and maximum of `checkpoint_timeout` in seconds.
pub(crate) const TIMEOUTS: (i64, i64) = (30, 86_400);

/// The part of the trace between two checkpoints, before the first checkpoint, or after the last checkpoint.
struct Cycle {
    /// The redo pointer at its start.
    redo: Lsn,
    /// The cycle's start, its end, and the end of its first transaction, in microseconds since 1970-01-01
    /// UTC.
    begin: i64,
    end: i64,
    first_commit: i64,
    /// Whether a checkpoint without a record in the trace may have started in the cycle.
    may_hide_checkpoint: bool,
    /// Whether a request may have been skipped in the cycle, which restarts the timeout
    /// (`explain_checkpoints`).
    may_have_skipped_request: bool,
}

impl Cycle {
    /// Returns the shortest `checkpoint_timeout` in seconds with which no timed checkpoint starts in the
    /// cycle. A server without WAL to write skips them, so a cycle whose first transaction ends late shows
    /// nothing.
    fn shortest_timeout(&self, target_milli: u64) -> Option<i64> {
        let shows_timeout = self.end.saturating_sub(self.first_commit) > RECHECK_SECONDS * SECOND;
        let seconds = self.end.saturating_sub(self.begin) / SECOND;
        let is_shorter = self.may_hide_checkpoint || self.may_have_skipped_request;
        let seconds = match is_shorter {
            // A checkpoint takes up to this share of the timeout.
            true => seconds.saturating_mul(1000) / (1000 + target_milli.cast_signed()),
            false => seconds,
        };
        shows_timeout.then_some(seconds)
    }
}

fn cycles(survey: &Survey, checkpoints: &[Checkpoint]) -> Vec<Cycle> {
    let (Some(&(_, first)), Some(&(_, last))) = (survey.times.first(), survey.times.last()) else {
        return Vec::new();
    };
    let size = survey.segment_size;
    // Since 17, CHECKPOINT_REDO shows each checkpoint.
    let may_hide_checkpoint = survey.version < Major::V17;
    let end = |next: Option<&Checkpoint>| next.map_or(last, |next| next.record.time.saturating_mul(SECOND));
    let head = Cycle {
        redo: survey.span.map_or(Lsn(0), |span| span.0),
        begin: first,
        end: end(checkpoints.first()),
        first_commit: first,
        may_hide_checkpoint: may_hide_checkpoint && checkpoints.is_empty(),
        may_have_skipped_request: false,
    };
    let following = checkpoints.iter().enumerate().map(|(at, one)| {
        let record = one.record;
        let next = checkpoints.get(at + 1);
        let after = survey.times.partition_point(|(lsn, _)| *lsn < record.redo);
        let first_commit = survey.times.get(after).map_or(last, |(_, micros)| *micros);
        // The record has the whole second. After a shutdown, the server counts from its next start.
        let begin = match record.shutdown {
            true => first_commit,
            false => record.time.saturating_add(1).saturating_mul(SECOND),
        };
        let [begun_in, ended_in] = [record.redo, record.lsn].map(|lsn| size.segment_of(lsn));
        let next_in = next.map_or(survey.span.map_or(Lsn(0), |span| span.1), |next| next.record.redo);
        Cycle {
            redo: record.redo,
            begin,
            end: end(next),
            first_commit,
            may_hide_checkpoint: may_hide_checkpoint && next.is_none(),
            may_have_skipped_request: begun_in < ended_in && ended_in == size.segment_of(next_in),
        }
    });
    std::iter::once(head).chain(following).collect()
}

/// Returns the shortest `checkpoint_timeout` that the trace allows, in seconds, without regard to timed
/// checkpoints themselves.
pub(crate) fn shortest_timeout(survey: &Survey, checkpoints: &[Checkpoint], settings: &Settings) -> i64 {
    let target = settings.completion_target_milli;
    let shortest =
        cycles(survey, checkpoints).iter().filter_map(|cycle| cycle.shortest_timeout(target)).max();
    shortest.unwrap_or(0).clamp(TIMEOUTS.0, TIMEOUTS.1)
}

/// Whether the length of the cycle before a checkpoint shows `checkpoint_timeout`: WAL was written early in
/// the cycle, and no request was skipped.
pub(crate) fn shows_timeout(survey: &Survey, before: &Checkpoint, one: &Checkpoint) -> bool {
    let pair = [*before, *one];
    let cycle = cycles(survey, &pair).into_iter().nth(1);
    cycle.is_some_and(|cycle| cycle.shortest_timeout(0).is_some() && !cycle.may_have_skipped_request)
}

/// Returns the largest number of segments that were filled without a checkpoint by volume.
pub(crate) fn longest_distance(survey: &Survey, checkpoints: &[Checkpoint], settings: &Settings) -> u64 {
    let size = survey.segment_size;
    let Some((_, end)) = survey.span else { return 0 };
    let all = cycles(survey, checkpoints);
    let ends = all.iter().skip(1).map(|next| next.redo).chain([end]);
    let distance = |(cycle, to): (&Cycle, Lsn)| {
        let crossed = size.segment_of(to).saturating_sub(size.segment_of(cycle.redo));
        match cycle.may_hide_checkpoint {
            true => (crossed * 1000).div_ceil(1000 + settings.completion_target_milli).saturating_sub(1),
            false => crossed,
        }
    };
    all.iter().zip(ends).map(distance).max().unwrap_or(0)
}
