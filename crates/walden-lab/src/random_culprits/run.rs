//! Runs seeds, each on a server of its own.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use postgres::Client;
use walden_server::signals::interrupted;

use super::kinds::{self, Case, Kind, Remedy, healthy};
use super::plan::{Plan, kind_names};
use super::schema::Maker;
use super::verdict::{Side, Verdict, remedied};
use crate::cluster::{Cluster, ClusterBuilder, StopMode, insert_lsn};
use crate::culprits::{Observed, Window};
use crate::install::Installation;
use crate::progress::Progress;
use crate::run::{keep_wal, settled_statistics};

/// Options of [`run_seeds`].
#[derive(Debug)]
pub struct SeedOptions {
    /// The seeds.
    pub seeds: RangeInclusive<u64>,
    /// Kinds of culprits to select from; all if empty.
    pub only: Vec<String>,
    /// The servers to select from.
    pub installations: Vec<Installation>,
    /// The folder of the results, one file per seed. Seeds that have one there are not run again.
    pub output: PathBuf,
    /// Runs all seeds again.
    pub force: bool,
    /// Keeps the WAL of the runs with the culprit, in `seed-N/wal`.
    pub keeps_wal: bool,
    /// Seeds that run at a time.
    pub jobs: usize,
    /// The display of progress.
    pub progress: Progress,
}

/// Settings of each server; settings of the seed and of the culprit take precedence.
const SETTINGS: &[(&str, &str)] = &[
    ("checkpoint_timeout", "1h"),
    ("max_connections", "24"),
    ("max_prepared_transactions", "5"),
    ("max_logical_replication_workers", "4"),
    ("statement_timeout", "2min"),
];

/// Returns the findings in the WAL of a server, which runs meanwhile.
pub type Find<'a> = &'a (dyn Fn(&Window) -> Result<Vec<Observed>> + Sync);

/// Runs seeds, and returns their verdicts in the order of the seeds.
///
/// # Errors
/// A name is unknown, no version is suitable, or a server, a statement or `find` fails.
pub fn run_seeds(options: &SeedOptions, find: Find<'_>) -> Result<Vec<Verdict>> {
    for name in &options.only {
        if !kind_names().any(|known| known == name) {
            bail!("{name} is not among the culprits {}", kind_names().collect::<Vec<_>>().join(", "));
        }
    }
    fs::create_dir_all(&options.output)
        .with_context(|| format!("cannot create the folder {}", options.output.display()))?;
    let mut verdicts = for_each_seed(&options.seeds, options.jobs, &options.progress, &|seed| {
        run_seed(options, seed, find)
    })?;
    verdicts.sort_by_key(|verdict: &Verdict| verdict.plan.seed);
    Ok(verdicts)
}

/// Calls `run` for each seed, `jobs` at a time, and returns the results in the order in which they end.
///
/// # Errors
/// The first error of `run`, after the other seeds.
pub(crate) fn for_each_seed<T: Send>(
    seeds: &RangeInclusive<u64>,
    jobs: usize,
    progress: &Progress,
    run: &(dyn Fn(u64) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    progress.counted("seeds", seeds.end().saturating_sub(*seeds.start()) + 1);
    let next = AtomicU64::new(*seeds.start());
    let (results, failure) = (Mutex::new(Vec::new()), OnceLock::new());
    let take = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return Ok(());
            }
            match run(seed).with_context(|| format!("seed {seed} failed")) {
                Ok(result) => results.lock().map(|mut all| all.push(result)).unwrap_or_default(),
                // The other seeds run nevertheless; the first error is returned in the end.
                Err(error) if interrupted() => return Err(error),
                Err(error) => _ = failure.set(error),
            }
            progress.advance(1);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(take)).collect();
        threads
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow!("a thread of the seeds panicked"))?)
            .collect::<Result<Vec<()>>>()
    })?;
    progress.finish();
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(results.into_inner().unwrap_or_default()),
    }
}

fn run_seed(options: &SeedOptions, seed: u64, find: Find<'_>) -> Result<Verdict> {
    let versions: Vec<_> =
        options.installations.iter().map(|one| (one.version.major, one.version.to_string())).collect();
    let (plan, kind, version) = Plan::new(seed, &options.only, &versions).context(
        "no installed version of PostgreSQL has this culprit; `walden lab install` obtains others",
    )?;
    let path = options.output.join(format!("seed-{seed}.json"));
    if !options.force
        && let Ok(text) = fs::read_to_string(&path)
        && let Ok(verdict) = serde_json::from_str::<Verdict>(&text)
        && verdict.plan == plan
    {
        // Judged again, as the rules for that may have changed since.
        let Work { case, background, .. } = describe(&plan, kind, false);
        let Verdict { culprit_run, remedy_run, .. } = verdict;
        return Ok(Verdict::new(plan, kind, &case, &background.objects, culprit_run, remedy_run));
    }
    let installation = &options.installations[version];
    let kept = options.keeps_wal.then(|| options.output.join(format!("seed-{seed}")));
    let verdict = judge_seed(plan, kind, installation, kept.as_deref(), find)
        .with_context(|| format!("the culprit {} on PostgreSQL {}", kind.name, installation.version))?;
    let text = serde_json::to_string_pretty(&verdict)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(verdict)
}

