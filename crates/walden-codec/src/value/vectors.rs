//! Values of type `tsvector`, and the texts that they were made from.
//!
//! A `tsvector` has words in alphabetical order, each with its positions in the text. It is coded as its words in the order
//! of positions, which takes no more than a text; and of the text itself, only what is between the words is coded.
//!
//! ```text
//! offset  width
//!      0      4  number of words
//!      4    4 n  for each word (`WordEntry` in `ts_type.h`): 1 bit: it has positions; 11 bits: length; 20 bits: offset
//!                words; each, if it has positions, followed at an even offset by their number (2 bytes) and by them
//!                (2 bytes each: 2 bits weight, 14 bits position, from 1 on)
//! ```

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::json::{self, Json};
use crate::cases::{Case, Cases};
use crate::columns::{Class, Coder, Column, Kind};
use crate::{Corrupt, corrupt};

/// Separates positions; two of them in a row: there is no word at the position between.
const SPACE: u8 = b' ';
/// Separates words at one position.
const ALSO: u8 = b'\t';
const MAX_POSITION: usize = (1 << 14) - 1;
/// Longer vectors and texts are not coded by their words: a byte of a residual may stand for a word of 2 kB, so without a limit a
/// small file could take any amount of memory.
const MAX_BYTES: usize = 16 << 20;

/// Parses a vector into its words in the order of their positions; `None` if it has words without positions or with weights,
/// or if [`Vector::from_words`] would not restore it.
fn parse_vector(vector: &[u8]) -> Option<Vector> {
    let word = |at: usize| Some(u32::from_le_bytes(*vector.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*vector.get(at..)?.first_chunk()?));
    let count = word(0)? as usize;
    // Each takes 4 bytes, and at least as many for the word and its positions.
    if count == 0 || count > vector.len() / 8 || vector.len() > MAX_BYTES {
        return None;
    }
    let words = 4 + 4 * count;
    let (mut next, mut last) = (0, &[][..]);
    let mut texts: Vec<&[u8]> = Vec::with_capacity(count);
    // Positions; below each, in the lower 32 bits, the number of the word.
    let mut all: Vec<u64> = Vec::with_capacity(2 * count);
    for number in 0..count {
        let entry = word(4 + 4 * number)?;
        let (len, at) = ((entry >> 1 & 0x7FF) as usize, (entry >> 12) as usize);
        if entry & 1 == 0 || at != next || len == 0 {
            return None;
        }
        let text = vector.get(words + at..words + at + len)?;
        if text <= last || text.iter().any(|&byte| byte == SPACE || byte == ALSO) {
            return None;
        }
        let positions_at = words + (at + len).next_multiple_of(2);
        let is_filled_up = vector.get(words + at + len..positions_at)?.iter().all(|&byte| byte == 0);
        let positions = usize::from(half(positions_at)?);
        let bytes = vector.get(positions_at + 2..positions_at + 2 + 2 * positions)?;
        let before = all.len();
        let above = |position: u16| u64::from(position) << 32 | number as u64;
        all.extend(bytes.chunks_exact(2).map(|two| above(u16::from_le_bytes([two[0], two[1]]))));
        if !is_filled_up || positions == 0 || !all[before..].is_sorted_by(|a, b| a < b) {
            return None;
        }
        texts.push(text);
        last = text;
        next = (at + len).next_multiple_of(2) + 2 + 2 * positions;
    }
    if words + next != vector.len() {
        return None;
    }
    all.sort_unstable();
    let position_of = |one: &u64| (one >> 32) as usize;
    if position_of(all.first()?) == 0 || position_of(all.last()?) > MAX_POSITION {
        return None;
    }
    let mut text = Vec::with_capacity(vector.len());
    let mut places = vec![(0, 0); count];
    let mut last = 0;
    for one in &all {
        let (position, number) = (position_of(one), *one as u32 as usize);
        if position == last {
            text.push(ALSO);
        } else {
            text.resize(text.len() + position - last - usize::from(last == 0), SPACE);
            last = position;
        }
        let place = &mut places[number];
        if place.1 == 0 {
            *place = (u32::try_from(text.len()).ok()?, texts[number].len() as u32);
        }
        text.extend_from_slice(texts[number]);
        if text.len() > vector.len() {
            return None;
        }
    }
    Some(Vector { value: vector.to_vec(), words: Recent { text, words: places } })
}

