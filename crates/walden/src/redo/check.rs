//! `walden redo check`: compares replayed pages with PostgreSQL's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
#[cfg(feature = "demo")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use walden_format::lsn::Lsn;
use walden_format::rmgr::Kind;
use walden_format::version::Major;
use walden_redo::BlockKey;
use walden_redo::Family;
use walden_redo::check::files;
use walden_redo::check::{Check, Counts, Difference};
use walden_report::table::{Look, Row};
use walden_report::units;
use walden_source::scan::Damage;

use super::{Inputs, Material, open_stopped};
use crate::progress::Progress;
use crate::terminal::Format;
use crate::{FOUND, terminal};

const EXAMPLES: &str = "\
Examples:
  walden redo check /archive/wal
      replay, and compare each full-page image with the replayed page
  walden redo check --base /backup/base --data /var/lib/postgresql/18/main /archive/wal
      start with the pages of a base backup, and compare the replayed pages with the files of a stopped server
  walden redo check --memory 512MB /archive/wal
      as the first example, with at most 512 MB of memory for pages; other pages are in a temporary file

Exit status: 0 all is equal, 1 a difference, 2 wrong usage, 3 input unreadable or damaged.";

/// Replay WAL and compare the pages with PostgreSQL's: with every full-page image, and with data files
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    inputs: Inputs,

    /// The data directory of the server that wrote the WAL, stopped cleanly: compare its pages with the
    /// replayed ones as of its shutdown
    #[arg(long = "data", visible_alias = "pgdata", value_name = "DIR")]
    pgdata: Option<PathBuf>,

    /// Output format; docs/json.md describes the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Checks the WAL of a workload, given its data directory from before and after.
#[cfg(feature = "demo")]
pub fn check_kept(wal: &Path, base: &Path, data: &Path) -> Result<Outcome> {
    let inputs = Inputs {
        sources: vec![wal.to_owned()],
        timeline: None,
        base: Some(base.to_owned()),
        memory: None,
        threads: None,
    };
    let args = CheckArgs { inputs, pgdata: Some(data.to_owned()), format: Format::Table };
    let (_, outcome) = check(&args)?;
    if let Some(damage) = outcome.damages.first() {
        bail!("{damage}");
    }
    Ok(outcome)
}

/// The results of the check.
#[derive(Default)]
pub struct Outcome {
    pub images: Check,
    pub pages: Check,
    end: Lsn,
    version: Option<Major>,
    damages: Vec<Damage>,
}

impl Outcome {
    /// Returns the number of full-page images and data pages that differ from the replayed pages.
    pub fn different(&self) -> u64 {
        self.images.total().different + self.pages.total().different
    }

    /// Returns the first differences.
    pub fn differences(&self) -> impl Iterator<Item = &Difference> {
        self.images.differences.iter().chain(&self.pages.differences)
    }
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (material, outcome) = check(args)?;
    terminal::show(args.format, || document(&outcome), || table(&outcome))?;
    let code = if outcome.different() > 0 { ExitCode::from(FOUND) } else { ExitCode::SUCCESS };
    Ok(super::report(&material.inventory, &outcome.damages).unwrap_or(code))
}

