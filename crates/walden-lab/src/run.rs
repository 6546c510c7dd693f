//! Runs a workload on a new cluster, and keeps its WAL and `facts.json` in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use postgres::Client;
use serde_json::Value;
use walden_format::lsn::Lsn;
use walden_server::guard::Undo;

use crate::cluster::{Cluster, ClusterBuilder, StopMode, insert_lsn};
use crate::facts::{self, Facts, Server};
use crate::install::{Installation, Wanted, find_or_install};
use crate::progress::Progress;
use crate::workloads::{Context, Workload};

/// Options of [`run_workload`].
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// A row of [`crate::workloads::all`].
    pub workload: &'static Workload,
    /// The size in the workload's unit; its default if `None`.
    pub size: Option<u64>,
    /// The seed that all content derives from.
    pub seed: u64,
    /// The PostgreSQL to run; if `None`, the first one found, or the package of 18.
    pub installation: Option<Installation>,
    /// Server settings (name, value) that take precedence over the workload's own.
    pub settings: Vec<(String, String)>,
    /// The segment size in MB; the workload's own or 16 if `None`.
    pub wal_segsize_mb: Option<u32>,
    /// Data checksums; the workload's own or the version's default if `None`.
    pub checksums: Option<bool>,
    /// The folder for `wal/` and `facts.json`; created if it does not exist.
    pub output: PathBuf,
    /// Also keeps the data directory: in `base/` from before the workload, in `data/` from after the server's
    /// clean shutdown. Both are without WAL; `wal/` starts at the checkpoint at which `base/` was shut down.
    pub keep_data: bool,
    /// Removes the files of an earlier run in `output`.
    pub force: bool,
    /// The display of progress.
    pub progress: Progress,
}

/// The folder that a run wrote.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// [`RunOptions::output`].
    pub output: PathBuf,
    /// The folder `wal/` in it, with the segments.
    pub wal_dir: PathBuf,
    /// The content of `facts.json`.
    pub facts: Facts,
}

/// The files and folders that a run writes into its output folder.
const OUTPUT_FILES: &[&str] = &["wal", "base", "data", "facts.json", "names.json"];

/// The setting that keeps old segments, by the first major version that has it: in MB since 13, in segments
/// before.
const KEEP_WAL: &[(u32, &str, &str)] = &[(13, "wal_keep_size", "1TB"), (0, "wal_keep_segments", "1000000")];

impl RunOptions {
    /// Creates options with their defaults, without progress.
    pub fn new(workload: &'static Workload, output: impl Into<PathBuf>) -> RunOptions {
        RunOptions {
            workload,
            size: None,
            seed: 42,
            installation: None,
            settings: Vec::new(),
            wal_segsize_mb: None,
            checksums: None,
            output: output.into(),
            keep_data: false,
            force: false,
            progress: Progress::hidden(),
        }
    }
}

/// Runs a workload. Calls `before_stop` after the workload has ended, while its server still runs.
///
/// The first collected segment starts with a checkpoint; the last one contains the server's shutdown.
///
/// # Errors
/// The output folder is in use, PostgreSQL cannot be obtained or started, or a statement fails.
pub fn run_workload(
    options: RunOptions,
    before_stop: &mut dyn FnMut(&Cluster) -> Result<()>,
) -> Result<RunResult> {
    let RunOptions { workload, seed, progress, output, .. } = &options;
    let size = options.size.unwrap_or(workload.default_size);
    if size == 0 {
        bail!("the size of a workload is at least 1");
    }
    let _removed_if_empty = prepare_new_output(output, options.force)?;
    let cluster = start_cluster(&options)?;
    let context = Context { cluster: &cluster, size, seed: *seed, progress, own_settings: &options.settings };

    progress.phase(&format!("{}: preparing", workload.name));
    (workload.setup)(&context).with_context(|| format!("cannot prepare the workload {}", workload.name))?;
    let recording = Recording::begin(&cluster, options.keep_data.then(|| output.join("base")).as_deref())?;

    progress.phase(&format!("{}: running", workload.name));
    let clock = Instant::now();
    let notes = (workload.run)(&context).with_context(|| format!("the workload {} failed", workload.name))?;
    let seconds = clock.elapsed().as_secs_f64();

    progress.phase(&format!("{}: collecting", workload.name));
    let recorded = recording.finish(&cluster, output, before_stop)?;
    if options.keep_data {
        cluster.copy_data(&output.join("data"))?;
    }
    let facts = Facts {
        workload: workload.name.into(),
        about: workload.about.into(),
        size,
        size_unit: workload.unit.into(),
        seed: *seed,
        seconds,
        notes,
        ..recorded
    };
    write_facts(output, &facts)?;
    progress.finish();
    Ok(RunResult { output: output.clone(), wal_dir: output.join("wal"), facts })
}

