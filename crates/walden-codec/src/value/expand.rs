//! Values that the server compressed: coded as they were before, and compressed again on the way back, wherever that gives
//! the very same bytes.
//!
//! A compressed value begins with its length before compression and the method (`va_tcinfo`). A value in a TOAST table is
//! cut into chunks, a row each: number of the value, number of the chunk, the chunk. The first one of a compressed value
//! says all of it; the others are told from it.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;
use walden_redo::compress;
use walden_redo::compress::lz4::Lz4;
use walden_redo::compress::pglz::{Chars, Pglz, Strategy};
use walden_redo::compress::zstd::{Release, Zstd};

use crate::{Corrupt, corrupt};

/// Bytes of `va_tcinfo`.
const INFO: usize = 4;
/// The method is in the two upper bits: 0 for pglz, 1 for lz4.
const LENGTH: u32 = 0x3FFF_FFFF;
const LZ4: u32 = 1 << 30;
/// Larger values stay as they are.
const MAX_RAW: usize = 16 << 20;
/// Bytes of compressed values that are kept for their chunks.
const MAX_KEPT: usize = 8 << 20;
/// Bytes of a chunk but the last one (`TOAST_MAX_CHUNK_SIZE` with pages of 8 kB).
pub const CHUNK: usize = 1996;

/// How something is compressed again. These are parts of the form, and our own code: a file must be decoded by every later
/// version, whatever libraries make by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// pglz where C's `char` has a sign: on x86.
    Pglz,
    /// lz4.
    Lz4,
    /// pglz where it has none: on ARM and POWER. Whatever is text in ASCII is the same for both.
    PglzUnsigned,
    /// zstd as its releases did it from one on; only pages.
    Zstd(Release),
}

impl Method {
    /// By number; how things are numbered is part of the form.
    pub const ALL: [Method; 7] = [
        Method::Pglz,
        Method::Lz4,
        Method::PglzUnsigned,
        Method::Zstd(Release::V1_5_7),
        Method::Zstd(Release::V1_5_1),
        Method::Zstd(Release::V1_4_7),
        Method::Zstd(Release::V1_4_4),
    ];
    /// Those of values.
    pub const OF_VALUES: [Method; 3] = [Method::Pglz, Method::Lz4, Method::PglzUnsigned];

    /// Its number.
    pub fn number(self) -> u64 {
        Method::ALL.iter().position(|method| *method == self).unwrap_or(0) as u64
    }

    fn is_of(self, compression: compress::Method) -> bool {
        compression
            == match self {
                Method::Pglz | Method::PglzUnsigned => compress::Method::Pglz,
                Method::Lz4 => compress::Method::Lz4,
                Method::Zstd(_) => compress::Method::Zstd,
            }
    }
}

/// Compresses and decompresses values.
pub struct Expander {
    pglz: [Pglz; 2],
    lz4: Lz4,
    zstd: Zstd,
    /// What it was last, by what the server calls it.
    latest: [Method; 3],
    scratch: Vec<u8>,
    /// What `scratch` was made of, where encoding has just tried it: it is asked for again at once.
    tried: Option<(Vec<u8>, Method)>,
    leaves_values: bool,
    /// Bytes that values and images may still grow by when they are decompressed, so that the segment's columns stay within
    /// their limit. Only encoding spends it: decoding checks the limit itself, before it decodes any column.
    growth_left: usize,
    values: Values,
}

/// Compressed values, the latest ones, as both sides know them.
#[derive(Default)]
struct Values {
    by_number: FxHashMap<(u32, u32), Vec<u8>>,
    order: VecDeque<(u32, u32)>,
    bytes: usize,
}

impl Default for Expander {
    fn default() -> Expander {
        Expander {
            pglz: [Chars::Signed, Chars::Unsigned].map(|chars| Pglz::with(Strategy::DEFAULT, chars)),
            lz4: Lz4::default(),
            zstd: Zstd::default(),
            latest: [Method::Pglz, Method::Lz4, Method::Zstd(Release::ALL[0])],
            scratch: Vec::new(),
            tried: None,
            leaves_values: false,
            growth_left: 0,
            values: Values::default(),
        }
    }
}

impl Expander {
    /// Values stay as they are from now on, which decoding has less to do with. Only encoding asks.
    pub fn leave_values(&mut self) {
        self.leaves_values = true;
    }

    /// Sets how many bytes values and images may grow by when they are decompressed, from here on.
    pub fn set_growth_left(&mut self, bytes: usize) {
        self.growth_left = bytes;
    }

