//! Text with its frequent words as numbers, before a general compressor.
//!
//! Words that come in any order are dear to a compressor that looks for repeated strings: each time it says how far back the
//! last one was. Their numbers are a byte and a little.
//!
//! ```text
//! length      LEB128: bytes of the text
//! words       LEB128: how many; 1 byte each: length; then their bytes
//! escape      1 byte: the next byte stands for itself
//! leads       1 byte per 256 words: the next number is of one of these words
//! structure   LEB128: bytes that follow: of the text, escapes and leads
//! numbers     the rest: 1 byte for each lead
//! ```

use rustc_hash::FxHashMap;

use super::headed::Headed;
use crate::columns::{MAX_NUMBER_BYTES, get_number, put_number};
use crate::{Corrupt, corrupt};

/// A word has no fewer letters, its space not counted.
const SHORTEST: usize = 3;
/// A word has no more bytes, its space included.
const LONGEST: usize = 40;
/// A word that comes less often is not worth a number.
const FEWEST: u32 = 4;
/// Bytes between words that are looked at, or copied, in one step.
const FEW: usize = 16;
/// Words of fewer bytes are copied in one step, which has their length behind them.
const STEP: usize = 16;
const LEN_AT: usize = STEP - 1;
const MAX_SHORT_BYTES: u8 = LEN_AT as u8;
/// Bytes of the structure that are decoded before what they stand for is put where it stays.
const AT_ONCE: usize = 256;
/// No piece is so far.
const ESCAPE: u16 = u16::MAX;
const MAX_LEADS: usize = 48;
const NUMBERS: usize = 256;
/// Bytes of a text that are looked at for what it has many of and few of, about, and in pieces of how many.
const MAX_COUNTED: usize = 768 << 10;
const PIECE: usize = 64 << 10;
/// Texts shorter than this are not worth a list of words.
const MIN_TEXT_BYTES: usize = 16 << 10;

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte >= 0x80
}

/// The highest bit of each byte.
const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);

/// Which of eight bytes are letters, by their highest bits.
#[inline]
fn letters(bytes: u64) -> u64 {
    let all = |byte: u8| u64::from_le_bytes([byte; 8]);
    let lower = (bytes | all(0x20)) & !HIGHEST;
    let (from_a, after_z) = (lower + all(0x80 - b'a'), lower + all(0x80 - b'z' - 1));
    (from_a & !after_z | bytes) & HIGHEST
}

/// How many bytes a text begins with that are all letters, or all none.
#[inline]
fn alike(text: &[u8], are_letters: bool) -> usize {
    let expected = if are_letters { HIGHEST } else { 0 };
    let (eights, rest) = text.as_chunks::<8>();
    for (at, bytes) in eights.iter().enumerate() {
        let others = letters(u64::from_le_bytes(*bytes)) ^ expected;
        if others != 0 {
            return 8 * at + others.trailing_zeros() as usize / 8;
        }
    }
    text.len() - rest.len() + rest.iter().take_while(|byte| is_letter(**byte) == are_letters).count()
}

