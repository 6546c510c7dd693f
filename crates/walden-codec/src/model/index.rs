//! Index tuples (`itup.h`): in records, and on the pages of all access methods that use them.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     block, upper half first, and line pointer
//!      6      2  t_info    size 13 bits, three flags
//!      8         null bitmap if a flag says so, key; in a posting list's tuple, table rows after the key
//! ```

use walden_format::record::Fork;
use walden_redo::page::Page;

use super::heap::{Relation, TupleCoder};
use super::keys::{self, Order, Recipe, RowPlace, Scratch, Unit};
use super::names::Topic;
use super::rows::{LayoutKey, Plan, PlanHead};
use super::schema::Span;
use crate::columns::{Class, Coder, Column, Kind};
use crate::{Corrupt, corrupt};

/// Bytes before the null bitmap, or the key.
pub const HEADER: usize = 8;
const PLACE: usize = 6;
const SIZE: u16 = 0x1FFF;
const HAS_NULLS: u16 = 0x8000;
/// `t_tid` has another meaning (`INDEX_ALT_TID_MASK`).
const OTHER_MEANING: u16 = 0x2000;
/// In such a tuple's line pointer: there is a posting list (`BT_IS_POSTING`).
const IS_POSTING: u16 = 0x2000;
const COUNT: u16 = 0x0FFF;
/// Null bitmap (32 attributes) and the gap after it.
const BITMAP: usize = 8;

/// The parts of an index tuple.
struct Parts<'a> {
    bitmap: &'a [u8],
    key: &'a [u8],
    list: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

impl Parts<'_> {
    /// The parts, if the tuple is what it says it is.
    fn of(tuple: &[u8]) -> Option<Parts<'_>> {
        let info = u16_at(tuple, 6);
        if tuple.len() < HEADER || usize::from(info & SIZE) != tuple.len() || !tuple.len().is_multiple_of(8) {
            return None;
        }
        let bitmap = if info & HAS_NULLS != 0 { BITMAP } else { 0 };
        let posting = posting(info, u16_at(tuple, 4));
        let (key, list) = if posting > 0 {
            let at = usize::from(u16_at(tuple, 0)) << 16 | usize::from(u16_at(tuple, 2));
            let whole = at.checked_add(posting * PLACE)?.next_multiple_of(8) == tuple.len();
            if !whole || at < HEADER + bitmap || !at.is_multiple_of(8) {
                return None;
            }
            if tuple[at + posting * PLACE..].iter().any(|&byte| byte != 0) {
                return None;
            }
            (tuple.get(HEADER + bitmap..at)?, &tuple[at..at + posting * PLACE])
        } else {
            (tuple.get(HEADER + bitmap..)?, &[][..])
        };
        Some(Parts { bitmap: &tuple[HEADER..HEADER + bitmap], key, list })
    }
}

/// Table rows in a posting list; 0 if there is none.
fn posting(info: u16, line_pointer: u16) -> usize {
    if info & OTHER_MEANING != 0 && line_pointer & IS_POSTING != 0 {
        (line_pointer & COUNT).into()
    } else {
        0
    }
}

/// What tells tuples with different keys apart: flags, and how many attributes a tuple of an inner page still has.
fn layout(info: u16, line_pointer: u16) -> u32 {
    let kept = if info & OTHER_MEANING != 0 && line_pointer & IS_POSTING == 0 { line_pointer } else { 0 };
    u32::from(info & (HAS_NULLS | OTHER_MEANING)) << 16 | u32::from(kept & COUNT)
}

/// Whether a tuple can be coded as one.
pub fn is_tuple(tuple: &[u8]) -> bool {
    Parts::of(tuple).is_some()
}

