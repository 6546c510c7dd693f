//! Transaction IDs and OIDs that PostgreSQL reserves (`access/transam.h`), and the order of transaction IDs.

use std::error::Error;
use std::fmt;

use crate::payload::standby::RunningXacts;
use crate::payload::xlog::Checkpoint;

/// The transaction ID that `VACUUM` before 9.4 stored in frozen tuples, visible to all
/// (`FrozenTransactionId`).
pub const FROZEN_XID: u32 = 2;
/// The lowest transaction ID that PostgreSQL assigns (`FirstNormalTransactionId`).
pub const FIRST_NORMAL_XID: u32 = 3;
/// The lowest OID of an object that initdb did not create (`FirstNormalObjectId`). Files of catalogs have
/// lower numbers until they are rewritten.
pub const FIRST_NORMAL_OID: u32 = 16_384;

/// A transaction ID that PostgreSQL reserves, possibly with an epoch in its upper half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedXid(u64);

impl fmt::Display for ReservedXid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReservedXid(full) = *self;
        match full as u32 {
            xid if u64::from(xid) == full => {
                write!(f, "expected a transaction ID from {FIRST_NORMAL_XID} on, found {full}")
            }
            xid => write!(
                f,
                "expected a transaction ID from {FIRST_NORMAL_XID} on in the lower 32 bits, found {xid} there in {full}"
            ),
        }
    }
}

impl Error for ReservedXid {}

/// Returns the transaction ID in a `FullTransactionId`, which has an epoch in its upper half, as
/// `recovery_target_xid` does; WAL has no epochs.
///
/// # Errors
/// `full` has an ID that PostgreSQL never assigns.
pub fn without_epoch(full: u64) -> Result<u32, ReservedXid> {
    let xid = full as u32;
    if xid >= FIRST_NORMAL_XID { Ok(xid) } else { Err(ReservedXid(full)) }
}

/// Whether transaction `one` is older than `other` (`TransactionIdPrecedes`). Transaction IDs wrap around;
/// reserved IDs are older than all other IDs.
#[inline]
pub fn precedes(one: u32, other: u32) -> bool {
    if one < FIRST_NORMAL_XID || other < FIRST_NORMAL_XID {
        one < other
    } else {
        (one.wrapping_sub(other) as i32) < 0
    }
}

/// The transactions that run at some record. A crash ended any older transaction without an end record in
/// WAL, unless it is prepared.
#[derive(Clone, Debug)]
pub struct RunningTransactions {
    /// All older transactions have ended.
    oldest: u32,
    /// The next transaction ID to be assigned: this and later transactions start after the record.
    next: u32,
    /// All running transactions including subtransactions, ascending; `None` if the list is incomplete.
    listed: Option<Vec<u32>>,
}

impl RunningTransactions {
    /// Returns the transactions of a `RUNNING_XACTS` snapshot.
    pub fn from_snapshot(snapshot: &RunningXacts<'_>) -> RunningTransactions {
        let listed = (!snapshot.subxid_overflow).then(|| {
            let mut listed: Vec<u32> = snapshot.xids.chain(snapshot.subxids).collect();
            listed.sort_unstable();
            listed
        });
        RunningTransactions { oldest: snapshot.oldest_running_xid, next: snapshot.next_xid, listed }
    }

    /// Returns the transactions at a checkpoint of a server that has shut down or finished recovery: only
    /// prepared transactions remain.
    pub fn at_shutdown(checkpoint: &Checkpoint) -> RunningTransactions {
        // The lower half is the transaction ID without its epoch.
        let next = checkpoint.next_xid as u32;
        RunningTransactions { oldest: next, next, listed: None }
    }

    /// Returns the oldest running transaction, and the next transaction ID to be assigned; `None` if no
    /// transaction runs.
    pub fn oldest(&self) -> Option<(u32, u32)> {
        precedes(self.oldest, self.next).then_some((self.oldest, self.next))
    }

    /// Returns whether all running transactions are younger than `xid`.
    pub fn is_oldest_after(&self, xid: u32) -> bool {
        precedes(xid, self.oldest)
    }

    /// Whether a transaction or subtransaction that is not prepared and has no end record in WAL has
    /// nevertheless ended.
    pub fn has_ended(&self, xid: u32) -> bool {
        let is_listed = |listed: &Vec<u32>| listed.binary_search(&xid).is_ok();
        let is_missing = self.listed.as_ref().is_some_and(|listed| !is_listed(listed));
        self.is_oldest_after(xid) || is_missing && precedes(xid, self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_wrap_around() {
        assert!(precedes(3, 4) && precedes(u32::MAX, 3) && precedes(2, 3) && precedes(0, u32::MAX));
        assert!(!precedes(4, 3) && !precedes(3, u32::MAX) && !precedes(5, 5));
    }

    #[test]
    fn what_a_snapshot_does_not_list_has_ended() {
        let running = RunningTransactions { oldest: 10, next: 20, listed: Some(vec![10, 15]) };
        let ended: Vec<u32> = (8..22).filter(|xid| running.has_ended(*xid)).collect();
        assert_eq!(ended, [8, 9, 11, 12, 13, 14, 16, 17, 18, 19]);
        // Transaction IDs have wrapped around.
        let running =
            RunningTransactions { oldest: u32::MAX - 1, next: 5, listed: Some(vec![3, u32::MAX - 1]) };
        let ended = [u32::MAX - 2, u32::MAX, 4].map(|xid| running.has_ended(xid));
        assert_eq!((ended, running.has_ended(3), running.has_ended(5)), ([true; 3], false, false));
        let overflown = RunningTransactions { oldest: 10, next: 20, listed: None };
        assert!(overflown.has_ended(9) && !overflown.has_ended(11));
    }
}
