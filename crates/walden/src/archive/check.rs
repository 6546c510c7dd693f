//! `walden archive check`: tests a setup from end to end, or compares the archive with a server's files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use walden_archive::against;
use walden_archive::push::PushOptions;
use walden_archiving::check::{self, Setup};
use walden_archiving::server_files::SqlServer;
use walden_archiving::{other_writer, text};

use super::program;
use super::server::ReceivingArgs;
use crate::FOUND;
use crate::place::PlaceArgs;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive check --config /etc/walden/walden.toml
      check the configuration, and write and read back a test segment
  walden archive check --data /var/lib/postgresql/18/main
      also check that the archive is that server's, and which files wait to be archived
  walden archive check --dsn 'host=/run/postgresql dbname=postgres user=postgres' --switch
      also check the server's settings and statistics, and that its WAL arrives after pg_switch_wal()
  walden archive check --dsn 'host=db1 user=postgres' --spool /var/lib/walden/spool
      the same, with walden receive as the archiver instead of the server's archiving settings
  walden archive check --against 'host=standby1 user=postgres'
      list the complete files of the server's pg_wal that the archive lacks, and change nothing
  walden archive check --against 'host=standby1 user=postgres' --repair
      archive them, after the same checks as at a push

The test segment is stored under probe/, and removed afterwards.

After a failover, the archive can have a gap that no server reports: a standby marks received segments as archived, because its primary \
should have archived them. --against reads everything by SQL. The user needs pg_monitor, and also pg_read_server_files to read files: for \
--repair, for histories and the first waiting file, and to compare contents. Nothing is archived from a server whose WAL \
differs from the archive's: a clone, or a second server that was promoted to the same timeline.

Exit status: 0 no problems (there may be warnings), or nothing is missing any more; 1 problems, or files are missing; 3 with --against, \
the server or the archive could not be read.";

/// Test a setup from end to end, or compare the archive with a server's pg_wal and fill gaps
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Data directory of the server [default: the working directory, if it is one]
    #[arg(long, visible_alias = "pgdata", value_name = "FOLDER")]
    data: Option<PathBuf>,

    /// Connection to the server: a URL or `host=... user=...`
    #[arg(long, value_name = "DSN")]
    dsn: Option<String>,

    #[command(flatten)]
    receiving: ReceivingArgs,

    /// Switch to a new segment on the server and wait until the previous one is in the archive
    #[arg(long, requires = "dsn")]
    switch: bool,

    /// Seconds to wait for that segment
    #[arg(long, value_name = "N", default_value_t = 60, requires = "switch")]
    wait: u64,

    /// Instead of the other checks, compare the archive with the pg_wal of a server of the cluster: a libpq
    /// connection string or URL
    #[arg(long, value_name = "DSN", conflicts_with_all = ["data", "dsn", "spool"])]
    against: Option<String>,

    /// Archive the missing files
    #[arg(long, requires = "against")]
    repair: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive check`.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    if let Some(dsn) = &args.against {
        return run_against(args, dsn);
    }
    let report = check::check(&Setup {
        place: &args.place.for_server(args.data.as_deref()),
        data: args.data.as_deref(),
        dsn: args.dsn.as_deref(),
        receiving: &args.receiving.options(),
        switch: args.switch.then(|| Duration::from_secs(args.wait)),
        program: &program(),
    });
    terminal::show(args.format, || &report, || report.text())?;
    Ok(if report.failed > 0 { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

/// Compares the archive with a server's files.
fn run_against(args: &CheckArgs, dsn: &str) -> Result<ExitCode> {
    let (archive, section) = args.place.open()?;
    let mut server = SqlServer::connect(dsn)?;
    let options = PushOptions::default()
        .level(section.level.unwrap_or(PushOptions::default().level))
        .accept_unknown_versions(section.accept_unknown_versions);
    let compared = against::compare(&archive, &mut server, args.repair.then_some(&options))?;
    let promoted = match (compared.branch, compared.written.parse()) {
        (Some(branch), Ok(written)) => {
            Some(other_writer::describe_branch(&archive, branch, compared.timeline, written)?)
        }
        _ => None,
    };
    let table = || text::against::table(&compared, promoted.as_ref(), args.repair);
    terminal::show(args.format, || &compared, table)?;
    Ok(if compared.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}
