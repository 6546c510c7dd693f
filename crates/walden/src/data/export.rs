//! `walden export`: tables as files.
//!
//! A file holds the rows of segments with neighbouring numbers, always the same ones, and is named after the first number; so
//! another run finds what an earlier one has written, and a log that has grown changes its last files only. Files say in their
//! metadata which part of which log they hold ([`existing`]); no file takes the place of one that holds more, and no row is in
//! two files.

mod existing;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use walden_arrow::export::{FileFormat, TableWriter};
use walden_arrow::{Part, ReadError, ReadOptions, Table, is_divisible, read, read_part};
use walden_codec::container::Meta;
use walden_format::lsn::SegmentName;
use walden_source::inventory::{Inventory, Run, SegmentFile};
use walden_source::workers::run_in_order;

use self::existing::{ExistingFile, Holding, Interval, covers, overlaps};
use super::LogArgs;
use crate::output::Output;
use crate::progress::Progress;
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
takes the place of one that holds more of the log, and files of another cluster in the folder are an error.

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
    let mut tables: Vec<Table> = match args.tables.as_slice() {
        [] => Table::all().filter(|table| *table != Table::Blocks).collect(),
        tables => tables.to_vec(),
    };
    let mut seen = BTreeSet::new();
    tables.retain(|table| seen.insert(*table));
    let exporter = Exporter { args, inventory: &inventory, options: &options, threads };
    let found = existing::find(&args.output, threads);
    exporter.expect_one_cluster(&found)?;
    let mut files = exporter.files(&tables);
    let superseded = exporter.plan(&tables, &mut files, &found)?;
    let mut progress = Progress::bytes("exporting", files.iter().map(|file| file.bytes(&inventory)).sum());
    let done = Mutex::new(Done::default());
    let mut failure: Option<anyhow::Error> = None;
    // Each reads the segments of its file.
    let writers = inventory.runs.iter().map(|run| run.decoding_threads(threads)).min().unwrap_or(threads);
    run_in_order(
        0..files.len(),
        writers,
        || (),
        |(), index| {
            let result = exporter.write(&files[index]);
            // Counted here, as other threads may be ahead of a failure.
            let result = result.map(|written| {
                if files[index].fate != Fate::Covered {
                    done.lock().unwrap_or_else(PoisonError::into_inner).add(index, &written);
                }
                written.damage
            });
            (index, result)
        },
        |(index, result)| {
            progress.advance(files[index].bytes(&inventory));
            // The first one in the order of files, whatever the number of threads.
            failure = match result {
                Ok(None) => return ControlFlow::Continue(()),
                Ok(Some(damage)) => Some(damage.into()),
                Err(error) => Some(error),
            };
            ControlFlow::Break(())
        },
    );
    progress.finish();
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    for index in &done.spared {
        eprintln!(
            "note: {} is not written, as complete files of an earlier export hold its segments",
            files[*index].path.display()
        );
    }
    let removed = remove_superseded(&superseded, &files, &done.complete);
    let covered = files.iter().filter(|file| file.fate == Fate::Covered).count();
    if covered > 0 {
        eprintln!(
            "note: {covered} files are not written, as files of an earlier export hold the same part of the log and more; name \
             another folder for fewer rows"
        );
    }
    let of_removed = match &removed {
        Ok(count) if *count > 0 => format!(", {count} removed whose rows are in them"),
        _ => String::new(),
    };
    terminal::print(&format!(
        "{} files written with {} rows in {}, {} up to date{of_removed}\n",
        done.written,
        done.rows,
        walden_report::units::bytes(done.bytes),
        done.kept
    ))?;
    match failure {
        Some(error) => Err(error),
        None => removed.map(|_| sources::ended(&inventory, None)),
    }
}

