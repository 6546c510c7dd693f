//! Evidence in records about their relation beyond their bytes, as a basis for findings.

/// Number and bytes of records, or of parts of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Number of records or parts.
    pub count: u64,
    /// Bytes of the records or parts, without full-page images.
    pub bytes: u64,
    /// Bytes of their full-page images.
    pub image_bytes: u64,
}

impl Count {
    /// Counts one record or part.
    #[inline]
    pub fn add(&mut self, bytes: u64, image_bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.image_bytes += image_bytes;
    }

    /// Removes one that was counted before.
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

/// The transaction that performed more than half of the operations, if one did (the majority vote of Boyer
/// and Moore).
///
/// Without a majority, some transaction remains with a lead, which has no meaning. Only its `count` is
/// reliable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Majority {
    /// The transaction.
    pub xid: u32,
    /// Number of its votes that no other transaction's vote has cancelled.
    lead: u64,
    /// Number of its operations since it replaced another transaction: a lower bound.
    pub count: u64,
}

impl Majority {
    /// Counts an operation of a transaction.
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

/// Rows and number of the transactions that changed many rows of a relation. All numbers are lower bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batches {
    /// Number of rows.
    pub rows: u64,
    /// Number of transactions.
    pub transactions: u64,
    /// The first counted transaction; `last` is the last counted transaction.
    first: u32,
    last: u32,
    /// The transaction that currently changes most rows. `count` is its number of rows, and `lead` the number
    /// of votes of other transactions that it can outlast.
    xid: u32,
    count: u64,
    lead: u32,
}

impl Batches {
    /// Minimum number of rows for a transaction to count.
    pub const MIN_ROWS: u64 = 1000;
    /// Maximum lead. A transaction that changes rows stays current while other transactions change a few
    /// rows.
    const MAX_LEAD: u32 = 64;

    /// Counts a row that a transaction changed.
    #[inline]
    pub fn add(&mut self, xid: u32) {
        if self.xid != xid {
            if self.lead > 0 {
                self.lead -= 1;
                return;
            }
            (self.xid, self.count) = (xid, 0);
        }
        self.lead = (self.lead + 1).min(Batches::MAX_LEAD);
        self.count += 1;
        match self.count {
            Batches::MIN_ROWS => {
                let batch = Batches { rows: self.count, transactions: 1, first: xid, last: xid, ..*self };
                self.merge(&batch);
            }
            count => self.rows += u64::from(count > Batches::MIN_ROWS),
        }
    }

    fn merge(&mut self, other: &Batches) {
        if other.transactions == 0 {
            return;
        }
        let is_continued = self.transactions > 0 && self.last == other.first;
        if self.transactions == 0 {
            self.first = other.first;
        }
        self.rows += other.rows;
        self.transactions = match (self.first, self.last) == (other.first, other.last) {
            // The same transactions wrote another partition.
            true => self.transactions.max(other.transactions),
            false => self.transactions + other.transactions - u64::from(is_continued),
        };
        self.last = other.last;
    }
}

/// Number of committed transactions without other records: without these, they would write no commit record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EmptiedTransactions {
    /// Number of transactions whose records are of one table.
    pub of_one: u64,
    /// Number of transactions whose records are of several tables, such as partitions.
    pub of_several: u64,
}

impl EmptiedTransactions {
    /// Counts a transaction.
    #[inline]
    pub fn add(&mut self, is_of_several: bool) {
        self.of_one += u64::from(!is_of_several);
        self.of_several += u64::from(is_of_several);
    }

    fn merge(&mut self, other: &EmptiedTransactions) {
        self.of_one += other.of_one;
        self.of_several += other.of_several;
    }
}

