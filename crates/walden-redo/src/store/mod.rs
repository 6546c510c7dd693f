//! The last known content of every page that the WAL changed.
//!
//! Each block that a record referred to has an entry of 32 bytes. The page of the block is in memory, in the
//! spill file, in the base backup, lent to the caller ([`PageStore::take`]), or not known.

mod base;
mod files;
mod hints;
mod index;
mod memory;
mod overwrites;
mod share;
mod spill;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, Fork, Image, RelFileLocator};
use walden_format::rmgr::Kind;

use crate::image::{NO_MEMORY, restore_page};
use crate::page::{Misfit, Page};
use crate::pool::PageBox;
use base::Base;
pub use base::BasePages;
pub use hints::{HintLogging, HintSettings};
use index::{ForkKey, ForkPages, Recent};
pub use overwrites::Overwrites;
pub use share::PageShare;
use spill::{Place, Spill};
use state::StateCode;
pub use state::{State, Unknown};

/// Identifies a page: PostgreSQL's `BufferTag`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The relation's tablespace, database and relfilenumber.
    pub relation: RelFileLocator,
    /// The fork: main, FSM, VM or init.
    pub fork: Fork,
    /// The block number within the fork.
    pub block: u32,
}

impl BlockKey {
    /// Returns the key of a record's block reference.
    #[inline]
    pub fn from_block(block: &BlockRef) -> BlockKey {
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
    /// LSN of the record's start.
    pub lsn: Lsn,
    /// Resource manager and kind of the record.
    pub kind: Kind,
}

/// The index of a page's entry in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u32);

impl Slot {
    /// The slot of a page that is only a copy, without an entry.
    pub(crate) const NONE: Slot = Slot(u32::MAX);

