//! Wraps a store and encrypts objects on write and decrypts them on read if the archive is encrypted.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use walden_source::error_text;

use super::engine::Engine;
#[cfg(feature = "encryption")]
use super::keys::{self, Change, Changed, Statement, User};
use super::{Encryption, KEYS, KeyOptions, SUFFIX, failure, is_plain, sealed};
use crate::objects::documents::README;
use crate::objects::name::IDENTITY;
use crate::objects::object::Finding;
use crate::store::versions::Kept;
use crate::store::{Cause, Created, FileHash, Listed, MAX_OBJECT_BYTES, Store, StoreError};

/// Suffix in listings for an unencrypted object in an encrypted archive.
const NOT_ENCRYPTED: &str = " (not encrypted)";

/// Maximum size of an object before encryption, which adds 16 bytes to each 64 kB, and a header.
const MAX_CONTENT_BYTES: u64 = MAX_OBJECT_BYTES - MAX_OBJECT_BYTES / 1024;

/// The store of an archive, plain or encrypted.
///
/// The first access determines whether the archive is encrypted. Listings return keys without [`SUFFIX`], and
/// stored sizes. In an encrypted archive, an unencrypted object is listed under a key that nothing reads.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    options: KeyOptions,
    identity_json: OnceLock<Vec<u8>>,
    engine: OnceLock<Option<Engine>>,
}

/// The relevant part of `archive.json`.
#[derive(Deserialize)]
struct Stated {
    encryption: Option<Encryption>,
}

impl Encrypted {
    /// Wraps the store of an archive.
    pub fn new(inner: Box<dyn Store>, options: KeyOptions) -> Encrypted {
        Encrypted { inner: inner.into(), options, identity_json: OnceLock::new(), engine: OnceLock::new() }
    }

    /// Returns the same store without cached state.
    pub fn afresh(&self) -> Encrypted {
        Encrypted {
            inner: Arc::clone(&self.inner),
            options: self.options.clone(),
            identity_json: OnceLock::new(),
            engine: OnceLock::new(),
        }
    }

    /// Returns the underlying store, with objects as they are stored.
    pub fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    /// Like [`Encrypted::inner`], but with shared ownership.
    pub fn shared_inner(&self) -> Arc<dyn Store> {
        Arc::clone(&self.inner)
    }

    /// Returns the configured keys.
    pub fn options(&self) -> &KeyOptions {
        &self.options
    }

    /// Creates the place of a new archive and its keys, and encrypts them to the users. Returns the existing
    /// statement if an interrupted call already wrote it.
    ///
    /// # Errors
    /// The archive is not empty, its keys belong to other users, or the store failed.
    #[cfg(feature = "encryption")]
    pub fn initialise_keys(&self, users: &[User]) -> Result<Statement, StoreError> {
        self.inner.make_root()?;
        let made = keys::initialise(self.inner(), users)?;
        // A concurrent plain push may have founded a plain archive.
        if crate::store::exists(self.inner(), IDENTITY)? && !self.is_encrypted()? {
            let problem = "a push stored an unencrypted object at the same time";
            return Err(failure(self.inner(), "encrypt", "the archive", Cause::Other, problem));
        }
        Ok(made)
    }

    /// Writes a new generation of keys. This requires a user's private key.
    ///
    /// # Errors
    /// A change without effect, a change that removes every user, a concurrent change,
    /// [`Cause::KeysMissing`], [`Cause::KeysDamaged`], and the store's errors.
    #[cfg(feature = "encryption")]
    pub fn change_keys(&self, change: &Change) -> Result<Changed, StoreError> {
        self.expect_archive("write to")?;
        let changed = self.with_engine(|engine| engine.change_keys(self.inner(), change))?;
        self.expect_archive("write to")?;
        changed.ok_or_else(|| {
            failure(self.inner(), "change", "the keys", Cause::Other, "the archive is not encrypted")
        })
    }

