//! An archive: a store with the WAL of one cluster.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::encryption::{Encrypted, Encryption, KeyOptions};
use crate::history::History;
use crate::objects::check::{Checked, RESET_HINT};
use crate::objects::contents::Contents;
use crate::objects::documents;
use crate::objects::name::{ArchivedFile, HISTORY, IDENTITY, Object, WAL, log_prefix};
use crate::objects::object::{self, ObjectError};
use crate::store::{Cause, Created, Listed, NOT_MOUNTED, Store, StoreError};

/// Placeholder for the hash of an encrypted file that no private key decrypts.
const UNKNOWN_HASH: &str = "unknown without a private key";

/// Version of the archive's layout.
pub const LAYOUT_VERSION: u32 = 1;

/// Identity of the archive's cluster; the content of `archive.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Layout version.
    pub walden_archive: u32,
    /// System identifier of the cluster, as text: JSON numbers are not exact at this size.
    pub system_identifier: String,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Encryption of the objects, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
}

impl Identity {
    fn new(system_id: u64, segment_size: SegmentSize) -> Identity {
        Identity {
            walden_archive: LAYOUT_VERSION,
            system_identifier: system_id.to_string(),
            segment_bytes: segment_size.bytes(),
            encryption: None,
        }
    }
}

/// The positions and times that an archive has of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where the first segment starts.
    pub start: Lsn,
    /// Where the last segment ends.
    pub end: Lsn,
    /// When the first and the last transaction ended, in microseconds since 1970-01-01 00:00:00 UTC; `None`
    /// if none did, or if the summaries that have it cannot be read.
    pub times: Option<(i64, i64)>,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.start, self.end)?;
        let text = |micros: i64| match Timestamp::from_second(micros.div_euclid(1_000_000)) {
            Ok(time) => time.to_string(),
            Err(_) => format!("{micros} \u{b5}s since 1970"),
        };
        match self.times {
            Some((first, last)) => {
                write!(f, ", with transactions that ended from {} to {}", text(first), text(last))
            }
            None => Ok(()),
        }
    }
}

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// An operation on the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object cannot be decoded or encoded.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The location has no archive.
    #[error("cannot find an archive in {0}: expected {IDENTITY} there, found none")]
    Missing(String),
    /// The archive was created, but does not belong to a cluster yet.
    #[error("nothing was archived yet in {0}")]
    Empty(String),
    /// The archive lacks the requested segments.
    #[error(
        "cannot find segments in {location}: expected some along timeline {timeline} in the range, found none{}",
        .extent.map_or_else(String::new, |extent| format!("; the archive has {extent}"))
    )]
    NoSegments {
        /// Location of the archive.
        location: String,
        /// Timeline that was followed.
        timeline: Timeline,
        /// The extent of the archive along that timeline.
        extent: Option<Extent>,
    },
    /// `archive.json` cannot be read.
    #[error("cannot read {IDENTITY} in {location}: {problem}")]
    Identity {
        /// Location of the archive.
        location: String,
        /// Problem.
        problem: String,
    },
    /// The file belongs to another cluster.
    #[error(
        "the archive in {location} belongs to another cluster: expected system identifier {expected}, found {found} in the file"
    )]
    OtherCluster {
        /// Location of the archive.
        location: String,
        /// System identifier of the archive.
        expected: String,
        /// System identifier of the file.
        found: String,
    },
    /// A segment in this archive does not continue the WAL of the cluster's other archives.
    #[error("segment {name} in {location} does not continue the WAL of the other repositories: {problem}")]
    OtherHistory {
        /// Name of the segment.
        name: String,
        /// Location of its archive.
        location: String,
        /// The link that is wrong.
        problem: String,
    },
    /// A file, server or base backup has another segment size than the archive.
    #[error(
        "the archive in {location} has segments of {} MB, found segments of {} MB in the file, server or base backup", expected >> 20, found >> 20
    )]
    OtherSegmentSize {
        /// Location of the archive.
        location: String,
        /// Segment size of the archive in bytes.
        expected: u64,
        /// The other segment size in bytes.
        found: u64,
    },
    /// The name is archived already, in an object that cannot be read for comparison.
    #[error("{name} is archived already, in an object that cannot be read")]
    DamagedBefore {
        /// Name of the archived file.
        name: String,
        /// Problem with the object.
        #[source]
        source: Box<ArchiveError>,
    },
    /// The name is archived already with other content.
    #[error(
        "{name} is archived already with other content in {location}: BLAKE3 {} there, {offered} in the file offered now",
        archived.as_deref().unwrap_or(UNKNOWN_HASH)
    )]
    Conflict {
        /// Name of the archived file.
        name: String,
        /// Location of the archive.
        location: String,
        /// Hash of the archived content; `None` if it is encrypted and no private key decrypts it.
        archived: Option<String>,
        /// Hash of the offered content.
        offered: String,
    },
    /// The name is archived already with other content, and the offered file starts where `pg_resetwal`
    /// restarted the WAL.
    #[error(
        "{name} starts with a pg_resetwal checkpoint at {at}: a shutdown checkpoint without a previous record (xl_prev 0/00000000)"
    )]
    Reset {
        /// Name of the archived file.
        name: String,
        /// LSN of the checkpoint.
        at: Lsn,
        /// Conflict with the archived file.
        #[source]
        conflict: Box<ArchiveError>,
    },
    /// The name is archived already with other content, which was archived despite damage.
    #[error("the archived file {name} is damaged, and was accepted as damaged when it was archived")]
    DamageAccepted {
        /// Name of the archived file.
        name: String,
        /// Conflict with the archived file.
        #[source]
        conflict: Box<ArchiveError>,
    },
}

