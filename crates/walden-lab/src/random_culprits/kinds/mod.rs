//! The culprits that a seed may select.
//!
//! Each describes its tables and work by a [`Maker`], which also says whether the remedy is applied.

mod ddl;
pub(super) mod healthy;
mod indexes;
mod rows;
mod settings;
mod transactions;
mod updates;

use super::schema::Maker;

/// The work and the server of a culprit.
#[derive(Debug, Default)]
pub(super) struct Case {
    /// Data checksums, if the culprit depends on them.
    pub checksums: Option<bool>,
    /// The size of a segment in MB, if the culprit depends on it.
    pub segment_mb: Option<u32>,
    /// Settings that the culprit depends on.
    pub settings: Vec<(&'static str, String)>,
    /// Scripts for a second database, before all others. `$source` is its name in later scripts.
    pub source: Vec<String>,
    /// Scripts that prepare the tables, before the judged WAL.
    pub setup: Vec<String>,
    /// Whether the case itself vacuums; otherwise all its tables are vacuumed before the work.
    pub is_vacuumed: bool,
    /// Scripts of sessions that stay open until all work has ended.
    pub held: Vec<String>,
    /// The culprit's sessions with their scripts.
    pub sessions: Vec<Vec<String>>,
    /// A right finding contains one of these names in `points_at`. Without names, any finding of the rules is
    /// right.
    pub objects: Vec<String>,
    /// How the remedy is applied.
    pub remedy: Remedy,
}

/// How the remedy of a culprit is applied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// By other statements or settings of the case.
    #[default]
    Other,
    /// By the settings that the finding names.
    TrySettings,
    /// Not at all: the application would have to change.
    None,
}

/// A kind of culprit.
pub(super) struct Kind {
    /// Its name on the command line.
    pub name: &'static str,
    /// The first major version that writes this WAL.
    pub since: u32,
    /// `cause` or `setting`: the list in which its finding must be the first.
    pub list: &'static str,
    /// Rules whose finding names it; none if the server is healthy.
    pub rules: &'static [&'static str],
    /// Describes its case.
    pub build: fn(&mut Maker) -> Case,
}

