//! `walden restore`: a base backup rolled forward without a server.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use walden_archiving::commands::word;
use walden_output::resolve;
use walden_recover::{
    DeltaAmounts, ExistingDirectory, NewSettings, Plan, PlanDocument, Purpose, RaisedSetting, Recovery,
    Restored, RestoredDocument,
};
use walden_report::table::harmless;
use walden_report::units;
use walden_source::inventory::{Run, SegmentFile};
use walden_source::open::Compression;

use super::{
    Prepared, RecoverArgs, amounts_text, expect_unprotected, plan_text, report_incomplete,
    report_interrupted_delta, report_interruption, warn_of_damage, warn_of_drops, warn_of_partial,
    with_progress,
};
use crate::output;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden restore --repo /backup/main -o /var/lib/postgresql/restored
      restore the newest base backup of the archive, and replay to the end of the WAL
  walden restore --base /backups/monday -o restored --to '2026-11-20 10:00' --dry-run
      print the plan of a restore to a time
  walden restore --wal /backup/wal --base /backups/monday -o restored --to name:before_upgrade
  walden restore --repo /backup/main -o /var/lib/postgresql/18/main --delta
      restore over the data directory of the stopped server: fetch and write only what differs from the base backup

Walden replays the WAL up to the last checkpoint before the target. PostgreSQL replays the rest when it is started on the new data \
directory, and stops at the target. Run it as the user that runs PostgreSQL. docs/restore.md describes the next steps.

Exit status: 0 restored; 2 wrong usage; 3 the backup or the WAL cannot be used.";

/// Restore a base backup: replay WAL into a new data directory without a server
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RestoreArgs {
    /// The base backup: the name of one in the archive (latest for the newest), a folder that pg_basebackup
    /// wrote, in plain or tar format, or base.tar itself [default: the newest one in the archive that ends
    /// before the target]
    #[arg(long, value_name = "BACKUP")]
    base: Option<PathBuf>,

    /// The new data directory, which must be missing or empty; with --delta, an existing one
    #[arg(short, long, value_name = "DATADIR")]
    output: PathBuf,

    /// Write only what differs from the base backup over DATADIR, the data directory of a stopped server of
    /// the same cluster, and over its tablespaces, and remove other files
    #[arg(long)]
    delta: bool,

    /// restore_command of the new server [default: walden archive get, or cp from --wal]
    #[arg(long, value_name = "COMMAND")]
    restore_command: Option<String>,

    /// recovery_target_action of the new server [default: as in its configuration]
    #[arg(long, value_enum)]
    target_action: Option<TargetAction>,

    #[command(flatten)]
    recover: RecoverArgs,
}

/// Action of the server at the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TargetAction {
    Pause,
    Promote,
    Shutdown,
}

impl TargetAction {
    fn name(self) -> &'static str {
        match self {
            TargetAction::Pause => "pause",
            TargetAction::Promote => "promote",
            TargetAction::Shutdown => "shutdown",
        }
    }
}

