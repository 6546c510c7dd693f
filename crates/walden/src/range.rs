//! Arguments for the range of the WAL that a command reads, and for the names in it.

use clap::Args;
use walden_explain::Bound;

use crate::arguments::parse_bound;
use crate::sources::SourceRange;
use crate::terminal;

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
