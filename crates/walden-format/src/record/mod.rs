//! A WAL record: its header, the blocks that it references, and its full-page images.
//!
//! ```text
//! offset  width
//!      0      4  xl_tot_len   bytes of the whole record
//!      4      4  xl_xid       transaction, or 0
//!      8      8  xl_prev      LSN of the preceding record
//!     16      1  xl_info      upper 4 bits: the record's kind in its resource manager
//!     17      1  xl_rmid      resource manager
//!     18      2  padding
//!     20      4  xl_crc       CRC-32C of bytes 24.. and then 0..20
//! then, in this order: headers of blocks, of the origin, of the toplevel transaction and of the main data;
//! for each block its image and its data; the main data.
//! ```
//!
//! `DecodeXLogRecord` in `xlogreader.c` defines validity.

use std::fmt;

use crate::lsn::Lsn;
use crate::reader::Reader;
use crate::rmgr;
use crate::version::Major;

mod block;
mod image;

pub use block::{BlockHeader, BlockRef, Fork, RelFileLocator, block_flags};
pub use image::{Compression, Image, ImageHeader, ImageInfo};

/// Bytes of a record's own header (`SizeOfXLogRecord`).
pub const RECORD_HEADER: usize = 24;
/// The offset of `xl_crc` in a record's own header.
pub(crate) const CRC_OFFSET: usize = 20;
/// The longest record that any version writes, in bytes: one less than 1 GB (`MaxAllocSize`).
pub const MAX_RECORD_BYTES: u32 = (1 << 30) - 1;
/// The maximum number of blocks that a record can reference (`XLR_MAX_BLOCK_ID` + 1).
pub const MAX_BLOCKS: usize = 33;

/// The first byte of each header within a record, which identifies the header's content (`XLR_BLOCK_ID_*`).
pub mod block_id {
    /// The highest id of a block (`XLR_MAX_BLOCK_ID`).
    pub const MAX: u8 = 32;
    /// The toplevel transaction, 4 bytes; since 14.
    pub const TOPLEVEL_XID: u8 = 252;
    /// The replication origin, 2 bytes.
    pub const ORIGIN: u8 = 253;
    /// The main data, whose length takes 4 bytes.
    pub const DATA_LONG: u8 = 254;
    /// The main data, whose length takes a byte.
    pub const DATA_SHORT: u8 = 255;
}

/// Bytes of the main data's header if its length takes a byte.
pub const SHORT_DATA_HEADER: usize = 2;
/// Bytes of the main data's header if its length takes 4 bytes.
pub const LONG_DATA_HEADER: usize = 5;
/// Bytes of the header that names the replication origin.
pub const ORIGIN_HEADER: usize = 3;
/// Bytes of the header that names the toplevel transaction.
pub const TOPLEVEL_XID_HEADER: usize = 5;

/// Bytes of a record of `total_len` bytes and of the padding after it (`MAXALIGN`). No record is longer than
/// [`MAX_RECORD_BYTES`].
#[inline(always)]
pub const fn aligned_len(total_len: u32) -> u32 {
    total_len.wrapping_add(7) & !7
}

/// Bytes of the padding after a record of `total_len` bytes (`MAXALIGN`).
#[inline(always)]
pub const fn padding(total_len: u64) -> u64 {
    total_len.wrapping_neg() & 7
}

/// The header at the start of every record (`XLogRecord`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordHeader {
    /// Bytes of the whole record, including this header but not the padding after the record.
    pub total_len: u32,
    /// The transaction that wrote it, or 0.
    pub xid: u32,
    /// The start LSN of the preceding record.
    pub prev: Lsn,
    /// Upper 4 bits: the kind within the resource manager; lower 4 bits: flags such as
    /// `XLR_SPECIAL_REL_UPDATE`.
    pub info: u8,
    /// The resource manager's number.
    pub rmid: u8,
    /// CRC-32C as written.
    pub crc: u32,
}

impl RecordHeader {
    /// Reads the header; `None` if there are too few bytes. [`crate::stream::Decoder`] checks its values.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<RecordHeader> {
        let bytes: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(RecordHeader {
            total_len: word(0),
            xid: word(4),
            prev: Lsn(u64::from(word(8)) | u64::from(word(12)) << 32),
            info: bytes[16],
            rmid: bytes[17],
            crc: word(CRC_OFFSET),
        })
    }

    /// Whether the record is an `XLOG_SWITCH`: the rest of its segment is unused.
    #[inline]
    pub fn is_switch(&self) -> bool {
        self.rmid == rmgr::rmid::XLOG && self.info & rmgr::info::RMGR_MASK == rmgr::info::xlog::SWITCH
    }

    /// Returns the header as PostgreSQL writes it: the inverse of [`RecordHeader::parse`].
    #[inline]
    pub fn to_bytes(&self) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        bytes[0..4].copy_from_slice(&self.total_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.xid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.prev.0.to_le_bytes());
        bytes[16] = self.info;
        bytes[17] = self.rmid;
        bytes[CRC_OFFSET..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }
}

