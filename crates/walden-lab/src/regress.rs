//! PostgreSQL's own regression suite as a workload: the files of its schedule, run by psql on a new cluster,
//! whose WAL is kept.
//!
//! The suite is not part of this crate: the caller has a copy of PostgreSQL's `src/test/regress`. The output
//! of the statements is not compared with the expected output. Files that need the suite's C library fail in
//! part; their WAL is still valid WAL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use walden_server::account;
use walden_server::programs::find_in_path;
use walden_server::signals::interrupted;

use crate::cluster::{Cluster, ClusterBuilder};
use crate::facts::Facts;
use crate::install::{Installation, Wanted, find_or_install, installations};
use crate::progress::Progress;
use crate::run::{Recording, keep_wal, prepare_new_output, write_facts};

/// The database of the suite.
const DATABASE: &str = "regression";
/// Number of concurrent files of one group. A group of the schedule has up to 20.
const CLIENTS: usize = 8;
/// The maximum duration of a file before its psql is stopped.
const FILE_TIMEOUT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);

/// Settings that the suite needs, then a setting that makes its WAL useful for tests: an image of every page
/// that a record changes.
const SETTINGS: [(&str, &str); 9] = [
    ("max_prepared_transactions", "10"),
    ("max_connections", "50"),
    ("timezone", "PST8PDT"),
    ("datestyle", "postgres, mdy"),
    ("client_connection_check_interval", "1s"),
    ("synchronous_commit", "off"),
    ("max_wal_size", "1GB"),
    ("autovacuum_naptime", "10s"),
    ("wal_consistency_checking", "all"),
];

/// Options of [`run_suite`].
#[derive(Debug, Clone)]
pub struct SuiteOptions {
    /// The copy of PostgreSQL's `src/test/regress`.
    pub sql: PathBuf,
    /// The PostgreSQL to run; if `None`, the first one found, or the package of 18.
    pub installation: Option<Installation>,
    /// Server settings that take precedence.
    pub settings: Vec<(String, String)>,
    /// The segment size in MB; 16 if `None`.
    pub wal_segsize_mb: Option<u32>,
    /// Data checksums; the version's default if `None`.
    pub checksums: Option<bool>,
    /// The folder for `wal/`, `base/`, `data/` and `facts.json`.
    pub output: PathBuf,
    /// Removes the files of an earlier run in `output`.
    pub force: bool,
    /// Files that would start after this time are skipped.
    pub time: Duration,
    /// Files that would start after the server has written this many bytes of WAL are skipped.
    pub wal_bytes: u64,
    /// The display of progress.
    pub progress: Progress,
}

/// The outcome of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileEnd {
    /// psql ran to its end. Statements in the file may have failed, as many are meant to.
    Done,
    /// It took longer than 5 minutes.
    Stopped,
    /// The connection was lost, or psql could not be run.
    Failed,
    /// The time or WAL limit of the run was reached.
    LeftOut,
    /// The schedule names the file, but the folder does not contain it.
    Missing,
}

/// A file of the schedule.
#[derive(Debug, Clone, Serialize)]
pub struct SuiteFile {
    /// Name of the test file in the schedule.
    pub name: String,
    /// Outcome of the test file.
    pub end: FileEnd,
    /// Duration of the test file in seconds.
    pub seconds: f64,
}

/// A run of the suite.
#[derive(Debug, Clone)]
pub struct SuiteRun {
    /// The files in the schedule's order.
    pub files: Vec<SuiteFile>,
    /// The folder with the segments.
    pub wal: PathBuf,
    /// The data directory before the first file.
    pub base: PathBuf,
    /// The data directory after the server's clean shutdown.
    pub data: PathBuf,
    /// The content of `facts.json`.
    pub facts: Facts,
}

/// Runs the suite's schedule, and keeps the WAL and the data directory before and after.
///
/// # Errors
/// The folder has no schedule, psql is not installed, the output folder is in use, PostgreSQL cannot be
/// obtained or started, or it does not survive the suite.
pub fn run_suite(options: &SuiteOptions) -> Result<SuiteRun> {
    let SuiteOptions { progress, output, .. } = options;
    let schedule = Schedule::read(&options.sql)?;
    let _removed_if_empty = prepare_new_output(output, options.force)?;
    let installation = match &options.installation {
        Some(installation) => installation.clone(),
        None => find_or_install(Wanted::Any)?,
    };
    let psql = psql(&installation)?;
    progress.phase(&format!("starting PostgreSQL {}", installation.version));
    let cluster = start(options, installation)?;
    let material = Material::copy(&options.sql, &cluster, psql)?;
    create_database(&cluster)?;
    let base = output.join("base");
    let recording = Recording::begin(&cluster, Some(&base))?;

    let clock = Instant::now();
    let files = schedule.run(options, &cluster, &material)?;
    let seconds = clock.elapsed().as_secs_f64();

    progress.phase("collecting the WAL");
    let recorded = recording.finish(&cluster, output, &mut |_| Ok(()))?;
    let data = output.join("data");
    cluster.copy_data(&data)?;
    let about = "PostgreSQL's regression suite".to_owned();
    let (size, size_unit) = (files.iter().filter(|file| file.end == FileEnd::Done).count(), "files");
    let facts = Facts {
        workload: "regress".into(),
        about,
        size: size as u64,
        size_unit: size_unit.into(),
        seconds,
        notes: serde_json::json!({ "files": files }),
        ..recorded
    };
    write_facts(output, &facts)?;
    progress.finish();
    Ok(SuiteRun { files, wal: output.join("wal"), base, data, facts })
}

