//! Copies files that an archive lacks, and replaces its damaged objects, from other archives of the same
//! cluster.
//!
//! An object none of whose files are there is copied as it is, after decoding it and confirming the hash of
//! each file. Segments of a pack of which the archive has a part are compressed again. Each archive keeps its
//! own keys. Segments come first and in order, so that an interrupted copy leaves no timeline history or
//! backup history file without its WAL. Repeating the copy continues it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::ControlFlow;

use jiff::Timestamp;
use serde::Serialize;
use walden_format::lsn::SegmentName;
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError};
use crate::base_backups::CopiedBackups;
use crate::ingest::intake::{self, Intake};
use crate::ingest::push::PushOptions;
use crate::inventory::gaps::GAPS;
use crate::inventory::pruned::FirstKept;
use crate::inventory::snapshot::{self, Snapshot};
use crate::objects::name::{ArchivedFile, BACKUP, HISTORY, Object, PackName, WAL};
use crate::objects::object::Finding;
use crate::restore::get::{self, PackMembers};
use crate::restore::neighbors;
use crate::store::{Cause, Created, FileHash, MAX_OBJECT_BYTES, StoreError};

/// Called with the number of finished objects and the total of the current source.
pub type Progress<'p> = &'p (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

/// Options for copying.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Compression level of files that are compressed again, 0 to 9.
    pub level: u8,
    /// Number of objects processed concurrently.
    pub threads: usize,
    /// Also copy WAL that `prune` removed from the archive.
    pub all: bool,
}

walden_format::setters!(CopyOptions { level: u8, threads: usize, all: bool });

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions { level: PushOptions::default().level, threads: 2, all: false }
    }
}

/// The result of copying to one archive.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Copied {
    /// Location of the archive.
    pub location: String,
    /// Number of files that the archive lacked.
    pub missing: u64,
    /// Number of copied files.
    pub copied: u64,
    /// Stored size of the copied objects in bytes.
    pub stored_bytes: u64,
    /// Objects that could not be copied from any source.
    pub failed: Vec<Finding>,
    /// Base backups, if they were copied too.
    pub base_backups: Option<CopiedBackups>,
    /// Copying ended before all objects were copied.
    #[serde(skip)]
    pub is_interrupted: bool,
}

impl Copied {
    /// Returns whether the archive has all files of its sources.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
            && self.copied == self.missing
            && !self.is_interrupted
            && self.base_backups.as_ref().is_none_or(CopiedBackups::is_complete)
    }
}

/// An object with files that the archive lacks.
pub(crate) struct Missing {
    object: Object,
    bytes: u64,
    pub files: Vec<ArchivedFile>,
}

/// The files of an archive, according to listings.
pub(crate) struct Files {
    listed: Snapshot,
    /// The segments as ascending ranges that neither touch nor overlap.
    segments: Vec<(SegmentName, SegmentName)>,
    /// The segments in packs, as ascending ranges that neither touch nor overlap.
    packed: Vec<(SegmentName, SegmentName)>,
    /// What `prune` removed.
    pruned: FirstKept,
}

