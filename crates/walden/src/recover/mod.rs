//! Commands that roll a base backup forward without a server.

mod advance;
pub mod backup;
mod create;
pub mod restore;
mod schedule;
mod store;
pub mod stored;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::Archive;
use walden_archive::backup::{archived, find_dependents};
use walden_archive::source::{self, Bound, SourceOptions};
use walden_archive::sources::is_archive;
use walden_explain::moment::{Moment, time_text};
use walden_format::lsn::{Lsn, Timeline};
use walden_format::payload::Timestamp;
use walden_output::{Inputs, find_protected};
use walden_recover::{
    BaseBackup, COPY_BYTES_PER_SECOND, ChosenRun, EarlyDrop, ExistingDirectory, ExpectedDuration,
    MappedTablespace, Plan, PlanDocument, Purpose, RecoverError, RestoreOptions, Restored, Step, Target,
    UnreadPartial, choose_run,
};
use walden_report::table::harmless;
use walden_report::units;
use walden_server::signals::{self, Stage};
use walden_source::datadir::ControlFile;
use walden_source::inventory::{Inventory, Run};
use walden_source::kept::KeptSegments;

use crate::arguments::{parse_size, parse_xid};
use crate::place::PlaceArgs;
use crate::progress::Progress;
use crate::sources::{self, SourceRange, expect_one_history};
use crate::terminal::{self, Format};
use crate::{memory, output};

/// The WAL, the target, and limits.
#[derive(Args, Debug)]
pub struct RecoverArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// A folder of WAL segments, instead of an archive
    #[arg(long, value_name = "FOLDER", conflicts_with = "repo")]
    wal: Option<PathBuf>,

    /// The recovery target: latest, a time such as '2026-11-20 10:00' (local unless with zone), an LSN, xid:N
    /// or name:RESTORE_POINT
    #[arg(long, value_name = "TARGET", default_value = "latest", value_parser = parse_target)]
    to: Target,

    /// Follow this timeline [default: the latest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<Timeline>,

    /// Copy the tablespace in folder OLD to NEW; each tablespace outside of the base backup needs it. With
    /// the folder of a CREATE TABLESPACE in the WAL, create that tablespace in NEW
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_mapping)]
    tablespace_mapping: Vec<(PathBuf, PathBuf)>,

    /// Compare the base backup with the checksums in its backup_manifest; sizes are always compared
    #[arg(long)]
    verify_base: bool,

    /// Print the plan and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default:
    /// a quarter of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// How to print it; docs/restore.md has the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A base backup, the WAL that continues it, and the plan.
struct Prepared {
    base: BaseBackup,
    tablespaces: Vec<MappedTablespace>,
    run: Run,
    /// Segments that the plan has decoded; not with `--dry-run`.
    kept: Option<KeptSegments>,
    /// The `.partial` that recovery to the end of the WAL does not read.
    partial: Option<UnreadPartial>,
    plan: Plan,
    duration: ExpectedDuration,
}

impl Prepared {
    /// Returns the plan as a JSON document. `base` is the path of the base backup.
    fn document(&self, base: &Path) -> PlanDocument {
        PlanDocument::new(base, &self.plan, self.partial.as_ref(), self.duration)
    }
}

impl RecoverArgs {
    /// Opens a base backup, and compares it with its manifest: a folder, or the name of one in the archive.
    fn open_base(&self, path: &Path) -> Result<BaseBackup> {
        if let Some(name) = stored::name_of(path) {
            return self.verified(self.open_stored(name)?);
        }
        let mut bar = Progress::bytes("reading the base backup", 0);
        let base = BaseBackup::open(path, |bytes| {
            bar.lengthen(bytes);
            bar.advance(bytes);
        });
        bar.finish();
        let base = base?;
        for link in base.links_left_out() {
            output::print_line(&format!("note: without the link {link}, which leads to the server's log"));
        }
        self.verified(base)
    }

    /// Compares the files of a base backup with their checksums, if the user wants it.
    fn verified(&self, base: BaseBackup) -> Result<BaseBackup> {
        if self.verify_base {
            let mut bar = Progress::bytes("verifying the base backup", base.verified_bytes());
            let verified = base.verify_checksums(self.threads(), |bytes| bar.advance(bytes));
            bar.finish();
            verified?;
        }
        Ok(base)
    }

