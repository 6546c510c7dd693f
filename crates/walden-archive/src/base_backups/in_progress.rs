//! A backup that is being stored: the common part of the writers of tar archives and of files.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use walden_format::lsn::Lsn;
use walden_recover::backup_name;
use walden_recover::manifest::FileSums;

use super::documents::{
    MAX_LIST_BYTES, PieceDigest, PieceList, StoredBackup, StoredObject, StoredRange, VERSION,
};
use super::error::BaseBackupError;
use super::inventory::{Inventory, is_locked, read_pieces};
use super::name::{self, PieceHash, piece_key};
use super::progress::{self, Noted};
use super::removal;
use super::started::{self, is_writer_gone};
use crate::archive::Archive;
use crate::hash::to_hex;
use crate::store::{Cause, Created, StoreError};

/// The compression level of the list of pieces and of the manifest.
const LEVEL_OF_TEXTS: i32 = 9;
/// Longest time between two objects of a backup whose writer is not killed, if `started.json` promises so.
pub(super) const HEARTBEAT: SignedDuration = SignedDuration::from_secs(60);
/// Time without a new object after which such a writer counts as killed.
const SILENT_FOR: SignedDuration = SignedDuration::from_mins(10);

/// The backup that is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewBackup {
    /// The label.
    pub label: String,
    /// The server's version.
    pub server_version: String,
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// The redo pointer of the backup's checkpoint.
    pub start: Lsn,
}

/// A backup that is being stored.
pub(super) struct BackupInProgress {
    pub archive: Archive,
    pub new: NewBackup,
    pub name: String,
    started: Timestamp,
    level: i32,
    /// Whether pieces of earlier backups are known only by the names of objects, without a private key.
    pub is_locked: bool,
    /// The backups in whose folders pieces are; the first one is this backup.
    pub folders: Vec<String>,
    /// Pieces of the newest backup and of interrupted ones.
    known: HashMap<PieceHash, Known>,
    /// Pieces of the same backups that are recognized without their content, by their frames.
    pub digests: HashMap<PieceHash, KnownPiece>,
    /// The newest backup, if its pieces are among them.
    pub newest: Option<StoredBackup>,
    /// Backups that were not completed.
    interrupted: Vec<String>,
}

/// A piece of an earlier backup.
#[derive(Clone, Copy)]
struct Known {
    folder: u32,
    stored_bytes: u64,
}

/// A piece of an earlier backup that is recognized without its content.
#[derive(Clone, Debug)]
pub(super) struct KnownPiece {
    pub piece: StoredPiece,
    pub digest: PieceDigest,
    /// Whether the backup was not completed.
    pub is_of_interrupted: bool,
}

/// A piece that is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredPiece {
    pub hash: PieceHash,
    pub bytes: u64,
    pub stored_bytes: u64,
    /// Its number in the list of folders.
    pub folder: u32,
}

impl BackupInProgress {
    /// Starts a backup. From now on, `prune` removes no pieces. With `has_heartbeat`, the caller stores an
    /// object at least every [`HEARTBEAT`].
    pub fn begin(
        archive: &Archive,
        new: NewBackup,
        level: i32,
        has_heartbeat: bool,
    ) -> Result<BackupInProgress, BaseBackupError> {
        archive.expect_cluster(new.system_identifier)?;
        // An archive without WAL belongs to no cluster.
        archive.identity()?;
        let started = Timestamp::now();
        let name = backup_name(started, new.start);
        let text = started::text(started, has_heartbeat.then_some(HEARTBEAT));
        if archive.store().create(&name::key(&name, name::STARTED), &text)? == Created::Exists {
            let location = archive.store().location().to_owned();
            return Err(BaseBackupError::Exists { name, location });
        }
        let mut backup = BackupInProgress {
            archive: archive.clone(),
            new,
            folders: vec![name.clone()],
            name,
            started,
            level,
            is_locked: false,
            known: HashMap::new(),
            digests: HashMap::new(),
            newest: None,
            interrupted: Vec::new(),
        };
        // Only now: a piece of a backup that is found from here on stays.
        backup.find_known_pieces()?;
        Ok(backup)
    }

