//! The record coder: what a record is made of, in the order in which it is coded.
//!
//! 1. Its *shape* (`shape.rs`): everything in its headers but numbers, predicted from the shape before.
//! 2. Its transaction (`transactions.rs`).
//! 3. Its main data (`main_data.rs`): transactions and times in it (`near_numbers.rs`) as distances from those before.
//! 4. Its blocks (`blocks.rs`): which they are (`block_refs.rs`), what a predictor makes of their data (`block_data.rs`),
//!    and their full-page images (`images.rs`) as the delta against the page that the record makes without them, the page
//!    before, or the page that its items make.
//!
//! Lengths, the link to the previous record and the checksum follow from the rest. Then both directions replay the record,
//! so that the next one's pages are known, but for pages that no later record reads (`kept.rs`).

mod block;
mod block_data;
mod block_refs;
mod blocks;
mod images;
mod kept;
mod leaf_tuples;
mod main_data;
mod near_numbers;
mod shape;
mod survey;
mod transactions;

use walden_format::crc::record_crc;
use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, RECORD_HEADER, Record, RecordHeader, decode};
use walden_format::version::Major;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::{BlockSet, PageBox, PageStore, Replay, StoreFailure, StoreOptions};

use self::block::Block;
use self::block_refs::BlockRefs;
use self::kept::Kept;
use self::leaf_tuples::MainForm;
use self::main_data::MainData;
use self::shape::{Shape, Shapes};
use self::transactions::Transactions;
use crate::cases::Cases;
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::limits::Limits;
use crate::page::delta::DeltaColumns;
use crate::predict::relation::BlockAddress;
use crate::predict::{Predictors, TupleCoder};
use crate::{Corrupt, corrupt};

/// Data longer than this is not put beneath other data of its length.
const MAX_ROW_BYTES: u16 = 2048;

/// Codes one record after another, with what is known of those before: the same in both directions.
pub struct Model {
    version: Major,
    /// Where the last record starts.
    prev: Lsn,
    columns: Option<RecordColumns>,
    shapes: Shapes,
    transactions: Transactions,
    main_data: MainData,
    block_refs: BlockRefs,
    predictors: Predictors,
    replay: Replay,
    kept: Kept,
    /// Whether readers of version 1 refuse a record since the keyframe.
    uses_copies: bool,
    /// Buffers that are used again.
    main: Vec<u8>,
    old_tuple: Vec<u8>,
    reconstructed: Option<Box<Page>>,
    blocks: Vec<Block>,
    refs: Vec<BlockRef>,
    /// The record that was coded last.
    pub out: Vec<u8>,
}

/// The columns that every log has.
#[derive(Clone, Copy)]
pub struct RecordColumns {
    shape_bytes: Column,
    transactions: Column,
    relation_bytes: Column,
    raw: Column,
    image_bytes: Column,
    image_headers: Column,
    /// Against the page as it was before the record.
    delta_to_base: DeltaColumns,
    /// Against the page that the record makes without its image.
    delta_to_replayed: DeltaColumns,
    /// Against the page that its items make.
    delta_to_items: DeltaColumns,
}

impl RecordColumns {
    fn new<S: Coder>(coder: &mut S) -> Result<RecordColumns, Corrupt> {
        Ok(RecordColumns {
            shape_bytes: coder.column(Kind::Bytes(Class::Shapes))?,
            transactions: coder.column(Kind::Symbols(Class::Transactions))?,
            relation_bytes: coder.column(Kind::Bytes(Class::Shapes))?,
            raw: coder.column(Kind::Bytes(Class::Raw))?,
            image_bytes: coder.column(Kind::Bytes(Class::ImageBytes))?,
            image_headers: coder.column(Kind::Symbols(Class::ImageHeaders))?,
            delta_to_base: DeltaColumns::new(coder)?,
            delta_to_replayed: DeltaColumns::new(coder)?,
            delta_to_items: DeltaColumns::new(coder)?,
        })
    }
}

