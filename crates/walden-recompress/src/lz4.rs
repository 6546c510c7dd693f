//! Compresses LZ4 blocks byte for byte as `LZ4_compress_default` of liblz4, which servers use for full-page
//! images and values.
//!
//! A block is a list of sequences: literals, then a match at an offset of up to 65,535 bytes; the last
//! sequence has only literals. Matches are chosen as liblz4 chooses them: a hash table has the latest
//! position of each hash of the next bytes. The compressor takes the first match that the table yields, and
//! extends it in both directions. After many positions without a match, the step grows. This choice has not
//! changed since liblz4 1.7. Compressed files depend on the choice, and every later version of Walden must
//! decode them, so it is implemented here, and tests compare it with the library.

use crate::pglz::same_start;

/// Minimum length of a match (`MINMATCH`).
const MIN_MATCH: usize = 4;
/// The last bytes of a block are always literals (`LASTLITERALS`).
const LAST_LITERALS: usize = 5;
/// No match starts within this many bytes of the end (`MFLIMIT`).
const MATCH_END_MARGIN: usize = 12;
/// Largest offset of a match (`LZ4_DISTANCE_MAX`).
const MAX_OFFSET: usize = 65_535;
/// Shorter inputs use a table of 16-bit positions, which has twice as many entries (`LZ4_64Klimit`).
const SMALL_INPUT: usize = 65_536 + MATCH_END_MARGIN - 1;
const SMALL_BITS: u32 = 13;
const LARGE_BITS: u32 = 12;
/// The step grows by one after 2^SKIP_LOG positions without a match (`LZ4_skipTrigger`).
const SKIP_LOG: u32 = 6;

/// A compressor; its hash table is reused from call to call.
pub struct Lz4 {
    table: Box<[u32; 1 << SMALL_BITS]>,
}

impl Default for Lz4 {
    fn default() -> Lz4 {
        Lz4 { table: Box::new([0; 1 << SMALL_BITS]) }
    }
}

impl Lz4 {
    /// Appends `source`, compressed, to `target`.
    pub fn compress(&mut self, source: &[u8], target: &mut Vec<u8>) {
        self.table.fill(0);
        let anchor = if source.len() > MATCH_END_MARGIN {
            if source.len() < SMALL_INPUT {
                self.sequences(source, target, hash_of_4)
            } else {
                self.sequences(source, target, hash_of_5)
            }
        } else {
            0
        };
        let literals = &source[anchor..];
        target.push((literals.len().min(15) as u8) << 4);
        more_than_15(literals.len(), target);
        target.extend_from_slice(literals);
    }

    /// Appends all sequences except the last. Returns the start of the last sequence's literals.
    fn sequences(
        &mut self,
        source: &[u8],
        target: &mut Vec<u8>,
        hash: impl Fn(&[u8], usize) -> usize,
    ) -> usize {
        let last_start = source.len() - MATCH_END_MARGIN;
        let matches_end = source.len() - LAST_LITERALS;
        let mut anchor = 0;
        self.table[hash(source, 0)] = 0;
        let mut at = 1;
        let mut next_hash = hash(source, at);
        'sequences: loop {
            // Searches for a match with growing steps.
            let mut next = at;
            let mut step = 1;
            let mut tries = 1 << SKIP_LOG;
            let mut from = loop {
                at = next;
                next += step;
                step = tries >> SKIP_LOG;
                tries += 1;
                if next > last_start + 1 {
                    break 'sequences;
                }
                let from = std::mem::replace(&mut self.table[next_hash], at as u32) as usize;
                next_hash = hash(source, next);
                if at - from <= MAX_OFFSET && four(source, from) == four(source, at) {
                    break from;
                }
            };
            while at > anchor && from > 0 && source[at - 1] == source[from - 1] {
                (at, from) = (at - 1, from - 1);
            }
            loop {
                // `anchor` is before `at` only for the first of consecutive matches.
                let literals = &source[anchor..at];
                let longer = same_start(&source[from + MIN_MATCH..], &source[at + MIN_MATCH..matches_end]);
                target.push((literals.len().min(15) as u8) << 4 | longer.min(15) as u8);
                more_than_15(literals.len(), target);
                target.extend_from_slice(literals);
                target.extend_from_slice(&((at - from) as u16).to_le_bytes());
                more_than_15(longer, target);
                at += MIN_MATCH + longer;
                anchor = at;
                if at > last_start {
                    break 'sequences;
                }
                self.table[hash(source, at - 2)] = (at - 2) as u32;
                let place = &mut self.table[hash(source, at)];
                from = std::mem::replace(place, at as u32) as usize;
                if at - from > MAX_OFFSET || four(source, from) != four(source, at) {
                    break;
                }
            }
            at += 1;
            next_hash = hash(source, at);
        }
        anchor
    }
}

/// Appends the part of a length above 15, the maximum of the token's field.
fn more_than_15(len: usize, target: &mut Vec<u8>) {
    if let Some(rest) = len.checked_sub(15) {
        target.extend(std::iter::repeat_n(255, rest / 255));
        target.push((rest % 255) as u8);
    }
}

fn four(source: &[u8], at: usize) -> u32 {
    source.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn hash_of_4(source: &[u8], at: usize) -> usize {
    (four(source, at).wrapping_mul(2_654_435_761) >> (32 - SMALL_BITS)) as usize
}

/// Returns the hash of five bytes, which liblz4 uses on 64-bit little-endian machines.
fn hash_of_5(source: &[u8], at: usize) -> usize {
    let bytes =
        source.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    ((bytes << 24).wrapping_mul(889_523_592_379) >> (64 - LARGE_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zstd::numbers::numbers;

    /// Compares our block with the library's, and decompresses it with the library.
    fn judge(source: &[u8]) {
        let mut ours = Vec::new();
        Lz4::default().compress(source, &mut ours);
        let theirs = ::lz4::block::compress(source, None, false).unwrap();
        assert!(ours == theirs, "{} bytes: ours {}, theirs {}", source.len(), ours.len(), theirs.len());
        let back = ::lz4::block::decompress(&ours, Some(source.len() as i32)).unwrap();
        assert!(back == source);
    }

    #[test]
    fn the_library_makes_the_same() {
        let mut number = numbers(42);
        let lengths = (0..300).chain([8160, 8192, 65_546, 65_547, 65_548, 200_000, 1_000_003]);
        for len in lengths {
            let random: Vec<u8> = (0..len).map(|_| number(256) as u8).collect();
            judge(&random);
            judge(&random.iter().map(|byte| byte & 1).collect::<Vec<_>>());
            judge(&vec![b'x'; len]);
            // Words of a text, and copies of earlier pieces.
            let mut text = Vec::new();
            while text.len() < len {
                let word = number(500);
                text.extend_from_slice(format!("{:x} ", word * word * 0x1234_5678).as_bytes());
                if number(20) == 0 && !text.is_empty() {
                    let start = number(text.len() as u64) as usize;
                    let end = (start + number(600) as usize).min(text.len());
                    text.extend_from_within(start..end);
                }
            }
            text.truncate(len);
            judge(&text);
        }
    }

    #[test]
    fn a_table_used_again_is_a_new_one() {
        let (one, other) = (b"abcdefgh".repeat(100), b"gabcdefh".repeat(2000));
        let mut lz4 = Lz4::default();
        let (mut first, mut again) = (Vec::new(), Vec::new());
        lz4.compress(&other, &mut first);
        lz4.compress(&one, &mut Vec::new());
        lz4.compress(&other, &mut again);
        assert_eq!(first, again);
    }
}
