//! Exports archived files as plain files in a folder, under PostgreSQL's names.
//!
//! A file gets its name once it is complete and durable, and never replaces a different one. An existing file
//! with the same content counts as done, so an interrupted export resumes when it is run again. The only
//! exception is a segment that was incomplete when it was exported: it is replaced by one that contains more
//! of the same WAL.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use walden_format::lsn::{SegmentName, SegmentSize, Timeline};
use walden_source::{error_text, regular_file};

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::inventory::gaps::{self, Acknowledgement, Gap};
use crate::inventory::parts;
use crate::inventory::snapshot::Snapshot;
use crate::objects::name::{ArchivedFile, BACKUP, HISTORY, Object, WAL};
use crate::objects::object::{self, Finding};
use crate::pending;
use crate::restore::get::{self, GetError, Output, PackMembers};
use crate::restore::log::{Log, stretches};
use crate::store::Store;

/// The files to export.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Exports only this timeline and its ancestors. By default, every timeline is exported.
    pub timeline: Option<Timeline>,
    /// Segment number of the first exported segment; `None` starts with the first archived segment.
    pub from: Option<u64>,
    /// Segment number of the last exported segment; `None` ends with the last archived segment.
    pub to: Option<u64>,
}

/// The plan for an export.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The files with their objects and stored sizes. Files of the same pack are adjacent.
    pub files: Vec<(ArchivedFile, Object, u64)>,
    /// Incomplete segments, which the archive contains only in parts.
    pub begun: Vec<SegmentName>,
    /// Missing segments among the files.
    pub gaps: Vec<Gap>,
    /// Segment size.
    pub size: SegmentSize,
}

/// Result of an export.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Exported {
    /// Number of files written.
    pub written: u64,
    /// Number of files that already existed with the same content.
    pub unchanged: u64,
    /// Number of segments among both.
    pub segments: u64,
    /// Number of bytes written.
    pub written_bytes: u64,
    /// Files that were not written because their objects are damaged: the objects and the reasons.
    pub damaged: Vec<Finding>,
}

/// Reasons for a failed export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The archive cannot be read, or a file cannot be written.
    #[error(transparent)]
    Get(#[from] GetError),
    /// A different file has the same name.
    #[error("cannot write {}: expected no file of this name, or one with the archived content, found one with another content", .0.display())]
    Conflict(PathBuf),
}

walden_format::diagnostics! { ExportError {
    Self::Get(error) => of(error),
    Self::Conflict(_) => "export-conflict": "nothing was overwritten; export into an empty folder, and compare the two files",
} }

