//! `whatif-validation`: the same work under every set of settings, and what a prediction from one log says of the others.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::definition::Case;
use super::report::{Kept, Phase, RunResult, megabytes};
use super::{Lab, PredictedRun};
use crate::facts::{Facts, Setting};
use crate::run::{RunOptions, run_workload};
use crate::workloads;

/// A case that was run.
struct Outcome {
    case: Case,
    facts: Facts,
    /// For volume, and for time.
    checkpoints: [u64; 2],
    /// Its WAL and the data directory that this goes on from.
    log: Option<[std::path::PathBuf; 2]>,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let definition = lab.definition;
    let name = definition.workload.as_deref().unwrap_or_default();
    let workload = workloads::by_name(name).with_context(|| format!("there is no workload {name}"))?;
    let folder = tempfile::tempdir().context("cannot make a folder for the WAL of traces")?;
    let mut outcomes = Vec::new();
    for case in &definition.cases {
        let is_trace = definition.traces.contains(&case.name);
        let output = match &lab.options.keep {
            Some(keep) if case.keep != Some(false) => keep.join(&case.name),
            _ => folder.path().join(&case.name),
        };
        lab.options.progress.phase(&format!("{}: {}", definition.name, case.name));
        let settings = definition
            .settings
            .iter()
            .chain(&case.settings)
            .chain(lab.options.settings.iter().map(|(name, value)| (name, value)));
        let options = RunOptions {
            size: Some(lab.size("transactions")),
            installation: lab.options.installation.clone(),
            settings: settings.map(|(name, value)| (name.clone(), value.clone())).collect(),
            wal_segsize_mb: case.segment_megabytes,
            checksums: Some(false),
            // A log without images tells little of its pages; in production there is a base backup.
            keep_data: true,
            force: lab.options.force,
            ..RunOptions::new(workload, &output)
        };
        let result = run_workload(options, &mut |_| Ok(()))
            .with_context(|| format!("the case {} failed", case.name))?;
        let kept = output.starts_with(folder.path()).then_some(()).is_none();
        // As the log has them: the server's statistics count also what it found to be for nothing.
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
    let mut worst: BTreeMap<String, f64> = BTreeMap::new();
    for trace in &definition.traces {
        let Some(from) = outcomes.iter().find(|outcome| outcome.case.name == *trace) else {
            bail!("there is no case {trace} to take a trace from");
        };
        lab.options.progress.phase(&format!("predicting from {trace}"));
        let predictions = predict(lab, from, &outcomes)?;
        for (outcome, predicted) in outcomes.iter().zip(&predictions) {
            let bytes = outcome.facts.workload_bytes;
            let error = predicted.bytes as f64 / bytes.max(1) as f64 - 1.0;
            let worst = worst.entry(trace.clone()).or_default();
            *worst = worst.max(error.abs());
            add(lab, trace, outcome, predicted, error);
        }
        let cells: Vec<Value> = outcomes.iter().zip(&predictions).map(cell).collect();
        lab.details.insert(format!("from {trace}"), json!(cells));
    }
    for (trace, worst) in worst {
        let phase = format!("from {trace}");
        lab.figures.add("all", &phase, "worst_error_percent", Some(100.0 * worst));
    }
    Ok(())
}

fn predict(lab: &Lab<'_>, trace: &Outcome, outcomes: &[Outcome]) -> Result<Vec<PredictedRun>> {
    let [wal, base] = trace.log.as_ref().context("the trace's WAL is not there")?;
    let facts = &trace.facts;
    let cases: Vec<_> = outcomes.iter().map(|outcome| settings_of(&outcome.facts.settings)).collect();
    lab.analysis.predict(
        (wal, Some(base)),
        (facts.workload_lsn, facts.end_lsn),
        &settings_of(&facts.settings),
        &cases,
    )
}

/// As the server had them, with their units, whatever the definition says.
pub(super) fn settings_of(settings: &BTreeMap<String, Setting>) -> BTreeMap<String, String> {
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

/// A row of the table of JSON.
fn cell((outcome, predicted): (&Outcome, &PredictedRun)) -> Value {
    let measured = outcome.facts.workload_bytes;
    json!({
        "case": outcome.case.name,
        "measured_bytes": measured,
        "predicted_bytes": predicted.bytes,
        "error": predicted.bytes as f64 / measured.max(1) as f64 - 1.0,
        "measured_checkpoints_for_volume": outcome.checkpoints[0],
        "predicted_checkpoints_for_volume": predicted.checkpoints[0],
        "measured_checkpoints_for_time": outcome.checkpoints[1],
        "predicted_checkpoints_for_time": predicted.checkpoints[1],
    })
}
