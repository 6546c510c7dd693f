//! Runs a prediction: survey, inference of settings, and passes over the trace.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rustc_hash::FxHashSet;
use serde::Serialize;
use thiserror::Error;
use walden_explain::checkpoints::{Cause, Checkpoint};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::page::SHORT_HEADER;
use walden_redo::BasePages;
use walden_redo::StoreOptions;
use walden_redo::{PageStore, Replay};
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_again};

use crate::buckets::{Bucket, Buckets};
use crate::learn::{Extreme, Learned, learn};
use crate::level::Level;
use crate::objects::{Change, Counts, ObjectChange};
use crate::outcome::{Basis, Prediction};
use crate::settings::{SettingError, Settings};
use crate::simulate::{CheckpointRecords, Deviation, ESTIMATE_ERROR, Simulation};
use crate::survey::{Survey, checkpoint_record};
use crate::trace::{Diagnostics, MAX_SIMULATIONS, Pass, PassOutcome, Plan, WantedSegments, WrittenSegment};

/// Opens the base pages; called once per pass.
pub type OpenBase<'a> = &'a (dyn Fn() -> std::io::Result<Box<dyn BasePages>> + Sync);

/// Options of a prediction.
#[derive(Clone, Default)]
pub struct Question<'a> {
    /// Pages as of before the trace, and the position at which replay on them starts.
    pub base: Option<(Lsn, OpenBase<'a>)>,
    /// Records that start at or after this LSN are counted; earlier records are only replayed.
    pub from: Option<Lsn>,
    /// Records that start before this are counted.
    pub to: Option<Lsn>,
    /// Settings that the trace was taken under, by name, whatever it shows.
    pub traced: Vec<(String, String)>,
    /// Current settings of the server, by name, for those that the trace does not show.
    pub server: Vec<(String, String)>,
    /// The sets of settings to predict: each a list of names and values that differ from the trace's.
    pub changes: Vec<Vec<(String, String)>>,
    /// Changes of tables and indexes, applied to every set of settings.
    pub objects: Vec<ObjectChange>,
    /// Compress every image instead of a sample.
    pub all_images: bool,
    /// Maximum number of threads; 0 counts as 1.
    pub threads: usize,
    /// Memory for pages and blocks in bytes, for all passes together.
    pub memory_bytes: usize,
}

/// The reason why a prediction failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PredictError {
    /// A setting is unknown or has an invalid value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The trace has no record to predict from.
    #[error("cannot predict: expected records in the trace, found none{0}")]
    Empty(String),
    /// The page store failed.
    #[error("{0}")]
    Store(String),
}

/// The predictions for each set of settings.
#[derive(Debug)]
pub struct Forecast {
    /// The first pass over the trace.
    pub survey: Survey,
    /// The settings that the trace was taken under.
    pub learned: Learned,
    /// Start LSN of the first and end LSN of the last counted record.
    pub span: (Lsn, Lsn),
    /// Distance from the start to the end of `span`, in bytes.
    pub trace_bytes: u64,
    /// `trace_bytes` by bucket.
    pub actual: Buckets,
    /// Number of records counted.
    pub records: u64,
    /// Number of full-page images after checkpoints in the counted records.
    pub images: u64,
    /// The prediction for the trace's own settings, to compare with the trace.
    pub self_check: Prediction,
    /// The changed settings and their predictions.
    pub predictions: Vec<(Settings, Prediction)>,
    /// Counts that show how reliable the predictions are.
    pub diagnostics: Diagnostics,
    /// The difference between two runs of the same work: twice the standard error, as a fraction.
    pub run_noise: f64,
    /// Bytes by which the records that prune pages may differ between two runs of the same transactions.
    pub prune_noise: f64,
    /// Seconds by which a checkpoint may start earlier or later in another run: one requested by volume, and
    /// one by time.
    pub delays: [f64; 2],
    /// Whether a single session wrote the WAL and waits for each commit to be flushed. Such a session writes
    /// nothing while the checkpointer, which it has signaled, starts to run.
    pub one_session: bool,
    /// Changes of tables and indexes, with the activity on them in the trace.
    pub objects: Vec<(ObjectChange, Counts)>,
    /// Seconds that the passes took.
    pub replay_seconds: f64,
    /// The damage at which reading stopped, if any.
    pub damage: Option<Damage>,
}

/// Seconds between snapshots of running transactions that a server writes periodically
/// (`LOG_SNAPSHOT_INTERVAL_MS`).
const SNAPSHOT_INTERVAL: f64 = 15.0;
/// Bytes of a snapshot, if the trace has none.
const SNAPSHOT: f64 = 50.0;
/// Minimum number of snapshots by which another run may differ, however short. A longer run may differ by
/// half of its snapshots, if it takes 50 % longer.
const OTHER_SNAPSHOTS: f64 = 2.0;
/// Standard error in bytes of a compressed image: in another run, the same page has other LSNs and
/// transaction ids.
const COMPRESSED_IMAGE_NOISE: f64 = 3.0;
/// Minimum difference between two runs of the same work, as a fraction: by a single session, and by several.
/// WAL does not show all causes: random choices of index methods, snapshots of sessions whose transactions do
/// not overlap, and the moment at which the checkpointer wakes up. Measured with the lab's
/// `random-predictions`.
const LEAST_RUN_NOISE: [f64; 2] = [0.005, 0.01];
/// Assumed share of a cycle's images that are not written if a raced checkpoint does not take place.
const RACE_ERROR: f64 = 0.25;

