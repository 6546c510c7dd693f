//! Extends the locks of objects that are still needed, and finds locks that protect too little.
//!
//! An object is locked for a number of days from its push. A base backup can need it for longer, so a regular
//! run of `prune` or `lock` extends the locks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError};
use crate::base_backups::BASE;
use crate::encryption::{KEYS, SUFFIX};
use crate::inventory::gaps::GAPS;
use crate::inventory::snapshot::Snapshot;
use crate::maintenance::backup;
use crate::objects::documents::DOCUMENTS;
use crate::objects::name::{ArchivedFile, BACKUP, HISTORY, IDENTITY, Object, PackName, WAL};
use crate::objects::object::Finding;
use crate::store::versions::{Lock, LockMode, LockRule, Versioned};
use crate::store::{Cause, StoreError};

/// Number of locks that are read or extended concurrently.
const WORKERS: usize = 16;
/// Maximum number of problems that a report lists.
const MAX_PROBLEMS: usize = 16;
/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// Result of extending locks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Extended {
    /// Number of objects that are needed.
    pub objects: u64,
    /// Number of objects whose locks were extended.
    pub extended: u64,
    /// When the new locks end, in microseconds since 1970-01-01 00:00:00 UTC.
    pub until: i64,
    /// Number of objects whose locks could not be read or extended.
    pub failed: u64,
    /// The first objects whose locks could not be read or extended, at most 16.
    pub problems: Vec<Finding>,
}

impl Extended {
    /// Describes the locks that were not extended.
    pub fn failure_text(&self) -> String {
        let first =
            self.problems.first().map_or(String::new(), |it| format!("{}: {}", it.object, it.problem));
        format!("{} of {} locks could not be extended; the first: {first}", self.failed, self.objects)
    }
}

/// Returns the configured rule for the archive's objects.
pub fn rule(archive: &Archive) -> Option<LockRule> {
    archive.encrypted().inner().versioned()?.rule()
}

/// Returns the configured lock rule, or the bucket's default rule if none is configured.
///
/// # Errors
/// Errors of the store.
pub fn effective_rule(archive: &Archive) -> Result<Option<LockRule>, ArchiveError> {
    let Some(versioned) = archive.encrypted().inner().versioned() else { return Ok(None) };
    match versioned.rule() {
        Some(rule) => Ok(Some(rule)),
        None => Ok(versioned.protection()?.default),
    }
}

/// Extends the locks of all objects that `is_needed` selects by their names in the store: locks that end
/// before half of the rule's time end after its full time then. Objects whose segments are in a pack too are
/// not needed, and neither are earlier generations of keys.
///
/// # Errors
/// The archive cannot be listed. A lock that cannot be extended is reported.
pub fn extend(
    archive: &Archive,
    rule: LockRule,
    is_needed: impl Fn(&str) -> bool,
) -> Result<Extended, ArchiveError> {
    let Some(versioned) = archive.encrypted().inner().versioned() else { return Ok(Extended::default()) };
    let mut keys = lasting_keys(archive)?;
    keys.retain(|key| is_needed(key));
    let (renewal, until) = (rule.renewal(), rule.end());
    let mut report =
        Extended { objects: keys.len() as u64, until: until.as_microsecond(), ..Extended::default() };
    let extend = |key: &String| extend_one(versioned, key, rule.mode, renewal, until);
    for (key, result) in keys.iter().zip(workers::map_in_order(&keys, WORKERS, extend)) {
        match result {
            Ok(is_extended) => report.extended += u64::from(is_extended),
            // Packed or pruned in the meantime.
            Err(error) if error.cause == Cause::NotFound => report.objects -= 1,
            Err(error) => {
                report.failed += 1;
                if report.problems.len() < MAX_PROBLEMS {
                    report.problems.push(Finding { object: key.clone(), problem: error_text(&error) });
                }
            }
        }
    }
    Ok(report)
}

/// Extends a lock unless it ends late enough. Returns whether it was extended.
fn extend_one(
    versioned: &dyn Versioned,
    key: &str,
    mode: LockMode,
    renewal: Timestamp,
    until: Timestamp,
) -> Result<bool, StoreError> {
    let known = versioned.lock(key)?;
    if known.is_some_and(|lock| lock.until >= renewal) {
        return Ok(false);
    }
    // A lock in compliance mode keeps it until it ends.
    let is_strict =
        known.is_some_and(|lock| lock.mode == LockMode::Compliance && lock.until > Timestamp::now());
    let mode = if is_strict { LockMode::Compliance } else { mode };
    versioned.set_lock(key, Lock { mode, until })?;
    Ok(true)
}

