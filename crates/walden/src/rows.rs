//! `walden rows`: the rows that changed, before and after.

#[cfg(feature = "data")]
mod columns;
mod print;
mod script;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
#[cfg(feature = "data")]
use walden_arrow::export::FileFormat;
use walden_explain::{Bound, Timeline};
use walden_format::lsn::Lsn;
use walden_rows::{Entry, Operation, Options, RowChanges, Summary, Wanted};
use walden_source::inventory::Inventory;
use walden_source::timelines::{Lineage, lineages};

use self::print::Printer;
use self::script::Script;
use crate::explain::parse_bound;
use crate::page::parse_file;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::{DAMAGED, base, explain, names, redo, terminal};

const EXAMPLES: &str = "\
Examples:
  walden rows /archive/wal --names names.json --relation public.orders
      every change of the table's rows that the log has
  walden rows /archive/wal --base /backups/monday --relation public.orders --from '2026-11-25 02:55' --to '2026-11-25 03:05' --op delete
      the rows that were deleted in ten minutes of a night
  walden rows /archive/wal --base /backups/monday --relation public.orders --xid 7351 --undo > undo.sql
      SQL that reverts what one transaction did to the table
  walden rows /archive/wal --base /backups/monday --relation public.orders --format json
      each change as a line of JSON; --format parquet -o FILE for other programs

Without a base backup, the row before a change is known from the first full-page image of its page on; see docs/rows.md.

Exit status: 0 done, 1 some rows are not known (they are marked), 2 wrong usage, 3 input unreadable or damaged.";

/// Show the rows of a table that changed, before and after, from the WAL alone; as SQL, what reverts them
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RowsArgs {
    /// Segments, folders of segments (pg_wal, a data directory, an archive, compressed or not), or archives of
    /// `walden archive` (a folder, or s3://BUCKET/PREFIX)
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// Follow the log that ends on this timeline, from its ancestors on [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// The table, with its partitions: a name such as public.orders or shop.public.orders, a path such as base/5/16384, or
    /// TABLESPACE/DATABASE/FILE as numbers
    #[arg(long, value_name = "NAME|PATH|SPC/DB/REL")]
    relation: String,

    /// A base backup, or a copy of a stopped data directory, from which the log continues: its catalogs have the columns, and
    /// its pages the rows
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// Names and columns of tables: a connection string, or a file written by `walden explain --save-names`
    #[arg(long, value_name = "DSN|FILE")]
    names: Vec<String>,

    /// Start with the first record at or after this LSN (16/B374D848) or time (2026-11-20 22:00, local unless with zone)
    #[arg(long, visible_alias = "start", value_name = "LSN|TIME", value_parser = parse_bound)]
    from: Option<Bound>,

    /// End before the first record at or after this LSN or time
    #[arg(long, visible_alias = "end", value_name = "LSN|TIME", value_parser = parse_bound)]
    to: Option<Bound>,

    /// Only what this transaction did, with its subtransactions
    #[arg(long, value_name = "N")]
    xid: Option<u32>,

    /// Only these changes [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPERATIONS")]
    op: Vec<OperationName>,

    /// Also show what was rolled back, marked so
    #[arg(long, conflicts_with = "undo")]
    aborted: bool,

    /// How to print it; docs/rows.md has the JSON
    #[arg(long, value_enum, default_value_t)]
    format: RowsFormat,

    /// Write the changes to this file, for --format parquet and arrow
    #[cfg(feature = "data")]
    #[arg(short, long, value_name = "FILE", required_if_eq_any = [("format", "parquet"), ("format", "arrow")])]
    output: Option<PathBuf>,

    /// Print SQL that reverts the changes, the newest first, in one transaction
    #[arg(long, conflicts_with = "format")]
    undo: bool,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default: a quarter
    /// of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = redo::parse_size)]
    memory: Option<usize>,

    /// Threads: one replays; with more, another one reads and decompresses ahead of it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum OperationName {
    Insert,
    Update,
    Delete,
}

/// How changes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum RowsFormat {
    /// For people: of an update the columns that changed
    #[default]
    Table,
    /// A line per change, the rows as JSON
    Csv,
    /// A line of JSON per change
    Json,
    /// SQL that makes the changes again
    Sql,
    /// A Parquet file, the rows as JSON
    #[cfg(feature = "data")]
    Parquet,
    /// An Arrow file (Feather 2), the rows as JSON
    #[cfg(feature = "data")]
    Arrow,
}

