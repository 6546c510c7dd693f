//! Reads which rows the files of earlier exports hold: from their metadata, or, as CSV has no place for
//! metadata, from a description file next to each CSV file.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_output::{OutputError, replace};
use walden_source::workers::map_in_order;

use crate::Table;
use crate::export::{self, FileContent, FileFormat};

/// Prefix of the metadata.
const VERSION: &str = "walden 2; ";
/// Prefix of the metadata of files that do not state their cluster.
const VERSION_WITHOUT_CLUSTER: &str = "walden 1; ";

/// The part of the WAL that a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    pub table: Table,
    pub system_id: u64,
    pub segment_size: SegmentSize,
    /// First and last segment of each sequence of consecutive segments on one timeline.
    pub segments: Vec<(SegmentName, SegmentName)>,
    pub from: Option<Lsn>,
    pub to: Option<Lsn>,
    /// Whether a segment followed the file's last segment, so that no row can be added.
    pub is_final: bool,
}

/// A range of LSNs on a timeline; `end` is excluded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Interval {
    timeline: Timeline,
    start: Lsn,
    end: Lsn,
}

impl Holding {
    /// Parses a file's metadata. Returns `None` if another program or another version wrote it.
    fn parse(text: &str) -> Option<Holding> {
        let mut fields = text.strip_prefix(VERSION)?.split("; ");
        let table = Table::from_name(fields.next()?)?;
        let system_id = fields.next()?.strip_prefix("cluster ")?.parse().ok()?;
        let size = fields.next()?.strip_prefix("segments of ")?.strip_suffix(" bytes")?;
        let segment_size = SegmentSize::new(size.parse().ok()?)?;
        let pair = |text: &str| {
            let (first, last) = text.split_once(" to ")?;
            Some((SegmentName::parse(first)?, SegmentName::parse(last)?))
        };
        let segments = fields.next()?.split(", ").map(pair).collect::<Option<Vec<_>>>()?;
        let bound = |text: &str| match text {
            "-" => Some(None),
            lsn => lsn.parse::<Lsn>().ok().map(Some),
        };
        let from = bound(fields.next()?.strip_prefix("from ")?)?;
        let to = bound(fields.next()?.strip_prefix("to ")?)?;
        let is_final = match fields.next()? {
            "the log goes on" => true,
            "the log ends" => false,
            _ => return None,
        };
        Some(Holding { table, system_id, segment_size, segments, from, to, is_final })
    }

    /// Returns the LSN ranges from which the file may have rows.
    pub fn intervals(&self) -> Vec<Interval> {
        let size = self.segment_size;
        let interval = |(first, last): &(SegmentName, SegmentName)| {
            let (first_start, last_start) = (first.start(size)?, last.start(size)?);
            let last_end = last_start.plus(size.bytes());
            let start = self.from.map_or(first_start, |from| from.max(first_start));
            let end = self.to.map_or(last_end, |to| to.min(last_end));
            (start < end).then_some(Interval { timeline: first.timeline, start, end })
        };
        self.segments.iter().filter_map(interval).collect()
    }

    /// Returns the LSN ranges from which the file has all rows. If the WAL ended in the file, its last
    /// position is excluded, so that a file of the continued WAL holds more.
    pub fn complete_intervals(&self) -> Vec<Interval> {
        let mut intervals = self.intervals();
        if !self.is_final {
            let starts: Vec<Lsn> = intervals.iter().map(|interval| interval.start).collect();
            for interval in intervals.iter_mut().filter(|interval| !starts.contains(&interval.end)) {
                interval.end.0 -= 1;
            }
        }
        intervals
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |lsn: Option<Lsn>| lsn.map_or_else(|| "-".to_owned(), |lsn| lsn.to_string());
        let segments: Vec<String> =
            self.segments.iter().map(|(first, last)| format!("{first} to {last}")).collect();
        write!(
            f,
            "{VERSION}{}; cluster {}; segments of {} bytes; {}; from {}; to {}; the log {}",
            self.table.name(),
            self.system_id,
            self.segment_size.bytes(),
            segments.join(", "),
            bound(self.from),
            bound(self.to),
            if self.is_final { "goes on" } else { "ends" }
        )
    }
}

