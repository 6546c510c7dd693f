//! Changes of BRIN indexes: the resource manager BRIN.
//!
//! Structures: `access/brin_xlog.h`. [`super::Payload`] has no variants for these structures; replay reads
//! them with this module.

use super::layout::layout;

layout! {
    /// `xl_brin_createidx`: the main data of `CREATE_INDEX`.
    XlBrinCreateIndex[6] {
        /// Number of table pages that a tuple summarizes.
        0 pages_per_range: u32,
        /// The version of the index's format.
        4 version: u16,
    }
}

layout! {
    /// `xl_brin_insert`: the main data of `INSERT`. Block 0 has the tuple.
    XlBrinInsert[10] {
        /// The first block of the range that the tuple summarizes.
        0 heap_block: u32,
        /// Number of table pages that a tuple summarizes.
        4 pages_per_range: u32,
        /// The tuple's line pointer.
        8 offset: u16,
    }
}

layout! {
    /// `xl_brin_update`: the main data of `UPDATE`, whose tuple moves to another page. Its other fields are
    /// the fields of [`XlBrinInsert`].
    XlBrinUpdate[14] {
        /// The line pointer that the tuple had on its old page.
        0 old_offset: u16,
        /// The first block of the range that the tuple summarizes.
        4 heap_block: u32,
        /// Number of table pages that a tuple summarizes.
        8 pages_per_range: u32,
        /// The tuple's line pointer.
        12 offset: u16,
    }
}

layout! {
    /// `xl_brin_samepage_update`: the main data of `SAMEPAGE_UPDATE`. Block 0 has the tuple.
    XlBrinSamepageUpdate[2] {
        /// The tuple's line pointer.
        0 offset: u16,
    }
}

layout! {
    /// `xl_brin_revmap_extend`: the main data of `REVMAP_EXTEND`.
    XlBrinRevmapExtend[4] {
        /// The block that becomes a page of the revmap.
        0 target_block: u32,
    }
}

layout! {
    /// `xl_brin_desummarize`: the main data of `DESUMMARIZE`.
    XlBrinDesummarize[10] {
        /// Number of table pages that a tuple summarizes.
        0 pages_per_range: u32,
        /// The first block of the range.
        4 heap_block: u32,
        /// The line pointer of the removed tuple.
        8 offset: u16,
    }
}
