//! Keys of index tuples, told from the table's rows.
//!
//! An index tuple says where its row is. The row is on a replayed page, if that page is known, and the key is made of its
//! attributes: which ones, and in which order, is a *recipe*, found by encoding and stored. In a new index, which row comes
//! next is told, too: the one whose key is the next in the order of all rows.

use std::collections::VecDeque;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;
use walden_format::record::Fork;
use walden_redo::page::{ItemState, Page};
use walden_redo::store::{BlockKey, PageStore};

use super::gin::Pending;
use super::heap::{Old, Relation};
use super::rows::LayoutKey;
use super::schema::{Field, Span, Varlena, aligned};
use crate::columns::{Coder, Column};
use crate::{Corrupt, corrupt};

/// Where a row is: block and line pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowPlace {
    /// The block.
    pub block: u32,
    /// The line pointer's number.
    pub number: u16,
}

impl RowPlace {
    /// Bytes of one (`ItemPointerData`).
    pub const BYTES: usize = 6;

    /// Whether it is right after another one, on its page or first on the next.
    pub fn is_after(self, other: RowPlace) -> bool {
        let (next, number) = (other.block.wrapping_add(1), other.number.wrapping_add(1));
        (self.block == other.block && self.number == number) || (self.block == next && self.number == 1)
    }

    /// From its bytes, if there are as many.
    pub fn of(bytes: &[u8]) -> Option<RowPlace> {
        bytes.first_chunk().copied().map(RowPlace::from_bytes)
    }

    /// From its bytes.
    pub fn from_bytes([a, b, c, d, e, f]: [u8; RowPlace::BYTES]) -> RowPlace {
        let half = |low, high| u16::from_le_bytes([low, high]);
        RowPlace { block: u32::from(half(a, b)) << 16 | u32::from(half(c, d)), number: half(e, f) }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; RowPlace::BYTES] {
        let mut bytes = [0; RowPlace::BYTES];
        bytes[0..2].copy_from_slice(&((self.block >> 16) as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(self.block as u16).to_le_bytes());
        bytes[4..6].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }
}

/// What is known of indexes and the tables that they belong to, on both sides.
#[derive(Default)]
pub struct Keys {
    /// By number: relations are numbered from 0 on.
    indexes: Vec<Index>,
    /// Tables in the order in which they were met, each once.
    tables: Vec<Relation>,
    /// By number, whether it is in there.
    is_table: Vec<bool>,
    inserted: FxHashMap<u32, Inserted>,
    /// The row that a record put into a table last.
    pub latest: Option<RowPlace>,
    /// Keys of GIN indexes that have no entries yet.
    pub pending: Pending,
    /// Of the index that was built last.
    pub order: Option<Order>,
    /// Whether encoding leaves out what saves little for the time that it takes.
    pub in_haste: bool,
    /// Rows that may still be put in order: sorting takes time that a file has to earn.
    budget: usize,
    /// Room for the next key.
    pub scratch: Scratch,
}

/// A row, where its fields are, and the key that is made of it.
#[derive(Default)]
pub struct Scratch {
    /// The row's attributes.
    pub row: Vec<u8>,
    /// Where they are.
    pub spans: Vec<Span>,
    /// The key.
    pub key: Vec<u8>,
}

/// An index.
#[derive(Default)]
pub struct Index {
    /// Its table.
    pub table: Option<Relation>,
    /// How keys are made, by the tuple's layout and the row's.
    recipes: FxHashMap<(u32, LayoutKey), Recipe>,
    /// Where in its table's latest rows the last tuple's was.
    at: u64,
    /// Tuples so far.
    tuples: u64,
    /// What encoding has seen: tuples, and by layouts those that no recipe told.
    recent: VecDeque<(RowPlace, Vec<u8>)>,
    untold: FxHashMap<(u32, LayoutKey), Untold>,
    /// How many recipes there were when the order was made, and how often it was.
    ordered: (usize, u32),
    missed: u32,
}

#[derive(Default)]
struct Untold {
    samples: VecDeque<Sample>,
    count: u32,
}

/// A key and the row that it is made from.
struct Sample {
    key: Vec<u8>,
    row: Vec<u8>,
    spans: Vec<Span>,
}

/// The rows that records put into a table lately.
#[derive(Default)]
struct Inserted {
    places: VecDeque<RowPlace>,
    /// Those that were forgotten.
    gone: u64,
}

impl Inserted {
    const MOST: usize = 4096;

