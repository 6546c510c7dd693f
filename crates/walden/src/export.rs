//! `walden export`: tables as files.
//!
//! Each file holds the rows of a fixed group of adjacent segment numbers, and is named after the first
//! number. So a later run recognizes the files of an earlier one, and WAL that has grown changes only the
//! last files. Each file's metadata states the part of the WAL that the file holds ([`existing`]). A file
//! never replaces one that holds more, and no row is in two files after a run is done ([`superseded`]).

mod existing;
mod plan;
mod superseded;
mod table_file;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use walden_arrow::export::{FileFormat, TableWriter};
use walden_arrow::{Part, ReadError, ReadOptions, Table, read, read_part};
use walden_codec::container::Meta;
use walden_report::units;
use walden_source::counted;
use walden_source::inventory::Inventory;
use walden_source::workers::run_in_order;

use self::existing::ExistingFile;
use self::table_file::{Fate, TableFile};
use crate::output::{self, Output, Overwrite};
use crate::progress::Progress;
use crate::protect::Inputs;
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

/// Rows per batch from the reader to the writer, small enough for the processor's cache.
const BATCH_ROWS: usize = 8192;

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<ExitCode> {
    let inputs = Inputs::new(&args.sources);
    // Any file name in the folder serves for this check.
    output::expect_no_input(&args.output.join(Table::Records.name()), &inputs)?;
    let (inventory, mut options) = args.log.open(&args.sources, None)?;
    let threads = args.log.threads();
    options.threads = 1;
    options.batch_rows = BATCH_ROWS;
    let mut tables: Vec<Table> = match args.tables.as_slice() {
        [] => Table::all().filter(|table| *table != Table::Blocks).collect(),
        tables => tables.to_vec(),
    };
    let mut seen = BTreeSet::new();
    tables.retain(|table| seen.insert(*table));
    let exporter = Exporter { args, inventory: &inventory, options: &options, threads };
    let _lock = output::lock_folder(&args.output)?;
    let found = existing::find(&args.output, threads);
    exporter.expect_one_cluster(&found)?;
    let mut files = exporter.files(&tables);
    files.iter().try_for_each(|file| output::expect_no_link_below(&args.output, &file.path))?;
    exporter.expect_own_files(&files, &found, &inputs)?;
    let mut superseded = exporter.plan(&tables, &mut files, &found)?;
    superseded::make_way(&args.output, &mut superseded, &files)?;
    let (done, failure) = exporter.write_all(&files);
    let removed = superseded::remove(&superseded, &files, &done.complete, exporter.format());
    let removed = removed.and_then(|count| superseded::remove_marks(&args.output, threads).map(|()| count));
    // An error before any file was written needs no summary.
    if failure.is_none() || done.written > 0 || !done.spared.is_empty() {
        report(&files, &done, removed.as_ref().ok().copied())?;
    }
    match failure {
        Some(error) => Err(error),
        None => removed.map(|_| sources::ended(&inventory, None)),
    }
}

/// Prints the results. `removed` is the number of files of earlier exports that were removed, or `None` if
/// removing them failed.
fn report(files: &[TableFile], done: &Done, removed: Option<u64>) -> Result<()> {
    for index in &done.spared {
        eprintln!(
            "note: {} is not written, as complete files of an earlier export hold its segments",
            files[*index].path.display()
        );
    }
    let covered = files.iter().filter(|file| file.fate == Fate::Covered).count();
    if covered > 0 {
        eprintln!(
            "note: {} not written, as files of an earlier export hold the same part of the log and more; name \
             another folder for fewer rows",
            match covered {
                1 => "1 file is".to_owned(),
                many => format!("{many} files are"),
            }
        );
    }
    let of_removed = match removed {
        Some(count) if count > 0 => format!(", {count} removed whose rows are in them"),
        _ => String::new(),
    };
    terminal::print(&format!(
        "{} written with {} rows in {}, {} up to date{of_removed}\n",
        counted(done.written, "file"),
        done.rows,
        units::bytes(done.bytes),
        done.kept
    ))
}

/// The result of writing a file.
#[derive(Default)]
struct WrittenFile {
    rows: u64,
    bytes: u64,
    is_written: bool,
    /// The damage at which reading ended.
    damage: Option<ReadError>,
}

#[derive(Default)]
struct Done {
    written: u64,
    kept: u64,
    rows: u64,
    bytes: u64,
    /// Indexes of the files that exist with all their rows.
    complete: Vec<usize>,
    /// Indexes of the files that damage would have truncated. They are not written, because complete files of
    /// an earlier export exist.
    spared: Vec<usize>,
}

impl Done {
    fn add(&mut self, index: usize, file: &WrittenFile) {
        self.rows += file.rows;
        self.bytes += file.bytes;
        match (&file.damage, file.is_written) {
            (None, true) => self.complete.push(index),
            (None, false) => {
                self.complete.push(index);
                self.kept += 1;
            }
            (Some(_), false) => self.spared.push(index),
            (Some(_), true) => {}
        }
        self.written += u64::from(file.is_written);
    }
}

