//! From runs of segments to an explanation: what the threads counted, merged in the log's order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline as TimelineId};
use walden_format::payload::xlog::WalLevel;
use walden_format::record::RelFileLocator;
use walden_format::rmgr::KindTable;
use walden_format::version::Major;
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, SegmentOutcome, Tail, scan};

use crate::checkpoints::CheckpointSeen;
use crate::collect::{CollectSpec, Event, Finished, SegmentTally, TransactionTally};
use crate::group::{Cell, Dimension, GroupKey, ViewSpec};
use crate::rewrites::Rewrite;
use crate::slices::{Slices, TENTHS};
use crate::tally::{Bucket, Buckets, ImageTable, Tally};
use crate::timeline::Timeline;

/// Groups of a view that are kept apart at most. Beyond it the smaller half is summed up, so that memory does not grow
/// with the log; the sums stay exact.
const MAX_GROUPS: usize = 100_000;
/// Spans of time that a log is cut into at most when no width is asked for.
const MAX_SPANS: i64 = 60;

/// What to explain and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// Views besides those that are always made (by relation, by kind of record, by transaction).
    pub views: Vec<ViewSpec>,
    /// Rows of a view that are kept when it is by transaction.
    pub top: usize,
    /// Only records from here on.
    pub from: Option<Bound>,
    /// Only records that start before this.
    pub to: Option<Bound>,
    /// Seconds of a span of time; nothing: chosen so that there are at most 60.
    pub every: Option<i64>,
    /// Threads that decode.
    pub threads: usize,
}

impl Request {
    /// The sums of a range and nothing beside them.
    pub fn sums(from: Lsn, to: Lsn, threads: usize) -> Request {
        let (from, to) = (Some(Bound::Lsn(from)), Some(Bound::Lsn(to)));
        Request { views: Vec::new(), top: 0, from, to, every: None, threads }
    }
}

/// An end of the range to explain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// A position.
    Lsn(Lsn),
    /// A second since 1970-01-01 UTC: the records of transactions that end then or later.
    Time(i64),
}

/// Where the bytes of a log are.
#[derive(Debug)]
pub struct Explanation {
    /// Who wrote it.
    pub version: Major,
    /// The cluster.
    pub system_id: u64,
    /// The cluster's segment size.
    pub segment_size: SegmentSize,
    /// The parts that were read.
    pub ranges: Vec<Range>,
    /// Bytes of the ranges; the sum of `buckets`.
    pub file_bytes: u64,
    /// Records that start in the ranges.
    pub records: u64,
    /// Bytes by where they went.
    pub buckets: Buckets,
    /// Images by cause and compression.
    pub images: ImageTable,
    /// By owner and kind of record.
    pub cells: Vec<(Cell, Tally)>,
    /// The views asked for, in that order.
    pub views: Vec<View>,
    /// The largest transactions, largest first.
    pub transactions: Vec<Transaction>,
    /// All transactions.
    pub transaction_sums: TransactionSums,
    /// The checkpoints whose records were met, in order.
    pub checkpoints: Vec<CheckpointSeen>,
    /// Microseconds since 1970-01-01 UTC of the first and last transaction's end.
    pub time_span: Option<(i64, i64)>,
    /// What the log says of the server's settings.
    pub told: ToldSettings,
    /// Switch records.
    pub switches: u64,
    /// Ends of base backups.
    pub backups: u64,
    /// Updates of row versions that the same transaction had just written, at least.
    pub repeated_updates: Vec<(Cell, u64)>,
    /// Transactions that rewrote relations: see [`crate::rewrites`].
    pub rewrites: Vec<Rewrite>,
    /// When the first span of time starts, in seconds since 1970-01-01 UTC, and how long each is.
    pub spans: Option<(i64, i64)>,
    /// The checkpoint cycles, if a view is split by them; the one before the first redo pointer comes first.
    pub cycles: Vec<Cycle>,
    /// Where the log could not be read any further.
    pub damage: Option<Damage>,
}

