//! A frame of one block: header, and a raw or compressed block.

use super::huffman::Huffman;
use super::sequences::{SHORTEST, Sequences};
use super::{MAX_SOURCE_BYTES, Release, Sequence, literals, min_gain};

/// Shorter sources are never compressed.
const MIN_SOURCE_BYTES: usize = 7;

const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
const SINGLE_SEGMENT: u8 = 1 << 5;
const LAST_BLOCK: u32 = 1;
const RAW_BLOCK: u32 = 0;
const COMPRESSED: u32 = 2;

/// Writes frames; its buffers are reused from call to call.
#[derive(Default)]
pub struct Frames {
    literals: Vec<u8>,
    huffman: Huffman,
    sequences: Sequences,
}

/// Differences between the releases of libzstd.
impl Release {
    /// Returns whether the Huffman stage sorts bytes by an unstable quicksort.
    pub(super) fn sorts_quickly(self) -> bool {
        !matches!(self, Release::V1_4_7 | Release::V1_4_4)
    }

    /// Returns whether, for `total` symbols, normalized counts of less than one state are coded as -1 instead
    /// of 1.
    pub(super) fn less_than_one(self, total: u32) -> bool {
        total >= 2048 || self == Release::V1_4_4
    }
}

impl Frames {
    /// Appends the frame that the release writes for `source` (at most 32,768 bytes) with these sequences.
    /// Bytes after the last sequence are literals.
    pub fn frame(&mut self, release: Release, source: &[u8], sequences: &[Sequence], target: &mut Vec<u8>) {
        debug_assert!(source.len() <= MAX_SOURCE_BYTES);
        header(source.len(), target);
        let start = target.len();
        target.extend_from_slice(&[0; 3]);
        let (kind, len) = if self.block(release, source, sequences, target) {
            (COMPRESSED, target.len() - start - 3)
        } else {
            target.truncate(start + 3);
            target.extend_from_slice(source);
            (RAW_BLOCK, source.len())
        };
        let word = LAST_BLOCK | kind << 1 | (len as u32) << 3;
        target[start..start + 3].copy_from_slice(&word.to_le_bytes()[..3]);
    }

    /// Appends the compressed block. Returns false if the library would store it raw; the target may then
    /// have part of it.
    fn block(
        &mut self,
        release: Release,
        source: &[u8],
        sequences: &[Sequence],
        target: &mut Vec<u8>,
    ) -> bool {
        if !(MIN_SOURCE_BYTES..=MAX_SOURCE_BYTES).contains(&source.len()) {
            return false;
        }
        let fits = self.collect_literals(source, sequences);
        debug_assert!(fits, "sequences that do not fit the source");
        if !fits {
            return false;
        }
        let start = target.len();
        literals::section(&mut self.huffman, release, &self.literals, target);
        self.sequences.section(release, sequences, target)
            && target.len() - start < source.len() - min_gain(source.len())
    }

    /// Collects the literals between matches. Returns false if the sequences are longer than the source.
    fn collect_literals(&mut self, source: &[u8], sequences: &[Sequence]) -> bool {
        self.literals.clear();
        let mut rest = source;
        for sequence in sequences {
            let Some((literals, after)) = rest.split_at_checked(sequence.literals as usize) else {
                return false;
            };
            self.literals.extend_from_slice(literals);
            let at = source.len() - after.len();
            let Some(after) = after.get(sequence.copied as usize..) else { return false };
            if sequence.copied < SHORTEST || sequence.offset == 0 || sequence.offset as usize > at + 3 {
                return false;
            }
            rest = after;
        }
        self.literals.extend_from_slice(rest);
        true
    }
}

