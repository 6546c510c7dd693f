//! The trace, record by record, into every simulation at once.
//!
//! Replay knows each page before and after a record, so both questions have an answer: what would be there without this image
//! (the data that it displaced), and what would this image be that is not there (the page without its hole). Which of them is
//! asked, each simulation decides by the rule of `XLogRecordAssemble`: an image is written iff the page was last changed
//! before the redo pointer.

use std::ops::ControlFlow;

use rustc_hash::{FxHashMap, FxHashSet};
use walden_explain::checkpoints::Cause;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::record::{BlockRef, Fork, Record, RelFileLocator};
use walden_format::rmgr::info::heap2;
use walden_format::rmgr::info::xlog::{CHECKPOINT_ONLINE, CHECKPOINT_REDO, FPI_FOR_HINT, SWITCH};
use walden_format::rmgr::{ImageClass, KindTable, rmid};
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_redo::page::Page;
use walden_redo::recompress::Method;
use walden_redo::replay::{Role, Touched};
use walden_redo::{Observer, PAGE_BYTES, Replay, displaced};

use crate::images::{Compressor, ImageSize, RawImage, is_standard};
use crate::level::{Level, Unlogged, Variant, variant};
use crate::means::{Mean, Means};
use crate::objects::{Counter, Counts, ObjectChange};
use crate::outcome::{Basis, Bucket, Buckets, Prediction};
use crate::settings::Settings;
use crate::simulate::{RecordBytes, Simulation};

/// Simulations in one pass.
pub const MAX_SIMULATIONS: usize = 64;
/// Points of the growth that are kept.
const GROWTH_POINTS: u64 = 400;

/// What a pass needs to know of the trace.
#[derive(Debug)]
pub struct Plan {
    /// Who wrote it.
    pub version: Major,
    /// Records from here on count; what is before only tells of pages.
    pub from: Lsn,
    /// Records that start before this count.
    pub to: Option<Lsn>,
    /// The redo pointer that held at `from`, if the trace or the base tells it.
    pub redo: Option<Lsn>,
    /// `full_page_writes` was on.
    pub full_page_writes: bool,
    /// Hints were logged.
    pub log_hints: bool,
    /// `wal_level`
    pub level: Level,
    /// Records that checkpoints wrote themselves: `RUNNING_XACTS` among them, by their positions.
    pub running: FxHashSet<Lsn>,
    /// Checkpoints that neither time nor volume brought, ascending.
    pub requested: Vec<(Lsn, Cause)>,
    /// From each position on, the time: microseconds since 1970-01-01 UTC.
    pub times: Vec<(Lsn, i64)>,
    /// Redo pointers of the trace's checkpoints, ascending.
    pub redo_pointers: Vec<Lsn>,
    /// Where the trace ends, about.
    pub end: Lsn,
    /// Its `wal_segment_size`.
    pub segment_size: SegmentSize,
    /// Segment switches come from `archive_timeout`.
    pub drop_switches: bool,
}

/// Counts that say how far a pass may be trusted.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Diagnostics {
    /// Times that the rule for images was put to the trace itself, and how often it went wrong.
    pub decisions: u64,
    /// Images that the rule would not have expected, and images that it missed.
    pub unexpected_images: u64,
    /// See `unexpected_images`.
    pub missing_images: u64,
    /// Pages touched whose content was not known.
    pub pages_unknown: u64,
    /// Blocks touched.
    pub blocks: u64,
    /// Of the pages of a first touch within the window, those that the trace does not tell whether they had been changed
    /// since the redo pointer before it.
    pub first_touches_unknown: u64,
}

/// What came of a pass.
#[derive(Debug)]
pub struct PassOutcome {
    /// By simulation.
    pub predictions: Vec<Prediction>,
    /// The trace as it is.
    pub actual: Buckets,
    /// From the first is_counted record's start to the last one's end, in bytes.
    pub trace_bytes: u64,
    /// Records is_counted.
    pub records: u64,
    /// Images after checkpoints in the trace.
    pub images: u64,
    /// How far it may be trusted.
    pub diagnostics: Diagnostics,
    /// Changes of tables and indexes, and what they would affect.
    pub objects: Vec<(ObjectChange, Counts)>,
}

