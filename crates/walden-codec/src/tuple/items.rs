//! Page items, as `PageAddItemExtended` in `bufpage.c` places them: from the special area downwards, each
//! directly before the one that was added last.

use walden_redo::page::{ItemState, LinePointer, Page, line_pointer_offset, max_align};

use crate::{Corrupt, corrupt};

/// Writes a line pointer, which must be on the page.
pub fn put_line_pointer(page: &mut Page, number: u16, pointer: LinePointer) {
    page.put_u32(line_pointer_offset(number), pointer.0);
}

/// Returns a line pointer, which must be on the page.
pub fn line_pointer(page: &Page, number: u16) -> LinePointer {
    LinePointer(page.u32_at(line_pointer_offset(number)))
}

/// Returns the bytes of a normal item; `None` for other line pointers and empty items.
pub fn item(page: &Page, number: u16) -> Option<&[u8]> {
    let pointer = line_pointer(page, number);
    let (offset, len) = (usize::from(pointer.offset()), usize::from(pointer.len()));
    (pointer.state() == ItemState::Normal && len > 0).then(|| page.0.get(offset..offset + len))?
}

/// Creates the line pointer of a normal item.
///
/// # Errors
/// Returns an error if the offset or length does not fit a line pointer.
pub fn normal(offset: usize, len: usize) -> Result<LinePointer, Corrupt> {
    const MAX: usize = LinePointer::MAX as usize;
    if offset > MAX || len > MAX {
        return Err(corrupt("cannot make a line pointer: expected an offset and length of 15 bits"));
    }
    Ok(LinePointer::new(offset as u16, ItemState::Normal, len as u16))
}

/// Returns the offset of an item of length `len` that is added after the item at `last`: below it, at a
/// multiple of 8 (`MAXALIGN`).
pub fn right_before(last: usize, len: usize) -> Option<usize> {
    last.checked_sub(max_align(len))
}
