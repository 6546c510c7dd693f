//! The match finder of libzstd at its default level (`ZSTD_compressBlock_doubleFast`), for sources of a
//! page's size.
//!
//! Two hash tables have the latest position of each hash: of eight bytes, and of four bytes (five in large
//! pages). At each position the search tries these in order, and takes the first match: a match at the last
//! offset, which may start one byte later; a match of at least eight bytes; a shorter one, unless the next
//! position has a long one. A match from a table is extended in both directions. After many positions without
//! a match, the step grows.

use super::{MAX_SOURCE_BYTES, Release, Sequence};
use crate::pglz::same_start;

/// No match starts where fewer bytes remain (`HASH_READ_SIZE`).
const MIN_REMAINING: usize = 8;
/// The step grows by one after 2^SKIP_LOG positions without a match (`kSearchStrength`).
const SKIP_LOG: u32 = 8;
/// Largest hashes of the two tables in bits (`hashLog` and `chainLog`).
const LONG_BITS: u32 = 16;
const SHORT_BITS: u32 = 15;
/// Tables are at least as large as for a source of 2^MIN_BITS bytes.
const MIN_BITS: u32 = 6;

/// Finds matches; its hash tables are reused from call to call.
pub struct Matches {
    /// The latest position by the hash of eight bytes; 0 if none, as position 0 is never entered.
    long: Box<[u16; 1 << LONG_BITS]>,
    /// The latest position by the hash of four or five bytes.
    short: Box<[u16; 1 << SHORT_BITS]>,
}

impl Default for Matches {
    fn default() -> Matches {
        Matches { long: Box::new([0; 1 << LONG_BITS]), short: Box::new([0; 1 << SHORT_BITS]) }
    }
}

impl Matches {
    /// Replaces the content of `out` by the sequences that `release` finds in `source`. Bytes after the last
    /// match are literals; so are all bytes of a source longer than [`MAX_SOURCE_BYTES`].
    pub fn sequences(&mut self, release: Release, source: &[u8], out: &mut Vec<Sequence>) {
        out.clear();
        if !(MIN_REMAINING..=MAX_SOURCE_BYTES).contains(&source.len()) {
            return;
        }
        // The parameters of level 3 for up to 16 KiB, or up to 128 KiB, reduced for shorter sources
        // (`ZSTD_defaultCParameters`, `ZSTD_adjustCParams_internal`).
        let source_bits = source.len().next_power_of_two().ilog2().max(MIN_BITS);
        if source.len() <= 16_384 {
            self.search::<4>(15.min(source_bits + 1), 14.min(source_bits), source, out).all(release);
        } else {
            self.search::<5>(LONG_BITS, SHORT_BITS, source, out).all(release);
        }
    }

    fn search<'a, const SHORT: u32>(
        &'a mut self,
        long_bits: u32,
        short_bits: u32,
        source: &'a [u8],
        out: &'a mut Vec<Sequence>,
    ) -> Search<'a, SHORT> {
        self.long[..1 << long_bits].fill(0);
        self.short[..1 << short_bits].fill(0);
        Search {
            long: &mut self.long,
            long_shift: u64::BITS - long_bits,
            short: &mut self.short,
            short_bits,
            source,
            last: source.len() - MIN_REMAINING,
            anchor: 0,
            // Repeat offsets start as 1, 4 and 8. The search starts at position 1, where only an offset of 1
            // is possible.
            offsets: [1, 0],
            out,
        }
    }
}

/// The search in one source; short matches are found by the hash of `SHORT` bytes.
struct Search<'a, const SHORT: u32> {
    long: &'a mut [u16; 1 << LONG_BITS],
    long_shift: u32,
    short: &'a mut [u16; 1 << SHORT_BITS],
    short_bits: u32,
    source: &'a [u8],
    /// The last position with eight bytes.
    last: usize,
    /// End of the last match (`anchor`).
    anchor: usize,
    /// The last two different offsets (`offset_1`, `offset_2`); 0 if they reach before the source.
    offsets: [usize; 2],
    out: &'a mut Vec<Sequence>,
}

