//! Row versions that are there already: updated, deleted, locked, confirmed, overwritten.

use walden_format::record::Fork;
use walden_format::rmgr::info::heap::{HOT_UPDATE, OPMASK, UPDATE};

use super::insert::{new_header, target};
use super::visibility_map;
use super::{block_number, head, set_prunable, u16_of};
use crate::displaced::Displaced;
use crate::page::heap_tuple::{
    HEAP_TUPLE_HEADER_BYTES, HOFF, HeapTupleHeader, HeapTupleHeaderMut, LOGGED_FIELDS, LOGGED_FIELDS_BYTES,
    MOVED_PARTITIONS, infomask2,
};
use crate::page::maps::{VISIBILITYMAP_ALL_FROZEN, VISIBILITYMAP_VALID_BITS};
use crate::page::{Misfit, Page, Tid, flags};
use crate::replay::Step;

/// Flags of `DELETE` (`XLH_DELETE_*`).
mod delete_flags {
    pub const ALL_VISIBLE_CLEARED: u8 = 1 << 0;
    pub const IS_SUPER: u8 = 1 << 3;
    pub const IS_PARTITION_MOVE: u8 = 1 << 4;
}

/// Flags of `UPDATE` and `HOT_UPDATE` (`XLH_UPDATE_*`).
mod update_flags {
    pub const OLD_ALL_VISIBLE_CLEARED: u8 = 1 << 0;
    pub const NEW_ALL_VISIBLE_CLEARED: u8 = 1 << 1;
    pub const PREFIX_FROM_OLD: u8 = 1 << 5;
    pub const SUFFIX_FROM_OLD: u8 = 1 << 6;
}

/// `XLH_LOCK_ALL_FROZEN_CLEARED`
const ALL_FROZEN_CLEARED: u8 = 1 << 0;
/// A shorter prefix or suffix is not worth its length (`log_heap_update`).
const MIN_SHARED_BYTES: usize = 3;

/// The header of a row version that must be there.
#[inline]
fn header(page: &mut Page, number: u16) -> Result<HeapTupleHeaderMut<'_>, Misfit> {
    HeapTupleHeaderMut::of(page.normal_item_mut(number)?)
}

/// `DELETE` (`heap_xlog_delete`).
pub(super) fn delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let &[x0, x1, x2, x3, low, high, infobits, bits] = head(step.main())?;
    let number = u16_of(low, high);
    if bits & delete_flags::ALL_VISIBLE_CLEARED != 0 {
        visibility_map::clear(step, 0, VISIBILITYMAP_VALID_BITS);
    }
    let (xid, block) = (step.record.header.xid, block_number(step, 0));
    let Some(page) = step.page(0) else { return Ok(()) };
    let mut header = header(page, number)?;
    header.change_infomask2(0, infomask2::HEAP_HOT_UPDATED);
    header.set_infobits(infobits);
    if bits & delete_flags::IS_SUPER == 0 {
        header.set_xmax(u32::from_le_bytes([x0, x1, x2, x3]));
    } else {
        header.set_xmin(0);
    }
    header.reset_command();
    header.set_ctid(if bits & delete_flags::IS_PARTITION_MOVE != 0 {
        MOVED_PARTITIONS
    } else {
        Tid { block, offset_number: number }
    });
    set_prunable(page, xid);
    if bits & delete_flags::ALL_VISIBLE_CLEARED != 0 {
        page.change_flags(0, flags::PD_ALL_VISIBLE);
    }
    Ok(())
}

/// The fields of an update (`xl_heap_update`).
struct Update {
    old_xmax: u32,
    old_number: u16,
    old_infobits: u8,
    flags: u8,
    new_xmax: u32,
    new_number: u16,
}

impl Update {
    #[inline]
    fn of(main: &[u8]) -> Result<Update, Misfit> {
        let &[a0, a1, a2, a3, b0, b1, old_infobits, flags, c0, c1, c2, c3, d0, d1] = head(main)?;
        Ok(Update {
            old_xmax: u32::from_le_bytes([a0, a1, a2, a3]),
            old_number: u16_of(b0, b1),
            old_infobits,
            flags,
            new_xmax: u32::from_le_bytes([c0, c1, c2, c3]),
            new_number: u16_of(d0, d1),
        })
    }
}