    /// Returns the index, counted from 0. Indexes of dropped blocks are reused.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Memory, spill folder and base backup of a [`PageStore`].
#[derive(Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Bytes of memory for pages and entries. Entries (about [`NOTE_BYTES`] for each known block) and at
    /// least [`MIN_RESIDENT`] pages stay in memory even if they exceed it.
    pub memory_bytes: usize,
    /// The folder of the temporary file that holds the other pages.
    pub spill_dir: PathBuf,
    /// A base backup, for pages that the WAL changes without an earlier full-page image.
    pub base: Option<Box<dyn BasePages>>,
    /// The pages that the store keeps. Other pages are not changed, and have no entries.
    pub share: PageShare,
    /// Pages that the rest of the WAL overwrites: earlier changes of them are not replayed. The records to be
    /// replayed must contain all overwriting records, and must not copy a database.
    pub overwrites: Arc<Overwrites>,
}

walden_format::setters!(StoreOptions {
    memory_bytes: usize,
    base: Option<Box<dyn BasePages>>,
    share: PageShare,
    overwrites: Arc<Overwrites>,
});

impl Default for StoreOptions {
    /// Returns unlimited memory, no base backup, and all pages.
    fn default() -> StoreOptions {
        let (memory_bytes, spill_dir) = (usize::MAX, std::env::temp_dir());
        StoreOptions {
            memory_bytes,
            spill_dir,
            base: None,
            share: PageShare::ALL,
            overwrites: Arc::default(),
        }
    }
}

/// Bytes to account for a block: its entry, its hash table entry, and its share of the free capacity of both
/// tables.
pub const NOTE_BYTES: usize = 96;
/// Pages that stay in memory even if [`StoreOptions::memory_bytes`] is less.
pub const MIN_RESIDENT: usize = 8;
/// Maximum number of spare pages; a record has fewer blocks.
const MAX_BUFFERS: usize = 64;
/// Bytes to account for a fork's hash table.
const FORK_BYTES: usize = 192;

/// The reason why the store could not keep a page: the disk is full, a file of the base backup cannot be
/// read, or memory is lacking.
///
/// The page is unknown from then on, so that later results are incomplete.
#[derive(Debug)]
pub struct StoreFailure {
    /// The operation that failed: "cannot read ... from the base backup".
    pub what: String,
    /// The error of the file system, or one of kind [`io::ErrorKind::OutOfMemory`].
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

/// The last known content of every page that the WAL changed.
#[derive(Debug)]
pub struct PageStore {
    entries: Vec<Entry>,
    free_slots: Vec<Slot>,
    /// Index of each fork in `forks`. Its hash is not seeded: it is in the hot path, and the order of
    /// iteration, in which a dropped database's slots are released, must be the same in each run.
    numbers: FxHashMap<ForkKey, u32>,
    forks: Vec<ForkPages>,
    free_forks: Vec<u32>,
    recent: Recent,
    misfits: Vec<&'static str>,
    has_misfits: bool,
    /// Databases copied file by file (`CREATE DATABASE ... STRATEGY file_copy`), with the tablespace of the
    /// copy.
    copied: FxHashSet<(u32, u32)>,
    /// Pages of visibility maps whose last image had no bits, by relation.
    maps_without_bits: HashMap<RelFileLocator, HashSet<u32>>,
    buffers: Vec<PageBox>,
    memory_bytes: usize,
    /// Number of pages in memory, and its limit.
    resident: usize,
    max_resident: usize,
    /// The clock's ring: slots whose pages may be in memory, each at most once.
    ring: Vec<Slot>,
    hand: usize,
    spill: Spill,
    base: Option<Base>,
    failure: Option<StoreFailure>,
    hints: HintLogging,
    share: PageShare,
    overwrites: Arc<Overwrites>,
}

/// A block that a record referred to or that the base backup has.
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

/// The entry belongs to a block; otherwise it is free.
const LIVE: u8 = 1;
/// The entry's page was used since the hand of the clock algorithm last passed.
const USED: u8 = 2;
/// The entry's slot is in the ring of the clock algorithm.
const LISTED: u8 = 4;
/// The entry's page differs from the copy in the spill file or the base backup.
const CHANGED: u8 = 8;
/// The entry's page is lent to the caller.
const TAKEN: u8 = 16;
/// The entry's page can be read from the base backup again, unless `CHANGED` is set.
const IN_BASE: u8 = 32;
/// The entry's page was read through [`PageStore::page`]; the flag survives eviction and release.
const SEEN: u8 = 64;

const _: () = assert!(size_of::<Entry>() == 32);

impl Default for PageStore {
    fn default() -> PageStore {
        PageStore::new(StoreOptions::default())
    }
}

impl PageStore {
    /// Creates a store in which every page is unknown.
    pub fn new(options: StoreOptions) -> PageStore {
        let StoreOptions { memory_bytes, spill_dir, base, share, overwrites } = options;
        let base = base.map(Base::new);
        let mut store = PageStore {
            entries: Vec::new(),
            free_slots: Vec::new(),
            numbers: FxHashMap::default(),
            forks: Vec::new(),
            free_forks: Vec::new(),
            recent: Recent::default(),
            misfits: Vec::new(),
            has_misfits: false,
            copied: FxHashSet::default(),
            maps_without_bits: HashMap::default(),
            buffers: Vec::new(),
            memory_bytes,
            resident: 0,
            max_resident: 0,
            ring: Vec::new(),
            hand: 0,
            spill: Spill::new(spill_dir),
            base,
            failure: None,
            hints: HintLogging::default(),
            share,
            overwrites,
        };
        store.share_memory();
        store
    }

    /// Returns the slot of a page that will be overwritten completely, and a spare page with arbitrary
    /// content, if there is one. Does not read the old page from the spill file or the base backup.
    #[inline]
    pub fn take_to_overwrite(&mut self, key: BlockKey) -> (Slot, Option<PageBox>) {
        let base = self.base.take();
        let slot = self.slot(key);
        self.base = base;
        let entry = &mut self.entries[slot.0 as usize];
        let page = entry.page.take();
        entry.flags |= TAKEN;
        if page.is_some() {
            self.resident -= 1;
        }
        (slot, page.or_else(|| self.buffers.pop()))
    }

