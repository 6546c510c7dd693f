//! `walden receive`: receives a server's WAL by streaming replication, and archives it.

mod settings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use walden_archive::archive::ArchiveError;
use walden_archiving::log::Entry;
use walden_archiving::receiving;
use walden_format::diagnostic::IntoHint;
use walden_receive::status::{State, Status};
use walden_receive::{AckAfter, Event, Receiver};
use walden_report::units;
use walden_server::signals::{self, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use walden_source::{counted, error_text};

use self::settings::Server;
use crate::archive::{Effort, LogOptions, complain};
use crate::place::PlaceArgs;
use crate::{DAMAGED, FOUND, output, systemd};

const EXAMPLES: &str = "\
Examples:
  walden receive --dsn 'host=db1 user=replicator' --repo /backup/main --slot walden --create-slot
      receive and archive until it is stopped; the slot keeps WAL on the server while it is
  walden receive --dsn 'host=db1 user=replicator' --repo s3://backups/main --slot walden --synchronous
      with synchronous_standby_names = 'walden' on the server: a commit that a client saw is on this machine's disk
  walden receive --dsn 'host=db1 user=replicator' --repo s3://backups/main --slot walden --synchronous --ack-after archive
      the same, and that commit is in the archive: this machine may be lost as well
  walden receive
      all servers of the [[receive]] sections of walden.toml
  kill -USR1 PID
      print its status

To restore received WAL that is not archived yet: restore_command = 'walden archive get %f \"%p\" --spool DIR'.

Exit status: 0 it was stopped; 1 to continue would be useless or harmful, such as with another cluster's server; 2 wrong usage; 3 it could \
not start.";

/// Receive a server's WAL as it is written and archive it, durable before it is acknowledged
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReceiveArgs {
    /// The server: a connection string or URL of PostgreSQL
    #[arg(long, value_name = "DSN", env = "WALDEN_DSN", hide_env_values = true)]
    dsn: Option<String>,

    #[command(flatten)]
    place: PlaceArgs,

    /// The folder that holds the WAL until it is archived [default: receive/SLOT in $STATE_DIRECTORY or
    /// ~/.local/state/walden]
    #[arg(long, value_name = "DIR", requires = "dsn")]
    spool: Option<PathBuf>,

    /// The replication slot, with which the server keeps WAL until it is received
    #[arg(long, value_name = "NAME", requires = "dsn")]
    slot: Option<String>,

    /// Create the slot if it does not exist, or again if the server has invalidated it
    #[arg(long, requires = "slot")]
    create_slot: bool,

    /// Sync and acknowledge received WAL immediately: for a server that waits for the acknowledgement at each
    /// commit
    #[arg(long, requires = "dsn")]
    synchronous: bool,

    /// Acknowledge WAL when it is durable in the spool, or only when it is also in the archive, with the
    /// current segment archived in parts: each commit then waits for the archive
    #[arg(long, value_name = "WHERE", requires = "dsn", default_value = "spool")]
    ack_after: AckAfterName,

    /// If the server has removed WAL that is missing here, continue with its oldest WAL. The archive records
    /// the gap as acknowledged; base backups from before the gap cannot be recovered beyond it
    #[arg(long, requires = "dsn")]
    accept_gap: bool,

    /// Maximum time between status messages to the server, in seconds
    #[arg(long, value_name = "N", default_value_t = 10)]
    status_interval: u64,

    /// Reconnect after this many seconds without a message from the server; 0 for never
    #[arg(long, value_name = "N", default_value_t = 60)]
    timeout: u64,

    /// With several repositories and an empty spool, start although so many repositories are unreachable that
    /// only they may have the newest acknowledged WAL: continue with the WAL of the others
    #[arg(long)]
    ignore_unreachable: bool,

    #[command(flatten)]
    effort: Effort,

    #[command(flatten)]
    log: LogOptions,
}

/// Places under the names that users type.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AckAfterName {
    Spool,
    Archive,
}

impl From<AckAfterName> for AckAfter {
    fn from(name: AckAfterName) -> AckAfter {
        match name {
            AckAfterName::Spool => AckAfter::Spool,
            AckAfterName::Archive => AckAfter::Archive,
        }
    }
}

/// Polling interval of the main thread.
const TICK: Duration = Duration::from_millis(50);
/// How long a stop request waits for a connection attempt to a server that does not respond.
const MAX_CONNECTING_AT_STOP: Duration = Duration::from_millis(300);
/// How often the status is written. A change of state is written immediately.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How often the reason for an interruption is reported again while it stays the same.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);

