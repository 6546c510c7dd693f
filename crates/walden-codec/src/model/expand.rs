//! Values that the server compressed: coded as they were before, and compressed again on the way back, wherever that gives
//! the very same bytes.
//!
//! A compressed value begins with its length before compression and the method (`va_tcinfo`). A value in a TOAST table is
//! cut into chunks, a row each: number of the value, number of the chunk, the chunk. The first one of a compressed value
//! says all of it; the others are told from it.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;
use walden_redo::pglz::{self, Pglz};

use crate::Corrupt;

/// Bytes of `va_tcinfo`.
const INFO: usize = 4;
/// The method is in the two upper bits; pglz is 0.
const LENGTH: u32 = 0x3FFF_FFFF;
/// Larger values stay as they are.
const MOST_RAW: usize = 16 << 20;
/// Bytes of compressed values that are kept for their chunks.
const MOST_KEPT: usize = 8 << 20;
/// Bytes of a chunk but the last one (`TOAST_MAX_CHUNK_SIZE` with pages of 8 kB).
pub const CHUNK: usize = 1996;
/// Compresses and decompresses values.
pub struct Expander {
    pglz: Pglz,
    scratch: Vec<u8>,
    /// What `scratch` was made of, where encoding has just tried it: it is asked for again at once.
    tried: Option<Vec<u8>>,
    /// Bytes that values may still grow by, so that a chunk's columns stay within their limit.
    budget: usize,
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
        Expander { pglz: Pglz::new(), scratch: Vec::new(), tried: None, budget: 0, values: Values::default() }
    }
}

impl Expander {
    /// Before a chunk of columns: how many bytes its values may grow by.
    pub fn allow(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// What a value was before compression, if compressing that again gives the same bytes.
    pub fn expand(&mut self, stored: &[u8]) -> Option<Vec<u8>> {
        let (info, stream) = stored.split_first_chunk::<INFO>()?;
        let info = u32::from_le_bytes(*info);
        let raw = info as usize;
        if info > LENGTH || raw > MOST_RAW || raw <= stream.len() || raw - stream.len() > self.budget {
            return None;
        }
        // No byte of the stream stands for more than this.
        if raw / 273 > stream.len() {
            return None;
        }
        let mut content = vec![0; raw];
        if pglz::decompress(stream, &mut content) != Some(raw) {
            return None;
        }
        self.tried = None;
        let same = self.pglz.compress(&content, &mut self.scratch) && self.scratch == stream;
        if !same {
            return None;
        }
        self.tried = Some(content.clone());
        self.budget -= raw - stream.len();
        Some(content)
    }

    /// The way back, appended to `out`.
    pub fn shrink(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let raw = u32::try_from(content.len()).ok().filter(|&raw| raw <= LENGTH);
        let raw = raw.ok_or(Corrupt("a value can't be so long"))?;
        if self.tried.take().is_none_or(|tried| tried != content)
            && !self.pglz.compress(content, &mut self.scratch)
        {
            return Err(Corrupt("a value can't be compressed"));
        }
        out.extend(raw.to_le_bytes());
        out.extend_from_slice(&self.scratch);
        Ok(())
    }

    /// Whether a page without its hole compresses to these bytes. One that is known takes no room.
    pub fn reproduces(&mut self, page: &[u8], stored: &[u8], is_known: bool) -> bool {
        self.tried = None;
        let growth = if is_known { 0 } else { page.len().saturating_sub(stored.len()) };
        let same =
            growth <= self.budget && self.pglz.compress(page, &mut self.scratch) && self.scratch == stored;
        if same {
            self.budget -= growth;
        }
        same
    }

    /// Compresses a page without its hole.
    pub fn compress(&mut self, page: &[u8], out: &mut Vec<u8>) -> Result<(), Corrupt> {
        if self.pglz.compress(page, out) { Ok(()) } else { Err(Corrupt("a page can't be compressed")) }
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
        while *bytes > MOST_KEPT
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

    /// Adds a row that may be a chunk.
    pub fn add(&mut self, relation: RelFileLocator, row: &[u8]) {
        let Some((number, chunk)) = numbers(row) else { return };
        let Some((header, content)) = row.get(8..).and_then(|rest| rest.split_first_chunk::<4>()) else {
            return;
        };
        let header = u32::from_le_bytes(*header);
        if header & 3 != 0 || (header >> 2) as usize != row.len() - 8 || self.bytes > Self::MOST {
            return;
        }
        let seen = self.values.entry((relation, number)).or_default();
        if seen.next == chunk && seen.stored.len() == chunk as usize * CHUNK {
            seen.stored.extend_from_slice(content);
            seen.next += 1;
            self.bytes += content.len();
        }
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
