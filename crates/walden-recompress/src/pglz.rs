//! PostgreSQL's own compression format, pglz (`pg_lzcompress.c`): decompression, and compression byte for
//! byte as PostgreSQL does it.
//!
//! The bits of a control byte say, lowest first, whether a literal byte (0) or a tag (1) follows. A tag is
//! two bytes, `oooo llll` and `oooooooo`: length - 3 and the offset of a match; after a length of 18, another
//! byte adds to it.
//!
//! The choice of matches has not changed since 9.5. At each position the server searches a list of the
//! earlier positions whose next four bytes have the same (weak) hash, newest first. It takes the longest
//! match, the newest among equals, and stops when the match is long enough; the required length falls with
//! every step. Only positions with the same four bytes can match, because the hash distinguishes the fourth
//! byte if the first three are equal. [`Pglz`] therefore searches only these, and computes from counters how
//! many steps the server's search has made.

/// Decompresses `source` into `target`, which it must fill exactly. Returns the number of bytes written, or
/// `None` if the source is corrupt.
pub fn decompress(source: &[u8], target: &mut [u8]) -> Option<usize> {
    let (mut read, mut written) = (0, 0);
    while read < source.len() && written < target.len() {
        let mut control = source[read];
        read += 1;
        for _ in 0..8 {
            if read >= source.len() || written >= target.len() {
                break;
            }
            if control & 1 == 0 {
                target[written] = source[read];
                (read, written) = (read + 1, written + 1);
            } else {
                let (high, low) = (*source.get(read)?, *source.get(read + 1)?);
                read += 2;
                let mut len = usize::from(high & 0x0F) + 3;
                let distance = usize::from(high & 0xF0) << 4 | usize::from(low);
                if len == 18 {
                    len += usize::from(*source.get(read)?);
                    read += 1;
                }
                if distance == 0 || distance > written {
                    return None;
                }
                // A match may overlap its own output.
                let len = len.min(target.len() - written);
                for at in written..written + len {
                    target[at] = target[at - distance];
                }
                written += len;
            }
            control >>= 1;
        }
    }
    (read == source.len() && written == target.len()).then_some(written)
}

/// Parameters of the compressor (`PGLZ_Strategy`).
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// Inputs of fewer bytes are not compressed (`min_input_size`).
    min_input_bytes: usize,
    /// By how many per cent the result must be smaller (`min_comp_rate`).
    min_saved_percent: usize,
    /// Bytes of output without a match after which the compressor gives up (`first_success_by`).
    first_match_by: usize,
    /// Length of a match that ends the search, by the number of steps made (`match_size_good`,
    /// `match_size_drop`).
    good_match: [u16; STEPS],
}

impl Strategy {
    /// The strategy of TOAST and of full-page images (`PGLZ_strategy_default`).
    pub const DEFAULT: Strategy = Strategy {
        min_input_bytes: 32,
        min_saved_percent: 25,
        first_match_by: 1024,
        good_match: good_match(10),
    };

    /// Returns the size in bytes that the result must stay below (`result_max`).
    fn limit(&self, source_bytes: usize) -> usize {
        let percent = 100 - self.min_saved_percent;
        // As the server does it, to avoid an overflow.
        if source_bytes > MAX_INPUT / 100 {
            source_bytes / 100 * percent
        } else {
            source_bytes * percent / 100
        }
    }
}

/// Whether C's `char` is signed on the server's machine, which the hash depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chars {
    /// x86.
    Signed,
    /// ARM, POWER.
    Unsigned,
}

/// A compressor that makes the server's choices; its tables are reused from call to call.
pub struct Pglz {
    strategy: Strategy,
    chars: Chars,
    /// The position of the next input's first byte. Positions continue from one input to the next, modulo
    /// 2^16, so that the tables need no clearing: entries of earlier inputs precede the input's start. After
    /// a wraparound such an entry may seem to be within the input; but then the input does not have the
    /// entry's four bytes there, because it would have replaced the entry.
    next: u16,
    /// The newest position by a hash of four bytes.
    newest: Box<[u16; BUCKETS]>,
    /// The number of positions in each of the server's lists, modulo 2^16.
    entered: Box<[u16; BUCKETS]>,
    /// Entries by position modulo [`WINDOW`].
    entries: Box<[Entry; WINDOW]>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Distance to the previous position in the same bucket.
    back: u16,
    /// Number of positions that were in the server's list before this position.
    number: u16,
}

