//! The fixed part of heap records' main data, read and written on its own.
//!
//! Replay and compression read only these structures for nearly every record. [`super::insert()`] and the
//! other modules read the same structures as payloads, including the data after them.

use super::{
    DeleteFlags, InfoBits, InsertFlags, LockFlags, PruneFlags, TUPLE_HEADER, UpdateFlags, VisibleFlags,
};
use crate::payload::layout::{BlockId, layout};
use crate::record::RelFileLocator;
use crate::version::Major;

layout! {
    /// `xl_heap_insert`: the main data of `INSERT`. Block 0 has the new tuple: an [`XlHeapHeader`] and the
    /// data after its header.
    XlHeapInsert[3] {
        /// The tuple's line pointer.
        0 offset: u16,
        /// Flags of the insert.
        2 flags: InsertFlags,
    }
}

layout! {
    /// `xl_heap_multi_insert`: the start of the main data of `MULTI_INSERT`. Unless the record initializes
    /// its page, the line pointers of the tuples follow, 2 bytes each. Block 0 has the tuples, see
    /// [`XlMultiInsertTuple`].
    XlHeapMultiInsert[4] {
        /// Flags of the inserts.
        0 flags: InsertFlags,
        /// Number of tuples.
        2 count: u16,
    }
}

layout! {
    /// `xl_multi_insert_tuple`: precedes a tuple of `MULTI_INSERT` in block 0's data, at an even offset.
    XlMultiInsertTuple[7] {
        /// Bytes that follow: the tuple without the fixed part of its header.
        0 data_len: u16,
        /// Number of attributes and flags (`t_infomask2`).
        2 infomask2: u16,
        /// Flags (`t_infomask`).
        4 infomask: u16,
        /// Offset of the attributes in the whole tuple (`t_hoff`).
        6 header_len: u8,
    }
}

impl XlMultiInsertTuple {
    /// Reads the tuple at `at` and advances `at` to its end. Returns the fields of its header as bytes of an
    /// [`XlHeapHeader`], and the data after the header. `None`, with `at` unchanged, if the data ends within
    /// the tuple.
    #[inline]
    pub fn take<'a>(data: &'a [u8], at: &mut usize) -> Option<(&'a [u8; XlHeapHeader::WIDTH], &'a [u8])> {
        let data = data.get(*at..)?;
        let (tuple, rest) = XlMultiInsertTuple::split(data)?;
        let header = data[..XlMultiInsertTuple::WIDTH].last_chunk()?;
        let rest = rest.get(..tuple.data_len.into())?;
        *at += XlMultiInsertTuple::WIDTH + rest.len();
        Some((header, rest))
    }
}

layout! {
    /// `xl_heap_header`: the fields of a tuple's header that redo cannot derive. The null bitmap, padding and
    /// attributes follow.
    XlHeapHeader[5] {
        /// Number of attributes and flags (`t_infomask2`).
        0 infomask2: u16,
        /// Flags (`t_infomask`).
        2 infomask: u16,
        /// Offset of the attributes in the whole tuple (`t_hoff`).
        4 header_len: u8,
    }
}

impl XlHeapHeader {
    /// Number of attributes of the tuple.
    #[inline]
    pub fn attributes(&self) -> u16 {
        self.infomask2 & super::ATTRIBUTES_MASK
    }

    /// Bytes of null bitmap and padding that follow in the record; `None` if `header_len` is shorter than any
    /// valid header.
    #[inline]
    pub fn null_bitmap_len(&self) -> Option<usize> {
        usize::from(self.header_len).checked_sub(TUPLE_HEADER)
    }
}

layout! {
    /// `xl_heap_delete`: the start of the main data of `DELETE`. The old tuple or its key follows, see
    /// [`DeleteFlags`].
    XlHeapDelete[8] {
        /// The tuple's new `xmax`: the deleting transaction, or a multixact that contains this transaction.
        0 xmax: u32,
        /// The tuple's line pointer.
        4 offset: u16,
        /// The meaning of `xmax`.
        6 infobits: InfoBits,
        /// Flags of the delete.
        7 flags: DeleteFlags,
    }
}

layout! {
    /// `xl_heap_update`: the start of the main data of `UPDATE` and `HOT_UPDATE`. The old tuple or its key
    /// follows, see [`UpdateFlags`]. Block 0 has the new tuple, see [`SharedLengths`].
    XlHeapUpdate[14] {
        /// The old tuple's new `xmax`.
        0 old_xmax: u32,
        /// The old tuple's line pointer.
        4 old_offset: u16,
        /// The meaning of the old tuple's `xmax`.
        6 old_infobits: InfoBits,
        /// Flags of the update.
        7 flags: UpdateFlags,
        /// The new tuple's `xmax`.
        8 new_xmax: u32,
        /// The new tuple's line pointer.
        12 new_offset: u16,
    }
}

impl XlHeapUpdate {
    /// Replaces the flags in the main data of an update; does nothing if the data is too short.
    #[inline]
    pub fn set_flags(main_data: &mut [u8], flags: UpdateFlags) {
        if let Some(byte) = main_data.get_mut(7) {
            *byte = flags.0;
        }
    }
}

/// The number of attribute bytes at the start and the end of an update's new tuple that equal the old
/// tuple's. Block 0's data omits those bytes and starts with the lengths that the flags announce, 2 bytes
/// each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharedLengths {
    /// Bytes at the start, after the null bitmap.
    pub prefix: u16,
    /// Bytes at the end.
    pub suffix: u16,
}

