//! The size of a record under another `wal_level`.
//!
//! `logical` to `replica` is exact: the data for logical decoding is removed. `replica` to `logical` depends
//! on the catalog (replica identities) and is estimated. Under `minimal`, changes of files created by the
//! same transaction are not logged; small files are logged as full-page images at commit
//! (`smgrDoPendingSyncs`).

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::payload::heap::{
    SharedLengths, XlHeapDelete, XlHeapHeader, XlHeapInsert, XlHeapMultiInsert, XlHeapNewCid, XlHeapUpdate,
    moved_from,
};
use walden_format::payload::standby::InvalidationMessage;
use walden_format::payload::xact::{DBINFO_BYTES, TransactionFlags, XINFO_BYTES};
use walden_format::payload::xlog::WalLevel;
use walden_format::payload::{self, Payload};
use walden_format::record::{
    Fork, LONG_DATA_HEADER, RECORD_HEADER, Record, RelFileLocator, SHORT_DATA_HEADER, TOPLEVEL_XID_HEADER,
};
use walden_format::rmgr::info::{btree, gist, heap, heap2, smgr, xact};
use walden_format::rmgr::rmid;
use walden_format::transam::FIRST_NORMAL_OID;
use walden_format::version::Major;
use walden_redo::page::{LINE_POINTER_BYTES, PAGE_HEADER_BYTES};
use walden_redo::{PAGE_BYTES, Page, Slot, Touched, reconstruct};

/// The values of `wal_level` that result in different WAL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// `minimal`
    Minimal,
    /// `replica`, and its predecessors `archive` and `hot_standby`.
    Replica,
    /// `logical`
    Logical,
}

impl Level {
    /// Returns the level of a setting; an unknown value counts as `replica`.
    pub fn from_setting(level: WalLevel) -> Level {
        match level {
            WalLevel::Minimal => Level::Minimal,
            WalLevel::Logical => Level::Logical,
            _ => Level::Replica,
        }
    }
}

/// The difference of a record under a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Variant {
    /// Whether it is written at all.
    pub is_written: bool,
    /// Bytes to add to its headers and main data.
    pub fixed: i32,
    /// Bytes of additional records, each padded to 8.
    pub extra_records: u32,
    /// Whether block 0's data is logged even with a full-page image.
    pub keeps_data: bool,
    /// Bytes by which block 0's data is longer than as traced, without an image.
    pub data: i32,
    /// Whether the figures are estimates.
    pub estimated: bool,
}

/// Bits of `xl_info` that distinguish the record kinds used here; the highest bit is a flag.
const KIND_MASK: u8 = heap::OPMASK;
const XLOG_RECORD: u32 = RECORD_HEADER as u32;
const MAIN_HEADER: u32 = SHORT_DATA_HEADER as u32;
/// Bytes of a `NEW_CID` record.
const NEW_CID: u32 = XLOG_RECORD + MAIN_HEADER + XlHeapNewCid::WIDTH as u32;
/// The replica identity of a deleted tuple with a numeric key: header, null bitmap, 8 bytes.
const USUAL_KEY: i32 = XlHeapHeader::WIDTH as i32 + 1 + 8;
const UPDATE: u32 = XlHeapUpdate::WIDTH as u32;
const DELETE: u32 = XlHeapDelete::WIDTH as u32;
const INVALIDATION: u32 = InvalidationMessage::WIDTH as u32;
/// `xl_xact_dbinfo`, which a commit contains for its invalidation messages or for logical decoding
/// (`XactLogCommitRecord`).
const DATABASE: i32 = DBINFO_BYTES as i32;
/// `xl_xact_xinfo`, which a commit contains only with other optional data (`XLOG_XACT_HAS_INFO`).
const XINFO: i32 = XINFO_BYTES as i32;

/// Returns the difference of a record that was written under `from` if written under `to`.
pub fn variant(
    record: &Record<'_>,
    touched: &[Touched],
    from: Level,
    to: Level,
    identities: &Identities,
) -> Variant {
    let as_traced = Variant { is_written: true, keeps_data: keeps_data(record, from), ..Variant::default() };
    match (from, to) {
        _ if from == to => as_traced,
        (Level::Logical, _) => {
            let replica = logical_to_replica(record, touched, as_traced);
            if to == Level::Minimal { replica_to_minimal(record, replica) } else { replica }
        }
        (Level::Replica, Level::Minimal) => replica_to_minimal(record, as_traced),
        (_, Level::Logical) => replica_to_logical(record, touched, as_traced, identities),
        // The data that `minimal` did not log is unknown; all other data stays the same.
        _ => Variant { estimated: true, ..as_traced },
    }
}

