//! Formats the results of an experiment as a page with charts: claims, measured figures next to published and
//! predicted ones, and a table of all figures.

use walden_lab::experiments::definition::Kind;
use walden_lab::experiments::report::{Check, Figure, Report, RunResult};
use walden_report::chart::{
    Axis, Bars, Curve, CurveLine, Layer, PredictedAgainstMeasured, Prediction, Tone, Unit,
};
use walden_report::html::{Cell, Page, Row, Section, Table, Weight};
use walden_report::{sweep, units};

use super::figures::{measure_name, number};

const MEGABYTE: f64 = 1_048_576.0;

/// Builds the page of an experiment's results.
pub fn page(report: &Report, kind: Kind) -> Page {
    let mut page = Page::new(&report.experiment);
    page.subtitle(&sentence(&report.about));
    let sizes: Vec<String> = report.sizes.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let server = report.server.as_ref().and_then(|server| server.version.split(" on ").next());
    let server = server.and_then(|server| server.split(" (").next()).unwrap_or("without a server");
    page.subtitle(&format!(
        "{server}; {}; started {}, took {}",
        sizes.join(", "),
        report.started_at,
        units::seconds(report.seconds)
    ));
    page.subtitle(&match &report.source {
        Some(source) => format!("Published: {} {}; {}", source.author, source.year, source.setup),
        None => "Not published: predictions are compared with the servers' WAL.".to_owned(),
    });
    facts(&mut page, report);
    page.section(claims(report));
    let charts = match kind {
        Kind::WalLevel => levels(report),
        Kind::CheckpointDistance => distances(report),
        Kind::FullPageWrites => statements(report),
        Kind::SegmentSize => copies(report),
        Kind::WhatifValidation => calibration(report),
    };
    for section in [charts, predicted(report), figures(report), runs(report)] {
        if !section.is_empty() {
            page.section(section);
        }
    }
    page
}

fn facts(page: &mut Page, report: &Report) {
    let checked = report.checks.iter().filter(|check| check.holds.is_some()).count();
    if checked > 0 {
        let held = report.checks.iter().filter(|check| check.holds == Some(true)).count();
        page.fact("claims that hold", &format!("{held} of {checked}"), "of those that could be checked");
    }
    let of_others = |figure: &&Figure| figure.measure == "wal_mb" && !is_own(report, figure);
    let errors: Vec<f64> = report.figures.iter().filter(of_others).filter_map(error).collect();
    if !errors.is_empty() {
        let worst =
            errors.iter().copied().max_by(|one, other| one.abs().total_cmp(&other.abs())).unwrap_or(0.0);
        let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
        page.fact("worst prediction", &signed(worst), &format!("of {}", errors.len()));
        page.fact("predictions are off by", &format!("{:.2} %", 100.0 * mean), "on average");
    }
    page.fact("runs", &units::count(report.runs.len() as u64), "servers, each put to work alone");
    page.fact(
        "took",
        &units::seconds(report.seconds),
        if report.published_size { "the published size" } else { "" },
    );
}

/// Returns whether a figure was predicted from the WAL of its own case.
fn is_own(report: &Report, figure: &Figure) -> bool {
    let of_all = report.details.get("predicted").and_then(|predicted| predicted["from"].as_str());
    of_all == Some(&figure.case) || figure.phase.strip_prefix("from ") == Some(&figure.case)
}

/// Returns the error of a prediction, as a fraction of the measured value.
fn error(figure: &Figure) -> Option<f64> {
    let (predicted, measured) = figure.predicted.zip(figure.measured)?;
    (measured > 0.0).then(|| predicted / measured - 1.0)
}

fn signed(fraction: f64) -> String {
    format!("{:+.2} %", 100.0 * fraction)
}

// ---- Claims

