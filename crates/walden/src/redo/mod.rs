//! `walden redo`: replays WAL into pages.

pub mod check;
mod replay;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use walden_format::lsn::{Lsn, Timeline};
use walden_redo::{BasePages, HintSettings, Observer};
use walden_source::datadir::{DataDir, DatabaseState};
use walden_source::inventory::{Inventory, Run, SegmentFile};
use walden_source::replay::{ReplayOptions, Replayed, replay_run};
use walden_source::scan::Damage;
use walden_source::timelines::{Lineage, lineages};

use crate::arguments::parse_size;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::{DAMAGED, memory, output};

/// Replay WAL into pages
#[derive(Args, Debug)]
pub struct RedoArgs {
    #[command(subcommand)]
    command: RedoCommand,
}

#[derive(Subcommand, Debug)]
enum RedoCommand {
    Check(check::CheckArgs),
    Replay(replay::ReplayArgs),
}

/// Runs the command.
pub fn run(args: &RedoArgs) -> Result<ExitCode> {
    match &args.command {
        RedoCommand::Check(args) => check::run(args),
        RedoCommand::Replay(args) => replay::run(args),
    }
}

/// Sources, base backup and memory of a replay.
#[derive(Args, Debug)]
struct Inputs {
    /// Segments, folders of segments, or archives of `walden archive` (a folder, or s3://BUCKET/PREFIX)
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// Follow the WAL history that ends on this timeline, including its ancestors [default: of an archive the
    /// newest; otherwise each timeline separately]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// A base backup in plain format, or a stopped server's data directory, from which the WAL continues:
    /// replay starts with its pages
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default:
    /// a quarter of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Threads: one replays; any others read and decompress ahead [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// Prints damage and unreadable files. Returns the exit status for them, if there are any.
fn report(inventory: &Inventory, damages: &[Damage]) -> Option<ExitCode> {
    let has_unreadable = sources::report_unreadable(inventory);
    for damage in damages {
        eprintln!("error: {damage}\nhint: {}", damage.hint());
    }
    (!damages.is_empty() || has_unreadable).then_some(ExitCode::from(DAMAGED))
}

/// The opened inputs.
struct Material {
    inventory: Inventory,
    /// The WAL to replay: the inventory's runs, preceded by those of their ancestors.
    lineages: Vec<Lineage>,
    base: Option<Base>,
    memory_bytes: usize,
    threads: usize,
}

impl Material {
    fn open(inputs: &Inputs) -> Result<Material> {
        let mut inventory = sources::open(&inputs.sources, &SourceRange::all(inputs.timeline))?;
        sources::tell_about_with_base(&inventory, inputs.base.as_deref());
        let base = inputs.base.as_deref().map(|path| open_base(path, &inventory)).transpose()?;
        let base = inputs.base.clone().zip(base).map(|(path, (_, data))| Base::new(path, &data));
        let memory_bytes = inputs.memory.unwrap_or_else(memory::quarter_of_machine);
        let threads = inputs.threads.map_or_else(crate::terminal::cores, usize::from);
        let lineages = lineages(std::mem::take(&mut inventory.runs));
        Ok(Material { inventory, lineages, base, memory_bytes, threads })
    }

    /// Returns the size of all segments in bytes.
    fn bytes(&self) -> u64 {
        let bytes = |lineage: &Lineage| lineage.run.segments.len() as u64 * lineage.run.segment_size.bytes();
        self.lineages.iter().map(bytes).sum()
    }