/// A part of the log that was read without a gap.
#[derive(Clone, Debug)]
pub struct Range {
    /// The timeline of its segments.
    pub timeline: TimelineId,
    /// Where it starts.
    pub start: Lsn,
    /// Where it ends, the tail included.
    pub end: Lsn,
    /// Its first segment.
    pub first_segment: SegmentName,
    /// Its last segment.
    pub last_segment: SegmentName,
    /// Bytes read.
    pub bytes: u64,
    /// What is after the last record, if the log ends in this range.
    pub tail: Option<Tail>,
}

/// The log split by one or more dimensions.
#[derive(Clone, Debug)]
pub struct View {
    /// The dimensions.
    pub spec: ViewSpec,
    /// The groups, largest first.
    pub rows: Vec<(GroupKey, Tally)>,
    /// Groups that were not kept apart: how many and their sum.
    pub rest: (u64, Tally),
}

/// A transaction with its subtransactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The toplevel transaction's number.
    pub xid: u32,
    /// How it ended, as far as the log goes.
    pub outcome: Outcome,
    /// When it ended, in microseconds since 1970-01-01 UTC.
    pub time: Option<i64>,
    /// Records.
    pub records: u64,
    /// Bytes, alignment included.
    pub bytes: u64,
    /// Of these, full-page images.
    pub image_bytes: u64,
    /// Subtransactions that its end names.
    pub subtransactions: u32,
}

/// Bytes, and bytes of images among them, of each tenth of a checkpoint cycle.
pub type Along = [(u64, u64); TENTHS as usize];

/// What was written from one checkpoint's redo pointer to the next one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// The redo pointer that it starts at, and when that checkpoint began, in seconds since 1970-01-01 UTC; nothing for
    /// what comes before the first.
    pub start: Option<(Lsn, i64)>,
    /// What was written along it.
    pub along: Along,
}

fn cycles_of(starts: &[(Lsn, i64)], along: &FxHashMap<u32, Along>) -> Vec<Cycle> {
    if starts.is_empty() {
        return Vec::new();
    }
    let starts = std::iter::once(None).chain(starts.iter().copied().map(Some));
    let cycle =
        |(number, start)| Cycle { start, along: along.get(&(number as u32)).copied().unwrap_or_default() };
    starts.enumerate().map(cycle).collect()
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It committed.
    Committed,
    /// It was rolled back.
    Aborted,
    /// It was prepared and has not ended in the log.
    Prepared,
    /// It has not ended in the log.
    Open,
}

impl Outcome {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Prepared => "prepared",
            Outcome::Open => "open",
        }
    }
}

/// Sums over all transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionSums {
    /// How many committed.
    pub committed: u64,
    /// How many were rolled back.
    pub aborted: u64,
    /// How many have not ended in the log.
    pub open: u64,
    /// Bytes of all transactions.
    pub bytes: u64,
    /// Bytes of those that were rolled back.
    pub aborted_bytes: u64,
    /// Bytes of records that belong to no transaction.
    pub system_bytes: u64,
    /// Records that belong to no transaction.
    pub system_records: u64,
}

/// Settings that the log tells of; the last value met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ToldSettings {
    /// `full_page_writes`.
    pub full_page_writes: Option<bool>,
    /// `wal_level`.
    pub wal_level: Option<WalLevel>,
    /// `wal_log_hints`.
    pub wal_log_hints: Option<bool>,
}

/// Why nothing can be explained.
#[derive(Debug, PartialEq, Eq)]
pub enum ExplainError {
    /// No segments.
    Nothing,
    /// Segments of several clusters.
    SeveralClusters(u64, u64),
    /// Segments of several versions.
    SeveralVersions(Major, Major),
    /// No transaction ends at or after the time that the range is to start at.
    TimeAfterEnd,
}

