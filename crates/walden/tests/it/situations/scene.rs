//! A server in a situation, Walden's answer, and the effect of a remedy.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, SimpleQueryMessage};
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Missing, postgres};

use crate::archive::text;
use crate::material::{Run, walden};

/// Bytes in a megabyte, which is the segment size here.
pub const MB: u64 = 1 << 20;

/// A server with segments of 1 MB, and a session in it.
pub struct Scene {
    pub cluster: Cluster,
    pub client: Client,
}

impl Scene {
    /// Starts a server with these settings, which writes no WAL on its own.
    pub fn start(major: u32, settings: &[(&str, &str)]) -> Result<Scene, Missing> {
        let quiet = [
            ("autovacuum", "off"),
            ("checkpoint_timeout", "1h"),
            ("max_wal_size", "64MB"),
            ("min_wal_size", "2MB"),
        ];
        let builder = ClusterBuilder::new(postgres(major)?).wal_segsize_mb(1);
        let all = quiet.iter().chain(settings);
        let cluster =
            all.fold(builder, |builder, (name, value)| builder.setting(name, value)).start().unwrap();
        let client = cluster.client("postgres").unwrap();
        let mut scene = Scene { cluster, client };
        scene.run("CREATE TABLE t (fill text)");
        Ok(scene)
    }

    /// Starts a standby of this server, with these settings.
    pub fn start_standby(&mut self, settings: &[(&str, &str)]) -> Scene {
        self.run("SELECT pg_create_physical_replication_slot('standby', true)");
        self.cluster.stop(StopMode::Fast).unwrap();
        let builder = ClusterBuilder::new(self.cluster.installation().clone())
            .copy_of(&self.cluster.data_dir())
            .setting("primary_conninfo", &self.cluster.dsn("postgres"))
            .setting("primary_slot_name", "standby")
            .setting("hot_standby_feedback", "on");
        let builder = settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        let standby = builder.start_after(|data| {
            // A base backup has no slots.
            for slot in fs::read_dir(data.join("pg_replslot"))? {
                fs::remove_dir_all(slot?.path())?;
            }
            Ok(fs::write(data.join("standby.signal"), "")?)
        });
        self.cluster.start().unwrap();
        self.client = self.cluster.client("postgres").unwrap();
        let cluster = standby.unwrap();
        let client = cluster.client("postgres").unwrap();
        let mut standby = Scene { cluster, client };
        standby.replay(self);
        standby
    }

    /// Waits until this standby has replayed all WAL of its primary.
    pub fn replay(&mut self, primary: &mut Scene) {
        let end = primary.run("SELECT pg_current_wal_flush_lsn()").unwrap();
        self.wait(&format!("SELECT pg_last_wal_replay_lsn() >= '{end}'"));
    }

    /// Makes a restart point on this standby as the remedies advise.
    pub fn restart_point(&mut self, primary: &mut Scene) {
        primary.run("CHECKPOINT");
        self.replay(primary);
        self.run("CHECKPOINT");
    }

