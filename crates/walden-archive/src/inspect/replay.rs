//! Replays all the WAL from a base backup, and compares each full-page image with the replayed page.
//!
//! Checksums prove that records are as the server wrote them. Replay proves that the records lead from one
//! state of the pages to the next.

use std::ops::ControlFlow;

use serde::Serialize;
use walden_format::lsn::{Lsn, Timeline};
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_redo::check::Check;
use walden_redo::check::shares::ShareCheck;
use walden_redo::{BasePages, HintSettings, PageStore, Replay, StoreOptions};
use walden_source::datadir::DataDir;
use walden_source::inventory::{Gap, Inventory, InventoryError, Run};
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_shared};
use walden_source::timelines::Stretch;

use crate::archive::{Archive, ArchiveError};
use crate::restore::source::{self, Bound, SourceOptions};

/// Options for replay.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The last timeline to follow. The default is the newest.
    pub timeline: Option<Timeline>,
    /// Memory for pages and decoded segments, in bytes. Other pages go to a temporary file.
    pub memory_bytes: usize,
    /// Number of threads that replay, each a share of the pages; further threads read and decompress ahead of
    /// them.
    pub threads: usize,
}

impl Options {
    /// Creates options to replay the newest timeline on one thread.
    pub fn new(memory_bytes: usize) -> Options {
        Options { timeline: None, memory_bytes, threads: 1 }
    }
}

walden_format::setters!(Options {
    timeline: Option<Timeline>,
    threads: usize,
});

/// Result of replay.
#[derive(Debug)]
pub struct Replayed {
    /// LSN at which replay started.
    pub from: Lsn,
    /// LSN that replay reached.
    pub reached: Lsn,
    /// The last timeline.
    pub timeline: Timeline,
    /// Number of segments read.
    pub segments: u64,
    /// Results of comparing full-page images with pages.
    pub check: Check,
    /// Damage in the WAL. Replay continues after the damage, with unknown pages.
    pub damages: Vec<Damage>,
    /// Gaps in the WAL. Replay continues after each gap as after damage.
    pub gaps: Vec<Gap>,
}

/// Summary of replay for the output of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReplaySummary {
    /// LSN at which replay started.
    pub from: String,
    /// LSN that replay reached.
    pub reached: String,
    /// The last timeline.
    pub timeline: Timeline,
    /// Number of segments read.
    pub segments: u64,
    /// Number of records replayed.
    pub records: u64,
    /// Number of images without a known previous page, or whose page is not replayed.
    pub not_compared: u64,
    /// Descriptions of the first differences.
    pub differences: Vec<String>,
    /// Descriptions of records that did not fit their pages.
    pub misfits: Vec<String>,
    /// Damage in the WAL.
    pub damaged: Vec<String>,
}

/// Reasons for not replaying the WAL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The segments are unusable.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The base backup belongs to another cluster.
    #[error(
        "cannot replay from this base backup: expected the archive's system identifier {expected}, found {found}"
    )]
    OtherCluster {
        /// System identifier of the archive.
        expected: u64,
        /// System identifier of the base backup.
        found: u64,
    },
    /// The archive lacks the WAL from the base backup's start.
    #[error(
        "cannot replay from this base backup: expected WAL from {from} along timeline {timeline}, found none"
    )]
    NoStart {
        /// LSN at which replay must start.
        from: Lsn,
        /// The followed timeline.
        timeline: Timeline,
    },
    /// The followed WAL leaves the base backup's timeline before its checkpoint, so it belongs to another
    /// branch.
    #[error(
        "cannot replay from this base backup: expected timeline {followed} to go through {redo} on timeline {timeline}, the base's checkpoint, found another branch there"
    )]
    OtherTimeline {
        /// The followed timeline.
        followed: Timeline,
        /// Timeline of the base backup.
        timeline: Timeline,
        /// Redo pointer of the base backup's checkpoint.
        redo: Lsn,
    },
    /// The temporary file for pages failed.
    #[error("cannot keep pages: {0}")]
    Pages(String),
}

walden_format::diagnostics! { ReplayError {
    Self::Archive(error) => of(error),
    Self::Inventory(error) => code_of(error),
    Self::OtherCluster { .. } => "replay-other-cluster": "name a base backup of the cluster whose WAL is archived",
    Self::NoStart { .. } => "replay-no-start": "walden archive list shows the archived WAL; --timeline follows another timeline",
    Self::OtherTimeline { .. } => "replay-other-timeline": "--timeline follows another timeline; walden archive list shows the timelines, and the base backups that lead to them",
    Self::Pages(_) => "replay-pages": "TMPDIR sets the folder of the temporary file; more --memory makes the file smaller",
} }