/// Runs `walden restore`.
pub fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let format = args.recover.format;
    let existing = match args.delta {
        true => Some(open_existing(args)?),
        false => {
            walden_recover::expect_free_target(&args.output)?;
            None
        }
    };
    match &args.base {
        _ if existing.is_some() => {}
        None => expect_unprotected(&args.output)?,
        Some(base) => expect_separate_target(base, &args.output)?,
    }
    let over = existing.as_ref();
    let prepared = match &args.base {
        None => args.recover.prepare_newest(over)?,
        Some(base) => args.recover.prepare(args.recover.open_base(base)?, over)?,
    };
    let base = prepared.base.path().to_owned();
    let plan = &prepared.plan;
    expect_no_used_tablespace(plan)?;
    let restore_command = match &args.restore_command {
        Some(command) => command.clone(),
        None => restore_command(&args.recover, &prepared.run)?,
    };
    let (shown, output) = (base.display().to_string(), args.output.display().to_string());
    let settings = plan.new_settings(&prepared.base);
    let settings_text = |settings: Option<&NewSettings>| settings.map(settings_text).unwrap_or_default();
    if format == Format::Table {
        let title = format!("Restore of {} to {}\n", harmless(&shown), harmless(&output));
        let plan = plan_text(&prepared) + &remaining_text(plan);
        terminal::print(&(title + &plan + &settings_text(settings.as_ref())))?;
    }
    warn_of_damage(plan);
    warn_of_drops(&plan.early_drops);
    prepared.partial.iter().for_each(warn_of_partial);
    let mut document = Document {
        plan: prepared.document(&base),
        output,
        restore_command: restore_command.clone(),
        settings,
        restored: None,
        delta: None,
    };
    let target_action = args.target_action.map(|action| action.name().to_owned());
    let options = args.recover.options(Purpose::Server { restore_command, target_action }, &prepared);
    if let Some(existing) = existing.as_ref().filter(|_| args.recover.dry_run) {
        let amounts = with_progress(&prepared, |Prepared { base, run, plan, .. }, progress| {
            Recovery { run, base, plan, options: &options }.compare(existing, progress)
        })?;
        if format == Format::Table {
            terminal::print(&format!("  Compared with the base backup: {}\n", delta_text(&amounts)))?;
        }
        document.delta = Some(amounts);
    }
    if !args.recover.dry_run {
        match &existing {
            None => report_interruption(&args.output)?,
            Some(existing) => report_interrupted_delta(existing.path()),
        }
        let started = Instant::now();
        let restored = with_progress(&prepared, |Prepared { base, run, plan, .. }, progress| {
            let recovery = Recovery { run, base, plan, options: &options };
            match &existing {
                None => recovery.restore(&args.output, progress),
                Some(existing) => recovery.restore_over(existing, progress),
            }
        });
        if restored.is_err() {
            report_incomplete();
        }
        let restored = restored?;
        let seconds = started.elapsed().as_secs_f64();
        if format == Format::Table {
            // The plan has printed those that it could read.
            let settings = restored.settings.as_ref().filter(|_| document.settings.is_none());
            terminal::print(&(settings_text(settings) + &summary(args, plan, &restored, seconds)))?;
        }
        document.delta = restored.delta;
        document.restored = Some(RestoredDocument::new(&restored, seconds));
        document.settings = restored.settings;
    }
    let directory = document.settings.as_ref().and_then(|settings| settings.data_directory.as_deref());
    directory.into_iter().for_each(|directory| warn_of_directory(directory, &args.output));
    if format == Format::Json {
        terminal::print(&terminal::json(&document)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the data directory over which the base backup is restored. The WAL must be elsewhere.
fn open_existing(args: &RestoreArgs) -> Result<ExistingDirectory> {
    let existing = ExistingDirectory::open(&args.output)?;
    if let Some(wal) = args.recover.wal.as_ref().filter(|wal| resolve(wal).starts_with(existing.path())) {
        let text = format!(
            "cannot restore over {}: it contains {}, whose WAL is read",
            args.output.display(),
            wal.display()
        );
        return Err(output::with_hint(text, "copy the WAL to a folder outside of the data directory"));
    }
    Ok(existing)
}

/// Returns the amounts of a restore over an existing data directory.
fn delta_text(amounts: &DeltaAmounts) -> String {
    format!(
        "{} kept, {} written, {} removed ({} files that the backup does not have)",
        units::bytes(amounts.kept_bytes),
        units::bytes(amounts.written_bytes),
        units::bytes(amounts.removed_bytes),
        units::count(amounts.removed_files)
    )
}

/// Refuses a new data directory inside the base backup, another data directory or an archive.
pub(super) fn expect_separate_target(base: &Path, new: &Path) -> Result<()> {
    if resolve(new).starts_with(resolve(base)) {
        let text = format!("cannot create a directory in {}: it is inside the base backup", new.display());
        return Err(output::with_hint(text, "name a directory outside of it"));
    }
    expect_unprotected(new)
}

/// Refuses WAL that creates a tablespace in a folder that is in use on this machine: recovery would write
/// into the original server's files.
fn expect_no_used_tablespace(plan: &Plan) -> Result<()> {
    let is_used = |path: &str| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    match plan.tablespaces.iter().find(|(_, path)| is_used(path)) {
        None => Ok(()),
        Some((lsn, path)) => Err(output::with_hint(
            format!(
                "cannot recover across {lsn}: the record creates a tablespace in {path}, which has files on this machine"
            ),
            "PostgreSQL would write into these files: restore on another machine, or to a target before that position (--to LSN)",
        )),
    }
}

/// The command by which PostgreSQL gets the WAL that Walden has read.
fn restore_command(args: &RecoverArgs, run: &Run) -> Result<String> {
    let Some(folder) = &args.wal else {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut words = vec![program.into_os_string(), "archive".into(), "get".into()];
        words.extend(args.place.absolute_arguments()?);
        let words: Vec<String> = words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        return Ok(format!("{} %f \"%p\"", words.join(" ")));
    };
    let folder = std::path::absolute(folder).with_context(|| format!("cannot use {}", folder.display()))?;
    let is_plain = |segment: &SegmentFile| {
        let expected = folder.join(segment.name.to_string());
        let found = std::path::absolute(&segment.path);
        segment.compression == Compression::None && found.is_ok_and(|found| found == expected)
    };
    if !run.segments.iter().all(is_plain) {
        let hint = "name the command that decompresses a segment with --restore-command 'COMMAND %f %p'";
        return Err(output::with_hint(
            format!(
                "cannot choose a restore_command: expected plain segments in {}, found others",
                folder.display()
            ),
            hint,
        ));
    }
    let history = folder.join(format!("{:08X}.history", run.timeline));
    if run.timeline > 1 && !history.is_file() {
        let hint = "add the file from the archive or from pg_wal of the server that was promoted";
        let text =
            format!("cannot follow timeline {}: expected {}, found none", run.timeline, history.display());
        return Err(output::with_hint(text, hint));
    }
    if folder.as_os_str().as_bytes().contains(&b'\n') {
        bail!("cannot use {} in restore_command: its name has a line break", folder.display());
    }
    Ok(format!("cp {}/%f \"%p\"", quoted(&folder.to_string_lossy())))
}

/// Quotes a word for the shell in a setting in which PostgreSQL replaces `%f` and `%p`.
fn quoted(text: &str) -> String {
    word(text).replace('%', "%%")
}

/// Returns lines on what is left to PostgreSQL.
fn remaining_text(plan: &Plan) -> String {
    let remaining = units::bytes(plan.remaining_bytes());
    let mut text = match plan.checkpoint {
        Some(_) => format!("  PostgreSQL replays the remaining {remaining}\n"),
        None => format!(
            "  Walden replays nothing: there is no checkpoint to start from after the end of the backup; PostgreSQL replays {remaining}\n"
        ),
    };
    if let Some(unsupported) = &plan.unsupported {
        let _ = writeln!(text, "  left to PostgreSQL: {unsupported}");
    }
    for (lsn, path) in &plan.tablespaces {
        let _ = writeln!(text, "  PostgreSQL creates the tablespace of {lsn} in {}", harmless(path));
    }
    text
}

/// Returns lines on the settings that differ from those of the backup, or that the administrator must check.
fn settings_text(settings: &NewSettings) -> String {
    let mut text = String::new();
    if !settings.disabled.is_empty() {
        let names = settings.disabled.join(", ");
        let _ = writeln!(text, "  disabled in the new server, set in the backup: {names}");
    }
    let (written, unknown): (Vec<_>, Vec<_>) = settings.raised.iter().partition(|it| it.found.is_some());
    let list = |settings: &[&RaisedSetting]| {
        let setting = |it: &&RaisedSetting| {
            let found = it.found.map(|found| format!(" ({found} in the backup)")).unwrap_or_default();
            format!("{} = {}{found}", it.name, it.value)
        };
        settings.iter().map(setting).collect::<Vec<_>>().join(", ")
    };
    if !written.is_empty() {
        let _ = writeln!(text, "  raised, because recovery requires it: {}", list(&written));
    }
    if !unknown.is_empty() {
        let _ = writeln!(
            text,
            "  the backup has no postgresql.conf; recovery requires in the one that you add at least {}",
            list(&unknown)
        );
    }
    text
}

/// Warns of a backup whose `postgresql.conf` names another data directory.
fn warn_of_directory(directory: &str, output: &Path) {
    let data = std::path::absolute(output).unwrap_or_else(|_| output.to_owned());
    if Path::new(directory) == data {
        return;
    }
    let (directory, data) = (harmless(directory), data.display().to_string());
    output::print_line(&format!(
        "warning: postgresql.conf of the backup sets data_directory = '{directory}', which PostgreSQL would use instead of {}",
        harmless(&data)
    ));
    output::print_line(
        "hint: remove data_directory from postgresql.conf of the new data directory before you start PostgreSQL",
    );
}

fn summary(args: &RestoreArgs, plan: &Plan, restored: &Restored, seconds: f64) -> String {
    let output = args.output.display().to_string();
    let delta = restored.delta.map_or_else(String::new, |amounts| format!("  {}\n", delta_text(&amounts)));
    format!(
        "Restored in {}\n{delta}Start PostgreSQL on {}: it replays {} of WAL\n",
        amounts_text(plan, restored, seconds),
        harmless(&output),
        units::bytes(plan.remaining_bytes())
    )
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    plan: PlanDocument,
    output: String,
    restore_command: String,
    /// `null` with `--dry-run` of a backup that is not in plain format.
    settings: Option<NewSettings>,
    /// `null` with `--dry-run`.
    restored: Option<RestoredDocument>,
    /// `null` without `--delta`.
    delta: Option<DeltaAmounts>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_the_shell_are_quoted_and_keep_percent_signs() {
        assert_eq!(quoted("/usr/bin/walden"), "/usr/bin/walden");
        assert_eq!(quoted("/a b/100%"), "'/a b/100%%'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
