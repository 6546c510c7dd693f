//! What one segment's records come to: the visitor that the threads of a scan feed.
//!
//! This is the hot loop: per record a few additions, per block one look-up that mostly hits a small cache.

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xact::{self, TransactionEnd};
use walden_format::payload::xlog::{Checkpoint, WalLevel};
use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Fork, Image, Record, RelFileLocator};
use walden_format::rmgr::{self, KindTable, rmid};
use walden_format::stream::Visitor;

use crate::group::{Cell, Dimension, Owner, ViewSpec};
use crate::slices::Slices;
use crate::tally::{Bucket, ImageCause, ImageTable, Tally};

/// What stays the same for all segments of a scan.
#[derive(Clone, Copy)]
pub(crate) struct CollectSpec<'a> {
    pub kinds: &'a KindTable,
    /// Views that need more than cells.
    pub views: &'a [ViewSpec],
    pub slices: &'a Slices,
    pub from: Option<Lsn>,
    pub data_page_bytes: u32,
}

/// What one segment's records come to.
pub(crate) struct SegmentTally<'a> {
    spec: CollectSpec<'a>,
    segment_end: Lsn,
    /// Where the first counted record starts.
    pub first: Option<Lsn>,
    /// Page headers before the first counted record.
    pub lead_headers: u64,
    /// Bytes of a record that began in an earlier segment.
    pub lead_continuation: u64,
    cell_index: FxHashMap<u128, u32>,
    /// Cells looked up recently, by a few bits of their packed form; see [`pack`].
    recent: Box<[(u128, u32); RECENT]>,
    pub cells: Vec<(Cell, Tally)>,
    pub images: ImageTable,
    /// Where in `transactions` those are that wrote recently, by the lowest bits of their numbers.
    recent_transactions: Box<[u32; RECENT]>,
    last_transaction: (u32, u32),
    /// What transactions wrote; one that was crowded out of `recent_transactions` is there more than once.
    pub transactions: Vec<(u32, TransactionTally)>,
    /// Places in `transactions` whose transaction has ended.
    free: Vec<u32>,
    pub finished: Vec<Finished>,
    /// The subtransactions of all `finished`, in their order.
    pub subxids: Vec<u32>,
    pub events: Vec<(Lsn, Event)>,
    /// Per view: bytes by cell, transaction and slice, each 0 where the view does not ask for it.
    pub pieces: Vec<FxHashMap<Piece, Tally>>,
    slice: u32,
    next_slice: Lsn,
    written_tuples: Vec<u64>,
    /// Updates of row versions that the same transaction had just written, by cell.
    pub repeated_updates: FxHashMap<u32, u64>,
}

/// Cell, transaction, slice.
pub(crate) type Piece = (u32, u32, u32);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransactionTally {
    pub records: u64,
    pub bytes: u64,
    pub image_bytes: u64,
}

impl TransactionTally {
    pub fn merge(&mut self, other: &TransactionTally) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.image_bytes += other.image_bytes;
    }
}

/// A transaction's end. There may be one per two records, so it is kept small: sums of records that start in one
/// segment fit in 32 bits, as a segment and the longest record have at most 1 GB each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub time: Timestamp,
    pub xid: u32,
    records: u32,
    bytes: u32,
    image_bytes: u32,
    /// How many of [`SegmentTally::subxids`] are this one's.
    pub subxids: u32,
    pub committed: bool,
}

impl Finished {
    /// What it came to in this segment, as far as it was at hand.
    pub fn tally(&self) -> TransactionTally {
        TransactionTally {
            records: self.records.into(),
            bytes: self.bytes.into(),
            image_bytes: self.image_bytes.into(),
        }
    }
}

/// What a record says that matters beyond its bytes.
#[derive(Debug)]
pub(crate) enum Event {
    /// Written at a two-phase PREPARE; the transaction goes on.
    Prepare {
        xid: u32,
    },
    Checkpoint(Box<Checkpoint>),
    /// A relation's main fork was created.
    Created {
        xid: u32,
        file: RelFileLocator,
    },
    /// A transaction that committed dropped these, in the order of its record.
    Dropped {
        xids: Vec<u32>,
        files: Vec<RelFileLocator>,
    },
    /// No transaction below `oldest` runs any more.
    Running {
        oldest: u32,
    },
    /// The settings that the log itself tells of.
    Parameters {
        wal_level: WalLevel,
        wal_log_hints: bool,
    },
    FullPageWrites(bool),
    BackupEnd,
    Switch,
}

/// Cells looked up recently: a power of two.
const RECENT: usize = 256;
/// Tuples remembered for [`SegmentTally::repeated_updates`]: a power of two.
const WRITTEN: usize = 1 << 15;

const XLOG_SWITCH: u8 = 0x40;
const HEAP_UPDATE: u8 = 0x20;
const HEAP_HOT_UPDATE: u8 = 0x40;

