//! The last state of every page that the log told of.
//!
//! Each block met has an entry of 32 bytes. Its page is in memory, in the spill file, in the base, taken out for a while, or
//! not known. Beyond the memory allowed, the pages not used for longest are written to the spill file (second chance: a
//! page goes when the clock's hand meets it twice without a use in between).
//!
//! Finding a block is the hot loop of replay, so it mostly takes two small arrays of recent finds and the entry itself: which
//! block an entry is for tells whether the find still holds.

mod spill;

use std::io;
use std::path::PathBuf;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, Fork, RelFileLocator};
use walden_format::rmgr::Kind;

use crate::page::{Misfit, PAGE_BYTES, Page};
use crate::pool::{self, Held, PageBox};
use spill::{Place, Spill};

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
    /// It was known and could not be kept: see [`PageStore::failure`].
    Lost,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unknown::NotSeen => f.write_str("no image of it since the log's start"),
            Unknown::Misfit(misfit) => write!(f, "a record did not fit it: {misfit}"),
            Unknown::DatabaseCopied => f.write_str("its database was copied file by file"),
            Unknown::Lost => f.write_str("it could not be kept or read back"),
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

/// Pages from elsewhere that the log's changes apply to: a base backup. They must not change while they are read.
pub trait BasePages: std::fmt::Debug + Send {
    /// Reads a page; whether there is one.
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool>;

