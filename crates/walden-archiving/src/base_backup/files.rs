//! A base backup whose files several connections read.
//!
//! One session starts and ends the backup. The others read parts of the files in any order: a part that an
//! earlier backup has is recognized by the SHA-256 that the server computes, and is not sent. If WAL
//! summaries show that it is unchanged, the server does not read it (`unchanged`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime};

use walden_archive::Archive;
use walden_archive::base_backups::{
    BackupEnd, BaseBackupError, FileRange, FileWriter, Layout, ListedArchive, ListedFile, NewBackup,
    PAGE_BYTES, PageRules, RangeContent, SmallFile, StoredPart,
};
use walden_postgres::backup::{BackupSession, Changes, FileBackupError, ReadRange, ServerFacts, ServerStart};
use walden_postgres::connection::Parameters;
use walden_source::datadir::ControlFile;
use walden_source::error_text;

use super::unchanged::{self, Known};
use super::{BackupError, BackupOptions, Made, Step, expect_archive};

/// How often the session that holds the backup is used while others read.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Number of attempts to connect again after a lost connection. The first wait is a second, and each is twice
/// the one before.
const ATTEMPTS: u32 = 6;
/// Number of attempts to read a page or file that the server may be writing.
const READ_ATTEMPTS: u32 = 5;
const READ_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Most invalid pages that an error names.
const MAX_NAMED_PAGES: usize = 5;
/// Longest `pg_control` and `PG_VERSION`, in bytes.
const MAX_SMALL_BYTES: u64 = 64 << 10;

/// Makes a base backup.
pub(super) fn create(
    archive: &Archive,
    parameters: &Parameters,
    mut session: BackupSession,
    options: &BackupOptions,
    progress: &mut dyn FnMut(Step),
) -> Result<Made, BackupError> {
    let facts = session.facts()?;
    expect_archive(archive, facts.system_identifier, facts.segment_bytes)?;
    progress(Step::Checkpoint);
    let start = session.start(&options.server.label, options.server.is_fast)?;
    let layout = plan(&mut session, &facts)?;
    let new = NewBackup {
        label: options.server.label.clone(),
        server_version: facts.version.clone(),
        system_identifier: facts.system_identifier,
        start,
    };
    let bytes = layout.bytes();
    let writer = FileWriter::begin(archive, new, options.writer.level, layout)?;
    let (changes, note) = match unchanged::changes(&mut session, &writer, &facts, start, progress)? {
        Known::Changes(changes) => (Some(changes), None),
        Known::Nothing(note) => (None, note),
    };
    progress(Step::Started(bytes));
    let reading = Reading {
        writer: &writer,
        changes,
        parameters,
        server: session.server_start(),
        rules: PageRules { start, blocks_per_file: facts.blocks_per_file },
        has_checksums: facts.has_checksums,
        verifies: facts.has_checksums && options.server.verify_checksums,
        rate: options.server.max_rate.map(|kilobytes| Rate::new(u64::from(kilobytes) << 10)),
        next: AtomicUsize::new(0),
        is_stopped: AtomicBool::new(false),
        received: AtomicU64::new(0),
        unchanged: AtomicU64::new(0),
        unread: AtomicU64::new(0),
        continued: AtomicU64::new(0),
        found: Mutex::default(),
    };
    let read = reading.run(&mut session, options.jobs, progress).and_then(|()| {
        reading.expect_valid_pages(&mut session)?;
        end(&mut session, &facts)
    });
    let end = read.inspect_err(|_| {
        // The error is more important than whether the next backup can continue.
        let _ = writer.note_all();
    })?;
    let counts = [&reading.received, &reading.unchanged, &reading.unread, &reading.continued];
    let [received_bytes, unchanged_bytes, unread_bytes, continued_bytes] =
        counts.map(|count| count.load(Ordering::Relaxed));
    let warnings = reading.found.into_inner().unwrap_or_else(PoisonError::into_inner).warnings;
    let is_without_list = writer.is_without_list();
    let backup = writer.finish(end)?;
    Ok(Made {
        backup,
        jobs: options.jobs,
        received_bytes,
        unchanged_bytes,
        unread_bytes,
        continued_bytes,
        warnings,
        is_without_list,
        note,
    })
}

