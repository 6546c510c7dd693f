//! `checkpoint-distance`: the same transactions with checkpoints close together and far apart, and
//! predictions of all cases from the WAL of one.

use anyhow::Result;

use super::Lab;
use super::definition::Case;
use super::prediction::{self, Others};
use super::report::{RunResult, megabytes};
use super::stage::{self, Stage, checkpoints, counted};
use crate::facts;

/// The figures of a case that decide whether a longer distance is tried.
struct Outcome {
    bytes: u64,
    checkpoints: Option<f64>,
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
            let case = prediction::step(&ladder, value);
            let outcome = run_one(lab, &case, &mut predicted)?;
            let name = case.name;
            let gain = before
                .as_ref()
                .map(|before| 100.0 * (1.0 - outcome.bytes as f64 / before.bytes.max(1) as f64));
            if outcome.checkpoints == Some(0.0) {
                end = Some(format!(
                    "at {name} no checkpoint came during the run: a longer distance gains nothing"
                ));
            } else if let Some(gain) = gain.filter(|gain| *gain < ladder.least_gain_percent) {
                end = Some(format!(
                    "{name} gained {gain:.1} % over the step before: larger values gain no more"
                ));
            }
            if end.is_some() {
                break;
            }
            before = Some(outcome);
        }
        lab.notes.push(
            end.unwrap_or_else(|| "the longest distance still saved WAL: a longer one may save more".into()),
        );
    }
    prediction::add_predictions(lab, predicted);
    lab.notes.push(
        "--keep keeps the WAL of the cases whose definition does not say `keep = false`: of `defaults`, which a prediction \
         can start from"
            .into(),
    );
    Ok(())
}

fn run_one(lab: &mut Lab<'_>, case: &Case, predicted: &mut Option<Others>) -> Result<Outcome> {
    let scale = lab.size("scale").to_string();
    let (clients, transactions) = (lab.size("clients"), lab.size("transactions"));
    let all_wal = prediction::is_trace(lab, &case.name);
    let mut stage = Stage::start(lab, case, all_wal)?;
    lab.options.progress.phase(&format!("{}: filling pgbench's tables", case.name));
    stage.pgbench(&["--initialize", "--quiet", "--scale", &scale])?;
    // Each case starts immediately after a checkpoint.
    stage.client()?.batch_execute("CHECKPOINT")?;

    let before = stage.statistics()?;
    lab.options.progress.phase(&format!("{}: transactions", case.name));
    let (output, phase) = stage.phase("run", |stage| stage.transactions(clients, transactions))?;
    let statistics = facts::pair_statistics(before, stage.statistics()?);
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
    let run: RunResult = prediction::finish(lab, stage, predicted)?;
    lab.runs.push(run);
    Ok(outcome)
}
