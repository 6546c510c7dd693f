//! Finds where the times of transactions go back, because the server's clock was set back.

use std::fmt;

use jiff::Timestamp;
use walden_format::lsn::Lsn;

/// Concurrent transactions need not end in the order of their times, so smaller steps back, in microseconds,
/// are ignored.
const MIN_STEP_BACK: i64 = 2_000_000;

/// A position at which the times of transactions go back.
///
/// Transactions with times between `to` and `from` are both before and after this position. A range that
/// starts or ends at one of these times does not contain all of its transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepBack {
    /// The first commit or abort record after the step.
    pub lsn: Lsn,
    /// The latest time before the step, in microseconds since 1970-01-01 UTC.
    pub from: i64,
    /// The first time after the step, in microseconds since 1970-01-01 UTC.
    pub to: i64,
}

impl StepBack {
    /// Returns whether transactions with this time, in microseconds since 1970-01-01 UTC, may be before and
    /// after the step. Compares whole seconds, in which ranges by time are found.
    pub fn is_ambiguous(&self, micros: i64) -> bool {
        let second = |micros: i64| micros.div_euclid(1_000_000);
        (second(self.to)..=second(self.from)).contains(&second(micros))
    }
}

impl fmt::Display for StepBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |micros: i64| match Timestamp::from_microsecond(micros) {
            Ok(time) => format!("{time:.0}"),
            Err(_) => format!("{micros} µs"),
        };
        write!(
            f,
            "commit times go back at {} from {} to {}, because the server's clock was set back",
            self.lsn,
            text(self.from),
            text(self.to)
        )
    }
}

/// The times at which transactions ended, in WAL order: the earliest and the latest time, and the steps back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// Position and time of the first transaction end.
    first: Option<(Lsn, i64)>,
    earliest: Option<i64>,
    latest: Option<i64>,
    /// The latest time since the last step back.
    latest_since: Option<i64>,
    steps: Vec<StepBack>,
}

impl Clock {
    /// Adds the end of a transaction, with its time in microseconds since 1970-01-01 UTC.
    pub fn add(&mut self, lsn: Lsn, micros: i64) {
        self.first.get_or_insert((lsn, micros));
        self.earliest = Some(self.earliest.map_or(micros, |earliest| earliest.min(micros)));
        self.latest = self.latest.max(Some(micros));
        match self.latest_since {
            Some(from) if goes_back(from, micros) => {
                self.steps.push(StepBack { lsn, from, to: micros });
                self.latest_since = Some(micros);
            }
            _ => self.latest_since = self.latest_since.max(Some(micros)),
        }
    }

    /// Adds the clock of the WAL that follows.
    pub fn append(&mut self, later: Clock) {
        let (Some((lsn, micros)), Some((earliest, latest))) = (later.first, later.times()) else { return };
        self.add(lsn, micros);
        self.earliest = self.earliest.map(|mine| mine.min(earliest));
        self.latest = self.latest.max(Some(latest));
        // The time before the first step may be from earlier WAL.
        let mut steps = later.steps.into_iter();
        if let Some(first) = steps.next() {
            let from = first.from.max(self.latest_since.unwrap_or(first.from));
            self.steps.push(StepBack { from, ..first });
            self.steps.extend(steps);
            self.latest_since = later.latest_since;
        } else {
            self.latest_since = self.latest_since.max(later.latest_since);
        }
    }

    /// Returns whether a transaction that ended next at this time would be after a step back.
    pub fn would_go_back(&self, micros: i64) -> bool {
        self.latest_since.is_some_and(|from| goes_back(from, micros))
    }

    /// Returns the earliest and the latest time; `None` if no transaction ends.
    pub fn times(&self) -> Option<(i64, i64)> {
        self.earliest.zip(self.latest)
    }

    /// Returns the steps back, in WAL order.
    pub fn steps_back(&self) -> &[StepBack] {
        &self.steps
    }
}

/// Returns whether the server's clock was set back between the times `from` and `to`, which is later in the
/// WAL: whether `to` is much earlier. Both are in microseconds since 1970-01-01 UTC.
pub fn goes_back(from: i64, to: i64) -> bool {
    to < from.saturating_sub(MIN_STEP_BACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_back_are_found_in_and_between_parts() {
        let of = |times: &[(u64, i64)]| {
            let mut clock = Clock::default();
            times.iter().for_each(|&(lsn, second)| clock.add(Lsn(lsn), second * 1_000_000));
            clock
        };
        let step =
            |lsn, from: i64, to: i64| StepBack { lsn: Lsn(lsn), from: from * 1_000_000, to: to * 1_000_000 };
        // Small steps are due to concurrency.
        assert_eq!(of(&[(1, 100), (2, 98), (3, 99), (4, 101)]).steps_back(), []);
        let times = [(1, 100), (2, 40), (3, 41), (4, 120), (5, 119), (6, 60), (7, 10), (8, 30)];
        let all = [step(2, 100, 40), step(6, 120, 60), step(7, 60, 10)];
        let whole = of(&times);
        assert_eq!((whole.steps_back(), whole.times()), (&all[..], Some((10_000_000, 120_000_000))));
        for cut in 0..=times.len() {
            for second_cut in cut..=times.len() {
                let mut clock = Clock::default();
                for part in [&times[..cut], &times[cut..second_cut], &times[second_cut..]] {
                    clock.append(of(part));
                }
                assert_eq!(clock, whole, "{cut} {second_cut}");
            }
        }
        assert!(whole.would_go_back(27_000_000) && !whole.would_go_back(28_000_000));
        let text = all[0].to_string();
        assert!(text.contains("at 0/00000002 from 1970-01-01T00:01:40Z to 1970-01-01T00:00:40Z"), "{text}");
    }

    #[test]
    fn extreme_times_are_times() {
        let mut clock = Clock::default();
        for micros in [i64::MIN, i64::MAX, i64::MIN, 0] {
            clock.add(Lsn(1), micros);
        }
        assert_eq!((clock.times(), clock.steps_back().len()), (Some((i64::MIN, i64::MAX)), 1));
        assert!(clock.steps_back()[0].to_string().contains("µs"));
    }
}
