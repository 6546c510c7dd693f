//! A page's items as what became of the items of the page before.

use walden_redo::page::{PAGE_BYTES, PAGE_HEADER, Page};

use super::kind::PageKind;
use super::{ANY, ELSEWHERE, NEXT};
use crate::columns::{Class, Coder, Kind};
use crate::predict::TupleCoder;
use crate::predict::names::Topic;
use crate::predict::relation::{Place, Relation};
use crate::tuple::items::{NORMAL, item, pointer, put_pointer, right_before, split};
use crate::{Corrupt, corrupt};

/// Whether a page's items are better compared one by one than byte by byte: where many bytes differ, mostly because items
/// moved.
fn is_worth_it(page: &Page, old: &Page, fork: u8) -> bool {
    const FEWEST: usize = 128;
    let differ = page.0.iter().zip(&old.0).filter(|(new, old)| new != old).count();
    differ >= FEWEST && PageKind::of_items(page, fork) != PageKind::Bytes && old.items() > 0
}

impl<S: Coder> TupleCoder<'_, S> {
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
}
