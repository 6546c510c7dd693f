//! Replays a trace record by record into all simulations.
//!
//! Replay has each page before and after a record. If a simulation does not write a full-page image, the data
//! that the image displaced can be reconstructed; if it does, so can the image (the page without its hole).
//! Each simulation decides by the rule of `XLogRecordAssemble`: a block has an image if its page was last
//! changed before the redo pointer.
//!
//! `block` decides which simulations write an image of a block, and computes its size; `write` sums up the
//! record for each simulation; `segments` writes some of their segments.

mod block;
mod changes;
mod segments;
mod sessions;
mod write;

use std::ops::ControlFlow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_explain::checkpoints::Cause;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::record::{Fork, Record, RelFileLocator};
use walden_format::rmgr::{KindTable, rmid};
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_redo::{Observer, Replay};
use walden_redo::{PAGE_BYTES, Touched};

use crate::buckets::{Bucket, Buckets};
use crate::images::Compressor;
use crate::level::{Identities, Level, Unlogged, Variant, variant};
use crate::means::{Mean, Means};
use crate::objects::{Counter, Counts, ObjectChange};
use crate::outcome::Prediction;
use crate::settings::Settings;
use crate::simulate::Simulation;

use self::block::{Block, FPI_FOR_HINT_BYTES, has_applied_image};
use self::changes::LastChanges;
use self::segments::SegmentWriter;
pub use self::segments::{WantedSegments, WrittenSegment};
use self::sessions::{Background, Prunes, RandomSplits, Sessions};

/// Maximum number of simulations in one pass: they are bits of a `u64`.
pub const MAX_SIMULATIONS: usize = 64;
/// Points of [`Prediction::growth`], at which simulations also [deviate](Simulation::deviate).
const GROWTH_POINTS: u64 = 400;

/// Information about the trace that a pass needs.
#[derive(Debug)]
pub struct Plan {
    /// PostgreSQL major version that wrote it.
    pub version: Major,
    /// Records that start at or after this LSN are counted; earlier records are only replayed.
    pub from: Lsn,
    /// Records that start before this are counted.
    pub to: Option<Lsn>,
    /// The redo pointer in force at `from`, if known from the trace or the base.
    pub redo: Option<Lsn>,
    /// `full_page_writes`
    pub full_page_writes: bool,
    /// Whether hint bits were logged.
    pub log_hints: bool,
    /// `wal_level`
    pub level: Level,
    /// LSNs of the `RUNNING_XACTS` records that checkpoints wrote.
    pub running: FxHashSet<Lsn>,
    /// Redo pointers of checkpoints triggered neither by time nor by volume, ascending.
    pub requested: Vec<(Lsn, Cause)>,
    /// Redo pointers of checkpoints that a request or volume may have triggered, ascending.
    pub undecided: Vec<Lsn>,
    /// Clock by position, ascending: microseconds since 1970-01-01 UTC.
    pub times: Arc<[(Lsn, i64)]>,
    /// Redo pointers of the trace's checkpoints, ascending.
    pub redo_pointers: Vec<Lsn>,
    /// Approximate end of the trace; spaces the points of the growth.
    pub end: Lsn,
    /// `wal_segment_size`
    pub segment_size: SegmentSize,
    /// Whether `archive_timeout` caused the trace's segment switches: simulations then switch on their own.
    pub drop_switches: bool,
    /// LSNs of the switches of a shutdown, ascending, which are kept.
    pub shutdown_switches: Vec<Lsn>,
}

/// Counts that show how reliable a pass is.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Diagnostics {
    /// Number of blocks of the trace to which the rule for full-page images was applied.
    pub decisions: u64,
    /// Number of images in the trace that the rule did not expect.
    pub unexpected_images: u64,
    /// Number of images that the rule expected and the trace does not contain.
    pub missing_images: u64,
    /// Number of blocks whose page was unknown.
    pub pages_unknown: u64,
    /// All blocks of counted records.
    pub blocks: u64,
    /// Number of pages changed for the first time in the window, for which the trace does not show whether
    /// they had been changed since the last redo pointer before the window.
    pub first_touches_unknown: u64,
}

