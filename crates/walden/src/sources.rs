//! Opens each `SOURCE`: segments, folders of segments, tar files, and archives of `walden archive`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit};
use walden_archive::diverging::{DIVERGING_HINT, Diverging, find_diverging};
use walden_archive::source::{self, SourceOptions};
use walden_archive::sources::{self, is_archive};
use walden_archive::{Archive, Extent};
use walden_archiving::place::Place;
use walden_explain::{Bound, StepBack, second_text};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;
use walden_source::datadir::{ControlFile, DataDir};
use walden_source::inventory::{Duplicate, FileKind, Gap, Inventory, Run, Unreadable};
use walden_source::scan::Damage;

use crate::progress::Waiting;
use crate::{DAMAGED, output, terminal};

/// The segments needed from archives. From files and folders, more may be read, which does no harm.
#[derive(Clone, Copy, Debug)]
pub struct SourceRange {
    /// The timeline on which the WAL ends.
    pub timeline: Option<Timeline>,
    /// Start of reading.
    pub from: Option<Bound>,
    /// End of reading.
    pub to: Option<Bound>,
}

impl SourceRange {
    /// Selects everything on a timeline and its ancestors.
    pub fn all(timeline: Option<Timeline>) -> SourceRange {
        SourceRange { timeline, from: None, to: None }
    }
}

/// Finds the segments in sources. An archive is read along its newest timeline, unless another timeline is
/// given or another source is a data directory on another timeline.
///
/// A range that ends before it starts is wrong usage.
pub fn open(sources: &[PathBuf], range: &SourceRange) -> Result<Inventory> {
    open_from(sources, range, range.from)
}

/// Like [`open`], but includes the WAL before the range, in which replay starts.
pub fn open_with_past(sources: &[PathBuf], range: &SourceRange) -> Result<Inventory> {
    open_from(sources, range, None)
}

/// Finds the segments from a bound on. The bound is at or before the range's start.
fn open_from(sources: &[PathBuf], range: &SourceRange, from: Option<Bound>) -> Result<Inventory> {
    let is_inverted = match (range.from, range.to) {
        (Some(Bound::Lsn(from)), Some(Bound::Lsn(to))) => from > to,
        (Some(Bound::Time(from)), Some(Bound::Time(to))) => from > to,
        _ => false,
    };
    if is_inverted {
        crate::wrong_usage("--to is before --from: expected a range that ends where it starts or later");
    }
    if sources.iter().any(|path| path.as_os_str() == "-" && !path.exists()) {
        crate::wrong_usage(
            "cannot read segments from standard input (-), as they are read more than once: write them to files first",
        );
    }
    let (archives, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        sources.iter().cloned().partition(|path| is_archive(path));
    let archives = archives.iter().map(|place| open_archive(place)).collect::<Result<Vec<_>>>()?;
    allow_open_files();
    let bound = |bound| match bound {
        Bound::Lsn(lsn) => source::Bound::Lsn(lsn),
        Bound::Time(micros) => source::Bound::Time(micros),
    };
    let of_server = || if archives.is_empty() { None } else { timeline_of_server(&paths) };
    let options = SourceOptions::new(terminal::io_threads())
        .timeline(range.timeline.or_else(of_server))
        .from(from.map(bound))
        .to(range.to.map(bound));
    if options.timeline.is_none() {
        archives.iter().for_each(|(_, archive)| warn_if_diverging(archive));
    }
    // May take time: opens many files, decompresses tar files, lists archives.
    let waiting =
        sources.first().map(|first| Waiting::new(format!("opening {}", harmless(&first.to_string_lossy()))));
    let found = sources::open(&archives, &paths, &options)?;
    drop(waiting);
    for note in &found.notes {
        eprintln!("note: {note}");
    }
    warn_if_outside(&found.inventory, &archives, range);
    Ok(found.inventory)
}

/// Warns if two servers wrote an archive: it is read along the newest timeline.
fn warn_if_diverging(archive: &Archive) {
    // If the archive cannot be listed, opening it reports that.
    if let Ok(Some(diverging)) = find_diverging(archive, None, None) {
        let Diverging { timeline, left_by, .. } = diverging;
        eprintln!(
            "warning: {diverging}; the WAL is read along timeline {left_by}, and --timeline {timeline} names the other"
        );
    }
}

/// Refuses archives that two servers wrote among the sources, unless another source is a data directory,
/// whose timeline is followed. `base` is the base backup, if there is one.
pub fn expect_one_history_in(sources: &[PathBuf], base: Option<&Path>) -> Result<()> {
    let (archives, paths): (Vec<&PathBuf>, Vec<&PathBuf>) = sources.iter().partition(|path| is_archive(path));
    if paths.iter().any(|path| find_control_file(path).is_some()) {
        return Ok(());
    }
    let start = base.and_then(find_control_file).map(|control| control.timeline);
    archives.iter().try_for_each(|place| expect_one_history(&open_archive(place)?.1, start))
}

/// Refuses an archive that two servers wrote, for commands that must not choose one of them. `start` is the
/// timeline of the base backup, if there is one.
pub fn expect_one_history(archive: &Archive, start: Option<Timeline>) -> Result<()> {
    match find_diverging(archive, None, start)? {
        Some(diverging) => {
            Err(output::with_hint(format!("cannot choose a timeline: {diverging}"), DIVERGING_HINT))
        }
        None => Ok(()),
    }
}

/// Raises the limit of open files as far as the system permits, so that the segments of a server with a large
/// `max_wal_size` can stay open.
fn allow_open_files() {
    const ENOUGH: u64 = 64 << 10;
    let granted = rustix::process::getrlimit(Resource::Nofile);
    let wanted = granted.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if granted.current.is_some_and(|current| current < wanted) {
        // If this fails, fewer files stay open.
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..granted });
    }
}

