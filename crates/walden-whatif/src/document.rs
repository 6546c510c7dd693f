//! A forecast as a document: the JSON output, and the source of tables and pages.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;
use walden_source::counted;

use crate::advise::{self, Advice, Aim};
use crate::archive::{ArchiveSize, Compressor};
use crate::learn::{Origin, Traced};
use crate::objects;
use crate::outcome::Prediction;
use crate::predict::Forecast;
pub use crate::predicted::{BucketBytes, Causes, Predicted, Recovery};
use crate::predicted::{buckets, causes};
use crate::settings::Settings;
use crate::trace::Diagnostics;

/// A forecast in full.
///
/// Sizes are in bytes. LSNs are text, as `16/B374D848`. `None` is `null`. The fields are described in
/// `docs/json.md`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// Bytes of the trace, as a distance of LSNs.
    pub trace_bytes: u64,
    /// Predicted bytes under the first set of settings; with advice, under the last set.
    pub predicted_bytes: u64,
    /// Relative error of the prediction for the trace's own settings, as a fraction: 0.01 is 1 % too much.
    pub self_check_error: f64,
    /// Predicted number of checkpoints under the first set of settings; with advice, under the last set.
    pub checkpoints: u64,
    /// The trace that was read.
    pub trace: Trace,
    /// The settings that the trace was taken under.
    pub traced_settings: Vec<Traced>,
    /// The prediction for the trace's own settings, compared with the trace.
    pub self_check: SelfCheck,
    /// One per set of settings; with advice, one per step.
    pub predictions: Vec<Predicted>,
    /// Settings that reach the aim; absent without an aim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Assumptions and limitations, as text.
    pub notes: Vec<String>,
}

/// The trace, as it was read.
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    /// PostgreSQL major version that wrote it.
    pub version: String,
    /// LSN of its start.
    pub from: String,
    /// LSN of its end.
    pub to: String,
    /// Seconds between the first and the last transaction end of the trace, including fractions; `None` if no
    /// transaction ends in the trace.
    pub seconds: Option<f64>,
    /// Number of records.
    pub records: u64,
    /// Number of full-page images after checkpoints.
    pub images: u64,
    /// Number of checkpoints that started in the trace, by cause.
    pub checkpoints: Causes,
    /// Bytes by bucket, in the order of reports.
    pub buckets: Vec<BucketBytes>,
    /// Sizes of an archive of the trace, by compressor; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archive: Vec<ArchiveSize>,
}

/// The prediction for the trace's own settings.
#[derive(Clone, Debug, Serialize)]
pub struct SelfCheck {
    /// Bytes predicted.
    pub predicted_bytes: u64,
    /// Relative error of the self-check, as a fraction: the value of [`Document::self_check_error`].
    pub error: f64,
    /// Number of checkpoints predicted, by cause.
    pub checkpoints: Causes,
    /// Counts of the full-page image rule, applied to the trace itself, and of unknown pages; its fields
    /// belong to the object itself.
    #[serde(flatten)]
    pub diagnostics: Diagnostics,
}

