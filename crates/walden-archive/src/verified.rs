//! When an archive was verified, and what was found: one object for each run.
//!
//! ```text
//! verified/20261125001530123456.json    the time in its digits
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use walden_format::payload::Timestamp;

use crate::archive::{Archive, ArchiveError};
use crate::gaps::Gap;
use crate::verify::Verified;

/// The prefix of these objects.
pub const VERIFIED: &str = "verified/";
/// How many are kept.
const KEPT: usize = 16;

/// One run of `verify`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VerifiedAt {
    /// When it ended, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
    /// Nothing was decoded: only stored checksums were compared.
    pub is_fast: bool,
    /// Objects that were read.
    pub objects: u64,
    /// Segments in them.
    pub segments: u64,
    /// Objects that were damaged.
    pub damaged: u64,
    /// Segments that were missing and not acknowledged.
    pub missing_segments: u64,
}

/// Writes what a run has found, and removes what old ones have found.
///
/// # Errors
/// The store's: a user that may only read cannot leave it.
pub fn record(archive: &Archive, verified: &Verified, is_fast: bool) -> Result<(), ArchiveError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let time = i64::try_from(now).unwrap_or(i64::MAX);
    let new = verified.gaps.iter().filter(|gap| gap.is_new());
    let found = VerifiedAt {
        time,
        is_fast,
        objects: verified.objects,
        segments: verified.segments,
        damaged: verified.damaged.len() as u64,
        missing_segments: new.map(|gap: &Gap| gap.segments).sum(),
    };
    let json = serde_json::to_vec_pretty(&found).unwrap_or_default();
    archive.store().create(&key(time), &json)?;
    let keys = keys(archive)?;
    for old in keys.iter().rev().skip(KEPT) {
        archive.store().remove(old)?;
    }
    Ok(())
}

/// What the last run has found.
///
/// # Errors
/// The store's.
pub fn last(archive: &Archive) -> Result<Option<VerifiedAt>, ArchiveError> {
    for key in keys(archive)?.iter().rev() {
        if let Ok(found) = serde_json::from_slice(&archive.store().read(key)?) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn key(time: i64) -> String {
    let text = Timestamp::from_unix_micros(time).to_string();
    let digits = text.split('+').next().unwrap_or_default().chars().filter(char::is_ascii_digit);
    let digits: String = digits.chain(std::iter::repeat('0')).take(20).collect();
    format!("{VERIFIED}{digits}.json")
}

fn keys(archive: &Archive) -> Result<Vec<String>, ArchiveError> {
    let mut keys = Vec::new();
    archive.store().list(VERIFIED, &mut |listed| keys.push(listed.key))?;
    keys.sort();
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_time() {
        let at = |micros: i64| key(1_795_565_730_000_000 + micros);
        assert_eq!(at(123_456), "verified/20261125001530123456.json");
        assert!(at(0) < at(1) && at(999_999) < at(1_000_000) && at(120_000) < at(123_456));
    }
}
