//! What to explain: views, range and options.

use std::sync::Arc;

use thiserror::Error;
use walden_format::lsn::Lsn;
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
    /// Number of decoding threads, at least 1. They end before [`explain`](crate::explain()) returns.
    pub threads: usize,
}

impl Request {
    /// A request for the whole WAL: no views beyond the standard ones, and the ten largest transactions.
    pub fn new(threads: usize) -> Request {
        Request { views: Vec::new(), top: 10, from: None, to: None, every: None, writers: None, threads }
    }

    /// A request for the sums of a range only.
    pub fn sums(from: Lsn, to: Lsn, threads: usize) -> Request {
        let (from, to) = (Some(Bound::Lsn(from)), Some(Bound::Lsn(to)));
        Request { views: Vec::new(), top: 0, from, to, every: None, writers: None, threads }
    }
}

/// A bound of the range to explain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// A position in the WAL.
    Lsn(Lsn),
    /// A time in seconds since 1970-01-01 UTC: the start of the records of transactions that end then or later.
    Time(i64),
}

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
    #[error("cannot start at the time given as --from: no transaction in the input ends at or after it")]
    TimeAfterEnd,
}
