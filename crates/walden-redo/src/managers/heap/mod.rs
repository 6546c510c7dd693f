//! Tables and their visibility maps: the resource managers Heap and Heap2.
//!
//! Mirrors `heapam.c` and, since 18, `heapam_xlog.c`. Inserts, updates and deletes are most of a busy
//! server's WAL, so their fields are read directly from the record's bytes.

use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::{heap, heap2};
use walden_format::transam::precedes;
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::mask;
use crate::page::heap_tuple::{HeapTupleHeaderMut, infomask};
use crate::page::{ItemState, Misfit, Page, Tid, max_align};
use crate::step::Step;

mod change;
mod insert;
mod prune;
#[cfg(test)]
mod tests;
pub(crate) mod visibility_map;

pub(crate) use change::{set_prefix_and_suffix_flags, shared_with_old};

pub(crate) static HEAP: Manager = Manager { redo, mask: mask_page, block_data };
pub(crate) static HEAP2: Manager = Manager { redo: redo2, mask: mask_page, block_data: block_data2 };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.kind() & heap::OPMASK {
        heap::INSERT => insert::insert(step),
        heap::DELETE => change::delete(step),
        heap::UPDATE => change::update(step, false),
        heap::HOT_UPDATE => change::update(step, true),
        heap::CONFIRM => change::confirm(step),
        heap::LOCK => change::lock(step),
        heap::INPLACE => change::inplace(step),
        // TRUNCATE is for logical decoding; another record truncates the files.
        _ => Ok(()),
    }
}

fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    match (around.record.rmgr_info() & heap::OPMASK, block.id) {
        (heap::INSERT, 0) => insert::insert_data(around),
        (heap::UPDATE | heap::HOT_UPDATE, 0) => change::update_data(around),
        (heap::INPLACE, 0) => change::inplace_data(around),
        _ => Some(Vec::new()),
    }
}

fn redo2(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let version = step.version();
    match step.kind() & heap2::OPMASK {
        heap2::PRUNE_ON_ACCESS..=heap2::PRUNE_VACUUM_CLEANUP if version >= Major::V17 => {
            prune::prune_and_freeze(step)
        }
        heap2::PRUNE => prune::prune(step),
        heap2::VACUUM if version >= Major::V14 => prune::vacuum(step),
        heap2::FREEZE_PAGE_UNTIL_13 | heap2::FREEZE_PAGE => prune::freeze(step),
        heap2::VISIBLE => visibility_map::visible(step),
        heap2::MULTI_INSERT => insert::multi_insert(step),
        heap2::LOCK_UPDATED => change::lock_updated(step),
        // REWRITE and NEW_CID are for logical decoding.
        _ => Ok(()),
    }
}

fn block_data2(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    let version = around.record.version;
    match (around.record.rmgr_info() & heap2::OPMASK, block.id) {
        (heap2::PRUNE_ON_ACCESS..=heap2::PRUNE_VACUUM_CLEANUP, 0) if version >= Major::V17 => {
            prune::prune_and_freeze_data(around)
        }
        (heap2::PRUNE, 0) => prune::prune_data(around),
        (heap2::VACUUM, 0) if version >= Major::V14 => prune::vacuum_data(around),
        (heap2::FREEZE_PAGE_UNTIL_13 | heap2::FREEZE_PAGE, 0) => prune::freeze_data(around),
        (heap2::MULTI_INSERT, 0) => insert::multi_insert_data(around),
        _ => Some(Vec::new()),
    }
}

const UNREADABLE: Misfit = Misfit("cannot read the record's fields: its main data is too short");

/// Returns the block number of a record's block.
#[inline]
fn block_number(step: &Step<'_, '_>, id: u8) -> u32 {
    step.block(id).map_or(0, |block| block.block)
}

/// Notes that a transaction may make the page prunable (`PageSetPrunable`).
#[inline]
fn set_prunable(page: &mut Page, xid: u32) {
    let known = page.prune_xid();
    if known == 0 || precedes(xid, known) {
        page.set_prune_xid(xid);
    }
}

/// Masks the changes of a table's page that are not logged (`heap_mask`).
fn mask_page(page: &mut Page, _: Major, fork: Fork) {
    if fork == Fork::VISIBILITY_MAP {
        return;
    }
    mask::hint_bits(page);
    mask::unused_space(page);
    for number in 1..=page.items() {
        let Some(pointer) = page.line_pointer(number) else { break };
        if pointer.state() == ItemState::Normal
            && let Ok(item) = page.normal_item_mut(number)
            && let Ok(mut header) = HeapTupleHeaderMut::parse(item)
        {
            let frozen = header.infomask() & infomask::HEAP_XMIN_FROZEN == infomask::HEAP_XMIN_FROZEN;
            // Hint bits change without a record, except for the bits of a frozen xmin.
            let hints = if frozen {
                infomask::HEAP_XMAX_INVALID | infomask::HEAP_XMAX_COMMITTED
            } else {
                infomask::HEAP_XACT_MASK
            };
            header.change_infomask(0, hints);
            header.set_xvac(0);
        }
        let (start, len) = (usize::from(pointer.offset()), usize::from(pointer.len()));
        if len > 0
            && let Some(padding) = page.0.get_mut(start + len..max_align(start + len))
        {
            padding.fill(0);
        }
    }
}

/// Masks speculative heap tuples, for which the page's block number is required. Redo sets `t_ctid` to the
/// tuple itself; on the primary it has the speculative token until the insertion is confirmed.
pub(crate) fn mask_speculative(page: &mut Page, block: u32) {
    for number in 1..=page.items() {
        if let Ok(item) = page.normal_item_mut(number)
            && let Ok(mut header) = HeapTupleHeaderMut::parse(item)
            && header.is_speculative()
        {
            header.set_ctid(Tid { block, offset_number: number });
        }
    }
}
