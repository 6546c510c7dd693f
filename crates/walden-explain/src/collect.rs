//! What one segment's records come to: the visitor that the threads of a scan feed.
//!
//! This is the hot loop: a record of the usual layout takes one look-up each for its cell and its transaction, in small
//! tables that mostly have them, and a few additions; see [`UsualSums`] and [`TransactionSums`].

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xact::{self, TransactionEnd};
use walden_format::payload::xlog::{Checkpoint, WalLevel};
use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Fork, Image, RECORD_HEADER, Record, RelFileLocator};
use walden_format::rmgr::info::heap::{HOT_UPDATE, OPMASK, UPDATE};
use walden_format::rmgr::{self, KindTable, info, rmid};
use walden_format::stream::Visitor;
use walden_format::usual::{self, UsualRecord};

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
    cell_index: FxHashMap<Cell, u32>,
    /// Cells looked up recently.
    recent: Box<[(Cell, u32); RECENT]>,
    /// What records of the usual layout came to since their cells took these places; see [`place_of`].
    usual: Box<[UsualSums; USUAL]>,
    /// Records of the usual layout need no look at what they come after, nor at views.
    usual_alone: bool,
    pub cells: Vec<(Cell, Tally)>,
    pub images: ImageTable,
    /// What transactions wrote since they took these places, by the lowest bits of their numbers.
    writing: Box<[TransactionSums; WRITING]>,
    /// What transactions wrote before they were crowded out of `writing`; one may be there more than once.
    pub transactions: Vec<(u32, TransactionTally)>,
    pub finished: Vec<Finished>,
    /// The subtransactions of all `finished`, in their order.
    pub subxids: Vec<u32>,
    pub events: Vec<(Lsn, Event)>,
    /// Per view: bytes by cell, transaction and slice, each 0 where the view does not ask for it.
    pub pieces: Vec<FxHashMap<Piece, Tally>>,
    slice: u32,
    next_slice: Lsn,
    written_tuples: Vec<u32>,
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

/// What records of the usual layout come to in one cell and one segment; the rest follows from the layout.
///
/// 32 bits are enough for what starts in one segment, as a segment and the longest record have at most 1 GB each.
#[derive(Clone, Copy, Debug, Default)]
struct UsualSums {
    /// Whose, see [`key_of`]. Zeros are nobody's: that would be a record of the resource manager XLOG.
    key: [u64; 2],
    records: u32,
    /// Bytes of the records and of their alignment.
    aligned_bytes: u32,
    block_data: u32,
    main_data: u32,
}

/// What a transaction comes to in one segment; 32 bits are enough as for [`UsualSums`].
///
/// What every record adds to is kept apart: read back together while they are still on their way to memory one by one,
/// they would have to wait.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct TransactionSums {
    /// The transaction, or 0 for records that belong to none.
    xid: u32,
    records: u32,
    image_bytes: u32,
    bytes: u32,
}

impl UsualSums {
    fn cell(&self, kinds: &KindTable) -> Cell {
        let [low, high] = self.key;
        let (relation, fork, info, rmid) =
            (high as u32, (high >> 32) as u8, (high >> 48) as u8, (high >> 56) as u8);
        let locator = RelFileLocator { tablespace: low as u32, database: (low >> 32) as u32, relation };
        let has_block = u64::from(fork) != NO_BLOCK;
        let owner = if has_block { Owner::Relation(locator, Fork(fork)) } else { Owner::None };
        Cell { owner, kind: Some(kinds.kind(rmid, info).index() as u16) }
    }
}

impl TransactionSums {
    fn tally(&self) -> TransactionTally {
        TransactionTally {
            records: self.records.into(),
            bytes: self.bytes.into(),
            image_bytes: self.image_bytes.into(),
        }
    }
}

/// A transaction's end. There may be one per two records, so it is kept small.
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

/// Places for cells looked up recently: a power of two.
const RECENT: usize = 256;
/// Places for cells of usual records: a power of two, large enough that two of a log's few busy cells seldom meet.
const USUAL: usize = 1 << USUAL_BITS;
const USUAL_BITS: u32 = 10;
/// Places for transactions: a power of two.
const WRITING: usize = 256;
/// Tuples remembered for [`SegmentTally::repeated_updates`]: a power of two.
const WRITTEN: usize = 1 << 14;

