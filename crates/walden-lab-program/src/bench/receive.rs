//! `walden bench receive`: compares commits that wait for `walden receive` with commits that wait for
//! pg_receivewal.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use postgres::Client;
use serde::Serialize;
use wait4::Wait4;
use walden_lab::{Cluster, ClusterBuilder, Installation, Progress, Wanted, find_or_install, median};
use walden_report::table::{Row, table};
use walden_report::units;

use super::Background;
use crate::terminal::{self, Format};

/// Time commits and a bulk load with `walden receive` and with pg_receivewal as the synchronous standby
#[derive(Args, Debug)]
#[command(after_help = "\
One server, to which each receiver is connected in turn: pgbench with the clients given, each transaction waiting for the receiver; then \
a load of rows without waiting, timed until the receiver has made it durable. `none` is the server without a receiver. Without \
compression, pg_receivewal writes the log as it is; `walden receive` archives it checked and compressed meanwhile, and its processor time \
has that in it.")]
pub struct ReceiveArgs {
    /// The PostgreSQL version; it must have a pg_receivewal [default: an installed one]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Numbers of clients
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 8, 32])]
    clients: Vec<u32>,

    /// Seconds for each number of clients
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,

    /// Rounds, of which the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Megabytes of the load
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(i32).range(1..=1_000_000))]
    load: i32,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize, Debug)]
struct Received {
    receiver: String,
    /// Mean latency of a transaction, by number of clients.
    commits: Vec<Commits>,
    /// Bytes of WAL per second that a load wrote and the receiver flushed.
    load_bytes_per_second: f64,
    /// Processor time of the receiver per gigabyte of WAL, including the archiving in the meantime.
    cpu_seconds_per_gigabyte: f64,
    peak_kilobytes: u64,
}

#[derive(Serialize, Debug)]
struct Commits {
    clients: u32,
    latency_milliseconds: f64,
    transactions_per_second: f64,
    /// This receiver's latency divided by pg_receivewal's.
    times_pg_receivewal: f64,
}

/// The receiver of the WAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Receiver {
    None,
    PgReceivewal,
    PgReceivewalGzip,
    Walden,
}

const RECEIVERS: [(Receiver, &str); 4] = [
    (Receiver::None, "none"),
    (Receiver::PgReceivewal, "pg_receivewal --synchronous"),
    (Receiver::PgReceivewalGzip, "pg_receivewal --synchronous --compress=gzip"),
    (Receiver::Walden, "walden receive --synchronous"),
];

/// The results of one receiver in one round.
struct Round {
    /// By number of clients, as in the arguments.
    commits: Vec<PgbenchResult>,
    load_bytes_per_second: f64,
    cpu_seconds_per_gigabyte: f64,
    peak_kilobytes: u64,
}

/// The results that pgbench prints.
struct PgbenchResult {
    latency_milliseconds: f64,
    transactions_per_second: f64,
}

/// Maximum time for a receiver to flush the WAL that the server has written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the command.
pub fn run(args: &ReceiveArgs) -> Result<ExitCode> {
    let installation = find_or_install(args.pg.unwrap_or(Wanted::Any))?;
    let program = installation.program("pg_receivewal").with_context(|| {
        format!(
            "cannot find pg_receivewal of PostgreSQL {}: install its client programs",
            installation.version
        )
    })?;
    let mut rounds: Vec<Vec<Round>> = RECEIVERS.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        let progress = Progress::new(&format!("round {} of {}", round + 1, args.rounds));
        for ((receiver, _), rounds) in RECEIVERS.iter().zip(&mut rounds) {
            rounds.push(measure(args, &installation, &program, *receiver)?);
        }
        progress.finish();
    }
    let results = summarise(args, &rounds);
    terminal::show(args.format, || &results, || tables(&results, &installation))?;
    Ok(ExitCode::SUCCESS)
}

