//! Sizes of full-page images: a page without its hole, compressed by the same library as in the server.

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, ImageHeader, RelFileLocator};
use walden_recompress::{Method, Recompressor};
use walden_redo::page::PAGE_HEADER_BYTES;
use walden_redo::{PAGE_BYTES, Page};

use crate::outcome::Basis;

const IMAGE_HEADER: u32 = ImageHeader::WIDTH as u32;
/// Additional bytes of a compressed image with a hole.
const COMPRESS_HEADER: u32 = ImageHeader::HOLE_LEN_WIDTH as u32;

/// An uncompressed full-page image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawImage {
    /// Bytes of the page without its hole.
    pub len: u32,
    /// Whether it has a hole.
    pub has_hole: bool,
    /// The page's LSN in the image: the LSN of the preceding change, or 0 for a page that was never logged.
    pub lsn: Lsn,
    /// How the figure was obtained.
    pub basis: Basis,
}

/// Size of a full-page image in a record, including its header.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ImageSize {
    /// Size in bytes.
    pub bytes: u32,
    /// How the figure was obtained.
    pub basis: Basis,
}

impl RawImage {
    /// The image of a page (`XLogRecordAssemble`). `is_standard`: registered with `REGBUF_STANDARD`, so that
    /// the hole is removed.
    pub fn from_page(page: &Page, is_standard: bool) -> RawImage {
        let (lower, upper) = (page.lower(), page.upper());
        let has_hole = is_standard && lower >= PAGE_HEADER_BYTES && upper > lower && upper <= PAGE_BYTES;
        let len = if has_hole { PAGE_BYTES - (upper - lower) } else { PAGE_BYTES };
        RawImage { len: len as u32, has_hole, lsn: page.lsn(), basis: Basis::Reconstructed }
    }

    /// Returns its size without compression.
    pub fn size(&self) -> ImageSize {
        ImageSize { bytes: self.len + IMAGE_HEADER, basis: self.basis }
    }

    /// Returns its size if compression yields `len` bytes; an image that would not shrink is stored
    /// uncompressed.
    pub fn compressed(&self, len: u32, basis: Basis) -> ImageSize {
        let extra = if self.has_hole { COMPRESS_HEADER } else { 0 };
        let smaller = len + extra < self.len;
        let bytes = if smaller { len + extra + IMAGE_HEADER } else { self.len + IMAGE_HEADER };
        ImageSize { bytes, basis: basis.max(self.basis) }
    }
}

/// Images per stratum that are all compressed, before sampling starts.
const COMPRESSED_FIRST: u64 = 64;
/// The range of the number of images from one compressed image to the next after that. The distance varies so
/// that no pattern of the images, such as alternating old and new pages of updates, coincides with it.
const SAMPLE_DISTANCES: std::ops::RangeInclusive<u32> = 8..=24;

/// Compression ratio assumed if no page of the trace is known: halfway between pages of blanks and numbers,
/// as in pgbench (0.2 pglz, 0.25 lz4, 0.1 zstd), and incompressible pages. The error is at most as large as
/// the value itself.
const USUAL_RATIO: f64 = 0.45;

/// Estimates the sizes of compressed images by compressing all images, or a sample per relation.
pub struct Compressor {
    recompressor: Recompressor,
    all: bool,
    raw: Vec<u8>,
    compressed: Vec<u8>,
    strata: FxHashMap<(RelFileLocator, Method), Stratum>,
    /// Samples of all relations by method, for relations without any known page.
    all_strata: FxHashMap<Method, Stratum>,
}

/// Sample of the images of a relation under one method, in WAL order.
///
/// An image that is not sampled is assigned the ratio of the last sampled image. So each sampled image
/// represents the images up to the next sampled image: the sum follows data that changes along the relation,
/// and the first images, all of which are compressed, represent only themselves.
#[derive(Clone, Copy, Default, Debug)]
struct Stratum {
    compressed: u64,
    raw_bytes: u64,
    compressed_bytes: u64,
    /// Number of images until the next sampled image, once the first images are sampled.
    until_next: u32,
    last_ratio: f64,
    /// The difference between the last two ratios.
    last_difference: f64,
    /// Bytes of the uncompressed images since the last compressed one.
    followers_bytes: f64,
    /// Variance of the images up to the last compressed one.
    variance: f64,
    /// Bytes of images whose size is estimated from other relations.
    guessed_bytes: f64,
}

