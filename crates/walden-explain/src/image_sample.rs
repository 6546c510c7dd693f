//! Samples for the estimates of savings: page touches, and compressed sizes of images.

use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, Fork, Image, Record, RelFileLocator};
use walden_format::version::Major;
use walden_recompress::{Method, Recompressor};

use crate::tally::ImageCause;

/// Maximum number of touches in a sample, 32 bytes each.
const MAX_TOUCHES: usize = 1 << 17;

/// The image that a touch logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TouchKind {
    /// An image: the first change after a checkpoint.
    Image,
    /// A separate record with an image: a hint bit was the first change after a checkpoint.
    Hint,
    /// An image that the record kind always contains.
    Forced,
    /// No image: the record initializes the page.
    Initialized,
}

/// A change after which the page needs no image until the next checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// A hash of the page's relation, fork and block number.
    pub page: u64,
    /// LSN of the record.
    pub lsn: Lsn,
    /// Bytes of the image with its header; for [`TouchKind::Hint`], bytes of the whole record.
    pub bytes: u32,
    pub kind: TouchKind,
    /// Set if the image was compressed for the sample.
    pub compressed: Option<CompressedImage>,
}

/// The effect of compression on an image. The sampled image represents all images since the previous sampled
/// image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompressedImage {
    /// Bytes of the represented images.
    pub represented_bytes: u32,
    /// Compressed bytes per byte.
    pub ratio: f32,
}

/// The touches of a sample of pages, in WAL order. A page is in the sample with all of its touches or with
/// none.
#[derive(Clone, Debug, Default)]
pub(crate) struct TouchSample {
    /// One of 2^`level` pages is in the sample.
    level: u32,
    touches: Vec<Touch>,
}

impl TouchSample {
    /// The touches.
    pub fn touches(&self) -> &[Touch] {
        &self.touches
    }

    /// Whether the sample contains the touches of all pages.
    pub fn is_complete(&self) -> bool {
        self.level == 0
    }

    fn has(&self, page: u64) -> bool {
        page.leading_zeros() >= self.level
    }

    #[inline]
    fn add(&mut self, touch: Touch) {
        if self.has(touch.page) {
            self.touches.push(touch);
            if self.touches.len() > MAX_TOUCHES {
                self.raise_level(self.level + 1);
            }
        }
    }

    #[inline(never)]
    fn raise_level(&mut self, mut level: u32) {
        loop {
            self.level = level;
            self.touches.retain(|touch| touch.page.leading_zeros() >= level);
            if self.touches.len() <= MAX_TOUCHES || level >= u64::BITS {
                return;
            }
            level += 1;
        }
    }

    /// Adds the touches of the next part of the WAL.
    fn append(&mut self, next: &TouchSample) {
        if next.level > self.level {
            self.raise_level(next.level);
        }
        next.touches.iter().for_each(|touch| self.add(*touch));
    }

    /// Clears the sample before another part of the WAL, which is most likely similar, so that the level
    /// stays.
    fn clear(&mut self) {
        self.touches.clear();
    }
}