fn claims(report: &Report) -> Section {
    let mut section = Section::new("Claims");
    let failed = report.checks.iter().any(|check| check.holds == Some(false));
    section = if failed { section.alarm(&report.verdict) } else { section.text(&report.verdict) };
    if !report.checks.is_empty() {
        let mut table = Table::new(&["claim", "holds", "measured", "published", "holds from", "to"]);
        for check in &report.checks {
            let holds = match check.holds {
                Some(true) => "yes",
                Some(false) => "no",
                None => "not checked",
            };
            let cells = vec![
                Cell::sentence(&check.claim),
                Cell::text(holds),
                ratio(check.measured),
                ratio(check.published),
                ratio(check.at_least),
                ratio(check.at_most),
            ];
            let weight = if check.holds == Some(false) { Weight::Alarm } else { Weight::Plain };
            table.row(Row::new(cells).weight(weight));
        }
        section = section.table(table.caption("Claims: ratios"));
    }
    let with_both: Vec<&Check> = report.checks.iter().filter(|check| check.measured.is_some()).collect();
    if with_both.iter().any(|check| check.published.is_some()) {
        let layer = |name: &str, tone, which: fn(&Check) -> Option<f64>| Layer {
            name: name.to_owned(),
            tone,
            values: with_both.iter().map(|check| which(check)).collect(),
        };
        let chart = Bars {
            title: "Claims as ratios".into(),
            x: Axis::new("times", Unit::Plain),
            categories: with_both.iter().map(|check| check.claim.clone()).collect(),
            layers: vec![
                layer("measured", Tone::Next, |check| check.measured),
                layer("published", Tone::Muted, |check| check.published),
            ],
            ..Bars::default()
        };
        section = section.chart(
            chart,
            "Ratios of two figures can be compared even if the sizes are not the published ones.",
        );
    }
    let missing = report.unavailable.iter().map(|missing| format!("not measured: {missing}"));
    section.list(report.notes.iter().cloned().chain(missing))
}

/// Returns an experiment's description, capitalized.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(letters).collect()
}

fn ratio(value: Option<f64>) -> Cell {
    value.map_or_else(Cell::none, |value| Cell::number(&number(Some(value)), value))
}

// ---- Figures as bars

type Which = fn(&Figure) -> Option<f64>;

const MEASURED: Which = |figure| figure.measured;
const PUBLISHED: Which = |figure| figure.published;
const PREDICTED: Which = |figure| figure.predicted;

fn value(report: &Report, [case, phase, measure]: [&str; 3], which: Which) -> Option<f64> {
    let is_this =
        |figure: &&Figure| figure.case == case && figure.phase == phase && figure.measure == measure;
    report.figures.iter().find(is_this).and_then(which)
}

/// Returns each text once, in the order of first appearance.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for text in texts {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// Builds a bar chart with layers; each has a name, a colour, and a function that returns a category's value.
fn bars(
    title: &str,
    axis: &str,
    categories: &[&str],
    layers: Vec<(String, Tone, Vec<Option<f64>>)>,
    stacked: bool,
) -> Option<Bars> {
    let layers: Vec<Layer> = layers
        .into_iter()
        .filter(|(_, _, values)| values.iter().any(Option::is_some))
        .map(|(name, tone, values)| Layer { name, tone, values })
        .collect();
    let unit = if axis == "seconds" { Unit::Seconds } else { Unit::Plain };
    (!layers.is_empty()).then(|| Bars {
        title: title.to_owned(),
        x: Axis::new(axis, unit),
        categories: categories.iter().map(|name| (*name).to_owned()).collect(),
        layers,
        stacked,
        ..Bars::default()
    })
}

/// Adds a chart, if it has data.
fn add_bars(section: Section, chart: Option<Bars>, note: &str) -> Section {
    match chart {
        Some(chart) => section.chart(chart, note),
        None => section,
    }
}

// ---- wal-level

