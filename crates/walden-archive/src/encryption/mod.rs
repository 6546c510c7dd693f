//! Encrypts objects on the client: the store sees only names, sizes and ciphertext.
//!
//! An encrypted archive has its own key pair. `archive.json` states the public key, the *archive's
//! recipient*. The private key is stored in the archive as `keys/0001.age`, encrypted to the public keys of
//! the *users* who can read. So writing needs no secret, and reading needs one user's private key. Adding or
//! removing users writes a new generation, such as `keys/0002.age`, and rewrites no objects. Each object is a
//! file in the [age](https://age-encryption.org/v1) format under its key plus `.age`, which any
//! implementation of age can decrypt.
//!
//! [`Encrypted`] is a [`Store`] that wraps another one, so that the layers above are independent of
//! encryption.

#[cfg(feature = "encryption")]
mod engine;
#[cfg(not(feature = "encryption"))]
#[path = "absent.rs"]
mod engine;
#[cfg(feature = "encryption")]
pub mod keys;
#[cfg(feature = "encryption")]
mod object;
#[cfg(feature = "encryption")]
mod service;
mod store;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use store::Encrypted;

use crate::objects::name::{PRUNED, VERIFIED};
use crate::store::{Cause, Store, StoreError};

/// Suffix of an encrypted object's key.
pub const SUFFIX: &str = ".age";
/// Maximum number of files in an encrypted object. The header has a tag for each, and age needs quadratic
/// time in the header's length to read it.
pub const MAX_FILES: u64 = 512;
/// Key prefix of the generations of the archive's keys.
pub const KEYS: &str = "keys/";

/// Starts of an identity that names a key service: KMS of AWS, or a command.
const KEY_SERVICES: [&str; 2] = [ARN, COMMAND];
const ARN: &str = "arn:";
const COMMAND: &str = "command:";

/// Objects that stay plain in an encrypted archive. A reader needs them to learn how to read the archive, and
/// monitoring without a private key reads the results of `verify` and the records of `prune`, which show what
/// a listing also shows.
const PLAIN: [&str; 6] = ["archive.json", "README.txt", "docs/", KEYS, VERIFIED, PRUNED];

/// Returns whether an object stays plain even in an encrypted archive.
pub fn is_plain(key: &str) -> bool {
    PLAIN.iter().any(|plain| key == *plain || (plain.ends_with('/') && key.starts_with(plain)))
}

/// Returns the key of an object's encrypted form.
fn sealed(key: &str) -> String {
    format!("{key}{SUFFIX}")
}

/// Encryption settings of an archive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Encryption {
    /// The archive's first public key (`age1...`). `keys/` contains the later ones.
    pub recipient: String,
}

/// The configured keys for an archive.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct KeyOptions {
    /// The required recipient of the archive (`age1...`). Objects are encrypted to it or not written at all.
    ///
    /// Without it, the archive states the recipient, so anyone who can write to the store can replace it.
    pub recipient: Option<String>,
    /// The file with a user's private key, for reading, or a key service that decrypts one:
    /// `arn:aws:kms:REGION:ACCOUNT:key/ID` or `command:PROGRAM ARGUMENTS`.
    pub identity: Option<PathBuf>,
    /// Options of an archive in S3, whose credentials KMS uses.
    pub store: Vec<(String, String)>,
}

walden_format::setters!(KeyOptions {
    recipient: Option<String>,
    identity: Option<PathBuf>,
    store: Vec<(String, String)>,
});

/// Returns whether an identity names a key service instead of a file.
pub fn is_key_service(identity: &Path) -> bool {
    let text = identity.to_str().unwrap_or_default();
    KEY_SERVICES.iter().any(|start| text.starts_with(start))
}

/// Returns an error about the archive or an object in the underlying store.
fn failure(
    inner: &dyn Store,
    operation: &'static str,
    key: &str,
    cause: Cause,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError {
        operation,
        key: key.to_owned(),
        location: inner.location().to_owned(),
        cause,
        source: Some(source.into()),
    }
}
