//! New folders: whether they can be created, and the folder in which a restore works.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::RecoverError;
use crate::folder_lock::FolderLock;
use crate::private::remove_folder;

/// A file that marks a folder as one that a restore was writing.
pub const MARK: &str = "walden_restore_is_incomplete";

/// Checks that a data directory can be created at a path, before a restore starts.
///
/// # Errors
/// The path, or the folder next to it in which a restore works, is in use.
pub fn expect_free_target(data: &Path) -> Result<(), RecoverError> {
    expect_free_folder(data)?;
    expect_own_partial(&partial_of(data)?)
}

/// Checks that a folder is missing, empty, or was left by an earlier restore.
pub(crate) fn expect_free_folder(data: &Path) -> Result<(), RecoverError> {
    let refuse = |path: &Path, found: &str, hint| {
        Err(RecoverError::Target { path: path.to_owned(), found: found.to_owned(), hint })
    };
    // The new data directory gets its name by a rename, which replaces neither.
    if data.is_symlink() {
        return refuse(data, "a link", "name the directory that the link leads to, or remove the link");
    }
    if is_mount_point(data) {
        return refuse(data, "a mount point", "name a directory in it");
    }
    match fs::read_dir(data) {
        Ok(mut entries) => {
            if entries.next().is_some() && !data.join(MARK).exists() {
                return refuse(data, "one with files", "name another directory, or remove the files");
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return refuse(data, "a file", "name another directory");
        }
        Err(error) => return Err(RecoverError::io("read", data)(error)),
    }
    Ok(())
}

/// Checks that the folder in which a restore works is missing, or was left by an earlier restore.
pub(crate) fn expect_own_partial(partial: &Path) -> Result<(), RecoverError> {
    // A restore that is killed may leave an empty folder.
    let is_empty = fs::read_dir(partial).is_ok_and(|mut entries| entries.next().is_none());
    if partial.symlink_metadata().is_ok() && !partial.join(MARK).exists() && !is_empty {
        return Err(RecoverError::Target {
            path: partial.to_owned(),
            found: "one that Walden did not create".to_owned(),
            hint: "remove it, or name another directory",
        });
    }
    Ok(())
}

/// Whether a folder is on another file system than the folder that contains it.
pub(crate) fn is_mount_point(folder: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let Some(own) = device(folder) else { return false };
    device(&folder.join("..")).is_some_and(|above| above != own)
}

/// Removes what an earlier restore left, its mark last: otherwise the remainder would look like another
/// program's.
pub(crate) fn remove_partial(partial: &Path) -> io::Result<()> {
    for entry in fs::read_dir(partial).into_iter().flatten() {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_folder(&entry.path())?,
            false if entry.file_name() != MARK => fs::remove_file(entry.path())?,
            false => {}
        }
    }
    remove_folder(partial)
}

/// Removes the folder that an interrupted restore to a data directory left, unless another run uses it.
/// Returns its path if there was one.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_leftover(data: &Path) -> Result<Option<PathBuf>, RecoverError> {
    let partial = partial_of(data)?;
    if !partial.join(MARK).exists() {
        return Ok(None);
    }
    let _lock = match FolderLock::exclusive(&partial) {
        Err(RecoverError::InUse { .. }) => return Ok(None),
        lock => lock?,
    };
    remove_partial(&partial).map_err(RecoverError::io("remove", &partial))?;
    Ok(Some(partial))
}

/// Returns the folder in which a restore to a data directory works. It is renamed in the end.
///
/// # Errors
/// The path of the data directory has no name.
pub fn partial_of(data: &Path) -> Result<PathBuf, RecoverError> {
    let Some(name) = data.file_name() else {
        let hint = "name a directory that does not exist, or that is empty";
        return Err(RecoverError::Target { path: data.to_owned(), found: "no name".to_owned(), hint });
    };
    let mut partial = name.to_owned();
    partial.push(".partial");
    Ok(data.with_file_name(partial))
}
