//! `walden archive prefetch`: the process that fetches segments ahead of recovery.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use walden_archive::prefetch::{self, PrefetchOptions, Spool};
use walden_archiving::log::{Entry, Log};
use walden_server::signals;

use crate::archive::log::LogOptions;
use crate::place::PlaceArgs;

/// Exit status of any failure. The process must exit only with this status or 0.
///
/// The process outlives `restore_command`, and process 1 becomes its parent. In a container, process 1 may be
/// the postmaster, which treats any other status, or death by a signal, of an unknown child as a crashed
/// backend and terminates all others (`CleanupBackend` in `postmaster.c`).
pub const PREFETCH_FAILED: u8 = 1;

/// Fetch segments ahead of recovery (started by `walden archive get`)
#[derive(Args, Debug)]
pub struct PrefetchArgs {
    /// Folder next to which prefetched segments are stored
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    #[command(flatten)]
    place: PlaceArgs,

    /// Maximum number of prefetched segments
    #[arg(long, value_name = "N", default_value_t = 16)]
    segments: usize,

    /// Seconds without a request after which the process ends
    #[arg(long, value_name = "N", default_value_t = 30)]
    idle: u64,

    #[command(flatten)]
    log: LogOptions,
}

/// Runs `walden archive prefetch`.
pub fn run_prefetch(args: &PrefetchArgs) -> ExitCode {
    // The next prefetch process uses or removes the files left in the spool.
    signals::exit_with(0, PREFETCH_FAILED);
    // If the configuration cannot be read, only the options decide where messages go.
    let section = args.place.configuration().map(|(section, _)| section).unwrap_or_default();
    let log = Arc::new(args.log.open(&section));
    end_well_at_panics(log.clone());
    let began = Instant::now();
    let Err(error) = fetch_ahead(args) else { return ExitCode::SUCCESS };
    log_prefetch_failure(&log, &error, began);
    ExitCode::from(PREFETCH_FAILED)
}

fn fetch_ahead(args: &PrefetchArgs) -> Result<()> {
    let (archive, section) = args.place.open()?;
    let spool = Spool::new(&args.folder, &archive);
    let Some(lock) = spool.lock()? else { return Ok(()) };
    let options = PrefetchOptions::default()
        .segments(args.segments)
        .threads(section.threads.unwrap_or_else(crate::terminal::cores))
        .idle(Duration::from_secs(args.idle));
    Ok(prefetch::prefetch(&archive, &spool, lock, &options)?)
}

fn log_prefetch_failure(log: &Log, error: &anyhow::Error, began: Instant) {
    let diagnosis = crate::output::diagnose(error);
    log.print_error("", error.as_ref(), diagnosis.hint.clone());
    let took = began.elapsed();
    log.write(&[Entry::for_failure("prefetch", "segments ahead", error.as_ref(), diagnosis, took)]);
}

/// Makes a panic in any thread end the process with [`PREFETCH_FAILED`].
fn end_well_at_panics(log: Arc<Log>) {
    let began = Instant::now();
    std::panic::set_hook(Box::new(move |panic| {
        log_prefetch_failure(&log, &anyhow!("fetching ahead has failed: {panic}"), began);
        std::process::exit(PREFETCH_FAILED.into());
    }));
}
