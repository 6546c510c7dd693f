//! Which thread fetches what.
//!
//! A pack's segments from one keyframe to the next are decoded in their order, each from the state in which the one before left the
//! decoder. So they are one thread's at a time, and when the segments that lie ready are enough, the decoder is kept until more
//! are wanted.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use walden_format::lsn::SegmentName;

use super::next_segments::Ahead;
use crate::out::get::PackMembers;
use crate::store::Store;
use crate::stored::name::{Object, PackName};

/// A segment that is wanted, and whose it is to fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub segment: SegmentName,
    pub object: Object,
    pub bytes: u64,
    /// The segment of the same pack from which decoding has to begin; nothing for an object of its own.
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

/// Segments that are decoded one after the other: of a pack, from a keyframe on.
type Run = (PackName, SegmentName);

/// Segments to be fetched in their order, and the decoder that is there for them.
pub(super) struct Job<'a> {
    pub segments: Vec<Wanted>,
    pub members: Option<PackMembers<&'a dyn Store>>,
}

/// Hands out what is wanted to threads.
pub(super) struct Schedule<'a> {
    state: Mutex<State<'a>>,
    changed: Condvar,
    /// Decoders that are kept at most.
    max_kept: usize,
}

#[derive(Default)]
struct State<'a> {
    /// What no thread has begun, in the order in which it will be asked for.
    wanted: Vec<Wanted>,
    /// All that recovery may ask for next, fetched or not.
    useful: BTreeSet<SegmentName>,
    /// What threads are fetching.
    coming: BTreeSet<SegmentName>,
    /// What has been fetched of all that is useful, whether it was taken since or not.
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

    /// Says what is wanted now: `missing` of all that is `useful`.
    pub fn set(&self, missing: Vec<Wanted>, useful: BTreeSet<SegmentName>) {
        let mut state = self.lock();
        let State { coming, fetched, .. } = &mut *state;
        fetched.retain(|segment| useful.contains(segment));
        let is_open = |segment: &SegmentName| !coming.contains(segment) && !fetched.contains(segment);
        let wanted = missing.into_iter().filter(|wanted| is_open(&wanted.segment)).collect();
        (state.wanted, state.useful) = (wanted, useful);
        self.changed.notify_all();
    }

    /// What was fetched may be wanted once more: recovery has begun again at an earlier position.
    pub fn forget_fetched(&self) {
        self.lock().fetched.clear();
    }

    /// Whether a segment may still be asked for.
    pub fn is_useful(&self, segment: SegmentName) -> bool {
        let state = self.lock();
        !state.is_stopped && state.useful.contains(&segment)
    }

    /// Takes the next segments that no thread has; nothing once there is no more to do. `announce` is called with all that is
    /// being fetched then.
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

    /// A segment lies ready, or is not going to.
    pub fn finish(&self, segment: SegmentName, is_fetched: bool, announce: impl Fn(&BTreeSet<SegmentName>)) {
        let mut state = self.lock();
        state.coming.remove(&segment);
        if is_fetched {
            state.fetched.insert(segment);
        }
        announce(&state.coming);
    }

    /// A job's thread is free for another one; `members` can go on with what follows.
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

    /// Ends all threads once they have finished the segment that they are at.
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
