//! Reads base backups to determine the WAL that they need.
//!
//! PostgreSQL archives a *backup history file* for each backup of a primary: the content of `backup_label`
//! and the end of the backup (`do_pg_backup_stop` in `xlog.c`). For a backup of a standby, PostgreSQL
//! archives no such file. The backup itself contains `backup_manifest`, with the WAL ranges that make it
//! consistent (`basebackup.c`, `backup_manifest.c`), or at least `backup_label`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_source::datadir::ControlFile;
use walden_source::regular_file;

use crate::archive::{Archive, ArchiveError};
use crate::base_backups::{Inventory, StoredBackup};
use crate::objects::backup_files::{LABEL, Label, MANIFEST, Manifest, ServerTime, read_bounded};
use crate::objects::name::{ArchivedFile, BACKUP, Object};
use crate::restore::get::with_object;

pub use crate::objects::backup_files::WalRange;

/// A base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backup {
    /// Name of the backup history file, or path of the manifest or label.
    pub name: String,
    /// Name of the archived backup history file.
    pub file: Option<ArchivedFile>,
    /// The user's label.
    pub label: Option<String>,
    /// Start of the backup that this incremental backup needs: [`Lsn::INVALID`] if its label does not state
    /// it.
    pub incremental_from: Option<Lsn>,
    /// WAL that makes the backup consistent, in WAL order. The end of the last range may be unknown. Never
    /// empty.
    pub ranges: Vec<WalRange>,
    /// Latest possible time of completion, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: Option<i64>,
    /// The server's text, if its time zone is ambiguous, so that `time` is only a bound.
    pub time_text: Option<String>,
    /// The backup exists, on disk or in the archive, and not only as a history file.
    pub is_on_disk: bool,
    /// Its name, if it is in the archive.
    pub stored: Option<String>,
    /// Size of the backup history file's object in bytes.
    pub stored_bytes: u64,
}

impl Backup {
    /// Returns where the backup's WAL starts. Backups are ordered by this rather than by time, because clocks
    /// can be reset.
    pub fn start(&self) -> (Timeline, Lsn) {
        self.ranges.first().map_or((0, Lsn::INVALID), |range| (range.timeline, range.start))
    }
}

/// Returns the start of the backup that an incremental backup needs, according to its label.
fn incremental_from(label: &Label) -> Option<Lsn> {
    label.is_incremental.then(|| label.incremental_from.unwrap_or(Lsn::INVALID))
}

/// The error for an unusable backup on disk.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {problem}", path.display())]
#[non_exhaustive]
pub struct BackupError {
    /// Path of the manifest, label or folder.
    pub path: PathBuf,
    /// The problem.
    pub problem: String,
}

/// Returns the backups that have a history file in the archive, ordered by their starts.
///
/// # Errors
/// Errors of the store, and damaged objects.
pub fn archived(archive: &Archive, size: SegmentSize) -> Result<Vec<Backup>, ArchiveError> {
    let mut files = Vec::new();
    archive.store().list(BACKUP, &mut |listed| {
        if let Some(Object::File(file @ ArchivedFile::Backup(..))) = Object::parse_key(&listed.key) {
            files.push((file, listed.bytes));
        }
    })?;
    let mut backups = Vec::new();
    for (file, stored_bytes) in files {
        let text = with_object(archive, file, |object, bytes| {
            let mut text = Vec::new();
            crate::restore::get::decode(archive, file, object, bytes, &mut text).map(|()| text)
        })?;
        // Removed since the listing.
        let Some(text) = text else { continue };
        backups.extend(parse_history(file, &text, size).map(|backup| Backup { stored_bytes, ..backup }));
    }
    backups.sort_by_key(Backup::start);
    Ok(backups)
}

/// Returns the backups in the archive itself that can be read.
///
/// # Errors
/// The store's errors.
pub fn stored(archive: &Archive) -> Result<Vec<Backup>, ArchiveError> {
    let backups = Inventory::read(archive)?.backups.into_iter();
    let backup = |backup: StoredBackup| Backup {
        file: None,
        label: Some(backup.label.clone()),
        incremental_from: None,
        ranges: backup.wal_ranges(),
        time: Some(backup.completed),
        time_text: None,
        is_on_disk: true,
        stored: Some(backup.name.clone()),
        stored_bytes: 0,
        name: backup.name,
    };
    Ok(backups.map(backup).collect())
}

