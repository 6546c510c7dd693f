//! What `SOURCE` names: segments, folders of segments, tar files, and archives of `walden archive`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use walden_archive::history::History;
use walden_archive::log::stretches;
use walden_archive::name::{ArchivedFile, IDENTITY};
use walden_archive::source::{self, Source, SourceOptions};
use walden_explain::Bound;
use walden_format::lsn::Timeline;
use walden_source::inventory::{IgnoredReason, Inventory};
use walden_source::timelines::Stretch;

use crate::archive::Place;
use crate::terminal;

/// Which segments of archives are needed. What else is read of files and folders does no harm.
#[derive(Clone, Copy, Debug)]
pub struct SourceRange {
    /// The timeline on which the log ends.
    pub timeline: Option<Timeline>,
    /// Where reading starts.
    pub from: Option<Bound>,
    /// Where reading ends.
    pub to: Option<Bound>,
}

impl SourceRange {
    /// Everything on a timeline and its ancestors.
    pub fn all(timeline: Option<Timeline>) -> SourceRange {
        SourceRange { timeline, from: None, to: None }
    }
}

/// Finds the segments in sources. An archive is one log, along its newest timeline unless another one is wanted.
pub fn open(sources: &[PathBuf], range: &SourceRange) -> Result<Inventory> {
    let (archives, paths): (Vec<&PathBuf>, Vec<&PathBuf>) = sources.iter().partition(|path| is_archive(path));
    let logs = archives.iter().map(|path| open_archive(path, range)).collect::<Result<Vec<Source>>>()?;
    if let [first, .., other] = logs.as_slice()
        && first.system_id != other.system_id
    {
        bail!(
            "cannot read archives of two clusters together: system identifiers {} and {}",
            first.system_id,
            other.system_id
        );
    }
    let segments = logs.iter().flat_map(|log| log.segments.iter().cloned()).collect();
    let mut inventory = Inventory::with_segments(&paths, segments, terminal::io_threads())?;
    if let Some(log) = logs.first() {
        inventory.follow(log.system_id, &log.stretches);
        tell_timelines(&inventory, &log.stretches);
    } else if let Some(timeline) = range.timeline {
        follow_in_folders(&mut inventory, timeline)?;
    }
    Ok(inventory)
}

/// Whether a source is a URL, or a folder that is an archive's.
fn is_archive(source: &Path) -> bool {
    source.to_str().is_some_and(|text| text.contains("://")) || source.join(IDENTITY).is_file()
}

fn open_archive(place: &Path, range: &SourceRange) -> Result<Source> {
    let place = place.to_string_lossy().into_owned();
    let (archive, _) = Place::of(place.clone()).open()?;
    let bound = |bound| match bound {
        Bound::Lsn(lsn) => source::Bound::Lsn(lsn),
        Bound::Time(seconds) => source::Bound::Time(seconds.saturating_mul(1_000_000)),
    };
    let options = SourceOptions {
        timeline: range.timeline,
        from: range.from.map(bound),
        to: range.to.map(bound),
        threads: terminal::io_threads(),
    };
    source::open(&archive, &options).with_context(|| format!("cannot read the archive {place}"))
}

/// Follows a timeline through segments in folders, as far back as its history lies beside them.
fn follow_in_folders(inventory: &mut Inventory, timeline: Timeline) -> Result<()> {
    let histories = inventory.ignored.iter().filter(|ignored| ignored.reason == IgnoredReason::History);
    let wanted = ArchivedFile::History(timeline).to_string();
    let file = histories.map(|ignored| &ignored.path).find(|path| path.ends_with(&wanted));
    let in_tar = inventory.histories.iter().find(|(path, _)| path.ends_with(&wanted));
    let history = match (file, in_tar) {
        (Some(path), _) => {
            Some((path, std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?))
        }
        (None, Some((path, text))) => Some((path, text.clone())),
        (None, None) => None,
    };
    let parse = |(path, text): (&PathBuf, Vec<u8>)| {
        History::parse(timeline, &text).with_context(|| format!("cannot use {}", path.display()))
    };
    let history = history.map(parse).transpose()?;
    if history.is_none() && timeline > 1 {
        eprintln!("note: {wanted} is not among the sources: only timeline {timeline} itself is followed");
    }
    let stretches = stretches(timeline, history.as_ref());
    let mut clusters: Vec<u64> = inventory.runs.iter().map(|run| run.system_id).collect();
    clusters.dedup();
    for cluster in clusters {
        inventory.follow(cluster, &stretches);
    }
    if inventory.runs.is_empty() {
        bail!("cannot follow timeline {timeline}: the sources have no segments along it");
    }
    tell_timelines(inventory, &stretches);
    Ok(())
}

/// Says which timelines are followed, if there is more than one to choose from.
fn tell_timelines(inventory: &Inventory, stretches: &[Stretch]) {
    let is_other = |reason| reason == IgnoredReason::OtherTimeline;
    let left_out = inventory.ignored.iter().filter(|ignored| is_other(ignored.reason)).count();
    if let Some(last) = stretches.last().filter(|_| stretches.len() > 1 || left_out > 0) {
        let changes = stretches.iter().filter_map(|stretch| Some((stretch.timeline, stretch.end?)));
        let changes: Vec<String> =
            changes.map(|(timeline, end)| format!("timeline {timeline} until {end}")).collect();
        let before =
            if changes.is_empty() { String::new() } else { format!(", after {}", changes.join(", ")) };
        let rest = match left_out {
            0 => String::new(),
            1 => "; 1 segment of another timeline is left out".to_owned(),
            many => format!("; {many} segments of other timelines are left out"),
        };
        eprintln!("note: the log along timeline {}{before}{rest}", last.timeline);
    }
}
