//! GiST indexes.
//!
//! ```text
//! special area of a page, 16 bytes (GISTPageOpaqueData)
//! offset  width
//!      0      8  nsn           LSN of the page's last split: high word first
//!      8      4  rightlink     the next page of the level
//!     12      2  flags
//!     14      2  gist_page_id
//! ```
//!
//! `gistxlog.c` decides.

use walden_format::lsn::Lsn;
use walden_format::reader::Reader;
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::gist::{ASSIGN_LSN, DELETE, PAGE_DELETE, PAGE_REUSE, PAGE_SPLIT, PAGE_UPDATE};
use walden_format::version::Major;

use crate::displaced::Displaced;
use crate::index_items::{field, index_tuple, missing_items, new_page, newest_items, number_bytes, numbers};
use crate::mask;
use crate::page::{Misfit, PAGE_BYTES, PAGE_HEADER, Page};
use crate::replay::{Manager, Step};

pub(crate) static GIST: Manager = Manager { redo, mask: mask_page, displaced };

const SPECIAL_BYTES: usize = 16;
const NSN: usize = 0;
const RIGHT_LINK: usize = 8;
const FLAGS: usize = 12;
const PAGE_ID: usize = 14;
const GIST_PAGE_ID: u16 = 0xFF81;

const LEAF: u16 = 1 << 0;
const DELETED: u16 = 1 << 1;
const TUPLES_DELETED: u16 = 1 << 2;
const FOLLOW_RIGHT: u16 = 1 << 3;
const HAS_GARBAGE: u16 = 1 << 4;

/// The root's block, always.
const ROOT: u32 = 0;
const NO_BLOCK: u32 = u32::MAX;

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.kind() {
        PAGE_UPDATE => page_update(step),
        DELETE => delete(step),
        PAGE_REUSE | ASSIGN_LSN => Ok(()),
        PAGE_SPLIT => page_split(step),
        PAGE_DELETE => page_delete(step),
        _ => Err(Misfit("GiST has no such record")),
    }
}

/// The head of a record that changes one page (`gistxlogPageUpdate`).
struct PageUpdate {
    deleted: u16,
    inserted: u16,
}

impl PageUpdate {
    fn read(main: &[u8]) -> Option<PageUpdate> {
        let mut main = Reader::new(main);
        Some(PageUpdate { deleted: main.u16()?, inserted: main.u16()? })
    }

    /// Whether one item takes the place of another, instead of items being taken off and others put behind the rest.
    fn overwrites(&self) -> bool {
        self.deleted == 1 && self.inserted == 1
    }
}

fn page_update(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let update = field(PageUpdate::read(step.main()))?;
    let mut data = Reader::new(step.data(0));
    if let Some(page) = step.page(0) {
        let special = special(page)?;
        let deleted = numbers(&mut data, update.deleted)?;
        if update.overwrites() {
            page.overwrite_item(deleted[0], index_tuple(&mut data)?)?;
        } else {
            page.delete_items(&deleted)?;
            if !deleted.is_empty() && page.u16_at(special + FLAGS) & LEAF != 0 {
                change_flags(page, special, TUPLES_DELETED, 0);
            }
            append(page, &mut data, update.inserted.into())?;
        }
        if data.left() != 0 {
            return Err(Misfit("the record has more tuples than it says"));
        }
    }
    clear_follow_right(step, 1)
}

/// Puts tuples behind all others.
fn append(page: &mut Page, data: &mut Reader<'_>, count: usize) -> Result<(), Misfit> {
    for _ in 0..count {
        page.insert_item(index_tuple(data)?, page.items() + 1)?;
    }
    Ok(())
}

/// The left half of a split, once its parent points to the right half: scans need not follow its link any more.
///
/// That happens after the record is written, so an image of the page does not have it.
fn clear_follow_right(step: &mut Step<'_, '_>, id: u8) -> Result<(), Misfit> {
    let end = step.record.end;
    if let Some(page) = step.page_or_image(id) {
        let special = special(page)?;
        set_nsn(page, special, end);
        change_flags(page, special, 0, FOLLOW_RIGHT);
    }
    Ok(())
}

fn delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let mut main = Reader::new(step.main());
    let _horizon = field(main.u32())?;
    let count = field(main.u16())?;
    if step.version() >= Major::V16 {
        let _is_catalog_and_padding = field(main.u16())?;
    }
    let deleted = numbers(&mut main, count)?;
    if let Some(page) = step.page(0) {
        let special = special(page)?;
        page.delete_items(&deleted)?;
        change_flags(page, special, TUPLES_DELETED, HAS_GARBAGE);
    }
    Ok(())
}

/// The head of a split's record (`gistxlogPageSplit`), whose pages are blocks 1 and up, from left to right.
struct PageSplit {
    right_link: u32,
    nsn: u64,
    leaf: bool,
    pages: u16,
    mark_follow_right: bool,
}

impl PageSplit {
    fn read(main: &[u8]) -> Option<PageSplit> {
        let mut main = Reader::new(main);
        let right_link = main.u32()?;
        let _padding = main.u32()?;
        let nsn = main.u64()?;
        let leaf = main.u8()? != 0;
        let _padding = main.u8()?;
        Some(PageSplit { right_link, nsn, leaf, pages: main.u16()?, mark_follow_right: main.u8()? != 0 })
    }
}