/// Why a block may have an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Never,
    Forced,
    Checkpoint,
    Hint,
}

/// A block of the record at hand.
struct Block {
    class: Class,
    slot: usize,
    /// Simulations that write an image: a bit each.
    image_mask: u64,
    /// The page's last change is since the redo pointer that held at the window's start.
    is_recent: bool,
    /// Data without an image.
    data: (u32, Basis),
    /// Of an image, if the trace or a simulation has one.
    image: Option<BlockImage>,
}

/// An image of a block.
#[derive(Default)]
struct BlockImage {
    /// What the trace's own takes and by what it is compressed.
    own: Option<(u32, Option<Method>)>,
    raw: Option<RawImage>,
    sizes: [Option<ImageSize>; 4],
}

impl Block {
    /// What its image takes under a compression that a simulation with an image has.
    fn size(&self, method: Option<Method>) -> Option<ImageSize> {
        self.image.as_ref()?.sizes[method_index(method)]
    }
}

/// Replays a trace into simulations.
pub struct Pass {
    replay: Replay,
    state: State,
}

struct State {
    plan: Plan,
    kinds: &'static KindTable,
    simulations: Vec<Simulation>,
    levels: Vec<Level>,
    /// Each of them once.
    distinct_levels: Vec<Level>,
    /// All simulations write a record as the trace has it, as long as neither has an image of its pages.
    records_unchanged: bool,
    /// A bit for each simulation, and for each that writes images after checkpoints.
    all: u64,
    full_page_writes: u64,
    /// The cycle of the last change of each block, by slot and simulation; 0 for none since the start.
    cycles: Vec<u32>,
    compressor: Compressor,
    raw_means: FxHashMap<(RelFileLocator, Fork), Mean>,
    data_means: Means<(u16, u8, RelFileLocator)>,
    unlogged: Unlogged,
    objects: Counter,
    threshold: Option<u64>,
    now: i64,
    time_cursor: usize,
    requested_cursor: usize,
    redo_cursor: usize,
    real_redo: Lsn,
    blocks: Vec<Block>,
    /// The number of the record's kind.
    kind: u16,
    /// Neither the record nor a simulation has an image of a block.
    is_without_images: bool,
    variants: [Variant; 3],
    is_unlogged_file: bool,
    is_counted: bool,
    first: Option<Lsn>,
    last_end: Lsn,
    actual: Buckets,
    records: u64,
    images: u64,
    diagnostics: Diagnostics,
    next_sample: u64,
    /// Before this, positions bring no new time, checkpoint or sample.
    next_event: Lsn,
}

impl Pass {
    /// A pass with these simulations, at most [`MAX_SIMULATIONS`]. `all_images`: compress every image, not a sample.
    pub fn new(replay: Replay, plan: Plan, simulations: Vec<Simulation>, all_images: bool) -> Pass {
        assert!(simulations.len() <= MAX_SIMULATIONS, "one bit for each");
        let levels: Vec<Level> =
            simulations.iter().map(|simulation| Level::of(simulation.settings.wal_level)).collect();
        let all = [Level::Minimal, Level::Replica, Level::Logical];
        let distinct_levels = all.into_iter().filter(|level| levels.contains(level)).collect();
        let at_minimal = simulations.iter().filter(|one| Level::of(one.settings.wal_level) == Level::Minimal);
        let threshold = at_minimal.map(|one| one.settings.skip_threshold).max();
        let threshold = threshold.filter(|_| plan.level != Level::Minimal);
        let records_unchanged =
            levels.iter().zip(&simulations).all(|(level, Simulation { settings, .. })| {
                *level == plan.level && settings.dropped.is_empty() && (!settings.log_hints || plan.log_hints)
            });
        let bits = |which: fn(&Settings) -> bool| {
            let wanted = simulations.iter().map(|simulation| u64::from(which(&simulation.settings)));
            wanted.enumerate().fold(0, |bits, (at, bit)| bits | bit << at)
        };
        let (all, full_page_writes) = (bits(|_| true), bits(|settings| settings.full_page_writes));
        Pass {
            replay,
            state: State {
                kinds: KindTable::of(plan.version),
                real_redo: plan.redo.unwrap_or(Lsn(0)),
                now: plan.times.first().map_or(0, |time| time.1),
                plan,
                simulations,
                levels,
                distinct_levels,
                records_unchanged,
                all,
                full_page_writes,
                cycles: Vec::new(),
                compressor: Compressor::new(all_images),
                raw_means: FxHashMap::default(),
                data_means: Means::default(),
                unlogged: Unlogged::default(),
                objects: Counter::default(),
                threshold,
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
                next_event: Lsn(0),
            },
        }
    }

