//! Predictors: what access methods put into records and on pages, coded as what their prediction missed.

use walden_redo::PageStore;
use walden_redo::page::PAGE_BYTES;

use self::attributes::Rows;
use self::gin::pending_keys::Pending;
use self::heap::headers::Heads;
use self::index::keys::Keys;
use self::names::{Names, Topic};
use self::relation::Relation;
use self::run::Run;
use crate::columns::{Class, Coder, Kind};
use crate::{Corrupt, corrupt};

pub mod attributes;
pub mod gin;
pub mod heap;
pub mod index;
pub mod names;
pub mod relation;
pub mod run;
pub mod survey;

/// What predictors know after some records, in both directions.
#[derive(Default)]
pub struct Predictors {
    /// Columns.
    pub names: Names,
    /// Heads.
    pub heads: Heads,
    /// Rows.
    pub rows: Rows,
    /// Keys of indexes.
    pub keys: Keys,
    /// Keys of GIN indexes that have no entries yet.
    pub pending: Pending,
    /// Room for the next items that are coded alike.
    pub run: Run,
}

impl Predictors {
    /// Codes tuples with what is known, and with pages as they are before the record.
    pub fn tuple_coder<'m, S: Coder>(
        &'m mut self,
        coder: &'m mut S,
        store: &'m mut PageStore,
    ) -> TupleCoder<'m, S> {
        let Predictors { names, heads, rows, keys, pending, run } = self;
        TupleCoder { coder, names, heads, rows, keys, pending, run, store }
    }
}

/// Everything that coding rows needs.
pub struct TupleCoder<'m, S> {
    /// Where columns are.
    pub coder: &'m mut S,
    /// Columns.
    pub names: &'m mut Names,
    /// Heads.
    pub heads: &'m mut Heads,
    /// Rows.
    pub rows: &'m mut Rows,
    /// Keys of indexes.
    pub keys: &'m mut Keys,
    /// Keys of GIN indexes that have no entries yet.
    pub pending: &'m mut Pending,
    /// Room for the next items that are coded alike.
    pub run: &'m mut Run,
    /// Pages as they are before the record.
    pub store: &'m mut PageStore,
}

impl<S: Coder> TupleCoder<'_, S> {
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
}
