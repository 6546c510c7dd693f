//! `walden redo check`: the log replayed, and what PostgreSQL says of the outcome.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::rmgr::Kind;
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_redo::check::{Check, Counts, Difference};
use walden_redo::family::Family;
use walden_redo::store::{BasePages, StoreOptions};
use walden_redo::{PageStore, Replay, files};
use walden_source::datadir::{DataDir, DatabaseState};
use walden_source::inventory::{Inventory, Run};
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
  walden redo check --base /backup/base --pgdata /var/lib/postgresql/18/main /archive/wal
      start with the pages of a base backup, and compare what replay makes of them with the files of a stopped server
  walden redo check --memory 512MB /archive/wal
      the same as the first, with at most that much memory for pages and the rest in a temporary file

Exit status: 0 all is equal, 1 a difference, 2 wrong usage, 3 input unreadable or damaged.";

/// Replay WAL and compare the pages with PostgreSQL's own: with every full-page image, and with data files
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct CheckArgs {
    /// Segments, or folders of segments
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// A base backup in plain format, or a stopped server's data directory, that the log goes on from: pages start as
    /// they are there
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// The data directory of the server that wrote the log, stopped cleanly: compare its pages with the replayed ones
    /// as of its shutdown
    #[arg(long, value_name = "DIR")]
    pgdata: Option<PathBuf>,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default: a quarter
    /// of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

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

/// Replays and checks each record of a run.
struct Checker<'c> {
    replay: Replay,
    check: &'c mut Check,
    /// The last record to replay, and whether it came.
    last: Option<Lsn>,
    came: bool,
}

impl Visitor for Checker<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.last.is_some_and(|last| record.lsn > last) {
            return ControlFlow::Break(());
        }
        self.replay.apply(record, self.check);
        self.came |= self.last == Some(record.lsn);
        if self.came || self.replay.store.failure().is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// What the check found.
#[derive(Default)]
struct Outcome {
    images: Check,
    pages: Check,
    end: Lsn,
    version: Option<Major>,
    damages: Vec<Damage>,
}

impl Outcome {
    fn different(&self) -> u64 {
        self.images.total().different + self.pages.total().different
    }

    fn differences(&self) -> impl Iterator<Item = &Difference> {
        self.images.differences.iter().chain(&self.pages.differences)
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let inventory = Inventory::of(&args.sources)?;
    let mut base = args.base.as_deref().map(|path| open_base(path, &inventory)).transpose()?;
    let mut pgdata = args.pgdata.as_deref().map(|path| open_stopped(path, &inventory)).transpose()?;
    let memory_bytes = args.memory.unwrap_or_else(quarter_of_memory);
    let total: u64 =
        inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
    let mut progress = Progress::bytes("replaying", total);
    let mut outcome = Outcome::default();
    // A run starts behind a gap, or on another timeline: what was known of the pages before does not hold there.
    for (index, run) in inventory.runs.iter().enumerate() {
        outcome.version = Some(run.version);
        let base = base.take_if(|(at, _)| *at == index).map(|(_, data)| data);
        let pgdata = pgdata.as_mut().filter(|(at, _)| *at == index).map(|(_, data)| data);
        let controls = [base.as_ref().map(DataDir::control), pgdata.as_ref().map(|data| data.control())];
        let logs_hints = controls.into_iter().flatten().any(|control| control.logs_hints());
        // What the base's files already have is not replayed a second time.
        let from = base.as_ref().map(DataDir::redo_from);
        let base = base.map(|data| Box::new(data) as Box<dyn BasePages>);
        let mut store = PageStore::new(StoreOptions { memory_bytes, base, ..StoreOptions::default() });
        if logs_hints {
            store.log_hints();
        }
        let last = pgdata.as_ref().map(|data| data.control().checkpoint);
        let check = &mut outcome.images;
        let mut checker = Checker { replay: Replay::new(store), check, last, came: false };
        let options = ScanOptions { threads: 1, from, to: None };
        let (reached, ended) = scan_in_order(run, options, &mut checker, |bytes| progress.advance(bytes));
        outcome.end = reached;
        let Checker { replay: Replay { mut store, .. }, came, .. } = checker;
        if let SegmentEnd::Damaged(damage) = ended {
            outcome.damages.push(damage);
        }
        if let Some(failure) = store.failure() {
            bail!("{failure}\nhint: TMPDIR says where the temporary file is; --memory makes it smaller");
        }
        if let Some(data) = pgdata {
            if !came && outcome.damages.is_empty() {
                bail!(
                    "the WAL ends at {reached}, before the last checkpoint of {}, {}\nhint: give the server's pg_wal \
                     as a further source",
                    data.path().display(),
                    data.control().checkpoint
                );
            }
            if came {
                let read = |key: walden_redo::store::BlockKey, page: &mut walden_redo::Page| {
                    data.read_page(key.relation, key.fork, key.block, &mut page.0)
                };
                files::compare(&mut store, run.version, &mut outcome.pages, read)?;
                if let Some(failure) = store.failure() {
                    bail!("{failure}");
                }
            }
        }
    }
    progress.finish();
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&document(&outcome))? + "\n",
        _ => table(&outcome),
    };
    anstream::stdout().lock().write_all(text.as_bytes()).context("write the output")?;
    let mut code = ExitCode::SUCCESS;
    if outcome.different() > 0 {
        code = ExitCode::from(FOUND);
    }
    for damage in &outcome.damages {
        eprintln!("error: {damage}\nhint: {}", damage.hint());
        code = ExitCode::from(DAMAGED);
    }
    Ok(code)
}

