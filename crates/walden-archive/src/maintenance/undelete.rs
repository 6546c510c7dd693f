//! Restores objects that another user or program deleted or overwrote in a bucket that keeps versions.

use serde::Serialize;
use walden_source::error_text;

use crate::archive::{Archive, ArchiveError};
use crate::inspect::verify::altered::{self, Altered, Change, intact_hashes};
use crate::objects::object::Finding;
use crate::store::versions::Versioned;
use crate::store::{Cause, Created, StoreError};

/// Result of restoring objects.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Undeleted {
    /// Location of the archive.
    pub location: String,
    /// The restored objects.
    pub restored: Vec<Altered>,
    /// The objects that could not be restored.
    pub failed: Vec<Finding>,
}

/// Restores the oldest intact version of each object that was deleted or overwritten: `archive.json` and
/// keys first, because the others cannot be checked without them. Delete markers are removed if the
/// credentials may. Otherwise, the version is stored again on top. Other versions stay.
///
/// # Errors
/// The store keeps no versions, or they cannot be listed. A failed restore of an object is reported.
pub fn undelete(archive: &Archive) -> Result<Undeleted, ArchiveError> {
    let inner = archive.encrypted().inner();
    let location = inner.location().to_owned();
    let none = || StoreError {
        source: Some("expected a bucket of S3 that keeps versions, found none".into()),
        ..StoreError::new("restore objects of", "", &location, Cause::Other)
    };
    let versioned = inner.versioned().ok_or_else(none)?;
    if !versioned.protection()?.has_versions {
        return Err(none().into());
    }
    let mut report = Undeleted { location: location.clone(), ..Undeleted::default() };
    for one in altered::find_documents(archive)? {
        report.restore(archive, versioned, one);
    }
    let archive = archive.afresh();
    archive.unlock()?;
    archive.identity()?;
    for one in altered::find(&archive)? {
        if !report.failed.iter().any(|failed| failed.object == one.object) {
            report.restore(&archive, versioned, one);
        }
    }
    Ok(report)
}

impl Undeleted {
    fn restore(&mut self, archive: &Archive, versioned: &dyn Versioned, altered: Altered) {
        match restore(archive, versioned, &altered) {
            Ok(()) => self.restored.push(altered),
            Err(problem) => self.failed.push(Finding { object: altered.object, problem }),
        }
    }
}

fn restore(archive: &Archive, versioned: &dyn Versioned, altered: &Altered) -> Result<(), String> {
    let Altered { object: key, change, intact, .. } = altered;
    let inner = archive.encrypted().inner();
    let text = |error: StoreError| error_text(&error);
    let intact = intact.as_ref().ok_or("no version is intact: restore it from another archive (--from)")?;
    let content = versioned.read_version(key, intact).map_err(text)?;
    if let Change::Deleted = change {
        remove_markers(versioned, key).map_err(text)?;
    }
    let is_restored = || match inner.read(key) {
        Ok(found) => Ok(found == content),
        Err(error) if error.cause == Cause::NotFound => Ok(false),
        Err(error) => Err(text(error)),
    };
    if !is_restored()? {
        // With a marker on top, this is a new object, and an overwriting request would need more rights.
        if inner.create(key, &content).map_err(text)? == Created::Exists {
            versioned.add_version(key, &content).map_err(text)?;
        }
    }
    if !is_restored()? {
        return Err("expected the restored version as the current version, found another version".to_owned());
    }
    let hashes = intact_hashes(archive, key, content).map_err(|error| error_text(&error))?;
    hashes.map(drop).ok_or_else(|| "the restored version is damaged".to_owned())
}

/// Removes the delete markers on top of an object's versions, as far as the credentials may.
fn remove_markers(versioned: &dyn Versioned, key: &str) -> Result<(), StoreError> {
    let mut markers = Vec::new();
    versioned.versions(key, &mut |found, versions| {
        if found == key {
            markers = versions.into_iter().take_while(|version| version.is_marker).collect();
        }
    })?;
    for marker in markers {
        if versioned.remove_version(key, &marker.id)?.is_some() {
            break;
        }
    }
    Ok(())
}