/// Returns whether `intervals` contain all of `others`.
pub fn covers(intervals: &[Interval], others: &[Interval]) -> bool {
    let mut sorted = intervals.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<Interval> = Vec::new();
    for next in sorted {
        match merged.last_mut() {
            Some(last) if last.timeline == next.timeline && next.start <= last.end => {
                last.end = last.end.max(next.end);
            }
            _ => merged.push(next),
        }
    }
    let holds = |one: &Interval, other: &Interval| {
        one.timeline == other.timeline && one.start <= other.start && other.end <= one.end
    };
    others.iter().all(|other| merged.iter().any(|one| holds(one, other)))
}

/// Returns whether intervals have an LSN in common with others.
pub fn overlaps(intervals: &[Interval], others: &[Interval]) -> bool {
    let is_common = |one: &Interval, other: &Interval| {
        one.timeline == other.timeline && one.start < other.end && other.start < one.end
    };
    intervals.iter().any(|one| others.iter().any(|other| is_common(one, other)))
}

/// Returns whether any two of the intervals have an LSN in common.
pub fn overlap_somewhere(mut intervals: Vec<Interval>) -> bool {
    intervals.sort_unstable();
    // Sorted by timeline and start: if any intervals overlap, two neighbours do.
    intervals.windows(2).any(|pair| overlaps(&pair[..1], &pair[1..]))
}

/// A file of an earlier export.
#[derive(Clone, Debug)]
pub struct ExistingFile {
    pub path: PathBuf,
    pub format: FileFormat,
    pub content: String,
    /// No damage has truncated it.
    pub is_complete: bool,
    /// `None` if the file does not state its cluster.
    pub holding: Option<Holding>,
}

impl ExistingFile {
    fn read(path: PathBuf, format: FileFormat) -> Option<ExistingFile> {
        let FileContent { content, is_complete } = match format {
            FileFormat::Csv => described(&path)?,
            _ => File::open(&path).ok().and_then(|file| export::content(file, format).ok().flatten())?,
        };
        let holding = Holding::parse(&content);
        let is_ours = holding.is_some() || content.starts_with(VERSION_WITHOUT_CLUSTER);
        is_ours.then_some(ExistingFile { path, format, content, is_complete, holding })
    }

    /// Returns the LSN ranges from which the file has all rows. An incomplete file counts like the end of the
    /// WAL.
    pub fn complete_intervals(&self) -> Vec<Interval> {
        let Some(holding) = &self.holding else { return Vec::new() };
        let is_final = holding.is_final && self.is_complete;
        Holding { is_final, ..holding.clone() }.complete_intervals()
    }

    /// Returns the LSN ranges from which the file may have rows.
    pub fn intervals(&self) -> Vec<Interval> {
        self.holding.as_ref().map(Holding::intervals).unwrap_or_default()
    }
}

/// Finds the files of earlier exports to a folder, for all tables. Files without recognized metadata are
/// omitted.
pub fn find(output: &Path, threads: usize) -> Vec<ExistingFile> {
    let mut paths = Vec::new();
    for table in Table::all() {
        for path in entries(&output.join(table.name())) {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with("timeline=") {
                paths.extend(entries(&path));
            } else {
                paths.push(path);
            }
        }
    }
    let found = map_in_order(&paths, threads, |path: &PathBuf| {
        let ending = path.extension()?;
        let formats = [FileFormat::Parquet, FileFormat::Arrow, FileFormat::Csv];
        let format = formats.into_iter().find(|format| ending == format.ending())?;
        ExistingFile::read(path.clone(), format)
    });
    found.into_iter().flatten().collect()
}

/// Returns the path of a CSV file's description, whose name is hidden from programs that read all files of a
/// folder.
pub fn description_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.walden"))
}

/// Describes a CSV file before it replaces an older file. Until [`describe`], the description is valid for
/// both files: each holds at most `content`.
pub fn describe_before(path: &Path, content: &str) -> Result<(), OutputError> {
    replace(&description_of(path), description(content, None).as_bytes())
}

