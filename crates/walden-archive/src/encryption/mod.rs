//! Encryption on the client: the store sees names, sizes and ciphertext, and nothing else.
//!
//! An encrypted archive has a key pair of its own. Its public key, the *archive's recipient*, is stated in `archive.json`; its private
//! key lies in the archive as `keys/0001.age`, encrypted to the public keys of the *users* who may read. So writing needs no
//! secret, reading needs the private key of one user, and users come and go by a further `keys/0002.age`, while no object is
//! rewritten. Each object is a file in the format [age](https://age-encryption.org/v1) under its key with `.age` behind it, which
//! any implementation of age decrypts.
//!
//! [`Encrypted`] is a [`Store`] over another one, so that nothing above it knows of encryption.

#[cfg(feature = "encryption")]
mod engine;
#[cfg(not(feature = "encryption"))]
#[path = "absent.rs"]
mod engine;
#[cfg(feature = "encryption")]
pub mod keys;
#[cfg(feature = "encryption")]
mod object;
mod store;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use store::Encrypted;

use crate::store::{Cause, Store, StoreError};
use crate::stored::name::VERIFIED;

/// What an encrypted object's key ends with.
pub const SUFFIX: &str = ".age";
/// Files of an encrypted object at most. Its header has a tag for each, and age takes time that grows with the square of a header's
/// length to read it.
pub const MAX_FILES: u64 = 512;
/// The prefix of the generations of the archive's keys.
pub const KEYS: &str = "keys/";

/// Objects that are plain in an encrypted archive as well: whoever finds it has to learn how to read it, and monitoring without a
/// private key has to learn what `verify` has found, which are numbers that a listing shows too.
const PLAIN: [&str; 5] = ["archive.json", "README.txt", "docs/", KEYS, VERIFIED];

/// Whether an object is stored as it is even if the archive is encrypted.
pub fn is_plain(key: &str) -> bool {
    PLAIN.iter().any(|plain| key == *plain || (plain.ends_with('/') && key.starts_with(plain)))
}

/// The key under which an object is stored encrypted.
fn sealed(key: &str) -> String {
    format!("{key}{SUFFIX}")
}

/// How the objects of an archive are encrypted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Encryption {
    /// The public key that the archive had at its beginning (`age1...`); see `keys/` for what came after.
    pub recipient: String,
}

/// What is known of an archive's keys on this side.
#[derive(Clone, Default, Debug)]
pub struct KeyOptions {
    /// The recipient that the archive must have (`age1...`): what is written is encrypted to it or not written at all.
    ///
    /// Without it the recipient is the one that the archive states, and whoever can write to the store can state another one.
    pub recipient: Option<String>,
    /// The file with the private key of a user, for reading.
    pub identity: Option<PathBuf>,
}

/// An error about an object of the store underneath, or about the archive in it.
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