/// Removes files whose rows are in those that are now complete, and returns their number.
fn remove_superseded(superseded: &[&ExistingFile], files: &[TableFile], complete: &[usize]) -> Result<u64> {
    let mut by_table: BTreeMap<Table, Vec<Interval>> = BTreeMap::new();
    for index in complete {
        let holding = &files[*index].holding;
        by_table.entry(holding.table).or_default().extend(holding.complete_intervals());
    }
    let paths: BTreeSet<&Path> =
        files.iter().filter(|file| file.fate != Fate::Covered).map(|file| file.path.as_path()).collect();
    let mut removed = 0;
    for old in superseded.iter().filter(|old| !paths.contains(old.path.as_path())) {
        let complete = old.holding.as_ref().and_then(|holding| by_table.get(&holding.table));
        if complete.is_some_and(|complete| covers(complete, &old.complete_intervals())) {
            fs::remove_file(&old.path).with_context(|| {
                format!("cannot remove {}, whose rows are in new files too", old.path.display())
            })?;
            if old.format == FileFormat::Csv {
                // Without its file, it says nothing.
                let _ = fs::remove_file(existing::description_of(&old.path));
            }
            removed += 1;
        }
    }
    Ok(removed)
}

/// A file to be written.
struct TableFile {
    table: Table,
    path: PathBuf,
    /// The index of a run and segments in it; nothing for all of the log.
    part: Option<(usize, Range<usize>)>,
    holding: Holding,
    fate: Fate,
    /// A complete file of an earlier export holds some of its segments.
    has_complete: bool,
}

/// What happens to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is written.
    Written,
    /// It is there, with the same rows.
    UpToDate,
    /// Other files hold the same part of the log and more.
    Covered,
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
#[derive(Default)]
struct WrittenFile {
    rows: u64,
    bytes: u64,
    is_written: bool,
    /// Where reading ended.
    damage: Option<ReadError>,
}

#[derive(Default)]
struct Done {
    written: u64,
    kept: u64,
    rows: u64,
    bytes: u64,
    /// Indexes of the files that are there with all their rows.
    complete: Vec<usize>,
    /// Indexes of the files that damage would have cut off, and that are not written for what was there.
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