/// Warns that a range or a view by time is inexact.
pub fn warn_of_step_back(step: Option<StepBack>) {
    if let Some(step) = step {
        eprintln!("warning: {step}: selections and views by time may be incomplete; use positions (LSNs)");
    }
}

/// Returns the timeline of a data directory among the sources, or of the data directory that contains a
/// source, such as its `pg_wal`.
fn timeline_of_server(paths: &[PathBuf]) -> Option<Timeline> {
    let (path, timeline) = paths.iter().find_map(|path| Some((path, find_control_file(path)?.timeline)))?;
    eprintln!(
        "note: the WAL is read along timeline {timeline}, on which {} is; --timeline chooses another timeline",
        path.display()
    );
    Some(timeline)
}

/// Reads the control file of a data directory, or of the one that contains a path.
fn find_control_file(path: &Path) -> Option<ControlFile> {
    [path.to_owned(), path.join("..")].iter().find_map(|place| ControlFile::read_data_directory(place))
}

/// Warns of a range that has nothing of the log: empty tables would look like an idle server.
fn warn_if_outside(inventory: &Inventory, archives: &[(String, Archive)], range: &SourceRange) {
    let Some((start, end)) = positions(inventory) else { return };
    let is_outside = |start: Lsn, end: Lsn| {
        matches!(range.from, Some(Bound::Lsn(from)) if from >= end)
            || matches!(range.to, Some(Bound::Lsn(to)) if to <= start)
    };
    if is_outside(start, end) {
        // An archive yields only segments of the range.
        let (start, end) = extents(archives, range).into_iter().fold((start, end), join);
        eprintln!("warning: nothing is in the range: the segments are from {start} to {end}");
    }
}

/// Returns the start LSN of the first segment and the end LSN of the last segment.
fn positions(inventory: &Inventory) -> Option<(Lsn, Lsn)> {
    let starts = inventory.runs.iter().map(Run::start).min();
    starts.zip(inventory.runs.iter().map(Run::end).max())
}

/// The extents of archives. An archive that cannot be listed again is left out.
fn extents(archives: &[(String, Archive)], range: &SourceRange) -> Vec<Extent> {
    let of = |(_, archive): &(String, Archive)| source::extent(archive, range.timeline).ok().flatten();
    archives.iter().filter_map(of).collect()
}

fn join((start, end): (Lsn, Lsn), extent: Extent) -> (Lsn, Lsn) {
    (start.min(extent.start), end.max(extent.end))
}

/// The positions and times that the sources have, as a sentence. The inventory has only the range of an
/// archive.
pub fn describe_extent(
    sources: &[PathBuf],
    range: &SourceRange,
    inventory: &Inventory,
    threads: usize,
) -> String {
    let archives = sources.iter().filter(|path| is_archive(path)).map(|place| open_archive(place));
    let archives: Vec<_> = archives.filter_map(Result::ok).collect();
    let extents = extents(&archives, range);
    let read = || walden_explain::Timeline::read(&inventory.runs, threads, |_| {}).times();
    // The times of the archive's segments that are in the inventory are among the extent's times, if it has
    // any.
    let has_files = sources.len() > archives.len() || extents.iter().any(|extent| extent.times.is_none());
    let files = if has_files { read() } else { None };
    let seconds = |micros: i64| micros.div_euclid(1_000_000);
    let archived = extents.iter().filter_map(|extent| extent.times);
    let archived = archived.map(|(first, last)| (seconds(first.min(last)), seconds(first.max(last))));
    let ended = archived.chain(files).reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
    let times = ended.map_or_else(
        || "has the end of no transaction".to_owned(),
        |(first, last)| {
            format!("has transactions that ended from {} to {}", second_text(first), second_text(last))
        },
    );
    let found = positions(inventory).map(|found| extents.into_iter().fold(found, join));
    let positions = found.map_or_else(String::new, |(start, end)| format!(" ({start} to {end})"));
    format!("the source{positions} {times}")
}

