//! An archive: a store with the log of one cluster in it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::encryption::{Encrypted, Encryption, KeyOptions};
use crate::history::History;
use crate::store::{Cause, Created, Listed, Store, StoreError};
use crate::stored::check::{Checked, RESET_HINT};
use crate::stored::contents::Contents;
use crate::stored::documents;
use crate::stored::name::{ArchivedFile, HISTORY, IDENTITY, Object, WAL, log_prefix};
use crate::stored::object::{self, ObjectError};

/// What stands for the hash of a file that is archived encrypted, where no private key opens it.
const UNKNOWN_HASH: &str = "unknown without a private key";

/// The version of the archive's layout.
pub const LAYOUT_VERSION: u32 = 1;

/// Which cluster's archive it is; the content of `archive.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The layout's version.
    pub walden_archive: u32,
    /// The cluster's system identifier, as text: JSON numbers are not exact at this size.
    pub system_identifier: String,
    /// Bytes of its segments.
    pub segment_bytes: u64,
    /// How its objects are encrypted, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
}

impl Identity {
    fn of(system_id: u64, segment_size: SegmentSize) -> Identity {
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
    /// When the first and the last transaction ended, in microseconds since 1970-01-01 00:00:00 UTC; `None` if none did, or if the
    /// summaries that have it cannot be read.
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
pub enum ArchiveError {
    /// An operation on the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object cannot be decoded or encoded.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// There is no archive at the place.
    #[error("cannot find an archive in {0}: expected {IDENTITY} there, found none")]
    Missing(String),
    /// The archive was made, and has nothing in it that says whose it is.
    #[error("nothing was archived yet in {0}")]
    Empty(String),
    /// It has no segments where some are wanted.
    #[error(
        "cannot find segments in {location}: expected some along timeline {timeline} in the range, found none{}",
        .extent.map_or_else(String::new, |extent| format!("; the archive has {extent}"))
    )]
    NoSegments {
        /// Where the archive is.
        location: String,
        /// The timeline that was followed.
        timeline: Timeline,
        /// The extent of the archive along that timeline.
        extent: Option<Extent>,
    },
    /// `archive.json` cannot be read.
    #[error("cannot read {IDENTITY} in {location}: {problem}")]
    Identity {
        /// Where the archive is.
        location: String,
        /// What is wrong.
        problem: String,
    },
    /// The file is another cluster's.
    #[error(
        "another cluster's archive is in {location}: expected system identifier {expected}, found {found} in the file"
    )]
    OtherCluster {
        /// Where the archive is.
        location: String,
        /// The archive's system identifier.
        expected: String,
        /// The file's.
        found: String,
    },
    /// The segments of a file, server or base backup have another size than the archive's.
    #[error(
        "the archive in {location} has segments of another size: expected {} MB, as there, found {} MB", expected >> 20, found >> 20
    )]
    OtherSegmentSize {
        /// Where the archive is.
        location: String,
        /// Bytes of the archive's segments.
        expected: u64,
        /// Bytes of the others.
        found: u64,
    },
    /// The name is archived already, in an object that cannot be compared with.
    #[error("{name} is archived already, in an object that cannot be read")]
    DamagedBefore {
        /// The archived file's name.
        name: String,
        /// What is wrong with the object.
        #[source]
        source: Box<ArchiveError>,
    },
    /// The name has another content already.
    #[error(
        "{name} is archived already with other content in {location}: BLAKE3 {} there, {offered} in the file offered now",
        archived.as_deref().unwrap_or(UNKNOWN_HASH)
    )]
    Conflict {
        /// The archived file's name.
        name: String,
        /// Where the archive is.
        location: String,
        /// The hash of what is archived; nothing if it is encrypted, and no private key opens it.
        archived: Option<String>,
        /// The hash of what was offered.
        offered: String,
    },
    /// The name has another content already, and the offered file starts with what `pg_resetwal` wrote.
    #[error(
        "{name} starts with the shutdown checkpoint without a previous record (xl_prev 0/00000000), at {at}, with which pg_resetwal starts the WAL again"
    )]
    Reset {
        /// The archived file's name.
        name: String,
        /// Where the checkpoint is.
        at: Lsn,
        /// The conflict with the archived file.
        #[source]
        conflict: Box<ArchiveError>,
    },
    /// The name has another content already, whose damage was accepted when it was archived.
    #[error("{name} was archived although it is damaged")]
    DamageAccepted {
        /// The archived file's name.
        name: String,
        /// The conflict with it.
        #[source]
        conflict: Box<ArchiveError>,
    },
}

