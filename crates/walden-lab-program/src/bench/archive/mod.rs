//! `walden bench archive`: times archiving and restoring of WAL by this program and by others.

pub(super) mod contenders;
mod recovery;
mod show;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use walden_lab::workloads::Workload;
use walden_lab::{Progress, Scratch, Wanted, median};

use super::drive::Driven;
use super::{Material, ResultArgs, Variant, find_workloads, time_recovery};
use contenders::Contender;

/// Time archiving and restoring of the same WAL by Walden, pgBackRest, cp, scp and rsync, in turns
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  walden bench archive
      one workload, segments of 16 MB and of 64 MB
  walden bench archive oltp --size 600000 --segment-sizes 16 --only 'walden ahead,pgbackrest zst-3 ahead'
      a long queue

The WAL and the data directory that it starts from are made by `walden lab run --keep-data` and kept in the cache folder for the \
next time (WALDEN_CACHE moves it).

Archiving: all segments are ready, and the command is called for each as PostgreSQL's archiver does, through a shell. \"ahead\" \
are programs that work on further segments in the background or beside (look-ahead; archive-async). Processor time is that \
of all processes. cp, scp and rsync check nothing and do not synchronise what they write; Walden checks and synchronises, and \
pgBackRest synchronises.

Restoring: the command is called for each segment as recovery does, which takes no time for itself. In the first round, which \
is not timed, each segment is compared with the original.

\"walden 0 ahead\" is level 0, which a queue of more than 64 files gets in any case. \"walden pack\" restores from packs of \
four segments, which is few: an archive's own have 512 MB.

Recovery: a server recovers with the command; beside it one that finds all segments in pg_wal.")]
pub struct ArchiveArgs {
    /// Workloads to make WAL with
    #[arg(value_name = "WORKLOAD", default_values = ["mixed"])]
    workloads: Vec<String>,

    /// The PostgreSQL version, 14 or later [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Rounds, after one that only compares
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// Size of each workload, see `walden lab list` [default: the workload's own]
    #[arg(long, value_name = "N")]
    size: Option<u64>,

    /// Sizes of segments, in MB
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16,64")]
    segment_sizes: Vec<u32>,

    /// Only these programs, as the tables name them
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,

    /// Recover no servers
    #[arg(long)]
    no_recovery: bool,

    #[command(flatten)]
    results: ResultArgs,
}

/// The results for one workload's WAL in segments of one size.
#[derive(Serialize, Debug)]
struct Archived {
    workload: String,
    postgresql: String,
    segment_megabytes: u32,
    segments: usize,
    raw_bytes: u64,
    programs: Vec<Timed>,
    /// Seconds of recovery if all segments are in pg_wal (`redo done ... elapsed`).
    recovery_without_archive_seconds: Option<f64>,
    unavailable: Vec<String>,
}

/// Medians of the rounds.
#[derive(Serialize, Debug)]
struct Timed {
    program: String,
    works_ahead: bool,
    runs: usize,
    stored_bytes: u64,
    stored_files: usize,
    /// `None` if the pushed segments were packed, because another program's row has the archiving.
    archiving: Option<Rate>,
    restoring: Rate,
    /// Seconds of a server's recovery (`redo done ... elapsed`).
    recovery_seconds: Option<f64>,
}

#[derive(Serialize, Debug)]
struct Rate {
    segments_per_second: f64,
    /// Processor time in milliseconds.
    cpu_per_segment: f64,
    /// The longest call in milliseconds.
    longest_call: f64,
}

/// Runs the command.
pub fn run(args: &ArchiveArgs) -> Result<ExitCode> {
    args.results.expect_writable()?;
    for name in &args.only {
        ensure!(
            contenders::ALL.iter().any(|(known, _)| known == name),
            "there is no program {name:?}: expected some of {}",
            contenders::ALL.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ")
        );
    }
    let mut results = Vec::new();
    for workload in find_workloads(&args.workloads)? {
        for &megabytes in &args.segment_sizes {
            results.push(measure(args, workload, megabytes)?);
        }
    }
    args.results.show(&results, show::tables, show::page)
}

fn measure(args: &ArchiveArgs, workload: &'static Workload, megabytes: u32) -> Result<Archived> {
    let variant = Variant {
        pg: args.pg,
        size: args.size,
        keep_data: true,
        segment_megabytes: Some(megabytes),
        ..Variant::default()
    };
    let material = Material::with(workload, variant)?;
    let mut unavailable = Vec::new();
    let mut programs = Vec::new();
    for (name, contender) in contenders::ALL {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        match contender.problem() {
            Some(problem) => unavailable.push(format!("{name}: {problem}")),
            None => programs.push(Program { name, contender: *contender, samples: Vec::new() }),
        }
    }
    let segments = Segments::from_material(&material)?;
    let progress = Progress::new(&format!("{}, {megabytes} MB: running in turns", workload.name));
    for round in 0..=args.runs {
        for program in &mut programs {
            // Written before the measurement, and not timed: the dirty pages of the previous program.
            rustix::fs::sync();
            let sample = one_round(program.contender, &material, &segments, round == 0)
                .with_context(|| program.name.to_owned())?;
            if round > 0 {
                program.samples.push(sample);
            }
        }
    }
    let mut recovered = BTreeMap::new();
    let mut alone = None;
    if !args.no_recovery {
        progress.phase(&format!("{}, {megabytes} MB: recovering servers", workload.name));
        alone = Some(time_recovery(&material, &segments.names, "false")?);
        for program in programs.iter().filter(|program| program.contender.serves_recovery()) {
            let seconds = recovery::seconds(&material, &segments, program.contender);
            recovered.insert(program.name, seconds.with_context(|| program.name.to_owned())?);
        }
    }
    progress.finish();
    Ok(Archived {
        workload: workload.name.to_owned(),
        postgresql: material.installation.version.to_string(),
        segment_megabytes: megabytes,
        segments: segments.names.len(),
        raw_bytes: segments.bytes,
        programs: programs
            .iter()
            .map(|program| program.timed(recovered.get(program.name).copied()))
            .collect(),
        recovery_without_archive_seconds: alone,
        unavailable,
    })
}

