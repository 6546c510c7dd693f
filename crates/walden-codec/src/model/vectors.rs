//! Texts and their words: values of type `tsvector`, and texts that such values are of.
//!
//! A `tsvector` has words in the order of the alphabet, each with its positions in the text. As words in the order of the
//! text it is as short as a text; and of the text itself, only what is between the words is left to say.
//!
//! ```text
//! offset  width
//!      0      4  words
//!      4    4 n  for each word (`WordEntry`): 1 bit: it has positions; 11 bits: its length; 20 bits: where it is
//!                words; each, if it has positions, followed at an even place by their number (2 bytes) and by them
//!                (2 bytes each: 2 bits weight, 14 bits position, from 1 on)
//! ```

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::json::{self, Json};
use crate::Corrupt;
use crate::columns::{Class, Column, Kind, Side};

/// Ends a position; two of them in a row: nothing is known of what is between.
const SPACE: u8 = b' ';
/// Between words at one position.
const ALSO: u8 = b'\t';
const MOST_POSITION: usize = (1 << 14) - 1;

/// A word and its positions.
type Word<'a> = (&'a [u8], Vec<u16>);

/// The words of a vector, if it is one: with positions, and without weights.
fn read(vector: &[u8]) -> Option<Vec<Word<'_>>> {
    let word = |at: usize| Some(u32::from_le_bytes(*vector.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*vector.get(at..)?.first_chunk()?));
    let count = word(0)? as usize;
    // Each takes 4 bytes, and more for its word.
    if count == 0 || count > vector.len() / 8 {
        return None;
    }
    let words = 4 + 4 * count;
    let mut next = 0;
    let mut out = Vec::with_capacity(count);
    for number in 0..count {
        let entry = word(4 + 4 * number)?;
        let (len, at) = ((entry >> 1 & 0x7FF) as usize, (entry >> 12) as usize);
        if entry & 1 == 0 || at != next || len == 0 {
            return None;
        }
        let text = vector.get(words + at..words + at + len)?;
        let positions_at = words + (at + len).next_multiple_of(2);
        let positions = usize::from(half(positions_at)?);
        let positions: Option<Vec<u16>> = (1..=positions).map(|at| half(positions_at + 2 * at)).collect();
        let positions = positions?;
        next = (at + len).next_multiple_of(2) + 2 + 2 * positions.len();
        out.push((text, positions));
    }
    (words + next == vector.len()).then_some(out)
}

/// A vector's words in the order of their positions; nothing if it would not come back.
pub fn words_of(vector: &[u8]) -> Option<Vec<u8>> {
    let words = read(vector)?;
    let mut all: Vec<(u16, &[u8])> = Vec::new();
    for (word, positions) in &words {
        if word.iter().any(|&byte| byte == SPACE || byte == ALSO) {
            return None;
        }
        all.extend(positions.iter().map(|&position| (position, *word)));
    }
    all.sort();
    let mut out = Vec::with_capacity(vector.len());
    let mut last = 0;
    for (position, word) in all {
        if position == last {
            out.push(ALSO);
        } else {
            let gap = usize::from(position.checked_sub(last)?) - usize::from(last == 0);
            out.extend(std::iter::repeat_n(SPACE, gap));
            last = position;
        }
        out.extend_from_slice(word);
    }
    (out.len() <= vector.len() && vector_of(&out).is_some_and(|again| again == vector)).then_some(out)
}

/// The vector of words in the order of their positions.
pub fn vector_of(words: &[u8]) -> Option<Vec<u8>> {
    let mut all: Vec<(&[u8], u16)> = Vec::new();
    for (position, here) in words.split(|&byte| byte == SPACE).enumerate() {
        let position =
            u16::try_from(position + 1).ok().filter(|&position| position <= MOST_POSITION as u16)?;
        let here = here.split(|&byte| byte == ALSO).filter(|word| !word.is_empty());
        all.extend(here.map(|word| (word, position)));
    }
    all.sort();
    let (mut entries, mut body) = (Vec::new(), Vec::new());
    let mut count = 0_u32;
    for same in all.chunk_by(|a, b| a.0 == b.0) {
        let (word, at) = (same[0].0, body.len());
        if word.len() > 0x7FF || at >= 1 << 20 {
            return None;
        }
        entries.extend(((at as u32) << 12 | (word.len() as u32) << 1 | 1).to_le_bytes());
        body.extend_from_slice(word);
        body.resize(body.len().next_multiple_of(2), 0);
        body.extend(u16::try_from(same.len()).ok()?.to_le_bytes());
        same.iter().for_each(|(_, position)| body.extend(position.to_le_bytes()));
        count += 1;
    }
    let mut out = count.to_le_bytes().to_vec();
    out.extend(entries);
    out.extend(body);
    Some(out)
}