impl<'a> SegmentTally<'a> {
    pub fn new(spec: CollectSpec<'a>) -> SegmentTally<'a> {
        SegmentTally {
            spec,
            segment_end: Lsn::INVALID,
            first: None,
            lead_headers: 0,
            lead_continuation: 0,
            cell_index: FxHashMap::default(),
            recent: Box::new([(Cell::FRAMING, 0); RECENT]),
            usual: Box::new([UsualSums::default(); USUAL]),
            usual_alone: false,
            cells: Vec::new(),
            images: ImageTable::default(),
            writing: Box::new([TransactionSums::default(); WRITING]),
            transactions: Vec::new(),
            finished: Vec::new(),
            subxids: Vec::new(),
            events: Vec::new(),
            pieces: vec![FxHashMap::default(); spec.views.len()],
            slice: 0,
            next_slice: Lsn::INVALID,
            written_tuples: Vec::new(),
            repeated_updates: FxHashMap::default(),
        }
    }

    /// Empties it for another segment. Its memory is kept: the first use of as much for each segment would take as long
    /// as to count a twentieth of its records.
    pub fn begin(mut self, segment_start: Lsn, segment_end: Lsn) -> SegmentTally<'a> {
        (self.slice, self.next_slice) = self.spec.slices.at(segment_start);
        self.segment_end = segment_end;
        self.first = None;
        self.lead_headers = 0;
        self.lead_continuation = 0;
        self.cell_index.clear();
        self.recent.fill((Cell::FRAMING, 0));
        self.usual.fill(UsualSums::default());
        self.usual_alone = false;
        self.cells.clear();
        self.images = ImageTable::default();
        self.writing.fill(TransactionSums::default());
        self.transactions.clear();
        self.finished.clear();
        self.subxids.clear();
        self.events.clear();
        self.pieces.iter_mut().for_each(FxHashMap::clear);
        self.written_tuples.fill(0);
        self.repeated_updates.clear();
        // Cell 0, which [`SegmentTally::framing`] counts in and `recent` starts with.
        self.look_up_cell(Cell::FRAMING, 0);
        self
    }

    #[inline]
    fn cell(&mut self, owner: Owner, kind: Option<u16>) -> u32 {
        let cell = Cell { owner, kind };
        let relation = match owner {
            Owner::Relation(relation, fork) => relation.relation ^ u32::from(fork.0) << 3,
            Owner::None | Owner::Framing => 0,
        };
        let place = (relation ^ u32::from(kind.unwrap_or_default())) as usize % RECENT;
        let (known, index) = self.recent[place];
        if known == cell { index } else { self.look_up_cell(cell, place) }
    }

    #[inline(never)]
    fn look_up_cell(&mut self, cell: Cell, place: usize) -> u32 {
        let cells = &mut self.cells;
        let index = *self.cell_index.entry(cell).or_insert_with(|| {
            cells.push((cell, Tally::default()));
            (cells.len() - 1) as u32
        });
        self.recent[place] = (cell, index);
        index
    }

    /// Adds what usual records came to to their cell, and leaves the place to another.
    #[inline(never)]
    fn settle_usual(&mut self, place: usize, key: [u64; 2]) {
        let sums = std::mem::replace(&mut self.usual[place], UsualSums { key, ..UsualSums::default() });
        if sums.records == 0 {
            return;
        }
        let Cell { owner, kind } = sums.cell(self.spec.kinds);
        let cell = self.cell(owner, kind);
        let tally = &mut self.cells[cell as usize].1;
        let records = u64::from(sums.records);
        let block_header = if owner == Owner::None { 0 } else { usual::BLOCK_HEADER as u64 };
        let parts = [
            (Bucket::RecordHeader, records * RECORD_HEADER as u64),
            (Bucket::BlockHeader, records * block_header),
            (Bucket::BlockData, sums.block_data.into()),
            (Bucket::MainHeader, records * usual::MAIN_HEADER as u64),
            (Bucket::MainData, sums.main_data.into()),
        ];
        tally.records += records;
        for (bucket, bytes) in parts {
            tally.buckets.add(bucket, bytes);
        }
        let unaligned: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        tally.buckets.add(Bucket::Alignment, u64::from(sums.aligned_bytes).saturating_sub(unaligned));
    }

