//! GIN indexes: their pending lists, and the entries that these become.
//!
//! A row's keys first go to the pending list: a tuple each, in the order of the keys. Of a text's words, the `tsvector` that
//! was put into the table right before tells them all. Later, each key's rows go into its entry together: which rows these
//! are is known from the pending list.
//!
//! Entries in records (`ginxlogInsertEntry`):
//!
//! ```text
//! offset  width
//!      0      2  line pointer
//!      2      1  whether the entry there is replaced
//!      3      1
//!      4      8  the entry's header
//!     12         key, posting list
//! ```

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use rustc_hash::FxHashMap;

use super::heap::{Relation, TupleCoder};
use super::keys::RowPlace;
use super::names::Topic;
use crate::columns::{Class, Coder, Kind, put_number};
use crate::{Corrupt, corrupt};

/// In a record's flags: it is not about entries (`GIN_INSERT_ISDATA`).
pub const IS_DATA: u16 = 1;

const HEAD: usize = 4;
const HEADER: usize = 8;

/// What precedes an entry.
pub type EntryHead = [u8; HEAD];

/// Whether data is an entry.
pub fn is_entry(data: &[u8]) -> bool {
    data.len() >= HEAD + HEADER
}

/// The number of the entry that is replaced.
pub fn replaced(head: &EntryHead) -> Option<u16> {
    (head[2] != 0).then_some(u16::from_le_bytes([head[0], head[1]]))
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes what precedes an entry.
    pub fn gin_head(&mut self, relation: Relation, source: Option<&[u8]>) -> Result<EntryHead, Corrupt> {
        let kind = Kind::Rows(Class::IndexTuples, HEAD as u16);
        let column = self.names.column(self.coder, Topic::GinEntry, [relation.number, 0, 0], kind)?;
        self.coder.array(column, source.and_then(|data| data.first_chunk()).unwrap_or(&[0; HEAD]))
    }

    /// Codes an entry as what it has in common with `old` at its beginning and end, and what is between.
    pub fn gin_entry(
        &mut self,
        relation: Relation,
        head: EntryHead,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        self.keys.pending.settle(relation.number);
        let at = out.len() + HEAD;
        if !self.told_entry(relation, head, old, source, out)? {
            self.other_entry(relation, head, old, source, out)?;
            self.entry_is_done(relation, &out[at..]);
        }
        Ok(())
    }

    /// Codes an entry as what the pending list makes of the one that it replaces; no if it is something else.
    fn told_entry(
        &mut self,
        relation: Relation,
        head: EntryHead,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        /// Keys that may be left out before the next one.
        const FARTHEST: usize = 64;
        /// Rows that may be left for later.
        const MAX_LEFT: usize = 16;
        let replaces = replaced(&head).is_some();
        if !self.keys.pending.has(relation.number) || (replaces && old.len() < HEADER) {
            return Ok(false);
        }
        let body = source.map(|data| &data[HEAD..]);
        let pending = &self.keys.pending;
        let (mut skip, mut left, mut made) = (0, 0, None);
        let before = Entry::of(old).filter(|_| replaces);
        if let Some(body) = body {
            let mut ways = pending.next(relation.number, before.as_ref()).take(FARTHEST).enumerate();
            // Most entries have a key that is told, or else are not worth another look.
            let new = if before.is_none() { Entry::of(body) } else { None };
            let way = ways
                .find(|(_, (key, _))| before.is_some() || new.as_ref().is_some_and(|new| new.key == **key));
            if let Some((number, (key, rows))) = way {
                skip = number;
                // Rows that are known twice count once; without such, their number says how many are left.
                let count = u16::from_le_bytes([body[4], body[5]]).into();
                let known = before.as_ref().and_then(|entry| entry.rows.as_deref()).unwrap_or_default();
                let surplus = (known.len() + rows.len()).checked_sub(count);
                let lefts = match surplus {
                    None => 0..0,
                    Some(surplus) if are_apart(known, rows) => surplus..surplus + 1,
                    Some(_) => 0..MAX_LEFT,
                };
                left = lefts
                    .filter(|&left| left < MAX_LEFT.min(rows.len()))
                    .find(|left| {
                        made = entry(before.as_ref(), key, &rows[..rows.len() - left]);
                        made.as_ref().is_some_and(|(made, _)| made == body)
                    })
                    .unwrap_or(MAX_LEFT);
            }
        }
        let told = made.as_ref().zip(body).is_some_and(|((made, _), body)| made == body);
        let like = |what: u32| [relation.number, what, u32::from(replaces)];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let column = self.names.column(self.coder, Topic::GinEntry, like(5), symbols)?;
        // 0: not told; else 1 + the rows that are left for later.
        let left = self.coder.symbol(column, if told { 1 + left as u64 } else { 0 })?;
        if left == 0 {
            return Ok(false);
        }
        let skip = if replaces {
            0
        } else {
            let column = self.names.column(self.coder, Topic::GinEntry, like(6), symbols)?;
            usize::try_from(self.coder.symbol(column, skip as u64)?).unwrap_or(usize::MAX)
        };
        let wrong = Corrupt("an entry can't be told from the pending list");
        let ((tuple, rows), order) = {
            let mut ways = self.keys.pending.next(relation.number, before.as_ref());
            let (key, rows) = ways.nth(skip.min(FARTHEST)).ok_or(wrong)?;
            let left = usize::try_from(left - 1).ok().and_then(|left| rows.len().checked_sub(left));
            let rows = &rows[..left.ok_or(wrong)?];
            let order = Order::of(before.as_ref().map_or(&key.bytes, |entry| &entry.key.bytes));
            (made.or_else(|| entry(before.as_ref(), key, rows)).ok_or(wrong)?, order)
        };
        out.extend_from_slice(&head);
        out.extend_from_slice(&tuple);
        match rows.first() {
            Some(first) if first.number < 1 << NUMBER_BITS => {
                self.keys.pending.done(relation.number, order, Some(&rows));
            }
            // What it is read as may be something else.
            _ => self.entry_is_done(relation, &tuple),
        }
        Ok(true)
    }

    fn entry_is_done(&mut self, relation: Relation, tuple: &[u8]) {
        if let Some(entry) = Entry::of(tuple) {
            let order = Order::of(&entry.key.bytes);
            self.keys.pending.done(relation.number, order, entry.rows.as_deref());
        }
    }

    fn other_entry(
        &mut self,
        relation: Relation,
        head: EntryHead,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        out.extend_from_slice(&head);
        let known = u32::from(old.len() >= HEADER);
        let like = |what: u32| [relation.number, what, known];
        // The header: as the old one's, mixed.
        let kind = Kind::Rows(Class::IndexTuples, HEADER as u16);
        let column = self.names.column(self.coder, Topic::GinEntry, like(1), kind)?;
        let mut mixed =
            source.and_then(|data| data[HEAD..].first_chunk::<HEADER>().copied()).unwrap_or_default();
        mixed.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let start = out.len();
        self.coder.bytes(column, &mixed, HEADER, out)?;
        out[start..].iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let old = old.get(HEADER..).unwrap_or_default();
        let body = source.map_or(&[][..], |data| &data[HEAD + HEADER..]);
        let symbols = Kind::Symbols(Class::IndexTuples);
        let lengths = self.names.column(self.coder, Topic::GinEntry, like(2), symbols)?;
        let common = self.names.column(self.coder, Topic::GinEntry, like(3), symbols)?;
        // Growth, as entries seldom become shorter; then how far from the old one's end they part.
        let growth = (body.len() as i64).wrapping_sub(old.len() as i64);
        let growth = self.coder.symbol(lengths, (growth << 1 ^ growth >> 63).cast_unsigned())?;
        let growth = (growth >> 1).cast_signed() ^ -(growth & 1).cast_signed();
        let len = (old.len() as i64).checked_add(growth).and_then(|len| usize::try_from(len).ok());
        let len =
            len.filter(|&len| len <= u16::MAX.into()).ok_or_else(|| corrupt("an entry can't be so long"))?;
        let most = old.len().min(len);
        let same = body.iter().zip(old).take_while(|(new, old)| new == old).count();
        let away =
            if old.is_empty() { 0 } else { self.coder.symbol(common, (most - same.min(most)) as u64)? };
        let same = usize::try_from(away).ok().and_then(|away| most.checked_sub(away));
        let same = same.ok_or_else(|| corrupt("an entry can't have that in common"))?;
        out.extend_from_slice(&old[..same]);
        let kind = Kind::Bytes(if known == 1 { Class::Payload } else { Class::Text });
        let column = self.names.column(self.coder, Topic::GinEntry, like(4), kind)?;
        self.coder.bytes(column, body.get(same..).unwrap_or_default(), len - same, out)
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the tuples that a record puts into a pending list.
    pub fn pending(
        &mut self,
        relation: Relation,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        /// How a tuple is told: by the next word, not at all, or not even of the same row as the last one.
        const NEXT: u64 = 0;
        const OTHER: u64 = 1;
        const OTHER_ROW: u64 = 2;
        let like = |what: u32| [relation.number, what, 0];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let mut tuples = source.map(|data| Tuples { data });
        let counts = self.names.column(self.coder, Topic::Pending, like(0), symbols)?;
        let count = tuples.as_ref().map_or(0, |tuples| Tuples { data: tuples.data }.count() as u64);
        let count = self.coder.symbol(counts, count)?;
        let first = source.and_then(|data| Tuples { data }.next());
        let rows = Kind::Rows(Class::IndexTuples, RowPlace::BYTES as u16);
        let rows = self.names.column(self.coder, Topic::Pending, like(1), rows)?;
        let column = self.names.column(self.coder, Topic::Pending, like(2), symbols)?;
        // The row: the one that was put into a table last, or any.
        let row = first.and_then(RowPlace::of);
        let latest = self.keys.latest.filter(|latest| source.is_none_or(|_| row == Some(*latest)));
        let mut row = match self.coder.symbol(column, latest.is_some().into())? {
            0 => self.place(rows, row)?,
            _ => self.keys.latest.ok_or_else(|| corrupt("there is no latest row"))?,
        };
        // Its words, and where in them: 0 for none, else 1 + which vector, and how many words are left out.
        let key = first.and_then(word_of);
        let known = key.and_then(|key| {
            let mut vectors = self.rows.vectors.words().enumerate();
            vectors.find_map(|(rank, words)| Some((rank, words.search(key).ok()?)))
        });
        let column = self.names.column(self.coder, Topic::Pending, like(3), symbols)?;
        let rank = self.coder.symbol(column, known.map_or(0, |(rank, _)| rank as u64 + 1))?;
        let mut at = 0;
        if rank > 0 {
            let column = self.names.column(self.coder, Topic::Pending, like(4), symbols)?;
            at = self.coder.symbol(column, known.map_or(0, |(_, at)| at as u64))?;
        }
        let mut at = usize::try_from(at).unwrap_or(usize::MAX);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        let forms = self.names.column(self.coder, Topic::Pending, like(5), symbols)?;
        let sizes = self.names.column(self.coder, Topic::Pending, like(6), symbols)?;
        let keys = Kind::Bytes(Class::Text);
        let keys = self.names.column(self.coder, Topic::Pending, like(7), keys)?;
        for _ in 0..count {
            let tuple = tuples.as_mut().and_then(Iterator::next);
            let start = out.len();
            let vector = rank.checked_sub(1).and_then(|rank| self.rows.vectors.words().nth(rank));
            let word = vector.and_then(|words| words.get(at));
            let told = word.is_some_and(|word| put_word(row, word, out));
            let same_row = tuple.and_then(RowPlace::of) == Some(row);
            let form = match tuple {
                Some(tuple) if told && out[start..] == *tuple => NEXT,
                _ if same_row => OTHER,
                _ => OTHER_ROW,
            };
            match self.coder.symbol(forms, form)? {
                NEXT if told => at += 1,
                form @ (OTHER | OTHER_ROW) => {
                    out.truncate(start);
                    if form == OTHER_ROW {
                        row = self.place(rows, tuple.and_then(RowPlace::of))?;
                    }
                    let info =
                        self.coder.symbol(sizes, tuple.map_or(0, |tuple| u64::from(info_of(tuple))))?;
                    let info = u16::try_from(info).map_err(|_| corrupt("a tuple's size can't be"))?;
                    let len = usize::from(info & SIZE).checked_sub(HEADER);
                    let len = len.ok_or_else(|| corrupt("a tuple's size can't be"))?;
                    out.extend_from_slice(&row.to_bytes());
                    out.extend_from_slice(&info.to_le_bytes());
                    self.coder.bytes(keys, tuple.map_or(&[], |tuple| &tuple[HEADER..]), len, out)?;
                    // The words that follow may be those after it.
                    let vector = rank.checked_sub(1).and_then(|rank| self.rows.vectors.words().nth(rank));
                    if let Some((words, key)) = vector.zip(word_of(&out[start..])) {
                        at = match words.search(key) {
                            Ok(found) => found + 1,
                            Err(next) => next,
                        };
                    }
                }
                _ => return Err(corrupt("a pending tuple can't be told")),
            }
            self.keys.pending.add(relation.number, &out[start..]);
        }
        Ok(())
    }

    fn place(
        &mut self,
        column: crate::columns::Column,
        source: Option<RowPlace>,
    ) -> Result<RowPlace, Corrupt> {
        let bytes = source.map_or([0; RowPlace::BYTES], RowPlace::to_bytes);
        Ok(RowPlace::from_bytes(self.coder.array(column, &bytes)?))
    }
}

/// Bits of `t_info`.
const SIZE: u16 = 0x1FFF;
const HAS_VARWIDTHS: u16 = 0x4000;

fn info_of(tuple: &[u8]) -> u16 {
    u16::from_le_bytes([tuple[6], tuple[7]])
}

/// Tuples one after another.
struct Tuples<'a> {
    data: &'a [u8],
}

