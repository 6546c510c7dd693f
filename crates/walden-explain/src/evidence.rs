//! What records say of their relation beyond their bytes: the evidence that findings rest on.

/// Number and bytes of records, or of parts of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// How many.
    pub count: u64,
    /// Their bytes, without full-page images.
    pub bytes: u64,
    /// Bytes of their full-page images.
    pub image_bytes: u64,
}

impl Count {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, bytes: u64, image_bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.image_bytes += image_bytes;
    }

    /// Takes one back that was counted before.
    #[inline]
    pub fn remove(&mut self, bytes: u64, image_bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.image_bytes = self.image_bytes.saturating_sub(image_bytes);
    }

    fn merge(&mut self, other: &Count) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.image_bytes += other.image_bytes;
    }
}

/// The transaction that did most of something, if one did more than half (the majority vote of Boyer and Moore).
///
/// If none did, some transaction is left with a lead, which says nothing: only `count` is known to be true of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Majority {
    /// The transaction.
    pub xid: u32,
    /// How many of its votes no other transaction's vote has cancelled.
    lead: u64,
    /// How often it did that, from where it took the place of another transaction: a lower bound.
    pub count: u64,
}

impl Majority {
    /// Counts one by a transaction.
    #[inline]
    pub fn add(&mut self, xid: u32) {
        if self.xid == xid {
            self.lead += 1;
            self.count += 1;
        } else if self.lead == 0 {
            *self = Majority { xid, lead: 1, count: 1 };
        } else {
            self.lead -= 1;
        }
    }

    fn merge(&mut self, other: &Majority) {
        if self.xid == other.xid {
            self.lead += other.lead;
            self.count += other.count;
        } else if self.lead >= other.lead {
            self.lead -= other.lead;
        } else {
            *self = Majority { lead: other.lead - self.lead, ..*other };
        }
    }
}

/// What the records of a relation's main fork say beyond their bytes. What rests on earlier records of the same segment is a
/// lower bound, as the tables that remember them forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// Updates whose new tuple is on another page than the old one.
    pub moved_updates: u64,
    /// Updates whose old and new tuple could be compared: they, or images of their pages, are in the record.
    pub compared_updates: u64,
    /// Of these, updates whose new tuple has the same attributes as the old one.
    pub unchanged_updates: u64,
    /// Updates of a tuple that the same transaction wrote.
    pub same_transaction_updates: u64,
    /// Updates of a tuple that any transaction wrote.
    pub recent_updates: u64,
    /// `LOCK` records that an update wrote itself, before it stored its new tuple elsewhere or wrote TOAST values.
    pub update_locks: Count,
    /// `LOCK` records of a weaker mode than `FOR UPDATE` whose transaction then updated the tuple on its page: `INSERT ... ON
    /// CONFLICT DO UPDATE`, `FOR NO KEY UPDATE`.
    pub upsert_locks: Count,
    /// Other `LOCK` records, of `SELECT FOR UPDATE`, `FOR NO KEY UPDATE` and `FOR SHARE`.
    pub row_locks: Count,
    /// `LOCK` records of `FOR KEY SHARE`, as checks of foreign keys take it.
    pub key_share_locks: Count,
    /// Inserts of TOAST values; known since 14.
    pub toast_inserts: u64,
    /// Inserts of `INSERT ... ON CONFLICT`.
    pub speculative_inserts: u64,
    /// Old tuples and keys in updates and deletes, for logical decoding.
    pub old_tuples: Count,
    /// Of these, old tuples logged whole.
    pub whole_old_tuples: u64,
    /// Who updated.
    pub updates_by: Majority,
    /// Who deleted, updates that move rows to another partition left out.
    pub deletes_by: Majority,
    /// Records that freeze tuples.
    pub freezing: Count,
    /// Records that prune pages, of queries or, before 17, of vacuum.
    pub prunes: Count,
    /// Of these, records with a transaction ID, which vacuum does not have.
    pub prunes_in_transactions: u64,
    /// Index tuples inserted on B-tree leaf pages.
    pub leaf_inserts: u64,
    /// Of these, on another page than the one before.
    pub leaf_changes: u64,
    /// Of these inserts, those for the new tuple of an update: it is the row that their transaction wrote last. The others are for
    /// inserted tuples.
    pub update_entries: u64,
    /// Bytes of full-page images in the records of all these inserts.
    pub leaf_images: u64,
    /// The same of those for new tuples of updates.
    pub update_images: u64,
    /// Of the entries of updates, those with another key than the old tuple's, where both entries are in the same segment.
    pub changed_keys: u64,
    /// The same with the same key.
    pub same_keys: u64,
}

