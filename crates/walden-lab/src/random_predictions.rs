//! Workloads and settings that a seed selects, for judging predictions.
//!
//! A seed selects the server's version, a workload, the settings of a first run, and other settings. The
//! caller predicts the WAL of the work under the other settings from the first run's WAL. A second run on a
//! new server under these settings is the judge.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::Random;
use crate::experiments::{Analysis, PredictedRun, settings_of};
use crate::install::Installation;
use crate::progress::Progress;
use crate::random_culprits::{Names, Work, for_each_seed, run_sessions, set_up};
use crate::run::{RunOptions, RunResult, earlier_run, run_workload};
use crate::workloads::{self, Context, Workload};

/// Version of the selection; results of another version are not reused.
const GENERATOR: u32 = 2;

/// Options of [`run`].
#[derive(Debug)]
pub struct Options {
    /// The seeds.
    pub seeds: RangeInclusive<u64>,
    /// The servers to select from.
    pub installations: Vec<Installation>,
    /// The folder of the results, one file per seed. Seeds that have one there are not run again.
    pub output: PathBuf,
    /// Runs all seeds again.
    pub force: bool,
    /// Keeps the WAL of the first runs in `seed-N/traced`. Later runs predict from it again.
    pub keeps_wal: bool,
    /// Seeds that run at a time.
    pub jobs: usize,
    /// The display of progress.
    pub progress: Progress,
}

/// The selection of a seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of the generator.
    pub generator: u32,
    /// The seed.
    pub seed: u64,
    /// The workload.
    pub workload: String,
    /// The server's version, as `postgres --version` prints it.
    pub postgresql: String,
    /// Settings of the first run, with `wal_segment_size` and `data_checksums`.
    pub traced: BTreeMap<String, String>,
    /// The settings that differ in the second run.
    pub changed: BTreeMap<String, String>,
    /// Whether predictions have a base backup from before the work.
    pub has_base: bool,
}

/// A prediction, and the WAL that a server wrote.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cell {
    /// The selection.
    #[serde(flatten)]
    pub plan: Plan,
    /// Bytes of the first run.
    pub traced_bytes: u64,
    /// Bytes of the second run.
    pub measured_bytes: u64,
    /// The prediction for the second run.
    pub predicted_bytes: u64,
    /// Its printed error, in either direction.
    pub error_bytes: u64,
    /// Checkpoints because of volume, and because of time: those of the second run, and the predicted ones.
    pub checkpoints: [[u64; 2]; 2],
    /// Whether the measured volume is within the printed error.
    #[serde(rename = "within")]
    pub is_within: bool,
}

