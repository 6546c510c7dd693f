//! Dictionary coding of text: replaces frequent words by numbers, ahead of a general compressor.
//!
//! Words in random order are expensive for an LZ compressor, which codes the distance from the last
//! occurrence of each word. A number takes slightly more than one byte.
//!
//! ```text
//! length      LEB128: bytes of the text
//! words       LEB128: number of words; 1 byte each: length; then their bytes
//! escape      1 byte: escape byte; the byte after it is a literal
//! leads       1 byte per 256 words: lead byte; the next number refers to these words
//! skeleton    LEB128: bytes that follow: literals, escape bytes and lead bytes
//! numbers     1 byte for each lead byte in the skeleton
//! ```

use rustc_hash::FxHashMap;

use super::headed::WithHeader;
use crate::leb128::{MAX_LEB128_BYTES, get_leb128, put_leb128};
use crate::{Corrupt, corrupt};

/// Minimum number of letters of a word, without its space.
const MIN_LETTERS: usize = 3;
/// Maximum length of a word, including its space.
const MAX_WORD_BYTES: usize = 40;
/// Minimum number of occurrences of a word.
const MIN_COUNT: u32 = 4;
/// Number of bytes between words that are searched or copied in one step.
const FEW: usize = 16;
/// Size of a table entry: a word that is copied in one step, padded, with its length in the last byte.
const STEP: usize = 16;
const LEN_AT: usize = STEP - 1;
const MAX_SHORT_BYTES: u8 = LEN_AT as u8;
/// Number of skeleton bytes that are decoded into a buffer in one go.
const DECODED_AT_ONCE: usize = 256;
/// Marks an escape instead of a piece's number.
const ESCAPE: u16 = u16::MAX;
/// Maximum number of lead bytes, and number of words per lead byte.
const MAX_LEADS: usize = 48;
const NUMBERS: usize = 256;
/// Approximate number of bytes sampled for frequent words and rare bytes, and size of each piece of the
/// sample.
const MAX_SAMPLED: usize = 768 << 10;
const PIECE: usize = 64 << 10;
/// Minimum length of a text for which a list of words pays.
const MIN_TEXT_BYTES: usize = 16 << 10;

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte >= 0x80
}

/// The highest bit of each byte.
const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);

/// Returns which of eight bytes are letters, by their highest bits.
#[inline]
fn letters(bytes: u64) -> u64 {
    let all = |byte: u8| u64::from_le_bytes([byte; 8]);
    let lower = (bytes | all(0x20)) & !HIGHEST;
    let (from_a, after_z) = (lower + all(0x80 - b'a'), lower + all(0x80 - b'z' - 1));
    (from_a & !after_z | bytes) & HIGHEST
}

