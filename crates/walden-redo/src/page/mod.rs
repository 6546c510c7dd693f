//! PostgreSQL's page layouts: the only place that declares offsets, flags and headers of data pages.
//!
//! This file has the page and its header. [`line_pointer`] and `items` are common to all access methods.
//! [`heap_tuple`] and [`index_tuple`] have the headers of tuples; [`special`] and a module per access method
//! have the special areas. Constants have PostgreSQL's names where PostgreSQL names them.
//!
//! ```text
//! offset  width  PageHeaderData (bufpage.h)
//!      0      8  pd_lsn            LSN to which the WAL must be flushed before the page: high word first
//!      8      2  pd_checksum
//!     10      2  pd_flags
//!     12      2  pd_lower          end of the line pointers
//!     14      2  pd_upper          start of the items
//!     16      2  pd_special        start of the special area
//!     18      2  pd_pagesize_version
//!     20      4  pd_prune_xid
//!     24    4 n  line pointers
//! ```
//!
//! Offsets and lengths come from pages and records that may be damaged. Each operation therefore checks all
//! offsets and lengths first, and changes nothing if one is invalid.

pub mod brin;
pub mod btree;
pub mod checksum;
mod compact;
pub mod gin;
pub mod gist;
pub mod hash;
pub mod heap_tuple;
pub mod index_tuple;
mod items;
pub mod jsonb;
pub mod line_pointer;
pub mod maps;
pub mod sequence;
pub mod special;
pub mod spgist;
#[cfg(test)]
mod tests;
pub mod tid;
pub mod toast_pointer;
pub mod tsvector;
pub mod varlena;

use walden_format::lsn::Lsn;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use line_pointer::{ItemState, LINE_POINTER_BYTES, LinePointer, line_pointer_offset};
pub use special::SpecialArea;
pub use tid::Tid;

/// Bytes of a page (`BLCKSZ`). Pages of a PostgreSQL that was compiled with another size are not replayed.
pub const PAGE_BYTES: usize = 8192;
/// Bytes of a page's header (`SizeOfPageHeaderData`): where line pointers start.
pub const PAGE_HEADER_BYTES: usize = 24;
/// Offset of the content of a page without line pointers (`PageGetContents`).
pub const PAGE_CONTENTS: usize = max_align(PAGE_HEADER_BYTES);
/// Maximum number of line pointers of a heap page (`MaxHeapTuplesPerPage`).
pub const MAX_HEAP_ITEMS: u16 = 291;
/// The version of the layout since 8.3 (`PG_PAGE_LAYOUT_VERSION`).
const LAYOUT_VERSION: u16 = 4;

/// Offsets of the header's fields.
#[allow(missing_docs)]
pub mod header {
    pub const LSN: usize = 0;
    pub const CHECKSUM: usize = 8;
    pub const FLAGS: usize = 10;
    pub const LOWER: usize = 12;
    pub const UPPER: usize = 14;
    pub const SPECIAL: usize = 16;
    pub const PAGE_SIZE_VERSION: usize = 18;
    pub const PRUNE_XID: usize = 20;
}

/// Flags of a page's header (`pd_flags`), under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const PD_HAS_FREE_LINES: u16 = 0x0001;
    pub const PD_PAGE_FULL: u16 = 0x0002;
    pub const PD_ALL_VISIBLE: u16 = 0x0004;
}

/// The reason why a record does not fit a page. The page's content is unknown from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misfit(pub &'static str);

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Misfit {}

/// Rounds up to the alignment of items (`MAXALIGN`).
#[inline]
pub const fn max_align(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// A data page of [`PAGE_BYTES`] bytes.
///
/// Methods that take an offset panic if it is not on the page. All others check the header, and report an
/// invalid one as [`Misfit`].
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(8))]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Default for Page {
    fn default() -> Page {
        Page([0; PAGE_BYTES])
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lower, upper, special) = (self.lower(), self.upper(), self.special());
        write!(f, "Page {{ lsn: {}, lower: {lower}, upper: {upper}, special: {special} }}", self.lsn())
    }
}