impl<'a> Iterator for Tuples<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let info = u16::from_le_bytes([*self.data.get(6)?, *self.data.get(7)?]);
        let (tuple, rest) = self.data.split_at_checked(usize::from(info & SIZE))?;
        if tuple.len() < HEADER {
            return None;
        }
        self.data = rest;
        Some(tuple)
    }
}

/// Whether data is such tuples and nothing else.
pub fn is_pending(data: &[u8]) -> bool {
    let mut tuples = Tuples { data };
    tuples.by_ref().count() > 0 && tuples.data.is_empty()
}

/// The word that is a tuple's key, if it looks like one.
fn word_of(tuple: &[u8]) -> Option<&[u8]> {
    text(tuple.get(HEADER..)?)
}

/// The text in a key, if it looks like one: a short varlena and zeros.
pub fn text(key: &[u8]) -> Option<&[u8]> {
    let &first = key.first()?;
    let len = usize::from(first >> 1);
    let fits = first & 1 == 1 && len > 1 && len.next_multiple_of(8) == key.len();
    let (text, rest) = key.split_at_checked(len).filter(|_| fits)?;
    rest.iter().all(|&byte| byte == 0).then(|| &text[1..])
}

/// Appends the pending tuple of a word; no if it is too long.
fn put_word(row: RowPlace, word: &[u8], out: &mut Vec<u8>) -> bool {
    const LONGEST: usize = 126;
    if word.len() > LONGEST {
        return false;
    }
    let size = HEADER + (1 + word.len()).next_multiple_of(8);
    let end = out.len() + size;
    out.extend_from_slice(&row.to_bytes());
    out.extend_from_slice(&(size as u16 | HAS_VARWIDTHS).to_le_bytes());
    out.push((word.len() as u8 + 1) << 1 | 1);
    out.extend_from_slice(word);
    out.resize(end, 0);
    true
}

