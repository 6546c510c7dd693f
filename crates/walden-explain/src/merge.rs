//! Merges the sums of segments, in WAL order.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::Timestamp;
use walden_format::payload::standby::AccessExclusiveLock;
use walden_format::payload::xlog::CheckpointRedo;
use walden_format::record::{Compression, RelFileLocator};
use walden_format::transam::{FIRST_NORMAL_XID, RunningTransactions};
use walden_format::version::Major;
use walden_source::inventory::Run;
use walden_source::scan::{Damage, SegmentEnd, SegmentOutcome, Tail};
use walden_source::subtransactions::Subtransactions;

use crate::checkpoints::{Begin, CheckpointRecord, CheckpointRecords};
use crate::collect::{Event, Finished, SegmentTally, TransactionTally};
use crate::dropped::{DroppedFiles, number_of};
use crate::evidence::{DecodingEvidence, Evidence};
use crate::explanation::{
    Along, Cycle, Explanation, LoggedSettings, Outcome, Range, Rewrite, View, rows_of_cells, sort_by_bytes,
};
use crate::group::{Cell, Dimension, ViewSpec};
use crate::image_sample::Sample;
use crate::old_transactions::OldestTransactions;
use crate::request::Request;
use crate::slices::Slices;
use crate::tally::{Bucket, ImageTable, ImageTally, Tally};
use crate::transactions::Transactions;
use crate::views::{MAX_GROUPS, ViewGroups};
use crate::writers::Writers;

/// Properties common to all segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub version: Major,
    pub system_id: u64,
    pub segment_size: SegmentSize,
}

impl Cluster {
    pub fn from_run(run: &Run) -> Cluster {
        Cluster { version: run.version, system_id: run.system_id, segment_size: run.segment_size }
    }
}

/// A rollback of a transaction, or of a subtransaction whose top-level transaction the WAL may still name.
#[derive(Clone, Copy)]
struct Rollback {
    xid: u32,
    /// In microseconds since 1970-01-01 UTC.
    time: i64,
    /// Number of subtransactions in its record.
    subtransactions: u32,
}

/// The sums so far, of all segments merged.
#[derive(Clone)]
pub(crate) struct Merge<'a> {
    views: &'a [ViewSpec],
    slices: &'a Slices,
    ranges: Vec<Range>,
    has_range_started: bool,
    starts_at_segment: bool,
    /// Whether a record has started in the range so far. Until then, a record continued in a segment started
    /// before the range.
    has_record: bool,
    to: Option<Lsn>,
    cells: FxHashMap<Cell, Tally>,
    images: ImageTable,
    uncompressed: ImageTally,
    sample: Option<Sample>,
    groups: Vec<ViewGroups<'a>>,
    transactions: Transactions,
    subtransactions: Subtransactions<Rollback>,
    checkpoints: CheckpointRecords,
    time_span: Option<(i64, i64)>,
    logged_settings: LoggedSettings,
    switches: u64,
    backups: u64,
    evidence: FxHashMap<RelFileLocator, Evidence>,
    decoding: DecodingEvidence,
    created_files: FxHashSet<RelFileLocator>,
    unlogged_files: FxHashSet<RelFileLocator>,
    oldest_transactions: OldestTransactions,
    dropped_files: DroppedFiles,
    /// Databases and OIDs of locked relations, with the first transaction that locked each.
    locked: FxHashMap<(u32, u32), u32>,
    along: FxHashMap<u32, Along>,
    /// Files created by transactions in progress.
    created: FxHashMap<u32, Vec<RelFileLocator>>,
    rewrites: Vec<Rewrite>,
    pub(crate) damage: Option<Arc<Damage>>,
}

