//! Stores objects in a folder, in an object store, or on a server that ssh reaches.
//!
//! A [`Store`] maps keys to bytes and is independent of WAL. Its only way to write is [`Store::create`],
//! which never replaces an object and returns only when the object would survive a power failure. Tests wrap
//! a store in one that injects failures.

#[cfg(feature = "s3")]
mod client;
#[cfg(feature = "s3")]
mod client_error;
#[cfg(feature = "s3")]
pub(crate) mod clouds;
mod folder;
#[cfg(all(feature = "encryption", feature = "s3"))]
pub(crate) mod kms;
#[cfg(feature = "s3")]
mod object_lock;
mod pace;
#[cfg(feature = "s3")]
mod profile;
#[cfg(feature = "s3")]
mod remote;
#[cfg(feature = "sftp")]
mod sftp;
#[cfg(feature = "s3")]
mod sso;
#[cfg(feature = "s3")]
mod swift;
pub mod versions;

use std::fmt;
use std::ops::Range;
use std::path::Path;

pub use folder::Folder;
#[cfg(feature = "s3")]
pub use remote::Remote;
#[cfg(feature = "sftp")]
pub use sftp::Sftp;

use jiff::Timestamp;

use versions::{Kept, Versioned};

/// Remedy if a place that may be a mount point has no archive.
pub(crate) const NOT_MOUNTED: &str = "mount the file system if it is not mounted, or check the path or URL; walden archive init and import create an archive; push, serve and receive never do";

/// Maximum number of bytes of an object, which is held in memory: the largest segment, 1 GB, if nothing in it
/// can be compressed, and 64 MB for its frames and encryption.
pub const MAX_OBJECT_BYTES: u64 = (1 << 30) + (1 << 26);

