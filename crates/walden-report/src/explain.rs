//! Renders an explanation for a terminal.

use walden_explain::document::{CauseDocument, Document, GroupDocument, TallyDocument, ViewDocument};
use walden_explain::tally::{Bucket, ImageCause};
use walden_explain::{Finding, FindingKind, merge_findings};

use crate::table::{Look, Row, harmless, shorten, table, titled_table, wrap};
use crate::units;

/// Renders the complete report, ending with a line break.
pub fn explain(document: &Document, look: Look) -> String {
    let mut sections = vec![header(document, look), buckets(document, look), images(document, look)];
    if document.views.is_empty() {
        sections.push(causes(CAUSES, &document.causes, document.wal_bytes, look));
        sections.push(relations(document, look));
        sections.push(record_kinds(document, look));
        sections.push(transactions(document, look));
        sections.push(checkpoints(document, look));
    }
    sections.extend(document.views.iter().map(|view| view_table(view, look)));
    if !document.statement_causes.is_empty() {
        sections.push(causes(STATEMENT_CAUSES, &document.statement_causes, document.wal_bytes, look));
    }
    sections.push(log(document, look));
    sections.push(cycles(document, look));
    sections.push(findings(document, look));
    sections.push(damage(document, look));
    sections.retain(|section| !section.is_empty());
    sections.join("\n")
}

/// Renders the report for one screen: buckets, the largest relations, and the findings that fit into `lines`
/// lines, but at least one.
pub fn brief(document: &Document, look: Look, lines: usize) -> String {
    let mut sections = vec![brief_header(document, look), largest_buckets(document, look)];
    sections.push(largest_relations(document, look));
    sections.push(damage(document, look));
    sections.retain(|section| !section.is_empty());
    let mut text = sections.join("\n");
    // An empty line, the headline of the findings, and the last line.
    let room = lines.saturating_sub(text.lines().count() + 3);
    let (findings, left) = brief_findings(document, look, room);
    if !findings.is_empty() {
        text.push_str(&format!("\n{findings}"));
    }
    let more = match left {
        0 => String::new(),
        1 => "1 more finding, ".to_owned(),
        left => format!("{left} more findings, "),
    };
    let footer = format!("--full adds {more}images, kinds of records, transactions, checkpoints");
    text + &format!("{}\n", look.faint(&wrap(&footer, look.width, 2)))
}

/// Rows of each table of the brief report, before the row of all others.
const BRIEF_ROWS: usize = 3;

fn brief_header(document: &Document, look: Look) -> String {
    let [range] = document.ranges.as_slice() else { return header(document, look) };
    let mut text = headline(document, look);
    let segments = match range.first_segment == range.last_segment {
        true => range.first_segment.clone(),
        false => format!("{} to {}", range.first_segment, range.last_segment),
    };
    text += &format!("  {}\n", shorten(&format!("{segments}, from {}", range.start), look.width - 2));
    let end = range.end_of_log.as_ref().map(|end| wrap(&format!("  {end}"), look.width, 4));
    text += &end.map_or_else(String::new, |end| format!("{}\n", look.faint(&end)));
    text += &times(document, look);
    match document.setting_changes.len() {
        0 => text,
        1 => text + "  a logged setting changes, see --full\n",
        changes => text + &format!("  logged settings change {changes} times, see --full\n"),
    }
}

fn largest_buckets(document: &Document, look: Look) -> String {
    let sums = document.wal_buckets();
    let mut rows: Vec<Row> = sums.iter().take(BRIEF_ROWS).map(|sum| bucket_row(document, *sum)).collect();
    let others: u64 = sums.iter().skip(BRIEF_ROWS).map(|(_, bytes)| bytes).sum();
    if others > 0 {
        rows.push(part_row(document, "other parts", others));
    }
    if rows.is_empty() {
        return String::new();
    }
    titled_table(look, ("Where the bytes are", &["bytes", "share"]), &rows)
}

fn largest_relations(document: &Document, look: Look) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for relation in document.relations.iter().take(BRIEF_ROWS) {
        let (label, sum) = (relation.label.text.clone(), &relation.sum);
        rows.push(Row { depth: 0, label, cells: sum_cells(sum), share: Some(sum.share) });
    }
    let others = || document.relations.iter().skip(BRIEF_ROWS).map(|relation| &relation.sum);
    let bytes: u64 = others().map(TallyDocument::wal_bytes).sum();
    if bytes > 0 {
        let share = others().map(|sum| sum.share).sum();
        let count = |number: fn(&TallyDocument) -> u64| units::count(others().map(number).sum());
        let images = count(|sum| sum.images);
        let cells = vec![units::bytes(bytes), units::percent(share), images, count(|sum| sum.records)];
        rows.push(Row { depth: 0, label: "others".into(), cells, share: Some(share) });
    }
    if rows.is_empty() {
        return String::new();
    }
    titled_table(look, ("Relations, with indexes and TOAST", SUMS), &rows)
}

