//! BRIN indexes (`brin_page.h`, `brin_tuple.h`).

use super::super::{At, Bits, Bytes, Description, Fields, items};
use crate::page::brin::{
    BRIN_EMPTY_RANGE_MASK, BRIN_EVACUATE_PAGE, BRIN_NULLS_MASK, BRIN_OFFSET_MASK, BRIN_PAGETYPE_META,
    BRIN_PAGETYPE_REVMAP, BRIN_PLACEHOLDER_MASK, BrinSpecialSpace, TUPLE_INFO, meta,
};
use crate::page::tid::{INVALID_OFFSET_NUMBER, TID_BYTES};
use crate::page::{Page, SpecialArea};

const FLAGS: Bits = &[(BRIN_EVACUATE_PAGE, "BRIN_EVACUATE_PAGE")];

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let special = BrinSpecialSpace::read(page);
    description.special.bits("flags", special.flags, FLAGS);
    let content = page.contents();
    let fields = &mut description.content;
    let used_for = match special.page_type {
        BRIN_PAGETYPE_META => {
            fields.maybe_text("magic", content.u32_in(meta::MAGIC).map(|magic| format!("{magic:#x}")));
            for (name, at) in [
                ("version", meta::VERSION),
                ("pages_per_range", meta::PAGES_PER_RANGE),
                ("last_revmap_page", meta::LAST_REVMAP_PAGE),
            ] {
                fields.maybe(name, content.u32_in(at));
            }
            "metapage"
        }
        BRIN_PAGETYPE_REVMAP => {
            let entries = content.chunks_exact(TID_BYTES).enumerate();
            let entry = |(index, bytes): (usize, &[u8])| {
                let tid = bytes.tid_in(0).filter(|tid| tid.offset_number != INVALID_OFFSET_NUMBER)?;
                Some(format!("{index}:{tid}"))
            };
            fields.list("ranges", entries.filter_map(entry));
            "range map"
        }
        _ => {
            description.items = items(page, |_, bytes| tuple(bytes));
            "data page"
        }
    };
    description.kind = format!("{} {used_for}", description.kind);
}

fn tuple(bytes: &[u8]) -> (Fields, Bytes) {
    let mut fields = Fields::default();
    let Some(&info) = bytes.get(TUPLE_INFO) else { return (fields, Bytes(bytes.to_vec())) };
    fields.maybe("block", bytes.u32_in(0));
    for (name, bit) in
        [("nulls", BRIN_NULLS_MASK), ("placeholder", BRIN_PLACEHOLDER_MASK), ("empty", BRIN_EMPTY_RANGE_MASK)]
    {
        fields.bool(name, info & bit != 0);
    }
    let data = bytes.get(usize::from(info & BRIN_OFFSET_MASK)..).unwrap_or(&[]);
    (fields, Bytes(data.to_vec()))
}
