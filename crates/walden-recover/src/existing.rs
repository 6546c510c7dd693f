//! A data directory over which a base backup is restored.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_source::datadir::{ControlFile, DataDirError};

use crate::error::RecoverError;
use crate::folder_lock::FolderLock;

/// The name of `pg_control` until the restore is complete.
pub(crate) const MOVED_CONTROL: &str = "global/pg_control.before_restore";
/// Largest `pg_control` that is read, in bytes.
const MAX_CONTROL_BYTES: u64 = 1 << 20;

/// A data directory over which a base backup is restored. No other run of Walden writes it meanwhile.
#[derive(Debug)]
pub struct ExistingDirectory {
    path: PathBuf,
    system_identifier: u64,
    _lock: FolderLock,
}

impl ExistingDirectory {
    /// Opens the data directory of a stopped server, or the one that a killed restore left.
    ///
    /// # Errors
    /// It is not one, a server uses it, or another run uses it.
    pub fn open(path: &Path) -> Result<ExistingDirectory, RecoverError> {
        let refuse = |expected, found: String, hint| {
            Err(RecoverError::Existing { path: path.to_owned(), expected, found, hint })
        };
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let hint = "without --delta, Walden creates the directory";
                return refuse("a data directory", "none".to_owned(), hint);
            }
            Err(error) => return Err(RecoverError::io("read", path)(error)),
        };
        let Some(control) = read_control(&path, &[ControlFile::PATH, MOVED_CONTROL])? else {
            let found = format!("no {}", ControlFile::PATH);
            let hint = "name the data directory of a stopped server of this cluster; without --delta, Walden fills a missing or empty one";
            return refuse("a data directory", found, hint);
        };
        if path.join("postmaster.pid").symlink_metadata().is_ok() {
            let hint = "stop the server. If it was killed and no process of PostgreSQL uses the directory, also on other machines, remove the file";
            return refuse("the data directory of a stopped server", "postmaster.pid".to_owned(), hint);
        }
        let _lock = FolderLock::exclusive(&path)?;
        Ok(ExistingDirectory { path, system_identifier: control.system_identifier, _lock })
    }

    /// Its path, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the directory is of the cluster, and that it has no WAL that waits for the archiver.
    pub(crate) fn expect_replaceable(&self, cluster: u64) -> Result<(), RecoverError> {
        let refuse = |expected, found, hint| {
            Err(RecoverError::Existing { path: self.path.clone(), expected, found, hint })
        };
        if self.system_identifier != cluster {
            let found = format!("that of the system {} instead of {cluster}", self.system_identifier);
            let hint = "name a data directory of the cluster whose backup is restored";
            return refuse("a data directory of the backup's cluster", found, hint);
        }
        if let Some(first) = first_unarchived(&self.path)? {
            let hint = "archive it (walden archive push), or move it out of pg_wal: the restore removes it. Without its .ready file in archive_status, it is given up";
            return refuse("WAL that is archived", format!("pg_wal/{first}, which is not"), hint);
        }
        Ok(())
    }

    /// Moves `pg_control` away.
    pub(crate) fn move_control(&self) -> Result<(), RecoverError> {
        let (control, moved) = (self.path.join(ControlFile::PATH), self.path.join(MOVED_CONTROL));
        // A killed restore may have left a part of the new one. PostgreSQL does not start from it.
        match read_control(&self.path, &[ControlFile::PATH])? {
            Some(_) => fs::rename(&control, &moved).map_err(RecoverError::io("rename", &control))?,
            None => match fs::remove_file(&control) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(RecoverError::io("remove", &control))?,
            },
        }
        synchronize(&self.path.join("global"))
    }

    /// Removes the earlier `pg_control` after the new one was written.
    pub(crate) fn finish(&self) -> Result<(), RecoverError> {
        let moved = self.path.join(MOVED_CONTROL);
        fs::remove_file(&moved).map_err(RecoverError::io("remove", &moved))?;
        synchronize(&self.path.join("global"))
    }

    /// The account that owns the folder, if it is another one.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        let metadata = fs::metadata(&self.path).ok()?;
        let owner = (metadata.uid(), metadata.gid());
        let own = rustix::process::geteuid();
        (own.is_root() && owner.0 != own.as_raw()).then_some(owner)
    }
}

/// Reads the first of the files that is a `pg_control`.
fn read_control(data: &Path, names: &[&str]) -> Result<Option<ControlFile>, RecoverError> {
    let mut failure = None;
    for name in names {
        let path = data.join(name);
        match walden_source::regular_file::read(&path, MAX_CONTROL_BYTES) {
            Ok(content) => match ControlFile::parse(&content) {
                Ok(control) => return Ok(Some(control)),
                Err(error) => drop(failure.get_or_insert(DataDirError::Control { path, error })),
            },
            Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            }
            Err(error) => return Err(RecoverError::io("read", &path)(error)),
        }
    }
    // A killed restore leaves a part of pg_control only next to the earlier one.
    match failure.filter(|_| !data.join(MOVED_CONTROL).exists()) {
        Some(failure) => Err(failure.into()),
        None => Ok(None),
    }
}

/// Returns the name of the first file of WAL that waits for the archiver.
fn first_unarchived(data: &Path) -> Result<Option<String>, RecoverError> {
    let status = data.join("pg_wal/archive_status");
    if !status.exists() {
        return Ok(None);
    }
    let entries = fs::read_dir(&status).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut waiting: Vec<String> = entries
        .map_err(RecoverError::io("read", &status))?
        .iter()
        .map(fs::DirEntry::path)
        .filter(|path| path.extension() == Some(OsStr::new("ready")))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .filter(|name| data.join("pg_wal").join(name).exists())
        .collect();
    waiting.sort_unstable();
    Ok(waiting.into_iter().next())
}

fn synchronize(folder: &Path) -> Result<(), RecoverError> {
    walden_source::sync(folder).map_err(RecoverError::io("synchronize", folder))
}