    /// Returns whether the archive is encrypted.
    ///
    /// # Errors
    /// The store's errors.
    pub fn is_encrypted(&self) -> Result<bool, StoreError> {
        Ok(self.with_engine(|_| Ok(()))?.is_some())
    }

    /// Returns the recipient for new objects, or `None` if the archive is plain.
    ///
    /// # Errors
    /// The archive's recipient is not the required one, or the store failed.
    pub fn recipient(&self) -> Result<Option<String>, StoreError> {
        match self.with_engine(|engine| engine.recipient(self.inner()))? {
            Some(recipient) => Ok(Some(recipient)),
            None => self.expect_plain("write to").map(|()| None),
        }
    }

    /// Returns the archive's first recipient according to its keys, or `None` if the archive is plain.
    /// `archive.json` states the same recipient unless it is lost.
    ///
    /// # Errors
    /// The store's errors.
    pub(crate) fn oldest_recipient(&self) -> Result<Option<String>, StoreError> {
        self.with_engine(|engine| engine.oldest_recipient(self.inner()))
    }

    /// Returns the same store with this first recipient. If `archive.json` is lost, this avoids reading the
    /// keys on every call.
    ///
    /// # Errors
    /// The text is not a recipient.
    pub(crate) fn encrypted_to(&self, recipient: &str) -> Result<Encrypted, StoreError> {
        let failed = |problem: String| failure(self.inner(), "read", KEYS, Cause::Other, problem);
        let engine = Engine::new(recipient, &self.options).map_err(failed)?;
        Ok(Encrypted { engine: OnceLock::from(Some(engine)), ..self.afresh() })
    }

    /// Checks that an encrypted archive has its keys.
    ///
    /// # Errors
    /// [`Cause::KeysMissing`], and the store's errors.
    pub fn expect_keys(&self) -> Result<(), StoreError> {
        self.with_engine(|engine| engine.expect_keys(self.inner())).map(drop)
    }

    /// Returns whether the archive is encrypted and its keys are missing.
    ///
    /// # Errors
    /// The store's errors.
    pub fn are_keys_missing(&self) -> Result<bool, StoreError> {
        match self.expect_keys() {
            Err(error) if error.cause == Cause::KeysMissing => Ok(true),
            other => other.map(|()| false),
        }
    }

    /// Reports problems with the archive's keys, by object. Checks more if a private key is configured.
    /// [`Encrypted::are_keys_missing`] reports an archive without any keys.
    ///
    /// # Errors
    /// The store's errors.
    pub fn key_faults(&self) -> Result<Vec<Finding>, StoreError> {
        match self.with_engine(|engine| engine.key_faults(self.inner())) {
            // Before the first push, the newest keys determine whether the archive is encrypted.
            Err(error) if error.cause == Cause::KeysDamaged => {
                Ok(vec![Finding { object: error.key.clone(), problem: error_text(&error) }])
            }
            found => found.map(Option::unwrap_or_default),
        }
    }

    /// Like [`Encrypted::key_faults`], and also checks that the required recipient is one of the archive's.
    /// If it is not, the generation of keys that contains it may be lost.
    ///
    /// # Errors
    /// The store's errors.
    pub fn key_findings(&self) -> Result<Vec<Finding>, StoreError> {
        let mut found = self.key_faults()?;
        if found.is_empty()
            && self.options.recipient.is_some()
            && let Err(error) = self.with_engine(|engine| engine.recipient(self.inner()))
            && error.cause == Cause::OtherRecipient
        {
            let problem = error.source.as_ref().map_or_else(|| error.to_string(), ToString::to_string);
            let problem = format!("{problem}: a generation of keys may be lost");
            found.push(Finding { object: KEYS.to_owned(), problem });
        }
        Ok(found)
    }

