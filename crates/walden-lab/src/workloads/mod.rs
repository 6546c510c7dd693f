//! The workloads, one file each, and the table that lists them.

mod dense;
mod dml_matrix;
mod golden;
mod index_types;
mod load;
mod mixed;
mod oltp;

use anyhow::Result;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::progress::Progress;

/// A workload: a row of the table below.
#[derive(Debug)]
pub struct Workload {
    /// The workload's name on the command line.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    /// The default size, in `unit`; it takes less than a minute on two cores.
    pub default_size: u64,
    /// The unit of the size: transactions, rows, MB.
    pub unit: &'static str,
    /// Server settings that belong to the workload.
    pub settings: &'static [(&'static str, &'static str)],
    /// Segment size in MB; PostgreSQL's default if `None`.
    pub wal_segsize_mb: Option<u32>,
    /// Data checksums; the version's default if `None`.
    pub checksums: Option<bool>,
    /// Prepares the tables, before the kept WAL starts.
    pub(crate) setup: fn(&Context<'_>) -> Result<()>,
    /// Runs the workload. Returns its own measurements for `facts.json`.
    pub(crate) run: fn(&Context<'_>) -> Result<Value>,
}

/// The cluster, size and seed of a run.
pub(crate) struct Context<'a> {
    pub cluster: &'a Cluster,
    pub size: u64,
    pub seed: u64,
    pub progress: &'a Progress,
    /// Settings given by the user, which the workload must not change.
    pub own_settings: &'a [(String, String)],
}

/// Without work and settings.
pub(crate) const BASE: Workload = Workload {
    name: "",
    about: "",
    default_size: 1,
    unit: "transactions",
    settings: &[],
    wal_segsize_mb: None,
    checksums: None,
    setup: |_| Ok(()),
    run: |_| Ok(Value::Null),
};

const SINGLE: &[(&str, &str)] =
    &[("autovacuum", "off"), ("checkpoint_timeout", "1h"), ("shared_buffers", "512MB")];

const MIXED: &[(&str, &str)] = &[
    ("autovacuum_naptime", "2s"),
    ("max_prepared_transactions", "20"),
    ("max_wal_size", "256MB"),
    ("maintenance_work_mem", "64MB"),
];

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "oltp",
        about: "pgbench's TPC-B-like transactions from 4 clients at scale 10",
        default_size: 60_000,
        setup: oltp::setup,
        run: oltp::run,
        ..BASE
    },
    Workload {
        name: "oltp-pressure",
        about: "the same with checkpoints every few seconds (max_wal_size=32MB, checkpoint_timeout=30s)",
        default_size: 60_000,
        settings: &[("max_wal_size", "32MB"), ("min_wal_size", "32MB"), ("checkpoint_timeout", "30s")],
        setup: oltp::setup,
        run: oltp::run,
        ..BASE
    },
    Workload {
        name: "oltp-single",
        about: "pgbench's transactions from one client without autovacuum: the same WAL each time, but for settings",
        default_size: 30_000,
        settings: SINGLE,
        setup: oltp::setup_single,
        run: oltp::run_single,
        ..BASE
    },
    Workload {
        name: "oltp-paced",
        about: "the same at 200 transactions a second, so that time brings checkpoints at the same place each time",
        default_size: 20_000,
        settings: SINGLE,
        setup: oltp::setup_single,
        run: oltp::run_paced,
        ..BASE
    },
    Workload {
        name: "load",
        about: "COPY into three tables, then b-tree, GIN and BRIN indexes, primary keys and VACUUM FREEZE",
        default_size: 100,
        unit: "MB of table data",
        settings: &[("autovacuum", "off"), ("max_wal_size", "4GB"), ("maintenance_work_mem", "256MB")],
        setup: load::setup,
        run: load::run,
        ..BASE
    },
    Workload {
        name: "dml-matrix",
        about: "insert, update, sparse update, delete and vacuum of one table, with full_page_writes on and off",
        default_size: 1_000_000,
        unit: "rows",
        settings: &[("autovacuum", "off"), ("max_wal_size", "100GB"), ("checkpoint_timeout", "1h")],
        run: dml_matrix::run,
        ..BASE
    },
    Workload {
        name: "dense",
        about: "small transactions of one client with full_page_writes=off: as many small records as possible",
        default_size: 500_000,
        settings: &[("full_page_writes", "off"), ("autovacuum", "off"), ("max_wal_size", "4GB")],
        setup: dense::setup,
        run: dense::run,
        ..BASE
    },
    Workload {
        name: "mixed",
        about: "a shop with 4 clients: all index types, TOAST, partitions, savepoints, two-phase commit, DDL, vacuum",
        default_size: 30_000,
        settings: MIXED,
        setup: mixed::setup,
        run: mixed::run,
        ..BASE
    },
    Workload {
        name: "mixed-paced",
        about: "the same at 400 transactions a second, so that autovacuum, which depends on the clock, does much the same each time",
        default_size: 30_000,
        settings: MIXED,
        setup: mixed::setup,
        run: mixed::run_paced,
        ..BASE
    },
    Workload {
        name: "index-types",
        about: "rows with points, ranges, words and documents: GiST, SP-GiST and bloom indexes, values compressed by the server",
        default_size: 60_000,
        unit: "rows",
        settings: &[("autovacuum", "off"), ("max_wal_size", "4GB"), ("checkpoint_timeout", "1h")],
        setup: index_types::setup,
        run: index_types::run,
        ..BASE
    },
    Workload {
        name: "golden",
        about: "a tour by one client through every resource manager in about 2 MB of WAL, in segments of 1 MB",
        unit: "rounds",
        settings: &[
            ("autovacuum", "off"),
            ("max_prepared_transactions", "5"),
            ("track_commit_timestamp", "on"),
            ("max_wal_size", "1GB"),
            ("checkpoint_timeout", "1h"),
            ("shared_buffers", "32MB"),
        ],
        wal_segsize_mb: Some(1),
        checksums: Some(true),
        run: golden::run,
        ..BASE
    },
];

/// Returns all workloads, in the order of `walden lab list`.
pub fn all() -> &'static [Workload] {
    WORKLOADS
}

/// Finds a workload by its name.
pub fn by_name(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}
