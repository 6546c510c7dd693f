//! Stores objects as files on a server that ssh reaches, by SFTP.
//!
//! The system's `ssh` connects, so that the user's configuration, known hosts, keys and agent apply. An
//! object is written under a temporary name, synchronized, and given its name by a hard link, which fails if
//! the name exists.

mod connection;
mod target;

use std::collections::BTreeSet;
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::future;
use jiff::Timestamp;
use russh_sftp::protocol::StatusCode;
use tokio::runtime::{Builder, Runtime};

use self::connection::{Connection, Failure};
use self::target::Target;
use super::pace::{Pace, Turns};
use super::versions::Kept;
use super::{Cause, Created, Listed, MAX_OBJECT_BYTES, Store, StoreError, is_valid};
use crate::pending::ENDING;

/// File mode of an object.
const MODE: u32 = 0o640;
/// Default limit for an operation, including attempts on other connections. The transfer time at
/// [`MIN_RATE`] is added.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Assumed minimum transfer rate, in bytes per second.
const MIN_RATE: u64 = 128 << 10;
/// Pause before the second attempt. It doubles with each one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Number of folders that are listed at once.
const FOLDERS_AT_ONCE: usize = 8;
/// Exceeds the folder depth of every key that Walden writes, so a deeper tree means a symbolic link loops.
const MAX_DEPTH: usize = 16;
/// Age in seconds from which a temporary file counts as left by a killed process.
const LEFTOVER_AGE: i64 = 24 * 3600;

const NO_SYNC: &str = "the server cannot synchronize files (fsync@openssh.com): a power failure there can lose files that were acknowledged";

/// A folder on a server that ssh reaches.
pub struct Sftp {
    target: Target,
    location: String,
    answer_within: Option<Duration>,
    runtime: Runtime,
    current: Mutex<Option<Arc<Connection>>>,
    /// Locked while a thread connects.
    connecting: tokio::sync::Mutex<()>,
    /// Folders whose directory entries are durable, as in a local folder.
    durable: Mutex<BTreeSet<String>>,
    warning: OnceLock<&'static str>,
    pace: Arc<Pace>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sftp {
    /// Returns the store at `sftp://[USER@]HOST[:PORT]/PATH`. Nothing is connected yet. `options` are
    /// `program`, the ssh program, and `config`, its configuration file.
    ///
    /// With `answer_within`, an operation fails if the server does not answer within this time, including
    /// attempts on new connections; otherwise within one minute. Transfers get additional time, at 128 kB per
    /// second of content.
    ///
    /// # Errors
    /// A URL or an option that cannot be used.
    pub fn open(
        url: &str,
        options: &[(String, String)],
        answer_within: Option<Duration>,
    ) -> Result<Sftp, StoreError> {
        let failed = |problem: Box<dyn std::error::Error + Send + Sync>| StoreError {
            source: Some(problem),
            ..StoreError::new("open", "the archive", url, Cause::Other)
        };
        let target = Target::parse(url, options).map_err(|problem| failed(problem.into()))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Sftp {
            target,
            location: url.to_owned(),
            answer_within,
            runtime: runtime.map_err(|error| failed(error.into()))?,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            durable: Mutex::default(),
            warning: OnceLock::new(),
            pace: Arc::default(),
        })
    }

    /// Limits the transfer of content to a number of bytes per second, or not at all.
    #[must_use]
    pub fn with_bandwidth(self, limit: Option<u64>) -> Sftp {
        Sftp { pace: Pace::new(limit), ..self }
    }

    fn path(&self, operation: &'static str, key: &str) -> Result<String, StoreError> {
        match is_valid(key) && !key.ends_with(ENDING) {
            true => Ok(format!("{}/{key}", self.target.folder)),
            false => Err(StoreError::new(operation, key, &self.location, Cause::InvalidKey)),
        }
    }