    /// Finds the pieces of the newest backup and of interrupted ones.
    fn find_known_pieces(&mut self) -> Result<(), BaseBackupError> {
        let archive = self.archive.clone();
        let inventory = match Inventory::read(&archive) {
            // Without a private key, the names of objects show the pieces in the folders of complete backups.
            Err(error) if is_locked(&error) => {
                self.is_locked = true;
                let inventory = Inventory::list(&archive)?;
                for (folder, _) in inventory.folders.iter().filter(|(_, folder)| folder.has_backup) {
                    self.add_folder(&inventory, folder);
                }
                inventory
            }
            other => other?,
        };
        // Without this object, its pieces may be about to be removed.
        let is_interrupted = |name: &String| {
            let folder = inventory.folders.get(name);
            *name != self.name && folder.is_some_and(|folder| folder.has_started && !folder.has_backup)
        };
        self.interrupted = inventory.folders.keys().filter(|name| is_interrupted(name)).cloned().collect();
        for name in self.interrupted.clone() {
            let folder = self.add_folder(&inventory, &name);
            for Noted { bytes, stored_bytes, digest } in progress::read(&archive, &inventory, &name)? {
                let piece = StoredPiece { hash: digest.piece, bytes, stored_bytes, folder };
                if inventory.has_piece(&name, &piece_key(&name, piece.hash)) {
                    let known = KnownPiece { piece, digest, is_of_interrupted: true };
                    self.digests.insert(known.digest.frame, known);
                }
            }
        }
        let Some(newest) = inventory.backups.iter().max_by_key(|backup| backup.completed) else {
            return Ok(());
        };
        let list = match read_pieces(&archive, newest) {
            Ok(list) => list,
            // A backup that is damaged, or was just removed, has nothing to refer to.
            Err(error) if error.is_damage() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut pieces: HashMap<PieceHash, StoredPiece> = HashMap::new();
        for (folder, hash, bytes, stored_bytes) in list.stored() {
            if inventory.has_piece(folder, &piece_key(folder, hash)) {
                let folder = self.number_of(folder);
                self.known.insert(hash, Known { folder, stored_bytes });
                pieces.insert(hash, StoredPiece { hash, bytes, stored_bytes, folder });
            }
        }
        self.newest = (!list.digests.is_empty()).then(|| newest.clone());
        for digest in list.digests {
            // A piece of an interrupted backup is newer.
            if let Some(&piece) = pieces.get(&digest.piece) {
                let known = KnownPiece { piece, digest, is_of_interrupted: false };
                self.digests.entry(known.digest.frame).or_insert(known);
            }
        }
        Ok(())
    }

    /// Adds the listed pieces of a folder, and returns its number.
    fn add_folder(&mut self, inventory: &Inventory, name: &str) -> u32 {
        let number = self.number_of(name);
        for (key, (hash, bytes)) in inventory.folders.get(name).iter().flat_map(|folder| &folder.pieces) {
            let stored_bytes = self.archive.store().content_bytes(key, *bytes).unwrap_or(*bytes);
            self.known.insert(*hash, Known { folder: number, stored_bytes });
        }
        number
    }

    fn number_of(&mut self, folder: &str) -> u32 {
        let number = self.folders.iter().position(|known| known == folder).unwrap_or_else(|| {
            self.folders.push(folder.to_owned());
            self.folders.len() - 1
        });
        number as u32
    }

    /// Stores a piece, unless an earlier backup has it.
    pub fn store_piece(&self, content: &[u8]) -> Result<StoredPiece, StoreError> {
        let (hash, bytes) = (PieceHash::of(content), content.len() as u64);
        if let Some(Known { folder, stored_bytes }) = self.known.get(&hash).copied() {
            return Ok(StoredPiece { hash, bytes, stored_bytes, folder });
        }
        let key = piece_key(&self.name, hash);
        let store = self.archive.store();
        let failed = |error| StoreError {
            source: Some(Box::new(error)),
            ..StoreError::new("compress", &key, store.location(), Cause::Other)
        };
        let object = zstd::bulk::compress(content, self.level).map_err(failed)?;
        // If it exists, this backup has another piece of the same content.
        store.create(&key, &object)?;
        Ok(StoredPiece { hash, bytes, stored_bytes: object.len() as u64, folder: 0 })
    }

    /// Completes the backup.
    pub fn finish(
        &self,
        list: &PieceList,
        sums: &FileSums,
        small_files: &BTreeMap<String, Vec<u8>>,
        manifest: &[u8],
        ranges: &[walden_recover::manifest::WalRange],
    ) -> Result<StoredBackup, BaseBackupError> {
        let range = |range: &walden_recover::manifest::WalRange| StoredRange {
            timeline: range.timeline,
            start_lsn: range.start.to_string(),
            end_lsn: range.end.unwrap_or(range.start).to_string(),
        };
        let (mut stored_bytes, mut new_bytes) = (0, 0);
        for (folder, _, _, bytes) in list.stored() {
            stored_bytes += bytes;
            new_bytes += if folder == self.name { bytes } else { 0 };
        }
        let (files, bytes) = sums.totals();
        let text = serde_json::to_vec(list).map_err(|error| BaseBackupError::Content(error.to_string()))?;
        let piece_list = self.store_text(name::PIECES, &text)?;
        let backup = StoredBackup {
            walden_backup: VERSION,
            name: self.name.clone(),
            label: self.new.label.clone(),
            server_version: self.new.server_version.clone(),
            system_identifier: self.new.system_identifier.to_string(),
            started: self.started.as_microsecond(),
            completed: Timestamp::now().as_microsecond(),
            wal: ranges.iter().map(range).collect(),
            files,
            bytes,
            pieces: list.stored().count() as u64,
            stored_bytes,
            new_bytes,
            piece_list,
            manifest: self.store_text(name::MANIFEST, manifest)?,
            small_files: small_files.iter().map(|(name, content)| (name.clone(), to_hex(content))).collect(),
        };
        self.expect_pieces(list)?;
        self.complete(&backup)?;
        self.remove_interrupted();
        Ok(backup)
    }

    /// Stores a compressed document.
    fn store_text(&self, name: &str, text: &[u8]) -> Result<StoredObject, BaseBackupError> {
        if text.len() as u64 > MAX_LIST_BYTES {
            let problem = format!("expected {name} of at most {MAX_LIST_BYTES} bytes, found {}", text.len());
            return Err(BaseBackupError::Content(problem));
        }
        let failed = |error: std::io::Error| BaseBackupError::Content(error.to_string());
        let object = zstd::bulk::compress(text, LEVEL_OF_TEXTS).map_err(failed)?;
        // If it exists, an attempt has stored it whose answer was lost: the folder is this backup's.
        self.archive.store().create(&name::key(&self.name, name), &object)?;
        Ok(StoredObject::of(text))
    }

    /// Checks that all pieces exist.
    fn expect_pieces(&self, list: &PieceList) -> Result<(), BaseBackupError> {
        let inventory = Inventory::list(&self.archive)?;
        for (folder, hash, _, _) in list.stored() {
            let key = piece_key(folder, hash);
            if !inventory.has_piece(folder, &key) {
                return Err(self.removed(&key));
            }
        }
        Ok(())
    }

    /// Stores `backup.json`. `prune` removes `started.json` of an abandoned backup first: without it, this
    /// backup lacks pieces, or soon will.
    fn complete(&self, backup: &StoredBackup) -> Result<(), BaseBackupError> {
        let (started, key) = (name::key(&self.name, name::STARTED), name::key(&self.name, name::BACKUP));
        let expect_started = || match self.archive.store().size(&started) {
            Err(error) if error.cause == Cause::NotFound => Err(self.removed(&started)),
            other => other.map(drop).map_err(BaseBackupError::from),
        };
        expect_started()?;
        let text =
            serde_json::to_vec_pretty(backup).map_err(|error| BaseBackupError::Content(error.to_string()))?;
        self.archive.store().create(&key, &text)?;
        if let Err(error) = expect_started() {
            self.archive.store().discard(&key)?;
            return Err(error);
        }
        Ok(())
    }

    /// Removes interrupted backups whose writers are known to be gone, and the notes of this backup. `prune`
    /// removes the objects that cannot be removed now: this backup is complete.
    fn remove_interrupted(&self) {
        let Ok(inventory) = Inventory::list(&self.archive) else { return };
        for number in inventory.folders.get(&self.name).iter().flat_map(|folder| &folder.progress) {
            let _ = self.archive.store().discard(&progress::key(&self.name, *number));
        }
        // By the store's clock: this backup has stored its last object just now.
        let now = inventory.folders.get(&self.name).and_then(|folder| folder.newest);
        let is_gone = |name: &&String| {
            let newest = inventory.folders.get(*name).and_then(|folder| folder.newest);
            let age = now.zip(newest).map(|(now, newest)| now.duration_since(newest));
            is_writer_gone(&self.archive, name, age.is_some_and(|age| age > SILENT_FOR))
        };
        let gone: Vec<String> = self.interrupted.iter().filter(is_gone).cloned().collect();
        if !gone.is_empty() {
            let _ = removal::remove_abandoned(&self.archive, &gone);
        }
    }

    fn removed(&self, key: &str) -> BaseBackupError {
        BaseBackupError::Removed {
            name: self.name.clone(),
            object: self.archive.stored_name(key),
            location: self.archive.store().location().to_owned(),
        }
    }
}

pub(super) fn lost_thread() -> BaseBackupError {
    BaseBackupError::Content("expected all pieces to be stored, found a thread that has ended".to_owned())
}