/// Rows of keys that are in pending lists, on both sides.
#[derive(Default)]
pub struct Pending {
    indexes: FxHashMap<u32, OfIndex>,
    /// Bytes that keys and rows take, and that new tuples may take at most.
    bytes: usize,
    new: usize,
}

#[derive(Default)]
struct OfIndex {
    /// Tuples that are not among the keys yet.
    new: Vec<New>,
    new_bytes: Vec<u8>,
    keys: BTreeMap<Order, OfKey>,
    /// Where in the order of keys the last entry was.
    last: Order,
}

impl OfIndex {
    /// Puts the new tuples among the keys, in the order in which they came; how many bytes more are taken.
    fn settle(&mut self) -> usize {
        let OfIndex { new, new_bytes, keys, .. } = self;
        let key_of = |new: &New| &new_bytes[new.at as usize..new.at as usize + usize::from(new.len)];
        // Many are the same, and stay in the order in which they came.
        new.sort_by_key(|new| new.start);
        let mut taken = 0;
        let mut put = |tuples: &[New]| {
            let bytes = key_of(&tuples[0]);
            let of = keys.entry(Order::of(bytes)).or_insert_with(|| {
                taken += Pending::KEY + 2 * bytes.len();
                let key = Key { flags: tuples[0].flags, bytes: bytes.to_vec() };
                OfKey { key, rows: Vec::with_capacity(tuples.len().min(Pending::MAX_ROWS)) }
            });
            let room = Pending::MAX_ROWS - of.rows.len().min(Pending::MAX_ROWS);
            let rows = &tuples[..room.min(tuples.len())];
            of.rows.extend(rows.iter().map(|new| new.row));
            taken += Pending::ROW * rows.len();
        };
        for alike in new.chunk_by_mut(|a, b| a.start == b.start) {
            // Mostly, what begins alike is the same.
            if alike.iter().all(|new| key_of(new) == key_of(&alike[0])) {
                put(alike);
                continue;
            }
            let compare = |a: &New, b: &New| {
                let (mut one, mut other) = ([0; 4], [0; 4]);
                Order::bytes(key_of(a), &mut one).cmp(Order::bytes(key_of(b), &mut other))
            };
            alike.sort_by(compare);
            alike.chunk_by(|a, b| compare(a, b).is_eq()).for_each(&mut put);
        }
        new.clear();
        new_bytes.clear();
        taken
    }
}