/// `UPDATE` and `HOT_UPDATE` (`heap_xlog_update`). Block 0 is the new row version's, block 1 the old one's if it is
/// another.
pub(super) fn update(step: &mut Step<'_, '_>, hot: bool) -> Result<(), Misfit> {
    let update = Update::of(step.main())?;
    let xid = step.record.header.xid;
    let old_id = if step.block(1).is_some_and(|block| block.fork == Fork::MAIN) { 1 } else { 0 };
    if update.flags & update_flags::OLD_ALL_VISIBLE_CLEARED != 0 {
        visibility_map::clear(step, old_id, VISIBILITYMAP_VALID_BITS);
    }
    if update.flags & update_flags::NEW_ALL_VISIBLE_CLEARED != 0 {
        visibility_map::clear(step, 0, VISIBILITYMAP_VALID_BITS);
    }
    let new_id = Tid { block: block_number(step, 0), offset_number: update.new_number };
    if let Some(page) = step.page(old_id) {
        let mut header = header(page, update.old_number)?;
        header.set_infobits(update.old_infobits);
        if hot {
            header.change_infomask2(infomask2::HEAP_HOT_UPDATED, 0);
        } else {
            header.change_infomask2(0, infomask2::HEAP_HOT_UPDATED);
        }
        header.set_xmax(update.old_xmax);
        header.reset_command();
        header.set_ctid(new_id);
        set_prunable(page, xid);
        if update.flags & update_flags::OLD_ALL_VISIBLE_CLEARED != 0 {
            page.change_flags(0, flags::PD_ALL_VISIBLE);
        }
    }
    let (data, sets_prunable) = (step.data(0), step.version() >= walden_format::version::Major::V19);
    let page = if old_id == 0 { step.page(0) } else { target(step, 0) };
    let Some(page) = page else { return Ok(()) };
    put_new(page, &update, data, xid, new_id, old_id == 0)?;
    if update.flags & update_flags::NEW_ALL_VISIBLE_CLEARED != 0 {
        page.change_flags(0, flags::PD_ALL_VISIBLE);
    }
    if sets_prunable {
        set_prunable(page, xid);
    }
    Ok(())
}

/// Puts an update's new row version on the page, beginning and end taken from the old one if the record says so.
#[inline]
fn put_new(
    page: &mut Page,
    update: &Update,
    data: &[u8],
    xid: u32,
    id: Tid,
    same_page: bool,
) -> Result<(), Misfit> {
    const CUT: Misfit = Misfit("the record has no whole row version");
    let (mut data, mut prefix, mut suffix) = (data, 0, 0);
    for (flag, len) in
        [(update_flags::PREFIX_FROM_OLD, &mut prefix), (update_flags::SUFFIX_FROM_OLD, &mut suffix)]
    {
        if update.flags & flag != 0 {
            let (field, rest) = data.split_first_chunk().ok_or(CUT)?;
            *len = usize::from(u16::from_le_bytes(*field));
            data = rest;
        }
    }
    let (logged, data) = data.split_first_chunk::<LOGGED_FIELDS_BYTES>().ok_or(CUT)?;
    let len = HEAP_TUPLE_HEADER_BYTES + data.len() + prefix + suffix;
    if prefix == 0 && suffix == 0 {
        let item = page.add_heap_item(len, update.new_number)?;
        new_header(item, logged, xid, update.new_xmax, id)?;
        item[HEAP_TUPLE_HEADER_BYTES..].copy_from_slice(data);
        return Ok(());
    }
    if !same_page {
        return Err(Misfit("the record takes bytes from a row version of another page"));
    }
    let old = page.normal_range(update.old_number)?;
    let old_start = old.start + usize::from(HeapTupleHeader::of(&page.0[old.clone()]).ok_or(CUT)?.hoff());
    if old_start + prefix > old.end || old_start + suffix > old.end {
        return Err(Misfit("the old row version is too short for what the record takes from it"));
    }
    // The null bitmap is in the record, before what follows the prefix.
    let bitmap = if prefix > 0 {
        usize::from(logged[HOFF - LOGGED_FIELDS.start]).checked_sub(HEAP_TUPLE_HEADER_BYTES).ok_or(CUT)?
    } else {
        0
    };
    let (bitmap, middle) = data.split_at_checked(bitmap).ok_or(CUT)?;
    let item = page.add_heap_item(len, update.new_number)?;
    new_header(item, logged, xid, update.new_xmax, id)?;
    item[HEAP_TUPLE_HEADER_BYTES..HEAP_TUPLE_HEADER_BYTES + bitmap.len()].copy_from_slice(bitmap);
    let middle_at = HEAP_TUPLE_HEADER_BYTES + bitmap.len() + prefix;
    item[middle_at..middle_at + middle.len()].copy_from_slice(middle);
    // The new item is the page's first one now.
    let start = page.upper();
    page.0.copy_within(old_start..old_start + prefix, start + HEAP_TUPLE_HEADER_BYTES + bitmap.len());
    page.0.copy_within(old.end - suffix..old.end, start + len - suffix);
    Ok(())
}

