//! Exports tables to a folder of files.
//!
//! Each file holds the rows of a fixed group of adjacent segment numbers, and is named after the first
//! number. So a later run recognizes the files of an earlier run, and WAL that has grown changes only the
//! last files. Each file's metadata states the part of the WAL that the file holds (`existing`). A file never
//! replaces a file that holds more rows, and no row is in two files after a run is done (`superseded`).

mod existing;
mod plan;
mod superseded;
mod table_file;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use walden_codec::container::Meta;
use walden_output::{Inputs, Output, OutputError, expect_no_link_below, expect_writable, lock_folder};
use walden_source::inventory::{Inventory, Run};
use walden_source::workers::run_in_order;

use self::existing::ExistingFile;
use self::superseded::Superseded;
use self::table_file::{Fate, TableFile};
use crate::export::{FileFormat, TableWriter};
use crate::{Part, ReadError, ReadOptions, Table, read, read_part};

/// Rows per batch from the reader to the writer, small enough for the processor's cache.
const BATCH_ROWS: usize = 8192;

/// The files to write.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The folder to write to; each table is a folder in it.
    pub folder: PathBuf,
    /// The tables, without duplicates.
    pub tables: Vec<Table>,
    /// The format of the files.
    pub format: FileFormat,
    /// Number of segments per file, at least 1.
    pub segments: u64,
    /// Whether files of other programs may be replaced.
    pub replaces: bool,
    /// Number of threads, at least 1.
    pub threads: usize,
}

impl ExportOptions {
    /// Selects Parquet files of 16 segments, written by one thread. Files of other programs are kept.
    pub fn new(folder: PathBuf, tables: Vec<Table>) -> ExportOptions {
        let format = FileFormat::Parquet;
        ExportOptions { folder, tables, format, segments: 16, replaces: false, threads: 1 }
    }
}

walden_format::setters!(ExportOptions { format: FileFormat, segments: u64, replaces: bool, threads: usize });

/// Why tables cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// There is no WAL.
    #[error("cannot read tables: expected WAL segments, found none")]
    NoLog,
    /// The folder has files of another cluster.
    #[error(
        "cannot export to {}: {} belongs to another cluster: expected system identifier {expected}, found {found}: \
         name another folder",
        folder.display(),
        path.display()
    )]
    OtherCluster {
        /// The folder to write to.
        folder: PathBuf,
        /// The file.
        path: PathBuf,
        /// The file's system identifier.
        found: u64,
        /// The system identifier of the WAL.
        expected: u64,
    },
    /// The folder has files of a version that did not name the cluster.
    #[error(
        "cannot export to {}: an earlier version of walden wrote {}, which does not name its cluster: \
         remove the earlier export, or name another folder",
        folder.display(),
        path.display()
    )]
    UnnamedCluster {
        /// The folder to write to.
        folder: PathBuf,
        /// The file.
        path: PathBuf,
    },
    /// Only some of the rows of an existing file are in the new files.
    #[error(
        "cannot write {}: an earlier export's file {} holds some of the same segments and others: name all segments of both, the \
         same --segments as before, or another folder",
        new.display(),
        old.display()
    )]
    HoldsOthers {
        /// The existing file.
        old: PathBuf,
        /// The new file.
        new: PathBuf,
    },
    /// An existing file with other rows has the new file's name.
    #[error(
        "cannot write {}, which has rows of another part of the WAL: name the same --from and --to as before, or another folder",
        .0.display()
    )]
    NameTaken(PathBuf),
    /// A file cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The WAL cannot be read.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// A file of rows cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the writer or the file system.
        #[source]
        error: ArrowError,
    },
    /// The file system refused to open or to measure a file that is written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// An existing file cannot be renamed.
    #[error("cannot rename {} to {}", from.display(), to.display())]
    Rename {
        /// Current path of the file.
        from: PathBuf,
        /// New path of the file.
        to: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// An existing file cannot be removed.
    #[error("cannot remove {}, although other files of the export contain all of its rows: remove it before you query the export, as its rows would count twice", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The mark of rows in two files cannot be removed.
    #[error("cannot remove {}", path.display())]
    RemoveMark {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
}

type Result<T> = std::result::Result<T, ExportError>;

/// The files that were written.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Exported {
    /// Number of files that were written.
    pub written: u64,
    /// Number of files that existed with the same rows.
    pub kept: u64,
    /// Number of rows in the written files.
    pub rows: u64,
    /// Bytes of the written files.
    pub bytes: u64,
    /// Number of files that were not written because files of an earlier export hold the same part of the WAL
    /// and more.
    pub covered: u64,
    /// Files that were not written because damage would have truncated them, and because complete files of an
    /// earlier export hold their segments.
    pub spared: Vec<PathBuf>,
    /// Files that were removed again, because complete files of an earlier export hold their segments.
    pub removed_again: Vec<PathBuf>,
    /// Number of files of earlier exports that were removed; `None` if removing them failed.
    pub removed: Option<u64>,
}

/// A planned export. The folder is locked until this is dropped.
#[derive(Debug)]
pub struct Export<'a> {
    exporter: Exporter<'a>,
    files: Vec<TableFile>,
    superseded: Vec<Superseded>,
    _lock: File,
}

