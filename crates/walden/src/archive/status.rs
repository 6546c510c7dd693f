//! `walden archive status`: one line about how archiving is doing, and a text file for Prometheus.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use walden_archive::Archive;
use walden_archive::name::ArchivedFile;
use walden_archive::status::{self, Holdings, Lag};
use walden_format::payload::Timestamp;
use walden_receive::spool::complete_segments;
use walden_receive::status as receiving;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::error_text;

use super::activity::{Activity, ActivityReader};
use super::metrics;
use super::place::{ArchiveSection, Place};
use super::push::BACKLOG;
use super::queue::QueueOptions;
use crate::terminal::{self, Format};
use crate::{FOUND, output};

const EXAMPLES: &str = "\
Examples:
  walden archive status --pgdata /var/lib/postgresql/18/main
      what waits, what is archived, when it was verified, and what is wrong
  walden archive status --dsn 'host=db1 user=monitor' --textfile /var/lib/prometheus/node-exporter/walden.prom
      the same by SQL, and as metrics for node_exporter, from cron or a timer

Failures and rates come from the log that push and get append to: log = \"FILE\" in walden.toml.

Exit status: 0 nothing is wrong; 1 more files wait than backlog_warning, segments are missing, the last file could not be archived, or \
verify found damage; 3 the archive could not be read.";

/// Say in one line how archiving is doing, with metrics for Prometheus
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    queue: QueueOptions,

    /// The log that push and get append to [default: that of walden.toml]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Write metrics in Prometheus' text format to a file, which is replaced as a whole
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,

    #[command(flatten)]
    receiving: ReceivingOptions,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The process that receives, if there is one.
#[derive(Args, Clone, Debug)]
pub struct ReceivingOptions {
    /// The spool of walden receive, for how far it is behind the server
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
}

/// A status of `walden receive` that is older than this is not one of a process that runs.
const MAX_STATUS_AGE: Duration = Duration::from_secs(10);

impl ReceivingOptions {
    /// What the process left last; a problem if it does not run.
    fn read(&self) -> Result<Option<receiving::Status>> {
        let Some(spool) = &self.spool else { return Ok(None) };
        let path = spool.join(receiving::FILE);
        let json = std::fs::read(&path)
            .with_context(|| format!("cannot read {}: walden receive has not run", path.display()))?;
        let status =
            serde_json::from_slice(&json).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Some(status))
    }
}

/// How archiving is doing.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// What is wrong.
    pub problems: Vec<String>,
    /// What the archive holds; nothing if it cannot be read.
    pub holdings: Option<Holdings>,
    /// What of the server's queue is not archived; nothing if no server was named or it does not answer.
    pub lag: Option<Lag>,
    /// Files that may wait before it is a problem.
    pub backlog_limit: u64,
    /// What the log says; nothing if there is no log.
    pub activity: Option<Activity>,
    /// What `walden receive` does; nothing if no spool was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiving: Option<receiving::Status>,
}

/// Runs `walden archive status`.
pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let (archive, section) = args.place.open()?;
    let mut log = log_reader(args.log.as_deref(), &section);
    let holdings = holdings(&archive, &args.queue, &args.receiving);
    let report = Report::new(Some(&archive), holdings, &args.queue, &args.receiving, log.as_mut(), &section);
    if let Some(path) = &args.textfile {
        output::replace(path, metrics::render(&report).as_bytes())?;
    }
    terminal::show(args.format, || &report, || line(&report))?;
    Ok(match (&report.holdings, report.problems.is_empty()) {
        (None, _) => ExitCode::from(crate::DAMAGED),
        (Some(_), true) => ExitCode::SUCCESS,
        (Some(_), false) => ExitCode::from(FOUND),
    })
}

/// What an archive holds. What is known to wait to be archived is not missing.
pub fn holdings(
    archive: &Archive,
    queue: &QueueOptions,
    receiving: &ReceivingOptions,
) -> Result<Holdings, String> {
    // Why one of them cannot be read is said elsewhere.
    let waiting = || {
        let ready = queue.read().ok().flatten().unwrap_or_default();
        let ready = ready.into_iter().filter_map(|queued| match queued.file {
            ArchivedFile::Segment(name) => Some(name),
            _ => None,
        });
        let received = receiving.spool.as_deref().map(complete_segments);
        ready.chain(received.and_then(Result::ok).unwrap_or_default()).collect()
    };
    status::holdings(archive, &waiting).map_err(|error| error_text(&error))
}

/// The log that an option or the configuration names.
pub fn log_reader(option: Option<&Path>, section: &ArchiveSection) -> Option<ActivityReader> {
    option.or(section.log.as_deref()).map(ActivityReader::new)
}