/// The segments to archive: all but the last one, which was incomplete when the server was stopped.
pub(super) struct Segments {
    folder: PathBuf,
    pub(super) names: Vec<String>,
    pub(super) bytes: u64,
}

impl Segments {
    fn from_material(material: &Material) -> Result<Segments> {
        let mut names = material.segments()?;
        names.pop();
        Segments::with_names(material, names)
    }

    /// Also has the last segment, with the checkpoint of the server's shutdown.
    pub(super) fn with_last(material: &Material) -> Result<Segments> {
        Segments::with_names(material, material.segments()?)
    }

    fn with_names(material: &Material, names: Vec<String>) -> Result<Segments> {
        let folder = material.wal();
        ensure!(!names.is_empty(), "no complete segment in {}: choose a larger --size", folder.display());
        let mut bytes = 0;
        for name in &names {
            bytes += folder.join(name).metadata()?.len();
        }
        Ok(Segments { folder, names, bytes })
    }
}

/// The measurements of a program in one round.
struct Sample {
    archiving: Driven,
    restoring: Driven,
    stored_bytes: u64,
    stored_files: usize,
}

/// Archives all segments into an empty archive and restores them.
fn one_round(
    contender: Contender,
    material: &Material,
    segments: &Segments,
    compare: bool,
) -> Result<Sample> {
    let scratch = Scratch::new()?;
    contenders::open_to_all(scratch.path())?;
    let data = scratch.path().join("data");
    make_data_directory(material, segments, &data)?;
    let ready = contender.prepare(scratch.path(), &data)?;
    let archiving = drive("archiver", &data, &ready.archive_command, segments, false)?;
    if let Some(command) = &ready.afterwards {
        contenders::run(command)?;
    }
    for name in &segments.names {
        fs::remove_file(data.join("pg_wal").join(name))?;
    }
    let restoring = drive("recovery", &data, &ready.restore_command, segments, compare)?;
    let (stored_bytes, stored_files) = size_of(&ready.repository)?;
    Ok(Sample { archiving, restoring, stored_bytes, stored_files })
}

/// Creates the files of a data directory that archivers read, with all segments ready to be archived.
pub(super) fn make_data_directory(material: &Material, segments: &Segments, data: &Path) -> Result<()> {
    let base = material.folder.join("base");
    for name in ["PG_VERSION", "global/pg_control"] {
        let target = data.join(name);
        fs::create_dir_all(target.parent().context("a file's folder")?)?;
        fs::copy(base.join(name), target).with_context(|| format!("copy {name} of {}", base.display()))?;
    }
    let (wal, status) = (data.join("pg_wal"), data.join("pg_wal/archive_status"));
    fs::create_dir_all(&status)?;
    for name in &segments.names {
        let (from, to) = (segments.folder.join(name), wal.join(name));
        // No program writes to the segments.
        if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to)?;
        }
        fs::write(status.join(format!("{name}.ready")), "")?;
    }
    Ok(())
}

/// Starts a process that calls the command for each segment.
pub(super) fn drive(
    part: &str,
    data: &Path,
    command: &str,
    segments: &Segments,
    compare: bool,
) -> Result<Driven> {
    let mut driver = Command::new(std::env::current_exe()?);
    driver.args(["bench", "drive", part, "--command", command]).arg("--data").arg(data);
    driver.arg("--originals").arg(&segments.folder).args(["--segments", &segments.names.len().to_string()]);
    if compare {
        driver.arg("--compare");
    }
    let output = driver.output().context("run walden bench drive")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim());
    serde_json::from_slice(&output.stdout).context("read what walden bench drive printed")
}

/// Returns the bytes and the number of files in a folder and its subfolders.
fn size_of(folder: &Path) -> Result<(u64, usize)> {
    let mut size = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let of_entry =
            if entry.file_type()?.is_dir() { size_of(&entry.path())? } else { (entry.metadata()?.len(), 1) };
        size = (size.0 + of_entry.0, size.1 + of_entry.1);
    }
    Ok(size)
}

struct Program {
    name: &'static str,
    contender: Contender,
    samples: Vec<Sample>,
}

impl Program {
    fn timed(&self, recovery_seconds: Option<f64>) -> Timed {
        let rate = |driven: fn(&Sample) -> &Driven| {
            let all = || self.samples.iter().map(driven);
            let files = all().map(|driven| driven.files).max().unwrap_or_default() as f64;
            Rate {
                segments_per_second: files / median(all().map(|driven| driven.wall)),
                cpu_per_segment: median(all().map(|driven| driven.cpu)) * 1e3 / files,
                longest_call: median(all().map(|driven| driven.longest)) * 1e3,
            }
        };
        let last = self.samples.last();
        Timed {
            program: self.name.to_owned(),
            works_ahead: self.contender.works_ahead(),
            runs: self.samples.len(),
            stored_bytes: last.map_or(0, |sample| sample.stored_bytes),
            stored_files: last.map_or(0, |sample| sample.stored_files),
            archiving: (self.contender != Contender::WaldenPacks).then(|| rate(|sample| &sample.archiving)),
            restoring: rate(|sample| &sample.restoring),
            recovery_seconds,
        }
    }
}