    fn get(&self, at: u64) -> Option<RowPlace> {
        self.places.get(usize::try_from(at.checked_sub(self.gone)?).ok()?).copied()
    }

    fn end(&self) -> u64 {
        self.gone + self.places.len() as u64
    }
}

/// Samples that encoding keeps.
const SAMPLES: usize = 8;
/// Tuples that are not told, of a layout, after which encoding looks for another recipe only now and then.
const PATIENCE: u32 = 24;

impl Keys {
    /// Before a segment of so many bytes.
    pub fn start(&mut self, bytes: usize) {
        const MOST: usize = 64 << 20;
        self.budget = (self.budget + bytes).min(MOST);
    }

    /// A table's row was coded.
    pub fn table(&mut self, table: Relation) {
        let at = table.number as usize;
        if at >= self.is_table.len() {
            self.is_table.resize(at + 1, false);
        }
        if !std::mem::replace(&mut self.is_table[at], true) {
            self.tables.push(table);
        }
    }

    /// A record put a row there.
    pub fn inserted(&mut self, table: u32, place: RowPlace) {
        self.latest = Some(place);
        let inserted = self.inserted.entry(table).or_default();
        if inserted.places.len() == Inserted::MOST {
            inserted.places.pop_front();
            inserted.gone += 1;
        }
        inserted.places.push_back(place);
    }

    /// An index, by its number.
    pub fn index(&mut self, number: u32) -> &mut Index {
        let at = number as usize;
        if at >= self.indexes.len() {
            self.indexes.resize_with(at + 1, Index::default);
        }
        &mut self.indexes[at]
    }

    /// Tables that the index may belong to, those met last first.
    pub fn candidates(&self, index: Relation) -> Vec<Relation> {
        const MOST: usize = 512;
        let of = |table: &&Relation| table.locator.database == index.locator.database;
        self.tables.iter().rev().filter(of).take(MOST).copied().collect()
    }

    /// A table by its number.
    pub fn table_by_number(&self, number: u64) -> Option<Relation> {
        self.tables.iter().find(|table| u64::from(table.number) == number).copied()
    }

    /// The rows that an index's next tuple in a record is probably for: the one after the last tuple's, and the latest.
    pub fn expected(&self, index: u32) -> [Option<RowPlace>; 2] {
        let known = self.indexes.get(index as usize).and_then(|index| Some((index, index.table?)));
        let Some((index, inserted)) =
            known.and_then(|(index, table)| Some((index, self.inserted.get(&table.number)?)))
        else {
            return [None; 2];
        };
        [inserted.get(index.at), inserted.get(inserted.end().wrapping_sub(1))]
    }

    /// An index's tuple was for this row, as it was expected or not.
    pub fn used(&mut self, index: u32, which: Option<usize>) {
        let Some(index) = self.indexes.get_mut(index as usize) else { return };
        match which {
            Some(0) => index.at += 1,
            Some(_) => {
                let inserted = index.table.and_then(|table| self.inserted.get(&table.number));
                index.at = inserted.map_or(0, Inserted::end);
            }
            None => {}
        }
    }

    /// Takes rows off the budget, if they are within.
    pub fn allows(&mut self, rows: usize) -> bool {
        let left = self.budget.checked_sub(rows);
        self.budget = left.unwrap_or(0);
        left.is_some()
    }
}

impl Index {
    /// Counts a tuple; whether its table may be told now.
    pub fn is_time(&mut self) -> bool {
        self.tuples += 1;
        self.tuples >= 4 && self.tuples.is_power_of_two()
    }

    /// Remembers a tuple, when encoding.
    pub fn remember(&mut self, place: RowPlace, key: &[u8]) {
        if self.recent.len() == SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back((place, key.to_vec()));
    }

    /// What was remembered.
    pub fn recent(&self) -> impl Iterator<Item = (RowPlace, &[u8])> {
        self.recent.iter().map(|(place, key)| (*place, &key[..]))
    }

    /// Gives the index another table.
    pub fn belongs_to(&mut self, table: Relation) {
        self.table = Some(table);
        self.recipes.clear();
        self.untold.clear();
        self.at = 0;
    }

