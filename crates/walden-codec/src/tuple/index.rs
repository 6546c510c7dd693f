//! Index tuples (`itup.h`): in records, and on the pages of all access methods that use them.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     block, upper half first, and line pointer
//!      6      2  t_info    size 13 bits, three flags
//!      8         null bitmap if a flag says so, key; in a posting list's tuple, table rows after the key
//! ```

use walden_redo::page::Page;

use super::tid::RowPlace;

/// Bytes before the null bitmap, or the key.
pub const HEADER: usize = 8;

pub const PLACE: usize = 6;

pub const SIZE: u16 = 0x1FFF;

pub const HAS_NULLS: u16 = 0x8000;

/// `t_tid` has another meaning (`INDEX_ALT_TID_MASK`).
pub const OTHER_MEANING: u16 = 0x2000;

/// In such a tuple's line pointer: there is a posting list (`BT_IS_POSTING`).
const IS_POSTING: u16 = 0x2000;

const COUNT: u16 = 0x0FFF;

/// Null bitmap (32 attributes) and the gap after it.
pub const BITMAP: usize = 8;

/// The parts of an index tuple.
pub struct Parts<'a> {
    pub bitmap: &'a [u8],
    pub key: &'a [u8],
    pub list: &'a [u8],
}

impl Parts<'_> {
    /// The parts, if the tuple is what it says it is.
    pub fn of(tuple: &[u8]) -> Option<Parts<'_>> {
        let info = u16_at(tuple, 6);
        if tuple.len() < HEADER || usize::from(info & SIZE) != tuple.len() || !tuple.len().is_multiple_of(8) {
            return None;
        }
        let bitmap = if info & HAS_NULLS != 0 { BITMAP } else { 0 };
        let posting = posting(info, u16_at(tuple, 4));
        let (key, list) = if posting > 0 {
            let at = usize::from(u16_at(tuple, 0)) << 16 | usize::from(u16_at(tuple, 2));
            let whole = at.checked_add(posting * PLACE)?.next_multiple_of(8) == tuple.len();
            if !whole || at < HEADER + bitmap || !at.is_multiple_of(8) {
                return None;
            }
            if tuple[at + posting * PLACE..].iter().any(|&byte| byte != 0) {
                return None;
            }
            (tuple.get(HEADER + bitmap..at)?, &tuple[at..at + posting * PLACE])
        } else {
            (tuple.get(HEADER + bitmap..)?, &[][..])
        };
        Some(Parts { bitmap: &tuple[HEADER..HEADER + bitmap], key, list })
    }
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

/// Table rows in a posting list; 0 if there is none.
pub fn posting(info: u16, line_pointer: u16) -> usize {
    if info & OTHER_MEANING != 0 && line_pointer & IS_POSTING != 0 {
        (line_pointer & COUNT).into()
    } else {
        0
    }
}

/// What tells tuples with different keys apart: flags, and how many attributes a tuple of an inner page still has.
pub fn layout(info: u16, line_pointer: u16) -> u32 {
    let kept = if info & OTHER_MEANING != 0 && line_pointer & IS_POSTING == 0 { line_pointer } else { 0 };
    u32::from(info & (HAS_NULLS | OTHER_MEANING)) << 16 | u32::from(kept & COUNT)
}

/// Whether a tuple can be coded as one.
pub fn is_tuple(tuple: &[u8]) -> bool {
    Parts::of(tuple).is_some()
}

/// The tuples of a page that have all their key and no null in it, with the place of each one's first row.
pub fn whole_keys(page: &Page) -> Vec<(RowPlace, &[u8])> {
    let whole = |number: u16| {
        let tuple = page.item(number)?;
        let parts = Parts::of(tuple).filter(|parts| parts.bitmap.is_empty())?;
        let other = u16_at(tuple, 6) & OTHER_MEANING != 0;
        let place = RowPlace::of(if other { parts.list } else { tuple })?;
        Some((place, parts.key))
    };
    (1..=page.items()).filter_map(whole).collect()
}
