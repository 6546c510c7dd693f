//! `walden bench redo`: compares replay, and decompression of the WAL to replay, with PostgreSQL's own
//! recovery.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use wait4::Wait4;
use walden_lab::workloads::Workload;
use walden_lab::{Progress, Wanted, median};
use walden_report::html::{Cell, Page, Table};
use walden_report::table::{Row, table};
use walden_report::units;

use super::{Material, ResultArgs, Sample, find_workloads, measure, time_recovery};
use crate::terminal;

/// Time replay of the same WAL on the same base backup by PostgreSQL's recovery and by Walden, alternately,
/// and decompression of that WAL
#[derive(Args, Debug)]
#[command(after_help = "\
The WAL and the data directory that it starts from are made by `walden lab run --keep-data` and kept in the cache folder \
for later runs (WALDEN_CACHE names another folder).

The times are what each program reports of replay itself: PostgreSQL in its log (\"redo done ... elapsed\"), with \
shared_buffers for all of the data and no checkpoint during recovery; Walden in its JSON. One thread replays; in Walden, \
without --threads 1, another one reads ahead.

Decompression, with all cores and with one thread, is measured to see whether a recovery would wait for it: the wall time \
of the whole process, for WAL that `walden compress` compressed before the first round.

Printed are the medians, the ratios of the medians, and the number of rounds in which PostgreSQL was slower.

With --calibrate, PostgreSQL alone recovers from eight workloads, among them some with compressed full-page images, and the rates by \
which walden whatif computes the time of recovery are fitted to the processor time that seven of them take: for each record, page, byte, and \
decompressed image. The eighth shows how good they are for other work. They are written to ~/.config/walden/recovery.json, or to FILE.")]
pub struct RedoArgs {
    /// Workloads to make WAL with
    #[arg(value_name = "WORKLOAD", default_values = ["oltp", "oltp-pressure", "dense"])]
    workloads: Vec<String>,

    /// Measure the rates of this machine's recovery for walden whatif, and keep them in a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with_all = ["workloads", "html", "memory", "size"])]
    calibrate: Option<Option<PathBuf>>,

    /// The PostgreSQL version, 14 or later [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Runs of each program
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// Size of each workload, see `walden lab list` [default: the workload's own]
    #[arg(long, value_name = "N")]
    size: Option<u64>,

    /// Memory of the page store in the run of Walden with bounded memory
    #[arg(long, value_name = "SIZE", default_value = "64MB")]
    memory: String,

    #[command(flatten)]
    results: ResultArgs,
}

#[derive(Serialize, Debug)]
struct Replayed {
    workload: String,
    postgresql: String,
    /// Bytes of WAL from the base backup's checkpoint to the end.
    wal_bytes: u64,
    records: u64,
    pages: u64,
    programs: Vec<Timed>,
}

#[derive(Serialize, Debug)]
struct Timed {
    program: String,
    runs: usize,
    /// Median wall time of replay alone; the rates below derive from it.
    seconds: f64,
    megabytes_per_second: f64,
    records_per_second: f64,
    peak_kilobytes: Option<u64>,
    /// PostgreSQL's median time divided by this program's.
    times_postgresql: f64,
    /// Rounds in which PostgreSQL took longer; `None` for PostgreSQL itself.
    #[serde(rename = "sooner")]
    rounds_won: Option<usize>,
}

/// Runs the command.
pub fn run(args: &RedoArgs) -> Result<ExitCode> {
    if let Some(path) = &args.calibrate {
        return super::calibrate::run(
            path.as_deref(),
            args.results.overwrite,
            args.pg,
            args.runs,
            args.results.format,
        );
    }
    args.results.expect_writable()?;
    let results: Result<Vec<_>> =
        find_workloads(&args.workloads)?.into_iter().map(|workload| replay(args, workload)).collect();
    args.results.show(&results?, tables, page)
}

fn replay(args: &RedoArgs, workload: &'static Workload) -> Result<Replayed> {
    let material = Material::generate(workload, args.pg, args.size, true)?;
    ensure!(
        material.installation.version.major >= 14,
        "PostgreSQL says how long redo took since 14: choose such a version with --pg"
    );
    let (base, segments) = (material.folder.join("base"), material.segments()?);
    let me = crate::programs::path_of("walden")?;
    let walden = |options: &[&str]| {
        let mut command = Command::new(&me);
        command.args(["redo", "replay", "--format", "json", "--base"]).arg(&base);
        command.args(options).arg(material.wal());
        ([&["walden redo replay"], options].concat().join(" "), command)
    };
    let mut contenders = [walden(&[]), walden(&["--threads", "1"]), walden(&["--memory", &args.memory])];
    let compressed = tempfile::tempdir().context("cannot create a folder for compressed WAL")?;
    let mut decompressions = decompressions(&me, &material.wal(), compressed.path())?;
    let progress = Progress::new(&format!("{}: running in turns", workload.name));
    let mut rounds = Vec::new();
    for _ in 0..=args.runs {
        let recovery_seconds = time_recovery(&material, &segments, "false")?;
        // Runs while the kernel may still write the stopped server's dirty pages, so it is not timed.
        rustix::fs::sync();
        time_replay(&mut contenders[0].1)?;
        rounds.push(time_round(recovery_seconds, &mut contenders, &mut decompressions)?);
    }
    progress.finish();
    // The first round only warmed the cache.
    rounds.remove(0);
    let recovery_seconds: Vec<f64> = rounds.iter().map(|round| round.recovery_seconds).collect();
    let Facts { wal_bytes, records, pages_exact, .. } =
        rounds.last().map(|round| round.facts).unwrap_or_default();
    let baseline = median(recovery_seconds.iter().copied());
    let timed = |program: String, seconds: f64, peak_kilobytes, rounds_won| Timed {
        program,
        runs: recovery_seconds.len(),
        seconds,
        megabytes_per_second: wal_bytes as f64 / 1e6 / seconds,
        records_per_second: records as f64 / seconds,
        peak_kilobytes,
        times_postgresql: baseline / seconds,
        rounds_won,
    };
    let recovery = format!("PostgreSQL {} recovery", material.installation.version);
    let mut programs = vec![timed(recovery, baseline, None, None)];
    for (index, (name, _)) in contenders.into_iter().chain(decompressions).enumerate() {
        let seconds = median(rounds.iter().map(|round| round.programs[index].0));
        let peak = rounds.iter().map(|round| round.programs[index].1).max();
        let is_won = |round: &&Round| round.programs[index].0 < round.recovery_seconds;
        programs.push(timed(name, seconds, peak, Some(rounds.iter().filter(is_won).count())));
    }
    Ok(Replayed {
        workload: workload.name.to_owned(),
        postgresql: material.installation.version.to_string(),
        wal_bytes,
        records,
        pages: pages_exact,
        programs,
    })
}

/// The measurements of a round.
struct Round {
    recovery_seconds: f64,
    /// The report of the last replay.
    facts: Facts,
    /// Seconds and peak memory in kilobytes of each program, replays before decompressions.
    programs: Vec<(f64, u64)>,
}

fn time_round(
    recovery_seconds: f64,
    replays: &mut [(String, Command)],
    decompressions: &mut [(String, Command)],
) -> Result<Round> {
    let mut round = Round { recovery_seconds, facts: Facts::default(), programs: Vec::new() };
    for (_, command) in replays {
        let (reported, peak_kilobytes) = time_replay(command)?;
        round.programs.push((reported.seconds, peak_kilobytes));
        round.facts = reported;
    }
    for (_, command) in decompressions {
        let Sample { wall, peak_kilobytes, .. } = measure(command)?;
        round.programs.push((wall, peak_kilobytes));
    }
    Ok(round)
}

/// Compresses the WAL to a folder. Returns the commands that decompress it in order, with all cores and with
/// one.
fn decompressions(me: &Path, wal: &Path, folder: &Path) -> Result<[(String, Command); 2]> {
    let mut compress = Command::new(me);
    measure(compress.arg("compress").arg(wal).arg("--output").arg(folder))?;
    let entries: Result<Vec<_>, _> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files = entries?;
    files.sort();
    Ok([&[][..], &["--threads", "1"]].map(|options| {
        let mut command = Command::new(me);
        command.args(["decompress", "--stdout"]).args(options).args(&files);
        ([&["walden decompress"], options].concat().join(" "), command)
    }))
}

/// The JSON of `walden redo replay`.
#[derive(Clone, Copy, Deserialize, Default)]
struct Facts {
    wal_bytes: u64,
    records: u64,
    pages_exact: u64,
    seconds: f64,
}

/// Replays once. Returns the command's report, and its peak memory in kB.
fn time_replay(command: &mut Command) -> Result<(Facts, u64)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run walden redo replay")?;
    let mut text = String::new();
    child.stdout.take().context("cannot read the output of walden redo replay")?.read_to_string(&mut text)?;
    let used = child.wait4()?;
    ensure!(used.status.success(), "walden redo replay failed: {}", used.status);
    let facts = serde_json::from_str(&text).context("cannot parse the JSON of walden redo replay")?;
    Ok((facts, used.rusage.maxrss / 1024))
}

