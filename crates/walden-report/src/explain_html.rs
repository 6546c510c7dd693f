//! Renders an explanation as a page with charts: findings, then the bytes over time, by checkpoint, by
//! relation, by kind of record, and by transaction.

use jiff::Timestamp;
use serde_json::{Map, Value};
use walden_explain::document::{
    CauseDocument, CheckpointDocument, CycleDocument, Document, GroupDocument, RelationDocument,
    TallyDocument, ViewDocument,
};
use walden_explain::group::{Dimension, ViewSpec};
use walden_explain::tally::{Bucket, ImageCause};
use walden_explain::{Label, Part, merge_findings};

use crate::chart::{
    Axis, Bars, CheckpointTimeline, Cycle, Layer, Mark, Node, StackedOverTime, Tone, Treemap, Unit,
};
use crate::explain::{CAUSES, STATEMENT_CAUSES, cause_label, saves_text};
use crate::html::{Cell, Page, Row, Section, Table, Weight};
use crate::units;

/// Default number of rows of a table: more rows make a page slow.
pub const ROWS: usize = 200;

/// Returns the views that a page needs in addition to those that the user requests.
pub fn views() -> [ViewSpec; 2] {
    [Dimension::Time, Dimension::Checkpoint].map(|dimension| ViewSpec { dimensions: vec![dimension] })
}

/// Renders an explanation that has the [`views`] as a page; its other views become tables at the end.
pub fn page(document: &Document) -> Page {
    let mut page = Page::new(&format!(
        "{} of WAL of PostgreSQL {}",
        units::bytes(document.wal_bytes),
        document.postgresql
    ));
    subtitle(&mut page, document);
    facts(&mut page, document);
    let sections = [
        findings(document),
        over_time(document),
        buckets(document),
        checkpoints(document),
        causes(CAUSES, &document.causes),
        causes(STATEMENT_CAUSES, &document.statement_causes),
        relations(document),
        record_kinds(document),
        transactions(document),
    ];
    let views = document.views.iter().filter(|view| !is_own(view)).map(view);
    for section in sections.into_iter().chain(views).chain([glossary()]) {
        if !section.is_empty() {
            page.section(section);
        }
    }
    page
}

fn is_own(view: &ViewDocument) -> bool {
    view.by == ["time"] || view.by == ["checkpoint"] || view.by == ["statement", "relation", "record"]
}

fn subtitle(page: &mut Page, document: &Document) {
    for range in document.ranges.iter().take(3) {
        let segments = match range.first_segment == range.last_segment {
            true => format!("segment {}", range.first_segment),
            false => format!("segments {} to {}", range.first_segment, range.last_segment),
        };
        page.subtitle(&format!("{} to {}, timeline {}, {segments}", range.start, range.end, range.timeline));
    }
    if document.ranges.len() > 3 {
        page.subtitle(&format!("and {} more ranges", document.ranges.len() - 3));
    }
    if let Some(time) = &document.time {
        page.subtitle(&format!(
            "Transactions ended from {} to {}; cluster {}",
            whole_seconds(&time.first),
            whole_seconds(&time.last),
            document.system_identifier
        ));
    }
}

fn facts(page: &mut Page, document: &Document) {
    let records = format!("{} records", units::count(document.records));
    page.fact("WAL", &units::bytes(document.wal_bytes), &records);
    if let Some(time) = &document.time {
        let rate = document.wal_bytes as f64 / time.seconds;
        let rate = if time.seconds >= 1.0 {
            format!("{}/s on average", units::bytes(rate as u64))
        } else {
            String::new()
        };
        page.fact("time", &units::seconds(time.seconds), &rate);
    }
    let number = |cause: ImageCause, what: &str| {
        document.images.get(cause.name()).and_then(|sum| sum.get(what)?.as_u64()).unwrap_or(0)
    };
    let of_images = |what| ImageCause::ALL.iter().map(|cause| number(*cause, what)).sum::<u64>();
    let note = format!("{} images, {}", units::count(of_images("count")), units::bytes(of_images("bytes")));
    page.fact("full-page images", &share(of_images("bytes"), document), &note);
    let saved = of_images("saved_by_compression");
    if saved > 0 {
        let share = units::percent(saved as f64 / of_images("uncompressed_bytes").max(1) as f64);
        page.fact("saved by wal_compression", &units::bytes(saved), &format!("{share} of the images"));
    }
    let checkpoints = &document.checkpoints;
    let every = checkpoints.mean_interval_seconds.map_or_else(String::new, |interval| {
        format!("one in {}; {}", units::seconds(interval), checkpoint_causes(&checkpoints.by_cause))
    });
    page.fact("checkpoints", &units::count(checkpoints.count), &every);
    let sums = &document.transactions;
    let note = format!("{} rolled back, {} open", units::count(sums.aborted), units::count(sums.open));
    page.fact("transactions committed", &units::count(sums.committed), &note);
    if let Some(first) = document.relations.iter().find(|relation| is_relation(relation.label.part)) {
        let note = format!("{} with its indexes and TOAST", first.label.text);
        page.fact("most in one table", &units::percent(first.sum.share), &note);
    }
}

