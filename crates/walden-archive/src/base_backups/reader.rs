//! Reads the tar archives of a stored backup. Several threads fetch, decompress and verify pieces ahead.
//!
//! A piece that is a part of a large file is not fetched if an existing file has the same content in the same
//! place, according to its BLAKE3.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use rustix::fs::OFlags;
use walden_recover::{StreamedBackup, TarStreams};

use super::cutter::large_file;
use super::documents::{Piece, PieceList, StoredBackup, from_hex};
use super::error::BaseBackupError;
use super::inventory::{damaged, read_manifest, read_pieces};
use super::name::{PieceHash, piece_key};
use crate::archive::{Archive, ArchiveError};
use crate::restore::base::BackupStart;

/// Opens a backup for [`BaseBackup::open_streamed`](walden_recover::BaseBackup::open_streamed). A piece that
/// is missing or damaged is read from the first of `others` that has it: copies of the archive.
///
/// # Errors
/// The store's errors, and damage of its descriptions.
pub fn open(
    archive: &Archive,
    others: &[Archive],
    backup: &StoredBackup,
    threads: usize,
) -> Result<StreamedBackup, BaseBackupError> {
    let pieces = read_pieces(archive, backup)?;
    let tablespaces = pieces.archives.iter().filter_map(|tar| tar.tablespace).collect();
    let small = |name: &str| {
        let key = super::name::key(&backup.name, super::name::BACKUP);
        backup.small_file(name).map_err(|problem| damaged(archive, &key, problem))
    };
    let archives = std::iter::once(archive).chain(others).cloned().collect();
    Ok(StreamedBackup {
        name: Path::new(archive.store().location())
            .join(super::name::folder(&backup.name).trim_end_matches('/')),
        version: String::from_utf8_lossy(&small("PG_VERSION")?).into_owned(),
        control: small("global/pg_control")?,
        label: small("backup_label")?,
        tablespace_map: small("tablespace_map")?,
        tablespaces,
        manifest: read_manifest(archive, backup)?,
        bytes: backup.bytes,
        streams: Arc::new(Streams { archives, pieces: Arc::new(pieces), threads: threads.max(1) }),
    })
}

/// Returns where recovery from a stored backup starts, and the range of WAL that makes it consistent.
pub fn open_start(backup: &StoredBackup) -> BackupStart {
    let ranges = backup.wal_ranges();
    let (timeline, start) = backup.start();
    BackupStart {
        start,
        timeline: Some(timeline),
        end: ranges.last().and_then(|range| range.end),
        end_timeline: ranges.last().map(|range| range.timeline),
        system_identifier: backup.system_identifier.parse().ok(),
        segment_bytes: None,
    }
}

/// The tar archives of a stored backup.
struct Streams {
    archives: Arc<[Archive]>,
    pieces: Arc<PieceList>,
    threads: usize,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("folders", &self.pieces.folders).finish_non_exhaustive()
    }
}

impl TarStreams for Streams {
    fn open(&self, tablespace: Option<u32>, existing: Option<&Path>) -> io::Result<Box<dyn Read + Send>> {
        let number = self.pieces.archives.iter().position(|tar| tar.tablespace == tablespace);
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        let (sender, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..self.threads {
            let (archives, receiver) = (Arc::clone(&self.archives), Arc::clone(&receiver));
            Builder::new().name("read-pieces".into()).spawn(move || {
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { key, hash, bytes, place, result }) = job else { break };
                    let found = place.and_then(|place| place.read(hash, bytes));
                    // An error means that the reader was dropped.
                    let _ = result.send(match found {
                        Some(content) => Ok(content),
                        None => read_from_any(&archives, &key, hash, bytes),
                    });
                }
            })?;
        }
        Ok(Box::new(PieceReader {
            pieces: Arc::clone(&self.pieces),
            archive: number,
            next: 0,
            ahead: VecDeque::new(),
            max_ahead: 2 * self.threads,
            jobs: sender,
            existing: existing.map(Path::to_owned),
            large: None,
            current: Vec::new(),
            read: 0,
        }))
    }
}

/// A piece to fetch.
struct Job {
    key: String,
    hash: PieceHash,
    bytes: u64,
    /// Where an existing file may have the same content.
    place: Option<Place>,
    result: Sender<Result<Vec<u8>, BaseBackupError>>,
}

/// A place in a file.
#[derive(Clone, Debug)]
struct Place {
    file: PathBuf,
    offset: u64,
}

impl Place {
    /// Reads the content of a hash, if the file has it here. Otherwise, whatever the reason, it is fetched.
    fn read(&self, hash: PieceHash, bytes: u64) -> Option<Vec<u8>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.file).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.len() < self.offset.checked_add(bytes)? {
            return None;
        }
        let mut content = vec![0; usize::try_from(bytes).ok()?];
        file.read_exact_at(&mut content, self.offset).ok()?;
        (PieceHash::of(&content) == hash).then_some(content)
    }
}