fn plan(session: &mut BackupSession, facts: &ServerFacts) -> Result<Layout, BackupError> {
    let archives = session.list(facts)?.into_iter().map(|(tablespace, files)| {
        let file = |file: walden_postgres::backup::ServerFile| ListedFile {
            path: file.path,
            bytes: file.bytes,
            modified: file.modified,
            is_folder: file.is_folder,
        };
        ListedArchive { tablespace, files: files.into_iter().map(file).collect() }
    });
    let layout = Layout::new(archives.collect(), facts.file_mode).map_err(BaseBackupError::Content)?;
    Ok(layout)
}

/// Reads `pg_control` and ends the backup.
fn end(session: &mut BackupSession, facts: &ServerFacts) -> Result<BackupEnd, BackupError> {
    // The last file: on a standby, it has the position up to which the files may be later than the start.
    let control = read_control(session)?;
    let version = small_file(session, "PG_VERSION")?;
    let stopped = session.stop()?;
    if let Some(start) = stopped.start_timeline().filter(|&start| start != stopped.timeline) {
        return Err(BackupError::Timeline { start, end: stopped.timeline });
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let modified = i64::try_from(now.as_secs()).unwrap_or_default();
    let tablespaces: BTreeSet<u32> = stopped.tablespaces().into_iter().collect();
    let mut first = vec![SmallFile { path: "backup_label".into(), content: stopped.label, modified }];
    if !stopped.tablespace_map.is_empty() {
        first.push(SmallFile { path: "tablespace_map".into(), content: stopped.tablespace_map, modified });
    }
    first.push(version);
    let found = ControlFile::parse(&control.content).map(|control| control.system_identifier);
    if found.as_ref().ok() != Some(&facts.system_identifier) {
        let problem = format!("expected system identifier {}, found {found:?}", facts.system_identifier);
        return Err(BackupError::Control { problem });
    }
    Ok(BackupEnd { timeline: stopped.timeline, end: stopped.end, tablespaces, first, control })
}

fn small_file(session: &mut BackupSession, path: &str) -> Result<SmallFile, BackupError> {
    let found = session.read_small(path, MAX_SMALL_BYTES)?;
    let (content, modified) = found.ok_or_else(|| FileBackupError::Answer {
        expected: "PG_VERSION and global/pg_control in the data directory",
        found: format!("no {path}"),
    })?;
    Ok(SmallFile { path: path.to_owned(), content, modified })
}

/// Reads `pg_control` again while it is being written.
fn read_control(session: &mut BackupSession) -> Result<SmallFile, BackupError> {
    let mut attempt = 0;
    loop {
        let control = small_file(session, ControlFile::PATH)?;
        match ControlFile::parse(&control.content) {
            Ok(_) => return Ok(control),
            Err(error) if attempt >= READ_ATTEMPTS => {
                return Err(BackupError::Control { problem: error_text(&error) });
            }
            Err(_) => sleep(READ_AGAIN_AFTER),
        }
        attempt += 1;
    }
}

/// The shared state of the threads that read files.
struct Reading<'a> {
    writer: &'a FileWriter,
    /// What has changed since the start of the newest stored backup, if it is known.
    changes: Option<Changes>,
    parameters: &'a Parameters,
    /// The server that has started the backup.
    server: ServerStart,
    rules: PageRules,
    has_checksums: bool,
    verifies: bool,
    rate: Option<Rate>,
    /// The next part.
    next: AtomicUsize,
    is_stopped: AtomicBool,
    received: AtomicU64,
    unchanged: AtomicU64,
    /// Those of the unchanged bytes that the server has not read.
    unread: AtomicU64,
    continued: AtomicU64,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    invalid_pages: u64,
    /// Path and block of the first of them.
    first_invalid: Vec<String>,
    warnings: Vec<String>,
}