/// Returns the number of letters at the start of a text, or of other bytes.
#[inline]
fn run_len(text: &[u8], are_letters: bool) -> usize {
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

/// Codes a text; `None` if that would hardly make it shorter.
pub fn encode(text: &[u8]) -> Option<WithHeader> {
    if text.len() < MIN_TEXT_BYTES {
        return None;
    }
    // Words that are frequent in the text are frequent in a part of it.
    let every = text.len() / MAX_SAMPLED + 1;
    let pieces = || text.chunks(PIECE).step_by(every);
    let words = frequent_words(pieces());
    let saved: usize = words.iter().map(|(word, count)| (word.len() - 2) * *count as usize).sum();
    // Smaller savings are outweighed by costs elsewhere.
    if saved < pieces().map(<[u8]>::len).sum::<usize>() / 8 {
        return None;
    }
    let leads = words.len().div_ceil(NUMBERS);
    let special = rarest_bytes(pieces(), leads + 1);
    let mut header = Vec::new();
    put_leb128(&mut header, text.len() as u64);
    put_leb128(&mut header, words.len() as u64);
    header.extend(words.iter().map(|(word, _)| word.len() as u8));
    words.iter().for_each(|(word, _)| header.extend_from_slice(word));
    header.extend_from_slice(&special);
    // The header ends with the length of the skeleton after it.
    let skeleton_at = header.len() + MAX_LEB128_BYTES;
    let mut skeleton = Vec::with_capacity(skeleton_at + text.len());
    skeleton.resize(skeleton_at, 0);
    let index = Index::new(words.iter().map(|(word, _)| *word));
    let numbers = put_skeleton(text, &index, &special, &mut skeleton)?;
    put_leb128(&mut header, (skeleton.len() - skeleton_at) as u64);
    skeleton.extend_from_slice(&numbers);
    let coded = WithHeader::new(&header, skeleton, skeleton_at);
    // Words are chosen by their savings. If all bytes occur equally often, escaping costs more than that.
    // Decoders reject a part that is longer than its columns.
    (coded.len() <= text.len()).then_some(coded)
}

/// Returns the offsets of these bytes in a text.
fn offsets_of<'t>(special: &[u8], text: &'t [u8]) -> impl Iterator<Item = usize> + use<'t> {
    let mut is_special = [false; 256];
    special.iter().for_each(|&byte| is_special[usize::from(byte)] = true);
    // Most texts have few or no occurrences of the rarest bytes.
    let has_any = move |(_, few): &(usize, &[u8])| {
        few.iter().fold(false, |any, byte| any | is_special[usize::from(*byte)])
    };
    let offsets = move |(number, few): (usize, &'t [u8])| {
        let special = few.iter().enumerate().filter(move |(_, byte)| is_special[usize::from(**byte)]);
        special.map(move |(at, _)| number * FEW + at)
    };
    text.chunks(FEW).enumerate().filter(has_any).flat_map(offsets)
}

/// Appends the text with lead bytes for words, and with escape bytes before literals that equal a lead or
/// escape byte (`special`: the escape byte, then the lead bytes). Returns the numbers of the words.
fn put_skeleton(text: &[u8], index: &Index<'_>, special: &[u8], skeleton: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (&escape, lead_bytes) = special.split_first()?;
    let mut numbers = Vec::new();
    let mut special_offsets = offsets_of(special, text);
    let mut next_special = special_offsets.next().unwrap_or(text.len());
    let mut rest = text;
    while let Some(&first) = rest.first() {
        let is_letter = is_letter(first);
        if is_letter && let Some((number, len)) = index.longest(rest) {
            skeleton.push(lead_bytes[number / NUMBERS]);
            numbers.push((number % NUMBERS) as u8);
            rest = &rest[len..];
            continue;
        }
        // Up to the next possible start of a word.
        let (mut these, others) = rest.split_at(run_len(rest, is_letter));
        rest = others;
        let end = text.len() - rest.len();
        while next_special < end {
            // Special bytes within words are not copied.
            if let Some(before) = next_special.checked_sub(end - these.len()) {
                let (before, from) = these.split_at(before);
                skeleton.extend_from_slice(before);
                skeleton.push(escape);
                these = from;
            }
            next_special = special_offsets.next().unwrap_or(text.len());
        }
        match text[end - these.len()..].first_chunk::<FEW>() {
            // A fixed number of bytes is copied, which takes one instruction, and the surplus truncated.
            Some(few) if these.len() <= FEW => {
                let end = skeleton.len() + these.len();
                skeleton.extend_from_slice(few);
                skeleton.truncate(end);
            }
            _ => skeleton.extend_from_slice(these),
        }
    }
    Some(numbers)
}