/// `HEAP_CONFIRM` (`heap_xlog_confirm`).
pub(super) fn confirm(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let &[low, high] = head(step.main())?;
    let (number, block) = (u16_of(low, high), block_number(step, 0));
    let Some(page) = step.page(0) else { return Ok(()) };
    header(page, number)?.set_ctid(Tid { block, offset_number: number });
    Ok(())
}

/// The fields of a lock (`xl_heap_lock`, `xl_heap_lock_updated`).
struct Lock {
    xmax: u32,
    number: u16,
    infobits: u8,
}

impl Lock {
    /// Reads the fields, and clears the map's bit if the record says so.
    #[inline]
    fn of(step: &mut Step<'_, '_>) -> Result<Lock, Misfit> {
        let &[x0, x1, x2, x3, low, high, infobits] = head(step.main())?;
        // 9.5 had no flags.
        if step.main().get(7).is_some_and(|bits| bits & ALL_FROZEN_CLEARED != 0) {
            visibility_map::clear(step, 0, VISIBILITYMAP_ALL_FROZEN);
        }
        Ok(Lock { xmax: u32::from_le_bytes([x0, x1, x2, x3]), number: u16_of(low, high), infobits })
    }
}

/// `LOCK` (`heap_xlog_lock`).
pub(super) fn lock(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Lock { xmax, number, infobits } = Lock::of(step)?;
    let block = block_number(step, 0);
    let Some(page) = step.page(0) else { return Ok(()) };
    let mut header = header(page, number)?;
    header.set_infobits(infobits);
    if header.is_locked_only() {
        header.change_infomask2(0, infomask2::HEAP_HOT_UPDATED);
        header.set_ctid(Tid { block, offset_number: number });
    }
    header.set_xmax(xmax);
    header.reset_command();
    Ok(())
}

/// `LOCK_UPDATED` (`heap_xlog_lock_updated`).
pub(super) fn lock_updated(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Lock { xmax, number, infobits } = Lock::of(step)?;
    let Some(page) = step.page(0) else { return Ok(()) };
    let mut header = header(page, number)?;
    header.set_infobits(infobits);
    header.set_xmax(xmax);
    Ok(())
}

/// `INPLACE` (`heap_xlog_inplace`).
pub(super) fn inplace(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let &[low, high] = head(step.main())?;
    let data = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    let item = page.normal_item_mut(u16_of(low, high))?;
    let start = HeapTupleHeader::of(item).map_or(0, |header| header.hoff().into());
    match item.get_mut(start..) {
        Some(attributes) if attributes.len() == data.len() => attributes.copy_from_slice(data),
        _ => return Err(Misfit("the row version to overwrite has another length")),
    }
    Ok(())
}

/// An `INPLACE`'s row version without its header.
pub(super) fn displaced_inplace(d: &Displaced<'_>) -> Option<Vec<u8>> {
    let &[low, high] = d.record.main_data().first_chunk()?;
    let item = d.after(0)?.normal_item(u16_of(low, high)).ok()?;
    item.get(HeapTupleHeader::of(item)?.hoff().into()..).map(<[u8]>::to_vec)
}

/// The new row version of an update on the image, and how much of it `log_heap_update` would have left out.
struct Shared<'p> {
    new: &'p [u8],
    attributes: usize,
    prefix: usize,
    suffix: usize,
}

