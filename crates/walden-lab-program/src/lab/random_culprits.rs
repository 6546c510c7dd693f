//! `walden lab run random-culprits`: compares findings and savings with culprits that seeds select.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use walden_explain::merge_findings;
use walden_lab::random_culprits::{SeedOptions, Verdict, run_seeds};
use walden_lab::{Installation, Progress, installations};
use walden_report::table::{Row, table};
use walden_report::units;

use super::culprits;
use crate::FOUND;
use crate::terminal::{self, Format};

/// Its name as an argument of `walden lab run`.
pub const NAME: &str = "random-culprits";

/// The oldest and the newest version that seeds select from.
const VERSIONS: RangeInclusive<u32> = 14..=19;

/// Options of runs that seeds select.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of random-culprits and random-predictions")]
pub struct SeedArgs {
    /// The first and the last seed [default: 1..10]
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    seeds: Option<RangeInclusive<u64>>,
    /// Seeds that run at a time [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Keep the WAL of each seed, and the names or the base backup, in the output folder
    #[arg(long)]
    pub keep_wal: bool,
}

impl SeedArgs {
    pub fn seeds(&self) -> RangeInclusive<u64> {
        self.seeds.clone().unwrap_or(1..=10)
    }

    pub fn jobs(&self) -> usize {
        self.jobs.unwrap_or(1).into()
    }

    /// Returns the first option given.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            (self.seeds.is_some(), "--seeds"),
            (self.jobs.is_some(), "--jobs"),
            (self.keep_wal, "--keep-wal"),
        ];
        all.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }
}

fn seeds(text: &str) -> Result<RangeInclusive<u64>> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.parse::<u64>().context("expected seeds as 7 or 1..40");
    let (first, last) = (number(first)?, number(last)?);
    if first > last || last == u64::MAX {
        bail!("expected the first seed before the last one, as 1..40");
    }
    Ok(first..=last)
}

/// Options that others have, too.
pub struct Shared {
    pub only: Vec<String>,
    pub installation: Option<Installation>,
    pub output: PathBuf,
    pub force: bool,
    pub format: Format,
}