    /// Counts what these changes would affect, too.
    pub fn count_objects(&mut self, changes: Vec<ObjectChange>) {
        self.state.objects = Counter::new(changes);
    }

    /// What came of it, and the pages.
    pub fn finish(self) -> (PassOutcome, Replay) {
        let state = self.state;
        let trace_bytes = state.first.map_or(0, |first| state.last_end.bytes_since(first));
        let mut actual = state.actual;
        actual.add(Bucket::PageHeaders, trace_bytes.saturating_sub(actual.total()));
        let (now, compressor) = (state.now, &state.compressor);
        let finish = |mut simulation: Simulation| {
            simulation.sample_growth(now);
            let error = simulation.settings.wal_compression.map_or(0.0, |method| compressor.error(method));
            simulation.finish(error)
        };
        let outcome = PassOutcome {
            predictions: state.simulations.into_iter().map(finish).collect(),
            actual,
            trace_bytes,
            records: state.records,
            images: state.images,
            diagnostics: state.diagnostics,
            objects: state.objects.finish(),
        };
        (outcome, self.replay)
    }
}

impl Visitor for Pass {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.state.plan.to.is_some_and(|to| record.lsn >= to) {
            return ControlFlow::Break(());
        }
        self.replay.apply(record, &mut self.state);
        if self.replay.store.failure().is_some() {
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
        if !self.records_unchanged {
            self.compute_variants(record, touched);
        }
        self.is_unlogged_file = self.threshold.is_some() && self.unlogged.covers(record);
        self.blocks.clear();
        self.kind = self.kinds.kind(record.header.rmid, record.header.info).index() as u16;
        // `FPI_FOR_HINT` is about nothing but an image.
        self.is_without_images = record.header.rmid != rmid::XLOG;
        for (index, (block, touched_block)) in record.blocks.iter().zip(touched).enumerate() {
            let block_state = self.classify_block(record, block, touched_block);
            self.blocks.push(block_state);
            if block.image.is_some_and(|image| image.apply) {
                self.measure_displaced_data(record, touched, index);
            }
        }
    }

    #[inline(always)]
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        if self.is_counted {
            self.count_record(record, touched);
        }
    }
}

impl State {
    /// What the record is under each level. Under the trace's own that does not depend on the pages.
    fn compute_variants(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for level in &self.distinct_levels {
            self.variants[*level as usize] = variant(record, touched, self.plan.level, *level);
        }
    }

    /// Moves the time on, and makes the checkpoints that somebody asked for.
    #[inline]
    fn advance_clock(&mut self, record: &Record<'_>) {
        if record.lsn >= self.next_event {
            self.process_events(record.lsn);
        } else {
            let now = self.now;
            self.simulations.iter_mut().for_each(|simulation| simulation.advance_clock(now));
        }
    }

