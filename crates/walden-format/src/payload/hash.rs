//! Changes of hash indexes: the resource manager Hash, since 10.
//!
//! Structures: `access/hash_xlog.h`. [`super::Payload`] has no variants for these structures; replay reads
//! them with this module.

use super::layout::layout;
use super::listing::flags;

layout! {
    /// `xl_hash_init_meta_page`: the main data of `INIT_META_PAGE`.
    XlHashInitMetaPage[14] {
        /// The estimated number of tuples of the index.
        0 tuples: f64,
        /// OID of the hash function.
        8 procedure: u32,
        /// Tuples per bucket.
        12 fill_factor: u16,
    }
}

layout! {
    /// `xl_hash_init_bitmap_page`: the main data of `INIT_BITMAP_PAGE`.
    XlHashInitBitmapPage[2] {
        /// Bytes of a page's bitmap.
        0 bitmap_bytes: u16,
    }
}

layout! {
    /// `xl_hash_insert`: the main data of `INSERT`. Block 0 has the index tuple.
    XlHashInsert[2] {
        /// The tuple's line pointer.
        0 offset: u16,
    }
}

layout! {
    /// `xl_hash_add_ovfl_page`: the main data of `ADD_OVFL_PAGE`.
    XlHashAddOvflPage[3] {
        /// Bytes of a page's bitmap.
        0 bitmap_bytes: u16,
        /// Whether a freed page is reused.
        2 is_recycled: bool,
    }
}

layout! {
    /// The bit of a bitmap page that changes: block 2's data of `ADD_OVFL_PAGE`, and block 5's of
    /// `SQUEEZE_PAGE`.
    HashBitmapBit[4] {
        /// The bit's number on the page.
        0 bit: u32,
    }
}

layout! {
    /// The change of the metapage: block 4's data of `ADD_OVFL_PAGE`, and block 6's of `SQUEEZE_PAGE`.
    HashFirstFree[4] {
        /// `hashm_firstfree`: the bit of the first overflow page that may be free.
        0 bit: u32,
    }
}

layout! {
    /// The part of block 2's data of a `SPLIT_ALLOCATE_PAGE` that is present with
    /// [`HashSplitFlags::UPDATES_MASKS`].
    HashSplitMasks[8] {
        /// `hashm_lowmask`
        0 low: u32,
        /// `hashm_highmask`
        4 high: u32,
    }
}

layout! {
    /// The part of block 2's data of a `SPLIT_ALLOCATE_PAGE` that is present with
    /// [`HashSplitFlags::UPDATES_SPLIT_POINT`].
    HashSplitPoint[8] {
        /// `hashm_ovflpoint`
        0 point: u32,
        /// The split point's count in `hashm_spares`.
        4 spares: u32,
    }
}

flags! {
    /// The fields of the metapage that a split changes (`XLH_SPLIT_META_*`), in the order of block 2's data.
    HashSplitFlags(u8) {
        /// The two masks.
        updates_masks UPDATES_MASKS = 1 << 0;
        /// The split point and its count of spare pages.
        updates_split_point UPDATES_SPLIT_POINT = 1 << 1;
    }
}

layout! {
    /// `xl_hash_split_allocate_page`: the main data of `SPLIT_ALLOCATE_PAGE`.
    XlHashSplitAllocatePage[9] {
        /// The number of the new bucket.
        0 new_bucket: u32,
        /// The flag of the old bucket's page.
        4 old_bucket_flag: u16,
        /// The flag of the new bucket's page.
        6 new_bucket_flag: u16,
        /// The changes of the metapage.
        8 flags: HashSplitFlags,
    }
}

layout! {
    /// `xl_hash_split_complete`: the main data of `SPLIT_COMPLETE`.
    XlHashSplitComplete[4] {
        /// The flag of the old bucket's page.
        0 old_bucket_flag: u16,
        /// The flag of the new bucket's page.
        2 new_bucket_flag: u16,
    }
}

layout! {
    /// `xl_hash_move_page_contents`: the main data of `MOVE_PAGE_CONTENTS`.
    XlHashMovePageContents[3] {
        /// The number of moved tuples.
        0 tuples: u16,
        /// Whether they moved to the bucket's first page.
        2 is_onto_first_page: bool,
    }
}

layout! {
    /// `xl_hash_squeeze_page`: the main data of `SQUEEZE_PAGE`, which frees an overflow page.
    XlHashSqueezePage[12] {
        /// The block before the freed one in its bucket.
        0 previous_block: u32,
        /// The block after the freed one in its bucket.
        4 next_block: u32,
        /// The number of tuples moved off the freed page.
        8 tuples: u16,
        /// Whether they moved to the bucket's first page.
        10 is_onto_first_page: bool,
        /// Whether they moved to the page before the freed one.
        11 is_onto_previous_page: bool,
    }
}

layout! {
    /// `xl_hash_delete`: the main data of `DELETE`. Block 1 has the line pointers of the removed tuples.
    XlHashDelete[2] {
        /// Whether the page has no more tuples that are marked as dead.
        0 clears_dead_marking: bool,
        /// Whether the page is its bucket's first one.
        1 is_first_page: bool,
    }
}

layout! {
    /// `xl_hash_update_meta_page`: the main data of `UPDATE_META_PAGE`.
    XlHashUpdateMetaPage[8] {
        /// The number of tuples that the index has after the change.
        0 tuples: f64,
    }
}

layout! {
    /// `xl_hash_vacuum_one_page`: the start of the main data of `VACUUM_ONE_PAGE`. Since 16 two more bytes
    /// follow, then the line pointers of the removed tuples.
    XlHashVacuumOnePage[6] {
        /// Standbys cancel queries that need tuples removed by this or an earlier transaction.
        0 conflict_horizon: u32,
        /// The number of removed tuples.
        4 tuples: u16,
    }
}
