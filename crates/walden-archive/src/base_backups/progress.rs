//! Notes of the pieces that a backup has stored, with which an interrupted backup is continued.
//!
//! Objects are never replaced, so each note is an object of its own.

use serde::{Deserialize, Serialize};

use super::documents::{MAX_LIST_BYTES, PieceDigest};
use super::error::BaseBackupError;
use super::inventory::{Inventory, is_locked};
use super::name;
use crate::archive::{Archive, ArchiveError};

/// A piece that a backup has stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Noted {
    pub bytes: u64,
    pub stored_bytes: u64,
    pub digest: PieceDigest,
}

/// Returns the key of a note.
pub(super) fn key(backup: &str, number: u32) -> String {
    name::key(backup, &format!("{}{number:06}{}", name::PROGRESS, name::PROGRESS_ENDING))
}

/// Stores a note. An empty one shows that the writer still exists.
pub(super) fn store(
    archive: &Archive,
    backup: &str,
    number: u32,
    pieces: &[Noted],
) -> Result<(), BaseBackupError> {
    let failed = |error: std::io::Error| BaseBackupError::Content(error.to_string());
    let text = serde_json::to_vec(pieces).map_err(|error| failed(error.into()))?;
    let object = zstd::bulk::compress(&text, 3).map_err(failed)?;
    archive.store().create(&key(backup, number), &object)?;
    Ok(())
}

/// Reads the notes of a backup. A note that is damaged or encrypted for another key is left out: its pieces
/// are then read again.
pub(super) fn read(
    archive: &Archive,
    inventory: &Inventory,
    backup: &str,
) -> Result<Vec<Noted>, BaseBackupError> {
    let mut noted = Vec::new();
    for number in inventory.folders.get(backup).iter().flat_map(|folder| &folder.progress) {
        let object = match archive.store().read(&key(backup, *number)).map_err(ArchiveError::from) {
            Ok(object) => object,
            Err(error) if error.is_damage() || error.is_not_found() || is_locked(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        noted.extend(parse(&object).unwrap_or_default());
    }
    Ok(noted)
}

fn parse(object: &[u8]) -> Option<Vec<Noted>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(object).ok()?;
    decoder.take(MAX_LIST_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