impl Plan {
    /// Chooses files from a listing of the archive.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn select(archive: &Archive, selection: &Selection) -> Result<Plan, ArchiveError> {
        let size = archive.segment_size()?;
        // Without a suitable private key, every object would be reported as unreadable.
        archive.unlock()?;
        let range = selection.from.unwrap_or(0)..=selection.to.unwrap_or(u64::MAX);
        let is_whole = selection.from.is_none() && selection.to.is_none();
        // Listed before the segments: a segment that is archived in the meantime has no more parts, and is
        // exported as an archived one.
        let with_parts = parts::segments(archive)?;
        let mut plan = Plan { files: Vec::new(), begun: Vec::new(), gaps: Vec::new(), size };
        let timelines = match selection.timeline {
            Some(timeline) => BTreeSet::from([timeline]),
            None => timelines(archive, &with_parts)?,
        };
        let acknowledged = gaps::all_acknowledged(archive)?;
        // The export reports damaged histories later, with the other damaged objects.
        let (histories, _) = archive.undamaged_histories()?;
        let followed = |timeline| stretches(timeline, histories.get(&timeline));
        for listed in [HISTORY, BACKUP] {
            archive.store().list(listed, &mut |listed| {
                let Some(object @ Object::File(file)) = Object::parse_key(&listed.key) else { return };
                let is_followed = selection.timeline.is_none_or(|timeline| {
                    followed(timeline).iter().any(|stretch| stretch.timeline == file.timeline())
                });
                let is_in_range = match file {
                    ArchivedFile::Backup(name, _) => {
                        name.number(size).is_some_and(|number| range.contains(&number))
                    }
                    _ => true,
                };
                if is_followed && is_in_range {
                    plan.files.push((file, object, listed.bytes));
                }
            })?;
        }
        plan.files.sort();
        for timeline in timelines {
            let log = match selection.timeline {
                Some(_) => Log::find(archive, Some(timeline), range.clone())?,
                None => Log::find_single_timeline(archive, timeline, range.clone())?,
            };
            plan.add_begun(&log, &with_parts, &range);
            plan.add_log(&log, if is_whole { None } else { Some(&range) }, &acknowledged);
        }
        if selection.timeline.is_none() {
            plan.add_gaps_between_timelines(&histories, &range, &acknowledged);
        }
        Ok(plan)
    }

    /// Returns the plan for the files that a recovery needs.
    ///
    /// # Errors
    /// Errors of the store, and a history that was removed.
    pub fn for_recovery(
        archive: &Archive,
        recovery: &crate::restore::recovery::Recovery,
    ) -> Result<Plan, ArchiveError> {
        let begun = recovery.begun.into_iter().collect();
        let mut plan = Plan { files: Vec::new(), begun, gaps: Vec::new(), size: recovery.log.size };
        for file in recovery.files() {
            if let ArchivedFile::History(_) = file
                && let Some((object, bytes)) = archive.find(file)?
            {
                plan.files.push((file, object, bytes));
            }
        }
        plan.add_log(&recovery.log, None, &gaps::all_acknowledged(archive)?);
        Ok(plan)
    }

    /// Adds the WAL's segments that the archive contains only in parts.
    fn add_begun(&mut self, log: &Log, with_parts: &[SegmentName], range: &RangeInclusive<u64>) {
        let is_archived = |number| log.segments.iter().any(|segment| segment.number == number);
        let follows = |name: &&SegmentName| {
            name.number(self.size).is_some_and(|number| {
                range.contains(&number) && name.timeline == log.timeline_of(number) && !is_archived(number)
            })
        };
        self.begun.extend(with_parts.iter().filter(follows));
    }

    /// Adds segments, and the gaps between them and up to the bounds of the requested range.
    fn add_log(&mut self, log: &Log, range: Option<&RangeInclusive<u64>>, acknowledged: &[Acknowledgement]) {
        self.files.extend(log.segments.iter().map(|segment| (segment.file(), segment.object, segment.bytes)));
        self.gaps.extend(log.gaps(acknowledged));
        let (Some(range), Some(first), Some(last)) = (range, log.segments.first(), log.segments.last())
        else {
            return;
        };
        if *range.start() > 0 && *range.start() < first.number {
            self.gaps.extend(log.missing(*range.start()..=first.number - 1, acknowledged));
        }
        if *range.end() < u64::MAX && last.number < *range.end() {
            self.gaps.extend(log.missing(last.number + 1..=*range.end(), acknowledged));
        }
    }

    /// Adds gaps between timelines, and gaps of timelines without any remaining object, which the WAL of a
    /// single timeline does not show.
    fn add_gaps_between_timelines(
        &mut self,
        histories: &BTreeMap<Timeline, History>,
        range: &RangeInclusive<u64>,
        acknowledged: &[Acknowledgement],
    ) {
        let objects: BTreeSet<Object> = self.files.iter().map(|&(_, object, _)| object).collect();
        let number = |name: &str| SegmentName::parse(name)?.number(self.size);
        let known: Vec<(String, String)> =
            self.gaps.iter().map(|gap| (gap.first.clone(), gap.last.clone())).collect();
        // Names on one timeline sort by position.
        let is_known = |gap: &Gap| known.iter().any(|(first, last)| *first <= gap.last && gap.first <= *last);
        let mut found = Vec::new();
        for (timeline, gap) in gaps::missing_among(objects, histories, &BTreeMap::new(), self.size, &[]) {
            let (Some(first), Some(last)) = (number(&gap.first), number(&gap.last)) else { continue };
            let (first, last) = (first.max(*range.start()), last.min(*range.end()));
            if first <= last && !is_known(&gap) {
                let name = |number| SegmentName::new(timeline, number, self.size);
                found.extend(gaps::divide((name(first), name(last)), self.size, acknowledged));
            }
        }
        self.gaps.extend(found);
        self.gaps.sort_by_cached_key(|gap| gap.first.clone());
    }

    /// Returns the number of segments among the files.
    pub fn segments(&self) -> u64 {
        let is_segment = |file: &&(ArchivedFile, Object, u64)| {
            matches!(file.0, ArchivedFile::Segment(_) | ArchivedFile::Partial(_))
        };
        (self.files.iter().filter(is_segment).count() + self.begun.len()) as u64
    }
}

/// Returns all timelines that have segments or parts of segments.
fn timelines(archive: &Archive, with_parts: &[SegmentName]) -> Result<BTreeSet<Timeline>, ArchiveError> {
    let listed = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    let begun = with_parts.iter().map(|name| name.timeline);
    Ok(listed.objects.keys().map(|object| object.timeline()).chain(begun).collect())
}