impl<'p> Shared<'p> {
    fn of(d: &Displaced<'p>) -> Option<Shared<'p>> {
        let update = Update::of(d.record.main_data()).ok()?;
        let page = d.after(0)?;
        let new = page.normal_item(update.new_number).ok()?;
        let attributes = usize::from(HeapTupleHeader::of(new)?.hoff());
        let mut shared = Shared { new, attributes, prefix: 0, suffix: 0 };
        // Only within a page: what another page's fate is was not known.
        if d.record.block(1).is_none_or(|block| block.fork != Fork::MAIN) {
            let old = page.normal_item(update.old_number).ok()?;
            let old = old.get(usize::from(HeapTupleHeader::of(old)?.hoff())..)?;
            let new = new.get(attributes..)?;
            (shared.prefix, shared.suffix) = self::shared(old, new);
        }
        Some(shared)
    }
}

fn worth(len: usize) -> usize {
    if len < MIN_SHARED_BYTES { 0 } else { len }
}

/// See [`crate::displaced::shared_with_old`].
pub(crate) fn shared_with_old(d: &Displaced<'_>) -> Option<(usize, usize)> {
    if !matches!(d.record.kind() & OPMASK, UPDATE | HOT_UPDATE) {
        return Some((0, 0));
    }
    if let Some(shared) = Shared::of(d) {
        return Some((shared.prefix, shared.suffix));
    }
    // The new row version is in the record, whole or not.
    let update = Update::of(d.record.main_data()).ok()?;
    let two = |at: usize, data: &[u8]| Some(usize::from(u16_of(*data.get(at)?, *data.get(at + 1)?)));
    let data = d.record.block_data(d.record.block(0)?);
    let has = |flag| update.flags & flag != 0;
    let (has_prefix, has_suffix) = (has(update_flags::PREFIX_FROM_OLD), has(update_flags::SUFFIX_FROM_OLD));
    if has_prefix || has_suffix {
        let prefix = if has_prefix { two(0, data)? } else { 0 };
        let suffix = if has_suffix { two(if has_prefix { 2 } else { 0 }, data)? } else { 0 };
        return Some((prefix, suffix));
    }
    if d.record.block(1).is_some_and(|block| block.fork == Fork::MAIN) {
        return Some((0, 0));
    }
    let old = d.before(0)?.normal_item(update.old_number).ok()?;
    let old = old.get(usize::from(HeapTupleHeader::of(old)?.hoff())..)?;
    let attributes_start = usize::from(*data.get(HOFF - LOGGED_FIELDS.start)?);
    let new = data.get(LOGGED_FIELDS_BYTES + attributes_start.checked_sub(HEAP_TUPLE_HEADER_BYTES)?..)?;
    Some(shared(old, new))
}

/// What two row versions begin and end with alike, as far as it is worth its length.
fn shared(old: &[u8], new: &[u8]) -> (usize, usize) {
    let prefix = worth(old.iter().zip(new).take_while(|(old, new)| old == new).count());
    let ends = old[prefix..].iter().rev().zip(new[prefix..].iter().rev());
    (prefix, worth(ends.take_while(|(old, new)| old == new).count()))
}

/// An update's new row version.
pub(super) fn displaced_update(d: &Displaced<'_>) -> Option<Vec<u8>> {
    let Shared { new, attributes, prefix, suffix } = Shared::of(d)?;
    let mut data = Vec::with_capacity(new.len());
    for len in [prefix, suffix] {
        if len > 0 {
            data.extend((len as u16).to_le_bytes());
        }
    }
    data.extend(HeapTupleHeader::of(new)?.logged_fields());
    data.extend(new.get(HEAP_TUPLE_HEADER_BYTES..attributes)?);
    data.extend(new.get(attributes + prefix..new.len() - suffix)?);
    Some(data)
}

/// Makes the flags in an update's main data say what its displaced data has: with an image the writer did not look for a
/// common beginning and end.
pub(crate) fn displaced_flags(d: &Displaced<'_>, main: &mut [u8]) {
    let is_update = matches!(d.record.kind() & OPMASK, UPDATE | HOT_UPDATE);
    let Some((shared, flags)) = is_update.then(|| Shared::of(d)).flatten().zip(main.get_mut(7)) else {
        return;
    };
    *flags &= !(update_flags::PREFIX_FROM_OLD | update_flags::SUFFIX_FROM_OLD);
    if shared.prefix > 0 {
        *flags |= update_flags::PREFIX_FROM_OLD;
    }
    if shared.suffix > 0 {
        *flags |= update_flags::SUFFIX_FROM_OLD;
    }
}
