//! What a record would be under another `wal_level`.
//!
//! `logical` to `replica` is exact: what is only there for logical decoding goes. `replica` to `logical` lacks what only the
//! catalog knows (replica identities) and is estimated. Under `minimal` what goes into files that the transaction itself made
//! is not logged; small ones are logged as images when it commits (`smgrDoPendingSyncs`).

use rustc_hash::FxHashMap;
use walden_format::payload::xlog::WalLevel;
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record, RelFileLocator};
use walden_format::rmgr::info::{btree, heap, heap2, smgr, xact};
use walden_format::rmgr::rmid;
use walden_redo::replay::Touched;
use walden_redo::{PAGE_BYTES, displaced};

/// The levels that differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// `minimal`
    Minimal,
    /// `replica`, which `archive` and `hot_standby` became.
    Replica,
    /// `logical`
    Logical,
}

impl Level {
    /// That of a setting; a level that this version does not know is taken for `replica`.
    pub fn of(level: WalLevel) -> Level {
        match level {
            WalLevel::Minimal => Level::Minimal,
            WalLevel::Logical => Level::Logical,
            _ => Level::Replica,
        }
    }
}

/// A record under a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Variant {
    /// It is written at all.
    pub written: bool,
    /// Bytes to add to what it has now, of headers and main data.
    pub fixed: i32,
    /// Records that come with it, in bytes; each is padded to 8.
    pub beside: u32,
    /// Block 0's data stays beside an image.
    pub keeps_data: bool,
    /// Bytes that block 0's data has more than now, without an image.
    pub data: i32,
    /// The figures are estimates.
    pub estimated: bool,
}

/// The kinds of the resource managers that matter here are told apart by these bits; the highest is a flag.
const KIND_MASK: u8 = heap::OPMASK;
const XLOG_RECORD: u32 = 24;
const MAIN_HEADER: u32 = 2;
/// `SizeOfHeapNewCid`
const NEW_CID: u32 = XLOG_RECORD + MAIN_HEADER + 34;
/// A deleted row's key as logical decoding needs it, where it is a number: header, null bitmap, 8 bytes.
const USUAL_KEY: i32 = 5 + 1 + 8;
/// `SizeOfHeapUpdate`, `SizeOfHeapDelete`
const UPDATE: u32 = 14;
const DELETE: u32 = 8;
/// `SharedInvalidationMessage`
const INVALIDATION: u32 = 16;
/// Files of the catalog have smaller numbers until they are rewritten (`FirstNormalObjectId`).
const FIRST_NORMAL: u32 = 16_384;
/// Set in the info byte of an end of transaction that has more than its time (`XLOG_XACT_HAS_INFO`).
const DATABASE: u32 = 8;

/// What a record is under `to` if it was written under `from`.
pub fn variant(record: &Record<'_>, touched: &[Touched], from: Level, to: Level) -> Variant {
    let now = Variant { written: true, keeps_data: keeps_data(record, from), ..Variant::default() };
    match (from, to) {
        _ if from == to => now,
        (Level::Logical, _) => {
            let replica = without_logical(record, touched, now);
            if to == Level::Minimal { without_standby(record, replica) } else { replica }
        }
        (Level::Replica, Level::Minimal) => without_standby(record, now),
        (_, Level::Logical) => with_logical(record, touched, now),
        // What `minimal` did not log can't be told; the rest is the same.
        _ => Variant { estimated: true, ..now },
    }
}

/// Whether the row version stays beside an image, for logical decoding.
fn keeps_data(record: &Record<'_>, level: Level) -> bool {
    if level != Level::Logical {
        return false;
    }
    let main = record.main_data();
    // `contains_new_tuple` of inserts and updates.
    match (record.header.rmid, record.kind() & KIND_MASK) {
        (rmid::HEAP, heap::INSERT) => main.get(2).is_some_and(|flags| flags & 1 << 3 != 0),
        (rmid::HEAP, heap::UPDATE | heap::HOT_UPDATE) => main.get(7).is_some_and(|flags| flags & 1 << 4 != 0),
        (rmid::HEAP2, heap2::MULTI_INSERT) => main.first().is_some_and(|flags| flags & 1 << 3 != 0),
        _ => false,
    }
}

fn without_logical(record: &Record<'_>, touched: &[Touched], now: Variant) -> Variant {
    let main = record.main_len;
    let mut variant = Variant { keeps_data: false, ..now };
    if record.toplevel_xid.is_some() {
        variant.fixed -= 5;
    }
    match (record.header.rmid, record.kind() & KIND_MASK) {
        (rmid::HEAP2, heap2::REWRITE | heap2::NEW_CID)
        | (rmid::HEAP, heap::TRUNCATE)
        | (rmid::XACT, xact::INVALIDATION) => variant.written = false,
        (rmid::HEAP, heap::DELETE) => variant.fixed -= beyond(main, DELETE),
        (rmid::HEAP, heap::UPDATE | heap::HOT_UPDATE) => {
            variant.fixed -= beyond(main, UPDATE);
            if now.keeps_data {
                match displaced::shared_with_old(record, touched) {
                    Some((prefix, suffix)) => variant.data = -saved(prefix, suffix),
                    None => variant.estimated = true,
                }
            }
        }
        _ => {}
    }
    variant
}

