//! Compares copies of an archive: files that a copy lacks, and objects that are damaged in a copy.
//!
//! A listing has names and sizes only. So damage is known from the last `verify` of each copy, and from the
//! summaries of objects whose sizes differ between copies. Sizes may differ for good reasons, such as other
//! compression levels: objects with the largest ratio between their sizes are read first, because a
//! truncated object is among them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError};
use crate::inventory::verified;
use crate::maintenance::copy::Files;
use crate::objects::name::{ArchivedFile, Object};
use crate::objects::object::{self, Finding, Summary};

/// Number of summaries read concurrently.
const READERS: usize = 8;

/// Files and objects that a copy lacks, or has damaged, in comparison with the other copies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// Number of files that another copy has and this copy lacks. WAL that `prune` removed is not missing.
    pub missing_files: u64,
    /// The first missing file, by name.
    pub first_missing: Option<String>,
    /// Number of bytes of WAL in the missing segments; `None` if the segment size is unknown.
    pub missing_bytes: Option<u64>,
    /// When a file was last stored in this copy, by the store's clock. Packs do not count.
    pub last_stored: Option<Timestamp>,
    /// Damaged objects of this copy, with their names in the store.
    pub damaged: Vec<Finding>,
}

/// Compares archives with each other, in the order of `archives`. Reads at most `max_read` pairs of objects
/// whose sizes differ. An error stands for an archive that cannot be listed.
pub fn compare(archives: &[&Archive], max_read: usize) -> Vec<Result<Compared, ArchiveError>> {
    let list = |archive: &&Archive| {
        archive.expect_archive()?;
        Ok((Files::list(archive, false)?, verified::last_readable(archive)?))
    };
    let mut listed: Vec<Result<_, ArchiveError>> = archives.iter().map(list).collect();
    let segment_bytes = archives.iter().find_map(|archive| archive.known_segment_bytes());
    let mut compared: Vec<Compared> = Vec::new();
    for (archive, own) in archives.iter().zip(&listed) {
        let Ok((files, last_run)) = own else {
            compared.push(Compared::default());
            continue;
        };
        let others = listed.iter().filter_map(|other| other.as_ref().ok());
        let missing: BTreeSet<ArchivedFile> =
            others.flat_map(|(other, _)| other.missing_in(files)).flat_map(|missing| missing.files).collect();
        // An object that was replaced or packed since has another name, or was repaired.
        let names: BTreeSet<String> =
            files.objects().map(|(object, _)| archive.stored_name(&object.key())).collect();
        let by_verify =
            last_run.iter().flat_map(|run| &run.damaged_objects).filter(|name| names.contains(*name));
        let problem = || "damaged, according to the last walden archive verify".to_owned();
        let damaged = by_verify.map(|name| Finding { object: name.clone(), problem: problem() }).collect();
        let segments = missing.iter().filter(|file| matches!(file, ArchivedFile::Segment(_))).count() as u64;
        compared.push(Compared {
            missing_bytes: segment_bytes.and_then(|bytes| bytes.checked_mul(segments)),
            last_stored: files.last_stored(),
            missing_files: missing.len() as u64,
            first_missing: missing.first().map(ToString::to_string),
            damaged,
        });
    }
    let files: Vec<Option<&Files>> =
        listed.iter().map(|listed| listed.as_ref().ok().map(|(files, _)| files)).collect();
    for (copy, finding) in find_different(archives, &files, max_read) {
        let known = &mut compared[copy].damaged;
        if !known.iter().any(|known| known.object == finding.object) {
            known.push(finding);
        }
    }
    let result = |(listed, compared): (Result<_, ArchiveError>, Compared)| listed.map(|_| compared);
    listed.drain(..).zip(compared).map(result).collect()
}

/// An object of two copies that has different sizes.
struct Pair {
    copies: [usize; 2],
    object: Object,
    bytes: [u64; 2],
}

impl Pair {
    /// Returns how much the sizes differ: the smaller one in thousandths of the larger one.
    fn ratio(&self) -> u64 {
        let [one, other] = self.bytes;
        one.min(other).saturating_mul(1000) / one.max(other).max(1)
    }
}

/// Reads the summaries of objects that exist in two copies with different sizes. Returns the damaged objects
/// with the indexes of their copies.
fn find_different(archives: &[&Archive], files: &[Option<&Files>], max_read: usize) -> Vec<(usize, Finding)> {
    let Some((first, own)) = files.iter().enumerate().find_map(|(copy, files)| Some((copy, (*files)?)))
    else {
        return Vec::new();
    };
    let mut pairs = Vec::new();
    for (second, other) in files.iter().enumerate().skip(first + 1) {
        let Some(other) = other else { continue };
        let different = own.objects().filter_map(|(object, bytes)| {
            let found = other.bytes_of(object)?;
            let pair = Pair { copies: [first, second], object, bytes: [bytes, found] };
            (found != bytes).then_some(pair)
        });
        pairs.extend(different);
    }
    pairs.sort_by_key(Pair::ratio);
    pairs.truncate(max_read);
    let read = |pair: &Pair| {
        let summaries = |at: usize| {
            let archive = archives[pair.copies[at]];
            object::read_summaries(archive.store(), pair.object, pair.bytes[at]).map_err(ArchiveError::from)
        };
        [summaries(0), summaries(1)]
    };
    let mut found = Vec::new();
    for (pair, summaries) in pairs.iter().zip(workers::map_in_order(&pairs, READERS, read)) {
        let finding = |at: usize, problem: String| {
            let object = archives[pair.copies[at]].stored_name(&pair.object.key());
            (pair.copies[at], Finding { object, problem })
        };
        match &summaries {
            [Ok(one), Ok(other)] if !is_same(one, other) => {
                let problem = |at: usize| {
                    let other = archives[pair.copies[1 - at]].store().location();
                    format!("expected the same content as in {other}, found other content")
                };
                found.extend([0, 1].map(|at| finding(at, problem(at))));
            }
            _ => {
                for (at, summaries) in summaries.iter().enumerate() {
                    // Other errors, such as a missing private key or an object that was packed since, say
                    // nothing about the object.
                    if let Err(error) = summaries
                        && error.is_damage()
                    {
                        found.push(finding(at, error_text(error)));
                    }
                }
            }
        }
    }
    found
}

/// Returns whether two objects have the same files. Bytes after a switch record are not WAL and may differ.
fn is_same(one: &[Summary], other: &[Summary]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            let has_same_wal = one.contents.is_some() && one.contents == other.contents;
            one.name == other.name && (one.blake3 == other.blake3 || has_same_wal)
        })
}
