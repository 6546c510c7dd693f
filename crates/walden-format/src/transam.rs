//! Transactions and objects with numbers that PostgreSQL keeps for itself (`access/transam.h`), and their order.

use crate::payload::standby::RunningXacts;
use crate::payload::xlog::Checkpoint;

/// What an old `VACUUM` wrote in place of a transaction that all see as committed (`FrozenTransactionId`).
pub const FROZEN_XID: u32 = 2;
/// The lowest number of a transaction that a session can have (`FirstNormalTransactionId`).
pub const FIRST_NORMAL_XID: u32 = 3;
/// The lowest OID of an object that initdb did not make (`FirstNormalObjectId`); files of the catalog have lower numbers until they
/// are rewritten.
pub const FIRST_NORMAL_OID: u32 = 16_384;

/// Whether a transaction is older than another (`TransactionIdPrecedes`): numbers wrap around, but those that PostgreSQL keeps are the
/// oldest.
#[inline]
pub fn precedes(one: u32, other: u32) -> bool {
    if one < FIRST_NORMAL_XID || other < FIRST_NORMAL_XID {
        one < other
    } else {
        (one.wrapping_sub(other) as i32) < 0
    }
}

/// The transactions that run at some record. Others that are older and have no end in the log were ended by a crash, unless they are
/// prepared.
#[derive(Clone, Debug)]
pub struct RunningTransactions {
    /// What is older has ended.
    oldest: u32,
    /// The next transaction to begin: it and later ones come behind the record.
    next: u32,
    /// All that run, subtransactions included, ascending; nothing if some of them are not known.
    listed: Option<Vec<u32>>,
}

impl RunningTransactions {
    /// Those of a snapshot.
    pub fn of_snapshot(snapshot: &RunningXacts<'_>) -> RunningTransactions {
        let listed = (!snapshot.subxid_overflow).then(|| {
            let mut listed: Vec<u32> = snapshot.xids.chain(snapshot.subxids).collect();
            listed.sort_unstable();
            listed
        });
        RunningTransactions { oldest: snapshot.oldest_running_xid, next: snapshot.next_xid, listed }
    }

    /// At a checkpoint of a server that is shut down, or has recovered, only prepared ones are left.
    pub fn at_shutdown(checkpoint: &Checkpoint) -> RunningTransactions {
        // The lower half is the number without its epoch.
        let next = checkpoint.next_xid as u32;
        RunningTransactions { oldest: next, next, listed: None }
    }

    /// Whether all that run are younger.
    pub fn is_oldest_after(&self, xid: u32) -> bool {
        precedes(xid, self.oldest)
    }

    /// Whether a transaction, or a subtransaction, that is not prepared and of which no end was met has ended all the same.
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
        // Numbers have wrapped around.
        let running =
            RunningTransactions { oldest: u32::MAX - 1, next: 5, listed: Some(vec![3, u32::MAX - 1]) };
        let ended = [u32::MAX - 2, u32::MAX, 4].map(|xid| running.has_ended(xid));
        assert_eq!((ended, running.has_ended(3), running.has_ended(5)), ([true; 3], false, false));
        let overflown = RunningTransactions { oldest: 10, next: 20, listed: None };
        assert!(overflown.has_ended(9) && !overflown.has_ended(11));
    }
}
