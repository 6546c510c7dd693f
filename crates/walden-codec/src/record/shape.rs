//! Codes the shapes of records: the non-numeric parts of their headers, which many records share.
//!
//! A shape is coded in full once, and then by its number. Each shape has a column for the shapes that follow
//! it, because access methods and statements log records in the same order each time.

use rustc_hash::FxHashMap;
use walden_format::assemble::is_in_order;
use walden_format::lsn::Lsn;
use walden_format::record::block_flags::SAME_REL;
use walden_format::record::{Record, SHORT_DATA_HEADER, block_id};
use walden_format::version::Major;

use super::Current;
use super::near_numbers::{NearNumber, near_numbers, starts_with_xid};
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::{Corrupt, corrupt};

/// Header parts that records of a shape share.
pub struct Shape {
    /// `xl_info` of the record header.
    pub info: u8,
    /// `xl_rmid` of the record header.
    pub rmid: u8,
    /// ID in the main data's header; 0 if there is no main data.
    pub main: u8,
    /// Whether the record has a replication origin.
    pub has_origin: bool,
    /// Whether the record has a toplevel transaction.
    pub has_toplevel: bool,
    /// Blocks of the record.
    pub blocks: Vec<ShapeBlock>,
    /// Offsets of numbers in the main data that are coded as deltas, and their bases.
    pub near: &'static [(usize, NearNumber)],
    /// Whether the main data probably starts with the record's transaction.
    pub main_data_starts_with_xid: bool,
    /// Column of main data lengths.
    pub main_lengths: Column,
    /// Column of relations.
    pub relations: Column,
    /// Column of block ranks in move-to-front lists.
    pub block_ranks: Column,
}

/// Part of a shape that describes a block.
#[derive(Clone, Copy)]
pub struct ShapeBlock {
    /// ID of the block in the record.
    pub id: u8,
    /// Fork and flags (`BKPBLOCK_*`).
    pub flags: u8,
    /// Flags of the image (`BKPIMAGE_*`); 0 without an image.
    pub image_info: u8,
}

/// All shapes seen so far.
#[derive(Default)]
pub struct Shapes {
    /// In the order of first use, numbered from 1.
    shapes: Vec<Shape>,
    /// When encoding: the number of each shape, by its coded bytes. Decoding does not need this map: a
    /// hostile file could contain shapes whose hashes collide.
    numbers: FxHashMap<Vec<u8>, u32>,
    /// Number of the previous record's shape; 0 if it has none.
    last: u32,
    /// For "no shape" and then for each shape: the column of the shapes that follow it.
    shapes_after: Vec<Column>,
    key: Vec<u8>,
}

impl Shapes {
    /// Returns a shape by its index.
    pub fn get(&self, index: usize) -> &Shape {
        &self.shapes[index]
    }

    /// Creates the column of the shapes that follow the next shape. The first call creates the column for
    /// records after a record without a shape.
    pub fn add_context<S: Coder>(&mut self, coder: &mut S) -> Result<(), Corrupt> {
        let column = coder.column(Kind::Symbols(Class::Shapes))?;
        self.shapes_after.push(column);
        Ok(())
    }

    /// Codes the record's shape and returns its index, or `None` for a record that cannot be reconstructed
    /// from its fields.
    ///
    /// `prev` is the LSN of the previous record.
    pub fn shape<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        (prev, version): (Lsn, Major),
    ) -> Result<Option<usize>, Corrupt> {
        // Symbols: no shape, a new shape, or 1 + the number of a known shape.
        const NONE: u64 = 0;
        const NEW: u64 = 1;
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        if let Some(record) = current.source
            && !put_key(record, prev, &mut key)
        {
            key.clear();
        }
        let known = current.source.and_then(|_| self.numbers.get(&key).copied());
        let column = self.shapes_after[self.last as usize];
        let symbol = || match known {
            _ if key.is_empty() => NONE,
            None => NEW,
            Some(number) => NEW + u64::from(number),
        };
        let number = match current.coder.symbol_with(column, symbol)? {
            NONE => {
                self.last = 0;
                return Ok(None);
            }
            NEW => self.new_shape(current, version, &key)?,
            symbol => narrow(symbol - NEW)?,
        };
        if number == 0 || number as usize > self.shapes.len() {
            return Err(corrupt("cannot decode a shape: expected the number of a known one"));
        }
        self.key = key;
        self.last = number;
        Ok(Some(number as usize - 1))
    }

    fn new_shape<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        version: Major,
        key: &[u8],
    ) -> Result<u32, Corrupt> {
        let Current { coder, columns, source, .. } = current;
        let [len] = coder.array(columns.shape_bytes, &[key.len() as u8])?;
        let mut bytes = Vec::new();
        coder.bytes(columns.shape_bytes, key, len.into(), &mut bytes)?;
        let (&[info, rmid, main, extra], blocks) = bytes
            .split_first_chunk()
            .ok_or_else(|| corrupt("cannot decode a shape: expected at least 4 bytes"))?;
        let block = |&[id, flags, image_info]: &[u8; 3]| ShapeBlock { id, flags, image_info };
        self.shapes.push(Shape {
            info,
            rmid,
            main,
            has_origin: extra & HAS_ORIGIN != 0,
            has_toplevel: extra & HAS_TOPLEVEL != 0,
            blocks: blocks.as_chunks().0.iter().map(block).collect(),
            near: near_numbers(rmid, info, version),
            main_data_starts_with_xid: starts_with_xid(rmid, info),
            main_lengths: coder.column(Kind::Symbols(Class::MainData))?,
            relations: coder.column(Kind::Symbols(Class::Blocks))?,
            block_ranks: coder.column(Kind::Symbols(Class::Blocks))?,
        });
        self.add_context(*coder)?;
        let number = self.shapes.len() as u32;
        if source.is_some() {
            self.numbers.insert(bytes, number);
        }
        Ok(number)
    }
}

/// Bit in a shape's bytes: the record has a replication origin.
const HAS_ORIGIN: u8 = 1;
/// Bit in a shape's bytes: the record has a toplevel transaction.
const HAS_TOPLEVEL: u8 = 2;

/// Appends the bytes of a record's shape. Returns false if the record cannot be reconstructed from its
/// fields.
fn put_key(record: &Record<'_>, prev: Lsn, key: &mut Vec<u8>) -> bool {
    if record.header.prev != prev || record.blocks.len() > 64 || !is_in_order(record) {
        return false;
    }
    let main = match usize::from(record.main_header_len) {
        0 => 0,
        SHORT_DATA_HEADER => block_id::DATA_SHORT,
        _ => block_id::DATA_LONG,
    };
    let mut extra = 0;
    extra |= if record.origin.is_some() { HAS_ORIGIN } else { 0 };
    extra |= if record.toplevel_xid.is_some() { HAS_TOPLEVEL } else { 0 };
    key.extend([record.header.info, record.header.rmid, main, extra]);
    let mut last = None;
    for block in record.blocks {
        // The flag distinguishes both ways to store a repeated relation, so it must be correct.
        if block.flags & SAME_REL != 0 && last != Some(block.relation) {
            return false;
        }
        last = Some(block.relation);
        key.extend([block.id, block.flags, block.image.map_or(0, |image| image.info.0)]);
    }
    true
}