/// Renders the findings with the highest priority that fit into `room` lines. Returns these findings and the
/// number of omitted findings.
fn brief_findings(document: &Document, look: Look, room: usize) -> (String, usize) {
    let findings = merge_findings(&document.findings);
    let mut text = String::new();
    let mut shown = 0;
    for finding in &findings {
        let next = brief_finding(finding, shown + 1, document, look);
        if shown > 0 && text.lines().count() + next.lines().count() > room {
            break;
        }
        text += &next;
        shown += 1;
    }
    if shown > 0 {
        text.insert_str(0, &format!("{}\n", look.heading("Findings")));
    }
    (text, findings.len() - shown)
}

/// Renders a finding without the line of its object, which the text or the remedy names.
fn brief_finding(finding: &Finding, number: usize, document: &Document, look: Look) -> String {
    let width = look.width.saturating_sub(5);
    let text = wrap(&harmless(&finding.text), width, 5);
    let advice = wrap(&advice(finding, document), width - 2, 7);
    format!("{number:>3}. {text}\n     {} {advice}\n", look.pointer("→"))
}

fn headline(document: &Document, look: Look) -> String {
    let (version, records) = (&document.postgresql, units::count(document.records));
    let bytes = units::bytes(document.wal_bytes);
    look.heading(&format!("WAL of PostgreSQL {version}, {bytes} in {records} records")) + "\n"
}

fn header(document: &Document, look: Look) -> String {
    let mut text = headline(document, look);
    for range in &document.ranges {
        let segments = match range.first_segment == range.last_segment {
            true => format!("segment {}", range.first_segment),
            false => format!("segments {} to {}", range.first_segment, range.last_segment),
        };
        let line = format!("  {} to {}, {segments}", range.start, range.end);
        text.push_str(&wrap(&line, look.width, 4));
        text.push('\n');
        if let Some(end) = &range.end_of_log {
            text.push_str(&look.faint(&wrap(&format!("  {end}"), look.width, 4)));
            text.push('\n');
        }
    }
    text += &times(document, look);
    for change in &document.setting_changes {
        let line =
            format!("  {} changes from {} to {} at {}", change.name, change.before, change.after, change.lsn);
        text.push_str(&wrap(&line, look.width, 4));
        text.push('\n');
    }
    text
}

/// Describes when transactions ended.
fn times(document: &Document, look: Look) -> String {
    let mut text = String::new();
    if let Some(time) = &document.time {
        let line =
            format!("  transactions ended from {} to {}", short_time(&time.first), short_time(&time.last));
        text.push_str(&wrap(&format!("{line} ({})", units::seconds(time.seconds)), look.width, 4));
        text.push('\n');
    }
    text
}

/// Formats a time without the fraction of the second.
fn short_time(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => time.to_owned(),
    }
}

fn buckets(document: &Document, look: Look) -> String {
    let rows: Vec<Row> = document.wal_buckets().into_iter().map(|sum| bucket_row(document, sum)).collect();
    table(look, "Where the bytes are", ("", &["bytes", "share"]), &rows)
}

fn bucket_row(document: &Document, (bucket, bytes): (Bucket, u64)) -> Row {
    part_row(document, bucket.description(), bytes)
}

fn part_row(document: &Document, label: &str, bytes: u64) -> Row {
    let share = bytes as f64 / document.wal_bytes.max(1) as f64;
    let cells = vec![units::bytes(bytes), units::percent(share)];
    Row { depth: 0, label: label.to_owned(), cells, share: Some(share) }
}

