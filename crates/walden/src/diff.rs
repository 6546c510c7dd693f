//! `walden diff`: explains two ranges and compares them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use regex::Regex;
use walden_explain::checkpoints::CheckpointSettings;
use walden_explain::diff::{self as compare, Diff, Per, Side};
use walden_explain::document::{Context, Document};
use walden_explain::group::{Dimension, ViewSpec};
use walden_explain::{Bound, Explanation, Request};
use walden_output::Inputs;
use walden_report::diff_html;
use walden_source::inventory::Inventory;
use walden_source::names::Names;

use crate::arguments::{parse_bound, parse_pattern, parse_span, parse_view};
use crate::output::Overwrite;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::terminal::Format;
use crate::{names, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden diff --at '2026-11-20 14:00' --window 1h --names 'host=/run/postgresql' /archive/wal
      the hour before and the hour after a deployment
  walden diff /archive/monday /archive/tuesday --names names.json
      two folders, with the names of tables and indexes
  walden diff /archive/wal --a-from '2026-11-20 09:00' --a-to '2026-11-20 12:00' --b-from '2026-11-21 09:00' --b-to '2026-11-21 12:00'
      the same hours of two days
  walden diff --at 16/B374D848 --by schema --format json pg_wal.tar.gz
      before and after a position, by schema, with exact bytes
  walden diff --at '2026-11-20 14:00' --html diff.html /archive/wal
      also write a page with both curves

The WAL of A is scaled to the length of B; changes of parts add up to the change of the whole, to the byte.

Exit status: 0 done, 2 wrong usage, 3 input unreadable or damaged (the part before the damage is compared).";

/// Compare two ranges of WAL: by relation, record, checkpoint and schema, with the likely causes
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DiffArgs {
    /// A and B, each as explain's SOURCE; or one SOURCE with two ranges
    #[arg(value_name = "SOURCE", required = true, num_args = 1..=2)]
    sources: Vec<PathBuf>,

    /// Compare the WAL before this LSN (16/B374D848) or time (2026-11-20 14:00) with the WAL after it
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound, conflicts_with_all = ["a_to", "b_from"])]
    at: Option<Bound>,

    /// Compare only this much time before and after a time given as --at, such as 30m or 1h
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "at", conflicts_with_all = ["a_from", "b_to"])]
    window: Option<i64>,

    /// Start of A
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound)]
    a_from: Option<Bound>,

    /// End of A
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound)]
    a_to: Option<Bound>,

    /// Start of B
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound)]
    b_from: Option<Bound>,

    /// End of B
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound)]
    b_to: Option<Bound>,

    /// Follow the WAL history that ends on this timeline
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// Also compare by these dimensions of explain (schema, partition, tablespace, group, vacuum, database
    /// ...); may be given more than once
    #[arg(long, value_name = "DIMENSIONS", value_parser = parse_view)]
    by: Vec<ViewSpec>,

    /// Group relations by the part of DATABASE.SCHEMA.TABLE that this regular expression matches, as with
    /// --by group
    #[arg(long, value_name = "REGEX", value_parser = parse_pattern)]
    group: Option<Regex>,

    /// Unit by which A is scaled to the length of B [default: seconds, or transactions if a range is shorter
    /// than a second]
    #[arg(long, value_name = "UNIT", value_enum)]
    per: Option<PerArgument>,

    /// Where to read the names of tables and indexes: a connection string, or a file written by explain
    /// --save-names; repeatable. For two clusters, pass a source for each
    #[arg(long, value_name = "DSN|FILE")]
    names: Vec<String>,

    /// Width of the time spans used to judge noise and to draw curves [default: at most 60 spans]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    every: Option<i64>,

    /// Rows per table, with a last row for all remaining rows. 0: all
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Also write a page with charts, which any browser shows without network access
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Threads that decode [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum PerArgument {
    /// Bytes per second
    Second,
    /// Bytes per committed transaction
    Transaction,
    /// Bytes, not scaled
    Total,
}

/// A range to explain.
struct Wanted<'a> {
    name: String,
    source: &'a PathBuf,
    from: Option<Bound>,
    to: Option<Bound>,
}