impl<'a> Export<'a> {
    /// Locks the folder, and decides which files are written. `read` selects the rows; `inputs` are the files
    /// that must not be replaced.
    ///
    /// # Errors
    /// Existing files that would be lost, or whose rows would be duplicated, and errors of the file system.
    pub fn plan(
        inventory: &'a Inventory,
        read: &'a ReadOptions,
        options: &'a ExportOptions,
        inputs: &Inputs,
    ) -> Result<Export<'a>> {
        let first = inventory.runs.first().ok_or(ExportError::NoLog)?;
        let read = read.clone().threads(1).batch_rows(BATCH_ROWS);
        let exporter = Exporter { options, inventory, first, read };
        let lock = lock_folder(&options.folder)?;
        let found = existing::find(&options.folder, options.threads);
        exporter.expect_one_cluster(&found)?;
        let mut files = exporter.files();
        files.iter().try_for_each(|file| expect_no_link_below(&options.folder, &file.path))?;
        exporter.expect_own_files(&files, &found, inputs)?;
        let superseded = exporter.plan(&mut files, &found)?;
        Ok(Export { exporter, files, superseded, _lock: lock })
    }

    /// Returns the bytes of WAL that are read.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes(self.exporter.inventory)).sum()
    }

    /// Writes the files, and removes files of earlier exports whose rows the new files contain. `progress`
    /// receives the number of bytes of WAL that were read. Also returns the first error, such as damage: the
    /// rows before the damage are exported.
    pub fn write(mut self, progress: impl FnMut(u64)) -> (Exported, Option<ExportError>) {
        let ExportOptions { folder, threads, format, .. } = self.exporter.options;
        if let Err(error) = superseded::make_way(folder, &mut self.superseded, &self.files) {
            return (Exported::default(), Some(error));
        }
        let (done, failure) = self.exporter.write_all(&self.files, progress);
        let mut removed_again = Vec::new();
        let removed =
            superseded::remove(&self.superseded, &self.files, &done.complete, *format, &mut removed_again)
                .and_then(|count| superseded::remove_marks(folder, *threads).map(|()| count));
        let covered = self.files.iter().filter(|file| file.fate == Fate::Covered).count();
        let exported = Exported {
            written: done.written,
            kept: done.kept,
            rows: done.rows,
            bytes: done.bytes,
            covered: covered as u64,
            spared: done.spared.iter().map(|index| self.files[*index].path.clone()).collect(),
            removed_again,
            removed: removed.as_ref().ok().copied(),
        };
        (exported, failure.or(removed.err()))
    }
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
    /// Indexes of the files that damage would have truncated. These files are not written, because complete
    /// files of an earlier export exist.
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

#[derive(Debug)]
struct Exporter<'a> {
    options: &'a ExportOptions,
    inventory: &'a Inventory,
    /// The first run, whose cluster and segment size all others have.
    first: &'a Run,
    read: ReadOptions,
}

impl Exporter<'_> {
    /// Writes files in order, up to the first failure, regardless of the number of threads.
    fn write_all(&self, files: &[TableFile], mut progress: impl FnMut(u64)) -> (Done, Option<ExportError>) {
        let inventory = self.inventory;
        let done = Mutex::new(Done::default());
        let mut failure: Option<ExportError> = None;
        // Each writer reads the segments of its file.
        let threads = self.options.threads;
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
                progress(files[index].bytes(inventory));
                failure = match result {
                    Ok(None) => return ControlFlow::Continue(()),
                    Ok(Some(damage)) => Some(damage.into()),
                    Err(error) => Some(error),
                };
                ControlFlow::Break(())
            },
        );
        (done.into_inner().unwrap_or_else(PoisonError::into_inner), failure)
    }

    /// Checks that the export does not replace a file of the source, nor, without permission, a file of
    /// another program.
    fn expect_own_files(&self, files: &[TableFile], found: &[ExistingFile], inputs: &Inputs) -> Result<()> {
        let own: BTreeSet<&Path> = found.iter().map(|old| old.path.as_path()).collect();
        files.iter().try_for_each(|file| {
            let is_own = own.contains(file.path.as_path());
            Ok(expect_writable(&file.path, is_own || self.options.replaces, inputs)?)
        })
    }

    /// Returns a description of a file's content. Files with equal descriptions hold the same rows.
    fn content(&self, file: &TableFile) -> String {
        let names = &self.read.names.origin;
        format!(
            "{}; names of {} at {}; lsn_text {}",
            file.holding,
            names.system_id.map_or("-".to_owned(), |id| id.to_string()),
            names.read_at.as_deref().unwrap_or("-"),
            self.read.lsn_text
        )
    }

    fn write(&self, file: &TableFile) -> Result<WrittenFile> {
        if file.fate != Fate::Written {
            return Ok(WrittenFile::default());
        }
        let content = self.content(file);
        let of_file = |error| ExportError::File { path: file.path.clone(), error };
        let of_rows = |error| ExportError::Write { path: file.path.clone(), error };
        let output = Output::create_result(&file.path, true)?;
        let writer = output.file().try_clone().map_err(of_file)?;
        let schema = self.read.schema(file.table);
        let mut writer = TableWriter::new(writer, self.options.format, &schema, &content).map_err(of_rows)?;
        let (mut rows, mut failure) = (0, None);
        let emit = |batch: RecordBatch| {
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
            return Err(of_rows(error));
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
        writer.finish().map_err(of_rows)?;
        let bytes = output.file().metadata().map_err(of_file)?.len();
        let is_csv = self.options.format == FileFormat::Csv;
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
        emit: impl FnMut(RecordBatch) -> ControlFlow<()> + Send,
    ) -> std::result::Result<(), ReadError> {
        match &file.part {
            Some((run, segments)) => {
                let part = Part { run: &self.inventory.runs[*run], segments: segments.clone() };
                read_part(&part, file.table, &self.read, emit).map(|_| ())
            }
            None => {
                let options = self.read.clone().threads(self.options.threads);
                read(&self.inventory.runs, file.table, &options, emit)
            }
        }
    }
}