    /// Finds the WAL of a base backup and makes the plan. `over` is the existing data directory of a restore
    /// over one.
    fn prepare(&self, base: BaseBackup, over: Option<&ExistingDirectory>) -> Result<Prepared> {
        let chosen = find_run(self, &base)?;
        let tablespaces = self.map_tablespaces(&base, over)?;
        self.prepare_with(base, chosen, tablespaces)
    }

    fn map_tablespaces(
        &self,
        base: &BaseBackup,
        over: Option<&ExistingDirectory>,
    ) -> Result<Vec<MappedTablespace>> {
        let tablespaces = walden_recover::map_tablespaces(base, &self.tablespace_mapping, over)?;
        tablespaces.iter().try_for_each(|it| expect_unprotected(it.new_folder()))?;
        Ok(tablespaces)
    }

    /// Makes the plan for a base backup and its WAL.
    fn prepare_with(
        &self,
        base: BaseBackup,
        mut chosen: ChosenRun,
        tablespaces: Vec<MappedTablespace>,
    ) -> Result<Prepared> {
        let kept = match self.dry_run {
            true => None,
            false => Some(walden_recover::keep_decoded(&mut chosen.run, &base, self.memory_bytes())),
        };
        let plan = make_plan(self, &chosen, &base, &tablespaces, kept.as_ref());
        let is_end = plan.as_ref().map_or(true, |plan| plan.target == Target::Latest);
        let partial = if is_end { chosen.find_unread_partial(self.threads()) } else { None };
        let plan = match (plan, &partial) {
            (Err(error), Some(partial)) => {
                warn_of_partial(partial);
                return Err(error);
            }
            (plan, _) => plan?,
        };
        let run = chosen.run;
        // A restore has a progress bar instead: a sample takes as long as the replay of some 100 MB.
        let measure = || plan.measure_replay(&run, &base, self.threads(), self.memory_bytes());
        let replay_rate = self.dry_run.then(measure).flatten();
        let duration = ExpectedDuration::new(base.bytes(), plan.replayed_bytes(), replay_rate);
        Ok(Prepared { base, tablespaces, run, kept, partial, plan, duration })
    }

    /// Refuses to replace a base backup on which incremental backups depend, according to the backup history
    /// files in the archive.
    fn expect_no_dependents(&self, base: &BaseBackup) -> Result<()> {
        if self.wal.is_some() {
            return Ok(());
        }
        let (archive, _) = self.place.open()?;
        let backups = archived(&archive, archive.segment_size()?)?;
        let dependents = find_dependents(&backups, base.start());
        let Some(first) = dependents.first() else { return Ok(()) };
        let text = format!(
            "cannot replace the backup that starts at {}: {} on it, such as the backup {}",
            base.start(),
            match dependents.len() {
                1 => "1 incremental backup depends".to_owned(),
                count => format!("{count} incremental backups depend"),
            },
            first.name
        );
        let hint = "write the later backup to a new folder, with -o; if the incremental backups are no longer needed, use --give-up-incrementals";
        Err(output::with_hint(text, hint))
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(terminal::cores, usize::from)
    }

    fn memory_bytes(&self) -> usize {
        self.memory.unwrap_or_else(memory::quarter_of_machine)
    }

    fn options(&self, purpose: Purpose, prepared: &Prepared) -> RestoreOptions {
        let tablespaces = prepared.tablespaces.clone();
        RestoreOptions::new(purpose, self.memory_bytes()).tablespaces(tablespaces).threads(self.threads())
    }
}

/// Refuses a new folder inside a data directory or an archive.
fn expect_unprotected(folder: &Path) -> Result<()> {
    let file = folder.join("PG_VERSION");
    match Inputs::default().find_closed_folder(&file).or_else(|| find_protected(&file)) {
        Some(reason) => {
            let text = format!("cannot create a directory in {}: {reason}", folder.display());
            Err(output::with_hint(text, "name a directory outside of it"))
        }
        None => Ok(()),
    }
}