impl fmt::Display for ExplainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExplainError::Nothing => f.write_str("there are no segments to explain"),
            ExplainError::SeveralClusters(one, other) => write!(
                f,
                "the input holds segments of two clusters, with the system identifiers {one} and {other}: \
                 name the folder or the segments of one"
            ),
            ExplainError::SeveralVersions(one, other) => write!(
                f,
                "the input holds segments of PostgreSQL {one} and {other}: name the segments of one"
            ),
            ExplainError::TimeAfterEnd => {
                f.write_str("no transaction in the input ends at or after the time given as --from")
            }
        }
    }
}

impl std::error::Error for ExplainError {}

/// Reads the runs and says where their bytes are. `progress` is told of bytes as they are read.
pub fn explain(
    runs: &[Run],
    request: &Request,
    mut progress: impl FnMut(u64),
) -> Result<Explanation, ExplainError> {
    let first = runs.first().ok_or(ExplainError::Nothing)?;
    if let Some(other) = runs.iter().find(|run| run.system_id != first.system_id) {
        return Err(ExplainError::SeveralClusters(first.system_id, other.system_id));
    }
    if let Some(other) = runs.iter().find(|run| run.version != first.version) {
        return Err(ExplainError::SeveralVersions(first.version, other.version));
    }
    let by_time = |bound: Option<Bound>| matches!(bound, Some(Bound::Time(_)));
    let needs_timeline =
        by_time(request.from) || by_time(request.to) || request.views.iter().any(ViewSpec::needs_timeline);
    let timeline = match needs_timeline {
        true => Timeline::read(runs, request.threads, &mut progress),
        false => Timeline::default(),
    };
    let (from, to) = timeline.range(request.from, request.to)?;
    let cuts = Cuts::new(request, &timeline, runs);
    let views: Vec<ViewSpec> = request.views.iter().filter(|view| view.needs_pieces()).cloned().collect();
    let spec = CollectSpec {
        kinds: KindTable::of(first.version),
        views: &views,
        slices: &cuts.slices,
        from,
        data_page_bytes: 8192,
    };
    let mut merge = Merge::new(&views, &cuts.slices, request.top);
    // What segments are counted in, to be used again.
    let spare = Mutex::new(Vec::new());
    let spare = || spare.lock().unwrap_or_else(PoisonError::into_inner);
    for run in runs {
        merge.begin_range(run, from, to);
        let options = ScanOptions { threads: request.threads, from, to };
        let size = run.segment_size.bytes();
        let make = |index: usize| {
            let start = run.segments[index].start;
            let tally = spare().pop().unwrap_or_else(|| SegmentTally::new(spec));
            tally.begin(start, start.plus(size))
        };
        scan(run, options, make, |outcome| {
            progress(size);
            let tally = merge.segment(run, outcome);
            spare().push(tally);
            ControlFlow::Continue(())
        });
        merge.end_range();
        if merge.damage.is_some() {
            break;
        }
    }
    Ok(merge.finish(first, request, cuts.spans, &cuts.cycles))
}

/// Where a run's log has its page headers.
fn geometry(run: &Run) -> Geometry {
    let page_bytes = run.segments.first().map_or(Geometry::DEFAULT_PAGE_BYTES, |segment| segment.page_bytes);
    let default = Geometry::with_default_pages(run.segment_size);
    Geometry::new(run.segment_size, page_bytes).unwrap_or(default)
}

/// Where the views are cut by time and checkpoint.
struct Cuts {
    slices: Slices,
    spans: Option<(i64, i64)>,
    cycles: Vec<(Lsn, i64)>,
}

