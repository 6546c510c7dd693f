//! Finds segments in files and folders, and sorts them into runs without gaps.
//!
//! Folders of PostgreSQL itself and of the archivers are understood: a data directory, `pg_wal`, plain archives,
//! pgBackRest (`archive/STANZA/15-1/0000000100000000/NAME-sha1.zst`), WAL-G (`wal_005/NAME.lz4`), Barman
//! (`wals/0000000100000000/NAME`), pgmoneta, pg_receivewal. In folders a file's name says whether it is a segment; its
//! content says everything else.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_format::fault::FaultKind;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::page::{PageHeader, PageHeaderError};
use walden_format::stream::StreamInfo;
use walden_format::version::{Major, UnreadableMagic};

use crate::compressed::{self, Member};
use crate::open::{self, Compression, Foreign, fill};
use crate::store::SharedStore;
use crate::workers::map_in_order;

/// The segments and other files found in a set of paths.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The segments: sorted by cluster, timeline and position; each run without gaps.
    pub runs: Vec<Run>,
    /// Files recycled or preallocated for future segments.
    pub spares: Vec<Spare>,
    /// Segments that were found twice; one file of each is in a run.
    pub duplicates: Vec<Duplicate>,
    /// Files named like segments that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Other files and folders that were skipped.
    pub ignored: Vec<Ignored>,
    /// The runs are one log along a timeline and its ancestors; see [`Inventory::follow`].
    pub is_one_log: bool,
}

/// Consecutive segments of one timeline of one cluster, written by one version.
#[derive(Debug)]
pub struct Run {
    /// The cluster's system identifier.
    pub system_id: u64,
    /// The timeline in the segments' names.
    pub timeline: Timeline,
    /// Size of the segments.
    pub segment_size: SegmentSize,
    /// PostgreSQL major version that wrote them.
    pub version: Major,
    /// The segments in WAL order; never empty.
    pub segments: Vec<SegmentFile>,
}

/// A file that holds a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The segment's name: that of the file, or else determined from the content.
    pub name: SegmentName,
    /// Whether the file is named `.partial`: the segment was not complete when it was written.
    pub partial: bool,
    /// Compression of the file, found by its content.
    pub compression: Compression,
    /// The number of the member that holds the segment, in a file of `walden compress` or in `store`.
    pub member: Option<u64>,
    /// Where the segment is read from, if `path` is not a file but its place in a store, for messages.
    pub store: Option<SharedStore>,
    /// Whether the segment is decoded as a difference from the one before it in the same pack.
    pub needs_previous: bool,
    /// Bytes that the segment takes on disk.
    pub size_on_disk: u64,
    /// LSN of the segment's start.
    pub start: Lsn,
    /// PostgreSQL major version that wrote it.
    pub version: Major,
    /// The cluster's system identifier.
    pub system_id: u64,
    /// Size of the cluster's segments.
    pub segment_size: SegmentSize,
    /// Size of the log's pages (`XLOG_BLCKSZ`), in bytes.
    pub page_bytes: u32,
}

/// A file that is recycled or preallocated for a future segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spare {
    /// Path of the file.
    pub path: PathBuf,
    /// The segment name of the file.
    pub name: SegmentName,
    /// Size of the file in bytes.
    pub size_on_disk: u64,
    /// Whether it was recycled or preallocated.
    pub kind: SpareKind,
}

/// Why a segment file holds no WAL of its name yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpareKind {
    /// An earlier segment, with this name: PostgreSQL renames files that it no longer needs.
    Recycled(SegmentName),
    /// Zeros.
    Preallocated,
}

/// A segment that more than one file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Duplicate {
    /// The file in the run.
    pub kept: SegmentFile,
    /// The file left out.
    pub dropped: SegmentFile,
}

/// Segments missing between two runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The cluster's system identifier.
    pub system_id: u64,
    /// The first segment that is missing.
    pub first: SegmentName,
    /// The last segment that is missing.
    pub last: SegmentName,
    /// How many are missing.
    pub segments: u64,
}

