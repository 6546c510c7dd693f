//! Collects [`Evidence`] from the records of one segment.
//!
//! Small tables relate records to each other. The tables are indexed by hashes, and new entries overwrite old
//! entries, so memory is bounded and each record costs a few lookups.

use rustc_hash::FxHashMap;
use walden_format::payload::heap::{
    DeleteFlags, InfoBits, InsertFlags, PruneFlags, SharedLengths, TUPLE_HEADER, UpdateFlags, XlHeapDelete,
    XlHeapHeader, XlHeapLock, XlHeapMultiInsert, XlHeapUpdate, moved_from,
};
use walden_format::record::{BlockRef, Compression, Fork, Record, RelFileLocator};
use walden_format::rmgr::info::{RMGR_MASK, btree, heap, heap2, xlog};
use walden_format::rmgr::rmid;
use walden_format::simple::SimpleRecord;
use walden_format::transam::FIRST_NORMAL_OID;
use walden_format::version::Major;
use walden_redo::page::index_tuple::INDEX_TUPLE_HEADER_BYTES;
use walden_redo::page::{LINE_POINTER_BYTES, LinePointer, Tid, line_pointer_offset};

use super::sums::tuple_key;
use crate::evidence::{DecodingEvidence, Evidence};

/// Evidence in a segment's records about their relations.
pub(crate) struct SegmentEvidence {
    version: Major,
    index: FxHashMap<RelFileLocator, u32>,
    recent: Box<[(RelFileLocator, u32); RECENT]>,
    pub relations: Vec<(RelFileLocator, Evidence)>,
    pub decoding: DecodingEvidence,
    /// The last leaf page that an index tuple was inserted on, by relation.
    last_leaves: Vec<u32>,
    /// The last image for a hint bit, by relation, until a record of vacuum shows who set the bit.
    last_hints: Vec<Option<Hint>>,
    /// The last value of each sequence.
    last_values: FxHashMap<RelFileLocator, i64>,
    /// Tuples written: per transaction, and by any transaction.
    written: Box<[[u32; 2]; TUPLES]>,
    locks: Box<[Lock; LOCKS]>,
    /// Number of inserts into TOAST tables so far.
    toast_inserts: u32,
    /// For recent transactions: the transaction, and `toast_inserts` after its last insert into a TOAST
    /// table.
    last_toast: Box<[(u32, u32); SESSIONS]>,
    /// The last update of a transaction that has inserted no row since.
    updates: Box<[LastUpdate; SESSIONS]>,
    /// The records of transactions in progress.
    writing: Box<[Writing; SESSIONS]>,
    /// Keys of index tuples, by the tuple's TID: a part of the TID's hash, and the key's hash.
    keys: Box<[[u32; 2]; TUPLES]>,
}

/// Sizes of the tables: powers of two.
const RECENT: usize = 128;
const TUPLES: usize = 1 << 14;
const LOCKS: usize = 1 << 10;
const SESSIONS: usize = 256;

/// A heap tuple's `LOCK` record without a known purpose.
#[derive(Clone, Copy, Default)]
struct Lock {
    key: u64,
    relation: u32,
    bytes: u32,
    image_bytes: u32,
    toast_inserts: u32,
    is_for_update: bool,
    /// Bytes and image bytes of earlier `FOR UPDATE` locks of the same transaction.
    earlier: Option<(u32, u32)>,
    /// Hash of the tuple's attributes, if the record contains an image of its page.
    tuple: Option<u32>,
}

/// An image that was logged for a hint bit.
#[derive(Clone, Copy)]
struct Hint {
    block: u32,
    image_bytes: u32,
}

#[derive(Clone, Copy)]
struct LastUpdate {
    xid: u32,
    old: Tid,
    new: Tid,
}

impl LastUpdate {
    const NONE: LastUpdate = LastUpdate { xid: 0, old: Tid::INVALID, new: Tid::INVALID };
}