/// A tuple of a pending list. Most are never asked for in their file, and many at once are sooner put in order.
struct New {
    /// How the key's order begins.
    start: u64,
    /// Where its bytes are.
    at: u32,
    len: u16,
    flags: u16,
    row: RowPlace,
}

/// What keys are ordered by: texts by their bytes, others as numbers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Order {
    /// How it begins: mostly all of it.
    start: [u64; 2],
    /// How many bytes it has, up to one more than are in `start`.
    len: u8,
    rest: Box<[u8]>,
}

impl Ord for Order {
    #[inline]
    fn cmp(&self, other: &Order) -> Ordering {
        let [high, low] = self.start;
        let [other_high, other_low] = other.start;
        let starts = high.cmp(&other_high).then(low.cmp(&other_low)).then(self.len.cmp(&other.len));
        starts.then_with(|| match usize::from(self.len) <= Order::START {
            true => Ordering::Equal,
            false => self.rest.cmp(&other.rest),
        })
    }
}

impl PartialOrd for Order {
    #[inline]
    fn partial_cmp(&self, other: &Order) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Order {
    const START: usize = 16;

    /// What decides, of a key with the gap after it.
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

    /// Of a key, with the gap after it.
    fn of(key: &[u8]) -> Order {
        let mut number = [0; 4];
        let bytes = Order::bytes(key, &mut number);
        let (start, rest) = bytes.split_at(bytes.len().min(Order::START));
        let mut padded = [0; Order::START];
        padded[..start.len()].copy_from_slice(start);
        let number = u128::from_be_bytes(padded);
        let start = [(number >> 64) as u64, number as u64];
        Order { start, len: bytes.len().min(Order::START + 1) as u8, rest: rest.into() }
    }
}

struct OfKey {
    /// As in tuples: flags of `t_info`, and the key.
    key: Key,
    rows: Vec<RowPlace>,
}

/// A key with the flags of its tuple.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Of the tuple.
    pub flags: u16,
    /// With the gap after it.
    pub bytes: Vec<u8>,
}