impl Cuts {
    fn new(request: &Request, timeline: &Timeline, runs: &[Run]) -> Cuts {
        let wants = |dimension| request.views.iter().any(|view| view.has(dimension));
        let (mut times, mut spans) = (Vec::new(), None);
        if let (true, Some((first, last))) = (wants(Dimension::Time), timeline.span()) {
            let width = request.every.unwrap_or_else(|| span_width(last - first));
            let (cuts, start) = timeline.spans(width);
            times = cuts;
            spans = Some((start, width));
        }
        let cycles = if wants(Dimension::Checkpoint) { timeline.redo.clone() } else { Vec::new() };
        let starts: Vec<Lsn> = cycles.iter().map(|(lsn, _)| *lsn).collect();
        let start = runs.iter().map(Run::start).min().unwrap_or_default();
        let end = runs.iter().map(Run::end).max().unwrap_or_default();
        Cuts { slices: Slices::cut(&times, &starts, (start, end)), spans, cycles }
    }
}

/// The smallest usual width that gives at most [`MAX_SPANS`] spans.
fn span_width(seconds: i64) -> i64 {
    const USUAL: [i64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 6 * 3600];
    let fits = |width: &&i64| seconds / **width < MAX_SPANS;
    USUAL.iter().find(fits).copied().unwrap_or_else(|| (seconds / MAX_SPANS / 86_400 + 1) * 86_400)
}

struct Merge<'a> {
    views: &'a [ViewSpec],
    slices: &'a Slices,
    ranges: Vec<Range>,
    range_started: bool,
    whole_start: bool,
    to: Option<Lsn>,
    cells: FxHashMap<Cell, Tally>,
    images: ImageTable,
    groups: Vec<ViewGroups>,
    transactions: Transactions,
    checkpoints: Vec<CheckpointSeen>,
    time_span: Option<(i64, i64)>,
    told: ToldSettings,
    switches: u64,
    backups: u64,
    repeated_updates: FxHashMap<Cell, u64>,
    along: FxHashMap<u32, Along>,
    /// Files created by transactions that may still drop others.
    created: FxHashMap<u32, Vec<RelFileLocator>>,
    rewrites: Vec<Rewrite>,
    damage: Option<Damage>,
}

