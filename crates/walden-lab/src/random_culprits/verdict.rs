//! Judges the findings of a seed.

use serde::{Deserialize, Serialize};

use super::kinds::{Case, Kind};
use super::plan::Plan;
use crate::culprits::Observed;

/// Part of the WAL by which a measured saving may leave the printed range: two runs of the same work differ.
const TOLERANCE: f64 = 0.02;
/// Share of the WAL from which on the least saving that a finding promises is a strong claim.
const STRONG: f64 = 0.05;

/// The least share of the WAL, measured by its remedy, at which a culprit is expected first.
const NOTABLE: f64 = 0.10;

/// One of the two runs of a seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Side {
    /// Bytes of WAL.
    pub bytes: u64,
    /// Seconds of the work.
    pub seconds: f64,
    /// Start LSN of the judged WAL.
    pub from: String,
    /// End LSN of the judged WAL.
    pub to: String,
    /// The findings in the order in which `walden explain` prints them.
    pub findings: Vec<Observed>,
}

/// The saving that a finding promises, next to the measured one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saving {
    /// The rule of the finding.
    pub rule: String,
    /// The least saving that the finding promises, if it has one.
    pub least: Option<u64>,
    /// The largest.
    pub most: Option<u64>,
    /// The bytes that the work with the remedy wrote less; negative if it wrote more.
    pub measured: i64,
    /// Whether the measured saving is in the range; null without a range.
    #[serde(rename = "within_range")]
    pub is_inside: Option<bool>,
}

/// The result of a seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// The selection of the seed.
    #[serde(flatten)]
    pub plan: Plan,
    /// The list in which the culprit's finding must be the first: `cause` or `setting`.
    pub list: String,
    /// The finding must have one of these rules; empty for a healthy server.
    pub rules: Vec<String>,
    /// The finding must contain one of these names, unless the list is empty.
    pub objects: Vec<String>,
    /// The run with the culprit.
    pub culprit_run: Side,
    /// The run with the remedy, if the culprit has one.
    pub remedy_run: Option<Side>,
    /// The rule of the first finding of the list, if any.
    pub first: Option<String>,
    /// Whether that finding names the culprit; on a healthy server, whether no finding is false.
    #[serde(rename = "correct")]
    pub is_right: bool,
    /// The place of the culprit's finding in its list, from 1 on; null if it is missing.
    pub place: Option<usize>,
    /// The place among all findings, as `walden explain` prints them.
    pub place_of_all: Option<usize>,
    /// The bytes that the work with the remedy wrote less; negative if it wrote more. Null if it was not run.
    pub measured: Option<i64>,
    /// Whether that is too little of the WAL for the culprit's finding to be expected first.
    #[serde(rename = "small")]
    pub is_small: bool,
    /// The saving of the culprit's finding; of the first one with settings to try on a healthy server.
    pub saving: Option<Saving>,
    /// Rules with an object: causes with a strong claim about the background load or on a healthy server, and
    /// settings whose measured saving is below their range.
    pub false_findings: Vec<String>,
}

/// Whether `points_at` contains a name as a whole word, or a word that starts with `NAME*`.
fn points_at(one: &Observed, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    one.points_at
        .split(|letter| !is_part(letter))
        .any(|word| name.strip_suffix('*').map_or(word == name, |start| word.starts_with(start)))
}

fn names_culprit(one: &Observed, kind: &Kind, objects: &[String]) -> bool {
    one.kind == kind.list
        && kind.rules.contains(&one.rule.as_str())
        && (objects.is_empty() || objects.iter().any(|name| points_at(one, name)))
}

/// Returns the findings whose remedy is applied: those of the partitions of a table are several.
pub(super) fn remedied<'a>(kind: &Kind, objects: &[String], run: &'a Side) -> Vec<&'a Observed> {
    match kind.rules {
        [] => run.findings.iter().find(|one| !one.try_settings.is_empty()).into_iter().collect(),
        _ => run.findings.iter().filter(|one| names_culprit(one, kind, objects)).collect(),
    }
}