/// Whether the new tuple is logged even with a full-page image, for logical decoding.
pub(crate) fn keeps_data(record: &Record<'_>, level: Level) -> bool {
    if level != Level::Logical {
        return false;
    }
    let main = record.main_data();
    // The flag `contains_new_tuple` of inserts and updates.
    match (record.header.rmid, record.rmgr_info() & KIND_MASK) {
        (rmid::HEAP, heap::INSERT) => {
            XlHeapInsert::read(main).is_some_and(|insert| insert.flags.contains_new_tuple())
        }
        (rmid::HEAP, heap::UPDATE | heap::HOT_UPDATE) => {
            XlHeapUpdate::read(main).is_some_and(|update| update.flags.contains_new_tuple())
        }
        (rmid::HEAP2, heap2::MULTI_INSERT) => {
            XlHeapMultiInsert::read(main).is_some_and(|insert| insert.flags.contains_new_tuple())
        }
        _ => false,
    }
}

fn logical_to_replica(record: &Record<'_>, touched: &[Touched], as_traced: Variant) -> Variant {
    let main = record.main_len;
    let mut variant = Variant { keeps_data: false, ..as_traced };
    if record.toplevel_xid.is_some() {
        variant.fixed -= TOPLEVEL_XID_HEADER as i32;
    }
    match (record.header.rmid, record.rmgr_info() & KIND_MASK) {
        (rmid::XACT, xact::COMMIT | xact::COMMIT_PREPARED) => {
            if let Ok(Payload::Commit(end)) = payload::parse(record)
                && end.flags.has_database()
                && end.invalidations.is_empty()
            {
                variant.fixed -= database_bytes(end.flags.0);
            }
        }
        (rmid::HEAP2, heap2::REWRITE | heap2::NEW_CID)
        | (rmid::HEAP, heap::TRUNCATE)
        | (rmid::XACT, xact::INVALIDATION) => variant.is_written = false,
        (rmid::HEAP, heap::DELETE) => variant.fixed -= len_beyond(main, DELETE),
        (rmid::HEAP, heap::UPDATE | heap::HOT_UPDATE) => {
            variant.fixed -= len_beyond(main, UPDATE);
            if as_traced.keeps_data {
                match reconstruct::shared_with_old(record, touched) {
                    Some(shared) => variant.data = -bytes_saved(shared),
                    None => variant.estimated = true,
                }
            }
        }
        _ => {}
    }
    variant
}

fn replica_to_logical(
    record: &Record<'_>,
    touched: &[Touched],
    as_traced: Variant,
    identities: &Identities,
) -> Variant {
    let mut variant = as_traced;
    let Some(block) = record.blocks.first() else {
        if record.header.rmid == rmid::XACT
            && let Ok(Payload::Commit(end)) = payload::parse(record)
        {
            if !end.flags.has_database() {
                variant.fixed += database_bytes(end.flags.0);
            }
            // The same invalidation messages are also logged at the end of each command.
            let messages = end.invalidations.len() as u32;
            if messages > 0 {
                variant.extra_records = XLOG_RECORD + MAIN_HEADER + 4 + INVALIDATION * messages;
                variant.estimated = true;
            }
        }
        return variant;
    };
    let is_catalog = block.relation.relation < FIRST_NORMAL_OID;
    let kind = record.rmgr_info() & KIND_MASK;
    let changes_row = match record.header.rmid {
        rmid::HEAP => matches!(kind, heap::INSERT | heap::DELETE | heap::UPDATE | heap::HOT_UPDATE),
        rmid::HEAP2 => kind == heap2::MULTI_INSERT,
        _ => false,
    };
    if !changes_row {
        return variant;
    }
    if is_catalog {
        let rows = match payload::parse(record) {
            Ok(Payload::MultiInsert(rows)) => u32::from(rows.count),
            _ => 1,
        };
        variant.extra_records = rows * NEW_CID.next_multiple_of(8);
        variant.estimated = true;
        return variant;
    }
    variant.keeps_data = kind != heap::DELETE;
    if identities.is_full(block.relation) && record.header.rmid == rmid::HEAP && kind != heap::INSERT {
        match old_tuple_bytes(record, touched) {
            Some(bytes) => {
                let all = record.main_len + bytes;
                let longer_header = u32::from(all > 255 && record.main_len <= 255)
                    * (LONG_DATA_HEADER - SHORT_DATA_HEADER) as u32;
                variant.fixed += (bytes + longer_header) as i32;
            }
            None => variant.estimated = true,
        }
    }
    match kind {
        heap::DELETE if identities.is_full(block.relation) => {}
        heap::DELETE => {
            // Only the catalog contains the key's columns.
            variant.fixed += USUAL_KEY;
            variant.estimated = true;
        }
        heap::UPDATE | heap::HOT_UPDATE => match reconstruct::shared_with_old(record, touched) {
            Some(shared) => variant.data = bytes_saved(shared),
            None => variant.estimated = true,
        },
        _ => {}
    }
    variant
}

