//! What images would take: a page without its hole, compressed as the server does it.

use rustc_hash::FxHashMap;
use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::PAGE_HEADER;
use walden_redo::recompress::{Method, Recompressor};
use walden_redo::{PAGE_BYTES, Page};

use crate::outcome::Share;

/// Bytes of an image's header in its record; two more if it is compressed and has a hole (`SizeOfXLogRecordBlockImageHeader`,
/// `SizeOfXLogRecordBlockCompressHeader`).
const IMAGE_HEADER: u32 = 5;
const COMPRESS_HEADER: u32 = 2;

/// An image without compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawImage {
    /// Bytes of the page without its hole.
    pub len: u32,
    /// It has a hole.
    pub has_hole: bool,
    /// How it is known.
    pub share: Share,
}

/// What an image takes in a record, its header included.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ImageSize {
    /// Bytes.
    pub bytes: u32,
    /// How it is known.
    pub share: Share,
}

impl RawImage {
    /// That of a page (`XLogRecordAssemble`): the hole is left out where the page's maker vouches for its bounds.
    pub fn of(page: &Page, standard: bool) -> RawImage {
        let (lower, upper) = (page.lower(), page.upper());
        let has_hole = standard && lower >= PAGE_HEADER && upper > lower && upper <= PAGE_BYTES;
        let len = if has_hole { PAGE_BYTES - (upper - lower) } else { PAGE_BYTES };
        RawImage { len: len as u32, has_hole, share: Share::Reconstructed }
    }

    /// What it takes as it is.
    pub fn size(&self) -> ImageSize {
        ImageSize { bytes: self.len + IMAGE_HEADER, share: self.share }
    }

    /// What it takes compressed to `len` bytes; one that would not get smaller is not compressed.
    pub fn compressed(&self, len: u32, share: Share) -> ImageSize {
        let extra = if self.has_hole { COMPRESS_HEADER } else { 0 };
        let smaller = len + extra < self.len;
        let bytes = if smaller { len + extra + IMAGE_HEADER } else { self.len + IMAGE_HEADER };
        ImageSize { bytes, share: share.max(self.share) }
    }
}

/// Images of a stratum that are compressed before a sample has to do.
const COMPRESSED_FIRST: u64 = 64;
/// One in that many is compressed then.
const SAMPLE: u64 = 16;

/// What pages usually come to where not one of this log can be tried, by method: half way between pages full of blanks
/// and numbers, as pgbench has them (a fifth, a quarter, a tenth), and ones that hardly get smaller. Off by as much as
/// itself at most.
const USUAL_RATIO: f64 = 0.45;

/// Compresses pages, all of them or a sample of each relation's.
pub struct Compressor {
    recompressor: Recompressor,
    all: bool,
    raw: Vec<u8>,
    compressed: Vec<u8>,
    strata: FxHashMap<(RelFileLocator, Method), Stratum>,
    /// All relations together, by method, for those of which no page is known.
    all_strata: FxHashMap<Method, Stratum>,
}

/// What is known of the images of a relation under one method.
#[derive(Clone, Copy, Default, Debug)]
struct Stratum {
    met: u64,
    compressed: u64,
    raw_bytes: u64,
    compressed_bytes: u64,
    /// Of the compressed images' ratios.
    squares: f64,
    /// Bytes of compressed images that only others' ratio tells.
    blind_bytes: f64,
}

impl Stratum {
    fn ratio(&self) -> f64 {
        self.compressed_bytes as f64 / (self.raw_bytes as f64).max(1.0)
    }
}

impl Compressor {
    /// One that compresses all images, or else a sample where there are many.
    pub fn new(all: bool) -> Compressor {
        Compressor {
            recompressor: Recompressor::new(),
            all,
            raw: Vec::with_capacity(PAGE_BYTES),
            compressed: Vec::new(),
            strata: FxHashMap::default(),
            all_strata: FxHashMap::default(),
        }
    }

