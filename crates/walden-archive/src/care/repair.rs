//! `archive.json` where it is lost: written anew, from what the archived segments say of themselves.
//!
//! Each object of a segment has in its summary of which cluster that is, and how large. So nobody has to find these numbers out and type
//! them, and numbers of another cluster are noticed.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::SegmentSize;
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError, Identity, LAYOUT_VERSION};
use crate::encryption::{Encryption, KEYS, SUFFIX};
use crate::inventory::snapshot::Snapshot;
use crate::out::get;
use crate::store::{Cause, StoreError};
use crate::stored::documents;
use crate::stored::name::{BACKUP, HISTORY, IDENTITY, Object, WAL};
use crate::stored::object::Finding;

/// Objects that are asked at most, evenly spread: all of a large archive would take an hour, in which nothing is archived. `verify`
/// compares all.
const MAX_ASKED: usize = 4096;
/// Objects that are asked at the same time.
const READERS: usize = 16;

/// An `archive.json` that was written, and what it was made from.
#[derive(Clone, PartialEq, Debug)]
pub struct Rewritten {
    /// What it says.
    pub identity: Identity,
    /// Objects that hold segments.
    pub objects: u64,
    /// Those that were asked.
    pub asked: u64,
    /// Those of them that say the same. The others say nothing.
    pub agreeing: u64,
    /// Those of the others that are damaged.
    pub unreadable: Vec<Finding>,
}

/// Why `archive.json` was not written. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The archive's.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// It is there.
    #[error(
        "{IDENTITY} in {location} is not lost: it says cluster {}, segments of {} MB", identity.system_identifier,
        identity.segment_bytes >> 20
    )]
    NotLost {
        /// Where the archive is.
        location: String,
        /// What it says.
        identity: Box<Identity>,
    },
    /// It is there, and cannot be read.
    #[error("cannot write {IDENTITY} in {location}: expected none, found one that cannot be used: {problem}")]
    Damaged {
        /// Where the archive is.
        location: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Objects are encrypted, and there are no keys: a plain archive would be made of it.
    #[error(
        "cannot write {IDENTITY} in {location}: expected keys in {KEYS}, as {object} is encrypted, found none"
    )]
    NoKeys {
        /// Where the archive is.
        location: String,
        /// One of the objects.
        object: String,
    },
    /// There are keys, and no object is encrypted: nothing could be read any more.
    #[error(
        "cannot write {IDENTITY} in {location}: expected encrypted objects, as there are keys in {KEYS}, found {object} and none that is \
         encrypted"
    )]
    NotEncrypted {
        /// Where the archive is.
        location: String,
        /// One of the objects.
        object: String,
    },
    /// No segment says whose it is.
    #[error(
        "cannot write {IDENTITY} in {location}: expected segments that say of which cluster they are, found none in {asked} objects{problem}"
    )]
    Silent {
        /// Where the archive is.
        location: String,
        /// Objects that were asked.
        asked: u64,
        /// What is wrong with the first of them, if it is damaged.
        problem: String,
    },
    /// Segments say different things.
    #[error(
        "cannot write {IDENTITY} in {location}: expected segments of one cluster and size, found {found}"
    )]
    Different {
        /// Where the archive is.
        location: String,
        /// What they say.
        found: String,
    },
    /// Somebody else has written another one at the same moment.
    #[error(
        "cannot write {IDENTITY} in {location}: somebody else has written one at the same moment, and it says something else than the segments"
    )]
    Changed {
        /// Where the archive is.
        location: String,
    },
}

impl RepairError {
    /// What the user can do about it; that of [`RepairError::Archive`] depends on what it is.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            RepairError::Archive(error) => return error.hint(),
            RepairError::NotLost { .. } => {
                "nothing was changed; walden archive verify compares all segments with what it says"
            }
            RepairError::Damaged { .. } => {
                "nothing is overwritten: put archive.json back from another copy of the archive; if there is none, move it out of the \
                 archive, and repair again"
            }
            RepairError::NoKeys { .. } => {
                "put the folder keys/ back from another copy of the archive: what is encrypted to keys that are gone, nobody can read"
            }
            RepairError::NotEncrypted { .. } => {
                "an archive is encrypted from its beginning or not at all: if keys/ is another archive's, move it out of this one, and repair \
                 again"
            }
            RepairError::Silent { .. } => {
                "\"If archive.json is lost\" in docs/archive.md in the archive says how to write it by hand"
            }
            RepairError::Different { .. } => {
                "pg_controldata says of which cluster the server is: move the objects of the other one out of the archive, and repair again"
            }
            RepairError::Changed { .. } => {
                "find out who did; walden archive verify says which segments differ from it"
            }
        })
    }
}

/// Writes `archive.json` where it is lost. One that is there is never replaced, whatever it says.
///
/// An encrypted archive takes the private key of a user, as its segments are asked.
///
/// # Errors
/// An archive that has it, segments that do not agree or say nothing, keys that are missing, and the store's.
pub fn rewrite_identity(archive: &Archive) -> Result<Rewritten, RepairError> {
    let location = archive.store().location().to_owned();
    expect_lost(archive)?;
    let encryption = encryption_of(archive)?;
    let archive = match &encryption {
        Some(Encryption { recipient }) => archive.encrypted_to(recipient)?,
        None => archive.afresh(),
    };
    archive.unlock()?;
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()]).map_err(ArchiveError::from)?;
    if wal.objects.is_empty() {
        // There is no archive, or nothing was archived in it yet.
        archive.identity()?;
    }
    let objects = wal.objects.len();
    let every = objects.div_ceil(MAX_ASKED).max(1);
    let asked: Vec<(Object, u64)> = wal.objects.into_iter().step_by(every).collect();
    let Claims { claims, unreadable } = ask(&archive, &asked)?;
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

/// Makes sure that there is no `archive.json`, be it a good one or not.
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

/// How the archive is encrypted, by its keys. The names of its objects have to show the same: with an `archive.json` that says something
/// else, nobody could read them, and what is archived next would be stored in plain.
fn encryption_of(archive: &Archive) -> Result<Option<Encryption>, RepairError> {
    let (location, encrypted) = (archive.store().location().to_owned(), archive.encrypted());
    let (mut sealed, mut plain) = (None, None);
    for prefix in [WAL, HISTORY, BACKUP] {
        let listed = encrypted.inner().list(prefix, &mut |listed| {
            let found = match listed.key.strip_suffix(SUFFIX) {
                Some(key) if Object::of_key(key).is_some() => &mut sealed,
                None if Object::of_key(&listed.key).is_some() => &mut plain,
                _ => return,
            };
            if found.is_none() {
                *found = Some(listed.key);
            }
        });
        listed.map_err(ArchiveError::from)?;
    }
    let recipients = || -> Result<Option<String>, StoreError> {
        // What the configuration demands is asked as well.
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

/// What segments say of which cluster they are.
struct Claims {
    /// By system identifier and bytes of a segment.
    claims: BTreeMap<(String, u64), Claim>,
    unreadable: Vec<Finding>,
}

/// What several objects say.
struct Claim {
    objects: u64,
    /// One of them, as it is stored.
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

/// Writes `archive.json`, unless somebody else has done so meanwhile.
fn write(archive: &Archive, identity: &Identity) -> Result<(), ArchiveError> {
    let json = serde_json::to_vec_pretty(identity).unwrap_or_default();
    // The README may be lost as well: as where an archive is made, before what makes it one.
    documents::store(archive.store())?;
    archive.store().create(IDENTITY, &json)?;
    Ok(archive.store().make_durable(IDENTITY)?)
}
