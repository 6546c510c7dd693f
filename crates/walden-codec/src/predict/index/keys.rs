//! Indexes, their tables, and the heap tuples that records inserted last.
//!
//! An index tuple has the TID of its heap tuple. If that tuple's page is known, the key is predicted from its
//! attributes ([`super::key_mapping`]). In a new index, the next TID is predicted as well
//! ([`super::key_order`]).

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use walden_format::record::Fork;
use walden_redo::page::{ItemState, Page};
use walden_redo::{BlockKey, PageStore};

use super::key_mapping::{KeyMapping, Sample};
use super::key_order::KeyOrder;
use crate::predict::attributes::LayoutKey;
use crate::predict::relation::Relation;
use crate::tuple::schema::{Field, Span};
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;

/// State of indexes and their tables: the same in both directions.
#[derive(Default)]
pub struct Keys {
    /// By the relation's number in the model.
    indexes: Vec<Index>,
    /// Tables in the order of first use, each once.
    tables: Vec<Relation>,
    /// Tables by the relation's number.
    tables_by_number: Vec<Option<Relation>>,
    inserted: FxHashMap<u32, Inserted>,
    /// TID of the heap tuple that a record inserted last.
    pub latest: Option<Tid>,
    /// Order of the heap tuples for the index whose new pages were coded last.
    pub order: Option<KeyOrder>,
    /// When encoding: whether to skip predictions that save little for their decoding time.
    pub is_fast: bool,
    /// Number of heap tuples that may still be sorted. It grows with the size of segments, because decoding
    /// time must be proportional to that size for any file. The limit is part of the format: once it is
    /// exhausted, both directions continue without an order.
    budget: usize,
    /// Bytes of keys that may still be built for sorting. Not part of the format: no WAL comes near this
    /// limit. Once it is exhausted, decoding fails, and encoding codes the segment as bytes.
    key_budget: u64,
    /// Bytes of the mappings of all indexes, as [`KeyMapping::counted_bytes`] counts them.
    mapping_bytes: usize,
    /// Reusable buffers.
    pub scratch: Scratch,
}

/// A heap tuple, the spans of its fields, and the key that is predicted from it.
#[derive(Default)]
pub struct Scratch {
    /// Attributes of the heap tuple.
    pub tuple: Vec<u8>,
    /// Spans of its fields.
    pub spans: Vec<Span>,
    /// Predicted key.
    pub key: Vec<u8>,
}

/// An index.
#[derive(Default)]
pub struct Index {
    /// The table of the index.
    pub table: Option<Relation>,
    /// How keys are built, by the layouts of the index tuple and the heap tuple.
    mappings: FxHashMap<(u32, LayoutKey), KeyMapping>,
    /// Sequence number, among the heap tuples inserted into the table, of the one expected for the next index
    /// tuple.
    at: u64,
    /// Number of tuples so far.
    tuples: u64,
    /// When encoding: the latest tuples, and by layout those whose keys no mapping predicts.
    recent: VecDeque<(Tid, Vec<u8>)>,
    unpredicted: FxHashMap<(u32, LayoutKey), Unpredicted>,
    /// Number of mappings at the last sort, and number of sorts.
    ordered: (usize, u32),
    /// Number of tuples since then whose TIDs the order did not predict.
    missed: u32,
}

#[derive(Default)]
struct Unpredicted {
    samples: VecDeque<Sample>,
    count: u32,
}

/// TIDs of the heap tuples that records inserted into a table last.
#[derive(Default)]
struct Inserted {
    tids: VecDeque<Tid>,
    /// Number of heap tuples inserted before these.
    forgotten: u64,
}

impl Inserted {
    const MAX_TIDS: usize = 4096;

    fn get(&self, at: u64) -> Option<Tid> {
        self.tids.get(usize::try_from(at.checked_sub(self.forgotten)?).ok()?).copied()
    }

    fn end(&self) -> u64 {
        self.forgotten + self.tids.len() as u64
    }
}

/// When encoding: number of samples to keep.
const SAMPLES: usize = 8;
/// Number of unpredicted keys of a layout after which encoding searches for another mapping only at powers of
/// two.
const PATIENCE: u32 = 24;

impl Keys {
    /// Starts a segment of `bytes` bytes, which allows the same number of heap tuples to be sorted.
    pub fn start(&mut self, bytes: usize) {
        const MAX_BUDGET: usize = 64 << 20;
        /// Average bytes of keys allowed for each heap tuple to sort.
        const KEY_BYTES: u64 = 512;
        self.budget = (self.budget + bytes).min(MAX_BUDGET);
        let grown = self.key_budget.saturating_add(KEY_BYTES * bytes as u64);
        self.key_budget = grown.min(KEY_BYTES * MAX_BUDGET as u64);
    }

    /// Notes a table: a relation with a heap tuple that was coded.
    pub fn table(&mut self, table: Relation) {
        let at = table.number as usize;
        if at >= self.tables_by_number.len() {
            self.tables_by_number.resize(at + 1, None);
        }
        if self.tables_by_number[at].is_none() {
            self.tables_by_number[at] = Some(table);
            self.tables.push(table);
        }
    }

