//! Pages of GiST indexes (`gist.h`).
//!
//! ```text
//! offset  width  GISTPageOpaqueData, the special area
//!      0      8  nsn           LSN of the page's last split: high word first
//!      8      4  rightlink     the next page of the level
//!     12      2  flags
//!     14      2  gist_page_id
//! ```

use walden_format::lsn::Lsn;

use super::special::SpecialArea;
use super::{Misfit, Page};

/// `GIST_PAGE_ID`
pub const GIST_PAGE_ID: u16 = 0xFF81;
/// The block of every index's root page (`GIST_ROOT_BLKNO`).
pub const GIST_ROOT_BLOCK: u32 = 0;
/// Bytes of the content of a deleted page: the transaction that deleted it (`GISTDeletedPageContents`).
pub const GIST_DELETED_BYTES: usize = 8;

/// Bits of a page's flags, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const F_LEAF: u16 = 1 << 0;
    pub const F_DELETED: u16 = 1 << 1;
    pub const F_TUPLES_DELETED: u16 = 1 << 2;
    pub const F_FOLLOW_RIGHT: u16 = 1 << 3;
    pub const F_HAS_GARBAGE: u16 = 1 << 4;
}

/// A GiST page's special area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GistPageOpaqueData {
    /// `nsn`: LSN of the page's last split.
    pub nsn: Lsn,
    /// `rightlink`: the next page of the level, or `InvalidBlockNumber`.
    pub right_link: u32,
    /// `flags`: see [`flags`].
    pub flags: u16,
    /// `gist_page_id`: [`GIST_PAGE_ID`].
    pub page_id: u16,
}

impl SpecialArea for GistPageOpaqueData {
    const BYTES: usize = 16;

    #[inline]
    fn read(page: &Page) -> GistPageOpaqueData {
        GistPageOpaqueData {
            nsn: page.lsn_at(Self::AT),
            right_link: page.u32_at(Self::AT + 8),
            flags: page.u16_at(Self::AT + 12),
            page_id: page.u16_at(Self::AT + 14),
        }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_lsn(Self::AT, self.nsn);
        page.put_u32(Self::AT + 8, self.right_link);
        page.put_u16(Self::AT + 12, self.flags);
        page.put_u16(Self::AT + 14, self.page_id);
    }

    #[inline]
    fn check_id(self) -> Result<Self, Misfit> {
        if self.page_id == GIST_PAGE_ID {
            Ok(self)
        } else {
            Err(Misfit("the page is not one of a GiST index"))
        }
    }
}