/// The record that is being coded.
struct Current<'a, S> {
    coder: &'a mut S,
    columns: RecordColumns,
    cases: Cases,
    /// The record, when encoding.
    source: Option<&'a Record<'a>>,
    /// Where it starts.
    lsn: Lsn,
    /// Where the next one could start after a record of a length.
    end: &'a dyn Fn(usize) -> Lsn,
}

/// What is known of a record before its blocks.
#[derive(Clone, Copy)]
struct Fields<'a> {
    /// The number of its shape.
    shape: usize,
    xid: u32,
    main: &'a [u8],
}

impl Model {
    /// Nothing known yet.
    pub fn new(version: Major, limits: Limits) -> Model {
        let store =
            PageStore::new(StoreOptions { memory_bytes: limits.page_memory, ..StoreOptions::default() });
        Model {
            version,
            prev: Lsn::INVALID,
            columns: None,
            shapes: Shapes::default(),
            transactions: Transactions::default(),
            main_data: MainData::default(),
            block_refs: BlockRefs::default(),
            predictors: Predictors::default(),
            replay: Replay::new(store),
            kept: Kept::default(),
            uses_copies: false,
            main: Vec::new(),
            old_tuple: Vec::new(),
            reconstructed: None,
            blocks: Vec::new(),
            refs: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Frees everything that is known.
    pub fn forget(&mut self) {
        *self = Model::new(self.version, Limits { page_memory: 0, ..Limits::default() });
    }

    /// Has encoding omit transforms whose decoding time outweighs their gain: values that the server compressed stay as they
    /// are unless a sample shows that this takes much more space, and index tuples are not predicted from heap tuples where others predict them.
    pub fn set_fast_mode(&mut self) {
        self.predictors.layouts.recompressor.decompress_where_it_pays();
        self.predictors.keys.is_fast = true;
    }

    /// Leaves out the cases that are not in the set, in both directions.
    pub fn set_cases(&mut self, cases: Cases) {
        self.predictors.set_cases(cases);
    }

    /// No other segment follows: drops pages that no record reads until then.
    pub fn drop_unread_pages(&mut self) {
        self.kept.drops_pages = true;
    }

    /// Before a segment of so many bytes.
    pub fn start(&mut self, version: Major, bytes: usize) {
        self.version = version;
        self.predictors.layouts.survey.clear();
        self.predictors.layouts.recompressor.restart_trial();
        self.predictors.keys.start(bytes);
    }

    /// When encoding: how many bytes values and images may grow by when they are decompressed, until this is called again.
    pub fn set_growth_left(&mut self, bytes: usize) {
        self.predictors.layouts.recompressor.set_growth_left(bytes);
    }

    /// After a segment: codes which of its pages were read.
    pub fn finish<S: Coder>(&mut self, coder: &mut S) -> Result<(), Corrupt> {
        self.kept.finish(coder, &mut self.replay.store)
    }

    /// Whether readers of version 1 refuse a record since the keyframe.
    pub fn uses_copies(&self) -> bool {
        self.uses_copies
    }

    /// Blocks that had to be kept at one time at most.
    pub fn most_blocks(&self) -> usize {
        self.replay.store.most_blocks()
    }

    /// Why pages could not be stored, if so: what was coded from then on is not to be used.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.replay.store.failure()
    }

    /// Sets what the next record's link is, where it does not follow from the record before: at a segment's start.
    pub fn set_prev(&mut self, prev: Lsn) {
        self.prev = prev;
    }

    /// Codes a record that starts at `lsn`; `end` is where the next one could start after a record of a length.
    ///
    /// When encoding, `source` is the record. In both directions it is in `out` afterwards.
    pub fn record<S: Coder>(
        &mut self,
        coder: &mut S,
        source: Option<&Record<'_>>,
        lsn: Lsn,
        end: impl Fn(usize) -> Lsn,
    ) -> Result<(), Corrupt> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => {
                let columns = *self.columns.insert(RecordColumns::new(coder)?);
                self.shapes.add_context(coder)?;
                columns
            }
        };
        let cases = self.predictors.cases;
        let mut current = Current { coder, columns, cases, source, lsn, end: &end };
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        match self.shapes.shape(&mut current, (self.prev, self.version))? {
            Some(shape) => self.fields(&mut current, shape, &mut out)?,
            None => current.raw_record(&mut out)?,
        }
        self.out = out;
        self.prev = lsn;
        self.replay_record(&mut current)
    }

    /// Codes the fields of a record of a shape, and writes the record to `out`.
    fn fields<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        shape: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let xid = self.transactions.xid(current, current.source.map_or(0, |record| record.header.xid))?;
        let form = self.main_form(current, shape)?;
        let mut main = std::mem::take(&mut self.main);
        main.clear();
        if let MainForm::Bytes(len) = form {
            self.main_data(current, (shape, xid), len, &mut main)?;
        }
        self.blocks(current, (shape, xid, form), &mut main, out)?;
        self.main = main;
        let mut header = self.put_record_header(shape, xid, out);
        // Encoding has only records whose checksums are right.
        header.crc = match current.source {
            Some(record) => record.header.crc,
            None => record_crc(out),
        };
        out[..RECORD_HEADER].copy_from_slice(&header.to_bytes());
        Ok(())
    }

    /// Writes the record's header but for the checksum, and gives it.
    fn put_record_header(&self, shape: usize, xid: u32, out: &mut [u8]) -> RecordHeader {
        let &Shape { info, rmid, .. } = self.shapes.get(shape);
        let header = RecordHeader { total_len: out.len() as u32, xid, prev: self.prev, info, rmid, crc: 0 };
        out[..RECORD_HEADER].copy_from_slice(&header.to_bytes());
        header
    }

    /// Replays the record, so that the pages that it changes are known to the next ones.
    fn replay_record<S: Coder>(&mut self, current: &mut Current<'_, S>) -> Result<(), Corrupt> {
        let Model { predictors, replay, kept, .. } = self;
        if let Some(record) = current.source {
            kept.note(current.coder, &mut predictors.keyed_columns, record, &mut replay.store)?;
            if !replay.apply_except(record, BlockSet::default(), &mut ()) {
                kept::mark_all_read(record, &mut replay.store);
            }
            return Ok(());
        }
        let header = RecordHeader::parse(&self.out)
            .ok_or_else(|| corrupt("cannot decode a record: expected at least its header"))?;
        let range = (current.lsn, (current.end)(self.out.len()));
        let mut refs = std::mem::take(&mut self.refs);
        let record = decode(&self.out, header, range, self.version, PAGE_BYTES as u32, &mut refs);
        if let Ok(record) = &record {
            let dropped = kept::dropped_blocks(current.coder, &mut predictors.keyed_columns, record)?;
            replay.apply_except(record, dropped, &mut ());
        }
        self.refs = refs;
        Ok(())
    }

    /// A page as it is before the record, if it is known.
    fn known_page(&mut self, address: BlockAddress) -> Option<&Page> {
        let slot = self.replay.store.find(address.key())?;
        self.replay.store.page(slot)
    }

    /// The same as a copy, in a buffer of the store.
    fn copy_of_known_page(&mut self, address: BlockAddress) -> Option<PageBox> {
        let mut copy = self.replay.store.spare();
        let page = self.known_page(address);
        match (page, &mut copy) {
            (Some(page), Some(copy)) => copy.0.copy_from_slice(&page.0),
            (Some(page), None) => return Some(PageBox::from(page)),
            (None, _) => {
                copy.into_iter().for_each(|copy| self.replay.store.recycle(copy));
                return None;
            }
        }
        copy
    }

    fn tuple_coder<'m, S: Coder>(&'m mut self, coder: &'m mut S) -> TupleCoder<'m, S> {
        self.predictors.tuple_coder(coder, &mut self.replay.store)
    }
}

impl<S: Coder> Current<'_, S> {
    /// Codes a record that cannot be reconstructed from its fields.
    fn raw_record(&mut self, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let bytes = self.source.map_or(&[][..], |record| record.bytes());
        let len = narrow(self.coder.symbol(self.columns.transactions, bytes.len() as u64)?)?;
        self.coder.bytes(self.columns.raw, bytes, len, out)
    }
}
