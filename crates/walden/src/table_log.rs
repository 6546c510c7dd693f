//! Arguments that `walden sql` and `walden export` share to read WAL as tables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use walden_arrow::ReadOptions;
use walden_source::inventory::Inventory;

use crate::names;
use crate::progress::Progress;
use crate::range::RangeArgs;
use crate::sources::{self, start_of_base};

/// The part of the WAL to read as tables, and the format of LSNs.
#[derive(Args, Debug)]
pub struct LogArgs {
    #[command(flatten)]
    read: RangeArgs,

    /// For each LSN column, add a second column, NAME_text, with the LSN as text, such as 16/B374D848
    #[arg(long)]
    lsn_text: bool,
}

impl LogArgs {
    /// Opens the sources, and returns their segments with the options for reading tables. With a base backup,
    /// segments before the range are needed, too.
    pub fn open(&self, paths: &[PathBuf], base: Option<&Path>) -> Result<(Arc<Inventory>, ReadOptions)> {
        let range = self.read.range();
        let inventory = match base.is_some() {
            true => sources::open_with_past(paths, &range)?,
            false => sources::open(paths, &range)?,
        };
        sources::note_omitted_after_base(&inventory, base);
        sources::expect_one_cluster(&inventory)?;
        let mut names = names::load(&self.read.names)?;
        names::check_cluster(&names, &inventory)?;
        let Some(first) = inventory.runs.first() else {
            bail!("cannot read tables: expected WAL segments, found none");
        };
        names.set_version(first.version);
        let mut options = ReadOptions::new(Arc::new(names), self.threads());
        options.lsn_text = self.lsn_text;
        let mut progress = Progress::bytes("finding the range", total_bytes(&inventory));
        let (from, to) = (self.read.from, self.read.to);
        let base = base.and_then(start_of_base);
        let step = options.set_range(&inventory.runs, from, to, base, |bytes| progress.advance(bytes))?;
        progress.finish();
        sources::warn_of_step_back(step);
        Ok((Arc::new(inventory), options))
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.read.threads()
    }
}

/// Returns the size of all segments in bytes.
pub fn total_bytes(inventory: &Inventory) -> u64 {
    inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum()
}
