//! The comparison of full-page images by several threads, each of which replays a share of the pages.
//!
//! All threads replay the same records ([`crate::PageShare`]). A record's check needs the pages of all of its
//! blocks. If these pages belong to several shares, each thread hands over copies of its pages, and the last
//! thread to do so checks the record.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use walden_format::lsn::Lsn;
use walden_format::record::{BlockRef, Record};

use super::Check;
use crate::replay::Observer;
use crate::step::Touched;
use crate::store::{BlockKey, PageShare};

/// Maximum number of blocks whose pages wait for the threads that are behind (16 kB each).
const MAX_BLOCKS: usize = 1024;

/// An [`Observer`] for one of several threads. The store has the same share.
#[derive(Debug)]
pub struct ShareCheck {
    check: Check,
    share: PageShare,
    handover: Arc<Handover>,
}

impl ShareCheck {
    /// Creates the checks of all shares.
    pub fn create_all(count: u32) -> Vec<ShareCheck> {
        let handover = Arc::new(Handover::default());
        let create = |index| ShareCheck {
            check: Check::default(),
            share: PageShare::new(index, count),
            handover: Arc::clone(&handover),
        };
        (0..count).map(create).collect()
    }

    /// Returns the share.
    pub fn share(&self) -> PageShare {
        self.share
    }

    /// Receives every record before it is replayed, also those without a page of this share.
    pub fn note(&mut self, record: &Record<'_>) {
        self.check.note(record);
    }

    /// Ends the check of records that wait for pages of this share, because its thread has failed.
    pub fn abandon(&self) {
        self.handover.abandon();
    }

    /// Returns whether a thread has failed, so that the results are incomplete.
    pub fn is_abandoned(&self) -> bool {
        self.handover.is_abandoned.load(Ordering::Relaxed)
    }

    /// Ends the comparison, and returns the results of all shares. Each check has received all records.
    pub fn finish(checks: impl IntoIterator<Item = ShareCheck>) -> Check {
        let mut all = Check::default();
        for mut share in checks {
            share.check.finish();
            all.merge(share.check);
        }
        all
    }
}

impl Observer for ShareCheck {
    const ALL_IMAGES: bool = true;

    fn before(&mut self, record: &Record<'_>, touched: &[Touched]) {
        if !record.blocks.iter().any(|block| block.image.is_some()) {
            return;
        }
        let is_own = |block: &BlockRef| self.share.has(BlockKey::from_block(block));
        match record.blocks.iter().filter(|block| is_own(block)).count() {
            0 => {}
            own if own == record.blocks.len() => self.check.check_images(record, touched),
            _ => {
                let own = record.blocks.iter().zip(touched).enumerate();
                let own = own.filter(|(_, (block, _))| is_own(block));
                let own: Vec<(usize, Touched)> =
                    own.map(|(index, (_, touched))| (index, touched.clone())).collect();
                if let Some(all) = self.handover.add(record.lsn, touched.len(), own) {
                    self.check.check_images(record, &all);
                }
            }
        }
    }

    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        self.check.check_beside(record, touched);
    }
}

/// The pages of records that wait for threads.
#[derive(Debug, Default)]
struct Handover {
    state: Mutex<State>,
    changed: Condvar,
    /// Set while `state` is locked.
    is_abandoned: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By the record's start.
    records: BTreeMap<Lsn, Pending>,
    /// Number of blocks of these records.
    blocks: usize,
}

#[derive(Debug)]
struct Pending {
    touched: Vec<Touched>,
    missing: usize,
}

impl Handover {
    /// Adds a thread's pages of the record at `lsn`, which has `count` blocks, by the index of their blocks.
    /// Returns the pages of all blocks if no other page is missing, unless a thread has failed.
    ///
    /// Waits while too many pages wait for slower threads. The slowest thread is at or before the first
    /// record that waits, so that it never waits itself.
    fn add(&self, lsn: Lsn, count: usize, own: Vec<(usize, Touched)>) -> Option<Vec<Touched>> {
        let mut state = self.lock();
        let is_full = |state: &State| {
            let is_ahead = state.records.first_key_value().is_some_and(|(first, _)| *first < lsn);
            is_ahead && state.blocks >= MAX_BLOCKS
        };
        while !self.is_abandoned.load(Ordering::Relaxed) && is_full(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_abandoned.load(Ordering::Relaxed) {
            return None;
        }
        let mut pending = state.records.remove(&lsn).unwrap_or_else(|| {
            state.blocks += count;
            let mut touched = Vec::new();
            touched.resize_with(count, Touched::default);
            Pending { touched, missing: count }
        });
        pending.missing = pending.missing.saturating_sub(own.len());
        for (index, of_block) in own {
            pending.touched[index] = of_block;
        }
        if pending.missing > 0 {
            state.records.insert(lsn, pending);
            return None;
        }
        state.blocks -= count;
        self.changed.notify_all();
        Some(pending.touched)
    }

    fn abandon(&self) {
        let state = self.lock();
        self.is_abandoned.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the pages of blocks from record `first` on. Returns the number of records that were complete.
    fn add_all(handover: &Handover, block: usize, records: std::ops::Range<u64>) -> usize {
        let add = |record| handover.add(Lsn(record), 2, vec![(block, Touched::default())]);
        records.filter_map(add).map(|all| assert_eq!(all.len(), 2)).count()
    }

    #[test]
    fn a_thread_that_is_far_ahead_waits_for_the_others() {
        const RECORDS: u64 = 5 * MAX_BLOCKS as u64;
        let handover = Handover::default();
        let complete: usize = std::thread::scope(|scope| {
            let threads = [0, 1].map(|block| {
                let handover = &handover;
                scope.spawn(move || {
                    // One thread starts late.
                    std::thread::sleep(std::time::Duration::from_millis(50 * block as u64));
                    assert!(handover.lock().blocks <= MAX_BLOCKS);
                    add_all(handover, block, 0..RECORDS)
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(complete as u64, RECORDS);
        let state = handover.lock();
        assert_eq!((state.records.len(), state.blocks), (0, 0));
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_failed() {
        let handover = Handover::default();
        std::thread::scope(|scope| {
            let ahead = scope.spawn(|| add_all(&handover, 0, 0..5 * MAX_BLOCKS as u64));
            while handover.lock().blocks < MAX_BLOCKS {
                std::thread::yield_now();
            }
            handover.abandon();
            assert_eq!(ahead.join().unwrap(), 0);
        });
    }
}
