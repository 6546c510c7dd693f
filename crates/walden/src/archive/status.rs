//! `walden archive status`: prints the state of archiving on one line, and writes metrics for Prometheus.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use walden_archive::Archive;
use walden_archive::status::Holdings;
use walden_archive::verified::UNREADABLE;
use walden_report::units;
use walden_source::counted;

use super::metrics;
use super::queue::{self, QueueOptions};
use super::receiving::{self, ReceivingOptions, ago};
use super::report::{Report, STORE_ANSWERS_WITHIN, holdings, log_reader};
use super::repositories::Comparing;
use crate::configuration::ArchiveSection;
use crate::place::{Place, expect_different};
use crate::protect::Inputs;
use crate::terminal::{self, Format};
use crate::{FOUND, output};

const EXAMPLES: &str = "\
Examples:
  walden archive status --data /var/lib/postgresql/18/main
      waiting files, archived WAL, last verification, and problems
  walden archive status --dsn 'host=db1 user=monitor' --textfile /var/lib/prometheus/node-exporter/walden.prom
      the same by SQL, and as metrics for node_exporter, from cron or a timer

Without --data and --dsn, the server is that of the data directory that contains walden.toml or is the working directory. \
If there is none, the line starts with UNKNOWN instead of OK. It also does so before the first segment of the server is archived, and \
while an attempt to archive has had no result for 10 seconds.

Failures and rates come from the log that push and get append to: log = \"FILE\" in walden.toml.

Exit status: 0 no problems; 1 more files wait than backlog_warning, one waits for longer than backlog_warning_seconds, or the \
ready files exceed these limits because one is not archived; the server belongs to another cluster than the archive or has segments of \
another size, archives nothing or elsewhere, or its archiver fails; segments or the history of a \
timeline are missing; an object is damaged; a file failed to be archived and was not archived since; or verify found damage; 3 the archive \
could not be read (within --timeout), does not exist, or --textfile could not be written.";

/// Print the state of archiving on one line, and write metrics for Prometheus
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    queue: QueueOptions,

    /// Log that push and get append to [default: the one in walden.toml]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Write metrics in Prometheus' text format to this file, replacing it atomically
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,

    #[command(flatten)]
    receiving: ReceivingOptions,

    /// After this many seconds, report without the archive; a server in --dsn then has 5 more seconds. 0: no
    /// limit
    #[arg(long, value_name = "N", default_value_t = 30)]
    timeout: u64,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// First bytes of a metrics file.
const METRICS_START: &[u8] = b"# HELP walden_";

/// Runs `walden archive status`.
pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    args.textfile.as_deref().map_or(Ok(()), expect_own_metrics)?;
    let place = args.place.for_server(args.queue.pgdata.as_deref());
    let queue = args.queue.clone().or_beside_configuration(&place);
    let args = &StatusArgs { queue, ..args.clone() };
    expect_different(&place.repositories()?)?;
    let (archive, section) = match args.timeout {
        0 => place.open()?,
        // Otherwise, the timeout would expire before a store that is down is reported.
        _ => place.open_to_answer_within(STORE_ANSWERS_WITHIN)?,
    };
    let mut report = report_in_time(args, archive, &section);
    let limit = Some(Duration::from_secs(args.timeout)).filter(|limit| !limit.is_zero());
    report.add_comparison(Comparing::new(place, Duration::ZERO).compare_within(limit)?);
    terminal::show(args.format, || &report, || line(&report))?;
    // A failure to write the file must not suppress the line.
    if let Some(path) = &args.textfile {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let folder = folder.display();
            bail!("cannot write {}: expected the folder {folder}, found none", path.display());
        }
        output::replace(path, metrics::render(&report).as_bytes())?;
    }
    Ok(match (&report.holdings, report.problems.is_empty()) {
        (None, _) => ExitCode::from(crate::DAMAGED),
        (Some(_), true) => ExitCode::SUCCESS,
        (Some(_), false) => ExitCode::from(FOUND),
    })
}

/// Checks that a file is missing or has Walden's metrics, which new ones may replace.
fn expect_own_metrics(path: &Path) -> Result<()> {
    output::expect_no_input(path, &Inputs::default())?;
    let found = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() > 0);
    let is_own = || -> std::io::Result<bool> {
        let mut start = Vec::new();
        File::open(path)?.take(METRICS_START.len() as u64).read_to_end(&mut start)?;
        Ok(start == METRICS_START)
    };
    if found.is_some() && !is_own().with_context(|| format!("cannot read {}", path.display()))? {
        return Err(output::Refused::error(path, "it exists already, and does not have Walden's metrics"));
    }
    Ok(())
}

/// Returns the report. If the archive does not answer in time, the report lacks its contents; if the server
/// does not answer either, the report lacks its statistics too.
fn report_in_time(args: &StatusArgs, archive: Archive, section: &ArchiveSection) -> Report {
    let (own_args, own_section) = (args.clone(), section.clone());
    let report = in_time(args.timeout, move || {
        let StatusArgs { queue, receiving, log, .. } = &own_args;
        let mut log = log_reader(log.as_deref(), &own_section);
        let holdings = holdings(&archive, queue, receiving);
        Report::new(Some(&archive), holdings, queue, receiving, log.as_mut(), &own_section)
    });
    if let Some(report) = report {
        return report;
    }
    let late = |what: &str| Err(format!("{what} not read within {} s: see --timeout", args.timeout));
    let is_by_sql = args.queue.dsn.is_some();
    let (own_args, own_section, problem) = (args.clone(), section.clone(), late("the archive was"));
    let ask = move || Report::new(None, problem, &own_args.queue, &own_args.receiving, None, &own_section);
    if !is_by_sql {
        return ask();
    }
    in_time(args.timeout.min(SERVER_ANSWERS_WITHIN), ask).unwrap_or_else(|| {
        let queue = QueueOptions { dsn: None, ..args.queue.clone() };
        Report::new(None, late("the archive and the server were"), &queue, &args.receiving, None, section)
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
fn line(report: &Report) -> String {
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
            let text = super::list::moments(range.commit_times()?);
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
        parts.push(super::list::unknown_version_line(holdings.unknown_version_segments));
    }
    if holdings.acknowledged_segments > 0 {
        let number = holdings.acknowledged_segments;
        parts.push(format!("{} {} known to be missing", counted(number, "segment"), queue::be(number)));
    }
    parts.push(match &holdings.verified {
        Some(verified) => format!("verified {} ago", ago(verified.time)),
        None if holdings.is_verification_locked => UNREADABLE.to_owned(),
        None => "never verified".to_owned(),
    });
    parts
}
