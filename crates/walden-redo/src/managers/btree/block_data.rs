//! Reconstructs the data of blocks that have an image in a B-tree's records.
//!
//! Pages that a record initializes (right halves, roots, metapages, deleted pages) never have images, so
//! their data is always present. The special areas of other pages are changed without data.

use walden_format::payload::btree::{BtreePostingOffset, BtreeSplit, DedupInterval, XlBtreeUpdate};
use walden_format::payload::{self, Payload, push_offset_numbers};
use walden_format::record::BlockRef;
use walden_format::version::Major;

use super::tuple;
use super::{item, item_number, kind};
use crate::manager::PagesAround;
use crate::page::btree::{BTPageOpaqueData, heap_tids, posting_list};
use crate::page::tid::{TID_BYTES, Tid};
use crate::page::{Page, SpecialArea};

pub(super) fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    if around.record.version < Major::V14 {
        return None;
    }
    if block.id != 0 {
        return Some(Vec::new());
    }
    let after = around.after(0)?;
    match around.record.rmgr_info() {
        kind::INSERT_LEAF | kind::INSERT_UPPER | kind::INSERT_META => {
            Some(item(after, item_number(around.record.main_data()).ok()?).ok()?.to_vec())
        }
        kind::INSERT_POST => {
            posting_insert(around.before(0)?, after, item_number(around.record.main_data()).ok()?)
        }
        kind::DEDUP => intervals(around.before(0)?, after, around),
        kind::DELETE | kind::VACUUM => removed(around.before(0)?, after, around),
        kind::SPLIT_L | kind::SPLIT_R => match payload::parse(around.record) {
            Ok(Payload::BtreeSplit(split)) => left_page(around, after, &split),
            _ => None,
        },
        _ => Some(Vec::new()),
    }
}

/// Reconstructs the position at which the posting list was split, and the new tuple with the TID inserted
/// into the list.
///
/// The list before the record is required: in the resulting list, any TID could be the inserted one.
fn posting_insert(before: &Page, after: &Page, number: u16) -> Option<Vec<u8>> {
    let posting = number.checked_sub(1)?;
    let (posting_offset, tid) =
        tuple::unswap_posting(item(before, posting).ok()?, item(after, posting).ok()?)?;
    let mut data = BtreePostingOffset { posting_offset }.to_bytes().to_vec();
    data.extend_from_slice(item(after, number).ok()?);
    tuple::set_tid(&mut data[BtreePostingOffset::WIDTH..], tid);
    Some(data)
}

/// Reconstructs the left page's new tuple, if the record must have it, and its high key.
fn left_page(around: &PagesAround<'_>, after: &Page, split: &BtreeSplit) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    // The page was the rightmost of its level unless block 2 is a sibling that gets a new left link. A
    // rightmost page has no high key, and gets one now.
    let was_last = around.record.block(2).is_none();
    let number = split.new_item_offset.checked_add(was_last.into())?;
    let posting = split.posting_offset.unwrap_or(0);
    if around.record.rmgr_info() == kind::SPLIT_L {
        data.extend_from_slice(item(after, number).ok()?);
    } else if posting != 0 {
        // The new tuple is the right page's first one; the posting list is the left page's last item.
        let first = if was_last { 0 } else { 1 };
        let right = around.record.block(1)?;
        data.extend_from_slice(tuple_from_end(around.record.block_data(right), first)?);
    }
    if posting != 0 {
        let list = heap_tids(item(after, number.checked_sub(1)?).ok()?)?;
        let tid = Tid::read(list.get(usize::from(posting) * TID_BYTES..)?)?;
        tuple::set_tid(&mut data, tid);
    }
    data.extend_from_slice(item(after, 1).ok()?);
    Some(data)
}

/// Returns one of the consecutive tuples in a page's data, counted from the last.
fn tuple_from_end(mut tuples: &[u8], number: usize) -> Option<&[u8]> {
    let mut all = Vec::new();
    while !tuples.is_empty() {
        let (first, rest) = tuple::split_first(tuples).ok()?;
        all.push(first);
        tuples = rest;
    }
    all.iter().rev().nth(number).copied()
}

/// Reconstructs which tuples were merged.
fn intervals(before: &Page, after: &Page, around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    let first = BTPageOpaqueData::from_page(before).ok()?.first_data_item();
    let mut old = first;
    for new in first..=after.items() {
        let merged = heap_tids(item(after, new).ok()?)?.len();
        let start = old;
        let mut tid_bytes = 0;
        while tid_bytes < merged {
            tid_bytes += heap_tids(item(before, old).ok()?)?.len();
            old += 1;
        }
        if tid_bytes != merged {
            return None;
        }
        if old - start > 1 {
            data.extend(DedupInterval { offset: start, tuples: old - start }.to_bytes());
        }
    }
    let Ok(Payload::BtreeDedup(dedup)) = payload::parse(around.record) else { return None };
    (data.len() == usize::from(dedup.count) * 4).then_some(data)
}

/// Reconstructs which items were removed, and which TIDs of the remaining posting lists.
fn removed(before: &Page, after: &Page, around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let expected = match payload::parse(around.record) {
        Ok(Payload::BtreeDelete(delete)) => (delete.deleted, delete.updated),
        Ok(Payload::BtreeVacuum(vacuum)) => (vacuum.deleted?.into(), vacuum.updated?),
        _ => return None,
    };
    let (mut deleted, mut updated, mut updates) = (Vec::new(), Vec::new(), Vec::new());
    let first = BTPageOpaqueData::from_page(before).ok()?.first_data_item();
    let mut new = first;
    for old in first..=before.items() {
        let old_item = item(before, old).ok()?;
        let new_item = item(after, new).ok();
        if new_item == Some(old_item) {
            new += 1;
            continue;
        }
        match new_item.and_then(|new_item| missing_tids(old_item, new_item)) {
            Some(missing) => {
                updated.push(old);
                updates.extend(XlBtreeUpdate { removed: u16::try_from(missing.len()).ok()? }.to_bytes());
                push_offset_numbers(&mut updates, missing);
                new += 1;
            }
            None => deleted.push(old),
        }
    }
    let counts = (u32::try_from(deleted.len()).ok()?, u16::try_from(updated.len()).ok()?);
    if new != after.items() + 1 || counts != expected {
        return None;
    }
    let mut data = Vec::new();
    push_offset_numbers(&mut data, deleted.into_iter().chain(updated));
    data.extend(updates);
    Some(data)
}

/// Returns the indexes, from 0, of the TIDs in `old` that `new` lacks; `None` if `new` has other TIDs.
fn missing_tids(old: &[u8], new: &[u8]) -> Option<Vec<u16>> {
    let list = posting_list(old)?;
    let mut left = tuple::tids(heap_tids(new)?).peekable();
    let mut missing = Vec::new();
    for (index, tid) in (0u16..).zip(tuple::tids(&old[list])) {
        if left.next_if(|&left| left == tid).is_none() {
            missing.push(index);
        }
    }
    (left.peek().is_none() && !missing.is_empty()).then_some(missing)
}
