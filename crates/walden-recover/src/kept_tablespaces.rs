//! Tablespaces of the backups of a schedule.
//!
//! A backup `NAME` has copies of its tablespaces in the folder `NAME.tablespaces` next to it. The links in
//! `pg_tblspc` are relative, so that both folders can be moved together, and a server that is started on a
//! copy of the backup alone finds no files of the backup to write into.
//!
//! The folder is marked while it is filled or removed. Without the mark it is never removed, whatever became
//! of the backup.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};

use crate::base::BaseBackup;
use crate::copy::synchronize_one;
use crate::error::RecoverError;
use crate::private;
use crate::tablespaces::MappedTablespace;
use crate::work_folder::{MARK, remove_partial};

/// The ending of the folders.
const ENDING: &str = "tablespaces";

/// Returns the folder for the tablespaces of a backup.
fn folder_of(backup: &Path) -> PathBuf {
    let mut name = backup.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ENDING);
    backup.with_file_name(name)
}

/// Creates the folder for the tablespaces of a new backup, and returns the new folder of each one. Without
/// tablespaces outside of `base`, it creates nothing.
pub(crate) fn create(base: &BaseBackup, backup: &Path) -> Result<Vec<MappedTablespace>, RecoverError> {
    if base.tablespaces.is_empty() {
        return Ok(Vec::new());
    }
    let folder = folder_of(backup);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(RecoverError::Target {
                path: folder,
                found: "one of a backup that is not there".to_owned(),
                hint: "move it to where the backup is now, or remove it if it is no longer needed",
            });
        }
        created => created.map_err(RecoverError::io("create", &folder))?,
    }
    mark(&folder)?;
    // As the backup, it gets the account of the base backup if files can be given to it.
    if base.is_in_file_system() {
        let owner = fs::metadata(&base.path).map_err(RecoverError::io("read", &base.path))?;
        let _ = lchown(&folder, Some(owner.uid()), Some(owner.gid()));
    }
    let name = folder.file_name().unwrap_or_default();
    let map = |tablespace: &_| MappedTablespace::beside(tablespace, &folder, Path::new(name));
    Ok(base.tablespaces.iter().map(map).collect())
}

/// Completes the tablespaces of a new backup.
pub(crate) fn complete(backup: &Path) -> Result<(), RecoverError> {
    let folder = folder_of(backup);
    if folder.exists() { unmark(&folder) } else { Ok(()) }
}

/// Prepares the removal of a backup: its tablespaces are removed by [`remove_unused`] once no link leads to
/// them. `others` are the folders next to it.
pub(crate) fn mark_unused(backup: &Path, others: &[PathBuf]) -> Result<(), RecoverError> {
    let folder = folder_of(backup);
    let is_other = |path: &&PathBuf| path.as_path() != backup;
    match folder.exists() && !others.iter().filter(is_other).any(|other| links_to(other, &folder)) {
        true => mark(&folder),
        false => Ok(()),
    }
}

/// Removes marked folders of tablespaces to which no backup links, and unmarks the others.
pub(crate) fn remove_unused(folders: &[PathBuf]) -> Result<(), RecoverError> {
    let is_marked =
        |path: &&PathBuf| path.extension().is_some_and(|ending| ending == ENDING) && path.join(MARK).exists();
    for folder in folders.iter().filter(is_marked) {
        match folders.iter().any(|backup| links_to(backup, folder)) {
            true => unmark(folder)?,
            false => remove_partial(folder).map_err(RecoverError::io("remove", folder))?,
        }
    }
    Ok(())
}

/// Returns whether a backup has a link to a tablespace in a folder.
fn links_to(backup: &Path, folder: &Path) -> bool {
    let Ok(folder) = fs::canonicalize(folder) else { return false };
    let links = fs::read_dir(backup.join("pg_tblspc")).into_iter().flatten().flatten();
    let leads_there = |link: fs::DirEntry| {
        fs::canonicalize(link.path()).is_ok_and(|tablespace| tablespace.starts_with(&folder))
    };
    links.into_iter().any(leads_there)
}

fn mark(folder: &Path) -> Result<(), RecoverError> {
    let mark = folder.join(MARK);
    private::write(&mark, "").map_err(RecoverError::io("create", &mark))?;
    synchronize_one(folder)
}

fn unmark(folder: &Path) -> Result<(), RecoverError> {
    let mark = folder.join(MARK);
    fs::remove_file(&mark).map_err(RecoverError::io("remove", &mark))?;
    synchronize_one(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A backup with a tablespace next to it.
    fn create_backup(folder: &Path, name: &str) -> [PathBuf; 2] {
        let backup = folder.join(name);
        fs::create_dir_all(backup.join("pg_tblspc")).unwrap();
        let tablespaces = folder_of(&backup);
        fs::create_dir_all(tablespaces.join("16384/PG_18")).unwrap();
        symlink(format!("../../{name}.tablespaces/16384"), backup.join("pg_tblspc/16384")).unwrap();
        [backup, tablespaces]
    }

    #[test]
    fn only_marked_folders_without_links_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let [one, of_one] = create_backup(path, "one");
        let [other, of_other] = create_backup(path, "other");
        let folders = || {
            let mut all: Vec<PathBuf> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            all.sort();
            all
        };
        // A run was killed after it marked the folder, and before it removed the backup.
        mark_unused(&one, &folders()).unwrap();
        assert!(of_one.join(MARK).exists());
        remove_unused(&folders()).unwrap();
        assert!(of_one.join("16384/PG_18").exists() && !of_one.join(MARK).exists());
        // It was killed before it removed the folder.
        mark_unused(&one, &folders()).unwrap();
        fs::remove_dir_all(&one).unwrap();
        remove_unused(&folders()).unwrap();
        assert!(!of_one.exists());
        // The backup was moved elsewhere.
        fs::rename(&other, path.join("elsewhere")).unwrap();
        let moved = tempfile::tempdir().unwrap();
        let moved = moved.path().join("deep/backup");
        fs::create_dir_all(moved.parent().unwrap()).unwrap();
        fs::rename(path.join("elsewhere"), &moved).unwrap();
        remove_unused(&folders()).unwrap();
        assert!(of_other.exists());
        // A backup of another name uses it.
        let [third, of_third] = create_backup(path, "third");
        fs::create_dir_all(path.join("copy/pg_tblspc")).unwrap();
        symlink("../../third.tablespaces/16384", path.join("copy/pg_tblspc/16384")).unwrap();
        mark_unused(&third, &folders()).unwrap();
        fs::remove_dir_all(&third).unwrap();
        remove_unused(&folders()).unwrap();
        assert!(of_third.join("16384/PG_18").exists());
    }
}