/// A file that was skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ignored {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Why it was skipped.
    pub reason: IgnoredReason,
}

/// Why a file was skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IgnoredReason {
    /// A timeline's history.
    History,
    /// A backup's label (`.backup`).
    BackupLabel,
    /// It is not named like a segment.
    OtherName,
    /// A folder of a base backup, which has its own copy of some segments.
    BaseBackup,
    /// A folder that leads back to one that was already searched.
    Loop,
    /// A segment of a timeline, or of a part of it, that the log does not follow.
    OtherTimeline,
}

/// A file that cannot be read as a segment.
#[derive(Debug)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub reason: UnreadableReason,
}

/// Why a file cannot be read as a segment.
#[derive(Debug)]
pub enum UnreadableReason {
    /// Reading or decompressing failed; the text names the file.
    Io(io::Error),
    /// A pipe or a device: segments are read more than once.
    NoFile,
    /// No bytes.
    Empty,
    /// Encrypted, by what.
    Encrypted(&'static str),
    /// In a format that is not supported.
    Format(&'static str),
    /// The first page's magic, and what it says.
    Magic(u16, UnreadableMagic),
    /// Not a segment, for another reason than its magic.
    Header(FaultKind),
    /// The file's content starts within a segment, at this position.
    MidSegment(Lsn),
    /// The file's name is not the one of the segment in it, which is this one.
    Misnamed(SegmentName),
    /// Neither a segment nor compressed in a known way.
    NotWal,
}

/// Why taking the inventory failed.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// A path that does not exist.
    #[error("{}: no such file or folder", .0.display())]
    NotFound(PathBuf),
    /// A folder or file that cannot be read.
    #[error("cannot read {}", .path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A file named by the caller is not a readable segment.
    #[error(transparent)]
    Unreadable(Unreadable),
    /// There is no segment.
    #[error("{}", no_segments(.paths, .inventory, .first_unreadable.as_ref()))]
    NoSegments {
        /// The paths given.
        paths: Vec<PathBuf>,
        /// What was found instead.
        inventory: Box<Inventory>,
        /// The first of the files that look like segments but cannot be read; the others are in `inventory`.
        #[source]
        first_unreadable: Option<Unreadable>,
    },
}

impl Inventory {
    /// Finds the segments in files and folders, on the calling thread; see [`Inventory::with_threads`].
    ///
    /// # Errors
    /// See [`Inventory::with_threads`].
    pub fn of<P: AsRef<Path>>(paths: &[P]) -> Result<Inventory, InventoryError> {
        Inventory::with_threads(paths, 1)
    }

    /// Finds the segments in files and folders; folders are searched recursively. Reads the first bytes of each file, on up to
    /// `threads` threads: opening files is waiting as much as work, so more threads than cores make sense.
    ///
    /// # Errors
    /// A path that cannot be read, a file in `paths` that is not a segment, or no segment at all. Files within folders that cannot
    /// be read are in [`Inventory::unreadable`] instead.
    pub fn with_threads<P: AsRef<Path>>(paths: &[P], threads: usize) -> Result<Inventory, InventoryError> {
        Inventory::with_segments(paths, Vec::new(), threads)
    }

