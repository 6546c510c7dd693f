//! Values in TOAST tables, reassembled from their chunks.
//!
//! For a chunk on a known page, only its place is stored; the page store contains the page. Places beyond a
//! limit go to a temporary file. A chunk on an unknown page is held in memory, as the row that refers to it
//! follows soon.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::heap_tuple::HeapTupleHeader;
use walden_redo::page::toast_pointer::ToastPointer;
use walden_redo::page::{ItemState, Tid};
use walden_redo::{BlockKey, Page, PageStore};
use walden_source::datadir::DataDir;

use crate::heap::{Action, Bytes, TupleChange};
use crate::places::{ChunkPlace, SpilledPlaces, ValueKey};
use crate::stored_value::{MAX_VALUE_BYTES, Stored, next};
use crate::types::Layout;

/// Maximum number of bytes of held chunks.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Maximum number of places in memory, not counting values with held chunks. A place takes up to some 200
/// bytes if it is the only one of its value.
const MAX_PLACES: usize = 1 << 18;

/// Place of a chunk.
#[derive(Debug)]
enum Place {
    Page(Tid),
    Held(Box<[u8]>),
}

impl Place {
    fn held_bytes(&self) -> usize {
        match self {
            Place::Held(content) => content.len(),
            Place::Page(_) => 0,
        }
    }
}

fn held_bytes(chunks: &[(u32, Place)]) -> usize {
    chunks.iter().map(|(_, place)| place.held_bytes()).sum()
}

/// Number of chunks that are stored as a place only.
fn places(chunks: &[(u32, Place)]) -> usize {
    chunks.iter().filter(|(_, place)| matches!(place, Place::Page(_))).count()
}

/// The chunks found so far.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    values: FxHashMap<ValueKey, Vec<(u32, Place)>>,
    /// Values with held chunks, oldest first.
    held: VecDeque<ValueKey>,
    held_bytes: usize,
    /// Number of places in `values`; `kept_places` is that number after the last spill.
    places: usize,
    kept_places: usize,
    /// Chunks found earlier.
    spilled: SpilledPlaces,
    /// Files whose pages in the base backup were searched.
    searched: FxHashSet<RelFileLocator>,
}

/// A tuple of a TOAST table.
struct Chunk<'a> {
    value: u32,
    number: u32,
    content: &'a [u8],
}

impl<'a> Chunk<'a> {
    fn parse(tuple: &'a [u8]) -> Option<Chunk<'a>> {
        const NUMBER: Layout = Layout { length: 4, align: 4 };
        let data = tuple.get(usize::from(HeapTupleHeader::parse(tuple)?.hoff())..)?;
        let mut at = 0;
        let mut number = || match next(data, &mut at, NUMBER)? {
            Stored::Fixed(bytes) => bytes.try_into().ok().map(u32::from_le_bytes),
            _ => None,
        };
        let (value, number) = (number()?, number()?);
        match next(data, &mut at, Layout { length: -1, align: 4 })? {
            Stored::Plain(content) => Some(Chunk { value, number, content }),
            _ => None,
        }
    }
}

impl Chunks {
    /// Adds a change of a TOAST table.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn take(&mut self, change: &TupleChange, is_page_known: bool) -> io::Result<()> {
        let (Action::Insert, Bytes::Whole(tuple), Some(tid)) = (change.action, &change.new, change.new_tid)
        else {
            return Ok(());
        };
        let Some(chunk) = Chunk::parse(tuple) else { return Ok(()) };
        let place = match is_page_known {
            true => Place::Page(tid),
            false => Place::Held(chunk.content.into()),
        };
        self.add((change.file, chunk.value), chunk.number, place)
    }

