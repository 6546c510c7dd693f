//! Tests whether a location can hold an archive: pushes and fetches a segment under a separate prefix.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use walden_source::error_text;

use crate::archive::{Archive, ArchiveError};
use crate::encryption::KEYS;
use crate::ingest::push::{self, PushError, PushOptions};
use crate::objects::name::ArchivedFile;
use crate::objects::object::{self, ObjectError};
use crate::restore::get::{self, GetError};
use crate::store::versions::Kept;
use crate::store::{Created, FileHash, Listed, Store, StoreError};

/// Key prefix of a probe's temporary objects.
pub const PROBES: &str = "probe/";

/// A compressed segment from PostgreSQL 18 that ends with a segment switch.
const SEGMENT: (&str, &[u8]) =
    ("00000001000000000000000B", include_bytes!("../../documents/00000001000000000000000B.wlz"));

/// Offset of a byte in the first record. Bytes after the segment switch are not compared.
const IN_FIRST_RECORD: usize = 60;

/// Result of a probe.
#[derive(Debug)]
pub struct Probe {
    /// Time to archive the segment.
    pub push: Duration,
    /// Time to fetch the segment, or `None` if the archive is encrypted and no private key is configured.
    pub get: Option<Duration>,
    /// Why the probe's objects were not removed, if so.
    pub left: Option<Left>,
}

/// Why the objects of a probe were not removed.
#[derive(Debug)]
pub enum Left {
    /// The store keeps them.
    Kept(Kept),
    /// The removal failed.
    Failed(StoreError),
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Kept(kept) => kept.fmt(f),
            Left::Failed(error) => f.write_str(&error_text(error)),
        }
    }
}

