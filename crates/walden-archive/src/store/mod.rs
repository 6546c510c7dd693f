//! Where objects are kept: a folder, or an S3-compatible object store.
//!
//! A [`Store`] knows keys and bytes and nothing of WAL. It has one way to write, [`Store::create`], which never replaces an
//! object and returns only when the object would survive a power failure. Tests wrap a store in one that fails.

mod folder;
#[cfg(feature = "s3")]
mod remote;

use std::fmt;
use std::ops::Range;
use std::path::Path;

pub use folder::Folder;
#[cfg(feature = "s3")]
pub use remote::Remote;

/// The most bytes of an object that are held in memory at once.
pub const MAX_OBJECT_BYTES: u64 = 1 << 30;

/// Objects under keys such as `wal/00000001/00000000/000000010000000000000007.wlz`.
///
/// Keys have `/` between their parts, no empty part, no `.` or `..`, and no leading `/`.
pub trait Store: Send + Sync {
    /// Stores an object under a key that has none yet.
    ///
    /// When this returns [`Created::New`] the object is durable: of a folder, the file and the folders that name it have been
    /// synchronised. At [`Created::Exists`] nothing was written.
    ///
    /// # Errors
    /// Whatever kept the object from being stored. It may exist all the same, if only the answer got lost.
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError>;

    /// Stores an object as [`Store::create`] does, and the hashes of the files in it for [`Store::holds`], if the store needs them.
    ///
    /// # Errors
    /// As [`Store::create`].
    fn create_with(&self, key: &str, content: &[u8], _files: &[FileHash<'_>]) -> Result<Created, StoreError> {
        self.create(key, content)
    }

    /// Whether an object has a file with this content, if the store can say so without decrypting the object.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn holds(&self, _key: &str, _file: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }

    /// Makes an object durable that another process may have been about to make so when it was interrupted.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn make_durable(&self, key: &str) -> Result<(), StoreError>;

    /// Reads a whole object of at most [`MAX_OBJECT_BYTES`].
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such object, and what kept it from being read.
    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError>;

    /// Reads some of an object's bytes: those of the range that it has.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError>;

    /// The bytes of an object as it is stored, which a listing shows too.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn size(&self, key: &str) -> Result<u64, StoreError>;

    /// The bytes that [`Store::read`] returns of an object that takes so many: fewer if it is stored encrypted.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn content_bytes(&self, _key: &str, stored_bytes: u64) -> Result<u64, StoreError> {
        Ok(stored_bytes)
    }

    /// Calls `visit` for each object whose key begins with `prefix`, which is empty or ends with `/`, in no particular order.
    ///
    /// # Errors
    /// What kept the listing from being complete.
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError>;

    /// Removes an object; none of that key is success.
    ///
    /// # Errors
    /// What kept the object from being removed.
    fn remove(&self, key: &str) -> Result<(), StoreError>;

    /// Removes all objects below a prefix that ends with `/` and that nobody else uses.
    ///
    /// # Errors
    /// What kept one from being removed.
    fn remove_all(&self, prefix: &str) -> Result<(), StoreError> {
        let mut keys = Vec::new();
        self.list(prefix, &mut |listed| keys.push(listed.key))?;
        keys.iter().try_for_each(|key| self.remove(key))
    }

    /// Removes what writers left unfinished that were killed, and nothing that is being written: no object of either.
    ///
    /// # Errors
    /// What kept it from being removed.
    fn remove_leftovers(&self) -> Result<(), StoreError>;

    /// Where the store is, for people: a path or a URL.
    fn location(&self) -> &str;

    /// The folder whose files the objects are, if they are files.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Whether the place may be another one from one call to the next: a folder's file system may be unmounted.
    fn can_be_unmounted(&self) -> bool {
        false
    }

    /// What users should know of this store before they rely on it, if anything.
    fn warning(&self) -> Option<&str> {
        None
    }
}

/// What became of a [`Store::create`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Created {
    /// The object is stored.
    New,
    /// The key has an object already, with this content or another one.
    Exists,
}

/// An object in a listing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its bytes as it is stored.
    pub bytes: u64,
}

