//! A forecast as a document: the JSON output, and the source of tables and pages.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;

use crate::advise::{self, Advice, Aim};
use crate::archive::{ArchiveSize, Compressor};
use crate::learn::Traced;
use crate::objects::{self, ObjectEffect};
use crate::outcome::{Bucket, Buckets, Prediction};
use crate::predict::{ErrorParts, Forecast, relative};
use crate::recovery::{RecoveryModel, RecoveryRates};
use crate::settings::{ROWS, Settings};
use crate::trace::Diagnostics;
use walden_redo::compress::Method;

/// Processor time for compressing a page of 8 kB, in seconds.
const PGLZ_SECONDS: f64 = 60e-6;
const LZ4_SECONDS: f64 = 5.5e-6;
const ZSTD_SECONDS: f64 = 19e-6;

/// How the time of recovery is computed.
#[derive(Clone, PartialEq, Debug)]
pub enum Recovery {
    /// A rate in bytes per second, whatever they are.
    Rate(u64),
    /// By kinds of work, with the default figures.
    Default,
    /// By kinds of work, with figures measured by `walden bench redo --calibrate`.
    Measured(Box<RecoveryRates>),
}

impl Recovery {
    fn model(&self) -> RecoveryModel {
        match self {
            Recovery::Measured(rates) => rates.nanoseconds,
            Recovery::Rate(_) | Recovery::Default => RecoveryModel::default(),
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
    /// Relative to the prediction for the trace's own settings, so that what changes nothing is 0: -0.4 is 40 % less.
    pub change: f64,
    /// Error of `bytes` in either direction.
    pub error_bytes: u64,
    /// The same by cause.
    pub error_parts: ErrorParts,
    /// Fractions of bytes that are exact, reconstructed, sampled and estimated.
    pub shares: [f64; 4],
    /// Bytes by bucket.
    pub buckets: Vec<BucketBytes>,
    /// Images after checkpoints.
    pub images: u64,
    /// Images of all kinds that `wal_compression` is tried on.
    pub compressed_images: u64,
    /// Processor time for compressing these, in seconds.
    pub compression_seconds: f64,
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
    /// The size that `pg_wal` grows to, in bytes, without what an archiver, slots and `wal_keep_size` hold.
    pub pg_wal_bytes: u64,
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
        recovery: &Recovery,
        notes: Vec<String>,
        aim: Option<&Aim>,
        compressors: &[Compressor],
    ) -> Document {
        let traced = &forecast.learned.settings;
        let seconds = forecast.survey.seconds(forecast.span.0, forecast.span.1);
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
                    forecast.self_check.bytes,
                    seconds,
                    recovery,
                    forecast.error_parts(prediction),
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
        document.notes.extend(caveats(forecast, &document, recovery));
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
        self_check_bytes: u64,
        seconds: Option<f64>,
        recovery: &Recovery,
        error_parts: ErrorParts,
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
        let longest_redo = longest_redo(settings, prediction, seconds);
        let hour = |seconds: f64| prediction.segments as f64 / seconds * 3600.0;
        Predicted {
            name: if name.is_empty() { "as traced".into() } else { name },
            changed,
            bytes: prediction.bytes,
            change: relative(prediction.bytes, self_check_bytes),
            error_bytes: error_parts.total() as u64,
            error_parts,
            shares: prediction.shares.map(|bytes| bytes as f64 / known.max(1) as f64),
            buckets: buckets(&prediction.buckets),
            images: prediction.images,
            compressed_images: prediction.compressed_images,
            compression_seconds: settings
                .wal_compression
                .map_or(0.0, |method| prediction.compressed_images as f64 * seconds_per_image(method)),
            checkpoints: causes(prediction),
            segments: prediction.segments,
            segments_per_hour: seconds.filter(|seconds| *seconds > 0.0).map(hour),
            longest_redo_bytes: longest_redo,
            recovery_seconds: recovery_seconds(recovery, prediction, longest_redo),
            pg_wal_bytes: (longest_redo + settings.segment_size.bytes()).max(settings.min_wal_size),
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

/// Seconds to replay the longest distance.
fn recovery_seconds(recovery: &Recovery, prediction: &Prediction, longest_redo: u64) -> f64 {
    let model = match recovery {
        Recovery::Rate(rate) => return longest_redo as f64 / (*rate).max(1) as f64,
        modelled => modelled.model(),
    };
    // The distance may be longer than any that the trace shows.
    if longest_redo > prediction.longest_redo {
        return model.seconds(&prediction.work.scaled(longest_redo as f64 / prediction.bytes.max(1) as f64));
    }
    model.seconds(&prediction.longest_redo_work)
}

/// Processor time for compressing a page, in seconds: measured on pages of pgbench (docs/whatif.md).
fn seconds_per_image(method: Method) -> f64 {
    match method {
        Method::Pglz => PGLZ_SECONDS,
        Method::Lz4 => LZ4_SECONDS,
        Method::Zstd => ZSTD_SECONDS,
    }
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
fn caveats(forecast: &Forecast, document: &Document, recovery: &Recovery) -> Vec<String> {
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
    notes.extend(page_caveats(&forecast.diagnostics));
    let mut note = |text: String| notes.push(text);
    for given in forecast.learned.traced.iter().filter(|row| row.contradicted) {
        note(format!(
            "{}={} contradicts the trace, which was perhaps written before the setting was changed ({}); without --names and \
             --traced the trace decides",
            given.name, given.value, given.why
        ));
    }
    let traced = &forecast.learned.settings;
    for change in forecast.survey.evidence.changes(forecast.span.0, forecast.span.1) {
        note(format!(
            "{} changes from {} to {} at {} within the trace: the forecast takes {} for all of it; --from and --to choose a part \
             with one value",
            change.name,
            change.before,
            change.after,
            change.lsn,
            traced.show(change.name).unwrap_or_else(|| change.before.clone())
        ));
    }
    for (settings, prediction) in &forecast.predictions {
        notes.extend(settings_caveats(forecast, settings, prediction));
    }
    let mut note = |text: String| notes.push(text);
    if forecast.survey.evidence.backups > 0 {
        note("a base backup ended within the trace: full_page_writes=off would still log images while one runs".into());
    }
    note(
        "the same work at the same pace is assumed; effects of the settings on its speed are not predicted"
            .into(),
    );
    note(match recovery {
        Recovery::Rate(bytes) => format!("recovery: {bytes} bytes per second, as given"),
        Recovery::Default => "recovery: default rates of records, images and pages, measured on another machine with all pages in \
             memory; reading pages from disk takes additional time (walden bench redo --calibrate measures the rates of this machine, \
             --redo-rate sets the speed of your server)"
            .into(),
        Recovery::Measured(rates) => format!(
            "recovery: rates measured on this machine on {} ({}, PostgreSQL {}), with all pages in memory; reading pages from disk \
             takes additional time",
            rates.measured_on, rates.machine, rates.postgresql
        ),
    });
    notes.dedup();
    notes
}

/// What is not known of pages and their images.
fn page_caveats(diagnostics: &Diagnostics) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
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
    notes
}

/// What the trace does not show that these settings depend on.
fn settings_caveats(forecast: &Forecast, settings: &Settings, prediction: &Prediction) -> Vec<String> {
    let traced = &forecast.learned.settings;
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    let (from, to) = (crate::level::Level::of(traced.wal_level), crate::level::Level::of(settings.wal_level));
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
            "no transaction ends in the trace, so it has no times: cannot predict checkpoint_timeout".into(),
        );
    }
    notes
}