impl<'a> Merge<'a> {
    fn new(views: &'a [ViewSpec], slices: &'a Slices, top: usize) -> Merge<'a> {
        Merge {
            views,
            slices,
            ranges: Vec::new(),
            range_started: false,
            whole_start: true,
            to: None,
            cells: FxHashMap::default(),
            images: ImageTable::default(),
            groups: views.iter().map(|view| ViewGroups::new(view.has(Dimension::Xid), top)).collect(),
            transactions: Transactions::new(top),
            checkpoints: Vec::new(),
            time_span: None,
            told: ToldSettings::default(),
            switches: 0,
            backups: 0,
            repeated_updates: FxHashMap::default(),
            along: FxHashMap::default(),
            created: FxHashMap::default(),
            rewrites: Vec::new(),
            damage: None,
        }
    }

    /// The range starts with its first segment, or with the first record from `from` on.
    fn begin_range(&mut self, run: &Run, from: Option<Lsn>, to: Option<Lsn>) {
        self.range_started = false;
        self.to = to;
        self.whole_start =
            from.is_none_or(|from| run.segments.first().is_some_and(|first| from <= first.start));
    }

    fn end_range(&mut self) {
        if let Some(range) = self.ranges.last_mut() {
            range.bytes = range.end.0 - range.start.0;
        }
    }

    /// Adds what a segment came to; its tally comes back to be used again.
    fn segment<'t>(&mut self, run: &Run, outcome: SegmentOutcome<SegmentTally<'t>>) -> SegmentTally<'t> {
        let SegmentOutcome { index, visitor: mut tally, start, position, end, .. } = outcome;
        tally.settle();
        let begins = !self.range_started;
        if begins && self.whole_start {
            tally.add_framing(true, Bucket::PageHeader, tally.lead_headers);
            tally.add_framing(true, Bucket::BegunBefore, tally.lead_continuation);
            self.start_range(run, index, start);
        } else if begins && let Some(first) = tally.first {
            self.start_range(run, index, first);
        } else if !begins {
            tally.add_framing(true, Bucket::PageHeader, tally.lead_headers);
        }
        if self.range_started
            && let Some(range) = self.ranges.last_mut()
        {
            range.end = position;
            range.last_segment = run.segments[index].name;
        }
        let segment_end = start.plus(run.segment_size.bytes());
        if self.range_started && position > segment_end && self.to.is_some_and(|to| to <= segment_end) {
            // The last record goes on in a segment that nobody reads for itself.
            let headers = geometry(run).header_bytes_between(segment_end, position);
            tally.add_framing(false, Bucket::PageHeader, headers);
        }
        match end {
            SegmentEnd::Complete | SegmentEnd::Limit => {}
            SegmentEnd::EndOfLog(tail) => self.tail(&mut tally, tail),
            SegmentEnd::Damaged(damage) => self.damage = Some(damage),
        }
        self.add(&mut tally);
        tally
    }

    fn start_range(&mut self, run: &Run, index: usize, start: Lsn) {
        self.range_started = true;
        let segment = run.segments[index].name;
        self.ranges.push(Range {
            timeline: run.timeline,
            start,
            end: start,
            first_segment: segment,
            last_segment: segment,
            bytes: 0,
            tail: None,
        });
    }

    fn tail(&mut self, tally: &mut SegmentTally<'_>, tail: Tail) {
        let Some(range) = self.ranges.last_mut().filter(|_| self.range_started) else { return };
        let parts = [
            (Bucket::CutRecord, tail.cut_record),
            (Bucket::ZeroTail, tail.zero),
            (Bucket::RecycledTail, tail.recycled),
            (Bucket::TornTail, tail.torn),
        ];
        for (bucket, bytes) in parts {
            tally.add_framing(false, bucket, bytes);
            range.end = range.end.plus(bytes);
        }
        range.tail = Some(tail);
    }

    fn add(&mut self, tally: &mut SegmentTally<'_>) {
        self.images.merge(&tally.images);
        for (cell, sum) in &tally.cells {
            self.cells.entry(*cell).or_default().merge(sum);
        }
        for (cell, count) in &tally.repeated_updates {
            *self.repeated_updates.entry(tally.cells[*cell as usize].0).or_default() += count;
        }
        // Any one view by checkpoint has the bytes of all tenths.
        if let Some(index) = self.views.iter().position(|view| view.has(Dimension::Checkpoint)) {
            for ((_, _, slice), sum) in &tally.pieces[index] {
                let place = self.slices.place(*slice);
                let cycle = self.along.entry(place.checkpoint).or_default();
                let tenth = &mut cycle[place.tenth as usize];
                *tenth = (tenth.0 + sum.bytes(), tenth.1 + sum.buckets.images());
            }
        }
        for ((view, groups), pieces) in self.views.iter().zip(&mut self.groups).zip(&tally.pieces) {
            for ((cell, xid, slice), sum) in pieces {
                let mut key = view.key_of_cell(tally.cells[*cell as usize].0);
                let place = self.slices.place(*slice);
                key.time = view.has(Dimension::Time).then_some(place.time);
                key.checkpoint = view.has(Dimension::Checkpoint).then_some(place.checkpoint);
                groups.add(*xid, key, sum);
            }
        }
        for (xid, sum) in &tally.transactions {
            self.transactions.add(*xid, sum);
        }
        // A prepared transaction may end in the same segment; a list of running ones closes only what is still open.
        for (_, event) in &tally.events {
            if let Event::Prepare { xid } = event {
                self.transactions.prepare(*xid);
            }
        }
        let mut subxids = tally.subxids.as_slice();
        for finished in &tally.finished {
            let (these, rest) = subxids.split_at(finished.subxids as usize);
            self.finished(finished, these);
            subxids = rest;
        }
        for (lsn, event) in tally.events.drain(..) {
            self.event(lsn, event);
        }
    }

    fn finished(&mut self, finished: &Finished, subxids: &[u32]) {
        let Finished { xid, committed, time, .. } = *finished;
        let time = time.unix_micros();
        let (first, last) = self.time_span.unwrap_or((time, time));
        self.time_span = Some((first.min(time), last.max(time)));
        for groups in &mut self.groups {
            groups.close(xid, subxids);
        }
        let outcome = if committed { Outcome::Committed } else { Outcome::Aborted };
        self.transactions.close(xid, subxids, outcome, Some(time), finished.tally());
    }

    fn event(&mut self, lsn: Lsn, event: Event) {
        match event {
            Event::Prepare { .. } => {}
            Event::Created { xid, file } => self.created.entry(xid).or_default().push(file),
            Event::Dropped { xids, files } => {
                let created: Vec<RelFileLocator> =
                    xids.iter().flat_map(|xid| self.created.remove(xid)).flatten().collect();
                if !created.is_empty() && self.rewrites.len() < MAX_GROUPS {
                    self.rewrites.push(Rewrite { created, dropped: files });
                }
            }
            Event::Running { oldest } => {
                for groups in &mut self.groups {
                    groups.close_before(oldest);
                }
                self.transactions.close_before(oldest);
                self.created.retain(|xid, _| !precedes(*xid, oldest));
            }
            Event::Checkpoint(checkpoint) => {
                self.told.full_page_writes = Some(checkpoint.full_page_writes);
                self.told.wal_level = checkpoint.wal_level.or(self.told.wal_level);
                self.checkpoints.push(CheckpointSeen {
                    lsn,
                    redo: checkpoint.redo,
                    time: checkpoint.time,
                    shutdown: checkpoint.shutdown,
                });
            }
            Event::Parameters { wal_level, wal_log_hints } => {
                self.told.wal_level = Some(wal_level);
                self.told.wal_log_hints = Some(wal_log_hints);
            }
            Event::FullPageWrites(on) => self.told.full_page_writes = Some(on),
            Event::BackupEnd => self.backups += 1,
            Event::Switch => self.switches += 1,
        }
    }

    fn finish(
        self,
        run: &Run,
        request: &Request,
        spans: Option<(i64, i64)>,
        cycles: &[(Lsn, i64)],
    ) -> Explanation {
        let mut sum = Tally::default();
        let mut cells: Vec<(Cell, Tally)> =
            self.cells.into_iter().filter(|(_, tally)| tally.bytes() > 0).collect();
        for (_, tally) in &cells {
            sum.merge(tally);
        }
        sort_by_bytes(&mut cells);
        let file_bytes = self.ranges.iter().map(|range| range.bytes).sum();
        // The promise of the whole: every byte is counted, and once.
        assert_eq!(
            sum.bytes(),
            file_bytes,
            "the buckets do not add up to the bytes of the ranges {:?}",
            self.ranges
        );
        let mut asked = self.groups.into_iter();
        let mut view = |spec: &ViewSpec| {
            let (rows, rest) = match spec.needs_pieces() {
                true => asked.next().map(ViewGroups::finish).unwrap_or_default(),
                false => (rows_of_cells(spec, &cells), Default::default()),
            };
            View { spec: spec.clone(), rows, rest }
        };
        let views: Vec<View> = request.views.iter().map(&mut view).collect();
        for view in &views {
            let kept: u64 = view.rows.iter().map(|(_, tally)| tally.bytes()).sum();
            assert_eq!(kept + view.rest.1.bytes(), file_bytes, "view {:?} does not add up", view.spec);
        }
        let (transactions, transaction_sums) = self.transactions.finish();
        let mut repeated_updates: Vec<(Cell, u64)> = self.repeated_updates.into_iter().collect();
        repeated_updates.sort_by_key(|(cell, count)| (Reverse(*count), *cell));
        Explanation {
            version: run.version,
            system_id: run.system_id,
            segment_size: run.segment_size,
            ranges: self.ranges,
            file_bytes,
            records: sum.records,
            buckets: sum.buckets,
            images: self.images,
            cells,
            views,
            transactions,
            transaction_sums,
            checkpoints: self.checkpoints,
            time_span: self.time_span,
            told: self.told,
            switches: self.switches,
            backups: self.backups,
            repeated_updates,
            rewrites: self.rewrites,
            spans,
            cycles: cycles_of(cycles, &self.along),
            damage: self.damage,
        }
    }
}

