//! The request for an explanation: views, range and options.

use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use walden_format::lsn::{InvalidLsn, Lsn};
use walden_format::version::Major;

use crate::group::ViewSpec;
use crate::moment::Moment;
use crate::time::second_text;
use crate::writers::Writers;

/// The views, range and options of an explanation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Views in addition to those by relation and by record kind, which need no request
    /// ([`Explanation::view_by`]).
    ///
    /// [`Explanation::view_by`]: crate::Explanation::view_by
    pub views: Vec<ViewSpec>,
    /// Number of largest transactions to keep, also in a view by transaction.
    pub top: usize,
    /// Start of the range; `None` for the start of the WAL.
    pub from: Option<Bound>,
    /// End of the range: only records that start before this.
    pub to: Option<Bound>,
    /// Width of a time span, in seconds; `None` for a width that yields at most 60 spans.
    pub every: Option<i64>,
    /// The writers of transactions, for views by user, application, client or statement.
    pub writers: Option<Arc<Writers>>,
    /// Whether to sample images, for [`crate::savings::estimate`].
    pub sample_images: bool,
    /// Number of decoding threads, at least 1. The threads end before [`explain`](crate::explain()) returns.
    pub threads: usize,
}

walden_format::setters!(Request {
    views: Vec<ViewSpec>,
    top: usize,
    from: Option<Bound>,
    to: Option<Bound>,
    every: Option<i64>,
    writers: Option<Arc<Writers>>,
    sample_images: bool,
    threads: usize,
});

impl Request {
    /// Returns a request for the whole WAL, with only the standard views, and with the ten largest
    /// transactions.
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

    /// Returns a request for only the sums of a range.
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
    /// A time in microseconds since 1970-01-01 UTC. As the start of a range, denotes the first record of the
    /// transactions that end at or after this time.
    Time(i64),
}

impl FromStr for Bound {
    type Err = BoundError;

    /// Parses an LSN (`16/B374D848`) or a time as [`Moment::parse`] does: local time unless it has a zone.
    fn from_str(text: &str) -> Result<Bound, BoundError> {
        // A time has a year before its first dash; the names of time zones have slashes too.
        let is_time = text.trim().find('-').is_some_and(|at| at >= 4);
        if is_time {
            return Moment::parse(text)
                .map(|moment| Bound::Time(micros(moment.timestamp())))
                .map_err(BoundError);
        }
        text.trim().parse().map(Bound::Lsn).map_err(|_: InvalidLsn| {
            BoundError(format!(
                "\"{text}\" is neither an LSN such as 16/B374D848 nor a time such as 2026-11-20, 2026-11-20 22:00, \
                 2026-11-20 22:00:30.5+01, 2026-11-20 22:00 Europe/Berlin or 2026-11-20T22:00:00Z"
            ))
        })
    }
}

/// Microseconds since 1970-01-01 UTC, rounded up. Commits have no smaller fractions, so the next microsecond
/// is the first that matches.
fn micros(time: jiff::Timestamp) -> i64 {
    // From the year -9999 to 9999: well within 64 bits.
    (time.as_nanosecond() + 999).div_euclid(1000) as i64
}

/// A text that is not a valid bound.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
#[non_exhaustive]
pub struct BoundError(String);

/// Why an explanation failed.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// There are no segments.
    #[error("cannot explain: expected WAL segments, found none")]
    Nothing,
    /// The segments belong to several clusters; two of their system identifiers.
    #[error(
        "cannot explain segments of two clusters, with the system identifiers {0} and {1}: give the folder or the segments of one cluster"
    )]
    SeveralClusters(u64, u64),
    /// The segments were written by several major versions, of which two are given.
    #[error("cannot explain segments of PostgreSQL {0} and {1} together: name the segments of one")]
    SeveralVersions(Major, Major),
    /// No transaction ends at or after the start of the range. Contains the times at which the first and the
    /// last transaction of the source end, in seconds since 1970-01-01 UTC.
    #[error("cannot start at the given time: no transaction in the source ends at or after it{}", known_times(.0))]
    TimeAfterEnd(Option<(i64, i64)>),
}

fn known_times(ended: &Option<(i64, i64)>) -> String {
    match ended {
        Some((_, last)) => format!("; the last one ends at {}", second_text(*last)),
        None => "; it has the end of none".to_owned(),
    }
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
        assert_eq!("2026-11-28 21:00 Europe/Berlin".parse::<Bound>(), "2026-11-28T20:00:00Z".parse());
        assert_eq!("2026-11-28 21:00:00.5+01".parse::<Bound>(), "2026-11-28 20:00:00.5 UTC".parse());
        for wrong in ["yesterday", "0/xyz", "Europe/Berlin", "2026-11-28 21:00 Europe/Nowhere", "12:00"] {
            let error = wrong.parse::<Bound>().unwrap_err().to_string();
            assert!(error.contains("Europe/Berlin"), "{error}");
        }
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
