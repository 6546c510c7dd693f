//! Pages of indexes that are seen first: the order of their tuples.

use walden_format::record::Fork;
use walden_redo::page::Page;

use super::key_order::{self, Order, Unit};
use super::{Context, keys};
use crate::Corrupt;
use crate::columns::{Class, Coder, Kind};
use crate::predict::TupleCoder;
use crate::predict::names::Topic;
use crate::predict::relation::Relation;
use crate::tuple::index::whole_keys;
use crate::tuple::tid::RowPlace;

impl<S: Coder> TupleCoder<'_, S> {
    /// Before the tuples of a page of which nothing is known: the index's table, its rows in order, and whether these tell
    /// anything.
    pub fn index_page(&mut self, relation: Relation, source: Option<&Page>) -> Result<Context, Corrupt> {
        const TABLE: u64 = 1;
        const ORDER: u64 = 2;
        const NEAR: u64 = 4;
        /// Tuples by which the table is looked for.
        const SAMPLES: usize = 8;
        /// Fewer tuples say little of their order.
        const FEWEST: usize = 8;
        let tuples: Vec<(RowPlace, &[u8])> = source.map_or(Vec::new(), whole_keys);
        let index = self.keys.index(relation.number);
        let has_table = index.table.is_some();
        let mut units: Option<Vec<Unit>> = None;
        let mut table = None;
        let may_be_ordered = has_table && tuples.len() >= FEWEST && index.wants_order();
        if may_be_ordered && (!self.keys.in_haste || self.needs_order(relation, &tuples)) {
            let keys: Vec<&[u8]> = tuples.iter().map(|tuple| tuple.1).collect();
            units = Unit::of(&keys);
        }
        if !has_table {
            let spread = tuples.iter().step_by(tuples.len() / SAMPLES + 1);
            let samples: Vec<_> = spread.map(|(place, key)| (*place, key.to_vec())).collect();
            table = self.table_of(relation, &samples);
        }
        let like = [relation.number, 1, 8];
        let column = self.names.column(self.coder, Topic::Places, like, Kind::Symbols(Class::IndexTuples))?;
        let tells = has_table || table.is_some();
        let near = self.keys.in_haste && tells && units.is_none() && are_near(&tuples);
        let symbol = [(table.is_some(), TABLE), (units.is_some(), ORDER), (near, NEAR)];
        let symbol = symbol.iter().filter(|(is, _)| *is).fold(0, |symbol, (_, bit)| symbol | bit);
        let symbol = self.coder.symbol(column, symbol)?;
        if symbol & TABLE != 0 {
            self.table(relation, table)?;
        }
        if symbol & ORDER != 0 {
            let column =
                self.names.column(self.coder, Topic::Places, [0, 0, 9], Kind::Symbols(Class::Shapes))?;
            let units = key_order::code_units(self.coder, column, units.as_deref())?;
            self.put_in_order(relation, &units);
            let order = self.keys.order.as_mut();
            let first = order.as_ref().zip(tuples.first()).and_then(|(order, tuple)| order.find(tuple.0));
            let first = self.coder.symbol(column, first.unwrap_or(0))?;
            if let Some(order) = order {
                order.start_at(first);
            }
        }
        Ok(if symbol & NEAR != 0 { Context::Near } else { Context::Page })
    }

    /// Whether the rows of these tuples are best told by the order of all that are known. That takes long to make, so most of
    /// them have to be known, and to be elsewhere than behind the one before.
    fn needs_order(&mut self, index: Relation, tuples: &[(RowPlace, &[u8])]) -> bool {
        const SAMPLES: usize = 32;
        let apart = tuples.windows(2).filter(|two| !two[1].0.is_after(two[0].0)).count();
        if apart * 2 < tuples.len() {
            return false;
        }
        let Some(table) = self.keys.index(index.number).table else { return false };
        let samples = tuples.iter().step_by(tuples.len().div_ceil(SAMPLES));
        let known = samples.clone().filter(|(place, _)| keys::row(self.store, table, *place).is_some());
        known.count() * 2 >= samples.len()
    }

    /// Puts the rows of an index's table in the order of its keys.
    fn put_in_order(&mut self, relation: Relation, units: &[Unit]) {
        self.keys.order = None;
        let index = self.keys.index(relation.number);
        index.is_ordered();
        let Some(table) = index.table else { return };
        let mut order = Order::new(relation.number);
        let (mut row, mut spans, mut key, mut scratch) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (block, slot) in self.store.blocks_of(table.locator, Fork::MAIN) {
            let Some(page) = self.store.page(slot) else { continue };
            if !self.keys.allows(page.items().into()) {
                return;
            }
            let index = self.keys.index(relation.number);
            for number in 1..=page.items() {
                let Some(parts) = keys::item(page, number).and_then(keys::parts) else { continue };
                let (layout, attributes) = self.heads.layout_of(table.number, parts);
                let Some(recipe) = index.recipe(0, layout) else { continue };
                row.clear();
                row.extend_from_slice(attributes);
                let known = self.rows.read(layout, &row, &mut spans) && recipe.key(&row, &spans, &mut key);
                if known && !order.add(units, &key, RowPlace { block, number }, &mut scratch) {
                    return;
                }
            }
        }
        order.sort();
        self.keys.order = Some(order);
    }
}

/// Whether nearly all keys differ from the one before in a byte at most, and places are behind the one before.
fn are_near(tuples: &[(RowPlace, &[u8])]) -> bool {
    let near = tuples.windows(2).filter(|two| {
        let ((before, before_key), (place, key)) = (two[0], two[1]);
        let differ = before_key.iter().zip(key).filter(|(before, byte)| before != byte).count();
        place.is_after(before) && before_key.len() == key.len() && differ <= 1
    });
    near.count() * 8 > tuples.len() * 7
}
