//! A store over another one that encrypts what is written and decrypts what is read, if the archive is an encrypted one.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use walden_source::error_text;

use super::engine::Engine;
#[cfg(feature = "encryption")]
use super::keys::{self, Change, Statement, User};
use super::{Encryption, KEYS, KeyOptions, SUFFIX, failure, is_plain, sealed};
use crate::store::{Cause, Created, FileHash, Listed, Store, StoreError};
use crate::stored::name::IDENTITY;
use crate::stored::object::Finding;

/// What the key of an object that is not encrypted is listed with in an archive that is.
const NOT_ENCRYPTED: &str = " (not encrypted)";

/// The store of an archive: plain or encrypted, as the archive's first object decided.
///
/// What the archive is, is found out when it is needed first. Listings give the keys without [`SUFFIX`], and the bytes as stored. An
/// object that is not encrypted although the archive is, is listed under a key that nothing reads.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    options: KeyOptions,
    identity_json: OnceLock<Vec<u8>>,
    engine: OnceLock<Option<Engine>>,
}

/// The part of `archive.json` that matters here.
#[derive(Deserialize)]
struct Stated {
    encryption: Option<Encryption>,
}

impl Encrypted {
    /// The store of the archive in another one.
    pub fn new(inner: Box<dyn Store>, options: KeyOptions) -> Encrypted {
        Encrypted { inner: inner.into(), options, identity_json: OnceLock::new(), engine: OnceLock::new() }
    }

    /// The same store, which has found out nothing yet.
    pub fn afresh(&self) -> Encrypted {
        Encrypted {
            inner: Arc::clone(&self.inner),
            options: self.options.clone(),
            identity_json: OnceLock::new(),
            engine: OnceLock::new(),
        }
    }

    /// The store underneath, with the objects as they are stored.
    pub fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    /// As [`Encrypted::inner`], for what outlives a borrow.
    pub fn shared_inner(&self) -> Arc<dyn Store> {
        Arc::clone(&self.inner)
    }

    /// What is known of the archive's keys on this side.
    pub fn options(&self) -> &KeyOptions {
        &self.options
    }

    /// Gives a new archive a key pair of its own, which these users can read; the statement of the keys that are there, if these
    /// were written by an interrupted call before.
    ///
    /// # Errors
    /// An archive that has something in it already, or keys of other users; the store's.
    #[cfg(feature = "encryption")]
    pub fn initialise_keys(&self, users: &[User]) -> Result<Statement, StoreError> {
        let made = keys::initialise(self.inner(), users)?;
        // A plain push at the same moment would have decided otherwise.
        if crate::store::exists(self.inner(), IDENTITY)? && !self.is_encrypted()? {
            let problem = "a push stored something at the same moment, in plain";
            return Err(failure(self.inner(), "encrypt", "the archive", Cause::Other, problem));
        }
        Ok(made)
    }

    /// Writes a further generation of keys; needs the private key of a user.
    ///
    /// # Errors
    /// A change that changes nothing or leaves nobody, keys that somebody else changed at the same moment, [`Cause::KeysMissing`],
    /// [`Cause::KeysDamaged`], and the store's.
    #[cfg(feature = "encryption")]
    pub fn change_keys(&self, change: &Change) -> Result<Statement, StoreError> {
        let changed = self.with_engine(|engine| engine.change_keys(self.inner(), change))?;
        changed.ok_or_else(|| {
            failure(self.inner(), "change", "the keys", Cause::Other, "the archive is not encrypted")
        })
    }

    /// Whether the archive is encrypted.
    ///
    /// # Errors
    /// The store's.
    pub fn is_encrypted(&self) -> Result<bool, StoreError> {
        Ok(self.with_engine(|_| Ok(()))?.is_some())
    }

    /// The recipient to which objects are encrypted now; nothing if the archive is plain.
    ///
    /// # Errors
    /// An archive whose recipient is not the one that it must have, and the store's.
    pub fn recipient(&self) -> Result<Option<String>, StoreError> {
        match self.with_engine(|engine| engine.recipient(self.inner()))? {
            Some(recipient) => Ok(Some(recipient)),
            None => self.expect_plain().map(|()| None),
        }
    }

