//! `walden bench restore`: compares a restore by PostgreSQL alone with `walden restore`, up to a server that
//! accepts writes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use walden_lab::workloads::Workload;
use walden_lab::{Progress, Wanted, median};
use walden_report::table::{Row, table};
use walden_report::units;
use walden_server::account;

use super::archive::contenders::{Contender as Program, Ready};
use super::archive::{Segments, drive, make_data_directory};
use super::usage::{Usage, adopt_background_processes, end_background_processes};
use super::{Material, Redo, Sample, find_workloads, measure, parse_redo};
use crate::terminal::{self, Format};

/// Time a restore by PostgreSQL alone and by walden restore, up to a server that accepts writes
#[derive(Args, Debug)]
#[command(after_help = "\
The base backup and the WAL are made by `walden lab run --keep-data` and kept in the cache folder for later runs (WALDEN_CACHE names \
another folder). The base backup is the data directory of a stopped server.

Each contender copies the base backup, recovers to the end of the WAL, and promotes the server. The time ends when the server accepts \
writes. The WAL ends with a checkpoint, so a server has nothing to replay after walden restore. Processor time and bytes are those of all processes: the copy, restore_command with its processes in the background, and the \
server. Bytes are those of system calls on files, also of the page cache. The server has no checkpoint during recovery, \
recovery_prefetch = try and fsync = off, so it does not synchronize the data directory before redo; walden restore synchronizes its files. Archives are compressed (Walden: level 3, \
pgBackRest: zst 3).

walden backup advance before, then restore: the base backup was advanced before (not timed, as it needs no outage).")]
pub struct RestoreArgs {
    /// Workloads to make WAL with
    #[arg(value_name = "WORKLOAD", default_values = ["oltp", "mixed"])]
    workloads: Vec<String>,

    /// The PostgreSQL version, 14 or later [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Rounds, of which the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,

    /// Size of each workload, see `walden lab list` [default: the workload's own]
    #[arg(long, value_name = "N")]
    size: Option<u64>,

    /// The server's shared_buffers; with less than the data, it reads and writes pages repeatedly
    #[arg(long, value_name = "SIZE", default_value = "2GB")]
    shared_buffers: String,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize, Debug)]
struct Compared {
    workload: String,
    postgresql: String,
    wal_bytes: u64,
    contenders: Vec<Timed>,
    unavailable: Vec<String>,
}

#[derive(Serialize, Debug)]
struct Timed {
    name: &'static str,
    /// Median wall time up to a server that accepts writes.
    seconds: f64,
    /// Median processor time of all processes.
    cpu_seconds: f64,
    /// Bytes read and written by system calls, in the last round.
    read_bytes: u64,
    written_bytes: u64,
    /// The first contender's wall time divided by this one's.
    times_postgresql: f64,
    /// The same for processor time.
    cpu_times_postgresql: f64,
    phases: Vec<TimedPhase>,
}

/// Medians of a part of a restore.
#[derive(Serialize, Debug)]
struct TimedPhase {
    name: &'static str,
    seconds: f64,
    /// `null` if it was not measured apart.
    cpu_seconds: Option<f64>,
}

/// A part of one restore.
#[derive(Clone, Copy, Debug)]
struct Phase {
    name: &'static str,
    wall: f64,
    cpu: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    /// PostgreSQL alone, with a program's `restore_command`.
    Server(Program),
    /// `walden restore` from a folder of segments.
    Restore,
    /// `walden restore` from an archive.
    RestoreArchive,
    /// `walden restore` of a base backup that was advanced before.
    Advanced,
}

const WALDEN: Program = Program::Walden { level: 3, ahead: true };

const CONTENDERS: [(Contender, &str); 7] = [
    (Contender::Server(Program::Cp), "PostgreSQL, cp"),
    (Contender::Server(pgbackrest(false)), "PostgreSQL, pgbackrest archive-get"),
    (Contender::Server(pgbackrest(true)), "PostgreSQL, pgbackrest archive-get, asynchronous"),
    (Contender::Server(WALDEN), "PostgreSQL, walden archive get"),
    (Contender::Restore, "walden restore --wal"),
    (Contender::RestoreArchive, "walden restore --repo"),
    (Contender::Advanced, "walden backup advance before, then restore --wal"),
];

const fn pgbackrest(ahead: bool) -> Program {
    Program::PgBackRest { compression: "zst", level: 3, ahead }
}