    /// Runs a statement, and returns the first column of its first row.
    pub fn run(&mut self, statement: &str) -> Option<String> {
        let messages = self.client.simple_query(statement);
        let messages = messages.unwrap_or_else(|error| panic!("{statement}: {error}"));
        messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    /// Waits until a query returns `t`.
    pub fn wait(&mut self, query: &str) {
        let began = Instant::now();
        while self.run(query).as_deref() != Some("t") {
            assert!(began.elapsed() < Duration::from_secs(60), "{query}\n{}", self.cluster.log_tail());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Changes a setting, as an administrator does, and waits until all processes have read it.
    pub fn set(&mut self, name: &str, value: &str) {
        self.run(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        self.run("SELECT pg_reload_conf()");
        thread::sleep(Duration::from_millis(500));
    }

    /// Writes at least this many megabytes of WAL.
    pub fn write(&mut self, megabytes: u32) {
        for _ in 0..megabytes {
            self.run("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 900)");
        }
    }

    /// Returns the size of the files in `pg_wal`, as the server lists them.
    pub fn wal_bytes(&mut self) -> u64 {
        self.run("SELECT sum(size) FROM pg_ls_waldir()").unwrap().parse().unwrap()
    }

    /// Runs `walden retention` with the server and its files.
    pub fn ask(&self) -> Answer {
        let (data, dsn) = (self.cluster.data_dir(), self.cluster.dsn("postgres"));
        Answer::run(&[text(&data), "--dsn", &dsn])
    }

    /// Runs `walden retention` with the files only.
    pub fn ask_files(&self) -> Answer {
        Answer::run(&[text(&self.cluster.data_dir())])
    }

    /// Runs `walden archive status` for an archive and this server.
    pub fn archive_status(&self, repo: &std::path::Path) -> Run {
        let dsn = self.cluster.dsn("postgres");
        walden(&["archive", "status", "--repo", text(repo), "--dsn", &dsn])
    }

    /// Carries out the remedy whose text has `part`, after a checkpoint has released its own share. Expects
    /// that `pg_wal` shrinks by the bytes that this remedy promised. As the answer advises, checkpoints here
    /// remove files instead of renaming them.
    pub fn carry_out(&mut self, part: &str, action: impl FnOnce(&mut Scene)) {
        self.carry_out_after(part, action, |scene| {
            scene.run("CHECKPOINT");
        });
    }

    /// Like [`Scene::carry_out`], for remedies that need more than a final checkpoint.
    pub fn carry_out_after(
        &mut self,
        part: &str,
        action: impl FnOnce(&mut Scene),
        finish: impl FnOnce(&mut Scene),
    ) {
        self.set("wal_recycle", "off");
        self.run("CHECKPOINT");
        self.run("CHECKPOINT");
        let (answer, before) = (self.ask(), self.wal_bytes());
        let promised = answer.remedy(part)["releases_bytes"].as_u64().unwrap();
        action(self);
        finish(self);
        let released = before.saturating_sub(self.wal_bytes());
        assert!(promised >= 4 * MB, "{part} promises {promised}: {:#}", answer.document);
        let difference = promised.abs_diff(released);
        assert!(
            difference <= 2 * MB,
            "{part} promised {promised} and released {released}: {:#}",
            answer.document
        );
    }
}

/// The answer of `walden retention`.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub text: String,
    pub document: Value,
}

impl Answer {
    pub fn run(arguments: &[&str]) -> Answer {
        let print = |format: &str| walden(&[&["retention", "--format", format], arguments].concat());
        let (table, json) = (print("table"), print("json"));
        assert!(table.code <= 1 && table.code == json.code, "{table:?}, {json:?}");
        // Lines are wrapped to the terminal's width.
        let text = table.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        Answer { code: table.code, text, document: serde_json::from_str(&json.stdout).unwrap() }
    }

    /// Returns the bytes that a holder keeps.
    pub fn holds(&self, kind: &str) -> u64 {
        let holders = self.document["holders"].as_array().unwrap();
        let of_kind = holders.iter().filter(|holder| holder["kind"] == kind);
        of_kind.map(|holder| holder["holds_bytes"].as_u64().unwrap()).sum()
    }

    /// Returns the remedy whose text has `part`.
    pub fn remedy(&self, part: &str) -> &Value {
        let remedies = self.document["remedies"].as_array().unwrap();
        let is_it = |remedy: &&Value| remedy["text"].as_str().unwrap().contains(part);
        remedies.iter().find(is_it).unwrap_or_else(|| panic!("no remedy has {part:?}: {:#}", self.document))
    }

    /// Expects an exit status, and parts of the text.
    pub fn expect(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.text);
        for part in parts {
            assert!(self.text.contains(part), "expected {part:?}: {}", self.text);
        }
    }
}
