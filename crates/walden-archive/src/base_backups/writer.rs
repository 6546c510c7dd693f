//! Stores a base backup.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use jiff::Timestamp;
use walden_format::lsn::Lsn;
use walden_recover::backup_name;
use walden_recover::manifest::{FileSums, ManifestFiles};

use super::cutter::{Cut, Cutter, Observer};
use super::documents::MAX_LIST_BYTES;
use super::documents::{Piece, PieceList, StoredArchive, StoredBackup, StoredObject, StoredRange, VERSION};
use super::error::BaseBackupError;
use super::inventory::{Inventory, is_locked, read_pieces};
use super::name::{self, PieceHash, piece_key};
use crate::archive::{Archive, ArchiveError};
use crate::hash::to_hex;
use crate::objects::backup_files::MANIFEST;
use crate::store::{Cause, Created, StoreError};

/// Files that recovery reads before the tar archives.
const SMALL_FILES: [&str; 4] = ["PG_VERSION", "backup_label", "tablespace_map", "global/pg_control"];
/// Largest of these files in bytes.
const MAX_SMALL_BYTES: u64 = 1 << 20;
/// The compression level of the list of pieces and of the manifest.
const LEVEL_OF_TEXTS: i32 = 9;

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

/// How a backup is stored.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriterOptions {
    /// Number of pieces that are compressed and stored at the same time.
    pub threads: usize,
    /// Compression level of zstd, 1 to 19.
    pub level: i32,
}

walden_format::setters!(WriterOptions { threads: usize, level: i32 });

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions { threads: 2, level: 3 }
    }
}

/// A base backup that is being stored. It exists once [`Writer::finish`] has returned.
pub struct Writer {
    archive: Archive,
    new: NewBackup,
    started: Timestamp,
    name: String,
    /// Whether pieces of earlier backups are known only by the names of objects, without a private key.
    is_locked: bool,
    folders: Vec<String>,
    contents: Contents,
    pool: Pool,
}

/// The received content.
#[derive(Default)]
struct Contents {
    archives: Vec<(Option<u32>, Vec<Slot>)>,
    cutter: Option<Cutter>,
    /// Parts that are cut and not yet passed on.
    cuts: Vec<Cut>,
    sums: FileSums,
    small_files: BTreeMap<String, Vec<u8>>,
    file: PathBuf,
    is_small_file: bool,
}

/// A part of a tar archive.
enum Slot {
    Inline(Vec<u8>),
    /// The number of a piece.
    Piece(usize),
}

impl Writer {
    /// Starts a backup. From now on, `prune` removes no pieces.
    ///
    /// # Errors
    /// The store's errors, and an archive of another cluster.
    pub fn begin(
        archive: &Archive,
        new: NewBackup,
        options: WriterOptions,
    ) -> Result<Writer, BaseBackupError> {
        archive.expect_cluster(new.system_identifier)?;
        // An archive without WAL belongs to no cluster.
        archive.identity()?;
        let started = Timestamp::now();
        let name = backup_name(started, new.start);
        let note = serde_json::json!({ "walden_backup": VERSION, "started": started.as_microsecond() });
        let text = serde_json::to_vec(&note).unwrap_or_default();
        if archive.store().create(&name::key(&name, name::STARTED), &text)? == Created::Exists {
            let location = archive.store().location().to_owned();
            return Err(BaseBackupError::Exists { name, location });
        }
        // Only now: a piece of a backup that is found from here on stays.
        let (folders, known, is_locked) = known_pieces(archive, &name)?;
        let pool = Pool::start(archive, &name, known, options).map_err(BaseBackupError::Thread)?;
        Ok(Writer {
            archive: archive.clone(),
            new,
            started,
            name,
            is_locked,
            folders,
            contents: Contents::default(),
            pool,
        })
    }

    /// Returns the name of the backup.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the archive is encrypted and no private key was named, so that pieces which only the
    /// list of an earlier backup names are stored again.
    pub fn is_without_list(&self) -> bool {
        self.is_locked
    }

    /// Starts the tar archive of a tablespace, or of the data directory (`None`).
    ///
    /// # Errors
    /// The archive before it is incomplete, or there was one of this tablespace.
    pub fn start_archive(&mut self, tablespace: Option<u32>) -> Result<(), BaseBackupError> {
        self.end_archive()?;
        if self.contents.archives.iter().any(|(known, _)| *known == tablespace) {
            let problem = format!("expected one tar archive of each tablespace, found two of {tablespace:?}");
            return Err(BaseBackupError::Content(problem));
        }
        self.contents.archives.push((tablespace, Vec::new()));
        self.contents.cutter = Some(Cutter::default());
        Ok(())
    }

