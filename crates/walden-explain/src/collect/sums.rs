//! Sums of the hot loop in small direct-mapped tables, and their keys.

use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::KindTable;
use walden_format::simple::SimpleRecord;

use crate::group::{Cell, Owner};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransactionTally {
    pub records: u64,
    pub bytes: u64,
    pub image_bytes: u64,
}

impl TransactionTally {
    pub fn merge(&mut self, other: &TransactionTally) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.image_bytes += other.image_bytes;
    }
}

/// Sums over records of the usual layout, for one cell in one segment. The layout determines the other
/// buckets.
///
/// 32 bits suffice for the records that start in one segment, as a segment and the longest record have at
/// most 1 GB each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsualSums {
    /// See [`key_of`]. Zero is no valid key: it would be a record of the resource manager XLOG.
    pub key: [u64; 2],
    pub records: u32,
    /// Bytes of the records, with alignment.
    pub aligned_bytes: u32,
    pub block_data: u32,
    pub main_data: u32,
}

/// Sums over a transaction in one segment; 32 bits suffice as for [`UsualSums`].
///
/// The fields that every record updates are separate words: a wide load of recent narrow stores would stall.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct TransactionSums {
    /// The transaction, or 0 for records that belong to none.
    pub xid: u32,
    pub records: u32,
    pub image_bytes: u32,
    pub bytes: u32,
}

impl UsualSums {
    pub fn cell(&self, kinds: &KindTable) -> Cell {
        let [low, high] = self.key;
        let (relation, fork, info, rmid) =
            (high as u32, (high >> 32) as u8, (high >> 48) as u8, (high >> 56) as u8);
        let locator = RelFileLocator { tablespace: low as u32, database: (low >> 32) as u32, relation };
        let has_block = u64::from(fork) != NO_BLOCK;
        let owner = if has_block { Owner::Relation(locator, Fork(fork)) } else { Owner::None };
        Cell { owner, kind: Some(kinds.kind(rmid, info).index() as u16) }
    }
}

impl TransactionSums {
    pub fn tally(&self) -> TransactionTally {
        TransactionTally {
            records: self.records.into(),
            bytes: self.bytes.into(),
            image_bytes: self.image_bytes.into(),
        }
    }
}

/// Relation, fork and kind of a record in 16 bytes that compare and hash fast, without a branch. Records of
/// one cell may have several keys, which [`UsualSums::cell`] unifies.
#[inline(always)]
pub(super) fn key_of(record: &SimpleRecord<'_>) -> [u64; 2] {
    let RelFileLocator { tablespace, database, relation } = record.relation();
    let header = record.header();
    let kind = u64::from(header.rmid) << 8 | u64::from(header.info);
    let fork = if record.has_block() { u64::from(record.fork().0) } else { NO_BLOCK };
    [u64::from(tablespace) | u64::from(database) << 32, u64::from(relation) | fork << 32 | kind << 48]
}

/// Replaces the fork, which has four bits, in records without a block.
pub(super) const NO_BLOCK: u64 = 0x10;

/// Size of the table of cells: a power of two, large enough that the few busy cells rarely collide.
pub(super) const USUAL: usize = 1 << USUAL_BITS;

pub(super) const USUAL_BITS: u32 = 10;

/// Fibonacci hashing of the relfilenumber, the fork and the kind; databases and tablespaces are few.
#[inline(always)]
pub(super) fn place_of(key: [u64; 2]) -> usize {
    (key[1].wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - USUAL_BITS)) as usize
}

#[inline]
pub(super) fn tuple_key(relation: RelFileLocator, block: u32, offset: u16, xid: u32) -> u64 {
    let place = u64::from(block) << 16 | u64::from(offset);
    let whose = u64::from(relation.relation) << 32 | u64::from(xid);
    // An odd multiplier spreads each part over all bits; the high bits are folded into the low bits, which
    // index the table.
    let mixed = (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ whose.wrapping_mul(0xD6E8_FEB8_6659_FD93))
        .rotate_left(29);
    (mixed ^ mixed >> 32) | 1 << 32
}
