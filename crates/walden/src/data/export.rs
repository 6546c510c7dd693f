//! `walden export`: tables as files.
//!
//! A file holds the rows of segments with neighbouring numbers, always the same ones, and is named after the first number; so
//! another run finds what an earlier one has written, and a log that has grown changes its last files only.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use arrow::error::ArrowError;
use clap::{Args, ValueEnum};
use walden_arrow::export::{self, FileFormat, TableWriter};
use walden_arrow::{Part, ReadError, ReadOptions, Table, is_divisible, read, read_part};
use walden_codec::container::Meta;
use walden_format::lsn::SegmentName;
use walden_source::inventory::{Inventory, Run};
use walden_source::workers::run_in_order;

use super::LogArgs;
use crate::output::Output;
use crate::progress::Progress;
use crate::{sources, terminal};

const EXAMPLES: &str = "\
Examples:
  walden export --names names.json -o /data/wal /archive/wal
      all tables as Parquet: /data/wal/records/timeline=1/000000010000000000000000.parquet ...
  walden export --tables records,transactions --from '2026-11-20 22:00' -o night s3://backups/main
      two tables of one night
  duckdb -c \"SELECT table_name, sum(bytes) FROM '/data/wal/records/**/*.parquet' GROUP BY 1 ORDER BY 2 DESC\"
      ask them with another program

Run again, it writes only files that are missing or whose segments have changed. Each file appears complete or not at all.

Exit status: 0 done, 2 wrong usage, 3 input unreadable or damaged (what comes before the damage is exported).";

/// Write the log as tables for other programs: Parquet, Arrow or CSV
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
    log: LogArgs,

    /// Tables to write, with commas: records, blocks, framing, transactions, checkpoints, segments, relations [default: all but
    /// blocks]
    #[arg(long, value_name = "TABLES", value_delimiter = ',', value_parser = parse_table)]
    tables: Vec<Table>,

    /// Format of the files
    #[arg(long, value_enum, default_value_t = Format::Parquet)]
    format: Format,

    /// Segments whose rows are in one file
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

