//! The first pass over a trace: times, checkpoints, and evidence of the settings it was taken under.
//!
//! A record's time is known only when its transaction ends, and a checkpoint's redo pointer precedes its
//! record, so this is a separate pass. It reads segments in parallel and parses few records.

use std::cell::RefCell;
use std::ops::ControlFlow;

use rustc_hash::FxHashSet;
use walden_explain::SettingChange;
use walden_explain::checkpoints::{Begin, CheckpointRecord, CheckpointRecords};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::payload::xact::plain_simple_end;
use walden_format::payload::xlog::WalLevel;
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::{Compression, Fork, Image, Record, RelFileLocator};
use walden_format::rmgr::info::standby::RUNNING_XACTS;
use walden_format::rmgr::info::xlog::{CHECKPOINT_ONLINE, CHECKPOINT_SHUTDOWN, FPI_FOR_HINT, SWITCH};
use walden_format::rmgr::info::{heap, heap2, xact};
use walden_format::rmgr::{ImageClass, KindTable, rmid};
use walden_format::simple::SimpleRecord;
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_recompress::Method;
use walden_recompress::pglz::Pglz;
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan, scan_in_order};

use crate::level::{Level, keeps_data};
use crate::settings::compression_name;

/// Initial resolution of [`Survey::times`], in microseconds.
const TIME_STEP: i64 = 10_000;
/// Number of entries of [`Survey::times`] at which its resolution is halved.
const MAX_TIMES: usize = 1 << 20;

/// The outcome of the first pass over a run.
#[derive(Debug)]
pub struct Survey {
    /// PostgreSQL major version that wrote it.
    pub version: Major,
    /// `wal_segment_size`
    pub segment_size: SegmentSize,
    /// Start LSN of the first complete record and end LSN of the last complete record; `None` if no record is
    /// complete.
    pub span: Option<(Lsn, Lsn)>,
    /// The trace's checkpoints, in WAL order, including unfinished checkpoints.
    pub checkpoints: Vec<CheckpointRecord>,
    /// Clock by position, ascending: transactions that end after the LSN end at or after the time, in
    /// microseconds since 1970-01-01 UTC.
    pub times: Vec<(Lsn, i64)>,
    /// LSNs of the `RUNNING_XACTS` records, ascending.
    pub running: Vec<Lsn>,
    /// Ends of the first commit in each segment, ascending.
    pub first_commits: Vec<Lsn>,
    /// LSNs of the segment switches of a shutdown, ascending: a server that archives switches before its last
    /// checkpoint (`ShutdownXLOG`).
    pub shutdown_switches: Vec<Lsn>,
    /// Evidence of settings within the window.
    pub evidence: Evidence,
    /// Evidence of settings before and after the window.
    pub outside: Evidence,
    /// Segment switches of the whole run, ascending, except those that start or end a base backup.
    pub switches: Vec<Lsn>,
    /// If nothing else shows `full_page_writes`: pages whose first change in the run has no image, up to
    /// [`MAX_BARE_PAGES`]. With `full_page_writes` on, these were changed before the run started, since the
    /// same checkpoint.
    pub bare_pages: Option<u64>,
    /// The damage within the window at which reading stopped, if any.
    pub damage: Option<Damage>,
}