fn levels(report: &Report) -> Section {
    let mut section = Section::new("WAL by level");
    for phase in distinct(report.figures.iter().map(|figure| figure.phase.as_str())) {
        let cases = distinct(report.figures.iter().map(|figure| figure.case.as_str()));
        let of =
            |which: Which| cases.iter().map(|case| value(report, [case, phase, "wal_mb"], which)).collect();
        let layers = vec![
            ("measured".to_owned(), Tone::Next, of(MEASURED)),
            ("published".to_owned(), Tone::Muted, of(PUBLISHED)),
            ("predicted".to_owned(), Tone::Next, of(PREDICTED)),
        ];
        let chart =
            bars(&format!("The {phase}, by wal_level"), &measure_name("wal_mb"), &cases, layers, false);
        section = add_bars(section, chart, "Exact distances in the WAL, on a fresh cluster for each level.");
    }
    section
}

// ---- checkpoint-distance

/// Returns the value of a run's setting in bytes, as the server reported it.
fn setting_bytes(run: &RunResult, name: &str) -> Option<f64> {
    let setting = run.settings.get(name)?;
    let unit = setting.unit.as_deref().unwrap_or_default();
    sweep::quantity(&format!("{}{unit}", setting.value)).map(|(bytes, _)| bytes)
}

fn distances(report: &Report) -> Section {
    const SETTING: &str = "max_wal_size";
    let mut section = Section::new("Growing distance between checkpoints");
    // Cases of the ladder are named after their setting; all have the same checkpoint_timeout.
    let is_step = |case: &str| case.starts_with(&format!("{SETTING}="));
    let place = |case: &str| match case.split_once('=') {
        Some((_, size)) if is_step(case) => sweep::quantity(size).map(|(bytes, _)| bytes),
        _ => report.runs.iter().find(|run| run.case == case).and_then(|run| setting_bytes(run, SETTING)),
    };
    let timeout = |case: &str| {
        let run = report.runs.iter().find(|run| run.case == case)?;
        let setting = run.settings.get("checkpoint_timeout")?;
        setting.value.parse().ok().map(walden_whatif::settings::show_seconds)
    };
    let curve = |measure: &str, title: &str, log: bool| {
        let of =
            |case: &str, which: Which| Some((place(case)?, value(report, [case, "run", measure], which)?));
        let cases = distinct(report.figures.iter().map(|figure| figure.case.as_str()));
        let (steps, others): (Vec<&str>, Vec<&str>) = cases.into_iter().partition(|case| is_step(case));
        let mut predicted = predicted_steps(report, measure, &is_step);
        predicted.sort_by(|one, other| one.0.total_cmp(&other.0));
        let of_steps = steps.first().and_then(|case| timeout(case));
        let ladder = CurveLine {
            name: of_steps
                .map_or_else(|| "one after another".into(), |time| format!("checkpoint_timeout={time}")),
            predicted,
            measured: steps.iter().filter_map(|case| of(case, MEASURED)).collect(),
            ..CurveLine::default()
        };
        let alone = others.into_iter().map(|case| {
            let time = timeout(case).map_or_else(String::new, |time| format!(", checkpoint_timeout={time}"));
            CurveLine {
                name: format!("{case}{time}"),
                predicted: of(case, PREDICTED).into_iter().collect(),
                measured: of(case, MEASURED).into_iter().collect(),
                ..CurveLine::default()
            }
        });
        Curve {
            title: title.to_owned(),
            x: Axis::new(SETTING, Unit::SettingBytes).log(),
            left: Axis { log, ..Axis::new(&measure_name(measure), Unit::Plain) },
            right: None,
            lines: [ladder].into_iter().chain(alone).collect(),
            marks: Vec::new(),
        }
    };
    let from = report.details.get("predicted").and_then(|found| found["from"].as_str());
    let note = match from {
        Some(trace) => format!(
            "Rings are measured, each on a server of its own. Lines and dots are predicted, all of them from the log of \
             {trace}."
        ),
        None => "Rings are measured, each on a server of its own.".to_owned(),
    };
    section = section
        .chart(curve("wal_mb", "WAL of the same transactions against max_wal_size", false), &note)
        .chart(curve("checkpoints", "Checkpoints", false), &note);
    as_published(report, section)
}

