//! B-tree indexes: the resource manager Btree.
//!
//! Mirrors `nbtxlog.c`, and `nbtdedup.c` for posting lists.

mod block_data;
#[cfg(test)]
mod tests;
mod tuple;

use walden_format::payload::btree::{BtreeMeta, BtreePostingOffset, XlBtreeInsert, XlBtreeUpdate};
use walden_format::payload::{Payload, offset_numbers};
use walden_format::reader::Reader;
use walden_format::record::Fork;
use walden_format::rmgr::info::btree as kind;
use walden_format::version::Major;

use crate::manager::Manager;
use crate::mask;
use crate::page::btree::{
    BTPageOpaqueData, BTREE_MAGIC, BTREE_META_BYTES, DELETED_BYTES, DELETED_SAFE_XID, flags, heap_tids, meta,
    posting_list,
};
use crate::page::index_tuple::INDEX_TUPLE_HEADER_BYTES;
use crate::page::tid::Tid;
use crate::page::{
    ItemState, LINE_POINTER_BYTES, LinePointer, Misfit, PAGE_BYTES, PAGE_CONTENTS, PAGE_HEADER_BYTES, Page,
    SpecialArea,
};
use crate::step::Step;
use tuple::PostingBuilder;

pub(crate) static BTREE: Manager = Manager { redo, mask: mask_page, block_data: block_data::block_data };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    if step.version() < Major::V14 {
        return Err(Misfit("B-trees before 14 are not replayed"));
    }
    match step.kind() {
        kind::INSERT_LEAF => insert(step),
        kind::INSERT_POST => insert_and_split_posting(step),
        kind::INSERT_UPPER | kind::INSERT_META => {
            finish_split(step, 1)?;
            insert(step)?;
            if step.kind() == kind::INSERT_META { restore_meta(step, 2) } else { Ok(()) }
        }
        kind::SPLIT_L | kind::SPLIT_R => split(step),
        kind::DEDUP => deduplicate(step),
        kind::DELETE => delete(step),
        kind::VACUUM => vacuum(step),
        kind::MARK_PAGE_HALFDEAD => mark_page_half_dead(step),
        kind::UNLINK_PAGE | kind::UNLINK_PAGE_META => unlink_page(step),
        kind::NEWROOT => new_root(step),
        kind::META_CLEANUP => restore_meta(step, 0),
        // Only for queries on standbys.
        kind::REUSE_PAGE => Ok(()),
        _ => Err(Misfit("no such kind of record")),
    }
}

/// Mirrors `btree_mask`.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    mask::unused_space(page);
    let Ok(opaque) = BTPageOpaqueData::from_page(page) else { return };
    if opaque.flags & flags::BTP_LEAF != 0 {
        mask::line_pointer_states(page);
    }
    // Replay of a split knows neither the vacuum cycle nor the flag derived from it.
    let flags = opaque.flags & !(flags::BTP_HAS_GARBAGE | flags::BTP_SPLIT_END);
    BTPageOpaqueData { flags, cycle_id: 0, ..opaque }.write(page);
}

/// Reads the only field of the `INSERT` kinds' main data.
#[inline]
fn item_number(main: &[u8]) -> Result<u16, Misfit> {
    let insert = XlBtreeInsert::read(main).ok_or(Misfit("the record's fields cannot be read"))?;
    Ok(insert.offset)
}

fn insert(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let number = item_number(step.main())?;
    let item = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    if item.len() < INDEX_TUPLE_HEADER_BYTES {
        return Err(Misfit("a tuple's size cannot be right"));
    }
    page.insert_item(item, number)
}