/// A match chosen by the search.
struct Match {
    /// The position of the search; the match may start before or after it.
    searched: usize,
    at: usize,
    copied: usize,
    /// The match's offset; `None` for the offset of the previous match.
    offset: Option<usize>,
}

impl<const SHORT: u32> Search<'_, SHORT> {
    fn all(mut self, release: Release) {
        match release {
            Release::V1_5_7 => self.find_all(Self::find::<true>),
            Release::V1_5_1 => self.find_all(Self::find::<false>),
            Release::V1_4_7 | Release::V1_4_4 => self.find_all(Self::find_singly),
        }
    }

    #[inline(always)]
    fn find_all(&mut self, find: impl Fn(&mut Self, usize) -> Option<Match>) {
        let mut at = 1;
        while let Some(found) = find(self, at) {
            let offset_code = match found.offset {
                Some(offset) => {
                    self.offsets = [offset, self.offsets[0]];
                    offset as u32 + 3
                }
                None => 1,
            };
            self.copy(found.at, offset_code, found.copied);
            at = self.anchor;
            if at > self.last {
                break;
            }
            self.put_long(found.searched + 2);
            self.put_long(at - 2);
            self.put_short(found.searched + 2);
            self.put_short(at - 1);
            // Directly after a match the last offset cannot match again; without literals, code 1 denotes the
            // second one.
            while at <= self.last && self.repeats(at, self.offsets[1]) {
                self.offsets.swap(0, 1);
                self.put_long(at);
                self.put_short(at);
                self.copy(at, 1, self.longer(at - self.offsets[0], at, 4));
                at = self.anchor;
            }
        }
    }

    /// Searches as since 1.5.1: two positions at a time, whose distance grows by one after each 256 bytes
    /// without a match. Since 1.5.7 (`LONGER`), a long match one step later is preferred only if it is longer
    /// than the short one here.
    #[inline(always)]
    fn find<const LONGER: bool>(&mut self, start: usize) -> Option<Match> {
        let mut at = start;
        let mut step = 1;
        let mut next_step = at + (1 << SKIP_LOG);
        let mut next = at + step;
        if next > self.last {
            return None;
        }
        let mut bytes = eight(self.source, at);
        let mut place = self.long_place(bytes);
        let mut long = usize::from(self.long[place]);
        loop {
            let short_place = self.short_place(bytes);
            let short = usize::from(self.short[short_place]);
            self.long[place] = at as u16;
            self.short[short_place] = at as u16;
            if self.repeats(at + 1, self.offsets[0]) {
                return Some(self.repeated(at));
            }
            let next_bytes = eight(self.source, next);
            let next_place = self.long_place(next_bytes);
            let found = if long > 0 && eight(self.source, long) == bytes {
                Some(self.lengthened(at, long, at, self.longer(long, at, 8)))
            } else {
                let next_long = usize::from(self.long[next_place]);
                if short > 0 && four(self.source, short) == bytes as u32 {
                    let copied = self.longer(short, at, 4);
                    let next_copied = if next_long > 0 && eight(self.source, next_long) == next_bytes {
                        self.longer(next_long, next, 8)
                    } else {
                        0
                    };
                    Some(if next_copied > if LONGER { copied } else { 0 } {
                        self.lengthened(at, next_long, next, next_copied)
                    } else {
                        self.lengthened(at, short, at, copied)
                    })
                } else {
                    long = next_long;
                    None
                }
            };
            if found.is_some() {
                // Only if the match certainly extends beyond that position.
                if step < 4 {
                    self.long[next_place] = next as u16;
                }
                return found;
            }
            if next >= next_step {
                step += 1;
                next_step += 1 << SKIP_LOG;
            }
            (at, bytes, place) = (next, next_bytes, next_place);
            next += step;
            if next > self.last {
                return None;
            }
        }
    }

    /// Searches as before 1.5.1: one position at a time, with steps that grow by one after each 256 bytes
    /// since the last match.
    #[inline(always)]
    fn find_singly(&mut self, start: usize) -> Option<Match> {
        let mut at = start;
        while at < self.last {
            let bytes = eight(self.source, at);
            let (long_place, short_place) = (self.long_place(bytes), self.short_place(bytes));
            let long = usize::from(std::mem::replace(&mut self.long[long_place], at as u16));
            let short = usize::from(std::mem::replace(&mut self.short[short_place], at as u16));
            if self.repeats(at + 1, self.offsets[0]) {
                return Some(self.repeated(at));
            }
            if long > 0 && eight(self.source, long) == bytes {
                return Some(self.lengthened(at, long, at, self.longer(long, at, 8)));
            }
            if short > 0 && four(self.source, short) == bytes as u32 {
                let next = at + 1;
                let next_bytes = eight(self.source, next);
                let next_place = self.long_place(next_bytes);
                let next_long = usize::from(std::mem::replace(&mut self.long[next_place], next as u16));
                return Some(if next_long > 0 && eight(self.source, next_long) == next_bytes {
                    self.lengthened(at, next_long, next, self.longer(next_long, next, 8))
                } else {
                    self.lengthened(at, short, at, self.longer(short, at, 4))
                });
            }
            at += ((at - self.anchor) >> SKIP_LOG) + 1;
        }
        None
    }

    /// Returns whether the four bytes at `at` equal those at `at - offset`; false for offset 0.
    fn repeats(&self, at: usize, offset: usize) -> bool {
        offset > 0 && four(self.source, at - offset) == four(self.source, at)
    }

    /// Returns a match at the last offset, one byte after the searched position.
    fn repeated(&self, searched: usize) -> Match {
        let at = searched + 1;
        Match { searched, at, copied: self.longer(at - self.offsets[0], at, 4), offset: None }
    }

    /// Returns the number of equal bytes at `from` and `at`, the first `known` of which need no comparison.
    fn longer(&self, from: usize, at: usize, known: usize) -> usize {
        known + same_start(&self.source[from + known..], &self.source[at + known..])
    }

    /// Returns the match, extended backwards.
    fn lengthened(&self, searched: usize, from: usize, at: usize, copied: usize) -> Match {
        let free = &self.source[self.anchor..at];
        let before =
            free.iter().rev().zip(self.source[..from].iter().rev()).take_while(|(a, b)| a == b).count();
        Match { searched, at: at - before, copied: copied + before, offset: Some(at - from) }
    }

    fn copy(&mut self, at: usize, offset: u32, copied: usize) {
        let literals = (at - self.anchor) as u32;
        self.out.push(Sequence { literals, offset, copied: copied as u32 });
        self.anchor = at + copied;
    }

    fn put_long(&mut self, at: usize) {
        let place = self.long_place(eight(self.source, at));
        self.long[place] = at as u16;
    }

    fn put_short(&mut self, at: usize) {
        let place = self.short_place(eight(self.source, at));
        self.short[place] = at as u16;
    }

    fn long_place(&self, bytes: u64) -> usize {
        (bytes.wrapping_mul(0xCF1B_BCDC_B7A5_6463) >> self.long_shift) as usize & ((1 << LONG_BITS) - 1)
    }

    fn short_place(&self, bytes: u64) -> usize {
        let hash = if SHORT == 4 {
            u64::from((bytes as u32).wrapping_mul(2_654_435_761) >> (u32::BITS - self.short_bits))
        } else {
            (bytes << 24).wrapping_mul(889_523_592_379) >> (u64::BITS - self.short_bits)
        };
        hash as usize & ((1 << SHORT_BITS) - 1)
    }
}