/// What records of user tables have for logical decoding, under `wal_level=logical`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecodingEvidence {
    /// Records of new tuples in relations that are not of `initdb`'s.
    pub stored: u64,
    /// Of these, records that say that the tuples are whole and there even with an image.
    pub logical: u64,
    /// Bytes that are there for decoding alone: tuples beside images, and old tuples and keys.
    pub bytes: u64,
}

impl DecodingEvidence {
    /// Adds what another segment shows.
    pub fn merge(&mut self, other: &DecodingEvidence) {
        self.stored += other.stored;
        self.logical += other.logical;
        self.bytes += other.bytes;
    }
}

impl Evidence {
    /// Adds what another segment shows.
    pub fn merge(&mut self, other: &Evidence) {
        let numbers = [
            (&mut self.moved_updates, other.moved_updates),
            (&mut self.compared_updates, other.compared_updates),
            (&mut self.unchanged_updates, other.unchanged_updates),
            (&mut self.same_transaction_updates, other.same_transaction_updates),
            (&mut self.recent_updates, other.recent_updates),
            (&mut self.toast_inserts, other.toast_inserts),
            (&mut self.speculative_inserts, other.speculative_inserts),
            (&mut self.whole_old_tuples, other.whole_old_tuples),
            (&mut self.prunes_in_transactions, other.prunes_in_transactions),
            (&mut self.leaf_inserts, other.leaf_inserts),
            (&mut self.leaf_changes, other.leaf_changes),
            (&mut self.update_entries, other.update_entries),
            (&mut self.leaf_images, other.leaf_images),
            (&mut self.update_images, other.update_images),
            (&mut self.changed_keys, other.changed_keys),
            (&mut self.same_keys, other.same_keys),
        ];
        numbers.into_iter().for_each(|(sum, more)| *sum += more);
        let counts = [
            (&mut self.update_locks, &other.update_locks),
            (&mut self.upsert_locks, &other.upsert_locks),
            (&mut self.row_locks, &other.row_locks),
            (&mut self.key_share_locks, &other.key_share_locks),
            (&mut self.old_tuples, &other.old_tuples),
            (&mut self.freezing, &other.freezing),
            (&mut self.prunes, &other.prunes),
        ];
        counts.into_iter().for_each(|(sum, more)| sum.merge(more));
        self.updates_by.merge(&other.updates_by);
        self.deletes_by.merge(&other.deletes_by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_found_and_never_overstated() {
        let vote = |xids: &[u32]| {
            let mut majority = Majority::default();
            xids.iter().for_each(|xid| majority.add(*xid));
            majority
        };
        let most = vote(&[7, 1, 7, 7, 2, 7]);
        assert_eq!((most.xid, most.count), (7, 4));
        let mut merged = vote(&[1, 1, 1]);
        merged.merge(&most);
        assert_eq!((merged.xid, merged.count), (1, 3));
        merged.merge(&vote(&[7; 20]));
        assert_eq!((merged.xid, merged.count), (7, 20));
        merged.merge(&vote(&[7; 5]));
        assert_eq!((merged.xid, merged.count), (7, 25));
    }

    #[test]
    fn of_many_small_transactions_none_did_most() {
        let mut majority = Majority::default();
        (0..16_001_u32).for_each(|number| majority.add(1000 + number / 4));
        assert!(majority.count <= 4, "{majority:?}");
    }
}
