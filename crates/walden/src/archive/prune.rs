//! `walden archive prune`: removes base backups that a rule does not keep, and WAL that no kept one needs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use jiff::Zoned;
use jiff::tz::TimeZone;
use walden_archive::backup::{self, Backup};
use walden_archive::prune::{self, Rule};
use walden_archive::{Archive, base_backups};
use walden_archiving::text;
use walden_format::lsn::{Lsn, SegmentName};
use walden_recover::KeepRule;

use crate::place::PlaceArgs;
use crate::terminal::{self, Format};
use crate::{FOUND, USAGE, output};

const EXAMPLES: &str = "\
Examples:
  walden archive prune --keep-backups 2
      print what would be removed
  walden archive prune --keep daily=7,weekly=5 --apply
      keep the newest base backup in the archive of each of the last 7 days and 5 weeks; remove the others, and the WAL before them
  walden archive prune --keep-backups 2 --backups /backup/base --apply
      the same for backups below /backup/base, of which only the WAL is removed
  walden archive prune --keep-days 14 --backups /backup/base --apply
      keep the WAL to restore to any time in the last 14 days, from the existing backups
  walden archive prune --backups /backup/nightly --apply
      keep what the existing backups need, for example those of walden backup advance --keep
  walden archive prune --older-than-backup 000000010000000000000042.00000028.backup

Nothing is removed without --apply. Base backups in the archive that the rule does not keep are removed, with their WAL. Other base backups are never removed: PostgreSQL archives a backup history file for each base backup of a primary, even if the backup \
became a standby or was deleted. Therefore, --apply with --keep-backups or --keep-days requires the backups themselves \
(in the archive, --backups, --manifest), or --assume-backups-exist. A backup counts only if the archive has the WAL that makes it consistent. Everything from the start of the oldest \
kept backup is kept, on every timeline, and so are all timeline histories. The last backup that leads to a newer timeline than those of \
all kept backups is kept too, with a warning, except with --older-than-backup and --older-than. If several timelines have WAL after the last switch \
away from them, --keep-backups and --keep-days apply to each of them.

Objects that are locked (Object Lock of S3), or that these credentials may not remove, are listed with the end of their locks and stay, with \
the WAL after them; a later run removes them. With lock_days in walden.toml, --apply extends the locks of everything that is kept.

Exit status: 0 planned or done; 1 no backup is usable, the kept WAL has gaps, no backup that the rule keeps leads to a newer \
timeline, or several timelines continue and keep more WAL; 2 wrong usage; 3 the archive or a backup could not be read.";

