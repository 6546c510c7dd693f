//! The header of a heap tuple (`HeapTupleHeaderData` in `htup_details.h`).
//!
//! ```text
//! offset  width
//!      0      4  t_xmin
//!      4      4  t_xmax
//!      8      4  t_cid, or t_xvac of VACUUM FULL before 9.0
//!     12      6  t_ctid            TID of the next version, or of this one
//!     18      2  t_infomask2
//!     20      2  t_infomask
//!     22      1  t_hoff            where the attributes start
//!     23         null bitmap if HEAP_HASNULL, padding, attributes from t_hoff on
//! ```

use std::ops::Range;

use walden_format::payload::heap::{self, InfoBits};

use super::tid::{TID_BYTES, Tid};
use super::{Misfit, u16_in, u32_in};

/// Bytes of the header without the null bitmap (`SizeofHeapTupleHeader`).
pub const HEAP_TUPLE_HEADER_BYTES: usize = heap::TUPLE_HEADER;
/// The header fields that WAL records contain: `t_infomask2`, `t_infomask` and `t_hoff` (`xl_heap_header`).
pub const LOGGED_FIELDS: Range<usize> = INFOMASK2..HEAP_TUPLE_HEADER_BYTES;
/// Bytes of these fields (`SizeOfHeapHeader`).
pub const LOGGED_FIELDS_BYTES: usize = heap::XlHeapHeader::WIDTH;

const XMIN: usize = 0;
const XMAX: usize = 4;
const CID: usize = 8;
const CTID: usize = 12;
const INFOMASK2: usize = CTID + TID_BYTES;
const INFOMASK: usize = INFOMASK2 + 2;
/// Offset of `t_hoff`.
pub const HOFF: usize = INFOMASK + 2;

/// Bits of `t_infomask`, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod infomask {
    pub const HEAP_HASNULL: u16 = 0x0001;
    pub const HEAP_HASVARWIDTH: u16 = 0x0002;
    pub const HEAP_HASEXTERNAL: u16 = 0x0004;
    pub const HEAP_HASOID_OLD: u16 = 0x0008;
    pub const HEAP_XMAX_KEYSHR_LOCK: u16 = 0x0010;
    pub const HEAP_COMBOCID: u16 = 0x0020;
    pub const HEAP_XMAX_EXCL_LOCK: u16 = 0x0040;
    pub const HEAP_XMAX_LOCK_ONLY: u16 = 0x0080;
    pub const HEAP_XMIN_COMMITTED: u16 = 0x0100;
    pub const HEAP_XMIN_INVALID: u16 = 0x0200;
    pub const HEAP_XMAX_COMMITTED: u16 = 0x0400;
    pub const HEAP_XMAX_INVALID: u16 = 0x0800;
    pub const HEAP_XMAX_IS_MULTI: u16 = 0x1000;
    pub const HEAP_UPDATED: u16 = 0x2000;
    pub const HEAP_MOVED_OFF: u16 = 0x4000;
    pub const HEAP_MOVED_IN: u16 = 0x8000;

    pub const HEAP_XMAX_SHR_LOCK: u16 = HEAP_XMAX_EXCL_LOCK | HEAP_XMAX_KEYSHR_LOCK;
    pub const HEAP_LOCK_MASK: u16 = HEAP_XMAX_SHR_LOCK;
    pub const HEAP_XMIN_FROZEN: u16 = HEAP_XMIN_COMMITTED | HEAP_XMIN_INVALID;
    pub const HEAP_MOVED: u16 = HEAP_MOVED_OFF | HEAP_MOVED_IN;
    pub const HEAP_XMAX_BITS: u16 =
        HEAP_XMAX_COMMITTED | HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI | HEAP_LOCK_MASK | HEAP_XMAX_LOCK_ONLY;
    /// Bits that visibility checks may set at any time.
    pub const HEAP_XACT_MASK: u16 = 0xFFF0;
}

/// Bits of `t_infomask2`, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod infomask2 {
    /// Number of attributes.
    pub const HEAP_NATTS_MASK: u16 = walden_format::payload::heap::ATTRIBUTES_MASK;
    pub const HEAP_KEYS_UPDATED: u16 = 0x2000;
    pub const HEAP_HOT_UPDATED: u16 = 0x4000;
    pub const HEAP_ONLY_TUPLE: u16 = 0x8000;
}