/// Words as numbers; nothing where that would not make much of the text shorter.
pub fn encode<'t>(text: &'t [u8]) -> Option<Headed> {
    if text.len() < MIN_TEXT_BYTES {
        return None;
    }
    // Words that are frequent are so in a part of the text, too.
    let every = text.len() / MAX_COUNTED + 1;
    let pieces = || text.chunks(PIECE).step_by(every);
    let words = frequent(pieces());
    let saved: usize = words.iter().map(|(word, count)| (word.len() - 2) * *count as usize).sum();
    // Fewer words than this would cost more in other places than they save.
    if saved < pieces().map(<[u8]>::len).sum::<usize>() / 8 {
        return None;
    }
    let leads = words.len().div_ceil(NUMBERS);
    let marks = rarest(pieces(), leads + 1);
    let mut stands_for_else = [false; 256];
    marks.iter().for_each(|&mark| stands_for_else[usize::from(mark)] = true);
    let is_mark = |byte: &u8| stands_for_else[usize::from(*byte)];
    // Mostly there are bytes that the text has not, or hardly ever.
    let has_marks = |(_, few): &(usize, &[u8])| few.iter().fold(false, |any, byte| any | is_mark(byte));
    let marks_of = |(number, few): (usize, &'t [u8])| {
        let places = few.iter().enumerate().filter(move |(_, byte)| is_mark(byte));
        places.map(move |(at, _)| number * FEW + at)
    };
    let mut marks_in_text = text.chunks(FEW).enumerate().filter(has_marks).flat_map(marks_of);
    let mut next_mark = marks_in_text.next().unwrap_or(text.len());
    let (&escape, lead_bytes) = marks.split_first()?;
    let mut head = Vec::new();
    put_number(&mut head, text.len() as u64);
    put_number(&mut head, words.len() as u64);
    head.extend(words.iter().map(|(word, _)| word.len() as u8));
    words.iter().for_each(|(word, _)| head.extend_from_slice(word));
    head.push(escape);
    head.extend_from_slice(lead_bytes);
    let index = Index::new(words.iter().map(|(word, _)| *word));
    // The head ends with the length of the structure that follows it.
    let structure_at = head.len() + MAX_NUMBER_BYTES;
    let (mut structure, mut numbers) = (Vec::with_capacity(structure_at + text.len()), Vec::new());
    structure.resize(structure_at, 0);
    let mut rest = text;
    while let Some(&first) = rest.first() {
        let is_letter = is_letter(first);
        if is_letter && let Some((number, len)) = index.longest(rest) {
            structure.push(lead_bytes[number / NUMBERS]);
            numbers.push((number % NUMBERS) as u8);
            rest = &rest[len..];
            continue;
        }
        // Up to where the next word may begin.
        let (mut these, others) = rest.split_at(alike(rest, is_letter));
        rest = others;
        let end = text.len() - rest.len();
        while next_mark < end {
            // In words, they stand for nothing.
            if let Some(before) = next_mark.checked_sub(end - these.len()) {
                let (before, from) = these.split_at(before);
                structure.extend_from_slice(before);
                structure.push(escape);
                these = from;
            }
            next_mark = marks_in_text.next().unwrap_or(text.len());
        }
        match text[end - these.len()..].first_chunk::<FEW>() {
            // So many are copied in one step, and those that are too many let go.
            Some(few) if these.len() <= FEW => {
                let end = structure.len() + these.len();
                structure.extend_from_slice(few);
                structure.truncate(end);
            }
            _ => structure.extend_from_slice(these),
        }
    }
    put_number(&mut head, (structure.len() - structure_at) as u64);
    structure.extend_from_slice(&numbers);
    Some(Headed::new(&head, structure, structure_at))
}

/// The words worth a number, the most frequent first.
fn frequent<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<(&'a [u8], u32)> {
    let mut counts: FxHashMap<&[u8], u32> = FxHashMap::default();
    pieces.for_each(|piece| count(piece, &mut counts));
    let mut words: Vec<(&[u8], u32)> = counts.into_iter().filter(|(_, count)| *count >= FEWEST).collect();
    if words.len() > MAX_LEADS * NUMBERS {
        let worth = |(word, count): &(&[u8], u32)| (word.len() as u64 - 2) * u64::from(*count);
        words.sort_unstable_by_key(|word| (std::cmp::Reverse(worth(word)), word.0));
        words.truncate(MAX_LEADS * NUMBERS);
    }
    words.sort_unstable_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
    words
}

/// Counts a text's words.
fn count<'a>(text: &'a [u8], counts: &mut FxHashMap<&'a [u8], u32>) {
    let mut at = 0;
    loop {
        let start = at + alike(&text[at..], false);
        if start == text.len() {
            break;
        }
        at = start + alike(&text[start..], true);
        let with_space = at + usize::from(text.get(at) == Some(&b' '));
        if at - start >= SHORTEST && with_space - start <= LONGEST {
            *counts.entry(&text[start..with_space]).or_default() += 1;
        }
    }
}

