//! What encoding knows of heap and index tuples before it codes them.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

use walden_format::record::RelFileLocator;
use walden_redo::page::PAGE_BYTES;

use crate::cases::{Case, Cases};
use crate::tuple::schema::{Field, Samples};
use crate::value::expand::UpcomingValues;

/// Tuples that encoding has seen ahead: by layout, and values in TOAST tables.
#[derive(Default)]
pub struct Survey {
    /// What is not left out of what is learned here.
    pub cases: Cases,
    layouts: FxHashMap<HashedKind, Surveyed>,
    /// Pages met of each relation.
    pages: FxHashMap<RelFileLocator, u32>,
    /// Values in TOAST tables, by their chunks.
    pub toast: UpcomingValues,
    /// Whether a sample or a TOAST value was added since [`Survey::found_new_schema`] was called last.
    has_new: bool,
}

/// A layout by what is known ahead, as a hash: of two layouts with the same hash, the schema of one does not read the other's tuples,
/// and is not used for them.
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

/// Tuples that have one schema: those of a relation with the same layout and null bitmap.
#[derive(Clone, Copy, Debug)]
pub struct TupleKind<'a> {
    /// The relation.
    pub relation: RelFileLocator,
    /// The number of attributes, and whatever else of the header the layout depends on.
    pub layout: u32,
    /// The null bitmap.
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
    /// The first pages of a relation that are surveyed, and of those after them one in how many. Schemas change seldom: of more
    /// pages, encoding takes longer and the file gets no smaller.
    const PAGES: (u32, u32) = (32, 8);

    /// Whether the tuples of another page of a relation should be added: soon nothing new is learnt from them.
    pub fn wants_page(&mut self, relation: RelFileLocator) -> bool {
        let (all, each) = Survey::PAGES;
        let met = self.pages.entry(relation).or_default();
        *met += 1;
        *met <= all || met.is_multiple_of(each)
    }

    /// Adds a tuple.
    pub fn add(&mut self, kind: TupleKind<'_>, attributes: &[u8]) {
        if attributes.len() <= PAGE_BYTES && self.cases.has(Case::Schemas) {
            self.has_new |= self.layouts.entry(kind.hashed()).or_default().samples.add(attributes);
        }
        if self.cases.has(Case::ToastChunks) && self.toast.add(kind.relation, attributes) {
            // A value is looked for in all pages.
            self.pages.remove(&kind.relation);
            self.has_new = true;
        }
    }

    /// Whether a schema, or a value in a TOAST table, may have been found since this was asked last.
    pub fn found_new_schema(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    /// Forgets what was seen, for the next segment.
    pub fn clear(&mut self) {
        self.layouts.clear();
        self.pages.clear();
        self.toast.clear();
        self.has_new = false;
    }

    /// The schema of a kind of tuples, if one was inferred from those that were seen.
    pub fn schema(&mut self, kind: TupleKind<'_>, end_align: usize) -> Option<&Vec<Field>> {
        let Surveyed { samples, schema } = self.layouts.get_mut(&kind.hashed())?;
        schema.get_or_insert_with(|| samples.schema(end_align)).as_ref()
    }
}
