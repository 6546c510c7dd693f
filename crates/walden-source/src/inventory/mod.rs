//! Finds segments in files and folders, and sorts them into runs without gaps.
//!
//! The folders of PostgreSQL and of the archivers are supported: a data directory, `pg_wal`, plain archives,
//! pgBackRest (`archive/STANZA/15-1/0000000100000000/NAME-sha1.zst`), WAL-G (`wal_005/NAME.lz4`), Barman
//! (`wals/0000000100000000/NAME`), pgmoneta, pg_receivewal, and the tar files of pg_basebackup. In a folder,
//! a file's name decides whether it is a segment; everything else depends on its content.

mod content;
mod later;
mod search;
mod skipped;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::version::Major;

use self::content::{Found, Look, TarContent, look_into, look_into_member};
use self::later::LastSegments;
use self::search::{Candidate, Candidates, candidates_in};
pub use self::skipped::{Ignored, IgnoredReason, InventoryError, Unreadable, UnreadableReason};
use crate::compressed::Member;
use crate::compression::Compression;
use crate::denied::with_user;
pub use crate::file_kind::FileKind;
use crate::held::{self, FindSegment, is_content_of};
use crate::open::{self, fill};
use crate::segment_file::Key;
pub use crate::segment_file::SegmentFile;
use crate::workers::map_in_order;

/// The segments and other files found in a set of paths.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The segments: sorted by cluster, timeline and position; each run without gaps.
    pub runs: Vec<Run>,
    /// Files recycled or preallocated for future segments.
    pub spares: Vec<Spare>,
    /// Segments that were found twice. One file of each is in a run.
    pub duplicates: Vec<Duplicate>,
    /// Files named like segments that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Other files and folders that were skipped.
    pub ignored: Vec<Ignored>,
    /// Timeline histories in tar files: their paths there and their contents.
    pub histories: Vec<(PathBuf, Vec<u8>)>,
    /// Whether the runs are one WAL stream along a timeline and its ancestors; see [`Inventory::follow`].
    pub is_one_log: bool,
}

/// Consecutive segments of one timeline of one cluster, written by one version. A segment at whose start
/// `pg_resetwal` restarted the WAL is the first of its run.
#[derive(Clone, Debug)]
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

/// A file that is recycled or preallocated for a future segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spare {
    /// Path of the file.
    pub path: PathBuf,
    /// The segment name of the file.
    pub name: SegmentName,
    /// Whether the file is named `.partial`.
    pub partial: bool,
    /// Size of the file in bytes.
    pub size_on_disk: u64,
    /// The cluster's system identifier; `None` for zeros.
    pub system_id: Option<u64>,
    /// Whether it was recycled or preallocated.
    pub kind: SpareKind,
}

/// Why a segment file has no WAL for its name yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpareKind {
    /// The file contains an earlier segment, or a segment of an earlier timeline, whose name is given:
    /// PostgreSQL renames files that it no longer needs.
    Recycled(SegmentName),
    /// Zeros.
    Preallocated,
}

/// A segment that is in more than one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Duplicate {
    /// The file in the run.
    pub kept: SegmentFile,
    /// The file that is not in a run.
    pub dropped: SegmentFile,
}

/// Segments missing between two runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The cluster's system identifier.
    pub system_id: u64,
    /// The first missing segment.
    pub first: SegmentName,
    /// The last missing segment.
    pub last: SegmentName,
    /// Number of missing segments.
    pub segments: u64,
}

impl Inventory {
    /// Finds the segments in files and folders, on the calling thread; see [`Inventory::with_threads`].
    ///
    /// # Errors
    /// See [`Inventory::with_threads`].
    pub fn search<P: AsRef<Path>>(paths: &[P]) -> Result<Inventory, InventoryError> {
        Inventory::with_threads(paths, 1)
    }

    /// Finds the segments in files and folders; folders are searched recursively. Reads the first bytes of
    /// each file on up to `threads` threads. Opening files is mostly waiting, so it can be faster with more
    /// threads than cores.
    ///
    /// # Errors
    /// A path that cannot be read, a file in `paths` that is not a segment, or no segment at all. Files
    /// within folders that cannot be read are in [`Inventory::unreadable`] instead.
    pub fn with_threads<P: AsRef<Path>>(paths: &[P], threads: usize) -> Result<Inventory, InventoryError> {
        Inventory::with_segments(paths, Vec::new(), Vec::new(), threads)
    }

