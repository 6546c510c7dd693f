//! `walden bench nightly`: compares ways to get a new full backup after each night's work.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use walden_lab::{Cluster, ClusterBuilder, Progress, Wanted, find_or_install, median};
use walden_report::table::{Row, table};
use walden_report::units;
use walden_server::account;

use super::usage::Usage;
use crate::terminal::{self, Format};

/// Compare a nightly walden backup advance with pg_basebackup, full and incremental
#[derive(Args, Debug)]
#[command(after_help = "\
Each night, pgbench changes the database, and each contender makes a full backup from which recovery can start. walden backup advance \
replays the night's WAL from a folder of archived segments into its previous backup (in place). pg_basebackup copies the database. From \
PostgreSQL 17 on, pg_basebackup --incremental copies the changed blocks, and pg_combinebackup makes a full backup of these and the previous \
one.

Bytes are those of system calls on files, also of the page cache, not on connections. The server's part is that of all its processes, with the checkpoint that \
pg_basebackup requests. walden synchronizes its files; the others run with --no-sync.")]
pub struct NightlyArgs {
    /// The PostgreSQL version, 14 or later, with pg_basebackup [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Scale factor of pgbench: 15 MB each
    #[arg(long, value_name = "N", default_value_t = 50)]
    scale: u32,

    /// Transactions of a night
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    transactions: u32,