/// Evidence of settings.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// `full_page_writes` as logged by checkpoints and `FPW_CHANGE` records.
    pub full_page_writes: Vec<(Lsn, bool)>,
    /// `wal_level` as logged by checkpoints and `PARAMETER_CHANGE` records; see
    /// [`Evidence::effective_wal_level`].
    pub wal_level: Vec<(Lsn, WalLevel)>,
    /// Whether logical decoding is on, as logged by checkpoints and `LOGICAL_DECODING_STATUS_CHANGE` records;
    /// since 19.
    pub logical_decoding: Vec<(Lsn, bool)>,
    /// `wal_log_hints` as logged by `PARAMETER_CHANGE` records.
    pub wal_log_hints: Vec<(Lsn, bool)>,
    /// `wal_compression` as shown by images: see `Segment::note_compression`.
    pub compression: Vec<(Lsn, Option<Method>)>,
    /// Start LSN of the first record that is written only under `wal_level=logical`.
    pub first_logical_record: Option<Lsn>,
    /// Start LSN of the first record that `wal_level=minimal` does not write.
    pub first_standby_record: Option<Lsn>,
    /// Numbers of full-page images that redo applies: uncompressed, pglz, lz4, zstd.
    pub images: [u64; 4],
    /// Number of images in `images` that were written because of a checkpoint.
    pub checkpoint_images: u64,
    /// Number of images for `wal_consistency_checking`.
    pub consistency_images: u64,
    /// Number of `FPI_FOR_HINT` records.
    pub hint_records: u64,
    /// Start LSN of the last `FPI_FOR_HINT` record.
    pub last_hint_record: Lsn,
    /// Number of records that are written only under `wal_level=logical`.
    pub logical_records: u64,
    /// Number of records that `wal_level=minimal` does not write.
    pub standby_records: u64,
    /// Number of base backups that ended.
    pub backups: u64,
    /// Bytes and number of the `CHECKPOINT_ONLINE`, `CHECKPOINT_REDO` and `RUNNING_XACTS` records.
    pub checkpoint_records: [(u64, u64); 3],
}

impl Survey {
    /// Reads a whole run with `threads` threads: records outside the window from `from` to `to` show
    /// settings, too. `progress` receives the bytes of each segment that was read.
    pub fn read(
        run: &Run,
        from: Option<Lsn>,
        to: Option<Lsn>,
        threads: usize,
        mut progress: impl FnMut(u64),
    ) -> Survey {
        let mut survey = Survey {
            version: run.version,
            segment_size: run.segment_size,
            span: None,
            checkpoints: Vec::new(),
            times: Vec::new(),
            running: Vec::new(),
            first_commits: Vec::new(),
            shutdown_switches: Vec::new(),
            evidence: Evidence::default(),
            outside: Evidence::default(),
            switches: Vec::new(),
            bare_pages: None,
            damage: None,
        };
        let mut so_far = SoFar::default();
        let window = (from.unwrap_or(Lsn(0)), to.unwrap_or(Lsn(u64::MAX)));
        scan(
            run,
            ScanOptions::new(threads),
            |_| Segment::new(run.version, window),
            |outcome| {
                survey.append(outcome.visitor, &mut so_far);
                if let SegmentEnd::Damaged(damage) = outcome.end
                    && damage.lsn < window.1
                {
                    survey.damage = Some(damage);
                }
                progress(run.segment_size.bytes());
                ControlFlow::Continue(())
            },
        );
        // A backup starts with a switch, before its checkpoint (`do_pg_backup_start`).
        let size = survey.segment_size;
        let begun: FxHashSet<u64> =
            so_far.backup_starts.iter().map(|start| size.segment_of(*start)).collect();
        survey.switches.retain(|switch| !begun.contains(&(size.segment_of(*switch) + 1)));
        survey.checkpoints = so_far.checkpoints.into_all(size);
        let images = survey.evidence.checkpoint_images + survey.outside.checkpoint_images;
        if images == 0 && survey.evidence.full_page_writes.is_empty() {
            survey.bare_pages = Some(count_bare_pages(run));
        }
        survey
    }

