//! Changes of tables: the resource managers Heap and Heap2.
//!
//! Structures: `access/heapam_xlog.h`. Writers: `heapam.c`; since 17 `log_heap_prune_and_freeze` in
//! `pruneheap.c`.
//!
//! Each kind has a payload, such as [`Update`], which [`super::parse`] returns. The fixed part of the most
//! frequent kinds' main data is also a separate structure, such as [`XlHeapUpdate`], for callers that cannot
//! afford to decode more.
//!
//! The blocks that a record references changed within 17 and 18: 17.11 and 18.6 register the visibility map's
//! block if the record clears its bits. No code here counts blocks; the table's page is block 0 in all of
//! these kinds.

use super::listing::flags;
use super::{Fields, Parsed, PayloadError};
use crate::record::{BlockRef, Fork, Record};
use crate::rmgr::{info, rmid};

mod change;
mod insert;
mod layouts;
mod logical;
mod prune;

pub use change::{Confirm, Delete, Inplace, Lock, NewTuple, Update, simple_update_offsets, update_offsets};
pub(crate) use change::{confirm, delete, hot_update, inplace, lock, lock_updated, update};
pub use insert::{Insert, MultiInsert, Tuples};
pub(crate) use insert::{insert, multi_insert};
pub use layouts::{
    SharedLengths, XlHeapDelete, XlHeapFreezePage, XlHeapHeader, XlHeapInsert, XlHeapLock, XlHeapMultiInsert,
    XlHeapNewCid, XlHeapOffset, XlHeapPrune16, XlHeapUpdate, XlHeapVacuum, XlHeapVisible, XlMultiInsertTuple,
};
pub use logical::{HeapTruncate, HeapTruncateFlags, NewCid, Rewrite};
pub(crate) use logical::{new_cid, rewrite, truncate};
pub use prune::{
    CleanupInfo, FreezeFlags, FreezePage, FreezePlan, Frozen, FrozenTuple, Prune, PruneFlags, PruneItems,
    PruneLists, Redirection, Visible, VisibleFlags,
};
pub(crate) use prune::{clean, cleanup_info, freeze_page, prune, vacuum, visible};

/// Bytes of a tuple's header without its null bitmap (`SizeofHeapTupleHeader`).
pub const TUPLE_HEADER: usize = 23;
/// The bits of `t_infomask2` that hold the number of attributes (`HEAP_NATTS_MASK`).
pub const ATTRIBUTES_MASK: u16 = 0x07FF;

/// Whether a record with this resource manager and info byte is an `UPDATE` or a `HOT_UPDATE`.
#[inline]
pub const fn is_update(rmid: u8, info: u8) -> bool {
    rmid == rmid::HEAP && matches!(info & info::heap::OPMASK, info::heap::UPDATE | info::heap::HOT_UPDATE)
}

/// Returns the page of an update's old tuple if it differs from the page of the new one, which is block 0.
/// The number of blocks does not show that: since 17.11 and 18.6, updates also reference blocks of the
/// visibility map.
#[inline]
pub fn moved_from<'r>(record: &'r Record<'_>) -> Option<&'r BlockRef> {
    record.block(1).filter(|block| block.fork == Fork::MAIN)
}

flags! {
    /// Flags of an insert (`XLH_INSERT_*`).
    InsertFlags(u8) {
        /// The page was all visible.
        all_visible_cleared ALL_VISIBLE_CLEARED = 1 << 0;
        /// The last record of one `heap_multi_insert`.
        last_in_multi LAST_IN_MULTI = 1 << 1;
        /// The insert is speculative and may be undone: `INSERT ... ON CONFLICT`.
        is_speculative IS_SPECULATIVE = 1 << 2;
        /// The record contains the tuple even if it has an image, for logical decoding.
        contains_new_tuple CONTAINS_NEW_TUPLE = 1 << 3;
        /// The table is a TOAST table; since 14.
        on_toast_relation ON_TOAST_RELATION = 1 << 4;
        /// The page is all frozen; since 14.
        all_frozen_set ALL_FROZEN_SET = 1 << 5;
    }
}