impl Verdict {
    /// Judges the runs of a seed. `background` are the names of the background load.
    pub(super) fn new(
        plan: Plan,
        kind: &Kind,
        case: &Case,
        background: &[String],
        culprit_run: Side,
        remedy_run: Option<Side>,
    ) -> Verdict {
        let names_it = |one: &Observed| names_culprit(one, kind, &case.objects);
        let in_list = || culprit_run.findings.iter().filter(|one| one.kind == kind.list);
        let first = in_list().next().map(|one| one.rule.clone());
        let place = in_list().position(names_it).map(|at| at + 1);
        let place_of_all = culprit_run.findings.iter().position(names_it).map(|at| at + 1);
        let saving = remedy_run.as_ref().and_then(|remedy| {
            Saving::new(&remedied(kind, &case.objects, &culprit_run), &culprit_run, remedy)
        });
        let is_strong = |one: &&Observed| {
            let range = one.saves_bytes.zip(one.saves_error_bytes);
            let least = range.map_or(0, |(saves, error)| saves.saturating_sub(error));
            one.kind == "cause" && least as f64 >= STRONG * culprit_run.bytes as f64
        };
        let is_false = |one: &&Observed| {
            is_strong(one)
                && !names_it(one)
                && (kind.rules.is_empty() || background.iter().any(|name| points_at(one, name)))
        };
        let mut false_findings: Vec<String> = culprit_run
            .findings
            .iter()
            .filter(is_false)
            .map(|one| format!("{} {}", one.rule, one.points_at))
            .collect();
        if kind.rules.is_empty()
            && let Some(saving) = &saving
            && saving.is_below()
        {
            false_findings.push(saving.rule.clone());
        }
        let measured = remedy_run.as_ref().map(|remedy| saved(&culprit_run, remedy));
        let is_small = !kind.rules.is_empty()
            && measured.is_some_and(|bytes| (bytes as f64) < NOTABLE * culprit_run.bytes as f64)
            && saving.as_ref().is_none_or(|saving| !saving.is_below());
        let is_right = match kind.rules.is_empty() || is_small {
            true => false_findings.is_empty(),
            false => place == Some(1),
        };
        Verdict {
            plan,
            list: kind.list.into(),
            rules: kind.rules.iter().map(|rule| (*rule).to_owned()).collect(),
            objects: case.objects.clone(),
            culprit_run,
            remedy_run,
            first,
            is_right,
            place,
            place_of_all,
            measured,
            is_small,
            saving,
            false_findings,
        }
    }
}

/// Returns the bytes that the run with the remedy wrote less.
fn saved(culprit: &Side, remedy: &Side) -> i64 {
    culprit.bytes.cast_signed() - remedy.bytes.cast_signed()
}

impl Saving {
    /// Compares the sum of the findings' savings with the measured one.
    fn new(findings: &[&Observed], culprit: &Side, remedy: &Side) -> Option<Saving> {
        let rule = findings.first()?.rule.clone();
        let measured = saved(culprit, remedy);
        let ranges: Option<Vec<(u64, u64)>> =
            findings.iter().map(|one| one.saves_bytes.zip(one.saves_error_bytes)).collect();
        let range = ranges.map(|all| {
            let least = all.iter().map(|(saves, error)| saves.saturating_sub(*error)).sum();
            let more: u64 = findings.iter().map(|one| one.saves_more_bytes).sum();
            (least, more + all.iter().map(|(saves, error)| saves + error).sum::<u64>())
        });
        let tolerance = TOLERANCE * culprit.bytes as f64;
        let (least, most): (Option<u64>, Option<u64>) = range.unzip();
        let is_inside = least.zip(most).map(|(least, most)| {
            let measured = measured as f64;
            measured >= least as f64 - tolerance && measured <= most as f64 + tolerance
        });
        Some(Saving { rule, least, most, measured, is_inside })
    }

