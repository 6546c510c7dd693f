//! A table's heap tuples in the order of an index's keys: which one the next index tuple on a page of a new index is for.

use std::sync::OnceLock;

use walden_redo::page::Tid;
use walden_redo::page::varlena::{LONG_HEADER_BYTES, LongHeader, ShortHeader};

use super::key_mapping::is_empty;
use crate::columns::{Coder, Column};
use crate::tuple::schema::aligned;
use crate::{Corrupt, corrupt};

/// A part of a key that is compared by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum KeyPart {
    /// A number of 8 bytes with a sign.
    Long = 1,
    /// One of 4 bytes.
    Integer = 2,
    /// One of 2 bytes.
    Short = 3,
    /// A floating-point number of 8 bytes.
    Double = 4,
    /// A text compared by its bytes.
    Text = 5,
    /// 16 bytes, as they are.
    Bytes16 = 6,
    /// 1 byte.
    Byte = 7,
    /// A number of 4 bytes without a sign.
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

    /// Appends what this part of the key is in a form that compares byte by byte; where the next one begins.
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
                let (start, end) = match ShortHeader::of(*key.get(at)?) {
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
        if !is_empty(&key[at..start]) {
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

    /// The parts by which these keys are in order.
    pub fn of(keys: &[&[u8]]) -> Option<Vec<KeyPart>> {
        let mut parts = Vec::new();
        let at = vec![0; keys.len()];
        let equal = vec![true; keys.len()];
        next_part(keys, &at, &equal, &mut parts).then_some(parts)
    }
}

fn next_part(keys: &[&[u8]], at: &[usize], equal: &[bool], parts: &mut Vec<KeyPart>) -> bool {
    const MOST: usize = 8;
    let ends = |(key, &at): (&&[u8], &usize)| at.next_multiple_of(8) == key.len() && is_empty(&key[at..]);
    if !parts.is_empty() && keys.iter().zip(at).all(ends) {
        return true;
    }
    if parts.len() == MOST {
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
        if next_part(keys, &ahead, &still, parts) {
            return true;
        }
        parts.pop();
    }
    false
}

/// Codes parts.
pub fn code_parts<S: Coder>(
    coder: &mut S,
    column: Column,
    source: Option<&[KeyPart]>,
) -> Result<Vec<KeyPart>, Corrupt> {
    const MOST: u64 = 64;
    let count = coder.symbol(column, source.map_or(0, |parts| parts.len() as u64))?;
    if count > MOST {
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

/// A table's rows in the order of an index.
pub struct KeyOrder {
    /// The index.
    pub index: u32,
    entries: Vec<Entry>,
    /// What entries' keys have after their beginnings.
    rests: Vec<u8>,
    /// The row that is next.
    at: usize,
    /// Which each row is, by its place: made when encoding asks first.
    by_place: OnceLock<ByPlace>,
}

/// Rows by their places.
struct ByPlace {
    sorted: Vec<(Tid, u32)>,
    /// Which blocks have any, by the lowest bits of their numbers: most that are asked for have none.
    blocks: Box<[u64; ByPlace::BLOCKS / 64]>,
}

impl ByPlace {
    const BLOCKS: usize = 1 << 16;

    fn new(entries: &[Entry]) -> ByPlace {
        let mut blocks = Box::new([0; ByPlace::BLOCKS / 64]);
        for entry in entries {
            let at = entry.place.block as usize % ByPlace::BLOCKS;
            blocks[at / 64] |= 1 << (at % 64);
        }
        let mut sorted: Vec<(Tid, u32)> = entries.iter().map(|entry| entry.place).zip(0..).collect();
        sorted.sort_unstable();
        ByPlace { sorted, blocks }
    }

    fn may_have(&self, block: u32) -> bool {
        let at = block as usize % ByPlace::BLOCKS;
        self.blocks[at / 64] >> (at % 64) & 1 != 0
    }
}

struct Entry {
    start: u128,
    place: Tid,
    rest: u32,
    rest_len: u16,
}

const _: () = assert!(size_of::<Entry>() <= KeyOrder::ENTRY_BYTES);

impl KeyOrder {
    /// Bytes that an order may take.
    const MAX_BYTES: usize = 96 << 20;
    /// Bytes that count for a row. Both sides must come to the same limit, whatever the machine makes of [`Entry`].
    const ENTRY_BYTES: usize = 32;
    /// Rows that may be left out at once.
    const FARTHEST: usize = 2048;

    /// Nothing yet.
    pub fn new(index: u32) -> KeyOrder {
        KeyOrder { index, entries: Vec::new(), rests: Vec::new(), at: 0, by_place: OnceLock::new() }
    }

    /// Adds a tuple with its key; no if there are too many.
    pub fn add(&mut self, parts: &[KeyPart], key: &[u8], place: Tid, scratch: &mut Vec<u8>) -> bool {
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
        let rest = &scratch[len..];
        let bytes = (self.entries.len() + 1) * KeyOrder::ENTRY_BYTES + self.rests.len() + rest.len();
        let Some(rest_len) = u16::try_from(rest.len()).ok().filter(|_| bytes <= KeyOrder::MAX_BYTES) else {
            return false;
        };
        let start = u128::from_be_bytes(start);
        self.entries.push(Entry { start, place, rest: self.rests.len() as u32, rest_len });
        self.rests.extend_from_slice(rest);
        true
    }

    /// Puts the rows in order.
    pub fn sort(&mut self) {
        let KeyOrder { entries, rests, .. } = self;
        let rest = |entry: &Entry| {
            let from = entry.rest as usize;
            &rests[from..from + usize::from(entry.rest_len)]
        };
        entries.sort_unstable_by(|a, b| {
            a.start.cmp(&b.start).then_with(|| rest(a).cmp(rest(b))).then_with(|| a.place.cmp(&b.place))
        });
    }

    /// How many rows are left out before this one, if it is one of the next.
    pub fn distance(&self, place: Tid) -> Option<u64> {
        // Most are.
        if self.entries.get(self.at).is_some_and(|next| next.place == place) {
            return Some(0);
        }
        let skip = self.number(place, self.at)? - self.at;
        (skip < KeyOrder::FARTHEST).then_some(skip as u64)
    }

    /// Which row this is, from one on. There may be very many, of which each is asked for.
    fn number(&self, place: Tid, from: usize) -> Option<usize> {
        let by_place = self.by_place.get_or_init(|| ByPlace::new(&self.entries));
        if !by_place.may_have(place.block) {
            return None;
        }
        let first = (place, u32::try_from(from).ok()?);
        let sorted = &by_place.sorted;
        let found = sorted.get(sorted.partition_point(|entry| *entry < first))?;
        (found.0 == place).then_some(found.1 as usize)
    }

    /// So many rows after those that are left out.
    pub fn peek(&self, skip: u64, count: usize) -> impl Iterator<Item = Tid> {
        let from = self.at.saturating_add(usize::try_from(skip).unwrap_or(usize::MAX));
        self.entries.iter().skip(from).take(count).map(|entry| entry.place)
    }

    /// Which row this is.
    pub fn find(&self, place: Tid) -> Option<u64> {
        self.number(place, 0).map(|at| at as u64)
    }

    /// Goes to a row.
    pub fn start_at(&mut self, at: u64) {
        self.at = usize::try_from(at).unwrap_or(usize::MAX);
    }

    /// The next row but so many; it and those before it are done with.
    pub fn take(&mut self, skip: u64) -> Option<Tid> {
        let skip = usize::try_from(skip).ok().filter(|&skip| skip < KeyOrder::FARTHEST)?;
        let place = self.entries.get(self.at.checked_add(skip)?)?.place;
        self.at += skip + 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_their_keys() {
        let number = |value: i64| value.to_le_bytes().to_vec();
        let values = [-5_i64, -1, 0, 3, 1 << 40];
        let sorted: Vec<Vec<u8>> = values.iter().map(|&value| number(value)).collect();
        let parts = KeyPart::of(&sorted.iter().map(|key| &key[..]).collect::<Vec<_>>()).expect("an order");
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
}
