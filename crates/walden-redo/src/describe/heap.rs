//! Rows of tables, and sequences, which are tables of one row.
//!
//! The header's layout is `HeapTupleHeaderData` in `htup_details.h`; the names of its bits are those that pageinspect's
//! `heap_tuple_infomask_flags` prints.

use super::{At, Bits, Bytes, Description, Fields, items};
use crate::page::Page;

/// Bytes of a row's header without the bitmap of nulls (`SizeofHeapTupleHeader`).
const ROW_HEADER: usize = 23;

/// What is more than one bit comes first.
const INFOMASK: Bits = &[
    (0x0300, "HEAP_XMIN_FROZEN"),
    (0x0050, "HEAP_XMAX_SHR_LOCK"),
    (0x0001, "HEAP_HASNULL"),
    (0x0002, "HEAP_HASVARWIDTH"),
    (0x0004, "HEAP_HASEXTERNAL"),
    (0x0008, "HEAP_HASOID_OLD"),
    (0x0010, "HEAP_XMAX_KEYSHR_LOCK"),
    (0x0020, "HEAP_COMBOCID"),
    (0x0040, "HEAP_XMAX_EXCL_LOCK"),
    (0x0080, "HEAP_XMAX_LOCK_ONLY"),
    (0x0100, "HEAP_XMIN_COMMITTED"),
    (0x0200, "HEAP_XMIN_INVALID"),
    (0x0400, "HEAP_XMAX_COMMITTED"),
    (0x0800, "HEAP_XMAX_INVALID"),
    (0x1000, "HEAP_XMAX_IS_MULTI"),
    (0x2000, "HEAP_UPDATED"),
    (0x4000, "HEAP_MOVED_OFF"),
    (0x8000, "HEAP_MOVED_IN"),
];
const MOVED: u16 = 0xC000;
const HAS_NULL: u16 = 0x0001;

const INFOMASK2: Bits =
    &[(0x2000, "HEAP_KEYS_UPDATED"), (0x4000, "HEAP_HOT_UPDATED"), (0x8000, "HEAP_ONLY_TUPLE")];
const ATTRIBUTES: u16 = 0x07FF;

pub(super) fn table(page: &Page, description: &mut Description) {
    description.items = items(page, |_, bytes| row(bytes));
}

pub(super) fn sequence(page: &Page, description: &mut Description) {
    description.items = items(page, |_, bytes| {
        let (mut fields, data) = row(bytes);
        let number = |at| data.0.u64_in(at).map(u64::cast_signed);
        fields.signed("last_value", number(0));
        fields.signed("log_cnt", number(8));
        if let Some(&is_called) = data.0.get(16) {
            fields.bool("is_called", is_called != 0);
        }
        (fields, data)
    });
    description.special.text("magic", format_args!("{:#x}", page.u32_at(page.special())));
}

fn row(bytes: &[u8]) -> (Fields, Bytes) {
    let mut fields = Fields::default();
    if bytes.len() < ROW_HEADER {
        return (fields, Bytes(bytes.to_vec()));
    }
    let (infomask2, infomask) = (bytes.u16_in(18).unwrap_or(0), bytes.u16_in(20).unwrap_or(0));
    fields.maybe("t_xmin", bytes.u32_in(0));
    fields.maybe("t_xmax", bytes.u32_in(4));
    let third = if infomask & MOVED != 0 { "t_xvac" } else { "t_cid" };
    fields.maybe(third, bytes.u32_in(8));
    fields.maybe_text("t_ctid", bytes.tid_in(12));
    fields.number("natts", infomask2 & ATTRIBUTES);
    fields.bits("t_infomask2", infomask2 & !ATTRIBUTES, INFOMASK2);
    fields.bits("t_infomask", infomask, INFOMASK);
    let data_at = usize::from(bytes[22]);
    fields.number("t_hoff", bytes[22]);
    if infomask & HAS_NULL != 0 {
        let bitmap = bytes.get(ROW_HEADER..data_at.min(bytes.len())).unwrap_or(&[]);
        let bits = bitmap.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
        let text: String =
            bits.take((infomask2 & ATTRIBUTES).into()).map(|bit| if bit == 1 { '1' } else { '0' }).collect();
        fields.text("t_bits", text);
    }
    let data = bytes.get(data_at.max(ROW_HEADER)..).unwrap_or(&[]);
    (fields, Bytes(data.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::super::Value;
    use super::*;

    #[test]
    fn a_row_is_read_as_pageinspect_does() {
        let mut bytes = vec![0; 32];
        bytes[0..4].copy_from_slice(&700_u32.to_le_bytes());
        bytes[12..18].copy_from_slice(&[0, 0, 3, 0, 7, 0]);
        bytes[18..20].copy_from_slice(&(0x8000_u16 | 9).to_le_bytes());
        bytes[20..22].copy_from_slice(&0x0B03_u16.to_le_bytes());
        bytes[22] = 26;
        bytes[23..25].copy_from_slice(&[0b1111_1101, 1]);
        let (fields, data) = row(&bytes);
        let text = |name| fields.get(name).map(Value::to_string).unwrap();
        assert_eq!(text("t_xmin"), "700");
        assert_eq!(text("t_ctid"), "(3,7)");
        assert_eq!(text("natts"), "9");
        assert_eq!(text("t_infomask2"), "HEAP_ONLY_TUPLE");
        assert_eq!(text("t_infomask"), "HEAP_XMIN_FROZEN HEAP_HASNULL HEAP_HASVARWIDTH HEAP_XMAX_INVALID");
        assert_eq!(text("t_bits"), "101111111");
        assert_eq!(data.0.len(), 6);
    }
}