/// A file in an object, by what it has.
#[derive(Clone, Copy, Debug)]
pub struct FileHash<'a> {
    /// The archived file's name.
    pub name: &'a str,
    /// BLAKE3 of its bytes.
    pub hash: &'a [u8; 32],
}

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub struct StoreError {
    /// What was to be done: "read", "create".
    pub operation: &'static str,
    /// With which object or prefix.
    pub key: String,
    /// Where.
    pub location: String,
    /// What a caller can decide by.
    pub cause: Cause,
    /// What the system or the client library said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What a caller can decide by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// There is no such object.
    NotFound,
    /// There is no such bucket.
    NoBucket,
    /// The store does not let this user do it.
    Denied,
    /// Nobody said as whom the store is to be asked, and the machine's metadata service does not say it either.
    NoCredentials,
    /// The store has no room left.
    Full,
    /// The store is there for reading only.
    ReadOnly,
    /// The store cannot be reached or did not answer in time: trying again later may help.
    Unavailable,
    /// The object is larger than what is held in memory.
    TooLarge,
    /// The key cannot be one of this store's.
    InvalidKey,
    /// The object is encrypted, and no private key was named.
    Locked,
    /// The private key that was named opens none of the archive's.
    WrongIdentity,
    /// The file that was named for a private key cannot be read.
    UnreadableIdentity,
    /// The file that was named for a private key is protected by a passphrase.
    ProtectedIdentity,
    /// The file that was named for a private key has none.
    NoIdentity,
    /// It is encrypted to another public key than was expected, or not at all.
    OtherRecipient,
    /// The object is encrypted to a public key that is none of the archive's.
    ForeignKey,
    /// The archive is encrypted, and its keys are not there.
    KeysMissing,
    /// The archive is encrypted, and a generation of its keys is gone or not as it was stored.
    KeysDamaged,
    /// The object is not as it was stored, as an encrypted one and a store that knows its size say.
    Damaged,
    /// Anything else.
    Other,
}

impl Cause {
    /// Whether what is encrypted cannot be read for want of a private key: none was named, or none that can be used and is the archive's.
    pub fn is_of_identity(self) -> bool {
        matches!(
            self,
            Cause::Locked
                | Cause::WrongIdentity
                | Cause::UnreadableIdentity
                | Cause::ProtectedIdentity
                | Cause::NoIdentity
        )
    }