impl ArchiveError {
    /// The cause in a word, for logs and metrics.
    pub fn cause(&self) -> &'static str {
        if let Some(error) = self.store_error() {
            return error.cause.word();
        }
        match self {
            ArchiveError::Store(_) | ArchiveError::Object(_) => "damaged_object",
            ArchiveError::Missing(_) => "no_archive",
            ArchiveError::Empty(_) => "nothing_archived",
            ArchiveError::Identity { .. } => "damaged_identity",
            ArchiveError::OtherCluster { .. } => "other_cluster",
            ArchiveError::OtherSegmentSize { .. } => "other_segment_size",
            ArchiveError::NoSegments { .. } => "no_segments",
            ArchiveError::DamagedBefore { .. } => "damaged_object",
            ArchiveError::Conflict { .. }
            | ArchiveError::Reset { .. }
            | ArchiveError::DamageAccepted { .. } => "conflict",
        }
    }

    /// Names `pg_resetwal` as the cause of a conflict if the offered file starts where it started the WAL
    /// again.
    pub(crate) fn with_reset(self, file: ArchivedFile, offered: &Checked) -> ArchiveError {
        let reset_at = offered.contents.as_ref().and_then(Contents::reset_at);
        match (self, reset_at) {
            (conflict @ ArchiveError::Conflict { .. }, Some(at)) => {
                ArchiveError::Reset { name: file.to_string(), at, conflict: Box::new(conflict) }
            }
            (other, _) => other,
        }
    }

    /// The store's error, if the store is what failed, also while an object was decoded.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            ArchiveError::Store(error) => Some(error),
            ArchiveError::Object(error) => error.store_error(),
            _ => None,
        }
    }

    /// Whether an object was asked for that is not there: what it held may be in another one by now.
    pub fn is_not_found(&self) -> bool {
        self.store_error().is_some_and(|error| error.cause == Cause::NotFound)
    }

    /// Whether the archive is encrypted, and the keys that are asked for are not there.
    pub(crate) fn is_for_want_of_keys(&self) -> bool {
        self.store_error().is_some_and(|error| error.cause == Cause::KeysMissing)
    }

    /// Whether an object is not as it was stored, and the store did give it; or is encrypted so that nobody can read it, with whatever
    /// private key.
    pub fn is_damage(&self) -> bool {
        match (self.store_error(), self) {
            (Some(error), _) => {
                matches!(error.cause, Cause::Damaged | Cause::ForeignKey | Cause::KeysDamaged)
            }
            (None, ArchiveError::Object(_) | ArchiveError::DamagedBefore { .. }) => true,
            (None, _) => false,
        }
    }

    /// Whether keys are what an object cannot be read for, and not its bytes.
    fn is_of_keys(&self) -> bool {
        let cause = self.store_error().map(|error| error.cause);
        matches!(cause, Some(Cause::ForeignKey | Cause::KeysDamaged))
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        if let Some(error) = self.store_error() {
            return error.hint();
        }
        match self {
            ArchiveError::Store(_) | ArchiveError::Object(_) => {
                Some("walden archive verify says what else is damaged")
            }
            ArchiveError::Missing(location) if location.contains("://") => Some(
                "check the URL, its prefix, and the endpoint in walden.toml or the environment; walden archive init and import create an archive; push, serve and receive never do",
            ),
            ArchiveError::Missing(_) => Some(
                "mount the file system if it is not mounted, or check the path or URL; walden archive init and import create an archive; push, serve and receive never do",
            ),
            ArchiveError::Empty(_) => None,
            ArchiveError::NoSegments { .. } => Some("walden archive list shows timelines and their segments"),
            ArchiveError::Identity { .. } => Some(
                "restore the object from another copy of the archive; if there is none, walden archive repair writes it anew, from what the segments say",
            ),
            ArchiveError::OtherCluster { .. } => {
                Some("give each cluster an archive of its own; after pg_upgrade a cluster is a new one")
            }
            ArchiveError::OtherSegmentSize { .. } => Some(
                "with another segment size (pg_resetwal --wal-segsize) the same names stand for other positions: give the cluster a new archive, and take a new base backup",
            ),
            ArchiveError::DamagedBefore { source, .. } if source.is_of_keys() => source.hint(),
            ArchiveError::DamagedBefore { .. } => Some(
                "nothing was overwritten, and the file that is offered is still there: move the damaged object out of the archive, and the file is archived when it is offered again. A pack (.wpk) holds other segments too: copy from it what walden archive get can still read first. walden archive verify says what else is damaged",
            ),
            ArchiveError::DamageAccepted { .. } => Some(
                "nothing was overwritten. What is archived was taken by --accept-damaged: if the file that is offered is a good copy of it, move the archived object out of the archive, and the file is archived when it is offered again",
            ),
            ArchiveError::Reset { .. } => Some(RESET_HINT),
            ArchiveError::Conflict { archived: None, .. } => Some(
                "nothing was overwritten. If it ends with a switch, or its timeline was left in it, servers may have other bytes behind that, which is no harm; without a private key nobody can tell, unless what is archived has zeros there: with identity in walden.toml, push compares the WAL alone. Else two servers write the same timeline: find out which one is the primary and stop the other from archiving",
            ),
            ArchiveError::Conflict { .. } => Some(
                "nothing was overwritten. Two servers write the same timeline: find out which one is the primary and stop the other from archiving",
            ),
        }
    }
}