const MIN_MATCH: usize = 3;
const MAX_MATCH: usize = 273;
/// A tag could encode 4095, but the server does not use it.
const MAX_DISTANCE: usize = 4094;
const WINDOW: usize = 4096;
const BUCKETS: usize = 8192;
const MAX_INPUT: usize = i32::MAX as usize;
const STEPS: usize = 64;

/// Returns the required length by step: it falls by `drop_percent` per cent, rounded down.
const fn good_match(drop_percent: u16) -> [u16; STEPS] {
    let mut table = [128; STEPS];
    let mut step = 1;
    while step < STEPS {
        table[step] = table[step - 1] - table[step - 1] * drop_percent / 100;
        step += 1;
    }
    table
}

impl Default for Pglz {
    fn default() -> Pglz {
        Pglz::new()
    }
}

impl Pglz {
    /// Creates a compressor with the default strategy of a server on x86.
    pub fn new() -> Pglz {
        Pglz::with(Strategy::DEFAULT, Chars::Signed)
    }

    /// Creates a compressor with another strategy, or for another machine's `char`.
    pub fn with(strategy: Strategy, chars: Chars) -> Pglz {
        Pglz {
            strategy,
            chars,
            next: 0,
            newest: Box::new([0; BUCKETS]),
            entered: Box::new([0; BUCKETS]),
            entries: Box::new([Entry::default(); WINDOW]),
        }
    }

    /// Replaces the content of `target` by the compressed `source`. Returns false, with `target` empty, if
    /// the server would store it uncompressed.
    pub fn compress(&mut self, source: &[u8], target: &mut Vec<u8>) -> bool {
        target.clear();
        if source.len() < self.strategy.min_input_bytes || source.len() > MAX_INPUT {
            return false;
        }
        let limit = self.strategy.limit(source.len());
        // One iteration writes at most a control byte and a tag.
        target.resize(limit + 4, 0);
        let len = match self.chars {
            Chars::Signed => self.compress_into::<true>(source, target, limit),
            Chars::Unsigned => self.compress_into::<false>(source, target, limit),
        };
        self.next = self.next.wrapping_add(source.len() as u16);
        target.truncate(len.unwrap_or(0));
        len.is_some()
    }

    fn compress_into<const SIGNED: bool>(
        &mut self,
        source: &[u8],
        target: &mut [u8],
        limit: usize,
    ) -> Option<usize> {
        // The server's table is smaller for short inputs.
        let mask = match source.len() {
            0..128 => 511,
            128..256 => 1023,
            256..512 => 2047,
            512..1024 => 4095,
            _ => 8191,
        };
        let (mut read, mut written) = (0, 0);
        let (mut control, mut bit) = (0, 0u8);
        let mut matched = false;
        while read < source.len() {
            if written >= limit || !matched && written >= self.strategy.first_match_by {
                return None;
            }
            if bit == 0 {
                (control, bit) = (written, 1);
                target[control] = 0;
                written += 1;
            }
            let found = match source.len() - read {
                0..MIN_MATCH => None,
                MIN_MATCH => self.find_last::<SIGNED>(source, read, mask),
                _ => self.find(source, read, list_of::<SIGNED>(four(source, read), mask)),
            };
            let len = if let Some((len, distance)) = found {
                matched = true;
                target[control] |= bit;
                target[written + 1] = distance as u8;
                let high = (distance >> 4) as u8 & 0xF0;
                if len < 18 {
                    target[written] = high | (len - MIN_MATCH) as u8;
                    written += 2;
                } else {
                    target[written] = high | 0x0F;
                    target[written + 2] = (len - 18) as u8;
                    written += 3;
                }
                len
            } else {
                target[written] = source[read];
                written += 1;
                1
            };
            // The last three positions have fewer than four bytes, and no later position could match them.
            for at in read..(read + len).min(source.len().saturating_sub(3)) {
                let bytes = four(source, at);
                self.enter(at, bytes, list_of::<SIGNED>(bytes, mask));
            }
            read += len;
            bit <<= 1;
        }
        (written < limit).then_some(written)
    }

