//! The whole log replayed from a base backup, and each full-page image held against the replayed page.
//!
//! Checksums say that records are as the server wrote them; replay says that they lead from one state of the pages to the next.

use serde::Serialize;
use walden_format::lsn::{Lsn, Timeline};
use walden_redo::check::Check;
use walden_source::datadir::DataDir;
use walden_source::inventory::{Gap, Inventory, InventoryError, Run};
use walden_source::replay::{ReplayOptions, replay_run};
use walden_source::scan::Damage;
use walden_source::timelines::Stretch;

use crate::archive::{Archive, ArchiveError};
use crate::out::source::{self, Bound, SourceOptions};

/// How the log is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The timeline that the log ends on; else the newest.
    pub timeline: Option<Timeline>,
    /// Bytes of memory for pages; more go to a temporary file.
    pub memory_bytes: usize,
    /// Threads; with more than one, another one reads and decodes ahead.
    pub threads: usize,
}

/// What replay found.
#[derive(Debug)]
pub struct Replayed {
    /// Where it began.
    pub from: Lsn,
    /// How far it got.
    pub reached: Lsn,
    /// The timeline that it ended on.
    pub timeline: Timeline,
    /// Segments that were read.
    pub segments: u64,
    /// Images against pages.
    pub check: Check,
    /// Where the log cannot be read; replay went on behind it, with pages that are not known.
    pub damages: Vec<Damage>,
    /// What is missing of the log; as behind damage.
    pub gaps: Vec<Gap>,
}

/// What of it is printed with a verification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReplaySummary {
    /// Where replay began.
    pub from: String,
    /// How far it got.
    pub reached: String,
    /// The timeline that it ended on.
    pub timeline: Timeline,
    /// Segments that were read.
    pub segments: u64,
    /// Records replayed.
    pub records: u64,
    /// Images of which the page before was not known, or whose page nobody replays.
    pub not_compared: u64,
    /// The first differences, in words.
    pub differences: Vec<String>,
    /// Records that did not fit their pages, in words.
    pub misfits: Vec<String>,
    /// Where the log could not be read.
    pub damaged: Vec<String>,
}

/// Why the log was not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The archive's.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The segments'.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The base is another cluster's.
    #[error(
        "cannot replay from this base backup: expected the archive's system identifier {expected}, found {found}"
    )]
    OtherCluster {
        /// The archive's.
        expected: u64,
        /// The base's.
        found: u64,
    },
    /// The archive does not have the log from the base on.
    #[error(
        "cannot replay from this base backup: expected the log from {from} on along timeline {timeline}, found none there"
    )]
    NoStart {
        /// Where replay has to start.
        from: Lsn,
        /// The timeline that was followed.
        timeline: Timeline,
    },
    /// The log leaves the base's timeline before the base's checkpoint: it is the log of another branch.
    #[error(
        "cannot replay from this base backup: expected timeline {followed} to go through {redo} on timeline {timeline}, the base's checkpoint, found another branch there"
    )]
    OtherTimeline {
        /// The timeline that was followed.
        followed: Timeline,
        /// The base's.
        timeline: Timeline,
        /// The redo pointer of the base's checkpoint.
        redo: Lsn,
    },
    /// The temporary file for pages failed.
    #[error("cannot keep pages: {0}")]
    Pages(String),
}

impl ReplayError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ReplayError::Archive(error) => error.hint(),
            ReplayError::Inventory(_) => None,
            ReplayError::OtherCluster { .. } => {
                Some("name a base backup of the cluster whose WAL is archived")
            }
            ReplayError::NoStart { .. } => {
                Some("walden archive list shows what is archived; --timeline follows another timeline")
            }
            ReplayError::OtherTimeline { .. } => Some(
                "--timeline follows another timeline; walden archive list shows them, and which base backups they go on from",
            ),
            ReplayError::Pages(_) => {
                Some("TMPDIR says where the temporary file is; with more --memory it is smaller")
            }
        }
    }
}

