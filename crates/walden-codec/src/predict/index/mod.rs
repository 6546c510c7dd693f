//! Index tuples: in records, and on the pages of all access methods that use them.

use super::TupleCoder;
use super::attributes::LayoutKey;
use super::names::Topic;
use super::relation::Relation;
use super::survey::{Plan, PlanHead};
use crate::columns::{Class, Coder, Column, Kind};
use crate::tuple::index::{
    BITMAP, HAS_NULLS, HEADER, OTHER_MEANING, PLACE, Parts, SIZE, layout, posting, u16_at,
};
use crate::tuple::tid::RowPlace;
use crate::{Corrupt, corrupt};

pub mod key_mapping;
pub mod key_order;
mod key_prediction;
pub mod keys;
mod page;
mod run;

/// How a place is told.
pub const PLACE_OTHER: u64 = 0;

/// One of those that are expected in records; from here on.
const PLACE_EXPECTED: u64 = 1;

/// The next in the order of keys, or so many after it; from here on.
const PLACE_ORDERED: u64 = 3;

/// Where an index's tuples are met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// In records, one by one.
    Record = 0,
    /// On pages, in their order.
    Page = 1,
    /// On a page whose keys tell each other so well that rows have nothing to add.
    Near = 2,
}

impl Context {
    /// By what columns are named.
    fn number(self) -> u32 {
        u32::from(self != Context::Record)
    }
}

/// The columns of tuples with all their key and no null in it.
pub struct TupleColumns {
    /// Flags.
    pub forms: Column,
    /// Whether a place is expected, if that is asked.
    pub expected: Option<Column>,
    /// Places.
    pub places: Column,
}

/// The flags of a tuple with all its key and no null in it.
#[derive(Clone, Copy)]
pub struct TupleForm(u16);

impl TupleForm {
    /// Those of a tuple.
    pub fn of(tuple: &[u8]) -> Option<TupleForm> {
        let info = u16_at(tuple, 6);
        (info & (HAS_NULLS | OTHER_MEANING) == 0).then_some(TupleForm(info & !SIZE))
    }

    /// Whether a tuple has these flags, and is what it says it is.
    pub fn is_of(self, tuple: &[u8]) -> bool {
        tuple.len().is_multiple_of(8) && usize::from(u16_at(tuple, 6)) == usize::from(self.0) + tuple.len()
    }