/// The log of one cluster in a store. Clones share the store.
#[derive(Clone)]
pub struct Archive {
    store: Arc<Encrypted>,
    identity: OnceLock<Identity>,
}

impl Archive {
    /// Uses what is in a store, which is looked at when it is needed.
    pub fn new(store: Box<dyn Store>) -> Archive {
        Archive::with_keys(store, KeyOptions::default())
    }

    /// Uses what is in a store, encrypted or not.
    pub fn with_keys(store: Box<dyn Store>, keys: KeyOptions) -> Archive {
        Archive { store: Arc::new(Encrypted::new(store, keys)), identity: OnceLock::new() }
    }

    /// The same archive as if it were opened now: what it said of itself is asked again, as the place may have been unmounted or
    /// replaced since.
    pub fn afresh(&self) -> Archive {
        Archive { store: Arc::new(self.store.afresh()), identity: OnceLock::new() }
    }

    /// The same archive, as one that was encrypted to this recipient from its beginning: for one that has lost its `archive.json`.
    pub(crate) fn encrypted_to(&self, recipient: &str) -> Result<Archive, ArchiveError> {
        Ok(Archive { store: Arc::new(self.store.encrypted_to(recipient)?), identity: OnceLock::new() })
    }

    /// The store, with objects as they were before encryption.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The name that an object has in the store, for people: that of an encrypted one is longer than its key.
    pub fn stored_name(&self, key: &str) -> String {
        self.store.stored_name(key)
    }

    /// The store and its keys.
    pub fn encrypted(&self) -> &Encrypted {
        &self.store
    }

    /// Makes sure that objects can be read before many of them are: an encrypted archive needs the private key of a user.
    ///
    /// # Errors
    /// [`Cause::Locked`] and [`Cause::WrongIdentity`], and the store's.
    pub fn unlock(&self) -> Result<(), ArchiveError> {
        Ok(self.store.unlock()?)
    }

    /// The name of what lies beside a server's segments for this archive: the prefix, and a hash of the archive's place.
    pub(crate) fn name_beside_segments(&self, prefix: &str) -> String {
        let place = blake3::hash(self.store.location().as_bytes());
        format!("{prefix}{}", &place.to_hex()[..16])
    }

    /// The store, for what outlives a borrow of the archive.
    pub fn shared_store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Makes an archive of a place that has none: from then on a cluster can claim it.
    ///
    /// Only commands that people give do this: `init` and `import`. What archives on its own cannot tell a new archive from one whose file
    /// system is not mounted, and would acknowledge segments that disappear under the mount point.
    ///
    /// # Errors
    /// The store's.
    pub fn found(&self) -> Result<(), ArchiveError> {
        Ok(documents::store(&*self.store)?)
    }