/// A range that was explained.
struct Explained {
    name: String,
    explanation: Explanation,
    micros: u64,
    inventory: Inventory,
    /// Names as known when the range was explained: the other range may belong to another cluster.
    names: Names,
    checkpoint_settings: Option<CheckpointSettings>,
}

impl Explained {
    fn context<'a>(&'a self, args: &'a DiffArgs) -> Context<'a> {
        Context {
            names: &self.names,
            checkpoint_settings: self.checkpoint_settings,
            top: None,
            pattern: args.group.as_ref(),
            writers: None,
        }
    }

    fn side<'a>(&'a self, document: &'a Document) -> Side<'a> {
        Side { name: &self.name, document, explanation: &self.explanation, micros: self.micros }
    }
}

/// Runs the command.
pub fn run(args: &DiffArgs) -> Result<ExitCode> {
    let wanted = ranges(args);
    let inputs = Inputs::new(wanted.iter().map(|range| range.source));
    output::can_write(&[("--html", args.html.as_deref())], args.overwrite, &inputs)?;
    let mut all_names = args
        .names
        .iter()
        .map(|source| names::load(std::slice::from_ref(source)))
        .collect::<Result<Vec<_>>>()?;
    let [a, b] = wanted;
    let a = explain(args, a, &mut all_names)?;
    let b = explain(args, b, &mut all_names)?;
    let per = args.per.map(|per| match per {
        PerArgument::Second => Per::Second,
        PerArgument::Transaction => Per::Transaction,
        PerArgument::Total => Per::Total,
    });
    let [of_a, of_b] =
        compare::documents((&a.explanation, &a.context(args)), (&b.explanation, &b.context(args)));
    let found: Diff = compare::diff(a.side(&of_a), b.side(&of_b), per);
    if let Some(path) = &args.html {
        output::write_page(path, &diff_html::page(&found), args.overwrite)?;
    }
    let top = if args.top == 0 { usize::MAX } else { args.top };
    terminal::show(args.format, || &found, || walden_report::diff::diff(&found, top, terminal::look()))?;
    let codes = [&a, &b].map(|one| sources::ended(&one.inventory, one.explanation.damage.as_deref()));
    Ok(codes.into_iter().find(|code| *code != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS))
}

/// Returns the two ranges.
fn ranges(args: &DiffArgs) -> [Wanted<'_>; 2] {
    let around = |sign: i64| match (args.at, args.window) {
        (Some(Bound::Time(at)), Some(window)) => {
            Some(Bound::Time(at.saturating_add(sign * window * 1_000_000)))
        }
        (Some(Bound::Lsn(_)), Some(_)) => crate::wrong_usage("--window needs a time as --at, not a position"),
        _ => None,
    };
    let names = if args.at.is_some() { ["before", "after"] } else { ["A", "B"] };
    let source = |index: usize| args.sources.get(index).unwrap_or(&args.sources[0]);
    let has_two = args.sources.len() == 2;
    if args.by.iter().any(ViewSpec::is_by_writer) {
        crate::wrong_usage(
            "--by user, application, client and statement are explain's, which reads the server's log",
        );
    }
    if args.group.is_none() && args.by.iter().any(|view| view.has(Dimension::Pattern)) {
        crate::wrong_usage("--by group needs a pattern: --group 'tenant_(\\d+)'");
    }
    if !has_two && args.at.is_none() && (args.a_to.is_none() && args.b_from.is_none()) {
        crate::wrong_usage(
            "one SOURCE needs two ranges: --at TIME, or --a-from, --a-to, --b-from and --b-to; or give two SOURCEs",
        );
    }
    if has_two && args.at.is_some() {
        crate::wrong_usage("--at divides one SOURCE, and there are two");
    }
    // An open end of one range is the other range's start, and vice versa.
    let (a_to, b_from) = match has_two {
        true => (args.a_to, args.b_from),
        false => (args.a_to.or(args.at).or(args.b_from), args.b_from.or(args.at).or(args.a_to)),
    };
    let [a, b] = names.map(str::to_owned);
    [
        Wanted { name: a, source: source(0), from: args.a_from.or_else(|| around(-1)), to: a_to },
        Wanted { name: b, source: source(1), from: b_from, to: args.b_to.or_else(|| around(1)) },
    ]
}

