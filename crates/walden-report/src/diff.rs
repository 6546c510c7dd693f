//! Renders a comparison of two ranges for a terminal.

use walden_explain::diff::{Change, Diff, Per, SideDocument, Status};

use crate::explain::CAUSES;
use crate::table::{Look, Row, harmless, table, wrap};
use crate::units;

/// Renders the complete report, ending with a line break. Shows `top` lines of each list, and combines the
/// rest in one line.
pub fn diff(diff: &Diff, top: usize, look: Look) -> String {
    let mut sections = vec![header(diff, look), findings(diff, top, look)];
    if diff.views.is_empty() {
        sections.push(changes(
            diff,
            CAUSES,
            "relation, statement or task, mechanism",
            &diff.causes,
            top,
            look,
        ));
        sections.push(changes(diff, "Relations", "relation", &diff.relations, top, look));
        sections.push(changes(
            diff,
            "Kinds of records",
            "resource manager, kind",
            &diff.record_kinds,
            top,
            look,
        ));
        sections.push(changes(diff, "Where the bytes are", "", &diff.buckets, top, look));
        sections.push(images(diff, look));
        sections.push(checkpoints(diff, look));
    }
    for view in &diff.views {
        let by = view.by.join(", ");
        sections.push(changes(diff, &format!("By {by}"), &by, &view.groups, top, look));
    }
    sections.push(notes(diff, look));
    sections.retain(|section| !section.is_empty());
    sections.join("\n")
}

fn header(diff: &Diff, look: Look) -> String {
    let title = format!("{} to {}: {}", diff.a.name, diff.b.name, amount(diff, diff.total.change_bytes));
    let mut text = format!("{}\n", look.heading(&title));
    for side in [&diff.a, &diff.b] {
        let line = format!("  {}: {}", side.name, side_text(side));
        text.push_str(&wrap(&line, look.width, 4));
        text.push('\n');
    }
    if diff.total.beyond_noise == Some(false) && diff.per == Per::Second {
        text.push_str(&look.alarm("  The change is within the noise: see the notes."));
        text.push('\n');
    }
    text
}

/// Describes a range.
pub(crate) fn side_text(side: &SideDocument) -> String {
    let whole = |time: &str| {
        time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
    };
    if side.start.is_empty() {
        return "no WAL".to_owned();
    }
    let mut text = format!("{} to {}", side.start, side.end);
    if let (Some(first), Some(last)) = (&side.first_time, &side.last_time) {
        text += &format!(", {} to {}", whole(first), whole(last));
    }
    text += &format!(", {} in {}", units::bytes(side.bytes), units::seconds(side.seconds));
    if side.seconds >= 1.0 {
        text += &format!(" ({}/s)", units::bytes((side.bytes as f64 / side.seconds) as u64));
    }
    text + &format!(", {} transactions", units::count(side.transactions))
}

/// Formats a change over the length of B, in the unit of the comparison, with its sign.
pub fn amount(diff: &Diff, change: i64) -> String {
    let (by, unit) = match diff.per {
        Per::Second => (diff.b.seconds, "/s"),
        Per::Transaction => (diff.b.transactions as f64, " per transaction"),
        Per::Total => (1.0, ""),
    };
    let bytes = units::bytes((change.unsigned_abs() as f64 / by.max(1e-6)).round() as u64);
    format!("{}{bytes}{unit}", if change < 0 { '-' } else { '+' })
}

/// Formats the bytes of A or B in the unit of the comparison.
fn rate(diff: &Diff, side: &SideDocument, bytes: u64) -> String {
    let by = match diff.per {
        Per::Second => side.seconds,
        Per::Transaction => side.transactions as f64,
        Per::Total => 1.0,
    };
    units::bytes((bytes as f64 / by.max(1e-6)).round() as u64)
}

/// Returns the name of the unit for table headings.
pub fn unit(diff: &Diff) -> &'static str {
    match diff.per {
        Per::Second => "per second",
        Per::Transaction => "per transaction",
        Per::Total => "bytes",
    }
}

fn share_text(share: Option<f64>) -> String {
    share_of_change(share).unwrap_or_else(|| "-".to_owned())
}

/// Formats a part of the total change with its sign, or returns `None` if parts that are many times the total
/// cancel each other out.
pub(crate) fn share_of_change(share: Option<f64>) -> Option<String> {
    const MAX: f64 = 3.0;
    let text = |share: f64| match share < 0.0 {
        true => format!("-{}", units::percent(-share)),
        false => units::percent(share),
    };
    share.filter(|share| share.abs() <= MAX).map(text)
}

/// Returns the mark of a row of a table.
pub(crate) fn mark(change: &Change) -> &'static str {
    match (change.status, change.beyond_noise) {
        (Status::New, _) => "new",
        (Status::Gone, _) => "gone",
        (Status::Both, Some(false)) => "noise",
        (Status::Both, _) => "",
    }
}

