//! The server of one case: a fresh cluster, or the user's own with settings changed and put back.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use postgres::{Client, NoTls};
use serde_json::Value;
use walden_format::lsn::Lsn;

use super::definition::Case;
use super::report::{Kept, Phase, RunResult};
use super::{Lab, Options};
use crate::account;
use crate::cluster::{Cluster, ClusterBuilder, StopMode, insert_lsn};
use crate::facts::{self, Server, StatPair};
use crate::guard::Undo;
use crate::install::tools;
use crate::run::{self, Recording};

/// Settings that make a server write differently, as a case wants them.
type Settings = BTreeMap<String, String>;

/// A server at work for one case.
pub(crate) struct Stage {
    pub case: String,
    dsn: String,
    cluster: Option<Cluster>,
    borrowed: Option<Borrowed>,
    recording: Option<Recording>,
    keep: Option<PathBuf>,
    phases: Vec<Phase>,
}

/// A database of its own on a server of the user's, and the settings that were there.
struct Borrowed {
    _settings: Undo,
    _database: Undo,
}

impl Stage {
    /// Starts a fresh cluster under the case's settings, or changes those of the user's server. With `all_wal` a cluster
    /// keeps every segment until the end.
    pub fn start(lab: &mut Lab<'_>, case: &Case, all_wal: bool) -> Result<Stage> {
        lab.options.progress.phase(&format!("{}: starting the server", case.name));
        let mut settings = lab.definition.settings.clone();
        settings.extend(case.settings.clone());
        let stage = match &lab.options.dsn {
            Some(dsn) => Stage::borrow(dsn, &case.name, &settings),
            None => Stage::own(lab.options, case, &settings, all_wal),
        }?;
        lab.server = Some(stage.server()?);
        Ok(stage)
    }

    fn own(options: &Options, case: &Case, settings: &Settings, all_wal: bool) -> Result<Stage> {
        let installation = options.installation.clone().context("no PostgreSQL was looked for")?;
        let is_kept = case.keep != Some(false);
        let keep = options.keep.as_ref().filter(|_| is_kept).map(|folder| folder.join(&case.name));
        if let Some(folder) = &keep {
            run::prepare_output(folder, options.force)?;
        }
        let mut builder = ClusterBuilder::new(installation);
        if let Some(megabytes) = case.segment_megabytes {
            builder = builder.wal_segsize_mb(megabytes);
        }
        if all_wal || keep.is_some() {
            builder = run::keep_wal(builder);
        }
        for (name, value) in settings.iter().chain(options.settings.iter().map(|(name, value)| (name, value)))
        {
            builder = builder.setting(name, value);
        }
        let cluster = builder.start()?;
        let recording = keep.as_ref().map(|_| Recording::begin(&cluster, None)).transpose()?;
        Ok(Stage {
            case: case.name.clone(),
            dsn: cluster.dsn("postgres"),
            cluster: Some(cluster),
            borrowed: None,
            recording,
            keep,
            phases: Vec::new(),
        })
    }

    fn borrow(dsn: &str, case: &str, settings: &Settings) -> Result<Stage> {
        let mut client = connect(dsn)?;
        let name = format!("walden_lab_{}", std::process::id());
        let before = apply(&mut client, settings)?;
        let undone = Undo::new({
            let dsn = dsn.to_owned();
            move || restore(&dsn, &before)
        });
        client
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .context("cannot create a database of its own")?;
        let database = Undo::new({
            let (dsn, name) = (dsn.to_owned(), name.clone());
            move || {
                let dropped = connect(&dsn).and_then(|mut client| {
                    // Sessions that have just ended may still be seen in it.
                    let drop = || client.batch_execute(&format!("DROP DATABASE IF EXISTS {name}"));
                    retry(drop)
                });
                if let Err(error) = dropped {
                    eprintln!("warning: the database {name} is still there: {error:#}");
                }
            }
        });
        Ok(Stage {
            case: case.into(),
            dsn: format!("{dsn} dbname={name}"),
            cluster: None,
            borrowed: Some(Borrowed { _settings: undone, _database: database }),
            recording: None,
            keep: None,
            phases: Vec::new(),
        })
    }

