//! `walden archive lock`: extends the locks of everything in the archive.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use walden_archive::lock;
use walden_archiving::configuration::FILE;
use walden_archiving::text;

use crate::FOUND;
use crate::place::PlaceArgs;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive lock --repo s3://backups/main
      extend the locks of all objects that end within half of lock_days
  walden archive prune --keep-backups 4 --backups /backup/base --apply
      extend only the locks of the WAL that the kept base backups need, and remove the rest once its locks have ended

A lock that ends within half of lock_days (walden.toml, or else the bucket's default retention) ends after all of lock_days then. Run either \
command each day: WAL is needed for longer than it was locked at its push, as long as a base backup before it is kept. A lock is never \
shortened. Objects whose segments are in a pack too, earlier generations of keys, results of verify, and parts of the newest segment keep \
their locks as they are.

Exit status: 0 all locks end late enough; 1 some could not be extended; 3 the archive could not be read.";

/// Extend the locks of everything in an archive on S3 with Object Lock
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LockArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive lock`.
pub fn run(args: &LockArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    archive.expect_archive()?;
    let Some(rule) = lock::effective_rule(&archive)? else {
        bail!(
            "cannot extend locks in {}: expected a bucket of S3 with a default retention, or with lock_days in {FILE}",
            archive.store().location()
        );
    };
    let extended = lock::extend(&archive, rule, |_| true)?;
    terminal::show(args.format, || &extended, || text::locks::text(&extended))?;
    Ok(if extended.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}
