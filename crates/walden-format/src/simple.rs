//! Reads the layout of most records without a branch on the kind of record: the fast path of
//! [`crate::stream`].
//!
//! ```text
//! offset   width
//!      0      24  the fixed header
//!     24      20  one block's header: id 0, no image, a named relation; or absent
//!     44       2  the main data's header: id 255, its length; at 24 without a block
//! followed by the block's data and the main data.
//! ```
//!
//! WAL consists mostly of short records of a few kinds in an order that branch predictors do not predict, and
//! a mispredicted branch costs as much as all other work on such a record. So the presence of a block is a
//! mask, not a branch. [`crate::record::decode`] handles all other records, and reports the cause if one is
//! invalid.

use std::ops::RangeInclusive;

use crate::crc::{BEFORE, BEHIND, RecordCrc};
use crate::lsn::Lsn;
use crate::record::block_flags::{FORK_MASK, HAS_DATA, HAS_IMAGE, SAME_REL, WILL_INIT};
use crate::record::{
    self, BlockHeader, BlockRef, Fork, RECORD_HEADER, Record, RecordHeader, RelFileLocator,
    SHORT_DATA_HEADER, block_id,
};
use crate::rmgr::rmid;
use crate::version::Major;

/// Bytes of a block header that names its relation.
pub const BLOCK_HEADER: usize = BlockHeader::WIDTH;
/// Bytes of the main data's header.
pub const MAIN_HEADER: usize = SHORT_DATA_HEADER;
/// The offset of the block's data.
const DATA_AT: usize = RECORD_HEADER + BLOCK_HEADER + MAIN_HEADER;
/// The lengths of records that take the fast path, in bytes. Longer records are too few to matter, and other
/// implementations compute their checksums faster.
pub(crate) const LENGTHS: RangeInclusive<usize> = RECORD_HEADER + MAIN_HEADER..=512;

/// A record with one block without an image, or without a block, and with at most 255 bytes of main data.
///
/// Records of the resource manager XLOG, which matter to the stream itself, never take this path.
#[derive(Clone, Copy, Debug)]
pub struct SimpleRecord<'a> {
    /// The LSN of its first byte.
    pub lsn: Lsn,
    version: Major,
    /// Masks the fields of the block: all bits are 1 if the record has a block, otherwise 0.
    block_mask: u64,
    /// The page's bytes around the start of the record.
    around: &'a [u8; BEFORE + BEHIND],
    bytes: &'a [u8],
}

impl<'a> SimpleRecord<'a> {
    /// Returns the record at `at` in a page, if its headers have the simple layout; its checksum and its link
    /// to the preceding record are not checked. `address` is the page's LSN; the LSN of the page's end must
    /// not overflow.
    ///
    /// `None` near the ends of a page, where the window around the record would exceed the page.
    #[inline(always)]
    pub(crate) fn at(page: &'a [u8], at: usize, address: Lsn, version: Major) -> Option<SimpleRecord<'a>> {
        let around: &[u8; BEFORE + BEHIND] = page.get(at.wrapping_sub(BEFORE)..)?.first_chunk()?;
        let header = RecordHeader::parse(&around[BEFORE..])?;
        let total_len = header.total_len as usize;
        let bytes = page.get(at..at.checked_add(total_len)?)?;
        let block_mask = BLOCK_MASKS[usize::from(around[BEFORE + RECORD_HEADER])];
        let lsn = Lsn(address.0.wrapping_add(at as u64));
        let record = SimpleRecord { lsn, version, block_mask, around, bytes };
        let main_at = record.main_at();
        let (flags, data_len) = (record.flags(), record.data_len());
        let is_simple = (total_len <= *LENGTHS.end())
            & (around[main_at] == block_id::DATA_SHORT)
            & (flags & (HAS_IMAGE | SAME_REL) == 0)
            & ((flags & HAS_DATA != 0) == (data_len > 0))
            & (BEFORE + total_len
                == main_at + MAIN_HEADER + usize::from(data_len) + usize::from(record.main_len()))
            & (header.rmid != rmid::XLOG)
            & (page.len() - at >= record.aligned_len() as usize);
        is_simple.then_some(record)
    }

    /// Computes the checksum of the record's bytes.
    #[inline(always)]
    pub(crate) fn crc(&self, crc: impl RecordCrc) -> u32 {
        crc.crc_around(self.around, self.bytes)
    }

    /// Returns the 8 bytes from offset `at` of the record; zeros without a block.
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        let word = self.around[BEFORE + at..].first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(word) & self.block_mask
    }

    /// The offset of the main data's header in `around`.
    #[inline(always)]
    fn main_at(&self) -> usize {
        BEFORE + RECORD_HEADER + (BLOCK_HEADER & self.block_mask as usize)
    }

    /// The flags of the block's header; 0 without a block.
    #[inline(always)]
    fn flags(&self) -> u8 {
        (self.word(RECORD_HEADER) >> 8) as u8
    }

    /// The record's own header.
    #[inline(always)]
    pub fn header(&self) -> RecordHeader {
        RecordHeader::parse(&self.around[BEFORE..]).unwrap_or_default()
    }

    /// The LSN at which the next record can start, see [`Record::end`].
    #[inline(always)]
    pub fn end(&self) -> Lsn {
        self.lsn.plus(self.aligned_len().into())
    }

    /// Whether there is a block; its id is 0.
    #[inline(always)]
    pub fn has_block(&self) -> bool {
        self.block_mask != 0
    }