/// Describes an existing CSV file: its length, and, if it is incomplete, the reason.
pub fn describe(path: &Path, content: &str, bytes: u64, incomplete: Option<&str>) -> Result<(), OutputError> {
    replace(&description_of(path), description(content, Some((bytes, incomplete))).as_bytes())
}

fn description(content: &str, file: Option<(u64, Option<&str>)>) -> String {
    let mut text = format!("{content}\n");
    if let Some((bytes, incomplete)) = file {
        text += &format!("bytes {bytes}\n");
        if let Some(why) = incomplete {
            text += &format!("incomplete: {why}\n");
        }
    }
    text
}

fn described(path: &Path) -> Option<FileContent> {
    let text = fs::read_to_string(description_of(path)).ok()?;
    parse_description(&text, fs::metadata(path).ok()?.len())
}

/// Parses the description of a file with this many bytes. Returns `None` if another file has since replaced
/// the described one.
fn parse_description(text: &str, bytes: u64) -> Option<FileContent> {
    let mut lines = text.lines();
    let content = lines.next()?.to_owned();
    let Some(line) = lines.next() else { return Some(FileContent { content, is_complete: false }) };
    let described: u64 = line.strip_prefix("bytes ")?.parse().ok()?;
    (described == bytes).then(|| FileContent { content, is_complete: lines.next().is_none() })
}

/// Returns the entries of a folder, sorted by name; empty if the folder does not exist.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(first: u64, last: u64, is_final: bool) -> Holding {
        let segment_size = SegmentSize::DEFAULT;
        let name = |number| SegmentName::new(1, number, segment_size);
        Holding {
            table: Table::Records,
            system_id: 7,
            segment_size,
            segments: vec![(name(first), name(last))],
            from: None,
            to: None,
            is_final,
        }
    }

    #[test]
    fn metadata_round_trips() {
        let mut holding = holding(3, 17, true);
        holding.segments.push((
            SegmentName::new(2, 20, holding.segment_size),
            SegmentName::new(2, 29, holding.segment_size),
        ));
        holding.from = Some(Lsn(0x5000028));
        for is_final in [true, false] {
            holding.is_final = is_final;
            assert_eq!(Holding::parse(&format!("{holding}; names of - at -")), Some(holding.clone()));
        }
        assert_eq!(Holding::parse("walden 1; records; all segments"), None);
    }

    #[test]
    fn descriptions_round_trip() {
        let is_complete = |file, bytes| {
            parse_description(&description("numbers", file), bytes).map(|found| found.is_complete)
        };
        assert_eq!(is_complete(Some((5, None)), 5), Some(true));
        assert_eq!(is_complete(Some((5, Some("damage"))), 5), Some(false));
        assert_eq!(is_complete(Some((5, None)), 6), None, "another file");
        assert_eq!(is_complete(None, 6), Some(false), "a killed run's");
        assert_eq!(parse_description("numbers\nnothing\n", 5), None);
        assert_eq!(description_of(Path::new("a/b.csv")), Path::new("a/.b.csv.walden"));
    }

    #[test]
    fn a_file_in_which_the_log_ends_is_less_than_one_in_which_it_goes_on() {
        let (ends, goes_on) = (holding(0, 3, false), holding(0, 3, true));
        assert!(covers(&goes_on.complete_intervals(), &ends.complete_intervals()));
        assert!(!covers(&ends.complete_intervals(), &goes_on.complete_intervals()));
        let parts = [holding(0, 1, true), holding(2, 3, true)].map(|part| part.complete_intervals()).concat();
        assert!(covers(&parts, &goes_on.complete_intervals()));
        assert!(!covers(&holding(1, 9, true).complete_intervals(), &goes_on.complete_intervals()));
        assert!(overlaps(&holding(3, 9, true).intervals(), &goes_on.intervals()));
        assert!(!overlaps(&holding(4, 9, true).intervals(), &goes_on.intervals()));
    }
}
