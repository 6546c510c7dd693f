//! Pages of which nothing is known yet, by their structure.
//!
//! What a page's line pointers point to is coded item by item; what that leaves unsaid (free space that is not empty, items
//! that overlap) is coded as the difference from the page that the items make.

use walden_format::record::RelFileLocator;
use walden_redo::page::{PAGE_BYTES, PAGE_HEADER, Page};

use self::kind::PageKind;
use crate::columns::{Class, Coder, Column, Kind};
use crate::predict::gin::pages::Entries;
use crate::predict::heap::visibility::Visible;
use crate::predict::names::Topic;
use crate::predict::relation::Place;
use crate::predict::run::Items;
use crate::predict::survey::Plan;
use crate::predict::{TupleCoder, heap, index};
use crate::tuple::heap::{HEAD_BYTES, HEADER_BYTES, is_row};
use crate::tuple::index::is_tuple;
use crate::tuple::items::{NORMAL, item, join, pointer, put_pointer, right_before, split};
use crate::{Corrupt, corrupt};

mod against;
pub mod delta;
pub mod kind;
#[cfg(test)]
mod tests;

/// Line pointers, by what has to be said of them.
const ANY: u64 = 0;

const UNUSED: u64 = 1;

const DEAD: u64 = 2;

const REDIRECT: u64 = 3;

/// An item right before the last one, towards the page's start.
pub const NEXT: u64 = 4;

