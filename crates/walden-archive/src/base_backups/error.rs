//! Why a base backup cannot be stored or read.

use walden_recover::RecoverError;

use crate::archive::ArchiveError;
use crate::store::StoreError;

/// Why a base backup cannot be stored or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseBackupError {
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// An object of a stored backup is damaged.
    #[error("cannot use {object} in {location}: {problem}")]
    Damaged {
        /// Name of the object in the store.
        object: String,
        /// Location of the archive.
        location: String,
        /// The expected and the found value.
        problem: String,
    },
    /// The archive has no such backup.
    #[error("cannot find the base backup {wanted} in {location}: {found}")]
    NotFound {
        /// The wanted name.
        wanted: String,
        /// Location of the archive.
        location: String,
        /// The backups that the archive has, as text.
        found: String,
    },
    /// The server sends something other than a base backup.
    #[error("cannot store the base backup: {0}")]
    Content(String),
    /// The files of the backup are not those of its manifest.
    #[error("cannot store the base backup: {0}, according to its backup_manifest")]
    Manifest(String),
    /// Objects of the backup, or to which it refers, were removed while it was made.
    #[error(
        "cannot complete the base backup {name}: expected {object} in {location}, found none: it was removed meanwhile"
    )]
    Removed {
        /// The name of the backup.
        name: String,
        /// The key of the first missing object.
        object: String,
        /// Location of the archive.
        location: String,
    },
    /// Another run makes a backup of the same name.
    #[error("cannot start the base backup {name} in {location}: another one of this name was started")]
    Exists {
        /// The name of the backup.
        name: String,
        /// Location of the archive.
        location: String,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The stored backup cannot be opened.
    #[error(transparent)]
    Recover(#[from] RecoverError),
}

impl From<StoreError> for BaseBackupError {
    fn from(error: StoreError) -> BaseBackupError {
        BaseBackupError::Archive(error.into())
    }
}

impl BaseBackupError {
    /// Returns whether the object that was read is damaged or missing, rather than unreadable now.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            BaseBackupError::Damaged { .. } => true,
            BaseBackupError::Archive(error) => error.is_damage() || error.is_not_found(),
            _ => false,
        }
    }
}

walden_format::diagnostics! { BaseBackupError {
    Self::Archive(error) => of(error),
    Self::Recover(error) => of(error),
    Self::Damaged { .. } => "backup-damaged": "restore the object from another copy of the archive, or use another base backup; walden archive verify lists all damage",
    Self::NotFound { .. } => "backup-not-found": "walden archive list shows the base backups; --base also accepts the folder of a backup outside of the archive",
    Self::Content(_) => "backup-content": "check that the connection is to a PostgreSQL server and not to a proxy that changes the stream, and try again",
    Self::Manifest(_) => "backup-content": "nothing was recorded as a backup. Check the network and the server's log, and try again",
    Self::Removed { .. } => "backup-removed": "nothing was recorded as a backup. Make the backup again, and do not remove objects under base/ meanwhile: walden archive prune waits for backups that are being made",
    Self::Exists { .. } => "backup-exists": "try again in a second",
    Self::Thread(_) => none,
} }
