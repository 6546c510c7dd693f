//! Codes values and images that the server compressed in uncompressed form, if compressing them again yields
//! the same bytes. Decoding compresses them again.
//!
//! A compressed value starts with its uncompressed length and the method (`va_tcinfo` in `varatt.h`). A value
//! in a TOAST table is divided into chunks, one tuple each: number of the value, number of the chunk, the
//! chunk. The first chunk of a compressed value codes the whole value, and the others are predicted from it.

use std::collections::{HashMap, VecDeque};

use walden_format::record::RelFileLocator;
use walden_recompress::lz4::Lz4;
use walden_recompress::pglz::{Chars, Pglz, Strategy};
use walden_recompress::zstd::{Release, Zstd};
use walden_redo::page::varlena::{
    CompressionInfo, LONG_HEADER_BYTES, LongHeader, TOAST_CHUNK_BYTES, toast_compression,
};

use crate::{Corrupt, corrupt};

/// Maximum uncompressed length. Larger values stay compressed.
const MAX_RAW: usize = 16 << 20;
/// Maximum bytes of compressed values kept for their chunks.
const MAX_KEPT: usize = 8 << 20;

/// Compression method of a value or an image. The methods are part of the format and implemented in
/// `walden-recompress`: later versions must decode a file even if the compression libraries change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// pglz with signed `char` in C: on x86.
    Pglz,
    /// lz4.
    Lz4,
    /// pglz with unsigned `char`: on ARM and POWER. ASCII text compresses to the same bytes either way.
    PglzUnsigned,
    /// zstd, as compressed by this release and all later releases. Used only for images.
    Zstd(Release),
}

impl Method {
    /// All methods by number, which is part of the format.
    pub const ALL: [Method; 7] = [
        Method::Pglz,
        Method::Lz4,
        Method::PglzUnsigned,
        Method::Zstd(Release::V1_5_7),
        Method::Zstd(Release::V1_5_1),
        Method::Zstd(Release::V1_4_7),
        Method::Zstd(Release::V1_4_4),
    ];
    /// Methods of values.
    pub const OF_VALUES: [Method; 3] = [Method::Pglz, Method::Lz4, Method::PglzUnsigned];

    /// Returns the method's number.
    pub fn number(self) -> u64 {
        Method::ALL.iter().position(|method| *method == self).unwrap_or(0) as u64
    }

    fn is_of(self, compression: walden_recompress::Method) -> bool {
        compression
            == match self {
                Method::Pglz | Method::PglzUnsigned => walden_recompress::Method::Pglz,
                Method::Lz4 => walden_recompress::Method::Lz4,
                Method::Zstd(_) => walden_recompress::Method::Zstd,
            }
    }
}

/// Decompresses values and images, and finds the method that compresses them to the same bytes again.
pub struct Recompressor {
    pglz: [Pglz; 2],
    lz4: Lz4,
    zstd: Zstd,
    /// The method found last, for each method name of the server.
    latest: [Method; 3],
    scratch: Vec<u8>,
    /// When encoding: the content whose compressed form is in `scratch`, and the method. It is compressed
    /// again directly afterwards.
    tried: Option<(Vec<u8>, Method)>,
    /// The sample that decides whether values are decompressed. Without it, all are.
    trial: Option<Trial>,
    /// Bytes by which values and images may still grow by decompression, so that the segment's columns stay
    /// within their limit. Only encoding uses it. Decoding checks the limit before it decodes any column.
    growth_left: usize,
    values: RecentValues,
}

/// Sample of the first values, to measure whether values take less space when they are decompressed.
#[derive(Default)]
struct Trial {
    contents: Vec<u8>,
    stored: Vec<u8>,
    /// Result, once there are enough values.
    pays: Option<bool>,
}

impl Trial {
    /// Bytes of compressed values in the sample.
    const STORED_BYTES: usize = 128 << 10;

