//! Of which transactions subtransactions are, where the log says so before these end.
//!
//! A commit names the subtransactions that it commits. Those that were rolled back alone it does not name: `wal_level=logical` names the
//! top-level transaction in the first record of each, and `ASSIGNMENT` records name 64 at a time (`AssignTransactionId` in `xact.c`),
//! also such as were rolled back before. So what a rollback ended may turn out to be a subtransaction as long as an older transaction
//! runs.

use rustc_hash::FxHashMap;
use walden_format::transam::RunningTransactions;

/// Maximum number of rollbacks that are held back. Beyond it, the older half counts as transactions.
const MAX_UNDECIDED: usize = 1 << 17;

/// A rollback of a transaction, or of a subtransaction that the log may still name.
#[derive(Clone, Copy)]
pub(crate) struct Rollback {
    pub xid: u32,
    /// In microseconds since 1970-01-01 UTC.
    pub time: i64,
    /// Number of subtransactions that its record names.
    pub subtransactions: u32,
}

/// The known subtransactions of transactions in progress. As many as these have, like their sums.
#[derive(Clone, Default)]
pub(crate) struct Subtransactions {
    tops: FxHashMap<u32, u32>,
    /// All of `tops` by top-level transaction; some may be gone from there.
    of_top: FxHashMap<u32, Vec<u32>>,
    undecided: FxHashMap<u32, Rollback>,
}

impl Subtransactions {
    /// Learns of which transaction a subtransaction is. If it was rolled back before, its bytes belong there now.
    pub(crate) fn assign(&mut self, subxid: u32, top: u32) -> Option<Rollback> {
        if subxid == top {
            return None;
        }
        let rollback = self.undecided.remove(&subxid);
        if rollback.is_none() && self.tops.insert(subxid, top) != Some(top) {
            self.of_top.entry(top).or_default().push(subxid);
        }
        rollback
    }

    /// The top-level transaction as far as the log has named it.
    pub(crate) fn top_of(&self, xid: u32) -> u32 {
        if self.tops.is_empty() { xid } else { self.tops.get(&xid).copied().unwrap_or(xid) }
    }

    /// Ends a subtransaction that is rolled back, with those within it, and returns its top-level transaction; `None` if the log has
    /// named none. One that wrote nothing itself is named by those within it alone.
    pub(crate) fn roll_back(&mut self, xid: u32, subxids: &[u32]) -> Option<u32> {
        if self.tops.is_empty() {
            return None;
        }
        let mut parts = std::iter::once(xid).chain(subxids.iter().copied());
        let top = parts.find_map(|part| self.tops.get(&part).copied()).filter(|top| *top != xid)?;
        self.tops.remove(&xid);
        subxids.iter().for_each(|subxid| {
            self.tops.remove(subxid);
        });
        Some(top)
    }

    /// Whether subtransactions of it are known.
    pub(crate) fn is_top(&self, xid: u32) -> bool {
        self.of_top.contains_key(&xid)
    }

    /// Ends a transaction, and returns what is known of its subtransactions, some of which may have ended before.
    pub(crate) fn end(&mut self, xid: u32) -> Vec<u32> {
        if self.of_top.is_empty() {
            return Vec::new();
        }
        let subxids = self.of_top.remove(&xid).unwrap_or_default();
        subxids.iter().for_each(|subxid| {
            self.tops.remove(subxid);
        });
        subxids
    }

    /// Holds a rollback back, and returns those that now count as transactions, as there are too many.
    pub(crate) fn hold(&mut self, rollback: Rollback) -> Vec<Rollback> {
        let mut over = Vec::new();
        if self.undecided.len() >= MAX_UNDECIDED {
            let mut all: Vec<Rollback> = self.undecided.drain().map(|(_, one)| one).collect();
            all.sort_unstable_by_key(|one| (one.time, one.xid));
            let younger = all.split_off(all.len() / 2);
            self.undecided.extend(younger.into_iter().map(|one| (one.xid, one)));
            over = all;
        }
        self.undecided.insert(rollback.xid, rollback);
        over
    }

    /// Whether its rollback is held back.
    pub(crate) fn is_undecided(&self, xid: u32) -> bool {
        self.undecided.contains_key(&xid)
    }

    /// The rollbacks of what is a transaction for sure: a top-level one is older than its subtransactions, and no older one runs.
    pub(crate) fn take_decided(&mut self, running: &RunningTransactions) -> Vec<Rollback> {
        self.take(|xid| running.is_oldest_after(xid))
    }

    /// All rollbacks that are held back, where the log ends.
    pub(crate) fn take_all(&mut self) -> Vec<Rollback> {
        self.take(|_| true)
    }

    fn take(&mut self, is_over: impl Fn(u32) -> bool) -> Vec<Rollback> {
        let mut over: Vec<Rollback> =
            self.undecided.extract_if(|xid, _| is_over(*xid)).map(|(_, one)| one).collect();
        over.sort_unstable_by_key(|one| one.xid);
        over
    }

    /// Forgets the subtransactions of what a crash ended.
    pub(crate) fn forget(&mut self, has_ended: impl Fn(u32) -> bool) {
        let tops = &mut self.tops;
        self.of_top.retain(|top, subxids| {
            let is_over = has_ended(*top);
            if is_over {
                subxids.iter().for_each(|subxid| {
                    tops.remove(subxid);
                });
            }
            !is_over
        });
    }
}
