//! `walden bench codecs`: compares compression of segments by Walden and by programs that are used in
//! `archive_command`.

mod contenders;
mod corpus;
mod published;
mod race;
mod show;
mod wal_compression;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use walden_lab::{Progress, Scratch, Wanted};
use walden_output::Inputs;
use walden_report::chart;

use self::contenders::{CONTENDERS, Contender, Entry, REFERENCE, Takes, Threads};
use self::race::{Outcome, Rules, Spent, Tally, race};
use crate::output::Overwrite;
use crate::terminal::Format;
use crate::{FOUND, output, terminal};

/// Time compression and decompression of segments by other programs and by Walden, alternately
#[derive(Args, Debug)]
#[command(after_help = "\
Each folder is a corpus of its own. Without one, WAL of six workloads is made by `walden lab run` and kept in the cache \
folder for later runs (WALDEN_CACHE names another folder).

A program that takes segments one by one is started once for each, as archive_command does. Figures are averages per \
segment; with more runs, of the medians. Every decompressed file is compared with the original, byte for byte.

xz -2 always takes part, as the reference for the ratios. Programs that are missing are named with the Debian package that \
has them.

Without --only, --levels and --all, a standard choice runs, which takes most of an hour for the lab's corpora on two cores.

Examples:
  walden bench codecs --html codecs.html /archive/wal
  walden bench codecs --only xz,walden --levels 1,2,9 --runs 3 /archive/wal
  walden bench codecs --wal-compression

Exit status: 0 done; 1 a contender failed or did not decompress to the original; 2 wrong usage; 3 input unreadable.")]
pub struct CodecsArgs {
    /// Folders of segments, compressed or not [default: the lab's]
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,

    /// Contenders: gzip, pigz, bzip2, lbzip2, xz, pxz (xz -T0), pixz, 7za, lrzip-l, lrzip-z, lz4, zstd,
    /// zstd-long, openzl, brotli, zpaq, zpaq-all, walden, walden-unverified, walden-pack
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,

    /// Levels, for those that have them
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    levels: Vec<u8>,

    /// The standard choice of levels, restricted to --only if that is given
    #[arg(long, conflicts_with_all = ["all", "levels"])]
    quick: bool,

    /// Every contender at every level on every segment: many hours
    #[arg(long, conflicts_with_all = ["only", "levels"])]
    all: bool,

    /// Runs of each program on each segment
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// Take at most N segments of each corpus, spread evenly [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    segments: Option<usize>,

    /// The same for contenders that take most of a minute for a segment (zpaq -m4, brotli -q 10, lrzip -z -L
    /// 4 and above) [default: 1, with --all all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    slow_segments: Option<usize>,

    /// Workloads to make WAL with, if there is no DIR
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', conflicts_with = "folders")]
    workloads: Vec<String>,

    /// The PostgreSQL version [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Size of each workload, see `walden lab list` [default: one that fills 8 to 10 segments]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    size: Option<u64>,

    /// Instead, compare pgbench's WAL under each wal_compression, as it is and compressed by other programs
    #[arg(long, conflicts_with_all = ["folders", "all", "quick", "workloads", "only", "levels", "segments", "html", "svg"])]
    wal_compression: bool,

    /// Also print the published figures of 2017
    #[arg(long)]
    published: bool,

