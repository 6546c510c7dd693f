//! Predicts TIDs of index tuples from the heap tuples that records inserted last, or from the sorted keys of
//! the table.

use super::{Context, IndexContext};
use crate::Corrupt;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::TupleCoder;
use crate::predict::keyed_columns::Topic;
use walden_redo::page::Tid;
use walden_redo::page::tid::TID_BYTES;

/// An unpredicted TID.
pub const TID_OTHER: u64 = 0;
/// First symbol for the TIDs expected in records.
const TID_EXPECTED: u64 = 1;
/// First symbol for the number of TIDs to skip in the order of keys.
const TID_ORDERED: u64 = 3;

const WRONG: Corrupt = Corrupt("cannot decode a TID: expected one that a predictor has");

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the TID of an index tuple: an expected one, or any.
    pub(super) fn tid(&mut self, index: IndexContext, source: Option<Tid>) -> Result<Tid, Corrupt> {
        let (IndexContext { relation, context }, key) = (index, index.key());
        if context != Context::Near && self.keys.index(relation.number).table.is_some() {
            let expected = match context {
                Context::Record => self.keys.expected(relation.number),
                _ => [None; 2],
            };
            let ordered = self.keys.order.as_ref().filter(|order| order.index == relation.number);
            let symbol = source.map_or(TID_OTHER, |tid| {
                let which = expected.iter().position(|&expected| expected == Some(tid));
                let skip = || ordered.filter(|_| context == Context::Page)?.distance(tid);
                let which = which.map(|which| TID_EXPECTED + which as u64);
                which.or_else(|| skip().map(|skip| TID_ORDERED + skip)).unwrap_or(TID_OTHER)
            });
            let kind = Kind::Symbols(Class::IndexTuples);
            let column = self.keyed_columns.column(self.coder, Topic::TidForms, key, kind)?;
            match self.coder.symbol(column, symbol)? {
                TID_OTHER => self.keys.index(relation.number).missed(1),
                symbol @ TID_EXPECTED..TID_ORDERED => {
                    let which = (symbol - TID_EXPECTED) as usize;
                    let tid = expected[which].ok_or(WRONG)?;
                    self.keys.used(relation.number, Some(which));
                    return Ok(tid);
                }
                symbol => {
                    let order = self.keys.order.as_mut().filter(|order| order.index == relation.number);
                    return order.and_then(|order| order.take(symbol - TID_ORDERED)).ok_or(WRONG);
                }
            }
        }
        let kind = Kind::Rows(Class::IndexTuples, TID_BYTES as u16);
        let column = self.keyed_columns.column(self.coder, Topic::Tids, key, kind)?;
        let bytes = source.map_or([0; TID_BYTES], Tid::to_bytes);
        Ok(Tid::from_bytes(&self.coder.array(column, &bytes)?))
    }

    /// Codes the TIDs of a posting list: the next TIDs in the order of keys, or any TIDs.
    pub(super) fn posting_list(
        &mut self,
        index: IndexContext,
        count: usize,
        source: Option<&[u8]>,
        list: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let (IndexContext { relation, context }, key) = (index, index.key());
        let order = self.keys.order.as_mut().filter(|order| order.index == relation.number);
        if let Some(order) = order.filter(|_| context == Context::Page) {
            // 0: not predicted. Otherwise 1 + the number of TIDs to skip before the first.
            let first = source.and_then(Tid::read).and_then(|tid| order.distance(tid));
            let symbol = first.filter(|&skip| {
                let next = order.peek(skip, count).map(Tid::to_bytes);
                source.is_some_and(|list| next.flatten().eq(list.iter().copied()))
            });
            let kind = Kind::Symbols(Class::IndexTuples);
            let column = self.keyed_columns.column(self.coder, Topic::ListForms, key, kind)?;
            let symbol = self.coder.symbol(column, symbol.map_or(0, |skip| skip + 1))?;
            if symbol > 0 {
                for at in 0..count {
                    let skip = if at == 0 { symbol - 1 } else { 0 };
                    list.extend_from_slice(&order.take(skip).ok_or(WRONG)?.to_bytes());
                }
                return Ok(());
            }
        }
        let kind = Kind::Rows(Class::IndexTuples, TID_BYTES as u16);
        let column = self.keyed_columns.column(self.coder, Topic::Lists, key, kind)?;
        self.coder.bytes(column, source.unwrap_or_default(), count * TID_BYTES, list)
    }
}
