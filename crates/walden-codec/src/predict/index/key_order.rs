//! Sorts a table's heap tuples by an index's keys. This predicts the TIDs of tuples on pages of a new index.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;
use walden_redo::page::Tid;
use walden_redo::page::varlena::{LONG_HEADER_BYTES, LongHeader, ShortHeader};

use super::key_mapping::is_zero;
use crate::columns::{Coder, Column};
use crate::tuple::schema::aligned;
use crate::{Corrupt, corrupt};

/// Part of a key that is compared separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum KeyPart {
    /// Signed number of 8 bytes.
    Long = 1,
    /// Signed number of 4 bytes.
    Integer = 2,
    /// Signed number of 2 bytes.
    Short = 3,
    /// Floating-point number of 8 bytes.
    Double = 4,
    /// Text, compared by its bytes.
    Text = 5,
    /// 16 bytes, compared as they are.
    Bytes16 = 6,
    /// 1 byte.
    Byte = 7,
    /// Unsigned number of 4 bytes.
    Unsigned = 8,
}

const PARTS: [KeyPart; 8] = [
    KeyPart::Long,
    KeyPart::Integer,
    KeyPart::Unsigned,
    KeyPart::Double,
    KeyPart::Bytes16,
    KeyPart::Text,
    KeyPart::Short,
    KeyPart::Byte,
];

impl KeyPart {
    fn from_code(code: u64) -> Option<KeyPart> {
        PARTS.into_iter().find(|part| *part as u64 == code)
    }

    /// Appends this part of the key in a form that compares bytewise. Returns the offset of the next part.
    fn put(self, key: &[u8], at: usize, out: &mut Vec<u8>) -> Option<usize> {
        let width = match self {
            KeyPart::Long | KeyPart::Double => 8,
            KeyPart::Integer | KeyPart::Unsigned => 4,
            KeyPart::Short => 2,
            KeyPart::Byte => 1,
            KeyPart::Bytes16 => {
                out.extend_from_slice(key.get(at..at + 16)?);
                return Some(at + 16);
            }
            KeyPart::Text => {
                let (start, end) = match ShortHeader::decode(*key.get(at)?) {
                    Some(ShortHeader::Value { size }) => (at + 1, at + size),
                    Some(ShortHeader::External) => return None,
                    None => {
                        let start = at.next_multiple_of(LONG_HEADER_BYTES);
                        let header = LongHeader::read(key.get(start..)?)?;
                        if header.is_compressed {
                            return None;
                        }
                        (start + LONG_HEADER_BYTES, start.checked_add(header.size as usize)?)
                    }
                };
                out.extend_from_slice(key.get(start..end)?);
                out.push(0);
                return Some(end);
            }
        };
        let start = aligned(at, width);
        let bytes = key.get(start..start + width)?;
        if !is_zero(&key[at..start]) {
            return None;
        }
        let from = out.len();
        out.extend(bytes.iter().rev());
        match self {
            KeyPart::Long | KeyPart::Integer | KeyPart::Short => out[from] ^= 0x80,
            KeyPart::Double if out[from] & 0x80 != 0 => {
                out[from..].iter_mut().for_each(|byte| *byte = !*byte)
            }
            KeyPart::Double => out[from] |= 0x80,
            _ => {}
        }
        Some(start + width)
    }

    /// Returns the parts by which the given keys are sorted.
    pub fn infer(keys: &[&[u8]]) -> Option<Vec<KeyPart>> {
        let mut parts = Vec::new();
        let at = vec![0; keys.len()];
        let equal = vec![true; keys.len()];
        next_part(keys, &at, &equal, &mut parts, &mut DeadEnds::default()).then_some(parts)
    }
}

/// States of the search that failed: the offsets in the keys, which keys equal the previous one up to there,
/// and the number of parts before. With at least as many parts before, the search fails again. Keys with a
/// common prefix can be divided in many ways that lead to the same offsets; without this map, their number
/// grows exponentially.
type DeadEnds = FxHashMap<(Vec<usize>, Vec<bool>), usize>;

