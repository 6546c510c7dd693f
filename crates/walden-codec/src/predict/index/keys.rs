//! Indexes, the tables that they belong to, and where records lately put heap tuples.
//!
//! An index tuple says where its heap tuple is. That is on a replayed page, if the page is known, and the key is made of
//! its attributes ([`super::key_mapping`]). In a new index, which heap tuple comes next is predicted, too
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

/// What is known of indexes and the tables that they belong to: the same in both directions.
#[derive(Default)]
pub struct Keys {
    /// By the relation's number in the model.
    indexes: Vec<Index>,
    /// Tables in the order in which they were met, each once.
    tables: Vec<Relation>,
    /// The same by the relation's number.
    tables_by_number: Vec<Option<Relation>>,
    inserted: FxHashMap<u32, Inserted>,
    /// The heap tuple that a record inserted last.
    pub latest: Option<Tid>,
    /// The order of the heap tuples of the index whose new pages were coded last.
    pub order: Option<KeyOrder>,
    /// Whether encoding leaves out what saves little for the time that decoding takes for it.
    pub is_fast: bool,
    /// Heap tuples that may still be sorted. It grows with the bytes of segments: decoding must not take longer than their size
    /// allows, whatever a file says. It is part of the format: where it runs out, both directions go on without an order.
    budget: usize,
    /// Bytes of keys that may still be made for sorting. Not part of the format: no log comes near it, and where it runs out, the
    /// file is refused (encoding codes the segment as bytes).
    key_budget: u64,
    /// Bytes that the mappings of all indexes take, as [`KeyMapping::counted_bytes`] counts them.
    mapping_bytes: usize,
    /// Buffers for the next key.
    pub scratch: Scratch,
}

/// A heap tuple, where its fields are, and the key that is made of it.
#[derive(Default)]
pub struct Scratch {
    /// The heap tuple's attributes.
    pub tuple: Vec<u8>,
    /// Where they are.
    pub spans: Vec<Span>,
    /// The key.
    pub key: Vec<u8>,
}

/// An index.
#[derive(Default)]
pub struct Index {
    /// Its table.
    pub table: Option<Relation>,
    /// How keys are made, by the layouts of the index tuple and the heap tuple.
    mappings: FxHashMap<(u32, LayoutKey), KeyMapping>,
    /// The number of the heap tuple, among those inserted into the table, that the next index tuple is expected for.
    at: u64,
    /// Tuples so far.
    tuples: u64,
    /// When encoding: the latest tuples, and by layouts those whose keys no mapping predicts.
    recent: VecDeque<(Tid, Vec<u8>)>,
    unpredicted: FxHashMap<(u32, LayoutKey), Unpredicted>,
    /// The number of mappings when the order was made last, and how often it was made.
    ordered: (usize, u32),
    /// Tuples since then whose TIDs the order did not predict.
    missed: u32,
}

#[derive(Default)]
struct Unpredicted {
    samples: VecDeque<Sample>,
    count: u32,
}

/// The TIDs of the heap tuples that records inserted into a table last.
#[derive(Default)]
struct Inserted {
    tids: VecDeque<Tid>,
    /// How many were inserted before these.
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

/// Samples that encoding keeps.
const SAMPLES: usize = 8;
/// Tuples of a layout whose keys are not predicted, after which encoding looks for another mapping only now and then.
const PATIENCE: u32 = 24;

impl Keys {
    /// Before a segment of so many bytes, which may sort as many heap tuples.
    pub fn start(&mut self, bytes: usize) {
        const MAX_BUDGET: usize = 64 << 20;
        /// Bytes of keys for each heap tuple that may be sorted, on average.
        const KEY_BYTES: u64 = 512;
        self.budget = (self.budget + bytes).min(MAX_BUDGET);
        let grown = self.key_budget.saturating_add(KEY_BYTES * bytes as u64);
        self.key_budget = grown.min(KEY_BYTES * MAX_BUDGET as u64);
    }

    /// Notes a table: a relation of which a heap tuple was coded.
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

    /// An index, by its number.
    pub fn index(&mut self, number: u32) -> &mut Index {
        let at = number as usize;
        if at >= self.indexes.len() {
            self.indexes.resize_with(at + 1, Index::default);
        }
        &mut self.indexes[at]
    }

    /// Tables that the index may belong to, those met last first.
    pub fn candidates(&self, index: Relation) -> Vec<Relation> {
        const MAX_TABLES: usize = 512;
        let of = |table: &&Relation| table.locator.database == index.locator.database;
        self.tables.iter().rev().filter(of).take(MAX_TABLES).copied().collect()
    }

