//! `walden redo check`: what PostgreSQL says of the outcome of replay.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use walden_format::lsn::Lsn;
use walden_format::rmgr::Kind;
use walden_format::version::Major;
use walden_redo::check::{Check, Counts, Difference};
use walden_redo::family::Family;
use walden_redo::files;
use walden_redo::store::BlockKey;
use walden_source::scan::Damage;

use super::{Inputs, Material, open_stopped};
use crate::FOUND;
use crate::progress::Progress;

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
pub struct CheckArgs {
    #[command(flatten)]
    inputs: Inputs,

    /// The data directory of the server that wrote the log, stopped cleanly: compare its pages with the replayed ones
    /// as of its shutdown
    #[arg(long, value_name = "DIR")]
    pgdata: Option<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = super::Format::Table)]
    format: super::Format,
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

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let mut material = Material::open(&args.inputs)?;
    let mut pgdata =
        args.pgdata.as_deref().map(|path| open_stopped(path, &material.inventory)).transpose()?;
    let mut progress = Progress::bytes("replaying", material.bytes());
    let mut outcome = Outcome::default();
    for index in 0..material.inventory.runs.len() {
        let pgdata = pgdata.as_mut().filter(|(at, _)| *at == index).map(|(_, data)| data);
        let logs_hints = pgdata.as_ref().is_some_and(|data| data.control().logs_hints());
        let last = pgdata.as_ref().map(|data| data.control().checkpoint);
        let run = material.replay(index, logs_hints, last, &mut outcome.images, &mut progress)?;
        outcome.version = Some(material.inventory.runs[index].version);
        outcome.end = run.reached;
        let is_damaged = run.damage.is_some();
        outcome.damages.extend(run.damage);
        let Some(data) = pgdata else { continue };
        if !run.came && !is_damaged {
            bail!(
                "the WAL ends at {}, before the last checkpoint of {}, {}\nhint: give the server's pg_wal as a further \
                 source",
                run.reached,
                data.path().display(),
                data.control().checkpoint
            );
        }
        if run.came {
            let mut store = run.store;
            let read = |key: BlockKey, page: &mut walden_redo::Page| {
                data.read_page(key.relation, key.fork, key.block, &mut page.0)
            };
            let version = material.inventory.runs[index].version;
            files::compare(&mut store, version, &mut outcome.pages, read)?;
            if let Some(failure) = store.failure() {
                bail!("{failure}");
            }
        }
    }
    progress.finish();
    super::print(args.format, || document(&outcome), || table(&outcome))?;
    let code = if outcome.different() > 0 { ExitCode::from(FOUND) } else { ExitCode::SUCCESS };
    Ok(super::report(&outcome.damages).unwrap_or(code))
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
        "displaced_data": told(check, version),
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

fn told(check: &Check, version: Major) -> Vec<serde_json::Value> {
    let row = |(kind, [rightly, otherwise, not]): (&Kind, &[u64; 3])| {
        json!({
            "resource_manager": kind.resource_manager(version),
            "record": kind.name(version),
            "rightly": rightly,
            "otherwise": otherwise,
            "not_told": not,
        })
    };
    check.told.iter().map(row).collect()
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
