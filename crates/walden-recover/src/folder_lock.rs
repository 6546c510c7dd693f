//! Locks on the folders that a recovery reads and writes, so that two runs do not change the same one.
//!
//! The lock belongs to the folder, not to its name: an advance in place exchanges two folders, and each run
//! that comes later must notice that.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::RecoverError;

/// A file system and the number of a folder in it, which stays the same when the folder is renamed.
pub(crate) type Identity = (u64, u64);

/// Returns the identity of the folder or file at a path.
pub(crate) fn identify(path: &Path) -> Result<Identity, RecoverError> {
    let metadata = fs::metadata(path).map_err(RecoverError::io("read", path))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Checks that a path still leads to the same folder.
pub(crate) fn expect_identity(path: &Path, expected: Identity) -> Result<(), RecoverError> {
    match identify(path) {
        Ok(found) if found == expected => Ok(()),
        _ => Err(RecoverError::Replaced { path: path.to_owned() }),
    }
}

/// A lock, held until it is dropped. Another process cannot lock the same folder exclusively, or at all if
/// this lock is exclusive.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Locks a base backup that is read: a folder, or its tar file.
    ///
    /// # Errors
    /// Another run replaces it, or it cannot be opened.
    pub fn shared(path: &Path) -> Result<FolderLock, RecoverError> {
        FolderLock::lock(path, FlockOperation::NonBlockingLockShared)
    }

    /// Locks a folder that is written or replaced.
    pub(crate) fn exclusive(path: &Path) -> Result<FolderLock, RecoverError> {
        FolderLock::lock(path, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(path: &Path, operation: FlockOperation) -> Result<FolderLock, RecoverError> {
        let file = File::open(path).map_err(RecoverError::io("open", path))?;
        // Other errors are ignored: a network file system may be unable to lock folders.
        if flock(&file, operation) == Err(Errno::WOULDBLOCK) {
            return Err(RecoverError::InUse { path: path.to_owned() });
        }
        let metadata = file.metadata().map_err(RecoverError::io("read", path))?;
        expect_identity(path, (metadata.dev(), metadata.ino()))?;
        Ok(FolderLock { _file: file })
    }
}
