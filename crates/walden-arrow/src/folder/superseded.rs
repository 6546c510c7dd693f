//! Files of earlier exports whose rows are in the new files, until their removal.
//!
//! No row is missing at any moment: an old file is removed only after all of its rows are in complete new
//! files. Until then it keeps a name that no new file takes. So rows can be in two files during a run, and
//! after an interrupted one. As long as that is possible, a marker file in the table's folder ([`MARK`])
//! states it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::existing::{self, ExistingFile, Interval, covers, overlap_somewhere};
use super::table_file::{Fate, TableFile};
use super::{ExportError, Result};
use crate::Table;
use crate::export::FileFormat;

/// Name of the file in a table's folder that marks that rows of the table may be in two files.
const MARK: &str = ".walden-replacing";

const MARK_TEXT: &str = "Rows of this table may be in two files: walden export is putting files in place of others,\n\
     or was interrupted while it did. Run it again: it removes this file once no row is in two.\n";

/// A file of an earlier export whose rows are all in the new files.
#[derive(Debug)]
pub(super) struct Superseded {
    pub(super) file: ExistingFile,
    /// The file's current path.
    pub(super) path: PathBuf,
    /// A new file without all of its rows is to get its name.
    pub(super) is_in_the_way: bool,
}

/// Prepares for writing files: marks the folders of tables whose rows can be in two files, and renames old
/// files whose names new files need.
pub(super) fn make_way(output: &Path, superseded: &mut [Superseded], files: &[TableFile]) -> Result<()> {
    let paths = paths_of(files);
    // A file that is replaced by a new one of the same name never exists twice.
    let is_twice = |old: &&Superseded| old.is_in_the_way || !paths.contains(old.path.as_path());
    let holdings = superseded.iter().filter(is_twice).filter_map(|old| old.file.holding.as_ref());
    let tables: BTreeSet<Table> = holdings.map(|holding| holding.table).collect();
    for table in tables {
        walden_output::replace(&output.join(table.name()).join(MARK), MARK_TEXT.as_bytes())?;
    }
    let mut folders: BTreeSet<&Path> = BTreeSet::new();
    for old in superseded.iter_mut().filter(|old| old.is_in_the_way) {
        old.path = move_aside(&old.file.path, old.file.format)?;
        folders.extend(old.file.path.parent());
    }
    // A new file may take a name only after the old file's rename is durable.
    for folder in folders {
        walden_output::sync_folder(folder)?;
    }
    Ok(())
}

/// Renames a file within its folder. The next run still recognizes it, as its metadata states its content.
fn move_aside(path: &Path, format: FileFormat) -> Result<PathBuf> {
    let aside = name_aside(path);
    let moved = || -> std::io::Result<()> {
        if format != FileFormat::Csv {
            return fs::rename(path, &aside);
        }
        // A CSV file always has its description next to it, even during the rename.
        let (before, after) = (existing::description_of(path), existing::description_of(&aside));
        fs::copy(&before, &after)?;
        File::open(&after)?.sync_all()?;
        fs::rename(path, &aside)?;
        fs::remove_file(&before)
    };
    match moved() {
        Ok(()) => Ok(aside),
        Err(error) => Err(ExportError::Rename { from: path.to_owned(), to: aside, error }),
    }
}

/// Returns an unused file name next to a file.
fn name_aside(path: &Path) -> PathBuf {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, ending) = (text(path.file_stem()), text(path.extension()));
    let mut number = 1;
    loop {
        let aside = path.with_file_name(format!("{stem}-replaced-{number}.{ending}"));
        if fs::symlink_metadata(&aside).is_err() {
            return aside;
        }
        number += 1;
    }
}