impl<'a> SegmentTally<'a> {
    pub fn new(spec: CollectSpec<'a>, segment_start: Lsn, segment_end: Lsn) -> SegmentTally<'a> {
        let (slice, next_slice) = spec.slices.at(segment_start);
        let mut tally = SegmentTally {
            spec,
            segment_end,
            first: None,
            lead_headers: 0,
            lead_continuation: 0,
            cell_index: FxHashMap::default(),
            recent: Box::new([(u128::MAX, 0); RECENT]),
            cells: Vec::new(),
            images: ImageTable::default(),
            recent_transactions: Box::new([0; RECENT]),
            last_transaction: (0, 0),
            transactions: vec![(0, TransactionTally::default())],
            free: Vec::new(),
            finished: Vec::new(),
            subxids: Vec::new(),
            events: Vec::new(),
            pieces: vec![FxHashMap::default(); spec.views.len()],
            slice,
            next_slice,
            written_tuples: Vec::new(),
            repeated_updates: FxHashMap::default(),
        };
        // Cell 0, which [`SegmentTally::framing`] counts in.
        tally.cell(Owner::Framing, None);
        tally
    }

    #[inline(always)]
    fn cell(&mut self, owner: Owner, kind: Option<u16>) -> u32 {
        let key = pack(owner, kind);
        let place = place_of(key);
        let (known, index) = self.recent[place];
        if known == key {
            return index;
        }
        self.look_up_cell(Cell { owner, kind }, key, place)
    }

    #[inline(never)]
    fn look_up_cell(&mut self, cell: Cell, key: u128, place: usize) -> u32 {
        let cells = &mut self.cells;
        let index = *self.cell_index.entry(key).or_insert_with(|| {
            cells.push((cell, Tally::default()));
            (cells.len() - 1) as u32
        });
        self.recent[place] = (key, index);
        index
    }

    /// Adds something to a cell and to every view's group that it falls into.
    #[inline(always)]
    fn add(&mut self, cell: u32, xid: u32, add: impl Fn(&mut Tally)) {
        add(&mut self.cells[cell as usize].1);
        if !self.spec.views.is_empty() {
            self.add_to_views(cell, xid, add);
        }
    }

    fn add_to_views(&mut self, cell: u32, xid: u32, add: impl Fn(&mut Tally)) {
        for (view, pieces) in self.spec.views.iter().zip(&mut self.pieces) {
            let by_cell =
                view.has(Dimension::Relation) || view.has(Dimension::Record) || view.has(Dimension::Database);
            let by_slice = view.has(Dimension::Time) || view.has(Dimension::Checkpoint);
            let piece = (
                if by_cell { cell } else { 0 },
                if view.has(Dimension::Xid) { xid } else { 0 },
                if by_slice { self.slice } else { 0 },
            );
            add(pieces.entry(piece).or_default());
        }
    }

    fn framing(&mut self, bucket: Bucket, bytes: u64) {
        self.add(0, 0, |tally| tally.buckets.add(bucket, bytes));
    }

    /// Counts `bytes` that lie at the segment's start or the log's end, once the merge knows that they count.
    pub fn add_framing(&mut self, at_start: bool, bucket: Bucket, bytes: u64) {
        if bytes > 0 {
            let slice = self.slice;
            if at_start {
                let start = Lsn(self.segment_end.0.saturating_sub(1));
                self.slice =
                    self.first.map_or_else(|| self.spec.slices.at(start).0, |lsn| self.spec.slices.at(lsn).0);
            }
            self.framing(bucket, bytes);
            self.slice = slice;
        }
    }

    /// Where in `transactions` this one is.
    #[inline(always)]
    fn transaction(&mut self, xid: u32) -> u32 {
        if self.last_transaction.0 != xid {
            self.last_transaction = (xid, self.look_up_transaction(xid));
        }
        self.last_transaction.1
    }

    fn look_up_transaction(&mut self, xid: u32) -> u32 {
        let place = xid as usize % RECENT;
        let known = self.recent_transactions[place];
        if xid == 0 || self.transactions[known as usize].0 == xid {
            return if xid == 0 { 0 } else { known };
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.transactions.push((0, TransactionTally::default()));
                (self.transactions.len() - 1) as u32
            }
        };
        self.transactions[index as usize].0 = xid;
        self.recent_transactions[place] = index;
        index
    }

    fn image(&mut self, image: &Image, block_id: u8, kind: u16, cell: u32, xid: u32) {
        let cause = self.cause(image, kind, block_id);
        let plain = image.uncompressed_len(self.spec.data_page_bytes);
        self.images.add(cause, image.compression, image.len.into(), plain.into());
        self.add(cell, xid, |tally| {
            tally.images += 1;
            tally.buckets.add(Bucket::ImageHeader, image.header_len.into());
            tally.buckets.add(cause.bucket(), image.len.into());
        });
    }

