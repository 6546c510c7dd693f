//! Codes index tuples in records and on pages of all access methods that use them.
//!
//! A tuple is coded as its flags, the TID of its heap tuple (`tids.rs`), and its key: predicted from the heap
//! tuple (`key_prediction.rs`, using `key_mapping.rs`), or as attributes. On a page without a base, the next
//! TID is predicted from the sorted keys of the table (`page.rs`, `key_order.rs`).

pub mod key_mapping;
pub mod key_order;
mod key_prediction;
pub mod keys;
pub mod leaf;
mod moved_leafs;
pub mod moved_tuples;
mod page;
mod run;
mod tids;

use walden_format::record::RelFileLocator;
use walden_redo::page::btree::INDEX_ALT_TID_MASK;
use walden_redo::page::index_tuple::{INDEX_NULL_MASK, INDEX_SIZE_MASK, header, set_t_info, t_info};
use walden_redo::page::tid::TID_BYTES;
use walden_redo::page::{Page, Tid};

use self::tids::TID_OTHER;
use super::attributes::LayoutKey;
use super::keyed_columns::Topic;
use super::relation::Relation;
use super::run::PageItems;
use super::survey::{Survey, TupleKind};
use super::{Predictor, TupleCoder};
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::tuple::index::{BITMAP_BYTES, IndexTuple, is_index_tuple, layout, posting_count};
use crate::{Corrupt, corrupt};

/// Block data of a record that inserts an index tuple.
pub struct NewTuple {
    /// The index.
    pub relation: Relation,
}

/// Tuples of a page without a base, in order.
pub struct PageTuples {
    index: IndexContext,
    /// Whether the last tuple's key was predicted from its heap tuple.
    was_predicted: bool,
}

/// Context in which index tuples are coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// In records, one by one.
    Record = 0,
    /// On pages, in order.
    Page = 1,
    /// On a page whose keys predict each other so well that heap tuples do not help.
    Near = 2,
}

/// An index, and the context in which its tuples are coded.
#[derive(Clone, Copy)]
pub struct IndexContext {
    /// The index.
    pub relation: Relation,
    /// The context.
    pub context: Context,
}

impl IndexContext {
    /// Returns the key of the columns.
    fn key(self) -> [u32; 3] {
        [self.relation.number, self.number(), 0]
    }

    /// Returns the key of the layout of tuples with a null bitmap.
    fn layout_key(self, layout: u32, bitmap: u64) -> LayoutKey {
        LayoutKey(self.relation.number, u64::from(layout ^ self.number() << 30) << 32 | bitmap)
    }

    /// Returns the context's number in keys.
    fn number(self) -> u32 {
        u32::from(self.context != Context::Record)
    }
}

impl<S: Coder> Predictor<S> for NewTuple {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, data: &[u8]) -> bool {
        is_index_tuple(data)
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let index = IndexContext { relation: self.relation, context: Context::Record };
        coder.index_tuple(index, source, out).map(|_| ())
    }
}

impl PageTuples {
    /// Creates the predictor for the tuples of a page, after coding how their order is predicted.
    pub fn new<S: Coder>(
        coder: &mut TupleCoder<'_, S>,
        relation: Relation,
        source: Option<&Page>,
    ) -> Result<PageTuples, Corrupt> {
        let context = coder.index_page(relation, source)?;
        Ok(PageTuples { index: IndexContext { relation, context }, was_predicted: false })
    }
}

impl<S: Coder> Predictor<S> for PageTuples {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, item: &[u8]) -> bool {
        is_index_tuple(item)
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        self.was_predicted = coder.index_tuple(self.index, source, out)?;
        Ok(())
    }

    fn code_run(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        last: &[u8],
        items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        if self.was_predicted {
            return Ok(());
        }
        coder.index_tuple_run(self.index, last, items)
    }
}

/// Columns of tuples that have a complete key without nulls.
pub struct TupleColumns {
    /// Flags.
    pub flags: Column,
    /// Column that codes whether a TID is expected, if the index has a table.
    pub expected: Option<Column>,
    /// TIDs.
    pub tids: Column,
}

/// Flags of a tuple that has a complete key without nulls.
#[derive(Clone, Copy)]
pub struct TupleFlags(u16);

impl TupleFlags {
    /// Returns the flags of a tuple; `None` if the key is incomplete or contains nulls.
    pub fn parse(tuple: &[u8]) -> Option<TupleFlags> {
        let info = t_info(tuple)?;
        (info & (INDEX_NULL_MASK | INDEX_ALT_TID_MASK) == 0).then_some(TupleFlags(info & !INDEX_SIZE_MASK))
    }

    /// Returns whether a tuple has these flags, and a size equal to its length.
    pub fn is_of(self, tuple: &[u8]) -> bool {
        tuple.len().is_multiple_of(8)
            && t_info(tuple).is_some_and(|info| usize::from(info) == usize::from(self.0) + tuple.len())
    }

