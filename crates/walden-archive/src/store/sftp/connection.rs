//! A connection to a server: a child process of `ssh` that runs the server's SFTP subsystem.

use std::io::Read as _;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use russh_sftp::client::error::Error as ClientError;
use russh_sftp::client::rawsession::RawSftpSession;
use russh_sftp::extensions::{FSYNC, HARDLINK, LIMITS};
use russh_sftp::protocol::{FileAttributes, OpenFlags, StatusCode};
use tokio::net::unix::pipe;
use tokio::sync::OnceCell;

use super::super::pace::Turns;
use super::super::{Cause, MAX_OBJECT_BYTES};
use super::target::Target;

/// Bytes of a read or write request if the server states no limit.
const CHUNK: u32 = 32 << 10;
/// Maximum bytes of a request. OpenSSH's servers accept 255 kB.
const MAX_CHUNK: u64 = 255 << 10;
/// Number of requests that wait for answers at once.
const IN_FLIGHT: usize = 16;
/// Maximum bytes of an answer.
const MAX_PACKET: u32 = 1 << 20;
/// The caller limits the time of each operation, so that the client library need not.
const NO_TIMEOUT: u64 = 24 * 3600;
/// Bytes of ssh's messages that are kept, the last ones.
const MAX_MESSAGES: usize = 4 << 10;
/// How long to wait for the messages of an ssh that ends.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The flag of a read-only file system in `statvfs@openssh.com`.
const READ_ONLY: u64 = 1;

/// Why an operation failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server refused it.
    Status(StatusCode, String),
    /// The connection failed. Another one may succeed.
    Lost(String),
    /// It cannot succeed.
    Final(Cause, String),
}

impl Failure {
    pub fn is_missing(&self) -> bool {
        matches!(self, Failure::Status(StatusCode::NoSuchFile, _) | Failure::Final(Cause::NotFound, _))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Status(status) => match status.status_code {
                StatusCode::NoConnection | StatusCode::ConnectionLost => Failure::Lost(status.error_message),
                code => Failure::Status(code, status.error_message),
            },
            other => Failure::Lost(other.to_string()),
        }
    }
}

/// The messages of ssh.
#[derive(Default)]
struct Messages {
    /// The last bytes, and whether ssh has closed the stream.
    state: Mutex<(Vec<u8>, bool)>,
    changed: Condvar,
}

