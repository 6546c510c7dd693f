//! `walden bench restore`: compares a restore by PostgreSQL alone with `walden restore`, up to a server that
//! accepts writes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use wait4::Wait4;
use walden_lab::workloads::Workload;
use walden_lab::{Progress, Wanted, median};
use walden_report::table::{Row, table};
use walden_report::units;
use walden_server::account;

use super::{Material, Sample, find_workloads, measure};
use crate::terminal::{self, Format};

/// Time a restore by PostgreSQL alone and by walden restore, up to a server that accepts writes
#[derive(Args, Debug)]
#[command(after_help = "\
The base backup and the WAL are made by `walden lab run --keep-data` and kept in the cache folder for later runs (WALDEN_CACHE names \
another folder). The base backup is the data directory of a stopped server.

Each contender copies the base backup, recovers to the end of the WAL, and promotes the server. The time ends when the server accepts \
writes. The processor time is that of all processes: the copy, restore_command, and the server. The server has shared_buffers for all of \
the data, no checkpoint during recovery, recovery_prefetch = try and fsync = off; walden restore synchronizes its files.

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
}

#[derive(Serialize, Debug)]
struct Timed {
    name: &'static str,
    /// Median wall time up to a server that accepts writes.
    seconds: f64,
    /// Median processor time of all processes.
    cpu_seconds: f64,
    /// The first contender's wall time divided by this one's.
    times_postgresql: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    /// PostgreSQL alone, with `cp` as `restore_command`.
    Copy,
    /// `walden restore`.
    Restore,
    /// `walden restore` of a base backup that was advanced before.
    Advanced,
}

const CONTENDERS: [(Contender, &str); 3] = [
    (Contender::Copy, "PostgreSQL (restore_command = cp)"),
    (Contender::Restore, "walden restore"),
    (Contender::Advanced, "walden backup advance before, then restore"),
];

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
}