/// Returns the names, in the store, of the objects that are locked.
fn lasting_keys(archive: &Archive) -> Result<Vec<String>, ArchiveError> {
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?.objects;
    let packs: BTreeMap<_, PackName> = wal
        .keys()
        .filter_map(|object| match object {
            Object::Pack(pack) => Some((pack.first, *pack)),
            Object::File(_) => None,
        })
        .collect();
    let is_packed = |object: Object| match object {
        Object::File(ArchivedFile::Segment(name)) => {
            packs.range(..=name).next_back().is_some_and(|(_, pack)| pack.contains(name))
        }
        Object::Pack(own) => {
            packs.range(..=own.first).next_back().is_some_and(|(_, pack)| pack.replaces(own))
        }
        Object::File(_) => false,
    };
    let mut keys: Vec<String> = Vec::new();
    let inner = archive.encrypted().inner();
    for prefix in [WAL, HISTORY, BACKUP, BASE, GAPS] {
        inner.list(prefix, &mut |listed| {
            let key = listed.key.strip_suffix(SUFFIX).unwrap_or(&listed.key);
            if !Object::parse_key(key).is_some_and(is_packed) {
                keys.push(listed.key);
            }
        })?;
    }
    let generation = |key: &str| key.strip_prefix(KEYS)?.split('.').next()?.parse::<u32>().ok();
    let mut generations = Vec::new();
    inner.list(KEYS, &mut |listed| generations.push(listed.key))?;
    let newest = generations.iter().filter_map(|key| generation(key)).max();
    keys.extend(generations.into_iter().filter(|key| generation(key) == newest));
    keys.push(IDENTITY.to_owned());
    keys.extend(DOCUMENTS.iter().map(|(key, _)| (*key).to_owned()));
    Ok(keys)
}

/// A lock that protects less than it should.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Weakness {
    /// The bucket keeps no versions: objects can be overwritten and deleted.
    NoVersions,
    /// The bucket cannot lock objects.
    NoObjectLock,
    /// The bucket can lock objects, but no rule does.
    NoRule,
    /// The rule locks objects for fewer days than pass between base backups.
    Short {
        /// Number of days of the rule.
        days: u32,
        /// Days between two successive base backups.
        between: i64,
    },
    /// WAL that the oldest base backup needs is not locked, or hardly any more.
    Ends {
        /// Name of the backup.
        backup: String,
        /// Name of the object in the store.
        object: String,
        /// When its lock ends or ended; `None` if it has none.
        until: Option<Timestamp>,
    },
}

/// The locks of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// The rule that locks objects, configured here or in the bucket.
    pub rule: Option<LockRule>,
    /// What it does not protect.
    pub weaknesses: Vec<Weakness>,
}

/// Returns the rule that locks the archive's objects, and its weaknesses. Returns `None` if nothing asks for
/// locks.
///
/// # Errors
/// Errors of the store. Without `lock_days`, missing rights to read the bucket's protection are no
/// error.
pub fn inspect(archive: &Archive) -> Result<Option<Inspected>, ArchiveError> {
    let Some(versioned) = archive.encrypted().inner().versioned() else { return Ok(None) };
    let protection = match versioned.protection() {
        Err(error) if versioned.rule().is_none() && error.cause != Cause::Unavailable => return Ok(None),
        other => other?,
    };
    let rule = versioned.rule().or(protection.default);
    if rule.is_none() && !protection.has_object_lock {
        return Ok(None);
    }
    let mut found = Vec::new();
    if !protection.has_versions {
        found.push(Weakness::NoVersions);
    }
    if !protection.has_object_lock {
        found.push(Weakness::NoObjectLock);
    }
    match rule {
        None => found.push(Weakness::NoRule),
        Some(rule) if found.is_empty() => found.extend(weaknesses(archive, versioned, rule)?),
        Some(_) => {}
    }
    Ok(Some(Inspected { rule, weaknesses: found }))
}

/// Compares the locks with the base backups that the archive knows.
fn weaknesses(
    archive: &Archive,
    versioned: &dyn Versioned,
    rule: LockRule,
) -> Result<Vec<Weakness>, ArchiveError> {
    let size = match archive.segment_size() {
        Err(ArchiveError::Empty(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let mut backups = match backup::archived(archive, size) {
        // Without a private key, the backups of an encrypted archive are unknown.
        Err(error) if error.store_error().is_some_and(|error| error.cause.is_of_identity()) => Vec::new(),
        other => other?,
    };
    let mut found = Vec::new();
    let mut times: Vec<i64> = backups.iter().filter_map(|backup| backup.time).collect();
    times.sort_unstable();
    let between = times.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000 / DAY).max();
    if let Some(between) = between.filter(|&between| between > i64::from(rule.days)) {
        found.push(Weakness::Short { days: rule.days, between });
    }
    backups.sort_by_key(|backup| backup.start().1);
    for backup in &backups {
        let (timeline, start) = backup.start();
        let segment = walden_format::lsn::SegmentName::new(timeline, size.segment_of(start), size);
        let Some((object, _)) = archive.find(ArchivedFile::Segment(segment))? else { continue };
        let object = archive.stored_name(&object.key());
        let until = versioned.lock(&object)?.map(|lock| lock.until);
        let soon = Timestamp::now().as_second() + DAY;
        if until.is_none_or(|until| until.as_second() < soon) {
            found.push(Weakness::Ends { backup: backup.name.clone(), object, until });
        }
        break;
    }
    Ok(found)
}
