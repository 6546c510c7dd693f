//! Findings: notable shares of the WAL, each with the setting or object that causes it.
//!
//! [`RULES`] has a row per rule, with its threshold; `docs/explain.md` lists them for users.

use std::collections::BTreeMap;

use serde::Serialize;
use walden_format::record::{Compression, Fork};
use walden_format::rmgr::info::{heap, heap2};
use walden_format::rmgr::{Kind, rmid};

use crate::checkpoints::{Cause, Checkpoint};
use crate::explanation::Explanation;
use crate::group::{Cell, Owner};
use crate::labels::{Labels, Part};
use crate::tally::{Bucket, ImageCause, Tally};
use crate::time::second_text;

/// A notable share of the WAL.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Finding {
    /// Name of its rule.
    pub rule: &'static str,
    /// The share of the WAL, from 0 to 1.
    pub share: f64,
    /// A sentence with the figures.
    pub text: String,
    /// The setting, relation or transaction that causes it.
    pub points_at: String,
}

/// A rule that makes findings.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// The minimum share of the WAL, from 0 to 1.
    pub threshold: f64,
    /// What it finds, in words.
    pub description: &'static str,
    find: fn(&Facts<'_>, f64) -> Vec<Finding>,
}

/// All rules.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    Rule { name: "checkpoint-images", threshold: 0.30, find: checkpoint_images,
           description: "images of pages changed for the first time after a checkpoint" },
    Rule { name: "uncompressed-images", threshold: 0.20, find: uncompressed_images,
           description: "full-page images without compression" },
    Rule { name: "hint-images", threshold: 0.05, find: hint_images,
           description: "images written because of a hint bit only" },
    Rule { name: "consistency-images", threshold: 0.01, find: consistency_images,
           description: "images for wal_consistency_checking" },
    Rule { name: "forced-images", threshold: 0.20, find: forced_images,
           description: "images of index builds and rewrites" },
    Rule { name: "large-index", threshold: 0.15, find: large_index,
           description: "an index that writes this share" },
    Rule { name: "few-hot-updates", threshold: 0.10, find: few_hot_updates,
           description: "a table with its indexes that writes this share, whose updates are less than half HOT" },
    Rule { name: "repeated-updates", threshold: 0.01, find: repeated_updates,
           description: "updates of a table's rows that the same transaction had just written, if at least a fifth" },
    Rule { name: "large-transaction", threshold: 0.25, find: large_transaction,
           description: "one transaction that writes this share" },
    Rule { name: "rolled-back", threshold: 0.10, find: rolled_back,
           description: "transactions that were rolled back" },
    Rule { name: "catalog-churn", threshold: 0.15, find: catalog_churn,
           description: "changes of system catalogs" },
    Rule { name: "vacuum", threshold: 0.20, find: vacuum,
           description: "pruning, vacuuming and freezing" },
    Rule { name: "row-locks", threshold: 0.10, find: row_locks,
           description: "row locks and multixacts" },
    Rule { name: "sequences", threshold: 0.10, find: sequences,
           description: "sequences" },
    Rule { name: "switch-padding", threshold: 0.20, find: switch_padding,
           description: "padding after segment switches" },
    Rule { name: "no-full-page-writes", threshold: 0.0, find: no_full_page_writes,
           description: "full_page_writes is off (whatever the share)" },
];

/// Minimum number of updates for findings about a table's updates.
const MIN_UPDATES: u64 = 100;

pub(crate) fn find(
    explanation: &Explanation,
    labels: &Labels<'_>,
    checkpoints: &[Checkpoint],
) -> Vec<Finding> {
    let facts = Facts { explanation, labels, checkpoints };
    let mut findings: Vec<Finding> =
        RULES.iter().flat_map(|rule| (rule.find)(&facts, rule.threshold)).collect();
    findings.sort_by(|one, other| other.share.total_cmp(&one.share));
    findings
}

struct Facts<'a> {
    explanation: &'a Explanation,
    labels: &'a Labels<'a>,
    checkpoints: &'a [Checkpoint],
}

