//! Splits a `tsvector` into its words, and builds it from them.

use walden_redo::page::tsvector::{MAX_POSITION, POSITION_BYTES, WORD_ENTRY_BYTES, WordEntry};

use super::MAX_BYTES;

/// Separator of positions. Two in a row mean that there is no word at the position between.
pub const SPACE: u8 = b' ';
/// Separator of words at one position.
pub const ALSO: u8 = b'\t';

/// A vector and its words.
pub struct Vector {
    /// The value as PostgreSQL stores it.
    pub value: Vec<u8>,
    pub words: WordList,
}

/// Words of a vector.
pub struct WordList {
    /// Words in the order of positions.
    pub text: Vec<u8>,
    /// Offset and length in `text` of each distinct word, in alphabetical order.
    words: Vec<(u32, u32)>,
}

/// Parses a vector into its words in the order of positions; `None` if it has words without positions or with
/// weights, or if [`Vector::from_words`] would not reconstruct it.
pub fn parse_vector(vector: &[u8]) -> Option<Vector> {
    let (words, positions) = parse_entries(vector)?;
    let words = words_in_order(&words, &positions, vector.len())?;
    Some(Vector { value: vector.to_vec(), words })
}

/// Returns a vector's words in alphabetical order, and its positions in ascending order, each with the number
/// of its word in the lower 32 bits.
fn parse_entries(vector: &[u8]) -> Option<(Vec<&[u8]>, Vec<u64>)> {
    let word = |at: usize| Some(u32::from_le_bytes(*vector.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*vector.get(at..)?.first_chunk()?));
    let count = word(0)? as usize;
    // Each word takes 4 bytes for its entry, and at least 4 for its text and positions.
    if count == 0 || count > vector.len() / 8 || vector.len() > MAX_BYTES {
        return None;
    }
    let words = WORD_ENTRY_BYTES * (1 + count);
    let (mut next, mut last) = (0, &[][..]);
    let mut texts: Vec<&[u8]> = Vec::with_capacity(count);
    let mut all: Vec<u64> = Vec::with_capacity(2 * count);
    for number in 0..count {
        let WordEntry { has_positions, len, at } =
            WordEntry::from_word(word(WORD_ENTRY_BYTES * (1 + number))?);
        if !has_positions || at != next || len == 0 {
            return None;
        }
        let text = vector.get(words + at..words + at + len)?;
        if text <= last || text.iter().any(|&byte| byte == SPACE || byte == ALSO) {
            return None;
        }
        let positions_at = words + (at + len).next_multiple_of(POSITION_BYTES);
        let is_filled_up = vector.get(words + at + len..positions_at)?.iter().all(|&byte| byte == 0);
        let positions = usize::from(half(positions_at)?);
        let first = positions_at + POSITION_BYTES;
        let bytes = vector.get(first..first + POSITION_BYTES * positions)?;
        let before = all.len();
        let above = |position: u16| u64::from(position) << 32 | number as u64;
        all.extend(bytes.chunks_exact(POSITION_BYTES).map(|two| above(u16::from_le_bytes([two[0], two[1]]))));
        if !is_filled_up || positions == 0 || !all[before..].is_sorted_by(|a, b| a < b) {
            return None;
        }
        texts.push(text);
        last = text;
        next = (at + len).next_multiple_of(POSITION_BYTES) + POSITION_BYTES * (1 + positions);
    }
    all.sort_unstable();
    (words + next == vector.len()).then_some((texts, all))
}

/// Writes the words in the order of positions; `None` if that exceeds `max_bytes`, or if a position is out of
/// range.
fn words_in_order(words: &[&[u8]], positions: &[u64], max_bytes: usize) -> Option<WordList> {
    let position_of = |one: &u64| (one >> 32) as usize;
    if position_of(positions.first()?) == 0 || position_of(positions.last()?) > usize::from(MAX_POSITION) {
        return None;
    }
    let mut text = Vec::with_capacity(max_bytes);
    let mut places = vec![(0, 0); words.len()];
    let mut last = 0;
    for one in positions {
        let (position, number) = (position_of(one), *one as u32 as usize);
        if position == last {
            text.push(ALSO);
        } else {
            text.resize(text.len() + position - last - usize::from(last == 0), SPACE);
            last = position;
        }
        let place = &mut places[number];
        if place.1 == 0 {
            *place = (u32::try_from(text.len()).ok()?, words[number].len() as u32);
        }
        text.extend_from_slice(words[number]);
        if text.len() > max_bytes {
            return None;
        }
    }
    Some(WordList { text, words: places })
}