flags! {
    /// Flags of an update (`XLH_UPDATE_*`).
    UpdateFlags(u8) {
        /// The old tuple's page was all visible.
        old_all_visible_cleared OLD_ALL_VISIBLE_CLEARED = 1 << 0;
        /// The new tuple's page was all visible.
        new_all_visible_cleared NEW_ALL_VISIBLE_CLEARED = 1 << 1;
        /// The record contains the old tuple, for logical decoding.
        contains_old_tuple CONTAINS_OLD_TUPLE = 1 << 2;
        /// The record contains the old tuple's key, for logical decoding.
        contains_old_key CONTAINS_OLD_KEY = 1 << 3;
        /// The record contains the new tuple even if it has an image, for logical decoding.
        contains_new_tuple CONTAINS_NEW_TUPLE = 1 << 4;
        /// The start of the new tuple comes from the old one.
        prefix_from_old PREFIX_FROM_OLD = 1 << 5;
        /// The end of the new tuple comes from the old one.
        suffix_from_old SUFFIX_FROM_OLD = 1 << 6;
    }
}

flags! {
    /// Flags of a delete (`XLH_DELETE_*`).
    DeleteFlags(u8) {
        /// The page was all visible.
        all_visible_cleared ALL_VISIBLE_CLEARED = 1 << 0;
        /// The record contains the old tuple, for logical decoding.
        contains_old_tuple CONTAINS_OLD_TUPLE = 1 << 1;
        /// The record contains the old tuple's key, for logical decoding.
        contains_old_key CONTAINS_OLD_KEY = 1 << 2;
        /// The delete undoes a speculative insert.
        is_super IS_SUPER = 1 << 3;
        /// An update moved the row to another partition; since 11.
        is_partition_move IS_PARTITION_MOVE = 1 << 4;
        /// Logical decoding skips the record; since 19.
        no_logical NO_LOGICAL = 1 << 5;
    }
}

flags! {
    /// Bits of the tuple's header that describe its `xmax` (`XLHL_*`).
    InfoBits(u8) {
        /// A multixact.
        xmax_is_multi XMAX_IS_MULTI = 0x01;
        /// A lock, not an update.
        xmax_lock_only XMAX_LOCK_ONLY = 0x02;
        /// An exclusive lock.
        xmax_excl_lock XMAX_EXCL_LOCK = 0x04;
        /// A key share lock.
        xmax_keyshr_lock XMAX_KEYSHR_LOCK = 0x08;
        /// The key was updated or the tuple deleted.
        keys_updated KEYS_UPDATED = 0x10;
    }
}

flags! {
    /// Flags of a lock (`XLH_LOCK_*`).
    LockFlags(u8) {
        /// The page was all frozen.
        all_frozen_cleared ALL_FROZEN_CLEARED = 1 << 0;
    }
}

/// A tuple as stored in records: the fields of its header that redo cannot derive, and the data after the
/// header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuple<'a> {
    /// Number of attributes and flags (`t_infomask2`).
    pub infomask2: u16,
    /// Flags (`t_infomask`).
    pub infomask: u16,
    /// Offset of the attributes in the whole tuple (`t_hoff`).
    pub header_len: u8,
    /// Null bitmap, padding and attributes; in an update, without the prefix and suffix shared with the old
    /// tuple.
    pub data: &'a [u8],
}

impl Tuple<'_> {
    /// Number of attributes of the tuple.
    pub fn attributes(&self) -> u16 {
        self.infomask2 & ATTRIBUTES_MASK
    }

    /// Bytes of a tuple with this data on its page, excluding its line pointer and the padding after it.
    pub fn len(&self) -> usize {
        TUPLE_HEADER + self.data.len()
    }

    /// Always false: a tuple has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

fn tuple<'a>(fields: &mut Fields<'a>) -> Result<Tuple<'a>, PayloadError> {
    fields.new_structure();
    Ok(Tuple {
        infomask2: fields.u16("t_infomask2")?,
        infomask: fields.u16("t_infomask")?,
        header_len: fields.u8("t_hoff")?,
        data: fields.rest(),
    })
}

/// The data of block 0, the table's page.
fn page_data<'a>(record: &Record<'a>, fields: &Fields<'a>) -> Option<Fields<'a>> {
    record.block(0).and_then(|block| fields.for_block(record, block))
}
