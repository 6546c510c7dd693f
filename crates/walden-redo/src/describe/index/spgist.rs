//! SP-GiST indexes (`spgist_private.h`).

use super::super::{At, Bits, Bytes, Description, Fields, items};
use super::Entry;
use crate::page::index_tuple::{INDEX_NULL_BITMAP_BYTES, INDEX_TUPLE_HEADER_BYTES};
use crate::page::spgist::flags::{SPGIST_DELETED, SPGIST_LEAF, SPGIST_META, SPGIST_NULLS};
use crate::page::spgist::{
    DEAD_TARGET, DEAD_XID, INNER_TUPLE_HEADER_BYTES, InnerTupleHead, LEAF_HAS_NULLS, LEAF_HEAP_TID,
    LEAF_NEXT, LEAF_NEXT_MASK, LEAF_TUPLE_HEADER_BYTES, LIVE, META_CACHED_PAGE_BYTES, META_CACHED_PAGES,
    META_LAST_USED_PAGES, REDIRECT, STATE_BITS, SpGistPageOpaqueData,
};
use crate::page::tid::INVALID_BLOCK;
use crate::page::{PAGE_CONTENTS, Page, SpecialArea, max_align};

const FLAGS: Bits = &[
    (SPGIST_META, "SPGIST_META"),
    (SPGIST_DELETED, "SPGIST_DELETED"),
    (SPGIST_LEAF, "SPGIST_LEAF"),
    (SPGIST_NULLS, "SPGIST_NULLS"),
];
/// Names of the tuple states, by number.
const STATES: [&str; 4] = ["live", "redirect", "dead", "placeholder"];

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let SpGistPageOpaqueData { flags, redirections, placeholders, .. } = SpGistPageOpaqueData::read(page);
    description.special.bits("flags", flags, FLAGS);
    description.special.number("redirections", redirections);
    description.special.number("placeholders", placeholders);
    let used_for = match flags {
        _ if flags & SPGIST_META != 0 => "metapage",
        _ if flags & SPGIST_LEAF != 0 => "leaf page",
        _ => "inner page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    if flags & SPGIST_META != 0 {
        let content = page.contents();
        description.content.maybe_text("magic", content.u32_in(0).map(|magic| format!("{magic:#x}")));
        let cached = |index: usize| {
            let at = META_LAST_USED_PAGES - PAGE_CONTENTS + META_CACHED_PAGE_BYTES * index;
            let (block, free) = (content.u32_in(at)?, content.u32_in(at + 4)?);
            (block != INVALID_BLOCK).then(|| format!("{block}:{}", free.cast_signed()))
        };
        description.content.list("last_used_pages", (0..META_CACHED_PAGES).filter_map(cached));
        return;
    }
    description.items = items(page, |_, bytes| tuple(bytes, flags & SPGIST_LEAF != 0));
}

fn tuple(bytes: &[u8], is_leaf: bool) -> (Fields, Bytes) {
    let mut fields = Fields::default();
    let Some(first) = bytes.u32_in(0) else { return (fields, Bytes(bytes.to_vec())) };
    let state = first as u8 & STATE_BITS;
    fields.text("tuple", STATES[usize::from(state)]);
    let data = match (state, is_leaf) {
        (LIVE, true) => {
            let info = bytes.u16_in(LEAF_NEXT).unwrap_or(0);
            fields.number("next", info & LEAF_NEXT_MASK);
            fields.maybe_text("ctid", bytes.tid_in(LEAF_HEAP_TID));
            // The null bitmap has the same length as in other index tuples.
            let nulls = if info & LEAF_HAS_NULLS != 0 { INDEX_NULL_BITMAP_BYTES } else { 0 };
            bytes.get(max_align(LEAF_TUPLE_HEADER_BYTES + nulls)..)
        }
        (LIVE, false) => {
            let head = InnerTupleHead::decode(first);
            fields.bool("all_the_same", head.all_the_same);
            let prefix_end = INNER_TUPLE_HEADER_BYTES + usize::from(head.prefix_bytes);
            let mut at = prefix_end;
            let node = |_| {
                let entry = Entry::read(bytes.get(at..)?)?;
                at += entry.size().max(INDEX_TUPLE_HEADER_BYTES);
                let label = entry.key(entry.size());
                Some(format!("{}:{label}", entry.tid))
            };
            fields.list("nodes", (0..head.nodes).map_while(node).collect::<Vec<_>>().iter());
            bytes.get(INNER_TUPLE_HEADER_BYTES..prefix_end)
        }
        (REDIRECT, _) => {
            fields.maybe_text("to", bytes.tid_in(DEAD_TARGET));
            fields.maybe("xid", bytes.u32_in(DEAD_XID));
            None
        }
        _ => None,
    };
    (fields, Bytes(data.unwrap_or(&[]).to_vec()))
}
