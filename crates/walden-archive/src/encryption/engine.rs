//! Implements the operations of an encrypted archive.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use age::x25519::Recipient;

use super::keys::{Change, Changed, Unlocked};
use super::object::{self, Fault, HEADER_READ, Header, MAX_HEADER, Stated};
use super::{KEYS, KeyOptions, failure, keys, sealed};
use crate::objects::object::Finding;
use crate::store::{Cause, Created, FileHash, MAX_OBJECT_BYTES, Store, StoreError};

/// Number of cached headers, enough for one reader at each of many objects.
const KEPT_HEADERS: usize = 64;

/// The keys of an encrypted archive, loaded on demand.
pub struct Engine {
    /// The recipient in `archive.json`.
    first: String,
    options: KeyOptions,
    recipient: OnceLock<(String, Recipient)>,
    unlocked: OnceLock<Unlocked>,
    /// The archive's recipients when they were last read.
    own_recipients: OnceLock<Vec<String>>,
    headers: Mutex<VecDeque<Arc<Known>>>,
}

/// An object's header and stored size, which never change.
struct Known {
    key: String,
    header: Header,
    stored_bytes: u64,
}

impl Engine {
    /// Creates the engine of an archive whose `archive.json` or keys state the recipient `first`.
    pub fn new(first: &str, options: &KeyOptions) -> Result<Engine, String> {
        for recipient in [Some(first), options.recipient.as_deref()].into_iter().flatten() {
            keys::parse_recipient(recipient)?;
        }
        Ok(Engine {
            first: first.to_owned(),
            options: options.clone(),
            recipient: OnceLock::new(),
            unlocked: OnceLock::new(),
            own_recipients: OnceLock::new(),
            headers: Mutex::default(),
        })
    }

    /// Returns the newest recipient that the archive's keys state.
    pub fn stated_recipient(inner: &dyn Store) -> Result<String, StoreError> {
        let newest = keys::expect_newest(inner)?.recipients.into_iter().next();
        newest.ok_or_else(|| no_recipient(inner))
    }

    /// Returns the archive's first recipient, according to its newest keys.
    pub fn oldest_recipient(&self, inner: &dyn Store) -> Result<String, StoreError> {
        let oldest = keys::expect_newest(inner)?.recipients.pop();
        oldest.ok_or_else(|| no_recipient(inner))
    }

    /// Checks that the keys exist.
    pub fn expect_keys(&self, inner: &dyn Store) -> Result<(), StoreError> {
        keys::expect_any(inner)
    }

    /// Reports problems with the generations of keys.
    pub fn key_faults(&self, inner: &dyn Store) -> Result<Vec<Finding>, StoreError> {
        keys::faults(inner, &self.first, &self.options)
    }

    pub fn change_keys(&self, inner: &dyn Store, change: &Change) -> Result<Changed, StoreError> {
        keys::change(inner, &self.first, &self.options, change)
    }

    /// Returns the recipient for new objects.
    pub fn recipient(&self, inner: &dyn Store) -> Result<String, StoreError> {
        self.writing(inner).map(|(text, _)| text.clone())
    }

    fn writing(&self, inner: &dyn Store) -> Result<&(String, Recipient), StoreError> {
        if let Some(known) = self.recipient.get() {
            return Ok(known);
        }
        // Nothing is encrypted to damaged keys: its private key may be lost.
        let stated = keys::expect_newest(inner)?.recipients;
        let newest = stated.first().ok_or_else(|| no_recipient(inner))?;
        let text = match &self.options.recipient {
            None => newest.clone(),
            Some(expected) if stated.contains(expected) => expected.clone(),
            Some(expected) => {
                let problem = format!(
                    "expected an archive that is encrypted to {expected}, found one that is encrypted to {newest}"
                );
                return Err(failure(inner, "write to", "the archive", Cause::OtherRecipient, problem));
            }
        };
        let recipient = keys::parse_recipient(&text)
            .map_err(|problem| failure(inner, "read", KEYS, Cause::Other, problem))?;
        Ok(self.recipient.get_or_init(|| (text, recipient)))
    }

