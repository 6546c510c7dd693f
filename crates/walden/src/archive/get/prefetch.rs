//! The process that fetches ahead of recovery, as `walden archive prefetch`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use walden_archive::Archive;
use walden_archive::get::GetError;
use walden_archive::prefetch::{self, PrefetchOptions, Spool};
use walden_server::signals;

use super::GetArgs;
use crate::archive::log::{Entry, Log, LogOptions};
use crate::archive::push::complain;
use crate::place::Place;

/// Fetching ahead has failed, in whatever way: no status but this one and 0 will do.
///
/// The process outlives `restore_command`, and process 1 becomes its parent: in a container that may be the postmaster. To that, any
/// other status of a child that it does not know, or a signal that has ended it, is a backend that crashed, for which it ends all
/// others (`CleanupBackend` in `postmaster.c`).
pub const PREFETCH_FAILED: u8 = 1;

/// Fetch ahead of recovery (started by `walden archive get`)
#[derive(Args, Debug)]
pub struct PrefetchArgs {
    /// The folder beside which segments are kept
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    #[command(flatten)]
    place: Place,

    /// Segments that lie ready at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    segments: usize,

    /// Seconds without a request after which the process ends
    #[arg(long, value_name = "N", default_value_t = 30)]
    idle: u64,

    #[command(flatten)]
    log: LogOptions,
}

/// Starts the process that fetches ahead, unless it runs.
pub fn start_prefetch(args: &GetArgs, archive: &Archive, spool: &Spool, folder: &Path, ahead: usize) {
    match spool.lock() {
        // Let go, for the process to take it.
        Ok(Some(lock)) => drop(lock),
        _ => return,
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = Command::new(program);
    command.args(["archive", "prefetch", "--segments", &ahead.to_string()]);
    command.args(["--repo", archive.store().location()]);
    if let Some(config) = &args.place.config {
        command.arg("--config").arg(config);
    }
    if let Some(identity) = &args.place.identity {
        command.arg("--identity").arg(identity);
    }
    if let Some(log) = &args.log.log {
        command.arg("--log").arg(log);
    }
    command.arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own: the server's shutdown waits for restore_command and not for this.
    let _ = command.process_group(0).spawn();
}

/// Runs `walden archive prefetch`.
pub fn run_prefetch(args: &PrefetchArgs) -> ExitCode {
    // What it leaves in the spool, the next one uses or removes.
    signals::exit_with(0, PREFETCH_FAILED);
    // Without a configuration that can be read, the options alone say where messages go.
    let section = args.place.configuration().map(|(section, _)| section).unwrap_or_default();
    let log = Arc::new(Log::new(&args.log, &section));
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
    let options = PrefetchOptions {
        segments: args.segments,
        threads: section.threads.unwrap_or_else(crate::terminal::cores),
        idle: Duration::from_secs(args.idle),
    };
    Ok(prefetch::prefetch(&archive, &spool, lock, &options)?)
}

fn log_prefetch_failure(log: &Log, error: &anyhow::Error, began: Instant) {
    log.write(&[Entry::of_get("prefetch", "segments ahead", Err(error), began.elapsed())]);
    if log.is_text() {
        complain("", error.as_ref(), error.downcast_ref::<GetError>().and_then(GetError::hint));
    }
}

/// Has a panic of any thread end the process so.
fn end_well_at_panics(log: Arc<Log>) {
    let began = Instant::now();
    std::panic::set_hook(Box::new(move |panic| {
        log_prefetch_failure(&log, &anyhow!("fetching ahead has failed: {panic}"), began);
        std::process::exit(PREFETCH_FAILED.into());
    }));
}