/// A case with the background load of its seed.
pub(crate) struct Work {
    case: Case,
    background: Case,
    prepare: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Work {
    /// Returns the work of a seed with a culprit of this name.
    pub(crate) fn of(seed: u64, culprit: &str) -> Option<Work> {
        kinds::all().find(|kind| kind.name == culprit).map(|kind| Work::new(seed, kind, false))
    }

    fn new(seed: u64, kind: &Kind, is_fixed: bool) -> Work {
        let mut maker = Maker::new(seed, is_fixed);
        let prepare = maker.prepare();
        let background = healthy::background(&mut maker);
        let case = (kind.build)(&mut maker);
        let settings =
            case.settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Work { case, background, prepare, settings }
    }
}

fn describe(plan: &Plan, kind: &Kind, is_fixed: bool) -> Work {
    let mut work = Work::new(plan.seed, kind, is_fixed);
    work.settings.splice(0..0, plan.settings.iter().cloned());
    work
}

fn judge_seed(
    plan: Plan,
    kind: &Kind,
    installation: &Installation,
    kept: Option<&Path>,
    find: Find<'_>,
) -> Result<Verdict> {
    let work = describe(&plan, kind, false);
    let cluster = start(&plan, &work, installation)?;
    let database = format!("seed_{}", plan.seed);
    let culprit_run = run_work(&cluster, &database, &work, kept, find)?;
    let mut fixed = describe(&plan, kind, true);
    let mut tried: BTreeMap<String, String> = BTreeMap::new();
    if fixed.case.remedy == Remedy::TrySettings {
        let findings = remedied(kind, &work.case.objects, &culprit_run);
        tried = findings.into_iter().flat_map(|one| one.try_settings.clone()).collect();
        fixed.settings.extend(tried.clone());
    }
    let is_applied = match fixed.case.remedy {
        Remedy::Other => true,
        Remedy::TrySettings => !tried.is_empty() && accepts(&cluster, &tried)?,
        Remedy::None => false,
    };
    let remedy_run = match is_applied {
        true => Some(run_remedy(&cluster, &database, &work, &fixed, find)?),
        false => None,
    };
    let background = &work.background.objects;
    Ok(Verdict::new(plan, kind, &work.case, background, culprit_run, remedy_run))
}

fn start(plan: &Plan, work: &Work, installation: &Installation) -> Result<Cluster> {
    let checksums = work.case.checksums.unwrap_or(plan.checksums);
    let mut builder = ClusterBuilder::new(installation.clone()).checksums(checksums);
    if let Some(megabytes) = work.case.segment_mb {
        builder = builder.wal_segsize_mb(megabytes);
    }
    builder = keep_wal(builder);
    for (name, value) in SETTINGS {
        builder = builder.setting(name, value);
    }
    for (name, value) in &work.settings {
        builder = builder.setting(name, value);
    }
    builder.start()
}

/// Whether the server accepts the values of settings: one that was built without lz4 refuses that method.
fn accepts(cluster: &Cluster, settings: &BTreeMap<String, String>) -> Result<bool> {
    let mut client = cluster.client("postgres")?;
    for (name, value) in settings {
        let values: Option<Vec<String>> =
            client.query_one("SELECT enumvals FROM pg_settings WHERE name = $1", &[name])?.get(0);
        if values.is_some_and(|values| !values.contains(value)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs the work with the remedy on the same server, in another database.
fn run_remedy(cluster: &Cluster, first: &str, work: &Work, fixed: &Work, find: Find<'_>) -> Result<Side> {
    let mut client = cluster.client("postgres")?;
    // Its tables would give autovacuum something to do.
    client.batch_execute(&format!("DROP DATABASE {first} WITH (FORCE)"))?;
    drop(client);
    if fixed.settings != work.settings {
        cluster.configure(&fixed.settings)?;
        cluster.restart(StopMode::Fast)?;
    }
    run_work(cluster, &format!("{first}_remedy"), fixed, None, find)
}

/// Runs work in a new database, and keeps its WAL and names in the folder `kept`, if there is one.
fn run_work(
    cluster: &Cluster,
    database: &str,
    work: &Work,
    kept: Option<&Path>,
    find: Find<'_>,
) -> Result<Side> {
    let names = Names::new(cluster, database);
    let mut client = set_up(cluster, &names, work)?;
    client.batch_execute("CHECKPOINT")?;
    let clock = Instant::now();
    let from = insert_lsn(&mut client)?;
    let held = run_sessions(cluster, &names, work)?;
    let seconds = clock.elapsed().as_secs_f64();
    let to = insert_lsn(&mut client)?;
    drop(held);
    // Flushes all WAL up to `to`: the end of a session does not write changes that it committed
    // asynchronously.
    client.batch_execute("CREATE TABLE flushed ()")?;
    drop(client);
    settled_statistics(&mut || cluster.client(database))?;
    if let Some(folder) = kept {
        let row = cluster
            .client(database)?
            .query_one("SELECT pg_walfile_name($1::text::pg_lsn + 1)", &[&from.to_string()])?;
        cluster.collect_wal(row.get(0), &folder.join("wal"))?;
    }
    let window = Window {
        wal_dir: cluster.data_dir().join("pg_wal"),
        dsn: cluster.dsn(database),
        from,
        to,
        names_to: kept.map(Path::to_owned),
    };
    let findings = find(&window)?;
    Ok(Side { bytes: to.bytes_since(from), seconds, from: from.to_string(), to: to.to_string(), findings })
}

/// Creates the database of work with its tables, and returns a session in it.
pub(crate) fn set_up(cluster: &Cluster, names: &Names<'_>, work: &Work) -> Result<Client> {
    let Work { case, background, prepare, .. } = work;
    let Names { database, source, .. } = names;
    let mut client = cluster.client("postgres")?;
    client.batch_execute(&format!("CREATE DATABASE {database}"))?;
    if !case.source.is_empty() {
        client.batch_execute(&format!("CREATE DATABASE {source}"))?;
        run_scripts(&mut cluster.client(source)?, &case.source, names)?;
    }
    let mut client = cluster.client(database)?;
    // Hint bits are set only once the commit is on disk.
    client.batch_execute("SET synchronous_commit = on")?;
    run_scripts(&mut client, prepare, names)?;
    run_scripts(&mut client, &background.setup, names)?;
    // Rows that a server has had for some time are all visible, and their hint bits are set.
    client.batch_execute("VACUUM ANALYZE")?;
    run_scripts(&mut client, &case.setup, names)?;
    if !case.is_vacuumed {
        client.batch_execute("VACUUM ANALYZE")?;
    }
    Ok(client)
}

/// Runs the sessions of work to their end, and returns those that are held open.
pub(crate) fn run_sessions(cluster: &Cluster, names: &Names<'_>, work: &Work) -> Result<Vec<Client>> {
    let Work { case, background, .. } = work;
    let mut held = Vec::new();
    for script in &case.held {
        let mut session = cluster.client(names.database)?;
        run_scripts(&mut session, std::slice::from_ref(script), names)?;
        held.push(session);
    }
    thread::scope(|scope| {
        let session = |scripts: &'_ Vec<String>| {
            let scripts = scripts.clone();
            scope.spawn(move || run_scripts(&mut cluster.client(names.database)?, &scripts, names))
        };
        let sessions: Vec<_> = background.sessions.iter().chain(&case.sessions).map(session).collect();
        sessions.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a session panicked"))?)
    })?;
    Ok(held)
}

/// Values of the placeholders in scripts.
pub(crate) struct Names<'a> {
    database: &'a str,
    source: String,
    source_dsn: String,
    file: String,
}

impl Names<'_> {
    pub(crate) fn new<'a>(cluster: &Cluster, database: &'a str) -> Names<'a> {
        let source = format!("{database}_source");
        let source_dsn = cluster.dsn(&source).replace('\'', "''");
        let file = cluster.data_dir().join(format!("{database}.copy")).display().to_string();
        Names { database, source, source_dsn, file }
    }
}

fn run_scripts(client: &mut Client, scripts: &[String], names: &Names<'_>) -> Result<()> {
    for script in scripts {
        let sql = script
            .replace("$source_dsn", &names.source_dsn)
            .replace("$source", &names.source)
            .replace("$file", &names.file)
            .replace("$database", names.database)
            .replace("$slot", &format!("{}_slot", names.database));
        client.batch_execute(&sql).with_context(|| format!("the statement failed: {sql}"))?;
    }
    Ok(())
}