impl Pending {
    /// Bytes that may be kept.
    const MOST: usize = 48 << 20;
    /// Rows of one key that may be kept: more have no room in an entry.
    const MAX_ROWS: usize = 8192;
    /// Bytes that a key and a row take, about.
    const KEY: usize = 160;
    const ROW: usize = 8;

    /// A tuple was put into a pending list.
    fn add(&mut self, index: u32, tuple: &[u8]) {
        let Some(row) = RowPlace::of(tuple) else { return };
        let key = &tuple[HEADER..];
        // As much as it may take, until it is known.
        let most = Pending::KEY + 2 * key.len() + Pending::ROW;
        if self.bytes + self.new + most > Pending::MOST {
            self.settle_all();
            if self.bytes > Pending::MOST {
                return;
            }
        }
        let of = self.indexes.entry(index).or_default();
        let (Ok(at), Ok(len)) = (u32::try_from(of.new_bytes.len()), u16::try_from(key.len())) else { return };
        let mut number = [0; 4];
        let order = Order::bytes(key, &mut number);
        let mut start = [0; 8];
        let known = order.len().min(8);
        start[..known].copy_from_slice(&order[..known]);
        let start = u64::from_be_bytes(start);
        of.new.push(New { start, at, len, flags: info_of(tuple) & !SIZE, row });
        of.new_bytes.extend_from_slice(key);
        self.new += most;
        if self.bytes + self.new > Pending::MOST {
            self.settle_all();
        }
    }