    /// The same, with `segments` that are not in `paths`: those of a store.
    ///
    /// # Errors
    /// As [`Inventory::with_threads`].
    pub fn with_segments<P: AsRef<Path>>(
        paths: &[P],
        mut segments: Vec<SegmentFile>,
        threads: usize,
    ) -> Result<Inventory, InventoryError> {
        let mut inventory = Inventory::default();
        let mut search =
            Search { inventory: &mut inventory, candidates: Vec::new(), folders: HashSet::new() };
        for path in paths {
            search.path(path.as_ref())?;
        }
        let mut candidates = search.candidates;
        // The same file may be named and be in a folder that is named too.
        let mut seen = HashSet::new();
        candidates.sort_by_key(|candidate| !candidate.explicit);
        candidates.retain(|candidate| seen.insert(candidate.file));
        candidates.sort_by(|a, b| a.path.cmp(&b.path));

        segments.reserve(candidates.len());
        for (candidate, look) in candidates.iter().zip(map_in_order(&candidates, threads, look_into)) {
            match look {
                Ok(Look::Segment(segment)) => segments.push(segment),
                Ok(Look::Spare(spare)) => inventory.spares.push(spare),
                Ok(Look::Members(members)) => inventory.add_members(candidate, &members, &mut segments)?,
                Err(reason) => {
                    let unreadable = Unreadable { path: candidate.path.clone(), reason };
                    if candidate.explicit {
                        return Err(InventoryError::Unreadable(unreadable));
                    }
                    inventory.unreadable.push(unreadable);
                }
            }
        }
        if segments.is_empty() {
            let paths = paths.iter().map(|path| path.as_ref().to_owned()).collect();
            let first_unreadable = (!inventory.unreadable.is_empty()).then(|| inventory.unreadable.remove(0));
            let inventory = Box::new(inventory);
            return Err(InventoryError::NoSegments { paths, inventory, first_unreadable });
        }
        inventory.sort(segments);
        Ok(inventory)
    }

    /// Adds the segments in a file that `walden compress` wrote.
    fn add_members(
        &mut self,
        candidate: &Candidate,
        members: &[Member],
        segments: &mut Vec<SegmentFile>,
    ) -> Result<(), InventoryError> {
        for member in members {
            let before = segments.last();
            match look_into_member(candidate, member, before) {
                Ok(Some(Look::Segment(segment))) => segments.push(segment),
                Ok(Some(Look::Spare(spare))) => self.spares.push(spare),
                Ok(Some(Look::Members(_)) | None) => {
                    let path = candidate.path.join(&member.name);
                    self.ignored.push(Ignored { path, reason: IgnoredReason::OtherName });
                }
                Err(reason) => {
                    let unreadable = Unreadable { path: candidate.path.clone(), reason };
                    if candidate.explicit {
                        return Err(InventoryError::Unreadable(unreadable));
                    }
                    self.unreadable.push(unreadable);
                }
            }
        }
        Ok(())
    }

    /// All segments of all runs.
    pub fn segments(&self) -> impl Iterator<Item = &SegmentFile> {
        self.runs.iter().flat_map(|run| &run.segments)
    }

    /// Number and bytes on disk of the files that hold nothing yet.
    pub fn spare_bytes(&self) -> (usize, u64) {
        (self.spares.len(), self.spares.iter().map(|spare| spare.size_on_disk).sum())
    }

    /// The gaps between runs of the same timeline.
    ///
    /// A timeline that continues another one has no gap to it: the segment of the switch is on both.
    pub fn gaps(&self) -> Vec<Gap> {
        let gap = |pair: &[Run]| {
            let (Some(left), Some(right)) = (pair.first(), pair.get(1)) else { return None };
            let is_one_cluster = left.system_id == right.system_id && left.version == right.version;
            if left.key() != right.key() && !(self.is_one_log && is_one_cluster) {
                return None;
            }
            let size = left.segment_size;
            let first = size.segment_of(left.end());
            let segments =
                size.segment_of(right.start()).checked_sub(first).filter(|missing| *missing > 0)?;
            // With a change of timeline in the gap, the last one that is missing is on the later one.
            let later = right.segments.first().map_or(right.timeline, |segment| segment.name.timeline);
            Some(Gap {
                system_id: left.system_id,
                first: SegmentName::new(left.timeline, first, size),
                last: SegmentName::new(later, first + segments - 1, size),
                segments,
            })
        };
        self.runs.windows(2).filter_map(gap).collect()
    }

