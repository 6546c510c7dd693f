//! A forecast as a document: the JSON output, and the source of tables and pages.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;

use crate::advise::{self, Advice, Aim};
use crate::archive::{ArchiveSize, Compressor};
use crate::learn::Traced;
use crate::objects::{self, ObjectEffect};
use crate::outcome::{Bucket, Buckets, Prediction};
use crate::predict::{Forecast, relative};
use crate::settings::{ROWS, Settings};
use crate::trace::Diagnostics;

/// Assumed relative error of estimated bytes ([`Basis::Estimated`](crate::outcome::Basis)).
const ESTIMATE_ERROR: f64 = 0.25;
/// Assumed share of a cycle's images that are not written if a raced checkpoint does not take place.
const RACE_ERROR: f64 = 0.25;
/// PostgreSQL's recovery takes about this many times as long as Walden's replay (docs/benchmarks.md).
const RECOVERY_SLOWDOWN: f64 = 3.0;

/// The speed of recovery.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RedoRate {
    /// As given, in bytes per second.
    Given(u64),
    /// Derived from the speed of Walden's replay, in bytes per second.
    Measured(u64),
}

impl RedoRate {
    /// A third of the rate at which the trace was replayed.
    pub fn measured(forecast: &Forecast) -> RedoRate {
        let rate = forecast.trace_bytes as f64 / forecast.replay_seconds.max(1e-6) / RECOVERY_SLOWDOWN;
        RedoRate::Measured(rate.max(1.0) as u64)
    }

    fn bytes(self) -> u64 {
        match self {
            RedoRate::Given(rate) | RedoRate::Measured(rate) => rate.max(1),
        }
    }
}

/// A forecast in full.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Bytes of the trace, as a distance of LSNs.
    pub trace_bytes: u64,
    /// Bytes under the first set of settings.
    pub predicted_bytes: u64,
    /// Relative error of the prediction for the trace's own settings, as a fraction.
    pub self_check_error: f64,
    /// Checkpoints under the first set of settings.
    pub checkpoints: u64,
    /// The trace.
    pub trace: Trace,
    /// The settings that it was taken under.
    pub traced_settings: Vec<Traced>,
    /// The prediction for the trace's own settings, compared with the trace.
    pub self_check: SelfCheck,
    /// One per set of settings.
    pub predictions: Vec<Predicted>,
    /// Settings that reach the aim, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Assumptions and limitations, in words.
    pub notes: Vec<String>,
}

/// The trace.
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    /// PostgreSQL major version that wrote it.
    pub version: String,
    /// Start LSN.
    pub from: String,
    /// End LSN.
    pub to: String,
    /// Seconds between its first and its last transaction end.
    pub seconds: Option<f64>,
    /// Number of records.
    pub records: u64,
    /// Number of full-page images after checkpoints.
    pub images: u64,
    /// Its checkpoints.
    pub checkpoints: Causes,
    /// Bytes by bucket.
    pub buckets: Vec<BucketBytes>,
    /// Size of an archive of it, by compressor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archive: Vec<ArchiveSize>,
}

/// Checkpoints by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Causes {
    /// All of them.
    pub total: u64,
    /// Because of `max_wal_size`.
    pub volume: u64,
    /// Because of `checkpoint_timeout`.
    pub time: u64,
    /// On request, or at shutdown.
    pub requested: u64,
}