    fn is_below(&self) -> bool {
        self.is_inside == Some(false) && self.least.is_some_and(|least| self.measured < least.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::kinds;
    use super::*;

    fn finding(kind: &str, rule: &str, points_at: &str, saves: u64) -> Observed {
        Observed {
            kind: kind.into(),
            rule: rule.into(),
            text: String::new(),
            points_at: points_at.into(),
            remedy: String::new(),
            share: 0.0,
            bytes: 2 * saves,
            saves_bytes: Some(saves),
            saves_error_bytes: Some(10),
            saves_more_bytes: 0,
            try_settings: BTreeMap::new(),
        }
    }

    fn side(bytes: u64, findings: Vec<Observed>) -> Side {
        Side { bytes, seconds: 0.0, from: String::new(), to: String::new(), findings }
    }

    fn judge(culprit: &str, findings: Vec<Observed>, bytes_of_remedy: u64) -> Verdict {
        let kind = kinds::all().find(|kind| kind.name == culprit).unwrap();
        let plan = Plan::new(1, &[], &[(19, String::new())]).unwrap().0;
        let case = Case { objects: vec!["ride_state".into()], ..Case::default() };
        Verdict::new(
            plan,
            kind,
            &case,
            &["other".into()],
            side(1000, findings),
            Some(side(bytes_of_remedy, Vec::new())),
        )
    }

    #[test]
    fn a_finding_is_right_by_its_rule_and_object() {
        let right = finding("cause", "hash-index", "crm.ride_state", 300);
        let setting = finding("setting", "uncompressed-images", "wal_compression", 900);
        let verdict = judge("hash-index", vec![setting, right.clone()], 700);
        assert!(
            verdict.is_right && verdict.place == Some(1) && verdict.place_of_all == Some(2),
            "{verdict:?}"
        );
        // Another relation whose name contains this one, and another rule.
        let other = finding("cause", "hash-index", "crm.ride_state_2", 300);
        let verdict = judge("hash-index", vec![other, right], 700);
        assert!(
            !verdict.is_right && verdict.place == Some(2) && verdict.first.as_deref() == Some("hash-index")
        );
        let partition = finding("cause", "hash-index", "crm.ride_state_p2_tag_idx", 300);
        assert!(points_at(&partition, "ride_state_p*") && !points_at(&partition, "ride_state_q*"));
        let verdict = judge("hash-index", vec![finding("cause", "pruning", "ride_state", 300)], 700);
        assert!(!verdict.is_right && verdict.place.is_none() && verdict.saving.is_none());
    }

    #[test]
    fn a_small_culprit_need_not_be_first() {
        let other = || vec![finding("cause", "pruning", "ride_state", 300)];
        assert!(judge("hash-index", other(), 950).is_small && judge("hash-index", other(), 950).is_right);
        assert!(!judge("hash-index", other(), 880).is_right);
        // A promised saving that does not come is no small culprit.
        let mut promise = finding("cause", "hash-index", "ride_state", 300);
        promise.saves_error_bytes = Some(100);
        assert!(!judge("hash-index", vec![promise], 950).is_small);
    }

    #[test]
    fn a_saving_is_inside_its_range_within_two_percent_of_the_wal() {
        let inside = |bytes_of_remedy| {
            let found = vec![finding("cause", "hash-index", "ride_state", 300)];
            judge("hash-index", found, bytes_of_remedy).saving.unwrap().is_inside.unwrap()
        };
        assert_eq!([729, 731, 671, 669].map(inside), [true, false, true, false]);
    }

    #[test]
    fn a_strong_claim_about_a_healthy_server_is_false() {
        let weak = finding("cause", "pruning", "ride_state", 40);
        assert!(judge("none-mixed", vec![weak], 1000).is_right);
        let strong = judge("none-mixed", vec![finding("cause", "pruning", "ride_state", 61)], 1000);
        assert!(!strong.is_right && strong.false_findings == ["pruning ride_state"]);
        let mut setting = finding("setting", "uncompressed-images", "wal_compression", 400);
        setting.try_settings.insert("wal_compression".into(), "lz4".into());
        assert!(judge("none-mixed", vec![setting.clone()], 600).is_right);
        assert!(!judge("none-mixed", vec![setting], 900).is_right);
        let background = judge("hash-index", vec![finding("cause", "pruning", "other", 61)], 1000);
        assert_eq!(background.false_findings, ["pruning other"]);
    }
}
