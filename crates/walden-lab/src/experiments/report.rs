//! The results of an experiment: measured figures next to published ones, and whether its claims hold.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use walden_format::lsn::Lsn;

use super::definition::{Claim, Definition, Source};
use crate::facts::{Server, Setting};

/// The results of an experiment; serialized, they are its JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// One line of description.
    pub about: String,
    /// The publication of the figures, if there is one.
    pub source: Option<Source>,
    /// Sizes of the run, by name.
    pub sizes: BTreeMap<String, u64>,
    /// Whether these are the published sizes. Only then can absolute figures be compared.
    pub published_size: bool,
    /// Version of the PostgreSQL server, if there was one.
    pub server: Option<Server>,
    /// Start of the experiment, UTC.
    pub started_at: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// The runs in their order, with settings and LSNs.
    pub runs: Vec<RunResult>,
    /// All figures, measured, published and predicted.
    pub figures: Vec<Figure>,
    /// The claims, and whether they hold.
    pub checks: Vec<Check>,
    /// A sentence that summarizes all checks.
    pub verdict: String,
    /// Remarks on the results.
    pub notes: Vec<String>,
    /// Measurements that were impossible, and the reasons.
    pub unavailable: Vec<String>,
    /// Results that only one kind of experiment has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, Value>,
}

/// A case that was run on its own server.
#[derive(Debug, Clone, Serialize)]
pub struct RunResult {
    /// Name of the case.
    pub case: String,
    /// Settings from `pg_settings`: all that are not default, and those that affect the volume of WAL.
    pub settings: BTreeMap<String, Setting>,
    /// The phases that were measured, in order.
    pub phases: Vec<Phase>,
    /// The folders that `--keep` wrote.
    pub kept: Option<Kept>,
}

/// A measured part of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// Name of the phase in the figures.
    pub name: String,
    /// The insert position at its start.
    #[serde(serialize_with = "as_text")]
    pub from: Lsn,
    /// The insert position at its end.
    #[serde(serialize_with = "as_text")]
    pub to: Lsn,
    /// Duration in seconds.
    pub seconds: f64,
}

/// A kept folder of WAL.
#[derive(Debug, Clone, Serialize)]
pub struct Kept {
    /// The folder with `facts.json` and `wal/`.
    pub folder: PathBuf,
    /// The segments, complete and in order.
    pub wal: PathBuf,
}

/// WAL from which predictions are made, see [`RunResult::trace`].
#[derive(Debug, Clone)]
pub struct Trace<'a> {
    /// The folder of segments.
    pub wal: &'a std::path::Path,
    /// Start of the first phase.
    pub from: Lsn,
    /// End of the last phase.
    pub to: Lsn,
    /// The settings that the WAL was written under.
    pub settings: &'a BTreeMap<String, Setting>,
}

/// A figure with at least one of its measured, published and predicted values.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Name of the case.
    pub case: String,
    /// Name of the phase.
    pub phase: String,
    /// Name of the quantity, such as `mb`.
    pub measure: String,
    /// The value that this run measured.
    pub measured: Option<f64>,
    /// The published value.
    pub published: Option<f64>,
    /// The value predicted from the WAL of another case.
    pub predicted: Option<f64>,
}

/// A claim and whether it holds.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The claim in a sentence.
    pub claim: String,
    /// The published ratio.
    pub published: Option<f64>,
    /// The measured ratio.
    pub measured: Option<f64>,
    /// The smallest ratio that confirms the claim.
    pub at_least: Option<f64>,
    /// The largest ratio that confirms the claim.
    pub at_most: Option<f64>,
    /// Whether the claim holds; `None` if it was not measured or has no bounds.
    pub holds: Option<bool>,
}

fn as_text<S: serde::Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// Converts bytes to megabytes of 2^20 bytes, the unit of all published volumes.
pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64
}

impl RunResult {
    /// Returns the WAL of the run, if it was kept, with its range and settings.
    pub fn trace(&self) -> Option<Trace<'_>> {
        let kept = self.kept.as_ref()?;
        let (first, last) = (self.phases.first()?, self.phases.last()?);
        Some(Trace { wal: &kept.wal, from: first.from, to: last.to, settings: &self.settings })
    }
}

impl Figure {
    /// Returns the figure's key in claims and definitions: `CASE/PHASE/MEASURE`.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.case, self.phase, self.measure)
    }
}

/// The figures of an experiment during the run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    list: Vec<Figure>,
    published: BTreeMap<String, f64>,
}

impl Figures {
    pub fn from_definition(definition: &Definition) -> Figures {
        Figures { list: Vec::new(), published: definition.published() }
    }

    /// Adds a published figure that is not in the definition's cases.
    pub fn publish(&mut self, key: String, value: f64) {
        self.published.insert(key, value);
    }

    /// Adds a figure with its own published value instead of the definition's.
    pub fn add_all(
        &mut self,
        case: &str,
        phase: &str,
        measure: &str,
        measured: Option<f64>,
        published: Option<f64>,
        predicted: Option<f64>,
    ) {
        let (case, phase, measure) = (case.to_owned(), phase.to_owned(), measure.to_owned());
        self.list.push(Figure { case, phase, measure, measured, published, predicted });
    }

