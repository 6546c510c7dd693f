//! Pages at which nobody looks.
//!
//! Replay has a page wherever the log makes it anew, by an image or by a record that promises to. Many of them are never
//! looked at before they are made anew again: pages of new indexes, mostly, and of tables that are only filled. So each time
//! it is said whether the page is kept; one that is not is unknown from there on, and decoding has neither to restore nor to
//! change it. Encoding knows only later, and says it at the segment's end.

use walden_format::record::{BlockRef, Record};
use walden_redo::BlockSet;
use walden_redo::PageStore;
use walden_redo::{BlockKey, Slot};

use crate::columns::{Class, Coder, Column, Kind};
use crate::predict::names::{Names, Topic};
use crate::{Corrupt, corrupt};

const KEPT: u64 = 0;
const LET_GO: u64 = 1;

/// What encoding notes of the pages that were made anew in the segment.
#[derive(Default)]
pub struct Kept {
    /// Whether pages are let go at all.
    pub lets_go: bool,
    /// In the order in which they were made anew: where that is said, and whether it was looked at since.
    made: Vec<(Column, bool)>,
    /// By slot, the last of them there.
    last: Vec<Option<(Slot, u32)>>,
}

impl Kept {
    /// Before encoding replays a record.
    pub fn note<S: Coder>(
        &mut self,
        coder: &mut S,
        names: &mut Names,
        record: &Record<'_>,
        store: &mut PageStore,
    ) -> Result<(), Corrupt> {
        for block in record.blocks.iter().filter(|block| is_made_anew(block)) {
            let column = column(coder, names, block)?;
            if !self.lets_go {
                coder.symbol(column, KEPT)?;
                continue;
            }
            let slot = store.slot(BlockKey::of(block));
            if self.last.len() <= slot.index() {
                self.last.resize(slot.index() + 1, None);
            }
            let before = self.last[slot.index()].replace((slot, self.made.len() as u32));
            let seen = store.take_seen(slot);
            if let Some((_, before)) = before {
                self.made[before as usize].1 = seen;
            }
            self.made.push((column, false));
        }
        Ok(())
    }

    /// Says at a segment's end which were kept.
    pub fn finish<S: Coder>(&mut self, coder: &mut S, store: &mut PageStore) -> Result<(), Corrupt> {
        for (slot, made) in self.last.drain(..).flatten() {
            self.made[made as usize].1 = store.take_seen(slot);
        }
        for (column, seen) in self.made.drain(..) {
            coder.symbol(column, if seen { KEPT } else { LET_GO })?;
        }
        Ok(())
    }
}

/// Before decoding replays a record: the blocks whose pages are let go.
pub fn left<S: Coder>(coder: &mut S, names: &mut Names, record: &Record<'_>) -> Result<BlockSet, Corrupt> {
    let mut left = BlockSet::default();
    for (index, block) in record.blocks.iter().enumerate().filter(|(_, block)| is_made_anew(block)) {
        coder.set_relation(Some(block.relation));
        let column = column(coder, names, block)?;
        match coder.symbol(column, KEPT)? {
            KEPT => {}
            LET_GO => left.add(index),
            _ => return Err(corrupt("whether a page is kept can't be so")),
        }
    }
    coder.set_relation(None);
    Ok(left)
}

/// A record did not fit a page: that it fits none of the others then has to come out alike when decoding.
pub fn see_all(record: &Record<'_>, store: &mut PageStore) {
    for block in record.blocks {
        let slot = store.slot(BlockKey::of(block));
        store.see(slot);
    }
}

/// An image for the consistency check alone makes nothing anew: the page is what replay has.
fn is_made_anew(block: &BlockRef) -> bool {
    block.will_init || block.image.is_some_and(|image| image.apply)
}