impl Explanation {
    /// The log split by dimensions that need no pass of their own: relation, record, database.
    ///
    /// Dimensions that do (transaction, time, checkpoint) give no rows here: ask for them in the [`Request`].
    pub fn view_by(&self, dimensions: &[Dimension]) -> View {
        let spec = ViewSpec { dimensions: dimensions.to_vec() };
        let rows = if spec.needs_pieces() { Vec::new() } else { rows_of_cells(&spec, &self.cells) };
        View { spec, rows, rest: Default::default() }
    }

    /// Bytes of records: all but the framing.
    pub fn record_bytes(&self) -> u64 {
        Bucket::all().filter(|bucket| !bucket.is_framing()).map(|bucket| self.buckets.get(bucket)).sum()
    }
}

fn rows_of_cells(spec: &ViewSpec, cells: &[(Cell, Tally)]) -> Vec<(GroupKey, Tally)> {
    let mut groups: FxHashMap<GroupKey, Tally> = FxHashMap::default();
    for (cell, tally) in cells {
        groups.entry(spec.key_of_cell(*cell)).or_default().merge(tally);
    }
    let mut rows: Vec<_> = groups.into_iter().collect();
    sort_by_bytes(&mut rows);
    rows
}

/// Largest first; equal ones in a fixed order, so that equal inputs give equal output.
fn sort_by_bytes<K: Ord + Copy>(rows: &mut [(K, Tally)]) {
    rows.sort_by_key(|(key, tally)| (Reverse(tally.bytes()), *key));
}

