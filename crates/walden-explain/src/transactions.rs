//! Folds what segments counted per transaction: subtransactions into their top-level one, and only the largest are kept.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::transam::{FIRST_NORMAL_XID, RunningTransactions};

use crate::collect::TransactionTally;
use crate::explanation::{Outcome, Transaction, TransactionSums};

/// The transactions in progress, the largest finished ones, and the sums of all.
#[derive(Clone)]
pub(crate) struct Transactions {
    top: usize,
    open: FxHashMap<u32, OpenTransaction>,
    largest: BinaryHeap<Reverse<(u64, Reverse<u32>, Kept)>>,
    sums: TransactionSums,
    /// Bytes of transactions that were rolled back recently: they may turn out to be subtransactions.
    aborted: FxHashMap<u32, u64>,
    /// Known subtransactions of transactions in progress.
    assigned: FxHashSet<u32>,
}

/// Maximum number of entries in the tables of subtransactions.
const MAX_SUBTRANSACTIONS: usize = 1 << 17;

#[derive(Clone, Copy, Default)]
struct OpenTransaction {
    tally: TransactionTally,
    is_prepared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept(Transaction);

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Kept) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Kept) -> Ordering {
        self.0.time.cmp(&other.0.time)
    }
}

impl Transactions {
    pub(crate) fn new(top: usize) -> Transactions {
        Transactions {
            top,
            open: FxHashMap::default(),
            largest: BinaryHeap::new(),
            sums: TransactionSums::default(),
            aborted: FxHashMap::default(),
            assigned: FxHashSet::default(),
        }
    }

    /// Adds records of a transaction, or of none. initdb's bootstrap writes all of its records with `BootstrapTransactionId`, and
    /// none that ends it: that is no transaction that a crash could have cut off.
    pub(crate) fn add(&mut self, xid: u32, sum: &TransactionTally) {
        if xid < FIRST_NORMAL_XID {
            self.sums.system_bytes += sum.bytes;
            self.sums.system_records += sum.records;
        } else if sum.records > 0 {
            self.open.entry(xid).or_default().tally.merge(sum);
        }
    }

    /// A transaction is prepared, with its subtransactions.
    pub(crate) fn prepare(&mut self, xid: u32, subxids: &[u32]) {
        let of_subs: Vec<OpenTransaction> =
            subxids.iter().filter_map(|subxid| self.open.remove(subxid)).collect();
        let open = self.open.entry(xid).or_default();
        of_subs.iter().for_each(|of_sub| open.tally.merge(&of_sub.tally));
        open.is_prepared = true;
    }

    pub(crate) fn is_prepared(&self, xid: u32) -> bool {
        self.open.get(&xid).is_some_and(|open| open.is_prepared)
    }

    /// Learns that these are subtransactions. Their rollbacks look like those of transactions, and may have come before.
    pub(crate) fn assign(&mut self, subxids: &[u32]) {
        if self.assigned.len() + subxids.len() > MAX_SUBTRANSACTIONS {
            self.assigned.clear();
        }
        for subxid in subxids {
            match self.aborted.remove(subxid) {
                Some(bytes) => {
                    self.sums.aborted -= 1;
                    self.sums.aborted_bytes -= bytes;
                    self.count_aborted_subtransaction(bytes);
                }
                None => {
                    self.assigned.insert(*subxid);
                }
            }
        }
    }

    fn count_aborted_subtransaction(&mut self, bytes: u64) {
        self.sums.subtransactions += 1;
        self.sums.aborted_subtransactions += 1;
        self.sums.aborted_subtransaction_bytes += bytes;
    }

    /// Closes a transaction. `tally` is what is not in `open` yet.
    pub(crate) fn close(
        &mut self,
        xid: u32,
        subxids: &[u32],
        outcome: Outcome,
        time: Option<i64>,
        mut tally: TransactionTally,
    ) {
        if !self.open.is_empty() {
            for part in subxids.iter().chain([&xid]) {
                if let Some(open) = self.open.remove(part) {
                    tally.merge(&open.tally);
                }
            }
        }
        self.sums.bytes += tally.bytes;
        if !self.assigned.is_empty() {
            subxids.iter().for_each(|subxid| {
                self.assigned.remove(subxid);
            });
        }
        if outcome == Outcome::Aborted && self.assigned.remove(&xid) {
            return self.count_aborted_subtransaction(tally.bytes);
        }
        match outcome {
            Outcome::Committed => {
                self.sums.committed += 1;
                self.sums.subtransactions += subxids.len() as u64;
            }
            Outcome::Aborted => {
                self.sums.aborted += 1;
                self.sums.aborted_bytes += tally.bytes;
                if self.aborted.len() >= MAX_SUBTRANSACTIONS {
                    self.aborted.clear();
                }
                self.aborted.insert(xid, tally.bytes);
            }
            Outcome::Prepared | Outcome::Open => self.sums.open += 1,
        }
        let TransactionTally { records, bytes, image_bytes } = tally;
        let subtransactions = subxids.len() as u32;
        let transaction = Transaction { xid, outcome, time, records, bytes, image_bytes, subtransactions };
        if self.largest.len() < self.top || self.largest.peek().is_some_and(|least| least.0.0 < bytes) {
            self.largest.push(Reverse((bytes, Reverse(xid), Kept(transaction))));
            if self.largest.len() > self.top {
                self.largest.pop();
            }
        }
    }

    /// Closes transactions that a crash ended without a record: the next record that says which ones run does not have them.
    pub(crate) fn close_ended(&mut self, running: &RunningTransactions) {
        let is_over = |open: &(&u32, &OpenTransaction)| !open.1.is_prepared && running.has_ended(*open.0);
        let over: Vec<u32> = self.open.iter().filter(is_over).map(|(xid, _)| *xid).collect();
        for xid in over {
            self.close(xid, &[], Outcome::Aborted, None, TransactionTally::default());
        }
    }

    pub(crate) fn finish(mut self) -> (Vec<Transaction>, TransactionSums) {
        let mut open: Vec<(u32, bool)> =
            self.open.iter().map(|(xid, open)| (*xid, open.is_prepared)).collect();
        open.sort_unstable();
        for (xid, prepared) in open {
            let outcome = if prepared { Outcome::Prepared } else { Outcome::Open };
            self.close(xid, &[], outcome, None, TransactionTally::default());
        }
        let mut largest: Vec<Transaction> =
            self.largest.into_iter().map(|Reverse((_, _, kept))| kept.0).collect();
        largest.sort_by_key(|transaction| (Reverse(transaction.bytes), transaction.xid));
        (largest, self.sums)
    }
}
