//! The model of records: what each part of a record is told from, and which column takes the rest.

mod alike;
mod blocks;
mod changes;
mod expand;
mod gin;
mod gin_pages;
mod heap;
mod index;
mod json;
mod kept;
mod keys;
mod names;
mod pages;
mod rows;
mod schema;
mod vectors;

use std::ops::Range;

use rustc_hash::FxHashMap;
use walden_format::crc::record_crc;
use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, RECORD_HEADER, Record, RecordHeader, RelFileLocator, decode};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::replay::BlockSet;
use walden_redo::store::{StoreFailure, StoreOptions};
use walden_redo::{PageStore, Replay};

use self::blocks::{Around, Differences};
use self::heap::Heads;
use self::kept::Kept;
use self::keys::Keys;
use self::names::{Names, Topic};
use self::rows::Rows;
use crate::coder::Limits;
use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::{Corrupt, corrupt};

const HAS_IMAGE: u8 = 0x10;
const HAS_DATA: u8 = 0x20;
const SAME_RELATION: u8 = 0x80;
/// Rows longer than this are not transposed.
const MAX_ROW_BYTES: u16 = 2048;

/// What is known after some records, on both sides.
pub struct Model {
    version: Major,
    /// The last record's start.
    prev: Lsn,
    columns: Option<Fixed>,
    shapes: Vec<Shape>,
    shape_numbers: FxHashMap<Vec<u8>, u32>,
    last_shape: u32,
    /// For each shape, the shapes that came after it, the latest first.
    followers: Vec<Recent>,
    follower_columns: Vec<Column>,
    xids: Recent,
    highest_xid: u32,
    relations: Vec<RelFileLocator>,
    relation_numbers: FxHashMap<RelFileLocator, u32>,
    /// Blocks of relations that were lately used, by fork.
    blocks: Vec<Vec<(u8, Recent)>>,
    names: Names,
    heads: Heads,
    rows: Rows,
    keys: Keys,
    last_time: u64,
    replay: Replay,
    kept: Kept,
    main: Vec<u8>,
    residual: Vec<u8>,
    key: Vec<u8>,
    old: Vec<u8>,
    /// Room for a page that is put together.
    made: Option<Box<Page>>,
    room_for_blocks: Vec<blocks::Block>,
    /// The record as it was put together.
    pub out: Vec<u8>,
    refs: Vec<BlockRef>,
}

/// The columns that every log has.
#[derive(Clone, Copy)]
struct Fixed {
    shape_bytes: Column,
    xid: Column,
    relation_bytes: Column,
    raw: Column,
    image_bytes: Column,
    image_header: Column,
    known: Differences,
    rehearsed: Differences,
    made: Differences,
}

/// The parts of a record's headers that many records share: everything but numbers.
struct Shape {
    info: u8,
    rmid: u8,
    main: u8,
    origin: bool,
    toplevel: bool,
    blocks: Vec<ShapeBlock>,
    /// Numbers in the main data that are near others.
    near: &'static [(usize, Near)],
    /// Whether the main data probably begins with the transaction.
    main_data_starts_with_xid: bool,
    main_len: Column,
    relations: Recent,
    relation: Column,
    block: Column,
}

#[derive(Clone, Copy)]
struct ShapeBlock {
    id: u8,
    flags: u8,
    image_info: u8,
}

/// Values by how lately they were used.
#[derive(Default)]
struct Recent {
    values: Vec<u32>,
}

impl Recent {
    const MOST: usize = 64;

    /// The rank of a value, from 1 on; 0 if it is not there.
    fn rank(&self, value: u32) -> u64 {
        // Most of what is looked for is among the latest or nowhere: eight are compared at once.
        let (first, eights) = self.values.as_rchunks::<8>();
        let mut later = 0;
        for eight in eights.iter().rev() {
            if eight.iter().fold(false, |found, &other| found | (other == value)) {
                return later + rank_in(eight, value);
            }
            later += eight.len() as u64;
        }
        match rank_in(first, value) {
            0 => 0,
            rank => later + rank,
        }
    }

    /// The value of a rank. It is the latest then.
    fn again(&mut self, rank: u64) -> Option<u32> {
        let at = self.values.len().checked_sub(usize::try_from(rank).ok()?)?;
        let (&value, later) = self.values.get(at..)?.split_first()?;
        if !later.is_empty() {
            self.values.copy_within(at + 1.., at);
            *self.values.last_mut()? = value;
        }
        Some(value)
    }