impl Facts<'_> {
    fn share(&self, bytes: u64) -> f64 {
        if self.explanation.file_bytes == 0 { 0.0 } else { bytes as f64 / self.explanation.file_bytes as f64 }
    }

    /// A finding if the share of `bytes` reaches the threshold. `text` gets the share in percent.
    fn if_share(
        &self,
        rule: &'static str,
        bytes: u64,
        threshold: f64,
        points_at: &str,
        text: impl FnOnce(&str) -> String,
    ) -> Vec<Finding> {
        let share = self.share(bytes);
        if bytes == 0 || share < threshold {
            return Vec::new();
        }
        vec![Finding { rule, share, text: text(&percent_text(share)), points_at: points_at.to_owned() }]
    }

    /// Bytes of the cells that match.
    fn bytes_of(&self, wanted: impl Fn(&Cell) -> bool) -> u64 {
        self.explanation.cells.iter().filter(|(cell, _)| wanted(cell)).map(|(_, tally)| tally.bytes()).sum()
    }

    /// The relation with the largest measure.
    fn largest(&self, measure: impl Fn(&Tally) -> u64) -> Option<(String, u64)> {
        let mut sums: BTreeMap<Owner, u64> = BTreeMap::new();
        for (cell, tally) in &self.explanation.cells {
            if let Owner::Relation(..) = cell.owner {
                *sums.entry(cell.owner).or_default() += measure(tally);
            }
        }
        let (owner, bytes) =
            sums.into_iter().max_by_key(|(owner, bytes)| (*bytes, std::cmp::Reverse(*owner)))?;
        (bytes > 0).then(|| (self.labels.owner(owner).text, bytes))
    }
}

fn kind_of(cell: &Cell) -> Option<Kind> {
    Kind::from_index(cell.kind?.into())
}

