//! Changes of GiST indexes: the resource manager Gist.
//!
//! Structures: `access/gistxlog.h`. [`super::Payload`] has no variants for these structures; replay reads
//! them with this module.

use super::layout::layout;

layout! {
    /// `gistxlogPageUpdate`: the main data of `PAGE_UPDATE`. Block 0 has the removed line pointers and the
    /// new tuples.
    XlGistPageUpdate[4] {
        /// The number of removed tuples.
        0 deleted: u16,
        /// The number of added tuples.
        2 inserted: u16,
    }
}

layout! {
    /// `gistxlogDelete`: the start of the main data of `DELETE`. Since 16 two more bytes follow, then the
    /// line pointers of the removed tuples.
    XlGistDelete[6] {
        /// Standbys cancel queries that need tuples removed by this or an earlier transaction.
        0 conflict_horizon: u32,
        /// The number of removed tuples.
        4 deleted: u16,
    }
}

layout! {
    /// `gistxlogPageSplit`: the main data of `PAGE_SPLIT`. The pages are blocks 1 and up, from left to right.
    XlGistPageSplit[21] {
        /// The right link of the page that was split, which becomes the right link of the last new page.
        0 right_link: u32,
        /// The node sequence number of the page that was split.
        8 nsn: u64,
        /// Whether the page was a leaf.
        16 is_leaf: bool,
        /// The number of pages after the split.
        18 pages: u16,
        /// Whether all pages except the last page are marked as lacking a downlink for their right sibling
        /// (`F_FOLLOW_RIGHT`).
        20 marks_follow_right: bool,
    }
}

layout! {
    /// `gistxlogPageDelete`: the main data of `PAGE_DELETE`.
    XlGistPageDelete[10] {
        /// The transaction after which the page may be reused, with its epoch.
        0 delete_xid: u64,
        /// The line pointer of the parent's downlink.
        8 downlink_offset: u16,
    }
}