/// Returns the words that get a number, most frequent first.
fn frequent_words<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<(&'a [u8], u32)> {
    let mut counts: FxHashMap<&[u8], u32> = FxHashMap::default();
    pieces.for_each(|piece| count_words(piece, &mut counts));
    let mut words: Vec<(&[u8], u32)> = counts.into_iter().filter(|(_, count)| *count >= MIN_COUNT).collect();
    if words.len() > MAX_LEADS * NUMBERS {
        let worth = |(word, count): &(&[u8], u32)| (word.len() as u64 - 2) * u64::from(*count);
        words.sort_unstable_by_key(|word| (std::cmp::Reverse(worth(word)), word.0));
        words.truncate(MAX_LEADS * NUMBERS);
    }
    words.sort_unstable_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
    words
}

/// Counts the words of a text.
fn count_words<'a>(text: &'a [u8], counts: &mut FxHashMap<&'a [u8], u32>) {
    let mut at = 0;
    loop {
        let start = at + run_len(&text[at..], false);
        if start == text.len() {
            break;
        }
        at = start + run_len(&text[start..], true);
        let with_space = at + usize::from(text.get(at) == Some(&b' '));
        if at - start >= MIN_LETTERS && with_space - start <= MAX_WORD_BYTES {
            *counts.entry(&text[start..with_space]).or_default() += 1;
        }
    }
}

/// Returns the `count` rarest bytes of a text.
fn rarest_bytes<'a>(pieces: impl Iterator<Item = &'a [u8]>, count: usize) -> Vec<u8> {
    let mut counts = [0_u64; 256];
    pieces.flatten().for_each(|&byte| counts[usize::from(byte)] += 1);
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.sort_by_key(|&byte| counts[usize::from(byte)]);
    bytes.truncate(count);
    bytes
}

/// Words by their first bytes: words of three letters by three bytes, longer words by four bytes, which
/// leaves few words to compare.
struct Index<'a> {
    /// Bitmap of the hashes of the first three bytes of each word. A clear bit shows that the text starts
    /// with no word, without a search.
    known: Vec<u64>,
    longer: Table<'a>,
    shortest: Table<'a>,
}

/// Number of bits of a hash.
const HASH: u32 = 15;

#[inline]
fn hash(first: u64) -> usize {
    ((first as u32).wrapping_mul(0x9E37_79B1) >> (32 - HASH)) as usize
}

/// Returns the mask of the first `bytes` bytes.
fn mask_of(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes.clamp(1, 8))
}

impl<'a> Index<'a> {
    fn new(words: impl Iterator<Item = &'a [u8]>) -> Index<'a> {
        let (shortest, longer): (Vec<_>, Vec<_>) = words
            .enumerate()
            .map(|(number, word)| (word, number))
            .partition(|(word, _)| word.len() == MIN_LETTERS);
        let mut known = vec![0; 1 << HASH >> 6];
        for (word, _) in longer.iter().chain(&shortest) {
            let hash = hash(first_of(word) & mask_of(MIN_LETTERS));
            known[hash >> 6] |= 1 << (hash & 63);
        }
        Index { known, longer: Table::new(longer, 4), shortest: Table::new(shortest, MIN_LETTERS) }
    }

    /// Returns the number and length of the longest word that the text starts with.
    #[inline]
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let first = match text.first_chunk() {
            Some(first) => u64::from_le_bytes(*first),
            None => first_of(text),
        };
        let hash = hash(first & mask_of(MIN_LETTERS));
        if self.known[hash >> 6] >> (hash & 63) & 1 == 0 {
            return None;
        }
        self.longer.longest(first, text).or_else(|| self.shortest.longest(first, text))
    }
}

/// Returns the first eight bytes, padded with zeros.
fn first_of(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
}

/// Words by their first bytes.
struct Table<'a> {
    /// Mask of the bytes that are hashed.
    mask: u64,
    /// First index in `sorted` of each hash, and the end.
    starts: Vec<u32>,
    /// Words by hash, longest first.
    sorted: Vec<Indexed<'a>>,
}

struct Indexed<'a> {
    /// The first eight bytes, and a mask of the bytes that belong to the word.
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

    /// Returns the number and length of the longest word that the text starts with. `first` has the text's
    /// first bytes.
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