    /// Connects to the database of this case.
    pub fn client(&self) -> Result<Client> {
        connect(&self.dsn)
    }

    /// The cluster, if it is one of its own.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The server's version.
    pub fn server(&self) -> Result<Server> {
        let row =
            self.client()?.query_one("SELECT version(), current_setting('server_version_num')::int", &[])?;
        Ok(Server { version: row.get(0), version_num: row.get::<_, i32>(1).unsigned_abs() })
    }

    /// Does something, and notes where the log was before and after.
    pub fn phase<T>(&mut self, name: &str, work: impl FnOnce(&Stage) -> Result<T>) -> Result<(T, Phase)> {
        let mut client = self.client()?;
        let from = insert_lsn(&mut client)?;
        let clock = Instant::now();
        let result = work(self)?;
        let seconds = clock.elapsed().as_secs_f64();
        let phase = Phase { name: name.into(), from, to: insert_lsn(&mut client)?, seconds };
        self.phases.push(phase.clone());
        Ok((result, phase))
    }

    /// Runs so many of pgbench's own transactions, the same ones each time for one client; what it prints.
    pub fn transactions(&self, clients: u64, transactions: u64) -> Result<String> {
        let (each, clients) = (transactions.div_ceil(clients).to_string(), clients.to_string());
        let sizes = ["--client", &clients, "--transactions", &each];
        self.pgbench(&[&["--no-vacuum", "--random-seed=42", "--jobs=2"], &sizes[..]].concat())
    }

