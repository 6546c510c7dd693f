//! Codes records. The parts of a record are coded in this order:
//!
//! 1. The record's *shape* (`shape.rs`): the non-numeric parts of its headers, predicted from the shape of
//!    the previous record.
//! 2. The transaction (`transactions.rs`).
//! 3. The main data (`main_data.rs`): transactions and times in it (`near_numbers.rs`) as deltas against
//!    earlier transactions and times.
//! 4. The blocks (`blocks.rs`): their addresses (`block_refs.rs`), their data, coded by a predictor
//!    (`block_data.rs`), and their full-page images (`images.rs`). An image is a delta against the page that
//!    the record would yield without the image, the page before the record, or a page reconstructed item by
//!    item.
//!
//! Lengths, the link to the previous record and the checksum are derived. Both directions then replay the
//! record, so that the record's pages are known when the next record is coded. Pages that no later record
//! reads are dropped (`kept.rs`).

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
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::limits::Limits;
use crate::page::delta::DeltaColumns;
use crate::predict::relation::BlockAddress;
use crate::predict::{Predictors, TupleCoder};
use crate::{Corrupt, corrupt};

/// Maximum length of data that is coded as rows of a matrix, together with other data of its length.
const MAX_ROW_BYTES: u16 = 2048;

/// Codes records in sequence, predicted from the records before. The state is the same in both directions.
pub struct Model {
    version: Major,
    /// LSN of the previous record.
    prev: Lsn,
    columns: Option<RecordColumns>,
    shapes: Shapes,
    transactions: Transactions,
    main_data: MainData,
    block_refs: BlockRefs,
    predictors: Predictors,
    replay: Replay,
    kept: Kept,
    /// Whether a record since the keyframe requires a reader of version 2.
    uses_copies: bool,
    /// Whether a record may require a reader of version 2.
    may_copy: bool,
    /// Reusable buffers.
    main: Vec<u8>,
    old_tuple: Vec<u8>,
    reconstructed: Option<Box<Page>>,
    blocks: Vec<Block>,
    refs: Vec<BlockRef>,
    /// The last record that was coded.
    pub out: Vec<u8>,
}

/// Columns that exist once per WAL stream.
#[derive(Clone, Copy)]
pub struct RecordColumns {
    shape_bytes: Column,
    transactions: Column,
    relation_bytes: Column,
    raw: Column,
    image_bytes: Column,
    image_headers: Column,
    /// Deltas against the page before the record.
    delta_to_base: DeltaColumns,
    /// Deltas against the page that the record yields without its image.
    delta_to_replayed: DeltaColumns,
    /// Deltas against the page reconstructed item by item.
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

/// The current record.
struct Current<'a, S> {
    coder: &'a mut S,
    columns: RecordColumns,
    /// When encoding: the record.
    source: Option<&'a Record<'a>>,
    /// LSN of the record.
    lsn: Lsn,
    /// Returns the LSN at which the next record can start, given the length of this record.
    end: &'a dyn Fn(usize) -> Lsn,
}

/// Fields of a record that are coded before its blocks.
#[derive(Clone, Copy)]
struct Fields<'a> {
    /// Index of its shape.
    shape: usize,
    xid: u32,
    main: &'a [u8],
}

impl Model {
    /// Creates a model without any state.
    pub fn new(version: Major, limits: Limits) -> Model {
        let store = PageStore::new(StoreOptions::default().memory_bytes(limits.page_memory));
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
            may_copy: limits.may_copy,
            main: Vec::new(),
            old_tuple: Vec::new(),
            reconstructed: None,
            blocks: Vec::new(),
            refs: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Frees all state.
    pub fn forget(&mut self) {
        *self = Model::new(self.version, Limits { page_memory: 0, ..Limits::default() });
    }

    /// Makes encoding skip transforms whose decoding time outweighs their gain: values that the server
    /// compressed are coded as they are, unless a sample shows that this takes much more space, and index
    /// tuples are not predicted from heap tuples where their neighbors predict them.
    pub fn set_fast_mode(&mut self) {
        self.predictors.layouts.recompressor.decompress_where_it_pays();
        self.predictors.keys.is_fast = true;
    }

    /// Drops pages that no record of the same segment reads. Used if no other segment follows.
    pub fn drop_unread_pages(&mut self) {
        self.kept.drops_pages = true;
    }

    /// Starts a segment of `bytes` bytes.
    pub fn start(&mut self, version: Major, bytes: usize) {
        self.version = version;
        self.predictors.layouts.survey.clear();
        self.predictors.layouts.recompressor.restart_trial();
        self.predictors.keys.start(bytes);
    }

    /// When encoding: sets the number of bytes by which values and images may grow by decompression until the
    /// next call.
    pub fn set_growth_left(&mut self, bytes: usize) {
        self.predictors.layouts.recompressor.set_growth_left(bytes);
    }

    /// Ends a segment: codes which of its pages were read.
    pub fn finish<S: Coder>(&mut self, coder: &mut S) -> Result<(), Corrupt> {
        self.kept.finish(coder, &mut self.replay.store)
    }

    /// Allows a form that requires a reader of version 2, or returns an error if the file excludes it.
    fn use_copies(&mut self) -> Result<(), Corrupt> {
        self.uses_copies = true;
        match self.may_copy {
            true => Ok(()),
            false => Err(corrupt(
                "cannot decode a record: expected forms of version 1 alone, as the file's header states that its readers decode it",
            )),
        }
    }

    /// Returns whether a record since the keyframe requires a reader of version 2.
    pub fn uses_copies(&self) -> bool {
        self.uses_copies
    }

    /// Returns the maximum number of blocks kept at one time.
    pub fn most_blocks(&self) -> usize {
        self.replay.store.most_blocks()
    }

    /// Returns the error of storing pages, if any. Output coded after it is invalid.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.replay.store.failure()
    }

    /// Sets the link of the next record, at the start of a segment, where it is not derived from the previous
    /// record.
    pub fn set_prev(&mut self, prev: Lsn) {
        self.prev = prev;
    }

    /// Codes a record that starts at `lsn`. `end` returns the LSN at which the next record can start, given
    /// the length of this record.
    ///
    /// When encoding, `source` is the record. In both directions, `out` holds the record afterwards.
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
        let mut current = Current { coder, columns, source, lsn, end: &end };
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

    /// Codes the fields of a record with a shape and writes the record to `out`.
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
        // Encoding accepts only records with correct checksums.
        header.crc = match current.source {
            Some(record) => record.header.crc,
            None => record_crc(out),
        };
        out[..RECORD_HEADER].copy_from_slice(&header.to_bytes());
        Ok(())
    }

    /// Writes the record header without its checksum and returns it.
    fn put_record_header(&self, shape: usize, xid: u32, out: &mut [u8]) -> RecordHeader {
        let &Shape { info, rmid, .. } = self.shapes.get(shape);
        let header = RecordHeader { total_len: out.len() as u32, xid, prev: self.prev, info, rmid, crc: 0 };
        out[..RECORD_HEADER].copy_from_slice(&header.to_bytes());
        header
    }

    /// Replays the record, so that the pages that it changes are known to later records.
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

    /// Returns a page as it is before the record, if known.
    fn known_page(&mut self, address: BlockAddress) -> Option<&Page> {
        let slot = self.replay.store.find(address.key())?;
        self.replay.store.page(slot)
    }

    /// As [`Self::known_page`], but returns a copy in a buffer of the store.
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
