//! Index tuples (`itup.h`): in records, and on pages of all access methods that use them.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     block, upper half first, and offset number
//!      6      2  t_info    size 13 bits, three flags
//!      8         null bitmap if a flag is set; key; in a posting list tuple, the TIDs of heap tuples
//! ```

use walden_redo::page::btree::{BT_IS_POSTING, BT_OFFSET_MASK, INDEX_ALT_TID_MASK};
use walden_redo::page::index_tuple::{
    INDEX_NULL_MASK, INDEX_SIZE_MASK, INDEX_TUPLE_HEADER_BYTES, INDEX_TUPLE_HEADER_WITH_NULLS_BYTES, t_info,
};
use walden_redo::page::tid::TID_BYTES;
use walden_redo::page::{Page, Tid, max_align};

/// Length of a null bitmap and the padding after it.
pub const BITMAP_BYTES: usize = INDEX_TUPLE_HEADER_WITH_NULLS_BYTES - INDEX_TUPLE_HEADER_BYTES;

/// The parts of an index tuple.
pub struct IndexTuple<'a> {
    /// `t_tid`.
    pub tid: [u8; TID_BYTES],
    /// `t_info`.
    pub info: u16,
    /// Null bitmap with the padding after it; empty without nulls.
    pub bitmap: &'a [u8],
    pub key: &'a [u8],
    /// TIDs of a posting list; empty for other tuples.
    pub list: &'a [u8],
}

impl IndexTuple<'_> {
    /// Splits an index tuple; `None` if its size or its posting list is inconsistent.
    pub fn parse(tuple: &[u8]) -> Option<IndexTuple<'_>> {
        let (&tid, info) = (tuple.first_chunk()?, t_info(tuple)?);
        if tuple.len() < INDEX_TUPLE_HEADER_BYTES
            || usize::from(info & INDEX_SIZE_MASK) != tuple.len()
            || !tuple.len().is_multiple_of(8)
        {
            return None;
        }
        let bitmap = if info & INDEX_NULL_MASK != 0 { BITMAP_BYTES } else { 0 };
        let Tid { block, offset_number } = Tid::from_bytes(&tid);
        let posting = posting_count(info, offset_number);
        let (key, list) = if posting > 0 {
            let at = block as usize;
            let end = at.checked_add(posting * TID_BYTES)?;
            let is_right = max_align(end) == tuple.len() && at >= INDEX_TUPLE_HEADER_BYTES + bitmap;
            if !is_right || !at.is_multiple_of(8) || tuple[end..].iter().any(|&byte| byte != 0) {
                return None;
            }
            (tuple.get(INDEX_TUPLE_HEADER_BYTES + bitmap..at)?, &tuple[at..end])
        } else {
            (tuple.get(INDEX_TUPLE_HEADER_BYTES + bitmap..)?, &[][..])
        };
        Some(IndexTuple {
            tid,
            info,
            bitmap: &tuple[INDEX_TUPLE_HEADER_BYTES..INDEX_TUPLE_HEADER_BYTES + bitmap],
            key,
            list,
        })
    }
}

/// Returns the number of TIDs in a posting list, given a tuple's `t_info` and offset number; 0 without a
/// list.
pub fn posting_count(info: u16, line_pointer: u16) -> usize {
    if info & INDEX_ALT_TID_MASK != 0 && line_pointer & BT_IS_POSTING != 0 {
        (line_pointer & BT_OFFSET_MASK).into()
    } else {
        0
    }
}

/// Returns a value that identifies the layout of a key: flags, and the number of attributes that a pivot
/// tuple keeps after suffix truncation (`_bt_truncate` in `nbtutils.c`).
pub fn layout(info: u16, line_pointer: u16) -> u32 {
    let kept =
        if info & INDEX_ALT_TID_MASK != 0 && line_pointer & BT_IS_POSTING == 0 { line_pointer } else { 0 };
    u32::from(info & (INDEX_NULL_MASK | INDEX_ALT_TID_MASK)) << 16 | u32::from(kept & BT_OFFSET_MASK)
}

/// Returns whether an item is an index tuple.
pub fn is_index_tuple(item: &[u8]) -> bool {
    IndexTuple::parse(item).is_some()
}

/// Returns the tuples of a page that have a complete key without nulls, each with its TID or the first of its
/// TIDs.
pub fn whole_keys(page: &Page) -> Vec<(Tid, &[u8])> {
    let whole = |number: u16| {
        let tuple = IndexTuple::parse(page.item(number)?).filter(|tuple| tuple.bitmap.is_empty())?;
        let has_alt_tid = tuple.info & INDEX_ALT_TID_MASK != 0;
        Some((Tid::read(if has_alt_tid { tuple.list } else { &tuple.tid })?, tuple.key))
    };
    (1..=page.items()).filter_map(whole).collect()
}