/// Removes the data that is logged for standbys.
fn replica_to_minimal(record: &Record<'_>, as_traced: Variant) -> Variant {
    let mut variant = as_traced;
    match (record.header.rmid, record.rmgr_info() & KIND_MASK) {
        (rmid::STANDBY, _) | (rmid::XACT, xact::ASSIGNMENT) => variant.is_written = false,
        (rmid::BTREE, _) if record.rmgr_info() == btree::REUSE_PAGE => variant.is_written = false,
        (rmid::GIST, _) if record.rmgr_info() == gist::PAGE_REUSE => variant.is_written = false,
        (rmid::XACT, xact::COMMIT | xact::COMMIT_PREPARED) => {
            if let Ok(Payload::Commit(end)) = payload::parse(record)
                && !end.invalidations.is_empty()
            {
                // Without `logical`, commits without invalidations have no database.
                variant.fixed -= (4 + INVALIDATION * end.invalidations.len() as u32) as i32;
                variant.fixed -= database_bytes(end.flags.0 & !FOR_STANDBYS);
            }
        }
        _ => {}
    }
    variant
}

/// The flags of data that a commit logs only for standbys.
const FOR_STANDBYS: u32 = TransactionFlags::HAS_INVALIDATIONS
    | TransactionFlags::UPDATE_RELCACHE_FILE
    | TransactionFlags::HAS_ACCESS_EXCLUSIVE_LOCKS;

/// Returns the bytes of the database in a commit with these flags, including the flags themselves if no
/// others are set.
fn database_bytes(flags: u32) -> i32 {
    DATABASE + if flags & !TransactionFlags::HAS_DATABASE == 0 { XINFO } else { 0 }
}

/// Returns the bytes of main data after the fixed fields, including the longer header that they may require.
fn len_beyond(main: u32, fixed: u32) -> i32 {
    let longer_header = if main > 255 { (LONG_DATA_HEADER - SHORT_DATA_HEADER) as u32 } else { 0 };
    if main > fixed { (main - fixed + longer_header) as i32 } else { 0 }
}

/// Returns the bytes that an update saves by the common prefix and suffix of both tuples; each costs a length
/// of 2 bytes.
fn bytes_saved(shared: SharedLengths) -> i32 {
    [shared.prefix, shared.suffix].into_iter().filter(|&len| len > 0).map(|len| i32::from(len) - 2).sum()
}

/// Returns the bytes of the replica identity of the row that a record updates or deletes, if it is the whole
/// row (`ExtractReplicaIdentity`).
fn old_tuple_bytes(record: &Record<'_>, touched: &[Touched]) -> Option<u32> {
    let main = record.main_data();
    let offset = match record.rmgr_info() & KIND_MASK {
        heap::DELETE => XlHeapDelete::read(main)?.offset,
        _ => XlHeapUpdate::read(main)?.old_offset,
    };
    let old = moved_from(record).or(record.block(0))?;
    let index = record.blocks.iter().position(|block| block.id == old.id)?;
    let touched = touched.get(index)?;
    let page = touched.page.as_deref().or(touched.image.as_deref())?;
    let tuple = tuple_at(page, offset)?;
    Some((tuple.len() - TUPLE_HEADER + XlHeapHeader::WIDTH) as u32)
}

/// Returns the bytes of the tuple at an offset number.
fn tuple_at(page: &Page, offset: u16) -> Option<&[u8]> {
    const NORMAL: u32 = 1;
    if offset == 0 || offset > page.items() {
        return None;
    }
    let pointer = page.u32_at(PAGE_HEADER_BYTES + usize::from(offset - 1) * LINE_POINTER_BYTES);
    let (at, flags, len) = (pointer as usize & 0x7FFF, pointer >> 15 & 3, (pointer >> 17) as usize);
    let tuple = page.0.get(at..at + len)?;
    (flags == NORMAL && len >= TUPLE_HEADER).then_some(tuple)
}