    fn sort(&mut self, mut segments: Vec<SegmentFile>) {
        let order =
            |segment: &SegmentFile| (segment.key(), segment.start, segment.partial, segment.compression);
        segments.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.path.cmp(&b.path)));
        for segment in segments {
            let run = self.runs.last_mut().filter(|run| run.key() == segment.key());
            let last = run.as_ref().and_then(|run| run.segments.last()).map(|last| last.start);
            match (run, last) {
                (Some(run), Some(start)) if start == segment.start => {
                    let kept = run.segments.last().cloned();
                    self.duplicates.extend(kept.map(|kept| Duplicate { kept, dropped: segment }));
                }
                (Some(run), Some(start)) if start.plus(run.segment_size.bytes()) == segment.start => {
                    run.segments.push(segment);
                }
                _ => self.runs.push(Run {
                    system_id: segment.system_id,
                    timeline: segment.name.timeline,
                    segment_size: segment.segment_size,
                    version: segment.version,
                    segments: vec![segment],
                }),
            }
        }
    }
}

/// What all segments of a run have in common; runs are sorted by it.
type Key = (u64, Timeline, Major, SegmentSize, u32);

impl Run {
    /// Where the first segment starts.
    pub fn start(&self) -> Lsn {
        self.segments.first().map_or(Lsn::INVALID, |segment| segment.start)
    }

    /// Where the last segment ends; that of a running server is not full.
    pub fn end(&self) -> Lsn {
        self.segments.last().map_or(Lsn::INVALID, |segment| segment.start.plus(segment.segment_size.bytes()))
    }

    /// Bytes of the segments' files.
    pub fn size_on_disk(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size_on_disk).sum()
    }

    fn key(&self) -> Option<Key> {
        self.segments.first().and_then(SegmentFile::key)
    }
}

impl SegmentFile {
    fn key(&self) -> Option<Key> {
        Some((self.system_id, self.name.timeline, self.version, self.segment_size, self.page_bytes))
    }
}

impl Duplicate {
    /// Whether the decompressed contents of both files agree; a `.partial` one as far as it goes.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn agrees(&self) -> io::Result<bool> {
        let (mut kept, mut dropped) = (open::open(&self.kept)?, open::open(&self.dropped)?);
        let (mut left, mut right) = (vec![0; 256 << 10], vec![0; 256 << 10]);
        loop {
            let (a, stopped_a) = fill(&mut kept, &mut left);
            let (b, stopped_b) = fill(&mut dropped, &mut right);
            if let Some(error) = stopped_a.or(stopped_b) {
                return Err(error);
            }
            let common = a.min(b);
            if left[..common] != right[..common] || (a != b && !self.dropped.partial) {
                return Ok(false);
            }
            if common < left.len() {
                return Ok(true);
            }
        }
    }
}

/// The kind of a file, by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A segment, complete or `.partial`.
    Segment {
        /// The segment.
        name: SegmentName,
        /// With `.partial` in the file's name.
        partial: bool,
    },
    /// A timeline's history, `00000002.history`.
    History,
    /// A backup's label, `000000010000000000000002.00000028.backup`.
    BackupLabel,
    /// A pack of `walden compress --pack`, `*.wpk`.
    Pack,
    /// Anything else.
    Other,
}

impl FileKind {
    /// Reads a file's name, without its folder.
    ///
    /// A segment's name may be followed by `.partial`, by pgBackRest's `-` and SHA-1, and by the endings of compression
    /// and encryption programs. An ending is not trusted to say how the file is compressed.
    pub fn of(file_name: &str) -> FileKind {
        if let Some(name) = file_name.get(..24).and_then(SegmentName::parse) {
            let rest = &file_name[24..];
            return match segment_suffix(rest) {
                Some(partial) => FileKind::Segment { name, partial },
                None if is_backup_label(rest) => FileKind::BackupLabel,
                // Packs are named after their first and last segment.
                None if rest.ends_with(".wpk") => FileKind::Pack,
                None => FileKind::Other,
            };
        }
        let is_timeline =
            file_name.get(..8).is_some_and(|timeline| timeline.bytes().all(|b| b.is_ascii_hexdigit()));
        match file_name.get(8..).and_then(|rest| rest.strip_prefix(".history")) {
            Some(rest) if is_timeline && segment_suffix(rest) == Some(false) => FileKind::History,
            _ if file_name.ends_with(".wpk") => FileKind::Pack,
            _ => FileKind::Other,
        }
    }
}

