//! The archive's keys, and the users who may read.
//!
//! Each change writes a further generation, `keys/0002.age` after `keys/0001.age`: the archive's private keys, newest first, as a
//! file of identities that age itself reads, encrypted to every user. Its header states in plain, in a stanza `walden-keys`, which
//! public keys these are. The newest generation that a user can decrypt has all keys there ever were.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::iter;
use std::path::Path;
use std::time::SystemTime;

use age::secrecy::ExposeSecret;
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, EncryptError, Encryptor};
use age_core::format::{FileKey, Stanza};
use serde::{Deserialize, Serialize};

use super::{KEYS, SUFFIX, failure};
use crate::store::{Cause, Created, Store, StoreError, exists};

/// The stanza's type.
const STANZA: &str = "walden-keys";
/// Largest accepted file of identities, in bytes.
const MAX_IDENTITY_FILE: u64 = 1 << 20;

/// What a generation of keys states in plain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// Which generation, from 1 on.
    pub generation: u32,
    /// The archive's recipients: the first is the one to encrypt to, the others had their time.
    pub recipients: Vec<String>,
    /// Who can read.
    pub users: Vec<User>,
    /// When it was made, in microseconds since 1970-01-01 00:00:00 UTC.
    pub created: i64,
}

/// Somebody who can read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct User {
    /// The user's public key.
    pub recipient: String,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl User {
    /// A user as people write it: `age1...`, or `NAME=age1...`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<User, String> {
        let (name, recipient) = match text.split_once('=') {
            Some((name, recipient)) => (Some(name.trim().to_owned()), recipient.trim()),
            None => (None, text.trim()),
        };
        parse_recipient(recipient)?;
        if name.as_ref().is_some_and(|name| name.is_empty() || name.chars().any(char::is_control)) {
            return Err(format!("expected a name before =, found {name:?}"));
        }
        Ok(User { recipient: recipient.to_owned(), name })
    }

    /// Whether a text is this user's public key or name.
    fn is_named(&self, text: &str) -> bool {
        self.recipient == text || self.name.as_deref() == Some(text)
    }
}

/// A new key pair.
pub struct KeyPair {
    /// The public key: `age1...`
    pub recipient: String,
    /// A file of identities with the private key, as `age-keygen` writes it.
    pub identity_file: String,
}

/// Makes a key pair for a user.
pub fn generate() -> KeyPair {
    let identity = Identity::generate();
    let recipient = identity.to_public().to_string();
    let identity_file = format!("# public key: {recipient}\n{}\n", identity.to_string().expose_secret());
    KeyPair { recipient, identity_file }
}

/// The public key in a text.
///
/// # Errors
/// Why it is none, for people.
pub fn parse_recipient(text: &str) -> Result<Recipient, String> {
    if text.starts_with("AGE-SECRET-KEY-") {
        return Err("expected a public key (age1...), found a private key".to_owned());
    }
    text.parse()
        .map_err(|problem| format!("expected a public key of age (age1...), found {text:?}: {problem}"))
}

/// The newest generation's statement; nothing if there are no keys.
///
/// # Errors
/// The store's, and an object that is no generation of keys.
pub fn newest(inner: &dyn Store) -> Result<Option<Statement>, StoreError> {
    generations(inner)?.last().map(|&generation| statement(inner, generation)).transpose()
}

/// The newest generation's statement, of an archive that is encrypted.
///
/// # Errors
/// [`Cause::KeysMissing`], and as [`newest`].
pub fn expect_newest(inner: &dyn Store) -> Result<Statement, StoreError> {
    newest(inner)?.ok_or_else(|| missing(inner))
}

/// The generations of keys of an archive that is encrypted, in ascending order, of which there is one at least: what is encrypted to keys
/// that are gone, nobody could read.
///
/// # Errors
/// [`Cause::KeysMissing`], and the store's.
pub fn expect(inner: &dyn Store) -> Result<Vec<u32>, StoreError> {
    let found = generations(inner)?;
    if found.is_empty() { Err(missing(inner)) } else { Ok(found) }
}

fn missing(inner: &dyn Store) -> StoreError {
    StoreError {
        operation: "read",
        key: KEYS.to_owned(),
        location: inner.location().to_owned(),
        cause: Cause::KeysMissing,
        source: None,
    }
}

/// What a generation states.
///
/// # Errors
/// As [`newest`].
pub fn statement(inner: &dyn Store, generation: u32) -> Result<Statement, StoreError> {
    let key = key_of(generation);
    read_statement(inner, &key, generation, &inner.read(&key)?)
}