/// The work of a seed. Each kind is about as frequent as its number here.
const KINDS: &[(u64, Kind)] = &[
    (8, Kind::Pgbench),
    (2, Kind::Workload("mixed", 3000)),
    (1, Kind::Workload("load", 30)),
    (1, Kind::Workload("index-types", 20_000)),
    (1, Kind::Statements("none-appends")),
    (1, Kind::Statements("none-updates")),
    (1, Kind::Statements("none-mixed")),
    (1, Kind::Statements("none-load")),
    (1, Kind::Statements("none-partitions")),
    (1, Kind::Statements("bulk-update")),
    (1, Kind::Statements("batch-updates")),
    (1, Kind::Statements("upserts")),
    (1, Kind::Statements("cascade")),
    (1, Kind::Statements("purge-jobs")),
    (1, Kind::Statements("delete-and-insert")),
    (1, Kind::Statements("many-indexes")),
    (1, Kind::Statements("random-keys")),
    (1, Kind::Statements("large-values")),
];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Pgbench,
    /// A workload of the lab with its size.
    Workload(&'static str, u64),
    /// A culprit of [`crate::random_culprits`], with its background load.
    Statements(&'static str),
}

/// The work of a seed with its size.
struct Load {
    kind: Kind,
    name: String,
    scale: u64,
    /// Arguments of pgbench.
    arguments: Vec<String>,
    /// Transactions in a second, so that checkpoints by time come at similar positions in both runs.
    is_paced: bool,
}

impl Load {
    fn new(seed: u64) -> Load {
        let mut random = Random::new(seed, 3);
        let mut at = random.below(KINDS.iter().map(|(weight, _)| weight).sum());
        let is_it = |(weight, _): &&(u64, Kind)| {
            let is_here = at < *weight;
            at = at.saturating_sub(*weight);
            is_here
        };
        let kind = KINDS.iter().find(is_it).map_or(Kind::Pgbench, |(_, kind)| *kind);
        let name = match kind {
            Kind::Pgbench => "pgbench",
            Kind::Workload(name, _) | Kind::Statements(name) => name,
        };
        let mut load = Load { kind, name: name.into(), scale: 1, arguments: Vec::new(), is_paced: false };
        if let Kind::Pgbench = kind {
            let clients: u64 = random.pick(&["1", "1", "2", "4", "8"]).parse().unwrap_or(1);
            load.scale = 1 + random.below(10);
            load.is_paced = random.chance(30);
            let transactions = if load.is_paced { 16_000 } else { 20_000 + 1000 * random.below(21) };
            let mut more = vec![format!("--client={clients}"), format!("--jobs={}", clients.min(2))];
            more.push(format!("--transactions={}", transactions / clients));
            match random.below(3) {
                0 => more.push("--builtin=simple-update".into()),
                1 => more.push("--protocol=prepared".into()),
                _ => {}
            }
            if load.is_paced {
                more.push("--rate=400".into());
            }
            load.name = format!("pgbench --scale={} {}", load.scale, more.join(" "));
            more.extend([format!("--random-seed={seed}"), "--no-vacuum".into()]);
            load.arguments = more;
        }
        load
    }

    /// Whether it writes much more than 50 MB of WAL.
    fn is_large(&self) -> bool {
        !matches!(self.kind, Kind::Statements(_))
    }
}

/// Runs the work that [`RunOptions::seed`] selects.
static WORKLOAD: Workload = Workload {
    name: "random-predictions",
    about: "a workload that the seed selects",
    unit: "run",
    setup,
    run: work,
    ..workloads::BASE
};

/// The database of the statements of culprits.
const DATABASE: &str = "work";

fn setup(context: &Context<'_>) -> Result<()> {
    let load = Load::new(context.seed);
    match load.kind {
        Kind::Pgbench => {
            let scale = load.scale.to_string();
            context.cluster.pgbench("postgres", &["--initialize", "--quiet", "--scale", &scale]).map(drop)
        }
        Kind::Workload(name, size) => (named(name)?.setup)(&Context { size, ..*context }),
        Kind::Statements(name) => {
            let work = statements(context.seed, name)?;
            set_up(context.cluster, &Names::new(context.cluster, DATABASE), &work).map(drop)
        }
    }
}

fn work(context: &Context<'_>) -> Result<Value> {
    let load = Load::new(context.seed);
    match load.kind {
        Kind::Pgbench => {
            let arguments: Vec<&str> = load.arguments.iter().map(String::as_str).collect();
            context.cluster.pgbench("postgres", &arguments)?;
        }
        Kind::Workload(name, size) => _ = (named(name)?.run)(&Context { size, ..*context })?,
        Kind::Statements(name) => {
            let work = statements(context.seed, name)?;
            run_sessions(context.cluster, &Names::new(context.cluster, DATABASE), &work)?;
        }
    }
    Ok(Value::Null)
}

fn named(name: &str) -> Result<&'static Workload> {
    workloads::by_name(name).with_context(|| format!("no workload has the name {name}"))
}

fn statements(seed: u64, name: &str) -> Result<Work> {
    Work::of(seed, name).with_context(|| format!("no culprit has the name {name}"))
}