/// Endings that archivers and compression programs add.
const ENDINGS: &[&str] = &[
    "gz", "gzip", "lz4", "zst", "zstd", "xz", "lzma", "bz2", "bzip2", "br", "brotli", "sz", "snappy", "lzo",
    "z", "gpg", "pgp", "age", "aes", "enc", "wlz",
];

/// Whether the suffix of a segment's name contains `.partial`; `None` if it is that of another kind of file.
fn segment_suffix(mut rest: &str) -> Option<bool> {
    let mut partial = false;
    while !rest.is_empty() {
        let (mark, tail) = (rest.get(..1)?, rest.get(1..)?);
        let part = &tail[..tail.find(['.', '-']).unwrap_or(tail.len())];
        match mark {
            "-" if part.len() == 40 && part.bytes().all(|b| b.is_ascii_hexdigit()) => {}
            "." if part == "partial" && !partial => partial = true,
            "." if ENDINGS.contains(&part) => {}
            _ => return None,
        }
        rest = &tail[part.len()..];
    }
    Some(partial)
}

fn is_backup_label(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix('.') else { return false };
    let offset = rest.get(..8).is_some_and(|offset| offset.bytes().all(|b| b.is_ascii_hexdigit()));
    let ending = rest.get(8..).and_then(|rest| rest.strip_prefix(".backup"));
    offset && ending.and_then(segment_suffix) == Some(false)
}

/// A file that may be a segment.
struct Candidate {
    path: PathBuf,
    /// Device and inode: the same file may be reached in two ways.
    file: (u64, u64),
    name: Option<(SegmentName, bool)>,
    /// Whether the caller named this file itself.
    explicit: bool,
}

struct Search<'a> {
    inventory: &'a mut Inventory,
    candidates: Vec<Candidate>,
    folders: HashSet<(u64, u64)>,
}

/// Folders that PostgreSQL keeps beside segments.
const BESIDE_SEGMENTS: &[&str] = &["archive_status", "summaries"];
/// Folders that hold all the segments of the folder that they are in, as rows of alternatives.
#[rustfmt::skip]
const ONLY: &[(&[&str], &[&str])] = &[
    // A data directory, also before 10.
    (&["PG_VERSION", "pg_wal"],  &["pg_wal"]),
    (&["PG_VERSION", "pg_xlog"], &["pg_xlog"]),
    // WAL-G, Barman.
    (&["wal_005"],               &["wal_005"]),
    (&["wals", "base"],          &["wals", "streaming", "incoming"]),
];