impl ArchiveError {
    /// Names `pg_resetwal` as the cause of a conflict if the offered file starts where it restarted the WAL.
    pub(crate) fn with_reset(self, file: ArchivedFile, offered: &Checked) -> ArchiveError {
        let reset_at = offered.contents.as_ref().and_then(Contents::reset_at);
        match (self, reset_at) {
            (conflict @ ArchiveError::Conflict { .. }, Some(at)) => {
                ArchiveError::Reset { name: file.to_string(), at, conflict: Box::new(conflict) }
            }
            (other, _) => other,
        }
    }

    /// Returns the store's error if the store failed, including while an object was decoded.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            ArchiveError::Store(error) => Some(error),
            ArchiveError::Object(error) => error.store_error(),
            _ => None,
        }
    }

    /// Returns whether a requested object is missing; another object may have its content by now.
    pub fn is_not_found(&self) -> bool {
        self.store_error().is_some_and(|error| error.cause == Cause::NotFound)
    }

    /// Returns whether the archive is encrypted and its keys are missing.
    pub(crate) fn has_missing_keys(&self) -> bool {
        self.store_error().is_some_and(|error| error.cause == Cause::KeysMissing)
    }

    /// Returns whether the object is damaged: its bytes differ from the archived bytes, or it can never be
    /// decrypted because it is encrypted to a public key that is not the archive's, or because keys of the
    /// archive are lost. A private key that is merely not configured is no damage.
    pub fn is_damage(&self) -> bool {
        match (self.store_error(), self) {
            (Some(error), _) => {
                matches!(error.cause, Cause::Damaged | Cause::ForeignKey | Cause::KeysDamaged)
            }
            (None, ArchiveError::Object(_) | ArchiveError::DamagedBefore { .. }) => true,
            (None, _) => false,
        }
    }

    /// Returns whether an object is unreadable because of keys, not because of its bytes.
    fn is_key_error(&self) -> bool {
        let cause = self.store_error().map(|error| error.cause);
        matches!(cause, Some(Cause::ForeignKey | Cause::KeysDamaged))
    }
}