    /// Returns the length and offset of the match that the server chooses at a position before the last
    /// three.
    fn find(&self, source: &[u8], at: usize, list: usize) -> Option<(usize, usize)> {
        let longest = (source.len() - at).min(MAX_MATCH);
        let entered = self.entered[list];
        let (mut best_len, mut best_distance) = (0, 0);
        for (distance, entry) in self.same(source, at, four(source, at)) {
            if best_len > 0 {
                // The server's search ends before it reaches this entry.
                let steps = usize::from(entered.wrapping_sub(entry.number).wrapping_sub(2));
                if best_len >= usize::from(self.strategy.good_match[steps.min(STEPS - 1)]) {
                    break;
                }
                if source[at - distance + best_len] != source[at + best_len] {
                    continue;
                }
            }
            let len = 4 + same_start(&source[at - distance + 4..], &source[at + 4..at + longest]);
            if len > best_len {
                (best_len, best_distance) = (len, distance);
                if len == longest {
                    break;
                }
            }
        }
        (best_len > 0).then_some((best_len, best_distance))
    }

    /// Returns the match at the last position but two. The server searches the list that the first byte alone
    /// selects, where only positions with the same three bytes and the one fourth byte of this list can
    /// match.
    fn find_last<const SIGNED: bool>(&self, source: &[u8], at: usize, mask: usize) -> Option<(usize, usize)> {
        let [first, second, third] = *source[at..].first_chunk()?;
        let list = if SIGNED { first as i8 as usize } else { usize::from(first) } & mask;
        let three = u32::from_le_bytes([first, second, third, 0]);
        let fourth = (list_of::<SIGNED>(three, mask) ^ list) as u8;
        let bytes = three | u32::from(fourth) << 24;
        if list_of::<SIGNED>(bytes, mask) != list {
            return None;
        }
        self.same(source, at, bytes).next().map(|(distance, _)| (MIN_MATCH, distance))
    }

    /// Iterates over the earlier positions with the four bytes `bytes`, newest first, as the distance from
    /// `at` and the entry.
    #[inline(always)]
    fn same(&self, source: &[u8], at: usize, bytes: u32) -> impl Iterator<Item = (usize, Entry)> {
        let position = self.next.wrapping_add(at as u16);
        let furthest = at.min(MAX_DISTANCE);
        let mut back = position.wrapping_sub(self.newest[bucket_of(bytes)]);
        let mut distance = 0;
        std::iter::from_fn(move || {
            loop {
                distance += usize::from(back);
                if back == 0 || distance > furthest {
                    return None;
                }
                let entry = self.entries[usize::from(position.wrapping_sub(distance as u16)) % WINDOW];
                back = entry.back;
                if four(source, at - distance) == bytes {
                    return Some((distance, entry));
                }
            }
        })
    }

    #[inline(always)]
    fn enter(&mut self, at: usize, bytes: u32, list: usize) {
        let position = self.next.wrapping_add(at as u16);
        let newest = &mut self.newest[bucket_of(bytes)];
        let entered = &mut self.entered[list % BUCKETS];
        self.entries[usize::from(position) % WINDOW] =
            Entry { back: position.wrapping_sub(*newest), number: *entered };
        *newest = position;
        *entered = entered.wrapping_add(1);
    }
}

fn four(source: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([source[at], source[at + 1], source[at + 2], source[at + 3]])
}

/// Returns the server's hash of four bytes (`pglz_hist_idx`).
#[inline(always)]
fn list_of<const SIGNED: bool>(bytes: u32, mask: usize) -> usize {
    let [first, second, third, fourth] =
        bytes.to_le_bytes().map(|byte| if SIGNED { i32::from(byte as i8) } else { i32::from(byte) });
    (first << 6 ^ second << 4 ^ third << 2 ^ fourth) as usize & mask
}

/// Returns the hash of four bytes for this compressor's own buckets.
fn bucket_of(bytes: u32) -> usize {
    (bytes.wrapping_mul(0x9E37_79B1) >> 19) as usize
}

