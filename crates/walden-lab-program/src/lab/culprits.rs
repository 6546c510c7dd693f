//! `walden lab run culprits`: compares the findings with the known culprit of each workload, as a confusion
//! matrix.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::json;
use walden_explain::document::{Context, Document};
use walden_explain::{Finding, FindingKind, Request, savings};
use walden_lab::culprits::{CulpritOptions, Judge, Observed, Window, run_culprits};
use walden_lab::{Installation, Progress};
use walden_report::table::{Row, table, wrap};
use walden_report::units;
use walden_source::inventory::Inventory;

use crate::terminal::{self, Format};
use crate::{FOUND, names};

/// Runs culprits and prints the findings for each. The exit status is 0 if all findings are correct.
pub fn run(only: &[String], installation: Option<Installation>, format: Format) -> Result<ExitCode> {
    let options =
        CulpritOptions { only: only.to_vec(), installation, progress: Progress::new("starting PostgreSQL") };
    let judged =
        run_culprits(&options, &mut |window| Ok(findings(window)?.into_iter().map(observed).collect()))?;
    let right = judged.iter().filter(|judge| judge.is_right()).count();
    let document = || {
        json!({
            "version": judged.first().map(|judge| judge.version.clone()),
            "culprits": judged.len(),
            "right": right,
            "cases": judged,
        })
    };
    terminal::show(format, document, || matrix(&judged))?;
    Ok(if right == judged.len() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Returns the findings of `walden explain --names` in a server's WAL.
pub(super) fn findings(window: &Window) -> Result<Vec<Finding>> {
    let mut names = walden_postgres::names::from_server(&window.dsn)?;
    if let Some(folder) = &window.names_to {
        names.write(File::create(folder.join("names.json"))?)?;
    }
    let inventory = Inventory::search(&[&window.wal_dir])?;
    let request = Request::sums(window.from, window.to, terminal::cores()).top(10).sample_images(true);
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {})?;
    if let Some(damage) = &explanation.damage {
        bail!("{damage}");
    }
    let checkpoint_settings = names::complete(&mut names, &explanation);
    let mut document = Document::new(
        &explanation,
        &Context { names: &names, checkpoint_settings, top: None, pattern: None, writers: None },
    );
    savings::estimate(&mut document, &explanation, checkpoint_settings);
    Ok(document.findings)
}

pub(super) fn observed(finding: Finding) -> Observed {
    Observed {
        kind: kind_text(finding.kind).into(),
        rule: finding.rule.into(),
        text: finding.text,
        points_at: finding.points_at,
        remedy: finding.remedy,
        share: finding.share,
        bytes: finding.bytes,
        saves_bytes: finding.saves_bytes,
        saves_error_bytes: finding.saves_error_bytes,
        saves_more_bytes: finding.saves_more_bytes,
        try_settings: finding.try_settings,
    }
}

fn kind_text(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Cause => "cause",
        FindingKind::Setting => "setting",
    }
}

/// Formats a row per culprit with the rules found, the counts of the rules, and every finding in words.
fn matrix(judged: &[Judge]) -> String {
    let look = terminal::look();
    let row = |judge: &Judge| {
        let expected = judge.expected.map_or("no cause", |expected| expected.rule);
        let first =
            |kind: &str| judge.findings.iter().find(|one| one.kind == kind).map_or("", |one| &one.rule);
        let found = judge.expected.map_or_else(|| first("cause"), |expected| first(expected.kind));
        let mark = if judge.is_right() {
            "right"
        } else if judge.is_first_right {
            "false rules"
        } else {
            "WRONG"
        };
        Row {
            depth: 0,
            label: judge.name.to_owned(),
            cells: vec![
                match (found, judge.is_first_right) {
                    ("", true) => "none".into(),
                    (found, true) => found.to_owned(),
                    (found, false) => format!("{found}, not {expected}"),
                },
                judge.false_rules.join(" "),
                units::bytes(judge.bytes),
                mark.to_owned(),
            ],
            share: None,
        }
    };
    let rows: Vec<Row> = judged.iter().map(row).collect();
    let version = judged.first().map_or("", |judge| judge.version.split(" on ").next().unwrap_or_default());
    let mut text = table(
        look,
        &format!("Culprits and first findings, {version}"),
        ("culprit", &["first finding", "false", "WAL", "verdict"]),
        &rows,
    );
    let right = judged.iter().filter(|judge| judge.is_right()).count();
    let _ = writeln!(text, "  {right} of {} right\n", judged.len());
    text += &by_rule(judged);
    let _ = writeln!(text, "{}", look.heading("What was said"));
    for judge in judged {
        let _ = writeln!(text, "  {}: {}", judge.name, judge.about);
        for one in &judge.findings {
            let saves =
                one.saves_bytes.map_or(String::new(), |bytes| format!(" [saves {}]", units::bytes(bytes)));
            let line = format!(
                "{}, {}: {} -> {}: {}{saves}",
                one.kind, one.rule, one.text, one.points_at, one.remedy
            );
            let _ = writeln!(text, "    {}", wrap(&line, look.width.saturating_sub(4), 6));
        }
        text.push('\n');
    }
    text
}

/// Formats how often each rule was found: for its own culprit, for other workloads where it is true, and
/// falsely.
fn by_rule(judged: &[Judge]) -> String {
    let rules: BTreeSet<&str> =
        judged.iter().flat_map(|judge| judge.findings.iter()).map(|one| one.rule.as_str()).collect();
    let row = |rule: &str| {
        let with = judged.iter().filter(|judge| judge.findings.iter().any(|one| one.rule == rule));
        let (mut right, mut also, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for judge in with {
            let list = if judge.false_rules.iter().any(|one| one == rule) {
                &mut wrong
            } else if judge.expected.is_some_and(|expected| expected.rule == rule) {
                &mut right
            } else {
                &mut also
            };
            list.push(judge.name);
        }
        Row {
            depth: 0,
            label: rule.to_owned(),
            cells: vec![right.len().to_string(), also.len().to_string(), wrong.join(" ")],
            share: None,
        }
    };
    let rows: Vec<Row> = rules.into_iter().map(row).collect();
    table(terminal::look(), "Rules", ("rule", &["the culprit", "true as well", "false in"]), &rows) + "\n"
}
