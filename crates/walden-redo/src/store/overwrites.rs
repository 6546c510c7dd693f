//! Pages that later records overwrite completely.

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::record::Record;

use super::BlockKey;

/// The last record that overwrites each page: with a full-page image that redo restores, or by initializing
/// the page. Earlier changes of the page have no effect on its content in the end, so a replay that is not
/// interested in the content in between can leave them out ([`super::StoreOptions::overwrites`]).
#[derive(Debug, Default)]
pub struct Overwrites(FxHashMap<BlockKey, Lsn>);

impl Overwrites {
    /// Maximum number of pages; their entries take some 64 MB. Later pages are not added: replay applies all
    /// changes of a page without an entry.
    pub const MAX_PAGES: usize = 1 << 20;

    /// Notes the pages that a record overwrites. Records must be noted in the order of the WAL.
    #[inline]
    pub fn note(&mut self, record: &Record<'_>) {
        for block in record.blocks {
            if block.will_init || block.image.is_some_and(|image| image.apply) {
                self.insert(BlockKey::from_block(block), record.lsn);
            }
        }
    }

    /// Adds the overwritten pages of later WAL.
    pub fn append(&mut self, later: Overwrites) {
        later.0.into_iter().for_each(|(key, lsn)| self.insert(key, lsn));
    }

    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Notes that the record at `lsn` overwrites a page.
    pub fn insert(&mut self, key: BlockKey, lsn: Lsn) {
        if self.0.len() < Overwrites::MAX_PAGES {
            self.0.insert(key, lsn);
        } else if let Some(last) = self.0.get_mut(&key) {
            *last = lsn;
        }
    }

    /// Returns whether a record after the one at `lsn` overwrites the page.
    #[inline]
    pub fn has_later(&self, key: BlockKey, lsn: Lsn) -> bool {
        self.0.get(&key).is_some_and(|last| *last > lsn)
    }
}
