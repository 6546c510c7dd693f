//! Runs a prediction: survey, inference of settings, and passes over the trace.

use rustc_hash::FxHashSet;
use thiserror::Error;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;
use walden_redo::BasePages;
use walden_redo::StoreOptions;
use walden_redo::{PageStore, Replay};
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_again};

use crate::learn::{Learned, learn};
use crate::level::Level;
use crate::objects::{Change, Counts, ObjectChange};
use crate::outcome::{Basis, Bucket, Buckets, Prediction};
use crate::settings::{SettingError, Settings};
use crate::simulate::{CheckpointRecords, Simulation};
use crate::survey::{Survey, checkpoint_record};
use crate::trace::{Diagnostics, MAX_SIMULATIONS, Pass, PassOutcome, Plan};

/// Opens the base pages; called once per pass.
pub type OpenBase<'a> = &'a (dyn Fn() -> std::io::Result<Box<dyn BasePages>> + Sync);

/// Options of a prediction.
#[derive(Clone, Default)]
pub struct Question<'a> {
    /// Pages as of before the trace, and the position at which replay starts on them.
    pub base: Option<(Lsn, OpenBase<'a>)>,
    /// Records from here on are counted; earlier ones are only replayed.
    pub from: Option<Lsn>,
    /// Records that start before this are counted.
    pub to: Option<Lsn>,
    /// Settings that the trace was taken under, as far as they are known, by name.
    pub traced: Vec<(String, String)>,
    /// The sets of settings to predict: each a list of names and values that differ from the trace's.
    pub changes: Vec<Vec<(String, String)>>,
    /// Changes of tables and indexes, applied to every set of settings.
    pub objects: Vec<ObjectChange>,
    /// Compress every image instead of a sample.
    pub all_images: bool,
    /// Maximum number of threads; 0 counts as 1.
    pub threads: usize,
    /// Memory for pages, in bytes.
    pub memory_bytes: usize,
}

/// Why a prediction failed.
#[derive(Debug, Error)]
pub enum PredictError {
    /// A setting is unknown or has an invalid value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// There is no record to predict from.
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
    /// The settings that it was taken under.
    pub learned: Learned,
    /// Start and end of the counted records.
    pub span: (Lsn, Lsn),
    /// The distance between these, in bytes.
    pub trace_bytes: u64,
    /// The same by bucket.
    pub actual: Buckets,
    /// Records counted.
    pub records: u64,
    /// Full-page images after checkpoints among them.
    pub images: u64,
    /// The prediction for the trace's own settings, to compare with the trace.
    pub self_check: Prediction,
    /// The changed settings and their predictions.
    pub predictions: Vec<(Settings, Prediction)>,
    /// Counts that show how reliable the predictions are.
    pub diagnostics: Diagnostics,
    /// By how much two runs of the same work differ: twice the standard error, as a fraction.
    pub run_noise: f64,
    /// Changes of tables and indexes, with what the trace contains of these.
    pub objects: Vec<(ObjectChange, Counts)>,
    /// Seconds that the passes took.
    pub replay_seconds: f64,
    /// The damage at which reading stopped, if any.
    pub damage: Option<Damage>,
}

/// Assumed relative error of estimated bytes ([`Basis::Estimated`](crate::Basis)).
const ESTIMATE_ERROR: f64 = 0.25;
/// Assumed share of a cycle's images that are not written if a raced checkpoint does not take place.
const RACE_ERROR: f64 = 0.25;

impl Forecast {
    /// Relative error of the prediction for the trace's own settings.
    pub fn self_check_error(&self) -> f64 {
        relative(self.self_check.bytes, self.trace_bytes)
    }

    /// The error of a prediction in either direction, in bytes: what is known to be wrong in one direction is added, what is as
    /// likely in both is summed up by squares.
    pub fn error_bytes(&self, prediction: &Prediction) -> f64 {
        let bytes = prediction.bytes as f64;
        let checkpoints = prediction.checkpoints.len().max(1) as f64;
        let raced =
            prediction.races as f64 / checkpoints * prediction.buckets.get(Bucket::CheckpointImages) as f64;
        let systematic = ESTIMATE_ERROR * prediction.shares[Basis::Estimated as usize] as f64
            + self.self_check_error().abs() * bytes
            + RACE_ERROR * raced;
        let random = [prediction.sampling_error, prediction.phase_error, self.run_noise * bytes];
        systematic + random.iter().map(|error| error * error).sum::<f64>().sqrt()
    }
}

/// Relative error of `predicted`, as a fraction of `measured`.
pub fn relative(predicted: u64, measured: u64) -> f64 {
    if measured == 0 { 0.0 } else { (predicted as f64 - measured as f64) / measured as f64 }
}

/// ReadProgress of [`predict`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadProgress {
    /// Bytes read since the last call, of about twice the run's.
    Read(u64),
    /// Bytes to be read in addition to that.
    MoreToRead(u64),
}

