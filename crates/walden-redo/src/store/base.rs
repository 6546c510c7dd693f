//! Pages of a base backup, which are read when the log changes them first.

use std::io;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::record::RelFileLocator;

use super::index::ForkKey;
use super::state::StateCode;
use super::{BlockKey, IN_BASE, PageStore, Slot};
use crate::page::Page;

/// Pages from elsewhere that the log's changes apply to: a base backup. They must not change while they are read.
pub trait BasePages: std::fmt::Debug + Send {
    /// Reads a page; whether there is one.
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool>;

    /// Whether a page may be torn (written while it was copied) without a way to see it: there are no checksums.
    fn may_be_torn(&self) -> bool {
        false
    }
}

/// The base, and which parts of it no longer count.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) pages: Box<dyn BasePages>,
    /// Blocks of a fork from this one on are gone.
    cut: FxHashMap<ForkKey, u32>,
    /// Databases gone in one tablespace, or in all.
    pub(super) databases: FxHashSet<(u32, Option<u32>)>,
}

impl Base {
    pub(super) fn new(pages: Box<dyn BasePages>) -> Base {
        Base { pages, cut: FxHashMap::default(), databases: FxHashSet::default() }
    }

    pub(super) fn cut(&mut self, key: ForkKey, blocks: u32) {
        let cut = self.cut.entry(key).or_insert(blocks);
        *cut = blocks.min(*cut);
    }

    pub(super) fn counts(&self, key: BlockKey) -> bool {
        let RelFileLocator { database, tablespace, .. } = key.relation;
        self.cut.get(&(key.relation, key.fork)).is_none_or(|&blocks| key.block < blocks)
            && !self.databases.contains(&(database, Some(tablespace)))
            && !self.databases.contains(&(database, None))
    }
}

impl PageStore {
    /// Reads a block that was not met before from the base.
    pub(super) fn read_base(&mut self, slot: Slot, key: BlockKey) {
        let mut page = self.buffer();
        let Some(base) = &mut self.base else { return };
        match base.pages.read(key, &mut page) {
            Ok(true) => {
                let entry = &mut self.entries[slot.0 as usize];
                entry.state = StateCode::EXACT;
                entry.flags |= IN_BASE;
                self.hold(slot, page);
            }
            Ok(false) => self.recycle(page),
            Err(error) => {
                self.recycle(page);
                self.lose(slot, format!("read {key} from the base backup"), error);
            }
        }
    }
}
