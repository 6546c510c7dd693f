//! `walden redo check`: the log replayed, and what PostgreSQL says of the outcome.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_redo::check::{Check, Difference};
use walden_redo::{PageStore, Replay};
use walden_source::inventory::Inventory;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_in_order};

use crate::explain::Format;
use crate::progress::Progress;
use crate::{DAMAGED, FOUND};

/// Replay WAL into pages
#[derive(Args, Debug)]
pub struct RedoArgs {
    #[command(subcommand)]
    command: RedoCommand,
}

#[derive(Subcommand, Debug)]
enum RedoCommand {
    Check(CheckArgs),
}

const EXAMPLES: &str = "\
Examples:
  walden redo check /archive/wal
      replay, and hold each full-page image against the replayed page

Exit status: 0 all is equal, 1 a difference, 2 wrong usage, 3 input unreadable or damaged.";

/// Replay WAL and compare the pages with PostgreSQL's own: with every full-page image, and with data files
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct CheckArgs {
    /// Segments, or folders of segments
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Runs the command.
pub fn run(args: &RedoArgs) -> Result<ExitCode> {
    match &args.command {
        RedoCommand::Check(args) => check(args),
    }
}

/// Replays and checks each record.
struct Checker {
    replay: Replay,
    check: Check,
}

impl Visitor for Checker {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.replay.apply(record, &mut self.check);
        ControlFlow::Continue(())
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let inventory = Inventory::of(&args.sources)?;
    let mut damages: Vec<Damage> = Vec::new();
    let total: u64 =
        inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
    let mut progress = Progress::bytes("replaying", total);
    let mut checker = Checker { replay: Replay::new(PageStore::default()), check: Check::default() };
    let mut end = Lsn::INVALID;
    let mut version = Major::V18;
    for run in &inventory.runs {
        version = run.version;
        let options = ScanOptions { threads: 1, from: None, to: None };
        let (reached, ended) = scan_in_order(run, options, &mut checker, |bytes| progress.advance(bytes));
        end = reached;
        if let SegmentEnd::Damaged(damage) = ended {
            damages.push(damage);
        }
    }
    progress.finish();
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&document(&checker.check, version, end))? + "\n",
        _ => table(&checker.check, version),
    };
    anstream::stdout().lock().write_all(text.as_bytes()).context("write the output")?;
    let mut code = ExitCode::SUCCESS;
    if checker.check.total().different > 0 {
        code = ExitCode::from(FOUND);
    }
    for damage in &damages {
        eprintln!("error: {damage}\nhint: {}", damage.hint());
        code = ExitCode::from(DAMAGED);
    }
    Ok(code)
}

fn document(check: &Check, version: Major, end: Lsn) -> serde_json::Value {
    let total = check.total();
    let kinds: Vec<_> = check
        .counts
        .iter()
        .map(|((kind, family), counts)| {
            json!({
                "resource_manager": kind.resource_manager(version),
                "record": kind.name(version),
                "page": family.name(),
                "counts": counts,
            })
        })
        .collect();
    let misfits: Vec<_> = check
        .misfits
        .iter()
        .map(|((kind, what), count)| json!({"record": kind.name(version), "resource_manager": kind.resource_manager(version), "what": what, "count": count}))
        .collect();
    json!({
        "records": check.records,
        "end_lsn": end.to_string(),
        "images_compared": total.compared(),
        "pages_compared": 0,
        "different": total.different,
        "untracked_images": total.untracked,
        "images": total,
        "by_record": kinds,
        "misfits": misfits,
        "differences": check.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}

fn difference(difference: &Difference) -> serde_json::Value {
    let Difference { key, family, lsn, kind, version, offset, field, expected, found } = difference;
    json!({
        "block": key.to_string(),
        "page": family.name(),
        "lsn": lsn.to_string(),
        "resource_manager": kind.resource_manager(*version),
        "record": kind.name(*version),
        "offset": offset,
        "field": field,
        "expected": hex(expected),
        "found": hex(found),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn table(check: &Check, version: Major) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<34} {:<15} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "record", "page", "exact", "masked", "different", "unknown", "untracked", "not told", "whole"
    );
    for ((kind, family), c) in &check.counts {
        let name = format!("{} {}", kind.resource_manager(version), kind.name(version));
        let _ = writeln!(
            text,
            "{name:<34} {:<15} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            family.name(),
            c.exact,
            c.masked,
            c.different,
            c.unknown_before,
            c.untracked,
            c.not_told,
            c.whole_pages
        );
    }
    for ((kind, what), count) in &check.misfits {
        let _ = writeln!(
            text,
            "misfit: {} {}: {what}: {count}",
            kind.resource_manager(version),
            kind.name(version)
        );
    }
    for d in check.differences.iter().take(20) {
        let _ = writeln!(
            text,
            "different: {} ({}) after {} {} at {}: {} (byte {}): expected {}, found {}",
            d.key,
            d.family.name(),
            d.kind.resource_manager(d.version),
            d.kind.name(d.version),
            d.lsn,
            d.field,
            d.offset,
            hex(&d.expected),
            hex(&d.found)
        );
    }
    text
}
