//! Merges the segments' sums by transaction: adds subtransactions to their top-level transaction, and keeps
//! only the largest transactions.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::transam::FIRST_NORMAL_XID;

use crate::collect::TransactionTally;
use crate::explanation::{Outcome, Transaction, TransactionSums};
use crate::views::MAX_GROUPS;

/// The transactions in progress, the largest finished transactions, and the sums over all transactions.
#[derive(Clone)]
pub(crate) struct Transactions {
    top: usize,
    open: FxHashMap<u32, OpenTransaction>,
    largest: BinaryHeap<Reverse<(u64, Reverse<u32>, Kept)>>,
    /// Transactions that have no end record and that a later snapshot shows as ended.
    cut_off: FxHashSet<u32>,
    sums: TransactionSums,
}

#[derive(Clone, Copy, Default)]
struct OpenTransaction {
    tally: TransactionTally,
    /// Portion of the bytes in subtransactions that were rolled back alone.
    rolled_back_bytes: u64,
    is_prepared: bool,
}

impl OpenTransaction {
    fn merge(&mut self, other: &OpenTransaction) {
        self.tally.merge(&other.tally);
        self.rolled_back_bytes += other.rolled_back_bytes;
    }
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
            cut_off: FxHashSet::default(),
            sums: TransactionSums::default(),
        }
    }

    /// Adds records of a transaction, or of none. initdb's bootstrap writes all of its records with
    /// `BootstrapTransactionId` and no end record, so it does not count as a transaction that a crash
    /// interrupted.
    pub(crate) fn add(&mut self, xid: u32, sum: &TransactionTally) {
        if xid < FIRST_NORMAL_XID {
            self.sums.system_bytes += sum.bytes;
            self.sums.system_records += sum.records;
        } else if sum.records > 0 {
            self.open.entry(xid).or_default().tally.merge(sum);
        }
    }

    /// Moves the sums of subtransactions to a transaction in progress.
    pub(crate) fn fold(&mut self, subxids: &[u32], xid: u32) {
        for subxid in subxids {
            if let Some(of_sub) = self.open.remove(subxid) {
                self.open.entry(xid).or_default().merge(&of_sub);
            }
        }
    }

    /// Moves the sums of a subtransaction that was rolled back alone to its top-level transaction.
    pub(crate) fn fold_rolled_back(&mut self, subxid: u32, top: u32) {
        self.sums.subtransactions += 1;
        self.sums.aborted_subtransactions += 1;
        if let Some(OpenTransaction { tally, .. }) = self.open.remove(&subxid) {
            let open = self.open.entry(top).or_default();
            open.merge(&OpenTransaction { tally, rolled_back_bytes: tally.bytes, is_prepared: false });
        }
    }

    pub(crate) fn prepare(&mut self, xid: u32) {
        self.open.entry(xid).or_default().is_prepared = true;
    }

    pub(crate) fn is_prepared(&self, xid: u32) -> bool {
        self.open.get(&xid).is_some_and(|open| open.is_prepared)
    }

    /// Transactions in progress, and subtransactions that are not folded yet.
    pub(crate) fn open(&self) -> impl Iterator<Item = u32> {
        self.open.keys().copied()
    }

    /// Number of subtransactions so far that are known to have been rolled back alone.
    pub(crate) fn aborted_subtransactions(&self) -> u64 {
        self.sums.aborted_subtransactions
    }

    /// Closes a transaction, with sums that are not in `open` yet. The caller has folded the transaction's
    /// subtransactions into it.
    pub(crate) fn close(
        &mut self,
        xid: u32,
        subtransactions: u32,
        outcome: Outcome,
        time: Option<i64>,
        tally: TransactionTally,
    ) {
        let mut closed = OpenTransaction { tally, ..OpenTransaction::default() };
        if !self.open.is_empty()
            && let Some(open) = self.open.remove(&xid)
        {
            closed.merge(&open);
        }
        let TransactionTally { records, bytes, image_bytes } = closed.tally;
        self.sums.bytes += bytes;
        match outcome {
            Outcome::Committed => {
                self.sums.committed += 1;
                self.sums.subtransactions += u64::from(subtransactions);
            }
            Outcome::Aborted => {
                self.sums.aborted += 1;
                self.sums.aborted_bytes += bytes;
                // An abort record has a time, so a crash ended this transaction.
                if time.is_none() {
                    self.sums.cut_off += 1;
                    // Beyond this number, each counts as a different one.
                    let is_new = self.cut_off.len() >= MAX_GROUPS || self.cut_off.insert(xid);
                    self.sums.cut_off_xids += u64::from(is_new);
                    self.sums.cut_off_bytes += bytes;
                }
            }
            Outcome::Prepared | Outcome::Open => self.sums.open += 1,
        }
        if outcome != Outcome::Aborted {
            // In an aborted transaction, these bytes are in `aborted_bytes` already: no byte counts in both.
            self.sums.aborted_subtransaction_bytes += closed.rolled_back_bytes;
        }
        let transaction = Transaction { xid, outcome, time, records, bytes, image_bytes, subtransactions };
        let entry = (bytes, Reverse(xid), Kept(transaction));
        if self.largest.len() < self.top || self.largest.peek().is_some_and(|least| least.0 < entry) {
            self.largest.push(Reverse(entry));
            if self.largest.len() > self.top {
                self.largest.pop();
            }
        }
    }

    /// Returns the largest transactions and the sums, once all transactions are closed.
    pub(crate) fn finish(self) -> (Vec<Transaction>, TransactionSums) {
        let sums = self.sums;
        let mut largest: Vec<Transaction> =
            self.largest.into_iter().map(|Reverse((_, _, kept))| kept.0).collect();
        largest.sort_by_key(|transaction| (Reverse(transaction.bytes), transaction.xid));
        // Bytes that are in no row belong to unlisted transactions: none are lost.
        let listed: u64 = largest.iter().map(|one| one.bytes).sum();
        let are_all_listed = largest.len() as u64 == sums.committed + sums.aborted + sums.open;
        debug_assert!(
            self.open.is_empty() && listed <= sums.bytes && (!are_all_listed || listed == sums.bytes),
            "the transactions do not add up: {listed} bytes of {}",
            sums.bytes
        );
        (largest, sums)
    }
}
