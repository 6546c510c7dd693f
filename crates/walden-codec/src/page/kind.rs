//! Kinds of pages, which select the predictor for their items.

use walden_redo::page::{LINE_POINTER_BYTES, PAGE_BYTES, PAGE_HEADER_BYTES, Page};

use crate::tuple::gin::{is_entry_leaf, is_posting_leaf};
use crate::tuple::heap::is_heap_tuple;
use crate::tuple::index::is_index_tuple;
use crate::tuple::items::item;
use crate::{Corrupt, corrupt};

/// Kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    /// Coded as bytes, without a predictor.
    Bytes = 0,
    /// Heap tuples.
    Heap = 1,
    /// Index tuples.
    Index = 2,
    /// Items that no other predictor codes.
    Items = 3,
    /// TIDs of a posting tree leaf of a GIN index.
    PostingTids = 4,
    /// Entries of a GIN index.
    GinEntries = 5,
}

impl PageKind {
    /// Returns the best kind for a page.
    pub fn detect(page: &Page, fork: u8) -> PageKind {
        match fork {
            0 if is_posting_leaf(page) => PageKind::PostingTids,
            0 if is_entry_leaf(page) => PageKind::GinEntries,
            _ => PageKind::detect_items(page, fork),
        }
    }

    /// Returns the best kind for a page that is coded by its line pointers.
    pub fn detect_items(page: &Page, fork: u8) -> PageKind {
        let (lower, special) = (page.lower(), page.special());
        let sound = fork == 0
            && (PAGE_HEADER_BYTES..=PAGE_BYTES).contains(&lower)
            && (lower..=PAGE_BYTES).contains(&special)
            && lower.is_multiple_of(LINE_POINTER_BYTES);
        if !sound || lower == PAGE_HEADER_BYTES {
            return PageKind::Bytes;
        }
        let (mut heap_tuples, mut index_tuples, mut others) = (0, 0, 0);
        // A sample of the items decides. The line pointer of an item of another kind is coded as
        // `PointerForm::Any`.
        let each = page.items() / MAX_SAMPLES + 1;
        for number in (1..=page.items()).step_by(each.into()) {
            if let Some(item) = item(page, number) {
                heap_tuples += usize::from(special == PAGE_BYTES && is_heap_tuple(item));
                index_tuples += usize::from(special < PAGE_BYTES && is_index_tuple(item));
                others += 1;
            }
        }
        match others {
            0 => PageKind::Bytes,
            _ if heap_tuples * 8 > others * 7 => PageKind::Heap,
            _ if index_tuples * 8 > others * 7 => PageKind::Index,
            _ => PageKind::Items,
        }
    }

    /// Returns the kind with a number in the file.
    pub fn from_code(code: u64) -> Result<PageKind, Corrupt> {
        Ok(match code {
            0 => PageKind::Bytes,
            1 => PageKind::Heap,
            2 => PageKind::Index,
            3 => PageKind::Items,
            4 => PageKind::PostingTids,
            5 => PageKind::GinEntries,
            _ => return Err(corrupt("cannot decode a page: expected kind 0 to 5")),
        })
    }
}

/// Approximate number of sampled items per page.
pub const MAX_SAMPLES: u16 = 32;
