//! `walden bench decode`: compares `walden explain` with pg_waldump.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use walden_explain::Request;
use walden_lab::workloads::Workload;
use walden_lab::{Progress, Wanted, median, tools, waldump};
use walden_report::html::{Cell, Page, Table};
use walden_report::table::{Row, table};
use walden_report::units;
use walden_source::inventory::Inventory;

use super::{Material, ResultArgs, Sample, find_workloads, measure};
use crate::{judge, terminal};

/// Time `walden explain` and `pg_waldump --stats=record` alternately on the same cached WAL
#[derive(Args, Debug)]
#[command(after_help = "\
The WAL is made by `walden lab run` and kept in the cache folder for later runs (WALDEN_CACHE names another folder).

Times are of whole processes. Printed are the medians and their ratios. Both programs verify checksums.")]
pub struct DecodeArgs {
    /// Workloads to make WAL with
    #[arg(value_name = "WORKLOAD", default_values = ["dense", "oltp-pressure", "mixed"])]
    workloads: Vec<String>,

    /// The PostgreSQL version; it must have a pg_waldump [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Runs of each program
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// Size of each workload, see `walden lab list` [default: the workload's own]
    #[arg(long, value_name = "N")]
    size: Option<u64>,

    #[command(flatten)]
    results: ResultArgs,
}

#[derive(Serialize, Debug)]
struct Decoded {
    workload: String,
    postgresql: String,
    file_bytes: u64,
    records: u64,
    image_bytes: u64,
    programs: Vec<Timed>,
}

#[derive(Serialize, Debug)]
struct Timed {
    program: String,
    runs: usize,
    /// Median wall time; the rates below derive from it.
    wall_seconds: f64,
    cpu_seconds: f64,
    megabytes_per_second: f64,
    records_per_second: f64,
    peak_kilobytes: u64,
    /// pg_waldump's median wall time divided by this program's.
    times_pg_waldump: f64,
}

/// Runs the command.
pub fn run(args: &DecodeArgs) -> Result<ExitCode> {
    args.results.expect_writable()?;
    let results: Result<Vec<_>> =
        find_workloads(&args.workloads)?.into_iter().map(|workload| decode(args, workload)).collect();
    args.results.show(&results?, tables, page)
}

fn decode(args: &DecodeArgs, workload: &'static Workload) -> Result<Decoded> {
    let material = Material::generate(workload, args.pg, args.size, false)?;
    let (folder, start, end) = (material.wal(), &material.start, &material.end);
    let major = material.installation.version.major;
    let pg_waldump = tools().pg_waldump(major).with_context(|| {
        format!("cannot find pg_waldump of PostgreSQL {major}: choose another version with --pg, such as 18")
    })?;
    let range = waldump::range_arguments(&folder, start, end);

    let me = crate::programs::path_of("walden")?;
    let explain = |threads: usize| {
        let mut command = Command::new(&me);
        command
            .args(["explain", "--threads", &threads.to_string(), "--from", start, "--to", end])
            .arg(&folder);
        command
    };
    let mut stats = Command::new(&pg_waldump);
    stats.arg("--stats=record").args(&range);
    let mut contenders = vec![
        (format!("pg_waldump {major} --stats=record"), stats),
        ("walden explain, 1 thread".to_owned(), explain(1)),
    ];
    if terminal::cores() > 1 {
        contenders
            .push((format!("walden explain, {} threads", terminal::cores()), explain(terminal::cores())));
    }
    let samples = run_in_turns(workload, &mut contenders, args.runs)?;

    // The times are meaningless unless both sides read the same records. This is checked last, because Linux
    // counts the parent's memory at the start of a child process as the child's.
    let inventory = Inventory::search(&[&folder])?;
    let request = Request::sums(start.parse()?, end.parse()?, terminal::cores());
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {})?;
    let verdict = judge::compare(&explanation, &waldump::stats(&pg_waldump, &range)?);
    ensure!(
        verdict.differences.is_empty(),
        "cannot compare times: figures differ from those of pg_waldump: {}",
        verdict.differences.join("; ")
    );
    let (bytes, records) = (explanation.file_bytes, explanation.records);
    let baseline = median(samples[0].iter().map(|sample| sample.wall));
    let timed = |((program, _), samples): ((String, Command), Vec<Sample>)| {
        Timed::new(program, &samples, bytes, records, baseline)
    };
    Ok(Decoded {
        workload: workload.name.to_owned(),
        postgresql: material.installation.version.to_string(),
        file_bytes: bytes,
        records,
        image_bytes: explanation.buckets.images(),
        programs: contenders.into_iter().zip(samples).map(timed).collect(),
    })
}