/// Hashes a page's identity. The highest bits decide whether the page is in a sample.
fn hash_page(relation: RelFileLocator, fork: Fork, block: u32) -> u64 {
    let place = u64::from(block) << 8 | u64::from(fork.0);
    let file = u64::from(relation.relation) << 32 | u64::from(relation.database);
    let mixed = place.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ file.wrapping_mul(0xD6E8_FEB8_6659_FD93)
        ^ u64::from(relation.tablespace).rotate_left(17);
    // The finalizer of SplitMix64.
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Sums for the ratio of compressed to uncompressed bytes of images, and its standard error.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RatioSums {
    count: f64,
    raw: f64,
    compressed: f64,
    raw_squares: f64,
    products: f64,
    compressed_squares: f64,
}

impl RatioSums {
    /// Adds an image, weighted by the represented bytes.
    pub fn add(&mut self, image: CompressedImage) {
        let (raw, compressed) =
            (f64::from(image.represented_bytes), f64::from(image.represented_bytes) * f64::from(image.ratio));
        self.count += 1.0;
        self.raw += raw;
        self.compressed += compressed;
        self.raw_squares += raw * raw;
        self.products += raw * compressed;
        self.compressed_squares += compressed * compressed;
    }

    /// The ratio; `None` without images.
    pub fn ratio(&self) -> Option<f64> {
        (self.raw > 0.0).then(|| self.compressed / self.raw)
    }

    /// The standard error of the ratio (Cochran, Sampling Techniques, 6.4). A ratio of fewer than two images
    /// has an assumed error of 0.5.
    pub fn error(&self) -> f64 {
        let Some(ratio) = self.ratio().filter(|_| self.count >= 2.0) else { return 0.5 };
        let squares =
            self.compressed_squares - 2.0 * ratio * self.products + ratio * ratio * self.raw_squares;
        let variance = squares.max(0.0) / (self.count * (self.count - 1.0));
        variance.sqrt() / (self.raw / self.count)
    }
}

/// The method that a server of this version most likely supports at little cost: `wal_compression = lz4`
/// since 15, otherwise `on`.
pub(crate) fn usual_method(version: Major) -> Method {
    if version >= Major::V15 { Method::Lz4 } else { Method::Pglz }
}

/// Samples of a part of the WAL.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub(crate) touches: TouchSample,
    /// Blocks that have data and no image, and the bytes of that data.
    data_blocks: u64,
    data_bytes: u64,
}

impl Sample {
    /// Adds the samples of the next part of the WAL.
    pub(crate) fn append(&mut self, next: &Sample) {
        self.touches.append(&next.touches);
        self.data_blocks += next.data_blocks;
        self.data_bytes += next.data_bytes;
    }

    fn clear(&mut self) {
        self.touches.clear();
        (self.data_blocks, self.data_bytes) = (0, 0);
    }

    /// Average bytes of data of a block without an image. A block with an image omits about the same number.
    pub(crate) fn mean_data(&self) -> f64 {
        self.data_bytes as f64 / self.data_blocks.max(1) as f64
    }
}

/// Samples the images of one segment.
pub(crate) struct Sampler {
    pub sample: Sample,
    method: Method,
    recompressor: Recompressor,
    compressed: Vec<u8>,
    turn: Turn,
}

/// Selects images of a segment for the sample: the first images, then one image per distance, which grows
/// with the number of images.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Number of images that were compressed.
    count: u32,
    /// Bytes of images since the last sampled image.
    bytes: u32,
}

impl Turn {
    /// Counts an image. If the image belongs to the sample, returns the number of bytes that it represents.
    fn advance(&mut self, image_bytes: u32, method: Method) -> Option<u32> {
        // pglz takes ten times as long as lz4.
        let is_slow = method == Method::Pglz;
        let distance = match self.count {
            0..4 => 0,
            4..16 if !is_slow => 0,
            4..16 => 512 << 10,
            16..64 if !is_slow => 64 << 10,
            _ if is_slow => 2 << 20,
            _ => 256 << 10,
        };
        self.bytes = self.bytes.saturating_add(image_bytes);
        if self.bytes < distance {
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.bytes))
    }
}

impl Sampler {
    pub fn new(version: Major) -> Sampler {
        Sampler {
            sample: Sample::default(),
            method: usual_method(version),
            recompressor: Recompressor::new(),
            compressed: Vec::new(),
            turn: Turn::default(),
        }
    }

    /// Clears the samples for another segment.
    pub fn clear(&mut self) {
        self.sample.clear();
        self.turn = Turn::default();
    }

    /// Records the image of a block.
    pub fn add_image(&mut self, record: &Record<'_>, block: &BlockRef, image: &Image, cause: ImageCause) {
        let of_image = u32::from(image.len) + u32::from(image.header_len);
        let (kind, bytes) = match cause {
            ImageCause::Checkpoint => (TouchKind::Image, of_image),
            ImageCause::Hint => (TouchKind::Hint, record.header.total_len + u32::from(record.alignment)),
            ImageCause::Forced => (TouchKind::Forced, of_image),
            // Redo does not apply it, so the page may need another image.
            ImageCause::Consistency => return,
        };
        let page = hash_page(block.relation, block.fork, block.block);
        let compressed = match Method::from_compression(image.compression) {
            None => self.compress_some(record.image_data(image)),
            Some(_) => None,
        };
        self.sample.touches.add(Touch { page, lsn: record.lsn, bytes, kind, compressed });
    }