/// Decodes a text of at most `max` bytes and appends it.
pub fn decode(stored: &[u8], max: usize, text: &mut Vec<u8>) -> Result<(), Corrupt> {
    let coded = Coded::read(stored, max)?;
    let pieces = coded.pieces();
    let meaning = coded.meaning();
    text.reserve(coded.text_bytes);
    let end = text.len() + coded.text_bytes;
    let mut put = |bytes: &[u8]| {
        if bytes.len() > end - text.len() {
            return Err(corrupt("cannot decode words: expected the length that the text states"));
        }
        text.extend_from_slice(bytes);
        Ok(())
    };
    let wrong = || corrupt("cannot decode words: expected the number of a word");
    let mut buffer = [0; DECODED_AT_ONCE * STEP];
    let (mut skeleton, mut numbers) = (coded.skeleton, coded.numbers);
    while !skeleton.is_empty() {
        let (read, used, filled) = short_pieces(skeleton, numbers, &meaning, &pieces, &mut buffer);
        put(&buffer[..filled])?;
        skeleton = &skeleton[read..];
        numbers = numbers.get(used..).ok_or_else(wrong)?;
        let Some((&byte, after)) = skeleton.split_first().filter(|_| read < DECODED_AT_ONCE) else {
            continue;
        };
        // A long word or an escape.
        let (first, bits) = meaning[usize::from(byte)];
        skeleton = after;
        if first == ESCAPE {
            let (byte, after) = skeleton.split_at_checked(1).ok_or_else(cut_short)?;
            put(byte)?;
            skeleton = after;
        } else {
            let (&number, after) = numbers.split_first().ok_or_else(wrong)?;
            let word = usize::from(first) - NUMBERS + usize::from(number & bits);
            put(coded.words.get(word).ok_or_else(wrong)?)?;
            numbers = after;
        }
    }
    if text.len() == end && numbers.is_empty() {
        Ok(())
    } else {
        Err(corrupt("cannot decode words: expected the length that the text states"))
    }
}

fn cut_short() -> Corrupt {
    corrupt("cannot decode words: the text is cut short")
}

/// The parts of a coded text.
struct Coded<'s> {
    text_bytes: usize,
    words: Vec<&'s [u8]>,
    /// The escape byte, then the lead bytes.
    special: &'s [u8],
    skeleton: &'s [u8],
    numbers: &'s [u8],
}