impl Vector {
    /// Builds a vector from its words in the order of positions; `None` if PostgreSQL has no such vector.
    pub fn from_words(text: Vec<u8>) -> Option<Vector> {
        let (all, mut order) = words_of(&text)?;
        let firsts = sort_words(&text, &all, &mut order);
        let word = |one: u128| &all[one as u64 as usize];
        let start = WORD_ENTRY_BYTES * (1 + firsts.len());
        let mut value = Vec::with_capacity(start + text.len() + 3 * all.len() + 2);
        value.resize(start, 0);
        value[..WORD_ENTRY_BYTES].copy_from_slice(&(firsts.len() as u32).to_le_bytes());
        let mut words = Vec::with_capacity(firsts.len());
        let ends = firsts.iter().skip(1).copied().chain([order.len()]);
        for (number, (&first, end)) in firsts.iter().zip(ends).enumerate() {
            let same = &order[first..end];
            let Word { at: place, len, .. } = *word(same[0]);
            let at = value.len() - start;
            let entry = WordEntry { has_positions: true, len: len as usize, at }.to_word()?;
            words.push((place, len));
            value[WORD_ENTRY_BYTES * (1 + number)..][..WORD_ENTRY_BYTES]
                .copy_from_slice(&entry.to_le_bytes());
            value.extend_from_slice(word(same[0]).slice(&text));
            value.resize(value.len().next_multiple_of(POSITION_BYTES), 0);
            value.extend(u16::try_from(same.len()).ok()?.to_le_bytes());
            same.iter().for_each(|&one| value.extend(word(one).position.to_le_bytes()));
        }
        Some(Vector { value, words: WordList { text, words } })
    }
}

/// Returns the words of a text in order, and for each a sort key: its first 8 bytes and below them its
/// number. That usually suffices to compare two words. Returns `None` if a position is out of range.
fn words_of(text: &[u8]) -> Option<(Vec<Word>, Vec<u128>)> {
    let mut all: Vec<Word> = Vec::with_capacity(text.len() / 6);
    let mut order: Vec<u128> = Vec::with_capacity(text.len() / 6);
    let (mut position, mut from) = (1, 0);
    for end in memchr::memchr2_iter(SPACE, ALSO, text).chain([text.len()]) {
        if position > usize::from(MAX_POSITION) {
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
    Some((all, order))
}

/// Sorts words alphabetically, equal words by their numbers. Returns the positions at which each distinct
/// word occurs first.
fn sort_words(text: &[u8], all: &[Word], order: &mut [u128]) -> Vec<usize> {
    order.sort_unstable();
    let text_of = |one: u128| all[one as u64 as usize].slice(text);
    let mut firsts = Vec::with_capacity(all.len());
    let mut from = 0;
    for alike in order.chunk_by_mut(|a, b| a >> 64 == b >> 64) {
        firsts.push(from);
        // Words with the same first 8 bytes are mostly equal.
        if alike[1..].iter().any(|&one| text_of(one) != text_of(alike[0])) {
            alike.sort_by(|&a, &b| text_of(a).cmp(text_of(b)));
            let others = (1..alike.len()).filter(|&at| text_of(alike[at]) != text_of(alike[at - 1]));
            firsts.extend(others.map(|at| from + at));
        }
        from += alike.len();
    }
    firsts
}

/// Returns the first 8 bytes of a word, padded with zeros, as a number that compares as they do.
fn start_of(text: &[u8], len: usize) -> u64 {
    match text.first_chunk() {
        // Masks out the bytes after the word.
        Some(eight) if len < 8 => u64::from_be_bytes(*eight) & !(u64::MAX >> (8 * len)),
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut start = [0; 8];
            start[..len].copy_from_slice(&text[..len]);
            u64::from_be_bytes(start)
        }
    }
}

/// A word in a text.
struct Word {
    at: u32,
    len: u32,
    position: u16,
}

impl Word {
    fn slice<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.at as usize..][..self.len as usize]
    }
}

/// Distinct words of a vector in alphabetical order.
#[derive(Clone, Copy)]
pub struct Words<'a>(pub &'a WordList);

impl<'a> Words<'a> {
    /// Returns a word by its number, from 0.
    #[inline]
    pub fn get(self, number: usize) -> Option<&'a [u8]> {
        self.0.words.get(number).map(|&place| self.at(place))
    }

    /// Returns the number of a word, or as an error that of the first word after it.
    pub fn search(self, word: &[u8]) -> Result<usize, usize> {
        self.0.words.binary_search_by(|&place| self.at(place).cmp(word))
    }

    fn at(self, (at, len): (u32, u32)) -> &'a [u8] {
        &self.0.text[at as usize..at as usize + len as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;

    const WORDS: &[u8] =
        b"sand behind  strong portion ear ear 1753 behind strong sand url\tx.example/y x.example sand";

    #[test]
    fn a_vector_is_restored_from_its_words() {
        let Vector { value, words } = Vector::from_words(WORDS.to_vec()).expect("words");
        let in_order: Vec<&[u8]> = words.words.iter().map(|&place| Words(&words).at(place)).collect();
        assert!(in_order.is_sorted_by(|a, b| a < b));
        assert_eq!(Words(&words).search(b"sand"), Ok(4));
        // The word, its number of positions, and the positions.
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
                // The damaged bytes may be another valid vector, but then this vector is reconstructed
                // exactly.
                if let Some(Vector { words: WordList { text, words }, .. }) = parse_vector(&other) {
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
            if let Some(Vector { value, words: WordList { words, .. } }) = Vector::from_words(text)
                && let Some(again) = parse_vector(&value)
            {
                assert!(again.value == value && again.words.words.len() == words.len());
                let twice = Vector::from_words(again.words.text).expect("words");
                assert!(twice.value == value && twice.words.words == again.words.words);
            }
        }
    }
}