/// Removes old files whose rows are all in complete files, and returns their number. If a failure left rows
/// out of the new files, the old file is kept, and new files whose rows are all in kept files are removed:
/// `removed_again` receives their paths.
pub(super) fn remove(
    superseded: &[Superseded],
    files: &[TableFile],
    complete: &[usize],
    format: FileFormat,
    removed_again: &mut Vec<PathBuf>,
) -> Result<u64> {
    let mut by_table: BTreeMap<Table, Vec<Interval>> = BTreeMap::new();
    for index in complete {
        let holding = &files[*index].holding;
        by_table.entry(holding.table).or_default().extend(holding.complete_intervals());
    }
    let paths = paths_of(files);
    let mut staying: BTreeMap<Table, Vec<Interval>> = BTreeMap::new();
    let mut removed = 0;
    for old in superseded.iter().filter(|old| !paths.contains(old.path.as_path())) {
        let Some(holding) = &old.file.holding else { continue };
        let intervals = old.file.complete_intervals();
        if by_table.get(&holding.table).is_some_and(|complete| covers(complete, &intervals)) {
            remove_file(&old.path, old.file.format)?;
            removed += 1;
        } else if old.file.is_complete {
            staying.entry(holding.table).or_default().extend(intervals);
        }
    }
    for file in complete.iter().map(|index| &files[*index]).filter(|file| file.fate == Fate::Written) {
        let intervals = file.holding.complete_intervals();
        let is_repeated = staying.get(&file.table).is_some_and(|staying| covers(staying, &intervals));
        if is_repeated && !intervals.is_empty() {
            remove_file(&file.path, format)?;
            removed_again.push(file.path.clone());
        }
    }
    Ok(removed)
}

fn remove_file(path: &Path, format: FileFormat) -> Result<()> {
    fs::remove_file(path).map_err(|error| ExportError::Remove { path: path.to_owned(), error })?;
    if format == FileFormat::Csv {
        // A description without its file has no meaning.
        let _ = fs::remove_file(existing::description_of(path));
    }
    Ok(())
}

/// Returns the paths of all files that are written or up to date.
fn paths_of(files: &[TableFile]) -> BTreeSet<&Path> {
    files.iter().filter(|file| file.fate != Fate::Covered).map(|file| file.path.as_path()).collect()
}

/// Removes the marks of tables without duplicated rows, including marks of earlier runs. Called at the end.
pub(super) fn remove_marks(output: &Path, threads: usize) -> Result<()> {
    let mark = |table: &Table| output.join(table.name()).join(MARK);
    let marked: Vec<Table> = Table::all().filter(|table| mark(table).exists()).collect();
    if marked.is_empty() {
        return Ok(());
    }
    let found = existing::find(output, threads);
    for table in marked {
        let is_twice = [FileFormat::Parquet, FileFormat::Arrow, FileFormat::Csv].into_iter().any(|format| {
            let is_of = |old: &&ExistingFile| {
                old.format == format && old.holding.as_ref().is_some_and(|holding| holding.table == table)
            };
            overlap_somewhere(found.iter().filter(is_of).flat_map(ExistingFile::intervals).collect())
        });
        if !is_twice {
            let path = mark(&table);
            fs::remove_file(&path).map_err(|error| ExportError::RemoveMark { path, error })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_their_descriptions_and_no_other_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a.csv", ".a.csv.walden", "b.parquet", "b-replaced-1.parquet"] {
            fs::write(path(name), name).unwrap();
        }
        assert_eq!(move_aside(&path("a.csv"), FileFormat::Csv).unwrap(), path("a-replaced-1.csv"));
        let moved = move_aside(&path("b.parquet"), FileFormat::Parquet).unwrap();
        assert_eq!(moved, path("b-replaced-2.parquet"));
        let mut found: Vec<(String, String)> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        found.sort();
        let expected = [
            (".a-replaced-1.csv.walden", ".a.csv.walden"),
            ("a-replaced-1.csv", "a.csv"),
            ("b-replaced-1.parquet", "b-replaced-1.parquet"),
            ("b-replaced-2.parquet", "b.parquet"),
        ];
        assert_eq!(found, expected.map(|(name, content)| (name.to_owned(), content.to_owned())));
    }
}