fn read_statement(
    inner: &dyn Store,
    key: &str,
    generation: u32,
    content: &[u8],
) -> Result<Statement, StoreError> {
    let damaged = |problem: String| failure(inner, "use", key, Cause::Damaged, problem);
    let opening = Opening { identities: &[], json: RefCell::new(None) };
    let decryptor = Decryptor::new_buffered(content).map_err(|error| damaged(error.to_string()))?;
    // Without identities nothing is decrypted; the stanzas are shown all the same.
    let _ = decryptor.decrypt(iter::once(&opening as _));
    let json =
        opening.json.take().ok_or_else(|| damaged(format!("expected a stanza {STANZA}, found none")))?;
    let statement: Statement = serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))?;
    if statement.generation != generation {
        return Err(damaged(format!(
            "it was stored as generation {}, and moved since",
            statement.generation
        )));
    }
    for recipient in &statement.recipients {
        parse_recipient(recipient).map_err(&damaged)?;
    }
    Ok(statement)
}

/// Gives a new archive a key pair of its own, which these users can read; the statement of the keys that are there, if these were
/// written by an interrupted call before.
///
/// # Errors
/// An archive that has something in it already, or keys of other users; the store's.
pub(super) fn initialise(inner: &dyn Store, users: &[User]) -> Result<Statement, StoreError> {
    let refused = |problem: &str| failure(inner, "encrypt", "the archive", Cause::Other, problem);
    if users.is_empty() {
        return Err(refused("expected at least one recipient who can read, found none"));
    }
    let mut holds_something = false;
    for prefix in [crate::stored::name::WAL, crate::stored::name::HISTORY, crate::stored::name::BACKUP] {
        inner.list(prefix, &mut |_| holds_something = true)?;
    }
    if let Some(found) = newest(inner)? {
        let same =
            found.users.iter().map(|user| &user.recipient).eq(users.iter().map(|user| &user.recipient));
        return match same {
            true => Ok(found),
            false => Err(refused(
                "it has keys of other users already; walden archive key add and remove change them",
            )),
        };
    }
    if holds_something || exists(inner, crate::stored::name::IDENTITY)? {
        return Err(refused(
            "expected an archive with nothing in it, found one in use; an archive is encrypted from its beginning or not at all: import it into a new one",
        ));
    }
    write(inner, 1, vec![Identity::generate()], users.to_vec())
}

/// A change of the archive's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// These can read as well, whatever is and will be in the archive.
    Add(Vec<User>),
    /// Those with these recipients or names can no longer read what will be stored, under a new key of the archive.
    Remove(Vec<String>),
    /// What will be stored gets a new key of the archive.
    Rotate,
}

/// Writes a further generation of keys; needs the private key of a user, which the file has.
///
/// After a removal the earlier generations, which the removed users can decrypt, are removed too. A removal that was interrupted before
/// that is finished by the next change, and by the same one once more.
///
/// # Errors
/// A change that changes nothing or leaves nobody, keys that somebody else changed at the same moment, and the store's.
pub(super) fn change(
    inner: &dyn Store,
    identity: Option<&Path>,
    change: &Change,
) -> Result<Statement, StoreError> {
    let refused = |problem: String| failure(inner, "change", "the keys", Cause::Other, problem);
    let Some(before) = newest(inner)? else {
        return Err(refused("the archive is not encrypted".to_owned()));
    };
    let first = before.recipients.first().cloned().unwrap_or_default();
    let mut identities = unlock(inner, &first, identity)?;
    let has = |statement: &Statement, user: &str| statement.users.iter().any(|known| known.is_named(user));
    let superseded = superseded(inner, &before)?;
    for old in &superseded {
        inner.remove(&key_of(old.generation))?;
    }
    if let Change::Remove(removed) = change
        && removed.iter().all(|user| !has(&before, user) && superseded.iter().any(|old| has(old, user)))
    {
        return Ok(before);
    }
    let mut users = before.users.clone();
    match change {
        Change::Add(added) => {
            for user in added {
                if users.iter().any(|known| known.recipient == user.recipient) {
                    return Err(refused(format!("{} can read already", user.recipient)));
                }
                users.push(user.clone());
            }
        }
        Change::Remove(removed) => {
            for user in removed {
                let before = users.len();
                users.retain(|known| !known.is_named(user));
                if users.len() == before {
                    return Err(refused(format!("{user} is not among those who can read")));
                }
            }
            if users.is_empty() {
                return Err(refused(
                    "nobody could read the archive any more; add another user first".to_owned(),
                ));
            }
        }
        Change::Rotate => {}
    }
    if !matches!(change, Change::Add(_)) {
        identities.insert(0, Identity::generate());
    }
    let made = write(inner, before.generation + 1, identities, users)?;
    if matches!(change, Change::Remove(_)) {
        for generation in generations(inner)?.into_iter().filter(|&generation| generation < made.generation) {
            inner.remove(&key_of(generation))?;
        }
    }
    Ok(made)
}