    /// Makes a value that is not there the latest.
    fn add(&mut self, value: u32) {
        if self.values.len() == Self::MOST {
            self.values.remove(0);
        }
        self.values.push(value);
    }
}

/// The rank of a value among these, counted from the last one on; 0 if it is not there.
fn rank_in(values: &[u32], value: u32) -> u64 {
    values.iter().rev().position(|&other| other == value).map_or(0, |at| at as u64 + 1)
}

/// Numbers in main data that are near others.
struct NearRow {
    rmid: u8,
    mask: u8,
    info: u8,
    since: Major,
    until: Major,
    /// Where they are, and what they are near.
    places: &'static [(usize, Near)],
}

impl NearRow {
    fn places(rmid: u8, info: u8, version: Major) -> &'static [(usize, Near)] {
        let fits = |row: &&NearRow| {
            row.rmid == rmid && row.info == info & row.mask && (row.since..=row.until).contains(&version)
        };
        NEAR.iter().find(fits).map_or(&[], |row| row.places)
    }
}

#[derive(Clone, Copy)]
enum Near {
    /// When the last transaction ended; 8 bytes.
    Time,
    /// The highest transaction; 4 bytes.
    Transaction,
}

const fn near(
    rmid: u8,
    (mask, info): (u8, u8),
    (since, until): (Major, Major),
    places: &'static [(usize, Near)],
) -> NearRow {
    NearRow { rmid, mask, info, since, until, places }
}

const ALL: (Major, Major) = (Major::V9_5, Major::V19);
const UNTIL_16: (Major, Major) = (Major::V14, Major::V16);
const SINCE_17: (Major, Major) = (Major::V17, Major::V19);

#[rustfmt::skip]
const NEAR: &[NearRow] = &[
    // COMMIT, ABORT, COMMIT_PREPARED, ABORT_PREPARED
    near(rmid::XACT, (0x70, 0x00), ALL, &[(0, Near::Time)]),
    near(rmid::XACT, (0x70, 0x20), ALL, &[(0, Near::Time)]),
    near(rmid::XACT, (0x70, 0x30), ALL, &[(0, Near::Time)]),
    near(rmid::XACT, (0x70, 0x40), ALL, &[(0, Near::Time)]),
    // ASSIGNMENT
    near(rmid::XACT, (0x70, 0x50), ALL, &[(0, Near::Transaction)]),
    // RUNNING_XACTS
    near(rmid::STANDBY, (0xF0, 0x10), ALL, &[(12, Near::Transaction), (16, Near::Transaction), (20, Near::Transaction)]),
    // PRUNE, FREEZE_PAGE
    near(rmid::HEAP2, (0x70, 0x10), UNTIL_16, &[(0, Near::Transaction)]),
    near(rmid::HEAP2, (0x70, 0x30), UNTIL_16, &[(0, Near::Transaction)]),
    // PRUNE_ON_ACCESS, PRUNE_VACUUM_SCAN
    near(rmid::HEAP2, (0x70, 0x10), SINCE_17, &[(2, Near::Transaction)]),
    near(rmid::HEAP2, (0x70, 0x20), SINCE_17, &[(2, Near::Transaction)]),
    // VISIBLE
    near(rmid::HEAP2, (0x70, 0x40), ALL, &[(0, Near::Transaction)]),
    // DELETE
    near(rmid::BTREE, (0xF0, 0x70), ALL, &[(0, Near::Transaction)]),
];

/// A number that another is near.
#[derive(Clone, Copy)]
enum Base {
    Word(u32),
    Long(u64),
}

impl Base {
    /// Makes the number that the bytes begin with its distance from this one, near ones small.
    fn subtract(self, bytes: &mut [u8]) {
        match self {
            Base::Word(base) => {
                change(bytes, |value| pages::against(u32::from_le_bytes(value), base).to_le_bytes())
            }
            Base::Long(base) => {
                change(bytes, |value| zigzag(u64::from_le_bytes(value).wrapping_sub(base)).to_le_bytes());
            }
        }
    }

