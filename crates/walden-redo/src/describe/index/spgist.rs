//! SP-GiST indexes (`spgist_private.h`).

use super::super::{At, Bits, Bytes, Description, Fields, contents, items};
use super::Entry;
use crate::page::{Page, aligned};

const FLAGS: Bits =
    &[(META, "SPGIST_META"), (1 << 1, "SPGIST_DELETED"), (LEAF, "SPGIST_LEAF"), (1 << 3, "SPGIST_NULLS")];
const META: u16 = 1 << 0;
const LEAF: u16 = 1 << 2;
const CACHED_PAGES: usize = 8;
const STATES: [&str; 4] = ["live", "redirect", "dead", "placeholder"];
const LEAF_HEADER: usize = 12;
const INNER_HEADER: usize = 8;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let special = page.special_area();
    let flags = special.u16_in(0).unwrap_or(0);
    description.special.bits("flags", flags, FLAGS);
    description.special.maybe("redirections", special.u16_in(2));
    description.special.maybe("placeholders", special.u16_in(4));
    let used_for = match flags {
        _ if flags & META != 0 => "metapage",
        _ if flags & LEAF != 0 => "leaf page",
        _ => "inner page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    if flags & META != 0 {
        let content = contents(page);
        description.content.maybe_text("magic", content.u32_in(0).map(|magic| format!("{magic:#x}")));
        let cached = |index: usize| {
            let (block, free) = (content.u32_in(4 + 8 * index)?, content.u32_in(8 + 8 * index)?);
            (block != super::NO_BLOCK).then(|| format!("{block}:{}", free.cast_signed()))
        };
        description.content.list("last_used_pages", (0..CACHED_PAGES).filter_map(cached));
        return;
    }
    description.items = items(page, |_, bytes| tuple(bytes, flags & LEAF != 0));
}

fn tuple(bytes: &[u8], is_leaf: bool) -> (Fields, Bytes) {
    let mut fields = Fields::default();
    let Some(first) = bytes.u32_in(0) else { return (fields, Bytes(bytes.to_vec())) };
    let state = first & 3;
    fields.text("tuple", STATES[state as usize]);
    let data = match (state, is_leaf) {
        (0, true) => {
            let info = bytes.u16_in(4).unwrap_or(0);
            fields.number("next", info & 0x3FFF);
            fields.maybe_text("ctid", bytes.tid_in(6));
            // The bitmap of nulls is as long as that of any index entry.
            let nulls = if info & 0x8000 != 0 { 4 } else { 0 };
            bytes.get(aligned(LEAF_HEADER + nulls)..)
        }
        (0, false) => {
            let (count, prefix) = (first >> 3 & 0x1FFF, (first >> 16) as usize);
            fields.bool("all_the_same", first & 4 != 0);
            let mut at = INNER_HEADER + prefix;
            let node = |_| {
                let entry = Entry::read(bytes.get(at..)?)?;
                at += entry.len().max(INNER_HEADER);
                let label = entry.key(entry.len());
                Some(format!("{}:{label}", entry.tid))
            };
            fields.list("nodes", (0..count).map_while(node).collect::<Vec<_>>().iter());
            bytes.get(INNER_HEADER..INNER_HEADER + prefix)
        }
        (1, _) => {
            fields.maybe_text("to", bytes.tid_in(6));
            fields.maybe("xid", bytes.u32_in(12));
            None
        }
        _ => None,
    };
    (fields, Bytes(data.unwrap_or(&[]).to_vec()))
}