    /// Replays a lineage, up to the record at `last` if given.
    fn replay<O: Observer>(
        &self,
        index: usize,
        hints: Option<HintSettings>,
        last: Option<Lsn>,
        observer: &mut O,
        progress: &mut Progress,
    ) -> Result<Replayed> {
        let lineage @ Lineage { run, new_from } = &self.lineages[index];
        let base = self.base.as_ref().filter(|base| base.is_of(lineage));
        let base = base.map(|base| DataDir::open(&base.path)).transpose()?;
        let (memory_bytes, threads) = (self.memory_bytes, self.threads);
        let observed_from = new_from.unwrap_or(Lsn(0));
        let options = ReplayOptions::new(observed_from, memory_bytes)
            .base(base)
            .hints(hints)
            .last(last)
            .threads(threads);
        let replayed = replay_run(run, options, observer, |bytes| progress.advance(bytes));
        if let Some(failure) = replayed.store.failure() {
            let hint = "TMPDIR says where the temporary file is; with a larger --memory it is smaller";
            return Err(output::with_hint(failure.to_string(), hint));
        }
        Ok(replayed)
    }
}

/// A base, and where the WAL continues from it.
struct Base {
    path: PathBuf,
    system_id: u64,
    timeline: Timeline,
    from: Lsn,
}

impl Base {
    fn new(path: PathBuf, data: &DataDir) -> Base {
        let control = data.control();
        let (system_id, timeline) = (control.system_identifier, control.timeline);
        Base { path, system_id, timeline, from: data.redo_from() }
    }

    /// Returns the run that continues the base. If a promoted server has switched to another timeline since,
    /// that is still the run on the base's own timeline.
    fn run_in(&self, runs: &[Run]) -> Option<usize> {
        let goes_on =
            |run: &Run| run.system_id == self.system_id && run.goes_on_from(self.from, self.timeline);
        runs.iter().rposition(goes_on)
    }

    /// Returns whether a lineage continues the base. The segment in which a timeline starts also contains the
    /// end of the previous timeline.
    fn is_of(&self, lineage: &Lineage) -> bool {
        let size = lineage.run.segment_size.bytes();
        let has_start = |s: &&SegmentFile| s.start <= self.from && self.from < s.start.plus(size);
        let is_before_switch = || lineage.new_from.is_none_or(|switch| self.from < switch);
        lineage.run.system_id == self.system_id
            && lineage.run.segments.iter().find(has_start).is_some_and(|segment| {
                let timeline = segment.name.timeline;
                timeline == self.timeline || timeline > self.timeline && is_before_switch()
            })
    }
}

/// Opens the pages of a base that [`open_base`] has accepted.
pub fn base_pages(path: Option<&Path>) -> std::io::Result<Box<dyn BasePages>> {
    let path = path.ok_or(std::io::ErrorKind::NotFound)?;
    Ok(Box::new(DataDir::open(path).map_err(std::io::Error::other)?))
}

/// Opens a base backup, and finds the run that continues it.
pub fn open_base(path: &Path, inventory: &Inventory) -> Result<(usize, DataDir)> {
    let data = DataDir::open(path)?;
    if !data.is_backup() && data.control().state != DatabaseState::ShutDown {
        bail!(
            "{}: neither a base backup nor a cleanly stopped server's data directory: it has no backup_label, and its \
             server was {}",
            path.display(),
            data.control().state
        );
    }
    same_cluster(&data, inventory.runs.iter())?;
    let base = Base::new(path.to_owned(), &data);
    let Some(index) = base.run_in(&inventory.runs) else {
        let from = base.from;
        let of_cluster = || inventory.runs.iter().filter(|run| run.system_id == base.system_id);
        let ends = of_cluster().map(Run::start).min().zip(of_cluster().map(Run::end).max());
        let segments = ends
            .map_or_else(String::new, |(start, end)| format!(", and the segments are from {start} to {end}"));
        let path = path.display();
        let text = format!("the WAL does not continue from {path}: replay has to start at {from}{segments}");
        return Err(output::with_hint(text, "give the segments from that position on"));
    };
    Ok((index, data))
}

/// Opens a stopped server's data directory, and finds the lineage that contains its last checkpoint.
fn open_stopped(path: &Path, lineages: &[Lineage]) -> Result<(usize, DataDir)> {
    let data = DataDir::open(path)?;
    let control = data.control();
    if control.state != DatabaseState::ShutDown {
        let text = format!(
            "{}: expected the data directory of a cleanly stopped server, found one that was {}",
            path.display(),
            control.state
        );
        return Err(output::with_hint(text, hint_for_state(control.state)));
    }
    same_cluster(&data, lineages.iter().map(|lineage| &lineage.run))?;
    let has_checkpoint = |lineage: &Lineage| {
        let run = &lineage.run;
        run.system_id == control.system_identifier
            && run.timeline == control.timeline
            && run.start() <= control.redo
            && control.redo < run.end()
    };
    let Some(index) = lineages.iter().position(has_checkpoint) else {
        let text = format!(
            "the WAL does not have the last checkpoint of {}: {} on timeline {}",
            path.display(),
            control.redo,
            control.timeline
        );
        return Err(output::with_hint(text, "give the server's pg_wal as a further source"));
    };
    Ok((index, data))
}

/// Returns how to get the data directory of a cleanly stopped server. The pages of a stopped standby may be
/// newer than its last checkpoint, which is its primary's.
fn hint_for_state(state: DatabaseState) -> &'static str {
    match state.is_standby() {
        true => {
            "a standby's last checkpoint is older than its pages: promote it (pg_ctl promote) and stop it then, or name the data directory of its primary, stopped"
        }
        false => "pg_ctl stop -m fast",
    }
}

