//! Describes pages in PostgreSQL's own terms: header, line pointers, items, and the data of the access
//! method.
//!
//! A [`Description`] consists of names and values, so that it can be printed, written as JSON, and compared
//! with another description ([`diff`]). Pages may have any content: bytes that cannot be interpreted are
//! shown as bytes.

pub mod diff;
pub mod follow;
mod heap;
mod index;
mod maps;
mod value;

use serde::Serialize;
use walden_format::record::Fork;
use walden_format::rmgr::Kind;

pub use value::{Bytes, Field, Fields, Value};

use crate::family::Family;
use crate::page::{ItemState, PAGE_BYTES, PAGE_CONTENTS, Page, Tid, flags};

/// The content of a page in readable form.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Description {
    /// The kind of page: [`Family::name`], and how the access method uses the page.
    pub kind: String,
    /// The page's header.
    pub header: Fields,
    /// Fields of the special area (`PageGetSpecialPointer`); empty if the access method has none.
    pub special: Fields,
    /// Content that does not belong to an item.
    pub content: Fields,
    /// The line pointers and their items, by number.
    pub items: Vec<Item>,
}

/// A line pointer and its item.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Item {
    /// The line pointer's number; the first is 1.
    pub number: u16,
    /// `unused`, `normal`, `redirect` or `dead`.
    pub state: &'static str,
    /// Offset of the item on the page; for a redirection, the number of the other line pointer.
    pub offset: u16,
    /// Bytes of the item.
    pub length: u16,
    /// Fields of the item's header.
    pub fields: Fields,
    /// The item's bytes after its header.
    pub data: Bytes,
}

/// Names for the bits of a field.
pub(crate) type Bits = &'static [(u16, &'static str)];

const PAGE_FLAGS: Bits = &[
    (flags::PD_HAS_FREE_LINES, "PD_HAS_FREE_LINES"),
    (flags::PD_PAGE_FULL, "PD_PAGE_FULL"),
    (flags::PD_ALL_VISIBLE, "PD_ALL_VISIBLE"),
];

/// Describes the page of block `block` of its fork. `last` is the kind of the last record that changed it, if
/// known: pages that extensions change by Generic records are shown as bytes.
pub fn describe(page: &Page, fork: Fork, block: u32, last: Option<Kind>) -> Description {
    let mut description = Description { header: header(page), ..Description::default() };
    let family = Family::after(page, fork, last);
    description.kind = family.name().into();
    match family {
        Family::New => {}
        Family::Heap => heap::table(page, &mut description),
        Family::Sequence => heap::sequence(page, &mut description),
        Family::VisibilityMap => maps::visibility(page, block, &mut description),
        Family::FreeSpaceMap => maps::free_space(page, block, &mut description),
        Family::Btree => index::btree::describe(page, &mut description),
        Family::Hash => index::hash::describe(page, &mut description),
        Family::Gin => index::gin::describe(page, &mut description),
        Family::Gist => index::gist::describe(page, &mut description),
        Family::SpGist => index::spgist::describe(page, &mut description),
        Family::Brin => index::brin::describe(page, &mut description),
        Family::Other => raw(page, &mut description),
    }
    description
}

fn header(page: &Page) -> Fields {
    let mut fields = Fields::default();
    fields.text("pd_lsn", page.lsn());
    fields.text("pd_checksum", format_args!("{:#06x}", page.checksum()));
    fields.bits("pd_flags", page.flags(), PAGE_FLAGS);
    fields.number("pd_lower", page.lower() as u64);
    fields.number("pd_upper", page.upper() as u64);
    fields.number("pd_special", page.special() as u64);
    fields.number("page_size", page.page_size());
    fields.number("layout_version", page.layout_version());
    fields.number("pd_prune_xid", page.prune_xid());
    fields
}

/// Describes a page of unknown kind: all bytes after the header, without trailing zeros.
fn raw(page: &Page, description: &mut Description) {
    let used = page.0.iter().rposition(|&byte| byte != 0).map_or(PAGE_CONTENTS, |last| last + 1);
    description.content.bytes("bytes", page.0.get(PAGE_CONTENTS..used).unwrap_or(&[]));
}

