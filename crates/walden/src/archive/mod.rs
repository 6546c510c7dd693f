//! `walden archive`: stores WAL in an archive, restores it, and checks that the archive is complete.

mod check;
mod copy;
mod drill;
mod export;
mod exporter;
mod gaps;
pub mod get;
mod import;
mod init;
#[cfg(feature = "encryption")]
mod key;
mod list;
mod lock;
mod log;
mod pack;
mod prune;
mod push;
mod repair;
mod serve;
mod server;
mod status;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use walden_archive::archive::ArchiveError;

use crate::{FOUND, output};

pub use get::{PREFETCH_FAILED, TROUBLE};
pub use log::LogOptions;
pub use push::{ANSWER_WITHIN, Effort, complain};

const EXAMPLES: &str = "\
Examples:
  walden archive init --repo /backup/main
      write walden.toml and print the lines for postgresql.conf
  walden archive check --dsn 'host=/run/postgresql user=postgres' --switch
      test the set-up from end to end, with the server's own WAL
  archive_command = 'walden archive push %p'
  restore_command = 'walden archive get %f \"%p\"'
  walden archive serve --data /var/lib/postgresql/18/main
      archive for archive_library = 'walden_archive', without a process per file
  walden archive list --repo s3://backups/main
      timelines, gaps, sizes, and which moments can be restored to
  walden archive verify
      read and check everything
  walden archive pack
      runs of segments into packs: fewer objects, and smaller
  walden archive prune --keep-backups 2
      what no kept base backup needs; with --apply, it is removed
  walden archive drill --base /backups/monday
      try a restore out

The archive is named by --repo, by WALDEN_REPO, or by walden.toml in the working directory (for PostgreSQL, the data directory) \
or in /etc/walden.";

/// Archive WAL: compressed, verified, never overwritten
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ArchiveArgs {
    #[command(subcommand)]
    command: ArchiveCommand,
}

impl ArchiveArgs {
    /// Whether the command is `get`, whose exit status tells PostgreSQL whether the archive has a file.
    pub fn is_get(&self) -> bool {
        matches!(self.command, ArchiveCommand::Get(_))
    }
}

#[derive(Subcommand, Debug)]
enum ArchiveCommand {
    Check(check::CheckArgs),
    Copy(copy::CopyArgs),
    Init(init::InitArgs),
    #[cfg(feature = "encryption")]
    Key(key::KeyArgs),
    Push(push::PushArgs),
    Serve(serve::ServeArgs),
    Get(get::GetArgs),
    Export(Box<export::ExportArgs>),
    #[command(hide = true)]
    Prefetch(get::PrefetchArgs),
    List(list::ListArgs),
    Lock(lock::LockArgs),
    Pack(pack::PackArgs),
    Prune(prune::PruneArgs),
    Verify(verify::VerifyArgs),
    Import(import::ImportArgs),
    AcknowledgeGap(gaps::AcknowledgeArgs),
    Status(status::StatusArgs),
    Exporter(exporter::ExporterArgs),
    Drill(Box<drill::DrillArgs>),
    Repair(repair::RepairArgs),
}

/// Returns the path of this program.
pub fn program() -> String {
    std::env::current_exe().map_or("walden".to_owned(), |path| path.display().to_string())
}

/// Runs `walden archive`.
pub fn run(args: &ArchiveArgs) -> Result<ExitCode> {
    let result = run_command(&args.command);
    let Err(error) = &result else { return result };
    let Some(ArchiveError::Empty(_)) = error.downcast_ref() else { return result };
    // A new archive has no problems to report.
    let status = match &args.command {
        ArchiveCommand::List(_)
        | ArchiveCommand::Pack(_)
        | ArchiveCommand::Prune(_)
        | ArchiveCommand::Verify(_) => ExitCode::SUCCESS,
        ArchiveCommand::Export(_) => ExitCode::from(FOUND),
        _ => return result,
    };
    output::print_line(&error.to_string());
    Ok(status)
}

fn run_command(command: &ArchiveCommand) -> Result<ExitCode> {
    match command {
        ArchiveCommand::Check(args) => check::run(args),
        ArchiveCommand::Copy(args) => copy::run(args),
        ArchiveCommand::Init(args) => init::run(args),
        #[cfg(feature = "encryption")]
        ArchiveCommand::Key(args) => key::run(args),
        ArchiveCommand::Push(args) => push::run(args),
        ArchiveCommand::Serve(args) => serve::run(args),
        ArchiveCommand::Get(args) => Ok(get::run(args)),
        ArchiveCommand::Export(args) => export::run(args),
        ArchiveCommand::Prefetch(args) => Ok(get::run_prefetch(args)),
        ArchiveCommand::List(args) => list::run(args),
        ArchiveCommand::Lock(args) => lock::run(args),
        ArchiveCommand::Pack(args) => pack::run(args),
        ArchiveCommand::Prune(args) => prune::run(args),
        ArchiveCommand::Verify(args) => verify::run(args),
        ArchiveCommand::Import(args) => import::run(args),
        ArchiveCommand::AcknowledgeGap(args) => gaps::run(args),
        ArchiveCommand::Status(args) => status::run(args),
        ArchiveCommand::Exporter(args) => exporter::run(args),
        ArchiveCommand::Drill(args) => drill::run(args),
        ArchiveCommand::Repair(args) => repair::run(args),
    }
}