    #[inline(never)]
    fn process_events(&mut self, lsn: Lsn) {
        while let Some((_, micros)) = self.plan.times.get(self.time_cursor).filter(|(from, _)| *from <= lsn) {
            self.now = self.now.max(*micros);
            self.time_cursor += 1;
        }
        while let Some(redo) = self.plan.redo_pointers.get(self.redo_cursor).filter(|redo| **redo <= lsn) {
            self.real_redo = self.real_redo.max(*redo);
            self.redo_cursor += 1;
        }
        let now = self.now;
        self.simulations.iter_mut().for_each(|simulation| simulation.advance_clock(now));
        while let Some((_, cause)) =
            self.plan.requested.get(self.requested_cursor).filter(|(redo, _)| *redo <= lsn)
        {
            self.simulations.iter_mut().for_each(|simulation| simulation.request_checkpoint(*cause, now));
            self.requested_cursor += 1;
        }
        if self.first.is_none() {
            self.first = Some(lsn);
        }
        let distance = lsn.bytes_since(self.plan.from);
        if distance >= self.next_sample {
            let all = self.plan.end.bytes_since(self.plan.from);
            self.next_sample = distance + (all / GROWTH_POINTS).max(1);
            self.simulations.iter_mut().for_each(|simulation| simulation.sample_growth(now));
        }
        let time = self.plan.times.get(self.time_cursor).map(|(from, _)| *from);
        let requested = self.plan.requested.get(self.requested_cursor).map(|(redo, _)| *redo);
        let redo = self.plan.redo_pointers.get(self.redo_cursor).copied();
        let sample = self.plan.from.plus(self.next_sample);
        self.next_event = [time, requested, redo].into_iter().flatten().fold(sample, Lsn::min);
    }

    /// What is known of a block before the record, and which simulations write an image of it.
    #[inline(always)]
    fn classify_block(&mut self, record: &Record<'_>, block: &BlockRef, touched: &Touched) -> Block {
        let slot = touched.slot.index();
        let count = self.simulations.len();
        let end = (slot + 1) * count;
        if self.cycles.len() < end {
            self.cycles.resize(end.next_power_of_two().max(1024), 0);
        }
        if touched.fresh {
            self.cycles[slot * count..end].fill(0);
        }
        let class = self.image_class(record, block);
        let image = block.image.filter(|image| image.apply);
        let is_recent = self.is_recent(touched, class, image.is_some());
        self.check_image_rule(touched, class, image.is_some());
        self.diagnostics.blocks += 1;
        let is_known = touched.page.is_some() || image.is_some() || block.will_init;
        self.diagnostics.pages_unknown += u64::from(!is_known);
        let (mut image_mask, mut mask_if_stale) = match class {
            Class::Never => (0, 0),
            Class::Forced => (self.all, 0),
            // Until 14 such an image is forced once the record is written at all.
            Class::Hint if self.plan.version < Major::V15 => (0, self.all),
            Class::Checkpoint | Class::Hint => (0, self.full_page_writes),
        };
        let cycles = &self.cycles[slot * count..end];
        while mask_if_stale != 0 {
            let at = mask_if_stale.trailing_zeros() as usize;
            mask_if_stale &= mask_if_stale - 1;
            let current = self.simulations[at].cycle;
            image_mask |= u64::from(is_stale(cycles[at], current, is_recent)) << at;
        }
        let image = image.map(|image| {
            let own = (image.record_bytes(), Method::of(image.compression));
            let len = image.uncompressed_len(PAGE_BYTES as u32);
            self.raw_means.entry((block.relation, block.fork)).or_default().add(len);
            let raw = RawImage { len, has_hole: image.hole_len > 0, basis: Basis::Exact };
            BlockImage { own: Some(own), raw: Some(raw), sizes: [None; 4] }
        });
        let data = (u32::from(block.data_len), Basis::Exact);
        self.is_without_images &= image_mask == 0 && block.image.is_none();
        Block { class, slot, image_mask, is_recent, data, image }
    }

    fn image_class(&self, record: &Record<'_>, block: &BlockRef) -> Class {
        if block.will_init {
            return Class::Never;
        }
        match self.kinds.image_class(self.kind.into(), block.id) {
            ImageClass::Forced => Class::Forced,
            ImageClass::Hint => Class::Hint,
            // The table's page keeps its LSN then, and has no image (`log_heap_visible`).
            ImageClass::Checkpoint
                if record.header.rmid == rmid::HEAP2
                    && record.kind() & heap2::OPMASK == heap2::VISIBLE
                    && block.id == 1
                    && !self.plan.log_hints =>
            {
                Class::Never
            }
            ImageClass::Checkpoint => Class::Checkpoint,
        }
    }

