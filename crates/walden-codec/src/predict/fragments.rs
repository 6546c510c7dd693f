//! Codes block data of generic records: fragments with the new bytes of page ranges.
//!
//! If items move, the fragments contain most bytes of the page. The page after the record is therefore coded
//! as copies from the page before it. Decoding computes the fragments from both pages, as PostgreSQL does
//! (`computeDelta` in `generic_xlog.c`).

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use walden_format::payload::generic::GenericFragment;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::reconstruct::{apply_fragments, fragments_between};
use walden_redo::{BlockKey, PageBox};

use super::copies::SourceIndex;
use super::keyed_columns::Topic;
use super::relation::BlockAddress;
use super::{TupleCoder, expect_block_data};
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::leb128::narrow;
use crate::zigzag::{zigzag_delta, zigzag_value};
use crate::{Corrupt, corrupt};

/// Minimum length of fragments to compare pages. Below it, comparing takes longer than it gains, and they are
/// coded as bytes.
pub const MIN_FRAGMENT_BYTES: usize = 128;

/// Maximum number of pages with recent fragments.
const MAX_RECENT_PAGES: usize = 512;

/// Pages that contain only the latest fragments. Used for pages that are not known, because their images are
/// in an earlier segment.
#[derive(Default)]
pub struct RecentFragments {
    pages: FxHashMap<BlockKey, PageBox>,
    /// Keys, oldest first.
    order: VecDeque<BlockKey>,
}

impl RecentFragments {
    /// Returns whether fragments of a page are kept.
    pub fn has(&self, key: BlockKey) -> bool {
        self.pages.contains_key(&key)
    }

    /// Notes the fragments that a record has for a page.
    pub fn note(&mut self, key: BlockKey, fragments: &[u8]) {
        if !self.pages.contains_key(&key) {
            self.order.push_back(key);
            if self.order.len() > MAX_RECENT_PAGES
                && let Some(oldest) = self.order.pop_front()
            {
                self.pages.remove(&oldest);
            }
        }
        let page = self.pages.entry(key).or_default();
        // Fragments before a damaged one are applied.
        let _ = apply_fragments(page, fragments);
    }
}