/// A decoded record, which borrows its bytes from the pages it was read from.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The LSN of the record's first byte.
    pub lsn: Lsn,
    /// The LSN at which the next record can start (`EndRecPtr`), which becomes the LSN of each page that this
    /// record changes. (After a switch record, which changes no page, PostgreSQL uses the end of the segment
    /// instead.)
    pub end: Lsn,
    /// The major version that wrote the record.
    pub version: Major,
    /// The record's own header.
    pub header: RecordHeader,
    /// The blocks that the record refers to, by ascending id.
    pub blocks: &'a [BlockRef],
    /// The replication origin, if one was set.
    pub origin: Option<u16>,
    /// The toplevel transaction, if the record is a subtransaction's first with `wal_level=logical`.
    pub toplevel_xid: Option<u32>,
    /// Bytes of the main data's header: 0, 2 or 5.
    pub main_header_len: u8,
    /// Bytes of the main data.
    pub main_len: u32,
    /// Bytes of padding after the record, up to its `end`.
    pub alignment: u8,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record's bytes including its header. Shorter than `total_len` only for records that exceed
    /// the bytes held by a stream.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the main data, without bytes that the stream did not keep in memory
    /// ([`crate::stream::MAX_HELD_BYTES`]).
    #[inline]
    pub fn main_data(&self) -> &'a [u8] {
        let start = (self.header.total_len - self.main_len) as usize;
        self.bytes.get(start..).unwrap_or(&[])
    }

    /// The data of a block; empty if it has none or it is not held.
    #[inline]
    pub fn block_data(&self, block: &BlockRef) -> &'a [u8] {
        self.slice(block.data_offset, block.data_len)
    }

    /// The bytes of an image as stored; empty if they are not held.
    #[inline]
    pub fn image_data(&self, image: &Image) -> &'a [u8] {
        self.slice(image.offset, image.len)
    }

    /// The block with this id.
    #[inline]
    pub fn block(&self, id: u8) -> Option<&'a BlockRef> {
        self.blocks.iter().find(|block| block.id == id)
    }

    /// Returns the bits of the info byte that belong to the resource manager (`XLR_RMGR_INFO_MASK`): the kind
    /// of record, and flags. The constants are in [`crate::rmgr::info`].
    #[inline]
    pub fn rmgr_info(&self) -> u8 {
        self.header.info & rmgr::info::RMGR_MASK
    }

    /// The kind of record, which has a name such as `INSERT+INIT` of `Heap`.
    #[inline]
    pub fn kind(&self) -> rmgr::Kind {
        rmgr::kind(self.version, self.header.rmid, self.header.info)
    }

    /// Bytes of all images.
    pub fn image_bytes(&self) -> u32 {
        self.blocks.iter().filter_map(|block| block.image).map(|image| u32::from(image.len)).sum()
    }

    fn slice(&self, offset: u32, len: u16) -> &'a [u8] {
        let start = offset as usize;
        self.bytes.get(start..start + usize::from(len)).unwrap_or(&[])
    }
}

/// An error in the headers within a record whose checksum is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RecordError {
    /// A header reaches beyond the record.
    HeaderCut,
    /// A block id that no version uses.
    BlockId(u8),
    /// A block id that is not greater than the preceding one.
    BlockOrder(u8),
    /// The data flag and the data's length contradict each other.
    BlockData(u8),
    /// The image's flags, its hole and its length contradict each other.
    ImageHole(u8),
    /// The block refers to the preceding block's relation, but there is no preceding block.
    NoRelation(u8),
    /// The lengths in the headers do not match the record's length.
    Length {
        /// Bytes of the record after the headers.
        available: u32,
        /// The sum of the lengths in the headers, in bytes.
        claimed: u64,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::HeaderCut => f.write_str("a block header reaches beyond the record's end"),
            RecordError::BlockId(id) => write!(f, "block id {id}: expected 0 to 32 or 252 to 255"),
            RecordError::BlockOrder(id) => write!(f, "block id {id} is out of order"),
            RecordError::BlockData(id) => {
                write!(f, "block {id}: the data flag contradicts the length of the data")
            }
            RecordError::ImageHole(id) => {
                write!(f, "block {id}: the image's flags contradict its hole or length")
            }
            RecordError::NoRelation(id) => {
                write!(f, "block {id} refers to an earlier block's relation: there is none")
            }
            RecordError::Length { available, claimed } => {
                write!(f, "headers claim {claimed} bytes of data, the record has {available}")
            }
        }
    }
}

