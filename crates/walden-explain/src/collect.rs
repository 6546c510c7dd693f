//! Counts the records of one segment: the visitor of the parallel scan.
//!
//! This is the hot loop. A record of the usual layout takes one lookup for its cell and one for its
//! transaction, mostly hits in small tables, and a few additions; see [`UsualSums`] and [`TransactionSums`].

mod event;
mod evidence;
mod sums;

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;
use walden_format::geometry::Geometry;
use walden_format::lsn::Lsn;
use walden_format::payload::timestamp::Timestamp;
use walden_format::payload::xact::{self, TransactionEnd};

use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Fork, Image, RECORD_HEADER, Record};
use walden_format::rmgr::{KindTable, rmid};
use walden_format::simple::{self, SimpleRecord};
use walden_format::stream::Visitor;
use walden_format::transam::RunningTransactions;
use walden_format::version::Major;

pub(crate) use self::event::{Dropped, Event, Finished};
use self::evidence::{SegmentEvidence, is_evidence};
pub(crate) use self::sums::TransactionTally;
use self::sums::{TransactionSums, USUAL, UsualSums, key_of, place_of};
use crate::group::{Cell, Dimension, Owner, ViewSpec};
use crate::image_sample::{Sample, Sampler};
use crate::slices::Slices;
use crate::tally::{Bucket, ImageCause, ImageTable, Tally};

/// Options that are common to all segments of a scan.
#[derive(Clone, Copy)]
pub(crate) struct CollectSpec<'a> {
    pub version: Major,
    pub kinds: &'a KindTable,
    /// Views that need more than cells.
    pub views: &'a [ViewSpec],
    pub slices: &'a Slices,
    pub from: Option<Lsn>,
    pub geometry: Geometry,
    pub data_page_bytes: u32,
    /// Whether to sample images.
    pub sample_images: bool,
}

/// The sums over the records of one segment.
pub(crate) struct SegmentTally<'a> {
    spec: CollectSpec<'a>,
    segment_end: Lsn,
    /// Start of the first counted record, or of the padding, the abandoned record or the end of the WAL that
    /// a range starts with.
    pub first: Option<Lsn>,
    /// Page headers before the first counted record.
    pub lead_headers: u64,
    /// The last of these headers: its start and its width.
    lead_header: Option<(Lsn, u64)>,
    /// Width of the page header right before `first`, if it belongs to a range that starts in this segment.
    pub first_header: u64,
    /// Bytes of a record that started in an earlier segment.
    pub lead_continuation: u64,
    cell_index: FxHashMap<Cell, u32>,
    /// Cells looked up recently.
    recent: Box<[(Cell, u32); RECENT]>,
    /// Sums over records of the usual layout, by [`place_of`] of their key, since the key took the place.
    usual: Box<[UsualSums; USUAL]>,
    /// Whether records of the usual layout can be counted without checking the range and the views.
    usual_alone: bool,
    pub cells: Vec<(Cell, Tally)>,
    pub images: ImageTable,
    /// Sums over transactions, by the lowest bits of their ID, since the transaction took the place.
    writing: Box<[TransactionSums; WRITING]>,
    /// Sums evicted from `writing`; may contain a transaction more than once.
    pub transactions: Vec<(u32, TransactionTally)>,
    pub finished: Vec<Finished>,
    /// The subtransactions of all `finished`, concatenated.
    pub subxids: Vec<u32>,
    pub events: Vec<(Lsn, Event)>,
    /// Per view: sums by cell, transaction and slice. Each of the three is 0 if it is no dimension of the
    /// view.
    pub pieces: Vec<FxHashMap<Piece, Tally>>,
    slice: u32,
    next_slice: Lsn,
    pub evidence: SegmentEvidence,
    sampler: Option<Box<Sampler>>,
}

/// Key of a view's sums in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Piece {
    pub cell: u32,
    pub xid: u32,
    pub slice: u32,
    /// Used by views by vacuum only.
    pub in_transaction: bool,
}

/// Size of the table of recent cells: a power of two.
const RECENT: usize = 256;
/// Size of the table of transactions: a power of two.
const WRITING: usize = 256;