    fn error(&self, operation: &'static str, key: &str, failure: Failure) -> StoreError {
        let (cause, text) = match failure {
            Failure::Status(StatusCode::NoSuchFile, _) => (Cause::NotFound, None),
            Failure::Status(StatusCode::PermissionDenied, _) => (Cause::Denied, None),
            Failure::Status(code, text) => {
                (Cause::Other, Some(format!("the server answered: {code} ({text})")))
            }
            Failure::Lost(text) => (Cause::Unavailable, Some(text)),
            Failure::Final(cause, text) => (cause, Some(text).filter(|text| !text.is_empty())),
        };
        StoreError { source: text.map(Into::into), ..StoreError::new(operation, key, &self.location, cause) }
    }

    /// Runs an operation that transfers `bytes` bytes of content, again on a new connection if the connection
    /// fails.
    fn run<T>(
        &self,
        operation: &'static str,
        key: &str,
        bytes: u64,
        work: impl AsyncFn(&Connection, &Turns) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let turns = Turns::new(&self.pace);
        let limit = self.answer_within.unwrap_or(TIMEOUT);
        let all = limit + Duration::from_secs(bytes / MIN_RATE);
        let attempt = async {
            match turns.within(all, self.attempt(limit / 2, &turns, work)).await {
                Ok(result) => result,
                Err(_) => {
                    lock(&self.current).take();
                    let text = format!("expected an answer within {} s, found none", all.as_secs());
                    Err(Failure::Lost(text))
                }
            }
        };
        self.runtime.block_on(attempt).map_err(|failure| self.error(operation, key, failure))
    }

