//! Copies base backups between archives of a cluster, and replaces damaged objects of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::Serialize;
use walden_format::lsn::SegmentName;
use walden_source::{error_text, workers};

use super::documents::{MAX_PIECE_BYTES, StoredBackup};
use super::error::BaseBackupError;
use super::inventory::{Inventory, damaged, read_backup, read_pieces};
use super::name::{self, Part, PieceHash, piece_key};
use crate::archive::{Archive, ArchiveError};
use crate::inventory::pruned::FirstKept;
use crate::objects::object::Finding;
use crate::store::Cause;

/// The result of copying base backups.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct CopiedBackups {
    /// Number of backups that were missing.
    pub missing: u64,
    /// Number of copied backups.
    pub copied: u64,
    /// Number of objects that were copied or replaced.
    pub objects: u64,
    /// Their bytes, without encryption.
    pub bytes: u64,
    /// Objects that could not be copied.
    pub failed: Vec<Finding>,
}

/// Copies the backups that are newer than the newest one of `target`, oldest first, and pieces of other ones
/// that it lacks. Earlier backups that it does not have were removed by `prune`; with `all`, they are copied
/// too. Each piece is verified.
///
/// # Errors
/// The target's errors. A source that cannot be read is reported in the result.
pub fn copy(
    sources: &[Archive],
    target: &Archive,
    threads: usize,
    all: bool,
) -> Result<CopiedBackups, BaseBackupError> {
    let mut report = CopiedBackups::default();
    for source in sources {
        if let Err(error) = copy_from(source, target, threads, all, &mut report) {
            if is_of(&error, target) {
                return Err(error);
            }
            let object = source.store().location().to_owned();
            report.failed.push(Finding { object, problem: error_text(&error) });
        }
    }
    Ok(report)
}

fn is_of(error: &BaseBackupError, archive: &Archive) -> bool {
    let BaseBackupError::Archive(error) = error else { return false };
    error.store_error().is_some_and(|error| error.location == archive.store().location())
}

fn copy_from(
    source: &Archive,
    target: &Archive,
    threads: usize,
    all: bool,
    report: &mut CopiedBackups,
) -> Result<(), BaseBackupError> {
    let theirs = Inventory::read(source)?;
    if theirs.backups.is_empty() {
        return Ok(());
    }
    let own = Inventory::read(target)?;
    let newest = own.backups.iter().map(|backup| backup.completed).max();
    let first_kept = FirstKept::read(target)?;
    let size = source.segment_size()?;
    for backup in &theirs.backups {
        let has = own.backups.iter().any(|known| known.name == backup.name);
        let (timeline, start) = backup.start();
        let segment = SegmentName::new(timeline, size.segment_of(start), size);
        let is_removed = newest.is_some_and(|newest| backup.completed < newest)
            || first_kept.first_after(segment).is_some();
        if !has && is_removed && !all {
            continue;
        }
        report.missing += u64::from(!has);
        if !has {
            // As of a writer: from now on no piece is removed.
            let key = name::key(&backup.name, name::STARTED);
            target.store().create(&key, b"{}")?;
        }
        let is_whole = copy_pieces(source, target, backup, threads, report)?;
        if !has && is_whole {
            complete(source, target, backup, report)?;
            report.copied += 1;
        }
    }
    Ok(())
}

/// Copies the pieces of a backup that the target lacks. Returns whether it has all of them then.
fn copy_pieces(
    source: &Archive,
    target: &Archive,
    backup: &StoredBackup,
    threads: usize,
    report: &mut CopiedBackups,
) -> Result<bool, BaseBackupError> {
    let own = Inventory::list(target)?;
    let list = read_pieces(source, backup)?;
    let missing: BTreeMap<String, PieceHash> = list
        .stored()
        .map(|(folder, hash, ..)| (folder, piece_key(folder, hash), hash))
        .filter(|(folder, key, _)| !own.has_piece(folder, key))
        .map(|(_, key, hash)| (key, hash))
        .collect();
    let missing: Vec<(String, PieceHash)> = missing.into_iter().collect();
    let (mut failure, mut is_whole) = (None, true);
    workers::run_in_order(
        0..missing.len(),
        threads,
        || (),
        |(), index| {
            let (key, hash) = &missing[index];
            let object = read_object(source, key, Part::Piece(*hash))?;
            target.store().create(key, &object)?;
            Ok::<u64, BaseBackupError>(object.len() as u64)
        },
        |copied| {
            match copied {
                Ok(bytes) => report.add(bytes),
                Err(error) if is_of(&error, target) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
                Err(error) => {
                    is_whole = false;
                    report.failed.push(Finding { object: backup.name.clone(), problem: error_text(&error) });
                }
            }
            ControlFlow::Continue(())
        },
    );
    failure.map_or(Ok(is_whole), Err)
}