    /// How the keys of a layout are made of rows of a layout.
    pub fn recipe(&self, layout: u32, row: LayoutKey) -> Option<&Recipe> {
        self.recipes.get(&(layout, row))
    }

    /// Replaces it.
    pub fn set_recipe(&mut self, layout: u32, row: LayoutKey, recipe: Recipe) {
        /// A row of another layout has its key made in another way, and there are only so many ways.
        const MOST: usize = 4096;
        if self.recipes.len() < MOST {
            self.recipes.insert((layout, row), recipe);
        }
    }

    /// A recipe for a tuple that was not told, and for the last such ones.
    pub fn look_for_recipe(
        &mut self,
        (layout, row_layout): (u32, LayoutKey),
        key: &[u8],
        (row, spans): (&[u8], &[Span]),
        fields: &[Field],
    ) -> Option<Recipe> {
        let untold = self.untold.entry((layout, row_layout)).or_default();
        untold.count += 1;
        if untold.count > PATIENCE && !untold.count.is_power_of_two() {
            return None;
        }
        if untold.samples.len() == SAMPLES {
            untold.samples.pop_front();
        }
        untold.samples.push_back(Sample { key: key.to_vec(), row: row.to_vec(), spans: spans.to_vec() });
        Recipe::from_samples(untold.samples.make_contiguous(), fields)
    }

    /// Whether encoding should put the table's rows in order (again).
    pub fn wants_order(&self) -> bool {
        const OFTEN: u32 = 6;
        let (recipes, times) = self.ordered;
        let known = self.recipes.len();
        known > 0 && times < OFTEN && (times == 0 || (known > recipes && self.missed >= 32 << times))
    }

    /// The order was made.
    pub fn is_ordered(&mut self) {
        self.ordered = (self.recipes.len(), self.ordered.1 + 1);
        self.missed = 0;
    }

    /// The places of so many tuples were not told by the order.
    pub fn missed(&mut self, tuples: u32) {
        self.missed = self.missed.saturating_add(tuples);
    }
}

/// A row that an index points to, on its page; a redirected one where it is now.
pub fn item(page: &Page, number: u16) -> Option<&[u8]> {
    let pointer = page.line_pointer(number)?;
    match pointer.state() {
        ItemState::Normal => page.item(number),
        ItemState::Redirect => {
            let to = pointer.offset();
            (page.line_pointer(to)?.state() == ItemState::Normal).then(|| page.item(to))?
        }
        _ => None,
    }
}

/// A table's row, as an item on its page, if that is known.
pub fn row(store: &mut PageStore, table: Relation, place: RowPlace) -> Option<&[u8]> {
    let key = BlockKey { relation: table.locator, fork: Fork::MAIN, block: place.block };
    let slot = store.find(key)?;
    item(store.page(slot)?, place.number)
}

/// Its parts.
pub fn parts(item: &[u8]) -> Option<Old<'_>> {
    Old::of(item)
}

/// A part of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    /// A varlena.
    Whole { field: u16 },
    /// Bytes of a field of fixed width, at an aligned place.
    Part { field: u16, offset: u16, width: u16, align: u8 },
}

/// How a key is made of a row's fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe(Vec<Piece>);

impl Recipe {
    const MAX_PIECES: usize = 64;

    /// The key of a row; no if it can't be made.
    pub fn key(&self, row: &[u8], spans: &[Span], out: &mut Vec<u8>) -> bool {
        out.clear();
        for piece in &self.0 {
            match *piece {
                Piece::Whole { field } => {
                    let Some(span) = spans.get(usize::from(field)) else { return false };
                    match span.kind {
                        Varlena::Short => {}
                        Varlena::Long | Varlena::Compressed => pad(out, 4),
                        Varlena::External => return false,
                    }
                    out.extend_from_slice(&row[span.start..span.end]);
                }
                Piece::Part { field, offset, width, align } => {
                    pad(out, usize::from(align));
                    let bytes = spans.get(usize::from(field)).and_then(|span| {
                        let from = span.start + usize::from(offset);
                        row[..span.end].get(from..from + usize::from(width))
                    });
                    let Some(bytes) = bytes else { return false };
                    out.extend_from_slice(bytes);
                }
            }
        }
        pad(out, 8);
        true
    }

