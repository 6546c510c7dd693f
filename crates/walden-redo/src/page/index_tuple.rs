//! The header of an index tuple (`IndexTupleData` in `itup.h`), which all access methods but SP-GiST's leaves
//! and BRIN use.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     the heap tuple; access methods keep other things there too
//!      6      2  t_info    size of the tuple in 13 bits, three flags
//!      8         null bitmap of 32 attributes and 4 bytes of padding if INDEX_NULL_MASK; the key
//! ```

use super::max_align;
use super::tid::{TID_BYTES, Tid};

/// Bytes of the header (`sizeof(IndexTupleData)`).
pub const INDEX_TUPLE_HEADER_BYTES: usize = 8;
/// Bytes of the null bitmap, independent of the number of attributes (`sizeof(IndexAttributeBitMapData)`).
pub const INDEX_NULL_BITMAP_BYTES: usize = 4;
/// Offset of the key if there is a null bitmap (`IndexInfoFindDataOffset`).
pub const INDEX_TUPLE_HEADER_WITH_NULLS_BYTES: usize =
    max_align(INDEX_TUPLE_HEADER_BYTES + INDEX_NULL_BITMAP_BYTES);

/// Bits of `t_info`: the tuple's size.
pub const INDEX_SIZE_MASK: u16 = 0x1FFF;
/// Bit of `t_info`: reserved for the access method (`INDEX_AM_RESERVED_BIT`).
pub const INDEX_AM_RESERVED_BIT: u16 = 0x2000;
/// Bit of `t_info`: there are attributes of variable width.
pub const INDEX_VAR_MASK: u16 = 0x4000;
/// Bit of `t_info`: there is a null bitmap.
pub const INDEX_NULL_MASK: u16 = 0x8000;

/// Returns `t_info` of the index tuple at the start of `bytes`; `None` if they are shorter than the header.
#[inline]
pub fn t_info(bytes: &[u8]) -> Option<u16> {
    let header: &[u8; INDEX_TUPLE_HEADER_BYTES] = bytes.first_chunk()?;
    Some(u16::from_le_bytes([header[TID_BYTES], header[TID_BYTES + 1]]))
}

/// Builds the header of an index tuple.
#[inline]
pub fn header(tid: Tid, t_info: u16) -> [u8; INDEX_TUPLE_HEADER_BYTES] {
    let ([h0, h1, l0, l1, n0, n1], [i0, i1]) = (tid.to_bytes(), t_info.to_le_bytes());
    [h0, h1, l0, l1, n0, n1, i0, i1]
}

/// Writes `t_info` of the index tuple at the start of `bytes`. Does nothing if they are shorter than the
/// header.
#[inline]
pub fn set_t_info(bytes: &mut [u8], t_info: u16) {
    if let Some(header) = bytes.first_chunk_mut::<INDEX_TUPLE_HEADER_BYTES>() {
        header[TID_BYTES..].copy_from_slice(&t_info.to_le_bytes());
    }
}

/// Returns the size in the header of the index tuple at the start of `bytes` (`IndexTupleSize`), header
/// included and padding excluded; `None` if it is smaller than the header. The size may exceed `bytes`.
#[inline]
pub fn size(bytes: &[u8]) -> Option<usize> {
    let size = usize::from(t_info(bytes)? & INDEX_SIZE_MASK);
    (size >= INDEX_TUPLE_HEADER_BYTES).then_some(size)
}

/// An index tuple: its header fields and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct IndexTuple<'a> {
    /// `t_tid`
    pub tid: Tid,
    /// `t_info`
    pub info: u16,
    /// The tuple's bytes, header included.
    pub bytes: &'a [u8],
}

impl<'a> IndexTuple<'a> {
    /// Reads the header; `None` if `bytes` are shorter.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Option<IndexTuple<'a>> {
        Some(IndexTuple { tid: Tid::read(bytes)?, info: t_info(bytes)?, bytes })
    }

    /// Returns the size in `t_info`, limited to the number of bytes.
    #[inline]
    pub fn size(&self) -> usize {
        usize::from(self.info & INDEX_SIZE_MASK).min(self.bytes.len())
    }

    /// Returns whether `INDEX_AM_RESERVED_BIT` is set.
    #[inline]
    pub fn has_reserved_bit(&self) -> bool {
        self.info & INDEX_AM_RESERVED_BIT != 0
    }

    /// Returns whether a null bitmap follows the header (`IndexTupleHasNulls`).
    #[inline]
    pub fn has_nulls(&self) -> bool {
        self.info & INDEX_NULL_MASK != 0
    }

    /// Returns whether the tuple has attributes of variable width (`IndexTupleHasVarwidths`).
    #[inline]
    pub fn has_varwidths(&self) -> bool {
        self.info & INDEX_VAR_MASK != 0
    }

    /// Returns the offset of the key from the tuple's start (`IndexInfoFindDataOffset`).
    #[inline]
    pub fn data_offset(&self) -> usize {
        if self.has_nulls() { INDEX_TUPLE_HEADER_WITH_NULLS_BYTES } else { INDEX_TUPLE_HEADER_BYTES }
    }
}
