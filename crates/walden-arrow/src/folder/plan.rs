//! Plans which files an export writes, considering the files of earlier exports.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use walden_format::lsn::SegmentName;
use walden_source::inventory::{Run, SegmentFile};

use super::existing::{self, ExistingFile, Holding, Interval, covers, overlaps};
use super::superseded::Superseded;
use super::table_file::{Fate, TableFile};
use super::{ExportError, Exporter, Result};
use crate::export::FileFormat;
use crate::{Part, Table, is_divisible};

impl Exporter<'_> {
    /// Returns the files of tables, in WAL order.
    pub(super) fn files(&self) -> Vec<TableFile> {
        let ending = self.options.format.ending();
        let runs = &self.inventory.runs;
        let mut parts: Vec<(SegmentName, (usize, Range<usize>))> = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let wanted = Part::between(run, self.read.from, self.read.to).segments;
            let groups = groups(run, wanted, self.options.segments);
            parts.extend(groups.into_iter().map(|(first, segments)| (first, (index, segments))));
        }
        let mut parts_of_name: BTreeMap<SegmentName, usize> = BTreeMap::new();
        for (first, _) in &parts {
            *parts_of_name.entry(*first).or_default() += 1;
        }
        let mut files = Vec::new();
        for table in self.options.tables.iter().copied() {
            let folder = self.options.folder.join(table.name());
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
                // If segments are missing between parts, the parts would get the same name.
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
                // The last record may continue in the next segment.
                (spans(&run.segments[segments.clone()]), segments.end < run.segments.len())
            }
            None => (runs.iter().flat_map(|run| spans(&run.segments)).collect(), false),
        };
        Holding {
            table,
            system_id: self.first.system_id,
            segment_size: self.first.segment_size,
            segments,
            from: self.read.from,
            to: self.read.to,
            is_final,
        }
    }

    /// Checks that earlier exports to the folder were from this cluster: each cluster uses the same segment
    /// names.
    pub(super) fn expect_one_cluster(&self, found: &[ExistingFile]) -> Result<()> {
        let expected = self.first.system_id;
        let folder = || self.options.folder.clone();
        for old in found {
            let path = old.path.clone();
            match &old.holding {
                Some(Holding { system_id, .. }) if *system_id == expected => {}
                Some(Holding { system_id: found, .. }) => {
                    return Err(ExportError::OtherCluster {
                        folder: folder(),
                        path,
                        found: *found,
                        expected,
                    });
                }
                None => return Err(ExportError::UnnamedCluster { folder: folder(), path }),
            }
        }
        Ok(())
    }

    /// Decides which files are written. Returns the existing files whose rows are all in these files, with
    /// their current paths.
    ///
    /// # Errors
    /// An existing file has rows that would be lost or duplicated.
    pub(super) fn plan(&self, files: &mut [TableFile], found: &[ExistingFile]) -> Result<Vec<Superseded>> {
        if self.options.format == FileFormat::Csv {
            self.expect_no_other_csv(files, found)?;
        }
        let mut superseded = Vec::new();
        for table in self.options.tables.iter().copied() {
            let earlier = self.earlier_files(table, files, found);
            for file in files.iter_mut().filter(|file| file.table == table) {
                self.choose_fate(file, &earlier)?;
            }
            expect_no_repeated_rows(table, files, &earlier)?;
            let is_of_table = |file: &&TableFile| file.table == table && file.fate == Fate::Written;
            let written: Vec<&TableFile> = files.iter().filter(is_of_table).collect();
            superseded.extend(earlier.superseded.iter().map(|old| {
                let taker = written.iter().find(|file| file.path == old.file.path);
                let has_all = |file: &&TableFile| covers(&file.holding.complete_intervals(), &old.complete);
                Superseded {
                    file: old.file.clone(),
                    path: old.file.path.clone(),
                    is_in_the_way: taker.is_some_and(|file| !has_all(file)),
                }
            }));
        }
        Ok(superseded)
    }

    /// Returns the files that an earlier export wrote for a table.
    fn earlier_files<'f>(
        &self,
        table: Table,
        files: &[TableFile],
        found: &'f [ExistingFile],
    ) -> EarlierFiles<'f> {
        let folder = self.options.folder.join(table.name());
        let is_of_table = |old: &ExistingFile| {
            old.holding.as_ref().is_some_and(|holding| holding.table == table)
                && old.format == self.options.format
                && old.path.starts_with(&folder)
        };
        let wanted: Vec<Interval> = files
            .iter()
            .filter(|file| file.table == table)
            .flat_map(|file| file.holding.complete_intervals())
            .collect();
        let olds = found.iter().filter(|old| is_of_table(old)).map(Old::from_file);
        let (superseded, remaining): (Vec<Old<'f>>, Vec<Old<'f>>) =
            olds.partition(|old| covers(&wanted, &old.complete));
        let there: Vec<Interval> = superseded
            .iter()
            .chain(&remaining)
            .filter(|old| old.file.is_complete)
            .flat_map(|old| old.complete.iter().copied())
            .collect();
        EarlierFiles { superseded, remaining, there }
    }

    /// Decides whether a file is written, and under which name.
    fn choose_fate(&self, file: &mut TableFile, earlier: &EarlierFiles<'_>) -> Result<()> {
        let intervals = file.holding.intervals();
        if let Some(old) = earlier.remaining.iter().find(|old| overlaps(&old.intervals, &intervals)) {
            if !covers(&earlier.there, &intervals) {
                return Err(holds_others(&old.file.path, &file.path));
            }
            file.fate = Fate::Covered;
            return Ok(());
        }
        self.choose_name(file, earlier)?;
        if let Some(old) = earlier.superseded.iter().find(|old| old.file.path == file.path) {
            let is_same = old.file.is_complete && old.file.content == self.content(file);
            if is_same && file.holding.is_final {
                file.fate = Fate::UpToDate;
            }
        }
        let is_some_there = |old: &Old<'_>| old.file.is_complete && overlaps(&old.intervals, &intervals);
        file.has_complete = earlier.superseded.iter().any(is_some_there);
        Ok(())
    }

    /// Chooses another name for a file if a remaining file has its name.
    fn choose_name(&self, file: &mut TableFile, earlier: &EarlierFiles<'_>) -> Result<()> {
        let is_taken = |path: &Path| earlier.remaining.iter().any(|old| old.file.path == path);
        if !is_taken(&file.path) {
            return Ok(());
        }
        // The remaining file holds segments that are no longer in the source.
        if let Some((index, segments)) = &file.part {
            let name = |index_of_segment| name_in(&self.inventory.runs[*index], index_of_segment);
            let (first, last) = (name(segments.start), name(segments.end - 1));
            for name in [first.to_string(), format!("{first}-{last}")] {
                file.path.set_file_name(format!("{name}.{}", self.options.format.ending()));
                if !is_taken(&file.path) {
                    return Ok(());
                }
            }
        }
        Err(ExportError::NameTaken(file.path.clone()))
    }

    /// Refuses CSV files without a description: their segments are unknown, and their names suggest that they
    /// hold rows of the files to be written.
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
}

