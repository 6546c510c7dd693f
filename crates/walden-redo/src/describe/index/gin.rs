//! GIN indexes (`ginblock.h`): an entry tree of keys, posting trees of rows, a list of pending entries.

use super::super::{At, Bits, Bytes, Description, Fields, Tid, contents, items};
use super::{Entry, link, no_entry};
use crate::page::{PAGE_HEADER, Page};

const FLAGS: Bits = &[
    (DATA, "GIN_DATA"),
    (LEAF, "GIN_LEAF"),
    (DELETED, "GIN_DELETED"),
    (META, "GIN_META"),
    (LIST, "GIN_LIST"),
    (1 << 5, "GIN_LIST_FULLROW"),
    (1 << 6, "GIN_INCOMPLETE_SPLIT"),
    (COMPRESSED, "GIN_COMPRESSED"),
];
const DATA: u16 = 1 << 0;
const LEAF: u16 = 1 << 1;
const DELETED: u16 = 1 << 2;
const META: u16 = 1 << 3;
const LIST: u16 = 1 << 4;
const COMPRESSED: u16 = 1 << 7;
/// An entry whose rows are in a posting tree has this in the place of their number (`GIN_TREE_POSTING`).
const POSTING_TREE: u16 = 0xFFFF;
const POSTING_COMPRESSED: u32 = 1 << 31;
/// The right bound before a posting page's data, padded.
const RIGHT_BOUND: usize = 8;
const POSTING_ITEM: usize = 10;
/// Bits of a row's number in a packed row (`MaxHeapTuplesPerPageBits`).
const ITEM_BITS: u32 = 11;
/// More rows than a page can hold.
const MAX_ROWS: usize = 1 << 16;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let special = page.special_area();
    let (maxoff, flags) = (special.u16_in(4).unwrap_or(0), special.u16_in(6).unwrap_or(0));
    link(&mut description.special, "rightlink", special.u32_in(0));
    description.special.number("maxoff", maxoff);
    description.special.bits("flags", flags, FLAGS);
    let used_for = match flags {
        _ if flags & META != 0 => "metapage",
        _ if flags & DELETED != 0 => "deleted page",
        _ if flags & LIST != 0 => "pending list page",
        _ if flags & (DATA | LEAF) == DATA | LEAF => "posting tree leaf",
        _ if flags & DATA != 0 => "posting tree internal page",
        _ if flags & LEAF != 0 => "entry tree leaf",
        _ => "entry tree internal page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    let content = contents(page);
    let fields = &mut description.content;
    if flags & META != 0 {
        meta(content, fields);
    } else if flags & DATA != 0 {
        fields.maybe_text("right_bound", content.tid_in(0));
        let end = page.lower().saturating_sub(PAGE_HEADER).min(content.len());
        let data = content.get(RIGHT_BOUND..end).unwrap_or(&[]);
        if flags & LEAF == 0 {
            let items = content.get(RIGHT_BOUND..).unwrap_or(&[]).chunks_exact(POSTING_ITEM);
            let child = |item: &[u8]| {
                let child = u32::from(item.u16_in(0)?) << 16 | u32::from(item.u16_in(2)?);
                Some(format!("{child}:{}", item.tid_in(4)?))
            };
            fields.list("children", items.take(maxoff.into()).filter_map(child));
        } else if flags & COMPRESSED != 0 {
            fields.list("rows", rows(data).into_iter());
        } else {
            let rows = content.get(RIGHT_BOUND..).unwrap_or(&[]).chunks_exact(6);
            fields.list("rows", rows.take(maxoff.into()).filter_map(Tid::read));
        }
    } else if flags & DELETED == 0 {
        let (is_list, is_leaf) = (flags & LIST != 0, flags & LEAF != 0);
        description.items = items(page, |_, bytes| entry(bytes, is_list, is_leaf));
    }
}

fn meta(content: &[u8], fields: &mut Fields) {
    link(fields, "pending_head", content.u32_in(0));
    link(fields, "pending_tail", content.u32_in(4));
    fields.maybe("tail_free_size", content.u32_in(8));
    fields.maybe("n_pending_pages", content.u32_in(12));
    fields.signed("n_pending_tuples", content.u64_in(16).map(u64::cast_signed));
    for (name, at) in [("n_total_pages", 24), ("n_entry_pages", 28), ("n_data_pages", 32)] {
        fields.maybe(name, content.u32_in(at));
    }
    fields.signed("n_entries", content.u64_in(40).map(u64::cast_signed));
    fields.maybe("version", content.u32_in(48));
}

fn entry(bytes: &[u8], is_list: bool, is_leaf: bool) -> (Fields, Bytes) {
    let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
    if is_list {
        return entry.plain();
    }
    let mut fields = entry.fields();
    if !is_leaf {
        fields.number("downlink", entry.tid.block);
        return (fields, entry.key(entry.len()));
    }
    if entry.tid.item == POSTING_TREE {
        fields.number("posting_tree", entry.tid.block);
        return (fields, entry.key(entry.len()));
    }
    let at = (entry.tid.block & !POSTING_COMPRESSED) as usize;
    let list = bytes.get(at..entry.len()).unwrap_or(&[]);
    let count = usize::from(entry.tid.item);
    if entry.tid.block & POSTING_COMPRESSED != 0 {
        fields.list("rows", rows(list).into_iter().take(count));
    } else {
        fields.list("rows", list.chunks_exact(6).take(count).filter_map(Tid::read));
    }
    (fields, entry.key(at))
}

/// Segments of packed rows: the first in full, of each other the distance from the one before in 7 bits a byte
/// (`ginpostinglist.c`).
fn rows(mut data: &[u8]) -> Vec<Tid> {
    let mut rows = Vec::new();
    while let (Some(first), Some(len)) = (data.tid_in(0), data.u16_in(6)) {
        let Some(bytes) = data.get(8..8 + usize::from(len)) else { break };
        if rows.len() > MAX_ROWS || (first == Tid { block: 0, item: 0 } && len == 0) {
            break;
        }
        rows.push(first);
        let mut packed = u64::from(first.block) << ITEM_BITS | u64::from(first.item);
        let (mut distance, mut shift) = (0_u64, 0);
        for byte in bytes {
            distance |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                packed = packed.wrapping_add(distance);
                let item = (packed & ((1 << ITEM_BITS) - 1)) as u16;
                rows.push(Tid { block: (packed >> ITEM_BITS) as u32, item });
                (distance, shift) = (0, 0);
            }
        }
        let next = 8 + ((usize::from(len) + 1) & !1);
        data = data.get(next..).unwrap_or(&[]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rows_are_unpacked() {
        // (1,2), then 3 further, then a block further.
        let data = [0, 0, 1, 0, 2, 0, 3, 0, 3, 0x80, 0x10, 0, 0, 0, 9, 0, 9, 0, 0, 0];
        let text: Vec<String> = rows(&data).iter().map(Tid::to_string).collect();
        assert_eq!(text, ["(1,2)", "(1,5)", "(2,5)", "(9,9)"]);
    }
}