impl Forecast {
    /// Returns the relative error of the prediction for the trace's own settings.
    pub fn self_check_error(&self) -> f64 {
        relative(self.self_check.bytes, self.trace_bytes)
    }

    /// Returns the error of a prediction in either direction, in bytes.
    pub fn error_bytes(&self, prediction: &Prediction) -> f64 {
        self.error_parts(prediction).total()
    }

    /// Returns the same error by cause.
    pub fn error_parts(&self, prediction: &Prediction) -> ErrorParts {
        let bytes = prediction.bytes as f64;
        let count = prediction.checkpoints.len().max(1) as f64;
        let raced = prediction.races as f64 / count * prediction.buckets.get(Bucket::CheckpointImages) as f64;
        // Without a timed checkpoint, the difference comes from those requested by volume. A single session
        // does not write in the meantime, unless its commits are asynchronous.
        let is_late = !self.one_session
            || prediction.caused_by(Cause::Time) > 0
            || self.learned.late_by > woken_later(&self.survey);
        let delay_error = if is_late { prediction.delay_error } else { 0.0 };
        let delays = self.random_delays(prediction);
        let compression = 2.0 * COMPRESSED_IMAGE_NOISE * (prediction.compressed_images as f64).sqrt();
        ErrorParts {
            estimates: ESTIMATE_ERROR * prediction.shares[Basis::Estimated as usize] as f64,
            self_check: self.unexplained() * bytes,
            races: (RACE_ERROR * raced).max(prediction.race_error),
            unshown: (prediction.unshown + prediction.hints_at_most) as f64,
            assumptions: prediction.assumption_error,
            sampling: prediction.sampling_error,
            positions: prediction.position_error,
            phase: prediction.phase_error,
            delays: delay_error.hypot(delays),
            run_to_run: (self.run_noise.hypot(LEAST_RUN_NOISE[usize::from(!self.one_session)]) * bytes)
                .hypot(self.prune_noise)
                .hypot(self.snapshot_noise())
                .hypot(compression),
        }
    }

    /// Returns the part of the self-check's error that snapshots of running transactions do not explain, as a
    /// fraction.
    fn unexplained(&self) -> f64 {
        let wrong = self.self_check.bytes.abs_diff(self.trace_bytes) as f64;
        (wrong - self.snapshot_noise()).max(0.0) / self.trace_bytes.max(1) as f64
    }

    /// Returns the bytes by which the snapshots of running transactions in two runs of the same work may
    /// differ.
    fn snapshot_noise(&self) -> f64 {
        let (bytes, count) = self.survey.checkpoint_records(checkpoint_record::RUNNING);
        let mean = if count > 0 { bytes as f64 / count as f64 } else { SNAPSHOT };
        let aligned = (mean / 8.0).ceil() * 8.0;
        let seconds = self.survey.seconds(self.span.0, self.span.1).unwrap_or(0.0);
        let count = OTHER_SNAPSHOTS.max(1.0 + seconds / SNAPSHOT_INTERVAL / 2.0);
        // The snapshots may push a record onto the next page.
        count * aligned + SHORT_HEADER as f64
    }

    /// Returns twice the standard error of the images if each checkpoint starts some bytes earlier or later:
    /// on average, the pages changed in between gain an image in one cycle and lose one in the next.
    fn random_delays(&self, prediction: &Prediction) -> f64 {
        let images = prediction.images as f64;
        if images < 1.0 {
            return 0.0;
        }
        let image = prediction.buckets.get(Bucket::CheckpointImages) as f64 / images;
        let seconds = self.survey.seconds(self.span.0, self.span.1).unwrap_or(0.0).max(1e-3);
        let images_per_second = images / seconds;
        let timed = prediction.caused_by(Cause::Time) as f64;
        let requested = prediction.caused_by(Cause::Volume) as f64;
        let changed = (requested * self.delays[0] + timed * self.delays[1]) * images_per_second;
        2.0 * image * changed.sqrt()
    }
}

/// The error of a prediction in either direction by cause, in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct ErrorParts {
    /// Error of bytes whose number is an estimate.
    pub estimates: f64,
    /// The error of the prediction for the trace's own settings.
    pub self_check: f64,
    /// Error due to checkpoints that are requested while another checkpoint is in progress, in the simulation
    /// or on a busy server.
    pub races: f64,
    /// Error due to bytes that the trace does not show: images for hint bits, free space maps.
    pub unshown: f64,
    /// Error due to settings that the trace does not show, over the range of values that the trace allows.
    pub assumptions: f64,
    /// Error due to the sample of images that were compressed.
    pub sampling: f64,
    /// Checkpoints by volume that start earlier or later because bytes before them are sampled or estimated.
    pub positions: f64,
    /// The position between two checkpoints and in a segment at which the work starts.
    pub phase: f64,
    /// Error due to the times at which checkpoints start.
    pub delays: f64,
    /// Difference between two runs of the same work.
    pub run_to_run: f64,
}