/// Bytes, and the header's fields.
impl Page {
    /// Returns the 16-bit number at an offset, which must be on the page.
    #[inline]
    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    /// Returns the 32-bit number at an offset, which must be on the page.
    #[inline]
    pub fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// Writes a 16-bit number at an offset, which must be on the page.
    #[inline]
    pub fn put_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes a 32-bit number at an offset, which must be on the page.
    #[inline]
    pub fn put_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the LSN at an offset, which must be on the page. Pages have its upper half first
    /// (`PageXLogRecPtr`).
    #[inline]
    pub fn lsn_at(&self, at: usize) -> Lsn {
        Lsn(u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4)))
    }

    /// Writes an LSN at an offset, which must be on the page.
    #[inline]
    pub fn put_lsn(&mut self, at: usize, lsn: Lsn) {
        self.put_u32(at, (lsn.0 >> 32) as u32);
        self.put_u32(at + 4, lsn.0 as u32);
    }

    /// Returns `pd_lsn`, the end of the last record that changed the page.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        self.lsn_at(header::LSN)
    }

    /// Sets `pd_lsn` (`PageSetLSN`).
    #[inline]
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.put_lsn(header::LSN, lsn);
    }

    /// Returns `pd_checksum` as stored.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.u16_at(header::CHECKSUM)
    }

    /// Sets `pd_checksum`.
    #[inline]
    pub fn put_checksum(&mut self, checksum: u16) {
        self.put_u16(header::CHECKSUM, checksum);
    }

    /// Returns `pd_flags`: see [`flags`].
    #[inline]
    pub fn flags(&self) -> u16 {
        self.u16_at(header::FLAGS)
    }

    /// Sets and clears bits of `pd_flags`.
    #[inline]
    pub fn change_flags(&mut self, set: u16, clear: u16) {
        self.put_u16(header::FLAGS, self.flags() & !clear | set);
    }

    /// Returns `pd_lower` as stored, the end of the line pointers.
    #[inline]
    pub fn lower(&self) -> usize {
        self.u16_at(header::LOWER).into()
    }

    /// Returns `pd_upper` as stored, the start of the items.
    #[inline]
    pub fn upper(&self) -> usize {
        self.u16_at(header::UPPER).into()
    }

    /// Returns `pd_special` as stored, the start of the special area.
    #[inline]
    pub fn special(&self) -> usize {
        self.u16_at(header::SPECIAL).into()
    }

    /// Sets `pd_lower`.
    #[inline]
    pub fn set_lower(&mut self, lower: usize) {
        self.put_u16(header::LOWER, lower as u16);
    }

    /// Sets `pd_upper`.
    #[inline]
    pub fn set_upper(&mut self, upper: usize) {
        self.put_u16(header::UPPER, upper as u16);
    }

    /// Returns the page's size in bytes according to its header (`PageGetPageSize`), the upper byte of
    /// `pd_pagesize_version`.
    #[inline]
    pub fn page_size(&self) -> u16 {
        self.u16_at(header::PAGE_SIZE_VERSION) & 0xFF00
    }

    /// Returns the layout version according to the page's header (`PageGetPageLayoutVersion`), the lower byte
    /// of `pd_pagesize_version`.
    #[inline]
    pub fn layout_version(&self) -> u16 {
        self.u16_at(header::PAGE_SIZE_VERSION) & 0x00FF
    }

    /// Returns `pd_prune_xid`.
    #[inline]
    pub fn prune_xid(&self) -> u32 {
        self.u32_at(header::PRUNE_XID)
    }

    /// Sets `pd_prune_xid`.
    #[inline]
    pub fn set_prune_xid(&mut self, xid: u32) {
        self.put_u32(header::PRUNE_XID, xid);
    }

    /// Returns whether the page was never initialized (`PageIsNew`).
    #[inline]
    pub fn is_new(&self) -> bool {
        self.upper() == 0
    }

    /// Initializes an empty page with a special area of at least `special_bytes` bytes (`PageInit`).
    pub fn init(&mut self, special_bytes: usize) {
        self.0.fill(0);
        let special = PAGE_BYTES - max_align(special_bytes).min(PAGE_BYTES - PAGE_HEADER_BYTES);
        self.set_lower(PAGE_HEADER_BYTES);
        self.set_upper(special);
        self.put_u16(header::SPECIAL, special as u16);
        self.put_u16(header::PAGE_SIZE_VERSION, PAGE_BYTES as u16 | LAYOUT_VERSION);
    }

    /// Returns the special area; empty if the header is damaged.
    pub fn special_area(&self) -> &[u8] {
        self.0.get(self.special()..).unwrap_or(&[])
    }

    /// Returns the offset of the special area.
    ///
    /// # Errors
    /// The area does not have exactly `bytes` bytes.
    #[inline]
    pub fn special_exactly(&self, bytes: usize) -> Result<usize, Misfit> {
        let at = self.special();
        if at + bytes == PAGE_BYTES {
            Ok(at)
        } else {
            Err(Misfit("the page's special area has another size"))
        }
    }

    /// Returns the bytes between the header and the special area (`PageGetContents`); empty if the header is
    /// damaged.
    #[inline]
    pub fn contents(&self) -> &[u8] {
        self.0.get(PAGE_CONTENTS..self.special().min(PAGE_BYTES)).unwrap_or(&[])
    }

    /// Checks that `pd_lower`, `pd_upper` and `pd_special` are in order and on the page.
    ///
    /// # Errors
    /// They are out of order, or exceed the page.
    #[inline]
    pub fn check(&self) -> Result<(), Misfit> {
        let (lower, upper, special) = (self.lower(), self.upper(), self.special());
        let sound = lower >= PAGE_HEADER_BYTES && lower <= upper && upper <= special && special <= PAGE_BYTES;
        if sound && special & 7 == 0 { Ok(()) } else { Err(Misfit("the page's header is not sound")) }
    }

    /// Fills the hole between `pd_lower` and `pd_upper` with zeros. Does nothing if the header is damaged.
    pub fn zero_hole(&mut self) {
        let (lower, upper) = (self.lower(), self.upper());
        if let Some(hole) = self.0.get_mut(lower..upper).filter(|_| lower >= PAGE_HEADER_BYTES) {
            hole.fill(0);
        }
    }
}

/// Returns the 16-bit number at an offset, which must be within the bytes.
#[inline]
fn u16_in(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the 32-bit number at an offset, which must be within the bytes.
#[inline]
fn u32_in(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