/// Replays an archive's WAL from a base backup. Calls `progress` with the bytes of WAL done and the total.
///
/// # Errors
/// The archive's WAL does not continue from the base backup. The result reports damage in the WAL.
pub fn replay(
    archive: &Archive,
    base: &DataDir,
    options: Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Replayed, ReplayError> {
    let (inventory, timeline) = log_from(archive, base, &options)?;
    let shares = u32::try_from(options.threads).unwrap_or(u32::MAX).max(1);
    let (replayed, has_misfits) = replay_shares(&inventory, timeline, base, options, shares, progress)?;
    if has_misfits && shares > 1 {
        // A record that does not fit one page makes all pages of the record unknown, also pages of other
        // shares.
        return Ok(replay_shares(&inventory, timeline, base, options, 1, progress)?.0);
    }
    Ok(replayed)
}

/// Replays all runs by threads that have a share of the pages each. Also returns whether a record did not fit
/// its pages.
fn replay_shares(
    inventory: &Inventory,
    timeline: Timeline,
    base: &DataDir,
    options: Options,
    shares: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Replayed, bool), ReplayError> {
    let (from, gaps) = (base.redo_from(), inventory.gaps());
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
    let decoded_bytes = options.memory_bytes / 4;
    let memory_bytes = (options.memory_bytes - decoded_bytes) / shares as usize;
    let hints = base.control().hint_settings();
    let (mut base, mut done, mut has_misfits) = (Some(base), 0, false);
    let mut checks = ShareCheck::create_all(shares);
    let mut runs: Vec<Run> = inventory.runs.iter().rev().cloned().collect();
    while let Some(mut run) = runs.pop() {
        let size = run.segment_size.bytes();
        let range = ScanOptions::new(options.threads).from(base.map(DataDir::redo_from));
        let base = base.take();
        let create = |check| Replayer::new(check, base, hints, memory_bytes);
        let mut threads: Vec<Replayer> = checks.into_iter().map(create).collect();
        let count = |bytes| {
            done += bytes;
            replayed.segments += 1;
            progress(done, total);
        };
        // As in a restore, all threads get all records.
        let range = range.decoded_bytes(decoded_bytes);
        let results = scan_shared(&run, range, Lsn(0), &mut threads, count, Replayer::leave);
        if let Some(failure) = threads.iter().find_map(|thread| thread.replay.store.failure()) {
            return Err(ReplayError::Pages(failure.to_string()));
        }
        has_misfits |= threads.iter().any(|thread| thread.replay.store.has_misfits());
        checks = threads.into_iter().map(|thread| thread.check).collect();
        // All threads end at the same LSN.
        let Some((reached, end)) = results.into_iter().next() else { break };
        replayed.reached = replayed.reached.max(reached);
        if let SegmentEnd::Damaged(damage) = end {
            // Later segments are replayed on unknown pages.
            let at = run.segments.iter().position(|segment| damage.lsn.0 < segment.start.0 + size);
            let rest = run.segments.split_off(at.map_or(run.segments.len(), |at| at + 1));
            if !rest.is_empty() {
                runs.push(Run { segments: rest, ..run });
            }
            replayed.damages.push(damage);
        }
    }
    replayed.check = ShareCheck::finish(checks);
    Ok((replayed, has_misfits))
}

/// Replays a share of the pages.
struct Replayer {
    replay: Replay,
    check: ShareCheck,
}

impl Replayer {
    fn new(check: ShareCheck, base: Option<&DataDir>, hints: HintSettings, memory_bytes: usize) -> Replayer {
        let base = base.map(|base| Box::new(base.clone()) as Box<dyn BasePages>);
        let options = StoreOptions::default().memory_bytes(memory_bytes).base(base).share(check.share());
        let mut store = PageStore::new(options);
        store.hint_logging().note_settings(hints);
        Replayer { replay: Replay::new(store), check }
    }

    /// Reports to the other threads that this thread has failed, so that they do not wait for it.
    fn leave(&mut self) {
        if self.replay.store.failure().is_some() || std::thread::panicking() {
            self.check.abandon();
        }
    }
}

impl Visitor for Replayer {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.check.note(record);
        self.replay.apply(record, &mut self.check);
        match self.replay.store.failure().is_some() || self.check.is_abandoned() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Finds the WAL that continues from a base backup, and its last timeline.
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
    let mut inventory = Inventory::with_segments(&no_paths, source.segments, Vec::new(), 1)?;
    inventory.follow(source.system_id, &source.stretches);
    let goes_on = |run: &Run| run.start() <= from && from < run.end();
    match inventory.runs.first().is_some_and(goes_on) {
        true => Ok((inventory, timeline)),
        false => Err(ReplayError::NoStart { from, timeline }),
    }
}

/// Returns whether the WAL contains a position on a timeline, as PostgreSQL requires of a base backup's
/// checkpoint (`InitWalRecovery` in `xlogrecovery.c`).
fn goes_through(stretches: &[Stretch], timeline: Timeline, position: Lsn) -> bool {
    let stretch = stretches.iter().find(|stretch| stretch.timeline == timeline);
    stretch.is_some_and(|stretch| stretch.end.is_none_or(|end| position < end))
}

impl Replayed {
    /// Returns the number of compared images, and the number of images that differ.
    pub fn images(&self) -> (u64, u64) {
        let total = self.check.total();
        (total.compared(), total.different)
    }

    /// Returns the summary for output.
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
                crate::objects::object::to_hex(&found.expected),
                crate::objects::object::to_hex(&found.found)
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

/// Maximum number of differences in the output. All are counted.
const MAX_DIFFERENCES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_was_taken_after_its_timeline_was_left_is_of_another_branch() {
        let stretches =
            [Stretch { timeline: 1, end: Some(Lsn(0x600_0000)) }, Stretch { timeline: 2, end: None }];
        assert!(goes_through(&stretches, 1, Lsn(0x5FF_FFF8)) && goes_through(&stretches, 2, Lsn(0x900_0000)));
        assert!(!goes_through(&stretches, 1, Lsn(0x600_0000)), "the new timeline starts there");
        assert!(!goes_through(&stretches, 3, Lsn(0x500_0000)));
    }
}