/// Opens a base backup, and finds the run that goes on from it.
fn open_base(path: &Path, inventory: &Inventory) -> Result<(usize, DataDir)> {
    let data = DataDir::open(path)?;
    if !data.is_backup() && data.control().state != DatabaseState::ShutDown {
        bail!(
            "{}: neither a base backup nor a cleanly stopped server's data directory: it has no backup_label, and its \
             server was {}",
            path.display(),
            data.control().state
        );
    }
    same_cluster(&data, inventory)?;
    let from = data.redo_from();
    let goes_on = |run: &Run| {
        let end = run.segments.last().map(|last| last.start.plus(run.segment_size.bytes()));
        run.system_id == data.control().system_identifier
            && run.segments.first().is_some_and(|first| first.start <= from)
            && end.is_some_and(|end| from < end)
    };
    let Some(index) = inventory.runs.iter().rposition(goes_on) else {
        bail!(
            "the WAL does not go on from {}: replay has to start at {from}\nhint: give the segments from that position \
             on",
            path.display()
        );
    };
    Ok((index, data))
}

/// Opens a stopped server's data directory, and finds the run that its last checkpoint is in.
fn open_stopped(path: &Path, inventory: &Inventory) -> Result<(usize, DataDir)> {
    let data = DataDir::open(path)?;
    let control = data.control();
    if control.state != DatabaseState::ShutDown {
        bail!(
            "{}: expected the data directory of a cleanly stopped server, found one that was {}\nhint: pg_ctl stop -m \
             fast",
            path.display(),
            control.state
        );
    }
    same_cluster(&data, inventory)?;
    let has_checkpoint = |run: &Run| {
        let end = run.segments.last().map(|last| last.start.plus(run.segment_size.bytes()));
        run.system_id == control.system_identifier
            && run.timeline == control.timeline
            && run.segments.first().is_some_and(|first| first.start <= control.redo)
            && end.is_some_and(|end| control.redo < end)
    };
    let Some(index) = inventory.runs.iter().position(has_checkpoint) else {
        bail!(
            "the WAL does not have the last checkpoint of {}: {} on timeline {}\nhint: give the server's pg_wal as a \
             further source",
            path.display(),
            control.redo,
            control.timeline
        );
    };
    Ok((index, data))
}