    pub fn add(&mut self, case: &str, phase: &str, measure: &str, measured: Option<f64>) {
        let (case, phase, measure) = (case.to_owned(), phase.to_owned(), measure.to_owned());
        let mut figure = Figure { case, phase, measure, measured, published: None, predicted: None };
        figure.published = self.published.get(&figure.key()).copied();
        self.list.push(figure);
    }

    /// Adds a predicted value to an existing figure.
    pub fn predict(&mut self, case: &str, phase: &str, measure: &str, predicted: f64) {
        let of_this = |figure: &&mut Figure| {
            (figure.case.as_str(), figure.phase.as_str(), figure.measure.as_str()) == (case, phase, measure)
        };
        if let Some(figure) = self.list.iter_mut().find(of_this) {
            figure.predicted = Some(predicted);
        }
    }

    pub fn into_list(self) -> Vec<Figure> {
        self.list
    }
}

/// Finds a figure by its key; the case name `last` means the last case.
fn value(figures: &[Figure], key: &str, which: impl Fn(&Figure) -> Option<f64>) -> Option<f64> {
    let (first, rest) = key.split_once('/')?;
    let last = match first {
        "last" => Some(format!("{}/{rest}", figures.last()?.case)),
        _ => None,
    };
    let key = last.as_deref().unwrap_or(key);
    figures.iter().find(|figure| figure.key() == key).and_then(which)
}

/// Compares each claim's measured ratio with its bounds.
pub(crate) fn check_claims(claims: &[Claim], figures: &[Figure]) -> Vec<Check> {
    let check = |claim: &Claim| {
        let ratio = |which: fn(&Figure) -> Option<f64>| -> Option<f64> {
            let [above, below] = &claim.ratio;
            let (above, below) = (value(figures, above, which)?, value(figures, below, which)?);
            (below > 0.0).then(|| above / below)
        };
        let measured = ratio(|figure| figure.measured);
        let is_bounded = claim.at_least.is_some() || claim.at_most.is_some();
        let holds = measured.filter(|_| is_bounded).map(|ratio| {
            claim.at_least.is_none_or(|bound| ratio >= bound)
                && claim.at_most.is_none_or(|bound| ratio <= bound)
        });
        Check {
            claim: claim.words.clone(),
            published: claim.published.or_else(|| ratio(|figure| figure.published)),
            measured,
            at_least: claim.at_least,
            at_most: claim.at_most,
            holds,
        }
    };
    claims.iter().map(check).collect()
}

/// Summarizes all checks in one sentence.
pub(crate) fn verdict(checks: &[Check]) -> String {
    let count = |wanted: Option<bool>| checks.iter().filter(|check| check.holds == wanted).count();
    let unjudged = checks.iter().filter(|check| check.measured.is_none()).count();
    let (held, failed) = (count(Some(true)), count(Some(false)));
    let unmeasured = match unjudged {
        0 => String::new(),
        1 => "; one could not be measured".into(),
        many => format!("; {many} could not be measured"),
    };
    match (held, failed) {
        (0, 0) if checks.is_empty() => "Nothing was claimed.".into(),
        (0, 0) => "No claim could be checked.".into(),
        (held, 0) => {
            format!("The published result is confirmed: all {held} checked claims hold{unmeasured}.")
        }
        (0, failed) => format!("The published result is not confirmed: {failed} claims fail{unmeasured}."),
        (held, failed) => {
            let names: Vec<&str> = checks
                .iter()
                .filter(|check| check.holds == Some(false))
                .map(|check| check.claim.as_str())
                .collect();
            format!(
                "The published result is confirmed in part: {held} claims hold, {failed} fail ({}){unmeasured}.",
                names.join("; ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ratio: [&str; 2], at_least: f64) -> Claim {
        Claim {
            words: "more".into(),
            ratio: ratio.map(Into::into),
            published: None,
            at_least: Some(at_least),
            at_most: None,
        }
    }

    #[test]
    fn a_claim_that_was_not_measured_neither_holds_nor_fails() {
        let mut figures = Figures::default();
        figures.publish("a/run/mb".into(), 10.0);
        figures.publish("b/run/mb".into(), 2.0);
        figures.add("a", "run", "mb", Some(30.0));
        figures.add("b", "run", "mb", Some(10.0));
        figures.add("c", "run", "mb", None);
        let claims = [
            claim(["a/run/mb", "b/run/mb"], 2.5),
            claim(["b/run/mb", "a/run/mb"], 1.0),
            claim(["c/run/mb", "a/run/mb"], 0.0),
            claim(["a/run/mb", "nothing/run/mb"], 0.0),
        ];
        let checks = check_claims(&claims, &figures.into_list());
        assert_eq!(
            checks.iter().map(|check| check.holds).collect::<Vec<_>>(),
            [Some(true), Some(false), None, None]
        );
        assert_eq!((checks[0].published, checks[0].measured), (Some(5.0), Some(3.0)));
        let verdict = verdict(&checks);
        assert!(
            verdict.contains("in part: 1 claims hold, 1 fail") && verdict.contains("2 could not"),
            "{verdict}"
        );
        assert!(super::verdict(&[]).contains("Nothing was claimed"));
    }
}