/// Runs `walden receive` until it is stopped.
pub fn run(args: &ReceiveArgs) -> Result<ExitCode> {
    // A second signal ends the process immediately, without losing anything.
    let stop = signals::stop_on(&[SIGTERM, SIGINT, SIGHUP])?;
    let wants_status = signals::flag_on(SIGUSR1)?;

    let servers = settings::servers(args)?;
    let receivers: Vec<Receiver<'_>> = servers
        .iter()
        .map(|server| {
            let (parameters, options) = (server.parameters.clone(), server.options.clone());
            Receiver::new(server.copies.clone(), &server.disk, parameters, options)
        })
        .collect();
    let with_receivers = || servers.iter().zip(&receivers);
    let status = std::thread::scope(|scope| {
        let runs: Vec<_> = with_receivers()
            .map(|(server, receiver)| {
                let stop = &stop;
                scope.spawn(move || run_one(server, receiver, stop))
            })
            .collect();
        let (mut written, mut is_ready) = (None::<(Instant, Vec<State>)>, false);
        let mut stopping: Option<Instant> = None;
        while runs.iter().any(|run| !run.is_finished()) {
            std::thread::sleep(TICK);
            let is_asked = wants_status.swap(false, Ordering::SeqCst);
            let statuses: Vec<Status> = receivers.iter().map(Receiver::status).collect();
            let states: Vec<State> = statuses.iter().map(|status| status.state).collect();
            if stop.load(Ordering::SeqCst) {
                let since = *stopping.get_or_insert_with(Instant::now);
                let is_waiting = runs
                    .iter()
                    .zip(&states)
                    .all(|(run, state)| run.is_finished() || *state == State::Connecting);
                if is_waiting && since.elapsed() > MAX_CONNECTING_AT_STOP {
                    end_while_connecting(&servers, statuses);
                }
            }
            let is_current =
                |(at, before): &(Instant, Vec<State>)| at.elapsed() < STATUS_INTERVAL && *before == states;
            if !is_asked && written.as_ref().is_some_and(is_current) {
                continue;
            }
            written = Some((Instant::now(), states));
            let mut lines = Vec::new();
            for (server, status) in servers.iter().zip(&statuses) {
                server.write_status(status);
                is_ready = is_ready || status.state == State::Streaming;
                lines.push(server.prefix() + &receiving::line(status));
            }
            if is_asked {
                lines.iter().for_each(|line| output::print_line(line));
            }
            let ready = if is_ready { "READY=1\n" } else { "" };
            let is_hung = with_receivers()
                .zip(&runs)
                .any(|((_, receiver), run)| !run.is_finished() && !receiver.is_alive());
            let watchdog = if is_hung { "" } else { "WATCHDOG=1\n" };
            systemd::notify(&format!("{ready}{watchdog}STATUS={}", lines.join("; ")));
        }
        systemd::notify("STOPPING=1");
        with_receivers().for_each(|(server, receiver)| server.write_status(&receiver.status()));
        runs.into_iter().map(|run| run.join().unwrap_or(FOUND)).max().unwrap_or_default()
    });
    Ok(ExitCode::from(status))
}

/// Ends the process while all remaining receivers wait for unresponsive servers: no WAL was received that
/// could be lost.
fn end_while_connecting(servers: &[Server], statuses: Vec<Status>) -> ! {
    systemd::notify("STOPPING=1");
    for (server, status) in servers.iter().zip(statuses) {
        server.write_status(&Status { state: State::Stopped, ..status });
    }
    std::process::exit(0)
}

/// The last reports, so that the same problem is not reported at each attempt.
#[derive(Default)]
struct Said {
    streaming: String,
    interruption: Option<(String, Instant)>,
    not_stored: Option<(String, Instant)>,
    /// The last report was an interruption.
    is_interrupted: bool,
}

impl Said {
    /// Returns whether to report that streaming started: from another position, or after an interruption was
    /// reported.
    fn should_say_streaming(&mut self, text: &str) -> bool {
        let is_new = self.streaming != text;
        if is_new {
            (self.streaming, self.interruption) = (text.to_owned(), None);
        }
        std::mem::take(&mut self.is_interrupted) || is_new
    }

    /// Returns whether to report why streaming was interrupted.
    fn should_say_interruption(&mut self, text: &str, now: Instant) -> bool {
        let is_due = is_due(&mut self.interruption, text, now);
        self.is_interrupted |= is_due;
        is_due
    }

    /// Returns whether to report why one of several repositories does not get parts.
    fn should_say_not_stored(&mut self, text: &str, now: Instant) -> bool {
        is_due(&mut self.not_stored, text, now)
    }
}

/// Records a report unless it repeats the last one too early. Returns whether it is due.
fn is_due(last: &mut Option<(String, Instant)>, text: &str, now: Instant) -> bool {
    let is_recent = |(before, at): &(String, Instant)| {
        before == text && now.saturating_duration_since(*at) < REPEAT_INTERVAL
    };
    if last.as_ref().is_some_and(is_recent) {
        return false;
    }
    *last = Some((text.to_owned(), now));
    true
}

