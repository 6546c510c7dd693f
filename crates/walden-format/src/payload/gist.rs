//! Changes of GiST indexes: the resource manager Gist.
//!
//! Structures: `access/gistxlog.h`. They are not payloads of their own yet; replay reads them here.

use super::layout::layout;

layout! {
    /// `gistxlogPageUpdate`: the main data of `PAGE_UPDATE`. Block 0 has the removed line pointers and the new tuples.
    XlGistPageUpdate[4] {
        /// How many tuples are removed.
        0 deleted: u16,
        /// How many tuples are added.
        2 inserted: u16,
    }
}

layout! {
    /// `gistxlogDelete`: the main data of `DELETE` begins with it. Since 16 two more bytes follow, then the line pointers of the
    /// removed tuples.
    XlGistDelete[6] {
        /// Standbys cancel queries that need what this or an earlier transaction removed.
        0 conflict_horizon: u32,
        /// How many tuples.
        4 deleted: u16,
    }
}

layout! {
    /// `gistxlogPageSplit`: the main data of `PAGE_SPLIT`. The pages are blocks 1 and up, from left to right.
    XlGistPageSplit[21] {
        /// The right link of the page that was split, which the last new page gets.
        0 right_link: u32,
        /// The node sequence number of the page that was split.
        8 nsn: u64,
        /// Whether the page was a leaf.
        16 is_leaf: bool,
        /// How many pages there are now.
        18 pages: u16,
        /// Whether all but the last page get the mark that their parent does not know their right sibling.
        20 marks_follow_right: bool,
    }
}

layout! {
    /// `gistxlogPageDelete`: the main data of `PAGE_DELETE`.
    XlGistPageDelete[10] {
        /// The transaction after which the page may be used again, with its epoch.
        0 delete_xid: u64,
        /// The line pointer of the parent's downlink.
        8 downlink_offset: u16,
    }
}
