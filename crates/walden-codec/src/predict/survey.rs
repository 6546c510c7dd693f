//! What encoding knows of heap and index tuples before it codes them.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

use walden_format::record::RelFileLocator;

use crate::tuple::schema::{Field, Samples};
use crate::value::expand::Ahead;

/// Longest row that is looked at: no page has a longer one.
const MAX_ROW_BYTES: usize = 8192;

/// Rows that encoding has seen ahead: by layout, and values in TOAST tables.
#[derive(Default)]
pub struct Plan {
    layouts: FxHashMap<PlanKey, Planned>,
    /// Pages met of each relation.
    pages: FxHashMap<RelFileLocator, u32>,
    pub toast: Ahead,
    /// Whether rows were added that told something, since that was asked last.
    news: bool,
}

/// A layout by what is known ahead. The row's head is only a hash: a schema that does not fit is not used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct PlanKey {
    relation: RelFileLocator,
    head: u64,
}

#[derive(Default)]
struct Planned {
    samples: Samples,
    schema: Option<Option<Vec<Field>>>,
}

/// What a [`PlanKey`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct PlanHead<'a> {
    /// The relation.
    pub relation: RelFileLocator,
    /// What tells rows apart beside their null bitmap.
    pub layout: u32,
    /// The null bitmap.
    pub bitmap: &'a [u8],
}

impl PlanHead<'_> {
    fn key(self) -> PlanKey {
        let mut hasher = FxHasher::default();
        (self.layout, self.bitmap).hash(&mut hasher);
        PlanKey { relation: self.relation, head: hasher.finish() }
    }
}

impl Plan {
    /// Of a relation, so many pages are looked at, and then each of so many.
    const PAGES: (u32, u32) = (32, 8);

    /// Whether the rows of another page of a relation should be added: they soon tell nothing new.
    pub fn wants_page(&mut self, relation: RelFileLocator) -> bool {
        let (all, each) = Plan::PAGES;
        let met = self.pages.entry(relation).or_default();
        *met += 1;
        *met <= all || met.is_multiple_of(each)
    }

    /// Adds a row.
    pub fn add(&mut self, head: PlanHead<'_>, row: &[u8]) {
        if row.len() <= MAX_ROW_BYTES {
            self.news |= self.layouts.entry(head.key()).or_default().samples.add(row);
        }
        if self.toast.add(head.relation, row) {
            // A value is looked for in all pages.
            self.pages.remove(&head.relation);
            self.news = true;
        }
    }

    /// Whether rows that were added since this was asked last told something.
    pub fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Forgets the rows, and keeps what was found out.
    pub fn clear(&mut self) {
        self.layouts.clear();
        self.pages.clear();
        self.toast.clear();
        self.news = false;
    }

    pub fn schema(&mut self, head: PlanHead<'_>, end_align: usize) -> Option<&Vec<Field>> {
        let Planned { samples, schema } = self.layouts.get_mut(&head.key())?;
        schema.get_or_insert_with(|| samples.schema(end_align)).as_ref()
    }
}