/// Compares speed and volume with the published ones.
fn as_published(report: &Report, mut section: Section) -> Section {
    let cases = distinct(report.figures.iter().map(|figure| figure.case.as_str()));
    let of = |measure: &str, which: Which| -> Vec<Option<f64>> {
        cases.iter().map(|case| value(report, [case, "run", measure], which)).collect()
    };
    let speed = vec![
        ("measured".to_owned(), Tone::Next, of("tps", MEASURED)),
        ("published".to_owned(), Tone::Muted, of("tps", PUBLISHED)),
    ];
    section = add_bars(
        section,
        bars("Transactions per second", &measure_name("tps"), &cases, speed, false),
        "On this machine, and on that of the publication.",
    );
    let published: Vec<&str> = cases
        .iter()
        .copied()
        .filter(|case| value(report, [case, "run", "wal_mb"], PUBLISHED).is_some())
        .collect();
    let volume =
        |which: Which| published.iter().map(|case| value(report, [case, "run", "wal_mb"], which)).collect();
    let mut layers = vec![("published".to_owned(), Tone::Muted, volume(PUBLISHED))];
    if report.published_size {
        layers.insert(0, ("measured".to_owned(), Tone::Next, volume(MEASURED)));
    }
    let note = if report.published_size {
        ""
    } else {
        "At the published size: compare only its ratio with the measured one."
    };
    add_bars(section, bars("WAL as published", &measure_name("wal_mb"), &published, layers, false), note)
}

/// Returns the predictions for the ladder's steps, including steps that were not run.
fn predicted_steps(report: &Report, measure: &str, is_step: &dyn Fn(&str) -> bool) -> Vec<(f64, f64)> {
    let cases = report.details.get("predicted").and_then(|found| found["cases"].as_array());
    let one = |cell: &serde_json::Value| {
        let case = cell["case"].as_str().filter(|case| is_step(case))?;
        let (size, _) = sweep::quantity(case.split_once('=')?.1)?;
        let predicted = match measure {
            "wal_mb" => cell["bytes"].as_f64()? / MEGABYTE,
            _ => cell["checkpoints_for_volume"].as_f64()? + cell["checkpoints_for_time"].as_f64()?,
        };
        Some((size, predicted))
    };
    cases.into_iter().flatten().filter_map(one).collect()
}

// ---- full-page-writes

