//! `walden lab run random-predictions`: compares predictions with the WAL of servers that seeds select.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use walden_lab::random_predictions::{self, Cell, Options};
use walden_lab::{Progress, median};
use walden_report::table::{Row, table};
use walden_report::units;

use super::experiment::Reader;
use super::random_culprits::{SeedArgs, Shared, newest_of_each_version};
use crate::FOUND;
use crate::terminal;

/// Its name as an argument of `walden lab run`.
pub const NAME: &str = "random-predictions";

/// The results of all seeds.
#[derive(Debug, Serialize)]
struct Report {
    seeds: usize,
    /// Seeds whose measured volume is within the printed error.
    within: usize,
    median_bar_percent: f64,
    median_error_percent: f64,
    cells: Vec<Cell>,
}

/// Runs seeds and prints the results. The exit status is 0 if all volumes are within the printed errors.
pub fn run(arguments: &SeedArgs, shared: Shared) -> Result<ExitCode> {
    let options = Options {
        seeds: arguments.seeds(),
        installations: shared.installation.map_or_else(newest_of_each_version, |one| vec![one]),
        output: shared.output,
        force: shared.force,
        keeps_wal: arguments.keep_wal,
        jobs: arguments.jobs(),
        progress: Progress::new("starting PostgreSQL"),
    };
    let cells = random_predictions::run(&options, &Reader)?;
    let report = Report {
        seeds: cells.len(),
        within: cells.iter().filter(|cell| cell.is_within).count(),
        median_bar_percent: median(cells.iter().map(Cell::bar_percent)),
        median_error_percent: median(cells.iter().map(|cell| cell.error_percent().abs())),
        cells,
    };
    let is_right = report.within == report.seeds;
    terminal::show(shared.format, || &report, || report.text())?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

impl Report {
    fn text(&self) -> String {
        let rows: Vec<Row> = self.cells.iter().map(row).collect();
        let columns =
            ["PostgreSQL", "settings", "traced", "predicted", "measured", "error", "printed", "checkpoints"];
        let mut text = table(terminal::look(), "Seeds", ("seed, workload", &columns), &rows);
        let share = 100.0 * self.within as f64 / self.seeds.max(1) as f64;
        let _ = writeln!(
            text,
            "\n  {} of {} volumes within the printed error ({share:.1} %)",
            self.within, self.seeds
        );
        let _ = writeln!(
            text,
            "  median error {:.2} %, median of the printed errors {:.2} %",
            self.median_error_percent, self.median_bar_percent
        );
        text
    }
}

fn row(cell: &Cell) -> Row {
    let plan = &cell.plan;
    let change = |(name, value): (&String, &String)| {
        format!("{name}={value} (was {})", plan.traced.get(name).map_or("?", String::as_str))
    };
    let mark = if cell.is_within { "" } else { " OUTSIDE" };
    let [measured, predicted] = cell.checkpoints.map(|[volume, time]| format!("{volume}+{time}"));
    Row {
        depth: 0,
        label: format!("{:>4} {}", plan.seed, plan.workload),
        cells: vec![
            plan.postgresql.clone(),
            plan.changed.iter().map(change).collect::<Vec<_>>().join(", "),
            units::bytes(cell.traced_bytes),
            units::bytes(cell.predicted_bytes),
            units::bytes(cell.measured_bytes),
            format!("{:+.2} %{mark}", cell.error_percent()),
            format!("±{:.2} %", cell.bar_percent()),
            format!("{measured}, predicted {predicted}"),
        ],
        share: None,
    }
}
