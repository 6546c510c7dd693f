//! A place where all threads of replay wait for each other, because a record changes files that all of them
//! read.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets a fixed number of threads wait for each other, repeatedly.
#[derive(Debug)]
pub(crate) struct Gate {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// How often all threads have met.
    meetings: u64,
    is_closed: bool,
}

impl Gate {
    pub(crate) fn new(threads: usize) -> Gate {
        Gate { threads, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until all threads are here. Returns false if one of them has ended, and never comes.
    pub(crate) fn meet(&self) -> bool {
        let mut state = self.lock();
        state.waiting += 1;
        if state.waiting == self.threads {
            state.waiting = 0;
            state.meetings += 1;
            self.changed.notify_all();
            return !state.is_closed;
        }
        let meeting = state.meetings;
        while state.meetings == meeting {
            if state.is_closed {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Ends all waiting, because a thread has ended.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn all_threads_meet_before_one_continues() {
        let (gate, arrived) = (Gate::new(3), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..=100 {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        assert!(gate.meet());
                        assert!(arrived.load(Ordering::SeqCst) >= 3 * round);
                        assert!(gate.meet());
                    }
                });
            }
        });
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_ended() {
        let gate = Gate::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!gate.meet()));
            scope.spawn(|| gate.close());
        });
        assert!(!gate.meet());
    }
}
