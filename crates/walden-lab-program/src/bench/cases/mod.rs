//! `walden bench cases`: measures the gain of each special case of the codec by leaving it out.

mod measure;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use walden_codec::measure::Case;
use walden_lab::{Progress, Wanted};

use self::measure::{Options, Spent, measure};
use super::codecs::{at_least_one, corpus, processor_name};
use crate::terminal;
use crate::terminal::Format;

/// Measure what each special case of the codec gains in size and time
#[derive(Args, Debug)]
#[command(after_help = "\
Each folder is a corpus of its own. Without one, WAL of six workloads is made by `walden lab run` and kept in the cache \
folder for the next time (WALDEN_CACHE moves it).

Each segment is compressed and decompressed in this process, by one thread, with every case and then without one after the \
other; what comes back is compared with the original. Sizes are exact. Seconds are the processor's, the fewest of --runs.

A figure is how much more it takes without the case: what the case gains, or if it is negative, what it costs.

Examples:
  walden bench cases --list
  walden bench cases --runs 3 /archive/wal
  walden bench cases --pack --only key-order,prefixes --segments 4 /archive/wal

Exit status: 0 done; 1 a segment did not come back; 2 wrong usage; 3 input unreadable.")]
pub struct CasesArgs {
    /// Folders of segments, compressed or not [default: the lab's]
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,

    /// Print the cases and what they are
    #[arg(long, conflicts_with_all = ["folders", "format"])]
    list: bool,

    /// These cases [default: all that can occur]
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    only: Vec<String>,

    /// The level, 1 to 9
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    level: u8,

    /// Segments follow each other, as in a pack, instead of each being decoded by itself
    #[arg(long)]
    pack: bool,

    /// Runs with and without each case
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// Take at most N segments of each corpus, spread evenly [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    segments: Option<usize>,

    /// Workloads to make WAL with, without DIR
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', conflicts_with = "folders")]
    workloads: Vec<String>,

    /// The PostgreSQL version [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Size of each workload, see `walden lab list` [default: what makes 8 to 10 segments]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    size: Option<u64>,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The results of the command, which are also its JSON.
#[derive(Serialize, Debug)]
struct Results {
    processor: Option<String>,
    started_at: String,
    level: u8,
    pack: bool,
    runs: u8,
    cases: Vec<CaseFacts>,
    corpora: Vec<CorpusResults>,
}

#[derive(Serialize, Debug)]
struct CaseFacts {
    name: &'static str,
    description: &'static str,
}

#[derive(Serialize, Debug)]
struct CorpusResults {
    name: String,
    source: String,
    segments: usize,
    bytes: u64,
    with_all: Spent,
    /// In the order of the cases.
    without: Vec<Spent>,
}

/// Runs the command.
pub fn run(args: &CasesArgs) -> Result<ExitCode> {
    if args.list {
        terminal::print(&show::list(Case::ALL))?;
        return Ok(ExitCode::SUCCESS);
    }
    let cases = chosen(args)?;
    let started_at = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
    let options = Options { cases: &cases, level: args.level, is_pack: args.pack, runs: args.runs };
    let mut corpora = Vec::new();
    for source in corpus::sources(&args.folders, &args.workloads, args.size)? {
        let found = source.find(args.pg)?;
        let chosen = corpus::spread(found.files.len(), args.segments.unwrap_or(usize::MAX));
        let files: Vec<_> = chosen.into_iter().map(|index| &found.files[index]).collect();
        let progress = Progress::new(&found.name);
        let (bytes, mut spent) = measure(&options, &files, &found.name, &progress)?;
        progress.finish();
        let with_all = spent.remove(0);
        let segments = files.len();
        let (name, source) = (found.name, found.source);
        corpora.push(CorpusResults { name, source, segments, bytes, with_all, without: spent });
    }
    let facts = |case: &Case| CaseFacts { name: case.name(), description: case.description() };
    let results = Results {
        processor: processor_name(),
        started_at,
        level: args.level,
        pack: args.pack,
        runs: args.runs,
        cases: cases.iter().map(facts).collect(),
        corpora,
    };
    terminal::show(args.format, || &results, || show::tables(&results))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the cases that the options select.
fn chosen(args: &CasesArgs) -> Result<Vec<Case>> {
    let may_occur = |case: &Case| case.may_occur(args.level, args.pack);
    if args.only.is_empty() {
        return Ok(Case::ALL.iter().copied().filter(may_occur).collect());
    }
    let by_name = |name: &String| match Case::ALL.iter().copied().find(|case| case.name() == name) {
        Some(case) if may_occur(&case) => Ok(case),
        Some(_) if args.pack => bail!("{name} does not occur at level {} in packs", args.level),
        Some(_) => bail!("{name} does not occur at level {} without --pack", args.level),
        None => bail!("there is no case {name}: see `walden bench cases --list`"),
    };
    args.only.iter().map(by_name).collect()
}
