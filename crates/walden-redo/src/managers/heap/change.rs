//! Changes of existing heap tuples: update, delete, lock, confirm, overwrite in place.

use walden_format::payload::heap::{
    SharedLengths, XlHeapDelete, XlHeapHeader, XlHeapLock, XlHeapOffset, XlHeapUpdate, moved_from,
};
use walden_format::rmgr::info::heap::{HOT_UPDATE, OPMASK, UPDATE};

use super::insert::{new_header, target};
use super::visibility_map;
use super::{UNREADABLE, block_number, set_prunable};
use crate::manager::PagesAround;
use crate::page::heap_tuple::{
    HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader, HeapTupleHeaderMut, LOGGED_FIELDS_BYTES, MOVED_PARTITIONS,
    infomask2,
};
use crate::page::maps::{VISIBILITYMAP_ALL_FROZEN, VISIBILITYMAP_VALID_BITS};
use crate::page::{Misfit, Page, Tid, flags as page_flags};
use crate::step::Step;

/// Returns the header of a heap tuple; an error if it does not exist.
#[inline]
fn header(page: &mut Page, number: u16) -> Result<HeapTupleHeaderMut<'_>, Misfit> {
    HeapTupleHeaderMut::parse(page.normal_item_mut(number)?)
}

/// Replays `DELETE` (`heap_xlog_delete`).
pub(super) fn delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapDelete { xmax, offset: number, infobits, flags } =
        XlHeapDelete::read(step.main()).ok_or(UNREADABLE)?;
    if flags.all_visible_cleared() {
        visibility_map::clear(step, 0, VISIBILITYMAP_VALID_BITS);
    }
    let (xid, block) = (step.record.header.xid, block_number(step, 0));
    let Some(page) = step.page(0) else { return Ok(()) };
    let mut header = header(page, number)?;
    header.change_infomask2(0, infomask2::HEAP_HOT_UPDATED);
    header.set_infobits(infobits.0);
    if !flags.is_super() {
        header.set_xmax(xmax);
    } else {
        header.set_xmin(0);
    }
    header.reset_command();
    header.set_ctid(if flags.is_partition_move() {
        MOVED_PARTITIONS
    } else {
        Tid { block, offset_number: number }
    });
    set_prunable(page, xid);
    if flags.all_visible_cleared() {
        page.change_flags(0, page_flags::PD_ALL_VISIBLE);
    }
    Ok(())
}

/// Replays `UPDATE` and `HOT_UPDATE` (`heap_xlog_update`). Block 0 is the new heap tuple's, block 1 the old
/// one's if that is another block.
pub(super) fn update(step: &mut Step<'_, '_>, hot: bool) -> Result<(), Misfit> {
    let update = XlHeapUpdate::read(step.main()).ok_or(UNREADABLE)?;
    let xid = step.record.header.xid;
    let old_id = moved_from(step.record).map_or(0, |block| block.id);
    if update.flags.old_all_visible_cleared() {
        visibility_map::clear(step, old_id, VISIBILITYMAP_VALID_BITS);
    }
    if update.flags.new_all_visible_cleared() {
        visibility_map::clear(step, 0, VISIBILITYMAP_VALID_BITS);
    }
    let new_id = Tid { block: block_number(step, 0), offset_number: update.new_offset };
    if let Some(page) = step.page(old_id) {
        let mut header = header(page, update.old_offset)?;
        header.set_infobits(update.old_infobits.0);
        if hot {
            header.change_infomask2(infomask2::HEAP_HOT_UPDATED, 0);
        } else {
            header.change_infomask2(0, infomask2::HEAP_HOT_UPDATED);
        }
        header.set_xmax(update.old_xmax);
        header.reset_command();
        header.set_ctid(new_id);
        set_prunable(page, xid);
        if update.flags.old_all_visible_cleared() {
            page.change_flags(0, page_flags::PD_ALL_VISIBLE);
        }
    }
    let (data, sets_prunable) = (step.data(0), step.version() >= walden_format::version::Major::V19);
    let page = if old_id == 0 { step.page(0) } else { target(step, 0) };
    let Some(page) = page else { return Ok(()) };
    put_new(page, &update, data, xid, new_id, old_id == 0)?;
    if update.flags.new_all_visible_cleared() {
        page.change_flags(0, page_flags::PD_ALL_VISIBLE);
    }
    if sets_prunable {
        set_prunable(page, xid);
    }
    Ok(())
}