    /// The recipe by which all these keys are made.
    fn from_samples(samples: &[Sample], fields: &[Field]) -> Option<Recipe> {
        let mut pieces = Vec::new();
        let mut steps = 600;
        let at = vec![0; samples.len()];
        next_piece(samples, fields, &at, &mut pieces, &mut steps).then_some(Recipe(pieces))
    }

    /// The same for keys and rows at hand.
    pub fn of<'a>(
        samples: impl Iterator<Item = (&'a [u8], &'a [u8], &'a [Span])>,
        fields: &[Field],
    ) -> Option<Recipe> {
        let sample = |(key, row, spans): (&[u8], &[u8], &[Span])| Sample {
            key: key.to_vec(),
            row: row.to_vec(),
            spans: spans.to_vec(),
        };
        let samples: Vec<Sample> = samples.map(sample).collect();
        Recipe::from_samples(&samples, fields)
    }

    /// Codes a recipe.
    pub fn code<S: Coder>(coder: &mut S, column: Column, source: Option<&Recipe>) -> Result<Recipe, Corrupt> {
        let mut pieces = Vec::new();
        loop {
            // 0 ends the recipe; 1 is a varlena; more is 1 + the width of a part.
            let piece = source.and_then(|recipe| recipe.0.get(pieces.len()));
            let code = match piece {
                None => 0,
                Some(Piece::Whole { .. }) => 1,
                Some(Piece::Part { width, .. }) => 1 + u64::from(*width),
            };
            let code = coder.symbol(column, code)?;
            if code == 0 {
                return Ok(Recipe(pieces));
            }
            if pieces.len() == Recipe::MAX_PIECES {
                return Err(corrupt("a key can't have so many parts"));
            }
            let wrong = Corrupt("a key's part can't be");
            let mut number =
                |value: u16| u16::try_from(coder.symbol(column, value.into())?).map_err(|_| wrong);
            let field = number(match piece {
                Some(Piece::Whole { field } | Piece::Part { field, .. }) => *field,
                None => 0,
            })?;
            pieces.push(if code == 1 {
                Piece::Whole { field }
            } else {
                let (offset, align) = match piece {
                    Some(Piece::Part { offset, align, .. }) => (*offset, align.trailing_zeros() as u16),
                    _ => (0, 0),
                };
                let (offset, align) = (number(offset)?, number(align)?);
                let width = u16::try_from(code - 1).map_err(|_| wrong)?;
                Piece::Part {
                    field,
                    offset,
                    width,
                    align: if align < 4 { 1 << align } else { return Err(wrong) },
                }
            });
        }
    }
}

fn pad(out: &mut Vec<u8>, align: usize) {
    out.resize(aligned(out.len(), align), 0);
}