fn images(document: &Document, look: Look) -> String {
    let mut rows = Vec::new();
    for cause in ImageCause::ALL {
        let Some(by) = document.images.get(cause.name()).and_then(|sum| sum.get("by_compression")) else {
            continue;
        };
        for (compression, sum) in by.as_object().into_iter().flatten() {
            let number = |name: &str| sum.get(name).and_then(|value| value.as_u64()).unwrap_or(0);
            let (count, bytes, plain) = (number("count"), number("bytes"), number("uncompressed_bytes"));
            let saved = 1.0 - bytes as f64 / plain.max(1) as f64;
            let method = if compression == "none" { "not compressed" } else { compression };
            rows.push(Row {
                depth: 0,
                label: format!("{}, {method}", cause.name()),
                cells: vec![
                    units::count(count),
                    units::bytes(bytes),
                    units::bytes(bytes / count.max(1)),
                    if compression == "none" { "-".into() } else { units::percent(saved) },
                ],
                share: None,
            });
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    table(look, "Full-page images", ("cause, compression", &["images", "bytes", "mean", "saved"]), &rows)
}

const SUMS: &[&str] = &["bytes", "share", "images", "records"];

fn sum_cells(sum: &TallyDocument) -> Vec<String> {
    vec![
        units::bytes(sum.wal_bytes()),
        units::percent(sum.share),
        units::count(sum.images),
        units::count(sum.records),
    ]
}

/// Title of the list of causes.
pub const CAUSES: &str = "What wrote the WAL";

/// Title of the list of causes by statement.
pub(crate) const STATEMENT_CAUSES: &str = "What wrote the WAL, by statement";

/// Most letters of a statement before a cause.
const MAX_STATEMENT: usize = 60;

/// Returns a cause as text, after its statement if it has one.
pub(crate) fn cause_label(cause: &CauseDocument) -> String {
    let Some(statement) = &cause.statement else { return cause.label() };
    let mut short: String = statement.chars().take(MAX_STATEMENT).collect();
    if short.len() < statement.len() {
        short.push('…');
    }
    format!("{short}: {}", cause.label())
}

/// Most causes listed; the JSON has more.
const MAX_CAUSES: usize = 15;

/// Lists what wrote the bytes: statement or task, relation, and mechanism.
pub fn causes(title: &str, causes: &[CauseDocument], wal_bytes: u64, look: Look) -> String {
    let are_listed = |cause: &&CauseDocument| cause.folded.is_none();
    let listed = causes.iter().take_while(are_listed).take(MAX_CAUSES).count();
    let (listed, rest) = causes.split_at(listed);
    let row = |label: String, causes: &[CauseDocument]| {
        let sum = |number: fn(&CauseDocument) -> u64| causes.iter().map(number).sum::<u64>();
        let bytes = sum(|cause| cause.bytes);
        let share = bytes as f64 / wal_bytes.max(1) as f64;
        let (images, records) = (sum(|cause| cause.images), sum(|cause| cause.records));
        let cells =
            vec![units::bytes(bytes), units::percent(share), units::count(images), units::count(records)];
        Row { depth: 0, label, cells, share: Some(share) }
    };
    let mut rows: Vec<Row> =
        listed.iter().map(|cause| row(cause_label(cause), std::slice::from_ref(cause))).collect();
    if !rest.is_empty() {
        let folded: u64 = rest.iter().map(|cause| cause.folded.unwrap_or(1)).sum();
        rows.push(row(format!("{} more", units::count(folded)), rest));
    }
    table(look, title, ("relation, statement or task, mechanism", SUMS), &rows)
}

fn relations(document: &Document, look: Look) -> String {
    let mut rows = Vec::new();
    for relation in &document.relations {
        let row = |depth, label: &str, sum: &TallyDocument| Row {
            depth,
            label: label.to_owned(),
            cells: sum_cells(sum),
            share: Some(sum.share),
        };
        rows.push(row(0, &relation.label.text, &relation.sum));
        // A table without indexes, TOAST and maps needs no second line.
        if relation.parts.len() > 1 {
            rows.extend(relation.parts.iter().map(|part| row(1, &part.keys[0].part_text(), &part.sum)));
        }
    }
    table(look, "Relations, with their indexes, TOAST and maps", ("relation", SUMS), &rows)
}

fn record_kinds(document: &Document, look: Look) -> String {
    let rows: Vec<Row> = document.record_kinds.iter().map(group_row).collect();
    table(look, "Kinds of records", ("resource manager, kind", SUMS), &rows)
}

fn group_row(group: &GroupDocument) -> Row {
    let label = group.keys.iter().map(|key| key.text.as_str()).collect::<Vec<_>>().join(", ");
    Row { depth: 0, label, cells: sum_cells(&group.sum), share: Some(group.sum.share) }
}

fn view_table(view: &ViewDocument, look: Look) -> String {
    let mut rows: Vec<Row> = view.groups.iter().map(group_row).collect();
    if let Some(rest) = &view.rest {
        let label = format!("{} more", units::count(rest.groups));
        rows.push(Row { depth: 0, label, cells: sum_cells(&rest.sum), share: Some(rest.sum.share) });
    }
    table(look, &format!("By {}", view.by.join(", ")), (&view.by.join(", "), SUMS), &rows)
}

/// Describes how far the server's log could be joined.
fn log(document: &Document, look: Look) -> String {
    let Some(log) = &document.log else { return String::new() };
    let counts = &log.counts;
    let statements = log.statement_bytes as f64 / log.transaction_bytes.max(1) as f64;
    let line = format!(
        "  {} of the WAL of transactions is joined ({} of {}), {} with its statement; the log has {} transactions in {} entries of {} \
         files",
        units::percent(log.joined_share),
        units::bytes(log.joined_bytes),
        units::bytes(log.transaction_bytes),
        units::percent(statements),
        units::count(counts.transactions),
        units::count(counts.entries),
        units::count(counts.files)
    );
    let mut text = format!("{}\n{}\n", look.heading("The server's log"), wrap(&line, look.width, 2));
    for hint in &log.hints {
        text.push_str(&look.faint(&wrap(&format!("  {hint}"), look.width, 4)));
        text.push('\n');
    }
    text
}

/// Most cycles listed; the JSON has all.
const MAX_CYCLES: usize = 60;

fn cycles(document: &Document, look: Look) -> String {
    if document.cycles.is_empty() {
        return String::new();
    }
    let rows: Vec<Row> = document
        .cycles
        .iter()
        .take(MAX_CYCLES)
        .map(|cycle| Row {
            depth: 0,
            label: cycle.label.clone(),
            cells: vec![
                cycle.cause.unwrap_or("-").to_owned(),
                units::bytes(cycle.bytes),
                units::percent(cycle.image_bytes as f64 / cycle.bytes.max(1) as f64),
                cycle.image_share_along.iter().map(|share| sparkline(*share)).collect(),
            ],
            share: None,
        })
        .collect();
    let mut text = table(
        look,
        "Checkpoint cycles: the cause of each, and the share of images along it",
        ("from", &["cause", "bytes", "images", "tenths"]),
        &rows,
    );
    if document.cycles.len() > MAX_CYCLES {
        text.push_str(&format!("  {} more in the JSON form\n", document.cycles.len() - MAX_CYCLES));
    }
    text
}

fn sparkline(share: Option<f64>) -> char {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    match share {
        None => ' ',
        Some(share) => LEVELS[((share * 8.0) as usize).min(7)],
    }
}

fn transactions(document: &Document, look: Look) -> String {
    let sums = &document.transactions;
    let mut rows: Vec<Row> = sums
        .largest
        .iter()
        .map(|one| {
            let when = one.time.as_deref().map(|time| format!(" {}", short_time(time))).unwrap_or_default();
            Row {
                depth: 0,
                label: format!("{} {}{when}", one.xid, one.outcome),
                cells: vec![units::bytes(one.bytes), units::percent(one.share), units::count(one.records)],
                share: Some(one.share),
            }
        })
        .collect();
    let listed: u64 = sums.largest.iter().map(|one| one.bytes).sum();
    let share = |bytes: u64| bytes as f64 / document.wal_bytes.max(1) as f64;
    let all = sums.committed + sums.aborted + sums.open;
    let mut more = |label: String, bytes: u64, records: String| {
        rows.push(Row {
            depth: 0,
            label,
            cells: vec![units::bytes(bytes), units::percent(share(bytes)), records],
            share: Some(share(bytes)),
        });
    };
    if all > sums.largest.len() as u64 {
        let rest = units::count(all - sums.largest.len() as u64);
        more(format!("{rest} more"), sums.bytes.saturating_sub(listed), String::new());
    }
    more("no transaction".into(), sums.system_bytes, units::count(sums.system_records));
    let title = format!(
        "Largest transactions ({} committed, {} rolled back, {} open)",
        units::count(sums.committed),
        units::count(sums.aborted),
        units::count(sums.open)
    );
    table(look, &title, ("transaction", &["bytes", "share", "records"]), &rows)
}

fn checkpoints(document: &Document, look: Look) -> String {
    let checkpoints = &document.checkpoints;
    if checkpoints.count == 0 {
        return String::new();
    }
    let causes: Vec<String> =
        checkpoints.by_cause.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
    let mut text = format!("{}\n", look.heading("Checkpoints"));
    let origin = if checkpoints.causes_from_settings { "" } else { " (causes inferred from the WAL)" };
    let unfinished = match checkpoints.unfinished {
        0 => String::new(),
        unfinished => format!(", {unfinished} of them without an end in the WAL"),
    };
    let are_known = checkpoints.by_cause.keys().any(|cause| cause != "first");
    let count = format!("{} checkpoint{}", checkpoints.count, if checkpoints.count == 1 { "" } else { "s" });
    let mut line = match are_known {
        true => format!("  {count}: {}{unfinished}{origin}", causes.join(", ")),
        // Without a preceding checkpoint, the cause of the first checkpoint cannot be inferred.
        false => format!("  {count}, cause unknown{unfinished}"),
    };
    if let (Some(distance), Some(interval)) = (checkpoints.mean_distance, checkpoints.mean_interval_seconds) {
        line.push_str(&format!(
            "; on average {} and {} from one redo pointer to the next",
            units::bytes(distance),
            units::seconds(interval)
        ));
    }
    text.push_str(&wrap(&line, look.width, 2));
    text.push('\n');
    text
}

fn findings(document: &Document, look: Look) -> String {
    if document.findings.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for (kind, title) in FINDING_LISTS {
        let findings: Vec<&Finding> = document.findings.iter().filter(|one| one.kind == kind).collect();
        if findings.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("{}\n", look.heading(title)));
        for (index, finding) in findings.into_iter().enumerate() {
            text += &finding_text(finding, index + 1, document, look);
        }
    }
    text
}

/// Renders a finding with its number in the list.
fn finding_text(finding: &Finding, number: usize, document: &Document, look: Look) -> String {
    let width = look.width.saturating_sub(5);
    format!(
        "{number:>3}. {}\n     {} {}\n     {}\n",
        wrap(&harmless(&finding.text), width, 5),
        look.pointer("→"),
        look.pointer(&harmless(&finding.points_at)),
        wrap(&advice(finding, document), width, 5)
    )
}

/// Describes the remedy of a finding, and the bytes that it saves.
fn advice(finding: &Finding, document: &Document) -> String {
    harmless(&format!("{}{}", finding.remedy, saves_text(finding, document.wal_bytes))).into_owned()
}

/// The lists of findings, with their headings.
pub(crate) const FINDING_LISTS: [(FindingKind, &str); 2] = [
    (FindingKind::Cause, "Findings: causes in the workload"),
    (FindingKind::Setting, "Findings: causes in the settings"),
];

/// Describes the bytes that a remedy saves.
pub(crate) fn saves_text(finding: &Finding, wal_bytes: u64) -> String {
    let Some(saves) = finding.saves_bytes.filter(|bytes| *bytes > 0) else { return String::new() };
    let share = |bytes: u64| 100.0 * bytes as f64 / wal_bytes.max(1) as f64;
    let error = finding.saves_error_bytes.unwrap_or(0);
    let [least, most] = [saves.saturating_sub(error), (saves + error).min(wal_bytes)]
        .map(|bytes| format!("{:.0}", share(bytes)));
    // Bounds that are printed alike are shown as one number.
    if finding.saves_more_bytes > 0 {
        let least = saves.saturating_sub(error);
        return format!(
            "; saves at least {}, {:.1} % of the WAL, and more because fewer checkpoints follow",
            units::bytes(least),
            share(least)
        );
    }
    let range = match error * 50 > saves && least != most {
        true => format!("{least} to {most} %"),
        false => format!("{:.1} %", share(saves)),
    };
    format!("; saves about {}, {range} of the WAL", units::bytes(saves))
}

fn damage(document: &Document, look: Look) -> String {
    match &document.damage {
        Some(damage) => {
            look.alarm(&wrap(
                &format!("The WAL could not be read beyond {}: see the error.", damage.lsn),
                look.width,
                2,
            )) + "\n"
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn savings_have_one_share_where_the_ends_of_the_range_print_alike() {
        let text_with = |saves, error, saves_more_bytes| {
            let finding = Finding {
                kind: FindingKind::Cause,
                rule: "vacuum",
                bytes: saves,
                share: 0.0,
                text: String::new(),
                points_at: String::new(),
                remedy: String::new(),
                saves_bytes: Some(saves),
                saves_error_bytes: Some(error),
                saves_more_bytes,
                image_bytes: 0,
                try_settings: BTreeMap::new(),
            };
            saves_text(&finding, 100_000)
        };
        let text = |saves, error| text_with(saves, error, 0);
        assert!(text(5_000, 1_000).ends_with(", 4 to 6 % of the WAL"), "{}", text(5_000, 1_000));
        assert!(text(5_000, 400).ends_with(", 5.0 % of the WAL"), "{}", text(5_000, 400));
        assert!(text(5_000, 0).ends_with(", 5.0 % of the WAL"));
        assert!(text(90_000, 20_000).ends_with(", 70 to 100 % of the WAL"));
        assert_eq!(text(0, 0), "");
        let at_least = text_with(5_000, 1_000, 1);
        assert!(at_least.contains("at least 4.0 kB, 4.0 % of the WAL, and more"), "{at_least}");
    }
}
