//! Formats the cases and their gains as tables.

use walden_codec::measure::Case;
use walden_report::table::{Row, table, wrap};
use walden_report::units;

use super::measure::Spent;
use super::{CorpusResults, Results};
use crate::terminal;

/// A case that gains less than this on every corpus is not worth its code.
const MIN_SIZE_GAIN: f64 = 0.01;
const MIN_TIME_GAIN: f64 = 0.05;

/// Formats the names and descriptions of cases.
pub fn list(cases: &[Case]) -> String {
    let width = cases.iter().map(|case| case.name().len()).max().unwrap_or(0);
    let line = |case: &Case| format!("{:width$}  {}\n", case.name(), case.description());
    cases.iter().map(line).collect()
}

/// Formats a table of sizes, and one of times.
pub fn tables(results: &Results) -> String {
    let look = terminal::look();
    let measures: [(&str, Measure, usize); 3] = [
        ("bytes", size_gain, 2),
        ("time to compress", |without, with| gain(without.compress_seconds, with.compress_seconds), 1),
        ("time to decompress", |without, with| gain(without.decompress_seconds, with.decompress_seconds), 1),
    ];
    let names: Vec<&str> = results.corpora.iter().map(|corpus| corpus.name.as_str()).collect();
    let of = |(what, measure, digits): (&str, Measure, usize)| {
        let rows: Vec<Row> = std::iter::once(with_all(results, what))
            .chain((0..results.cases.len()).map(|case| row(results, case, measure, digits)))
            .collect();
        let form = if results.pack { "packs" } else { "segments by themselves" };
        let title = format!("{what} without each case, level {}, {form}", results.level);
        table(look, &title, ("case", &names), &rows)
    };
    let mut tables: Vec<String> = measures.into_iter().map(of).collect();
    let legend = format!(
        "Percent more than with all cases: what the case gains; less than 0: what it costs. * under {:.0} % of size and {:.0} % \
         of time on every corpus. Seconds are the processor's, the fewest of {} runs.",
        100.0 * MIN_SIZE_GAIN,
        100.0 * MIN_TIME_GAIN,
        results.runs
    );
    tables.push(look.faint(&wrap(&legend, look.width, 0)) + "\n");
    tables.join("\n")
}

/// Compares the result of a run in which one case is switched off with that of a run with all cases.
type Measure = fn(&Spent, &Spent) -> f64;

fn gain(without: f64, with: f64) -> f64 {
    without / with - 1.0
}

fn size_gain(without: &Spent, with: &Spent) -> f64 {
    gain(without.bytes as f64, with.bytes as f64)
}

/// Returns the row with the totals of all cases together.
fn with_all(results: &Results, what: &str) -> Row {
    let cell = |corpus: &CorpusResults| match what {
        "bytes" => units::bytes(corpus.with_all.bytes),
        "time to compress" => format!("{:.2} s", corpus.with_all.compress_seconds),
        _ => format!("{:.2} s", corpus.with_all.decompress_seconds),
    };
    let cells = results.corpora.iter().map(cell).collect();
    Row { depth: 0, label: "(with all)".into(), cells, share: None }
}

fn row(results: &Results, case: usize, measure: Measure, digits: usize) -> Row {
    let cell = |corpus: &CorpusResults| {
        format!("{:+.digits$}", 100.0 * measure(&corpus.without[case], &corpus.with_all))
    };
    let mark = if is_worth_it(results, case) { "" } else { " *" };
    let label = format!("{}{mark}", results.cases[case].name);
    Row { depth: 0, label, cells: results.corpora.iter().map(cell).collect(), share: None }
}

/// Returns whether a case gains enough on any corpus.
fn is_worth_it(results: &Results, case: usize) -> bool {
    results.corpora.iter().any(|corpus| {
        let (without, with) = (&corpus.without[case], &corpus.with_all);
        size_gain(without, with) >= MIN_SIZE_GAIN
            || gain(without.compress_seconds, with.compress_seconds) >= MIN_TIME_GAIN
            || gain(without.decompress_seconds, with.decompress_seconds) >= MIN_TIME_GAIN
    })
}
