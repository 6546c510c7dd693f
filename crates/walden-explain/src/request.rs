//! What to explain: views, range and options.

use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use walden_format::lsn::{InvalidLsn, Lsn};
use walden_format::version::Major;

use crate::group::ViewSpec;
use crate::writers::Writers;

/// What to explain and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// Views in addition to those by relation and by record kind, which need no request ([`Explanation::view_by`]).
    ///
    /// [`Explanation::view_by`]: crate::Explanation::view_by
    pub views: Vec<ViewSpec>,
    /// Number of largest transactions to keep, also in a view by transaction.
    pub top: usize,
    /// Start of the range; `None` for the start of the WAL.
    pub from: Option<Bound>,
    /// End of the range: only records that start before this.
    pub to: Option<Bound>,
    /// Width of a time span, in seconds; `None` for a width that gives at most 60 spans.
    pub every: Option<i64>,
    /// Who wrote transactions, for views by user, application, client or statement.
    pub writers: Option<Arc<Writers>>,
    /// Whether to sample images, for [`crate::savings::estimate`].
    pub sample_images: bool,
    /// Number of decoding threads, at least 1. They end before [`explain`](crate::explain()) returns.
    pub threads: usize,
}

impl Request {
    /// A request for the whole WAL: no views beyond the standard ones, and the ten largest transactions.
    pub fn new(threads: usize) -> Request {
        Request {
            views: Vec::new(),
            top: 10,
            from: None,
            to: None,
            every: None,
            writers: None,
            sample_images: false,
            threads,
        }
    }

    /// A request for the sums of a range only.
    pub fn sums(from: Lsn, to: Lsn, threads: usize) -> Request {
        let (from, to) = (Some(Bound::Lsn(from)), Some(Bound::Lsn(to)));
        Request { top: 0, from, to, ..Request::new(threads) }
    }
}

/// A bound of the range to explain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// A position in the WAL.
    Lsn(Lsn),
    /// A time in microseconds since 1970-01-01 UTC: the start of the records of transactions that end then or later.
    Time(i64),
}

impl FromStr for Bound {
    type Err = BoundError;

    /// Reads an LSN (`16/B374D848`) or a time (`2026-11-20 22:00`, `2026-11-20T22:00:00.25Z`, `2026-11-20 22:00:00.25 UTC`), local
    /// unless it has a zone.
    fn from_str(text: &str) -> Result<Bound, BoundError> {
        if text.contains('/') {
            return text.parse().map(Bound::Lsn).map_err(|error: InvalidLsn| BoundError(error.to_string()));
        }
        if let Ok(time) = text.parse::<jiff::Timestamp>() {
            return Ok(Bound::Time(micros(time)));
        }
        // As `walden rows` prints times.
        let (clock, zone) = match text.strip_suffix(" UTC") {
            Some(clock) => (clock, jiff::tz::TimeZone::UTC),
            None => (text, jiff::tz::TimeZone::system()),
        };
        let clock = clock.parse::<jiff::civil::DateTime>().or_else(|_| format!("{clock}:00").parse());
        match clock.map(|time| time.to_zoned(zone)) {
            Ok(Ok(time)) => Ok(Bound::Time(micros(time.timestamp()))),
            _ => Err(BoundError(format!(
                "\"{text}\" is neither an LSN such as 16/B374D848 nor a time such as 2026-11-20 22:00 or 2026-11-20T22:00:00Z"
            ))),
        }
    }
}

/// Microseconds since 1970-01-01 UTC. Commits have no smaller fractions, so the first one that counts is at the next microsecond.
fn micros(time: jiff::Timestamp) -> i64 {
    // From the year -9999 to 9999: far less than 64 bits have.
    (time.as_nanosecond() + 999).div_euclid(1000) as i64
}

/// A text that is no bound.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct BoundError(String);

/// Why an explanation failed.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ExplainError {
    /// There are no segments.
    #[error("cannot explain: expected WAL segments, found none")]
    Nothing,
    /// The segments belong to several clusters; two of their system identifiers.
    #[error(
        "cannot explain segments of two clusters, with the system identifiers {0} and {1}: name the folder or the segments of one"
    )]
    SeveralClusters(u64, u64),
    /// The segments were written by several major versions; two of them.
    #[error("cannot explain segments of PostgreSQL {0} and {1} together: name the segments of one")]
    SeveralVersions(Major, Major),
    /// No transaction ends at or after the start of the range.
    #[error("cannot start at the given time: no transaction in the input ends at or after it")]
    TimeAfterEnd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_positions_or_times() {
        assert_eq!("0/10".parse(), Ok(Bound::Lsn(Lsn(16))));
        assert_eq!("1970-01-01T00:01:00Z".parse(), Ok(Bound::Time(60_000_000)));
        assert!(matches!("2026-11-20 22:00".parse(), Ok(Bound::Time(_))));
        assert!(matches!("2026-11-20".parse(), Ok(Bound::Time(_))));
        assert!("yesterday".parse::<Bound>().is_err());
        assert!("0/xyz".parse::<Bound>().is_err());
    }

    #[test]
    fn times_have_fractions_of_a_second() {
        let micros = |text: &str| match text.parse() {
            Ok(Bound::Time(micros)) => micros,
            other => panic!("{text}: {other:?}"),
        };
        for text in ["1970-01-01T00:01:00.196894Z", "1970-01-01 00:01:00.196894 UTC"] {
            assert_eq!(micros(text), 60_196_894, "{text}");
        }
        assert_eq!(micros("1970-01-01 00:01 UTC"), 60_000_000);
        assert_eq!(micros("1970-01-01T00:01:00.1234561Z"), 60_123_457, "no commit lies between");
        assert_eq!(micros("1969-12-31T23:59:59.5Z"), -500_000);
        let local = micros("2026-11-20 22:00:00");
        assert_eq!(micros("2026-11-20 22:00:00.25"), local + 250_000);
        assert!("2026-11-20T22:00:00Z UTC".parse::<Bound>().is_err());
    }
}
