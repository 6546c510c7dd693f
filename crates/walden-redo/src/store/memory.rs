//! Decides which pages are in memory, and which in the spill file.
//!
//! Pages that exceed the memory limit are written to the spill file. The clock algorithm selects them: a page
//! is evicted when the hand passes it twice without a use in between.

use std::io;

use super::spill::Place;
use super::state::StateCode;
use super::{
    BlockKey, CHANGED, Entry, FORK_BYTES, IN_BASE, LISTED, LIVE, MIN_RESIDENT, NO_KIND, NOTE_BYTES,
    PageStore, SEEN, Slot, StoreFailure, TAKEN, USED,
};
use crate::page::PAGE_BYTES;
use crate::pool::PageBox;

/// Residency of pages.
impl PageStore {
    /// Keeps a page in memory, and evicts others if there are too many.
    #[inline]
    pub(super) fn hold(&mut self, slot: Slot, page: PageBox) {
        self.enter(slot, page);
        if self.resident > self.max_resident {
            self.evict_surplus();
        }
    }

    /// Keeps a page in memory without evicting others.
    #[inline]
    pub(super) fn enter(&mut self, slot: Slot, page: PageBox) {
        let entry = &mut self.entries[slot.0 as usize];
        let twice = entry.page.replace(page);
        let listed = entry.flags & LISTED != 0;
        entry.flags = entry.flags & !TAKEN | USED | LISTED;
        if !listed {
            self.ring.push(slot);
        }
        match twice {
            Some(page) => self.recycle(page),
            None => self.resident += 1,
        }
    }

    #[inline(never)]
    pub(super) fn evict_surplus(&mut self) {
        while self.resident > self.max_resident
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

    /// Drops a page from memory; writes it to the spill file unless the spill file or the base backup has an
    /// equal copy.
    pub(super) fn evict(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0 as usize];
        let Some(page) = entry.page.take() else { return };
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
                    let what = format!(
                        "cannot write a temporary file of pages in {}",
                        self.spill.folder().display()
                    );
                    self.lose(slot, what, error);
                }
            }
        }
        self.recycle(page);
    }

    /// Reads an exact page that is not in memory.
    #[inline(never)]
    pub(super) fn fetch(&mut self, slot: Slot) -> Option<PageBox> {
        let mut page = self.buffer();
        let &Entry { fork, block, spilled, .. } = &self.entries[slot.0 as usize];
        let (relation, fork) = self.forks[fork as usize].key;
        let key = BlockKey { relation, fork, block };
        let is_spilled = spilled != Place::NONE;
        let outcome = if is_spilled {
            self.spill.read(spilled, &mut page)
        } else {
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
                let origin = if is_spilled { "a temporary file" } else { "the base backup" };
                self.lose(slot, format!("cannot read {key} from {origin}"), error);
                None
            }
        }
    }

    /// Makes a page unknown because it could not be written or read, and keeps the first of these failures
    /// for [`PageStore::failure`].
    pub(super) fn lose(&mut self, slot: Slot, what: String, error: io::Error) {
        self.failure.get_or_insert(StoreFailure { what, error });
        self.forget(slot);
        self.entries[slot.0 as usize].state = StateCode::LOST;
    }

    /// Sets the maximum number of pages in memory to the memory that the entries leave.
    pub(super) fn share_memory(&mut self) {
        let notes = self.entries.len() * NOTE_BYTES + self.forks.len() * FORK_BYTES;
        let pages = self.memory_bytes.saturating_sub(notes) / PAGE_BYTES;
        self.max_resident = pages.max(MIN_RESIDENT);
    }

    pub(super) fn release(&mut self, slot: Slot) {
        self.forget(slot);
        let entry = &mut self.entries[slot.0 as usize];
        entry.state = StateCode::NOT_SEEN;
        entry.last_kind = NO_KIND;
        entry.flags &= LISTED | SEEN;
        self.free_slots.push(slot);
    }

    /// Drops a page from memory and the spill file.
    pub(super) fn forget(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0 as usize];
        entry.flags &= LIVE | LISTED | SEEN;
        let spilled = std::mem::replace(&mut entry.spilled, Place::NONE);
        if let Some(page) = entry.page.take() {
            self.resident -= 1;
            self.recycle(page);
        }
        if spilled != Place::NONE {
            self.spill.release(spilled);
        }
    }
}
