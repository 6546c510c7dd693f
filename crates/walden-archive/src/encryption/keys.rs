//! Manages the archive's keys and the users who can read the archive.
//!
//! Each change writes a new generation, for example `keys/0002.age` after `keys/0001.age`. A generation is an
//! age identity file with the archive's private keys, newest first, encrypted to every user. Its header lists
//! the corresponding public keys in plain text, in a `walden-keys` stanza. The newest generation that a user
//! can decrypt contains every key the archive has used.
//!
//! Each generation has a checksum file, such as `keys/0002.age.blake3`, in the format of `b3sum`. Writers
//! have no private key, so they detect damage only by this checksum. The header cannot contain it because age
//! generates the nonce that follows at random after writing the header. Generations from versions without
//! checksums have none.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
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

use walden_source::error_text;

use super::object::FileKeyIdentity;
pub use super::service::{KeyService, Wrapped};
use super::{ARN, KEYS, KeyOptions, SUFFIX, failure};
use crate::objects::object::{Finding, to_hex};
use crate::store::versions::Kept;
use crate::store::{Cause, Created, Store, StoreError, exists};

/// The stanza's type.
const STANZA: &str = "walden-keys";
/// Suffix that turns a generation's key into that of its checksum.
const CHECKSUM: &str = ".blake3";
/// Maximum number of wrapped private keys that are tried.
const MAX_WRAPPED: usize = 16;
/// Largest accepted file of identities, in bytes.
const MAX_IDENTITY_FILE: u64 = 1 << 20;

/// The plain-text statement of a generation of keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// Generation number, starting at 1.
    pub generation: u32,
    /// The archive's recipients, newest first. New objects are encrypted to the first.
    pub recipients: Vec<String>,
    /// Users who can read the archive.
    pub users: Vec<User>,
    /// Creation time in microseconds since 1970-01-01 00:00:00 UTC.
    pub created: i64,
}

/// A user who can read the archive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct User {
    /// The user's public key.
    pub recipient: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The private key, if a key service encrypts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped: Option<Wrapped>,
}

/// A user to add.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewUser {
    /// A user with a key pair of their own.
    Known(User),
    /// Those who may use a key service.
    OfService {
        /// Display name.
        name: Option<String>,
        /// The key service.
        service: KeyService,
    },
}

impl NewUser {
    /// Parses a public key (`age1...`) or a key service (`arn:aws:kms:...`, `command:...`), either with a
    /// name (`NAME=...`).
    ///
    /// # Errors
    /// A description of the problem.
    pub fn parse(text: &str) -> Result<NewUser, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if KeyService::parse(text).is_none() => (Some(name), rest.trim()),
            _ => (None, text),
        };
        let Some(service) = KeyService::parse(rest) else { return User::parse(text).map(NewUser::Known) };
        Ok(NewUser::OfService { name: name.map(parse_name).transpose()?, service: service? })
    }

    /// Returns the user. For a key service, this generates a key pair, and the service encrypts its private
    /// key.
    ///
    /// # Errors
    /// [`Cause::KeyService`] if the service fails.
    pub fn create(&self, options: &KeyOptions) -> Result<User, StoreError> {
        match self {
            NewUser::Known(user) => Ok(user.clone()),
            NewUser::OfService { name, service } => {
                let identity = Identity::generate();
                let text = format!("{}\n", identity.to_string().expose_secret());
                let wrapped = service.wrap(text.as_bytes(), options)?;
                Ok(User { recipient: public_key(&identity), name: name.clone(), wrapped: Some(wrapped) })
            }
        }
    }
}

fn parse_name(name: &str) -> Result<String, String> {
    match name.trim() {
        name if name.is_empty() || name.chars().any(char::is_control) => {
            Err(format!("expected a name before =, found {name:?}"))
        }
        name => Ok(name.to_owned()),
    }
}