/// The outcome of a pass.
#[derive(Debug)]
pub struct PassOutcome {
    /// One per simulation.
    pub predictions: Vec<Prediction>,
    /// Bytes of the trace itself.
    pub actual: Buckets,
    /// Distance from the first counted record's start to the last record's end, in bytes.
    pub trace_bytes: u64,
    /// Number of counted records.
    pub records: u64,
    /// Number of full-page images after checkpoints in the trace.
    pub images: u64,
    /// Reliability.
    pub diagnostics: Diagnostics,
    /// The difference between the bytes of the same number of transactions in different runs: twice the
    /// standard error, as a fraction. A single session writes the same each time.
    pub run_noise: f64,
    /// Bytes by which the records that prune pages may differ in another run.
    pub prune_noise: f64,
    /// Whether transactions overlap, or vacuum runs concurrently.
    pub overlap: bool,
    /// The wanted changes of tables and indexes, with counts of the activity that they would affect.
    pub objects: Vec<(ObjectChange, Counts)>,
}

/// A pass over a trace: a [`Visitor`] that replays records into simulations.
pub struct Pass {
    replay: Replay,
    state: State,
}

struct State {
    plan: Plan,
    kinds: &'static KindTable,
    simulations: Vec<Simulation>,
    levels: Vec<Level>,
    /// For each simulation, the last cycle in which a table's free space map was changed, by table and lowest
    /// page of the map.
    free_space_maps: FxHashMap<(RelFileLocator, u32), Vec<Option<u32>>>,
    distinct_levels: Vec<Level>,
    /// Whether all simulations write records without full-page images unchanged.
    records_unchanged: bool,
    /// Bit masks: all simulations, and the simulations with `full_page_writes`.
    all: u64,
    full_page_writes: u64,
    changes: LastChanges,
    hints: HintChances,
    compressor: Compressor,
    raw_means: FxHashMap<(RelFileLocator, Fork), Mean>,
    data_means: Means<(u16, u8, RelFileLocator)>,
    unlogged: Unlogged,
    identities: Identities,
    objects: Counter,
    /// Largest `wal_skip_threshold` of simulations under `minimal`; `None` if there are none.
    skip_threshold: Option<u64>,
    now: i64,
    time_cursor: usize,
    requested_cursor: usize,
    redo_cursor: usize,
    /// The redo pointer in force in the trace.
    real_redo: Lsn,
    blocks: Vec<Block>,
    /// Index of the record's kind in the kind table.
    kind: u16,
    /// Whether neither the record nor a simulation has a full-page image of any block.
    is_without_images: bool,
    variants: [Variant; 3],
    /// Whether the record changes only files that `minimal` would not log.
    is_unlogged_file: bool,
    is_counted: bool,
    first: Option<Lsn>,
    last_end: Lsn,
    actual: Buckets,
    records: u64,
    images: u64,
    diagnostics: Diagnostics,
    next_sample: u64,
    /// Transaction ends so far, and their number at each sample of the growth.
    transactions: u64,
    transactions_at: Vec<u64>,
    sessions: Sessions,
    background: Background,
    splits: RandomSplits,
    prunes: Prunes,
    segments: Option<Box<SegmentWriter>>,
    /// No time, checkpoint or sample precedes this position.
    next_event: Lsn,
}