fn checkpoint_causes(by_cause: &Map<String, Value>) -> String {
    by_cause.iter().map(|(cause, count)| format!("{count} {cause}")).collect::<Vec<_>>().join(", ")
}

fn findings(document: &Document) -> Section {
    let mut section = Section::new("Findings");
    if let Some(damage) = &document.damage {
        section = section.alarm(&format!("The WAL could not be read any further. {}", damage.message));
        section = section.text(&damage.hint);
    }
    if document.findings.is_empty() {
        return section.text("Nothing stands out.");
    }
    // A single list: the largest finding comes first, whether its cause is the workload or a setting.
    section.findings(merge_findings(&document.findings).into_iter().map(|one| {
        // The sentence or the remedy names the object or setting.
        let saves = saves_text(one, document.wal_bytes);
        (one.text.clone(), format!("{}{saves}", one.remedy))
    }))
}

// ---- Over time --------------------------------------------------------------------------------------------

/// The stacked series: name, colour, and buckets.
const BUCKET_LAYERS: [(&str, Tone, &[Bucket]); 7] = [
    ("record data", Tone::Data, &[Bucket::BlockData, Bucket::MainData]),
    (
        "headers and alignment",
        Tone::Header,
        &[
            Bucket::RecordHeader,
            Bucket::BlockHeader,
            Bucket::ImageHeader,
            Bucket::MainHeader,
            Bucket::Alignment,
        ],
    ),
    ("images: first touch after a checkpoint", Tone::ImageCheckpoint, &[Bucket::ImageCheckpoint]),
    ("images: forced", Tone::ImageForced, &[Bucket::ImageForced]),
    ("images: hint bits", Tone::ImageHint, &[Bucket::ImageHint]),
    ("images: consistency checking", Tone::ImageConsistency, &[Bucket::ImageConsistency]),
    (
        "page headers, padding",
        Tone::Framing,
        &[
            Bucket::PageHeader,
            Bucket::SwitchPadding,
            Bucket::BegunBefore,
            Bucket::Abandoned,
            Bucket::CutRecord,
        ],
    ),
];

/// Returns the series that are not zero everywhere.
fn layers<'a>(sums: impl Iterator<Item = Option<&'a TallyDocument>> + Clone) -> Vec<Layer> {
    let of = |sum: &TallyDocument, buckets: &[Bucket]| {
        buckets.iter().map(|bucket| sum.buckets.get(bucket.name()).and_then(Value::as_u64).unwrap_or(0)).sum()
    };
    BUCKET_LAYERS
        .iter()
        .map(|(name, tone, buckets)| {
            let bytes = |sum: Option<&TallyDocument>| sum.map_or(0, |sum| of(sum, buckets)) as f64;
            let values = sums.clone().map(|sum| Some(bytes(sum))).collect();
            Layer { name: (*name).to_owned(), tone: *tone, values }
        })
        .filter(|layer| layer.values.iter().any(|value| *value > Some(0.0)))
        .collect()
}

/// Most spans in a chart, including empty ones.
const MAX_SPANS: i64 = 1000;

/// Most vertical lines in a chart.
const MAX_MARKS: usize = 300;

