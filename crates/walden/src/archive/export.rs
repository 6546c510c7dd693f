//! `walden archive export`: writes archived files as plain files: all, a range, or those for recovery to a
//! time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use clap::Args;
use walden_archive::Archive;
use walden_archive::base::BackupStart;
use walden_archive::export::{self, Exported, Plan, Selection};
use walden_archive::gaps::Gap;
use walden_archive::get;
use walden_archive::name::ArchivedFile;
use walden_archive::recovery::{RecoveryError, RecoveryStart, recovery_to};
use walden_archive::verify::DAMAGE_HINT;
use walden_archiving::text;
use walden_explain::moment::Moment;
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_output::Inputs;

use crate::place::PlaceArgs;
use crate::progress::Progress;
use crate::terminal::{self, Format};
use crate::{FOUND, output};

const EXAMPLES: &str = "\
Examples:
  walden archive export --repo /backup/main -o /tmp/wal
      everything: segments of all timelines, histories, backup history files
  walden archive export --from 000000010000000000000007 --to 0/9000000 --timeline 2 -o /tmp/wal
      a range, by segments or LSNs, along timeline 2 and its ancestors
  walden archive export --until '2026-11-20 10:00' --base /backups/monday -o /tmp/wal
      the files that recovery from a base backup to a time reads

An existing file with the same content is left as it is, so an interrupted export can be run again to continue. A file with other \
content is never overwritten. Damaged files are skipped and reported, and all others are written.

Exit status: 0 all files were exported, except segments in acknowledged gaps; 1 other files are missing in the archive, it has no \
segment of the timeline or range, or the time cannot be reached; 2 wrong usage; 3 the archive or some of its objects could not be \
read, or a file could not be written.";

/// Write archived files as plain files under PostgreSQL's names
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    #[command(flatten)]
    pub(super) place: PlaceArgs,

    /// Output folder; created if missing
    #[arg(short, long, value_name = "DIR")]
    pub(super) output: PathBuf,

    /// First segment: its name, or an LSN in it
    #[arg(long, value_name = "SEGMENT|LSN", value_parser = parse_position)]
    pub(super) from: Option<Position>,

    /// Last segment: its name, or an LSN in it
    #[arg(long, value_name = "SEGMENT|LSN", value_parser = parse_position, conflicts_with = "until")]
    pub(super) to: Option<Position>,

    /// Only WAL of this timeline and its ancestors [default: all timelines; with --until the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) timeline: Option<Timeline>,

    /// Files that recovery to this time reads, such as 2026-11-20 10:00 (local time unless it has a zone);
    /// needs --from or --base
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    pub(super) until: Option<Moment>,

    /// Base backup from which recovery starts: its folder or tar file, backup_label, backup_manifest, or the
    /// name of a backup history file in the archive
    #[arg(long, value_name = "BACKUP", requires = "until", conflicts_with = "from")]
    pub(super) base: Option<PathBuf>,

    /// Number of objects to read in parallel [default: one per core]
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,

    /// How to print it; docs/json.md has the JSON
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// Error for a time without a start of recovery.
pub(super) const START_NEEDED: &str =
    "--until needs to know where recovery starts: --base BACKUP, or --from SEGMENT";

/// A segment, or a position in one.
#[derive(Clone, Copy, Debug)]
pub enum Position {
    /// By name.
    Segment(SegmentName),
    /// By LSN.
    Lsn(Lsn),
}