    /// Whether a page that no is_counted record touched yet had been changed since the redo pointer at the window's start.
    fn is_recent(&mut self, touched: &Touched, class: Class, has_image: bool) -> bool {
        let Some(redo) = self.plan.redo else {
            // The window starts in the midst of a cycle: an image that is not there tells.
            let is_visible = self.plan.full_page_writes && class == Class::Checkpoint;
            if !is_visible && touched.fresh {
                self.diagnostics.first_touches_unknown += 1;
            }
            return is_visible && !has_image && self.redo_cursor == 0;
        };
        match &touched.page {
            Some(page) if touched.role != Role::Ahead => page.lsn() > redo,
            _ => {
                self.plan.full_page_writes
                    && class == Class::Checkpoint
                    && !has_image
                    && self.real_redo == redo
            }
        }
    }

    /// The rule for images against the trace's own, where the page before is known.
    fn check_image_rule(&mut self, touched: &Touched, class: Class, has_image: bool) {
        if class != Class::Checkpoint || !self.plan.full_page_writes || self.real_redo == Lsn(0) {
            return;
        }
        let Some(page) = touched.page.as_deref().filter(|_| touched.role != Role::Ahead) else { return };
        let expected = page.lsn() <= self.real_redo;
        self.diagnostics.decisions += 1;
        match (expected, has_image) {
            (true, false) => self.diagnostics.missing_images += 1,
            (false, true) => self.diagnostics.unexpected_images += 1,
            _ => {}
        }
    }

    /// The data that an image took the place of, if a simulation goes without the image.
    fn measure_displaced_data(&mut self, record: &Record<'_>, touched: &[Touched], index: usize) {
        let (block, block_state) = (&record.blocks[index], &mut self.blocks[index]);
        if block_state.class != Class::Checkpoint || block.data_len > 0 || block_state.image_mask == self.all
        {
            return;
        }
        let mean = data_mean(&mut self.data_means, self.kind, block);
        block_state.data = match displaced::data_of(record, touched, index) {
            Some(data) => (data.len() as u32, Basis::Reconstructed),
            None => (mean.get().unwrap_or(0), Basis::Estimated),
        };
    }

    /// After the record: what it takes in each simulation.
    #[inline(always)]
    fn count_record(&mut self, record: &Record<'_>, touched: &[Touched]) {
        self.last_end = record.end;
        self.records += 1;
        let now = self.now;
        if self.is_checkpoint_record(record) {
            self.actual.add(Bucket::Checkpoints, record.header.total_len.into());
            self.actual.add(Bucket::Alignment, record.alignment.into());
            return;
        }
        if record.header.rmid == rmid::XLOG && record.kind() == SWITCH {
            self.actual.add(Bucket::Records, record.header.total_len.into());
            let end = self.plan.segment_size.offset_of(record.end);
            if end > 0 {
                let rest = self.plan.segment_size.bytes() - end;
                self.actual.add(Bucket::Switches, rest);
                self.last_end = record.end.plus(rest);
            }
            for simulation in &mut self.simulations {
                if !(self.plan.drop_switches && simulation.settings.archive_timeout > 0) {
                    simulation.switch_segment(now);
                }
            }
            return;
        }
        let is_unchanged = self.records_unchanged && self.is_without_images;
        if is_unchanged {
            self.actual.add(Bucket::Records, record.header.total_len.into());
            self.actual.add(Bucket::Alignment, record.alignment.into());
        } else {
            self.add_actual_bytes(record);
        }
        if !self.objects.is_empty() {
            self.objects.count_record(record, touched);
        }
        if is_unchanged {
            self.write_unchanged(record, touched);
        } else {
            self.write_per_simulation(record, touched);
        }
    }