    /// What a value was before compression, if compressing that again by a method gives the same bytes.
    pub fn expand(&mut self, stored: &[u8]) -> Option<(Vec<u8>, Method)> {
        let (info, stream) = stored.split_first_chunk::<INFO>()?;
        let info = u32::from_le_bytes(*info);
        let raw = (info & LENGTH) as usize;
        if self.leaves_values || raw > MAX_RAW || raw <= stream.len() || raw - stream.len() > self.growth_left
        {
            return None;
        }
        // No byte of the stream stands for more than this, by either method.
        if raw / 273 > stream.len() {
            return None;
        }
        let compression = match info & !LENGTH {
            0 => compress::Method::Pglz,
            LZ4 => compress::Method::Lz4,
            _ => return None,
        };
        let mut content = vec![0; raw];
        if compression.decompress(stream, &mut content) != Some(raw) {
            return None;
        }
        let method = self.method(&content, stream, compression)?;
        self.tried = Some((content.clone(), method));
        self.growth_left -= raw - stream.len();
        Some((content, method))
    }

    /// The way back, appended to `out`.
    pub fn shrink(&mut self, content: &[u8], method: Method, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let raw = u32::try_from(content.len()).ok().filter(|&raw| raw <= LENGTH);
        let raw = raw.ok_or_else(|| corrupt("a value can't be so long"))?;
        let is_there = self.tried.take().is_some_and(|(tried, by)| by == method && tried == content);
        if !is_there && !self.compress(content, method) {
            return Err(corrupt("a value can't be compressed"));
        }
        out.extend((raw | if method == Method::Lz4 { LZ4 } else { 0 }).to_le_bytes());
        out.extend_from_slice(&self.scratch);
        Ok(())
    }

    /// The method by which a page without its hole compresses to these bytes.
    ///
    /// Each page counts as if nothing of it were predicted; what its columns really got is known to whoever sets what is
    /// left.
    pub fn reproduces(
        &mut self,
        page: &[u8],
        stored: &[u8],
        compression: compress::Method,
    ) -> Option<Method> {
        let growth = page.len().saturating_sub(stored.len());
        let left = self.growth_left.checked_sub(growth)?;
        let method = self.method(page, stored, compression)?;
        self.growth_left = left;
        Some(method)
    }

    /// Compresses a page without its hole; what it becomes is appended to `out`.
    pub fn shrink_page(&mut self, page: &[u8], method: Method, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        self.tried = None;
        if !self.compress(page, method) {
            return Err(corrupt("a page can't be compressed"));
        }
        out.extend_from_slice(&self.scratch);
        Ok(())
    }

    /// The method that gives the same bytes.
    fn method(&mut self, content: &[u8], stream: &[u8], compression: compress::Method) -> Option<Method> {
        self.tried = None;
        let latest = self.latest[compression as usize];
        let others = Method::ALL.into_iter().filter(|other| *other != latest && other.is_of(compression));
        let same = |method: &Method| self.compress(content, *method) && self.scratch == stream;
        let method = std::iter::once(latest).chain(others).find(same)?;
        self.latest[compression as usize] = method;
        Some(method)
    }

    /// Leaves in `scratch` what becomes of it, if it gets smaller.
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

    /// Remembers a compressed value of a relation.
    pub fn keep(&mut self, relation: u32, number: u32, stored: &[u8]) {
        let Values { by_number, order, bytes } = &mut self.values;
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

    /// A chunk of a compressed value.
    pub fn chunk(&self, relation: u32, row: &[u8]) -> Option<&[u8]> {
        let (number, chunk) = numbers(row)?;
        let value = self.values.by_number.get(&(relation, number))?;
        let at = (chunk as usize).checked_mul(CHUNK).filter(|&at| at < value.len())?;
        value.get(at..value.len().min(at + CHUNK))
    }
}

/// The numbers of a chunk's value and of the chunk.
fn numbers(row: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from_le_bytes(*row.get(at..)?.first_chunk()?));
    Some((word(0)?, word(4)?))
}

/// The number of the value, if the row's chunk is its first.
pub fn starts(row: &[u8]) -> Option<u32> {
    numbers(row).filter(|&(_, chunk)| chunk == 0).map(|(number, _)| number)
}

/// TOAST values that encoding has seen ahead.
#[derive(Default)]
pub struct Ahead {
    values: FxHashMap<(RelFileLocator, u32), Seen>,
    bytes: usize,
}

