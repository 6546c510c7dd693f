//! Assembles a record's bytes from its parts: the inverse of [`crate::record::decode`].
//!
//! `XLogRecordAssemble` in `xloginsert.c` determines the format. The functions append to a buffer in the
//! order of a record: [`start`], a [`BlockHeader`] of each block, [`push_origin`], [`push_toplevel_xid`],
//! [`push_main_data_header`]; then each block's image and data; then the main data. [`finish`] then fills in
//! the record's own header.
//!
//! [`RecordBuilder`] does all of this where speed does not matter.

use crate::crc::record_crc;
use crate::record::{
    BlockHeader, BlockRef, CRC_OFFSET, Fork, ImageHeader, LONG_DATA_HEADER, ORIGIN_HEADER, RECORD_HEADER,
    Record, RecordHeader, RelFileLocator, SHORT_DATA_HEADER, TOPLEVEL_XID_HEADER, block_flags, block_id,
};

/// Empties `out` and reserves space for the record's own header.
#[inline]
pub fn start(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; RECORD_HEADER]);
}

/// Appends the header that names the replication origin.
#[inline]
pub fn push_origin(out: &mut Vec<u8>, origin: u16) {
    let [low, high] = origin.to_le_bytes();
    out.extend_from_slice(&[block_id::ORIGIN, low, high]);
}

/// Appends the header that names the toplevel transaction.
#[inline]
pub fn push_toplevel_xid(out: &mut Vec<u8>, xid: u32) {
    let [a, b, c, d] = xid.to_le_bytes();
    out.extend_from_slice(&[block_id::TOPLEVEL_XID, a, b, c, d]);
}

/// Appends the header of `len` bytes of main data as PostgreSQL does: none without main data, a short one if
/// the length fits into a byte.
#[inline]
pub fn push_main_data_header(out: &mut Vec<u8>, len: u32) {
    match u8::try_from(len) {
        Ok(0) => {}
        Ok(len) => push_short_main_data_header(out, len),
        Err(_) => push_long_main_data_header(out, len),
    }
}

/// Appends the header of `len` bytes of main data in the short form.
#[inline]
pub fn push_short_main_data_header(out: &mut Vec<u8>, len: u8) {
    out.extend_from_slice(&[block_id::DATA_SHORT, len]);
}

/// Appends the header of `len` bytes of main data in the long form, which PostgreSQL uses for 256 bytes and
/// more.
#[inline]
pub fn push_long_main_data_header(out: &mut Vec<u8>, len: u32) {
    let [a, b, c, d] = len.to_le_bytes();
    out.extend_from_slice(&[block_id::DATA_LONG, a, b, c, d]);
}

/// Fills in the header of the record in `out`, with the record's actual length instead of `header.total_len`.
/// The checksum is `header`'s: [`seal`] computes it.
///
/// # Panics
/// `out` is shorter than a record's header, because it was not initialized by [`start`].
#[inline]
pub fn finish(out: &mut [u8], header: RecordHeader) {
    let header = RecordHeader { total_len: out.len() as u32, ..header };
    out[..RECORD_HEADER].copy_from_slice(&header.to_bytes());
}