/// Evidence in the records of a relation's main fork beyond their bytes. Numbers that depend on earlier
/// records of the same segment are lower bounds, as the tables for earlier records overwrite entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// Number of updates whose new tuple is on another page than the old one.
    pub moved_updates: u64,
    /// Number of updates whose old and new tuple could be compared: the record contains them, or images of
    /// their pages.
    pub compared_updates: u64,
    /// Number of `compared_updates` whose new tuple has the same attributes as the old one.
    pub unchanged_updates: u64,
    /// Number of updates of a tuple that the same transaction wrote.
    pub same_transaction_updates: u64,
    /// Number of updates of a tuple that any transaction wrote.
    pub recent_updates: u64,
    /// `LOCK` records that an update wrote itself, before it stored its new tuple on another page or wrote
    /// TOAST values.
    pub update_locks: Count,
    /// `LOCK` records of a weaker mode than `FOR UPDATE` whose transaction then updated the tuple within its
    /// page: `INSERT ... ON CONFLICT DO UPDATE`, `FOR NO KEY UPDATE`.
    pub upsert_locks: Count,
    /// Other `LOCK` records, of `SELECT FOR UPDATE`, `FOR NO KEY UPDATE` and `FOR SHARE`.
    pub row_locks: Count,
    /// `LOCK` records of `FOR UPDATE` whose transaction then updated or deleted the tuple by a record with a
    /// replication origin, as the apply worker of a subscription does for each such row. Locks have no
    /// origin.
    pub applied_locks: Count,
    /// `LOCK` records of `FOR KEY SHARE`, the lock that checks of foreign keys take.
    pub key_share_locks: Count,
    /// Number of inserts of TOAST values; recorded since 14.
    pub toast_inserts: u64,
    /// Who inserted many rows by records of several rows each that have a replication origin. The initial
    /// copy of a subscription writes them (`copy_table`); changes that are applied later are inserts of a row
    /// each (`apply_handle_insert`).
    pub copies: Batches,
    /// Number of inserts of `INSERT ... ON CONFLICT`.
    pub speculative_inserts: u64,
    /// Old tuples and keys in updates and deletes, for logical decoding.
    pub old_tuples: Count,
    /// Number of `old_tuples` that are whole tuples.
    pub whole_old_tuples: u64,
    /// Number of updates that log the whole new tuple for logical decoding, not only its difference from the
    /// old one.
    pub whole_new_tuples: u64,
    /// Transactions of updates, with their locks, index entries and pruning.
    pub only_updates: EmptiedTransactions,
    /// Transactions of `only_updates` that could be compared and changed nothing.
    pub only_unchanged: EmptiedTransactions,
    /// Transactions of `row_locks`.
    pub only_row_locks: EmptiedTransactions,
    /// Committed transactions with `key_share_locks` of this relation, and of no other one before.
    pub key_share_transactions: u64,
    /// The main transaction of updates.
    pub updates_by: Majority,
    /// The main transaction of deletes, without updates that move rows to another partition.
    pub deletes_by: Majority,
    /// Transactions that updated many rows.
    pub update_batches: Batches,
    /// Transactions that deleted many rows, counted like `deletes_by`.
    pub delete_batches: Batches,
    /// Number of deletes of rows that an update moved to another partition.
    pub partition_moves: u64,
    /// Number of records of a sequence whose value differs by less than 32 from the value of the previous
    /// record, and which `setval()` wrote: `nextval()` logs every 32nd value.
    pub set_values: u64,
    /// Records of a sequence whose value is larger than that of the previous record.
    pub raised_values: u64,
    /// Records of a sequence whose value is smaller than that of the previous record.
    pub lowered_values: u64,
    /// Records that freeze tuples.
    pub freezing: Count,
    /// Records that prune pages, written by queries or, before 17, also by vacuum.
    pub prunes: Count,
    /// Images for hint bits right before the vacuum's record of the same page, which vacuum set itself. The
    /// bytes are those of the images.
    pub vacuum_hints: Count,
    /// The same before one of `prunes` without a transaction ID: of vacuum or, before 17, of a query.
    pub prune_hints: Count,
    /// Number of `prunes` with a transaction ID, which vacuum does not have.
    pub prunes_in_transactions: u64,
    /// Sum of the offset numbers of the new tuples of updates: their mean is about the number of tuples on a
    /// page.
    pub update_offsets: u64,
    /// Index tuples inserted on B-tree leaf pages.
    pub leaf_inserts: u64,
    /// Number of `leaf_inserts` on another page than the previous one.
    pub leaf_changes: u64,
    /// Number of `leaf_inserts` for the new tuple of an update: the row that their transaction wrote last.
    /// The others are for inserted tuples.
    pub update_entries: u64,
    /// Bytes of full-page images in the records of all `leaf_inserts`.
    pub leaf_images: u64,
    /// Bytes of full-page images in the records of `update_entries`.
    pub update_images: u64,
    /// Number of `update_entries` whose key differs from the old tuple's, if both entries are in the same
    /// segment.
    pub changed_keys: u64,
    /// Number of `update_entries` whose key equals the old tuple's, under the same condition.
    pub same_keys: u64,
}

