//! `whatif-validation`: the same work under each set of settings, compared with predictions from the WAL of
//! one of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::definition::{Case, Ladder};
use super::report::{Kept, Phase, RunResult, megabytes};
use super::stage::Stage;
use super::{Lab, PredictedRun};
use crate::facts::{Facts, Setting};
use crate::median;
use crate::run::{self, RunOptions, earlier_run, run_workload};
use crate::workloads::{self, Workload};

/// The measured result of a case.
struct Outcome {
    case: Case,
    facts: Facts,
    /// Checkpoints because of volume, and because of time.
    checkpoints: [u64; 2],
    /// The folders of its WAL and of the base backup from which the WAL starts.
    log: Option<[std::path::PathBuf; 2]>,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let definition = lab.definition;
    let name = definition.workload.as_deref().unwrap_or_default();
    let workload = workloads::by_name(name)
        .with_context(|| format!("cannot run workload {name}: no workload has that name"))?;
    let folder = tempfile::tempdir().context("cannot create a folder for the WAL of traces")?;
    let mut outcomes = Vec::new();
    for case in &definition.cases {
        let is_trace = definition.traces.contains(&case.name);
        let output = match &lab.options.keep {
            Some(keep) if case.keep != Some(false) => keep.join(&case.name),
            _ => folder.path().join(&case.name),
        };
        lab.options.progress.phase(&format!("{}: {}", definition.name, case.name));
        let run = match lab.options.reuse {
            true => earlier_run_of(&output, workload),
            false => run_workload(options_of(lab, case, workload, &output), &mut |_| Ok(())),
        };
        let result = match run {
            Ok(result) => result,
            Err(_) if lab.options.reuse && !output.join("facts.json").exists() => {
                lab.unavailable.push(format!("{}: this run was not kept", case.name));
                continue;
            }
            // A server built without a compression method rejects its name.
            Err(error) if format!("{error:#}").contains("Available values") => {
                lab.unavailable.push(format!("{}: this server was built without it", case.name));
                continue;
            }
            Err(error) => return Err(error).with_context(|| format!("cannot run the case {}", case.name)),
        };
        let kept = output.starts_with(folder.path()).then_some(()).is_none();
        // Counted from WAL: the server's statistics also count skipped checkpoints.
        let range = (result.facts.workload_lsn, result.facts.end_lsn);
        let checkpoints =
            lab.analysis.checkpoints(&result.wal_dir, range, &settings_of(&result.facts.settings))?;
        let log = (is_trace || kept).then(|| [result.wal_dir.clone(), output.join("base")]);
        if log.is_none() {
            fs::remove_dir_all(&output).with_context(|| format!("cannot remove {}", output.display()))?;
        }
        let facts = result.facts;
        lab.server.get_or_insert(facts.server.clone());
        lab.runs.push(RunResult {
            case: case.name.clone(),
            settings: facts.settings.clone(),
            phases: vec![Phase {
                name: "run".into(),
                from: facts.workload_lsn,
                to: facts.end_lsn,
                seconds: facts.seconds,
            }],
            kept: kept.then(|| Kept { folder: output.clone(), wal: result.wal_dir.clone() }),
        });
        outcomes.push(Outcome { case: case.clone(), facts, checkpoints, log });
    }
    compare(lab, &outcomes)
}

/// Returns a kept run of this workload.
fn earlier_run_of(output: &Path, workload: &Workload) -> Result<run::RunResult> {
    let run = earlier_run(output)?;
    let found = &run.facts.workload;
    ensure!(
        found == workload.name,
        "cannot use {}: expected a run of {}, found one of {found}",
        output.display(),
        workload.name
    );
    Ok(run)
}