    /// Adds bytes of the current tar archive.
    ///
    /// # Errors
    /// They are not those of a tar archive, or a piece cannot be stored.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), BaseBackupError> {
        let Some(mut cutter) = self.contents.cutter.take() else {
            return Err(BaseBackupError::Content(
                "expected the start of a tar archive, found content".into(),
            ));
        };
        let added = cutter.add(bytes, &mut self.contents);
        self.contents.cutter = Some(cutter);
        added.map_err(BaseBackupError::Content)?;
        self.pass_on()
    }

    fn end_archive(&mut self) -> Result<(), BaseBackupError> {
        let Some(cutter) = self.contents.cutter.take() else { return Ok(()) };
        cutter.finish(&mut self.contents).map_err(BaseBackupError::Content)?;
        self.pass_on()
    }

    /// Passes complete pieces on to the threads. Waits while all are busy.
    fn pass_on(&mut self) -> Result<(), BaseBackupError> {
        let Contents { archives, cuts, .. } = &mut self.contents;
        let Some((_, slots)) = archives.last_mut() else { return Ok(()) };
        for cut in cuts.drain(..) {
            slots.push(match cut {
                Cut::Inline(bytes) => Slot::Inline(bytes),
                Cut::Piece(content) => Slot::Piece(self.pool.add(content)?),
            });
        }
        Ok(())
    }

    /// Completes the backup. `manifest` is its `backup_manifest`, with which its files are compared.
    ///
    /// # Errors
    /// A piece cannot be stored, the files differ from the manifest, or objects were removed meanwhile.
    pub fn finish(mut self, manifest: &[u8]) -> Result<StoredBackup, BaseBackupError> {
        self.end_archive()?;
        let pieces = self.pool.finish()?;
        let parsed: walden_recover::manifest::Manifest<ManifestFiles> =
            walden_recover::manifest::Manifest::read(manifest)
                .map_err(|problem| BaseBackupError::Content(format!("{problem}, in {MANIFEST}")))?;
        let expected = self.new.system_identifier;
        if let Some(found) = parsed.system_identifier.filter(|&found| found != expected) {
            let problem = format!("expected system identifier {expected}, found {found}");
            return Err(BaseBackupError::Manifest(problem));
        }
        parsed.compare(&self.contents.sums).map_err(BaseBackupError::Manifest)?;
        let range = |range: &walden_recover::manifest::WalRange| StoredRange {
            timeline: range.timeline,
            start_lsn: range.start.to_string(),
            end_lsn: range.end.unwrap_or(range.start).to_string(),
        };
        let wal: Vec<StoredRange> = parsed.ranges.iter().map(range).collect();
        let list = self.piece_list(&pieces)?;
        let (mut stored_bytes, mut new_bytes) = (0, 0);
        for (folder, _, _, bytes) in list.stored() {
            stored_bytes += bytes;
            new_bytes += if folder == self.name { bytes } else { 0 };
        }
        let (files, bytes) = self.contents.sums.totals();
        let small_files = self.contents.small_files.iter();
        let text = serde_json::to_vec(&list).map_err(|error| BaseBackupError::Content(error.to_string()))?;
        let piece_list = self.store_text(name::PIECES, &text)?;
        let backup = StoredBackup {
            walden_backup: VERSION,
            name: self.name.clone(),
            label: self.new.label.clone(),
            server_version: self.new.server_version.clone(),
            system_identifier: expected.to_string(),
            started: self.started.as_microsecond(),
            completed: Timestamp::now().as_microsecond(),
            wal,
            files,
            bytes,
            pieces: list.stored().count() as u64,
            stored_bytes,
            new_bytes,
            piece_list,
            manifest: self.store_text(name::MANIFEST, manifest)?,
            small_files: small_files.map(|(name, content)| (name.clone(), to_hex(content))).collect(),
        };
        self.expect_pieces(&list)?;
        self.complete(&backup)?;
        Ok(backup)
    }

    fn piece_list(&self, pieces: &[StoredPiece]) -> Result<PieceList, BaseBackupError> {
        let mut archives = Vec::new();
        for (tablespace, slots) in &self.contents.archives {
            let mut of_archive = Vec::with_capacity(slots.len());
            for slot in slots {
                of_archive.push(match slot {
                    Slot::Inline(bytes) => Piece::Inline(to_hex(bytes)),
                    Slot::Piece(number) => {
                        let piece = pieces.get(*number).ok_or_else(lost_thread)?;
                        Piece::Stored(piece.hash, piece.bytes, piece.stored_bytes, piece.folder)
                    }
                });
            }
            archives.push(StoredArchive { tablespace: *tablespace, pieces: of_archive });
        }
        if !archives.iter().any(|archive| archive.tablespace.is_none()) {
            let problem = "expected the tar archive of the data directory, found none";
            return Err(BaseBackupError::Content(problem.to_owned()));
        }
        Ok(PieceList::new(self.folders.clone(), archives))
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

    fn removed(&self, key: &str) -> BaseBackupError {
        BaseBackupError::Removed {
            name: self.name.clone(),
            object: self.archive.stored_name(key),
            location: self.archive.store().location().to_owned(),
        }
    }
}

