//! The thread that archives complete files by the same path as `walden archive push` and then removes them
//! from the spool. `uploading` archives parts of the segment that is being received.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use walden_archive::copies::Copies;
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushError, PushOptions, Pushed, push_all};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_source::error_text;

use crate::backoff::Backoff;
use crate::spool::{Spool, SpoolError};
use crate::status;

/// Wait after a failure.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

/// Called with each file's name, its result, and the number of files that waited to be archived, including
/// this file.
pub(crate) type Report<'r> = &'r (dyn Fn(&str, &Result<Pushed, PushError>, usize) + Sync);

/// Archives the complete files of the spool, in order.
pub(crate) struct Archiving<'s> {
    pub copies: &'s Copies,
    pub spool: &'s Spool<'s>,
    pub size: SegmentSize,
    pub options: &'s PushOptions,
    pub status: &'s status::Shared,
    pub report: Report<'s>,
    /// Called with each archived file before it leaves the spool.
    pub archived: &'s (dyn Fn(ArchivedFile) + Sync),
    /// Set when a file waits to be archived.
    pub is_due: Mutex<bool>,
    pub due: Condvar,
    pub is_over: AtomicBool,
}

impl Archiving<'_> {
    /// Archives files until [`Archiving::stop`] is called. The spool keeps the remaining files.
    pub fn run(&self) {
        let mut pause = BACKOFF.first;
        while !self.is_over.load(Ordering::SeqCst) {
            // Errors are ignored: the receiving thread then creates the file itself and reports why that
            // fails.
            let _ = self.spool.prepare();
            // A panic would end the thread, and WAL would be received without being archived.
            let archived = catch_unwind(AssertUnwindSafe(|| self.archive_waiting()));
            match archived.unwrap_or_else(|_| Err("archiving a file has panicked".to_owned())) {
                Ok(0) => {
                    self.status.lock().status.archive_problem = None;
                    self.wait(Duration::from_secs(10));
                    pause = BACKOFF.first;
                }
                Ok(_) => pause = BACKOFF.first,
                Err(problem) => {
                    self.status.lock().status.archive_problem = Some(problem);
                    self.wait(pause);
                    pause = BACKOFF.after(pause);
                }
            }
        }
    }

    /// Makes the thread read the spool now.
    pub fn notify(&self) {
        *self.is_due.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.due.notify_one();
    }

    /// Makes the thread end after the current file.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.notify();
    }

    fn wait(&self, time: Duration) {
        let mut is_due = self.is_due.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_due {
            (is_due, _) = self.due.wait_timeout(is_due, time).unwrap_or_else(PoisonError::into_inner);
        }
        *is_due = false;
    }

    /// Archives the waiting files and returns their number. Returns an error if a file could not be archived.
    fn archive_waiting(&self) -> Result<usize, String> {
        let spool = |error: SpoolError| error_text(&error);
        let waiting = self.spool.waiting().map_err(spool)?;
        self.status.lock().status.waiting_files = waiting.len() as u64;
        let (mut done, mut problem) = (0, None);
        // The archive may have been unmounted since the last time.
        let copies = self.copies.afresh();
        push_all(&copies, &self.spool.folder(), &waiting, self.options, give_way, |file, result| {
            (self.report)(&file.to_string(), &result, waiting.len() - done);
            let outcome = match result {
                Ok(_) => {
                    done += 1;
                    self.note_archived(file);
                    (self.archived)(file);
                    self.spool.remove(file).map_err(|error| error_text(&error))
                }
                Err(error) => Err(error_text(&error)),
            };
            problem = outcome.err();
            // Stops at the first failure: the archive gets no holes, and the file that was refused is
            // reported.
            match problem.is_some() || self.is_over.load(Ordering::SeqCst) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        self.status.lock().status.waiting_files = (waiting.len() - done) as u64;
        match problem {
            Some(problem) => Err(problem),
            None => Ok(done),
        }
    }

    fn note_archived(&self, file: ArchivedFile) {
        let ArchivedFile::Segment(name) = file else { return };
        let end: Option<Lsn> = name.start(self.size).map(|start| start.plus(self.size.bytes()));
        let mut inner = self.status.lock();
        inner.status.archived_lsn = end.map(|end| end.to_string());
        inner.archived = Some(name);
    }
}

/// Lowers the priority: commits wait for the threads that receive and synchronise, but not for the threads
/// that archive or bring copies up to date. On Linux, the priority belongs to the calling thread. On other
/// systems, the priority belongs to the process, which does no harm either.
pub(crate) fn give_way() {
    const NICE: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICE);
}