/// Records of a transaction in this segment that would be missing without its updates or locks.
#[derive(Clone, Copy, Default)]
struct Writing {
    xid: u32,
    /// The relation of the last counted record.
    relation: u32,
    has_several_relations: bool,
    updates: u32,
    unchanged_updates: u32,
    /// Number of locks and index entries of updates, and pruning.
    of_updates: u32,
    /// Other locks, which the transaction would take without its updates as well.
    locks: u32,
    key_share_locks: u32,
}

impl Writing {
    /// Attributes a lock to an update.
    #[inline(always)]
    fn add_lock_of_update(&mut self) {
        self.locks = self.locks.saturating_sub(1);
        self.of_updates += 1;
    }
}

/// `uint16 postingoff` in an `INSERT_POST` record.
const POSTING_OFFSET_BYTES: usize = size_of::<u16>();

/// The fields that evidence needs from a record of any layout.
#[derive(Clone, Copy)]
struct Observed<'a> {
    info: u8,
    xid: u32,
    relation: RelFileLocator,
    block: u32,
    /// The page of an update's old tuple.
    old_block: u32,
    main: &'a [u8],
    /// Data of block 0.
    data: &'a [u8],
    /// Aligned, without images.
    bytes: u32,
    image_bytes: u32,
    has_image: bool,
    has_origin: bool,
}

/// Whether records of a resource manager are evidence.
#[inline(always)]
pub(super) fn is_evidence(manager: u8) -> bool {
    const MANAGERS: u64 = 1 << rmid::HEAP | 1 << rmid::HEAP2 | 1 << rmid::BTREE | 1 << rmid::SEQ;
    manager < 64 && MANAGERS >> manager & 1 != 0
}

impl SegmentEvidence {
    pub fn new(version: Major) -> SegmentEvidence {
        SegmentEvidence {
            version,
            index: FxHashMap::default(),
            recent: Box::new([(RelFileLocator::default(), u32::MAX); RECENT]),
            relations: Vec::new(),
            decoding: DecodingEvidence::default(),
            last_leaves: Vec::new(),
            last_hints: Vec::new(),
            last_values: FxHashMap::default(),
            written: Box::new([[0; 2]; TUPLES]),
            locks: Box::new([Lock::default(); LOCKS]),
            toast_inserts: 0,
            last_toast: Box::new([(0, 0); SESSIONS]),
            updates: Box::new([LastUpdate::NONE; SESSIONS]),
            writing: Box::new([Writing::default(); SESSIONS]),
            keys: Box::new([[0; 2]; TUPLES]),
        }
    }

    /// Clears the evidence for another segment.
    pub fn clear(&mut self) {
        self.index.clear();
        self.recent.fill((RelFileLocator::default(), u32::MAX));
        self.relations.clear();
        self.decoding = DecodingEvidence::default();
        self.last_leaves.clear();
        self.last_hints.clear();
        self.last_values.clear();
        self.written.fill([0; 2]);
        self.locks.fill(Lock::default());
        self.toast_inserts = 0;
        self.last_toast.fill((0, 0));
        self.updates.fill(LastUpdate::NONE);
        self.writing.fill(Writing::default());
        self.keys.fill([0; 2]);
    }

    /// Observes a record of the resource managers of [`is_evidence`].
    pub fn observe(&mut self, record: &Record<'_>) {
        let manager = record.header.rmid;
        if manager == rmid::HEAP2 && record.header.xid == 0 {
            // The first block of a `VISIBLE` record is a page of the visibility map.
            if let Some(page) = record.blocks.iter().find(|block| block.fork == Fork::MAIN) {
                let relation = self.relation(page.relation);
                self.resolve_hint(relation, page.block, record.header.info & heap2::OPMASK);
            }
        }
        let Some(block) = record.block(0).filter(|block| block.fork == Fork::MAIN) else { return };
        let old = moved_from(record).filter(|other| other.relation == block.relation);
        let image_bytes: u32 =
            record.blocks.iter().filter_map(|block| block.image).map(|image| image.record_bytes()).sum();
        let observed = Observed {
            info: record.header.info,
            xid: record.header.xid,
            relation: block.relation,
            block: block.block,
            old_block: old.map_or(block.block, |old| old.block),
            main: record.main_data(),
            data: record.block_data(block),
            bytes: (record.header.total_len + u32::from(record.alignment)).saturating_sub(image_bytes),
            image_bytes,
            has_image: block.image.is_some(),
            has_origin: record.origin.is_some(),
        };
        let locked = || {
            let lock = XlHeapLock::read(record.main_data())?;
            Some(hash_of(tuple_in_image(record, block, lock.offset)?.get(TUPLE_HEADER..)?))
        };
        self.observe_any(manager, &observed, || compare_with_images(record, block, old), locked);
    }