    /// Checks an encrypted object as far as possible without a private key: it belongs to its key and is
    /// encrypted to one of the archive's recipients.
    ///
    /// # Errors
    /// [`Cause::Damaged`], [`Cause::ForeignKey`], and the store's errors.
    pub fn expect_own(&self, key: &str) -> Result<(), StoreError> {
        self.with_engine(|engine| engine.stated(self.inner(), key).map(drop)).map(drop)
    }

    /// Returns a listed object's name in the store, for messages.
    pub fn stored_name(&self, key: &str) -> String {
        let is_as_stored = is_plain(key) || ["/", SUFFIX, NOT_ENCRYPTED].iter().any(|end| key.ends_with(end));
        match self.is_encrypted() {
            Ok(true) if !is_as_stored => sealed(key),
            _ => key.to_owned(),
        }
    }

    /// Checks that objects can be read. In an encrypted archive, a user's key must decrypt the archive's
    /// keys.
    ///
    /// # Errors
    /// [`Cause::Locked`], [`Cause::WrongIdentity`], [`Cause::OtherRecipient`] if the archive is plain and a
    /// recipient is configured, and the store's errors.
    pub fn unlock(&self) -> Result<(), StoreError> {
        match self.with_engine(|engine| engine.unlock(self.inner()))? {
            Some(()) => Ok(()),
            None => self.expect_plain("read"),
        }
    }

    /// Reads the encrypted form of an object that is now stored in plain text.
    ///
    /// # Errors
    /// [`Cause::Locked`] without a private key, and the store's errors.
    pub fn read_sealed(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        match self.with_engine(|engine| engine.read(self.inner(), key))? {
            Some(content) => Ok(content),
            None => self.inner.read(&sealed(key)),
        }
    }

    /// Runs `work` with the engine of an encrypted archive. Returns `None` for a plain one.
    fn with_engine<T>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        if let Some(engine) = self.engine.get() {
            return engine.as_ref().map(work).transpose();
        }
        let failed = |problem: String| failure(self.inner(), "read", IDENTITY, Cause::Other, problem);
        let engine = match self.read_identity() {
            Ok([]) => {
                let problem = "expected the archive's identity, found an empty object of 0 bytes: restore it from another copy of the archive";
                return Err(failed(problem.to_owned()));
            }
            Ok(json) => {
                let stated: Stated =
                    serde_json::from_slice(json).map_err(|error| failed(error.to_string()))?;
                let engine = stated.encryption.map(|stated| Engine::new(&stated.recipient, &self.options));
                engine.transpose().map_err(failed)?
            }
            // Before the first push, a plain archive may still become encrypted, so the result is not cached.
            Err(error) if error.cause == Cause::NotFound => {
                return match self.first_recipient()? {
                    Some(first) => {
                        Some(work(&Engine::new(&first, &self.options).map_err(failed)?)).transpose()
                    }
                    None => Ok(None),
                };
            }
            Err(error) => return Err(error),
        };
        self.engine.get_or_init(|| engine).as_ref().map(work).transpose()
    }

    /// Returns the recipient in the keys of an archive before its first push.
    fn first_recipient(&self) -> Result<Option<String>, StoreError> {
        let mut has_keys = false;
        self.inner.list(KEYS, &mut |_| has_keys = true)?;
        if !has_keys {
            return Ok(None);
        }
        Engine::stated_recipient(self.inner()).map(Some)
    }

    fn read_identity(&self) -> Result<&[u8], StoreError> {
        if let Some(json) = self.identity_json.get() {
            return Ok(json);
        }
        let json = self.inner.read(IDENTITY)?;
        Ok(self.identity_json.get_or_init(|| json))
    }

    /// Without `archive.json`, an archive looks plain. An encrypted object must not count as missing if
    /// `archive.json` is lost.
    fn plain_size(&self, key: &str) -> Result<u64, StoreError> {
        match self.inner.size(key) {
            Err(error) if error.cause == Cause::NotFound && self.engine.get().is_none() => {
                match self.inner.size(&sealed(key)) {
                    Err(other) if other.cause == Cause::NotFound => Err(error),
                    Err(other) => Err(other),
                    Ok(_) => {
                        let problem = "the object is missing, although the archive has encrypted objects";
                        Err(failure(self.inner(), "read", IDENTITY, Cause::Other, problem))
                    }
                }
            }
            other => other,
        }
    }

    /// Checks that the archive still exists, without requests if its place cannot be unmounted. Objects that
    /// are stored in another place, such as the mount point of its file system, are in no archive.
    ///
    /// # Errors
    /// [`Cause::NoArchive`], and the store's errors.
    pub(crate) fn expect_archive(&self, operation: &'static str) -> Result<(), StoreError> {
        if !self.inner.can_be_unmounted() {
            return Ok(());
        }
        let is_missing = |key| match self.inner.size(key) {
            Err(error) if error.cause == Cause::NotFound => Ok(true),
            other => other.map(|_| false),
        };
        // Before the first push, only the README marks a place as an archive.
        let is_founded = self.identity_json.get().is_some();
        match is_missing(IDENTITY)? && (is_founded || is_missing(README)?) {
            true => Err(StoreError::new(operation, "the archive", self.inner.location(), Cause::NoArchive)),
            false => Ok(()),
        }
    }

    /// Refuses to use plain objects if the configuration requires a recipient.
    fn expect_plain(&self, operation: &'static str) -> Result<(), StoreError> {
        let Some(recipient) = &self.options.recipient else { return Ok(()) };
        let problem =
            format!("expected an archive that is encrypted to {recipient}, found one that is not encrypted");
        Err(failure(self.inner(), operation, "the archive", Cause::OtherRecipient, problem))
    }
}