fn tables(results: &[Replayed]) -> String {
    let look = terminal::look();
    let tables = results.iter().map(|result| {
        let title = title(result);
        let rows: Vec<Row> = result
            .programs
            .iter()
            .map(|timed| Row {
                depth: 0,
                // All columns must fit into 80 characters.
                label: timed.program.strip_prefix("walden ").unwrap_or(&timed.program).to_owned(),
                cells: vec![
                    format!("{:.0} ms", timed.seconds * 1e3),
                    format!("{:.0} MB/s", timed.megabytes_per_second),
                    format!("{:.2} M/s", timed.records_per_second / 1e6),
                    timed
                        .peak_kilobytes
                        .map_or_else(String::new, |peak| format!("{:.0} MB", peak as f64 * 1.024e-3)),
                    format!("{:.2}x", timed.times_postgresql),
                    rounds_won(timed),
                ],
                share: None,
            })
            .collect();
        let head: &[&str] = &["time", "WAL", "records", "peak", "speed", "won"];
        table(look, &title, ("program", head), &rows) + "\n"
    });
    tables.collect()
}

/// Formats the number of rounds in which it was faster than PostgreSQL, as "N of M".
fn rounds_won(timed: &Timed) -> String {
    timed.rounds_won.map_or_else(String::new, |rounds| format!("{rounds} of {}", timed.runs))
}

