//! The state of `walden receive`, from its spool.

use std::path::PathBuf;
use std::time::Duration;

use walden_format::lsn::Lsn;
use walden_receive::disk::is_in_use;
use walden_receive::status::{CopyState, FILE, State, Status};
use walden_report::table::harmless;
use walden_report::units;
use walden_source::regular_file;

use crate::error::{ArchivingError, Result};
use crate::queue::waiting;

/// The receiving process, if any.
#[derive(Clone, Debug, Default)]
pub struct ReceivingOptions {
    /// Spool of `walden receive`.
    pub spool: Option<PathBuf>,
}

/// A status has a few hundred bytes.
const MAX_STATUS_BYTES: u64 = 1 << 20;
/// A running `walden receive` writes its status more often than this.
const MAX_STATUS_AGE: Duration = Duration::from_secs(10);

impl ReceivingOptions {
    /// Reads the last status; `None` without a spool.
    ///
    /// # Errors
    /// `walden receive` has never run, or its status cannot be read.
    pub fn read(&self) -> Result<Option<Status>> {
        let Some(spool) = &self.spool else { return Ok(None) };
        let path = spool.join(FILE);
        let json = regular_file::read(&path, MAX_STATUS_BYTES)
            .map_err(ArchivingError::read(format!("{}: walden receive has not run", path.display())))?;
        match serde_json::from_slice(&json) {
            Ok(status) => Ok(Some(status)),
            Err(error) => Err(ArchivingError::Use { path, source: error.into() }),
        }
    }

    /// Returns whether a process is receiving into the spool.
    pub fn is_running(&self) -> bool {
        self.spool.as_deref().is_some_and(is_in_use)
    }
}

/// Introduces the last problem of a process that ended because of this problem, or was stopped while the
/// problem lasted.
const LAST_TROUBLE: &str = "; last trouble: ";

/// Returns whether a status is older than a running process would leave it.
fn is_old(status: &Status) -> bool {
    let age = jiff::Timestamp::now().as_microsecond().saturating_sub(status.time).max(0);
    age > MAX_STATUS_AGE.as_micros() as i64
}

/// Describes the problem of a receiver; `is_running` is whether its process exists.
pub fn problem_of(status: &Status, is_running: bool) -> Option<String> {
    let text = |what: &str, before: &str| match &status.problem {
        Some(problem) => format!("walden receive {what}{before}{}", harmless(problem)),
        None => format!("walden receive {what}"),
    };
    if status.state == State::Stopped {
        return Some(text("has stopped", LAST_TROUBLE));
    }
    if is_old(status) {
        let ago = ago(status.time);
        return Some(match is_running {
            true => format!(
                "walden receive runs, and has not written its status for {ago}: is the spool's disk full?"
            ),
            false => format!("walden receive does not run: its last status is {ago} old"),
        });
    }
    if status.state == State::Waiting {
        return Some(text("waits", ": "));
    }
    let archiving = status.archive_problem.as_ref();
    archiving.map(|problem| format!("the received WAL is not archived: {}", harmless(problem)))
}

/// Formats a status on one line.
pub fn line(status: &Status) -> String {
    let mut text = match status.state {
        State::Streaming => format!("receiving timeline {} from {}", status.timeline, status.server),
        State::Connecting => "connecting".to_owned(),
        State::Waiting => "waiting".to_owned(),
        State::Stopped => "stopped".to_owned(),
    };
    if let Some(problem) = &status.problem {
        let before = if status.state == State::Stopped { LAST_TROUBLE } else { ": " };
        text += &format!("{before}{problem}");
    }
    text += &format!(", received {}, durable {}{}", status.received_lsn, status.flushed_lsn, behind(status));
    if let Some(archived) = &status.archived_lsn {
        text += &format!(", archived {archived}");
    }
    if status.waiting_files > 0 {
        text += &format!(", {} to be archived", waiting(status.waiting_files));
    }
    if let Some(problem) = &status.archive_problem {
        text += &format!(" ({problem})");
    }
    for copy in &status.copies {
        text += &copy_text(copy, status);
    }
    if is_old(status) {
        text += &format!(" (all of it as of {} ago)", ago(status.time));
    }
    text
}

/// Describes a repository among several that lacks WAL; empty if it lacks none.
fn copy_text(copy: &CopyState, status: &Status) -> String {
    let position = |lsn: &str| lsn.parse::<Lsn>().ok().filter(|&lsn| lsn != Lsn::INVALID);
    let stored = copy.stored_lsn.as_deref().and_then(position);
    let lag = stored
        .zip(position(&status.received_lsn))
        .map(|(stored, received)| received.0.saturating_sub(stored.0))
        .filter(|&lag| lag > 0 && copy.problem.is_some());
    let what = match lag {
        Some(lag) => format!("is {} behind", units::bytes(lag)),
        None if copy.is_behind => "is behind".to_owned(),
        None => return String::new(),
    };
    let problem = copy.problem.as_ref().map(|problem| format!(" ({})", harmless(problem)));
    format!(", {} {what}{}", harmless(&copy.location), problem.unwrap_or_default())
}