/// The offset number in `t_ctid` while the tuple's insertion is speculative (`SpecTokenOffsetNumber`).
const SPECULATIVE_TOKEN: u16 = 0xFFFE;

/// `t_ctid` of a tuple that was moved to another partition (`ItemPointerSetMovedPartitions`).
pub const MOVED_PARTITIONS: Tid = Tid { block: u32::MAX, offset_number: 0xFFFD };

/// A heap tuple's header, read-only.
#[derive(Clone, Copy, Debug)]
pub struct HeapTupleHeader<'p>(&'p [u8; HEAP_TUPLE_HEADER_BYTES]);

/// A heap tuple's header, mutable.
#[derive(Debug)]
pub struct HeapTupleHeaderMut<'p>(&'p mut [u8; HEAP_TUPLE_HEADER_BYTES]);

impl<'p> HeapTupleHeader<'p> {
    /// Returns the header at the start of a tuple's bytes; `None` if there are too few.
    #[inline]
    pub fn parse(tuple: &'p [u8]) -> Option<HeapTupleHeader<'p>> {
        tuple.first_chunk().map(HeapTupleHeader)
    }

    /// Returns `t_xmin`.
    #[inline]
    pub fn xmin(&self) -> u32 {
        u32_in(self.0, XMIN)
    }

    /// Returns `t_xmax`.
    #[inline]
    pub fn xmax(&self) -> u32 {
        u32_in(self.0, XMAX)
    }

    /// Returns `t_cid`, which is `t_xvac` if a bit of `HEAP_MOVED` is set.
    #[inline]
    pub fn cid(&self) -> u32 {
        u32_in(self.0, CID)
    }

    /// Returns `t_ctid`.
    #[inline]
    pub fn ctid(&self) -> Tid {
        Tid::from_bytes(&std::array::from_fn(|at| self.0[CTID + at]))
    }

    /// Returns `t_infomask2`.
    #[inline]
    pub fn infomask2(&self) -> u16 {
        u16_in(self.0, INFOMASK2)
    }

    /// Returns `t_infomask`.
    #[inline]
    pub fn infomask(&self) -> u16 {
        u16_in(self.0, INFOMASK)
    }

    /// Returns `t_hoff`, the offset of the attributes in bytes. The offset is unchecked: it may be within the
    /// header or after the tuple.
    #[inline]
    pub fn hoff(&self) -> u8 {
        self.0[HOFF]
    }

    /// Returns the number of attributes (`HeapTupleHeaderGetNatts`).
    #[inline]
    pub fn natts(&self) -> u16 {
        self.infomask2() & infomask2::HEAP_NATTS_MASK
    }

    /// Returns whether a null bitmap follows the header.
    #[inline]
    pub fn has_nulls(&self) -> bool {
        self.infomask() & infomask::HEAP_HASNULL != 0
    }

    /// Returns whether `xmin` is frozen (`HeapTupleHeaderXminFrozen`).
    #[inline]
    pub fn is_xmin_frozen(&self) -> bool {
        self.infomask() & infomask::HEAP_XMIN_FROZEN == infomask::HEAP_XMIN_FROZEN
    }

    /// Returns whether the tuple is heap-only (`HeapTupleHeaderIsHeapOnly`).
    #[inline]
    pub fn is_heap_only(&self) -> bool {
        self.infomask2() & infomask2::HEAP_ONLY_TUPLE != 0
    }

    /// Returns the header fields that records contain: see [`LOGGED_FIELDS`].
    #[inline]
    pub fn logged_fields(&self) -> &'p [u8] {
        &self.0[LOGGED_FIELDS]
    }
}

