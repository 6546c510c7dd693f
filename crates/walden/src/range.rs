//! Arguments for the range of the WAL that a command reads, and for the names in it.

use clap::Args;
use walden_explain::Bound;

use crate::arguments::parse_bound;
use crate::sources::SourceRange;
use crate::terminal;

/// Part of the WAL to read, and names for it.
#[derive(Args, Debug)]
pub struct RangeArgs {
    /// Follow this timeline and its ancestors [default: the newest for an archive and for rows, else each
    /// timeline separately]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// Where to read the names of tables and indexes, and the columns of tables: a connection string, or a
    /// file written by walden explain --save-names
    #[arg(long, value_name = "DSN|FILE")]
    pub names: Vec<String>,

    /// Start with the first record at or after this LSN (16/B374D848) or time (2026-11-20 22:00, local time
    /// unless it has a zone)
    #[arg(long, visible_alias = "start", value_name = "LSN|TIME", value_parser = parse_bound)]
    pub from: Option<Bound>,

    /// End before the first record at or after this LSN or time
    #[arg(long, visible_alias = "end", value_name = "LSN|TIME", value_parser = parse_bound)]
    pub to: Option<Bound>,

    /// Number of threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

impl RangeArgs {
    /// Returns the range for opening sources.
    pub fn range(&self) -> SourceRange {
        SourceRange { timeline: self.timeline, from: self.from, to: self.to }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(terminal::cores, usize::from)
    }
}