    /// Records a block without an image.
    pub fn add_plain(&mut self, lsn: Lsn, block: &BlockRef) {
        if block.will_init {
            self.add_initialized(lsn, block.relation, block.fork, block.block);
        } else if block.data_len > 0 {
            self.add_data(1, block.data_len.into());
        }
    }

    /// Records blocks that have data and no image.
    pub fn add_data(&mut self, blocks: u64, bytes: u64) {
        self.sample.data_blocks += blocks;
        self.sample.data_bytes += bytes;
    }

    /// Records that a record initializes a page.
    pub fn add_initialized(&mut self, lsn: Lsn, relation: RelFileLocator, fork: Fork, block: u32) {
        let page = hash_page(relation, fork, block);
        self.sample.touches.add(Touch {
            page,
            lsn,
            bytes: 0,
            kind: TouchKind::Initialized,
            compressed: None,
        });
    }

    /// Compresses an image if it belongs to the sample.
    fn compress_some(&mut self, image: &[u8]) -> Option<CompressedImage> {
        let represented_bytes = self.turn.advance(image.len() as u32, self.method)?;
        let is_smaller = self.recompressor.compress(self.method, image, &mut self.compressed);
        let compressed = if is_smaller { self.compressed.len().min(image.len()) } else { image.len() };
        Some(CompressedImage { represented_bytes, ratio: compressed as f32 / image.len().max(1) as f32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(page: u64) -> Touch {
        Touch { page, lsn: Lsn(page), bytes: 100, kind: TouchKind::Image, compressed: None }
    }

    #[test]
    fn a_sample_keeps_all_touches_of_a_page_or_none_and_stays_bounded() {
        let page = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let pages = 4 * MAX_TOUCHES as u64;
        let mut whole = TouchSample::default();
        // Parts with many and with few touches, which have their own levels.
        for _ in 0..2 {
            for range in [0..pages / 2, pages / 2..pages - 1000, pages - 1000..pages] {
                let mut part = TouchSample::default();
                range.for_each(|number| part.add(touch(page(number))));
                assert!(part.touches.len() <= MAX_TOUCHES);
                whole.append(&part);
            }
        }
        assert!(whole.touches.len() <= MAX_TOUCHES);
        let mut counts = rustc_hash::FxHashMap::<u64, u32>::default();
        whole.touches.iter().for_each(|touch| *counts.entry(touch.page).or_default() += 1);
        assert!(counts.values().all(|count| *count == 2));
        let estimate = counts.len() as f64 * 2f64.powi(whole.level as i32);
        assert!((estimate / pages as f64 - 1.0).abs() < 0.02, "{estimate} of {pages}");
    }

    #[test]
    fn pages_of_one_hash_do_not_exceed_the_sample() {
        let mut sample = TouchSample::default();
        (0..2 * MAX_TOUCHES).for_each(|_| sample.add(touch(1)));
        assert!(sample.touches.len() <= MAX_TOUCHES);
    }

    #[test]
    fn the_error_of_a_ratio_is_that_of_its_images() {
        let mut sums = RatioSums::default();
        assert_eq!((sums.ratio(), sums.error()), (None, 0.5));
        for _ in 0..100 {
            sums.add(CompressedImage { represented_bytes: 8000, ratio: 0.25 });
        }
        assert_eq!(sums.ratio(), Some(0.25));
        assert!(sums.error() < 1e-6);
        for _ in 0..100 {
            sums.add(CompressedImage { represented_bytes: 8000, ratio: 0.5 });
        }
        assert_eq!(sums.ratio(), Some(0.375));
        // The standard deviation is 0.125, of 200 images.
        assert!((sums.error() - 0.125 / 199f64.sqrt()).abs() < 1e-4, "{}", sums.error());
    }
}