    /// Writes the record as each simulation would have it.
    #[inline(never)]
    fn write_per_simulation(&mut self, record: &Record<'_>, touched: &[Touched]) {
        if self.records_unchanged {
            self.compute_variants(record, touched);
        }
        let mut fixed = i64::from(record.header.total_len);
        let mut consistency_bytes = 0_u64;
        for (index, (block, touched)) in record.blocks.iter().zip(touched).enumerate() {
            let block_state = &mut self.blocks[index];
            fixed -= i64::from(block.data_len);
            if let Some(image) = block.image {
                let bytes = u64::from(image.record_bytes());
                fixed -= bytes as i64;
                if !image.apply {
                    consistency_bytes += bytes;
                }
            } else if touched.is_untouched() {
                // Registered for its lock alone (`REGBUF_NO_IMAGE`, `REGBUF_NO_CHANGE`).
                block_state.image_mask = 0;
            }
            let has_own = block_state.image.as_ref().is_some_and(|image| image.own.is_some());
            if block_state.class == Class::Checkpoint && !has_own && block.data_len > 0 {
                data_mean(&mut self.data_means, self.kind, block).add(block.data_len.into());
            }
            if block_state.image_mask != 0 {
                self.compute_image_sizes(record, block, touched, index);
            }
        }
        if self.threshold.is_some() {
            self.note_unlogged(record, touched);
        }
        for at in 0..self.simulations.len() {
            self.write(record, touched, at, fixed, consistency_bytes);
        }
    }

    /// Writes the record as it is in all simulations.
    #[inline(always)]
    fn write_unchanged(&mut self, record: &Record<'_>, touched: &[Touched]) {
        let count = self.simulations.len();
        for ((block, block_state), touched) in record.blocks.iter().zip(&self.blocks).zip(touched) {
            if block_state.class == Class::Checkpoint && block.data_len > 0 {
                data_mean(&mut self.data_means, self.kind, block).add(block.data_len.into());
            }
            if touched.sets_lsn() {
                let cycles = self.cycles.iter_mut().skip(block_state.slot * count);
                cycles.zip(&self.simulations).for_each(|(cycle, simulation)| *cycle = simulation.cycle);
            }
        }
        let (bytes, now) = (record.header.total_len.into(), self.now);
        self.simulations.iter_mut().for_each(|simulation| simulation.insert_unchanged(bytes, now));
    }

    /// A record that a checkpoint wrote itself: each simulation has its own.
    fn is_checkpoint_record(&self, record: &Record<'_>) -> bool {
        match record.header.rmid {
            rmid::XLOG => matches!(record.kind(), CHECKPOINT_ONLINE | CHECKPOINT_REDO),
            rmid::STANDBY => self.plan.running.contains(&record.lsn),
            _ => false,
        }
    }

    fn add_actual_bytes(&mut self, record: &Record<'_>) {
        let mut plain = u64::from(record.header.total_len);
        for (block, block_state) in record.blocks.iter().zip(&self.blocks) {
            let Some(image) = block.image else { continue };
            let bytes = u64::from(image.record_bytes());
            plain -= bytes;
            let bucket = match block_state.class {
                _ if !image.apply => Bucket::ConsistencyImages,
                Class::Forced => Bucket::ForcedImages,
                Class::Hint => Bucket::HintImages,
                Class::Checkpoint | Class::Never => Bucket::CheckpointImages,
            };
            self.images += u64::from(bucket == Bucket::CheckpointImages);
            self.actual.add(bucket, bytes);
        }
        self.actual.add(Bucket::Records, plain);
        self.actual.add(Bucket::Alignment, record.alignment.into());
    }

    /// What the image of a block takes under each compression that a simulation with an image has.
    fn compute_image_sizes(
        &mut self,
        record: &Record<'_>,
        block: &BlockRef,
        touched: &Touched,
        index: usize,
    ) {
        let block_state = &mut self.blocks[index];
        let image = block_state.image.get_or_insert_default();
        let page = touched.page.as_deref();
        let mean = self.raw_means.entry((block.relation, block.fork)).or_default();
        let raw = *image.raw.get_or_insert_with(|| match page {
            Some(page) => raw_image_of(record, block, page),
            None => RawImage {
                len: mean.get().unwrap_or(PAGE_BYTES as u32),
                has_hole: true,
                basis: Basis::Estimated,
            },
        });
        let mut image_mask = block_state.image_mask;
        while image_mask != 0 {
            let at = image_mask.trailing_zeros() as usize;
            image_mask &= image_mask - 1;
            let method = self.simulations[at].settings.wal_compression;
            let size = &mut image.sizes[method_index(method)];
            if size.is_some() {
                continue;
            }
            *size = Some(match (image.own, method) {
                (Some((bytes, own)), _) if own == method => ImageSize { bytes, basis: Basis::Exact },
                (_, None) => raw.size(),
                (_, Some(method)) => self.compressor.image_size(method, block.relation, raw, page),
            });
        }
    }

