//! BRIN indexes (`brin_page.h`, `brin_tuple.h`).

use super::super::{At, Bits, Bytes, Description, Fields, contents, items};
use crate::page::{PAGE_BYTES, Page};

const FLAGS: Bits = &[(1, "BRIN_EVACUATE_PAGE")];
const META: u16 = 0xF091;
const MAP: u16 = 0xF092;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    description.special.bits("flags", page.u16_at(PAGE_BYTES - 4), FLAGS);
    let content = contents(page);
    let fields = &mut description.content;
    let used_for = match page.u16_at(PAGE_BYTES - 2) {
        META => {
            fields.maybe_text("magic", content.u32_in(0).map(|magic| format!("{magic:#x}")));
            for (name, at) in [("version", 4), ("pages_per_range", 8), ("last_revmap_page", 12)] {
                fields.maybe(name, content.u32_in(at));
            }
            "metapage"
        }
        MAP => {
            let entries = content.chunks_exact(6).enumerate();
            let entry = |(index, bytes): (usize, &[u8])| {
                let tid = bytes.tid_in(0).filter(|tid| tid.item != 0)?;
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
    let Some(&info) = bytes.get(4) else { return (fields, Bytes(bytes.to_vec())) };
    fields.maybe("block", bytes.u32_in(0));
    for (name, bit) in [("nulls", 0x80), ("placeholder", 0x40), ("empty", 0x20)] {
        fields.bool(name, info & bit != 0);
    }
    let data = bytes.get(usize::from(info & 0x1F)..).unwrap_or(&[]);
    (fields, Bytes(data.to_vec()))
}
