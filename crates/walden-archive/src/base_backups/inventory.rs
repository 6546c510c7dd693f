//! The base backups of an archive, complete ones and others.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use walden_recover::parse_backup_name;
use walden_source::error_text;

use super::documents::{PieceList, StoredBackup};
use super::error::BaseBackupError;
use super::name::{self, BASE, Part, PieceHash};
use super::started::is_writer_gone;
use crate::archive::{Archive, ArchiveError};
use crate::objects::object::Finding;
use crate::store::Cause;

/// Time without a new object after which a backup counts as abandoned: its writer was killed.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);
/// The same if its writer has promised an object per minute. The clocks of this machine and of the store may
/// differ by less.
const SILENT_FOR: SignedDuration = SignedDuration::from_hours(1);

/// The base backups of an archive.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Inventory {
    /// The complete backups that can be read, ordered by their starts.
    pub backups: Vec<StoredBackup>,
    /// Descriptions of complete backups that cannot be read.
    pub unreadable: Vec<Finding>,
    /// Folders without a complete backup.
    pub leftovers: Vec<Leftover>,
    /// Keys that do not belong to a backup.
    pub unknown: Vec<String>,
    /// The objects of each folder.
    pub(super) folders: BTreeMap<String, Folder>,
}

/// A folder without a complete backup.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leftover {
    /// Name of the backup.
    pub name: String,
    /// Stored bytes of its objects.
    pub bytes: u64,
    /// The state of its writer.
    pub state: LeftoverState,
}

/// The state of the writer of an incomplete backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeftoverState {
    /// A process may still be making the backup.
    InProgress,
    /// Its process has ended, or has stored nothing for a long time.
    Interrupted,
    /// The backup was removed, and pieces are left: those that other backups need, and others until the next
    /// removal.
    Removed,
}

/// The objects in a backup's folder, according to a listing.
#[derive(Clone, Default, Debug)]
pub(super) struct Folder {
    pub pieces: BTreeMap<String, (PieceHash, u64)>,
    pub has_started: bool,
    pub has_backup: bool,
    pub has_piece_list: bool,
    pub has_manifest: bool,
    /// Numbers of the notes of stored pieces.
    pub progress: Vec<u32>,
    bytes: u64,
    /// When the newest object was stored, by the store's clock.
    pub newest: Option<Timestamp>,
}

impl Folder {
    /// Determines the state of the incomplete backup in this folder.
    fn state(&self, archive: &Archive, name: &str, now: Timestamp) -> LeftoverState {
        let age = self.newest.map(|newest| now.duration_since(newest));
        let is_older = |limit| age.is_some_and(|age| age > limit);
        match self.has_started {
            false if self.progress.is_empty() => LeftoverState::Removed,
            false => LeftoverState::Interrupted,
            true if is_older(ABANDONED_AFTER) => LeftoverState::Interrupted,
            true if is_writer_gone(archive, name, is_older(SILENT_FOR)) => LeftoverState::Interrupted,
            true => LeftoverState::InProgress,
        }
    }
}

impl Inventory {
    /// Lists the backups and reads their descriptions.
    ///
    /// # Errors
    /// The store's errors, and a missing or unusable private key of an encrypted archive with backups.
    pub fn read(archive: &Archive) -> Result<Inventory, ArchiveError> {
        let mut inventory = Inventory::list(archive)?;
        for (name, _) in inventory.folders.iter().filter(|(_, folder)| folder.has_backup) {
            match read_backup(archive, name) {
                Ok(backup) => inventory.backups.push(backup),
                // Removed since the listing.
                Err(BaseBackupError::Archive(error)) if error.is_not_found() => {}
                Err(BaseBackupError::Archive(error)) if !error.is_damage() => return Err(error),
                Err(error) => {
                    let object = archive.stored_name(&name::key(name, name::BACKUP));
                    inventory.unreadable.push(Finding { object, problem: error_text(&error) });
                }
            }
        }
        inventory.backups.sort_by_key(StoredBackup::start);
        Ok(inventory)
    }

    /// Lists the backups without reading any.
    ///
    /// # Errors
    /// The store's errors.
    pub(super) fn list(archive: &Archive) -> Result<Inventory, ArchiveError> {
        let mut inventory = Inventory::default();
        archive.store().list(BASE, &mut |listed| {
            let Some((backup, part)) = name::parse(&listed.key) else {
                inventory.unknown.push(listed.key);
                return;
            };
            let folder = inventory.folders.entry(backup.to_owned()).or_default();
            folder.bytes += listed.bytes;
            folder.newest = folder.newest.max(listed.stored);
            match part {
                Part::Started => folder.has_started = true,
                Part::Backup => folder.has_backup = true,
                Part::Pieces => folder.has_piece_list = true,
                Part::Manifest => folder.has_manifest = true,
                Part::Progress(number) => folder.progress.push(number),
                Part::Piece(hash) => drop(folder.pieces.insert(listed.key.clone(), (hash, listed.bytes))),
            }
        })?;
        let now = Timestamp::now();
        let leftovers = inventory.folders.iter().filter(|(_, folder)| !folder.has_backup);
        inventory.leftovers = leftovers
            .map(|(name, folder)| Leftover {
                name: name.clone(),
                bytes: folder.bytes,
                state: folder.state(archive, name, now),
            })
            .collect();
        Ok(inventory)
    }

