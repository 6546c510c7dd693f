//! Reads objects ahead of the thread that decodes them, because an object store has a high latency but
//! answers requests concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::archive::ArchiveError;
use crate::objects::name::Object;
use crate::restore::log::LogSegment;
use crate::store::{Cause, Store, StoreError};

/// Maximum number and total size in bytes of the objects that are read ahead.
const MAX_AHEAD: usize = 6;
const MAX_BYTES_AHEAD: u64 = 64 << 20;
/// Number of objects read concurrently.
const THREADS: usize = 3;
/// Maximum distance in segments from the current one. Objects farther away are dropped, because the reader
/// moved elsewhere.
const MAX_DISTANCE: usize = 64;

/// Reads the objects of segments, and prefetches the next objects.
pub(super) struct ReadAhead {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    segments: Vec<LogSegment>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: BTreeSet<usize>,
    in_flight: BTreeSet<usize>,
    ready: BTreeMap<usize, Vec<u8>>,
    is_stopped: bool,
}

impl ReadAhead {
    pub fn new(store: Arc<dyn Store>, segments: Vec<LogSegment>) -> ReadAhead {
        let (state, changed) = (Mutex::default(), Condvar::new());
        ReadAhead {
            shared: Arc::new(Shared { store, segments, state, changed }),
            threads: Mutex::new(Vec::new()),
        }
    }

    pub fn segments(&self) -> &[LogSegment] {
        &self.shared.segments
    }

    pub fn segment(&self, index: usize) -> Result<LogSegment, ArchiveError> {
        let missing = || StoreError {
            operation: "read",
            key: format!("segment {index}"),
            location: self.shared.store.location().to_owned(),
            cause: Cause::NotFound,
            source: None,
        };
        Ok(*self.shared.segments.get(index).ok_or_else(missing)?)
    }

    /// Reads the separate object of a segment.
    pub fn read(&self, index: usize) -> Result<Vec<u8>, ArchiveError> {
        let segment = self.segment(index)?;
        let mut state = self.shared.lock();
        self.shared.want_after(index, &mut state);
        self.start_threads(&state);
        self.shared.changed.notify_all();
        while state.in_flight.contains(&index) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted.remove(&index);
        let ready = state.ready.remove(&index);
        drop(state);
        match ready {
            Some(object) => Ok(object),
            // Not read ahead, or reading ahead failed: an error here is reported.
            None => Ok(self.shared.store.read(&segment.object.key())?),
        }
    }

    fn start_threads(&self, state: &State) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < THREADS.min(state.wanted.len()) {
            let shared = Arc::clone(&self.shared);
            let Ok(thread) = std::thread::Builder::new().spawn(move || shared.work()) else { break };
            threads.push(thread);
        }
    }
}

impl Drop for ReadAhead {
    /// Stops the threads and waits for their current reads.
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_all();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // The thread has no result, and a panic in it was already printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the objects after a segment, within the limits.
    fn want_after(&self, index: usize, state: &mut State) {
        state.ready.retain(|ready, _| ready.abs_diff(index) <= MAX_DISTANCE);
        state.wanted.retain(|wanted| wanted.abs_diff(index) <= MAX_DISTANCE);
        let bytes_of = |index: &usize| self.segments.get(*index).map_or(0, |segment| segment.bytes);
        let mut bytes: u64 = state.wanted.iter().chain(&state.in_flight).map(bytes_of).sum::<u64>()
            + state.ready.values().map(|object| object.len() as u64).sum::<u64>();
        for (next, segment) in self.segments.iter().enumerate().skip(index + 1).take(MAX_AHEAD) {
            let is_known = state.ready.contains_key(&next) || state.in_flight.contains(&next);
            if is_known || !matches!(segment.object, Object::File(_)) {
                continue;
            }
            bytes += segment.bytes;
            if bytes > MAX_BYTES_AHEAD {
                break;
            }
            state.wanted.insert(next);
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.is_stopped {
            let Some(index) = state.wanted.pop_first() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.in_flight.insert(index);
            drop(state);
            let object = self.segments.get(index).map(|segment| self.store.read(&segment.object.key()));
            state = self.lock();
            state.in_flight.remove(&index);
            if let Some(Ok(object)) = object {
                state.ready.insert(index, object);
            }
            self.changed.notify_all();
        }
    }
}