/// Writes the checksum of a finished record into its header and returns it.
///
/// # Panics
/// `record` is shorter than a record's header.
#[inline]
pub fn seal(record: &mut [u8]) -> u32 {
    let crc = record_crc(record);
    record[CRC_OFFSET..RECORD_HEADER].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Whether the headers within `record` are in the order in which PostgreSQL writes them, at most once each,
/// and the padding of its own header is zero. If so, the functions of this module reproduce the record's
/// bytes from its parts, with [`push_long_main_data_header`] if [`Record::main_header_len`] is the long
/// header's.
///
/// Also false if `record` does not hold all bytes of the record.
pub fn is_in_order(record: &Record<'_>) -> bool {
    let bytes = record.bytes();
    if bytes.len() != record.header.total_len as usize
        || bytes.len() < RECORD_HEADER
        || bytes[18..20] != [0, 0]
    {
        return false;
    }
    let mut at = RECORD_HEADER;
    for block in record.blocks {
        if bytes.get(at) != Some(&block.id) {
            return false;
        }
        at += usize::from(block.header_len) + block.image.map_or(0, |image| usize::from(image.header_len));
    }
    let mut next_is = |id: u8, width: usize| {
        let is_next = bytes.get(at) == Some(&id);
        at += width;
        is_next
    };
    (record.origin.is_none() || next_is(block_id::ORIGIN, ORIGIN_HEADER))
        && (record.toplevel_xid.is_none() || next_is(block_id::TOPLEVEL_XID, TOPLEVEL_XID_HEADER))
        && match record.main_header_len {
            0 => true,
            2 => next_is(block_id::DATA_SHORT, SHORT_DATA_HEADER),
            _ => next_is(block_id::DATA_LONG, LONG_DATA_HEADER),
        }
}

/// Returns the bytes of a record with `blocks`, without images, and with the header, origin, toplevel
/// transaction and main data of `record`. The checksum is the old one and thus wrong.
///
/// A block of the same relation as the preceding block does not name it again.
pub fn assemble(record: &Record<'_>, blocks: &[(BlockRef, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.header.total_len as usize);
    start(&mut out);
    let mut last_relation = None;
    for (block, data) in blocks {
        let flags = if block.will_init { block_flags::WILL_INIT } else { 0 };
        let place = (block.relation, block.fork, block.block);
        block_header(block.id, flags, place, None, data, &mut last_relation).write(&mut out);
    }
    if let Some(origin) = record.origin {
        push_origin(&mut out, origin);
    }
    if let Some(xid) = record.toplevel_xid {
        push_toplevel_xid(&mut out, xid);
    }
    push_main_data_header(&mut out, record.main_data().len() as u32);
    for (_, data) in blocks {
        out.extend_from_slice(data);
    }
    out.extend_from_slice(record.main_data());
    finish(&mut out, record.header);
    out
}

/// Returns the header of a block at `place`, with `flags` and the flags that its other parts imply.
fn block_header(
    id: u8,
    flags: u8,
    (relation, fork, block): (RelFileLocator, Fork, u32),
    image: Option<ImageHeader>,
    data: &[u8],
    last_relation: &mut Option<RelFileLocator>,
) -> BlockHeader {
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let is_same_relation = last_relation.replace(relation) == Some(relation);
    let flags = flags
        | fork.0 & block_flags::FORK_MASK
        | bit(image.is_some(), block_flags::HAS_IMAGE)
        | bit(!data.is_empty(), block_flags::HAS_DATA)
        | bit(is_same_relation, block_flags::SAME_REL);
    BlockHeader { id, flags, data_len: data.len() as u16, image, relation, block }
}

/// Builds a record from its parts, as PostgreSQL does, in its own buffers.
///
/// ```
/// use walden_format::assemble::RecordBuilder;
/// use walden_format::lsn::Lsn;
/// use walden_format::record::{self, Fork, RecordHeader, RelFileLocator};
/// use walden_format::rmgr::{info, rmid};
/// use walden_format::version::Major;
///
/// let header = RecordHeader { xid: 700, prev: Lsn(40), rmid: rmid::HEAP, info: info::heap::INSERT, ..Default::default() };
/// let table = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };
/// let mut builder = RecordBuilder::new(header);
/// builder.push_block(0, 0, (table, Fork::MAIN, 7), None, &[3, 0, 2, 8, 24, 0, 42, 0, 0, 0]);
/// builder.main_data = vec![1, 0, 0];
/// let bytes = builder.sealed_bytes();
///
/// let header = RecordHeader::parse(&bytes).unwrap();
/// let mut blocks = Vec::new();
/// let record = record::decode(&bytes, header, (Lsn(0x1000), Lsn(0x1048)), Major::V18, 8192, &mut blocks)?;
/// assert_eq!((record.blocks[0].relation, record.blocks[0].block), (table, 7));
/// assert_eq!(record.main_data(), [1, 0, 0]);
/// # Ok::<(), record::RecordError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RecordBuilder {
    /// The record's own header; its length and checksum are ignored.
    pub header: RecordHeader,
    /// The replication origin.
    pub origin: Option<u16>,
    /// The toplevel transaction.
    pub toplevel_xid: Option<u32>,
    /// The main data.
    pub main_data: Vec<u8>,
    block_headers: Vec<u8>,
    block_contents: Vec<u8>,
    last_relation: Option<RelFileLocator>,
}

