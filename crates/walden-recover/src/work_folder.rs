//! New folders: whether they can be created, and the folder in which a restore works.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_source::datadir::ControlFile;

use crate::error::RecoverError;
use crate::existing::MOVED_CONTROL;
use crate::folder_lock::FolderLock;
use crate::private::{self, remove_folder};

/// A file that marks a folder as one that a restore was writing.
pub const MARK: &str = "walden_restore_is_incomplete";
/// A file that marks a complete folder which gets, or loses, its final name. It matters only in the folder in
/// which a restore works: that folder is then Walden's. In one with a final name it has no effect.
pub(crate) const RENAME_MARK: &str = "walden_restore_is_being_renamed";

/// The ending of the folders in which restores work.
const PARTIAL: &str = "partial";

/// Checks that a data directory can be created at a path, before a restore starts.
///
/// # Errors
/// The path, or the folder next to it in which a restore works, is in use.
pub fn expect_free_target(data: &Path) -> Result<(), RecoverError> {
    expect_free_folder(data)?;
    expect_own_partial(&partial_of(data)?)
}

/// A folder for the files of one run, which removes it in the end. No other run uses it meanwhile.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    _lock: Option<FolderLock>,
}

impl WorkFolder {
    /// Names the folder for a plan, and creates nothing.
    pub fn planned(path: &Path) -> WorkFolder {
        WorkFolder { path: path.to_owned(), _lock: None }
    }

    /// Creates the folder, which must be missing, empty, or left by a killed run.
    ///
    /// # Errors
    /// It has other files, another run uses it, or it cannot be created.
    pub fn create(path: &Path) -> Result<WorkFolder, RecoverError> {
        let path = std::path::absolute(path).map_err(RecoverError::io("use", path))?;
        expect_free_folder(&path)?;
        private::create_folders(&path).map_err(RecoverError::io("create", &path))?;
        let lock = FolderLock::exclusive(&path)?;
        let mark = path.join(MARK);
        private::write(&mark, "").map_err(RecoverError::io("create", &mark))?;
        remove_content(&path).map_err(RecoverError::io("remove", &path))?;
        Ok(WorkFolder { path, _lock: Some(lock) })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if self._lock.is_some() {
            // What stays is marked, and the next run removes it.
            let _ = remove_partial(&self.path);
        }
    }
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
                let hint = match data.join(ControlFile::PATH).exists() || data.join(MOVED_CONTROL).exists() {
                    true => {
                        "name another directory; with --delta, walden restore writes over the data directory of a stopped server of this cluster"
                    }
                    false => "name another directory, or remove the files",
                };
                return refuse(data, "one with files", hint);
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
    if partial.symlink_metadata().is_ok() && !is_own_partial(partial) {
        return Err(RecoverError::Target {
            path: partial.to_owned(),
            found: "one that Walden did not create".to_owned(),
            hint: "remove it, or name another directory",
        });
    }
    Ok(())
}

/// Whether a restore left the folder in which it works: marked, or empty after an early kill.
pub(crate) fn is_own_partial(partial: &Path) -> bool {
    is_marked_partial(partial) || fs::read_dir(partial).is_ok_and(|mut entries| entries.next().is_none())
}

fn is_marked_partial(partial: &Path) -> bool {
    [MARK, RENAME_MARK].iter().any(|mark| partial.join(mark).exists())
}

/// Whether a folder is one in which a restore worked, by its name and the mark of a rename: a complete backup
/// without its final name, or the one that it replaced.
pub fn is_unfinished_rename(folder: &Path) -> bool {
    folder.extension().is_some_and(|extension| extension == PARTIAL) && folder.join(RENAME_MARK).exists()
}

/// Marks a folder before it gets another name.
pub(crate) fn mark_rename(folder: &Path) -> Result<(), RecoverError> {
    let mark = folder.join(RENAME_MARK);
    private::write(&mark, "").map_err(RecoverError::io("create", &mark))?;
    walden_source::sync(folder).map_err(RecoverError::io("synchronize", folder))
}

/// Removes the mark of a rename, if there is one.
pub(crate) fn unmark_rename(folder: &Path) -> Result<(), RecoverError> {
    let mark = folder.join(RENAME_MARK);
    match fs::remove_file(&mark) {
        Ok(()) => walden_source::sync(folder).map_err(RecoverError::io("synchronize", folder)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(RecoverError::io("remove", &mark)(error)),
    }
}

/// Whether a folder is on another file system than the folder that contains it.
pub(crate) fn is_mount_point(folder: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let Some(own) = device(folder) else { return false };
    device(&folder.join("..")).is_some_and(|above| above != own)
}

/// Removes the files that an earlier restore left, its marks last: otherwise the remainder would look like
/// another program's.
pub(crate) fn remove_partial(partial: &Path) -> io::Result<()> {
    remove_content(partial)?;
    remove_folder(partial)
}

/// Removes everything in a folder but the marks.
fn remove_content(partial: &Path) -> io::Result<()> {
    for entry in fs::read_dir(partial).into_iter().flatten() {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_folder(&entry.path())?,
            false if [MARK, RENAME_MARK].iter().all(|mark| entry.file_name() != *mark) => {
                fs::remove_file(entry.path())?
            }
            false => {}
        }
    }
    Ok(())
}

/// Removes the folder that an interrupted restore to a data directory left, unless another run uses it.
/// Returns its path if there was one.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_leftover(data: &Path) -> Result<Option<PathBuf>, RecoverError> {
    let partial = partial_of(data)?;
    if !is_marked_partial(&partial) {
        return Ok(None);
    }
    let _lock = match FolderLock::exclusive(&partial) {
        Err(RecoverError::InUse { .. }) => return Ok(None),
        lock => lock?,
    };
    unmark_rename(data)?;
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
    partial.push(".");
    partial.push(PARTIAL);
    Ok(data.with_file_name(partial))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states of an exchange at which a run may be killed: before it, and before the old folder is marked
    /// as incomplete.
    #[test]
    fn a_run_that_is_killed_around_its_rename_leaves_folders_that_the_next_one_removes() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("main");
        let partial = partial_of(&data).unwrap();
        for is_base_marked in [false, true] {
            for path in [&data, &partial] {
                fs::create_dir(path).unwrap();
                fs::write(path.join("PG_VERSION"), "18").unwrap();
            }
            assert!(expect_own_partial(&partial).is_err() && remove_leftover(&data).unwrap().is_none());
            assert!(!is_unfinished_rename(&partial));
            mark_rename(&partial).unwrap();
            if is_base_marked {
                mark_rename(&data).unwrap();
            }
            expect_own_partial(&partial).unwrap();
            assert!(is_unfinished_rename(&partial) && !is_unfinished_rename(&data));
            assert!(expect_free_folder(&data).is_err(), "the complete folder is kept");
            assert_eq!(remove_leftover(&data).unwrap().as_ref(), Some(&partial));
            assert!(!partial.exists() && !data.join(RENAME_MARK).exists());
            assert_eq!(fs::read(data.join("PG_VERSION")).unwrap(), b"18");
            fs::remove_dir_all(&data).unwrap();
        }
    }
}
