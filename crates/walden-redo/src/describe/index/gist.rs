//! GiST indexes (`gist.h`).

use walden_format::lsn::Lsn;

use super::super::{At, Bits, Description, contents, items};
use super::{Entry, link, no_entry};
use crate::page::Page;

const FLAGS: Bits = &[
    (LEAF, "F_LEAF"),
    (DELETED, "F_DELETED"),
    (1 << 2, "F_TUPLES_DELETED"),
    (1 << 3, "F_FOLLOW_RIGHT"),
    (1 << 4, "F_HAS_GARBAGE"),
];
const LEAF: u16 = 1 << 0;
const DELETED: u16 = 1 << 1;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let special = page.special_area();
    let flags = special.u16_in(12).unwrap_or(0);
    let nsn = special.u32_in(0).zip(special.u32_in(4));
    let nsn = nsn.map(|(high, low)| Lsn(u64::from(high) << 32 | u64::from(low)));
    description.special.maybe_text("nsn", nsn);
    link(&mut description.special, "rightlink", special.u32_in(8));
    description.special.bits("flags", flags, FLAGS);
    let used_for = match flags {
        _ if flags & DELETED != 0 => "deleted page",
        _ if flags & LEAF != 0 => "leaf",
        _ => "internal page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    if flags & DELETED != 0 {
        return description.content.maybe("delete_xid", contents(page).u64_in(0));
    }
    description.items = items(page, |_, bytes| {
        let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
        let (mut fields, data) = entry.plain();
        if flags & LEAF == 0 {
            fields.number("downlink", entry.tid.block);
        }
        (fields, data)
    });
}
