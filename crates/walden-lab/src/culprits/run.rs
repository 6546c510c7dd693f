//! Runs culprits on servers of their kind, and collects the findings for each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use postgres::Client;
use serde::{Deserialize, Serialize};
use walden_format::lsn::Lsn;

use super::{CULPRITS, Culprit, Expected, ServerKind, Step};
use crate::cluster::{Cluster, ClusterBuilder, insert_lsn};
use crate::install::{Installation, Wanted, find_or_install};
use crate::progress::Progress;
use crate::run::{keep_wal, settled_statistics};

/// Options of [`run_culprits`].
#[derive(Debug)]
pub struct CulpritOptions {
    /// Names of the culprits to run; all if empty.
    pub only: Vec<String>,
    /// The PostgreSQL to run; if `None`, the first one found.
    pub installation: Option<Installation>,
    /// The display of progress.
    pub progress: Progress,
}

/// The WAL of one culprit, while its server runs.
#[derive(Debug)]
pub struct Window {
    /// The folder of the server's segments.
    pub wal_dir: PathBuf,
    /// A connection string of the server.
    pub dsn: String,
    /// The start of the workload.
    pub from: Lsn,
    /// The end of the workload.
    pub to: Lsn,
    /// The folder to write the server's names to, if its WAL is kept.
    pub names_to: Option<PathBuf>,
}

/// A finding.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Observed {
    /// `cause` or `setting`.
    pub kind: String,
    /// The rule of the finding.
    pub rule: String,
    /// The sentence.
    pub text: String,
    /// Object or setting.
    pub points_at: String,
    /// The remedy.
    pub remedy: String,
    /// Share of the WAL, 0 to 1.
    pub share: f64,
    /// Bytes of WAL that it explains.
    pub bytes: u64,
    /// Bytes that the remedy would save, if known.
    pub saves_bytes: Option<u64>,
    /// By how much that may be wrong in either direction.
    pub saves_error_bytes: Option<u64>,
    /// Bytes that fewer checkpoints would save in addition, at most.
    #[serde(default)]
    pub saves_more_bytes: u64,
    /// Settings that the remedy would change, by name.
    #[serde(default)]
    pub try_settings: BTreeMap<String, String>,
}

/// A culprit with the findings in its WAL.
#[derive(Debug, Serialize)]
pub struct Judge {
    /// The culprit.
    pub name: &'static str,
    /// The work of its clients.
    pub about: &'static str,
    /// The server's version.
    pub version: String,
    /// Bytes of WAL.
    pub bytes: u64,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The finding that an expert would expect; null if there must be no cause.
    pub expected: Option<Expected>,
    /// The findings in their order.
    pub findings: Vec<Observed>,
    /// Whether the first finding of the expected kind is right.
    #[serde(rename = "first_correct")]
    pub is_first_right: bool,
    /// Rules of findings that are not true of the workload.
    pub false_rules: Vec<String>,
}

impl Judge {
    /// Whether the first finding is right and no finding is false.
    pub fn is_right(&self) -> bool {
        self.is_first_right && self.false_rules.is_empty()
    }

    fn new(culprit: &'static Culprit, version: &str, window: &Window, findings: Vec<Observed>) -> Judge {
        let is_first_right = match culprit.expected {
            None => findings.iter().all(|one| one.kind != "cause" || one.rule == DESCRIPTION),
            Some(expected) => {
                let first = findings.iter().find(|one| one.kind == expected.kind);
                first.is_some_and(|one| is_expected(one, &expected))
            }
        };
        let is_true = |one: &Observed| {
            one.rule == DESCRIPTION
                || culprit.also.contains(&one.rule.as_str())
                || culprit.expected.is_some_and(|expected| is_expected(one, &expected))
        };
        let mut false_rules: Vec<String> =
            findings.iter().filter(|one| !is_true(one)).map(|one| one.rule.clone()).collect();
        false_rules.dedup();
        Judge {
            name: culprit.name,
            about: culprit.about,
            version: version.to_owned(),
            bytes: window.to.bytes_since(window.from),
            seconds: 0.0,
            expected: culprit.expected,
            findings,
            is_first_right,
            false_rules,
        }
    }
}

