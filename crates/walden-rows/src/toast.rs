//! Values in TOAST tables, reassembled from their chunks.
//!
//! Where a chunk's page is known, only its place is kept; the page store has the page. A chunk on a page that is not known is
//! held itself, as the row that refers to it follows soon.

use std::collections::VecDeque;
use std::io;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::heap_tuple::HeapTupleHeader;
use walden_redo::page::toast_pointer::ToastPointer;
use walden_redo::page::{ItemState, Tid};
use walden_redo::{BlockKey, Page, PageStore};
use walden_source::datadir::DataDir;

use crate::heap::{Action, Bytes, TupleChange};
use crate::stored::{MAX_VALUE_BYTES, Stored, next};
use crate::types::Layout;

/// Bytes of chunks that are held at most.
const MAX_HELD_BYTES: usize = 64 << 20;

/// A value in a TOAST table: its file and `chunk_id`.
type ValueKey = (RelFileLocator, u32);

/// Where a chunk is.
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

/// The chunks that were met.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    values: FxHashMap<ValueKey, Vec<(u32, Place)>>,
    /// Values with chunks that are held, the oldest first.
    held: VecDeque<ValueKey>,
    held_bytes: usize,
    /// Files whose pages in the base backup were read.
    searched: FxHashSet<RelFileLocator>,
}

/// A tuple of a TOAST table.
struct Chunk<'a> {
    value: u32,
    number: u32,
    content: &'a [u8],
}

impl<'a> Chunk<'a> {
    fn of(tuple: &'a [u8]) -> Option<Chunk<'a>> {
        const NUMBER: Layout = Layout { length: 4, align: 4 };
        let data = tuple.get(usize::from(HeapTupleHeader::of(tuple)?.hoff())..)?;
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
    /// Takes a change of a TOAST table.
    pub fn take(&mut self, change: &TupleChange, is_page_known: bool) {
        let (Action::Insert, Bytes::Whole(tuple), Some(tid)) = (change.action, &change.new, change.new_tid)
        else {
            return;
        };
        let Some(chunk) = Chunk::of(tuple) else { return };
        let place = match is_page_known {
            true => Place::Page(tid),
            false => Place::Held(chunk.content.into()),
        };
        self.add((change.file, chunk.value), chunk.number, place);
    }

    fn add(&mut self, key: ValueKey, number: u32, place: Place) {
        let chunks = self.values.entry(key).or_default();
        // A rewritten table has the values again, under the same numbers.
        if number == 0 {
            let forgotten = held_bytes(chunks);
            chunks.clear();
            if forgotten > 0 {
                self.held_bytes -= forgotten;
                // The chunks that follow are younger.
                self.held.retain(|held| *held != key);
            }
        }
        let is_held = |(_, place): &(u32, Place)| place.held_bytes() > 0;
        if place.held_bytes() > 0 && !chunks.iter().rev().any(is_held) {
            self.held.push_back(key);
        }
        self.held_bytes += place.held_bytes();
        chunks.push((number, place));
        while self.held_bytes > MAX_HELD_BYTES {
            let Some(oldest) = self.held.pop_front() else { break };
            self.held_bytes -= held_bytes(&self.values.remove(&oldest).unwrap_or_default());
        }
    }

    /// The stored bytes of a value, which may be compressed; nothing if not all are known.
    ///
    /// # Errors
    /// The base backup cannot be read.
    pub fn fetch(
        &mut self,
        store: &mut PageStore,
        base: Option<&mut DataDir>,
        file: RelFileLocator,
        pointer: &ToastPointer,
    ) -> io::Result<Option<Vec<u8>>> {
        let key = (file, pointer.value);
        if let Some(found) = self.assemble(store, key, pointer) {
            return Ok(Some(found));
        }
        if let Some(base) = base
            && self.searched.insert(file)
        {
            self.search(store, base, file)?;
            return Ok(self.assemble(store, key, pointer));
        }
        Ok(None)
    }

    fn assemble(&self, store: &mut PageStore, key: ValueKey, pointer: &ToastPointer) -> Option<Vec<u8>> {
        let mut chunks: Vec<_> = self.values.get(&key)?.iter().collect();
        chunks.sort_by_key(|(number, _)| *number);
        let wanted = pointer.stored.raw_bytes as usize;
        let mut value = Vec::new();
        let mut page = Page::default();
        for (index, (number, place)) in chunks.into_iter().enumerate() {
            if *number as usize != index || value.len() >= wanted.min(MAX_VALUE_BYTES) {
                return None;
            }
            match place {
                Place::Held(content) => value.extend_from_slice(content),
                Place::Page(tid) => {
                    let slot = store.slot(BlockKey { relation: key.0, fork: Fork::MAIN, block: tid.block });
                    if !store.read(slot, &mut page) {
                        return None;
                    }
                    let chunk = Chunk::of(page.normal_item(tid.offset_number).ok()?)?;
                    // The place may have been given to another chunk.
                    if (chunk.value, chunk.number) != (key.1, *number) {
                        return None;
                    }
                    value.extend_from_slice(chunk.content);
                }
            }
        }
        (value.len() == wanted).then_some(value)
    }

    /// Notes the places of all chunks that the base backup has, as they are after the records so far.
    fn search(&mut self, store: &mut PageStore, base: &mut DataDir, file: RelFileLocator) -> io::Result<()> {
        let mut page = Page::default();
        let mut found: FxHashMap<ValueKey, Vec<(u32, Place)>> = FxHashMap::default();
        for block in 0..base.blocks(file, Fork::MAIN)? {
            let slot = store.slot(BlockKey { relation: file, fork: Fork::MAIN, block });
            if !store.read(slot, &mut page) {
                continue;
            }
            for number in 1..=page.items() {
                let is_normal =
                    page.line_pointer(number).is_some_and(|pointer| pointer.state() == ItemState::Normal);
                let Some(chunk) = page.item(number).filter(|_| is_normal).and_then(Chunk::of) else {
                    continue;
                };
                let place = Place::Page(Tid { block, offset_number: number });
                found.entry((file, chunk.value)).or_default().push((chunk.number, place));
            }
        }
        for (key, chunks) in found {
            self.values.entry(key).or_insert(chunks);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 16_384 };

    #[test]
    fn a_value_that_is_written_again_is_as_young_as_its_last_chunks() {
        let mut chunks = Chunks::default();
        let add = |chunks: &mut Chunks, value, number, bytes| {
            chunks.add((FILE, value), number, Place::Held(vec![0; bytes].into()));
        };
        add(&mut chunks, 1, 0, 1000);
        add(&mut chunks, 2, 0, 1000);
        // A rewritten table has the first value again.
        add(&mut chunks, 1, 0, 2000);
        add(&mut chunks, 1, 1, 500);
        assert_eq!(chunks.held, [(FILE, 2), (FILE, 1)]);
        assert_eq!(chunks.held_bytes, 3500);
        // Another one needs the room of the oldest.
        add(&mut chunks, 3, 0, MAX_HELD_BYTES - 3000);
        assert!(!chunks.values.contains_key(&(FILE, 2)), "the oldest value is still held");
        assert_eq!(chunks.values[&(FILE, 1)].len(), 2);
        assert_eq!(chunks.held_bytes, MAX_HELD_BYTES - 500);
    }
}
