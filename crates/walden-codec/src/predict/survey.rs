//! When encoding: samples of heap and index tuples, collected before they are coded.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

use walden_format::record::RelFileLocator;
use walden_redo::page::PAGE_BYTES;

use crate::tuple::schema::{Field, Samples};
use crate::value::expand::UpcomingValues;

/// Tuples that encoding has seen ahead, by layout, and values in TOAST tables.
#[derive(Default)]
pub struct Survey {
    layouts: FxHashMap<HashedKind, Surveyed>,
    /// Number of pages seen of each relation.
    pages: FxHashMap<RelFileLocator, u32>,
    /// Values in TOAST tables, by their chunks.
    pub toast: UpcomingValues,
    /// Whether a sample or a TOAST value was added since the last call of [`Survey::found_new_schema`].
    has_new: bool,
}

/// Hash of a [`TupleKind`]. A collision is harmless: a schema that cannot read a tuple is not used for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct HashedKind {
    relation: RelFileLocator,
    hash: u64,
}

#[derive(Default)]
struct Surveyed {
    samples: Samples,
    schema: Option<Option<Vec<Field>>>,
}

/// Tuples that share one schema: all tuples of a relation with the same layout and null bitmap.
#[derive(Clone, Copy, Debug)]
pub struct TupleKind<'a> {
    /// The relation of the tuples.
    pub relation: RelFileLocator,
    /// Number of attributes and other header fields that the layout depends on.
    pub layout: u32,
    pub bitmap: &'a [u8],
}

impl TupleKind<'_> {
    fn hashed(self) -> HashedKind {
        let mut hasher = FxHasher::default();
        (self.layout, self.bitmap).hash(&mut hasher);
        HashedKind { relation: self.relation, hash: hasher.finish() }
    }
}

impl Survey {
    /// Number of first pages of a relation that are all surveyed, and the sampling interval after them.
    /// Schemas rarely change: more pages would slow down encoding without making the file smaller.
    const PAGES: (u32, u32) = (32, 8);

    /// Returns whether to survey another page of a relation. Further pages soon add nothing new.
    pub fn wants_page(&mut self, relation: RelFileLocator) -> bool {
        let (all, each) = Survey::PAGES;
        let met = self.pages.entry(relation).or_default();
        *met += 1;
        *met <= all || met.is_multiple_of(each)
    }

    /// Adds a tuple.
    pub fn add(&mut self, kind: TupleKind<'_>, attributes: &[u8]) {
        if attributes.len() <= PAGE_BYTES {
            self.has_new |= self.layouts.entry(kind.hashed()).or_default().samples.add(attributes);
        }
        if self.toast.add(kind.relation, attributes) {
            // A TOAST value may have chunks on any page, so survey all of them.
            self.pages.remove(&kind.relation);
            self.has_new = true;
        }
    }

    /// Returns whether a schema, or a value in a TOAST table, may have been found since the last call.
    pub fn found_new_schema(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    /// Clears all samples for the next segment.
    pub fn clear(&mut self) {
        self.layouts.clear();
        self.pages.clear();
        self.toast.clear();
        self.has_new = false;
    }

    /// Returns the schema of a kind of tuples, if one was inferred.
    pub fn schema(&mut self, kind: TupleKind<'_>, end_align: usize) -> Option<&Vec<Field>> {
        let Surveyed { samples, schema } = self.layouts.get_mut(&kind.hashed())?;
        schema.get_or_insert_with(|| samples.schema(end_align)).as_ref()
    }
}