/// Remove base backups that a rule does not keep, and WAL that no kept one needs
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PruneArgs {
    #[command(flatten)]
    place: PlaceArgs,

    #[command(flatten)]
    rule: RuleArgs,

    /// Manifests of existing backups; only these and the backups of --backups count as existing
    #[arg(long, value_name = "FILE", num_args = 1..)]
    manifest: Vec<PathBuf>,

    /// Folder of existing backups, each in a folder with its backup_manifest; only these count as existing
    #[arg(long, value_name = "DIR")]
    backups: Vec<PathBuf>,

    /// Treat every backup history file as an existing backup, including files of base backups that became
    /// standbys
    #[arg(long, conflicts_with_all = ["backups", "manifest"])]
    assume_backups_exist: bool,

    /// Remove the files; otherwise only print them
    #[arg(long, visible_alias = "yes")]
    apply: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The rule for what to keep. Without one, all existing backups are kept.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct RuleArgs {
    /// Keep the newest N backups, and all WAL from the start of the oldest of these
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep_backups: Option<u64>,

    /// Keep the newest backup of each of the last periods with backups, and all WAL from the start of the
    /// oldest of them: last=N, hourly=N, daily=N, weekly=N, monthly=N, yearly=N
    #[arg(long, value_name = "RULE")]
    keep: Option<KeepRule>,

    /// Keep what recovery to any time in the last N days needs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_days: Option<u32>,

    /// Remove WAL older than this backup, named by its label, history file, or path: its folder,
    /// backup_manifest or backup_label
    #[arg(long, value_name = "LABEL|PATH")]
    older_than_backup: Option<String>,

    /// Remove WAL older than this segment or position
    #[arg(long, value_name = "SEGMENT|LSN", value_parser = parse_end)]
    older_than: Option<Rule>,
}

fn parse_end(text: &str) -> Result<Rule, String> {
    let lsn = || text.parse::<Lsn>().ok().map(Rule::OlderThanPosition);
    SegmentName::parse(text).map(Rule::OlderThanSegment).or_else(lsn).ok_or_else(|| {
        format!("expected a segment such as 000000010000000000000007 or a position such as 0/7000028, found \"{text}\"")
    })
}

impl RuleArgs {
    fn rule(&self) -> Option<Rule> {
        const DAY: i64 = 24 * 3600 * 1_000_000;
        let of_days = |days: u32| {
            let age = i64::from(days) * DAY;
            Rule::KeepSince { moment: Zoned::now().timestamp().as_microsecond().saturating_sub(age), age }
        };
        self.keep_backups
            .map(Rule::KeepBackups)
            .or_else(|| self.keep_days.map(of_days))
            .or_else(|| Some(Rule::Keep { rule: self.keep.clone()?, zone: TimeZone::system() }))
            .or_else(|| self.older_than_backup.clone().map(Rule::OlderThanBackup))
            .or_else(|| self.older_than.clone())
    }
}

/// Error: neither a rule nor backups.
const NO_RULE: &str = "cannot choose the WAL to remove: expected a rule (--keep-backups, --keep, --keep-days, --older-than-backup, --older-than), \
                       or the existing backups (--backups, --manifest), found neither";

/// Error: backup history files alone do not decide what to remove.
const UNKNOWN_BACKUPS: &str = "cannot determine which backups still exist: backup history files also come from base backups that became standbys or \
                               were deleted. Name the backups that exist by --backups DIR or --manifest FILE; if each history file in the \
                               list without --apply is an existing backup, use --assume-backups-exist";

/// Runs `walden archive prune`.
pub fn run(args: &PruneArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let has_stored = !base_backups::names(&archive)?.is_empty();
    let mut rule = match args.rule.rule() {
        Some(rule) => rule,
        None if args.backups.is_empty() && args.manifest.is_empty() && !has_stored => {
            output::report(&anyhow!(NO_RULE));
            return Ok(ExitCode::from(USAGE));
        }
        None => Rule::KeepExisting,
    };
    let counts_histories = matches!(rule, Rule::KeepBackups(_) | Rule::KeepSince { .. } | Rule::Keep { .. })
        && !has_stored
        && args.backups.is_empty()
        && args.manifest.is_empty()
        && !args.assume_backups_exist;
    if args.apply && counts_histories {
        output::report(&anyhow!(UNKNOWN_BACKUPS));
        return Ok(ExitCode::from(USAGE));
    }
    let mut backups = on_disk(args, &archive)?;
    if let Rule::OlderThanBackup(wanted) = &mut rule
        && let Some(backup) = backup::at_path(Path::new(wanted), &archive.identity()?.system_identifier)?
    {
        wanted.clone_from(&backup.name);
        // Its name prevails if the backup was found by another path, too.
        backups.insert(0, backup);
    }
    let plan = match args.assume_backups_exist {
        true => prune::plan_if_all_exist(&archive, &rule, backups)?,
        false => prune::plan(&archive, &rule, backups)?,
    };
    let pruned = if args.apply { plan.apply(&archive)? } else { plan.report().clone() };
    terminal::show(args.format, || &pruned, || text::pruning::table(&pruned))?;
    Ok(if pruned.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn on_disk(args: &PruneArgs, archive: &Archive) -> Result<Vec<Backup>> {
    let system = archive.identity()?.system_identifier.clone();
    let mut backups = Vec::new();
    for manifest in &args.manifest {
        backups.push(backup::read_manifest(manifest, &system)?);
    }
    for folder in &args.backups {
        backups.extend(backup::in_folder(folder, &system)?);
    }
    Ok(backups)
}
