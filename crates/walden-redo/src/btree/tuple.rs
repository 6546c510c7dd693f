//! Tuples of a B-tree: what their headers say, posting lists, and the changes that are made to those.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     the table row; of an inner tuple, the child; of a posting list, where it starts and how long it is
//!      6      2  t_info    size 13 bits, whether `t_tid` is not a table row, two more flags
//!      8         the key; in a posting list's tuple, from `t_tid`'s block number on, the table rows
//! ```
//!
//! `nbtree.h` has the layout, `nbtdedup.c` makes and changes posting lists.

use crate::page::{Misfit, PAGE_BYTES, aligned};

/// A table row's place.
pub(super) type TableRow = [u8; TABLE_ROW];

/// Bytes of a tuple's header.
pub(super) const TUPLE_HEADER: usize = 8;
/// Bytes of a table row's place (`ItemPointerData`).
pub(super) const TABLE_ROW: usize = 6;

const SIZE_MASK: u16 = 0x1FFF;
/// `t_tid` does not point to a table row (`INDEX_ALT_TID_MASK`).
const OTHER_MEANING: u16 = 0x2000;
/// In the row number of such a `t_tid`: the tuple has a posting list (`BT_IS_POSTING`).
const IS_POSTING: u16 = 0x2000;
/// The rest of that number: how long the list is (`BT_OFFSET_MASK`).
const COUNT_MASK: u16 = 0x0FFF;

/// A tuple's size as its header has it, if it has that many bytes.
pub(super) fn size(tuple: &[u8]) -> Option<usize> {
    let size = usize::from(u16_at(tuple, 6)? & SIZE_MASK);
    (size >= TUPLE_HEADER && size <= tuple.len()).then_some(size)
}

/// Splits the first tuple with its padding off.
pub(super) fn split_first(tuples: &[u8]) -> Result<(&[u8], &[u8]), Misfit> {
    size(tuples)
        .and_then(|size| tuples.split_at_checked(aligned(size)))
        .ok_or(Misfit("a tuple's size can't be right"))
}

/// The table rows of a leaf's tuple, one after the other; nothing if the tuple has another purpose.
pub(super) fn table_rows(tuple: &[u8]) -> Option<&[u8]> {
    size(tuple)?;
    if u16_at(tuple, 6)? & OTHER_MEANING == 0 {
        return tuple.get(..TABLE_ROW);
    }
    posting_list(tuple).and_then(|range| tuple.get(range))
}

/// Where in a tuple its posting list is, if it has one.
pub(super) fn posting_list(tuple: &[u8]) -> Option<std::ops::Range<usize>> {
    let count = u16_at(tuple, 4)?;
    if u16_at(tuple, 6)? & OTHER_MEANING == 0 || count & IS_POSTING == 0 {
        return None;
    }
    // A block number's upper half comes first.
    let start = usize::from(u16_at(tuple, 0)?) << 16 | usize::from(u16_at(tuple, 2)?);
    let end = start + usize::from(count & COUNT_MASK) * TABLE_ROW;
    (start >= TUPLE_HEADER && end <= tuple.len()).then_some(start..end)
}

/// Puts a table row into a posting list at a place, and takes the last one out (`_bt_swap_posting`).
pub(super) fn swap_posting(tuple: &mut [u8], row: TableRow, at: u16) -> Result<TableRow, Misfit> {
    let misfit = Misfit("the posting list can't be split there");
    let list = posting_list(tuple).and_then(|range| tuple.get_mut(range)).ok_or(misfit)?;
    let start = usize::from(at) * TABLE_ROW;
    let keep = list.len().checked_sub(TABLE_ROW).filter(|&keep| start > 0 && start <= keep).ok_or(misfit)?;
    let last = first_row(&list[keep..]).ok_or(misfit)?;
    list.copy_within(start..keep, start + TABLE_ROW);
    list[start..start + TABLE_ROW].copy_from_slice(&row);
    Ok(last)
}

