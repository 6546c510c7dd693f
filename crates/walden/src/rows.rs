//! `walden rows`: the rows that changed, before and after.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(feature = "export")]
use anyhow::Context as _;
use anyhow::Result;
use clap::{Args, ValueEnum};
#[cfg(feature = "export")]
use walden_arrow::export::{FileFormat, TableWriter};
#[cfg(feature = "export")]
use walden_arrow::row_changes::{ROW_CHANGE_BATCH_ROWS, RowTable};
#[cfg(feature = "export")]
use walden_codec::container::Meta;
use walden_explain::{Bound, StepBack, Timeline};
use walden_format::lsn::Lsn;
use walden_rows::print::{self, PrintError, Printer};
use walden_rows::{
    Database, Entry, Filter, Operation, Options, RowChanges, Script, Summary, Wanted, choose, databases_of,
    gap_at_unreadable,
};
use walden_source::block::parse_file;
use walden_source::inventory::{Inventory, Run};
use walden_source::names::split_name;

use crate::arguments::{parse_size, parse_xid};
#[cfg(feature = "export")]
use crate::output::{self, Output, Overwrite};
use crate::progress::Progress;
use crate::range::RangeArgs;
use crate::sources;
use crate::{DAMAGED, memory, names, terminal};
#[cfg(feature = "export")]
use walden_output::Inputs;

const EXAMPLES: &str = "\
Examples:
  walden rows /archive/wal --names names.json --relation public.orders
      every change of the table's rows that the WAL has
  walden rows /archive/wal --base /backups/monday --relation public.orders --from '2026-11-25 02:55' --to '2026-11-25 03:05' --op delete
      the rows that were deleted in ten minutes of a night
  walden rows /archive/wal --base /backups/monday --relation public.orders --xid 7351 --undo > undo.sql
      SQL that reverts the changes of one transaction to the table; without --relation, to all tables
  walden rows /archive/wal --base /backups/monday --all --order commit --format json
      the changes of all tables, transaction by transaction
  walden rows /archive/wal --base /backups/monday --relation public.orders --format json
      each change as a line of JSON; --format parquet -o FILE for other programs

Without a base backup, the row before a change is known from the first full-page image of its page on; see docs/rows.md.

Exit status: 0 done, 1 some rows are not known (they are marked), changes may be missing (a note reports it), or a script does not revert \
all of them, 2 wrong usage, 3 input unreadable or damaged.";

/// Show the rows of a table that changed, before and after, from the WAL alone; as SQL, what reverts them
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RowsArgs {
    /// Segments, folders of segments (pg_wal, a data directory, an archive, compressed or not), or archives
    /// of `walden archive` (a folder, or s3://BUCKET/PREFIX)
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    #[command(flatten)]
    log: RangeArgs,

    /// The table, with its partitions: a name such as public.orders or shop.public.orders, a path such as
    /// base/5/16384, or TABLESPACE/DATABASE/FILE as numbers. Names are case-sensitive, also without quotes;
    /// write a schema or table name that contains a dot or a quote in quotes, and a quote in it twice. Repeat
    /// it for several tables; without it, all tables of the database that the transaction of --xid changed
    #[arg(long, value_name = "NAME|PATH|SPC/DB/REL", required_unless_present_any = ["xid", "all"])]
    relation: Vec<String>,

    /// All tables of a database: of --database, or of the only one that has tables of users
    #[arg(long, conflicts_with = "relation")]
    all: bool,

    /// The database of the tables
    #[arg(long, value_name = "NAME")]
    database: Option<String>,

    /// A base backup, or a copy of a stopped data directory, from which the WAL continues: its catalogs have
    /// the columns, and its pages the rows
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// Only changes of this transaction and its subtransactions
    #[arg(long, value_name = "N", value_parser = parse_xid)]
    xid: Option<u32>,

    /// Only these changes [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPERATIONS")]
    op: Vec<OperationName>,

    /// Also show changes that were rolled back, marked as rolled back
    #[arg(long, conflicts_with = "undo")]
    aborted: bool,

    /// The order of changes
    #[arg(long, value_enum, default_value_t)]
    order: Order,

    /// How to print it; docs/json.md has the JSON
    #[arg(long, value_enum, default_value_t)]
    format: RowsFormat,

    /// Write the changes to this file, for --format parquet and arrow
    #[cfg(feature = "export")]
    #[arg(short, long, value_name = "FILE", required_if_eq_any = [("format", "parquet"), ("format", "arrow")])]
    output: Option<PathBuf>,

    #[cfg(feature = "export")]
    #[command(flatten)]
    overwrite: Overwrite,

    /// Print SQL that reverts the changes, the newest first, in one transaction
    #[arg(long, conflicts_with = "format")]
    undo: bool,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default:
    /// a quarter of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum OperationName {
    Insert,
    Update,
    Delete,
}

