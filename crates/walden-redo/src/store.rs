//! The last state of every page that the log told of.

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::Kind;

use crate::page::{Misfit, Page};

/// What is known of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The page is what PostgreSQL had after the last record, but for what is never logged.
    Exact,
    /// It is not known.
    Unknown(Unknown),
    /// A record that nobody here can replay changed it; the next image makes it exact again.
    Untracked,
}

/// Why a page's state is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// Neither an image nor a record that makes the page anew since the log's start.
    NotSeen,
    /// A record did not fit the page.
    Misfit(Misfit),
    /// Its database was copied file by file.
    DatabaseCopied,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unknown::NotSeen => f.write_str("no image of it since the log's start"),
            Unknown::Misfit(misfit) => write!(f, "a record did not fit it: {misfit}"),
            Unknown::DatabaseCopied => f.write_str("its database was copied file by file"),
        }
    }
}

/// Which page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The relation's files.
    pub relation: RelFileLocator,
    /// Which of its forks.
    pub fork: Fork,
    /// The block's number in it.
    pub block: u32,
}

impl std::fmt::Display for BlockKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BlockKey { relation, fork, block } = self;
        match *fork {
            Fork::MAIN => write!(f, "{relation} block {block}"),
            fork => write!(f, "{relation} {fork} block {block}"),
        }
    }
}

/// The record that last touched a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastRecord {
    /// Where it starts.
    pub lsn: Lsn,
    /// Its kind.
    pub kind: Kind,
}

/// A page's place in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u32);

impl Slot {
    /// No place: that of a copy.
    pub(crate) const NONE: Slot = Slot(u32::MAX);
}

#[derive(Debug)]
struct Entry {
    key: BlockKey,
    page: Option<Box<Page>>,
    state: State,
    last: Option<LastRecord>,
}

/// Pages from elsewhere that the log's changes apply to: a base backup.
pub trait BasePages: std::fmt::Debug {
    /// Reads a page; whether there is one.
    fn read(&mut self, key: BlockKey, page: &mut Page) -> std::io::Result<bool>;
}

/// The last state of every page that the log told of.
#[derive(Debug, Default)]
pub struct PageStore {
    forks: FxHashMap<(RelFileLocator, Fork), FxHashMap<u32, Slot>>,
    entries: Vec<Entry>,
    free_slots: Vec<Slot>,
    buffers: Vec<Box<Page>>,
    hints_are_logged: bool,
}

impl PageStore {
    /// The place of a page, made if it was not met before.
    pub fn slot(&mut self, key: BlockKey) -> Slot {
        let blocks = self.forks.entry((key.relation, key.fork)).or_default();
        if let Some(&slot) = blocks.get(&key.block) {
            return slot;
        }
        let entry = Entry { key, page: None, state: State::Unknown(Unknown::NotSeen), last: None };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.entries[slot.0 as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                Slot(self.entries.len() as u32 - 1)
            }
        };
        blocks.insert(key.block, slot);
        slot
    }

    /// The place of a page that was met before.
    pub fn find(&self, key: BlockKey) -> Option<Slot> {
        self.forks.get(&(key.relation, key.fork))?.get(&key.block).copied()
    }

    /// What is known of a page.
    pub fn state(&self, slot: Slot) -> State {
        self.entries[slot.0 as usize].state
    }

    /// The record that last touched a page.
    pub fn last(&self, slot: Slot) -> Option<LastRecord> {
        self.entries[slot.0 as usize].last
    }

    /// Takes an exact page out, to be put back by [`PageStore::put`] or given up by [`PageStore::set_unknown`].
    pub fn take(&mut self, slot: Slot) -> Option<Box<Page>> {
        self.entries[slot.0 as usize].page.take()
    }

    /// Puts a page in: its state is exact from now on.
    pub fn put(&mut self, slot: Slot, page: Box<Page>, last: LastRecord) {
        let entry = &mut self.entries[slot.0 as usize];
        (entry.page, entry.state, entry.last) = (Some(page), State::Exact, Some(last));
    }

    /// A page to change apart from any record that refers to it; nothing if it is not exact.
    pub fn page_mut(&mut self, slot: Slot) -> Option<&mut Page> {
        self.entries[slot.0 as usize].page.as_deref_mut()
    }

    /// Whether hints are logged, as far as is known (`XLogHintBitIsNeeded`): because of checksums or `wal_log_hints`.
    pub fn are_hints_logged(&self) -> bool {
        self.hints_are_logged
    }

    /// Hints are logged: a setting or a record says so.
    pub fn log_hints(&mut self) {
        self.hints_are_logged = true;
    }

    /// Gives a page's content up.
    pub fn give_up(&mut self, slot: Slot, state: State, last: LastRecord) {
        let entry = &mut self.entries[slot.0 as usize];
        (entry.state, entry.last) = (state, Some(last));
        let page = entry.page.take();
        self.buffers.extend(page);
    }

    /// A page to fill, with any content.
    pub fn buffer(&mut self) -> Box<Page> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub fn recycle(&mut self, page: Box<Page>) {
        self.buffers.push(page);
    }

    /// A relation's files are gone, or made anew.
    pub fn drop_relation(&mut self, relation: RelFileLocator) {
        for fork in 0..4 {
            self.drop_fork(relation, Fork(fork));
        }
    }

    /// A file of a relation is gone, or made anew.
    pub fn drop_fork(&mut self, relation: RelFileLocator, fork: Fork) {
        let blocks = self.forks.remove(&(relation, fork)).unwrap_or_default();
        blocks.into_values().for_each(|slot| self.release(slot));
    }

    /// A file of a relation was cut to `blocks`.
    pub fn truncate(&mut self, relation: RelFileLocator, fork: Fork, blocks: u32) {
        let Some(known) = self.forks.get_mut(&(relation, fork)) else { return };
        let gone: Vec<Slot> = known.extract_if(|&block, _| block >= blocks).map(|(_, slot)| slot).collect();
        gone.into_iter().for_each(|slot| self.release(slot));
    }

    /// A database's files in a tablespace (or in all) are gone, or about to be made anew.
    pub fn drop_database(&mut self, database: u32, tablespace: Option<u32>) {
        let of_database = |relation: &RelFileLocator| {
            relation.database == database
                && tablespace.is_none_or(|tablespace| relation.tablespace == tablespace)
        };
        let gone: Vec<(RelFileLocator, Fork)> =
            self.forks.keys().copied().filter(|(relation, _)| of_database(relation)).collect();
        gone.into_iter().for_each(|(relation, fork)| self.drop_fork(relation, fork));
    }

    /// Every page met, in the order of relations, forks and blocks.
    pub fn blocks(&self) -> Vec<(BlockKey, Slot)> {
        let mut all: Vec<(BlockKey, Slot)> = self
            .forks
            .values()
            .flat_map(|blocks| blocks.values().map(|&slot| (self.entries[slot.0 as usize].key, slot)))
            .collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    fn release(&mut self, slot: Slot) {
        let page = self.entries[slot.0 as usize].page.take();
        self.buffers.extend(page);
        self.free_slots.push(slot);
    }
}
