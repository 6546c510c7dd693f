//! Arguments that `walden sql`, `walden export` and `walden rows` share: the range of the WAL, and the names.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use walden_arrow::ReadOptions;
use walden_explain::Bound;
use walden_source::inventory::Inventory;

use crate::arguments::parse_bound;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::{names, terminal};

/// Which part of the log is read, and with which names.
#[derive(Args, Debug)]
pub struct RangeArgs {
    /// Follow the log that ends on this timeline, from its ancestors on [default: of an archive and for rows the
    /// newest; else each timeline separately]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// Names of tables and indexes, and columns of tables: a connection string, or a file written by
    /// walden explain --save-names
    #[arg(long, value_name = "DSN|FILE")]
    pub names: Vec<String>,

    /// Start with the first record at or after this LSN (16/B374D848) or time (2026-11-20 22:00, local unless with zone)
    #[arg(long, visible_alias = "start", value_name = "LSN|TIME", value_parser = parse_bound)]
    pub from: Option<Bound>,

    /// End before the first record at or after this LSN or time
    #[arg(long, visible_alias = "end", value_name = "LSN|TIME", value_parser = parse_bound)]
    pub to: Option<Bound>,

    /// Threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

impl RangeArgs {
    /// The range as sources are opened by.
    pub fn range(&self) -> SourceRange {
        SourceRange { timeline: self.timeline, from: self.from, to: self.to }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(terminal::cores, usize::from)
    }
}

/// Which part of the log is read as tables, and how positions are written.
#[derive(Args, Debug)]
pub struct LogArgs {
    #[command(flatten)]
    read: RangeArgs,

    /// Add to each position a second column, NAME_text, in the form 16/B374D848
    #[arg(long)]
    lsn_text: bool,
}

impl LogArgs {
    /// The segments in sources, and how tables are read of them. With a base backup also segments before the range are needed.
    pub fn open(&self, paths: &[PathBuf], has_base: bool) -> Result<(Arc<Inventory>, ReadOptions)> {
        let range = self.read.range();
        let inventory = match has_base {
            true => sources::open_with_past(paths, &range)?,
            false => sources::open(paths, &range)?,
        };
        sources::tell_about(&inventory);
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
        options.set_range(&inventory.runs, self.read.from, self.read.to, |bytes| progress.advance(bytes))?;
        progress.finish();
        Ok((Arc::new(inventory), options))
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.read.threads()
    }
}

/// Bytes of all segments.
pub fn total_bytes(inventory: &Inventory) -> u64 {
    inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum()
}