/// Extends `parts`, which end at the offsets `at`, to parts of whole keys, by a depth-first search. `equal`
/// marks the keys that equal the previous one up to there.
fn next_part(
    keys: &[&[u8]],
    at: &[usize],
    equal: &[bool],
    parts: &mut Vec<KeyPart>,
    dead_ends: &mut DeadEnds,
) -> bool {
    const MAX_PARTS: usize = 8;
    /// Maximum number of failed states to keep, as each takes several kB.
    const MAX_DEAD_ENDS: usize = 4096;
    let ends = |(key, &at): (&&[u8], &usize)| at.next_multiple_of(8) == key.len() && is_zero(&key[at..]);
    if !parts.is_empty() && keys.iter().zip(at).all(ends) {
        return true;
    }
    if parts.len() == MAX_PARTS {
        return false;
    }
    let place = (at.to_vec(), equal.to_vec());
    if dead_ends.get(&place).is_some_and(|&parts_before| parts_before <= parts.len()) {
        return false;
    }
    for part in PARTS {
        let (mut ahead, mut still) = (Vec::with_capacity(at.len()), Vec::with_capacity(at.len()));
        let mut last = Vec::new();
        for (index, (key, &at)) in keys.iter().zip(at).enumerate() {
            let mut put = Vec::new();
            let Some(next) = part.put(key, at, &mut put) else { break };
            if index > 0 && equal[index] && last > put {
                break;
            }
            ahead.push(next);
            still.push(index == 0 || (equal[index] && last == put));
            last = put;
        }
        if ahead.len() < keys.len() {
            continue;
        }
        parts.push(part);
        if next_part(keys, &ahead, &still, parts, dead_ends) {
            return true;
        }
        parts.pop();
    }
    if dead_ends.len() < MAX_DEAD_ENDS {
        dead_ends.insert(place, parts.len());
    }
    false
}

/// Codes the parts of a key.
pub fn code_parts<S: Coder>(
    coder: &mut S,
    column: Column,
    source: Option<&[KeyPart]>,
) -> Result<Vec<KeyPart>, Corrupt> {
    const MAX_PARTS: u64 = 64;
    let count = coder.symbol(column, source.map_or(0, |parts| parts.len() as u64))?;
    if count > MAX_PARTS {
        return Err(corrupt("cannot decode an order of keys: expected at most 64 parts"));
    }
    (0..count as usize)
        .map(|at| {
            let code = coder.symbol(column, source.map_or(0, |parts| parts[at] as u64))?;
            KeyPart::from_code(code)
                .ok_or_else(|| corrupt("cannot decode an order of keys: expected a known type of part"))
        })
        .collect()
}

/// A table's heap tuples, sorted by an index's keys.
pub struct KeyOrder {
    /// Number of the index.
    pub index: u32,
    entries: Vec<Entry>,
    /// Bytes of keys after the first 16.
    suffixes: Vec<u8>,
    /// Position of the next heap tuple.
    at: usize,
    /// Positions of heap tuples by TID. Created when encoding searches for the first TID.
    by_tid: OnceLock<ByTid>,
}

/// Positions of heap tuples by TID.
struct ByTid {
    sorted: Vec<(Tid, u32)>,
    /// Bitmap of the blocks that have heap tuples, by the lowest bits of the block number. Most TIDs that are
    /// searched for are in no such block.
    blocks: Box<[u64; ByTid::BLOCKS / 64]>,
}

impl ByTid {
    const BLOCKS: usize = 1 << 16;

    fn new(entries: &[Entry]) -> ByTid {
        let mut blocks = Box::new([0; ByTid::BLOCKS / 64]);
        for entry in entries {
            let at = entry.tid.block as usize % ByTid::BLOCKS;
            blocks[at / 64] |= 1 << (at % 64);
        }
        let mut sorted: Vec<(Tid, u32)> = entries.iter().map(|entry| entry.tid).zip(0..).collect();
        sorted.sort_unstable();
        ByTid { sorted, blocks }
    }

    fn may_have(&self, block: u32) -> bool {
        let at = block as usize % ByTid::BLOCKS;
        self.blocks[at / 64] >> (at % 64) & 1 != 0
    }
}

/// A heap tuple and its key in the form that compares bytewise: the first 16 bytes, and the position of the
/// others.
struct Entry {
    start: u128,
    tid: Tid,
    suffix: u32,
    suffix_len: u16,
}

const _: () = assert!(size_of::<Entry>() <= KeyOrder::ENTRY_BYTES);

impl KeyOrder {
    /// Maximum size of an order in bytes.
    const MAX_BYTES: usize = 96 << 20;
    /// Bytes counted for each heap tuple. Both directions must reach the same limit, whatever size the
    /// compiler chooses for [`Entry`].
    const ENTRY_BYTES: usize = 32;
    /// Maximum number of heap tuples to skip.
    const MAX_DISTANCE: usize = 2048;

    /// Creates an order without heap tuples.
    pub fn new(index: u32) -> KeyOrder {
        KeyOrder { index, entries: Vec::new(), suffixes: Vec::new(), at: 0, by_tid: OnceLock::new() }
    }

    /// Adds a heap tuple with its key, unless the key does not have these parts. Returns false if there are
    /// too many.
    pub fn add(&mut self, parts: &[KeyPart], key: &[u8], tid: Tid, scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        let mut at = 0;
        for part in parts {
            match part.put(key, at, scratch) {
                Some(next) => at = next,
                None => return true,
            }
        }
        let mut start = [0; 16];
        let len = scratch.len().min(16);
        start[..len].copy_from_slice(&scratch[..len]);
        let suffix = &scratch[len..];
        let bytes = (self.entries.len() + 1) * KeyOrder::ENTRY_BYTES + self.suffixes.len() + suffix.len();
        let Some(suffix_len) = u16::try_from(suffix.len()).ok().filter(|_| bytes <= KeyOrder::MAX_BYTES)
        else {
            return false;
        };
        let start = u128::from_be_bytes(start);
        self.entries.push(Entry { start, tid, suffix: self.suffixes.len() as u32, suffix_len });
        self.suffixes.extend_from_slice(suffix);
        true
    }