/// Bytes of a bucket.
#[derive(Clone, Debug, Serialize)]
pub struct BucketBytes {
    /// Name of the bucket.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The prediction for the trace's own settings.
#[derive(Clone, Debug, Serialize)]
pub struct SelfCheck {
    /// Bytes predicted.
    pub predicted_bytes: u64,
    /// Its relative error, as a fraction.
    pub error: f64,
    /// Checkpoints predicted.
    pub checkpoints: Causes,
    /// Counts of the rule for full-page images, applied to the trace itself, and of unknown pages.
    #[serde(flatten)]
    pub diagnostics: Diagnostics,
}

/// The prediction for some settings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Predicted {
    /// The changes as a text, such as `max_wal_size=8GB`.
    pub name: String,
    /// Name and value of each setting that differs from the trace's.
    pub changed: Vec<(String, String)>,
    /// Bytes, as a distance of LSNs.
    pub bytes: u64,
    /// Relative to the trace: -0.4 is 40 % less.
    pub change: f64,
    /// Error of `bytes` in either direction.
    pub error_bytes: u64,
    /// Fractions of bytes that are exact, reconstructed, sampled and estimated.
    pub shares: [f64; 4],
    /// Bytes by bucket.
    pub buckets: Vec<BucketBytes>,
    /// Images after checkpoints.
    pub images: u64,
    /// Checkpoints.
    pub checkpoints: Causes,
    /// Segments filled or switched.
    pub segments: u64,
    /// The same per hour.
    pub segments_per_hour: Option<f64>,
    /// The longest distance that recovery could have to replay, in bytes.
    pub longest_redo_bytes: u64,
    /// The time that this takes, in seconds.
    pub recovery_seconds: f64,
    /// Upper bound of the bytes that logging hint bits would add, where the trace does not have them.
    pub hints_at_most_bytes: u64,
    /// Effects of changes of tables and indexes, in addition to `bytes`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectEffect>,
    /// Size of an archive, by compressor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archive: Vec<ArchiveSize>,
    /// Checkpoints: begin in seconds since 1970-01-01 UTC, redo pointer, cause.
    pub checkpoint_list: Vec<(f64, String, &'static str)>,
    /// Growth over time: seconds since 1970-01-01 UTC, bytes since the start.
    pub growth: Vec<(f64, u64)>,
}

impl Document {
    /// Builds the document of a forecast. `notes` are put before its own notes. With an aim, the forecast has to be of
    /// [`advise::candidates`].
    pub fn new(
        forecast: &Forecast,
        rate: RedoRate,
        notes: Vec<String>,
        aim: Option<&Aim>,
        compressors: &[Compressor],
    ) -> Document {
        let traced = &forecast.learned.settings;
        let seconds = forecast.survey.seconds(forecast.span.0);
        let self_check_error = forecast.self_check_error().abs();
        let predictions: Vec<Predicted> = forecast
            .predictions
            .iter()
            .map(|(settings, prediction)| {
                let effect = |object| objects::effect(object, settings, prediction, &forecast.actual);
                let objects = forecast.objects.iter().map(effect).collect();
                let of_settings = Predicted::new(
                    traced,
                    settings,
                    prediction,
                    forecast.trace_bytes,
                    seconds,
                    rate,
                    self_check_error,
                );
                let actual = (&forecast.actual, forecast.images);
                let size = |one: &Compressor| one.of(traced, actual, settings, prediction);
                Predicted { objects, archive: compressors.iter().filter_map(size).collect(), ..of_settings }
            })
            .collect();
        let mut document = Document {
            trace_bytes: forecast.trace_bytes,
            predicted_bytes: predictions.first().map_or(forecast.self_check.bytes, |first| first.bytes),
            self_check_error: forecast.self_check_error(),
            checkpoints: predictions.first().map_or(0, |first| first.checkpoints.total),
            trace: Trace {
                version: forecast.survey.version.to_string(),
                from: forecast.span.0.to_string(),
                to: forecast.span.1.to_string(),
                seconds,
                records: forecast.records,
                images: forecast.images,
                checkpoints: traced_checkpoints(forecast),
                buckets: buckets(&forecast.actual),
                archive: compressors.iter().map(|one| one.of_trace(&forecast.actual)).collect(),
            },
            traced_settings: forecast.learned.traced.clone(),
            self_check: SelfCheck {
                predicted_bytes: forecast.self_check.bytes,
                error: forecast.self_check_error(),
                checkpoints: causes(&forecast.self_check),
                diagnostics: forecast.diagnostics,
            },
            predictions,
            advice: None,
            notes,
        };
        if let Some(aim) = aim {
            document.advise(aim);
        }
        document.notes.extend(caveats(forecast, &document, rate));
        document
    }
}

impl Document {
    /// Chooses among the predictions of [`advise::candidates`] and keeps those that are steps of the advice.
    fn advise(&mut self, aim: &Aim) {
        let advice = advise::choose(aim, &self.predictions, self.trace_bytes, self.trace.seconds);
        let mut kept: Vec<Predicted> = Vec::new();
        for step in &advice.steps {
            let is_it = |one: &&Predicted| step.name == one.name;
            kept.extend(self.predictions.iter().find(is_it).cloned());
        }
        if kept.is_empty() {
            self.predictions.truncate(1);
        } else {
            self.predictions = kept;
        }
        if let Some(last) = self.predictions.last() {
            (self.predicted_bytes, self.checkpoints) = (last.bytes, last.checkpoints.total);
        }
        self.advice = Some(advice);
    }
}

impl Predicted {
    fn new(
        traced: &Settings,
        settings: &Settings,
        prediction: &Prediction,
        trace_bytes: u64,
        seconds: Option<f64>,
        rate: RedoRate,
        self_check_error: f64,
    ) -> Predicted {
        let changed: Vec<(String, String)> = ROWS
            .iter()
            .filter(|row| row.name != "data_checksums")
            .filter_map(|row| row.show.map(|show| (row.name, show(settings), show(traced))))
            .filter(|(_, now, before)| now != before)
            .map(|(name, now, _)| (name.into(), now))
            .collect();
        let dropped = settings.dropped.iter().map(|index| ("drop_index".to_string(), index.to_string()));
        let changed: Vec<(String, String)> = changed.into_iter().chain(dropped).collect();
        let name =
            changed.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        let known: u64 = prediction.shares.iter().sum();
        let estimated = prediction.shares[3] as f64;
        let checkpoints = prediction.checkpoints.len().max(1) as f64;
        let raced =
            prediction.races as f64 / checkpoints * prediction.buckets.get(Bucket::CheckpointImages) as f64;
        let error = prediction.sampling_error
            + ESTIMATE_ERROR * estimated
            + self_check_error * prediction.bytes as f64
            + RACE_ERROR * raced;
        let longest_redo = longest_redo(settings, prediction, seconds);
        let hour = |seconds: f64| prediction.segments as f64 / seconds * 3600.0;
        Predicted {
            name: if name.is_empty() { "as traced".into() } else { name },
            changed,
            bytes: prediction.bytes,
            change: relative(prediction.bytes, trace_bytes),
            error_bytes: error as u64,
            shares: prediction.shares.map(|bytes| bytes as f64 / known.max(1) as f64),
            buckets: buckets(&prediction.buckets),
            images: prediction.images,
            checkpoints: causes(prediction),
            segments: prediction.segments,
            segments_per_hour: seconds.filter(|seconds| *seconds > 0.0).map(hour),
            longest_redo_bytes: longest_redo,
            recovery_seconds: longest_redo as f64 / rate.bytes() as f64,
            hints_at_most_bytes: prediction.hints_at_most,
            objects: Vec::new(),
            archive: Vec::new(),
            checkpoint_list: prediction
                .checkpoints
                .iter()
                .map(|one| (one.time as f64 / 1e6, one.redo.to_string(), one.cause.name()))
                .collect(),
            growth: prediction.growth.iter().map(|(time, bytes)| (*time as f64 / 1e6, *bytes)).collect(),
        }
    }
}

/// The longest distance that recovery could have to replay: from the redo pointer of one checkpoint to the end of the next. If
/// the prediction has fewer than two, it is computed from the settings and the mean rate.
fn longest_redo(settings: &Settings, prediction: &Prediction, seconds: Option<f64>) -> u64 {
    let by_itself = prediction.caused_by(Cause::Volume) + prediction.caused_by(Cause::Time);
    if by_itself >= 2 {
        return prediction.longest_redo;
    }
    let spread = 1.0 + settings.completion_target_milli as f64 / 1000.0;
    let by_volume = (settings.checkpoint_segments() * settings.segment_size.bytes()) as f64 * spread;
    let rate = seconds.filter(|seconds| *seconds > 0.0).map(|seconds| prediction.bytes as f64 / seconds);
    let by_time = rate.map_or(f64::INFINITY, |rate| rate * settings.checkpoint_timeout as f64 * spread);
    prediction.longest_redo.max(by_volume.min(by_time) as u64)
}

fn buckets(buckets: &Buckets) -> Vec<BucketBytes> {
    Bucket::ALL.iter().map(|one| BucketBytes { name: one.name(), bytes: buckets.get(*one) }).collect()
}

fn causes(prediction: &Prediction) -> Causes {
    let of = |cause| prediction.caused_by(cause);
    Causes {
        total: prediction.checkpoints.len() as u64,
        volume: of(Cause::Volume),
        time: of(Cause::Time),
        requested: of(Cause::Requested) + of(Cause::Shutdown),
    }
}

fn traced_checkpoints(forecast: &Forecast) -> Causes {
    let (from, to) = forecast.span;
    let within = |redo: Lsn| redo > from && redo <= to;
    let seen = forecast.learned.checkpoints.iter().filter(|one| within(one.record.redo));
    let mut causes = Causes::default();
    for checkpoint in seen {
        causes.total += 1;
        match checkpoint.cause {
            Cause::Volume => causes.volume += 1,
            Cause::Time => causes.time += 1,
            Cause::Requested | Cause::Shutdown | Cause::First => causes.requested += 1,
        }
    }
    causes
}

/// The assumptions and limitations that matter for this forecast.
fn caveats(forecast: &Forecast, document: &Document, rate: RedoRate) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    if document.trace.checkpoints.total == 0 {
        note(
            "no checkpoint began within the trace: it does not show what triggers them, and every page that it changes counts as \
             changed for the first time; a trace over several checkpoints is more reliable"
                .into(),
        );
    } else if let Some(few) = document.predictions.iter().find(|one| one.checkpoints.total < 2) {
        note(format!(
            "under {} the trace covers {} full cycle{} between checkpoints: each page has one image per cycle, so a longer \
             trace would show slightly less WAL per hour than this one",
            few.name,
            few.checkpoints.total,
            if few.checkpoints.total == 1 { "" } else { "s" }
        ));
    }
    let diagnostics = &forecast.diagnostics;
    let unknown = diagnostics.pages_unknown as f64 / diagnostics.blocks.max(1) as f64;
    if unknown > 0.001 {
        note(format!(
            "{:.1} % of the pages changed are not known from the trace: their images are assumed to be as large as the \
             others of their table",
            100.0 * unknown
        ));
    }
    if diagnostics.first_touches_unknown > 0 {
        note(format!(
            "for {} pages the trace does not show whether they had been changed since the checkpoint before its start: they \
             are assumed not to have been",
            diagnostics.first_touches_unknown
        ));
    }
    let wrong = diagnostics.missing_images + diagnostics.unexpected_images;
    if wrong > 0 {
        note(format!(
            "the rule for full-page images, applied {} times to the trace itself, was wrong {wrong} times",
            diagnostics.decisions
        ));
    }
    let traced = &forecast.learned.settings;
    for (settings, prediction) in &forecast.predictions {
        let (from, to) =
            (crate::level::Level::of(traced.wal_level), crate::level::Level::of(settings.wal_level));
        if from < to {
            note(format!(
                "wal_level={} from a trace under {}: what the WAL does not contain is estimated ({})",
                settings.wal_level,
                traced.wal_level,
                if from == crate::level::Level::Minimal {
                    "bulk loads and index builds that minimal does not log are missing"
                } else {
                    "keys of deleted rows, catalog changes"
                }
            ));
        }
        if settings.log_hints && !traced.log_hints {
            note(format!(
                "hint bits would be logged: up to {} bytes more, as the WAL does not show which pages are read",
                prediction.hints_at_most
            ));
        }
        if settings.checkpoint_timeout != traced.checkpoint_timeout && forecast.survey.times.len() < 2 {
            note(
                "no transaction ends in the trace, so it has no times: cannot predict checkpoint_timeout"
                    .into(),
            );
        }
    }
    if forecast.survey.evidence.backups > 0 {
        note("a base backup ended within the trace: full_page_writes=off would still log images while one runs".into());
    }
    note(
        "the same work at the same pace is assumed; effects of the settings on its speed are not predicted"
            .into(),
    );
    note(match rate {
        RedoRate::Given(bytes) => format!("recovery: {bytes} bytes per second, as given"),
        RedoRate::Measured(bytes) => format!(
            "recovery: {bytes} bytes per second, a third of the speed of Walden's replay in memory; reading pages from disk \
             takes additional time (--redo-rate sets the speed of your server)"
        ),
    });
    notes.dedup();
    notes
}