/// Checks that all segments are from one cluster: LSNs, blocks and transactions of different clusters are
/// unrelated.
pub fn expect_one_cluster(inventory: &Inventory) -> Result<()> {
    let mut clusters = inventory.runs.iter().map(|run| run.system_id);
    let first = clusters.next();
    match first.zip(clusters.find(|other| Some(*other) != first)) {
        Some((one, other)) => bail!(
            "cannot read segments of two clusters together, with the system identifiers {one} and {other}: give the folder or the segments of one cluster"
        ),
        None => Ok(()),
    }
}

fn open_archive(place: &Path) -> Result<(String, Archive)> {
    let place = place.to_string_lossy().into_owned();
    let (archive, _) = Place::from_url(place.clone()).open()?;
    Ok((place, archive))
}

/// Prints a line for each gap and each file whose WAL is not read.
pub fn note_omitted(inventory: &Inventory) {
    note_omitted_from(inventory, Lsn(0));
}

/// Prints the same for WAL that is read on a base backup, if any: no gap before its start matters.
pub fn note_omitted_after_base(inventory: &Inventory, base: Option<&Path>) {
    note_omitted_from(inventory, base.and_then(start_of_base).unwrap_or_default());
}

/// Returns where replay on a base backup starts. `None` if it cannot be read, which is reported where it is.
pub fn start_of_base(base: &Path) -> Option<Lsn> {
    DataDir::open_at_rest(base).ok().map(|base| base.redo_from())
}

/// Prints the same for WAL that is read from a position on.
pub fn note_omitted_from(inventory: &Inventory, from: Lsn) {
    // An error names each file that cannot be read.
    let unreadable: Vec<SegmentName> = inventory.unreadable.iter().filter_map(segment_name).collect();
    let is_unreadable = |gap: &Gap| {
        let names = unreadable.iter().filter(|name| gap.first <= **name && **name <= gap.last);
        names.count() as u64 >= gap.segments
    };
    let size = inventory.runs.first().map_or(SegmentSize::DEFAULT, |run| run.segment_size);
    let is_before = |gap: &Gap| gap.last.start(size).is_some_and(|last| last.0 + size.bytes() <= from.0);
    for gap in inventory.gaps().into_iter().filter(|gap| !is_unreadable(gap) && !is_before(gap)) {
        eprintln!("warning: {gap}");
    }
    for segment in inventory.restarts().filter(|segment| segment.start >= from) {
        eprintln!("warning: {}", segment.restart_text());
    }
    note_duplicates(&inventory.duplicates);
    for file in inventory.longer() {
        let (path, expected, found) = (file.path.display(), file.segment_size.bytes(), file.size_on_disk);
        eprintln!(
            "warning: {path}: expected {expected} bytes, found {found}; the bytes after the segment are not read"
        );
    }
    let (spares, bytes) = inventory.spare_bytes();
    if spares > 0 {
        let bytes = units::bytes(bytes);
        let (files, verb) =
            (counted(spares as u64, "recycled file"), if spares == 1 { "contains" } else { "contain" });
        eprintln!("note: {files} ({bytes}) {verb} no new WAL yet");
    }
}

/// The segment that a file is named as.
fn segment_name(file: &Unreadable) -> Option<SegmentName> {
    match FileKind::from_name(file.path.file_name()?.to_str()?) {
        FileKind::Segment { name, .. } => Some(name),
        _ => None,
    }
}

/// Prints notes on duplicate segments. An archive that is read together with the `pg_wal` of its server has
/// hundreds of them, so more than a few are one line.
fn note_duplicates(duplicates: &[Duplicate]) {
    const MAX_LINES: usize = 3;
    let paths =
        |one: &Duplicate| (one.dropped.path.display().to_string(), one.kept.path.display().to_string());
    match duplicates {
        [first, ..] if duplicates.len() > MAX_LINES => {
            let (count, (dropped, kept)) = (units::count(duplicates.len() as u64), paths(first));
            eprintln!(
                "note: {count} files hold the same segments as others and are left out, such as {dropped} beside {kept}"
            );
        }
        few => {
            for (dropped, kept) in few.iter().map(paths) {
                eprintln!("note: {dropped} holds the same segment as {kept} and is left out");
            }
        }
    }
}

/// Prints an error for each file that cannot be read, and what to do about these. Returns whether there is
/// any.
pub fn report_unreadable(inventory: &Inventory) -> bool {
    for unreadable in &inventory.unreadable {
        eprintln!("error: {unreadable}");
    }
    let mut hints: Vec<&str> = inventory.unreadable.iter().filter_map(output::hint_of_unreadable).collect();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        eprintln!("hint: {hint}");
    }
    !inventory.unreadable.is_empty()
}

/// Prints the unreadable files and the damage. Returns the exit status.
pub fn ended(inventory: &Inventory, damage: Option<&Damage>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    if report_unreadable(inventory) {
        code = ExitCode::from(DAMAGED);
    }
    if let Some(damage) = damage {
        output::report_diagnostic(damage);
        code = ExitCode::from(DAMAGED);
    }
    code
}