    /// Makes an archive that was founded a cluster's, or confirms that it is.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`] in a place that has no archive, [`ArchiveError::OtherCluster`],
    /// [`ArchiveError::OtherSegmentSize`], and the store's.
    pub fn claim(&self, system_id: u64, segment_size: SegmentSize) -> Result<(), ArchiveError> {
        let own = Identity::of(system_id, segment_size);
        let identity = match self.identity() {
            Err(ArchiveError::Empty(_)) => {
                let encryption = self.store.recipient()?.map(|recipient| Encryption { recipient });
                let own = Identity { encryption, ..own.clone() };
                let json = serde_json::to_vec_pretty(&own).unwrap_or_default();
                // Before the object that makes it an archive: afterwards nobody would notice that they are missing.
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

    /// Confirms that the archive is a cluster's with segments of this size, or no cluster's yet.
    ///
    /// # Errors
    /// As [`Archive::claim`].
    pub fn expect_segments_of(&self, system_id: u64, segment_size: SegmentSize) -> Result<(), ArchiveError> {
        match self.identity() {
            Err(ArchiveError::Empty(_)) => Ok(()),
            other => self.compare_identity(other?, system_id, segment_size),
        }
    }

    /// Confirms that the archive has segments of this size, or none yet.
    ///
    /// # Errors
    /// [`ArchiveError::OtherSegmentSize`], and the store's.
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

    /// Confirms that the archive is a cluster's, or no cluster's yet.
    ///
    /// # Errors
    /// [`ArchiveError::OtherCluster`], and the store's.
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

    /// Which cluster's archive it is.
    ///
    /// # Errors
    /// [`ArchiveError::Empty`] if nothing was archived yet, [`ArchiveError::Missing`] in a place that has no archive, and the store's.
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
                // archive.json is stored before any segment: another process may have stored both after our first read; else it is lost.
                read()?.ok_or_else(|| problem("expected it beside segments, found none".to_owned()))?
            }
        };
        if json.is_empty() {
            return Err(problem("expected whose archive it is, found an empty object of 0 bytes".to_owned()));
        }
        let identity: Identity = serde_json::from_slice(&json).map_err(|error| problem(error.to_string()))?;
        if identity.walden_archive > LAYOUT_VERSION {
            let found = identity.walden_archive;
            return Err(problem(format!("expected layout {LAYOUT_VERSION} or older, found {found}")));
        }
        Ok(self.identity.get_or_init(|| identity))
    }

    /// Bytes of the cluster's segments.
    ///
    /// # Errors
    /// As [`Archive::identity`], and a size that no cluster has.
    pub fn segment_size(&self) -> Result<SegmentSize, ArchiveError> {
        let bytes = self.identity()?.segment_bytes;
        SegmentSize::new(bytes).ok_or_else(|| ArchiveError::Identity {
            location: self.store.location().to_owned(),
            problem: format!("expected a segment size of PostgreSQL, found {bytes} bytes"),
        })
    }