struct Exporter<'a> {
    args: &'a ExportArgs,
    inventory: &'a Arc<Inventory>,
    options: &'a ReadOptions,
    threads: usize,
}

impl Exporter<'_> {
    fn format(&self) -> FileFormat {
        match self.args.format {
            Format::Parquet => FileFormat::Parquet,
            Format::Arrow => FileFormat::Arrow,
            Format::Csv => FileFormat::Csv,
        }
    }

    /// Writes files in order, up to the first failure, regardless of the number of threads.
    fn write_all(&self, files: &[TableFile]) -> (Done, Option<anyhow::Error>) {
        let inventory = self.inventory;
        let mut progress = Progress::bytes("exporting", files.iter().map(|file| file.bytes(inventory)).sum());
        let done = Mutex::new(Done::default());
        let mut failure: Option<anyhow::Error> = None;
        // Each writer reads the segments of its file.
        let threads = self.threads;
        let writers = inventory.runs.iter().map(|run| run.decoding_threads(threads)).min().unwrap_or(threads);
        run_in_order(
            0..files.len(),
            writers,
            || (),
            |(), index| {
                let result = self.write(&files[index]);
                // Counted here, not when it is finished: other threads may be ahead of a failure.
                let result = result.map(|written| {
                    if files[index].fate != Fate::Covered {
                        done.lock().unwrap_or_else(PoisonError::into_inner).add(index, &written);
                    }
                    written.damage
                });
                (index, result)
            },
            |(index, result)| {
                progress.advance(files[index].bytes(inventory));
                failure = match result {
                    Ok(None) => return ControlFlow::Continue(()),
                    Ok(Some(damage)) => Some(damage.into()),
                    Err(error) => Some(error),
                };
                ControlFlow::Break(())
            },
        );
        progress.finish();
        (done.into_inner().unwrap_or_else(PoisonError::into_inner), failure)
    }

    /// Checks that the export does not replace a file of the source, nor, without permission, a file of
    /// another program.
    fn expect_own_files(&self, files: &[TableFile], found: &[ExistingFile], inputs: &Inputs) -> Result<()> {
        let own: BTreeSet<&Path> = found.iter().map(|old| old.path.as_path()).collect();
        files.iter().try_for_each(|file| {
            let is_own = own.contains(file.path.as_path());
            Ok(output::expect_writable(&file.path, is_own || self.args.overwrite.force, inputs)?)
        })
    }

    /// Returns a description of a file's content. Files with equal descriptions hold the same rows.
    fn content(&self, file: &TableFile) -> String {
        let names = &self.options.names.origin;
        format!(
            "{}; names of {} at {}; lsn_text {}",
            file.holding,
            names.system_id.map_or("-".to_owned(), |id| id.to_string()),
            names.read_at.as_deref().unwrap_or("-"),
            self.options.lsn_text
        )
    }

    fn write(&self, file: &TableFile) -> Result<WrittenFile> {
        if file.fate != Fate::Written {
            return Ok(WrittenFile::default());
        }
        let content = self.content(file);
        let named = || format!("cannot write {}", file.path.display());
        let output = Output::create_result(&file.path, true)?;
        let writer = output.file().try_clone().with_context(named)?;
        let schema = self.options.schema(file.table);
        let mut writer = TableWriter::new(writer, self.format(), &schema, &content).with_context(named)?;
        let (mut rows, mut failure) = (0, None);
        let emit = |batch: arrow::array::RecordBatch| {
            rows += batch.num_rows() as u64;
            match writer.write(&batch) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let read = self.read(file, emit);
        if let Some(error) = failure {
            return Err(error).with_context(named);
        }
        // Exports the rows before damage, and reports the damage later.
        let damage = match read {
            Err(error @ ReadError::Damaged(_)) => Some(error),
            other => other.map(|()| None)?,
        };
        if let Some(found) = &damage {
            // An earlier export, from before the segment was damaged, has more rows.
            if file.has_complete {
                return Ok(WrittenFile { damage, ..WrittenFile::default() });
            }
            writer.mark_incomplete(&found.to_string());
        }
        writer.finish().with_context(named)?;
        let bytes = output.file().metadata().with_context(named)?.len();
        let is_csv = self.format() == FileFormat::Csv;
        if is_csv {
            existing::describe_before(&file.path, &content)?;
        }
        output.commit(&Meta::default())?;
        if is_csv {
            let incomplete = damage.as_ref().map(ToString::to_string);
            existing::describe(&file.path, &content, bytes, incomplete.as_deref())?;
        }
        Ok(WrittenFile { rows, bytes, is_written: true, damage })
    }

    fn read(
        &self,
        file: &TableFile,
        emit: impl FnMut(arrow::array::RecordBatch) -> ControlFlow<()> + Send,
    ) -> Result<(), ReadError> {
        match &file.part {
            Some((run, segments)) => {
                let part = Part { run: &self.inventory.runs[*run], segments: segments.clone() };
                read_part(&part, file.table, self.options, emit).map(|_| ())
            }
            None => {
                let options = self.options.clone().threads(self.threads);
                read(&self.inventory.runs, file.table, &options, emit)
            }
        }
    }
}