    async fn attempt<T>(
        &self,
        time: Duration,
        turns: &Turns,
        work: impl AsyncFn(&Connection, &Turns) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let result = match self.connection(time).await {
                Ok(connection) => match work(&connection, turns).await {
                    Err(Failure::Lost(error)) => {
                        self.forget(&connection);
                        Err(connection.explain(&error))
                    }
                    other => other,
                },
                Err(failure) => Err(failure),
            };
            match result {
                Err(Failure::Lost(_)) if began.elapsed() + pause < time => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                other => return other,
            }
        }
    }

    async fn connection(&self, time: Duration) -> Result<Arc<Connection>, Failure> {
        let current = || lock(&self.current).clone();
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let connection = Arc::new(Connection::open(&self.target, time).await?);
        if !connection.can_sync {
            let _ = self.warning.set(NO_SYNC);
        }
        *lock(&self.current) = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Drops a connection that failed, unless another thread has replaced it.
    fn forget(&self, connection: &Arc<Connection>) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }

    /// Creates a folder of the archive and its parents, and makes their directory entries durable. Fails if
    /// the root does not exist, unless the archive is new.
    async fn make_folders(
        &self,
        connection: &Connection,
        folder: &str,
        is_new_archive: bool,
    ) -> Result<(), Failure> {
        if lock(&self.durable).contains(folder) {
            return Ok(());
        }
        // Each folder of the path, from the folder itself upwards.
        let all: Vec<&str> = std::iter::successors(Some(folder), |path| Some(folder_of(path)))
            .take_while(|path| !path.is_empty())
            .collect();
        let mut missing = Vec::new();
        for path in &all {
            match connection.attributes(path).await {
                Ok(_) => break,
                Err(failure) if failure.is_missing() => missing.push(*path),
                Err(failure) => return Err(failure),
            }
        }
        if !is_new_archive && missing.contains(&&*self.target.folder) {
            return Err(Failure::Final(Cause::NoArchive, String::new()));
        }
        if !missing.is_empty() {
            connection.expect_no_broken_link(&self.target.folder, folder).await?;
        }
        for path in missing.iter().rev() {
            connection.make_folder(path).await?;
        }
        // An existing folder of the archive does not count as durable: its creator may have been killed.
        let is_new = |path: &&&str| path.len() > self.target.folder.len() || missing.contains(path);
        let top = if folder.starts_with('/') { "/" } else { "." };
        let parents = all.iter().filter(is_new).map(|path| match folder_of(path) {
            "" => top,
            parent => parent,
        });
        let parents: Vec<&str> = parents.collect();
        future::try_join_all(parents.iter().map(|parent| connection.sync_folder(parent))).await?;
        lock(&self.durable).insert(folder.to_owned());
        Ok(())
    }

    async fn store(
        &self,
        connection: &Connection,
        path: &str,
        content: &[u8],
        turns: &Turns,
    ) -> Result<Created, Failure> {
        let Some((folder, name)) = path.rsplit_once('/') else {
            return Err(Failure::Final(Cause::InvalidKey, String::new()));
        };
        if connection.exists(path).await? {
            return Ok(Created::Exists);
        }
        self.make_folders(connection, folder, false).await?;
        let temporary = format!("{folder}/.{name}.{}{ENDING}", unique());
        let handle = match connection.write(&temporary, MODE, content, turns).await {
            Ok(handle) => handle,
            Err(failure) => {
                if failure.is_missing() {
                    // Another process removed the folder.
                    lock(&self.durable).clear();
                }
                let _ = connection.remove(&temporary).await;
                return Err(failure);
            }
        };
        let published = connection.publish(&temporary, path).await;
        // Also makes the new name durable on file systems whose folders cannot be synchronized.
        let synced = connection.sync(&handle).await;
        connection.close(handle).await?;
        let removed = connection.remove(&temporary).await;
        if published? {
            synced?;
            connection.sync_folder(folder).await?;
            return Ok(Created::New);
        }
        removed?;
        Ok(Created::Exists)
    }

    /// Visits the files in a folder and below, with their paths below it.
    fn walk(
        &self,
        operation: &'static str,
        prefix: &str,
        visit: &mut dyn FnMut(String, &russh_sftp::protocol::FileAttributes),
    ) -> Result<(), StoreError> {
        let root = match prefix.strip_suffix('/') {
            None => self.target.folder.clone(),
            Some(prefix) => self.path(operation, prefix)?,
        };
        let mut folders = vec![String::new()];
        while !folders.is_empty() {
            let next = folders.split_off(folders.len().saturating_sub(FOLDERS_AT_ONCE));
            let found = self.run(operation, prefix, 0, async |connection, _| {
                let listings = next.iter().map(async |below| {
                    let path = format!("{root}/{below}");
                    let path = path.trim_end_matches('/');
                    let entries = connection.entries(path).await?;
                    if entries.is_none() {
                        connection.expect_no_broken_link(&self.target.folder, path).await?;
                    }
                    Ok(entries.unwrap_or_default())
                });
                future::try_join_all(listings).await
            })?;
            for (below, entries) in next.iter().zip(found) {
                for (name, attributes) in entries {
                    let path = format!("{below}{name}");
                    if attributes.is_dir() {
                        if path.matches('/').count() >= MAX_DEPTH {
                            let text = format!(
                                "expected at most {MAX_DEPTH} levels of folders, found more in {root}/{path}: is there a circular link?"
                            );
                            return Err(self.error(operation, prefix, Failure::Final(Cause::Other, text)));
                        }
                        folders.push(format!("{path}/"));
                    } else if attributes.is_regular() {
                        visit(path, &attributes);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a range of a file. `None` is the whole file.
    fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, StoreError> {
        let (path, size) = (self.path("read", key)?, self.size(key)?);
        let Range { start, end } = range.unwrap_or(0..size);
        let (start, end) = (start.min(size), end.min(size));
        if end.saturating_sub(start) > MAX_OBJECT_BYTES {
            return Err(StoreError::new("read", key, &self.location, Cause::TooLarge));
        }
        if start >= end {
            return Ok(Vec::new());
        }
        self.run("read", key, end - start, async |connection, turns| {
            connection.read(&path, start, end, turns).await
        })
    }
}

/// Returns the path of the folder that contains a file; empty if the path has none.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns a part of a file name that no other writer uses.
fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{count:x}", process::id(), Timestamp::now().as_nanosecond())
}

impl Store for Sftp {
    fn make_root(&self) -> Result<(), StoreError> {
        let root = self.target.folder.as_str();
        self.run("create", "", 0, async |connection, _| self.make_folders(connection, root, true).await)
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        let path = self.path("create", key)?;
        self.run("create", key, content.len() as u64, async |connection, turns| {
            match self.store(connection, &path, content, turns).await {
                Err(failure) if failure.is_missing() && !connection.exists(&self.target.folder).await? => {
                    Err(Failure::Final(Cause::NoArchive, String::new()))
                }
                Err(failure) => Err(connection.why_not_written(&self.target.folder, failure).await),
                other => other,
            }
        })
    }

    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path("synchronise", key)?;
        let folder = folder_of(&path);
        self.run("synchronise", key, 0, async |connection, _| {
            connection.sync_file(&path).await?;
            connection.sync_folder(folder).await?;
            self.make_folders(connection, folder, false).await
        })
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.get(key, None)
    }

    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.get(key, Some(range))
    }

    fn size(&self, key: &str) -> Result<u64, StoreError> {
        let path = self.path("read", key)?;
        self.run("read", key, 0, async |connection, _| match connection.attributes(&path).await {
            Ok(found) if found.permissions.is_some() && !found.is_regular() => {
                Err(Failure::Final(Cause::Other, "expected a file, found something else".to_owned()))
            }
            Ok(found) => found.size.ok_or_else(|| {
                Failure::Final(Cause::Other, "expected the size of the file, found none".to_owned())
            }),
            Err(failure) if failure.is_missing() => {
                connection.expect_no_broken_link(&self.target.folder, &path).await?;
                Err(failure)
            }
            Err(failure) => Err(failure),
        })
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        self.walk("list", prefix, &mut |path, attributes| {
            if !path.ends_with(ENDING) {
                let stored = attributes.mtime.and_then(|time| Timestamp::from_second(time.into()).ok());
                let bytes = attributes.size.unwrap_or_default();
                visit(Listed { key: format!("{prefix}{path}"), bytes, stored });
            }
        })
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path("remove", key)?;
        let folder = folder_of(&path);
        self.run("remove", key, 0, async |connection, _| match connection.remove(&path).await? {
            true => connection.sync_folder(folder).await,
            false => Ok(()),
        })
    }

    fn remove_all(&self, prefix: &str) -> Result<Option<Kept>, StoreError> {
        let root = self.path("remove", prefix.trim_end_matches('/'))?;
        let (mut files, mut folders) = (Vec::new(), BTreeSet::from([root.clone()]));
        self.walk("remove", prefix, &mut |path, _| {
            let ends = path.match_indices('/').map(|(at, _)| &path[..at]);
            folders.extend(ends.map(|folder| format!("{root}/{folder}")));
            files.push(format!("{root}/{path}"));
        })?;
        for path in files {
            self.run("remove", prefix, 0, async |connection, _| connection.remove(&path).await)?;
        }
        // The deepest first. A folder with another file stays.
        for folder in folders.iter().rev() {
            self.run("remove", prefix, 0, async |connection, _| connection.remove_folder(folder).await)?;
        }
        lock(&self.durable).clear();
        Ok(None)
    }

    /// Removes temporary files that are older than a day: no writer needs as long.
    fn remove_leftovers(&self) -> Result<(), StoreError> {
        let (now, mut old) = (Timestamp::now().as_second(), Vec::new());
        self.walk("remove leftovers in", "", &mut |path, attributes| {
            let age = attributes.mtime.map(|time| now.saturating_sub(i64::from(time)));
            if path.ends_with(ENDING) && age.is_some_and(|age| age > LEFTOVER_AGE) {
                old.push(format!("{}/{path}", self.target.folder));
            }
        })?;
        for path in old {
            self.run("remove", &path, 0, async |connection, _| connection.remove(&path).await)?;
        }
        Ok(())
    }

    fn location(&self) -> &str {
        &self.location
    }

    fn can_be_unmounted(&self) -> bool {
        true
    }

    fn warning(&self) -> Option<&str> {
        self.warning.get().copied()
    }
}