/// The groups of one view.
struct ViewGroups {
    by_xid: bool,
    top: usize,
    /// Groups of transactions that may still write.
    open: FxHashMap<u32, FxHashMap<GroupKey, Tally>>,
    done: FxHashMap<GroupKey, Tally>,
    rest: (u64, Tally),
}

impl ViewGroups {
    fn new(by_xid: bool, top: usize) -> ViewGroups {
        ViewGroups {
            by_xid,
            top,
            open: FxHashMap::default(),
            done: FxHashMap::default(),
            rest: (0, Tally::default()),
        }
    }

    fn add(&mut self, xid: u32, mut key: GroupKey, sum: &Tally) {
        if self.by_xid && xid != 0 {
            self.open.entry(xid).or_default().entry(key).or_default().merge(sum);
        } else {
            key.xid = self.by_xid.then_some(0);
            self.done.entry(key).or_default().merge(sum);
            self.bound();
        }
    }

    fn close(&mut self, xid: u32, subxids: &[u32]) {
        if !self.by_xid {
            return;
        }
        for part in subxids.iter().chain([&xid]) {
            for (mut key, sum) in self.open.remove(part).into_iter().flatten() {
                key.xid = Some(xid);
                self.done.entry(key).or_default().merge(&sum);
            }
        }
        self.bound();
    }

    fn close_before(&mut self, oldest: u32) {
        let over: Vec<u32> = self.open.keys().copied().filter(|xid| precedes(*xid, oldest)).collect();
        for xid in over {
            self.close(xid, &[]);
        }
    }

    /// Sums up the smaller groups when there are too many.
    fn bound(&mut self) {
        let most = MAX_GROUPS.max(4 * self.top);
        if self.done.len() <= most {
            return;
        }
        let mut rows: Vec<_> = self.done.drain().collect();
        sort_by_bytes(&mut rows);
        for (_, sum) in rows.drain(most / 2..) {
            self.rest.0 += 1;
            self.rest.1.merge(&sum);
        }
        self.done.extend(rows);
    }