    /// Files that `minimal` would not log: what they hold, and which end here.
    fn note_unlogged(&mut self, record: &Record<'_>, touched: &[Touched]) {
        if self.is_unlogged_file {
            for (block, touched) in record.blocks.iter().zip(touched) {
                let Some(page) = touched.page.as_deref() else { continue };
                let raw = RawImage::of(page, is_standard(block.fork, is_brin_map(record, page)));
                let place = (block.fork, block.block);
                self.unlogged.note_page(block.relation, place, touched.slot.index(), raw.len);
            }
        }
        let ended = self.unlogged.observe(record, self.threshold.unwrap_or(0));
        for small in ended {
            self.log_small(&small.pages);
        }
    }

    /// A small file is logged page by page, 32 to a record (`log_newpage_range`).
    fn log_small(&mut self, pages: &[(usize, u32)]) {
        const HEADER: u64 = 24;
        const FIRST_BLOCK: u64 = 4 + 12 + 4;
        const NEXT_BLOCK: u64 = 4 + 4;
        let count = self.simulations.len();
        for (at, simulation) in self.simulations.iter_mut().enumerate() {
            if self.levels[at] != Level::Minimal {
                continue;
            }
            for batch in pages.chunks(32) {
                let raw: u64 = batch.iter().map(|(_, len)| u64::from(*len) + 5).sum();
                let mut bytes = RecordBytes {
                    plain: HEADER + FIRST_BLOCK + (batch.len() as u64 - 1) * NEXT_BLOCK,
                    ..RecordBytes::default()
                };
                bytes.images[1] = raw;
                // Compression of these few is not tried.
                let basis = match simulation.settings.wal_compression {
                    None => Basis::Reconstructed,
                    Some(_) => Basis::Estimated,
                };
                bytes.add_basis(basis, bytes.plain + raw);
                simulation.insert(&bytes, self.now);
                for (slot, _) in batch {
                    if let Some(cycle) = self.cycles.get_mut(slot * count + at) {
                        *cycle = simulation.cycle;
                    }
                }
            }
        }
    }