impl Store for Encrypted {
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.create_with(key, content, &[])
    }

    fn create_with(&self, key: &str, content: &[u8], files: &[FileHash<'_>]) -> Result<Created, StoreError> {
        // Larger ones could never be read again.
        if content.len() as u64 > MAX_CONTENT_BYTES {
            return Err(StoreError::new("create", key, self.inner.location(), Cause::TooLarge));
        }
        self.expect_archive("write to")?;
        let created = match is_plain(key) {
            true => self.inner.create(key, content)?,
            false => match self.with_engine(|engine| engine.create(self.inner(), key, content, files))? {
                Some(created) => created,
                None => {
                    self.expect_plain("write to")?;
                    self.inner.create_with(key, content, files)?
                }
            },
        };
        // The file system may have been unmounted in between.
        self.expect_archive("write to")?;
        Ok(created)
    }

    fn holds(&self, key: &str, file: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        match self.with_engine(|engine| engine.holds(self.inner(), key, file))? {
            Some(answer) => Ok(answer),
            None => self.inner.holds(key, file),
        }
    }

    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        let is_encrypted = !is_plain(key) && self.is_encrypted()?;
        self.inner.make_durable(&if is_encrypted { sealed(key) } else { key.to_owned() })?;
        // The object may have been stored below the mount point while the archive was not mounted.
        self.expect_archive("write to")
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        if key == IDENTITY {
            return self.read_identity().map(<[u8]>::to_vec);
        }
        if is_plain(key) {
            return self.inner.read(key);
        }
        match self.with_engine(|engine| engine.read(self.inner(), key))? {
            Some(content) => Ok(content),
            None => self.inner.read(key),
        }
    }

    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        if is_plain(key) {
            return self.inner.read_range(key, range);
        }
        match self.with_engine(|engine| engine.read_range(self.inner(), key, range.clone()))? {
            Some(content) => Ok(content),
            None => self.inner.read_range(key, range),
        }
    }

    fn size(&self, key: &str) -> Result<u64, StoreError> {
        if is_plain(key) {
            return self.inner.size(key);
        }
        match self.with_engine(|_| self.inner.size(&sealed(key)))? {
            Some(bytes) => Ok(bytes),
            None => self.plain_size(key),
        }
    }

    fn content_bytes(&self, key: &str, stored_bytes: u64) -> Result<u64, StoreError> {
        if is_plain(key) {
            return Ok(stored_bytes);
        }
        match self.with_engine(|engine| engine.content_bytes(self.inner(), key, stored_bytes))? {
            Some(bytes) => Ok(bytes),
            None => self.inner.content_bytes(key, stored_bytes),
        }
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        if is_plain(prefix) || !self.is_encrypted()? {
            return self.inner.list(prefix, visit);
        }
        self.inner.list(prefix, &mut |Listed { key, bytes, stored }| {
            let key = match key.strip_suffix(SUFFIX) {
                _ if is_plain(&key) => key,
                Some(key) => key.to_owned(),
                // Not an object of this archive. It must not stand for the encrypted object of the same name.
                None => format!("{key}{NOT_ENCRYPTED}"),
            };
            visit(Listed { key, bytes, stored });
        })
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        if is_plain(key) {
            return self.inner.remove(key);
        }
        match self.with_engine(|_| self.inner.remove(&sealed(key)))? {
            Some(()) => Ok(()),
            None => self.inner.remove(key),
        }
    }

    fn discard(&self, key: &str) -> Result<Option<Kept>, StoreError> {
        if is_plain(key) {
            return self.inner.discard(key);
        }
        match self.with_engine(|_| self.inner.discard(&sealed(key)))? {
            Some(kept) => Ok(kept),
            None => self.inner.discard(key),
        }
    }

    fn remove_all(&self, prefix: &str) -> Result<Option<Kept>, StoreError> {
        self.inner.remove_all(prefix)
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        self.inner.remove_leftovers()
    }

    fn location(&self) -> &str {
        self.inner.location()
    }

    fn storage_class(&self) -> Option<&str> {
        self.inner.storage_class()
    }

    fn can_be_unmounted(&self) -> bool {
        self.inner.can_be_unmounted()
    }

    fn warning(&self) -> Option<&str> {
        self.inner.warning()
    }
}

