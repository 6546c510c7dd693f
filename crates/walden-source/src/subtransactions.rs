//! Assigns subtransactions to top-level transactions, as far as the WAL names these before they end.
//!
//! A commit names the subtransactions that it commits, but not those that were rolled back earlier. With
//! `wal_level=logical`, the first record of each subtransaction names the top-level transaction. `ASSIGNMENT`
//! records name 64 subtransactions at a time (`AssignTransactionId` in `xact.c`), including subtransactions
//! that were rolled back before. So a transaction that was rolled back may turn out to be a subtransaction
//! while an older transaction runs.

use rustc_hash::FxHashMap;
use walden_format::transam::RunningTransactions;

/// Most rollbacks that are held back. Beyond it, the older half counts as transactions.
const MAX_UNDECIDED: usize = 1 << 17;

/// The known subtransactions of transactions in progress, and the held rollbacks of transactions that may
/// turn out to be subtransactions. `R` is the caller's information about a rollback.
#[derive(Clone, Debug)]
pub struct Subtransactions<R> {
    tops: FxHashMap<u32, u32>,
    /// The subtransactions of each top-level transaction, including some that were removed from `tops`.
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
    /// Assigns a subtransaction to its top-level transaction. Returns its rollback if that is held back: it
    /// belongs to `top`.
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

    /// Returns the top-level transaction as far as the WAL has named it, or else `xid`.
    pub fn top_of(&self, xid: u32) -> u32 {
        if self.tops.is_empty() { xid } else { self.tops.get(&xid).copied().unwrap_or(xid) }
    }

    /// Ends a subtransaction that is rolled back, including those within it, and returns its top-level
    /// transaction, or `None` if the WAL has named none. If a subtransaction has written nothing itself, only
    /// those within it were named.
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

    /// Returns whether subtransactions of a transaction are known.
    pub fn is_top(&self, xid: u32) -> bool {
        self.of_top.contains_key(&xid)
    }

    /// Returns the known subtransactions of a transaction; some may have ended.
    pub fn get(&self, top: u32) -> &[u32] {
        self.of_top.get(&top).map_or(&[], Vec::as_slice)
    }

    /// Ends a transaction, and returns its known subtransactions; some may have ended before.
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

    /// Holds a rollback back. If there are too many, returns the older half, which now count as transactions,
    /// in their order.
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

    /// Returns whether a transaction's rollback is held back.
    pub fn is_undecided(&self, xid: u32) -> bool {
        self.undecided.contains_key(&xid)
    }

    /// Returns the rollbacks that certainly belong to transactions, in their order: a top-level transaction
    /// is older than its subtransactions, and no older one is running.
    pub fn take_decided(&mut self, running: &RunningTransactions) -> Vec<R> {
        self.take(|xid, _| running.is_oldest_after(xid))
    }

    /// Returns all held rollbacks at the end of the WAL, in their order.
    pub fn take_all(&mut self) -> Vec<R> {
        self.take(|_, _| true)
    }

    fn take(&mut self, is_over: impl Fn(u32, &Held<R>) -> bool) -> Vec<R> {
        let over = self.undecided.extract_if(|xid, held| is_over(*xid, held));
        let mut over: Vec<Held<R>> = over.map(|(_, held)| held).collect();
        over.sort_unstable_by_key(|held| held.number);
        over.into_iter().map(|held| held.rollback).collect()
    }

    /// Drops the subtransactions of transactions that a crash ended.
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
        // The outer subtransaction wrote nothing itself.
        assert_eq!(known.roll_back(9, &[11]), Some(10));
        assert_eq!(known.roll_back(12, &[]), None);
        assert!(known.hold(12, "twelve").is_empty() && known.is_undecided(12));
        assert_eq!(known.assign(12, 10), Some("twelve"));
        assert!(!known.is_undecided(12));
        assert_eq!(known.get(10), [11]);
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
    fn the_older_half_of_too_many_rollbacks_is_dropped() {
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