fn same_cluster<'r>(data: &DataDir, mut runs: impl Iterator<Item = &'r Run> + Clone) -> Result<()> {
    let id = data.control().system_identifier;
    if runs.clone().any(|run| run.system_id == id) {
        return Ok(());
    }
    let found = runs.next().map_or("none".into(), |run| run.system_id.to_string());
    bail!("{}: expected the cluster that the WAL is of, {found}, found {id}", data.path().display())
}

#[cfg(test)]
mod tests {
    use walden_format::lsn::SegmentSize;
    use walden_format::version::Major;
    use walden_testing::writer::LogWriter;

    use super::*;

    /// Writes segments of a timeline, each ended immediately by a switch.
    fn save_segments(folder: &Path, timeline: Timeline, numbers: std::ops::Range<u64>) {
        let mut log = LogWriter::new(Major::V15);
        log.info.timeline = timeline;
        log.start = log.info.segment_size.start_of(numbers.start);
        numbers.for_each(|_| log.switch());
        log.save(folder);
    }

    #[test]
    fn a_standby_is_to_be_promoted_and_a_primary_to_be_stopped() {
        const IN_ARCHIVE_RECOVERY: DatabaseState = DatabaseState::Other(5);
        const IN_PRODUCTION: DatabaseState = DatabaseState::Other(6);
        for state in [DatabaseState::ShutDownInRecovery, IN_ARCHIVE_RECOVERY] {
            let hint = hint_for_state(state);
            assert!(hint.contains("pg_ctl promote") && !hint.contains("-m fast"), "{state}: {hint}");
        }
        assert_eq!(hint_for_state(IN_PRODUCTION), "pg_ctl stop -m fast");
    }

    #[test]
    fn a_base_backup_of_a_timeline_that_was_left_goes_with_the_log_of_it() {
        let folder = tempfile::tempdir().unwrap();
        // The second timeline starts in segment 4, and the server of the first one continued to write.
        save_segments(folder.path(), 1, 2..8);
        save_segments(folder.path(), 2, 4..8);
        let runs = Inventory::search(&[folder.path()]).unwrap().runs;
        assert_eq!(runs.len(), 2);
        let base = |timeline, number: u64| Base {
            path: PathBuf::new(),
            system_id: runs[0].system_id,
            timeline,
            from: Lsn(number * SegmentSize::MIN.bytes() + 40),
        };
        for (timeline, number, expected) in
            [(1, 3, Some(0)), (1, 6, Some(0)), (2, 6, Some(1)), (2, 3, None), (1, 9, None)]
        {
            assert_eq!(base(timeline, number).run_in(&runs), expected, "{timeline} {number}");
        }
        assert_eq!(Base { system_id: 8, ..base(1, 3) }.run_in(&runs), None);
    }
}