impl ErrorParts {
    /// Returns the sum: systematic errors are added, random errors are combined as the root of the sum of
    /// squares. Larger images also bring checkpoints closer together, so these two errors have one direction.
    pub fn total(&self) -> f64 {
        let random = [self.sampling + self.positions, self.phase, self.delays, self.run_to_run];
        let systematic = self.estimates + self.self_check + self.races + self.unshown + self.assumptions;
        systematic + random.iter().map(|error| error * error).sum::<f64>().sqrt()
    }
}

/// Returns the relative error of `predicted`, as a fraction of `measured`.
pub fn relative(predicted: u64, measured: u64) -> f64 {
    if measured == 0 { 0.0 } else { (predicted as f64 - measured as f64) / measured as f64 }
}

/// Predicts the WAL under each set of settings. `progress` receives the number of bytes read since its last
/// call; in total about twice the size of the run. Starts at most `question.threads` threads and joins them
/// before it returns.
///
/// # Errors
/// An invalid setting, a trace without records in the window, or a page store that fails.
pub fn predict(
    run: &Run,
    question: &Question<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Forecast, PredictError> {
    let survey = Survey::read(run, question.from, question.to, question.threads.max(1), progress);
    let (first, end) = survey.span.ok_or_else(|| PredictError::Empty(String::new()))?;
    let base = question.base.map_or(Lsn(0), |(from, _)| from);
    let from = question.from.unwrap_or(first).max(first).max(base);
    if from >= end || question.to.is_some_and(|to| to <= from) {
        return Err(PredictError::Empty(format!(" from {from} on: it has {first} to {end}")));
    }
    let window = (from, question.to.map_or(end, |to| to.min(end)));
    let learned = learn(&survey, window, &question.server, &question.traced)?;
    let mut settings = Vec::with_capacity(question.changes.len() + 1);
    settings.push(learned.settings.clone());
    for change in &question.changes {
        let mut changed = learned.settings.clone();
        for (name, value) in change {
            changed.set(name, value)?;
        }
        for object in &question.objects {
            if let Change::DropIndex(files) = &object.change {
                changed.dropped.extend(files);
            }
        }
        changed.validate()?;
        settings.push(changed);
    }
    let times = survey.times.as_slice().into();
    let starts = Starts::new(&survey, &learned, from);
    let variants = variants(&survey, &learned, &starts, &settings, question.all_images);
    let uncertainty = checkpoint_clock(&survey, &learned, from).map_or(HALF_SECOND, |(_, micros)| micros);
    let job = Job { run, question, survey: &survey, learned: &learned, times, starts, end, variants };
    let started = std::time::Instant::now();
    let PassResults { predictions, common, damage } = job.passes(&settings, progress)?;
    let replay_seconds = started.elapsed().as_secs_f64();
    let is_asynchronous = |(name, value): &(String, String)| {
        name.eq_ignore_ascii_case("synchronous_commit") && value.eq_ignore_ascii_case("off")
    };
    let one_session = !common.overlap && !question.server.iter().chain(&question.traced).any(is_asynchronous);
    let mut predictions = settings.into_iter().zip(predictions);
    let (_, self_check) = predictions.next().ok_or_else(|| PredictError::Empty(String::new()))?;
    let predictions: Vec<_> = predictions.collect();
    Ok(Forecast {
        span: (from, Lsn(from.0 + common.trace_bytes)),
        trace_bytes: common.trace_bytes,
        actual: common.actual,
        records: common.records,
        images: common.images,
        self_check,
        predictions,
        diagnostics: common.diagnostics,
        run_noise: common.run_noise,
        prune_noise: common.prune_noise,
        delays: [if one_session { WAKE_UP_FIRST } else { WAKE_UP }, uncertainty as f64 / 2.0]
            .map(|micros| micros / 1e6),
        one_session,
        objects: common.objects,
        replay_seconds,
        damage: damage.or(survey.damage),
        survey: Survey { damage: None, ..survey },
        learned,
    })
}

/// Writes segments of predictions, and sends them to `sender`: the simulation of a segment is an index of
/// `wanted`, which has indexes of [`Forecast::predictions`] with the numbers of segments, ascending. Returns
/// early if the receiver is gone.
///
/// # Errors
/// A page store that fails.
///
/// # Panics
/// With more than [`MAX_SIMULATIONS`] predictions, or an index without a prediction.
pub(crate) fn write_segments(
    run: &Run,
    question: &Question<'_>,
    forecast: &Forecast,
    wanted: Vec<(usize, Vec<u64>)>,
    sender: SyncSender<WrittenSegment>,
) -> Result<(), PredictError> {
    let (survey, learned) = (&forecast.survey, &forecast.learned);
    let starts = Starts::new(survey, learned, forecast.span.0);
    let end = survey.span.map_or(forecast.span.1, |(_, end)| end);
    let variants = vec![vec![Variant::AsTraced]; wanted.len()];
    let times = survey.times.as_slice().into();
    let job = Job { run, question, survey, learned, times, starts, end, variants };
    let share = Share { memory_bytes: question.memory_bytes, of_progress: 1 };
    let settings: Vec<_> =
        wanted.iter().map(|(at, _)| forecast.predictions[*at].0.clone()).enumerate().collect();
    let numbers = wanted.into_iter().map(|(_, numbers)| numbers).collect();
    let segments = WantedSegments { system_id: run.system_id, timeline: run.timeline, numbers, sender };
    job.pass(&settings, share, &|_| (), Some(segments)).map(|_| ())
}

/// Returns the LSN at which the work starts under these settings.
pub(crate) fn start_under(forecast: &Forecast, settings: &Settings) -> Lsn {
    let starts = Starts::new(&forecast.survey, &forecast.learned, forecast.span.0);
    match settings.segment_size == forecast.survey.segment_size {
        true => starts.from,
        false => starts.with_segments(settings.segment_size, 0).0,
    }
}

/// Groups settings into passes. The cost of a pass is mostly replay, whatever the number of its simulations;
/// only compression justifies a thread, so each method gets its own pass as far as threads allow.
fn group_by_compression(settings: &[Settings], threads: usize, max_group: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<Option<walden_recompress::Method>>, Vec<usize>)> = Vec::new();
    for (at, one) in settings.iter().enumerate() {
        let method = one.wal_compression;
        let fits = groups.iter().position(|(methods, group)| {
            group.len() < max_group && (methods.contains(&method) || method.is_none())
        });
        let place = fits.or_else(|| {
            let may_add_group =
                groups.len() < threads || groups.iter().all(|(_, group)| group.len() >= max_group);
            (!may_add_group).then(|| {
                let fewest = groups.iter().enumerate().filter(|(_, (_, group))| group.len() < max_group);
                fewest.min_by_key(|(_, (methods, _))| methods.len()).map_or(0, |(at, _)| at)
            })
        });
        match place {
            Some(place) => {
                let (methods, group) = &mut groups[place];
                if !methods.contains(&method) {
                    methods.push(method);
                }
                group.push(at);
            }
            None => groups.push((vec![method], vec![at])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// A deviation from the trace in the simulation of a set of settings.
#[derive(Clone, Copy, Debug)]
enum Variant {
    /// No deviation.
    AsTraced,
    /// Requested checkpoints start this number of bytes later, and timed checkpoints start a second later:
    /// WAL stores only the seconds of a checkpoint.
    LateCheckpoints(u64),
    /// The work starts halfway between two checkpoints and in the middle of a segment.
    OtherPhase,
    /// The work starts half a segment later, at the same distance after the checkpoint.
    OtherOffset,
    /// The work and the last checkpoint before it are this number of quarters of a segment later, in segments
    /// of another size than the trace's.
    Quarter(u64),
    /// A checkpoint that lags its schedule takes at least as long as on a busy server.
    SlowCheckpoints,
    /// The bytes before each checkpoint by volume deviate by their error.
    Deviating(Deviation),
    /// Assumed settings have these values, unless the set of settings names them.
    Assumed(Extreme),
}

/// Maximum delay, compared with the trace, between the request of a checkpoint and the start of the
/// checkpointer, in microseconds: a time slice of another process.
const WAKE_UP: f64 = 2_000.0;
/// Mean delay, in microseconds, if a single session writes the WAL and waits for its commit in the meantime.
/// Of 52 predictions with checkpoints that a single session requested and waited for, on two cores with up to
/// three busy processes, 35 were within 56 bytes of the written WAL, and all within 776 bytes.
const WAKE_UP_FIRST: f64 = 20.0;
/// Half a second, in microseconds: the maximum error of a checkpoint's start, of which WAL stores only the
/// second.
const HALF_SECOND: i64 = 500_000;

/// Returns the start of the checkpoint in force at a position, from which `checkpoint_timeout` counts, and
/// its uncertainty, in microseconds. After a shutdown the server counts from its next start
/// (`CheckpointerMain`), which precedes its first transaction.
fn checkpoint_clock(survey: &Survey, learned: &Learned, from: Lsn) -> Option<(i64, i64)> {
    let redo = survey.redo_at(from)?;
    let timeout = learned.settings.checkpoint_timeout;
    // The next timed checkpoint shows it.
    let next = learned.checkpoints.iter().find(|one| one.record.redo > redo);
    if let Some(next) = next.filter(|next| next.cause == Cause::Time) {
        let began = next.record.time.saturating_sub(timeout).saturating_mul(1_000_000);
        return Some((began.saturating_add(HALF_SECOND), HALF_SECOND));
    }
    let checkpoint = survey.checkpoints.iter().find(|one| one.redo == redo)?;
    let began = checkpoint.time.saturating_mul(1_000_000).saturating_add(HALF_SECOND);
    let next = survey.times.iter().find(|(lsn, _)| *lsn >= redo).map_or(began, |(_, micros)| *micros);
    if checkpoint.shutdown && next > began {
        return Some((began.midpoint(next), (next.saturating_sub(began) / 2).max(HALF_SECOND)));
    }
    Some((began.min(next), HALF_SECOND))
}

/// Returns the mean rate at which the trace was written; 0 if it has no times.
fn bytes_per_second(survey: &Survey) -> f64 {
    let Some((first, end)) = survey.span else { return 0.0 };
    let seconds = survey.seconds(first, end).filter(|seconds| *seconds > 0.0);
    seconds.map_or(0.0, |seconds| end.bytes_since(first) as f64 / seconds)
}

/// Returns the bytes that are written while the checkpointer wakes up later than in the trace.
fn woken_later(survey: &Survey) -> u64 {
    ((bytes_per_second(survey) * WAKE_UP / 1e6) as u64).min(survey.segment_size.bytes() / 4)
}

/// Returns the variants in which each of the settings is simulated; the first one is the prediction.
fn variants(
    survey: &Survey,
    learned: &Learned,
    starts: &Starts,
    settings: &[Settings],
    all_images: bool,
) -> Vec<Vec<Variant>> {
    let extremes = || learned.extremes.iter().flatten().map(|extreme| Variant::Assumed(*extreme));
    if settings.len() > MAX_SETTINGS_WITH_VARIANTS {
        let variants = [Variant::AsTraced, Variant::SlowCheckpoints].into_iter().chain(extremes());
        return vec![variants.collect(); settings.len()];
    }
    let late = woken_later(survey).max(learned.late_by);
    let other_start = other_start(survey, learned, starts.from, settings);
    let of = |(at, one): (usize, &Settings)| {
        let mut variants = vec![Variant::AsTraced, Variant::LateCheckpoints(late), Variant::SlowCheckpoints];
        match one.segment_size == survey.segment_size {
            true => variants.extend(other_start),
            false if starts.is_aligned => {}
            false => variants.extend((1..QUARTERS).map(Variant::Quarter)),
        }
        if at > 0 && may_move_checkpoints(survey, learned, starts, one, all_images) {
            variants.extend([Deviation::Less, Deviation::More].map(Variant::Deviating));
        }
        variants.extend(extremes());
        variants
    };
    settings.iter().enumerate().map(of).collect()
}

/// Whether a checkpoint by volume may start earlier or later under these settings because the bytes before it
/// are sampled or estimated.
fn may_move_checkpoints(
    survey: &Survey,
    learned: &Learned,
    starts: &Starts,
    settings: &Settings,
    all_images: bool,
) -> bool {
    let traced = &learned.settings;
    let adds_images = settings.full_page_writes && !traced.full_page_writes;
    let is_sampled = settings.full_page_writes && settings.wal_compression.is_some() && !all_images;
    let adds_rows = Level::from_setting(settings.wal_level) > Level::from_setting(traced.wal_level);
    // Other settings add less than the trace's own bytes.
    let distance = settings.checkpoint_segments().saturating_mul(settings.segment_size.bytes());
    let bytes = survey.span.map_or(0, |(_, end)| end.bytes_since(starts.redo));
    let has_checkpoints = adds_images || bytes.saturating_mul(2) >= distance;
    has_checkpoints && (adds_images || is_sampled || adds_rows)
}

const QUARTERS: u64 = 4;

/// The LSN at which the work starts, and the redo pointer of the last checkpoint before the work.
#[derive(Clone, Copy, Debug)]
struct Starts {
    /// The first counted record.
    from: Lsn,
    /// The redo pointer in force there.
    redo: Lsn,
    /// Bytes from the redo pointer to the last segment switch before `from`, and from the start of the
    /// following segment, or from the redo pointer without a switch, to `from`.
    written: [u64; 2],
    /// Whether a segment starts at the switch or at the redo pointer, whatever the size of segments: a
    /// checkpoint by volume starts after the end of a segment.
    is_aligned: bool,
}

impl Starts {
    fn new(survey: &Survey, learned: &Learned, from: Lsn) -> Starts {
        let size = survey.segment_size;
        let redo = survey.redo_at(from).unwrap_or(from);
        let switches = || survey.switches.iter().filter(|switch| redo <= **switch && **switch < from);
        let unused = |switch: &Lsn| size.bytes() - size.offset_of(*switch);
        let Some(last) = switches().next_back() else {
            let by_volume = learned.checkpoints.iter().any(|one| {
                one.record.redo == redo && one.cause == Cause::Volume && is_near_start(size, redo)
            });
            return Starts { from, redo, written: [0, from.bytes_since(redo)], is_aligned: by_volume };
        };
        let after = last.plus(unused(last));
        let before = after.bytes_since(redo).saturating_sub(switches().map(unused).sum());
        Starts { from, redo, written: [before, from.bytes_since(after)], is_aligned: true }
    }

    /// Returns the start of the work and the redo pointer with segments of this size. After a switch, the
    /// redo pointer is in the previous segment. If the offsets in segments are unknown, they are the offsets
    /// of the trace's LSNs, moved by quarters of a segment.
    fn with_segments(&self, size: SegmentSize, quarters: u64) -> (Lsn, Lsn) {
        if !self.is_aligned {
            let moved = size.bytes() / QUARTERS * quarters;
            return (self.from.plus(moved), self.redo.plus(moved));
        }
        let [before, after] = self.written;
        // Late enough that the redo pointer does not precede the start of WAL.
        let aligned = size.start_of(size.segment_of(self.from.plus(before)) + 2);
        (aligned.plus(after), Lsn(aligned.0.saturating_sub(before)))
    }
}

/// Whether a position is in the first records of a segment, as the redo pointer of a checkpoint by volume and
/// the first record after a segment switch.
fn is_near_start(size: SegmentSize, lsn: Lsn) -> bool {
    size.offset_of(lsn) <= size.bytes() / 64
}

/// Returns an alternative start of the same work in another run. After a requested checkpoint, and before the
/// next one under any of the settings, the work starts at the same distance from the checkpoint. If that
/// checkpoint is at the start of a segment, as after a segment switch, the position in the segment is the
/// same too.
fn other_start(survey: &Survey, learned: &Learned, from: Lsn, settings: &[Settings]) -> Option<Variant> {
    let size = survey.segment_size;
    let last = learned.checkpoints.iter().rfind(|one| one.record.redo <= from);
    let is_requested = |one: &&Checkpoint| match one.cause {
        Cause::Requested | Cause::Shutdown => true,
        // The trace does not show the cause.
        Cause::First => one.record.is_empty(),
        _ => false,
    };
    let Some(last) = last.filter(is_requested) else {
        return Some(Variant::OtherPhase);
    };
    let distance = |one: &Settings| one.checkpoint_segments().saturating_mul(one.segment_size.bytes());
    if settings.iter().any(|one| from.bytes_since(last.record.redo) >= distance(one)) {
        return Some(Variant::OtherPhase);
    }
    (!is_near_start(size, last.record.redo)).then_some(Variant::OtherOffset)
}

/// Merges the outcomes of one set of settings: keeps the first outcome, with the differences of all other
/// outcomes from it. If checkpoints race with the writing of WAL, their number depends on their unknown
/// durations: the result is then the mean of the outcomes for fast and slow checkpoints, if the trace shows
/// how long a fast checkpoint takes.
fn merge_variants(outcomes: &[Prediction], variants: &[Variant], unthrottled_micros: i64) -> Prediction {
    let mut first = outcomes[0].clone();
    let is_raced = first.races > 0 && unthrottled_micros > 0;
    for (variant, other) in variants.iter().zip(outcomes) {
        let difference = other.bytes.abs_diff(first.bytes) as f64;
        match variant {
            Variant::AsTraced => {}
            Variant::Quarter(_) => first.phase_error = first.phase_error.max(difference),
            Variant::LateCheckpoints(_) => first.delay_error = difference,
            Variant::OtherPhase | Variant::OtherOffset => first.phase_error = difference,
            Variant::Assumed(_) => first.assumption_error = first.assumption_error.max(difference),
            Variant::Deviating(_) => first.position_error = first.position_error.max(difference),
            Variant::SlowCheckpoints if is_raced => {}
            Variant::SlowCheckpoints => first.race_error = difference,
        }
    }
    let slow = variants.iter().position(|variant| matches!(variant, Variant::SlowCheckpoints));
    if let Some(slow) = slow.filter(|_| is_raced) {
        first.mean_with(&outcomes[slow]);
    }
    first
}

struct Job<'a> {
    run: &'a Run,
    question: &'a Question<'a>,
    survey: &'a Survey,
    learned: &'a Learned,
    /// The survey's times, shared by all passes.
    times: Arc<[(Lsn, i64)]>,
    starts: Starts,
    end: Lsn,
    /// The variants in which each of the settings is simulated.
    variants: Vec<Vec<Variant>>,
}

/// With more settings, as in a search, each is simulated in fewer variants.
const MAX_SETTINGS_WITH_VARIANTS: usize = 20;

/// Minimum memory of a pass, if several passes run at a time.
const MIN_PASS_BYTES: usize = 256 << 20;

/// The share of a pass in the resources of all passes.
#[derive(Clone, Copy)]
struct Share {
    memory_bytes: usize,
    /// The number of passes that share the progress.
    of_progress: u64,
}

/// The outcome of all passes over the trace.
struct PassResults {
    /// The predictions for each of the settings.
    predictions: Vec<Prediction>,
    /// The outcome that is the same in each pass.
    common: PassOutcome,
    damage: Option<Damage>,
}

/// Microseconds that a checkpoint that lags its schedule takes while WAL is written at full speed: measured
/// at 0.3 to 0.7 s where the fastest requested one took 0.05 s, because it competes with the burst that
/// writes the WAL.
const SLOW_CHECKPOINT: i64 = 500_000;

impl Job<'_> {
    /// Predicts the WAL for each of the settings.
    fn passes(
        &self,
        settings: &[Settings],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PassResults, PredictError> {
        // Each pass has its own pages, so memory limits the number of concurrent passes.
        let at_a_time = self.question.threads.min(self.question.memory_bytes / MIN_PASS_BYTES).max(1);
        let most_variants = self.variants.iter().map(Vec::len).max().unwrap_or(1);
        let groups = group_by_compression(settings, at_a_time, MAX_SIMULATIONS / most_variants);
        let mut outcomes: Vec<Result<(PassOutcome, Option<Damage>), PredictError>> = Vec::new();
        for together in groups.chunks(at_a_time) {
            let share = Share {
                memory_bytes: self.question.memory_bytes / together.len(),
                of_progress: groups.len() as u64,
            };
            outcomes.extend(std::thread::scope(|scope| {
                let passes: Vec<_> = together
                    .iter()
                    .map(|group| {
                        let of_group: Vec<_> = group.iter().map(|at| (*at, settings[*at].clone())).collect();
                        scope.spawn(move || self.pass(&of_group, share, progress, None))
                    })
                    .collect();
                let join = |pass: std::thread::ScopedJoinHandle<'_, _>| {
                    pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                passes.into_iter().map(join).collect::<Vec<_>>()
            }));
        }
        let mut predictions: Vec<Option<Prediction>> = (0..settings.len()).map(|_| None).collect();
        let (mut common, mut damage) = (None, None);
        for (group, outcome) in groups.iter().zip(outcomes) {
            let (mut outcome, damaged) = outcome?;
            for (at, prediction) in group.iter().zip(outcome.predictions.drain(..)) {
                predictions[*at] = Some(prediction);
            }
            common.get_or_insert(outcome);
            damage = damage.or(damaged);
        }
        let common = common.ok_or_else(|| PredictError::Empty(String::new()))?;
        Ok(PassResults { predictions: predictions.into_iter().flatten().collect(), common, damage })
    }

    fn pass(
        &self,
        settings: &[(usize, Settings)],
        share: Share,
        progress: &(dyn Fn(u64) + Sync),
        segments: Option<WantedSegments>,
    ) -> Result<(PassOutcome, Option<Damage>), PredictError> {
        let redo = self.survey.redo_at(self.starts.from);
        let start_time = self.survey.time_near(self.starts.from).unwrap_or(0);
        let (began, uncertainty) =
            checkpoint_clock(self.survey, self.learned, self.starts.from).unwrap_or((start_time, 0));
        let simulation = |at: usize, settings: &Settings, variant: Variant| {
            let own = self.checkpoint_records(settings);
            let mut settings = settings.clone();
            let (mut start, mut redo, mut began) = (self.starts.from, self.starts.redo, began);
            if settings.segment_size != self.survey.segment_size {
                (start, redo) = self.starts.with_segments(settings.segment_size, 0);
            }
            let mut request_lag = self.learned.request_lag;
            let mut unthrottled_micros = self.learned.unthrottled_micros;
            let mut deviation = Deviation::None;
            match variant {
                Variant::AsTraced => {}
                Variant::LateCheckpoints(bytes) => {
                    request_lag = request_lag.later(bytes);
                    began += uncertainty;
                }
                Variant::OtherPhase => {
                    let segment = settings.segment_size.bytes();
                    let distance = settings.checkpoint_segments().saturating_mul(segment);
                    // Late enough that the redo pointer does not precede the start of WAL.
                    start = start.plus(distance.next_multiple_of(segment) + segment / 2);
                    redo = Lsn(start.0 - distance / 2);
                    began -= settings.checkpoint_timeout * 500_000;
                }
                Variant::OtherOffset => {
                    let half = settings.segment_size.bytes() / 2;
                    (start, redo) = (start.plus(half), redo.plus(half));
                }
                Variant::Quarter(quarter) => {
                    (start, redo) = self.starts.with_segments(settings.segment_size, quarter);
                }
                Variant::SlowCheckpoints => unthrottled_micros = unthrottled_micros.max(SLOW_CHECKPOINT),
                Variant::Deviating(direction) => deviation = direction,
                Variant::Assumed(extreme) => self.assume(at, extreme, &mut settings),
            }
            let simulation = Simulation::new(settings, start, redo, began, own).with_deviation(deviation);
            let skipped_requests = self.learned.skipped_requests.clone();
            simulation.with_checkpointer(request_lag, skipped_requests, unthrottled_micros)
        };
        let in_variants = |(at, settings): &(usize, Settings)| {
            let of = |variant: &Variant| simulation(*at, settings, *variant);
            self.variants[*at].iter().map(of).collect::<Vec<_>>()
        };
        let simulations = settings.iter().flat_map(in_variants).collect();
        let memory_bytes = share.memory_bytes;
        let base = self.question.base.map(|(_, open)| open()).transpose();
        let base =
            base.map_err(|error| PredictError::Store(format!("cannot open the base pages: {error}")))?;
        let store = PageStore::new(StoreOptions::default().memory_bytes(memory_bytes).base(base));
        let plan = self.plan(redo);
        let mut pass = Pass::new(Replay::new(store), plan, simulations, self.question.all_images);
        pass.count_objects(self.question.objects.clone());
        if let Some(wanted) = segments {
            pass.write_segments(wanted);
        }
        let options = ScanOptions::new(1).from(self.question.base.map(|(from, _)| from)).to(self.question.to);
        // The survey has verified the checksums up to its end, but not of WAL written since.
        let checked = self.survey.span.map_or(Lsn(0), |(_, end)| end);
        let read = |bytes| progress(bytes / share.of_progress.max(1));
        let (_, end) = scan_again(self.run, options, checked, &mut pass, read);
        let (mut outcome, replay) = pass.finish();
        let mut outcomes = outcome.predictions.into_iter();
        let merge = |(at, _): &(usize, Settings)| {
            let variants = &self.variants[*at];
            let outcomes: Vec<_> = outcomes.by_ref().take(variants.len()).collect();
            merge_variants(&outcomes, variants, self.learned.unthrottled_micros)
        };
        outcome.predictions = settings.iter().map(merge).collect();
        if let Some(failure) = replay.store.failure() {
            return Err(PredictError::Store(failure.to_string()));
        }
        let damage = match end {
            SegmentEnd::Damaged(damage) => Some(damage),
            _ => None,
        };
        Ok((outcome, damage))
    }

    /// Applies assumed values to a set of settings, except where the set names them. Set 0 is the trace's
    /// own.
    fn assume(&self, at: usize, extreme: Extreme, settings: &mut Settings) {
        let change = at.checked_sub(1).and_then(|at| self.question.changes.get(at));
        let is_named = |wanted: &str| {
            change.into_iter().flatten().any(|(name, _)| name.trim().eq_ignore_ascii_case(wanted))
        };
        if let Some(timeout) = extreme.checkpoint_timeout.filter(|_| !is_named("checkpoint_timeout")) {
            settings.checkpoint_timeout = timeout;
        }
        if let Some(size) = extreme.max_wal_size.filter(|_| !is_named("max_wal_size")) {
            settings.max_wal_size = size;
        }
        settings.has_undecided_requests = extreme.are_requested.unwrap_or(settings.has_undecided_requests);
    }

    fn plan(&self, redo: Option<Lsn>) -> Plan {
        let traced = &self.learned.settings;
        let mut redo_pointers: Vec<Lsn> =
            self.survey.checkpoints.iter().map(|checkpoint| checkpoint.redo).collect();
        redo_pointers.sort_unstable();
        let running: FxHashSet<Lsn> = redo_pointers
            .iter()
            .filter_map(|redo| {
                let at = self.survey.running.partition_point(|running| running < redo);
                self.survey.running.get(at).copied()
            })
            .collect();
        let undecided = &self.learned.undecided;
        let mut requested: Vec<(Lsn, Cause)> = Vec::new();
        for checkpoint in self.learned.checkpoints.iter().filter(|one| one.record.redo > self.starts.from) {
            let redo = checkpoint.record.redo;
            match checkpoint.cause {
                Cause::Requested | Cause::Shutdown => requested.push((redo, checkpoint.cause)),
                Cause::Volume if undecided.binary_search(&redo).is_ok() => {
                    requested.push((redo, Cause::Requested));
                }
                _ => {}
            }
        }
        requested.sort_unstable();
        Plan {
            version: self.run.version,
            from: self.starts.from,
            to: self.question.to,
            redo,
            full_page_writes: traced.full_page_writes,
            log_hints: traced.log_hints(),
            level: Level::from_setting(traced.wal_level),
            running,
            requested,
            undecided: undecided.clone(),
            times: Arc::clone(&self.times),
            redo_pointers,
            end: self.question.to.unwrap_or(self.end).min(self.end),
            segment_size: self.run.segment_size,
            drop_switches: traced.archive_timeout > 0,
            shutdown_switches: self.survey.shutdown_switches.clone(),
        }
    }

    /// Returns the bytes of the records that checkpoints write: the mean of the trace's checkpoints,
    /// otherwise the bytes that an idle server writes.
    fn checkpoint_records(&self, settings: &Settings) -> CheckpointRecords {
        let mean = |which: usize, usual: u64| match self.survey.checkpoint_records(which) {
            (_, 0) => usual,
            (bytes, count) => (bytes as f64 / count as f64).round() as u64,
        };
        use walden_format::version::Major;
        let has_redo = settings.version >= Major::V17;
        // A multixact offset has 8 bytes since 19.
        let online = if settings.version >= Major::V19 { 122 } else { 114 };
        let has_running = Level::from_setting(settings.wal_level) != Level::Minimal;
        CheckpointRecords {
            redo: if has_redo { mean(checkpoint_record::REDO, 30) } else { 0 },
            running: if has_running { mean(checkpoint_record::RUNNING, 50) } else { 0 },
            online: mean(checkpoint_record::ONLINE, online),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_one_direction_add_up_and_others_by_squares() {
        let parts =
            ErrorParts { estimates: 1.0, self_check: 2.0, phase: 3.0, delays: 4.0, ..ErrorParts::default() };
        assert_eq!(parts.total(), 8.0);
    }

    #[test]
    fn settings_are_grouped_so_that_no_group_is_too_large() {
        let settings = Settings::default_of(walden_format::version::Major::V15);
        let all = vec![settings; 41];
        let groups = group_by_compression(&all, 2, 21);
        assert!(groups.iter().all(|group| group.len() <= 21), "{groups:?}");
        let mut placed: Vec<usize> = groups.concat();
        placed.sort_unstable();
        assert_eq!(placed, (0..41).collect::<Vec<_>>());
    }
}