fn explain(args: &DiffArgs, wanted: Wanted<'_>, all_names: &mut Vec<Names>) -> Result<Explained> {
    let Wanted { name, source, from, to } = wanted;
    let range = SourceRange { timeline: args.timeline, from, to };
    let inventory = sources::open(std::slice::from_ref(source), &range)?;
    sources::note_omitted(&inventory);
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let has_view = args.by.iter().any(|view| view.has(Dimension::Pattern));
    let group = args.group.iter().filter(|_| !has_view).map(|_| ViewSpec::by(Dimension::Pattern));
    let request = Request::new(threads)
        .views(args.by.iter().cloned().chain(group).chain(compare::views()).collect())
        .from(from)
        .to(to)
        .every(args.every);
    let total: u64 =
        inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
    let mut progress = Progress::bytes("reading", total);
    let explanation = walden_explain::explain(&inventory.runs, &request, |bytes| progress.advance(bytes))
        .with_context(|| format!("cannot explain {name} ({})", source.display()))?;
    progress.finish();
    sources::warn_of_step_back(explanation.step_back);
    let names = names_for(all_names, explanation.system_id, &inventory)?;
    let checkpoint_settings = names::complete(names, &explanation);
    let names = names.clone();
    let micros = length(&explanation, &inventory, from, to);
    Ok(Explained { name, explanation, micros, inventory, names, checkpoint_settings })
}

/// Returns the names of a cluster, merged from all sources given for it.
fn names_for<'a>(all: &'a mut Vec<Names>, cluster: u64, inventory: &Inventory) -> Result<&'a mut Names> {
    let fits = |names: &Names| names.origin.system_id.is_none_or(|id| id == cluster);
    if !all.is_empty() && !all.iter().any(fits) {
        names::check_cluster(&all[0], inventory)?;
    }
    let mut chosen: Option<usize> = None;
    for at in 0..all.len() {
        if !fits(&all[at]) {
            continue;
        }
        match chosen {
            None => chosen = Some(at),
            Some(first) => {
                let more = std::mem::take(&mut all[at]);
                all[first].merge(more).context("cannot use the names")?;
            }
        }
    }
    let at = chosen.unwrap_or_else(|| {
        all.push(Names::default());
        all.len() - 1
    });
    Ok(&mut all[at])
}

/// Returns the length of a range in microseconds. The range ends at the given times if the WAL reaches that
/// far, otherwise at the first and last transaction end.
fn length(explanation: &Explanation, inventory: &Inventory, from: Option<Bound>, to: Option<Bound>) -> u64 {
    let Some((first, last)) = explanation.time_span else { return 0 };
    let micros = |bound| match bound {
        Some(Bound::Time(micros)) => Some(micros),
        _ => None,
    };
    let starts = inventory.runs.iter().map(walden_source::inventory::Run::start);
    let is_at_start =
        explanation.ranges.first().is_none_or(|range| starts.clone().any(|start| start == range.start));
    let is_at_end = explanation
        .ranges
        .last()
        .is_none_or(|range| range.tail.is_some() || inventory.runs.iter().any(|run| run.end() <= range.end));
    let begin = micros(from).filter(|begin| !is_at_start && *begin <= first).unwrap_or(first);
    let end = micros(to).filter(|end| !is_at_end && *end >= last).unwrap_or(last);
    end.abs_diff(begin)
}
