//! Codes heap tuples in records and on pages.

pub mod headers;
mod run;
pub mod visibility;

use walden_format::payload::heap::{UpdateFlags, XlHeapHeader, XlMultiInsertTuple};
use walden_format::record::RelFileLocator;

use self::headers::layout_key;
use self::visibility::Visibility;
use super::keyed_columns::Topic;
use super::relation::{BlockAddress, Relation};
use super::run::PageItems;
use super::survey::{Survey, TupleKind};
use super::{Predictor, TupleCoder, expect_block_data};
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::leb128::narrow;
use crate::tuple::heap::{HeapHeader, HeapTuple, MultiInsert, fields, is_heap_tuple, layout, shared_lengths};
use crate::{Corrupt, corrupt};

/// Block data of an INSERT, or of an update with a whole tuple.
pub struct NewTuple<'a> {
    /// The table.
    pub relation: Relation,
    /// The replaced tuple, if known.
    pub old: Option<HeapTuple<'a>>,
}

/// Block data of an update without the prefix or suffix that the tuple shares with the old one.
pub struct NewTuplePart<'a> {
    /// The table.
    pub relation: Relation,
    /// The replaced tuple, if known.
    pub old: Option<HeapTuple<'a>>,
    /// Which parts are omitted.
    pub flags: UpdateFlags,
}

/// Block data of a MULTI_INSERT: tuples at even offsets, each preceded by its length.
pub struct NewTuples {
    /// The table.
    pub relation: Relation,
    /// Number of tuples.
    pub count: usize,
}

/// Tuples of a page, in the order of their offset numbers.
pub struct PageTuples {
    address: BlockAddress,
    line_pointer: u16,
    visibility: Visibility,
}

impl<S: Coder> Predictor<S> for NewTuple<'_> {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, data: &[u8]) -> bool {
        data.len() >= XlHeapHeader::WIDTH
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let source = source.and_then(|data| data.split_first_chunk());
        coder.heap_tuple(self.relation, self.old, source, out)
    }
}

impl<S: Coder> Predictor<S> for NewTuplePart<'_> {
    fn fits(&mut self, coder: &mut TupleCoder<'_, S>, data: &[u8]) -> bool {
        coder.heap_headers.complete_update(data, self.old, self.flags)
    }

    /// Codes the whole tuple, which [`Predictor::fits`] completed, and then omits the parts that the update
    /// omits.
    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        _: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let old = self
            .old
            .ok_or_else(|| corrupt("cannot decode an update: expected its old tuple on a known page"))?;
        let [completed, mut whole] = std::mem::take(&mut coder.heap_headers.whole_tuples);
        whole.clear();
        let header = coder.heap_headers.completed_header.take();
        let source = header.as_ref().map(|header| (header, &completed[..]));
        let header = coder.heap_tuple_body(self.relation, Some(old), source, &mut whole)?;
        let bitmap = fields(&header).null_bitmap_len().filter(|&bytes| bytes <= whole.len());
        let (bitmap, attributes) = whole.split_at(
            bitmap.ok_or_else(|| corrupt("cannot decode a tuple: expected at least its null bitmap"))?,
        );
        let shared = shared_lengths(old.attributes, attributes);
        let shared = shared.ok_or_else(|| corrupt("cannot decode a tuple: expected at most 65535 bytes"))?;
        if shared.flagged(self.flags) != self.flags {
            return Err(corrupt("cannot decode an update: expected other shared bytes with the old tuple"));
        }
        shared.write(out);
        out.extend_from_slice(&header);
        out.extend_from_slice(bitmap);
        let middle = shared.prefix.into()..attributes.len() - usize::from(shared.suffix);
        out.extend_from_slice(&attributes[middle]);
        coder.heap_headers.whole_tuples = [completed, whole];
        Ok(())
    }
}