impl Pass {
    /// Creates a pass with these simulations. `all_images`: compress every full-page image instead of a
    /// sample.
    ///
    /// # Panics
    /// With more than [`MAX_SIMULATIONS`] simulations.
    pub fn new(replay: Replay, plan: Plan, simulations: Vec<Simulation>, all_images: bool) -> Pass {
        assert!(simulations.len() <= MAX_SIMULATIONS, "one bit for each");
        let levels: Vec<Level> =
            simulations.iter().map(|simulation| Level::from_setting(simulation.settings.wal_level)).collect();
        let all = [Level::Minimal, Level::Replica, Level::Logical];
        let distinct_levels = all.into_iter().filter(|level| levels.contains(level)).collect();
        let at_minimal =
            simulations.iter().filter(|one| Level::from_setting(one.settings.wal_level) == Level::Minimal);
        let skip_threshold = at_minimal.map(|one| one.settings.skip_threshold).max();
        let skip_threshold = skip_threshold.filter(|_| plan.level != Level::Minimal);
        let records_unchanged =
            levels.iter().zip(&simulations).all(|(level, Simulation { settings, .. })| {
                *level == plan.level
                    && settings.dropped.is_empty()
                    && (!settings.log_hints() || plan.log_hints)
            });
        let bits = |which: fn(&Settings) -> bool| {
            let wanted = simulations.iter().map(|simulation| u64::from(which(&simulation.settings)));
            wanted.enumerate().fold(0, |bits, (at, bit)| bits | bit << at)
        };
        let (all, full_page_writes) = (bits(|_| true), bits(|settings| settings.full_page_writes));
        // A record that is not written changes no page, and the level determines which records are written.
        // Images for hint bits are written if the page has no image in this cycle, so all simulations with
        // such images agree on the pages that have one.
        let changes = LastChanges::new(&simulations, |one| {
            (Level::from_setting(one.settings.wal_level), one.settings.log_hints())
        });
        Pass {
            replay,
            state: State {
                kinds: KindTable::for_version(plan.version),
                real_redo: plan.redo.unwrap_or(Lsn(0)),
                now: plan.times.first().map_or(0, |time| time.1),
                plan,
                simulations,
                levels,
                distinct_levels,
                records_unchanged,
                all,
                full_page_writes,
                changes,
                hints: HintChances::default(),
                compressor: Compressor::new(all_images),
                raw_means: FxHashMap::default(),
                data_means: Means::default(),
                unlogged: Unlogged::default(),
                identities: Identities::default(),
                free_space_maps: FxHashMap::default(),
                objects: Counter::default(),
                skip_threshold,
                time_cursor: 0,
                requested_cursor: 0,
                redo_cursor: 0,
                blocks: Vec::new(),
                kind: 0,
                is_without_images: false,
                variants: [Variant::default(); 3],
                is_unlogged_file: false,
                is_counted: false,
                first: None,
                last_end: Lsn(0),
                actual: Buckets::default(),
                records: 0,
                images: 0,
                diagnostics: Diagnostics::default(),
                next_sample: 0,
                transactions: 0,
                transactions_at: Vec::new(),
                sessions: Sessions::default(),
                background: Background::default(),
                splits: RandomSplits::default(),
                prunes: Prunes::default(),
                segments: None,
                next_event: Lsn(0),
            },
        }
    }

    /// Also counts the activity that these changes would affect.
    pub fn count_objects(&mut self, changes: Vec<ObjectChange>) {
        self.state.objects = Counter::new(changes);
    }

    /// Also writes these segments of the simulations.
    pub fn write_segments(&mut self, wanted: WantedSegments) {
        self.state.segments = Some(Box::new(SegmentWriter::new(wanted)));
    }

    /// Returns the outcome, and the replay with its pages.
    pub fn finish(self) -> (PassOutcome, Replay) {
        let mut state = self.state;
        if let Some(segments) = state.segments.take() {
            segments.finish();
        }
        let trace_bytes = state.first.map_or(0, |first| state.last_end.bytes_since(first));
        let mut actual = state.actual;
        actual.add(Bucket::PageHeaders, trace_bytes.saturating_sub(actual.total()));
        let (now, compressor) = (state.now, &state.compressor);
        let mut hints = state.hints;
        hints.chances += state.changes.hint_chances_at_end();
        let images = state.raw_means.values().fold(Mean::default(), |sum, of_fork| sum.plus(*of_fork));
        let mean_image = u64::from(images.get().unwrap_or(PAGE_BYTES as u32));
        let finish = |(at, mut simulation): (usize, Simulation)| {
            simulation.sample_growth(now);
            if simulation.settings.log_hints() {
                let pages = match state.plan.log_hints {
                    true => state.changes.hidden_hints_at_end(at),
                    false => state.changes.hints_at_end(at),
                };
                simulation.add_hint_bound(pages * (FPI_FOR_HINT_BYTES + mean_image));
                if state.plan.log_hints {
                    simulation.scale_hint_bound(hints.share_at_most(state.changes.cycles_ratio(at)));
                }
            }
            let error = simulation.settings.wal_compression.map_or(0.0, |method| compressor.error(method));
            simulation.finish(error)
        };
        let outcome = PassOutcome {
            predictions: state.simulations.into_iter().enumerate().map(finish).collect(),
            actual,
            trace_bytes,
            records: state.records,
            images: state.images,
            diagnostics: state.diagnostics,
            run_noise: match (state.sessions.overlap(), state.background.has_vacuum()) {
                (true, _) => run_noise(&state.transactions_at).hypot(state.background.noise(trace_bytes)),
                // Autovacuum depends on the clock, also next to a single session.
                (false, true) => state.background.noise(trace_bytes),
                (false, false) => 0.0,
            }
            .hypot(state.splits.noise(trace_bytes)),
            prune_noise: if state.sessions.overlap() { state.prunes.noise() } else { 0.0 },
            overlap: state.sessions.overlap(),
            objects: state.objects.finish(),
        };
        (outcome, self.replay)
    }
}