    /// Takes the inventory as [`Inventory::with_threads`] does, with additional `segments` from a store,
    /// which are not in `paths`.
    ///
    /// If a running server recycles a file before it has been read, the segment is read from an archive in
    /// `archives`, or from a path in `paths`, that has it by then.
    ///
    /// # Errors
    /// The errors of [`Inventory::with_threads`].
    pub fn with_segments<P: AsRef<Path>>(
        paths: &[P],
        segments: Vec<SegmentFile>,
        mut archives: Vec<Arc<dyn FindSegment>>,
        threads: usize,
    ) -> Result<Inventory, InventoryError> {
        let mut inventory = Inventory::default();
        let Candidates { files: candidates, mut gone } = candidates_in(paths, &mut inventory)?;
        let of_store = |file: SegmentFile| Found { first_page: file.name.timeline, file };
        let mut segments: Vec<Found> = segments.into_iter().map(of_store).collect();
        segments.reserve(candidates.len());
        let mut spares = Vec::new();
        for (candidate, look) in candidates.iter().zip(map_in_order(&candidates, threads, look_into)) {
            match look {
                Ok(Look::Segment(segment)) => segments.push(segment),
                Ok(Look::Spare(spare)) => spares.push((candidate, spare)),
                Ok(Look::Members(members)) => inventory.add_members(candidate, &members, &mut segments)?,
                Ok(Look::Tar(tar)) => inventory.add_tar(candidate, tar, &mut segments)?,
                // A running server removes and renames files at any time.
                Err(UnreadableReason::Io(error))
                    if !candidate.explicit && error.kind() == io::ErrorKind::NotFound =>
                {
                    gone.push(candidate.path.clone());
                }
                Err(reason) => {
                    let path = candidate.path.clone();
                    let reason = match reason {
                        UnreadableReason::Io(error) => UnreadableReason::Io(with_user(&path, error)),
                        reason => reason,
                    };
                    let unreadable = Unreadable { path, reason };
                    if candidate.explicit {
                        return Err(InventoryError::Unreadable(unreadable));
                    }
                    inventory.unreadable.push(unreadable);
                }
            }
        }
        inventory.add_spares(spares, &mut segments);
        // A server removes the older segments soon after one that is gone.
        segments.retain(|found| !gone.iter().any(|gone| is_older(&found.file, gone)));
        if segments.is_empty() {
            let paths = paths.iter().map(|path| path.as_ref().to_owned()).collect();
            let first_unreadable = (!inventory.unreadable.is_empty()).then(|| inventory.unreadable.remove(0));
            let inventory = Box::new(inventory);
            return Err(InventoryError::NoSegments { paths, inventory, first_unreadable });
        }
        inventory.sort(segments);
        inventory.find_lost();
        let paths = Paths(paths.iter().map(|path| path.as_ref().to_owned()).collect());
        archives.push(Arc::new(paths));
        held::hold(inventory.runs.iter_mut().map(|run| &mut run.segments), archives);
        Ok(inventory)
    }