    /// Adds a value. Returns whether decompression pays; false until the sample is complete.
    fn pays(&mut self, content: &[u8], stored: &[u8]) -> bool {
        if let Some(pays) = self.pays {
            return pays;
        }
        self.contents.extend_from_slice(content);
        self.stored.extend_from_slice(stored);
        if self.stored.len() < Self::STORED_BYTES {
            return false;
        }
        let [content, stored] = [&self.contents, &self.stored].map(|bytes| zstd::bulk::compress(bytes, 1));
        let pays =
            content.is_ok_and(|content| stored.is_ok_and(|stored| content.len() * 3 < stored.len() * 2));
        *self = Trial { pays: Some(pays), ..Trial::default() };
        pays
    }
}

/// The latest compressed values of TOAST tables, which encoding and decoding keep equal.
#[derive(Default)]
struct RecentValues {
    /// By the TOAST table's relfilenumber and the value's OID (`chunk_id`). OIDs come from the WAL, so the
    /// hash is seeded to prevent deliberate collisions.
    by_number: HashMap<(u32, u32), Vec<u8>>,
    /// Keys, oldest first.
    order: VecDeque<(u32, u32)>,
    bytes: usize,
}

impl Default for Recompressor {
    fn default() -> Recompressor {
        Recompressor {
            pglz: [Chars::Signed, Chars::Unsigned].map(|chars| Pglz::with(Strategy::DEFAULT, chars)),
            lz4: Lz4::default(),
            zstd: Zstd::default(),
            latest: [Method::Pglz, Method::Lz4, Method::Zstd(Release::ALL[0])],
            scratch: Vec::new(),
            tried: None,
            trial: None,
            growth_left: 0,
            values: RecentValues::default(),
        }
    }
}

impl Recompressor {
    /// When encoding: leaves values compressed unless a sample shows that decompressing them saves a third of
    /// their space. Compressing them again takes most of the time needed to decode them.
    pub fn decompress_where_it_pays(&mut self) {
        self.trial = Some(Trial::default());
    }

    /// Clears the sample before a segment.
    pub fn restart_trial(&mut self) {
        self.trial.iter_mut().for_each(|trial| *trial = Trial::default());
    }

    /// Sets the number of bytes by which values and images may grow by decompression, from here on.
    pub fn set_growth_left(&mut self, bytes: usize) {
        self.growth_left = bytes;
    }

    /// Decompresses a value; `None` if no method compresses it to the same bytes again.
    pub fn decompress(&mut self, stored: &[u8]) -> Option<(Vec<u8>, Method)> {
        let (info, stream) = stored.split_first_chunk()?;
        let info = CompressionInfo::from_bytes(*info);
        let raw = info.raw_bytes as usize;
        if self.trial.as_ref().is_some_and(|trial| trial.pays == Some(false))
            || raw > MAX_RAW
            || raw <= stream.len()
            || raw - stream.len() > self.growth_left
        {
            return None;
        }
        // Neither method expands a byte of the stream further than this.
        if raw / 273 > stream.len() {
            return None;
        }
        let compression = match info.method {
            toast_compression::PGLZ => walden_recompress::Method::Pglz,
            toast_compression::LZ4 => walden_recompress::Method::Lz4,
            _ => return None,
        };
        let mut content = vec![0; raw];
        if compression.decompress(stream, &mut content) != Some(raw) {
            return None;
        }
        if self.trial.as_mut().is_some_and(|trial| !trial.pays(&content, stream)) {
            return None;
        }
        let method = self.method(&content, stream, compression)?;
        self.tried = Some((content.clone(), method));
        self.growth_left -= raw - stream.len();
        Some((content, method))
    }