/// The rule that describes the bytes of a table, whatever wrote them: true of any work.
const DESCRIPTION: &str = "main-table";

fn is_expected(one: &Observed, expected: &Expected) -> bool {
    one.rule == expected.rule
        && one.points_at.contains(expected.object)
        && one.remedy.contains(expected.remedy)
}

/// Settings of every culprit's server: no background activity, so that the culprit is the only cause.
const SETTINGS: &[(&str, &str)] = &[
    ("autovacuum", "off"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "4GB"),
    ("shared_buffers", "128MB"),
    ("synchronous_commit", "off"),
    ("max_connections", "20"),
    ("max_prepared_transactions", "5"),
];

/// The tables that each case has in addition to its own.
const BYSTANDERS: &str = "
CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL, what text NOT NULL);
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL, name text NOT NULL) WITH (fillfactor = 40);
INSERT INTO audit (at, what) SELECT now(), md5(i::text) FROM generate_series(1, 2000) i;
INSERT INTO stock SELECT i, 0, md5(i::text) FROM generate_series(1, 2000) i";

/// The work on these tables, before and after the culprit's: short transactions as in any application.
const BYSTANDERS_WORK: &str = "DO $$ BEGIN FOR i IN 1..60 LOOP
  INSERT INTO audit (at, what) VALUES (clock_timestamp(), md5(i::text));
  UPDATE stock SET n = n + i WHERE id = 1 + i * 31 % 2000;
  UPDATE stock SET n = n + i WHERE id = 1 + i * 37 % 2000; COMMIT; END LOOP; END $$";

/// Runs culprits, and calls `find` for the findings in the WAL of each while its server runs.
///
/// # Errors
/// A name is unknown, PostgreSQL cannot be obtained or started, a statement or `find` fails.
pub fn run_culprits(
    options: &CulpritOptions,
    find: &mut dyn FnMut(&Window) -> Result<Vec<Observed>>,
) -> Result<Vec<Judge>> {
    for name in &options.only {
        if !CULPRITS.iter().any(|culprit| culprit.name == name) {
            let known: Vec<_> = CULPRITS.iter().map(|culprit| culprit.name).collect();
            bail!("{name} is not among the culprits {}", known.join(", "));
        }
    }
    let installation = match &options.installation {
        Some(installation) => installation.clone(),
        None => find_or_install(Wanted::Any)?,
    };
    let wanted = |culprit: &Culprit| {
        let is_named = options.only.is_empty() || options.only.iter().any(|name| name == culprit.name);
        is_named && culprit.since <= installation.version.major
    };
    options.progress.counted("culprits", CULPRITS.iter().filter(|culprit| wanted(culprit)).count() as u64);
    let mut judged = Vec::new();
    for kind in ServerKind::ALL {
        let cases: Vec<_> =
            CULPRITS.iter().filter(|culprit| culprit.server == kind && wanted(culprit)).collect();
        if cases.is_empty() {
            continue;
        }
        let cluster = start(&installation, kind)?;
        for culprit in cases {
            let judge = run_culprit(culprit, &cluster, find);
            judged.push(judge.with_context(|| format!("the culprit {} failed", culprit.name))?);
            options.progress.advance(1);
        }
    }
    judged.sort_by_key(|judge| CULPRITS.iter().position(|culprit| culprit.name == judge.name));
    options.progress.finish();
    Ok(judged)
}

fn start(installation: &Installation, kind: ServerKind) -> Result<Cluster> {
    let mut builder = ClusterBuilder::new(installation.clone()).checksums(kind == ServerKind::Checksums);
    if let Some(megabytes) = kind.wal_segsize_mb() {
        builder = builder.wal_segsize_mb(megabytes);
    }
    builder = keep_wal(builder);
    for (name, value) in SETTINGS.iter().chain(kind.settings()) {
        builder = builder.setting(name, value);
    }
    builder.start()
}

