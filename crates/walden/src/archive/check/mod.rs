//! `walden archive check`: tests a setup from end to end.

mod archive;
mod server;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use walden_archive::Archive;
use walden_archive::archive::Identity;

use self::server::{Arrival, Look};
use super::queue::QueueOptions;
use super::receiving::ReceivingOptions;
use super::{against, commands, data_directory, report};
use crate::FOUND;
use crate::configuration::ArchiveSection;
use crate::place::Place;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive check --config /etc/walden/walden.toml
      check the configuration, and write and read back a test segment
  walden archive check --data /var/lib/postgresql/18/main
      also check that the archive is that server's, and which files wait to be archived
  walden archive check --dsn 'host=/run/postgresql dbname=postgres user=postgres' --switch
      also check the server's settings and statistics, and that its WAL arrives after pg_switch_wal()
  walden archive check --dsn 'host=db1 user=postgres' --spool /var/lib/walden/spool
      the same, with walden receive as the archiver instead of the server's archiving settings
  walden archive check --against 'host=standby1 user=postgres'
      list the complete files of the server's pg_wal that the archive lacks, and change nothing
  walden archive check --against 'host=standby1 user=postgres' --repair
      archive them, after the same checks as at a push

The test segment is stored under probe/, and removed afterwards.

After a failover, the archive can have a gap that no server reports: a standby marks received segments as archived, because its primary \
should have archived them. --against reads everything by SQL. The user needs pg_monitor, and also pg_read_server_files to read files: for \
--repair, for histories and the first waiting file, and to compare contents. Nothing is archived from a server whose WAL \
differs from the archive's: a clone, or a second server that was promoted to the same timeline.

Exit status: 0 no problems (there may be warnings), or nothing is missing any more; 1 problems, or files are missing; 3 with --against, \
the server or the archive could not be read.";

/// Test a setup from end to end, or compare the archive with a server's pg_wal and fill gaps
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    place: Place,

    /// Data directory of the server [default: the working directory, if it is one]
    #[arg(long, visible_alias = "pgdata", value_name = "FOLDER")]
    data: Option<PathBuf>,

    /// Connection to the server: a URL or `host=... user=...`
    #[arg(long, value_name = "DSN")]
    dsn: Option<String>,

    #[command(flatten)]
    receiving: ReceivingOptions,

    /// Switch to a new segment on the server and wait until the previous one is in the archive
    #[arg(long, requires = "dsn")]
    switch: bool,

    /// Seconds to wait for that segment
    #[arg(long, value_name = "N", default_value_t = 60, requires = "switch")]
    wait: u64,

    /// Instead of the other checks, compare the archive with the pg_wal of a server of the cluster: a libpq
    /// connection string or URL
    #[arg(long, value_name = "DSN", conflicts_with_all = ["data", "dsn", "spool"])]
    against: Option<String>,

    /// Archive the missing files
    #[arg(long, requires = "against")]
    repair: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Works as expected.
    Ok,
    /// Works, with something that the administrator should know.
    Warn,
    /// Does not work.
    Fail,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Subject of the check.
    pub name: &'static str,
    /// Result.
    pub status: Status,
    /// The finding, in words.
    pub found: String,
    /// Remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), hint: None }
    }

    pub fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, status: Status::Warn, found: found.into(), hint: Some(hint.into()) }
    }

    pub fn fail(name: &'static str, found: impl Into<String>, hint: Option<String>) -> Check {
        Check { name, status: Status::Fail, found: found.into(), hint }
    }

    /// Returns a failure with the error's causes and hint.
    pub fn error(name: &'static str, error: &anyhow::Error) -> Check {
        let hint = crate::output::hint_of(error).map(str::to_owned);
        Check::fail(name, crate::output::chain_text(error), hint)
    }
}

/// Results of all checks.
#[derive(Debug, Serialize)]
struct Report {
    location: String,
    checks: Vec<Check>,
    failed: usize,
    warnings: usize,
}

