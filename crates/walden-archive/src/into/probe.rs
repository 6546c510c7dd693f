//! Whether an archive's place can be used: a segment goes in and comes out of it as any other, under a prefix of its own.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::archive::{Archive, ArchiveError};
use crate::encryption::KEYS;
use crate::into::push::{self, PushError, PushOptions};
use crate::out::get::{self, GetError};
use crate::store::{Created, FileHash, Listed, Store, StoreError};
use crate::stored::name::ArchivedFile;
use crate::stored::object::{self, ObjectError};

/// The prefix of what a probe stores until it ends.
pub const PROBES: &str = "probe/";

/// A segment that PostgreSQL 18 wrote, ended by a switch, as an archive has it.
const SEGMENT: (&str, &[u8]) =
    ("00000001000000000000000B", include_bytes!("../../documents/00000001000000000000000B.wlz"));

/// An offset of a byte that counts: what is behind the switch does not.
const IN_FIRST_RECORD: usize = 60;

/// What a probe found.
#[derive(Debug)]
pub struct Probe {
    /// How long it took to archive the segment.
    pub push: Duration,
    /// How long it took to get it back; nothing if the archive is encrypted and no private key was named.
    pub get: Option<Duration>,
    /// What could not be removed afterwards, and why.
    pub left: Option<StoreError>,
}

/// What does not work.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A temporary file.
    #[error("cannot write a temporary file")]
    Io(#[from] io::Error),
    /// The segment of the probe itself.
    #[error("cannot unpack the probe's segment")]
    Segment(#[source] ObjectError),
    /// The place takes no archive.
    #[error("cannot make an archive")]
    Found(#[source] ArchiveError),
    /// It is not archived.
    #[error("cannot archive a segment")]
    Push(#[source] PushError),
    /// It does not come back.
    #[error("cannot get the segment back that was archived")]
    Get(#[source] GetError),
    /// The store does not do what it says.
    #[error("cannot rely on the store: expected {expected}, found {found}")]
    Unreliable {
        /// What should have been.
        expected: &'static str,
        /// What was.
        found: String,
    },
}

impl ProbeError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ProbeError::Io(_) | ProbeError::Segment(_) => None,
            ProbeError::Found(error) => error.hint(),
            ProbeError::Push(error) => error.hint(),
            ProbeError::Get(error) => error.hint(),
            ProbeError::Unreliable { .. } => Some(
                "the store must refuse to create an object twice: for an object store without conditional requests, set without_conditional_requests = true in walden.toml",
            ),
        }
    }
}

/// Archives a segment, once more, and with other content; gets it back; and removes it.
///
/// # Errors
/// What does not work.
pub fn probe(archive: &Archive) -> Result<Probe, ProbeError> {
    // Without keys it would be tried out as one that is not encrypted.
    archive.encrypted().expect_keys().map_err(|error| ProbeError::Found(error.into()))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let prefix = format!("{PROBES}{:x}-{}/", now.as_nanos(), std::process::id());
    let store = Prefixed { inner: archive.encrypted().shared_inner(), prefix: prefix.clone() };
    let scratch = Archive::with_keys(Box::new(store), archive.encrypted().options().clone());
    let found = run(&scratch);
    // Also after a failure: what was stored until then is of no use.
    let left = archive.encrypted().inner().remove_all(&prefix).err();
    found.map(|(push, get)| Probe { push, get, left })
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
    scratch.found().map_err(ProbeError::Found)?;
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

/// A create that does not look first, as two servers at the same moment would, must be refused by the store itself.
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

/// A store under a prefix of another one, with the other one's keys of encryption.
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
        self.inner.list(&self.key(prefix), &mut |Listed { key, bytes }| {
            let key = key.strip_prefix(&self.prefix).unwrap_or(&key).to_owned();
            visit(Listed { key, bytes });
        })
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.inner.remove(&self.key(key))
    }

    fn remove_all(&self, prefix: &str) -> Result<(), StoreError> {
        self.inner.remove_all(&self.key(prefix))
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn location(&self) -> &str {
        self.inner.location()
    }

    fn warning(&self) -> Option<&str> {
        self.inner.warning()
    }
}