    /// Confirms that segments have the size that `archive.json` states, by what is known of some of them. One object that differs from the
    /// others is damaged itself.
    ///
    /// # Errors
    /// [`ArchiveError::Identity`] if no segment has that size, and as [`Archive::segment_size`].
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
                "expected segments of {expected} bytes, as those in the archive, found {bytes} bytes"
            ),
        })
    }

    /// Bytes of the cluster's segments, if it is known already and needs no request.
    pub(crate) fn known_segment_bytes(&self) -> Option<u64> {
        Some(SegmentSize::new(self.identity.get()?.segment_bytes)?.bytes())
    }

    /// Makes sure that there is an archive, be there anything in it or not: what is not found in a place that has none, such as a
    /// folder whose file system is not mounted, is not known to be missing.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], and the store's.
    pub fn expect_archive(&self) -> Result<(), ArchiveError> {
        match self.identity() {
            // Set up, and nothing was pushed yet.
            Err(ArchiveError::Empty(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Makes sure that a place that had an archive still has it, without requests where nothing can have changed. What was stored in a folder
    /// is only in the archive if the archive is there afterwards: its file system may have been unmounted meanwhile.
    ///
    /// # Errors
    /// As [`Archive::expect_archive`].
    pub(crate) fn expect_still_there(&self) -> Result<(), ArchiveError> {
        if !self.store.can_be_unmounted() {
            return Ok(());
        }
        match self.store.size(IDENTITY) {
            // Nothing was archived yet.
            Err(error) if error.cause == Cause::NotFound => {
                self.expect_founded(self.store.location().to_owned())
            }
            other => Ok(other.map(drop)?),
        }
    }

    fn expect_founded(&self, location: String) -> Result<(), ArchiveError> {
        match self.store.size(documents::README) {
            Err(error) if error.cause == Cause::NotFound => Err(ArchiveError::Missing(location)),
            other => Ok(other.map(drop)?),
        }
    }

    /// The objects that hold segments of the timeline and log of `name`.
    ///
    /// # Errors
    /// The store's.
    pub fn segments_beside(&self, name: SegmentName) -> Result<LogListing, ArchiveError> {
        let mut listing = LogListing::default();
        self.store.list(&log_prefix(name), &mut |listed| listing.add(listed))?;
        Ok(listing)
    }

    /// Finds a file's object: of its own, or a pack. Names are exact: a segment never answers for a backup history file.
    ///
    /// # Errors
    /// The store's.
    pub fn find(&self, file: ArchivedFile) -> Result<Option<(Object, u64)>, ArchiveError> {
        match (self.find_in_one_listing(file)?, file) {
            // A pack is there before its segments' own objects are removed. A listing that was begun before that may have neither, as
            // the second one cannot.
            (None, ArchivedFile::Segment(_)) => self.find_in_one_listing(file),
            (found, _) => Ok(found),
        }
    }

    /// Finds a file's object in one listing, which may miss a segment that is packed meanwhile.
    ///
    /// # Errors
    /// The store's.
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

    /// The own object of a segment and the pack that has it, where both are there: a run of `pack` that was interrupted leaves both.
    pub(crate) fn find_duplicate(&self, file: ArchivedFile) -> Option<[(Object, u64); 2]> {
        let ArchivedFile::Segment(name) = file else { return None };
        let listing = self.segments_beside(name).ok()?;
        let own = Object::File(file);
        Some([(own, *listing.objects.get(&own)?), listing.find_pack(name)?])
    }

    /// The histories of all timelines, by timeline.
    ///
    /// # Errors
    /// The store's, and histories that cannot be decoded.
    pub fn histories(&self) -> Result<BTreeMap<Timeline, History>, ArchiveError> {
        let (histories, damaged) = self.undamaged_histories()?;
        damaged.into_iter().next().map_or(Ok(histories), |(_, error)| Err(error))
    }

    /// The histories that can be decoded, by timeline, and the keys of the other ones, each with what is wrong with it.
    ///
    /// # Errors
    /// The store's.
    #[expect(clippy::type_complexity, reason = "taken apart where it is called")]
    pub(crate) fn undamaged_histories(
        &self,
    ) -> Result<(BTreeMap<Timeline, History>, Vec<(String, ArchiveError)>), ArchiveError> {
        let mut found = Vec::new();
        self.store.list(HISTORY, &mut |listed| found.push(listed))?;
        let (mut histories, mut damaged) = (BTreeMap::new(), Vec::new());
        for listed in found {
            let Some(Object::File(file @ ArchivedFile::History(timeline))) = Object::of_key(&listed.key)
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

/// What is archived, as far as it was looked for: each 4 GB of a timeline are listed once.
#[derive(Default)]
pub(crate) struct LogListings {
    /// By prefix.
    listings: BTreeMap<String, LogListing>,
}

impl LogListings {
    /// The object that has a segment, and the object's bytes.
    ///
    /// # Errors
    /// The store's.
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

    /// Adds a segment's own object, which was stored since.
    pub fn add(&mut self, name: SegmentName, bytes: u64) {
        if let Some(listing) = self.listings.get_mut(&log_prefix(name)) {
            listing.add(Listed { key: ArchivedFile::Segment(name).key(), bytes });
        }
    }
}

/// What is archived of 4 GB of a timeline.
#[derive(Clone, Default, Debug)]
pub struct LogListing {
    objects: BTreeMap<Object, u64>,
}

impl LogListing {
    pub(crate) fn add(&mut self, listed: Listed) {
        if let Some(object) = Object::of_key(&listed.key) {
            self.objects.insert(object, listed.bytes);
        }
    }

    /// The object of a segment of its own or of a pack, and the object's bytes.
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

    /// Versions find what an earlier one left, and processes each other's.
    #[test]
    fn the_names_beside_the_segments_stay_as_they_are() {
        let archive = |place: &str| Archive::new(Box::new(Folder::new(place)));
        let name = |place| archive(place).name_beside_segments("walden-ahead-");
        assert_eq!(name("/backup/main"), "walden-ahead-4a5646968e75afe9");
        assert_ne!(name("/backup/main/"), name("/backup/main"));
    }
}
