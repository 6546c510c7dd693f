//! GIN indexes (`ginblock.h`): an entry tree of keys, posting trees of TIDs, a list of pending entries.

use super::super::{At, Bits, Bytes, Description, Fields, items};
use super::{Entry, link, maybe_link, no_entry};
use crate::page::gin::{
    GIN_ITUP_COMPRESSED, GIN_POSTING_ITEM_BYTES, GIN_RIGHT_BOUND_BYTES, GIN_TREE_POSTING, GinPageOpaqueData,
    PostingSegment, flags, meta, number_to_tid,
};
use crate::page::tid::{BLOCK_ID_BYTES, TID_BYTES, Tid, block_from_bytes};
use crate::page::{PAGE_CONTENTS, Page, SpecialArea};

const FLAGS: Bits = &[
    (flags::GIN_DATA, "GIN_DATA"),
    (flags::GIN_LEAF, "GIN_LEAF"),
    (flags::GIN_DELETED, "GIN_DELETED"),
    (flags::GIN_META, "GIN_META"),
    (flags::GIN_LIST, "GIN_LIST"),
    (flags::GIN_LIST_FULLROW, "GIN_LIST_FULLROW"),
    (flags::GIN_INCOMPLETE_SPLIT, "GIN_INCOMPLETE_SPLIT"),
    (flags::GIN_COMPRESSED, "GIN_COMPRESSED"),
];
/// Maximum number of TIDs listed; more than a page can hold.
const MAX_ROWS: usize = 1 << 16;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let GinPageOpaqueData { right_link, max_offset, flags } = GinPageOpaqueData::read(page);
    link(&mut description.special, "rightlink", right_link);
    description.special.number("maxoff", max_offset);
    description.special.bits("flags", flags, FLAGS);
    let used_for = match flags {
        _ if flags & flags::GIN_META != 0 => "metapage",
        _ if flags & flags::GIN_DELETED != 0 => "deleted page",
        _ if flags & flags::GIN_LIST != 0 => "pending list page",
        _ if flags & (flags::GIN_DATA | flags::GIN_LEAF) == flags::GIN_DATA | flags::GIN_LEAF => {
            "posting tree leaf"
        }
        _ if flags & flags::GIN_DATA != 0 => "posting tree internal page",
        _ if flags & flags::GIN_LEAF != 0 => "entry tree leaf",
        _ => "entry tree internal page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    let content = page.contents();
    let fields = &mut description.content;
    if flags & flags::GIN_META != 0 {
        metapage(content, fields);
    } else if flags & flags::GIN_DATA != 0 {
        fields.maybe_text("right_bound", content.tid_in(0));
        let end = page.lower().saturating_sub(PAGE_CONTENTS).min(content.len());
        let data = content.get(GIN_RIGHT_BOUND_BYTES..end).unwrap_or(&[]);
        if flags & flags::GIN_LEAF == 0 {
            let items =
                content.get(GIN_RIGHT_BOUND_BYTES..).unwrap_or(&[]).chunks_exact(GIN_POSTING_ITEM_BYTES);
            let child = |item: &[u8]| {
                let child = block_from_bytes(item.first_chunk()?);
                Some(format!("{child}:{}", item.tid_in(BLOCK_ID_BYTES)?))
            };
            fields.list("children", items.take(max_offset.into()).filter_map(child));
        } else if flags & flags::GIN_COMPRESSED != 0 {
            fields.list("rows", rows(data).into_iter());
        } else {
            let rows = content.get(GIN_RIGHT_BOUND_BYTES..).unwrap_or(&[]).chunks_exact(TID_BYTES);
            fields.list("rows", rows.take(max_offset.into()).filter_map(Tid::read));
        }
    } else if flags & flags::GIN_DELETED == 0 {
        let (is_list, is_leaf) = (flags & flags::GIN_LIST != 0, flags & flags::GIN_LEAF != 0);
        description.items = items(page, |_, bytes| entry(bytes, is_list, is_leaf));
    }
}

fn metapage(content: &[u8], fields: &mut Fields) {
    let [head, tail] = [meta::HEAD, meta::TAIL].map(|at| content.u32_in(at));
    maybe_link(fields, "pending_head", head);
    maybe_link(fields, "pending_tail", tail);
    fields.maybe("tail_free_size", content.u32_in(meta::TAIL_FREE_SIZE));
    fields.maybe("n_pending_pages", content.u32_in(meta::PENDING_PAGES));
    fields.signed("n_pending_tuples", content.u64_in(meta::PENDING_HEAP_TUPLES).map(u64::cast_signed));
    let pages = [
        ("n_total_pages", meta::TOTAL_PAGES),
        ("n_entry_pages", meta::ENTRY_PAGES),
        ("n_data_pages", meta::DATA_PAGES),
    ];
    for (name, at) in pages {
        fields.maybe(name, content.u32_in(at));
    }
    fields.signed("n_entries", content.u64_in(meta::ENTRIES).map(u64::cast_signed));
    fields.maybe("version", content.u32_in(meta::VERSION));
}

fn entry(bytes: &[u8], is_list: bool, is_leaf: bool) -> (Fields, Bytes) {
    let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
    if is_list {
        return entry.plain();
    }
    let mut fields = entry.fields();
    if !is_leaf {
        fields.number("downlink", entry.tid.block);
        return (fields, entry.key(entry.size()));
    }
    if entry.tid.offset_number == GIN_TREE_POSTING {
        fields.number("posting_tree", entry.tid.block);
        return (fields, entry.key(entry.size()));
    }
    let at = (entry.tid.block & !GIN_ITUP_COMPRESSED) as usize;
    let list = bytes.get(at..entry.size()).unwrap_or(&[]);
    let count = usize::from(entry.tid.offset_number);
    if entry.tid.block & GIN_ITUP_COMPRESSED != 0 {
        fields.list("rows", rows(list).into_iter().take(count));
    } else {
        fields.list("rows", list.chunks_exact(TID_BYTES).take(count).filter_map(Tid::read));
    }
    (fields, entry.key(at))
}

/// Returns the TIDs of a list's segments.
fn rows(mut data: &[u8]) -> Vec<Tid> {
    let mut rows = Vec::new();
    while let Some(segment) = PostingSegment::read(data) {
        let is_empty = segment.first == Tid { block: 0, offset_number: 0 };
        if rows.len() > MAX_ROWS || is_empty {
            break;
        }
        rows.push(segment.first);
        let rest = segment.others(|number| rows.extend(number_to_tid(number)));
        if rest.is_none() {
            break;
        }
        data = data.get(segment.size()..).unwrap_or(&[]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rows_are_unpacked() {
        // (1,2), then an offset number 3 higher, then the next block.
        let data = [0, 0, 1, 0, 2, 0, 3, 0, 3, 0x80, 0x10, 0, 0, 0, 9, 0, 9, 0, 0, 0];
        let text: Vec<String> = rows(&data).iter().map(Tid::to_string).collect();
        assert_eq!(text, ["(1,2)", "(1,5)", "(2,5)", "(9,9)"]);
    }
}