/// Puts an update's new heap tuple on the page. The prefix and suffix of the new tuple are copied from the
/// old tuple if the record omits them.
#[inline]
fn put_new(
    page: &mut Page,
    update: &XlHeapUpdate,
    data: &[u8],
    xid: u32,
    id: Tid,
    same_page: bool,
) -> Result<(), Misfit> {
    const CUT: Misfit = Misfit("the record has no whole heap tuple");
    let (SharedLengths { prefix, suffix }, data) = SharedLengths::split(update.flags, data).ok_or(CUT)?;
    let (prefix, suffix) = (usize::from(prefix), usize::from(suffix));
    let (logged, data) = data.split_first_chunk::<LOGGED_FIELDS_BYTES>().ok_or(CUT)?;
    let len = HEAP_TUPLE_HEADER_BYTES + data.len() + prefix + suffix;
    if prefix == 0 && suffix == 0 {
        let item = page.add_heap_item(len, update.new_offset)?;
        new_header(item, logged, xid, update.new_xmax, id)?;
        item[HEAP_TUPLE_HEADER_BYTES..].copy_from_slice(data);
        return Ok(());
    }
    if !same_page {
        return Err(Misfit("the record takes bytes from a heap tuple of another page"));
    }
    let old = page.normal_range(update.old_offset)?;
    let old_start = old.start + usize::from(HeapTupleHeader::parse(&page.0[old.clone()]).ok_or(CUT)?.hoff());
    if old_start + prefix > old.end || old_start + suffix > old.end {
        return Err(Misfit(
            "the old heap tuple is shorter than the prefix and suffix that the record takes from it",
        ));
    }
    // The record has the null bitmap before the bytes that follow the prefix.
    let bitmap = if prefix > 0 {
        XlHeapHeader::read(logged).and_then(|header| header.null_bitmap_len()).ok_or(CUT)?
    } else {
        0
    };
    let (bitmap, middle) = data.split_at_checked(bitmap).ok_or(CUT)?;
    let item = page.add_heap_item(len, update.new_offset)?;
    new_header(item, logged, xid, update.new_xmax, id)?;
    item[HEAP_TUPLE_HEADER_BYTES..HEAP_TUPLE_HEADER_BYTES + bitmap.len()].copy_from_slice(bitmap);
    let middle_at = HEAP_TUPLE_HEADER_BYTES + bitmap.len() + prefix;
    item[middle_at..middle_at + middle.len()].copy_from_slice(middle);
    // The new item now starts at `pd_upper`.
    let start = page.upper();
    page.0.copy_within(old_start..old_start + prefix, start + HEAP_TUPLE_HEADER_BYTES + bitmap.len());
    page.0.copy_within(old.end - suffix..old.end, start + len - suffix);
    Ok(())
}

/// Replays `HEAP_CONFIRM` (`heap_xlog_confirm`).
pub(super) fn confirm(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapOffset { offset: number } = XlHeapOffset::read(step.main()).ok_or(UNREADABLE)?;
    let block = block_number(step, 0);
    let Some(page) = step.page(0) else { return Ok(()) };
    header(page, number)?.set_ctid(Tid { block, offset_number: number });
    Ok(())
}

/// Reads the fields of a lock, and clears the visibility map's bit if the record requests it.
#[inline]
fn read_lock(step: &mut Step<'_, '_>) -> Result<XlHeapLock, Misfit> {
    let lock = XlHeapLock::read(step.main()).ok_or(UNREADABLE)?;
    // 9.5 had no flags.
    if XlHeapLock::read_with_flags(step.main(), step.version())
        .is_some_and(|(_, flags)| flags.all_frozen_cleared())
    {
        visibility_map::clear(step, 0, VISIBILITYMAP_ALL_FROZEN);
    }
    Ok(lock)
}

/// Replays `LOCK` (`heap_xlog_lock`).
pub(super) fn lock(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapLock { xmax, offset: number, infobits } = read_lock(step)?;
    let block = block_number(step, 0);
    let Some(page) = step.page(0) else { return Ok(()) };
    let mut header = header(page, number)?;
    header.set_infobits(infobits.0);
    if header.is_locked_only() {
        header.change_infomask2(0, infomask2::HEAP_HOT_UPDATED);
        header.set_ctid(Tid { block, offset_number: number });
    }
    header.set_xmax(xmax);
    header.reset_command();
    Ok(())
}

/// Replays `LOCK_UPDATED` (`heap_xlog_lock_updated`).
pub(super) fn lock_updated(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapLock { xmax, offset: number, infobits } = read_lock(step)?;
    let Some(page) = step.page(0) else { return Ok(()) };
    let mut header = header(page, number)?;
    header.set_infobits(infobits.0);
    header.set_xmax(xmax);
    Ok(())
}

/// Replays `INPLACE` (`heap_xlog_inplace`).
pub(super) fn inplace(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapOffset { offset: number } = XlHeapOffset::read(step.main()).ok_or(UNREADABLE)?;
    let data = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    let item = page.normal_item_mut(number)?;
    let start = HeapTupleHeader::parse(item).map_or(0, |header| header.hoff().into());
    match item.get_mut(start..) {
        Some(attributes) if attributes.len() == data.len() => attributes.copy_from_slice(data),
        _ => return Err(Misfit("the heap tuple to overwrite has another length")),
    }
    Ok(())
}