    /// Notes an image for a hint bit. Vacuum, which reads one page after the other, logs such an image right
    /// before its own record of the page (`lazy_scan_prune`), and queries before records of other pages.
    #[inline(never)]
    pub fn observe_image(&mut self, record: &Record<'_>) {
        if record.header.info & RMGR_MASK != xlog::FPI_FOR_HINT {
            return;
        }
        let Some(block) = record.block(0).filter(|block| block.fork == Fork::MAIN) else { return };
        let relation = self.relation(block.relation);
        let image_bytes = block.image.map_or(0, |image| image.len);
        self.last_hints[relation] = Some(Hint { block: block.block, image_bytes: image_bytes.into() });
    }

    /// Attributes the last image for a hint bit of a page to the record that vacuum writes for the page next.
    #[inline(always)]
    fn resolve_hint(&mut self, relation: usize, block: u32, kind: u8) {
        let Some(hint) = self.last_hints[relation].filter(|hint| hint.block == block) else { return };
        let version = self.version;
        let evidence = &mut self.relations[relation].1;
        let hints = match kind {
            heap2::PRUNE_ON_ACCESS if version >= Major::V17 => return,
            heap2::PRUNE if version < Major::V17 => &mut evidence.prune_hints,
            heap2::PRUNE_VACUUM_SCAN | heap2::PRUNE_VACUUM_CLEANUP if version >= Major::V17 => {
                &mut evidence.vacuum_hints
            }
            heap2::VISIBLE if version < Major::V19 => &mut evidence.vacuum_hints,
            heap2::FREEZE_PAGE if (Major::V14..Major::V17).contains(&version) => &mut evidence.vacuum_hints,
            heap2::FREEZE_PAGE_UNTIL_13 if version < Major::V14 => &mut evidence.vacuum_hints,
            _ => return,
        };
        hints.add(hint.image_bytes.into(), 0);
        self.last_hints[relation] = None;
    }

    /// Collects the evidence of a record of the simple layout.
    #[inline(always)]
    pub fn observe_simple(&mut self, record: SimpleRecord<'_>) {
        if !record.has_block() || record.fork() != Fork::MAIN {
            return;
        }
        let header = record.header();
        let observed = Observed {
            info: header.info,
            xid: header.xid,
            relation: record.relation(),
            block: record.block(),
            old_block: record.block(),
            main: record.main_data(),
            data: record.block_data(),
            bytes: record.aligned_len(),
            image_bytes: 0,
            has_image: false,
            has_origin: false,
        };
        if header.rmid == rmid::HEAP2 && header.xid == 0 {
            let relation = self.relation(record.relation());
            self.resolve_hint(relation, record.block(), header.info & heap2::OPMASK);
        }
        self.observe_any(header.rmid, &observed, || None, || None);
    }

    #[inline(always)]
    fn observe_any(
        &mut self,
        manager: u8,
        record: &Observed<'_>,
        compare_with_images: impl FnOnce() -> Option<bool>,
        locked_tuple: impl FnOnce() -> Option<u32>,
    ) {
        match (manager, record.info & heap::OPMASK) {
            (rmid::BTREE, _) => match record.info & RMGR_MASK {
                btree::INSERT_LEAF => self.leaf_insert(record),
                // The entry follows the offset at which its TID splits a posting list (`btree_xlog_insert`).
                btree::INSERT_POST if self.version >= Major::V13 => {
                    let data = record.data.get(POSTING_OFFSET_BYTES..).unwrap_or_default();
                    self.leaf_insert(&Observed { data, ..*record });
                }
                _ => {}
            },
            (rmid::HEAP2, kind) => self.heap2(record, kind),
            (rmid::SEQ, _) => self.sequence(record),
            (_, heap::UPDATE | heap::HOT_UPDATE) => self.update(record, compare_with_images),
            (_, heap::DELETE) => self.delete(record),
            (_, heap::LOCK) => self.lock(record, locked_tuple),
            (_, heap::INSERT) => self.insert(record),
            _ => {}
        }
    }

