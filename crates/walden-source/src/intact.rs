//! Chooses the intact one of several files that contain the same segment.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use walden_format::lsn::Lsn;

use crate::inventory::{Inventory, Run};
use crate::scan::{DamageKind, Nothing, ScanOptions, SegmentEnd, scan};
use crate::segment_file::SegmentFile;

/// Two files of one segment: the first is damaged or ends early, so the second, which has more WAL, is read
/// instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Substitution {
    /// Path of the file that is not read.
    pub damaged: PathBuf,
    /// Path of the file that is read.
    pub intact: PathBuf,
    /// The LSN at which the file that is not read is damaged or ends.
    pub lsn: Lsn,
}

impl fmt::Display for Substitution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (damaged, intact) = (self.damaged.display(), self.intact.display());
        write!(f, "{damaged} is damaged or ends at LSN {}: {intact} is read instead", self.lsn)
    }
}

impl Inventory {
    /// Reads the segments in `range` that are in several files, and puts the file into the run that can be
    /// read furthest. The other segments are not read.
    ///
    /// A file that is replaced is no longer in [`Inventory::duplicates`].
    pub fn choose_intact(&mut self, range: Range<Lsn>, threads: usize) -> Vec<Substitution> {
        let mut substitutions = Vec::new();
        for run in 0..self.runs.len() {
            for stretch in self.duplicated_stretches(run, &range) {
                self.choose_in_stretch(run, stretch, threads, &mut substitutions);
            }
        }
        substitutions
    }

    /// Returns the adjacent segments of a run that are in several files, as ranges of indexes.
    fn duplicated_stretches(&self, run: usize, range: &Range<Lsn>) -> Vec<Range<usize>> {
        let run = &self.runs[run];
        let mut indexes: Vec<usize> = self
            .duplicates
            .iter()
            .filter(|duplicate| {
                let start = duplicate.dropped.start;
                start < range.end && start.plus(run.segment_size.bytes()) > range.start
            })
            .filter_map(|duplicate| {
                let index = run.segments.binary_search_by_key(&duplicate.dropped.start, |file| file.start);
                index.ok().filter(|index| run.segments[*index].key() == duplicate.dropped.key())
            })
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes
            .chunk_by(|one, next| one + 1 == *next)
            .filter_map(|chunk| Some(*chunk.first()?..chunk.last()? + 1))
            .collect()
    }

    fn choose_in_stretch(
        &mut self,
        run: usize,
        stretch: Range<usize>,
        threads: usize,
        substitutions: &mut Vec<Substitution>,
    ) {
        // A record that starts in the previous segment may end in the first file.
        let mut first = stretch.start.saturating_sub(1);
        while let Some(stop) = find_stop(&self.runs[run], first..stretch.end, threads) {
            // The damaged record may continue in the next segment.
            let suspects = stop.index..(stop.index + 2).min(stretch.end);
            let from = stop.index.saturating_sub(1);
            let mut try_file = |index| self.try_duplicates(run, index, from..stretch.end, &stop, threads);
            match suspects.into_iter().find_map(&mut try_file) {
                Some(substitution) => {
                    substitutions.push(substitution);
                    first = from;
                }
                None => first = stop.index + 1,
            }
        }
    }

    /// Puts another file of a segment into the run if the run can then be read further than before.
    fn try_duplicates(
        &mut self,
        run: usize,
        index: usize,
        read: Range<usize>,
        before: &Stop,
        threads: usize,
    ) -> Option<Substitution> {
        let file = self.runs[run].segments[index].clone();
        let is_same = |other: &SegmentFile| other.key() == file.key() && other.start == file.start;
        for at in 0..self.duplicates.len() {
            if !is_same(&self.duplicates[at].dropped) {
                continue;
            }
            self.runs[run].segments[index] = self.duplicates[at].dropped.clone();
            let stop = find_stop(&self.runs[run], read.clone(), threads);
            if before.is_before(stop) {
                let intact = self.duplicates.remove(at).dropped;
                for duplicate in self.duplicates.iter_mut().filter(|other| is_same(&other.kept)) {
                    duplicate.kept = intact.clone();
                }
                return Some(Substitution { damaged: file.path, intact: intact.path, lsn: before.lsn });
            }
        }
        self.runs[run].segments[index] = file;
        None
    }
}

/// Where reading stops.
struct Stop {
    /// Index of the segment.
    index: usize,
    lsn: Lsn,
    /// Whether the rest of the file is missing or unreadable.
    is_cut: bool,
}

impl Stop {
    /// Returns whether reading another file gets further: to a later position, or to the end of the WAL where
    /// this file is cut off.
    fn is_before(&self, other: Option<Stop>) -> bool {
        other.is_none_or(|other| (other.lsn, !other.is_cut) > (self.lsn, !self.is_cut))
    }
}

/// Reads segments of a run. Returns where their WAL stops, if it stops before the end of the last segment.
fn find_stop(run: &Run, read: Range<usize>, threads: usize) -> Option<Stop> {
    let first = run.segments.get(read.start).filter(|_| !read.is_empty())?.start;
    let end = run.segments.get(read.end).map(|next| next.start);
    let options = ScanOptions::new(threads).from(Some(first)).to(end);
    let mut stop = None;
    scan(
        run,
        options,
        |_| Nothing,
        |outcome| {
            let (lsn, is_cut) = match outcome.end {
                SegmentEnd::Damaged(damage) => {
                    (damage.lsn, matches!(damage.kind, DamageKind::Truncated { .. } | DamageKind::Io(_)))
                }
                SegmentEnd::EndOfLog(_) => (outcome.position, false),
                SegmentEnd::Complete | SegmentEnd::Limit => return ControlFlow::Continue(()),
            };
            let segments_before = run.segments.partition_point(|file| file.start <= lsn);
            let index = segments_before.saturating_sub(1).clamp(read.start, read.end - 1);
            stop = Some(Stop { index, lsn, is_cut });
            ControlFlow::Break(())
        },
    );
    stop
}