    /// The files of tables, in the order of the log.
    fn files(&self, tables: &[Table]) -> Vec<TableFile> {
        let ending = self.format().ending();
        let runs = &self.inventory.runs;
        let mut parts: Vec<(SegmentName, (usize, Range<usize>))> = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let wanted = Part::between(run, self.options.from, self.options.to).segments;
            let groups = groups(run, wanted, self.args.segments);
            parts.extend(groups.into_iter().map(|(first, segments)| (first, (index, segments))));
        }
        let mut parts_of_name: BTreeMap<SegmentName, usize> = BTreeMap::new();
        for (first, _) in &parts {
            *parts_of_name.entry(*first).or_default() += 1;
        }
        let mut files = Vec::new();
        for table in tables.iter().copied() {
            let folder = self.args.output.join(table.name());
            let file = |path: PathBuf, part: Option<(usize, Range<usize>)>| {
                let holding = self.holding(table, part.as_ref());
                TableFile { table, path, part, holding, fate: Fate::Written, has_complete: false }
            };
            if !is_divisible(table) {
                files.push(file(folder.join(format!("{}.{ending}", table.name())), None));
                continue;
            }
            for (first, part) in &parts {
                let (index, segments) = part;
                // Segments are missing between parts that would have the same name.
                let name = match parts_of_name.get(first) {
                    Some(1) | None => *first,
                    Some(_) => name_in(&runs[*index], segments.start),
                };
                let folder = folder.join(format!("timeline={}", runs[*index].timeline));
                files.push(file(folder.join(format!("{name}.{ending}")), Some(part.clone())));
            }
        }
        files
    }

    fn holding(&self, table: Table, part: Option<&(usize, Range<usize>)>) -> Holding {
        let runs = &self.inventory.runs;
        let (segments, is_final) = match part {
            Some((index, segments)) => {
                let run = &runs[*index];
                // The last record may reach into the segment behind.
                (spans(&run.segments[segments.clone()]), segments.end < run.segments.len())
            }
            None => (runs.iter().flat_map(|run| spans(&run.segments)).collect(), false),
        };
        Holding {
            table,
            system_id: runs[0].system_id,
            segment_size: runs[0].segment_size,
            segments,
            from: self.options.from,
            to: self.options.to,
            is_final,
        }
    }

    /// Makes sure that earlier exports to the folder were of this cluster: names of segments repeat in each.
    fn expect_one_cluster(&self, found: &[ExistingFile]) -> Result<()> {
        let system_id = self.inventory.runs[0].system_id;
        for old in found {
            let path = old.path.display();
            match &old.holding {
                Some(holding) if holding.system_id == system_id => {}
                Some(holding) => bail!(
                    "cannot export to {}: {path} is of the cluster with the system identifier {}, the WAL is of {system_id}: \
                     name another folder",
                    self.args.output.display(),
                    holding.system_id
                ),
                None => bail!(
                    "cannot export to {}: an earlier version of walden wrote {path}, which does not say of which cluster it is: \
                     remove the earlier export, or name another folder",
                    self.args.output.display()
                ),
            }
        }
        Ok(())
    }

    /// Decides which files are written. Returns the existing files whose rows are in these.
    ///
    /// # Errors
    /// An existing file has rows that would be lost or be in two files.
    fn plan<'f>(
        &self,
        tables: &[Table],
        files: &mut [TableFile],
        found: &'f [ExistingFile],
    ) -> Result<Vec<&'f ExistingFile>> {
        if self.format() == FileFormat::Csv {
            self.expect_no_other_csv(files, found)?;
        }
        let mut all_superseded = Vec::new();
        for table in tables.iter().copied() {
            let folder = self.args.output.join(table.name());
            let is_of_table = |old: &ExistingFile| {
                old.holding.as_ref().is_some_and(|holding| holding.table == table)
                    && old.format == self.format()
                    && old.path.starts_with(&folder)
            };
            let wanted: Vec<Interval> = files
                .iter()
                .filter(|file| file.table == table)
                .flat_map(|file| file.holding.complete_intervals())
                .collect();
            let olds = found.iter().filter(|old| is_of_table(old)).map(Old::of);
            let (superseded, remaining): (Vec<Old<'f>>, Vec<Old<'f>>) =
                olds.partition(|old| covers(&wanted, &old.complete));
            let there: Vec<Interval> = superseded
                .iter()
                .chain(&remaining)
                .filter(|old| old.file.is_complete)
                .flat_map(|old| old.complete.iter().copied())
                .collect();
            for file in files.iter_mut().filter(|file| file.table == table) {
                let intervals = file.holding.intervals();
                if let Some(old) = remaining.iter().find(|old| overlaps(&old.intervals, &intervals)) {
                    if !covers(&there, &intervals) {
                        return Err(holds_others(&old.file.path, &file.path));
                    }
                    file.fate = Fate::Covered;
                    continue;
                }
                let is_taken = |path: &Path| remaining.iter().any(|old| old.file.path == path);
                if is_taken(&file.path) {
                    // A file of segments that are no longer in the source has the name.
                    if let Some((index, segments)) = &file.part {
                        let first = name_in(&self.inventory.runs[*index], segments.start);
                        file.path.set_file_name(format!("{first}.{}", self.format().ending()));
                    }
                }
                if is_taken(&file.path) {
                    return Err(holds_others(&file.path, &file.path));
                }
                if let Some(old) = superseded.iter().find(|old| old.file.path == file.path) {
                    // Until all others are complete, the old file's rows would be in none.
                    if !covers(&file.holding.complete_intervals(), &old.complete) {
                        return Err(holds_others(&file.path, &file.path));
                    }
                    let is_same = old.file.is_complete && old.file.content == self.content(file);
                    if is_same && file.holding.is_final {
                        file.fate = Fate::UpToDate;
                    }
                }
                let is_some_there =
                    |old: &Old<'_>| old.file.is_complete && overlaps(&old.intervals, &intervals);
                file.has_complete = superseded.iter().any(is_some_there);
            }
            // A file whose rows are partly in new files and partly in ones that are kept would repeat some of them.
            if files.iter().any(|file| file.table == table && file.fate == Fate::Covered) {
                for old in &superseded {
                    let touched = |is_covered: bool| {
                        files.iter().find(|file| {
                            file.table == table
                                && (file.fate == Fate::Covered) == is_covered
                                && overlaps(&file.holding.intervals(), &old.intervals)
                        })
                    };
                    if let (Some(_), Some(file)) = (touched(true), touched(false)) {
                        return Err(holds_others(&old.file.path, &file.path));
                    }
                }
            }
            all_superseded.extend(superseded.into_iter().map(|old| old.file));
        }
        Ok(all_superseded)
    }

    /// CSV without a description does not say which segments its rows are of, but its name may show that it has some of the same.
    fn expect_no_other_csv(&self, files: &[TableFile], found: &[ExistingFile]) -> Result<()> {
        let described: BTreeSet<&Path> = found.iter().map(|old| old.path.as_path()).collect();
        let mut names: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for file in files.iter().filter(|file| file.part.is_some()) {
            if let Some(folder) = file.path.parent() {
                names.entry(folder).or_default().insert(&file.path);
            }
        }
        for (folder, names) in names {
            let is_known =
                |path: &PathBuf| names.contains(path.as_path()) || described.contains(path.as_path());
            for path in existing::entries(folder).into_iter().filter(|path| !is_known(path)) {
                let stem = path.file_stem().and_then(|stem| stem.to_str());
                let name = stem.filter(|_| path.extension().is_some_and(|ending| ending == "csv"));
                let Some(name) = name.and_then(SegmentName::parse) else { continue };
                let has_segment = |file: &&TableFile| {
                    let Some((index, segments)) = &file.part else { return false };
                    let run = &self.inventory.runs[*index];
                    let (first, last) = (name_in(run, segments.start), name_in(run, segments.end - 1));
                    file.path.parent() == Some(folder) && first <= name && name <= last
                };
                if let Some(file) = files.iter().find(has_segment) {
                    return Err(holds_others(&path, &file.path));
                }
            }
        }
        Ok(())
    }

    /// What a file is made of: the same text, the same rows.
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
        if let Some(found) = &damage {
            // What an earlier export got before the segment was damaged has more rows.
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
                let options = ReadOptions { threads: self.threads, ..self.options.clone() };
                read(&self.inventory.runs, file.table, &options, emit)
            }
        }
    }
}