    /// The recipient that an archive had at its beginning, by its keys; nothing if it is plain. `archive.json` says the same, unless it is
    /// lost.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn oldest_recipient(&self) -> Result<Option<String>, StoreError> {
        self.with_engine(|engine| engine.oldest_recipient(self.inner()))
    }

    /// The same store, as one that was encrypted to this recipient from its beginning: where `archive.json` is lost, the keys would be asked
    /// for that at each call.
    ///
    /// # Errors
    /// What is no recipient.
    pub(crate) fn encrypted_to(&self, recipient: &str) -> Result<Encrypted, StoreError> {
        let failed = |problem: String| failure(self.inner(), "read", KEYS, Cause::Other, problem);
        let engine = Engine::new(recipient, &self.options).map_err(failed)?;
        Ok(Encrypted { engine: OnceLock::from(Some(engine)), ..self.afresh() })
    }

    /// Makes sure that an archive that is encrypted has its keys.
    ///
    /// # Errors
    /// [`Cause::KeysMissing`], and the store's.
    pub fn expect_keys(&self) -> Result<(), StoreError> {
        self.with_engine(|engine| engine.expect_keys(self.inner())).map(drop)
    }

    /// Whether the archive is encrypted, and its keys are not there.
    ///
    /// # Errors
    /// The store's.
    pub fn are_keys_missing(&self) -> Result<bool, StoreError> {
        match self.expect_keys() {
            Err(error) if error.cause == Cause::KeysMissing => Ok(true),
            other => other.map(|()| false),
        }
    }

    /// What is wrong with the archive's keys, by the objects that have them: as far as it is known with the private key that was named, or
    /// without one. Keys that are missing altogether are [`Encrypted::are_keys_missing`].
    ///
    /// # Errors
    /// The store's.
    pub fn key_faults(&self) -> Result<Vec<Finding>, StoreError> {
        match self.with_engine(|engine| engine.key_faults(self.inner())) {
            // Before the first push, what the newest keys state says whether the archive is encrypted.
            Err(error) if error.cause == Cause::KeysDamaged => {
                Ok(vec![Finding { object: error.key.clone(), problem: error_text(&error) }])
            }
            found => found.map(Option::unwrap_or_default),
        }
    }

    /// As [`Encrypted::key_faults`], and whether the recipient that the archive must have is one of its own: else the generation of keys that
    /// has it may be gone.
    ///
    /// # Errors
    /// The store's.
    pub fn key_findings(&self) -> Result<Vec<Finding>, StoreError> {
        let mut found = self.key_faults()?;
        if found.is_empty()
            && self.options.recipient.is_some()
            && let Err(error) = self.with_engine(|engine| engine.recipient(self.inner()))
            && error.cause == Cause::OtherRecipient
        {
            let problem = error.source.as_ref().map_or_else(|| error.to_string(), ToString::to_string);
            let problem = format!("{problem}: a generation of keys may be gone");
            found.push(Finding { object: KEYS.to_owned(), problem });
        }
        Ok(found)
    }

    /// Makes sure of what is known of an encrypted object without a private key: that it is the one of its key, and encrypted to a key of
    /// the archive's.
    ///
    /// # Errors
    /// [`Cause::Damaged`], [`Cause::ForeignKey`], and the store's.
    pub fn expect_own(&self, key: &str) -> Result<(), StoreError> {
        self.with_engine(|engine| engine.stated(self.inner(), key).map(drop)).map(drop)
    }

    /// The name that an object of a listing has in the store, for people.
    pub fn stored_name(&self, key: &str) -> String {
        let is_as_stored = is_plain(key) || ["/", SUFFIX, NOT_ENCRYPTED].iter().any(|end| key.ends_with(end));
        match self.is_encrypted() {
            Ok(true) if !is_as_stored => sealed(key),
            _ => key.to_owned(),
        }
    }

    /// Makes sure that objects can be read: of an encrypted archive, that a user's key opens the archive's.
    ///
    /// # Errors
    /// [`Cause::Locked`], [`Cause::WrongIdentity`], and the store's.
    pub fn unlock(&self) -> Result<(), StoreError> {
        self.with_engine(|engine| engine.unlock(self.inner())).map(drop)
    }

    /// Reads the encrypted form of an object that is stored in plain today.
    ///
    /// # Errors
    /// [`Cause::Locked`] without a private key, and the store's.
    pub fn read_sealed(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        match self.with_engine(|engine| engine.read(self.inner(), key))? {
            Some(content) => Ok(content),
            None => self.inner.read(&sealed(key)),
        }
    }

    /// Does something with the keys of an encrypted archive, and nothing in a plain one.
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
                let problem = "expected whose archive it is, found an empty object of 0 bytes: restore it from another copy of the archive";
                return Err(failed(problem.to_owned()));
            }
            Ok(json) => {
                let stated: Stated =
                    serde_json::from_slice(json).map_err(|error| failed(error.to_string()))?;
                let engine = stated.encryption.map(|stated| Engine::new(&stated.recipient, &self.options));
                engine.transpose().map_err(failed)?
            }
            // Before the first push. A plain archive may become an encrypted one until then, so nothing is remembered.
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

    /// The recipient that the keys of an archive state into which nothing was pushed yet.
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

    /// Without `archive.json` an archive looks plain. If it was lost, an encrypted object must not be taken for a missing one.
    fn plain_size(&self, key: &str) -> Result<u64, StoreError> {
        match self.inner.size(key) {
            Err(error) if error.cause == Cause::NotFound && self.engine.get().is_none() => {
                match self.inner.size(&sealed(key)) {
                    Err(other) if other.cause == Cause::NotFound => Err(error),
                    Err(other) => Err(other),
                    Ok(_) => {
                        let problem = "the object is gone, although the archive has encrypted objects";
                        Err(failure(self.inner(), "read", IDENTITY, Cause::Other, problem))
                    }
                }
            }
            other => other,
        }
    }

    /// Nothing is written in plain if it was to be encrypted.
    fn expect_plain(&self) -> Result<(), StoreError> {
        let Some(recipient) = &self.options.recipient else { return Ok(()) };
        let problem =
            format!("expected an archive that is encrypted to {recipient}, found one that is not encrypted");
        Err(failure(self.inner(), "write to", "the archive", Cause::OtherRecipient, problem))
    }
}