/// `SizeofHeapTupleHeader`
const TUPLE_HEADER: usize = 23;

/// Tables with `REPLICA IDENTITY FULL`, as far as pages of `pg_class` in the trace show them.
#[derive(Debug, Default)]
pub struct Identities {
    full: FxHashSet<(u32, u32)>,
}

impl Identities {
    /// `pg_class`, whose file has this number until it is rewritten.
    const PG_CLASS: u32 = 1259;
    /// The offset of `relfilenode` in a row.
    const FILE: usize = 88;

    fn is_full(&self, table: RelFileLocator) -> bool {
        self.full.contains(&(table.database, table.relation))
    }

    /// Reads the rows of `pg_class` on the pages that a record changed.
    pub fn observe(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for (block, touched) in record.blocks.iter().zip(touched) {
            let is_class = block.relation.relation == Self::PG_CLASS && block.fork == Fork::MAIN;
            let Some(page) = touched.page.as_deref().filter(|_| is_class) else { continue };
            for row in (1..=page.items()).filter_map(|offset| tuple_at(page, offset)) {
                self.note(block.relation.database, record.version, row);
            }
        }
    }

    fn note(&mut self, database: u32, version: Major, tuple: &[u8]) {
        const XMAX: std::ops::Range<usize> = 4..8;
        const HEADER_BYTES: usize = 22;
        // Offset of `relreplident`; 18 added `relallfrozen` before it.
        let identity_at = if version >= Major::V18 { 130 } else { 126 };
        let row = tuple.get(usize::from(tuple[HEADER_BYTES])..).unwrap_or_default();
        let (Some(file), Some(identity)) = (row.get(Self::FILE..Self::FILE + 4), row.get(identity_at)) else {
            return;
        };
        // An old version of the row has the updating transaction as its `xmax`.
        if tuple[XMAX] != [0; 4] {
            return;
        }
        let table = (database, u32::from_le_bytes([file[0], file[1], file[2], file[3]]));
        match identity {
            b'f' => self.full.insert(table),
            _ => self.full.remove(&table),
        };
    }
}

/// Files created by a transaction in progress, whose changes `minimal` would not log.
#[derive(Debug, Default)]
pub struct Unlogged {
    files: FxHashMap<RelFileLocator, File>,
    /// Files whose creation precedes any other record of its transaction, which therefore has no xid yet: a
    /// `CREATE INDEX`, or a `CREATE TABLE` before a `COPY`.
    without_xid: Vec<RelFileLocator>,
    /// The youngest transaction so far.
    youngest: u32,
}

#[derive(Debug)]
struct File {
    created_by: u32,
    /// Number of blocks, and for the first blocks their slots in the page store.
    blocks: u64,
    slots: FxHashMap<(Fork, u32), Slot>,
    /// Whether rows were inserted one by one, which searches the free space map
    /// (`RelationGetBufferForTuple`).
    has_single_inserts: bool,
}

/// Blocks per file whose slots are kept. Larger files exceed any plausible `wal_skip_threshold` and are only
/// counted.
const MAX_SLOTS: usize = (64 << 20) / PAGE_BYTES;

/// A file that is logged as full-page images at commit.
#[derive(Debug)]
pub struct SmallFile {
    /// The file.
    pub relation: RelFileLocator,
    /// The pages with their slots in the page store, in the order of the file.
    pub pages: Vec<((Fork, u32), Slot)>,
    /// Whether the file's table may have a free space map, which is not logged. A table of two pages or more
    /// has a free space map, unless `COPY` or `CREATE TABLE AS` filled the table, which WAL does not
    /// distinguish from `INSERT`.
    pub may_have_free_space_map: bool,
}