    /// Sorts the heap tuples by their keys and then by their TIDs, as `comparetup_index_btree` in
    /// `tuplesort.c` does for a new index.
    pub fn sort(&mut self) {
        let KeyOrder { entries, suffixes, .. } = self;
        let suffix = |entry: &Entry| {
            let from = entry.suffix as usize;
            &suffixes[from..from + usize::from(entry.suffix_len)]
        };
        entries.sort_unstable_by(|a, b| {
            a.start.cmp(&b.start).then_with(|| suffix(a).cmp(suffix(b))).then_with(|| a.tid.cmp(&b.tid))
        });
    }

    /// Returns the number of heap tuples to skip before the heap tuple at `tid`, if it is among the next heap
    /// tuples.
    pub fn distance(&self, tid: Tid) -> Option<u64> {
        // Usually it is the next one.
        if self.entries.get(self.at).is_some_and(|next| next.tid == tid) {
            return Some(0);
        }
        let skip = self.number(tid, self.at)? - self.at;
        (skip < KeyOrder::MAX_DISTANCE).then_some(skip as u64)
    }

    /// Returns the position of a heap tuple, if it is `from` or above. Uses binary search, because each tuple
    /// of a new index may be searched for among millions.
    fn number(&self, tid: Tid, from: usize) -> Option<usize> {
        let by_tid = self.by_tid.get_or_init(|| ByTid::new(&self.entries));
        if !by_tid.may_have(tid.block) {
            return None;
        }
        let first = (tid, u32::try_from(from).ok()?);
        let sorted = &by_tid.sorted;
        let found = sorted.get(sorted.partition_point(|entry| *entry < first))?;
        (found.0 == tid).then_some(found.1 as usize)
    }

    /// Returns the next `count` heap tuples after skipping `skip`.
    pub fn peek(&self, skip: u64, count: usize) -> impl Iterator<Item = Tid> {
        let from = self.at.saturating_add(usize::try_from(skip).unwrap_or(usize::MAX));
        self.entries.iter().skip(from).take(count).map(|entry| entry.tid)
    }

    /// Returns the position of a heap tuple.
    pub fn find(&self, tid: Tid) -> Option<u64> {
        self.number(tid, 0).map(|at| at as u64)
    }

    /// Sets the position of the next heap tuple.
    pub fn start_at(&mut self, at: u64) {
        self.at = usize::try_from(at).unwrap_or(usize::MAX);
    }

    /// Returns the next heap tuple after skipping `skip`, and advances past it.
    pub fn take(&mut self, skip: u64) -> Option<Tid> {
        let skip = usize::try_from(skip).ok().filter(|&skip| skip < KeyOrder::MAX_DISTANCE)?;
        let tid = self.entries.get(self.at.checked_add(skip)?)?.tid;
        self.at += skip + 1;
        Some(tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_tuples_are_in_the_order_of_their_keys() {
        let number = |value: i64| value.to_le_bytes().to_vec();
        let values = [-5_i64, -1, 0, 3, 1 << 40];
        let sorted: Vec<Vec<u8>> = values.iter().map(|&value| number(value)).collect();
        let parts = KeyPart::infer(&sorted.iter().map(|key| &key[..]).collect::<Vec<_>>()).expect("an order");
        assert_eq!(parts, [KeyPart::Long]);
        let mut order = KeyOrder::new(1);
        let place = |value: i64| Tid { block: value as u32, offset_number: 1 };
        for &value in values.iter().rev() {
            assert!(order.add(&parts, &number(value), place(value), &mut Vec::new()));
        }
        order.sort();
        assert_eq!(order.distance(place(0)), Some(2));
        assert_eq!(order.take(1), Some(place(-1)));
        assert_eq!(order.take(0), Some(place(0)));
        assert_eq!(order.distance(place(-5)), None);
        assert_eq!(order.take(2), None);
    }

    #[test]
    fn keys_that_begin_alike_are_searched_in_a_few_steps() {
        // Longer than eight parts can cover.
        assert_eq!(KeyPart::infer(&[&[0_u8; 200][..]; 50]), None);
        // A text common to all keys, and a number.
        let key =
            |number: u64| [&[121_u8 << 1 | 1][..], &[b'a'; 120], &[0; 7], &number.to_le_bytes()].concat();
        let keys: Vec<Vec<u8>> = (0..50).map(key).collect();
        assert!(KeyPart::infer(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>()).is_some());
    }
}
