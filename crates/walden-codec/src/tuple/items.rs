//! Line pointers and the items that they point to.

use walden_redo::page::{LinePointer, PAGE_HEADER, Page};

use crate::{Corrupt, corrupt};

/// Where a line pointer is, by its number, from 1 on.
fn pointer_at(number: u16) -> usize {
    PAGE_HEADER + 4 * (usize::from(number) - 1)
}

/// Writes a line pointer, which must be on the page.
pub fn put_pointer(page: &mut Page, number: u16, raw: u32) {
    page.put_u32(pointer_at(number), raw);
}

/// The bytes of a line pointer, as a number.
pub fn pointer(page: &Page, number: u16) -> u32 {
    u32_at(&page.0, pointer_at(number))
}

/// The state of an unused line pointer.
pub const UNUSED: u32 = 0;
/// The state of a line pointer to an item.
pub const NORMAL: u32 = 1;
/// The state of a line pointer to another one.
pub const REDIRECT: u32 = 2;
/// The state of a dead line pointer.
pub const DEAD: u32 = 3;

/// The bytes of a normal item.
pub fn item(page: &Page, number: u16) -> Option<&[u8]> {
    let raw = pointer(page, number);
    let (offset, state, len) = split(raw);
    (state == NORMAL && len > 0).then(|| page.0.get(offset..offset + len))?
}

/// A line pointer's offset, state and length.
pub fn split(raw: u32) -> (usize, u32, usize) {
    let pointer = LinePointer(raw);
    (pointer.offset().into(), (raw >> 15) & 3, pointer.len().into())
}

/// The way back.
pub fn join(offset: usize, state: u32, len: usize) -> Result<u32, Corrupt> {
    if offset > 0x7FFF || len > 0x7FFF {
        return Err(corrupt("an item can't be there"));
    }
    Ok(offset as u32 | state << 15 | (len as u32) << 17)
}

/// What an item of a length takes, with the gap after it.
pub fn with_gap(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Where an item of a length begins that ends where the last one begins, but for the gap between them.
pub fn right_before(last: usize, len: usize) -> Option<usize> {
    last.checked_sub(with_gap(len))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4);
    four.map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}
