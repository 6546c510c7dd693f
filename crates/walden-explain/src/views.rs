//! The groups of the views that need more than cells, bounded in number.

use rustc_hash::FxHashMap;

use crate::explanation::sort_by_bytes;
use crate::group::GroupKey;
use crate::tally::Tally;
use crate::transactions::precedes;

/// Maximum number of groups in a view. Beyond it, the smaller half is merged into one, so that memory does not grow with the
/// WAL; the sums stay exact.
pub(crate) const MAX_GROUPS: usize = 100_000;

/// The groups of one view.
pub(crate) struct ViewGroups {
    by_xid: bool,
    top: usize,
    /// Groups of transactions in progress, by transaction ID.
    open: FxHashMap<u32, FxHashMap<GroupKey, Tally>>,
    done: FxHashMap<GroupKey, Tally>,
    rest: (u64, Tally),
}

impl ViewGroups {
    pub(crate) fn new(by_xid: bool, top: usize) -> ViewGroups {
        ViewGroups {
            by_xid,
            top,
            open: FxHashMap::default(),
            done: FxHashMap::default(),
            rest: (0, Tally::default()),
        }
    }

    pub(crate) fn add(&mut self, xid: u32, mut key: GroupKey, sum: &Tally) {
        if self.by_xid && xid != 0 {
            self.open.entry(xid).or_default().entry(key).or_default().merge(sum);
        } else {
            key.xid = self.by_xid.then_some(0);
            self.done.entry(key).or_default().merge(sum);
            self.limit_groups();
        }
    }

    /// Assigns the groups of a finished transaction and its subtransactions to the top-level one.
    pub(crate) fn close(&mut self, xid: u32, subxids: &[u32]) {
        if !self.by_xid {
            return;
        }
        for part in subxids.iter().chain([&xid]) {
            for (mut key, sum) in self.open.remove(part).into_iter().flatten() {
                key.xid = Some(xid);
                self.done.entry(key).or_default().merge(&sum);
            }
        }
        self.limit_groups();
    }

    pub(crate) fn close_before(&mut self, oldest: u32) {
        let over: Vec<u32> = self.open.keys().copied().filter(|xid| precedes(*xid, oldest)).collect();
        for xid in over {
            self.close(xid, &[]);
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
            self.close(xid, &[]);
        }
        let mut rows: Vec<_> = self.done.into_iter().collect();
        sort_by_bytes(&mut rows);
        (rows, self.rest)
    }
}
