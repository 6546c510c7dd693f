//! Drops pages that no later record reads.
//!
//! Replay knows a page as soon as a record initializes it, by an image or because of its kind
//! (`BKPBLOCK_WILL_INIT`). Many of these pages are not read before they are initialized again: mostly pages
//! of new indexes, and of tables that are only filled. Each initialization therefore codes whether the page
//! is read. If not, the page is dropped: it is unknown from there on, and decoding neither restores nor
//! changes it. Encoding learns that only later, so it codes the decisions at the end of the segment.

use walden_format::record::{BlockRef, Record};
use walden_redo::BlockSet;
use walden_redo::PageStore;
use walden_redo::{BlockKey, Slot};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::keyed_columns::{KeyedColumns, Topic};
use crate::{Corrupt, corrupt};

const KEPT: u64 = 0;
const DROPPED: u64 = 1;

/// Pages that records of the segment initialized, as noted by encoding.
#[derive(Default)]
pub struct Kept {
    /// Whether unread pages are dropped.
    pub drops_pages: bool,
    /// For each initialization in order: the column that codes whether the page was read afterwards, and
    /// whether it was.
    initialized: Vec<(Column, bool)>,
    /// Last initialization of each page, by its slot.
    last: Vec<Option<(Slot, u32)>>,
}

impl Kept {
    /// When encoding: notes the pages that a record initializes, before it is replayed.
    pub fn note<S: Coder>(
        &mut self,
        coder: &mut S,
        keyed_columns: &mut KeyedColumns,
        record: &Record<'_>,
        store: &mut PageStore,
    ) -> Result<(), Corrupt> {
        for block in record.blocks.iter().filter(|block| is_initialized(block)) {
            let column = column(coder, keyed_columns, block)?;
            if !self.drops_pages {
                coder.symbol(column, KEPT)?;
                continue;
            }
            let slot = store.slot(BlockKey::from_block(block));
            if self.last.len() <= slot.index() {
                self.last.resize(slot.index() + 1, None);
            }
            let before = self.last[slot.index()].replace((slot, self.initialized.len() as u32));
            let seen = store.take_seen(slot);
            if let Some((_, before)) = before {
                self.initialized[before as usize].1 = seen;
            }
            self.initialized.push((column, false));
        }
        Ok(())
    }

    /// Codes at the end of a segment which pages were read.
    pub fn finish<S: Coder>(&mut self, coder: &mut S, store: &mut PageStore) -> Result<(), Corrupt> {
        for (slot, number) in self.last.drain(..).flatten() {
            self.initialized[number as usize].1 = store.take_seen(slot);
        }
        for (column, seen) in self.initialized.drain(..) {
            coder.symbol(column, if seen { KEPT } else { DROPPED })?;
        }
        Ok(())
    }
}

/// Decodes, before a record is replayed, which of its pages are dropped.
pub fn dropped_blocks<S: Coder>(
    coder: &mut S,
    keyed_columns: &mut KeyedColumns,
    record: &Record<'_>,
) -> Result<BlockSet, Corrupt> {
    let mut dropped = BlockSet::default();
    for (index, block) in record.blocks.iter().enumerate().filter(|(_, block)| is_initialized(block)) {
        coder.set_relation(Some(block.relation));
        let column = column(coder, keyed_columns, block)?;
        match coder.symbol(column, KEPT)? {
            KEPT => {}
            DROPPED => dropped.add(index),
            _ => return Err(corrupt("cannot decode whether a page is read: expected 0 or 1")),
        }
    }
    coder.set_relation(None);
    Ok(dropped)
}

/// Marks all pages of a record that cannot be replayed as read: decoding has to fail to replay it as well.
pub fn mark_all_read(record: &Record<'_>, store: &mut PageStore) {
    for block in record.blocks {
        let slot = store.slot(BlockKey::from_block(block));
        store.see(slot);
    }
}

/// Returns whether a record initializes a block's page. An image that only serves `wal_consistency_checking`
/// does not: the replayed page stays valid.
fn is_initialized(block: &BlockRef) -> bool {
    block.will_init || block.image.is_some_and(|image| image.apply)
}

