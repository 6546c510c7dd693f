//! Rolls the drill's copy forward before the server starts, as `walden restore` does.

use std::path::Path;
use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;
use walden_recover::{
    BaseBackup, ChosenRun, Plan, Purpose, Recovery, RestoreOptions, choose_run, keep_decoded,
};
use walden_source::error_text;
use walden_source::inventory::Run;
use walden_source::kept::KeptSegments;

use super::error::{Context as _, Result};
use super::{DrillError, DrillOptions, Step, Target};
use crate::archive::Archive;
use crate::restore::source::{Bound, SourceOptions};
use crate::restore::sources;

/// Limits of replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RollForward {
    /// Threads that replay.
    pub threads: usize,
    /// Memory for pages.
    pub memory_bytes: usize,
}

/// The part of recovery that Walden did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RolledForward {
    /// The redo pointer of the checkpoint from which the server continued; `None` if the server replayed all
    /// WAL.
    pub redo_lsn: Option<String>,
    /// Replayed WAL in bytes.
    pub wal_bytes: u64,
    /// Duration in seconds, with the plan.
    pub seconds: f64,
    /// Why Walden did not replay the WAL, or not up to the last checkpoint before the target.
    pub reason: Option<String>,
}

/// Replays WAL into the drill's copy. If the WAL cannot be planned, the server replays all of it, and reports
/// the reason itself.
pub(super) fn roll_forward(
    archive: &Archive,
    data: &Path,
    options: &DrillOptions,
    limits: RollForward,
    progress: &mut dyn FnMut(Step),
) -> Result<RolledForward> {
    let started = Instant::now();
    let mut rolled = RolledForward { redo_lsn: None, wal_bytes: 0, seconds: 0.0, reason: None };
    match plan(archive, data, options, limits) {
        Ok((base, run, kept, plan)) => {
            kept.start_last_scan();
            rolled.reason = plan.unsupported.as_ref().map(ToString::to_string);
            if let Some(checkpoint) = &plan.checkpoint {
                let restore_command = String::new();
                let purpose = Purpose::Server { restore_command, target_action: None };
                let options = RestoreOptions::new(purpose, limits.memory_bytes).threads(limits.threads);
                let (mut done, total) = (0, plan.replayed_bytes());
                let recovery = Recovery { run: &run, base: &base, plan: &plan, options: &options };
                let replayed = recovery.restore_in_place(&mut |step| {
                    if let walden_recover::Step::Replayed(bytes) = step {
                        done += bytes;
                        progress(Step::Replayed(done.min(total), total));
                    }
                });
                replayed.context(
                    "cannot roll the copy forward; without --roll-forward, the server replays all WAL",
                )?;
                rolled.redo_lsn = Some(checkpoint.fields.redo.to_string());
                rolled.wal_bytes = total;
            } else {
                let none =
                    || "there is no checkpoint between the end of the backup and the target".to_owned();
                rolled.reason.get_or_insert_with(none);
            }
        }
        Err(error) => rolled.reason = Some(error_text(&error)),
    }
    rolled.seconds = started.elapsed().as_secs_f64();
    Ok(rolled)
}

fn plan(
    archive: &Archive,
    data: &Path,
    options: &DrillOptions,
    limits: RollForward,
) -> Result<(BaseBackup, Run, KeptSegments, Plan)> {
    if options.settings.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("recovery_target")) {
        return Err(DrillError::refused("--set has another recovery target".to_string()));
    }
    let target = match &options.target {
        Target::End => walden_recover::Target::Latest,
        Target::RestorePoint(name) => walden_recover::Target::Name(name.clone()),
        Target::Time(time) => walden_recover::Target::Time(time.parse::<Timestamp>()?.as_microsecond()),
    };
    let base = BaseBackup::open(data, |_| ())?;
    let from = Some(Bound::Lsn(base.start()));
    let range = SourceOptions::new(limits.threads).timeline(options.timeline).from(from);
    let runs = sources::open(&[(archive.store().location().to_owned(), archive.clone())], &[], &range)?;
    let runs = runs.inventory.runs;
    let chosen = choose_run(runs, &base)
        .ok_or_else(|| DrillError::refused("the archive has no WAL from the backup on"))?;
    let ChosenRun { mut run, later, .. } = chosen;
    if let Some(later) = later {
        return Err(DrillError::refused(match later.is_restarted {
            true => format!("pg_resetwal restarted the WAL at {}", later.start),
            false => format!("WAL is missing before {}", later.start),
        }));
    }
    let kept = keep_decoded(&mut run, &base, limits.memory_bytes);
    let plan = Plan::make(&run, &base, target, &[], limits.threads, Some(&kept), |_| ());
    Ok((base, run, kept, plan.map_err(|error| DrillError::refused(error_text(&error)))?))
}