impl Observer for Contents {
    fn cut(&mut self, cut: Cut) {
        self.cuts.push(cut);
    }

    fn start_file(&mut self, path: PathBuf, bytes: u64) {
        let tablespace = self.archives.last().and_then(|(tablespace, _)| *tablespace);
        self.file = match tablespace {
            Some(oid) => Path::new("pg_tblspc").join(oid.to_string()).join(path),
            None => path,
        };
        let name = SMALL_FILES.iter().find(|name| self.file.as_path() == Path::new(name));
        self.is_small_file = name.is_some() && bytes <= MAX_SMALL_BYTES;
        if let Some(name) = name.filter(|_| self.is_small_file) {
            self.small_files.insert((*name).to_owned(), Vec::new());
        }
        self.sums.start(self.file.clone());
    }

    fn content(&mut self, bytes: &[u8]) {
        self.sums.add(&self.file, bytes);
        if self.is_small_file
            && let Some(content) = self.file.to_str().and_then(|name| self.small_files.get_mut(name))
        {
            content.extend_from_slice(bytes);
        }
    }
}

/// A piece of an earlier backup.
#[derive(Clone, Copy)]
struct Known {
    folder: u32,
    stored_bytes: u64,
}

/// Returns the folders and pieces of the newest backup, and whether they are known only from the listing. The
/// first folder is that of the new backup.
#[expect(clippy::type_complexity, reason = "taken apart where it is called")]
fn known_pieces(
    archive: &Archive,
    name: &str,
) -> Result<(Vec<String>, HashMap<PieceHash, Known>, bool), BaseBackupError> {
    let (mut folders, mut known) = (vec![name.to_owned()], HashMap::new());
    let inventory = match Inventory::read(archive) {
        // Without a private key, the names of objects show the pieces in the folders of complete backups.
        Err(error) if is_locked(&error) => {
            let inventory = Inventory::list(archive)?;
            for (folder, objects) in inventory.folders.iter().filter(|(_, folder)| folder.has_backup) {
                let number = folders.len() as u32;
                folders.push(folder.clone());
                let pieces = objects.pieces.iter().map(|(key, (hash, bytes))| {
                    let stored_bytes = archive.store().content_bytes(key, *bytes).unwrap_or(*bytes);
                    (*hash, Known { folder: number, stored_bytes })
                });
                known.extend(pieces);
            }
            return Ok((folders, known, true));
        }
        other => other?,
    };
    let Some(newest) = inventory.backups.iter().max_by_key(|backup| backup.completed) else {
        return Ok((folders, known, false));
    };
    let list = match read_pieces(archive, newest) {
        Ok(list) => list,
        // A backup that is damaged, or was just removed, has nothing to refer to.
        Err(error) if error.is_damage() => return Ok((folders, known, false)),
        Err(error) => return Err(error),
    };
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    for (folder, hash, _, stored_bytes) in list.stored() {
        if !inventory.has_piece(folder, &piece_key(folder, hash)) {
            continue;
        }
        let number = *numbers.entry(folder).or_insert_with(|| {
            folders.push(folder.to_owned());
            folders.len() as u32 - 1
        });
        known.insert(hash, Known { folder: number, stored_bytes });
    }
    Ok((folders, known, false))
}

