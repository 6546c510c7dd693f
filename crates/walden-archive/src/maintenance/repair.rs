//! Rewrites a lost `archive.json` from the summaries of the archived segments, or from another copy of the
//! archive.
//!
//! The summary of each segment's object states the system identifier and the segment size. So the
//! administrator need not look up and enter these values, and segments of another cluster are detected.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::SegmentSize;
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError, Identity, LAYOUT_VERSION};
use crate::encryption::{Encryption, KEYS, SUFFIX};
use crate::inventory::snapshot::Snapshot;
use crate::objects::documents;
use crate::objects::name::{BACKUP, HISTORY, IDENTITY, Object, WAL};
use crate::objects::object::Finding;
use crate::restore::get;
use crate::store::{Cause, StoreError};

/// Maximum number of objects to read, evenly spread. Reading all objects of a large archive could take an
/// hour, during which nothing is archived. `verify` compares all objects.
const MAX_ASKED: usize = 4096;
/// Number of objects read concurrently.
const READERS: usize = 16;

/// A rewritten `archive.json` and its evidence.
#[derive(Clone, PartialEq, Debug)]
pub struct Rewritten {
    /// Content of the new `archive.json`.
    pub identity: Identity,
    /// Number of objects with segments.
    pub objects: u64,
    /// Number of objects that were read.
    pub asked: u64,
    /// Number of read objects that agree with the new content. The other objects do not state a cluster.
    pub agreeing: u64,
    /// The damaged objects, which cannot be compared.
    pub unreadable: Vec<Finding>,
}

/// Reasons for not writing `archive.json`. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// `archive.json` exists and is valid.
    #[error(
        "{IDENTITY} in {location} is not lost: it names cluster {}, segments of {} MB", identity.system_identifier,
        identity.segment_bytes >> 20
    )]
    NotLost {
        /// Location of the archive.
        location: String,
        /// The content of the existing `archive.json`.
        identity: Box<Identity>,
    },
    /// `archive.json` exists but is invalid.
    #[error("cannot write {IDENTITY} in {location}: expected none, found one that cannot be used: {problem}")]
    Damaged {
        /// Location of the archive.
        location: String,
        /// The problem.
        problem: String,
    },
    /// Objects are encrypted, but the keys are missing. A new `archive.json` would make the archive plain.
    #[error(
        "cannot write {IDENTITY} in {location}: expected keys in {KEYS}, as {object} is encrypted, found none"
    )]
    NoKeys {
        /// Location of the archive.
        location: String,
        /// Key of an encrypted object.
        object: String,
    },
    /// Keys exist, but no object is encrypted. A new `archive.json` would make all objects unreadable.
    #[error(
        "cannot write {IDENTITY} in {location}: expected encrypted objects, as there are keys in {KEYS}, found {object} and none that is \
         encrypted"
    )]
    NotEncrypted {
        /// Location of the archive.
        location: String,
        /// Key of a plain object.
        object: String,
    },
    /// No segment states its cluster.
    #[error(
        "cannot write {IDENTITY} in {location}: expected segments that identify their cluster, found none in {asked} objects{problem}"
    )]
    Silent {
        /// Location of the archive.
        location: String,
        /// Number of objects that were read.
        asked: u64,
        /// The problem of the first object, if it is damaged.
        problem: String,
    },
    /// Segments state different clusters or sizes.
    #[error(
        "cannot write {IDENTITY} in {location}: expected segments of one cluster and size, found {found}"
    )]
    Different {
        /// Location of the archive.
        location: String,
        /// The statements.
        found: String,
    },
    /// Another process concurrently wrote a different `archive.json`.
    #[error(
        "cannot write {IDENTITY} in {location}: another process wrote one at the same time, and it contradicts the segments"
    )]
    Changed {
        /// Location of the archive.
        location: String,
    },
}

walden_format::diagnostics! { RepairError {
    Self::Archive(error) => of(error),
    Self::NotLost { .. } => "repair-not-lost": "nothing was changed; walden archive verify compares all segments with it",
    Self::Damaged { .. } => "repair-damaged": "nothing is overwritten: --from URL writes it again from another copy of the archive; if there is none, move it out of the \
         archive, and run repair again",
    Self::NoKeys { .. } => "repair-no-keys": "restore the folder keys/ from another copy of the archive: objects encrypted to lost keys cannot be read",
    Self::NotEncrypted { .. } => "repair-not-encrypted": "an archive is encrypted from its creation or not at all: if keys/ belongs to another archive, move it out of this one, and run repair again",
    Self::Silent { .. } => "repair-no-evidence": "\"If archive.json is lost\" in docs/archive-reference.md in the archive says how to write it by hand",
    Self::Different { .. } => "repair-several-clusters": "pg_controldata shows the system identifier of the server: move the objects of the other cluster out of the archive, and run repair again",
    Self::Changed { .. } => "repair-changed": "find out which process did; walden archive verify lists the segments that differ from it",
} }

