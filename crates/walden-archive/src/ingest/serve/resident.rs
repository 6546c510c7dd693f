//! Archives the files of one `pg_wal` during the lifetime of the process: requested files, and ready files
//! ahead of their request.
//!
//! Some threads of the caller process files ([`Resident::work`]), others request them
//! ([`Resident::archive`]). Requested files have priority. A file that was archived ahead is acknowledged if
//! it is still unchanged. No file is stored before all files that precede it in PostgreSQL's order are
//! archived.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walden_source::regular_file;

use crate::copies::Copies;
use crate::hash::hash_file;
use crate::ingest::push::{
    FileRead, PushError, PushOptions, Pushed, Pushers, Scratch, local_histories, ready_files,
};
use crate::ingest::push::{MAX_AGE, Stamp};
use crate::objects::name::ArchivedFile;

/// Interval at which a waiting caller is notified that the file is still being processed.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// An archive and the folder whose files it receives.
pub struct Resident {
    copies: Copies,
    wal: PathBuf,
    options: PushOptions,
    queue: Mutex<Queue>,
    /// Signals that a file may be started, that a file ended, or that the process stops.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    is_stopping: bool,
    /// Number of files started so far. A file started after a request has a number that is at least the value
    /// at the request.
    begun: u64,
    /// Requested, not started.
    asked: VecDeque<ArchivedFile>,
    /// To be archived ahead, not started, in PostgreSQL's order.
    ahead: VecDeque<ArchivedFile>,
    /// A request arrived while `ahead` was at most half full, so it must be refilled.
    should_look: bool,
    running: BTreeSet<ArchivedFile>,
    ended: BTreeMap<ArchivedFile, Ended>,
    /// Acknowledged, but the server may not have marked it as done yet.
    acknowledged: BTreeSet<ArchivedFile>,
    /// Archived with the content that was read, acknowledged or not.
    archived: BTreeSet<ArchivedFile>,
    /// The ready files at the last listing, in PostgreSQL's order.
    order: Vec<ArchivedFile>,
    /// The archive could not store a file. Nothing is archived ahead until it stores one.
    is_in_trouble: bool,
    ready: usize,
    /// Number of unarchived files at the last listing, minus those started since.
    waiting: usize,
    view: Option<Arc<View>>,
}

/// Result for a file, kept until the file is requested.
struct Ended {
    /// Start number of the file.
    begun: u64,
    at: Instant,
    result: Result<(Pushed, Option<FileRead>), PushError>,
}

/// A cached view of the archive and its timelines.
struct View {
    pusher: Pushers,
    since: Instant,
}

/// The next task.
enum Task {
    File { file: ArchivedFile, begun: u64, is_asked: bool, waiting: usize },
    LookAhead,
}

/// The result for a file, for reporting.
pub struct Report<'a> {
    /// Name of the file.
    pub name: &'a str,
    /// Result of archiving it.
    pub result: Result<&'a Pushed, &'a PushError>,
    /// Whether PostgreSQL requested the file and waits. If false, the file was archived ahead.
    pub is_asked: bool,
    /// Number of ready files.
    pub ready: usize,
}

/// Returned if a file was not finished because the process stops or its requester disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("walden archive serve is being stopped")]
pub struct Stopped;

impl Resident {
    /// Archives the files in a folder: a server's `pg_wal`. Ignores the option `time`, and uses `threads`
    /// only for hashing a file.
    pub fn new(copies: impl Into<Copies>, wal: PathBuf, options: PushOptions) -> Resident {
        Resident { copies: copies.into(), wal, options, queue: Mutex::default(), changed: Condvar::new() }
    }