/// Reads two folders, as `pg_basebackup --tablespace-mapping` does: a backslash precedes an equals sign that
/// belongs to a path.
fn parse_mapping(text: &str) -> Result<(PathBuf, PathBuf), String> {
    let (mut paths, mut characters) = (vec![String::new()], text.chars().peekable());
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.peek() == Some(&'=') => {
                paths.last_mut().into_iter().for_each(|it| it.push('='))
            }
            '=' => paths.push(String::new()),
            other => paths.last_mut().into_iter().for_each(|it| it.push(other)),
        }
        if character == '\\' && characters.peek() == Some(&'=') {
            characters.next();
        }
    }
    match &paths[..] {
        [old, new] if !old.is_empty() && !new.is_empty() => Ok((old.into(), new.into())),
        _ => Err(format!("expected OLD=NEW, two folders, found {text:?}")),
    }
}

/// Reads a target.
fn parse_target(text: &str) -> Result<Target, String> {
    if text == "latest" {
        return Ok(Target::Latest);
    }
    if let Some(xid) = text.strip_prefix("xid:") {
        return parse_xid(xid).map(Target::Xid);
    }
    if let Some(name) = text.strip_prefix("name:") {
        return match name.len() {
            // MAXFNAMELEN with its terminating zero.
            1..64 => Ok(Target::Name(name.to_owned())),
            length => {
                Err(format!("expected the name of a restore point with 1 to 63 bytes, found {length} bytes"))
            }
        };
    }
    if let Ok(lsn) = text.parse::<Lsn>() {
        return Ok(Target::Lsn(lsn));
    }
    Moment::parse(text).map(|moment| Target::Time(moment.micros())).map_err(|error| {
        format!("expected latest, an LSN such as 2/3A0001F8, xid:N, name:RESTORE_POINT or a time; {error}")
    })
}

/// Finds the WAL that continues the base backup.
fn find_run(args: &RecoverArgs, base: &BaseBackup) -> Result<ChosenRun> {
    let runs = match &args.wal {
        Some(folder) => {
            if is_archive(folder) {
                let hint = "name the archive with --repo";
                return Err(output::with_hint(
                    format!("cannot use the archive {} as a folder", folder.display()),
                    hint,
                ));
            }
            let inventory = sources::open(std::slice::from_ref(folder), &SourceRange::all(args.timeline))?;
            sources::note_omitted_from(&inventory, base.start());
            inventory.runs
        }
        None => runs_of_archive(&args.place.open()?.0, args, base)?,
    };
    choose_run(runs, base).context("cannot find WAL to recover from: expected segments, found none")
}

/// The log of an archive from the base backup on, along the newest timeline or the one that is wanted.
fn runs_of_archive(archive: &Archive, args: &RecoverArgs, base: &BaseBackup) -> Result<Vec<Run>> {
    let from = Some(Bound::Lsn(base.start()));
    let options = SourceOptions::new(args.threads()).timeline(args.timeline).from(from);
    if args.timeline.is_none() {
        expect_one_history(archive, Some(base.timeline()))?;
    }
    let source = source::open(archive, &options)?;
    let no_paths: [&str; 0] = [];
    let mut inventory = Inventory::with_segments(&no_paths, source.segments, Vec::new(), 1)?;
    inventory.follow(source.system_id, &source.stretches);
    Ok(inventory.runs)
}

/// Makes the plan with a progress bar.
fn make_plan(
    args: &RecoverArgs,
    chosen: &ChosenRun,
    base: &BaseBackup,
    mapped: &[MappedTablespace],
    kept: Option<&KeptSegments>,
) -> Result<Plan> {
    let (run, size) = (&chosen.run, chosen.run.segment_size);
    let skipped = size.segment_of(base.start()).saturating_sub(size.segment_of(run.start()));
    let segments = (run.segments.len() as u64).saturating_sub(skipped);
    let mut bar = Progress::bytes("reading WAL", segments * size.bytes());
    let (target, threads) = (args.to.clone(), args.threads());
    let plan = chosen.make_plan(base, target, mapped, threads, kept, |bytes| bar.advance(bytes));
    bar.finish();
    Ok(plan?)
}

/// The folder that an interrupted recovery leaves.
static INTERRUPTED: OnceLock<PathBuf> = OnceLock::new();
/// The data directory over which a base backup is restored.
static RESTORED_OVER: OnceLock<PathBuf> = OnceLock::new();

