//! How `walden receive` is doing, by what it leaves in its spool.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use walden_receive::status::{FILE, State, Status};
use walden_report::table::harmless;
use walden_report::units;

/// The process that receives, if there is one.
#[derive(Args, Clone, Debug)]
pub struct ReceivingOptions {
    /// The spool of walden receive, for how far it is behind the server
    #[arg(long, value_name = "DIR")]
    pub spool: Option<PathBuf>,
}

/// A status of `walden receive` that is older than this is not one of a process that runs.
const MAX_STATUS_AGE: Duration = Duration::from_secs(10);

impl ReceivingOptions {
    /// What the process left last; a problem if it does not run.
    pub fn read(&self) -> Result<Option<Status>> {
        let Some(spool) = &self.spool else { return Ok(None) };
        let path = spool.join(FILE);
        let json = std::fs::read(&path)
            .with_context(|| format!("cannot read {}: walden receive has not run", path.display()))?;
        let status =
            serde_json::from_slice(&json).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Some(status))
    }
}

/// What is wrong with a process that receives.
pub fn problem_of(status: &Status) -> Option<String> {
    let age = jiff::Timestamp::now().as_microsecond().saturating_sub(status.time).max(0);
    let text = |what: &str| match &status.problem {
        Some(problem) => format!("walden receive {what}: {}", harmless(problem)),
        None => format!("walden receive {what}"),
    };
    if status.state == State::Stopped {
        return Some(text("has stopped"));
    }
    if age > MAX_STATUS_AGE.as_micros() as i64 {
        return Some(format!("walden receive does not run: last heard of {} ago", ago(status.time)));
    }
    if status.state == State::Waiting {
        return Some(text("waits"));
    }
    let archiving = status.archive_problem.as_ref();
    archiving.map(|problem| format!("what was received is not archived: {}", harmless(problem)))
}

/// A status for people, on one line.
pub fn line(status: &Status) -> String {
    let mut text = match status.state {
        State::Streaming => format!("receiving timeline {} from {}", status.timeline, status.server),
        State::Connecting => "connecting".to_owned(),
        State::Waiting => "waiting".to_owned(),
        State::Stopped => "stopped".to_owned(),
    };
    if let Some(problem) = &status.problem {
        text += &format!(": {problem}");
    }
    text += &format!(
        ", received {}, durable {}, {} behind the server",
        status.received_lsn,
        status.flushed_lsn,
        units::bytes(status.lag_bytes)
    );
    if status.lag_bytes > 0 {
        text += &format!(" for {}", units::seconds(status.lag_seconds));
    }
    if let Some(archived) = &status.archived_lsn {
        text += &format!(", archived {archived}");
    }
    if status.waiting_files > 0 {
        text += &format!(", {} files wait to be archived", status.waiting_files);
    }
    if let Some(problem) = &status.archive_problem {
        text += &format!(" ({problem})");
    }
    text
}

/// The time since then, in microseconds since 1970-01-01 00:00:00 UTC.
pub fn ago(micros: i64) -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    units::seconds(now.saturating_sub(micros).max(0) as f64 / 1e6)
}
