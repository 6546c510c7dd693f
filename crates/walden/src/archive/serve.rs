//! `walden archive serve`: archives for servers whose `archive_library` is `walden_archive`.
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
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use walden_archive::catch_up::{CatchUp, Round};
use walden_archive::name::ArchivedFile;
use walden_archive::serve::protocol::{Reply, Request};
use walden_archive::serve::{Report, Resident};
use walden_server::signals::{self, Stage};
use walden_source::{counted, error_text};

use super::log::{Entry, Log, LogOptions};
use super::push::{ANSWER_WITHIN, Ahead, Effort, complain, warn};
use super::queue::waiting;
use crate::place::Place;
use crate::threads::end_on_panic;
use crate::{output, systemd};

const EXAMPLES: &str = "\
Examples:
  walden archive serve --data /var/lib/postgresql/18/main
      in a service that runs as the server's user, with walden.toml in /etc/walden
  archive_library = 'walden_archive'
      in postgresql.conf, instead of archive_command; walden.socket names another --socket

Run one process for each archive. Like push, it archives the files that the server requests, and other ready files ahead of time, \
on all cores; PostgreSQL's own marks in archive_status are read and never changed. While the process does not run, the \
server keeps its files and asks again.

After SIGTERM, it finishes the files in progress and exits with status 143.";

/// Archive for servers with archive_library, without a process per file
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    #[command(flatten)]
    place: Place,

    /// Data directory of a server; files of other servers are refused. Servers of one cluster may share an
    /// archive
    #[arg(long, visible_alias = "pgdata", value_name = "DIR", env = "PGDATA", required = true)]
    data: Vec<PathBuf>,

    /// Socket to listen on, in a folder that only this user can write to
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,

    #[command(flatten)]
    effort: Effort,

    #[command(flatten)]
    ahead: Ahead,

    #[command(flatten)]
    log: LogOptions,
}

/// Same default as in the module (`walden.socket`).
pub const SOCKET: &str = "/run/walden/archive.sock";
/// Maximum number of connections. A server uses one.
const MAX_CLIENTS: usize = 32;
/// Time limit for a request to arrive, and for an answer to be read.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Interval for checking signals and notifying the service manager's watchdog.
const TICK: Duration = Duration::from_millis(200);
/// Maximum time that files in progress delay the end of the process.
const MAX_STOP: Duration = Duration::from_secs(60);
/// Interval between warnings to a server about its waiting files.
const BACKLOG_EVERY: Duration = Duration::from_secs(60);

/// Runs `walden archive serve` until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    let (copies, section) = args.place.open_copies(ANSWER_WITHIN, args.effort.level())?;
    let (_, config) = args.place.configuration()?;
    let options = args.ahead.options(&args.effort, &section);
    let mut servers = Vec::new();
    for data in &args.data {
        let data = data.canonicalize().with_context(|| format!("cannot serve {}", data.display()))?;
        let resident = Resident::new(copies.clone(), data.join("pg_wal"), options.clone());
        servers.push(Server { data, resident });
    }
    let catch_up = CatchUp::new(copies.clone(), options.level);
    let count = copies.iter().count();
    let service = Service {
        location: copies.first().store().location().to_owned(),
        config: config.map(std::path::absolute).transpose()?,
        servers,
        log: Log::new(&args.log, &section),
        backlog: section.backlog(),
        backlog_told: Mutex::new(None),
        clients: AtomicUsize::new(0),
    };
    walden_archive::clean_up_on_signals();
    signals::before_exit(Stage::Programs, wait_until_stopped).context("cannot install the signal handler")?;
    let socket = Socket::listen(&args.socket)?;
    output::tell(&format!(
        "archiving into {} for {}",
        service.location,
        service.servers.iter().map(|server| server.data.display().to_string()).collect::<Vec<_>>().join(", ")
    ));
    systemd::notify("READY=1");
    thread::scope(|scope| {
        scope.spawn(|| {
            end_on_panic(|| {
                give_way();
                let problems = Mutex::default();
                catch_up.run(&|round| service.report_round(&round, &problems));
            });
        });
        for server in &service.servers {
            for _ in 0..options.threads {
                let report = |report: Report<'_>| {
                    if report.result.is_ok_and(|pushed| pushed.copies < count) {
                        catch_up.note_behind();
                    }
                    service.report(&report);
                };
                scope.spawn(move || end_on_panic(|| server.resident.work(&report)));
            }
        }
        socket.accept_until_stopped(|stream| {
            if service.clients.fetch_add(1, Ordering::Relaxed) < MAX_CLIENTS {
                scope.spawn(|| {
                    // A server that has disconnected asks again.
                    end_on_panic(|| drop(service.answer(stream)));
                    service.clients.fetch_sub(1, Ordering::Relaxed);
                });
            } else {
                service.clients.fetch_sub(1, Ordering::Relaxed);
            }
        });
        systemd::notify("STOPPING=1");
        catch_up.stop();
        service.servers.iter().for_each(|server| server.resident.stop());
    });
    drop(socket);
    let (is_stopped, changed) = &STOPPED;
    *is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
    changed.notify_all();
    signals::wait_for_exit()
}