/// Returns the offsets and bytes of fragments; `None` if they are truncated or exceed the page.
pub fn split_fragments(mut data: &[u8]) -> Option<Vec<(usize, &[u8])>> {
    let mut fragments = Vec::new();
    while !data.is_empty() {
        let (GenericFragment { offset, length }, rest) = GenericFragment::split(data)?;
        let (bytes, rest) = rest.split_at_checked(length.into())?;
        let offset = usize::from(offset);
        if offset + bytes.len() > PAGE_BYTES || length == 0 {
            return None;
        }
        fragments.push((offset, bytes));
        data = rest;
    }
    Some(fragments)
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes fragments one by one, as copies from recent fragments of the page, and appends them to `out`.
    pub fn fragments(
        &mut self,
        address: BlockAddress,
        source: Option<&[(usize, &[u8])]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let beyond = || corrupt("cannot decode fragments: expected fragments within the page");
        let relation = address.relation.number;
        let kind = Kind::Symbols(Class::BlockData);
        let bounds = self.keyed_columns.column(self.coder, Topic::FragmentBounds, [relation, 0, 0], kind)?;
        let columns = self.copy_columns(relation, 0)?;
        // Inserted again at the end. Only one page at a time is in use.
        let page = self.recent_fragments.pages.remove(&address.key());
        let page = page.ok_or_else(|| {
            corrupt("cannot decode fragments: expected a page that earlier records have reconstructed")
        })?;
        let mut index = SourceIndex::default();
        if source.is_some() {
            index.fill(&page.0);
        }
        let count = self.coder.symbol(bounds, source.map_or(0, |fragments| fragments.len() as u64))?;
        let (mut at, mut expected) = (0_usize, 0_usize);
        for number in 0..count {
            let fragment = source.and_then(|fragments| fragments.get(number as usize));
            let delta = fragment.map_or(0, |&(offset, _)| zigzag_delta(offset as u32, at as u32));
            let offset = zigzag_value(narrow(self.coder.symbol(bounds, delta.into())?)?, at as u32) as usize;
            let len = self.coder.symbol(bounds, fragment.map_or(0, |(_, bytes)| bytes.len() as u64))?;
            let len: usize = narrow(len)?;
            if len == 0 || offset > PAGE_BYTES || len > PAGE_BYTES - offset {
                return Err(beyond());
            }
            let header = GenericFragment { offset: offset as u16, length: len as u16 };
            out.extend_from_slice(&header.to_bytes());
            expected = (expected + offset).saturating_sub(at).min(PAGE_BYTES);
            let target = fragment.map(|&(_, bytes)| (bytes, &index));
            expected = self.copies(columns, (&page.0, expected), target, len, out)?;
            at = offset + len;
            expect_block_data(out.len())?;
        }
        self.recent_fragments.pages.insert(address.key(), page);
        Ok(())
    }

    /// Codes fragments as the page after the record, and appends them to `out`. When encoding, `source` has
    /// the pages before and after the record.
    pub fn page_fragments(
        &mut self,
        address: BlockAddress,
        source: Option<(&PageBox, &PageBox)>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let (before, after) = match source {
            Some((before, after)) => (before.clone(), Some(after)),
            None => {
                let page = self.known_page(address);
                let page = page.ok_or_else(|| corrupt("cannot decode fragments: expected a known page"))?;
                (PageBox::from(page), None)
            }
        };
        let mut index = SourceIndex::default();
        if after.is_some() {
            index.fill(&before.0);
        }
        let relation = address.relation.number;
        let kind = Kind::Symbols(Class::BlockData);
        let bounds = self.keyed_columns.column(self.coder, Topic::FreeSpaceBounds, [relation, 0, 0], kind)?;
        let bounds_of = |page: &Page| [page.lower(), page.upper()].map(|bound| bound as u32);
        let [mut lower, mut upper] = bounds_of(&before);
        let new = after.map(|page| bounds_of(page));
        for (at, bound) in [&mut lower, &mut upper].into_iter().enumerate() {
            let delta = new.map_or(0, |new| zigzag_delta(new[at], *bound));
            *bound = zigzag_value(narrow(self.coder.symbol(bounds, delta.into())?)?, *bound);
        }
        let (lower, upper) = (lower as usize, upper as usize);
        if lower > upper || upper > PAGE_BYTES {
            return Err(corrupt("cannot decode fragments: expected free space within the page"));
        }
        let columns = self.copy_columns(relation, 0)?;
        let mut page = PageBox::default();
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        for range in [0..lower, upper..PAGE_BYTES] {
            bytes.clear();
            let target = after.map(|page| (&page.0[range.clone()], &index));
            self.copies(columns, (&before.0, range.start), target, range.len(), &mut bytes)?;
            page.0[range].copy_from_slice(&bytes);
        }
        let data = fragments_between(&before, &page).filter(|data| data.len() >= MIN_FRAGMENT_BYTES);
        let data = data.ok_or_else(|| corrupt("cannot decode fragments: expected more that differs"))?;
        expect_block_data(data.len())?;
        out.extend_from_slice(&data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::record::RelFileLocator;
    use walden_redo::PageStore;

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::predict::Predictors;
    use crate::predict::relation::Relation;

    fn address() -> BlockAddress {
        let locator = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };
        BlockAddress { relation: Relation { number: 0, locator }, fork: 0, block: 7 }
    }

    /// Decodes fragments of a page that had the fragments `before`.
    fn decoded(before: &[u8], coder: &mut Encoder) -> Result<Vec<u8>, Corrupt> {
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut coder, mut predictors) = (Decoder::default(), Predictors::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20)?;
        predictors.recent_fragments.note(address().key(), before);
        let mut out = Vec::new();
        let mut store = PageStore::default();
        predictors.tuple_coder(&mut coder, &mut store).fragments(address(), None, &mut out)?;
        Ok(out)
    }

    fn fragment(offset: u16, bytes: &[u8]) -> Vec<u8> {
        let header = GenericFragment { offset, length: bytes.len() as u16 };
        [&header.to_bytes()[..], bytes].concat()
    }

    proptest! {
        /// Moved bytes of a page, with some new ones.
        #[test]
        fn fragments_come_back(
            old in proptest::collection::vec(any::<u8>(), 200..3000),
            new in proptest::collection::vec(any::<u8>(), 1..40),
            at in 0..150_usize,
            offset in 24..4000_u16,
            gap in 0..100_u16,
        ) {
            let moved = [&old[..at], &new, &old[at..]].concat();
            let (first, second) = moved.split_at(moved.len() / 2);
            let next = offset + first.len() as u16 + gap;
            let data = [fragment(offset, first), fragment(next, second)].concat();
            let before = fragment(offset, &old);
            let (mut coder, mut predictors) = (Encoder::default(), Predictors::default());
            predictors.recent_fragments.note(address().key(), &before);
            let (mut out, mut store) = (Vec::new(), PageStore::default());
            let fragments = split_fragments(&data).unwrap();
            predictors
                .tuple_coder(&mut coder, &mut store)
                .fragments(address(), Some(&fragments), &mut out)
                .unwrap();
            prop_assert_eq!(&out, &data);
            prop_assert_eq!(decoded(&before, &mut coder).unwrap(), data);
        }

        /// Decoding of arbitrary columns terminates with at most 65,535 bytes.
        #[test]
        fn any_columns_end(
            bounds in proptest::collection::vec(0..20_000_u64, 1..40),
            copies in proptest::collection::vec((0..300_u64, 0..9000_u64, any::<u32>()), 0..40),
            wide in any::<bool>(),
        ) {
            let (mut coder, mut predictors) = (Encoder::default(), Predictors::default());
            let mut store = PageStore::default();
            let kind = Kind::Symbols(Class::BlockData);
            let column =
                predictors.keyed_columns.column(&mut coder, Topic::FragmentBounds, [0; 3], kind).unwrap();
            for bound in bounds {
                coder.symbol(column, bound).unwrap();
            }
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            let columns = tuple_coder.copy_columns(0, 0).unwrap();
            columns.put_any(tuple_coder.coder, &copies, wide);
            let before = fragment(24, &[7; 8000]);
            if let Ok(out) = decoded(&before, &mut coder) {
                prop_assert!(out.len() <= usize::from(u16::MAX));
            }
        }
    }

    #[test]
    fn the_oldest_of_many_recent_pages_is_dropped() {
        let mut recent = RecentFragments::default();
        let key = |block| BlockAddress { block, ..address() }.key();
        let all = MAX_RECENT_PAGES as u32;
        (0..=all).for_each(|block| recent.note(key(block), &fragment(24, b"bytes")));
        assert!(!recent.has(key(0)) && recent.has(key(1)) && recent.has(key(all)));
        assert_eq!(recent.pages.len(), MAX_RECENT_PAGES);
        assert!(recent.pages[&key(1)].0[24..].starts_with(b"bytes"));
    }
}