/// The measurements of one restore.
struct Round {
    wall: f64,
    used: Usage,
    phases: Vec<Phase>,
}

impl Round {
    /// Returns the phases of a restore: the copy or `walden restore`, and a server that ran for
    /// `served` seconds.
    fn new(is_server: bool, prepared: &Sample, served: &Served, used: Usage) -> Round {
        let name = if is_server { "copy of the base backup" } else { "walden restore" };
        let (start, redo) = (served.before_redo, &served.redo);
        let phase = |name, wall, cpu| Phase { name, wall, cpu };
        let phases = vec![
            phase(name, prepared.wall, Some(prepared.cpu)),
            phase("server", served.wall, Some(used.cpu - prepared.cpu)),
            phase("server before redo", start, None),
            phase("redo (without restore_command)", redo.elapsed, Some(redo.processor)),
            phase("server after redo", (served.wall - start - redo.elapsed).max(0.0), None),
        ];
        Round { wall: prepared.wall + served.wall, used, phases }
    }
}

/// The times of a server up to the first write that it accepts.
struct Served {
    wall: f64,
    before_redo: f64,
    redo: Redo,
}

impl Served {
    /// Reads the log of a server that was started at `started`, in seconds since 1970-01-01 UTC. Without
    /// redo, all of the time is before it.
    fn read(log: &str, started: f64, wall: f64) -> Served {
        let line = |text: &str| log.lines().find(|line| line.contains(text));
        // `log_line_prefix` has the time.
        let time = |line: &str| line.split_whitespace().next().and_then(|time| time.parse::<f64>().ok());
        let redo = line("redo done at").and_then(parse_redo).unwrap_or(Redo { elapsed: 0.0, processor: 0.0 });
        let before_redo = line("redo starts at").and_then(time).map_or(wall, |time| time - started);
        Served { wall, before_redo: before_redo.clamp(0.0, wall), redo }
    }
}

/// The message of a server that accepts connections. Without `hot_standby`, it accepts writes then.
const READY: &str = "database system is ready to accept connections";
/// Longest time for a server to accept writes.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Runs the command.
pub fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let results: Result<Vec<_>> =
        find_workloads(&args.workloads)?.into_iter().map(|workload| compare(args, workload)).collect();
    let results = results?;
    terminal::show(args.format, || &results, || tables(&results))?;
    Ok(ExitCode::SUCCESS)
}

/// The files of a comparison, in a temporary folder.
struct Setting {
    material: Material,
    walden: PathBuf,
    folder: tempfile::TempDir,
    /// The programs' archives.
    archives: Vec<(Program, Ready)>,
    shared_buffers: String,
}

fn compare(args: &RestoreArgs, workload: &'static Workload) -> Result<Compared> {
    let material = Material::generate(workload, args.pg, args.size, true)?;
    let walden = crate::programs::path_of("walden")?;
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let shared_buffers = args.shared_buffers.clone();
    let mut setting = Setting { material, walden, folder, archives: Vec::new(), shared_buffers };
    let segments = Segments::with_last(&setting.material)?;
    // The server's user may not read the cache folder.
    fs::create_dir(setting.wal())?;
    for name in &segments.names {
        fs::copy(setting.material.wal().join(name), setting.wal().join(name))?;
    }
    setting.advance()?;
    let progress = Progress::new(&format!("{}: archiving", workload.name));
    let (mut contenders, mut unavailable) = (Vec::new(), Vec::new());
    for (contender, name) in CONTENDERS {
        let problem = match contender {
            Contender::Server(program) => program.problem(),
            _ => None,
        };
        match problem {
            Some(problem) => {
                unavailable.push(format!("{name}: {problem}"));
                continue;
            }
            None => contenders.push((contender, name, Vec::new())),
        }
        if let Contender::Server(program) = contender {
            setting.archive(program, &segments)?;
        }
    }
    adopt_background_processes()?;
    progress.phase(&format!("{}: restoring in turns", workload.name));
    for _ in 0..args.rounds {
        for (contender, _, rounds) in &mut contenders {
            rounds.push(setting.restore(*contender)?);
        }
    }
    progress.finish();
    let seconds = |rounds: &[Round]| median(rounds.iter().map(|round| round.wall));
    let cpu_seconds = |rounds: &[Round]| median(rounds.iter().map(|round| round.used.cpu));
    let baseline = contenders
        .first()
        .map_or((f64::NAN, f64::NAN), |(_, _, rounds)| (seconds(rounds), cpu_seconds(rounds)));
    let timed = |(_, name, rounds): &(Contender, &'static str, Vec<Round>)| {
        let last = rounds.last().map(|round| round.used).unwrap_or_default();
        Timed {
            name,
            seconds: seconds(rounds),
            cpu_seconds: cpu_seconds(rounds),
            read_bytes: last.read,
            written_bytes: last.written,
            times_postgresql: baseline.0 / seconds(rounds),
            cpu_times_postgresql: baseline.1 / cpu_seconds(rounds),
            phases: phases_of(rounds),
        }
    };
    Ok(Compared {
        workload: workload.name.to_owned(),
        postgresql: setting.material.installation.version.to_string(),
        wal_bytes: segments.bytes,
        contenders: contenders.iter().map(timed).collect(),
        unavailable,
    })
}

