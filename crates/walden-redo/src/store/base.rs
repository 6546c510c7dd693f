//! Pages of a base backup, read when the WAL first refers to them.

use std::collections::HashSet;
use std::io;

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;

use super::index::ForkKey;
use super::state::StateCode;
use super::{BlockKey, IN_BASE, PageStore, Slot};
use crate::page::Page;

/// Pages of a base backup or of a stopped server's data directory, to which the changes in the WAL apply. The
/// files must not change while the store uses them.
pub trait BasePages: std::fmt::Debug + Send {
    /// Reads a page into `page`; false if the backup does not have the block.
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool>;

    /// Returns whether a page may be torn (written while the backup copied it) undetectably, because the
    /// cluster has no checksums.
    fn may_be_torn(&self) -> bool {
        false
    }
}

/// The base backup, and the files that the WAL has dropped or truncated since.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) pages: Box<dyn BasePages>,
    /// Forks that the WAL truncated, with their smallest number of blocks.
    cut: FxHashMap<ForkKey, u32>,
    /// Databases that the WAL dropped, in one tablespace or in all (`None`). One record may name millions, so
    /// the hash is seeded.
    pub(super) databases: HashSet<(u32, Option<u32>)>,
}

impl Base {
    pub(super) fn new(pages: Box<dyn BasePages>) -> Base {
        Base { pages, cut: FxHashMap::default(), databases: HashSet::default() }
    }

    pub(super) fn cut(&mut self, key: ForkKey, blocks: u32) {
        let cut = self.cut.entry(key).or_insert(blocks);
        *cut = blocks.min(*cut);
    }

    /// Forgets that the log has dropped or truncated files of a database in a tablespace.
    pub(super) fn readmit(&mut self, database: u32, tablespace: u32) {
        self.cut
            .retain(|(relation, _), _| (relation.database, relation.tablespace) != (database, tablespace));
        self.databases.remove(&(database, Some(tablespace)));
    }

    /// Whether the block was neither truncated nor dropped since the backup.
    pub(super) fn is_valid(&self, key: BlockKey) -> bool {
        let RelFileLocator { database, tablespace, .. } = key.relation;
        self.cut.get(&(key.relation, key.fork)).is_none_or(|&blocks| key.block < blocks)
            && !self.databases.contains(&(database, Some(tablespace)))
            && !self.databases.contains(&(database, None))
    }
}

impl PageStore {
    /// Reads a block without an entry so far from the base backup.
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
                self.lose(slot, format!("cannot read {key} from the base backup"), error);
            }
        }
    }
}
