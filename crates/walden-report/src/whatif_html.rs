//! Renders a prediction as a page with charts: WAL under other settings, its bytes by kind, checkpoints,
//! accuracy, and assumptions.

use walden_whatif::Bucket;
use walden_whatif::archive::ArchiveSize;
use walden_whatif::document::{Causes, Document, Predicted};
use walden_whatif::learn::Origin;

use crate::chart::{Axis, Bars, Curve, CurveLine, Layer, Mark, Tone, Unit};
use crate::html::{Cell, Page, Row, Section, Table, Weight};
use crate::sweep::{self, MAX_LINES, Sweep};
use crate::units;
use crate::whatif::{causes, describe_unused_ends, signed, signed_bytes};

/// Most bars in a chart; the tables contain all.
const MAX_BARS: usize = 40;
/// Most checkpoints listed.
const MAX_CHECKPOINTS: usize = 200;
/// Most vertical lines in a chart.
const MAX_MARKS: usize = 100;

/// Renders the page of a prediction.
pub fn page(document: &Document) -> Page {
    let sweep = Sweep::from_document(document);
    let mut page = Page::new(&title(document, &sweep));
    let trace = &document.trace;
    page.subtitle(&format!(
        "From a trace of {} of WAL of PostgreSQL {}: {} to {}",
        units::bytes(document.trace_bytes),
        trace.version,
        trace.from,
        trace.to
    ));
    if !sweep.common.is_empty() && !sweep.names.is_empty() {
        page.subtitle(&format!("All of them with {}", settings_text(&sweep.common)));
    }
    facts(&mut page, document, &sweep);
    let sections = [
        advice(document),
        predictions(document, &sweep),
        buckets(document, &sweep),
        checkpoints(document, &sweep),
        archive(document, &sweep),
        objects(document),
        sureness(document, &sweep),
        learned(document),
        notes(document),
    ];
    for section in sections.into_iter().chain([glossary()]).filter(|section| !section.is_empty()) {
        page.section(section);
    }
    page
}

fn title(document: &Document, sweep: &Sweep) -> String {
    match &document.predictions[..] {
        [only] => format!("What if: {}", only.name),
        _ if sweep.names.is_empty() => "What if".into(),
        _ => format!("What if: {}", sweep.names.join(" and ")),
    }
}

fn settings_text(settings: &[(String, String)]) -> String {
    settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}

fn facts(page: &mut Page, document: &Document, sweep: &Sweep) {
    let trace = &document.trace;
    let over = trace.seconds.map_or_else(String::new, |seconds| format!("in {}", units::seconds(seconds)));
    page.fact("the trace", &units::bytes(document.trace_bytes), &over);
    if let [only] = &document.predictions[..] {
        let error = format!("{}, ±{}", signed(only.change, 1), units::bytes(only.error_bytes));
        page.fact("predicted", &units::bytes(only.bytes), &error);
        let before = format!("in the trace: {}", units::count(trace.checkpoints.total));
        page.fact("checkpoints", &units::count(only.checkpoints.total), &before);
        let bytes = format!("to replay {}", units::bytes(only.longest_redo_bytes));
        page.fact("recovery takes at most", &units::seconds(only.recovery_seconds), &bytes);
    } else {
        let with = |one: &Predicted, index: usize| {
            format!("{}: {}", sweep.label(document, index), signed(one.change, 1))
        };
        let numbered = || document.predictions.iter().enumerate();
        if let Some((index, one)) = numbered().min_by_key(|(_, one)| one.bytes) {
            page.fact("least WAL", &units::bytes(one.bytes), &with(one, index));
        }
        if let Some((index, one)) = numbered().max_by_key(|(_, one)| one.bytes) {
            page.fact("most WAL", &units::bytes(one.bytes), &with(one, index));
        }
        let recovery = |one: &Predicted| one.recovery_seconds;
        if let Some((index, one)) =
            numbered().min_by(|one, other| recovery(one.1).total_cmp(&recovery(other.1)))
        {
            page.fact("fastest recovery", &units::seconds(recovery(one)), &sweep.label(document, index));
        }
    }
    let check = &document.self_check;
    let own = format!("its own settings give {}", units::bytes(check.predicted_bytes));
    page.fact("self-check", &signed(check.error, 2), &own);
    let share = right(document) as f64 / check.diagnostics.decisions.max(1) as f64;
    let times = format!("of {} times", units::count(check.diagnostics.decisions));
    page.fact("rule for images right", &exact_percent(share), &times);
}