    /// Decrypts the archive's private keys with the user's private key.
    pub fn unlock(&self, inner: &dyn Store) -> Result<(), StoreError> {
        self.unlocked(inner).map(drop)
    }

    fn unlocked(&self, inner: &dyn Store) -> Result<&Unlocked, StoreError> {
        if let Some(known) = self.unlocked.get() {
            return Ok(known);
        }
        let found = keys::unlock(inner, &self.first, &self.options)?;
        Ok(self.unlocked.get_or_init(|| found))
    }

    fn own_recipients(&self, inner: &dyn Store) -> Result<&[String], StoreError> {
        if let Some(known) = self.own_recipients.get() {
            return Ok(known);
        }
        let stated = keys::expect_newest(inner)?.recipients;
        Ok(self.own_recipients.get_or_init(|| stated))
    }

    /// Checks that an object is encrypted to a current or former recipient of the archive. Otherwise it may
    /// have correct tags although the archive's keys cannot decrypt it.
    fn expect_own(&self, inner: &dyn Store, key: &str, recipient: &str) -> Result<(), StoreError> {
        let is_among = |own: &[String]| own.iter().any(|own| own == recipient);
        // The keys may have changed since they were last read.
        if is_among(self.own_recipients(inner)?) || is_among(&keys::all_recipients(inner)?) {
            return Ok(());
        }
        let problem = format!(
            "expected an object that is encrypted to a key of this archive, found one that is encrypted to {recipient}"
        );
        Err(failure(inner, "decrypt", &sealed(key), Cause::ForeignKey, problem))
    }

    /// Returns the error for an object that cannot be decrypted, with the reason if no private key opens it.
    fn undecryptable(
        &self,
        inner: &dyn Store,
        key: &str,
        recipient: Option<&str>,
        fault: Fault,
    ) -> StoreError {
        let failed = |cause, problem: String| failure(inner, "decrypt", &sealed(key), cause, problem);
        let (Cause::ForeignKey, Some(recipient), Some(unlocked)) =
            (fault.cause, recipient, self.unlocked.get())
        else {
            return failure(inner, "decrypt", &sealed(key), fault.cause, fault.source);
        };
        if unlocked.identities.iter().any(|identity| identity.to_public().to_string() == recipient) {
            return failed(Cause::Damaged, format!("the private key for {recipient} does not decrypt it"));
        }
        if let Some(damage) = &unlocked.damage {
            let problem =
                format!("it is encrypted to {recipient}, whose private key cannot be read: {damage}");
            return failed(Cause::KeysDamaged, problem);
        }
        match self.expect_own(inner, key, recipient) {
            Ok(()) => failed(
                Cause::WrongIdentity,
                format!(
                    "it is encrypted to {recipient}, a key of the archive that this private key does not decrypt"
                ),
            ),
            Err(error) => error,
        }
    }