impl Store for Encrypted {
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.create_with(key, content, &[])
    }

    fn create_with(&self, key: &str, content: &[u8], files: &[FileHash<'_>]) -> Result<Created, StoreError> {
        if is_plain(key) {
            return self.inner.create(key, content);
        }
        match self.with_engine(|engine| engine.create(self.inner(), key, content, files))? {
            Some(created) => Ok(created),
            None => self.expect_plain().and_then(|()| self.inner.create_with(key, content, files)),
        }
    }

    fn holds(&self, key: &str, file: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        match self.with_engine(|engine| engine.holds(self.inner(), key, file))? {
            Some(answer) => Ok(answer),
            None => self.inner.holds(key, file),
        }
    }

    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        if is_plain(key) {
            return self.inner.make_durable(key);
        }
        match self.with_engine(|_| self.inner.make_durable(&sealed(key)))? {
            Some(()) => Ok(()),
            None => self.inner.make_durable(key),
        }
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
        self.inner.list(prefix, &mut |Listed { key, bytes }| {
            let key = match key.strip_suffix(SUFFIX) {
                _ if is_plain(&key) => key,
                Some(key) => key.to_owned(),
                // No object of this archive: it must not answer for the encrypted one of the same name.
                None => format!("{key}{NOT_ENCRYPTED}"),
            };
            visit(Listed { key, bytes });
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

    fn remove_all(&self, prefix: &str) -> Result<(), StoreError> {
        self.inner.remove_all(prefix)
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        self.inner.remove_leftovers()
    }

    fn location(&self) -> &str {
        self.inner.location()
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
    use crate::store::Folder;

    /// As the first versions stored what `verify` has found.
    #[test]
    fn what_was_encrypted_under_a_key_that_is_plain_now_is_read_with_a_private_key() {
        let folder = tempfile::tempdir().unwrap();
        let (repo, identity) = (folder.path().join("archive"), folder.path().join("user.key"));
        let pair = keys::generate();
        std::fs::write(&identity, pair.identity_file).unwrap();
        let open = |identity: Option<&std::path::PathBuf>| {
            let options = KeyOptions { recipient: None, identity: identity.cloned() };
            Encrypted::new(Box::new(Folder::new(repo.clone())), options)
        };
        let user = User::parse(&pair.recipient).unwrap();
        open(None).initialise_keys(&[user]).unwrap();
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
