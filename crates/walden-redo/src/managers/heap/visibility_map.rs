//! The visibility map: two bits per block of a table.
//!
//! Mirrors `visibilitymap.c`. A map's page consists of its header and the bits.

use walden_format::lsn::Lsn;
use walden_format::payload::heap::{PruneFlags, XlHeapVisible};
use walden_format::record::{BlockRef, Fork, Record, RelFileLocator};
use walden_format::rmgr::info::heap2;
use walden_format::rmgr::rmid;
use walden_format::version::Major;

use crate::image::restore_page;
use crate::page::maps::{
    BITS_PER_HEAP_BLOCK, HEAP_BLOCKS_PER_BYTE, HEAP_BLOCKS_PER_PAGE, VISIBILITYMAP_ALL_VISIBLE,
    VISIBILITYMAP_VALID_BITS,
};
use crate::page::{Misfit, PAGE_CONTENTS, Page, flags};
use crate::step::Step;
use crate::store::{BlockKey, PageStore};

/// The position of a block's bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MapPlace {
    /// The map's page.
    block: u32,
    /// The byte's offset on that page.
    byte: usize,
    /// Distance of the block's bits from the lowest bit of the byte.
    shift: u32,
}

impl MapPlace {
    fn for_heap_block(heap_block: u32) -> MapPlace {
        MapPlace {
            block: heap_block / HEAP_BLOCKS_PER_PAGE,
            byte: PAGE_CONTENTS + (heap_block % HEAP_BLOCKS_PER_PAGE / HEAP_BLOCKS_PER_BYTE) as usize,
            shift: heap_block % HEAP_BLOCKS_PER_BYTE * BITS_PER_HEAP_BLOCK,
        }
    }

    fn clear(self, page: &mut Page, bits: u8) {
        page.0[self.byte] &= !(bits << self.shift);
    }

    /// Sets the bits. Returns whether they changed.
    fn set(self, page: &mut Page, bits: u8) -> bool {
        let changed = page.0[self.byte] >> self.shift & VISIBILITYMAP_VALID_BITS != bits;
        page.0[self.byte] |= bits << self.shift;
        changed
    }
}

/// Clears bits of a block that a record changed and that was all-visible or all-frozen
/// (`visibilitymap_clear`).
///
/// `heap` is the id of the table's block. 17.11, 18.6 and 19 register the map's block, whose page then gets
/// the record's LSN. Before, the record has only a flag, and the map's LSN does not change.
pub(super) fn clear(step: &mut Step<'_, '_>, heap: u8, bits: u8) {
    let Some(heap) = step.block(heap) else { return };
    let place = MapPlace::for_heap_block(heap.block);
    let key = BlockKey { relation: heap.relation, fork: Fork::VISIBILITY_MAP, block: place.block };
    if let Some(id) = registered(step.record.blocks, key) {
        if let Some(page) = step.page(id) {
            place.clear(page, bits);
        }
    } else if let Some(store) = step.store() {
        store.change(key, |page| place.clear(page, bits));
    }
}

/// Returns whether a record may clear bits on a page of a visibility map that the store wants, although the
/// record does not refer to that page.
pub(crate) fn may_clear(record: &Record<'_>, is_wanted: impl Fn(BlockKey) -> bool) -> bool {
    matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2)
        && record.blocks.iter().filter(|block| block.fork == Fork::MAIN).any(|heap| {
            let block = MapPlace::for_heap_block(heap.block).block;
            is_wanted(BlockKey { relation: heap.relation, fork: Fork::VISIBILITY_MAP, block })
        })
}

/// Returns the id of the map's block, if the record refers to it.
fn registered(blocks: &[BlockRef], key: BlockKey) -> Option<u8> {
    let is_key =
        |block: &&BlockRef| (block.relation, block.fork, block.block) == (key.relation, key.fork, key.block);
    blocks.iter().find(is_key).map(|block| block.id)
}

/// Sets bits of the table's block `heap` on the map's block `map`, for a record that refers to both
/// (`visibilitymap_set`).
pub(super) fn set(step: &mut Step<'_, '_>, map: u8, heap: u8, bits: u8) -> Result<(), Misfit> {
    let (Some(map_block), Some(heap)) = (step.block(map), step.block(heap)) else {
        return Err(Misfit("the record does not refer to the table and its visibility map"));
    };
    let place = MapPlace::for_heap_block(heap.block);
    if map_block.fork != Fork::VISIBILITY_MAP || map_block.block != place.block {
        return Err(Misfit("the record refers to another page of the visibility map"));
    }
    let always_stamps = step.version() >= Major::V19;
    if let Some(page) = step.page(map) {
        if page.is_new() {
            page.init(0);
        }
        // Until 18 only a change of the bits changes the page's LSN.
        if !place.set(page, bits) && !always_stamps {
            step.keep_lsn(map);
        }
    }
    Ok(())
}

