//! The groups of views that need more than cells, bounded in number.

use rustc_hash::FxHashMap;
use walden_format::transam::FIRST_NORMAL_XID;

use crate::explanation::sort_by_bytes;
use crate::group::{Dimension, GroupKey, ViewSpec};
use crate::tally::Tally;
use crate::writers::{WriterKey, Writers};

/// Maximum number of groups in a view. Beyond this number, the smaller half of the groups is merged into one
/// group, so memory does not grow with the WAL. The sums stay exact.
pub(crate) const MAX_GROUPS: usize = 100_000;

/// The groups of one view.
#[derive(Clone)]
pub(crate) struct ViewGroups<'a> {
    by_xid: bool,
    /// Whether groups have a writer.
    by_writer: bool,
    writers: Option<&'a Writers>,
    top: usize,
    /// Groups of transactions in progress, by transaction ID.
    open: FxHashMap<u32, FxHashMap<GroupKey, Tally>>,
    done: FxHashMap<GroupKey, Tally>,
    rest: (u64, Tally),
}

impl<'a> ViewGroups<'a> {
    pub(crate) fn new(view: &ViewSpec, top: usize, writers: Option<&'a Writers>) -> ViewGroups<'a> {
        ViewGroups {
            by_xid: view.has(Dimension::Xid),
            by_writer: view.is_by_writer(),
            writers,
            top,
            open: FxHashMap::default(),
            done: FxHashMap::default(),
            rest: (0, Tally::default()),
        }
    }

    /// Adds records of a transaction, or of none. Treats the same records as without a transaction as
    /// `Transactions::add`.
    pub(crate) fn add(&mut self, xid: u32, mut key: GroupKey, sum: &Tally) {
        if (self.by_xid || self.by_writer) && xid >= FIRST_NORMAL_XID {
            self.open.entry(xid).or_default().entry(key).or_default().merge(sum);
        } else {
            key.xid = self.by_xid.then_some(0);
            key.writer = self.by_writer.then_some(WriterKey::NoTransaction);
            self.done.entry(key).or_default().merge(sum);
            self.limit_groups();
        }
    }

    /// Moves the groups of subtransactions to a transaction in progress.
    pub(crate) fn fold(&mut self, subxids: &[u32], xid: u32) {
        if self.open.is_empty() {
            return;
        }
        for subxid in subxids {
            let Some(of_sub) = self.open.remove(subxid) else { continue };
            let open = self.open.entry(xid).or_default();
            of_sub.iter().for_each(|(key, sum)| open.entry(*key).or_default().merge(sum));
        }
    }

    /// Finishes the groups of a transaction, under its ID and writer. `time` is when the transaction ended,
    /// in microseconds since 1970-01-01 UTC. The caller has folded the transaction's subtransactions into it.
    pub(crate) fn close(&mut self, xid: u32, time: Option<i64>) {
        let Some(open) = self.open.remove(&xid) else { return };
        let find = || self.writers.map_or(WriterKey::Unknown, |writers| writers.find(xid, time));
        let writer = self.by_writer.then(find);
        for (mut key, sum) in open {
            key.xid = self.by_xid.then_some(xid);
            key.writer = writer;
            self.done.entry(key).or_default().merge(&sum);
        }
        self.limit_groups();
    }

    /// Merges the smaller half of the groups if there are too many.
    fn limit_groups(&mut self) {
        let max_groups = MAX_GROUPS.max(4 * self.top);
        if self.done.len() <= max_groups {
            return;
        }
        let mut rows: Vec<_> = self.done.drain().collect();
        sort_by_bytes(&mut rows);
        for (_, sum) in rows.drain(max_groups / 2..) {
            self.rest.0 += 1;
            self.rest.1.merge(&sum);
        }
        self.done.extend(rows);
    }

    /// Returns the groups, once all transactions are closed.
    pub(crate) fn finish(self) -> (Vec<(GroupKey, Tally)>, (u64, Tally)) {
        debug_assert!(self.open.is_empty(), "transactions are open: {:?}", self.open.keys());
        let mut rows: Vec<_> = self.done.into_iter().collect();
        sort_by_bytes(&mut rows);
        (rows, self.rest)
    }
}
