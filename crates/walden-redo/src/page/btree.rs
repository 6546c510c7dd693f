//! Pages and tuples of B-trees (`nbtree.h`).
//!
//! ```text
//! offset  width  BTPageOpaqueData, the special area
//!      0      4  btpo_prev      left sibling, or 0
//!      4      4  btpo_next      right sibling, or 0
//!      8      4  btpo_level     0 on leaves
//!     12      2  btpo_flags
//!     14      2  btpo_cycleid   the vacuum during which the page was split last
//!
//! offset  width  BTMetaPageData, where other pages have line pointers
//!      0      4  btm_magic
//!      4      4  btm_version
//!      8      4  btm_root
//!     12      4  btm_level
//!     16      4  btm_fastroot
//!     20      4  btm_fastlevel
//!     24      4  btm_last_cleanup_num_delpages
//!     32      8  btm_last_cleanup_num_heap_tuples, unused since 14
//!     40      1  btm_allequalimage
//! ```
//!
//! Tuples are index tuples ([`super::index_tuple`]). With `INDEX_ALT_TID_MASK`, `t_tid` is not the TID of a
//! heap tuple: its offset number has flags and a count. With `BT_IS_POSTING`, its block number is the offset
//! in the tuple of a list of that many TIDs.

use std::ops::Range;

use super::index_tuple::{INDEX_AM_RESERVED_BIT, INDEX_TUPLE_HEADER_BYTES, size, t_info};
use super::special::SpecialArea;
use super::tid::{TID_BYTES, Tid};
use super::{PAGE_CONTENTS, Page};

/// The sibling of a page at the end of its level (`P_NONE`).
pub const P_NONE: u32 = 0;
/// The line pointer of a page's high key (`P_HIKEY`), which all pages except the last of a level have.
pub const P_HIKEY: u16 = 1;
/// The largest `btpo_cycleid` (`MAX_BT_CYCLE_ID`); page ids of other access methods, at the same offset, are
/// greater.
pub const MAX_BT_CYCLE_ID: u16 = 0xFF7F;

/// `BTREE_MAGIC`
pub const BTREE_MAGIC: u32 = 0x0005_3162;
/// Bytes of `BTMetaPageData`.
pub const BTREE_META_BYTES: usize = 48;

/// Offsets of the metapage's fields from [`PAGE_CONTENTS`].
#[allow(missing_docs)]
pub mod meta {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const ROOT: usize = 8;
    pub const LEVEL: usize = 12;
    pub const FAST_ROOT: usize = 16;
    pub const FAST_LEVEL: usize = 20;
    pub const LAST_CLEANUP_DELETED_PAGES: usize = 24;
    pub const LAST_CLEANUP_HEAP_TUPLES: usize = 32;
    pub const ALL_EQUAL_IMAGE: usize = 40;
}

/// Offset on a deleted page of the transaction after which it can be reused, 8 bytes (`BTDeletedPageData`).
pub const DELETED_SAFE_XID: usize = PAGE_CONTENTS;
/// Bytes of `BTDeletedPageData`.
pub const DELETED_BYTES: usize = 8;

/// Bits of `btpo_flags`, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const BTP_LEAF: u16 = 1 << 0;
    pub const BTP_ROOT: u16 = 1 << 1;
    pub const BTP_DELETED: u16 = 1 << 2;
    pub const BTP_META: u16 = 1 << 3;
    pub const BTP_HALF_DEAD: u16 = 1 << 4;
    pub const BTP_SPLIT_END: u16 = 1 << 5;
    pub const BTP_HAS_GARBAGE: u16 = 1 << 6;
    pub const BTP_INCOMPLETE_SPLIT: u16 = 1 << 7;
    pub const BTP_HAS_FULLXID: u16 = 1 << 8;
}

/// Bit of `t_info`: `t_tid` is not the TID of a heap tuple.
pub const INDEX_ALT_TID_MASK: u16 = INDEX_AM_RESERVED_BIT;
/// Bits of the offset number in the `t_tid` of a pivot tuple or posting list that hold the number of TIDs in
/// the list, or of key attributes.
pub const BT_OFFSET_MASK: u16 = 0x0FFF;
/// Bit of that offset number: a pivot tuple ends with the TID of a heap tuple.
pub const BT_PIVOT_HEAP_TID_ATTR: u16 = 0x1000;
/// Bit of that offset number: the tuple has a posting list.
pub const BT_IS_POSTING: u16 = 0x2000;

/// A B-tree page's special area. The default belongs to a page without siblings and flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BTPageOpaqueData {
    /// `btpo_prev`: left sibling, or [`P_NONE`].
    pub previous: u32,
    /// `btpo_next`: right sibling, or [`P_NONE`].
    pub next: u32,
    /// `btpo_level`: 0 on leaves.
    pub level: u32,
    /// `btpo_flags`: see [`flags`].
    pub flags: u16,
    /// `btpo_cycleid`
    pub cycle_id: u16,
}

impl SpecialArea for BTPageOpaqueData {
    const BYTES: usize = 16;

    #[inline]
    fn read(page: &Page) -> BTPageOpaqueData {
        BTPageOpaqueData {
            previous: page.u32_at(Self::AT),
            next: page.u32_at(Self::AT + 4),
            level: page.u32_at(Self::AT + 8),
            flags: page.u16_at(Self::AT + 12),
            cycle_id: page.u16_at(Self::AT + 14),
        }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u32(Self::AT, self.previous);
        page.put_u32(Self::AT + 4, self.next);
        page.put_u32(Self::AT + 8, self.level);
        page.put_u16(Self::AT + 12, self.flags);
        page.put_u16(Self::AT + 14, self.cycle_id);
    }
}

impl BTPageOpaqueData {
    /// Returns whether the page is the last of its level, which has no high key (`P_RIGHTMOST`).
    #[inline]
    pub fn is_rightmost(self) -> bool {
        self.next == P_NONE
    }

    /// Returns the line pointer of the first tuple after the high key (`P_FIRSTDATAKEY`).
    #[inline]
    pub fn first_data_item(self) -> u16 {
        if self.is_rightmost() { P_HIKEY } else { P_HIKEY + 1 }
    }

    /// Returns whether the page is a leaf (`P_ISLEAF`).
    #[inline]
    pub fn is_leaf(self) -> bool {
        self.flags & flags::BTP_LEAF != 0
    }
}

/// Returns the byte range of a tuple's posting list (`BTreeTupleGetPosting`); `None` if the tuple has no
/// list, or if the list exceeds the tuple.
#[inline]
pub fn posting_list(tuple: &[u8]) -> Option<Range<usize>> {
    let Tid { block, offset_number } = Tid::read(tuple)?;
    if t_info(tuple)? & INDEX_ALT_TID_MASK == 0 || offset_number & BT_IS_POSTING == 0 {
        return None;
    }
    let start = block as usize;
    let end = start + usize::from(offset_number & BT_OFFSET_MASK) * TID_BYTES;
    (start >= INDEX_TUPLE_HEADER_BYTES && end <= tuple.len()).then_some(start..end)
}

/// Returns the TIDs of a leaf tuple, concatenated; `None` if it is not a leaf tuple.
#[inline]
pub fn heap_tids(tuple: &[u8]) -> Option<&[u8]> {
    size(tuple).filter(|&size| size <= tuple.len())?;
    if t_info(tuple)? & INDEX_ALT_TID_MASK == 0 {
        return tuple.get(..TID_BYTES);
    }
    posting_list(tuple).and_then(|range| tuple.get(range))
}