    /// Returns whether a page is exact, unknown or untracked.
    #[inline]
    pub fn state(&self, slot: Slot) -> State {
        match self.entries[slot.0 as usize].state {
            StateCode::EXACT => State::Exact,
            code => self.state_of(code),
        }
    }

    /// Returns the record that last changed a page; `None` if no record has changed the base backup's page.
    pub fn last(&self, slot: Slot) -> Option<LastRecord> {
        let entry = &self.entries[slot.0 as usize];
        let kind = Kind::from_index(entry.last_kind.into())?;
        Some(LastRecord { lsn: entry.last_lsn, kind })
    }

    /// Returns whether no record has changed the block since it got this slot.
    #[inline]
    pub fn is_fresh(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].last_kind == NO_KIND
    }

    /// Returns whether no record has changed the base backup's page, which may be torn. The WAL then has a
    /// full-page image of it before any change, because the backup starts with a checkpoint.
    #[inline]
    pub fn may_be_torn(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].last_kind == NO_KIND
            && self.base.as_ref().is_some_and(|base| base.pages.may_be_torn())
    }

    /// Lends an exact page to the caller, who returns it by [`PageStore::put`] or [`PageStore::put_back`], or
    /// drops it by [`PageStore::give_up`]. `None` if the page is not exact or is lent already.
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

    /// Changes an exact page without setting its last record. A block without an entry may come from the base
    /// backup.
    pub fn change(&mut self, key: BlockKey, change: impl FnOnce(&mut Page)) {
        if !self.share.has(key) {
            return;
        }
        let Some(slot) = self.find(key) else { return };
        let Some(mut page) = self.take(slot) else { return };
        change(&mut page);
        self.entries[slot.0 as usize].flags |= CHANGED;
        self.hold(slot, page);
    }

    /// Returns the pages that the store keeps.
    #[inline]
    pub fn share(&self) -> PageShare {
        self.share
    }

    /// Returns whether every change of a page matters to the store.
    #[inline]
    pub(crate) fn wants_all(&self) -> bool {
        self.share.is_all() && self.overwrites.count() == 0
    }

    /// Returns whether a change of a page by the record at `lsn` matters: the store keeps the page, and no
    /// later record overwrites it.
    #[inline]
    pub(crate) fn wants(&self, key: BlockKey, lsn: Lsn) -> bool {
        self.share.has(key) && !self.overwrites.has_later(key, lsn)
    }

    /// Returns whether hint bits are logged (`XLogHintBitIsNeeded`: checksums or `wal_log_hints`), as far as
    /// the WAL shows.
    pub fn are_hints_logged(&self) -> bool {
        self.hints.is_on()
    }

    /// Returns the knowledge of whether hint bits are logged, mutable.
    pub fn hint_logging(&mut self) -> &mut HintLogging {
        &mut self.hints
    }

    /// Returns an exact page for reading, and marks it as read for [`PageStore::take_seen`].
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

    /// Marks a page as read for [`PageStore::take_seen`].
    pub fn see(&mut self, slot: Slot) {
        self.entries[slot.0 as usize].flags |= SEEN;
    }

    /// Returns whether a page was read by [`PageStore::page`] since the last call, and clears the mark.
    pub fn take_seen(&mut self, slot: Slot) -> bool {
        let flags = &mut self.entries[slot.0 as usize].flags;
        let seen = *flags & SEEN != 0;
        *flags &= !SEEN;
        seen
    }

    /// Copies an exact page to `page`; false if the page is not exact.
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

    /// Stores a page, which is exact from now on and was last changed by `last`.
    #[inline]
    pub fn put(&mut self, slot: Slot, page: PageBox, last: LastRecord) {
        let entry = &mut self.entries[slot.0 as usize];
        entry.state = StateCode::EXACT;
        (entry.last_lsn, entry.last_kind) = (last.lsn, last.kind.index() as u16);
        entry.flags |= CHANGED;
        self.hold(slot, page);
    }