/// Reconstructs the data of an `INPLACE`: the heap tuple without its header.
pub(super) fn inplace_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let XlHeapOffset { offset } = XlHeapOffset::read(around.record.main_data())?;
    let item = around.after(0)?.normal_item(offset).ok()?;
    item.get(HeapTupleHeader::parse(item)?.hoff().into()..).map(<[u8]>::to_vec)
}

/// An update's new heap tuple on the image, and the bytes that `log_heap_update` would have omitted.
struct Shared<'p> {
    new: &'p [u8],
    attributes: usize,
    lengths: SharedLengths,
}

impl<'p> Shared<'p> {
    fn compare(around: &PagesAround<'p>) -> Option<Shared<'p>> {
        let update = XlHeapUpdate::read(around.record.main_data())?;
        let page = around.after(0)?;
        let new = page.normal_item(update.new_offset).ok()?;
        let attributes = usize::from(HeapTupleHeader::parse(new)?.hoff());
        let mut shared = Shared { new, attributes, lengths: SharedLengths::default() };
        // Only within a page: if the old tuple is on another page, its record has the whole new tuple.
        if moved_from(around.record).is_none() {
            let old = page.normal_item(update.old_offset).ok()?;
            let old = old.get(usize::from(HeapTupleHeader::parse(old)?.hoff())..)?;
            let new = new.get(attributes..)?;
            shared.lengths = shared_lengths(old, new);
        }
        Some(shared)
    }
}

/// See [`crate::reconstruct::shared_with_old`].
pub(crate) fn shared_with_old(around: &PagesAround<'_>) -> Option<SharedLengths> {
    if !matches!(around.record.rmgr_info() & OPMASK, UPDATE | HOT_UPDATE) {
        return Some(SharedLengths::default());
    }
    if let Some(shared) = Shared::compare(around) {
        return Some(shared.lengths);
    }
    // The record has the new heap tuple, whole or without prefix and suffix.
    let update = XlHeapUpdate::read(around.record.main_data())?;
    let data = around.record.block_data(around.record.block(0)?);
    if update.flags.prefix_from_old() || update.flags.suffix_from_old() {
        return SharedLengths::split(update.flags, data).map(|(lengths, _)| lengths);
    }
    if moved_from(around.record).is_some() {
        return Some(SharedLengths::default());
    }
    let old = around.before(0)?.normal_item(update.old_offset).ok()?;
    let old = old.get(usize::from(HeapTupleHeader::parse(old)?.hoff())..)?;
    let (header, new) = XlHeapHeader::split(data)?;
    let new = new.get(header.null_bitmap_len()?..)?;
    Some(shared_lengths(old, new))
}

/// Returns the lengths of the common prefix and suffix of two heap tuples' attributes, or 0 if omitting them
/// saves nothing. `old` is on a page.
fn shared_lengths(old: &[u8], new: &[u8]) -> SharedLengths {
    let worth = |len: usize| if len < SharedLengths::MIN_BYTES { 0 } else { len };
    let prefix = worth(old.iter().zip(new).take_while(|(old, new)| old == new).count());
    let ends = old[prefix..].iter().rev().zip(new[prefix..].iter().rev());
    let suffix = worth(ends.take_while(|(old, new)| old == new).count());
    SharedLengths { prefix: prefix as u16, suffix: suffix as u16 }
}

/// Reconstructs the data of an update's new heap tuple, whole if logical decoding requires it
/// (`log_heap_update`).
pub(super) fn update_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let Shared { new, attributes, mut lengths } = Shared::compare(around)?;
    if XlHeapUpdate::read(around.record.main_data())?.flags.contains_new_tuple() {
        lengths = SharedLengths::default();
    }
    let mut data = Vec::with_capacity(new.len());
    lengths.write(&mut data);
    data.extend(HeapTupleHeader::parse(new)?.logged_fields());
    data.extend(new.get(HEAP_TUPLE_HEADER_BYTES..attributes)?);
    let middle = attributes + usize::from(lengths.prefix)..new.len() - usize::from(lengths.suffix);
    data.extend(new.get(middle)?);
    Some(data)
}

/// Sets the prefix and suffix flags in an update's main data according to its reconstructed data: for a block
/// with an image, PostgreSQL does not search for a common prefix and suffix.
pub(crate) fn set_prefix_and_suffix_flags(around: &PagesAround<'_>, main: &mut [u8]) {
    let is_update = matches!(around.record.rmgr_info() & OPMASK, UPDATE | HOT_UPDATE);
    let Some((shared, update)) =
        is_update.then(|| Shared::compare(around)).flatten().zip(XlHeapUpdate::read(main))
    else {
        return;
    };
    XlHeapUpdate::set_flags(main, shared.lengths.flagged(update.flags));
}
