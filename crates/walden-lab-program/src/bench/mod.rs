//! `walden bench`: runs this program and others alternately on the same files.

mod archive;
mod archive_library;
mod bad_inputs;
mod calibrate;
mod codecs;
mod data;
mod decode;
mod drive;
mod nightly;
mod receive;
mod redo;
mod restore;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use wait4::Wait4;
use walden_lab::workloads::{self, Workload};
use walden_lab::{
    ClusterBuilder, Installation, Progress, RunOptions, StopMode, Wanted, cache_dir, find_or_install,
    run_workload,
};
use walden_output::Inputs;
use walden_report::chart::{Axis, Bars, Layer, Tone, Unit};
use walden_report::html::{Page, Section, Table};
use walden_server::guard::Undo;

use crate::output::Overwrite;
use crate::terminal::Format;
use crate::{output, terminal};

/// Measure this program against others on the same files
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand, Debug)]
enum BenchCommand {
    Archive(archive::ArchiveArgs),
    ArchiveLibrary(archive_library::LibraryArgs),
    BadInputs(bad_inputs::BadInputsArgs),
    Codecs(codecs::CodecsArgs),
    Data(data::DataArgs),
    Decode(decode::DecodeArgs),
    #[command(hide = true)]
    Drive(drive::DriveArgs),
    Nightly(nightly::NightlyArgs),
    Receive(receive::ReceiveArgs),
    Redo(redo::RedoArgs),
    Restore(restore::RestoreArgs),
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Archive(args) => archive::run(args),
        BenchCommand::ArchiveLibrary(args) => archive_library::run(args),
        BenchCommand::BadInputs(args) => bad_inputs::run(args),
        BenchCommand::Codecs(args) => codecs::run(args),
        BenchCommand::Data(args) => data::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Drive(args) => drive::run(args),
        BenchCommand::Nightly(args) => nightly::run(args),
        BenchCommand::Receive(args) => receive::run(args),
        BenchCommand::Redo(args) => redo::run(args),
        BenchCommand::Restore(args) => restore::run(args),
    }
}

/// Finds workloads by name.
fn find_workloads(names: &[String]) -> Result<Vec<&'static Workload>> {
    let one = |name: &String| {
        workloads::by_name(name)
            .with_context(|| format!("cannot use workload {name}: expected one that `walden lab list` names"))
    };
    names.iter().map(one).collect()
}

/// Builds a page with one section per workload.
fn page_of(title: &str, command: &str, results: impl Iterator<Item = Section>) -> Page {
    let mut page = Page::new(title);
    let now = jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default();
    page.subtitle(&format!(
        "Measured by {command} on {now}, {} cores; medians of alternating runs.",
        terminal::cores()
    ));
    results.for_each(|section| {
        page.section(section);
    });
    page
}

/// Builds a section with a bar chart of the programs' speeds in megabytes per second, and a table.
fn speed_section<'a>(
    (title, what): (String, &str),
    programs: impl Iterator<Item = (&'a str, f64)>,
    note: &str,
    table: Table,
) -> Section {
    let (categories, rates): (Vec<String>, Vec<Option<f64>>) =
        programs.map(|(program, megabytes)| (program.to_owned(), Some(megabytes * 1e6))).unzip();
    let chart = Bars {
        title: format!("WAL {what} per second"),
        x: Axis::new(&format!("WAL {what} per second"), Unit::BytesPerSecond),
        categories,
        layers: vec![Layer { name: "WAL per second".into(), tone: Tone::Next, values: rates }],
        stacked: false,
        ..Bars::default()
    };
    Section::new(&title).chart(chart, note).table(table)
}

/// How results are printed, and the page with charts.
#[derive(Args, Debug)]
struct ResultArgs {
    /// Also write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl ResultArgs {
    /// Checks before the measurement that the page can be written.
    fn expect_writable(&self) -> Result<()> {
        output::can_write(&[("--html", self.html.as_deref())], self.overwrite, &Inputs::default())
    }

