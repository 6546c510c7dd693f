//! zstd frames, byte for byte as libzstd compresses them at its default level, which servers use for
//! full-page images.
//!
//! `matches` is the match finder: it finds the sequences that libzstd finds. `frame` is the entropy stage: it
//! encodes literals and sequences as libzstd does. Both reproduce certain releases. Compressed files depend
//! on that and every later version of Walden must decode them, so it is implemented here, and tests compare
//! it with the library.

mod bits;
mod frame;
mod fse;
mod huffman;
mod literals;
mod matches;
#[cfg(test)]
pub(crate) mod numbers;
#[cfg(test)]
mod parse;
mod sequences;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod vectors;

use self::frame::Frames;
use self::matches::Matches;

/// Releases of libzstd, grouped by how they compress pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Since 1.5.7: a long match at a later position must be longer than the short one at this position.
    V1_5_7,
    /// From 1.5.1 to 1.5.6: positions are searched two at a time; frequent literals of equal frequency have
    /// another order.
    V1_5_1,
    /// From 1.4.7 to 1.5.0: tables of few codes do not mark symbols with less than one state.
    V1_4_7,
    /// 1.4.4 and 1.4.5. Earlier releases are not reproduced, although servers require only 1.4.0.
    V1_4_4,
}

impl Release {
    /// All releases, the newest first.
    pub const ALL: [Release; 4] = [Release::V1_5_7, Release::V1_5_1, Release::V1_4_7, Release::V1_4_4];
}

/// PostgreSQL's largest page, and the longest source: positions have 16 bits, and libzstd has more rules for
/// longer ones.
const MAX_SOURCE_BYTES: usize = 32_768;

/// Literals, then a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sequence {
    /// Literal bytes before the match.
    literals: u32,
    /// The offset code. From 4 on, it is the offset + 3; 1 to 3 select a repeated offset, by the number in
    /// the format (whose meaning shifts if there are no literals).
    offset: u32,
    /// Bytes of the match, 3 or more.
    copied: u32,
}

/// Bytes that compression must save for a block or its literals (`ZSTD_minGain`).
fn min_gain(len: usize) -> usize {
    (len >> 6) + 2
}

/// A compressor; its buffers are reused from call to call.
#[derive(Default)]
pub struct Zstd {
    matches: Matches,
    frames: Frames,
    sequences: Vec<Sequence>,
}

impl Zstd {
    /// Replaces the content of `target` by the frame that a release writes for `source` at its default level,
    /// 3. Returns false if `source` is longer than PostgreSQL's largest page.
    pub fn compress(&mut self, release: Release, source: &[u8], target: &mut Vec<u8>) -> bool {
        target.clear();
        if source.len() > MAX_SOURCE_BYTES {
            return false;
        }
        self.matches.sequences(release, source, &mut self.sequences);
        self.frames.frame(release, source, &self.sequences, target);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the linked library's frame, and ours.
    fn both(zstd: &mut Zstd, source: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let theirs = ::zstd::bulk::compress(source, ::zstd::DEFAULT_COMPRESSION_LEVEL).unwrap();
        let mut ours = vec![1, 2, 3];
        assert!(zstd.compress(Release::ALL[0], source, &mut ours));
        (ours, theirs)
    }

    #[test]
    fn there_is_an_end() {
        let (mut zstd, mut target) = (Zstd::default(), Vec::new());
        assert!(zstd.compress(Release::V1_5_7, &[0; 32_768], &mut target));
        for release in Release::ALL {
            assert!(!zstd.compress(release, &[0; 32_769], &mut target));
        }
    }

    /// Generates rows of a page: ascending numbers, a few words, random bytes, zeros.
    fn any_page() -> impl Strategy<Value = Vec<u8>> {
        let row = (any::<u32>(), 0..40_usize, prop::collection::vec(any::<u8>(), 0..60), 0..30_usize);
        (prop::collection::vec(row, 1..120), 0..400_usize).prop_map(|(rows, pointers)| {
            let mut page: Vec<u8> =
                (0..pointers as u32).flat_map(|at| (0x0050_9F00 + at * 0x48).to_le_bytes()).collect();
            for (number, (id, word, random, zeros)) in rows.into_iter().enumerate() {
                page.extend_from_slice(&(number as u32 + 700).to_le_bytes());
                page.extend_from_slice(&(id & 0xFFFF).to_le_bytes());
                page.extend_from_slice(b"a word, another one and some more of them"[word..].as_ref());
                page.extend_from_slice(&random);
                page.extend(std::iter::repeat_n(0, zeros));
            }
            page.truncate(32_768);
            page
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn the_library_makes_the_same(pages in prop::collection::vec(any_page(), 1..3)) {
            let mut zstd = Zstd::default();
            for page in &pages {
                let (ours, theirs) = both(&mut zstd, page);
                prop_assert_eq!(ours, theirs);
            }
        }

        #[test]
        fn each_release_is_understood(page in any_page()) {
            let (mut zstd, mut target) = (Zstd::default(), Vec::new());
            for release in Release::ALL {
                zstd.compress(release, &page, &mut target);
                prop_assert_eq!(&::zstd::bulk::decompress(&target, 32_768).unwrap(), &page);
            }
        }
    }
}