    fn settle_all(&mut self) {
        self.new = 0;
        let Pending { indexes, bytes, .. } = self;
        indexes.values_mut().for_each(|of| *bytes += of.settle());
    }

    /// Puts an index's new tuples among its keys, before these are asked for.
    fn settle(&mut self, index: u32) {
        let Some(of) = self.indexes.get_mut(&index) else { return };
        let most: usize =
            of.new.iter().map(|new| Pending::KEY + 2 * usize::from(new.len) + Pending::ROW).sum();
        self.new -= most;
        self.bytes += of.settle();
    }

    fn has(&self, index: u32) -> bool {
        self.indexes.get(&index).is_some_and(|of| !of.keys.is_empty())
    }

    /// The key of the entry that is replaced, or else the keys after the last entry's, in their order.
    fn next(&self, index: u32, before: Option<&Entry<'_>>) -> impl Iterator<Item = (&Key, &[RowPlace])> {
        let of = self.indexes.get(&index);
        let bounds = of.map(|of| match before {
            Some(entry) => {
                let order = Order::of(&entry.key.bytes);
                (Bound::Included(order.clone()), Bound::Included(order))
            }
            None => (Bound::Excluded(of.last.clone()), Bound::Unbounded),
        });
        let range = of.zip(bounds).map(|(of, bounds)| of.keys.range(bounds));
        range.into_iter().flatten().map(|(_, of)| (&of.key, &of.rows[..]))
    }

    /// An entry was written: its rows, in their order (or all of its key's), are no longer pending.
    fn done(&mut self, index: u32, key: Order, rows: Option<&[RowPlace]>) {
        let Some(of) = self.indexes.get_mut(&index) else { return };
        of.last = key;
        if let Some(key) = of.keys.get_mut(&of.last) {
            let before = key.rows.len();
            match rows {
                Some(rows) => key.rows.retain(|row| rows.binary_search(row).is_err()),
                None => key.rows.clear(),
            }
            self.bytes = self.bytes.saturating_sub((before - key.rows.len()) * Pending::ROW);
            if key.rows.is_empty() {
                self.bytes = self.bytes.saturating_sub(Pending::KEY + 2 * key.key.bytes.len());
                of.keys.remove(&of.last);
            }
        }
    }
}

/// An entry: a key and its rows.
pub struct Entry<'a> {
    /// The key.
    pub key: Key,
    /// Nothing if they are in a tree of their own.
    pub rows: Option<Vec<RowPlace>>,
    /// Its header and key, up to its rows.
    start: &'a [u8],
}

/// In the block's place: rows are compressed (`GIN_ITUP_COMPRESSED`).
const COMPRESSED: u16 = 0x8000;
/// In place of the number of rows: they are in a tree (`GIN_TREE_POSTING`).
const TREE: u16 = 0xFFFF;
/// Bits of a row's number (`MaxHeapTuplesPerPageBits`).
const NUMBER_BITS: u32 = 11;

impl<'a> Entry<'a> {
    /// Reads one.
    pub fn of(tuple: &'a [u8]) -> Option<Entry<'a>> {
        let half = |at: usize| Some(u16::from_le_bytes(*tuple.get(at..)?.first_chunk()?));
        let (upper, lower, count, info) = (half(0)?, half(2)?, half(4)?, half(6)?);
        if count == TREE {
            let key = Key { flags: info & !SIZE, bytes: tuple[HEADER..].to_vec() };
            return Some(Entry { key, rows: None, start: tuple });
        }
        let at = usize::from(upper & !COMPRESSED) << 16 | usize::from(lower);
        if upper & COMPRESSED == 0 || at < HEADER {
            return None;
        }
        let start = tuple.get(..at)?;
        let key = Key { flags: info & !SIZE, bytes: start[HEADER..].to_vec() };
        let rows = rows_of(&tuple[at..], count.into())?;
        Some(Entry { key, rows: Some(rows), start })
    }
}

/// What distances between rows are of.
pub fn number_of(row: RowPlace) -> u64 {
    u64::from(row.block) << NUMBER_BITS | u64::from(row.number)
}

/// The rows of a compressed list (`ginpostinglist.c`); in their order, or there are none.
fn rows_of(mut list: &[u8], count: usize) -> Option<Vec<RowPlace>> {
    let mut rows = Vec::with_capacity(count.min(list.len()));
    while rows.len() < count {
        let len = segment(list, &mut rows)?;
        list = &list[len.min(list.len())..];
    }
    (rows.len() == count && rows.is_sorted_by(|a, b| a < b)).then_some(rows)
}

/// Adds the rows of a list's first segment; its length, with the gap after it.
pub fn segment(list: &[u8], rows: &mut Vec<RowPlace>) -> Option<usize> {
    const HEADER: usize = RowPlace::BYTES + 2;
    let mut last = RowPlace::of(list)?;
    let bytes = usize::from(u16::from_le_bytes([*list.get(6)?, *list.get(7)?]));
    rows.push(last);
    let mut segment = list.get(HEADER..HEADER + bytes)?;
    while !segment.is_empty() {
        let mut distance = 0;
        for shift in (0..43).step_by(7) {
            let (&byte, rest) = segment.split_first()?;
            segment = rest;
            distance |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                break;
            }
        }
        let number = number_of(last).checked_add(distance)?;
        let block = u32::try_from(number >> NUMBER_BITS).ok()?;
        last = RowPlace { block, number: (number & ((1 << NUMBER_BITS) - 1)) as u16 };
        rows.push(last);
    }
    Some(HEADER + bytes.next_multiple_of(2))
}