/// Earlier generations that somebody can decrypt who cannot decrypt the newest one.
fn superseded(inner: &dyn Store, newest: &Statement) -> Result<Vec<Statement>, StoreError> {
    let can_still_read = |user: &User| newest.users.iter().any(|known| known.recipient == user.recipient);
    let mut found = Vec::new();
    for generation in generations(inner)?.into_iter().filter(|&generation| generation < newest.generation) {
        let statement = statement(inner, generation)?;
        if !statement.users.iter().all(can_still_read) {
            found.push(statement);
        }
    }
    Ok(found)
}

/// Writes a generation, and reads it once more.
fn write(
    inner: &dyn Store,
    generation: u32,
    identities: Vec<Identity>,
    users: Vec<User>,
) -> Result<Statement, StoreError> {
    let key = key_of(generation);
    let failed = |problem: String| failure(inner, "write", &key, Cause::Other, problem);
    let recipients: Vec<String> =
        identities.iter().map(|identity| identity.to_public().to_string()).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let created = now.as_micros() as i64;
    let statement = Statement { generation, recipients, users, created };
    let mut text = String::from("# The private keys of an archive of Walden, newest first.\n");
    for identity in &identities {
        text.push_str(&format!(
            "# public key: {}\n{}\n",
            identity.to_public(),
            identity.to_string().expose_secret()
        ));
    }
    let json = serde_json::to_vec(&statement).map_err(|error| failed(error.to_string()))?;
    let readers: Result<Vec<Recipient>, String> =
        statement.users.iter().map(|user| parse_recipient(&user.recipient)).collect();
    let sealing = Sealing { readers: readers.map_err(&failed)?, json };
    let encryptor =
        Encryptor::with_recipients(iter::once(&sealing as _)).map_err(|error| failed(error.to_string()))?;
    let mut content = Vec::new();
    let encrypt = || {
        let mut writer = encryptor.wrap_output(&mut content)?;
        writer.write_all(text.as_bytes())?;
        writer.finish().map(drop)
    };
    encrypt().map_err(|error| failed(error.to_string()))?;
    if inner.create(&key, &content)? == Created::Exists {
        return Err(failed(
            "somebody else changed the keys at the same moment; look at them and try again".to_owned(),
        ));
    }
    let stored = inner.read(&key)?;
    if stored != content {
        return Err(failed("the store does not give back what was stored".to_owned()));
    }
    read_statement(inner, &key, generation, &stored)
}

