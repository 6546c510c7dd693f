//! Files that come as streams and from elsewhere than a server's `pg_wal`, checked as strictly as pushed ones.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, Write};
use std::sync::{Mutex, PoisonError};

use sha1::{Digest, Sha1};
use tempfile::SpooledTempFile;
use walden_format::stream::StreamInfo;

use crate::archive::{Archive, ArchiveError};
use crate::check::{self, Checked, MAX_TEXT_BYTES, Refusal};
use crate::history::History;
use crate::name::ArchivedFile;
use crate::object::{Content, ObjectError, hexadecimal};
use crate::push::{FIRST_BYTES, PushOptions, Pushed, Pusher};
use crate::store::MAX_OBJECT_BYTES;

/// Bytes of a file that are held in memory; of larger ones, in a temporary file.
const IN_MEMORY: usize = 64 << 20;

/// Takes files into an archive.
pub(crate) struct Intake {
    pusher: Pusher,
    archive: Archive,
    level: u8,
    /// Bytes of a segment.
    limit: u64,
    /// The clusters that the source was shown to have files of, by system identifier, each with what shows it.
    clusters: Mutex<BTreeMap<u64, String>>,
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
    #[error(
        "the cluster that it is of: expected a segment of the source that says it, found none that can be read"
    )]
    UnknownCluster,
    #[error("the cluster that it is of: expected segments of one cluster in the source, found system identifiers {}", found.join(" and "))]
    SeveralClusters { found: Vec<String> },
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
            IntakeError::Refused(Refusal::Incomplete { .. }) => Some(
                "if it is the newest one of a server that runs, import it once the server has filled it; else look for another copy".to_owned(),
            ),
            IntakeError::UnknownCluster => Some(
                "histories and backup history files do not say which cluster they are of: import them together with segments of their cluster".to_owned(),
            ),
            IntakeError::SeveralClusters { .. } => Some(
                "histories and backup history files do not say which cluster they are of: import a folder that has the files of one cluster alone".to_owned(),
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
            | ArchiveError::Empty(_)
            | ArchiveError::Identity { .. }
    )
}

impl Intake {
    /// `histories` say where timelines ended, and `cluster` is the system identifier that the source states, with what states it.
    ///
    /// # Errors
    /// An archive that cannot be read.
    pub fn new(
        archive: &Archive,
        options: &PushOptions,
        histories: Vec<History>,
        cluster: Option<(u64, String)>,
    ) -> Result<Intake, ArchiveError> {
        let limit = match archive.identity() {
            Ok(identity) => identity.segment_bytes,
            Err(ArchiveError::Missing(_) | ArchiveError::Empty(_)) => MAX_OBJECT_BYTES,
            Err(error) => return Err(error),
        };
        let pusher = Pusher::new(archive.clone(), options.clone(), histories);
        let clusters = Mutex::new(cluster.into_iter().collect());
        Ok(Intake { pusher, archive: archive.clone(), level: options.level, limit, clusters })
    }

    /// Archives a file, unless it is archived already with the same content.
    ///
    /// Histories and backup history files do not say which cluster they are of, so the segments of the same source come first: one of
    /// another cluster among them, or none at all, and such files are refused. A history of another cluster would end recovery with a
    /// wrong timeline, and a backup history file of one would count as a backup when WAL is removed.
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
        if let ArchivedFile::Segment(_) | ArchivedFile::Partial(_) = file
            && let Ok(info) = StreamInfo::of_segment(&copy.first)
        {
            let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
            clusters.entry(info.system_id).or_insert_with(|| file.to_string());
        }
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
        let present = self.pusher.find_present(file, &unchecked);
        if let Ok(Some(found)) = present {
            return Ok(found);
        }
        if let (
            ArchivedFile::History(_) | ArchivedFile::Backup(..),
            Ok(_) | Err(ArchiveError::Conflict { .. }),
        ) = (file, &present)
        {
            self.expect_own_cluster()?;
        }
        let conflict = match present {
            Err(conflict @ (ArchiveError::Conflict { .. } | ArchiveError::DamageAccepted { .. })) => {
                Some(conflict)
            }
            Err(error) => return Err(error.into()),
            Ok(_) => None,
        };
        let mut content = copy.content;
        content.rewind().map_err(IntakeError::Read)?;
        let checked = check::check(file, &mut content, self.pusher.rules());
        if let Some(conflict) = conflict {
            let Ok(checked) = checked else { return Err(conflict.into()) };
            let found = self.pusher.find_same_log(file, &checked, &mut Content::Read(&mut content));
            return found.map_err(IntakeError::Read)?.ok_or(conflict.into());
        }
        let checked = checked?;
        Ok(self.pusher.store(file, checked, &mut Content::Read(&mut content), self.level)?)
    }

    /// Confirms that all that the source was shown to have is of the archive's cluster. Also in an archive that is no cluster's yet:
    /// whose files it takes first must be the same cluster's as those of the server that claims it.
    fn expect_own_cluster(&self) -> Result<(), IntakeError> {
        let clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut systems = clusters.keys();
        match (systems.next(), systems.next()) {
            (None, _) => Err(IntakeError::UnknownCluster),
            (Some(&system_id), None) => Ok(self.archive.expect_cluster(system_id)?),
            (Some(_), Some(_)) => {
                let found = clusters.iter().map(|(system_id, shown_by)| format!("{system_id} ({shown_by})"));
                Err(IntakeError::SeveralClusters { found: found.collect() })
            }
        }
    }
}

/// A file's content, which can be read again, its first bytes, and its hashes.
struct Copy {
    content: SpooledTempFile,
    first: Vec<u8>,
    blake3: blake3::Hasher,
    sha1: Sha1,
}

impl Default for Copy {
    fn default() -> Copy {
        Copy {
            content: SpooledTempFile::new(IN_MEMORY),
            first: Vec::new(),
            blake3: blake3::Hasher::new(),
            sha1: Sha1::new(),
        }
    }
}

impl Write for Copy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.content.write(bytes)?;
        let missing = FIRST_BYTES - self.first.len();
        self.first.extend_from_slice(&bytes[..written.min(missing)]);
        self.blake3.update(&bytes[..written]);
        self.sha1.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.content.flush()
    }
}
