//! The last known content of every page that the log changed.
//!
//! Each block that a record referred to has an entry of 32 bytes. Its page is in memory, in the spill file, in the base backup,
//! taken out for a while, or not known.

mod base;
mod files;
mod index;
mod memory;
mod spill;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, Fork, RelFileLocator};
use walden_format::rmgr::Kind;

use crate::page::Page;
use crate::pool::PageBox;
use base::Base;
pub use base::BasePages;
use index::{ForkKey, ForkPages, Recent};
use spill::{Place, Spill};
use state::StateCode;
pub use state::{State, Unknown};

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

impl BlockKey {
    /// The page of a record's block.
    #[inline]
    pub fn of(block: &BlockRef) -> BlockKey {
        BlockKey { relation: block.relation, fork: block.fork, block: block.block }
    }
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

    /// A number for the block, counted from 0: those of blocks that are gone are given to others.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a store keeps its pages.
#[derive(Debug)]
pub struct StoreOptions {
    /// Bytes of memory for pages and for the notes on them. The notes stay in memory (about [`NOTE_BYTES`] for each block
    /// met), and so do [`MIN_RESIDENT`] pages, whatever the number.
    pub memory_bytes: usize,
    /// The folder for the temporary file of pages beyond that.
    pub spill_dir: PathBuf,
    /// Pages that the log changes without an image of them before: a base backup.
    pub base: Option<Box<dyn BasePages>>,
}

impl Default for StoreOptions {
    /// All memory, and no base.
    fn default() -> StoreOptions {
        StoreOptions { memory_bytes: usize::MAX, spill_dir: std::env::temp_dir(), base: None }
    }
}

/// Bytes that are counted for what is noted of a block: its entry, its place in the tables, and room for their growth.
pub const NOTE_BYTES: usize = 96;
/// Pages that stay in memory however little is allowed.
pub const MIN_RESIDENT: usize = 8;
/// Buffers kept for reuse; a record has fewer blocks.
const MAX_BUFFERS: usize = 64;
/// Bytes that are counted for a fork.
const FORK_BYTES: usize = 192;

/// Why the store could not keep a page: the disk is full, or a file of the base backup cannot be read.
///
/// Its pages are unknown from then on, so what is replayed after it says little.
#[derive(Debug)]
pub struct StoreFailure {
    /// What could not be done.
    pub what: String,
    /// What the system said.
    pub error: io::Error,
}

impl std::fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl std::error::Error for StoreFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The last known content of every page that the log changed.
#[derive(Debug)]
pub struct PageStore {
    entries: Vec<Entry>,
    free_slots: Vec<Slot>,
    /// Where each fork is in `forks`.
    numbers: FxHashMap<ForkKey, u32>,
    forks: Vec<ForkPages>,
    free_forks: Vec<u32>,
    recent: Recent,
    misfits: Vec<&'static str>,
    /// Databases copied file by file, with the tablespace of the copy.
    copied: FxHashSet<(u32, u32)>,
    /// Databases copied page by page.
    copied_in_log: FxHashSet<(u32, u32)>,
    buffers: Vec<PageBox>,
    memory_bytes: usize,
    /// Pages in memory, and how many of them may be.
    resident: usize,
    most_resident: usize,
    /// Where pages in memory may be, for the clock; each slot at most once.
    ring: Vec<Slot>,
    hand: usize,
    spill: Spill,
    base: Option<Base>,
    failure: Option<StoreFailure>,
    hints_are_logged: bool,
}

/// A block that was met.
#[derive(Debug)]
struct Entry {
    page: Option<PageBox>,
    last_lsn: Lsn,
    fork: u32,
    block: u32,
    spilled: Place,
    last_kind: u16,
    state: StateCode,
    flags: u8,
}

/// The entry is a block's, not free for one.
const LIVE: u8 = 1;
/// Its page was used since the clock's hand passed.
const USED: u8 = 2;
/// Its slot is in the ring.
const LISTED: u8 = 4;
/// Its page differs from what is in the spill file or the base.
const CHANGED: u8 = 8;
/// Its page is out of the store.
const TAKEN: u8 = 16;
/// Its page can be read from the base again, unless it was changed.
const IN_BASE: u8 = 32;
/// Its page was looked at: what is noted of that stays, whatever becomes of the page and the block.
const SEEN: u8 = 64;

const _: () = assert!(size_of::<Entry>() == 32);

impl Default for PageStore {
    fn default() -> PageStore {
        PageStore::new(StoreOptions::default())
    }
}

impl PageStore {
    /// A store that knows nothing.
    pub fn new(options: StoreOptions) -> PageStore {
        let StoreOptions { memory_bytes, spill_dir, base } = options;
        let base = base.map(Base::new);
        let mut store = PageStore {
            entries: Vec::new(),
            free_slots: Vec::new(),
            numbers: FxHashMap::default(),
            forks: Vec::new(),
            free_forks: Vec::new(),
            recent: Recent::default(),
            misfits: Vec::new(),
            copied: FxHashSet::default(),
            copied_in_log: FxHashSet::default(),
            buffers: Vec::new(),
            memory_bytes,
            resident: 0,
            most_resident: 0,
            ring: Vec::new(),
            hand: 0,
            spill: Spill::new(spill_dir),
            base,
            failure: None,
            hints_are_logged: false,
        };
        store.share_memory();
        store
    }

