//! Pages and tuples of GIN indexes (`ginblock.h`).
//!
//! ```text
//! offset  width  GinPageOpaqueData, the special area
//!      0      4  rightlink
//!      4      2  maxoff            inner page of a posting tree: posting items; list page: heap tuples
//!      6      2  flags
//!
//! offset  width  a page of a posting tree, where other pages have line pointers
//!      0      6  right bound       the greatest TID on the page, padded to 8 bytes
//!      8         leaf: segments, up to pd_lower; inner page: posting items (child, its right bound)
//!
//! offset  width  GinPostingList, a segment
//!      0      6  first TID
//!      6      2  bytes that follow, padding not included
//!      8         distances between TIDs as numbers, 7 bits per byte, the low ones first
//! ```
//!
//! Tuples of entry trees are index tuples ([`super::index_tuple`]). In a leaf the offset number of `t_tid` is
//! the number of TIDs, or [`GIN_TREE_POSTING`]. The block number is the offset of the TIDs in the tuple, or
//! the root of the posting tree.

use super::special::SpecialArea;
use super::tid::{INVALID_BLOCK, TID_BYTES, Tid};
use super::{PAGE_BYTES, PAGE_CONTENTS, Page, u16_in};

/// Offset of segments and posting items on a page of a posting tree (`GinDataPageGetData`).
pub const GIN_DATA: usize = PAGE_CONTENTS + GIN_RIGHT_BOUND_BYTES;
/// Bytes of the right bound, which precedes segments and posting items, with padding.
pub const GIN_RIGHT_BOUND_BYTES: usize = 8;
/// Maximum number of bytes of segments and posting items (`GinDataPageMaxDataSize`).
pub const GIN_MAX_DATA_BYTES: usize = PAGE_BYTES - GinPageOpaqueData::BYTES - GIN_DATA;
/// Bytes of a posting item (`PostingItem`): a child's block number, and its right bound.
pub const GIN_POSTING_ITEM_BYTES: usize = walden_format::payload::gin::POSTING_ITEM;
/// Bytes of a segment's header.
pub const GIN_SEGMENT_HEADER_BYTES: usize = 8;
/// The offset number of an entry whose TIDs are in a posting tree (`GIN_TREE_POSTING`).
pub const GIN_TREE_POSTING: u16 = 0xFFFF;
/// Bit of the block number of an entry whose TIDs are compressed (`GIN_ITUP_COMPRESSED`).
pub const GIN_ITUP_COMPRESSED: u32 = 1 << 31;
/// Bits of the offset number in a packed TID, below the block number (`MaxHeapTuplesPerPageBits`).
const OFFSET_NUMBER_BITS: u32 = 11;
/// The greatest offset number that fits into these bits.
pub const MAX_PACKED_OFFSET_NUMBER: u16 = (1 << OFFSET_NUMBER_BITS) - 1;
/// Maximum number of bytes of a distance between TIDs, with 7 bits each (`MaxBytesPerInteger`).
const MAX_DISTANCE_BYTES: u32 = 7;

/// Offsets of the metapage's fields from [`PAGE_CONTENTS`].
#[allow(missing_docs)]
pub mod meta {
    pub const HEAD: usize = 0;
    pub const TAIL: usize = 4;
    pub const TAIL_FREE_SIZE: usize = 8;
    pub const PENDING_PAGES: usize = 12;
    pub const PENDING_HEAP_TUPLES: usize = 16;
    pub const TOTAL_PAGES: usize = 24;
    pub const ENTRY_PAGES: usize = 28;
    pub const DATA_PAGES: usize = 32;
    pub const ENTRIES: usize = 40;
    pub const VERSION: usize = 48;
}

/// Bits of a page's flags, under PostgreSQL's names.
#[allow(missing_docs)]
pub mod flags {
    pub const GIN_DATA: u16 = 1 << 0;
    pub const GIN_LEAF: u16 = 1 << 1;
    pub const GIN_DELETED: u16 = 1 << 2;
    pub const GIN_META: u16 = 1 << 3;
    pub const GIN_LIST: u16 = 1 << 4;
    pub const GIN_LIST_FULLROW: u16 = 1 << 5;
    pub const GIN_INCOMPLETE_SPLIT: u16 = 1 << 6;
    pub const GIN_COMPRESSED: u16 = 1 << 7;
    /// All flags that PostgreSQL has.
    pub const ALL: u16 = 0x00FF;
}

