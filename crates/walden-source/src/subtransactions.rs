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

/// The known subtransactions of transactions in progress, and rollbacks of what may turn out to be one, with what is kept of each.
/// As many as these have, like their sums.
#[derive(Clone, Debug)]
pub struct Subtransactions<R> {
    tops: FxHashMap<u32, u32>,
    /// All of `tops` by top-level transaction; some may be gone from there.
    of_top: FxHashMap<u32, Vec<u32>>,
    undecided: FxHashMap<u32, Held<R>>,
    /// The number of the next rollback that is held back.
    next: u64,
}

#[derive(Clone, Debug)]
struct Held<R> {
    number: u64,
    rollback: R,
}

impl<R> Default for Subtransactions<R> {
    fn default() -> Subtransactions<R> {
        let (tops, of_top, undecided) = (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        Subtransactions { tops, of_top, undecided, next: 0 }
    }
}

impl<R> Subtransactions<R> {
    /// Learns of which transaction a subtransaction is. If it was rolled back before, its bytes belong there now.
    pub fn assign(&mut self, subxid: u32, top: u32) -> Option<R> {
        if subxid == top {
            return None;
        }
        let held = self.undecided.remove(&subxid);
        if held.is_none() && self.tops.insert(subxid, top) != Some(top) {
            self.of_top.entry(top).or_default().push(subxid);
        }
        held.map(|held| held.rollback)
    }

    /// The top-level transaction as far as the log has named it.
    pub fn top_of(&self, xid: u32) -> u32 {
        if self.tops.is_empty() { xid } else { self.tops.get(&xid).copied().unwrap_or(xid) }
    }

    /// Ends a subtransaction that is rolled back, with those within it, and returns its top-level transaction; `None` if the log has
    /// named none. One that wrote nothing itself is named by those within it alone.
    pub fn roll_back(&mut self, xid: u32, subxids: &[u32]) -> Option<u32> {
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
    pub fn is_top(&self, xid: u32) -> bool {
        self.of_top.contains_key(&xid)
    }

    /// What is known of its subtransactions, some of which may have ended.
    pub fn of(&self, top: u32) -> &[u32] {
        self.of_top.get(&top).map_or(&[], Vec::as_slice)
    }

    /// Ends a transaction, and returns what is known of its subtransactions, some of which may have ended before.
    pub fn end(&mut self, xid: u32) -> Vec<u32> {
        if self.of_top.is_empty() {
            return Vec::new();
        }
        let subxids = self.of_top.remove(&xid).unwrap_or_default();
        subxids.iter().for_each(|subxid| {
            self.tops.remove(subxid);
        });
        subxids
    }

    /// Holds a rollback back, and returns those that now count as transactions, as there are too many; in the order in which they came.
    pub fn hold(&mut self, xid: u32, rollback: R) -> Vec<R> {
        let over = match self.undecided.len() {
            MAX_UNDECIDED.. => {
                let mut numbers: Vec<u64> = self.undecided.values().map(|held| held.number).collect();
                let (_, first_kept, _) = numbers.select_nth_unstable(MAX_UNDECIDED / 2);
                let first_kept = *first_kept;
                self.take(|_, held| held.number < first_kept)
            }
            _ => Vec::new(),
        };
        self.undecided.insert(xid, Held { number: self.next, rollback });
        self.next += 1;
        over
    }

    /// Whether its rollback is held back.
    pub fn is_undecided(&self, xid: u32) -> bool {
        self.undecided.contains_key(&xid)
    }

    /// The rollbacks of what is a transaction for sure, in the order in which they came: a top-level one is older than its
    /// subtransactions, and no older one runs.
    pub fn take_decided(&mut self, running: &RunningTransactions) -> Vec<R> {
        self.take(|xid, _| running.is_oldest_after(xid))
    }

    /// All rollbacks that are held back, where the log ends, in the order in which they came.
    pub fn take_all(&mut self) -> Vec<R> {
        self.take(|_, _| true)
    }

    fn take(&mut self, is_over: impl Fn(u32, &Held<R>) -> bool) -> Vec<R> {
        let over = self.undecided.extract_if(|xid, held| is_over(*xid, held));
        let mut over: Vec<Held<R>> = over.map(|(_, held)| held).collect();
        over.sort_unstable_by_key(|held| held.number);
        over.into_iter().map(|held| held.rollback).collect()
    }

    /// Forgets the subtransactions of what a crash ended.
    pub fn forget(&mut self, has_ended: impl Fn(u32) -> bool) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_is_of_the_transaction_that_the_log_names_before_or_after_it() {
        let mut known: Subtransactions<&str> = Subtransactions::default();
        assert_eq!(known.assign(11, 10), None);
        assert_eq!((known.top_of(11), known.top_of(10), known.is_top(10)), (10, 10, true));
        // The outer one wrote nothing itself.
        assert_eq!(known.roll_back(9, &[11]), Some(10));
        assert_eq!(known.roll_back(12, &[]), None);
        assert!(known.hold(12, "twelve").is_empty() && known.is_undecided(12));
        assert_eq!(known.assign(12, 10), Some("twelve"));
        assert!(!known.is_undecided(12));
        assert_eq!(known.of(10), [11]);
        assert_eq!(known.end(10), [11]);
        assert!(!known.is_top(10) && known.take_all().is_empty());
    }

    #[test]
    fn a_transaction_is_none_of_its_own() {
        let mut known: Subtransactions<()> = Subtransactions::default();
        assert_eq!(known.assign(10, 10), None);
        assert!(!known.is_top(10));
        known.assign(11, 10);
        assert_eq!(known.roll_back(10, &[11]), None);
        assert_eq!(known.end(10), [11]);
    }

    #[test]
    fn of_too_many_rollbacks_the_older_half_is_let_go() {
        let mut known = Subtransactions::default();
        let most = MAX_UNDECIDED as u32;
        // Younger transactions may end first.
        for xid in (1..=most).rev() {
            assert!(known.hold(xid, xid).is_empty());
        }
        let over = known.hold(most + 1, most + 1);
        assert!(over.iter().copied().eq((most / 2 + 1..=most).rev()));
        assert!(known.take_all().into_iter().eq((1..=most / 2).rev().chain([most + 1])));
    }
}
