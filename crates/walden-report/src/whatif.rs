//! Renders a prediction as terminal tables.

use walden_source::counted;
use walden_whatif::Bucket;
use walden_whatif::advise::Advice;
use walden_whatif::archive::ArchiveSize;
use walden_whatif::document::{BucketBytes, Causes, Document, Predicted};
use walden_whatif::learn::Origin;

use crate::sweep::{self, Sweep};
use crate::table::{Look, Row, table, wrap};
use crate::{plot, units};

/// Renders the complete document.
pub fn tables(document: &Document, look: Look) -> String {
    let mut parts = vec![head(document, look), settings(document, look), predictions(document, look)];
    parts.extend(
        sweep::curves(document).iter().map(|curve| plot::curve(curve, look)).filter(|plot| !plot.is_empty()),
    );
    if !document.trace.archive.is_empty() {
        parts.push(archive(document, look));
    }
    if let [only] = &document.predictions[..] {
        parts.push(buckets(document, only, look));
        parts.extend((!only.objects.is_empty()).then(|| objects(only, look)));
    }
    parts.extend(document.advice.as_ref().map(|advice| self::advice(advice, look)));
    parts.push(notes(document, look));
    parts.join("\n")
}

fn head(document: &Document, look: Look) -> String {
    let trace = &document.trace;
    let over = trace.seconds.map_or(String::new(), |seconds| format!(" in {}", units::seconds(seconds)));
    let check = &document.self_check;
    let wrong = check.diagnostics.missing_images + check.diagnostics.unexpected_images;
    let of_trace = format!(
        "  {} to {}, PostgreSQL {}: {}{over}, {} records, {} images after checkpoints, checkpoints: {}",
        trace.from,
        trace.to,
        trace.version,
        units::bytes(document.trace_bytes),
        units::count(trace.records),
        units::count(trace.images),
        causes(&trace.checkpoints),
    );
    let of_check = format!(
        "  self-check: its own settings predicted give {} ({}), checkpoints: {}; images predicted correctly for {} of {} changes",
        units::bytes(check.predicted_bytes),
        signed(check.error, 2),
        causes(&check.checkpoints),
        units::count(check.diagnostics.decisions - wrong.min(check.diagnostics.decisions)),
        units::count(check.diagnostics.decisions),
    );
    let [of_trace, of_check] = [of_trace, of_check].map(|line| wrap(&line, look.width, 4));
    format!("{}\n{of_trace}\n{of_check}\n", look.heading("The trace"))
}

fn settings(document: &Document, look: Look) -> String {
    let mut text = format!("{}\n", look.heading("Taken under"));
    let label = |name: &str, value: &str| format!("{name} = {value}");
    let longest =
        document.traced_settings.iter().map(|one| label(one.name, &one.value).len()).max().unwrap_or(0);
    for traced in &document.traced_settings {
        let from = match traced.from {
            Origin::Given | Origin::Server => "given",
            Origin::Learned => "learned",
            Origin::Assumed => "assumed",
        };
        let blanks = " ".repeat(longest + 4);
        let because = wrap(&format!("{blanks}{from}: {}", traced.why), look.width, longest + 4);
        let because = because.strip_prefix(&blanks).unwrap_or(&because);
        text += &format!("  {:longest$}  {because}\n", label(traced.name, &traced.value));
    }
    text
}

fn predictions(document: &Document, look: Look) -> String {
    let sweep = Sweep::from_document(document);
    let alone = document.predictions.len() == 1;
    let most = document.predictions.iter().map(|one| one.bytes).max().unwrap_or(0).max(document.trace_bytes);
    let share = |bytes: u64| Some(bytes as f64 / most.max(1) as f64);
    let mut rows = vec![Row {
        depth: 0,
        label: "the trace".into(),
        cells: vec![
            units::bytes(document.trace_bytes),
            String::new(),
            String::new(),
            units::count(document.trace.checkpoints.total),
            String::new(),
            String::new(),
        ],
        share: share(document.trace_bytes),
    }];
    rows.extend(document.predictions.iter().enumerate().map(|(index, one)| Row {
        depth: 0,
        label: if alone { "predicted".into() } else { sweep.label(document, index) },
        cells: vec![
            units::bytes(one.bytes),
            signed(one.change, 1),
            format!("±{:.2} %", 100.0 * one.error_bytes as f64 / one.bytes.max(1) as f64),
            units::count(one.checkpoints.total),
            units::bytes(one.longest_redo_bytes),
            units::seconds(one.recovery_seconds),
        ],
        share: share(one.bytes),
    }));
    let with: Vec<String> = sweep.common.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let title = match (sweep.names.is_empty(), with.is_empty()) {
        (true, _) => match &document.predictions[..] {
            [only] => format!("Predicted: {}", only.name),
            _ => "Predicted".to_owned(),
        },
        (false, true) => format!("Predicted, by {}", sweep.names.join(", ")),
        (false, false) => format!("Predicted with {}, by {}", with.join(", "), sweep.names.join(", ")),
    };
    let head = ["WAL", "change", "error", "checkpoints", "to replay", "recovery ≤"];
    let mut text = table(look, &title, ("settings", &head), &rows);
    if let Some(note) = describe_unused_ends(document, &sweep) {
        text.push_str(&format!("  {}\n", wrap(&note, look.width, 4)));
    }
    text
}