    fn add(&mut self, key: ValueKey, number: u32, place: Place) -> io::Result<()> {
        let chunks = self.values.entry(key).or_default();
        // A rewritten table contains the values again, under the same numbers.
        if number == 0 {
            let forgotten = held_bytes(chunks);
            self.places -= places(chunks);
            chunks.clear();
            if forgotten > 0 {
                self.held_bytes -= forgotten;
                // The following chunks are newer.
                self.held.retain(|held| *held != key);
            }
        }
        let is_held = |(_, place): &(u32, Place)| place.held_bytes() > 0;
        if place.held_bytes() > 0 && !chunks.iter().rev().any(is_held) {
            self.held.push_back(key);
        }
        self.held_bytes += place.held_bytes();
        self.places += usize::from(matches!(place, Place::Page(_)));
        chunks.push((number, place));
        while self.held_bytes > MAX_HELD_BYTES {
            let Some(oldest) = self.held.pop_front() else { break };
            let forgotten = self.values.remove(&oldest).unwrap_or_default();
            self.held_bytes -= held_bytes(&forgotten);
            self.places -= places(&forgotten);
        }
        if self.places >= self.kept_places.saturating_add(MAX_PLACES) { self.spill() } else { Ok(()) }
    }

    /// Moves places to the temporary file, except places of values with held chunks: if a value's first chunk
    /// is in memory, only memory is searched.
    fn spill(&mut self) -> io::Result<()> {
        let mut moved = Vec::with_capacity(self.places);
        self.values.retain(|&key, chunks| {
            if held_bytes(chunks) > 0 {
                return true;
            }
            moved.extend(chunks.iter().filter_map(|&(number, ref place)| match place {
                Place::Page(tid) => Some(ChunkPlace { key, number, tid: *tid }),
                Place::Held(_) => None,
            }));
            false
        });
        self.places -= moved.len();
        self.kept_places = self.places;
        self.spilled.push(moved)
    }

    /// Returns the stored bytes of a value, which may be compressed; `None` if a part of the bytes is
    /// unknown.
    ///
    /// # Errors
    /// The base backup or the temporary file cannot be read.
    pub fn fetch(
        &mut self,
        store: &mut PageStore,
        base: Option<&mut DataDir>,
        file: RelFileLocator,
        pointer: &ToastPointer,
    ) -> io::Result<Option<Vec<u8>>> {
        let key = (file, pointer.value);
        if let Some(found) = self.assemble(store, key, pointer)? {
            return Ok(Some(found));
        }
        if let Some(base) = base
            && self.searched.insert(file)
        {
            self.search(store, base, file)?;
            return self.assemble(store, key, pointer);
        }
        Ok(None)
    }

    fn assemble(
        &self,
        store: &mut PageStore,
        key: ValueKey,
        pointer: &ToastPointer,
    ) -> io::Result<Option<Vec<u8>>> {
        let in_memory = self.values.get(&key).map(Vec::as_slice).unwrap_or_default();
        let is_whole = in_memory.iter().any(|(number, _)| *number == 0);
        let spilled = if is_whole { Vec::new() } else { self.spilled.find(key)? };
        let spilled: Vec<(u32, Place)> =
            spilled.into_iter().map(|chunk| (chunk.number, Place::Page(chunk.tid))).collect();
        // The newest of several chunks with the same number counts.
        let chunks: BTreeMap<u32, &Place> =
            spilled.iter().chain(in_memory).map(|(number, place)| (*number, place)).collect();
        if chunks.is_empty() {
            return Ok(None);
        }
        Ok(join(chunks, store, key, pointer.stored.raw_bytes as usize))
    }

    /// Records the places of all chunks in the base backup, in their state after the records so far.
    fn search(&mut self, store: &mut PageStore, base: &mut DataDir, file: RelFileLocator) -> io::Result<()> {
        let mut page = Page::default();
        let mut found = Vec::new();
        for block in 0..base.blocks(file, Fork::MAIN)? {
            let slot = store.slot(BlockKey { relation: file, fork: Fork::MAIN, block });
            if !store.read(slot, &mut page) {
                continue;
            }
            for number in 1..=page.items() {
                let is_normal =
                    page.line_pointer(number).is_some_and(|pointer| pointer.state() == ItemState::Normal);
                let Some(chunk) = page.item(number).filter(|_| is_normal).and_then(Chunk::parse) else {
                    continue;
                };
                let tid = Tid { block, offset_number: number };
                found.push(ChunkPlace { key: (file, chunk.value), number: chunk.number, tid });
            }
            if found.len() >= MAX_PLACES {
                self.spilled.push_base(std::mem::take(&mut found))?;
            }
        }
        self.spilled.push_base(found)
    }
}