fn measure(
    args: &ReceiveArgs,
    installation: &Installation,
    program: &Path,
    receiver: Receiver,
) -> Result<Round> {
    let standby = if receiver == Receiver::None { "" } else { "bench" };
    let cluster = ClusterBuilder::new(installation.clone())
        .setting("synchronous_standby_names", standby)
        .setting("max_wal_size", "4GB")
        .setting("max_connections", "100")
        .start()?;
    let mut client = cluster.client("postgres")?;
    client.batch_execute("SET synchronous_commit = local; CREATE TABLE load (i int, fill text)")?;
    client.batch_execute("ALTER DATABASE postgres SET synchronous_commit = local")?;
    cluster.pgbench("postgres", &["-i", "-s", "10", "-q"])?;
    client.batch_execute("ALTER DATABASE postgres RESET synchronous_commit; CHECKPOINT")?;
    let before = cluster.wal_written()?;
    let process = start(&cluster, program, receiver)?;
    wait_until_flushed(&mut client, receiver)?;
    let mut commits = Vec::new();
    for clients in &args.clients {
        commits.push(run_pgbench(&cluster, *clients, args.seconds)?);
    }
    // Rows of about 1 kB, which the server does not compress.
    let rows = args.load * 1000;
    let (load_from, began) = (cluster.wal_written()?, Instant::now());
    let fill = "SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, $1) i";
    client.execute(&format!("INSERT INTO load {fill}"), &[&rows])?;
    wait_until_flushed(&mut client, receiver)?;
    let load_bytes_per_second = (cluster.wal_written()? - load_from) as f64 / began.elapsed().as_secs_f64();
    let gigabytes = (cluster.wal_written()? - before) as f64 / 1e9;
    let (cpu_seconds, peak_kilobytes) = match process {
        Some(process) => end(&process)?,
        None => (0.0, 0),
    };
    let cpu_seconds_per_gigabyte = cpu_seconds / gigabytes;
    Ok(Round { commits, load_bytes_per_second, cpu_seconds_per_gigabyte, peak_kilobytes })
}

/// Waits until the receiver, if there is one, has flushed all WAL of the server.
fn wait_until_flushed(client: &mut Client, receiver: Receiver) -> Result<()> {
    if receiver == Receiver::None {
        return Ok(());
    }
    let lsn: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[])?.get(0);
    let query = format!("SELECT coalesce(bool_or(flush_lsn >= '{lsn}'), false) FROM pg_stat_replication");
    let began = Instant::now();
    while !client.query_one(&query, &[])?.get::<_, bool>(0) {
        ensure!(
            began.elapsed() < FLUSH_TIMEOUT,
            "the receiver has not made the WAL durable up to {lsn} within {FLUSH_TIMEOUT:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Updates rows, in transactions that each wait for the receiver.
fn run_pgbench(cluster: &Cluster, clients: u32, seconds: u32) -> Result<PgbenchResult> {
    let (clients, seconds) = (clients.to_string(), seconds.to_string());
    let output = cluster.pgbench("postgres", &["-n", "-N", "-c", &clients, "-j", "2", "-T", &seconds])?;
    let number = |before: &str| -> Result<f64> {
        let line = output.lines().find_map(|line| line.trim().strip_prefix(before));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("cannot find \"{before}\" in what pgbench printed:\n{output}"))
    };
    Ok(PgbenchResult {
        latency_milliseconds: number("latency average = ")?,
        transactions_per_second: number("tps = ")?,
    })
}

fn start(cluster: &Cluster, program: &Path, receiver: Receiver) -> Result<Option<Background>> {
    let (to, log) = (cluster.dir().join("received"), File::create(cluster.dir().join("receiver.log"))?);
    fs::create_dir(&to)?;
    let dsn = format!("{} application_name=bench", cluster.dsn("postgres"));
    let mut command = match receiver {
        Receiver::None => return Ok(None),
        Receiver::PgReceivewal | Receiver::PgReceivewalGzip => {
            let mut command = Command::new(program);
            command.args(["--synchronous", "--dbname", &dsn, "--directory"]).arg(&to);
            if receiver == Receiver::PgReceivewalGzip {
                command.arg("--compress=gzip");
            }
            command
        }
        Receiver::Walden => {
            let archive = walden_archive::Archive::new(Box::new(walden_archive::store::Folder::new(
                to.join("archive"),
            )));
            archive.create()?;
            let mut command = Command::new(crate::programs::path_of("walden")?);
            command.args(["receive", "--synchronous", "--dsn", &dsn, "--repo"]).arg(to.join("archive"));
            command.arg("--spool").arg(to.join("spool"));
            command
        }
    };
    Background::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log)).map(Some)
}

