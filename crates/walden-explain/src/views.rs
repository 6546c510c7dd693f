//! The groups of the views that need more than cells, bounded in number.

use rustc_hash::FxHashMap;

use crate::explanation::sort_by_bytes;
use crate::group::{Dimension, GroupKey, ViewSpec};
use crate::tally::Tally;
use crate::writers::{WriterKey, Writers};

/// Maximum number of groups in a view. Beyond it, the smaller half is merged into one, so that memory does not grow with the
/// WAL; the sums stay exact.
pub(crate) const MAX_GROUPS: usize = 100_000;

/// The groups of one view.
#[derive(Clone)]
pub(crate) struct ViewGroups<'a> {
    by_xid: bool,
    /// Whether groups have a writer, and all that are known.
    by_writer: bool,
    writers: Option<&'a Writers>,
    /// The transactions of subtransactions, as far as the WAL says before their end.
    parents: FxHashMap<u32, u32>,
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
            parents: FxHashMap::default(),
            top,
            open: FxHashMap::default(),
            done: FxHashMap::default(),
            rest: (0, Tally::default()),
        }
    }

    pub(crate) fn add(&mut self, xid: u32, mut key: GroupKey, sum: &Tally) {
        if (self.by_xid || self.by_writer) && xid != 0 {
            self.open.entry(xid).or_default().entry(key).or_default().merge(sum);
        } else {
            key.xid = self.by_xid.then_some(0);
            key.writer = self.by_writer.then_some(WriterKey::NoTransaction);
            self.done.entry(key).or_default().merge(sum);
            self.limit_groups();
        }
    }

    /// Learns of which transaction a subtransaction is.
    pub(crate) fn add_parent(&mut self, xid: u32, top: u32) {
        if self.by_writer && xid != top && self.parents.len() < MAX_GROUPS {
            self.parents.insert(xid, top);
        }
    }

    /// Assigns the groups of a finished transaction and its subtransactions to the top-level one.
    /// `time` is when it ended, in microseconds since 1970-01-01 UTC.
    pub(crate) fn close(&mut self, xid: u32, subxids: &[u32], time: Option<i64>) {
        if self.open.is_empty() {
            return;
        }
        let top = self.parents.remove(&xid).unwrap_or(xid);
        if !self.parents.is_empty() {
            subxids.iter().for_each(|subxid| {
                self.parents.remove(subxid);
            });
        }
        let find = || self.writers.map_or(WriterKey::Unknown, |writers| writers.find(top, time));
        let writer = self.by_writer.then(find);
        for part in subxids.iter().chain([&xid]) {
            for (mut key, sum) in self.open.remove(part).into_iter().flatten() {
                key.xid = self.by_xid.then_some(xid);
                key.writer = writer;
                self.done.entry(key).or_default().merge(&sum);
            }
        }
        self.limit_groups();
    }

    /// Closes transactions that a crash ended.
    pub(crate) fn close_ended(&mut self, has_ended: impl Fn(u32) -> bool) {
        let over: Vec<u32> = self.open.keys().copied().filter(|xid| has_ended(*xid)).collect();
        for xid in over {
            self.close(xid, &[], None);
        }
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

    pub(crate) fn finish(mut self) -> (Vec<(GroupKey, Tally)>, (u64, Tally)) {
        let open: Vec<u32> = self.open.keys().copied().collect();
        for xid in open {
            self.close(xid, &[], None);
        }
        let mut rows: Vec<_> = self.done.into_iter().collect();
        sort_by_bytes(&mut rows);
        (rows, self.rest)
    }
}