/// Returns the options for running a case.
fn options_of(lab: &Lab<'_>, case: &Case, workload: &'static Workload, output: &Path) -> RunOptions {
    let definition = lab.definition;
    let settings = definition
        .settings
        .iter()
        .chain(&case.settings)
        .chain(lab.options.settings.iter().map(|(name, value)| (name, value)));
    RunOptions {
        size: Some(lab.size("transactions")),
        installation: lab.options.installation.clone(),
        settings: settings.map(|(name, value)| (name.clone(), value.clone())).collect(),
        wal_segsize_mb: case.segment_megabytes,
        checksums: Some(false),
        // WAL without images does not contain its pages; in production there is a base backup.
        keep_data: true,
        force: lab.options.force,
        ..RunOptions::new(workload, output)
    }
}

/// Predicts each run from each trace, and compares.
fn compare(lab: &mut Lab<'_>, outcomes: &[Outcome]) -> Result<()> {
    let definition = lab.definition;
    let mut worst: BTreeMap<String, f64> = BTreeMap::new();
    let mut calibration = Calibration::default();
    for trace in &definition.traces {
        // A trace is a case; this one could not be run.
        let Some(from) = outcomes.iter().find(|outcome| outcome.case.name == *trace) else { continue };
        lab.options.progress.phase(&format!("predicting from {trace}"));
        let predictions = predict(lab, from, outcomes)?;
        for (outcome, predicted) in outcomes.iter().zip(&predictions) {
            let bytes = outcome.facts.workload_bytes;
            let error = predicted.bytes as f64 / bytes.max(1) as f64 - 1.0;
            let worst = worst.entry(trace.clone()).or_default();
            *worst = worst.max(error.abs());
            calibration.add(trace, &outcome.case.name, bytes, predicted);
            add(lab, trace, outcome, predicted, error);
        }
        let cells: Vec<Value> = outcomes.iter().zip(&predictions).map(cell).collect();
        lab.details.insert(format!("from {trace}"), json!(cells));
    }
    calibration.report(lab);
    for (trace, worst) in worst {
        let phase = format!("from {trace}");
        lab.figures.add("all", &phase, "worst_error_percent", Some(100.0 * worst));
    }
    Ok(())
}

fn predict(lab: &Lab<'_>, trace: &Outcome, outcomes: &[Outcome]) -> Result<Vec<PredictedRun>> {
    let [wal, base] = trace.log.as_ref().context("cannot predict: expected the WAL of the trace")?;
    let facts = &trace.facts;
    let cases: Vec<_> = outcomes.iter().map(|outcome| settings_of(&outcome.facts.settings)).collect();
    lab.analysis.predict(
        (wal, Some(base)),
        (facts.workload_lsn, facts.end_lsn),
        &settings_of(&facts.settings),
        &cases,
    )
}

/// Whether the stated errors of predictions hold, over all cells.
#[derive(Default)]
struct Calibration {
    cells: Vec<CalibrationCell>,
}

/// A prediction of one case from the WAL of another, compared with its error bar.
#[derive(Serialize)]
struct CalibrationCell {
    trace: String,
    case: String,
    /// The deviation of the prediction from the measured volume, in per cent of the latter.
    error_percent: f64,
    /// The error bar in either direction.
    width_percent: f64,
    /// The ratio of the two: at most 1 within the bar.
    error_to_width: f64,
}

impl Calibration {
    fn add(&mut self, trace: &str, case: &str, measured: u64, predicted: &PredictedRun) {
        let percent = |bytes: u64| 100.0 * bytes as f64 / measured.max(1) as f64;
        let (error, width) = (predicted.bytes.abs_diff(measured), predicted.error_bytes);
        self.cells.push(CalibrationCell {
            trace: trace.to_owned(),
            case: case.to_owned(),
            error_percent: percent(error),
            width_percent: percent(width),
            error_to_width: error as f64 / width.max(1) as f64,
        });
    }

