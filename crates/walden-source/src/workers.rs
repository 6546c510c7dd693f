//! Distributes work over threads and returns the results in order.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Calls `work` for each index of a range on up to `threads` threads, and `consume` with the results in order
/// of the index, on the calling thread, until it breaks.
///
/// The calling thread is one of the workers: with one thread, no other is started. `start` creates the state
/// of a worker. Workers stay at most `2 * threads + 1` indexes ahead of `consume`, so memory does not grow
/// with the range. All threads have ended when this function returns. A panic in a thread is propagated.
pub fn run_in_order<S, T: Send>(
    range: Range<usize>,
    threads: usize,
    start: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> T + Sync,
    mut consume: impl FnMut(T) -> ControlFlow<()>,
) {
    let threads = threads.clamp(1, range.len().max(1));
    let queue = Queue::new(range, 2 * threads + 1);
    std::thread::scope(|scope| {
        // Stops the workers on every way out, including a panic, so that they do not wait forever.
        let _stop = Stop(&queue, true);
        for _ in 1..threads {
            scope.spawn(|| {
                let _stop = Stop(&queue, false);
                let mut state = start();
                while let Some(index) = queue.claim() {
                    queue.deliver(index, work(&mut state, index));
                }
            });
        }
        let mut state = start();
        loop {
            match queue.next_step() {
                Step::Work(index) => queue.deliver(index, work(&mut state, index)),
                Step::Consume(result) => {
                    if consume(result).is_break() {
                        break;
                    }
                }
                Step::End => break,
            }
        }
    });
}

/// Calls `work` for each item on up to `threads` threads, including the calling one. Returns the results in
/// the order of the items.
pub fn map_in_order<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut results = Vec::with_capacity(items.len());
    run_in_order(
        0..items.len(),
        threads,
        || (),
        |(), index| work(&items[index]),
        |result| {
            results.push(result);
            ControlFlow::Continue(())
        },
    );
    results
}

/// Hands out indexes in order and returns results in order, with a limit on the distance between the two.
struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    max_ahead: usize,
}

struct State<T> {
    next_claim: usize,
    next_result: usize,
    end: usize,
    is_stopped: bool,
    results: BTreeMap<usize, T>,
}

/// The next step of the calling thread.
enum Step<T> {
    Work(usize),
    Consume(T),
    End,
}

impl<T> Queue<T> {
    fn new(range: Range<usize>, max_ahead: usize) -> Queue<T> {
        let state = State {
            next_claim: range.start,
            next_result: range.start,
            end: range.end,
            is_stopped: false,
            results: BTreeMap::new(),
        };
        Queue { state: Mutex::new(state), changed: Condvar::new(), max_ahead }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.is_stopped || state.next_claim >= state.end {
                return None;
            }
            if let Some(index) = state.claim(self.max_ahead) {
                return Some(index);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn deliver(&self, index: usize, result: T) {
        self.lock().results.insert(index, result);
        self.changed.notify_all();
    }

    fn next_step(&self) -> Step<T> {
        let mut state = self.lock();
        loop {
            if state.is_stopped || state.next_result >= state.end {
                return Step::End;
            }
            let wanted = state.next_result;
            if let Some(result) = state.results.remove(&wanted) {
                state.next_result += 1;
                self.changed.notify_all();
                return Step::Consume(result);
            }
            if let Some(index) = state.claim(self.max_ahead) {
                return Step::Work(index);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> State<T> {
    fn claim(&mut self, max_ahead: usize) -> Option<usize> {
        let may_claim = self.next_claim < self.end.min(self.next_result + max_ahead);
        may_claim.then(|| {
            self.next_claim += 1;
            self.next_claim - 1
        })
    }
}

/// Stops the queue when dropped: always, or only in a panic.
struct Stop<'a, T>(&'a Queue<T>, bool);

impl<T> Drop for Stop<'_, T> {
    fn drop(&mut self) {
        if self.1 || std::thread::panicking() {
            self.0.lock().is_stopped = true;
            self.0.changed.notify_all();
        }
    }
}

/// Ends the process if `work` panics. Without this thread, the command would give no answers or outdated
/// answers; the service manager restarts the command.
pub fn end_on_panic<T>(work: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(_) => std::process::exit(101),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        let items: Vec<usize> = (0..500).collect();
        for threads in [0, 1, 2, 7, 1000] {
            let squares = map_in_order(&items, threads, |item| {
                // The first items take longest.
                (0..(500 - item) * 20).fold(0, |sum: usize, one| sum.wrapping_add(std::hint::black_box(one)));
                item * item
            });
            assert!(squares.iter().copied().eq(items.iter().map(|item| item * item)), "{threads}");
        }
        assert!(map_in_order(&[0_u8; 0], 3, |_| ()).is_empty());
    }

    #[test]
    fn one_thread_is_the_calling_one() {
        let here = std::thread::current().id();
        assert!(
            map_in_order(&[1, 2, 3], 1, |_| std::thread::current().id() == here).iter().all(|same| *same)
        );
    }

    #[test]
    fn workers_stay_within_the_bound_and_stop_with_the_consumer() {
        let (claimed, mut consumed) = (AtomicUsize::new(0), 0);
        run_in_order(
            0..10_000,
            4,
            || (),
            |(), index| {
                claimed.fetch_max(index, Ordering::SeqCst);
                index
            },
            |index| {
                assert!(claimed.load(Ordering::SeqCst) <= index + 9);
                consumed += 1;
                if consumed == 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        assert_eq!(consumed, 100);
        assert!(claimed.load(Ordering::SeqCst) < 120);
    }

    #[test]
    fn a_panic_of_a_worker_or_the_consumer_ends_all_threads() {
        let panics = |of_worker: bool| {
            std::panic::catch_unwind(|| {
                run_in_order(
                    0..1000,
                    3,
                    || (),
                    |(), index| assert!(!of_worker || index != 50),
                    |()| {
                        assert!(of_worker);
                        ControlFlow::Continue(())
                    },
                );
            })
            .is_err()
        };
        assert!(panics(true) && panics(false));
    }
}