fn over_time(document: &Document) -> Section {
    let section = Section::new("Over time");
    let Some(view) = document.views.iter().find(|view| view.by == ["time"]) else { return section };
    let Some(width) = view.span_seconds.filter(|width| *width > 0) else {
        return section.text("No transaction ended in this WAL, so it has no time.");
    };
    let spans: Vec<(i64, &TallyDocument)> = view
        .groups
        .iter()
        .filter_map(|group| Some((second(&group.keys.first()?.text)?, &group.sum)))
        .collect();
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return section };
    let starts: Vec<i64> = match (last.0 - first.0) / width < MAX_SPANS {
        true => (first.0..=last.0).step_by(usize::try_from(width).unwrap_or(usize::MAX)).collect(),
        false => spans.iter().map(|span| span.0).collect(),
    };
    let sums = starts.iter().map(|start| {
        spans.binary_search_by_key(start, |span| span.0).ok().and_then(|at| spans.get(at)).map(|span| span.1)
    });
    let end = last.0 + width;
    let mark = |one: &CheckpointDocument| {
        let at = second(&one.time)?;
        let mark = Mark { at: (at * 1000) as f64, name: format!("checkpoint: {}", one.cause) };
        (first.0..end).contains(&at).then_some(mark)
    };
    let mut marks: Vec<Mark> = document.checkpoints.list.iter().filter_map(mark).collect();
    let mut note = format!(
        "Bytes of WAL in spans of {}, by the ends of transactions.",
        units::seconds(width as f64).replace(".0", "")
    );
    if marks.len() > MAX_MARKS {
        note += &format!(" {} checkpoints are too many to be marked.", marks.len());
        marks.clear();
    } else if !marks.is_empty() {
        note += " Dashed lines: checkpoints start; each page that is changed for the first time after one costs an image.";
    }
    let chart = StackedOverTime {
        title: "WAL over time, by cause".into(),
        y: Axis::new("WAL", Unit::Bytes),
        layers: layers(sums),
        starts: starts.iter().map(|start| start * 1000).collect(),
        width: width * 1000,
        marks,
    };
    section.chart(chart, &note)
}

fn buckets(document: &Document) -> Section {
    let mut table = Table::new(&["part", "bytes", "share"]).caption("Every byte once");
    for (bucket, bytes) in document.wal_buckets() {
        let share = bytes as f64 / document.wal_bytes.max(1) as f64;
        table.row(vec![Cell::text(bucket.description()), Cell::bytes(bytes), Cell::share(share)]);
    }
    let mut images = Table::new(&["cause, compression", "images", "bytes", "mean", "saved"])
        .caption("Full-page images, by cause and compression");
    for cause in ImageCause::ALL {
        let by = document.images.get(cause.name()).and_then(|sum| sum.get("by_compression")?.as_object());
        for (compression, sum) in by.into_iter().flatten() {
            let number = |name: &str| sum.get(name).and_then(Value::as_u64).unwrap_or(0);
            let (count, bytes, plain) = (number("count"), number("bytes"), number("uncompressed_bytes"));
            let method = if compression == "none" { "not compressed" } else { compression };
            let saved = match compression.as_str() {
                "none" => Cell::none(),
                _ => Cell::share(1.0 - bytes as f64 / plain.max(1) as f64),
            };
            images.row(vec![
                Cell::text(&format!("{}, {method}", cause.name())),
                Cell::count(count),
                Cell::bytes(bytes),
                Cell::bytes(bytes / count.max(1)),
                saved,
            ]);
        }
    }
    let section = Section::new("Where the bytes are").table(table);
    if images.is_empty() { section } else { section.table(images) }
}

// ---- Checkpoints ------------------------------------------------------------------------------------------

/// Most cycles drawn.
const MAX_CYCLES: usize = 200;