/// Reads a backup history file. The start comes from its name, because the file can be empty after a crash of
/// the server.
fn parse_history(file: ArchivedFile, text: &[u8], size: SegmentSize) -> Option<Backup> {
    let ArchivedFile::Backup(name, offset) = file else { return None };
    let start = Lsn(name.start(size)?.0.checked_add(offset.into())?);
    let label = Label::parse(text);
    let timeline = name.timeline;
    let ranges = vec![WalRange { timeline, start, end: label.stop }];
    let (time, time_text) = with_text(label.stop_time.clone().or_else(|| label.start_time.clone()));
    Some(Backup {
        name: file.to_string(),
        file: Some(file),
        incremental_from: incremental_from(&label),
        label: label.label,
        ranges,
        time,
        time_text,
        is_on_disk: false,
        stored: None,
        stored_bytes: 0,
    })
}

/// Depth of the search in a folder of backups: `DIR/BACKUP/backup_manifest`,
/// `DIR/HOST/BACKUP/backup_manifest`.
const MAX_DEPTH: u32 = 2;

/// Finds the backups in a folder: each folder with a `backup_manifest` or at least a `backup_label`.
///
/// # Errors
/// The folder is unreadable or contains no backups, or a backup is unusable.
pub fn in_folder(folder: &Path, system_identifier: &str) -> Result<Vec<Backup>, BackupError> {
    let mut found = Vec::new();
    search(folder, MAX_DEPTH, system_identifier, &mut found)?;
    if found.is_empty() {
        let problem = format!("expected folders with {MANIFEST} or {LABEL} in it, found none");
        return Err(BackupError { path: folder.to_owned(), problem });
    }
    Ok(found)
}

fn search(folder: &Path, depth: u32, system: &str, found: &mut Vec<Backup>) -> Result<(), BackupError> {
    let failed = |error: io::Error| BackupError { path: folder.to_owned(), problem: error.to_string() };
    let (manifest, label) = (folder.join(MANIFEST), folder.join(LABEL));
    if folder.join(walden_recover::MARK).exists() || walden_recover::is_unfinished_rename(folder) {
        // Walden is writing or removing it.
        return Ok(());
    }
    if manifest.is_file() {
        found.push(read_manifest(&manifest, system)?);
    } else if label.is_file() {
        found.push(read_label(&label)?);
    } else if depth > 0 {
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.path().is_dir() {
                search(&entry.path(), depth - 1, system, found)?;
            }
        }
    }
    Ok(())
}

