//! Versions of objects and their locks, in stores that keep them.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::StoreError;

/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// Who may shorten a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Users with a special right.
    #[default]
    Governance,
    /// Nobody.
    Compliance,
}

impl LockMode {
    /// Returns the name in requests.
    pub fn name(self) -> &'static str {
        match self {
            LockMode::Governance => "GOVERNANCE",
            LockMode::Compliance => "COMPLIANCE",
        }
    }

    /// Parses the name in answers.
    pub fn parse(name: &str) -> Option<LockMode> {
        [LockMode::Governance, LockMode::Compliance].into_iter().find(|mode| mode.name() == name)
    }
}

/// How long stored objects are locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRule {
    /// Who may shorten the lock.
    pub mode: LockMode,
    /// Days since the object was stored.
    pub days: u32,
}

impl LockRule {
    /// Returns the end of a lock that starts now.
    pub fn end(self) -> Timestamp {
        self.end_after(1, 1)
    }

    /// Returns the earliest end at which a lock need not be extended: half of its time from now. So an object
    /// needs two requests per period of the rule.
    pub fn renewal(self) -> Timestamp {
        self.end_after(1, 2)
    }

    fn end_after(self, share: i64, of: i64) -> Timestamp {
        let seconds = i64::from(self.days) * DAY * share / of;
        let now = Timestamp::now().as_second();
        Timestamp::from_second(now.saturating_add(seconds)).unwrap_or(Timestamp::MAX)
    }
}

/// The lock of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Who may shorten it.
    pub mode: LockMode,
    /// When it ends.
    pub until: Timestamp,
}

/// A bucket's protection against changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Protection {
    /// The bucket keeps earlier versions of changed and deleted objects.
    pub has_versions: bool,
    /// The bucket can lock versions.
    pub has_object_lock: bool,
    /// The bucket's rule for objects that state no lock themselves.
    pub default: Option<LockRule>,
}

/// A version of an object, or a delete marker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// The version's identifier.
    pub id: String,
    /// The version is a delete marker: it hides the versions before it.
    pub is_marker: bool,
    /// Size in bytes.
    pub bytes: u64,
    /// The store's tag of the content. Equal tags mean equal contents, if the sizes are equal too.
    pub tag: String,
    /// When the version was stored, as the store's text.
    pub stored: String,
}

/// Why a store keeps an object that Walden removes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// When the object's lock ends; `None` if it has none.
    pub until: Option<Timestamp>,
    /// The store's answer.
    pub problem: String,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until {
            Some(until) => write!(f, "locked until {until}"),
            None => write!(f, "these credentials may not remove it: {}", self.problem),
        }
    }
}

/// A store that keeps versions of its objects.
pub trait Versioned: Sync {
    /// Returns the configured rule for new objects.
    fn rule(&self) -> Option<LockRule>;

    /// Returns the bucket's protection.
    ///
    /// # Errors
    /// The store's errors, also that these credentials may not read it.
    fn protection(&self) -> Result<Protection, StoreError>;

    /// Calls `visit` with each key that starts with `prefix` and its versions, the newest first.
    ///
    /// # Errors
    /// The error that left the listing incomplete.
    fn versions(&self, prefix: &str, visit: &mut dyn FnMut(String, Vec<Version>)) -> Result<(), StoreError>;

    /// Reads a version.
    ///
    /// # Errors
    /// Like [`super::Store::read`].
    fn read_version(&self, key: &str, version: &Version) -> Result<Vec<u8>, StoreError>;

    /// Stores a version on top of the existing ones, which stay.
    ///
    /// # Errors
    /// The error that prevented storing it.
    fn add_version(&self, key: &str, content: &[u8]) -> Result<(), StoreError>;

    /// Removes a version for good, or returns why the store keeps it.
    ///
    /// # Errors
    /// The error that prevented the removal.
    fn remove_version(&self, key: &str, id: &str) -> Result<Option<Kept>, StoreError>;

    /// Returns the lock of an object's current version.
    ///
    /// # Errors
    /// Like [`super::Store::size`].
    fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError>;

    /// Locks an object's current version.
    ///
    /// # Errors
    /// The error that prevented it. A lock cannot be shortened.
    fn set_lock(&self, key: &str, lock: Lock) -> Result<(), StoreError>;
}