    /// The block's relation; zeros without a block.
    #[inline(always)]
    pub fn relation(&self) -> RelFileLocator {
        let (low, high) = (self.word(RECORD_HEADER + 4), self.word(RECORD_HEADER + 12));
        RelFileLocator { tablespace: low as u32, database: (low >> 32) as u32, relation: high as u32 }
    }

    /// The block's number; 0 without a block.
    #[inline(always)]
    pub fn block(&self) -> u32 {
        (self.word(RECORD_HEADER + 12) >> 32) as u32
    }

    /// Whether redo initializes the block's page and does not read the old one.
    #[inline(always)]
    pub fn will_init(&self) -> bool {
        self.flags() & WILL_INIT != 0
    }

    /// Bytes of data that belong to the block.
    #[inline(always)]
    pub fn data_len(&self) -> u16 {
        (self.word(RECORD_HEADER) >> 16) as u16
    }

    /// Bytes of the main data.
    #[inline(always)]
    pub fn main_len(&self) -> u8 {
        self.around[self.main_at() + 1]
    }

    /// The fork of the block's relation; the main fork without a block.
    #[inline(always)]
    pub fn fork(&self) -> Fork {
        Fork(self.flags() & FORK_MASK)
    }

    /// Bytes of the record and of the padding after it.
    #[inline(always)]
    pub fn aligned_len(&self) -> u32 {
        record::aligned_len(self.bytes.len() as u32)
    }

    /// The data of the block; empty without a block.
    #[inline(always)]
    pub fn block_data(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(self.main_len().into());
        let start = end.saturating_sub(self.data_len().into());
        &self.bytes[start..end]
    }

    /// The main data.
    #[inline(always)]
    pub fn main_data(&self) -> &'a [u8] {
        let start = self.bytes.len().saturating_sub(self.main_len().into());
        &self.bytes[start..]
    }

    /// Calls `work` with the record as [`crate::record::decode`] would decode it.
    #[inline(always)]
    pub fn as_record<R>(&self, work: impl FnOnce(&Record<'_>) -> R) -> R {
        let block = BlockRef {
            relation: self.relation(),
            fork: self.fork(),
            id: 0,
            flags: self.flags(),
            will_init: self.will_init(),
            header_len: BLOCK_HEADER as u8,
            data_len: self.data_len(),
            block: self.block(),
            data_offset: DATA_AT as u32,
            image: None,
        };
        let blocks = [block];
        work(&Record {
            lsn: self.lsn,
            end: self.end(),
            version: self.version,
            header: self.header(),
            blocks: if self.has_block() { &blocks } else { &[] },
            origin: None,
            toplevel_xid: None,
            main_header_len: MAIN_HEADER as u8,
            main_len: self.main_len().into(),
            alignment: (self.aligned_len() as usize - self.bytes.len()) as u8,
            bytes: self.bytes,
        })
    }
}

/// Masks indexed by the first byte after the record's own header: a block's id or the id of another header. A
/// table, because the compiler turns a comparison into a branch.
static BLOCK_MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    masks[0] = !0;
    masks
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::decode;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8192, ..ProptestConfig::default() })]

        /// Bytes near the simple layout, so that each of its conditions is both met and missed.
        #[test]
        fn simple_records_are_decoded_as_any_record_is(
            id in prop_oneof![Just(0u8), Just(255), 0..4u8, any::<u8>()],
            flags in prop_oneof![Just(0u8), Just(HAS_DATA), any::<u8>()],
            data_len in prop_oneof![Just(0u16), 0..20u16, 400..520u16],
            main_id in prop_oneof![Just(255u8), 250..=255u8],
            main_len in 0..20u8,
            excess in prop_oneof![4 => Just(0i32), 1 => -20..20i32],
            space in prop_oneof![Just(600usize), 0..100usize],
            at in (0..12usize).prop_map(|words| 8 * words),
            rmid in 0..3u8,
            numbers: [u8; 16],
        ) {
            let claimed = match id {
                block_id::DATA_SHORT => 26 + i32::from(flags),
                _ => 46 + i32::from(data_len) + i32::from(main_len),
            };
            let total_len = (claimed + excess).max(0) as u32;
            let mut page = vec![7; at];
            page.extend(total_len.to_le_bytes());
            page.extend([1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0x10, rmid, 0, 0, 1, 2, 3, 4]);
            page.extend([id, flags]);
            page.extend(data_len.to_le_bytes());
            page.extend(numbers);
            page.extend([main_id, main_len]);
            page.resize(at + space, 9);
            let address = Lsn(0x30_0000);
            if let Some(simple) = SimpleRecord::at(&page, at, address, Major::V18) {
                prop_assert!(rmid != rmid::XLOG);
                prop_assert_eq!(simple.lsn, address.plus(at as u64));
                prop_assert_eq!(simple.end(), simple.lsn.plus(total_len.into()).aligned());
                prop_assert!(simple.end() <= address.plus(page.len() as u64));
                let bytes = &page[at..at + total_len as usize];
                let header = RecordHeader::parse(bytes).unwrap();
                let mut blocks = Vec::new();
                let range = (simple.lsn, simple.end());
                let any = decode(bytes, header, range, Major::V18, 8192, &mut blocks).unwrap();
                simple.as_record(|simple| assert_eq!(format!("{simple:?}"), format!("{any:?}")));
                prop_assert_eq!(simple.main_data(), any.main_data());
                prop_assert_eq!(simple.aligned_len(), total_len + u32::from(any.alignment));
            }
        }
    }
}