/// Reasons for a failed probe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// Writing a temporary file failed.
    #[error("cannot write a temporary file")]
    Io(#[from] io::Error),
    /// The probe's own segment cannot be decoded.
    #[error("cannot unpack the probe's segment")]
    Segment(#[source] ObjectError),
    /// The archive cannot be created.
    #[error("cannot make an archive")]
    Found(#[source] ArchiveError),
    /// The segment cannot be archived.
    #[error("cannot archive a segment")]
    Push(#[source] PushError),
    /// The segment cannot be fetched.
    #[error("cannot get the segment back that was archived")]
    Get(#[source] GetError),
    /// The store violates its contract.
    #[error("cannot rely on the store: expected {expected}, found {found}")]
    Unreliable {
        /// Expected behavior.
        expected: &'static str,
        /// Actual behavior.
        found: String,
    },
}

walden_format::diagnostics! { ProbeError {
    Self::Io(_) => none,
    Self::Segment(_) => "probe-segment",
    Self::Found(error) => of(error),
    Self::Push(error) => of(error),
    Self::Get(error) => of(error),
    Self::Unreliable { .. } => "archive-unreliable": "the store must refuse to create an object twice: for an object store without conditional requests, set without_conditional_requests = true in walden.toml",
} }

/// Archives a segment, archives it again, offers different content under the same name, fetches the segment,
/// and removes everything.
///
/// # Errors
/// The first step that failed.
pub fn probe(archive: &Archive) -> Result<Probe, ProbeError> {
    // Without its keys, an encrypted archive would be tested as a plain one.
    archive.encrypted().expect_keys().map_err(|error| ProbeError::Found(error.into()))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let prefix = format!("{PROBES}{:x}-{}/", now.as_nanos(), std::process::id());
    let store = Prefixed { inner: archive.encrypted().shared_inner(), prefix: prefix.clone() };
    let scratch = Archive::with_keys(Box::new(store), archive.encrypted().options().clone());
    let found = run(&scratch);
    // Also after a failure, because the objects are useless.
    let left = match archive.encrypted().inner().remove_all(&prefix) {
        Ok(kept) => kept.map(Left::Kept),
        Err(error) => Some(Left::Failed(error)),
    };
    found.map(|(push, get)| Probe { push, get, left })
}

/// Removes the objects of probes that ended at least a day ago and could not remove them, for example because
/// they were locked. Returns how many objects the store still keeps.
///
/// # Errors
/// Errors of the store.
pub(crate) fn remove_old(archive: &Archive) -> Result<u64, ArchiveError> {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let started = |key: &str| {
        let started = key.strip_prefix(PROBES)?.split_once('-')?.0;
        u64::from_str_radix(started, 16).ok().map(Duration::from_nanos)
    };
    let is_old = |key: &str| started(key).and_then(|it| it.checked_add(DAY)).is_some_and(|end| end < now);
    let store = archive.encrypted().inner();
    let mut old = Vec::new();
    store.list(PROBES, &mut |listed| old.extend(Some(listed.key).filter(|key| is_old(key))))?;
    let mut kept = 0;
    for key in old {
        kept += u64::from(store.discard(&key)?.is_some());
    }
    Ok(kept)
}

fn run(scratch: &Archive) -> Result<(Duration, Option<Duration>), ProbeError> {
    let folder = tempfile::tempdir()?;
    let (name, object) = SEGMENT;
    let path = folder.path().join(name);
    let Some(file) = ArchivedFile::parse(name) else { return Err(io::Error::other(name).into()) };
    let mut content = Vec::new();
    object::decode(file, object, &mut content).map_err(ProbeError::Segment)?;
    fs::write(&path, &content)?;
    let options = PushOptions { look_ahead: 0, accept_damaged: true, ..PushOptions::default() };
    let push = |path: &Path| push::push(scratch, path, &options).asked;
    scratch.create().map_err(ProbeError::Found)?;
    let began = Instant::now();
    push(&path).map_err(ProbeError::Push)?;
    let push_time = began.elapsed();
    expect(
        push(&path).map_err(ProbeError::Push)?.was_there,
        "the same segment to be there",
        "it stored twice",
    )?;
    expect_create_only(scratch, file)?;
    if let Some(byte) = content.get_mut(IN_FIRST_RECORD) {
        *byte ^= 1;
    }
    fs::write(&path, &content)?;
    match push(&path) {
        Err(PushError::Archive { source: ArchiveError::Conflict { .. }, .. }) => {}
        Err(error) => return Err(ProbeError::Push(error)),
        Ok(_) => expect(false, "another content to be refused", "it accepted")?,
    }
    let options = scratch.encrypted().options();
    let is_encrypted = scratch.encrypted().is_encrypted().map_err(|error| store_error(name, error))?;
    if is_encrypted && options.identity.is_none() {
        return Ok((push_time, None));
    }
    let target = folder.path().join("target");
    let began = Instant::now();
    get::get(scratch, file, &target).map_err(ProbeError::Get)?;
    let get_time = began.elapsed();
    if let Some(byte) = content.get_mut(IN_FIRST_RECORD) {
        *byte ^= 1;
    }
    expect(fs::read(&target)? == content, "the segment to come back as it was", "it changed")?;
    Ok((push_time, Some(get_time)))
}

/// Tests that the store itself rejects a `create` of an existing key, as needed when two servers write
/// concurrently.
fn expect_create_only(scratch: &Archive, file: ArchivedFile) -> Result<(), ProbeError> {
    let created = scratch.store().create(&file.key(), b"another content");
    match created.map_err(|error| store_error(&file.to_string(), error))? {
        Created::Exists => Ok(()),
        Created::New => expect(false, "an existing object to be refused", "it overwritten"),
    }
}

fn store_error(name: &str, error: StoreError) -> ProbeError {
    ProbeError::Push(PushError::Archive { name: name.to_owned(), source: error.into() })
}

fn expect(is_so: bool, expected: &'static str, found: &str) -> Result<(), ProbeError> {
    match is_so {
        true => Ok(()),
        false => Err(ProbeError::Unreliable { expected, found: found.to_owned() }),
    }
}

/// A store under a prefix of another store that shares its encryption keys.
struct Prefixed {
    inner: Arc<dyn Store>,
    prefix: String,
}

impl Prefixed {
    fn key(&self, key: &str) -> String {
        match key.starts_with(KEYS) {
            true => key.to_owned(),
            false => format!("{}{key}", self.prefix),
        }
    }
}

impl Store for Prefixed {
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.inner.create(&self.key(key), content)
    }

    fn create_with(&self, key: &str, content: &[u8], files: &[FileHash<'_>]) -> Result<Created, StoreError> {
        self.inner.create_with(&self.key(key), content, files)
    }

    fn holds(&self, key: &str, file: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        self.inner.holds(&self.key(key), file)
    }

    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        self.inner.make_durable(&self.key(key))
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.inner.read(&self.key(key))
    }

    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.inner.read_range(&self.key(key), range)
    }

    fn size(&self, key: &str) -> Result<u64, StoreError> {
        self.inner.size(&self.key(key))
    }

    fn content_bytes(&self, key: &str, stored_bytes: u64) -> Result<u64, StoreError> {
        self.inner.content_bytes(&self.key(key), stored_bytes)
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        self.inner.list(&self.key(prefix), &mut |Listed { key, bytes, stored }| {
            let key = key.strip_prefix(&self.prefix).unwrap_or(&key).to_owned();
            visit(Listed { key, bytes, stored });
        })
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.inner.remove(&self.key(key))
    }

    fn discard(&self, key: &str) -> Result<Option<Kept>, StoreError> {
        self.inner.discard(&self.key(key))
    }

    fn remove_all(&self, prefix: &str) -> Result<Option<Kept>, StoreError> {
        self.inner.remove_all(&self.key(prefix))
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn location(&self) -> &str {
        self.inner.location()
    }

    fn storage_class(&self) -> Option<&str> {
        self.inner.storage_class()
    }

    fn warning(&self) -> Option<&str> {
        self.inner.warning()
    }
}
