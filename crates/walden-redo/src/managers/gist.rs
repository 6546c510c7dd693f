//! GiST: the resource manager Gist. Mirrors `gistxlog.c`.

use walden_format::lsn::Lsn;
use walden_format::payload::gist::{XlGistDelete, XlGistPageDelete, XlGistPageSplit, XlGistPageUpdate};
use walden_format::payload::push_offset_numbers;
use walden_format::reader::Reader;
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::gist::{ASSIGN_LSN, DELETE, PAGE_DELETE, PAGE_REUSE, PAGE_SPLIT, PAGE_UPDATE};
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::managers::index_items::{field, missing_items, new_page, newest_items, numbers, read_index_tuple};
use crate::mask;
use crate::page::gist::flags::{F_DELETED, F_FOLLOW_RIGHT, F_HAS_GARBAGE, F_LEAF, F_TUPLES_DELETED};
use crate::page::gist::{GIST_DELETED_BYTES, GIST_PAGE_ID, GIST_ROOT_BLOCK, GistPageOpaqueData};
use crate::page::tid::INVALID_BLOCK;
use crate::page::{Misfit, PAGE_CONTENTS, Page, SpecialArea};
use crate::step::Step;

pub(crate) static GIST: Manager = Manager { redo, mask: mask_page, block_data };

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

/// Returns whether one item overwrites another. Otherwise items are deleted, and others appended.
fn overwrites(update: &XlGistPageUpdate) -> bool {
    update.deleted == 1 && update.inserted == 1
}

fn page_update(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let update = field(XlGistPageUpdate::read(step.main()))?;
    let version = step.version();
    let mut data = Reader::new(step.data(0));
    if let Some(page) = step.page(0) {
        let opaque = GistPageOpaqueData::from_page(page)?;
        let deleted = numbers(&mut data, update.deleted)?;
        if overwrites(&update) {
            page.overwrite_item(deleted[0], read_index_tuple(&mut data)?)?;
        } else {
            page.delete_items(&deleted)?;
            if !deleted.is_empty() && opaque.flags & F_LEAF != 0 {
                change_flags(page, deletion_mark(version), 0)?;
            }
            append(page, &mut data, update.inserted.into())?;
        }
        if data.left() != 0 {
            return Err(Misfit("the record has more tuples than it says"));
        }
    }
    clear_follow_right(step, 1)
}

/// Returns the flag that redo sets on a page from which it deletes tuples. 19 dropped the flag, as nothing
/// reads it.
fn deletion_mark(version: Major) -> u16 {
    if version < Major::V19 { F_TUPLES_DELETED } else { 0 }
}

/// Appends tuples after all others.
fn append(page: &mut Page, data: &mut Reader<'_>, count: usize) -> Result<(), Misfit> {
    for _ in 0..count {
        page.insert_item(read_index_tuple(data)?, page.items() + 1)?;
    }
    Ok(())
}

/// Updates the left half of a split after the downlink of the right half was inserted: scans no longer need
/// to follow its right link.
///
/// PostgreSQL clears the flag after it writes the record, so an image of the page still has the flag.
fn clear_follow_right(step: &mut Step<'_, '_>, id: u8) -> Result<(), Misfit> {
    let end = step.record.end;
    if let Some(page) = step.page_or_image(id) {
        GistPageOpaqueData::change(page, |opaque| {
            opaque.nsn = end;
            opaque.flags &= !F_FOLLOW_RIGHT;
        })?;
    }
    Ok(())
}

fn delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let (XlGistDelete { deleted: count, .. }, rest) = field(XlGistDelete::split(step.main()))?;
    let mut main = Reader::new(rest);
    if step.version() >= Major::V16 {
        let _is_catalog_and_padding = field(main.u16())?;
    }
    let mark = deletion_mark(step.version());
    let deleted = numbers(&mut main, count)?;
    if let Some(page) = step.page(0) {
        GistPageOpaqueData::from_page(page)?;
        page.delete_items(&deleted)?;
        change_flags(page, mark, F_HAS_GARBAGE)?;
    }
    Ok(())
}

