//! zstd frames, byte for byte as libzstd compresses them at its default level, which servers use for full-page images.
//!
//! `matches` is the match finder: it finds the sequences that libzstd finds. `frame` is the entropy stage: it encodes literals
//! and sequences as libzstd does. Both reproduce certain releases. Compressed files depend on that and every later version of
//! Walden must decode them, so it is implemented here, and tests compare it with the library.

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

/// libzstd's releases, as far as they compress pages differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// From 1.5.7 on: a long copy that begins later has to be longer than the short one that begins here.
    V1_5_7,
    /// From 1.5.1 to 1.5.6: positions are searched two at a time; bytes that are often and equally often literals come in
    /// another order.
    V1_5_1,
    /// From 1.4.7 to 1.5.0: tables of few codes do not mark those that are rarer than one state.
    V1_4_7,
    /// 1.4.4 and 1.4.5. What those before made, of which servers need 1.4.0 or later, is not here.
    V1_4_4,
}

impl Release {
    /// The newest first.
    pub const ALL: [Release; 4] = [Release::V1_5_7, Release::V1_5_1, Release::V1_4_7, Release::V1_4_4];
}

/// PostgreSQL's largest page, and the longest source here: positions are of 16 bits, and for longer ones libzstd has more rules.
const MAX_SOURCE_BYTES: usize = 32_768;

/// Literals, then a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sequence {
    /// Bytes that come as they are before the copy.
    literals: u32,
    /// 1 to 3: a repeated offset by its number as the format counts it (with literals == 0 the meaning shifts as the format
    /// says); from 4 on the offset + 3.
    offset: u32,
    /// Bytes copied, 3 or more.
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
    /// Replaces what is in `target` by the frame that a release makes of `source` at level 3, which is its default; no if that
    /// is longer than PostgreSQL's largest page.
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

    /// What the library that is linked makes of it, and ours.
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

    /// Rows of a page: counting numbers, a few words, random bytes, zeros.
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
