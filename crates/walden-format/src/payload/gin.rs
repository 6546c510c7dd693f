//! Changes of GIN indexes: the resource manager Gin.
//!
//! Structures: `access/ginxlog.h`. [`super::Payload`] has no variants for these structures; replay and
//! compression read them with this module.

use super::layout::{BlockId, layout};
use super::listing::flags;

/// Size of `GinMetaPageData` in bytes.
pub const META_DATA: usize = 56;
/// Size of a downlink of a posting tree (`PostingItem`) in bytes: a child's block number and the greatest TID
/// in the child.
pub const POSTING_ITEM: usize = 10;

flags! {
    /// The type of page that an `INSERT` or a `SPLIT` changes (`GIN_INSERT_*`, `GIN_SPLIT_*`).
    GinFlags(u16) {
        /// A page of a posting tree, not of the entry tree.
        is_data IS_DATA = 0x01;
        /// A leaf.
        is_leaf IS_LEAF = 0x02;
        /// The root was split.
        is_root_split IS_ROOT_SPLIT = 0x04;
    }
}

layout! {
    /// `ginxlogInsert`: the start of the main data of `INSERT`. Unless the page is a leaf, [`GinChildren`]
    /// follow.
    XlGinInsert[2] {
        /// The type of the page.
        0 flags: GinFlags,
    }
}

impl XlGinInsert {
    /// Reads the structure and the children after it; `None` if the data ends within either.
    #[inline]
    pub fn read_with_children(main_data: &[u8]) -> Option<(XlGinInsert, Option<GinChildren>)> {
        let (insert, rest) = XlGinInsert::split(main_data)?;
        let children = if insert.flags.is_leaf() { None } else { Some(GinChildren::read(rest)?) };
        Some((insert, children))
    }
}

layout! {
    /// The halves of the child whose split is completed by an insertion into an internal page.
    GinChildren[8] {
        /// The left half's block.
        0 left: BlockId,
        /// The right half's block.
        4 right: BlockId,
    }
}

layout! {
    /// `ginxlogInsertEntry`: precedes the index tuple in block 0's data of an `INSERT` into the entry tree.
    GinInsertEntry[4] {
        /// The tuple's line pointer.
        0 offset: u16,
        /// Whether the old tuple at this offset is removed.
        2 is_delete: bool,
    }
}

layout! {
    /// `ginxlogInsertDataInternal`: block 0's data of an `INSERT` into an internal page of a posting tree.
    GinInsertDataInternal[12] {
        /// The position of the new downlink.
        0 offset: u16,
        /// The downlink, a `PostingItem`.
        2 item: [u8; POSTING_ITEM],
    }
}

layout! {
    /// `ginxlogRecompressDataLeaf`: the start of block 0's data of an `INSERT` into a leaf of a posting tree,
    /// and of a `VACUUM_DATA_LEAF_PAGE`. Each action follows as a [`GinSegmentChange`] and the data that the
    /// action adds.
    GinRecompressDataLeaf[2] {
        /// The number of actions.
        0 actions: u16,
    }
}

layout! {
    /// The header of an action; the data that the action adds follows.
    GinSegmentChange[2] {
        /// The number of the segment.
        0 segment: u8,
        /// The [`SegmentAction`].
        1 action: u8,
    }
}

layout! {
    /// The header of the TIDs of a [`SegmentAction::AddItems`].
    GinAddedItems[2] {
        /// The number of TIDs.
        0 count: u16,
    }
}

/// The effect of an action on a segment of a posting tree's leaf (`GIN_SEGMENT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SegmentAction {
    /// No change; not used in records.
    Unmodified = 0,
    /// Removes this segment.
    Delete = 1,
    /// Inserts a new segment, whose bytes follow, before this segment.
    Insert = 2,
    /// Replaces this segment with a new segment, whose bytes follow.
    Replace = 3,
    /// Adds TIDs, which follow after [`GinAddedItems`], to this segment.
    AddItems = 4,
}

impl SegmentAction {
    /// Returns the action with this number; `None` if no record contains the number.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<SegmentAction> {
        use SegmentAction::{AddItems, Delete, Insert, Replace};
        [Delete, Insert, Replace, AddItems].into_iter().find(|action| *action as u8 == byte)
    }
}

layout! {
    /// `ginxlogSplit`: the main data of `SPLIT`.
    XlGinSplit[26] {
        /// The index.
        0 relation: crate::record::RelFileLocator,
        /// The block right of the new right page, or the root's children.
        12 right_link: u32,
        /// The halves of the child whose split is completed by this split's insertion.
        16 left_child: u32,
        /// Same as `left_child`.
        20 right_child: u32,
        /// The type of the page.
        24 flags: GinFlags,
    }
}

layout! {
    /// `ginxlogDeletePage`: the main data of `DELETE_PAGE`.
    XlGinDeletePage[12] {
        /// The position of the parent's downlink.
        0 parent_offset: u16,
        /// The block right of the deleted one.
        4 right_link: u32,
        /// The transaction after which the page may be reused.
        8 delete_xid: u32,
    }
}

layout! {
    /// `ginxlogUpdateMeta`: the main data of `UPDATE_META_PAGE`.
    XlGinUpdateMeta[84] {
        /// The index.
        0 relation: crate::record::RelFileLocator,
        /// `GinMetaPageData`
        16 metadata: [u8; META_DATA],
        /// The previous last page of the pending list, or `u32::MAX`.
        72 previous_tail: u32,
        /// The page that now follows the previous last page.
        76 new_right_link: u32,
        /// The number of tuples added to the last page of the pending list; never negative.
        80 tuples: i32,
    }
}

layout! {
    /// `ginxlogInsertListPage`: the main data of `INSERT_LISTPAGE`. Block 0 has the tuples.
    XlGinInsertListPage[8] {
        /// The next page of the pending list, or `u32::MAX`.
        0 right_link: u32,
        /// The number of tuples; never negative.
        4 tuples: i32,
    }
}

layout! {
    /// `ginxlogDeleteListPages`: the main data of `DELETE_LISTPAGE`. The deleted pages are blocks 1 and up.
    XlGinDeleteListPages[60] {
        /// `GinMetaPageData`
        0 metadata: [u8; META_DATA],
        /// The number of pages; never negative.
        56 deleted: i32,
    }
}
