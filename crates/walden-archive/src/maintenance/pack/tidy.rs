//! Removes duplicates: segments in two objects, because a process was killed before removing the segments'
//! own objects, or because the size of packs was changed.

use jiff::Timestamp;
use walden_format::lsn::SegmentName;
use walden_source::error_text;

use super::build::decode_members;
use super::{Packed, Stored};
use crate::archive::{Archive, ArchiveError};
use crate::objects::name::{ArchivedFile, Object, PackName};
use crate::objects::object::{self, Finding, ObjectError, ObjectReader, to_hex};
use crate::store::Cause;

/// Removes objects whose segments are all in one pack, after decoding the pack and comparing them. Differing
/// objects are kept and reported.
pub(super) fn tidy(
    archive: &Archive,
    stored: &mut Stored,
    is_dry_run: bool,
    packed: &mut Packed,
) -> Result<(), ArchiveError> {
    let mut is_refused = false;
    let packs: Vec<(PackName, u64)> = stored.packs.iter().map(|(pack, bytes)| (*pack, *bytes)).collect();
    for (pack, bytes) in packs {
        let doubles = objects_within(stored, pack);
        if doubles.is_empty() || !stored.packs.contains_key(&pack) {
            continue;
        }
        if is_refused || is_locked(archive, &doubles) {
            packed.kept_objects += doubles.len() as u64;
            continue;
        }
        let input = ObjectReader::new(archive.store(), pack.key(), bytes);
        let hashes = match decode_members(pack, input) {
            Ok(hashes) => hashes,
            // Another process tidies or prunes.
            Err(error) if error.is_not_found() => continue,
            Err(ObjectError::Store(error)) => return Err(error.into()),
            Err(error) => {
                let problem = format!(
                    "{}; its segments have their own objects, so it can be removed",
                    error_text(&error)
                );
                packed.problems.push(Finding { object: pack.key(), problem });
                continue;
            }
        };
        if !is_dry_run {
            match archive.store().make_durable(&pack.key()) {
                Err(error) if error.cause == Cause::NotFound => continue,
                other => other?,
            }
        }
        for (double, bytes) in doubles {
            match is_same(archive, double, bytes, pack.first, &hashes) {
                Ok(()) if is_dry_run => {}
                Ok(()) => {
                    if let Some(kept) = archive.store().discard(&double.key())? {
                        packed.kept_objects += 1;
                        // Without the right to remove, no other removal succeeds either.
                        is_refused |= kept.until.is_none();
                        continue;
                    }
                }
                Err(error) if error.is_not_found() => {}
                Err(ObjectError::Store(error)) => return Err(error.into()),
                Err(error) => {
                    packed.problems.push(Finding { object: double.key(), problem: error_text(&error) });
                    continue;
                }
            }
            packed.tidied.push(double.key());
            stored.remove(double);
        }
    }
    Ok(())
}

/// Returns whether the first of some objects is locked. Then decoding the pack to compare them is useless:
/// the others were stored later.
fn is_locked(archive: &Archive, objects: &[(Object, u64)]) -> bool {
    let Some((first, versioned)) = objects.first().zip(archive.encrypted().inner().versioned()) else {
        return false;
    };
    let lock = versioned.lock(&archive.stored_name(&first.0.key()));
    lock.ok().flatten().is_some_and(|lock| lock.until > Timestamp::now())
}

/// Returns the objects whose segments are all in the pack.
fn objects_within(stored: &Stored, pack: PackName) -> Vec<(Object, u64)> {
    let singles = stored.singles.range(pack.first..=pack.last);
    let singles = singles.map(|(name, bytes)| (Object::File(ArchivedFile::Segment(*name)), *bytes));
    let packs = stored.packs.iter().filter(|(other, _)| pack.replaces(**other));
    singles.chain(packs.map(|(other, bytes)| (Object::Pack(*other), *bytes))).collect()
}

/// Compares an object's summaries with the hashes of a pack's segments, which start with `first`.
fn is_same(
    archive: &Archive,
    object: Object,
    bytes: u64,
    first: SegmentName,
    hashes: &[[u8; 32]],
) -> Result<(), ObjectError> {
    let (store, key) = (archive.store(), object.key());
    let summaries = object::read_summaries(store, object, bytes)?;
    let Some((start, _)) = object.segments() else { return Ok(()) };
    let from = (start.segment - first.segment) as usize;
    for (summary, hash) in summaries.iter().zip(hashes.get(from..).unwrap_or_default()) {
        if summary.blake3 != to_hex(hash) {
            return Err(ObjectError::Mismatch {
                key,
                expected: format!("{} as it is in a pack, with BLAKE3 {}", summary.name, to_hex(hash)),
                found: summary.blake3.clone(),
            });
        }
    }
    Ok(())
}

impl Stored {
    fn remove(&mut self, object: Object) {
        match object {
            Object::File(ArchivedFile::Segment(name)) => {
                self.singles.remove(&name);
            }
            Object::Pack(pack) => {
                self.packs.remove(&pack);
            }
            Object::File(_) => {}
        }
    }
}
