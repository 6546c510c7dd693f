//! Pages of which nothing is known yet, by their structure.
//!
//! What a page's line pointers point to is coded item by item; what that leaves unsaid (free space that is not empty, items
//! that overlap) is coded as the difference from the page that the items make.

use walden_format::record::RelFileLocator;
use walden_redo::page::{LinePointer, PAGE_BYTES, PAGE_HEADER, Page};

use super::alike::Items;
use super::gin_pages::{self, Entries};
use super::heap::{self, HEAD_BYTES, HEADER_BYTES, Relation, TupleCoder};
use super::index;
use super::keys::RowPlace;
use super::names::Topic;
use super::rows::Plan;
use crate::columns::{Class, Coder, Column, Kind, all_repeated, narrow};
use crate::{Corrupt, corrupt};

/// How a page's items are coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    /// Not as items.
    Bytes = 0,
    /// As rows of a table.
    Heap = 1,
    /// As index tuples.
    Index = 2,
    /// As items of which nothing is known.
    Items = 3,
    /// As the rows in a leaf of a GIN index's posting tree.
    GinRows = 4,
    /// As entries of a GIN index.
    GinEntries = 5,
}

impl PageKind {
    /// How this page is best coded.
    pub fn of(page: &Page, fork: u8) -> PageKind {
        let of_gin = if fork == 0 { gin_pages::kind(page) } else { None };
        of_gin.unwrap_or_else(|| PageKind::of_items(page, fork))
    }

    /// How its items are.
    fn of_items(page: &Page, fork: u8) -> PageKind {
        let (lower, special) = (page.lower(), page.special());
        let sound = fork == 0
            && (PAGE_HEADER..=PAGE_BYTES).contains(&lower)
            && (lower..=PAGE_BYTES).contains(&special)
            && lower.is_multiple_of(4);
        if !sound || lower == PAGE_HEADER {
            return PageKind::Bytes;
        }
        let (mut rows, mut tuples, mut others) = (0, 0, 0);
        // As many as tell what the others are: one that is not is said to be so.
        let each = page.items() / MAX_SAMPLES + 1;
        for number in (1..=page.items()).step_by(each.into()) {
            if let Some(item) = item(page, number) {
                rows += usize::from(special == PAGE_BYTES && is_row(item));
                tuples += usize::from(special < PAGE_BYTES && index::is_tuple(item));
                others += 1;
            }
        }
        match others {
            0 => PageKind::Bytes,
            _ if rows * 8 > others * 7 => PageKind::Heap,
            _ if tuples * 8 > others * 7 => PageKind::Index,
            _ => PageKind::Items,
        }
    }

    fn from_code(code: u64) -> Result<PageKind, Corrupt> {
        Ok(match code {
            0 => PageKind::Bytes,
            1 => PageKind::Heap,
            2 => PageKind::Index,
            3 => PageKind::Items,
            4 => PageKind::GinRows,
            5 => PageKind::GinEntries,
            _ => return Err(corrupt("a page's kind can't be")),
        })
    }
}

/// Items of a page that are looked at, about, to tell how all of them are coded.
const MAX_SAMPLES: u16 = 32;

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

/// The state of a line pointer to an item.
pub const NORMAL: u32 = 1;

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

/// Whether a page's items are better compared one by one than byte by byte: where many bytes differ, mostly because items
/// moved.
fn is_worth_it(page: &Page, old: &Page, fork: u8) -> bool {
    const FEWEST: usize = 128;
    let differ = page.0.iter().zip(&old.0).filter(|(new, old)| new != old).count();
    differ >= FEWEST && PageKind::of_items(page, fork) != PageKind::Bytes && old.items() > 0
}

fn is_row(item: &[u8]) -> bool {
    item.len() >= HEADER_BYTES && (HEADER_BYTES..=item.len()).contains(&item[22].into())
}

/// Line pointers, by what has to be said of them.
const ANY: u64 = 0;
const UNUSED: u64 = 1;
const DEAD: u64 = 2;
const REDIRECT: u64 = 3;
/// An item right before the last one, towards the page's start.
pub const NEXT: u64 = 4;
/// An item elsewhere.
const ELSEWHERE: u64 = 5;