walden_format::diagnostics! { ArchiveError {
    Self::Store(error) => of(error),
    Self::Object(error) => of(error),
    Self::Missing(location) if location.contains("://") => "archive-missing" as "no_archive": "check the URL, its prefix, and the endpoint in walden.toml or the environment; walden archive init and import create an archive; push, serve and receive never do",
    Self::Missing(_) => "archive-missing" as "no_archive": NOT_MOUNTED,
    Self::Empty(_) => "archive-empty" as "nothing_archived",
    Self::NoSegments { .. } => "archive-no-segments" as "no_segments": "walden archive list shows timelines and their segments",
    Self::Identity { .. } => "archive-identity" as "damaged_identity": "walden archive repair --from URL writes it again from another copy of the archive; if there is none, walden archive repair rewrites it from the segments",
    Self::OtherCluster { .. } => "archive-other-cluster" as "other_cluster": "give each cluster its own archive; pg_upgrade creates a new cluster",
    Self::OtherHistory { .. } => "archive-other-history" as "conflict": "two servers wrote the same timeline, and the repositories have the WAL of both: stop the server that must not archive, and restore only from the repository of the other server (--repo URL); repair or copy only between repositories of one history",
    Self::OtherSegmentSize { .. } => "archive-other-segment-size" as "other_segment_size": "after a change of the segment size (pg_resetwal --wal-segsize), the same names denote other WAL positions: give the cluster a new archive, and take a new base backup",
    Self::DamagedBefore { source, .. } if source.is_key_error() => of(source) as "damaged_object",
    Self::DamagedBefore { .. } => "archive-damaged-before" as "damaged_object": "nothing was overwritten, and the offered file still exists. Move the damaged object out of the archive; the next attempt then archives the file. If the object is a pack (.wpk), first copy its other segments with walden archive get. walden archive verify lists all other damage",
    Self::DamageAccepted { .. } => "archive-damage-accepted" as "conflict": "nothing was overwritten. The archived file was accepted with --accept-damaged: if the offered file is an intact copy, move the archived object out of the archive; the next attempt then archives the file",
    Self::Reset { .. } => "archive-reset" as "conflict": RESET_HINT,
    Self::Conflict { archived: None, .. } => "archive-conflict" as "conflict": "nothing was overwritten. If the segment ends with a switch, or its timeline was left in it, possibly only unused bytes after that differ, which is harmless: set identity in walden.toml to a private key, and push compares only the WAL. Otherwise two servers write the same timeline: find out which one is the primary and stop the other from archiving",
    Self::Conflict { .. } => "archive-conflict" as "conflict": "nothing was overwritten. Two servers write the same timeline: find out which one is the primary and stop the other from archiving",
} }

/// The WAL of one cluster in a store. Clones share the store.
#[derive(Clone)]
pub struct Archive {
    store: Arc<Encrypted>,
    identity: OnceLock<Identity>,
}

impl Archive {
    /// Opens an archive in a store without reading anything yet.
    pub fn new(store: Box<dyn Store>) -> Archive {
        Archive::with_keys(store, KeyOptions::default())
    }

    /// Opens an archive, encrypted or not, in a store.
    pub fn with_keys(store: Box<dyn Store>, keys: KeyOptions) -> Archive {
        Archive { store: Arc::new(Encrypted::new(store, keys)), identity: OnceLock::new() }
    }

    /// Returns the same archive as if it were opened now, without its cached identity: the location may have
    /// been unmounted or replaced.
    pub fn afresh(&self) -> Archive {
        Archive { store: Arc::new(self.store.afresh()), identity: OnceLock::new() }
    }

    /// Returns the same archive, treated as encrypted to `recipient` since its creation: for an archive that
    /// has lost its `archive.json`.
    pub(crate) fn encrypted_to(&self, recipient: &str) -> Result<Archive, ArchiveError> {
        Ok(Archive { store: Arc::new(self.store.encrypted_to(recipient)?), identity: OnceLock::new() })
    }

    /// Returns the store with decrypted objects.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns an object's name in the store, for messages: an encrypted object has a longer name than its
    /// key.
    pub fn stored_name(&self, key: &str) -> String {
        self.store.stored_name(key)
    }