    /// Compresses a value, and appends it to `out` in the form that [`Recompressor::decompress`] received.
    ///
    /// # Errors
    /// Returns an error if the value is too long, or if the method does not make it smaller.
    pub fn recompress(&mut self, content: &[u8], method: Method, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let id = if method == Method::Lz4 { toast_compression::LZ4 } else { toast_compression::PGLZ };
        let info = CompressionInfo::new(content.len(), id);
        let info = info.ok_or_else(|| corrupt("cannot compress a value: expected less than 1 GB"))?;
        let is_in_scratch = self.tried.take().is_some_and(|(tried, by)| by == method && tried == content);
        if !is_in_scratch && !self.compress(content, method) {
            return Err(corrupt("cannot compress a value: expected one that its method makes smaller"));
        }
        out.extend_from_slice(&info.to_bytes());
        out.extend_from_slice(&self.scratch);
        Ok(())
    }

    /// Returns the method that compresses a page without its hole to `stored`.
    ///
    /// Each page counts as if no byte of it were predicted. The caller of [`Recompressor::set_growth_left`]
    /// knows the actual size of the columns.
    pub fn method_of_page(
        &mut self,
        page: &[u8],
        stored: &[u8],
        compression: walden_recompress::Method,
    ) -> Option<Method> {
        let growth = page.len().saturating_sub(stored.len());
        let left = self.growth_left.checked_sub(growth)?;
        let method = self.method(page, stored, compression)?;
        self.growth_left = left;
        Some(method)
    }

    /// Compresses a page without its hole, and appends it to `out`.
    ///
    /// # Errors
    /// Returns an error if the method does not make the page smaller.
    pub fn recompress_page(&mut self, page: &[u8], method: Method, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        self.tried = None;
        if !self.compress(page, method) {
            return Err(corrupt("cannot compress a page: expected one that its method makes smaller"));
        }
        out.extend_from_slice(&self.scratch);
        Ok(())
    }

    /// Returns the method that compresses `content` to `stream`. The method found last is tried first.
    fn method(
        &mut self,
        content: &[u8],
        stream: &[u8],
        compression: walden_recompress::Method,
    ) -> Option<Method> {
        self.tried = None;
        let latest = self.latest[compression as usize];
        let others = Method::ALL.into_iter().filter(|other| *other != latest && other.is_of(compression));
        let same = |method: &Method| self.compress(content, *method) && self.scratch == stream;
        let method = std::iter::once(latest).chain(others).find(same)?;
        self.latest[compression as usize] = method;
        Some(method)
    }

    /// Sets `scratch` to the compressed content. Returns false if it is not smaller.
    fn compress(&mut self, content: &[u8], method: Method) -> bool {
        let [signed, unsigned] = &mut self.pglz;
        match method {
            Method::Pglz => signed.compress(content, &mut self.scratch),
            Method::PglzUnsigned => unsigned.compress(content, &mut self.scratch),
            Method::Lz4 => {
                self.scratch.clear();
                self.lz4.compress(content, &mut self.scratch);
                true
            }
            Method::Zstd(release) => self.zstd.compress(release, content, &mut self.scratch),
        }
    }

    /// Keeps a compressed value of a relation for its other chunks.
    pub fn remember(&mut self, relation: u32, number: u32, stored: &[u8]) {
        let RecentValues { by_number, order, bytes } = &mut self.values;
        *bytes += stored.len();
        if let Some(before) = by_number.insert((relation, number), stored.to_vec()) {
            *bytes -= before.len();
        } else {
            order.push_back((relation, number));
        }
        while *bytes > MAX_KEPT
            && let Some(oldest) = order.pop_front()
        {
            *bytes -= by_number.remove(&oldest).map_or(0, |value| value.len());
        }
    }

    /// Returns the content of a chunk's tuple, if its value is kept.
    pub fn chunk(&self, relation: u32, tuple: &[u8]) -> Option<&[u8]> {
        let (number, chunk) = numbers(tuple)?;
        let value = self.values.by_number.get(&(relation, number))?;
        let at = (chunk as usize).checked_mul(TOAST_CHUNK_BYTES).filter(|&at| at < value.len())?;
        value.get(at..value.len().min(at + TOAST_CHUNK_BYTES))
    }
}