    /// Index of a relation in `relations`.
    #[inline(always)]
    fn relation(&mut self, relation: RelFileLocator) -> usize {
        let place = relation.relation as usize % RECENT;
        let (known, index) = self.recent[place];
        if known == relation && index != u32::MAX { index as usize } else { self.look_up(relation, place) }
    }

    #[inline(never)]
    fn look_up(&mut self, relation: RelFileLocator, place: usize) -> usize {
        let relations = &mut self.relations;
        let (last_leaves, last_hints) = (&mut self.last_leaves, &mut self.last_hints);
        let index = *self.index.entry(relation).or_insert_with(|| {
            relations.push((relation, Evidence::default()));
            last_leaves.push(u32::MAX);
            last_hints.push(None);
            (relations.len() - 1) as u32
        });
        self.recent[place] = (relation, index);
        index as usize
    }

    /// The records of a transaction that changes or locks a tuple of a relation.
    #[inline(always)]
    fn writing(&mut self, xid: u32, relation: usize) -> &mut Writing {
        let writing = &mut self.writing[xid as usize % SESSIONS];
        if writing.xid != xid {
            *writing = Writing { xid, relation: relation as u32, ..Writing::default() };
        }
        writing.has_several_relations |= writing.relation != relation as u32;
        writing.relation = relation as u32;
        writing
    }

    /// Takes the commit of a transaction with its number of records in this segment, the commit included.
    #[inline]
    pub fn commit(&mut self, xid: u32, records: u32) {
        let writing = self.writing[xid as usize % SESSIONS];
        if writing.xid != xid || xid == 0 {
            return;
        }
        let Writing { updates, unchanged_updates, of_updates, locks, key_share_locks, .. } = writing;
        let Some((_, evidence)) = self.relations.get_mut(writing.relation as usize) else { return };
        let is_of_several = writing.has_several_relations;
        evidence.key_share_transactions += u64::from(key_share_locks > 0);
        if updates > 0 && updates + of_updates + 1 == records {
            evidence.only_updates.add(is_of_several);
            if unchanged_updates == updates {
                evidence.only_unchanged.add(is_of_several);
            }
        } else if updates == 0 && locks > 0 && locks + 1 == records {
            evidence.only_row_locks.add(is_of_several);
        }
    }

    /// Counts a record that stores new tuples, and whether logical decoding can read them.
    #[inline(always)]
    fn stored(&mut self, record: &Observed<'_>, is_logical: bool) {
        // Decoding does not need catalogs' tuples.
        if record.relation.relation >= FIRST_NORMAL_OID {
            self.decoding.stored += 1;
            self.decoding.logical += u64::from(is_logical);
            if is_logical && record.has_image {
                self.decoding.bytes += record.data.len() as u64;
            }
        }
    }

    #[inline(always)]
    fn insert(&mut self, record: &Observed<'_>) {
        let flags = InsertFlags(record.main.get(2).copied().unwrap_or_default());
        self.stored(record, flags.contains_new_tuple());
        self.forget_update(record.xid);
        if flags.on_toast_relation() {
            self.toast_inserts += 1;
            self.last_toast[record.xid as usize % SESSIONS] = (record.xid, self.toast_inserts);
            let relation = self.relation(record.relation);
            self.relations[relation].1.toast_inserts += 1;
        }
        if flags.is_speculative() {
            let relation = self.relation(record.relation);
            self.relations[relation].1.speculative_inserts += 1;
        }
    }