fn run_culprit(
    culprit: &'static Culprit,
    cluster: &Cluster,
    find: &mut dyn FnMut(&Window) -> Result<Vec<Observed>>,
) -> Result<Judge> {
    // A separate database, so that names of relations and changes of the catalogs are not shared.
    let database = culprit.name;
    let mut client = cluster.client("postgres")?;
    client.batch_execute(&format!("CREATE DATABASE \"{database}\""))?;
    let mut client = cluster.client(database)?;
    client.batch_execute(BYSTANDERS)?;
    steps(culprit.setup, cluster, database, &mut client)?;
    client.batch_execute("VACUUM")?;
    client.batch_execute("CHECKPOINT")?;
    let clock = Instant::now();
    let from = insert_lsn(&mut client)?;
    client.batch_execute(BYSTANDERS_WORK)?;
    steps(culprit.run, cluster, database, &mut client)?;
    client.batch_execute(BYSTANDERS_WORK)?;
    let seconds = clock.elapsed().as_secs_f64();
    let to = insert_lsn(&mut client)?;
    // Flushes all WAL up to `to`: the end of a session does not write changes that it committed
    // asynchronously.
    client.batch_execute("SET synchronous_commit = on; CREATE TABLE flushed ()")?;
    drop(client);
    settled_statistics(&mut || cluster.client(database))?;
    let window = Window {
        wal_dir: cluster.data_dir().join("pg_wal"),
        dsn: cluster.dsn(database),
        from,
        to,
        names_to: None,
    };
    let findings = find(&window)?;
    Ok(Judge { seconds, ..Judge::new(culprit, cluster.version(), &window, findings) })
}

fn steps(steps: &[Step], cluster: &Cluster, database: &str, client: &mut Client) -> Result<()> {
    let mut open = Vec::new();
    for step in steps {
        match step {
            Step::In(other, sql) => {
                let mut session = cluster.client(other)?;
                session.batch_execute(sql).with_context(|| format!("the statement failed: {sql}"))?;
            }
            Step::With(other, sql) => {
                let sql = sql.replace("$dsn", &cluster.dsn(other).replace('\'', "''"));
                client.batch_execute(&sql).with_context(|| format!("the statement failed: {sql}"))?;
            }
            Step::Open(sql) => {
                let mut session = cluster.client(database)?;
                session.batch_execute(sql).with_context(|| format!("the statement failed: {sql}"))?;
                open.push(session);
            }
            Step::Sql(sql) => {
                client.batch_execute(sql).with_context(|| format!("the statement failed: {sql}"))?
            }
            Step::Rounds(count, statements) => rounds(*count, statements, client)?,
            Step::Sessions(count, sql) => sessions(*count, sql, cluster, database)?,
            Step::Pgbench(arguments) => drop(cluster.pgbench(database, arguments)?),
            Step::Pause(milliseconds) => thread::sleep(Duration::from_millis(*milliseconds)),
        }
    }
    Ok(())
}

fn rounds(count: u32, statements: &[&str], client: &mut Client) -> Result<()> {
    for round in 1..=count {
        for statement in statements {
            let sql = statement.replace("$round", &round.to_string());
            client.batch_execute(&sql).with_context(|| format!("the statement failed: {sql}"))?;
        }
    }
    Ok(())
}

fn sessions(count: u32, sql: &str, cluster: &Cluster, database: &str) -> Result<()> {
    thread::scope(|scope| {
        let session = |number: u32| {
            let sql = sql.replace("$session", &number.to_string());
            scope.spawn(move || -> Result<()> { Ok(cluster.client(database)?.batch_execute(&sql)?) })
        };
        let all: Vec<_> = (1..=count).map(session).collect();
        all.into_iter()
            .try_for_each(|one| one.join().map_err(|_| anyhow!("a session of the workload panicked"))?)
    })
}
