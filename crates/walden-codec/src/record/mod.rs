//! The model of records: what each part of a record is told from, and which column takes the rest.

use rustc_hash::FxHashMap;
use walden_format::crc::record_crc;
use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, Record, RecordHeader, RelFileLocator, decode};
use walden_format::version::Major;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::replay::BlockSet;
use walden_redo::store::{StoreFailure, StoreOptions};
use walden_redo::{PageStore, Replay};

use self::blocks::Around;
use self::kept::Kept;
use self::shape::Shape;
use crate::coder::Limits;
use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::move_to_front::Recent;
use crate::page::delta::Differences;
use crate::predict::Predictors;
use crate::{Corrupt, corrupt};

mod block_data;
mod block_refs;
mod blocks;
mod images;
mod kept;
mod main_data;
mod shape;
mod survey;

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
    predictors: Predictors,
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
pub struct Fixed {
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

/// Reads and writes what the current record is made of.
pub struct Parts<'a> {
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
            predictors: Predictors::default(),
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
        *self = Model::new(self.version, Limits { page_memory: 0, ..Limits::default() });
    }

    /// Encoding leaves values that the server compressed as they are, and index tuples untold by rows where others tell them.
    pub fn hurry(&mut self) {
        self.predictors.rows.expander.leave_values();
        self.predictors.keys.in_haste = true;
    }

    /// No other segment follows: pages at which nobody looks until then are let go.
    pub fn ends_here(&mut self) {
        self.kept.lets_go = true;
    }

    /// After a segment: what could not be said before its end.
    pub fn finish<S: Coder>(&mut self, coder: &mut S) -> Result<(), Corrupt> {
        self.kept.finish(coder, &mut self.replay.store)
    }

    /// Blocks that had to be kept at one time at most.
    pub fn most_blocks(&self) -> usize {
        self.replay.store.most_blocks()
    }

    /// Why pages could not be kept, if so: what is coded from then on is worth nothing.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.replay.store.failure()
    }

    /// Before a segment of so many bytes.
    pub fn start(&mut self, version: Major, bytes: usize) {
        self.version = version;
        self.predictors.rows.plan.clear();
        self.predictors.keys.start(bytes);
        self.predictors.rows.expander.allow(2 * bytes);
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
            self.kept.note(coder, &mut self.predictors.names, record, &mut self.replay.store)?;
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
            let left = kept::left(coder, &mut self.predictors.names, record)?;
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
}
