//! Finds objects that another user or program deleted or overwrote in a bucket that keeps versions.
//!
//! Walden never overwrites an object. So the oldest intact version of an object is the archived version, and
//! any later version is suspicious: a delete marker, or a version with other content. In a bucket with Object
//! Lock, Walden removes versions and leaves no delete markers. In other buckets, removals by Walden leave
//! delete markers, which are recognized: the object's WAL is in a pack too, or older than all WAL of its
//! timeline.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use walden_format::lsn::Timeline;
use walden_source::workers;

use super::inspect;
use crate::archive::{Archive, ArchiveError, Identity};
use crate::encryption::{KEYS, SUFFIX};
use crate::inventory::gaps::GAPS;
use crate::inventory::snapshot::{Snapshot, covers};
use crate::objects::name::{ArchivedFile, BACKUP, HISTORY, IDENTITY, Object, WAL};
use crate::objects::object;
use crate::store::versions::{Kept, Protection, Version, Versioned};
use crate::store::{Cause, Created, FileHash, Listed, Store, StoreError};

/// Prefix of the documents.
const DOCS: &str = "docs/";
/// Prefix of the names of the documents at the top.
const TOP: &str = "README.";
/// Number of objects whose versions are read concurrently.
const READERS: usize = 4;

/// What happened to an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A delete marker hides the object.
    Deleted,
    /// A later version hides the archived version.
    Overwritten,
}

/// An object that was deleted or overwritten.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[non_exhaustive]
pub struct Altered {
    /// Name of the object in the store.
    pub object: String,
    /// What happened.
    pub change: Change,
    /// The version that readers get now, or the delete marker.
    pub version: String,
    /// When this version was stored, as the store's text.
    pub stored: String,
    /// The oldest intact version, if any.
    pub intact_version: Option<String>,
    /// The oldest intact version, for reading it.
    #[serde(skip)]
    pub(crate) intact: Option<Version>,
}

/// An object's versions that may show a change.
struct Candidate {
    key: String,
    /// The newest first.
    versions: Vec<Version>,
}

/// Finds deleted and overwritten objects. Finds none in a store without versions.
///
/// # Errors
/// Errors of the store. If no lock is configured, a missing right to read the bucket's settings is not
/// an error.
pub fn find(archive: &Archive) -> Result<Vec<Altered>, ArchiveError> {
    let Some((versioned, protection)) = versions_of(archive)? else { return Ok(Vec::new()) };
    let mut candidates = Vec::new();
    for prefix in [WAL, HISTORY, BACKUP, GAPS] {
        add_candidates(versioned, prefix, &mut candidates)?;
    }
    let present = Present::list(archive, protection)?;
    candidates.retain(|candidate| !candidate.is_deleted() || !present.explains_removal(&candidate.key));
    let mut found = find_documents(archive)?;
    for one in workers::map_in_order(&candidates, READERS, |it| judge(archive, versioned, it)) {
        found.extend(one?);
    }
    found.sort();
    Ok(found)
}

/// Like [`find`], for `archive.json`, keys and documents alone, without which nothing else can be read.
///
/// # Errors
/// Like [`find`].
pub fn find_documents(archive: &Archive) -> Result<Vec<Altered>, ArchiveError> {
    let Some((versioned, protection)) = versions_of(archive)? else { return Ok(Vec::new()) };
    let mut candidates = Vec::new();
    for prefix in [IDENTITY, TOP, DOCS, KEYS] {
        add_candidates(versioned, prefix, &mut candidates)?;
    }
    if !protection.has_object_lock {
        // A change of the keys removes earlier generations.
        let mut keys = Vec::new();
        archive.encrypted().inner().list(KEYS, &mut |listed| keys.push(listed.key))?;
        candidates.retain(|it| !it.is_deleted() || !keys.iter().any(|key| is_later_generation(key, &it.key)));
    }
    let mut found = Vec::new();
    for candidate in &candidates {
        found.extend(judge(archive, versioned, candidate)?);
    }
    Ok(found)
}

