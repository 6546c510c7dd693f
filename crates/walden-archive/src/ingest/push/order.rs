//! Controls the order in which the files of one call appear in the archive.
//!
//! PostgreSQL's archiver stops at the first refused file, and so does archiving ahead. Otherwise a clone of
//! the server, or a second standby promoted to the same timeline, could occupy the names that the other
//! server needs next. Files are checked and compressed in parallel but stored in order, so even a killed
//! process leaves no file in the archive without its predecessors. Storing is fast compared to compressing.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The order of files that several threads process.
#[derive(Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// All files before this index are archived.
    next: usize,
    /// Files that already existed in the archive before their turn.
    archived: BTreeSet<usize>,
    /// The first file that will not be archived.
    failed: Option<usize>,
}

/// The turn of one file. Dropping it without [`Turn::end`] means that the file is not archived.
pub(super) struct Turn<'o> {
    order: &'o Order,
    index: usize,
    is_archived: bool,
}

impl Order {
    /// Returns the turn of a file. Call this in the order of the files.
    pub fn turn(&self, index: usize) -> Turn<'_> {
        Turn { order: self, index, is_archived: false }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns whether an earlier file will not be archived.
    fn is_held(&self, index: usize) -> bool {
        self.failed.is_some_and(|failed| failed < index)
    }
}

impl Turn<'_> {
    /// Returns whether an earlier file will not be archived.
    pub fn is_held(&self) -> bool {
        self.order.lock().is_held(self.index)
    }

    /// Waits until all earlier files are archived, and returns whether they are.
    pub fn wait(&self) -> bool {
        let waits = |state: &mut State| state.next < self.index && !state.is_held(self.index);
        let waited = self.order.changed.wait_while(self.order.lock(), waits);
        waited.unwrap_or_else(PoisonError::into_inner).next >= self.index
    }

    /// Marks the file as archived.
    pub fn end(mut self) {
        self.is_archived = true;
    }
}

impl Drop for Turn<'_> {
    /// Runs on every exit path, including a panic, so that later turns do not wait forever.
    fn drop(&mut self) {
        let mut state = self.order.lock();
        if self.is_archived {
            state.archived.insert(self.index);
            while state.archived.contains(&state.next) {
                state.next += 1;
            }
        } else {
            state.failed = Some(state.failed.map_or(self.index, |failed| failed.min(self.index)));
        }
        drop(state);
        self.order.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_waits_for_all_before_it_and_is_held_behind_one_that_failed() {
        let order = Order::default();
        let (first, second, third) = (order.turn(0), order.turn(1), order.turn(2));
        assert!(first.wait());
        // Already archived before its turn.
        second.end();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| third.wait());
            first.end();
            assert!(waiting.join().unwrap());
        });
        drop(third);
        let (fourth, fifth) = (order.turn(3), order.turn(4));
        assert!(fourth.is_held() && !fourth.wait() && !fifth.wait());
        // Files before the failed one are not held.
        assert!(!order.turn(2).is_held());
    }
}