impl Stratum {
    fn ratio(&self) -> f64 {
        self.compressed_bytes as f64 / (self.raw_bytes as f64).max(1.0)
    }

    fn add(&mut self, raw: u32, compressed: u32) {
        let ratio = f64::from(compressed) / f64::from(raw.max(1));
        if self.compressed > 0 {
            self.last_difference = ratio - self.last_ratio;
            self.variance += self.variance_of_followers(raw);
        }
        self.followers_bytes = 0.0;
        self.last_ratio = ratio;
        self.compressed += 1;
        self.raw_bytes += u64::from(raw);
        self.compressed_bytes += u64::from(compressed);
        // A linear congruential generator, so that the prediction is reproducible.
        let random = (self.compressed as u32).wrapping_mul(1_664_525).wrapping_add(1_013_904_223) >> 8;
        let distances = SAMPLE_DISTANCES;
        self.until_next = distances.start() + random % (distances.end() - distances.start() + 1);
    }

    /// Returns the variance of the images since the last compressed image, from the difference between the
    /// ratios of this image and the next compressed image. The variance is large where the data changes, and
    /// small where images are alike, however few were compressed. `raw`: bytes of one image.
    fn variance_of_followers(&self, raw: u32) -> f64 {
        let followers = self.followers_bytes;
        self.last_difference.powi(2) / 2.0 * followers * (followers + f64::from(raw))
    }
}

impl Compressor {
    /// Creates a compressor of all images or, if not `all`, of a sample.
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

    /// Returns the size of an image under a method. Without a `page` it is estimated from the relation's
    /// other images.
    pub fn image_size(
        &mut self,
        method: Method,
        relation: RelFileLocator,
        image: RawImage,
        page: Option<&Page>,
    ) -> ImageSize {
        let stratum = self.strata.entry((relation, method)).or_default();
        let raw_bytes = f64::from(image.len);
        let Some(page) = page else {
            if stratum.compressed > 0 {
                return image.compressed((raw_bytes * stratum.ratio()).round() as u32, Basis::Sampled);
            }
            let all = self.all_strata.entry(method).or_default();
            let ratio = if all.compressed > 0 { all.ratio() } else { USUAL_RATIO };
            all.guessed_bytes += raw_bytes * ratio;
            return image.compressed((raw_bytes * ratio) as u32, Basis::Estimated);
        };
        stratum.until_next = stratum.until_next.saturating_sub(1);
        if !self.all && stratum.compressed >= COMPRESSED_FIRST && stratum.until_next > 0 {
            stratum.followers_bytes += raw_bytes;
            return image.compressed((raw_bytes * stratum.last_ratio).round() as u32, Basis::Sampled);
        }
        self.raw.clear();
        // The image of a consistency check may have a hole that the replayed page does not have.
        match (image.has_hole, page.0.get(..page.lower()), page.0.get(page.upper()..)) {
            (true, Some(before), Some(after)) => {
                self.raw.extend_from_slice(before);
                self.raw.extend_from_slice(after);
            }
            _ => self.raw.extend_from_slice(&page.0),
        }
        // In the page, `pd_lsn` is already the LSN of the record itself (`PageXLogRecPtr`).
        let lsn = [(image.lsn.0 >> 32) as u32, image.lsn.0 as u32].map(u32::to_le_bytes);
        self.raw.iter_mut().zip(lsn.as_flattened()).for_each(|(byte, of_lsn)| *byte = *of_lsn);
        let smaller = self.recompressor.compress(method, &self.raw, &mut self.compressed);
        let len = if smaller { self.compressed.len() as u32 } else { image.len };
        stratum.add(image.len, len.min(image.len));
        self.all_strata.entry(method).or_default().add(image.len, len.min(image.len));
        image.compressed(len, Basis::Reconstructed)
    }

    /// Returns twice the standard error of the sum of a method's sampled images, plus the possible error of
    /// images estimated without a page, in bytes.
    pub fn error(&self, method: Method) -> f64 {
        let of_method = self.strata.iter().filter(|((_, of), _)| *of == method);
        let variance =
            of_method.map(|(_, stratum)| stratum.variance + stratum.variance_of_followers(PAGE_BYTES as u32));
        let guessed = self.all_strata.get(&method).map_or(0.0, |all| all.guessed_bytes);
        2.0 * variance.sum::<f64>().sqrt() + guessed
    }
}

