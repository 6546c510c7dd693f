//! `walden redo check`: compares replayed pages with PostgreSQL's.

#[cfg(feature = "demo")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use walden_report::redo::{document, table};
use walden_source::inventory::Inventory;
use walden_source::replay_check::Outcome;

use super::Inputs;
use crate::FOUND;
use crate::progress::Progress;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden redo check /archive/wal
      replay, and compare each full-page image with the replayed page
  walden redo check --base /backup/base --data /var/lib/postgresql/18/main /archive/wal
      start with the pages of a base backup, and compare the replayed pages with the files of a stopped server
  walden redo check --memory 512MB /archive/wal
      as the first example, with at most 512 MB of memory for pages; other pages are in a temporary file

Exit status: 0 all is equal, 1 a difference, 2 wrong usage, 3 input unreadable or damaged.";

/// Replay WAL and compare the pages with PostgreSQL's: with every full-page image, and with data files
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    inputs: Inputs,

    /// The data directory of the server that wrote the WAL, stopped cleanly: compare its pages with the
    /// replayed pages as of its shutdown
    #[arg(long = "data", visible_alias = "pgdata", value_name = "DIR")]
    pgdata: Option<PathBuf>,

    /// Output format; docs/json.md describes the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Checks the WAL of a workload, given its data directory from before and after.
#[cfg(feature = "demo")]
pub fn check_kept(wal: &Path, base: &Path, data: &Path) -> Result<Outcome> {
    let inputs = Inputs {
        sources: vec![wal.to_owned()],
        timeline: None,
        base: Some(base.to_owned()),
        memory: None,
        threads: None,
    };
    let args = CheckArgs { inputs, pgdata: Some(data.to_owned()), format: Format::Table };
    let (_, outcome) = check(&args)?;
    if let Some(damage) = outcome.damages.first() {
        anyhow::bail!("{damage}");
    }
    Ok(outcome)
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (inventory, outcome) = check(args)?;
    terminal::show(args.format, || document(&outcome), || table(&outcome, terminal::look()))?;
    let code = if outcome.different() > 0 { ExitCode::from(FOUND) } else { ExitCode::SUCCESS };
    Ok(super::report(&inventory, &outcome.damages).unwrap_or(code))
}

fn check(args: &CheckArgs) -> Result<(Inventory, Outcome)> {
    let (inventory, material) = args.inputs.open()?;
    let mut progress = Progress::bytes("replaying", material.bytes());
    let outcome = material.check(args.pgdata.as_deref(), |bytes| progress.advance(bytes))?;
    progress.finish();
    Ok((inventory, outcome))
}
