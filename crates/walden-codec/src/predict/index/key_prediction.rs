//! Keys of index tuples, predicted from their heap tuples; and which table an index belongs to.

use super::key_mapping::Recipe;
use super::keys::Scratch;
use super::{Context, keys};
use crate::columns::{Class, Coder, Kind};
use crate::predict::TupleCoder;
use crate::predict::attributes::LayoutKey;
use crate::predict::names::Topic;
use crate::predict::relation::Relation;
use crate::tuple::schema::Span;
use crate::tuple::tid::RowPlace;
use crate::{Corrupt, corrupt};

/// How a key is told.
const KEY_TOLD: u64 = 0;

/// Not at all.
const KEY_OTHER: u64 = 1;

/// By a recipe that follows.
const KEY_NEW_RECIPE: u64 = 2;

impl<S: Coder> TupleCoder<'_, S> {
    /// A row that an index may point to, in its parts: its layout, its attributes, and where each is.
    pub fn row_at(
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
    pub fn key_of(
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

    pub fn key_by_recipe(
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
    pub fn look_for_table(
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
    pub fn table(&mut self, relation: Relation, found: Option<Relation>) -> Result<(), Corrupt> {
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
    pub fn table_of(&mut self, relation: Relation, samples: &[(RowPlace, Vec<u8>)]) -> Option<Relation> {
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
}
