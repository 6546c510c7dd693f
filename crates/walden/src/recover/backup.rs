//! `walden backup`: base backups are stored in the archive, and become later ones.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use walden_recover::KeepRule;

use super::RecoverArgs;
use super::advance::advance_to;
use super::create::{CreateArgs, create};
use super::restore::expect_separate_target;
use super::schedule::Schedule;
use super::store::advance_stored;
use crate::USAGE;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden backup advance /backups/main --repo /backup/wal
      replace the backup by one of the last checkpoint in the archive
  walden backup advance /backups/monday --repo /backup/wal -o /backups/tuesday --to '2026-11-24 03:00'
  walden backup advance /backups/first --repo /backup/wal --keep daily=7,weekly=5 -o /backups/nightly
      add a later backup to the folder, and remove those of earlier runs that are not the newest of one of the last 7 days or 5 weeks
  walden backup advance latest --repo /backup/wal --store --work /var/tmp/advance
      add a later backup than the newest one to the archive: only changed pieces are stored

The new backup is used like one of pg_basebackup, with the WAL from its checkpoint on. No server is contacted. docs/restore.md \
describes it.

Exit status: 0 advanced, or no later checkpoint; 2 wrong usage; 3 the backup or the WAL cannot be used.";

/// Store base backups in the archive, and roll base backups forward without a server
#[derive(Args, Debug)]
pub struct BackupArgs {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(Subcommand, Debug)]
enum BackupCommand {
    Create(CreateArgs),
    Advance(Box<AdvanceArgs>),
}

/// Runs `walden backup`.
pub fn run(args: &BackupArgs) -> Result<ExitCode> {
    match &args.command {
        BackupCommand::Create(args) => create(args),
        BackupCommand::Advance(args) => advance(args),
    }
}

/// Turn a base backup into a later one: replay WAL without a server
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct AdvanceArgs {
    /// The base backup: a folder in plain format, or with -o in tar format, or the name of one in the archive
    /// (latest for the newest). With --keep, the newest of this
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

    /// Replace BACKUP although incremental backups, which become useless, depend on it
    #[arg(long, conflicts_with = "output")]
    give_up_incrementals: bool,

    /// Store the later backup in the archive. BACKUP is the name of one in the archive, which stays
    #[arg(long, requires = "work", conflicts_with_all = ["output", "keep", "give_up_incrementals", "tablespace_mapping"])]
    store: bool,

    /// The folder in which --store makes the later backup, and which it removes in the end. It must be
    /// missing or empty, and needs the space of the database
    #[arg(long, value_name = "FOLDER", requires = "store")]
    work: Option<PathBuf>,

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
    if let Some(work) = &args.work {
        return finish(format, &advance_stored(&args.recover, path, work)?);
    }
    if let Some(output) = &args.output {
        walden_recover::expect_free_target(output)?;
        expect_separate_target(path, output)?;
    }
    let base = args.recover.open_base(path)?;
    if args.output.is_none() {
        base.expect_replaceable()?;
        if !args.give_up_incrementals {
            args.recover.expect_no_dependents(&base)?;
        }
    }
    let prepared = args.recover.prepare(base, None)?;
    finish(format, &advance_to(&args.recover, path, &prepared, args.output.as_deref())?)
}

fn finish(format: Format, document: &impl Serialize) -> Result<ExitCode> {
    if format == Format::Json {
        terminal::print(&terminal::json(document)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