    pub fn create(
        &self,
        inner: &dyn Store,
        key: &str,
        content: &[u8],
        files: &[FileHash<'_>],
    ) -> Result<Created, StoreError> {
        let (recipient, parsed) = self.writing(inner)?;
        let tags = files.iter().map(|&file| object::tag(recipient, file)).collect();
        let stated = Stated { key: key.to_owned(), recipient: recipient.clone(), tags };
        let failed = |fault: Fault| failure(inner, "encrypt", &sealed(key), fault.cause, fault.source);
        inner.create(&sealed(key), &object::seal(parsed, &stated, content).map_err(failed)?)
    }

    /// Returns the statement in an object's header after checking its key and recipient. This is all that can
    /// be checked without a private key.
    pub fn stated(&self, inner: &dyn Store, key: &str) -> Result<Stated, StoreError> {
        let stated = self.read_header(inner, key)?.stated;
        if stated.key != key {
            let problem = format!("it was stored as {}, and moved since", stated.key);
            return Err(failure(inner, "read", &sealed(key), Cause::Damaged, problem));
        }
        self.expect_own(inner, key, &stated.recipient)?;
        Ok(stated)
    }

    pub fn holds(
        &self,
        inner: &dyn Store,
        key: &str,
        file: FileHash<'_>,
    ) -> Result<Option<bool>, StoreError> {
        let stated = self.stated(inner, key)?;
        let is_stated = !stated.tags.is_empty();
        Ok(is_stated.then(|| stated.tags.contains(&object::tag(&stated.recipient, file))))
    }

    pub fn read(&self, inner: &dyn Store, key: &str) -> Result<Vec<u8>, StoreError> {
        let unlocked = self.unlocked(inner)?;
        let stored = inner.read(&sealed(key))?;
        object::open(&unlocked.identities, key, &stored).map_err(|fault| {
            let header = Header::parse(&stored).ok().flatten();
            let recipient = header.map(|header| header.stated.recipient);
            self.undecryptable(inner, key, recipient.as_deref(), fault)
        })
    }

    pub fn read_range(&self, inner: &dyn Store, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let unlocked = self.unlocked(inner)?;
        let known = match self.kept(key) {
            Some(known) => known,
            None => self.keep(inner, key, inner.size(&sealed(key))?)?,
        };
        let Known { header, stored_bytes, .. } = &*known;
        let failed = |fault: Fault| self.undecryptable(inner, key, Some(&header.stated.recipient), fault);
        let end = range.end.min(header.content_bytes(*stored_bytes).map_err(failed)?);
        if range.start >= end {
            return Ok(Vec::new());
        }
        let range = range.start..end;
        if end - range.start > MAX_OBJECT_BYTES {
            return Err(failure(inner, "read", &sealed(key), Cause::TooLarge, "expected a smaller part"));
        }
        let stored = header.stored_range(&range, *stored_bytes);
        let chunks = inner.read_range(&sealed(key), stored.clone())?;
        let chunks = (stored, chunks.as_slice());
        header.open_range(&unlocked.identities, key, range, chunks, *stored_bytes).map_err(failed)
    }

    pub fn content_bytes(&self, inner: &dyn Store, key: &str, stored_bytes: u64) -> Result<u64, StoreError> {
        let known = match self.kept(key).filter(|known| known.stored_bytes == stored_bytes) {
            Some(known) => known,
            None => self.keep(inner, key, stored_bytes)?,
        };
        known
            .header
            .content_bytes(stored_bytes)
            .map_err(|fault| failure(inner, "decrypt", &sealed(key), fault.cause, fault.source))
    }

    fn kept(&self, key: &str) -> Option<Arc<Known>> {
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        headers.iter().find(|known| known.key == key).cloned()
    }

    fn keep(&self, inner: &dyn Store, key: &str, stored_bytes: u64) -> Result<Arc<Known>, StoreError> {
        let header = self.read_header(inner, key)?;
        let known = Arc::new(Known { key: key.to_owned(), header, stored_bytes });
        let mut headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        headers.retain(|other| other.key != key);
        headers.truncate(KEPT_HEADERS - 1);
        headers.push_front(known.clone());
        Ok(known)
    }

    fn read_header(&self, inner: &dyn Store, key: &str) -> Result<Header, StoreError> {
        let failed = |fault: Fault| failure(inner, "decrypt", &sealed(key), fault.cause, fault.source);
        for bytes in [HEADER_READ, MAX_HEADER] {
            let beginning = inner.read_range(&sealed(key), 0..bytes)?;
            if beginning.is_empty() {
                return Err(failed(Fault::empty()));
            }
            if let Some(header) = Header::read(&beginning).map_err(failed)? {
                return Ok(header);
            }
            if (beginning.len() as u64) < bytes {
                break;
            }
        }
        Err(failure(inner, "decrypt", &sealed(key), Cause::Damaged, "it ends within its header"))
    }
}

fn no_recipient(inner: &dyn Store) -> StoreError {
    failure(inner, "read", KEYS, Cause::Other, "expected the archive's keys, found none")
}