    /// The cause in a word, for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Cause::NotFound => "not_found",
            Cause::NoBucket => "no_bucket",
            Cause::Denied => "denied",
            Cause::NoCredentials => "no_credentials",
            Cause::Full => "full",
            Cause::ReadOnly => "read_only",
            Cause::Unavailable => "unavailable",
            Cause::TooLarge => "too_large",
            Cause::Locked => "locked",
            Cause::WrongIdentity
            | Cause::UnreadableIdentity
            | Cause::ProtectedIdentity
            | Cause::NoIdentity => "wrong_identity",
            Cause::OtherRecipient => "other_recipient",
            Cause::ForeignKey => "foreign_key",
            Cause::KeysMissing => "keys_missing",
            Cause::KeysDamaged => "keys_damaged",
            Cause::Damaged => "damaged_object",
            Cause::InvalidKey | Cause::Other => "other",
        }
    }

    /// What the user can do about it.
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            Cause::NoBucket => {
                "check the bucket's name, the endpoint and the region; buckets are not made by walden"
            }
            Cause::Denied => {
                "let the user that walden runs as, or whose credentials it has, read and write the archive: the server's commands run as PostgreSQL's user, by hand use the same one, and give it what another user, such as root, made there (chown -R)"
            }
            Cause::NoCredentials => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of whoever asks, as of the server's service, or access_key_id and secret_access_key in [archive.store] of walden.toml; profiles and ~/.aws are not read"
            }
            Cause::Full => {
                "make room in the archive's file system or bucket, for example with walden archive prune"
            }
            Cause::ReadOnly => "the archive's file system is mounted read-only; see the system's log for why",
            Cause::Unavailable => {
                "check the network and the store's service, and that the endpoint is right (AWS_ENDPOINT_URL, or endpoint in [archive.store] of walden.toml); the server calls archive_command again; a recovery that has stopped continues when the server is started again"
            }
            Cause::Locked => {
                "name the file with a private key that may read: --identity FILE, WALDEN_IDENTITY, or identity in walden.toml"
            }
            Cause::WrongIdentity => {
                "walden archive key list shows whose private keys can read; any of them can add another by walden archive key add"
            }
            Cause::UnreadableIdentity => {
                "check the path (--identity, WALDEN_IDENTITY, or identity in walden.toml), and let the user that walden runs as read the file, and nobody else: the server's user, where restore_command reads it"
            }
            Cause::ProtectedIdentity => {
                "name a file with the private key in plain that the server's user alone can read: age -d -o restore.key FILE, then chmod 600 restore.key"
            }
            Cause::NoIdentity => {
                "name the file with the private key, as walden archive key generate and age-keygen write it: a line AGE-SECRET-KEY-1...; the public key (age1...) opens nothing"
            }
            Cause::OtherRecipient => {
                "if the archive is the right one, put the recipient that walden archive key list shows into walden.toml; if nobody changed its keys, find out who wrote to it, and whether a generation of keys (keys/) was lost: put that back from another copy of the archive"
            }
            Cause::ForeignKey => {
                "the object was made in another archive, or the generation of keys (keys/) that opens it was lost: put that back from another copy of the archive if so. Else put the object back from another copy, or move it out of the archive: a server that still has the file archives it when it is offered again"
            }
            Cause::KeysMissing => {
                "put the folder keys/ back, from another copy of the archive: what is encrypted without it nobody can read but who has the archive's own private keys"
            }
            Cause::KeysDamaged => {
                "put the file of keys back from another copy of the archive, and leave all objects where they are: what only its keys open is lost without it"
            }
            Cause::Damaged => "walden archive verify says what else is damaged; restore it from another copy",
            Cause::NotFound | Cause::TooLarge | Cause::InvalidKey | Cause::Other => return None,
        })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreError { operation, key, location, cause, .. } = self;
        match key.is_empty() {
            true => write!(f, "cannot {operation} {location}")?,
            false => write!(f, "cannot {operation} {key} in {location}")?,
        }
        match cause {
            Cause::NotFound => f.write_str(": no such object"),
            Cause::NoBucket => f.write_str(": no such bucket"),
            Cause::Denied => f.write_str(": permission denied"),
            Cause::NoCredentials => f.write_str(": no credentials are named"),
            Cause::Full => f.write_str(": no room left"),
            Cause::ReadOnly => f.write_str(": the store is read-only"),
            Cause::Unavailable => f.write_str(": the store did not answer as expected"),
            Cause::TooLarge => write!(f, ": expected at most {MAX_OBJECT_BYTES} bytes, found more"),
            Cause::InvalidKey => f.write_str(": not a key that objects can have"),
            Cause::Locked => f.write_str(": the archive is encrypted, and no private key was named"),
            Cause::WrongIdentity
            | Cause::UnreadableIdentity
            | Cause::ProtectedIdentity
            | Cause::NoIdentity => f.write_str(": the private key cannot be used"),
            Cause::OtherRecipient => f.write_str(": encrypted for others"),
            Cause::KeysMissing => f.write_str(": the archive is encrypted, and its keys are missing"),
            Cause::ForeignKey => f.write_str(": encrypted to a key that is none of the archive's"),
            Cause::KeysDamaged => f.write_str(": keys of the archive are damaged"),
            Cause::Damaged => f.write_str(": damaged"),
            Cause::Other => Ok(()),
        }
    }
}

/// Whether a store has an object of a key.
///
/// # Errors
/// The store's, where that is not known.
#[cfg(feature = "encryption")]
pub(crate) fn exists(store: &dyn Store, key: &str) -> Result<bool, StoreError> {
    match store.size(key) {
        Ok(_) => Ok(true),
        Err(error) if error.cause == Cause::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a key has only parts that are names.
fn is_valid(key: &str) -> bool {
    !key.is_empty() && key.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
}
