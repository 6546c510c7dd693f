//! Meaning of records beyond their bytes.

use walden_format::lsn::Lsn;
use walden_format::payload::standby::AccessExclusiveLock;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xact::{DroppedStats, TransactionEnd};
use walden_format::payload::xlog::{Checkpoint, CheckpointRedo, WalLevel};
use walden_format::record::RelFileLocator;
use walden_format::transam::RunningTransactions;
use walden_format::version::Major;

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
    /// Returns the transaction's sums since it took its slot in the table.
    pub fn tally(&self) -> TransactionTally {
        TransactionTally {
            records: self.records.into(),
            bytes: self.bytes.into(),
            image_bytes: self.image_bytes.into(),
        }
    }
}

/// Files that a commit record drops.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// The subtransactions, then the transaction.
    pub xids: Vec<u32>,
    /// The files, in the order of the record.
    pub files: Vec<RelFileLocator>,
    /// Databases and OIDs of the dropped relations, from their dropped statistics; `None` before 15.
    pub relations: Option<Vec<(u32, u32)>>,
    /// Whether the transaction is known to have logged its locks, as it does unless `wal_level` is `minimal`.
    pub has_logged_locks: bool,
}

impl Dropped {
    pub fn read(end: &TransactionEnd<'_>, record_xid: u32, version: Major) -> Dropped {
        /// `PGSTAT_KIND_RELATION`
        const RELATION: i32 = 2;
        let relations = end.dropped_stats.filter(|stats| stats.kind == RELATION);
        let number = |stats: DroppedStats| Some((stats.database, u32::try_from(stats.object).ok()?));
        // `RecordTransactionCommitPrepared` sets the flag with or without locks. Before 10, the flag does not
        // exist.
        let has_flag = end.flags.has_access_exclusive_locks() && end.twophase_xid.is_none();
        Dropped {
            xids: end.subxacts.chain([end.twophase_xid.unwrap_or(record_xid)]).collect(),
            files: end.dropped_relations.collect(),
            relations: (version >= Major::V15).then(|| relations.filter_map(number).collect()),
            has_logged_locks: has_flag || version < Major::V10,
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
    /// A checkpoint started; since 17.
    CheckpointRedo {
        redo: CheckpointRedo,
        /// The last transaction end before it in its segment, if any.
        time: Option<Timestamp>,
    },
    /// The main fork of a relation was created.
    Created {
        xid: u32,
        file: RelFileLocator,
    },
    /// The init fork of an unlogged relation was created.
    CreatedUnlogged(RelFileLocator),
    /// A committed transaction dropped files.
    Dropped(Box<Dropped>),
    /// Transactions hold these locks.
    Locked(Vec<AccessExclusiveLock>),
    /// A snapshot of the transactions in progress.
    Running {
        running: RunningTransactions,
        /// The last transaction end before it in its segment, if any.
        time: Option<Timestamp>,
    },
    /// Settings logged by `PARAMETER_CHANGE`.
    Parameters {
        wal_level: WalLevel,
        wal_log_hints: bool,
    },
    FullPageWrites(bool),
    /// Logical decoding was switched on or off; since 19.
    LogicalDecoding(bool),
    /// A base backup that started at `start` ended.
    BackupEnd {
        start: Lsn,
    },
    Switch,
}