/// Runs programs alternately, several times. Returns their measurements in each round except for the first,
/// which only warms the cache.
fn run_in_turns(
    workload: &Workload,
    contenders: &mut [(String, Command)],
    runs: u8,
) -> Result<Vec<Vec<Sample>>> {
    let progress = Progress::new(&format!("{}: running in turns", workload.name));
    let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..=runs {
        for ((_, command), samples) in contenders.iter_mut().zip(&mut samples) {
            let sample = measure(command)?;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    progress.finish();
    Ok(samples)
}

impl Timed {
    fn new(program: String, samples: &[Sample], bytes: u64, records: u64, baseline: f64) -> Timed {
        let wall = median(samples.iter().map(|sample| sample.wall));
        Timed {
            program,
            runs: samples.len(),
            wall_seconds: wall,
            cpu_seconds: median(samples.iter().map(|sample| sample.cpu)),
            megabytes_per_second: bytes as f64 / 1e6 / wall,
            records_per_second: records as f64 / wall,
            peak_kilobytes: samples.iter().map(|sample| sample.peak_kilobytes).max().unwrap_or(0),
            times_pg_waldump: baseline / wall,
        }
    }
}

fn tables(results: &[Decoded]) -> String {
    let look = terminal::look();
    let tables = results.iter().map(|result| {
        let title = title(result);
        let rows: Vec<Row> = result
            .programs
            .iter()
            .map(|timed| Row {
                depth: 0,
                label: timed.program.clone(),
                cells: vec![
                    format!("{:.0} ms", timed.wall_seconds * 1e3),
                    format!("{:.0} ms", timed.cpu_seconds * 1e3),
                    format!("{:.2} GB/s", timed.megabytes_per_second / 1e3),
                    format!("{:.1} M/s", timed.records_per_second / 1e6),
                    format!("{:.0} MB", timed.peak_kilobytes as f64 * 1.024e-3),
                    format!("{:.2}x", timed.times_pg_waldump),
                ],
                share: None,
            })
            .collect();
        let head: &[&str] = &["wall", "CPU", "bytes", "records", "peak", "speed"];
        table(look, &title, ("program", head), &rows) + "\n"
    });
    tables.collect()
}

fn title(result: &Decoded) -> String {
    format!(
        "{}, PostgreSQL {}: {} in {} records, {} of it images",
        result.workload,
        result.postgresql,
        units::bytes(result.file_bytes),
        units::count(result.records),
        units::percent(result.image_bytes as f64 / result.file_bytes.max(1) as f64)
    )
}

fn page(results: &[Decoded]) -> Page {
    let section = |result: &Decoded| {
        let mut table =
            Table::new(&["program", "runs", "wall", "CPU", "WAL/s", "records/s", "peak", "speed"]);
        for timed in &result.programs {
            let rate = timed.megabytes_per_second;
            table.row(vec![
                Cell::text(&timed.program),
                Cell::count(timed.runs as u64),
                Cell::number(&format!("{:.0} ms", timed.wall_seconds * 1e3), timed.wall_seconds),
                Cell::number(&format!("{:.0} ms", timed.cpu_seconds * 1e3), timed.cpu_seconds),
                Cell::number(&format!("{:.2} GB/s", rate / 1e3), rate),
                Cell::number(&format!("{:.1} M/s", timed.records_per_second / 1e6), timed.records_per_second),
                Cell::bytes(timed.peak_kilobytes * 1024),
                Cell::number(&format!("{:.2}x", timed.times_pg_waldump), timed.times_pg_waldump),
            ]);
        }
        let programs =
            result.programs.iter().map(|timed| (timed.program.as_str(), timed.megabytes_per_second));
        let note = "Whole processes on cached files; all verify checksums, and their figures agree.";
        super::speed_section((title(result), "read"), programs, note, table)
    };
    let title = "walden explain and pg_waldump on the same WAL";
    super::page_of(title, "walden bench decode", results.iter().map(section))
}