fn check(args: &CheckArgs) -> Result<(Material, Outcome)> {
    let material = Material::open(&args.inputs)?;
    let mut pgdata = args.pgdata.as_deref().map(|path| open_stopped(path, &material.lineages)).transpose()?;
    let mut progress = Progress::bytes("replaying", material.bytes());
    let mut outcome = Outcome::default();
    for (index, lineage) in material.lineages.iter().enumerate() {
        let pgdata = pgdata.as_mut().filter(|(at, _)| *at == index).map(|(_, data)| data);
        let hints = pgdata.as_ref().map(|data| data.control().hint_settings());
        let last = pgdata.as_ref().map(|data| data.control().checkpoint);
        let run = material.replay(index, hints, last, &mut outcome.images, &mut progress)?;
        outcome.images.finish();
        outcome.version = Some(lineage.run.version);
        outcome.end = run.reached;
        let is_damaged = run.damage.is_some();
        outcome.damages.extend(run.damage);
        let Some(data) = pgdata else { continue };
        if !run.has_last && !is_damaged {
            bail!(
                "the WAL ends at {}, before the last checkpoint of {}, {}\nhint: give the server's pg_wal as a further \
                 source",
                run.reached,
                data.path().display(),
                data.control().checkpoint
            );
        }
        if run.has_last {
            let mut store = run.store;
            let read = |key: BlockKey, page: &mut walden_redo::Page| {
                data.read_page(key.relation, key.fork, key.block, &mut page.0)
            };
            files::compare(&mut store, lineage.run.version, &mut outcome.pages, read)?;
            if let Some(failure) = store.failure() {
                bail!("{failure}");
            }
        }
    }
    progress.finish();
    Ok((material, outcome))
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
        "pages": {
            "exact": pages.exact,
            "masked": pages.masked,
            "copied_maps": pages.copied_maps,
            "different": pages.different,
        },
        "by_record": by_record(check, version),
        "pages_by_last_record": by_record(&outcome.pages, version),
        "displaced_data": displaced_data(check, version),
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

fn displaced_data(check: &Check, version: Major) -> Vec<serde_json::Value> {
    let row = |(kind, [exact, differs, unknown]): (&Kind, &[u64; 3])| {
        json!({
            "resource_manager": kind.resource_manager(version),
            "record": kind.name(version),
            "exact": exact,
            "differs": differs,
            "unknown": unknown,
        })
    };
    check.reconstructed.iter().map(row).collect()
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
    let look = terminal::look();
    let version = outcome.version.unwrap_or(Major::V18);
    let (images, pages) = (&outcome.images, &outcome.pages);
    let mut text = counts_table(look, "Images against replay", images, version) + "\n";
    if !pages.counts.is_empty() {
        text += &(counts_table(look, "Data files against replay, by last record", pages, version) + "\n");
    }
    let total = images.total();
    let count = units::count;
    let _ = writeln!(
        text,
        "{} records replayed; {} images and {} pages of data files compared: {}",
        count(images.records),
        count(total.compared()),
        count(pages.total().compared()),
        match outcome.different() {
            0 => "none differs".to_owned(),
            different => look.alarm(&format!("{} differ", count(different))),
        }
    );
    let explained = [
        (
            total.copied_maps + pages.total().copied_maps,
            "visibility maps whose bits CREATE DATABASE does not log: PostgreSQL's recovery lacks them, too",
        ),
        (
            total.cleared_early,
            "visibility maps in which PostgreSQL cleared a bit before it wrote the record that clears it",
        ),
    ];
    for (pages, why) in explained.into_iter().filter(|(pages, _)| *pages > 0) {
        let _ = writeln!(text, "  {} explained: {why}", count(pages));
    }
    let reasons = [
        (total.unknown_before, "the page before is not known"),
        (total.whole_pages, "the image is the change itself"),
        (
            total.untracked,
            "the page is changed by records that are not replayed (the free space map, extensions)",
        ),
        (total.unpredicted, "the data displaced by the image cannot be reconstructed"),
    ];
    for (images, why) in reasons.into_iter().filter(|(images, _)| *images > 0) {
        let _ = writeln!(text, "  {} not compared: {why}", count(images));
    }
    for ((kind, what), times) in &images.misfits {
        let kind = kind_name(*kind, version);
        let times = if *times == 1 { "once".to_owned() } else { format!("{} times", count(*times)) };
        let _ = writeln!(text, "{}: {kind}: {what}, {times}", look.alarm("does not fit"));
    }
    for difference in outcome.differences().take(20) {
        let Difference { key, family, lsn, kind, version, offset, field, expected, found } = difference;
        let _ = writeln!(
            text,
            "{}: {key} ({}) after {} at {lsn}\n  {field} (byte {offset}): expected {}, replay has {}",
            look.alarm("different"),
            family.name(),
            kind_name(*kind, *version),
            hex(expected),
            hex(found)
        );
    }
    text
}

/// Formats the counts by owner of the page, and below that by kind of record.
fn counts_table(look: Look, title: &str, check: &Check, version: Major) -> String {
    let mut families: BTreeMap<Family, (Counts, Vec<Row>)> = BTreeMap::new();
    let cells = |counts: &Counts| {
        let other = counts.unknown_before + counts.untracked + counts.unpredicted + counts.whole_pages;
        [counts.exact, counts.masked, counts.explained(), counts.different, other].map(units::count).to_vec()
    };
    for ((kind, family), counts) in &check.counts {
        let (sum, rows) = families.entry(*family).or_default();
        sum.merge(counts);
        rows.push(Row { depth: 1, label: kind_name(*kind, version), cells: cells(counts), share: None });
    }
    let with_sum = |(family, (sum, rows)): (Family, (Counts, Vec<Row>))| {
        let label = family.name().to_owned();
        std::iter::once(Row { depth: 0, label, cells: cells(&sum), share: None }).chain(rows)
    };
    let rows: Vec<Row> = families.into_iter().flat_map(with_sum).collect();
    let head: &[&str] = &["exact", "but for hints", "explained", "different", "not compared"];
    walden_report::table::table(look, title, ("page, record", head), &rows)
}

fn kind_name(kind: Kind, version: Major) -> String {
    format!("{} {}", kind.resource_manager(version), kind.name(version))
}
