//! The state of archiving within a time limit, and on one line, as `walden archive status` prints it.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use walden_archive::Archive;
use walden_archive::status::Holdings;
use walden_archive::verified::UNREADABLE;
use walden_report::units;
use walden_source::counted;

use crate::configuration::ArchiveSection;
use crate::error::PlaceError;
use crate::place::{Place, expect_different};
use crate::queue::{self, QueueOptions};
use crate::receiving::{self, ReceivingOptions, ago};
use crate::report::{Report, STORE_ANSWERS_WITHIN, holdings, log_reader};
use crate::repositories::Comparing;
use crate::text::listing;

/// What the status is of.
#[derive(Clone, Debug, Default)]
pub struct StatusOptions {
    /// The server.
    pub queue: QueueOptions,
    /// The receiving process.
    pub receiving: ReceivingOptions,
    /// The activity log, unless the configuration names it.
    pub log: Option<PathBuf>,
    /// Seconds after which the archive counts as unresponsive; 0 for no limit.
    pub timeout: u64,
}

/// Reports the state of archiving into all repositories of a place.
///
/// If the archive does not answer in time, the report lacks its contents; if the server does not answer
/// either, the report lacks its statistics too.
///
/// # Errors
/// The archive cannot be chosen or opened, or two repositories are the same one.
pub fn status(place: &Place, options: &StatusOptions) -> Result<Report, PlaceError> {
    expect_different(&place.repositories()?)?;
    let (archive, section) = match options.timeout {
        0 => place.open()?,
        // Otherwise, the timeout would expire before a store that is down is reported.
        _ => place.open_to_answer_within(STORE_ANSWERS_WITHIN)?,
    };
    let mut report = report_in_time(options, archive, &section);
    let limit = Some(Duration::from_secs(options.timeout)).filter(|limit| !limit.is_zero());
    report.add_comparison(Comparing::new(place.clone(), Duration::ZERO).compare_within(limit)?);
    Ok(report)
}

fn report_in_time(options: &StatusOptions, archive: Archive, section: &ArchiveSection) -> Report {
    let (own, own_section) = (options.clone(), section.clone());
    let report = in_time(options.timeout, move || {
        let StatusOptions { queue, receiving, log, .. } = &own;
        let mut log = log_reader(log.as_deref(), &own_section);
        let holdings = holdings(&archive, queue, receiving);
        Report::new(Some(&archive), holdings, queue, receiving, log.as_mut(), &own_section)
    });
    if let Some(report) = report {
        return report;
    }
    let late = |what: &str| Err(format!("{what} not read within {} s: see --timeout", options.timeout));
    let is_by_sql = options.queue.dsn.is_some();
    let (own, own_section, problem) = (options.clone(), section.clone(), late("the archive was"));
    let ask = move || Report::new(None, problem, &own.queue, &own.receiving, None, &own_section);
    if !is_by_sql {
        return ask();
    }
    in_time(options.timeout.min(SERVER_ANSWERS_WITHIN), ask).unwrap_or_else(|| {
        let queue = QueueOptions { dsn: None, ..options.queue.clone() };
        Report::new(None, late("the archive and the server were"), &queue, &options.receiving, None, section)
    })
}

/// Seconds that a server has to answer after the archive's time has expired.
const SERVER_ANSWERS_WITHIN: u64 = 5;

/// Runs `find_out` with a time limit in seconds, 0 for none. Returns `None` if it expires.
fn in_time<T: Send + 'static>(seconds: u64, find_out: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    // A thread blocked on a network file system whose server is down ends only with the process.
    thread::spawn(move || {
        // Fails if the time limit has expired.
        let _ = sender.send(find_out());
    });
    match seconds {
        0 => receiver.recv().ok(),
        seconds => receiver.recv_timeout(Duration::from_secs(seconds)).ok(),
    }
}

/// Formats the report on one line for monitoring scripts.
pub fn line(report: &Report) -> String {
    let mut parts = Vec::new();
    if let Some(holdings) = &report.holdings {
        parts.extend(describe_holdings(holdings));
    }
    parts.extend(report.lag.as_ref().map(queue::describe));
    if let Some(status) = &report.receiving {
        parts.push(receiving::line(status));
    }
    if let Some(activity) = &report.activity {
        if let Some(time) = activity.last_archived {
            parts.push(format!("last archived {} ago", ago(time)));
        }
        if activity.bytes_per_second > 0.0 {
            parts.push(format!("{}/s in the last hour", units::bytes(activity.bytes_per_second as u64)));
        }
    }
    parts.extend(report.notes.iter().map(|note| format!("note: {note}")));
    let all = parts.join("; ");
    match report.problems.as_slice() {
        [] if report.is_outcome_known => format!("OK: {all}\n"),
        // An archiver that fails at every file leaves no trace in the archive.
        [] => format!("UNKNOWN: {all}\n"),
        problems => {
            format!("PROBLEM: {}{}{all}\n", problems.join("; "), if all.is_empty() { "" } else { " | " })
        }
    }
}

fn describe_holdings(holdings: &Holdings) -> Vec<String> {
    let mut parts = vec![format!(
        "{} {}, {} in {}",
        units::count(holdings.segments),
        if holdings.segments == 1 { "segment" } else { "segments" },
        units::bytes(holdings.raw_bytes),
        units::bytes(holdings.stored_bytes)
    )];
    let ranges: Vec<String> = holdings
        .restorable
        .iter()
        .filter_map(|range| {
            let text = listing::moments(range.commit_times()?);
            Some(match &range.base_backup_from {
                Some(first) => format!("{text} (by a base backup since {first})"),
                None => text,
            })
        })
        .collect();
    if !ranges.is_empty() {
        parts.push(format!("restorable {}", ranges.join(" and ")));
    }
    if holdings.unknown_version_segments > 0 {
        parts.push(listing::unknown_version_line(holdings.unknown_version_segments));
    }
    if holdings.acknowledged_segments > 0 {
        let number = holdings.acknowledged_segments;
        parts.push(format!("{} {} known to be missing", counted(number, "segment"), queue::be(number)));
    }
    if let Some(newest) = holdings.newest_base_backup {
        let count = counted(holdings.base_backups, "base backup");
        parts.push(format!("{count}, the newest {} ago", ago(newest)));
    }
    parts.push(match &holdings.verified {
        Some(verified) => format!("verified {} ago", ago(verified.time)),
        None if holdings.is_verification_locked => UNREADABLE.to_owned(),
        None => "never verified".to_owned(),
    });
    parts
}