impl Files {
    /// Lists an archive. With `all`, nothing counts as removed by `prune`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn list(archive: &Archive, all: bool) -> Result<Files, ArchiveError> {
        let listed = Snapshot::take(archive.store(), &[WAL, HISTORY, BACKUP].map(str::to_owned))?;
        let is_pack = |object: &Object| matches!(object, Object::Pack(_));
        let packs = listed.objects.iter().filter(|(object, _)| is_pack(object));
        let packs = Snapshot {
            objects: packs.map(|(&object, &bytes)| (object, bytes)).collect(),
            ..Snapshot::default()
        };
        let pruned = if all { FirstKept::default() } else { FirstKept::read(archive)? };
        Ok(Files { segments: listed.ranges(), packed: packs.ranges(), listed, pruned })
    }

    /// Returns the objects with their stored sizes in bytes.
    pub fn objects(&self) -> impl Iterator<Item = (Object, u64)> {
        self.listed.objects.iter().map(|(&object, &bytes)| (object, bytes))
    }

    /// Returns the stored size of an object in bytes.
    pub fn bytes_of(&self, object: Object) -> Option<u64> {
        self.listed.objects.get(&object).copied()
    }

    /// Returns when a file was stored last in its own object, by the store's clock.
    pub fn last_stored(&self) -> Option<Timestamp> {
        self.listed.last_stored
    }

    /// Returns whether an object contains a file.
    fn contains(&self, file: ArchivedFile) -> bool {
        match file {
            ArchivedFile::Segment(name) => snapshot::covers(&self.segments, (name, name)),
            _ => self.listed.objects.contains_key(&Object::File(file)),
        }
    }

    /// Returns whether an object should contain a file and does not.
    fn lacks(&self, file: ArchivedFile) -> bool {
        !self.contains(file) && !self.pruned.is_before(file)
    }

    /// Returns whether a segment's own object is not needed, because a pack contains the segment.
    fn is_packed(&self, object: Object) -> bool {
        let Object::File(ArchivedFile::Segment(name)) = object else { return false };
        snapshot::covers(&self.packed, (name, name))
    }

    /// Returns the objects whose files another archive lacks: segments first, in order.
    pub fn missing_in(&self, other: &Files) -> Vec<Missing> {
        let missing = |(&object, &bytes): (&Object, &u64)| {
            if self.is_packed(object) {
                return None;
            }
            let files: Vec<ArchivedFile> = files_of(object).filter(|&file| other.lacks(file)).collect();
            (!files.is_empty()).then_some(Missing { object, bytes, files })
        };
        let mut found: Vec<Missing> = self.listed.objects.iter().filter_map(missing).collect();
        // Stable: the listing's order remains among segments and among other files.
        found.sort_by_key(|missing| missing.object.segments().is_none());
        found
    }
}

fn files_of(object: Object) -> impl Iterator<Item = ArchivedFile> {
    let (file, pack) = match object {
        Object::File(file) => (Some(file), None),
        Object::Pack(pack) => (None, Some(pack)),
    };
    let segments = pack.into_iter().flat_map(PackName::names).map(ArchivedFile::Segment);
    file.into_iter().chain(segments)
}

/// Copies the files that an archive lacks, each from the first source that has it intact. Calls `progress`
/// with the number of finished objects and the total of the current source. If `progress` returns
/// [`ControlFlow::Break`], the remaining objects are not copied, and the result is not complete.
///
/// # Errors
/// The archive cannot be used, belongs to another cluster than a source, or cannot store any further file. A
/// source that cannot be read is reported in the result.
pub fn copy(
    sources: &[Archive],
    target: &Archive,
    options: &CopyOptions,
    progress: Progress<'_>,
) -> Result<Copied, ArchiveError> {
    target.expect_archive()?;
    let archives: Vec<&Archive> = std::iter::once(target).chain(sources).collect();
    neighbors::expect_one_cluster(&archives)?;
    let mut report = Copied { location: target.store().location().to_owned(), ..Copied::default() };
    let mut failed: BTreeMap<String, Finding> = BTreeMap::new();
    for source in sources {
        let (known, files) = match list_both(source, target, options) {
            Ok(listed) => listed,
            Err(error) if is_final(&error, target) => return Err(error),
            Err(error) => {
                let object = source.store().location().to_owned();
                report.failed.push(Finding { object, problem: error_text(&error) });
                continue;
            }
        };
        if files.listed.objects.is_empty() {
            continue;
        }
        claim(source, target)?;
        copy_missing(source, target, (&known, &files), options, progress, &mut report, &mut failed)?;
        copy_acknowledgements(source, target)?;
        if report.is_interrupted {
            break;
        }
    }
    report.failed.extend(failed.into_values());
    Ok(report)
}

