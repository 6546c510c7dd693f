//! A resident process that archives for servers whose `archive_library` is `walden_archive`.
//!
//! The module in the server sends a file's name through a Unix socket and waits for the outcome. Any failure
//! of this process, even a panic or a hang, leaves a file unarchived for now and never harms the server's
//! archiver.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use walden_archive::catch_up::{CatchUp, Round};
use walden_archive::copies::Copies;
use walden_archive::name::ArchivedFile;
use walden_archive::push::PushOptions;
use walden_archive::serve::protocol::{Reply, Request};
use walden_archive::serve::{Report, Resident};
use walden_server::signals;
use walden_source::workers::end_on_panic;
use walden_source::{counted, error_text};

use crate::error::{ArchivingError, Result};
use crate::log::{Entry, Log};
use crate::queue::waiting;

/// Maximum number of connections. A server uses one.
const MAX_CLIENTS: usize = 32;
/// Time limit for a request to arrive, and for an answer to be read.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Interval for checking signals.
pub const TICK: Duration = Duration::from_millis(200);
/// Interval between warnings to a server about its waiting files.
const BACKLOG_EVERY: Duration = Duration::from_secs(60);

/// A server's data directory, and the pusher for its files.
struct Server {
    data: PathBuf,
    resident: Resident,
}

/// Archives into one archive, or into several repositories, for servers on this machine.
pub struct Service {
    location: String,
    config: Option<PathBuf>,
    servers: Vec<Server>,
    log: Log,
    backlog: usize,
    copies: Copies,
    options: PushOptions,
    /// When a server was last warned about waiting files.
    backlog_told: Mutex<Option<Instant>>,
    clients: AtomicUsize,
}

impl Service {
    /// Creates a service for the data directories of servers. `config` is the configuration file that the
    /// servers may expect, and `backlog` the number of waiting files above which a server gets a warning.
    ///
    /// # Errors
    /// A data directory does not exist.
    pub fn new(
        copies: Copies,
        options: PushOptions,
        data: &[PathBuf],
        config: Option<&Path>,
        log: Log,
        backlog: usize,
    ) -> Result<Service> {
        let mut servers = Vec::new();
        for data in data {
            let cannot = |source| ArchivingError::Serve { path: data.clone(), source };
            let data = data.canonicalize().map_err(cannot)?;
            let resident = Resident::new(copies.clone(), data.join("pg_wal"), options.clone());
            servers.push(Server { data, resident });
        }
        let config = match config {
            Some(path) => Some(
                std::path::absolute(path)
                    .map_err(|source| ArchivingError::Serve { path: path.to_owned(), source })?,
            ),
            None => None,
        };
        Ok(Service {
            location: copies.first().store().location().to_owned(),
            config,
            servers,
            log,
            backlog,
            copies,
            options,
            backlog_told: Mutex::new(None),
            clients: AtomicUsize::new(0),
        })
    }

    /// Describes the archive and the servers.
    pub fn text(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(|server| server.data.display().to_string()).collect();
        format!("archiving into {} for {}", self.location, servers.join(", "))
    }