/// So many bytes that a text has least of.
fn rarest<'a>(pieces: impl Iterator<Item = &'a [u8]>, count: usize) -> Vec<u8> {
    let mut counts = [0_u64; 256];
    pieces.flatten().for_each(|&byte| counts[usize::from(byte)] += 1);
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.sort_by_key(|&byte| counts[usize::from(byte)]);
    bytes.truncate(count);
    bytes
}

/// Words by how they begin: those of four bytes and more by four, which leaves few to compare, and the shortest ones.
struct Index<'a> {
    /// Which hashes the first three bytes of words have: at most places of a text, this alone says that there is none.
    known: Vec<u64>,
    longer: Table<'a>,
    shortest: Table<'a>,
}

/// Bits of a hash.
const HASH: u32 = 15;

#[inline]
fn hash(first: u64) -> usize {
    ((first as u32).wrapping_mul(0x9E37_79B1) >> (32 - HASH)) as usize
}

/// The mask of so many first bytes.
fn mask_of(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes.clamp(1, 8))
}

impl<'a> Index<'a> {
    fn new(words: impl Iterator<Item = &'a [u8]>) -> Index<'a> {
        let (shortest, longer): (Vec<_>, Vec<_>) = words
            .enumerate()
            .map(|(number, word)| (word, number))
            .partition(|(word, _)| word.len() == SHORTEST);
        let mut known = vec![0; 1 << HASH >> 6];
        for (word, _) in longer.iter().chain(&shortest) {
            let hash = hash(first_of(word) & mask_of(SHORTEST));
            known[hash >> 6] |= 1 << (hash & 63);
        }
        Index { known, longer: Table::new(longer, 4), shortest: Table::new(shortest, SHORTEST) }
    }

    /// The longest word that the text begins with, and its length.
    #[inline]
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let first = match text.first_chunk() {
            Some(first) => u64::from_le_bytes(*first),
            None => first_of(text),
        };
        let hash = hash(first & mask_of(SHORTEST));
        if self.known[hash >> 6] >> (hash & 63) & 1 == 0 {
            return None;
        }
        self.longer.longest(first, text).or_else(|| self.shortest.longest(first, text))
    }
}

/// The first eight bytes, or zeros after those that there are.
fn first_of(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
}

/// Words by their first bytes.
struct Table<'a> {
    /// Which of the first bytes count.
    mask: u64,
    /// Where the words with a hash begin in `sorted`; one more than there are hashes.
    starts: Vec<u32>,
    /// Words, the longest first among those with one hash.
    sorted: Vec<Indexed<'a>>,
}

struct Indexed<'a> {
    /// Its first bytes, and which of eight these are.
    first: u64,
    mask: u64,
    word: &'a [u8],
    number: u32,
}

