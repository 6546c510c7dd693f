//! Archives files from streams and sources other than a server's `pg_wal`, with checks as strict as for a
//! push.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, Write};
use std::sync::{Mutex, PoisonError};

use sha1::{Digest, Sha1};
use tempfile::SpooledTempFile;
use walden_format::lsn::Timeline;

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::ingest::push::{PushOptions, Pushed, Pusher};
use crate::objects::check::{self, Checked, MAX_TEXT_BYTES, Refusal};
use crate::objects::name::ArchivedFile;
use crate::objects::object::{Content, MAX_SEGMENT_BYTES, to_hex};
use crate::restore::server::FIRST_BYTES;

/// Maximum size of a file held in memory, in bytes. Larger files are held in a temporary file.
const IN_MEMORY: usize = 64 << 20;

/// Adds files to an archive.
pub(crate) struct Intake {
    pusher: Pusher,
    archive: Archive,
    level: u8,
    /// Segment size in bytes.
    limit: u64,
    /// Clusters that the source's files belong to, by system identifier, each with the evidence.
    clusters: Mutex<BTreeMap<u64, String>>,
}

/// Reasons for not archiving a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IntakeError {
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("the file is too large: expected at most {limit} bytes, the size of a segment")]
    TooLarge { limit: u64 },
    #[error("the file's content differs from the SHA-1 in its name: expected {expected}, found {found}")]
    Digest { expected: String, found: String },
    #[error(
        "cannot determine the cluster of this file: expected segments in the source that identify it, found none that can be read"
    )]
    UnknownCluster,
    #[error("cannot determine the cluster of this file: the source has segments of several clusters, with the system identifiers {}", found.join(" and "))]
    SeveralClusters { found: Vec<String> },
    #[error("{refusal}; the archive has an intact copy")]
    DamagedCopy { refusal: Refusal },
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

impl IntakeError {
    /// Returns whether the archive cannot accept any other file either.
    pub fn is_final(&self) -> bool {
        matches!(self, IntakeError::Archive(error) if is_final(error))
    }
}

walden_format::diagnostics! { IntakeError {
    Self::Refused(refusal @ Refusal::Damaged { .. }) => code_of(refusal): "find another copy, such as in a second repository or on a standby; --accept-damaged archives it as it is",
    Self::Refused(refusal @ Refusal::UnknownVersion { .. }) => of(refusal),
    Self::Refused(refusal @ Refusal::Incomplete { .. }) => code_of(refusal): "if it is the newest segment of a running server, import it once the server has filled it; otherwise find another copy",
    Self::DamagedCopy { .. } => "import-damaged-copy": "nothing was overwritten, and nothing is missing: remove the damaged file from the source, or leave it out",
    Self::UnknownCluster => "import-unknown-cluster": "timeline history and backup history files do not identify their cluster: import them together with segments of their cluster",
    Self::SeveralClusters { .. } => "import-several-clusters": "timeline history and backup history files do not identify their cluster: import a folder with files of one cluster only",
    Self::Archive(error) => of(error),
    Self::Refused(refusal) => code_of(refusal),
    Self::Read(_) => none,
    Self::TooLarge { .. } => "import-too-large",
    Self::Digest { .. } => "import-digest",
} }

fn is_final(error: &ArchiveError) -> bool {
    use ArchiveError::{Empty, Identity, Missing};
    error.store_error().is_some() || matches!(error, Missing(_) | Empty(_) | Identity { .. })
}

/// Returns the histories of the archive, and the histories in `own` that only the source has, each given as
/// text. Skips unreadable histories, which are refused when they are archived.
pub(crate) fn histories(
    archive: &Archive,
    own: impl Iterator<Item = (Timeline, io::Result<Vec<u8>>)>,
) -> Result<Vec<History>, ArchiveError> {
    let (mut histories, _) = archive.undamaged_histories()?;
    for (timeline, text) in own {
        if let Ok(text) = text
            && let Ok(history) = History::parse(timeline, &text)
        {
            histories.entry(timeline).or_insert(history);
        }
    }
    Ok(histories.into_values().collect())
}

