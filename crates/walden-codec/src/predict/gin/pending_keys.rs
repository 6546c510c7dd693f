//! Keys in pending lists and the TIDs of their heap tuples. GIN entries are predicted from them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use rustc_hash::FxHashMap;

use walden_redo::page::index_tuple::{INDEX_SIZE_MASK, t_info};

use crate::tuple::gin::{Entry, HEADER, Key, text};
use walden_redo::page::Tid;

/// Keys in pending lists and the TIDs of their heap tuples: the same in both directions.
#[derive(Default)]
pub struct Pending {
    indexes: FxHashMap<u32, IndexKeys>,
    /// Bytes taken by keys and TIDs.
    bytes: usize,
    /// Maximum bytes that the tuples which are not added to the keys yet may take.
    new: usize,
}

#[derive(Default)]
struct IndexKeys {
    /// Tuples that are not added to the keys yet.
    new: Vec<NewTuple>,
    new_bytes: Vec<u8>,
    keys: BTreeMap<SortKey, PendingKey>,
    /// Key of the last entry.
    last: SortKey,
}

impl IndexKeys {
    /// Adds the new tuples to the keys, in their order of arrival. Returns the bytes that this takes.
    fn settle(&mut self) -> usize {
        let IndexKeys { new, new_bytes, keys, .. } = self;
        let key_of = |new: &NewTuple| &new_bytes[new.at as usize..new.at as usize + usize::from(new.len)];
        // Many keys are equal. A stable sort keeps their order of arrival.
        new.sort_by_key(|new| new.start);
        let mut taken = 0;
        let mut put = |tuples: &[NewTuple]| {
            let bytes = key_of(&tuples[0]);
            let of = keys.entry(SortKey::from_key(bytes)).or_insert_with(|| {
                taken += Pending::KEY + 2 * bytes.len();
                let key = Key { flags: tuples[0].flags, bytes: bytes.to_vec() };
                PendingKey { key, tids: Vec::with_capacity(tuples.len().min(Pending::MAX_TIDS)) }
            });
            let room = Pending::MAX_TIDS - of.tids.len().min(Pending::MAX_TIDS);
            let tids = &tuples[..room.min(tuples.len())];
            of.tids.extend(tids.iter().map(|new| new.tid));
            taken += Pending::TID * tids.len();
        };
        for alike in new.chunk_by_mut(|a, b| a.start == b.start) {
            // Keys with equal first bytes are mostly equal.
            if alike.iter().all(|new| key_of(new) == key_of(&alike[0])) {
                put(alike);
                continue;
            }
            let compare = |a: &NewTuple, b: &NewTuple| {
                let (mut one, mut other) = ([0; 4], [0; 4]);
                SortKey::bytes(key_of(a), &mut one).cmp(SortKey::bytes(key_of(b), &mut other))
            };
            alike.sort_by(compare);
            alike.chunk_by(|a, b| compare(a, b).is_eq()).for_each(&mut put);
        }
        new.clear();
        new_bytes.clear();
        taken
    }
}

/// A pending tuple that is not added to the keys yet. Most are never looked up in their file, and sorting
/// many at once is faster.
struct NewTuple {
    /// First 8 bytes of its sort key.
    start: u64,
    /// Offset of the key in `new_bytes`.
    at: u32,
    len: u16,
    flags: u16,
    tid: Tid,
}

/// Sort order of keys: texts by their bytes, others as numbers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SortKey {
    /// First 16 bytes, usually all of it.
    pub start: [u64; 2],
    /// Length, or 17 if it is longer than 16.
    pub len: u8,
    /// The bytes after the first 16.
    pub rest: Box<[u8]>,
}

impl Ord for SortKey {
    #[inline]
    fn cmp(&self, other: &SortKey) -> Ordering {
        let [high, low] = self.start;
        let [other_high, other_low] = other.start;
        let starts = high.cmp(&other_high).then(low.cmp(&other_low)).then(self.len.cmp(&other.len));
        starts.then_with(|| match usize::from(self.len) <= SortKey::START {
            true => Ordering::Equal,
            false => self.rest.cmp(&other.rest),
        })
    }
}

