//! Describes heap tuples of tables and of sequences.
//!
//! The bits of the header have the names that pageinspect's `heap_tuple_infomask_flags` prints.

use super::{At, Bits, Bytes, Description, Fields, items};
use crate::page::heap_tuple::{HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader, infomask, infomask2};
use crate::page::sequence::{SequenceMagic, values};
use crate::page::{Page, SpecialArea};

/// Names for combinations of bits precede the names of single bits.
const INFOMASK: Bits = &[
    (infomask::HEAP_XMIN_FROZEN, "HEAP_XMIN_FROZEN"),
    (infomask::HEAP_XMAX_SHR_LOCK, "HEAP_XMAX_SHR_LOCK"),
    (infomask::HEAP_HASNULL, "HEAP_HASNULL"),
    (infomask::HEAP_HASVARWIDTH, "HEAP_HASVARWIDTH"),
    (infomask::HEAP_HASEXTERNAL, "HEAP_HASEXTERNAL"),
    (infomask::HEAP_HASOID_OLD, "HEAP_HASOID_OLD"),
    (infomask::HEAP_XMAX_KEYSHR_LOCK, "HEAP_XMAX_KEYSHR_LOCK"),
    (infomask::HEAP_COMBOCID, "HEAP_COMBOCID"),
    (infomask::HEAP_XMAX_EXCL_LOCK, "HEAP_XMAX_EXCL_LOCK"),
    (infomask::HEAP_XMAX_LOCK_ONLY, "HEAP_XMAX_LOCK_ONLY"),
    (infomask::HEAP_XMIN_COMMITTED, "HEAP_XMIN_COMMITTED"),
    (infomask::HEAP_XMIN_INVALID, "HEAP_XMIN_INVALID"),
    (infomask::HEAP_XMAX_COMMITTED, "HEAP_XMAX_COMMITTED"),
    (infomask::HEAP_XMAX_INVALID, "HEAP_XMAX_INVALID"),
    (infomask::HEAP_XMAX_IS_MULTI, "HEAP_XMAX_IS_MULTI"),
    (infomask::HEAP_UPDATED, "HEAP_UPDATED"),
    (infomask::HEAP_MOVED_OFF, "HEAP_MOVED_OFF"),
    (infomask::HEAP_MOVED_IN, "HEAP_MOVED_IN"),
];

const INFOMASK2: Bits = &[
    (infomask2::HEAP_KEYS_UPDATED, "HEAP_KEYS_UPDATED"),
    (infomask2::HEAP_HOT_UPDATED, "HEAP_HOT_UPDATED"),
    (infomask2::HEAP_ONLY_TUPLE, "HEAP_ONLY_TUPLE"),
];

pub(super) fn table(page: &Page, description: &mut Description) {
    description.items = items(page, |_, bytes| tuple(bytes));
}

pub(super) fn sequence(page: &Page, description: &mut Description) {
    description.items = items(page, |_, bytes| {
        let (mut fields, data) = tuple(bytes);
        let number = |at| data.0.u64_in(at).map(u64::cast_signed);
        fields.signed("last_value", number(values::LAST_VALUE));
        fields.signed("log_cnt", number(values::LOG_CNT));
        if let Some(&is_called) = data.0.get(values::IS_CALLED) {
            fields.bool("is_called", is_called != 0);
        }
        (fields, data)
    });
    description.special.text("magic", format_args!("{:#x}", SequenceMagic::read(page).0));
}

fn tuple(bytes: &[u8]) -> (Fields, Bytes) {
    let mut fields = Fields::default();
    let Some(header) = HeapTupleHeader::parse(bytes) else { return (fields, Bytes(bytes.to_vec())) };
    fields.number("t_xmin", header.xmin());
    fields.number("t_xmax", header.xmax());
    let third = if header.infomask() & infomask::HEAP_MOVED != 0 { "t_xvac" } else { "t_cid" };
    fields.number(third, header.cid());
    fields.text("t_ctid", header.ctid());
    fields.number("natts", header.natts());
    fields.bits("t_infomask2", header.infomask2() & !infomask2::HEAP_NATTS_MASK, INFOMASK2);
    fields.bits("t_infomask", header.infomask(), INFOMASK);
    let data_at = usize::from(header.hoff());
    fields.number("t_hoff", header.hoff());
    if header.has_nulls() {
        let bitmap = bytes.get(HEAP_TUPLE_HEADER_BYTES..data_at.min(bytes.len())).unwrap_or(&[]);
        let bits = bitmap.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
        let text: String =
            bits.take(header.natts().into()).map(|bit| if bit == 1 { '1' } else { '0' }).collect();
        fields.text("t_bits", text);
    }
    let data = bytes.get(data_at.max(HEAP_TUPLE_HEADER_BYTES)..).unwrap_or(&[]);
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
        let (fields, data) = tuple(&bytes);
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
