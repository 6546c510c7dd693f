//! Predictors: what access methods put into records and on pages, coded as what their prediction missed.
//!
//! There is a folder per access method: `heap/`, `index/` (B-tree, hash, and whatever else has index tuples), `gin/`. Each
//! implements [`Predictor`] for the data of its records' blocks, and for the items of its pages. What they share is here:
//! attributes of tuples (`attributes/`), runs of similar items (`run.rs`), what encoding learns by looking ahead
//! (`survey.rs`), and the columns by what they are of (`keyed_columns.rs`).

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
use crate::cases::Cases;
use crate::columns::{Coder, Column};
use crate::{Corrupt, corrupt};

/// Predicts what an access method puts into records, or on its pages: one implementation for each kind of item.
///
/// It is written once for both directions: encoding has the item as `source`, decoding has none, and both have it in `out`
/// afterwards.
pub trait Predictor<S: Coder> {
    /// Whether an item can be coded by this predictor: asked when encoding, right before the item is coded.
    fn fits(&mut self, coder: &mut TupleCoder<'_, S>, item: &[u8]) -> bool;

    /// Codes an item as what the prediction missed, and appends it to `out`.
    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt>;

    /// Sets which line pointer the next item of a page has.
    fn start_item(&mut self, _line_pointer: u16) {}

    /// Codes the items of a page that follow the `last` one and are coded in the same way, as many as there are, at once.
    fn code_run(
        &mut self,
        _coder: &mut TupleCoder<'_, S>,
        _last: &[u8],
        _items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        Ok(())
    }
}

/// Makes sure that no more was decoded than the data of a block, or a tuple, can have: its length is of 16 bits in a record. Values are
/// predicted from others, so a few bytes can state many.
pub fn expect_block_data(bytes: usize) -> Result<(), Corrupt> {
    match u16::try_from(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(corrupt("cannot decode tuples: expected at most 65535 bytes")),
    }
}

/// What predictors know after some records: the same in both directions.
#[derive(Default)]
pub struct Predictors {
    /// The cases that are not left out, see [`Predictors::set_cases`].
    pub cases: Cases,
    /// The columns, by what they are of.
    pub keyed_columns: KeyedColumns,
    /// Headers of heap tuples.
    pub heap_headers: HeapHeaders,
    /// Layouts and attributes of tuples.
    pub layouts: Layouts,
    /// Keys of indexes.
    pub keys: Keys,
    /// Keys of GIN indexes that have no entries yet.
    pub pending: Pending,
    /// Recent fragments of Generic records.
    pub recent_fragments: RecentFragments,
    /// Buffers for the next run of similar items.
    run: Run,
}

impl Predictors {
    /// Leaves out the cases that are not in the set.
    pub fn set_cases(&mut self, cases: Cases) {
        self.cases = cases;
        self.heap_headers.cases = cases;
        self.layouts.set_cases(cases);
    }

    /// Codes tuples with what is known, and with pages as they are before the record.
    pub fn tuple_coder<'m, S: Coder>(
        &'m mut self,
        coder: &'m mut S,
        store: &'m mut PageStore,
    ) -> TupleCoder<'m, S> {
        let Predictors { cases, keyed_columns, heap_headers, layouts, keys, pending, recent_fragments, run } =
            self;
        let cases = *cases;
        TupleCoder {
            coder,
            cases,
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

    /// The items of the last run that was looked for, and whether they repeated the values of the tuple before.
    #[cfg(test)]
    pub fn last_run(&self) -> (bool, usize) {
        (self.run.is_repeated, self.run.items.len())
    }
}

/// What coding tuples takes: the columns of one direction, what predictors know, and the pages before the record.
pub struct TupleCoder<'m, S> {
    /// The columns.
    pub coder: &'m mut S,
    /// As in [`Predictors`].
    pub cases: Cases,
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
    /// Pages as they are before the record.
    pub store: &'m mut PageStore,
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the data of a record's block by a predictor, and appends it to `out`; no if the predictor does not fit it. The
    /// column says whether it does.
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

    /// A page as it is before the record, if it is known.
    pub fn known_page(&mut self, address: BlockAddress) -> Option<&Page> {
        let slot = self.store.find(address.key())?;
        self.store.page(slot)
    }
}