impl PartialOrd for SortKey {
    #[inline]
    fn partial_cmp(&self, other: &SortKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl SortKey {
    const START: usize = 16;

    /// Returns the bytes that decide the order of a key, given with the padding after it.
    fn bytes<'a>(key: &'a [u8], number: &'a mut [u8; 4]) -> &'a [u8] {
        match (text(key), key) {
            (Some(text), _) => text,
            (None, &[a, b, c, d, 0, 0, 0, 0]) => {
                *number = [d ^ 0x80, c, b, a];
                number
            }
            (None, bytes) => bytes,
        }
    }

    /// Creates the sort key of a key, given with the padding after it.
    pub fn from_key(key: &[u8]) -> SortKey {
        let mut number = [0; 4];
        let bytes = SortKey::bytes(key, &mut number);
        let (start, rest) = bytes.split_at(bytes.len().min(SortKey::START));
        let mut padded = [0; SortKey::START];
        padded[..start.len()].copy_from_slice(start);
        let number = u128::from_be_bytes(padded);
        let start = [(number >> 64) as u64, number as u64];
        SortKey { start, len: bytes.len().min(SortKey::START + 1) as u8, rest: rest.into() }
    }
}

struct PendingKey {
    /// Flags of `t_info` and the key, as in tuples.
    key: Key,
    tids: Vec<Tid>,
}

impl Pending {
    /// Maximum bytes to keep.
    const MAX_BYTES: usize = 48 << 20;
    /// Maximum number of TIDs to keep per key. An entry with more does not fit a page.
    const MAX_TIDS: usize = 8192;
    /// Approximate bytes of memory for a key and for a TID.
    const KEY: usize = 160;
    const TID: usize = 8;

    /// Adds a tuple of a pending list.
    pub fn add(&mut self, index: u32, tuple: &[u8]) {
        let Some(tid) = Tid::read(tuple) else { return };
        let key = &tuple[HEADER..];
        // Until it is added to the keys, its key counts as new.
        let most = Pending::KEY + 2 * key.len() + Pending::TID;
        if self.bytes + self.new + most > Pending::MAX_BYTES {
            self.settle_all();
            if self.bytes > Pending::MAX_BYTES {
                return;
            }
        }
        let of = self.indexes.entry(index).or_default();
        let (Ok(at), Ok(len)) = (u32::try_from(of.new_bytes.len()), u16::try_from(key.len())) else { return };
        let mut number = [0; 4];
        let order = SortKey::bytes(key, &mut number);
        let mut start = [0; 8];
        let known = order.len().min(8);
        start[..known].copy_from_slice(&order[..known]);
        let start = u64::from_be_bytes(start);
        of.new.push(NewTuple { start, at, len, flags: t_info(tuple).unwrap_or(0) & !INDEX_SIZE_MASK, tid });
        of.new_bytes.extend_from_slice(key);
        self.new += most;
        if self.bytes + self.new > Pending::MAX_BYTES {
            self.settle_all();
        }
    }

    /// Adds all new tuples to their keys.
    pub fn settle_all(&mut self) {
        self.new = 0;
        let Pending { indexes, bytes, .. } = self;
        indexes.values_mut().for_each(|of| *bytes += of.settle());
    }

    /// Adds an index's new tuples to its keys. Required before [`Pending::next`].
    pub fn settle(&mut self, index: u32) {
        let Some(of) = self.indexes.get_mut(&index) else { return };
        let most: usize =
            of.new.iter().map(|new| Pending::KEY + 2 * usize::from(new.len) + Pending::TID).sum();
        self.new -= most;
        self.bytes += of.settle();
    }

    /// Returns whether an index has keys with pending TIDs.
    pub fn has(&self, index: u32) -> bool {
        self.indexes.get(&index).is_some_and(|of| !of.keys.is_empty())
    }

    /// Returns the key of the replaced entry `before`, or all keys after the last entry's key, in order.
    pub fn next(&self, index: u32, before: Option<&Entry<'_>>) -> impl Iterator<Item = (&Key, &[Tid])> {
        let of = self.indexes.get(&index);
        let bounds = of.map(|of| match before {
            Some(entry) => {
                let order = SortKey::from_key(&entry.key.bytes);
                (Bound::Included(order.clone()), Bound::Included(order))
            }
            None => (Bound::Excluded(of.last.clone()), Bound::Unbounded),
        });
        let range = of.zip(bounds).map(|(of, bounds)| of.keys.range(bounds));
        range.into_iter().flatten().map(|(_, of)| (&of.key, &of.tids[..]))
    }

    /// Removes the TIDs of an entry that was written, or all TIDs of its key. `tids` must be sorted.
    pub fn done(&mut self, index: u32, key: SortKey, tids: Option<&[Tid]>) {
        let Some(of) = self.indexes.get_mut(&index) else { return };
        of.last = key;
        if let Some(key) = of.keys.get_mut(&of.last) {
            let before = key.tids.len();
            match tids {
                Some(tids) => key.tids.retain(|tid| tids.binary_search(tid).is_err()),
                None => key.tids.clear(),
            }
            self.bytes = self.bytes.saturating_sub((before - key.tids.len()) * Pending::TID);
            if key.tids.is_empty() {
                self.bytes = self.bytes.saturating_sub(Pending::KEY + 2 * key.key.bytes.len());
                of.keys.remove(&of.last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuple::gin::{entry_with, is_pending, put_word, word_of};

    fn tid(number: u32) -> Tid {
        Tid { block: number * number / 7, offset_number: (number % 200 + 1) as u16 }
    }

    #[test]
    fn a_key_gets_the_rows_that_were_pending() {
        let mut pending = Pending::default();
        for number in [3, 9, 12] {
            for word in [&b"above"[..], b"below", b"beyond"] {
                let mut tuple = Vec::new();
                assert!(put_word(tid(number), word, &mut tuple));
                assert!(is_pending(&tuple));
                assert_eq!(word_of(&tuple), Some(word));
                pending.add(7, &tuple);
            }
        }
        pending.settle(7);
        let (key, tids) = pending.next(7, None).nth(1).expect("a key");
        assert_eq!((text(&key.bytes), tids), (Some(&b"below"[..]), &[tid(3), tid(9), tid(12)][..]));
        let (old, _) = entry_with(None, key, &tids[..2]).expect("an entry");
        let old = Entry::parse(&old).expect("the same entry");
        assert_eq!(old.tids.as_deref(), Some(&tids[..2]));
        let (new, all) = entry_with(Some(&old), key, &tids[2..]).expect("an entry");
        assert_eq!(all, tids);
        assert_eq!(Entry::parse(&new).and_then(|new| new.tids).as_deref(), Some(tids));
        assert_eq!(entry_with(None, key, tids), Some((new.clone(), all)));
        let done = Entry::parse(&new).expect("an entry");
        pending.done(7, SortKey::from_key(&done.key.bytes), done.tids.as_deref());
        let left: Vec<_> = pending.next(7, None).map(|(key, _)| text(&key.bytes)).collect();
        assert_eq!(left, [Some(&b"beyond"[..])]);
        assert!(pending.next(7, Some(&done)).next().is_none());
    }

    /// Adds tuples to the keys all at once, in parts, or one by one: keys are sorted, and TIDs keep their
    /// order of arrival.
    #[test]
    fn pending_tuples_are_in_order_however_many_at_once() {
        let words = [
            &b"beyond"[..],
            b"b",
            b"harbourage",
            b"harbourmaster",
            b"harbours",
            b"ha",
            b"a longer word than most",
        ];
        let mut expected: BTreeMap<&[u8], Vec<Tid>> = BTreeMap::new();
        let mut pending = [Pending::default(), Pending::default(), Pending::default()];
        for number in 1..400_u32 {
            let word = words[(number * number % 31) as usize % words.len()];
            let mut tuple = Vec::new();
            assert!(put_word(tid(number), word, &mut tuple));
            expected.entry(word).or_default().push(tid(number));
            for (pending, every) in pending.iter_mut().zip([1, 37, 1000]) {
                pending.add(3, &tuple);
                if number % every == 0 {
                    pending.settle(3);
                }
            }
        }
        for mut pending in pending {
            pending.settle_all();
            let all =
                pending.next(3, None).map(|(key, tids)| (text(&key.bytes).expect("a word"), tids.to_vec()));
            assert!(all.eq(expected.clone()));
            let keys: usize =
                words.iter().map(|word| Pending::KEY + 2 * (1 + word.len()).next_multiple_of(8)).sum();
            assert_eq!((pending.bytes, pending.new), (keys + 399 * Pending::TID, 0));
        }
    }

    #[test]
    fn keys_are_ordered_by_their_bytes() {
        let keys = [
            &b""[..],
            b"\0",
            b"a",
            b"a\0",
            b"ab",
            b"abcdefghijklmnop",
            b"abcdefghijklmnop\0",
            b"abcdefghijklmnopqrs",
            b"b",
        ];
        let orders: Vec<SortKey> = keys.iter().map(|key| SortKey::from_key(key)).collect();
        assert!(orders.is_sorted_by(|a, b| a < b));
    }
}
