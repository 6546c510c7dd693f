//! A folder of backups that a schedule advances: each run adds one, and removes those that a rule does not
//! keep.
//!
//! A backup of the schedule has the time and the LSN of its checkpoint as its name. Only a folder whose name
//! is that of its own label is ever removed: others, and those that were renamed or advanced in place, stay.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use walden_format::lsn::{Lsn, Timeline};
use walden_source::datadir::{ControlFile, DataDirError};

use crate::base::{BaseBackup, Label};
use crate::copy::{LABEL, synchronize_one};
use crate::error::RecoverError;
use crate::folder_lock::FolderLock;
use crate::kept_tablespaces;
use crate::plan::Plan;
use crate::private;
use crate::tablespaces::MappedTablespace;
use crate::work_folder::{MARK, is_own_partial, is_unfinished_rename, partial_of, remove_partial};

/// A folder of backups. No other run adds or removes backups meanwhile.
#[derive(Debug)]
pub struct BackupFolder {
    path: PathBuf,
    _lock: Option<FolderLock>,
}

/// A complete backup in a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedBackup {
    /// The name of its folder.
    pub name: String,
    /// Path of the backup.
    pub path: PathBuf,
    /// The position from which WAL is replayed.
    pub start: Lsn,
    /// The timeline there.
    pub timeline: Timeline,
    /// The cluster.
    pub system_identifier: u64,
    /// The time of its checkpoint, if it is one of the schedule; `None` if something else created it.
    pub scheduled: Option<Timestamp>,
}

impl BackupFolder {
    /// Opens a folder to print the changes of a run. It may be missing.
    pub fn open_to_read(path: &Path) -> BackupFolder {
        BackupFolder { path: path.to_owned(), _lock: None }
    }

    /// Opens a folder to change it, creates it if it is missing, and removes what killed runs left in it.
    ///
    /// # Errors
    /// Another run uses it, or it cannot be written.
    pub fn open(path: &Path) -> Result<BackupFolder, RecoverError> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RecoverError::io("create", path)(error));
            }
            _ => {}
        }
        let folder = BackupFolder { path: path.to_owned(), _lock: Some(FolderLock::exclusive(path)?) };
        folder.remove_leftovers()?;
        Ok(folder)
    }

    /// Returns the folder of a plan's backup; `None` if no checkpoint follows the end of the backup that is
    /// advanced.
    pub fn path_of(&self, plan: &Plan) -> Option<(PathBuf, Timestamp)> {
        let fields = &plan.checkpoint.as_ref()?.fields;
        let time = Timestamp::from_second(fields.time).unwrap_or_default();
        Some((self.path.join(name_of(time, fields.redo)), time))
    }

    /// Creates the folder for the tablespaces of a new backup that are outside of `base`. Returns their new
    /// folders.
    ///
    /// # Errors
    /// The folder cannot be created, or belongs to a backup that was moved.
    pub fn create_tablespaces(
        &self,
        base: &BaseBackup,
        backup: &Path,
    ) -> Result<Vec<MappedTablespace>, RecoverError> {
        kept_tablespaces::create(base, backup)
    }

    /// Completes the tablespaces of a new backup, after the backup itself.
    ///
    /// # Errors
    /// Their folder cannot be changed.
    pub fn complete_tablespaces(&self, backup: &Path) -> Result<(), RecoverError> {
        kept_tablespaces::complete(backup)
    }

    /// Returns the complete backups, ordered by their starts. Other folders and files are ignored.
    ///
    /// # Errors
    /// The folder or a backup in it cannot be read.
    pub fn backups(&self) -> Result<Vec<ListedBackup>, RecoverError> {
        let mut found = Vec::new();
        for path in self.folders()? {
            found.extend(read_backup(&path)?);
        }
        found.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
        Ok(found)
    }

    fn folders(&self) -> Result<Vec<PathBuf>, RecoverError> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(RecoverError::io("read", &self.path))?,
        };
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry.map_err(RecoverError::io("read", &self.path))?;
            // A link may lead to a folder elsewhere.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
        folders.sort();
        Ok(folders)
    }

    /// Removes a backup of the schedule. Returns whether it was removed: another run may be reading it.
    ///
    /// # Errors
    /// It is not one of the schedule, or cannot be removed.
    pub fn remove(&self, backup: &ListedBackup) -> Result<bool, RecoverError> {
        let lock = match FolderLock::exclusive(&backup.path) {
            Err(RecoverError::InUse { .. }) => return Ok(false),
            lock => lock?,
        };
        // It may have been replaced since it was listed.
        let found = read_backup(&backup.path)?;
        if found.is_none_or(|found| found != *backup || found.scheduled.is_none()) {
            return Err(RecoverError::Replaced { path: backup.path.clone() });
        }
        kept_tablespaces::mark_unused(&backup.path, &self.folders()?)?;
        self.discard(&backup.path)?;
        drop(lock);
        kept_tablespaces::remove_unused(&self.folders()?)?;
        Ok(true)
    }

    /// Removes a backup. From the first step on it is marked as incomplete, so that the next run continues.
    fn discard(&self, backup: &Path) -> Result<(), RecoverError> {
        let (mark, partial) = (backup.join(MARK), partial_of(backup)?);
        private::write(&mark, "").map_err(RecoverError::io("create", &mark))?;
        synchronize_one(backup)?;
        fs::rename(backup, &partial).map_err(RecoverError::io("rename", backup))?;
        synchronize_one(&self.path)?;
        remove_partial(&partial).map_err(RecoverError::io("remove", &partial))
    }

    /// Removes incomplete backups of the schedule.
    fn remove_leftovers(&self) -> Result<(), RecoverError> {
        // A folder that a removal has renamed comes before one with the old name.
        for path in self.folders()?.into_iter().rev() {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_left = match name.strip_suffix(".partial") {
                // A run may be killed before it writes the mark, and between its removal and the rename.
                Some(name) => {
                    is_name(name) && (is_own_partial(&path) || label_name(&path).as_deref() == Some(name))
                }
                None => is_name(name) && path.join(MARK).exists(),
            };
            if !is_left {
                continue;
            }
            let _lock = FolderLock::exclusive(&path)?;
            match name.ends_with(".partial") {
                true => remove_partial(&path).map_err(RecoverError::io("remove", &path))?,
                false => self.discard(&path)?,
            }
        }
        kept_tablespaces::remove_unused(&self.folders()?)
    }
}

