//! Brings copies of an archive up to date in the background after they were away.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use walden_format::diagnostic::Hint;
use walden_source::error_text;

use crate::archive::{Archive, ArchiveError};
use crate::copies::Copies;
use crate::inventory::parts;
use crate::maintenance::copy::{self, Copied, CopyOptions};

/// Wait after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait after repeated failures.
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Time between two comparisons of the copies without a known reason: another process may have archived a
/// file in some copies only.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Brings copies up to date from each other: at the start, after [`CatchUp::note_behind`], and once an hour.
/// One object is processed at a time. A copy that cannot be brought up to date is tried again after one
/// second to five minutes.
pub struct CatchUp {
    copies: Copies,
    options: CopyOptions,
    state: Mutex<State>,
    changed: Condvar,
    pauses: (Duration, Duration),
}

#[derive(Default)]
struct State {
    is_behind: bool,
    is_over: bool,
}

/// The result for one copy.
#[derive(Debug)]
pub struct Round<'r> {
    /// The number of the copy.
    pub copy: usize,
    /// Location of its archive.
    pub location: &'r str,
    /// The copied objects, or the reason for copying nothing.
    pub result: &'r Result<Copied, ArchiveError>,
}

impl Round<'_> {
    /// Returns whether the copy has all files of the other copies.
    pub fn is_complete(&self) -> bool {
        self.result.as_ref().is_ok_and(Copied::is_complete)
    }

    /// Returns whether the copy lacks files of the copies that could be read, or could not be read itself.
    pub fn is_behind(&self) -> bool {
        self.result.as_ref().map_or(true, |copied| copied.copied < copied.missing)
    }

    /// Returns why the copy is behind, and the remedy.
    pub fn problem(&self) -> Option<(String, Option<Hint>)> {
        match self.result {
            Err(error) => Some((error_text(error), error.hint())),
            Ok(copied) => {
                let failed = copied.failed.first().filter(|_| self.is_behind());
                failed.map(|failed| (format!("{}: {}", failed.object, failed.problem), None))
            }
        }
    }
}

impl CatchUp {
    /// Creates a process that brings copies up to date, with `level` for objects that are compressed again.
    /// [`CatchUp::run`] starts it.
    pub fn new(copies: Copies, level: u8) -> CatchUp {
        let state = Mutex::new(State { is_behind: true, is_over: false });
        let options = CopyOptions::default().level(level).threads(1);
        CatchUp { copies, options, state, changed: Condvar::new(), pauses: (FIRST_PAUSE, MAX_PAUSE) }
    }

    /// Records that a copy lacks a file that another copy has.
    pub fn note_behind(&self) {
        self.state().is_behind = true;
        self.changed.notify_all();
    }

    /// Makes [`CatchUp::run`] return after the current object.
    pub fn stop(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Brings the copies up to date until [`CatchUp::stop`] is called, and calls `report` with each result.
    /// Returns immediately if there is only one copy.
    pub fn run(&self, report: &dyn Fn(Round<'_>)) {
        if self.copies.iter().count() < 2 {
            return;
        }
        let mut pause = self.pauses.0;
        loop {
            let is_idle = |state: &mut State| !state.is_behind && !state.is_over;
            let waited = self.changed.wait_timeout_while(self.state(), INTERVAL, is_idle);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            // A file that is archived during this round makes another round necessary.
            state.is_behind = false;
            drop(state);
            // A panic would end the thread, and thus the process that archives.
            let is_done = catch_unwind(AssertUnwindSafe(|| self.round(report))).unwrap_or(false);
            if is_done {
                pause = self.pauses.0;
                continue;
            }
            self.sleep(pause);
            self.state().is_behind = true;
            pause = (2 * pause).min(self.pauses.1);
        }
    }

    /// Brings each copy up to date. Returns whether all copies are up to date.
    fn round(&self, report: &dyn Fn(Round<'_>)) -> bool {
        // The places may have been unmounted since the last time.
        let archives: Vec<Archive> = self.copies.iter().map(|copy| copy.archive.afresh()).collect();
        let mut found: Vec<Result<(), ArchiveError>> = archives.iter().map(Archive::expect_archive).collect();
        let is_there: Vec<bool> = found.iter().map(Result::is_ok).collect();
        let mut is_done = is_there.iter().all(|&is_there| is_there);
        for ((number, target), found) in archives.iter().enumerate().zip(found.drain(..)) {
            let level = self.copies.iter().nth(number).and_then(|copy| copy.level);
            let options = self.options.level(level.unwrap_or(self.options.level));
            let others = archives.iter().zip(&is_there).enumerate();
            let others = others.filter(|(other, (_, is_there))| *other != number && **is_there);
            let sources: Vec<Archive> = others.map(|(_, (archive, _))| archive.clone()).collect();
            let result = found.and_then(|()| self.copy(&sources, target, &options));
            let round = Round { copy: number, location: target.store().location(), result: &result };
            is_done &= round.is_complete();
            report(round);
            if self.state().is_over {
                break;
            }
        }
        is_done
    }

    fn copy(
        &self,
        sources: &[Archive],
        target: &Archive,
        options: &CopyOptions,
    ) -> Result<Copied, ArchiveError> {
        let copied = copy::copy(sources, target, options, &|_, _| match self.state().is_over {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })?;
        if copied.copied > 0 {
            // Removes the parts of the copied segments.
            parts::remove_archived(target)?;
        }
        Ok(copied)
    }

    fn sleep(&self, time: Duration) {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !state.is_over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
