//! What an experiment measured, beside what was published, and whether the shape came out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use walden_format::lsn::Lsn;

use super::definition::{Claim, Definition, Source};
use crate::facts::{Server, Setting};

/// The results of an experiment; this is its JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The experiment.
    pub experiment: String,
    /// One line about it.
    pub about: String,
    /// Where the published figures come from, if there are any.
    pub source: Option<Source>,
    /// How much was done.
    pub sizes: BTreeMap<String, u64>,
    /// Whether that is as much as was published. Absolute figures compare only then.
    pub published_size: bool,
    /// The PostgreSQL server, if there was one.
    pub server: Option<Server>,
    /// When it began, UTC.
    pub started_at: String,
    /// How long it took.
    pub seconds: f64,
    /// One server after another, with its settings and positions in the log.
    pub runs: Vec<RunResult>,
    /// Every figure.
    pub figures: Vec<Figure>,
    /// What the shape is, and whether it came out.
    pub checks: Vec<Check>,
    /// All checks in one sentence.
    pub verdict: String,
    /// What else is to be said.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub unavailable: Vec<String>,
    /// What belongs to one kind of experiment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, Value>,
}

/// A server that was started, put to work and stopped.
#[derive(Debug, Clone, Serialize)]
pub struct RunResult {
    /// The case.
    pub case: String,
    /// As `pg_settings` had them: all that are not default, and those that the volume of WAL depends on.
    pub settings: BTreeMap<String, Setting>,
    /// The parts of it that were measured, in order.
    pub phases: Vec<Phase>,
    /// What `--keep` left.
    pub kept: Option<Kept>,
}

/// A part of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// The insert position when it began.
    #[serde(serialize_with = "as_text")]
    pub from: Lsn,
    /// The insert position when it had ended.
    #[serde(serialize_with = "as_text")]
    pub to: Lsn,
    /// Its duration.
    pub seconds: f64,
}

/// A folder of WAL that was kept.
#[derive(Debug, Clone, Serialize)]
pub struct Kept {
    /// `facts.json` and `wal/` are in it.
    pub folder: PathBuf,
    /// The segments, complete and in order.
    pub wal: PathBuf,
}

/// What a prediction is made from: see [`RunResult::trace`].
#[derive(Debug, Clone)]
pub struct Trace<'a> {
    /// The folder of segments.
    pub wal: &'a std::path::Path,
    /// From where the first phase began ..
    pub from: Lsn,
    /// .. to where the last one ended.
    pub to: Lsn,
    /// The settings that it was written under.
    pub settings: &'a BTreeMap<String, Setting>,
}

/// One figure: measured, published, predicted, or some of these.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The case.
    pub case: String,
    /// The phase.
    pub phase: String,
    /// What was measured.
    pub measure: String,
    /// By this experiment.
    pub measured: Option<f64>,
    /// By others.
    pub published: Option<f64>,
    /// What a prediction says, where one was made.
    pub predicted: Option<f64>,
}

/// A claim and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// In words.
    pub claim: String,
    /// The published ratio.
    pub published: Option<f64>,
    /// The measured one.
    pub measured: Option<f64>,
    /// Bounds of the shape.
    pub at_least: Option<f64>,
    /// Bounds of the shape.
    pub at_most: Option<f64>,
    /// Whether it came out; nothing if it was not measured, or has no bounds.
    pub holds: Option<bool>,
}

fn as_text<S: serde::Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// Megabytes of 2^20 bytes, in which all published volumes are.
pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64
}

impl RunResult {
    /// The log of the run, if it was kept: where a prediction of it, or of other settings, starts from.
    pub fn trace(&self) -> Option<Trace<'_>> {
        let kept = self.kept.as_ref()?;
        let (first, last) = (self.phases.first()?, self.phases.last()?);
        Some(Trace { wal: &kept.wal, from: first.from, to: last.to, settings: &self.settings })
    }
}

impl Figure {
    /// What claims and definitions call it.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.case, self.phase, self.measure)
    }
}

/// The figures of an experiment while it is being run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    list: Vec<Figure>,
    published: BTreeMap<String, f64>,
}

impl Figures {
    pub fn of(definition: &Definition) -> Figures {
        Figures { list: Vec::new(), published: definition.published() }
    }

    /// Adds a published figure that the definition has elsewhere than in its cases.
    pub fn publish(&mut self, key: String, value: f64) {
        self.published.insert(key, value);
    }

    /// A figure whose published value is not the definition's.
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

    /// What a prediction says of figures that are there already.
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

/// A figure by its key, where the case `last` is the last one.
fn value(figures: &[Figure], key: &str, which: impl Fn(&Figure) -> Option<f64>) -> Option<f64> {
    let (first, rest) = key.split_once('/')?;
    let last = match first {
        "last" => Some(format!("{}/{rest}", figures.last()?.case)),
        _ => None,
    };
    let key = last.as_deref().unwrap_or(key);
    figures.iter().find(|figure| figure.key() == key).and_then(which)
}

/// Judges the claims.
pub(crate) fn judge(claims: &[Claim], figures: &[Figure]) -> Vec<Check> {
    let check = |claim: &Claim| {
        let ratio = |which: fn(&Figure) -> Option<f64>| -> Option<f64> {
            let [above, below] = &claim.ratio;
            let (above, below) = (value(figures, above, which)?, value(figures, below, which)?);
            (below > 0.0).then(|| above / below)
        };
        let measured = ratio(|figure| figure.measured);
        let judged = claim.at_least.is_some() || claim.at_most.is_some();
        let holds = measured.filter(|_| judged).map(|ratio| {
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

/// All checks in one sentence.
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
        (0, 0) => "Nothing could be judged.".into(),
        (held, 0) => format!("The published shape came out: all {held} judged claims hold{unmeasured}."),
        (0, failed) => format!("The published shape did not come out: {failed} claims fail{unmeasured}."),
        (held, failed) => {
            let names: Vec<&str> = checks
                .iter()
                .filter(|check| check.holds == Some(false))
                .map(|check| check.claim.as_str())
                .collect();
            format!(
                "The published shape came out in part: {held} claims hold, {failed} don't ({}){unmeasured}.",
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
        let checks = judge(&claims, &figures.into_list());
        assert_eq!(
            checks.iter().map(|check| check.holds).collect::<Vec<_>>(),
            [Some(true), Some(false), None, None]
        );
        assert_eq!((checks[0].published, checks[0].measured), (Some(5.0), Some(3.0)));
        let verdict = verdict(&checks);
        assert!(
            verdict.contains("in part: 1 claims hold, 1 don't") && verdict.contains("2 could not"),
            "{verdict}"
        );
        assert!(super::verdict(&[]).contains("Nothing was claimed"));
    }
}