/// A file of an earlier export of an exported table, with its LSN ranges.
struct Old<'f> {
    file: &'f ExistingFile,
    intervals: Vec<Interval>,
    complete: Vec<Interval>,
}

impl<'f> Old<'f> {
    fn from_file(file: &'f ExistingFile) -> Old<'f> {
        Old { file, intervals: file.intervals(), complete: file.complete_intervals() }
    }
}

/// The files that an earlier export wrote for a table.
struct EarlierFiles<'f> {
    /// Files whose rows are all in the new files.
    superseded: Vec<Old<'f>>,
    /// The other files, which are kept.
    remaining: Vec<Old<'f>>,
    /// LSN ranges of which the existing and the new files have all rows.
    there: Vec<Interval>,
}

/// Checks that no old file's rows are partly in new files and partly in kept files, as some rows would be
/// duplicated.
fn expect_no_repeated_rows(table: Table, files: &[TableFile], earlier: &EarlierFiles<'_>) -> Result<()> {
    for old in &earlier.superseded {
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
    Ok(())
}

/// Returns the error for an existing file if only some of its rows are in the new files.
fn holds_others(old: &Path, new: &Path) -> ExportError {
    ExportError::HoldsOthers { old: old.to_owned(), new: new.to_owned() }
}

/// Returns the first and the last segment of each timeline. In WAL that follows timelines, ancestors'
/// segments keep their own timeline, under which an earlier export may have them.
fn spans(segments: &[SegmentFile]) -> Vec<(SegmentName, SegmentName)> {
    let of_one_timeline = segments.chunk_by(|one, next| one.name.timeline == next.name.timeline);
    of_one_timeline.filter_map(|of_one| Some((of_one.first()?.name, of_one.last()?.name))).collect()
}

/// Returns the name of a run's segment on the timeline that the run follows.
fn name_in(run: &Run, index: usize) -> SegmentName {
    let start = run.segments[index].start;
    SegmentName::new(run.timeline, run.segment_size.segment_of(start), run.segment_size)
}

/// Groups a run's segments by file, with the name of the first segment that could be in the file.
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
