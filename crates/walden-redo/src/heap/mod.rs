//! Tables: the resource managers Heap and Heap2, and the visibility map that they keep.
//!
//! `heapam.c` and, since 18, `heapam_xlog.c` decide. Inserts, updates and deletes are most of a busy server's log, so
//! their fields are read straight from the record's bytes.

use walden_format::record::{BlockRef, Fork};
use walden_format::version::Major;

use crate::displaced::Displaced;
use crate::mask;
use crate::page::{ItemState, Misfit, Page};
use crate::replay::{Manager, Step};

mod change;
mod insert;
mod prune;
#[cfg(test)]
mod tests;
mod tuple;
pub(crate) mod visibility_map;

pub(crate) use change::{displaced_flags, shared_with_old};
use tuple::{HeaderMut, TupleId, infomask};

pub(crate) static HEAP: Manager = Manager { redo, mask: mask_page, displaced };
pub(crate) static HEAP2: Manager = Manager { redo: redo2, mask: mask_page, displaced: displaced2 };

/// The bit of the info byte that says that a page is made anew.
const INIT_PAGE: u8 = 0x80;
/// The bits of the info byte that say what was done.
const OPERATION: u8 = 0x70;

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.kind() & OPERATION {
        0x00 => insert::insert(step),
        0x10 => change::delete(step),
        0x20 => change::update(step, false),
        0x40 => change::update(step, true),
        0x50 => change::confirm(step),
        0x60 => change::lock(step),
        0x70 => change::inplace(step),
        // TRUNCATE is for logical decoding; the files are cut by another record.
        _ => Ok(()),
    }
}

fn displaced(d: &Displaced<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    match (d.record.kind() & OPERATION, block.id) {
        (0x00, 0) => insert::displaced(d),
        (0x20 | 0x40, 0) => change::displaced_update(d),
        (0x70, 0) => change::displaced_inplace(d),
        _ => Some(Vec::new()),
    }
}

fn redo2(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let version = step.version();
    match step.kind() & OPERATION {
        0x10..=0x30 if version >= Major::V17 => prune::prune_and_freeze(step),
        0x10 => prune::prune(step),
        0x20 if version >= Major::V14 => prune::vacuum(step),
        0x20 | 0x30 => prune::freeze(step),
        0x40 => visibility_map::visible(step),
        0x50 => insert::multi_insert(step),
        0x60 => change::lock_updated(step),
        // REWRITE and NEW_CID are for logical decoding.
        _ => Ok(()),
    }
}

fn displaced2(d: &Displaced<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    let version = d.record.version;
    match (d.record.kind() & OPERATION, block.id) {
        (0x10..=0x30, 0) if version >= Major::V17 => prune::displaced_prune_and_freeze(d),
        (0x10, 0) => prune::displaced_prune(d),
        (0x20, 0) if version >= Major::V14 => prune::displaced_vacuum(d),
        (0x20 | 0x30, 0) => prune::displaced_freeze(d),
        (0x50, 0) => insert::displaced_multi(d),
        _ => Some(Vec::new()),
    }
}

/// The first bytes of a record's main data.
#[inline]
fn head<const N: usize>(main: &[u8]) -> Result<&[u8; N], Misfit> {
    main.first_chunk().ok_or(Misfit("the record's fields can't be read"))
}

/// A number of 16 bits that is there.
#[inline]
fn u16_of(low: u8, high: u8) -> u16 {
    u16::from_le_bytes([low, high])
}

/// The block's number of a record's block.
#[inline]
fn block_number(step: &Step<'_, '_>, id: u8) -> u32 {
    step.block(id).map_or(0, |block| block.block)
}

/// A transaction made a row version that may be pruned one day (`PageSetPrunable`).
#[inline]
fn set_prunable(page: &mut Page, xid: u32) {
    let known = page.prune_xid();
    if known == 0 || precedes(xid, known) {
        page.set_prune_xid(xid);
    }
}

/// Which of two transactions is older (`TransactionIdPrecedes`).
fn precedes(one: u32, other: u32) -> bool {
    const FIRST_NORMAL: u32 = 3;
    if one < FIRST_NORMAL || other < FIRST_NORMAL {
        one < other
    } else {
        (one.wrapping_sub(other) as i32) < 0
    }
}

/// What a table's page may have that its replay has not, and the other way round (`heap_mask`).
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
            && let Ok(mut header) = HeaderMut::of(item)
        {
            let frozen = header.infomask() & infomask::XMIN_FROZEN == infomask::XMIN_FROZEN;
            // Hint bits come and go without a record; those of a frozen xmin stay.
            let hints =
                if frozen { infomask::XMAX_INVALID | infomask::XMAX_COMMITTED } else { infomask::XACT_MASK };
            header.change_infomask(0, hints);
            header.set_xvac(0);
        }
        let (start, len) = (usize::from(pointer.offset()), usize::from(pointer.len()));
        if len > 0
            && let Some(padding) = page.0.get_mut(start + len..crate::page::aligned(start + len))
        {
            padding.fill(0);
        }
    }
}

/// The part of the mask that needs the page's place: redo lets a speculative row version lead to itself, on the primary it
/// has its token until it is confirmed.
pub(crate) fn mask_speculative(page: &mut Page, block: u32) {
    for number in 1..=page.items() {
        if let Ok(item) = page.normal_item_mut(number)
            && let Ok(mut header) = HeaderMut::of(item)
            && header.is_speculative()
        {
            header.set_ctid(TupleId(block, number));
        }
    }
}