/// Copies the descriptions of a backup whose pieces the target has.
fn complete(
    source: &Archive,
    target: &Archive,
    backup: &StoredBackup,
    report: &mut CopiedBackups,
) -> Result<(), BaseBackupError> {
    let names =
        [(name::PIECES, Part::Pieces), (name::MANIFEST, Part::Manifest), (name::BACKUP, Part::Backup)];
    for (name, part) in names {
        let key = name::key(&backup.name, name);
        let object = read_object(source, &key, part)?;
        target.store().create(&key, &object)?;
        report.add(object.len() as u64);
    }
    // As of a writer: otherwise prune has taken the copy for an abandoned backup.
    let started = name::key(&backup.name, name::STARTED);
    match target.store().size(&started) {
        Err(error) if error.cause == Cause::NotFound => {
            target.store().discard(&name::key(&backup.name, name::BACKUP))?;
            Err(BaseBackupError::Removed {
                name: backup.name.clone(),
                object: target.stored_name(&started),
                location: target.store().location().to_owned(),
            })
        }
        other => Ok(other.map(drop)?),
    }
}

/// Reads an object of a backup as it is stored, without encryption, and verifies it.
fn read_object(archive: &Archive, key: &str, part: Part) -> Result<Vec<u8>, BaseBackupError> {
    let object = archive.store().read(key).map_err(ArchiveError::from)?;
    let backup = name::parse(key).map(|(backup, _)| backup).unwrap_or_default();
    let checked = match part {
        // Only a backup that is being made needs notes.
        Part::Started | Part::Progress(_) => Ok(()),
        Part::Backup => StoredBackup::parse(backup, &object).map(drop),
        Part::Pieces => read_backup(archive, backup)?.piece_list.decode(&object).map(drop),
        Part::Manifest => read_backup(archive, backup)?.manifest.decode(&object).map(drop),
        Part::Piece(hash) => {
            let content = zstd::bulk::decompress(&object, MAX_PIECE_BYTES).map_err(|error| error.to_string());
            content.and_then(|content| match PieceHash::of(&content) {
                found if found == hash => Ok(()),
                found => Err(format!("expected BLAKE3 {hash}, found {found}")),
            })
        }
    };
    checked.map_err(|problem| damaged(archive, key, problem))?;
    Ok(object)
}

/// Replaces damaged objects of base backups, as `verify` reports them, with intact ones of other archives. An
/// object is removed only after an intact one was read.
///
/// # Errors
/// The target's errors.
pub fn replace_damaged(
    sources: &[Archive],
    target: &Archive,
    found: &[Finding],
) -> Result<CopiedBackups, ArchiveError> {
    let mut report = CopiedBackups::default();
    let mut keys = Vec::new();
    target.store().list(name::BASE, &mut |listed| keys.push(listed.key))?;
    for key in keys {
        let stored = target.stored_name(&key);
        let is_damaged = found.iter().any(|finding| finding.object == stored);
        let Some((_, part)) = name::parse(&key).filter(|_| is_damaged) else { continue };
        let mut first = None;
        let intact = sources.iter().find_map(|source| match read_object(source, &key, part) {
            Ok(object) => Some(object),
            Err(error) => {
                first.get_or_insert_with(|| error_text(&error));
                None
            }
        });
        let Some(object) = intact else {
            let problem = format!("no intact copy: {}", first.unwrap_or_default());
            report.failed.push(Finding { object: stored, problem });
            continue;
        };
        target.store().remove(&key)?;
        target.store().create(&key, &object)?;
        report.add(object.len() as u64);
    }
    Ok(report)
}

impl CopiedBackups {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }

    /// Returns whether nothing is missing any more.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.copied == self.missing
    }
}
