//! A trace and settings in, predictions out.

use rustc_hash::FxHashSet;
use thiserror::Error;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;
use walden_redo::store::BasePages;
use walden_redo::store::StoreOptions;
use walden_redo::{PageStore, Replay};
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_again};

use crate::learn::{Learned, learn};
use crate::level::Level;
use crate::objects::{Change, Counts, ObjectChange};
use crate::outcome::{Buckets, Prediction};
use crate::settings::{SettingError, Settings};
use crate::simulate::{OwnRecords, Simulation};
use crate::survey::{Survey, own};
use crate::trace::{MAX_SIMULATIONS, Pass, PassOutcome, Plan, Trust};

/// Opens a base anew for each pass.
pub type OpenBase<'a> = &'a (dyn Fn() -> std::io::Result<Box<dyn BasePages>> + Sync);

/// What is asked of a trace.
#[derive(Clone, Default)]
pub struct Question<'a> {
    /// Pages as they were before the trace, and the position from which the log goes on from them.
    pub base: Option<(Lsn, OpenBase<'a>)>,
    /// Records from here on count; what is before tells of pages and checkpoints alone.
    pub from: Option<Lsn>,
    /// Records that start before this count.
    pub to: Option<Lsn>,
    /// Settings that the trace was taken under, as far as they are known: names and values.
    pub traced: Vec<(String, String)>,
    /// Changes of settings to predict: each a set of names and values on top of the trace's own.
    pub changes: Vec<Vec<(String, String)>>,
    /// Changes of tables and indexes, on top of every set of settings.
    pub objects: Vec<ObjectChange>,
    /// Compress every image, not a sample.
    pub all_images: bool,
    /// Threads; one at least.
    pub threads: usize,
    /// Memory for pages, in bytes.
    pub memory_bytes: usize,
}

/// What is not possible.
#[derive(Debug, Error)]
pub enum PredictError {
    /// A setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Nothing to predict from.
    #[error("the trace has no record{0}")]
    Empty(String),
    /// The page store could not be kept.
    #[error("{0}")]
    Store(String),
}

/// What the log would be under each set of settings.
#[derive(Debug)]
pub struct Forecast {
    /// How the trace looked.
    pub survey: Survey,
    /// Under which settings it was taken.
    pub learned: Learned,
    /// Where the counted records start and end.
    pub span: (Lsn, Lsn),
    /// Bytes of the trace, as a distance of LSNs.
    pub trace_bytes: u64,
    /// Where they are.
    pub actual: Buckets,
    /// Records and images after checkpoints.
    pub records: u64,
    /// Images after checkpoints.
    pub images: u64,
    /// The trace's own settings predicted.
    pub own: Prediction,
    /// The changed settings, and what comes of them.
    pub predictions: Vec<(Settings, Prediction)>,
    /// How far this may be trusted.
    pub trust: Trust,
    /// Changes of tables and indexes, and what they would affect.
    pub objects: Vec<(ObjectChange, Counts)>,
    /// Seconds that replay took, for one pass.
    pub replay_seconds: f64,
    /// Where the trace can't be read any further, if it can't.
    pub damage: Option<Damage>,
}

impl Forecast {
    /// How far the prediction for the trace's own settings is from the trace.
    pub fn self_check_error(&self) -> f64 {
        relative(self.own.bytes, self.trace_bytes)
    }
}

/// How far `predicted` is from `measured`, as a fraction.
pub fn relative(predicted: u64, measured: u64) -> f64 {
    if measured == 0 { 0.0 } else { (predicted as f64 - measured as f64) / measured as f64 }
}

/// What [`predict`] tells while it works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// So many bytes have been read, of about twice the run's.
    Done(u64),
    /// So many more have to be read than was said.
    More(u64),
}