fn checkpoints(document: &Document) -> Section {
    let mut section = Section::new("Checkpoints");
    let sums = &document.checkpoints;
    if sums.count > 0 {
        let origin = match sums.causes_from_settings {
            true => "Causes follow from the server's settings.",
            false => {
                "The WAL does not show the cause of a checkpoint: causes are inferred from the distances."
            }
        };
        let mut text =
            format!("Checkpoints: {} ({}).", units::count(sums.count), checkpoint_causes(&sums.by_cause));
        if sums.unfinished > 0 {
            text += &format!(" The WAL does not have the end of {} of them.", units::count(sums.unfinished));
        }
        if let (Some(distance), Some(interval)) = (sums.mean_distance, sums.mean_interval_seconds) {
            text += &format!(
                " On average {} and {} from one redo pointer to the next.",
                units::bytes(distance),
                units::seconds(interval)
            );
        }
        section = section.text(&format!("{text} {origin}"));
    }
    if document.cycles.is_empty() {
        return section;
    }
    let skipped = document.cycles.len().saturating_sub(MAX_CYCLES);
    let title = match skipped {
        0 => "Images along each checkpoint cycle".to_owned(),
        _ => format!("Images along the last {MAX_CYCLES} of {} checkpoint cycles", document.cycles.len()),
    };
    let chart =
        CheckpointTimeline { title, cycles: document.cycles.iter().skip(skipped).map(cycle).collect() };
    section = section.chart(
        chart,
        "The share of full-page images, by position in the WAL. A dashed line is the redo pointer of a checkpoint. The \
         share is high where a cycle begins and falls as fewer pages are touched for the first time. Where it stays \
         high, the next checkpoint came before it could fall: checkpoints further apart would save most of these images.",
    );
    let mut table = Table::new(&["cycle from", "cause", "bytes", "images", "share of images"]);
    for cycle in document.cycles.iter().rev().take(ROWS) {
        table.row(vec![
            Cell::text(&cycle.label),
            Cell::text(cycle.cause.unwrap_or("-")),
            Cell::bytes(cycle.bytes),
            Cell::bytes(cycle.image_bytes),
            Cell::share(cycle.image_bytes as f64 / cycle.bytes.max(1) as f64),
        ]);
    }
    section.table(table.caption(&match document.cycles.len() {
        ..=ROWS => "Checkpoint cycles, the newest first".to_owned(),
        all => format!("The newest {ROWS} of {} checkpoint cycles", units::count(all as u64)),
    }))
}

fn cycle(cycle: &CycleDocument) -> Cycle {
    Cycle {
        label: cycle.label.clone(),
        cause: cycle.cause.map(str::to_owned),
        bytes: cycle.bytes,
        image_bytes: cycle.image_bytes,
        shares: cycle.image_share_along.clone(),
    }
}

// ---- Groups -----------------------------------------------------------------------------------------------

const SUMS: [&str; 5] = ["bytes", "share", "images", "bytes of images", "records"];

fn head(first: &str) -> Vec<&str> {
    std::iter::once(first).chain(SUMS).collect()
}

fn cells(name: &str, sum: &TallyDocument) -> Vec<Cell> {
    vec![
        Cell::text(name),
        Cell::bytes(sum.bytes),
        Cell::share(sum.share),
        Cell::count(sum.images),
        Cell::bytes(sum.image_bytes),
        Cell::count(sum.records),
    ]
}

fn is_relation(part: Part) -> bool {
    !matches!(part, Part::NoRelation | Part::Framing | Part::Rest)
}

/// Tables of a treemap; more are too small to be seen.
const MAX_AREAS: usize = 60;

fn relations(document: &Document) -> Section {
    let mut table = Table::new(&head("relation"));
    for relation in &document.relations {
        let weight = if relation.label.part == Part::Rest { Weight::Rest } else { Weight::Plain };
        let row = Row::new(cells(&relation.label.text, &relation.sum)).weight(weight);
        // A table whose only part is itself needs no second line.
        let parts = relation.parts.iter().filter(|_| relation.parts.len() > 1);
        table.row(row.parts(parts.map(|part| cells(&part_text(part), &part.sum)).collect()));
    }
    let named = [
        (Tone::Heap, "table", &[Part::Table, Part::MaterializedView][..]),
        (Tone::Index, "index", &[Part::Index]),
        (Tone::Toast, "TOAST", &[Part::Toast, Part::ToastIndex]),
        (Tone::Header, "not named: --names gives names", &[Part::Relation]),
    ];
    let parts: Vec<Part> =
        document.relations.iter().flat_map(|relation| relation.parts.iter()).map(part_of).collect();
    let met = named.iter().filter(|(.., of)| of.iter().any(|part| parts.contains(part)));
    let legend = met.map(|(tone, name, _)| (*tone, (*name).to_owned()));
    let chart = Treemap {
        title: "WAL by table, with its indexes, TOAST and maps".into(),
        unit: Unit::Bytes,
        nodes: areas(&document.relations),
        legend: legend.chain([(Tone::Muted, "anything else".to_owned())]).collect(),
    };
    Section::new("Relations")
        .chart(chart, "The area is the bytes of WAL.")
        .table(table.caption("Relations, with their indexes, TOAST and maps"))
}

fn areas(relations: &[RelationDocument]) -> Vec<Node> {
    let mut nodes: Vec<Node> = relations.iter().take(MAX_AREAS).map(area).collect();
    let rest = relations.get(MAX_AREAS..).unwrap_or_default();
    if !rest.is_empty() {
        nodes.push(Node {
            name: format!("{} more", units::count(rest.len() as u64)),
            value: rest.iter().map(|relation| relation.sum.bytes).sum::<u64>() as f64,
            tone: Tone::Muted,
            ..Node::default()
        });
    }
    nodes
}

