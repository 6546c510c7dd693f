//! `walden demo`: starts a server, runs a short workload, and explains its WAL.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use walden_explain::checkpoints::CheckpointSettings;
use walden_explain::document::{Context, Document};
use walden_explain::{Explanation, Request};
use walden_format::lsn::Lsn;
use walden_lab::{Cluster, ClusterBuilder, Progress, Wanted, find_or_install, tools, waldump};
use walden_source::inventory::Inventory;
use walden_source::names::Names;

use crate::explain::Format;
use crate::{FOUND, judge, terminal};

/// Start a PostgreSQL server, run a workload, explain its WAL and check the figures, in about a minute
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// The PostgreSQL version, downloaded if it is not installed [default: an installed one, else 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Seconds of pgbench
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,

    /// How to print the explanation
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

const DATABASE: &str = "shop";

/// Settings under which the WAL shows several effects, such as a checkpoint every few seconds.
const SETTINGS: [(&str, &str); 7] = [
    ("max_wal_size", "32MB"),
    ("checkpoint_timeout", "30s"),
    ("checkpoint_completion_target", "0.5"),
    ("synchronous_commit", "off"),
    ("fsync", "off"),
    ("autovacuum_naptime", "5s"),
    ("max_connections", "20"),
];

/// Statements typical of real databases: a description and the SQL.
const STATEMENTS: &[(&str, &str)] = &[
    (
        "an orders table, filled, with three indexes",
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, state text NOT NULL, total numeric(10,2),
                              changed timestamptz NOT NULL DEFAULT now(), note text);
         INSERT INTO orders SELECT i, (i * 7919) % 5000, 'new', (i % 10000) / 7.0, now(), md5(i::text) || md5((i * 3)::text)
           FROM generate_series(1, 40000) i;
         CREATE INDEX orders_changed ON orders (changed);
         CREATE INDEX orders_note ON orders (note)",
    ),
    (
        "updates of an indexed column, which cannot be HOT",
        "UPDATE orders SET state = 'paid', changed = clock_timestamp() WHERE id % 3 = 0",
    ),
    (
        "a counter that one transaction updates again and again",
        "CREATE TABLE counters (name text PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO counters SELECT 'shop ' || i, 0 FROM generate_series(1, 20) i;
         DO $$ BEGIN FOR i IN 1..2500 LOOP UPDATE counters SET n = n + 1; END LOOP; END $$",
    ),
    (
        "an import that is rolled back",
        "BEGIN;
         INSERT INTO orders SELECT i, 1, 'import', 1, now(), md5(i::text) FROM generate_series(100001, 115000) i;
         ROLLBACK",
    ),
];

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    let installation = find_or_install(args.pg.unwrap_or(Wanted::Any))?;
    let pgbench = tools().pgbench()?;
    say(args, &format!("PostgreSQL {} on a Unix socket in a temporary folder", installation.version))?;
    let progress = Progress::new("starting the server");
    let mut builder = ClusterBuilder::new(installation);
    for (name, value) in SETTINGS {
        builder = builder.setting(name, value);
    }
    let cluster = builder.setting("wal_keep_size", "8GB").start()?;
    let range = work(args, &cluster, &pgbench, &progress)?;

    progress.phase("reading the names and the WAL of the running server");
    let mut names = Names::from_server(&cluster.dsn(DATABASE))?;
    let explanation = explain(&cluster, range)?;
    names.set_version(explanation.version);
    walden_explain::rewrites::learn(&explanation, &mut names);
    progress.finish();

    let checkpoint_settings = CheckpointSettings::from_settings(&names.settings, explanation.version);
    let top = (args.format == Format::Table).then_some(6);
    let document = Document::new(&explanation, &Context { names: &names, checkpoint_settings, top });
    crate::explain::print(&document, args.format)?;
    let agreed = check(args, &cluster, &explanation, range)?;
    if args.format == Format::Table {
        next_steps()?;
    }
    Ok(if agreed { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Runs the workload. Returns the LSNs of its start and end.
fn work(
    args: &DemoArgs,
    cluster: &Cluster,
    pgbench: &std::path::Path,
    progress: &Progress,
) -> Result<(Lsn, Lsn)> {
    cluster.client("postgres")?.batch_execute(&format!("CREATE DATABASE {DATABASE}"))?;
    let bench = |arguments: &[&str]| {
        let output = cluster.client_command(pgbench, DATABASE).args(arguments).output();
        let output = output.with_context(|| format!("cannot run {}", pgbench.display()))?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot run the workload: pgbench failed: {}", error.trim());
        Ok(())
    };
    progress.phase("filling pgbench's tables");
    bench(&["--initialize", "--quiet", "--scale", "3"])?;
    let mut client = cluster.client(DATABASE)?;
    client.batch_execute("CHECKPOINT; SELECT pg_switch_wal(); CHECKPOINT")?;
    let start = insert_lsn(&mut client)?;

    let seconds = args.seconds.to_string();
    progress.phase(&format!("{seconds} s of pgbench with checkpoints every few seconds (max_wal_size=32MB)"));
    bench(&["--client", "4", "--jobs", "2", "--no-vacuum", "--random-seed", "42", "--time", &seconds])?;
    for (what, sql) in STATEMENTS {
        progress.phase(what);
        client.batch_execute(sql).with_context(|| format!("cannot run the statements for {what}"))?;
    }
    progress.phase("VACUUM, and an idle server that switches segments");
    client.batch_execute("VACUUM pgbench_accounts")?;
    for _ in 0..2 {
        client.batch_execute("SELECT txid_current(); SELECT pg_switch_wal()")?;
    }
    client.batch_execute("INSERT INTO counters VALUES ('last', 0)")?;
    let end = insert_lsn(&mut client)?;
    // What was inserted gets into the files.
    client.batch_execute("CHECKPOINT")?;
    Ok((start, end))
}

fn insert_lsn(client: &mut postgres::Client) -> Result<Lsn> {
    let text: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[])?.get(0);
    Ok(text.parse()?)
}

fn explain(cluster: &Cluster, (from, to): (Lsn, Lsn)) -> Result<Explanation> {
    let inventory = Inventory::of(&[cluster.data_dir().join("pg_wal")])?;
    let request = Request { top: 6, ..Request::sums(from, to, terminal::cores()) };
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {})?;
    if let Some(damage) = &explanation.damage {
        anyhow::bail!("{damage}");
    }
    Ok(explanation)
}