    /// Returns the store and its keys.
    pub fn encrypted(&self) -> &Encrypted {
        &self.store
    }

    /// Checks that objects can be read before many are requested: an encrypted archive needs a user's private
    /// key.
    ///
    /// # Errors
    /// [`Cause::Locked`] and [`Cause::WrongIdentity`], and errors of the store.
    pub fn unlock(&self) -> Result<(), ArchiveError> {
        Ok(self.store.unlock()?)
    }

    /// Returns the name of this archive's file next to a server's segments: the prefix, and a hash of the
    /// location.
    pub(crate) fn name_beside_segments(&self, prefix: &str) -> String {
        let place = blake3::hash(self.store.location().as_bytes());
        format!("{prefix}{}", &place.to_hex()[..16])
    }

    /// Returns the store, for users that outlive a borrow of the archive.
    pub fn shared_store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Creates the place of a new archive.
    ///
    /// Only commands given by a user do this: `init` and `import`. A process that archives on its own cannot
    /// distinguish a new archive from an unmounted file system, and would acknowledge segments that disappear
    /// under the mount point.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn make_root(&self) -> Result<(), ArchiveError> {
        Ok(self.store.inner().make_root()?)
    }

    /// Creates the location, as [`Archive::make_root`] does, and an archive there, which a cluster can then
    /// claim.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn create(&self) -> Result<(), ArchiveError> {
        self.make_root()?;
        Ok(documents::store(self.store.inner())?)
    }

    /// Assigns a new archive to a cluster, or confirms that the archive belongs to this cluster.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`] if the location has no archive, [`ArchiveError::OtherCluster`],
    /// [`ArchiveError::OtherSegmentSize`], and errors of the store.
    pub fn claim(&self, system_id: u64, segment_size: SegmentSize) -> Result<(), ArchiveError> {
        let own = Identity::new(system_id, segment_size);
        let identity = match self.identity() {
            Err(ArchiveError::Empty(_)) => {
                let encryption = self.store.recipient()?.map(|recipient| Encryption { recipient });
                let own = Identity { encryption, ..own.clone() };
                let json = serde_json::to_vec_pretty(&own).unwrap_or_default();
                // Written before the object that makes this an archive; afterwards, their absence would go
                // unnoticed.
                documents::store(&*self.store)?;
                match self.store.create(IDENTITY, &json)? {
                    Created::New => own,
                    Created::Exists => self.identity()?.clone(),
                }
            }
            other => other?.clone(),
        };
        self.compare_identity(&identity, system_id, segment_size)
    }

    /// Confirms that the archive belongs to a cluster with segments of this size, or to no cluster yet.
    ///
    /// # Errors
    /// The errors of [`Archive::claim`].
    pub fn expect_segments_of(&self, system_id: u64, segment_size: SegmentSize) -> Result<(), ArchiveError> {
        match self.identity() {
            Err(ArchiveError::Empty(_)) => Ok(()),
            other => self.compare_identity(other?, system_id, segment_size),
        }
    }

    /// Confirms that the archive has segments of this size, or none yet.
    ///
    /// # Errors
    /// [`ArchiveError::OtherSegmentSize`], and errors of the store.
    pub fn expect_segment_bytes(&self, found: u64) -> Result<(), ArchiveError> {
        match self.identity() {
            Err(ArchiveError::Empty(_)) => Ok(()),
            other => self.compare_segment_bytes(other?, found),
        }
    }

    fn compare_identity(
        &self,
        identity: &Identity,
        system_id: u64,
        segment_size: SegmentSize,
    ) -> Result<(), ArchiveError> {
        self.compare_cluster(identity, system_id)?;
        self.compare_segment_bytes(identity, segment_size.bytes())
    }

    fn compare_segment_bytes(&self, identity: &Identity, found: u64) -> Result<(), ArchiveError> {
        let expected = identity.segment_bytes;
        if expected == found {
            return Ok(());
        }
        Err(ArchiveError::OtherSegmentSize { location: self.store.location().to_owned(), expected, found })
    }

    /// Confirms that the archive belongs to a cluster, or to none yet.
    ///
    /// # Errors
    /// [`ArchiveError::OtherCluster`], and errors of the store.
    pub fn expect_cluster(&self, system_id: u64) -> Result<(), ArchiveError> {
        match self.identity() {
            Err(ArchiveError::Empty(_)) => Ok(()),
            other => self.compare_cluster(other?, system_id),
        }
    }

    fn compare_cluster(&self, identity: &Identity, system_id: u64) -> Result<(), ArchiveError> {
        let (expected, found) = (identity.system_identifier.clone(), system_id.to_string());
        if expected == found {
            return Ok(());
        }
        Err(ArchiveError::OtherCluster { location: self.store.location().to_owned(), expected, found })
    }

    /// Returns the identity of the archive's cluster.
    ///
    /// # Errors
    /// [`ArchiveError::Empty`] if nothing was archived yet, [`ArchiveError::Missing`] if the location has no
    /// archive, and errors of the store.
    pub fn identity(&self) -> Result<&Identity, ArchiveError> {
        if let Some(identity) = self.identity.get() {
            return Ok(identity);
        }
        let location = || self.store.location().to_owned();
        let read = || match self.store.read(IDENTITY) {
            Err(error) if error.cause == Cause::NotFound => Ok(None),
            other => other.map(Some),
        };
        let problem = |problem: String| ArchiveError::Identity { location: location(), problem };
        let json = match read()? {
            Some(json) => json,
            None => {
                self.expect_founded(location())?;
                let mut is_empty = true;
                self.store.list(WAL, &mut |_| is_empty = false)?;
                if is_empty {
                    return Err(ArchiveError::Empty(location()));
                }
                // archive.json is stored before any segment: another process may have stored both after the
                // first read. Otherwise archive.json is lost.
                read()?.ok_or_else(|| {
                    problem("expected archive.json next to the segments, found none".to_owned())
                })?
            }
        };
        if json.is_empty() {
            return Err(problem(
                "expected the archive's identity, found an empty object of 0 bytes".to_owned(),
            ));
        }
        let identity: Identity = serde_json::from_slice(&json).map_err(|error| problem(error.to_string()))?;
        if identity.walden_archive > LAYOUT_VERSION {
            let found = identity.walden_archive;
            return Err(problem(format!("expected layout {LAYOUT_VERSION} or older, found {found}")));
        }
        Ok(self.identity.get_or_init(|| identity))
    }

    /// Returns the cluster's segment size.
    ///
    /// # Errors
    /// The errors of [`Archive::identity`], and a size that PostgreSQL does not support.
    pub fn segment_size(&self) -> Result<SegmentSize, ArchiveError> {
        let bytes = self.identity()?.segment_bytes;
        SegmentSize::new(bytes).ok_or_else(|| ArchiveError::Identity {
            location: self.store.location().to_owned(),
            problem: format!("expected a segment size of PostgreSQL, found {bytes} bytes"),
        })
    }

    /// Confirms by the known sizes of some segments that segments have the size stated in `archive.json`. A
    /// single object that differs from the others is itself damaged.
    ///
    /// # Errors
    /// [`ArchiveError::Identity`] if no segment has the stated size, and as [`Archive::segment_size`].
    pub(crate) fn expect_size_of<'c>(
        &self,
        segments: impl IntoIterator<Item = &'c Contents>,
    ) -> Result<(), ArchiveError> {
        let bytes = self.segment_size()?.bytes();
        let mut differs = None;
        for contents in segments {
            if contents.segment_bytes == bytes {
                return Ok(());
            }
            differs = Some(contents.segment_bytes);
        }
        let Some(expected) = differs else { return Ok(()) };
        Err(ArchiveError::Identity {
            location: self.store.location().to_owned(),
            problem: format!(
                "expected segments of {expected} bytes, the size in the archive, found {bytes} bytes"
            ),
        })
    }

    /// Returns the cluster's segment size in bytes, if it is cached.
    pub(crate) fn known_segment_bytes(&self) -> Option<u64> {
        Some(SegmentSize::new(self.identity.get()?.segment_bytes)?.bytes())
    }

    /// Returns the system identifier of the archive's cluster; `None` if `archive.json` cannot be read or
    /// states none.
    pub(crate) fn known_system_id(&self) -> Option<u64> {
        self.identity().ok()?.system_identifier.parse().ok()
    }

    /// Checks that the archive exists, even if it is empty. Without an archive, for example in a folder whose
    /// file system is not mounted, a file that is not found cannot count as missing.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], and errors of the store.
    pub fn expect_archive(&self) -> Result<(), ArchiveError> {
        match self.identity() {
            // Created, but nothing has been pushed.
            Err(ArchiveError::Empty(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Checks that an archive still exists, as [`Encrypted::expect_archive`].
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], and errors of the store.
    pub(crate) fn expect_still_there(&self) -> Result<(), ArchiveError> {
        match self.store.expect_archive("read") {
            Err(error) if error.cause == Cause::NoArchive => Err(ArchiveError::Missing(error.location)),
            other => Ok(other?),
        }
    }

    fn expect_founded(&self, location: String) -> Result<(), ArchiveError> {
        match self.store.size(documents::README) {
            Err(error) if error.cause == Cause::NotFound => Err(ArchiveError::Missing(location)),
            other => Ok(other.map(drop)?),
        }
    }

    /// Lists the objects with segments of the same timeline and WAL file prefix as `name`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn segments_beside(&self, name: SegmentName) -> Result<LogListing, ArchiveError> {
        let mut listing = LogListing::default();
        self.store.list(&log_prefix(name), &mut |listed| listing.add(listed))?;
        Ok(listing)
    }

    /// Finds a file's object: its own, or a pack. Names are exact: a segment is never returned for a backup
    /// history file.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn find(&self, file: ArchivedFile) -> Result<Option<(Object, u64)>, ArchiveError> {
        match (self.find_in_one_listing(file)?, file) {
            // A pack exists before its segments' own objects are removed. A listing that started before that
            // may see neither, but the second one cannot.
            (None, ArchivedFile::Segment(_)) => self.find_in_one_listing(file),
            (found, _) => Ok(found),
        }
    }

    /// Finds a file's object in one listing, which may miss a segment that is being packed.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn find_in_one_listing(
        &self,
        file: ArchivedFile,
    ) -> Result<Option<(Object, u64)>, ArchiveError> {
        match self.store.size(&file.key()) {
            Ok(bytes) => return Ok(Some((Object::File(file), bytes))),
            Err(error) if error.cause == Cause::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let ArchivedFile::Segment(name) = file else { return Ok(None) };
        Ok(self.segments_beside(name)?.find(file))
    }

    /// Finds both the segment's own object and a pack that contains it: an interrupted run of `pack` leaves
    /// both.
    pub(crate) fn find_duplicate(&self, file: ArchivedFile) -> Option<[(Object, u64); 2]> {
        let ArchivedFile::Segment(name) = file else { return None };
        let listing = self.segments_beside(name).ok()?;
        let own = Object::File(file);
        Some([(own, *listing.objects.get(&own)?), listing.find_pack(name)?])
    }

    /// Reads the histories of all timelines, by timeline.
    ///
    /// # Errors
    /// Errors of the store, and a history that cannot be decoded.
    pub fn histories(&self) -> Result<BTreeMap<Timeline, History>, ArchiveError> {
        let (histories, damaged) = self.undamaged_histories()?;
        damaged.into_iter().next().map_or(Ok(histories), |(_, error)| Err(error))
    }

    /// Reads the histories that can be decoded, by timeline, and the keys of all other histories, each with
    /// its problem.
    ///
    /// # Errors
    /// Errors of the store.
    #[expect(clippy::type_complexity, reason = "taken apart where it is called")]
    pub(crate) fn undamaged_histories(
        &self,
    ) -> Result<(BTreeMap<Timeline, History>, Vec<(String, ArchiveError)>), ArchiveError> {
        let mut found = Vec::new();
        self.store.list(HISTORY, &mut |listed| found.push(listed))?;
        let (mut histories, mut damaged) = (BTreeMap::new(), Vec::new());
        for listed in found {
            let Some(Object::File(file @ ArchivedFile::History(timeline))) = Object::parse_key(&listed.key)
            else {
                continue;
            };
            let mut text = Vec::new();
            let read = self.store.read(&listed.key).map_err(ArchiveError::from);
            match read.and_then(|object| Ok(object::decode(file, &object, &mut text)?)) {
                Ok(_) => {}
                Err(error) if error.is_damage() => {
                    damaged.push((listed.key, error));
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Ok(history) = History::parse(timeline, &text) {
                histories.insert(timeline, history);
            }
        }
        Ok((histories, damaged))
    }
}

/// Listings of the archive, read on demand: each 4 GB of a timeline are listed once.
#[derive(Default)]
pub(crate) struct LogListings {
    /// By prefix.
    listings: BTreeMap<String, LogListing>,
}

impl LogListings {
    /// Finds the object that contains a segment, and the object's size in bytes.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn find(
        &mut self,
        archive: &Archive,
        name: SegmentName,
    ) -> Result<Option<(Object, u64)>, ArchiveError> {
        let listing = match self.listings.entry(log_prefix(name)) {
            Entry::Occupied(listing) => listing.into_mut(),
            Entry::Vacant(free) => free.insert(archive.segments_beside(name)?),
        };
        Ok(listing.find(ArchivedFile::Segment(name)))
    }

    /// Adds a segment's own object, stored after the listing.
    pub fn add(&mut self, name: SegmentName, bytes: u64) {
        if let Some(listing) = self.listings.get_mut(&log_prefix(name)) {
            listing.add(Listed { key: ArchivedFile::Segment(name).key(), bytes, stored: None });
        }
    }
}

/// The archived objects of 4 GB of a timeline.
#[derive(Clone, Default, Debug)]
pub struct LogListing {
    objects: BTreeMap<Object, u64>,
}

impl LogListing {
    pub(crate) fn add(&mut self, listed: Listed) {
        if let Some(object) = Object::parse_key(&listed.key) {
            self.objects.insert(object, listed.bytes);
        }
    }

    /// Returns a file's own object, or a pack that contains it, and the object's size in bytes.
    pub fn find(&self, file: ArchivedFile) -> Option<(Object, u64)> {
        let own = Object::File(file);
        if let Some(&bytes) = self.objects.get(&own) {
            return Some((own, bytes));
        }
        let ArchivedFile::Segment(name) = file else { return None };
        self.find_pack(name)
    }

    fn find_pack(&self, name: SegmentName) -> Option<(Object, u64)> {
        let holds = |object: &Object| matches!(object, Object::Pack(pack) if pack.contains(name));
        self.objects.iter().find(|(object, _)| holds(object)).map(|(&object, &bytes)| (object, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Folder;

    #[test]
    fn only_a_folder_may_be_that_of_a_file_system_that_is_not_mounted() {
        for (place, is_folder) in [("/backup/main", true), ("s3://backups/empty", false)] {
            let hint = ArchiveError::Missing(place.to_owned()).hint().unwrap();
            assert_eq!((hint.contains("mount"), hint.contains("URL, its prefix")), (is_folder, !is_folder));
            assert!(hint.contains("walden archive init"));
        }
    }

    /// Other versions and processes must find the files under these names.
    #[test]
    fn the_names_beside_the_segments_stay_as_they_are() {
        let archive = |place: &str| Archive::new(Box::new(Folder::new(place)));
        let name = |place| archive(place).name_beside_segments("walden-ahead-");
        assert_eq!(name("/backup/main"), "walden-ahead-4a5646968e75afe9");
        assert_ne!(name("/backup/main/"), name("/backup/main"));
    }
}