    /// Whether a page may be of several moments because it was written while it was copied, and that can't be seen.
    fn may_be_torn(&self) -> bool {
        false
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
    /// Where blocks come from that the log changes without having told of them before.
    pub base: Option<Box<dyn BasePages>>,
    /// Whether a thread may have the system clear memory for pages before it is wanted: one for all stores of the process.
    pub clears_ahead: bool,
}

impl Default for StoreOptions {
    /// All memory, cleared ahead, and no base.
    fn default() -> StoreOptions {
        StoreOptions {
            memory_bytes: usize::MAX,
            spill_dir: std::env::temp_dir(),
            base: None,
            clears_ahead: true,
        }
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

/// Why the store could not keep a page: the disk is full, or a file of the base can't be read.
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

/// The last state of every page that the log told of.
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
    buffers: Vec<Held>,
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
    page: Option<Held>,
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

type ForkKey = (RelFileLocator, Fork);

#[derive(Debug)]
struct ForkPages {
    key: ForkKey,
    blocks: FxHashMap<u32, Slot>,
}

/// A [`State`] in a byte: what a misfit was is a number from `FIRST_MISFIT` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct StateCode(u8);

impl StateCode {
    const EXACT: StateCode = StateCode(0);
    const UNTRACKED: StateCode = StateCode(1);
    const NOT_SEEN: StateCode = StateCode(2);
    const COPIED: StateCode = StateCode(3);
    const LOST: StateCode = StateCode(4);
    const FIRST_MISFIT: u8 = 5;
    const MAX_MISFITS: usize = (u8::MAX - StateCode::FIRST_MISFIT) as usize;
}

/// The base, and which parts of it no longer count.
#[derive(Debug)]
struct Base {
    pages: Box<dyn BasePages>,
    /// Blocks of a fork from this one on are gone.
    cut: FxHashMap<ForkKey, u32>,
    /// Databases gone in one tablespace, or in all.
    databases: FxHashSet<(u32, Option<u32>)>,
}

impl Base {
    fn cut(&mut self, key: ForkKey, blocks: u32) {
        let cut = self.cut.entry(key).or_insert(blocks);
        *cut = blocks.min(*cut);
    }

    fn counts(&self, key: BlockKey) -> bool {
        let RelFileLocator { database, tablespace, .. } = key.relation;
        self.cut.get(&(key.relation, key.fork)).is_none_or(|&blocks| key.block < blocks)
            && !self.databases.contains(&(database, Some(tablespace)))
            && !self.databases.contains(&(database, None))
    }
}

const RECENT_FORKS: usize = 64;
const RECENT_SLOTS: usize = 4096;

/// What was found last, by hash.
#[derive(Debug)]
struct Recent {
    forks: Box<[Option<(ForkKey, u32)>; RECENT_FORKS]>,
    slots: Box<[u32; RECENT_SLOTS]>,
    /// What was looked for last and is not there.
    missed: Option<BlockKey>,
}

impl Recent {
    fn fork_index(key: &ForkKey) -> usize {
        let (relation, fork) = key;
        let mixed =
            (relation.relation ^ relation.database.rotate_left(16)).wrapping_add(u32::from(fork.0) << 8);
        (mixed.wrapping_mul(0x9E37_79B1) >> 26) as usize % RECENT_FORKS
    }

    fn slot_index(fork: u32, block: u32) -> usize {
        let mixed = (fork.rotate_left(16) ^ block).wrapping_mul(0x9E37_79B1);
        (mixed >> 20) as usize % RECENT_SLOTS
    }
}

impl Drop for PageStore {
    fn drop(&mut self) {
        let held = self.entries.iter_mut().filter_map(|entry| entry.page.take());
        pool::give_back(held.chain(self.buffers.drain(..)));
    }
}

impl Default for PageStore {
    fn default() -> PageStore {
        PageStore::new(StoreOptions::default())
    }
}

impl PageStore {
    /// A store that knows nothing.
    pub fn new(options: StoreOptions) -> PageStore {
        let StoreOptions { memory_bytes, spill_dir, base, clears_ahead } = options;
        if clears_ahead {
            pool::make_ready_ahead();
        }
        let base =
            base.map(|pages| Base { pages, cut: FxHashMap::default(), databases: FxHashSet::default() });
        let mut store = PageStore {
            entries: Vec::new(),
            free_slots: Vec::new(),
            numbers: FxHashMap::default(),
            forks: Vec::new(),
            free_forks: Vec::new(),
            recent: Recent {
                forks: Box::new([None; RECENT_FORKS]),
                slots: Box::new([0; RECENT_SLOTS]),
                missed: None,
            },
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

    /// The place of a page, made if it was not met before.
    #[inline]
    pub fn slot(&mut self, key: BlockKey) -> Slot {
        let fork_key = (key.relation, key.fork);
        let fork = match self.recent.forks[Recent::fork_index(&fork_key)] {
            Some((recent, fork)) if recent == fork_key => fork,
            _ => self.fork_number(fork_key),
        };
        let recent = self.recent.slots[Recent::slot_index(fork, key.block)];
        if let Some(entry) = self.entries.get(recent as usize)
            && entry.fork == fork
            && entry.block == key.block
            && entry.flags & LIVE != 0
        {
            return Slot(recent);
        }
        self.slot_in(fork, key)
    }

    /// The place of a page of which nothing will stay, and a page to fill, with any content: what it was is not read.
    #[inline]
    pub fn take_anew(&mut self, key: BlockKey) -> (Slot, PageBox) {
        let base = self.base.take();
        let slot = self.slot(key);
        self.base = base;
        let entry = &mut self.entries[slot.0 as usize];
        let page = entry.page.take();
        entry.flags |= TAKEN;
        match page {
            Some(page) => {
                self.resident -= 1;
                (slot, page.into())
            }
            None => (slot, self.buffer()),
        }
    }

    /// The place of a page that was met before or that the base has.
    pub fn find(&mut self, key: BlockKey) -> Option<Slot> {
        // An index page asks for the same block row after row.
        if self.recent.missed == Some(key) {
            return None;
        }
        let fork_key = (key.relation, key.fork);
        let fork = match self.recent.forks[Recent::fork_index(&fork_key)] {
            Some((recent, fork)) if recent == fork_key => Some(fork),
            _ => self.numbers.get(&fork_key).copied(),
        };
        if let Some(fork) = fork {
            let recent = self.recent.slots[Recent::slot_index(fork, key.block)];
            if let Some(entry) = self.entries.get(recent as usize)
                && entry.fork == fork
                && entry.block == key.block
                && entry.flags & LIVE != 0
            {
                return Some(Slot(recent));
            }
        }
        if let Some(fork) = fork
            && let Some(&slot) = self.forks[fork as usize].blocks.get(&key.block)
        {
            self.recent.slots[Recent::slot_index(fork, key.block)] = slot.0;
            return Some(slot);
        }
        if self.base.as_ref().is_some_and(|base| base.counts(key)) {
            let slot = self.slot(key);
            return (self.state(slot) == State::Exact).then_some(slot);
        }
        self.recent.missed = Some(key);
        None
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
            return Some(page.into());
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

    /// A page to fill, with any content.
    #[inline]
    pub fn buffer(&mut self) -> PageBox {
        self.buffers.pop().map_or_else(PageBox::any, PageBox::from)
    }

    /// Gives a buffer back.
    #[inline]
    pub fn recycle(&mut self, page: PageBox) {
        if self.buffers.len() < MAX_BUFFERS {
            self.buffers.push(page.hold());
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

    /// Every fork of which a block was met, in order.
    pub fn forks(&self) -> Vec<(RelFileLocator, Fork)> {
        let mut all: Vec<ForkKey> = self.numbers.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Every block met of a fork, in order.
    pub fn blocks_of(&self, relation: RelFileLocator, fork: Fork) -> Vec<(u32, Slot)> {
        let Some(&number) = self.numbers.get(&(relation, fork)) else { return Vec::new() };
        let blocks = &self.forks[number as usize].blocks;
        let mut all: Vec<(u32, Slot)> = blocks.iter().map(|(&block, &slot)| (block, slot)).collect();
        all.sort_unstable_by_key(|(block, _)| *block);
        all
    }

    /// Every block met, in the order of relations, forks and blocks.
    pub fn blocks(&self) -> Vec<(BlockKey, Slot)> {
        let of_fork = |(relation, fork): ForkKey| {
            let key = move |(block, slot)| (BlockKey { relation, fork, block }, slot);
            self.blocks_of(relation, fork).into_iter().map(key)
        };
        self.forks().into_iter().flat_map(of_fork).collect()
    }
}

/// Files that come and go.
impl PageStore {
    /// A relation's files are gone, or made anew.
    pub fn drop_relation(&mut self, relation: RelFileLocator) {
        for fork in 0..4 {
            self.drop_fork(relation, Fork(fork));
        }
    }

    /// A file of a relation is gone, or made anew.
    pub fn drop_fork(&mut self, relation: RelFileLocator, fork: Fork) {
        if let Some(base) = &mut self.base {
            base.cut((relation, fork), 0);
        }
        self.drop_pages((relation, fork));
    }

    /// A file of a relation was cut to `blocks`.
    pub fn truncate(&mut self, relation: RelFileLocator, fork: Fork, blocks: u32) {
        if let Some(base) = &mut self.base {
            base.cut((relation, fork), blocks);
        }
        let Some(&number) = self.numbers.get(&(relation, fork)) else { return };
        let known = &mut self.forks[number as usize].blocks;
        let gone: Vec<Slot> = known.extract_if(|&block, _| block >= blocks).map(|(_, slot)| slot).collect();
        gone.into_iter().for_each(|slot| self.release(slot));
    }

    /// A database's files in a tablespace (or in all) are gone, or about to be made anew.
    pub fn drop_database(&mut self, database: u32, tablespace: Option<u32>) {
        let of_database =
            |of: u32, within: u32| of == database && tablespace.is_none_or(|tablespace| within == tablespace);
        self.copied.retain(|&(of, within)| !of_database(of, within));
        self.copied_in_log.retain(|&(of, within)| !of_database(of, within));
        if let Some(base) = &mut self.base {
            base.databases.insert((database, tablespace));
        }
        let gone: Vec<ForkKey> = self
            .numbers
            .keys()
            .copied()
            .filter(|(relation, _)| of_database(relation.database, relation.tablespace))
            .collect();
        gone.into_iter().for_each(|key| self.drop_pages(key));
    }

    /// A database's files in a tablespace are copies of another's: what is in them is not known.
    pub fn copy_database(&mut self, database: u32, tablespace: u32) {
        self.drop_database(database, Some(tablespace));
        self.copied.insert((database, tablespace));
    }

    /// A database's files in a tablespace are about to be made from another's, and the log has all their pages.
    pub fn copy_database_in_log(&mut self, database: u32, tablespace: u32) {
        self.drop_database(database, Some(tablespace));
        self.copied_in_log.insert((database, tablespace));
    }

    /// Whether a relation is of a database that was copied page by page in the log.
    pub fn is_copied_in_log(&self, relation: RelFileLocator) -> bool {
        self.copied_in_log.contains(&(relation.database, relation.tablespace))
    }

    fn drop_pages(&mut self, key: ForkKey) {
        let Some(number) = self.numbers.remove(&key) else { return };
        let recent = &mut self.recent.forks[Recent::fork_index(&key)];
        if recent.is_some_and(|(recent, _)| recent == key) {
            *recent = None;
        }
        let blocks = std::mem::take(&mut self.forks[number as usize].blocks);
        self.free_forks.push(number);
        blocks.into_values().for_each(|slot| self.release(slot));
    }

    fn release(&mut self, slot: Slot) {
        self.forget(slot);
        let entry = &mut self.entries[slot.0 as usize];
        entry.state = StateCode::NOT_SEEN;
        entry.last_kind = NO_KIND;
        entry.flags &= LISTED | SEEN;
        self.free_slots.push(slot);
    }

    /// Drops a page wherever it is.
    fn forget(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0 as usize];
        entry.flags &= LIVE | LISTED | SEEN;
        let spilled = std::mem::replace(&mut entry.spilled, Place::NONE);
        if let Some(page) = entry.page.take() {
            self.resident -= 1;
            self.recycle(page.into());
        }
        if spilled != Place::NONE {
            self.spill.release(spilled);
        }
    }
}

/// No record yet.
const NO_KIND: u16 = u16::MAX;

/// Blocks met for the first time.
impl PageStore {
    #[inline(never)]
    fn fork_number(&mut self, key: ForkKey) -> u32 {
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => {
                let number = match self.free_forks.pop() {
                    Some(number) => {
                        self.forks[number as usize].key = key;
                        number
                    }
                    None => {
                        self.forks.push(ForkPages { key, blocks: FxHashMap::default() });
                        self.forks.len() as u32 - 1
                    }
                };
                self.numbers.insert(key, number);
                number
            }
        };
        self.recent.forks[Recent::fork_index(&key)] = Some((key, number));
        number
    }

    #[inline(never)]
    fn slot_in(&mut self, fork: u32, key: BlockKey) -> Slot {
        let slot = match self.forks[fork as usize].blocks.get(&key.block) {
            Some(&slot) => slot,
            None => self.meet(fork, key),
        };
        self.recent.slots[Recent::slot_index(fork, key.block)] = slot.0;
        slot
    }

    fn meet(&mut self, fork: u32, key: BlockKey) -> Slot {
        self.recent.missed = None;
        let copied = !self.copied.is_empty()
            && self.copied.contains(&(key.relation.database, key.relation.tablespace));
        let state = if copied { StateCode::COPIED } else { StateCode::NOT_SEEN };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                let entry = &mut self.entries[slot.0 as usize];
                (entry.fork, entry.block, entry.state) = (fork, key.block, state);
                entry.flags |= LIVE;
                slot
            }
            None => {
                self.entries.push(Entry {
                    page: None,
                    last_lsn: Lsn::INVALID,
                    fork,
                    block: key.block,
                    spilled: Place::NONE,
                    last_kind: NO_KIND,
                    state,
                    flags: LIVE,
                });
                Slot(self.entries.len() as u32 - 1)
            }
        };
        self.forks[fork as usize].blocks.insert(key.block, slot);
        self.share_memory();
        if self.base.as_ref().is_some_and(|base| base.counts(key)) {
            self.read_base(slot, key);
        }
        slot
    }

    /// Reads a block that was not met before from the base.
    fn read_base(&mut self, slot: Slot, key: BlockKey) {
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

    /// What is left for pages beside the notes.
    fn share_memory(&mut self) {
        let notes = self.entries.len() * NOTE_BYTES + self.forks.len() * FORK_BYTES;
        let pages = self.memory_bytes.saturating_sub(notes) / PAGE_BYTES;
        self.most_resident = pages.max(MIN_RESIDENT);
    }

    fn state_of(&self, code: StateCode) -> State {
        match code {
            StateCode::EXACT => State::Exact,
            StateCode::UNTRACKED => State::Untracked,
            StateCode::NOT_SEEN => State::Unknown(Unknown::NotSeen),
            StateCode::COPIED => State::Unknown(Unknown::DatabaseCopied),
            StateCode::LOST => State::Unknown(Unknown::Lost),
            StateCode(code) => {
                let what = self.misfits.get(usize::from(code - StateCode::FIRST_MISFIT));
                State::Unknown(Unknown::Misfit(Misfit(what.copied().unwrap_or("of a kind not noted"))))
            }
        }
    }

    fn code_of(&mut self, state: State) -> StateCode {
        match state {
            State::Exact => StateCode::EXACT,
            State::Untracked => StateCode::UNTRACKED,
            State::Unknown(Unknown::NotSeen) => StateCode::NOT_SEEN,
            State::Unknown(Unknown::DatabaseCopied) => StateCode::COPIED,
            State::Unknown(Unknown::Lost) => StateCode::LOST,
            State::Unknown(Unknown::Misfit(misfit)) => {
                let known = self.misfits.iter().position(|&known| known == misfit.0);
                let number = known.unwrap_or_else(|| {
                    if self.misfits.len() < StateCode::MAX_MISFITS {
                        self.misfits.push(misfit.0);
                        self.misfits.len() - 1
                    } else {
                        StateCode::MAX_MISFITS
                    }
                });
                StateCode(StateCode::FIRST_MISFIT + number as u8)
            }
        }
    }
}

/// Pages in memory and elsewhere.
impl PageStore {
    /// Has a page in memory, and makes room if there is too little.
    #[inline]
    fn hold(&mut self, slot: Slot, page: PageBox) {
        self.enter(slot, page);
        if self.resident > self.most_resident {
            self.make_room();
        }
    }

    /// Has a page in memory, whatever room there is.
    #[inline]
    fn enter(&mut self, slot: Slot, page: PageBox) {
        let entry = &mut self.entries[slot.0 as usize];
        let twice = entry.page.replace(page.hold());
        let listed = entry.flags & LISTED != 0;
        entry.flags = entry.flags & !TAKEN | USED | LISTED;
        if !listed {
            self.ring.push(slot);
        }
        match twice {
            Some(page) => self.recycle(page.into()),
            None => self.resident += 1,
        }
    }

    #[inline(never)]
    fn make_room(&mut self) {
        while self.resident > self.most_resident
            && let Some(&slot) = self.ring.get(self.hand).or(self.ring.first())
        {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let entry = &mut self.entries[slot.0 as usize];
            if entry.page.is_none() {
                entry.flags &= !LISTED;
                self.ring.swap_remove(self.hand);
            } else if entry.flags & USED != 0 {
                entry.flags &= !USED;
                self.hand += 1;
            } else {
                self.evict(slot);
            }
        }
    }

    /// Moves a page from memory to the spill file, unless it is there already or the base has it.
    fn evict(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0 as usize];
        let Some(page) = entry.page.take().map(PageBox::from) else { return };
        self.resident -= 1;
        let elsewhere = entry.spilled != Place::NONE || entry.flags & IN_BASE != 0;
        if entry.flags & CHANGED != 0 || !elsewhere {
            match self.spill.write(entry.spilled, &page) {
                Ok(place) => {
                    entry.spilled = place;
                    entry.flags &= !(CHANGED | IN_BASE);
                }
                Err(error) => {
                    entry.spilled = Place::NONE;
                    let what =
                        format!("write a temporary file of pages in {}", self.spill.folder().display());
                    self.lose(slot, what, error);
                }
            }
        }
        self.recycle(page);
    }

    /// Reads a page that is exact but not in memory.
    #[inline(never)]
    fn fetch(&mut self, slot: Slot) -> Option<PageBox> {
        let mut page = self.buffer();
        let entry = &self.entries[slot.0 as usize];
        let outcome = if entry.spilled != Place::NONE {
            self.spill.read(entry.spilled, &mut page)
        } else {
            let (relation, fork) = self.forks[entry.fork as usize].key;
            let key = BlockKey { relation, fork, block: entry.block };
            match self.base.as_mut().map(|base| base.pages.read(key, &mut page)) {
                Some(Ok(true)) => Ok(()),
                Some(Err(error)) => Err(error),
                Some(Ok(false)) | None => Err(io::ErrorKind::NotFound.into()),
            }
        };
        match outcome {
            Ok(()) => Some(page),
            Err(error) => {
                self.recycle(page);
                self.lose(slot, "read a page back".into(), error);
                None
            }
        }
    }

    /// Notes that a page could not be kept.
    fn lose(&mut self, slot: Slot, what: String, error: io::Error) {
        self.failure.get_or_insert(StoreFailure { what, error });
        self.forget(slot);
        self.entries[slot.0 as usize].state = StateCode::LOST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use walden_format::rmgr;
    use walden_format::version::Major;

    const RELATION: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 7 };
    const OTHER: RelFileLocator = RelFileLocator { tablespace: 1663, database: 6, relation: 7 };

    fn key(relation: RelFileLocator, block: u32) -> BlockKey {
        BlockKey { relation, fork: Fork::MAIN, block }
    }

    fn last() -> LastRecord {
        LastRecord { lsn: Lsn(40), kind: rmgr::kind(Major::V18, 10, 0) }
    }

    fn filled(byte: u8) -> PageBox {
        PageBox::from(&Page([byte; PAGE_BYTES]))
    }

    fn first_byte(store: &mut PageStore, slot: Slot) -> Option<u8> {
        let mut page = Page::default();
        store.read(slot, &mut page).then(|| {
            assert!(page.0.iter().all(|&byte| byte == page.0[0]));
            page.0[0]
        })
    }

    fn small() -> PageStore {
        PageStore::new(StoreOptions { memory_bytes: 0, ..StoreOptions::default() })
    }

    /// A base of 4 blocks in each relation, full of their block's number plus 100; the third can't be read.
    #[derive(Debug)]
    struct FourBlocks;

    impl BasePages for FourBlocks {
        fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool> {
            match key.block {
                2 => Err(io::ErrorKind::PermissionDenied.into()),
                block => {
                    page.0.fill(block as u8 + 100);
                    Ok(block < 4)
                }
            }
        }
    }

    fn with_base(memory_bytes: usize) -> PageStore {
        PageStore::new(StoreOptions {
            memory_bytes,
            base: Some(Box::new(FourBlocks)),
            ..StoreOptions::default()
        })
    }

    #[test]
    fn pages_beyond_the_bound_are_read_back() {
        let mut store = small();
        for block in 0..100 {
            let slot = store.slot(key(RELATION, block));
            store.put(slot, filled(block as u8), last());
        }
        assert_eq!(store.kept(), (MIN_RESIDENT, 100 - MIN_RESIDENT));
        for block in 0..100 {
            let slot = store.find(key(RELATION, block)).unwrap();
            assert_eq!(first_byte(&mut store, slot), Some(block as u8));
            assert_eq!(store.last(slot), Some(last()));
        }
        store.truncate(RELATION, Fork::MAIN, 50);
        assert!(store.kept().1 <= 50);
        store.drop_relation(RELATION);
        assert_eq!(store.kept(), (0, 0));
        assert!(store.blocks().is_empty());
        for block in 0..100 {
            let slot = store.slot(key(OTHER, block));
            assert_eq!((store.take(slot), store.state(slot)).1, State::Unknown(Unknown::NotSeen));
            store.put(slot, filled(block as u8), last());
        }
        // The places of what was dropped were used again.
        assert_eq!(store.spill.pages(), 100 - MIN_RESIDENT);
    }

    #[test]
    fn an_unchanged_page_is_not_written_again() {
        let mut store = small();
        let slots: Vec<Slot> = (0..20).map(|block| store.slot(key(RELATION, block))).collect();
        for (number, &slot) in slots.iter().enumerate() {
            store.put(slot, filled(number as u8), last());
        }
        let slot = slots[0];
        assert!(store.entries[slot.0 as usize].page.is_none());
        let page = store.take(slot).unwrap();
        assert!(store.take(slot).is_none(), "it is out");
        store.put_back(slot, page);
        assert_eq!(store.entries[slot.0 as usize].flags & CHANGED, 0);
        store.change(key(RELATION, 0), |page| page.0.fill(77));
        for &slot in &slots[1..] {
            let page = store.take(slot).unwrap();
            store.put_back(slot, page);
        }
        assert!(store.entries[slot.0 as usize].page.is_none());
        assert_eq!(first_byte(&mut store, slot), Some(77));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told() {
        let nowhere = PathBuf::from("/nowhere/at/all");
        let options = StoreOptions { memory_bytes: 0, spill_dir: nowhere, ..StoreOptions::default() };
        let mut store = PageStore::new(options);
        for block in 0..20 {
            let slot = store.slot(key(RELATION, block));
            store.put(slot, filled(1), last());
        }
        let failure = store.failure().unwrap();
        assert!(failure.to_string().starts_with("write a temporary file of pages in /nowhere"), "{failure}");
        assert_eq!(store.kept(), (MIN_RESIDENT, 0));
        let lost = store.blocks().iter().filter(|(_, slot)| store.state(*slot) != State::Exact).count();
        assert_eq!(lost, 20 - MIN_RESIDENT);
    }

    #[test]
    fn blocks_not_met_before_come_from_the_base() {
        for memory_bytes in [0, usize::MAX] {
            let mut store = with_base(memory_bytes);
            let slot = store.slot(key(RELATION, 1));
            assert_eq!((store.state(slot), store.last(slot)), (State::Exact, None));
            // Out of memory and back from the base.
            for relation in 100..120 {
                let relation = RelFileLocator { relation, ..RELATION };
                assert!(store.find(key(relation, 0)).is_some());
            }
            assert_eq!(store.kept().1, 0);
            assert_eq!(store.take(slot).unwrap().0[0], 101);
            store.put(slot, filled(9), last());
            assert_eq!(first_byte(&mut store, slot), Some(9));
            assert_eq!(store.find(key(RELATION, 4)), None);
            assert!(store.failure().is_none());
            let unreadable = store.slot(key(RELATION, 2));
            assert_eq!(store.state(unreadable), State::Unknown(Unknown::Lost));
            assert!(store.failure().unwrap().to_string().contains("base backup"));
        }
    }

    #[test]
    fn what_was_cut_or_dropped_is_not_in_the_base() {
        let mut store = with_base(usize::MAX);
        let knows = |store: &mut PageStore, relation, block| {
            let slot = store.slot(key(relation, block));
            store.state(slot)
        };
        let not_seen = State::Unknown(Unknown::NotSeen);
        store.truncate(RELATION, Fork::MAIN, 1);
        store.truncate(RELATION, Fork::MAIN, 3);
        assert_eq!(knows(&mut store, RELATION, 0), State::Exact);
        assert_eq!(knows(&mut store, RELATION, 1), not_seen);
        store.drop_relation(RELATION);
        assert_eq!(knows(&mut store, RELATION, 0), not_seen);
        assert_eq!(knows(&mut store, OTHER, 0), State::Exact);
        store.copy_database(OTHER.database, OTHER.tablespace);
        assert_eq!(knows(&mut store, OTHER, 0), State::Unknown(Unknown::DatabaseCopied));
        store.drop_database(OTHER.database, Some(OTHER.tablespace));
        assert_eq!(knows(&mut store, OTHER, 0), not_seen);
        let third = RelFileLocator { database: 9, ..OTHER };
        assert_eq!(knows(&mut store, third, 0), State::Exact);
        store.drop_database(9, None);
        assert_eq!(knows(&mut store, third, 0), not_seen);
    }

    #[test]
    fn states_survive_their_short_form() {
        let mut store = PageStore::default();
        let names: Vec<&'static str> = (0..300).map(|n| &*format!("misfit {n}").leak()).collect();
        let misfits = names.iter().map(|&name| State::Unknown(Unknown::Misfit(Misfit(name))));
        let others =
            [State::Untracked, State::Unknown(Unknown::NotSeen), State::Unknown(Unknown::DatabaseCopied)];
        let states: Vec<State> = others.into_iter().chain(misfits).collect();
        for (block, &state) in states.iter().enumerate() {
            let slot = store.slot(key(RELATION, block as u32));
            store.give_up(slot, state, last());
        }
        for (block, &state) in states.iter().enumerate() {
            let slot = store.slot(key(RELATION, block as u32));
            if block < 250 {
                assert_eq!(store.state(slot), state);
            } else {
                assert!(matches!(store.state(slot), State::Unknown(Unknown::Misfit(_))));
            }
        }
    }

    /// What is done to a store.
    #[derive(Clone, Debug)]
    enum Act {
        Put(u8, u8),
        Change(u8, u8),
        Keep(u8),
        GiveUp(u8),
        Truncate(u8),
        Drop,
        DropDatabase,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            8 => any::<(u8, u8)>().prop_map(|(block, byte)| Act::Put(block, byte)),
            4 => any::<(u8, u8)>().prop_map(|(block, byte)| Act::Change(block, byte)),
            4 => any::<u8>().prop_map(Act::Keep),
            2 => any::<u8>().prop_map(Act::GiveUp),
            1 => any::<u8>().prop_map(Act::Truncate),
            1 => Just(Act::Drop),
            1 => Just(Act::DropDatabase),
        ];
        prop::collection::vec(act, 0..200)
    }

    proptest! {
        /// Two relations of up to 32 blocks, of which 8 fit into memory, against a map.
        #[test]
        fn a_bounded_store_is_a_map(acts in acts()) {
            let mut store = small();
            let mut map = std::collections::BTreeMap::new();
            let place = |number: u8| key(if number & 32 == 0 { RELATION } else { OTHER }, (number & 31).into());
            for act in acts {
                match act {
                    Act::Put(block, byte) => {
                        let slot = store.slot(place(block));
                        store.put(slot, filled(byte), last());
                        map.insert(place(block), byte);
                    }
                    Act::Change(block, byte) => {
                        let slot = store.slot(place(block));
                        let page = store.take(slot);
                        prop_assert_eq!(page.as_ref().map(|page| page.0[0]), map.get(&place(block)).copied());
                        if let Some(mut page) = page {
                            page.0.fill(byte);
                            store.put(slot, page, last());
                            map.insert(place(block), byte);
                        }
                    }
                    Act::Keep(block) => {
                        let slot = store.slot(place(block));
                        if let Some(page) = store.take(slot) {
                            store.put_back(slot, page);
                        }
                    }
                    Act::GiveUp(block) => {
                        let slot = store.slot(place(block));
                        let _ = store.take(slot);
                        store.give_up(slot, State::Untracked, last());
                        map.remove(&place(block));
                    }
                    Act::Truncate(blocks) => {
                        store.truncate(RELATION, Fork::MAIN, blocks.into());
                        map.retain(|key, _| key.relation != RELATION || key.block < blocks.into());
                    }
                    Act::Drop => {
                        store.drop_relation(OTHER);
                        map.retain(|key, _| key.relation != OTHER);
                    }
                    Act::DropDatabase => {
                        store.drop_database(RELATION.database, None);
                        map.retain(|key, _| key.relation != RELATION);
                    }
                }
                prop_assert!(store.kept().0 <= MIN_RESIDENT);
            }
            let exact: Vec<(BlockKey, Slot)> =
                store.blocks().into_iter().filter(|(_, slot)| store.state(*slot) == State::Exact).collect();
            let held: Vec<(BlockKey, u8)> =
                exact.into_iter().map(|(key, slot)| (key, first_byte(&mut store, slot).unwrap())).collect();
            prop_assert_eq!(held, map.into_iter().collect::<Vec<_>>());
            prop_assert!(store.failure().is_none());
        }
    }
}