/// Returns the length of the common prefix in bytes.
pub fn same_start(one: &[u8], other: &[u8]) -> usize {
    let mut same = 0;
    while let (Some(a), Some(b)) = (one[same..].first_chunk(), other[same..].first_chunk()) {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return same + (differing.trailing_zeros() / 8) as usize;
        }
        same += 8;
    }
    same + one[same..].iter().zip(&other[same..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, ProptestConfig, any, prop, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::Strategy as _;

    use super::*;

    /// Accepts any result that is at least a byte smaller (`PGLZ_strategy_always`).
    const ALWAYS: Strategy = Strategy {
        min_input_bytes: 0,
        min_saved_percent: 0,
        first_match_by: usize::MAX,
        good_match: good_match(6),
    };

    /// Values as a server stored them, without their headers: stored bytes in hexadecimal, text, repetitions
    /// of the text.
    #[rustfmt::skip]
    const STORED: [(&str, &str, usize); 5] = [
        ("00496e207468652062006567696e6e696e67102077617302126c6f67602c20616e64050d021977086974680211736572762c65720f21\
          00071c3b030c616d1a650219690e680b4b2e",
         "In the beginning was the log, and the log was with the server, and the log was the server; the same was in \
          the beginning with the server.", 1),
        ("00d0bdd0b0d0b1d0bb00d18ed0b4d0b5d0bd00d0b8d0b520d0b7d000b020d0b6d183d180810220bbd0bed0bc3a0a120020d0b2d0b5\
          d0b4d10091d18220d181d0b5c4d1800111d1802c0a0e0926f9093e2c200f7804082e0f9807096001980820d0b80fb104",
         "наблюдение за журналом: журнал ведёт сервер, сервер ведёт журнал, наблюдение ведёт наблюдение за сервером \
          и за журналом", 1),
        ("0cd0900f02ff0f026b", "А", 200),
        ("8077616c64656e200f0781", "walden ", 22),
        ("fe780f01ff0f01ff0f01ff0f01ff0f01ff0f01ff0f01ff010f0147", "x", 2001),
    ];

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digit = |digit| char::from(digit).to_digit(16).unwrap() as u8;
        hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    #[test]
    fn values_become_what_the_server_stored() {
        let (mut pglz, mut target) = (Pglz::new(), Vec::new());
        for (stored, text, times) in STORED {
            let raw = text.repeat(times);
            // The second round uses tables that already have entries.
            for _ in 0..2 {
                assert!(pglz.compress(raw.as_bytes(), &mut target), "{text}");
                assert_eq!(target, bytes_of(stored), "{text}");
            }
        }
    }

    #[test]
    fn what_is_not_worth_it_stays() {
        let (mut pglz, mut target) = (Pglz::new(), vec![1]);
        assert!(!pglz.compress(&[b'x'; 31], &mut target), "too short");
        assert!(target.is_empty());
        assert!(pglz.compress(&[b'x'; 32], &mut target));
        let states = std::iter::successors(Some(1u32), |state| {
            Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
        });
        let mixed: Vec<u8> = states.map(|state| (state >> 24) as u8).take(5000).collect();
        assert!(!pglz.compress(&mixed, &mut target), "nothing matches");
        let mut always = Pglz::with(ALWAYS, Chars::Signed);
        assert!(always.compress(&[b'x'; 6], &mut target));
        assert!(!always.compress(b"", &mut target) && !always.compress(b"abc", &mut target));
    }

    /// Searches like the server: tries every position of the same list, newest first.
    fn plain_match<const SIGNED: bool>(
        source: &[u8],
        at: usize,
        mask: usize,
        good: &[u16],
    ) -> Option<(usize, usize)> {
        let list = |at: usize| match source[at..].first_chunk() {
            Some(bytes) => list_of::<SIGNED>(u32::from_le_bytes(*bytes), mask),
            None if SIGNED => source[at] as i8 as usize & mask,
            None => usize::from(source[at]) & mask,
        };
        let (mut best, mut steps) = ((0, 0), 0);
        for distance in (1..=at.min(MAX_DISTANCE)).filter(|distance| list(at - distance) == list(at)) {
            if steps > 0 && best.0 >= usize::from(good[(steps - 1).min(STEPS - 1)]) {
                break;
            }
            let pairs = source[at..].iter().zip(&source[at - distance..]).take(MAX_MATCH);
            let len = pairs.take_while(|(one, other)| one == other).count();
            if len > best.0 {
                best = (len, distance);
            }
            steps += 1;
        }
        (best.0 >= MIN_MATCH).then_some(best)
    }

    /// Compresses `source` with the server's unchanged search.
    fn plain_compress<const SIGNED: bool>(source: &[u8], strategy: &Strategy) -> Vec<u8> {
        let mask = [(128, 511), (256, 1023), (512, 2047), (1024, 4095), (usize::MAX, 8191)]
            .into_iter()
            .find(|(below, _)| source.len() < *below)
            .map_or(8191, |(_, mask)| mask);
        let (mut target, mut control, mut items, mut at) = (Vec::new(), 0, 0, 0);
        while at < source.len() {
            if items % 8 == 0 {
                control = target.len();
                target.push(0);
            }
            match plain_match::<SIGNED>(source, at, mask, &strategy.good_match) {
                Some((len, distance)) => {
                    target[control] |= 1 << (items % 8);
                    let nibble = (len - 3).min(15);
                    target.extend([(distance >> 8 << 4 | nibble) as u8, distance as u8]);
                    target.extend((nibble == 15).then(|| (len - 18) as u8));
                    at += len;
                }
                None => {
                    target.push(source[at]);
                    at += 1;
                }
            }
            items += 1;
        }
        target
    }

    /// Generates bytes with many repetitions, near and far.
    fn any_source() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::collection::vec(any::<u8>(), 1..12),
            prop::collection::vec(prop_oneof![Just(0u8), Just(0xC3), 0..4u8, 0xFC..=0xFFu8], 1..40),
            (any::<u8>(), 1..400usize).prop_map(|(byte, len)| vec![byte; len]),
        ];
        (prop::collection::vec(piece, 1..12), prop::collection::vec(any::<prop::sample::Index>(), 0..200))
            .prop_map(|(pieces, order)| {
                let repeated = order.iter().map(|index| index.get(&pieces).clone());
                pieces.iter().cloned().chain(repeated).flatten().collect()
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn the_shorter_walk_chooses_what_the_whole_one_does(
            sources in prop::collection::vec(any_source(), 1..4),
            next: u16,
        ) {
            for strategy in [Strategy::DEFAULT, ALWAYS] {
                let [mut signed, mut unsigned] =
                    [Chars::Signed, Chars::Unsigned].map(|chars| Pglz::with(strategy, chars));
                (signed.next, unsigned.next) = (next, next);
                for source in &sources {
                    let mut target = Vec::new();
                    if signed.compress(source, &mut target) {
                        prop_assert_eq!(&target, &plain_compress::<true>(source, &strategy));
                        let mut back = vec![0; source.len()];
                        prop_assert_eq!(decompress(&target, &mut back), Some(source.len()));
                        prop_assert_eq!(&back, source);
                    }
                    if unsigned.compress(source, &mut target) {
                        prop_assert_eq!(&target, &plain_compress::<false>(source, &strategy));
                    }
                }
            }
        }
    }

    #[test]
    fn literals_and_copies_come_back() {
        // Three literals, then a copy of 6 from 3 back.
        let source = [0b0000_1000, b'a', b'b', b'c', 0x03, 3];
        let mut target = [0; 9];
        assert_eq!(decompress(&source, &mut target), Some(9));
        assert_eq!(&target, b"abcabcabc");
    }

    #[test]
    fn long_copies_have_a_third_byte() {
        let source = [0b0000_0010, b'x', 0x0F, 1, 82];
        let mut target = [0; 101];
        assert_eq!(decompress(&source, &mut target), Some(101));
        assert!(target.iter().all(|&byte| byte == b'x'));
    }

    #[test]
    fn damage_is_detected() {
        let mut target = [0; 9];
        assert_eq!(decompress(&[1, 0x03, 3], &mut target), None, "nothing to copy from");
        assert_eq!(decompress(&[0, b'a'], &mut target), None, "too short");
        assert_eq!(decompress(&[0b10, b'a', 0x03], &mut target), None, "cut in a tag");
        assert_eq!(decompress(&[], &mut []), Some(0));
    }

    #[test]
    fn the_first_byte_that_differs_is_found_wherever_it_is() {
        for len in [0, 1, 63, 64, 65, 200] {
            let one: Vec<u8> = (0..len).collect();
            let mut other = one.clone();
            assert_eq!(same_start(&one, &other), one.len());
            for at in (0..one.len()).rev() {
                other[at] ^= 1;
                assert_eq!(same_start(&one, &other), at);
            }
        }
    }
}