impl Report {
    /// What can be found out; what cannot is a problem.
    pub fn new(
        archive: Option<&Archive>,
        holdings: Result<Holdings, String>,
        queue: &QueueOptions,
        receiving: &ReceivingOptions,
        log: Option<&mut ActivityReader>,
        section: &ArchiveSection,
    ) -> Report {
        let mut problems = Vec::new();
        let mut keep = |error: anyhow::Error| problems.push(format!("{error:#}"));
        let holdings = holdings.map_err(|error| keep(anyhow::Error::msg(error))).ok();
        let queue = queue.read().map_err(&mut keep).ok().flatten();
        let lag = queue.map(|queue| {
            let now = SystemTime::now();
            // Of an archive that does not answer, nothing is known to be archived.
            let lag = archive.and_then(|archive| status::lag(archive, &queue, now).ok());
            lag.unwrap_or_else(|| Lag::of_queue(&queue, now))
        });
        let read = |log: &mut ActivityReader| log.read().context("cannot read the log");
        let activity = log.and_then(|log| read(log).map_err(&mut keep).ok());
        let receiving = receiving.read().map_err(&mut keep).ok().flatten();
        let backlog_limit = section.backlog_warning.unwrap_or(BACKLOG) as u64;
        let mut report = Report { problems, holdings, lag, backlog_limit, activity, receiving };
        report.add_problems();
        report
    }

    fn add_problems(&mut self) {
        let mut found = Vec::new();
        if let Some(lag) = self.lag.filter(|lag| lag.files > self.backlog_limit) {
            let (files, limit, waited) = (lag.files, self.backlog_limit, units::seconds(lag.seconds));
            found.push(format!(
                "{files} files wait to be archived, more than {limit}, the oldest for {waited}: pg_wal grows until they are"
            ));
        }
        let failure = self.activity.as_ref().and_then(|activity| activity.unresolved_failure.as_ref());
        if let Some(failure) = failure {
            let (time, message) = (Timestamp::from_unix_micros(failure.time), harmless(&failure.message));
            found.push(format!("the last failure, at {time}, is not over: {message}"));
        }
        if let Some(status) = &self.receiving {
            found.extend(problem_of(status));
        }
        if let Some(holdings) = &self.holdings {
            let was_used = self.activity.as_ref().is_some_and(|activity| activity.archived > 0);
            if holdings.system_identifier.is_none() && was_used {
                found.push(format!("there is no archive any more in {}", holdings.location));
            }
            if holdings.missing_segments > 0 {
                found.push(format!(
                    "{} segments are missing: see walden archive list",
                    holdings.missing_segments
                ));
            }
            if let Some(verified) = holdings.verified.as_ref().filter(|verified| verified.damaged > 0) {
                let time = Timestamp::from_unix_micros(verified.time);
                found.push(format!(
                    "{} objects are damaged: walden archive verify found them at {time}",
                    verified.damaged
                ));
            }
        }
        self.problems.append(&mut found);
    }
}

/// What is wrong with a process that receives.
fn problem_of(status: &receiving::Status) -> Option<String> {
    let age = jiff::Timestamp::now().as_microsecond().saturating_sub(status.time).max(0);
    let text = |what: &str| match &status.problem {
        Some(problem) => format!("walden receive {what}: {}", harmless(problem)),
        None => format!("walden receive {what}"),
    };
    if status.state == receiving::State::Stopped {
        return Some(text("has stopped"));
    }
    if age > MAX_STATUS_AGE.as_micros() as i64 {
        return Some(format!("walden receive does not run: last heard of {} ago", ago(status.time)));
    }
    if status.state == receiving::State::Waiting {
        return Some(text("waits"));
    }
    let archiving = status.archive_problem.as_ref();
    archiving.map(|problem| format!("what was received is not archived: {}", harmless(problem)))
}

/// One line, as monitoring scripts print it.
fn line(report: &Report) -> String {
    let mut parts = Vec::new();
    if let Some(holdings) = &report.holdings {
        parts.extend(of_holdings(holdings));
    }
    match report.lag {
        Some(lag) if lag.files > 0 => parts.push(format!(
            "{} files wait ({}, the oldest for {})",
            lag.files,
            units::bytes(lag.bytes),
            units::seconds(lag.seconds)
        )),
        Some(_) => parts.push("nothing waits".to_owned()),
        None => {}
    }
    if let Some(status) = &report.receiving {
        parts.push(crate::receive::line(status));
    }
    if let Some(activity) = &report.activity {
        if let Some(time) = activity.last_archived {
            parts.push(format!("last archived {} ago", ago(time)));
        }
        if activity.bytes_per_second > 0.0 {
            parts.push(format!("{}/s in the last hour", units::bytes(activity.bytes_per_second as u64)));
        }
    }
    let all = parts.join("; ");
    match report.problems.as_slice() {
        [] => format!("OK: {all}\n"),
        problems => {
            format!("PROBLEM: {}{}{all}\n", problems.join("; "), if all.is_empty() { "" } else { " | " })
        }
    }
}

fn of_holdings(holdings: &Holdings) -> Vec<String> {
    let mut parts = vec![format!(
        "{} segments, {} in {}",
        units::count(holdings.segments),
        units::bytes(holdings.raw_bytes),
        units::bytes(holdings.stored_bytes)
    )];
    let time = |micros: i64| Timestamp::from_unix_micros(micros).to_string();
    if let (Some(oldest), Some(newest)) = (holdings.oldest_restorable, holdings.newest_restorable) {
        parts.push(format!("restorable from {} to {}", time(oldest), time(newest)));
    }
    if holdings.acknowledged_segments > 0 {
        parts.push(format!("{} segments are known to be missing", holdings.acknowledged_segments));
    }
    parts.push(match &holdings.verified {
        Some(verified) => format!("verified {} ago", ago(verified.time)),
        None => "never verified".to_owned(),
    });
    parts
}

fn ago(micros: i64) -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    units::seconds(now.saturating_sub(micros).max(0) as f64 / 1e6)
}
