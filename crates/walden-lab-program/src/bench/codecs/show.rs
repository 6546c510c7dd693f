//! Formats the results as tables, a chart and a page.

use anyhow::{Result, anyhow};
use walden_report::chart::{Axis, Point, Scatter, Series, Unit};
use walden_report::html::{self, Cell, Page, Section, Table, Weight};
use walden_report::svg;
use walden_report::table::{Look, Row, table, wrap};
use walden_report::units;

use super::contenders::{self, OURSELVES, Takes, Threads};
use super::published::{self, PUBLISHED};
use super::{CodecsArgs, CorpusResults, Figures, Measured, Results, Times};
use crate::{output, terminal};

/// Prints and writes the results as the options specify.
pub fn all(args: &CodecsArgs, results: &Results) -> Result<()> {
    // Results that took an hour are printed even if they cannot be written.
    let written = write(args, results);
    let printed = terminal::show(args.format, || results, || tables(args, results));
    written.and(printed)
}

fn write(args: &CodecsArgs, results: &Results) -> Result<()> {
    if let Some(path) = &args.svg {
        let corpus = if let [only] = &results.corpora[..] { only } else { &results.total };
        let picture = svg::scatter(&chart(corpus, Direction::Compress));
        let picture = picture.map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
        output::write(path, &picture, args.overwrite)?;
    }
    args.html.as_ref().map_or(Ok(()), |path| output::write_page(path, &page(results), args.overwrite))
}

fn tables(args: &CodecsArgs, results: &Results) -> String {
    let look = terminal::look();
    let mut tables: Vec<String> = results.corpora.iter().map(|corpus| corpus_table(look, corpus)).collect();
    if results.corpora.len() > 1 {
        tables.push(corpus_table(look, &results.total));
    }
    if args.published {
        tables.push(published_table(look, &results.total));
    }
    let mut notes = vec![LEGEND.to_owned()];
    notes.extend(results.missing.iter().map(|one| {
        format!(
            "not installed: {} (package {}), so without {}",
            one.program,
            one.package,
            one.contenders.join(", ")
        )
    }));
    tables.extend(notes.iter().map(|note| look.faint(&wrap(note, look.width, 2))));
    tables.join("\n") + "\n"
}

const LEGEND: &str = "Averages per segment: MB (10^6 bytes), their ratio to xz -2 on the same segments, seconds of wall and CPU \
                      time and peak memory in MB to compress, then to decompress. * no other is smaller in less time.";

fn corpus_table(look: Look, corpus: &CorpusResults) -> String {
    let title = title(corpus);
    let rows: Vec<Row> =
        corpus.contenders.iter().filter(|one| one.figures.is_some()).map(|one| row(corpus, one)).collect();
    let head: &[&str] = &["MB", "xz -2", "wall", "CPU", "peak", "unpack", "CPU", "peak"];
    let mut text = table(look, &title, ("contender", head), &rows);
    for one in &corpus.contenders {
        if let Some(failure) = &one.failure {
            text += &format!(
                "{}\n",
                look.alarm(&wrap(&format!("  {} FAILED: {failure}", one.contender), look.width, 4))
            );
        }
    }
    text
}

fn title(corpus: &CorpusResults) -> String {
    format!(
        "{} ({}): {} segments, {}",
        corpus.name,
        corpus.source,
        corpus.segments,
        units::bytes(corpus.bytes)
    )
}

fn row(corpus: &CorpusResults, one: &Measured) -> Row {
    let cells = one.figures.as_ref().map_or_else(Vec::new, |figures| {
        let (there, back) = (&figures.compress, &figures.decompress);
        vec![
            format!("{:.3}", figures.megabytes),
            ratio(figures.times_xz_2.map(|times| times.bytes)),
            seconds(there.wall_seconds),
            seconds(there.cpu_seconds),
            memory(there.peak_kilobytes),
            seconds(back.wall_seconds),
            seconds(back.cpu_seconds),
            memory(back.peak_kilobytes),
        ]
    });
    let share = one.figures.as_ref().map(|figures| figures.bytes_out as f64 / figures.bytes_in.max(1) as f64);
    Row { depth: 0, label: label(corpus, one), cells, share }
}

/// Returns the label, with a star if it is on the Pareto front, and the number of segments unless it is all
/// of them.
fn label(corpus: &CorpusResults, one: &Measured) -> String {
    let Some(figures) = &one.figures else { return one.contender.clone() };
    let star = if figures.on_front { " *" } else { "" };
    let some = if figures.segments < corpus.segments {
        format!(" ({} of {})", figures.segments, corpus.segments)
    } else {
        String::new()
    };
    format!("{}{star}{some}", one.contender)
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
}

