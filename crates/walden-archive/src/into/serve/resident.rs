//! Archives the files of one `pg_wal` for as long as the process lives: those that are asked for, and ahead of that those that
//! are ready.
//!
//! Threads of the caller work ([`Resident::work`]), others ask ([`Resident::archive`]). A file that is asked for comes before
//! those ahead. One that was archived ahead is acknowledged if its file is still the same. None appears in the archive ahead of a file
//! that PostgreSQL asks for earlier, and that is refused or not archived yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walden_source::regular_file;

use crate::archive::Archive;
use crate::hash::hash_file;
use crate::into::push::{FileRead, PushError, PushOptions, Pushed, Pusher, local_histories, ready_files};
use crate::into::push::{MAX_AGE, Stamp};
use crate::stored::name::ArchivedFile;

/// How often whoever asks is shown that the file is being worked on.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// An archive and the folder whose files go into it.
pub struct Resident {
    archive: Archive,
    wal: PathBuf,
    options: PushOptions,
    queue: Mutex<Queue>,
    /// A file may be begun, has ended, or the process stops.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    is_stopping: bool,
    /// Files that were begun so far: what began after somebody asked has a number that is no smaller than this was then.
    begun: u64,
    /// Asked for, not begun.
    asked: VecDeque<ArchivedFile>,
    /// To be archived ahead, not begun, in PostgreSQL's order.
    ahead: VecDeque<ArchivedFile>,
    /// Somebody has asked since `ahead` was filled.
    should_look: bool,
    running: BTreeSet<ArchivedFile>,
    ended: BTreeMap<ArchivedFile, Ended>,
    /// Acknowledged, and maybe not yet marked as done by the server.
    acknowledged: BTreeSet<ArchivedFile>,
    /// Archived with the content that was read, acknowledged or not.
    archived: BTreeSet<ArchivedFile>,
    /// What was ready when it was listed last, in PostgreSQL's order.
    order: Vec<ArchivedFile>,
    /// The archive could not take a file: nothing is archived ahead until it takes one.
    is_in_trouble: bool,
    ready: usize,
    /// Files that were not archived when they were listed last, without those that were begun since.
    waiting: usize,
    view: Option<Arc<View>>,
}

/// What became of a file, until it is asked for.
struct Ended {
    /// The number of its beginning.
    begun: u64,
    at: Instant,
    result: Result<(Pushed, Option<FileRead>), PushError>,
}

/// What is known of the archive and of timelines, for a while.
struct View {
    pusher: Pusher,
    since: Instant,
}

/// What is next to be done.
enum Task {
    File { file: ArchivedFile, begun: u64, is_asked: bool, waiting: usize },
    LookAhead,
}

/// What became of a file, as it is reported.
pub struct Report<'a> {
    /// Its name.
    pub name: &'a str,
    /// What became of it.
    pub result: Result<&'a Pushed, &'a PushError>,
    /// Whether somebody waits for it; else it was archived ahead.
    pub is_asked: bool,
    /// How many files were ready.
    pub ready: usize,
}

/// Why a file was not worked on to its end: the process stops, or whoever asked for it has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("walden archive serve is being stopped")]
pub struct Stopped;

impl Resident {
    /// Archives what is in a folder: a server's `pg_wal`. Of the options, `time` means nothing here, and `threads` only how a file is
    /// hashed.
    pub fn new(archive: Archive, wal: PathBuf, options: PushOptions) -> Resident {
        Resident { archive, wal, options, queue: Mutex::default(), changed: Condvar::new() }
    }

    /// Archives a file, and waits until it is durable; others that are ready are archived meanwhile and afterwards.
    ///
    /// While it waits, `sign` is called about twice a second; it ends the wait by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// [`Stopped`], in place of what became of the file.
    pub fn archive(
        &self,
        file: ArchivedFile,
        sign: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Result<Pushed, PushError>, Stopped> {
        let mut queue = self.lock();
        let asked_at = queue.begun;
        // What failed ahead of time is tried again, and what was archived long ago is looked for in the archive.
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
                        // Archived before it was asked for: is this still the same content?
                        let is_same = is_current || read.is_some_and(|read| self.is_still(file, &read));
                        queue = self.lock();
                        if is_same {
                            queue.acknowledged.insert(file);
                            queue.ready = queue.ready.saturating_sub(1);
                            // There may be space for another one ahead.
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
                // Also if another one that asked for it has taken what became of it.
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

    /// Works until the process stops; `report` is told of each file. More than one thread may work.
    pub fn work(&self, report: &(dyn Fn(Report<'_>) + Sync)) {
        let mut buffer = Vec::new();
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
                    let result = view.pusher.push(file, &path, waiting, &mut buffer, &may_store).transpose();
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

    /// How many files were ready when they were listed last, without those that were archived since.
    pub fn ready(&self) -> usize {
        self.lock().ready
    }

    /// Lets those that work and those that wait end, after the files that are being worked on.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// Chooses what is archived ahead: of what is ready, what comes before the first file that failed, or that the archive lists and that
    /// was not compared with it.
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
        // The store may take its time.
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

    /// Waits until all files that PostgreSQL asks for before one are archived; whether they are.
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
        let pusher = Pusher::new(self.archive.afresh(), self.options.clone(), local_histories(&self.wal));
        let view = Arc::new(View { pusher, since: Instant::now() });
        queue = self.lock();
        queue.view = Some(Arc::clone(&view));
        view
    }

    /// Whether a file is as it was read. It is read once more only if it may have changed.
    fn is_still(&self, file: ArchivedFile, read: &FileRead) -> bool {
        let Ok(content) = regular_file::open(&self.wal.join(file.to_string())) else { return false };
        if read.stamp.is_some() && Stamp::of(&content) == read.stamp {
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

/// Whether PostgreSQL asks for one file before another.
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

    /// Whether something was or is done about a file.
    fn knows(&self, file: ArchivedFile) -> bool {
        self.asked.contains(&file)
            || self.running.contains(&file)
            || self.ended.contains_key(&file)
            || self.acknowledged.contains(&file)
    }

    /// The first file, in PostgreSQL's order, that failed and was not asked for since.
    fn first_failed(&self) -> Option<ArchivedFile> {
        let mut files = self.order.iter().copied();
        files.find(|file| self.ended.get(file).is_some_and(|ended| ended.result.is_err()))
    }

    /// Whether a file may be stored: all before it are archived. Nothing as long as one of them is being worked on. What is neither is
    /// not waited for, as all threads could do so.
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
                // It may be for something that changed since.
                self.view = None;
                // PostgreSQL does not get past it.
                self.ahead.clear();
                self.archived.remove(&file);
                self.acknowledged.remove(&file);
                if matches!(error, PushError::Archive { .. }) {
                    self.is_in_trouble = true;
                }
            }
        }
        self.running.remove(&file);
        self.ended.insert(file, ended);
    }

    /// A file that was not stored, as one before it is not archived: it is worked on again when it is asked for, or that is archived.
    fn hold(&mut self, file: ArchivedFile) {
        self.running.remove(&file);
        self.ahead.clear();
    }
}
