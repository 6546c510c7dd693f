//! `walden archive status`: prints the state of archiving on one line, and writes metrics for Prometheus.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use walden_archiving::metrics;
use walden_archiving::status::{StatusOptions, line, status};
use walden_output::Inputs;

use super::server::{QueueArgs, ReceivingArgs};
use crate::place::PlaceArgs;
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
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[command(flatten)]
    place: PlaceArgs,

    #[command(flatten)]
    queue: QueueArgs,

    /// Log that push and get append to [default: the one in walden.toml]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Write metrics in Prometheus' text format to this file, replacing it atomically
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,

    #[command(flatten)]
    receiving: ReceivingArgs,

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
    let options = StatusOptions {
        queue: args.queue.options().or_beside_configuration(&place),
        receiving: args.receiving.options(),
        log: args.log.clone(),
        timeout: args.timeout,
    };
    let report = status(&place, &options)?;
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

/// Checks that a file is missing or has Walden's metrics, which new metrics may replace.
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