fn page_split(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let split = field(XlGistPageSplit::read(step.main()))?;
    let pages = u8::try_from(split.pages).map_err(|_| Misfit("the record has too many pages"))?;
    let block = |step: &Step<'_, '_>, id| {
        step.block(id).map(|block| block.block).ok_or(Misfit("the record lacks a page of the split"))
    };
    let mut root_split = false;
    for id in 1..=pages {
        let is_root = block(step, id)? == GIST_ROOT_BLOCK;
        root_split |= is_root;
        let is_last = id == pages;
        let right_link = match (is_root, is_last) {
            (true, _) => INVALID_BLOCK,
            (false, true) => split.right_link,
            (false, false) => block(step, id + 1)?,
        };
        let mut flags = if split.is_leaf && !is_root { F_LEAF } else { 0 };
        if !is_root && !is_last && !root_split && split.marks_follow_right {
            flags |= F_FOLLOW_RIGHT;
        }
        let mut data = Reader::new(step.data(id));
        let Some(page) = new_page(step, id)? else { continue };
        GistPageOpaqueData { nsn: Lsn(split.nsn), right_link, flags, page_id: GIST_PAGE_ID }.init(page);
        let count = field(data.u32())?;
        append(page, &mut data, count as usize)?;
        if data.left() != 0 {
            return Err(Misfit("the record has more tuples than it says"));
        }
    }
    clear_follow_right(step, 0)
}

fn page_delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlGistPageDelete { delete_xid, downlink_offset } = field(XlGistPageDelete::read(step.main()))?;
    let delete_xid = delete_xid.to_le_bytes();
    if let Some(page) = step.page(0) {
        GistPageOpaqueData::from_page(page)?;
        let end = PAGE_CONTENTS + GIST_DELETED_BYTES;
        if page.items() != 0 || end > page.upper() {
            return Err(Misfit("the page to delete has items"));
        }
        change_flags(page, F_DELETED, 0)?;
        page.set_lower(end);
        page.0[PAGE_CONTENTS..end].copy_from_slice(&delete_xid);
    }
    if let Some(page) = step.page(1) {
        GistPageOpaqueData::from_page(page)?;
        page.delete_item(downlink_offset)?;
    }
    Ok(())
}

fn change_flags(page: &mut Page, set: u16, clear: u16) -> Result<(), Misfit> {
    GistPageOpaqueData::change(page, |opaque| opaque.flags = opaque.flags & !clear | set)
}

/// Mirrors `gist_mask`, and masks the flag for deleted tuples: `gistprunepage` does not set it, but the redo
/// of its record does.
///
/// PostgreSQL's own `wal_consistency_checking` reports such a page as inconsistent. Nothing reads the flag.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    mask::unused_space(page);
    let Ok(opaque) = GistPageOpaqueData::from_page(page) else { return };
    let flags = opaque.flags & !(F_HAS_GARBAGE | F_TUPLES_DELETED) | F_FOLLOW_RIGHT;
    GistPageOpaqueData { nsn: Lsn(0), flags, ..opaque }.write(page);
    if flags & F_LEAF != 0 {
        mask::line_pointer_states(page);
    }
}

/// Only the updated page has data, unless the record initializes it.
fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    if around.record.rmgr_info() != PAGE_UPDATE || block.id != 0 {
        return Some(Vec::new());
    }
    let update = XlGistPageUpdate::read(around.record.main_data())?;
    let after = around.after(0)?;
    if overwrites(&update) {
        let before = around.before(0)?;
        let number = (1..=after.items()).find(|&number| before.item(number) != after.item(number))?;
        let mut data = Vec::new();
        push_offset_numbers(&mut data, [number]);
        data.extend_from_slice(after.item(number)?);
        return Some(data);
    }
    let deleted = match update.deleted {
        0 => Vec::new(),
        _ => missing_items(around.before(0)?, after, after.items().checked_sub(update.inserted)?)?,
    };
    if deleted.len() != usize::from(update.deleted) {
        return None;
    }
    let mut data = Vec::new();
    push_offset_numbers(&mut data, deleted);
    newest_items(after, update.inserted)?.iter().for_each(|(_, item)| data.extend_from_slice(item));
    Some(data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::rmid;

    use crate::managers::index_items::hostile;

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
