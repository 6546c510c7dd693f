//! The `walden-sql` program: queries over the WAL. `walden sql` runs it.

#![deny(clippy::print_stdout, reason = "it panics when the reader closes the pipe; see `terminal::print`")]

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use arrow::util::pretty::pretty_format_batches_with_schema;
use clap::{CommandFactory as _, Parser, ValueEnum};
use walden::output::{self, Output, Overwrite};
use walden::set_up::SetUp;
use walden::table_log::LogArgs;
use walden::{FOUND, USAGE, sources, terminal};
use walden_arrow::export::{FileFormat, TableWriter};
use walden_codec::container::Meta;
use walden_output::Inputs;
use walden_server::signals::{self, Stage};
use walden_sql::{Database, Limits, TemporaryFiles};

const EXAMPLES: &str = "\
Examples:
  walden sql 'SELECT table_name, sum(bytes) AS bytes FROM records GROUP BY 1 ORDER BY 2 DESC LIMIT 10' /archive/wal
      the tables that write most
  walden sql --names names.json \"SELECT * FROM transactions WHERE bytes > 1e9\" /archive/wal
      transactions of more than 1 GB
  walden sql \"SELECT lsn_text(start_lsn), record_type FROM records WHERE start_lsn >= '16/B374D848' LIMIT 5\" /archive/wal
      what is at a position
  walden sql --format parquet -o hours.parquet \"SELECT date_trunc('hour', time) AS hour, relation, sum(bytes) AS bytes FROM \
records GROUP BY ALL\" s3://backups/main
      bytes by hour and relation as a file
  walden sql --base /backups/monday \"SELECT lsn_text(lsn), before['id'] FROM row_changes('public.orders') WHERE operation = \
'delete'\" /archive/wal
      the rows of a table that were deleted
  walden sql 'SHOW TABLES' /archive/wal
      the tables; DESCRIBE records shows the columns

Tables: records, blocks, framing, transactions, checkpoints, segments, relations; docs/tables.md describes their columns and has \
queries for many questions. row_changes('public.orders') has the changes of a table's rows, with the table's columns from --base \
or --names. Functions beside SQL's own: lsn('16/B374D848'), lsn_text(position), pg_lsn_text(position). Conditions on start_lsn and time \
of records and blocks skip segments.

Exit status: 0 done, 1 row_changes() may lack rows (a note says why), 2 wrong usage or a wrong query, 3 input unreadable or damaged, or a query that failed while it ran.";

/// Ask the log in SQL: records, blocks, transactions, checkpoints, segments, relations
#[derive(Parser, Debug)]
#[command(name = "walden-sql", version, after_help = EXAMPLES)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
struct SqlArgs {
    #[command(subcommand)]
    set_up: Option<SetUp>,

    /// The query; - reads it from standard input
    #[arg(required = true)]
    query: Option<String>,

    /// Segments, folders of segments, tar files, or archives of walden archive, as for walden explain
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    #[command(flatten)]
    log: LogArgs,

    /// A base backup, or a copy of a stopped data directory, from which the log continues: row_changes takes
    /// the tables' columns and rows from it
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Write the result to this file [default: standard output]
    #[arg(short, long, value_name = "FILE", required_if_eq_any = [("format", "parquet"), ("format", "arrow")])]
    output: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Rows to print in a table at most. 0: all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rows: usize,

    /// Memory for sorting, grouping and joining, in megabytes, and as much for the pages that row_changes
    /// replays; beyond it sorting, grouping and replay use temporary files (TMPDIR), while most joins, and
    /// ORDER BY with LIMIT, fail. Threads share it
    #[arg(long, value_name = "MB", default_value_t = 512)]
    memory: usize,
}

/// How results are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// A table for people
    Table,
    /// Comma-separated values with a line of names
    Csv,
    /// One JSON object per row and line, with all columns
    Json,
    /// A Parquet file
    Parquet,
    /// An Arrow file (Feather 2)
    Arrow,
}

fn main() -> ExitCode {
    walden::set_command(SqlArgs::command);
    let args: SqlArgs = walden::parse();
    walden::exit_status(match &args.set_up {
        Some(set_up) => set_up.run(SqlArgs::command()),
        None => run(&args),
    })
}