/// Returns the name of a backup: the time of its checkpoint, or of its start, and the redo pointer.
pub fn name_of(time: Timestamp, redo: Lsn) -> String {
    format!("{}_{:X}-{:08X}", time.strftime("%Y%m%dT%H%M%SZ"), redo.0 >> 32, redo.0 & 0xFFFF_FFFF)
}

/// Reads a name of [`name_of`].
pub fn parse_name(name: &str) -> Option<(Timestamp, Lsn)> {
    let (time, lsn) = name.split_once('_')?;
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
    let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    let redo = lsn.replacen('-', "/", 1).parse().ok()?;
    (name_of(time, redo) == name).then_some((time, redo))
}

/// Whether a name has the form of the schedule's.
fn is_name(name: &str) -> bool {
    parse_name(name).is_some()
}

fn read_label(backup: &Path) -> Result<Option<Label>, RecoverError> {
    let path = backup.join(LABEL);
    match fs::read(&path) {
        Ok(text) => {
            Label::parse(&String::from_utf8_lossy(&text)).map(Some).map_err(|line| RecoverError::Base {
                base: backup.to_owned(),
                expected: line,
                found: "none in backup_label".to_owned(),
                hint: "remove the folder: it is damaged or incomplete",
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RecoverError::io("read", &path)(error)),
    }
}

/// The name that the schedule gave to the backup in a folder, if it did.
fn label_name(backup: &Path) -> Option<String> {
    let label = read_label(backup).ok()??;
    Some(name_of(label.time.filter(|_| label.is_from_standby)?, label.start))
}

/// Reads the label and `pg_control` of a backup in plain format; `None` for another folder and an incomplete
/// backup. `pg_control` is the last file of a backup.
fn read_backup(path: &Path) -> Result<Option<ListedBackup>, RecoverError> {
    let (control, Some(name)) = (path.join(ControlFile::PATH), path.file_name()) else { return Ok(None) };
    if path.join(MARK).exists() || is_unfinished_rename(path) || !control.exists() {
        return Ok(None);
    }
    let Some(label) = read_label(path)? else { return Ok(None) };
    let content = fs::read(&control).map_err(RecoverError::io("read", &control))?;
    let parsed =
        ControlFile::parse(&content).map_err(|error| DataDirError::Control { path: control, error })?;
    let name = name.to_string_lossy().into_owned();
    let is_scheduled =
        label.is_from_standby && label.time.is_some_and(|time| name_of(time, label.start) == name);
    Ok(Some(ListedBackup {
        name,
        path: path.to_owned(),
        start: label.start,
        timeline: label.timeline,
        system_identifier: parsed.system_identifier,
        scheduled: label.time.filter(|_| is_scheduled),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_time_and_the_lsn_of_a_checkpoint() {
        let name = name_of(Timestamp::from_second(1_795_489_200).unwrap(), Lsn(0x2_3A00_0028));
        assert_eq!(name, "20261124T030000Z_2-3A000028");
        assert!(is_name(&name));
        for other in
            ["", "monday", "20261124T030000Z", "20261124T030000Z_2-3A00028", "20261124T030000Z_2/3A000028"]
        {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn only_marked_folders_with_names_of_the_schedule_are_left_over() {
        let folder = tempfile::tempdir().unwrap();
        let create = |name: &str, file: Option<&str>| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            file.map_or(Ok(()), |file| fs::write(path.join(file), "")).unwrap();
            path
        };
        let name = "20261124T030000Z_2-3A000028";
        let left = [
            create(&format!("{name}.partial"), Some(MARK)),
            create("20261125T030000Z_2-3A000028.partial", None),
            create("20261126T030000Z_2-3A000028", Some(MARK)),
        ];
        let kept = [
            create(name, Some("file")),
            create("20261127T030000Z_2-3A000028.partial", Some("file")),
            create("monday.partial", Some(MARK)),
            create("tuesday", Some(MARK)),
        ];
        let opened = BackupFolder::open(folder.path()).unwrap();
        assert!(left.iter().all(|path| !path.exists()));
        assert!(kept.iter().all(|path| path.exists()));
        assert_eq!(opened.backups().unwrap(), []);
        let second = BackupFolder::open(folder.path());
        assert!(matches!(second, Err(RecoverError::InUse { .. })), "{second:?}");
    }
}