    /// The way back.
    fn add(self, bytes: &mut [u8]) {
        match self {
            Base::Word(base) => {
                change(bytes, |value| pages::difference(u32::from_le_bytes(value), base).to_le_bytes())
            }
            Base::Long(base) => {
                change(bytes, |value| base.wrapping_add(unzigzag(u64::from_le_bytes(value))).to_le_bytes());
            }
        }
    }
}

fn change<const N: usize>(bytes: &mut [u8], way: impl Fn([u8; N]) -> [u8; N]) {
    if let Some(bytes) = bytes.first_chunk_mut() {
        *bytes = way(*bytes);
    }
}

/// Reads and writes what the current record is made of.
struct Parts<'a> {
    input: Option<&'a Record<'a>>,
    bytes: &'a [u8],
}

impl Model {
    /// Nothing known yet; `prev` is what the first record's link says.
    pub fn new(version: Major, limits: Limits) -> Model {
        Model {
            version,
            prev: Lsn::INVALID,
            columns: None,
            shapes: Vec::new(),
            shape_numbers: FxHashMap::default(),
            last_shape: 0,
            followers: Vec::new(),
            follower_columns: Vec::new(),
            xids: Recent::default(),
            highest_xid: 0,
            relations: Vec::new(),
            relation_numbers: FxHashMap::default(),
            blocks: Vec::new(),
            names: Names::default(),
            heads: Heads::default(),
            rows: Rows::default(),
            keys: Keys::default(),
            last_time: 0,
            replay: Replay::new(PageStore::new(StoreOptions {
                memory_bytes: limits.page_memory,
                // Files are done one beside the other, each by one thread.
                clears_ahead: false,
                ..StoreOptions::default()
            })),
            kept: Kept::default(),
            main: Vec::new(),
            residual: Vec::new(),
            key: Vec::new(),
            old: Vec::new(),
            made: None,
            room_for_blocks: Vec::new(),
            out: Vec::new(),
            refs: Vec::new(),
        }
    }

    /// Nothing known any more.
    pub fn forget(&mut self) {
        *self = Model::new(self.version, Limits { page_memory: 0 });
    }

    /// Encoding leaves values that the server compressed as they are, and index tuples untold by rows where others tell them.
    pub fn hurry(&mut self) {
        self.rows.expander.leave_values();
        self.keys.in_haste = true;
    }

    /// No other segment follows: pages at which nobody looks until then are let go.
    pub fn ends_here(&mut self) {
        self.kept.lets_go = true;
    }

    /// After a segment: what could not be said before its end.
    pub fn finish<S: Coder>(&mut self, coder: &mut S) -> Result<(), Corrupt> {
        self.kept.finish(coder, &mut self.replay.store)
    }

