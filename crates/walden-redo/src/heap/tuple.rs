//! A row version's header on its page (`HeapTupleHeaderData` in `htup_details.h`).
//!
//! ```text
//! offset  width
//!      0      4  t_xmin
//!      4      4  t_xmax
//!      8      4  t_cid, or t_xvac of VACUUM FULL before 9.0
//!     12      6  t_ctid            the next version: block, upper half first, and line pointer
//!     18      2  t_infomask2
//!     20      2  t_infomask
//!     22      1  t_hoff            where the attributes start
//!     23         null bitmap, padding, attributes
//! ```

use crate::page::Misfit;

/// Bytes of the header without the null bitmap (`SizeofHeapTupleHeader`).
pub(super) const HEADER: usize = 23;

/// Bits of `t_infomask`.
pub(super) mod infomask {
    pub const XMAX_KEYSHR_LOCK: u16 = 0x0010;
    pub const COMBOCID: u16 = 0x0020;
    pub const XMAX_EXCL_LOCK: u16 = 0x0040;
    pub const XMAX_LOCK_ONLY: u16 = 0x0080;
    pub const XMIN_FROZEN: u16 = 0x0300;
    pub const XMAX_COMMITTED: u16 = 0x0400;
    pub const XMAX_INVALID: u16 = 0x0800;
    pub const XMAX_IS_MULTI: u16 = 0x1000;
    pub const MOVED_OFF: u16 = 0x4000;
    pub const MOVED: u16 = 0xC000;
    pub const LOCK_MASK: u16 = XMAX_KEYSHR_LOCK | XMAX_EXCL_LOCK;
    pub const XMAX_BITS: u16 = XMAX_COMMITTED | XMAX_INVALID | XMAX_IS_MULTI | LOCK_MASK | XMAX_LOCK_ONLY;
    /// What visibility checks may set at any time.
    pub const XACT_MASK: u16 = 0xFFF0;
}

/// Bits of `t_infomask2`.
pub(super) mod infomask2 {
    pub const KEYS_UPDATED: u16 = 0x2000;
    pub const HOT_UPDATED: u16 = 0x4000;
    pub const ONLY_TUPLE: u16 = 0x8000;
}

/// The line pointer in `t_ctid` of a row version that a speculative insert may take back (`SpecTokenOffsetNumber`).
const SPECULATIVE: u16 = 0xFFFE;

/// Where a row version is: block and line pointer (`ItemPointerData`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TupleId(pub u32, pub u16);

impl TupleId {
    /// That of a row version that moved to another partition (`ItemPointerSetMovedPartitions`).
    pub const MOVED_PARTITIONS: TupleId = TupleId(u32::MAX, 0xFFFD);
}

/// A row version's header.
pub(super) struct Header<'p>(&'p [u8; HEADER]);

/// A row version's header, to change it.
pub(super) struct HeaderMut<'p>(&'p mut [u8; HEADER]);

impl<'p> Header<'p> {
    pub fn of(item: &'p [u8]) -> Option<Header<'p>> {
        item.first_chunk().map(Header)
    }

    pub fn xmin(&self) -> u32 {
        u32_at(self.0, 0)
    }

    pub fn xmax(&self) -> u32 {
        u32_at(self.0, 4)
    }

    pub fn ctid(&self) -> TupleId {
        TupleId(u32::from(u16_at(self.0, 12)) << 16 | u32::from(u16_at(self.0, 14)), u16_at(self.0, 16))
    }

    pub fn infomask2(&self) -> u16 {
        u16_at(self.0, 18)
    }

    pub fn infomask(&self) -> u16 {
        u16_at(self.0, 20)
    }

    /// Where the attributes start (`t_hoff`).
    pub fn attributes_start(&self) -> u8 {
        self.0[22]
    }

    pub fn xmin_frozen(&self) -> bool {
        self.infomask() & infomask::XMIN_FROZEN == infomask::XMIN_FROZEN
    }

    pub fn is_heap_only(&self) -> bool {
        self.infomask2() & infomask2::ONLY_TUPLE != 0
    }

    /// The three fields that records have of it (`xl_heap_header`).
    pub fn logged(&self) -> &'p [u8] {
        &self.0[18..23]
    }
}

impl<'p> HeaderMut<'p> {
    #[inline]
    pub fn of(item: &'p mut [u8]) -> Result<HeaderMut<'p>, Misfit> {
        item.first_chunk_mut().map(HeaderMut).ok_or(Misfit("a row version is shorter than its header"))
    }

    #[inline]
    pub fn infomask(&self) -> u16 {
        u16_at(self.0, 20)
    }

    #[inline]
    pub fn set_xmin(&mut self, xid: u32) {
        self.0[0..4].copy_from_slice(&xid.to_le_bytes());
    }

    #[inline]
    pub fn set_xmax(&mut self, xid: u32) {
        self.0[4..8].copy_from_slice(&xid.to_le_bytes());
    }

    #[inline]
    pub fn set_xvac(&mut self, xid: u32) {
        self.0[8..12].copy_from_slice(&xid.to_le_bytes());
    }

    /// Redo knows of no command ids: the first one, and no combination of two.
    #[inline]
    pub fn reset_command(&mut self) {
        self.0[8..12].fill(0);
        self.change_infomask(0, infomask::COMBOCID);
    }

    #[inline]
    pub fn set_ctid(&mut self, TupleId(block, number): TupleId) {
        self.0[12..14].copy_from_slice(&((block >> 16) as u16).to_le_bytes());
        self.0[14..16].copy_from_slice(&(block as u16).to_le_bytes());
        self.0[16..18].copy_from_slice(&number.to_le_bytes());
    }

    #[inline]
    pub fn change_infomask(&mut self, set: u16, clear: u16) {
        let bits = self.infomask() & !clear | set;
        self.0[20..22].copy_from_slice(&bits.to_le_bytes());
    }

    #[inline]
    pub fn change_infomask2(&mut self, set: u16, clear: u16) {
        let bits = u16_at(self.0, 18) & !clear | set;
        self.0[18..20].copy_from_slice(&bits.to_le_bytes());
    }

    /// A new `xmax` of which a record says what it is (`fix_infomask_from_infobits`).
    #[inline]
    pub fn set_infobits(&mut self, infobits: u8) {
        let bit = |set: u8, bit: u16| if infobits & set != 0 { bit } else { 0 };
        let set = bit(0x01, infomask::XMAX_IS_MULTI)
            | bit(0x02, infomask::XMAX_LOCK_ONLY)
            | bit(0x04, infomask::XMAX_EXCL_LOCK)
            | bit(0x08, infomask::XMAX_KEYSHR_LOCK);
        self.change_infomask(set, infomask::XMAX_BITS | infomask::MOVED);
        self.change_infomask2(bit(0x10, infomask2::KEYS_UPDATED), infomask2::KEYS_UPDATED);
    }

    /// Whether `xmax` locks and did not update (`HEAP_XMAX_IS_LOCKED_ONLY`).
    #[inline]
    pub fn is_locked_only(&self) -> bool {
        let bits = self.infomask();
        bits & infomask::XMAX_LOCK_ONLY != 0
            || bits & (infomask::XMAX_IS_MULTI | infomask::LOCK_MASK) == infomask::XMAX_EXCL_LOCK
    }

    /// Whether a speculative insert may take the row version back (`HeapTupleHeaderIsSpeculative`).
    pub fn is_speculative(&self) -> bool {
        u16_at(self.0, 16) == SPECULATIVE
    }
}

#[inline]
fn u16_at(bytes: &[u8; HEADER], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
