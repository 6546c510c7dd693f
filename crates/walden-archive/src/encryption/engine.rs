//! What an encrypted archive does where a plain one passes things on.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use age::x25519::{Identity, Recipient};

use super::object::{self, Fault, HEADER_READ, Header, MAX_HEADER, Stated};
use super::{KEYS, KeyOptions, failure, keys, sealed};
use crate::store::{Cause, Created, FileHash, MAX_OBJECT_BYTES, Store, StoreError};

/// Headers that are kept: a reader at each of many objects at once, and no more.
const KEPT_HEADERS: usize = 64;

/// The keys of an encrypted archive, as far as they are needed.
pub struct Engine {
    /// The recipient that `archive.json` states.
    first: String,
    options: KeyOptions,
    recipient: OnceLock<(String, Recipient)>,
    identities: OnceLock<Vec<Identity>>,
    headers: Mutex<VecDeque<Arc<Known>>>,
}

/// An object's header and size, which never change.
struct Known {
    key: String,
    header: Header,
    stored_bytes: u64,
}

impl Engine {
    /// The keys of an archive that states a recipient.
    pub fn new(first: &str, options: &KeyOptions) -> Result<Engine, String> {
        for recipient in [Some(first), options.recipient.as_deref()].into_iter().flatten() {
            keys::parse_recipient(recipient)?;
        }
        Ok(Engine {
            first: first.to_owned(),
            options: options.clone(),
            recipient: OnceLock::new(),
            identities: OnceLock::new(),
            headers: Mutex::default(),
        })
    }

    /// The newest recipient that the keys of an archive state.
    pub fn stated_recipient(inner: &dyn Store) -> Result<String, StoreError> {
        let newest = keys::expect_newest(inner)?.recipients.into_iter().next();
        newest.ok_or_else(|| {
            failure(inner, "read", KEYS, Cause::Other, "expected the archive's keys, found none")
        })
    }

    /// Makes sure that the keys are there.
    pub fn expect_keys(&self, inner: &dyn Store) -> Result<(), StoreError> {
        keys::expect(inner).map(drop)
    }

    /// The recipient to which objects are encrypted now.
    pub fn recipient(&self, inner: &dyn Store) -> Result<String, StoreError> {
        self.writing(inner).map(|(text, _)| text.clone())
    }

    fn writing(&self, inner: &dyn Store) -> Result<&(String, Recipient), StoreError> {
        if let Some(known) = self.recipient.get() {
            return Ok(known);
        }
        let text = match &self.options.recipient {
            Some(expected) if *expected == self.first => {
                keys::expect(inner)?;
                expected.clone()
            }
            None => Engine::stated_recipient(inner)?,
            Some(expected) => {
                let stated = keys::expect_newest(inner)?.recipients;
                if !stated.contains(expected) {
                    let problem = format!(
                        "expected an archive that is encrypted to {expected}, found one that is encrypted to {}",
                        stated.first().unwrap_or(&self.first)
                    );
                    return Err(failure(inner, "write to", "the archive", Cause::OtherRecipient, problem));
                }
                expected.clone()
            }
        };
        let recipient = keys::parse_recipient(&text)
            .map_err(|problem| failure(inner, "read", KEYS, Cause::Other, problem))?;
        Ok(self.recipient.get_or_init(|| (text, recipient)))
    }

    /// Reads the archive's private keys with a user's.
    pub fn unlock(&self, inner: &dyn Store) -> Result<(), StoreError> {
        self.identities(inner).map(drop)
    }

    fn identities(&self, inner: &dyn Store) -> Result<&[Identity], StoreError> {
        if let Some(known) = self.identities.get() {
            return Ok(known);
        }
        let found = keys::unlock(inner, &self.first, self.options.identity.as_deref())?;
        Ok(self.identities.get_or_init(|| found))
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
        let failed = |fault: Fault| failure(inner, "encrypt", key, fault.cause, fault.source);
        inner.create(&sealed(key), &object::seal(parsed, &stated, content).map_err(failed)?)
    }

    pub fn holds(
        &self,
        inner: &dyn Store,
        key: &str,
        file: FileHash<'_>,
    ) -> Result<Option<bool>, StoreError> {
        let stated = self.read_header(inner, key)?.stated;
        if stated.key != key {
            let problem = format!("it was stored as {}, and moved since", stated.key);
            return Err(failure(inner, "read", key, Cause::Damaged, problem));
        }
        let is_stated = !stated.tags.is_empty();
        Ok(is_stated.then(|| stated.tags.contains(&object::tag(&stated.recipient, file))))
    }

    pub fn read(&self, inner: &dyn Store, key: &str) -> Result<Vec<u8>, StoreError> {
        let identities = self.identities(inner)?;
        object::open(identities, key, &inner.read(&sealed(key))?)
            .map_err(|fault| failure(inner, "decrypt", key, fault.cause, fault.source))
    }

    pub fn read_range(&self, inner: &dyn Store, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let failed = |fault: Fault| failure(inner, "decrypt", key, fault.cause, fault.source);
        let identities = self.identities(inner)?;
        let known = match self.kept(key) {
            Some(known) => known,
            None => self.keep(inner, key, inner.size(&sealed(key))?)?,
        };
        let Known { header, stored_bytes, .. } = &*known;
        let end = range.end.min(header.content_bytes(*stored_bytes).map_err(failed)?);
        if range.start >= end {
            return Ok(Vec::new());
        }
        let range = range.start..end;
        if end - range.start > MAX_OBJECT_BYTES {
            return Err(failure(inner, "read", key, Cause::TooLarge, "expected a smaller part"));
        }
        let stored = header.stored_range(&range, *stored_bytes);
        let chunks = inner.read_range(&sealed(key), stored.clone())?;
        header.open_range(identities, key, range, (stored, &chunks), *stored_bytes).map_err(failed)
    }

    pub fn content_bytes(&self, inner: &dyn Store, key: &str, stored_bytes: u64) -> Result<u64, StoreError> {
        let known = match self.kept(key).filter(|known| known.stored_bytes == stored_bytes) {
            Some(known) => known,
            None => self.keep(inner, key, stored_bytes)?,
        };
        known
            .header
            .content_bytes(stored_bytes)
            .map_err(|fault| failure(inner, "decrypt", key, fault.cause, fault.source))
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
        let failed = |fault: Fault| failure(inner, "decrypt", key, fault.cause, fault.source);
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
        Err(failure(inner, "decrypt", key, Cause::Damaged, "it ends within its header"))
    }
}
