//! `walden archive verify`: checks that the archive is intact and complete.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::Archive;
use walden_archive::base::{self, BackupStart};
use walden_archive::encryption::KEYS;
use walden_archive::gaps::HISTORY_HINT;
use walden_archive::replay::{self, Replayed};
use walden_archive::verify::altered::{Altered, Change};
use walden_archive::verify::{
    self, DAMAGE_HINT, KEYS_HINT, UNDELETE_HINT, UNREADABLE_HINT, Verified, VerifyOptions,
};
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;
use walden_source::datadir::DataDir;

use crate::arguments::parse_size;
use crate::place::Place;
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
    place: Place,

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
        let (bar, shown) = progress.get_or_insert_with(|| (Progress::bytes("verify", all), 0));
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
        crate::output::tell(&format!(
            "WARNING: cannot note in the archive that it was verified: {}",
            walden_source::error_text(&error)
        ));
    }
    terminal::show(args.format, || &verified, || table(&verified))?;
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
    replayed.map_err(|error| match error.hint() {
        Some(hint) => anyhow::anyhow!("{}\nhint: {hint}", walden_source::error_text(&error)),
        None => error.into(),
    })
}

/// Describes an object that was deleted or overwritten.
pub fn altered_line(altered: &Altered) -> String {
    let Altered { object, change, version, stored, intact_version, .. } = altered;
    let what = match change {
        Change::Deleted => format!(
            "DELETED: {}: the delete marker {} of {} hides it",
            harmless(object),
            harmless(version),
            harmless(stored)
        ),
        Change::Overwritten => {
            format!(
                "OVERWRITTEN: {}: the version {} of {} has other content",
                harmless(object),
                harmless(version),
                harmless(stored)
            )
        }
    };
    match intact_version {
        Some(intact) => format!("{what}; the version {} is intact", harmless(intact)),
        None => format!("{what}; no version is intact"),
    }
}

fn table(verified: &Verified) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} with {} and {}: {} of WAL in {}, {} records",
        counted(verified.objects, "object"),
        counted(verified.segments, "segment"),
        counted(verified.other_files, "other file"),
        units::bytes(verified.raw_bytes),
        units::bytes(verified.stored_bytes),
        units::count(verified.records)
    );
    if verified.unknown_version_segments > 0 {
        let _ = writeln!(text, "{}", super::list::unknown_version_line(verified.unknown_version_segments));
    }
    for finding in &verified.damaged {
        let _ = writeln!(text, "DAMAGED: {}: {}", finding.object, finding.problem);
    }
    if !verified.damaged.is_empty() {
        let are_keys = verified.damaged.iter().any(|finding| finding.object.starts_with(KEYS));
        let _ = writeln!(text, "  HINT: {}", if are_keys { KEYS_HINT } else { DAMAGE_HINT });
    }
    for altered in &verified.altered {
        let _ = writeln!(text, "{}", altered_line(altered));
    }
    if !verified.altered.is_empty() {
        let _ = writeln!(text, "  HINT: {UNDELETE_HINT}");
    }
    for finding in &verified.unreadable {
        let _ = writeln!(text, "NOT READ: {}: {}", finding.object, finding.problem);
    }
    if !verified.unreadable.is_empty() {
        let objects = counted(verified.unreadable.len() as u64, "object");
        let _ = writeln!(text, "{objects} could not be read\n  HINT: {UNREADABLE_HINT}");
    }
    for gap in &verified.gaps {
        let _ = writeln!(text, "{}", super::gaps::line(gap));
    }
    for history in &verified.missing_histories {
        let _ = writeln!(text, "{}", super::list::missing_history_line(history));
    }
    if !verified.missing_histories.is_empty() {
        let _ = writeln!(text, "  HINT: {HISTORY_HINT}");
    }
    text.push_str(&super::list::backups_without_start(&verified.backups_without_start));
    for minimal in &verified.minimal_wal {
        let _ = writeln!(text, "warning: {minimal}");
    }
    for finding in &verified.warnings {
        let _ = writeln!(text, "warning: {}: {}", finding.object, finding.problem);
    }
    if let (Some(replay), Some(images), Some(different)) =
        (&verified.replay, verified.replayed_images, verified.different)
    {
        let _ = writeln!(
            text,
            "{} records replayed from {} to {} on timeline {}: {} full-page images compared, {different} differ ({} \
             cannot be compared)",
            units::count(replay.records),
            replay.from,
            replay.reached,
            replay.timeline,
            units::count(images),
            units::count(replay.not_compared)
        );
        let wrong = [
            ("DIFFERENT", &replay.differences),
            ("DOES NOT FIT", &replay.misfits),
            ("DAMAGED", &replay.damaged),
        ];
        for (what, lines) in wrong {
            for line in lines {
                let _ = writeln!(text, "{what}: {line}");
            }
        }
    }
    if verified.is_good() {
        let but = if verified.gaps.is_empty() { "" } else { " but those whose absence was acknowledged" };
        let _ = writeln!(text, "Everything is as it was archived, and no segment is missing{but}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use walden_archive::list::BackupWithoutStart;
    use walden_archive::object::Finding;

    use super::*;

    #[test]
    fn progress_that_falls_is_not_shown() {
        let mut shown = 0;
        let more = [3, 7, 5, 7, 9].map(|done| newly_done(&mut shown, done));
        assert_eq!((more, shown), ([3, 4, 0, 0, 2], 9));
    }

    #[test]
    fn what_is_damaged_or_missing_comes_with_what_to_do() {
        let finding = |object: &str| Finding { object: object.to_owned(), problem: "cut off".to_owned() };
        let mut verified = Verified::default();
        verified.damaged = vec![finding("wal/1.wlz"), finding("wal/2.wlz")];
        verified.backups_without_start = vec![BackupWithoutStart {
            backup: "000000010000000000000002.00000028.backup".to_owned(),
            segment: "000000010000000000000002".to_owned(),
            is_acknowledged: false,
        }];
        let text = table(&verified);
        assert!(!verified.is_good());
        for expected in [
            "DAMAGED: wal/2.wlz: cut off\n  HINT: put the object back",
            "acknowledge-gap",
            "MISSING: 000000010000000000000002, in which the base backup of 000000010000000000000002.00000028.backup starts\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(table(&Verified::default()).ends_with("no segment is missing.\n"));
    }
}
