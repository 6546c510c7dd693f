//! `walden archive drill`: tests a restore on a copy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::base::BackupStart;
use walden_archive::drill::{self, DrillError, DrillOptions, RollForward, Step, StoredBase, Target};
use walden_archive::list;
use walden_archive::recovery::{RecoveryError, RecoveryStart, recovery_to};
use walden_archive::{Archive, base_backups};
use walden_archiving::text;
use walden_explain::moment::Moment;
use walden_format::diagnostic::Hint;
use walden_format::lsn::Timeline;
use walden_source::configuration::Configuration;

use crate::place::PlaceArgs;
use crate::progress::Progress;
use crate::recover::stored;
use crate::terminal::{self, Format};
use crate::{FOUND, memory, output};

const EXAMPLES: &str = "\
Examples:
  walden archive drill --repo /backup/main
      restore the newest base backup of the archive, recover to the end of WAL, run pg_amcheck, count all rows
  walden archive drill --base /backups/monday --until '2026-11-20 10:00'
  walden archive drill --base /backups/monday --query 'SELECT max(id) FROM orders' --database shop
      query the restored data

The backup is copied into a temporary folder (TMPDIR, or --folder), which needs as much space as the database. The server listens only \
on a socket in that folder, archives nothing, and connects to nothing. Tablespaces that the WAL creates are in that folder too, and \
never where the original has them. The folder is removed at the end.

Exit status: 0 recovered, and the checks found no problem; 1 the checks found a problem, or recovery failed or ended at a missing \
segment; 2 wrong usage; 3 the archive or the backup could not be used.";

/// Test a restore: recover a copy of a base backup, check it, and report its duration and the time it reached
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DrillArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Base backup: the name of one in the archive, a folder or tar files of pg_basebackup, or the data
    /// directory of a stopped server [default: the newest one in the archive]
    #[arg(long, value_name = "BACKUP")]
    base: Option<PathBuf>,

    /// Recover to this time, such as 2026-11-20 10:00 (local time unless it has a zone) [default: end of WAL]
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, conflicts_with = "restore_point")]
    until: Option<Moment>,

    /// Recover to this restore point
    #[arg(long, value_name = "NAME")]
    restore_point: Option<String>,

    /// Follow this timeline [default: the latest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<Timeline>,

    /// Folder of the server's programs [default: found in PATH or /usr/lib/postgresql]
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,

    /// Folder for temporary files [default: the system's]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// A superuser of the cluster
    #[arg(long, value_name = "NAME", default_value = "postgres")]
    user: String,

    /// Print the result of a query in --database instead of counting all rows; repeatable
    #[arg(long, value_name = "SQL")]
    query: Vec<String>,

    /// Database for --query
    #[arg(long, value_name = "NAME", default_value = "postgres")]
    database: String,

    /// Do not run pg_amcheck
    #[arg(long)]
    no_amcheck: bool,

    /// A server setting, such as shared_buffers=4GB or shared_preload_libraries=...; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,

    /// Replay WAL with Walden up to the last checkpoint before the target, as walden restore does; the server
    /// replays the rest
    #[arg(long)]
    roll_forward: bool,

    /// Time limit for recovery in seconds
    #[arg(long, value_name = "N")]
    timeout: Option<u64>,

    /// How to print it; docs/json.md has the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive drill`.
