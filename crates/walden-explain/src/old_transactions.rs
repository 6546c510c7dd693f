//! Transactions that stay open while others come and go.
//!
//! `RUNNING_XACTS` records, which the server writes at checkpoints and every 15 seconds, have the oldest
//! transaction with an ID that runs and the next ID (`LogStandbySnapshot`). While a transaction is open, no
//! row version that a younger one deletes can be removed. A transaction that has only read has no ID, and is
//! in no record.

use walden_format::lsn::Lsn;

/// A transaction that was the oldest running transaction in several consecutive snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldTransaction {
    /// The transaction.
    pub xid: u32,
    /// LSN of the first snapshot in which the transaction is the oldest.
    pub from: Lsn,
    /// LSN of the last snapshot in which the transaction is the oldest.
    pub to: Lsn,
    /// How many transaction IDs were assigned after its own, up to the last snapshot.
    pub younger: u32,
    /// The last transaction ends before these snapshots, in microseconds since 1970-01-01 UTC, if they are
    /// known.
    pub times: Option<(i64, i64)>,
}

impl OldTransaction {
    /// Bytes of WAL between the snapshots.
    pub fn bytes(&self) -> u64 {
        self.to.bytes_since(self.from)
    }
}

/// Follows the oldest transactions.
#[derive(Clone, Debug, Default)]
pub(crate) struct OldestTransactions {
    current: Option<OldTransaction>,
    longest: Option<OldTransaction>,
}

impl OldestTransactions {
    /// Adds the next snapshot of running transactions: its oldest transaction and the next transaction ID, if
    /// a transaction runs, and the time of the last transaction end before the snapshot.
    pub(crate) fn observe(&mut self, lsn: Lsn, oldest: Option<(u32, u32)>, micros: Option<i64>) {
        let Some((xid, next)) = oldest else {
            self.current = None;
            return;
        };
        let younger = next.wrapping_sub(xid).saturating_sub(1);
        // Another range of the WAL may start before the previous range.
        let continued = self.current.filter(|one| one.xid == xid && one.from <= lsn);
        let current = match continued {
            Some(one) => {
                let times = one.times.zip(micros).map(|((first, _), last)| (first, last));
                OldTransaction { to: lsn, younger, times, ..one }
            }
            None => OldTransaction {
                xid,
                from: lsn,
                to: lsn,
                younger,
                times: micros.map(|micros| (micros, micros)),
            },
        };
        self.current = Some(current);
        if self.longest.is_none_or(|longest| current.bytes() > longest.bytes()) {
            self.longest = Some(current);
        }
    }

    /// The one that was the oldest for most of the WAL.
    pub(crate) fn longest(&self) -> Option<OldTransaction> {
        self.longest.filter(|one| one.from < one.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transaction_that_was_open_longest_is_found() {
        let mut oldest = OldestTransactions::default();
        for (lsn, xid, next) in
            [(10, 5, 9), (20, 7, 7), (30, 8, 10), (50, 8, 300), (90, 8, 1008), (95, 900, 1010)]
        {
            oldest.observe(Lsn(lsn), (xid != next).then_some((xid, next)), Some(lsn as i64));
        }
        let expected =
            OldTransaction { xid: 8, from: Lsn(30), to: Lsn(90), younger: 999, times: Some((30, 90)) };
        assert_eq!(oldest.longest(), Some(expected));
    }
}
