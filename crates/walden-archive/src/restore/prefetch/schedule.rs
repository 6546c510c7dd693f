//! Assigns segments to the threads that fetch them.
//!
//! A pack's segments between two keyframes are decoded in order, each from the decoder's state after the
//! previous one. So one thread at a time processes them. When enough segments are ready, the decoder is kept
//! until more are needed.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use walden_format::lsn::SegmentName;

use super::next_segments::Ahead;
use crate::objects::name::{Object, PackName};
use crate::restore::get::PackMembers;
use crate::store::Store;

/// A segment to fetch, and the object to read it from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub segment: SegmentName,
    pub object: Object,
    pub bytes: u64,
    /// The segment of the same pack at which decoding must start, or `None` for a separate object.
    pub keyframe: Option<SegmentName>,
}

impl Wanted {
    pub fn new((segment, (object, bytes)): Ahead, keyframe: Option<SegmentName>) -> Wanted {
        Wanted { segment, object, bytes, keyframe }
    }

    fn run(&self) -> Option<Run> {
        match (self.object, self.keyframe) {
            (Object::Pack(pack), Some(keyframe)) => Some((pack, keyframe)),
            _ => None,
        }
    }
}

/// Segments that are decoded consecutively: a pack and a keyframe in it.
type Run = (PackName, SegmentName);

/// Segments to fetch in order, and the decoder for them, if one was kept.
pub(super) struct Job<'a> {
    pub segments: Vec<Wanted>,
    pub members: Option<PackMembers<&'a dyn Store>>,
}

/// Distributes segments to threads.
pub(super) struct Schedule<'a> {
    state: Mutex<State<'a>>,
    changed: Condvar,
    /// Maximum number of kept decoders.
    max_kept: usize,
}

#[derive(Default)]
struct State<'a> {
    /// Segments that no thread has started, in the order of the expected requests.
    wanted: Vec<Wanted>,
    /// All segments that recovery may request next, fetched or not.
    useful: BTreeSet<SegmentName>,
    /// Segments that threads are fetching.
    coming: BTreeSet<SegmentName>,
    /// The useful segments that have been fetched, whether or not they were taken from the spool.
    fetched: BTreeSet<SegmentName>,
    busy: BTreeSet<Run>,
    kept: Vec<(Run, PackMembers<&'a dyn Store>)>,
    is_stopped: bool,
}

impl<'a> Schedule<'a> {
    pub fn new(max_kept: usize) -> Schedule<'a> {
        Schedule { state: Mutex::default(), changed: Condvar::new(), max_kept }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the segments to fetch: `missing` are the segments of `useful` that are not in the spool.
    pub fn set(&self, missing: Vec<Wanted>, useful: BTreeSet<SegmentName>) {
        let mut state = self.lock();
        let State { coming, fetched, .. } = &mut *state;
        fetched.retain(|segment| useful.contains(segment));
        let is_open = |segment: &SegmentName| !coming.contains(segment) && !fetched.contains(segment);
        let wanted = missing.into_iter().filter(|wanted| is_open(&wanted.segment)).collect();
        (state.wanted, state.useful) = (wanted, useful);
        self.changed.notify_all();
    }

    /// Forgets which segments were fetched, because recovery restarted at an earlier position and may request
    /// them again.
    pub fn forget_fetched(&self) {
        self.lock().fetched.clear();
    }

    /// Returns whether recovery may still request a segment.
    pub fn is_useful(&self, segment: SegmentName) -> bool {
        let state = self.lock();
        !state.is_stopped && state.useful.contains(&segment)
    }

    /// Takes the next segments that no thread is fetching, or returns `None` once the schedule is stopped.
    /// Calls `announce` with all segments that are then being fetched.
    pub fn claim(&self, announce: impl Fn(&BTreeSet<SegmentName>)) -> Option<Job<'a>> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(job) = state.claim() {
                announce(&state.coming);
                return Some(job);
            }
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Marks a segment as ready, or as not going to be fetched.
    pub fn finish(&self, segment: SegmentName, is_fetched: bool, announce: impl Fn(&BTreeSet<SegmentName>)) {
        let mut state = self.lock();
        state.coming.remove(&segment);
        if is_fetched {
            state.fetched.insert(segment);
        }
        announce(&state.coming);
    }

    /// Ends a job. `members` is kept if it can decode the following segments.
    pub fn end(
        &self,
        segments: &[Wanted],
        members: Option<PackMembers<&'a dyn Store>>,
        announce: impl Fn(&BTreeSet<SegmentName>),
    ) {
        let mut state = self.lock();
        for wanted in segments {
            state.coming.remove(&wanted.segment);
        }
        announce(&state.coming);
        if let Some(run) = segments.first().and_then(Wanted::run) {
            state.busy.remove(&run);
            let goes_on = |members: &PackMembers<&dyn Store>| {
                members.next_segment().is_some_and(|next| members.keyframe_of(next) == run.1)
            };
            if let Some(members) = members.filter(goes_on) {
                state.kept.push((run, members));
                if state.kept.len() > self.max_kept {
                    state.kept.remove(0);
                }
            }
        }
        self.changed.notify_all();
    }

    /// Stops all threads after their current segment.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }
}

impl<'a> State<'a> {
    fn claim(&mut self) -> Option<Job<'a>> {
        let is_free = |wanted: &Wanted| wanted.run().is_none_or(|run| !self.busy.contains(&run));
        let first = *self.wanted.iter().find(|wanted| is_free(wanted))?;
        let belongs = |wanted: &Wanted| match first.run() {
            Some(run) => wanted.run() == Some(run),
            None => wanted.segment == first.segment,
        };
        let (segments, left) = std::mem::take(&mut self.wanted).into_iter().partition(belongs);
        let segments: Vec<Wanted> = segments;
        self.wanted = left;
        self.coming.extend(segments.iter().map(|wanted| wanted.segment));
        let run = first.run();
        self.busy.extend(run);
        let kept = self.kept.iter().position(|(kept, members)| {
            Some(*kept) == run && members.next_segment().is_some_and(|next| next <= first.segment)
        });
        Some(Job { segments, members: kept.map(|at| self.kept.remove(at).1) })
    }
}