/// Replays `VISIBLE`, until 18: block 0 is the map's, block 1 the table's (`heap_xlog_visible`).
pub(super) fn visible(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    // 9.5 had only one bit.
    let bits = XlHeapVisible::read(step.main())
        .map_or(VISIBILITYMAP_ALL_VISIBLE, |fields| fields.flags.0 & VISIBILITYMAP_VALID_BITS);
    note_logged_hints(step, 1);
    mark_page(step, 1);
    set(step, 0, 1, bits)
}

/// Notes that hints are logged if the record shows it. A record that only marks a table's page as all-visible
/// has an image of that page only if hints are logged (`log_heap_visible`, since 19
/// `log_heap_prune_and_freeze`).
pub(super) fn note_logged_hints(step: &mut Step<'_, '_>, heap: u8) {
    let is_image = step.block(heap).is_some_and(|block| block.image.is_some_and(|image| image.apply));
    // Since 19, a page that was never logged has an image in any case.
    let was_logged = |page: &mut Page| page.lsn() > Lsn(0);
    let shows = is_image && (step.version() < Major::V19 || step.page_or_image(heap).is_some_and(was_logged));
    if shows && let Some(store) = step.store() {
        store.hint_logging().note_shown();
    }
}

/// Returns whether a record refers to a table's page only to mark the page as all-visible, and has an image
/// of it. The image shows that hints are logged, by the same rule as in [`note_logged_hints`].
pub(crate) fn shows_logged_hints(record: &Record<'_>) -> bool {
    let is_since_19 = record.version >= Major::V19;
    let heap = match record.rmgr_info() {
        heap2::PRUNE_ON_ACCESS..=heap2::PRUNE_VACUUM_CLEANUP if is_since_19 => {
            let flags = PruneFlags::read(record.main_data(), record.version);
            flags.is_some_and(|flags| flags.sets_all_visible() && !flags.has_lists()).then_some(0)
        }
        heap2::VISIBLE if !is_since_19 => Some(1),
        _ => None,
    };
    let image =
        heap.and_then(|id| record.block(id)).and_then(|block| block.image.filter(|image| image.apply));
    image.is_some_and(|image| {
        !is_since_19
            || restore_page(&image, record.image_data(&image), None).is_ok_and(|page| page.lsn() > Lsn(0))
    })
}

/// Marks the table's page as all-visible, too. The LSN of the table's page changes only if hints are logged.
pub(super) fn mark_page(step: &mut Step<'_, '_>, heap: u8) {
    let stamps = step.store().is_some_and(|store| store.are_hints_logged());
    mark_changed_page(step, heap);
    // Redo sets the LSN of a page that it restores; an image for the consistency check is not restored.
    let restored = step.block(heap).is_some_and(|block| block.image.is_some_and(|image| image.apply));
    if !stamps && !restored {
        step.keep_lsn(heap);
    }
}

/// Marks a page as all-visible whose LSN changes anyway.
pub(super) fn mark_changed_page(step: &mut Step<'_, '_>, heap: u8) {
    if let Some(page) = step.page(heap)
        && !page.is_new()
    {
        page.change_flags(flags::PD_ALL_VISIBLE, 0);
    }
}

/// Clears the map's bits of the blocks from `heap_blocks` on, which were truncated
/// (`visibilitymap_prepare_truncate`).
pub(crate) fn truncate(store: &mut PageStore, relation: RelFileLocator, heap_blocks: u32) {
    let MapPlace { block, byte, shift } = MapPlace::for_heap_block(heap_blocks);
    let fork = Fork::VISIBILITY_MAP;
    if byte == PAGE_CONTENTS && shift == 0 {
        return store.truncate(relation, fork, block);
    }
    store.truncate(relation, fork, block + 1);
    store.change(BlockKey { relation, fork, block }, |page| {
        page.0[byte + 1..].fill(0);
        page.0[byte] &= (1 << shift) - 1;
    });
}