impl Search<'_> {
    fn path(&mut self, path: &Path) -> Result<(), InventoryError> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => InventoryError::NotFound(path.to_owned()),
            _ => InventoryError::Io { path: path.to_owned(), error },
        };
        let metadata = fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return self.folder(path, &metadata, true).map_err(io);
        }
        if !metadata.is_file() {
            let (path, reason) = (path.to_owned(), UnreadableReason::NoFile);
            return Err(InventoryError::Unreadable(Unreadable { path, reason }));
        }
        let kind = path.file_name().and_then(|name| name.to_str()).map_or(FileKind::Other, FileKind::of);
        let name = match kind {
            FileKind::Segment { name, partial } => Some((name, partial)),
            FileKind::History | FileKind::BackupLabel => {
                self.ignore_kind(path, kind);
                return Ok(());
            }
            FileKind::Pack | FileKind::Other => None,
        };
        let file = (metadata.dev(), metadata.ino());
        self.candidates.push(Candidate { path: path.to_owned(), file, name, explicit: true });
        Ok(())
    }

    fn folder(&mut self, path: &Path, metadata: &fs::Metadata, asked_for: bool) -> io::Result<()> {
        if !self.folders.insert((metadata.dev(), metadata.ino())) {
            self.ignore(path, IgnoredReason::Loop);
            return Ok(());
        }
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                names.insert(name, entry.file_type()?);
            }
        }
        // PostgreSQL's, and those of pgBackRest and Barman.
        let marks = ["backup_label", "backup_manifest", "backup.manifest", "backup.info"];
        if !asked_for && marks.iter().any(|mark| names.contains_key(*mark)) {
            self.ignore(path, IgnoredReason::BaseBackup);
            return Ok(());
        }
        let only = ONLY.iter().find(|(marks, _)| marks.iter().all(|mark| names.contains_key(*mark)));
        for (name, file_type) in &names {
            let is_wanted = only.is_none_or(|(_, wanted)| wanted.contains(&name.as_str()));
            if is_wanted && !BESIDE_SEGMENTS.contains(&name.as_str()) {
                self.entry(&path.join(name), name, *file_type)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, file_name: &str, file_type: fs::FileType) -> io::Result<()> {
        let kind = FileKind::of(file_name);
        let may_be_folder = file_type.is_dir() || file_type.is_symlink();
        if !may_be_folder && !matches!(kind, FileKind::Segment { .. } | FileKind::Pack) {
            self.ignore_kind(path, kind);
            return Ok(());
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            // A running server removes and renames files at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                let error = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let reason = UnreadableReason::Io(error);
                self.inventory.unreadable.push(Unreadable { path: path.to_owned(), reason });
                return Ok(());
            }
        };
        if metadata.is_dir() {
            if let Err(error) = self.folder(path, &metadata, false) {
                let error = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let reason = UnreadableReason::Io(error);
                self.inventory.unreadable.push(Unreadable { path: path.to_owned(), reason });
            }
            return Ok(());
        }
        match kind {
            FileKind::Segment { name, partial } if metadata.is_file() => {
                let file = (metadata.dev(), metadata.ino());
                let name = Some((name, partial));
                self.candidates.push(Candidate { path: path.to_owned(), file, name, explicit: false });
            }
            FileKind::Pack if metadata.is_file() => {
                let file = (metadata.dev(), metadata.ino());
                self.candidates.push(Candidate { path: path.to_owned(), file, name: None, explicit: false });
            }
            _ => self.ignore_kind(path, kind),
        }
        Ok(())
    }

    fn ignore_kind(&mut self, path: &Path, kind: FileKind) {
        let reason = match kind {
            FileKind::History => IgnoredReason::History,
            FileKind::BackupLabel => IgnoredReason::BackupLabel,
            FileKind::Segment { .. } | FileKind::Pack | FileKind::Other => IgnoredReason::OtherName,
        };
        self.ignore(path, reason);
    }

    fn ignore(&mut self, path: &Path, reason: IgnoredReason) {
        self.inventory.ignored.push(Ignored { path: path.to_owned(), reason });
    }
}

enum Look {
    Segment(SegmentFile),
    Spare(Spare),
    /// A file that `walden compress` wrote.
    Members(Vec<Member>),
}

fn look_into(candidate: &Candidate) -> Result<Look, UnreadableReason> {
    let peek = open::peek(&candidate.path).map_err(UnreadableReason::Io)?;
    if peek.size == 0 {
        return Err(UnreadableReason::Empty);
    }
    let (compression, start) = match peek.content {
        Ok(content) => content,
        Err(Foreign::Encrypted(by)) => return Err(UnreadableReason::Encrypted(by)),
        Err(Foreign::Format(format)) => return Err(UnreadableReason::Format(format)),
        Err(Foreign::Unknown(magic)) => {
            let members = compressed::members(&candidate.path).map_err(UnreadableReason::Io)?;
            return members.map(Look::Members).ok_or_else(|| of_magic(u16::from_le_bytes(magic)));
        }
    };
    let file = Content { path: &candidate.path, compression, member: None, size_on_disk: peek.size };
    look_into_content(file, candidate.name, &start)
}