    /// Writes the page, and prints the results even if the page cannot be written.
    fn show<T: Serialize>(
        &self,
        results: &[T],
        tables: impl Fn(&[T]) -> String,
        page: impl Fn(&[T]) -> Page,
    ) -> Result<ExitCode> {
        let html = self.html.as_deref();
        let written = html.map_or(Ok(()), |path| output::write_page(path, &page(results), self.overwrite));
        let printed = terminal::show(self.format, || results, || tables(results));
        written.and(printed).map(|()| ExitCode::SUCCESS)
    }
}

/// A workload's WAL, generated now or by an earlier run, and the LSN range of it that is measured.
struct Material {
    installation: Installation,
    folder: PathBuf,
    start: String,
    end: String,
}

impl Material {
    /// Returns the WAL of a workload. With `keep_data`, `base/` has the data directory before the workload.
    fn generate(
        workload: &'static Workload,
        pg: Option<Wanted>,
        size: Option<u64>,
        keep_data: bool,
    ) -> Result<Material> {
        Material::with(workload, Variant { pg, size, keep_data, ..Variant::default() })
    }

    /// Returns the WAL of a variant of a workload.
    fn with(workload: &'static Workload, variant: Variant<'_>) -> Result<Material> {
        let Variant { pg, keep_data, setting, segment_megabytes, .. } = variant;
        let installation = find_or_install(pg.unwrap_or(Wanted::Any))?;
        let size = variant.size.unwrap_or(workload.default_size);
        let mut suffix = if keep_data { "-with-data".to_owned() } else { String::new() };
        if let Some((name, value)) = setting {
            suffix += &format!("-{name}-{value}");
        }
        if let Some(megabytes) = segment_megabytes {
            suffix += &format!("-segments-of-{megabytes}MB");
        }
        let name = format!("{}-{}-{size}{suffix}", workload.name, installation.version);
        let folder = cache_dir()?.join("bench").join(name);
        let facts = folder.join("facts.json");
        if !facts.is_file() {
            let mut options = RunOptions::new(workload, &folder);
            options.size = Some(size);
            options.installation = Some(installation.clone());
            options.keep_data = keep_data;
            options.settings =
                setting.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
            options.wal_segsize_mb = segment_megabytes;
            options.force = true;
            options.progress = Progress::new(workload.name);
            run_workload(options, &mut |_| Ok(()))?;
        }
        let facts: serde_json::Value = serde_json::from_slice(&fs::read(&facts)?)?;
        let lsn = |name: &str| {
            facts[name]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("cannot use {}: expected {name} in facts.json", folder.display()))
        };
        Ok(Material { installation, start: lsn("workload_lsn")?, end: lsn("end_lsn")?, folder })
    }

    fn wal(&self) -> PathBuf {
        self.folder.join("wal")
    }

    /// Returns the names of the segments, sorted.
    fn segments(&self) -> Result<Vec<String>> {
        let name =
            |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        let mut names = fs::read_dir(self.wal())?.map(name).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }
}

/// The seconds of redo in a server's log.
struct Redo {
    elapsed: f64,
    /// Processor time of the recovering process, in user and system mode.
    processor: f64,
}

/// Runs a server's recovery from the base backup, with these segments in `pg_wal` and others from a
/// `restore_command`. Returns the elapsed seconds.
fn time_recovery(material: &Material, in_pg_wal: &[String], restore_command: &str) -> Result<f64> {
    recover(material, in_pg_wal, restore_command).map(|redo| redo.elapsed)
}