    /// Why pages could not be kept, if so: what is coded from then on is worth nothing.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.replay.store.failure()
    }

    /// Before a segment of so many bytes.
    pub fn start(&mut self, version: Major, bytes: usize) {
        self.version = version;
        self.rows.plan.clear();
        self.keys.start(bytes);
        self.rows.expander.allow(2 * bytes);
    }

    /// Says what the next record's link is, where it can't be known: at the start.
    pub fn set_prev(&mut self, prev: Lsn) {
        self.prev = prev;
    }

    /// Codes a record that starts at `lsn` and ends (where the next could start) at a place told by `end`.
    ///
    /// Encoding gives it as `input`; either way it is in `out` afterwards.
    pub fn record<S: Coder>(
        &mut self,
        coder: &mut S,
        input: Option<&Record<'_>>,
        lsn: Lsn,
        end: impl Fn(usize) -> Lsn,
    ) -> Result<(), Corrupt> {
        let fixed = self.fixed(coder)?;
        let parts = Parts { input, bytes: input.map_or(&[], |record| record.bytes()) };
        let shape = self.shape(coder, &fixed, &parts)?;
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        if shape == 0 {
            // A record that can't be put together from its parts.
            let len = narrow(coder.symbol(fixed.xid, parts.bytes.len() as u64)?)?;
            coder.bytes(fixed.raw, parts.bytes, len, &mut out)?;
        } else {
            self.modelled(coder, &fixed, shape as usize - 1, input, (lsn, &end), &mut out)?;
        }
        self.out = out;
        self.prev = lsn;
        if let Some(record) = input {
            self.kept.note(coder, &mut self.names, record, &mut self.replay.store)?;
            if !self.replay.apply_but(record, BlockSet::default(), &mut ()) {
                kept::see_all(record, &mut self.replay.store);
            }
            return Ok(());
        }
        let header = RecordHeader::parse(&self.out).ok_or_else(|| corrupt("a record is cut short"))?;
        let place = (lsn, end(self.out.len()));
        let mut refs = std::mem::take(&mut self.refs);
        let record = decode(&self.out, header, place, self.version, PAGE_BYTES as u32, &mut refs);
        if let Ok(record) = &record {
            let left = kept::left(coder, &mut self.names, record)?;
            self.replay.apply_but(record, left, &mut ());
        }
        self.refs = refs;
        Ok(())
    }

    fn fixed<S: Coder>(&mut self, coder: &mut S) -> Result<Fixed, Corrupt> {
        if let Some(fixed) = self.columns {
            return Ok(fixed);
        }
        let fixed = Fixed {
            shape_bytes: coder.column(Kind::Bytes(Class::Shapes))?,
            xid: coder.column(Kind::Symbols(Class::Transactions))?,
            relation_bytes: coder.column(Kind::Bytes(Class::Shapes))?,
            raw: coder.column(Kind::Bytes(Class::Raw))?,
            image_bytes: coder.column(Kind::Bytes(Class::ImageBytes))?,
            image_header: coder.column(Kind::Symbols(Class::ImageHeaders))?,
            known: Differences::new(coder)?,
            rehearsed: Differences::new(coder)?,
            made: Differences::new(coder)?,
        };
        self.columns = Some(fixed);
        self.followers.push(Recent::default());
        self.follower_columns.push(coder.column(Kind::Symbols(Class::Shapes))?);
        Ok(fixed)
    }

    /// The number of the record's shape from 1 on, or 0 for a record that has none.
    fn shape<S: Coder>(&mut self, coder: &mut S, fixed: &Fixed, parts: &Parts<'_>) -> Result<u32, Corrupt> {
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

    fn modelled<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        shape: usize,
        input: Option<&Record<'_>>,
        (lsn, end): (Lsn, impl Fn(usize) -> Lsn),
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let xid = self.xid(coder, fixed, input.map_or(0, |record| record.header.xid))?;
        let main_len =
            coder.symbol(self.shapes[shape].main_len, input.map_or(0, |record| record.main_len.into()))?;
        let main_len = usize::try_from(main_len).map_err(|_| corrupt("a length can't be"))?;
        let mut main = std::mem::take(&mut self.main);
        main.clear();
        self.main(coder, shape, xid, input, main_len, &mut main)?;
        let around = Around { shape, xid, main: &main, lsn };
        self.blocks(coder, fixed, around, input, end, out)?;
        self.main = main;
        self.head(shape, xid, out);
        // Encoding has only records whose checksums are right.
        let crc = match input {
            Some(record) => record.header.crc,
            None => record_crc(out),
        };
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    /// The header but for the checksum: everything in it but the transaction is told by the rest.
    fn head(&self, shape: usize, xid: u32, out: &mut [u8]) {
        let total = out.len() as u32;
        out[0..4].copy_from_slice(&total.to_le_bytes());
        out[4..8].copy_from_slice(&xid.to_le_bytes());
        out[8..16].copy_from_slice(&self.prev.0.to_le_bytes());
        out[16] = self.shapes[shape].info;
        out[17] = self.shapes[shape].rmid;
    }

    /// A transaction: the same as lately, or a little beyond the highest.
    fn xid<S: Coder>(&mut self, coder: &mut S, fixed: &Fixed, xid: u32) -> Result<u32, Corrupt> {
        const RANKS: u64 = Recent::MOST as u64;
        let symbol = || match self.xids.rank(xid) {
            0 => 1 + RANKS + zigzag(u64::from(xid).wrapping_sub(u64::from(self.highest_xid))),
            rank => rank,
        };
        let symbol = coder.symbol_of(fixed.xid, symbol)?;
        if symbol <= RANKS {
            return self.xids.again(symbol).ok_or_else(|| corrupt("a transaction's rank can't be"));
        }
        let xid = u64::from(self.highest_xid).wrapping_add(unzigzag(symbol - 1 - RANKS)) as u32;
        self.xids.add(xid);
        self.highest_xid = self.highest_xid.max(xid);
        Ok(xid)
    }

    /// The number of a relation in the order in which they were met.
    fn relation<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        shape: usize,
        relation: Option<RelFileLocator>,
    ) -> Result<u32, Corrupt> {
        const RANKS: u64 = Recent::MOST as u64;
        let known = relation.and_then(|relation| self.relation_numbers.get(&relation).copied());
        let symbol = || match known {
            None => 0,
            Some(number) => match self.shapes[shape].relations.rank(number) {
                0 => 1 + RANKS + u64::from(number),
                rank => rank,
            },
        };
        let symbol = coder.symbol_of(self.shapes[shape].relation, symbol)?;
        if (1..=RANKS).contains(&symbol) {
            return self.shapes[shape]
                .relations
                .again(symbol)
                .ok_or_else(|| corrupt("a relation's rank can't be"));
        }
        let number = if symbol == 0 {
            let locator = relation.unwrap_or_default();
            let words = [locator.tablespace, locator.database, locator.relation].map(u32::to_le_bytes);
            let mut bytes = Vec::new();
            coder.bytes(fixed.relation_bytes, words.as_flattened(), 12, &mut bytes)?;
            let word =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let locator = RelFileLocator { tablespace: word(0), database: word(4), relation: word(8) };
            self.relations.push(locator);
            self.relation_numbers.insert(locator, self.relations.len() as u32 - 1);
            self.relations.len() as u32 - 1
        } else {
            narrow(symbol - 1 - RANKS)?
        };
        if number as usize >= self.relations.len() {
            return Err(corrupt("a relation's number can't be"));
        }
        self.shapes[shape].relations.add(number);
        Ok(number)
    }

    /// A block: one of the relation's lately used, the next after one of them, or any.
    fn block<S: Coder>(
        &mut self,
        coder: &mut S,
        shape: usize,
        relation: u32,
        fork: u8,
        block: u32,
    ) -> Result<u32, Corrupt> {
        const RANKS: u64 = Recent::MOST as u64;
        let at = relation as usize;
        if at >= self.blocks.len() {
            self.blocks.resize_with(at + 1, Vec::new);
        }
        let forks = &mut self.blocks[at];
        let known = forks.iter().position(|(known, _)| *known == fork);
        let number = known.unwrap_or_else(|| {
            forks.push((fork, Recent::default()));
            forks.len() - 1
        });
        let (_, recent) = &mut forks[number];
        let last = recent.values.last().copied();
        let symbol = || match recent.rank(block) {
            0 if last.is_some_and(|last| last.wrapping_add(1) == block) => 1 + RANKS,
            0 => 0,
            rank => rank,
        };
        let symbol = coder.symbol_of(self.shapes[shape].block, symbol)?;
        if (1..=RANKS).contains(&symbol) {
            return recent.again(symbol).ok_or_else(|| corrupt("a block's rank can't be"));
        }
        let number = if symbol == 0 {
            let like = [relation, fork.into(), 0];
            let column = self.names.column(coder, Topic::NewBlock, like, Kind::Rows(Class::Blocks, 4))?;
            u32::from_le_bytes(coder.array(column, &block.to_le_bytes())?)
        } else {
            last.ok_or_else(|| corrupt("there is no last block"))?.wrapping_add(1)
        };
        recent.add(number);
        Ok(number)
    }

    /// The main data, after what is told by the transaction.
    fn main<S: Coder>(
        &mut self,
        coder: &mut S,
        shape: usize,
        xid: u32,
        input: Option<&Record<'_>>,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        if len == 0 {
            return Ok(());
        }
        let source = input.map_or(&[][..], |record| record.main_data());
        let kind = match u16::try_from(len) {
            Ok(width) if width <= MAX_ROW_BYTES => Kind::Rows(Class::MainData, width),
            _ => Kind::Bytes(Class::MainData),
        };
        let column = self.names.column(coder, Topic::Main, [shape as u32, len as u32, 0], kind)?;
        let Shape { near, main_data_starts_with_xid, rmid: manager, .. } = self.shapes[shape];
        // Only records of transactions may list subtransactions.
        if near.is_empty() && !main_data_starts_with_xid && manager != rmid::XACT {
            return coder.bytes(column, source, len, out);
        }
        let mix = |bytes: &mut [u8]| {
            if main_data_starts_with_xid && let Some(bytes) = bytes.first_chunk_mut() {
                *bytes = (u32::from_le_bytes(*bytes) ^ xid).to_le_bytes();
            }
        };
        let mut residual = std::mem::take(&mut self.residual);
        residual.clear();
        residual.extend_from_slice(source);
        mix(&mut residual);
        for &(at, what) in near.iter().filter(|(at, _)| *at < source.len()) {
            self.base(what).subtract(&mut residual[at..]);
        }
        let list = subtransactions(&self.shapes[shape], source);
        let mut before = xid;
        for bytes in residual[list].as_chunks_mut::<4>().0 {
            let number = u32::from_le_bytes(*bytes);
            Base::Word(before).subtract(bytes);
            before = number;
        }
        let start = out.len();
        coder.bytes(column, &residual, len, out)?;
        self.residual = residual;
        for &(at, what) in near.iter().filter(|(at, _)| *at < len) {
            self.base(what).add(&mut out[start + at..]);
        }
        mix(&mut out[start..]);
        let list = subtransactions(&self.shapes[shape], &out[start..]);
        let mut before = xid;
        for bytes in out[start..][list].as_chunks_mut::<4>().0 {
            Base::Word(before).add(bytes);
            before = u32::from_le_bytes(*bytes);
        }
        if let [(0, Near::Time), ..] = near
            && let Some(time) = out[start..].first_chunk()
        {
            self.last_time = u64::from_le_bytes(*time);
        }
        Ok(())
    }

    /// The number that another in the main data is near.
    fn base(&self, near: Near) -> Base {
        match near {
            Near::Time => Base::Long(self.last_time),
            Near::Transaction => Base::Word(self.highest_xid),
        }
    }
}