impl Reading<'_> {
    /// Reads and stores all parts.
    fn run(
        &self,
        session: &mut BackupSession,
        jobs: usize,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), BackupError> {
        let (sender, done) = channel();
        thread::scope(|scope| {
            let mut started = Ok(());
            for _ in 0..jobs.clamp(1, self.writer.layout().parts().max(1)) {
                let sender = sender.clone();
                let thread = thread::Builder::new().name("read-files".into());
                let spawned = thread.spawn_scoped(scope, move || {
                    let result = self.read_parts(&sender);
                    if let Err(error) = result {
                        self.is_stopped.store(true, Ordering::Relaxed);
                        // The receiver exists until all threads have ended.
                        let _ = sender.send(Err(error));
                    }
                });
                if let Err(error) = spawned {
                    started = Err(BackupError::Thread(error));
                    break;
                }
            }
            drop(sender);
            let result = started.and_then(|()| self.watch(session, &done, progress));
            self.is_stopped.store(true, Ordering::Relaxed);
            result
        })
    }

    /// Reports progress until all threads have ended. Returns the first error.
    fn watch(
        &self,
        session: &mut BackupSession,
        done: &Receiver<Result<u64, BackupError>>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), BackupError> {
        let mut kept_alive = Instant::now();
        loop {
            match done.recv_timeout(Duration::from_secs(1)) {
                Ok(Ok(bytes)) => progress(Step::Received(bytes)),
                Ok(Err(error)) => return Err(error),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.writer.note_progress()?;
            if kept_alive.elapsed() > KEEP_ALIVE {
                session.keep_alive()?;
                kept_alive = Instant::now();
            }
        }
    }

    /// Reads parts until there are no more. Sends the bytes of each.
    fn read_parts(&self, done: &Sender<Result<u64, BackupError>>) -> Result<(), BackupError> {
        let mut session: Option<BackupSession> = None;
        while !self.is_stopped.load(Ordering::Relaxed) {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.writer.layout().parts() {
                break;
            }
            let ranges = self.writer.layout().ranges(part);
            let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
            if !self.take_unread(part, bytes) && !self.take_over(&mut session, part, bytes)? {
                let (contents, is_verified) = self.read(&mut session, ranges, bytes)?;
                self.writer.store(part, contents, is_verified)?;
            }
            if done.send(Ok(bytes)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Takes a part from the newest backup, if no WAL has changed the files.
    fn take_unread(&self, part: usize, bytes: u64) -> bool {
        let Some(changes) = &self.changes else { return false };
        let ranges = as_read(self.writer.layout().ranges(part));
        let is_taken =
            ranges.iter().all(|range| changes.is_unchanged(range)) && self.writer.take_unchanged(part);
        if is_taken {
            self.unchanged.fetch_add(bytes, Ordering::Relaxed);
            self.unread.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Takes a part from an earlier backup, if the server's files still have its content.
    fn take_over(
        &self,
        session: &mut Option<BackupSession>,
        part: usize,
        bytes: u64,
    ) -> Result<bool, BackupError> {
        if !self.writer.is_known(part, self.verifies) {
            return Ok(false);
        }
        self.wait_for(bytes);
        let ranges = self.writer.layout().ranges(part);
        let sums = self.retry(session, |session| session.digests(&as_read(ranges)))?;
        let sums: Option<Vec<[u8; 32]>> = sums.into_iter().collect();
        let count = match sums.and_then(|sums| self.writer.take_over(part, &sums)) {
            None => return Ok(false),
            Some(StoredPart::Continued) => &self.continued,
            Some(_) => &self.unchanged,
        };
        count.fetch_add(bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Reads ranges, and verifies them. Returns whether all pages were verified.
    fn read(
        &self,
        session: &mut Option<BackupSession>,
        ranges: &[FileRange],
        bytes: u64,
    ) -> Result<(Vec<Option<RangeContent>>, bool), BackupError> {
        if ranges.is_empty() {
            return Ok((Vec::new(), true));
        }
        self.wait_for(bytes);
        let read = self.retry(session, |session| session.read(&as_read(ranges)))?;
        let (mut contents, mut is_verified) =
            (Vec::with_capacity(read.len()), !self.has_checksums || self.verifies);
        for (range, content) in ranges.iter().zip(read) {
            let Some((bytes, sha256)) = content else {
                contents.push(None);
                continue;
            };
            self.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let mut content = RangeContent { bytes, sha256: Some(sha256) };
            if self.verifies {
                is_verified &= self.verify(session, range, &mut content)?;
            }
            contents.push(Some(content));
        }
        Ok((contents, is_verified))
    }

    /// Verifies the checksums of pages. One that the server was writing is read again. Returns whether all
    /// were verified.
    fn verify(
        &self,
        session: &mut Option<BackupSession>,
        range: &FileRange,
        content: &mut RangeContent,
    ) -> Result<bool, BackupError> {
        let found = self.rules.verify(range, &content.bytes);
        let mut is_complete = found.is_complete;
        for number in found.invalid {
            let at = number as usize * PAGE_BYTES;
            let offset = range.offset + at as u64;
            let page = FileRange { path: range.path.clone(), offset, bytes: PAGE_BYTES as u64 };
            is_complete = false;
            let mut attempt = 0;
            loop {
                let read =
                    self.retry(session, |session| session.read(&as_read(std::slice::from_ref(&page))))?;
                // A file that became shorter or was removed has no such page any more.
                let again = read.into_iter().flatten().next().filter(|(again, _)| again.len() == PAGE_BYTES);
                let Some((again, _)) = again else { break };
                content.bytes[at..at + PAGE_BYTES].copy_from_slice(&again);
                content.sha256 = None;
                if self.rules.verify(&page, &again).invalid.is_empty() {
                    break;
                }
                attempt += 1;
                if attempt == READ_ATTEMPTS {
                    let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.invalid_pages += 1;
                    if found.first_invalid.len() < MAX_NAMED_PAGES {
                        let block = offset / PAGE_BYTES as u64;
                        found.first_invalid.push(format!("{} block {block}", range.path.display()));
                    }
                    break;
                }
                sleep(READ_AGAIN_AFTER);
            }
        }
        Ok(is_complete)
    }

    /// Fails after invalid pages, unless checksums were disabled meanwhile.
    fn expect_valid_pages(&self, session: &mut BackupSession) -> Result<(), BackupError> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.invalid_pages == 0 || !session.has_checksums()? {
            return Ok(());
        }
        Err(BackupError::Checksums { pages: found.invalid_pages, first: found.first_invalid.clone() })
    }

    /// Runs a query. After a lost connection, runs it over a new one.
    fn retry<T>(
        &self,
        session: &mut Option<BackupSession>,
        query: impl Fn(&mut BackupSession) -> Result<T, FileBackupError>,
    ) -> Result<T, BackupError> {
        let mut attempt = 0;
        loop {
            let result = match session {
                Some(session) => query(session),
                None => BackupSession::connect_again(self.parameters, self.server)
                    .and_then(|connected| query(session.insert(connected))),
            };
            attempt += 1;
            match result {
                Err(error) if error.is_of_connection() && attempt < ATTEMPTS && !self.is_stopped() => {
                    *session = None;
                    if attempt == 1 {
                        let text = format!("{}; it was read over a new connection", error_text(&error));
                        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.warnings.push(text);
                    }
                    self.pause(Duration::from_secs(1 << (attempt - 1)));
                }
                other => return Ok(other?),
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Waits as long as the maximum rate requires before the server reads this number of bytes.
    fn wait_for(&self, bytes: u64) {
        if let Some(rate) = &self.rate {
            self.pause(rate.wait_for(bytes));
        }
    }

    /// Waits, but not after an error of another thread.
    fn pause(&self, time: Duration) {
        let began = Instant::now();
        while let Some(left) = time.checked_sub(began.elapsed()).filter(|_| !self.is_stopped()) {
            sleep(left.min(Duration::from_millis(100)));
        }
    }
}

fn as_read(ranges: &[FileRange]) -> Vec<ReadRange<'_>> {
    ranges.iter().map(|it| ReadRange { path: &it.path, offset: it.offset, bytes: it.bytes }).collect()
}

/// Limits the bytes a second that the server reads.
struct Rate {
    bytes_per_second: u64,
    /// When the bytes that were requested are allowed.
    allowed: Mutex<Instant>,
}

impl Rate {
    fn new(bytes_per_second: u64) -> Rate {
        Rate { bytes_per_second: bytes_per_second.max(1), allowed: Mutex::new(Instant::now()) }
    }

    /// Returns the wait before this number of bytes.
    fn wait_for(&self, bytes: u64) -> Duration {
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let from = (*allowed).max(now);
        *allowed = from + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        from - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_add_up_to_the_rate() {
        let rate = Rate::new(1000);
        assert_eq!(rate.wait_for(500), Duration::ZERO);
        assert!(rate.wait_for(500) > Duration::from_millis(400));
        assert!(rate.wait_for(1) > Duration::from_millis(900));
    }
}