/// Length of the numbers before a chunk in its tuple.
const CHUNK_NUMBERS: usize = 8;

/// Returns the number of a chunk's value and of the chunk: the first two attributes of its tuple (`chunk_id`,
/// `chunk_seq`).
fn numbers(tuple: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from_le_bytes(*tuple.get(at..)?.first_chunk()?));
    Some((word(0)?, word(4)?))
}

/// Returns the number of the value whose first chunk a tuple contains, if it does.
pub fn value_of_first_chunk(tuple: &[u8]) -> Option<u32> {
    numbers(tuple).filter(|&(_, chunk)| chunk == 0).map(|(number, _)| number)
}

/// TOAST values of a segment that encoding has read ahead. The first chunk codes the whole value.
#[derive(Default)]
pub struct UpcomingValues {
    /// By the TOAST table and the value's number. The WAL determines both, so the hash is seeded.
    values: HashMap<(RelFileLocator, u32), Seen>,
    bytes: usize,
}

#[derive(Default)]
struct Seen {
    stored: Vec<u8>,
    next: u32,
}

impl UpcomingValues {
    /// Maximum bytes of values read ahead in one segment.
    const MAX_BYTES: usize = 64 << 20;

    /// Adds a tuple that may be a chunk. Returns false if the tuple does not have the layout of a chunk.
    pub fn add(&mut self, relation: RelFileLocator, tuple: &[u8]) -> bool {
        let Some((number, chunk)) = numbers(tuple) else { return false };
        let Some(value) = tuple.get(CHUNK_NUMBERS..) else { return false };
        let Some(content) = value.get(LONG_HEADER_BYTES..) else { return false };
        let is_whole = LongHeader::read(value)
            .is_some_and(|header| !header.is_compressed && header.size as usize == value.len());
        if !is_whole || self.bytes > Self::MAX_BYTES {
            return false;
        }
        let seen = self.values.entry((relation, number)).or_default();
        if seen.next == chunk && seen.stored.len() == chunk as usize * TOAST_CHUNK_BYTES {
            seen.stored.extend_from_slice(content);
            seen.next += 1;
            self.bytes += content.len();
        }
        true
    }

    /// Returns a value, up to the last chunk that directly followed the previous one.
    pub fn value(&self, relation: RelFileLocator, number: u32) -> Option<&[u8]> {
        self.values.get(&(relation, number)).map(|seen| &seen.stored[..])
    }