    /// Adds files that had no WAL for their name when they were first read.
    ///
    /// A running server may meanwhile write WAL to a file that was kept for a future segment, and then to a
    /// later segment, which is read after the file.
    fn add_spares(&mut self, spares: Vec<(&Candidate, Spare)>, segments: &mut Vec<Found>) {
        if spares.is_empty() {
            return;
        }
        let last = LastSegments::collect(segments.iter().map(|found| &found.file));
        let (again, kept): (Vec<_>, Vec<_>) =
            spares.into_iter().partition(|(_, spare)| last.behind(spare).is_some());
        self.spares.extend(kept.into_iter().map(|(_, spare)| spare));
        for (candidate, spare) in again {
            match look_into(candidate) {
                Ok(Look::Segment(segment)) => segments.push(segment),
                // The server has removed the file.
                Err(UnreadableReason::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                _ => self.spares.push(spare),
            }
        }
    }

    /// Reports files without WAL for their name if later segments in their folder have WAL. A segment that is
    /// also in another file is not lost.
    fn find_lost(&mut self) {
        if self.spares.is_empty() {
            return;
        }
        let spares = std::mem::take(&mut self.spares);
        let dropped = self.duplicates.iter().map(|duplicate| &duplicate.dropped);
        let last = LastSegments::collect(self.segments().chain(dropped));
        let found: HashSet<(u64, SegmentName)> =
            self.segments().map(|segment| (segment.system_id, segment.name)).collect();
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for spare in spares {
            let later = last.behind(&spare).filter(|later| !found.contains(&(later.system_id, spare.name)));
            let places = later.and_then(|later| Some((later.name, spare.name.start(later.segment_size)?)));
            let Some((later, start)) = places else {
                kept.push(spare);
                continue;
            };
            let Spare { path, name, kind, .. } = spare;
            let reason = UnreadableReason::Lost { name, start, found: kind, later };
            lost.push(Unreadable { path, reason });
        }
        self.spares = kept;
        self.unreadable.extend(lost);
    }

    /// Adds the segments in a file that `walden compress` wrote.
    fn add_members(
        &mut self,
        candidate: &Candidate,
        members: &[Member],
        segments: &mut Vec<Found>,
    ) -> Result<(), InventoryError> {
        for member in members {
            let before = segments.last().map(|found| &found.file);
            match look_into_member(candidate, member, before) {
                Ok(Some(Look::Segment(segment))) => segments.push(segment),
                Ok(Some(Look::Spare(spare))) => self.spares.push(spare),
                Ok(Some(Look::Members(_) | Look::Tar(_)) | None) => {
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

    /// Adds the segments in a tar file. If the file is cut off, adds those before the cut.
    fn add_tar(
        &mut self,
        candidate: &Candidate,
        tar: TarContent,
        segments: &mut Vec<Found>,
    ) -> Result<(), InventoryError> {
        let before = segments.len();
        for look in tar.looks {
            match look {
                Ok(Look::Segment(segment)) => segments.push(segment),
                Ok(Look::Spare(spare)) => self.spares.push(spare),
                Ok(Look::Members(_) | Look::Tar(_)) => {}
                Err(unreadable) => self.unreadable.push(unreadable),
            }
        }
        let in_tar = |(name, content)| (candidate.path.join(name), content);
        self.histories.extend(tar.histories.into_iter().map(in_tar));
        if let Some(reason) = tar.fault {
            let unreadable = Unreadable { path: candidate.path.clone(), reason };
            if candidate.explicit && segments.len() == before {
                return Err(InventoryError::Unreadable(unreadable));
            }
            self.unreadable.push(unreadable);
        }
        Ok(())
    }

    /// Returns all segments of all runs.
    pub fn segments(&self) -> impl Iterator<Item = &SegmentFile> {
        self.runs.iter().flat_map(|run| &run.segments)
    }

    /// Returns uncompressed files that are longer than their segment. The additional bytes are not read.
    pub fn longer(&self) -> impl Iterator<Item = &SegmentFile> {
        self.segments().filter(|file| {
            file.compression == Compression::None && file.size_on_disk > file.segment_size.bytes()
        })
    }

    /// Returns number and bytes on disk of the files that have no WAL yet.
    pub fn spare_bytes(&self) -> (usize, u64) {
        (self.spares.len(), self.spares.iter().map(|spare| spare.size_on_disk).sum())
    }

    /// Returns the gaps between runs of the same timeline.
    ///
    /// There is no gap between a timeline and its parent: both have the segment of the switch.
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
            // If the timeline changes in the gap, the last missing segment is on the later one.
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

    /// Returns the segments at whose starts `pg_resetwal` restarted the WAL after another run. It may have
    /// skipped the names of segments.
    pub fn restarts(&self) -> impl Iterator<Item = &SegmentFile> {
        let follows = |pair: &&[Run]| match pair {
            [left, right] => left.system_id == right.system_id && left.end() <= right.start(),
            _ => false,
        };
        let first = self.runs.windows(2).filter(follows).filter_map(|pair| pair.get(1)?.segments.first());
        first.filter(|segment| segment.is_restarted)
    }

    fn sort(&mut self, mut segments: Vec<Found>) {
        // If two files have the same segment, the one in an archive is read: a running server uses its own
        // again for a later segment.
        let order = |segment: &SegmentFile| {
            let is_of_server = segment.store.is_none();
            (segment.key(), segment.start, segment.partial, is_of_server, segment.compression)
        };
        segments.sort_by(|Found { file: a, .. }, Found { file: b, .. }| {
            order(a).cmp(&order(b)).then_with(|| a.path.cmp(&b.path))
        });
        let mut first: Option<(Option<Key>, Lsn)> = None;
        for Found { file: segment, first_page } in segments {
            // Only the first segment of a timeline starts with a page of an earlier timeline. Any other file
            // that starts so is a segment of the earlier timeline that a promoted server has recycled. The
            // page may even have the address that belongs to the file's new name.
            let is_first = match first {
                Some((key, start)) if key == segment.key() => start == segment.start,
                _ => true,
            };
            if is_first {
                first = Some((segment.key(), segment.start));
            } else if (1..segment.name.timeline).contains(&first_page) {
                let size = segment.segment_size;
                let holds = SegmentName::new(first_page, size.segment_of(segment.start), size);
                let SegmentFile { path, name, partial, size_on_disk, system_id, .. } = segment;
                let (system_id, kind) = (Some(system_id), SpareKind::Recycled(holds));
                self.spares.push(Spare { path, name, partial, size_on_disk, system_id, kind });
                continue;
            }
            let run = self.runs.last_mut().filter(|run| run.key() == segment.key());
            let last = run.as_ref().and_then(|run| run.segments.last()).map(|last| last.start);
            match (run, last) {
                (Some(run), Some(start)) if start == segment.start => {
                    let kept = run.segments.last().cloned();
                    self.duplicates.extend(kept.map(|kept| Duplicate { kept, dropped: segment }));
                }
                (Some(run), Some(start))
                    if start.plus(run.segment_size.bytes()) == segment.start && !segment.is_restarted =>
                {
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

/// Files and folders that are searched again.
#[derive(Debug)]
struct Paths(Vec<PathBuf>);

impl FindSegment for Paths {
    fn find(&self, segment: &SegmentFile) -> io::Result<Option<Vec<u8>>> {
        for path in &self.0 {
            // A named file may be gone.
            let Ok(candidates) = candidates_in(&[path], &mut Inventory::default()) else { continue };
            let named = candidates.files.iter().filter(|one| one.name == Some((segment.name, false)));
            for candidate in named {
                let Ok(Look::Segment(Found { file, .. })) = look_into(candidate) else { continue };
                let mut content = vec![0; usize::try_from(file.segment_size.bytes()).unwrap_or(0)];
                let Ok(mut reader) = open::open(&file) else { continue };
                let (got, _) = fill(&mut reader, &mut content);
                content.truncate(got);
                if is_content_of(&content, segment) {
                    return Ok(Some(content));
                }
            }
        }
        Ok(None)
    }
}

/// Returns whether a segment precedes a removed one of the same folder and timeline.
fn is_older(segment: &SegmentFile, gone: &Path) -> bool {
    let name_of = |path: &Path| match FileKind::from_name(path.file_name()?.to_str()?) {
        FileKind::Segment { name, .. } => Some(name),
        _ => None,
    };
    let is_before = |gone: SegmentName| segment.name.timeline == gone.timeline && segment.name < gone;
    segment.path.parent() == gone.parent() && name_of(gone).is_some_and(is_before)
}

impl Run {
    /// Returns where the first segment starts.
    pub fn start(&self) -> Lsn {
        self.segments.first().map_or(Lsn::INVALID, |segment| segment.start)
    }

    /// Returns where the last segment ends. The last segment of a running server is not full.
    pub fn end(&self) -> Lsn {
        self.segments.last().map_or(Lsn::INVALID, |segment| segment.start.plus(segment.segment_size.bytes()))
    }

    /// Returns the geometry of the segments, which locates page headers and records.
    pub fn geometry(&self) -> Geometry {
        let first = self.segments.first();
        let page_bytes = first.map_or(Geometry::DEFAULT_PAGE_BYTES, |segment| segment.page_bytes);
        let default = Geometry::with_default_pages(self.segment_size);
        Geometry::new(self.segment_size, page_bytes).unwrap_or(default)
    }

    /// Returns the total size of the segments' files in bytes.
    pub fn size_on_disk(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size_on_disk).sum()
    }

    fn key(&self) -> Option<Key> {
        self.segments.first().and_then(SegmentFile::key)
    }
}

impl Duplicate {
    /// Returns whether the decompressed contents of both files are equal; a `.partial` file is compared only
    /// up to its end.
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

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.segments {
            1 => write!(f, "segment {} is missing", self.first),
            many => write!(f, "segments {} to {} are missing ({many} of them)", self.first, self.last),
        }
    }
}