/// Predicts. `tell` is told how it goes.
pub fn predict(
    run: &Run,
    question: &Question<'_>,
    tell: &(dyn Fn(Reading) + Sync),
) -> Result<Forecast, PredictError> {
    let progress = &|bytes| tell(Reading::Done(bytes));
    let survey = Survey::read(run, question.from, question.to, question.threads.max(1), progress);
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
    let job = Job { run, question, survey: &survey, learned: &learned, from, end };
    let started = std::time::Instant::now();
    let Passed { mut predictions, common, damage } = job.passes(&settings, learned.hurry, progress)?;
    let replay_seconds = started.elapsed().as_secs_f64();
    if learned.hurry > 0 {
        job.settle_races(&settings, &mut predictions, tell)?;
    }
    let mut predictions = settings.into_iter().zip(predictions);
    let (_, own) = predictions.next().ok_or_else(|| PredictError::Empty(String::new()))?;
    let predictions: Vec<_> = predictions.collect();
    Ok(Forecast {
        span: (from, Lsn(from.0 + common.trace_bytes)),
        trace_bytes: common.trace_bytes,
        actual: common.actual,
        records: common.records,
        images: common.images,
        own,
        predictions,
        trust: common.trust,
        objects: common.objects,
        replay_seconds,
        damage: damage.or(survey.damage),
        survey: Survey { damage: None, ..survey },
        learned,
    })
}