fn area(relation: &RelationDocument) -> Node {
    let node = |label: &Label, name: String, sum: &TallyDocument, parts| Node {
        name,
        value: sum.bytes as f64,
        tone: tone(label.part),
        facts: vec![
            ("images".into(), format!("{} ({})", units::count(sum.images), units::bytes(sum.image_bytes))),
            ("records".into(), units::count(sum.records)),
        ],
        parts,
    };
    let of_part =
        |part: &GroupDocument| Some(node(part.keys.first()?, part_text(part), &part.sum, Vec::new()));
    let parts = match relation.parts.len() {
        ..2 => Vec::new(),
        _ => relation.parts.iter().filter_map(of_part).collect(),
    };
    node(&relation.label, relation.label.text.clone(), &relation.sum, parts)
}

fn part_text(part: &GroupDocument) -> String {
    part.keys.first().map_or_else(String::new, Label::part_text)
}

fn part_of(part: &GroupDocument) -> Part {
    part.keys.first().map_or(Part::Rest, |key| key.part)
}

fn tone(part: Part) -> Tone {
    match part {
        Part::Table | Part::MaterializedView => Tone::Heap,
        Part::Relation => Tone::Header,
        Part::Index => Tone::Index,
        Part::Toast | Part::ToastIndex => Tone::Toast,
        _ => Tone::Muted,
    }
}

/// Causes drawn.
const MAX_CAUSES: usize = 12;

fn causes(title: &str, causes: &[CauseDocument]) -> Section {
    if causes.is_empty() {
        return Section::new(title);
    }
    let label = |cause: &CauseDocument| match cause.folded {
        Some(number) => format!("{} more", units::count(number)),
        None => cause_label(cause),
    };
    let mut table = Table::new(&["cause", "bytes", "share", "images", "records"]);
    for cause in causes {
        let weight = if cause.folded.is_some() { Weight::Rest } else { Weight::Plain };
        let cells = vec![
            Cell::text(&label(cause)),
            Cell::bytes(cause.bytes),
            Cell::share(cause.share),
            Cell::count(cause.images),
            Cell::count(cause.records),
        ];
        table.row(Row::new(cells).weight(weight));
    }
    let drawn = || causes.iter().take(MAX_CAUSES);
    let layer = |name: &str, tone, is_image| {
        let bytes = |cause: &CauseDocument| {
            if cause.mechanism.is_image() == is_image { cause.bytes as f64 } else { 0.0 }
        };
        Layer { name: name.to_owned(), tone, values: drawn().map(|cause| Some(bytes(cause))).collect() }
    };
    let chart = Bars {
        title: "The largest causes".into(),
        x: Axis::new("WAL", Unit::Bytes),
        categories: drawn().map(label).collect(),
        layers: vec![
            layer("records", Tone::Data, false),
            layer("full-page images", Tone::ImageCheckpoint, true),
        ],
        stacked: true,
        ..Bars::default()
    };
    Section::new(title)
        .chart(chart, "Each byte has one cause: relation, statement or task, mechanism.")
        .table(table)
}

/// Kinds of records drawn.
const MAX_KINDS: usize = 12;

fn record_kinds(document: &Document) -> Section {
    let mut table = Table::new(&head("resource manager, kind"));
    for kind in &document.record_kinds {
        let rest = kind.keys.first().is_some_and(|key| key.part == Part::Rest);
        let weight = if rest { Weight::Rest } else { Weight::Plain };
        table.row(Row::new(cells(&text_of(kind), &kind.sum)).weight(weight));
    }
    let drawn = || document.record_kinds.iter().take(MAX_KINDS);
    let chart = Bars {
        title: "The kinds of records with the most bytes".into(),
        x: Axis::new("WAL", Unit::Bytes),
        categories: drawn().map(text_of).collect(),
        layers: layers(drawn().map(|kind| Some(&kind.sum))),
        stacked: true,
        ..Bars::default()
    };
    Section::new("Kinds of records")
        .chart(chart, "Each record of a kind with its headers and its images.")
        .table(table)
}

fn text_of(group: &GroupDocument) -> String {
    group.keys.iter().map(|key| key.text.as_str()).collect::<Vec<_>>().join(", ")
}