    fn finish(mut self) -> (Vec<(GroupKey, Tally)>, (u64, Tally)) {
        let open: Vec<u32> = self.open.keys().copied().collect();
        for xid in open {
            self.close(xid, &[]);
        }
        let mut rows: Vec<_> = self.done.into_iter().collect();
        sort_by_bytes(&mut rows);
        (rows, self.rest)
    }
}

/// Transactions as they come and go: only those that may still write and the largest are kept.
struct Transactions {
    top: usize,
    open: FxHashMap<u32, OpenTransaction>,
    largest: BinaryHeap<Reverse<(u64, Reverse<u32>, Kept)>>,
    sums: TransactionSums,
}

#[derive(Clone, Copy, Default)]
struct OpenTransaction {
    tally: TransactionTally,
    prepared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept(Transaction);

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Kept) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Kept) -> std::cmp::Ordering {
        self.0.time.cmp(&other.0.time)
    }
}

impl Transactions {
    fn new(top: usize) -> Transactions {
        Transactions {
            top,
            open: FxHashMap::default(),
            largest: BinaryHeap::new(),
            sums: TransactionSums::default(),
        }
    }

    fn add(&mut self, xid: u32, sum: &TransactionTally) {
        if xid == 0 {
            self.sums.system_bytes += sum.bytes;
            self.sums.system_records += sum.records;
        } else if sum.records > 0 {
            self.open.entry(xid).or_default().tally.merge(sum);
        }
    }

    fn prepare(&mut self, xid: u32) {
        self.open.entry(xid).or_default().prepared = true;
    }

    /// `tally` is what is not in `open` yet.
    fn close(
        &mut self,
        xid: u32,
        subxids: &[u32],
        outcome: Outcome,
        time: Option<i64>,
        mut tally: TransactionTally,
    ) {
        if !self.open.is_empty() {
            for part in subxids.iter().chain([&xid]) {
                if let Some(open) = self.open.remove(part) {
                    tally.merge(&open.tally);
                }
            }
        }
        match outcome {
            Outcome::Committed => self.sums.committed += 1,
            Outcome::Aborted => self.sums.aborted += 1,
            Outcome::Prepared | Outcome::Open => self.sums.open += 1,
        }
        self.sums.bytes += tally.bytes;
        if outcome == Outcome::Aborted {
            self.sums.aborted_bytes += tally.bytes;
        }
        let TransactionTally { records, bytes, image_bytes } = tally;
        let subtransactions = subxids.len() as u32;
        let transaction = Transaction { xid, outcome, time, records, bytes, image_bytes, subtransactions };
        if self.largest.len() < self.top || self.largest.peek().is_some_and(|least| least.0.0 < bytes) {
            self.largest.push(Reverse((bytes, Reverse(xid), Kept(transaction))));
            if self.largest.len() > self.top {
                self.largest.pop();
            }
        }
    }

    /// A crash ends transactions without a word; the next list of running ones tells.
    fn close_before(&mut self, oldest: u32) {
        let over: Vec<u32> = self.open.keys().copied().filter(|xid| precedes(*xid, oldest)).collect();
        for xid in over {
            self.close(xid, &[], Outcome::Aborted, None, TransactionTally::default());
        }
    }

    fn finish(mut self) -> (Vec<Transaction>, TransactionSums) {
        let mut open: Vec<(u32, bool)> = self.open.iter().map(|(xid, open)| (*xid, open.prepared)).collect();
        open.sort_unstable();
        for (xid, prepared) in open {
            let outcome = if prepared { Outcome::Prepared } else { Outcome::Open };
            self.close(xid, &[], outcome, None, TransactionTally::default());
        }
        let mut largest: Vec<Transaction> =
            self.largest.into_iter().map(|Reverse((_, _, kept))| kept.0).collect();
        largest.sort_by_key(|transaction| (Reverse(transaction.bytes), transaction.xid));
        (largest, self.sums)
    }
}

/// Transaction numbers wrap around: `TransactionIdPrecedes`.
fn precedes(xid: u32, other: u32) -> bool {
    (xid.wrapping_sub(other) as i32) < 0
}