impl Unlogged {
    /// Observes file creations and transaction ends. Returns the files of a committing transaction that are
    /// smaller than `threshold` bytes.
    pub fn observe(&mut self, record: &Record<'_>, threshold: u64) -> Vec<SmallFile> {
        let mut small = Vec::new();
        self.observe_xid(record);
        match (record.header.rmid, record.rmgr_info() & KIND_MASK) {
            (rmid::SMGR, smgr::CREATE) => {
                if let Ok(Payload::StorageCreate(create)) = payload::parse(record)
                    && create.fork != Fork::INIT
                {
                    if record.header.xid == 0 {
                        self.without_xid.push(create.relation);
                    }
                    self.files.entry(create.relation).or_insert_with(|| File {
                        created_by: record.header.xid,
                        blocks: 0,
                        slots: FxHashMap::default(),
                        has_single_inserts: false,
                    });
                }
            }
            (rmid::XACT, xact::COMMIT | xact::ABORT | xact::COMMIT_PREPARED | xact::ABORT_PREPARED)
                if !self.files.is_empty() =>
            {
                let (end, committed) = match payload::parse(record) {
                    Ok(Payload::Commit(end)) => (end, true),
                    Ok(Payload::Abort(end)) => (end, false),
                    _ => return small,
                };
                let own = end.twophase_xid.unwrap_or(record.header.xid);
                let ends = |xid: u32| xid == own || end.subxacts.into_iter().any(|sub| sub == xid);
                for (relation, file) in self.files.extract_if(|_, file| ends(file.created_by)) {
                    let fits = file.blocks * (PAGE_BYTES as u64) < threshold;
                    if committed && fits && file.slots.len() as u64 == file.blocks {
                        let mut pages: Vec<_> = file.slots.into_iter().collect();
                        pages.sort_unstable_by_key(|(place, _)| *place);
                        let may_have_free_space_map = file.has_single_inserts && pages.len() > 1;
                        small.push(SmallFile { relation, pages, may_have_free_space_map });
                    }
                }
            }
            _ => {}
        }
        small
    }

    /// The creator of a file without an xid is the next transaction to get one, because it writes to the
    /// catalog immediately.
    fn observe_xid(&mut self, record: &Record<'_>) {
        let xid = record.header.xid;
        if xid == 0 {
            return;
        }
        if self.youngest == 0 || xid.wrapping_sub(self.youngest).cast_signed() > 0 {
            self.youngest = xid;
            for relation in self.without_xid.drain(..) {
                if let Some(file) = self.files.get_mut(&relation) {
                    file.created_by = xid;
                }
            }
        }
    }

    /// Returns whether a record changes only files that `minimal` does not log.
    pub fn covers(&self, record: &Record<'_>) -> bool {
        !self.files.is_empty()
            && !record.blocks.is_empty()
            && record.blocks.iter().all(|block| self.files.contains_key(&block.relation))
    }

    /// Records that a row was inserted into a file that `minimal` does not log.
    pub fn note_insert(&mut self, relation: RelFileLocator) {
        if let Some(file) = self.files.get_mut(&relation) {
            file.has_single_inserts = true;
        }
    }

    /// Records the slot of a page of a file that `minimal` does not log.
    pub fn note_page(&mut self, relation: RelFileLocator, place: (Fork, u32), slot: Slot) {
        let Some(file) = self.files.get_mut(&relation) else { return };
        if let Some(known) = file.slots.get_mut(&place) {
            *known = slot;
        } else if file.slots.len() < MAX_SLOTS {
            file.slots.insert(place, slot);
            file.blocks += 1;
        } else {
            // No longer distinguished from known blocks, but beyond any threshold.
            file.blocks = file.blocks.max(MAX_SLOTS as u64 + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_pg_class_show_the_replica_identity() {
        const DATABASE: u32 = 5;
        let table = RelFileLocator { tablespace: 1663, database: DATABASE, relation: 16384 };
        let row = |identity_at: usize, identity: u8, xmax: u8| {
            let mut tuple = vec![0; 24 + 140];
            (tuple[4], tuple[22]) = (xmax, 24);
            tuple[24 + 88..24 + 92].copy_from_slice(&16384_u32.to_le_bytes());
            tuple[24 + identity_at] = identity;
            tuple
        };
        for (version, at) in [(Major::V15, 126), (Major::V17, 126), (Major::V18, 130)] {
            let mut identities = Identities::default();
            identities.note(DATABASE, version, &row(at, b'd', 0));
            assert!(!identities.is_full(table));
            identities.note(DATABASE, version, &row(at, b'f', 0));
            // The old version of the row after `ALTER TABLE`.
            identities.note(DATABASE, version, &row(at, b'd', 7));
            assert!(identities.is_full(table), "{version}");
            identities.note(DATABASE, version, &row(at, b'n', 0));
            assert!(!identities.is_full(table));
            identities.note(DATABASE, version, &[0; TUPLE_HEADER]);
        }
    }

    #[test]
    fn a_commit_has_its_database_for_logical_decoding() {
        assert_eq!(database_bytes(0), 12);
        assert_eq!(database_bytes(TransactionFlags::HAS_DATABASE), 12);
        assert_eq!(database_bytes(TransactionFlags::HAS_DATABASE | TransactionFlags::HAS_SUBXACTS), 8);
        assert_eq!(database_bytes(TransactionFlags::HAS_SUBXACTS), 8);
    }
}
