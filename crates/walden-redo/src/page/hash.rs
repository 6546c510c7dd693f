//! Pages of hash indexes (`hash.h`).
//!
//! ```text
//! offset  width  HashPageOpaqueData, the special area
//!      0      4  hasho_prevblkno  previous page; on a first page, the highest bucket as of its split
//!      4      4  hasho_nextblkno
//!      8      4  hasho_bucket
//!     12      2  hasho_flag       kind of page, and flags
//!     14      2  hasho_page_id
//!
//! offset  width  HashMetaPageData, where other pages have line pointers
//!      0      4  hashm_magic
//!      4      4  hashm_version
//!      8      8  hashm_ntuples    floating point
//!     16      2  hashm_ffactor    tuples per bucket
//!     18      2  hashm_bsize      bytes of a page without header and special area
//!     20      2  hashm_bmsize     bytes of a page's bitmap, a power of 2
//!     22      2  hashm_bmshift    log2 of its bits
//!     24      4  hashm_maxbucket
//!     28      4  hashm_highmask
//!     32      4  hashm_lowmask
//!     36      4  hashm_ovflpoint
//!     40      4  hashm_firstfree
//!     44      4  hashm_nmaps
//!     48      4  hashm_procid
//!     52  4 × 98 hashm_spares
//!    444 4 × 1024 hashm_mapp
//! ```

use super::special::SpecialArea;
use super::tid::INVALID_BLOCK;
use super::{Misfit, Page};

/// `HASHO_PAGE_ID`
pub const HASHO_PAGE_ID: u16 = 0xFF80;
/// `InvalidBucket`
pub const INVALID_BUCKET: u32 = u32::MAX;

/// Bits of `hasho_flag`, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const LH_UNUSED_PAGE: u16 = 0;
    pub const LH_OVERFLOW_PAGE: u16 = 1 << 0;
    pub const LH_BUCKET_PAGE: u16 = 1 << 1;
    pub const LH_BITMAP_PAGE: u16 = 1 << 2;
    pub const LH_META_PAGE: u16 = 1 << 3;
    pub const LH_PAGE_TYPE: u16 = LH_OVERFLOW_PAGE | LH_BUCKET_PAGE | LH_BITMAP_PAGE | LH_META_PAGE;
    pub const LH_BUCKET_BEING_POPULATED: u16 = 1 << 4;
    pub const LH_BUCKET_BEING_SPLIT: u16 = 1 << 5;
    pub const LH_BUCKET_NEEDS_SPLIT_CLEANUP: u16 = 1 << 6;
    pub const LH_PAGE_HAS_DEAD_TUPLES: u16 = 1 << 7;
}

/// Offsets of the metapage's fields from [`super::PAGE_CONTENTS`], and their numbers of entries.
#[allow(missing_docs)]
pub mod meta {
    use crate::page::max_align;

    pub const MAGIC: usize = 0;
    pub const VERSION: usize = MAGIC + 4;
    pub const TUPLES: usize = VERSION + 4;
    pub const FILL_FACTOR: usize = TUPLES + 8;
    pub const PAGE_SIZE: usize = FILL_FACTOR + 2;
    pub const BITMAP_BYTES: usize = PAGE_SIZE + 2;
    pub const BITMAP_SHIFT: usize = BITMAP_BYTES + 2;
    pub const MAX_BUCKET: usize = BITMAP_SHIFT + 2;
    pub const HIGH_MASK: usize = MAX_BUCKET + 4;
    pub const LOW_MASK: usize = HIGH_MASK + 4;
    pub const OVERFLOW_POINT: usize = LOW_MASK + 4;
    pub const FIRST_FREE: usize = OVERFLOW_POINT + 4;
    pub const BITMAPS: usize = FIRST_FREE + 4;
    pub const PROCEDURE: usize = BITMAPS + 4;
    pub const SPARES: usize = PROCEDURE + 4;
    pub const BITMAP_BLOCKS: usize = SPARES + 4 * MAX_SPLIT_POINTS as usize;
    /// Bytes of all fields.
    pub const BYTES: usize = max_align(BITMAP_BLOCKS + 4 * MAX_BITMAPS as usize);

    /// `HASH_MAGIC`
    pub const HASH_MAGIC: u32 = 0x0644_0640;
    /// `HASH_VERSION`
    pub const HASH_VERSION: u32 = 4;
    /// Groups of buckets that are allocated as a whole (`HASH_SPLITPOINT_GROUPS_WITH_ONE_PHASE`); later
    /// groups are allocated in four phases.
    pub const WHOLE_GROUPS: u32 = 10;
    /// Number of entries of [`SPARES`] (`HASH_MAX_SPLITPOINTS`).
    pub const MAX_SPLIT_POINTS: u32 = (32 - WHOLE_GROUPS) * 4 + WHOLE_GROUPS;
    /// Number of entries of [`BITMAP_BLOCKS`] (`HASH_MAX_BITMAPS`).
    pub const MAX_BITMAPS: u32 = 1024;
}

/// A hash page's special area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashPageOpaqueData {
    /// `hasho_prevblkno`: the previous page of the bucket; on a bucket's first page, the highest bucket as of
    /// its split.
    pub previous: u32,
    /// `hasho_nextblkno`: the next page of the bucket, or `InvalidBlockNumber`.
    pub next: u32,
    /// `hasho_bucket`, or [`INVALID_BUCKET`].
    pub bucket: u32,
    /// `hasho_flag`: see [`flags`].
    pub flag: u16,
    /// `hasho_page_id`: [`HASHO_PAGE_ID`].
    pub page_id: u16,
}

impl HashPageOpaqueData {
    /// Returns the special area of a new page without a successor.
    #[inline]
    pub fn new(previous: u32, bucket: u32, flag: u16) -> HashPageOpaqueData {
        HashPageOpaqueData { previous, next: INVALID_BLOCK, bucket, flag, page_id: HASHO_PAGE_ID }
    }

    /// Returns the kind of page: one of the bits of [`flags::LH_PAGE_TYPE`], or 0.
    #[inline]
    pub fn page_type(self) -> u16 {
        self.flag & flags::LH_PAGE_TYPE
    }
}

impl SpecialArea for HashPageOpaqueData {
    const BYTES: usize = 16;

    #[inline]
    fn read(page: &Page) -> HashPageOpaqueData {
        HashPageOpaqueData {
            previous: page.u32_at(Self::AT),
            next: page.u32_at(Self::AT + 4),
            bucket: page.u32_at(Self::AT + 8),
            flag: page.u16_at(Self::AT + 12),
            page_id: page.u16_at(Self::AT + 14),
        }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u32(Self::AT, self.previous);
        page.put_u32(Self::AT + 4, self.next);
        page.put_u32(Self::AT + 8, self.bucket);
        page.put_u16(Self::AT + 12, self.flag);
        page.put_u16(Self::AT + 14, self.page_id);
    }

    #[inline]
    fn check_id(self) -> Result<Self, Misfit> {
        if self.page_id == HASHO_PAGE_ID {
            Ok(self)
        } else {
            Err(Misfit("the page is not one of a hash index"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metapage_ends_where_postgresql_says() {
        assert_eq!((meta::BITMAP_BLOCKS, meta::BYTES), (444, 4544));
    }
}
