//! Effects of creating, truncating and dropping files on the stored pages.

use std::collections::HashSet;

use walden_format::record::{Fork, RelFileLocator};

use super::index::{ForkKey, Recent};
use super::{BlockKey, PageStore, Slot};

impl PageStore {
    /// Forgets all pages of a relation, whose files were dropped or created.
    pub fn drop_relation(&mut self, relation: RelFileLocator) {
        for fork in 0..4 {
            self.drop_fork(relation, Fork(fork));
        }
    }

    /// Forgets all pages of a fork, whose file was dropped or created.
    pub fn drop_fork(&mut self, relation: RelFileLocator, fork: Fork) {
        if let Some(base) = &mut self.base {
            base.cut((relation, fork), 0);
        }
        self.drop_pages((relation, fork));
    }

    /// Forgets the pages of a fork from block number `blocks` on.
    pub fn truncate(&mut self, relation: RelFileLocator, fork: Fork, blocks: u32) {
        if let Some(base) = &mut self.base {
            base.cut((relation, fork), blocks);
        }
        let Some(&number) = self.numbers.get(&(relation, fork)) else { return };
        let pages = &mut self.forks[number as usize];
        // In most cases no known page is truncated; `end` shows that without a visit to each page.
        if u64::from(blocks) >= pages.end {
            return;
        }
        pages.end = blocks.into();
        // Slots are reused in the order of release, and some results depend on which block gets which slot.
        // The compressor's do (`PageStore::take_seen`), so this order must not change.
        let known = &mut pages.blocks;
        let gone: Vec<Slot> = known.extract_if(|&block, _| block >= blocks).map(|(_, slot)| slot).collect();
        gone.into_iter().for_each(|slot| self.release(slot));
    }

    /// Forgets all pages of a database in one tablespace, or in all (`None`).
    pub fn drop_database(&mut self, database: u32, tablespace: Option<u32>) {
        if let Some(base) = &mut self.base {
            base.databases.insert((database, tablespace));
        }
        self.drop_files_of(database, |within| tablespace.is_none_or(|tablespace| within == tablespace));
    }

    /// Forgets all pages of a database in several tablespaces. A record may name millions of tablespaces, so
    /// this function visits the known forks once, not once for each tablespace.
    pub fn drop_database_in(&mut self, database: u32, tablespaces: impl Iterator<Item = u32>) {
        // The hash is seeded, so that no record can contain millions of numbers whose hashes collide.
        let tablespaces: HashSet<u32> = tablespaces.collect();
        if let Some(base) = &mut self.base {
            base.databases.extend(tablespaces.iter().map(|&tablespace| (database, Some(tablespace))));
        }
        self.drop_files_of(database, |within| tablespaces.contains(&within));
    }

    /// Forgets all pages of a database in the tablespaces for which `dropped` returns true.
    fn drop_files_of(&mut self, database: u32, dropped: impl Fn(u32) -> bool) {
        let is_gone = |of: u32, within: u32| of == database && dropped(within);
        self.copied.retain(|&(of, within)| !is_gone(of, within));
        let forks = self.numbers.keys().copied();
        let gone: Vec<ForkKey> =
            forks.filter(|(relation, _)| is_gone(relation.database, relation.tablespace)).collect();
        gone.into_iter().for_each(|key| self.drop_pages(key));
    }

    /// Makes all pages of a database in a tablespace unknown: its files were copied from another database.
    pub fn copy_database(&mut self, database: u32, tablespace: u32) {
        self.drop_database(database, Some(tablespace));
        self.copied.insert((database, tablespace));
    }

    /// Reads the pages of a database in a tablespace from the base backup again, after the caller copied the
    /// database's files there as [`PageStore::copy_database`] has noted it.
    pub fn read_database_from_base(&mut self, database: u32, tablespace: u32) {
        self.copied.remove(&(database, tablespace));
        self.recent.missed = None;
        if let Some(base) = &mut self.base {
            base.readmit(database, tablespace);
        }
    }

    /// Notes that an image of a visibility map's page was restored, and whether the image has a hole.
    ///
    /// A map has bits where other pages have their hole. Only `CREATE DATABASE` logs it with a hole
    /// (`RelationCopyStorageUsingBuffer`), and that image has no bits.
    pub(crate) fn note_map_image(&mut self, key: BlockKey, has_hole: bool) {
        if has_hole {
            self.maps_without_bits.entry(key.relation).or_default().insert(key.block);
        } else if let Some(blocks) = self.maps_without_bits.get_mut(&key.relation) {
            blocks.remove(&key.block);
        }
    }

    /// Returns whether a page is of a visibility map and lacks bits because the WAL has an image without
    /// them. PostgreSQL's redo lacks them, too.
    pub fn may_lack_bits(&self, key: BlockKey) -> bool {
        let has = |blocks: &HashSet<u32>| blocks.contains(&key.block);
        key.fork == Fork::VISIBILITY_MAP && self.maps_without_bits.get(&key.relation).is_some_and(has)
    }

    fn drop_pages(&mut self, key: ForkKey) {
        let Some(number) = self.numbers.remove(&key) else { return };
        if key.1 == Fork::VISIBILITY_MAP {
            self.maps_without_bits.remove(&key.0);
        }
        let recent = &mut self.recent.forks[Recent::fork_index(&key)];
        if recent.is_some_and(|(recent, _)| recent == key) {
            *recent = None;
        }
        let pages = &mut self.forks[number as usize];
        pages.end = 0;
        let blocks = std::mem::take(&mut pages.blocks);
        self.free_forks.push(number);
        blocks.into_values().for_each(|slot| self.release(slot));
    }
}