fn page_split(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let split = field(PageSplit::read(step.main()))?;
    let pages = u8::try_from(split.pages).map_err(|_| Misfit("the record has too many pages"))?;
    let block = |step: &Step<'_, '_>, id| {
        step.block(id).map(|block| block.block).ok_or(Misfit("the record lacks a page of the split"))
    };
    let mut root_split = false;
    for id in 1..=pages {
        let is_root = block(step, id)? == ROOT;
        root_split |= is_root;
        let is_last = id == pages;
        let right_link = match (is_root, is_last) {
            (true, _) => NO_BLOCK,
            (false, true) => split.right_link,
            (false, false) => block(step, id + 1)?,
        };
        let mut flags = if split.leaf && !is_root { LEAF } else { 0 };
        if !is_root && !is_last && !root_split && split.mark_follow_right {
            flags |= FOLLOW_RIGHT;
        }
        let mut data = Reader::new(step.data(id));
        let Some(page) = new_page(step, id)? else { continue };
        page.init(SPECIAL_BYTES);
        let special = PAGE_BYTES - SPECIAL_BYTES;
        set_nsn(page, special, Lsn(split.nsn));
        page.put_u32(special + RIGHT_LINK, right_link);
        page.put_u16(special + FLAGS, flags);
        page.put_u16(special + PAGE_ID, GIST_PAGE_ID);
        let count = field(data.u32())?;
        append(page, &mut data, count as usize)?;
        if data.left() != 0 {
            return Err(Misfit("the record has more tuples than it says"));
        }
    }
    clear_follow_right(step, 0)
}

fn page_delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let mut main = Reader::new(step.main());
    let delete_xid = field(main.array::<8>())?;
    let downlink = field(main.u16())?;
    if let Some(page) = step.page(0) {
        let special = special(page)?;
        let end = PAGE_HEADER + delete_xid.len();
        if page.items() != 0 || end > page.upper() {
            return Err(Misfit("the page to delete has items"));
        }
        change_flags(page, special, DELETED, 0);
        page.set_lower(end);
        page.0[PAGE_HEADER..end].copy_from_slice(&delete_xid);
    }
    if let Some(page) = step.page(1) {
        special(page)?;
        page.delete_item(downlink)?;
    }
    Ok(())
}

/// Where the special area of a GiST page is.
fn special(page: &Page) -> Result<usize, Misfit> {
    let special = page.special_exactly(SPECIAL_BYTES)?;
    if page.u16_at(special + PAGE_ID) != GIST_PAGE_ID {
        return Err(Misfit("the page is not one of a GiST index"));
    }
    Ok(special)
}

fn set_nsn(page: &mut Page, special: usize, nsn: Lsn) {
    page.put_u32(special + NSN, (nsn.0 >> 32) as u32);
    page.put_u32(special + NSN + 4, nsn.0 as u32);
}

fn change_flags(page: &mut Page, special: usize, set: u16, clear: u16) {
    page.put_u16(special + FLAGS, page.u16_at(special + FLAGS) & !clear | set);
}

/// `gist_mask`, and the mark of deleted tuples: `gistprunepage` does not set it, but the redo of its record does.
///
/// PostgreSQL's own `wal_consistency_checking` calls such a page inconsistent. Nothing reads the mark.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    mask::unused_space(page);
    let Ok(special) = special(page) else { return };
    set_nsn(page, special, Lsn(0));
    change_flags(page, special, FOLLOW_RIGHT, HAS_GARBAGE | TUPLES_DELETED);
    if page.u16_at(special + FLAGS) & LEAF != 0 {
        mask::line_pointer_states(page);
    }
}

/// Only the updated page has data, and only where it is not made anew.
fn displaced(d: &Displaced<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    if d.record.kind() != PAGE_UPDATE || block.id != 0 {
        return Some(Vec::new());
    }
    let update = PageUpdate::read(d.record.main_data())?;
    let after = d.after(0)?;
    if update.overwrites() {
        let before = d.before(0)?;
        let number = (1..=after.items()).find(|&number| before.item(number) != after.item(number))?;
        let mut data = number_bytes([number]);
        data.extend_from_slice(after.item(number)?);
        return Some(data);
    }
    let deleted = match update.deleted {
        0 => Vec::new(),
        _ => missing_items(d.before(0)?, after, after.items().checked_sub(update.inserted)?)?,
    };
    if deleted.len() != usize::from(update.deleted) {
        return None;
    }
    let mut data = number_bytes(deleted);
    newest_items(after, update.inserted)?.iter().for_each(|(_, item)| data.extend_from_slice(item));
    Some(data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::rmid;

    use crate::index_items::hostile;

    const SPECIALS: &[&[u8]] = &[
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0xFF],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x81, 0xFF],
    ];

    proptest! {
        #[test]
        fn no_record_however_wrong_panics(case in hostile::cases(SPECIALS)) {
            hostile::replay(rmid::GIST, &case);
        }
    }
}