/// Writes files into a folder, which is created if it is missing. Calls `progress` with the number of
/// finished files. Files of damaged objects are omitted and reported in the result, so that a user can still
/// rescue all other files.
///
/// # Errors
/// The first error other than a damaged object. Completed files stay.
pub fn export(
    archive: &Archive,
    plan: &Plan,
    folder: &Path,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Exported, ExportError> {
    let write = |source| GetError::Write { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(write)?;
    // The files of one pack are one unit of work, because each file is decoded with the context of the
    // previous files.
    let is_one = |a: &(ArchivedFile, Object, u64), b: &(ArchivedFile, Object, u64)| {
        a.1 == b.1 && matches!(a.1, Object::Pack(_))
    };
    let work: Vec<_> = plan.files.chunk_by(is_one).collect();
    let (next, is_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new((Exported::default(), None));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, work.len().max(1)) {
            scope.spawn(|| {
                while !is_failed.load(Ordering::Relaxed)
                    && let Some(files) = work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = export_object(archive, files, folder, &mut |file, outcome| {
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.0.add(file, outcome);
                        progress(done.0.written + done.0.unchanged);
                    });
                    if let Err(error) = result {
                        is_failed.store(true, Ordering::Relaxed);
                        done.lock().unwrap_or_else(PoisonError::into_inner).1.get_or_insert(error);
                    }
                }
            });
        }
    });
    let (mut exported, error) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    match error {
        Some(error) => Err(error),
        None => {
            for &name in &plan.begun {
                export_begun(archive, name, plan.size, folder, &mut |file, outcome| {
                    exported.add(file, outcome);
                    progress(exported.written + exported.unchanged);
                })?;
            }
            exported.damaged.sort();
            walden_source::sync(folder).map_err(write)?;
            Ok(exported)
        }
    }
}

impl Exported {
    fn add(&mut self, file: ArchivedFile, outcome: Outcome) {
        match outcome {
            Outcome::Written(bytes) => {
                self.written += 1;
                self.written_bytes += bytes;
            }
            Outcome::Unchanged => self.unchanged += 1,
            Outcome::Damaged(finding) => {
                self.damaged.push(finding);
                return;
            }
        }
        self.segments += u64::from(matches!(file, ArchivedFile::Segment(_) | ArchivedFile::Partial(_)));
    }
}

/// Result for one file.
enum Outcome {
    /// The file was written with this number of bytes.
    Written(u64),
    /// The file already existed with the same content.
    Unchanged,
    /// The object is damaged.
    Damaged(Finding),
}

impl Outcome {
    fn from_published(written: Option<u64>) -> Outcome {
        written.map_or(Outcome::Unchanged, Outcome::Written)
    }

    /// Returns the result for a file that could not be read.
    ///
    /// # Errors
    /// The error, unless the object is damaged.
    fn from_error(file: ArchivedFile, object: String, source: ArchiveError) -> Result<Outcome, GetError> {
        let is_damage = source.is_damage();
        let error = GetError::Archive { name: file.to_string(), source };
        match is_damage {
            true => Ok(Outcome::Damaged(Finding { object, problem: error_text(&error) })),
            false => Err(error),
        }
    }
}

/// Writes the files of an object. Calls `done` with each file and its result.
fn export_object(
    archive: &Archive,
    files: &[(ArchivedFile, Object, u64)],
    folder: &Path,
    done: &mut dyn FnMut(ArchivedFile, Outcome),
) -> Result<(), ExportError> {
    let mut members: Option<PackMembers<&dyn Store>> = None;
    for &(file, object, bytes) in files {
        let target = folder.join(file.to_string());
        if matches!(object, Object::File(_)) && is_there(archive, object, bytes, &target)? {
            done(file, Outcome::Unchanged);
            continue;
        }
        let new = get::with_listed_object(archive, file, (object, bytes), |object, bytes| {
            // A failure to write the file must not be reported as an error of the archive.
            let mut output = match NewFile::create(&target) {
                Ok(file) => Output { file, failure: None },
                Err(error) => return Ok(Err(error)),
            };
            let decoded = decode(archive, (file, object, bytes), &mut members, &mut output);
            match output.failure {
                Some(source) => Ok(Err(GetError::Write { path: target.clone(), source }.into())),
                None => decoded.map(|()| Ok(output.file)),
            }
        });
        let outcome = match new {
            Ok(new) => Outcome::from_published(new?.publish()?),
            Err(error) => Outcome::from_error(file, archive.stored_name(&object.key()), error)?,
        };
        done(file, outcome);
    }
    Ok(())
}