/// Frequency with which hint bits are set on a page in a checkpoint cycle in which no other record changes it
/// first.
#[derive(Clone, Copy, Default)]
struct HintChances {
    /// Number of pages that stayed unchanged for a whole cycle of the trace, or had an image for hint bits in
    /// the cycle.
    chances: u64,
    /// The pages with an image for hint bits.
    taken: u64,
}

impl HintChances {
    /// Observes a change of a page, by an image for hint bits or another record, and the number of the
    /// trace's cycles since the preceding change.
    fn observe(&mut self, is_hint: bool, cycles: usize) {
        let is_chance = cycles > 1 || is_hint && cycles > 0;
        self.chances += u64::from(is_chance);
        self.taken += u64::from(is_chance && is_hint);
    }

    /// Returns an upper bound of the share of such pages that have an image for hint bits, with a multiple of
    /// the trace's cycles. The shorter a cycle, the more hint bits are set in a later cycle than the change.
    fn share_at_most(&self, cycles_ratio: f64) -> f64 {
        /// With fewer chances, the trace shows nothing.
        const MIN_CHANCES: u64 = 100;
        if self.chances < MIN_CHANCES {
            return 1.0;
        }
        let taken = self.taken as f64;
        let share = (taken + 2.0 * taken.sqrt() + 3.0) / self.chances as f64;
        (share * cycles_ratio.max(1.0)).min(1.0)
    }
}

/// Returns twice the standard error of the bytes that the same transactions write in another run, as a
/// fraction. The error is computed from the number of transactions that had ended after each of several equal
/// parts of the WAL.
///
/// Only adjacent parts are compared, because the work may change with time, and by the median of their
/// differences, so that neither a checkpoint's images nor a bulk load between two phases counts as noise.
fn run_noise(transactions_at: &[u64]) -> f64 {
    /// Factor from the median of absolute differences of normally distributed values to their standard
    /// deviation.
    const MEDIAN_TO_DEVIATION: f64 = 1.4826;
    let parts: Vec<f64> = transactions_at.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let mean = parts.iter().sum::<f64>() / parts.len().max(1) as f64;
    let mut differences: Vec<f64> = parts.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    if differences.len() < 8 || mean <= 0.0 {
        return 0.0;
    }
    differences.sort_by(f64::total_cmp);
    let deviation = MEDIAN_TO_DEVIATION * differences[differences.len() / 2] / std::f64::consts::SQRT_2;
    2.0 * deviation / mean / (parts.len() as f64).sqrt()
}

impl Visitor for Pass {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.state.plan.to.is_some_and(|to| record.lsn >= to) {
            return ControlFlow::Break(());
        }
        if record.lsn >= self.state.plan.from {
            self.state.log_small_files(record, &mut self.replay.store);
        }
        self.replay.apply(record, &mut self.state);
        let is_receiver_gone =
            self.state.segments.as_ref().is_some_and(|segments| segments.is_receiver_gone());
        if is_receiver_gone || self.replay.store.failure().is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Observer for State {
    const ALL_IMAGES: bool = true;

    #[inline(always)]
    fn before(&mut self, record: &Record<'_>, touched: &[Touched]) {
        self.is_counted = record.lsn >= self.plan.from;
        if !self.is_counted {
            return;
        }
        self.advance_clock(record);
        self.changes.observe_checkpoints(&self.simulations, record.lsn);
        if !self.records_unchanged {
            self.compute_variants(record, touched);
        }
        self.is_unlogged_file = self.skip_threshold.is_some() && self.unlogged.covers(record);
        self.blocks.clear();
        self.kind = self.kinds.kind(record.header.rmid, record.header.info).index() as u16;
        // `FPI_FOR_HINT` consists only of an image.
        self.is_without_images = record.header.rmid != rmid::XLOG;
        for (index, (block, touched_block)) in record.blocks.iter().zip(touched).enumerate() {
            let state = self.classify_block(record, block, touched_block);
            self.blocks.push(state);
            if has_applied_image(block) {
                self.measure_displaced_data(record, touched, index);
            }
        }
    }

    #[inline(always)]
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        if self.is_counted {
            self.count_record(record, touched);
        }
        if !self.records_unchanged {
            self.identities.observe(record, touched);
        }
    }
}