fn title(result: &Replayed) -> String {
    format!(
        "{}, PostgreSQL {}: {} in {} records, {} pages",
        result.workload,
        result.postgresql,
        units::bytes(result.wal_bytes),
        units::count(result.records),
        units::count(result.pages)
    )
}

fn page(results: &[Replayed]) -> Page {
    let section = |result: &Replayed| {
        let mut table =
            Table::new(&["program", "runs", "time", "WAL/s", "records/s", "peak", "speed", "won"]);
        for timed in &result.programs {
            let rate = timed.megabytes_per_second;
            table.row(vec![
                Cell::text(&timed.program),
                Cell::count(timed.runs as u64),
                Cell::number(&format!("{:.0} ms", timed.seconds * 1e3), timed.seconds),
                Cell::number(&format!("{rate:.0} MB/s"), rate),
                Cell::number(&format!("{:.2} M/s", timed.records_per_second / 1e6), timed.records_per_second),
                timed.peak_kilobytes.map_or_else(Cell::none, |peak| Cell::bytes(peak * 1024)),
                Cell::number(&format!("{:.2}x", timed.times_postgresql), timed.times_postgresql),
                Cell::text(&rounds_won(timed)),
            ]);
        }
        let programs =
            result.programs.iter().map(|timed| (timed.program.as_str(), timed.megabytes_per_second));
        let note = "As each program reports it: replay without start and stop. One thread replays; in Walden, without \
                    --threads 1, another one reads ahead. Won: rounds in which PostgreSQL was slower. Decompression: the \
                    whole process.";
        super::speed_section((title(result), "replayed"), programs, note, table)
    };
    let title = "Replay by Walden and by PostgreSQL's own recovery";
    super::page_of(title, "walden bench redo", results.iter().map(section))
}
