//! `walden archive serve`: archives for servers whose `archive_library` is `walden_archive`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::serve::SOCKET;
use walden_archiving::serve::{Service, Socket, TICK};
use walden_server::signals::{self, Stage};

use super::log::LogOptions;
use super::push::{ANSWER_WITHIN, Ahead, Effort};
use crate::place::PlaceArgs;
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
    place: PlaceArgs,

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

/// Maximum time that files in progress delay the end of the process.
const MAX_STOP: Duration = Duration::from_secs(60);

/// Runs `walden archive serve` until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    let (copies, section) = args.place.open_copies(ANSWER_WITHIN, args.effort.level())?;
    let (_, config) = args.place.configuration()?;
    let (options, log) = (args.ahead.options(&args.effort, &section), args.log.open(&section));
    let service = Service::new(copies, options, &args.data, config.as_deref(), log, section.backlog())?;
    walden_archive::clean_up_on_signals();
    signals::before_exit(Stage::Programs, wait_until_stopped).context("cannot install the signal handler")?;
    let socket = Socket::listen(&args.socket)?;
    output::print_line(&service.text());
    systemd::notify("READY=1");
    let watchdog = systemd::watchdog_interval();
    let mut petted = Instant::now();
    let mut tick = || {
        if watchdog.is_some_and(|interval| petted.elapsed() + TICK >= interval) {
            systemd::notify("WATCHDOG=1");
            petted = Instant::now();
        }
    };
    service.run(&socket, &mut tick, &|| systemd::notify("STOPPING=1"));
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
