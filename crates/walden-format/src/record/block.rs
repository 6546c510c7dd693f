//! References to blocks in a record: the headers that name them.
//!
//! ```text
//! offset  width
//!      0      1  id            0 to 32
//!      1      1  fork_flags    fork, and flags
//!      2      2  data_length   bytes of the block's data
//! then, with HAS_IMAGE, the header of an image; then, unless the relation is the preceding block's:
//!             12  tablespace, database, relation file number
//! and always:
//!              4  block number
//! ```
//!
//! `XLogRecordBlockHeader` in `access/xlogrecord.h`.

use std::fmt;

use super::{Image, ImageHeader, RecordError, block_id};
use crate::reader::Reader;
use crate::version::Major;

/// Flags of a block's header (`BKPBLOCK_*`).
pub mod block_flags {
    /// The bits that hold the fork's number (`BKPBLOCK_FORK_MASK`).
    pub const FORK_MASK: u8 = 0x0F;
    /// The block has a full-page image (`BKPBLOCK_HAS_IMAGE`).
    pub const HAS_IMAGE: u8 = 0x10;
    /// The block has data (`BKPBLOCK_HAS_DATA`).
    pub const HAS_DATA: u8 = 0x20;
    /// Redo initializes the page instead of reading it (`BKPBLOCK_WILL_INIT`).
    pub const WILL_INIT: u8 = 0x40;
    /// The relation is the preceding block's and is omitted here (`BKPBLOCK_SAME_REL`).
    pub const SAME_REL: u8 = 0x80;
}

/// The physical name of a relation: the location of its files, not its SQL name (`RelFileLocator`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RelFileLocator {
    /// OID of the tablespace.
    pub tablespace: u32,
    /// OID of the database; 0 for relations that all databases share.
    pub database: u32,
    /// The relation's file number (`relfilenode`).
    pub relation: u32,
}

impl RelFileLocator {
    /// Bytes of a locator in a record.
    pub const WIDTH: usize = 12;

    /// Reads three numbers of four bytes.
    #[inline]
    pub fn from_bytes(bytes: [u8; Self::WIDTH]) -> RelFileLocator {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        RelFileLocator { tablespace: word(0), database: word(4), relation: word(8) }
    }

    /// Returns the bytes that [`RelFileLocator::from_bytes`] reads.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::WIDTH] {
        let mut bytes = [0; Self::WIDTH];
        bytes[0..4].copy_from_slice(&self.tablespace.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.database.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.relation.to_le_bytes());
        bytes
    }
}

/// `1663/5/16384`, as `pg_waldump` prints it.
impl fmt::Display for RelFileLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tablespace, self.database, self.relation)
    }
}

/// A fork of a relation (`ForkNumber`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Fork(pub u8);

#[allow(missing_docs)]
impl Fork {
    pub const MAIN: Fork = Fork(0);
    pub const FREE_SPACE_MAP: Fork = Fork(1);
    pub const VISIBILITY_MAP: Fork = Fork(2);
    pub const INIT: Fork = Fork(3);
}

/// As `pg_waldump` prints it: `main`, `fsm`, `vm`, `init`.
impl fmt::Display for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("main"),
            1 => f.write_str("fsm"),
            2 => f.write_str("vm"),
            3 => f.write_str("init"),
            other => write!(f, "fork {other}"),
        }
    }
}

/// A reference to a block of a relation, decoded by [`super::decode`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRef {
    /// The relation's files.
    pub relation: RelFileLocator,
    /// The fork of the relation.
    pub fork: Fork,
    /// The block's number in this reference's record: 0 to 32.
    pub id: u8,
    /// The flags of the reference's header, see [`block_flags`]; the other fields contain them in decoded
    /// form.
    pub flags: u8,
    /// Redo initializes the page and does not read its old content.
    pub will_init: bool,
    /// Bytes of this reference's header, excluding the image's header.
    pub header_len: u8,
    /// Bytes of data that belong to this block.
    pub data_len: u16,
    /// Block number within the fork.
    pub block: u32,
    /// The offset of the block's data from the record's start.
    pub data_offset: u32,
    /// The full-page image, if there is one.
    pub image: Option<Image>,
}