/// Objects under keys such as `wal/00000001/00000000/000000010000000000000007.wlz`.
///
/// Keys have `/` between their parts, no empty part, no `.` or `..`, and no leading `/`.
pub trait Store: Send + Sync {
    /// Creates the place of a new archive, if the store can: a folder and its parents. Buckets and containers
    /// are created by their owner.
    ///
    /// # Errors
    /// The error that prevented creating it.
    fn make_root(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Stores an object under a key that does not exist yet. It never creates the place of the archive, which
    /// may be the mount point of a file system that is not mounted.
    ///
    /// On [`Created::New`] the object is durable: a folder has synchronized the file and its parent
    /// directories. On [`Created::Exists`] nothing was written.
    ///
    /// # Errors
    /// The error that prevented storing the object. The object may exist anyway if only the response was
    /// lost.
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError>;

    /// Stores an object as [`Store::create`] does, and records the hashes of its files for [`Store::holds`]
    /// if the store needs them.
    ///
    /// # Errors
    /// Like [`Store::create`].
    fn create_with(&self, key: &str, content: &[u8], _files: &[FileHash<'_>]) -> Result<Created, StoreError> {
        self.create(key, content)
    }

    /// Returns whether an object contains a file with this content, or `None` if the store cannot tell
    /// without decrypting it.
    ///
    /// # Errors
    /// Like [`Store::read`].
    fn holds(&self, _key: &str, _file: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }

    /// Makes an object durable whose writer may have been interrupted before synchronizing it.
    ///
    /// # Errors
    /// Like [`Store::read`].
    fn make_durable(&self, key: &str) -> Result<(), StoreError>;

    /// Reads an entire object of at most [`MAX_OBJECT_BYTES`].
    ///
    /// # Errors
    /// [`Cause::NotFound`] if the object does not exist, otherwise the error that prevented reading it.
    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError>;

    /// Reads the bytes of an object that fall in the range. The result is shorter if the object ends within
    /// the range.
    ///
    /// # Errors
    /// Like [`Store::read`].
    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError>;

    /// Returns the stored size of an object in bytes, as a listing reports it.
    ///
    /// # Errors
    /// Like [`Store::read`].
    fn size(&self, key: &str) -> Result<u64, StoreError>;

    /// Returns the number of bytes that [`Store::read`] returns for an object of this stored size: fewer if
    /// it is encrypted.
    ///
    /// # Errors
    /// Like [`Store::read`].
    fn content_bytes(&self, _key: &str, stored_bytes: u64) -> Result<u64, StoreError> {
        Ok(stored_bytes)
    }

    /// Calls `visit` for each object whose key starts with `prefix`, in no particular order. `prefix` is
    /// empty or ends with `/`.
    ///
    /// # Errors
    /// The error that left the listing incomplete.
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError>;

    /// Removes an object. A missing object is not an error.
    ///
    /// # Errors
    /// The error that prevented the removal.
    fn remove(&self, key: &str) -> Result<(), StoreError>;

    /// Removes an object that the archive does not need any more. Returns the reason if the store keeps it:
    /// it is locked, or the credentials have no right to remove. A bucket with Object Lock removes all
    /// versions, so a delete marker there is never Walden's.
    ///
    /// # Errors
    /// Any other error that prevented the removal.
    fn discard(&self, key: &str) -> Result<Option<Kept>, StoreError> {
        self.remove(key).map(|()| None)
    }

    /// Discards all objects under a prefix that ends with `/`. No other process may be using them. Returns
    /// the reason if the store keeps any.
    ///
    /// # Errors
    /// The first error that prevented a removal.
    fn remove_all(&self, prefix: &str) -> Result<Option<Kept>, StoreError> {
        let mut keys = Vec::new();
        self.list(prefix, &mut |listed| keys.push(listed.key))?;
        let mut first = None;
        for key in keys {
            first = first.or(self.discard(&key)?);
        }
        Ok(first)
    }

    /// Removes the unfinished files of killed writers. Files that are still being written stay, and neither
    /// kind is an object.
    ///
    /// # Errors
    /// The error that prevented the removal.
    fn remove_leftovers(&self) -> Result<(), StoreError>;

    /// Returns the location of the store for messages: a path or a URL.
    fn location(&self) -> &str;

    /// Returns the folder that contains the objects, if they are files.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Returns whether the location may change between two calls because its file system can be unmounted.
    fn can_be_unmounted(&self) -> bool {
        false
    }

    /// Returns the storage class of new segments and packs, if the configuration names one and the store has
    /// classes.
    fn storage_class(&self) -> Option<&str> {
        None
    }

    /// Returns the versions of objects, if the store can have any.
    fn versioned(&self) -> Option<&dyn Versioned> {
        None
    }

    /// Returns a warning that the user should read before relying on this store.
    fn warning(&self) -> Option<&str> {
        None
    }
}

/// Result of [`Store::create`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Created {
    /// The object is stored.
    New,
    /// The key already has an object, with the same or different content.
    Exists,
}

/// An object in a listing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Listed {
    /// Key of the object.
    pub key: String,
    /// Stored size in bytes.
    pub bytes: u64,
    /// When the object was stored, by the store's clock.
    pub stored: Option<Timestamp>,
}

/// The name and hash of a file in an object.
#[derive(Clone, Copy, Debug)]
pub struct FileHash<'a> {
    /// The archived file's name.
    pub name: &'a str,
    /// BLAKE3 of its bytes.
    pub hash: &'a [u8; 32],
}

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub struct StoreError {
    /// The operation: "read", "create".
    pub operation: &'static str,
    /// Key or prefix of the operation.
    pub key: String,
    /// Location of the store.
    pub location: String,
    /// The cause, for the caller's decision.
    pub cause: Cause,
    /// The error from the operating system or the client library.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// Creates an error without a source.
    pub fn new(operation: &'static str, key: &str, location: &str, cause: Cause) -> StoreError {
        StoreError { operation, key: key.to_owned(), location: location.to_owned(), cause, source: None }
    }
}