    /// Answers requests at a socket until a signal asks the process to end, and then finishes the files in
    /// progress. Calls `tick` a few times per second until then, and `stop` when it begins to end.
    pub fn run(&self, socket: &Socket, tick: &mut dyn FnMut(), stop: &dyn Fn()) {
        let catch_up = CatchUp::new(self.copies.clone(), self.options.level);
        let count = self.copies.iter().count();
        thread::scope(|scope| {
            scope.spawn(|| {
                end_on_panic(|| {
                    give_way();
                    let problems = Mutex::default();
                    catch_up.run(&|round| self.report_round(&round, &problems));
                });
            });
            let catch_up = &catch_up;
            for server in &self.servers {
                for _ in 0..self.options.threads {
                    let report = move |report: Report<'_>| {
                        if report.result.is_ok_and(|pushed| pushed.copies < count) {
                            catch_up.note_behind();
                        }
                        self.report(&report);
                    };
                    scope.spawn(move || end_on_panic(|| server.resident.work(&report)));
                }
            }
            socket.accept_until_stopped(tick, |stream| {
                if self.clients.fetch_add(1, Ordering::Relaxed) < MAX_CLIENTS {
                    scope.spawn(|| {
                        // A server that has disconnected asks again.
                        end_on_panic(|| drop(self.answer(stream)));
                        self.clients.fetch_sub(1, Ordering::Relaxed);
                    });
                } else {
                    self.clients.fetch_sub(1, Ordering::Relaxed);
                }
            });
            stop();
            catch_up.stop();
            self.servers.iter().for_each(|server| server.resident.stop());
        });
    }

    /// Logs the outcome for a file, as push does.
    fn report(&self, report: &Report<'_>) {
        match report.result {
            Ok(pushed) => self.log.print_warnings(pushed),
            Err(error) => {
                let when = if report.is_asked { "" } else { "ahead of time: " };
                self.log.print_error(when, error, error.hint());
            }
        }
        self.log.write(&[Entry::for_push(report.name, report.result, report.ready)]);
    }

    /// Logs that a repository was brought up to date, or why not if the reason is new. `problems` are the
    /// reasons at the last attempt, by repository.
    fn report_round(&self, round: &Round<'_>, problems: &Mutex<BTreeMap<usize, String>>) {
        let mut problems = problems.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((problem, hint)) = round.problem() else {
            problems.remove(&round.copy);
            let copied = round.result.as_ref().map_or(0, |copied| copied.copied);
            if copied > 0 {
                let files = counted(copied, "file");
                self.log.note(&format!("{}: {files} copied from other repositories", round.location));
            }
            return;
        };
        if problems.get(&round.copy) != Some(&problem) {
            let hint = hint.map(|hint| format!("\nHINT: {hint}")).unwrap_or_default();
            self.log.warn(&format!("cannot bring {} up to date yet: {problem}{hint}", round.location));
            problems.insert(round.copy, problem);
        }
    }

    /// Answers one request.
    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(MAX_TIME))?;
        let peer = socket_peercred(&stream)?.uid;
        let own = geteuid();
        if peer != own && !peer.is_root() {
            let detail = format!(
                "walden archive serve archives for processes of user id {}, and was asked by one of {}.",
                own.as_raw(),
                peer.as_raw()
            );
            return refusal("a file", &detail, "Run it as the user that the server runs as.")
                .write(&mut stream);
        }
        let request = match Request::read(&mut Bounded { stream: &stream, began: Instant::now() }) {
            Ok(request) => request,
            Err(error) => {
                let hint = error.hint().unwrap_or_default();
                return refusal("a file", &error_text(&error), &hint).write(&mut stream);
            }
        };
        // The server may have timed out while this process was stopped.
        Reply::Working.write(&mut stream)?;
        let reply = match self.accept(&request) {
            Err(reply) => reply,
            Ok((server, file)) => {
                let mut sign = || match Reply::Working.write(&mut stream) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                };
                match server.resident.archive(file, &mut sign) {
                    Ok(Ok(pushed)) => Reply::Archived {
                        warnings: pushed.warnings.into_iter().chain(self.backlog_warning(server)).collect(),
                    },
                    Ok(Err(error)) => {
                        let detail = std::error::Error::source(&error).map(error_text).unwrap_or_default();
                        let hint = error.hint().unwrap_or_default().into_owned();
                        Reply::Failed { message: error.to_string(), detail, hint }
                    }
                    Err(stopped) => refusal(&request.file, &stopped.to_string(), "The server asks again."),
                }
            }
        };
        reply.write(&mut stream)
    }

    /// Returns the requested file and its server, if the request is for this archive.
    fn accept(&self, request: &Request) -> std::result::Result<(&Server, ArchivedFile), Reply> {
        let refuse = |detail: String, hint: &str| Err(refusal(&request.file, &detail, hint));
        let data = request.data.canonicalize();
        let server = self.servers.iter().find(|server| data.as_ref().is_ok_and(|data| server.data == *data));
        let Some(server) = server else {
            let known: Vec<_> = self.servers.iter().map(|server| server.data.display().to_string()).collect();
            return refuse(
                format!(
                    "walden archive serve archives for {}, and was asked by the server in {}.",
                    known.join(", "),
                    request.data.display()
                ),
                "Let walden.socket name the socket of the process that has this data directory as --data.",
            );
        };
        if !request.repo.is_empty() && !is_same_place(&request.repo, &self.location) {
            return refuse(
                format!(
                    "walden.repo is {}, and walden archive serve archives into {}.",
                    request.repo, self.location
                ),
                "Correct one of them, or leave walden.repo empty.",
            );
        }
        let expected = &request.config;
        let is_config = self.config.as_ref().is_some_and(|config| is_same_path(config, expected));
        if !expected.as_os_str().is_empty() && !is_config {
            let own =
                self.config.as_ref().map_or("no file".to_owned(), |config| config.display().to_string());
            return refuse(
                format!("walden.config is {}, and walden archive serve uses {own}.", expected.display()),
                "Correct one of them, or leave walden.config empty.",
            );
        }
        match ArchivedFile::parse(&request.file) {
            Some(file) => Ok((server, file)),
            None => refuse(
                "Expected the name of a segment, a history or a backup history file.".to_owned(),
                "PostgreSQL archives no other files: find out what created one of this name in archive_status.",
            ),
        }
    }

    /// Returns a warning, at intervals, if many of a server's files wait.
    fn backlog_warning(&self, server: &Server) -> Option<String> {
        let ready = server.resident.ready();
        let mut told = self.backlog_told.lock().unwrap_or_else(PoisonError::into_inner);
        if ready <= self.backlog || told.is_some_and(|told| told.elapsed() < BACKLOG_EVERY) {
            return None;
        }
        *told = Some(Instant::now());
        let warning = format!(
            "{} to be archived (more than {}): pg_wal grows until they are",
            waiting(ready as u64),
            self.backlog
        );
        self.log.warn(&warning);
        Some(warning)
    }
}

