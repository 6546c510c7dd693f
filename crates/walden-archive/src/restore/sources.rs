//! Combines the sources that a user names into one inventory: segments, folders of segments, tar files, and
//! archives.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use walden_format::lsn::{Lsn, Timeline};
use walden_source::history::{History, HistoryError};
use walden_source::inventory::{IgnoredReason, Inventory, InventoryError};
use walden_source::timelines::Stretch;

use crate::archive::{Archive, ArchiveError};
use crate::objects::name::{ArchivedFile, IDENTITY};
use crate::restore::log::stretches;
use crate::restore::source::{self, Bound, Source, SourceOptions};

/// The WAL in a set of sources.
#[derive(Debug)]
pub struct Sources {
    /// The segments.
    pub inventory: Inventory,
    /// Notes for the user, one line each: on how timelines are followed, and on damaged files that are
    /// replaced by others.
    pub notes: Vec<String>,
}

/// Reasons for failing to read sources, alone or together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourcesError {
    /// An archive cannot be read.
    #[error("cannot read the archive {place}")]
    Archive {
        /// Location of the archive.
        place: String,
        /// The error of the archive.
        #[source]
        error: Box<ArchiveError>,
    },
    /// Archives of two clusters, with their system identifiers.
    #[error("cannot read archives of two clusters together: system identifiers {0} and {1}")]
    TwoClusters(u64, u64),
    /// Files and folders cannot be read.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// A timeline's history cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Path of the history file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A timeline's history is invalid.
    #[error("cannot use {}", .path.display())]
    History {
        /// Path of the history file.
        path: PathBuf,
        /// The problem with it.
        #[source]
        error: HistoryError,
    },
    /// The timeline has no segments.
    #[error("cannot follow timeline {0}: the sources have no segments along it")]
    NothingAlong(Timeline),
}

walden_format::diagnostics! { SourcesError {
    Self::Archive { error, .. } => of(error),
    Self::Inventory(error) => of(error),
    Self::TwoClusters(..) => "sources-two-clusters",
    Self::NothingAlong(_) => "sources-no-timeline",
    Self::Read { .. } | Self::History { .. } => none,
} }

/// Returns whether a source is a URL or the folder of an archive.
pub fn is_archive(source: &Path) -> bool {
    source.to_str().is_some_and(|text| text.contains("://")) || source.join(IDENTITY).is_file()
}

/// Finds the segments in files, folders and archives. Each archive has its location for messages.
///
/// An archive contributes the WAL along its newest timeline, unless the options name another timeline. The
/// options' range selects the segments of archives. Files and folders may contribute segments outside the
/// range. If a segment is in several files, reads them and chooses one that is intact.
///
/// # Errors
/// A source is unreadable, archives belong to two clusters, or there are no segments.
pub fn open(
    archives: &[(String, Archive)],
    paths: &[PathBuf],
    options: &SourceOptions,
) -> Result<Sources, SourcesError> {
    let open_archive = |(place, archive): &(String, Archive)| {
        let failed = |error| SourcesError::Archive { place: place.clone(), error: Box::new(error) };
        source::open(archive, options).map_err(failed)
    };
    let logs = archives.iter().map(open_archive).collect::<Result<Vec<Source>, SourcesError>>()?;
    if let [first, others @ ..] = logs.as_slice()
        && let Some(other) = others.iter().find(|other| other.system_id != first.system_id)
    {
        return Err(SourcesError::TwoClusters(first.system_id, other.system_id));
    }
    let segments = logs.iter().flat_map(|log| log.segments.iter().cloned()).collect();
    let archived = |(_, archive): &(String, Archive)| source::finder(archive);
    let finders = archives.iter().map(archived).collect();
    let inventory = Inventory::with_segments(paths, segments, finders, options.threads)?;
    let mut sources = Sources { inventory, notes: Vec::new() };
    if let Some(log) = logs.first() {
        sources.inventory.follow(log.system_id, &log.stretches);
        sources.note_timelines(&log.stretches);
    } else if let Some(timeline) = options.timeline {
        sources.follow_in_folders(timeline)?;
    }
    let lsn = |bound, default| match bound {
        Some(Bound::Lsn(lsn)) => lsn,
        _ => default,
    };
    let range = lsn(options.from, Lsn(0))..lsn(options.to, Lsn(u64::MAX));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(options.threads);
    let substitutions = sources.inventory.choose_intact(range, threads);
    sources.notes.extend(substitutions.iter().map(ToString::to_string));
    Ok(sources)
}

impl Sources {
    /// Follows a timeline through segments in folders, as far back as its history is among the sources.
    fn follow_in_folders(&mut self, timeline: Timeline) -> Result<(), SourcesError> {
        let wanted = ArchivedFile::History(timeline).to_string();
        let history = self.find_history(&wanted)?;
        let parse = |(path, text): (PathBuf, Vec<u8>)| {
            History::parse(timeline, &text).map_err(|error| SourcesError::History { path, error })
        };
        let history = history.map(parse).transpose()?;
        if history.is_none() && timeline > 1 {
            let note =
                format!("{wanted} is not among the sources: only timeline {timeline} itself is followed");
            self.notes.push(note);
        }
        let stretches = stretches(timeline, history.as_ref());
        let mut clusters: Vec<u64> = self.inventory.runs.iter().map(|run| run.system_id).collect();
        clusters.dedup();
        for cluster in clusters {
            self.inventory.follow(cluster, &stretches);
        }
        if self.inventory.runs.is_empty() {
            return Err(SourcesError::NothingAlong(timeline));
        }
        self.note_timelines(&stretches);
        Ok(())
    }

    /// Reads the history file with this name, from the folders or a tar file.
    fn find_history(&self, wanted: &str) -> Result<Option<(PathBuf, Vec<u8>)>, SourcesError> {
        let ignored = &self.inventory.ignored;
        let mut histories = ignored.iter().filter(|ignored| ignored.reason == IgnoredReason::History);
        if let Some(found) = histories.find(|ignored| ignored.path.ends_with(wanted)) {
            let path = found.path.clone();
            return match std::fs::read(&path) {
                Ok(text) => Ok(Some((path, text))),
                Err(error) => Err(SourcesError::Read { path, error }),
            };
        }
        Ok(self.inventory.histories.iter().find(|(path, _)| path.ends_with(wanted)).cloned())
    }

    /// Adds a note on the followed timelines, if there are several.
    fn note_timelines(&mut self, stretches: &[Stretch]) {
        let is_other = |reason| reason == IgnoredReason::OtherTimeline;
        let left_out = self.inventory.ignored.iter().filter(|ignored| is_other(ignored.reason)).count();
        let Some(last) = stretches.last().filter(|_| stretches.len() > 1 || left_out > 0) else { return };
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
        self.notes.push(format!("the WAL along timeline {}{before}{rest}", last.timeline));
    }
}