/// A GIN page's special area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GinPageOpaqueData {
    /// `rightlink`: the next page of the level or list, or [`INVALID_BLOCK`].
    pub right_link: u32,
    /// `maxoff`: posting items of an inner page of a posting tree; heap tuples of a list page.
    pub max_offset: u16,
    /// `flags`: see [`flags`].
    pub flags: u16,
}

impl GinPageOpaqueData {
    /// Returns the special area of a new page (`GinInitPage`).
    #[inline]
    pub fn new(flags: u16) -> GinPageOpaqueData {
        GinPageOpaqueData { right_link: INVALID_BLOCK, max_offset: 0, flags }
    }
}

impl SpecialArea for GinPageOpaqueData {
    const BYTES: usize = 8;

    #[inline]
    fn read(page: &Page) -> GinPageOpaqueData {
        GinPageOpaqueData {
            right_link: page.u32_at(Self::AT),
            max_offset: page.u16_at(Self::AT + 4),
            flags: page.u16_at(Self::AT + 6),
        }
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u32(Self::AT, self.right_link);
        page.put_u16(Self::AT + 4, self.max_offset);
        page.put_u16(Self::AT + 6, self.flags);
    }
}

/// Returns a TID as a number that sorts like TIDs; segments have the distances between these numbers
/// (`itemptr_to_uint64`). If the offset number exceeds [`MAX_PACKED_OFFSET_NUMBER`], the result is the number
/// of a different TID.
#[inline]
pub fn tid_to_number(tid: Tid) -> u64 {
    u64::from(tid.block) << OFFSET_NUMBER_BITS | u64::from(tid.offset_number)
}

/// Converts a number back to a TID; `None` if the block number does not fit (`uint64_to_itemptr`).
#[inline]
pub fn number_to_tid(number: u64) -> Option<Tid> {
    let offset_number = number as u16 & MAX_PACKED_OFFSET_NUMBER;
    Some(Tid { block: u32::try_from(number >> OFFSET_NUMBER_BITS).ok()?, offset_number })
}

/// A segment of a posting list (`GinPostingList`).
#[derive(Clone, Copy, Debug)]
pub struct PostingSegment<'a> {
    /// The first TID.
    pub first: Tid,
    /// The distances from each TID to the next, without padding.
    distances: &'a [u8],
}