    fn report(mut self, lab: &mut Lab<'_>) {
        if self.cells.is_empty() {
            return;
        }
        self.cells.sort_by(|one, other| one.error_to_width.total_cmp(&other.error_to_width));
        let (cells, within) =
            (self.cells.len(), self.cells.iter().filter(|cell| cell.error_to_width <= 1.0).count());
        let median = |of: fn(&CalibrationCell) -> f64| median(self.cells.iter().map(of));
        let (error, width) = (median(|cell| cell.error_percent), median(|cell| cell.width_percent));
        let within_percent = 100.0 * within as f64 / cells as f64;
        // The width that would have covered 95 % of the cells, in per cent of the actual bars: above 100, the
        // bars are too narrow.
        let needed = 100.0 * self.cells[(95 * cells).div_ceil(100) - 1].error_to_width;
        for (measure, value) in [
            ("cells", cells as f64),
            ("within", within as f64),
            ("cells_within_percent", within_percent),
            ("median_error_percent", error),
            ("median_width_percent", width),
            ("width_needed_percent", needed),
        ] {
            lab.figures.add("all", "error bars", measure, Some(value));
        }
        lab.notes.push(format!(
            "the measured volume lies within the printed error in {within} of {cells} cells; the median error is {error:.3} %, the \
             median of the errors printed {width:.3} %; with {needed:.0} % of their width they would hold in 95 % of the cells"
        ));
        for cell in self.cells[within..].iter().rev() {
            lab.notes.push(format!(
                "outside: {}, predicted from {}: wrong by {:.3} %, printed ±{:.3} %",
                cell.case, cell.trace, cell.error_percent, cell.width_percent
            ));
        }
        lab.details.insert(
            "calibration".into(),
            json!({
                "cells": cells,
                "within": within,
                "median_error_percent": error,
                "median_width_percent": width,
                "width_needed_percent": needed,
                "sorted": self.cells,
            }),
        );
    }
}

/// Predictions of all other cases from the WAL of one.
pub(super) struct Others {
    trace: String,
    /// One prediction for each phase of each case.
    of: Vec<(Case, String, PredictedRun)>,
}

/// Returns whether the WAL of the other cases is predicted from the WAL of `case`.
pub(super) fn is_trace(lab: &Lab<'_>, case: &str) -> bool {
    lab.definition.traces.first().is_some_and(|trace| trace == case)
}

/// Converts a step of the ladder to a case.
pub(super) fn step(ladder: &Ladder, value: &str) -> Case {
    let mut settings = ladder.settings.clone();
    settings.insert(ladder.setting.clone(), value.to_owned());
    Case { name: format!("{}={value}", ladder.setting), settings, keep: Some(false), ..Case::default() }
}

/// Finishes a case. If it is the trace, predicts all other cases, including steps of the ladder that may not
/// be run.
pub(super) fn finish(lab: &mut Lab<'_>, stage: Stage, others: &mut Option<Others>) -> Result<RunResult> {
    let mut failed = None;
    let run = stage.finish(&lab.definition.about, &lab.definition.name, &mut |wal, run| {
        if is_trace(lab, &run.case) {
            match Others::predict(lab, run, wal) {
                Ok(found) => *others = Some(found),
                Err(error) => failed = Some(format!("predictions from {}: {error:#}", run.case)),
            }
        }
        Ok(())
    })?;
    if is_trace(lab, &run.case) && lab.options.dsn.is_some() {
        failed = Some("cannot predict: the WAL of an existing server is not accessible".into());
    }
    lab.unavailable.extend(failed);
    Ok(run)
}

