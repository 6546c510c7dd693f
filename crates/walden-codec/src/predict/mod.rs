//! Predictors: code block data and page items as the residuals of a prediction.
//!
//! Each access method has a folder: `heap/`, `index/` (B-tree, hash, and other index tuples), `gin/`. It
//! implements [`Predictor`] for the block data of its records and for the items of its pages. Shared parts
//! are here: attributes of tuples (`attributes/`), runs of similar items (`run.rs`), the survey of encoding
//! (`survey.rs`), and the lookup of columns by their content (`keyed_columns.rs`).

pub mod attributes;
pub mod copies;
pub mod fragments;
pub mod gin;
pub mod heap;
pub mod index;
pub mod keyed_columns;
pub mod relation;
pub mod run;
pub mod survey;
mod unknown;

use walden_redo::PageStore;
use walden_redo::page::Page;

use self::attributes::Layouts;
use self::fragments::RecentFragments;
use self::gin::pending_keys::Pending;
use self::heap::headers::HeapHeaders;
use self::index::keys::Keys;
use self::keyed_columns::KeyedColumns;
use self::relation::BlockAddress;
use self::run::{PageItems, Run};
pub use self::unknown::UnknownItems;
use crate::columns::{Coder, Column};
use crate::{Corrupt, corrupt};

/// Predicts block data or page items: one implementation for each kind of item.
///
/// An implementation serves both directions. When encoding, `source` is the item; when decoding, `source` is
/// `None`. In both directions, `out` holds the item afterwards.
pub trait Predictor<S: Coder> {
    /// When encoding: returns whether this predictor can code an item. Called directly before the item is
    /// coded.
    fn fits(&mut self, coder: &mut TupleCoder<'_, S>, item: &[u8]) -> bool;

    /// Codes an item as the residual of its prediction, and appends it to `out`.
    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt>;

    /// Sets the offset number of the next item of a page.
    fn start_item(&mut self, _line_pointer: u16) {}

    /// Codes a run of items that follow the item `last` on a page and are coded in the same way.
    fn code_run(
        &mut self,
        _coder: &mut TupleCoder<'_, S>,
        _last: &[u8],
        _items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        Ok(())
    }
}

/// Checks that decoded block data, or a tuple, does not exceed its maximum size: records store its length in
/// 16 bits. Because values are predicted from other values, a few bytes of input can expand to many.
pub fn expect_block_data(bytes: usize) -> Result<(), Corrupt> {
    match u16::try_from(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(corrupt("cannot decode tuples: expected at most 65535 bytes")),
    }
}

/// State of the predictors, which encoding and decoding keep equal.
#[derive(Default)]
pub struct Predictors {
    /// Columns by their content.
    pub keyed_columns: KeyedColumns,
    /// Headers of heap tuples.
    pub heap_headers: HeapHeaders,
    /// Layouts and attributes of tuples.
    pub layouts: Layouts,
    /// Keys of indexes.
    pub keys: Keys,
    /// Keys in pending lists of GIN indexes.
    pub pending: Pending,
    /// Recent fragments of generic records.
    pub recent_fragments: RecentFragments,
    /// Reusable buffers for runs of similar items.
    run: Run,
}

impl Predictors {
    /// Creates a coder for tuples that uses this state and the pages before the record.
    pub fn tuple_coder<'m, S: Coder>(
        &'m mut self,
        coder: &'m mut S,
        store: &'m mut PageStore,
    ) -> TupleCoder<'m, S> {
        let Predictors { keyed_columns, heap_headers, layouts, keys, pending, recent_fragments, run } = self;
        TupleCoder {
            coder,
            keyed_columns,
            heap_headers,
            layouts,
            keys,
            pending,
            recent_fragments,
            run,
            store,
        }
    }

    /// Returns the number of items in the last run that was searched for, and whether they repeated the
    /// values of the previous tuple.
    #[cfg(test)]
    pub fn last_run(&self) -> (bool, usize) {
        (self.run.is_repeated, self.run.items.len())
    }
}

/// Context for coding tuples: the columns of one direction, the state of predictors, and the pages before the
/// record.
pub struct TupleCoder<'m, S> {
    /// Columns.
    pub coder: &'m mut S,
    /// As in [`Predictors`].
    pub keyed_columns: &'m mut KeyedColumns,
    /// As in [`Predictors`].
    pub heap_headers: &'m mut HeapHeaders,
    /// As in [`Predictors`].
    pub layouts: &'m mut Layouts,
    /// As in [`Predictors`].
    pub keys: &'m mut Keys,
    /// As in [`Predictors`].
    pub pending: &'m mut Pending,
    /// As in [`Predictors`].
    pub recent_fragments: &'m mut RecentFragments,
    /// As in [`Predictors`].
    run: &'m mut Run,
    /// Pages before the record.
    pub store: &'m mut PageStore,
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes block data by a predictor and appends it to `out`. Returns false if the predictor does not fit
    /// the data. `column` has a flag that states whether it fits.
    pub fn data(
        &mut self,
        column: Column,
        predictor: &mut impl Predictor<S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        const PREDICTED: u64 = 1;
        let fits = source.is_some_and(|data| predictor.fits(self, data));
        if self.coder.symbol(column, fits.into())? != PREDICTED {
            return Ok(false);
        }
        predictor.code(self, source, out)?;
        Ok(true)
    }

    /// Returns a page as it is before the record, if known.
    pub fn known_page(&mut self, address: BlockAddress) -> Option<&Page> {
        let slot = self.store.find(address.key())?;
        self.store.page(slot)
    }
}
