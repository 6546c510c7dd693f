//! In which order the files that one call works on appear in the archive.
//!
//! PostgreSQL's archiver stops at the first file that is refused, and so do the files ahead of it: what a clone of the server, or a
//! second one that was promoted to the same timeline, has behind a file that differs must not take the names that the other server is
//! going to archive under. Files are checked and compressed in parallel, and stored one after the other: also a process that is killed
//! leaves none without those before it. Storing takes little beside compressing.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The order of files that are worked on by several threads.
#[derive(Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// All files before this one are archived.
    next: usize,
    /// Archived before their turn, as they were there already.
    archived: BTreeSet<usize>,
    /// The first file that is not going to be archived.
    failed: Option<usize>,
}

/// The turn of one file. One that is dropped without [`Turn::end`] is not archived.
pub(super) struct Turn<'o> {
    order: &'o Order,
    index: usize,
    is_archived: bool,
}

impl Order {
    /// The turn of a file. Turns are taken in the files' order.
    pub fn turn(&self, index: usize) -> Turn<'_> {
        Turn { order: self, index, is_archived: false }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a file before this one is not going to be archived.
    fn is_held(&self, index: usize) -> bool {
        self.failed.is_some_and(|failed| failed < index)
    }
}

impl Turn<'_> {
    /// Whether a file before this one is not going to be archived.
    pub fn is_held(&self) -> bool {
        self.order.lock().is_held(self.index)
    }

    /// Waits until all files before this one are archived; whether they are.
    pub fn wait(&self) -> bool {
        let waits = |state: &mut State| state.next < self.index && !state.is_held(self.index);
        let waited = self.order.changed.wait_while(self.order.lock(), waits);
        waited.unwrap_or_else(PoisonError::into_inner).next >= self.index
    }

    /// The file is archived.
    pub fn end(mut self) {
        self.is_archived = true;
    }
}

impl Drop for Turn<'_> {
    /// On every way out, also by a panic: those behind must not wait forever.
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
        // It was there before its turn.
        second.end();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| third.wait());
            first.end();
            assert!(waiting.join().unwrap());
        });
        drop(third);
        let (fourth, fifth) = (order.turn(3), order.turn(4));
        assert!(fourth.is_held() && !fourth.wait() && !fifth.wait());
        // What is before the one that failed is not held.
        assert!(!order.turn(2).is_held());
    }
}
