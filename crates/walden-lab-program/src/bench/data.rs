//! `walden bench data`: compares the tables of the WAL with pg_walinspect and DuckDB.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use walden_lab::{Cluster, ClusterBuilder, Progress, Wanted, median};
use walden_report::table::{Row, table};
use walden_report::units;

use super::measure;
use crate::terminal;
use crate::terminal::Format;

/// Time queries over the same WAL: walden sql, pg_walinspect in the server, DuckDB over exported Parquet; and
/// rows beside replay
#[derive(Args, Debug)]
#[command(after_help = "\
A server is started, writes record-dense WAL (single rows into a table with two indexes), and stays there: pg_walinspect reads its \
own pg_wal, walden the same files. All queries are asked for records and bytes by resource manager and kind, and must agree. Programs run in \
turns; printed are medians, of walden whole processes. walden rows prints each row of the table, walden redo replay only replays. DuckDB is used if python3 has its module.")]
pub struct DataArgs {
    /// Rows that the server inserts; each writes some 250 bytes of WAL
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    rows: u64,

    /// The PostgreSQL version, of 15 or later and with pg_walinspect [default: an installed one]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Runs of each program
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize, Debug)]
struct Compared {
    postgresql: String,
    file_bytes: u64,
    records: u64,
    parquet_bytes: u64,
    programs: Vec<Timed>,
}

#[derive(Serialize, Debug)]
struct Timed {
    program: String,
    /// Median wall time.
    wall_seconds: f64,
    /// Median processor time; `None` for queries that run in the server.
    cpu_seconds: Option<f64>,
    megabytes_per_second: f64,
    peak_kilobytes: Option<u64>,
}

/// One run of a program.
struct Run {
    wall_seconds: f64,
    /// `None` for a query in the server, like the memory.
    cpu_seconds: Option<f64>,
    peak_kilobytes: Option<u64>,
}

/// Columns of an answer: resource manager, kind, records and bytes, in this order.
type Answer = Vec<String>;

/// Runs the command.
pub fn run(args: &DataArgs) -> Result<ExitCode> {
    let compared = compare(args)?;
    terminal::show(args.format, || &compared, || tables(&compared))?;
    Ok(ExitCode::SUCCESS)
}

fn compare(args: &DataArgs) -> Result<Compared> {
    let installation = walden_lab::find_or_install(args.pg.unwrap_or(Wanted::Any))?;
    let postgresql = installation.version.to_string();
    let cluster = ClusterBuilder::new(installation)
        .setting("wal_keep_size", "100GB")
        .setting("max_wal_size", "100GB")
        .setting("autovacuum", "off")
        .start()?;
    let (from, to) = write_wal(&cluster, args.rows)?;
    let wal = cluster.data_dir().join("pg_wal");
    let folder = tempfile::tempdir()?;
    let parquet = folder.path().join("parquet");
    let names = folder.path().join("names.json");
    let mut save = walden(&["explain", "--names", &cluster.dsn("postgres"), "--save-names"])?;
    output_of(save.arg(&names))?;
    let bench =
        Bench { cluster: &cluster, wal: &wal, parquet: &parquet, names: &names, from: &from, to: &to };

    let expected = bench.pg_walinspect()?;
    for (program, answer) in [("walden sql", bench.walden_sql()?), ("DuckDB", bench.duckdb_answer()?)] {
        ensure!(
            answer.is_empty() || answer == expected,
            "cannot compare times: {program} says {answer:?}, pg_walinspect {expected:?}"
        );
    }
    let records = expected.iter().filter_map(|row| row.split('|').nth(2)?.parse::<u64>().ok()).sum();
    let file_bytes = to.parse::<walden_format::lsn::Lsn>()?.0 - from.parse::<walden_format::lsn::Lsn>()?.0;
    let programs = bench.time(args.runs, file_bytes)?;
    Ok(Compared { postgresql, file_bytes, records, parquet_bytes: folder_bytes(&parquet)?, programs })
}

