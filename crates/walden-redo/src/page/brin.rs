//! Pages of BRIN indexes (`brin_page.h`, `brin_tuple.h`).
//!
//! ```text
//! offset  width  BrinSpecialSpace, the special area
//!      0      4  unused
//!      4      2  flags
//!      6      2  the kind of page
//!
//! offset  width  BrinMetaPageData, where other pages have line pointers
//!      0      4  brinMagic
//!      4      4  brinVersion
//!      8      4  pagesPerRange
//!     12      4  lastRevmapPage
//!
//! offset  width  BrinTuple
//!      0      4  bt_blkno       first block of the range
//!      4      1  bt_info        where the values start in the lower 5 bits, 3 flags
//! ```
//!
//! A revmap page has the TIDs of the ranges' tuples where other pages have line pointers, items and hole.

use super::special::SpecialArea;
use super::tid::TID_BYTES;
use super::{PAGE_BYTES, PAGE_CONTENTS, Page};

/// Kind of page: `BRIN_PAGETYPE_META`.
pub const BRIN_PAGETYPE_META: u16 = 0xF091;
/// Kind of page: `BRIN_PAGETYPE_REVMAP`.
pub const BRIN_PAGETYPE_REVMAP: u16 = 0xF092;
/// Kind of page: `BRIN_PAGETYPE_REGULAR`.
pub const BRIN_PAGETYPE_REGULAR: u16 = 0xF093;

/// Flag of a page whose tuples are being moved away for a revmap page.
pub const BRIN_EVACUATE_PAGE: u16 = 1;

/// Number of TIDs on a revmap page (`REVMAP_PAGE_MAXITEMS`).
pub const REVMAP_PAGE_TIDS: u32 = ((PAGE_BYTES - PAGE_CONTENTS - BrinSpecialSpace::BYTES) / TID_BYTES) as u32;
/// `BRIN_META_MAGIC`
pub const BRIN_META_MAGIC: u32 = 0xA810_9CFA;

/// Offsets of the metapage's fields from [`PAGE_CONTENTS`].
#[allow(missing_docs)]
pub mod meta {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const PAGES_PER_RANGE: usize = 8;
    pub const LAST_REVMAP_PAGE: usize = 12;
    /// Bytes of all fields.
    pub const BYTES: usize = 16;
}

/// Offset of `bt_info` in a tuple.
pub const TUPLE_INFO: usize = 4;
/// Bits of `bt_info`: offset of the values (`BRIN_OFFSET_MASK`).
pub const BRIN_OFFSET_MASK: u8 = 0x1F;
/// Bit of `bt_info`: the range has no tuples.
pub const BRIN_EMPTY_RANGE_MASK: u8 = 0x20;
/// Bit of `bt_info`: the tuple is a placeholder for a range that is being summarized.
pub const BRIN_PLACEHOLDER_MASK: u8 = 0x40;
/// Bit of `bt_info`: null bitmaps follow.
pub const BRIN_NULLS_MASK: u8 = 0x80;

/// A BRIN page's special area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrinSpecialSpace {
    /// `BRIN_EVACUATE_PAGE`, or 0.
    pub flags: u16,
    /// The kind of page, one of `BRIN_PAGETYPE_*`.
    pub page_type: u16,
}

impl SpecialArea for BrinSpecialSpace {
    const BYTES: usize = 8;

    #[inline]
    fn read(page: &Page) -> BrinSpecialSpace {
        BrinSpecialSpace { flags: page.u16_at(Self::AT + 4), page_type: page.u16_at(Self::AT + 6) }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u16(Self::AT + 4, self.flags);
        page.put_u16(Self::AT + 6, self.page_type);
    }
}