    #[inline]
    fn cause(&self, image: &Image, kind: u16, block_id: u8) -> ImageCause {
        if !image.apply {
            return ImageCause::Consistency;
        }
        match self.spec.kinds.image_class(kind.into(), block_id) {
            rmgr::ImageClass::Checkpoint => ImageCause::Checkpoint,
            rmgr::ImageClass::Forced => ImageCause::Forced,
            rmgr::ImageClass::Hint => ImageCause::Hint,
        }
    }

    #[cold]
    fn next_slice(&mut self, lsn: Lsn) {
        (self.slice, self.next_slice) = self.spec.slices.at(lsn);
    }

    #[inline(always)]
    fn event(&mut self, record: &Record<'_>) {
        match xact::plain_end(record) {
            Some((committed, time)) => self.finish(record.header.xid, committed, time, std::iter::empty()),
            None => self.rare_event(record),
        }
    }

    #[inline(never)]
    fn rare_event(&mut self, record: &Record<'_>) {
        let xid = record.header.xid;
        if record.header.rmid == rmid::XLOG && record.kind() == XLOG_SWITCH {
            self.events.push((record.lsn, Event::Switch));
            return;
        }
        let event = match payload::parse(record) {
            Ok(Payload::Commit(end)) => {
                if !end.dropped_relations.is_empty() {
                    let xids = end.subxacts.chain([end.twophase_xid.unwrap_or(xid)]).collect();
                    self.events
                        .push((record.lsn, Event::Dropped { xids, files: end.dropped_relations.collect() }));
                }
                return self.end(&end, true, xid);
            }
            Ok(Payload::StorageCreate(create)) if create.fork == Fork::MAIN => {
                Event::Created { xid, file: create.relation }
            }
            Ok(Payload::Abort(end)) => return self.end(&end, false, xid),
            Ok(Payload::Prepare(_)) => Event::Prepare { xid },
            Ok(Payload::Checkpoint(checkpoint)) => Event::Checkpoint(Box::new(checkpoint)),
            Ok(Payload::RunningXacts(running)) => Event::Running { oldest: running.oldest_running_xid },
            Ok(Payload::ParameterChange(change)) => {
                Event::Parameters { wal_level: change.wal_level, wal_log_hints: change.wal_log_hints }
            }
            Ok(Payload::FullPageWritesChange(change)) => Event::FullPageWrites(change.enabled),
            Ok(Payload::BackupEnd(_)) => Event::BackupEnd,
            // Unknown kinds and records that are not as they should be have been counted; they tell nothing more.
            Ok(_) | Err(_) => return,
        };
        self.events.push((record.lsn, event));
    }

    fn end(&mut self, end: &TransactionEnd<'_>, committed: bool, record_xid: u32) {
        self.finish(end.twophase_xid.unwrap_or(record_xid), committed, end.time, end.subxacts);
    }

    #[inline(always)]
    fn finish(&mut self, xid: u32, committed: bool, time: Timestamp, subxids: impl IntoIterator<Item = u32>) {
        let place = self.transaction(xid);
        let mut tally = TransactionTally::default();
        if xid != 0 {
            // Its place is free for the next one, so that few are in use however many there are.
            tally = std::mem::take(&mut self.transactions[place as usize]).1;
            self.free.push(place);
            self.last_transaction = (0, 0);
        }
        let before = self.subxids.len();
        self.subxids.extend(subxids);
        self.finished.push(Finished {
            time,
            xid,
            records: tally.records as u32,
            bytes: tally.bytes as u32,
            image_bytes: tally.image_bytes as u32,
            subxids: (self.subxids.len() - before) as u32,
            committed,
        });
    }

    /// Notices an update of a row version that the same transaction wrote, with a table that forgets: a lower bound.
    fn update(&mut self, record: &Record<'_>, cell: u32) {
        let Some((old_offset, new_offset)) = payload::heap::update_offsets(record) else { return };
        let Some(new) = record.block(0) else { return };
        let old = record.block(1).filter(|block| block.fork == Fork::MAIN).unwrap_or(new);
        let key =
            |block: &BlockRef, offset: u16| tuple_key(block.relation, block.block, offset, record.header.xid);
        if self.written_tuples.is_empty() {
            self.written_tuples = vec![0; WRITTEN];
        }
        let old = key(old, old_offset);
        if self.written_tuples[old as usize & (WRITTEN - 1)] == old {
            *self.repeated_updates.entry(cell).or_default() += 1;
        }
        let new = key(new, new_offset);
        self.written_tuples[new as usize & (WRITTEN - 1)] = new;
    }
}