    /// Returns whether there is an object of a backup.
    pub fn is_empty(&self) -> bool {
        self.folders.is_empty()
    }

    /// Returns the stored bytes of all objects of base backups.
    pub fn stored_bytes(&self) -> u64 {
        self.folders.values().map(|folder| folder.bytes).sum()
    }

    /// Returns whether an object was listed.
    pub(super) fn has_piece(&self, folder: &str, key: &str) -> bool {
        self.folders.get(folder).is_some_and(|folder| folder.pieces.contains_key(key))
    }
}

/// The base backups of an archive in numbers, according to a listing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Totals {
    /// Number of complete backups.
    pub backups: u64,
    /// Stored bytes of all objects of backups.
    pub stored_bytes: u64,
    /// When the newest complete backup was started.
    pub newest: Option<Timestamp>,
}

impl Totals {
    /// Counts the backups. No private key is needed.
    ///
    /// # Errors
    /// The store's errors.
    pub fn list(archive: &Archive) -> Result<Totals, ArchiveError> {
        let inventory = Inventory::list(archive)?;
        let complete = || inventory.folders.iter().filter(|(_, folder)| folder.has_backup);
        let time = |name: &str| parse_backup_name(name).map(|(time, _)| time);
        Ok(Totals {
            backups: complete().count() as u64,
            stored_bytes: inventory.stored_bytes(),
            newest: complete().filter_map(|(name, _)| time(name)).max(),
        })
    }
}

/// Returns the names of the complete backups, ordered by time.
///
/// # Errors
/// The store's errors.
pub fn names(archive: &Archive) -> Result<Vec<String>, ArchiveError> {
    let folders = Inventory::list(archive)?.folders.into_iter();
    Ok(folders.filter(|(_, folder)| folder.has_backup).map(|(name, _)| name).collect())
}

/// Returns the backup of a name, or the newest one (`latest`).
///
/// # Errors
/// The store's errors, a damaged description, and no such backup.
pub fn find(archive: &Archive, wanted: &str) -> Result<StoredBackup, BaseBackupError> {
    let inventory = Inventory::list(archive)?;
    let names = || inventory.folders.iter().filter(|(_, folder)| folder.has_backup).map(|(name, _)| name);
    if let Some(name) = names().find(|name| *name == wanted) {
        return read_backup(archive, name);
    }
    let newest = || Inventory::read(archive).map(|mut inventory| inventory.backups.pop());
    match wanted == "latest" {
        true => newest()?,
        false => None,
    }
    .ok_or_else(|| {
        let names: Vec<&str> = names().map(String::as_str).collect();
        BaseBackupError::NotFound {
            wanted: wanted.to_owned(),
            location: archive.store().location().to_owned(),
            found: match names.is_empty() {
                true => "the archive has no base backup".to_owned(),
                false => format!("expected one of {}", names.join(", ")),
            },
        }
    })
}

/// Reads the description of a complete backup.
pub(super) fn read_backup(archive: &Archive, name: &str) -> Result<StoredBackup, BaseBackupError> {
    let key = name::key(name, name::BACKUP);
    let json = archive.store().read(&key).map_err(ArchiveError::from)?;
    StoredBackup::parse(name, &json).map_err(|problem| damaged(archive, &key, problem))
}

/// Reads the list of a backup's pieces.
pub(super) fn read_pieces(archive: &Archive, backup: &StoredBackup) -> Result<PieceList, BaseBackupError> {
    let key = name::key(&backup.name, name::PIECES);
    let object = archive.store().read(&key).map_err(ArchiveError::from)?;
    let json = backup.piece_list.decode(&object).map_err(|problem| damaged(archive, &key, problem))?;
    PieceList::parse(&backup.name, &json).map_err(|problem| damaged(archive, &key, problem))
}

/// Reads the manifest of a backup.
pub(super) fn read_manifest(archive: &Archive, backup: &StoredBackup) -> Result<Vec<u8>, BaseBackupError> {
    let key = name::key(&backup.name, name::MANIFEST);
    let object = archive.store().read(&key).map_err(ArchiveError::from)?;
    backup.manifest.decode(&object).map_err(|problem| damaged(archive, &key, problem))
}

/// The error of an object with other content than expected.
pub(super) fn damaged(archive: &Archive, key: &str, problem: String) -> BaseBackupError {
    let location = archive.store().location().to_owned();
    BaseBackupError::Damaged { object: archive.stored_name(key), location, problem }
}

/// Returns whether no private key can read an encrypted archive.
pub(super) fn is_locked(error: &ArchiveError) -> bool {
    error.store_error().is_some_and(|error| error.cause.is_of_identity() || error.cause == Cause::Locked)
}
