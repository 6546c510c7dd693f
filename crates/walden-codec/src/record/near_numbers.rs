//! Lists the numbers in main data that are coded as deltas, by kind of record.

use walden_format::payload::heap::PruneFlags;
use walden_format::rmgr::{info, rmid};
use walden_format::version::Major;

/// Base of a number in main data.
#[derive(Clone, Copy)]
pub enum NearNumber {
    /// Time of the last commit or abort; 8 bytes.
    Time,
    /// Highest transaction so far; 4 bytes.
    Transaction,
}

/// Numbers in the main data of one kind of record, with their offsets.
struct NearRow {
    rmid: u8,
    mask: u8,
    info: u8,
    since: Major,
    until: Major,
    places: &'static [(usize, NearNumber)],
}

const fn near(
    rmid: u8,
    (mask, info): (u8, u8),
    (since, until): (Major, Major),
    places: &'static [(usize, NearNumber)],
) -> NearRow {
    NearRow { rmid, mask, info, since, until, places }
}

const ALL: (Major, Major) = (Major::V9_5, Major::V19);
const UNTIL_16: (Major, Major) = (Major::V14, Major::V16);
const SINCE_17: (Major, Major) = (Major::V17, Major::V19);

/// `xact_time`, the first field of `xl_xact_commit` and `xl_xact_abort`.
const TIME: &[(usize, NearNumber)] = &[(0, NearNumber::Time)];
/// A transaction as the first field.
const XID: &[(usize, NearNumber)] = &[(0, NearNumber::Transaction)];
/// `snapshotConflictHorizon` of `xl_heap_prune`.
const CONFLICT_HORIZON: &[(usize, NearNumber)] =
    &[(PruneFlags::CONFLICT_HORIZON_AT, NearNumber::Transaction)];

#[rustfmt::skip]
const NEAR: &[NearRow] = &[
    near(rmid::XACT, (info::xact::OPMASK, info::xact::COMMIT), ALL, TIME),
    near(rmid::XACT, (info::xact::OPMASK, info::xact::ABORT), ALL, TIME),
    near(rmid::XACT, (info::xact::OPMASK, info::xact::COMMIT_PREPARED), ALL, TIME),
    near(rmid::XACT, (info::xact::OPMASK, info::xact::ABORT_PREPARED), ALL, TIME),
    near(rmid::HEAP2, (info::heap2::OPMASK, info::heap2::PRUNE), UNTIL_16, XID),
    near(rmid::HEAP2, (info::heap2::OPMASK, info::heap2::FREEZE_PAGE), UNTIL_16, XID),
    near(rmid::HEAP2, (info::heap2::OPMASK, info::heap2::PRUNE_ON_ACCESS), SINCE_17, CONFLICT_HORIZON),
    near(rmid::HEAP2, (info::heap2::OPMASK, info::heap2::PRUNE_VACUUM_SCAN), SINCE_17, CONFLICT_HORIZON),
    near(rmid::HEAP2, (info::heap2::OPMASK, info::heap2::VISIBLE), ALL, XID),
    near(rmid::BTREE, (info::RMGR_MASK, info::btree::DELETE), ALL, XID),
];

/// Returns the offsets and bases of numbers in the main data of a kind of record.
pub fn near_numbers(rmid: u8, info: u8, version: Major) -> &'static [(usize, NearNumber)] {
    let fits = |row: &&NearRow| {
        row.rmid == rmid && row.info == info & row.mask && (row.since..=row.until).contains(&version)
    };
    NEAR.iter().find(fits).map_or(&[], |row| row.places)
}

/// Returns whether the main data of a kind of record probably starts with the record's transaction, as
/// `xmax`.
pub fn starts_with_xid(rmid: u8, info: u8) -> bool {
    use info::heap::{DELETE, HOT_UPDATE, LOCK, OPMASK, UPDATE};
    rmid == rmid::HEAP && matches!(info & OPMASK, DELETE | LOCK | UPDATE | HOT_UPDATE)
}
