//! Explains images of visibility maps that differ from the replayed maps because PostgreSQL's own redo yields
//! different maps, too.
//!
//! Two differences are PostgreSQL's own, and neither endangers a table:
//!
//! - `CREATE DATABASE` with the strategy `wal_log` logs a map's pages as if they had line pointers and items
//!   (`RelationCopyStorageUsingBuffer`). The header declares the whole page unused, so the image has no bits,
//!   and redo starts with an empty map. From there on bits may be missing, but there are never surplus bits.
//! - Releases whose records do not refer to the map clear a bit before they write the corresponding record
//!   (`heap_delete` and others, until 17.10 and 18.5). A record of another transaction in between logs the
//!   map without the bit. The table's block is locked exclusively in the meantime, so its next record is the
//!   one that clears the bit.

use walden_format::record::{Fork, Record};

use super::{Difference, Place};
use crate::page::maps::{
    BITS_PER_HEAP_BLOCK, HEAP_BLOCKS_PER_BYTE, HEAP_BLOCKS_PER_PAGE, VISIBILITYMAP_VALID_BITS,
};
use crate::page::{PAGE_CONTENTS, PAGE_HEADER_BYTES, Page};
use crate::pool::PageBox;
use crate::replay::Replay;

/// Maximum number of a table's blocks whose bits may be cleared early at the same time, each by its own
/// process.
const MAX_CLEARED: usize = 256;
/// Maximum number of pages that wait for their records at the same time.
const MAX_WAITING: usize = 256;

/// The difference between a map's page and the replayed one, if only bits differ.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct MapDifference {
    /// PostgreSQL's page has bits that the replayed page lacks.
    has_missing: bool,
    /// The bits that the replayed page has and PostgreSQL's lacks, by the table's block.
    surplus: Vec<(u32, u8)>,
}

impl MapDifference {
    /// Compares the pages. Returns `None` if they differ in more than bits, or in more than [`MAX_CLEARED`]
    /// blocks' bits.
    pub(super) fn compare(expected: &Page, found: &Page, map_block: u32) -> Option<MapDifference> {
        // The LSN and the checksum come before the flags.
        let header = 10..PAGE_HEADER_BYTES;
        if expected.0[header.clone()] != found.0[header] {
            return None;
        }
        let mut difference = MapDifference::default();
        let bytes = expected.0[PAGE_CONTENTS..].iter().zip(&found.0[PAGE_CONTENTS..]);
        for (index, (expected, found)) in bytes.enumerate() {
            difference.has_missing |= expected & !found != 0;
            let surplus = found & !expected;
            for of_byte in 0..HEAP_BLOCKS_PER_BYTE {
                let bits = surplus >> (of_byte * BITS_PER_HEAP_BLOCK) & VISIBILITYMAP_VALID_BITS;
                if bits != 0 {
                    let block = index as u32 * HEAP_BLOCKS_PER_BYTE + of_byte;
                    let block = map_block.wrapping_mul(HEAP_BLOCKS_PER_PAGE).wrapping_add(block);
                    difference.surplus.push((block, bits));
                }
            }
            if difference.surplus.len() > MAX_CLEARED {
                return None;
            }
        }
        Some(difference)
    }

    /// Returns whether replay lacks bits and has no surplus bits.
    pub(super) fn only_lacks(&self) -> bool {
        self.surplus.is_empty()
    }

    /// Returns whether replay has surplus bits and lacks none, or `may_lack`.
    pub(super) fn may_be_early(&self, may_lack: bool) -> bool {
        !self.surplus.is_empty() && (may_lack || !self.has_missing)
    }
}

/// A map's page that lacks bits and waits for the records that clear them.
#[derive(Debug)]
struct Waiting {
    place: Place,
    difference: Difference,
    /// The bits that the next record of each of the table's blocks must clear.
    awaited: Vec<(u32, u8)>,
    /// Replays these records on the replayed page, which still has the bits.
    replay: Replay,
}

/// The outcome for a page that waited.
#[derive(Debug)]
pub(super) enum Resolved {
    /// The next record of each block cleared its bits.
    ClearedEarly(Place, crate::Family),
    /// The next record of a block did not clear its bits, or the block has no further record.
    Different(Place, Difference),
}

/// The pages that lack bits and wait for the records that clear them.
#[derive(Debug, Default)]
pub(super) struct EarlyClears {
    waiting: Vec<Waiting>,
}

impl EarlyClears {
    /// Returns whether no page waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a page. Returns the difference if too many pages wait already.
    pub(super) fn wait(
        &mut self,
        place: Place,
        difference: Difference,
        bits: MapDifference,
        found: &Page,
    ) -> Result<(), Difference> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(difference);
        }
        let mut replay = Replay::default();
        let slot = replay.store.slot(place.key);
        replay.store.put(slot, PageBox::from(found), place.last);
        self.waiting.push(Waiting { place, difference, awaited: bits.surplus, replay });
        Ok(())
    }

    /// Checks whether a record clears bits that a page waits for. Returns the pages whose outcome is now
    /// known.
    pub(super) fn observe(&mut self, record: &Record<'_>) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        self.waiting.retain_mut(|waiting| {
            let Some(is_early) = waiting.observe(record) else { return true };
            let place = waiting.place;
            resolved.push(match is_early {
                true => Resolved::ClearedEarly(place, waiting.difference.family),
                false => Resolved::Different(place, waiting.difference.clone()),
            });
            false
        });
        resolved
    }

    /// Handles the end of the WAL. Returns the pages whose bits no record has cleared.
    pub(super) fn finish(&mut self) -> Vec<Resolved> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.map(|waiting| Resolved::Different(waiting.place, waiting.difference)).collect()
    }
}

impl Waiting {
    /// Returns whether all bits were cleared as expected, or `None` if that is not known yet.
    fn observe(&mut self, record: &Record<'_>) -> Option<bool> {
        let relation = self.place.key.relation;
        let changes =
            |fork: Fork| record.blocks.iter().filter(move |b| b.relation == relation && b.fork == fork);
        let is_changed = |block: u32| changes(Fork::MAIN).any(|change| change.block == block);
        if !self.awaited.iter().any(|&(block, _)| is_changed(block)) {
            return None;
        }
        // A record that refers to the map keeps it locked: no bit is cleared before the record is written.
        if changes(Fork::VISIBILITY_MAP).next().is_some() {
            return Some(false);
        }
        self.replay.apply(record, &mut ());
        let slot = self.replay.store.slot(self.place.key);
        let Some(page) = self.replay.store.page(slot) else { return Some(false) };
        let (now, later) =
            self.awaited.iter().partition::<Vec<(u32, u8)>, _>(|(block, _)| is_changed(*block));
        if now.iter().any(|&(block, bits)| bits_of(page, block) & bits != 0) {
            return Some(false);
        }
        self.awaited = later;
        self.awaited.is_empty().then_some(true)
    }
}

/// Returns the bits of a table's block on its page of the map.
fn bits_of(page: &Page, block: u32) -> u8 {
    let of_page = block % HEAP_BLOCKS_PER_PAGE;
    let byte = page.0[PAGE_CONTENTS + (of_page / HEAP_BLOCKS_PER_BYTE) as usize];
    byte >> (of_page % HEAP_BLOCKS_PER_BYTE * BITS_PER_HEAP_BLOCK) & VISIBILITYMAP_VALID_BITS
}