fn run(args: &SqlArgs) -> Result<ExitCode> {
    let query = match args.query.as_deref().unwrap_or_default() {
        "-" => std::io::read_to_string(std::io::stdin()).context("cannot read the query")?,
        query => query.to_owned(),
    };
    if let Some(path) = &args.output {
        let inputs = Inputs::new(args.sources.iter().chain(&args.base));
        output::expect_writable(path, args.overwrite.force, &inputs)?;
    }
    let (inventory, options) = args.log.open(&args.sources, args.base.as_deref())?;
    let limits = Limits { threads: args.log.threads(), memory_bytes: args.memory.saturating_mul(1 << 20) };
    let database = Database::new(&inventory, &options, args.base.clone(), limits);
    let database = database.context("cannot prepare the query")?;
    // A process runs one query.
    let _ = TEMPORARY_FILES.set(database.temporary_files());
    // Without a handler, temporary files may remain, which does not prevent the query.
    let _ = signals::before_exit(Stage::Files, remove_temporary_files);
    let mut sink = Sink::new(args)?;
    let mut has_rows = false;
    let result = database.query::<anyhow::Error>(&query, |schema, batch| {
        if batch.as_ref().is_some_and(|batch| batch.num_rows() == 0) {
            return Ok(());
        }
        has_rows |= batch.is_some();
        sink.take(schema, batch.as_ref())
    });
    // After an interrupt, the query fails because its temporary files are removed. That error is not
    // reported.
    signals::wait_for_exit_if_interrupted();
    for note in database.notes() {
        eprintln!("note: {note}");
    }
    if let Err(error) = result {
        // The rows before the error are valid, and all commands print such rows. A file, however, always has
        // the whole result. If there are no rows before the error, nothing is printed, because that would
        // look like an empty result.
        if args.output.is_none() && has_rows {
            sink.finish()?;
        }
        if let Some(wrong) = error.downcast_ref().and_then(walden_sql::what_is_wrong) {
            output::report(&anyhow!("cannot run the query: {wrong}"));
            return Ok(ExitCode::from(USAGE));
        }
        if error.downcast_ref().is_some_and(walden_sql::is_out_of_memory) {
            return Err(too_little_memory(args.memory, args.log.threads()));
        }
        return Err(error.context("cannot run the query"));
    }
    sink.finish()?;
    let ended = sources::ended(&inventory, None);
    // As in `walden rows`: rows may be missing, which the notes report.
    Ok(if database.has_gaps() && inventory.unreadable.is_empty() { ExitCode::from(FOUND) } else { ended })
}

static TEMPORARY_FILES: OnceLock<TemporaryFiles> = OnceLock::new();

fn remove_temporary_files() {
    if let Some(files) = TEMPORARY_FILES.get() {
        files.remove();
    }
}

/// Builds the error of a query that exceeds its memory: `DataFusion` names options that this program does not
/// have.
fn too_little_memory(megabytes: usize, threads: usize) -> anyhow::Error {
    let fewer = if threads > 1 {
        format!(", or fewer than {threads} --threads, which share it")
    } else {
        String::new()
    };
    anyhow!(
        "cannot run the query: {megabytes} MB of memory are too little for it; give more with --memory{fewer}"
    )
}

/// The destination of rows.
enum Sink {
    Table {
        output: Option<Output>,
        limit: usize,
        schema: Option<SchemaRef>,
        rows: Vec<RecordBatch>,
        count: usize,
    },
    Csv {
        target: Box<Target>,
        /// The schema, while the line of column names is not written yet.
        unnamed: Option<SchemaRef>,
    },
    Json(Box<Target>),
    File {
        output: Option<Output>,
        format: FileFormat,
        writer: Option<TableWriter<std::fs::File>>,
    },
}

/// A file, or standard output.
enum Target {
    File(Output),
    Standard,
}

impl Target {
    fn new(output: Option<Output>) -> Target {
        output.map_or(Target::Standard, Target::File)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Target::File(output) => output.file().write_all(bytes)?,
            Target::Standard => terminal::Stdout.write_all(bytes)?,
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Target::File(output) => Ok(output.commit(&Meta::default()).map(drop)?),
            Target::Standard => Ok(terminal::Stdout.flush()?),
        }
    }
}