const fn cause(name: &'static str, rules: &'static [&'static str], build: fn(&mut Maker) -> Case) -> Kind {
    Kind { name, since: 0, list: "cause", rules, build }
}

const fn setting(name: &'static str, rules: &'static [&'static str], build: fn(&mut Maker) -> Case) -> Kind {
    Kind { name, since: 0, list: "setting", rules, build }
}

/// One in this number of seeds has a healthy server.
pub(super) const HEALTHY_IN: u64 = 8;

/// Servers on which nothing is wrong.
pub(super) const HEALTHY: &[Kind] = &[
    cause("none-appends", &[], healthy::appends),
    cause("none-updates", &[], healthy::updates),
    cause("none-mixed", &[], healthy::mixed),
    cause("none-partitions", &[], healthy::partitions),
    cause("none-load", &[], healthy::load),
];

/// All culprits.
pub(super) const KINDS: &[Kind] = &[
    cause("no-op-updates", &["no-op-updates"], updates::no_op),
    cause("bulk-update", &["bulk-update"], updates::bulk),
    cause("batch-updates", &["bulk-update"], updates::batches),
    cause("updates-in-one-transaction", &["repeated-updates"], updates::same_transaction),
    cause("hot-counters", &["repeated-updates"], updates::counters),
    cause("counted-inserts", &["repeated-updates"], updates::counted_inserts),
    cause("task-states", &["indexed-column-updates", "main-table"], updates::task_states),
    cause("index-on-changing-column", &["indexed-column-updates"], updates::indexed_column),
    cause("full-pages", &["updates-without-space"], updates::full_pages),
    cause("idle-transaction", &["old-transaction"], updates::idle_transaction),
    cause("idle-snapshot", &["old-transaction"], updates::idle_snapshot),
    cause("upserts", &["upserts"], updates::upserts),
    cause("replica-identity-full", &["replica-identity"], updates::replica_identity),
    cause("large-values", &["toast-rewrites"], updates::large_values),
    cause("wide-rows", &["pruning"], updates::wide_rows),
    cause("partition-moves", &["partition-moves"], updates::partition_moves),
    cause("select-for-update", &["row-locks"], transactions::row_locks),
    cause("foreign-key-locks", &["foreign-key-locks"], transactions::foreign_keys),
    cause("exception-blocks", &["savepoints", "rolled-back"], transactions::exception_blocks),
    cause("savepoints", &["savepoints"], transactions::savepoints),
    cause("rollbacks", &["rolled-back"], transactions::rollbacks),
    cause("one-row-transactions", &["tiny-transactions"], transactions::one_row),
    cause("two-phase-commit", &["two-phase-commit"], transactions::two_phase),
    cause("setval", &["sequences"], transactions::setval),
    cause("nextval", &["sequences"], transactions::nextval),
    cause("logical-messages", &["logical-messages"], transactions::messages),
    cause("unused-index", &["unused-index"], indexes::unused),
    cause("prefix-index", &["redundant-index"], indexes::prefix),
    cause("gist-index", &["main-table"], indexes::gist),
    cause("random-keys", &["random-keys"], indexes::random_keys),
    cause("gin-without-list", &["gin-entries"], indexes::gin_without_list),
    cause("gin-pending-list", &["gin-pending-list"], indexes::gin_pending),
    cause("hash-index", &["hash-index"], indexes::hash),
    cause("dead-entry-hints", &["hint-bits"], indexes::dead_entries),
    cause("reindex-concurrently", &["index-build"], indexes::reindex_concurrently),
    cause("index-builds", &["index-build"], indexes::builds),
    cause("many-indexes", &["main-table"], indexes::many),
    cause("audit-trigger", &["main-table"], rows::audit),
    cause("delete-and-insert", &["main-table"], rows::replace),
    cause("drip-deletes", &["bulk-delete", "main-table"], rows::drip_deletes),
    cause("purge-jobs", &["bulk-delete"], rows::purge_jobs),
    cause("cascade", &["main-table", "bulk-delete"], rows::cascade),
    cause("fill-and-delete", &["bulk-delete", "staging-table"], rows::fill_and_delete),
    cause("fill-and-truncate", &["staging-table"], rows::fill_and_truncate),
    cause("result-tables", &["staging-table"], rows::result_tables),
    cause("refresh", &["materialized-view-refresh"], rows::refresh),
    cause("refresh-concurrently", &["materialized-view-refresh"], rows::refresh_concurrently),
    cause("row-by-row-load", &["main-table", "tiny-transactions"], rows::row_by_row),
    Kind { since: 15, ..cause("initial-copy", &["initial-copy"], rows::initial_copy) },
    cause("large-objects", &["large-objects"], rows::large_objects),
    cause("rewrite-table", &["table-rewrite"], ddl::rewrite),
    cause("alter-type", &["table-rewrite"], ddl::alter_type),
    cause("set-logged", &["table-rewrite"], ddl::set_logged),
    cause("freeze", &["freezing"], ddl::freeze),
    cause("hint-bits", &["hint-bits"], ddl::hint_bits),
    Kind { since: 15, ..cause("create-database", &["catalog-churn"], ddl::create_database) },
    cause("temporary-tables", &["catalog-churn"], ddl::temporary_tables),
    cause("create-and-drop", &["catalog-churn"], ddl::create_and_drop),
    cause("drop-partitions", &["catalog-churn"], ddl::drop_partitions),
    cause("analyze", &["catalog-churn"], ddl::analyze),
    setting("logical-level", &["logical-level"], settings::logical_level),
    setting("max-wal-size", &["checkpoint-images"], settings::max_wal_size),
    setting("checkpoint-command", &["checkpoint-images"], settings::checkpoint_command),
    setting("checkpoints-and-checksums", &["checkpoint-images"], settings::checkpoints_and_checksums),
    setting("uncompressed-images", &["uncompressed-images"], settings::uncompressed),
    setting("consistency-images", &["consistency-images"], settings::consistency),
    setting("archive-timeout", &["switch-padding"], settings::archive_timeout),
    cause("switches", &["segment-switches"], settings::switches),
];

/// Returns all kinds.
pub(super) fn all() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain(HEALTHY)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<&str> = all().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len() + HEALTHY.len());
    }

    /// The remedy must be the only difference between the two runs of a seed.
    #[test]
    fn the_remedy_changes_no_names_and_no_draws() {
        for kind in all() {
            let mut differing = 0;
            for seed in 0..4 {
                let [(culprit, next), (fixed, next_of_fixed)] = [false, true].map(|is_fixed| {
                    let mut maker = Maker::new(seed, is_fixed);
                    let case = (kind.build)(&mut maker);
                    (case, maker.below(1 << 40))
                });
                assert_eq!((&culprit.objects, next), (&fixed.objects, next_of_fixed), "{}", kind.name);
                differing += u32::from(format!("{culprit:?}") != format!("{fixed:?}"));
                assert!(
                    culprit.remedy != Remedy::Other || differing > 0 || kind.rules.is_empty(),
                    "{}",
                    kind.name
                );
            }
        }
    }
}
