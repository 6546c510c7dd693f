//! `walden lab run regress`: tests the whole program with PostgreSQL's regression suite.
//!
//! The suite writes every kind of record that PostgreSQL's own statements can. Its WAL is explained, every
//! full-page image in it is compared with replay, and the WAL is compressed and decompressed.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use walden_compress::{CompressOptions, pack_folder};
use walden_explain::Request;
use walden_format::lsn::Lsn;
use walden_lab::regress::{FileEnd, SuiteOptions, SuiteRun, run_suite};
use walden_lab::{Progress, tools, waldump};
use walden_report::table::{Look, Row, table, wrap};
use walden_report::units;
use walden_source::inventory::Inventory;

use crate::arguments::parse_size;
use crate::redo::check::check_kept;
use crate::terminal::{self, Format};
use crate::{FOUND, judge, output};

/// Its name as an argument of `walden lab run`.
pub const NAME: &str = "regress";

/// Maximum number of files of one kind that are listed by name.
const MAX_NAMES: usize = 10;

/// Options of the regression suite alone.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the regression suite")]
pub struct SuiteArgs {
    /// A copy of `src/test/regress` of PostgreSQL's sources, best of the server's version
    #[arg(long, value_name = "DIR")]
    pub sql: Option<PathBuf>,
    /// Minutes after which no further file of the suite is started
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    minutes: u16,
    /// Bytes of WAL after which no further file of the suite is started. The WAL takes twice that on the
    /// disk, for a while
    #[arg(long, value_name = "SIZE", default_value = "16GB", value_parser = parse_size)]
    pub max_wal: usize,
}

impl SuiteArgs {
    /// Returns the time within which files may be started.
    pub fn time(&self) -> Duration {
        Duration::from_secs(60 * u64::from(self.minutes))
    }
}

/// The results of the suite.
#[derive(Debug, Serialize)]
struct Verdict {
    postgresql: String,
    files: Files,
    seconds: f64,
    wal_bytes: u64,
    /// Bytes and records that are attributed; the buckets add up to the bytes.
    explained_bytes: u64,
    records: u64,
    /// Number of kinds of records with the same counts and bytes as in pg_waldump; `None` if there is no
    /// pg_waldump of this version.
    kinds_as_in_pg_waldump: Option<u64>,
    differences_from_pg_waldump: Vec<String>,
    images_compared: u64,
    pages_compared: u64,
    copied_maps: u64,
    cleared_early: u64,
    different: u64,
    differences: Vec<String>,
    misfits: u64,
    packed_bytes: u64,
    seconds_of: StepSeconds,
    wal: PathBuf,
}

/// Seconds for explaining, for replaying, and for compressing and decompressing.
#[derive(Clone, Copy, Debug, Serialize)]
struct StepSeconds {
    explaining: f64,
    replaying: f64,
    packing: f64,
}

/// The files of the schedule, by outcome.
#[derive(Debug, Serialize)]
struct Files {
    done: usize,
    stopped: Vec<String>,
    failed: Vec<String>,
    left_out: Vec<String>,
    missing: Vec<String>,
}

impl Files {
    fn new(run: &SuiteRun) -> Files {
        let with = |end: FileEnd| {
            let files = run.files.iter().filter(|file| file.end == end);
            files.map(|file| file.name.clone()).collect::<Vec<_>>()
        };
        Files {
            done: with(FileEnd::Done).len(),
            stopped: with(FileEnd::Stopped),
            failed: with(FileEnd::Failed),
            left_out: with(FileEnd::LeftOut),
            missing: with(FileEnd::Missing),
        }
    }
}

impl Verdict {
    fn is_good(&self) -> bool {
        self.different == 0 && self.misfits == 0 && self.differences_from_pg_waldump.is_empty()
    }
}