/// Compares the figures with pg_waldump's, if there is one of this version.
fn check(args: &DemoArgs, cluster: &Cluster, explanation: &Explanation, range: (Lsn, Lsn)) -> Result<bool> {
    let Some(pg_waldump) = tools().pg_waldump(cluster.major()) else {
        say(
            args,
            &format!(
                "\nNo pg_waldump of PostgreSQL {} is at hand to check the figures against.",
                cluster.major()
            ),
        )?;
        return Ok(true);
    };
    let wal = cluster.data_dir().join("pg_wal");
    let arguments = waldump::range_arguments(&wal, &range.0.to_string(), &range.1.to_string());
    let verdict = judge::compare(explanation, &waldump::stats(&pg_waldump, &arguments)?);
    let sum = explanation.buckets.total();
    say(args, "\nChecked")?;
    say(args, &format!("  the buckets add up to the {sum} bytes of the range"))?;
    let pg_waldump = format!("pg_waldump {}", cluster.installation().version);
    say(
        args,
        &format!(
            "  {} records of {} kinds: counts and bytes equal those of {pg_waldump}",
            verdict.records, verdict.agreed
        ),
    )?;
    for difference in &verdict.differences {
        say(args, &format!("  DIFFERENT: {difference}"))?;
    }
    Ok(verdict.differences.is_empty())
}

fn next_steps() -> Result<()> {
    let look = terminal::look();
    let text = format!(
        "\n{}\n  walden explain /path/to/pg_wal                    your own server's WAL
  walden explain --names 'host=/run/postgresql' DIR  with the names of its tables
  walden explain --by relation,record --top 30 DIR   which records each table writes
  walden explain --by time --every 1m DIR            minute by minute
  walden explain --help                              everything else
  walden lab list                                    workloads to try settings with\n",
        look.heading("Try next")
    );
    terminal::print(&text)
}

/// Prints text: to standard error if standard output is machine-readable.
fn say(args: &DemoArgs, text: &str) -> Result<()> {
    match args.format {
        Format::Table => terminal::print(&format!("{text}\n"))?,
        Format::Json | Format::Csv => eprintln!("{text}"),
    }
    Ok(())
}