/// A piece that is stored.
#[derive(Clone, Copy)]
struct StoredPiece {
    hash: PieceHash,
    bytes: u64,
    stored_bytes: u64,
    folder: u32,
}

type Outcome = (usize, Result<StoredPiece, StoreError>);

/// Threads that compress and store pieces.
struct Pool {
    /// `None` once no piece follows.
    jobs: Option<SyncSender<(usize, Vec<u8>)>>,
    outcomes: Receiver<Outcome>,
    threads: Vec<JoinHandle<()>>,
    added: usize,
    pieces: BTreeMap<usize, StoredPiece>,
}

impl Pool {
    fn start(
        archive: &Archive,
        name: &str,
        known: HashMap<PieceHash, Known>,
        options: WriterOptions,
    ) -> std::io::Result<Pool> {
        let (jobs, received) = sync_channel::<(usize, Vec<u8>)>(1);
        let (sender, outcomes) = channel();
        let (received, known) = (Arc::new(Mutex::new(received)), Arc::new(known));
        let mut threads = Vec::new();
        for _ in 0..options.threads.max(1) {
            let (archive, name, sender): (Archive, String, Sender<Outcome>) =
                (archive.clone(), name.to_owned(), sender.clone());
            let (received, known) = (Arc::clone(&received), Arc::clone(&known));
            threads.push(Builder::new().name("store-pieces".into()).spawn(move || {
                loop {
                    let job = received.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, content)) = job else { break };
                    let outcome = store_piece(&archive, &name, &known, &content, options.level);
                    let is_failed = outcome.is_err();
                    if sender.send((number, outcome)).is_err() || is_failed {
                        break;
                    }
                }
            })?);
        }
        Ok(Pool { jobs: Some(jobs), outcomes, threads, added: 0, pieces: BTreeMap::new() })
    }

    /// Adds a piece, and returns its number.
    fn add(&mut self, content: Vec<u8>) -> Result<usize, BaseBackupError> {
        self.take_outcomes()?;
        let number = self.added;
        self.added += 1;
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send((number, content)).is_ok());
        if !sent {
            self.take_outcomes()?;
            return Err(lost_thread());
        }
        Ok(number)
    }

    fn take_outcomes(&mut self) -> Result<(), BaseBackupError> {
        while let Ok((number, outcome)) = self.outcomes.try_recv() {
            self.pieces.insert(number, outcome?);
        }
        Ok(())
    }

    /// Waits until all pieces are stored, and returns them by their numbers.
    fn finish(&mut self) -> Result<Vec<StoredPiece>, BaseBackupError> {
        self.jobs = None;
        while self.pieces.len() < self.added {
            let (number, outcome) = self.outcomes.recv().map_err(|_| lost_thread())?;
            self.pieces.insert(number, outcome?);
        }
        Ok(self.pieces.values().copied().collect())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lost_thread() -> BaseBackupError {
    BaseBackupError::Content("expected all pieces to be stored, found a thread that has ended".to_owned())
}

fn store_piece(
    archive: &Archive,
    name: &str,
    known: &HashMap<PieceHash, Known>,
    content: &[u8],
    level: i32,
) -> Result<StoredPiece, StoreError> {
    let (hash, bytes) = (PieceHash::of(content), content.len() as u64);
    if let Some(Known { folder, stored_bytes }) = known.get(&hash).copied() {
        return Ok(StoredPiece { hash, bytes, stored_bytes, folder });
    }
    let key = piece_key(name, hash);
    let failed = |error| StoreError {
        source: Some(Box::new(error)),
        ..StoreError::new("compress", &key, archive.store().location(), Cause::Other)
    };
    let object = zstd::bulk::compress(content, level).map_err(failed)?;
    // If it exists, this backup has another piece of the same content.
    archive.store().create(&key, &object)?;
    Ok(StoredPiece { hash, bytes, stored_bytes: object.len() as u64, folder: 0 })
}

/// Returns the first segment that a backup needs and the archive lacks.
///
/// # Errors
/// The store's errors.
pub fn first_missing_segment(
    archive: &Archive,
    backup: &StoredBackup,
) -> Result<Option<String>, ArchiveError> {
    let missing = crate::inventory::segments::first_missing(archive, &backup.wal_ranges())?;
    Ok(missing.map(|name| name.to_string()))
}