/// Joins a value's chunks; `None` if one is missing.
fn join(
    chunks: BTreeMap<u32, &Place>,
    store: &mut PageStore,
    key: ValueKey,
    wanted: usize,
) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let mut page = Page::default();
    for (index, (number, place)) in chunks.into_iter().enumerate() {
        if number as usize != index || value.len() >= wanted.min(MAX_VALUE_BYTES) {
            return None;
        }
        match place {
            Place::Held(content) => value.extend_from_slice(content),
            Place::Page(tid) => {
                let slot = store.slot(BlockKey { relation: key.0, fork: Fork::MAIN, block: tid.block });
                if !store.read(slot, &mut page) {
                    return None;
                }
                let chunk = Chunk::parse(page.normal_item(tid.offset_number).ok()?)?;
                // The place may since have been reused for another chunk.
                if (chunk.value, chunk.number) != (key.1, number) {
                    return None;
                }
                value.extend_from_slice(chunk.content);
            }
        }
    }
    (value.len() == wanted).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 16_384 };

    #[test]
    fn a_value_that_is_written_again_is_as_young_as_its_last_chunks() {
        let mut chunks = Chunks::default();
        let add = |chunks: &mut Chunks, value, number, bytes| {
            chunks.add((FILE, value), number, Place::Held(vec![0; bytes].into())).expect("no file is needed");
        };
        add(&mut chunks, 1, 0, 1000);
        add(&mut chunks, 2, 0, 1000);
        // A rewritten table contains the first value again.
        add(&mut chunks, 1, 0, 2000);
        add(&mut chunks, 1, 1, 500);
        assert_eq!(chunks.held, [(FILE, 2), (FILE, 1)]);
        assert_eq!(chunks.held_bytes, 3500);
        // Another value displaces the oldest.
        add(&mut chunks, 3, 0, MAX_HELD_BYTES - 3000);
        assert!(!chunks.values.contains_key(&(FILE, 2)), "the oldest value is still held");
        assert_eq!(chunks.values[&(FILE, 1)].len(), 2);
        assert_eq!(chunks.held_bytes, MAX_HELD_BYTES - 500);
    }

    #[test]
    fn places_in_memory_are_bounded() {
        let mut chunks = Chunks::default();
        let tid = |value: u32| Tid { block: value, offset_number: 1 };
        let mut add = |value: u32, number: u32, place: Place| {
            chunks.add((FILE, value), number, place).expect("a temporary file");
            assert!(chunks.places <= 2 * MAX_PLACES && chunks.values.len() <= MAX_PLACES + 1);
        };
        add(0, 0, Place::Page(tid(0)));
        add(0, 1, Place::Held([1].into()));
        let last = MAX_PLACES as u32;
        for value in 1..=last {
            add(value, 0, Place::Page(tid(value)));
            add(value, 1, Place::Page(tid(value)));
        }
        let counted: usize = chunks.values.values().map(|chunks| places(chunks)).sum();
        assert_eq!(chunks.places, counted);
        // Held chunks are not on a known page.
        assert_eq!(chunks.values[&(FILE, 0)].len(), 2);
        // The chunks of the last value are in two runs.
        for value in [1, 2, last / 2] {
            let key = (FILE, value);
            assert!(!chunks.values.contains_key(&key), "{value}");
            let found = chunks.spilled.find(key).expect("a temporary file");
            assert_eq!(found, [0, 1].map(|number| ChunkPlace { key, number, tid: tid(value) }));
        }
    }
}