    /// Clears all values at the end of a segment.
    pub fn clear(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use walden_redo::page::varlena::COMPRESSION_INFO_BYTES;

    use super::*;

    /// Content with bytes above 127, whose sign affects pglz's search for matches.
    fn content() -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            ((state >> 16) % below) as usize
        };
        let mut content = Vec::new();
        while content.len() < 6000 {
            let byte = [0x00, 0x7E, 0x80][next(3)];
            content.push(byte);
            if content.len() > 100 && next(40) == 0 {
                let start = next(content.len() as u32 - 20);
                content.extend_from_within(start..start + 4 + next(16));
            }
        }
        content
    }

    fn stored(content: &[u8], method: Method) -> Vec<u8> {
        let (mut recompressor, mut out) = (Recompressor::default(), Vec::new());
        recompressor.recompress(content, method, &mut out).unwrap();
        out
    }

    /// Returns whether the last of many values is decompressed if decompression must pay.
    fn is_last_decompressed(contents: impl Iterator<Item = Vec<u8>>) -> bool {
        let mut recompressor = Recompressor::default();
        recompressor.decompress_where_it_pays();
        recompressor.set_growth_left(64 << 20);
        let mut is_decompressed = true;
        for content in contents {
            is_decompressed = recompressor.decompress(&stored(&content, Method::Pglz)).is_some();
        }
        is_decompressed
    }

    #[test]
    fn values_are_decompressed_where_they_are_alike() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (state >> 40) as usize
        };
        let words: Vec<[u8; 20]> = (0..100).map(|_| std::array::from_fn(|_| next() as u8)).collect();
        let mut order = 11_usize;
        let alike = (0..200).map(|_| {
            let mut word = || {
                order = order.wrapping_mul(1_103_515_245).wrapping_add(12_345) % (1 << 31);
                words[(order >> 16) % words.len()]
            };
            (0..200).flat_map(|_| word()).collect()
        });
        assert!(is_last_decompressed(alike));
        // Each value contains strings twice that no other value contains.
        let other = (0..200).map(|_| {
            let strings = (0..60).flat_map(|_| [std::array::from_fn::<u8, 50, _>(|_| next() as u8); 2]);
            strings.flatten().collect()
        });
        assert!(!is_last_decompressed(other));
        let few = (0..3).map(|_| content());
        assert!(!is_last_decompressed(few), "too few values to know");
    }

    #[test]
    fn each_method_is_found_and_gives_the_same_bytes() {
        let content = content();
        let all = Method::OF_VALUES.map(|method| stored(&content, method));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "they differ");
        let mut recompressor = Recompressor::default();
        for (method, stored) in Method::OF_VALUES.into_iter().zip(&all) {
            recompressor.set_growth_left(1 << 20);
            assert!(recompressor.decompress(stored) == Some((content.clone(), method)), "{method:?}");
            let mut again = Vec::new();
            recompressor.recompress(&content, method, &mut again).unwrap();
            assert_eq!(again, *stored);
            // Another value, while the previous one is still in the scratch buffer.
            let mut other = Vec::new();
            recompressor.recompress(b"short, but not so short", Method::Lz4, &mut other).unwrap();
            assert_eq!(other.len(), COMPRESSION_INFO_BYTES + 1 + 1 + 23);
            let mut page = Vec::new();
            recompressor.recompress_page(&content, method, &mut page).unwrap();
            assert_eq!(page, stored[COMPRESSION_INFO_BYTES..]);
            let compression = if method == Method::Lz4 {
                walden_recompress::Method::Lz4
            } else {
                walden_recompress::Method::Pglz
            };
            assert_eq!(recompressor.method_of_page(&content, &page, compression), Some(method));
        }
    }

    #[test]
    fn pages_that_any_method_compressed_are_compressed_to_the_same_bytes() {
        let content = content();
        for method in Method::ALL {
            let (mut recompressor, mut stored, mut again) = (Recompressor::default(), Vec::new(), Vec::new());
            recompressor.recompress_page(&content, method, &mut stored).unwrap();
            let compressions = [
                walden_recompress::Method::Pglz,
                walden_recompress::Method::Lz4,
                walden_recompress::Method::Zstd,
            ];
            for compression in compressions {
                recompressor.set_growth_left(1 << 20);
                let found = recompressor.method_of_page(&content, &stored, compression);
                assert_eq!(found.is_some(), method.is_of(compression), "{method:?}");
                let Some(found) = found else { continue };
                recompressor.recompress_page(&content, found, &mut again).unwrap();
                assert!(again == stored, "{method:?} as {found:?}");
            }
        }
    }

    #[test]
    fn damaged_and_too_large_values_stay_compressed() {
        let content = content();
        for method in Method::OF_VALUES {
            let good = stored(&content, method);
            let mut recompressor = Recompressor::default();
            assert_eq!(recompressor.decompress(&good), None, "nothing may grow");
            recompressor.set_growth_left(1 << 20);
            for at in (0..good.len()).step_by(7) {
                assert_eq!(recompressor.decompress(&good[..at]), None, "cut at {at}");
            }
            let mut unknown = good.clone();
            unknown[3] |= 0xC0;
            assert_eq!(recompressor.decompress(&unknown), None);
            let mut huge = good.clone();
            huge[..3].fill(0xFF);
            assert_eq!(recompressor.decompress(&huge), None);
        }
    }
}