impl Sink {
    fn new(args: &SqlArgs) -> Result<Sink> {
        let create = |path: &PathBuf| Output::create_result(path, args.overwrite.force);
        let output = args.output.as_ref().map(create).transpose()?;
        Ok(match args.format {
            Format::Table => Sink::Table {
                output,
                limit: if args.rows == 0 { usize::MAX } else { args.rows },
                schema: None,
                rows: Vec::new(),
                count: 0,
            },
            Format::Csv => Sink::Csv { target: Box::new(Target::new(output)), unnamed: None },
            Format::Json => Sink::Json(Box::new(Target::new(output))),
            Format::Parquet => Sink::File { output, format: FileFormat::Parquet, writer: None },
            Format::Arrow => Sink::File { output, format: FileFormat::Arrow, writer: None },
        })
    }

    fn take(&mut self, schema: &SchemaRef, batch: Option<&RecordBatch>) -> Result<()> {
        match self {
            Sink::Table { schema: of_table, rows, limit, count, .. } => {
                *of_table = Some(schema.clone());
                if let Some(batch) = batch {
                    let room = limit.saturating_sub(*count);
                    if room > 0 && batch.num_rows() > 0 {
                        rows.push(batch.slice(0, batch.num_rows().min(room)));
                    }
                    *count += batch.num_rows();
                }
            }
            Sink::Csv { target, unnamed } => match batch {
                Some(batch) => target.write(&csv(batch, unnamed.take().is_some())?)?,
                // This call precedes all rows, and an error may follow it.
                None => *unnamed = Some(schema.clone()),
            },
            Sink::Json(target) => {
                let Some(batch) = batch else { return Ok(()) };
                // Each line has all columns, including nulls.
                let builder = WriterBuilder::new().with_explicit_nulls(true);
                let mut writer = builder.build::<_, LineDelimited>(Vec::new());
                writer.write(batch)?;
                writer.finish()?;
                target.write(&writer.into_inner())?;
            }
            Sink::File { output: Some(output), format, writer } => {
                if writer.is_none() {
                    let file = output.file().try_clone()?;
                    *writer = Some(TableWriter::new(file, *format, schema, "a query")?);
                }
                if let (Some(writer), Some(batch)) = (writer, batch) {
                    writer.write(batch)?;
                }
            }
            Sink::File { .. } => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Sink::Table { output, limit, schema, rows, count } => {
                let Some(schema) = schema else { return Ok(()) };
                let text = table(schema, &rows)?;
                match output {
                    Some(output) => {
                        output.file().write_all(format!("{text}\n").as_bytes())?;
                        output.commit(&Meta::default())?;
                    }
                    None => terminal::print(&format!("{text}\n"))?,
                }
                if count > limit {
                    eprintln!("note: {limit} of {count} rows; --rows 0 prints all");
                } else if std::io::stderr().is_terminal() {
                    eprintln!("{count} row{}", if count == 1 { "" } else { "s" });
                }
                Ok(())
            }
            Sink::Csv { target, unnamed } => {
                // A result without rows also has the line of column names.
                if let Some(schema) = unnamed {
                    target.write(&csv(&RecordBatch::new_empty(schema), true)?)?;
                }
                target.finish()
            }
            Sink::Json(target) => target.finish(),
            Sink::File { output, writer, .. } => {
                if let (Some(output), Some(writer)) = (output, writer) {
                    writer.finish()?;
                    output.commit(&Meta::default())?;
                }
                Ok(())
            }
        }
    }
}

fn csv(batch: &RecordBatch, has_names: bool) -> Result<Vec<u8>, ArrowError> {
    let mut bytes = Vec::new();
    arrow::csv::WriterBuilder::new().with_header(has_names).build(&mut bytes).write(batch)?;
    Ok(bytes)
}

fn table(schema: SchemaRef, rows: &[RecordBatch]) -> Result<String, ArrowError> {
    Ok(pretty_format_batches_with_schema(schema, rows)?.to_string())
}