/// Writes the archived parts of an incomplete segment, filled up with zeros. Calls `done` as
/// [`export_object`] does.
fn export_begun(
    archive: &Archive,
    name: SegmentName,
    size: SegmentSize,
    folder: &Path,
    done: &mut dyn FnMut(ArchivedFile, Outcome),
) -> Result<(), ExportError> {
    let file = ArchivedFile::Segment(name);
    let target = folder.join(file.to_string());
    let failed = |source| GetError::Archive { name: file.to_string(), source };
    let assembled = match parts::assemble(archive, name) {
        Ok(assembled) => assembled,
        Err(error) => {
            done(file, Outcome::from_error(file, parts::folder_of(name), error)?);
            return Ok(());
        }
    };
    if let Some(bytes) = assembled {
        let mut new = NewFile::create(&target)?;
        let written = get::write_begun(&bytes, size, &mut new);
        written.map_err(|source| GetError::Write { path: target, source })?;
        done(file, Outcome::from_published(new.publish()?));
        return Ok(());
    }
    // Archived since its parts were listed.
    match archive.find(file).map_err(failed)? {
        Some((object, bytes)) => export_object(archive, &[(file, object, bytes)], folder, done),
        None => Ok(()),
    }
}

/// Decodes a file. Reuses the open reader if it reads the same pack.
fn decode<'a>(
    archive: &'a Archive,
    (file, object, bytes): (ArchivedFile, Object, u64),
    members: &mut Option<PackMembers<&'a dyn Store>>,
    out: &mut dyn Write,
) -> Result<(), ArchiveError> {
    let (Object::Pack(pack), ArchivedFile::Segment(segment)) = (object, file) else {
        return get::decode(archive, file, object, bytes, out);
    };
    // A pack is reopened after a decoding error, because the position of its reader is undefined.
    let mut open = match members.take().filter(|open| open.pack() == pack) {
        Some(open) => open,
        None => PackMembers::open(archive, pack, bytes)?,
    };
    open.go_to(segment)?;
    open.decode_next(out)?;
    *members = Some(open);
    Ok(())
}

/// Returns whether a file exists with the content stated in its object's summary.
fn is_there(archive: &Archive, object: Object, bytes: u64, target: &Path) -> Result<bool, ExportError> {
    let write = |source| GetError::Write { path: target.to_owned(), source };
    let mut file = match regular_file::open(target) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(write(error).into()),
    };
    let Ok(summary) = object::read_summary(archive.store(), &object.key(), bytes) else { return Ok(false) };
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut file, &mut hasher).map_err(write)?;
    match object::to_hex(hasher.finalize().as_bytes()) == summary.blake3 {
        true => Ok(file.sync_all().map_err(write).map(|()| true)?),
        // The archived content is compared with it when the file is published.
        false => Ok(false),
    }
}

/// A file that is being written under a temporary name.
struct NewFile {
    target: PathBuf,
    file: BufWriter<tempfile::NamedTempFile>,
    bytes: u64,
}

impl NewFile {
    fn create(target: &Path) -> Result<NewFile, ExportError> {
        let file = pending::begin(target, 0o600);
        let file = file.map_err(|source| GetError::Write { path: target.to_owned(), source })?;
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(NewFile { target: target.to_owned(), file, bytes: 0 })
    }

    /// Renames the file to its target. Returns its size, or `None` if the target already exists with the same
    /// content.
    fn publish(self) -> Result<Option<u64>, ExportError> {
        let NewFile { target, file, bytes } = self;
        let write = |source| GetError::Write { path: target.clone(), source };
        let file = file.into_inner().map_err(|error| write(error.into_error()))?;
        file.as_file().sync_all().map_err(write)?;
        match pending::publish(file, &target, false) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                match compare(&target, error.file.path()).map_err(write)? {
                    Content::Same => Ok(None),
                    Content::Beginning => {
                        pending::publish(error.file, &target, true).map_err(|error| write(error.error))?;
                        Ok(Some(bytes))
                    }
                    Content::Other => Err(ExportError::Conflict(target.clone())),
                }
            }
            Err(error) => Err(write(error.error).into()),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// How an existing file compares with a new one.
enum Content {
    Same,
    /// The start of the new content, filled up with zeros: an earlier export of an incomplete segment.
    Beginning,
    Other,
}

fn compare(old: &Path, new: &Path) -> io::Result<Content> {
    if fs::metadata(old)?.len() != fs::metadata(new)?.len() {
        return Ok(Content::Other);
    }
    let (mut old, mut new) = (BufReader::new(File::open(old)?), BufReader::new(File::open(new)?));
    let mut is_same = true;
    loop {
        let (ours, theirs) = (old.fill_buf()?, new.fill_buf()?);
        let length = ours.len().min(theirs.len());
        if length == 0 {
            return Ok(if is_same { Content::Same } else { Content::Beginning });
        }
        let (ours, theirs) = (&ours[..length], &theirs[..length]);
        let same =
            if is_same { ours.iter().zip(theirs).take_while(|(one, other)| one == other).count() } else { 0 };
        is_same &= same == length;
        if ours[same..].iter().any(|&byte| byte != 0) {
            return Ok(Content::Other);
        }
        old.consume(length);
        new.consume(length);
    }
}