impl RecordBuilder {
    /// A record without blocks and main data.
    pub fn new(header: RecordHeader) -> RecordBuilder {
        RecordBuilder { header, ..RecordBuilder::default() }
    }

    /// Adds a block at `place`: its relation, fork and number. Sets the flags that the other parameters
    /// imply, and omits the relation if it is the preceding block's. `flags` is [`block_flags::WILL_INIT`] or
    /// 0.
    ///
    /// Blocks must have ascending ids. An image's header must fit its bytes.
    pub fn push_block(
        &mut self,
        id: u8,
        flags: u8,
        place: (RelFileLocator, Fork, u32),
        image: Option<(ImageHeader, &[u8])>,
        data: &[u8],
    ) {
        let header = image.map(|(header, _)| header);
        let header = block_header(id, flags, place, header, data, &mut self.last_relation);
        header.write(&mut self.block_headers);
        if let Some((_, bytes)) = image {
            self.block_contents.extend_from_slice(bytes);
        }
        self.block_contents.extend_from_slice(data);
    }

    /// The record's bytes, with the checksum of [`RecordBuilder::header`].
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        start(&mut out);
        out.extend_from_slice(&self.block_headers);
        if let Some(origin) = self.origin {
            push_origin(&mut out, origin);
        }
        if let Some(xid) = self.toplevel_xid {
            push_toplevel_xid(&mut out, xid);
        }
        push_main_data_header(&mut out, self.main_data.len() as u32);
        out.extend_from_slice(&self.block_contents);
        out.extend_from_slice(&self.main_data);
        finish(&mut out, self.header);
        out
    }

    /// Returns the record's bytes with the correct checksum.
    pub fn sealed_bytes(&self) -> Vec<u8> {
        let mut out = self.bytes();
        seal(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lsn::Lsn;
    use crate::record::{Compression, ImageInfo, decode};
    use crate::version::Major;

    const PAGE: usize = 8192;

    type AnyBlock = (u32, u8, u32, bool, Option<(u16, bool, u8)>, Vec<u8>);

    fn any_block() -> impl Strategy<Value = AnyBlock> {
        let image = prop::option::of((0..4096_u16, any::<bool>(), 0..4_u8));
        let data = prop::collection::vec(any::<u8>(), 0..40);
        (0..3_u32, 0..4_u8, any::<u32>(), any::<bool>(), image, data)
    }

    /// Returns an image whose hole has `hole` bytes, and its header.
    fn image(hole: u16, is_applied: bool, method: u8, version: Major) -> Option<(ImageHeader, Vec<u8>)> {
        let methods = [Compression::None, Compression::Pglz, Compression::Lz4, Compression::Zstd];
        let compression = methods[usize::from(method)];
        let info = ImageInfo::new(hole > 0, is_applied, compression, version)?;
        let is_compressed = compression != Compression::None;
        let len = if is_compressed { 100 } else { PAGE as u16 - hole };
        let hole_len = (is_compressed && hole > 0).then_some(hole);
        let hole_offset = if hole > 0 { 24 } else { 0 };
        Some((ImageHeader { len, hole_offset, info, hole_len }, vec![7; len.into()]))
    }

    proptest! {
        #[test]
        fn records_of_every_version_round_trip(
            at in 0..12_usize,
            blocks in prop::collection::vec(any_block(), 0..5),
            origin: Option<u16>,
            toplevel_xid: Option<u32>,
            main_len in prop_oneof![Just(0_usize), 1..20_usize, 250..300_usize],
            (xid, prev, info, rmid) in any::<(u32, u64, u8, u8)>(),
        ) {
            let version = Major::all().nth(at).unwrap();
            let header = RecordHeader { xid, prev: Lsn(prev), info, rmid, ..RecordHeader::default() };
            let mut builder = RecordBuilder::new(header);
            builder.origin = origin;
            builder.toplevel_xid = toplevel_xid.filter(|_| version >= Major::V14);
            builder.main_data = vec![9; main_len];
            for (id, (relation, fork, block, will_init, any_image, data)) in blocks.iter().enumerate() {
                let relation = RelFileLocator { tablespace: 1663, database: 5, relation: *relation };
                let image = any_image.and_then(|(hole, applied, method)| image(hole, applied, method, version));
                let flags = if *will_init { block_flags::WILL_INIT } else { 0 };
                let image = image.as_ref().map(|(header, bytes)| (*header, &bytes[..]));
                builder.push_block(id as u8, flags, (relation, Fork(*fork), *block), image, data);
            }
            let bytes = builder.sealed_bytes();
            let header = RecordHeader::parse(&bytes).unwrap();
            prop_assert_eq!(header.crc, record_crc(&bytes));
            prop_assert_eq!(header.total_len as usize, bytes.len());
            let mut refs = Vec::new();
            let record = decode(&bytes, header, (Lsn(8), Lsn(16)), version, PAGE as u32, &mut refs).unwrap();
            prop_assert!(is_in_order(&record));
            prop_assert_eq!((record.origin, record.toplevel_xid), (builder.origin, builder.toplevel_xid));
            prop_assert_eq!(record.main_data(), &builder.main_data[..]);
            prop_assert_eq!(record.blocks.len(), blocks.len());
            for (block, (relation, fork, number, will_init, _, data)) in record.blocks.iter().zip(&blocks) {
                prop_assert_eq!((block.relation.relation, block.fork, block.block), (*relation, Fork(*fork), *number));
                prop_assert_eq!(block.will_init, *will_init);
                prop_assert_eq!(record.block_data(block), &data[..]);
                prop_assert!(block.image.is_none_or(|image| record.image_data(&image).iter().all(|byte| *byte == 7)));
            }
            // `assemble` produces the record without its images.
            let data: Vec<_> =
                record.blocks.iter().map(|block| (*block, record.block_data(block).to_vec())).collect();
            let bare = assemble(&record, &data);
            if record.blocks.iter().all(|block| block.image.is_none()) {
                prop_assert_eq!(&bare, &bytes);
            }
            let bare_header = RecordHeader::parse(&bare).unwrap();
            let mut refs = Vec::new();
            let bare = decode(&bare, bare_header, (Lsn(8), Lsn(16)), version, PAGE as u32, &mut refs).unwrap();
            prop_assert_eq!(bare.image_bytes(), 0);
            prop_assert_eq!(bare.main_data(), record.main_data());
        }
    }

    #[test]
    fn headers_in_another_order_are_noticed() {
        let mut builder = RecordBuilder::new(RecordHeader { rmid: 10, ..RecordHeader::default() });
        builder.origin = Some(3);
        builder.toplevel_xid = Some(700);
        builder.main_data = vec![1, 2, 3];
        let in_order = |bytes: &[u8]| {
            let header = RecordHeader::parse(bytes).unwrap();
            let mut refs = Vec::new();
            is_in_order(&decode(bytes, header, (Lsn(8), Lsn(16)), Major::V18, 8192, &mut refs).unwrap())
        };
        let bytes = builder.bytes();
        assert!(in_order(&bytes));
        let mut swapped = bytes.clone();
        swapped[24..29].copy_from_slice(&bytes[27..32]);
        swapped[29..32].copy_from_slice(&bytes[24..27]);
        assert!(!in_order(&swapped));
        let mut padded = bytes.clone();
        padded[18] = 1;
        assert!(!in_order(&padded));
        let mut twice = bytes[..27].to_vec();
        twice.extend_from_slice(&bytes[24..]);
        twice[0] += 3;
        assert!(!in_order(&twice));
    }
}
