//! Pages and tuples of SP-GiST indexes (`spgist_private.h`).
//!
//! ```text
//! offset  width  SpGistPageOpaqueData, the special area
//!      0      2  flags
//!      2      2  nRedirection
//!      4      2  nPlaceholder
//!      6      2  spgist_page_id
//!
//! every tuple
//!      0   2 bits  state: live, redirection, dead or placeholder
//! inner tuple, after the state (SpGistInnerTupleData)
//!          1 bit   allTheSame
//!         13 bits  number of nodes
//!         16 bits  bytes of the prefix
//!      4      2    bytes of the tuple
//!      8           the prefix, then the nodes: index tuples
//! leaf tuple, after the state (SpGistLeafTupleData)
//!         30 bits  bytes of the tuple
//!      4      2    number of the chain's next tuple in the lower 14 bits, 2 flags
//!      6      6    TID of the heap tuple
//!     12           null bitmap if the second flag is set, the value
//! tuple that is not live, after the state (SpGistDeadTupleData)
//!         30 bits  16
//!      6      6    of a redirection: where to
//!     12      4    of a redirection: the transaction that made it
//! ```

use super::special::SpecialArea;
use super::{Misfit, PAGE_CONTENTS, Page};

/// `SPGIST_PAGE_ID`
pub const SPGIST_PAGE_ID: u16 = 0xFF82;

/// The lower bits of a tuple's first byte: its state.
pub const STATE_BITS: u8 = 3;
/// `SPGIST_LIVE`
pub const LIVE: u8 = 0;
/// `SPGIST_REDIRECT`
pub const REDIRECT: u8 = 1;
/// `SPGIST_DEAD`
pub const DEAD: u8 = 2;
/// `SPGIST_PLACEHOLDER`
pub const PLACEHOLDER: u8 = 3;

/// Bytes of a tuple that is not live (`SGDTSIZE`).
pub const DEAD_TUPLE_BYTES: usize = 16;
/// Offset of the target of a redirect, a TID, in a tuple that is not live.
pub const DEAD_TARGET: usize = 6;
/// Offset of the transaction ID in a tuple that is not live.
pub const DEAD_XID: usize = 12;
/// Bytes of a leaf tuple's header, without the null bitmap (`SGLTHDRSZ`).
pub const LEAF_TUPLE_HEADER_BYTES: usize = 12;
/// Offset in a leaf tuple of the number of the next tuple in its chain (`t_info`).
pub const LEAF_NEXT: usize = 4;
/// Bits of that field for the number.
pub const LEAF_NEXT_MASK: u16 = 0x3FFF;
/// Bit of that field for a null bitmap.
pub const LEAF_HAS_NULLS: u16 = 0x8000;
/// Offset in a leaf tuple of the TID of its heap tuple.
pub const LEAF_HEAP_TID: usize = 6;
/// Bytes of an inner tuple's header (`SGITHDRSZ`).
pub const INNER_TUPLE_HEADER_BYTES: usize = 8;

/// The fields in the first four bytes of an inner tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerTupleHead {
    /// `allTheSame`: all nodes are alike.
    pub all_the_same: bool,
    /// `nNodes`
    pub nodes: u16,
    /// `prefixSize`, bytes
    pub prefix_bytes: u16,
}

impl InnerTupleHead {
    /// Decodes the first four bytes.
    #[inline]
    pub fn decode(head: u32) -> InnerTupleHead {
        InnerTupleHead {
            all_the_same: head & 4 != 0,
            nodes: (head >> 3 & 0x1FFF) as u16,
            prefix_bytes: (head >> 16) as u16,
        }
    }
}

/// Returns the size of an SP-GiST leaf tuple, or of a dead, redirect or placeholder tuple, from its first
/// four bytes.
#[inline]
pub fn leaf_tuple_size(head: u32) -> usize {
    (head >> 2) as usize
}

/// Offset of the metapage's list of pages with free space (`lastUsedPages`), which is never logged.
pub const META_LAST_USED_PAGES: usize = PAGE_CONTENTS + 4;
/// Number of entries of that list (`SPGIST_CACHED_PAGES`): a block number and the free space, 4 bytes each.
pub const META_CACHED_PAGES: usize = 8;
/// Bytes of an entry of that list (`SpGistLastUsedPage`).
pub const META_CACHED_PAGE_BYTES: usize = 8;

/// Bits of a page's flags, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const SPGIST_META: u16 = 1 << 0;
    pub const SPGIST_DELETED: u16 = 1 << 1;
    pub const SPGIST_LEAF: u16 = 1 << 2;
    pub const SPGIST_NULLS: u16 = 1 << 3;
}

/// An SP-GiST page's special area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpGistPageOpaqueData {
    /// `flags`: see [`flags`].
    pub flags: u16,
    /// `nRedirection`: redirections on the page.
    pub redirections: u16,
    /// `nPlaceholder`: placeholders on the page.
    pub placeholders: u16,
    /// `spgist_page_id`: [`SPGIST_PAGE_ID`].
    pub page_id: u16,
}

impl SpGistPageOpaqueData {
    /// Returns the special area of a new page (`SpGistInitPage`).
    #[inline]
    pub fn new(flags: u16) -> SpGistPageOpaqueData {
        SpGistPageOpaqueData { flags, redirections: 0, placeholders: 0, page_id: SPGIST_PAGE_ID }
    }
}

impl SpecialArea for SpGistPageOpaqueData {
    const BYTES: usize = 8;

    #[inline]
    fn read(page: &Page) -> SpGistPageOpaqueData {
        SpGistPageOpaqueData {
            flags: page.u16_at(Self::AT),
            redirections: page.u16_at(Self::AT + 2),
            placeholders: page.u16_at(Self::AT + 4),
            page_id: page.u16_at(Self::AT + 6),
        }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u16(Self::AT, self.flags);
        page.put_u16(Self::AT + 2, self.redirections);
        page.put_u16(Self::AT + 4, self.placeholders);
        page.put_u16(Self::AT + 6, self.page_id);
    }

    #[inline]
    fn check_id(self) -> Result<Self, Misfit> {
        if self.page_id == SPGIST_PAGE_ID {
            Ok(self)
        } else {
            Err(Misfit("the page is not one of an SP-GiST index"))
        }
    }
}
