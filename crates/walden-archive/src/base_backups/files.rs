//! Stores a base backup whose files are read one by one, by several threads in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use walden_format::crc::{crc32c_append, crc32c_combine};
use walden_format::lsn::{Lsn, Timeline};
use walden_recover::manifest::{FileSums, Manifest, WalRange};

use super::cutter::padding_of;
use super::documents::{MAX_INLINE_BYTES, Piece, PieceDigest, PieceList, StoredArchive, StoredBackup};
use super::error::BaseBackupError;
use super::in_progress::{BackupInProgress, HEARTBEAT, KnownPiece, NewBackup, StoredPiece, lost_thread};
use super::layout::{Entry, Item, Layout, Part, header};
use super::progress::{self, Noted};
use crate::archive::Archive;
use crate::hash::to_hex;
use crate::store::StoreError;

/// Number of pieces in a note of progress.
const PIECES_OF_NOTE: usize = 16;

/// A base backup that is being stored. It exists once [`FileWriter::finish`] has returned.
pub struct FileWriter {
    backup: BackupInProgress,
    layout: Layout,
    state: Mutex<State>,
}

struct State {
    outcomes: Vec<Option<Outcome>>,
    /// Pieces that no note has.
    unnoted: Vec<Noted>,
    next_note: u32,
    noted: Instant,
}

/// The outcome of storing a part.
struct Outcome {
    slot: Slot,
    /// CRC-32C of each range; `None` if the file is missing.
    crcs: Vec<Option<u32>>,
    digest: Option<PieceDigest>,
}

enum Slot {
    Inline(Vec<u8>),
    Piece(StoredPiece),
    /// The file of the range is missing.
    Missing,
}

/// How a part was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoredPart {
    /// It was stored.
    New,
    /// The newest backup has it.
    Unchanged,
    /// A backup that was interrupted has it.
    Continued,
}

/// The content of a range of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeContent {
    /// The bytes: fewer than those of the range if the file became shorter.
    pub bytes: Vec<u8>,
    /// Their SHA-256, if it is known.
    pub sha256: Option<[u8; 32]>,
}

/// A file that is added last, with its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmallFile {
    /// The path in the data directory.
    pub path: String,
    /// The content, at most 1 MB.
    pub content: Vec<u8>,
    /// When it was modified, in seconds since 1970-01-01 00:00:00 UTC.
    pub modified: i64,
}

/// The end of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupEnd {
    /// The timeline.
    pub timeline: Timeline,
    /// The end of the WAL that the backup needs.
    pub end: Lsn,
    /// The tablespaces that the backup has.
    pub tablespaces: BTreeSet<u32>,
    /// `backup_label` and others, from which recovery starts.
    pub first: Vec<SmallFile>,
    /// `pg_control`.
    pub control: SmallFile,
}

impl FileWriter {
    /// Starts a backup. From now on, `prune` removes no pieces.
    ///
    /// # Errors
    /// The store's errors, and an archive of another cluster.
    pub fn begin(
        archive: &Archive,
        new: NewBackup,
        level: i32,
        layout: Layout,
    ) -> Result<FileWriter, BaseBackupError> {
        let backup = BackupInProgress::begin(archive, new, level, true)?;
        let outcomes = (0..layout.parts()).map(|_| None).collect();
        let state = State { outcomes, unnoted: Vec::new(), next_note: 1, noted: Instant::now() };
        Ok(FileWriter { backup, layout, state: Mutex::new(state) })
    }

    /// Returns the parts of the backup.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the name of the backup.
    pub fn name(&self) -> &str {
        &self.backup.name
    }

    /// Returns whether the archive is encrypted and no private key was named, so that no part is recognized.
    pub fn is_without_list(&self) -> bool {
        self.backup.is_locked
    }

    /// Returns whether an earlier backup may have a part: if the SHA-256 of its ranges are those of the
    /// server, [`FileWriter::take_over`] succeeds. With `must_be_verified`, only if its pages were verified.
    pub fn is_known(&self, part: usize, must_be_verified: bool) -> bool {
        let known = self.part(part).and_then(|part| self.backup.digests.get(&part.frame));
        known.is_some_and(|known| known.digest.is_verified || !must_be_verified)
    }

    /// Returns the newest backup, if some of its parts are recognized.
    pub fn newest(&self) -> Option<&StoredBackup> {
        self.backup.newest.as_ref()
    }