/// Reads at most the maximum size of a history file.
pub(crate) fn read_text(content: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    content.take(MAX_TEXT_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Separates the result for one file from errors that prevent archiving any further file.
pub(crate) fn split_final(
    result: Result<Pushed, IntakeError>,
) -> Result<Result<Pushed, IntakeError>, ArchiveError> {
    match result {
        Err(IntakeError::Archive(error)) if is_final(&error) => Err(error),
        other => Ok(other),
    }
}

impl Intake {
    /// Creates an intake. `histories` state where timelines ended. `cluster` is the system identifier that
    /// the source states, with the evidence.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn new(
        archive: &Archive,
        options: &PushOptions,
        histories: Vec<History>,
        cluster: Option<(u64, String)>,
    ) -> Result<Intake, ArchiveError> {
        let limit = match archive.identity() {
            Ok(identity) => identity.segment_bytes,
            Err(ArchiveError::Missing(_) | ArchiveError::Empty(_)) => MAX_SEGMENT_BYTES,
            Err(error) => return Err(error),
        };
        let pusher = Pusher::new(archive.clone(), options.clone(), histories);
        let clusters = Mutex::new(cluster.into_iter().collect());
        Ok(Intake { pusher, archive: archive.clone(), level: options.level, limit, clusters })
    }

    /// Archives a file unless it is already archived with the same content.
    ///
    /// Timeline history and backup history files do not identify their cluster, so the segments of the same
    /// source must come first. If a segment belongs to another cluster, or if there are no segments, these
    /// files are refused. A foreign history file would make recovery end on a wrong timeline, and a foreign
    /// backup history file would count as a backup when removing WAL.
    ///
    /// # Errors
    /// The reason for not archiving the file.
    pub fn ingest(
        &self,
        file: ArchivedFile,
        content: &mut dyn Read,
        sha1: Option<&[u8; 20]>,
    ) -> Result<Pushed, IntakeError> {
        let limit = match file {
            ArchivedFile::Segment(_) | ArchivedFile::Partial(_) => self.limit,
            ArchivedFile::History(_) | ArchivedFile::Backup(..) => MAX_TEXT_BYTES,
        };
        let mut copy = BufferedFile::default();
        let bytes = io::copy(&mut content.take(limit + 1), &mut copy).map_err(IntakeError::Read)?;
        let (is_cut, mut system_id) = (bytes > limit, None);
        if let ArchivedFile::Segment(_) | ArchivedFile::Partial(_) = file
            && let Some(found) = check::system_id_of(&copy.first)
        {
            let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
            clusters.entry(found).or_insert_with(|| file.to_string());
            system_id = Some(found);
        }
        let (hash, found) = (*copy.blake3.finalize().as_bytes(), copy.sha1.finalize());
        if let Some(expected) = sha1
            && !is_cut
            && *expected != *found
        {
            return Err(IntakeError::Digest { expected: to_hex(expected), found: to_hex(&found) });
        }
        // Checked before comparing with the archived file: a segment of another cluster must not be reported
        // as a conflict.
        if let Some(system_id) = system_id {
            self.archive.expect_cluster(system_id)?;
        }
        if is_cut {
            return Err(IntakeError::TooLarge { limit });
        }
        let present = self.pusher.find_present(file, &Checked::from_hash(bytes, hash));
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
            let is_intact = matches!(conflict, ArchiveError::Conflict { archived: Some(_), .. });
            let checked = match checked {
                Ok(checked) => checked,
                // The archived copy was read and verified for the comparison.
                Err(refusal @ (Refusal::Damaged { .. } | Refusal::Incomplete { .. })) if is_intact => {
                    return Err(IntakeError::DamagedCopy { refusal });
                }
                Err(_) => return Err(conflict.into()),
            };
            let found = self.pusher.find_same_log(file, &checked, &mut Content::Read(&mut content));
            let found = found.map_err(IntakeError::Read)?;
            return found.ok_or_else(|| conflict.with_reset(file, &checked).into());
        }
        let checked = checked?;
        Ok(self.pusher.store(file, checked, &mut Content::Read(&mut content), self.level)?)
    }

    /// Checks that every cluster found in the source is the archive's cluster. An archive without a cluster
    /// is checked too, because the server that claims it later must be of the same cluster as its first
    /// files.
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

/// The content of a file, which can be read again, with its first bytes and its hashes.
struct BufferedFile {
    content: SpooledTempFile,
    first: Vec<u8>,
    blake3: blake3::Hasher,
    sha1: Sha1,
}

impl Default for BufferedFile {
    fn default() -> BufferedFile {
        BufferedFile {
            content: SpooledTempFile::new(IN_MEMORY),
            first: Vec::new(),
            blake3: blake3::Hasher::new(),
            sha1: Sha1::new(),
        }
    }
}

impl Write for BufferedFile {
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

#[cfg(test)]
mod tests {
    use walden_codec::container::Error as ContainerError;

    use super::*;
    use crate::objects::object::ObjectError;
    use crate::store::{Cause, StoreError};

    /// Wraps a store's error the way a decoder does.
    fn in_a_container(cause: Cause) -> ArchiveError {
        let (key, location) = ("wal/1.wpk".to_owned(), "s3://bucket".to_owned());
        let error = StoreError { operation: "read", key: key.clone(), location, cause, source: None };
        ObjectError::Container { key, source: ContainerError::Io(io::Error::other(error)) }.into()
    }

    #[test]
    fn an_outage_while_an_object_is_decoded_is_the_store_s() {
        let outage = in_a_container(Cause::Unavailable);
        assert_eq!((outage.cause(), outage.is_damage()), ("unavailable", false));
        assert_eq!(outage.code(), Some("archive-unreachable"));
        assert!(IntakeError::Archive(outage).is_final());
        assert!(split_final(Err(in_a_container(Cause::Unavailable).into())).is_err());
        let gone = in_a_container(Cause::NotFound);
        assert_eq!((gone.cause(), gone.is_not_found()), ("not_found", true));
        let (key, expected, found) = ("wal/1.wpk".to_owned(), "a".to_owned(), "b".to_owned());
        let damaged: ArchiveError = ObjectError::Mismatch { key, expected, found }.into();
        assert_eq!((damaged.cause(), damaged.is_damage()), ("damaged_object", true));
        assert!(!IntakeError::Archive(damaged).is_final());
    }
}
