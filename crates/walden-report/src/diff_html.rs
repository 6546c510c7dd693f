//! Renders a comparison of two ranges as a page with charts: both rates over time, and the largest changes.

use walden_explain::diff::{Change, Diff, DiffFinding, Per};

use crate::chart::{Axis, Bars, Curve, CurveLine, Layer, Tone, Unit};
use crate::diff::{amount, mark, share_of_change, side_text, unit};
use crate::explain::CAUSES;
use crate::html::{Cell, Page, Section, Table};
use crate::units;

/// Default number of rows of a table: more rows make a page slow.
const ROWS: usize = 200;
/// Rows of a chart.
const BARS: usize = 15;

/// Renders the page.
pub fn page(diff: &Diff) -> Page {
    let mut page = Page::new(&format!("WAL {} and {}", diff.a.name, diff.b.name));
    for side in [&diff.a, &diff.b] {
        page.subtitle(&format!("{}: {}, PostgreSQL {}", side.name, side_text(side), side.postgresql));
    }
    let rate = |bytes: u64, by: f64| units::bytes((bytes as f64 / by.max(1e-6)) as u64);
    if diff.per == Per::Second {
        page.fact(
            &diff.a.name,
            &format!("{}/s", rate(diff.a.bytes, diff.a.seconds)),
            &units::bytes(diff.a.bytes),
        );
        page.fact(
            &diff.b.name,
            &format!("{}/s", rate(diff.b.bytes, diff.b.seconds)),
            &units::bytes(diff.b.bytes),
        );
    }
    page.fact("change", &amount(diff, diff.total.change_bytes), &noise(&diff.total));
    for side in [&diff.a, &diff.b] {
        let per = rate(side.bytes, side.transactions as f64);
        page.fact(
            &format!("per transaction, {}", side.name),
            &per,
            &format!("{} transactions", units::count(side.transactions)),
        );
    }
    let mut sections = vec![findings(diff), over_time(diff)];
    sections.push(list(diff, CAUSES, "cause", &diff.causes, true));
    sections.push(list(diff, "Relations", "relation", &diff.relations, true));
    sections.push(list(diff, "Kinds of records", "resource manager, kind", &diff.record_kinds, true));
    sections.push(list(diff, "Where the bytes are", "part", &diff.buckets, false));
    let images: Vec<Change> = diff.images.iter().map(|image| image.change.clone()).collect();
    sections.push(list(diff, "Full-page images", "cause", &images, false));
    sections.extend(diff.views.iter().map(|view| {
        let by = view.by.join(", ");
        list(diff, &format!("By {by}"), &by, &view.groups, true)
    }));
    for section in sections {
        if !section.is_empty() {
            page.section(section);
        }
    }
    page
}

fn noise(total: &Change) -> String {
    match total.beyond_noise {
        Some(true) => "more than rates vary within the ranges".into(),
        Some(false) => "within the noise of the ranges".into(),
        None => "too short to distinguish a change from noise".into(),
    }
}

fn findings(diff: &Diff) -> Section {
    let mut section = Section::new("What explains the change");
    if diff.findings.is_empty() {
        section = section.text("Nothing stands out.");
    }
    let pointer = |one: &DiffFinding| match share_of_change(one.share_of_change) {
        Some(share) => format!("{}: {share} of the change", one.points_at),
        None => one.points_at.clone(),
    };
    section = section.findings(diff.findings.iter().map(|one| (one.text.clone(), pointer(one))));
    diff.notes.iter().fold(section, |section, note| section.text(note))
}

fn over_time(diff: &Diff) -> Section {
    let section = Section::new("Both over time");
    let line = |side: &walden_explain::diff::SideDocument, tone| CurveLine {
        name: side.name.clone(),
        tone,
        predicted: side.rate.clone(),
        is_measured: true,
        ..CurveLine::default()
    };
    let lines: Vec<CurveLine> = [line(&diff.a, Tone::Muted), line(&diff.b, Tone::Emphasis)]
        .into_iter()
        .filter(|line| line.predicted.len() > 1)
        .collect();
    if lines.is_empty() {
        return section;
    }
    let chart = Curve {
        title: "Rate of WAL from the start of each range".into(),
        x: Axis::new("time since its start", Unit::Seconds),
        left: Axis::new("WAL", Unit::BytesPerSecond),
        right: None,
        lines,
        marks: Vec::new(),
    };
    section.chart(chart, "The first and the last span of each range may be parts of one.")
}

fn list(diff: &Diff, title: &str, head: &str, all: &[Change], with_chart: bool) -> Section {
    let mut table = Table::new(&[
        head,
        &format!("{}, {}", diff.a.name, unit(diff)),
        &format!("{}, {}", diff.b.name, unit(diff)),
        "change",
        "of all",
        "",
    ]);
    let (by_a, by_b) = match diff.per {
        Per::Second => (diff.a.seconds, diff.b.seconds),
        Per::Transaction => (diff.a.transactions as f64, diff.b.transactions as f64),
        Per::Total => (1.0, 1.0),
    };
    let rate = |bytes: u64, by: f64| bytes as f64 / by.max(1e-6);
    for change in all.iter().take(ROWS) {
        table.row(vec![
            Cell::text(&change.label),
            Cell::bytes(rate(change.a_bytes, by_a) as u64),
            Cell::bytes(rate(change.b_bytes, by_b) as u64),
            Cell::number(&amount(diff, change.change_bytes), change.change_bytes as f64),
            share_of_change(change.share_of_change)
                .zip(change.share_of_change)
                .map_or_else(Cell::none, |(text, share)| Cell::number(&text, share)),
            Cell::text(mark(change)),
        ]);
    }
    let section = Section::new(title);
    if all.is_empty() {
        return section;
    }
    if !with_chart {
        return section.table(table);
    }
    let drawn: Vec<&Change> = all.iter().take(BARS).collect();
    let layer = |name: &str, tone, by: f64, bytes: fn(&Change) -> u64| Layer {
        name: name.to_owned(),
        tone,
        values: drawn.iter().map(|change| Some(rate(bytes(change), by))).collect(),
    };
    let chart = Bars {
        title: format!("{title}: the largest changes"),
        x: Axis::new("WAL", if diff.per == Per::Second { Unit::BytesPerSecond } else { Unit::Bytes }),
        categories: drawn.iter().map(|change| change.label.clone()).collect(),
        layers: vec![
            layer(&diff.a.name, Tone::Muted, by_a, |change| change.a_bytes),
            layer(&diff.b.name, Tone::Emphasis, by_b, |change| change.b_bytes),
        ],
        ..Bars::default()
    };
    section.chart(chart, &format!("WAL {} in both ranges.", unit(diff))).table(table)
}