fn four(source: &[u8], at: usize) -> u32 {
    source.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn eight(source: &[u8], at: usize) -> u64 {
    source.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, ProptestConfig, any, prop, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::Strategy;

    use super::*;
    use crate::zstd::sources::{added, sources};
    use crate::zstd::vectors::vectors;

    #[test]
    fn the_libraries_find_the_same() {
        for vector in vectors() {
            let mut matches = Matches::default();
            let mut out = Vec::new();
            let found = sources().iter().fold(0, |sum, source| {
                matches.sequences(vector.release, source, &mut out);
                out.iter().fold(added(sum, out.len() as u32), |sum, sequence| {
                    let sum = added(added(sum, sequence.literals), sequence.offset);
                    added(sum, sequence.copied)
                })
            });
            assert_eq!(found, vector.found, "{}: {found:#x}", vector.version);
        }
    }

    /// Decodes sequences and literals as the format specifies.
    fn replayed(source: &[u8], sequences: &[Sequence]) -> Vec<u8> {
        let mut made = Vec::new();
        let mut offsets = [1, 4, 8];
        let mut literals = source;
        for sequence in sequences {
            let (run, rest) = literals.split_at(sequence.literals as usize);
            made.extend_from_slice(run);
            literals = &rest[sequence.copied as usize..];
            let number =
                sequence.offset as usize + usize::from(sequence.literals == 0 && sequence.offset <= 3);
            let offset = match sequence.offset {
                0 => panic!("no offset"),
                1..=3 if number == 4 => offsets[0] - 1,
                1..=3 => offsets[number - 1],
                found => found as usize - 3,
            };
            match (sequence.offset, number) {
                (..=3, 1) => {}
                (..=3, 2) => offsets.swap(0, 1),
                _ => offsets = [offset, offsets[0], offsets[1]],
            }
            for _ in 0..sequence.copied {
                made.push(made[made.len() - offset]);
            }
        }
        made.extend_from_slice(literals);
        made
    }

    #[test]
    fn replayed_they_give_the_source() {
        let mut out = Vec::new();
        for source in sources() {
            for release in Release::ALL {
                Matches::default().sequences(release, &source, &mut out);
                assert!(replayed(&source, &out) == source, "{release:?}, {} bytes", source.len());
            }
        }
    }

    #[test]
    fn copies_are_found_up_to_the_largest_page_and_not_beyond() {
        let mut out = Vec::new();
        for release in Release::ALL {
            let mut counted = |len| {
                Matches::default().sequences(release, &vec![0; len], &mut out);
                out.clone()
            };
            let one = |copied| vec![Sequence { literals: 2, offset: 1, copied }];
            // Position 1 is the first that is searched, and a copy from one byte before may start right after
            // it.
            assert_eq!(counted(MAX_SOURCE_BYTES), one(MAX_SOURCE_BYTES as u32 - 2));
            assert_eq!(counted(8192), one(8190));
            assert_eq!(counted(MAX_SOURCE_BYTES + 1), []);
            assert_eq!(counted(0), []);
            assert_eq!(counted(9), []);
        }
    }

    /// Generates repeated pieces, some with one byte changed.
    fn any_source() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::collection::vec(any::<u8>(), 1..20),
            prop::collection::vec(prop_oneof![Just(0_u8), 0..4_u8], 1..40),
            prop::collection::vec(any::<u8>(), 1..1500),
            (any::<u8>(), 1..400_usize).prop_map(|(byte, len)| vec![byte; len]),
        ];
        let pieces = prop::collection::vec(piece, 1..12);
        let order = prop::collection::vec((any::<prop::sample::Index>(), any::<(u16, bool)>()), 0..120);
        (pieces, order).prop_map(|(pieces, order)| {
            let mut source = pieces.concat();
            for (index, (at, changed)) in order {
                let mut piece = index.get(&pieces).clone();
                let at = usize::from(at) % piece.len();
                piece[at] ^= u8::from(changed);
                source.extend(piece);
            }
            source
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn tables_used_again_are_new_ones(sources in prop::collection::vec(any_source(), 1..4)) {
            let mut used = Matches::default();
            let (mut out, mut new) = (vec![Sequence::default()], Vec::new());
            for source in &sources {
                for release in Release::ALL {
                    used.sequences(release, source, &mut out);
                    Matches::default().sequences(release, source, &mut new);
                    prop_assert_eq!(&out, &new);
                    prop_assert_eq!(&replayed(source, &out), source);
                }
            }
        }
    }
}