/// Undoes [`swap_posting`]: the place, and the row that was put there.
pub(super) fn unswap_posting(before: &[u8], after: &[u8]) -> Option<(u16, TableRow)> {
    let (before, after) = (table_rows(before)?, table_rows(after)?);
    let at = rows(before).zip(rows(after)).position(|(old, new)| old != new)?;
    let row = rows(after).nth(at).and_then(first_row)?;
    Some((u16::try_from(at).ok()?, row))
}

/// The first of some table rows.
pub(super) fn first_row(rows: &[u8]) -> Option<TableRow> {
    rows.first_chunk().copied()
}

/// Table rows one by one.
pub(super) fn rows(rows: &[u8]) -> impl Iterator<Item = &[u8]> {
    rows.chunks_exact(TABLE_ROW)
}

/// Points a tuple to a table row, whatever it pointed to.
pub(super) fn point_to(tuple: &mut [u8], row: TableRow) {
    if let Some(place) = tuple.first_chunk_mut() {
        *place = row;
    }
}

/// The high key of a half-dead leaf, which points to the topmost page to be deleted with it (`BTreeTupleSetTopParent`).
pub(super) fn top_parent(block: u32) -> [u8; TUPLE_HEADER] {
    let mut tuple = [0; TUPLE_HEADER];
    tuple[..2].copy_from_slice(&((block >> 16) as u16).to_le_bytes());
    tuple[2..4].copy_from_slice(&(block as u16).to_le_bytes());
    tuple[6..].copy_from_slice(&(TUPLE_HEADER as u16 | OTHER_MEANING).to_le_bytes());
    tuple
}

/// Makes a tuple of another one's key and of table rows (`_bt_form_posting`, `_bt_update_posting`).
pub(super) struct Former {
    bytes: [u8; PAGE_BYTES],
    key: usize,
    end: usize,
}

impl Former {
    pub fn new() -> Former {
        Former { bytes: [0; PAGE_BYTES], key: 0, end: 0 }
    }

    /// Starts with the key of a leaf's tuple and none of its rows.
    pub fn start(&mut self, base: &[u8]) -> Result<(), Misfit> {
        let key = match posting_list(base) {
            Some(list) => Some(list.start),
            None => size(base),
        };
        let key = key.and_then(|key| base.get(..key)).filter(|key| key.len() <= PAGE_BYTES);
        let key = key.ok_or(Misfit("a tuple's size can't be right"))?;
        self.bytes[..key.len()].copy_from_slice(key);
        (self.key, self.end) = (key.len(), key.len());
        Ok(())
    }

    /// Adds table rows.
    pub fn push(&mut self, rows: &[u8]) -> Result<(), Misfit> {
        let end = self.end + rows.len();
        let place = self.bytes.get_mut(self.end..end).ok_or(Misfit("the posting list is too long"))?;
        place.copy_from_slice(rows);
        self.end = end;
        Ok(())
    }

    /// The tuple: with a single row it has no list.
    pub fn finish(&mut self) -> Result<&[u8], Misfit> {
        let count = (self.end - self.key) / TABLE_ROW;
        let info = u16::from_le_bytes([self.bytes[6], self.bytes[7]]) & !SIZE_MASK;
        let (size, info) = match count {
            0 => return Err(Misfit("the tuple has no row left")),
            1 => {
                self.bytes.copy_within(self.key..self.end, 0);
                (self.key, info & !OTHER_MEANING)
            }
            _ => {
                let place = (self.key as u32).to_be_bytes();
                let number = (count as u16 | IS_POSTING).to_le_bytes();
                let row = [place[1], place[0], place[3], place[2], number[0], number[1]];
                self.bytes[..TABLE_ROW].copy_from_slice(&row);
                (aligned(self.end), info | OTHER_MEANING)
            }
        };
        if size > SIZE_MASK.into() || count > COUNT_MASK.into() {
            return Err(Misfit("the posting list is too long"));
        }
        if count > 1 {
            self.bytes[self.end..size].fill(0);
        }
        self.bytes[6..8].copy_from_slice(&(info | size as u16).to_le_bytes());
        Ok(&self.bytes[..size])
    }
}

fn u16_at(tuple: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*tuple.get(at)?, *tuple.get(at + 1)?]))
}