/// Returns the result of an earlier run in a folder.
///
/// # Errors
/// The folder contains no finished run.
pub fn earlier_run(output: &Path) -> Result<RunResult> {
    let path = output.join("facts.json");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}: expected a run that was kept", path.display()))?;
    let facts = serde_json::from_str(&text).with_context(|| format!("cannot use {}", path.display()))?;
    Ok(RunResult { output: output.to_owned(), wal_dir: output.join("wal"), facts })
}

/// Writes `facts.json`.
pub(crate) fn write_facts(output: &Path, facts: &Facts) -> Result<()> {
    let path = output.join("facts.json");
    let text = serde_json::to_string_pretty(facts)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Positions and statistics of a cluster at the start of the kept WAL.
pub(crate) struct Recording {
    segment: String,
    timeline: u32,
    start_lsn: Lsn,
    workload_lsn: Lsn,
    at: String,
    clock: Instant,
    statistics: BTreeMap<String, Value>,
}

impl Recording {
    /// Starts a new segment with a checkpoint. Copies the current data directory to `base`, if given.
    pub fn begin(cluster: &Cluster, base: Option<&Path>) -> Result<Recording> {
        let mut client = cluster.client("postgres")?;
        // After the first checkpoint the second one has no pages to write, so it starts and ends within a few
        // records.
        client.batch_execute("CHECKPOINT")?;
        client.batch_execute("SELECT pg_switch_wal()")?;
        client.batch_execute("CHECKPOINT")?;
        let row = client.query_one("SELECT redo_wal_file, timeline_id FROM pg_control_checkpoint()", &[])?;
        if let Some(base) = base {
            drop(client);
            cluster.stop(StopMode::Fast)?;
            cluster.copy_data(base)?;
            cluster.start()?;
            client = cluster.client("postgres")?;
        }
        let statistics = settled_statistics(&mut || cluster.client("postgres"))?;
        let workload_lsn = insert_lsn(&mut client)?;
        Ok(Recording {
            segment: row.get(0),
            timeline: row.get::<_, i32>(1).cast_unsigned(),
            start_lsn: Lsn(workload_lsn.0 / cluster.wal_segment_bytes() * cluster.wal_segment_bytes()),
            workload_lsn,
            at: clock_of(&mut client)?,
            clock: Instant::now(),
            statistics,
        })
    }

    /// Stops the server and collects the segments since the start in `output`.
    ///
    /// The caller completes the facts with workload, size and notes.
    pub fn finish(
        self,
        cluster: &Cluster,
        output: &Path,
        before_stop: &mut dyn FnMut(&Cluster) -> Result<()>,
    ) -> Result<Facts> {
        let mut client = cluster.client("postgres")?;
        let seconds = self.clock.elapsed().as_secs_f64();
        let finished_at = clock_of(&mut client)?;
        let settings = facts::read_settings(&mut client)?;
        let after = settled_statistics(&mut || cluster.client("postgres"))?;
        // Read after the statistics, because autovacuum may still write: the counters must not include
        // records after the end.
        let end_lsn = insert_lsn(&mut client)?;
        drop(client);
        before_stop(cluster)?;
        cluster.stop(StopMode::Fast)?;
        let segments = cluster.collect_wal(&self.segment, &output.join("wal"))?;
        Ok(Facts {
            workload: String::new(),
            about: String::new(),
            size: 0,
            size_unit: String::new(),
            seed: 0,
            server: Server { version: cluster.version().into(), version_num: cluster.version_num() },
            initdb_options: cluster.initdb_options().to_vec(),
            settings,
            system_identifier: cluster.system_identifier().to_string(),
            timeline: self.timeline,
            wal_segment_bytes: cluster.wal_segment_bytes(),
            start_lsn: self.start_lsn,
            workload_lsn: self.workload_lsn,
            end_lsn,
            workload_bytes: end_lsn.bytes_since(self.workload_lsn),
            segments,
            started_at: self.at,
            finished_at,
            seconds,
            statistics: facts::pair_statistics(self.statistics, after),
            notes: Value::Null,
        })
    }
}

/// Reads the statistics once all processes have reported theirs: ended sessions report late, others once a
/// second.
pub(crate) fn settled_statistics(
    connect: &mut dyn FnMut() -> Result<Client>,
) -> Result<BTreeMap<String, Value>> {
    let mut last = None;
    for _ in 0..12 {
        // A new session each time, because a session caches the statistics that it has read.
        let now = facts::read_statistics(&mut connect()?)?;
        if last.as_ref() == Some(&now) {
            break;
        }
        last = Some(now);
        thread::sleep(Duration::from_millis(600));
    }
    Ok(last.unwrap_or_default())
}

pub(crate) fn clock_of(client: &mut Client) -> Result<String> {
    let text = r#"SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#;
    Ok(client.query_one(text, &[])?.get(0))
}

fn start_cluster(options: &RunOptions) -> Result<Cluster> {
    let RunOptions { workload, progress, .. } = options;
    progress.phase("finding PostgreSQL");
    let installation = match &options.installation {
        Some(installation) => installation.clone(),
        None => find_or_install(Wanted::Any)?,
    };
    progress.phase(&format!("starting PostgreSQL {}", installation.version));
    let mut builder = ClusterBuilder::new(installation);
    if let Some(megabytes) = options.wal_segsize_mb.or(workload.wal_segsize_mb) {
        builder = builder.wal_segsize_mb(megabytes);
    }
    if let Some(on) = options.checksums.or(workload.checksums) {
        builder = builder.checksums(on);
    }
    builder = keep_wal(builder);
    for (name, value) in workload.settings {
        builder = builder.setting(name, value);
    }
    for (name, value) in &options.settings {
        builder = builder.setting(name, value);
    }
    builder.start()
}

/// Keeps every segment until it is collected.
pub(crate) fn keep_wal(builder: ClusterBuilder) -> ClusterBuilder {
    let major = builder.major();
    match KEEP_WAL.iter().find(|(since, ..)| major >= *since) {
        Some((_, name, value)) => builder.setting(name, value),
        None => builder,
    }
}

/// Same as [`prepare_output`]. The returned action removes the folder if the run created it and left it
/// empty, for example after Ctrl-C.
pub(crate) fn prepare_new_output(output: &Path, force: bool) -> Result<Option<Undo>> {
    let is_new = !output.exists();
    prepare_output(output, force)?;
    let output = output.to_owned();
    Ok(is_new.then(|| Undo::new(move || drop(fs::remove_dir(output)))))
}

/// Creates the output folder. With `force`, removes only the files of an earlier run from it.
pub(crate) fn prepare_output(output: &Path, force: bool) -> Result<()> {
    match fs::read_dir(output).map(Iterator::count) {
        Ok(1..) if !force => {
            bail!(
                "cannot use {}: expected an empty folder; choose another one, or --force to replace an earlier run in it",
                output.display()
            )
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error)
                .with_context(|| format!("cannot use {} as the output folder", output.display()));
        }
        _ => {}
    }
    fs::create_dir_all(output).with_context(|| format!("cannot create the folder {}", output.display()))?;
    for name in OUTPUT_FILES {
        let path = output.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