/// The header of a block's reference, to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// The block's number in this reference's record: 0 to 32.
    pub id: u8,
    /// The fork and the flags, see [`block_flags`]. The flags decide which of the other fields are written.
    pub flags: u8,
    /// Bytes of data that belong to this block.
    pub data_len: u16,
    /// The image's header: required with [`block_flags::HAS_IMAGE`], otherwise `None`.
    pub image: Option<ImageHeader>,
    /// The relation; not written with [`block_flags::SAME_REL`].
    pub relation: RelFileLocator,
    /// Block number within the fork.
    pub block: u32,
}

impl BlockHeader {
    /// Bytes of a header without an image that names its relation.
    pub const WIDTH: usize = 20;
    /// Bytes of a header without an image whose relation is the preceding block's.
    pub const SAME_REL_WIDTH: usize = 8;

    /// Appends the header.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        let [low, high] = self.data_len.to_le_bytes();
        let start = [self.id, self.flags, low, high];
        let block = self.block.to_le_bytes();
        let is_same_relation = self.flags & block_flags::SAME_REL != 0;
        // Most headers have no image: those are written in one call.
        match &self.image {
            None if is_same_relation => out.extend_from_slice([start, block].as_flattened()),
            None => {
                let mut bytes = [0; Self::WIDTH];
                bytes[0..4].copy_from_slice(&start);
                bytes[4..16].copy_from_slice(&self.relation.to_bytes());
                bytes[16..20].copy_from_slice(&block);
                out.extend_from_slice(&bytes);
            }
            Some(image) => {
                out.extend_from_slice(&start);
                image.write(out);
                if !is_same_relation {
                    out.extend_from_slice(&self.relation.to_bytes());
                }
                out.extend_from_slice(&block);
            }
        }
    }
}

/// Reads the header of block `id`, after the id. `previous_relation` is the preceding block's relation, and
/// becomes this block's relation.
#[inline(always)]
pub(super) fn decode_block(
    reader: &mut Reader<'_>,
    id: u8,
    version: Major,
    page_bytes: u32,
    previous_relation: &mut Option<RelFileLocator>,
) -> Result<BlockRef, RecordError> {
    use block_flags::{FORK_MASK, HAS_DATA, HAS_IMAGE, SAME_REL, WILL_INIT};
    debug_assert!(id <= block_id::MAX);
    let cut = RecordError::HeaderCut;
    let [flags, low, high] = reader.array().ok_or(cut)?;
    let data_len = u16::from_le_bytes([low, high]);
    if (flags & HAS_DATA != 0) != (data_len > 0) {
        return Err(RecordError::BlockData(id));
    }
    let image =
        if flags & HAS_IMAGE != 0 { Some(Image::decode(reader, id, version, page_bytes)?) } else { None };
    // Read all remaining fields in one step: most records have no others.
    let (header_len, relation, block) = if flags & SAME_REL == 0 {
        let bytes: [u8; 16] = reader.array().ok_or(cut)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let relation = RelFileLocator { tablespace: word(0), database: word(4), relation: word(8) };
        (BlockHeader::WIDTH as u8, relation, word(12))
    } else {
        let relation = previous_relation.ok_or(RecordError::NoRelation(id))?;
        (BlockHeader::SAME_REL_WIDTH as u8, relation, reader.u32().ok_or(cut)?)
    };
    *previous_relation = Some(relation);
    Ok(BlockRef {
        relation,
        fork: Fork(flags & FORK_MASK),
        id,
        flags,
        will_init: flags & WILL_INIT != 0,
        header_len,
        data_len,
        block,
        data_offset: 0,
        image,
    })
}