/// Reads the backup at a path: its folder, `backup_manifest` or `backup_label`. Returns `None` for another
/// path.
///
/// # Errors
/// The backup is unusable.
pub fn at_path(path: &Path, system_identifier: &str) -> Result<Option<Backup>, BackupError> {
    let file = |name: &str| {
        let path = if path.ends_with(name) { path.to_owned() } else { path.join(name) };
        path.is_file().then_some(path)
    };
    match (file(MANIFEST), file(LABEL)) {
        (Some(manifest), _) => read_manifest(&manifest, system_identifier).map(Some),
        (None, Some(label)) => read_label(&label).map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads a backup's manifest and verifies its checksum. Also reads `backup_label` in the same folder, if it
/// exists.
///
/// # Errors
/// The file is unreadable, damaged, or belongs to another cluster.
pub fn read_manifest(path: &Path, system_identifier: &str) -> Result<Backup, BackupError> {
    let failed = |problem: String| BackupError { path: path.to_owned(), problem };
    let file = regular_file::open(path).map_err(|error| failed(error.to_string()))?;
    let manifest = Manifest::read(file).map_err(failed)?;
    if let Some(found) = manifest.system_identifier.map(|number| number.to_string())
        && found != system_identifier
    {
        return Err(failed(format!("expected system identifier {system_identifier}, found {found}")));
    }
    let beside = path.with_file_name(LABEL);
    let label = beside.is_file().then(|| read_label_bytes(&beside)).transpose()?;
    let label = Label::parse(&label.unwrap_or_default());
    let (time, time_text) = time_on_disk(path, label.start_time.clone());
    Ok(Backup {
        name: path.display().to_string(),
        file: None,
        incremental_from: incremental_from(&label),
        label: label.label,
        ranges: manifest.ranges,
        time,
        time_text,
        is_on_disk: true,
        stored: None,
        stored_bytes: 0,
    })
}

fn read_label(path: &Path) -> Result<Backup, BackupError> {
    let label = Label::parse(&read_label_bytes(path)?);
    let (Some(start), Some(timeline)) = (label.start, label.timeline) else {
        let problem = "expected START WAL LOCATION with its timeline in it, found none".to_owned();
        return Err(BackupError { path: path.to_owned(), problem });
    };
    // PostgreSQL reads the end of a backup of a standby from its control file (`read_backup_label` and
    // `InitWalRecovery` in `xlogrecovery.c`).
    let control = path.parent().filter(|_| label.is_from_standby).and_then(ControlFile::read_data_directory);
    let end = control.map(|control| control.min_recovery_point).filter(|&end| end >= start);
    let (time, time_text) = time_on_disk(path, label.start_time.clone());
    Ok(Backup {
        name: path.display().to_string(),
        file: None,
        incremental_from: incremental_from(&label),
        label: label.label,
        ranges: vec![WalRange { timeline, start, end }],
        time,
        time_text,
        is_on_disk: true,
        stored: None,
        stored_bytes: 0,
    })
}

fn read_label_bytes(path: &Path) -> Result<Vec<u8>, BackupError> {
    let failed = |error: io::Error| BackupError { path: path.to_owned(), problem: error.to_string() };
    let mut file = regular_file::open(path).map_err(failed)?;
    read_bounded(&mut file, crate::objects::check::MAX_TEXT_BYTES).map_err(failed)
}

/// Returns the latest moment that a server's time denotes, and its text if that is only a bound.
fn with_text(time: Option<ServerTime>) -> (Option<i64>, Option<String>) {
    time.map_or((None, None), |time| (time.latest, (!time.is_exact).then_some(time.text)))
}

/// Returns when a backup was completed: the time of its file or the start in its label, whichever is later,
/// with the label's text if that is only a bound.
fn time_on_disk(path: &Path, start: Option<ServerTime>) -> (Option<i64>, Option<String>) {
    let (start, text) = with_text(start);
    let modified = modified(path);
    (modified.max(start), text.filter(|_| start > modified))
}

/// Returns the modification time of a file. A copy may be newer than the backup, but never older.
fn modified(path: &Path) -> Option<i64> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    jiff::Timestamp::try_from(modified).ok().map(jiff::Timestamp::as_microsecond)
}

/// Returns the incremental backups that depend on the backup with this start, also through others. `backups`
/// are ordered by their starts.
pub fn find_dependents(backups: &[Backup], start: Lsn) -> Vec<&Backup> {
    let (mut needed, mut dependents) = (vec![start], Vec::new());
    for backup in backups {
        if backup.incremental_from.is_some_and(|from| needed.contains(&from)) {
            needed.push(backup.start().1);
            dependents.push(backup);
        }
    }
    dependents
}

/// Merges two lists of backups, ordered by their starts. A backup on disk and its history file count as one
/// backup.
pub fn merge(archived: Vec<Backup>, on_disk: Vec<Backup>) -> Vec<Backup> {
    let mut merged: BTreeMap<(Timeline, Lsn), Backup> = BTreeMap::new();
    for mut backup in on_disk.into_iter().chain(archived) {
        match merged.get_mut(&backup.start()) {
            Some(known) => {
                // The full backup that pg_combinebackup writes has the start of the incremental one, whose
                // history file stays in the archive. The label next to a backup decides.
                let has_own_label = known.is_on_disk && known.label.is_some();
                let is_full_one = backup.is_on_disk && backup.incremental_from.is_none();
                if has_own_label && is_full_one && known.incremental_from.is_some() {
                    *known = backup;
                    continue;
                }
                if !has_own_label {
                    known.incremental_from = known.incremental_from.or(backup.incremental_from);
                }
                known.file = known.file.or(backup.file);
                known.stored = known.stored.take().or(backup.stored.take());
                known.stored_bytes = known.stored_bytes.max(backup.stored_bytes);
                known.label = known.label.take().or(backup.label.take());
                // The history file states when the backup was completed.
                if backup.file.is_some() && backup.time.is_some() {
                    (known.time, known.time_text) = (backup.time, backup.time_text.take());
                }
                if known.ranges.last().is_some_and(|range| range.end.is_none()) {
                    known.ranges = backup.ranges;
                }
            }
            None => {
                merged.insert(backup.start(), backup);
            }
        }
    }
    merged.into_values().collect()
}