/// Ends a receiver. Returns its processor time in seconds, and its memory in units of 1024 bytes.
fn end(process: &Background) -> Result<(f64, u64)> {
    let mut child = process.take().context("the receiver was ended before")?;
    if child.try_wait()?.is_some() {
        bail!("the receiver has ended by itself");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    let used = child.wait4()?;
    let cpu = (used.rusage.utime + used.rusage.stime).as_secs_f64();
    Ok((cpu, used.rusage.maxrss / 1024))
}

fn summarise(args: &ReceiveArgs, rounds: &[Vec<Round>]) -> Vec<Received> {
    let latency = |rounds: &[Round], at: usize| {
        median(rounds.iter().map(|round| round.commits[at].latency_milliseconds))
    };
    let pg_receivewal = RECEIVERS
        .iter()
        .zip(rounds)
        .find(|((receiver, _), _)| *receiver == Receiver::PgReceivewal)
        .map(|(_, rounds)| rounds.as_slice())
        .unwrap_or_default();
    let one = |((_, name), own): (&(Receiver, &str), &Vec<Round>)| Received {
        receiver: (*name).to_owned(),
        commits: (0..args.clients.len())
            .map(|at| Commits {
                clients: args.clients[at],
                latency_milliseconds: latency(own, at),
                transactions_per_second: median(
                    own.iter().map(|round| round.commits[at].transactions_per_second),
                ),
                times_pg_receivewal: latency(own, at) / latency(pg_receivewal, at),
            })
            .collect(),
        load_bytes_per_second: median(own.iter().map(|round| round.load_bytes_per_second)),
        cpu_seconds_per_gigabyte: median(own.iter().map(|round| round.cpu_seconds_per_gigabyte)),
        peak_kilobytes: own.iter().map(|round| round.peak_kilobytes).max().unwrap_or(0),
    };
    RECEIVERS.iter().zip(rounds).map(one).collect()
}

fn tables(results: &[Received], installation: &Installation) -> String {
    let clients: Vec<u32> = results
        .iter()
        .flat_map(|one| &one.commits)
        .map(|one| one.clients)
        .take(results[0].commits.len())
        .collect();
    let head: Vec<String> = clients
        .iter()
        .flat_map(|clients| [format!("{clients} clients"), "ratio".to_owned()])
        .chain(["load".to_owned(), "CPU per GB".to_owned(), "peak".to_owned()])
        .collect();
    let rows: Vec<Row> = results
        .iter()
        .map(|one| Row {
            depth: 0,
            label: one.receiver.clone(),
            cells: one
                .commits
                .iter()
                .flat_map(|commits| {
                    [
                        format!("{:.2} ms", commits.latency_milliseconds),
                        format!("{:.2}", commits.times_pg_receivewal),
                    ]
                })
                .chain([
                    format!("{}/s", units::bytes(one.load_bytes_per_second as u64)),
                    format!("{:.1} s", one.cpu_seconds_per_gigabyte),
                    units::bytes(one.peak_kilobytes * 1024),
                ])
                .collect(),
            share: None,
        })
        .collect();
    let title =
        format!("Commits that wait for a receiver, PostgreSQL {}: mean latency", installation.version);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    table(terminal::look(), &title, ("receiver", &head), &rows)
}