fn percent_text(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

fn megabytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn seconds(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        ..120.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

fn checkpoint_images(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.explanation.buckets.get(Bucket::ImageCheckpoint);
    let count = |cause| facts.checkpoints.iter().filter(|checkpoint| checkpoint.cause == cause).count();
    let (volume, time) = (count(Cause::Volume), count(Cause::Time));
    let intervals: Vec<i64> = facts.checkpoints.iter().filter_map(|checkpoint| checkpoint.interval).collect();
    let every = intervals.iter().sum::<i64>() as f64 / intervals.len().max(1) as f64;
    let (points_at, why) = match (intervals.is_empty(), volume >= time.max(1), time > 0) {
        (true, ..) => ("max_wal_size, checkpoint_timeout", String::new()),
        (false, true, _) => (
            "max_wal_size",
            format!(
                "; checkpoints come every {}, {volume} of {} because max_wal_size is reached",
                seconds(every),
                intervals.len()
            ),
        ),
        (false, false, true) => (
            "checkpoint_timeout",
            format!(
                "; checkpoints come every {}, {time} of {} because checkpoint_timeout has passed",
                seconds(every),
                intervals.len()
            ),
        ),
        (false, false, false) => {
            ("CHECKPOINT", format!("; checkpoints come every {}, mostly on request", seconds(every)))
        }
    };
    facts.if_share("checkpoint-images", bytes, threshold, points_at, |share| {
        format!("{share} of the WAL is images of pages changed for the first time after a checkpoint{why}")
    })
}

fn uncompressed_images(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let causes = [ImageCause::Checkpoint, ImageCause::Forced, ImageCause::Hint];
    let plain = |cause| facts.explanation.images.get(cause, Compression::None);
    let bytes = causes.iter().map(|cause| plain(*cause).bytes).sum();
    let count: u64 = causes.iter().map(|cause| plain(*cause).count).sum();
    facts.if_share("uncompressed-images", bytes, threshold, "wal_compression", |share| {
        format!("{share} of the WAL is {count} full-page images without compression ({})", megabytes(bytes))
    })
}

fn hint_images(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.explanation.buckets.get(Bucket::ImageHint);
    let largest = facts.largest(|tally| tally.buckets.get(Bucket::ImageHint));
    let most =
        largest.map(|(name, most)| format!(", most in {name} ({})", megabytes(most))).unwrap_or_default();
    facts.if_share("hint-images", bytes, threshold, "data checksums, wal_log_hints", |share| {
        format!("{share} of the WAL is images written because a hint bit was set{most}")
    })
}

fn consistency_images(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.explanation.buckets.get(Bucket::ImageConsistency);
    facts.if_share("consistency-images", bytes, threshold, "wal_consistency_checking", |share| {
        format!("{share} of the WAL is images for wal_consistency_checking, a developers' setting")
    })
}

fn forced_images(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.explanation.buckets.get(Bucket::ImageForced);
    let largest = facts.largest(|tally| tally.buckets.get(Bucket::ImageForced));
    let (most, points_at) = match largest {
        Some((name, most)) => (format!(", most in {name} ({})", megabytes(most)), name),
        None => (String::new(), "index builds, VACUUM FULL, CLUSTER".into()),
    };
    facts.if_share("forced-images", bytes, threshold, &points_at, |share| {
        format!(
            "{share} of the WAL is images of index builds, rewrites and extensions{most}; \
             checkpoint settings do not affect them"
        )
    })
}

fn large_index(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let mut sums: BTreeMap<Owner, Tally> = BTreeMap::new();
    for (cell, tally) in &facts.explanation.cells {
        if let Owner::Relation(_, Fork::MAIN) = cell.owner {
            sums.entry(cell.owner).or_default().merge(tally);
        }
    }
    let mut found = Vec::new();
    for (owner, tally) in sums {
        let label = facts.labels.owner(owner);
        let is_index = label.part == Part::Index || only_index_records(facts, owner);
        if !is_index {
            continue;
        }
        let images = tally.buckets.images() as f64 / tally.bytes().max(1) as f64;
        let of_table = label.table.as_ref().map(|table| format!(" of {table}")).unwrap_or_default();
        let scans = match facts.labels.index_scans(owner) {
            Some(0) => " and was never scanned since the statistics were reset",
            _ => "",
        };
        let name = label.text.clone();
        found.extend(facts.if_share("large-index", tally.bytes(), threshold, &name, |share| {
            let images = if images >= 0.5 {
                format!(", {} of that in images", percent_text(images))
            } else {
                String::new()
            };
            format!("index {name}{of_table} writes {share} of the WAL{images}{scans}")
        }));
    }
    found
}

/// Without names, a relation with index records only is an index.
fn only_index_records(facts: &Facts<'_>, owner: Owner) -> bool {
    let index_managers = rmid::BTREE..=rmid::GIST;
    let mut kinds = facts
        .explanation
        .cells
        .iter()
        .filter(|(cell, _)| cell.owner == owner)
        .filter_map(|(c, _)| kind_of(c));
    let mut any = false;
    let all = kinds.all(|kind| {
        let index = index_managers.contains(&kind.rmid()) || matches!(kind.rmid(), rmid::SPGIST | rmid::BRIN);
        any |= index;
        index || kind.rmid() == rmid::XLOG
    });
    any && all
}

fn few_hot_updates(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    #[derive(Default)]
    struct Updates {
        hot: u64,
        other: u64,
        bytes: u64,
        name: String,
    }
    let mut tables: BTreeMap<String, Updates> = BTreeMap::new();
    for (cell, tally) in &facts.explanation.cells {
        let Owner::Relation(..) = cell.owner else { continue };
        if facts.labels.is_catalog(cell.owner) {
            continue;
        }
        let table = facts.labels.table_of(cell.owner);
        let updates = tables.entry(table.text.clone()).or_default();
        updates.name = table.text;
        updates.bytes += tally.bytes();
        match update_kind(cell) {
            Some(true) => updates.hot += tally.records,
            Some(false) => updates.other += tally.records,
            None => {}
        }
    }
    let mut found = Vec::new();
    for updates in tables.into_values() {
        let all = updates.hot + updates.other;
        if all < MIN_UPDATES || updates.hot * 2 >= all {
            continue;
        }
        let points_at = format!("fillfactor and indexes of {}", updates.name);
        found.extend(facts.if_share("few-hot-updates", updates.bytes, threshold, &points_at, |share| {
            format!(
                "HOT updates {}: of {all} updates of {} {} also wrote to its indexes; the table and its indexes write \
                 {share} of the WAL",
                percent_text(updates.hot as f64 / all as f64),
                updates.name,
                updates.other
            )
        }));
    }
    found
}

/// For a cell of heap updates, whether they are HOT.
fn update_kind(cell: &Cell) -> Option<bool> {
    let kind = kind_of(cell).filter(|kind| kind.rmid() == rmid::HEAP)?;
    match kind.info() & heap::OPMASK {
        heap::UPDATE => Some(false),
        heap::HOT_UPDATE => Some(true),
        _ => None,
    }
}

fn repeated_updates(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let mut sums: BTreeMap<Owner, (u64, u64, u64)> = BTreeMap::new();
    for (cell, count) in &facts.explanation.repeated_updates {
        sums.entry(cell.owner).or_default().0 += count;
    }
    for (cell, tally) in &facts.explanation.cells {
        if let (Some(_), Some(sum)) = (update_kind(cell), sums.get_mut(&cell.owner)) {
            sum.1 += tally.records;
            sum.2 += tally.bytes();
        }
    }
    let mut found = Vec::new();
    for (owner, (repeated, updates, bytes)) in sums {
        if repeated < MIN_UPDATES || repeated * 5 < updates || facts.labels.is_catalog(owner) {
            continue;
        }
        let name = facts.labels.owner(owner).text;
        found.extend(facts.if_share("repeated-updates", bytes, threshold, &name, |share| {
            format!(
                "at least {repeated} of {updates} updates of {name} changed a row that the same transaction had just \
                 written; they write {share} of the WAL"
            )
        }));
    }
    found
}

fn large_transaction(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let Some(largest) = facts.explanation.transactions.first() else { return Vec::new() };
    let points_at = format!("transaction {}", largest.xid);
    facts.if_share("large-transaction", largest.bytes, threshold, &points_at, |share| {
        let when = largest.time.map(|time| format!(" at {}", second_text(time.div_euclid(1_000_000))));
        format!(
            "transaction {} ({}{}) writes {share} of the WAL in {} records",
            largest.xid,
            largest.outcome.name(),
            when.unwrap_or_default(),
            largest.records
        )
    })
}

fn rolled_back(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let sums = facts.explanation.transaction_sums;
    facts.if_share(
        "rolled-back",
        sums.aborted_bytes,
        threshold,
        "the application's errors and retries",
        |share| format!("{share} of the WAL is of {} transactions that were rolled back", sums.aborted),
    )
}

fn catalog_churn(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.bytes_of(|cell| facts.labels.is_catalog(cell.owner));
    facts.if_share("catalog-churn", bytes, threshold, "temporary tables, DDL, ANALYZE", |share| {
        format!(
            "{share} of the WAL is changes of system catalogs, as temporary tables and other DDL make them"
        )
    })
}

fn vacuum(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let version = facts.explanation.version;
    let is_vacuum = |cell: &Cell| {
        kind_of(cell).is_some_and(|kind| {
            let name = kind.name(version);
            let heap =
                ["PRUNE", "CLEAN", "VACUUM", "FREEZE", "VISIBLE"].iter().any(|part| name.starts_with(part));
            (kind.rmid() == rmid::HEAP2 && heap) || (kind.rmid() == rmid::BTREE && name.starts_with("VACUUM"))
        })
    };
    facts.if_share(
        "vacuum",
        facts.bytes_of(is_vacuum),
        threshold,
        "autovacuum, vacuum_freeze_min_age",
        |share| format!("{share} of the WAL is pruning, vacuuming and freezing, images included"),
    )
}

fn row_locks(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let is_lock = |cell: &Cell| {
        kind_of(cell).is_some_and(|kind| match kind.rmid() {
            rmid::HEAP => kind.info() & heap::OPMASK == heap::LOCK,
            rmid::HEAP2 => kind.info() & heap2::OPMASK == heap2::LOCK_UPDATED,
            rmid::MULTIXACT => true,
            _ => false,
        })
    };
    facts.if_share(
        "row-locks",
        facts.bytes_of(is_lock),
        threshold,
        "SELECT FOR UPDATE/SHARE, foreign keys",
        |share| format!("{share} of the WAL is row locks and multixacts"),
    )
}

fn sequences(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.bytes_of(|cell| kind_of(cell).is_some_and(|kind| kind.rmid() == rmid::SEQ));
    facts.if_share("sequences", bytes, threshold, "CACHE of the sequences", |share| {
        format!("{share} of the WAL is sequences")
    })
}

fn switch_padding(facts: &Facts<'_>, threshold: f64) -> Vec<Finding> {
    let bytes = facts.explanation.buckets.get(Bucket::SwitchPadding);
    let switches = facts.explanation.switches;
    facts.if_share("switch-padding", bytes, threshold, "archive_timeout", |share| {
        format!(
            "switch padding is {share} of the WAL: {switches} segments were switched before they were full, as \
             archive_timeout does on an idle server"
        )
    })
}

fn no_full_page_writes(facts: &Facts<'_>, _threshold: f64) -> Vec<Finding> {
    if facts.explanation.logged_settings.full_page_writes != Some(false) {
        return Vec::new();
    }
    let text = "full_page_writes is off: no images after checkpoints, and a page that a crash leaves half-written \
                cannot be repaired from this WAL";
    let points_at = "full_page_writes".to_owned();
    vec![Finding { rule: "no-full-page-writes", share: 0.0, text: text.into(), points_at }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_distinct_names() {
        let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RULES.len());
    }
}