/// Whether a block is registered with `REGBUF_STANDARD`. Free space maps, visibility maps and BRIN's meta and
/// range map pages have content where other pages have their hole.
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
    fn holes_are_removed_from_standard_pages() {
        let page = page(100, 8000, 3);
        let raw = RawImage::from_page(&page, true);
        assert_eq!((raw.len, raw.has_hole), (8192 - 7900, true));
        assert_eq!(RawImage::from_page(&page, false).len, 8192);
        assert_eq!(raw.size().bytes, raw.len + 5);
        assert_eq!(raw.compressed(raw.len - 3, Basis::Exact).bytes, raw.len - 3 + 7);
        assert_eq!(raw.compressed(raw.len - 2, Basis::Exact).bytes, raw.len + 5, "not worth it");
    }

    #[test]
    fn a_sample_is_within_its_error() {
        let (mut all, mut sample) = (Compressor::new(true), Compressor::new(false));
        let (mut exact, mut guessed) = (0.0, 0.0);
        for seed in 1..2000 {
            let page = page(200, 300 + (seed % 50) as u16 * 8, seed * 7919);
            let raw = RawImage::from_page(&page, true);
            exact += f64::from(all.image_size(Method::Lz4, RELATION, raw, Some(&page)).bytes);
            guessed += f64::from(sample.image_size(Method::Lz4, RELATION, raw, Some(&page)).bytes);
        }
        assert_eq!(all.error(Method::Lz4), 0.0);
        let error = sample.error(Method::Lz4);
        assert!(error > 0.0 && (exact - guessed).abs() <= 2.0 * error, "{exact} {guessed} {error}");
    }

    /// A relation whose images change along it: its first part, which is fully compressed, does not represent
    /// the rest.
    #[test]
    fn the_first_images_do_not_stand_for_the_rest() {
        let mut noise = 12_345_u32;
        let mut page_of = |is_noise: bool| {
            let mut page = page(24, 24, 0);
            for byte in page.0[24..].iter_mut().filter(|_| is_noise) {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (noise >> 24) as u8;
            }
            page
        };
        for (first, is_noise_first) in [(60, true), (60, false), (200, true), (333, false)] {
            let (mut all, mut sample) = (Compressor::new(true), Compressor::new(false));
            let (mut exact, mut guessed) = (0.0, 0.0);
            for at in 0..800 {
                let page = page_of((at < first) == is_noise_first);
                let raw = RawImage::from_page(&page, true);
                exact += f64::from(all.image_size(Method::Pglz, RELATION, raw, Some(&page)).bytes);
                guessed += f64::from(sample.image_size(Method::Pglz, RELATION, raw, Some(&page)).bytes);
            }
            let (off, error) = ((exact - guessed).abs(), sample.error(Method::Pglz));
            // At most the images between two sampled images are counted as the other kind.
            assert!(off <= error && off <= 25.0 * 8192.0, "{first}: {exact} {guessed} {error}");
            assert!(error < 50.0 * 8192.0, "{first}: {error}");
        }
    }

    /// The server compresses the page as it was before the record, and replay has set the LSN since.
    #[test]
    fn an_image_has_the_lsn_before_the_record() {
        let mut page = page(24, 24, 0);
        page.0[24..].fill(0);
        page.set_lsn(Lsn(0x12_3456_789A));
        let size = |lsn| {
            let raw = RawImage { lsn, ..RawImage::from_page(&page, true) };
            Compressor::new(true).image_size(Method::Pglz, RELATION, raw, Some(&page)).bytes
        };
        assert_eq!(size(page.lsn()), size(Lsn(0x21_4365_8798)));
        assert!(size(Lsn(0)) + 4 < size(page.lsn()));
    }

    /// Alternating old and new pages of updates.
    #[test]
    fn a_sample_does_not_follow_a_pattern() {
        let (mut all, mut sample) = (Compressor::new(true), Compressor::new(false));
        let (mut exact, mut guessed) = (0.0, 0.0);
        for at in 0..4000 {
            let page = page(200, 300, if at % 2 == 0 { 0 } else { 7919 });
            let raw = RawImage::from_page(&page, true);
            exact += f64::from(all.image_size(Method::Pglz, RELATION, raw, Some(&page)).bytes);
            guessed += f64::from(sample.image_size(Method::Pglz, RELATION, raw, Some(&page)).bytes);
        }
        let error = sample.error(Method::Pglz);
        assert!((exact - guessed).abs() <= error && error < exact / 5.0, "{exact} {guessed} {error}");
    }
}