impl<'p> HeapTupleHeaderMut<'p> {
    /// Returns the header at the start of a tuple's bytes.
    ///
    /// # Errors
    /// There are too few bytes.
    #[inline]
    pub fn parse(tuple: &'p mut [u8]) -> Result<HeapTupleHeaderMut<'p>, Misfit> {
        tuple
            .first_chunk_mut()
            .map(HeapTupleHeaderMut)
            .ok_or(Misfit("a heap tuple is shorter than its header"))
    }

    /// Returns `t_infomask`.
    #[inline]
    pub fn infomask(&self) -> u16 {
        u16_in(self.0, INFOMASK)
    }

    /// Sets `t_xmin` (`HeapTupleHeaderSetXmin`).
    #[inline]
    pub fn set_xmin(&mut self, xid: u32) {
        self.0[XMIN..XMAX].copy_from_slice(&xid.to_le_bytes());
    }

    /// Sets `t_xmax` (`HeapTupleHeaderSetXmax`).
    #[inline]
    pub fn set_xmax(&mut self, xid: u32) {
        self.0[XMAX..CID].copy_from_slice(&xid.to_le_bytes());
    }

    /// Sets `t_xvac` (`HeapTupleHeaderSetXvac`).
    #[inline]
    pub fn set_xvac(&mut self, xid: u32) {
        self.0[CID..CTID].copy_from_slice(&xid.to_le_bytes());
    }

    /// Sets the command id to `FirstCommandId` (`HeapTupleHeaderSetCmin` and `SetCmax`): records do not
    /// contain command ids.
    #[inline]
    pub fn reset_command(&mut self) {
        self.0[CID..CTID].fill(0);
        self.change_infomask(0, infomask::HEAP_COMBOCID);
    }

    /// Sets `t_ctid`.
    #[inline]
    pub fn set_ctid(&mut self, ctid: Tid) {
        self.0[CTID..INFOMASK2].copy_from_slice(&ctid.to_bytes());
    }

    /// Sets and clears bits of `t_infomask`.
    #[inline]
    pub fn change_infomask(&mut self, set: u16, clear: u16) {
        let bits = self.infomask() & !clear | set;
        self.0[INFOMASK..HOFF].copy_from_slice(&bits.to_le_bytes());
    }

    /// Sets and clears bits of `t_infomask2`.
    #[inline]
    pub fn change_infomask2(&mut self, set: u16, clear: u16) {
        let bits = u16_in(self.0, INFOMASK2) & !clear | set;
        self.0[INFOMASK2..INFOMASK].copy_from_slice(&bits.to_le_bytes());
    }

    /// Sets the bits that qualify a new `xmax`, from a record's `infobits_set`
    /// (`fix_infomask_from_infobits`).
    #[inline]
    pub fn set_infobits(&mut self, infobits: u8) {
        let bit = |set: u8, bit: u16| if infobits & set != 0 { bit } else { 0 };
        let set = bit(InfoBits::XMAX_IS_MULTI, infomask::HEAP_XMAX_IS_MULTI)
            | bit(InfoBits::XMAX_LOCK_ONLY, infomask::HEAP_XMAX_LOCK_ONLY)
            | bit(InfoBits::XMAX_EXCL_LOCK, infomask::HEAP_XMAX_EXCL_LOCK)
            | bit(InfoBits::XMAX_KEYSHR_LOCK, infomask::HEAP_XMAX_KEYSHR_LOCK);
        self.change_infomask(set, infomask::HEAP_XMAX_BITS | infomask::HEAP_MOVED);
        let keys_updated = bit(InfoBits::KEYS_UPDATED, infomask2::HEAP_KEYS_UPDATED);
        self.change_infomask2(keys_updated, infomask2::HEAP_KEYS_UPDATED);
    }

    /// Returns whether `xmax` only locked the tuple (`HEAP_XMAX_IS_LOCKED_ONLY`).
    #[inline]
    pub fn is_locked_only(&self) -> bool {
        let bits = self.infomask();
        bits & infomask::HEAP_XMAX_LOCK_ONLY != 0
            || bits & (infomask::HEAP_XMAX_IS_MULTI | infomask::HEAP_LOCK_MASK)
                == infomask::HEAP_XMAX_EXCL_LOCK
    }

    /// Returns whether the tuple's insertion is speculative (`HeapTupleHeaderIsSpeculative`).
    #[inline]
    pub fn is_speculative(&self) -> bool {
        u16_in(self.0, CTID + 4) == SPECULATIVE_TOKEN
    }
}
