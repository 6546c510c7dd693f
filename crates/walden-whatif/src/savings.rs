//! Savings of the findings' remedies, predicted by replay.

use walden_explain::Explanation;
use walden_explain::document::Document;
use walden_explain::savings::{Changes, Saving, apply, distinct_changes};
use walden_format::lsn::Lsn;
use walden_source::inventory::Run;
use walden_source::names::Names;

use crate::learn;
use crate::outcome::Prediction;
use crate::predict::{Forecast, Question, predict};

/// Predicts the savings of all findings whose remedy is a setting, and ranks the findings.
/// `walden_explain::savings::estimate` is faster and less exact.
///
/// Savings stay unknown if the WAL has gaps, several timelines, or damage, or if no prediction is possible.
pub fn predict_savings(
    document: &mut Document,
    explanation: &Explanation,
    runs: &[Run],
    names: &Names,
    (threads, memory_bytes): (usize, usize),
) {
    let changes = distinct_changes(&document.findings);
    let ([range], [run], None) = (explanation.ranges.as_slice(), runs, &explanation.damage) else { return };
    if changes.is_empty() {
        return;
    }
    let question = Question {
        from: (range.start > run.start()).then_some(range.start),
        to: (range.end < run.end()).then_some(Lsn(range.end.0)),
        server: learn::settings_from_server(&names.settings),
        changes: changes.clone(),
        threads,
        memory_bytes,
        ..Question::default()
    };
    let Ok(forecast) = predict(run, &question, &|_| {}) else { return };
    let savings: Vec<(Changes, Saving)> = changes
        .into_iter()
        .zip(&forecast.predictions)
        .filter_map(|(change, (_, one))| Some((change, saving_of(&forecast, one)?)))
        .collect();
    apply(document, &savings, explanation.buckets.images());
}

/// Maximum relative error of the self-check. Up to this error, savings are relative to the self-check,
/// because errors of both predictions cancel out; above, savings are relative to the trace.
const MAX_SELF_CHECK_ERROR: f64 = 0.2;

/// Returns the saving, or `None` if the prediction is useless: a simulated server can differ greatly from one
/// that could not keep up with its checkpoints.
fn saving_of(forecast: &Forecast, prediction: &Prediction) -> Option<Saving> {
    let error = forecast.error_bytes(prediction) as u64;
    saving_between(forecast.self_check.bytes, forecast.trace_bytes, prediction.bytes, error)
}

fn saving_between(self_check: u64, trace: u64, predicted: u64, error: u64) -> Option<Saving> {
    let is_good = self_check.abs_diff(trace) as f64 <= MAX_SELF_CHECK_ERROR * trace as f64;
    match is_good {
        true => Some(Saving {
            bytes: self_check.saturating_sub(predicted),
            // The errors of the two predictions need not cancel out completely.
            error: error + self_check.abs_diff(trace),
        }),
        false => trace.checked_sub(predicted).map(|bytes| Saving { bytes, error: error.min(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savings_are_of_the_trace_where_its_own_settings_predict_something_else() {
        let saves = |self_check, predicted| {
            saving_between(self_check, 1000, predicted, 500).map(|saving| (saving.bytes, saving.error))
        };
        assert_eq!(saves(1100, 900), Some((200, 600)), "the self-check is off by 100");
        assert_eq!(saves(900, 950), Some((0, 600)));
        assert_eq!(saves(6000, 700), Some((300, 300)), "not 5300");
        assert_eq!(saves(6000, 5000), None);
    }
}