    /// Writes the record in one simulation.
    fn write(
        &mut self,
        record: &Record<'_>,
        touched: &[Touched],
        at: usize,
        fixed: i64,
        consistency_bytes: u64,
    ) {
        let level = self.levels[at];
        let variant = self.variants[level as usize];
        let simulation = &mut self.simulations[at];
        let count = self.levels.len();
        let is_hint = record.header.rmid == rmid::XLOG && record.kind() == FPI_FOR_HINT;
        let mut is_written = variant.is_written && !(self.is_unlogged_file && level == Level::Minimal);
        if is_hint {
            is_written &= simulation.settings.log_hints
                && self.blocks.iter().any(|block_state| {
                    is_stale(
                        self.cycles[block_state.slot * count + at],
                        simulation.cycle,
                        block_state.is_recent,
                    )
                });
        }
        if !simulation.settings.dropped.is_empty() && !record.blocks.is_empty() {
            is_written &=
                !record.blocks.iter().all(|block| simulation.settings.dropped.contains(&block.relation));
        }
        if !is_written {
            simulation.count_dropped_record();
            return;
        }
        let mut bytes = RecordBytes::default();
        let plain_basis = if variant.estimated { Basis::Estimated } else { Basis::Exact };
        let mut plain = fixed + i64::from(variant.fixed);
        bytes.add_basis(plain_basis, plain.max(0) as u64);
        for (index, (block, block_state)) in record.blocks.iter().zip(&self.blocks).enumerate() {
            let (mut data, data_basis) = block_state.data;
            if index == 0 {
                data = data.saturating_add_signed(variant.data);
            }
            let image = block_state.image_mask >> at & 1 != 0;
            // Beside an image for a consistency check, the data stays.
            let stays = !image || (index == 0 && variant.keeps_data) || block_state.class == Class::Forced;
            if stays {
                plain += i64::from(data);
                bytes.add_basis(data_basis, data.into());
            }
            if image && let Some(size) = block_state.size(simulation.settings.wal_compression) {
                let bucket = match block_state.class {
                    Class::Forced => 1,
                    Class::Hint => 2,
                    _ => 0,
                };
                bytes.images[bucket] += u64::from(size.bytes);
                bytes.image_count += u64::from(bucket == 0);
                bytes.add_basis(size.basis, size.bytes.into());
            }
            let bound = simulation.settings.log_hints && !self.plan.log_hints && !block.will_init;
            let cycle = &mut self.cycles[block_state.slot * count + at];
            if bound && *cycle != 0 && is_stale(*cycle, simulation.cycle, block_state.is_recent) {
                // Between its last change and this one a reader may have set hints, which would have been logged first.
                simulation.add_hint_bound(hint_record_bytes(record, block, &touched[index]));
            }
            if touched[index].sets_lsn() {
                *cycle = simulation.cycle;
            }
        }
        bytes.plain = plain.max(0) as u64;
        bytes.images[3] = consistency_bytes;
        bytes.add_basis(Basis::Exact, consistency_bytes);
        simulation.insert(&bytes, self.now);
        if variant.extra_records > 0 {
            let mut more = RecordBytes { plain: variant.extra_records.into(), ..RecordBytes::default() };
            more.add_basis(Basis::Estimated, variant.extra_records.into());
            simulation.insert(&more, self.now);
        }
    }
}

/// What a block's data is in records of this kind.
#[inline]
fn data_mean<'a>(
    means: &'a mut Means<(u16, u8, RelFileLocator)>,
    kind: u16,
    block: &BlockRef,
) -> &'a mut Mean {
    let hint = block.relation.relation ^ u32::from(kind) << 16;
    means.entry((kind, block.id, block.relation), hint)
}

fn method_index(method: Option<Method>) -> usize {
    match method {
        None => 0,
        Some(Method::Pglz) => 1,
        Some(Method::Lz4) => 2,
        Some(Method::Zstd) => 3,
    }
}

/// Whether a page's first change since the redo pointer is still to come, by the cycle of its last one; 0 if the pass has not
/// seen one.
#[inline]
fn is_stale(cycle: u32, current: u32, is_recent: bool) -> bool {
    match cycle {
        0 => current > 1 || !is_recent,
        cycle => cycle != current,
    }
}

/// Bytes of an `FPI_FOR_HINT` of a block, not compressed.
fn hint_record_bytes(record: &Record<'_>, block: &BlockRef, touched: &Touched) -> u64 {
    const RECORD: u64 = 24 + 4 + 12 + 4;
    let image = match (block.image, touched.page.as_deref()) {
        (Some(image), _) => image.uncompressed_len(PAGE_BYTES as u32),
        (None, Some(page)) => raw_image_of(record, block, page).len,
        (None, None) => PAGE_BYTES as u32,
    };
    (RECORD + u64::from(image)).next_multiple_of(8)
}

/// A page as an image would have it.
fn raw_image_of(record: &Record<'_>, block: &BlockRef, page: &Page) -> RawImage {
    RawImage::of(page, is_standard(block.fork, is_brin_map(record, page)))
}

/// BRIN's map from ranges to its items, whose content is not between the bounds of its page (`BRIN_PAGETYPE_REVMAP`).
fn is_brin_map(record: &Record<'_>, page: &Page) -> bool {
    const REVMAP: u16 = 0xF092;
    const META: u16 = 0xF091;
    if record.header.rmid != rmid::BRIN {
        return false;
    }
    let kind = page.special_area().last_chunk::<2>().map(|kind| u16::from_le_bytes(*kind));
    matches!(kind, Some(REVMAP | META))
}