    /// A table by its number.
    pub fn table_by_number(&self, number: u64) -> Option<Relation> {
        *self.tables_by_number.get(usize::try_from(number).ok()?)?
    }

    /// The heap tuples that an index's next tuple in a record is probably for: the one inserted after the last index tuple's, and the
    /// one inserted last. A record inserts a heap tuple, and the records of its indexes follow.
    pub fn expected(&self, index: u32) -> [Option<Tid>; 2] {
        let known = self.indexes.get(index as usize).and_then(|index| Some((index, index.table?)));
        let Some((index, inserted)) =
            known.and_then(|(index, table)| Some((index, self.inserted.get(&table.number)?)))
        else {
            return [None; 2];
        };
        [inserted.get(index.at), inserted.get(inserted.end().wrapping_sub(1))]
    }

    /// Notes which of the expected heap tuples an index tuple was for, if any.
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

    /// Notes that a record inserted an index tuple without saying which of the expected heap tuples it is for: probably the next.
    pub fn skip_expected(&mut self, index: u32) {
        if let [Some(_), _] = self.expected(index) {
            self.used(index, Some(0));
        }
    }

    /// Takes heap tuples off the budget for sorting; no if it has fewer left.
    pub fn allows(&mut self, tuples: usize) -> bool {
        let left = self.budget.checked_sub(tuples);
        self.budget = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes bytes of keys off the budget for sorting.
    ///
    /// # Errors
    /// It has fewer left: a hostile mapping makes long keys of short data, again and again.
    pub fn spend_key_bytes(&mut self, bytes: u64) -> Result<(), Corrupt> {
        match self.key_budget.checked_sub(bytes) {
            Some(left) => {
                self.key_budget = left;
                Ok(())
            }
            None => Err(corrupt("cannot decode an order of keys: expected keys of less memory")),
        }
    }

    /// Sets an index's table, and forgets the mappings from another one.
    pub fn set_table(&mut self, index: u32, table: Relation) {
        let index = self.index(index);
        let forgotten: usize = index.mappings.values().map(KeyMapping::counted_bytes).sum();
        index.table = Some(table);
        index.mappings.clear();
        index.unpredicted.clear();
        index.at = 0;
        self.mapping_bytes -= forgotten;
    }

    /// Sets how an index's keys of a layout are made of heap tuples of a layout.
    ///
    /// # Errors
    /// The mappings of all indexes take too much memory.
    pub fn set_mapping(
        &mut self,
        index: u32,
        layouts: (u32, LayoutKey),
        mapping: KeyMapping,
    ) -> Result<(), Corrupt> {
        /// A file that states more of them makes no sense: an index has as many as its table has layouts.
        const MAX_MAPPINGS: usize = 4096;
        /// More than a million mappings of usual indexes. Not part of the format: no log comes near it.
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
    /// Counts a tuple; whether encoding should look for its table now.
    pub fn is_time(&mut self) -> bool {
        self.tuples += 1;
        self.tuples >= 4 && self.tuples.is_power_of_two()
    }

    /// Remembers a tuple, when encoding, as a sample by which the table is looked for.
    pub fn remember(&mut self, tid: Tid, key: &[u8]) {
        if self.recent.len() == SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back((tid, key.to_vec()));
    }

    /// The tuples that were remembered.
    pub fn recent(&self) -> impl Iterator<Item = (Tid, &[u8])> {
        self.recent.iter().map(|(tid, key)| (*tid, &key[..]))
    }

    /// How keys of a layout are made of heap tuples of a layout.
    pub fn mapping(&self, layout: u32, tuple_layout: LayoutKey) -> Option<&KeyMapping> {
        self.mappings.get(&(layout, tuple_layout))
    }

    /// A mapping that predicts the keys of a tuple that no mapping predicts, and of the last such ones.
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

    /// Whether encoding should sort the table's heap tuples: at first, and again when other mappings are known and many TIDs were not
    /// predicted, each time after twice as many.
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

/// The heap tuple that a TID of an index leads to, on its page. A line pointer that is redirected leads to the first tuple of a HOT
/// chain (`heap_hot_search_buffer` in `heapam.c`).
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

/// A table's heap tuple, as an item on its page, if that is known.
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
        // However many segments follow, no more than this is saved up.
        (0..10).for_each(|_| keys.start(1 << 30));
        keys.spend_key_bytes(512 << 26).expect("512 bytes for each of 64 million");
        assert!(keys.spend_key_bytes(1).is_err());
    }
}