/// A page's place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The relation.
    pub relation: Relation,
    /// The fork.
    pub fork: u8,
    /// The block.
    pub block: u32,
}

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
        let mut items = Items { made, source, number: 1, last: special, pointers };
        let mut bytes = Vec::new();
        let mut visible = Visible::default();
        let mut entries = Entries::default();
        while items.number <= items.made.items() {
            let number = items.number;
            let raw = source.map_or(0, |page| pointer(page, number));
            let (offset, state, len) = split(raw);
            let content = source.and_then(|page| item(page, number)).filter(|item| match kind {
                PageKind::Heap => is_row(item),
                PageKind::Index => index::is_tuple(item),
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

    /// Codes a page's items as what became of the items of the page before, in the same order; `made` is that page, and
    /// then as with [`Self::page`]. No if the page is not coded so.
    pub fn page_against(
        &mut self,
        place: Place,
        source: Option<&Page>,
        made: &mut Page,
    ) -> Result<bool, Corrupt> {
        let Place { relation, fork, .. } = place;
        let like = |what: u32| [relation.number, fork.into(), what];
        let symbols = Kind::Symbols(Class::PageHeaders);
        let column = self.names.column(self.coder, Topic::PageAgainst, like(0), symbols)?;
        let worth = source.is_some_and(|page| is_worth_it(page, made, fork));
        if self.coder.symbol(column, worth.into())? == 0 {
            return Ok(false);
        }
        let old = made.clone();
        let special = self.page_header(like(1), source, made)?;
        let free = made.lower().clamp(PAGE_HEADER, special);
        made.0[free..special].fill(0);
        let pointers = self.names.column(self.coder, Topic::LinePointers, like(4), symbols)?;
        let offsets = self.names.column(self.coder, Topic::LinePointers, like(5), symbols)?;
        let any =
            self.names.column(self.coder, Topic::LinePointers, like(6), Kind::Rows(Class::PageHeaders, 4))?;
        let mut last = special;
        let mut bytes = Vec::new();
        for number in 1..=made.items() {
            let raw = source.map_or(0, |page| pointer(page, number));
            let (offset, state, len) = split(raw);
            let content = source.and_then(|page| item(page, number));
            let form = match (state, content) {
                (NORMAL, Some(_)) if right_before(last, len) == Some(offset) => NEXT,
                (NORMAL, Some(_)) => ELSEWHERE,
                _ => ANY,
            };
            bytes.clear();
            let raw = match self.coder.symbol(pointers, form)? {
                ANY => self.any_pointer(any, raw)?,
                form @ (NEXT | ELSEWHERE) => {
                    let before = item(&old, number).unwrap_or_default();
                    self.changed_item(relation, before, content, &mut bytes)?;
                    self.put_item(offsets, form == NEXT, offset, &bytes, &mut last, made)?
                }
                _ => return Err(corrupt("a line pointer's form can't be")),
            };
            put_pointer(made, number, raw);
        }
        Ok(true)
    }

    /// An item as what it has in common with the one before, after its header, at its beginning and at its end.
    fn changed_item(
        &mut self,
        relation: Relation,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        /// An index tuple's header: lengths in it change with the rest.
        const HEADER: usize = 8;
        let like = |what: u32| [relation.number, what, 0];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let lengths = self.names.column(self.coder, Topic::PageAgainst, like(1), symbols)?;
        let common = self.names.column(self.coder, Topic::PageAgainst, like(2), symbols)?;
        // 0: the same; else 1 + the length.
        let same = source == Some(old);
        let len = match self
            .coder
            .symbol(lengths, source.map_or(0, |item| u64::from(!same) * (1 + item.len() as u64)))?
        {
            0 => {
                out.extend_from_slice(old);
                return Ok(());
            }
            len => usize::try_from(len - 1).ok().filter(|&len| len <= PAGE_BYTES),
        };
        let len = len.ok_or_else(|| corrupt("an item can't be so long"))?;
        let head = HEADER.min(len);
        let kind = Kind::Rows(Class::IndexTuples, HEADER as u16);
        let start = out.len();
        if head == HEADER {
            let column = self.names.column(self.coder, Topic::PageAgainst, like(3), kind)?;
            let mut mixed = source.map_or(Vec::new(), |item| item[..HEADER].to_vec());
            mixed.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
            self.coder.bytes(column, &mixed, HEADER, out)?;
            out[start..].iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        }
        let old = old.get(HEADER..).unwrap_or_default();
        let body = source.map_or(&[][..], |item| if head == HEADER { &item[HEADER..] } else { item });
        let rest = if head == HEADER { len - HEADER } else { len };
        let most = old.len().min(rest);
        let first = body.iter().zip(old).take_while(|(new, old)| new == old).count();
        let ends = body.iter().rev().zip(old.iter().rev());
        let end = ends.take(most - first.min(most)).take_while(|(new, old)| new == old).count();
        let first = self.coder.symbol(common, first as u64)?;
        let end = self.coder.symbol(common, end as u64)?;
        let wrong = Corrupt("an item can't have that in common");
        let first = usize::try_from(first).ok().filter(|&first| first <= most).ok_or(wrong)?;
        let end = usize::try_from(end).ok().filter(|&end| end <= most - first).ok_or(wrong)?;
        out.extend_from_slice(&old[..first]);
        let column =
            self.names.column(self.coder, Topic::PageAgainst, like(4), Kind::Bytes(Class::IndexTuples))?;
        let middle = body.get(first..rest - end).unwrap_or_default();
        self.coder.bytes(column, middle, rest - first - end, out)?;
        out.extend_from_slice(&old[old.len() - end..]);
        Ok(())
    }

    /// An item of which nothing is known.
    pub fn any_item(
        &mut self,
        relation: Relation,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let like = [relation.number, 0, 3];
        let lengths =
            self.names.column(self.coder, Topic::LinePointers, like, Kind::Symbols(Class::PageHeaders))?;
        let len = self.coder.symbol(lengths, source.map_or(0, |item| item.len() as u64))?;
        let len = usize::try_from(len).ok().filter(|&len| len <= PAGE_BYTES);
        let len = len.ok_or_else(|| corrupt("an item can't be so long"))?;
        let like = [relation.number, 1, 3];
        let column = self.names.column(self.coder, Topic::LinePointers, like, Kind::Bytes(Class::Text))?;
        self.coder.bytes(column, source.unwrap_or_default(), len, out)
    }

    /// A row with the part of its header that only pages have.
    fn heap_row(
        &mut self,
        place: Place,
        number: u16,
        visible: &mut Visible,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let header = visible.code(self, place, number, source)?;
        out.extend_from_slice(&header);
        let at = out.len();
        out.extend([0; HEAD_BYTES]);
        let source = source.and_then(|item| item.get(header.len()..)?.split_first_chunk::<HEAD_BYTES>());
        let head = self.row(place.relation, None, source, out)?;
        out[at..at + HEAD_BYTES].copy_from_slice(&head);
        Ok(())
    }
}

/// What the last row of the page had, and where that is coded.
#[derive(Default)]
pub struct Visible {
    xmin: u32,
    xmax: u32,
    /// Of the last rows that were alike.
    cid: u8,
    columns: [Option<Column>; 5],
}

/// Bytes of it.
pub const VISIBLE: usize = HEADER_BYTES - HEAD_BYTES;

impl Visible {
    /// `t_xmin`, `t_xmax`, `t_cid`, `t_ctid`.
    pub fn code<S: Coder>(
        &mut self,
        tuple_coder: &mut TupleCoder<'_, S>,
        place: Place,
        number: u16,
        source: Option<&[u8]>,
    ) -> Result<[u8; VISIBLE], Corrupt> {
        let word = |at: usize| source.map_or(0, |item| u32_at(item, at));
        let half = |at: usize| source.map_or(0, |item| u16::from_le_bytes([item[at], item[at + 1]]));
        let columns = &mut self.columns;
        let mut symbol = |what: usize, value: u64| {
            let column = match columns[what] {
                Some(column) => column,
                None => {
                    let like = [place.relation.number, what as u32, 0];
                    let kind = Kind::Symbols(Class::RowHeaders);
                    *columns[what].insert(tuple_coder.names.column(
                        tuple_coder.coder,
                        Topic::Visibility,
                        like,
                        kind,
                    )?)
                }
            };
            tuple_coder.coder.symbol(column, value)
        };
        let xmin = difference(narrow(symbol(0, against(word(0), self.xmin).into())?)?, self.xmin);
        // 0: none; 1: as the last one; else the distance from xmin.
        let xmax = match word(4) {
            0 => 0,
            xmax if xmax == self.xmax => 1,
            xmax => 2 + u64::from(against(xmax, xmin)),
        };
        let xmax = match symbol(1, xmax)? {
            0 => 0,
            1 => self.xmax,
            away => difference(narrow(away - 2)?, xmin),
        };
        let cid: u32 = narrow(symbol(2, word(8).into())?)?;
        let (block, pointer) = (u32::from(half(12)) << 16 | u32::from(half(14)), half(16));
        // 0: itself; else the distance of the block, and the line pointer.
        let here = block == place.block && pointer == number;
        let (block, pointer) =
            match symbol(3, if here { 0 } else { 1 + u64::from(against(block, place.block)) })? {
                0 => (place.block, number),
                away => {
                    let pointer = symbol(4, pointer.into())?;
                    let pointer = u16::try_from(pointer).map_err(|_| corrupt("a row's place can't be"))?;
                    (difference(narrow(away - 1)?, place.block), pointer)
                }
            };
        (self.xmin, self.xmax) = (xmin, xmax);
        Ok(header(xmin, xmax, cid, RowPlace { block, number: pointer }))
    }

    /// Codes the rows from this number on as far as they are of the last one's transaction, where they were put, and all of the
    /// same command, deleted by nobody or all by who deleted the last one: how many. `rows` is where each of those that
    /// there are is on the page.
    pub fn code_alike<S: Coder>(
        &mut self,
        coder: &mut S,
        RowPlace { block, number }: RowPlace,
        rows: &[(usize, usize)],
        source: Option<&Page>,
    ) -> Result<usize, Corrupt> {
        let [Some(xmins), Some(xmaxs), Some(cids), Some(places), _] = self.columns else { return Ok(0) };
        let xmax_of = |symbol: u8| if symbol == 0 { 0 } else { self.xmax };
        let same = |xmax: u8, cid: u8| [(xmins, 0), (xmaxs, xmax), (cids, cid), (places, 0)];
        let (xmax, cid, alike) = match (source, rows.first()) {
            (Some(page), Some(&(first, _))) => {
                let (xmax, cid) = (page.u32_at(first + 4), page.u32_at(first + 8));
                let (Some(xmax), Ok(cid)) =
                    ([0, 1].into_iter().find(|&symbol| xmax_of(symbol) == xmax), u8::try_from(cid))
                else {
                    return Ok(0);
                };
                let is_alike = |&((at, _), number): &(&(usize, usize), u16)| {
                    page.0[*at..at + VISIBLE]
                        == header(self.xmin, xmax_of(xmax), cid.into(), RowPlace { block, number })
                };
                (xmax, cid, rows.iter().zip(number..).take_while(is_alike).count())
            }
            _ => {
                let (Some(&xmax @ ..=1), Some(&cid)) =
                    (coder.ahead(xmaxs).first(), coder.ahead(cids).first())
                else {
                    return Ok(0);
                };
                (xmax, cid, all_repeated(coder, &same(xmax, cid), rows.len()))
            }
        };
        // A number of one byte.
        if alike == 0 || !cid.is_ascii() {
            return Ok(0);
        }
        for (column, value) in same(xmax, cid) {
            coder.repeat(column, value, alike)?;
        }
        (self.xmax, self.cid) = (xmax_of(xmax), cid);
        Ok(alike)
    }

    /// What one of these has.
    pub fn alike(&self, place: RowPlace) -> [u8; VISIBLE] {
        header(self.xmin, self.xmax, self.cid.into(), place)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4);
    four.map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn header(xmin: u32, xmax: u32, cid: u32, ctid: RowPlace) -> [u8; VISIBLE] {
    let mut header = [0; VISIBLE];
    header[0..4].copy_from_slice(&xmin.to_le_bytes());
    header[4..8].copy_from_slice(&xmax.to_le_bytes());
    header[8..12].copy_from_slice(&cid.to_le_bytes());
    header[12..18].copy_from_slice(&ctid.to_bytes());
    header
}

/// A number as its distance from another, near ones small.
pub fn against(value: u32, base: u32) -> u32 {
    let distance = value.wrapping_sub(base).cast_signed();
    (distance << 1 ^ distance >> 31).cast_unsigned()
}

/// The way back.
pub fn difference(symbol: u32, base: u32) -> u32 {
    base.wrapping_add(symbol >> 1 ^ (symbol & 1).wrapping_neg())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::model::heap::Heads;
    use crate::model::keys::Keys;
    use crate::model::names::Names;
    use crate::model::rows::Rows;
    use walden_redo::PageStore;

    const ITEMS: u16 = 180;

    /// Whether the page has no row there: only where nobody looks to tell what the page has.
    fn is_odd(number: u16) -> bool {
        number % (ITEMS / MAX_SAMPLES + 1) == 2
    }

    fn page() -> Page {
        let mut page = Page::default();
        page.init(0);
        for number in 1..=ITEMS {
            let mut row = [0; HEADER_BYTES + 9];
            row[0..2].copy_from_slice(&number.to_le_bytes());
            row[18] = 1;
            row[22] = HEADER_BYTES as u8 + 1;
            row[HEADER_BYTES + 1..][..2].copy_from_slice(&(number * 31).to_le_bytes());
            let item = if is_odd(number) { &row[..5] } else { &row[..] };
            page.insert_item(item, number).expect("there is room");
        }
        page
    }

    fn coded<S: Coder>(coder: &mut S, source: Option<&Page>) -> (PageKind, Page) {
        let relation = Relation { number: 0, locator: RelFileLocator::default() };
        let mut tuple_coder = TupleCoder {
            coder,
            names: &mut Names::default(),
            heads: &mut Heads::default(),
            rows: &mut Rows::default(),
            keys: &mut Keys::default(),
            store: &mut PageStore::default(),
        };
        let mut made = Page::default();
        let place = Place { relation, fork: 0, block: 7 };
        let kind = tuple_coder.page(place, source, &mut made).expect("a page");
        (kind, made)
    }

    #[test]
    fn items_that_are_not_what_the_page_seems_to_have_are_left_out() {
        let page = page();
        let mut coder = Encoder::default();
        let (kind, made) = coded(&mut coder, Some(&page));
        assert_eq!(kind, PageKind::Heap);
        for number in 1..=ITEMS {
            assert_eq!(pointer(&made, number), pointer(&page, number));
            assert_eq!(item(&made, number) == item(&page, number), !is_odd(number), "item {number}");
        }
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let (kind, decoded) = coded(&mut coder, None);
        assert_eq!(kind, PageKind::Heap);
        assert!(decoded.0 == made.0, "both sides make the same of it");
        coder.finish().expect("nothing is left");
    }

    #[test]
    fn rows_that_are_seen_alike_are_coded_at_once_up_to_the_one_that_is_not() {
        const BLOCK: u32 = 7;
        let relation = Relation { number: 0, locator: RelFileLocator::default() };
        let mut page = Page::default();
        page.init(0);
        // One is deleted, which takes its command's number; one was moved; the last has another transaction.
        let given = |number: u16| match number {
            20 => header(700, 801, 0, RowPlace { block: BLOCK, number }),
            30 => header(700, 0, 114, RowPlace { block: BLOCK + 1, number: 3 }),
            40 => header(701, 0, 114, RowPlace { block: BLOCK, number }),
            _ => header(700, 0, 114, RowPlace { block: BLOCK, number }),
        };
        for number in 1..=40 {
            page.insert_item(&given(number), number).expect("there is room");
        }
        let rows: Vec<_> =
            (1..=40).map(|number| split(pointer(&page, number))).map(|at| (at.0, at.2)).collect();
        let place = Place { relation, fork: 0, block: BLOCK };
        let (mut names, mut heads, mut known) = (Names::default(), Heads::default(), Rows::default());
        let mut coder = Encoder::default();
        let mut visible = Visible::default();
        let mut at_once = Vec::new();
        let mut number = 1;
        while number <= 40 {
            let mut tuple_coder = TupleCoder {
                coder: &mut coder,
                names: &mut names,
                heads: &mut heads,
                rows: &mut known,
                keys: &mut Keys::default(),
                store: &mut PageStore::default(),
            };
            let source = Some(&given(number)[..]);
            assert_eq!(visible.code(&mut tuple_coder, place, number, source).expect("a row"), given(number));
            let rest = &rows[number.into()..];
            let next = RowPlace { block: BLOCK, number: number + 1 };
            let alike = visible.code_alike(&mut coder, next, rest, Some(&page)).expect("rows");
            for number in (number + 1..).take(alike) {
                assert_eq!(visible.alike(RowPlace { block: BLOCK, number }), given(number));
            }
            at_once.push(alike);
            number += 1 + alike as u16;
        }
        assert_eq!(at_once, [18, 9, 9, 0], "2 to 19; 21 to 29; 31 to 39");
    }
}