pub fn run(args: &DrillArgs) -> Result<ExitCode> {
    if let Err(error) = drill::expect_allowed_settings(&args.set) {
        crate::wrong_usage(&error.to_string());
    }
    let (archive, _) = args.place.open()?;
    archive.identity()?;
    let stored = match stored::for_drill(&archive, args.base.as_deref())? {
        None => None,
        Some(backup) => {
            let files = stored::open(&args.place, &archive, &backup)?;
            Some(StoredBase { start: base_backups::open_start(&backup), files })
        }
    };
    let base = match (&stored, &args.base) {
        (None, Some(base)) => base.clone(),
        (stored, _) => stored.as_ref().map(|stored| stored.files.name.clone()).unwrap_or_default(),
    };
    let start = match &stored {
        Some(stored) => Some(stored.start.clone()),
        None => BackupStart::read(&base).ok(),
    };
    if let Some(error) = find_unreachable(&archive, args, start) {
        output::print_line(&format!("error: {error}"));
        let hints = [error.hint(), other_timeline_hint(&archive, args.timeline).map(Hint::from)];
        hints.into_iter().flatten().for_each(|hint| output::print_line(&format!("hint: {hint}")));
        return Ok(ExitCode::from(FOUND));
    }
    let target = match (&args.until, &args.restore_point) {
        (Some(moment), _) => Target::Time(moment.for_settings()),
        (None, Some(name)) => Target::RestorePoint(name.clone()),
        (None, None) => Target::End,
    };
    let (threads, memory_bytes) = (terminal::cores(), memory::quarter_of_machine());
    let options = DrillOptions::new(base.clone(), target)
        .stored(stored)
        .roll_forward(args.roll_forward.then_some(RollForward { threads, memory_bytes }))
        .bin(args.bin.clone())
        .folder(args.folder.clone())
        .timeline(args.timeline)
        .restore_command(restore_command(&args.place)?)
        .user(args.user.clone())
        .database(args.database.clone())
        .settings(args.set.clone())
        .original_libraries(original_libraries(&base))
        .queries(args.query.clone())
        .should_amcheck(!args.no_amcheck)
        .timeout(args.timeout.map(Duration::from_secs));
    let segment = archive.segment_size()?.bytes();
    let mut steps = Steps { bar: None, segment };
    let result = drill::drill(&archive, &options, &mut |step| steps.show(step));
    steps.end();
    let drill = match result {
        Ok(drill) => drill,
        Err(error) => {
            let is_recovery_failure = error.is_recovery_failure();
            let hint = timeline_hint(&archive, &options, &error);
            output::report(&error.into());
            if let Some(hint) = hint {
                output::print_line(&format!("hint: {hint}"));
            }
            return Ok(ExitCode::from(if is_recovery_failure { FOUND } else { crate::DAMAGED }));
        }
    };
    terminal::show(args.format, || &drill, || text::drill::table(&drill))?;
    Ok(if drill.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Returns a hint if a time or restore point that recovery did not find may be on another timeline.
fn timeline_hint(archive: &Archive, options: &DrillOptions, error: &DrillError) -> Option<&'static str> {
    // No timeline has an unknown restore point.
    let may_be_elsewhere = matches!(error, DrillError::RecoveryFailed { .. });
    if options.target == Target::End || options.timeline.is_some() || !may_be_elsewhere {
        return None;
    }
    other_timeline_hint(archive, options.timeline)
}

/// Returns why recovery cannot stop at the target, if the archive shows it. The server would report it only
/// after the backup was copied and all WAL replayed. It still reports the reasons that the archive does not
/// show. Warns of files that recovery removes before the commit of a drop.
fn find_unreachable(
    archive: &Archive,
    args: &DrillArgs,
    start: Option<BackupStart>,
) -> Option<RecoveryError> {
    let moment = args.until.as_ref()?;
    // --set may set another target or timeline.
    if args.set.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("recovery_target")) {
        return None;
    }
    let start = start?;
    let own = &archive.identity().ok()?.system_identifier;
    if start.system_identifier.is_some_and(|found| found.to_string() != *own) {
        return None;
    }
    let recovery = recovery_to(archive, RecoveryStart::from(&start), args.timeline, moment.micros());
    let error = match recovery {
        Ok(recovery) => {
            recovery.early_drops.iter().for_each(|drop| output::print_line(&format!("warning: {drop}")));
            return None;
        }
        Err(error) => error,
    };
    matches!(error, RecoveryError::Unreachable { .. } | RecoveryError::MinimalWal { .. }).then_some(error)
}

/// Returns a hint if recovery followed the newest of several timelines.
fn other_timeline_hint(archive: &Archive, followed: Option<Timeline>) -> Option<&'static str> {
    let newest = list::newest_segment(archive).ok()??;
    (followed.is_none() && newest.timeline > 1).then_some(
        "recovery followed the newest timeline; --timeline names the one under which walden archive list shows the time or restore point",
    )
}

/// Returns the libraries that the original server loads, if a backup in plain format has its settings.
fn original_libraries(base: &Path) -> Option<String> {
    let configuration = Configuration::read(base);
    configuration.get("shared_preload_libraries").filter(|value| !value.is_empty()).map(str::to_owned)
}

/// Returns a command that runs this program with the same archive, from any working directory.
fn restore_command(place: &PlaceArgs) -> Result<Vec<OsString>> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    // A drill ends recovery before a gap and reports the gap itself.
    let mut command = vec![program.into_os_string(), "archive".into(), "get".into(), "--ignore-gaps".into()];
    command.extend(place.absolute_arguments()?);
    Ok(command)
}

/// A progress bar for each step.
struct Steps {
    bar: Option<(&'static str, Progress, u64)>,
    segment: u64,
}

impl Steps {
    fn show(&mut self, step: Step) {
        let (what, done, total) = match step {
            Step::Copied(bytes) => ("copying", bytes, bytes),
            Step::Replayed(done, total) => ("replaying", done, total),
            Step::Restored(asked, segments) => {
                ("recovering", asked.min(segments) * self.segment, segments * self.segment)
            }
            Step::Checking => return self.end(),
        };
        if self.bar.as_ref().is_none_or(|(of, _, _)| *of != what) {
            self.end();
            self.bar = Some((what, Progress::bytes(what, total), 0));
        }
        if let Some((_, bar, shown)) = &mut self.bar {
            if step == Step::Copied(done) && *shown > 0 {
                bar.lengthen(done.saturating_sub(*shown));
            }
            bar.advance(done.saturating_sub(*shown));
            *shown = done.max(*shown);
        }
    }

    fn end(&mut self) {
        if let Some((_, bar, _)) = self.bar.take() {
            bar.finish();
        }
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found \"{text}\""))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
