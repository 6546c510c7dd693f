//! What remedies of findings would save, predicted by replay as `walden whatif` does.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::ValueEnum;
use walden_explain::document::Document;
use walden_explain::{Explanation, Finding, FindingKind, rank_findings};
use walden_format::lsn::Lsn;
use walden_source::inventory::Run;
use walden_source::names::Names;
use walden_whatif::{Forecast, PredictError, Prediction, Question, learn, predict};

use crate::memory;

/// Memory for pages; beyond it they go to a temporary file.
const MEMORY_BYTES: usize = 512 << 20;

/// The longest run that is replayed where nobody asks for it: about a second of work.
const MAX_UNASKED_BYTES: u64 = 1 << 30;

/// When savings of settings are predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum When {
    /// For up to 1 GiB of WAL
    #[default]
    Auto,
    /// However long it takes
    Always,
    /// Not at all
    Never,
}

impl When {
    /// Whether the savings of these runs are predicted.
    pub fn applies_to(self, runs: &[Run]) -> bool {
        let bytes: u64 = runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
        match self {
            When::Auto => bytes <= MAX_UNASKED_BYTES,
            When::Always => true,
            When::Never => false,
        }
    }
}

/// A setting that saves a smaller share of the WAL is no finding.
const MIN_SAVING: f64 = 0.02;

type Changes = Vec<(String, String)>;

/// Predicts what findings save whose remedy is a setting, and ranks all findings by what they save.
///
/// A prediction follows one range. Where the WAL has gaps, several timelines or damage, savings stay unknown.
pub fn predict_savings(
    document: &mut Document,
    explanation: &Explanation,
    runs: &[Run],
    names: &Names,
    threads: usize,
) -> Result<()> {
    let has_any = document.findings.iter().any(|finding| !finding.try_settings.is_empty());
    let ([range], [run], false) = (explanation.ranges.as_slice(), runs, explanation.damage.is_some()) else {
        return Ok(());
    };
    if !has_any {
        return Ok(());
    }
    let changes = distinct_changes(&document.findings);
    let question = Question {
        from: (range.start > run.start()).then_some(range.start),
        to: (range.end < run.end()).then_some(Lsn(range.end.0)),
        traced: learn::settings_from_server(&names.settings),
        changes: changes.clone(),
        threads,
        memory_bytes: MEMORY_BYTES.min(memory::quarter_of_machine()),
        ..Question::default()
    };
    // A trace that cannot be predicted from has findings all the same.
    let Ok(forecast) = predict_from_trace(run, question) else { return Ok(()) };
    let savings: Vec<(Changes, Saving)> = changes
        .into_iter()
        .zip(&forecast.predictions)
        .filter_map(|(change, (_, one))| Some((change, Saving::of(&forecast, one)?)))
        .collect();
    apply(&mut document.findings, &savings, explanation.buckets.images());
    let least = (document.wal_bytes as f64 * MIN_SAVING) as u64;
    document.findings.retain(|finding| {
        finding.kind == FindingKind::Cause || finding.saves_bytes.is_none_or(|saves| saves >= least)
    });
    rank_findings(&mut document.findings);
    Ok(())
}

/// Settings that records show. Those of checkpoints are only estimated from them, so that the server's are better.
const SHOWN_BY_RECORDS: [&str; 4] = ["wal_compression", "full_page_writes", "wal_level", "wal_log_hints"];

/// Predicts from settings that the trace does not contradict: a session may have its own `wal_compression`, and the server's may
/// have changed since.
fn predict_from_trace(run: &Run, question: Question<'_>) -> Result<Forecast, PredictError> {
    let forecast = predict(run, &question, &|_| {})?;
    let is_shown = |name: &str| SHOWN_BY_RECORDS.contains(&name);
    let contradicted = forecast.learned.traced.iter().filter(|one| one.contradicted && is_shown(one.name));
    let contradicted: Vec<&str> = contradicted.map(|one| one.name).collect();
    if contradicted.is_empty() {
        return Ok(forecast);
    }
    let mut traced = question.traced.clone();
    traced.retain(|(name, _)| !contradicted.contains(&name.as_str()));
    predict(run, &Question { traced, ..question }, &|_| {})
}

/// Bytes that a change of settings saves, and by how much that may be wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Saving {
    bytes: u64,
    error: u64,
}

/// The largest relative error of the prediction for the trace's own settings with which it is the better base: what is wrong with
/// both predictions then cancels out.
const MAX_SELF_CHECK_ERROR: f64 = 0.2;

impl Saving {
    /// `None` if the prediction is no better than none: a simulated server can be far from one that could not keep up with its
    /// checkpoints.
    fn of(forecast: &Forecast, prediction: &Prediction) -> Option<Saving> {
        let error = forecast.error_bytes(prediction) as u64;
        let (check, trace) = (forecast.self_check.bytes, forecast.trace_bytes);
        Saving::between(check, trace, prediction.bytes, error)
    }