/// Predicts the WAL under each set of settings. Starts at most `question.threads` threads and joins them before it returns.
///
/// # Errors
/// An invalid setting, a trace without records in the window, or a page store that fails.
pub fn predict(
    run: &Run,
    question: &Question<'_>,
    progress: &(dyn Fn(ReadProgress) + Sync),
) -> Result<Forecast, PredictError> {
    let read = &|bytes| progress(ReadProgress::Read(bytes));
    let survey = Survey::read(run, question.from, question.to, question.threads.max(1), read);
    let (first, end) = survey.span.ok_or_else(|| PredictError::Empty(String::new()))?;
    let base = question.base.map_or(Lsn(0), |(from, _)| from);
    let from = question.from.unwrap_or(first).max(first).max(base);
    if from >= end || question.to.is_some_and(|to| to <= from) {
        return Err(PredictError::Empty(format!(" from {from} on: it has {first} to {end}")));
    }
    let learned = learn(&survey, from, &question.traced)?;
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
    let phases = if settings.len() <= MAX_SETTINGS_WITH_PHASES { 2 } else { 1 };
    let job = Job { run, question, survey: &survey, learned: &learned, from, end, phases };
    let started = std::time::Instant::now();
    let PassResults { mut predictions, common, damage } =
        job.passes(&settings, learned.unthrottled_micros, read)?;
    let replay_seconds = started.elapsed().as_secs_f64();
    if learned.unthrottled_micros > 0 {
        job.average_races(&settings, &mut predictions, progress)?;
    }
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
        objects: common.objects,
        replay_seconds,
        damage: damage.or(survey.damage),
        survey: Survey { damage: None, ..survey },
        learned,
    })
}

/// Groups settings into passes. A pass is mostly replay, whatever the number of its simulations; only compression is worth a
/// thread, so each method gets a pass of its own as far as there are threads.
fn group_by_compression(settings: &[Settings], threads: usize, max_group: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<Option<walden_redo::compress::Method>>, Vec<usize>)> = Vec::new();
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

/// Keeps the first phase of each of the settings, and by how much the others differ from it.
fn merge_phases(predictions: Vec<Prediction>, phases: usize) -> Vec<Prediction> {
    let merge = |phases: &[Prediction]| {
        let mut first = phases[0].clone();
        let differences = phases.iter().map(|other| other.bytes.abs_diff(first.bytes));
        first.phase_error = differences.max().unwrap_or(0) as f64;
        first
    };
    predictions.chunks(phases).map(merge).collect()
}

struct Job<'a> {
    run: &'a Run,
    question: &'a Question<'a>,
    survey: &'a Survey,
    learned: &'a Learned,
    from: Lsn,
    end: Lsn,
    /// How many times each of the settings is simulated, each time in another phase of the segment and of the clock.
    phases: usize,
}

/// With more settings, as in a search, none is simulated twice.
const MAX_SETTINGS_WITH_PHASES: usize = 16;

/// The outcome of all passes over the trace.
struct PassResults {
    /// For each of the settings.
    predictions: Vec<Prediction>,
    /// The same in each pass.
    common: PassOutcome,
    damage: Option<Damage>,
}

/// Microseconds that a checkpoint behind its schedule takes while WAL is written at full speed: measured at 0.3 to 0.7 s where
/// the fastest requested one took 0.05 s, as it competes with the burst that writes the WAL.
const SLOW_CHECKPOINT: i64 = 500_000;