/// Reports what remains if a signal interrupts a recovery to a folder.
fn report_interruption(data: &Path) -> Result<()> {
    let _ = INTERRUPTED.set(walden_recover::partial_of(data)?);
    // Without a handler, only the message is missing.
    let _ = signals::before_exit(Stage::Files, report_partial);
    Ok(())
}

/// Reports what remains if a signal interrupts a restore over an existing data directory.
fn report_interrupted_delta(data: &Path) {
    let _ = RESTORED_OVER.set(data.to_owned());
    // Without a handler, only the message is missing.
    let _ = signals::before_exit(Stage::Files, report_incomplete);
}

/// Reports an existing data directory over which a restore has started and not completed.
fn report_incomplete() {
    // PostgreSQL can start from it before and after the restore.
    if let Some(data) = RESTORED_OVER.get().filter(|data| !data.join(ControlFile::PATH).exists()) {
        let data = harmless(&data.display().to_string()).into_owned();
        output::print_line(&format!("note: the restore over {data} is not complete"));
        output::print_line("hint: run the same command again: PostgreSQL does not start from it before");
    }
}

fn report_partial() {
    if let Some(partial) = INTERRUPTED.get().filter(|partial| partial.exists()) {
        let partial = harmless(&partial.display().to_string()).into_owned();
        output::print_line(&format!("note: the restore was interrupted; its files remain in {partial}"));
        output::print_line("hint: run the same command again, which replaces this folder, or remove it");
    }
}

/// Runs a recovery with progress bars.
fn with_progress<T>(
    prepared: &Prepared,
    recover: impl FnOnce(&Prepared, &mut dyn FnMut(Step)) -> Result<T, RecoverError>,
) -> Result<T> {
    prepared.kept.iter().for_each(KeptSegments::start_last_scan);
    let size = prepared.run.segment_size.bytes();
    let replayed = prepared.plan.replayed_bytes().next_multiple_of(size);
    let mut bar: Option<(&'static str, Progress)> = None;
    let finish = |bar: &mut Option<(&'static str, Progress)>| {
        if let Some((_, bar)) = bar.take() {
            bar.finish();
        }
    };
    let restored = recover(prepared, &mut |step| {
        let (label, bytes, total) = match step {
            Step::Copied(bytes) => ("copying", bytes, prepared.base.bytes()),
            Step::Replayed(bytes) => ("replaying", bytes, replayed),
            Step::Writing => return finish(&mut bar),
        };
        if bar.as_ref().is_none_or(|(of, _)| *of != label) {
            finish(&mut bar);
            bar = Some((label, Progress::bytes(label, total)));
        }
        if let Some((_, bar)) = &mut bar {
            bar.advance(bytes);
        }
    });
    finish(&mut bar);
    Ok(restored?)
}

/// Returns lines on the start, the target, the end of replay, and the expected duration.
fn plan_text(Prepared { plan, duration, .. }: &Prepared) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "  start: {}, consistent at {}", plan.start, plan.consistent);
    let target = harmless(&plan.target.to_string()).into_owned();
    let last = plan
        .last_commit
        .map_or_else(String::new, |time| format!(", last commit or abort at {}", time_text(time)));
    let _ = writeln!(text, "  target: {target}, at {} on timeline {}{last}", plan.stop, plan.timeline);
    if let Some(next) = plan.next_of_name {
        let _ = writeln!(
            text,
            "  another restore point of this name follows at {next}: recovery stops at the first; --to {next} stops after the other"
        );
    }
    if let Some(checkpoint) = &plan.checkpoint {
        let _ = writeln!(
            text,
            "  Walden replays {} of WAL to the checkpoint of {} (redo pointer {}), one of {}",
            units::bytes(plan.replayed_bytes()),
            Timestamp::from_unix_seconds(checkpoint.fields.time),
            checkpoint.fields.redo,
            plan.checkpoints
        );
    }
    text + &duration_text(duration)
}

/// Warns of damage that ends the WAL.
fn warn_of_damage(plan: &Plan) {
    if let Some(damage) = &plan.damage {
        output::print_line(&format!("warning: {damage}"));
        output::print_line(&format!("hint: {}", damage.hint().unwrap_or_default()));
    }
}