/// Writes a lost `archive.json`. An existing one is never replaced, whatever its content.
///
/// An encrypted archive requires a user's private key to read the summaries.
///
/// # Errors
/// `archive.json` exists, segments disagree or state nothing, keys are missing, or the store failed.
pub fn rewrite_identity(archive: &Archive) -> Result<Rewritten, RepairError> {
    expect_lost(archive)?;
    rewrite(archive, None)
}

/// Writes a lost or damaged `archive.json` again, with the cluster and segment size of another copy of the
/// archive. `archive.json` is damaged if it is invalid, or if all segments agree with the other copy instead.
/// Segments must not contradict the new `archive.json`. Returns `None` if the existing `archive.json` is
/// intact.
///
/// A damaged one is removed first, and put back if the new one is not written.
///
/// # Errors
/// The errors of [`rewrite_identity`], and the errors of `source`.
pub fn copy_identity(archive: &Archive, source: &Archive) -> Result<Option<Rewritten>, RepairError> {
    let (expected, own) = (source.identity()?, archive.afresh());
    match own.identity() {
        Ok(identity) if is_confirmed(&own, identity, expected)? => return Ok(None),
        Err(ArchiveError::Empty(_)) => return Ok(None),
        Ok(_) | Err(ArchiveError::Identity { .. }) => {}
        Err(_) => return own.identity().map(|_| None).map_err(Into::into),
    }
    let stored = archive.encrypted().inner();
    let invalid = match stored.read(IDENTITY) {
        Err(error) if error.cause == Cause::NotFound => None,
        other => Some(other.map_err(ArchiveError::from)?),
    };
    if let Some(layout) =
        invalid.as_deref().and_then(layout_of).filter(|&found| found > LAYOUT_VERSION.into())
    {
        let location = stored.location().to_owned();
        let problem = format!("expected layout {LAYOUT_VERSION} or older, found {layout}");
        return Err(RepairError::Damaged { location, problem });
    }
    if invalid.is_some() {
        stored.remove(IDENTITY).map_err(ArchiveError::from)?;
    }
    let rewritten = rewrite(&archive.afresh(), Some(expected));
    if let (Err(_), Some(invalid)) = (&rewritten, invalid) {
        // Has no effect if another process wrote a new `archive.json`. The error to report is the first one.
        let _ = stored.create(IDENTITY, &invalid);
    }
    rewritten.map(Some)
}

/// Returns whether the archive's own identity is valid: it equals the identity of the other copy, or the
/// archive's segments contradict the other copy, which then is no copy of this archive.
fn is_confirmed(archive: &Archive, own: &Identity, expected: &Identity) -> Result<bool, ArchiveError> {
    let claim = |identity: &Identity| (identity.system_identifier.clone(), identity.segment_bytes);
    if claim(own) == claim(expected) {
        return Ok(true);
    }
    archive.unlock()?;
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    let every = wal.objects.len().div_ceil(MAX_ASKED).max(1);
    let asked: Vec<(Object, u64)> = wal.objects.into_iter().step_by(every).collect();
    let Claims { claims, .. } = ask(archive, &asked)?;
    Ok(claims.is_empty() || claims.keys().any(|found| *found != claim(expected)))
}

/// Returns the layout that an `archive.json` states, if it is JSON.
fn layout_of(json: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(json).ok()?.get("walden_archive")?.as_u64()
}

/// Writes `archive.json` from the archive's segments, or from the identity of another copy.
fn rewrite(archive: &Archive, expected: Option<&Identity>) -> Result<Rewritten, RepairError> {
    let location = archive.store().location().to_owned();
    let encryption = encryption_of(archive)?;
    let archive = match &encryption {
        Some(Encryption { recipient }) => archive.encrypted_to(recipient)?,
        None => archive.afresh(),
    };
    archive.unlock()?;
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()]).map_err(ArchiveError::from)?;
    if wal.objects.is_empty() {
        // Either no archive exists, or no file was archived yet.
        archive.identity()?;
    }
    let objects = wal.objects.len();
    let every = objects.div_ceil(MAX_ASKED).max(1);
    let asked: Vec<(Object, u64)> = wal.objects.into_iter().step_by(every).collect();
    let Claims { mut claims, unreadable } = ask(&archive, &asked)?;
    if let Some(Identity { system_identifier, segment_bytes, .. }) = expected {
        let example = format!("{IDENTITY} of the other archive");
        let claim = claims.entry((system_identifier.clone(), *segment_bytes));
        claim.or_insert(Claim { objects: 0, example });
    }
    if claims.len() > 1 {
        return Err(RepairError::Different { location, found: describe(&claims) });
    }
    let Some(((system_identifier, segment_bytes), Claim { objects: agreeing, .. })) =
        claims.into_iter().next()
    else {
        let first = unreadable.first();
        let problem = first.map(|it| format!("; {}: {}", it.object, it.problem)).unwrap_or_default();
        return Err(RepairError::Silent { location, asked: asked.len() as u64, problem });
    };
    let identity = Identity { walden_archive: LAYOUT_VERSION, system_identifier, segment_bytes, encryption };
    write(&archive, &identity)?;
    if *archive.afresh().identity()? != identity {
        return Err(RepairError::Changed { location });
    }
    let (objects, asked) = (objects as u64, asked.len() as u64);
    Ok(Rewritten { identity, objects, asked, agreeing, unreadable })
}