    /// Returns a lent page unchanged.
    pub fn put_back(&mut self, slot: Slot, page: PageBox) {
        self.hold(slot, page);
    }

    /// Drops a page's content and sets its state. [`State::Exact`] makes no sense without content and becomes
    /// unknown.
    #[inline]
    pub fn give_up(&mut self, slot: Slot, state: State, last: LastRecord) {
        let entry = &mut self.entries[slot.0 as usize];
        // The common case: the block was never known, so there is nothing to drop.
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

    /// Returns a page with arbitrary content, to be filled.
    #[inline]
    pub(crate) fn buffer(&mut self) -> PageBox {
        self.buffers.pop().unwrap_or_default()
    }

    /// Returns a page with arbitrary content from [`PageStore::recycle`], if there is one.
    #[inline]
    pub fn spare(&mut self) -> Option<PageBox> {
        self.buffers.pop()
    }

    /// Restores an image into a spare page or a new one. [`PageStore::recycle`] makes the page available for
    /// the next image.
    ///
    /// # Errors
    /// The bytes are not a valid image, or memory is lacking.
    #[inline]
    pub fn restore_image(&mut self, image: &Image, stored: &[u8]) -> Result<PageBox, Misfit> {
        let spare = self.buffers.pop();
        self.restore_image_into(image, stored, spare)
    }

    /// Restores an image into `spare`, which may have any content, or into a new page.
    #[inline]
    pub(crate) fn restore_image_into(
        &mut self,
        image: &Image,
        stored: &[u8],
        spare: Option<PageBox>,
    ) -> Result<PageBox, Misfit> {
        restore_page(image, stored, spare).inspect_err(|misfit| self.note_misfit(*misfit))
    }

    /// Notes an error that makes a page unknown although the record is valid.
    #[cold]
    fn note_misfit(&mut self, misfit: Misfit) {
        if misfit == NO_MEMORY {
            let what = "cannot restore the full-page image of a page".to_owned();
            let error = io::Error::new(io::ErrorKind::OutOfMemory, misfit);
            self.failure.get_or_insert(StoreFailure { what, error });
        }
    }

    /// Takes a page that is no longer needed, for the next caller of [`PageStore::spare`] or
    /// [`PageStore::restore_image`]. Pages beyond the number of blocks in a record are freed.
    #[inline]
    pub fn recycle(&mut self, page: PageBox) {
        if self.buffers.len() < MAX_BUFFERS {
            self.buffers.push(page);
        }
    }

    /// Whether a page is exact and may differ from the base backup's: a record was replayed on it, or the
    /// backup lacks it.
    pub fn is_changed(&self, slot: Slot) -> bool {
        let entry = &self.entries[slot.0 as usize];
        entry.state == StateCode::EXACT && (entry.flags & CHANGED != 0 || entry.flags & IN_BASE == 0)
    }

    /// Returns whether a record did not fit its pages. A store with a share of the pages does not notice
    /// records that do not fit pages of other shares.
    pub fn has_misfits(&self) -> bool {
        self.has_misfits || !self.misfits.is_empty()
    }

    /// Notes a record that does not fit its pages, also if this makes none of the share's pages unknown.
    pub(crate) fn note_misfit_record(&mut self) {
        self.has_misfits = true;
    }

    /// What went wrong first, if anything did.
    pub fn failure(&self) -> Option<&StoreFailure> {
        self.failure.as_ref()
    }

    /// Returns the number of pages in memory, and of pages in the spill file; pages in both count twice.
    pub fn kept(&self) -> (usize, usize) {
        (self.resident, self.spill.pages())
    }

    /// Returns the maximum number of blocks, known or not, that the store has had at one time. The number
    /// bounds the entries and pages.
    pub fn most_blocks(&self) -> usize {
        self.entries.len()
    }
}

/// No record yet.
const NO_KIND: u16 = u16::MAX;