impl Plan {
    /// Selects from these major versions with their text.
    fn new(seed: u64, versions: &[(u32, String)]) -> Option<(Plan, usize)> {
        let load = Load::new(seed);
        let mut random = Random::new(seed, 4);
        let version = random.below(versions.len() as u64) as usize;
        let (major, postgresql) = versions.get(version)?.clone();
        let mut traced = BTreeMap::new();
        let mut set = |name: &str, value: String| _ = traced.insert(name.to_owned(), value);
        let sizes: &[&str] =
            if load.is_large() { &["1", "4", "16", "16", "16", "32", "64"] } else { &["1", "4", "4", "16"] };
        let segment = number(random.pick(sizes));
        let least = least_wal(segment, &load);
        let wal = least * number(random.pick(&["1", "1", "2", "4"]));
        set("wal_segment_size", format!("{segment}MB"));
        set("max_wal_size", format!("{wal}MB"));
        // Time passes at the same LSN in both runs only if the work has a pace.
        let timeouts: &[&str] = if load.is_paced { &["30s", "1h"] } else { &["1h"] };
        set("checkpoint_timeout", random.pick(timeouts).into());
        set("full_page_writes", (if random.chance(10) { "off" } else { "on" }).into());
        set("wal_compression", compression(&mut random, major));
        set("wal_log_hints", random.pick(&["off", "off", "on"]).into());
        set("data_checksums", random.pick(&["off", "on"]).into());
        set("wal_level", random.pick(&["replica", "replica", "logical"]).into());
        set("autovacuum", random.pick(&["off", "off", "on"]).into());
        set("shared_buffers", random.pick(&["64MB", "256MB"]).into());
        let mut changed = BTreeMap::new();
        let count = 1 + usize::from(random.chance(30));
        while changed.len() < count {
            let toggle = |name: &str| if traced[name] == "on" { "off" } else { "on" }.to_owned();
            let (name, value) = match random.below(12) {
                0..3 => {
                    let other = wal * number(random.pick(&["1", "4", "8"])) / 2;
                    ("max_wal_size", format!("{}MB", other.max(least)))
                }
                3 | 4 => ("wal_segment_size", format!("{}MB", random.pick(&["1", "4", "16", "32", "64"]))),
                5 | 6 => ("wal_compression", compression(&mut random, major)),
                7 => ("full_page_writes", toggle("full_page_writes")),
                8 => ("wal_log_hints", toggle("wal_log_hints")),
                9 => ("data_checksums", toggle("data_checksums")),
                10 => ("wal_level", random.pick(&["minimal", "replica", "logical"]).into()),
                _ if load.is_paced => {
                    let is_short = traced["checkpoint_timeout"] == "30s";
                    ("checkpoint_timeout", (if is_short { "1h" } else { "30s" }).into())
                }
                _ => continue,
            };
            if traced[name] != value {
                changed.insert(name.to_owned(), value);
            }
        }
        // A server starts only if there is space for a few segments.
        let megabytes = |name: &str| {
            let value = changed.get(name).unwrap_or(&traced[name]);
            value.strip_suffix("MB").map_or(0, number)
        };
        let least = least_wal(megabytes("wal_segment_size"), &load);
        if megabytes("max_wal_size") < least {
            changed.insert("max_wal_size".into(), format!("{least}MB"));
        }
        // The pages that were changed without images are known only from a base backup.
        let has_base = traced["full_page_writes"] == "off" || random.chance(30);
        let workload = load.name;
        Some((Plan { generator: GENERATOR, seed, workload, postgresql, traced, changed, has_base }, version))
    }

    /// Settings of the second run.
    fn changed_settings(&self) -> BTreeMap<String, String> {
        self.traced.clone().into_iter().chain(self.changed.clone()).collect()
    }
}

