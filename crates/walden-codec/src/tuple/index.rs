//! Index tuples (`itup.h`): in records, and on the pages of all access methods that use them.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     block, upper half first, and line pointer
//!      6      2  t_info    size 13 bits, three flags
//!      8         null bitmap if a flag says so, key; in a posting list's tuple, table rows after the key
//! ```

use walden_redo::page::Page;

use super::tid::Tid;

/// Bytes before the null bitmap, or the key (`IndexTupleData`).
pub const HEADER: usize = 8;
/// In `t_info`: the size (`INDEX_SIZE_MASK`).
pub const SIZE: u16 = 0x1FFF;
/// There is a null bitmap (`INDEX_NULL_MASK`).
pub const HAS_NULLS: u16 = 0x8000;
/// `t_tid` has another meaning (`INDEX_ALT_TID_MASK`).
pub const HAS_ALT_TID: u16 = 0x2000;
/// In such a tuple's line pointer: there is a posting list (`BT_IS_POSTING`).
const IS_POSTING: u16 = 0x2000;
/// How many TIDs it has, or else how many attributes the key has (`BT_OFFSET_MASK`).
const COUNT: u16 = 0x0FFF;
/// Null bitmap (32 attributes) and the gap after it.
pub const BITMAP: usize = 8;

/// An index tuple in its parts.
pub struct IndexTuple<'a> {
    /// `t_tid`.
    pub tid: [u8; Tid::BYTES],
    /// `t_info`.
    pub info: u16,
    /// The null bitmap with the gap after it; empty if there is none.
    pub bitmap: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The TIDs of a posting list; empty if there is none.
    pub list: &'a [u8],
}

impl IndexTuple<'_> {
    /// The parts of an index tuple, if its size and its posting list are right.
    pub fn of(tuple: &[u8]) -> Option<IndexTuple<'_>> {
        let (&tid, info) = (tuple.first_chunk()?, info_of(tuple));
        if tuple.len() < HEADER || usize::from(info & SIZE) != tuple.len() || !tuple.len().is_multiple_of(8) {
            return None;
        }
        let bitmap = if info & HAS_NULLS != 0 { BITMAP } else { 0 };
        let Tid { block, number } = Tid::from_bytes(tid);
        let posting = posting_count(info, number);
        let (key, list) = if posting > 0 {
            let at = block as usize;
            let end = at.checked_add(posting * Tid::BYTES)?;
            let is_right = end.next_multiple_of(8) == tuple.len() && at >= HEADER + bitmap;
            if !is_right || !at.is_multiple_of(8) || tuple[end..].iter().any(|&byte| byte != 0) {
                return None;
            }
            (tuple.get(HEADER + bitmap..at)?, &tuple[at..end])
        } else {
            (tuple.get(HEADER + bitmap..)?, &[][..])
        };
        Some(IndexTuple { tid, info, bitmap: &tuple[HEADER..HEADER + bitmap], key, list })
    }
}

/// `t_info`; 0 if the tuple is too short.
pub fn info_of(tuple: &[u8]) -> u16 {
    tuple.get(Tid::BYTES..HEADER).map_or(0, |info| u16::from_le_bytes([info[0], info[1]]))
}

/// TIDs in a posting list, by a tuple's `t_info` and line pointer; 0 if there is none.
pub fn posting_count(info: u16, line_pointer: u16) -> usize {
    if info & HAS_ALT_TID != 0 && line_pointer & IS_POSTING != 0 { (line_pointer & COUNT).into() } else { 0 }
}

/// What tells tuples with different keys apart: flags, and how many attributes a tuple of an inner page still has.
pub fn layout(info: u16, line_pointer: u16) -> u32 {
    let kept = if info & HAS_ALT_TID != 0 && line_pointer & IS_POSTING == 0 { line_pointer } else { 0 };
    u32::from(info & (HAS_NULLS | HAS_ALT_TID)) << 16 | u32::from(kept & COUNT)
}

/// Whether an item is an index tuple.
pub fn is_index_tuple(item: &[u8]) -> bool {
    IndexTuple::of(item).is_some()
}

/// The tuples of a page that have all their key and no null in it, each with the (first) TID of its heap tuple.
pub fn whole_keys(page: &Page) -> Vec<(Tid, &[u8])> {
    let whole = |number: u16| {
        let tuple = IndexTuple::of(page.item(number)?).filter(|tuple| tuple.bitmap.is_empty())?;
        let has_alt_tid = tuple.info & HAS_ALT_TID != 0;
        Some((Tid::of(if has_alt_tid { tuple.list } else { &tuple.tid })?, tuple.key))
    };
    (1..=page.items()).filter_map(whole).collect()
}
