//! GiST indexes (`gist.h`).

use super::super::{At, Bits, Description, items};
use super::{Entry, link, no_entry};
use crate::page::gist::GistPageOpaqueData;
use crate::page::gist::flags::{F_DELETED, F_FOLLOW_RIGHT, F_HAS_GARBAGE, F_LEAF, F_TUPLES_DELETED};
use crate::page::{Page, SpecialArea};

const FLAGS: Bits = &[
    (F_LEAF, "F_LEAF"),
    (F_DELETED, "F_DELETED"),
    (F_TUPLES_DELETED, "F_TUPLES_DELETED"),
    (F_FOLLOW_RIGHT, "F_FOLLOW_RIGHT"),
    (F_HAS_GARBAGE, "F_HAS_GARBAGE"),
];

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let GistPageOpaqueData { nsn, right_link, flags, .. } = GistPageOpaqueData::read(page);
    description.special.text("nsn", nsn);
    link(&mut description.special, "rightlink", right_link);
    description.special.bits("flags", flags, FLAGS);
    let used_for = match flags {
        _ if flags & F_DELETED != 0 => "deleted page",
        _ if flags & F_LEAF != 0 => "leaf",
        _ => "internal page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    if flags & F_DELETED != 0 {
        return description.content.maybe("delete_xid", page.contents().u64_in(0));
    }
    description.items = items(page, |_, bytes| {
        let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
        let (mut fields, data) = entry.plain();
        if flags & F_LEAF == 0 {
            fields.number("downlink", entry.tid.block);
        }
        (fields, data)
    });
}