/// How a key is told.
const KEY_TOLD: u64 = 0;
/// Not at all.
const KEY_OTHER: u64 = 1;
/// By a recipe that follows.
const KEY_NEW_RECIPE: u64 = 2;

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

    /// A row that an index may point to, in its parts: its layout, its attributes, and where each is.
    fn row_at(
        &mut self,
        table: Relation,
        place: RowPlace,
        row: &mut Vec<u8>,
        spans: &mut Vec<Span>,
    ) -> Option<LayoutKey> {
        let parts = keys::parts(keys::row(self.store, table, place)?)?;
        let (layout, attributes) = self.heads.layout_of(table.number, parts);
        row.clear();
        row.extend_from_slice(attributes);
        self.rows.read(layout, row, spans).then_some(layout)
    }

    /// The key of a tuple, told from its row, and appended to `out`; no if it is not told.
    fn key_of(
        &mut self,
        relation: Relation,
        place: RowPlace,
        layouts: (u32, u64),
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let Some(table) = self.keys.index(relation.number).table else { return Ok(false) };
        let mut scratch = std::mem::take(&mut self.keys.scratch);
        let told = match self.row_at(table, place, &mut scratch.row, &mut scratch.spans) {
            Some(row_layout) => self.key_by_recipe(relation, layouts, row_layout, source, &mut scratch)?,
            None => false,
        };
        if told {
            out.extend_from_slice(&scratch.key);
        }
        self.keys.scratch = scratch;
        Ok(told)
    }

    fn key_by_recipe(
        &mut self,
        relation: Relation,
        (layout, bitmap): (u32, u64),
        row_layout: LayoutKey,
        source: Option<&[u8]>,
        Scratch { row, spans, key }: &mut Scratch,
    ) -> Result<bool, Corrupt> {
        // Attributes that are left out, and only they, tell layouts of whole keys apart.
        let layout = if layout & 0xFFFF == 0 { bitmap as u32 } else { return Ok(false) };
        let like = [relation.number, 0, 5];
        let column = self.names.column(self.coder, Topic::Places, like, Kind::Symbols(Class::IndexTuples))?;
        let index = self.keys.index(relation.number);
        let known = index.recipe(layout, row_layout);
        let made = known.is_some_and(|recipe| recipe.key(row, spans, key));
        let mut new = None;
        let symbol = source.map_or(KEY_OTHER, |source| {
            if made && key == source {
                return KEY_TOLD;
            }
            let fields = self.rows.fields(row_layout);
            new = index.look_for_recipe((layout, row_layout), source, (row, spans), fields);
            if new.is_some() { KEY_NEW_RECIPE } else { KEY_OTHER }
        });
        match self.coder.symbol(column, symbol)? {
            KEY_TOLD if made => Ok(true),
            KEY_OTHER => Ok(false),
            KEY_NEW_RECIPE => {
                let column =
                    self.names.column(self.coder, Topic::Places, [0, 0, 6], Kind::Symbols(Class::Shapes))?;
                let recipe = Recipe::code(self.coder, column, new.as_ref())?;
                if !recipe.key(row, spans, key) {
                    return Err(corrupt("a key can't be made of its row"));
                }
                self.keys.index(relation.number).set_recipe(layout, row_layout, recipe);
                Ok(true)
            }
            _ => Err(corrupt("a key's form can't be")),
        }
    }

    /// Now and then, says which table the index belongs to.
    fn look_for_table(
        &mut self,
        relation: Relation,
        context: Context,
        place: RowPlace,
        source: Option<&[u8]>,
    ) -> Result<(), Corrupt> {
        let index = self.keys.index(relation.number);
        if context != Context::Record || index.table.is_some() {
            return Ok(());
        }
        if let Some(key) = source {
            index.remember(place, key);
        }
        if !index.is_time() {
            return Ok(());
        }
        let encoding = source.is_some();
        let samples: Vec<(RowPlace, Vec<u8>)> = match encoding {
            true => index.recent().map(|(place, key)| (place, key.to_vec())).collect(),
            false => Vec::new(),
        };
        let found = self.table_of(relation, &samples);
        self.table(relation, found)
    }

    /// Codes which table an index belongs to, if that is known.
    fn table(&mut self, relation: Relation, found: Option<Relation>) -> Result<(), Corrupt> {
        let column = self.names.column(self.coder, Topic::Places, [0, 0, 7], Kind::Symbols(Class::Shapes))?;
        let symbol = self.coder.symbol(column, found.map_or(0, |table| 1 + u64::from(table.number)))?;
        if symbol > 0 {
            let table =
                self.keys.table_by_number(symbol - 1).ok_or_else(|| corrupt("there is no such table"))?;
            self.keys.index(relation.number).belongs_to(table);
        }
        Ok(())
    }

    /// The table whose rows have these keys.
    fn table_of(&mut self, relation: Relation, samples: &[(RowPlace, Vec<u8>)]) -> Option<Relation> {
        const FEWEST: usize = 3;
        if samples.len() < FEWEST {
            return None;
        }
        'tables: for table in self.keys.candidates(relation) {
            let mut rows = Vec::new();
            for (place, key) in samples {
                let (mut row, mut spans) = (Vec::new(), Vec::new());
                if let Some(layout) = self.row_at(table, *place, &mut row, &mut spans) {
                    rows.push((layout, &key[..], row, spans));
                }
            }
            if rows.len() < FEWEST || rows.len() * 2 < samples.len() {
                continue;
            }
            let layouts: Vec<LayoutKey> = rows.iter().map(|row| row.0).collect();
            for layout in layouts {
                let alike = rows.iter().filter(|row| row.0 == layout);
                let alike = alike.map(|(_, key, row, spans)| (*key, &row[..], &spans[..]));
                if Recipe::of(alike, self.rows.fields(layout)).is_none() {
                    continue 'tables;
                }
            }
            return Some(table);
        }
        None
    }

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
            let units = keys::code_units(self.coder, column, units.as_deref())?;
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

/// The tuples of a page that have all their key and no null in it, with the place of each one's first row.
fn whole_keys(page: &Page) -> Vec<(RowPlace, &[u8])> {
    let whole = |number: u16| {
        let tuple = page.item(number)?;
        let parts = Parts::of(tuple).filter(|parts| parts.bitmap.is_empty())?;
        let other = u16_at(tuple, 6) & OTHER_MEANING != 0;
        let place = RowPlace::of(if other { parts.list } else { tuple })?;
        Some((place, parts.key))
    };
    (1..=page.items()).filter_map(whole).collect()
}

/// Adds a tuple to what encoding sees ahead.
pub fn plan(plan: &mut Plan, relation: walden_format::record::RelFileLocator, tuple: &[u8]) {
    if let Some(parts) = Parts::of(tuple) {
        let layout = layout(u16_at(tuple, 6), u16_at(tuple, 4));
        plan.add(PlanHead { relation, layout, bitmap: parts.bitmap }, parts.key);
    }
}