    /// Archives a file and waits until it is durable. Other ready files are archived concurrently and
    /// afterwards.
    ///
    /// While waiting, calls `sign` about twice a second. `sign` ends the wait by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// [`Stopped`] if the result of the file is unknown.
    pub fn archive(
        &self,
        file: ArchivedFile,
        sign: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Result<Pushed, PushError>, Stopped> {
        let mut queue = self.lock();
        let asked_at = queue.begun;
        // Retries a file that failed ahead of its request. A file that was archived too long ago is searched
        // for in the archive.
        if queue.ended.get(&file).is_some_and(|ended| ended.result.is_err() || ended.is_old()) {
            queue.ended.remove(&file);
        }
        queue.should_look |= queue.ahead.len() <= self.options.look_ahead / 2;
        let mut shown = Instant::now();
        loop {
            if let Some(ended) = queue.ended.remove(&file) {
                let is_current = ended.begun >= asked_at;
                match ended.result {
                    Err(error) if is_current => return Ok(Err(error)),
                    Err(_) => {}
                    Ok((pushed, read)) => {
                        drop(queue);
                        // Archived before the request, so its content must be unchanged.
                        let is_same = is_current || read.is_some_and(|read| self.is_still(file, &read));
                        queue = self.lock();
                        if is_same {
                            queue.acknowledged.insert(file);
                            queue.ready = queue.ready.saturating_sub(1);
                            // There may be room to archive another file ahead.
                            self.changed.notify_all();
                            return Ok(Ok(pushed));
                        }
                        queue.archived.remove(&file);
                    }
                }
            }
            if !queue.running.contains(&file) {
                if queue.is_stopping {
                    return Err(Stopped);
                }
                // Also needed if another requester has already received the result.
                queue.ask(file);
                self.changed.notify_all();
            }
            queue = self.wait(queue, SIGN_OF_LIFE);
            if shown.elapsed() >= SIGN_OF_LIFE {
                drop(queue);
                if sign().is_break() {
                    return Err(Stopped);
                }
                shown = Instant::now();
                queue = self.lock();
            }
        }
    }

    /// Processes files until the process stops, and reports each file. Several threads can call this.
    pub fn work(&self, report: &(dyn Fn(Report<'_>) + Sync)) {
        let mut scratch = Scratch::default();
        let mut queue = self.lock();
        while !queue.is_stopping {
            match queue.next(self.options.look_ahead) {
                None => queue = self.wait(queue, MAX_AGE),
                Some(Task::LookAhead) => {
                    drop(queue);
                    self.look_ahead();
                    queue = self.lock();
                }
                Some(Task::File { file, begun, is_asked, waiting }) => {
                    let ready = queue.ready;
                    drop(queue);
                    let name = file.to_string();
                    let path = self.wal.join(&name);
                    let view = self.view();
                    if is_asked && self.options.look_ahead > 0 {
                        view.pusher.learn_link_before(file);
                    }
                    let may_store = || is_asked || self.wait_for_turn(file);
                    let result = view.pusher.push(file, &path, waiting, &mut scratch, &may_store).transpose();
                    if let Some(result) = &result {
                        let told = result.as_ref().map(|(pushed, _)| pushed);
                        report(Report { name: &name, result: told, is_asked, ready });
                    }
                    queue = self.lock();
                    match result {
                        Some(result) => queue.end(file, Ended { begun, at: Instant::now(), result }),
                        None => queue.hold(file),
                    }
                    self.changed.notify_all();
                }
            }
        }
    }

    /// Returns the number of ready files at the last listing, minus those archived since.
    pub fn ready(&self) -> usize {
        self.lock().ready
    }

    /// Makes all workers and waiting callers stop after the current files.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// Chooses the files to archive ahead: the ready files before the first file that failed, or that the
    /// archive lists but that was not compared with the archived content.
    fn look_ahead(&self) {
        let listed = ready_files(&self.wal);
        let mut queue = self.lock();
        let Ok(ready) = listed else {
            queue.ahead.clear();
            return;
        };
        let files: BTreeSet<ArchivedFile> = ready.iter().copied().collect();
        queue.ready = ready.len();
        queue.acknowledged.retain(|file| files.contains(file));
        queue.archived.retain(|file| files.contains(file));
        queue.ended.retain(|file, ended| files.contains(file) || !ended.is_old());
        queue.order.clone_from(&ready);
        let unknown: Vec<ArchivedFile> = ready.into_iter().filter(|&file| !queue.knows(file)).collect();
        if queue.is_in_trouble || unknown.is_empty() {
            queue.ahead.clear();
            return;
        }
        let first_failed = queue.first_failed();
        drop(queue);
        // Done without the lock because the store may be slow.
        let view = self.view();
        let is_listed = |file: &ArchivedFile| view.pusher.is_listed(*file);
        let waiting = unknown.iter().filter(|&file| !is_listed(file)).count();
        let is_behind = |file: &ArchivedFile| first_failed.is_some_and(|failed| is_before(failed, *file));
        let ahead = unknown.into_iter().take_while(|file| !is_behind(file) && !is_listed(file));
        let ahead: Vec<ArchivedFile> = ahead.take(self.options.look_ahead).collect();
        let mut queue = self.lock();
        queue.waiting = waiting;
        queue.ahead = ahead.into_iter().filter(|&file| !queue.knows(file)).collect();
        self.changed.notify_all();
    }

    /// Waits for the files that PostgreSQL requests before this file. Returns whether all of them are
    /// archived.
    fn wait_for_turn(&self, file: ArchivedFile) -> bool {
        let mut queue = self.lock();
        loop {
            match queue.is_turn(file) {
                Some(is_turn) => return is_turn,
                None => queue = self.wait(queue, SIGN_OF_LIFE),
            }
        }
    }

    fn view(&self) -> Arc<View> {
        let mut queue = self.lock();
        if let Some(view) = queue.view.as_ref().filter(|view| view.since.elapsed() < MAX_AGE) {
            return Arc::clone(view);
        }
        drop(queue);
        let pusher = Pushers::new(&self.copies.afresh(), &self.options, &local_histories(&self.wal));
        let view = Arc::new(View { pusher, since: Instant::now() });
        queue = self.lock();
        queue.view = Some(Arc::clone(&view));
        view
    }

    /// Returns whether a file is unchanged since it was read. Reads it again only if it may have changed.
    fn is_still(&self, file: ArchivedFile, read: &FileRead) -> bool {
        let Ok(content) = regular_file::open(&self.wal.join(file.to_string())) else { return false };
        if read.stamp.is_some() && Stamp::read(&content) == read.stamp {
            return true;
        }
        hash_file(&content, self.options.threads).is_ok_and(|(_, found)| found == read.hash)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>, time: Duration) -> MutexGuard<'q, Queue> {
        self.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Ended {
    fn is_old(&self) -> bool {
        self.at.elapsed() >= MAX_AGE
    }
}

/// Returns whether PostgreSQL requests `one` before `other`.
fn is_before(one: ArchivedFile, other: ArchivedFile) -> bool {
    one.archiving_order() < other.archiving_order()
}

impl Queue {
    fn ask(&mut self, file: ArchivedFile) {
        if !self.asked.contains(&file) {
            self.ahead.retain(|&other| other != file);
            self.asked.push_back(file);
        }
    }

    /// Returns whether a file is queued, running or finished.
    fn knows(&self, file: ArchivedFile) -> bool {
        self.asked.contains(&file)
            || self.running.contains(&file)
            || self.ended.contains_key(&file)
            || self.acknowledged.contains(&file)
    }

    /// Returns the first file in PostgreSQL's order that failed and was not requested since.
    fn first_failed(&self) -> Option<ArchivedFile> {
        let mut files = self.order.iter().copied();
        files.find(|file| self.ended.get(file).is_some_and(|ended| ended.result.is_err()))
    }

    /// Returns whether a file may be stored because all earlier files are archived, or `None` while an
    /// earlier file is running. Does not wait for an earlier file that is neither archived nor running,
    /// because all threads could end up waiting.
    fn is_turn(&self, file: ArchivedFile) -> Option<bool> {
        for &before in self.order.iter().take_while(|&&before| is_before(before, file)) {
            if self.running.contains(&before) {
                return None;
            }
            if !self.archived.contains(&before) && !self.acknowledged.contains(&before) {
                return Some(false);
            }
        }
        Some(true)
    }

    fn next(&mut self, look_ahead: usize) -> Option<Task> {
        if let Some(file) = self.asked.pop_front() {
            return Some(self.begin(file, true));
        }
        if look_ahead > 0 && std::mem::take(&mut self.should_look) {
            return Some(Task::LookAhead);
        }
        if self.ended.len() >= look_ahead {
            return None;
        }
        let file = self.ahead.pop_front()?;
        Some(self.begin(file, false))
    }

    fn begin(&mut self, file: ArchivedFile, is_asked: bool) -> Task {
        let begun = self.begun;
        self.begun += 1;
        self.running.insert(file);
        let waiting = self.waiting.max(1);
        self.waiting = waiting - 1;
        Task::File { file, begun, is_asked, waiting }
    }

    fn end(&mut self, file: ArchivedFile, ended: Ended) {
        match &ended.result {
            Ok(_) => {
                self.is_in_trouble = false;
                self.archived.insert(file);
            }
            Err(error) => {
                // The error may be due to a change since the view was created.
                self.view = None;
                // PostgreSQL requests nothing after a failed file.
                self.ahead.clear();
                self.archived.remove(&file);
                self.acknowledged.remove(&file);
                let first = match error {
                    PushError::Copies { first, .. } => first,
                    error => error,
                };
                if matches!(first, PushError::Archive { .. }) {
                    self.is_in_trouble = true;
                }
            }
        }
        self.running.remove(&file);
        self.ended.insert(file, ended);
    }

    /// Releases a file that was not stored because an earlier file is not archived. The file is processed
    /// again when it is requested or when the earlier file is archived.
    fn hold(&mut self, file: ArchivedFile) {
        self.running.remove(&file);
        self.ahead.clear();
    }
}