/// A member as a segment; `None` if it is not named like one. `before` is the segment found before it.
///
/// The position of a member coded as records is in its head, but the version and the cluster are not. They are those of the
/// segment before if the two are consecutive; else the start of the content is decoded. Reading checks them in every page.
fn look_into_member(
    candidate: &Candidate,
    member: &Member,
    before: Option<&SegmentFile>,
) -> Result<Option<Look>, UnreadableReason> {
    let name = match FileKind::of(&member.name) {
        FileKind::Segment { name, partial } => Some((name, partial)),
        _ if member.place.is_some() => None,
        _ => return Ok(None),
    };
    let file = Content {
        path: &candidate.path,
        compression: Compression::Walden,
        member: Some(member),
        size_on_disk: member.stored,
    };
    let is_next = |before: &&SegmentFile| {
        let is_of_same_archive = before.path.parent() == candidate.path.parent();
        is_of_same_archive
            && before.compression == Compression::Walden
            && member.place.zip(name).is_some_and(|(place, (name, _))| {
                before.start.plus(before.segment_size.bytes()) == place.start
                    && before.segment_size == place.size
                    && before.name.timeline == name.timeline
                    && name.start(place.size) == Some(place.start)
            })
    };
    if let (Some(before), Some((name, partial))) = (before.filter(is_next), name) {
        let start = before.start.plus(before.segment_size.bytes());
        return Ok(Some(Look::Segment(SegmentFile {
            path: candidate.path.clone(),
            name,
            partial,
            member: Some(member.number),
            needs_previous: !member.is_keyframe,
            size_on_disk: member.stored,
            start,
            ..before.clone()
        })));
    }
    let start =
        compressed::start(&candidate.path, member.number, PAGE_BYTES).map_err(UnreadableReason::Io)?;
    look_into_content(file, name, &start).map(Some)
}

/// Bytes of a member's content that are decoded to look into it.
const PAGE_BYTES: usize = 8 << 10;

/// Where content is from.
struct Content<'a> {
    path: &'a Path,
    compression: Compression,
    member: Option<&'a Member>,
    size_on_disk: u64,
}

/// Looks into the start of a segment's content.
fn look_into_content(
    file: Content<'_>,
    name: Option<(SegmentName, bool)>,
    start: &[u8],
) -> Result<Look, UnreadableReason> {
    let (path, size_on_disk) = (file.path.to_owned(), file.size_on_disk);
    if start.iter().all(|byte| *byte == 0) {
        let (name, _) = name.ok_or(UnreadableReason::NotWal)?;
        return Ok(Look::Spare(Spare { path, name, size_on_disk, kind: SpareKind::Preallocated }));
    }
    let address = match PageHeader::parse(start) {
        Ok(header) if header.long.is_none() => return Err(UnreadableReason::MidSegment(header.address)),
        Ok(header) => header.address,
        Err(PageHeaderError::Magic(magic, _)) => return Err(of_magic(magic)),
        Err(other) => return Err(UnreadableReason::Header(FaultKind::PageHeader(other))),
    };
    let info = StreamInfo::of_segment(start).map_err(UnreadableReason::Header)?;
    let size = info.segment_size;
    if size.offset_of(address) != 0 {
        return Err(UnreadableReason::MidSegment(address));
    }
    let holds = SegmentName::new(info.timeline, size.segment_of(address), size);
    let (name, partial) = name.unwrap_or((holds, false));
    match name.start(size) {
        // The first segment of a timeline begins with pages of the one before.
        Some(start) if start == address && info.timeline <= name.timeline => {}
        Some(start) if start > address => {
            let kind = SpareKind::Recycled(holds);
            return Ok(Look::Spare(Spare { path, name, size_on_disk, kind }));
        }
        _ => return Err(UnreadableReason::Misnamed(holds)),
    }
    Ok(Look::Segment(SegmentFile {
        path,
        name,
        partial,
        compression: file.compression,
        member: file.member.map(|member| member.number),
        store: None,
        needs_previous: file.member.is_some_and(|member| !member.is_keyframe),
        size_on_disk,
        start: address,
        version: info.version,
        system_id: info.system_id,
        segment_size: size,
        page_bytes: info.page_bytes,
    }))
}

