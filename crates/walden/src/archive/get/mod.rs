//! `walden archive get`: the command for `restore_command`.

mod prefetch;
mod until;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use walden_archiving::get::{self, GetOptions};
use walden_archiving::log::Entry;
use walden_explain::moment::Moment;
use walden_format::lsn::Timeline;

pub use self::prefetch::{PREFETCH_FAILED, PrefetchArgs, run_prefetch};
use self::until::get_until;
use super::export::{Position, parse_position};
use super::log::LogOptions;
use super::push::ANSWER_WITHIN;
use crate::output::Overwrite;
use crate::place::PlaceArgs;
use crate::terminal::Format;

/// Exit status if the archive lacks the file: PostgreSQL continues, and treats a missing segment as the end
/// of WAL.
const NOT_THERE: u8 = 1;
/// Exit status if the file may exist but cannot be read. Above 125, so that PostgreSQL stops instead of
/// ending recovery early.
pub const TROUBLE: u8 = 200;

const EXAMPLES: &str = "\
Examples:
  restore_command = 'walden archive get %f \"%p\"'
      in postgresql.conf, with walden.toml in the data directory or in /etc/walden
  walden archive get --repo /backup/main 000000010000000000000007 ./000000010000000000000007
  walden archive get --until '2026-11-20 10:00' --base /backups/monday -o /tmp/wal
      all files that recovery from a base backup to a time reads

During recovery, a background process fetches the next segments into pg_wal; later calls only rename them.

Exit status: 0 the file was written; 1 the archive does not have it, and PostgreSQL continues without it (with --until: the time cannot be \
reached); 200 any other error, which makes PostgreSQL stop instead of ending recovery early: the archive cannot be read, belongs to \
another cluster, has segments of another size, or lacks a segment before later ones.";

/// Restore a file from the archive
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// File name: %f
    #[arg(value_name = "NAME", required_unless_present = "until", conflicts_with = "until")]
    name: Option<String>,

    /// Where to write the file: %p
    #[arg(value_name = "PATH", required_unless_present = "until")]
    target: Option<PathBuf>,

    /// Instead of one file, restore all files that recovery to this time reads, such as 2026-11-20 10:00
    /// (local time unless it has a zone); same as `walden archive export --until`
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, requires = "output")]
    until: Option<Moment>,

    /// With --until: output folder
    #[arg(short, long, value_name = "DIR", requires = "until")]
    output: Option<PathBuf>,

    /// With --until: base backup from which recovery starts (its folder or tar file, backup_label,
    /// backup_manifest, or the name of a backup history file in the archive)
    #[arg(long, value_name = "BACKUP", requires = "until", conflicts_with = "from")]
    base: Option<PathBuf>,

    /// With --until: first segment of recovery, or an LSN in it
    #[arg(long, value_name = "SEGMENT|LSN", requires = "until", value_parser = parse_position)]
    from: Option<Position>,

    /// With --until: follow this timeline and its ancestors [default: the newest]
    #[arg(long, value_name = "N", requires = "until", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<Timeline>,

    /// With --until: output format
    #[arg(long, value_enum, default_value_t, requires = "until")]
    format: Format,

    #[command(flatten)]
    place: PlaceArgs,

    /// Folder of walden receive (its --spool), for files that are not in the archive yet, including the
    /// received part of the last segment
    #[arg(long, value_name = "DIR", conflicts_with = "until")]
    spool: Option<PathBuf>,

    /// Treat a missing segment as the end of WAL even if later segments are archived; recovery then ends
    /// before the gap
    #[arg(long, conflicts_with = "until")]
    ignore_gaps: bool,

    /// Maximum number of segments to prefetch, 0 for none [default: 16]
    #[arg(long, value_name = "N")]
    prefetch: Option<usize>,

    /// For a drill's server: keep tablespaces that a segment creates inside the data directory, with notes in
    /// this folder
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["until", "spool"])]
    redirect_tablespaces: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    #[command(flatten)]
    log: LogOptions,
}

/// Runs `walden archive get`.
pub fn run(args: &GetArgs) -> ExitCode {
    // A panic's exit status, 101, would mean that the archive lacks the file.
    std::panic::catch_unwind(AssertUnwindSafe(|| {
        match (&args.until, &args.output, &args.name, &args.target) {
            (Some(moment), Some(output), ..) => get_until(args, moment, output),
            (_, _, Some(name), Some(target)) => get_and_log(args, name, target),
            // Unreachable: the argument parser requires one of the two forms.
            _ => ExitCode::from(TROUBLE),
        }
    }))
    .unwrap_or(ExitCode::from(TROUBLE))
}

fn get_and_log(args: &GetArgs, name: &str, target: &Path) -> ExitCode {
    let began = Instant::now();
    // If the configuration cannot be read, each attempt reports that, and only the options decide where
    // messages go.
    let place = args.place.with_configuration_read().unwrap_or_else(|_| args.place.0.clone());
    let section = place.configuration().map(|(section, _)| section).unwrap_or_default();
    let log = args.log.open(&section);
    let options = GetOptions {
        place,
        spool: args.spool.as_deref(),
        ignores_gaps: args.ignore_gaps,
        prefetch: args.prefetch,
        redirect_tablespaces: args.redirect_tablespaces.as_deref(),
        replaces: args.overwrite.force,
        answer_within: ANSWER_WITHIN,
        log: &log,
        activity_log: args.log.log.as_deref(),
    };
    let result = get::get(&options, name, target);
    let hint = result.as_ref().err().and_then(|error| get::pruned_hint(&options, target, error));
    let entry = Entry::for_get(name, result.as_ref().copied(), began.elapsed());
    log.write(&[Entry { hint: entry.hint.clone().or_else(|| hint.clone()), ..entry }]);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_missing() => {
            if log.is_text() {
                crate::output::print_line(&error.to_string());
                hint.iter().for_each(|hint| crate::output::print_line(&format!("HINT: {hint}")));
            }
            ExitCode::from(NOT_THERE)
        }
        Err(error) => {
            log.print_error("", &error, error.hint());
            ExitCode::from(TROUBLE)
        }
    }
}
