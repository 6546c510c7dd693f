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

/// Returns the offset of a line pointer on the page. Numbers start at 1; 0 is invalid.
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
    /// `LP_REDIRECT`: refers to the line pointer whose number is the offset (heap-only tuples).
    Redirect,
    /// `LP_DEAD`: its item is no longer needed; in an index it still has bytes.
    Dead,
}

/// A line pointer, as its four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinePointer(pub u32);

impl LinePointer {
    /// `ItemIdSetUnused`
    pub const UNUSED: LinePointer = LinePointer(0);

    /// The largest possible offset, and the largest possible length: 15 bits each.
    pub const MAX: u16 = 0x7FFF;

    /// Builds a line pointer from its fields. Only the lower 15 bits of offset and length are used.
    #[inline]
    pub fn new(offset: u16, state: ItemState, len: u16) -> LinePointer {
        LinePointer(u32::from(offset & Self::MAX) | (state as u32) << 15 | u32::from(len & Self::MAX) << 17)
    }

    /// Builds a redirection to another line pointer (`ItemIdSetRedirect`).
    #[inline]
    pub fn redirect(to: u16) -> LinePointer {
        LinePointer::new(to, ItemState::Redirect, 0)
    }

    /// Builds a dead line pointer without bytes (`ItemIdSetDead`).
    #[inline]
    pub fn dead() -> LinePointer {
        LinePointer::new(0, ItemState::Dead, 0)
    }

    /// Returns the offset of the item on the page; for a redirection, the number of the other line pointer.
    #[inline]
    pub fn offset(self) -> u16 {
        (self.0 & 0x7FFF) as u16
    }

    /// Returns the length of the item in bytes, without padding.
    #[inline]
    pub fn len(self) -> u16 {
        (self.0 >> 17) as u16
    }

    /// Returns whether the item has no bytes (the opposite of `ItemIdHasStorage`).
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns `lp_flags`.
    #[inline]
    pub fn state(self) -> ItemState {
        match self.0 >> 15 & 3 {
            0 => ItemState::Unused,
            1 => ItemState::Normal,
            2 => ItemState::Redirect,
            _ => ItemState::Dead,
        }
    }

    /// Returns the line pointer with another state.
    #[inline]
    pub fn with_state(self, state: ItemState) -> LinePointer {
        LinePointer(self.0 & !(3 << 15) | (state as u32) << 15)
    }

    /// Returns the line pointer with another offset.
    #[inline]
    pub(super) fn with_offset(self, offset: usize) -> LinePointer {
        LinePointer(self.0 & !0x7FFF | offset as u32 & 0x7FFF)
    }

    /// Returns the item's offset and length.
    #[inline]
    pub(super) fn place(self) -> (usize, usize) {
        (usize::from(self.offset()), usize::from(self.len()))
    }
}
