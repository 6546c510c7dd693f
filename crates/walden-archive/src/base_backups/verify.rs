//! Verifies stored base backups.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use walden_recover::manifest::{Manifest, ManifestFiles};
use walden_source::{error_text, workers};

use super::error::BaseBackupError;
use super::inventory::{Inventory, damaged, names, read_manifest, read_pieces};
use super::name::{self, PieceHash, piece_key};
use super::reader::read_piece;
use crate::archive::{Archive, ArchiveError};
use crate::objects::object::Finding;

/// The result of verifying base backups.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct VerifiedBackups {
    /// Number of backups.
    pub backups: u64,
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes of the pieces before compression.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// Damaged and missing objects, with the backups that need them.
    pub damaged: Vec<Finding>,
    /// Objects that could not be read.
    pub unreadable: Vec<Finding>,
    /// Keys that do not belong to a backup.
    pub unknown: Vec<String>,
}

/// Verifies all backups: their descriptions and manifests, and that each piece exists and, unless `is_fast`,
/// has the content that was compared with the manifest when the backup was made. Each piece is read once.
///
/// # Errors
/// The store's errors.
pub fn verify(
    archive: &Archive,
    is_fast: bool,
    threads: usize,
    is_unreadable: &dyn Fn(&ArchiveError) -> bool,
) -> Result<VerifiedBackups, ArchiveError> {
    let inventory = Inventory::read(archive)?;
    let mut found = VerifiedBackups {
        backups: inventory.backups.len() as u64,
        stored_bytes: inventory.stored_bytes(),
        damaged: inventory.unreadable.clone(),
        unknown: inventory.unknown.clone(),
        ..VerifiedBackups::default()
    };
    // Of each piece: its hash, its bytes, and the first backup that needs it.
    let mut pieces: BTreeMap<String, (PieceHash, u64, String)> = BTreeMap::new();
    for backup in &inventory.backups {
        let list = read_pieces(archive, backup);
        let manifest = read_manifest(archive, backup).and_then(|text| {
            let key = name::key(&backup.name, name::MANIFEST);
            let read = Manifest::<ManifestFiles>::read(text.as_slice());
            read.map(drop).map_err(|problem| damaged(archive, &key, problem))
        });
        match &list {
            Ok(list) => pieces.extend(list.stored().map(|(folder, hash, bytes, _)| {
                (piece_key(folder, hash), (hash, bytes, backup.name.clone()))
            })),
            Err(error) => found.add(archive, &name::key(&backup.name, name::PIECES), error, is_unreadable),
        }
        if let Err(error) = &manifest {
            found.add(archive, &name::key(&backup.name, name::MANIFEST), error, is_unreadable);
        }
    }
    let missing = |folder: &str, key: &str| !inventory.has_piece(folder, key);
    let pieces: Vec<(String, (PieceHash, u64, String))> = pieces.into_iter().collect();
    found.pieces = pieces.len() as u64;
    workers::run_in_order(
        0..pieces.len(),
        threads,
        || (),
        |(), index| {
            let (key, (hash, bytes, _)) = &pieces[index];
            match name::parse(key) {
                Some((folder, _)) if is_fast && missing(folder, key) => {
                    Err(damaged(archive, key, "expected the piece, found none".to_owned()))
                }
                _ if is_fast => Ok(0),
                _ => read_piece(archive, key, *hash, *bytes).map(|content| content.len() as u64),
            }
            .map_err(|error| (index, error))
        },
        |result| {
            match result {
                Ok(bytes) => found.raw_bytes += bytes,
                Err((index, error)) => {
                    let (key, (.., backup)) = &pieces[index];
                    found.add(archive, key, &error, is_unreadable);
                    let list = if is_unreadable_error(&error, is_unreadable) {
                        &mut found.unreadable
                    } else {
                        &mut found.damaged
                    };
                    if let Some(finding) = list.last_mut() {
                        finding.problem = format!("{}; the base backup {backup} needs it", finding.problem);
                    }
                }
            }
            ControlFlow::Continue(())
        },
    );
    if !found.damaged.is_empty() {
        found.forget_removed(archive, &inventory)?;
    }
    Ok(found)
}

fn is_unreadable_error(error: &BaseBackupError, is_unreadable: &dyn Fn(&ArchiveError) -> bool) -> bool {
    matches!(error, BaseBackupError::Archive(error) if is_unreadable(error))
}

impl VerifiedBackups {
    /// Drops findings on backups that were removed meanwhile.
    fn forget_removed(&mut self, archive: &Archive, before: &Inventory) -> Result<(), ArchiveError> {
        let left = names(archive)?;
        let gone = before.backups.iter().map(|backup| &backup.name).filter(|name| !left.contains(name));
        for name in gone {
            let folder = archive.stored_name(&name::folder(name));
            let is_of_it = |finding: &Finding| {
                finding.object.starts_with(&folder) || finding.problem.contains(name.as_str())
            };
            self.damaged.retain(|finding| !is_of_it(finding));
        }
        Ok(())
    }

    fn add(
        &mut self,
        archive: &Archive,
        key: &str,
        error: &BaseBackupError,
        is_unreadable: &dyn Fn(&ArchiveError) -> bool,
    ) {
        let finding = Finding { object: archive.stored_name(key), problem: error_text(error) };
        match is_unreadable_error(error, is_unreadable) {
            true => self.unreadable.push(finding),
            false => self.damaged.push(finding),
        }
    }
}