impl Job<'_> {
    /// Predicts each of the settings, if a checkpoint behind its schedule takes `unthrottled_micros` microseconds.
    fn passes(
        &self,
        settings: &[Settings],
        unthrottled_micros: i64,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PassResults, PredictError> {
        let groups =
            group_by_compression(settings, self.question.threads.max(1), MAX_SIMULATIONS / self.phases);
        let outcomes: Vec<Result<(PassOutcome, Option<Damage>), PredictError>> =
            std::thread::scope(|scope| {
                let passes: Vec<_> = groups
                    .iter()
                    .map(|group| {
                        let of_group = group.iter().map(|at| settings[*at].clone());
                        let passes = groups.len();
                        scope.spawn(move || self.pass(of_group, unthrottled_micros, passes, progress))
                    })
                    .collect();
                let join = |pass: std::thread::ScopedJoinHandle<'_, _>| {
                    pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                passes.into_iter().map(join).collect()
            });
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

    /// Where checkpoints race with the writing of WAL, their number depends on how long each takes, which is not known: predicts
    /// the mean of the outcomes for fast and for slow ones.
    fn average_races(
        &self,
        settings: &[Settings],
        predictions: &mut [Prediction],
        progress: &(dyn Fn(ReadProgress) + Sync),
    ) -> Result<(), PredictError> {
        let raced = predictions.iter_mut().zip(settings).filter(|(fast, _)| fast.races > 0);
        let (raced, again): (Vec<&mut Prediction>, Vec<Settings>) =
            raced.map(|(fast, settings)| (fast, settings.clone())).unzip();
        if again.is_empty() {
            return Ok(());
        }
        progress(ReadProgress::MoreToRead(self.run.segments.len() as u64 * self.run.segment_size.bytes()));
        let read = |bytes| progress(ReadProgress::Read(bytes));
        let slow = self.passes(&again, SLOW_CHECKPOINT.max(self.learned.unthrottled_micros), &read)?;
        raced.into_iter().zip(&slow.predictions).for_each(|(fast, slow)| fast.mean_with(slow));
        Ok(())
    }

    fn pass(
        &self,
        settings: impl Iterator<Item = Settings>,
        unthrottled_micros: i64,
        passes: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(PassOutcome, Option<Damage>), PredictError> {
        let redo = self.survey.redo_at(self.from);
        let start_time = self.survey.time_near(self.from).unwrap_or(0);
        // The checkpoint in force at the start of the window began at its own time.
        let began = redo.and_then(|redo| self.survey.checkpoints.iter().find(|one| one.redo == redo));
        let began = began.map_or(start_time, |one| (one.time * 1_000_000).min(start_time));
        let redo_from = redo.unwrap_or(self.from);
        let simulation = |settings: &Settings, phase: usize| {
            let own = self.checkpoint_records(settings);
            let shift = phase as u64 * settings.segment_size.bytes() / 2;
            let earlier = phase as i64 * settings.checkpoint_timeout * 500_000;
            let [start, redo] = [self.from, redo_from].map(|lsn| lsn.plus(shift));
            Simulation::new(settings.clone(), start, redo, began - earlier, own).with_checkpointer(
                self.learned.request_lag_bytes,
                self.learned.skipped_requests.clone(),
                unthrottled_micros,
            )
        };
        let in_phases = |settings: Settings| {
            (0..self.phases).map(move |phase| simulation(&settings, phase)).collect::<Vec<_>>()
        };
        let simulations = settings.flat_map(in_phases).collect();
        let memory_bytes = self.question.memory_bytes / passes.max(1);
        let base = self.question.base.map(|(_, open)| open()).transpose();
        let base =
            base.map_err(|error| PredictError::Store(format!("cannot open the base pages: {error}")))?;
        let store = PageStore::new(StoreOptions { memory_bytes, base, ..StoreOptions::default() });
        let plan = self.plan(redo);
        let mut pass = Pass::new(Replay::new(store), plan, simulations, self.question.all_images);
        pass.count_objects(self.question.objects.clone());
        let options =
            ScanOptions { threads: 1, from: self.question.base.map(|(from, _)| from), to: self.question.to };
        // The survey has verified the checksums up to its end, but not of what was written since.
        let checked = self.survey.span.map_or(Lsn(0), |(_, end)| end);
        let read = |bytes| progress(bytes / passes.max(1) as u64);
        let (_, end) = scan_again(self.run, options, checked, &mut pass, read);
        let (mut outcome, replay) = pass.finish();
        outcome.predictions = merge_phases(outcome.predictions, self.phases);
        if let Some(failure) = replay.store.failure() {
            return Err(PredictError::Store(failure.to_string()));
        }
        let damage = match end {
            SegmentEnd::Damaged(damage) => Some(damage),
            _ => None,
        };
        Ok((outcome, damage))
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
        let asked = self.learned.checkpoints.iter().filter(|checkpoint| {
            matches!(checkpoint.cause, Cause::Requested | Cause::Shutdown)
                && checkpoint.record.redo > self.from
        });
        let mut requested: Vec<(Lsn, Cause)> =
            asked.map(|checkpoint| (checkpoint.record.redo, checkpoint.cause)).collect();
        requested.sort_unstable();
        Plan {
            version: self.run.version,
            from: self.from,
            to: self.question.to,
            redo,
            full_page_writes: traced.full_page_writes,
            log_hints: traced.log_hints,
            level: Level::of(traced.wal_level),
            running,
            requested,
            times: self.survey.times.clone(),
            redo_pointers,
            end: self.question.to.unwrap_or(self.end).min(self.end),
            segment_size: self.run.segment_size,
            drop_switches: traced.archive_timeout > 0,
            shutdown_switches: self.survey.shutdown_switches.clone(),
        }
    }

    /// Bytes of the records that checkpoints write: the mean of the trace's, else those of an idle server.
    fn checkpoint_records(&self, settings: &Settings) -> CheckpointRecords {
        let mean = |which: usize, usual: u64| match self.survey.checkpoint_records(which) {
            (_, 0) => usual,
            (bytes, count) => (bytes as f64 / count as f64).round() as u64,
        };
        use walden_format::version::Major;
        let has_redo = settings.version >= Major::V17;
        let has_running = Level::of(settings.wal_level) != Level::Minimal;
        CheckpointRecords {
            redo: if has_redo { mean(checkpoint_record::REDO, 30) } else { 0 },
            running: if has_running { mean(checkpoint_record::RUNNING, 50) } else { 0 },
            online: mean(checkpoint_record::ONLINE, 114),
        }
    }
}