/// Replays the log of an archive from a base backup on. `progress` gets the bytes of the log done and of all of it.
///
/// # Errors
/// A base that the log does not go on from. What is wrong in the log is in the outcome.
pub fn replay(
    archive: &Archive,
    base: DataDir,
    options: Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Replayed, ReplayError> {
    let (inventory, timeline) = log_from(archive, &base, &options)?;
    let (from, gaps) = (base.redo_from(), inventory.gaps());
    let hints = base.control().hint_settings();
    let total = inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
    let mut replayed = Replayed {
        from,
        reached: from,
        timeline,
        segments: 0,
        check: Check::default(),
        damages: Vec::new(),
        gaps,
    };
    let (mut base, mut done) = (Some(base), 0);
    let mut runs: Vec<Run> = inventory.runs.into_iter().rev().collect();
    while let Some(mut run) = runs.pop() {
        let size = run.segment_size.bytes();
        let (memory_bytes, threads) = (options.memory_bytes, options.threads);
        let how = ReplayOptions {
            base: base.take(),
            hints: Some(hints),
            last: None,
            observed_from: Lsn(0),
            memory_bytes,
            threads,
        };
        let outcome = replay_run(&run, how, &mut replayed.check, |bytes| {
            done += bytes;
            replayed.segments += 1;
            progress(done, total);
        });
        if let Some(failure) = outcome.store.failure() {
            return Err(ReplayError::Pages(failure.to_string()));
        }
        replayed.reached = replayed.reached.max(outcome.reached);
        if let Some(damage) = outcome.damage {
            // What comes behind the damaged segment is replayed on pages that are not known.
            let at = run.segments.iter().position(|segment| damage.lsn.0 < segment.start.0 + size);
            let rest = run.segments.split_off(at.map_or(run.segments.len(), |at| at + 1));
            if !rest.is_empty() {
                runs.push(Run { segments: rest, ..run });
            }
            replayed.damages.push(damage);
        }
    }
    replayed.check.finish();
    Ok(replayed)
}

/// The log that goes on from a base, and its last timeline.
fn log_from(
    archive: &Archive,
    base: &DataDir,
    options: &Options,
) -> Result<(Inventory, Timeline), ReplayError> {
    let from = base.redo_from();
    let wanted = SourceOptions {
        timeline: options.timeline,
        from: Some(Bound::Lsn(from)),
        to: None,
        threads: options.threads,
    };
    let source = source::open(archive, &wanted)?;
    let found = base.control().system_identifier;
    if found != source.system_id {
        return Err(ReplayError::OtherCluster { expected: source.system_id, found });
    }
    let timeline = source.stretches.last().map_or(1, |stretch| stretch.timeline);
    let control = base.control();
    if !goes_through(&source.stretches, control.timeline, control.redo) {
        let (followed, timeline, redo) = (timeline, control.timeline, control.redo);
        return Err(ReplayError::OtherTimeline { followed, timeline, redo });
    }
    let no_paths: [&str; 0] = [];
    let mut inventory = Inventory::with_segments(&no_paths, source.segments, 1)?;
    inventory.follow(source.system_id, &source.stretches);
    let goes_on = |run: &Run| run.start() <= from && from < run.end();
    match inventory.runs.first().is_some_and(goes_on) {
        true => Ok((inventory, timeline)),
        false => Err(ReplayError::NoStart { from, timeline }),
    }
}

/// Whether a log goes through a position on a timeline, as PostgreSQL demands of a base's checkpoint (`InitWalRecovery` in
/// `xlogrecovery.c`).
fn goes_through(stretches: &[Stretch], timeline: Timeline, position: Lsn) -> bool {
    let stretch = stretches.iter().find(|stretch| stretch.timeline == timeline);
    stretch.is_some_and(|stretch| stretch.end.is_none_or(|end| position < end))
}

impl Replayed {
    /// Images that were compared, and how many of them differ.
    pub fn images(&self) -> (u64, u64) {
        let total = self.check.total();
        (total.compared(), total.different)
    }

    /// What is printed of it.
    pub fn summary(&self) -> ReplaySummary {
        let total = self.check.total();
        let difference = |found: &walden_redo::check::Difference| {
            format!(
                "{} after {} {} at {}: {} (byte {}): expected {}, replay has {}",
                found.key,
                found.kind.resource_manager(found.version),
                found.kind.name(found.version),
                found.lsn,
                found.field,
                found.offset,
                crate::stored::object::to_hex(&found.expected),
                crate::stored::object::to_hex(&found.found)
            )
        };
        let misfit =
            |((_, what), count): (&(walden_format::rmgr::Kind, &str), &u64)| format!("{what}: {count} times");
        ReplaySummary {
            from: self.from.to_string(),
            reached: self.reached.to_string(),
            timeline: self.timeline,
            segments: self.segments,
            records: self.check.records,
            not_compared: total.unknown_before + total.untracked + total.unpredicted + total.whole_pages,
            differences: self.check.differences.iter().take(MAX_DIFFERENCES).map(difference).collect(),
            misfits: self.check.misfits.iter().map(misfit).collect(),
            damaged: self.damages.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Differences that are printed; all are counted.
const MAX_DIFFERENCES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_was_taken_after_its_timeline_was_left_is_of_another_branch() {
        let stretches =
            [Stretch { timeline: 1, end: Some(Lsn(0x600_0000)) }, Stretch { timeline: 2, end: None }];
        assert!(goes_through(&stretches, 1, Lsn(0x5FF_FFF8)) && goes_through(&stretches, 2, Lsn(0x900_0000)));
        assert!(!goes_through(&stretches, 1, Lsn(0x600_0000)), "the new timeline begins there");
        assert!(!goes_through(&stretches, 3, Lsn(0x500_0000)));
    }
}