/// Lowers the priority of the calling thread, for work that no server waits for.
fn give_way() {
    const NICE: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICE);
}

fn refusal(file: &str, detail: &str, hint: &str) -> Reply {
    Reply::Failed {
        message: format!("cannot archive {file}"),
        detail: detail.to_owned(),
        hint: hint.to_owned(),
    }
}

/// Returns whether two locations denote the same archive, by URL or as folders.
fn is_same_place(one: &str, other: &str) -> bool {
    let plain = |place: &str| place.trim_end_matches('/').to_owned();
    plain(one) == plain(other) || is_same_path(Path::new(one), Path::new(other))
}

fn is_same_path(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// A connection with a time limit for a whole message, however slowly its bytes arrive.
struct Bounded<'s> {
    stream: &'s UnixStream,
    began: Instant,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(TICK))?;
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if signals::interrupted() || self.began.elapsed() >= MAX_TIME {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Ok(_) if self.began.elapsed() >= MAX_TIME => return Err(io::ErrorKind::TimedOut.into()),
                result => return result,
            }
        }
    }
}

/// A Unix socket, removed on drop.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Locked while the process lives, to distinguish a socket in use from one that was left over.
    _lock: File,
}

impl Socket {
    /// Listens on a socket in a folder that only this user can write to, and replaces one that was left over.
    ///
    /// # Errors
    /// Other users can write to the folder, or another process uses the socket.
    pub fn listen(path: &Path) -> Result<Socket> {
        let cannot = || {
            let path = path.to_owned();
            |source| ArchivingError::Listen { path, source }
        };
        let path = &std::path::absolute(path).map_err(cannot())?;
        let cannot = || {
            let path = path.clone();
            |source| ArchivingError::Listen { path, source }
        };
        let refused = |problem: String| ArchivingError::Socket { path: path.clone(), problem };
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.exists() {
            DirBuilder::new().mode(0o700).create(folder).map_err(cannot())?;
        }
        let found = fs::metadata(folder).map_err(cannot())?;
        let is_ours = found.uid() == geteuid().as_raw();
        if !is_ours || found.mode() & 0o022 != 0 {
            return Err(refused(format!(
                "expected a folder that belongs to this user (id {}) and that no other user can write to, found owner {} and mode {:o}; choose another folder with --socket, such as systemd's RuntimeDirectory",
                geteuid().as_raw(),
                found.uid(),
                found.mode() & 0o7777
            )));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let lock = File::options().create(true).append(true).open(folder.join(name)).map_err(cannot())?;
        if lock.try_lock().is_err() {
            return Err(refused("another walden archive serve uses it".to_owned()));
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot()(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(cannot())?;
        let socket = Socket { listener, path: path.clone(), _lock: lock };
        fs::set_permissions(&socket.path, Permissions::from_mode(0o600))
            .and_then(|()| socket.listener.set_nonblocking(true))
            .map_err(cannot())?;
        Ok(socket)
    }

    /// Passes connections to `serve` until a signal asks the process to end.
    fn accept_until_stopped(&self, tick: &mut dyn FnMut(), mut serve: impl FnMut(UnixStream)) {
        let limit = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        while !signals::interrupted() {
            tick();
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&limit));
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(false).is_ok() {
                        serve(stream);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Out of file descriptors, for example: do not spin.
                Err(_) => thread::sleep(TICK),
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