impl<'a> Merge<'a> {
    pub(crate) fn new(
        views: &'a [ViewSpec],
        slices: &'a Slices,
        top: usize,
        writers: Option<&'a Writers>,
    ) -> Merge<'a> {
        Merge {
            views,
            slices,
            ranges: Vec::new(),
            has_range_started: false,
            starts_at_segment: true,
            has_record: false,
            to: None,
            cells: FxHashMap::default(),
            images: ImageTable::default(),
            uncompressed: ImageTally::default(),
            sample: None,
            groups: views.iter().map(|view| ViewGroups::new(view, top, writers)).collect(),
            transactions: Transactions::new(top),
            subtransactions: Subtransactions::default(),
            checkpoints: CheckpointRecords::default(),
            time_span: None,
            logged_settings: LoggedSettings::default(),
            switches: 0,
            backups: 0,
            evidence: FxHashMap::default(),
            decoding: DecodingEvidence::default(),
            created_files: FxHashSet::default(),
            unlogged_files: FxHashSet::default(),
            oldest_transactions: OldestTransactions::default(),
            dropped_files: DroppedFiles::default(),
            locked: FxHashMap::default(),
            along: FxHashMap::default(),
            created: FxHashMap::default(),
            rewrites: Vec::new(),
            damage: None,
        }
    }

    /// Opens a range, which starts at its first segment or at the first record at or after `from`.
    pub(crate) fn begin_range(&mut self, run: &Run, from: Option<Lsn>, to: Option<Lsn>) {
        self.has_range_started = false;
        self.has_record = false;
        self.to = to;
        self.starts_at_segment =
            from.is_none_or(|from| run.segments.first().is_some_and(|first| from <= first.start));
    }

    pub(crate) fn end_range(&mut self) {
        if let Some(range) = self.ranges.last_mut() {
            range.bytes = range.end.0 - range.start.0;
        }
    }

    /// Merges the outcome of a segment, and returns its tally for reuse.
    pub(crate) fn add_segment<'t>(
        &mut self,
        run: &Run,
        outcome: SegmentOutcome<SegmentTally<'t>>,
    ) -> SegmentTally<'t> {
        let SegmentOutcome {
            index, visitor: mut tally, start, position, end, is_behind_continuation, ..
        } = outcome;
        tally.settle();
        let is_first = !self.has_range_started;
        if let SegmentEnd::EndOfLog(tail) = &end
            && tail.bytes() > 0
            && is_behind_continuation
        {
            tally.begin_with_tail(position);
        }
        if is_first && self.starts_at_segment {
            tally.add_framing(true, Bucket::PageHeader, tally.lead_headers);
            tally.add_framing(true, Bucket::BegunBefore, tally.lead_continuation);
            self.start_range(run, index, start);
        } else if is_first && let Some(first) = tally.first {
            tally.add_framing(true, Bucket::PageHeader, tally.first_header);
            self.start_range(run, index, Lsn(first.0 - tally.first_header));
        } else if !is_first {
            tally.add_framing(true, Bucket::PageHeader, tally.lead_headers);
            if !self.has_record {
                tally.add_framing(true, Bucket::BegunBefore, tally.lead_continuation);
            }
        }
        self.has_record |= tally.first.is_some();
        if self.has_range_started
            && let Some(range) = self.ranges.last_mut()
        {
            range.end = position;
            range.last_segment = run.segments[index].name;
        }
        let segment_end = start.plus(run.segment_size.bytes());
        if self.has_range_started && position > segment_end && self.to.is_some_and(|to| to <= segment_end) {
            // The last record continues in a segment that is read only for this record.
            let headers = run.geometry().header_bytes_between(segment_end, position);
            tally.add_framing(false, Bucket::PageHeader, headers);
        }
        match end {
            SegmentEnd::Complete | SegmentEnd::Limit => {}
            SegmentEnd::EndOfLog(tail) => self.add_tail(&mut tally, tail),
            SegmentEnd::Damaged(damage) => self.damage = Some(Arc::new(damage)),
        }
        self.add_tally(&mut tally);
        tally
    }

    fn start_range(&mut self, run: &Run, index: usize, start: Lsn) {
        self.push_range(run.timeline, start, run.segments[index].name);
    }

    fn push_range(&mut self, timeline: Timeline, start: Lsn, segment: SegmentName) {
        self.has_range_started = true;
        self.ranges.push(Range {
            timeline,
            start,
            end: start,
            first_segment: segment,
            last_segment: segment,
            bytes: 0,
            tail: None,
        });
    }

    fn add_tail(&mut self, tally: &mut SegmentTally<'_>, tail: Tail) {
        let Some(range) = self.ranges.last_mut().filter(|_| self.has_range_started) else { return };
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

    /// Opens a range to which parts are added as they are written.
    pub(crate) fn begin_live(&mut self, timeline: Timeline, start: Lsn, segment: SegmentName) {
        // Drop ranges that stayed empty.
        self.ranges.retain(|range| range.bytes > 0);
        self.push_range(timeline, start, segment);
    }

    /// Adds the next part of the range, up to `end`.
    pub(crate) fn add_live(&mut self, tally: &mut SegmentTally<'_>, end: Lsn, segment: SegmentName) {
        if let Some(range) = self.ranges.last_mut() {
            range.end = end;
            range.last_segment = segment;
            range.bytes = end.0 - range.start.0;
        }
        self.add_tally(tally);
    }

    /// Number of cells, which memory grows with.
    pub(crate) fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Number of transactions so far that replaced files of relations.
    pub(crate) fn rewrites(&self) -> usize {
        self.rewrites.len()
    }

    /// Number of subtransactions so far that are known to have been rolled back alone.
    pub(crate) fn aborted_subtransactions(&self) -> u64 {
        self.transactions.aborted_subtransactions()
    }

    fn add_tally(&mut self, tally: &mut SegmentTally<'_>) {
        self.images.merge(&tally.images);
        let uncompressed = tally.images.compressible_by(Compression::None);
        if uncompressed.count == tally.images.compressible().count {
            self.uncompressed = self.uncompressed.plus(uncompressed);
        }
        if let Some(sample) = tally.sample() {
            self.sample.get_or_insert_default().append(sample);
        }
        for (cell, sum) in &tally.cells {
            self.cells.entry(*cell).or_default().merge(sum);
        }
        for (relation, evidence) in &tally.evidence.relations {
            self.evidence.entry(*relation).or_default().merge(evidence);
        }
        self.decoding.merge(&tally.evidence.decoding);
        // Every view by checkpoint contains the bytes of all tenths.
        if let Some(index) = self.views.iter().position(|view| view.has(Dimension::Checkpoint)) {
            for (piece, sum) in &tally.pieces[index] {
                let place = self.slices.place(piece.slice);
                let cycle = self.along.entry(place.checkpoint).or_default();
                let tenth = &mut cycle[place.tenth as usize];
                *tenth = (tenth.0 + sum.bytes(), tenth.1 + sum.buckets.images());
            }
        }
        for ((view, groups), pieces) in self.views.iter().zip(&mut self.groups).zip(&tally.pieces) {
            for (piece, sum) in pieces {
                let mut key = view.key_of_cell(tally.cells[piece.cell as usize].0);
                let place = self.slices.place(piece.slice);
                key.in_transaction = view.has(Dimension::Vacuum).then_some(piece.in_transaction);
                key.time = view.has(Dimension::Time).then_some(place.time);
                key.checkpoint = view.has(Dimension::Checkpoint).then_some(place.checkpoint);
                groups.add(piece.xid, key, sum);
            }
        }
        for (xid, sum) in &tally.transactions {
            self.transactions.add(*xid, sum);
        }
        // A prepared transaction may end in the same segment. RUNNING_XACTS closes only transactions that are
        // still open.
        for (_, event) in &tally.events {
            match event {
                Event::Prepare { xid, subxids } => {
                    self.fold(subxids, *xid);
                    self.transactions.prepare(*xid);
                }
                Event::Child { xid, top } => self.assign(&[*xid], *top),
                Event::Assigned { subxids, top } => self.assign(subxids, *top),
                _ => {}
            }
        }
        let last_end = self.time_span.map(|(_, last)| last);
        let mut subxids = tally.subxids.as_slice();
        for finished in &tally.finished {
            let (these, rest) = subxids.split_at(finished.subxids as usize);
            self.close_transaction(finished, these);
            subxids = rest;
        }
        for (lsn, event) in tally.events.drain(..) {
            self.apply_event(lsn, event, last_end);
        }
    }

    /// Assigns subtransactions to their transaction. Some may already have been rolled back.
    fn assign(&mut self, subxids: &[u32], top: u32) {
        for subxid in subxids {
            if self.subtransactions.assign(*subxid, top).is_some() {
                self.fold_rolled_back(*subxid, top);
            }
        }
    }

    /// Moves the sums of subtransactions to their transaction, which is in progress.
    fn fold(&mut self, subxids: &[u32], xid: u32) {
        if subxids.is_empty() {
            return;
        }
        self.groups.iter_mut().for_each(|groups| groups.fold(subxids, xid));
        self.transactions.fold(subxids, xid);
    }

    fn fold_rolled_back(&mut self, subxid: u32, top: u32) {
        self.groups.iter_mut().for_each(|groups| groups.fold(&[subxid], top));
        self.transactions.fold_rolled_back(subxid, top);
    }

    /// Closes transactions that a crash ended without a record.
    fn close_ended(&mut self, running: &RunningTransactions) {
        let decided = self.subtransactions.take_decided(running);
        self.close_all_rolled_back(decided);
        let transactions = &self.transactions;
        let has_ended = |xid: u32| running.has_ended(xid) && !transactions.is_prepared(xid);
        let over = self.open_transactions(has_ended);
        self.created.retain(|xid, _| !has_ended(*xid));
        for xid in over {
            self.close(xid, 0, Outcome::Aborted, None, TransactionTally::default());
        }
        let transactions = &self.transactions;
        self.subtransactions.forget(|xid| running.has_ended(xid) && !transactions.is_prepared(xid));
    }

    /// Closes transactions whose end is not in the WAL.
    fn close_open(&mut self) {
        let all = self.subtransactions.take_all();
        self.close_all_rolled_back(all);
        for xid in self.open_transactions(|_| true) {
            let is_prepared = self.transactions.is_prepared(xid);
            let outcome = if is_prepared { Outcome::Prepared } else { Outcome::Open };
            self.close(xid, 0, outcome, None, TransactionTally::default());
        }
    }

    /// Transactions without an end, ascending. Includes those without own records whose subtransactions are
    /// open.
    fn open_transactions(&self, is_of: impl Fn(u32) -> bool) -> Vec<u32> {
        let subtransactions = &self.subtransactions;
        let open = self.transactions.open().filter(|xid| !subtransactions.is_undecided(*xid));
        let mut tops: Vec<u32> =
            open.map(|xid| subtransactions.top_of(xid)).filter(|top| is_of(*top)).collect();
        tops.sort_unstable();
        tops.dedup();
        tops
    }

    fn close_transaction(&mut self, finished: &Finished, subxids: &[u32]) {
        let Finished { xid, committed, time, .. } = *finished;
        let time = time.unix_micros();
        let (first, last) = self.time_span.unwrap_or((time, time));
        self.time_span = Some((first.min(time), last.max(time)));
        self.fold(subxids, xid);
        let subtransactions = subxids.len() as u32;
        if committed {
            return self.close(xid, subtransactions, Outcome::Committed, Some(time), finished.tally());
        }
        let top = self.subtransactions.roll_back(xid, subxids);
        let is_known =
            xid < FIRST_NORMAL_XID || self.transactions.is_prepared(xid) || self.subtransactions.is_top(xid);
        if top.is_none() && is_known {
            return self.close(xid, subtransactions, Outcome::Aborted, Some(time), finished.tally());
        }
        self.transactions.add(xid, &finished.tally());
        match top {
            Some(top) => self.fold_rolled_back(xid, top),
            None => {
                let over = self.subtransactions.hold(xid, Rollback { xid, time, subtransactions });
                self.close_all_rolled_back(over);
            }
        }
    }

    /// Closes rollbacks as transactions, ascending.
    fn close_all_rolled_back(&mut self, mut rollbacks: Vec<Rollback>) {
        rollbacks.sort_unstable_by_key(|rollback| rollback.xid);
        for Rollback { xid, time, subtransactions } in rollbacks {
            self.close(xid, subtransactions, Outcome::Aborted, Some(time), TransactionTally::default());
        }
    }

    /// Closes a transaction, with its remaining subtransactions, whose sums are not folded into it yet.
    fn close(
        &mut self,
        xid: u32,
        subtransactions: u32,
        outcome: Outcome,
        time: Option<i64>,
        tally: TransactionTally,
    ) {
        let subxids = self.subtransactions.end(xid);
        self.fold(&subxids, xid);
        self.groups.iter_mut().for_each(|groups| groups.close(xid, time));
        self.transactions.close(xid, subtransactions, outcome, time, tally);
    }

    /// Applies an event. `last_end` is the last transaction end in earlier segments, in microseconds since
    /// 1970-01-01 UTC.
    fn apply_event(&mut self, lsn: Lsn, event: Event, last_end: Option<i64>) {
        match event {
            Event::Prepare { .. } | Event::Child { .. } | Event::Assigned { .. } => {}
            Event::Created { xid, file } => {
                match xid {
                    0 => self.dropped_files.create_without_transaction(file),
                    xid => self.created.entry(xid).or_default().push(file),
                }
                if self.created_files.len() < MAX_GROUPS {
                    self.created_files.insert(file);
                }
            }
            Event::Dropped(dropped) => {
                let xids = &dropped.xids;
                let mut created: Vec<RelFileLocator> =
                    xids.iter().flat_map(|xid| self.created.remove(xid)).flatten().collect();
                self.dropped_files.add_commit(lsn, &dropped, &mut created);
                // The transaction itself follows its subtransactions.
                let xid = xids.last().copied().unwrap_or_default();
                if !created.is_empty() && self.rewrites.len() < MAX_GROUPS {
                    self.rewrites.push(Rewrite {
                        xid,
                        created,
                        dropped: dropped.files,
                        dropped_relations: dropped.relations.unwrap_or_default(),
                        has_logged_locks: dropped.has_logged_locks,
                    });
                }
            }
            Event::Locked(locks) => self.lock(&locks),
            Event::CreatedUnlogged(file) => {
                if self.unlogged_files.len() < MAX_GROUPS {
                    self.unlogged_files.insert(file);
                }
            }
            Event::Running { running, time } => {
                let micros = time.map(Timestamp::unix_micros).or(last_end);
                self.oldest_transactions.observe(lsn, running.oldest(), micros);
                self.close_ended(&running);
            }
            Event::Checkpoint(checkpoint) => {
                if checkpoint.shutdown {
                    self.close_ended(&RunningTransactions::at_shutdown(&checkpoint));
                }
                self.logged_settings.set_by_checkpoint(lsn, &checkpoint);
                self.checkpoints.finish(CheckpointRecord {
                    lsn,
                    redo: checkpoint.redo,
                    time: checkpoint.time,
                    shutdown: checkpoint.shutdown,
                    is_finished: true,
                    begin: Begin::Unmarked,
                });
            }
            Event::CheckpointRedo { redo: CheckpointRedo { wal_level }, time } => {
                self.logged_settings.set_wal_level(lsn, wal_level);
                let micros = time.map(Timestamp::unix_micros).or(last_end);
                self.checkpoints.begin(lsn, micros.map(|micros| micros.div_euclid(1_000_000)));
            }
            Event::Parameters { wal_level, wal_log_hints } => {
                self.logged_settings.set_wal_level(lsn, wal_level);
                self.logged_settings.set_wal_log_hints(lsn, wal_log_hints);
            }
            Event::LogicalDecoding(on) => self.logged_settings.set_logical_decoding(lsn, on),
            Event::FullPageWrites(on) => self.logged_settings.set_full_page_writes(lsn, on),
            Event::BackupEnd { start } => {
                self.backups += 1;
                self.checkpoints.note_backup(start);
            }
            Event::Switch => {
                self.switches += 1;
                self.checkpoints.note_switch(lsn);
            }
        }
    }

    /// Records which relations are locked. Together with created files, this identifies the files of new
    /// relations.
    fn lock(&mut self, locks: &[AccessExclusiveLock]) {
        // Locks of temporary tables are many, and no logged file has their number.
        if self.locked.len() >= MAX_GROUPS && self.created_files.len() < MAX_GROUPS / 2 {
            let created: FxHashSet<(u32, u32)> = self.created_files.iter().map(number_of).collect();
            self.locked.retain(|number, _| created.contains(number));
        }
        for lock in locks {
            if self.locked.len() < MAX_GROUPS {
                self.locked.entry((lock.database, lock.relation)).or_insert(lock.xid);
            }
        }
    }

    pub(crate) fn finish(
        mut self,
        cluster: Cluster,
        request: &Request,
        spans: Option<(i64, i64)>,
        cycles: &[(Lsn, i64)],
    ) -> Explanation {
        self.close_open();
        let mut sum = Tally::default();
        let mut cells: Vec<(Cell, Tally)> =
            self.cells.into_iter().filter(|(_, tally)| tally.bytes() > 0).collect();
        for (_, tally) in &cells {
            sum.merge(tally);
        }
        sort_by_bytes(&mut cells);
        let file_bytes = self.ranges.iter().map(|range| range.bytes).sum();
        // Every byte is counted exactly once.
        assert_eq!(
            sum.bytes(),
            file_bytes,
            "the buckets do not add up to the bytes of the ranges {:?}",
            self.ranges
        );
        let mut groups = self.groups.into_iter();
        let mut view = |spec: &ViewSpec| {
            let (rows, rest) = match spec.needs_pieces() {
                true => groups.next().map(ViewGroups::finish).unwrap_or_default(),
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
        let creator = |file: &RelFileLocator| Some((*file, *self.locked.get(&number_of(file))?));
        let new_relations = self.created_files.iter().filter_map(creator).collect();
        let mut evidence: Vec<(RelFileLocator, Evidence)> = self.evidence.into_iter().collect();
        evidence.sort_unstable_by_key(|(relation, _)| *relation);
        Explanation {
            version: cluster.version,
            system_id: cluster.system_id,
            segment_size: cluster.segment_size,
            ranges: self.ranges,
            file_bytes,
            records: sum.records,
            buckets: sum.buckets,
            images: self.images,
            uncompressed: self.uncompressed,
            sample: self.sample,
            cells,
            views,
            transactions,
            transaction_sums,
            checkpoints: self.checkpoints.into_all(cluster.segment_size),
            time_span: self.time_span,
            step_back: None,
            logged_settings: self.logged_settings,
            switches: self.switches,
            backups: self.backups,
            evidence,
            decoding: self.decoding,
            created: self.created_files,
            unlogged: self.unlogged_files,
            old_transaction: self.oldest_transactions.longest(),
            dropped: self.dropped_files.at,
            new_relations,
            transient: self.dropped_files.transient,
            perhaps_rewritten: self.dropped_files.perhaps_rewritten,
            rewrites: self.rewrites,
            spans,
            cycles: cycles_of(cycles, &self.along),
            damage: self.damage,
        }
    }
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