/// Rows that go from the reader to the writer at a time: so few that they stay in the processor's cache.
const BATCH_ROWS: usize = 8192;

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<ExitCode> {
    let (inventory, mut options) = args.log.open(&args.sources, false)?;
    let threads = args.log.threads();
    options.threads = 1;
    options.batch_rows = BATCH_ROWS;
    let tables: Vec<Table> = match args.tables.as_slice() {
        [] => Table::all().filter(|table| *table != Table::Blocks).collect(),
        tables => tables.to_vec(),
    };
    let exporter = Exporter { args, inventory: &inventory, options: &options, threads };
    let files = exporter.files(&tables);
    let mut progress = Progress::bytes("exporting", files.iter().map(|file| file.bytes(&inventory)).sum());
    let (mut done, mut failure) = (Done::default(), None);
    run_in_order(
        0..files.len(),
        threads,
        || (),
        |(), index| (index, exporter.write(&files[index])),
        |(index, result)| {
            progress.advance(files[index].bytes(&inventory));
            match result {
                Ok(written) => done.add(&written),
                // The first one in the order of files, whatever the number of threads.
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        },
    );
    progress.finish();
    terminal::print(&format!(
        "{} files written with {} rows in {}, {} up to date\n",
        done.written,
        done.rows,
        walden_report::units::bytes(done.bytes),
        done.kept
    ))?;
    match failure {
        Some(error) => Err(error),
        None => Ok(sources::ended(&inventory, None)),
    }
}

/// A file to be written.
struct TableFile {
    table: Table,
    path: PathBuf,
    /// The index of a run and segments in it; nothing for all of the log.
    part: Option<(usize, Range<usize>)>,
}

impl TableFile {
    fn bytes(&self, inventory: &Inventory) -> u64 {
        let runs = &inventory.runs;
        match &self.part {
            Some((run, segments)) => segments.len() as u64 * runs[*run].segment_size.bytes(),
            None => super::total_bytes(inventory),
        }
    }
}

/// What became of a file.
struct WrittenFile {
    rows: u64,
    bytes: u64,
    is_kept: bool,
}

#[derive(Default)]
struct Done {
    written: u64,
    kept: u64,
    rows: u64,
    bytes: u64,
}

impl Done {
    fn add(&mut self, file: &WrittenFile) {
        self.rows += file.rows;
        self.bytes += file.bytes;
        *if file.is_kept { &mut self.kept } else { &mut self.written } += 1;
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

    /// The files of tables, in the order of the log.
    fn files(&self, tables: &[Table]) -> Vec<TableFile> {
        let ending = self.format().ending();
        let mut files = Vec::new();
        for table in tables.iter().copied() {
            let folder = self.args.output.join(table.name());
            if !is_divisible(table) {
                let path = folder.join(format!("{}.{ending}", table.name()));
                files.push(TableFile { table, path, part: None });
                continue;
            }
            for (index, run) in self.inventory.runs.iter().enumerate() {
                let wanted = Part::between(run, self.options.from, self.options.to).segments;
                for (first, segments) in groups(run, wanted, self.args.segments) {
                    let path =
                        folder.join(format!("timeline={}", run.timeline)).join(format!("{first}.{ending}"));
                    files.push(TableFile { table, path, part: Some((index, segments)) });
                }
            }
        }
        files
    }

    /// What a file is made of: the same text, the same rows.
    fn content(&self, file: &TableFile) -> String {
        let (from, to) = (self.options.from, self.options.to);
        let names = &self.options.names.origin;
        let of = match &file.part {
            Some((run, segments)) => {
                let segments = &self.inventory.runs[*run].segments[segments.clone()];
                let name = |segment: Option<&walden_source::inventory::SegmentFile>| {
                    segment.map(|segment| segment.name.to_string()).unwrap_or_default()
                };
                format!("{} to {}", name(segments.first()), name(segments.last()))
            }
            None => "all segments".to_owned(),
        };
        let bound = |lsn: Option<walden_format::lsn::Lsn>| lsn.map_or("-".to_owned(), |lsn| lsn.to_string());
        format!(
            "walden 1; {}; {of}; from {}; to {}; names of {} at {}; lsn_text {}",
            file.table.name(),
            bound(from),
            bound(to),
            names.system_id.map_or("-".to_owned(), |id| id.to_string()),
            names.read_at.as_deref().unwrap_or("-"),
            self.options.lsn_text
        )
    }

    fn write(&self, file: &TableFile) -> Result<WrittenFile> {
        let content = self.content(file);
        if self.is_final(file) && self.is_up_to_date(&file.path, &content) {
            return Ok(WrittenFile { rows: 0, bytes: 0, is_kept: true });
        }
        let named = || format!("cannot write {}", file.path.display());
        let output = Output::create_result(&file.path)?;
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
        // What comes before damage is exported, and the damage reported after.
        let damage = match read {
            Err(error @ ReadError::Damaged(_)) => Some(error),
            other => other.map(|()| None)?,
        };
        writer.finish().with_context(named)?;
        let bytes = output.file().metadata().with_context(named)?.len();
        output.commit(&Meta::default())?;
        match damage {
            Some(error) => Err(error.into()),
            None => Ok(WrittenFile { rows, bytes, is_kept: false }),
        }
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
                let options = ReadOptions { threads: self.threads, ..self.options.clone() };
                read(&self.inventory.runs, file.table, &options, emit)
            }
        }
    }

    /// Whether no segment can be added: there is one behind the file's last, into which its last record may reach.
    fn is_final(&self, file: &TableFile) -> bool {
        file.part
            .as_ref()
            .is_some_and(|(run, segments)| segments.end < self.inventory.runs[*run].segments.len())
    }

    fn is_up_to_date(&self, path: &Path, content: &str) -> bool {
        let Ok(file) = File::open(path) else { return false };
        let found: Result<Option<String>, ArrowError> = export::content(file, self.format());
        found.is_ok_and(|found| found.as_deref() == Some(content))
    }
}

/// Segments of a run whose rows are in one file, with the name of the first that could be in it.
fn groups(run: &Run, wanted: Range<usize>, size: u64) -> Vec<(SegmentName, Range<usize>)> {
    let mut groups: Vec<(u64, Range<usize>)> = Vec::new();
    for index in wanted {
        let number = run.segment_size.segment_of(run.segments[index].start) / size;
        match groups.last_mut() {
            Some((last, segments)) if *last == number => segments.end = index + 1,
            _ => groups.push((number, index..index + 1)),
        }
    }
    let name = |number: u64| SegmentName::new(run.timeline, number * size, run.segment_size);
    groups.into_iter().map(|(number, segments)| (name(number), segments)).collect()
}
