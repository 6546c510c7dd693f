//! Codes tuples that splits of index pages move, as copies from the items of the page before the record.
//!
//! A split logs all tuples of the new pages, although all but the new tuple are on the page that is split.
//! The new tuple repeats attributes of the heap tuple that was inserted last, so that tuple follows the items
//! in the source.

use walden_redo::page::PAGE_BYTES;

use super::keys;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::leb128::narrow;
use crate::predict::copies::SourceIndex;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::predict::{TupleCoder, expect_block_data};
use crate::tuple::heap::HeapTuple;
use crate::{Corrupt, corrupt};

/// Minimum length of tuples to copy. Shorter ones are coded as bytes, because decoding copies a page for each
/// record with moved tuples.
pub const MIN_MOVED_BYTES: usize = 32;

/// Why a record contains the tuples. Each cause has separate columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Tuples are replaced by others.
    Update = 1,
    /// A page is split.
    Split = 2,
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes tuples of an index as copies from items of a page, and appends them to `out`. `items` restricts
    /// the copied items to these offset numbers.
    pub fn moved_tuples(
        &mut self,
        cause: Cause,
        (page, items): (BlockAddress, Option<&[u16]>),
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let relation = page.relation;
        let key = [relation.number, cause as u32, 0];
        let kind = Kind::Symbols(Class::BlockData);
        let column = self.keyed_columns.column(self.coder, Topic::MovedLengths, key, kind)?;
        let len = self.coder.symbol(column, source.map_or(0, |tuples| tuples.len() as u64))?;
        let len: usize = narrow(len)?;
        expect_block_data(len)?;
        if len < MIN_MOVED_BYTES {
            return Err(corrupt("cannot decode moved tuples: expected at least 32 bytes"));
        }
        let base = self.copied_items(page, items)?;
        let mut index = SourceIndex::default();
        if source.is_some() {
            index.fill(&base);
        }
        let columns = self.copy_columns(relation.number, cause as u32)?;
        self.copies(columns, (&base, 0), source.map(|tuples| (tuples, &index)), len, out)?;
        Ok(())
    }

    /// Returns the items of a page, followed by the heap tuples expected for the next index tuple, each with
    /// its TID.
    fn copied_items(&mut self, page: BlockAddress, items: Option<&[u16]>) -> Result<Vec<u8>, Corrupt> {
        let known = self.known_page(page);
        let known = known.ok_or_else(|| corrupt("cannot decode moved tuples: expected a known page"))?;
        let mut base = Vec::with_capacity(PAGE_BYTES);
        let mut add = |number: u16| {
            // Items of a damaged page may overlap.
            let item = known.item(number).filter(|item| base.len() + item.len() <= PAGE_BYTES);
            base.extend_from_slice(item.unwrap_or_default());
        };
        match items {
            Some(numbers) => numbers.iter().for_each(|&number| add(number)),
            None => (1..=known.items()).for_each(&mut add),
        }
        let number = page.relation.number;
        let Some(table) = self.keys.index(number).table else { return Ok(base) };
        let [next, last] = self.keys.expected(number);
        for tid in [last, next.filter(|_| next != last)].into_iter().flatten() {
            base.extend_from_slice(&tid.to_bytes());
            let tuple = keys::heap_tuple(self.store, table, tid).and_then(HeapTuple::parse);
            base.extend_from_slice(tuple.map_or(&[], |tuple| tuple.attributes));
        }
        Ok(base)
    }
}
