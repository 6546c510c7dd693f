//! Removes base backups, and the pieces that no other one needs.

use std::collections::HashSet;

use serde::Serialize;
use walden_source::error_text;

use super::inventory::{Inventory, Leftover, LeftoverState, read_pieces};
use super::name::{self, piece_key};
use super::progress;
use crate::archive::{Archive, ArchiveError};
use crate::store::versions::Kept;

/// The result of removing backups.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct Removed {
    /// Names of the removed backups.
    pub backups: Vec<String>,
    /// Number of removed objects.
    pub objects: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Number of objects that the store keeps: they are locked, or these credentials may not remove them.
    pub kept_objects: u64,
    /// Why pieces that may not be needed stay until a later run.
    pub postponed: Option<String>,
    /// Keys of objects that are not needed and that the store keeps: their locks need no extension.
    #[serde(skip)]
    pub unneeded: HashSet<String>,
}

/// Removes the backups of these names, and everything that no remaining backup needs. The order keeps each
/// backup complete as long as it exists: first its description, then, if no backup is being made, the pieces
/// that no remaining backup has. A writer stores `started.json` before it lists pieces of earlier backups:
/// either it is listed here, or it does not find the removed ones.
///
/// # Errors
/// The store's errors. The next call continues.
pub fn remove(archive: &Archive, names: &[String]) -> Result<Removed, ArchiveError> {
    let mut removed = Removed::default();
    for name in names {
        // A backup without its description is not one any more, and looks abandoned without this object.
        removed.discard(archive, &name::key(name, name::STARTED), 0)?;
        if removed.discard(archive, &name::key(name, name::BACKUP), 0)? {
            removed.backups.push(name.clone());
        }
    }
    removed.sweep(archive, names, &[])?;
    Ok(removed)
}

/// Removes backups that were not completed, whose writers do not exist any more, as [`remove`] does with
/// abandoned ones.
pub(super) fn remove_abandoned(archive: &Archive, names: &[String]) -> Result<Removed, ArchiveError> {
    let mut removed = Removed::default();
    removed.sweep(archive, &[], names)?;
    Ok(removed)
}

impl Removed {
    /// Discards an object. Returns whether it was removed.
    fn discard(&mut self, archive: &Archive, key: &str, bytes: u64) -> Result<bool, ArchiveError> {
        let kept: Option<Kept> = archive.store().discard(key)?;
        match kept {
            Some(_) => self.kept_objects += 1,
            None => {
                self.objects += 1;
                self.bytes += bytes;
            }
        }
        Ok(kept.is_none())
    }

    /// Removes abandoned backups, and pieces that no backup needs.
    fn sweep(
        &mut self,
        archive: &Archive,
        names: &[String],
        known_abandoned: &[String],
    ) -> Result<(), ArchiveError> {
        let listed = Inventory::list(archive)?;
        if listed.is_empty() {
            return Ok(());
        }
        let abandoned = || {
            let leftovers = listed.leftovers.iter();
            leftovers.filter(|it| it.state != LeftoverState::InProgress || known_abandoned.contains(&it.name))
        };
        for name in names.iter().chain(abandoned().map(|leftover| &leftover.name)) {
            let documents = [name::STARTED, name::PIECES, name::MANIFEST, name::BACKUP];
            self.unneeded.extend(documents.map(|document| name::key(name, document)));
            let notes = listed.folders.get(name).map_or(&[][..], |folder| &folder.progress);
            self.unneeded.extend(notes.iter().map(|number| progress::key(name, *number)));
        }
        let has_started = |name: &str| listed.folders.get(name).is_some_and(|folder| folder.has_started);
        for Leftover { name, .. } in abandoned().filter(|leftover| has_started(&leftover.name)) {
            // Its writer, if it still exists, then does not complete it.
            let key = name::key(name, name::STARTED);
            if !self.discard(archive, &key, 0)? {
                self.postponed = Some(format!("the store keeps {}", archive.stored_name(&key)));
                return Ok(());
            }
        }
        // Only now: a backup that was completed meanwhile counts.
        let inventory = Inventory::read(archive)?;
        if let Some(leftover) =
            inventory.leftovers.iter().find(|leftover| leftover.state == LeftoverState::InProgress)
        {
            self.postponed = Some(format!("the backup {} is being made", leftover.name));
            return Ok(());
        }
        if let Some(finding) = inventory.unreadable.first() {
            self.postponed = Some(format!("{} cannot be read: {}", finding.object, finding.problem));
            return Ok(());
        }
        // A backup whose description the store keeps still needs its pieces, but no longer locks of them.
        let (mut needed, mut lasting): (HashSet<String>, HashSet<String>) = (HashSet::new(), HashSet::new());
        for backup in &inventory.backups {
            match read_pieces(archive, backup) {
                Ok(list) => {
                    let keys = list.stored().map(|(folder, hash, ..)| piece_key(folder, hash));
                    match names.contains(&backup.name) {
                        true => needed.extend(keys),
                        false => lasting.extend(keys),
                    }
                }
                Err(error) => {
                    self.postponed =
                        Some(format!("the pieces of {} are unknown: {}", backup.name, error_text(&error)));
                    return Ok(());
                }
            }
        }
        for (name, folder) in &inventory.folders {
            let keys = folder.pieces.keys();
            self.unneeded.extend(keys.filter(|key| !lasting.contains(*key)).cloned());
            // A complete backup does not need them any more.
            for number in &folder.progress {
                self.discard(archive, &progress::key(name, *number), 0)?;
            }
            if !folder.has_backup {
                for (object, exists) in
                    [(name::PIECES, folder.has_piece_list), (name::MANIFEST, folder.has_manifest)]
                {
                    if exists {
                        self.discard(archive, &name::key(name, object), 0)?;
                    }
                }
            }
            for (key, (_, bytes)) in
                folder.pieces.iter().filter(|(key, _)| !needed.contains(*key) && !lasting.contains(*key))
            {
                self.discard(archive, key, *bytes)?;
            }
        }
        Ok(())
    }
}
