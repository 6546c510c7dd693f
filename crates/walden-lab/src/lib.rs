//! Real PostgreSQL servers for experiments: obtained, started, loaded with a workload, and always stopped.
//!
//! - [`install`]: an installed PostgreSQL, or one from a published package (kept in a cache folder)
//! - [`cluster`]: a throw-away cluster in a temporary folder, reached over a Unix socket only
//! - [`workloads`]: the workloads, a table of rows
//! - [`run`]: one workload on one cluster, whose WAL segments and facts file are kept in a folder
//! - [`culprits`]: workloads with one known culprit each, for judging findings
//! - [`random_culprits`]: culprits and servers that a seed selects, for judging findings and savings
//! - [`random_predictions`]: workloads and settings that a seed selects, for judging predictions
//! - [`regress`]: PostgreSQL's own regression suite on one cluster
//! - [`experiments`]: published experiments, repeated and compared with their figures
//! - [`demo`]: the server and the work of `walden demo`
//! - [`mariadb`]: a throw-away MariaDB, for comparison
//! - [`oracle_model`]: the redo of an engine with undo for the same row changes
//! - [`Scratch`]: a temporary folder in which programs are run to completion and measured
//!
//! This crate stops every server that it starts: when dropped, on SIGINT, SIGTERM and SIGHUP, and (by a small
//! watchdog process) even when this process is killed. PostgreSQL refuses to run as root, so as root
//! everything runs as the user `postgres` if it exists, otherwise as `nobody`.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod culprits;
pub mod data;
pub mod demo;
pub mod experiments;
mod facts;
pub mod install;
pub mod mariadb;
mod median;
pub mod oracle_model;
mod packages;
mod progress;
pub mod random_culprits;
pub mod random_predictions;
pub mod regress;
pub mod run;
mod scratch;
pub mod sshd;
mod trace;
pub mod waldump;
pub mod workloads;

use walden_server::{account, guard};

pub use cluster::{Cluster, ClusterBuilder, StopMode};
pub use facts::{Facts, Server, Setting, StatPair};
pub use install::{
    Installation, Origin, Tools, Version, Wanted, cache_dir, find_or_install, installations, tools,
};
pub use median::median;
pub use progress::Progress;
pub use run::{RunOptions, RunResult, run_workload};
pub use scratch::{Finished, Scratch};
pub use walden_server::signals::interrupted;
