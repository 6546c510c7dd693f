//! Pages and tuples of GIN indexes (`ginblock.h`).
//!
//! ```text
//! offset  width  GinPageOpaqueData, the special area
//!      0      4  rightlink
//!      4      2  maxoff            posting items of an inner page of a posting tree; heap tuples of a list page
//!      6      2  flags
//!
//! offset  width  a page of a posting tree, where other pages have line pointers
//!      0      6  right bound       the greatest TID on the page, padded to 8 bytes
//!      8         leaf: segments, up to pd_lower; inner page: posting items of 10 bytes (child, its right bound)
//!
//! offset  width  GinPostingList, a segment
//!      0      6  first TID
//!      6      2  bytes that follow, padding not included
//!      8         distances between TIDs, 7 bits per byte, the low ones first
//! ```
//!
//! Tuples of entry trees are index tuples ([`super::index_tuple`]). In a leaf the offset number of `t_tid` is how many TIDs
//! there are, or [`GIN_TREE_POSTING`]; the block number says where in the tuple they start, or which is the tree's root.

use super::special::SpecialArea;
use super::tid::INVALID_BLOCK;
use super::{PAGE_BYTES, PAGE_CONTENTS, Page};

/// Bytes of `GinMetaPageData`.
pub const GIN_META_BYTES: usize = 56;
/// Where segments and posting items start on a page of a posting tree (`GinDataPageGetData`).
pub const GIN_DATA: usize = PAGE_CONTENTS + GIN_RIGHT_BOUND_BYTES;
/// Bytes of the right bound before them, with padding.
pub const GIN_RIGHT_BOUND_BYTES: usize = 8;
/// Most bytes of segments and posting items (`GinDataPageMaxDataSize`).
pub const GIN_MAX_DATA_BYTES: usize = PAGE_BYTES - GinPageOpaqueData::BYTES - GIN_DATA;
/// Bytes of a posting item (`PostingItem`): a child's block number, and its right bound.
pub const GIN_POSTING_ITEM_BYTES: usize = 10;
/// Bytes of a segment's header.
pub const GIN_SEGMENT_HEADER_BYTES: usize = 8;
/// The offset number of an entry whose TIDs are in a posting tree (`GIN_TREE_POSTING`).
pub const GIN_TREE_POSTING: u16 = 0xFFFF;
/// Bit of the block number of an entry whose TIDs are compressed (`GIN_ITUP_COMPRESSED`).
pub const GIN_ITUP_COMPRESSED: u32 = 1 << 31;
/// Bits of the offset number in a packed TID, below the block number (`MaxHeapTuplesPerPageBits`).
pub const GIN_OFFSET_NUMBER_BITS: u32 = 11;

/// Where the metapage's fields are, from [`PAGE_CONTENTS`] on.
#[allow(missing_docs)]
pub mod meta {
    pub const HEAD: usize = 0;
    pub const TAIL: usize = 4;
    pub const TAIL_FREE_SIZE: usize = 8;
    pub const PENDING_PAGES: usize = 12;
    pub const PENDING_HEAP_TUPLES: usize = 16;
    pub const TOTAL_PAGES: usize = 24;
    pub const ENTRY_PAGES: usize = 28;
    pub const DATA_PAGES: usize = 32;
    pub const ENTRIES: usize = 40;
    pub const VERSION: usize = 48;
}

/// Bits of a page's flags, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const GIN_DATA: u16 = 1 << 0;
    pub const GIN_LEAF: u16 = 1 << 1;
    pub const GIN_DELETED: u16 = 1 << 2;
    pub const GIN_META: u16 = 1 << 3;
    pub const GIN_LIST: u16 = 1 << 4;
    pub const GIN_LIST_FULLROW: u16 = 1 << 5;
    pub const GIN_INCOMPLETE_SPLIT: u16 = 1 << 6;
    pub const GIN_COMPRESSED: u16 = 1 << 7;
}

/// A GIN page's special area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GinPageOpaqueData {
    /// `rightlink`: the next page of the level or list, or [`INVALID_BLOCK`].
    pub right_link: u32,
    /// `maxoff`: posting items of an inner page of a posting tree; heap tuples of a list page.
    pub max_offset: u16,
    /// `flags`: see [`flags`].
    pub flags: u16,
}

impl GinPageOpaqueData {
    /// That of a new page (`GinInitPage`).
    #[inline]
    pub fn new(flags: u16) -> GinPageOpaqueData {
        GinPageOpaqueData { right_link: INVALID_BLOCK, max_offset: 0, flags }
    }
}

impl SpecialArea for GinPageOpaqueData {
    const BYTES: usize = 8;

    #[inline]
    fn read(page: &Page) -> GinPageOpaqueData {
        GinPageOpaqueData {
            right_link: page.u32_at(Self::AT),
            max_offset: page.u16_at(Self::AT + 4),
            flags: page.u16_at(Self::AT + 6),
        }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u32(Self::AT, self.right_link);
        page.put_u16(Self::AT + 4, self.max_offset);
        page.put_u16(Self::AT + 6, self.flags);
    }
}
