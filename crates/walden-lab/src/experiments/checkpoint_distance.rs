//! `checkpoint-distance`: the same transactions with checkpoints close together and far apart, and what the log of one of
//! the cases says of the others.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::definition::{Case, Ladder};
use super::prediction::settings_of;
use super::report::{Phase, RunResult, megabytes};
use super::stage::{self, Stage, Wishes, checkpoints, counted};
use super::{Lab, PredictedRun};
use crate::facts::{self, Setting};

/// What decides whether a longer distance is tried.
struct Outcome {
    bytes: u64,
    checkpoints: Option<f64>,
}

/// What a case's log says of the others.
struct Predicted {
    trace: String,
    of: Vec<(Case, PredictedRun)>,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let mut predicted = None;
    for case in lab.definition.cases.clone() {
        run_one(lab, &case, &mut predicted)?;
    }
    if let Some(ladder) = lab.definition.ladder.clone() {
        let mut before: Option<Outcome> = None;
        let mut end = None;
        for value in &ladder.values {
            let case = step(&ladder, value);
            let outcome = run_one(lab, &case, &mut predicted)?;
            let name = case.name;
            let gain = before
                .as_ref()
                .map(|before| 100.0 * (1.0 - outcome.bytes as f64 / before.bytes.max(1) as f64));
            if outcome.checkpoints == Some(0.0) {
                end = Some(format!("at {name} no checkpoint came any more: a longer distance gains nothing"));
            } else if let Some(gain) = gain.filter(|gain| *gain < ladder.least_gain_percent) {
                end = Some(format!("{name} gained {gain:.1} % over the step before: more is not to be had"));
            }
            if end.is_some() {
                break;
            }
            before = Some(outcome);
        }
        lab.notes.push(end.unwrap_or_else(|| "the longest distance still gained: more is to be had".into()));
    }
    if let Some(predicted) = predicted {
        tell(lab, &predicted);
    }
    lab.notes.push(
        "--keep keeps the WAL of the cases whose definition does not say `keep = false`: of `defaults`, which a prediction \
         can start from"
            .into(),
    );
    Ok(())
}

/// A step of the ladder as a case.
fn step(ladder: &Ladder, value: &str) -> Case {
    let mut settings = ladder.settings.clone();
    settings.insert(ladder.setting.clone(), value.to_owned());
    Case { name: format!("{}={value}", ladder.setting), settings, keep: Some(false), ..Case::default() }
}

/// What one log says of every case, those of the ladder that may never be run included.
fn predict(
    lab: &Lab<'_>,
    trace: &Case,
    traced: &BTreeMap<String, Setting>,
    wal: &Path,
    phase: &Phase,
) -> Result<Predicted> {
    lab.options.progress.phase(&format!("{}: predicting the others from its log", trace.name));
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
    let traced = settings_of(traced);
    let runs = lab.analysis.predict((wal, None), (phase.from, phase.to), &traced, &wanted)?;
    Ok(Predicted { trace: trace.name.clone(), of: cases.into_iter().zip(runs).collect() })
}

/// Puts predictions beside what was measured; those of cases that were not run are in the details.
fn tell(lab: &mut Lab<'_>, predicted: &Predicted) {
    let mut cells = Vec::new();
    for (case, run) in &predicted.of {
        lab.figures.predict(&case.name, "run", "wal_mb", megabytes(run.bytes));
        lab.figures.predict(&case.name, "run", "checkpoints", run.checkpoints.iter().sum::<u64>() as f64);
        cells.push(json!({
            "case": case.name,
            "settings": case.settings,
            "bytes": run.bytes,
            "checkpoints_for_volume": run.checkpoints[0],
            "checkpoints_for_time": run.checkpoints[1],
        }));
    }
    lab.details.insert("predicted".into(), json!({ "from": predicted.trace, "cases": cells }));
    lab.notes.push(format!(
        "predicted from the log of {}, for the same work at the same pace: cases that ran faster or slower met \
         checkpoint_timeout sooner or later",
        predicted.trace
    ));
}

fn run_one(lab: &mut Lab<'_>, case: &Case, predicted: &mut Option<Predicted>) -> Result<Outcome> {
    let mut settings = lab.definition.settings.clone();
    settings.extend(case.settings.clone());
    let is_trace = lab.definition.traces.first() == Some(&case.name);
    let wishes = Wishes {
        all_wal: is_trace,
        segment_megabytes: case.segment_megabytes,
        not_kept: case.keep == Some(false),
        ..Wishes::default()
    };
    let (scale, clients) = (lab.size("scale").to_string(), lab.size("clients"));
    let each = lab.size("transactions").div_ceil(clients).to_string();
    let clients = clients.to_string();
    let mut stage = Stage::start(lab, &case.name, &settings, wishes)?;
    lab.server = Some(stage.server()?);
    lab.options.progress.phase(&format!("{}: filling pgbench's tables", case.name));
    stage.pgbench(&["--initialize", "--quiet", "--scale", &scale])?;
    // Each case starts with a checkpoint just done.
    stage.client()?.batch_execute("CHECKPOINT")?;

    let before = stage.statistics()?;
    lab.options.progress.phase(&format!("{}: transactions", case.name));
    let (output, phase) = stage.phase("run", |stage| {
        stage.pgbench(&[
            "--no-vacuum",
            "--random-seed=42",
            "--jobs=2",
            "--client",
            &clients,
            "--transactions",
            &each,
        ])
    })?;
    let statistics = facts::pair(before, stage.statistics()?);
    let outcome = Outcome { bytes: stage::bytes(&phase), checkpoints: checkpoints(&statistics) };
    let figures = [
        ("wal_mb", Some(megabytes(outcome.bytes))),
        ("tps", stage::tps(&output)),
        ("checkpoints", outcome.checkpoints),
        ("images", counted(&statistics, "pg_stat_wal", "wal_fpi")),
    ];
    for (measure, value) in figures {
        lab.figures.add(&case.name, "run", measure, value);
    }
    let traced = if is_trace { facts::settings(&mut stage.client()?)? } else { BTreeMap::new() };
    let mut failed = None;
    let run: RunResult = stage.finish(&lab.definition.about, &lab.definition.name, &mut |wal, _| {
        if is_trace {
            match predict(lab, case, &traced, wal, &phase) {
                Ok(found) => *predicted = Some(found),
                Err(error) => failed = Some(format!("predictions from {}: {error:#}", case.name)),
            }
        }
        Ok(())
    })?;
    if is_trace && lab.options.dsn.is_some() {
        failed = Some("predictions: the log of a server that is there is out of reach".into());
    }
    lab.unavailable.extend(failed);
    lab.runs.push(run);
    Ok(outcome)
}
