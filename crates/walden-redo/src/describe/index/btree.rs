//! B-trees (`nbtree.h`).

use super::super::{At, Bits, Bytes, Description, Fields, Tid, contents, items};
use super::{Entry, no_entry};
use crate::page::Page;

const FLAGS: Bits = &[
    (LEAF, "BTP_LEAF"),
    (1 << 1, "BTP_ROOT"),
    (DELETED, "BTP_DELETED"),
    (META, "BTP_META"),
    (1 << 4, "BTP_HALF_DEAD"),
    (1 << 5, "BTP_SPLIT_END"),
    (1 << 6, "BTP_HAS_GARBAGE"),
    (1 << 7, "BTP_INCOMPLETE_SPLIT"),
    (FULL_XID, "BTP_HAS_FULLXID"),
];
const LEAF: u16 = 1;
const DELETED: u16 = 1 << 2;
const META: u16 = 1 << 3;
const FULL_XID: u16 = 1 << 8;
/// What an entry's `t_tid` has in the place of a line pointer's number, if it is not a plain row's place.
const COUNT: u16 = 0x0FFF;
const HAS_HEAP_TID: u16 = 0x1000;
const IS_POSTING: u16 = 0x2000;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let special = page.special_area();
    let (next, flags) = (special.u32_in(4).unwrap_or(0), special.u16_in(12).unwrap_or(0));
    let fields = &mut description.special;
    // 0 is the metapage, which is nobody's sibling.
    for (name, at) in [("btpo_prev", 0), ("btpo_next", 4)] {
        match special.u32_in(at) {
            Some(0) => fields.text(name, "none"),
            block => fields.maybe(name, block),
        }
    }
    fields.maybe("btpo_level", special.u32_in(8));
    fields.bits("btpo_flags", flags, FLAGS);
    fields.maybe("btpo_cycleid", special.u16_in(14));
    let used_for = match flags {
        _ if flags & META != 0 => "metapage",
        _ if flags & DELETED != 0 => "deleted page",
        _ if flags & LEAF != 0 => "leaf",
        _ => "internal page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    if flags & META != 0 {
        return meta(contents(page), &mut description.content);
    }
    if flags & DELETED != 0 {
        if flags & FULL_XID != 0 {
            description.content.maybe("safexid", contents(page).u64_in(0));
        }
        return;
    }
    let is_leaf = flags & LEAF != 0;
    description.items = items(page, |number, bytes| entry(bytes, number == 1 && next != 0, is_leaf));
}

fn meta(content: &[u8], fields: &mut Fields) {
    fields.maybe_text("btm_magic", content.u32_in(0).map(|magic| format!("{magic:#x}")));
    let numbers = [
        ("btm_version", 4),
        ("btm_root", 8),
        ("btm_level", 12),
        ("btm_fastroot", 16),
        ("btm_fastlevel", 20),
        ("btm_last_cleanup_num_delpages", 24),
    ];
    for (name, at) in numbers {
        fields.maybe(name, content.u32_in(at));
    }
    fields.float("btm_last_cleanup_num_heap_tuples", content.u64_in(32).map(f64::from_bits));
    if let Some(&all_equal) = content.get(40) {
        fields.bool("btm_allequalimage", all_equal != 0);
    }
}

fn entry(bytes: &[u8], is_high_key: bool, is_leaf: bool) -> (Fields, Bytes) {
    let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
    let mut fields = entry.fields();
    let mut end = entry.len();
    if is_high_key {
        fields.bool("high_key", true);
    }
    if entry.reserved_bit() && entry.tid.item & IS_POSTING != 0 {
        let (count, at) = (usize::from(entry.tid.item & COUNT), entry.tid.block as usize);
        let list = bytes.get(at..end).unwrap_or(&[]);
        fields.list("tids", list.chunks_exact(6).take(count).filter_map(Tid::read));
        end = end.min(at);
    } else if entry.reserved_bit() {
        fields.number("natts", entry.tid.item & COUNT);
        if entry.tid.item & HAS_HEAP_TID != 0 {
            end = end.saturating_sub(6);
            fields.maybe_text("htid", bytes.tid_in(end));
        }
    } else if is_leaf {
        fields.text("htid", entry.tid);
    }
    if !is_leaf && !is_high_key {
        fields.number("downlink", entry.tid.block);
    }
    (fields, entry.key(end))
}

#[cfg(test)]
mod tests {
    use super::super::super::Value;
    use super::*;

    #[test]
    fn a_posting_list_is_rows() {
        // A key of 8 bytes, two rows, the whole 32 bytes with padding.
        let mut bytes = vec![0; 32];
        bytes[0..8].copy_from_slice(&[0, 0, 16, 0, 2, 0x20, 32, 0x20]);
        bytes[8] = 42;
        bytes[16..28].copy_from_slice(&[0, 0, 5, 0, 1, 0, 1, 0, 0, 0, 9, 0]);
        let (fields, data) = entry(&bytes, false, true);
        assert_eq!(fields.get("tids").map(Value::to_string).as_deref(), Some("(5,1) (65536,9)"));
        assert_eq!(data.to_string(), "2a00000000000000");
    }
}
