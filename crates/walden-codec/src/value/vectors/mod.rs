//! Codes values of type `tsvector`, and the texts that they were created from.
//!
//! A `tsvector` has words in alphabetical order, each with its positions in the text. It is coded as its
//! words in the order of positions, which takes no more space than a text. The text itself is coded as
//! the characters between the words.
//!
//! The layout is in [`walden_redo::page::tsvector`].

mod residual;
mod vector;

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use self::residual::{residual_of, text_from_residual};
pub use self::vector::Words;
use self::vector::{Vector, WordList, parse_vector};
use super::json::{self, Json};
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::{Corrupt, corrupt};

/// Maximum length of vectors and texts that are coded by words. A byte of a residual may represent a word of
/// 2 kB, so without a limit a small file could take any amount of memory.
const MAX_BYTES: usize = 16 << 20;

/// The latest vectors, from whose words texts are predicted. Encoding and decoding keep the same vectors.
#[derive(Default)]
pub struct Vectors {
    /// Latest last.
    recent: VecDeque<WordList>,
    columns: Option<Columns>,
    /// Columns of `jsonb` values, by the field's column.
    json: FxHashMap<Column, json::Columns>,
}

#[derive(Clone, Copy)]
struct Columns {
    value_forms: Column,
    value_lengths: Column,
    value_words: Column,
    value_residuals: Column,
}

/// A value that is coded by its structure.
pub enum StructuredValue {
    /// A vector, by its words.
    Vector(Box<Vector>),
    /// A text: the rank of the vector whose words predict it, from 0 for the latest, and the residual.
    Text(usize, Vec<u8>),
    /// A `jsonb` value, by its parts.
    Json(Json),
}

const FORM_OTHER: u64 = 0;
const FORM_VECTOR: u64 = 1;
const FORM_JSON: u64 = 2;
/// A text predicted from the latest vector. Greater numbers denote texts predicted from earlier vectors.
const FORM_TEXT: u64 = 3;

impl Vectors {
    const MAX_VECTORS: usize = 8;
    /// Minimum length of a value that is parsed as a vector or predicted as a text.
    const MIN_BYTES: usize = 64;

    /// Returns the words of the latest vectors in the order of positions, latest vector first.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.recent.iter().rev().map(|recent| &recent.text[..])
    }

    /// Returns the words of the latest vectors in alphabetical order, latest vector first.
    pub fn words(&self) -> impl Iterator<Item = Words<'_>> {
        self.recent.iter().rev().map(Words)
    }

    /// Parses a value that can be coded by its structure.
    pub fn parse(&self, value: &[u8]) -> Option<StructuredValue> {
        let json = self.parse_short(value);
        if json.is_some() {
            return json;
        }
        if value.len() < Vectors::MIN_BYTES {
            return None;
        }
        if let Some(words) = parse_vector(value) {
            return Some(StructuredValue::Vector(Box::new(words)));
        }
        self.texts()
            .enumerate()
            .find_map(|(rank, words)| Some(StructuredValue::Text(rank, residual_of(words, value)?)))
    }

    /// As [`Self::parse`], for short values: only `jsonb` is worthwhile.
    pub fn parse_short(&self, value: &[u8]) -> Option<StructuredValue> {
        Json::parse(value).map(StructuredValue::Json)
    }

    /// Codes a value by its structure. Also codes, and returns `None`, if it has none. `field` is one of its
    /// field's columns.
    ///
    /// # Errors
    /// Returns an error when decoding columns that no encoder writes.
    pub fn code<S: Coder>(
        &mut self,
        coder: &mut S,
        field: Column,
        source: Option<StructuredValue>,
    ) -> Result<Option<Vec<u8>>, Corrupt> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => *self.columns.insert(Columns {
                value_forms: coder.shared_column(Kind::Symbols(Class::TupleHeaders))?,
                value_lengths: coder.shared_column(Kind::Symbols(Class::TupleHeaders))?,
                value_words: coder.shared_column(Kind::Bytes(Class::Text))?,
                value_residuals: coder.shared_column(Kind::Bytes(Class::Text))?,
            }),
        };
        let (form, bytes) = match &source {
            None => (FORM_OTHER, &[][..]),
            Some(StructuredValue::Vector(vector)) => (FORM_VECTOR, &vector.words.text[..]),
            Some(StructuredValue::Json(_)) => (FORM_JSON, &[][..]),
            Some(StructuredValue::Text(rank, residual)) => (FORM_TEXT + *rank as u64, &residual[..]),
        };
        let form = coder.symbol(columns.value_forms, form)?;
        if form == FORM_OTHER {
            return Ok(None);
        }
        if form == FORM_JSON {
            let columns = match self.json.entry(field) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(json::Columns::new(coder)?),
            };
            let json = match &source {
                Some(StructuredValue::Json(json)) => Some(json),
                _ => None,
            };
            return Json::code(coder, columns, json).map(Some);
        }
        let len = coder.symbol(columns.value_lengths, bytes.len() as u64)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= MAX_BYTES);
        let len = len.ok_or_else(|| corrupt("cannot decode a text: expected at most 16 MB"))?;
        let mut coded = Vec::new();
        let wrong = Corrupt("cannot decode a text: expected the words of one of the latest vectors");
        if form == FORM_VECTOR {
            coder.bytes(columns.value_words, bytes, len, &mut coded)?;
            let vector = match source {
                Some(StructuredValue::Vector(vector)) => *vector,
                _ => Vector::from_words(coded).ok_or(wrong)?,
            };
            if self.recent.len() == Vectors::MAX_VECTORS {
                self.recent.pop_front();
            }
            self.recent.push_back(vector.words);
            return Ok(Some(vector.value));
        }
        coder.bytes(columns.value_residuals, bytes, len, &mut coded)?;
        let rank = usize::try_from(form - FORM_TEXT).map_err(|_| wrong)?;
        let words = self.texts().nth(rank).ok_or(wrong)?;
        Ok(Some(text_from_residual(words, &coded).ok_or(wrong)?))
    }
}