impl User {
    /// Parses a user in the form `age1...` or `NAME=age1...`.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn parse(text: &str) -> Result<User, String> {
        let (name, recipient) = match text.split_once('=') {
            Some((name, recipient)) => (Some(name), recipient.trim()),
            None => (None, text.trim()),
        };
        parse_recipient(recipient)?;
        let name = name.map(parse_name).transpose()?;
        Ok(User { recipient: recipient.to_owned(), name, wrapped: None })
    }

    /// Returns the ARN of the key that encrypts the user's private key.
    fn arn(&self) -> Option<&str> {
        self.wrapped.as_ref().map(|wrapped| wrapped.service.as_str()).filter(|name| name.starts_with(ARN))
    }

    /// Returns whether the text is this user's public key, name, or key of KMS.
    fn is_named(&self, text: &str) -> bool {
        self.recipient == text || self.name.as_deref() == Some(text) || self.arn() == Some(text)
    }

    /// Returns whether both have the same key pair, or may use the same key of KMS.
    fn is_same(&self, other: &User) -> bool {
        self.recipient == other.recipient || self.arn().is_some() && self.arn() == other.arn()
    }
}

/// A new key pair.
pub struct KeyPair {
    /// The public key: `age1...`
    pub recipient: String,
    /// An age identity file with the private key, as `age-keygen` writes it.
    pub identity_file: String,
}

/// Generates a key pair for a user.
pub fn generate() -> KeyPair {
    let identity = Identity::generate();
    let recipient = identity.to_public().to_string();
    let identity_file = format!("# public key: {recipient}\n{}\n", identity.to_string().expose_secret());
    KeyPair { recipient, identity_file }
}

/// Parses a public key.
///
/// # Errors
/// A message that describes the problem.
pub fn parse_recipient(text: &str) -> Result<Recipient, String> {
    if text.starts_with("AGE-SECRET-KEY-") {
        return Err("expected a public key (age1...), found a private key".to_owned());
    }
    text.parse()
        .map_err(|problem| format!("expected a public key of age (age1...), found {text:?}: {problem}"))
}

/// Returns the newest generation's statement, or `None` if the archive has no keys.
///
/// # Errors
/// The store's errors, and [`Cause::KeysDamaged`] if the newest generation is missing or damaged, as far as
/// this can be checked without a private key.
pub fn newest(inner: &dyn Store) -> Result<Option<Statement>, StoreError> {
    let stored = generations(inner)?;
    let newest = stored.last_key_value();
    newest.map(|(&generation, &stored)| read_checked(inner, generation, stored).map(|(it, _)| it)).transpose()
}

/// Returns the newest generation's statement of an encrypted archive.
///
/// # Errors
/// [`Cause::KeysMissing`], and the errors of [`newest`].
pub fn expect_newest(inner: &dyn Store) -> Result<Statement, StoreError> {
    newest(inner)?.ok_or_else(|| missing(inner))
}

/// Checks that an encrypted archive has keys: without them, new objects might be unreadable.
///
/// # Errors
/// [`Cause::KeysMissing`], and the store's errors.
pub fn expect_any(inner: &dyn Store) -> Result<(), StoreError> {
    expect(inner).map(drop)
}

/// Returns the generations of an encrypted archive's keys, at least one.
fn expect(inner: &dyn Store) -> Result<BTreeMap<u32, Stored>, StoreError> {
    let found = generations(inner)?;
    if found.is_empty() { Err(missing(inner)) } else { Ok(found) }
}