fn column<S: Coder>(coder: &mut S, names: &mut Names, block: &BlockRef) -> Result<Column, Corrupt> {
    let like = [block.relation.relation, block.fork.0.into(), 0];
    names.column(coder, Topic::Kept, like, Kind::Symbols(Class::ImageHeaders))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use walden_format::lsn::Lsn;
    use walden_format::record::{RECORD_HEADER, RecordHeader, decode};
    use walden_format::rmgr::rmid;
    use walden_format::version::Major;
    use walden_redo::Replay;
    use walden_redo::page::{PAGE_BYTES, PAGE_HEADER};

    const LSN: Lsn = Lsn(0x100_0000);

    /// A record that makes blocks anew with one row each, or puts another row there.
    fn insert(blocks: &[u32], anew: bool) -> Vec<u8> {
        const INSERT_INIT: u8 = 0x80;
        const WILL_INIT: u8 = 0x40;
        const HAS_DATA: u8 = 0x20;
        // t_infomask2, t_infomask, t_hoff; a null bitmap's padding; an attribute of 4 bytes.
        const ROW: [u8; 10] = [1, 0, 0, 8, 24, 0, 7, 7, 7, 7];
        let mut bytes = vec![0; RECORD_HEADER];
        for (id, block) in blocks.iter().enumerate() {
            bytes.extend([id as u8, HAS_DATA | if anew { WILL_INIT } else { 0 }, ROW.len() as u8, 0]);
            bytes.extend([1663_u32, 5, 16384, *block].map(u32::to_le_bytes).as_flattened());
        }
        // xl_heap_insert: the row's number, flags.
        bytes.extend([255, 3]);
        blocks.iter().for_each(|_| bytes.extend(ROW));
        bytes.extend([if anew { 1 } else { 2 }, 0, 0]);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[16] = if anew { INSERT_INIT } else { 0 };
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
            let slot = store.slot(BlockKey::of(&record.blocks[0]));
            store.state(slot) == walden_redo::State::Exact
        })
    }

    /// Looks at a page as the model does.
    fn look(store: &mut PageStore, block: u32) {
        with(&insert(&[block], true), 0, |record| {
            let slot = store.find(BlockKey::of(&record.blocks[0])).expect("a block that was met");
            assert!(store.page(slot).expect("a page").lower() > PAGE_HEADER);
        });
    }

    /// Block 1 is looked at after it was made anew for the second time, block 2 never, though it gets another row in the end,
    /// block 3 after another row.
    fn coded(lets_go: bool) -> (Vec<u8>, Vec<Vec<u8>>) {
        let records = vec![
            insert(&[1], true),
            insert(&[2], true),
            insert(&[1], true),
            insert(&[3], true),
            insert(&[3], false),
            insert(&[2], false),
        ];
        let (mut coder, mut names, mut replay) = (Encoder::default(), Names::default(), Replay::default());
        let mut kept = Kept { lets_go, ..Kept::default() };
        for (step, bytes) in records.iter().enumerate() {
            with(bytes, step, |record| {
                kept.note(&mut coder, &mut names, record, &mut replay.store).expect("it is noted");
                assert!(replay.apply_but(record, BlockSet::default(), &mut ()), "record {step}");
            });
            match step {
                2 => look(&mut replay.store, 1),
                4 => look(&mut replay.store, 3),
                _ => {}
            }
        }
        kept.finish(&mut coder, &mut replay.store).expect("it is said");
        (coder.chunk(&mut Packer::new(1, true)), records)
    }

    fn decoded(lets_go: bool) -> Vec<[bool; 3]> {
        let (chunk, records) = coded(lets_go);
        let (mut coder, mut names, mut replay) = (Decoder::default(), Names::default(), Replay::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let mut known = Vec::new();
        for (step, bytes) in records.iter().enumerate() {
            with(bytes, step, |record| {
                let left = left(&mut coder, &mut names, record).expect("as many as were said");
                replay.apply_but(record, left, &mut ());
            });
            known.push([1, 2, 3].map(|block| is_known(&mut replay.store, block)));
        }
        coder.finish().expect("nothing is left");
        known
    }

    #[test]
    fn pages_that_nobody_looks_at_are_let_go_until_they_are_made_anew() {
        let known = decoded(true);
        assert_eq!(known[0], [false; 3], "nobody looks at block 1 before it is made anew again");
        assert_eq!(known[1], [false; 3], "nor at block 2");
        assert_eq!(known[2], [true, false, false], "at block 1 then");
        assert_eq!(known[5], [true, false, true], "a record does not make known what it does not make anew");
    }

    #[test]
    fn pages_that_may_be_wanted_by_the_next_segment_are_kept() {
        assert_eq!(decoded(false)[5], [true; 3]);
    }

    #[test]
    fn pages_of_a_record_that_does_not_fit_count_as_looked_at() {
        let (mut coder, mut names, mut replay) = (Encoder::default(), Names::default(), Replay::default());
        let mut kept = Kept { lets_go: true, ..Kept::default() };
        let both = insert(&[1, 2], true);
        with(&both, 0, |record| {
            kept.note(&mut coder, &mut names, record, &mut replay.store).expect("it is noted");
            see_all(record, &mut replay.store);
        });
        assert_eq!(kept.made.len(), 2);
        kept.finish(&mut coder, &mut replay.store).expect("it is said");
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut coder, mut names) = (Decoder::default(), Names::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let nothing_left = with(&both, 0, |record| left(&mut coder, &mut names, record)).expect("two");
        assert_eq!(nothing_left, BlockSet::default());
    }
}