/// Whether all threads have ended.
static STOPPED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Waits until the files in progress are finished, before a signal ends the process.
fn wait_until_stopped() {
    let (is_stopped, changed) = &STOPPED;
    let guard = is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
    drop(changed.wait_timeout_while(guard, MAX_STOP, |is_stopped| !*is_stopped));
}

/// A server's data directory, and the pusher for its files.
struct Server {
    data: PathBuf,
    resident: Resident,
}

struct Service {
    location: String,
    config: Option<PathBuf>,
    servers: Vec<Server>,
    log: Log,
    backlog: usize,
    /// When a server was last warned about waiting files.
    backlog_told: Mutex<Option<Instant>>,
    clients: AtomicUsize,
}

impl Service {
    /// Logs the outcome for a file, as push does.
    fn report(&self, report: &Report<'_>) {
        if self.log.is_text() {
            match report.result {
                Ok(pushed) => warn(pushed),
                Err(error) => {
                    complain(if report.is_asked { "" } else { "ahead of time: " }, error, error.hint());
                }
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
                return refusal("a file", &error_text(&error), error.hint()).write(&mut stream);
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
                        let hint = error.hint().unwrap_or_default().to_owned();
                        Reply::Failed { message: error.to_string(), detail, hint }
                    }
                    Err(stopped) => refusal(&request.file, &stopped.to_string(), "The server asks again."),
                }
            }
        };
        reply.write(&mut stream)
    }

    /// Returns the requested file and its server, if the request is for this archive.
    fn accept(&self, request: &Request) -> Result<(&Server, ArchivedFile), Reply> {
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

/// Returns whether two archives are the same, by URL or as folders.
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
struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Locked while the process lives, to distinguish a socket in use from one that was left over.
    _lock: File,
}

impl Socket {
    fn listen(path: &Path) -> Result<Socket> {
        let path = std::path::absolute(path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let cannot = || format!("cannot listen on {}", path.display());
        if !folder.exists() {
            DirBuilder::new().mode(0o700).create(folder).with_context(cannot)?;
        }
        let found = fs::metadata(folder).with_context(cannot)?;
        let is_ours = found.uid() == geteuid().as_raw();
        if !is_ours || found.mode() & 0o022 != 0 {
            bail!(
                "{}: expected a folder that belongs to this user (id {}) and that no other user can write to, found owner {} and mode {:o}; choose another one by --socket, such as systemd's RuntimeDirectory",
                cannot(),
                geteuid().as_raw(),
                found.uid(),
                found.mode() & 0o7777
            );
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let lock = File::options().create(true).append(true).open(folder.join(name)).with_context(cannot)?;
        if lock.try_lock().is_err() {
            bail!("{}: another walden archive serve uses it", cannot());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).with_context(cannot),
            _ => {}
        }
        let listener = UnixListener::bind(&path).with_context(cannot)?;
        let socket = Socket { listener, path, _lock: lock };
        fs::set_permissions(&socket.path, Permissions::from_mode(0o600))
            .and_then(|()| socket.listener.set_nonblocking(true))
            .with_context(|| format!("cannot listen on {}", socket.path.display()))?;
        Ok(socket)
    }

    /// Passes connections to `serve` until a signal asks the process to end.
    fn accept_until_stopped(&self, mut serve: impl FnMut(UnixStream)) {
        let watchdog = systemd::watchdog_interval();
        let mut petted = Instant::now();
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        while !signals::interrupted() {
            if watchdog.is_some_and(|interval| petted.elapsed() + TICK >= interval) {
                systemd::notify("WATCHDOG=1");
                petted = Instant::now();
            }
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&tick));
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