    fn delete(&mut self, record: &Observed<'_>) {
        let relation = self.relation(record.relation);
        let evidence = &mut self.relations[relation].1;
        let Some((delete, old)) = XlHeapDelete::split(record.main) else { return };
        if record.has_origin {
            let key = tuple_key(record.relation, record.block, delete.offset, record.xid);
            let place = key as usize >> 1 & (LOCKS - 1);
            if self.locks[place].key == key {
                let lock = std::mem::take(&mut self.locks[place]);
                evidence.add_applied_lock(lock.bytes, lock.image_bytes);
            }
        }
        // An update that moves a row to another partition deletes the row in its old partition.
        match delete.flags.is_partition_move() {
            true => evidence.partition_moves += 1,
            false => {
                evidence.deletes_by.add(record.xid);
                evidence.delete_batches.add(record.xid);
            }
        }
        if delete.flags.0 & (DeleteFlags::CONTAINS_OLD_TUPLE | DeleteFlags::CONTAINS_OLD_KEY) != 0 {
            self.decoding.bytes += old.len() as u64;
            evidence.old_tuples.add(old.len() as u64, 0);
            evidence.whole_old_tuples += u64::from(delete.flags.contains_old_tuple());
        }
    }

    /// Counts values that were set. `nextval()` logs a value 32 numbers ahead (`SEQ_LOG_VALS` in
    /// `sequence.c`), and logs again once these are drawn.
    #[inline(never)]
    fn sequence(&mut self, record: &Observed<'_>) {
        const SEQ_LOG_VALS: u64 = 32;
        /// Offset of the value: after the relation and the header of the sequence's only tuple, whose first
        /// field it is.
        const VALUE_AT: usize = 12 + 24;
        let Some(value) = record.main.get(VALUE_AT..).and_then(|bytes| bytes.first_chunk()) else { return };
        let value = i64::from_le_bytes(*value);
        let before = self.last_values.insert(record.relation, value);
        let relation = self.relation(record.relation);
        let Some(before) = before else { return };
        let evidence = &mut self.relations[relation].1;
        if before.abs_diff(value) < SEQ_LOG_VALS {
            evidence.set_values += 1;
        } else if value > before {
            evidence.raised_values += 1;
        } else {
            evidence.lowered_values += 1;
        }
    }

    fn heap2(&mut self, record: &Observed<'_>, kind: u8) {
        if kind == heap2::MULTI_INSERT {
            let flags = InsertFlags(record.main.first().copied().unwrap_or_default());
            self.forget_update(record.xid);
            if record.has_origin {
                let rows = XlHeapMultiInsert::read(record.main).map_or(0, |insert| insert.count);
                let relation = self.relation(record.relation);
                (0..rows).for_each(|_| self.relations[relation].1.copies.add(record.xid));
            }
            return self.stored(record, flags.contains_new_tuple());
        }
        let since_17 = self.version >= Major::V17;
        let flags = || PruneFlags::read(record.main, self.version).unwrap_or_default();
        let (is_prune, is_freeze) = match kind {
            // Since 19, a query marks pages that it finds all-visible, even without pruning.
            heap2::PRUNE_ON_ACCESS if self.version >= Major::V19 => (flags().has_lists(), false),
            heap2::PRUNE_ON_ACCESS => (true, false),
            heap2::PRUNE_VACUUM_SCAN if since_17 => (false, flags().has_freeze_plans()),
            heap2::FREEZE_PAGE if !since_17 && self.version >= Major::V14 => (false, true),
            heap2::FREEZE_PAGE_UNTIL_13 if self.version < Major::V14 => (false, true),
            _ => return,
        };
        let relation = self.relation(record.relation);
        let evidence = &mut self.relations[relation].1;
        let (bytes, image_bytes) = (record.bytes.into(), record.image_bytes.into());
        if is_freeze {
            evidence.freezing.add(bytes, image_bytes);
        }
        if is_prune {
            evidence.prunes.add(bytes, image_bytes);
            evidence.prunes_in_transactions += u64::from(record.xid != 0);
            let writing = &mut self.writing[record.xid as usize % SESSIONS];
            writing.of_updates += u32::from(writing.xid == record.xid);
        }
    }

