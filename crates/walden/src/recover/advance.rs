//! `walden backup advance`: a base backup becomes a later one.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use walden_recover::{EarlyDrop, KeepRule, Plan, Purpose, Recovery, Restored};
use walden_report::table::harmless;
use walden_report::units;

use super::restore::expect_separate_target;
use super::schedule::Schedule;
use super::{
    PlanDocument, Prepared, RecoverArgs, RestoredDocument, amounts_text, plan_text, report_interruption,
    warn_of_damage, warn_of_drops, with_hint, with_progress,
};
use crate::USAGE;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden backup advance /backups/main --repo /backup/wal
      replace the backup by one of the last checkpoint in the archive
  walden backup advance /backups/monday --repo /backup/wal -o /backups/tuesday --to '2026-11-24 03:00'
  walden backup advance /backups/first --repo /backup/wal --keep daily=7,weekly=5 -o /backups/nightly
      add a later backup to the folder, and remove those of earlier runs that are not the newest of one of the last 7 days or 5 weeks

The new backup is used like one of pg_basebackup, with the WAL from its checkpoint on. No server is contacted. docs/restore.md \
describes it.

Exit status: 0 advanced, or no later checkpoint; 2 wrong usage; 3 the backup or the WAL cannot be used.";

/// Roll base backups forward without a server
#[derive(Args, Debug)]
pub struct BackupArgs {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(Subcommand, Debug)]
enum BackupCommand {
    Advance(AdvanceArgs),
}

/// Runs `walden backup`.
pub fn run(args: &BackupArgs) -> Result<ExitCode> {
    let BackupCommand::Advance(args) = &args.command;
    advance(args)
}

/// Turn a base backup into a later one: replay WAL without a server
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct AdvanceArgs {
    /// The base backup: a folder in plain format, or with -o in tar format. With --keep, the newest of this
    /// one and those in FOLDER is advanced
    #[arg(value_name = "BACKUP", required_unless_present = "keep")]
    base: Option<PathBuf>,

    /// Write the later backup to this folder, which must be missing or empty [default: replace BACKUP]. With
    /// --keep, add it to this folder of backups
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Remove backups that earlier runs added to FOLDER, except for the newest of each of the last periods
    /// with backups: last=N, hourly=N, daily=N, weekly=N, monthly=N, yearly=N
    #[arg(long, value_name = "RULE", requires = "output", conflicts_with = "tablespace_mapping")]
    keep: Option<KeepRule>,

    #[command(flatten)]
    recover: RecoverArgs,
}

fn advance(args: &AdvanceArgs) -> Result<ExitCode> {
    let format = args.recover.format;
    if let (Some(rule), Some(folder)) = (&args.keep, &args.output) {
        let schedule = Schedule { first: args.base.as_deref(), folder, rule, recover: &args.recover };
        let scheduled = schedule.run()?;
        return finish(format, &scheduled);
    }
    // The argument parser requires it without a rule.
    let Some(path) = &args.base else { return Ok(ExitCode::from(USAGE)) };
    if let Some(output) = &args.output {
        walden_recover::expect_free_target(output).map_err(with_hint)?;
        expect_separate_target(path, output)?;
    }
    let base = args.recover.open_base(path)?;
    if args.output.is_none() {
        base.expect_replaceable().map_err(with_hint)?;
    }
    let prepared = args.recover.prepare(base)?;
    finish(format, &advance_to(&args.recover, path, &prepared, args.output.as_deref())?)
}

fn finish(format: Format, document: &impl Serialize) -> Result<ExitCode> {
    if format == Format::Json {
        terminal::print(&terminal::json(document)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the plan, and writes the later backup to a folder or in place, unless no checkpoint follows or only
/// the plan is wanted.
pub(super) fn advance_to(
    recover: &RecoverArgs,
    path: &Path,
    prepared: &Prepared,
    output: Option<&Path>,
) -> Result<Document> {
    let plan = &prepared.plan;
    let shown = output.unwrap_or(path).display().to_string();
    if recover.format == Format::Table {
        let base = path.display().to_string();
        let title = format!("Advance of {} to {}\n", harmless(&base), harmless(&shown));
        terminal::print(&(title + &plan_text(prepared) + &remaining_text(plan)))?;
    }
    warn_of_damage(plan);
    // The new backup still has files whose removal follows its checkpoint.
    let redo = plan.checkpoint.as_ref().map(|checkpoint| checkpoint.fields.redo);
    let is_replayed = |drop: &&EarlyDrop| redo.is_some_and(|redo| drop.lsn < redo);
    warn_of_drops(plan.early_drops.iter().filter(is_replayed));
    let mut document = Document { plan: PlanDocument::new(path, prepared), output: shown, advanced: None };
    let folder = output.map_or_else(|| std::fs::canonicalize(path), |output| Ok(output.to_owned()))?;
    if plan.checkpoint.is_none() && !recover.dry_run {
        // There is nothing to continue.
        if let Some(removed) = walden_recover::remove_leftover(&folder).map_err(with_hint)? {
            let removed = harmless(&removed.display().to_string()).into_owned();
            crate::output::tell(&format!("note: removed {removed}, which an interrupted run left"));
        }
    }
    if plan.checkpoint.is_some() && !recover.dry_run {
        let options = recover.options(Purpose::Backup, prepared);
        report_interruption(&folder)?;
        let started = Instant::now();
        let restored: Restored = with_progress(prepared, |Prepared { base, run, plan, .. }, progress| {
            let recovery = Recovery { run, base, plan, options: &options };
            match output {
                Some(output) => recovery.restore(output, progress),
                None => recovery.advance_in_place(progress),
            }
        })?;
        let seconds = started.elapsed().as_secs_f64();
        if recover.format == Format::Table {
            terminal::print(&format!("Advanced in {}\n", amounts_text(plan, &restored, seconds)))?;
        }
        document.advanced = Some(RestoredDocument::new(&restored, seconds));
    }
    Ok(document)
}

/// Returns lines on the WAL after the checkpoint.
fn remaining_text(plan: &Plan) -> String {
    let mut text = match plan.checkpoint {
        Some(_) => format!("  {} of WAL follow until the target\n", units::bytes(plan.remaining_bytes())),
        None => "  The backup stays as it is: no checkpoint follows its end before the target\n".to_owned(),
    };
    if let Some(unsupported) = &plan.unsupported {
        let _ = writeln!(text, "  Walden does not get past {unsupported}; take a new base backup");
    }
    text
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct Document {
    plan: PlanDocument,
    output: String,
    /// `null` with `--dry-run`, and without a later checkpoint.
    advanced: Option<RestoredDocument>,
}
