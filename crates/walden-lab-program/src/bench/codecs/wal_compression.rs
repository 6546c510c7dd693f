//! `--wal-compression`: measures whether `wal_compression` helps if segments are compressed afterwards.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::Serialize;
use walden_lab::{Progress, Scratch, Wanted, find_or_install};
use walden_report::table::{Row, table, wrap};
use walden_source::inventory::Inventory;

use super::contenders::{CONTENDERS, Entry};
use super::corpus::Found;
use super::published::WAL_COMPRESSION;
use super::race::{Rules, race};
use super::{CodecsArgs, Missing, missing, race as races};
use crate::bench::{Material, Variant, find_workloads};
use crate::{FOUND, terminal};

const WORKLOAD: &str = "oltp";

/// Values of `wal_compression`, and the first major version that has them.
const SETTINGS: [(&str, u32); 4] = [("off", 0), ("pglz", 0), ("lz4", 15), ("zstd", 15)];

/// Names in [`CONTENDERS`], and levels.
const PROGRAMS: [(&str, u8); 4] = [("gzip", 6), ("xz", 2), ("zstd", 3), ("walden", 3)];

#[derive(Serialize, Debug)]
struct Results {
    workload: &'static str,
    size: u64,
    postgresql: String,
    rows: Vec<SettingResults>,
    missing: Vec<Missing>,
    /// Published figures: `wal_compression`, program, MB.
    published: &'static [(&'static str, &'static str, f64)],
}

/// A run with one value of `wal_compression`.
#[derive(Serialize, Debug)]
struct SettingResults {
    wal_compression: &'static str,
    /// The reason for missing figures.
    failure: Option<String>,
    /// Bytes of WAL from the workload's first record to its last.
    wal_bytes: u64,
    segments: usize,
    totals: Vec<Total>,
}

/// All files of a run, compressed one by one.
#[derive(Serialize, Debug)]
struct Total {
    program: String,
    bytes: Option<u64>,
    failure: Option<String>,
    published_megabytes: Option<f64>,
}

