//! The demo's server and its workload: the same statements in the same order each time.

use std::path::Path;

use anyhow::{Context as _, Result};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};

use crate::cluster::insert_lsn;
use crate::{Cluster, ClusterBuilder, Installation, Progress, StopMode};

/// The database in which the work is done.
pub const DATABASE: &str = "shop";

/// Settings under which the WAL shows several effects, such as frequent checkpoints. Autovacuum is off so
/// that two servers do the same work.
const SETTINGS: [(&str, &str); 7] = [
    ("max_wal_size", "32MB"),
    ("checkpoint_completion_target", "0.5"),
    ("checkpoint_timeout", "5min"),
    ("synchronous_commit", "off"),
    ("autovacuum", "off"),
    ("max_connections", "20"),
    ("wal_keep_size", "8GB"),
];

/// Clients of pgbench.
const CLIENTS: u32 = 4;

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

/// Parameters of the workload.
pub struct Work<'a> {
    /// The PostgreSQL that the server runs.
    pub installation: Installation,
    /// Total number of pgbench transactions, over all clients.
    pub transactions: u32,
    /// Receives the phases of the work.
    pub progress: &'a Progress,
}

/// A server that has done the work.
pub struct Worked {
    /// The server.
    pub cluster: Cluster,
    /// Start and end LSN of the work.
    pub range: (Lsn, Lsn),
}

impl Work<'_> {
    /// Starts a server with the demo's settings overridden by `changes`, and does the work.
    ///
    /// # Errors
    /// The server cannot be started, or a statement fails.
    pub fn on_new_server(&self, changes: &[(&str, &str)]) -> Result<Worked> {
        self.progress.phase("starting the server");
        // Small segments make the distances between checkpoints more even.
        let mut builder = ClusterBuilder::new(self.installation.clone()).wal_segsize_mb(1);
        for (name, value) in SETTINGS.iter().chain(changes) {
            builder = builder.setting(name, value);
        }
        let cluster = builder.start()?;
        let range = self.run(&cluster)?;
        Ok(Worked { cluster, range })
    }

    fn run(&self, cluster: &Cluster) -> Result<(Lsn, Lsn)> {
        let progress = self.progress;
        cluster.client("postgres")?.batch_execute(&format!("CREATE DATABASE {DATABASE}"))?;
        progress.phase("filling pgbench's tables");
        cluster.pgbench(DATABASE, &["--initialize", "--quiet", "--scale", "3"])?;
        let mut client = cluster.client(DATABASE)?;
        client.batch_execute("CHECKPOINT; SELECT pg_switch_wal(); CHECKPOINT")?;
        let start = insert_lsn(&mut client)?;

        let (clients, each) = (CLIENTS.to_string(), (self.transactions / CLIENTS).max(1).to_string());
        progress.phase(&format!("{} transactions of pgbench", self.transactions));
        let arguments = ["--client", &clients, "--jobs", "2", "--no-vacuum", "--random-seed", "42"];
        cluster.pgbench(DATABASE, &[&arguments[..], &["--transactions", &each]].concat())?;
        for (what, sql) in STATEMENTS {
            progress.phase(what);
            client.batch_execute(sql).with_context(|| format!("cannot run the statements for {what}"))?;
        }
        progress.phase("VACUUM");
        for statement in ["VACUUM pgbench_accounts", "INSERT INTO counters VALUES ('last', 0)"] {
            client.batch_execute(statement)?;
        }
        let end = insert_lsn(&mut client)?;
        // Flushes inserted WAL to the segments: `synchronous_commit` is off.
        client.batch_execute("CHECKPOINT")?;
        Ok((start, end))
    }
}

impl Worked {
    /// Returns the bytes of WAL that the work wrote.
    pub fn bytes(&self) -> u64 {
        self.range.1.bytes_since(self.range.0)
    }

    /// Returns the methods of `wal_compression` that the server was built with; empty if the setting is a
    /// boolean, as in 14.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn compression_methods(&self) -> Result<Vec<String>> {
        let query = "SELECT coalesce(enumvals, '{}') FROM pg_settings WHERE name = 'wal_compression'";
        Ok(self.cluster.client(DATABASE)?.query_one(query, &[])?.get(0))
    }

    /// Stops the server, and copies the work's segments to a folder.
    ///
    /// # Errors
    /// The server cannot be stopped, or its segments cannot be copied.
    pub fn stop(&self, folder: &Path) -> Result<()> {
        self.cluster.stop(StopMode::Fast)?;
        let size = SegmentSize::new(self.cluster.wal_segment_bytes())
            .context("cannot collect the WAL: the server has segments of no valid size")?;
        let first = SegmentName::new(1, size.segment_of(self.range.0), size);
        self.cluster.collect_wal(&first.to_string(), folder)?;
        Ok(())
    }
}