/// A vector, and the words that it is made of.
pub struct Vector {
    value: Vec<u8>,
    words: Recent,
}

/// A word in a text.
struct Word {
    at: u32,
    len: u32,
    position: u16,
}

impl Word {
    fn of<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.at as usize..][..self.len as usize]
    }
}

impl Vector {
    /// Makes a vector from its words in the order of their positions.
    fn from_words(text: Vec<u8>) -> Option<Vector> {
        let mut all: Vec<Word> = Vec::with_capacity(text.len() / 6);
        // Each word's first 8 bytes, and below them its number: mostly enough to order two words.
        let mut order: Vec<u128> = Vec::with_capacity(text.len() / 6);
        let (mut position, mut from) = (1, 0);
        for end in memchr::memchr2_iter(SPACE, ALSO, &text).chain([text.len()]) {
            if position > MAX_POSITION {
                return None;
            }
            if end > from {
                order.push(u128::from(start_of(&text[from..], end - from)) << 64 | all.len() as u128);
                let (at, len) = (u32::try_from(from).ok()?, u32::try_from(end - from).ok()?);
                all.push(Word { at, len, position: position as u16 });
            }
            position += usize::from(text.get(end) == Some(&SPACE));
            from = end + 1;
        }
        order.sort_unstable();
        let word = |one: u128| &all[one as u64 as usize];
        // Where in this order each distinct word comes first.
        let mut firsts = Vec::with_capacity(all.len());
        let mut from = 0;
        for alike in order.chunk_by_mut(|a, b| a >> 64 == b >> 64) {
            firsts.push(from);
            let text_of = |one: u128| word(one).of(&text);
            // Mostly, words with the same first 8 bytes are equal.
            if alike[1..].iter().any(|&one| text_of(one) != text_of(alike[0])) {
                alike.sort_by(|&a, &b| text_of(a).cmp(text_of(b)));
                let others = (1..alike.len()).filter(|&at| text_of(alike[at]) != text_of(alike[at - 1]));
                firsts.extend(others.map(|at| from + at));
            }
            from += alike.len();
        }
        let start = 4 + 4 * firsts.len();
        let mut value = Vec::with_capacity(start + text.len() + 3 * all.len() + 2);
        value.resize(start, 0);
        value[..4].copy_from_slice(&(firsts.len() as u32).to_le_bytes());
        let mut words = Vec::with_capacity(firsts.len());
        let ends = firsts.iter().skip(1).copied().chain([order.len()]);
        for (number, (&first, end)) in firsts.iter().zip(ends).enumerate() {
            let same = &order[first..end];
            let Word { at: place, len, .. } = *word(same[0]);
            let at = value.len() - start;
            if len > 0x7FF || at >= 1 << 20 {
                return None;
            }
            words.push((place, len));
            let entry = (at as u32) << 12 | len << 1 | 1;
            value[4 + 4 * number..8 + 4 * number].copy_from_slice(&entry.to_le_bytes());
            value.extend_from_slice(word(same[0]).of(&text));
            value.resize(value.len().next_multiple_of(2), 0);
            value.extend(u16::try_from(same.len()).ok()?.to_le_bytes());
            same.iter().for_each(|&one| value.extend(word(one).position.to_le_bytes()));
        }
        Some(Vector { value, words: Recent { text, words } })
    }
}

/// The first 8 bytes of a word as a number that compares as they do; zeros after a shorter one.
fn start_of(text: &[u8], len: usize) -> u64 {
    match text.first_chunk() {
        // What follows the word is masked out.
        Some(eight) if len < 8 => u64::from_be_bytes(*eight) & !(u64::MAX >> (8 * len)),
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut start = [0; 8];
            start[..len].copy_from_slice(&text[..len]);
            u64::from_be_bytes(start)
        }
    }
}

/// In the residual of a text: the next word as it is.
const WORD: u8 = 1;
/// The next word, and a space.
const WORD_SPACE: u8 = 2;
/// The next word with an upper-case first letter.
const CAPITALIZED: u8 = 3;
/// The same, and a space.
const CAPITALIZED_SPACE: u8 = 4;
/// The next word is not in the text here.
const SKIP: u8 = 5;
/// The next byte is literal, though it has one of these values.
const ESCAPE: u8 = 6;

