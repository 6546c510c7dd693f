//! The thread that archives what is complete, by the same path as `walden archive push`: whole files, which leave the spool afterwards. Parts of
//! the segment that is being written are archived by `uploading`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use walden_archive::Archive;
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushError, PushOptions, Pushed, push_all};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_source::error_text;

use crate::backoff::Backoff;
use crate::spool::{Spool, SpoolError};
use crate::status;

/// How long nothing is archived after a failure.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

/// What became of a file, for logs.
pub(crate) type Report<'r> = &'r (dyn Fn(&str, &Result<Pushed, PushError>, usize) + Sync);

/// From the spool into the archive: the files that are complete, in order.
pub(crate) struct Archiving<'s> {
    pub archive: &'s Archive,
    pub spool: &'s Spool<'s>,
    pub size: SegmentSize,
    pub options: &'s PushOptions,
    pub status: &'s status::Shared,
    pub report: Report<'s>,
    /// Is told of each file that was archived, before it leaves the spool.
    pub archived: &'s (dyn Fn(ArchivedFile) + Sync),
    /// Set when there is something to archive.
    pub is_due: Mutex<bool>,
    pub due: Condvar,
    pub is_over: AtomicBool,
}

impl Archiving<'_> {
    /// Archives until it is told to stop; after that, the spool keeps what is left.
    pub fn run(&self) {
        let mut pause = BACKOFF.first;
        while !self.is_over.load(Ordering::SeqCst) {
            // Where it does not work, receiving makes the file itself, and says why it cannot.
            let _ = self.spool.prepare();
            match self.archive_waiting() {
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

    /// Has it look at the spool now.
    pub fn notify(&self) {
        *self.is_due.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.due.notify_one();
    }

    /// Has it end when the file that is worked on is done.
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

    /// Archives what waits, and says how many files that were; an error if one of them could not be.
    fn archive_waiting(&self) -> Result<usize, String> {
        let spool = |error: SpoolError| error_text(&error);
        let waiting = self.spool.waiting().map_err(spool)?;
        self.status.lock().status.waiting_files = waiting.len() as u64;
        let (mut done, mut problem) = (0, None);
        // It may have been unmounted since the last time.
        let archive = self.archive.afresh();
        push_all(&archive, &self.spool.folder(), &waiting, self.options, give_way, |file, result| {
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
            // In order: the archive has no holes, and one file that is refused is seen.
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
        self.status.lock().status.archived_lsn = end.map(|end| end.to_string());
    }
}

/// Commits wait for the threads that receive and synchronise, and nobody for those that archive. On Linux, the priority is the calling
/// thread's; elsewhere the process's, which does no harm either.
fn give_way() {
    const NICE: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICE);
}
