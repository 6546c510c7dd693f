//! Stores the results of `verify`, one object for each run.
//!
//! ```text
//! verified/run-0000000017.json          a running number
//! verified/20261125001530123456.json    the time, as the first versions named them: before all numbers
//! ```
//!
//! Results are plain even in an encrypted archive, because monitoring has no private key. The first versions
//! encrypted them (`.json.age`).
//!
//! Runs are ordered by number, not by time, so that a run on a machine with a fast clock does not hide the
//! results of later runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use walden_format::lsn::{SegmentName, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::encryption::SUFFIX;
use crate::objects::contents::MinimalWal;
use crate::objects::name::VERIFIED;
use crate::store::{Cause, Created};

/// Number of results to keep.
const KEPT: usize = 16;

/// Maximum number of names of damaged objects that are kept.
pub const MAX_DAMAGED: usize = 1000;

/// The result of one run of `verify`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VerifiedAt {
    /// Time when the run ended, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
    /// The run only compared stored checksums and decoded nothing.
    #[serde(rename = "fast")]
    pub is_fast: bool,
    /// Number of objects that were read.
    pub objects: u64,
    /// Number of segments in these objects.
    pub segments: u64,
    /// Number of damaged objects.
    pub damaged: u64,
    /// Stored names of damaged objects, at most [`MAX_DAMAGED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged_objects: Vec<String>,
    /// Number of missing segments that were not acknowledged.
    pub missing_segments: u64,
    /// Number of segments whose PostgreSQL version Walden could not read.
    #[serde(default)]
    pub unknown_version_segments: u64,
    /// The newest segment of each timeline, in this run or an earlier run. The archive once had all segments
    /// up to the newest segment.
    #[serde(default)]
    pub newest_segments: Vec<String>,
    /// WAL of `wal_level = minimal` in the verified segments. A run that decoded no segment repeats the list
    /// of the previous run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub minimal_wal: Vec<MinimalWal>,
}

impl VerifiedAt {
    /// Returns the newest segments by timeline.
    pub(crate) fn newest_by_timeline(&self) -> BTreeMap<Timeline, SegmentName> {
        let segments = self.newest_segments.iter().filter_map(|name| SegmentName::parse(name));
        segments.map(|name| (name.timeline, name)).collect()
    }
}

/// Returns the result of the last run. A damaged or unreadable result counts as missing.
///
/// # Errors
/// Errors of the store.
pub(crate) fn last_readable(archive: &Archive) -> Result<Option<VerifiedAt>, ArchiveError> {
    match last(archive) {
        Err(error) if error.is_damage() => Ok(None),
        run => Ok(run?.found()),
    }
}

/// Returns the newest segment of each timeline that a run of `verify` has recorded.
///
/// # Errors
/// Errors of the store.
pub(crate) fn newest_segments(archive: &Archive) -> Result<BTreeMap<Timeline, SegmentName>, ArchiveError> {
    Ok(last_readable(archive)?.map(|run| run.newest_by_timeline()).unwrap_or_default())
}

/// Stores the result of a run and removes old results.
///
/// # Errors
/// Errors of the store.
pub(crate) fn store(archive: &Archive, found: &VerifiedAt) -> Result<(), ArchiveError> {
    let json = serde_json::to_vec_pretty(found).unwrap_or_default();
    let mut number = next_number(&keys(archive)?);
    // Another run may end at the same moment.
    while archive.store().create(&key(number), &json)? == Created::Exists {
        number += 1;
    }
    let keys = keys(archive)?;
    let old = keys.len().saturating_sub(KEPT);
    for old in &keys[..old] {
        if archive.store().discard(old)?.is_some() {
            // Later objects are locked for longer.
            break;
        }
    }
    Ok(())
}

/// The last run of `verify`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LastRun {
    /// There was no run.
    None,
    /// The result of the last run.
    Found(VerifiedAt),
    /// The result is encrypted and cannot be decrypted: [`UNREADABLE`].
    Locked,
}

impl LastRun {
    /// Returns the result, if it is known.
    pub fn found(self) -> Option<VerifiedAt> {
        match self {
            LastRun::Found(found) => Some(found),
            LastRun::None | LastRun::Locked => None,
        }
    }
}

/// Notice for [`LastRun::Locked`].
pub const UNREADABLE: &str = "verification results cannot be read without a private key";

/// Returns the result of the last run.
///
/// # Errors
/// Errors of the store.
pub fn last(archive: &Archive) -> Result<LastRun, ArchiveError> {
    for key in keys(archive)?.iter().rev() {
        let content = match key.strip_suffix(SUFFIX) {
            Some(key) => archive.encrypted().read_sealed(key),
            None => archive.store().read(key),
        };
        let content = match content {
            Err(error)
                if error.cause.is_of_identity()
                    || matches!(error.cause, Cause::ForeignKey | Cause::KeysDamaged) =>
            {
                return Ok(LastRun::Locked);
            }
            // A later run removes old results.
            Err(error) if error.cause == Cause::NotFound => continue,
            content => content?,
        };
        if let Ok(found) = serde_json::from_slice(&content) {
            return Ok(LastRun::Found(found));
        }
    }
    Ok(LastRun::None)
}

/// Prefix of a run's number, which sorts after digits, so that keys sort in the order of the runs.
const RUN: &str = "run-";
/// Number of digits of a run's number.
const DIGITS: usize = 10;

fn key(number: u64) -> String {
    format!("{VERIFIED}{RUN}{number:0DIGITS$}.json")
}

/// Parses the number in a key.
fn number_of(key: &str) -> Option<u64> {
    let key = key.strip_suffix(SUFFIX).unwrap_or(key);
    let digits = key.strip_prefix(VERIFIED)?.strip_prefix(RUN)?.strip_suffix(".json")?;
    (digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// Returns the number after the last run's number.
fn next_number(keys: &[String]) -> u64 {
    keys.iter().rev().find_map(|key| number_of(key)).map_or(1, |last| last + 1)
}

/// Returns the stored keys of all runs, in order.
fn keys(archive: &Archive) -> Result<Vec<String>, ArchiveError> {
    let mut keys = Vec::new();
    archive.store().list(VERIFIED, &mut |listed| {
        let name = listed.key.strip_suffix(SUFFIX).unwrap_or(&listed.key);
        let digits = name.strip_prefix(VERIFIED).and_then(|name| name.strip_suffix(".json"));
        let is_time = digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        if is_time || number_of(&listed.key).is_some() {
            keys.push(listed.key);
        }
    })?;
    keys.sort();
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_runs() {
        assert_eq!(key(17), "verified/run-0000000017.json");
        let keys = [
            "verified/20261125001530123456.json".to_owned(),
            "verified/20991231235959000000.json".to_owned(),
            key(1),
            key(2),
            key(10),
        ];
        assert!(keys.is_sorted());
        assert_eq!((next_number(&keys[..2]), next_number(&keys)), (1, 11));
        assert_eq!(number_of("verified/run-17.json"), None);
        assert_eq!(number_of("verified/run-0000000017.json.age"), Some(17));
    }
}