/// Reads the archive's private keys, newest first, with the private key of a user.
///
/// # Errors
/// [`Cause::Locked`] without a file of identities, [`Cause::WrongIdentity`] with another's, [`Cause::UnreadableIdentity`],
/// [`Cause::ProtectedIdentity`] and [`Cause::NoIdentity`] with a file that cannot be used, [`Cause::KeysMissing`], and the store's.
pub fn unlock(inner: &dyn Store, first: &str, file: Option<&Path>) -> Result<Vec<Identity>, StoreError> {
    let Some(file) = file else {
        return Err(StoreError {
            operation: "decrypt",
            key: "objects".to_owned(),
            location: inner.location().to_owned(),
            cause: Cause::Locked,
            source: None,
        });
    };
    let identities = read_identity_file(file)?;
    // The archive's own key, decrypted by hand from one of the generations.
    if identities.iter().any(|identity| identity.to_public().to_string() == first) {
        return Ok(identities);
    }
    let mut damage = None;
    for generation in expect(inner)?.into_iter().rev() {
        match decrypt_generation(inner, generation, &identities) {
            Ok(Some(keys)) => return Ok(keys),
            Ok(None) => {}
            // An earlier generation has all keys but the latest.
            Err(error) if error.cause == Cause::Damaged => damage = damage.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = damage {
        return Err(error);
    }
    let of = |identity: &Identity| identity.to_public().to_string();
    let own = identities.iter().map(of).collect::<Vec<_>>().join(", ");
    let problem = format!("expected the private key of one of the archive's users, found that of {own}");
    Err(failure(inner, "decrypt", "the archive's keys", Cause::WrongIdentity, problem))
}

/// The private keys in a generation; nothing if none of the identities is one of its users'.
fn decrypt_generation(
    inner: &dyn Store,
    generation: u32,
    identities: &[Identity],
) -> Result<Option<Vec<Identity>>, StoreError> {
    let key = key_of(generation);
    let content = inner.read(&key)?;
    let damaged = |problem: String| failure(inner, "decrypt", &key, Cause::Damaged, problem);
    let decryptor = Decryptor::new_buffered(&content[..]).map_err(|error| damaged(error.to_string()))?;
    let opening = Opening { identities, json: RefCell::new(None) };
    let mut reader = match decryptor.decrypt(iter::once(&opening as _)) {
        Ok(reader) => reader,
        Err(DecryptError::NoMatchingKeys) => return Ok(None),
        Err(error) => return Err(damaged(error.to_string())),
    };
    read_statement(inner, &key, generation, &content)?;
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(|error| damaged(error.to_string()))?;
    parse_identities(&text).map(Some).map_err(damaged)
}

fn read_identity_file(path: &Path) -> Result<Vec<Identity>, StoreError> {
    let failed = |cause, source: Box<dyn std::error::Error + Send + Sync>| StoreError {
        operation: "read",
        key: "the identity".to_owned(),
        location: path.display().to_string(),
        cause,
        source: Some(source),
    };
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_IDENTITY_FILE).read_to_end(&mut text))
        .map_err(|error| failed(Cause::UnreadableIdentity, error.into()))?;
    if text.starts_with(b"age-encryption.org/") || text.starts_with(b"-----BEGIN AGE") {
        let problem = "it is protected by a passphrase, and nobody can be asked while a server recovers";
        return Err(failed(Cause::ProtectedIdentity, problem.into()));
    }
    let text = String::from_utf8_lossy(&text);
    parse_identities(&text).map_err(|problem| failed(Cause::NoIdentity, problem.into()))
}

/// The private keys in a file of identities. What is wrong with it is said without its content, which is secret.
fn parse_identities(text: &str) -> Result<Vec<Identity>, String> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let identities: Result<Vec<Identity>, String> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            line.parse()
                .map_err(|_| format!("expected AGE-SECRET-KEY-1... on line {number}, found something else"))
        })
        .collect();
    let identities = identities?;
    match identities.is_empty() {
        true => Err("expected AGE-SECRET-KEY-1..., found no private key".to_owned()),
        false => Ok(identities),
    }
}

/// The generations there are, in ascending order.
fn generations(inner: &dyn Store) -> Result<Vec<u32>, StoreError> {
    let mut found = Vec::new();
    inner.list(KEYS, &mut |listed| {
        let digits = listed.key.strip_prefix(KEYS).and_then(|name| name.strip_suffix(SUFFIX));
        let generation = digits.and_then(|digits| digits.parse().ok());
        found.extend(generation.filter(|&generation| key_of(generation) == listed.key));
    })?;
    found.sort_unstable();
    Ok(found)
}

fn key_of(generation: u32) -> String {
    format!("{KEYS}{generation:04}{SUFFIX}")
}

/// Every user, and the stanza beside theirs.
struct Sealing {
    readers: Vec<Recipient>,
    json: Vec<u8>,
}

impl age::Recipient for Sealing {
    fn wrap_file_key(&self, file_key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let mut stanzas = Vec::new();
        for reader in &self.readers {
            stanzas.extend(reader.wrap_file_key(file_key)?.0);
        }
        stanzas.push(Stanza { tag: STANZA.to_owned(), args: Vec::new(), body: self.json.clone() });
        Ok((stanzas, HashSet::new()))
    }
}

/// A user's identities, and what they saw of the header.
struct Opening<'a> {
    identities: &'a [Identity],
    json: RefCell<Option<Vec<u8>>>,
}

impl age::Identity for Opening<'_> {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.identities.iter().find_map(|identity| identity.unwrap_stanza(stanza))
    }

    fn unwrap_stanzas(&self, stanzas: &[Stanza]) -> Option<Result<FileKey, DecryptError>> {
        let own = stanzas.iter().find(|stanza| stanza.tag == STANZA);
        self.json.replace(own.map(|stanza| stanza.body.clone()));
        stanzas.iter().find_map(|stanza| self.unwrap_stanza(stanza))
    }
}