    /// Notes the TID of a heap tuple that a record inserted into a table.
    pub fn inserted(&mut self, table: u32, tid: Tid) {
        self.latest = Some(tid);
        let inserted = self.inserted.entry(table).or_default();
        if inserted.tids.len() == Inserted::MAX_TIDS {
            inserted.tids.pop_front();
            inserted.forgotten += 1;
        }
        inserted.tids.push_back(tid);
    }

    /// Returns an index by its number.
    pub fn index(&mut self, number: u32) -> &mut Index {
        let at = number as usize;
        if at >= self.indexes.len() {
            self.indexes.resize_with(at + 1, Index::default);
        }
        &mut self.indexes[at]
    }

    /// Returns the tables that the index may belong to, latest first.
    pub fn candidates(&self, index: Relation) -> Vec<Relation> {
        const MAX_TABLES: usize = 512;
        let of = |table: &&Relation| table.locator.database == index.locator.database;
        self.tables.iter().rev().filter(of).take(MAX_TABLES).copied().collect()
    }

    /// Returns a table by its number.
    pub fn table_by_number(&self, number: u64) -> Option<Relation> {
        *self.tables_by_number.get(usize::try_from(number).ok()?)?
    }

    /// Returns the heap tuples expected for the index's next tuple in a record: the one inserted after the
    /// last index tuple's, and the one inserted last. A record inserts a heap tuple, and the records of its
    /// indexes follow.
    pub fn expected(&self, index: u32) -> [Option<Tid>; 2] {
        let known = self.indexes.get(index as usize).and_then(|index| Some((index, index.table?)));
        let Some((index, inserted)) =
            known.and_then(|(index, table)| Some((index, self.inserted.get(&table.number)?)))
        else {
            return [None; 2];
        };
        [inserted.get(index.at), inserted.get(inserted.end().wrapping_sub(1))]
    }

    /// Notes which of the expected heap tuples an index tuple refers to, if any.
    pub fn used(&mut self, index: u32, which: Option<usize>) {
        let Some(index) = self.indexes.get_mut(index as usize) else { return };
        match which {
            Some(0) => index.at += 1,
            Some(_) => {
                let inserted = index.table.and_then(|table| self.inserted.get(&table.number));
                index.at = inserted.map_or(0, Inserted::end);
            }
            None => {}
        }
    }

    /// Notes that a record inserted an index tuple without recording its heap tuple. It is assumed to be the
    /// next expected one.
    pub fn skip_expected(&mut self, index: u32) {
        if let [Some(_), _] = self.expected(index) {
            self.used(index, Some(0));
        }
    }

    /// Deducts heap tuples from the budget for sorting. Returns false if it is exhausted.
    pub fn allows(&mut self, tuples: usize) -> bool {
        let left = self.budget.checked_sub(tuples);
        self.budget = left.unwrap_or(0);
        left.is_some()
    }

    /// Deducts bytes of keys from the budget for sorting.
    ///
    /// # Errors
    /// Returns an error if it is exhausted: a hostile mapping repeatedly builds long keys from little data.
    pub fn spend_key_bytes(&mut self, bytes: u64) -> Result<(), Corrupt> {
        match self.key_budget.checked_sub(bytes) {
            Some(left) => {
                self.key_budget = left;
                Ok(())
            }
            None => Err(corrupt("cannot decode an order of keys: expected keys of less memory")),
        }
    }

    /// Sets the table of an index and drops mappings from another table.
    pub fn set_table(&mut self, index: u32, table: Relation) {
        let index = self.index(index);
        let forgotten: usize = index.mappings.values().map(KeyMapping::counted_bytes).sum();
        index.table = Some(table);
        index.mappings.clear();
        index.unpredicted.clear();
        index.at = 0;
        self.mapping_bytes -= forgotten;
    }

    /// Sets how an index's keys of a layout are built from heap tuples of a layout.
    ///
    /// # Errors
    /// Returns an error if the mappings of all indexes take too much memory.
    pub fn set_mapping(
        &mut self,
        index: u32,
        layouts: (u32, LayoutKey),
        mapping: KeyMapping,
    ) -> Result<(), Corrupt> {
        /// An index has at most as many mappings as its table has layouts. More are ignored.
        const MAX_MAPPINGS: usize = 4096;
        /// Enough for over a million mappings of ordinary indexes. Not part of the format: no WAL comes near
        /// this limit.
        const MAX_MAPPING_BYTES: usize = 256 << 20;
        let index = self.index(index);
        if index.mappings.len() >= MAX_MAPPINGS {
            return Ok(());
        }
        let added = mapping.counted_bytes();
        let replaced = index.mappings.insert(layouts, mapping);
        self.mapping_bytes += added;
        self.mapping_bytes -= replaced.map_or(0, |replaced| replaced.counted_bytes());
        if self.mapping_bytes > MAX_MAPPING_BYTES {
            return Err(corrupt("cannot decode a key mapping: expected fewer of them"));
        }
        Ok(())
    }
}

impl Index {
    /// Counts a tuple. Returns whether to code the index's table now: at the fourth tuple, and at each later
    /// power of two.
    pub fn is_time(&mut self) -> bool {
        self.tuples += 1;
        self.tuples >= 4 && self.tuples.is_power_of_two()
    }