impl<'a> SegmentTally<'a> {
    pub fn new(spec: CollectSpec<'a>) -> SegmentTally<'a> {
        SegmentTally {
            spec,
            segment_end: Lsn::INVALID,
            first: None,
            lead_headers: 0,
            lead_header: None,
            first_header: 0,
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
            evidence: SegmentEvidence::new(spec.version),
            sampler: spec.sample_images.then(|| Box::new(Sampler::new(spec.version))),
        }
    }

    /// Clears the sums before another segment is read. Keeps the memory: page faults of a new allocation for
    /// each segment would take a twentieth of the time.
    pub fn begin(mut self, segment_start: Lsn, segment_end: Lsn) -> SegmentTally<'a> {
        self.clear(segment_start, segment_end);
        self
    }

    fn clear(&mut self, segment_start: Lsn, segment_end: Lsn) {
        (self.slice, self.next_slice) = self.spec.slices.at(segment_start);
        self.segment_end = segment_end;
        self.first = None;
        self.lead_headers = 0;
        self.lead_header = None;
        self.first_header = 0;
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
        self.evidence.clear();
        if let Some(sampler) = &mut self.sampler {
            sampler.clear();
        }
        // Cell 0 is the cell of framing, and the initial value in `recent`.
        self.look_up_cell(Cell::FRAMING, 0);
    }

    /// Clears the sums before the next part of WAL whose earlier parts were counted. All records of this part
    /// count, in any segment.
    pub fn begin_at(&mut self, position: Lsn) {
        self.clear(position, Lsn(u64::MAX));
        self.first = Some(position);
        self.usual_alone = self.spec.views.is_empty();
    }

    /// Starts counting at `first`.
    #[cold]
    fn begin_range(&mut self, first: Lsn) {
        self.first_header = self.header_before(first);
        self.first = Some(first);
        self.usual_alone = self.spec.views.is_empty();
        if first >= self.next_slice {
            self.next_slice(first);
        }
    }

    /// The samples of the segment, if images are sampled.
    pub fn sample(&self) -> Option<&Sample> {
        self.sampler.as_ref().map(|sampler| &sampler.sample)
    }

    /// Starts a range that contains no record at `tail`, the end of the last record. If `tail` is before the
    /// range, the previous range contains the whole record.
    pub fn begin_with_tail(&mut self, tail: Lsn) {
        if self.first.is_none() && self.is_at_or_behind_start(tail) {
            self.begin_range(tail);
        }
    }

    fn is_at_or_behind_start(&self, lsn: Lsn) -> bool {
        self.spec.from.is_some_and(|from| from <= lsn)
    }

    /// Width of the page header right before the first position of a range if the header is in the range too,
    /// otherwise 0.
    ///
    /// No earlier record continues after this header, so a range that ends at the header does not include it.
    fn header_before(&self, first: Lsn) -> u64 {
        let Some((start, width)) = self.lead_header else { return 0 };
        if self.is_at_or_behind_start(start) && start.plus(width) == first { width } else { 0 }
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

    /// Adds the sums in a slot of the table to their cell, and assigns the slot to another key.
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
        let block_header = if owner == Owner::None { 0 } else { simple::BLOCK_HEADER as u64 };
        let parts = [
            (Bucket::RecordHeader, records * RECORD_HEADER as u64),
            (Bucket::BlockHeader, records * block_header),
            (Bucket::BlockData, sums.block_data.into()),
            (Bucket::MainHeader, records * simple::MAIN_HEADER as u64),
            (Bucket::MainData, sums.main_data.into()),
        ];
        if let Some(sampler) = self.sampler.as_mut().filter(|_| sums.block_data > 0) {
            sampler.add_data(records, sums.block_data.into());
        }
        tally.records += records;
        for (bucket, bytes) in parts {
            tally.buckets.add(bucket, bytes);
        }
        let unaligned: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        tally.buckets.add(Bucket::Alignment, u64::from(sums.aligned_bytes).saturating_sub(unaligned));
    }

    /// Adds the small tables to `cells` and `transactions`, at the end of the segment.
    pub fn settle(&mut self) {
        for place in 0..USUAL {
            self.settle_usual(place, Default::default());
        }
        for place in 0..WRITING {
            self.settle_transaction(place);
        }
    }