fn transactions(document: &Document) -> Section {
    let sums = &document.transactions;
    let mut table =
        Table::new(&["transaction", "bytes", "share", "bytes of images", "records", "outcome", "ended"])
            .caption("The largest transactions");
    for one in &sums.largest {
        table.row(vec![
            Cell::number(&one.xid.to_string(), one.xid.into()),
            Cell::bytes(one.bytes),
            Cell::share(one.share),
            Cell::bytes(one.image_bytes),
            Cell::count(one.records),
            Cell::text(one.outcome),
            Cell::text(&one.time.as_deref().map(whole_seconds).unwrap_or_default()),
        ]);
    }
    let mut more = |name: String, bytes: u64, records: Cell| {
        let share = bytes as f64 / document.wal_bytes.max(1) as f64;
        let cells = vec![
            Cell::text(&name),
            Cell::bytes(bytes),
            Cell::share(share),
            Cell::none(),
            records,
            Cell::none(),
            Cell::none(),
        ];
        table.row(Row::new(cells).weight(Weight::Rest));
    };
    let listed: u64 = sums.largest.iter().map(|one| one.bytes).sum();
    let all = sums.committed + sums.aborted + sums.open;
    if let Some(rest) = all.checked_sub(sums.largest.len() as u64).filter(|rest| *rest > 0) {
        let bytes = sums.bytes.saturating_sub(listed);
        more(format!("{} more", units::count(rest)), bytes, Cell::none());
    }
    more("no transaction".into(), sums.system_bytes, Cell::count(sums.system_records));
    let text = format!(
        "{} committed, {} rolled back ({}), {} open. Subtransactions count with their transaction; vacuum, hint bits and \
         checkpoints have none.",
        units::count(sums.committed),
        units::count(sums.aborted),
        units::bytes(sums.aborted_bytes),
        units::count(sums.open)
    );
    Section::new("Transactions").text(&text).table(table)
}

fn view(view: &ViewDocument) -> Section {
    let names: Vec<&str> = view.by.iter().copied().chain(SUMS).collect();
    let mut table = Table::new(&names);
    let row = |keys: Vec<&str>, sum: &TallyDocument| {
        let mut cells = cells("", sum);
        cells.splice(..1, keys.into_iter().map(Cell::text));
        Row::new(cells)
    };
    for group in &view.groups {
        table.row(row(group.keys.iter().map(|key| key.text.as_str()).collect(), &group.sum));
    }
    if let Some(rest) = &view.rest {
        let label = format!("{} more", units::count(rest.groups));
        let mut keys = vec![""; view.by.len()];
        keys[0] = &label;
        table.row(row(keys, &rest.sum).weight(Weight::Rest));
    }
    Section::new(&format!("By {}", view.by.join(", "))).table(table)
}

fn glossary() -> Section {
    Section::new("Words").terms([
        (
            "full-page image",
            "A copy of a whole page of 8 kB in the WAL. PostgreSQL writes one when a page is changed for the first time \
             after a checkpoint, so that a page that a crash tore in two can be restored.",
        ),
        (
            "hint bit",
            "A note on a row that its transaction has ended. With data checksums or wal_log_hints, setting one may cost \
             an image, even for a query that only reads.",
        ),
        (
            "forced image",
            "An image that is written under any setting: index builds, rewrites of tables, some kinds of page splits.",
        ),
        (
            "checkpoint",
            "All changed pages are written to the data files, so that recovery need not read older WAL. It comes after \
             checkpoint_timeout (time), near max_wal_size (volume), or by request (CHECKPOINT, a base backup).",
        ),
        ("redo pointer", "Where recovery would start: the WAL position at the start of the checkpoint."),
        ("cycle", "The WAL from one checkpoint's redo pointer to the next one's."),
        ("LSN", "A position in the WAL, in bytes since its start, as two hexadecimal numbers."),
        ("TOAST", "Where a table keeps values that are too long for its own pages."),
        ("heap", "The pages of the table itself, with its rows."),
        ("framing", "Page headers, padding and the unused end of the last segment: bytes that belong to no record."),
    ])
}

// ---- Times ------------------------------------------------------------------------------------------------

/// Parses a time in the document to seconds since 1970-01-01 UTC.
fn second(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// Formats a time without the fraction of the second.
fn whole_seconds(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

fn share(bytes: u64, document: &Document) -> String {
    units::percent(bytes as f64 / document.wal_bytes.max(1) as f64)
}