    #[inline(always)]
    fn lock(&mut self, record: &Observed<'_>, locked_tuple: impl FnOnce() -> Option<u32>) {
        let Some(lock) = XlHeapLock::read(record.main) else { return };
        let relation = self.relation(record.relation);
        let evidence = &mut self.relations[relation].1;
        let bits = lock.infobits;
        if bits.xmax_keyshr_lock() && !bits.xmax_excl_lock() {
            evidence.key_share_locks.add(record.bytes.into(), record.image_bytes.into());
            self.writing(record.xid, relation).key_share_locks += 1;
            return;
        }
        evidence.row_locks.add(record.bytes.into(), record.image_bytes.into());
        let key = tuple_key(record.relation, record.block, lock.offset, record.xid);
        self.writing(record.xid, relation).locks += 1;
        let evidence = &mut self.relations[relation].1;
        let place = key as usize >> 1 & (LOCKS - 1);
        let before = self.locks[place];
        if before.key == key && !before.is_for_update {
            // The first lock preceded the update, which itself takes the second lock.
            evidence.row_locks.remove(before.bytes.into(), before.image_bytes.into());
            evidence.upsert_locks.add(before.bytes.into(), before.image_bytes.into());
            self.writing(record.xid, relation).add_lock_of_update();
        }
        self.locks[place] = Lock {
            key,
            relation: relation as u32,
            bytes: record.bytes,
            image_bytes: record.image_bytes,
            toast_inserts: self.toast_inserts,
            is_for_update: is_for_update(bits),
            earlier: (before.key == key && before.is_for_update)
                .then_some((before.bytes, before.image_bytes)),
            tuple: locked_tuple(),
        };
    }

    /// Attributes the lock that a transaction took on a tuple to its update of that tuple. Returns the hash
    /// of the tuple's attributes if the lock's record contains them.
    #[inline(always)]
    fn resolve_lock(&mut self, key: u64, xid: u32, has_moved: bool, has_origin: bool) -> Option<u32> {
        let place = key as usize >> 1 & (LOCKS - 1);
        let lock = self.locks[place];
        if lock.key != key {
            return None;
        }
        self.locks[place] = Lock::default();
        let (toast_xid, toast_inserts) = self.last_toast[xid as usize % SESSIONS];
        let wrote_toast = toast_xid == xid && toast_inserts > lock.toast_inserts;
        let (_, evidence) = self.relations.get_mut(lock.relation as usize)?;
        if let Some((bytes, image_bytes)) = lock.earlier.filter(|_| has_origin) {
            evidence.add_applied_lock(bytes, image_bytes);
        }
        let count = if has_moved || wrote_toast {
            &mut evidence.update_locks
        } else if !lock.is_for_update {
            &mut evidence.upsert_locks
        } else if has_origin {
            evidence.add_applied_lock(lock.bytes, lock.image_bytes);
            return lock.tuple;
        } else {
            return lock.tuple;
        };
        count.add(lock.bytes.into(), lock.image_bytes.into());
        evidence.row_locks.remove(lock.bytes.into(), lock.image_bytes.into());
        self.writing(xid, lock.relation as usize).add_lock_of_update();
        lock.tuple
    }