/// Whether no row is there twice.
fn are_apart(known: &[RowPlace], more: &[RowPlace]) -> bool {
    let mut more = more.to_vec();
    more.sort_unstable();
    more.is_sorted_by(|a, b| a < b)
        && match (known.last(), more.first()) {
            (Some(last), Some(first)) if last < first => true,
            _ => !more.iter().any(|row| known.binary_search(row).is_ok()),
        }
}

/// Appends rows as a compressed list of one segment; no if they can't be.
pub fn put_rows(rows: &[RowPlace], out: &mut Vec<u8>) -> bool {
    let Some(&first) = rows.first() else { return false };
    out.extend_from_slice(&first.to_bytes());
    let len_at = out.len();
    out.extend_from_slice(&[0; 2]);
    let mut last = number_of(first);
    for &row in &rows[1..] {
        let Some(distance) = number_of(row).checked_sub(last).filter(|_| row.number < 1 << NUMBER_BITS)
        else {
            return false;
        };
        // Most take a byte or two, and which nobody can foresee.
        if distance < 1 << 14 {
            let long = usize::from(distance >= 0x80);
            out.extend_from_slice(&[distance as u8 & 0x7F | (long as u8) << 7, (distance >> 7) as u8]);
            out.truncate(out.len() - 1 + long);
        } else {
            put_number(out, distance);
        }
        last = number_of(row);
    }
    let Ok(len) = u16::try_from(out.len() - len_at - 2) else { return false };
    out[len_at..len_at + 2].copy_from_slice(&len.to_le_bytes());
    out.resize(out.len().next_multiple_of(2), 0);
    true
}

/// The entry of a key with these rows more, and all its rows.
fn entry(before: Option<&Entry<'_>>, key: &Key, more: &[RowPlace]) -> Option<(Vec<u8>, Vec<RowPlace>)> {
    let known = match before {
        Some(entry) => entry.rows.as_deref()?,
        None => &[],
    };
    let mut rows = Vec::with_capacity(known.len() + more.len());
    rows.extend_from_slice(known);
    rows.extend_from_slice(more);
    // Mostly, rows come in their order.
    if !rows.is_sorted_by(|a, b| a < b) {
        rows.sort_unstable();
        rows.dedup();
    }
    let bytes = before.map_or(&key.bytes[..], |entry| &entry.key.bytes);
    let at = before.map_or(HEADER + bytes.len(), |entry| entry.start.len());
    Some((list_entry((key.flags, bytes), at, &rows)?, rows))
}

/// The entry of a key with rows, in their order.
pub fn new_entry(key: &Key, rows: &[RowPlace]) -> Option<Vec<u8>> {
    list_entry((key.flags, &key.bytes), HEADER + key.bytes.len(), rows)
}