/// Describes the change without the unused ends of switched segments, if these affect the total change
/// visibly.
pub(crate) fn describe_unused_ends(document: &Document, sweep: &Sweep) -> Option<String> {
    let ends = |buckets: &[BucketBytes]| {
        let found = buckets.iter().find(|one| one.name == Bucket::Switches.name());
        found.map_or(0, |one| one.bytes)
    };
    let now = (document.trace_bytes, ends(&document.trace.buckets));
    let alone = document.predictions.len() == 1;
    let numbered = document.predictions.iter().enumerate();
    let parts = numbered.filter(|(_, one)| !one.changed.is_empty()).filter_map(|(index, one)| {
        let then = (one.bytes, ends(&one.buckets));
        let change = change_without_ends(now, then)?;
        let ends = format!("{} in place of {}", units::bytes(then.1), units::bytes(now.1));
        let label = if alone { String::new() } else { format!("{}: ", sweep.label(document, index)) };
        Some(format!("{label}{} ({ends})", signed(change, 1)))
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        return None;
    }
    Some(format!(
        "where a segment is switched before it is full, its unused end depends on where the records end; the change without \
         these ends: {}",
        parts.join(", ")
    ))
}

/// Returns the change of the WAL without unused ends of segments, given the total and these ends before and
/// after, or `None` if the ends hardly affect the total change.
fn change_without_ends((before, ends_before): (u64, u64), (after, ends_after): (u64, u64)) -> Option<f64> {
    let of_ends = ends_after.abs_diff(ends_before) as f64;
    // A difference that disappears by rounding the total to a tenth of a per cent does not matter.
    let least = (after.abs_diff(before) as f64 / 10.0).max(before as f64 / 2000.0);
    let rest_before = before.saturating_sub(ends_before);
    let rest_after = after.saturating_sub(ends_after);
    (of_ends > least && rest_before > 0).then(|| rest_after as f64 / rest_before as f64 - 1.0)
}

fn buckets(document: &Document, only: &Predicted, look: Look) -> String {
    let rows: Vec<Row> = Bucket::ALL
        .iter()
        .zip(document.trace.buckets.iter().zip(&only.buckets))
        .filter(|(_, (now, then))| now.bytes > 0 || then.bytes > 0)
        .map(|(bucket, (now, then))| Row {
            depth: 0,
            label: bucket.title().into(),
            cells: vec![
                units::bytes(now.bytes),
                units::bytes(then.bytes),
                if now.bytes == 0 {
                    String::new()
                } else {
                    signed(then.bytes as f64 / now.bytes as f64 - 1.0, 1)
                },
            ],
            share: Some(then.bytes as f64 / only.bytes.max(1) as f64),
        })
        .collect();
    let mut text = table(look, "Where it goes", ("", &["now", "then", "change"]), &rows);
    let [exact, reconstructed, sampled, estimated] = only.shares;
    let shares = format!(
        "  of what is predicted, {} is taken unchanged from the WAL, {} follows from replayed pages, {} from a sample of \
         images, {} is estimated",
        units::percent(exact),
        units::percent(reconstructed),
        units::percent(sampled),
        units::percent(estimated)
    );
    text.push_str(&wrap(&shares, look.width, 4));
    text.push('\n');
    if let Some(hour) = only.segments_per_hour {
        text.push_str(&format!("  {}, {hour:.0} an hour at this pace\n", counted(only.segments, "segment")));
    }
    text
}

fn archive(document: &Document, look: Look) -> String {
    let names: Vec<&str> = document.trace.archive.iter().map(|one| one.compressor.as_str()).collect();
    let cell = |sizes: &[ArchiveSize], name: &str| {
        sizes.iter().find(|one| one.compressor == name).map_or("unknown".into(), |one| {
            let error = 100.0 * one.error_bytes as f64 / one.bytes.max(1) as f64;
            format!("{} ±{error:.0} %", units::bytes(one.bytes))
        })
    };
    let row = |label: &str, sizes: &[ArchiveSize]| Row {
        depth: 0,
        label: label.into(),
        cells: names.iter().map(|name| cell(sizes, name)).collect(),
        share: None,
    };
    let mut rows = vec![row("the trace", &document.trace.archive)];
    let sweep = Sweep::from_document(document);
    let labelled = document.predictions.iter().enumerate();
    rows.extend(labelled.map(|(index, one)| row(&sweep.label(document, index), &one.archive)));
    let mut text = table(look, "In an archive, segment by segment", ("settings", &names), &rows);
    let month = |label: &str, sizes: &[ArchiveSize]| {
        let month = sizes.iter().find_map(|one| one.month.as_ref())?;
        let count = |number: f64| units::count(number.round() as u64);
        let price = month.price.map_or("unknown".to_owned(), |price| format!("{price:.2}"));
        Some(Row {
            depth: 0,
            label: label.into(),
            cells: vec![
                units::bytes(month.stored_bytes as u64),
                units::bytes(month.billed_bytes as u64),
                count(month.put_requests),
                count(month.get_requests),
                price,
            ],
            share: None,
        })
    };
    let predicted = document.predictions.iter().enumerate();
    let rows: Vec<Row> = month("the trace", &document.trace.archive)
        .into_iter()
        .chain(predicted.filter_map(|(index, one)| month(&sweep.label(document, index), &one.archive)))
        .collect();
    if !rows.is_empty() {
        let columns = ["stored", "billed", "write, list", "reads", "price"];
        text.push('\n');
        text.push_str(&table(look, "A month of walden archive", ("settings", &columns), &rows));
    }
    text
}

fn objects(only: &Predicted, look: Look) -> String {
    let rows: Vec<Row> = only
        .objects
        .iter()
        .map(|one| Row {
            depth: 0,
            label: one.what.clone(),
            cells: [one.best_bytes, one.worst_bytes].map(signed_bytes).into(),
            share: None,
        })
        .collect();
    let mut text =
        table(look, "Changes of tables and indexes, on top", ("", &["at best", "at worst"]), &rows);
    for one in &only.objects {
        text.push_str(&format!(
            "  {}\n",
            look.faint(&wrap(&format!("{}: {}", one.what, one.why), look.width, 2))
        ));
    }
    text
}

/// Formats a change in bytes, with its sign.
pub(crate) fn signed_bytes(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", units::bytes(bytes.unsigned_abs()))
}

fn advice(advice: &Advice, look: Look) -> String {
    let mut text = format!("{}\n  {}\n", look.heading("Advice"), advice.aim);
    if !advice.reached {
        text.push_str(&format!("  not reached: {}\n", advice.why));
    } else if advice.steps.is_empty() {
        text.push_str("  reached already: nothing has to change\n");
    }
    for step in &advice.steps {
        text.push_str(&format!(
            "\n  {}\n    WAL then {} ({}), recovery in at most {}, pg_wal of about {}\n    {}\n",
            step.statement,
            units::bytes(step.bytes),
            signed(step.change, 1),
            units::seconds(step.recovery_seconds),
            units::bytes(step.pg_wal_bytes),
            look.faint(&wrap(&step.risk, look.width, 4)),
        ));
    }
    for warning in &advice.warnings {
        text.push_str(&format!("\n  {}\n", wrap(warning, look.width, 2)));
    }
    if !advice.steps.is_empty() {
        text.push_str("\n  SELECT pg_reload_conf();\n");
    }
    text
}

fn notes(document: &Document, look: Look) -> String {
    let lines: Vec<String> = document
        .notes
        .iter()
        .map(|note| format!("  - {}\n", wrap(note, look.width.saturating_sub(4), 4)))
        .collect();
    format!("{}\n{}", look.heading("Assumptions"), lines.concat())
}

/// Describes checkpoints by cause.
pub(crate) fn causes(causes: &Causes) -> String {
    let parts = [(causes.volume, "volume"), (causes.time, "time"), (causes.requested, "requested")];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}"));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// Formats a fraction in per cent, with its sign.
pub(crate) fn signed(fraction: f64, digits: usize) -> String {
    format!("{:+.digits$} %", 100.0 * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_ends_are_told_of_where_they_hide_or_make_a_change() {
        const GB: u64 = 1 << 30;
        // Images shrink, and the end of the last segment grows by the same amount.
        let hidden = change_without_ends((3 * GB, GB), (3 * GB, 2 * GB)).unwrap();
        assert!((hidden + 0.5).abs() < 1e-9, "{hidden}");
        assert_eq!(signed(hidden, 1), "-50.0 %");
        // A twentieth of the change; no change; and a change that no figure shows.
        assert_eq!(change_without_ends((3 * GB, GB), (2 * GB, GB - GB / 20)), None);
        assert_eq!(change_without_ends((3 * GB, GB), (2 * GB, GB)), None);
        assert_eq!(change_without_ends((3 * GB, GB), (3 * GB, GB + 1)), None);
        assert_eq!(change_without_ends((GB, GB), (2 * GB, 2 * GB)), None);
    }
}