impl State {
    /// Computes the record's difference under each level. Under the trace's own level it does not depend on
    /// the pages.
    fn compute_variants(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for level in &self.distinct_levels {
            self.variants[*level as usize] =
                variant(record, touched, self.plan.level, *level, &self.identities);
        }
    }

    /// Advances the clock of the simulations, and performs the requested checkpoints.
    #[inline]
    fn advance_clock(&mut self, record: &Record<'_>) {
        if record.lsn >= self.next_event {
            self.process_events(record.lsn);
        } else {
            let now = self.now;
            self.simulations.iter_mut().for_each(|simulation| simulation.advance_clock(now));
        }
    }

    /// Processes the times, redo pointers, requested checkpoints and samples up to `lsn`.
    #[inline(never)]
    fn process_events(&mut self, lsn: Lsn) {
        while let Some((_, micros)) = self.plan.times.get(self.time_cursor).filter(|(from, _)| *from <= lsn) {
            self.now = self.now.max(*micros);
            self.time_cursor += 1;
        }
        while let Some(redo) = self.plan.redo_pointers.get(self.redo_cursor).filter(|redo| **redo <= lsn) {
            self.real_redo = self.real_redo.max(*redo);
            self.redo_cursor += 1;
            self.changes.observe_checkpoint_of_trace(*redo);
        }
        let now = self.now;
        self.simulations.iter_mut().for_each(|simulation| simulation.advance_clock(now));
        while let Some((redo, cause)) =
            self.plan.requested.get(self.requested_cursor).filter(|(redo, _)| *redo <= lsn)
        {
            let is_undecided = self.plan.undecided.binary_search(redo).is_ok();
            for simulation in &mut self.simulations {
                if !is_undecided || simulation.settings.has_undecided_requests {
                    simulation.request_checkpoint(*cause, now);
                }
            }
            self.requested_cursor += 1;
        }
        if self.first.is_none() {
            self.first = Some(lsn);
        }
        let distance = lsn.bytes_since(self.plan.from);
        if distance >= self.next_sample {
            let all = self.plan.end.bytes_since(self.plan.from);
            self.next_sample = distance + (all / GROWTH_POINTS).max(1);
            self.transactions_at.push(self.transactions);
            self.simulations.iter_mut().for_each(|simulation| simulation.sample_growth(now));
            let compressor = &self.compressor;
            for simulation in self.simulations.iter_mut().filter(|simulation| simulation.deviates()) {
                let method = simulation.settings.wal_compression;
                simulation.deviate(method.map_or(0.0, |method| compressor.error(method)));
            }
        }
        let time = self.plan.times.get(self.time_cursor).map(|(from, _)| *from);
        let requested = self.plan.requested.get(self.requested_cursor).map(|(redo, _)| *redo);
        let redo = self.plan.redo_pointers.get(self.redo_cursor).copied();
        let sample = self.plan.from.plus(self.next_sample);
        self.next_event = [time, requested, redo].into_iter().flatten().fold(sample, Lsn::min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_hints_is_learned_from_whole_cycles() {
        let mut hints = HintChances::default();
        for at in 0..1000 {
            hints.observe(at % 10 == 0, if at % 10 == 0 { 1 } else { 2 });
            // In the cycle of the change, or in the next one, which has an image of the change itself.
            hints.observe(true, 0);
            hints.observe(false, 1);
        }
        assert_eq!((hints.chances, hints.taken), (1000, 100));
        assert!((0.12..0.13).contains(&hints.share_at_most(1.0)));
        assert!((0.48..0.52).contains(&hints.share_at_most(4.0)));
        assert_eq!(hints.share_at_most(20.0), 1.0);
        assert_eq!(HintChances { chances: 50, taken: 0 }.share_at_most(1.0), 1.0);
    }
}