    /// The place of a page of which nothing will stay, and a page to fill, with any content: what it was is not read.
    #[inline]
    pub fn take_to_overwrite(&mut self, key: BlockKey) -> (Slot, PageBox) {
        let base = self.base.take();
        let slot = self.slot(key);
        self.base = base;
        let entry = &mut self.entries[slot.0 as usize];
        let page = entry.page.take();
        entry.flags |= TAKEN;
        match page {
            Some(page) => {
                self.resident -= 1;
                (slot, page)
            }
            None => (slot, self.buffer()),
        }
    }

    /// What is known of a page.
    #[inline]
    pub fn state(&self, slot: Slot) -> State {
        match self.entries[slot.0 as usize].state {
            StateCode::EXACT => State::Exact,
            code => self.state_of(code),
        }
    }

    /// The record that last touched a page; none did if it is the base's.
    pub fn last(&self, slot: Slot) -> Option<LastRecord> {
        let entry = &self.entries[slot.0 as usize];
        let kind = Kind::from_index(entry.last_kind.into())?;
        Some(LastRecord { lsn: entry.last_lsn, kind })
    }

    /// Whether no record touched a block since it is known by this slot.
    #[inline]
    pub fn is_fresh(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].last_kind == NO_KIND
    }

    /// Whether a page is the base's, no record touched it yet, and the base may have caught it half written: the log has
    /// an image of it before anything that needs it.
    #[inline]
    pub fn may_be_torn(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].last_kind == NO_KIND
            && self.base.as_ref().is_some_and(|base| base.pages.may_be_torn())
    }

    /// Takes an exact page out, to be put back by [`PageStore::put`] or [`PageStore::put_back`], or given up by
    /// [`PageStore::give_up`].
    #[inline]
    pub fn take(&mut self, slot: Slot) -> Option<PageBox> {
        let entry = &mut self.entries[slot.0 as usize];
        if let Some(page) = entry.page.take() {
            entry.flags |= TAKEN;
            self.resident -= 1;
            return Some(page);
        }
        if entry.state != StateCode::EXACT || entry.flags & TAKEN != 0 {
            return None;
        }
        let page = self.fetch(slot)?;
        self.entries[slot.0 as usize].flags |= TAKEN;
        Some(page)
    }

    /// Changes an exact page apart from any record that refers to it. A block that was not met before may be the base's.
    pub fn change(&mut self, key: BlockKey, change: impl FnOnce(&mut Page)) {
        let Some(slot) = self.find(key) else { return };
        let Some(mut page) = self.take(slot) else { return };
        change(&mut page);
        self.entries[slot.0 as usize].flags |= CHANGED;
        self.hold(slot, page);
    }

    /// Whether hints are logged, as far as is known (`XLogHintBitIsNeeded`): because of checksums or `wal_log_hints`.
    pub fn are_hints_logged(&self) -> bool {
        self.hints_are_logged
    }

    /// Hints are logged: a setting or a record says so.
    pub fn log_hints(&mut self) {
        self.hints_are_logged = true;
    }

    /// An exact page, to look at, which is noted.
    pub fn page(&mut self, slot: Slot) -> Option<&Page> {
        let entry = &mut self.entries[slot.0 as usize];
        entry.flags |= SEEN;
        if entry.page.is_none() {
            if entry.state != StateCode::EXACT || entry.flags & TAKEN != 0 {
                return None;
            }
            let page = self.fetch(slot)?;
            self.enter(slot, page);
        }
        self.entries[slot.0 as usize].page.as_deref()
    }

    /// Notes that a page was looked at.
    pub fn see(&mut self, slot: Slot) {
        self.entries[slot.0 as usize].flags |= SEEN;
    }

    /// Whether a page was looked at by [`PageStore::page`] since this was asked last.
    pub fn take_seen(&mut self, slot: Slot) -> bool {
        let flags = &mut self.entries[slot.0 as usize].flags;
        let seen = *flags & SEEN != 0;
        *flags &= !SEEN;
        seen
    }

    /// Copies an exact page; whether it is known.
    pub fn read(&mut self, slot: Slot, page: &mut Page) -> bool {
        let entry = &self.entries[slot.0 as usize];
        if let Some(held) = &entry.page {
            page.0 = held.0;
            return true;
        }
        if entry.state != StateCode::EXACT || entry.flags & TAKEN != 0 {
            return false;
        }
        let Some(fetched) = self.fetch(slot) else { return false };
        page.0 = fetched.0;
        self.recycle(fetched);
        true
    }

    /// Puts a page in: its state is exact from now on.
    #[inline]
    pub fn put(&mut self, slot: Slot, page: PageBox, last: LastRecord) {
        let entry = &mut self.entries[slot.0 as usize];
        entry.state = StateCode::EXACT;
        (entry.last_lsn, entry.last_kind) = (last.lsn, last.kind.index() as u16);
        entry.flags |= CHANGED;
        self.hold(slot, page);
    }

    /// Puts a page back as it was when it was taken.
    pub fn put_back(&mut self, slot: Slot, page: PageBox) {
        self.hold(slot, page);
    }

    /// Gives a page's content up. A state of [`State::Exact`] has no content to give up, and becomes one of not being known.
    #[inline]
    pub fn give_up(&mut self, slot: Slot, state: State, last: LastRecord) {
        let entry = &mut self.entries[slot.0 as usize];
        // Most blocks that are not known never were, and there is nothing to forget.
        let nothing_held = entry.page.is_none() && entry.spilled == Place::NONE;
        let unmarked = entry.flags & !(LIVE | LISTED | SEEN) == 0;
        if entry.state == StateCode::NOT_SEEN
            && matches!(state, State::Unknown(Unknown::NotSeen))
            && nothing_held
            && unmarked
        {
            (entry.last_lsn, entry.last_kind) = (last.lsn, last.kind.index() as u16);
            return;
        }
        self.give_up_known(slot, state, last);
    }

    fn give_up_known(&mut self, slot: Slot, state: State, last: LastRecord) {
        let state = match state {
            State::Exact => StateCode::NOT_SEEN,
            state => self.code_of(state),
        };
        let entry = &mut self.entries[slot.0 as usize];
        entry.state = state;
        (entry.last_lsn, entry.last_kind) = (last.lsn, last.kind.index() as u16);
        self.forget(slot);
    }

    /// A page of any content, to be filled.
    #[inline]
    pub fn buffer(&mut self) -> PageBox {
        self.buffers.pop().unwrap_or_else(PageBox::any)
    }

    /// Gives a buffer back.
    #[inline]
    pub fn recycle(&mut self, page: PageBox) {
        if self.buffers.len() < MAX_BUFFERS {
            self.buffers.push(page);
        }
    }

    /// What went wrong first, if anything did.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.failure.as_ref()
    }

    /// Pages in memory, and pages in the spill file; those in both count twice.
    pub fn kept(&self) -> (usize, usize) {
        (self.resident, self.spill.pages())
    }

    /// Blocks that the store has had at one time at most, known or not: what its notes and pages are bounded by.
    pub fn most_blocks(&self) -> usize {
        self.entries.len()
    }
}

/// No record yet.
const NO_KIND: u16 = u16::MAX;
