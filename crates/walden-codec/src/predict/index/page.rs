//! Predicts the order of tuples on index pages without a base.

use walden_format::record::Fork;
use walden_redo::page::Page;

use super::key_order::{self, KeyOrder, KeyPart};
use super::{Context, keys};
use crate::Corrupt;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::TupleCoder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::Relation;
use crate::tuple::heap::HeapTuple;
use crate::tuple::index::whole_keys;
use walden_redo::page::Tid;

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes how the tuples of a page without a base are predicted: the index's table, the parts by which its
    /// keys are sorted, and whether heap tuples help.
    pub(super) fn index_page(
        &mut self,
        relation: Relation,
        source: Option<&Page>,
    ) -> Result<Context, Corrupt> {
        const TABLE: u64 = 1;
        const ORDER: u64 = 2;
        const NEAR: u64 = 4;
        /// Number of tuples used to find the table.
        const SAMPLES: usize = 8;
        /// Minimum number of tuples to infer their order.
        const MIN_TUPLES: usize = 8;
        let tuples: Vec<(Tid, &[u8])> = source.map_or(Vec::new(), whole_keys);
        let index = self.keys.index(relation.number);
        let has_table = index.table.is_some();
        let mut parts: Option<Vec<KeyPart>> = None;
        let mut table = None;
        let may_be_ordered = has_table && tuples.len() >= MIN_TUPLES && index.wants_order();
        if may_be_ordered && (!self.keys.is_fast || self.needs_order(relation, &tuples)) {
            let keys: Vec<&[u8]> = tuples.iter().map(|tuple| tuple.1).collect();
            parts = KeyPart::infer(&keys);
        }
        if !has_table {
            let spread = tuples.iter().step_by(tuples.len() / SAMPLES + 1);
            let samples: Vec<_> = spread.map(|(tid, key)| (*tid, key.to_vec())).collect();
            table = self.table_of(relation, &samples);
        }
        let (key, kind) = ([relation.number, 0, 0], Kind::Symbols(Class::IndexTuples));
        let column = self.keyed_columns.column(self.coder, Topic::IndexPages, key, kind)?;
        let predicts = has_table || table.is_some();
        let near = self.keys.is_fast && predicts && parts.is_none() && are_near(&tuples);
        let symbol = [(table.is_some(), TABLE), (parts.is_some(), ORDER), (near, NEAR)];
        let symbol = symbol.iter().filter(|(is, _)| *is).fold(0, |symbol, (_, bit)| symbol | bit);
        let symbol = self.coder.symbol(column, symbol)?;
        if symbol & TABLE != 0 {
            self.table(relation, table)?;
        }
        if symbol & ORDER != 0 {
            let column =
                self.keyed_columns.column(self.coder, Topic::Orders, [0; 3], Kind::Symbols(Class::Shapes))?;
            let parts = key_order::code_parts(self.coder, column, parts.as_deref())?;
            self.sort_heap_tuples(relation, &parts)?;
            let order = self.keys.order.as_mut();
            let first = order.as_ref().zip(tuples.first()).and_then(|(order, tuple)| order.find(tuple.0));
            let first = self.coder.symbol(column, first.unwrap_or(0))?;
            if let Some(order) = order {
                order.start_at(first);
            }
        }
        Ok(if symbol & NEAR != 0 { Context::Near } else { Context::Page })
    }

    /// Returns whether sorting all known heap tuples is worthwhile to predict these TIDs. Sorting is slow, so
    /// most of the TIDs must be on known pages and must not follow their predecessors.
    fn needs_order(&mut self, index: Relation, tuples: &[(Tid, &[u8])]) -> bool {
        const SAMPLES: usize = 32;
        let apart = tuples.windows(2).filter(|two| !follows(two[1].0, two[0].0)).count();
        if apart * 2 < tuples.len() {
            return false;
        }
        let Some(table) = self.keys.index(index.number).table else { return false };
        let samples = tuples.iter().step_by(tuples.len().div_ceil(SAMPLES));
        let known = samples.clone().filter(|(tid, _)| keys::heap_tuple(self.store, table, *tid).is_some());
        known.count() * 2 >= samples.len()
    }

    /// Sorts the heap tuples of an index's table on known pages by the index's keys. If they exceed the
    /// budget or the memory, there is no order.
    ///
    /// # Errors
    /// Returns an error if the keys are longer than in any WAL.
    fn sort_heap_tuples(&mut self, relation: Relation, parts: &[KeyPart]) -> Result<(), Corrupt> {
        self.keys.order = None;
        let index = self.keys.index(relation.number);
        index.set_ordered();
        let Some(table) = index.table else { return Ok(()) };
        let mut order = KeyOrder::new(relation.number);
        let (mut tuple, mut spans, mut key, mut scratch) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (block, slot) in self.store.blocks_of(table.locator, Fork::MAIN) {
            let Some(page) = self.store.page(slot) else { continue };
            if !self.keys.allows(page.items().into()) {
                return Ok(());
            }
            let mut key_bytes = 0;
            let index = self.keys.index(relation.number);
            for number in 1..=page.items() {
                let Some(heap_tuple) = keys::item(page, number).and_then(HeapTuple::parse) else { continue };
                let (layout, attributes) = self.heap_headers.layout_of(table.number, heap_tuple);
                let Some(mapping) = index.mapping(0, layout) else { continue };
                tuple.clear();
                tuple.extend_from_slice(attributes);
                if !self.layouts.read(layout, &tuple, &mut spans) {
                    continue;
                }
                // The format limits the layout of these keys, not their length.
                let known = mapping.key(&tuple, &spans, usize::MAX, &mut key);
                key_bytes += key.len() as u64;
                if known && !order.add(parts, &key, Tid { block, offset_number: number }, &mut scratch) {
                    return self.keys.spend_key_bytes(key_bytes);
                }
            }
            self.keys.spend_key_bytes(key_bytes)?;
        }
        order.sort();
        self.keys.order = Some(order);
        Ok(())
    }
}

/// Returns whether nearly all keys differ from the previous one in at most one byte, and their TIDs follow
/// it.
fn are_near(tuples: &[(Tid, &[u8])]) -> bool {
    let near = tuples.windows(2).filter(|two| {
        let ((before, before_key), (tid, key)) = (two[0], two[1]);
        let differ = before_key.iter().zip(key).filter(|(before, byte)| before != byte).count();
        follows(tid, before) && before_key.len() == key.len() && differ <= 1
    });
    near.count() * 8 > tuples.len() * 7
}

/// Returns whether the heap tuple at `tid` directly follows the tuple at `before`, on the same page or as the
/// first tuple of the next page.
fn follows(tid: Tid, before: Tid) -> bool {
    let (block, number) = (before.block.wrapping_add(1), before.offset_number.wrapping_add(1));
    (tid.block == before.block && tid.offset_number == number)
        || (tid.block == block && tid.offset_number == 1)
}