    /// Write a page with everything: charts, tables, the published figures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the chart of size against time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

/// Results over all corpora; serialized, this is the command's JSON.
#[derive(Serialize, Debug)]
struct Results {
    machine: Machine,
    started_at: String,
    runs: u8,
    programs: Vec<ProgramFacts>,
    missing: Vec<Missing>,
    corpora: Vec<CorpusResults>,
    /// Over all corpora.
    total: CorpusResults,
    published: &'static [published::Published],
}

#[derive(Serialize, Debug)]
struct Machine {
    cores: usize,
    processor: Option<String>,
}

#[derive(Serialize, Debug)]
struct ProgramFacts {
    program: &'static str,
    version: Option<String>,
}

/// A program that is not installed, its Debian package, and the contenders that need it.
#[derive(Serialize, Debug)]
struct Missing {
    program: &'static str,
    package: &'static str,
    contenders: Vec<String>,
}

#[derive(Serialize, Debug)]
struct CorpusResults {
    name: String,
    source: String,
    segments: usize,
    bytes: u64,
    contenders: Vec<Measured>,
}

#[derive(Serialize, Debug)]
struct Measured {
    contender: String,
    name: &'static str,
    level: u8,
    threads: Threads,
    takes: Takes,
    figures: Option<Figures>,
    /// The reason for missing figures: the program failed, or its output differs from the original.
    failure: Option<String>,
    published: Option<published::Figures>,
}

/// `bytes_in` and `bytes_out` are sums; all other figures are averages per segment.
#[derive(Serialize, Debug)]
struct Figures {
    /// Number of segments that it compressed; slow contenders do not compress all segments of a corpus.
    segments: usize,
    bytes_in: u64,
    bytes_out: u64,
    megabytes: f64,
    compress: Spent,
    decompress: Spent,
    times_xz_2: Option<Times>,
    /// Whether it is on the Pareto front: no other contender is smaller in less time.
    on_front: bool,
}

/// Ratios to the figures of `xz -2` on the same segments.
#[derive(Serialize, Clone, Copy, Debug)]
struct Times {
    bytes: f64,
    compress_wall: f64,
    decompress_wall: f64,
}

/// Runs the command.
pub fn run(args: &CodecsArgs) -> Result<ExitCode> {
    if args.wal_compression {
        return wal_compression::run(args);
    }
    let entries = select_entries(args)?;
    let (present, absent): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.program.is_some());
    let missing = missing(&absent);
    for one in &missing {
        eprintln!(
            "{} is not installed (package {}): {}",
            one.program,
            one.package,
            one.contenders.join(", ")
        );
    }
    let wanted = [("--html", args.html.as_deref()), ("--svg", args.svg.as_deref())];
    output::can_write(&wanted, args.overwrite, &Inputs::new(&args.folders))?;