    /// Runs pgbench to its end; what it prints.
    pub fn pgbench(&self, arguments: &[&str]) -> Result<String> {
        let program = tools().pgbench()?;
        let mut command = Command::new(&program);
        if self.cluster.is_some() {
            account::clean_environment(&mut command);
        }
        let output = command.args(arguments).arg(&self.dsn).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{} {} failed ({}):\n{}",
                program.display(),
                arguments.join(" "),
                output.status,
                stderr.trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The statistics of the log and of checkpoints, when all processes have reported theirs.
    pub fn statistics(&self) -> Result<BTreeMap<String, Value>> {
        run::settled_statistics(&mut || self.client())
    }

    /// Stops the server or puts its settings back, and keeps its log if that was asked for.
    pub fn finish(
        mut self,
        about: &str,
        experiment: &str,
        look: &mut dyn FnMut(&Path, &RunResult) -> Result<()>,
    ) -> Result<RunResult> {
        let mut client = self.client()?;
        let settings = facts::settings(&mut client)?;
        drop(client);
        let mut result = RunResult {
            case: self.case.clone(),
            settings,
            phases: std::mem::take(&mut self.phases),
            kept: None,
        };
        drop(self.borrowed.take());
        let Some(cluster) = self.cluster.take() else { return Ok(result) };
        let (Some(recording), Some(folder)) = (self.recording.take(), self.keep.take()) else {
            cluster.stop(StopMode::Fast)?;
            look(&cluster.data_dir().join("pg_wal"), &result)?;
            return Ok(result);
        };
        let mut facts = recording.finish(&cluster, &folder, &mut |_| Ok(()))?;
        facts.workload = format!("{experiment}/{}", result.case);
        facts.about = about.into();
        facts.size = 1;
        facts.size_unit = "case of an experiment".into();
        facts.notes = serde_json::json!({ "phases": result.phases });
        run::write_facts(&folder, &facts)?;
        let wal = folder.join("wal");
        look(&wal, &result)?;
        result.kept = Some(Kept { wal, folder });
        Ok(result)
    }
}

/// The number of a statistic that counts up, between two readings.
pub(crate) fn counted(pairs: &BTreeMap<String, StatPair>, view: &str, name: &str) -> Option<f64> {
    pairs.get(view)?.delta.get(name)?.as_f64()
}

/// Checkpoints completed between two readings: until 16 in `pg_stat_bgwriter`, then in a view of their own.
pub(crate) fn checkpoints(pairs: &BTreeMap<String, StatPair>) -> Option<f64> {
    let sum = |view: &str, names: [&str; 2]| -> Option<f64> {
        Some(counted(pairs, view, names[0])? + counted(pairs, view, names[1])?)
    };
    sum("pg_stat_checkpointer", ["num_timed", "num_requested"])
        .or_else(|| sum("pg_stat_bgwriter", ["checkpoints_timed", "checkpoints_req"]))
}

/// pgbench's transactions per second.
pub(crate) fn tps(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

/// The sum of bytes between two positions, as published volumes count them.
pub(crate) fn bytes(phase: &Phase) -> u64 {
    let Lsn(from) = phase.from;
    phase.to.0.saturating_sub(from)
}

fn connect(dsn: &str) -> Result<Client> {
    Client::connect(dsn, NoTls).context("cannot connect to the server")
}

/// Changes settings by ALTER SYSTEM, and says what each was there before, if it was.
fn apply(client: &mut Client, settings: &Settings) -> Result<Vec<(String, Option<String>)>> {
    let mut before = Vec::new();
    for name in settings.keys() {
        let row = client.query_opt("SELECT context, setting FROM pg_settings WHERE name = $1", &[name])?;
        let Some(row) = row else { bail!("the server has no setting {name}") };
        let context: String = row.get(0);
        ensure!(
            !matches!(context.as_str(), "postmaster" | "internal"),
            "{name} takes effect only when the server starts; leave --dsn out to have a server of its own"
        );
        let row = client
            .query_opt(
                "SELECT setting FROM pg_file_settings
                 WHERE name = $1 AND sourcefile LIKE '%postgresql.auto.conf' ORDER BY seqno DESC LIMIT 1",
                &[name],
            )
            .context("changing settings needs the rights of a superuser")?;
        before.push((name.clone(), row.map(|row| row.get(0))));
    }
    let undo = before.clone();
    for (name, value) in settings {
        if let Err(error) = alter(client, name, Some(value)) {
            put_back(client, &undo)?;
            return Err(error);
        }
    }
    reload(client)?;
    Ok(before)
}

fn alter(client: &mut Client, name: &str, value: Option<&str>) -> Result<()> {
    // Names were looked up in pg_settings before.
    let statement = match value {
        Some(value) => format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''")),
        None => format!("ALTER SYSTEM RESET {name}"),
    };
    client.batch_execute(&statement).with_context(|| statement.clone())
}

fn put_back(client: &mut Client, before: &[(String, Option<String>)]) -> Result<()> {
    for (name, value) in before {
        alter(client, name, value.as_deref())?;
    }
    reload(client)
}

/// Reloads, and lets the processes take notice before anything is measured.
fn reload(client: &mut Client) -> Result<()> {
    client.batch_execute("SELECT pg_reload_conf()")?;
    thread::sleep(Duration::from_millis(300));
    // full_page_writes is changed by the checkpointer, and a checkpoint ends only after that.
    client.batch_execute("CHECKPOINT")?;
    Ok(())
}

fn restore(dsn: &str, before: &[(String, Option<String>)]) {
    let restored = connect(dsn).and_then(|mut client| put_back(&mut client, before));
    if let Err(error) = restored {
        eprintln!("warning: settings could not be put back ({error:#}); by hand:");
        for (name, value) in before {
            match value {
                Some(value) => eprintln!("  ALTER SYSTEM SET {name} = '{value}';"),
                None => eprintln!("  ALTER SYSTEM RESET {name};"),
            }
        }
    }
}

fn retry(mut what: impl FnMut() -> Result<(), postgres::Error>) -> Result<()> {
    let mut tries = 0;
    while let Err(error) = what() {
        tries += 1;
        if tries == 20 {
            return Err(error.into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Removes what is in a folder, if it is there.
pub(crate) fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