/// An item elsewhere.
const ELSEWHERE: u64 = 5;

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes a page's items: what is made of them is what `made` is afterwards, which need not be all of the page.
    ///
    /// For a page of [`PageKind::Bytes`], nothing is made.
    pub fn page(
        &mut self,
        place: Place,
        source: Option<&Page>,
        made: &mut Page,
    ) -> Result<PageKind, Corrupt> {
        let Place { relation, fork, .. } = place;
        let like = |what: u32| [relation.number, fork.into(), what];
        let symbols = Kind::Symbols(Class::PageHeaders);
        let column = self.names.column(self.coder, Topic::PageKind, like(0), symbols)?;
        let kind = source.map_or(PageKind::Bytes, |page| PageKind::of(page, fork));
        let kind = PageKind::from_code(self.coder.symbol(column, kind as u64)?)?;
        made.0.fill(0);
        if kind == PageKind::Bytes {
            return Ok(kind);
        }
        let special = self.page_header(like(0), source, made)?;
        if special < PAGE_BYTES {
            let width = PAGE_BYTES - special;
            let kind = Kind::Rows(Class::PageHeaders, width as u16);
            let column = self.names.column(self.coder, Topic::PageSpecial, like(width as u32), kind)?;
            let mut bytes = Vec::with_capacity(width);
            self.coder.bytes(column, source.map_or(&[], |page| &page.0[special..]), width, &mut bytes)?;
            made.0[special..].copy_from_slice(&bytes);
        }
        let mut context = index::Context::Page;
        match kind {
            PageKind::Index => context = self.index_page(relation, source)?,
            PageKind::GinRows => {
                self.gin_rows_page(relation, source, made)?;
                return Ok(kind);
            }
            _ => {}
        }
        let pointers = self.names.column(self.coder, Topic::LinePointers, like(0), symbols)?;
        let offsets = self.names.column(self.coder, Topic::LinePointers, like(1), symbols)?;
        let any = Kind::Rows(Class::PageHeaders, 4);
        let any = self.names.column(self.coder, Topic::LinePointers, like(2), any)?;
        let mut items = Items { made, source, number: 1, last: special, next: (pointers, NEXT as u8) };
        let mut bytes = Vec::new();
        let mut visible = Visible::default();
        let mut entries = Entries::default();
        while items.number <= items.made.items() {
            let number = items.number;
            let raw = source.map_or(0, |page| pointer(page, number));
            let (offset, state, len) = split(raw);
            let content = source.and_then(|page| item(page, number)).filter(|item| match kind {
                PageKind::Heap => is_row(item),
                PageKind::Index => is_tuple(item),
                _ => true,
            });
            let form = match (state, content) {
                (0, _) if raw == 0 => UNUSED,
                (3, _) if offset == 0 && len == 0 => DEAD,
                (2, _) if len == 0 => REDIRECT,
                (NORMAL, Some(_)) if right_before(items.last, len) == Some(offset) => NEXT,
                (NORMAL, Some(_)) => ELSEWHERE,
                _ => ANY,
            };
            // Whether the next ones may be like it.
            let mut has_like = false;
            let raw = match self.coder.symbol(pointers, form)? {
                UNUSED => 0,
                DEAD => 3 << 15,
                REDIRECT => {
                    let to = self.coder.symbol(offsets, offset as u64)?;
                    join(usize::try_from(to).unwrap_or(usize::MAX), 2, 0)?
                }
                ANY => self.any_pointer(any, raw)?,
                form @ (NEXT | ELSEWHERE) => {
                    bytes.clear();
                    match kind {
                        PageKind::Heap => {
                            self.heap_row(place, number, &mut visible, content, &mut bytes)?;
                            has_like = true;
                        }
                        PageKind::Index => {
                            has_like = !self.index_tuple(relation, context, content, &mut bytes)?;
                        }
                        PageKind::GinEntries => {
                            self.gin_page_entry(relation, &mut entries, content, &mut bytes)?
                        }
                        _ => self.any_item(relation, content, &mut bytes)?,
                    }
                    self.put_item(offsets, form == NEXT, offset, &bytes, &mut items.last, items.made)?
                }
                _ => return Err(corrupt("a line pointer's form can't be")),
            };
            put_pointer(items.made, number, raw);
            items.number += 1;
            match kind {
                PageKind::Heap if has_like => self.rows_alike(place, &mut visible, &bytes, &mut items)?,
                PageKind::Index if has_like => self.tuples_alike((relation, context), &bytes, &mut items)?,
                _ => {}
            }
        }
        Ok(kind)
    }

    /// A page's header, written to `made`; where its special area begins.
    fn page_header(
        &mut self,
        like: [u32; 3],
        source: Option<&Page>,
        made: &mut Page,
    ) -> Result<usize, Corrupt> {
        let kind = Kind::Rows(Class::PageHeaders, PAGE_HEADER as u16);
        let column = self.names.column(self.coder, Topic::PageHeader, like, kind)?;
        let mut header = Vec::with_capacity(PAGE_HEADER);
        let bytes = source.map_or(&[][..], |page| &page.0[..PAGE_HEADER]);
        self.coder.bytes(column, bytes, PAGE_HEADER, &mut header)?;
        made.0[..PAGE_HEADER].copy_from_slice(&header);
        let special = made.special();
        if !(PAGE_HEADER..=PAGE_BYTES).contains(&special) || made.lower() > PAGE_BYTES {
            return Err(corrupt("a page's header can't be"));
        }
        Ok(special)
    }

    /// A line pointer of which nothing is told.
    fn any_pointer(&mut self, column: Column, raw: u32) -> Result<u32, Corrupt> {
        let mut bytes = Vec::with_capacity(4);
        self.coder.bytes(column, &raw.to_le_bytes(), 4, &mut bytes)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Writes an item to `made`, right before the `last` one if it is the next, else at the place that is coded; its line
    /// pointer.
    fn put_item(
        &mut self,
        offsets: Column,
        is_next: bool,
        offset: usize,
        bytes: &[u8],
        last: &mut usize,
        made: &mut Page,
    ) -> Result<u32, Corrupt> {
        let len = bytes.len();
        let offset = if is_next {
            right_before(*last, len).ok_or_else(|| corrupt("an item is before the page"))?
        } else {
            usize::try_from(self.coder.symbol(offsets, offset as u64)?).unwrap_or(usize::MAX)
        };
        let end = offset.checked_add(len).filter(|&end| end <= PAGE_BYTES);
        let end = end.ok_or_else(|| corrupt("an item is beyond the page"))?;
        made.0[offset..end].copy_from_slice(bytes);
        *last = offset;
        join(offset, NORMAL, len)
    }
}

/// Adds the rows or index tuples of a page to what encoding sees ahead.
pub fn plan(target: &mut Plan, relation: RelFileLocator, fork: u8, page: &Page) {
    let kind = PageKind::of(page, fork);
    for item in (1..=page.items()).filter_map(|number| item(page, number)) {
        match kind {
            PageKind::Heap if is_row(item) => {
                let (head, body) = item[HEADER_BYTES - HEAD_BYTES..].split_at(HEAD_BYTES);
                if let Some(head) = head.first_chunk() {
                    heap::plan(target, relation, head, body);
                }
            }
            PageKind::Index => index::plan(target, relation, item),
            _ => {}
        }
    }
}