    /// Takes a part from an earlier backup, if it has these SHA-256 of the ranges. Returns `None` otherwise.
    pub fn take_over(&self, part: usize, sha256: &[[u8; 32]]) -> Option<StoredPart> {
        let planned = self.part(part)?;
        let known = self.backup.digests.get(&planned.frame)?;
        let is_same = sha256.len() == planned.ranges.len() && known.digest.sha256 == join(sha256);
        (is_same && self.take(part, planned, known)).then_some(match known.is_of_interrupted {
            true => StoredPart::Continued,
            false => StoredPart::Unchanged,
        })
    }

    /// Takes a part from the newest backup, whose ranges have not changed since its start. Returns whether
    /// that backup has the part with verified pages.
    pub fn take_unchanged(&self, part: usize) -> bool {
        let Some(planned) = self.part(part) else { return false };
        let known = self.backup.digests.get(&planned.frame);
        known.is_some_and(|known| {
            known.digest.is_verified && !known.is_of_interrupted && self.take(part, planned, known)
        })
    }

    fn take(&self, part: usize, planned: &Part, known: &KnownPiece) -> bool {
        if known.digest.crcs.len() != planned.ranges.len() {
            return false;
        }
        let crcs = known.digest.crcs.iter().copied().map(Some).collect();
        let outcome = Outcome { slot: Slot::Piece(known.piece), crcs, digest: Some(known.digest.clone()) };
        self.set(part, outcome, None);
        true
    }

    /// Stores a part. `contents` has the content of each range, which is shorter if the file became so, and
    /// `None` of a file that is missing. `is_verified` says whether all pages were verified, or have no
    /// checksums.
    ///
    /// # Errors
    /// The store's errors.
    pub fn store(
        &self,
        part: usize,
        contents: Vec<Option<RangeContent>>,
        is_verified: bool,
    ) -> Result<StoredPart, BaseBackupError> {
        let planned = self.part(part).ok_or_else(lost_thread)?;
        let (mut crcs, mut sums) = (Vec::new(), Vec::new());
        let mut padded = Vec::new();
        for (range, content) in planned.ranges.iter().zip(contents) {
            let Some(RangeContent { mut bytes, mut sha256 }) = content else {
                crcs.push(None);
                padded.push(None);
                continue;
            };
            if bytes.len() as u64 != range.bytes {
                // As the server does with a file that became shorter: WAL truncates it, or adds the pages.
                bytes.resize(usize::try_from(range.bytes).unwrap_or_default(), 0);
                sha256 = None;
            }
            crcs.push(Some(crc32c_append(0, &bytes)));
            sums.push(sha256.unwrap_or_else(|| Sha256::digest(&bytes).into()));
            padded.push(Some(bytes));
        }
        let is_whole = crcs.len() == planned.ranges.len() && crcs.iter().all(Option::is_some);
        let content = match planned.entries.is_empty() {
            true => padded.pop().flatten(),
            false => Some(group(planned, &padded)),
        };
        drop(padded);
        let Some(content) = content else {
            self.set(part, Outcome { slot: Slot::Missing, crcs, digest: None }, None);
            return Ok(StoredPart::New);
        };
        if content.len() <= MAX_INLINE_BYTES {
            self.set(part, Outcome { slot: Slot::Inline(content), crcs, digest: None }, None);
            return Ok(StoredPart::New);
        }
        let piece = self.backup.store_piece(&content)?;
        let digest = is_whole.then(|| PieceDigest {
            piece: piece.hash,
            frame: planned.frame,
            sha256: join(&sums),
            crcs: crcs.iter().copied().flatten().collect(),
            is_verified,
        });
        let is_new = piece.folder == 0;
        let noted = digest.clone().filter(|_| is_new).map(|digest| Noted {
            bytes: piece.bytes,
            stored_bytes: piece.stored_bytes,
            digest,
        });
        self.set(part, Outcome { slot: Slot::Piece(piece), crcs, digest }, noted);
        Ok(if is_new { StoredPart::New } else { StoredPart::Unchanged })
    }

    fn part(&self, part: usize) -> Option<&Part> {
        self.layout.parts.get(part)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, part: usize, outcome: Outcome, noted: Option<Noted>) {
        let mut state = self.state();
        state.unnoted.extend(noted);
        if let Some(known) = state.outcomes.get_mut(part) {
            *known = Some(outcome);
        }
    }