impl Others {
    fn predict(lab: &Lab<'_>, trace: &RunResult, wal: &Path) -> Result<Others> {
        lab.options.progress.phase(&format!("{}: predicting the others from its WAL", trace.case));
        let definition = lab.definition;
        let steps =
            definition.ladder.iter().flat_map(|ladder| ladder.values.iter().map(|value| step(ladder, value)));
        let cases: Vec<Case> = definition.cases.iter().cloned().chain(steps).collect();
        let settings = |case: &Case| -> BTreeMap<String, String> {
            let mut all = definition.settings.clone();
            all.extend(case.settings.clone());
            all.extend(lab.options.settings.iter().cloned());
            if let Some(megabytes) = case.segment_megabytes {
                all.insert("wal_segment_size".into(), format!("{megabytes}MB"));
            }
            all
        };
        let wanted: Vec<_> = cases.iter().map(settings).collect();
        let traced = settings_of(&trace.settings);
        let mut of = Vec::new();
        for phase in &trace.phases {
            let runs = lab.analysis.predict((wal, None), (phase.from, phase.to), &traced, &wanted)?;
            of.extend(cases.iter().zip(runs).map(|(case, run)| (case.clone(), phase.name.clone(), run)));
        }
        Ok(Others { trace: trace.case.clone(), of })
    }
}

/// Adds predictions to the measured figures; predictions of cases that were not run are added to the details.
pub(super) fn add_predictions(lab: &mut Lab<'_>, others: Option<Others>) {
    let Some(others) = others else { return };
    let mut cells = Vec::new();
    for (case, phase, run) in &others.of {
        lab.figures.predict(&case.name, phase, "wal_mb", megabytes(run.bytes));
        lab.figures.predict(&case.name, phase, "checkpoints", run.checkpoints.iter().sum::<u64>() as f64);
        cells.push(json!({
            "case": case.name,
            "phase": phase,
            "settings": case.settings,
            "bytes": run.bytes,
            "checkpoints_for_volume": run.checkpoints[0],
            "checkpoints_for_time": run.checkpoints[1],
        }));
    }
    lab.details.insert("predicted".into(), json!({ "from": others.trace, "cases": cells }));
    lab.notes.push(format!(
        "predicted from the WAL of {}, for the same work at the same pace: cases that ran faster or slower met \
         checkpoint_timeout earlier or later",
        others.trace
    ));
}

/// Returns the server's settings with their units, under which the WAL was written.
pub(crate) fn settings_of(settings: &BTreeMap<String, Setting>) -> BTreeMap<String, String> {
    let one = |(name, setting): (&String, &Setting)| {
        let unit = setting.unit.as_deref().map(|unit| format!(" {unit}")).unwrap_or_default();
        (name.clone(), format!("{}{unit}", setting.value))
    };
    settings.iter().map(one).collect()
}

fn add(lab: &mut Lab<'_>, trace: &str, outcome: &Outcome, predicted: &PredictedRun, error: f64) {
    let phase = format!("from {trace}");
    let name = &outcome.case.name;
    let figures = [
        ("wal_mb", Some(megabytes(outcome.facts.workload_bytes)), Some(megabytes(predicted.bytes))),
        (
            "checkpoints_for_volume",
            Some(outcome.checkpoints[0] as f64),
            Some(predicted.checkpoints[0] as f64),
        ),
        ("checkpoints_for_time", Some(outcome.checkpoints[1] as f64), Some(predicted.checkpoints[1] as f64)),
    ];
    for (measure, measured, predicted) in figures {
        lab.figures.add_all(name, &phase, measure, measured, None, predicted);
    }
    lab.figures.add(name, &phase, "error_percent", Some(100.0 * error));
}

/// A row of the JSON's table.
fn cell((outcome, predicted): (&Outcome, &PredictedRun)) -> Value {
    let measured = outcome.facts.workload_bytes;
    json!({
        "case": outcome.case.name,
        "measured_bytes": measured,
        "predicted_bytes": predicted.bytes,
        "error": predicted.bytes as f64 / measured.max(1) as f64 - 1.0,
        "error_bar": predicted.error_bytes as f64 / measured.max(1) as f64,
        "measured_checkpoints_for_volume": outcome.checkpoints[0],
        "predicted_checkpoints_for_volume": predicted.checkpoints[0],
        "measured_checkpoints_for_time": outcome.checkpoints[1],
        "predicted_checkpoints_for_time": predicted.checkpoints[1],
    })
}