impl<'a> PostingSegment<'a> {
    /// Reads the first segment of a list; `None` if the list ends within the segment, whose padding may be
    /// missing.
    #[inline]
    pub fn read(list: &'a [u8]) -> Option<PostingSegment<'a>> {
        let (header, rest) = list.split_first_chunk::<GIN_SEGMENT_HEADER_BYTES>()?;
        let distances = rest.get(..usize::from(u16_in(header, TID_BYTES)))?;
        Some(PostingSegment { first: Tid::read(header)?, distances })
    }

    /// Returns the size of the segment in bytes, header and padding included (`SizeOfGinPostingList`).
    #[inline]
    pub fn size(&self) -> usize {
        GIN_SEGMENT_HEADER_BYTES + self.distances.len().next_multiple_of(2)
    }

    /// Calls `each` with the numbers of the TIDs after the first TID, in order (`ginPostingListDecode`).
    /// Returns `None` at the first number that is cut off or denotes no TID, after the calls for all previous
    /// numbers.
    #[inline]
    pub fn others(&self, mut each: impl FnMut(u64)) -> Option<()> {
        const MAX_NUMBER: u64 = (1 << (u32::BITS + OFFSET_NUMBER_BITS)) - 1;
        let mut number = tid_to_number(self.first);
        let mut distances = self.distances;
        while !distances.is_empty() {
            let distance = take_distance(&mut distances)?;
            number = number.checked_add(distance).filter(|&number| number <= MAX_NUMBER)?;
            each(number);
        }
        Some(())
    }
}

/// Decodes a distance and advances the input (`decode_varbyte`).
#[inline]
fn take_distance(bytes: &mut &[u8]) -> Option<u64> {
    let mut distance = 0;
    for shift in (0..7 * MAX_DISTANCE_BYTES).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        distance |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    Some(distance)
}

/// Returns the number of bytes of an encoded distance.
#[inline]
pub fn distance_bytes(distance: u64) -> usize {
    (u64::BITS - (distance | 1).leading_zeros()).div_ceil(7) as usize
}

/// Appends a distance (`encode_varbyte`).
#[inline]
fn put_distance(mut distance: u64, out: &mut Vec<u8>) {
    // Without a branch: most distances have one or two bytes, and which one is unpredictable.
    if distance < 1 << 14 {
        let is_long = usize::from(distance >= 0x80);
        out.extend_from_slice(&[distance as u8 & 0x7F | (is_long as u8) << 7, (distance >> 7) as u8]);
        out.truncate(out.len() - 1 + is_long);
        return;
    }
    while distance >= 0x80 {
        out.push(distance as u8 | 0x80);
        distance >>= 7;
    }
    out.push(distance as u8);
}

/// Appends a segment with the first TID and further TIDs until the segment has `max_bytes` bytes. Returns the
/// number of TIDs in it (`ginCompressPostingList`), or `None` if the numbers descend.
#[inline]
pub fn put_segment(
    first: Tid,
    others: impl IntoIterator<Item = u64>,
    max_bytes: usize,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let start = out.len();
    // Segments are padded to an even length, and the length in the header has 16 bits.
    let max_bytes = max_bytes.min(GIN_SEGMENT_HEADER_BYTES + usize::from(u16::MAX)) & !1;
    out.extend_from_slice(&first.to_bytes());
    out.extend_from_slice(&[0; GIN_SEGMENT_HEADER_BYTES - TID_BYTES]);
    let (mut last, mut count) = (tid_to_number(first), 1);
    for number in others {
        let distance = number.checked_sub(last)?;
        let end = out.len();
        put_distance(distance, out);
        if out.len() - start > max_bytes {
            out.truncate(end);
            break;
        }
        (last, count) = (number, count + 1);
    }
    let len = out.len() - start - GIN_SEGMENT_HEADER_BYTES;
    out[start + TID_BYTES..start + GIN_SEGMENT_HEADER_BYTES].copy_from_slice(&(len as u16).to_le_bytes());
    out.resize(out.len() + len % 2, 0);
    Some(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_segment_is_read_as_it_is_written(
            first in 0_u64..1 << 43,
            distances in prop::collection::vec(prop_oneof![1_u64..300, 1_u64..1 << 37], 0..40),
            max_bytes in 8_usize..100,
        ) {
            let numbers: Vec<u64> = std::iter::once(first)
                .chain(distances.iter().scan(first, |last, distance| {
                    *last += distance;
                    (*last < 1 << 43).then_some(*last)
                }))
                .collect();
            let mut segment = vec![7];
            let first = number_to_tid(first).expect("a number of 43 bits");
            let others = numbers[1..].iter().copied();
            let count = put_segment(first, others, max_bytes, &mut segment).expect("ascending numbers");
            let list = [&segment[1..], &[1, 2, 3]].concat();
            let read = PostingSegment::read(&list).expect("a segment");
            prop_assert_eq!(read.size(), segment.len() - 1);
            prop_assert!(read.size() <= max_bytes.next_multiple_of(2));
            let mut found = vec![tid_to_number(read.first)];
            prop_assert_eq!(read.others(|number| found.push(number)), Some(()));
            prop_assert_eq!(&found[..], &numbers[..count]);
            if let Some(next) = numbers.get(count) {
                let more = distance_bytes(next - numbers[count - 1]);
                prop_assert!(GIN_SEGMENT_HEADER_BYTES + read.distances.len() + more > max_bytes & !1);
            }
            for len in 0..segment.len() - 1 - read.distances.len() % 2 {
                prop_assert!(PostingSegment::read(&list[..len]).is_none());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Some(segment) = PostingSegment::read(&bytes) {
                let mut last = tid_to_number(segment.first);
                let _ = segment.others(|number| {
                    assert!(number >= last && number_to_tid(number).map(tid_to_number) == Some(number));
                    last = number;
                });
            }
        }
    }
}
