//! Takes consistent listings of segments and packs while other processes pack, prune and push.
//!
//! No store lists all keys at a single moment. During a listing, a pack can be stored under a key that the
//! listing has already passed, and the segments' own objects can be removed before the listing reaches them.
//! Then the listing contains neither. But a pack is stored before the objects it replaces are removed, so the
//! next listing contains it. A listing is consistent if it has every segment of the previous one, and no new
//! pack with a segment that the previous one lacked.

use std::collections::BTreeMap;

use jiff::Timestamp;
use walden_format::lsn::SegmentName;

use crate::objects::name::Object;
use crate::store::{Listed, Store, StoreError};

/// Maximum number of listings. If changes continue, the last listing is the best available.
const MAX_LISTINGS: usize = 16;

/// The objects that contain segments, complete or partial.
#[derive(Clone, Default, Debug)]
pub(crate) struct Snapshot {
    /// The objects and their stored sizes in bytes.
    pub objects: BTreeMap<Object, u64>,
    /// When the newest object of a single file was stored, by the store's clock.
    pub last_stored: Option<Timestamp>,
    /// Keys that do not belong to an archive.
    pub unknown: Vec<String>,
}

impl Snapshot {
    /// Lists the objects under some prefixes, each ending with `/`.
    ///
    /// # Errors
    /// Errors of the store.
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
            store.list(prefix, &mut |Listed { key, bytes, stored }| match Object::parse_key(&key) {
                Some(object) => {
                    snapshot.objects.insert(object, bytes);
                    if matches!(object, Object::File(_)) {
                        snapshot.last_stored = snapshot.last_stored.max(stored);
                    }
                }
                None => snapshot.unknown.push(key),
            })?;
        }
        Ok(snapshot)
    }

    /// Returns whether this listing is consistent, given the previous listing.
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

    /// Returns the segments as ascending ranges that neither touch nor overlap.
    pub fn ranges(&self) -> Vec<(SegmentName, SegmentName)> {
        let mut ranges: Vec<(SegmentName, SegmentName)> = Vec::new();
        // Sorted by their first segments.
        for (first, last) in self.objects.keys().filter_map(|object| object.segments()) {
            match ranges.last_mut() {
                Some(range) if first <= following(range.1) => range.1 = range.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        ranges
    }
}

/// Returns the next segment within the same 4 GB of WAL. Ranges do not continue beyond that.
fn following(name: SegmentName) -> SegmentName {
    SegmentName { segment: name.segment.saturating_add(1), ..name }
}

pub(crate) fn covers(
    ranges: &[(SegmentName, SegmentName)],
    (first, last): (SegmentName, SegmentName),
) -> bool {
    let at = ranges.partition_point(|range| range.1 < first);
    ranges.get(at).is_some_and(|range| range.0 <= first && last <= range.1)
}
