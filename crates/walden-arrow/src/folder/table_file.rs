//! A file of an export, and its fate.

use std::ops::Range;
use std::path::PathBuf;

use walden_source::inventory::{Inventory, Run};

use super::existing::Holding;
use crate::Table;

/// A file to be written.
#[derive(Debug)]
pub(super) struct TableFile {
    pub(super) table: Table,
    pub(super) path: PathBuf,
    /// Index of a run, and indexes of segments in the run; `None` for all of the WAL.
    pub(super) part: Option<(usize, Range<usize>)>,
    pub(super) holding: Holding,
    pub(super) fate: Fate,
    /// A complete file of an earlier export holds some of its segments.
    pub(super) has_complete: bool,
}

/// The decision about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The file is written.
    Written,
    /// The file exists with the same rows.
    UpToDate,
    /// Other files hold the same part of the WAL and more.
    Covered,
}

impl TableFile {
    /// Returns the bytes of the WAL that the file's rows are read from.
    pub(super) fn bytes(&self, inventory: &Inventory) -> u64 {
        let of_run = |run: &Run, segments: usize| segments as u64 * run.segment_size.bytes();
        match &self.part {
            Some((run, segments)) => of_run(&inventory.runs[*run], segments.len()),
            None => inventory.runs.iter().map(|run| of_run(run, run.segments.len())).sum(),
        }
    }
}
