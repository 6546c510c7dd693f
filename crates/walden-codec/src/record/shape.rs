//! Shapes: the parts of records' headers that many records share, everything but numbers.

use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::{Corrupt, corrupt};
use walden_format::lsn::Lsn;
use walden_format::record::{RECORD_HEADER, Record};

use super::main_data::{Near, NearRow, main_data_starts_with_xid};
use super::{Fixed, HAS_IMAGE, Model, Parts, SAME_RELATION};
use crate::move_to_front::Recent;

/// The parts of a record's headers that many records share: everything but numbers.
pub struct Shape {
    pub info: u8,
    pub rmid: u8,
    pub main: u8,
    pub origin: bool,
    pub toplevel: bool,
    pub blocks: Vec<ShapeBlock>,
    /// Numbers in the main data that are near others.
    pub near: &'static [(usize, Near)],
    /// Whether the main data probably begins with the transaction.
    pub main_data_starts_with_xid: bool,
    pub main_len: Column,
    pub relations: Recent,
    pub relation: Column,
    pub block: Column,
}

#[derive(Clone, Copy)]
pub struct ShapeBlock {
    pub id: u8,
    pub flags: u8,
    pub image_info: u8,
}

impl Model {
    /// The number of the record's shape from 1 on, or 0 for a record that has none.
    pub fn shape<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        parts: &Parts<'_>,
    ) -> Result<u32, Corrupt> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        if let Some(record) = parts.input
            && !shape_key(record, self.prev, &mut key)
        {
            key.clear();
        }
        let known = parts.input.and_then(|_| self.shape_numbers.get(&key).copied());
        let context = self.last_shape as usize;
        let column = self.follower_columns[context];
        // 0: none; 1: a new one; from 2 on: the rank among those that came here before; else its number.
        const NONE: u64 = 0;
        const NEW: u64 = 1;
        const RANKS: u64 = Recent::MOST as u64;
        let symbol = || match known {
            _ if key.is_empty() => NONE,
            None => NEW,
            Some(number) => match self.followers[context].rank(number) {
                0 => 2 + RANKS + u64::from(number),
                rank => 1 + rank,
            },
        };
        let number = match coder.symbol_of(column, symbol)? {
            NONE => {
                self.last_shape = 0;
                return Ok(0);
            }
            rank if (2..2 + RANKS).contains(&rank) => {
                self.followers[context].again(rank - 1).ok_or_else(|| corrupt("a shape's rank can't be"))?
            }
            symbol => {
                let number = match symbol {
                    NEW => self.new_shape(coder, fixed, &key)?,
                    number => narrow(number - 2 - RANKS)?,
                };
                self.followers[context].add(number);
                number
            }
        };
        if number == 0 || number as usize > self.shapes.len() {
            return Err(corrupt("a shape's number can't be"));
        }
        self.key = key;
        self.last_shape = number;
        Ok(number)
    }

    fn new_shape<S: Coder>(&mut self, coder: &mut S, fixed: &Fixed, key: &[u8]) -> Result<u32, Corrupt> {
        let mut bytes = Vec::new();
        coder.bytes(fixed.shape_bytes, &[key.len() as u8], 1, &mut bytes)?;
        let len = usize::from(bytes[0]);
        bytes.clear();
        coder.bytes(fixed.shape_bytes, key, len, &mut bytes)?;
        let (head, blocks) = bytes.split_first_chunk::<4>().ok_or_else(|| corrupt("a shape is cut short"))?;
        let blocks: Vec<ShapeBlock> = blocks
            .chunks_exact(3)
            .map(|block| ShapeBlock { id: block[0], flags: block[1], image_info: block[2] })
            .collect();
        self.shapes.push(Shape {
            info: head[0],
            rmid: head[1],
            main: head[2],
            origin: head[3] & 1 != 0,
            toplevel: head[3] & 2 != 0,
            blocks,
            near: NearRow::places(head[1], head[0], self.version),
            main_data_starts_with_xid: main_data_starts_with_xid(head[1], head[0]),
            main_len: coder.column(Kind::Symbols(Class::MainData))?,
            relations: Recent::default(),
            relation: coder.column(Kind::Symbols(Class::Blocks))?,
            block: coder.column(Kind::Symbols(Class::Blocks))?,
        });
        self.followers.push(Recent::default());
        self.follower_columns.push(coder.column(Kind::Symbols(Class::Shapes))?);
        let number = self.shapes.len() as u32;
        self.shape_numbers.insert(bytes, number);
        Ok(number)
    }
}

/// What a record's shape is told apart by; no if the record can't be put together from its parts.
fn shape_key(record: &Record<'_>, prev: Lsn, key: &mut Vec<u8>) -> bool {
    let bytes = record.bytes();
    let whole = bytes.len() == record.header.total_len as usize && bytes.len() >= RECORD_HEADER;
    if !whole || record.header.prev != prev || bytes[18..20] != [0, 0] || record.blocks.len() > 64 {
        return false;
    }
    let main = match record.main_header_len {
        0 => 0,
        2 => 255,
        _ => 254,
    };
    let extra = u8::from(record.origin.is_some()) | u8::from(record.toplevel_xid.is_some()) << 1;
    key.extend([record.header.info, record.header.rmid, main, extra]);
    let mut at = RECORD_HEADER;
    let mut last = None;
    for block in record.blocks {
        let (Some(&id), Some(&flags)) = (bytes.get(at), bytes.get(at + 1)) else { return false };
        let info = if flags & HAS_IMAGE != 0 { bytes.get(at + 8).copied().unwrap_or(0) } else { 0 };
        // Both ways to name a relation again are kept apart by the flag, as long as it tells the truth.
        if flags & SAME_RELATION != 0 && last != Some(block.relation) {
            return false;
        }
        last = Some(block.relation);
        key.extend([id, flags, info]);
        at += usize::from(block.header_len) + block.image.map_or(0, |image| usize::from(image.header_len));
    }
    // Origin and toplevel transaction in the order that PostgreSQL has them.
    let expected =
        at + 3 * usize::from(record.origin.is_some()) + 5 * usize::from(record.toplevel_xid.is_some());
    let ordered = record.origin.is_none() || bytes.get(at) == Some(&253);
    let main_at = bytes.get(expected).copied().unwrap_or(0);
    let is_usual = ordered && (main == 0 || main_at == main) && (main != 254 || record.main_len >= 256);
    is_usual || main == 254 && ordered && main_at == main
}