    #[inline(always)]
    fn update(&mut self, record: &Observed<'_>, compare_with_images: impl FnOnce() -> Option<bool>) {
        let Some((update, old_tuple)) = XlHeapUpdate::split(record.main) else { return };
        self.stored(record, update.flags.contains_new_tuple());
        let has_moved = record.old_block != record.block;
        let key = |block, offset, xid| tuple_key(record.relation, block, offset, xid);
        let old_key = key(record.old_block, update.old_offset, record.xid);
        let locked_tuple = self.resolve_lock(old_key, record.xid, has_moved, record.has_origin);
        let by_same = self.rewrite_tuple(0, old_key, key(record.block, update.new_offset, record.xid));
        let by_any = self.rewrite_tuple(
            1,
            key(record.old_block, update.old_offset, 0),
            key(record.block, update.new_offset, 0),
        );
        let relation = self.relation(record.relation);
        self.relations[relation].1.update_offsets += u64::from(update.new_offset);
        self.updates[record.xid as usize % SESSIONS] = LastUpdate {
            xid: record.xid,
            old: Tid { block: record.old_block, offset_number: update.old_offset },
            new: Tid { block: record.block, offset_number: update.new_offset },
        };
        let is_unchanged = match record.has_image || has_moved {
            true => compare_with_images().or_else(|| {
                let (shared, tuple) = SharedLengths::split(update.flags, record.data)?;
                let is_whole = shared == SharedLengths::default();
                locked_tuple.filter(|_| is_whole).and_then(|old| Some(old == hash_of(after_header(tuple)?)))
            }),
            false => is_unchanged(update.flags, record.data, old_tuple),
        };
        let relation = self.relation(record.relation);
        let evidence = &mut self.relations[relation].1;
        evidence.updates_by.add(record.xid);
        evidence.update_batches.add(record.xid);
        evidence.whole_new_tuples += u64::from(update.flags.contains_new_tuple());
        evidence.moved_updates += u64::from(has_moved);
        evidence.same_transaction_updates += u64::from(by_same);
        evidence.recent_updates += u64::from(by_any);
        evidence.compared_updates += u64::from(is_unchanged.is_some());
        evidence.unchanged_updates += u64::from(is_unchanged == Some(true));
        let writing = self.writing(record.xid, relation);
        writing.updates += 1;
        writing.unchanged_updates += u32::from(is_unchanged == Some(true));
        let evidence = &mut self.relations[relation].1;
        if update.flags.0 & (UpdateFlags::CONTAINS_OLD_TUPLE | UpdateFlags::CONTAINS_OLD_KEY) != 0 {
            self.decoding.bytes += old_tuple.len() as u64;
            evidence.old_tuples.add(old_tuple.len() as u64, 0);
            evidence.whole_old_tuples += u64::from(update.flags.contains_old_tuple());
        }
    }

    /// Whether a table of written tuples contains the old tuple; adds the new one.
    #[inline(always)]
    fn rewrite_tuple(&mut self, table: usize, old: u64, new: u64) -> bool {
        // The lower half of a key is the place. The upper half, which is never 0, identifies the tuple.
        let place = |key: u64| key as usize >> 1 & (TUPLES - 1);
        let is_known = self.written[place(old)][table] == (old >> 32) as u32;
        self.written[place(new)][table] = (new >> 32) as u32;
        is_known
    }

    #[inline(always)]
    fn leaf_insert(&mut self, record: &Observed<'_>) {
        let relation = self.relation(record.relation);
        let is_change = std::mem::replace(&mut self.last_leaves[relation], record.block) != record.block;
        let update = self.update_of(record.xid);
        let row = Tid::read(record.data);
        let update_of_row = update.filter(|update| Some(update.new) == row);
        let comparison = row.and_then(|row| self.compare_keys(record, row, update_of_row));
        self.writing[record.xid as usize % SESSIONS].of_updates += u32::from(update.is_some());
        let evidence = &mut self.relations[relation].1;
        evidence.leaf_inserts += 1;
        evidence.leaf_changes += u64::from(is_change);
        evidence.leaf_images += u64::from(record.image_bytes);
        if update.is_some() {
            evidence.update_entries += 1;
            evidence.update_images += u64::from(record.image_bytes);
        }
        evidence.changed_keys += u64::from(comparison == Some(true));
        evidence.same_keys += u64::from(comparison == Some(false));
    }

    /// The update that the transaction's next index entries belong to, if the transaction has written no
    /// other row since. Each row is followed by its entries (`ExecInsertIndexTuples`), with or without an
    /// image. `walden-whatif` applies the same rule to the known indexes of a table (`objects.rs`).
    #[inline(always)]
    fn update_of(&self, xid: u32) -> Option<LastUpdate> {
        let update = self.updates[xid as usize % SESSIONS];
        (xid != 0 && update.xid == xid).then_some(update)
    }

    /// Forgets a transaction's update when it inserts a row: its next index entries belong to that row.
    #[inline(always)]
    fn forget_update(&mut self, xid: u32) {
        let update = &mut self.updates[xid as usize % SESSIONS];
        if update.xid == xid {
            *update = LastUpdate::NONE;
        }
    }