impl<'a> Table<'a> {
    fn new(words: Vec<(&'a [u8], usize)>, count: usize) -> Self {
        let mask = mask_of(count);
        let indexed = |(word, number): (&'a [u8], usize)| Indexed {
            first: first_of(word),
            mask: mask_of(word.len()),
            word,
            number: number as u32,
        };
        let mut sorted: Vec<Indexed<'_>> = words.into_iter().map(indexed).collect();
        let hash_of = |word: &Indexed<'_>| hash(word.first & mask);
        sorted.sort_by_key(|word| (hash_of(word), std::cmp::Reverse(word.word.len())));
        let mut starts = vec![0_u32; (1 << HASH) + 1];
        sorted.iter().for_each(|word| starts[hash_of(word) + 1] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        Table { mask, starts, sorted }
    }

    /// `first` is what the text begins with.
    #[inline]
    fn longest(&self, first: u64, text: &[u8]) -> Option<(usize, usize)> {
        let hash = hash(first & self.mask);
        let candidates = &self.sorted[self.starts[hash] as usize..self.starts[hash + 1] as usize];
        let fits = |word: &&Indexed<'_>| {
            (word.first ^ first) & word.mask == 0
                && word.word.len() <= text.len()
                && (word.word.len() <= 8 || text[8..].starts_with(&word.word[8..]))
        };
        let found = candidates.iter().find(fits)?;
        Some((found.number as usize, found.word.len()))
    }
}

/// The way back, appended to `text`; `most` is how many bytes of it there may be.
pub fn decode(stored: &[u8], most: usize, text: &mut Vec<u8>) -> Result<(), Corrupt> {
    let (short, wrong) = (Corrupt("a list of words is cut short"), Corrupt("a word's number can't be"));
    let mut rest = stored;
    let number =
        |rest: &mut &[u8]| get_number(rest).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    let length = number(&mut rest)?;
    if length > most {
        return Err(corrupt("a text is longer than it may be"));
    }
    let count = number(&mut rest)?;
    if count > MAX_LEADS * NUMBERS {
        return Err(corrupt("there are more words than there can be"));
    }
    let (lengths, after) = rest.split_at_checked(count).ok_or(short)?;
    rest = after;
    let mut words = Vec::with_capacity(count);
    for &len in lengths {
        let (word, after) = rest.split_at_checked(len.into()).ok_or(short)?;
        words.push(word);
        rest = after;
    }
    let (marks, after) = rest.split_at_checked(1 + count.div_ceil(NUMBERS)).ok_or(short)?;
    rest = after;
    let bytes = number(&mut rest)?;
    let (structure, numbers) = rest.split_at_checked(bytes).ok_or(short)?;
    // Whether a byte stands for itself or a word comes nobody can foresee, so nothing branches on it: both are taken from one
    // table, which has each byte before the words, and copied whole, with what is after them up to a length that is the
    // same for all.
    let bytes: Vec<u8> = (0..=255).collect();
    let pieces: Vec<[u8; STEP]> = bytes
        .chunks(1)
        .chain(words.iter().copied())
        .map(|piece| {
            let mut padded = [0; STEP];
            let known = piece.len().min(STEP);
            padded[..known].copy_from_slice(&piece[..known]);
            padded[LEN_AT] = piece.len() as u8;
            padded
        })
        .collect();
    // Where a byte's piece is, and which bits of the next number say which one after it.
    let mut meaning: [(u16, u8); 256] = std::array::from_fn(|byte| (byte as u16, 0));
    for (lead, &mark) in marks[1..].iter().enumerate() {
        meaning[usize::from(mark)] = ((NUMBERS + lead * NUMBERS) as u16, u8::MAX);
    }
    meaning[usize::from(marks[0])] = (ESCAPE, 0);
    text.reserve(length);
    let length = text.len() + length;
    let mut put = |bytes: &[u8]| {
        if bytes.len() > length - text.len() {
            return Err(corrupt("a text is longer than it says"));
        }
        text.extend_from_slice(bytes);
        Ok(())
    };
    let mut room = [0; AT_ONCE * STEP];
    let (mut structure, mut numbers) = (structure, numbers);
    while !structure.is_empty() {
        let (known, used, filled) = short_pieces(structure, numbers, &meaning, &pieces, &mut room);
        put(&room[..filled])?;
        structure = &structure[known..];
        numbers = numbers.get(used..).ok_or(wrong)?;
        let Some((&byte, after)) = structure.split_first().filter(|_| known < AT_ONCE) else { continue };
        // It stands for a long word, or the next one for itself.
        let (first, bits) = meaning[usize::from(byte)];
        structure = after;
        if first == ESCAPE {
            let (byte, after) = structure.split_at_checked(1).ok_or(short)?;
            put(byte)?;
            structure = after;
        } else {
            let (&number, after) = numbers.split_first().ok_or(wrong)?;
            put(words.get(usize::from(first) - NUMBERS + usize::from(number & bits)).ok_or(wrong)?)?;
            numbers = after;
        }
    }
    if text.len() == length && numbers.is_empty() {
        Ok(())
    } else {
        Err(corrupt("a text has another length than it says"))
    }
}

/// Puts together what the structure begins with, up to what is no short piece. How many of its bytes and of the numbers that
/// took, and how many bytes it made. By itself, as it needs all of the processor's registers.
#[inline(never)]
fn short_pieces(
    structure: &[u8],
    numbers: &[u8],
    meaning: &[(u16, u8); 256],
    pieces: &[[u8; STEP]],
    room: &mut [u8; AT_ONCE * STEP],
) -> (usize, usize, usize) {
    let (mut used, mut filled) = (0, 0);
    for (known, &byte) in structure.iter().take(AT_ONCE).enumerate() {
        let (first, bits) = meaning[usize::from(byte)];
        let number = numbers.get(used).copied().unwrap_or(0);
        match pieces.get(usize::from(first) + usize::from(number & bits)) {
            Some(padded) if padded[LEN_AT] <= MAX_SHORT_BYTES => {
                room[filled..filled + STEP].copy_from_slice(padded);
                (used, filled) = (used + usize::from(bits & 1), filled + usize::from(padded[LEN_AT]));
            }
            _ => return (known, used, filled),
        }
    }
    (structure.len().min(AT_ONCE), used, filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Vec<u8> {
        // Some are as long as what is copied in one step, with or without their space, or longer.
        let (long, longer) = ("internationally", ["incomprehensible", "counterrevolutionary"]);
        let words =
            ["harbour", "paper", "Ancient", "über", "of", "the", "tornadic", long, longer[0], longer[1]];
        let mut text = Vec::new();
        for number in 0_usize..9000 {
            text.extend_from_slice(words[number * 7 % 13 % words.len()].as_bytes());
            if number % 3 > 0 {
                text.push(b' ');
            }
            if number % 11 == 0 {
                text.push((number / 11) as u8);
            }
        }
        text
    }

    #[test]
    fn text_comes_back_from_its_words() {
        let text = text();
        let stored = encode(&text).expect("many words");
        assert!(stored.len() < text.len() / 2, "{} of {}", stored.len(), text.len());
        let mut back = b"before".to_vec();
        decode(&stored, text.len(), &mut back).expect("its own words");
        assert_eq!(back[6..], text);
        assert!(decode(&stored, text.len() - 1, &mut Vec::new()).is_err());
    }

    #[test]
    fn letters_are_told_eight_at_once_as_one_by_one() {
        for byte in 0..=255 {
            let (of, other) = (is_letter(byte), if is_letter(byte) { b' ' } else { b'z' });
            for at in 0..20 {
                let mut text = [byte; 20];
                text[at] = other;
                assert_eq!(alike(&text, of), at, "{byte}");
            }
            assert_eq!((alike(&[byte; 20], of), alike(&[byte; 20], !of)), (20, 0), "{byte}");
        }
    }

    #[test]
    fn what_has_no_words_is_left_alone() {
        let mut state = 1_u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let bytes: Vec<u8> = (0..40_000).map(|_| byte()).collect();
        assert!(encode(&bytes).is_none());
        assert!(encode(b"a few words").is_none());
    }

    #[test]
    fn damaged_words_are_refused_or_make_another_text() {
        let text = text();
        let stored = encode(&text).expect("many words");
        for at in (0..stored.len()).step_by(13) {
            assert!(decode(&stored[..at], text.len(), &mut Vec::new()).is_err());
            let mut damaged = stored.to_vec();
            damaged[at] ^= 1 << (at % 8);
            let _ = decode(&damaged, text.len(), &mut Vec::new());
        }
    }
}