/// Formats seconds with three or four digits.
fn seconds(seconds: f64) -> String {
    let digits = match seconds {
        ..10.0 => 3,
        10.0..100.0 => 2,
        _ => 1,
    };
    format!("{seconds:.digits$}")
}

fn memory(kilobytes: u64) -> String {
    format!("{:.0}", kilobytes as f64 * 1.024e-3)
}

/// Compares the published figures with those measured at the same level.
fn published_table(look: Look, corpus: &CorpusResults) -> String {
    let rows: Vec<Row> = published_rows(corpus)
        .into_iter()
        .map(|mut cells| Row { depth: 0, label: cells.remove(0), cells, share: None })
        .collect();
    table(look, "Published in 2017 and measured now", (PUBLISHED_HEAD[0], &PUBLISHED_HEAD[1..]), &rows)
}

const PUBLISHED_HEAD: [&str; 7] =
    ["contender", "MB 2017", "MB now", "xz -2 2017", "xz -2 now", "s 2017", "s now"];

fn published_rows(corpus: &CorpusResults) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for program in PUBLISHED {
        for level in 1..=9 {
            let Some(then) = published::find(program.contender, level) else { continue };
            let now =
                corpus.contenders.iter().find(|one| (one.name, one.level) == (program.contender, level));
            let figures = now.and_then(|one| one.figures.as_ref());
            let of = |text: fn(&Figures) -> String| figures.map_or_else(|| "-".into(), text);
            rows.push(vec![
                contenders::label(program.contender, level),
                format!("{:.3}", then.megabytes),
                of(|figures| format!("{:.3}", figures.megabytes)),
                format!("{:.2}", then.times_xz_2),
                of(|figures| ratio(figures.times_xz_2.map(|times| times.bytes))),
                format!("{:.3}", then.wall_seconds),
                of(|figures| seconds(figures.compress.wall_seconds)),
            ]);
        }
    }
    rows
}

/// The direction whose time a chart shows.
#[derive(Clone, Copy)]
enum Direction {
    Compress,
    Decompress,
}

fn chart(corpus: &CorpusResults, direction: Direction) -> Scatter {
    let mut series: Vec<Series> = Vec::new();
    let mut against_xz = true;
    for one in &corpus.contenders {
        let Some(figures) = &one.figures else { continue };
        against_xz &= figures.times_xz_2.is_some();
        let spent = match direction {
            Direction::Compress => figures.compress,
            Direction::Decompress => figures.decompress,
        };
        let point = Point { label: one.contender.clone(), x: spent.wall_seconds, y: figures.size() };
        match series.last_mut().filter(|series| series.name == one.name) {
            Some(series) => series.points.push(point),
            None => series.push(Series {
                name: one.name.to_owned(),
                emphasised: one.name.starts_with(OURSELVES),
                points: vec![point],
            }),
        }
    }
    let verb = match direction {
        Direction::Compress => "compress",
        Direction::Decompress => "decompress",
    };
    Scatter {
        title: format!("{}: size against time to {verb}", corpus.name),
        x: Axis::new(&format!("wall time to {verb} a segment"), Unit::Seconds).log(),
        y: Axis::new(if against_xz { "size, xz -2 = 1" } else { "size, uncompressed = 1" }, Unit::Plain)
            .log(),
        series,
        front: true,
    }
}

fn page(results: &Results) -> Page {
    let mut page = Page::new("Compression of WAL segments");
    page.subtitle(&format!(
        "Measured by walden bench codecs on {}: {} cores{}, {} of each program on each segment.",
        results.started_at,
        results.machine.cores,
        results.machine.processor.as_ref().map_or_else(String::new, |name| format!(" of {name}")),
        if results.runs == 1 { "one run".to_owned() } else { format!("medians of {} runs", results.runs) },
    ));
    facts(&mut page, &results.total);
    let mut how = Section::new("How it was measured").text(
        "Programs alternate, segment by segment. Every decompressed file was compared with the original, byte for byte. \
         Times and memory are of whole processes. Contenders that are too slow for all segments compressed some of them; \
         their ratios are to xz -2 on the same segments.",
    );
    for one in &results.missing {
        let text = format!("{} (package {}): {}", one.program, one.package, one.contenders.join(", "));
        how = how.text(&format!("Not installed: {text}."));
    }
    page.section(how);
    let single = results.corpora.len() == 1;
    for corpus in std::iter::once(&results.total).filter(|_| !single).chain(&results.corpora) {
        let mut table = Table::new(&PAGE_HEAD);
        corpus.contenders.iter().for_each(|one| table.row(page_row(corpus, one)));
        page.section(
            Section::new(&title(corpus))
                .chart(chart(corpus, Direction::Compress), PARETO_NOTE)
                .chart(chart(corpus, Direction::Decompress), PARETO_NOTE)
                .table(table),
        );
    }
    let mut table = Table::new(&PUBLISHED_HEAD);
    for row in published_rows(&results.total) {
        table.row(row.iter().map(|text| figure(text)).collect::<Vec<_>>());
    }
    page.section(
        Section::new("Published in 2017, and measured now")
            .text(
                "End Point's comparison: 100 segments of a busy production system, 16 cores; averages per segment. \
                 Measured: the first table above. Compare ratios: data and machine differ, so seconds and MB do too.",
            )
            .table(table),
    );
    let mut table = Table::new(&["program", "version"]);
    for one in &results.programs {
        table.row(vec![Cell::text(one.program), Cell::text(one.version.as_deref().unwrap_or_default())]);
    }
    page.section(Section::new("Programs").table(table));
    page
}