/// Whether the main data of a kind of record probably begins with its transaction.
fn main_data_starts_with_xid(manager: u8, info: u8) -> bool {
    // DELETE, LOCK, UPDATE, HOT_UPDATE: xmax comes first.
    manager == rmid::HEAP && matches!(info & 0x70, 0x10 | 0x60 | 0x20 | 0x40)
}

/// Where the main data has subtransactions, 4 bytes each: each is near the one before, and the first one near the record's.
fn subtransactions(shape: &Shape, main: &[u8]) -> Range<usize> {
    const HAS_INFO: u8 = 0x80;
    const HAS_DATABASE: u32 = 1;
    const HAS_SUBTRANSACTIONS: u32 = 2;
    let word = |at: usize| {
        main.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
    };
    let count_at = match (shape.rmid, shape.info & 0x70) {
        // ASSIGNMENT: the transaction comes first.
        (rmid::XACT, 0x50) => 4,
        // COMMIT, ABORT, and those of what was prepared: after the time and what else there is.
        (rmid::XACT, 0x00 | 0x20 | 0x30 | 0x40)
            if shape.info & HAS_INFO != 0 && word(8) & HAS_SUBTRANSACTIONS != 0 =>
        {
            if word(8) & HAS_DATABASE != 0 { 20 } else { 12 }
        }
        _ => return 0..0,
    };
    let start = (count_at + 4).min(main.len());
    let room = (main.len() - start) / 4;
    start..start + 4 * room.min(word(count_at) as usize)
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

fn zigzag(value: u64) -> u64 {
    (value << 1) ^ ((value as i64 >> 63) as u64)
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_from_the_latest_and_lead_back_to_their_values() {
        let mut recent = Recent::default();
        for value in 0..100 {
            assert_eq!(recent.rank(value), 0, "{value} is not there yet");
            recent.add(value);
            let least = value.saturating_sub(Recent::MOST as u32 - 1);
            for known in 0..=value {
                let rank = if known < least { 0 } else { u64::from(value - known) + 1 };
                assert_eq!(recent.rank(known), rank, "{known} among {least} to {value}");
            }
        }
        for rank in [1, 8, 9, 33, 64] {
            let value = (0..100).find(|&value| recent.rank(value) == rank).expect("one of each rank");
            assert_eq!(recent.again(rank), Some(value));
            assert_eq!(recent.rank(value), 1, "the latest now");
            assert_eq!(recent.values.len(), Recent::MOST);
        }
        assert_eq!((recent.again(0), recent.again(65)), (None, None));
    }
}