fn is_later_generation(key: &str, deleted: &str) -> bool {
    let generation = |key: &str| key.strip_prefix(KEYS)?.split('.').next()?.parse::<u32>().ok();
    generation(key).zip(generation(deleted)).is_some_and(|(newer, older)| newer > older)
}

/// Returns the versions of a bucket that keeps them.
fn versions_of(archive: &Archive) -> Result<Option<(&dyn Versioned, Protection)>, ArchiveError> {
    let Some(versioned) = archive.encrypted().inner().versioned() else { return Ok(None) };
    match versioned.protection() {
        Ok(protection) => Ok(protection.has_versions.then_some((versioned, protection))),
        Err(error) if versioned.rule().is_none() && error.cause != Cause::Unavailable => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn add_candidates(
    versioned: &dyn Versioned,
    prefix: &str,
    candidates: &mut Vec<Candidate>,
) -> Result<(), StoreError> {
    versioned.versions(prefix, &mut |key, versions| {
        let data = versions.iter().filter(|version| !version.is_marker);
        let is_hidden = versions.first().is_some_and(|version| version.is_marker);
        if data.clone().count() > 1 || is_hidden && data.clone().count() == 1 {
            candidates.push(Candidate { key, versions });
        }
    })
}

impl Candidate {
    fn is_deleted(&self) -> bool {
        self.versions.first().is_some_and(|version| version.is_marker)
    }
}

/// The WAL that the archive has now.
struct Present {
    objects: BTreeMap<Object, u64>,
    ranges: Vec<(walden_format::lsn::SegmentName, walden_format::lsn::SegmentName)>,
    has_object_lock: bool,
}

impl Present {
    fn list(archive: &Archive, protection: Protection) -> Result<Present, ArchiveError> {
        let snapshot = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
        let ranges = snapshot.ranges();
        Ok(Present { objects: snapshot.objects, ranges, has_object_lock: protection.has_object_lock })
    }

    /// Returns whether `pack` or `prune` can have removed an object.
    fn explains_removal(&self, key: &str) -> bool {
        let Some(object) = Object::parse_key(key.strip_suffix(SUFFIX).unwrap_or(key)) else { return false };
        let range = match object {
            Object::File(ArchivedFile::Partial(name)) => Some((name, name)),
            Object::File(ArchivedFile::Backup(segment, _)) => Some((segment, segment)),
            _ => object.segments(),
        };
        let Some(range) = range else { return false };
        let is_backup = matches!(object, Object::File(ArchivedFile::Backup(..)));
        if !is_backup && covers(&self.ranges, range) {
            return true;
        }
        // With Object Lock, `prune` leaves no markers.
        !self.has_object_lock && self.first_of(object.timeline()).is_none_or(|first| range.1 < first)
    }

    fn first_of(&self, timeline: Timeline) -> Option<walden_format::lsn::SegmentName> {
        let segments = self.objects.keys().filter(|object| object.timeline() == timeline);
        segments.filter_map(|object| Some(object.segments()?.0)).min()
    }
}

/// Decides whether an object was altered.
fn judge(
    archive: &Archive,
    versioned: &dyn Versioned,
    candidate: &Candidate,
) -> Result<Option<Altered>, ArchiveError> {
    let Candidate { key, versions } = candidate;
    let Some(top) = versions.first() else { return Ok(None) };
    let data: Vec<&Version> = versions.iter().filter(|version| !version.is_marker).collect();
    let Some((newest, oldest)) = data.first().zip(data.last()) else { return Ok(None) };
    let is_same = |one: &Version, other: &Version| {
        one.id == other.id || !one.tag.is_empty() && (&one.tag, one.bytes) == (&other.tag, other.bytes)
    };
    if !top.is_marker && is_same(newest, oldest) {
        return Ok(None);
    }
    let mut original = None;
    for version in data.iter().rev() {
        if let Some(hashes) = read_intact(archive, versioned, key, version)? {
            original = Some((*version, hashes));
            break;
        }
    }
    let is_original = match &original {
        _ if top.is_marker => false,
        // Other damage, which `verify` reports.
        None => true,
        Some((version, _)) if is_same(newest, version) => true,
        // A copy at another compression level has the same files.
        Some((_, hashes)) => read_intact(archive, versioned, key, newest)?.as_ref() == Some(hashes),
    };
    if is_original {
        return Ok(None);
    }
    Ok(Some(Altered {
        object: key.clone(),
        change: if top.is_marker { Change::Deleted } else { Change::Overwritten },
        version: top.id.clone(),
        stored: top.stored.clone(),
        intact_version: original.as_ref().map(|(version, _)| version.id.clone()),
        intact: original.map(|(version, _)| version.clone()),
    }))
}

/// Returns the hashes of the files in a version if it is intact, by the checks of `verify`.
fn read_intact(
    archive: &Archive,
    versioned: &dyn Versioned,
    key: &str,
    version: &Version,
) -> Result<Option<Vec<[u8; 32]>>, ArchiveError> {
    let content = match versioned.read_version(key, version) {
        // Removed in the meantime, or too large for an object of Walden.
        Err(error) if matches!(error.cause, Cause::NotFound | Cause::TooLarge | Cause::Damaged) => {
            return Ok(None);
        }
        other => other?,
    };
    intact_hashes(archive, key, content)
}

/// Returns the hashes of the files in the content of an object if it is intact.
///
/// # Errors
/// Errors of the store.
pub(crate) fn intact_hashes(
    archive: &Archive,
    key: &str,
    content: Vec<u8>,
) -> Result<Option<Vec<[u8; 32]>>, ArchiveError> {
    let whole = *blake3::hash(&content).as_bytes();
    let own_key = key.strip_suffix(SUFFIX).unwrap_or(key);
    let Some(found) = Object::parse_key(own_key) else {
        let is_intact = match key {
            IDENTITY => serde_json::from_slice::<Identity>(&content).is_ok(),
            _ => !content.is_empty(),
        };
        return Ok(is_intact.then(|| vec![whole]));
    };
    let bytes = content.len() as u64;
    let inner = archive.encrypted().shared_inner();
    let overlay = Overlay { inner, key: key.to_owned(), content };
    let single = Archive::with_keys(Box::new(overlay), archive.encrypted().options().clone());
    let inspected = inspect(&single, found, bytes, &[]);
    if inspected.problem.is_some() {
        return Ok(None);
    }
    let stored = object::check_stored(single.store(), found, bytes);
    Ok(stored.ok().map(|files| files.into_iter().map(|(_, _, hash)| hash).collect()))
}

/// A store in which one object has other content.
struct Overlay {
    inner: Arc<dyn Store>,
    key: String,
    content: Vec<u8>,
}

impl Store for Overlay {
    fn create(&self, key: &str, _: &[u8]) -> Result<Created, StoreError> {
        Err(StoreError::new("create", key, self.location(), Cause::ReadOnly))
    }

    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        self.inner.make_durable(key)
    }

    fn holds(&self, key: &str, file: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        if key == self.key { Ok(None) } else { self.inner.holds(key, file) }
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        if key == self.key { Ok(self.content.clone()) } else { self.inner.read(key) }
    }

    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        if key != self.key {
            return self.inner.read_range(key, range);
        }
        let bytes = self.content.len() as u64;
        let [start, end] = [range.start, range.end].map(|at| at.min(bytes) as usize);
        Ok(self.content.get(start..end).unwrap_or_default().to_vec())
    }

    fn size(&self, key: &str) -> Result<u64, StoreError> {
        if key == self.key { Ok(self.content.len() as u64) } else { self.inner.size(key) }
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        self.inner.list(prefix, visit)
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        Err(StoreError::new("remove", key, self.location(), Cause::ReadOnly))
    }

    fn discard(&self, key: &str) -> Result<Option<Kept>, StoreError> {
        self.remove(key).map(|()| None)
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn location(&self) -> &str {
        self.inner.location()
    }
}
