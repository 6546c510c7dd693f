//! Formats the tables and the page.

use walden_report::html::{Cell, Page, Section, Table};
use walden_report::table::{Row, table};
use walden_report::units;

use super::{Archived, Rate, Timed};
use crate::terminal;

/// The reference of the ratios, without and with work ahead.
const REFERENCE: [&str; 2] = ["pgbackrest zst-3", "pgbackrest zst-3 ahead"];

pub fn tables(results: &[Archived]) -> String {
    let look = terminal::look();
    let mut text = String::new();
    for result in results {
        let rows: Vec<Row> = result.programs.iter().map(row).collect();
        let head = &["stored", "in/s", "cpu", "out/s", "cpu", "recovery"];
        text += &table(look, &title(result), ("program", head), &rows);
        if let Some(seconds) = result.recovery_without_archive_seconds {
            text += &look.faint(&format!("recovery with all segments in pg_wal: {seconds:.2} s\n"));
        }
        for missing in &result.unavailable {
            text += &look.faint(&format!("not measured: {missing}\n"));
        }
        for sentence in comparisons(result) {
            text += &format!("{sentence}\n");
        }
        text.push('\n');
    }
    for sentence in sizes(results) {
        text += &format!("{sentence}\n");
    }
    text + &look.faint(
        "stored: of the segments' bytes; in/s, out/s: segments archived and restored per second; cpu: processor time of all \
         processes per segment\n",
    )
}

fn title(result: &Archived) -> String {
    format!(
        "{}, PostgreSQL {}: {} segments of {} MB",
        result.workload, result.postgresql, result.segments, result.segment_megabytes
    )
}

fn row(timed: &Timed) -> Row {
    let rate =
        |rate: &Rate| [format!("{:.1}", rate.segments_per_second), format!("{:.0} ms", rate.cpu_per_segment)];
    let archiving = timed.archiving.as_ref().map_or_else(<[String; 2]>::default, rate);
    let recovery = timed.recovery_seconds.map_or_else(String::new, |seconds| format!("{seconds:.2} s"));
    let stored = [units::bytes(timed.stored_bytes)];
    let cells = stored.into_iter().chain(archiving).chain(rate(&timed.restoring)).chain([recovery]).collect();
    Row { depth: 0, label: timed.program.clone(), cells, share: None }
}

/// Compares Walden with pgBackRest, as ratios.
fn comparisons(result: &Archived) -> Vec<String> {
    let find = |name: &str| result.programs.iter().find(|timed| timed.program == name);
    let mut sentences = Vec::new();
    for ours in result.programs.iter().filter(|timed| timed.program.starts_with("walden")) {
        let Some(theirs) = find(REFERENCE[usize::from(ours.works_ahead || ours.archiving.is_none())]) else {
            continue;
        };
        let mut parts =
            vec![format!("{:.2} of the bytes", ours.stored_bytes as f64 / theirs.stored_bytes as f64)];
        if let (Some(ours), Some(theirs)) = (&ours.archiving, &theirs.archiving) {
            parts.push(format!(
                "archives {:.2} times as fast",
                ours.segments_per_second / theirs.segments_per_second
            ));
            parts.push(format!("{:.2} of the processor time", ours.cpu_per_segment / theirs.cpu_per_segment));
        }
        let (out, their_out) = (&ours.restoring, &theirs.restoring);
        parts.push(format!(
            "restores {:.2} times as fast",
            out.segments_per_second / their_out.segments_per_second
        ));
        parts.push(format!("{:.2} of the processor time", out.cpu_per_segment / their_out.cpu_per_segment));
        sentences.push(format!("{} beside {}: {}", ours.program, theirs.program, parts.join(", ")));
    }
    sentences
}

/// Compares the speed per byte of different segment sizes, for the programs that were measured with several
/// sizes.
fn sizes(results: &[Archived]) -> Vec<String> {
    let mut sentences = Vec::new();
    for (small, large) in results.iter().zip(results.iter().skip(1)) {
        if small.workload != large.workload || small.segment_megabytes >= large.segment_megabytes {
            continue;
        }
        for ours in &small.programs {
            let Some(other) = large.programs.iter().find(|other| other.program == ours.program) else {
                continue;
            };
            let per_byte = |rate: &Rate, result: &Archived| {
                rate.segments_per_second * f64::from(result.segment_megabytes)
            };
            let gain = |ours: &Rate, other: &Rate| per_byte(other, large) / per_byte(ours, small);
            let archiving = ours.archiving.as_ref().zip(other.archiving.as_ref());
            let archived = archiving
                .map_or_else(String::new, |(ours, other)| format!("archived {:.2}, ", gain(ours, other)));
            sentences.push(format!(
                "{}, {} MB instead of {} MB: {archived}restored bytes per second {:.2} times",
                ours.program,
                large.segment_megabytes,
                small.segment_megabytes,
                gain(&ours.restoring, &other.restoring)
            ));
        }
    }
    sentences
}

pub fn page(results: &[Archived]) -> Page {
    let section = |result: &Archived| -> Section {
        let mut table = Table::new(&[
            "program",
            "stored",
            "files",
            "archived/s",
            "CPU per segment",
            "longest call",
            "restored/s",
            "CPU per segment",
            "longest call",
            "recovery",
        ]);
        for timed in &result.programs {
            let rate = |rate: Option<&Rate>| {
                rate.map_or_else(
                    || [Cell::none(), Cell::none(), Cell::none()],
                    |rate| {
                        [
                            Cell::number(
                                &format!("{:.1}", rate.segments_per_second),
                                rate.segments_per_second,
                            ),
                            Cell::number(&format!("{:.1} ms", rate.cpu_per_segment), rate.cpu_per_segment),
                            Cell::number(&format!("{:.0} ms", rate.longest_call), rate.longest_call),
                        ]
                    },
                )
            };
            let stored = [Cell::bytes(timed.stored_bytes), Cell::count(timed.stored_files as u64)];
            let recovery = timed
                .recovery_seconds
                .map_or_else(Cell::none, |seconds| Cell::number(&format!("{seconds:.2} s"), seconds));
            let cells = [Cell::text(&timed.program)].into_iter().chain(stored);
            let cells = cells.chain(rate(timed.archiving.as_ref())).chain(rate(Some(&timed.restoring)));
            table.row(cells.chain([recovery]).collect::<Vec<_>>());
        }
        let bytes = f64::from(result.segment_megabytes) * 1.048_576;
        let programs = result
            .programs
            .iter()
            .map(|timed| (timed.program.as_str(), timed.restoring.segments_per_second * bytes));
        let mut note = comparisons(result).join("; ");
        if let Some(seconds) = result.recovery_without_archive_seconds {
            note += &format!(". Recovery with all segments in pg_wal: {seconds:.2} s.");
        }
        crate::bench::speed_section((title(result), "restored"), programs, &note, table)
    };
    let title = "WAL into an archive and out of it";
    super::super::page_of(title, "walden bench archive", results.iter().map(section))
}