fn statements(report: &Report) -> Section {
    let mut section = Section::new("Statement by statement");
    let measure = measure_name("wal_mb");
    let phases = distinct(report.figures.iter().map(|figure| figure.phase.as_str()));
    let cases = distinct(report.runs.iter().map(|run| run.case.as_str()));
    let of = |case: &str, measure: &str, which: Which| -> Vec<Option<f64>> {
        phases.iter().map(|phase| value(report, [case, phase, measure], which)).collect()
    };
    let tones = [Tone::ImageCheckpoint, Tone::Data, Tone::Next, Tone::Next];
    let by_case = |which: Which, what: &str| -> Vec<(String, Tone, Vec<Option<f64>>)> {
        let named = cases.iter().zip(tones.into_iter().cycle());
        named
            .map(|(case, tone)| (format!("full_page_writes={case}{what}"), tone, of(case, "wal_mb", which)))
            .collect()
    };
    section = add_bars(
        section,
        bars("WAL of each statement", &measure, &phases, by_case(MEASURED, ""), false),
        "A checkpoint stands before each statement, so every page that it touches is touched for the first time.",
    );
    // For cases with images: the WAL without the images.
    let rest = |case: &str| -> Vec<Option<f64>> {
        let both = of(case, "wal_mb", MEASURED).into_iter().zip(of(case, "images_mb", MEASURED));
        both.map(|(all, images)| Some((all? - images?).max(0.0))).collect()
    };
    if let Some(case) = cases.first() {
        let layers = vec![
            ("records".to_owned(), Tone::Data, rest(case)),
            ("full-page images".to_owned(), Tone::ImageCheckpoint, of(case, "images_mb", MEASURED)),
        ];
        let title = format!("Parts of the WAL with full_page_writes={case}");
        section = add_bars(section, bars(&title, &measure, &phases, layers, true), "");
    }
    section = add_bars(
        section,
        bars("As published", &measure, &phases, by_case(PUBLISHED, ""), false),
        if report.published_size {
            ""
        } else {
            "At the published size: compare only ratios with the measured ones."
        },
    );
    let mut engines = Vec::new();
    if let Some(case) = cases.first() {
        engines.push(("PostgreSQL: WAL".to_owned(), Tone::ImageCheckpoint, of(case, "wal_mb", MEASURED)));
    }
    engines.push(("MariaDB: redo".to_owned(), Tone::Next, of("mariadb", "redo_mb", MEASURED)));
    engines.push((
        "MariaDB: doublewrite pages".to_owned(),
        Tone::Next,
        of("mariadb", "doublewrite_mb", MEASURED),
    ));
    for (case, name) in [("oracle", "Oracle: redo"), ("oracle in backup mode", "Oracle in backup mode: redo")]
    {
        let measured = of(case, "redo_mb", MEASURED);
        let layer = match measured.iter().any(Option::is_some) {
            true => (name.to_owned(), Tone::Next, measured),
            false => (format!("{name} (a model)"), Tone::Next, of(case, "redo_mb", PREDICTED)),
        };
        engines.push(layer);
    }
    add_bars(
        section,
        bars("The same statements on other engines", "MB (2^20)", &phases, engines, false),
        "Pages of MariaDB's doublewrite buffer, and whole blocks that Oracle logs in backup mode, are what full-page images \
         are to PostgreSQL. Oracle's figures are a model's where no Oracle was given.",
    )
}

// ---- segment-size

fn copies(report: &Report) -> Section {
    let mut section = Section::new("Copying the same bytes");
    let seconds = || report.figures.iter().filter(|figure| figure.measure == "seconds");
    let phases = distinct(seconds().map(|figure| figure.phase.as_str()));
    let cases = distinct(seconds().map(|figure| figure.case.as_str()));
    let layers = cases.iter().map(|case| {
        let values = phases.iter().map(|phase| value(report, [case, phase, "seconds"], MEASURED)).collect();
        (format!("files of {case}"), Tone::Next, values)
    });
    section = add_bars(
        section,
        bars("Seconds of each loop", "seconds", &phases, layers.collect(), false),
        "Cold: after the cache was asked to let go of the files. As published: the loop took the names of the large files, and \
         copied files of these names from the folder of small ones, a fraction of the bytes.",
    );
    let published = cases.iter().map(|case| {
        let values = phases.iter().map(|phase| value(report, [case, phase, "seconds"], PUBLISHED)).collect();
        (format!("files of {case}"), Tone::Next, values)
    });
    let with: Vec<(String, Tone, Vec<Option<f64>>)> = published.collect();
    let known: Vec<usize> =
        (0..phases.len()).filter(|at| with.iter().any(|layer| layer.2[*at].is_some())).collect();
    let names: Vec<&str> = known.iter().map(|at| phases[*at]).collect();
    let layers = with
        .into_iter()
        .map(|(name, tone, values)| (name, tone, known.iter().map(|at| values[*at]).collect()))
        .collect();
    section = add_bars(section, bars("Seconds as published", "seconds", &names, layers, false), "");
    let explained = report.details.get("explanation").and_then(|found| found.as_array());
    let explained: Vec<&serde_json::Value> = explained.into_iter().flatten().collect();
    let commands: Vec<&str> = explained.iter().filter_map(|one| one["command"].as_str()).collect();
    let of = |name: &str| explained.iter().map(|one| one[name].as_f64()).collect();
    let layers = vec![
        ("published".to_owned(), Tone::Muted, of("published_ratio")),
        ("the same bytes".to_owned(), Tone::Next, of("same_bytes_ratio")),
        ("the loop as published".to_owned(), Tone::Next, of("as_published_ratio")),
    ];
    add_bars(
        section,
        bars("Cost of small files: time divided by that of large ones", "times", &commands, layers, false),
        "The one closer to the published ratio explains it.",
    )
}