    /// Nights, of which the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    nights: u8,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize, Debug)]
struct Nightly {
    postgresql: String,
    backup_bytes: u64,
    /// Median WAL of a night.
    wal_bytes: f64,
    contenders: Vec<Timed>,
}

/// Medians of the nights.
#[derive(Serialize, Debug)]
struct Timed {
    name: &'static str,
    /// Wall time up to a full backup.
    seconds: f64,
    cpu_seconds: f64,
    read_bytes: f64,
    written_bytes: f64,
    server_cpu_seconds: f64,
    server_read_bytes: f64,
    server_written_bytes: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    Advance,
    Full,
    Incremental,
}

const CONTENDERS: [(Contender, &str); 3] = [
    (Contender::Advance, "walden backup advance"),
    (Contender::Full, "pg_basebackup"),
    (Contender::Incremental, "pg_basebackup --incremental, pg_combinebackup"),
];

/// Longest time for the archiver to archive a night's WAL.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The measurements of one backup.
struct Measured {
    wall: f64,
    client: Usage,
    server: Usage,
}

/// Runs the command.
pub fn run(args: &NightlyArgs) -> Result<ExitCode> {
    let result = compare(args)?;
    terminal::show(args.format, || &result, || text(&result))?;
    Ok(ExitCode::SUCCESS)
}

fn compare(args: &NightlyArgs) -> Result<Nightly> {
    let installation = find_or_install(args.pg.unwrap_or(Wanted::Any))?;
    let has_incremental = installation.version.major >= 17;
    let program = |name: &str| {
        installation.program(name).with_context(|| {
            format!("cannot use {}: expected {name} in it, found none", installation.bin_dir.display())
        })
    };
    let pg_basebackup = program("pg_basebackup")?;
    let pg_combinebackup = has_incremental.then(|| program("pg_combinebackup")).transpose()?;
    let walden = crate::programs::path_of("walden")?;
    let mut builder = ClusterBuilder::new(installation.clone())
        .archive(true)
        .checksums(true)
        .setting("max_wal_senders", "4")
        .setting("wal_level", "replica")
        .setting("shared_buffers", "512MB");
    if has_incremental {
        builder = builder.setting("summarize_wal", "on");
    }
    let cluster = builder.start()?;
    let progress = Progress::new("creating the database");
    cluster.pgbench("postgres", &["-i", "-q", "-s", &args.scale.to_string()])?;
    let folder = cluster.make_folder("backups")?;
    let take = |to: &Path, options: &[String]| -> Result<()> {
        let dsn = cluster.dsn("postgres");
        let fixed = ["-d", &dsn, "-c", "fast", "-X", "none", "--no-sync", "-D", path(to)?];
        run_as_server(
            &pg_basebackup,
            &folder,
            fixed.iter().map(ToString::to_string).chain(options.iter().cloned()),
        )
    };
    let [advanced, mut combined] = ["advanced", "combined"].map(|name| folder.join(name));
    take(&advanced, &[])?;
    take(&combined, &[])?;
    let backup_bytes = size_of(&advanced)?;
    let mut nights: Vec<(Contender, &str, Vec<Measured>)> = CONTENDERS
        .into_iter()
        .filter(|(contender, _)| has_incremental || *contender != Contender::Incremental)
        .map(|(contender, name)| (contender, name, Vec::new()))
        .collect();
    let mut wal = Vec::new();
    for night in 1..=args.nights {
        progress.phase(&format!("night {night}"));
        let before = cluster.wal_written()?;
        let transactions = (args.transactions / 4).to_string();
        cluster.pgbench("postgres", &["-n", "-c", "4", "-j", "2", "-t", &transactions])?;
        cluster.client("postgres")?.batch_execute("CHECKPOINT; SELECT pg_switch_wal()")?;
        wal.push((cluster.wal_written()? - before) as f64);
        wait_until_archived(&cluster)?;
        for (contender, _, measured) in &mut nights {
            let archive = cluster.archive_dir();
            measured.push(measure(&cluster, || match contender {
                Contender::Advance => {
                    let arguments = ["backup", "advance", path(&advanced)?, "--wal", path(&archive)?];
                    expect_success(Command::new(&walden).args(arguments))
                }
                Contender::Full => take(&folder.join(format!("full{night}")), &[]),
                Contender::Incremental => {
                    let (increment, new) =
                        (folder.join(format!("increment{night}")), folder.join(format!("new{night}")));
                    let manifest = format!("--incremental={}/backup_manifest", combined.display());
                    take(&increment, &[manifest])?;
                    let Some(combine) = &pg_combinebackup else { return Ok(()) };
                    let arguments = [path(&combined)?, path(&increment)?, "-o", path(&new)?, "--no-sync"];
                    run_as_server(combine, &folder, arguments.iter().map(ToString::to_string))?;
                    combined = new;
                    Ok(())
                }
            })?);
        }
    }
    progress.finish();
    let timed = |(_, name, nights): &(Contender, &'static str, Vec<Measured>)| {
        let median_of = |value: fn(&Measured) -> f64| median(nights.iter().map(value));
        Timed {
            name,
            seconds: median_of(|it| it.wall),
            cpu_seconds: median_of(|it| it.client.cpu),
            read_bytes: median_of(|it| it.client.read as f64),
            written_bytes: median_of(|it| it.client.written as f64),
            server_cpu_seconds: median_of(|it| it.server.cpu),
            server_read_bytes: median_of(|it| it.server.read as f64),
            server_written_bytes: median_of(|it| it.server.written as f64),
        }
    };
    Ok(Nightly {
        postgresql: installation.version.to_string(),
        backup_bytes,
        wal_bytes: median(wal),
        contenders: nights.iter().map(timed).collect(),
    })
}

/// Measures a backup, and the server's work for it.
fn measure(cluster: &Cluster, back_up: impl FnOnce() -> Result<()>) -> Result<Measured> {
    let postmaster = cluster.pid().context("the server does not run")?;
    let (own, server) = (Usage::of_children()?, Usage::of_tree(postmaster)?);
    let started = Instant::now();
    back_up()?;
    let wall = started.elapsed().as_secs_f64();
    // The postmaster adds up its processes when they have ended.
    std::thread::sleep(Duration::from_millis(500));
    Ok(Measured { wall, client: Usage::of_children()? - own, server: Usage::of_tree(postmaster)? - server })
}

fn wait_until_archived(cluster: &Cluster) -> Result<()> {
    let ready = cluster.data_dir().join("pg_wal/archive_status");
    let started = Instant::now();
    loop {
        let names = std::fs::read_dir(&ready)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<std::io::Result<Vec<_>>>()?;
        if !names.iter().any(|name| name.as_encoded_bytes().ends_with(b".ready")) {
            return Ok(());
        }
        ensure!(started.elapsed() < TIMEOUT, "the archiver has not archived the WAL: {}", cluster.log_tail());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a program of PostgreSQL, which may refuse to run as root.
fn run_as_server(program: &Path, folder: &Path, arguments: impl Iterator<Item = String>) -> Result<()> {
    expect_success(account::command(program, folder)?.args(arguments))
}

fn expect_success(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn size_of(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let (entry, metadata) = entry.and_then(|entry| entry.metadata().map(|metadata| (entry, metadata)))?;
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("cannot use {}: its name is not UTF-8", path.display()))
}

fn text(result: &Nightly) -> String {
    let bytes = |bytes: f64| units::bytes(bytes as u64);
    let title = format!(
        "PostgreSQL {}: a backup of {}, {} of WAL a night",
        result.postgresql,
        units::bytes(result.backup_bytes),
        bytes(result.wal_bytes)
    );
    let row = |timed: &Timed| Row {
        depth: 0,
        label: timed.name.to_owned(),
        cells: vec![
            format!("{:.2} s", timed.seconds),
            format!("{:.2} s", timed.cpu_seconds),
            bytes(timed.read_bytes),
            bytes(timed.written_bytes),
            format!("{:.2} s", timed.server_cpu_seconds),
            bytes(timed.server_read_bytes),
            bytes(timed.server_written_bytes),
        ],
        share: None,
    };
    let rows: Vec<Row> = result.contenders.iter().map(row).collect();
    let columns = ["time", "processor", "read", "written", "server's", "read", "written"];
    table(terminal::look(), &title, ("backup", &columns), &rows)
}
