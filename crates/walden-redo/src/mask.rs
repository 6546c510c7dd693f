//! Masks the parts of a page that PostgreSQL changes without logging them.
//!
//! The masks of `wal_consistency_checking` (`bufmask.c`); each access method adds its own masks.

use crate::page::{ItemState, PAGE_BYTES, PAGE_HEADER_BYTES, Page, flags, header};

/// Masks the LSN and the checksum.
pub fn lsn_and_checksum(page: &mut Page) {
    page.0[header::LSN..header::FLAGS].fill(0);
}

/// Masks the hints in the header.
pub fn hint_bits(page: &mut Page) {
    page.set_prune_xid(0);
    page.change_flags(0, flags::PD_PAGE_FULL | flags::PD_HAS_FREE_LINES | flags::PD_ALL_VISIBLE);
}

/// Masks the bytes between line pointers and items.
pub fn unused_space(page: &mut Page) {
    page.zero_hole();
}

/// Masks the states of line pointers.
pub fn line_pointer_states(page: &mut Page) {
    for number in 1..=page.items() {
        if let Some(pointer) = page.line_pointer(number)
            && pointer.state() != ItemState::Unused
        {
            let _ = page.set_line_pointer(number, pointer.with_state(ItemState::Unused));
        }
    }
}

/// Masks everything but the header.
pub fn content(page: &mut Page) {
    page.0[PAGE_HEADER_BYTES..PAGE_BYTES].fill(0);
    page.set_lower(0);
    page.set_upper(0);
}