/// A file of an earlier export of a table that is exported, with what it holds.
struct Old<'f> {
    file: &'f ExistingFile,
    intervals: Vec<Interval>,
    complete: Vec<Interval>,
}

impl<'f> Old<'f> {
    fn of(file: &'f ExistingFile) -> Old<'f> {
        Old { file, intervals: file.intervals(), complete: file.complete_intervals() }
    }
}

/// The error of an existing file that has rows which are neither all in the new files nor in none of them.
fn holds_others(old: &Path, new: &Path) -> anyhow::Error {
    anyhow!(
        "cannot write {}: an earlier export's file {} holds some of the same segments and others: name all segments of both, the \
         same --segments as before, or another folder",
        new.display(),
        old.display()
    )
}

/// The first and the last of consecutive segments of each timeline. In a log that follows timelines, the ancestors' segments are of
/// theirs, under which an earlier export may have them.
fn spans(segments: &[SegmentFile]) -> Vec<(SegmentName, SegmentName)> {
    let of_one_timeline = segments.chunk_by(|one, next| one.name.timeline == next.name.timeline);
    of_one_timeline.filter_map(|of_one| Some((of_one.first()?.name, of_one.last()?.name))).collect()
}

/// The name of a segment of a run, on the timeline along which the log is read.
fn name_in(run: &Run, index: usize) -> SegmentName {
    let start = run.segments[index].start;
    SegmentName::new(run.timeline, run.segment_size.segment_of(start), run.segment_size)
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