/// Describes the line pointers; `fill` reads a normal item's bytes.
///
/// Line pointers of a damaged page may all refer to the same bytes. Items are read until they exceed a page's
/// size in total, which valid pages never do.
fn items(page: &Page, mut fill: impl FnMut(u16, &[u8]) -> (Fields, Bytes)) -> Vec<Item> {
    let mut left = PAGE_BYTES;
    let describe = |number| {
        let pointer = page.line_pointer(number)?;
        let bytes = match pointer.state() {
            ItemState::Normal | ItemState::Dead if !pointer.is_empty() => page.item(number),
            _ => None,
        };
        let bytes = bytes.filter(|bytes| bytes.len() <= left);
        left -= bytes.map_or(0, <[u8]>::len);
        let (fields, data) = bytes.map(|bytes| fill(number, bytes)).unwrap_or_default();
        let state = match pointer.state() {
            ItemState::Unused => "unused",
            ItemState::Normal => "normal",
            ItemState::Redirect => "redirect",
            ItemState::Dead => "dead",
        };
        Some(Item { number, state, offset: pointer.offset(), length: pointer.len(), fields, data })
    };
    (1..=page.items()).filter_map(describe).collect()
}

/// Reads numbers at offsets that may be out of range.
pub(crate) trait At {
    fn u16_in(&self, at: usize) -> Option<u16>;
    fn u32_in(&self, at: usize) -> Option<u32>;
    fn u64_in(&self, at: usize) -> Option<u64>;
    fn tid_in(&self, at: usize) -> Option<Tid>;
}

impl At for [u8] {
    fn u16_in(&self, at: usize) -> Option<u16> {
        self.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
    }

    fn u32_in(&self, at: usize) -> Option<u32> {
        self.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64_in(&self, at: usize) -> Option<u64> {
        self.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn tid_in(&self, at: usize) -> Option<Tid> {
        Tid::read(self.get(at..)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page::header;

    proptest! {
        /// Describes pages with any content, marked as each access method's in turn, so that each describer
        /// reads damaged pages.
        #[test]
        fn no_page_is_too_strange(
            seed in proptest::collection::vec(any::<u8>(), 512),
            lower in 0_u16..9000,
            special in prop_oneof![Just(8192_u16), Just(8184), Just(8176), 0_u16..9000],
            mark in prop_oneof![Just(0_u16), Just(0xFF80), Just(0xFF81), Just(0xFF82), 0xF091_u16..=0xF093, any::<u16>()],
            kind in any::<u16>(),
            fork in 0_u8..4,
            block in any::<u32>(),
        ) {
            let mut page = Page::default();
            for (index, byte) in page.0.iter_mut().enumerate() {
                *byte = seed[(index * 31 + index / 512) % 512];
            }
            page.put_u16(header::LOWER, lower);
            page.put_u16(header::UPPER, lower.max(1));
            page.put_u16(header::SPECIAL, special);
            page.put_u16(PAGE_BYTES - 4, kind);
            page.put_u16(PAGE_BYTES - 2, mark);
            let description = describe(&page, Fork(fork), block, None);
            prop_assert!(diff::diff(&description, &description).is_empty());
        }
    }

    #[test]
    fn items_that_overlap_are_read_up_to_the_bytes_of_a_page() {
        let mut page = Page::default();
        page.init(0);
        page.insert_item(&[1; 4000], 1).unwrap();
        let pointer = page.line_pointer(1).unwrap();
        for number in 2..=5 {
            page.insert_item(&[1; 8], number).unwrap();
            page.set_line_pointer(number, pointer).unwrap();
        }
        let description = describe(&page, Fork::MAIN, 0, None);
        let read = description.items.iter().filter(|item| !item.fields.is_empty()).count();
        assert_eq!((description.items.len(), read), (5, 2));
    }
}
