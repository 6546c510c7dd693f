//! Line pointers (`ItemIdData` in `itemid.h`).
//!
//! ```text
//! bits
//!  0 to 14   lp_off    where the item starts on the page; of a redirection, the other line pointer's number
//! 15 to 16   lp_flags
//! 17 to 31   lp_len    bytes of the item
//! ```

use super::PAGE_HEADER_BYTES;

/// Bytes of a line pointer.
pub const LINE_POINTER_BYTES: usize = 4;

/// Where a page has the line pointer of a number. The first is 1; there is none of the number 0.
#[inline]
pub const fn line_pointer_offset(number: u16) -> usize {
    PAGE_HEADER_BYTES + (number as usize - 1) * LINE_POINTER_BYTES
}

/// `lp_flags`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemState {
    /// `LP_UNUSED`: free for another item.
    Unused,
    /// `LP_NORMAL`: has an item.
    Normal,
    /// `LP_REDIRECT`: leads to the line pointer whose number is the offset (heap-only tuples).
    Redirect,
    /// `LP_DEAD`: its item is not needed; an index's still has its bytes.
    Dead,
}

/// A line pointer, as its four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinePointer(pub u32);

impl LinePointer {
    /// `ItemIdSetUnused`
    pub const UNUSED: LinePointer = LinePointer(0);

    /// The largest offset, and the largest length, that it can have: 15 bits each.
    pub const MAX: u16 = 0x7FFF;

    /// Makes one of its fields, of whose offset and length the lower 15 bits count.
    #[inline]
    pub fn new(offset: u16, state: ItemState, len: u16) -> LinePointer {
        LinePointer(u32::from(offset & Self::MAX) | (state as u32) << 15 | u32::from(len & Self::MAX) << 17)
    }

    /// A redirection to another line pointer (`ItemIdSetRedirect`).
    #[inline]
    pub fn redirect(to: u16) -> LinePointer {
        LinePointer::new(to, ItemState::Redirect, 0)
    }

    /// A dead one without bytes (`ItemIdSetDead`).
    #[inline]
    pub fn dead() -> LinePointer {
        LinePointer::new(0, ItemState::Dead, 0)
    }

    /// Where the item starts on the page; of a redirection, the other line pointer's number.
    #[inline]
    pub fn offset(self) -> u16 {
        (self.0 & 0x7FFF) as u16
    }

    /// Bytes of the item, padding not included.
    #[inline]
    pub fn len(self) -> u16 {
        (self.0 >> 17) as u16
    }

    /// Whether the item has no bytes (not `ItemIdHasStorage`).
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// `lp_flags`
    #[inline]
    pub fn state(self) -> ItemState {
        match self.0 >> 15 & 3 {
            0 => ItemState::Unused,
            1 => ItemState::Normal,
            2 => ItemState::Redirect,
            _ => ItemState::Dead,
        }
    }

    /// The same item in another state.
    #[inline]
    pub fn with_state(self, state: ItemState) -> LinePointer {
        LinePointer(self.0 & !(3 << 15) | (state as u32) << 15)
    }

    /// The same item, moved.
    #[inline]
    pub(super) fn with_offset(self, offset: usize) -> LinePointer {
        LinePointer(self.0 & !0x7FFF | offset as u32 & 0x7FFF)
    }

    /// Where the item starts, and its bytes.
    #[inline]
    pub(super) fn place(self) -> (usize, usize) {
        (usize::from(self.offset()), usize::from(self.len()))
    }
}
