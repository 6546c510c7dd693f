//! Files that come as streams and from elsewhere than a server's `pg_wal`, checked as strictly as pushed ones.

use std::io::{self, Read, Seek, Write};

use sha1::{Digest, Sha1};
use tempfile::SpooledTempFile;

use crate::archive::{Archive, ArchiveError};
use crate::check::{self, Checked, MAX_TEXT_BYTES, Refusal};
use crate::history::History;
use crate::name::ArchivedFile;
use crate::object::{Content, ObjectError, hexadecimal};
use crate::push::{PushOptions, Pushed, Pusher};
use crate::store::MAX_OBJECT_BYTES;

/// Bytes of a file that are held in memory; of larger ones, in a temporary file.
const IN_MEMORY: usize = 64 << 20;

/// Takes files into an archive.
pub(crate) struct Intake {
    pusher: Pusher,
    level: u8,
    /// Bytes of a segment.
    limit: u64,
}

/// Why a file was not archived.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IntakeError {
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("the file's size: expected at most {limit} bytes, found more")]
    TooLarge { limit: u64 },
    #[error("SHA-1 of the content: expected {expected} as in the file's name, found {found}")]
    Digest { expected: String, found: String },
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

impl IntakeError {
    /// The error of an archive that can take no other file either.
    pub fn into_final(self) -> Result<ArchiveError, IntakeError> {
        match self {
            IntakeError::Archive(error) if is_final(&error) => Ok(error),
            other => Err(other),
        }
    }

    pub fn is_final(&self) -> bool {
        matches!(self, IntakeError::Archive(error) if is_final(error))
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            IntakeError::Refused(Refusal::Damaged { .. }) => Some(
                "look for another copy, such as in a second repository or on a standby; --accept-damaged archives it as it is".to_owned(),
            ),
            IntakeError::Archive(error) => error.hint().map(str::to_owned),
            _ => None,
        }
    }
}

fn is_final(error: &ArchiveError) -> bool {
    matches!(
        error,
        ArchiveError::Store(_)
            | ArchiveError::Object(ObjectError::Store(_))
            | ArchiveError::Missing(_)
            | ArchiveError::Identity { .. }
    )
}

impl Intake {
    /// `histories` say where timelines ended.
    ///
    /// # Errors
    /// An archive that cannot be read.
    pub fn new(
        archive: &Archive,
        options: &PushOptions,
        histories: Vec<History>,
    ) -> Result<Intake, ArchiveError> {
        let limit = match archive.identity() {
            Ok(identity) => identity.segment_bytes,
            Err(ArchiveError::Missing(_)) => MAX_OBJECT_BYTES,
            Err(error) => return Err(error),
        };
        let pusher = Pusher::new(archive.clone(), options.clone(), histories);
        Ok(Intake { pusher, level: options.level, limit })
    }

    /// Archives a file, unless it is archived already with the same content.
    ///
    /// # Errors
    /// Why it is not archived.
    pub fn take(
        &self,
        file: ArchivedFile,
        content: &mut dyn Read,
        sha1: Option<&[u8; 20]>,
    ) -> Result<Pushed, IntakeError> {
        let limit = match file {
            ArchivedFile::Segment(_) | ArchivedFile::Partial(_) => self.limit,
            ArchivedFile::History(_) | ArchivedFile::Backup(..) => MAX_TEXT_BYTES,
        };
        let mut copy = Copy::default();
        let bytes = io::copy(&mut content.take(limit + 1), &mut copy).map_err(IntakeError::Read)?;
        if bytes > limit {
            return Err(IntakeError::TooLarge { limit });
        }
        let (hash, found) = (*copy.blake3.finalize().as_bytes(), copy.sha1.finalize());
        if let Some(expected) = sha1
            && *expected != *found
        {
            return Err(IntakeError::Digest { expected: hexadecimal(expected), found: hexadecimal(&found) });
        }
        let unchecked =
            Checked { bytes, hash, cluster: None, contents: None, warnings: Vec::new(), is_sound: false };
        if let Some(found) = self.pusher.find_present(file, &unchecked)? {
            return Ok(found);
        }
        let mut content = copy.content;
        content.rewind().map_err(IntakeError::Read)?;
        let checked = check::check(file, &mut content, self.pusher.rules())?;
        Ok(self.pusher.store(file, checked, &mut Content::Read(&mut content), self.level)?)
    }
}

/// A file's content, which can be read again, and its hashes.
struct Copy {
    content: SpooledTempFile,
    blake3: blake3::Hasher,
    sha1: Sha1,
}

impl Default for Copy {
    fn default() -> Copy {
        Copy { content: SpooledTempFile::new(IN_MEMORY), blake3: blake3::Hasher::new(), sha1: Sha1::new() }
    }
}

impl Write for Copy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.content.write(bytes)?;
        self.blake3.update(&bytes[..written]);
        self.sha1.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.content.flush()
    }
}
