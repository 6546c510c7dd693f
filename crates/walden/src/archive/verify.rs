//! `walden archive verify`: checks that the archive is intact and complete.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::Archive;
use walden_archive::base::{self, BackupStart};
use walden_archive::replay::{self, Replayed};
use walden_archive::verify::{self, VerifyOptions};
use walden_archiving::text;
use walden_source::datadir::DataDir;

use crate::arguments::parse_size;
use crate::place::PlaceArgs;
use crate::progress::Progress;
use crate::terminal::{self, Format};
use crate::{FOUND, memory};

const EXAMPLES: &str = "\
Examples:
  walden archive verify --repo /backup/main
      read and decode every object, compare every record's checksum, and follow the WAL from segment to segment
  walden archive verify --fast --format json
      compare the stored checksums, and decode nothing
  walden archive verify --replay --base /backups/monday
      also replay WAL from a base backup, and compare each full-page image with the replayed page

In a bucket that keeps versions, objects that another user deleted or overwrote are listed with their intact versions; \
walden archive repair --undelete restores these.

Exit status: 0 everything is intact and nothing is missing; 1 an object is damaged, deleted or overwritten, or could not be read, or a segment, the \
history of a timeline, or the first segment of a base backup is missing; 3 the archive could not be listed.";

/// Check that all archived files are intact, and that nothing is missing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Compare stored checksums only
    #[arg(long)]
    fast: bool,

    /// Also replay WAL from a base backup (--base), and compare each full-page image with the replayed page
    #[arg(long, requires = "base", conflicts_with = "fast")]
    replay: bool,

    /// Base backup: a folder or tar files of pg_basebackup, or the data directory of a stopped server
    #[arg(long, value_name = "BACKUP", requires = "replay")]
    base: Option<PathBuf>,

    /// Replay WAL of this timeline and its ancestors [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "replay")]
    timeline: Option<u32>,

    /// Memory for pages, such as 512MB or 4GB; excess pages go to a temporary file (TMPDIR) [default: a
    /// quarter of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "replay")]
    memory: Option<usize>,

    /// Number of objects to read in parallel, and of threads that replay [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive verify`.
pub fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let options =
        VerifyOptions::default().fast(args.fast).threads(args.threads.unwrap_or_else(terminal::cores));
    let progress: Mutex<Option<(Progress, u64)>> = Mutex::new(None);
    let verified = verify::verify(&archive, options, &|done, all| {
        let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (bar, shown) = progress.get_or_insert_with(|| (Progress::count("verify", all), 0));
        bar.advance(newly_done(shown, done));
    });
    let mut verified = verified?;
    if let Some((bar, _)) = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        bar.finish();
    }
    if let Some(base) = args.base.as_deref().filter(|_| args.replay) {
        verified.add_replay(&replay(&archive, base, args)?);
    }
    // A user with read-only access can verify too.
    if let Err(error) = verify::record(&archive, &verified, args.fast) {
        crate::output::print_line(&format!(
            "WARNING: cannot note in the archive that it was verified: {}",
            walden_source::error_text(&error)
        ));
    }
    terminal::show(args.format, || &verified, || text::verification::table(&verified))?;
    Ok(if verified.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Returns the progress since the last call. Progress can fall for a while, for example if objects are packed
/// or pruned in the meantime.
fn newly_done(shown: &mut u64, done: u64) -> u64 {
    let more = done.saturating_sub(*shown);
    *shown += more;
    more
}

/// Replays WAL from a base backup; a backup in tar format is unpacked into a temporary folder.
fn replay(archive: &Archive, path: &Path, args: &VerifyArgs) -> Result<Replayed> {
    let _lock = base::lock(path)?;
    let unpacked = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = match base::is_tar(path) {
        true => {
            base::unpack(path, unpacked.path())?;
            unpacked.path()
        }
        false => path,
    };
    BackupStart::read(folder)?;
    let options = replay::Options::new(args.memory.unwrap_or_else(memory::quarter_of_machine))
        .timeline(args.timeline)
        .threads(args.threads.unwrap_or_else(terminal::cores));
    let mut bar: Option<(Progress, u64)> = None;
    let replayed = replay::replay(archive, &DataDir::open(folder)?, options, &mut |done, all| {
        let (bar, shown) = bar.get_or_insert_with(|| (Progress::bytes("replaying", all), 0));
        bar.advance(newly_done(shown, done));
    });
    if let Some((bar, _)) = bar {
        bar.finish();
    }
    Ok(replayed?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_that_falls_is_not_shown() {
        let mut shown = 0;
        let more = [3, 7, 5, 7, 9].map(|done| newly_done(&mut shown, done));
        assert_eq!((more, shown), ([3, 4, 0, 0, 2], 9));
    }
}
