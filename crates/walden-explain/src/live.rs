//! Explains the WAL while it is written: sums up each part as it arrives, and all parts.

use std::ops::ControlFlow;

use walden_format::lsn::{Lsn, SegmentName};
use walden_format::record::Record;
use walden_format::rmgr::KindTable;
use walden_format::simple::SimpleRecord;
use walden_format::stream::{StreamInfo, Visitor};
use walden_format::version::Major;

use crate::checkpoints::{Begin, CheckpointRecord};
use crate::collect::{CollectSpec, Event, SegmentTally};
use crate::explanation::Explanation;
use crate::group::Cell;
use crate::merge::{Cluster, Merge};
use crate::request::Request;
use crate::slices::Slices;
use crate::tally::{ImageTable, Tally};

/// Maximum number of transactions that are kept.
const TOP: usize = 100;
/// Maximum number of cells (relation fork and record kind), 200 bytes each. Beyond this number, the sums
/// restart at zero, so memory does not grow with the number of relations that a server creates and drops.
pub const MAX_CELLS: usize = 100_000;

static NO_SLICES: Slices = Slices::none();

/// Sums up the WAL from a start position. Decode the WAL with [`Live`] as the visitor, and call
/// [`Live::settle`] after each part.
pub struct Live {
    cluster: Cluster,
    merge: Merge<'static>,
    tally: SegmentTally<'static>,
    position: Lsn,
}

/// The sums of a part of the WAL.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// Bytes, by owner and kind of record.
    pub cells: Vec<(Cell, Tally)>,
    /// Full-page images by cause and compression.
    pub images: ImageTable,
    /// Checkpoints whose record is in the part.
    pub checkpoints: Vec<CheckpointRecord>,
    /// Redo pointers of checkpoints that started in the part (PostgreSQL 17 and later).
    pub begun: Vec<Lsn>,
    /// Number of transactions that committed.
    pub committed: u64,
    /// Number of transactions that were rolled back. Subtransactions count too, unless the WAL so far names
    /// their transactions.
    pub aborted: u64,
    /// Whether files of relations were created or dropped, so names may have changed.
    pub has_new_files: bool,
}

impl Piece {
    /// Bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.cells.iter().map(|(_, tally)| tally.bytes()).sum()
    }
}

impl Live {
    /// Starts at a position: the start of a record, or the position where a decoder stopped.
    pub fn new(info: &StreamInfo, position: Lsn) -> Live {
        let StreamInfo { version, system_id, segment_size, data_page_bytes, .. } = *info;
        let spec = CollectSpec {
            version,
            kinds: KindTable::for_version(version),
            views: &[],
            slices: &NO_SLICES,
            from: None,
            geometry: info.geometry(),
            data_page_bytes,
            sample_images: false,
        };
        let cluster = Cluster { version, system_id, segment_size };
        let merge = Merge::new(&[], &NO_SLICES, TOP, None);
        let mut live = Live { cluster, merge, tally: SegmentTally::new(spec), position };
        live.begin(info, position);
        live
    }

    /// Starts a separate range, on another timeline or after a gap. Records that were not settled are not
    /// counted.
    pub fn begin(&mut self, info: &StreamInfo, position: Lsn) {
        let segment = self.segment(info, position);
        self.merge.begin_live(info.timeline, position, segment);
        self.tally.begin_at(position);
        self.position = position;
    }

    /// Adds the records visited since the previous call: the WAL up to `position`.
    ///
    /// # Panics
    /// The visited bytes do not add up to the distance to `position`.
    pub fn settle(&mut self, info: &StreamInfo, position: Lsn) -> Piece {
        self.tally.settle();
        let tally = &mut self.tally;
        let mut piece = Piece {
            cells: tally.cells.iter().filter(|(_, sum)| sum.bytes() > 0).copied().collect(),
            images: tally.images,
            ..Piece::default()
        };
        for finished in &tally.finished {
            *if finished.committed { &mut piece.committed } else { &mut piece.aborted } += 1;
        }
        for (lsn, event) in &tally.events {
            match event {
                Event::Checkpoint(checkpoint) => piece.checkpoints.push(CheckpointRecord {
                    lsn: *lsn,
                    redo: checkpoint.redo,
                    time: checkpoint.time,
                    shutdown: checkpoint.shutdown,
                    is_finished: true,
                    begin: Begin::Unmarked,
                }),
                Event::CheckpointRedo { .. } => piece.begun.push(*lsn),
                Event::Created { .. } | Event::Dropped(_) => piece.has_new_files = true,
                _ => {}
            }
        }
        assert_eq!(
            piece.bytes(),
            position.0 - self.position.0,
            "the buckets do not add up to the bytes from {} to {position}",
            self.position
        );
        if self.merge.cells() > MAX_CELLS {
            self.merge = Merge::new(&[], &NO_SLICES, TOP, None);
            let segment = self.segment(info, self.position);
            self.merge.begin_live(info.timeline, self.position, segment);
        }
        // The segment with the last byte.
        let segment = self.segment(info, Lsn(position.0.saturating_sub(1).max(self.position.0)));
        let before = self.merge.aborted_subtransactions();
        self.merge.add_live(&mut self.tally, position, segment);
        // An earlier part may have counted some of these.
        piece.aborted = piece.aborted.saturating_sub(self.merge.aborted_subtransactions() - before);
        self.tally.begin_at(position);
        self.position = position;
        piece
    }

    /// Returns the sums of all parts since the start, or since the sums last restarted. The ranges of the
    /// result show where the sums start.
    pub fn explanation(&self) -> Explanation {
        let request = Request { top: TOP, ..Request::new(1) };
        self.merge.clone().finish(self.cluster, &request, None, &[])
    }

    /// Number of rewrites of relations seen so far.
    pub fn rewrites(&self) -> usize {
        self.merge.rewrites()
    }

    /// PostgreSQL's major version.
    pub fn version(&self) -> Major {
        self.cluster.version
    }

    fn segment(&self, info: &StreamInfo, position: Lsn) -> SegmentName {
        let size = self.cluster.segment_size;
        SegmentName::new(info.timeline, size.segment_of(position), size)
    }
}

impl Visitor for Live {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.tally.record(record)
    }

    #[inline(always)]
    fn simple_record(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
        self.tally.simple_record(record)
    }

    fn page_header(&mut self, lsn: Lsn, width: usize) {
        self.tally.page_header(lsn, width);
    }

    fn continuation(&mut self, lsn: Lsn, bytes: u64) {
        self.tally.continuation(lsn, bytes);
    }

    fn abandoned(&mut self, lsn: Lsn, bytes: u64) {
        self.tally.abandoned(lsn, bytes);
    }

    fn padding(&mut self, lsn: Lsn, bytes: u64) {
        self.tally.padding(lsn, bytes);
    }
}