/// Lists the target and a source, which must be readable if the target lacks one of its files.
fn list_both(
    source: &Archive,
    target: &Archive,
    options: &CopyOptions,
) -> Result<(Files, Files), ArchiveError> {
    source.expect_archive()?;
    let (known, files) = (Files::list(target, options.all)?, Files::list(source, true)?);
    // Without missing files, no private key is needed.
    if !files.missing_in(&known).is_empty() {
        source.unlock()?;
    }
    Ok((known, files))
}

/// Gives the target to the source's cluster, unless it belongs to one already.
fn claim(source: &Archive, target: &Archive) -> Result<(), ArchiveError> {
    let identity = source.identity()?;
    let problem = || ArchiveError::Identity {
        location: source.store().location().to_owned(),
        problem: format!("expected a system identifier, found {:?}", identity.system_identifier),
    };
    let system_id = identity.system_identifier.parse().map_err(|_| problem())?;
    target.claim(system_id, source.segment_size()?)
}

fn copy_missing(
    source: &Archive,
    target: &Archive,
    (known, files): (&Files, &Files),
    options: &CopyOptions,
    progress: Progress<'_>,
    report: &mut Copied,
    failed: &mut BTreeMap<String, Finding>,
) -> Result<(), ArchiveError> {
    let missing = files.missing_in(known);
    let (mut done, mut problem) = (0, None);
    let is_known =
        |failed: &BTreeMap<String, Finding>, file: ArchivedFile| failed.contains_key(&file.to_string());
    workers::run_in_order(
        0..missing.len(),
        options.threads,
        || (),
        |(), index| {
            expect_neighbors(source, target, known, &missing[index].files)?;
            copy_object(source, target, &missing[index], options)
        },
        |result| {
            let Missing { files, .. } = &missing[done];
            done += 1;
            let next = progress(done as u64, missing.len() as u64);
            report.is_interrupted |= next.is_break();
            // A file that an earlier source could not provide was counted then.
            report.missing += files.iter().filter(|&&file| !is_known(failed, file)).count() as u64;
            match result {
                Ok(stored) => {
                    report.copied += files.len() as u64;
                    report.stored_bytes += stored;
                    files.iter().for_each(|file| drop(failed.remove(&file.to_string())));
                    next
                }
                Err(error) if is_final(&error, target) => {
                    problem = Some(error);
                    ControlFlow::Break(())
                }
                Err(error) => {
                    let problem = format!("{}: {}", source.store().location(), error_text(&error));
                    for file in files {
                        let object = file.to_string();
                        let finding = Finding { object: object.clone(), problem: problem.clone() };
                        failed.entry(object).or_insert(finding);
                    }
                    next
                }
            }
        },
    );
    problem.map_or(Ok(()), Err)
}

/// Checks that segments continue the WAL of the target where the target's own segments directly precede or
/// follow them.
fn expect_neighbors(
    source: &Archive,
    target: &Archive,
    known: &Files,
    files: &[ArchivedFile],
) -> Result<(), ArchiveError> {
    let size = source.segment_size()?;
    for file in files {
        let ArchivedFile::Segment(name) = *file else { continue };
        let Some(number) = name.number(size) else { continue };
        let neighbors = [number.checked_sub(1), number.checked_add(1)].into_iter().flatten();
        let is_known =
            |number| known.contains(ArchivedFile::Segment(SegmentName::new(name.timeline, number, size)));
        if neighbors.into_iter().any(is_known) {
            neighbors::expect_neighbors(source, name, &[target])?;
        }
    }
    Ok(())
}

/// Returns whether an error prevents storing any further file.
fn is_final(error: &ArchiveError, target: &Archive) -> bool {
    let is_of_target = error.store_error().is_some_and(|error| error.location == target.store().location());
    is_of_target || matches!(error, ArchiveError::Missing(_) | ArchiveError::OtherCluster { .. })
}