/// Causes of a store's error that callers distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The object does not exist.
    NotFound,
    /// The bucket does not exist.
    NoBucket,
    /// The place of the archive, or the archive in it, does not exist any more.
    NoArchive,
    /// The store denies access to this user.
    Denied,
    /// No credentials are configured, and the machine's metadata service does not provide any.
    NoCredentials,
    /// The store has no space left.
    Full,
    /// The store is read-only.
    ReadOnly,
    /// The store is unreachable or did not answer in time. A later attempt may succeed.
    Unavailable,
    /// The object exceeds the limit for reading into memory.
    TooLarge,
    /// The key is not valid in this store.
    InvalidKey,
    /// The object is encrypted, and no private key is configured.
    Locked,
    /// The configured private key cannot decrypt any of the archive's keys.
    WrongIdentity,
    /// The configured identity file cannot be read.
    UnreadableIdentity,
    /// The configured identity file is protected by a passphrase.
    ProtectedIdentity,
    /// The configured identity file contains no private key.
    NoIdentity,
    /// The key service that wraps the private key failed.
    KeyService,
    /// The archive is unencrypted, or encrypted to a different public key than expected.
    OtherRecipient,
    /// The object is encrypted to a public key that does not belong to the archive.
    ForeignKey,
    /// The archive is encrypted, and its keys are missing.
    KeysMissing,
    /// The archive is encrypted, and a generation of its keys is missing or damaged.
    KeysDamaged,
    /// The object is damaged: decryption failed, or the store reports fewer bytes than expected.
    Damaged,
    /// The bucket cannot lock objects, although a lock is configured.
    NoObjectLock,
    /// The credentials have expired.
    Expired,
    /// The clock of this machine differs from the store's.
    ClockSkew,
    /// ssh does not know the server's host key, or knows another one.
    HostKey,
    /// The server that ssh reaches lets this user not log in without a password.
    LoginDenied,
    /// The ssh program cannot be run.
    NoSsh,
    /// Anything else.
    Other,
}

impl Cause {
    /// Returns whether the private key is the obstacle to decryption: missing, unusable, or not one of the
    /// archive's.
    pub fn is_of_identity(self) -> bool {
        matches!(
            self,
            Cause::Locked
                | Cause::WrongIdentity
                | Cause::UnreadableIdentity
                | Cause::ProtectedIdentity
                | Cause::NoIdentity
                | Cause::KeyService
        )
    }
}

impl StoreError {
    /// Whether the source is an error of the file system of this kind of cause, which says the same.
    fn has_cause_in_source(&self) -> bool {
        let source = self.source.as_deref().and_then(|source| source.downcast_ref::<std::io::Error>());
        source.is_some()
            && matches!(self.cause, Cause::NotFound | Cause::Denied | Cause::Full | Cause::ReadOnly)
    }
}

