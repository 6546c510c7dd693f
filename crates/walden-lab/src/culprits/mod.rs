//! Workloads with one known culprit each, for judging the findings about their WAL.
//!
//! [`CULPRITS`] has a row per culprit: settings, statements, and the finding that an expert would expect.
//! Each case has its own tables, next to bystander tables that a wrong rule would blame. The caller provides
//! the findings, because this crate does not read WAL.

mod run;
mod table;

use serde::Serialize;

pub use run::{CulpritOptions, Judge, Observed, Window, run_culprits};
pub use table::CULPRITS;

/// A workload with one known culprit.
#[derive(Debug)]
pub struct Culprit {
    /// Its name on the command line.
    pub name: &'static str,
    /// The work of its clients, in one line.
    pub about: &'static str,
    /// The server that it needs; cases that need the same one share it.
    pub server: ServerKind,
    /// The first major version that writes this WAL.
    pub since: u32,
    /// Prepares its tables, before the judged WAL starts.
    pub(crate) setup: &'static [Step],
    /// The judged work.
    pub(crate) run: &'static [Step],
    /// The expected first finding of its kind; `None` if there must be no cause.
    pub expected: Option<Expected>,
    /// Rules whose findings are also true of this workload.
    pub also: &'static [&'static str],
}

/// The finding that an expert would expect.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Expected {
    /// `cause` or `setting`.
    pub kind: &'static str,
    /// The name of the rule.
    pub rule: &'static str,
    /// Text that `points_at` must contain.
    pub object: &'static str,
    /// Text that the remedy must contain.
    pub remedy: &'static str,
}

/// The configurations of servers that culprits need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// Defaults without autovacuum and timed checkpoints.
    Plain,
    /// Data checksums.
    Checksums,
    /// `wal_level=logical`
    Logical,
    /// Segments are archived, and switched every second.
    ArchiveTimeout,
    /// Segments of 1 MB and `max_wal_size=4MB`.
    SmallWal,
    /// `checkpoint_timeout=30s`
    TimedCheckpoints,
    /// `wal_consistency_checking=all`
    Consistency,
}

impl ServerKind {
    /// All kinds.
    pub const ALL: [ServerKind; 7] = [
        ServerKind::Plain,
        ServerKind::Checksums,
        ServerKind::Logical,
        ServerKind::ArchiveTimeout,
        ServerKind::SmallWal,
        ServerKind::TimedCheckpoints,
        ServerKind::Consistency,
    ];

    /// Returns settings in addition to those of every culprit's server.
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            ServerKind::Plain | ServerKind::Checksums => &[],
            ServerKind::Logical => &[("wal_level", "logical")],
            ServerKind::ArchiveTimeout => {
                &[("archive_mode", "on"), ("archive_command", "true"), ("archive_timeout", "1s")]
            }
            ServerKind::SmallWal => {
                &[("max_wal_size", "4MB"), ("min_wal_size", "2MB"), ("checkpoint_completion_target", "0.1")]
            }
            // WAL contains a checkpoint's record once the checkpoint has ended.
            ServerKind::TimedCheckpoints => {
                &[("checkpoint_timeout", "30s"), ("checkpoint_completion_target", "0.1")]
            }
            ServerKind::Consistency => &[("wal_consistency_checking", "all")],
        }
    }

    /// Returns the size of a segment in MB, if it is not PostgreSQL's default.
    pub fn wal_segsize_mb(self) -> Option<u32> {
        (self == ServerKind::SmallWal).then_some(1)
    }
}

/// A step of a workload.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// One message to the server: one transaction, unless it has its own `COMMIT`s.
    Sql(&'static str),
    /// A statement in another database.
    In(&'static str, &'static str),
    /// A statement, in which `$dsn` is a connection string of another database.
    With(&'static str, &'static str),
    /// So many sessions at a time, each with the statement, in which `$session` is its number from 1 on.
    Sessions(u32, &'static str),
    /// A number of rounds; each runs every statement as a separate message, in which `$round` is the number
    /// of the round, starting at 1.
    Rounds(u32, &'static [&'static str]),
    /// pgbench with these arguments.
    Pgbench(&'static [&'static str]),
    /// A statement in a session of its own, which stays open until the last step has ended.
    Open(&'static str),
    /// Milliseconds in which nothing happens.
    Pause(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn culprits_have_distinct_names_that_are_schemas() {
        let mut names: Vec<&str> = CULPRITS.iter().map(|culprit| culprit.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CULPRITS.len());
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
    }
}
