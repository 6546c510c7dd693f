//! `walden export`: tables as files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use walden_arrow::Table;
use walden_arrow::export::FileFormat;
use walden_arrow::folder::{Export, ExportOptions, Exported};
use walden_output::Inputs;
use walden_report::units;
use walden_source::counted;

use crate::output::{self, Overwrite};
use crate::progress::Progress;
use crate::table_log::LogArgs;
use crate::{sources, terminal};

const EXAMPLES: &str = "\
Examples:
  walden export --names names.json -o /data/wal /archive/wal
      all tables but blocks as Parquet: /data/wal/records/timeline=1/000000010000000000000000.parquet ...
  walden export --tables records,transactions --from '2026-11-20 22:00' -o night s3://backups/main
      two tables of one night
  duckdb -c \"SELECT table_name, sum(bytes) FROM '/data/wal/records/**/*.parquet' GROUP BY 1 ORDER BY 2 DESC\"
      ask them with another program

Run again, it writes only files that are missing or whose segments have changed. Each file appears complete or not at all. None \
takes the place of one that holds more of the WAL, and files of another cluster in the folder are an error.

Exit status: 0 done, 2 wrong usage, 3 input unreadable or damaged (the part before the damage is exported).";

/// Write the WAL as tables for other programs: Parquet, Arrow or CSV
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// Segments, folders of segments, tar files, or archives of walden archive, as for walden explain
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// The folder to write to; each table is a folder in it
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    #[command(flatten)]
    overwrite: Overwrite,

    #[command(flatten)]
    log: LogArgs,

    /// Tables to write, separated by commas: records, blocks, framing, transactions, checkpoints, segments,
    /// relations [default: all but blocks]
    #[arg(long, value_name = "TABLES", value_delimiter = ',', value_parser = parse_table)]
    tables: Vec<Table>,

    /// Format of the files
    #[arg(long, value_enum, default_value_t = Format::Parquet)]
    format: Format,

    /// Segments per file
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    segments: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// Parquet, compressed with zstd, with statistics
    Parquet,
    /// Arrow files (Feather 2)
    Arrow,
    /// Comma-separated values
    Csv,
}

fn parse_table(text: &str) -> Result<Table, String> {
    Table::from_name(text.trim()).ok_or_else(|| {
        let known: Vec<&str> = Table::all().map(Table::name).collect();
        format!("\"{text}\" is none of {}", known.join(", "))
    })
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<ExitCode> {
    let inputs = Inputs::new(&args.sources);
    // Any file name in the folder serves for this check.
    output::expect_no_input(&args.output.join(Table::Records.name()), &inputs)?;
    let (inventory, read) = args.log.open(&args.sources, None)?;
    let mut tables: Vec<Table> = match args.tables.as_slice() {
        [] => Table::all().filter(|table| *table != Table::Blocks).collect(),
        tables => tables.to_vec(),
    };
    let mut seen = BTreeSet::new();
    tables.retain(|table| seen.insert(*table));
    let format = match args.format {
        Format::Parquet => FileFormat::Parquet,
        Format::Arrow => FileFormat::Arrow,
        Format::Csv => FileFormat::Csv,
    };
    let options = ExportOptions::new(args.output.clone(), tables)
        .format(format)
        .segments(args.segments)
        .replaces(args.overwrite.force)
        .threads(args.log.threads());
    let export = Export::plan(&inventory, &read, &options, &inputs)?;
    let mut progress = Progress::bytes("exporting", export.bytes());
    let (exported, failure) = export.write(|bytes| progress.advance(bytes));
    progress.finish();
    for path in &exported.removed_again {
        eprintln!(
            "note: {} is removed again, as complete files of an earlier export hold its segments",
            path.display()
        );
    }
    // An error before any file was written needs no summary.
    if failure.is_none() || exported.written > 0 || !exported.spared.is_empty() {
        report(&exported)?;
    }
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(sources::ended(&inventory, None)),
    }
}

/// Prints the results.
fn report(exported: &Exported) -> Result<()> {
    for path in &exported.spared {
        eprintln!(
            "note: {} is not written, as complete files of an earlier export hold its segments",
            path.display()
        );
    }
    if exported.covered > 0 {
        eprintln!(
            "note: {} not written, as files of an earlier export hold the same part of the log and more; name \
             another folder for fewer rows",
            match exported.covered {
                1 => "1 file is".to_owned(),
                many => format!("{many} files are"),
            }
        );
    }
    let of_removed = match exported.removed {
        Some(count) if count > 0 => format!(", {count} removed whose rows are in them"),
        _ => String::new(),
    };
    terminal::print(&format!(
        "{} written with {} rows in {}, {} up to date{of_removed}\n",
        counted(exported.written, "file"),
        exported.rows,
        units::bytes(exported.bytes),
        exported.kept
    ))
}
