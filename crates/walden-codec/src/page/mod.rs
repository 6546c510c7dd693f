//! Codes pages of full-page images: item by item as the base of a delta, and the delta itself.
//!
//! The items that line pointers refer to are coded one by one, by the predictor for the page's kind
//! (`kind.rs`). If an older version of the page is known, its items may be coded against the old items
//! (`against_base.rs`). The delta of the image (`delta.rs`) has everything else, such as free space that is
//! not zero, and items that overlap.

mod against_base;
pub mod delta;
pub mod kind;
mod line_pointers;
#[cfg(test)]
mod tests;

use walden_format::record::RelFileLocator;
use walden_redo::page::heap_tuple::LOGGED_FIELDS;
use walden_redo::page::{LinePointer, PAGE_BYTES, PAGE_HEADER_BYTES, Page};

use self::kind::PageKind;
use self::line_pointers::{LinePointerColumns, PointerForm};
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::predict::run::PageItems;
use crate::predict::survey::Survey;
use crate::predict::{Predictor, TupleCoder, UnknownItems, gin, heap, index};
use crate::tuple::heap::is_heap_tuple;
use crate::tuple::items::{item, line_pointer, put_line_pointer};
use crate::{Corrupt, corrupt};

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes a page without a base by its items. Afterwards, `target` is the page reconstructed from them,
    /// which may differ from the source.
    ///
    /// For [`PageKind::Bytes`], `target` is all zeros.
    pub fn page(
        &mut self,
        address: BlockAddress,
        source: Option<&Page>,
        target: &mut Page,
    ) -> Result<PageKind, Corrupt> {
        let kind = self.page_kind(address, source)?;
        target.0.fill(0);
        if kind == PageKind::Bytes {
            return Ok(kind);
        }
        let special = self.page_frame(address, source, target)?;
        let relation = address.relation;
        match kind {
            PageKind::Bytes => {}
            PageKind::Heap => {
                self.items(address, &mut heap::PageTuples::new(address), source, (target, special))?
            }
            PageKind::Index => {
                let mut tuples = index::PageTuples::new(self, relation, source)?;
                self.items(address, &mut tuples, source, (target, special))?;
            }
            PageKind::Items => {
                self.items(address, &mut UnknownItems { relation }, source, (target, special))?;
            }
            PageKind::PostingTids => self.posting_leaf(relation, source, target)?,
            PageKind::GinEntries => {
                self.items(address, &mut gin::PageEntries::new(relation), source, (target, special))?;
            }
        }
        Ok(kind)
    }

    /// Codes the kind of a page.
    fn page_kind(&mut self, address: BlockAddress, source: Option<&Page>) -> Result<PageKind, Corrupt> {
        let BlockAddress { relation, fork, .. } = address;
        let (key, kind) = ([relation.number, fork.into(), 0], Kind::Symbols(Class::PageHeaders));
        let column = self.keyed_columns.column(self.coder, Topic::PageKinds, key, kind)?;
        let kind = source.map_or(PageKind::Bytes, |page| PageKind::detect(page, fork));
        PageKind::from_code(self.coder.symbol(column, kind as u64)?)
    }

    /// Codes a page's header and special area. Returns the offset of the special area.
    fn page_frame(
        &mut self,
        address: BlockAddress,
        source: Option<&Page>,
        target: &mut Page,
    ) -> Result<usize, Corrupt> {
        let special = self.page_header(Topic::PageHeaders, address, source, target)?;
        if special < PAGE_BYTES {
            let width = PAGE_BYTES - special;
            let kind = Kind::Rows(Class::PageHeaders, width as u16);
            let key = [address.relation.number, address.fork.into(), width as u32];
            let column = self.keyed_columns.column(self.coder, Topic::SpecialAreas, key, kind)?;
            let mut bytes = Vec::with_capacity(width);
            self.coder.bytes(column, source.map_or(&[], |page| &page.0[special..]), width, &mut bytes)?;
            target.0[special..].copy_from_slice(&bytes);
        }
        Ok(special)
    }

    /// Codes a page's header. Returns the offset of the special area.
    fn page_header(
        &mut self,
        topic: Topic,
        address: BlockAddress,
        source: Option<&Page>,
        target: &mut Page,
    ) -> Result<usize, Corrupt> {
        let kind = Kind::Rows(Class::PageHeaders, PAGE_HEADER_BYTES as u16);
        let key = [address.relation.number, address.fork.into(), 0];
        let column = self.keyed_columns.column(self.coder, topic, key, kind)?;
        let mut header = Vec::with_capacity(PAGE_HEADER_BYTES);
        let bytes = source.map_or(&[][..], |page| &page.0[..PAGE_HEADER_BYTES]);
        self.coder.bytes(column, bytes, PAGE_HEADER_BYTES, &mut header)?;
        target.0[..PAGE_HEADER_BYTES].copy_from_slice(&header);
        let special = target.special();
        if !(PAGE_HEADER_BYTES..=PAGE_BYTES).contains(&special) || target.lower() > PAGE_BYTES {
            return Err(corrupt("cannot decode a page: expected pd_lower and pd_special on it"));
        }
        Ok(special)
    }

    /// Codes line pointers, and their items by a predictor.
    fn items(
        &mut self,
        address: BlockAddress,
        predictor: &mut impl Predictor<S>,
        source: Option<&Page>,
        (target, special): (&mut Page, usize),
    ) -> Result<(), Corrupt> {
        let columns = LinePointerColumns::for_new_page(self, address)?;
        let mut items = PageItems { target, source, number: 1, last: special, next: columns.next() };
        let mut bytes = Vec::new();
        while items.number <= items.target.items() {
            let number = items.number;
            let pointer = source.map_or(LinePointer::UNUSED, |page| line_pointer(page, number));
            let content = source.and_then(|page| item(page, number));
            let content = content.filter(|item| predictor.fits(self, item));
            let form = PointerForm::from_pointer(pointer, content.is_some(), items.last);
            let form = columns.form(self.coder, form)?;
            let pointer = match form {
                PointerForm::Next | PointerForm::Elsewhere => {
                    bytes.clear();
                    predictor.start_item(number);
                    predictor.code(self, content, &mut bytes)?;
                    columns.put_item(self.coder, (form, pointer), &bytes, &mut items.last, items.target)?
                }
                form => columns.pointer(self.coder, form, pointer)?,
            };
            put_line_pointer(items.target, number, pointer);
            items.number += 1;
            if matches!(form, PointerForm::Next | PointerForm::Elsewhere) {
                predictor.code_run(self, &bytes, &mut items)?;
            }
        }
        Ok(())
    }
}

/// Adds the heap or index tuples of a page to the survey.
pub fn survey(target: &mut Survey, relation: RelFileLocator, fork: u8, page: &Page) {
    let kind = PageKind::detect(page, fork);
    for item in (1..=page.items()).filter_map(|number| item(page, number)) {
        match kind {
            PageKind::Heap if is_heap_tuple(item) => {
                if let Some((header, body)) = item[LOGGED_FIELDS.start..].split_first_chunk() {
                    heap::survey(target, relation, header, body);
                }
            }
            PageKind::Index => index::survey(target, relation, item),
            _ => {}
        }
    }
}