    /// Stores a note of the pieces, if there are several or the last one was stored some time ago. To be
    /// called about every second.
    ///
    /// # Errors
    /// The store's errors.
    pub fn note_progress(&self) -> Result<(), BaseBackupError> {
        let state = self.state();
        let age = state.noted.elapsed();
        let is_due = state.unnoted.len() >= PIECES_OF_NOTE
            || (!state.unnoted.is_empty() && age > Duration::from_secs(10))
            || age > HEARTBEAT.unsigned_abs() / 2;
        drop(state);
        if is_due { self.note_all() } else { Ok(()) }
    }

    /// Stores a note of all pieces that none has, so that the next backup continues with them.
    ///
    /// # Errors
    /// The store's errors.
    pub fn note_all(&self) -> Result<(), BaseBackupError> {
        let mut state = self.state();
        let (pieces, number) = (std::mem::take(&mut state.unnoted), state.next_note);
        state.next_note += 1;
        state.noted = Instant::now();
        drop(state);
        progress::store(&self.backup.archive, &self.backup.name, number, &pieces)
    }

    /// Completes the backup.
    ///
    /// # Errors
    /// A part was not stored, the store's errors, and objects that were removed meanwhile.
    pub fn finish(self, end: BackupEnd) -> Result<StoredBackup, BaseBackupError> {
        let FileWriter { backup, layout, state } = self;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut joined = Joined {
            backup: &backup,
            layout: &layout,
            outcomes: state.outcomes,
            sums: FileSums::default(),
            modified: BTreeMap::new(),
            small_files: BTreeMap::new(),
            digests: Vec::new(),
        };
        let mut archives = Vec::new();
        for (tablespace, items) in &layout.archives {
            if tablespace.is_some_and(|oid| !end.tablespaces.contains(&oid)) {
                continue;
            }
            let mut pieces = Vec::new();
            if tablespace.is_none() {
                joined.add_small_files(&end.first, &mut pieces)?;
            }
            for item in items {
                joined.add(item, &mut pieces)?;
            }
            if tablespace.is_none() {
                joined.add_small_files(std::slice::from_ref(&end.control), &mut pieces)?;
            }
            pieces.push(end_of_archive());
            archives.push(StoredArchive { tablespace: *tablespace, pieces });
        }
        // Dropped before its files were listed.
        for oid in end.tablespaces {
            if !archives.iter().any(|archive| archive.tablespace == Some(oid)) {
                archives.push(StoredArchive { tablespace: Some(oid), pieces: vec![end_of_archive()] });
            }
        }
        let start = backup.new.start;
        let ranges = vec![WalRange { timeline: end.timeline, start, end: Some(end.end) }];
        let system = backup.new.system_identifier;
        let manifest = Manifest::new(system, &joined.sums, &joined.modified, ranges.clone());
        let mut text = Vec::new();
        let major = backup.new.server_version.split(|letter: char| !letter.is_ascii_digit()).next();
        let major = major.and_then(|digits| digits.parse().ok()).unwrap_or_default();
        let failed = |error: std::io::Error| BaseBackupError::Content(error.to_string());
        manifest.write_to(&mut text, major).map_err(failed)?;
        let mut list = PieceList::new(backup.folders.clone(), archives);
        list.digests = joined.digests;
        backup.finish(&list, &joined.sums, &joined.small_files, &text, &ranges)
    }
}

/// Joins parts to tar archives.
struct Joined<'w> {
    backup: &'w BackupInProgress,
    layout: &'w Layout,
    outcomes: Vec<Option<Outcome>>,
    sums: FileSums,
    modified: BTreeMap<PathBuf, i64>,
    small_files: BTreeMap<String, Vec<u8>>,
    digests: Vec<PieceDigest>,
}