    /// The symbol for it.
    pub fn symbol(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// The layout of such tuples' keys on pages.
    pub fn layout(self, relation: Relation) -> LayoutKey {
        layout_key(relation, Context::Page, layout(self.0, 0), 0)
    }

    /// Writes it to a tuple.
    pub fn put(self, tuple: &mut [u8]) {
        let info = self.0 | tuple.len() as u16;
        tuple[PLACE..HEADER].copy_from_slice(&info.to_le_bytes());
    }
}

fn layout_key(relation: Relation, context: Context, layout: u32, bitmap: u64) -> LayoutKey {
    LayoutKey(relation.number, u64::from(layout ^ context.number() << 30) << 32 | bitmap)
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes an index tuple; whether its key was told by its row.
    pub fn index_tuple(
        &mut self,
        relation: Relation,
        context: Context,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let parts = source.and_then(|tuple| Some((tuple, Parts::of(tuple)?)));
        let like = |what: u32| [relation.number, context.number(), what];
        let forms = Kind::Symbols(Class::IndexTuples);
        // Three flags, and below them nothing: the size is told by what follows.
        let column = self.names.column(self.coder, Topic::IndexForms, like(0), forms)?;
        let info = parts.as_ref().map_or(0, |(tuple, _)| u16_at(tuple, 6) & !SIZE);
        let info = self.coder.symbol(column, u64::from(info >> 13))?;
        let info =
            u16::try_from(info).ok().filter(|&info| info < 8).ok_or_else(|| corrupt("flags can't be"))? << 13;
        let other = info & OTHER_MEANING != 0;
        let start = out.len();
        let place = parts.as_ref().map_or(&[][..], |(tuple, _)| &tuple[..PLACE]);
        if other {
            let kind = Kind::Rows(Class::IndexTuples, PLACE as u16);
            let places = self.names.column(self.coder, Topic::Places, like(1), kind)?;
            self.coder.bytes(places, place, PLACE, out)?;
        } else {
            let place = self.row_place(relation, context, RowPlace::of(place))?;
            out.extend_from_slice(&place.to_bytes());
        }
        out.extend_from_slice(&info.to_le_bytes());
        let line_pointer = u16_at(&out[start..], 4);
        let posting = posting(info, line_pointer);
        let mut bitmap_number = 0;
        if info & HAS_NULLS != 0 {
            let kind = Kind::Rows(Class::IndexTuples, BITMAP as u16);
            let column = self.names.column(self.coder, Topic::IndexForms, like(1), kind)?;
            let at = out.len();
            let bitmap = parts.as_ref().map_or(&[][..], |(_, parts)| parts.bitmap);
            self.coder.bytes(column, bitmap, BITMAP, out)?;
            bitmap_number = u64::from(u32::from_le_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]]));
        }
        let mut list = Vec::new();
        if posting > 0 {
            let source = parts.as_ref().map(|(_, parts)| parts.list);
            self.posting_list(relation, context, posting, source, &mut list)?;
        }
        let row = if other { RowPlace::of(&list) } else { RowPlace::of(&out[start..]) };
        let layout = layout(info, line_pointer);
        let layout_key = layout_key(relation, context, layout, bitmap_number);
        let source = parts.as_ref().map(|(_, parts)| parts.key);
        let told = match row {
            Some(row) if context != Context::Near => {
                self.key_of(relation, row, (layout, bitmap_number), source, out)?
            }
            _ => false,
        };
        if !told {
            let source = parts.as_ref().map(|(_, parts)| {
                (parts.key, PlanHead { relation: relation.locator, layout, bitmap: parts.bitmap })
            });
            self.rows.row(self.coder, layout_key, 8, None, source, out)?;
        }
        if let Some(row) = row {
            self.look_for_table(relation, context, row, (info & HAS_NULLS == 0).then_some(source).flatten())?;
        }
        if posting > 0 {
            out.extend_from_slice(&list);
            let len = (out.len() - start).next_multiple_of(8);
            out.resize(start + len, 0);
        }
        let len = out.len() - start;
        if len > SIZE.into() {
            return Err(corrupt("an index tuple can't be so long"));
        }
        let info = info | len as u16;
        out[start + 6..start + 8].copy_from_slice(&info.to_le_bytes());
        Ok(told)
    }

    /// The columns of tuples on pages, if all are named that are needed.
    pub fn tuple_columns(&mut self, relation: Relation, has_table: bool) -> Option<TupleColumns> {
        let like = |what: u32| [relation.number, Context::Page.number(), what];
        let expected = self.names.known(Topic::Places, like(3));
        Some(TupleColumns {
            forms: self.names.known(Topic::IndexForms, like(0))?,
            places: self.names.known(Topic::Places, like(0))?,
            expected: if has_table { Some(expected?) } else { None },
        })
    }

    /// Where a tuple's row is: where one is expected, or anywhere.
    fn row_place(
        &mut self,
        relation: Relation,
        context: Context,
        source: Option<RowPlace>,
    ) -> Result<RowPlace, Corrupt> {
        let like = |what: u32| [relation.number, context.number(), what];
        if context != Context::Near && self.keys.index(relation.number).table.is_some() {
            let expected = match context {
                Context::Record => self.keys.expected(relation.number),
                _ => [None; 2],
            };
            let ordered = self.keys.order.as_ref().filter(|order| order.index == relation.number);
            let symbol = source.map_or(PLACE_OTHER, |place| {
                let which = expected.iter().position(|&expected| expected == Some(place));
                let skip = || ordered.filter(|_| context == Context::Page)?.distance(place);
                let which = which.map(|which| PLACE_EXPECTED + which as u64);
                which.or_else(|| skip().map(|skip| PLACE_ORDERED + skip)).unwrap_or(PLACE_OTHER)
            });
            let kind = Kind::Symbols(Class::IndexTuples);
            let column = self.names.column(self.coder, Topic::Places, like(3), kind)?;
            let symbol = self.coder.symbol(column, symbol)?;
            let wrong = Corrupt("a row can't be expected there");
            match symbol {
                PLACE_OTHER => self.keys.index(relation.number).missed(1),
                PLACE_EXPECTED..PLACE_ORDERED => {
                    let which = (symbol - PLACE_EXPECTED) as usize;
                    let place = expected[which].ok_or(wrong)?;
                    self.keys.used(relation.number, Some(which));
                    return Ok(place);
                }
                _ => {
                    let order = self.keys.order.as_mut().filter(|order| order.index == relation.number);
                    return order.and_then(|order| order.take(symbol - PLACE_ORDERED)).ok_or(wrong);
                }
            }
        }
        let kind = Kind::Rows(Class::IndexTuples, PLACE as u16);
        let column = self.names.column(self.coder, Topic::Places, like(0), kind)?;
        let bytes = source.map_or([0; PLACE], RowPlace::to_bytes);
        Ok(RowPlace::from_bytes(self.coder.array(column, &bytes)?))
    }

    /// The rows of a posting list: the next ones in the order of keys, or any.
    fn posting_list(
        &mut self,
        relation: Relation,
        context: Context,
        posting: usize,
        source: Option<&[u8]>,
        list: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let like = |what: u32| [relation.number, context.number(), what];
        let order = self.keys.order.as_mut().filter(|order| order.index == relation.number);
        if let Some(order) = order.filter(|_| context == Context::Page) {
            // 0: not told; else 1 + how many are left out before the first.
            let first = source.and_then(RowPlace::of).and_then(|place| order.distance(place));
            let symbol = first.filter(|&skip| {
                let next = order.peek(skip, posting).map(RowPlace::to_bytes);
                source.is_some_and(|list| next.flatten().eq(list.iter().copied()))
            });
            let kind = Kind::Symbols(Class::IndexTuples);
            let column = self.names.column(self.coder, Topic::Places, like(4), kind)?;
            let symbol = self.coder.symbol(column, symbol.map_or(0, |skip| skip + 1))?;
            if symbol > 0 {
                let wrong = Corrupt("a row can't be expected there");
                for at in 0..posting {
                    let skip = if at == 0 { symbol - 1 } else { 0 };
                    list.extend_from_slice(&order.take(skip).ok_or(wrong)?.to_bytes());
                }
                return Ok(());
            }
        }
        let kind = Kind::Rows(Class::IndexTuples, PLACE as u16);
        let column = self.names.column(self.coder, Topic::Places, like(2), kind)?;
        self.coder.bytes(column, source.unwrap_or_default(), posting * PLACE, list)
    }
}

/// Adds a tuple to what encoding sees ahead.
pub fn plan(plan: &mut Plan, relation: walden_format::record::RelFileLocator, tuple: &[u8]) {
    if let Some(parts) = Parts::of(tuple) {
        let layout = layout(u16_at(tuple, 6), u16_at(tuple, 4));
        plan.add(PlanHead { relation, layout, bitmap: parts.bitmap }, parts.key);
    }
}