/// Checks that no `archive.json` exists, valid or not.
fn expect_lost(archive: &Archive) -> Result<(), RepairError> {
    match archive.encrypted().inner().size(IDENTITY) {
        Err(error) if error.cause == Cause::NotFound => return Ok(()),
        other => other.map_err(ArchiveError::from)?,
    };
    let location = archive.store().location().to_owned();
    match archive.identity() {
        Ok(identity) => Err(RepairError::NotLost { location, identity: Box::new(identity.clone()) }),
        Err(ArchiveError::Identity { problem, .. }) => Err(RepairError::Damaged { location, problem }),
        Err(error) => Err(error.into()),
    }
}

/// Determines the encryption from the archive's keys, and checks that the names of its objects agree. A wrong
/// `archive.json` would make existing objects unreadable, or new objects would be stored in plain.
fn encryption_of(archive: &Archive) -> Result<Option<Encryption>, RepairError> {
    let (location, encrypted) = (archive.store().location().to_owned(), archive.encrypted());
    let (mut sealed, mut plain) = (None, None);
    for prefix in [WAL, HISTORY, BACKUP] {
        let listed = encrypted.inner().list(prefix, &mut |listed| {
            let found = match listed.key.strip_suffix(SUFFIX) {
                Some(key) if Object::parse_key(key).is_some() => &mut sealed,
                None if Object::parse_key(&listed.key).is_some() => &mut plain,
                _ => return,
            };
            if found.is_none() {
                *found = Some(listed.key);
            }
        });
        listed.map_err(ArchiveError::from)?;
    }
    let recipients = || -> Result<Option<String>, StoreError> {
        // Also checks the recipient that the configuration requires.
        encrypted.recipient()?;
        encrypted.oldest_recipient()
    };
    let recipient = match (encrypted.is_encrypted().map_err(ArchiveError::from)?, sealed, plain) {
        (false, Some(object), _) => return Err(RepairError::NoKeys { location, object }),
        (true, None, Some(object)) => return Err(RepairError::NotEncrypted { location, object }),
        _ => recipients().map_err(ArchiveError::from)?,
    };
    Ok(recipient.map(|recipient| Encryption { recipient }))
}

/// The clusters that segments state.
struct Claims {
    /// By system identifier and segment size in bytes.
    claims: BTreeMap<(String, u64), Claim>,
    unreadable: Vec<Finding>,
}

/// The objects that make the same statement.
struct Claim {
    objects: u64,
    /// Stored name of one of these objects.
    example: String,
}

fn ask(archive: &Archive, asked: &[(Object, u64)]) -> Result<Claims, ArchiveError> {
    let mut found = Claims { claims: BTreeMap::new(), unreadable: Vec::new() };
    let read = |&(object, bytes): &(Object, u64)| get::read_contents(archive, object, bytes);
    for ((object, _), contents) in asked.iter().zip(workers::map_in_order(asked, READERS, read)) {
        let name = archive.stored_name(&object.key());
        let contents = match contents {
            Err(error) if error.is_damage() => {
                found.unreadable.push(Finding { object: name, problem: error_text(&error) });
                continue;
            }
            other => other?,
        };
        let said: BTreeSet<(String, u64)> =
            contents.into_iter().map(|it| (it.system_identifier, it.segment_bytes)).collect();
        for (system_identifier, segment_bytes) in said {
            if system_identifier.parse::<u64>().is_err() || SegmentSize::new(segment_bytes).is_none() {
                let problem = format!(
                    "expected a system identifier and a segment size of PostgreSQL, found \"{system_identifier}\" and {segment_bytes} bytes"
                );
                found.unreadable.push(Finding { object: name.clone(), problem });
                continue;
            }
            let claim = found.claims.entry((system_identifier, segment_bytes));
            claim.or_insert_with(|| Claim { objects: 0, example: name.clone() }).objects += 1;
        }
    }
    Ok(found)
}

fn describe(claims: &BTreeMap<(String, u64), Claim>) -> String {
    let describe = |((system_identifier, bytes), claim): (&(String, u64), &Claim)| {
        let Claim { objects, example } = claim;
        format!("{objects} of cluster {system_identifier} with segments of {} MB ({example})", bytes >> 20)
    };
    claims.iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// Writes `archive.json` unless another process has done so.
fn write(archive: &Archive, identity: &Identity) -> Result<(), ArchiveError> {
    let json = serde_json::to_vec_pretty(identity).unwrap_or_default();
    // The README may be lost too. As in a new archive, it is written before `archive.json`.
    documents::store(archive.encrypted().inner())?;
    archive.store().create(IDENTITY, &json)?;
    Ok(archive.store().make_durable(IDENTITY)?)
}