enum Ahead {
    Ready(Vec<u8>),
    Fetched(Receiver<Result<Vec<u8>, BaseBackupError>>),
}

/// Reads the pieces of a tar archive in order.
struct PieceReader {
    pieces: Arc<PieceList>,
    archive: usize,
    /// Number of the next piece that is requested.
    next: usize,
    ahead: VecDeque<Ahead>,
    max_ahead: usize,
    jobs: Sender<Job>,
    /// A folder whose files may have the same content.
    existing: Option<PathBuf>,
    /// The place of the next piece of a large file, and how many bytes of the file follow.
    large: Option<(Place, u64)>,
    current: Vec<u8>,
    /// Bytes of `current` that were read.
    read: usize,
}

impl PieceReader {
    fn request_ahead(&mut self) -> io::Result<()> {
        let Some(tar) = self.pieces.archives.get(self.archive) else { return Ok(()) };
        while self.ahead.len() < self.max_ahead {
            let Some(piece) = tar.pieces.get(self.next) else { break };
            self.next += 1;
            self.ahead.push_back(match piece {
                Piece::Inline(digits) => {
                    let content = from_hex(digits).unwrap_or_default();
                    if take_place(&mut self.large, content.len() as u64).is_none()
                        && let Some(existing) = &self.existing
                        && let Some((path, bytes)) = large_file(&content)
                        && path.components().all(|part| matches!(part, Component::Normal(_)))
                    {
                        self.large = Some((Place { file: existing.join(path), offset: 0 }, bytes));
                    }
                    Ahead::Ready(content)
                }
                Piece::Stored(hash, bytes, _, folder) => {
                    let folder = self.pieces.folders.get(*folder as usize).map_or("", String::as_str);
                    let (result, receiver) = channel();
                    let place = take_place(&mut self.large, *bytes);
                    let job =
                        Job { key: piece_key(folder, *hash), hash: *hash, bytes: *bytes, place, result };
                    self.jobs.send(job).map_err(|_| io::ErrorKind::BrokenPipe)?;
                    Ahead::Fetched(receiver)
                }
            });
        }
        Ok(())
    }
}

/// Returns the place of the next piece if it is a part of a large file, and advances by its bytes.
fn take_place(large: &mut Option<(Place, u64)>, bytes: u64) -> Option<Place> {
    let (place, left) = large.take()?;
    if left < bytes {
        return None;
    }
    let next = Place { file: place.file.clone(), offset: place.offset + bytes };
    *large = (left > bytes).then_some((next, left - bytes));
    Some(place)
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.current.len() {
            self.request_ahead()?;
            self.current = match self.ahead.pop_front() {
                None => return Ok(0),
                Some(Ahead::Ready(content)) => content,
                Some(Ahead::Fetched(receiver)) => {
                    let fetched = receiver.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
                    fetched.map_err(|error| {
                        let text = walden_source::error_text(&error);
                        let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
                        io::Error::other(text + &hint)
                    })?
                }
            };
            self.read = 0;
        }
        let bytes = buffer.len().min(self.current.len() - self.read);
        buffer[..bytes].copy_from_slice(&self.current[self.read..self.read + bytes]);
        self.read += bytes;
        Ok(bytes)
    }
}

/// Reads a piece from the first archive that has it intact. The error is that of the first archive.
fn read_from_any(
    archives: &[Archive],
    key: &str,
    hash: PieceHash,
    bytes: u64,
) -> Result<Vec<u8>, BaseBackupError> {
    let mut first = None;
    for archive in archives {
        match read_piece(archive, key, hash, bytes) {
            Ok(content) => return Ok(content),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    Err(first.unwrap_or_else(|| BaseBackupError::Content("expected an archive, found none".to_owned())))
}

/// Reads a piece and verifies its hash.
pub(super) fn read_piece(
    archive: &Archive,
    key: &str,
    hash: PieceHash,
    bytes: u64,
) -> Result<Vec<u8>, BaseBackupError> {
    let object = archive.store().read(key).map_err(ArchiveError::from)?;
    let capacity = usize::try_from(bytes).unwrap_or_default();
    let content = zstd::bulk::decompress(&object, capacity).map_err(|error| {
        damaged(archive, key, format!("expected {bytes} bytes compressed by zstd: {error}"))
    })?;
    let found = PieceHash::of(&content);
    match found == hash && content.len() as u64 == bytes {
        true => Ok(content),
        false => {
            let problem =
                format!("expected {bytes} bytes with BLAKE3 {hash}, found {} with {found}", content.len());
            Err(damaged(archive, key, problem))
        }
    }
}