/// Runs the command.
pub fn run(args: &CodecsArgs) -> Result<ExitCode> {
    let workload = find_workloads(&[WORKLOAD.to_owned()])?[0];
    let installation = find_or_install(args.pg.unwrap_or(Wanted::Any))?;
    let size = args.size.unwrap_or(workload.default_size);
    let entries: Result<Vec<Entry>> = PROGRAMS.iter().map(|&(name, level)| entry(name, level)).collect();
    let (present, absent): (Vec<Entry>, Vec<Entry>) =
        entries?.into_iter().partition(|entry| entry.program.is_some());
    let mut rows = Vec::new();
    for (setting, since) in SETTINGS {
        if installation.version.major < since {
            continue;
        }
        let row = measure_setting(args, setting, size, workload, &present);
        rows.push(row.unwrap_or_else(|error| SettingResults {
            wal_compression: setting,
            failure: Some(format!("{error:#}")),
            wal_bytes: 0,
            segments: 0,
            totals: Vec::new(),
        }));
    }
    let results = Results {
        workload: WORKLOAD,
        size,
        postgresql: installation.version.to_string(),
        rows,
        missing: missing(&absent),
        published: WAL_COMPRESSION,
    };
    terminal::show(args.format, || &results, || tables(&results))?;
    let failed = results
        .rows
        .iter()
        .any(|row| row.failure.is_some() || row.totals.iter().any(|total| total.failure.is_some()));
    Ok(if failed { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

fn entry(name: &str, level: u8) -> Result<Entry> {
    let row = CONTENDERS.iter().find(|row| row.name == name);
    Entry::new(row.with_context(|| format!("cannot find contender {name}"))?, level)
}

fn measure_setting(
    args: &CodecsArgs,
    setting: &'static str,
    size: u64,
    workload: &'static walden_lab::workloads::Workload,
    entries: &[Entry],
) -> Result<SettingResults> {
    // `on` is pglz in every version; before 15, pglz has no other name.
    let value = if setting == "pglz" { "on" } else { setting };
    let material = Material::with(
        workload,
        Variant {
            pg: args.pg,
            size: Some(size),
            setting: Some(("wal_compression", value)),
            ..Variant::default()
        },
    )
    .with_context(|| format!("cannot run the workload with wal_compression = {setting}"))?;
    let lsn = |text: &str| text.parse::<walden_format::lsn::Lsn>();
    let wal_bytes = lsn(&material.end)?.bytes_since(lsn(&material.start)?);
    let found = Found {
        name: format!("wal_compression = {setting}"),
        source: material.folder.display().to_string(),
        files: Inventory::search(&[material.wal()])?.segments().cloned().collect(),
    };
    let scratch = Scratch::new()?;
    let progress = Progress::new(&found.name);
    let corpus = found.stage(scratch.path(), None, races::should_concatenate(entries))?;
    let rules = Rules { runs: 1, slow_segments: usize::MAX };
    let outcomes = race(&corpus, entries, &rules, &scratch, &progress)?;
    progress.finish();
    let published = |program: &str| {
        let row = WAL_COMPRESSION.iter().find(|row| (row.0, row.1) == (setting, program));
        row.map(|row| row.2)
    };
    let mut totals = vec![Total {
        program: "none".into(),
        bytes: Some(corpus.bytes),
        failure: None,
        published_megabytes: published("none"),
    }];
    for (entry, outcome) in entries.iter().zip(&outcomes) {
        totals.push(Total {
            program: entry.label(),
            bytes: outcome.tally().map(|tally| tally.bytes_out),
            failure: outcome.failure.clone(),
            published_megabytes: published(&entry.label()),
        });
    }
    let segments = corpus.segments.len();
    Ok(SettingResults { wal_compression: setting, failure: None, wal_bytes, segments, totals })
}

fn tables(results: &Results) -> String {
    let look = terminal::look();
    let title = format!(
        "{}, {} transactions, PostgreSQL {}: MB of all WAL files, compressed one by one",
        results.workload, results.size, results.postgresql
    );
    let Some(widest) = results.rows.iter().max_by_key(|row| row.totals.len()) else { return String::new() };
    let mut head = vec!["WAL written"];
    head.extend(widest.totals.iter().map(|total| total.program.as_str()));
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    let mut rows: Vec<Row> = Vec::new();
    for row in results.rows.iter().filter(|row| row.failure.is_none()) {
        let mut cells = vec![megabytes(row.wal_bytes)];
        cells.extend(row.totals.iter().map(|total| total.bytes.map_or_else(|| "failed".into(), megabytes)));
        rows.push(Row { depth: 0, label: row.wal_compression.to_owned(), cells, share: None });
        if row.totals.iter().any(|total| total.published_megabytes.is_some()) {
            let published =
                |total: &Total| total.published_megabytes.map_or_else(String::new, |mb| format!("{mb:.1}"));
            let cells = std::iter::once(String::new()).chain(row.totals.iter().map(published)).collect();
            rows.push(Row { depth: 1, label: "as published".into(), cells, share: None });
        }
    }
    let mut text = table(look, &title, ("wal_compression", &head), &rows) + "\n";
    let failures = results.rows.iter().flat_map(|row| {
        let own = row.failure.iter().cloned();
        own.chain(row.totals.iter().filter_map(move |total| {
            Some(format!(
                "{} on wal_compression = {}: {}",
                total.program,
                row.wal_compression,
                total.failure.as_ref()?
            ))
        }))
    });
    for failure in failures {
        let _ = writeln!(text, "{}", look.alarm(&wrap(&format!("FAILED: {failure}"), look.width, 2)));
    }
    for one in &results.missing {
        let _ = writeln!(text, "not installed: {} (package {})", one.program, one.package);
    }
    let note = "Files are whole segments, the last one partly filled; WAL written is exact. Published: PostgreSQL 9.6, 2017.";
    text + &look.faint(&wrap(note, look.width, 2)) + "\n"
}