/// The order in which changes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Order {
    /// The order of the WAL, in which transactions alternate
    #[default]
    Log,
    /// Transaction by transaction, in the order of their commits; after these what did not commit
    Commit,
}

/// How changes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum RowsFormat {
    /// For people: of an update the columns that changed
    #[default]
    Table,
    /// A line per change, the rows as JSON
    Csv,
    /// A line of JSON per change
    Json,
    /// SQL that makes the changes again
    Sql,
    /// A Parquet file, the rows with typed columns
    #[cfg(feature = "export")]
    Parquet,
    /// An Arrow file (Feather 2), the rows with typed columns
    #[cfg(feature = "export")]
    Arrow,
}

/// Runs the command.
pub fn run(args: &RowsArgs) -> Result<ExitCode> {
    #[cfg(feature = "export")]
    if args.output.is_some() && file_format(args).is_none() {
        crate::wrong_usage("-o is for --format parquet and --format arrow");
    }
    #[cfg(feature = "export")]
    if let Some(path) = &args.output {
        let inputs = Inputs::new(args.sources.iter().chain(&args.base));
        output::expect_writable(path, args.overwrite.force, &inputs)?;
    }
    let is_printed = matches!(args.format, RowsFormat::Table | RowsFormat::Csv | RowsFormat::Json);
    if args.order == Order::Commit && (args.undo || !is_printed) {
        crate::wrong_usage("--order commit is for --format table, csv and json");
    }
    let is_elsewhere = |relation: &String| {
        let database = split_name(relation).into_iter().rev().nth(2);
        database.is_some() && database != args.database
    };
    if let Some(relation) =
        args.relation.iter().find(|relation| args.database.is_some() && is_elsewhere(relation))
    {
        crate::wrong_usage(&format!("--relation {relation} names another database than --database"));
    }
    let names = names::load(&args.log.names)?;
    if args.undo && args.log.range().timeline.is_none() {
        sources::expect_one_history_in(&args.sources, args.base.as_deref())?;
    }
    let mut inventory = sources::open_with_past(&args.sources, &args.log.range())?;
    sources::note_omitted_after_base(&inventory, args.base.as_deref());
    names::check_cluster(&names, &inventory)?;
    let has_unreadable = sources::report_unreadable(&inventory);
    let threads = args.log.threads();
    let Bounds { from, to, step } = find_bounds(args, &inventory, threads)?;
    let filter = Filter {
        from,
        to,
        xid: args.xid,
        operations: args.op.iter().map(operation).collect(),
        with_aborted: args.aborted,
    };
    let chosen = choose(std::mem::take(&mut inventory.runs), args.base.as_deref(), &filter)?;
    if let Some(note) = chosen.note {
        eprintln!("note: {note}");
    }
    let options = Options::new(
        wanted(args, &chosen.run, threads)?,
        args.memory.unwrap_or_else(memory::quarter_of_machine),
    )
    .base(args.base.clone())
    .filter(filter)
    .threads(threads);
    let mut progress = Progress::bytes("reading", 2 * run_bytes(&chosen.run));
    let unread = gap_at_unreadable(&chosen.run, &inventory.unreadable, to);
    let mut changes = RowChanges::survey(chosen, &names, options, |bytes| progress.advance(bytes))?;
    changes.gaps.extend(unread);
    let notes = changes.notes.clone();
    let has_gaps = !changes.gaps.is_empty();
    let (summary, is_written) = match args.undo {
        true => undo(args, changes, &mut progress)?,
        false => (write(args, changes, &mut progress)?, true),
    };
    progress.finish();
    if summary.counts.changes + summary.counts.events == 0 {
        match summary {
            Summary { from, reached, .. } if reached < from => {
                eprintln!(
                    "note: no change of these rows: the range starts at {from}, and the WAL was read up to {reached}"
                );
            }
            Summary { from, reached, .. } => eprintln!(
                "note: no change of these rows from {from} to {reached}; walden explain shows what that range consists of"
            ),
        }
    }
    for note in notes.into_iter().chain(summary.counts.notes()) {
        eprintln!("note: {note}");
    }
    if let Some(damage) = &summary.damage {
        crate::output::report_diagnostic(damage);
    }
    let counts = &summary.counts;
    let is_complete =
        is_written && step.is_none() && !has_gaps && counts.before_unknown == 0 && counts.after_unknown == 0;
    Ok(match (summary.damage.is_some() || has_unreadable, is_complete) {
        (true, _) => ExitCode::from(DAMAGED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(crate::FOUND),
    })
}

/// The tables that are asked for.
fn wanted(args: &RowsArgs, run: &Run, threads: usize) -> Result<Wanted> {
    let member = |name: &String| match parse_file(name) {
        Some((file, _)) => Wanted::File(file),
        None => Wanted::Name(name.clone()),
    };
    let mut members: Vec<Wanted> = args.relation.iter().map(member).collect();
    match &args.database {
        Some(name) if members.is_empty() => return Ok(Wanted::All(Database::Name(name.clone()))),
        Some(name) => return Ok(Wanted::InDatabase(name.clone(), members)),
        None if args.all => return Ok(Wanted::All(Database::Only)),
        None => {}
    }
    match (args.xid, members.len()) {
        (_, 1) => Ok(members.remove(0)),
        (Some(xid), 0) => {
            let mut progress = Progress::bytes("searching for the transaction", run_bytes(run));
            let databases = databases_of(xid, run, threads, |bytes| progress.advance(bytes));
            progress.finish();
            match databases.first() {
                Some(database) => Ok(Wanted::All(Database::Oid(*database))),
                None => anyhow::bail!(
                    "cannot determine which database transaction {xid} changed: the WAL from {} to {} has no change by it; give the \
                     segments that have it, or name the tables (--relation)",
                    run.start(),
                    run.end()
                ),
            }
        }
        _ => Ok(Wanted::Several(members)),
    }
}

fn run_bytes(run: &Run) -> u64 {
    run.segments.len() as u64 * run.segment_size.bytes()
}

fn operation(name: &OperationName) -> Operation {
    match name {
        OperationName::Insert => Operation::Insert,
        OperationName::Update => Operation::Update,
        OperationName::Delete => Operation::Delete,
    }
}

/// The bounds as positions.
struct Bounds {
    from: Option<Lsn>,
    to: Option<Lsn>,
    /// Where the clock was set back, if a bound is a time that the WAL has twice.
    step: Option<StepBack>,
}

/// Finds the positions of the bounds. Times need a pass of their own.
fn find_bounds(args: &RowsArgs, inventory: &Inventory, threads: usize) -> Result<Bounds> {
    let has_time = [args.log.from, args.log.to].iter().flatten().any(|bound| matches!(bound, Bound::Time(_)));
    let timeline = match has_time {
        true => Timeline::read(&inventory.runs, threads, |_| {}),
        false => Timeline::default(),
    };
    let step = timeline.ambiguous([args.log.from, args.log.to]);
    match step {
        Some(step) if args.undo => Err(crate::output::with_hint(
            format!("cannot select all changes of a time: {step}"),
            "give positions as --from and --to; walden rows without --undo prints those of the changes",
        )),
        _ => {
            sources::warn_of_step_back(step);
            let (from, to) = (args.log.from, args.log.to);
            let (from, to) = match args.base.as_deref().and_then(sources::start_of_base) {
                Some(base) => timeline.range_on_base(from, to, base)?,
                None => timeline.range(from, to)?,
            };
            Ok(Bounds { from, to, step })
        }
    }
}

/// The format of a file of typed columns.
#[cfg(feature = "export")]
fn file_format(args: &RowsArgs) -> Option<FileFormat> {
    match args.format {
        _ if args.undo => None,
        RowsFormat::Parquet => Some(FileFormat::Parquet),
        RowsFormat::Arrow => Some(FileFormat::Arrow),
        _ => None,
    }
}

/// Writes the changes in the format that is asked for.
fn write(args: &RowsArgs, changes: RowChanges, progress: &mut Progress) -> Result<Summary> {
    #[cfg(feature = "export")]
    if let Some(path) = &args.output
        && let Some(format) = file_format(args)
    {
        return write_file(path, args.overwrite, format, changes, progress);
    }
    let format = match args.format {
        RowsFormat::Csv => print::Format::Csv,
        RowsFormat::Json => print::Format::Json,
        RowsFormat::Sql => print::Format::Sql,
        _ => print::Format::Table,
    };
    let order = match args.order {
        Order::Log => print::Order::Log,
        Order::Commit => print::Order::Commit,
    };
    let printer = Printer::new(terminal::Stdout, format, order, changes.names_at_end(), &changes.gaps);
    let mut printer = printer.map_err(to_stdout)?;
    let summary = read(changes, progress, |entry| printer.entry(entry))?;
    printer.finish().map_err(to_stdout)?;
    Ok(summary)
}

/// Writes a file of typed columns, which appears when it is complete.
#[cfg(feature = "export")]
fn write_file(
    path: &std::path::Path,
    overwrite: Overwrite,
    format: FileFormat,
    changes: RowChanges,
    progress: &mut Progress,
) -> Result<Summary> {
    let table = RowTable::new(changes, true)?;
    let output = Output::create_result(path, overwrite.force)?;
    let mut writer = TableWriter::new(output.file().try_clone()?, format, &table.schema(), "walden rows 2")?;
    let mut result = Ok(());
    let summary = table.read(
        table.changes().filter(),
        ROW_CHANGE_BATCH_ROWS,
        |bytes| progress.advance(bytes),
        |batch| {
            result = writer.write(&batch);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
    )?;
    let named = || format!("cannot write {}", path.display());
    result.with_context(named)?;
    writer.finish().with_context(named)?;
    output.commit(&Meta::default())?;
    Ok(summary)
}

/// Reads the changes, until `take` fails.
fn read(
    changes: RowChanges,
    progress: &mut Progress,
    mut take: impl FnMut(&Entry) -> Result<(), PrintError>,
) -> Result<Summary> {
    let mut failure = None;
    let summary = changes.read(
        changes.filter(),
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
        Some(error) => Err(to_stdout(error)),
        None => Ok(summary),
    }
}

/// Names standard output in an error of it.
fn to_stdout(error: PrintError) -> anyhow::Error {
    match error {
        PrintError::Output(error) => anyhow::Error::new(error).context("cannot write to standard output"),
        error => error.into(),
    }
}

/// Describes the selected tables and changes, for the script's first line.
fn selection(args: &RowsArgs) -> String {
    let mut text = match args.relation.is_empty() {
        true => "all tables".to_owned(),
        false => args.relation.join(", "),
    };
    if let Some(xid) = args.xid {
        text.push_str(&format!(" by transaction {xid}"));
    }
    if !args.op.is_empty() {
        let names: Vec<&str> = args.op.iter().map(|name| operation(name).name()).collect();
        text.push_str(&format!(" ({} only)", names.join(", ")));
    }
    text
}

/// Writes a script. Returns also whether it reverts all changes of the WAL that was read.
fn undo(args: &RowsArgs, changes: RowChanges, progress: &mut Progress) -> Result<(Summary, bool)> {
    let mut script = Script::new(&changes).map_err(to_stdout)?;
    let summary = read(changes, progress, |entry| script.take(entry))?;
    let is_whole = script.finish(&selection(args), &summary, &mut terminal::Stdout).map_err(to_stdout)?;
    Ok((summary, is_whole))
}