impl Document {
    /// Builds the document of a forecast. `notes` precede its own notes. With an aim, the forecast must be
    /// one of [`advise::candidates`].
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
            .enumerate()
            .map(|(index, (settings, prediction))| {
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
                let error = forecast.error_bytes(prediction) / prediction.bytes.max(1) as f64;
                let size = |one: &Compressor| one.predicted_size(index, prediction, error);
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
                archive: compressors.iter().map(|one| one.trace_size(&forecast.actual)).collect(),
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

/// Returns the assumptions and limitations that matter for this forecast.
fn caveats(forecast: &Forecast, document: &Document, recovery: &Recovery) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    if document.trace.checkpoints.total == 0 {
        note(
            "no checkpoint began within the trace: it does not show what triggers them, and every page that it changes counts as \
             changed for the first time; a trace over several checkpoints is more reliable"
                .into(),
        );
    } else if let Some(few) =
        document.predictions.iter().find(|one| one.checkpoints.total < 2 && one.images > 0)
    {
        note(format!(
            "under {} the trace covers {} between checkpoints: each page has one image per cycle, so a longer trace would \
             show slightly less WAL per hour than this one",
            few.name,
            counted(few.checkpoints.total, "full cycle")
        ));
    }
    notes.extend(page_caveats(&forecast.diagnostics));
    let mut note = |text: String| notes.push(text);
    for given in forecast.learned.traced.iter().filter(|row| row.contradicted) {
        note(format!(
            "{}={} contradicts the trace ({}); without --traced the trace decides",
            given.name, given.value, given.why
        ));
    }
    for contradiction in forecast.learned.traced.iter().filter_map(Traced::contradiction) {
        note(contradiction.to_string());
    }
    if document.predictions.iter().any(|one| one.error_parts.assumptions > 0.01 * one.bytes as f64) {
        for row in &forecast.learned.traced {
            let Some([least, most]) = &row.range else { continue };
            note(format!(
                "the trace does not show {}: {least} to {most} are possible, {} is assumed, and the error covers all of them; --names or \
                 --traced {}=... narrows it",
                row.name, row.value, row.name
            ));
        }
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
    let (from, to) = forecast.span;
    let switches = forecast.survey.switches.iter().filter(|lsn| (from..to).contains(*lsn)).count();
    if switches > 0 && traced.archive_timeout == 0 {
        let is_given = |row: &Traced| {
            row.name == "archive_timeout" && matches!(row.from, Origin::Given | Origin::Server)
        };
        note(match forecast.learned.traced.iter().any(is_given) {
            true => format!(
                "{} switched without being full: on request (pg_switch_wal), as archive_timeout is given as off, which stays",
                counted(switches as u64, "segment")
            ),
            false => format!(
                "{} switched without being full: on request (pg_switch_wal), it is assumed, which stays; if archive_timeout did it, \
                 --traced archive_timeout=... says so",
                counted(switches as u64, "segment")
            ),
        });
    }
    for (settings, prediction) in &forecast.predictions {
        for caveat in settings_caveats(forecast, settings, prediction) {
            // Settings of a sweep share caveats.
            if !notes.contains(&caveat) {
                notes.push(caveat);
            }
        }
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

/// Returns the limitations of the knowledge about pages and their images.
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
            "the trace does not show whether {} had been changed since the checkpoint before its start: it is assumed that none had",
            counted(diagnostics.first_touches_unknown, "page")
        ));
    }
    let wrong = diagnostics.missing_images + diagnostics.unexpected_images;
    if wrong > 0 {
        note(format!(
            "the rule for full-page images, applied to the trace itself, was wrong in {wrong} of {} cases",
            diagnostics.decisions
        ));
    }
    notes
}

/// Returns the information missing from the trace that these settings depend on.
fn settings_caveats(forecast: &Forecast, settings: &Settings, prediction: &Prediction) -> Vec<String> {
    let traced = &forecast.learned.settings;
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    let (from, to) = (
        crate::level::Level::from_setting(traced.wal_level),
        crate::level::Level::from_setting(settings.wal_level),
    );
    if from < to {
        note(format!(
            "wal_level={} from a trace under {}: data that the WAL does not contain is estimated ({})",
            settings.wal_level,
            traced.wal_level,
            if from == crate::level::Level::Minimal {
                "bulk loads and index builds that minimal does not log are missing"
            } else {
                "keys of deleted rows, catalog changes; whole rows of tables with REPLICA IDENTITY FULL only where the trace has \
                 their row in pg_class"
            }
        ));
    }
    let needed = settings.needed_for_minimal();
    if settings.wal_level != traced.wal_level && !needed.is_empty() {
        note(format!(
            "a server starts with wal_level=minimal only if it has {} as well",
            needed.join(" and ")
        ));
    }
    match (traced.log_hints(), settings.log_hints()) {
        (false, true) => note(format!(
            "hint bits would be logged: up to {} bytes more, as the WAL does not show which pages are read",
            prediction.hints_at_most
        )),
        (true, true) if prediction.hints_at_most > prediction.bytes / 200 => note(format!(
            "with other checkpoints than the trace's, up to {} bytes more are images for hint bits, which the WAL does not show",
            prediction.hints_at_most
        )),
        (true, true) if settings.wal_log_hints != traced.wal_log_hints && settings.data_checksums => {
            note("wal_log_hints changes nothing: data checksums log hint bits as well".into());
        }
        (true, false)
            if forecast
                .learned
                .traced
                .iter()
                .any(|one| one.name == "data_checksums" && one.from == Origin::Assumed) =>
        {
            note(
                "data checksums are assumed to be off; if they are on (--traced data_checksums=on), hint bits are logged \
                 without wal_log_hints as well"
                    .into(),
            );
        }
        _ => {}
    }
    if settings.checkpoint_timeout != traced.checkpoint_timeout && forecast.survey.times.len() < 2 {
        note(
            "no transaction ends in the trace, so it has no times: cannot predict checkpoint_timeout".into(),
        );
    }
    notes
}