    /// Whether the index entry of an updated row has a key other than the previous version's entry; `None` if
    /// that entry was not inserted recently.
    #[inline(always)]
    fn compare_keys(&mut self, record: &Observed<'_>, tid: Tid, update: Option<LastUpdate>) -> Option<bool> {
        let hash = hash_of(record.data.get(INDEX_TUPLE_HEADER_BYTES..)?);
        let entry = |tid: Tid| {
            let key = tuple_key(record.relation, tid.block, tid.offset_number, 0);
            (key as usize >> 1 & (TUPLES - 1), (key >> 32) as u32)
        };
        let before = update.map(|update| entry(update.old)).and_then(|(place, identity)| {
            let [known, before] = self.keys[place];
            (known == identity).then_some(before)
        });
        let (place, identity) = entry(tid);
        self.keys[place] = [identity, hash];
        before.map(|before| before != hash)
    }
}

/// Whether a lock has the bits of `SELECT FOR UPDATE`. An update that keeps the key takes a weaker lock.
#[inline(always)]
fn is_for_update(bits: InfoBits) -> bool {
    bits.xmax_excl_lock() && bits.keys_updated()
}

fn hash_of(key: &[u8]) -> u32 {
    use std::hash::Hasher;
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(key);
    (hasher.finish() >> 32) as u32
}

/// Compares the attributes of an update's old and new tuple by the record's data, without images; `None` if
/// the data does not suffice.
#[inline(always)]
fn is_unchanged(flags: UpdateFlags, data: &[u8], old_tuple: &[u8]) -> Option<bool> {
    let (_, new_tuple) = SharedLengths::split(flags, data)?;
    if flags.contains_old_tuple() {
        return Some(after_header(old_tuple)? == after_header(new_tuple)?);
    }
    if flags.contains_new_tuple() {
        // Logical decoding needs the whole tuple, so the record includes the parts shared with the old one.
        return None;
    }
    let (header, rest) = XlHeapHeader::split(new_tuple)?;
    Some(rest.len() == header.null_bitmap_len()?)
}

/// Returns the null bitmap and attributes of a tuple as it is stored in records.
fn after_header(tuple: &[u8]) -> Option<&[u8]> {
    XlHeapHeader::split(tuple).map(|(_, rest)| rest)
}

/// Compares the tuples of an update whose record contains images of their pages.
fn compare_with_images(record: &Record<'_>, new: &BlockRef, old: Option<&BlockRef>) -> Option<bool> {
    let update = XlHeapUpdate::read(record.main_data())?;
    let old_tuple = tuple_in_image(record, old.unwrap_or(new), update.old_offset)?;
    let data = record.block_data(new);
    let new_tuple = match data.is_empty() {
        true => tuple_in_image(record, new, update.new_offset)?.get(TUPLE_HEADER..)?,
        false => {
            let (shared, tuple) = SharedLengths::split(update.flags, data)?;
            if shared != SharedLengths::default() {
                return None;
            }
            after_header(tuple)?
        }
    };
    Some(old_tuple.get(TUPLE_HEADER..)? == new_tuple)
}

/// A tuple on the page in a block's uncompressed image.
fn tuple_in_image<'a>(record: &Record<'a>, block: &BlockRef, offset: u16) -> Option<&'a [u8]> {
    let image = block.image.filter(|image| image.apply && image.compression == Compression::None)?;
    let bytes = record.image_data(&image);
    // Line pointers are numbered from 1.
    let at = (offset > 0).then(|| line_pointer_offset(offset))?;
    let hole = usize::from(image.hole_offset)..usize::from(image.hole_offset) + usize::from(image.hole_len);
    if !hole.is_empty() && at + LINE_POINTER_BYTES > hole.start {
        return None;
    }
    let line_pointer = LinePointer(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?));
    let (start, length) = (usize::from(line_pointer.offset()), usize::from(line_pointer.len()));
    let start = if start >= hole.end { start.checked_sub(hole.len())? } else { start };
    bytes.get(start..start + length)
}