fn changes(diff: &Diff, title: &str, head: &str, all: &[Change], top: usize, look: Look) -> String {
    if all.is_empty() {
        return String::new();
    }
    let largest = all.iter().map(|change| change.change_bytes.unsigned_abs()).max().unwrap_or(0).max(1);
    let shown = all.len().min(top);
    let row = |label: String, a: u64, b: u64, change: i64, share: String, mark: &str| Row {
        depth: 0,
        label,
        cells: vec![
            rate(diff, &diff.a, a),
            rate(diff, &diff.b, b),
            amount(diff, change).replace(" per transaction", "").replace("/s", ""),
            share,
            mark.to_owned(),
        ],
        share: Some(change.unsigned_abs() as f64 / largest as f64),
    };
    let mut rows: Vec<Row> = all[..shown]
        .iter()
        .map(|one| {
            row(
                one.label.clone(),
                one.a_bytes,
                one.b_bytes,
                one.change_bytes,
                share_text(one.share_of_change),
                mark(one),
            )
        })
        .collect();
    let rest = &all[shown..];
    if !rest.is_empty() {
        let sum = |of: fn(&Change) -> u64| rest.iter().map(of).sum();
        let change: i64 = rest.iter().map(|one| one.change_bytes).sum();
        let whole = diff.total.change_bytes;
        let share = share_text((whole != 0).then(|| change as f64 / whole as f64));
        let label = format!("{} more", units::count(rest.len() as u64));
        rows.push(row(label, sum(|one| one.a_bytes), sum(|one| one.b_bytes), change, share, ""));
    }
    let total = &diff.total;
    let share = share_text(total.share_of_change);
    rows.push(row("all".into(), total.a_bytes, total.b_bytes, total.change_bytes, share, ""));
    let title = format!("{title}, {}", unit(diff));
    table(look, &title, (head, &[&diff.a.name, &diff.b.name, "change", "of all", ""]), &rows)
}

fn images(diff: &Diff, look: Look) -> String {
    let rows: Vec<Row> = diff
        .images
        .iter()
        .map(|image| {
            let mean = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), units::bytes);
            let change = &image.change;
            Row {
                depth: 0,
                label: change.label.clone(),
                cells: vec![
                    units::count(image.a_count),
                    units::count(image.b_count),
                    mean(image.a_mean_bytes.filter(|_| image.a_count > 0)),
                    mean(image.b_mean_bytes.filter(|_| image.b_count > 0)),
                    amount(diff, change.change_bytes),
                ],
                share: None,
            }
        })
        .collect();
    let (a, b) = (&diff.a.name, &diff.b.name);
    let heads = [
        format!("count {a}"),
        format!("count {b}"),
        format!("mean {a}"),
        format!("mean {b}"),
        "change".into(),
    ];
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    table(look, "Full-page images", ("cause", &heads), &rows)
}

fn checkpoints(diff: &Diff, look: Look) -> String {
    let line = |side: &SideDocument| {
        let causes: Vec<String> =
            side.checkpoints_by_cause.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
        let every = match (side.mean_checkpoint_interval_seconds, side.mean_checkpoint_distance) {
            (Some(seconds), Some(distance)) => {
                format!("; on average {} and {} apart", units::seconds(seconds), units::bytes(distance))
            }
            _ => String::new(),
        };
        let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
        let text = format!(
            "  {}: {}{causes}, {} whole cycles{every}",
            side.name, side.checkpoints, side.whole_cycles
        );
        wrap(&text, look.width, 4)
    };
    format!("{}\n{}\n{}\n", look.heading("Checkpoints"), line(&diff.a), line(&diff.b))
}

fn findings(diff: &Diff, top: usize, look: Look) -> String {
    if diff.findings.is_empty() {
        return String::new();
    }
    let mut text = format!("{}\n", look.heading("What explains the change"));
    let shown = if top == 0 { diff.findings.len() } else { top.min(diff.findings.len()) };
    for (index, finding) in diff.findings[..shown].iter().enumerate() {
        let share = finding.share_of_change.filter(|_| finding.change_bytes != 0);
        let share =
            share_of_change(share).map(|share| format!(" ({share} of the change)")).unwrap_or_default();
        let line = format!("{}{share}", finding.text);
        let line = wrap(&harmless(&line), look.width.saturating_sub(5), 5);
        text.push_str(&format!("{:>3}. {line}\n", index + 1));
    }
    if shown < diff.findings.len() {
        let more = units::count((diff.findings.len() - shown) as u64);
        text.push_str(&format!("{}\n", look.faint(&format!("     {more} more of less; --top 0 shows all"))));
    }
    text
}

fn notes(diff: &Diff, look: Look) -> String {
    let line =
        |note: &String| format!("{}\n", look.faint(&wrap(&format!("  {}", harmless(note)), look.width, 4)));
    match diff.notes.is_empty() {
        true => String::new(),
        false => format!("{}\n{}", look.heading("Notes"), diff.notes.iter().map(line).collect::<String>()),
    }
}
