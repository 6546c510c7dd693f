//! Codes bytes as literals and copies from a *source* that both directions have.
//!
//! The expected source of a copy is the end of the previous copy plus the number of literals since. Bytes
//! that changed in place therefore need no shift, and inserted bytes need one shift for everything after
//! them.

use super::TupleCoder;
use super::keyed_columns::Topic;
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::zigzag::{zigzag_delta, zigzag_value};
use crate::{Corrupt, corrupt};

/// Columns of copies.
#[derive(Clone, Copy)]
pub struct CopyColumns {
    literal_lengths: Column,
    literals: Column,
    lengths: Column,
    shifts: Column,
}

#[cfg(test)]
impl CopyColumns {
    /// Fills the columns with arbitrary numbers: lengths of literals and copies, and shifts.
    pub fn put_any<S: Coder>(self, coder: &mut S, copies: &[(u64, u64, u32)], is_wide: bool) {
        let mut out = Vec::new();
        for &(literals, len, shift) in copies {
            coder.symbol(self.literal_lengths, literals).unwrap();
            coder.bytes(self.literals, &[1; 300][..literals as usize], literals as usize, &mut out).unwrap();
            coder.symbol(self.lengths, len).unwrap();
            let shift = if is_wide { u64::from(shift) << 2 } else { u64::from(shift) % 16_000 };
            coder.symbol(self.shifts, shift).unwrap();
        }
    }
}

/// A copied range, after some literals.
struct Copy {
    literals: usize,
    len: usize,
    from: usize,
}

/// Number of bytes that are hashed to find matches in the source.
const HASHED: usize = 4;
/// Minimum length of a copy from the expected source, and from elsewhere.
const MIN_EXPECTED: usize = 3;
const MIN_ELSEWHERE: usize = 7;
/// Maximum number of source offsets compared for each target offset.
const MAX_TRIES: usize = 8;

/// When encoding: offsets in a source by a hash of the bytes there.
#[derive(Default)]
pub struct SourceIndex {
    /// By hash: 1 + the last offset with that hash.
    last: Vec<u16>,
    /// By offset: 1 + the previous offset with the same hash.
    before: Vec<u16>,
}

impl SourceIndex {
    /// Indexes a source. Bytes beyond 64 kB are ignored.
    pub fn fill(&mut self, source: &[u8]) {
        let source = &source[..source.len().min(usize::from(u16::MAX) - 1)];
        self.last.clear();
        self.last.resize(source.len().next_power_of_two().max(64), 0);
        self.before.clear();
        self.before.resize(source.len(), 0);
        for (at, bytes) in source.windows(HASHED).enumerate() {
            let slot = self.slot(bytes);
            self.before[at] = std::mem::replace(&mut self.last[slot], at as u16 + 1);
        }
    }

    fn slot(&self, bytes: &[u8]) -> usize {
        let word = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        (word.wrapping_mul(0x9E37_79B1) >> 16) as usize & (self.last.len() - 1)
    }

    /// Returns the offset and length of the longest source range that is a prefix of the target.
    fn longest(&self, source: &[u8], target: &[u8]) -> (usize, usize) {
        let mut best = (0, 0);
        if target.len() < HASHED || self.before.is_empty() {
            return best;
        }
        let mut next = self.last[self.slot(target)];
        for _ in 0..MAX_TRIES {
            let Some(at) = usize::from(next).checked_sub(1) else { break };
            let len = common(&source[at..], target);
            if len > best.1 {
                best = (at, len);
            }
            next = self.before[at];
        }
        best
    }

    /// Returns the first range to copy. `expected` is the expected offset of the target in the source.
    fn find(&self, source: &[u8], target: &[u8], expected: usize) -> Option<Copy> {
        for literals in 0..target.len() {
            let rest = &target[literals..];
            let place = expected + literals;
            let here = source.get(place..).map_or(0, |source| common(source, rest));
            if here >= 2 * MIN_ELSEWHERE || here == rest.len() {
                return Some(Copy { literals, len: here, from: place });
            }
            let (from, len) = self.longest(source, rest);
            if len >= MIN_ELSEWHERE && len > here + HASHED {
                return Some(Copy { literals, len, from });
            }
            if here >= MIN_EXPECTED {
                return Some(Copy { literals, len: here, from: place });
            }
        }
        None
    }
}

/// Returns the length of the common prefix.
fn common(one: &[u8], other: &[u8]) -> usize {
    walden_recompress::pglz::same_start(one, other)
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Returns the columns of copies for a relation, and for a part of it that has separate columns.
    pub fn copy_columns(&mut self, relation: u32, part: u32) -> Result<CopyColumns, Corrupt> {
        let mut column = |topic: Topic, kind: Kind| {
            self.keyed_columns.column(self.coder, topic, [relation, part, 0], kind)
        };
        Ok(CopyColumns {
            literal_lengths: column(Topic::LiteralLengths, Kind::Symbols(Class::BlockData))?,
            literals: column(Topic::Literals, Kind::Bytes(Class::Payload))?,
            lengths: column(Topic::CopyLengths, Kind::Symbols(Class::BlockData))?,
            shifts: column(Topic::CopyShifts, Kind::Symbols(Class::BlockData))?,
        })
    }

    /// Codes `len` bytes as copies from `source` and appends them to `out`. When encoding, `target` has the
    /// bytes and an index of the source. Returns the expected source of the next bytes.
    pub fn copies(
        &mut self,
        columns: CopyColumns,
        (source, mut expected): (&[u8], usize),
        target: Option<(&[u8], &SourceIndex)>,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, Corrupt> {
        let (start, end) = (out.len(), out.len() + len);
        let beyond = || corrupt("cannot decode copies: expected no more bytes than there are");
        while out.len() < end {
            let rest = target.map(|(target, index)| (&target[out.len() - start..], index));
            let copy = rest.and_then(|(rest, index)| index.find(source, rest, expected));
            let literals = rest.map_or(0, |(rest, _)| copy.as_ref().map_or(rest.len(), |copy| copy.literals));
            let literals: usize = narrow(self.coder.symbol(columns.literal_lengths, literals as u64)?)?;
            if literals > end - out.len() {
                return Err(beyond());
            }
            let bytes = rest.map_or(&[][..], |(rest, _)| &rest[..literals]);
            self.coder.bytes(columns.literals, bytes, literals, out)?;
            expected += literals;
            if out.len() == end {
                break;
            }
            let (len, from) = copy.map_or((0, 0), |copy| (copy.len, copy.from));
            let len: usize = narrow(self.coder.symbol(columns.lengths, len as u64)?)?;
            let place = expected as u32;
            let shift = narrow(self.coder.symbol(columns.shifts, zigzag_delta(from as u32, place).into())?)?;
            let from = zigzag_value(shift, place) as usize;
            if len == 0 || len > end - out.len() {
                return Err(beyond());
            }
            let copied = from.checked_add(len).and_then(|to| source.get(from..to)).ok_or_else(beyond)?;
            out.extend_from_slice(copied);
            expected = from + len;
        }
        Ok(expected)
    }
}