fn is_empty(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Goes on with a recipe that made the keys so far.
fn next_piece(
    samples: &[Sample],
    fields: &[Field],
    at: &[usize],
    pieces: &mut Vec<Piece>,
    steps: &mut u32,
) -> bool {
    let ends = |(sample, &at): (&Sample, &usize)| {
        at.next_multiple_of(8) == sample.key.len() && is_empty(&sample.key[at..])
    };
    if samples.iter().zip(at).all(ends) {
        return true;
    }
    if *steps == 0 || pieces.len() == Recipe::MAX_PIECES {
        return false;
    }
    *steps -= 1;
    for (field, _) in fields.iter().enumerate().filter(|(_, field)| **field == Field::Varlena) {
        let mut ahead = Vec::with_capacity(at.len());
        for (sample, &at) in samples.iter().zip(at) {
            let Some(span) = sample.spans.get(field) else { break };
            let start = match span.kind {
                Varlena::Short => at,
                Varlena::Long | Varlena::Compressed => at.next_multiple_of(4),
                Varlena::External => break,
            };
            let value = &sample.row[span.start..span.end];
            if !sample.key.get(start..).is_some_and(|rest| rest.starts_with(value))
                || !is_empty(&sample.key[at..start])
            {
                break;
            }
            ahead.push(start + value.len());
        }
        if ahead.len() == at.len() {
            pieces.push(Piece::Whole { field: field as u16 });
            if next_piece(samples, fields, &ahead, pieces, steps) {
                return true;
            }
            pieces.pop();
        }
    }
    for align in [8, 4, 2, 1_usize] {
        let starts: Vec<usize> = at.iter().map(|&at| aligned(at, align)).collect();
        let gaps = samples.iter().zip(at.iter().zip(&starts));
        if gaps
            .clone()
            .any(|(sample, (&at, &start))| start >= sample.key.len() || !is_empty(&sample.key[at..start]))
        {
            continue;
        }
        // A smaller alignment is tried only where it leads to another place.
        if align > 1
            && at.iter().all(|at| at.is_multiple_of(align))
            && align < 8
            && at.iter().all(|at| at.is_multiple_of(8))
        {
            continue;
        }
        let mut parts = parts_at(samples, fields, &starts);
        parts.sort_by_key(|&(_, _, width)| std::cmp::Reverse(width));
        for &(field, offset, longest) in parts.iter().take(4) {
            let shorter = [8, 4, 2, 1].into_iter().filter(|&width| width < longest);
            for width in std::iter::once(longest).chain(shorter) {
                let ahead: Vec<usize> = starts.iter().map(|start| start + width).collect();
                pieces.push(Piece::Part {
                    field: field as u16,
                    offset: offset as u16,
                    width: width as u16,
                    align: align as u8,
                });
                if next_piece(samples, fields, &ahead, pieces, steps) {
                    return true;
                }
                pieces.pop();
                if *steps == 0 {
                    return false;
                }
            }
        }
    }
    false
}

/// Where in fields of fixed width all samples have what their keys have at these places, and how many bytes of it.
fn parts_at(samples: &[Sample], fields: &[Field], starts: &[usize]) -> Vec<(usize, usize, usize)> {
    let mut parts = Vec::new();
    for (number, field) in fields.iter().enumerate() {
        let Field::Fixed { width, .. } = field else { continue };
        for offset in 0..usize::from(*width) {
            let mut longest = usize::from(*width) - offset;
            for (sample, &start) in samples.iter().zip(starts) {
                let Some(span) = sample.spans.get(number) else { return parts };
                let bytes = &sample.row[span.start + offset..span.end];
                let same = bytes.iter().zip(&sample.key[start..]).take_while(|(row, key)| row == key).count();
                longest = longest.min(same);
                if longest == 0 {
                    break;
                }
            }
            if longest > 0 {
                parts.push((number, offset, longest));
            }
        }
    }
    parts
}

/// A part of a key that is compared by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Unit {
    /// A number of 8 bytes with a sign.
    Long = 1,
    /// One of 4 bytes.
    Integer = 2,
    /// One of 2 bytes.
    Short = 3,
    /// A floating-point number of 8 bytes.
    Double = 4,
    /// A text compared by its bytes.
    Text = 5,
    /// 16 bytes, as they are.
    Bytes16 = 6,
    /// 1 byte.
    Byte = 7,
    /// A number of 4 bytes without a sign.
    Unsigned = 8,
}

const UNITS: [Unit; 8] = [
    Unit::Long,
    Unit::Integer,
    Unit::Unsigned,
    Unit::Double,
    Unit::Bytes16,
    Unit::Text,
    Unit::Short,
    Unit::Byte,
];

impl Unit {
    fn from_code(code: u64) -> Option<Unit> {
        UNITS.into_iter().find(|unit| *unit as u64 == code)
    }

    /// Appends what this part of the key is in a form that compares byte by byte; where the next one begins.
    fn put(self, key: &[u8], at: usize, out: &mut Vec<u8>) -> Option<usize> {
        let width = match self {
            Unit::Long | Unit::Double => 8,
            Unit::Integer | Unit::Unsigned => 4,
            Unit::Short => 2,
            Unit::Byte => 1,
            Unit::Bytes16 => {
                out.extend_from_slice(key.get(at..at + 16)?);
                return Some(at + 16);
            }
            Unit::Text => {
                let &first = key.get(at)?;
                let (start, end) = if first & 1 == 1 {
                    (at + 1, at + usize::from(first >> 1))
                } else {
                    let start = at.next_multiple_of(4);
                    let header = u32::from_le_bytes(*key.get(start..)?.first_chunk()?);
                    if header & 3 != 0 {
                        return None;
                    }
                    (start + 4, start.checked_add((header >> 2) as usize)?)
                };
                out.extend_from_slice(key.get(start..end)?);
                out.push(0);
                return Some(end);
            }
        };
        let start = aligned(at, width);
        let bytes = key.get(start..start + width)?;
        if !is_empty(&key[at..start]) {
            return None;
        }
        let from = out.len();
        out.extend(bytes.iter().rev());
        match self {
            Unit::Long | Unit::Integer | Unit::Short => out[from] ^= 0x80,
            Unit::Double if out[from] & 0x80 != 0 => out[from..].iter_mut().for_each(|byte| *byte = !*byte),
            Unit::Double => out[from] |= 0x80,
            _ => {}
        }
        Some(start + width)
    }