/// Returns how often the rule for images agreed with the trace.
fn right(document: &Document) -> u64 {
    let diagnostics = &document.self_check.diagnostics;
    diagnostics.decisions.saturating_sub(diagnostics.missing_images + diagnostics.unexpected_images)
}

/// Formats per cent, rounded down so that 100 means all.
fn exact_percent(share: f64) -> String {
    if share < 1.0 { format!("{:.2} %", (share * 1e4).floor() / 100.0) } else { "100 %".into() }
}

fn advice(document: &Document) -> Section {
    let section = Section::new("Advice");
    let Some(advice) = &document.advice else { return section };
    let section = section.text(&format!("Wanted: {}.", advice.aim));
    let section = match (advice.reached, advice.steps.is_empty()) {
        (false, _) => section.alarm(&format!("Not reached: {}", advice.why)),
        (true, true) => section.text("Reached already: nothing has to change."),
        (true, false) => section,
    };
    if advice.steps.is_empty() {
        return section;
    }
    let section = advice.warnings.iter().fold(section, |section, warning| section.alarm(warning));
    let mut table =
        Table::new(&["statement", "WAL then", "change", "recovery in at most", "pg_wal", "at the risk of"])
            .caption("One after another, then SELECT pg_reload_conf()");
    for step in &advice.steps {
        table.row(vec![
            Cell::text(&step.statement),
            Cell::bytes(step.bytes),
            Cell::number(&signed(step.change, 1), step.change),
            Cell::seconds(step.recovery_seconds),
            Cell::bytes(step.pg_wal_bytes),
            Cell::sentence(&step.risk),
        ]);
    }
    section.table(table)
}

// ---- Predictions ------------------------------------------------------------------------------------------

fn predictions(document: &Document, sweep: &Sweep) -> Section {
    let mut section = Section::new("Predicted");
    if let Some(note) = describe_unused_ends(document, sweep) {
        section = section.text(&format!("Unused ends of segments: {note}."));
    }
    let curves = sweep::curves(document);
    let alone = curves.len() == 1;
    for chart in curves {
        let note = if chart.left.unit == Unit::Seconds {
            "The WAL to replay after a crash at the worst moment, at the rate that the notes state."
        } else if alone {
            "Lines are predicted, with their error; the ring is the measured trace. The time of recovery \
             (right) is that of a crash at the worst moment."
        } else {
            "Lines are predicted, with their error; the ring is the measured trace."
        };
        section = section.chart(chart, note);
    }
    section.table(table(document, sweep))
}