#[derive(Default)]
struct Seen {
    stored: Vec<u8>,
    next: u32,
}

impl Ahead {
    /// Bytes of values that are looked at in one segment.
    const MOST: usize = 64 << 20;

    /// Adds a row that may be a chunk; whether it looks like one.
    pub fn add(&mut self, relation: RelFileLocator, row: &[u8]) -> bool {
        let Some((number, chunk)) = numbers(row) else { return false };
        let Some((header, content)) = row.get(8..).and_then(|rest| rest.split_first_chunk::<4>()) else {
            return false;
        };
        let header = u32::from_le_bytes(*header);
        if header & 3 != 0 || (header >> 2) as usize != row.len() - 8 || self.bytes > Self::MOST {
            return false;
        }
        let seen = self.values.entry((relation, number)).or_default();
        if seen.next == chunk && seen.stored.len() == chunk as usize * CHUNK {
            seen.stored.extend_from_slice(content);
            seen.next += 1;
            self.bytes += content.len();
        }
        true
    }

    /// A value, as far as it was seen.
    pub fn value(&self, relation: RelFileLocator, number: u32) -> Option<&[u8]> {
        self.values.get(&(relation, number)).map(|seen| &seen.stored[..])
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes above 127 among others, whose sign decides how far the search for a match gets.
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
        let (mut expander, mut out) = (Expander::default(), Vec::new());
        expander.shrink(content, method, &mut out).unwrap();
        out
    }

    #[test]
    fn values_stay_where_that_is_wanted() {
        let stored = stored(&content(), Method::Pglz);
        let mut expander = Expander::default();
        expander.set_growth_left(1 << 20);
        assert!(expander.expand(&stored).is_some());
        expander.leave_values();
        assert_eq!(expander.expand(&stored), None);
    }

    #[test]
    fn each_method_is_found_and_gives_the_same_bytes() {
        let content = content();
        let all = Method::OF_VALUES.map(|method| stored(&content, method));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "they differ");
        let mut expander = Expander::default();
        for (method, stored) in Method::OF_VALUES.into_iter().zip(&all) {
            expander.set_growth_left(1 << 20);
            assert!(expander.expand(stored) == Some((content.clone(), method)), "{method:?}");
            let mut again = Vec::new();
            expander.shrink(&content, method, &mut again).unwrap();
            assert_eq!(again, *stored);
            // Somebody else's, with what was tried still at hand.
            let mut other = Vec::new();
            expander.shrink(b"short, but not so short", Method::Lz4, &mut other).unwrap();
            assert_eq!(other.len(), INFO + 1 + 1 + 23);
            let mut page = Vec::new();
            expander.shrink_page(&content, method, &mut page).unwrap();
            assert_eq!(page, stored[INFO..]);
            let compression =
                if method == Method::Lz4 { compress::Method::Lz4 } else { compress::Method::Pglz };
            assert_eq!(expander.reproduces(&content, &page, compression), Some(method));
        }
    }

    #[test]
    fn what_any_method_makes_of_a_page_is_made_again() {
        let content = content();
        for method in Method::ALL {
            let (mut expander, mut stored, mut again) = (Expander::default(), Vec::new(), Vec::new());
            expander.shrink_page(&content, method, &mut stored).unwrap();
            let compressions = [compress::Method::Pglz, compress::Method::Lz4, compress::Method::Zstd];
            for compression in compressions {
                expander.set_growth_left(1 << 20);
                let found = expander.reproduces(&content, &stored, compression);
                assert_eq!(found.is_some(), method.is_of(compression), "{method:?}");
                let Some(found) = found else { continue };
                expander.shrink_page(&content, found, &mut again).unwrap();
                assert!(again == stored, "{method:?} as {found:?}");
            }
        }
    }

    #[test]
    fn what_is_damaged_or_too_large_is_left_alone() {
        let content = content();
        for method in Method::OF_VALUES {
            let good = stored(&content, method);
            let mut expander = Expander::default();
            assert_eq!(expander.expand(&good), None, "no room was given");
            expander.set_growth_left(1 << 20);
            for at in (0..good.len()).step_by(7) {
                assert_eq!(expander.expand(&good[..at]), None, "cut at {at}");
            }
            let mut unknown = good.clone();
            unknown[3] |= 0xC0;
            assert_eq!(expander.expand(&unknown), None);
            let mut huge = good.clone();
            huge[..3].fill(0xFF);
            assert_eq!(expander.expand(&huge), None);
        }
    }
}