fn start(options: &SuiteOptions, installation: Installation) -> Result<Cluster> {
    let mut builder = keep_wal(ClusterBuilder::new(installation));
    if let Some(megabytes) = options.wal_segsize_mb {
        builder = builder.wal_segsize_mb(megabytes);
    }
    if let Some(on) = options.checksums {
        builder = builder.checksums(on);
    }
    for (name, value) in SETTINGS {
        builder = builder.setting(name, value);
    }
    for (name, value) in &options.settings {
        builder = builder.setting(name, value);
    }
    builder.start()
}

/// Returns the psql of the installation, otherwise the newest one of another installation.
fn psql(installation: &Installation) -> Result<PathBuf> {
    let of_others = || {
        let found = installations().into_iter().filter_map(|one| Some((one.version, one.program("psql")?)));
        found.max_by_key(|(version, _)| *version).map(|(_, path)| path)
    };
    installation
        .program("psql")
        .or_else(of_others)
        .or_else(|| find_in_path("psql"))
        .context("cannot run the regression suite: expected psql, found none; install a package with PostgreSQL's clients")
}

/// Creates the database in the same way as pg_regress.
fn create_database(cluster: &Cluster) -> Result<()> {
    let mut client = cluster.client("postgres")?;
    client.batch_execute(&format!("CREATE DATABASE {DATABASE} TEMPLATE template0"))?;
    for setting in [
        "lc_messages TO 'C'",
        "lc_monetary TO 'C'",
        "lc_numeric TO 'C'",
        "lc_time TO 'C'",
        "bytea_output TO 'hex'",
        "timezone_abbreviations TO 'Default'",
    ] {
        client.batch_execute(&format!("ALTER DATABASE {DATABASE} SET {setting}"))?;
    }
    Ok(())
}

/// The groups of the schedule. The files of a group may run concurrently.
#[derive(Debug, PartialEq, Eq)]
struct Schedule {
    groups: Vec<Vec<String>>,
}

impl Schedule {
    fn read(sql: &Path) -> Result<Schedule> {
        let path = sql.join("parallel_schedule");
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: expected a copy of src/test/regress of PostgreSQL's sources in {}",
                path.display(),
                sql.display()
            )
        })?;
        let schedule = Schedule::parse(&text);
        if schedule.groups.is_empty() {
            bail!("cannot run {}: expected lines such as \"test: boolean char\", found none", path.display());
        }
        Ok(schedule)
    }

    fn parse(text: &str) -> Schedule {
        let group = |line: &str| {
            let names = line.trim().strip_prefix("test:")?;
            Some(names.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>())
        };
        Schedule { groups: text.lines().filter_map(group).filter(|group| !group.is_empty()).collect() }
    }

    fn run(
        &self,
        options: &SuiteOptions,
        cluster: &Cluster,
        material: &Material<'_>,
    ) -> Result<Vec<SuiteFile>> {
        let all = self.groups.iter().map(Vec::len).sum::<usize>();
        let clock = Instant::now();
        options.progress.counted("regression suite", all as u64);
        let start = cluster.wal_written()?;
        let mut files = Vec::with_capacity(all);
        for names in self.groups.iter().flat_map(|group| group.chunks(CLIENTS)) {
            if interrupted() {
                bail!("interrupted");
            }
            let is_over = clock.elapsed() >= options.time
                || cluster.wal_written()?.saturating_sub(start) >= options.wal_bytes;
            if is_over {
                let left_out =
                    |name: &String| SuiteFile { name: name.clone(), end: FileEnd::LeftOut, seconds: 0.0 };
                files.extend(names.iter().map(left_out));
                continue;
            }
            options.progress.label(&names.join(" "));
            files.extend(material.run_at_once(names));
            options.progress.advance(names.len() as u64);
            if !cluster.is_running() {
                bail!("the server ended while {} ran: {}", names.join(", "), cluster.log_tail());
            }
        }
        Ok(files)
    }
}

/// The suite's files in a location readable by the server, and the programs that run them.
struct Material<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
    psql: PathBuf,
}

