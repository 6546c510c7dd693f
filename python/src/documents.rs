//! Produces the JSON documents of `walden explain` and `walden whatif`.

use std::sync::Arc;

use pyo3::prelude::*;
use walden_explain::checkpoints::CheckpointSettings;
use walden_explain::document::{Context, Document};
use walden_explain::group::ViewSpec;
use walden_explain::{ExplainError, Request, Timeline, rewrites, savings};
use walden_format::lsn::Lsn;
use walden_source::inventory::{Inventory, Run};
use walden_whatif::document::{Document as Forecasts, Recovery};
use walden_whatif::settings::{Effect, Settings};
use walden_whatif::{PredictError, Question, learn, predict};

use crate::errors::{self, WaldenError};
use crate::interrupt::{self, Cancel};
use crate::log::Log;

/// Maximum number of transactions and groups per view if `top` is not given, as in `walden explain --format
/// json`.
const TOP: usize = 1000;

/// Returns the document of `walden explain`.
#[pyfunction]
#[pyo3(signature = (log, *, by, top, every))]
pub fn explain(
    py: Python<'_>,
    log: &Log,
    by: Vec<String>,
    top: Option<usize>,
    every: Option<i64>,
) -> PyResult<String> {
    let views = by
        .iter()
        .map(|view| view.parse::<ViewSpec>().map_err(|error| errors::wrong_value(format!("by: {error}"))))
        .collect::<PyResult<Vec<ViewSpec>>>()?;
    if views.iter().any(|view| view.is_by_writer() || view.has(walden_explain::group::Dimension::Pattern)) {
        return Err(errors::wrong_value(
            "by: user, application, client, statement and group are views of the program walden only",
        ));
    }
    if every.is_some_and(|every| every < 1) {
        return Err(errors::wrong_value("every: expected 1 second or more"));
    }
    let has_cycles =
        views.iter().any(|view| view.dimensions.contains(&walden_explain::group::Dimension::Checkpoint));
    let request = Request::new(log.threads)
        .views(views)
        .top(top.unwrap_or(TOP))
        .from(log.from)
        .to(log.to)
        .every(every)
        .sample_images(true);
    let (inventory, names) = (Arc::clone(&log.inventory), Arc::clone(&log.names));
    let document = interrupt::run(py, move |cancel| -> Result<serde_json::Result<String>, ExplainError> {
        let explanation = walden_explain::explain(&inventory.runs, &request, |_| cancel.check())?;
        let mut names = (*names).clone();
        names.set_version(explanation.version);
        rewrites::learn(&explanation, &mut names);
        let checkpoint_settings = CheckpointSettings::from_settings(&names.settings, explanation.version);
        let context = Context { names: &names, checkpoint_settings, top, pattern: None, writers: None };
        let mut document = Document::new(&explanation, &context);
        savings::estimate(&mut document, &explanation, checkpoint_settings);
        if !has_cycles {
            document.cycles.clear();
        }
        Ok(serde_json::to_string(&document))
    })?;
    let json = document.map_err(|error| errors::from_explain(&error))?;
    json.map_err(|error| errors::other(&error))
}

type Change = Vec<(String, String)>;

/// Returns the document of `walden whatif`.
#[pyfunction]
#[pyo3(signature = (log, *, changes, traced, all_images, memory))]
pub fn whatif(
    py: Python<'_>,
    log: &Log,
    changes: Vec<Change>,
    traced: Change,
    all_images: bool,
    memory: usize,
) -> PyResult<String> {
    let at = longest_run(&log.inventory)?;
    let run = &log.inventory.runs[at];
    let mut notes = checked(&changes, run)?;
    for (name, value) in &traced {
        let effect = Settings::default_of(run.version).set(name, value);
        effect.map_err(|error| errors::wrong_value(format!("traced: {error}")))?;
    }
    if log.inventory.runs.len() > 1 {
        notes.push(format!(
            "the source has {} runs of segments without gaps; the longest is predicted: {} segments from {} on timeline {}",
            log.inventory.runs.len(),
            run.segments.len(),
            run.start(),
            run.timeline
        ));
    }
    let server = learn::settings_from_server(&log.names.settings);
    let (inventory, range, threads) = (Arc::clone(&log.inventory), (log.from, log.to), log.threads);
    let forecast = interrupt::run(py, move |cancel| {
        let (from, to) = positions(&inventory, range, threads, cancel)?;
        let question = Question {
            base: None,
            from,
            to,
            traced,
            server,
            changes,
            objects: Vec::new(),
            all_images,
            threads,
            memory_bytes: memory,
        };
        let forecast = predict(&inventory.runs[at], &question, &|_| cancel.check());
        Ok(forecast.map(|forecast| {
            serde_json::to_string(&Forecasts::new(&forecast, &Recovery::Default, notes, None, &[]))
        }))
    })?;
    let forecast: Result<serde_json::Result<String>, PredictError> =
        forecast.map_err(|error: ExplainError| errors::from_explain(&error))?;
    let json = forecast.map_err(|error| errors::from_predict(&error))?;
    json.map_err(|error| errors::other(&error))
}

/// Returns the index of the longest run: a prediction follows one server on one timeline.
fn longest_run(inventory: &Inventory) -> PyResult<usize> {
    let runs = inventory.runs.iter().enumerate();
    let longest = runs.max_by_key(|(_, run)| run.segments.len());
    longest.map(|(index, _)| index).ok_or_else(|| {
        WaldenError::new_err("cannot predict: expected WAL segments, as in pg_wal or an archive, found none")
    })
}

/// Returns notes on settings that have no effect. Unknown settings are an error before anything is read.
fn checked(changes: &[Change], run: &Run) -> PyResult<Vec<String>> {
    let mut notes = Vec::new();
    for (name, value) in changes.iter().flatten() {
        let mut settings = Settings::default_of(run.version);
        let effect = settings.set(name, value);
        if let Effect::Nothing(why) =
            effect.map_err(|error| errors::wrong_value(format!("settings: {error}")))?
        {
            let note = format!("{name} changes nothing: {why}");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    Ok(notes)
}

type Bounds = (Option<walden_explain::Bound>, Option<walden_explain::Bound>);

fn positions(
    inventory: &Inventory,
    (from, to): Bounds,
    threads: usize,
    cancel: &Cancel,
) -> Result<(Option<Lsn>, Option<Lsn>), ExplainError> {
    let is_time = |bound| matches!(bound, Some(walden_explain::Bound::Time(_)));
    let timeline = match is_time(from) || is_time(to) {
        true => Timeline::read(&inventory.runs, threads, |_| cancel.check()),
        false => Timeline::default(),
    };
    timeline.range(from, to)
}