/// Returns all of the archive's recipients, according to every readable generation.
///
/// # Errors
/// The store's errors.
pub fn all_recipients(inner: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    for (&generation, &stored) in generations(inner)?.iter().rev() {
        match read_checked(inner, generation, stored) {
            Ok((statement, _)) => found.extend(statement.recipients),
            Err(error) if matches!(error.cause, Cause::KeysDamaged | Cause::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Reports problems with the generations of keys, newest first. Checks more with a private key.
///
/// `first` is the archive's first recipient.
///
/// # Errors
/// The store's errors.
pub fn faults(inner: &dyn Store, first: &str, options: &KeyOptions) -> Result<Vec<Finding>, StoreError> {
    // Operations that need the private key report its problems.
    let own = own_identities(inner, options).unwrap_or_default();
    let (mut found, mut statements) = (Vec::new(), Vec::new());
    for (&generation, &stored) in generations(inner)?.iter().rev() {
        match inspect(inner, generation, stored, &own) {
            Ok(inspected) => statements.push(inspected.statement),
            Err(error) if error.cause == Cause::KeysDamaged => {
                let problem = error.source.as_deref().map_or_else(|| error.to_string(), |it| error_text(it));
                found.push(Finding { object: error.key, problem });
            }
            // Removed since the listing.
            Err(error) if error.cause == Cause::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if let Some((newest, earlier)) = statements.split_first()
        && found.is_empty()
    {
        let mut expected = earlier.iter().flat_map(|it| &it.recipients).map(String::as_str).chain([first]);
        let lost = expected.find(|expected| newest.recipients.iter().all(|own| own != expected));
        found.extend(lost.map(|lost| Finding {
            object: key_of(newest.generation),
            problem: format!("expected all of the archive's keys, found none for {lost}"),
        }));
    }
    Ok(found)
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

/// Returns the error for a damaged generation.
fn damaged(inner: &dyn Store, generation: u32, problem: String) -> StoreError {
    failure(inner, "use", &key_of(generation), Cause::KeysDamaged, problem)
}

/// A generation of keys after its checks.
struct Inspected {
    statement: Statement,
    /// The private keys, newest first, or `None` if no given identity decrypts them.
    identities: Option<Vec<Identity>>,
}

/// Checks a generation as far as the given private keys permit.
fn inspect(
    inner: &dyn Store,
    generation: u32,
    stored: Stored,
    own: &[Identity],
) -> Result<Inspected, StoreError> {
    let (statement, content) = read_checked(inner, generation, stored)?;
    let identities = match own {
        [] => None,
        own => decrypt_generation(inner, generation, own, &content)?,
    };
    Ok(Inspected { statement, identities })
}

/// Reads a generation's statement and bytes, and verifies its checksum if it has one.
fn read_checked(
    inner: &dyn Store,
    generation: u32,
    stored: Stored,
) -> Result<(Statement, Vec<u8>), StoreError> {
    let content = read_stored(inner, generation, stored)?;
    if stored.has_checksum {
        let checksum = checksum_of(generation);
        match inner.read(&checksum) {
            Ok(text) if text == checksum_text(generation, &content).as_bytes() => {}
            Ok(text) => {
                let found = to_hex(blake3::hash(&content).as_bytes());
                let text = String::from_utf8_lossy(&text);
                let is_hash = |word: &&str| word.len() == 64 && word.bytes().all(|it| it.is_ascii_hexdigit());
                let problem = match text.split_whitespace().next().filter(is_hash) {
                    Some(expected) => format!(
                        "expected BLAKE3 {expected}, as {checksum} says, found {found}: one of the two files is damaged"
                    ),
                    None => format!("expected its checksum in {checksum}, found something else"),
                };
                return Err(damaged(inner, generation, problem));
            }
            // Removed since the listing.
            Err(error) if error.cause == Cause::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok((read_statement(inner, generation, &content)?, content))
}

fn read_stored(inner: &dyn Store, generation: u32, stored: Stored) -> Result<Vec<u8>, StoreError> {
    if !stored.has_keys {
        let problem = format!("expected it next to {}, found none", checksum_of(generation));
        return Err(damaged(inner, generation, problem));
    }
    inner.read(&key_of(generation))
}

fn read_statement(inner: &dyn Store, generation: u32, content: &[u8]) -> Result<Statement, StoreError> {
    let damaged = |problem: String| damaged(inner, generation, problem);
    let opening = Opening { identities: &[], json: RefCell::new(None) };
    let decryptor = Decryptor::new_buffered(content).map_err(|error| damaged(error.to_string()))?;
    // Decrypts nothing because it has no identities, but passes the stanzas to `opening`.
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

/// Creates the keys of a new archive and encrypts them to the users. Returns the existing statement if an
/// interrupted call already wrote it.
///
/// # Errors
/// The archive is not empty, its keys belong to other users, or the store failed.
pub(super) fn initialise(inner: &dyn Store, users: &[User]) -> Result<Statement, StoreError> {
    let refused = |problem: &str| failure(inner, "encrypt", "the archive", Cause::Other, problem);
    if users.is_empty() {
        return Err(refused("expected at least one recipient who can read, found none"));
    }
    let mut holds_something = false;
    for prefix in [crate::objects::name::WAL, crate::objects::name::HISTORY, crate::objects::name::BACKUP] {
        inner.list(prefix, &mut |_| holds_something = true)?;
    }
    if let Some(found) = newest(inner)? {
        let same = found.users.len() == users.len()
            && found.users.iter().zip(users).all(|(known, user)| known.is_same(user));
        return match same {
            true => Ok(found),
            false => Err(refused(
                "it has keys of other users already; walden archive key add and remove change them",
            )),
        };
    }
    if holds_something || exists(inner, crate::objects::name::IDENTITY)? {
        return Err(refused(
            "expected an empty archive, found one in use; an archive is encrypted from its creation or not at all: import its files into a new one",
        ));
    }
    write(inner, 1, vec![Identity::generate()], users.to_vec())
}

/// A change of the archive's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Grants these users access to all present and future objects.
    Add(Vec<User>),
    /// Removes users by recipient or name: a new key of the archive prevents them from reading future
    /// objects.
    Remove(Vec<String>),
    /// Replaces the archive's key for future objects.
    Rotate,
}

/// The keys after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The newest generation.
    pub statement: Statement,
    /// Names of earlier generations that removed users can decrypt, and why the store keeps them.
    pub kept: Vec<(String, Kept)>,
}

/// Writes a new generation of keys. This requires a user's private key.
///
/// The new generation must contain every key that an earlier generation states, the one in `archive.json`
/// (`first`), and the one that the configuration expects (`options`); otherwise it is not written. Earlier
/// generations are removed only if a later one that contains all these keys was decrypted.
///
/// Removing users also removes the earlier generations, which they can still decrypt. If a removal is
/// interrupted before that, the next change completes it, and so does repeating it.
///
/// # Errors
/// A change without effect, a change that removes every user, a concurrent change, a damaged or missing
/// generation, and the store's errors.
pub(super) fn change(
    inner: &dyn Store,
    first: &str,
    options: &KeyOptions,
    change: &Change,
) -> Result<Changed, StoreError> {
    let refused = |problem: String| failure(inner, "change", "the keys", Cause::Other, problem);
    let own = own_identities(inner, options)?;
    let mut earlier = Vec::new();
    for (&generation, &stored) in &expect(inner)? {
        earlier.push(inspect(inner, generation, stored, &own)?);
    }
    let Inspected { statement: before, identities: newest } = earlier.pop().ok_or_else(|| missing(inner))?;
    let is_opened = newest.is_some();
    let mut expected = before.recipients.clone();
    let others = earlier.iter().rev().flat_map(|it| it.statement.recipients.iter().cloned());
    for recipient in others.chain([first.to_owned()]) {
        if !expected.contains(&recipient) {
            expected.push(recipient);
        }
    }
    let pinned = options.recipient.as_ref();
    if let Some(pinned) = pinned.filter(|pinned| !expected.contains(pinned)) {
        let problem = format!(
            "expected a key for {pinned}, found none in any generation: the newest generation may be lost"
        );
        return Err(failure(inner, "change", "the keys", Cause::OtherRecipient, problem));
    }
    let is_newest_whole = is_opened && expected.len() == before.recipients.len();
    // The user may supply the archive's own private keys, decrypted manually.
    let names = own.iter().map(public_key).collect::<Vec<_>>();
    let opened = earlier.iter_mut().rev().filter_map(|it| it.identities.take()).flatten();
    let mut known: Vec<(String, Identity)> = newest
        .into_iter()
        .flatten()
        .chain(opened)
        .chain(own)
        .map(|identity| (public_key(&identity), identity))
        .collect();
    let mut identities = Vec::new();
    for recipient in &expected {
        match known.iter().position(|(public, _)| public == recipient) {
            Some(at) => identities.push(known.swap_remove(at).1),
            None if identities.is_empty() && !is_opened => return Err(wrong_identity(inner, &names)),
            None => {
                return Err(refused(format!(
                    "expected the archive's private key for {recipient} in a generation that the private key of {} decrypts, found none; a new generation without it would make its objects unreadable",
                    names.join(", ")
                )));
            }
        }
    }
    let has = |statement: &Statement, user: &str| statement.users.iter().any(|known| known.is_named(user));
    let superseded = superseded(&earlier, &before);
    let mut kept = Vec::new();
    if is_newest_whole {
        for old in &superseded {
            kept.extend(remove(inner, old.generation)?);
        }
        if let Change::Remove(removed) = change
            && removed.iter().all(|user| !has(&before, user) && superseded.iter().any(|old| has(old, user)))
        {
            return Ok(Changed { statement: before, kept });
        }
    }
    let mut users = before.users.clone();
    match change {
        Change::Add(added) => {
            for user in added {
                if users.iter().any(|known| known.is_same(user)) {
                    let who = user.arn().unwrap_or(&user.recipient);
                    return Err(refused(format!("{who} can read already")));
                }
                users.push(user.clone());
            }
        }
        Change::Remove(removed) => {
            for user in removed {
                let before = users.len();
                users.retain(|known| !known.is_named(user));
                if users.len() == before {
                    return Err(refused(format!("{user} is not a user who can read the archive")));
                }
            }
            if users.is_empty() {
                return Err(refused(
                    "no user could read the archive any more; add another user first".to_owned(),
                ));
            }
        }
        Change::Rotate => {}
    }
    if !matches!(change, Change::Add(_)) {
        identities.insert(0, Identity::generate());
    }
    let made = write(inner, before.generation + 1, identities, users)?;
    let superseded: Vec<u32> = match change {
        Change::Remove(_) => {
            let generations = earlier.iter().map(|it| it.statement.generation);
            generations.chain([before.generation]).collect()
        }
        Change::Add(_) | Change::Rotate => superseded.iter().map(|old| old.generation).collect(),
    };
    kept.clear();
    for generation in superseded {
        kept.extend(remove(inner, generation)?);
    }
    Ok(Changed { statement: made, kept })
}

/// Returns the earlier generations that are readable by a user who cannot read the newest one.
fn superseded<'a>(earlier: &'a [Inspected], newest: &Statement) -> Vec<&'a Statement> {
    let can_still_read = |user: &User| newest.users.iter().any(|known| known.recipient == user.recipient);
    let statements = earlier.iter().map(|it| &it.statement);
    statements.filter(|statement| !statement.users.iter().all(can_still_read)).collect()
}

/// Removes a generation after its checksum: a checksum on its own would mean that the generation was lost.
/// Returns the generation's key with the reason if the store keeps it.
fn remove(inner: &dyn Store, generation: u32) -> Result<Option<(String, Kept)>, StoreError> {
    let kept = match inner.discard(&checksum_of(generation))? {
        Some(kept) => Some(kept),
        None => inner.discard(&key_of(generation))?,
    };
    Ok(kept.map(|kept| (key_of(generation), kept)))
}

/// Encrypts a generation, decrypts it again for comparison, stores it with its checksum, and reads it back.
fn write(
    inner: &dyn Store,
    generation: u32,
    identities: Vec<Identity>,
    users: Vec<User>,
) -> Result<Statement, StoreError> {
    let key = key_of(generation);
    let failed = |problem: String| failure(inner, "write", &key, Cause::Other, problem);
    let recipients: Vec<String> = identities.iter().map(public_key).collect();
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
    let sealing = Sealing { readers: readers.map_err(&failed)?, json, file_key: RefCell::new(None) };
    let encryptor =
        Encryptor::with_recipients(iter::once(&sealing as _)).map_err(|error| failed(error.to_string()))?;
    let mut content = Vec::new();
    let encrypt = || {
        let mut writer = encryptor.wrap_output(&mut content)?;
        writer.write_all(text.as_bytes())?;
        writer.finish().map(drop)
    };
    encrypt().map_err(|error| failed(error.to_string()))?;
    let known = FileKeyIdentity(sealing.file_key);
    let mut read_back = String::new();
    let mut decrypt = || -> Result<(), DecryptError> {
        let mut reader = Decryptor::new_buffered(&content[..])?.decrypt(iter::once(&known as _))?;
        reader.read_to_string(&mut read_back)?;
        Ok(())
    };
    decrypt().map_err(|error| failed(error.to_string()))?;
    if read_back != text || read_statement(inner, generation, &content)? != statement {
        return Err(failed("the keys differ after decryption".to_owned()));
    }
    if inner.create(&key, &content)? == Created::Exists {
        return Err(failed(
            "another process changed the keys at the same time; check them with walden archive key list and try again".to_owned(),
        ));
    }
    // The checksum is stored before the read-back, so that everyone detects a store that damaged the keys.
    inner.create(&checksum_of(generation), checksum_text(generation, &content).as_bytes())?;
    if inner.read(&key)? != content {
        return Err(failed("the store returned other content than was stored".to_owned()));
    }
    let stored = Stored { has_keys: true, has_checksum: true };
    Ok(read_checked(inner, generation, stored)?.0)
}

/// Returns a generation's checksum file in the format of `b3sum`.
fn checksum_text(generation: u32, content: &[u8]) -> String {
    let key = key_of(generation);
    let name = key.strip_prefix(KEYS).unwrap_or(&key);
    format!("{}  {name}\n", to_hex(blake3::hash(content).as_bytes()))
}

/// The archive's private keys that a user's key decrypts.
pub struct Unlocked {
    /// Newest first.
    pub identities: Vec<Identity>,
    /// Damage in a generation later than the one that supplied the keys.
    pub damage: Option<String>,
}

/// Decrypts the archive's private keys, newest first, with a user's private key.
///
/// # Errors
/// [`Cause::Locked`] without an identity file; [`Cause::WrongIdentity`] if its key is not a user's;
/// [`Cause::UnreadableIdentity`], [`Cause::ProtectedIdentity`] and [`Cause::NoIdentity`] if the file is
/// unusable; [`Cause::KeyService`] if the key service fails; [`Cause::KeysMissing`]; [`Cause::KeysDamaged`]
/// if damage prevents decryption; and the store's errors.
pub fn unlock(inner: &dyn Store, first: &str, options: &KeyOptions) -> Result<Unlocked, StoreError> {
    let own = own_identities(inner, options)?;
    // The identity file contains the archive's own key, decrypted manually from a generation.
    if own.iter().any(|identity| public_key(identity) == first) {
        return Ok(Unlocked { identities: own, damage: None });
    }
    let mut damage = None;
    for (&generation, &stored) in expect(inner)?.iter().rev() {
        let opened = read_stored(inner, generation, stored)
            .and_then(|content| decrypt_generation(inner, generation, &own, &content));
        match opened {
            Ok(Some(identities)) => {
                let damage = damage.as_ref().map(|error: &StoreError| error_text(error));
                return Ok(Unlocked { identities, damage });
            }
            Ok(None) => {}
            // Removed since the listing.
            Err(error) if error.cause == Cause::NotFound => {}
            // An earlier generation has every key except the latest.
            Err(error) if error.cause == Cause::KeysDamaged => damage = damage.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    let names: Vec<String> = own.iter().map(public_key).collect();
    Err(damage.unwrap_or_else(|| wrong_identity(inner, &names)))
}

fn locked(inner: &dyn Store) -> StoreError {
    StoreError {
        operation: "decrypt",
        key: "objects".to_owned(),
        location: inner.location().to_owned(),
        cause: Cause::Locked,
        source: None,
    }
}

/// Returns the error if the private keys of these public keys decrypt none of the archive's keys.
fn wrong_identity(inner: &dyn Store, own: &[String]) -> StoreError {
    let own = own.join(", ");
    let problem = format!("expected the private key of one of the archive's users, found that of {own}");
    failure(inner, "decrypt", "the archive's keys", Cause::WrongIdentity, problem)
}

fn public_key(identity: &Identity) -> String {
    identity.to_public().to_string()
}

/// Decrypts the private keys in a generation. Returns `None` if none of the identities belongs to its users.
fn decrypt_generation(
    inner: &dyn Store,
    generation: u32,
    identities: &[Identity],
    content: &[u8],
) -> Result<Option<Vec<Identity>>, StoreError> {
    let damaged = |problem: String| damaged(inner, generation, problem);
    let statement = read_statement(inner, generation, content)?;
    let decryptor = Decryptor::new_buffered(content).map_err(|error| damaged(error.to_string()))?;
    let opening = Opening { identities, json: RefCell::new(None) };
    let mut reader = match decryptor.decrypt(iter::once(&opening as _)) {
        Ok(reader) => reader,
        Err(DecryptError::NoMatchingKeys) => {
            let is_user = |own: &String| statement.users.iter().any(|user| user.recipient == *own);
            // A user's key fails to decrypt the generation only if the header is damaged.
            return match identities.iter().map(public_key).find(is_user) {
                Some(own) => Err(damaged(format!(
                    "expected the private key for {own} to decrypt it, as its header states"
                ))),
                None => Ok(None),
            };
        }
        Err(error) => return Err(damaged(error.to_string())),
    };
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(|error| damaged(error.to_string()))?;
    let found = parse_identities(&text).map_err(damaged)?;
    let public: Vec<String> = found.iter().map(public_key).collect();
    match statement.recipients.iter().find(|&stated| !public.contains(stated)) {
        Some(lost) => {
            Err(damaged(format!("expected the private key for {lost}, which its header states, found none")))
        }
        None => Ok(Some(found)),
    }
}

/// Returns the configured private keys: those of the file, or the one that the key service decrypts.
fn own_identities(inner: &dyn Store, options: &KeyOptions) -> Result<Vec<Identity>, StoreError> {
    let path = options.identity.as_deref().ok_or_else(|| locked(inner))?;
    let Some(service) = path.to_str().and_then(KeyService::parse) else { return read_identity_file(path) };
    let service = service.map_err(|problem| {
        let location = path.display().to_string();
        StoreError {
            source: Some(problem.into()),
            ..StoreError::new("use", "the identity", &location, Cause::NoIdentity)
        }
    })?;
    let (mut tried, mut failed) = (Vec::new(), None);
    for (&generation, &stored) in expect(inner)?.iter().rev() {
        let users = match read_checked(inner, generation, stored) {
            Ok((statement, _)) => statement.users,
            // An earlier generation may have the same user.
            Err(error) if matches!(error.cause, Cause::KeysDamaged | Cause::NotFound) => continue,
            Err(error) => return Err(error),
        };
        let of_service = |user: User| Some((user.recipient, user.wrapped?));
        let of_service = users.into_iter().filter_map(of_service);
        for (recipient, wrapped) in of_service.filter(|(_, wrapped)| wrapped.service == service.name) {
            if tried.len() >= MAX_WRAPPED || tried.contains(&wrapped.key) {
                continue;
            }
            match unwrap(&service, &recipient, &wrapped, options) {
                Ok(identity) => return Ok(vec![identity]),
                Err(error) => failed = failed.or(Some(error)),
            }
            tried.push(wrapped.key);
        }
    }
    Err(failed.unwrap_or_else(|| {
        let problem = "expected one of the archive's users, found none whose private key it encrypts";
        failure(
            inner,
            "decrypt",
            "the archive's keys",
            Cause::WrongIdentity,
            format!("{}: {problem}", service.name),
        )
    }))
}

/// Decrypts a user's private key.
fn unwrap(
    service: &KeyService,
    recipient: &str,
    wrapped: &Wrapped,
    options: &KeyOptions,
) -> Result<Identity, StoreError> {
    let text = service.unwrap(wrapped, options)?;
    let identities = parse_identities(&String::from_utf8_lossy(&text));
    let identities = identities.map_err(|problem| service.failure("decrypt", problem))?;
    let own = identities.into_iter().find(|identity| public_key(identity) == recipient);
    own.ok_or_else(|| {
        let problem = format!("expected the private key for {recipient}, found another one");
        service.failure("decrypt", problem)
    })
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
        let problem = "it is protected by a passphrase, which cannot be entered while a server recovers";
        return Err(failed(Cause::ProtectedIdentity, problem.into()));
    }
    let text = String::from_utf8_lossy(&text);
    parse_identities(&text).map_err(|problem| failed(Cause::NoIdentity, problem.into()))
}

/// Parses an identity file. Errors omit its content, which is secret.
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

/// The stored parts of a generation.
#[derive(Clone, Copy, Default)]
struct Stored {
    has_keys: bool,
    has_checksum: bool,
}

/// Lists the stored generations, and those with only a checksum.
fn generations(inner: &dyn Store) -> Result<BTreeMap<u32, Stored>, StoreError> {
    let mut found: BTreeMap<u32, Stored> = BTreeMap::new();
    inner.list(KEYS, &mut |listed| {
        let (key, is_checksum) = match listed.key.strip_suffix(CHECKSUM) {
            Some(key) => (key, true),
            None => (listed.key.as_str(), false),
        };
        let digits = key.strip_prefix(KEYS).and_then(|name| name.strip_suffix(SUFFIX));
        let generation = digits.and_then(|digits| digits.parse::<u32>().ok());
        if let Some(generation) = generation.filter(|&generation| key_of(generation) == key) {
            let stored = found.entry(generation).or_default();
            stored.has_keys |= !is_checksum;
            stored.has_checksum |= is_checksum;
        }
    })?;
    // A generation is stored before its checksum and removed after it. A concurrent listing can miss the
    // generation.
    for (&generation, stored) in &mut found {
        if !stored.has_keys {
            stored.has_keys = exists(inner, &key_of(generation))?;
            stored.has_checksum = stored.has_keys || exists(inner, &checksum_of(generation))?;
        }
    }
    found.retain(|_, stored| stored.has_keys || stored.has_checksum);
    Ok(found)
}

fn key_of(generation: u32) -> String {
    format!("{KEYS}{generation:04}{SUFFIX}")
}

fn checksum_of(generation: u32) -> String {
    format!("{}{CHECKSUM}", key_of(generation))
}

/// Encrypts to all users and adds the stanza with the statement.
struct Sealing {
    readers: Vec<Recipient>,
    json: Vec<u8>,
    /// The file key, for decrypting again to compare.
    file_key: RefCell<Option<FileKey>>,
}

impl age::Recipient for Sealing {
    fn wrap_file_key(&self, file_key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        self.file_key.replace(Some(FileKey::new(Box::new(*file_key.expose_secret()))));
        let mut stanzas = Vec::new();
        for reader in &self.readers {
            stanzas.extend(reader.wrap_file_key(file_key)?.0);
        }
        stanzas.push(Stanza { tag: STANZA.to_owned(), args: Vec::new(), body: self.json.clone() });
        Ok((stanzas, HashSet::new()))
    }
}

/// Decrypts with a user's identities and captures the statement's stanza.
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