    /// The units by which these keys are in order.
    pub fn of(keys: &[&[u8]]) -> Option<Vec<Unit>> {
        let mut units = Vec::new();
        let at = vec![0; keys.len()];
        let equal = vec![true; keys.len()];
        next_unit(keys, &at, &equal, &mut units).then_some(units)
    }
}

fn next_unit(keys: &[&[u8]], at: &[usize], equal: &[bool], units: &mut Vec<Unit>) -> bool {
    const MOST: usize = 8;
    let ends = |(key, &at): (&&[u8], &usize)| at.next_multiple_of(8) == key.len() && is_empty(&key[at..]);
    if !units.is_empty() && keys.iter().zip(at).all(ends) {
        return true;
    }
    if units.len() == MOST {
        return false;
    }
    for unit in UNITS {
        let (mut ahead, mut still) = (Vec::with_capacity(at.len()), Vec::with_capacity(at.len()));
        let mut last = Vec::new();
        for (index, (key, &at)) in keys.iter().zip(at).enumerate() {
            let mut put = Vec::new();
            let Some(next) = unit.put(key, at, &mut put) else { break };
            if index > 0 && equal[index] && last > put {
                break;
            }
            ahead.push(next);
            still.push(index == 0 || (equal[index] && last == put));
            last = put;
        }
        if ahead.len() < keys.len() {
            continue;
        }
        units.push(unit);
        if next_unit(keys, &ahead, &still, units) {
            return true;
        }
        units.pop();
    }
    false
}

/// Codes units.
pub fn code_units<S: Coder>(
    coder: &mut S,
    column: Column,
    source: Option<&[Unit]>,
) -> Result<Vec<Unit>, Corrupt> {
    const MOST: u64 = 64;
    let count = coder.symbol(column, source.map_or(0, |units| units.len() as u64))?;
    if count > MOST {
        return Err(corrupt("a key can't have so many parts"));
    }
    (0..count as usize)
        .map(|at| {
            let code = coder.symbol(column, source.map_or(0, |units| units[at] as u64))?;
            Unit::from_code(code).ok_or_else(|| corrupt("keys can't be in such an order"))
        })
        .collect()
}

/// A table's rows in the order of an index.
pub struct Order {
    /// The index.
    pub index: u32,
    entries: Vec<Entry>,
    /// What entries' keys have after their beginnings.
    rests: Vec<u8>,
    /// The row that is next.
    at: usize,
    /// Which each row is, by its place: made when encoding asks first.
    by_place: OnceLock<ByPlace>,
}

/// Rows by their places.
struct ByPlace {
    sorted: Vec<(RowPlace, u32)>,
    /// Which blocks have any, by the lowest bits of their numbers: most that are asked for have none.
    blocks: Box<[u64; ByPlace::BLOCKS / 64]>,
}

impl ByPlace {
    const BLOCKS: usize = 1 << 16;

    fn new(entries: &[Entry]) -> ByPlace {
        let mut blocks = Box::new([0; ByPlace::BLOCKS / 64]);
        for entry in entries {
            let at = entry.place.block as usize % ByPlace::BLOCKS;
            blocks[at / 64] |= 1 << (at % 64);
        }
        let mut sorted: Vec<(RowPlace, u32)> = entries.iter().map(|entry| entry.place).zip(0..).collect();
        sorted.sort_unstable();
        ByPlace { sorted, blocks }
    }

    fn may_have(&self, block: u32) -> bool {
        let at = block as usize % ByPlace::BLOCKS;
        self.blocks[at / 64] >> (at % 64) & 1 != 0
    }
}

struct Entry {
    start: u128,
    place: RowPlace,
    rest: u32,
    rest_len: u16,
}

const _: () = assert!(size_of::<Entry>() <= Order::ENTRY_BYTES);