/// The results of all seeds.
#[derive(Debug, Serialize)]
struct Report {
    seeds: usize,
    /// Seeds whose first finding of the list names the culprit; healthy servers without a false finding.
    right: usize,
    healthy: Share,
    /// Culprits that take too little of the WAL to be expected first.
    small: usize,
    /// Culprits whose finding is the first of both lists, as `walden explain` prints them.
    first_of_all: Share,
    /// Findings of culprits whose measured saving is inside their range.
    savings_inside: Share,
    /// By culprit: how many seeds have which first finding.
    matrix: BTreeMap<String, BTreeMap<String, usize>>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Share {
    count: usize,
    of: usize,
}

/// Runs seeds and prints the results. The exit status is 0 if all are right.
pub fn run(arguments: &SeedArgs, shared: Shared) -> Result<ExitCode> {
    let options = SeedOptions {
        seeds: arguments.seeds(),
        only: shared.only,
        installations: shared.installation.map_or_else(newest_of_each_version, |one| vec![one]),
        output: shared.output,
        force: shared.force,
        keeps_wal: arguments.keep_wal,
        jobs: arguments.jobs(),
        progress: Progress::new("starting PostgreSQL"),
    };
    let find = |window: &walden_lab::culprits::Window| {
        let findings = culprits::findings(window)?;
        Ok(merge_findings(&findings).into_iter().cloned().map(culprits::observed).collect())
    };
    let report = Report::new(run_seeds(&options, &find)?);
    let is_right = report.right == report.seeds;
    terminal::show(shared.format, || &report, || report.text())?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Returns an installation of each major version, the oldest first.
pub fn newest_of_each_version() -> Vec<Installation> {
    let mut found = installations();
    found.retain(|one| VERSIONS.contains(&one.version.major));
    found.sort_by_key(|one| (one.version.major, std::cmp::Reverse(one.version.minor)));
    found.dedup_by_key(|one| one.version.major);
    found
}

impl Report {
    fn new(verdicts: Vec<Verdict>) -> Report {
        let [mut healthy, mut first_of_all, mut savings_inside] = [Share::default(); 3];
        let mut matrix: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for verdict in &verdicts {
            match verdict.rules.is_empty() {
                true => healthy.add(verdict.is_right),
                false => first_of_all.add(verdict.place_of_all == Some(1)),
            }
            if !verdict.rules.is_empty()
                && let Some(is_inside) = verdict.saving.as_ref().and_then(|saving| saving.is_inside)
            {
                savings_inside.add(is_inside);
            }
            let found = matrix.entry(verdict.plan.culprit.clone()).or_default();
            *found.entry(found_text(verdict)).or_default() += 1;
        }
        let right = verdicts.iter().filter(|verdict| verdict.is_right).count();
        let small = verdicts.iter().filter(|verdict| verdict.is_small).count();
        Report {
            seeds: verdicts.len(),
            right,
            healthy,
            small,
            first_of_all,
            savings_inside,
            matrix,
            verdicts,
        }
    }

    fn text(&self) -> String {
        let look = terminal::look();
        let rows: Vec<Row> = self.verdicts.iter().map(row).collect();
        let columns = ["PostgreSQL", "first finding", "place", "WAL", "saves", "measured", "false"];
        let mut text = table(look, "Seeds", ("seed, culprit", &columns), &rows);
        let rows = self.matrix.iter().map(|(culprit, found)| Row {
            depth: 0,
            label: culprit.clone(),
            cells: vec![
                found.iter().map(|(rule, count)| format!("{rule} {count}")).collect::<Vec<_>>().join(", "),
            ],
            share: None,
        });
        text.push('\n');
        text += &table(look, "Culprits", ("culprit", &["first findings"]), &rows.collect::<Vec<_>>());
        let small = match self.small {
            0 => String::new(),
            count => format!(", {count} of them with a culprit that is too small to be first"),
        };
        let _ = writeln!(text, "\n  {} of {} seeds right{small}", self.right, self.seeds);
        let _ = writeln!(text, "  {} healthy servers without a false finding", self.healthy.text());
        let _ = writeln!(text, "  {} culprits first of all findings", self.first_of_all.text());
        let _ = writeln!(text, "  {} savings inside their range", self.savings_inside.text());
        let others: BTreeSet<&str> =
            self.verdicts.iter().flat_map(|verdict| &verdict.false_findings).map(String::as_str).collect();
        if !others.is_empty() {
            let _ = writeln!(text, "  false: {}", others.into_iter().collect::<Vec<_>>().join(", "));
        }
        text
    }
}

impl Share {
    fn add(&mut self, counts: bool) {
        *self = Share { count: self.count + usize::from(counts), of: self.of + 1 };
    }

    fn text(self) -> String {
        format!("{} of {}", self.count, self.of)
    }
}

/// Describes the first finding of the list: its rule, marked where it is right or names another object.
fn found_text(verdict: &Verdict) -> String {
    let first = verdict.first.as_deref().unwrap_or("none");
    match verdict.is_right {
        true if verdict.rules.is_empty() => "right".into(),
        true if verdict.place != Some(1) => "too small".into(),
        true => format!("{first} (right)"),
        false if verdict.rules.is_empty() => verdict.false_findings.join(", "),
        false if verdict.rules.iter().any(|rule| rule == first) => format!("{first} of another object"),
        false => first.to_owned(),
    }
}

fn row(verdict: &Verdict) -> Row {
    let place = match (verdict.place, verdict.place_of_all) {
        _ if verdict.rules.is_empty() => String::new(),
        (Some(place), Some(of_all)) => format!("{place} ({of_all})"),
        _ => "missing".into(),
    };
    let saving = verdict.saving.as_ref();
    let range =
        saving.and_then(|saving| saving.least.zip(saving.most)).map_or_else(String::new, |(least, most)| {
            format!("{} to {}", units::bytes(least), units::bytes(most))
        });
    let measured = saving.map_or_else(String::new, |saving| {
        let sign = if saving.measured < 0 { "-" } else { "" };
        let mark = if saving.is_inside == Some(false) { " OUTSIDE" } else { "" };
        format!("{sign}{}{mark}", units::bytes(saving.measured.unsigned_abs()))
    });
    let mark = if verdict.is_right { "" } else { "WRONG: " };
    Row {
        depth: 0,
        label: format!("{:>4} {}", verdict.plan.seed, verdict.plan.culprit),
        cells: vec![
            verdict.plan.postgresql.clone(),
            format!("{mark}{}", verdict.first.as_deref().unwrap_or("none")),
            place,
            units::bytes(verdict.culprit_run.bytes),
            range,
            measured,
            verdict.false_findings.join(", "),
        ],
        share: None,
    }
}