fn of_magic(magic: u16) -> UnreadableReason {
    match Major::from_magic(magic) {
        Err(UnreadableMagic::NotWal) => UnreadableReason::NotWal,
        Err(what) => UnreadableReason::Magic(magic, what),
        // The magic is right and what follows is not.
        Ok(_) => UnreadableReason::Header(FaultKind::PageHeader(PageHeaderError::Short)),
    }
}

impl std::error::Error for Unreadable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            UnreadableReason::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.reason {
            UnreadableReason::Io(error) => write!(f, "{error}"),
            UnreadableReason::NoFile => {
                write!(
                    f,
                    "{path}: a pipe or device, and segments are read more than once; write it to a file first"
                )
            }
            UnreadableReason::Empty => write!(f, "{path}: the file is empty"),
            UnreadableReason::Encrypted(by) => {
                write!(
                    f,
                    "{path}: encrypted {by}; let the program that stored it fetch it, then read that file"
                )
            }
            UnreadableReason::Format(format) => {
                write!(f, "{path}: its format, {format}, is not one that Walden reads; unpack it first")
            }
            UnreadableReason::Magic(magic, what) => write!(f, "{path}: {what} (page magic {magic:04X})"),
            UnreadableReason::Header(fault) => {
                write!(f, "{path}: damaged at its first page: expected {}", expected(*fault))
            }
            UnreadableReason::MidSegment(lsn) => {
                write!(
                    f,
                    "{path}: starts at {lsn}, in the middle of a segment; Walden reads segments from their start"
                )
            }
            UnreadableReason::Misnamed(holds) => {
                write!(
                    f,
                    "{path}: holds another segment than its name says: {holds}; give it that name to read it"
                )
            }
            UnreadableReason::NotWal => write!(
                f,
                "{path}: not a WAL segment, nor one compressed by gzip, lz4, zstd, xz, lzma, bzip2 or brotli; \
                 it may be encrypted or damaged"
            ),
        }
    }
}

fn expected(fault: FaultKind) -> String {
    let lsn = Lsn::INVALID;
    walden_format::fault::Fault { lsn, at: lsn, kind: fault }.expected()
}

impl fmt::Display for IgnoredReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IgnoredReason::History => "a timeline's history",
            IgnoredReason::BackupLabel => "a backup's label",
            IgnoredReason::OtherName => "not named like a segment",
            IgnoredReason::BaseBackup => "a base backup",
            IgnoredReason::Loop => "already searched",
            IgnoredReason::OtherTimeline => "of another timeline",
        })
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.segments {
            1 => write!(f, "segment {} is missing", self.first),
            many => write!(f, "segments {} to {} are missing ({many} of them)", self.first, self.last),
        }
    }
}

fn no_segments(paths: &[PathBuf], inventory: &Inventory, unreadable: Option<&Unreadable>) -> String {
    let places: Vec<_> = paths.iter().take(3).map(|path| path.display().to_string()).collect();
    let places = places.join(", ") + if paths.len() > 3 { ", ..." } else { "" };
    let mut text = format!("no WAL segments in {places}");
    let (files, _) = inventory.spare_bytes();
    if let Some(first) = unreadable {
        text += &format!(" that can be read: {first}");
        if !inventory.unreadable.is_empty() {
            text += &format!(" (and {} more files)", inventory.unreadable.len());
        }
    } else if let [Spare { name, kind: SpareKind::Recycled(holds), .. }, ..] = inventory.spares.as_slice() {
        text += &format!(
            ": {files} files that the server keeps for later use; {name} still holds {holds}, which this file is no \
             longer: give it that name to read it"
        );
    } else if files > 0 {
        text += &format!(": {files} files that are still all zeros, which the server keeps for later use");
    } else {
        text += ", expected files named like 000000010000000000000001";
    }
    text
}