/// Copies the missing files of an object, and returns the stored size in bytes.
fn copy_object(
    source: &Archive,
    target: &Archive,
    missing: &Missing,
    options: &CopyOptions,
) -> Result<u64, ArchiveError> {
    let Missing { object, bytes, files } = missing;
    let is_whole = files.len() == files_of(*object).count() && *bytes <= MAX_OBJECT_BYTES;
    match is_whole {
        true => match copy_as_it_is(source, target, *object, *bytes) {
            // Packed since the listing.
            Err(error) if error.is_not_found() && is_of(&error, source) => {
                copy_files(source, target, files, options)
            }
            other => other,
        },
        false => copy_files(source, target, files, options),
    }
}

fn is_of(error: &ArchiveError, archive: &Archive) -> bool {
    error.store_error().is_some_and(|error| error.location == archive.store().location())
}

fn copy_as_it_is(
    source: &Archive,
    target: &Archive,
    object: Object,
    bytes: u64,
) -> Result<u64, ArchiveError> {
    let names: Vec<String> = files_of(object).map(|file| file.to_string()).collect();
    let hashes = hash_files(source, object, bytes)?;
    let content = source.store().read(&object.key())?;
    let hash = |(name, hash)| FileHash { name, hash };
    let files: Vec<FileHash<'_>> = names.iter().map(String::as_str).zip(&hashes).map(hash).collect();
    match target.store().create_with(&object.key(), &content, &files)? {
        Created::New => Ok(content.len() as u64),
        // Archived by another process since the listing.
        Created::Exists => Ok(0),
    }
}

/// Decodes an object's files, which confirms their hashes, and returns the hashes.
fn hash_files(source: &Archive, object: Object, bytes: u64) -> Result<Vec<[u8; 32]>, ArchiveError> {
    let mut hashes = Vec::new();
    match object {
        Object::File(file) => {
            let mut hash = Hash::default();
            get::decode(source, file, object, bytes, &mut hash)?;
            hashes.push(hash.finish());
        }
        Object::Pack(pack) => {
            let mut members = PackMembers::open(source, pack, bytes)?;
            while members.next_segment().is_some() {
                let mut hash = Hash::default();
                members.decode_next(&mut hash)?;
                hashes.push(hash.finish());
            }
        }
    }
    Ok(hashes)
}

/// Hashes the bytes that are written to it.
#[derive(Default)]
struct Hash(blake3::Hasher);