impl std::error::Error for RecordError {}

/// Decodes a record whose own header was read and checked.
///
/// `bytes` is the record including its own header: the whole record, or at least all its headers. `(lsn,
/// end)` are copied into the record. `page_bytes` is the size of a data page (`BLCKSZ`). `blocks` is emptied
/// and filled again; reuse the vector, so that most records allocate no memory. `DecodeXLogRecord` in
/// `xlogreader.c` defines validity.
///
/// # Errors
/// The headers within the record contradict each other or its length.
// Inlined because moving the result takes as long as decoding a short record.
#[inline(always)]
pub fn decode<'a>(
    bytes: &'a [u8],
    header: RecordHeader,
    (lsn, end): (Lsn, Lsn),
    version: Major,
    page_bytes: u32,
    blocks: &'a mut Vec<BlockRef>,
) -> Result<Record<'a>, RecordError> {
    let Headers { origin, toplevel_xid, main_header_len, main_len } =
        decode_headers(bytes, header.total_len, version, page_bytes, blocks)?;
    let alignment = padding(header.total_len.into()) as u8;
    Ok(Record {
        lsn,
        end,
        version,
        header,
        blocks,
        origin,
        toplevel_xid,
        main_header_len,
        main_len,
        alignment,
        bytes,
    })
}

/// The headers within a record, except for its blocks' headers.
struct Headers {
    origin: Option<u16>,
    toplevel_xid: Option<u32>,
    main_header_len: u8,
    main_len: u32,
}

fn decode_headers(
    bytes: &[u8],
    total_len: u32,
    version: Major,
    page_bytes: u32,
    blocks: &mut Vec<BlockRef>,
) -> Result<Headers, RecordError> {
    blocks.clear();
    let mut reader = Reader::new(bytes.get(RECORD_HEADER..).unwrap_or(&[]));
    let whole = u64::from(total_len);
    let mut at = RECORD_HEADER as u64;
    let mut claimed = 0u64;
    let (mut origin, mut toplevel_xid, mut main_header_len, mut main_len) = (None, None, 0, 0);
    let mut relation = None;
    let cut = RecordError::HeaderCut;
    if whole < at {
        return Err(cut);
    }
    while whole - at > claimed {
        let id = reader.u8().ok_or(cut)?;
        let width = match id {
            0..=block_id::MAX => {
                if blocks.last().is_some_and(|last| last.id >= id) {
                    return Err(RecordError::BlockOrder(id));
                }
                let block = block::decode_block(&mut reader, id, version, page_bytes, &mut relation)?;
                claimed += u64::from(block.data_len) + block.image.map_or(0, |image| image.len.into());
                blocks.push(block);
                block.header_len + block.image.map_or(0, |image| image.header_len)
            }
            block_id::DATA_SHORT => {
                main_len = reader.u8().ok_or(cut)?.into();
                main_header_len = SHORT_DATA_HEADER as u8;
                main_header_len
            }
            block_id::DATA_LONG => {
                main_len = reader.u32().ok_or(cut)?;
                main_header_len = LONG_DATA_HEADER as u8;
                main_header_len
            }
            block_id::ORIGIN => {
                origin = Some(reader.u16().ok_or(cut)?);
                ORIGIN_HEADER as u8
            }
            block_id::TOPLEVEL_XID if version >= Major::V14 => {
                toplevel_xid = Some(reader.u32().ok_or(cut)?);
                TOPLEVEL_XID_HEADER as u8
            }
            _ => return Err(RecordError::BlockId(id)),
        };
        at += u64::from(width);
        if at > whole {
            return Err(cut);
        }
        if main_header_len != 0 {
            claimed += u64::from(main_len);
            break;
        }
    }
    if whole - at != claimed {
        return Err(RecordError::Length { available: (whole - at) as u32, claimed });
    }
    place_contents(blocks, at as u32);
    Ok(Headers { origin, toplevel_xid, main_header_len, main_len })
}

/// Sets the offsets of the blocks' images and data, which are stored consecutively from `offset`.
#[inline(always)]
fn place_contents(blocks: &mut [BlockRef], mut offset: u32) {
    for block in blocks {
        if let Some(image) = &mut block.image {
            image.offset = offset;
            offset += u32::from(image.len);
        }
        block.data_offset = offset;
        offset += u32::from(block.data_len);
    }
}