/// Writes WAL with many small records. Returns its range.
fn write_wal(cluster: &Cluster, rows: u64) -> Result<(String, String)> {
    let progress = Progress::new("writing WAL");
    let mut client = cluster.client("postgres")?;
    client.batch_execute(
        "CREATE EXTENSION pg_walinspect;
         CREATE TABLE dense (id bigint PRIMARY KEY, amount int, other bigint); CREATE INDEX ON dense (other); CHECKPOINT",
    )?;
    let position = |client: &mut postgres::Client| -> Result<String> {
        Ok(client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[])?.get(0))
    };
    let from = position(&mut client)?;
    let insert =
        format!("INSERT INTO dense SELECT n, n % 1000, n * 7 % 1000003 FROM generate_series(1, {rows}) n");
    client.batch_execute(&insert)?;
    client.batch_execute("CHECKPOINT")?;
    let to = position(&mut client)?;
    progress.finish();
    Ok((from, to))
}

struct Bench<'a> {
    cluster: &'a Cluster,
    wal: &'a Path,
    parquet: &'a Path,
    /// Names of the server's relations, with columns.
    names: &'a Path,
    from: &'a str,
    to: &'a str,
}

const COLUMNS: &str = "resource_manager, record_type, count(*), sum(record_length)";

impl Bench<'_> {
    fn pg_walinspect(&self) -> Result<Answer> {
        let query = format!(
            "SELECT concat_ws('|', {COLUMNS}) FROM pg_get_wal_records_info('{}', '{}')
             GROUP BY resource_manager, record_type ORDER BY 1",
            self.from, self.to
        );
        let rows = self.cluster.client("postgres")?.query(&query, &[])?;
        let mut answer: Answer = rows.iter().map(|row| row.get(0)).collect();
        answer.sort();
        Ok(answer)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = walden(arguments)?;
        command.args(["--from", self.from, "--to", self.to]).arg(self.wal);
        Ok(command)
    }

    fn rows(&self) -> Result<Command> {
        let mut command = walden(&["rows", "--relation", "dense", "--format", "csv", "--names"])?;
        command.arg(self.names).arg(self.wal);
        Ok(command)
    }

    fn replay(&self) -> Result<Command> {
        let mut command = walden(&["redo", "replay"])?;
        command.arg(self.wal);
        Ok(command)
    }

    fn sql(&self) -> Result<Command> {
        // The range ends where the server's last record ends; walden's bounds apply to the start of records.
        let query = format!(
            "SELECT concat_ws('|', {COLUMNS}) AS text FROM records WHERE end_lsn <= lsn('{}') GROUP BY resource_manager, record_type",
            self.to
        );
        self.command(&["sql", "--format", "csv", &query])
    }

    fn walden_sql(&self) -> Result<Answer> {
        lines(&mut self.sql()?, 1)
    }

    fn export(&self, tables: &str) -> Result<Command> {
        let mut command = self.command(&["export", "--tables", tables, "--segments", "8"])?;
        command.arg("-o").arg(self.parquet);
        Ok(command)
    }

    /// Returns the query by DuckDB over the exported files; `None` if python3 does not have DuckDB.
    fn duckdb(&self) -> Option<Command> {
        let has = Command::new("python3").args(["-c", "import duckdb"]).output().ok()?.status.success();
        let to = self.to.parse::<walden_format::lsn::Lsn>().ok()?.0;
        let script = format!(
            "import duckdb\nfor row in duckdb.sql(\"SELECT concat_ws('|', {COLUMNS}) FROM '{}/records/**/*.parquet' \
             WHERE end_lsn <= {to} GROUP BY resource_manager, record_type\").fetchall(): print(row[0])",
            self.parquet.display()
        );
        let mut command = Command::new("python3");
        command.args(["-c", &script]);
        has.then_some(command)
    }

    fn duckdb_answer(&self) -> Result<Answer> {
        // Each timed export writes the files again; this one is for the answer.
        output_of(&mut self.export("records")?)?;
        self.duckdb().map_or(Ok(Vec::new()), |mut command| lines(&mut command, 0))
    }

    /// Returns the programs and their commands; `None` for a query in the server.
    fn contenders(&self) -> Result<Vec<(String, Option<Command>)>> {
        let cores = terminal::cores();
        let with = |mut command: Command, threads: usize| {
            command.args(["--threads", &threads.to_string()]);
            Some(command)
        };
        let explain = self.command(&["explain"])?;
        let mut contenders = vec![
            ("pg_walinspect".to_owned(), None),
            ("walden explain, 1 thread".to_owned(), with(explain, 1)),
            ("walden sql, 1 thread".to_owned(), with(self.sql()?, 1)),
            (format!("walden sql, {cores} threads"), with(self.sql()?, cores)),
            ("walden export records, 1 thread".to_owned(), with(self.export("records")?, 1)),
            (format!("walden export records, {cores} threads"), with(self.export("records")?, cores)),
            ("walden redo replay, 1 thread".to_owned(), with(self.replay()?, 1)),
            ("walden rows, 1 thread".to_owned(), with(self.rows()?, 1)),
        ];
        let duckdb = self.duckdb();
        contenders
            .extend(duckdb.map(|command| ("DuckDB over the exported Parquet".to_owned(), Some(command))));
        Ok(contenders)
    }

    fn run_one(&self, program: &str, command: Option<&mut Command>) -> Result<Run> {
        if program.starts_with("walden export") && self.parquet.exists() {
            std::fs::remove_dir_all(self.parquet)?;
        }
        if let Some(command) = command {
            let sample = measure(command)?;
            return Ok(Run {
                wall_seconds: sample.wall,
                cpu_seconds: Some(sample.cpu),
                peak_kilobytes: Some(sample.peak_kilobytes),
            });
        }
        let begin = Instant::now();
        self.pg_walinspect()?;
        Ok(Run { wall_seconds: begin.elapsed().as_secs_f64(), cpu_seconds: None, peak_kilobytes: None })
    }

    fn time(&self, runs: u8, file_bytes: u64) -> Result<Vec<Timed>> {
        let mut contenders = self.contenders()?;
        let mut samples: Vec<Vec<Run>> = contenders.iter().map(|_| Vec::new()).collect();
        let progress = Progress::new("running in turns");
        for round in 0..=runs {
            for ((program, command), samples) in contenders.iter_mut().zip(&mut samples) {
                let sample = self.run_one(program, command.as_mut())?;
                // The first round only warms the cache.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        progress.finish();
        let timed = |(program, samples): (String, Vec<Run>)| {
            let wall = median(samples.iter().map(|sample| sample.wall_seconds));
            let has_cpu = samples.iter().all(|sample| sample.cpu_seconds.is_some());
            Timed {
                program,
                wall_seconds: wall,
                cpu_seconds: has_cpu.then(|| median(samples.iter().filter_map(|sample| sample.cpu_seconds))),
                megabytes_per_second: file_bytes as f64 / 1e6 / wall,
                peak_kilobytes: samples.iter().filter_map(|sample| sample.peak_kilobytes).max(),
            }
        };
        Ok(contenders.into_iter().map(|(program, _)| program).zip(samples).map(timed).collect())
    }
}

fn walden(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(crate::programs::path_of("walden")?);
    command.args(arguments);
    Ok(command)
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot run {command:?}: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn lines(command: &mut Command, skipped: usize) -> Result<Answer> {
    let mut answer: Answer = output_of(command)?.lines().skip(skipped).map(str::to_owned).collect();
    answer.sort();
    Ok(answer)
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes +=
            if entry.file_type()?.is_dir() { folder_bytes(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

fn tables(result: &Compared) -> String {
    let title = format!(
        "PostgreSQL {}: {} in {} records; as Parquet {}",
        result.postgresql,
        units::bytes(result.file_bytes),
        units::count(result.records),
        units::bytes(result.parquet_bytes)
    );
    let row = |timed: &Timed| Row {
        depth: 0,
        label: timed.program.clone(),
        cells: vec![
            format!("{:.0} ms", timed.wall_seconds * 1e3),
            timed
                .cpu_seconds
                .map_or_else(|| "in the server".to_owned(), |cpu| format!("{:.0} ms", cpu * 1e3)),
            format!("{:.0} MB/s", timed.megabytes_per_second),
            timed.peak_kilobytes.map_or_else(String::new, |peak| format!("{:.0} MB", peak as f64 * 1.024e-3)),
        ],
        share: None,
    };
    let rows: Vec<Row> = result.programs.iter().map(row).collect();
    table(terminal::look(), &title, ("program", &["wall", "CPU", "WAL", "peak"]), &rows) + "\n"
}