    /// Returns the symbol for the flags.
    pub fn symbol(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Returns the layout of such tuples' keys on pages.
    pub fn layout(self, relation: Relation) -> LayoutKey {
        IndexContext { relation, context: Context::Page }.layout_key(layout(self.0, 0), 0)
    }

    /// Writes the flags and the size to a tuple.
    pub fn put(self, tuple: &mut [u8]) {
        set_t_info(tuple, self.0 | tuple.len() as u16);
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes an index tuple and appends it to `out`. Returns whether its key was predicted from its heap
    /// tuple.
    fn index_tuple(
        &mut self,
        index: IndexContext,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let source = source.and_then(IndexTuple::parse);
        let source = source.as_ref();
        let start = out.len();
        let info = self.index_tuple_flags(index, source)?;
        let has_alt_tid = info & INDEX_ALT_TID_MASK != 0;
        let tid_field = self.index_tuple_tid(index, has_alt_tid, source)?;
        out.extend_from_slice(&header(tid_field, info));
        let bitmap =
            if info & INDEX_NULL_MASK != 0 { self.index_tuple_bitmap(index, source, out)? } else { 0 };
        let posting = posting_count(info, tid_field.offset_number);
        let mut list = Vec::new();
        if posting > 0 {
            self.posting_list(index, posting, source.map(|tuple| tuple.list), &mut list)?;
        }
        let tid = if has_alt_tid { Tid::read(&list) } else { Some(tid_field) };
        let layout = layout(info, tid_field.offset_number);
        let is_predicted = self.index_tuple_key(index, tid, (layout, bitmap), source, out)?;
        if let Some(tid) = tid {
            let key = source.map(|tuple| tuple.key).filter(|_| info & INDEX_NULL_MASK == 0);
            self.look_for_table(index, tid, key)?;
        }
        if posting > 0 {
            out.extend_from_slice(&list);
            let len = (out.len() - start).next_multiple_of(8);
            out.resize(start + len, 0);
        }
        let len = out.len() - start;
        if len > INDEX_SIZE_MASK.into() {
            return Err(corrupt("cannot decode an index tuple: expected at most 8191 bytes"));
        }
        set_t_info(&mut out[start..], info | len as u16);
        Ok(is_predicted)
    }

    /// Codes a tuple's three flags. The size below them is derived.
    fn index_tuple_flags(
        &mut self,
        index: IndexContext,
        source: Option<&IndexTuple<'_>>,
    ) -> Result<u16, Corrupt> {
        let kind = Kind::Symbols(Class::IndexTuples);
        let column = self.keyed_columns.column(self.coder, Topic::IndexForms, index.key(), kind)?;
        let flags = source.map_or(0, |tuple| tuple.info >> 13);
        let flags = u16::try_from(self.coder.symbol(column, flags.into())?);
        let flags = flags
            .ok()
            .filter(|&flags| flags < 8)
            .ok_or_else(|| corrupt("cannot decode an index tuple: expected flags of 3 bits"))?;
        Ok(flags << 13)
    }

    /// Codes a tuple's `t_tid`: a TID, or the value stored in its place.
    fn index_tuple_tid(
        &mut self,
        index: IndexContext,
        has_alt_tid: bool,
        source: Option<&IndexTuple<'_>>,
    ) -> Result<Tid, Corrupt> {
        let tid = source.map(|tuple| tuple.tid);
        if has_alt_tid {
            let kind = Kind::Rows(Class::IndexTuples, TID_BYTES as u16);
            let column = self.keyed_columns.column(self.coder, Topic::OtherTids, index.key(), kind)?;
            Ok(Tid::from_bytes(&self.coder.array(column, &tid.unwrap_or_default())?))
        } else {
            self.tid(index, tid.as_ref().map(Tid::from_bytes))
        }
    }

    /// Codes a tuple's null bitmap with the padding after it. Returns its number, which the layout depends
    /// on.
    fn index_tuple_bitmap(
        &mut self,
        index: IndexContext,
        source: Option<&IndexTuple<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<u64, Corrupt> {
        let kind = Kind::Rows(Class::IndexTuples, BITMAP_BYTES as u16);
        let column = self.keyed_columns.column(self.coder, Topic::IndexBitmaps, index.key(), kind)?;
        let bitmap =
            source.and_then(|tuple| tuple.bitmap.first_chunk()).copied().unwrap_or([0; BITMAP_BYTES]);
        let bitmap = self.coder.array(column, &bitmap)?;
        out.extend_from_slice(&bitmap);
        let [a, b, c, d, ..] = bitmap;
        Ok(u32::from_le_bytes([a, b, c, d]).into())
    }

    /// Codes a tuple's key. Returns whether it was predicted from its heap tuple.
    fn index_tuple_key(
        &mut self,
        index: IndexContext,
        tid: Option<Tid>,
        (layout, bitmap): (u32, u64),
        source: Option<&IndexTuple<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let relation = index.relation;
        if let Some(tid) = tid.filter(|_| index.context != Context::Near)
            && self.predicted_key((relation, tid), (layout, bitmap), source.map(|tuple| tuple.key), out)?
        {
            return Ok(true);
        }
        let key = index.layout_key(layout, bitmap);
        let source = source
            .map(|tuple| (tuple.key, TupleKind { relation: relation.locator, layout, bitmap: tuple.bitmap }));
        self.layouts.tuple(self.coder, (key, 8), None, source, out)?;
        Ok(false)
    }

    /// Returns the columns of tuples on pages, if all required columns exist.
    fn tuple_columns(&mut self, relation: Relation, has_table: bool) -> Option<TupleColumns> {
        let key = IndexContext { relation, context: Context::Page }.key();
        let expected = self.keyed_columns.existing(Topic::TidForms, key);
        Some(TupleColumns {
            flags: self.keyed_columns.existing(Topic::IndexForms, key)?,
            tids: self.keyed_columns.existing(Topic::Tids, key)?,
            expected: if has_table { Some(expected?) } else { None },
        })
    }
}

/// Adds a tuple to the survey.
pub fn survey(survey: &mut Survey, relation: RelFileLocator, tuple: &[u8]) {
    if let Some(tuple) = IndexTuple::parse(tuple) {
        let layout = layout(tuple.info, Tid::from_bytes(&tuple.tid).offset_number);
        survey.add(TupleKind { relation, layout, bitmap: tuple.bitmap }, tuple.key);
    }
}