/// Runs the command.
pub fn run(args: &RowsArgs) -> Result<ExitCode> {
    let names = names::load(&args.names)?;
    let range = SourceRange { timeline: args.timeline, from: None, to: args.to };
    let inventory = sources::open(&args.sources, &range)?;
    explain::tell_about(&inventory);
    names::check_cluster(&names, &inventory)?;
    for unreadable in &inventory.unreadable {
        eprintln!("error: {unreadable}");
    }
    let has_unreadable = !inventory.unreadable.is_empty();
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let (from, to) = bounds(args, &inventory, threads)?;
    let lineage = choose(args, inventory)?;
    let options = Options {
        table: match parse_file(&args.relation) {
            Some((file, _)) => Wanted::File(file),
            None => Wanted::Name(args.relation.clone()),
        },
        base: args.base.clone(),
        from,
        to,
        xid: args.xid,
        operations: args.op.iter().map(operation).collect(),
        with_aborted: args.aborted,
        memory_bytes: args.memory.unwrap_or_else(redo::quarter_of_memory),
        threads,
    };
    let bytes = lineage.run.segments.len() as u64 * lineage.run.segment_size.bytes();
    let mut progress = Progress::bytes("reading", 2 * bytes);
    let changes = RowChanges::survey(&lineage.run, &names, options, |bytes| progress.advance(bytes))?;
    let notes = changes.notes.clone();
    let summary = match args.undo {
        true => undo(args, changes, &mut progress)?,
        false => write(args, changes, &mut progress)?,
    };
    progress.finish();
    for note in notes {
        eprintln!("note: {note}");
    }
    tell(&summary);
    if let Some(damage) = &summary.damage {
        eprintln!("error: {damage}\nhint: {}", damage.hint());
    }
    let is_complete = summary.counts.before_unknown == 0 && summary.counts.after_unknown == 0;
    Ok(match (summary.damage.is_some() || has_unreadable, is_complete) {
        (true, _) => ExitCode::from(DAMAGED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(crate::FOUND),
    })
}

fn operation(name: &OperationName) -> Operation {
    match name {
        OperationName::Insert => Operation::Insert,
        OperationName::Update => Operation::Update,
        OperationName::Delete => Operation::Delete,
    }
}

/// The bounds as positions; times need a pass of their own.
fn bounds(args: &RowsArgs, inventory: &Inventory, threads: usize) -> Result<(Option<Lsn>, Option<Lsn>)> {
    let has_time = [args.from, args.to].iter().flatten().any(|bound| matches!(bound, Bound::Time(_)));
    let timeline = match has_time {
        true => Timeline::read(&inventory.runs, threads, |_| {}),
        false => Timeline::default(),
    };
    Ok(timeline.range(args.from, args.to)?)
}

/// The log that is read: the one that goes on from the base backup, else the last one.
fn choose(args: &RowsArgs, mut inventory: Inventory) -> Result<Lineage> {
    let base = args.base.as_deref().map(base::open).transpose()?;
    let runs = std::mem::take(&mut inventory.runs);
    let mut lineages = lineages(runs);
    let Some(base) = base else {
        if lineages.len() > 1 {
            eprintln!("note: the log has gaps or several ends: only its last part without a gap is read");
        }
        return lineages.pop().context("cannot read rows: expected WAL segments, found none");
    };
    let (id, from) = (base.control().system_identifier, base.redo_from());
    let goes_on = |lineage: &Lineage| {
        lineage.run.system_id == id && lineage.run.start() <= from && from < lineage.run.end()
    };
    if let Some(index) = lineages.iter().rposition(goes_on) {
        return Ok(lineages.swap_remove(index));
    }
    if let Some(other) = lineages.iter().find(|lineage| lineage.run.system_id != id) {
        bail!(
            "the base backup is of the cluster with the system identifier {id}, the WAL is of {}",
            other.run.system_id
        );
    }
    bail!(
        "the WAL does not go on from {}: replay has to start at {from}\nhint: give the segments from that position on",
        base.path().display()
    )
}

/// Says what is not in the output, or not known.
fn tell(summary: &Summary) {
    let counts = &summary.counts;
    let many = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    if counts.aborted > 0 {
        eprintln!("note: {} rolled back and left out", many(counts.aborted, "change"));
    }
    if counts.unfinished > 0 {
        eprintln!(
            "note: {} of transactions whose end is not in the range, marked as unfinished",
            many(counts.unfinished, "change")
        );
    }
    if counts.before_unknown > 0 || counts.after_unknown > 0 {
        eprintln!(
            "note: of {}, {} before and {} after are not known whole; each says why",
            many(counts.changes, "change"),
            many(counts.before_unknown, "row"),
            many(counts.after_unknown, "row")
        );
    }
}

/// Writes the changes in the format that is asked for.
fn write(args: &RowsArgs, changes: RowChanges<'_>, progress: &mut Progress) -> Result<Summary> {
    #[cfg(feature = "data")]
    if let Some(path) = &args.output {
        let format = match args.format {
            RowsFormat::Parquet => FileFormat::Parquet,
            RowsFormat::Arrow => FileFormat::Arrow,
            _ => crate::wrong_usage("-o is for --format parquet and --format arrow"),
        };
        let mut file = columns::ColumnFile::new(path, format)?;
        let summary = read(changes, progress, |entry| file.entry(entry))?;
        file.finish()?;
        return Ok(summary);
    }
    let mut printer = Printer::new(args.format)?;
    let summary = read(changes, progress, |entry| printer.entry(entry))?;
    printer.finish()?;
    Ok(summary)
}

/// Reads the changes, until `take` fails.
fn read(
    changes: RowChanges<'_>,
    progress: &mut Progress,
    mut take: impl FnMut(&Entry) -> Result<()>,
) -> Result<Summary> {
    let mut failure = None;
    let summary = changes.read(
        |bytes| progress.advance(bytes),
        |entry| match take(&entry) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        },
    )?;
    match failure {
        Some(error) => Err(error),
        None => Ok(summary),
    }
}

/// What was asked for, for the script's first line.
fn selection(args: &RowsArgs) -> String {
    let mut text = args.relation.clone();
    if let Some(xid) = args.xid {
        text.push_str(&format!(" by transaction {xid}"));
    }
    if !args.op.is_empty() {
        let names: Vec<&str> = args.op.iter().map(|name| operation(name).name()).collect();
        text.push_str(&format!(" ({} only)", names.join(", ")));
    }
    text
}

fn undo(args: &RowsArgs, changes: RowChanges<'_>, progress: &mut Progress) -> Result<Summary> {
    let mut script = Script::new()?;
    let summary = read(changes, progress, |entry| script.take(entry))?;
    script.finish(&selection(args), &summary)?;
    Ok(summary)
}