/// The residual of a text that is predicted from words; `None` if it is not much shorter than the text.
fn residual_of(words: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    /// Words that are looked for at a place of the text.
    const LOOK_AHEAD: usize = 3;
    // Most texts belong to none of the vectors: their first word is another.
    let first = text.iter().position(|byte| byte.is_ascii_alphanumeric()).unwrap_or(text.len());
    if text.len() > MAX_BYTES {
        return None;
    }
    if !sequence(words).take(LOOK_AHEAD).any(|word| match_word(&text[first..], word).is_some()) {
        return None;
    }
    let mut words = sequence(words);
    let mut ahead: [&[u8]; LOOK_AHEAD] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let mut out = Vec::with_capacity(text.len() / 4);
    let (mut at, mut predicted) = (0, 0);
    let mut is_in_word = false;
    while at < text.len() {
        if !is_in_word {
            let found = (ahead.iter().enumerate())
                .find_map(|(skip, word)| Some((skip, word.len(), match_word(&text[at..], word)?)));
            if let Some((skip, len, is_capitalized)) = found {
                out.extend(std::iter::repeat_n(SKIP, skip));
                let space = text.get(at + len) == Some(&SPACE);
                out.push(match (is_capitalized, space) {
                    (false, false) => WORD,
                    (false, true) => WORD_SPACE,
                    (true, false) => CAPITALIZED,
                    (true, true) => CAPITALIZED_SPACE,
                });
                at += len + usize::from(space);
                ahead.rotate_left(skip + 1);
                ahead[LOOK_AHEAD - skip - 1..].fill_with(|| words.next().unwrap_or_default());
                predicted += len;
                is_in_word = !space;
                continue;
            }
        }
        let byte = text[at];
        is_in_word = byte.is_ascii_alphanumeric() || byte >= 0x80;
        if (WORD..=ESCAPE).contains(&byte) {
            out.push(ESCAPE);
        }
        out.push(byte);
        at += 1;
        // Most texts that do not belong to the words show it at their start.
        if at >= 96 && predicted * 8 < at || at >= 256 && predicted * 4 < at {
            return None;
        }
    }
    (predicted * 2 > text.len()).then_some(out)
}

/// Whether a text begins with a word, and if so, whether with an upper-case letter where the word has a lower-case one.
fn match_word(text: &[u8], word: &[u8]) -> Option<bool> {
    if !text.first()?.eq_ignore_ascii_case(word.first()?) {
        return None;
    }
    let start = text.get(..word.len())?;
    let after = text.get(word.len()).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80);
    if after || start.get(1..) != word.get(1..) {
        return None;
    }
    match (start[0], word[0]) {
        (a, b) if a == b => Some(false),
        (a, b) if a == b.to_ascii_uppercase() => Some(true),
        _ => None,
    }
}

/// Restores a text from words and its residual.
fn text_from_residual(words: &[u8], residual: &[u8]) -> Option<Vec<u8>> {
    let mut words = sequence(words);
    let mut out = Vec::with_capacity((residual.len() * 4).min(MAX_BYTES));
    let mut residual = residual.iter();
    while let Some(&byte) = residual.next() {
        match byte {
            WORD..=CAPITALIZED_SPACE => {
                let start = out.len();
                out.extend_from_slice(words.next()?);
                if byte >= CAPITALIZED {
                    out[start].make_ascii_uppercase();
                }
                if byte == WORD_SPACE || byte == CAPITALIZED_SPACE {
                    out.push(SPACE);
                }
            }
            SKIP => {
                words.next()?;
            }
            ESCAPE => out.push(*residual.next()?),
            _ => out.push(byte),
        }
        if out.len() > MAX_BYTES {
            return None;
        }
    }
    Some(out)
}

/// The words in the order of positions, those at one position one after the other.
fn sequence(words: &[u8]) -> impl Iterator<Item = &[u8]> {
    words.split(|&byte| byte == SPACE || byte == ALSO).filter(|word| !word.is_empty())
}

/// The latest vectors, from whose words texts are predicted; the same in both directions.
#[derive(Default)]
pub struct Vectors {
    cases: Cases,
    /// The latest last.
    recent: VecDeque<Recent>,
    columns: Option<Columns>,
    /// Columns of values of `jsonb`, by the field's column.
    json: FxHashMap<Column, json::Columns>,
}