/// The least `max_wal_size` in MB: checkpoints that take place more often than once a second are a race.
fn least_wal(segment: u64, load: &Load) -> u64 {
    (4 * segment).max(if load.is_large() { 48 } else { 24 })
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

fn compression(random: &mut Random, major: u32) -> String {
    match major {
        ..15 => random.pick(&["off", "on"]).into(),
        _ => random.pick(&["off", "off", "pglz", "lz4", "zstd"]).into(),
    }
}

/// Runs seeds, and returns their cells in the order of the seeds.
///
/// # Errors
/// No version is suitable, or a server, a statement or the prediction fails.
pub fn run(options: &Options, analysis: &(dyn Analysis + Sync)) -> Result<Vec<Cell>> {
    fs::create_dir_all(&options.output)
        .with_context(|| format!("cannot create the folder {}", options.output.display()))?;
    let mut cells = for_each_seed(&options.seeds, options.jobs, &options.progress, &|seed| {
        run_seed(options, seed, analysis)
    })?;
    cells.sort_by_key(|cell: &Cell| cell.plan.seed);
    Ok(cells)
}

fn run_seed(options: &Options, seed: u64, analysis: &dyn Analysis) -> Result<Cell> {
    let versions: Vec<_> =
        options.installations.iter().map(|one| (one.version.major, one.version.to_string())).collect();
    let (plan, version) = Plan::new(seed, &versions)
        .context("no version of PostgreSQL was found; `walden lab install` obtains one")?;
    let path = options.output.join(format!("seed-{seed}.json"));
    let folder = options.output.join(format!("seed-{seed}"));
    let kept = ["traced", "measured"].map(|name| earlier_run(&folder.join(name)));
    if !options.force
        && let Ok(text) = fs::read_to_string(&path)
        && let Ok(cell) = serde_json::from_str::<Cell>(&text)
        && cell.plan == plan
    {
        // Predicted again, as the prediction may have changed since.
        let [Ok(traced), Ok(measured)] = kept else { return Ok(cell) };
        let predicted = predict(analysis, &plan, &traced, &measured)?;
        return Ok(Cell::new(plan, [&traced, &measured], cell.checkpoints[0], predicted));
    }
    let temporary = tempfile::tempdir().context("cannot create a folder for WAL")?;
    let folder = if options.keeps_wal { folder } else { temporary.path().to_owned() };
    let installation = &options.installations[version];
    let run = |name: &str, settings: &BTreeMap<String, String>| {
        let output = folder.join(name);
        run_once(&plan, installation, settings, &output)
            .with_context(|| format!("{} on PostgreSQL {}", plan.workload, installation.version))
    };
    let traced = run("traced", &plan.traced)?;
    let measured = run("measured", &plan.changed_settings())?;
    let range = (measured.facts.workload_lsn, measured.facts.end_lsn);
    let checkpoints =
        analysis.checkpoints(&measured.wal_dir, range, &settings_of(&measured.facts.settings))?;
    fs::remove_dir_all(&measured.wal_dir)
        .with_context(|| format!("cannot remove {}", measured.wal_dir.display()))?;
    let predicted = predict(analysis, &plan, &traced, &measured)?;
    let cell = Cell::new(plan, [&traced, &measured], checkpoints, predicted);
    let text = serde_json::to_string_pretty(&cell)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(cell)
}

fn run_once(
    plan: &Plan,
    installation: &Installation,
    settings: &BTreeMap<String, String>,
    output: &Path,
) -> Result<RunResult> {
    let is_named = |name: &str| name != "wal_segment_size" && name != "data_checksums";
    let mut all: Vec<(String, String)> = settings
        .iter()
        .filter(|(name, _)| is_named(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let senders = if settings["wal_level"] == "minimal" { "0" } else { "10" };
    all.extend(
        [("max_wal_senders", senders), ("max_prepared_transactions", "20")]
            .map(|(name, value)| (name.into(), value.into())),
    );
    let options = RunOptions {
        seed: plan.seed,
        installation: Some(installation.clone()),
        wal_segsize_mb: settings["wal_segment_size"].strip_suffix("MB").and_then(|size| size.parse().ok()),
        checksums: Some(settings["data_checksums"] == "on"),
        keep_data: plan.has_base,
        force: true,
        settings: all,
        ..RunOptions::new(&WORKLOAD, output)
    };
    let run = run_workload(options.clone(), &mut |_| Ok(()));
    match run {
        // A server built without a compression method rejects its name; each has pglz.
        Err(error) if format!("{error:#}").contains("Available values") => {
            let mut options = options;
            options.settings.push(("wal_compression".into(), "pglz".into()));
            run_workload(options, &mut |_| Ok(()))
        }
        run => run,
    }
}

fn predict(
    analysis: &dyn Analysis,
    plan: &Plan,
    traced: &RunResult,
    measured: &RunResult,
) -> Result<PredictedRun> {
    let base = traced.output.join("base");
    let runs = analysis.predict(
        (&traced.wal_dir, plan.has_base.then_some(base.as_path())),
        (traced.facts.workload_lsn, traced.facts.end_lsn),
        &settings_of(&traced.facts.settings),
        &[settings_of(&measured.facts.settings)],
    )?;
    runs.first().copied().context("expected a prediction, found none")
}

impl Cell {
    fn new(
        plan: Plan,
        [traced, measured]: [&RunResult; 2],
        checkpoints: [u64; 2],
        predicted: PredictedRun,
    ) -> Cell {
        let measured_bytes = measured.facts.workload_bytes;
        Cell {
            plan,
            traced_bytes: traced.facts.workload_bytes,
            measured_bytes,
            predicted_bytes: predicted.bytes,
            error_bytes: predicted.error_bytes,
            checkpoints: [checkpoints, predicted.checkpoints],
            is_within: predicted.bytes.abs_diff(measured_bytes) <= predicted.error_bytes,
        }
    }

    /// The deviation of the prediction from the measured volume, in per cent of the latter.
    pub fn error_percent(&self) -> f64 {
        100.0 * (self.predicted_bytes as f64 / self.measured_bytes.max(1) as f64 - 1.0)
    }

    /// The printed error in either direction, in per cent of the measured volume.
    pub fn bar_percent(&self) -> f64 {
        100.0 * self.error_bytes as f64 / self.measured_bytes.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_hundred_seeds_reach_all_versions_workloads_and_settings() {
        let versions: Vec<_> = (14..20).map(|major| (major, format!("{major}.1"))).collect();
        let plans: Vec<Plan> = (1..=100).map(|seed| Plan::new(seed, &versions).unwrap().0).collect();
        assert_eq!(plans[..9], (1..10).map(|seed| Plan::new(seed, &versions).unwrap().0).collect::<Vec<_>>());
        let servers: BTreeSet<&str> = plans.iter().map(|plan| plan.postgresql.as_str()).collect();
        let changed: BTreeSet<&str> =
            plans.iter().flat_map(|plan| plan.changed.keys().map(String::as_str)).collect();
        let names = [
            "checkpoint_timeout",
            "data_checksums",
            "full_page_writes",
            "max_wal_size",
            "wal_compression",
            "wal_level",
            "wal_log_hints",
            "wal_segment_size",
        ];
        assert_eq!((servers.len(), changed), (6, names.into()));
        let workloads: BTreeSet<&str> =
            plans.iter().filter_map(|plan| plan.workload.split(' ').next()).collect();
        assert!(workloads.len() >= KINDS.len() - 2, "{workloads:?}");
        assert!(
            plans.iter().all(|plan| plan.changed.iter().all(|(name, value)| plan.traced[name] != *value))
        );
    }

    #[test]
    fn each_kind_of_work_exists() {
        for (_, kind) in KINDS {
            match kind {
                Kind::Pgbench => {}
                Kind::Workload(name, _) => assert!(workloads::by_name(name).is_some(), "{name}"),
                Kind::Statements(name) => assert!(Work::of(1, name).is_some(), "{name}"),
            }
        }
    }
}