// ---- whatif-validation

/// Compares the printed errors with the actual ones: all cells, sorted by the ratio of actual to printed
/// error.
fn calibration(report: &Report) -> Section {
    let mut section = Section::new("How reliable the printed errors are");
    let Some(found) = report.details.get("calibration") else { return section };
    let cells: Vec<&serde_json::Value> = found["sorted"].as_array().into_iter().flatten().collect();
    let (count, within) = (cells.len(), found["within"].as_u64().unwrap_or(0));
    let of = |cell: &serde_json::Value, name: &str| cell[name].as_f64().unwrap_or(0.0);
    let place = |at: usize| 100.0 * (at + 1) as f64 / count.max(1) as f64;
    let ratios = cells.iter().enumerate().map(|(at, cell)| (place(at), of(cell, "error_to_width")));
    let chart = Curve {
        title: "Error in parts of the error printed".into(),
        x: Axis::new("per cent of the cells", Unit::Plain),
        left: Axis::new("error / printed error", Unit::Plain),
        right: None,
        lines: vec![
            CurveLine { name: "cells".into(), measured: ratios.collect(), ..CurveLine::default() },
            CurveLine {
                name: "the printed error".into(),
                tone: Tone::Muted,
                predicted: vec![(0.0, 1.0), (100.0, 1.0)],
                ..CurveLine::default()
            },
        ],
        marks: Vec::new(),
    };
    section = section.chart(
        chart,
        &format!(
            "Each point is a prediction of one case from the log of another. Below the line the measured volume lies within the \
             printed error: {within} of {count}. The median error is {:.3} %, the median of the errors printed {:.3} %. With {:.0} % of \
             their width, the printed errors would hold in 95 % of the cells.",
            of(found, "median_error_percent"),
            of(found, "median_width_percent"),
            of(found, "width_needed_percent")
        ),
    );
    let mut table = Table::new(&["case", "predicted from", "error", "printed", "error / printed"]);
    for cell in cells.iter().rev() {
        let [error, width] = ["error_percent", "width_percent"].map(|name| of(cell, name));
        let ratio = of(cell, "error_to_width");
        let cells = vec![
            Cell::text(cell["case"].as_str().unwrap_or_default()),
            Cell::text(cell["trace"].as_str().unwrap_or_default()),
            Cell::number(&format!("{error:.3} %"), error),
            Cell::number(&format!("±{width:.3} %"), width),
            Cell::number(&format!("{ratio:.2}"), ratio),
        ];
        let weight = if ratio > 1.0 { Weight::Strong } else { Weight::Plain };
        table.row(Row::new(cells).weight(weight));
    }
    section.table(table.caption("Cells; bold where the measured volume lies outside the printed error"))
}

// ---- Predictions and figures

/// Predictions with a larger error are outside the dotted lines.
const TOLERANCE: f64 = 0.05;