/// Replays an insertion whose TID belongs among the TIDs of the preceding posting list: the list gets the new
/// TID, and the new tuple gets the list's last TID.
fn insert_and_split_posting(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let number = item_number(step.main())?;
    let data = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    let too_short = Misfit("a tuple's size cannot be right");
    let (BtreePostingOffset { posting_offset }, item) = BtreePostingOffset::split(data).ok_or(too_short)?;
    if item.len() < INDEX_TUPLE_HEADER_BYTES {
        return Err(too_short);
    }
    let tid = Tid::read(item).ok_or(too_short)?;
    let posting = item_range(page, number.wrapping_sub(1))?;
    let last = tuple::swap_posting(&mut page.0[posting], tid, posting_offset)?;
    page.insert_item(item, number)?;
    tuple::set_tid(page.normal_item_mut(number)?, last);
    Ok(())
}

/// Returns the byte range of an item, dead or not.
fn item_range(page: &Page, number: u16) -> Result<std::ops::Range<usize>, Misfit> {
    let pointer = page.expect_line_pointer(number)?;
    let start = usize::from(pointer.offset());
    let end = start + usize::from(pointer.len());
    if start < page.upper().max(PAGE_HEADER_BYTES) || end > page.special().min(PAGE_BYTES) || start >= end {
        return Err(Misfit("a line pointer is not sound"));
    }
    Ok(start..end)
}

fn item(page: &Page, number: u16) -> Result<&[u8], Misfit> {
    item_range(page, number).map(|range| &page.0[range])
}

/// Appends an item after all others.
fn append(page: &mut Page, item: &[u8]) -> Result<(), Misfit> {
    page.insert_item(item, page.items() + 1)
}

/// Marks a split as complete, because the parent now has a downlink to the right half
/// (`_bt_clear_incomplete_split`).
fn finish_split(step: &mut Step<'_, '_>, left: u8) -> Result<(), Misfit> {
    let Some(page) = step.page(left) else { return Ok(()) };
    BTPageOpaqueData::change(page, |opaque| opaque.flags &= !flags::BTP_INCOMPLETE_SPLIT)
}

fn split(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeSplit(split) = step.payload()? else { return Err(UNREADABLE) };
    let leaf = if split.level == 0 { flags::BTP_LEAF } else { 0 };
    if leaf == 0 {
        finish_split(step, 3)?;
    }
    let number = |id| step.block(id).map(|block| block.block);
    let (Some(left), Some(right)) = (number(0), number(1)) else { return Err(UNREADABLE) };
    let (next, level) = (number(2).unwrap_or(0), split.level);
    let items = step.data(1);
    if let Some(page) = step.init(1) {
        BTPageOpaqueData { previous: left, next, level, flags: leaf, cycle_id: 0 }.init(page);
        restore_items(page, items)?;
    }
    let left_split = LeftSplit {
        first_right: split.first_right,
        new_item: split.new_item_offset,
        new_item_on_left: step.kind() == kind::SPLIT_L,
        posting: split.posting_offset.unwrap_or(0),
    };
    let data = step.data(0);
    if let Some(page) = step.page(0) {
        left_split.redo(page, data)?;
        BTPageOpaqueData::change(page, |opaque| {
            let flags = flags::BTP_INCOMPLETE_SPLIT | leaf;
            *opaque = BTPageOpaqueData { next: right, flags, cycle_id: 0, ..*opaque };
        })?;
    }
    if let Some(page) = step.page(2) {
        BTPageOpaqueData::change(page, |opaque| opaque.previous = right)?;
    }
    Ok(())
}

const UNREADABLE: Misfit = Misfit("the record's fields cannot be read");

/// The changes of the page that was split.
struct LeftSplit {
    /// The first item that moves to the right page.
    first_right: u16,
    /// The new tuple's line pointer on the page before the split.
    new_item: u16,
    new_item_on_left: bool,
    /// The position at which the preceding posting list is split, or 0.
    posting: u16,
}

