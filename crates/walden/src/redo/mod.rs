//! `walden redo`: replays WAL into pages.

pub mod check;
mod replay;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use walden_source::inventory::Inventory;
use walden_source::replay_check::Material;
use walden_source::scan::Damage;

use crate::arguments::parse_size;
use crate::sources::{self, SourceRange};
use crate::{DAMAGED, memory, terminal};

/// Replay WAL into pages
#[derive(Args, Debug)]
pub struct RedoArgs {
    #[command(subcommand)]
    command: RedoCommand,
}

#[derive(Subcommand, Debug)]
enum RedoCommand {
    Check(check::CheckArgs),
    Replay(replay::ReplayArgs),
}

/// Runs the command.
pub fn run(args: &RedoArgs) -> Result<ExitCode> {
    match &args.command {
        RedoCommand::Check(args) => check::run(args),
        RedoCommand::Replay(args) => replay::run(args),
    }
}

/// Sources, base backup and memory of a replay.
#[derive(Args, Debug)]
struct Inputs {
    /// Segments, folders of segments, or archives of `walden archive` (a folder, or s3://BUCKET/PREFIX)
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// Follow the WAL history that ends on this timeline, including its ancestors [default: of an archive the
    /// newest; otherwise each timeline separately]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// A base backup in plain format, or a stopped server's data directory, from which the WAL continues:
    /// replay starts with its pages
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default:
    /// a quarter of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Threads: one replays; any others read and decompress ahead [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// Prints damage and unreadable files. Returns the exit status for them, if there are any.
fn report(inventory: &Inventory, damages: &[Damage]) -> Option<ExitCode> {
    let has_unreadable = sources::report_unreadable(inventory);
    for damage in damages {
        crate::output::report_diagnostic(damage);
    }
    (!damages.is_empty() || has_unreadable).then_some(ExitCode::from(DAMAGED))
}

impl Inputs {
    /// Opens the sources. The inventory keeps the unreadable files.
    fn open(&self) -> Result<(Inventory, Material)> {
        let mut inventory = sources::open(&self.sources, &SourceRange::all(self.timeline))?;
        sources::note_omitted_after_base(&inventory, self.base.as_deref());
        let memory_bytes = self.memory.unwrap_or_else(memory::quarter_of_machine);
        let threads = self.threads.map_or_else(terminal::cores, usize::from);
        let runs = std::mem::take(&mut inventory.runs);
        let material = Material::new(runs, self.base.as_deref(), memory_bytes, threads)?;
        Ok((inventory, material))
    }
}