fn predicted(report: &Report) -> Section {
    let mut section = Section::new("Predicted and measured");
    let with_both: Vec<&Figure> = report
        .figures
        .iter()
        .filter(|figure| figure.measure == "wal_mb" && error(figure).is_some())
        .collect();
    if with_both.is_empty() {
        return section;
    }
    let points = with_both.iter().map(|figure| Prediction {
        name: format!("{}, {}", figure.case, figure.phase),
        series: figure.phase.clone(),
        predicted: figure.predicted.unwrap_or(f64::NAN),
        measured: figure.measured.unwrap_or(f64::NAN),
    });
    let values = || with_both.iter().filter_map(|figure| figure.measured);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let chart = PredictedAgainstMeasured {
        title: "WAL, predicted and measured".into(),
        axis: Axis { log: most > 8.0 * least, ..Axis::new(&measure_name("wal_mb"), Unit::Plain) },
        tolerance: Some(TOLERANCE),
        points: points.collect(),
    };
    section = section
        .chart(chart, "Points on the line are exact predictions; the dotted lines mark an error of 5 %. Two runs of the same work also differ.");
    let mut table = Table::new(&["case", "part", "measured (2^20)", "predicted (2^20)", "error"]);
    for figure in &with_both {
        let wrong = error(figure).unwrap_or(0.0);
        let cells = vec![
            Cell::text(&figure.case),
            Cell::text(if is_own(report, figure) { "from its own WAL" } else { &figure.phase }),
            megabytes(figure.measured),
            megabytes(figure.predicted),
            Cell::number(&signed(wrong), wrong),
        ];
        let weight = if wrong.abs() > TOLERANCE { Weight::Strong } else { Weight::Plain };
        table.row(Row::new(cells).weight(weight));
    }
    section.table(table.caption("WAL; bold where it is wrong by more than 5 %"))
}

fn megabytes(value: Option<f64>) -> Cell {
    value.map_or_else(Cell::none, |value| Cell::number(&format!("{} MB", number(Some(value))), value))
}

fn figures(report: &Report) -> Section {
    let with = |which: Which| report.figures.iter().any(|figure| which(figure).is_some());
    let columns: Vec<(&str, Which)> =
        [("measured", MEASURED), ("published", PUBLISHED), ("predicted", PREDICTED)]
            .into_iter()
            .filter(|(_, which)| with(*which))
            .collect();
    let head: Vec<&str> =
        ["case", "part", "figure"].into_iter().chain(columns.iter().map(|column| column.0)).collect();
    let mut table = Table::new(&head);
    for figure in &report.figures {
        let mut cells = vec![
            Cell::text(&figure.case),
            Cell::text(&figure.phase),
            Cell::text(&measure_name(&figure.measure)),
        ];
        cells.extend(columns.iter().map(|(_, which)| ratio(which(figure))));
        table.row(cells);
    }
    let section = Section::new("All figures");
    let section = match !report.published_size && with(PUBLISHED) {
        true => section.text("Published figures are those of the published size: compare only ratios."),
        false => section,
    };
    if table.is_empty() { section } else { section.table(table) }
}

fn runs(report: &Report) -> Section {
    let section = Section::new("Runs");
    if report.runs.is_empty() {
        return section;
    }
    let mut table = Table::new(&["case", "part", "WAL from", "to", "bytes", "time"]);
    for run in &report.runs {
        for phase in &run.phases {
            let seconds = phase.seconds;
            let bytes = phase.to.0.saturating_sub(phase.from.0);
            table.row(vec![
                Cell::text(&run.case),
                Cell::text(&phase.name),
                Cell::text(&phase.from.to_string()),
                Cell::text(&phase.to.to_string()),
                Cell::bytes(bytes),
                Cell::seconds(seconds),
            ]);
        }
    }
    let mut settings = Table::new(&["case, setting", "value", "source"]).caption("Settings of the servers");
    for run in &report.runs {
        let parts =
            run.settings.iter().filter(|(_, setting)| setting.source != "default").map(|(name, setting)| {
                let unit = setting.unit.as_deref().map(|unit| format!(" {unit}")).unwrap_or_default();
                vec![
                    Cell::text(name),
                    Cell::text(&format!("{}{unit}", setting.value)),
                    Cell::text(&setting.source),
                ]
            });
        let row = vec![Cell::text(&run.case), Cell::none(), Cell::none()];
        settings.row(Row::new(row).parts(parts.collect()));
    }
    section.table(table).table(settings)
}
