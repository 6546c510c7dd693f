//! The thread that archives what is complete, by the same path as `walden archive push`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use walden_archive::Archive;
use walden_archive::history::History;
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushError, PushOptions, Pushed, push_one};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_source::{error_text, workers};

use crate::spool::{Spool, SpoolError};
use crate::status;

/// How long nothing is archived after a failure: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What became of a file, for logs.
pub(crate) type Report<'r> = &'r (dyn Fn(&str, &Result<Pushed, PushError>, usize) + Sync);

/// Archives the files of a spool.
pub(crate) struct Archiving<'s> {
    pub archive: &'s Archive,
    pub spool: &'s Spool<'s>,
    pub size: SegmentSize,
    pub options: &'s PushOptions,
    pub status: &'s status::Shared,
    pub report: Report<'s>,
    /// Set when there is something to archive.
    pub is_due: Mutex<bool>,
    pub due: Condvar,
    pub is_over: AtomicBool,
}

impl Archiving<'_> {
    /// Archives until it is told to stop; after that, the spool keeps what is left.
    pub fn run(&self) {
        let mut pause = PAUSE.0;
        while !self.is_over.load(Ordering::SeqCst) {
            // Where it does not work, receiving makes the file itself, and says why it cannot.
            let _ = self.spool.prepare();
            match self.archive_waiting() {
                Ok(0) => {
                    self.status.lock().status.archive_problem = None;
                    self.wait(Duration::from_secs(10));
                    pause = PAUSE.0;
                }
                Ok(_) => pause = PAUSE.0,
                Err(problem) => {
                    self.status.lock().status.archive_problem = Some(problem);
                    self.wait(pause);
                    pause = (2 * pause).min(PAUSE.1);
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
        let histories = self.histories(&waiting);
        let (mut done, mut problem) = (0, None);
        let push = |_: &mut (), index: usize| {
            let file = waiting[index];
            if self.is_over.load(Ordering::SeqCst) {
                return None;
            }
            let path = self.spool.path(file);
            let result = push_one(self.archive, file, &path, histories.clone(), self.options);
            Some((file, result))
        };
        workers::run_in_order(0..waiting.len(), self.options.threads, give_way, push, |outcome| {
            let Some((file, result)) = outcome else { return ControlFlow::Break(()) };
            (self.report)(&file.to_string(), &result, waiting.len() - done);
            match result {
                Ok(_) => {
                    done += 1;
                    self.note_archived(file);
                    match self.spool.remove(file) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(error) => {
                            problem = Some(error_text(&error));
                            ControlFlow::Break(())
                        }
                    }
                }
                // In order: the archive has no holes, and one file that is refused is seen.
                Err(error) => {
                    problem = Some(error_text(&error));
                    ControlFlow::Break(())
                }
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

    /// The histories that lie in the spool: they say where a timeline ended in a segment that is archived as partial.
    fn histories(&self, waiting: &[ArchivedFile]) -> Vec<History> {
        let history = |file: &ArchivedFile| {
            let ArchivedFile::History(timeline) = *file else { return None };
            History::parse(timeline, &std::fs::read(self.spool.path(*file)).ok()?).ok()
        };
        waiting.iter().filter_map(history).collect()
    }
}

/// Commits wait for the threads that receive and synchronise, and nobody for those that archive. On Linux, the priority is the calling
/// thread's; elsewhere the process's, which does no harm either.
fn give_way() {
    const NICE: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICE);
}