impl Messages {
    fn collect(self: Arc<Messages>, mut stream: ChildStderr) {
        let mut part = [0; 1024];
        loop {
            let count = stream.read(&mut part).unwrap_or(0);
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0.extend_from_slice(&part[..count]);
            let excess = state.0.len().saturating_sub(MAX_MESSAGES);
            state.0.drain(..excess);
            if count == 0 {
                state.1 = true;
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Returns the messages after ssh has ended, or after a short time if it does not end.
    fn last(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, LAST_WORDS, |state| !state.1);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&state.0);
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// The ssh process, which ends with the connection.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection.
pub(super) struct Connection {
    session: RawSftpSession,
    /// The server can create hard links.
    can_link: bool,
    /// The server can synchronize files.
    pub can_sync: bool,
    /// The server has not refused to synchronize a folder.
    can_sync_folders: AtomicBool,
    /// Whether renaming a file keeps an existing one, once this was tried.
    rename_keeps: OnceCell<bool>,
    chunk: u32,
    messages: Arc<Messages>,
    _program: Program,
}

impl Connection {
    /// Starts ssh, and waits for the server's greeting.
    ///
    /// # Errors
    /// [`Failure::Final`] if another attempt would fail alike: no ssh program, an unknown host key, no right
    /// to log in.
    pub async fn open(target: &Target, connect_within: Duration) -> Result<Connection, Failure> {
        let mut command = target.command(connect_within);
        let mut program = start(&mut command)?;
        let messages = Arc::new(Messages::default());
        if let Some(stream) = program.0.stderr.take() {
            let collector = Arc::clone(&messages);
            let named = thread::Builder::new().name("ssh messages".to_owned());
            named.spawn(move || collector.collect(stream)).map_err(|error| no_program(&command, &error))?;
        }
        let input = program.0.stdin.take().map(Into::into).map(pipe::Sender::from_owned_fd);
        let output = program.0.stdout.take().map(Into::into).map(pipe::Receiver::from_owned_fd);
        let (Some(Ok(input)), Some(Ok(output))) = (input, output) else {
            return Err(Failure::Lost("cannot use the pipes to ssh".to_owned()));
        };
        let config = russh_sftp::client::Config {
            max_packet_len: MAX_PACKET,
            request_timeout_secs: NO_TIMEOUT,
            ..russh_sftp::client::Config::default()
        };
        let session = RawSftpSession::new_with_config(tokio::io::join(output, input), config);
        let greeting = session.init().await;
        let Ok(greeting) = greeting else {
            return Err(failure_of_ssh(&messages.last()));
        };
        let offers = |name: &str| greeting.extensions.contains_key(name);
        let mut chunk = CHUNK;
        if offers(LIMITS) {
            let limits = session.limits().await?;
            let least = [limits.max_read_len, limits.max_write_len].into_iter().filter(|&limit| limit > 0);
            let limit = least.min().unwrap_or(u64::from(CHUNK)).min(MAX_CHUNK);
            chunk = u32::try_from(limit).unwrap_or(CHUNK);
        }
        Ok(Connection {
            can_link: offers(HARDLINK),
            can_sync: offers(FSYNC),
            can_sync_folders: AtomicBool::new(offers(FSYNC)),
            rename_keeps: OnceCell::new(),
            chunk,
            session,
            messages,
            _program: program,
        })
    }

    /// Returns why the connection failed, as far as ssh says.
    pub fn explain(&self, error: &str) -> Failure {
        match self.messages.last() {
            text if text.is_empty() => Failure::Lost(format!("the connection ended: {error}")),
            text => failure_of_ssh(&text),
        }
    }

    /// Returns whether a path exists, also as a link without a target.
    pub async fn exists(&self, path: &str) -> Result<bool, Failure> {
        match self.session.lstat(path).await.map_err(Failure::from) {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_missing() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    pub async fn attributes(&self, path: &str) -> Result<FileAttributes, Failure> {
        Ok(self.session.stat(path).await?.attrs)
    }

    /// Returns an error if a folder of the path is a link without a target. What seems to be missing may then
    /// exist.
    pub async fn expect_no_broken_link(&self, root: &str, path: &str) -> Result<(), Failure> {
        let below = path.strip_prefix(root).unwrap_or_default();
        let ends = below.match_indices('/').map(|(at, _)| root.len() + at).chain([path.len()]);
        for folder in ends.map(|end| &path[..end]).filter(|folder| !folder.is_empty()) {
            if !self.exists(folder).await? {
                break;
            }
            match self.attributes(folder).await {
                Err(failure) if failure.is_missing() => {
                    let text = format!("cannot follow the link {folder}: its target does not exist");
                    return Err(Failure::Final(Cause::Other, text));
                }
                other => drop(other?),
            }
        }
        Ok(())
    }

    async fn open_file(&self, path: &str, flags: OpenFlags, mode: Option<u32>) -> Result<String, Failure> {
        let attributes = FileAttributes { permissions: mode, ..FileAttributes::default() };
        Ok(self.session.open(path, flags, attributes).await?.handle)
    }

    /// Writes a new file under a temporary name, and synchronizes it. Returns its handle.
    pub async fn write(
        &self,
        path: &str,
        mode: u32,
        content: &[u8],
        turns: &Turns,
    ) -> Result<String, Failure> {
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
        let handle = self.open_file(path, flags, Some(mode)).await?;
        let step = turns.piece().min(self.chunk as usize);
        let parts = content.chunks(step).enumerate();
        let sent = stream::iter(parts)
            .map(async |(number, part)| {
                let offset = number as u64 * step as u64;
                turns.wait(part.len()).await;
                self.session.write(handle.as_str(), offset, part.to_vec()).await
            })
            .buffer_unordered(IN_FLIGHT)
            .try_for_each(async |_| Ok(()))
            .await;
        let synced = match sent {
            Ok(()) => self.sync(&handle).await,
            Err(error) => Err(error.into()),
        };
        match synced {
            Ok(()) => Ok(handle),
            Err(failure) => {
                let _ = self.session.close(handle).await;
                Err(failure)
            }
        }
    }

    pub async fn sync(&self, handle: &str) -> Result<(), Failure> {
        match self.can_sync {
            true => Ok(self.session.fsync(handle).await.map(drop)?),
            false => Ok(()),
        }
    }

    pub async fn close(&self, handle: String) -> Result<(), Failure> {
        Ok(self.session.close(handle).await.map(drop)?)
    }

    /// Gives a finished file its name. Returns whether the name was free. An existing file stays.
    pub async fn publish(&self, temporary: &str, path: &str) -> Result<bool, Failure> {
        if !self.can_link && !self.rename_keeps_files(temporary).await? {
            let text = "expected a server with hard links (hardlink@openssh.com), or one whose rename keeps an existing file, found \
                        neither: two servers could overwrite each other's WAL";
            return Err(Failure::Final(Cause::Other, text.to_owned()));
        }
        let published = match self.can_link {
            true => self.session.hardlink(temporary, path).await,
            false => self.session.rename(temporary, path).await,
        };
        match published.map_err(Failure::from) {
            Ok(_) => Ok(true),
            // Version 3 of the protocol has no status for an existing file.
            Err(Failure::Status(..)) if self.exists(path).await? => Ok(false),
            Err(Failure::Status(code, text)) if self.can_link && code != StatusCode::PermissionDenied => {
                let text = format!("cannot create a hard link, which the file system must support: {text}");
                Err(Failure::Final(Cause::Other, text))
            }
            other => other.map(|_| false),
        }
    }

    /// Tries once whether renaming a file keeps an existing one, with two files next to the temporary one.
    async fn rename_keeps_files(&self, temporary: &str) -> Result<bool, Failure> {
        let try_it = async || {
            let stem = temporary.trim_end_matches(crate::pending::ENDING);
            let [from, to] = ["a", "b"].map(|name| format!("{stem}.{name}{}", crate::pending::ENDING));
            for path in [&from, &to] {
                let handle = self.write(path, super::MODE, b"", &Turns::new(&Arc::default())).await?;
                self.close(handle).await?;
            }
            let renamed = self.session.rename(&from, &to).await.map_err(Failure::from);
            for path in [from, to] {
                let _ = self.session.remove(path).await;
            }
            match renamed {
                Ok(_) => Ok(false),
                Err(Failure::Status(..)) => Ok(true),
                Err(failure) => Err(failure),
            }
        };
        self.rename_keeps.get_or_try_init(try_it).await.copied()
    }

    /// Makes the entries of a folder durable, if the server can. An OpenSSH server on Linux does; others
    /// refuse to open a folder, and their file systems decide.
    pub async fn sync_folder(&self, path: &str) -> Result<(), Failure> {
        if !self.can_sync_folders.load(Ordering::Relaxed) {
            return Ok(());
        }
        let synced = match self.open_file(path, OpenFlags::READ, None).await {
            Ok(handle) => {
                let synced = self.sync(&handle).await;
                self.close(handle).await?;
                synced
            }
            Err(failure) => Err(failure),
        };
        match synced {
            Err(Failure::Status(code, _)) if code != StatusCode::NoSuchFile => {
                self.can_sync_folders.store(false, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }

    /// Synchronizes an existing file.
    pub async fn sync_file(&self, path: &str) -> Result<(), Failure> {
        let handle = self.open_file(path, OpenFlags::READ, None).await?;
        let synced = self.sync(&handle).await;
        self.close(handle).await?;
        synced
    }

    /// Creates a folder. An existing one is not an error.
    pub async fn make_folder(&self, path: &str) -> Result<(), Failure> {
        match self.session.mkdir(path, FileAttributes::default()).await.map_err(Failure::from) {
            Ok(_) => Ok(()),
            Err(Failure::Status(code, text)) => match self.attributes(path).await {
                Ok(found) if found.is_dir() => Ok(()),
                _ => Err(Failure::Status(code, text)),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Reads a range of a file that it has.
    pub async fn read(&self, path: &str, start: u64, end: u64, turns: &Turns) -> Result<Vec<u8>, Failure> {
        let handle = self.open_file(path, OpenFlags::READ, None).await?;
        let step = u64::from(self.chunk).min(turns.piece() as u64);
        let parts = (0..(end - start).div_ceil(step)).map(|number| start + number * step);
        let capacity = usize::try_from((end - start).min(MAX_OBJECT_BYTES)).unwrap_or_default();
        let read = stream::iter(parts)
            .map(async |from| {
                let to = (from + step).min(end);
                turns.wait((to - from) as usize).await;
                self.read_part(&handle, from, to).await
            })
            .buffered(IN_FLIGHT)
            .try_fold(Vec::with_capacity(capacity), async |mut all: Vec<u8>, part| {
                all.extend_from_slice(&part);
                Ok(all)
            })
            .await;
        self.close(handle).await?;
        let (content, expected) = (read?, end - start);
        match content.len() as u64 == expected {
            true => Ok(content),
            false => {
                let text = format!("expected {expected} bytes from {start} on, found {}", content.len());
                Err(Failure::Final(Cause::Damaged, text))
            }
        }
    }

    /// Reads from one offset to another. A server may return fewer bytes than requested.
    async fn read_part(&self, handle: &str, from: u64, to: u64) -> Result<Vec<u8>, Failure> {
        let mut part = Vec::new();
        while (part.len() as u64) < to - from {
            let at = from + part.len() as u64;
            let rest = u32::try_from(to - at).unwrap_or(self.chunk);
            match self.session.read(handle, at, rest).await.map_err(Failure::from) {
                Ok(data) if data.data.is_empty() => break,
                Ok(data) => part.extend_from_slice(&data.data[..data.data.len().min(rest as usize)]),
                Err(Failure::Status(StatusCode::Eof, _)) => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(part)
    }

    /// Returns the entries of a folder with their attributes, following links; `None` if it does not exist.
    pub async fn entries(&self, path: &str) -> Result<Option<Vec<(String, FileAttributes)>>, Failure> {
        let handle = match self.session.opendir(path).await.map_err(Failure::from) {
            Ok(opened) => opened.handle,
            Err(failure) if failure.is_missing() => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let mut entries = Vec::new();
        let read = loop {
            match self.session.readdir(handle.as_str()).await.map_err(Failure::from) {
                Ok(names) => entries.extend(names.files.into_iter().map(|file| (file.filename, file.attrs))),
                Err(Failure::Status(StatusCode::Eof, _)) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        self.close(handle).await?;
        read?;
        // Keys are ASCII, so a file with another name is not an object.
        entries.retain(|(name, _)| !matches!(name.as_str(), "." | "..") && name.is_ascii());
        for (name, attributes) in &mut entries {
            let is_known = attributes.permissions.is_some() && attributes.size.is_some();
            if !is_known || attributes.is_symlink() {
                let full = format!("{path}/{name}");
                match self.attributes(&full).await {
                    Ok(found) => *attributes = found,
                    Err(failure) if failure.is_missing() => {
                        self.expect_no_broken_link(&full, &full).await?;
                        // Removed since the listing.
                        *attributes = FileAttributes::default();
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(Some(entries))
    }

    /// Removes a file. Returns whether it existed.
    pub async fn remove(&self, path: &str) -> Result<bool, Failure> {
        match self.session.remove(path).await.map_err(Failure::from) {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_missing() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Removes a folder if it is empty.
    pub async fn remove_folder(&self, path: &str) -> Result<(), Failure> {
        match self.session.rmdir(path).await.map_err(Failure::from) {
            Ok(_) | Err(Failure::Status(..)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Returns a more exact failure if the file system is full or read-only, for which version 3 of the
    /// protocol has no status.
    pub async fn why_not_written(&self, folder: &str, failure: Failure) -> Failure {
        let Failure::Status(StatusCode::Failure, text) = failure else { return failure };
        match self.session.statvfs(folder).await {
            Ok(found) if found.flags & READ_ONLY != 0 => Failure::Final(Cause::ReadOnly, text),
            Ok(found) if found.blocks_avail == 0 || found.inodes_avail == 0 && found.inodes > 0 => {
                Failure::Final(Cause::Full, text)
            }
            _ => Failure::Status(StatusCode::Failure, text),
        }
    }
}

fn start(command: &mut Command) -> Result<Program, Failure> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().map(Program).map_err(|error| no_program(command, &error))
}

fn no_program(command: &Command, error: &std::io::Error) -> Failure {
    let text = format!("cannot run {}: {error}", command.get_program().to_string_lossy());
    Failure::Final(Cause::NoSsh, text)
}

/// Returns the failure that the messages of ssh describe.
fn failure_of_ssh(text: &str) -> Failure {
    const HOST_KEY: [&str; 2] = ["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"];
    const LOGIN: [&str; 3] =
        ["Permission denied (", "Too many authentication failures", "UNPROTECTED PRIVATE KEY"];
    let has_one_of = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let told = || text.to_owned();
    match text {
        _ if has_one_of(&HOST_KEY) => Failure::Final(Cause::HostKey, told()),
        _ if has_one_of(&LOGIN) => Failure::Final(Cause::LoginDenied, told()),
        _ if text.contains("subsystem request failed") => {
            Failure::Final(Cause::Other, format!("expected a server with SFTP, found none: {text}"))
        }
        _ if text.contains("Bad configuration option") || text.contains("no argument after keyword") => {
            Failure::Final(Cause::Other, told())
        }
        "" => Failure::Lost("ssh ended without a message".to_owned()),
        _ => Failure::Lost(told()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passing_failures_of_ssh_are_tried_again() {
        let cause = |text: &str| match failure_of_ssh(text) {
            Failure::Final(cause, _) => Some(cause),
            _ => None,
        };
        for (text, expected) in [
            (
                "No ED25519 host key is known for h and you have requested strict checking.; Host key verification failed.",
                Some(Cause::HostKey),
            ),
            ("u@h: Permission denied (publickey).", Some(Cause::LoginDenied)),
            ("subsystem request failed on channel 0", Some(Cause::Other)),
            ("ssh: connect to host h port 22: Connection refused", None),
            ("kex_exchange_identification: Connection closed by remote host", None),
            ("ssh: Could not resolve hostname h: Name or service not known", None),
            ("", None),
        ] {
            assert_eq!(cause(text), expected, "{text}");
        }
    }
}