impl SharedLengths {
    /// A shorter prefix or suffix does not justify storing its length (`log_heap_update`).
    pub const MIN_BYTES: usize = 3;

    /// Reads the lengths at the start of block 0's data; returns them and the remaining bytes, an
    /// [`XlHeapHeader`] and the tuple. `None` if the data ends within the lengths.
    #[inline]
    pub fn split(flags: UpdateFlags, data: &[u8]) -> Option<(SharedLengths, &[u8])> {
        let mut data = data;
        let mut length = |is_there: bool| {
            if !is_there {
                return Some(0);
            }
            let (length, rest) = data.split_first_chunk()?;
            data = rest;
            Some(u16::from_le_bytes(*length))
        };
        let prefix = length(flags.prefix_from_old())?;
        let suffix = length(flags.suffix_from_old())?;
        Some((SharedLengths { prefix, suffix }, data))
    }

    /// Appends the lengths that are not 0.
    #[inline]
    pub fn write(self, out: &mut Vec<u8>) {
        for length in [self.prefix, self.suffix] {
            if length > 0 {
                out.extend_from_slice(&length.to_le_bytes());
            }
        }
    }

    /// Returns `flags` with the bits that announce the lengths set accordingly.
    #[inline]
    pub fn flagged(self, flags: UpdateFlags) -> UpdateFlags {
        let bit = |length: u16, bit: u8| if length > 0 { bit } else { 0 };
        let kept = flags.0 & !(UpdateFlags::PREFIX_FROM_OLD | UpdateFlags::SUFFIX_FROM_OLD);
        let prefix = bit(self.prefix, UpdateFlags::PREFIX_FROM_OLD);
        UpdateFlags(kept | prefix | bit(self.suffix, UpdateFlags::SUFFIX_FROM_OLD))
    }
}

layout! {
    /// `xl_heap_lock` and `xl_heap_lock_updated`: the main data of `LOCK` and `LOCK_UPDATED`, without
    /// [`LockFlags`], which 9.6 added.
    XlHeapLock[7] {
        /// The tuple's new `xmax`.
        0 xmax: u32,
        /// The tuple's line pointer.
        4 offset: u16,
        /// The meaning of `xmax`.
        6 infobits: InfoBits,
    }
}

impl XlHeapLock {
    /// Reads the structure and the flags, which are empty before 9.6; `None` if the data ends within them.
    #[inline]
    pub fn read_with_flags(main_data: &[u8], version: Major) -> Option<(XlHeapLock, LockFlags)> {
        let (lock, rest) = XlHeapLock::split(main_data)?;
        let flags = if version >= Major::V9_6 { *rest.first()? } else { 0 };
        Some((lock, LockFlags(flags)))
    }
}

layout! {
    /// `xl_heap_confirm` and the start of `xl_heap_inplace`: the main data of `HEAP_CONFIRM` and `INPLACE`.
    XlHeapOffset[2] {
        /// The tuple's line pointer.
        0 offset: u16,
    }
}

layout! {
    /// `xl_heap_clean` and `xl_heap_prune` until 16: the start of the main data of `CLEAN` and `PRUNE`. Block
    /// 0 has line pointers, 2 bytes each: pairs for redirections, then the dead line pointers, then the line
    /// pointers that are now unused.
    XlHeapPrune16[8] {
        /// Standbys cancel queries that need tuples removed by this or an earlier transaction.
        0 conflict_horizon: u32,
        /// Number of redirected line pointers; each pair counts once.
        4 redirected: u16,
        /// Number of dead line pointers.
        6 dead: u16,
    }
}

layout! {
    /// `xl_heap_vacuum` of 14 to 16: the main data of `VACUUM`. Block 0 has the unused line pointers.
    XlHeapVacuum[2] {
        /// Number of line pointers.
        0 unused: u16,
    }
}

layout! {
    /// `xl_heap_freeze_page` until 16: the start of the main data of `FREEZE_PAGE`.
    XlHeapFreezePage[6] {
        /// Standbys cancel queries that see this transaction or an earlier one as running.
        0 cutoff_xid: u32,
        /// Number of tuples; in 16, number of plans.
        4 count: u16,
    }
}

impl PruneFlags {
    /// Reads the flags at the start of the main data of the prune kinds since 17 (`xl_heap_prune`). Until 18
    /// the reason precedes them.
    #[inline]
    pub fn read(main_data: &[u8], version: Major) -> Option<PruneFlags> {
        let &[first, second] = main_data.first_chunk()?;
        let flags = if version >= Major::V19 { u16::from_le_bytes([first, second]) } else { second.into() };
        Some(PruneFlags(flags))
    }
}

layout! {
    /// `xl_heap_visible`: the main data of `VISIBLE`; until 18. 9.5 has no flags.
    XlHeapVisible[5] {
        /// Standbys cancel queries that see this transaction or an earlier one as running.
        0 cutoff_xid: u32,
        /// The bits that were set.
        4 flags: VisibleFlags,
    }
}

layout! {
    /// `xl_heap_new_cid`: the main data of `NEW_CID`, see [`super::NewCid`].
    XlHeapNewCid[34] {
        /// The toplevel transaction.
        0 top_xid: u32,
        /// The command that inserted the tuple.
        4 cmin: u32,
        /// The command that deleted the tuple.
        8 cmax: u32,
        /// The combo command id.
        12 combo_cid: u32,
        /// The catalog.
        16 relation: RelFileLocator,
        /// The tuple's block.
        28 block: BlockId,
        /// The tuple's line pointer.
        32 offset: u16,
    }
}