impl<'a> Material<'a> {
    /// Copies `sql/` and `data/`, and the templates in `input/` that exist until 14.
    fn copy(sql: &Path, cluster: &'a Cluster, psql: PathBuf) -> Result<Material<'a>> {
        let folder = cluster.make_folder("regress")?;
        for name in ["results", "testtablespace", "sql", "data"] {
            cluster.make_folder(&format!("regress/{name}"))?;
        }
        let material = Material { cluster, folder, psql };
        for (from, ending) in [("sql", "sql"), ("input", "source"), ("data", "data")] {
            let Ok(entries) = fs::read_dir(sql.join(from)) else { continue };
            for entry in entries {
                let path = entry?.path();
                if path.extension().is_some_and(|found| found == ending) {
                    material.copy_file(&path, from)?;
                }
            }
        }
        account::chown_all(&material.folder)?;
        Ok(material)
    }

    fn copy_file(&self, path: &Path, from: &str) -> Result<()> {
        let named = || format!("cannot copy {}", path.display());
        if from != "input" {
            let target = self.folder.join(from).join(path.file_name().unwrap_or_default());
            return fs::copy(path, &target).map(drop).with_context(named);
        }
        let folder = self.folder.display().to_string();
        let text = fs::read_to_string(path).with_context(named)?;
        let text = text.replace("@testtablespace@", &format!("{folder}/testtablespace"));
        let text = text.replace("@abs_srcdir@", &folder).replace("@abs_builddir@", &folder);
        let text = text.replace("@libdir@", &folder).replace("@DLSUFFIX@", ".so");
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        fs::write(script(&self.folder, &stem), text).with_context(named)
    }

    /// Runs files concurrently, and waits for all of them.
    fn run_at_once(&self, names: &[String]) -> Vec<SuiteFile> {
        thread::scope(|scope| {
            let running: Vec<_> = names.iter().map(|name| scope.spawn(move || self.run(name))).collect();
            let failed = |name: &String| SuiteFile { name: name.clone(), end: FileEnd::Failed, seconds: 0.0 };
            let ended = running.into_iter().zip(names);
            ended.map(|(file, name)| file.join().unwrap_or_else(|_| failed(name))).collect()
        })
    }

    fn run(&self, name: &str) -> SuiteFile {
        let path = script(&self.folder, name);
        let clock = Instant::now();
        let end = match path.is_file() {
            true => self.command(&path).spawn().map_or(FileEnd::Failed, |child| wait(child, clock)),
            false => FileEnd::Missing,
        };
        SuiteFile { name: name.to_owned(), end, seconds: clock.elapsed().as_secs_f64() }
    }

    /// Returns psql with the variables and the environment that pg_regress sets.
    fn command(&self, path: &Path) -> Command {
        let mut command = self.cluster.client_command(&self.psql, DATABASE);
        command
            .args(["-X", "-q", "-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on", "-f"])
            .arg(path)
            .current_dir(&self.folder)
            .env("PG_ABS_SRCDIR", &self.folder)
            .env("PG_ABS_BUILDDIR", &self.folder)
            .env("PG_LIBDIR", &self.folder)
            .env("PG_DLSUFFIX", ".so")
            .env("PGTZ", "PST8PDT")
            .env("PGDATESTYLE", "Postgres, MDY")
            .env("PGOPTIONS", "-c intervalstyle=postgres_verbose")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// Returns the script of a file of the schedule, whose name may contain dots: `collate.icu.utf8`.
fn script(folder: &Path, name: &str) -> PathBuf {
    folder.join("sql").join(format!("{name}.sql"))
}

/// Waits until psql ends, and stops it if it takes too long.
fn wait(mut child: Child, clock: Instant) -> FileEnd {
    loop {
        match child.try_wait() {
            // 3: a statement failed and ON_ERROR_STOP was set.
            Ok(Some(status)) if matches!(status.code(), Some(0 | 3)) => return FileEnd::Done,
            Ok(Some(_)) | Err(_) => return FileEnd::Failed,
            Ok(None) if clock.elapsed() >= FILE_TIMEOUT || interrupted() => {
                let _ = child.kill();
                let _ = child.wait();
                return FileEnd::Stopped;
            }
            Ok(None) => thread::sleep(POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_groups_of_files() {
        let text =
            "# comment\ntest: test_setup\n\n# ----------\ntest: boolean char\tname\ntest:\nignore: random\n";
        let groups = [vec!["test_setup"], vec!["boolean", "char", "name"]];
        let groups = groups.map(|group| group.into_iter().map(ToOwned::to_owned).collect()).to_vec();
        assert_eq!(Schedule::parse(text), Schedule { groups });
    }

    #[test]
    fn names_with_dots_have_scripts() {
        assert_eq!(
            script(Path::new("/suite"), "collate.icu.utf8"),
            Path::new("/suite/sql/collate.icu.utf8.sql")
        );
    }

    #[test]
    fn a_folder_without_a_schedule_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", Schedule::read(folder.path()).unwrap_err());
        assert!(error.contains("src/test/regress"), "{error}");
        fs::write(folder.path().join("parallel_schedule"), "# nothing\n").unwrap();
        assert!(Schedule::read(folder.path()).is_err());
    }
}