    let started_at = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
    let rules = Rules {
        runs: args.runs,
        slow_segments: args.slow_segments.unwrap_or(if args.all { usize::MAX } else { 1 }),
    };
    let mut all = Vec::new();
    let programs = programs(&present);
    for source in corpus::sources(&args.folders, &args.workloads, args.size)? {
        let found = source.find(args.pg)?;
        // One scratch folder per corpus: a corpus's copy is removed before the next one is made.
        let scratch = Scratch::new()?;
        let progress = Progress::new(&format!("{}: copying", found.name));
        let corpus = found.stage(scratch.path(), args.segments, race::should_concatenate(&present))?;
        let outcomes = race(&corpus, &present, &rules, &scratch, &progress)?;
        progress.finish();
        let results = CorpusResults {
            contenders: measured(&present, &tallies(&present, &outcomes)),
            name: corpus.name,
            source: corpus.source,
            segments: corpus.segments.len(),
            bytes: corpus.bytes,
        };
        all.push((results, outcomes));
    }
    let results = Results {
        machine: Machine { cores: terminal::cores(), processor: processor_name() },
        started_at,
        runs: args.runs,
        programs,
        missing,
        total: total(&present, &all),
        corpora: all.into_iter().map(|(results, _)| results).collect(),
        published: published::PUBLISHED,
    };
    show::all(args, &results)?;
    let failed = results.total.contenders.iter().any(|one| one.failure.is_some());
    Ok(if failed { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

/// Returns the contenders and levels that the options select, and the reference.
fn select_entries(args: &CodecsArgs) -> Result<Vec<Entry>> {
    // `zstd` also selects `zstd-long`.
    let selects = |name: &str, row: &Contender| {
        row.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    for name in &args.only {
        let names: Vec<&str> = CONTENDERS.iter().map(|row| row.name).collect();
        let known = CONTENDERS.iter().any(|row| selects(name, row));
        ensure!(known, "cannot use contender {name}: expected one of {}", names.join(", "));
    }
    let standard = args.quick || (args.only.is_empty() && args.levels.is_empty() && !args.all);
    let mut entries = Vec::new();
    for row in CONTENDERS {
        let wanted = args.only.is_empty() || args.only.iter().any(|name| selects(name, row));
        for level in row.levels.0..=row.levels.1 {
            let at_level = if standard {
                row.standard.contains(&level)
            } else {
                args.levels.is_empty() || args.levels.contains(&level)
            };
            if (wanted && at_level) || (row.name, level) == REFERENCE {
                entries.push(Entry::new(row, level)?);
            }
        }
    }
    Ok(entries)
}

fn missing(absent: &[Entry]) -> Vec<Missing> {
    let mut missing: Vec<Missing> = Vec::new();
    for entry in absent {
        let (program, package) = (entry.contender.needs(), entry.contender.package);
        match missing.iter_mut().find(|one| one.program == program) {
            Some(one) => one.contenders.push(entry.label()),
            None => missing.push(Missing { program, package, contenders: vec![entry.label()] }),
        }
    }
    missing
}

fn programs(present: &[Entry]) -> Vec<ProgramFacts> {
    let mut programs: Vec<ProgramFacts> = Vec::new();
    for entry in present {
        let program = entry.contender.needs();
        if !programs.iter().any(|one| one.program == program) {
            let version = entry.program.as_deref();
            let version = version.and_then(|path| contenders::version(path, entry.contender.module));
            programs.push(ProgramFacts { program, version });
        }
    }
    programs
}

/// Returns the processor's name, if /proc/cpuinfo has it.
fn processor_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The sums of a contender and of the reference on the same segments, or the reason for missing ones.
type Pair = Result<(Tally, Option<Tally>), String>;

fn tallies(entries: &[Entry], outcomes: &[Outcome]) -> Vec<Pair> {
    let reference = entries.iter().position(Entry::is_reference).and_then(|index| outcomes.get(index));
    let pair = |outcome: &Outcome| match outcome.tally() {
        Some(tally) => Ok((tally, reference.and_then(|reference| reference.tally_like(outcome)))),
        None => {
            Err(outcome.failure.clone().unwrap_or_else(|| "expected segments to compress, found none".into()))
        }
    };
    outcomes.iter().map(pair).collect()
}

fn total(entries: &[Entry], all: &[(CorpusResults, Vec<Outcome>)]) -> CorpusResults {
    let mut sums: Vec<Pair> = Vec::new();
    for (corpus, outcomes) in all {
        let next = tallies(entries, outcomes);
        if sums.is_empty() {
            sums = next;
            if all.len() > 1 {
                sums.iter_mut()
                    .filter_map(|sum| sum.as_mut().err())
                    .for_each(|why| *why = format!("{}: {why}", corpus.name));
            }
            continue;
        }
        for (sum, next) in sums.iter_mut().zip(next) {
            match (&mut *sum, next) {
                (Ok((own, reference)), Ok((next, next_reference))) => {
                    own.add(&next);
                    match (&mut *reference, next_reference) {
                        (Some(reference), Some(next)) => reference.add(&next),
                        _ => *reference = None,
                    }
                }
                (Ok(_), Err(why)) => *sum = Err(format!("{}: {why}", corpus.name)),
                (Err(_), _) => {}
            }
        }
    }
    CorpusResults {
        name: "total".into(),
        source: all.iter().map(|(corpus, _)| corpus.name.as_str()).collect::<Vec<_>>().join(", "),
        segments: all.iter().map(|(corpus, _)| corpus.segments).sum(),
        bytes: all.iter().map(|(corpus, _)| corpus.bytes).sum(),
        contenders: measured(entries, &sums),
    }
}

fn measured(entries: &[Entry], pairs: &[Pair]) -> Vec<Measured> {
    let mut measured: Vec<Measured> =
        entries.iter().zip(pairs).map(|(entry, pair)| measure_entry(entry, pair)).collect();
    let mut figures: Vec<&mut Figures> = measured.iter_mut().filter_map(|one| one.figures.as_mut()).collect();
    let points: Vec<(f64, f64)> =
        figures.iter().map(|figures| (figures.compress.wall_seconds, figures.size())).collect();
    for (figures, best) in figures.iter_mut().zip(chart::front(&points)) {
        figures.on_front = best;
    }
    measured
}

fn measure_entry(entry: &Entry, pair: &Pair) -> Measured {
    let figures = pair.as_ref().ok().map(|(tally, reference)| Figures {
        segments: tally.segments,
        bytes_in: tally.bytes_in,
        bytes_out: tally.bytes_out,
        megabytes: tally.bytes_out as f64 / 1e6 / tally.segments.max(1) as f64,
        compress: tally.compress.over(tally.segments),
        decompress: tally.decompress.over(tally.segments),
        times_xz_2: reference.map(|reference| Times {
            bytes: tally.bytes_out as f64 / reference.bytes_out as f64,
            compress_wall: tally.compress.wall_seconds / reference.compress.wall_seconds,
            decompress_wall: tally.decompress.wall_seconds / reference.decompress.wall_seconds,
        }),
        on_front: false,
    });
    Measured {
        contender: entry.label(),
        name: entry.contender.name,
        level: entry.level,
        threads: entry.contender.threads,
        takes: entry.contender.takes,
        figures,
        failure: pair.as_ref().err().cloned(),
        published: published::find(entry.contender.name, entry.level),
    }
}

impl Figures {
    /// Returns the size by which contenders are compared, even if they compress different segments: the ratio
    /// to `xz -2` on the same segments or, without that, to the segments themselves.
    fn size(&self) -> f64 {
        self.times_xz_2.map_or(self.bytes_out as f64 / self.bytes_in.max(1) as f64, |times| times.bytes)
    }
}