/// Runs `walden archive check`.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    if let Some(dsn) = &args.against {
        return against::run(&args.place, dsn, args.repair, args.format);
    }
    let (configuration, archive, location) =
        archive::configuration(&args.place.for_server(args.data.as_deref()));
    let mut checks = configuration;
    let mut identity: Option<Identity> = None;
    let mut log = archive.as_ref().and_then(|(_, section)| report::log_reader(None, section));
    if let Some((archive, section)) = &archive {
        let queue =
            QueueOptions { pgdata: server::data_directory(args.data.as_deref()), dsn: args.dsn.clone() };
        let (found, known) = archive::look(archive, section, &queue, &args.receiving);
        checks.extend(found);
        identity = known;
        checks.extend(log.as_mut().and_then(|log| archive::look_at_log(log, archive, section)));
    }
    checks.extend(archive::look_at_copies(&args.place.for_server(args.data.as_deref())));
    let is_received = args.receiving.spool.is_some();
    let opened = archive.as_ref().map(|(archive, _)| archive);
    checks.extend(archive::look_at_receiving(&args.receiving, opened, identity.as_ref()));
    let section = archive.as_ref().map(|(_, section)| section.clone()).unwrap_or_default();
    let commands = commands::commands_of(&args.place.for_server(args.data.as_deref()));
    let look = Look {
        limits: limits(&section),
        archive: opened,
        identity: identity.as_ref(),
        log: log.as_ref(),
        expected: match args.switch {
            true => Arrival::Next(std::time::Duration::from_secs(args.wait)),
            false => Arrival::Last,
        },
        is_received,
        accepts_unknown_versions: section.accept_unknown_versions,
        commands: &commands,
    };
    if let Some(data) = server::data_directory(args.data.as_deref()) {
        checks.extend(server::look_at_data(&data, &look));
    }
    if let Some(dsn) = &args.dsn {
        checks.extend(server::look_at_server(dsn, &look));
    }
    if let Some(archive) = opened {
        // A server that did not answer would cost the same timeout again.
        let answers = !checks.iter().any(|check| check.name == "server" && check.status == Status::Fail);
        let of_server = args.dsn.as_deref().filter(|_| answers).and_then(data_directory::query);
        let known = server::data_directory(args.data.as_deref()).into_iter().chain(of_server);
        let is_configured = args.place.repo.is_none();
        let problem = data_directory::problem_of(archive, &known.collect::<Vec<_>>(), is_configured);
        checks.extend(problem.map(|problem| Check::warn("place", problem, data_directory::HINT)));
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let (failed, warnings) = (count(Status::Fail), count(Status::Warn));
    let report = Report { location, checks, failed, warnings };
    terminal::show(args.format, || &report, || table(&report, args.dsn.is_some()))?;
    Ok(if report.failed > 0 { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

/// Describes a server's settings and statistics as text.
pub fn describe_server(
    dsn: &str,
    archive: &Archive,
    section: &ArchiveSection,
    commands: &[String; 2],
) -> String {
    let identity = archive.identity().ok();
    // Files archived before this archive existed are elsewhere.
    let expected = identity.map_or(Arrival::Nothing, |_| Arrival::Last);
    let look = Look {
        limits: limits(section),
        archive: Some(archive),
        identity,
        log: None,
        expected,
        is_received: false,
        accepts_unknown_versions: section.accept_unknown_versions,
        commands,
    };
    lines(&server::look_at_server(dsn, &look))
}

/// Returns the number of files that may wait, and the seconds that a file may wait.
fn limits(section: &ArchiveSection) -> (u64, u64) {
    (section.backlog() as u64, section.backlog_seconds())
}

fn table(report: &Report, has_server: bool) -> String {
    let mut text = lines(&report.checks);
    let _ = match (report.failed, report.warnings) {
        (0, 0) => writeln!(text, "\nNothing is wrong."),
        (0, warnings) => writeln!(text, "\nNothing is wrong; warnings: {warnings}."),
        (failed, _) => writeln!(text, "\nWrong: {failed}."),
    };
    if !has_server {
        text.push_str("The server's settings and statistics were not checked: --dsn names a connection.\n");
    }
    text
}

/// Writes a line for each check, with its hint below it.
fn lines(checks: &[Check]) -> String {
    let mut text = String::new();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for Check { name, status, found, hint } in checks {
        let word = match status {
            Status::Ok => "ok  ",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        let _ = writeln!(text, "{word}  {name:width$}  {}", walden_report::table::harmless(found));
        if let Some(hint) = hint {
            let _ = writeln!(text, "      {:width$}  hint: {}", "", walden_report::table::harmless(hint));
        }
    }
    text
}