/// Receives from one server, and logs events. Returns the exit status.
fn run_one(server: &Server, receiver: &Receiver<'_>, stop: &AtomicBool) -> u8 {
    let prefix = server.prefix();
    let say = |text: String| server.log.note(&format!("{prefix}{text}"));
    let said = Mutex::new(Said::default());
    let said = || said.lock().unwrap_or_else(PoisonError::into_inner);
    let observer = |event: Event<'_>| {
        match event {
        Event::Streaming { server, version, position, is_encrypted } => {
            let how = if is_encrypted { ", with TLS" } else { "" };
            let (timeline, start) = (position.timeline, position.start);
            let text = format!(
                "receiving from {server} (PostgreSQL {version}{how}), timeline {timeline} from {start} on"
            );
            if said().should_say_streaming(&text) {
                say(text);
            }
        }
        Event::SlotUnread { slot, error } => {
            let error = error_text(error);
            server.log.warn(&format!(
                "{prefix}cannot find out from where on the server keeps WAL for the slot {slot}: {error}; WAL is received from the \
                 server's current position on, and the earlier WAL that the slot keeps is not{}",
                hint_line(SLOT_HINT)
            ));
        }
        Event::SlotReplaced { slot } => server.log.warn(&format!(
            "{prefix}the server had invalidated the slot {slot}, which therefore kept no WAL: it was dropped and created again"
        )),
        Event::Switched { from, position } => {
            let (timeline, start) = (position.timeline, position.start);
            say(format!("timeline {from} has ended; timeline {timeline} is received from {start}"));
        }
        Event::Skipped { from, position } => {
            let (timeline, start) = (position.timeline, position.start);
            server.log.warn(&format!(
                "{prefix}the server has removed the WAL from {from} on: received from {start} on, timeline {timeline}; the archive records \
                 the gap, and recovery beyond it needs a new base backup{}",
                hint_line("take a base backup now")
            ));
        }
        Event::Interrupted { error, pause } => {
            let (text, hint) = (error_text(error), hint_line(error.hint()));
            let pause = units::seconds(pause.as_secs_f64());
            if said().should_say_interruption(&text, Instant::now()) {
                server.log.warn(&format!("{prefix}{text}; trying again in {pause}{hint}"));
            }
        }
        Event::NotStored { error, is_blocking, pause } => {
            let hint = hint_line(error.hint());
            let pause = units::seconds(pause.as_secs_f64());
            let text = error_text(error);
            let effect = match is_blocking {
                true => "nothing more is acknowledged",
                false => "enough other repositories get the WAL",
            };
            if is_blocking || said().should_say_not_stored(&text, Instant::now()) {
                server.log.warn(&format!("{prefix}{text}; {effect}, trying again in {pause}{hint}"));
            }
        }
        Event::CaughtUp(round) => match round.problem() {
            Some((problem, hint)) => server.log.warn(&format!(
                "{prefix}cannot bring {} up to date yet: {problem}{}",
                round.location,
                hint_line(hint)
            )),
            None => {
                let copied = round.result.as_ref().map_or(0, |copied| copied.copied);
                let files = counted(copied, "file");
                say(format!("{}: {files} copied from other repositories", round.location));
            }
        },
        Event::Archived { name, result, waiting } => {
            for warning in result.iter().flat_map(|pushed| &pushed.warnings) {
                server.log.warn(&format!("{prefix}{name}: {warning}"));
            }
            if let Err(error) = result {
                server.log.print_error(&prefix, error, error.hint());
            }
            server.log.write(&[Entry::for_push(name, result.as_ref(), waiting)]);
        }
    }
    };
    // Logged here, because the status of a newly started service is rarely inspected.
    for copy in server.copies.iter() {
        let Err(error @ ArchiveError::Missing(_)) = copy.archive.expect_archive() else { continue };
        let hint = hint_line(error.hint());
        server.log.warn(&format!("{prefix}{error}; the received WAL waits in the spool{hint}"));
    }
    if server.options.slot.is_none() {
        server.log.warn(&format!(
            "{prefix}without a slot, the server may remove WAL before it is received{}",
            hint_line("--slot NAME --create-slot (slot and create_slot in walden.toml) makes one")
        ));
    }
    match receiver.run_observed(stop, &observer) {
        Ok(()) => 0,
        Err(error) => {
            complain(&prefix, &error, error.hint());
            if error.is_of_beginning() { DAMAGED } else { FOUND }
        }
    }
}

const SLOT_HINT: &str = "before PostgreSQL 15, a server says it over an ordinary connection only: let the user connect to the database of the DSN, \
or to postgres, in pg_hba.conf, and start again with an empty spool before the first segment is archived";

/// Formats a hint as a line after the message.
fn hint_line(hint: impl IntoHint) -> String {
    hint.into_hint().map(|hint| format!("\nHINT: {hint}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_said_once() {
        let (mut said, now) = (Said::default(), Instant::now());
        assert!(said.should_say_streaming("from 1 on"));
        assert!(said.should_say_interruption("no room", now));
        assert!(said.should_say_streaming("from 1 on"));
        // Streaming starts and ends repeatedly, without progress.
        assert!(!said.should_say_interruption("no room", now));
        assert!(!said.should_say_streaming("from 1 on"));
        assert!(said.should_say_interruption("no room", now + REPEAT_INTERVAL));
        assert!(said.should_say_interruption("no server", now + REPEAT_INTERVAL));
        assert!(said.should_say_streaming("from 2 on"));
        assert!(said.should_say_interruption("no server", now + REPEAT_INTERVAL));
    }
}