/// Describes how far the durable WAL lags behind the server; empty if the server was never reached. Without a
/// connection, the distance is to the server's last known position, which may have advanced.
fn behind(status: &Status) -> String {
    let lag = units::bytes(status.lag_bytes);
    let lasted = match status.lag_bytes {
        0 => String::new(),
        _ => format!(" for {}", units::seconds(status.lag_seconds)),
    };
    match status.server_lsn.parse::<Lsn>() {
        _ if status.state == State::Streaming && !is_old(status) => {
            format!(", {lag} behind the server{lasted}")
        }
        Ok(Lsn::INVALID) | Err(_) => String::new(),
        // The end of the local WAL is not known yet.
        _ if status.flushed_lsn.parse::<Lsn>() == Ok(Lsn::INVALID) => String::new(),
        Ok(end) => {
            let heard = status.heard_time.map(|time| format!(", {} ago", ago(time))).unwrap_or_default();
            format!(", {lag} behind {end}{lasted}, where the server was when it was last heard of{heard}")
        }
    }
}

/// Returns the time elapsed since a time in microseconds since 1970-01-01 00:00:00 UTC.
pub fn ago(micros: i64) -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    units::seconds(now.saturating_sub(micros).max(0) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use walden_receive::disk::Folder;

    use super::*;

    #[test]
    fn a_process_whose_status_is_old_runs_if_it_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let options = ReceivingOptions { spool: Some(folder.path().to_owned()) };
        let status = Status { state: State::Streaming, ..Status::default() };
        let problem = || problem_of(&status, options.is_running()).unwrap();
        assert!(problem().contains("does not run"), "{}", problem());
        let disk = Folder::open(folder.path()).unwrap();
        assert!(problem().contains("runs, and has not written its status"), "{}", problem());
        drop(disk);
        assert!(problem().contains("does not run"), "{}", problem());
    }

    #[test]
    fn a_repository_that_lags_is_in_the_line() {
        let copy = |location: &str, stored: &str, problem: Option<&str>| CopyState {
            location: location.to_owned(),
            stored_lsn: Some(stored.to_owned()),
            is_behind: location == "/three",
            problem: problem.map(str::to_owned),
        };
        let status = Status {
            state: State::Streaming,
            received_lsn: "0/05600000".to_owned(),
            copies: vec![
                copy("/one", "0/05600000", None),
                copy("/two", "0/05000000", Some("not mounted")),
                copy("/three", "0/05600000", None),
            ],
            time: jiff::Timestamp::now().as_microsecond(),
            ..Status::default()
        };
        let line = line(&status);
        assert!(line.ends_with(", /two is 6.3 MB behind (not mounted), /three is behind"), "{line}");
    }

    #[test]
    fn the_trouble_of_a_process_that_was_stopped_is_said() {
        let status = Status {
            state: State::Stopped,
            problem: Some("the server: requested WAL segment has already been removed".to_owned()),
            server_lsn: "0/05600000".to_owned(),
            flushed_lsn: "0/05000000".to_owned(),
            lag_bytes: 0x60_0000,
            time: jiff::Timestamp::now().as_microsecond(),
            ..Status::default()
        };
        let line = line(&status);
        assert!(line.starts_with("stopped; last trouble: the server: requested WAL segment"), "{line}");
        assert!(line.contains(", 6.3 MB behind 0/05600000"), "{line}");
        let problem = problem_of(&status, false).unwrap();
        assert!(problem.starts_with("walden receive has stopped; last trouble: the server: "), "{problem}");
        // A process that has not determined the end of the local WAL.
        let unknown = Status { flushed_lsn: "0/00000000".to_owned(), ..status };
        assert!(!super::line(&unknown).contains(" behind "), "{}", super::line(&unknown));
    }

    #[test]
    fn an_old_distance_to_the_server_is_not_said_as_if_it_were_of_now() {
        const HOUR: i64 = 3600 * 1_000_000;
        let now = jiff::Timestamp::now().as_microsecond();
        let (current, last) =
            (", 0 B behind the server", ", 0 B behind 0/05000000, where the server was when");
        let cases = [
            (State::Streaming, "0/05000000", now, Some(current)),
            (State::Streaming, "0/05000000", now - HOUR, Some(last)),
            (State::Waiting, "0/05000000", now, Some(last)),
            (State::Connecting, "0/05000000", now, Some(last)),
            (State::Stopped, "0/05000000", now - HOUR, Some(last)),
            (State::Connecting, "0/00000000", now, None),
        ];
        for (state, server_lsn, time, expected) in cases {
            let (server_lsn, flushed_lsn) = (server_lsn.to_owned(), "0/05000000".to_owned());
            let status = Status { state, server_lsn, flushed_lsn, time, ..Status::default() };
            let line = line(&status);
            assert_eq!(line.contains(" behind "), expected.is_some(), "{line}");
            assert!(expected.is_none_or(|expected| line.contains(expected)), "{line}");
            assert_eq!(line.contains(" (all of it as of "), time < now, "{line}");
        }
        let status = Status {
            state: State::Waiting,
            server_lsn: "0/05000000".to_owned(),
            flushed_lsn: "0/05000000".to_owned(),
            heard_time: Some(now - HOUR),
            time: now,
            ..Status::default()
        };
        assert!(line(&status).contains("last heard of, 60 min 0 s ago"), "{}", line(&status));
    }
}
