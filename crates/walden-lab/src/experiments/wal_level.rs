//! `wal-level`: an import and transactions under each level.

use anyhow::Result;

use super::Lab;
use super::prediction;
use super::report::megabytes;
use super::stage::{self, Stage};

/// FILLFACTOR of pgbench's tables, as published.
const FILLFACTOR: &str = "--fillfactor=70";

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let scale = lab.size("scale").to_string();
    // pgbench's documentation: no more clients than the scale, because they would wait for each other's
    // branches.
    let clients = lab.size("scale").clamp(1, 10);
    let transactions = lab.size("transactions");
    let mut predicted = None;
    for case in lab.definition.cases.clone() {
        let all_wal = prediction::is_trace(lab, &case.name);
        let mut stage = Stage::start(lab, &case, all_wal)?;

        lab.options.progress.phase(&format!("{}: import", case.name));
        let (_, import) = stage.phase("import", |stage| {
            stage.pgbench(&["--initialize", "--quiet", FILLFACTOR, "--scale", &scale])
        })?;
        // Pages that the transactions change first after the checkpoint have an image under every level.
        stage.client()?.batch_execute("CHECKPOINT")?;

        lab.options.progress.phase(&format!("{}: transactions", case.name));
        let (output, run) = stage.phase("transactions", |stage| stage.transactions(clients, transactions))?;
        for phase in [&import, &run] {
            lab.figures.add(&case.name, &phase.name, "wal_mb", Some(megabytes(stage::bytes(phase))));
            lab.figures.add(&case.name, &phase.name, "seconds", Some(phase.seconds));
        }
        lab.figures.add(&case.name, "transactions", "tps", stage::tps(&output));
        let run = prediction::finish(lab, stage, &mut predicted)?;
        lab.runs.push(run);
    }
    prediction::add_predictions(lab, predicted);
    lab.notes.push(
        "pgbench of 9.3 loaded rows by a plain COPY; since 14 it freezes them, which makes its vacuum write less".into(),
    );
    Ok(())
}