fn with_logical(record: &Record<'_>, touched: &[Touched], now: Variant) -> Variant {
    let mut variant = now;
    let Some(block) = record.blocks.first() else {
        if record.header.rmid == rmid::XACT
            && let Ok(Payload::Commit(end)) = payload::parse(record)
        {
            // The same messages are logged at the end of each command.
            let messages = end.invalidations.len() as u32;
            if messages > 0 {
                variant.beside = XLOG_RECORD + MAIN_HEADER + 4 + INVALIDATION * messages;
                variant.estimated = true;
            }
        }
        return variant;
    };
    let is_catalog = block.relation.relation < FIRST_NORMAL;
    let kind = record.kind() & KIND_MASK;
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
        variant.beside = rows * NEW_CID.next_multiple_of(8);
        variant.estimated = true;
        return variant;
    }
    variant.keeps_data = kind != heap::DELETE;
    match kind {
        heap::DELETE => {
            // Which columns are the key, and whether there is one, is in the catalog.
            variant.fixed += USUAL_KEY;
            variant.estimated = true;
        }
        heap::UPDATE | heap::HOT_UPDATE => match displaced::shared_with_old(record, touched) {
            Some((prefix, suffix)) => variant.data = saved(prefix, suffix),
            None => variant.estimated = true,
        },
        _ => {}
    }
    variant
}

/// `minimal` logs nothing that only a standby needs.
fn without_standby(record: &Record<'_>, now: Variant) -> Variant {
    let mut variant = now;
    match (record.header.rmid, record.kind() & KIND_MASK) {
        (rmid::STANDBY, _) | (rmid::XACT, xact::ASSIGNMENT) => variant.written = false,
        (rmid::BTREE, _) if record.kind() == btree::REUSE_PAGE => variant.written = false,
        (rmid::XACT, xact::COMMIT | xact::COMMIT_PREPARED) => {
            if let Ok(Payload::Commit(end)) = payload::parse(record)
                && !end.invalidations.is_empty()
            {
                variant.fixed -= (4 + INVALIDATION * end.invalidations.len() as u32) as i32;
                if end.subxacts.is_empty() && end.dropped_relations.is_empty() && !end.flags.has_twophase() {
                    variant.fixed -= DATABASE as i32;
                }
            }
        }
        _ => {}
    }
    variant
}

/// Bytes that main data has beyond a record's fixed fields, and the longer header that they may have brought.
fn beyond(main: u32, fixed: u32) -> i32 {
    let longer_header = if main > 255 { 3 } else { 0 };
    if main > fixed { (main - fixed + longer_header) as i32 } else { 0 }
}

/// Bytes that an update saves by what its row versions share: a length of 2 bytes stands for each end.
fn saved(prefix: usize, suffix: usize) -> i32 {
    [prefix, suffix].iter().filter(|len| **len > 0).map(|len| *len as i32 - 2).sum()
}

/// Files that a transaction made and that `minimal` would not log until it ends.
#[derive(Debug, Default)]
pub struct Unlogged {
    files: FxHashMap<RelFileLocator, File>,
}

#[derive(Debug)]
struct File {
    made_by: u32,
    /// Blocks known, and of the first ones where in the store they are and what their images would take.
    blocks: u64,
    images: FxHashMap<(Fork, u32), (usize, u32)>,
}

/// Beyond so many blocks no threshold that anyone would set has a file's pages logged; they are only counted.
const MAX_IMAGES: usize = (64 << 20) / PAGE_BYTES;

/// A file that is logged as images when its transaction commits.
#[derive(Debug)]
pub struct Small {
    /// The file.
    pub relation: RelFileLocator,
    /// Its pages' places in the store, and the bytes of their images without compression.
    pub pages: Vec<(usize, u32)>,
}

impl Unlogged {
    /// Notes that a file comes or goes; the files of a committing transaction with at most `threshold` bytes come back.
    pub fn note(&mut self, record: &Record<'_>, threshold: u64) -> Vec<Small> {
        let mut small = Vec::new();
        match (record.header.rmid, record.kind() & KIND_MASK) {
            (rmid::SMGR, smgr::CREATE) => {
                if let Ok(Payload::StorageCreate(create)) = payload::parse(record)
                    && record.header.xid != 0
                    && create.fork != Fork::INIT
                {
                    self.files.entry(create.relation).or_insert_with(|| File {
                        made_by: record.header.xid,
                        blocks: 0,
                        images: FxHashMap::default(),
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
                for (relation, file) in self.files.extract_if(|_, file| ends(file.made_by)) {
                    let fits = file.blocks * (PAGE_BYTES as u64) < threshold;
                    if committed && fits && file.images.len() as u64 == file.blocks {
                        small.push(Small { relation, pages: file.images.into_values().collect() });
                    }
                }
            }
            _ => {}
        }
        small
    }

    /// Whether a record changes such files alone.
    pub fn covers(&self, record: &Record<'_>) -> bool {
        !self.files.is_empty()
            && !record.blocks.is_empty()
            && record.blocks.iter().all(|block| self.files.contains_key(&block.relation))
    }

    /// Notes a page of such a file as it is now.
    pub fn page(&mut self, relation: RelFileLocator, place: (Fork, u32), slot: usize, image: u32) {
        let Some(file) = self.files.get_mut(&relation) else { return };
        if let Some(known) = file.images.get_mut(&place) {
            *known = (slot, image);
        } else if file.images.len() < MAX_IMAGES {
            file.images.insert(place, (slot, image));
            file.blocks += 1;
        } else {
            // No longer told apart from those met before, but far beyond any threshold.
            file.blocks = file.blocks.max(MAX_IMAGES as u64 + 1);
        }
    }
}