impl LeftSplit {
    fn redo(&self, page: &mut Page, data: &[u8]) -> Result<(), Misfit> {
        let has_item = self.new_item_on_left || self.posting != 0;
        let (new_item, data) = if has_item { tuple::split_first(data)? } else { (&[][..], data) };
        let (high_key, rest) = tuple::split_first(data)?;
        if !rest.is_empty() {
            return Err(Misfit("the record has more than it should for the left page"));
        }
        let mut old = page.clone();
        let opaque = BTPageOpaqueData::from_page(&old)?;
        let mut tid = Tid::read(new_item);
        if let (Some(tid), true) = (&mut tid, self.posting != 0) {
            let posting = item_range(&old, self.new_item.wrapping_sub(1))?;
            *tid = tuple::swap_posting(&mut old.0[posting], *tid, self.posting)?;
        }
        // The primary adds item by item, too, so that the offsets are the same.
        opaque.init(page);
        append(page, high_key)?;
        for number in opaque.first_data_item()..=self.first_right {
            if self.new_item_on_left && number == self.new_item {
                append(page, new_item)?;
                let number = page.items();
                if let Some(tid) = tid {
                    tuple::set_tid(page.normal_item_mut(number)?, tid);
                }
            }
            if number < self.first_right {
                append(page, item(&old, number)?)?;
            }
        }
        Ok(())
    }
}

/// Copies the items of another page to an empty one: `items` is that page from `pd_upper` to `pd_special`,
/// where the last item comes first (`_bt_restore_page`).
fn restore_items(page: &mut Page, items: &[u8]) -> Result<(), Misfit> {
    let mut count = 0;
    let mut rest = items;
    while !rest.is_empty() {
        (_, rest) = tuple::split_first(rest)?;
        count += 1;
    }
    let lower = PAGE_HEADER_BYTES + count * LINE_POINTER_BYTES;
    let upper = page.special().checked_sub(items.len()).filter(|&upper| lower <= upper);
    let upper = upper.ok_or(Misfit("the page has not enough free space for the item"))?;
    page.0[upper..upper + items.len()].copy_from_slice(items);
    page.set_lower(lower);
    page.set_upper(upper);
    let (mut rest, mut start, mut number) = (items, upper, count as u16);
    while !rest.is_empty() {
        let (item, behind) = tuple::split_first(rest)?;
        let pointer = LinePointer::new(start as u16, ItemState::Normal, item.len() as u16);
        page.set_line_pointer(number, pointer)?;
        start += item.len();
        number -= 1;
        rest = behind;
    }
    Ok(())
}

fn deduplicate(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeDedup(dedup) = step.payload()? else { return Err(UNREADABLE) };
    let Some(page) = step.page(0) else { return Ok(()) };
    let old = page.clone();
    let opaque = BTPageOpaqueData::from_page(&old)?;
    opaque.init(page);
    BTPageOpaqueData::change(page, |opaque| opaque.flags &= !flags::BTP_HAS_GARBAGE)?;
    let mut number = 1;
    let mut builder = PostingBuilder::new();
    for interval in dedup.intervals.ok_or(UNREADABLE)? {
        let end = interval.offset.checked_add(interval.tuples).ok_or(UNREADABLE)?;
        if interval.offset < number.max(opaque.first_data_item()) || interval.tuples < 2 {
            return Err(Misfit("the tuples to merge are not those of the page"));
        }
        for number in number..interval.offset {
            append(page, item(&old, number)?)?;
        }
        builder.start(item(&old, interval.offset)?)?;
        for number in interval.offset..end {
            let tids = heap_tids(item(&old, number)?);
            builder.push(tids.ok_or(Misfit("a tuple to merge is none of a leaf's"))?)?;
        }
        append(page, builder.finish()?)?;
        number = end;
    }
    for number in number..=old.items() {
        append(page, item(&old, number)?)?;
    }
    Ok(())
}

fn delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeDelete(delete) = step.payload()? else { return Err(UNREADABLE) };
    let data = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    remove(page, delete.deleted, delete.updated, data)?;
    BTPageOpaqueData::change(page, |opaque| opaque.flags &= !flags::BTP_HAS_GARBAGE)
}