/// In what is left of a text: the next word, as it is.
const WORD: u8 = 1;
/// With a space after it.
const WORD_SPACE: u8 = 2;
/// With its first letter large.
const LARGE: u8 = 3;
/// And a space after it.
const LARGE_SPACE: u8 = 4;
/// A word is left out.
const SKIP: u8 = 5;
/// The next byte stands for itself.
const ESCAPE: u8 = 6;

/// What is left to say of a text whose words are known; nothing if that is not much less than the text.
fn rest_of(words: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    /// Words that may be left out at once.
    const FARTHEST: usize = 3;
    // Most texts are of none of the vectors, which the first word says.
    let first = text.iter().position(|byte| byte.is_ascii_alphanumeric()).unwrap_or(text.len());
    if !sequence(words).take(FARTHEST).any(|word| alike(&text[first..], word).is_some()) {
        return None;
    }
    let mut words = sequence(words);
    let mut ahead: [&[u8]; FARTHEST] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let mut out = Vec::with_capacity(text.len() / 4);
    let (mut at, mut told) = (0, 0);
    let mut inside = false;
    while at < text.len() {
        if !inside {
            let found = (ahead.iter().enumerate())
                .find_map(|(skip, word)| Some((skip, word.len(), alike(&text[at..], word)?)));
            if let Some((skip, len, large)) = found {
                out.extend(std::iter::repeat_n(SKIP, skip));
                let space = text.get(at + len) == Some(&SPACE);
                out.push(match (large, space) {
                    (false, false) => WORD,
                    (false, true) => WORD_SPACE,
                    (true, false) => LARGE,
                    (true, true) => LARGE_SPACE,
                });
                at += len + usize::from(space);
                ahead.rotate_left(skip + 1);
                ahead[FARTHEST - skip - 1..].fill_with(|| words.next().unwrap_or_default());
                told += len;
                inside = !space;
                continue;
            }
        }
        let byte = text[at];
        inside = byte.is_ascii_alphanumeric() || byte >= 0x80;
        if (WORD..=ESCAPE).contains(&byte) {
            out.push(ESCAPE);
        }
        out.push(byte);
        at += 1;
        // Nothing but what is not told: most texts are others, and are so from the start.
        if at >= 96 && told * 8 < at || at >= 256 && told * 4 < at {
            return None;
        }
    }
    (told * 2 > text.len()).then_some(out)
}