fn compare(args: &RestoreArgs, workload: &'static Workload) -> Result<Compared> {
    let material = Material::generate(workload, args.pg, args.size, true)?;
    let walden = crate::programs::path_of("walden")?;
    let setting = Setting {
        material,
        walden,
        folder: tempfile::tempdir().context("cannot create a temporary folder")?,
    };
    // The server's user may not read the cache folder.
    measure(Command::new("cp").arg("-r").arg(setting.material.wal()).arg(setting.wal()))?;
    setting.advance()?;
    let progress = Progress::new(&format!("{}: restoring in turns", workload.name));
    let mut rounds: Vec<Vec<Sample>> = CONTENDERS.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for ((contender, _), samples) in CONTENDERS.iter().zip(&mut rounds) {
            samples.push(setting.restore(*contender)?);
        }
    }
    progress.finish();
    let seconds = |samples: &[Sample]| median(samples.iter().map(|sample| sample.wall));
    let baseline = seconds(&rounds[0]);
    let timed = |((_, name), samples): (&(Contender, &'static str), &Vec<Sample>)| Timed {
        name,
        seconds: seconds(samples),
        cpu_seconds: median(samples.iter().map(|sample| sample.cpu)),
        times_postgresql: baseline / seconds(samples),
    };
    let mut wal_bytes = 0;
    for name in setting.material.segments()? {
        wal_bytes += fs::metadata(setting.material.wal().join(name))?.len();
    }
    Ok(Compared {
        workload: workload.name.to_owned(),
        postgresql: setting.material.installation.version.to_string(),
        wal_bytes,
        contenders: CONTENDERS.iter().zip(&rounds).map(timed).collect(),
    })
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

    fn run(&self, arguments: &[&str]) -> Result<Sample> {
        measure(Command::new(&self.walden).args(arguments))
    }

    fn advance(&self) -> Result<()> {
        let (base, wal, output) = (self.base(), self.wal(), self.path("advanced"));
        let arguments = ["backup", "advance", text(&base)?, "--wal", text(&wal)?, "-o", text(&output)?];
        self.run(&arguments)?;
        ensure!(output.join("backup_label").is_file(), "walden backup advance has found no later checkpoint");
        Ok(())
    }

    /// Restores once. Returns the time up to a server that accepts writes.
    fn restore(&self, contender: Contender) -> Result<Sample> {
        let data = self.path("data");
        let (base, wal, advanced) = (self.base(), self.wal(), self.path("advanced"));
        let restore = |base: &Path| -> Result<Sample> {
            let (base, wal, data) = (text(base)?, text(&wal)?, text(&data)?);
            let options = ["-o", data, "--target-action", "promote"];
            self.run(&[&["restore", "--base", base, "--wal", wal], &options[..]].concat())
        };
        let recover = |restore_command: String| -> Result<Sample> {
            let copied = measure(Command::new("cp").arg("-a").arg(&base).arg(&data))?;
            let settings = format!(
                "restore_command = '{restore_command}'\nrecovery_target_timeline = 'latest'\nrecovery_target_action = 'promote'\n"
            );
            append(&data.join("postgresql.auto.conf"), &settings)?;
            fs::write(data.join("recovery.signal"), "")?;
            Ok(copied)
        };
        let prepared = match contender {
            Contender::Copy => recover(format!("cp {}/%f \"%p\"", text(&wal)?))?,
            Contender::Restore => restore(&base)?,
            Contender::Advanced => restore(&advanced)?,
        };
        let served = self.start(&data)?;
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
        Ok(Sample {
            wall: prepared.wall + served.wall,
            cpu: prepared.cpu + served.cpu,
            peak_kilobytes: prepared.peak_kilobytes.max(served.peak_kilobytes),
        })
    }

    /// Starts a server, waits until it accepts writes, and stops it.
    fn start(&self, data: &Path) -> Result<Sample> {
        let major = self.material.installation.version.major;
        let sockets = self.folder.path().display();
        let mut settings = format!(
            "listen_addresses = ''\nunix_socket_directories = '{sockets}'\nfsync = off\nshared_buffers = '2GB'\nmax_wal_size = '100GB'\n\
             checkpoint_timeout = '1d'\nhot_standby = off\narchive_mode = off\nlogging_collector = off\n"
        );
        if major >= 15 {
            settings += "recovery_prefetch = try\n";
        }
        append(&data.join("postgresql.auto.conf"), &settings)?;
        account::chown_all(data)?;
        account::chown_all(self.folder.path())?;
        let mut command = account::command(&self.material.installation.postgres(), self.folder.path())?;
        let started = Instant::now();
        let log_path = self.path("log");
        let log = File::create(&log_path).with_context(|| format!("cannot create {}", log_path.display()))?;
        let mut child = command.arg("-D").arg(data).stdout(Stdio::null()).stderr(log).spawn()?;
        let target = format!("host={sockets} user=postgres dbname=postgres");
        let outcome = loop {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(&log_path).unwrap_or_default();
                bail!("the server on {} has ended: {status}\n{log}", data.display());
            }
            let accepts_writes = postgres::Client::connect(&target, postgres::NoTls)
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
        let used = child.wait4()?;
        let cpu = (used.rusage.utime + used.rusage.stime).as_secs_f64();
        Ok(Sample { wall: outcome?, cpu, peak_kilobytes: used.rusage.maxrss / 1024 })
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
        let row = |timed: &Timed| Row {
            depth: 0,
            label: timed.name.to_owned(),
            cells: vec![
                format!("{:.2} s", timed.seconds),
                format!("{:.2} s", timed.cpu_seconds),
                format!("{:.2}x", timed.times_postgresql),
            ],
            share: None,
        };
        let rows: Vec<Row> = result.contenders.iter().map(row).collect();
        table(look, &title, ("restore", &["time", "processor", "speed"]), &rows) + "\n"
    };
    results.iter().map(table_of).collect()
}