fn column<S: Coder>(
    coder: &mut S,
    keyed_columns: &mut KeyedColumns,
    block: &BlockRef,
) -> Result<Column, Corrupt> {
    let key = [block.relation.relation, block.fork.0.into(), 0];
    keyed_columns.column(coder, Topic::Kept, key, Kind::Symbols(Class::ImageHeaders))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use walden_format::lsn::Lsn;
    use walden_format::record::block_flags::{HAS_DATA, WILL_INIT};
    use walden_format::record::{RECORD_HEADER, RecordHeader, decode};
    use walden_format::rmgr::info::heap::INIT_PAGE;
    use walden_format::rmgr::rmid;
    use walden_format::version::Major;
    use walden_redo::Replay;
    use walden_redo::page::{PAGE_BYTES, PAGE_HEADER_BYTES};

    const LSN: Lsn = Lsn(0x100_0000);

    /// Returns a record that initializes blocks with one tuple each, or inserts another tuple into each.
    fn insert(blocks: &[u32], is_first: bool) -> Vec<u8> {
        // `t_infomask2`, `t_infomask`, `t_hoff`; padding of the null bitmap; an attribute of 4 bytes.
        const TUPLE: [u8; 10] = [1, 0, 0, 8, 24, 0, 7, 7, 7, 7];
        let mut bytes = vec![0; RECORD_HEADER];
        for (id, block) in blocks.iter().enumerate() {
            bytes.extend([id as u8, HAS_DATA | if is_first { WILL_INIT } else { 0 }, TUPLE.len() as u8, 0]);
            bytes.extend([1663_u32, 5, 16384, *block].map(u32::to_le_bytes).as_flattened());
        }
        // `xl_heap_insert`: offset number and flags.
        bytes.extend([255, 3]);
        blocks.iter().for_each(|_| bytes.extend(TUPLE));
        bytes.extend([if is_first { 1 } else { 2 }, 0, 0]);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[16] = if is_first { INIT_PAGE } else { 0 };
        bytes[17] = rmid::HEAP;
        bytes
    }

    fn with<T>(bytes: &[u8], step: usize, then: impl FnOnce(&Record<'_>) -> T) -> T {
        let header = RecordHeader::parse(bytes).expect("a header");
        let start = LSN.plus(1000 * step as u64);
        let mut refs = Vec::new();
        let place = (start, start.plus(1000));
        then(&decode(bytes, header, place, Major::V18, PAGE_BYTES as u32, &mut refs).expect("a record"))
    }

    fn is_known(store: &mut PageStore, block: u32) -> bool {
        with(&insert(&[block], true), 0, |record| {
            let slot = store.slot(BlockKey::from_block(&record.blocks[0]));
            store.state(slot) == walden_redo::State::Exact
        })
    }

    /// Reads a page as the model does.
    fn read(store: &mut PageStore, block: u32) {
        with(&insert(&[block], true), 0, |record| {
            let slot = store.find(BlockKey::from_block(&record.blocks[0])).expect("a block that was met");
            assert!(store.page(slot).expect("a page").lower() > PAGE_HEADER_BYTES);
        });
    }

    /// Block 1 is read after its second initialization. Block 2 is never read, although it gets another tuple
    /// at the end. Block 3 is read after it gets another tuple.
    fn coded(drops_pages: bool) -> (Vec<u8>, Vec<Vec<u8>>) {
        let records = vec![
            insert(&[1], true),
            insert(&[2], true),
            insert(&[1], true),
            insert(&[3], true),
            insert(&[3], false),
            insert(&[2], false),
        ];
        let (mut coder, mut keyed_columns, mut replay) =
            (Encoder::default(), KeyedColumns::default(), Replay::default());
        let mut kept = Kept { drops_pages, ..Kept::default() };
        for (step, bytes) in records.iter().enumerate() {
            with(bytes, step, |record| {
                kept.note(&mut coder, &mut keyed_columns, record, &mut replay.store).expect("it is noted");
                assert!(replay.apply_except(record, BlockSet::default(), &mut ()), "record {step}");
            });
            match step {
                2 => read(&mut replay.store, 1),
                4 => read(&mut replay.store, 3),
                _ => {}
            }
        }
        kept.finish(&mut coder, &mut replay.store).expect("it is said");
        (coder.chunk(&mut Packer::new(1, true)), records)
    }

    fn decoded(drops_pages: bool) -> Vec<[bool; 3]> {
        let (chunk, records) = coded(drops_pages);
        let (mut coder, mut keyed_columns, mut replay) =
            (Decoder::default(), KeyedColumns::default(), Replay::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let mut known = Vec::new();
        for (step, bytes) in records.iter().enumerate() {
            with(bytes, step, |record| {
                let dropped =
                    dropped_blocks(&mut coder, &mut keyed_columns, record).expect("as many as were said");
                replay.apply_except(record, dropped, &mut ());
            });
            known.push([1, 2, 3].map(|block| is_known(&mut replay.store, block)));
        }
        coder.finish().expect("nothing is left");
        known
    }

    #[test]
    fn pages_that_are_not_read_are_dropped_until_they_are_initialized_again() {
        let known = decoded(true);
        assert_eq!(known[0], [false; 3], "block 1 is not read before it is initialized again");
        assert_eq!(known[1], [false; 3], "nor at block 2");
        assert_eq!(known[2], [true, false, false], "but block 1 is then");
        assert_eq!(
            known[5],
            [true, false, true],
            "a record does not make a page known that it does not initialize"
        );
    }

    #[test]
    fn pages_that_the_next_segment_may_read_are_kept() {
        assert_eq!(decoded(false)[5], [true; 3]);
    }

    #[test]
    fn pages_of_a_record_that_does_not_fit_count_as_read() {
        let (mut coder, mut keyed_columns, mut replay) =
            (Encoder::default(), KeyedColumns::default(), Replay::default());
        let mut kept = Kept { drops_pages: true, ..Kept::default() };
        let both = insert(&[1, 2], true);
        with(&both, 0, |record| {
            kept.note(&mut coder, &mut keyed_columns, record, &mut replay.store).expect("it is noted");
            mark_all_read(record, &mut replay.store);
        });
        assert_eq!(kept.initialized.len(), 2);
        kept.finish(&mut coder, &mut replay.store).expect("it is said");
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut coder, mut keyed_columns) = (Decoder::default(), KeyedColumns::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let dropped =
            with(&both, 0, |record| dropped_blocks(&mut coder, &mut keyed_columns, record)).expect("two");
        assert_eq!(dropped, BlockSet::default());
    }
}