/// The entry of a key, as flags and bytes, with rows in their order that begin at a place.
fn list_entry((flags, bytes): (u16, &[u8]), at: usize, rows: &[RowPlace]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(HEADER + bytes.len() + 16 + 2 * rows.len());
    out.extend_from_slice(&[0; HEADER]);
    out.extend_from_slice(bytes);
    if !put_rows(rows, &mut out) {
        return None;
    }
    out.resize(out.len().next_multiple_of(8), 0);
    let size = u16::try_from(out.len()).ok().filter(|&size| size <= SIZE)?;
    out[0..2].copy_from_slice(&(COMPRESSED | (at >> 16) as u16).to_le_bytes());
    out[2..4].copy_from_slice(&(at as u16).to_le_bytes());
    out[4..6].copy_from_slice(&u16::try_from(rows.len()).ok()?.to_le_bytes());
    out[6..8].copy_from_slice(&(size | flags).to_le_bytes());
    Some(out)
}

/// The entry of a key whose rows are in a tree that begins at a block.
pub fn tree_entry(key: &Key, block: u32) -> Option<Vec<u8>> {
    let size = u16::try_from(HEADER + key.bytes.len()).ok().filter(|&size| size <= SIZE)?;
    let mut out = Vec::with_capacity(size.into());
    out.extend_from_slice(&RowPlace { block, number: TREE }.to_bytes());
    out.extend_from_slice(&(size | key.flags).to_le_bytes());
    out.extend_from_slice(&key.bytes);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32) -> RowPlace {
        RowPlace { block: number * number / 7, number: (number % 200 + 1) as u16 }
    }

    #[test]
    fn rows_come_back_from_their_list() {
        let rows: Vec<RowPlace> = (0..150).map(row).collect();
        let mut list = Vec::new();
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(put_rows(&sorted, &mut list));
        assert_eq!(rows_of(&list, sorted.len()), Some(sorted.clone()));
        for len in 0..list.len() - 1 {
            assert_eq!(rows_of(&list[..len], sorted.len()), None);
        }
    }

    #[test]
    fn a_key_gets_the_rows_that_were_pending() {
        let mut pending = Pending::default();
        for number in [3, 9, 12] {
            for word in [&b"above"[..], b"below", b"beyond"] {
                let mut tuple = Vec::new();
                assert!(put_word(row(number), word, &mut tuple));
                assert!(is_pending(&tuple));
                assert_eq!(word_of(&tuple), Some(word));
                pending.add(7, &tuple);
            }
        }
        pending.settle(7);
        let (key, rows) = pending.next(7, None).nth(1).expect("a key");
        assert_eq!((text(&key.bytes), rows), (Some(&b"below"[..]), &[row(3), row(9), row(12)][..]));
        let (old, _) = entry(None, key, &rows[..2]).expect("an entry");
        let old = Entry::of(&old).expect("the same entry");
        assert_eq!(old.rows.as_deref(), Some(&rows[..2]));
        let (new, all) = entry(Some(&old), key, &rows[2..]).expect("an entry");
        assert_eq!(all, rows);
        assert_eq!(Entry::of(&new).and_then(|new| new.rows).as_deref(), Some(rows));
        assert_eq!(entry(None, key, rows), Some((new.clone(), all)));
        let done = Entry::of(&new).expect("an entry");
        pending.done(7, Order::of(&done.key.bytes), done.rows.as_deref());
        let left: Vec<_> = pending.next(7, None).map(|(key, _)| text(&key.bytes)).collect();
        assert_eq!(left, [Some(&b"beyond"[..])]);
        assert!(pending.next(7, Some(&done)).next().is_none());
    }

    /// Tuples that are put among the keys at once, or in parts, or each by itself: keys are in their order, rows in that in
    /// which they came.
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
        let mut expected: BTreeMap<&[u8], Vec<RowPlace>> = BTreeMap::new();
        let mut pending = [Pending::default(), Pending::default(), Pending::default()];
        for number in 1..400_u32 {
            let word = words[(number * number % 31) as usize % words.len()];
            let mut tuple = Vec::new();
            assert!(put_word(row(number), word, &mut tuple));
            expected.entry(word).or_default().push(row(number));
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
                pending.next(3, None).map(|(key, rows)| (text(&key.bytes).expect("a word"), rows.to_vec()));
            assert!(all.eq(expected.clone()));
            let keys: usize =
                words.iter().map(|word| Pending::KEY + 2 * (1 + word.len()).next_multiple_of(8)).sum();
            assert_eq!((pending.bytes, pending.new), (keys + 399 * Pending::ROW, 0));
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
        let orders: Vec<Order> = keys.iter().map(|key| Order::of(key)).collect();
        assert!(orders.is_sorted_by(|a, b| a < b));
    }
}
