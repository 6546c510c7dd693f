//! Listings of segments and packs that are right while other processes pack, prune and push.
//!
//! No store lists all its keys at one moment. While a listing goes on, a pack can be stored under a key that it has passed already,
//! and the own objects of the pack's segments be removed before it comes to them: the listing has neither. A pack is there before the
//! objects that it replaces are removed, so the next listing has it. What was listed is right once a listing has every segment of the
//! one before, and no pack with a segment that the one before did not have.

use std::collections::BTreeMap;

use walden_format::lsn::SegmentName;

use crate::store::{Listed, Store, StoreError};
use crate::stored::name::Object;

/// Listings at most: where more and more changes meanwhile, the last one says what is there now.
const MAX_LISTINGS: usize = 16;

/// The objects that hold segments, whole or partial ones.
#[derive(Clone, Default, Debug)]
pub(crate) struct Snapshot {
    /// Their bytes as they are stored.
    pub objects: BTreeMap<Object, u64>,
    /// Keys that are none of an archive's.
    pub unknown: Vec<String>,
}

impl Snapshot {
    /// Lists what is under some prefixes, each of which ends with `/`.
    ///
    /// # Errors
    /// The store's.
    pub fn take(store: &dyn Store, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot::list_once(store, prefixes)?;
        for _ in 1..MAX_LISTINGS {
            let next = Snapshot::list_once(store, prefixes)?;
            let is_right = next.confirms(&snapshot);
            snapshot = next;
            if is_right {
                break;
            }
        }
        Ok(snapshot)
    }

    fn list_once(store: &dyn Store, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot::default();
        for prefix in prefixes {
            store.list(prefix, &mut |Listed { key, bytes }| match Object::of_key(&key) {
                Some(object) => drop(snapshot.objects.insert(object, bytes)),
                None => snapshot.unknown.push(key),
            })?;
        }
        Ok(snapshot)
    }

    /// Whether this is as good as a listing of one moment, given the listing before it.
    fn confirms(&self, before: &Snapshot) -> bool {
        let (known, found) = (before.ranges(), self.ranges());
        let is_new_pack =
            |object: &&Object| matches!(object, Object::Pack(_)) && !before.objects.contains_key(object);
        known.iter().all(|&range| covers(&found, range))
            && self
                .objects
                .keys()
                .filter(is_new_pack)
                .filter_map(|pack| pack.segments())
                .all(|range| covers(&known, range))
    }

    /// The segments, as ranges in ascending order that neither touch nor overlap.
    fn ranges(&self) -> Vec<(SegmentName, SegmentName)> {
        let mut ranges: Vec<(SegmentName, SegmentName)> = Vec::new();
        // In the order of their first segments.
        for (first, last) in self.objects.keys().filter_map(|object| object.segments()) {
            match ranges.last_mut() {
                Some(range) if first <= following(range.1) => range.1 = range.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        ranges
    }
}

/// The segment behind one, in the same log: ranges end with their log.
fn following(name: SegmentName) -> SegmentName {
    SegmentName { segment: name.segment.saturating_add(1), ..name }
}

fn covers(ranges: &[(SegmentName, SegmentName)], (first, last): (SegmentName, SegmentName)) -> bool {
    let at = ranges.partition_point(|range| range.1 < first);
    ranges.get(at).is_some_and(|range| range.0 <= first && last <= range.1)
}