impl Joined<'_> {
    fn add(&mut self, item: &Item, pieces: &mut Vec<Piece>) -> Result<(), BaseBackupError> {
        match item {
            Item::Group(number) => {
                let outcome = self.take(*number)?;
                let part = self.layout.parts.get(*number).ok_or_else(lost_thread)?;
                for Entry { file, range, modified, .. } in &part.entries {
                    let Some(path) = file else { continue };
                    let (bytes, crc) =
                        match range.map(|range| (part.ranges.get(range), outcome.crcs.get(range))) {
                            None => (0, Some(0)),
                            Some((Some(range), Some(crc))) => (range.bytes, *crc),
                            Some(_) => return Err(lost_thread()),
                        };
                    if let Some(crc) = crc {
                        self.sums.insert(path.clone(), bytes, crc);
                        self.modified.insert(path.clone(), *modified);
                    }
                }
                self.push(outcome, pieces);
            }
            Item::Large { header, path, modified, parts, padding } => {
                let (mut outcomes, mut bytes, mut crc) = (Vec::new(), 0, 0);
                for number in parts.clone() {
                    let outcome = self.take(number)?;
                    let length = self.layout.ranges(number).first().map_or(0, |range| range.bytes);
                    bytes += length;
                    crc = crc32c_combine(
                        crc,
                        outcome.crcs.first().copied().flatten().unwrap_or_default(),
                        length,
                    );
                    outcomes.push(outcome);
                }
                // A file that was removed while it was read is one that was removed before: WAL does so too.
                if outcomes.iter().any(|outcome| matches!(outcome.slot, Slot::Missing)) {
                    return Ok(());
                }
                pieces.push(Piece::Inline(to_hex(header)));
                for outcome in outcomes {
                    self.push(outcome, pieces);
                }
                if *padding > 0 {
                    pieces.push(Piece::Inline(to_hex(&vec![0; *padding])));
                }
                self.sums.insert(path.clone(), bytes, crc);
                self.modified.insert(path.clone(), *modified);
            }
        }
        Ok(())
    }

    fn take(&mut self, part: usize) -> Result<Outcome, BaseBackupError> {
        self.outcomes.get_mut(part).and_then(Option::take).ok_or_else(lost_thread)
    }

    fn push(&mut self, outcome: Outcome, pieces: &mut Vec<Piece>) {
        self.digests.extend(outcome.digest);
        match outcome.slot {
            Slot::Inline(bytes) => pieces.push(Piece::Inline(to_hex(&bytes))),
            Slot::Piece(piece) => pieces.push(stored(piece)),
            Slot::Missing => {}
        }
    }

    fn add_small_files(
        &mut self,
        files: &[SmallFile],
        pieces: &mut Vec<Piece>,
    ) -> Result<(), BaseBackupError> {
        for SmallFile { path, content, modified } in files {
            let (name, bytes) = (Path::new(path), content.len() as u64);
            let mode = self.layout.file_mode;
            let mut entry = header(name, bytes, *modified, false, mode).map_err(BaseBackupError::Content)?;
            entry.extend_from_slice(content);
            entry.resize(entry.len() + padding_of(bytes), 0);
            pieces.push(match entry.len() <= MAX_INLINE_BYTES {
                true => Piece::Inline(to_hex(&entry)),
                false => stored(self.backup.store_piece(&entry).map_err(|error: StoreError| error)?),
            });
            self.sums.insert(name.to_owned(), bytes, crc32c_append(0, content));
            self.modified.insert(name.to_owned(), *modified);
            self.small_files.insert(path.clone(), content.clone());
        }
        Ok(())
    }
}

fn stored(piece: StoredPiece) -> Piece {
    Piece::Stored(piece.hash, piece.bytes, piece.stored_bytes, piece.folder)
}

/// The two empty blocks that end a tar archive.
fn end_of_archive() -> Piece {
    Piece::Inline(to_hex(&[0; 1024]))
}

/// Returns the content of a group, without the files that are missing.
fn group(part: &Part, contents: &[Option<Vec<u8>>]) -> Vec<u8> {
    let bytes = part.entries.iter().map(|entry| entry.header.len()).sum::<usize>();
    let content_bytes: usize = contents.iter().flatten().map(|content| content.len() + 512).sum();
    let mut group = Vec::with_capacity(bytes + content_bytes);
    for Entry { header, range, .. } in &part.entries {
        let content = match range.map(|range| contents.get(range).and_then(Option::as_deref)) {
            None => &[][..],
            Some(Some(content)) => content,
            Some(None) => continue,
        };
        group.extend_from_slice(header);
        group.extend_from_slice(content);
        group.resize(group.len() + padding_of(content.len() as u64), 0);
    }
    group
}

/// Returns the SHA-256 of several ones.
fn join(sums: &[[u8; 32]]) -> String {
    let mut all = Sha256::new();
    for sum in sums {
        all.update(sum);
    }
    to_hex(all.finalize().as_slice())
}
