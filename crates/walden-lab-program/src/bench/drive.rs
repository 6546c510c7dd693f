//! `walden bench drive`: calls commands as PostgreSQL's archiver and recovery do, without a server, and times
//! them.
//!
//! This is a separate process, so that it can adopt the processes that the commands leave in the background,
//! and add up the time of all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::usage::{Usage, adopt_background_processes, end_background_processes};
use crate::terminal;

/// Call a command for each segment as PostgreSQL would
#[derive(Args, Debug)]
pub struct DriveArgs {
    /// Whose part is played
    #[arg(value_enum)]
    part: Part,

    /// A data directory, of which pg_wal is used
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// The command, with %p and %f
    #[arg(long, value_name = "COMMAND")]
    command: String,

    /// The segments that are restored, and what they must be
    #[arg(long, value_name = "DIR")]
    originals: PathBuf,

    /// How many of them
    #[arg(long, value_name = "N")]
    segments: usize,

    /// Compare each segment that is restored (not timed)
    #[arg(long)]
    compare: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// archive_command, for each file that archive_status says is ready
    Archiver,
    /// restore_command, for each segment in order
    Recovery,
}

/// The measurements of all calls.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Driven {
    pub files: usize,
    /// From the start of the first call to the end of the last one, in seconds.
    pub wall: f64,
    /// Processor time of all processes, including those in the background, in seconds.
    pub cpu: f64,
    /// The longest call, in seconds.
    pub longest: f64,
}

/// Number of attempts per call, as in PostgreSQL's archiver (NUM_ARCHIVE_RETRIES in pgarch.c).
const TRIES: usize = 3;

/// Runs the command.
pub fn run(args: &DriveArgs) -> Result<ExitCode> {
    adopt_background_processes()?;
    let driver = Driver { data: &args.data, command: &args.command };
    let before = Usage::of_children()?;
    let mut calls = match args.part {
        Part::Archiver => driver.archive()?,
        Part::Recovery => driver.restore(&args.originals, args.segments, args.compare)?,
    };
    end_background_processes()?;
    calls.cpu = (Usage::of_children()? - before).cpu;
    terminal::print(&terminal::json(&calls)?)?;
    Ok(ExitCode::SUCCESS)
}

struct Driver<'a> {
    data: &'a Path,
    command: &'a str,
}

impl Driver<'_> {
    /// Archives like pgarch.c: the oldest file first; its status file is renamed after it is archived.
    fn archive(&self) -> Result<Driven> {
        let status = self.data.join("pg_wal/archive_status");
        let mut ready = names(&status)?;
        ready.retain(|name| name.ends_with(".ready"));
        let mut driven = Driven { files: ready.len(), wall: 0.0, cpu: 0.0, longest: 0.0 };
        let began = Instant::now();
        for mark in &ready {
            let name = mark.trim_end_matches(".ready");
            let call = Instant::now();
            self.call(name, &format!("pg_wal/{name}"))?;
            driven.longest = driven.longest.max(call.elapsed().as_secs_f64());
            fs::rename(status.join(mark), status.join(format!("{name}.done")))?;
        }
        driven.wall = began.elapsed().as_secs_f64();
        Ok(driven)
    }

    /// Restores like xlogarchive.c: to `pg_wal/RECOVERYXLOG`, which is renamed to the segment's name.
    /// Segments are removed after use.
    fn restore(&self, originals: &Path, segments: usize, compare: bool) -> Result<Driven> {
        const TARGET: &str = "pg_wal/RECOVERYXLOG";
        let mut names = names(originals)?;
        names.truncate(segments);
        let mut driven = Driven { files: names.len(), wall: 0.0, cpu: 0.0, longest: 0.0 };
        for name in &names {
            let call = Instant::now();
            self.call(name, TARGET)?;
            let restored = self.data.join("pg_wal").join(name);
            fs::rename(self.data.join(TARGET), &restored)?;
            let seconds = call.elapsed().as_secs_f64();
            driven.wall += seconds;
            driven.longest = driven.longest.max(seconds);
            if compare {
                let is_same = fs::read(&restored)? == fs::read(originals.join(name))?;
                ensure!(is_same, "{name}: the restored file differs from the archived one: {}", self.command);
            }
            fs::remove_file(restored)?;
        }
        Ok(driven)
    }

    fn call(&self, file: &str, path: &str) -> Result<()> {
        let command = self.command.replace("%f", file).replace("%p", path);
        let mut problem = String::new();
        for _ in 0..TRIES {
            let mut shell = Command::new("sh");
            shell.args(["-c", &command]).current_dir(self.data).stdin(Stdio::null());
            // To a file instead of a pipe: processes in the background may keep it open.
            let said = tempfile::NamedTempFile::new()?;
            shell.stdout(said.reopen()?).stderr(said.reopen()?);
            let status = shell.status().context("run sh")?;
            if status.success() {
                return Ok(());
            }
            problem = format!("{status}: {}", fs::read_to_string(said.path())?.trim());
        }
        bail!("{command} failed {TRIES} times: {problem}")
    }
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let mut names = entries.map(name).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}