impl Order {
    /// Bytes that an order may take.
    const MAX_BYTES: usize = 96 << 20;
    /// Bytes that count for a row. Both sides must come to the same limit, whatever the machine makes of [`Entry`].
    const ENTRY_BYTES: usize = 32;
    /// Rows that may be left out at once.
    const FARTHEST: usize = 2048;

    /// Nothing yet.
    pub fn new(index: u32) -> Order {
        Order { index, entries: Vec::new(), rests: Vec::new(), at: 0, by_place: OnceLock::new() }
    }

    /// Adds a row with its key; no if there is no room for more.
    pub fn add(&mut self, units: &[Unit], key: &[u8], place: RowPlace, scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        let mut at = 0;
        for unit in units {
            match unit.put(key, at, scratch) {
                Some(next) => at = next,
                None => return true,
            }
        }
        let mut start = [0; 16];
        let len = scratch.len().min(16);
        start[..len].copy_from_slice(&scratch[..len]);
        let rest = &scratch[len..];
        let bytes = (self.entries.len() + 1) * Order::ENTRY_BYTES + self.rests.len() + rest.len();
        let Some(rest_len) = u16::try_from(rest.len()).ok().filter(|_| bytes <= Order::MAX_BYTES) else {
            return false;
        };
        let start = u128::from_be_bytes(start);
        self.entries.push(Entry { start, place, rest: self.rests.len() as u32, rest_len });
        self.rests.extend_from_slice(rest);
        true
    }

    /// Puts the rows in order.
    pub fn sort(&mut self) {
        let Order { entries, rests, .. } = self;
        let rest = |entry: &Entry| {
            let from = entry.rest as usize;
            &rests[from..from + usize::from(entry.rest_len)]
        };
        entries.sort_unstable_by(|a, b| {
            a.start.cmp(&b.start).then_with(|| rest(a).cmp(rest(b))).then_with(|| a.place.cmp(&b.place))
        });
    }

    /// How many rows are left out before this one, if it is one of the next.
    pub fn distance(&self, place: RowPlace) -> Option<u64> {
        // Most are.
        if self.entries.get(self.at).is_some_and(|next| next.place == place) {
            return Some(0);
        }
        let skip = self.number(place, self.at)? - self.at;
        (skip < Order::FARTHEST).then_some(skip as u64)
    }

    /// Which row this is, from one on. There may be very many, of which each is asked for.
    fn number(&self, place: RowPlace, from: usize) -> Option<usize> {
        let by_place = self.by_place.get_or_init(|| ByPlace::new(&self.entries));
        if !by_place.may_have(place.block) {
            return None;
        }
        let first = (place, u32::try_from(from).ok()?);
        let sorted = &by_place.sorted;
        let found = sorted.get(sorted.partition_point(|entry| *entry < first))?;
        (found.0 == place).then_some(found.1 as usize)
    }

    /// So many rows after those that are left out.
    pub fn peek(&self, skip: u64, count: usize) -> impl Iterator<Item = RowPlace> {
        let from = self.at.saturating_add(usize::try_from(skip).unwrap_or(usize::MAX));
        self.entries.iter().skip(from).take(count).map(|entry| entry.place)
    }

    /// Which row this is.
    pub fn find(&self, place: RowPlace) -> Option<u64> {
        self.number(place, 0).map(|at| at as u64)
    }

    /// Goes to a row.
    pub fn start_at(&mut self, at: u64) {
        self.at = usize::try_from(at).unwrap_or(usize::MAX);
    }

    /// The next row but so many; it and those before it are done with.
    pub fn take(&mut self, skip: u64) -> Option<RowPlace> {
        let skip = usize::try_from(skip).ok().filter(|&skip| skip < Order::FARTHEST)?;
        let place = self.entries.get(self.at.checked_add(skip)?)?.place;
        self.at += skip + 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Class, Decoder, Encoder, Kind};
    use crate::entropy::{Packer, Unpacker};

    const FIELDS: [Field; 4] = [
        Field::Fixed { width: 12, align: 1 },
        Field::Varlena,
        Field::Fixed { width: 8, align: 8 },
        Field::Varlena,
    ];

