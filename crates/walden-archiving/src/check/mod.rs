//! Tests a set-up from end to end: the configuration, the archive and its keys, and the server that uses it.

mod archive;
mod server;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use walden_archive::Archive;
use walden_archive::archive::Identity;
use walden_report::table::harmless;
use walden_source::error_text;

use self::server::{Arrival, Look};
use crate::configuration::ArchiveSection;
use crate::error::ArchivingError;
use crate::place::Place;
use crate::queue::QueueOptions;
use crate::receiving::ReceivingOptions;
use crate::{commands, data_directory, report};
use walden_format::diagnostic::Hint;

/// The set-up that is tested.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The archive, as the server's commands find it ([`Place::for_server`]).
    pub place: &'a Place,
    /// Data directory of the server, unless it is the working directory.
    pub data: Option<&'a Path>,
    /// Connection to the server: a libpq string or URL.
    pub dsn: Option<&'a str>,
    /// The receiving process, if any.
    pub receiving: &'a ReceivingOptions,
    /// Whether to switch to a new segment on the server, and how long to wait until the previous one is in
    /// the archive.
    pub switch: Option<Duration>,
    /// The path of Walden's program, for the commands in remedies.
    pub program: &'a str,
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
    /// The finding as text.
    pub found: String,
    /// Stable code of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    /// Returns a check whose subject works.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), code: None, hint: None }
    }

    /// Returns a check whose subject works, with a hint.
    pub fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, status: Status::Warn, found: found.into(), code: None, hint: Some(hint.into()) }
    }

    /// Returns a check whose subject does not work.
    pub fn fail(name: &'static str, found: impl Into<String>, hint: Option<String>) -> Check {
        Check { name, status: Status::Fail, found: found.into(), code: None, hint }
    }

    /// Returns a failure with the error's causes and hint.
    pub fn error(name: &'static str, error: &ArchivingError) -> Check {
        let hint = error.hint().map(Hint::into_owned);
        Check { code: error.code(), ..Check::fail(name, error_text(error), hint) }
    }
}

/// Results of all checks.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Location of the archive; empty if it cannot be opened.
    pub location: String,
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
    /// Number of checks that failed.
    pub failed: usize,
    /// Number of checks with a warning.
    pub warnings: usize,
    /// Whether the server's settings and statistics were checked.
    #[serde(skip)]
    pub is_server_asked: bool,
}

impl Report {
    /// Returns a line for each check, with its hint below it, and a summary.
    pub fn text(&self) -> String {
        let mut text = lines(&self.checks);
        let _ = match (self.failed, self.warnings) {
            (0, 0) => writeln!(text, "\nNothing is wrong."),
            (0, warnings) => writeln!(text, "\nNothing is wrong; warnings: {warnings}."),
            (failed, _) => writeln!(text, "\nWrong: {failed}."),
        };
        if !self.is_server_asked {
            text.push_str(
                "The server's settings and statistics were not checked: --dsn names a connection.\n",
            );
        }
        text
    }
}

/// Tests a set-up. A test segment is archived, read and removed.
pub fn check(setup: &Setup<'_>) -> Report {
    let Setup { place, dsn, receiving, .. } = *setup;
    let data = server::data_directory(setup.data);
    let (mut checks, archive, location) = archive::configuration(place);
    let mut identity: Option<Identity> = None;
    let mut log = archive.as_ref().and_then(|(_, section)| report::log_reader(None, section));
    if let Some((archive, section)) = &archive {
        let queue = QueueOptions { pgdata: data.clone(), dsn: dsn.map(str::to_owned) };
        let (found, known) = archive::look(archive, section, &queue, receiving);
        checks.extend(found);
        identity = known;
        checks.extend(log.as_mut().and_then(|log| archive::look_at_log(log, archive, section)));
    }
    checks.extend(archive::look_at_copies(place));
    let opened = archive.as_ref().map(|(archive, _)| archive);
    checks.extend(archive::look_at_receiving(receiving, opened, identity.as_ref()));
    let section = archive.as_ref().map(|(_, section)| section.clone()).unwrap_or_default();
    let commands = commands::commands_of(setup.program, place);
    let slot = receiving.read().ok().flatten().and_then(|status| status.slot);
    let look = Look {
        limits: limits(&section),
        archive: opened,
        identity: identity.as_ref(),
        log: log.as_ref(),
        expected: setup.switch.map_or(Arrival::Last, Arrival::Next),
        is_received: receiving.spool.is_some(),
        slot: slot.as_deref(),
        accepts_unknown_versions: section.accept_unknown_versions,
        commands: &commands,
    };
    if let Some(data) = &data {
        checks.extend(server::look_at_data(data, &look));
    }
    if let Some(dsn) = dsn {
        checks.extend(server::look_at_server(dsn, &look));
    }
    if let Some(archive) = opened {
        // A server that did not answer would cost the same timeout again.
        let answers = !checks.iter().any(|check| check.name == "server" && check.status == Status::Fail);
        let of_server = dsn.filter(|_| answers).and_then(data_directory::query);
        let known: Vec<PathBuf> = data.into_iter().chain(of_server).collect();
        let problem = data_directory::problem_of(archive, &known, place.repo.is_none());
        checks.extend(problem.map(|problem| Check::warn("place", problem, data_directory::HINT)));
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let (failed, warnings) = (count(Status::Fail), count(Status::Warn));
    Report { location, checks, failed, warnings, is_server_asked: dsn.is_some() }
}

/// Describes a server's settings and statistics as text. `commands` are those that its settings should have.
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
        slot: None,
        accepts_unknown_versions: section.accept_unknown_versions,
        commands,
    };
    lines(&server::look_at_server(dsn, &look))
}

/// Returns the number of files that may wait, and the seconds that a file may wait.
fn limits(section: &ArchiveSection) -> (u64, u64) {
    (section.backlog() as u64, section.backlog_seconds())
}

/// Writes a line for each check, with its hint below it.
fn lines(checks: &[Check]) -> String {
    let mut text = String::new();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for Check { name, status, found, hint, .. } in checks {
        let word = match status {
            Status::Ok => "ok  ",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        let _ = writeln!(text, "{word}  {name:width$}  {}", harmless(found));
        if let Some(hint) = hint {
            let _ = writeln!(text, "      {:width$}  hint: {}", "", harmless(hint));
        }
    }
    text
}
