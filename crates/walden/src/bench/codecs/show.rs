//! Results as tables, a chart and a page.

use anyhow::{Result, anyhow};
use walden_report::chart::{Point, Scatter, Series, scatter};
use walden_report::html::{Document, Weight};
use walden_report::table::{Look, Row, table, wrap};
use walden_report::units;

use super::contenders::{self, OURSELVES, Takes, Threads};
use super::published::{self, PUBLISHED};
use super::{CodecsArgs, CorpusResults, Figures, Measured, Results, write};
use crate::explain::Format;
use crate::terminal;

/// Prints and writes what the options ask for.
pub fn all(args: &CodecsArgs, results: &Results) -> Result<()> {
    if let Some(path) = &args.svg {
        let corpus = if let [only] = &results.corpora[..] { only } else { &results.total };
        write(path, &chart(corpus, Way::There)?)?;
    }
    if let Some(path) = &args.html {
        write(path, &page(results)?)?;
    }
    if let Format::Json = args.format {
        println!("{}", serde_json::to_string_pretty(results)?);
        return Ok(());
    }
    let look = Look { width: terminal::width(), colour: true };
    for corpus in &results.corpora {
        anstream::println!("{}", corpus_table(look, corpus));
    }
    if results.corpora.len() > 1 {
        anstream::println!("{}", corpus_table(look, &results.total));
    }
    if args.published {
        anstream::println!("{}", published_table(look, &results.total));
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
    for note in notes {
        anstream::println!("{}", look.faint(&wrap(&note, look.width, 2)));
    }
    Ok(())
}

const LEGEND: &str = "Averages per segment: MB (10^6 bytes), its ratio to xz -2 on the same segments, seconds of wall and CPU \
                      time, the most memory at once in MB; then the way back. * nobody else is smaller in less time.";

fn corpus_table(look: Look, corpus: &CorpusResults) -> String {
    let title = title(corpus);
    let rows: Vec<Row> =
        corpus.contenders.iter().filter(|one| one.figures.is_some()).map(|one| row(corpus, one)).collect();
    let head: &[&str] = &["MB", "xz -2", "wall", "CPU", "peak", "back", "CPU", "peak"];
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

/// The name, a star for the front, and how many segments if not all.
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

/// Three or four digits.
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

/// The published figures, and those measured at the same level.
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
            let Some(then) = published::of(program.contender, level) else { continue };
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

/// What the chart's time is of.
#[derive(Clone, Copy)]
enum Way {
    There,
    Back,
}

fn chart(corpus: &CorpusResults, way: Way) -> Result<String> {
    let mut series: Vec<(&str, Series)> = Vec::new();
    let mut against_xz = true;
    for one in &corpus.contenders {
        let Some(figures) = &one.figures else { continue };
        against_xz &= figures.times_xz_2.is_some();
        let spent = match way {
            Way::There => figures.compress,
            Way::Back => figures.decompress,
        };
        let point = Point { label: one.contender.clone(), x: spent.wall_seconds, y: figures.size() };
        match series.last_mut().filter(|(name, _)| *name == one.name) {
            Some((_, series)) => series.points.push(point),
            None => series.push((
                one.name,
                Series { emphasised: one.name.starts_with(OURSELVES), points: vec![point] },
            )),
        }
    }
    let verb = match way {
        Way::There => "compress",
        Way::Back => "decompress",
    };
    let chart = Scatter {
        title: format!("{}: size against time to {verb}", corpus.name),
        x: format!("wall seconds to {verb} a segment (logarithmic)"),
        y: if against_xz { "size, xz -2 = 1 (logarithmic)" } else { "size, uncompressed = 1 (logarithmic)" }
            .into(),
        series: series.into_iter().map(|(_, series)| series).collect(),
    };
    scatter(&chart).map_err(|error| anyhow!("draw the chart: {error}"))
}

fn page(results: &Results) -> Result<String> {
    let mut page = Document::new("Compression of WAL segments");
    page.paragraph(&format!(
        "Measured by walden bench codecs on {}: {} cores{}, {} of each program on each segment. {}",
        results.started_at,
        results.machine.cores,
        results.machine.processor.as_ref().map_or_else(String::new, |name| format!(" of {name}")),
        if results.runs == 1 { "one run".to_owned() } else { format!("medians of {} runs", results.runs) },
        "Programs take turns, segment by segment. Every file that came back was compared with the original, byte for byte."
    ));
    page.paragraph(
        "Times and memory are of whole processes. The grey line is the front: nobody else is smaller in less time. What is \
         lower and further left is better. Contenders that are too slow for all segments took some, and are held against \
         what xz -2 made of the same ones.",
    );
    for one in &results.missing {
        let text = format!("{} (package {}): {}", one.program, one.package, one.contenders.join(", "));
        page.paragraph(&format!("Not installed: {text}."));
    }
    let single = results.corpora.len() == 1;
    for corpus in std::iter::once(&results.total).filter(|_| !single).chain(&results.corpora) {
        page.heading(&title(corpus));
        page.svg(&chart(corpus, Way::There)?);
        page.svg(&chart(corpus, Way::Back)?);
        let rows: Vec<(Weight, Vec<String>)> =
            corpus.contenders.iter().map(|one| page_row(corpus, one)).collect();
        page.table(&PAGE_HEAD, &rows);
    }
    page.heading("Published in 2017, and measured now");
    page.paragraph(
        "End Point's comparison: 100 segments of a busy production system, 16 cores; averages per segment. Measured: the \
         first table above. What can be compared are ratios, not seconds or MB of other data on another machine.",
    );
    let rows: Vec<(Weight, Vec<String>)> =
        published_rows(&results.total).into_iter().map(|row| (Weight::Plain, row)).collect();
    page.table(&PUBLISHED_HEAD, &rows);
    page.heading("Programs");
    let rows: Vec<(Weight, Vec<String>)> = results
        .programs
        .iter()
        .map(|one| (Weight::Plain, vec![one.program.to_owned(), one.version.clone().unwrap_or_default()]))
        .collect();
    page.table(&["program", "version"], &rows);
    Ok(page.finish())
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
    "back wall s",
    "time / xz -2",
    "CPU s",
    "peak MB",
    "a process takes",
    "threads",
    "",
];

fn page_row(corpus: &CorpusResults, one: &Measured) -> (Weight, Vec<String>) {
    let Some(figures) = &one.figures else {
        let mut cells = vec![String::new(); PAGE_HEAD.len()];
        cells[0] = one.contender.clone();
        cells[PAGE_HEAD.len() - 1] = format!("failed: {}", one.failure.as_deref().unwrap_or_default());
        return (Weight::Faint, cells);
    };
    let (there, back, times) = (&figures.compress, &figures.decompress, figures.times_xz_2);
    let cells = vec![
        label(corpus, one),
        format!("{:.3}", figures.megabytes),
        units::percent(figures.bytes_out as f64 / figures.bytes_in.max(1) as f64),
        ratio(times.map(|times| times.bytes)),
        seconds(there.wall_seconds),
        ratio(times.map(|times| times.compress_wall)),
        seconds(there.cpu_seconds),
        memory(there.peak_kilobytes),
        seconds(back.wall_seconds),
        ratio(times.map(|times| times.decompress_wall)),
        seconds(back.cpu_seconds),
        memory(back.peak_kilobytes),
        match one.takes {
            Takes::Segment => "a segment".into(),
            Takes::Corpus => "all".into(),
        },
        match one.threads {
            Threads::One => "1".into(),
            Threads::All => "all".into(),
        },
        String::new(),
    ];
    (if one.name.starts_with(OURSELVES) { Weight::Strong } else { Weight::Plain }, cells)
}