/// Runs `walden archive export`.
pub fn run(args: &ExportArgs) -> Result<ExitCode> {
    walden_archive::clean_up_on_signals();
    let (archive, section) = args.place.open()?;
    // Any file name in the folder serves for this check.
    output::expect_no_input(&args.output.join("segment"), &Inputs::default())?;
    let threads = args.threads.or(section.threads).unwrap_or_else(terminal::cores);
    if let Some(moment) = &args.until {
        return export_until(&archive, args, moment, threads);
    }
    let number = |position| number_of(&archive, position);
    let selection = Selection {
        timeline: args.timeline,
        from: args.from.map(number).transpose()?,
        to: args.to.map(number).transpose()?,
    };
    if selection.from.zip(selection.to).is_some_and(|(from, to)| from > to) {
        crate::wrong_usage("--from is after --to: expected a first segment at or before the last segment");
    }
    let plan = Plan::select(&archive, &selection)?;
    let exported = write_files(&archive, &plan, &args.output, threads)?;
    let document = || text::export::document(&plan, &exported, &args.output);
    terminal::show(args.format, document, || text::export::table(&plan, &exported, &args.output))?;
    expect_undamaged(&exported)?;
    let is_complete = plan.segments() > 0 && !plan.gaps.iter().any(Gap::is_new);
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Exports the files for recovery to a time. The exit status shows whether recovery can reach the time.
fn export_until(archive: &Archive, args: &ExportArgs, moment: &Moment, threads: usize) -> Result<ExitCode> {
    let start = match (args.base.as_deref(), args.from) {
        (Some(base), _) => backup_start(archive, base)?,
        (None, Some(Position::Segment(name))) => RecoveryStart::Segment(name),
        (None, Some(Position::Lsn(start))) => {
            RecoveryStart::Backup { start, timeline: None, end: None, end_timeline: None }
        }
        (None, None) => crate::wrong_usage(START_NEEDED),
    };
    let recovery = match recovery_to(archive, start, args.timeline, moment.micros()) {
        Ok(recovery) => recovery,
        Err(RecoveryError::Archive(error)) => return Err(error.into()),
        Err(error) => {
            output::report_diagnostic(&error);
            return Ok(ExitCode::from(FOUND));
        }
    };
    let plan = Plan::for_recovery(archive, &recovery)?;
    let exported = write_files(archive, &plan, &args.output, threads)?;
    let document = || {
        text::export::with_recovery(moment, &recovery, text::export::document(&plan, &exported, &args.output))
    };
    let table =
        || text::export::table(&plan, &exported, &args.output) + &text::export::recovery(moment, &recovery);
    terminal::show(args.format, document, table)?;
    expect_undamaged(&exported)?;
    Ok(ExitCode::SUCCESS)
}

/// Reports the files that damage kept from being written; returns the last one as the error.
fn expect_undamaged(exported: &Exported) -> Result<()> {
    let Some((last, others)) = exported.damaged.split_last() else { return Ok(()) };
    for finding in others {
        output::print_line(&format!("error: {}", finding.problem));
    }
    Err(output::with_hint(last.problem.clone(), DAMAGE_HINT))
}

/// Reads where recovery from a base backup starts. `base` is a path, or the name of a backup history file in
/// the archive.
fn backup_start(archive: &Archive, base: &Path) -> Result<RecoveryStart> {
    let archived = base.to_str().and_then(ArchivedFile::parse).filter(|_| !base.exists());
    let start = match archived {
        Some(file @ ArchivedFile::Backup(..)) => {
            let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
            let path = folder.path().join("backup_label");
            get::get(archive, file, &path)?;
            // Without the path: the user did not name that temporary file.
            BackupStart::read(&path).map_err(|error| error.with_path(base))?
        }
        _ => BackupStart::read(base)?,
    };
    let expected = &archive.identity()?.system_identifier;
    if let Some(found) = start.system_identifier.filter(|found| found.to_string() != *expected) {
        bail!(
            "cannot recover from {}: expected system identifier {expected}, the archive's, found {found}",
            base.display()
        );
    }
    if let Some(bytes) = start.segment_bytes {
        archive
            .expect_segment_bytes(bytes)
            .with_context(|| format!("cannot recover from {}", base.display()))?;
    }
    Ok(RecoveryStart::from(&start))
}

fn number_of(archive: &Archive, position: Position) -> Result<u64> {
    let size = archive.segment_size()?;
    match position {
        Position::Lsn(lsn) => Ok(size.segment_of(lsn)),
        Position::Segment(name) => name.number(size).with_context(|| {
            format!("cannot use {name}: expected the name of a segment of {} bytes", size.bytes())
        }),
    }
}

fn write_files(archive: &Archive, plan: &Plan, folder: &Path, threads: usize) -> Result<Exported> {
    let size = plan.size.bytes();
    let files = plan.files.len() + plan.begun.len();
    let bar = Mutex::new((Progress::bytes("exporting", files as u64 * size), 0));
    let exported = export::export(archive, plan, folder, threads, &|done| {
        let mut bar = bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let more = done.saturating_sub(bar.1) * size;
        bar.0.advance(more);
        bar.1 = bar.1.max(done);
    });
    bar.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).0.finish();
    Ok(exported?)
}

/// Parses a segment name or an LSN.
pub fn parse_position(text: &str) -> Result<Position, String> {
    if let Some(name) = SegmentName::parse(text) {
        return Ok(Position::Segment(name));
    }
    text.parse().map(Position::Lsn).map_err(|_| {
        format!("\"{text}\" is neither a segment's name such as 000000010000000000000007 nor an LSN such as 0/7000028")
    })
}