fn vacuum(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeVacuum(vacuum) = step.payload()? else { return Err(UNREADABLE) };
    let (deleted, updated) = (vacuum.deleted.unwrap_or(0), vacuum.updated.unwrap_or(0));
    let data = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    remove(page, deleted.into(), updated, data)?;
    // The page has been vacuumed. Redo clears the cycle id only since 18, but primaries always did.
    BTPageOpaqueData::change(page, |opaque| {
        *opaque = BTPageOpaqueData { flags: opaque.flags & !flags::BTP_HAS_GARBAGE, cycle_id: 0, ..*opaque }
    })
}

/// Removes TIDs from posting lists, then items from the page. `data` has the line pointers of the removed
/// items, the line pointers of the posting lists, and for each posting list an [`XlBtreeUpdate`] and the
/// positions of its deleted TIDs.
fn remove(page: &mut Page, deleted: u32, updated: u16, data: &[u8]) -> Result<(), Misfit> {
    let mut reader = Reader::new(data);
    let deleted = usize::try_from(deleted).ok().and_then(|deleted| numbers(&mut reader, deleted));
    let deleted = deleted.ok_or(UNREADABLE)?;
    let updated = numbers(&mut reader, updated.into()).ok_or(UNREADABLE)?;
    let mut builder = PostingBuilder::new();
    for number in updated {
        let XlBtreeUpdate { removed } =
            reader.array().map(|bytes| XlBtreeUpdate::from_bytes(&bytes)).ok_or(UNREADABLE)?;
        let gone = numbers(&mut reader, removed.into()).ok_or(UNREADABLE)?;
        let mut gone = gone.peekable();
        let old = item(page, number)?;
        let list = posting_list(old).ok_or(Misfit("the tuple has no posting list"))?;
        builder.start(old)?;
        for (index, tid) in tuple::tids(&old[list]).enumerate() {
            if gone.next_if(|&gone| usize::from(gone) == index).is_none() {
                builder.push(tid)?;
            }
        }
        if gone.next().is_some() {
            return Err(Misfit("the posting list does not have the TIDs to be removed"));
        }
        page.overwrite_item(number, builder.finish()?)?;
    }
    if deleted.len() > 0 {
        let deleted: Vec<u16> = deleted.collect();
        page.delete_items(&deleted)?;
    }
    Ok(())
}

/// Reads `count` 16-bit numbers, if there are that many.
fn numbers<'a>(
    reader: &mut Reader<'a>,
    count: usize,
) -> Option<impl ExactSizeIterator<Item = u16> + use<'a>> {
    reader.take(count.checked_mul(2)?).map(offset_numbers)
}

fn mark_page_half_dead(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeMarkPageHalfDead(marked) = step.payload()? else { return Err(UNREADABLE) };
    if let Some(page) = step.page(1) {
        // The right sibling takes over the key space: the deleted page's downlink now points to it, and its
        // own downlink is removed.
        let number = marked.parent_offset;
        let behind = number.checked_add(1).ok_or(UNREADABLE)?;
        let child: [u8; 4] = *item(page, behind)?.first_chunk().ok_or(UNREADABLE)?;
        let range = item_range(page, number)?;
        *page.0[range].first_chunk_mut().ok_or(UNREADABLE)? = child;
        page.delete_item(behind)?;
    }
    if let Some(page) = step.init(0) {
        init_half_dead(page, marked.left, marked.right, marked.top_parent)?;
    }
    Ok(())
}

/// Initializes a leaf without tuples, whose high key points to the topmost page that is to be deleted
/// together with the leaf.
fn init_half_dead(page: &mut Page, previous: u32, next: u32, top_parent: u32) -> Result<(), Misfit> {
    BTPageOpaqueData { previous, next, level: 0, flags: flags::BTP_HALF_DEAD | flags::BTP_LEAF, cycle_id: 0 }
        .init(page);
    append(page, &tuple::top_parent(top_parent))
}