struct Recent {
    /// Words in the order of positions.
    text: Vec<u8>,
    /// Offset and length in it of each distinct word, in alphabetical order.
    words: Vec<(u32, u32)>,
}

/// A vector's distinct words in alphabetical order.
#[derive(Clone, Copy)]
pub struct Words<'a>(&'a Recent);

impl<'a> Words<'a> {
    /// A word by its number, from 0 on.
    #[inline]
    pub fn get(self, number: usize) -> Option<&'a [u8]> {
        self.0.words.get(number).map(|&place| self.at(place))
    }

    /// The number of a word, or that of the first one after it.
    pub fn search(self, word: &[u8]) -> Result<usize, usize> {
        self.0.words.binary_search_by(|&place| self.at(place).cmp(word))
    }

    fn at(self, (at, len): (u32, u32)) -> &'a [u8] {
        &self.0.text[at as usize..at as usize + len as usize]
    }
}

#[derive(Clone, Copy)]
struct Columns {
    forms: Column,
    lengths: Column,
    words: Column,
    residuals: Column,
}

/// A value that is coded by its structure.
pub enum StructuredValue {
    /// A vector, by its words.
    Vector(Box<Vector>),
    /// A text, by the rank of the vector whose words predict it, the latest being 0, and the residual.
    Text(usize, Vec<u8>),
    /// A value of `jsonb`, by its parts.
    Json(Json),
}

const FORM_OTHER: u64 = 0;
const FORM_VECTOR: u64 = 1;
const FORM_JSON: u64 = 2;
/// A text that is predicted from the latest vector; the numbers after it, from the one before, ...
const FORM_TEXT: u64 = 3;

impl Vectors {
    const MAX_VECTORS: usize = 8;
    /// Bytes of a value that is parsed as a vector or predicted as a text.
    const MIN_BYTES: usize = 64;

    /// Leaves out the cases that are not in the set.
    pub fn set_cases(&mut self, cases: Cases) {
        self.cases = cases;
    }