/// Data for logical decoding in records of user tables, under `wal_level=logical`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecodingEvidence {
    /// Number of records of new tuples in relations that `initdb` did not create.
    pub stored: u64,
    /// Number of `stored` records whose flags state that the tuples are whole, even with an image.
    pub logical: u64,
    /// Bytes that only decoding needs: tuples next to images, and old tuples and keys.
    pub bytes: u64,
}

impl DecodingEvidence {
    /// Adds the evidence of another segment.
    pub fn merge(&mut self, other: &DecodingEvidence) {
        self.stored += other.stored;
        self.logical += other.logical;
        self.bytes += other.bytes;
    }
}

impl Evidence {
    /// Counts a lock of `row_locks` as one of `applied_locks`.
    #[inline]
    pub(crate) fn add_applied_lock(&mut self, bytes: u32, image_bytes: u32) {
        self.row_locks.remove(bytes.into(), image_bytes.into());
        self.applied_locks.add(bytes.into(), image_bytes.into());
    }

    /// Adds the evidence of another segment.
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
            (&mut self.whole_new_tuples, other.whole_new_tuples),
            (&mut self.partition_moves, other.partition_moves),
            (&mut self.key_share_transactions, other.key_share_transactions),
            (&mut self.set_values, other.set_values),
            (&mut self.raised_values, other.raised_values),
            (&mut self.lowered_values, other.lowered_values),
            (&mut self.prunes_in_transactions, other.prunes_in_transactions),
            (&mut self.update_offsets, other.update_offsets),
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
            (&mut self.applied_locks, &other.applied_locks),
            (&mut self.key_share_locks, &other.key_share_locks),
            (&mut self.old_tuples, &other.old_tuples),
            (&mut self.freezing, &other.freezing),
            (&mut self.prunes, &other.prunes),
            (&mut self.vacuum_hints, &other.vacuum_hints),
            (&mut self.prune_hints, &other.prune_hints),
        ];
        counts.into_iter().for_each(|(sum, more)| sum.merge(more));
        let emptied = [
            (&mut self.only_updates, &other.only_updates),
            (&mut self.only_unchanged, &other.only_unchanged),
            (&mut self.only_row_locks, &other.only_row_locks),
        ];
        emptied.into_iter().for_each(|(sum, more)| sum.merge(more));
        self.updates_by.merge(&other.updates_by);
        self.deletes_by.merge(&other.deletes_by);
        self.copies.merge(&other.copies);
        self.update_batches.merge(&other.update_batches);
        self.delete_batches.merge(&other.delete_batches);
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
    fn batches_are_counted_once_and_small_transactions_are_not() {
        let count = |xids: &[(u32, u32)]| {
            let mut batches = Batches::default();
            xids.iter().for_each(|&(xid, rows)| (0..rows).for_each(|_| batches.add(xid)));
            batches
        };
        let numbers = |batches: Batches| (batches.rows, batches.transactions);
        assert_eq!(numbers(count(&[(7, 999), (8, 999)])), (0, 0));
        assert_eq!(numbers(count(&[(7, 3000), (9, 20), (7, 2000)])), (5000, 1));
        let (rows, transactions) = numbers(count(&[(7, 3000), (8, 5000), (9, 4000)]));
        assert!(transactions == 3 && (11_800..=12_000).contains(&rows), "{rows}");
        // A transaction that continues in the next segment.
        let mut merged = count(&[(7, 3000)]);
        merged.merge(&count(&[(7, 2000), (9, 1500)]));
        assert_eq!((merged.transactions, merged.first, merged.last), (2, 7, 9));
        merged.merge(&Batches::default());
        assert_eq!(merged.transactions, 2);
        // The same transactions wrote two partitions.
        let [mut one, other] = [(); 2].map(|()| count(&[(7, 3000), (9, 1500)]));
        one.merge(&other);
        assert_eq!((one.rows, one.transactions), (2 * other.rows, 2));
    }

    #[test]
    fn many_small_transactions_have_no_main_writer() {
        let mut majority = Majority::default();
        (0..16_001_u32).for_each(|number| majority.add(1000 + number / 4));
        assert!(majority.count <= 4, "{majority:?}");
    }
}