/// Which settings go through one pass together. A pass is mostly replay, whatever the number of its simulations; only
/// compression is worth a thread, so each method has a pass of its own if there are cores.
fn groups(settings: &[Settings], threads: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<Option<walden_redo::recompress::Method>>, Vec<usize>)> = Vec::new();
    for (at, one) in settings.iter().enumerate() {
        let method = one.wal_compression;
        let fits = groups.iter().position(|(methods, group)| {
            group.len() < MAX_SIMULATIONS && (methods.contains(&method) || method.is_none())
        });
        let place = fits.or_else(|| {
            let room =
                groups.len() < threads || groups.iter().all(|(_, group)| group.len() >= MAX_SIMULATIONS);
            (!room).then(|| {
                let fewest =
                    groups.iter().enumerate().filter(|(_, (_, group))| group.len() < MAX_SIMULATIONS);
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

struct Job<'a> {
    run: &'a Run,
    question: &'a Question<'a>,
    survey: &'a Survey,
    learned: &'a Learned,
    from: Lsn,
    end: Lsn,
}

/// What passes over the trace found.
struct Passed {
    /// For each of the settings.
    predictions: Vec<Prediction>,
    /// The same in each pass.
    common: PassOutcome,
    damage: Option<Damage>,
}

/// Microseconds that a checkpoint takes at most that is behind, while the log grows as fast as it can: 0.3 to 0.7 s where the
/// quickest one that somebody had asked for took 0.05 s. It waits for the log that the same burst writes.
const SLOW_CHECKPOINT: i64 = 500_000;

impl Job<'_> {
    /// What the log would be under each of the settings, if a checkpoint that is behind takes `hurry` microseconds.
    fn passes(
        &self,
        settings: &[Settings],
        hurry: i64,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Passed, PredictError> {
        let groups = groups(settings, self.question.threads.max(1));
        let outcomes: Vec<Result<(PassOutcome, Option<Damage>), PredictError>> =
            std::thread::scope(|scope| {
                let passes: Vec<_> = groups
                    .iter()
                    .map(|group| {
                        let of_group = group.iter().map(|at| settings[*at].clone());
                        let passes = groups.len();
                        scope.spawn(move || self.pass(of_group, hurry, passes, progress))
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
        Ok(Passed { predictions: predictions.into_iter().flatten().collect(), common, damage })
    }

    /// Where checkpoints race with the log, how many come depends on how long each takes, which nobody knows: what is
    /// predicted is the mean of what comes if they are quick, and if they are slow.
    fn settle_races(
        &self,
        settings: &[Settings],
        predictions: &mut [Prediction],
        tell: &(dyn Fn(Reading) + Sync),
    ) -> Result<(), PredictError> {
        let raced = predictions.iter_mut().zip(settings).filter(|(quick, _)| quick.races > 0);
        let (raced, again): (Vec<&mut Prediction>, Vec<Settings>) =
            raced.map(|(quick, settings)| (quick, settings.clone())).unzip();
        if again.is_empty() {
            return Ok(());
        }
        tell(Reading::More(self.run.segments.len() as u64 * self.run.segment_size.bytes()));
        let progress = |bytes| tell(Reading::Done(bytes));
        let slow = self.passes(&again, SLOW_CHECKPOINT.max(self.learned.hurry), &progress)?;
        raced.into_iter().zip(&slow.predictions).for_each(|(quick, slow)| quick.mean_with(slow));
        Ok(())
    }

    fn pass(
        &self,
        settings: impl Iterator<Item = Settings>,
        hurry: i64,
        passes: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(PassOutcome, Option<Damage>), PredictError> {
        let redo = self.survey.redo_at(self.from);
        let start_time = self.survey.times.iter().take_while(|(lsn, _)| *lsn <= self.from).last();
        let start_time = start_time.or(self.survey.times.first()).map_or(0, |(_, micros)| *micros);
        // The checkpoint that holds at the start began then, and not when the window starts.
        let began = redo.and_then(|redo| self.survey.checkpoints.iter().find(|one| one.redo == redo));
        let began = began.map_or(start_time, |one| (one.time * 1_000_000).min(start_time));
        let simulations = settings.map(|settings| {
            let own = self.own_records(&settings);
            let redo = redo.unwrap_or(self.from);
            Simulation::new(settings, self.from, redo, began, own).with_checkpointer(
                self.learned.lag,
                self.learned.skips.clone(),
                hurry,
            )
        });
        let simulations = simulations.collect();
        let memory_bytes = self.question.memory_bytes / passes.max(1);
        let base = self.question.base.map(|(_, open)| open()).transpose();
        let base = base.map_err(|error| PredictError::Store(format!("the base can't be opened: {error}")))?;
        let store = PageStore::new(StoreOptions { memory_bytes, base, ..StoreOptions::default() });
        let plan = self.plan(redo);
        let mut pass = Pass::new(Replay::new(store), plan, simulations, self.question.all_images);
        pass.count(self.question.objects.clone());
        let options =
            ScanOptions { threads: 1, from: self.question.base.map(|(from, _)| from), to: self.question.to };
        // The survey has read all that; of what came after its end it knows nothing.
        let checked = self.survey.span.map_or(Lsn(0), |(_, end)| end);
        let read = |bytes| progress(bytes / passes.max(1) as u64);
        let (_, end) = scan_again(self.run, options, checked, &mut pass, read);
        let (outcome, replay) = pass.finish();
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
            matches!(checkpoint.cause, Cause::Requested | Cause::Shutdown) && checkpoint.seen.redo > self.from
        });
        let mut requested: Vec<(Lsn, Cause)> =
            asked.map(|checkpoint| (checkpoint.seen.redo, checkpoint.cause)).collect();
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
            drop_switches: true,
        }
    }

    /// Bytes of the records that checkpoints write: the mean of the trace's, else what an idle server writes.
    fn own_records(&self, settings: &Settings) -> OwnRecords {
        let mean = |which: usize, usual: u64| match self.survey.seen.own[which] {
            (_, 0) => usual,
            (bytes, count) => (bytes as f64 / count as f64).round() as u64,
        };
        use walden_format::version::Major;
        let has_redo = settings.version >= Major::V17;
        let has_running = Level::of(settings.wal_level) != Level::Minimal;
        OwnRecords {
            redo: if has_redo { mean(own::REDO, 30) } else { 0 },
            running: if has_running { mean(own::RUNNING, 50) } else { 0 },
            online: mean(own::ONLINE, 114),
        }
    }
}