    /// The latest vectors' words in the order of positions, the latest vector first.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.recent.iter().rev().map(|recent| &recent.text[..])
    }

    /// The latest vectors' words in alphabetical order, the latest vector first.
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
        if self.cases.has(Case::Tsvectors)
            && let Some(words) = parse_vector(value)
        {
            return Some(StructuredValue::Vector(Box::new(words)));
        }
        if !self.cases.has(Case::TextsOfVectors) {
            return None;
        }
        self.texts()
            .enumerate()
            .find_map(|(rank, words)| Some(StructuredValue::Text(rank, residual_of(words, value)?)))
    }

    /// The same for short values, for which only jsonb is worth it.
    pub fn parse_short(&self, value: &[u8]) -> Option<StructuredValue> {
        if !self.cases.has(Case::Jsonb) {
            return None;
        }
        Json::parse(value).map(StructuredValue::Json)
    }

    /// Codes a value by its structure; `None` if it has none, which is coded, too. `field` is one of its field's columns.
    ///
    /// # Errors
    /// Decoding: columns that no encoder writes.
    pub fn code<S: Coder>(
        &mut self,
        coder: &mut S,
        field: Column,
        source: Option<StructuredValue>,
    ) -> Result<Option<Vec<u8>>, Corrupt> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => *self.columns.insert(Columns {
                forms: coder.shared_column(Kind::Symbols(Class::TupleHeaders))?,
                lengths: coder.shared_column(Kind::Symbols(Class::TupleHeaders))?,
                words: coder.shared_column(Kind::Bytes(Class::Text))?,
                residuals: coder.shared_column(Kind::Bytes(Class::Text))?,
            }),
        };
        let (form, bytes) = match &source {
            None => (FORM_OTHER, &[][..]),
            Some(StructuredValue::Vector(vector)) => (FORM_VECTOR, &vector.words.text[..]),
            Some(StructuredValue::Json(_)) => (FORM_JSON, &[][..]),
            Some(StructuredValue::Text(rank, residual)) => (FORM_TEXT + *rank as u64, &residual[..]),
        };
        let form = coder.symbol(columns.forms, form)?;
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
        let len = coder.symbol(columns.lengths, bytes.len() as u64)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= MAX_BYTES);
        let len = len.ok_or_else(|| corrupt("cannot decode a text: expected at most 16 MB"))?;
        let mut coded = Vec::new();
        let wrong = Corrupt("cannot decode a text: expected the words of one of the latest vectors");
        if form == FORM_VECTOR {
            coder.bytes(columns.words, bytes, len, &mut coded)?;
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
        coder.bytes(columns.residuals, bytes, len, &mut coded)?;
        let rank = usize::try_from(form - FORM_TEXT).map_err(|_| wrong)?;
        let words = self.texts().nth(rank).ok_or(wrong)?;
        Ok(Some(text_from_residual(words, &coded).ok_or(wrong)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;

    const TEXT: &[u8] =
        b"Sand behind a strong portion; ear, ear 1753. Behind strong (sand) \x01 http://x.example/y sand.";
    const WORDS: &[u8] =
        b"sand behind  strong portion ear ear 1753 behind strong sand url\tx.example/y x.example sand";

    #[test]
    fn a_vector_is_restored_from_its_words() {
        let Vector { value, words } = Vector::from_words(WORDS.to_vec()).expect("words");
        let in_order: Vec<&[u8]> = words.words.iter().map(|&place| Words(&words).at(place)).collect();
        assert!(in_order.is_sorted_by(|a, b| a < b));
        assert_eq!(Words(&words).search(b"sand"), Ok(4));
        // The word, its number of positions, and them.
        let sand = b"sand\x03\x00\x01\x00\x0B\x00\x0E\x00";
        assert!(value.windows(sand.len()).any(|bytes| bytes == sand));
        let again = parse_vector(&value).expect("words");
        assert_eq!((&again.words.text[..], again.words.words), (WORDS, words.words));
    }

    #[test]
    fn damaged_vectors_are_not_parsed_or_restored_as_they_are() {
        let vector = Vector::from_words(WORDS.to_vec()).expect("words").value;
        let mut others = 0;
        for at in 0..vector.len() {
            assert!(parse_vector(&vector[..at]).is_none());
            for bits in 1..=0xFF {
                let mut other = vector.clone();
                other[at] ^= bits;
                // It may be another vector, but then it is restored as it is.
                if let Some(Vector { words: Recent { text, words }, .. }) = parse_vector(&other) {
                    let again = Vector::from_words(text).expect("words");
                    assert!(again.value == other && again.words.words == words);
                    others += 1;
                }
            }
        }
        assert!(others > 100, "{others} of them are vectors");
        // With a weight.
        let mut weighted = vector.clone();
        *weighted.last_mut().expect("a byte") |= 0x40;
        assert!(parse_vector(&weighted).is_none());
    }

    proptest! {
        #[test]
        fn words_in_any_order_give_a_vector_with_the_same_words(
            words in prop::collection::vec(("[a-d]{0,3}(zyxwvuts|zyxwvut)?[a-c]{0,2}", any::<bool>()), 1..80),
        ) {
            let text: Vec<u8> = words
                .iter()
                .flat_map(|(word, also)| word.bytes().chain([if *also && !word.is_empty() { ALSO } else { SPACE }]))
                .collect();
            if let Some(Vector { value, words: Recent { words, .. } }) = Vector::from_words(text)
                && let Some(again) = parse_vector(&value)
            {
                assert!(again.value == value && again.words.words.len() == words.len());
                let twice = Vector::from_words(again.words.text).expect("words");
                assert!(twice.value == value && twice.words.words == again.words.words);
            }
        }
    }

    #[test]
    fn a_text_is_restored_from_its_residual() {
        let residual = residual_of(WORDS, TEXT).expect("most of it is predicted");
        assert!(residual.len() < TEXT.len() * 2 / 3);
        assert_eq!(text_from_residual(WORDS, &residual).as_deref(), Some(TEXT));
        assert_eq!(
            residual_of(WORDS, b"Quite another text that has none of these words in it, but for one, sand."),
            None
        );
        assert_eq!(text_from_residual(b"", &[WORD]), None);
        assert_eq!(text_from_residual(b"", &[ESCAPE]), None);
        // Nor is a text made that is longer than any that is written.
        let words = [vec![b'w'; 2047], vec![SPACE]].concat().repeat(9000);
        assert_eq!(text_from_residual(&words, &[WORD; 8000]).map(|text| text.len()), Some(8000 * 2047));
        assert_eq!(text_from_residual(&words, &[WORD; 9000]), None);
    }
}