/// Runs a server's recovery as [`time_recovery`] does. Returns the elapsed seconds and the processor time.
fn recover(material: &Material, in_pg_wal: &[String], restore_command: &str) -> Result<Redo> {
    let wal = material.wal();
    let cluster = ClusterBuilder::new(material.installation.clone())
        .copy_of(&material.folder.join("base"))
        // The base backup's own settings come first, so these settings override them.
        .setting("shared_buffers", "2GB")
        .setting("max_wal_size", "100GB")
        .setting("checkpoint_timeout", "1d")
        .setting("hot_standby", "off")
        .setting("wal_consistency_checking", "")
        .setting("restore_command", restore_command)
        .start_after(|data| {
            for name in in_pg_wal {
                fs::copy(wal.join(name), data.join("pg_wal").join(name))?;
            }
            fs::write(data.join("recovery.signal"), "")?;
            Ok(())
        })?;
    let log = fs::read_to_string(cluster.log_path())?;
    cluster.stop(StopMode::Immediate)?;
    let line = log
        .lines()
        .find(|line| line.contains("redo done at"))
        .context("cannot time recovery: expected \"redo done at\" in the server's log, found none")?;
    parse_redo(line).with_context(|| {
        format!("cannot time recovery: expected \"CPU: user: SECONDS s, system: SECONDS s, elapsed: SECONDS s\", found: {line}")
    })
}

/// Reads `system usage: CPU: user: 0.41 s, system: 0.08 s, elapsed: 0.49 s` (`pg_rusage_show`).
fn parse_redo(line: &str) -> Option<Redo> {
    let seconds = |name: &str| -> Option<f64> {
        line.split(&format!("{name}: ")).nth(1)?.split(' ').next()?.parse().ok()
    };
    Some(Redo { elapsed: seconds("elapsed")?, processor: seconds("user")? + seconds("system")? })
}

/// The differences of a run from the workload's defaults.
#[derive(Clone, Copy, Default)]
struct Variant<'a> {
    pg: Option<Wanted>,
    size: Option<u64>,
    /// Whether to keep the data directory from before the workload, in `base/`.
    keep_data: bool,
    /// One setting of the server in addition to the workload's own.
    setting: Option<(&'a str, &'a str)>,
    segment_megabytes: Option<u32>,
}

/// Wall and processor seconds of a process, and its peak resident memory.
struct Sample {
    wall: f64,
    cpu: f64,
    peak_kilobytes: u64,
}

fn measure(command: &mut Command) -> Result<Sample> {
    let started = Instant::now();
    let name = Path::new(command.get_program()).display().to_string();
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let used = child.wait4()?;
    let wall = started.elapsed().as_secs_f64();
    ensure!(used.status.success(), "{name} failed: {}", used.status);
    let cpu = (used.rusage.utime + used.rusage.stime).as_secs_f64();
    Ok(Sample { wall, cpu, peak_kilobytes: used.rusage.maxrss / 1024 })
}

/// A background program. It is killed when this is dropped, and when a signal requests this process to end.
struct Background {
    child: Arc<Mutex<Option<Child>>>,
    _kill: Undo,
}

impl Background {
    fn start(command: &mut Command) -> Result<Background> {
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let child = Arc::new(Mutex::new(Some(child)));
        let kill = Undo::new({
            let child = child.clone();
            move || {
                if let Some(mut child) = take_child(&child) {
                    // An error means that the program has just ended.
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        });
        Ok(Background { child, _kill: kill })
    }

    /// Returns the program, for a caller that ends it; `None` if it was taken before.
    fn take(&self) -> Option<Child> {
        take_child(&self.child)
    }
}

fn take_child(child: &Mutex<Option<Child>>) -> Option<Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_the_background_ends_with_its_owner() {
        let process = Background::start(Command::new("sleep").arg("1000")).unwrap();
        let id = process.child.lock().unwrap().as_ref().map(Child::id).unwrap();
        let is_there = || Path::new(&format!("/proc/{id}")).exists();
        assert!(is_there());
        drop(process);
        assert!(!is_there());
        let process = Background::start(Command::new("sleep").arg("1000")).unwrap();
        let mut child = process.take().unwrap();
        drop(process);
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_times_of_redo_are_read_from_the_log() {
        let line = "2026-11-25 LOG:  redo done at 0/5D3A28 system usage: CPU: user: 0.41 s, system: 0.08 s, elapsed: 0.52 s";
        let redo = parse_redo(line).unwrap();
        assert_eq!((redo.elapsed, (redo.processor * 100.0).round()), (0.52, 49.0));
        assert!(parse_redo("redo done at 0/5D3A28").is_none());
    }
}
