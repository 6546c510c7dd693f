//! B-trees (`nbtree.h`).

use super::super::{At, Bits, Bytes, Description, Fields, items};
use super::{Entry, no_entry};
use crate::page::btree::flags::{
    BTP_DELETED, BTP_HALF_DEAD, BTP_HAS_FULLXID, BTP_HAS_GARBAGE, BTP_INCOMPLETE_SPLIT, BTP_LEAF, BTP_META,
    BTP_ROOT, BTP_SPLIT_END,
};
use crate::page::btree::{
    BT_IS_POSTING, BT_OFFSET_MASK, BT_PIVOT_HEAP_TID_ATTR, BTPageOpaqueData, P_HIKEY, P_NONE, meta,
};
use crate::page::tid::{TID_BYTES, Tid};
use crate::page::{Page, SpecialArea};

const FLAGS: Bits = &[
    (BTP_LEAF, "BTP_LEAF"),
    (BTP_ROOT, "BTP_ROOT"),
    (BTP_DELETED, "BTP_DELETED"),
    (BTP_META, "BTP_META"),
    (BTP_HALF_DEAD, "BTP_HALF_DEAD"),
    (BTP_SPLIT_END, "BTP_SPLIT_END"),
    (BTP_HAS_GARBAGE, "BTP_HAS_GARBAGE"),
    (BTP_INCOMPLETE_SPLIT, "BTP_INCOMPLETE_SPLIT"),
    (BTP_HAS_FULLXID, "BTP_HAS_FULLXID"),
];

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let BTPageOpaqueData { previous, next, level, flags, cycle_id } = BTPageOpaqueData::read(page);
    let fields = &mut description.special;
    for (name, sibling) in [("btpo_prev", previous), ("btpo_next", next)] {
        match sibling {
            P_NONE => fields.text(name, "none"),
            block => fields.number(name, block),
        }
    }
    fields.number("btpo_level", level);
    fields.bits("btpo_flags", flags, FLAGS);
    fields.number("btpo_cycleid", cycle_id);
    let used_for = match flags {
        _ if flags & BTP_META != 0 => "metapage",
        _ if flags & BTP_DELETED != 0 => "deleted page",
        _ if flags & BTP_LEAF != 0 => "leaf",
        _ => "internal page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    if flags & BTP_META != 0 {
        return metapage(page.contents(), &mut description.content);
    }
    if flags & BTP_DELETED != 0 {
        if flags & BTP_HAS_FULLXID != 0 {
            description.content.maybe("safexid", page.contents().u64_in(0));
        }
        return;
    }
    let is_leaf = flags & BTP_LEAF != 0;
    description.items =
        items(page, |number, bytes| entry(bytes, number == P_HIKEY && next != P_NONE, is_leaf));
}

fn metapage(content: &[u8], fields: &mut Fields) {
    fields.maybe_text("btm_magic", content.u32_in(meta::MAGIC).map(|magic| format!("{magic:#x}")));
    let numbers = [
        ("btm_version", meta::VERSION),
        ("btm_root", meta::ROOT),
        ("btm_level", meta::LEVEL),
        ("btm_fastroot", meta::FAST_ROOT),
        ("btm_fastlevel", meta::FAST_LEVEL),
        ("btm_last_cleanup_num_delpages", meta::LAST_CLEANUP_DELETED_PAGES),
    ];
    for (name, at) in numbers {
        fields.maybe(name, content.u32_in(at));
    }
    fields.float(
        "btm_last_cleanup_num_heap_tuples",
        content.u64_in(meta::LAST_CLEANUP_HEAP_TUPLES).map(f64::from_bits),
    );
    if let Some(&all_equal) = content.get(meta::ALL_EQUAL_IMAGE) {
        fields.bool("btm_allequalimage", all_equal != 0);
    }
}

fn entry(bytes: &[u8], is_high_key: bool, is_leaf: bool) -> (Fields, Bytes) {
    let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
    let mut fields = entry.fields();
    let mut end = entry.size();
    if is_high_key {
        fields.bool("high_key", true);
    }
    if entry.has_reserved_bit() && entry.tid.offset_number & BT_IS_POSTING != 0 {
        let (count, at) = (usize::from(entry.tid.offset_number & BT_OFFSET_MASK), entry.tid.block as usize);
        let list = bytes.get(at..end).unwrap_or(&[]);
        fields.list("tids", list.chunks_exact(TID_BYTES).take(count).filter_map(Tid::read));
        end = end.min(at);
    } else if entry.has_reserved_bit() {
        fields.number("natts", entry.tid.offset_number & BT_OFFSET_MASK);
        if entry.tid.offset_number & BT_PIVOT_HEAP_TID_ATTR != 0 {
            end = end.saturating_sub(TID_BYTES);
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
        // A key of 8 bytes and two TIDs, 32 bytes with padding.
        let mut bytes = vec![0; 32];
        bytes[0..8].copy_from_slice(&[0, 0, 16, 0, 2, 0x20, 32, 0x20]);
        bytes[8] = 42;
        bytes[16..28].copy_from_slice(&[0, 0, 5, 0, 1, 0, 1, 0, 0, 0, 9, 0]);
        let (fields, data) = entry(&bytes, false, true);
        assert_eq!(fields.get("tids").map(Value::to_string).as_deref(), Some("(5,1) (65536,9)"));
        assert_eq!(data.to_string(), "2a00000000000000");
    }
}