    fn between(self_check: u64, trace: u64, predicted: u64, error: u64) -> Option<Saving> {
        let is_good = self_check.abs_diff(trace) as f64 <= MAX_SELF_CHECK_ERROR * trace as f64;
        match is_good {
            true => Some(Saving {
                bytes: self_check.saturating_sub(predicted),
                // Not all that is wrong with the one need be wrong with the other.
                error: error + self_check.abs_diff(trace),
            }),
            false => trace.checked_sub(predicted).map(|bytes| Saving { bytes, error: error.min(bytes) }),
        }
    }
}

fn change_of(finding: &Finding) -> Changes {
    finding.try_settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The change of each finding, and that of all settings together.
fn distinct_changes(findings: &[Finding]) -> Vec<Changes> {
    let mut all: Vec<Changes> = Vec::new();
    let with_settings = || findings.iter().filter(|finding| !finding.try_settings.is_empty());
    for finding in with_settings() {
        let change = change_of(finding);
        if !all.contains(&change) {
            all.push(change);
        }
    }
    let settings = with_settings().filter(|finding| finding.kind == FindingKind::Setting);
    let joint: BTreeMap<String, String> = settings.flat_map(change_of).collect();
    let joint: Changes = joint.into_iter().collect();
    if !joint.is_empty() && !all.contains(&joint) {
        all.push(joint);
    }
    all
}

/// Writes the savings into the findings. Settings act on the same images: the one that saves most gets all that it saves alone, the
/// next one what it saves in addition.
fn apply(findings: &mut [Finding], savings: &[(Changes, Saving)], image_bytes: u64) {
    let of = |change: &Changes| savings.iter().find(|(one, _)| one == change).map(|(_, saving)| *saving);
    let joint = savings.iter().map(|(_, saving)| saving.bytes).max().unwrap_or(0);
    let mut settings: Vec<(usize, Saving)> = Vec::new();
    for (at, finding) in findings.iter_mut().enumerate() {
        let Some(saving) = of(&change_of(finding)).filter(|_| !finding.try_settings.is_empty()) else {
            continue;
        };
        match finding.kind {
            FindingKind::Setting => settings.push((at, saving)),
            FindingKind::Cause => {
                // Of what the setting saves, the part of these images.
                let share = finding.bytes as f64 / image_bytes.max(1) as f64;
                finding.saves_bytes = Some((saving.bytes as f64 * share) as u64);
                finding.saves_error_bytes = Some((saving.error as f64 * share) as u64 + saving.bytes / 20);
            }
        }
    }
    settings.sort_by_key(|(_, saving)| std::cmp::Reverse(saving.bytes));
    let first = settings.first().map_or(0, |(_, saving)| saving.bytes);
    let first_change = settings.first().map_or_else(String::new, |(at, _)| settings_text(&findings[*at]));
    for (rank, (at, saving)) in settings.into_iter().enumerate() {
        let bytes = if rank == 0 { first } else { saving.bytes.min(joint.saturating_sub(first)) };
        findings[at].saves_bytes = Some(bytes.min(findings[at].bytes));
        findings[at].saves_error_bytes = Some(saving.error);
        if rank > 0 {
            findings[at].remedy += &format!("; what it saves is in addition to {first_change}");
        }
    }
}

/// The settings that a finding's remedy changes, as `NAME=VALUE`.
fn settings_text(finding: &Finding) -> String {
    let settings: Vec<String> =
        finding.try_settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    settings.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str) -> Changes {
        vec![(name.to_owned(), "x".to_owned())]
    }

    #[test]
    fn savings_are_of_the_trace_where_its_own_settings_predict_something_else() {
        let saves = |self_check, predicted| {
            Saving::between(self_check, 1000, predicted, 500).map(|saving| (saving.bytes, saving.error))
        };
        assert_eq!(saves(1100, 900), Some((200, 600)), "the self-check is off by 100");
        assert_eq!(saves(900, 950), Some((0, 600)));
        assert_eq!(saves(6000, 700), Some((300, 300)), "not 5300");
        assert_eq!(saves(6000, 5000), None);
    }

    #[test]
    fn the_second_setting_gets_what_it_saves_in_addition() {
        let finding = |name: &str| Finding {
            kind: FindingKind::Setting,
            rule: "checkpoint-images",
            bytes: 100,
            share: 0.5,
            text: String::new(),
            points_at: name.to_owned(),
            remedy: String::new(),
            saves_bytes: None,
            saves_error_bytes: None,
            try_settings: change(name).into_iter().collect(),
        };
        let mut findings = vec![finding("a"), finding("b")];
        assert_eq!(distinct_changes(&findings).len(), 3);
        let saving = |bytes| Saving { bytes, error: 1 };
        let both: Changes = change("a").into_iter().chain(change("b")).collect();
        let savings = [(change("a"), saving(50)), (change("b"), saving(70)), (both, saving(90))];
        let saves = |at: usize, findings: &[Finding]| findings[at].saves_bytes;
        apply(&mut findings, &savings, 100);
        assert_eq!((saves(0, &findings), saves(1, &findings)), (Some(20), Some(70)));
        assert_eq!(findings[0].remedy, "; what it saves is in addition to b=x");
        assert_eq!(findings[1].remedy, "");
    }
}