    fn append(&mut self, segment: Segment, so_far: &mut SoFar) {
        let SoFar { last_end, last_switch, checkpoints, backup_starts, time_step } = so_far;
        if segment.starts_with_shutdown {
            self.shutdown_switches.extend(*last_switch);
        }
        *last_switch = segment.switch;
        if let Some((first, last)) = segment.span {
            self.span = Some((self.span.map_or(first, |span| span.0), last));
        }
        segment.switch.iter().for_each(|switch| checkpoints.note_switch(*switch));
        self.switches.extend(segment.switch.filter(|_| segment.ended_backups.is_empty()));
        segment.ended_backups.iter().for_each(|start| checkpoints.note_backup(*start));
        backup_starts.extend(segment.ended_backups);
        for (from, micros) in segment.times {
            if self.times.last().is_none_or(|last| micros >= last.1.saturating_add(*time_step)) {
                self.times.push((from.or(*last_end).unwrap_or(Lsn(0)), micros));
            }
            if self.times.len() >= MAX_TIMES {
                *time_step *= 2;
                thin_out(&mut self.times, *time_step);
            }
        }
        *last_end = segment.last_end.or(*last_end);
        for lsn in segment.begun {
            checkpoints.begin(lsn, self.time_near(lsn).map(|micros| micros.div_euclid(1_000_000)));
        }
        segment.checkpoints.into_iter().for_each(|record| checkpoints.finish(record));
        self.running.extend(segment.running);
        self.first_commits.extend(segment.first_commit);
        self.evidence.add(segment.evidence);
        self.outside.add(segment.outside);
    }

    /// Returns the redo pointer in force at an LSN: the redo pointer of the last checkpoint that started at
    /// or before this LSN.
    pub fn redo_at(&self, lsn: Lsn) -> Option<Lsn> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.redo).filter(|redo| *redo <= lsn).max()
    }

    /// Returns the seconds between the first and the last transaction end between two positions.
    pub fn seconds(&self, from: Lsn, to: Lsn) -> Option<f64> {
        let first = self.times.iter().find(|(lsn, _)| *lsn >= from)?.1;
        let last = self.times.iter().rfind(|(lsn, _)| *lsn < to)?.1;
        Some((last - first).max(0) as f64 / 1e6)
    }

    /// Returns the time at an LSN, in microseconds since 1970-01-01 UTC: the time of the last transaction end
    /// before this LSN.
    pub fn time_at(&self, lsn: Lsn) -> Option<i64> {
        let behind = self.times.partition_point(|(at, _)| *at <= lsn);
        behind.checked_sub(1).map(|at| self.times[at].1)
    }

    /// Returns the same time; before the first transaction end, the time of that end.
    pub fn time_near(&self, lsn: Lsn) -> Option<i64> {
        self.time_at(lsn).or_else(|| self.times.first().map(|(_, micros)| *micros))
    }

    /// Returns bytes and number of one kind of record that checkpoints write
    /// ([`Evidence::checkpoint_records`]).
    pub(crate) fn checkpoint_records(&self, which: usize) -> (u64, u64) {
        let [one, other] = [&self.evidence, &self.outside].map(|evidence| evidence.checkpoint_records[which]);
        (one.0 + other.0, one.1 + other.1)
    }
}

