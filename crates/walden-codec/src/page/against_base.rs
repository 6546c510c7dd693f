//! Codes a page's items against the items that had the same offset numbers on the page before the record.
//!
//! Used for pages whose changes the record does not contain, mostly VACUUM and splits of GIN pages. Items
//! that change in length move all items that were added after them, so a bytewise delta would comprise nearly
//! the whole page.

use walden_redo::page::index_tuple::INDEX_TUPLE_HEADER_BYTES;
use walden_redo::page::{LinePointer, PAGE_BYTES, PAGE_HEADER_BYTES, Page};

use super::kind::PageKind;
use super::line_pointers::{LinePointerColumns, PointerForm};
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::TupleCoder;
use crate::predict::keyed_columns::Topic;
use crate::predict::keyed_columns::changed_item::{
    CHANGED_BYTES, CHANGED_ITEM_HEADERS, CHANGED_LENGTHS, COMMON_BYTES,
};
use crate::predict::relation::{BlockAddress, Relation};
use crate::tuple::items::{item, line_pointer, put_line_pointer};
use crate::{Corrupt, corrupt};

/// Returns whether a page is better coded item by item than byte by byte: if many bytes differ, mostly
/// because items moved.
fn is_better_by_item(page: &Page, base: &Page, fork: u8) -> bool {
    const MIN_DIFFERENT_BYTES: usize = 128;
    let differ = page.0.iter().zip(&base.0).filter(|(new, old)| new != old).count();
    differ >= MIN_DIFFERENT_BYTES && PageKind::detect_items(page, fork) != PageKind::Bytes && base.items() > 0
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes a page's items against the items of the page before the record. `page` initially holds the page
    /// before the record, and afterwards the reconstructed page. Returns false if the page is not coded in
    /// this way.
    pub fn page_against_base(
        &mut self,
        address: BlockAddress,
        source: Option<&Page>,
        page: &mut Page,
    ) -> Result<bool, Corrupt> {
        let BlockAddress { relation, fork, .. } = address;
        let (key, kind) = ([relation.number, fork.into(), 0], Kind::Symbols(Class::PageHeaders));
        let column = self.keyed_columns.column(self.coder, Topic::PageDeltas, key, kind)?;
        let by_item = source.is_some_and(|new| is_better_by_item(new, page, fork));
        if self.coder.symbol(column, by_item.into())? == 0 {
            return Ok(false);
        }
        let base = page.clone();
        let special = self.page_header(Topic::ChangedHeaders, address, source, page)?;
        let free = page.lower().clamp(PAGE_HEADER_BYTES, special);
        page.0[free..special].fill(0);
        let columns = LinePointerColumns::for_known_page(self, address)?;
        let mut last = special;
        let mut bytes = Vec::new();
        for number in 1..=page.items() {
            let pointer = source.map_or(LinePointer::UNUSED, |source| line_pointer(source, number));
            let content = source.and_then(|source| item(source, number));
            let form =
                columns.form(self.coder, PointerForm::from_item_pointer(pointer, content.is_some(), last))?;
            let pointer = match form {
                PointerForm::Any => columns.pointer(self.coder, form, pointer)?,
                PointerForm::Next | PointerForm::Elsewhere => {
                    bytes.clear();
                    let old = item(&base, number).unwrap_or_default();
                    self.changed_item(relation, old, content, &mut bytes)?;
                    columns.put_item(self.coder, (form, pointer), &bytes, &mut last, page)?
                }
                PointerForm::Unused | PointerForm::Dead | PointerForm::Redirect => {
                    return Err(corrupt("cannot decode a page: expected a line pointer with an item"));
                }
            };
            put_line_pointer(page, number, pointer);
        }
        Ok(true)
    }

    /// Codes an item against the old one: after the header, the prefix and suffix that both share are
    /// omitted.
    fn changed_item(
        &mut self,
        relation: Relation,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let symbols = Kind::Symbols(Class::IndexTuples);
        let lengths = self.changed_item_column(relation, CHANGED_LENGTHS, symbols)?;
        let common = self.changed_item_column(relation, COMMON_BYTES, symbols)?;
        // 0: unchanged. Otherwise 1 + the length.
        let is_same = source == Some(old);
        let len = source.map_or(0, |item| if is_same { 0 } else { 1 + item.len() as u64 });
        let len = match self.coder.symbol(lengths, len)? {
            0 => {
                out.extend_from_slice(old);
                return Ok(());
            }
            len => usize::try_from(len - 1).ok().filter(|&len| len <= PAGE_BYTES),
        };
        let len = len.ok_or_else(|| corrupt("cannot decode an item: expected at most 8192 bytes"))?;
        let skipped = if len >= ITEM_HEADER { ITEM_HEADER } else { 0 };
        if skipped > 0 {
            self.changed_header(relation, old, source, out)?;
        }
        let old = old.get(ITEM_HEADER..).unwrap_or_default();
        let body = source.map_or(&[][..], |item| &item[skipped..]);
        let rest = len - skipped;
        let most = old.len().min(rest);
        let first = body.iter().zip(old).take_while(|(new, old)| new == old).count();
        let ends = body.iter().rev().zip(old.iter().rev());
        let end = ends.take(most - first.min(most)).take_while(|(new, old)| new == old).count();
        let first = self.coder.symbol(common, first as u64)?;
        let end = self.coder.symbol(common, end as u64)?;
        let wrong = Corrupt("cannot decode an item: expected a shared prefix and suffix within both");
        let first = usize::try_from(first).ok().filter(|&first| first <= most).ok_or(wrong)?;
        let end = usize::try_from(end).ok().filter(|&end| end <= most - first).ok_or(wrong)?;
        out.extend_from_slice(&old[..first]);
        let column = self.changed_item_column(relation, CHANGED_BYTES, Kind::Bytes(Class::IndexTuples))?;
        let middle = body.get(first..rest - end).unwrap_or_default();
        self.coder.bytes(column, middle, rest - first - end, out)?;
        out.extend_from_slice(&old[old.len() - end..]);
        Ok(())
    }

    fn changed_item_column(
        &mut self,
        relation: Relation,
        number: u32,
        kind: Kind,
    ) -> Result<Column, Corrupt> {
        self.keyed_columns.column(self.coder, Topic::PageDeltas, [relation.number, number, 0], kind)
    }

    /// Codes an item's header, XORed with the old item's header. Lengths in the header change together with
    /// the item.
    fn changed_header(
        &mut self,
        relation: Relation,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let kind = Kind::Rows(Class::IndexTuples, ITEM_HEADER as u16);
        let column = self.changed_item_column(relation, CHANGED_ITEM_HEADERS, kind)?;
        let mut header = source.and_then(|item| item.first_chunk()).copied().unwrap_or([0; ITEM_HEADER]);
        header.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let mut header = self.coder.array(column, &header)?;
        header.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        out.extend_from_slice(&header);
        Ok(())
    }
}

/// Bytes at the start of an item that are coded as rows: an index tuple's header, or the first fields of a
/// heap tuple.
const ITEM_HEADER: usize = INDEX_TUPLE_HEADER_BYTES;