walden_format::diagnostics! { StoreError {
    Self { cause: Cause::Denied, operation: "list", location, .. } if location.contains("://") => "archive-denied" as "denied": "let these credentials list this prefix (on S3: s3:ListBucket on the bucket, with a condition on s3:prefix, for all prefixes of the \
         archive). The end of the WAL counts as such only if no prefix shows that there was more; docs/archive-reference.md has the rights \
         that each command needs",
    Self { cause: Cause::Unavailable, location, .. } if location.starts_with("sftp://") => "archive-unreachable" as "unavailable": "check that ssh reaches the server as the user that walden runs as: ssh USER@HOST; run the command again; PostgreSQL \
         itself repeats archive_command, and continues a stopped recovery when it is started again",
    Self { cause: Cause::NoCredentials, location, .. } if location.starts_with("gs://") => "archive-no-credentials" as "no_credentials": "name the file with the key of a service account in GOOGLE_APPLICATION_CREDENTIALS in the environment of the command, for a server's \
         commands in that of its service, or as application_credentials in [archive.store] of walden.toml",
    Self { cause: Cause::NoCredentials, location, .. } if location.contains("://") && !location.starts_with("s3://") => "archive-no-credentials" as "no_credentials": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN) in the environment of the command, for a \
         server's commands in that of its service, or account_name and account_key (or sas_token) in [archive.store] of walden.toml",
    Self { cause: Cause::NoBucket, .. } => "archive-no-bucket" as "no_bucket": "check the name of the bucket or container, the endpoint and the region; walden creates neither",
    Self { cause: Cause::Denied, .. } => "archive-denied" as "denied": "let the user that walden runs as, or its credentials, read and write the archive: the server's commands run as PostgreSQL's user; use that user for manual commands too, and give it any files that another user, such as root, created there (chown -R)",
    Self { cause: Cause::NoCredentials, .. } => "archive-no-credentials" as "no_credentials": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the command, for a server's commands in that of its service, or access_key_id and secret_access_key, or profile, in [archive.store] of walden.toml; ~/.aws is that of the user that walden runs as",
    Self { cause: Cause::NoObjectLock, .. } => "archive-no-object-lock" as "no_object_lock": "create the bucket with Object Lock (aws s3api create-bucket --object-lock-enabled-for-bucket), or remove lock_days from walden.toml",
    Self { cause: Cause::Full, .. } => "archive-full" as "full": "make room in the archive's file system or bucket, for example with walden archive prune",
    Self { cause: Cause::ReadOnly, .. } => "archive-read-only" as "read_only": "the archive's file system is mounted read-only; see the system's log for why",
    Self { cause: Cause::Unavailable, .. } => "archive-unreachable" as "unavailable": "check the network and the store's service, and that the endpoint is right (AWS_ENDPOINT_URL or AZURE_STORAGE_ENDPOINT, or endpoint in [archive.store] of walden.toml; for gs:// base_url); run the command again; PostgreSQL itself repeats archive_command, and continues a stopped recovery when it is started again",
    Self { cause: Cause::Locked, .. } => "archive-locked" as "locked": "name the file with a private key that may read, or a key service: --identity FILE, WALDEN_IDENTITY, or identity in walden.toml",
    Self { cause: Cause::WrongIdentity, .. } => "archive-wrong-identity" as "wrong_identity": "walden archive key list shows whose private keys can read; any of them can add another by walden archive key add",
    Self { cause: Cause::UnreadableIdentity, .. } => "archive-unreadable-identity" as "wrong_identity": "check the path (--identity, WALDEN_IDENTITY, or identity in walden.toml), and let only the user that walden runs as read the file: for restore_command, the server's user",
    Self { cause: Cause::ProtectedIdentity, .. } => "archive-protected-identity" as "wrong_identity": "name a file with the unencrypted private key that the server's user alone can read: age -d -o restore.key FILE, then chmod 600 restore.key",
    Self { cause: Cause::NoIdentity, .. } => "archive-no-identity" as "wrong_identity": "name the file with the private key, as walden archive key generate and age-keygen write it: a line AGE-SECRET-KEY-1...; the public key (age1...) decrypts nothing",
    Self { cause: Cause::KeyService, .. } => "archive-key-service" as "wrong_identity": "let the credentials of the user that walden runs as use the key: kms:Decrypt to read, kms:Encrypt for walden archive key add. A command gets the bytes on standard input, prints the result, and exits with 0 within 60 s",
    Self { cause: Cause::OtherRecipient, .. } => "archive-other-recipient" as "other_recipient": "if this is the right archive and you changed its keys, put the recipient that walden archive key list shows into walden.toml. Otherwise, find out which process wrote to the archive, and whether a generation of keys (keys/) was lost: restore that from another copy of the archive",
    Self { cause: Cause::ForeignKey, .. } => "archive-foreign-key" as "foreign_key": "the object is from another archive, or the generation of keys (keys/) that decrypts it was lost. If the keys were lost, restore them from another copy of the archive. Otherwise, restore the object from another copy, or move it out of the archive: a server that still has the file then archives it again",
    Self { cause: Cause::KeysMissing, .. } => "archive-keys-missing" as "keys_missing": "restore the folder keys/ from another copy of the archive: without it, only a holder of the archive's own private keys can read encrypted objects",
    Self { cause: Cause::KeysDamaged, .. } => "archive-keys-damaged" as "keys_damaged": "restore the file of keys from another copy of the archive, and leave all objects where they are: without it, objects that only its keys decrypt are lost",
    Self { cause: Cause::Damaged, .. } => "archive-damaged" as "damaged_object": "walden archive verify lists all other damage; restore it from another copy",
    Self { cause: Cause::Expired, .. } => "archive-expired-credentials" as "expired_credentials": "renew the session token, or use credentials that renew themselves: those of the machine's or container's role",
    Self { cause: Cause::ClockSkew, .. } => "archive-clock-skew" as "clock_skew": "set the clock of this machine (timedatectl, chronyc tracking): stores refuse requests whose time differs by more than 15 minutes",
    Self { cause: Cause::HostKey, .. } => "archive-host-key" as "host_key": "as the user that walden runs as (for the server's commands: PostgreSQL's user), connect once by ssh and compare the fingerprint, or put the server's key into /etc/ssh/ssh_known_hosts. If the key has changed, find out why before you remove the known one (ssh-keygen -R HOST)",
    Self { cause: Cause::LoginDenied, .. } => "archive-login-denied" as "login_denied": "put the public key of the user that walden runs as (for the server's commands: PostgreSQL's user) into ~/.ssh/authorized_keys on the server (ssh-copy-id). Walden asks for no password or passphrase; name another key by IdentityFile in ~/.ssh/config",
    Self { cause: Cause::NoSsh, .. } => "archive-no-ssh" as "no_ssh": "install OpenSSH's client (package openssh-client), or name the program: program in [archive.store] of walden.toml",
    Self { cause: Cause::NoArchive, .. } => "archive-unmounted" as "no_archive": NOT_MOUNTED,
    Self { cause: Cause::NotFound, .. } => "archive-object-missing" as "not_found",
    Self { cause: Cause::TooLarge, .. } => "archive-object-too-large" as "too_large": "walden stores no object of this size: move it out of the archive, and restore the file from another copy",
    Self { cause: Cause::InvalidKey | Cause::Other, .. } => "archive-failed" as "other",
} }

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreError { operation, key, location, cause, .. } = self;
        match key.is_empty() {
            true => write!(f, "cannot {operation} {location}")?,
            false => write!(f, "cannot {operation} {key} in {location}")?,
        }
        match cause {
            _ if self.has_cause_in_source() => Ok(()),
            Cause::NotFound => f.write_str(": no such object"),
            Cause::NoBucket => f.write_str(": no such bucket"),
            Cause::NoArchive => f.write_str(
                ": cannot find an archive there: expected the folder with archive.json, found none",
            ),
            Cause::Denied => f.write_str(": permission denied"),
            Cause::NoCredentials => f.write_str(": no credentials are configured"),
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
            Cause::KeyService => f.write_str(": the key service failed"),
            Cause::OtherRecipient => f.write_str(": its keys are not the expected ones"),
            Cause::KeysMissing => f.write_str(": the archive is encrypted, and its keys are missing"),
            Cause::ForeignKey => f.write_str(": encrypted to a key that the archive does not have"),
            Cause::KeysDamaged => f.write_str(": keys of the archive are damaged"),
            Cause::Damaged => f.write_str(": damaged"),
            Cause::NoObjectLock => f.write_str(": the bucket has no Object Lock, which lock_days needs"),
            Cause::Expired => f.write_str(": the credentials have expired"),
            Cause::ClockSkew => f.write_str(": this machine's clock is wrong"),
            Cause::HostKey => f.write_str(": the server's host key is not a known one"),
            Cause::LoginDenied => f.write_str(": the server refuses the login"),
            Cause::NoSsh => f.write_str(": there is no ssh program"),
            Cause::Other => Ok(()),
        }
    }
}

/// Returns whether an object exists.
///
/// # Errors
/// The store's error if the answer is unknown.
#[cfg(feature = "encryption")]
pub(crate) fn exists(store: &dyn Store, key: &str) -> Result<bool, StoreError> {
    match store.size(key) {
        Ok(_) => Ok(true),
        Err(error) if error.cause == Cause::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether every part of the key is a valid file name.
fn is_valid(key: &str) -> bool {
    !key.is_empty() && key.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
}