/// A column of checkpoints.
type CauseColumn = (&'static str, fn(&Causes) -> u64);

const CAUSES: [CauseColumn; 3] = [
    ("checkpoints", |causes| causes.total),
    ("for volume", |causes| causes.volume),
    ("for time", |causes| causes.time),
];

fn table(document: &Document, sweep: &Sweep) -> Table {
    let own = ["settings".to_owned()];
    let names = if sweep.names.is_empty() { &own[..] } else { &sweep.names[..] };
    let all_causes =
        || document.predictions.iter().map(|one| &one.checkpoints).chain([&document.trace.checkpoints]);
    let causes: Vec<CauseColumn> =
        CAUSES.iter().filter(|(_, of)| all_causes().any(|causes| of(causes) > 0)).copied().collect();
    let hints = document.predictions.iter().any(|one| one.hints_at_most_bytes > 0);
    let mut head: Vec<&str> = names.iter().map(String::as_str).collect();
    head.extend(["WAL", "change", "±"]);
    head.extend(causes.iter().map(|(name, _)| *name));
    head.extend(["images", "segments/h", "WAL to replay", "recovery at most"]);
    if hints {
        head.push("hints at most");
    }
    let cause_cells =
        |of: &Causes| -> Vec<Cell> { causes.iter().map(|(_, one)| Cell::count(one(of))).collect() };
    let mut table = Table::new(&head);
    let trace = &document.trace;
    let mut cells: Vec<Cell> = (0..names.len())
        .map(|column| match (column, sweep.traced.get(column).cloned().flatten()) {
            (0, Some(value)) => value_cell(&format!("{value} (the trace)"), &value),
            (0, None) => Cell::text("the trace"),
            (_, value) => value.map_or_else(Cell::none, |value| value_cell(&value, &value)),
        })
        .collect();
    cells.extend([Cell::bytes(document.trace_bytes), Cell::none(), Cell::none()]);
    cells.extend(cause_cells(&trace.checkpoints));
    cells.push(Cell::count(trace.images));
    table.row(Row::new(cells).weight(Weight::Strong));
    for (index, one) in document.predictions.iter().enumerate() {
        let mut cells: Vec<Cell> = match sweep.values.get(index).filter(|values| !values.is_empty()) {
            Some(values) => values.iter().map(|value| value_cell(value, value)).collect(),
            None => vec![Cell::text(&one.name)],
        };
        cells.extend([
            Cell::bytes(one.bytes),
            Cell::number(&signed(one.change, 1), one.change),
            Cell::bytes(one.error_bytes),
        ]);
        cells.extend(cause_cells(&one.checkpoints));
        cells.extend([
            Cell::count(one.images),
            one.segments_per_hour.map_or_else(Cell::none, |segments| {
                Cell::number(&units::count(segments.round() as u64), segments)
            }),
            Cell::bytes(one.longest_redo_bytes),
            Cell::seconds(one.recovery_seconds),
        ]);
        if hints {
            cells.push(Cell::bytes(one.hints_at_most_bytes));
        }
        table.row(cells);
    }
    table
}

/// Creates a cell with a setting's value, sorted by its size if it has one.
fn value_cell(text: &str, value: &str) -> Cell {
    sweep::quantity(value).map_or_else(|| Cell::text(text), |(number, _)| Cell::number(text, number))
}

// ---- Where the bytes are ----------------------------------------------------------------------------------

/// The stacked series: name, colour, and buckets.
const LAYERS: [(&str, Tone, &[Bucket]); 7] = [
    ("records without images", Tone::Data, &[Bucket::Records, Bucket::Checkpoints]),
    ("images after checkpoints", Tone::ImageCheckpoint, &[Bucket::CheckpointImages]),
    ("images always written", Tone::ImageForced, &[Bucket::ForcedImages]),
    ("images for hint bits", Tone::ImageHint, &[Bucket::HintImages]),
    ("images for consistency checks", Tone::ImageConsistency, &[Bucket::ConsistencyImages]),
    ("alignment, page headers", Tone::Header, &[Bucket::Alignment, Bucket::PageHeaders]),
    ("unused ends of segments", Tone::Framing, &[Bucket::Switches]),
];

/// Returns the names of the trace and of the predictions that are drawn.
fn categories(document: &Document, sweep: &Sweep) -> Vec<String> {
    let drawn = document.predictions.len().min(MAX_BARS);
    let labels = (0..drawn).map(|index| sweep.label(document, index));
    std::iter::once("the trace".to_owned()).chain(labels).collect()
}

fn more(document: &Document) -> String {
    match document.predictions.len().checked_sub(MAX_BARS) {
        Some(rest @ 1..) => format!(" {rest} more are not drawn; the table has all."),
        _ => String::new(),
    }
}

fn describe_settings(sweep: &Sweep) -> String {
    if sweep.names.is_empty() { String::new() } else { format!(", by {}", sweep.names.join(", ")) }
}

fn buckets(document: &Document, sweep: &Sweep) -> Section {
    let bytes = |all: &[walden_whatif::document::BucketBytes], bucket: Bucket| {
        all.iter().find(|one| one.name == bucket.name()).map_or(0, |one| one.bytes)
    };
    let drawn = || document.predictions.iter().take(MAX_BARS);
    let stacks = || std::iter::once(&document.trace.buckets).chain(drawn().map(|one| &one.buckets));
    let layer = |&(name, tone, buckets): &(&str, Tone, &[Bucket])| {
        let sum = |all: &Vec<_>| buckets.iter().map(|bucket| bytes(all, *bucket)).sum::<u64>() as f64;
        Layer { name: name.to_owned(), tone, values: stacks().map(|all| Some(sum(all))).collect() }
    };
    let chart = Bars {
        title: format!("Where the bytes are{}", describe_settings(sweep)),
        x: Axis::new("WAL", Unit::Bytes),
        categories: categories(document, sweep),
        layers: LAYERS
            .iter()
            .map(layer)
            .filter(|layer| layer.values.iter().any(|value| *value > Some(0.0)))
            .collect(),
        stacked: true,
        errors: std::iter::once(None).chain(drawn().map(|one| Some(one.error_bytes as f64))).collect(),
    };
    let note = format!("The thin line at a bar's end: the error of the prediction.{}", more(document));
    let mut section = Section::new("Where the bytes are").chart(chart, &note);
    if let [only] = &document.predictions[..] {
        let mut table = Table::new(&["part", "now", "then", "change", "share then"]);
        for bucket in Bucket::ALL {
            let (now, then) = (bytes(&document.trace.buckets, bucket), bytes(&only.buckets, bucket));
            if now + then == 0 {
                continue;
            }
            let change = then as f64 / now as f64 - 1.0;
            table.row(vec![
                Cell::text(bucket.title()),
                Cell::bytes(now),
                Cell::bytes(then),
                if now == 0 { Cell::none() } else { Cell::number(&signed(change, 1), change) },
                Cell::share(then as f64 / only.bytes.max(1) as f64),
            ]);
        }
        section = section.table(table);
    }
    section
}

// ---- Checkpoints ------------------------------------------------------------------------------------------

fn checkpoints(document: &Document, sweep: &Sweep) -> Section {
    let drawn = || document.predictions.iter().take(MAX_BARS).map(|one| one.checkpoints);
    let counts = || std::iter::once(document.trace.checkpoints).chain(drawn());
    let layer = |name: &str, tone, of: fn(&Causes) -> u64| Layer {
        name: name.to_owned(),
        tone,
        values: counts().map(|causes| Some(of(&causes) as f64)).collect(),
    };
    let chart = Bars {
        title: format!("Checkpoints by cause{}", describe_settings(sweep)),
        x: Axis::new("checkpoints", Unit::Count),
        categories: categories(document, sweep),
        layers: vec![
            layer("volume", Tone::ImageCheckpoint, |causes| causes.volume),
            layer("time", Tone::Data, |causes| causes.time),
            layer("requested", Tone::ImageHint, |causes| causes.requested),
        ],
        stacked: true,
        ..Bars::default()
    };
    let note = format!(
        "Volume: max_wal_size was near. Time: checkpoint_timeout had passed. Requested checkpoints come under any \
         settings.{}",
        more(document)
    );
    let mut section = Section::new("Checkpoints").chart(chart, &note);
    if let Some(chart) = growth(document, sweep) {
        let note = if chart.marks.is_empty() {
            "How the log grows while the same work is done. Where a line is steep, pages are touched for the first time after \
             a checkpoint."
        } else {
            "How the log grows while the same work is done; dashed lines are checkpoints that begin. Where the line is steep, \
             pages are touched for the first time after one."
        };
        section = section.chart(chart, note);
    }
    if let [only] = &document.predictions[..]
        && !only.checkpoint_list.is_empty()
    {
        let mut table = Table::new(&["redo pointer", "begins", "cause"]);
        for (time, redo, cause) in only.checkpoint_list.iter().take(MAX_CHECKPOINTS) {
            table.row(vec![Cell::text(redo), clock(*time), Cell::text(cause)]);
        }
        let caption = match only.checkpoint_list.len() {
            ..=MAX_CHECKPOINTS => "Predicted checkpoints; positions are those of the trace".to_owned(),
            all => format!(
                "The first {MAX_CHECKPOINTS} of {} predicted checkpoints; positions are those of the trace",
                units::count(all as u64)
            ),
        };
        section = section.table(table.caption(&caption));
    }
    section
}

/// Creates a cell with a time, or an empty one.
fn clock(seconds: f64) -> Cell {
    let time = jiff::Timestamp::from_millisecond((seconds * 1000.0) as i64).ok().filter(|_| seconds > 0.0);
    time.map_or_else(Cell::none, |time| Cell::number(&format!("{time:.1}"), seconds))
}

/// Returns the WAL position over time as a curve.
fn growth(document: &Document, sweep: &Sweep) -> Option<Curve> {
    let times = document.predictions.iter().flat_map(|one| one.growth.first()).map(|(time, _)| *time);
    let start = times.fold(f64::INFINITY, f64::min);
    let shown: Vec<(usize, &Predicted)> = document
        .predictions
        .iter()
        .enumerate()
        .filter(|(_, one)| one.growth.len() > 2)
        .take(MAX_LINES)
        .collect();
    let lasts = shown.iter().any(|(_, one)| one.growth.last().is_some_and(|(time, _)| *time - start > 1.0));
    if !lasts {
        return None;
    }
    let line = |(index, one): &(usize, &Predicted)| CurveLine {
        name: sweep.label(document, *index),
        predicted: thin(&one.growth).map(|(time, bytes)| (time - start, bytes as f64)).collect(),
        ..CurveLine::default()
    };
    let marks = match &shown[..] {
        [(_, only)] if only.checkpoint_list.len() <= MAX_MARKS => {
            let began = only.checkpoint_list.iter().filter(|(time, ..)| *time >= start);
            began.map(|(time, _, cause)| Mark { at: time - start, name: (*cause).to_owned() }).collect()
        }
        _ => Vec::new(),
    };
    let left = document.predictions.len() - shown.len();
    let first = if left > 0 { format!(", the first {}", shown.len()) } else { String::new() };
    Some(Curve {
        title: format!("The WAL as time passes{}{first}", describe_settings(sweep)),
        x: Axis::new("time since the start of the trace", Unit::Seconds),
        left: Axis::new("WAL", Unit::Bytes),
        right: None,
        lines: shown.iter().map(line).collect(),
        marks,
    })
}

/// Reduces points to about 120, including the last one.
fn thin(points: &[(f64, u64)]) -> impl Iterator<Item = (f64, u64)> {
    const ENOUGH: usize = 120;
    let every = points.len().div_ceil(ENOUGH).max(1);
    let last = points.len().saturating_sub(1);
    points
        .iter()
        .enumerate()
        .filter(move |(index, _)| index % every == 0 || *index == last)
        .map(|(_, point)| *point)
}

// ---- Archives and objects ---------------------------------------------------------------------------------

fn archive(document: &Document, sweep: &Sweep) -> Section {
    let section = Section::new("In an archive");
    let compressors: Vec<&str> = document.trace.archive.iter().map(|one| one.compressor.as_str()).collect();
    if compressors.is_empty() {
        return section;
    }
    let drawn = || document.predictions.iter().take(MAX_BARS).map(|one| &one.archive);
    let of = |sizes: &[ArchiveSize], name: &str| sizes.iter().find(|one| one.compressor == name).cloned();
    let each = |name: &str| -> Vec<Option<ArchiveSize>> {
        std::iter::once(&document.trace.archive).chain(drawn()).map(|sizes| of(sizes, name)).collect()
    };
    let layer = |name: &&str| Layer {
        name: (*name).to_owned(),
        tone: Tone::Next,
        values: each(name).iter().map(|size| size.as_ref().map(|size| size.bytes as f64)).collect(),
    };
    let errors = match &compressors[..] {
        [only] => each(only).iter().map(|size| size.as_ref().map(|size| size.error_bytes as f64)).collect(),
        _ => Vec::new(),
    };
    let chart = Bars {
        title: format!("Size of an archive{}", describe_settings(sweep)),
        x: Axis::new("bytes", Unit::Bytes),
        categories: categories(document, sweep),
        layers: compressors.iter().map(layer).collect(),
        stacked: false,
        errors,
    };
    let head: Vec<String> =
        compressors.iter().flat_map(|name| [(*name).to_owned(), "±".to_owned()]).collect();
    let mut table = Table::new(&[vec!["settings".to_owned()], head].concat());
    let mut row = |label: &str, sizes: &[ArchiveSize]| {
        let sizes = compressors.iter().flat_map(|name| match of(sizes, name) {
            Some(size) => [Cell::bytes(size.bytes), Cell::bytes(size.error_bytes)],
            None => [Cell::none(), Cell::none()],
        });
        table.row([Cell::text(label)].into_iter().chain(sizes).collect::<Vec<Cell>>());
    };
    row("the trace", &document.trace.archive);
    for (index, one) in document.predictions.iter().enumerate() {
        row(&sweep.label(document, index), &one.archive);
    }
    let note = format!("Each segment compressed by itself, as archives do.{}", more(document));
    let section = section.chart(chart, &note).table(table);
    match months(document, sweep) {
        Some(months) => section.table(months),
        None => section,
    }
}

/// Returns the table of a month in an archive; `None` if the trace shows no rate.
fn months(document: &Document, sweep: &Sweep) -> Option<Table> {
    let head = ["a month of walden archive", "stored", "billed", "write, list requests", "reads", "price"];
    let mut table = Table::new(&head);
    let mut row = |label: &str, sizes: &[ArchiveSize]| {
        let Some(month) = sizes.iter().find_map(|size| size.month.as_ref()) else { return };
        let price = |price: f64| Cell::number(&format!("{price:.2}"), price);
        table.row(vec![
            Cell::text(label),
            Cell::bytes(month.stored_bytes as u64),
            Cell::bytes(month.billed_bytes as u64),
            Cell::count(month.put_requests.round() as u64),
            Cell::count(month.get_requests.round() as u64),
            month.price.map_or_else(Cell::none, price),
        ]);
    };
    row("the trace", &document.trace.archive);
    for (index, one) in document.predictions.iter().enumerate() {
        row(&sweep.label(document, index), &one.archive);
    }
    Some(table).filter(|table| !table.is_empty())
}

fn objects(document: &Document) -> Section {
    let section = Section::new("Changes of tables and indexes");
    let mut table = Table::new(&["change", "settings", "at best", "at worst", "because"]);
    for one in &document.predictions {
        for object in &one.objects {
            let bytes = |bytes: i64| Cell::number(&signed_bytes(bytes), bytes as f64);
            table.row(vec![
                Cell::text(&object.what),
                Cell::text(&one.name),
                bytes(object.best_bytes),
                bytes(object.worst_bytes),
                Cell::sentence(&object.why),
            ]);
        }
    }
    if table.is_empty() { section } else { section.text("In addition to the prediction.").table(table) }
}

// ---- How sure ---------------------------------------------------------------------------------------------

const SHARES: [(&str, &str); 4] = [
    ("exact", "taken unchanged from the WAL"),
    ("reconstructed", "follows from pages that were replayed"),
    ("sampled", "follows from a sample of a table's images"),
    ("estimated", "the mean of others like it, or a usual size"),
];

fn sureness(document: &Document, sweep: &Sweep) -> Section {
    let drawn = || document.predictions.iter().take(MAX_BARS);
    let layer = |(index, (name, meaning)): (usize, &(&str, &str))| Layer {
        name: format!("{name}: {meaning}"),
        tone: Tone::Next,
        values: drawn().map(|one| Some(one.shares[index] * one.bytes as f64)).collect(),
    };
    let chart = Bars {
        title: format!("How the bytes are known{}", describe_settings(sweep)),
        x: Axis::new("WAL", Unit::Bytes),
        categories: categories(document, sweep).split_off(1),
        layers: SHARES
            .iter()
            .enumerate()
            .map(layer)
            .filter(|layer| layer.values.iter().any(|value| *value > Some(0.0)))
            .collect(),
        stacked: true,
        errors: drawn().map(|one| Some(one.error_bytes as f64)).collect(),
    };
    let own = ["settings".to_owned()];
    let names = if sweep.names.is_empty() { &own[..] } else { &sweep.names[..] };
    let columns = SHARES.iter().map(|(name, _)| *name).chain(["±", "± of it"]);
    let mut table = Table::new(&names.iter().map(String::as_str).chain(columns).collect::<Vec<_>>());
    for (index, one) in document.predictions.iter().enumerate() {
        let mut cells: Vec<Cell> = match sweep.values.get(index).filter(|values| !values.is_empty()) {
            Some(values) => values.iter().map(|value| value_cell(value, value)).collect(),
            None => vec![Cell::text(&one.name)],
        };
        let error = one.error_bytes as f64 / one.bytes.max(1) as f64;
        cells.extend(one.shares.map(Cell::share));
        cells.extend([Cell::bytes(one.error_bytes), Cell::number(&format!("{:.2} %", 100.0 * error), error)]);
        table.row(cells);
    }
    let note = format!(
        "The thin line at a bar's end is what the whole may be off by: the error of sampling, a quarter of what is estimated, \
         checkpoints that a race decides about, and what the self-check was off by.{}",
        more(document)
    );
    Section::new("How sure it is").chart(chart, &note).table(table)
}

fn learned(document: &Document) -> Section {
    let check = &document.self_check;
    let text = format!(
        "Self-check: the trace's own settings predicted give {} instead of {} ({}), and checkpoints: {} instead of {}. Of \
         {} changes in the trace, {} were predicted correctly as to whether they have an image. Of \
         {} blocks touched, {} were of pages that the trace does not show.",
        units::bytes(check.predicted_bytes),
        units::bytes(document.trace_bytes),
        signed(check.error, 2),
        causes(&check.checkpoints),
        causes(&document.trace.checkpoints),
        units::count(check.diagnostics.decisions),
        units::count(right(document)),
        units::count(check.diagnostics.blocks),
        units::count(check.diagnostics.pages_unknown),
    );
    let mut table = Table::new(&["setting", "value", "", "because"]).caption("Settings of the trace");
    for traced in &document.traced_settings {
        let from = match traced.from {
            Origin::Given | Origin::Server => "given",
            Origin::Learned => "learned",
            Origin::Assumed => "assumed",
        };
        table.row(vec![
            Cell::text(traced.name),
            Cell::text(&traced.value),
            Cell::text(from),
            Cell::sentence(&traced.why),
        ]);
    }
    Section::new("Settings learned from the trace").text(&text).table(table)
}

fn notes(document: &Document) -> Section {
    Section::new("Assumptions").list(document.notes.iter().cloned())
}

fn glossary() -> Section {
    Section::new("Words").terms([
        ("trace", "The WAL that was read, which the workload wrote under its own settings."),
        (
            "image",
            "A copy of a whole page of 8 kB in the WAL, written when a page is changed for the first time after a checkpoint, \
             so that a page that a crash tore in two can be restored. Checkpoints further apart mean fewer of them.",
        ),
        (
            "checkpoint",
            "All changed pages are written to the data files, so that recovery need not read older WAL. It comes after \
             checkpoint_timeout (time), near max_wal_size (volume), or by request (CHECKPOINT, a base backup).",
        ),
        (
            "to recover",
            "The most WAL that a crash at the worst moment leaves to be replayed: from the redo pointer of the last complete \
             checkpoint on.",
        ),
        ("learned, assumed, given", "Whether a setting is shown by the trace, not shown by anything, or given on the command line or by the server."),
        ("±", "The prediction may differ from the truth by this amount, up or down, for the same workload."),
    ])
}