impl Evidence {
    /// Returns the first changes of each setting between `from` and `to`.
    pub fn changes(&self, from: Lsn, to: Lsn) -> Vec<SettingChange> {
        let switch = |on: bool| if on { "on".to_owned() } else { "off".to_owned() };
        [
            changes_of("wal_level", &self.wal_levels(), (from, to), |level| level.to_string()),
            changes_of("full_page_writes", &self.full_page_writes, (from, to), switch),
            changes_of("wal_log_hints", &self.wal_log_hints, (from, to), switch),
            changes_of("wal_compression", &self.compression, (from, to), |method| {
                compression_name(method).into()
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns the effective level by position ([`WalLevel::effective`]).
    pub fn effective_wal_level(&self) -> Vec<(Lsn, WalLevel)> {
        let levels = self.wal_level.iter().map(|&(lsn, level)| (lsn, Some(level), None));
        let switches = self.logical_decoding.iter().map(|&(lsn, on)| (lsn, None, Some(on)));
        let mut logged: Vec<(Lsn, Option<WalLevel>, Option<bool>)> = levels.chain(switches).collect();
        // A checkpoint logs both for its redo pointer.
        logged.sort_by_key(|(lsn, ..)| *lsn);
        let (mut level, mut is_on) = (None, false);
        let mut effective = Vec::new();
        for of_lsn in logged.chunk_by(|(one, ..), (other, ..)| one == other) {
            for &(_, new_level, switch) in of_lsn {
                (level, is_on) = (new_level.or(level), switch.unwrap_or(is_on));
            }
            effective.extend(level.map(|level| (of_lsn[0].0, level.effective(is_on))));
        }
        effective
    }

    /// Returns the level by position, as logged or, before the first record that logs it, as the kinds of
    /// records show it.
    pub fn wal_levels(&self) -> Vec<(Lsn, WalLevel)> {
        let mut levels = self.effective_wal_level();
        let Some(&(first, logged)) = levels.first() else { return levels };
        let shown = |lsn: Option<Lsn>, level| lsn.filter(|lsn| *lsn < first).map(|lsn| (lsn, level));
        let shown = shown(self.first_logical_record, WalLevel::Logical)
            .or_else(|| shown(self.first_standby_record, WalLevel::Replica));
        levels.splice(0..0, shown.filter(|(_, level)| *level != logged));
        levels
    }

    fn add(&mut self, other: Evidence) {
        self.full_page_writes.extend(other.full_page_writes);
        self.wal_level.extend(other.wal_level);
        self.logical_decoding.extend(other.logical_decoding);
        self.wal_log_hints.extend(other.wal_log_hints);
        self.compression.extend(other.compression);
        self.first_logical_record = self.first_logical_record.or(other.first_logical_record);
        self.first_standby_record = self.first_standby_record.or(other.first_standby_record);
        self.last_hint_record = self.last_hint_record.max(other.last_hint_record);
        for (sum, more) in [
            (&mut self.checkpoint_images, other.checkpoint_images),
            (&mut self.consistency_images, other.consistency_images),
            (&mut self.hint_records, other.hint_records),
            (&mut self.logical_records, other.logical_records),
            (&mut self.standby_records, other.standby_records),
            (&mut self.backups, other.backups),
        ] {
            *sum += more;
        }
        self.images.iter_mut().zip(other.images).for_each(|(sum, more)| *sum += more);
        for (sum, more) in self.checkpoint_records.iter_mut().zip(other.checkpoint_records) {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
    }
}

/// Maximum number of reported changes of a setting.
const MAX_CHANGES: usize = 3;

fn changes_of<T: Copy + PartialEq>(
    name: &'static str,
    logged: &[(Lsn, T)],
    (from, to): (Lsn, Lsn),
    show: impl Fn(T) -> String,
) -> Vec<SettingChange> {
    let mut logged = logged.to_vec();
    logged.sort_by_key(|(lsn, _)| *lsn);
    let changed = |pair: &&[(Lsn, T)]| pair[0].1 != pair[1].1 && from < pair[1].0 && pair[1].0 < to;
    let change = |pair: &[(Lsn, T)]| SettingChange {
        name,
        lsn: pair[1].0,
        before: show(pair[0].1),
        after: show(pair[1].1),
    };
    logged.windows(2).filter(changed).take(MAX_CHANGES).map(change).collect()
}

/// State that the next segment needs from all preceding segments.
struct SoFar {
    last_end: Option<Lsn>,
    last_switch: Option<Lsn>,
    checkpoints: CheckpointRecords,
    /// Redo pointers of the checkpoints at the start of base backups.
    backup_starts: Vec<Lsn>,
    /// The current resolution of [`Survey::times`].
    time_step: i64,
}

impl Default for SoFar {
    fn default() -> SoFar {
        SoFar {
            last_end: None,
            last_switch: None,
            checkpoints: CheckpointRecords::default(),
            backup_starts: Vec::new(),
            time_step: TIME_STEP,
        }
    }
}

/// Keeps the times that are at least `step` after the last kept one.
fn thin_out(times: &mut Vec<(Lsn, i64)>, step: i64) {
    let mut last = None;
    times.retain(|(_, micros)| {
        let is_kept = last.is_none_or(|last: i64| *micros >= last.saturating_add(step));
        if is_kept {
            last = Some(*micros);
        }
        is_kept
    });
}

/// Index of each record that a checkpoint itself writes in [`Evidence::checkpoint_records`].
pub(crate) mod checkpoint_record {
    pub const ONLINE: usize = 0;
    pub const REDO: usize = 1;
    pub const RUNNING: usize = 2;
}

thread_local! {
    static PGLZ: RefCell<(Pglz, Vec<u8>)> = RefCell::new((Pglz::new(), Vec::new()));
}

/// The part of the survey that one segment contributes.
struct Segment {
    /// The window that predictions are for.
    window: (Lsn, Lsn),
    kinds: &'static KindTable,
    span: Option<(Lsn, Lsn)>,
    checkpoints: Vec<CheckpointRecord>,
    /// LSNs of the `CHECKPOINT_REDO` records.
    begun: Vec<Lsn>,
    /// `None`: immediately after the last transaction end of an earlier segment.
    times: Vec<(Option<Lsn>, i64)>,
    last_end: Option<Lsn>,
    running: Vec<Lsn>,
    /// The end of the first commit.
    first_commit: Option<Lsn>,
    /// The segment switch that ends the segment.
    switch: Option<Lsn>,
    /// Whether the first record is the checkpoint of a shutdown.
    starts_with_shutdown: bool,
    /// For each base backup that ends in the segment, the redo pointer at its start.
    ended_backups: Vec<Lsn>,
    /// Uncompressed images whose compression was tried.
    tried_images: u32,
    evidence: Evidence,
    outside: Evidence,
}

impl Segment {
    fn new(version: Major, window: (Lsn, Lsn)) -> Segment {
        Segment {
            window,
            kinds: KindTable::for_version(version),
            span: None,
            checkpoints: Vec::new(),
            begun: Vec::new(),
            times: Vec::new(),
            last_end: None,
            running: Vec::new(),
            first_commit: None,
            switch: None,
            starts_with_shutdown: false,
            ended_backups: Vec::new(),
            tried_images: 0,
            evidence: Evidence::default(),
            outside: Evidence::default(),
        }
    }

    /// Returns the evidence that a position belongs to.
    fn evidence_at(&mut self, lsn: Lsn) -> &mut Evidence {
        let (from, to) = self.window;
        if lsn >= from && lsn < to { &mut self.evidence } else { &mut self.outside }
    }

    #[inline(always)]
    fn extend_span(&mut self, lsn: Lsn, end: Lsn) {
        self.span = Some((self.span.map_or(lsn, |span| span.0), end));
    }

    /// Records a transaction end whose record ends at `end`.
    #[inline(always)]
    fn note_transaction_end(&mut self, is_commit: bool, time: Timestamp, end: Lsn) {
        if is_commit {
            self.first_commit.get_or_insert(end);
        }
        let micros = time.unix_micros();
        // The time is taken before the insert position is reserved, so it may decrease slightly.
        if self.times.last().is_none_or(|last| micros >= last.1 + TIME_STEP) {
            self.times.push((self.last_end, micros));
        }
        self.last_end = Some(end);
    }

    fn count_checkpoint_record(&mut self, which: usize, record: &Record<'_>) {
        let (bytes, count) = &mut self.evidence_at(record.lsn).checkpoint_records[which];
        (*bytes, *count) = (*bytes + u64::from(record.header.total_len), *count + 1);
    }

    fn note_xlog_record(&mut self, record: &Record<'_>) {
        match (record.rmgr_info(), payload::parse(record)) {
            (kind, Ok(Payload::Checkpoint(checkpoint))) => {
                self.checkpoints.push(CheckpointRecord {
                    lsn: record.lsn,
                    redo: checkpoint.redo,
                    time: checkpoint.time,
                    shutdown: checkpoint.shutdown,
                    is_finished: true,
                    begin: Begin::Unmarked,
                });
                self.evidence.full_page_writes.push((checkpoint.redo, checkpoint.full_page_writes));
                self.evidence.wal_level.extend(checkpoint.wal_level.map(|level| (checkpoint.redo, level)));
                let logical_decoding = checkpoint.logical_decoding.map(|on| (checkpoint.redo, on));
                self.evidence.logical_decoding.extend(logical_decoding);
                if kind == CHECKPOINT_ONLINE {
                    self.count_checkpoint_record(checkpoint_record::ONLINE, record);
                }
            }
            (_, Ok(Payload::CheckpointRedo(redo))) => {
                self.begun.push(record.lsn);
                self.evidence.wal_level.push((record.lsn, redo.wal_level));
                self.count_checkpoint_record(checkpoint_record::REDO, record);
            }
            (_, Ok(Payload::ParameterChange(change))) => {
                self.evidence.wal_level.push((record.lsn, change.wal_level));
                self.evidence.wal_log_hints.push((record.lsn, change.wal_log_hints));
            }
            (_, Ok(Payload::LogicalDecodingStatusChange(change))) => {
                self.evidence.logical_decoding.push((record.lsn, change.enabled));
            }
            (_, Ok(Payload::FullPageWritesChange(change))) => {
                // The record is written only if the value changes (`UpdateFullPageWrites`).
                let before = Lsn(record.lsn.0.saturating_sub(1));
                self.evidence
                    .full_page_writes
                    .extend([(before, !change.enabled), (record.lsn, change.enabled)]);
            }
            (_, Ok(Payload::BackupEnd(backup))) => {
                self.evidence_at(record.lsn).backups += 1;
                self.ended_backups.push(backup.start);
            }
            (SWITCH, _) => self.switch = Some(record.lsn),
            (FPI_FOR_HINT, _) => {
                let evidence = self.evidence_at(record.lsn);
                (evidence.hint_records, evidence.last_hint_record) = (evidence.hint_records + 1, record.lsn);
            }
            _ => {}
        }
    }

    /// Records `wal_compression` if an image shows another value than the preceding one. A compressed image
    /// shows the method. An uncompressed one shows `off` only if its page shrinks and the record has no
    /// compressed image: the server also stores an image uncompressed if compression does not save more than
    /// its header adds.
    fn note_compression(&mut self, record: &Record<'_>, image: &Image) {
        /// Maximum number of uncompressed images of a segment to try: each takes about 60 microseconds.
        const MAX_TRIED: u32 = 64;
        /// Maximum number of values of a segment to keep: sessions may set their own.
        const MAX_VALUES: usize = 64;

        let method = Method::from_compression(image.compression);
        let values = &mut self.evidence.compression;
        if values.last().is_some_and(|(_, last)| *last == method) || values.len() >= MAX_VALUES {
            return;
        }
        if method.is_none() {
            let others = record.blocks.iter().filter_map(|block| block.image.as_ref());
            let has_compressed =
                others.into_iter().any(|other| Method::from_compression(other.compression).is_some());
            if has_compressed || self.tried_images >= MAX_TRIED {
                return;
            }
            self.tried_images += 1;
            let raw = record.image_data(image);
            if !PGLZ.with_borrow_mut(|(pglz, out)| pglz.compress(raw, out)) {
                return;
            }
        }
        self.evidence.compression.push((record.lsn, method));
    }

    fn collect_evidence(&mut self, record: &Record<'_>) {
        let kind = record.rmgr_info();
        if record.header.rmid == rmid::STANDBY && kind == RUNNING_XACTS {
            self.count_checkpoint_record(checkpoint_record::RUNNING, record);
        }
        let kinds = self.kinds;
        let is_for_standby = record.header.rmid == rmid::STANDBY;
        let is_logical = is_logical_only(record.header.rmid, kind)
            || record.toplevel_xid.is_some()
            || keeps_data(record, Level::Logical);
        if is_for_standby {
            self.evidence.first_standby_record.get_or_insert(record.lsn);
        }
        if is_logical {
            self.evidence.first_logical_record.get_or_insert(record.lsn);
        }
        let evidence = self.evidence_at(record.lsn);
        evidence.standby_records += u64::from(is_for_standby);
        evidence.logical_records += u64::from(is_logical);
        for block in record.blocks {
            let Some(image) = block.image else { continue };
            self.note_compression(record, &image);
            let evidence = self.evidence_at(record.lsn);
            if !image.apply {
                evidence.consistency_images += 1;
                continue;
            }
            let method = match image.compression {
                Compression::None => 0,
                Compression::Pglz => 1,
                Compression::Lz4 => 2,
                Compression::Zstd => 3,
            };
            evidence.images[method] += 1;
            // Without checksums and wal_log_hints, the record has no image of the table's page
            // (`log_heap_visible`).
            if record.header.rmid == rmid::HEAP2 && kind & heap2::OPMASK == heap2::VISIBLE && block.id == 1 {
                (evidence.hint_records, evidence.last_hint_record) = (evidence.hint_records + 1, record.lsn);
            }
            let kind = kinds.kind(record.header.rmid, record.header.info);
            let class = kinds.image_class(kind.index(), block.id);
            evidence.checkpoint_images += u64::from(class == ImageClass::Checkpoint);
        }
    }
}

/// Maximum number of pages to count.
pub const MAX_BARE_PAGES: u64 = 256;

/// Counts pages whose first change in a run has no image and does not initialize them.
fn count_bare_pages(run: &Run) -> u64 {
    /// After this many initialized pages, as in a load, the WAL shows nothing, and reading stops.
    const MAX_SEEN_PAGES: usize = 1 << 18;

    struct Bare {
        seen: FxHashSet<(RelFileLocator, Fork, u32)>,
        count: u64,
    }
    impl Visitor for Bare {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            for block in record.blocks {
                // Free space maps and visibility maps are changed by records that never have an image of
                // them.
                let is_first =
                    block.fork == Fork::MAIN && self.seen.insert((block.relation, block.fork, block.block));
                self.count += u64::from(is_first && block.image.is_none() && !block.will_init);
            }
            let is_enough = self.count >= MAX_BARE_PAGES || self.seen.len() >= MAX_SEEN_PAGES;
            if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    let mut bare = Bare { seen: FxHashSet::default(), count: 0 };
    scan_in_order(run, ScanOptions::new(1), &mut bare, |_| ());
    bare.count
}

/// `INVALIDATION`, `REWRITE`, `NEW_CID`, `TRUNCATE`: written only under `wal_level=logical`.
#[inline]
const fn is_logical_only(rmid: u8, info: u8) -> bool {
    match rmid {
        rmid::XACT => info & xact::OPMASK == xact::INVALIDATION,
        rmid::HEAP2 => matches!(info & heap2::OPMASK, heap2::REWRITE | heap2::NEW_CID),
        rmid::HEAP => info & heap::OPMASK == heap::TRUNCATE,
        _ => false,
    }
}

/// By resource manager, a bit for each record kind that is evidence even without an image. The sequence of
/// kinds is not predictable, and a branch for each would dominate this pass.
static EVIDENCE_KINDS: [u16; 256] = {
    let mut kinds = [0; 256];
    kinds[rmid::XACT as usize] = !0;
    kinds[rmid::STANDBY as usize] = !0;
    let mut at = 0;
    while at < 256 * 16 {
        let (rmid, kind) = (at >> 4, at & 15);
        if is_logical_only(rmid as u8, (kind << 4) as u8) {
            kinds[rmid] |= 1 << kind;
        }
        at += 1;
    }
    kinds
};

impl Visitor for Segment {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.header.rmid == rmid::XLOG && record.rmgr_info() == CHECKPOINT_SHUTDOWN {
            self.starts_with_shutdown |= self.span.is_none();
        }
        self.extend_span(record.lsn, record.end);
        match record.header.rmid {
            rmid::XLOG => self.note_xlog_record(record),
            rmid::XACT => match payload::parse(record) {
                Ok(Payload::Commit(end)) => self.note_transaction_end(true, end.time, record.end),
                Ok(Payload::Abort(end)) => self.note_transaction_end(false, end.time, record.end),
                _ => {}
            },
            rmid::STANDBY if record.rmgr_info() == RUNNING_XACTS => self.running.push(record.lsn),
            _ => {}
        }
        self.collect_evidence(record);
        ControlFlow::Continue(())
    }

    /// Without an image, most records only extend the span, and transaction ends give the time.
    #[inline(always)]
    fn simple_record(&mut self, record: SimpleRecord<'_>) -> ControlFlow<()> {
        let header = record.header();
        if EVIDENCE_KINDS[usize::from(header.rmid)] >> (header.info >> 4) & 1 == 0 {
            self.extend_span(record.lsn, record.end());
        } else if let Some((is_commit, time)) = plain_simple_end(&record) {
            self.extend_span(record.lsn, record.end());
            self.note_transaction_end(is_commit, time, record.end());
        } else {
            return record.as_record(|record| self.record(record));
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_changes_within_the_window_is_found() {
        let evidence = Evidence {
            wal_level: vec![(Lsn(10), WalLevel::Replica), (Lsn(40), WalLevel::Logical)],
            // In the order of the records that log it, not of the redo pointers.
            full_page_writes: vec![(Lsn(30), false), (Lsn(20), true), (Lsn(60), true)],
            wal_log_hints: vec![(Lsn(40), true)],
            ..Evidence::default()
        };
        let changes = |from, to| {
            let changes = evidence.changes(Lsn(from), Lsn(to)).into_iter();
            changes.map(|change| (change.name, change.lsn.0, change.before, change.after)).collect::<Vec<_>>()
        };
        let level = ("wal_level", 40, "replica".to_owned(), "logical".to_owned());
        let off = ("full_page_writes", 30, "on".to_owned(), "off".to_owned());
        let on = ("full_page_writes", 60, "off".to_owned(), "on".to_owned());
        assert_eq!(changes(0, 100), [level.clone(), off, on.clone()]);
        assert_eq!(changes(35, 100), [level, on]);
        assert_eq!(changes(60, 100), []);
    }

    /// Until 16, only a change at a server start logs the level.
    #[test]
    fn records_show_the_level_before_the_first_that_logs_it() {
        use WalLevel::{Logical, Replica};
        let levels = |logged, logical: Option<u64>, standby: Option<u64>| {
            let evidence = Evidence {
                wal_level: vec![(Lsn(50), logged)],
                first_logical_record: logical.map(Lsn),
                first_standby_record: standby.map(Lsn),
                ..Evidence::default()
            };
            evidence.wal_levels().into_iter().map(|(lsn, level)| (lsn.0, level)).collect::<Vec<_>>()
        };
        assert_eq!(levels(Logical, Some(70), Some(10)), [(10, Replica), (50, Logical)]);
        assert_eq!(levels(Logical, Some(20), Some(10)), [(50, Logical)]);
        assert_eq!(levels(Replica, Some(20), Some(10)), [(20, Logical), (50, Replica)]);
        assert_eq!(levels(Replica, None, Some(10)), [(50, Replica)]);
        assert_eq!(levels(Logical, Some(60), None), [(50, Logical)]);
    }

    /// Since 19, `CHECKPOINT_REDO` has `wal_level` as configured, not the level that a logical slot raises it
    /// to.
    #[test]
    fn a_logical_slot_raises_the_level() {
        use WalLevel::{Logical, Minimal, Replica};
        let evidence = Evidence {
            wal_level: vec![(Lsn(10), Replica), (Lsn(30), Replica), (Lsn(30), Replica), (Lsn(50), Minimal)],
            logical_decoding: vec![(Lsn(30), true), (Lsn(20), true), (Lsn(10), false), (Lsn(60), false)],
            ..Evidence::default()
        };
        let effective: Vec<_> =
            evidence.effective_wal_level().into_iter().map(|(lsn, level)| (lsn.0, level)).collect();
        assert_eq!(effective, [(10, Replica), (20, Logical), (30, Logical), (50, Minimal), (60, Minimal)]);
        let changes = evidence.changes(Lsn(15), Lsn(45)).into_iter();
        let changes: Vec<_> = changes.map(|change| (change.name, change.lsn.0, change.after)).collect();
        assert_eq!(changes, [("wal_level", 20, "logical".to_owned())]);
    }
}