    /// A row of bigint, integer, text, bigint, text; and where its fields are.
    fn row(number: u64) -> (Vec<u8>, Vec<Span>) {
        let mut row = number.wrapping_mul(0x1234_5678_9ABC_DEF1).to_le_bytes().to_vec();
        row.extend((number as u32 % 3).to_le_bytes());
        let mut spans = vec![Span { start: 0, end: 12, kind: Varlena::Short }];
        let mut varlena = |row: &mut Vec<u8>, text: &str| {
            let start = row.len();
            row.push(((text.len() + 1) << 1) as u8 | 1);
            row.extend(text.bytes());
            spans.push(Span { start, end: row.len(), kind: Varlena::Short });
        };
        varlena(&mut row, &"ab".repeat(number as usize % 7));
        pad(&mut row, 8);
        let at = row.len();
        row.extend((number << 20 | 77).to_le_bytes());
        varlena(&mut row, &format!("name {number}"));
        spans.insert(2, Span { start: at, end: at + 8, kind: Varlena::Short });
        (row, spans)
    }

    /// The key (text, integer, bigint).
    fn key(number: u64) -> Vec<u8> {
        let text = format!("name {number}");
        let mut key = vec![((text.len() + 1) << 1) as u8 | 1];
        key.extend(text.bytes());
        pad(&mut key, 4);
        key.extend((number as u32 % 3).to_le_bytes());
        pad(&mut key, 8);
        key.extend(number.wrapping_mul(0x1234_5678_9ABC_DEF1).to_le_bytes());
        key
    }

    #[test]
    fn a_recipe_is_found_and_makes_other_keys() {
        let known: Vec<_> = [7, 123_456, 99].map(|number| (key(number), row(number))).into();
        let samples = known.iter().map(|(key, (row, spans))| (&key[..], &row[..], &spans[..]));
        let recipe = Recipe::of(samples, &FIELDS).expect("a recipe");
        let mut made = Vec::new();
        for number in 0..500 {
            let (row, spans) = row(number * 31);
            assert!(recipe.key(&row, &spans, &mut made));
            assert_eq!(made, key(number * 31));
        }
        assert!(!recipe.key(&[], &[], &mut made));
    }

    #[test]
    fn keys_that_are_not_of_the_row_have_no_recipe() {
        let known: Vec<_> = [7, 8, 9].map(|number| (key(number + 1000), row(number))).into();
        let samples = known.iter().map(|(key, (row, spans))| (&key[..], &row[..], &spans[..]));
        assert_eq!(Recipe::of(samples, &FIELDS), None);
    }

    #[test]
    fn recipes_and_units_come_back() {
        let known = [(key(5), row(5)), (key(60), row(60))];
        let samples = known.iter().map(|(key, (row, spans))| (&key[..], &row[..], &spans[..]));
        let recipe = Recipe::of(samples, &FIELDS).expect("a recipe");
        let units = [Unit::Text, Unit::Integer, Unit::Long];
        let mut coder = Encoder::default();
        let column = coder.column(Kind::Symbols(Class::Shapes)).unwrap();
        assert_eq!(Recipe::code(&mut coder, column, Some(&recipe)).unwrap(), recipe);
        code_units(&mut coder, column, Some(&units)).unwrap();
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 16).unwrap();
        let column = coder.column(Kind::Symbols(Class::Shapes)).unwrap();
        assert_eq!(Recipe::code(&mut coder, column, None).unwrap(), recipe);
        assert_eq!(code_units(&mut coder, column, None).unwrap(), units);
    }

    #[test]
    fn rows_are_in_the_order_of_their_keys() {
        let number = |value: i64| value.to_le_bytes().to_vec();
        let values = [-5_i64, -1, 0, 3, 1 << 40];
        let sorted: Vec<Vec<u8>> = values.iter().map(|&value| number(value)).collect();
        let units = Unit::of(&sorted.iter().map(|key| &key[..]).collect::<Vec<_>>()).expect("an order");
        assert_eq!(units, [Unit::Long]);
        let mut order = Order::new(1);
        let place = |value: i64| RowPlace { block: value as u32, number: 1 };
        for &value in values.iter().rev() {
            assert!(order.add(&units, &number(value), place(value), &mut Vec::new()));
        }
        order.sort();
        assert_eq!(order.distance(place(0)), Some(2));
        assert_eq!(order.take(1), Some(place(-1)));
        assert_eq!(order.take(0), Some(place(0)));
        assert_eq!(order.distance(place(-5)), None);
        assert_eq!(order.take(2), None);
    }
}
