//! What records mean beyond their bytes.

use walden_format::payload::standby::AccessExclusiveLock;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xlog::{Checkpoint, CheckpointRedo, ChecksumState, WalLevel};
use walden_format::record::RelFileLocator;
use walden_format::transam::RunningTransactions;

use super::sums::TransactionTally;

/// The end of a transaction. Small, as there may be one per two records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub time: Timestamp,
    pub xid: u32,
    pub records: u32,
    pub bytes: u32,
    pub image_bytes: u32,
    /// Number of its entries in [`SegmentTally::subxids`](super::SegmentTally::subxids).
    pub subxids: u32,
    pub committed: bool,
}

impl Finished {
    /// The sums of the transaction that were still in its place.
    pub fn tally(&self) -> TransactionTally {
        TransactionTally {
            records: self.records.into(),
            bytes: self.bytes.into(),
            image_bytes: self.image_bytes.into(),
        }
    }
}

/// A record that matters beyond its bytes.
#[derive(Debug)]
pub(crate) enum Event {
    /// PREPARE TRANSACTION; the transaction is still open.
    Prepare {
        xid: u32,
        subxids: Vec<u32>,
    },
    /// Subtransactions of a transaction in progress.
    Assigned {
        top: u32,
        subxids: Vec<u32>,
    },
    /// The first record of a subtransaction with `wal_level=logical`.
    Child {
        xid: u32,
        top: u32,
    },
    Checkpoint(Box<Checkpoint>),
    /// A checkpoint began; since 17.
    CheckpointRedo(CheckpointRedo),
    /// The main fork of a relation was created.
    Created {
        xid: u32,
        file: RelFileLocator,
    },
    /// A committed transaction dropped these files, in the order of its record.
    Dropped {
        xids: Vec<u32>,
        files: Vec<RelFileLocator>,
    },
    /// Transactions hold these locks.
    Locked(Vec<AccessExclusiveLock>),
    /// A snapshot of the transactions in progress.
    Running(RunningTransactions),
    /// Settings logged by `PARAMETER_CHANGE`.
    Parameters {
        wal_level: WalLevel,
        wal_log_hints: bool,
    },
    FullPageWrites(bool),
    /// Logical decoding was switched on or off; since 19.
    LogicalDecoding(bool),
    /// Data checksums were switched; since 19.
    Checksums(ChecksumState),
    BackupEnd,
    Switch,
}