#[cfg(all(test, feature = "encryption"))]
mod tests {
    use super::*;
    use crate::objects::documents;
    use crate::store::Folder;

    /// The first versions stored the results of `verify` encrypted.
    #[test]
    fn what_was_encrypted_under_a_key_that_is_plain_now_is_read_with_a_private_key() {
        let folder = tempfile::tempdir().unwrap();
        let (repo, identity) = (folder.path().join("archive"), folder.path().join("user.key"));
        let pair = keys::generate();
        std::fs::write(&identity, pair.identity_file).unwrap();
        let open = |identity: Option<&std::path::PathBuf>| {
            let options = KeyOptions::default().identity(identity.cloned());
            Encrypted::new(Box::new(Folder::new(repo.clone())), options)
        };
        let user = User::parse(&pair.recipient).unwrap();
        open(None).initialise_keys(&[user]).unwrap();
        documents::store(open(None).inner()).unwrap();
        let key = "verified/run-0000000001.json";
        let store = open(Some(&identity));
        store.with_engine(|engine| engine.create(store.inner(), key, b"{}", &[])).unwrap().unwrap();
        assert_eq!(store.read_sealed(key).unwrap(), b"{}");
        assert_eq!(open(None).read_sealed(key).unwrap_err().cause, Cause::Locked);
        let plain = "verified/run-0000000002.json";
        store.create(plain, b"{}").unwrap();
        assert_eq!(open(None).read(plain).unwrap(), b"{}");
        let mut listed = Vec::new();
        store.list("verified/", &mut |object| listed.push(object.key)).unwrap();
        listed.sort();
        assert_eq!(listed, [format!("{key}.age"), plain.to_owned()]);
        store.remove(&listed[0]).unwrap();
        assert!(store.read_sealed(key).is_err());
    }
}