    /// Adds what is still in the small tables to `cells` and `transactions`: the segment has no more records.
    pub fn settle(&mut self) {
        for place in 0..USUAL {
            self.settle_usual(place, Default::default());
        }
        for place in 0..WRITING {
            self.settle_transaction(place);
        }
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

    /// What this one wrote since it took its place.
    #[inline(always)]
    fn transaction(&mut self, xid: u32) -> &mut TransactionSums {
        let place = xid as usize % WRITING;
        let sums = &self.writing[place];
        // Most find the place left by one that ended: to ask for that first would be a branch that no processor foresees.
        if (sums.xid != xid) & (sums.records > 0) {
            self.settle_transaction(place);
        }
        let sums = &mut self.writing[place];
        sums.xid = xid;
        sums
    }

    /// Notes what a transaction wrote, and leaves the place to another.
    #[inline(never)]
    fn settle_transaction(&mut self, place: usize) {
        let sums = std::mem::take(&mut self.writing[place]);
        if sums.records > 0 {
            self.transactions.push((sums.xid, sums.tally()));
        }
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
        if record.header.rmid == rmid::XLOG && record.kind() == info::xlog::SWITCH {
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
        let mut sums = TransactionSums::default();
        let at_hand = &mut self.writing[xid as usize % WRITING];
        if xid != 0 && at_hand.xid == xid {
            // Its place is free for the next one.
            sums = std::mem::take(at_hand);
        }
        let before = self.subxids.len();
        self.subxids.extend(subxids);
        self.finished.push(Finished {
            time,
            xid,
            records: sums.records,
            bytes: sums.bytes,
            image_bytes: sums.image_bytes,
            subxids: (self.subxids.len() - before) as u32,
            committed,
        });
    }

    /// Notices an update of a row version that the same transaction wrote, with a table that forgets: a lower bound.
    #[inline(always)]
    fn update(&mut self, record: &Record<'_>, cell: u32) {
        let Some((old_offset, new_offset)) = payload::heap::update_offsets(record) else { return };
        let Some(new) = record.block(0) else { return };
        let old = record.block(1).filter(|block| block.fork == Fork::MAIN).unwrap_or(new);
        let key =
            |block: &BlockRef, offset: u16| tuple_key(block.relation, block.block, offset, record.header.xid);
        if self.update_of_tuple(key(old, old_offset), key(new, new_offset)) {
            *self.repeated_updates.entry(cell).or_default() += 1;
        }
    }

    /// As `update` of a record of the usual layout: both versions of the row are in its block.
    #[inline(always)]
    fn usual_update(&mut self, record: UsualRecord<'_>) {
        let Some((old_offset, new_offset)) = payload::heap::usual_update_offsets(&record) else { return };
        let key = |offset| tuple_key(record.relation(), record.block(), offset, record.header().xid);
        if record.has_block() && self.update_of_tuple(key(old_offset), key(new_offset)) {
            let header = record.header();
            let kind = self.spec.kinds.kind(header.rmid, header.info).index() as u16;
            let cell = self.cell(Owner::Relation(record.relation(), record.fork()), Some(kind));
            *self.repeated_updates.entry(cell).or_default() += 1;
        }
    }

    #[inline(never)]
    fn rare_usual_event(&mut self, record: UsualRecord<'_>) {
        record.as_record(|record| self.rare_event(record));
    }

    #[inline(never)]
    fn usual_as_any(&mut self, record: UsualRecord<'_>) -> ControlFlow<()> {
        record.as_record(|record| self.record(record))
    }

    /// Whether the old version of a row is one that was noted; notes the new one.
    #[inline(always)]
    fn update_of_tuple(&mut self, old: u64, new: u64) -> bool {
        if self.written_tuples.is_empty() {
            self.written_tuples = vec![0; WRITTEN];
        }
        // Half of a key decides the place; the other half, which is never 0, tells whose it is.
        let (old_place, old) = (old as usize >> 1 & (WRITTEN - 1), (old >> 32) as u32);
        let (new_place, new) = (new as usize >> 1 & (WRITTEN - 1), (new >> 32) as u32);
        let known = self.written_tuples[old_place] == old;
        self.written_tuples[new_place] = new;
        known
    }
}

impl Visitor for SegmentTally<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.first.is_none() {
            if self.spec.from.is_some_and(|from| record.lsn < from) {
                return ControlFlow::Continue(());
            }
            self.first = Some(record.lsn);
            self.usual_alone = self.spec.views.is_empty();
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
        let (main_header_len, main_len, alignment) =
            (record.main_header_len, record.main_len, record.alignment);
        self.add(cell, header.xid, move |tally| {
            tally.records += 1;
            tally.buckets.add(Bucket::RecordHeader, RECORD_HEADER as u64);
            tally.buckets.add(Bucket::MainHeader, u64::from(main_header_len) + origin_and_toplevel);
            tally.buckets.add(Bucket::MainData, main_len.into());
            tally.buckets.add(Bucket::Alignment, alignment.into());
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
                image_bytes += u32::from(image.len);
                self.image(image, block.id, kind, of_block, header.xid);
            }
        }
        let transaction = self.transaction(header.xid);
        transaction.records += 1;
        transaction.bytes += header.total_len + u32::from(record.alignment);
        transaction.image_bytes += image_bytes;
        match header.rmid {
            rmid::XLOG | rmid::XACT | rmid::SMGR | rmid::STANDBY => self.event(record),
            rmid::HEAP if matches!(header.info & OPMASK, UPDATE | HOT_UPDATE) => self.update(record, cell),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// As [`SegmentTally::record`] of a record of this layout.
    #[inline(always)]
    fn usual_record(&mut self, record: UsualRecord<'_>) -> ControlFlow<()> {
        if !self.usual_alone {
            return self.usual_as_any(record);
        }
        let header = record.header();
        let key = key_of(&record);
        let place = place_of(key);
        if self.usual[place].key != key {
            self.settle_usual(place, key);
        }
        let sums = &mut self.usual[place];
        sums.records += 1;
        sums.aligned_bytes += record.aligned_len();
        sums.block_data += u32::from(record.data_len());
        sums.main_data += u32::from(record.main_len());
        let transaction = self.transaction(header.xid);
        transaction.records += 1;
        transaction.bytes += record.aligned_len();
        match header.rmid {
            rmid::XACT => match xact::plain_usual_end(&record) {
                Some((committed, time)) => self.finish(header.xid, committed, time, std::iter::empty()),
                None => self.rare_usual_event(record),
            },
            rmid::SMGR | rmid::STANDBY => self.rare_usual_event(record),
            rmid::HEAP if matches!(header.info & OPMASK, UPDATE | HOT_UPDATE) => self.usual_update(record),
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

/// A usual record's relation, fork and kind in 16 bytes that compare and hash fast, without a branch. As little as
/// possible is taken apart: records of one cell may have several keys, which [`UsualSums::cell`] makes one.
#[inline(always)]
fn key_of(record: &UsualRecord<'_>) -> [u64; 2] {
    let RelFileLocator { tablespace, database, relation } = record.relation();
    let header = record.header();
    let kind = u64::from(header.rmid) << 8 | u64::from(header.info);
    let fork = if record.has_block() { u64::from(record.fork().0) } else { NO_BLOCK };
    [u64::from(tablespace) | u64::from(database) << 32, u64::from(relation) | fork << 32 | kind << 48]
}

/// Where there is a fork otherwise, which has four bits.
const NO_BLOCK: u64 = 0x10;

/// Fibonacci hashing of the relation's number, the fork and the kind; databases and tablespaces are few.
#[inline(always)]
fn place_of(key: [u64; 2]) -> usize {
    (key[1].wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - USUAL_BITS)) as usize
}

#[inline]
fn tuple_key(relation: RelFileLocator, block: u32, offset: u16, xid: u32) -> u64 {
    let place = u64::from(block) << 16 | u64::from(offset);
    let whose = u64::from(relation.relation) << 32 | u64::from(xid);
    // An odd multiplier spreads each part over all bits; the tops are folded down, where the table looks.
    let mixed = (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ whose.wrapping_mul(0xD6E8_FEB8_6659_FD93))
        .rotate_left(29);
    (mixed ^ mixed >> 32) | 1 << 32
}
