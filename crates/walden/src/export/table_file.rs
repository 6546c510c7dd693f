//! A file of an export, and its fate.

use std::ops::Range;
use std::path::PathBuf;

use walden_arrow::Table;
use walden_source::inventory::Inventory;

use super::existing::Holding;

/// A file to be written.
pub(super) struct TableFile {
    pub(super) table: Table,
    pub(super) path: PathBuf,
    /// Index of a run, and segments in it; `None` for all of the WAL.
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
    pub(super) fn bytes(&self, inventory: &Inventory) -> u64 {
        let runs = &inventory.runs;
        match &self.part {
            Some((run, segments)) => segments.len() as u64 * runs[*run].segment_size.bytes(),
            None => crate::table_log::total_bytes(inventory),
        }
    }
}
