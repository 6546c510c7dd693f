//! Finds the entry of a block.
//!
//! This is the hot path of replay. Two small direct-mapped caches, of forks and of slots, avoid most lookups
//! in the hash tables. An entry has its fork and block number, which show whether a cached slot is still
//! valid.

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RelFileLocator};

use super::spill::Place;
use super::state::{State, StateCode};
use super::{BlockKey, Entry, LIVE, NO_KIND, PageStore, Slot};

pub(super) type ForkKey = (RelFileLocator, Fork);

#[derive(Debug)]
pub(super) struct ForkPages {
    pub(super) key: ForkKey,
    pub(super) blocks: FxHashMap<u32, Slot>,
    /// An exclusive upper bound of these block numbers.
    pub(super) end: u64,
}

const RECENT_FORKS: usize = 64;
const RECENT_SLOTS: usize = 4096;

/// Direct-mapped caches of the last lookups, indexed by hash.
#[derive(Debug)]
pub(super) struct Recent {
    pub(super) forks: Box<[Option<(ForkKey, u32)>; RECENT_FORKS]>,
    slots: Box<[u32; RECENT_SLOTS]>,
    /// The last block that was not found.
    pub(super) missed: Option<BlockKey>,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { forks: Box::new([None; RECENT_FORKS]), slots: Box::new([0; RECENT_SLOTS]), missed: None }
    }
}

impl Recent {
    pub(super) fn fork_index(key: &ForkKey) -> usize {
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

impl PageStore {
    /// Returns the slot of a page; creates an entry for a new block.
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

    /// Returns the slot of a page that has an entry or that the base backup has.
    pub fn find(&mut self, key: BlockKey) -> Option<Slot> {
        // The tuples of an index page often point at the same heap block.
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
        if self.base.as_ref().is_some_and(|base| base.is_valid(key)) {
            let slot = self.slot(key);
            return (self.state(slot) == State::Exact).then_some(slot);
        }
        self.recent.missed = Some(key);
        None
    }

    /// Returns all forks with a known block, sorted.
    pub fn forks(&self) -> Vec<(RelFileLocator, Fork)> {
        let mut all: Vec<ForkKey> = self.numbers.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Returns all known blocks of a fork, sorted.
    pub fn blocks_of(&self, relation: RelFileLocator, fork: Fork) -> Vec<(u32, Slot)> {
        let Some(&number) = self.numbers.get(&(relation, fork)) else { return Vec::new() };
        let blocks = &self.forks[number as usize].blocks;
        let mut all: Vec<(u32, Slot)> = blocks.iter().map(|(&block, &slot)| (block, slot)).collect();
        all.sort_unstable_by_key(|(block, _)| *block);
        all
    }

    /// Returns all known blocks, sorted by relation, fork and block number.
    pub fn blocks(&self) -> Vec<(BlockKey, Slot)> {
        let of_fork = |(relation, fork): ForkKey| {
            let key = move |(block, slot)| (BlockKey { relation, fork, block }, slot);
            self.blocks_of(relation, fork).into_iter().map(key)
        };
        self.forks().into_iter().flat_map(of_fork).collect()
    }
}

/// Creation of entries.
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
                        self.forks.push(ForkPages { key, blocks: FxHashMap::default(), end: 0 });
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
            None => self.new_entry(fork, key),
        };
        self.recent.slots[Recent::slot_index(fork, key.block)] = slot.0;
        slot
    }

    fn new_entry(&mut self, fork: u32, key: BlockKey) -> Slot {
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
        let pages = &mut self.forks[fork as usize];
        pages.blocks.insert(key.block, slot);
        pages.end = pages.end.max(u64::from(key.block) + 1);
        self.share_memory();
        if self.base.as_ref().is_some_and(|base| base.is_valid(key)) {
            self.read_base(slot, key);
        }
        slot
    }
}