const PARETO_NOTE: &str = "Both scales are logarithmic: lower is smaller, further left is faster. The wide grey line is the \
                           Pareto front: no other contender is smaller in less time. A line joins the levels of one program.";

/// Adds the corpus, and the smallest size by Walden and by the others.
fn facts(page: &mut Page, corpus: &CorpusResults) {
    page.fact("segments", &units::count(corpus.segments as u64), &units::bytes(corpus.bytes));
    let known = || corpus.contenders.iter().filter_map(|one| Some((one, one.figures.as_ref()?)));
    let mut smallest = |name: &str, ours: bool| {
        let least = known()
            .filter(|(one, _)| one.name.starts_with(OURSELVES) == ours)
            .min_by(|one, other| one.1.size().total_cmp(&other.1.size()));
        if let Some((one, figures)) = least {
            let share = figures.bytes_out as f64 / figures.bytes_in.max(1) as f64;
            let note = format!(
                "{}, {} to compress a segment",
                one.contender,
                units::seconds(figures.compress.wall_seconds)
            );
            page.fact(name, &format!("{} of raw", units::percent(share)), &note);
        }
    };
    smallest("smallest by Walden", true);
    smallest("smallest by others", false);
}

const PAGE_HEAD: [&str; 15] = [
    "contender",
    "MB",
    "of raw",
    "size / xz -2",
    "wall s",
    "time / xz -2",
    "CPU s",
    "peak MB",
    "unpack wall s",
    "time / xz -2",
    "CPU s",
    "peak MB",
    "a process takes",
    "threads",
    "",
];

fn page_row(corpus: &CorpusResults, one: &Measured) -> html::Row {
    let Some(figures) = &one.figures else {
        let mut cells = vec![Cell::none(); PAGE_HEAD.len()];
        cells[0] = Cell::text(&one.contender);
        cells[PAGE_HEAD.len() - 1] =
            Cell::text(&format!("failed: {}", one.failure.as_deref().unwrap_or_default()));
        return html::Row::new(cells).weight(Weight::Alarm);
    };
    let (there, back, times) = (&figures.compress, &figures.decompress, figures.times_xz_2);
    let times = |of: fn(Times) -> f64| {
        times.map_or_else(|| Cell::text("-"), |times| Cell::number(&ratio(Some(of(times))), of(times)))
    };
    let time = |value: f64| Cell::number(&seconds(value), value);
    let peak = |kilobytes: u64| Cell::number(&memory(kilobytes), kilobytes as f64);
    let cells = vec![
        Cell::text(&label(corpus, one)),
        Cell::number(&format!("{:.3}", figures.megabytes), figures.megabytes),
        Cell::share(figures.bytes_out as f64 / figures.bytes_in.max(1) as f64),
        times(|times| times.bytes),
        time(there.wall_seconds),
        times(|times| times.compress_wall),
        time(there.cpu_seconds),
        peak(there.peak_kilobytes),
        time(back.wall_seconds),
        times(|times| times.decompress_wall),
        time(back.cpu_seconds),
        peak(back.peak_kilobytes),
        Cell::text(match one.takes {
            Takes::Segment => "a segment",
            Takes::Corpus => "all",
        }),
        Cell::text(match one.threads {
            Threads::One => "1",
            Threads::All => "all",
        }),
        Cell::none(),
    ];
    let weight = if one.name.starts_with(OURSELVES) { Weight::Strong } else { Weight::Plain };
    html::Row::new(cells).weight(weight)
}

/// Returns a cell that sorts as a number if the text is one.
fn figure(text: &str) -> Cell {
    text.parse().map_or_else(|_| Cell::text(text), |number| Cell::number(text, number))
}