/// Runs the suite and checks its WAL.
pub fn run(options: &SuiteOptions, format: Format) -> Result<ExitCode> {
    let run = run_suite(options)?;
    if run.files.iter().all(|file| file.end != FileEnd::Done) {
        bail!(
            "cannot judge the suite: no file of it ran to its end; {} may be of another version",
            options.sql.display()
        );
    }
    let progress = Progress::new("explaining");
    let verdict = judge_run(&run, options, &progress)?;
    progress.finish();
    terminal::show(format, || json!(verdict), || tables(&verdict, terminal::look()))?;
    Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn judge_run(run: &SuiteRun, options: &SuiteOptions, progress: &Progress) -> Result<Verdict> {
    let clock = Instant::now();
    let (from, to) = (run.facts.start_lsn, run.facts.end_lsn);
    let inventory = Inventory::search(std::slice::from_ref(&run.wal))?;
    let request = Request::sums(from, to, terminal::cores());
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {})?;
    if let Some(damage) = &explanation.damage {
        bail!("{damage}");
    }
    let reference = against_pg_waldump(run, &explanation, (from, to))?;
    let explaining = clock.elapsed().as_secs_f64();

    progress.phase("replaying, and comparing with every image and every data file");
    let clock = Instant::now();
    let outcome = check_kept(&run.wal, &run.base, &run.data)?;
    let replaying = clock.elapsed().as_secs_f64();
    let (images, pages) = (outcome.images.total(), outcome.pages.total());
    let of_difference = |one: &walden_redo::check::Difference| {
        let kind = format!("{} {}", one.kind.resource_manager(one.version), one.kind.name(one.version));
        format!("{} ({}) after {kind} at {}: {}", one.key, one.family.name(), one.lsn, one.field)
    };

    progress.phase("compressing and decompressing");
    let clock = Instant::now();
    let pack = options.output.join("regress.wpk");
    let packing_options = CompressOptions::default().level(Some(3)).replaces(true);
    let packed_bytes = pack_folder(&run.wal, &pack, &packing_options, &|line| output::print_line(line))?;
    let packing = clock.elapsed().as_secs_f64();
    let wal_bytes = fs::read_dir(&run.wal)
        .and_then(|entries| entries.map(|entry| Ok(entry?.metadata()?.len())).sum::<std::io::Result<u64>>())
        .with_context(|| format!("cannot read {}", run.wal.display()))?;
    Ok(Verdict {
        postgresql: run.facts.server.version.clone(),
        files: Files::new(run),
        seconds: run.facts.seconds,
        wal_bytes,
        explained_bytes: explanation.file_bytes,
        records: explanation.records,
        kinds_as_in_pg_waldump: reference.as_ref().map(|(kinds, _)| *kinds),
        differences_from_pg_waldump: reference.map(|(_, differences)| differences).unwrap_or_default(),
        images_compared: images.compared(),
        pages_compared: pages.compared(),
        copied_maps: images.copied_maps + pages.copied_maps,
        cleared_early: images.cleared_early,
        different: outcome.different(),
        differences: outcome.differences().take(20).map(of_difference).collect(),
        misfits: outcome.images.misfits.values().sum(),
        packed_bytes,
        seconds_of: StepSeconds { explaining, replaying, packing },
        wal: run.wal.clone(),
    })
}

/// Returns the number of kinds of records with the counts and bytes of pg_waldump, and the differences;
/// `None` if there is no pg_waldump of this version.
fn against_pg_waldump(
    run: &SuiteRun,
    explanation: &walden_explain::Explanation,
    (from, to): (Lsn, Lsn),
) -> Result<Option<(u64, Vec<String>)>> {
    let major = run.facts.server.version_num / 10_000;
    let Some(pg_waldump) = tools().pg_waldump(major) else { return Ok(None) };
    let arguments = waldump::range_arguments(&run.wal, &from.to_string(), &to.to_string());
    let verdict = judge::compare(explanation, &waldump::stats(&pg_waldump, &arguments)?);
    let differences = verdict.differences.iter().map(ToString::to_string).collect();
    Ok(Some((verdict.agreed as u64, differences)))
}

fn tables(verdict: &Verdict, look: Look) -> String {
    let row = |label: &str, figure: String, note: &str| Row {
        depth: 0,
        label: label.into(),
        cells: vec![figure, note.into()],
        share: None,
    };
    let StepSeconds { explaining, replaying, packing } = verdict.seconds_of;
    let waldump = match verdict.kinds_as_in_pg_waldump {
        Some(kinds) => format!("{kinds} kinds as in pg_waldump"),
        None => "no pg_waldump of this version".into(),
    };
    let ratio = verdict.wal_bytes as f64 / verdict.packed_bytes.max(1) as f64;
    let count = units::count;
    let rows = [
        row("files run", count(verdict.files.done as u64), &units::seconds(verdict.seconds)),
        row("WAL", units::bytes(verdict.wal_bytes), ""),
        row("explained, each byte once", units::bytes(verdict.explained_bytes), &units::seconds(explaining)),
        row("records", count(verdict.records), &waldump),
        row("images compared with replay", count(verdict.images_compared), &units::seconds(replaying)),
        row("pages of data files compared", count(verdict.pages_compared), ""),
        row(
            "maps copied without their bits",
            count(verdict.copied_maps),
            "PostgreSQL's recovery lacks them, too",
        ),
        row("bits cleared before their record", count(verdict.cleared_early), "as PostgreSQL does"),
        row("records that do not fit", count(verdict.misfits), ""),
        row("different", count(verdict.different), ""),
        row(
            "compressed, decompressed, compared",
            units::bytes(verdict.packed_bytes),
            &format!("{ratio:.1}x, {}", units::seconds(packing)),
        ),
    ];
    let title = format!(
        "PostgreSQL's regression suite on {}",
        verdict.postgresql.split(" on ").next().unwrap_or_default()
    );
    let mut text = table(look, &title, ("", &["", ""]), &rows);
    let files = &verdict.files;
    for (names, what) in [
        (&files.failed, "failed"),
        (&files.stopped, "stopped after 5 minutes"),
        (&files.left_out, "left out, as the time or the WAL was used up"),
        (&files.missing, "in the schedule, but not in the folder"),
    ] {
        if !names.is_empty() {
            let more = names.len().saturating_sub(MAX_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let shown = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
            let line = format!("{what}: {shown}{more}");
            text += &format!("  {}\n", wrap(&line, look.width.saturating_sub(2), 4));
        }
    }
    for difference in verdict.differences.iter().chain(&verdict.differences_from_pg_waldump) {
        text += &format!("{}: {difference}\n", look.alarm("different"));
    }
    text + &format!("  kept in {}\n", verdict.wal.parent().unwrap_or(&verdict.wal).display())
}