fn unlink_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeUnlinkPage(unlinked) = step.payload()? else { return Err(UNREADABLE) };
    let (previous, next) = (unlinked.left_sibling, unlinked.right_sibling);
    if let Some(page) = step.page(1) {
        BTPageOpaqueData::change(page, |opaque| opaque.next = next)?;
    }
    if let Some(page) = step.init(0) {
        let level = unlinked.level.unwrap_or(0);
        let leaf = if level == 0 { flags::BTP_LEAF } else { 0 };
        let flags = flags::BTP_DELETED | flags::BTP_HAS_FULLXID | leaf;
        BTPageOpaqueData { previous, next, level, flags, cycle_id: 0 }.init(page);
        // Mirrors `BTPageSetDeleted`.
        page.0[DELETED_SAFE_XID..DELETED_SAFE_XID + DELETED_BYTES]
            .copy_from_slice(&unlinked.safe_xid.to_le_bytes());
        page.set_lower(DELETED_SAFE_XID + DELETED_BYTES);
    }
    if let Some(page) = step.page(2) {
        BTPageOpaqueData::change(page, |opaque| opaque.previous = previous)?;
    }
    if let Some(page) = step.init(3) {
        let (left, right) = (unlinked.leaf_left_sibling, unlinked.leaf_right_sibling);
        init_half_dead(page, left, right, unlinked.leaf_top_parent)?;
    }
    if step.kind() == kind::UNLINK_PAGE_META { restore_meta(step, 4) } else { Ok(()) }
}

fn new_root(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let Payload::BtreeNewRoot(root) = step.payload()? else { return Err(UNREADABLE) };
    let items = step.data(0);
    if let Some(page) = step.init(0) {
        let leaf = if root.level == 0 { flags::BTP_LEAF } else { 0 };
        BTPageOpaqueData { level: root.level, flags: flags::BTP_ROOT | leaf, ..BTPageOpaqueData::default() }
            .init(page);
        if root.level > 0 {
            restore_items(page, items)?;
        }
    }
    if root.level > 0 {
        finish_split(step, 1)?;
    }
    restore_meta(step, 2)
}

/// Initializes the metapage (`_bt_restore_meta`).
fn restore_meta(step: &mut Step<'_, '_>, id: u8) -> Result<(), Misfit> {
    let meta = match step.payload()? {
        Payload::BtreeInsert(insert) => insert.meta,
        Payload::BtreeUnlinkPage(unlinked) => unlinked.meta,
        Payload::BtreeNewRoot(root) => root.meta,
        Payload::BtreeMetaCleanup(cleanup) => cleanup.meta,
        _ => None,
    };
    let Some(page) = step.init(id) else { return Ok(()) };
    write_meta(page, &meta.ok_or(UNREADABLE)?);
    Ok(())
}

fn write_meta(page: &mut Page, fields: &BtreeMeta) {
    BTPageOpaqueData { flags: flags::BTP_META, ..BTPageOpaqueData::default() }.init(page);
    let numbers = [
        (meta::MAGIC, BTREE_MAGIC),
        (meta::VERSION, fields.format.unwrap_or(0)),
        (meta::ROOT, fields.root),
        (meta::LEVEL, fields.level),
        (meta::FAST_ROOT, fields.fast_root),
        (meta::FAST_LEVEL, fields.fast_level),
        (meta::LAST_CLEANUP_DELETED_PAGES, fields.deleted_pages.unwrap_or(0)),
        (meta::ALL_EQUAL_IMAGE, u32::from(fields.all_equal_image.unwrap_or(false))),
    ];
    for (at, value) in numbers {
        page.put_u32(PAGE_CONTENTS + at, value);
    }
    // The number of heap tuples, which is unused since 14.
    let at = PAGE_CONTENTS + meta::LAST_CLEANUP_HEAP_TUPLES;
    page.0[at..at + 8].copy_from_slice(&(-1f64).to_le_bytes());
    page.set_lower(PAGE_CONTENTS + BTREE_META_BYTES);
}
