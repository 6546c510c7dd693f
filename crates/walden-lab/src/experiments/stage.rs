//! The server of one case: a new cluster, or the user's server, whose settings are changed and restored.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
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
use crate::cluster::{Cluster, ClusterBuilder, StopMode, insert_lsn, run_pgbench};
use crate::facts::{self, Server, StatPair};
use crate::guard::Undo;
use crate::install::tools;
use crate::run::{self, Recording};

/// Server settings of a case, by name.
type Settings = BTreeMap<String, String>;

/// The server of a case while the case runs.
pub(crate) struct Stage {
    pub case: String,
    dsn: String,
    cluster: Option<Cluster>,
    borrowed: Option<Borrowed>,
    recording: Option<Recording>,
    keep: Option<PathBuf>,
    phases: Vec<Phase>,
}

/// Drops the lab's database on the user's server and restores its settings, when dropped.
struct Borrowed {
    _settings: Undo,
    _database: Undo,
}

impl Stage {
    /// Starts a new cluster with the case's settings, or changes those of the user's server. With `all_wal`,
    /// a cluster keeps all segments until the end.
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
        let installation = options
            .installation
            .clone()
            .context("cannot start a cluster: expected an installation of PostgreSQL")?;
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
        let restored = change_settings(&mut client, dsn, settings)?;
        client
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .context("cannot create a database on the server")?;
        let database = Undo::new({
            let (dsn, name) = (dsn.to_owned(), name.clone());
            move || {
                let dropped = connect(&dsn).and_then(|mut client| {
                    // DROP DATABASE fails while a session that has just ended is still listed in it.
                    let drop = || client.batch_execute(&format!("DROP DATABASE IF EXISTS {name}"));
                    retry(drop)
                });
                if let Err(error) = dropped {
                    eprintln!("warning: the database {name} still exists: {error:#}");
                }
            }
        });
        Ok(Stage {
            case: case.into(),
            dsn: format!("{dsn} dbname={name}"),
            cluster: None,
            borrowed: Some(Borrowed { _settings: restored, _database: database }),
            recording: None,
            keep: None,
            phases: Vec::new(),
        })
    }

    /// Connects to the database of this case.
    pub fn client(&self) -> Result<Client> {
        connect(&self.dsn)
    }

    /// The cluster; `None` on the user's server.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The server's version.
    pub fn server(&self) -> Result<Server> {
        let row =
            self.client()?.query_one("SELECT version(), current_setting('server_version_num')::int", &[])?;
        Ok(Server { version: row.get(0), version_num: row.get::<_, i32>(1).unsigned_abs() })
    }

    /// Runs `work` as a phase: records the insert position before and after, and the duration.
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

    /// Runs transactions of pgbench's built-in script with a fixed seed, and returns its output. With one
    /// client they are the same each time.
    pub fn transactions(&self, clients: u64, transactions: u64) -> Result<String> {
        let (each, clients) = (transactions.div_ceil(clients).to_string(), clients.to_string());
        let sizes = ["--client", &clients, "--transactions", &each];
        self.pgbench(&[&["--no-vacuum", "--random-seed=42", "--jobs=2"], &sizes[..]].concat())
    }

    /// Runs pgbench and returns its output.
    pub fn pgbench(&self, arguments: &[&str]) -> Result<String> {
        let program = tools().pgbench()?;
        let mut command = Command::new(&program);
        if self.cluster.is_some() {
            account::clean_environment(&mut command);
        }
        run_pgbench(command, arguments, Some(&self.dsn))
    }

    /// Reads the statistics of WAL and checkpoints, once all processes have reported theirs.
    pub fn statistics(&self) -> Result<BTreeMap<String, Value>> {
        run::settled_statistics(&mut || self.client())
    }

    /// Stops the server or restores its settings, and keeps its WAL if `--keep` requests it. Calls `look`
    /// with the WAL of a cluster before that is removed.
    pub fn finish(
        mut self,
        about: &str,
        experiment: &str,
        look: &mut dyn FnMut(&Path, &RunResult) -> Result<()>,
    ) -> Result<RunResult> {
        let mut client = self.client()?;
        let settings = facts::read_settings(&mut client)?;
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

/// Returns the increase of a counter of a statistics view between two readings.
pub(crate) fn counted(pairs: &BTreeMap<String, StatPair>, view: &str, name: &str) -> Option<f64> {
    pairs.get(view)?.delta.get(name)?.as_f64()
}

/// Returns the number of checkpoints between two readings: from `pg_stat_checkpointer` since 17, from
/// `pg_stat_bgwriter` before.
pub(crate) fn checkpoints(pairs: &BTreeMap<String, StatPair>) -> Option<f64> {
    let sum = |view: &str, names: [&str; 2]| -> Option<f64> {
        Some(counted(pairs, view, names[0])? + counted(pairs, view, names[1])?)
    };
    sum("pg_stat_checkpointer", ["num_timed", "num_requested"])
        .or_else(|| sum("pg_stat_bgwriter", ["checkpoints_timed", "checkpoints_req"]))
}

/// Returns pgbench's transactions per second.
pub(crate) fn tps(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

/// Returns the bytes of WAL of a phase: the difference of its LSNs, as in published volumes.
pub(crate) fn bytes(phase: &Phase) -> u64 {
    let Lsn(from) = phase.from;
    phase.to.0.saturating_sub(from)
}

fn connect(dsn: &str) -> Result<Client> {
    Client::connect(dsn, NoTls).context("cannot connect to the server")
}

/// A setting's value in `postgresql.auto.conf`; `None` if the file does not contain it.
struct EarlierSetting {
    name: String,
    value: Option<String>,
}

/// Changes settings of the user's server with `ALTER SYSTEM`. They are restored when the result is dropped,
/// on a signal, and after an error.
fn change_settings(client: &mut Client, dsn: &str, settings: &Settings) -> Result<Undo> {
    let earlier = Arc::new(Mutex::new(earlier_settings(client, settings)?));
    // A signal may arrive at the first change; the lock delays the restore until after the last one.
    let changing = earlier.lock().unwrap_or_else(PoisonError::into_inner);
    let restored = Undo::new({
        let (dsn, earlier) = (dsn.to_owned(), earlier.clone());
        move || restore(&dsn, &earlier.lock().unwrap_or_else(PoisonError::into_inner))
    });
    let changed = settings.iter().try_for_each(|(name, value)| alter(client, name, Some(value)));
    drop(changing);
    changed?;
    reload(client)?;
    Ok(restored)
}

/// Reads the values in `postgresql.auto.conf` of settings that can be changed without a restart.
fn earlier_settings(client: &mut Client, settings: &Settings) -> Result<Vec<EarlierSetting>> {
    let mut earlier = Vec::new();
    for name in settings.keys() {
        let row = client.query_opt("SELECT context, setting FROM pg_settings WHERE name = $1", &[name])?;
        let Some(row) = row else { bail!("cannot change {name}: the server has no such setting") };
        let context: String = row.get(0);
        ensure!(
            !matches!(context.as_str(), "postmaster" | "internal"),
            "cannot change {name}: it takes effect only when the server starts; without --dsn a new cluster is used"
        );
        let row = client
            .query_opt(
                "SELECT setting FROM pg_file_settings
                 WHERE name = $1 AND sourcefile LIKE '%postgresql.auto.conf' ORDER BY seqno DESC LIMIT 1",
                &[name],
            )
            .context("cannot change settings: expected the rights of a superuser")?;
        earlier.push(EarlierSetting { name: name.clone(), value: row.map(|row| row.get(0)) });
    }
    Ok(earlier)
}

fn alter(client: &mut Client, name: &str, value: Option<&str>) -> Result<()> {
    let statement = alter_statement(name, value);
    client.batch_execute(&statement).with_context(|| statement.clone())
}

/// Returns the statement that sets a value in `postgresql.auto.conf`, or removes the setting from it.
fn alter_statement(name: &str, value: Option<&str>) -> String {
    // The name needs no quoting: it was found in pg_settings.
    match value {
        Some(value) => format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''")),
        None => format!("ALTER SYSTEM RESET {name}"),
    }
}

/// Reloads the configuration, and waits until the processes have read it.
fn reload(client: &mut Client) -> Result<()> {
    client.batch_execute("SELECT pg_reload_conf()")?;
    thread::sleep(Duration::from_millis(300));
    // The checkpointer applies full_page_writes (UpdateFullPageWrites) before it runs a checkpoint.
    client.batch_execute("CHECKPOINT")?;
    Ok(())
}

fn restore(dsn: &str, earlier: &[EarlierSetting]) {
    let restored = connect(dsn).and_then(|mut client| {
        for EarlierSetting { name, value } in earlier {
            alter(&mut client, name, value.as_deref())?;
        }
        reload(&mut client)
    });
    if let Err(error) = restored {
        eprintln!("warning: cannot restore the server's settings ({error:#}); run these statements:");
        for EarlierSetting { name, value } in earlier {
            eprintln!("  {};", alter_statement(name, value.as_deref()));
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

/// Removes a folder with its content, if it exists.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
