//! Stores a base backup.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use walden_recover::manifest::{FileSums, ManifestFiles};

use super::cutter::{Cut, Cutter, Observer};
use super::documents::{Piece, PieceList, StoredArchive, StoredBackup};
use super::error::BaseBackupError;
use super::in_progress::{BackupInProgress, NewBackup, StoredPiece, lost_thread};
use crate::archive::{Archive, ArchiveError};
use crate::hash::to_hex;
use crate::objects::backup_files::MANIFEST;
use crate::store::StoreError;

/// Files that recovery reads before the tar archives.
const SMALL_FILES: [&str; 4] = ["PG_VERSION", "backup_label", "tablespace_map", "global/pg_control"];
/// Largest of these files in bytes.
const MAX_SMALL_BYTES: u64 = 1 << 20;

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
    backup: Arc<BackupInProgress>,
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
        let backup = Arc::new(BackupInProgress::begin(archive, new, options.level, false)?);
        let pool = Pool::start(&backup, options.threads).map_err(BaseBackupError::Thread)?;
        Ok(Writer { backup, contents: Contents::default(), pool })
    }

    /// Returns the name of the backup.
    pub fn name(&self) -> &str {
        &self.backup.name
    }

    /// Returns whether the archive is encrypted and no private key was named, so that pieces which only the
    /// list of an earlier backup names are stored again.
    pub fn is_without_list(&self) -> bool {
        self.backup.is_locked
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
        let expected = self.backup.new.system_identifier;
        if let Some(found) = parsed.system_identifier.filter(|&found| found != expected) {
            let problem = format!("expected system identifier {expected}, found {found}");
            return Err(BaseBackupError::Manifest(problem));
        }
        parsed.compare(&self.contents.sums).map_err(BaseBackupError::Manifest)?;
        let list = self.piece_list(&pieces)?;
        self.backup.finish(&list, &self.contents.sums, &self.contents.small_files, manifest, &parsed.ranges)
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
        Ok(PieceList::new(self.backup.folders.clone(), archives))
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
    fn start(backup: &Arc<BackupInProgress>, threads: usize) -> std::io::Result<Pool> {
        let (jobs, received) = sync_channel::<(usize, Vec<u8>)>(1);
        let (sender, outcomes) = channel();
        let received = Arc::new(Mutex::new(received));
        let mut started = Vec::new();
        for _ in 0..threads.max(1) {
            let (backup, received) = (Arc::clone(backup), Arc::clone(&received));
            let sender: Sender<Outcome> = sender.clone();
            started.push(Builder::new().name("store-pieces".into()).spawn(move || {
                loop {
                    let job = received.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, content)) = job else { break };
                    let outcome = backup.store_piece(&content);
                    let is_failed = outcome.is_err();
                    if sender.send((number, outcome)).is_err() || is_failed {
                        break;
                    }
                }
            })?);
        }
        Ok(Pool { jobs: Some(jobs), outcomes, threads: started, added: 0, pieces: BTreeMap::new() })
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