/// Returns the medians of each phase.
fn phases_of(rounds: &[Round]) -> Vec<TimedPhase> {
    let names = rounds.first().into_iter().flat_map(|round| round.phases.iter().map(|phase| phase.name));
    let timed = |(index, name)| {
        let all: Vec<Phase> = rounds.iter().filter_map(|round| round.phases.get(index).copied()).collect();
        let cpu: Option<Vec<f64>> = all.iter().map(|phase| phase.cpu).collect();
        let seconds = median(all.iter().map(|phase| phase.wall));
        TimedPhase { name, seconds, cpu_seconds: cpu.map(median) }
    };
    names.enumerate().map(timed).collect()
}

impl Setting {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn base(&self) -> PathBuf {
        self.material.folder.join("base")
    }

    fn wal(&self) -> PathBuf {
        self.path("wal")
    }

    /// Archives all segments with a program, as PostgreSQL's archiver does.
    fn archive(&mut self, program: Program, segments: &Segments) -> Result<()> {
        let folder = self.path(&format!("archive{}", self.archives.len()));
        let data = folder.join("data");
        fs::create_dir(&folder)?;
        make_data_directory(&self.material, segments, &data)?;
        let ready = program.prepare(&folder, &data)?;
        // The server was stopped in the last segment.
        let command = ready.archive_command.replace(" push ", " push --accept-damaged ");
        drive("archiver", &data, &command, segments, false)?;
        self.archives.push((program, ready));
        Ok(())
    }

    fn ready(&self, program: Program) -> Result<&Ready> {
        let found = self.archives.iter().find(|(of, _)| *of == program).map(|(_, ready)| ready);
        found.with_context(|| format!("cannot restore: {program:?} has no archive"))
    }

    fn advance(&self) -> Result<()> {
        let (base, wal, output) = (self.base(), self.wal(), self.path("advanced"));
        let arguments = ["backup", "advance", text(&base)?, "--wal", text(&wal)?, "-o", text(&output)?];
        measure(Command::new(&self.walden).args(arguments))?;
        ensure!(output.join("backup_label").is_file(), "walden backup advance has found no later checkpoint");
        Ok(())
    }

    /// Restores once. Returns the time up to a server that accepts writes.
    fn restore(&self, contender: Contender) -> Result<Round> {
        let data = self.path("data");
        let (base, wal, advanced) = (self.base(), self.wal(), self.path("advanced"));
        let restore = |base: &Path, source: [&str; 2]| {
            let options = ["-o", text(&data)?, "--target-action", "promote", "--base", text(base)?];
            measure(Command::new(&self.walden).arg("restore").args(options).args(source))
        };
        let recover = |restore_command: &str| -> Result<Sample> {
            let copied = measure(Command::new("cp").arg("-a").arg(&base).arg(&data))?;
            let settings = format!(
                "restore_command = '{restore_command}'\nrecovery_target_timeline = 'latest'\nrecovery_target_action = 'promote'\n"
            );
            append(&data.join("postgresql.auto.conf"), &settings)?;
            fs::write(data.join("recovery.signal"), "")?;
            Ok(copied)
        };
        let before = Usage::of_children()?;
        let prepared = match contender {
            Contender::Server(program) => recover(&self.ready(program)?.restore_command)?,
            Contender::Restore => restore(&base, ["--wal", text(&wal)?])?,
            Contender::RestoreArchive => restore(&base, ["--repo", text(&self.ready(WALDEN)?.repository)?])?,
            Contender::Advanced => restore(&advanced, ["--wal", text(&wal)?])?,
        };
        let served = self.start(&data)?;
        end_background_processes()?;
        let used = Usage::of_children()? - before;
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
        Ok(Round::new(matches!(contender, Contender::Server(_)), &prepared, &served, used))
    }