    /// Adds to a cell and to its group in every view.
    #[inline(always)]
    fn add(&mut self, cell: u32, xid: u32, add: impl Fn(&mut Tally)) {
        add(&mut self.cells[cell as usize].1);
        if !self.spec.views.is_empty() {
            self.add_to_views(cell, xid, add);
        }
    }

    fn add_to_views(&mut self, cell: u32, xid: u32, add: impl Fn(&mut Tally)) {
        for (view, pieces) in self.spec.views.iter().zip(&mut self.pieces) {
            let by_slice = view.has(Dimension::Time) || view.has(Dimension::Checkpoint);
            let piece = Piece {
                cell: if view.is_by_cell() { cell } else { 0 },
                xid: if view.is_by_transaction() { xid } else { 0 },
                slice: if by_slice { self.slice } else { 0 },
                in_transaction: view.has(Dimension::Vacuum) && xid != 0,
            };
            add(pieces.entry(piece).or_default());
        }
    }

    fn framing(&mut self, bucket: Bucket, bytes: u64) {
        self.add(0, 0, |tally| tally.buckets.add(bucket, bytes));
    }

    /// Counts framing at the segment's start or the end of the WAL, once the merge has decided that these
    /// bytes count.
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

    /// Returns the sums of a transaction since it took its slot in the table.
    #[inline(always)]
    fn transaction(&mut self, xid: u32) -> &mut TransactionSums {
        let place = xid as usize % WRITING;
        let sums = &self.writing[place];
        // Most places were freed by a finished transaction; a branch on that alone would be unpredictable.
        if (sums.xid != xid) & (sums.records > 0) {
            self.settle_transaction(place);
        }
        let sums = &mut self.writing[place];
        sums.xid = xid;
        sums
    }

    /// Evicts a transaction from its slot in the table.
    #[inline(never)]
    fn settle_transaction(&mut self, place: usize) {
        let sums = std::mem::take(&mut self.writing[place]);
        if sums.records > 0 {
            self.transactions.push((sums.xid, sums.tally()));
        }
    }