/// Appends the frame header with the content size and without a checksum.
fn header(len: usize, target: &mut Vec<u8>) {
    target.extend_from_slice(&MAGIC);
    match len {
        0..256 => target.extend_from_slice(&[SINGLE_SEGMENT, len as u8]),
        _ => {
            target.push(SINGLE_SEGMENT | 1 << 6);
            target.extend_from_slice(&((len - 256) as u16).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::zstd::numbers::numbers;
    use crate::zstd::parse;
    use crate::zstd::sources::{even, fingerprint, judged_sources, mixed};
    use crate::zstd::vectors::vectors;

    /// Compresses with the linked library.
    fn theirs(source: &[u8]) -> Vec<u8> {
        ::zstd::bulk::compress(source, ::zstd::DEFAULT_COMPRESSION_LEVEL).unwrap()
    }

    /// Returns whether the library compressed the block. If it did, our frame must be the same.
    fn judge(frames: &mut Frames, source: &[u8]) -> bool {
        let theirs = theirs(source);
        let sequences = parse::sequences(&theirs);
        // The sequences of a raw block are unknown, except that they save nothing.
        let compressed = sequences.is_some();
        let mut ours = Vec::new();
        frames.frame(Release::V1_5_7, source, &sequences.unwrap_or_default(), &mut ours);
        if compressed || ours.len() >= theirs.len() {
            assert!(ours == theirs, "{} bytes: ours {}, theirs {}", source.len(), ours.len(), theirs.len());
        }
        compressed
    }

    /// Generates words, and copies of earlier pieces.
    fn text(number: &mut impl FnMut(u64) -> u64, len: usize) -> Vec<u8> {
        let mut text = Vec::new();
        while text.len() < len {
            let word = number(500);
            text.extend_from_slice(format!("{:x} ", word * word * 0x1234_5678).as_bytes());
            if number(20) == 0 {
                let start = number(text.len() as u64) as usize;
                let end = (start + number(600) as usize).min(text.len());
                text.extend_from_within(start..end);
            }
        }
        text.truncate(len);
        text
    }

    #[test]
    fn the_library_makes_the_same() {
        let mut number = numbers(42);
        let mut frames = Frames::default();
        let mut compressed = 0;
        let around = |len: usize| len - 3..(len + 4).min(MAX_SOURCE_BYTES + 1);
        let lengths =
            (0..300).chain([512, 1024, 4096, 8192, 16_384, 32_768].into_iter().flat_map(around)).enumerate();
        for (round, len) in lengths {
            let sources = [
                text(&mut number, len),
                mixed(&mut number, 256, 1, len),
                mixed(&mut number, 2 + round as u64 % 254, 1, len),
                mixed(&mut number, 256 - round as u64 % 200, 2 + round as u32 % 40, len),
                vec![round as u8; len],
                (0..len).map(|at| if at % 16 == 15 { number(5) as u8 } else { (at / 256) as u8 }).collect(),
            ];
            for source in sources {
                compressed += usize::from(judge(&mut frames, &source));
            }
        }
        assert!(compressed > 1000, "{compressed} compressed");
    }

    #[test]
    fn the_library_sorts_the_same() {
        let mut number = numbers(7);
        let mut frames = Frames::default();
        for values in 9..80 {
            for each in [32_768 / values, 163, 164, 165, 166, 255, 256] {
                let mut source = even(&mut number, values, each.min(32_768 / values));
                judge(&mut frames, &source);
                // One more frequent byte makes the codes of the others longer.
                source.extend(std::iter::repeat_n(200, 4000));
                source.truncate(MAX_SOURCE_BYTES);
                judge(&mut frames, &source);
            }
        }
    }

    #[test]
    fn codes_that_would_be_too_long() {
        let mut frames = Frames::default();
        let mut number = numbers(3);
        for (one, two) in [(1, 1), (1, 2), (2, 3), (1, 4)] {
            let mut source = Vec::new();
            let (mut count, mut next) = (one, two);
            for byte in 0..40 {
                if source.len() + count > MAX_SOURCE_BYTES {
                    break;
                }
                source.extend(std::iter::repeat_n(byte * 3, count));
                (count, next) = (next, count + next);
            }
            for at in 1..source.len() {
                source.swap(at, number(at as u64 + 1) as usize);
            }
            assert!(judge(&mut frames, &source));
        }
    }

    #[test]
    fn releases_differ_as_they_do() {
        let mut releases = Vec::new();
        for vector in vectors() {
            for (source, expected) in judged_sources().iter().zip(vector.frames) {
                let sequences = parse::sequences(&theirs(source)).unwrap();
                let mut frame = Vec::new();
                Frames::default().frame(vector.release, source, &sequences, &mut frame);
                assert!(fingerprint(&frame) == expected, "{}: {} bytes", vector.version, frame.len());
            }
            releases.push(vector.release);
        }
        assert!(Release::ALL.iter().all(|release| releases.contains(release)), "{releases:?}");
    }

    /// Decoders up to 1.3.4 reject a table of two bytes as damaged if only one byte follows it. The match
    /// finder of this level never makes such sequences.
    #[test]
    fn a_short_end_is_not_compressed() {
        let judge = |odd: Option<usize>| {
            let (mut source, mut sequences) = (Vec::new(), Vec::new());
            for number in 0..32 {
                source.extend_from_slice(&[number as u8, 255]);
                let (said, offset) = if odd == Some(number) { (2, 4) } else { (1, 1) };
                for _ in 0..20 {
                    source.push(source[source.len() - offset]);
                }
                sequences.push(Sequence { literals: 2, offset: said, copied: 20 });
            }
            let mut frame = Vec::new();
            Frames::default().frame(Release::V1_5_1, &source, &sequences, &mut frame);
            assert!(::zstd::bulk::decompress(&frame, 1 << 20).unwrap() == source);
            frame.len()
        };
        // If all codes are the same, there is no table.
        assert!(judge(None) < 100);
        assert_eq!(judge(Some(31)), 7 + 3 + 32 * 22);
    }

    proptest! {
        /// For any sequences and any release, the library decompresses the frame to the source, and the
        /// parsed frame has the same sequences.
        #[test]
        fn frames_say_what_they_were_made_of(
            pieces in prop::collection::vec((0_usize..40, 0_usize..5000, 3_usize..60, any::<u64>()), 0..600),
            values in 1_u64..=256,
            power in 1_u32..30,
            tail in 0_usize..200,
        ) {
            let (mut source, mut sequences) = (Vec::new(), Vec::new());
            let mut last_offset = 1;
            for (literals, offset, copied, seed) in pieces {
                if source.len() + literals + copied > 32_000 {
                    break;
                }
                let (literals, before) = (literals.max(usize::from(source.is_empty())), source.len());
                source.extend(mixed(&mut numbers(seed | 1), values, power, literals));
                let repeated = literals > 0 && offset < 1500;
                if !repeated {
                    last_offset = offset % source.len() + 1;
                }
                for at in before + literals..before + literals + copied {
                    source.push(source[at - last_offset]);
                }
                sequences.push(Sequence {
                    literals: literals as u32,
                    offset: if repeated { 1 } else { last_offset as u32 + 3 },
                    copied: copied as u32,
                });
            }
            source.extend(mixed(&mut numbers(tail as u64 + 1), values, power, tail));
            let mut frames = Frames::default();
            for release in Release::ALL {
                let mut frame = Vec::new();
                frames.frame(release, &source, &sequences, &mut frame);
                prop_assert!(::zstd::bulk::decompress(&frame, 1 << 17).unwrap() == source);
                if let Some(parsed) = parse::sequences(&frame) {
                    prop_assert_eq!(parsed, &sequences[..]);
                }
            }
        }

        /// For any source, the frame of the sequences that the library finds is the library's frame.
        #[test]
        fn what_the_library_makes_of_anything(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..50),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..2000),
        ) {
            let mut source: Vec<u8> = order.iter().flat_map(|at| at.get(&words)).copied().collect();
            source.truncate(MAX_SOURCE_BYTES);
            judge(&mut Frames::default(), &source);
        }
    }
}