impl Visitor for SegmentTally<'_> {
    #[inline(always)]
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.first.is_none() {
            if self.spec.from.is_some_and(|from| record.lsn < from) {
                return ControlFlow::Continue(());
            }
            self.first = Some(record.lsn);
        }
        if record.lsn >= self.next_slice {
            self.next_slice(record.lsn);
        }
        let header = record.header;
        let kind = self.spec.kinds.kind(header.rmid, header.info).index() as u16;
        let owner = match record.blocks.first() {
            Some(block) => Owner::Relation(block.relation, block.fork),
            None => Owner::None,
        };
        let cell = self.cell(owner, Some(kind));
        let origin_and_toplevel =
            3 * u64::from(record.origin.is_some()) + 5 * u64::from(record.toplevel_xid.is_some());
        let (block_header, block_data) =
            record.blocks.first().map_or((0, 0), |block| (block.header_len, block.data_len));
        self.add(cell, header.xid, |tally| {
            tally.records += 1;
            tally.buckets.add(Bucket::RecordHeader, walden_format::record::RECORD_HEADER as u64);
            tally.buckets.add(Bucket::MainHeader, u64::from(record.main_header_len) + origin_and_toplevel);
            tally.buckets.add(Bucket::MainData, record.main_len.into());
            tally.buckets.add(Bucket::Alignment, record.alignment.into());
            tally.buckets.add(Bucket::BlockHeader, block_header.into());
            tally.buckets.add(Bucket::BlockData, block_data.into());
        });
        let mut image_bytes = 0;
        for (at, block) in record.blocks.iter().enumerate() {
            let mut of_block = cell;
            if at > 0 {
                of_block = self.cell(Owner::Relation(block.relation, block.fork), Some(kind));
                self.add(of_block, header.xid, |tally| {
                    tally.buckets.add(Bucket::BlockHeader, block.header_len.into());
                    tally.buckets.add(Bucket::BlockData, block.data_len.into());
                });
            }
            if let Some(image) = &block.image {
                image_bytes += u64::from(image.len);
                self.image(image, block.id, kind, of_block, header.xid);
            }
        }
        let place = self.transaction(header.xid);
        let transaction = &mut self.transactions[place as usize].1;
        transaction.records += 1;
        transaction.bytes += u64::from(header.total_len) + u64::from(record.alignment);
        transaction.image_bytes += image_bytes;
        match header.rmid {
            rmid::XLOG | rmid::XACT | rmid::SMGR | rmid::STANDBY => self.event(record),
            rmid::HEAP if matches!(header.info & 0x70, HEAP_UPDATE | HEAP_HOT_UPDATE) => {
                self.update(record, cell)
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn page_header(&mut self, lsn: Lsn, width: usize) {
        if self.first.is_none() {
            if lsn < self.segment_end {
                self.lead_headers += width as u64;
            }
        } else if lsn < self.segment_end {
            self.framing(Bucket::PageHeader, width as u64);
        }
    }

    fn continuation(&mut self, _lsn: Lsn, bytes: u64) {
        self.lead_continuation += bytes;
    }

    fn abandoned(&mut self, _lsn: Lsn, bytes: u64) {
        if self.first.is_some() || self.spec.from.is_none() {
            self.framing(Bucket::Abandoned, bytes);
        }
    }

    fn padding(&mut self, _lsn: Lsn, bytes: u64) {
        if self.first.is_some() {
            self.framing(Bucket::SwitchPadding, bytes);
        }
    }
}

/// A cell in 16 bytes that compare and hash fast: the relation's numbers, and the fork and kind where they don't reach.
#[inline(always)]
fn pack(owner: Owner, kind: Option<u16>) -> u128 {
    let kind = u128::from(kind.unwrap_or(u16::MAX));
    let (numbers, fork) = match owner {
        Owner::Relation(locator, fork) => {
            let low = u64::from(locator.relation) | u64::from(locator.database) << 32;
            (u128::from(low) | u128::from(locator.tablespace) << 64, u128::from(fork.0))
        }
        // No fork has these numbers: there are four bits for it.
        Owner::None => (0, 0xFE),
        Owner::Framing => (0, 0xFF),
    };
    numbers | fork << 96 | kind << 104
}

#[inline(always)]
fn place_of(key: u128) -> usize {
    let (low, high) = (key as u64, (key >> 64) as u64);
    (low ^ high >> 40 ^ high >> 29) as usize % RECENT
}

#[inline]
fn tuple_key(relation: RelFileLocator, block: u32, offset: u16, xid: u32) -> u64 {
    let place = u64::from(block) << 16 | u64::from(offset);
    let whose = u64::from(relation.relation) << 32 | u64::from(xid);
    // An odd multiplier spreads each part over all bits; the tops are folded down, where the table looks.
    let mixed = (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ whose.wrapping_mul(0xD6E8_FEB8_6659_FD93))
        .rotate_left(29);
    mixed ^ mixed >> 32 | 1
}