    /// Starts a server, waits until it accepts writes, and stops it.
    fn start(&self, data: &Path) -> Result<Served> {
        let major = self.material.installation.version.major;
        let sockets = self.folder.path().display();
        let mut settings = format!(
            "listen_addresses = ''\nunix_socket_directories = '{sockets}'\nfsync = off\nshared_buffers = '{}'\nmax_wal_size = '100GB'\n\
             checkpoint_timeout = '1d'\nhot_standby = off\narchive_mode = off\nlogging_collector = off\nlog_line_prefix = '%n '\n",
            self.shared_buffers
        );
        if major >= 15 {
            settings += "recovery_prefetch = try\n";
        }
        append(&data.join("postgresql.auto.conf"), &settings)?;
        account::chown_all(data)?;
        account::chown_all(self.folder.path())?;
        let mut command = account::command(&self.material.installation.postgres(), self.folder.path())?;
        let (started, started_at) = (Instant::now(), jiff::Timestamp::now());
        let log_path = self.path("log");
        let log = File::create(&log_path).with_context(|| format!("cannot create {}", log_path.display()))?;
        let mut child = command.arg("-D").arg(data).stdout(Stdio::null()).stderr(log).spawn()?;
        let target = format!("host={sockets} user=postgres dbname=postgres");
        let outcome = loop {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(&log_path).unwrap_or_default();
                bail!("the server on {} has ended: {status}\n{log}", data.display());
            }
            // A connection before that takes the server as long as the replay of some MB of WAL.
            let is_ready = || fs::read_to_string(&log_path).is_ok_and(|log| log.contains(READY));
            let accepts_writes = is_ready()
                && postgres::Client::connect(&target, postgres::NoTls)
                    .and_then(|mut client| client.query_one("SELECT NOT pg_is_in_recovery()", &[]))
                    .is_ok_and(|row| row.get(0));
            if accepts_writes {
                break Ok(started.elapsed().as_secs_f64());
            }
            if started.elapsed() > TIMEOUT {
                break Err(anyhow::anyhow!("the server on {} does not accept writes", data.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // An immediate shutdown writes no checkpoint.
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::QUIT,
        )?;
        child.wait()?;
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        let started = started_at.as_millisecond() as f64 / 1e3;
        outcome.map(|wall| Served::read(&log, started, wall))
    }
}

fn append(path: &Path, text: &str) -> Result<()> {
    let before = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, before + text).with_context(|| format!("cannot write {}", path.display()))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("cannot use {}: its name is not UTF-8", path.display()))
}

fn tables(results: &[Compared]) -> String {
    let look = terminal::look();
    let table_of = |result: &Compared| {
        let title = format!(
            "{}, PostgreSQL {}: {} of WAL",
            result.workload,
            result.postgresql,
            units::bytes(result.wal_bytes)
        );
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        let of_phase = |phase: &TimedPhase| Row {
            depth: 1,
            label: phase.name.to_owned(),
            cells: vec![seconds(phase.seconds), phase.cpu_seconds.map_or_else(String::new, seconds)],
            share: None,
        };
        let row = |timed: &Timed| -> Vec<Row> {
            let all = Row {
                depth: 0,
                label: timed.name.to_owned(),
                cells: vec![
                    seconds(timed.seconds),
                    seconds(timed.cpu_seconds),
                    units::bytes(timed.read_bytes),
                    units::bytes(timed.written_bytes),
                    format!("{:.2}x", timed.times_postgresql),
                    format!("{:.2}x", timed.cpu_times_postgresql),
                ],
                share: None,
            };
            std::iter::once(all).chain(timed.phases.iter().map(of_phase)).collect()
        };
        let rows: Vec<Row> = result.contenders.iter().flat_map(|timed| row(timed).into_iter()).collect();
        let columns =
            ("restore", &["time", "processor", "read", "written", "times cp", "processor, times cp"][..]);
        let unavailable: String = result.unavailable.iter().map(|reason| format!("  {reason}\n")).collect();
        table(look, &title, columns, &rows) + &unavailable + "\n"
    };
    results.iter().map(table_of).collect()
}
