//! Base backups and stopped data directories that WAL continues.

use std::io;
use std::path::{Path, PathBuf};

use walden_format::lsn::{Lsn, Timeline};
use walden_redo::BasePages;

use crate::datadir::{DataDir, DataDirError, DatabaseState};
use crate::inventory::{Run, SegmentFile};
use crate::timelines::Lineage;

/// Why WAL cannot be replayed into the pages of a data directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseError {
    /// The folder is no data directory.
    #[error("{0}")]
    DataDir(#[from] DataDirError),
    /// The folder is the data directory of a server that was not stopped.
    #[error(
        "{}: neither a base backup nor a cleanly stopped server's data directory: it has no backup_label, and its \
         server was {state}",
        path.display()
    )]
    Running {
        /// The folder.
        path: PathBuf,
        /// The state of the server.
        state: DatabaseState,
    },
    /// The WAL does not contain the position from which the base must be replayed.
    #[error(
        "the WAL does not contain {from}, at which replay of {} has to start{}",
        path.display(),
        log.map_or_else(String::new, |(start, end)| format!(", and the segments are from {start} to {end}"))
    )]
    NotContinued {
        /// The folder.
        path: PathBuf,
        /// The LSN at which replay has to start.
        from: Lsn,
        /// The start LSN of the cluster's first segment and the end LSN of its last segment.
        log: Option<(Lsn, Lsn)>,
    },
    /// The data directory to compare with belongs to a server that was not stopped cleanly.
    #[error(
        "{}: expected the data directory of a cleanly stopped server, found one that was {state}",
        path.display()
    )]
    NotStopped {
        /// The folder.
        path: PathBuf,
        /// The state of the server.
        state: DatabaseState,
    },
    /// The WAL does not contain the last checkpoint of a stopped server.
    #[error(
        "the WAL does not have the last checkpoint of {}: {redo} on timeline {timeline}",
        path.display()
    )]
    NoCheckpoint {
        /// The data directory.
        path: PathBuf,
        /// The redo pointer of the checkpoint.
        redo: Lsn,
        /// Timeline of the checkpoint.
        timeline: Timeline,
    },
    /// The WAL ends before the last checkpoint of a stopped server.
    #[error(
        "the WAL ends at {reached}, before the last checkpoint of {}, {checkpoint}",
        path.display()
    )]
    EndsBefore {
        /// The data directory.
        path: PathBuf,
        /// The position of the checkpoint.
        checkpoint: Lsn,
        /// The LSN at which the WAL ends.
        reached: Lsn,
    },
    /// The data directory is of another cluster than the WAL.
    #[error(
        "{}: the data directory belongs to another cluster than the WAL: expected system identifier {}, found {found}",
        path.display(),
        expected.map_or_else(|| "none".to_owned(), |id| id.to_string())
    )]
    OtherCluster {
        /// The folder.
        path: PathBuf,
        /// The system identifier of the WAL; `None` without WAL.
        expected: Option<u64>,
        /// The system identifier of the folder.
        found: u64,
    },
    /// Pages could not be kept or read.
    #[error("{0}")]
    Store(String),
    /// A page of the data directory cannot be read.
    #[error("{0}")]
    Page(#[source] io::Error),
}

walden_format::diagnostics! { BaseError {
    Self::DataDir(error) => of(error),
    Self::NotContinued { .. } => "base-not-continued": "give the segments from that position on",
    Self::NotStopped { state, .. } => "base-not-stopped": hint_for_state(*state),
    Self::NoCheckpoint { .. } => "base-no-checkpoint": "give the server's pg_wal as a further source",
    Self::Store(_) => "base-pages": "TMPDIR says where the temporary file is; with a larger --memory it is smaller",
    Self::Running { .. } => "base-running",
    Self::EndsBefore { .. } => "base-ends-before": "give the server's pg_wal as a further source",
    Self::OtherCluster { .. } => "base-other-cluster",
    Self::Page(_) => none,
} }

/// A base backup or data directory, and the LSN from which WAL is replayed on it.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) path: PathBuf,
    system_id: u64,
    timeline: Timeline,
    from: Lsn,
}

impl Base {
    pub(crate) fn new(path: PathBuf, data: &DataDir) -> Base {
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
    pub(crate) fn is_of(&self, lineage: &Lineage) -> bool {
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
///
/// # Errors
/// The folder cannot be read.
pub fn base_pages(path: Option<&Path>) -> io::Result<Box<dyn BasePages>> {
    let path = path.ok_or(io::ErrorKind::NotFound)?;
    Ok(Box::new(DataDir::open(path).map_err(io::Error::other)?))
}

/// Opens a base backup, and finds the run that continues it.
///
/// # Errors
/// The folder is no base backup, or no run continues it.
pub fn open_base(path: &Path, runs: &[Run]) -> Result<(usize, DataDir), BaseError> {
    let data = DataDir::open(path)?;
    if !data.is_backup() && data.control().state != DatabaseState::ShutDown {
        return Err(BaseError::Running { path: path.to_owned(), state: data.control().state });
    }
    same_cluster(&data, runs.iter())?;
    let base = Base::new(path.to_owned(), &data);
    let Some(index) = base.run_in(runs) else {
        let from = base.from;
        let of_cluster = || runs.iter().filter(|run| run.system_id == base.system_id);
        let log = of_cluster().map(Run::start).min().zip(of_cluster().map(Run::end).max());
        return Err(BaseError::NotContinued { path: path.to_owned(), from, log });
    };
    Ok((index, data))
}

/// Opens a stopped server's data directory, and finds the lineage that contains its last checkpoint.
pub(crate) fn open_stopped(path: &Path, lineages: &[Lineage]) -> Result<(usize, DataDir), BaseError> {
    let data = DataDir::open(path)?;
    let control = data.control();
    if control.state != DatabaseState::ShutDown {
        return Err(BaseError::NotStopped { path: path.to_owned(), state: control.state });
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
        let (redo, timeline) = (control.redo, control.timeline);
        return Err(BaseError::NoCheckpoint { path: path.to_owned(), redo, timeline });
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

fn same_cluster<'r>(
    data: &DataDir,
    mut runs: impl Iterator<Item = &'r Run> + Clone,
) -> Result<(), BaseError> {
    let id = data.control().system_identifier;
    if runs.clone().any(|run| run.system_id == id) {
        return Ok(());
    }
    let expected = runs.next().map(|run| run.system_id);
    Err(BaseError::OtherCluster { path: data.path().to_owned(), expected, found: id })
}

#[cfg(test)]
mod tests {
    use walden_format::lsn::SegmentSize;
    use walden_format::version::Major;
    use walden_testing::writer::LogWriter;

    use super::*;
    use crate::inventory::Inventory;

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