    /// When encoding: keeps a tuple as a sample to find the table.
    pub fn remember(&mut self, tid: Tid, key: &[u8]) {
        if self.recent.len() == SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back((tid, key.to_vec()));
    }

    /// Returns the samples.
    pub fn recent(&self) -> impl Iterator<Item = (Tid, &[u8])> {
        self.recent.iter().map(|(tid, key)| (*tid, &key[..]))
    }

    /// Returns how keys of a layout are built from heap tuples of a layout.
    pub fn mapping(&self, layout: u32, tuple_layout: LayoutKey) -> Option<&KeyMapping> {
        self.mappings.get(&(layout, tuple_layout))
    }

    /// Returns a mapping that predicts the key of a tuple, and the keys of the last tuples that no mapping
    /// predicted.
    pub fn look_for_mapping(
        &mut self,
        (layout, tuple_layout): (u32, LayoutKey),
        key: &[u8],
        (tuple, spans): (&[u8], &[Span]),
        fields: &[Field],
    ) -> Option<KeyMapping> {
        let unpredicted = self.unpredicted.entry((layout, tuple_layout)).or_default();
        unpredicted.count += 1;
        if unpredicted.count > PATIENCE && !unpredicted.count.is_power_of_two() {
            return None;
        }
        if unpredicted.samples.len() == SAMPLES {
            unpredicted.samples.pop_front();
        }
        unpredicted.samples.push_back(Sample {
            key: key.to_vec(),
            tuple: tuple.to_vec(),
            spans: spans.to_vec(),
        });
        KeyMapping::from_samples(unpredicted.samples.make_contiguous(), fields)
    }

    /// When encoding: returns whether to sort the table's heap tuples. They are sorted once, and again if
    /// there are new mappings and many TIDs were not predicted. The threshold doubles each time.
    pub fn wants_order(&self) -> bool {
        const MAX_TIMES: u32 = 6;
        let (mappings, times) = self.ordered;
        let known = self.mappings.len();
        known > 0 && times < MAX_TIMES && (times == 0 || (known > mappings && self.missed >= 32 << times))
    }

    /// Notes that the heap tuples were sorted.
    pub fn set_ordered(&mut self) {
        self.ordered = (self.mappings.len(), self.ordered.1 + 1);
        self.missed = 0;
    }

    /// Counts tuples whose TIDs the order did not predict.
    pub fn missed(&mut self, tuples: u32) {
        self.missed = self.missed.saturating_add(tuples);
    }
}

/// Returns the heap tuple that a TID in an index refers to, on its page. A redirected line pointer leads to
/// the first tuple of a HOT chain (`heap_hot_search_buffer` in `heapam.c`).
pub fn item(page: &Page, number: u16) -> Option<&[u8]> {
    let pointer = page.line_pointer(number)?;
    match pointer.state() {
        ItemState::Normal => page.item(number),
        ItemState::Redirect => {
            let to = pointer.offset();
            (page.line_pointer(to)?.state() == ItemState::Normal).then(|| page.item(to))?
        }
        _ => None,
    }
}

/// Returns a table's heap tuple, as an item on its page, if the page is known.
pub fn heap_tuple(store: &mut PageStore, table: Relation, tid: Tid) -> Option<&[u8]> {
    let key = BlockKey { relation: table.locator, fork: Fork::MAIN, block: tid.block };
    let slot = store.find(key)?;
    item(store.page(slot)?, tid.offset_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_count_while_they_are_kept() {
        let mapping = || KeyMapping::from_samples(&[], &[]).expect("a mapping without pieces");
        let bytes = mapping().counted_bytes();
        let mut keys = Keys::default();
        for (index, layout, expected) in [(3, 0, bytes), (3, 0, bytes), (3, 1, 2 * bytes), (4, 0, 3 * bytes)]
        {
            keys.set_mapping(index, (layout, LayoutKey(1, 0)), mapping()).expect("there is memory");
            assert_eq!(keys.mapping_bytes, expected);
        }
        keys.set_table(3, Relation::default());
        assert_eq!(keys.mapping_bytes, bytes);
        assert!(keys.index(3).mapping(0, LayoutKey(1, 0)).is_none());
        assert!(keys.index(4).mapping(0, LayoutKey(1, 0)).is_some());
    }

    #[test]
    fn keys_made_for_sorting_are_limited_by_the_size_of_segments() {
        let mut keys = Keys::default();
        assert!(keys.spend_key_bytes(1).is_err(), "there is no segment yet");
        keys.start(1 << 20);
        assert!(keys.allows(1 << 20), "this many heap tuples");
        assert!(!keys.allows(1));
        keys.spend_key_bytes(512 << 20).expect("512 bytes for each");
        assert!(keys.spend_key_bytes(1).is_err());
        // Segments cannot accumulate more than this.
        (0..10).for_each(|_| keys.start(1 << 30));
        keys.spend_key_bytes(512 << 26).expect("512 bytes for each of 64 million");
        assert!(keys.spend_key_bytes(1).is_err());
    }
}