/// Whether a text begins with this word; and if so, whether with a large letter.
fn alike(text: &[u8], word: &[u8]) -> Option<bool> {
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

/// The text again.
fn text_of(words: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let mut words = sequence(words);
    let mut out = Vec::with_capacity(rest.len() * 4);
    let mut rest = rest.iter();
    while let Some(&byte) = rest.next() {
        match byte {
            WORD..=LARGE_SPACE => {
                let start = out.len();
                out.extend_from_slice(words.next()?);
                if byte >= LARGE {
                    out[start].make_ascii_uppercase();
                }
                if byte == WORD_SPACE || byte == LARGE_SPACE {
                    out.push(SPACE);
                }
            }
            SKIP => {
                words.next()?;
            }
            ESCAPE => out.push(*rest.next()?),
            _ => out.push(byte),
        }
    }
    Some(out)
}

fn sequence(words: &[u8]) -> impl Iterator<Item = &[u8]> {
    words.split(|&byte| byte == SPACE || byte == ALSO).filter(|word| !word.is_empty())
}

/// Vectors that were met lately, on both sides.
#[derive(Default)]
pub struct Vectors {
    /// The latest last.
    recent: VecDeque<Recent>,
    columns: Option<Columns>,
    /// Columns of values of `jsonb`, by the field's column.
    json: FxHashMap<Column, json::Columns>,
}

struct Recent {
    /// Words in the order of positions.
    text: Vec<u8>,
    /// Each word once, in the order of the alphabet.
    words: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Columns {
    forms: Column,
    lengths: Column,
    words: Column,
    rests: Column,
}

/// How a value is told.
pub enum Told {
    /// A vector, by its words.
    Vector(Vec<u8>),
    /// A text, by what is left to say of one of the latest vectors' text.
    Text(usize, Vec<u8>),
    /// A value of `jsonb`, by its parts.
    Json(Json),
}

const FORM_OTHER: u64 = 0;
const FORM_VECTOR: u64 = 1;
const FORM_JSON: u64 = 2;
/// And on from here: of the latest vector, the one before it, ...
const FORM_TEXT: u64 = 3;

impl Vectors {
    const MOST: usize = 8;
    const SHORTEST: usize = 64;

    /// The latest vectors' words in the order of positions, the latest first.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.recent.iter().rev().map(|recent| &recent.text[..])
    }

    /// The latest vectors' words in the order of the alphabet, the latest first.
    pub fn words(&self) -> impl Iterator<Item = &[Vec<u8>]> {
        self.recent.iter().rev().map(|recent| &recent.words[..])
    }

    /// How a value can be told, if it can.
    pub fn tell(&self, value: &[u8]) -> Option<Told> {
        if let Some(json) = Json::of(value) {
            return Some(Told::Json(json));
        }
        if value.len() < Vectors::SHORTEST {
            return None;
        }
        if let Some(words) = words_of(value) {
            return Some(Told::Vector(words));
        }
        self.texts().enumerate().find_map(|(rank, words)| Some(Told::Text(rank, rest_of(words, value)?)))
    }

    /// The same for short values, of which it is seldom worth it.
    pub fn tell_short(&self, value: &[u8]) -> Option<Told> {
        Json::of(value).map(Told::Json)
    }

    /// Codes a value that is told; nothing if it is not, which is said, too.
    ///
    /// `field` is one of its field's columns.
    pub fn code<S: Side>(
        &mut self,
        side: &mut S,
        field: Column,
        told: Option<&Told>,
    ) -> Result<Option<Vec<u8>>, Corrupt> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => *self.columns.insert(Columns {
                forms: side.column(Kind::Symbols(Class::RowHeaders))?,
                lengths: side.column(Kind::Symbols(Class::RowHeaders))?,
                words: side.column(Kind::Bytes(Class::Text))?,
                rests: side.column(Kind::Bytes(Class::Text))?,
            }),
        };
        let (form, bytes) = match told {
            None => (FORM_OTHER, &[][..]),
            Some(Told::Vector(words)) => (FORM_VECTOR, &words[..]),
            Some(Told::Json(_)) => (FORM_JSON, &[][..]),
            Some(Told::Text(rank, rest)) => (FORM_TEXT + *rank as u64, &rest[..]),
        };
        let form = side.symbol(columns.forms, form)?;
        if form == FORM_OTHER {
            return Ok(None);
        }
        if form == FORM_JSON {
            let columns = match self.json.entry(field) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(json::Columns::new(side)?),
            };
            let source = match told {
                Some(Told::Json(json)) => Some(json),
                _ => None,
            };
            let json = Json::code(side, columns, source)?;
            return Ok(Some(json.value().ok_or(Corrupt("a value of jsonb can't be"))?));
        }
        let len = side.symbol(columns.lengths, bytes.len() as u64)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut said = Vec::new();
        let wrong = Corrupt("a text can't be told from words");
        if form == FORM_VECTOR {
            side.bytes(columns.words, bytes, len, &mut said)?;
            let vector = vector_of(&said).ok_or(wrong)?;
            if self.recent.len() == Vectors::MOST {
                self.recent.pop_front();
            }
            let mut words: Vec<Vec<u8>> = sequence(&said).map(<[u8]>::to_vec).collect();
            words.sort_unstable();
            words.dedup();
            self.recent.push_back(Recent { text: said, words });
            return Ok(Some(vector));
        }
        side.bytes(columns.rests, bytes, len, &mut said)?;
        let rank = usize::try_from(form - FORM_TEXT).map_err(|_| wrong)?;
        let words = self.texts().nth(rank).ok_or(wrong)?;
        Ok(Some(text_of(words, &said).ok_or(wrong)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"Sand behind a strong portion; ear, ear 1753. Behind strong (sand) \x01 http://x.example/y sand.";
    const WORDS: &[u8] =
        b"sand behind  strong portion ear ear 1753 behind strong sand url\tx.example/y x.example sand";

    #[test]
    fn a_vector_comes_back_from_its_words() {
        let vector = vector_of(WORDS).expect("words");
        let words = read(&vector).expect("a vector");
        assert!(words.is_sorted());
        let sand = words.iter().find(|word| word.0 == b"sand").expect("a word");
        assert_eq!(sand.1, [1, 11, 14]);
        assert_eq!(words_of(&vector).as_deref(), Some(WORDS));
    }

    #[test]
    fn what_is_no_vector_has_no_words() {
        let vector = vector_of(WORDS).expect("words");
        for at in 0..vector.len() {
            assert_eq!(words_of(&vector[..at]), None);
            let mut other = vector.clone();
            other[at] ^= 0x41;
            // Another vector, perhaps, but not one that would come back as this.
            if let Some(words) = words_of(&other) {
                assert_eq!(vector_of(&words).as_deref(), Some(&other[..]));
            }
        }
        // With a weight.
        let mut weighted = vector.clone();
        *weighted.last_mut().expect("a byte") |= 0x40;
        assert_eq!(words_of(&weighted), None);
    }

    #[test]
    fn a_text_comes_back_from_its_words() {
        let rest = rest_of(WORDS, TEXT).expect("most of it is told");
        assert!(rest.len() < TEXT.len() * 2 / 3);
        assert_eq!(text_of(WORDS, &rest).as_deref(), Some(TEXT));
        assert_eq!(
            rest_of(WORDS, b"Quite another text that has none of these words in it, but for one, sand."),
            None
        );
        assert_eq!(text_of(b"", &[WORD]), None);
        assert_eq!(text_of(b"", &[ESCAPE]), None);
    }
}