impl Hash {
    fn finish(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies files, each as its own object.
fn copy_files(
    source: &Archive,
    target: &Archive,
    files: &[ArchivedFile],
    options: &CopyOptions,
) -> Result<u64, ArchiveError> {
    let mut stored = 0;
    for &file in files {
        let content = read_file(source, file)?;
        stored += store_file(source, target, file, &content, options)?;
    }
    Ok(stored)
}

fn read_file(source: &Archive, file: ArchivedFile) -> Result<Vec<u8>, ArchiveError> {
    let mut content = Vec::new();
    let found = get::with_object(source, file, |object, bytes| {
        content.clear();
        get::decode(source, file, object, bytes, &mut content)
    })?;
    let lacks = || {
        let store = source.store();
        StoreError::new("read", &file.key(), store.location(), Cause::NotFound)
    };
    found.ok_or_else(lacks)?;
    Ok(content)
}

fn store_file(
    source: &Archive,
    target: &Archive,
    file: ArchivedFile,
    content: &[u8],
    options: &CopyOptions,
) -> Result<u64, ArchiveError> {
    // The source checked the file when it was pushed, and may have accepted damage then.
    let push = PushOptions::default().level(options.level).accept_damaged(true).accept_unknown_versions(true);
    let identity = source.identity()?;
    let cluster =
        identity.system_identifier.parse().ok().map(|id| (id, source.store().location().to_owned()));
    let (histories, _) = source.undamaged_histories()?;
    let intake = Intake::new(target, &push, histories.into_values().collect(), cluster)?;
    let mut reader = content;
    let pushed = intake::split_final(intake.ingest(file, &mut reader, None))?;
    match pushed {
        Ok(pushed) => Ok(pushed.stored.unwrap_or(0)),
        Err(error) => Err(refused(target, file, &error)),
    }
}

fn refused(target: &Archive, file: ArchivedFile, error: &dyn std::error::Error) -> ArchiveError {
    let mut failure = StoreError::new(
        "create",
        &file.key(),
        // Not the target's error: other files may be stored.
        &format!("a copy for {}", target.store().location()),
        Cause::Other,
    );
    failure.source = Some(error_text(error).into());
    failure.into()
}

/// Copies the acknowledgements of gaps.
fn copy_acknowledgements(source: &Archive, target: &Archive) -> Result<(), ArchiveError> {
    let keys = |archive: &Archive| -> Result<Vec<String>, ArchiveError> {
        let mut keys = Vec::new();
        archive.store().list(GAPS, &mut |listed| keys.push(listed.key))?;
        Ok(keys)
    };
    let known = keys(target)?;
    for key in keys(source)?.iter().filter(|key| !known.contains(key)) {
        target.store().create(key, &source.store().read(key)?)?;
    }
    Ok(())
}

/// Replaces damaged objects of an archive, as `verify` reports them by key, with intact files of other
/// archives. A damaged object is removed only after all its files were read intact from the sources, and put
/// back if its replacement cannot be stored.
///
/// # Errors
/// The errors of [`copy`].
pub fn replace_damaged(
    sources: &[Archive],
    target: &Archive,
    damaged: &[Finding],
    options: &CopyOptions,
) -> Result<Copied, ArchiveError> {
    let mut report = Copied { location: target.store().location().to_owned(), ..Copied::default() };
    let files = Files::list(target, true)?;
    for &object in files.listed.objects.keys() {
        let stored = target.stored_name(&object.key());
        let Some(finding) = damaged.iter().find(|finding| finding.object == stored) else { continue };
        let names: Vec<ArchivedFile> = files_of(object).collect();
        report.missing += names.len() as u64;
        match replace(sources, target, object, &names, options) {
            Ok(stored) => {
                report.copied += names.len() as u64;
                report.stored_bytes += stored;
            }
            Err(error) if is_final(&error, target) => return Err(error),
            Err(error) => {
                let problem = format!("{}; no intact copy: {}", finding.problem, error_text(&error));
                report.failed.push(Finding { object: finding.object.clone(), problem });
            }
        }
    }
    Ok(report)
}

fn replace(
    sources: &[Archive],
    target: &Archive,
    object: Object,
    files: &[ArchivedFile],
    options: &CopyOptions,
) -> Result<u64, ArchiveError> {
    let intact = |file: ArchivedFile| -> Result<&Archive, ArchiveError> {
        let mut first_error = None;
        for source in sources {
            match read_file(source, file) {
                Ok(_) => return Ok(source),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| ArchiveError::Missing("no other archive".to_owned())))
    };
    let sources = files.iter().map(|&file| intact(file)).collect::<Result<Vec<_>, _>>()?;
    for (&file, source) in files.iter().zip(&sources) {
        if let ArchivedFile::Segment(name) = file {
            neighbors::expect_neighbors(source, name, &[target])?;
        }
    }
    // An object that cannot even be read has nothing to put back.
    let damaged = target.store().read(&object.key()).ok();
    let store_all = || -> Result<u64, ArchiveError> {
        // The object may be gone even if the removal failed.
        target.store().remove(&object.key())?;
        let mut stored = 0;
        for (&file, source) in files.iter().zip(&sources) {
            stored += store_file(source, target, file, &read_file(source, file)?, options)?;
        }
        Ok(stored)
    };
    let result = store_all();
    if let (Err(_), Some(damaged)) = (&result, damaged) {
        // Has no effect if the object is still there. The first error is the one to report.
        let _ = target.store().create(&object.key(), &damaged);
    }
    result
}