impl<'s> Coded<'s> {
    fn read(stored: &'s [u8], max: usize) -> Result<Coded<'s>, Corrupt> {
        let mut input = stored;
        let number =
            |input: &mut &[u8]| get_leb128(input).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let text_bytes = number(&mut input)?;
        if text_bytes > max {
            return Err(corrupt("cannot decode words: expected fewer bytes than the text states"));
        }
        let count = number(&mut input)?;
        if count > MAX_LEADS * NUMBERS {
            return Err(corrupt("cannot decode words: expected at most 12288"));
        }
        let (lens, after) = input.split_at_checked(count).ok_or_else(cut_short)?;
        input = after;
        let mut words = Vec::with_capacity(count);
        for &len in lens {
            let (word, after) = input.split_at_checked(len.into()).ok_or_else(cut_short)?;
            words.push(word);
            input = after;
        }
        let (special, after) = input.split_at_checked(1 + count.div_ceil(NUMBERS)).ok_or_else(cut_short)?;
        input = after;
        let bytes = number(&mut input)?;
        let (skeleton, numbers) = input.split_at_checked(bytes).ok_or_else(cut_short)?;
        Ok(Coded { text_bytes, words, special, skeleton, numbers })
    }

    /// Returns a table of all bytes and then all words, each up to a fixed length, with its length.
    ///
    /// Whether a byte is a literal or a lead byte is unpredictable, so the decoder does not branch on it: it
    /// copies both from one table, including the surplus.
    fn pieces(&self) -> Vec<[u8; STEP]> {
        let bytes: Vec<u8> = (0..=255).collect();
        let padded = |piece: &[u8]| {
            let mut padded = [0; STEP];
            let len = piece.len().min(STEP);
            padded[..len].copy_from_slice(&piece[..len]);
            padded[LEN_AT] = piece.len() as u8;
            padded
        };
        bytes.chunks(1).chain(self.words.iter().copied()).map(padded).collect()
    }

    /// Returns for each byte of the skeleton its first piece, and a mask for the bits of the next number that
    /// select a later piece.
    fn meaning(&self) -> [(u16, u8); 256] {
        let mut meaning: [(u16, u8); 256] = std::array::from_fn(|byte| (byte as u16, 0));
        for (lead, &byte) in self.special[1..].iter().enumerate() {
            meaning[usize::from(byte)] = ((NUMBERS + lead * NUMBERS) as u16, u8::MAX);
        }
        meaning[usize::from(self.special[0])] = (ESCAPE, 0);
        meaning
    }
}

/// Decodes the start of the skeleton, up to a byte that is not a short piece. Returns the number of skeleton
/// bytes and of numbers that were used, and the number of decoded bytes. Not inlined, because it needs all
/// registers of the processor.
#[inline(never)]
fn short_pieces(
    skeleton: &[u8],
    numbers: &[u8],
    meaning: &[(u16, u8); 256],
    pieces: &[[u8; STEP]],
    buffer: &mut [u8; DECODED_AT_ONCE * STEP],
) -> (usize, usize, usize) {
    let (mut used, mut filled) = (0, 0);
    for (read, &byte) in skeleton.iter().take(DECODED_AT_ONCE).enumerate() {
        let (first, bits) = meaning[usize::from(byte)];
        let number = numbers.get(used).copied().unwrap_or(0);
        match pieces.get(usize::from(first) + usize::from(number & bits)) {
            Some(padded) if padded[LEN_AT] <= MAX_SHORT_BYTES => {
                buffer[filled..filled + STEP].copy_from_slice(padded);
                (used, filled) = (used + usize::from(bits & 1), filled + usize::from(padded[LEN_AT]));
            }
            _ => return (read, used, filled),
        }
    }
    (skeleton.len().min(DECODED_AT_ONCE), used, filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Vec<u8> {
        // Some words are as long as one copy step, with or without their space, or longer.
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

    /// Blocks of 16 random bytes, each repeated a hundred times: any adjacent letters form a frequent word,
    /// and all bytes occur equally often.
    #[test]
    fn no_text_is_coded_to_more_bytes() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut block = || {
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            };
            [next(), next()].concat()
        };
        let text: Vec<u8> = (0..600).flat_map(|_| block().repeat(100)).collect();
        assert!(encode(&text).is_none_or(|coded| coded.len() <= text.len()));
    }

    #[test]
    fn text_is_decoded_from_its_words() {
        let text = text();
        let stored = encode(&text).expect("many words");
        assert!(stored.len() < text.len() / 2, "{} of {}", stored.len(), text.len());
        let mut back = b"before".to_vec();
        decode(&stored, text.len(), &mut back).expect("its own words");
        assert_eq!(back[6..], text);
        assert!(decode(&stored, text.len() - 1, &mut Vec::new()).is_err());
    }

    #[test]
    fn letters_are_found_eight_at_once_as_one_by_one() {
        for byte in 0..=255 {
            let (of, other) = (is_letter(byte), if is_letter(byte) { b' ' } else { b'z' });
            for at in 0..20 {
                let mut text = [byte; 20];
                text[at] = other;
                assert_eq!(run_len(&text, of), at, "{byte}");
            }
            assert_eq!((run_len(&[byte; 20], of), run_len(&[byte; 20], !of)), (20, 0), "{byte}");
        }
    }

    #[test]
    fn bytes_without_words_are_not_coded() {
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