impl<S: Coder> Predictor<S> for NewTuples {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, data: &[u8]) -> bool {
        MultiInsert::is_exactly(data, self.count)
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let mut source = source.map(MultiInsert::new);
        let key = [self.relation.number, 0, 0];
        let kind = Kind::Symbols(Class::TupleHeaders);
        let gaps = coder.keyed_columns.column(coder.coder, Topic::TupleGaps, key, kind)?;
        let start = out.len();
        for _ in 0..self.count {
            let next = source.as_mut().and_then(Iterator::next);
            if !(out.len() - start).is_multiple_of(2) {
                // PostgreSQL does not always write zeros here.
                let gap = coder.coder.symbol(gaps, next.as_ref().map_or(0, |tuple| tuple.gap.into()))?;
                out.push(narrow(gap)?);
            }
            let at = out.len();
            // Placeholder for the length.
            out.resize(at + XlMultiInsertTuple::WIDTH - XlHeapHeader::WIDTH, 0);
            coder.heap_tuple(self.relation, None, next.map(|tuple| (tuple.header, tuple.body)), out)?;
            let (header, rest) = out[at..]
                .split_first_chunk_mut()
                .ok_or_else(|| corrupt("cannot decode a tuple: expected at least its header"))?;
            let data_len = u16::try_from(rest.len())
                .map_err(|_| corrupt("cannot decode a tuple: expected at most 65535 bytes"))?;
            *header = XlMultiInsertTuple { data_len, ..XlMultiInsertTuple::from_bytes(header) }.to_bytes();
            expect_block_data(out.len() - start)?;
        }
        Ok(())
    }
}

impl PageTuples {
    /// Creates the predictor for the tuples of a page.
    pub fn new(address: BlockAddress) -> PageTuples {
        PageTuples { address, line_pointer: 0, visibility: Visibility::default() }
    }
}

impl<S: Coder> Predictor<S> for PageTuples {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, item: &[u8]) -> bool {
        is_heap_tuple(item)
    }

    fn start_item(&mut self, line_pointer: u16) {
        self.line_pointer = line_pointer;
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let visibility = self.visibility.code(coder, self.address, self.line_pointer, source)?;
        out.extend_from_slice(&visibility);
        let source = source.and_then(|item| item.get(visibility.len()..)?.split_first_chunk());
        coder.heap_tuple(self.address.relation, None, source, out)
    }

    fn code_run(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        last: &[u8],
        items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        coder.heap_tuple_run(self.address, &mut self.visibility, last, items)
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes a tuple as stored in records and appends it to `out`. `source` has its header and its body.
    fn heap_tuple(
        &mut self,
        relation: Relation,
        old: Option<HeapTuple<'_>>,
        source: Option<(&HeapHeader, &[u8])>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let start = out.len();
        out.extend_from_slice(&[0; XlHeapHeader::WIDTH]);
        let header = self.heap_tuple_body(relation, old, source, out)?;
        out[start..start + XlHeapHeader::WIDTH].copy_from_slice(&header);
        Ok(())
    }

    /// Codes the header of a tuple, which is returned, and its body, which is appended to `out`.
    fn heap_tuple_body(
        &mut self,
        relation: Relation,
        old: Option<HeapTuple<'_>>,
        source: Option<(&HeapHeader, &[u8])>,
        out: &mut Vec<u8>,
    ) -> Result<HeapHeader, Corrupt> {
        let Relation { number, locator } = relation;
        self.keys.table(relation);
        let header = source.map(|(header, _)| header);
        let header = self.heap_headers.header(self.coder, self.keyed_columns, number, header)?;
        let body = source.map(|(_, body)| body);
        let bitmap = self.heap_headers.bitmap(self.coder, self.keyed_columns, number, &header, body, out)?;
        let skipped = bitmap.and(fields(&header).null_bitmap_len()).unwrap_or(0);
        let key = layout_key(number, &header, bitmap);
        let source = body.map(|body| {
            let (bitmap, attributes) = body.split_at(skipped.min(body.len()));
            (attributes, TupleKind { relation: locator, layout: layout(&header) as u32, bitmap })
        });
        let bitmap = &out[out.len() - skipped..];
        let old = old.filter(|old| layout(old.header) == layout(&header) && old.bitmap == bitmap);
        self.layouts.tuple(self.coder, (key, 1), old.map(|old| old.attributes), source, out)?;
        Ok(header)
    }
}

/// Adds a tuple to the survey.
pub fn survey(survey: &mut Survey, relation: RelFileLocator, header: &HeapHeader, body: &[u8]) {
    let Some(bytes) = fields(header).null_bitmap_len() else { return };
    let Some((bitmap, attributes)) = body.split_at_checked(bytes) else { return };
    survey.add(TupleKind { relation, layout: layout(header) as u32, bitmap }, attributes);
}

/// Adds the tuples of a MULTI_INSERT to the survey.
pub fn survey_multi_insert(target: &mut Survey, relation: RelFileLocator, data: &[u8]) {
    MultiInsert::new(data).for_each(|tuple| survey(target, relation, tuple.header, tuple.body));
}