    fn image(&mut self, record: &Record<'_>, block: &BlockRef, image: &Image, kind: u16, cell: u32) {
        let cause = ImageCause::classify(image, self.spec.kinds, kind.into(), block.id);
        if let Some(sampler) = &mut self.sampler {
            sampler.add_image(record, block, image, cause);
        }
        let plain = image.uncompressed_len(self.spec.data_page_bytes);
        self.images.add(cause, image.compression, image.len.into(), plain.into());
        self.add(cell, record.header.xid, |tally| {
            tally.images += 1;
            tally.buckets.add(Bucket::ImageHeader, image.header_len.into());
            tally.buckets.add(cause.bucket(), image.len.into());
        });
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
        if record.header.is_switch() {
            self.events.push((record.lsn, Event::Switch));
            return;
        }
        let event = match payload::parse(record) {
            Ok(Payload::Commit(end)) => {
                if !end.dropped_relations.is_empty() {
                    let dropped = Dropped::read(&end, xid, self.spec.version);
                    self.events.push((record.lsn, Event::Dropped(Box::new(dropped))));
                }
                return self.end(&end, true, xid);
            }
            Ok(Payload::StorageCreate(create)) if create.fork == Fork::MAIN => {
                Event::Created { xid, file: create.relation }
            }
            Ok(Payload::StorageCreate(create)) if create.fork == Fork::INIT => {
                Event::CreatedUnlogged(create.relation)
            }
            Ok(Payload::Abort(end)) => return self.end(&end, false, xid),
            Ok(Payload::Prepare(prepare)) => Event::Prepare { xid, subxids: prepare.subxids().collect() },
            Ok(Payload::Assignment(assignment)) => {
                Event::Assigned { top: assignment.top_xid, subxids: assignment.subxacts.collect() }
            }
            Ok(Payload::Checkpoint(checkpoint)) => Event::Checkpoint(Box::new(checkpoint)),
            Ok(Payload::CheckpointRedo(redo)) => {
                Event::CheckpointRedo { redo, time: self.finished.last().map(|last| last.time) }
            }
            Ok(Payload::StandbyLock(lock)) => Event::Locked(lock.locks.collect()),
            Ok(Payload::RunningXacts(running)) => Event::Running {
                running: RunningTransactions::from_snapshot(&running),
                time: self.finished.last().map(|last| last.time),
            },
            Ok(Payload::ParameterChange(change)) => {
                Event::Parameters { wal_level: change.wal_level, wal_log_hints: change.wal_log_hints }
            }
            Ok(Payload::FullPageWritesChange(change)) => Event::FullPageWrites(change.enabled),
            Ok(Payload::LogicalDecodingStatusChange(change)) => Event::LogicalDecoding(change.enabled),
            Ok(Payload::BackupEnd(backup)) => Event::BackupEnd { start: backup.start },
            // Unknown kinds and malformed records are already counted, and have no further meaning.
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
            // Frees the transaction's slot.
            sums = std::mem::take(at_hand);
        }
        let before = self.subxids.len();
        self.subxids.extend(subxids);
        if committed && self.subxids.len() == before {
            self.evidence.commit(xid, sums.records);
        }
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

    #[inline(never)]
    fn rare_usual_event(&mut self, record: SimpleRecord<'_>) {
        record.as_record(|record| self.rare_event(record));
    }

    #[inline(never)]
    fn usual_as_any(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
        record.as_record(|record| self.record(record))
    }
}

impl Visitor for SegmentTally<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.first.is_none() {
            if self.spec.from.is_some_and(|from| record.lsn < from) {
                return ControlFlow::Continue(());
            }
            self.begin_range(record.lsn);
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
        if let Some(top) = record.toplevel_xid {
            self.events.push((record.lsn, Event::Child { xid: header.xid, top }));
        }
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
                self.image(record, block, image, kind, of_block);
            } else if let Some(sampler) = &mut self.sampler {
                sampler.add_plain(record.lsn, block);
            }
        }
        let transaction = self.transaction(header.xid);
        transaction.records += 1;
        transaction.bytes += header.total_len + u32::from(record.alignment);
        transaction.image_bytes += image_bytes;
        match header.rmid {
            rmid::XLOG if !record.blocks.is_empty() => self.evidence.observe_image(record),
            rmid::XLOG | rmid::XACT | rmid::SMGR | rmid::STANDBY => self.event(record),
            manager if is_evidence(manager) => self.evidence.observe(record),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// Adds a record of the usual layout, like [`SegmentTally::record`].
    #[inline(always)]
    fn simple_record(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
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
        if record.will_init()
            && let Some(sampler) = &mut self.sampler
        {
            sampler.add_initialized(record.lsn, record.relation(), record.fork(), record.block());
        }
        let transaction = self.transaction(header.xid);
        transaction.records += 1;
        transaction.bytes += record.aligned_len();
        match header.rmid {
            rmid::XACT => match xact::plain_simple_end(&record) {
                Some((committed, time)) => self.finish(header.xid, committed, time, std::iter::empty()),
                None => self.rare_usual_event(record),
            },
            rmid::SMGR | rmid::STANDBY => self.rare_usual_event(record),
            manager if is_evidence(manager) => self.evidence.observe_simple(record),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn page_header(&mut self, lsn: Lsn, width: usize) {
        if self.first.is_none() {
            self.lead_header = Some((lsn, width as u64));
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

    fn abandoned(&mut self, lsn: Lsn, bytes: u64) {
        if self.first.is_none() && self.is_at_or_behind_start(lsn) {
            self.begin_range(lsn);
        }
        if self.first.is_some() || self.spec.from.is_none() {
            self.framing(Bucket::Abandoned, bytes);
        }
    }

    fn padding(&mut self, lsn: Lsn, bytes: u64) {
        if self.first.is_none() {
            // A range that ends within the padding includes the whole page of its end, and the next range
            // starts with a page. Since version 11, PostgreSQL writes these pages without headers
            // (`CopyXLogRecordToWAL` in `xlog.c`).
            let is_page = self.spec.geometry.offset_in_page(lsn) == 0 && self.is_at_or_behind_start(lsn);
            if !is_page && self.header_before(lsn) == 0 {
                return;
            }
            self.begin_range(lsn);
        }
        self.framing(Bucket::SwitchPadding, bytes);
    }
}