/// Warns of databases and tablespaces whose files are removed although the target precedes the commit of
/// their drop.
fn warn_of_drops<'a>(drops: impl IntoIterator<Item = &'a EarlyDrop>) {
    for drop in drops {
        output::print_line(&format!("warning: {drop}"));
        let previous = drop.previous;
        let repair = drop.database.map_or_else(String::new, |oid| {
            format!("; then UPDATE pg_database SET datconnlimit = -1 WHERE oid = {oid}, as the drop has marked it as invalid")
        });
        output::print_line(&format!(
            "hint: to keep them, stop at the record before it: --to {previous}{repair}"
        ));
    }
}

/// Warns of an incomplete segment after the WAL.
fn warn_of_partial(UnreadPartial { file, end }: &UnreadPartial) {
    output::print_line(&format!("warning: recovery does not read {file}, which follows and reaches {end}"));
    let segment = file.trim_end_matches(".partial");
    output::print_line(&format!(
        "hint: to recover to its end, copy it (walden archive get fetches it) into pg_wal of the new data directory as {segment} before \
         PostgreSQL starts"
    ));
}

/// Speed and amount of a recovery.
fn amounts_text(plan: &Plan, restored: &Restored, seconds: f64) -> String {
    let rate = plan.replayed_bytes() as f64 / seconds.max(0.001);
    format!(
        "{seconds:.1} s ({} of WAL a second): {} records replayed, {} pages written, {} copied",
        units::bytes(rate as u64),
        units::count(restored.records),
        units::count(restored.pages),
        units::bytes(restored.copied_bytes),
    )
}

/// Returns a line on the expected duration, or nothing without a sample of replay.
fn duration_text(duration: &ExpectedDuration) -> String {
    let (Some(to), Some(rate)) = (duration.seconds_to, duration.replayed_bytes_per_second) else {
        return String::new();
    };
    format!(
        "  Expected duration: {} to {}, for a copy of {} at {} to {} a second (not measured), and replay at {} a second (a sample)\n",
        rounded(duration.seconds_from),
        rounded(to),
        units::bytes(duration.copied_bytes),
        units::bytes(COPY_BYTES_PER_SECOND[0] as u64),
        units::bytes(COPY_BYTES_PER_SECOND[1] as u64),
        units::bytes(rate as u64),
    )
}

/// Formats a duration without digits that would pretend precision.
fn rounded(seconds: f64) -> String {
    match seconds {
        ..1.0 => "less than 1 s".to_owned(),
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_range_with_its_basis() {
        let text = duration_text(&ExpectedDuration::new(10_000_000_000, 100_000_000_000, Some(200e6)));
        assert!(text.contains("4 min to 27 min") && text.contains("200.0 MB a second (a sample)"), "{text}");
        assert_eq!(duration_text(&ExpectedDuration::new(10_000_000_000, 1, None)), "");
    }

    #[test]
    fn a_mapping_has_two_folders() {
        let mapping = |old: &str, new: &str| Ok((PathBuf::from(old), PathBuf::from(new)));
        assert_eq!(parse_mapping("/a=/b"), mapping("/a", "/b"));
        assert_eq!(parse_mapping(r"/a\=1=/b\c"), mapping("/a=1", r"/b\c"));
        for wrong in ["", "/a", "/a=", "=/b", "/a=/b=/c"] {
            assert!(parse_mapping(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_are_recognized_by_their_form() {
        assert_eq!(parse_target("latest"), Ok(Target::Latest));
        assert_eq!(parse_target("2/3A0001F8"), Ok(Target::Lsn(Lsn(0x2_3A00_01F8))));
        assert_eq!(parse_target("xid:731"), Ok(Target::Xid(731)));
        assert_eq!(parse_target("xid:4294968038"), Ok(Target::Xid(742)));
        assert_eq!(parse_target("name:before upgrade"), Ok(Target::Name("before upgrade".into())));
        assert_eq!(parse_target("2026-11-20 10:00+00"), Ok(Target::Time(1_795_168_800_000_000)));
        for wrong in ["", "xid:2", "xid:", "name:", "yesterday", &format!("name:{}", "x".repeat(64))] {
            assert!(parse_target(wrong).is_err(), "{wrong}");
        }
    }
}