fn same_cluster(data: &DataDir, inventory: &Inventory) -> Result<()> {
    let id = data.control().system_identifier;
    if inventory.runs.iter().any(|run| run.system_id == id) {
        return Ok(());
    }
    let found = inventory.runs.first().map_or("none".into(), |run| run.system_id.to_string());
    bail!("{}: expected the cluster that the WAL is of, {found}, found {id}", data.path().display())
}

/// A quarter of the memory that the machine has, or that the process's control group is allowed.
fn quarter_of_memory() -> usize {
    const UNTOLD: u64 = 4 << 30;
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let total = total.map_or(UNTOLD, |kilobytes| kilobytes << 10);
    let allowed = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    (allowed.unwrap_or(total).min(total) / 4) as usize
}

/// Bytes with a unit, as PostgreSQL's settings have them: `512MB`.
fn parse_size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, u32); 5] = [("TB", 40), ("GB", 30), ("MB", 20), ("kB", 10), ("B", 0)];
    let wrong = || format!("expected a size such as 512MB or 4GB, found \"{text}\"");
    let of_unit = |(unit, shift): &(&str, u32)| Some((text.strip_suffix(unit)?, *shift));
    let (number, shift) = UNITS.iter().find_map(of_unit).ok_or_else(wrong)?;
    let number: usize = number.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn document(outcome: &Outcome) -> serde_json::Value {
    let version = outcome.version.unwrap_or(Major::V18);
    let (check, pages) = (&outcome.images, outcome.pages.total());
    let total = check.total();
    json!({
        "records": check.records,
        "end_lsn": outcome.end.to_string(),
        "images_compared": total.compared(),
        "pages_compared": pages.compared(),
        "different": outcome.different(),
        "untracked_images": total.untracked,
        "images": total,
        "pages": {"exact": pages.exact, "masked": pages.masked, "different": pages.different},
        "by_record": by_record(check, version),
        "pages_by_last_record": by_record(&outcome.pages, version),
        "misfits": misfits(check, version),
        "differences": outcome.differences().map(difference).collect::<Vec<_>>(),
    })
}

fn by_record(check: &Check, version: Major) -> Vec<serde_json::Value> {
    let row = |((kind, family), counts): (&(Kind, Family), &Counts)| {
        json!({
            "resource_manager": kind.resource_manager(version),
            "record": kind.name(version),
            "page": family.name(),
            "counts": counts,
        })
    };
    check.counts.iter().map(row).collect()
}

fn misfits(check: &Check, version: Major) -> Vec<serde_json::Value> {
    let row = |((kind, what), count): (&(Kind, &str), &u64)| {
        json!({
            "record": kind.name(version),
            "resource_manager": kind.resource_manager(version),
            "what": what,
            "count": count,
        })
    };
    check.misfits.iter().map(row).collect()
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

fn table(outcome: &Outcome) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let version = outcome.version.unwrap_or(Major::V18);
    let check = &outcome.images;
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
    if !outcome.pages.counts.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<34} {:<15} {:>9} {:>9} {:>9}",
            "data files, by last record", "page", "exact", "masked", "different"
        );
        for ((kind, family), c) in &outcome.pages.counts {
            let name = format!("{} {}", kind.resource_manager(version), kind.name(version));
            let (exact, masked, different) = (c.exact, c.masked, c.different);
            let family = family.name();
            let _ = writeln!(text, "{name:<34} {family:<15} {exact:>9} {masked:>9} {different:>9}");
        }
    }
    let total = check.total();
    let _ = writeln!(
        text,
        "\n{} records, {} images and {} pages of data files compared, {} different, {} images untracked",
        check.records,
        total.compared(),
        outcome.pages.total().compared(),
        outcome.different(),
        total.untracked
    );
    for d in outcome.differences().take(20) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512MB"), Ok(512 << 20));
        assert_eq!(parse_size("4 GB"), Ok(4 << 30));
        assert_eq!(parse_size("8192B"), Ok(8192));
        for wrong in ["", "MB", "5", "5mb", "-1MB", "99999999999999TB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_is_told_by_the_system() {
        assert!(quarter_of_memory() > 16 << 20);
    }
}