    /// What an image would take under a method. Where `page` is not known, its relation's other images tell.
    pub fn size(
        &mut self,
        method: Method,
        relation: RelFileLocator,
        image: RawImage,
        page: Option<&Page>,
    ) -> ImageSize {
        let stratum = self.strata.entry((relation, method)).or_default();
        stratum.met += 1;
        let wanted = self.all || stratum.compressed < COMPRESSED_FIRST || stratum.met.is_multiple_of(SAMPLE);
        let (Some(page), true) = (page, wanted) else {
            let len = (f64::from(image.len) * stratum.ratio()).round() as u32;
            if stratum.compressed == 0 {
                let all = self.all_strata.entry(method).or_default();
                let ratio = if all.compressed > 0 { all.ratio() } else { USUAL_RATIO };
                all.blind_bytes += f64::from(image.len) * ratio;
                return image.compressed((f64::from(image.len) * ratio) as u32, Share::Estimated);
            }
            return image.compressed(len, Share::Sampled);
        };
        self.raw.clear();
        if image.has_hole {
            self.raw.extend_from_slice(&page.0[..page.lower()]);
            self.raw.extend_from_slice(&page.0[page.upper()..]);
        } else {
            self.raw.extend_from_slice(&page.0);
        }
        let smaller = self.recompressor.compress(method, &self.raw, &mut self.compressed);
        let len = if smaller { self.compressed.len() as u32 } else { image.len };
        for stratum in [stratum, self.all_strata.entry(method).or_default()] {
            stratum.compressed += 1;
            stratum.raw_bytes += u64::from(image.len);
            stratum.compressed_bytes += u64::from(len.min(image.len));
            stratum.squares += (f64::from(len) / f64::from(image.len.max(1))).powi(2);
        }
        image.compressed(len, Share::Reconstructed)
    }

    /// Twice the standard error that sampling brings into the sum of a method's images, in bytes, and what images of which
    /// no page is known may be off by.
    pub fn error(&self, method: Method) -> f64 {
        let of_method = self.strata.iter().filter(|((_, of), _)| *of == method);
        let variance = of_method.map(|(_, stratum)| {
            let tried = stratum.compressed as f64;
            let guessed = stratum.met.saturating_sub(stratum.compressed) as f64;
            if tried < 2.0 || guessed == 0.0 {
                return 0.0;
            }
            let raw = stratum.raw_bytes as f64 / tried;
            let spread = (stratum.squares / tried - stratum.ratio().powi(2)).max(0.0) * raw * raw;
            spread * guessed * (1.0 + guessed / tried)
        });
        let blind = self.all_strata.get(&method).map_or(0.0, |all| all.blind_bytes);
        2.0 * variance.sum::<f64>().sqrt() + blind
    }
}

/// Whether the record's writer vouches for the bounds of a block's hole (`REGBUF_STANDARD`): maps and BRIN's own have
/// their content in what looks like it.
pub fn is_standard(fork: Fork, is_brin_map: bool) -> bool {
    fork == Fork::MAIN && !is_brin_map
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELATION: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };

    fn page(lower: u16, upper: u16, seed: u32) -> Page {
        let mut page = Page([0; PAGE_BYTES]);
        for (at, byte) in page.0.iter_mut().enumerate() {
            *byte = ((at as u32).wrapping_mul(seed) >> 7) as u8 & 0x1F;
        }
        page.0[12..14].copy_from_slice(&lower.to_le_bytes());
        page.0[14..16].copy_from_slice(&upper.to_le_bytes());
        page
    }

    #[test]
    fn holes_are_left_out_where_the_writer_says_so() {
        let page = page(100, 8000, 3);
        let raw = RawImage::of(&page, true);
        assert_eq!((raw.len, raw.has_hole), (8192 - 7900, true));
        assert_eq!(RawImage::of(&page, false).len, 8192);
        assert_eq!(raw.size().bytes, raw.len + 5);
        assert_eq!(raw.compressed(raw.len - 3, Share::Exact).bytes, raw.len - 3 + 7);
        assert_eq!(raw.compressed(raw.len - 2, Share::Exact).bytes, raw.len + 5, "not worth it");
    }

    #[test]
    fn a_sample_comes_close() {
        let (mut all, mut sample) = (Compressor::new(true), Compressor::new(false));
        let (mut exact, mut guessed) = (0.0, 0.0);
        for seed in 1..2000 {
            let page = page(200, 300 + (seed % 50) as u16 * 8, seed * 7919);
            let raw = RawImage::of(&page, true);
            exact += f64::from(all.size(Method::Lz4, RELATION, raw, Some(&page)).bytes);
            guessed += f64::from(sample.size(Method::Lz4, RELATION, raw, Some(&page)).bytes);
        }
        assert_eq!(all.error(Method::Lz4), 0.0);
        let error = sample.error(Method::Lz4);
        assert!(error > 0.0 && (exact - guessed).abs() <= 2.0 * error, "{exact} {guessed} {error}");
    }
}
