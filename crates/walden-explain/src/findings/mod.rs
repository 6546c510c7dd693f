//! Findings: causes of notable shares of the WAL, with remedies.
//!
//! [`RULES`] has a row per rule, with its threshold; `docs/findings.md` has the cause, threshold and remedy
//! of each for users, `research/findings.md` the evidence. There are two lists. *Causes* are parts of the
//! workload that write WAL: an object, a pattern of statements. *Settings* are parts of the configuration
//! that add WAL. Within each list no byte counts twice: each rule *claims* bytes of cells, the finding that
//! would save most comes first, and a finding gets only those claimed bytes that no earlier finding has
//! (`ledger.rs`).

mod catalogs;
pub(crate) mod causes;
mod facts;
mod indexes;
mod ledger;
mod locks;
mod maintenance;
mod rewrites;
mod settings;
mod tables;
mod transactions;
mod updates;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use walden_source::counted;

use self::facts::Facts;
use self::ledger::{Claim, Ledger};
use crate::checkpoints::{Cause as CheckpointCause, Checkpoint};
use crate::explanation::Explanation;
use crate::group::Cell;
use crate::labels::Labels;
use crate::tally::{Bucket, Tally};

/// Which list a finding is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A part of the workload.
    Cause,
    /// A part of the configuration.
    Setting,
}

/// A notable share of the WAL.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Finding {
    /// The list of the finding: causes or settings.
    pub kind: FindingKind,
    /// Name of its rule.
    pub rule: &'static str,
    /// Bytes of WAL that the finding explains. No other finding of the same list explains these bytes.
    pub bytes: u64,
    /// `bytes` as a share of the WAL, from 0 to 1.
    pub share: f64,
    /// A sentence with the figures.
    pub text: String,
    /// The object or setting.
    pub points_at: String,
    /// What to do.
    pub remedy: String,
    /// Bytes that the remedy would save; `None` if that is not known.
    pub saves_bytes: Option<u64>,
    /// By how much that may be wrong in either direction, in bytes, if checkpoints stay as they are.
    pub saves_error_bytes: Option<u64>,
    /// Upper bound of the bytes that the remedy saves in addition because fewer checkpoints follow: without
    /// the saved bytes, `max_wal_size` is reached later. 0 if it triggers no checkpoint.
    pub saves_more_bytes: u64,
    /// Portion of `bytes` in full-page images, if it is a cause. A page loses an image only if the remedy
    /// avoids all of its changes until the next checkpoint.
    #[serde(skip)]
    pub image_bytes: u64,
    /// Settings that the remedy would change, by name, for a prediction of what that saves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub try_settings: BTreeMap<String, String>,
}

impl Finding {
    /// Bytes by which a list of both kinds is sorted: the saving, or half of the finding's bytes without
    /// images if its saving is unknown.
    pub fn priority_bytes(&self) -> u64 {
        self.saves_bytes.unwrap_or(self.bytes.saturating_sub(self.image_bytes) / 2)
    }
}

/// A rule that makes findings.
pub struct Rule {
    /// Name of the rule.
    pub name: &'static str,
    /// The list of its findings.
    pub kind: FindingKind,
    /// The minimum share of the WAL, from 0 to 1.
    pub threshold: f64,
    /// A phrase for the subject of the rule's findings.
    pub description: &'static str,
    find: fn(&Facts<'_>) -> Vec<Candidate>,
}

/// A finding of a rule before the ledger has settled its bytes.
struct Candidate {
    text: String,
    points_at: String,
    remedy: String,
    claim: Claim,
    /// Claimed bytes that the remedy would save, and the maximum error of this number in bytes.
    saves: Option<(u64, u64)>,
    try_settings: Vec<(&'static str, String)>,
}

impl Candidate {
    /// A candidate whose remedy saves between these shares of the claimed bytes.
    fn new(claim: Claim, (least, most): (f64, f64)) -> Candidate {
        let bytes = claim.bytes() as f64;
        let (middle, error) = (bytes * (least + most) / 2.0, bytes * (most - least) / 2.0);
        Candidate {
            text: String::new(),
            points_at: String::new(),
            remedy: String::new(),
            claim,
            saves: Some((middle as u64, error as u64)),
            try_settings: Vec::new(),
        }
    }
}

use FindingKind::{Cause, Setting};

/// All rules.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    Rule { name: "unused-index", kind: Cause, threshold: 0.05, find: indexes::unused,
           description: "an index that was never scanned and enforces nothing" },
    Rule { name: "redundant-index", kind: Cause, threshold: 0.05, find: indexes::redundant,
           description: "an index whose columns are the first ones of another index" },
    Rule { name: "random-keys", kind: Cause, threshold: 0.05, find: indexes::random_keys,
           description: "an index whose new keys each go to another leaf page" },
    Rule { name: "gin-pending-list", kind: Cause, threshold: 0.10, find: indexes::pending_list,
           description: "a GIN index whose entries are logged in its pending list first" },
    Rule { name: "gin-entries", kind: Cause, threshold: 0.10, find: indexes::gin_entries,
           description: "a GIN index whose keys are inserted one by one" },
    Rule { name: "hash-index", kind: Cause, threshold: 0.15, find: indexes::hash_entries,
           description: "a hash index" },
    Rule { name: "no-op-updates", kind: Cause, threshold: 0.03, find: updates::unchanged,
           description: "updates that change nothing" },
    Rule { name: "repeated-updates", kind: Cause, threshold: 0.03, find: updates::repeated,
           description: "updates of rows that were just written" },
    Rule { name: "bulk-update", kind: Cause, threshold: 0.10, find: updates::bulk,
           description: "one transaction that updates most of a table, or several that update many rows each" },
    Rule { name: "indexed-column-updates", kind: Cause, threshold: 0.05, find: updates::indexed_columns,
           description: "updates of indexed columns, which cannot be HOT" },
    Rule { name: "old-transaction", kind: Cause, threshold: 0.05, find: updates::old_transaction,
           description: "a transaction that stays open, so that updates find no space on their page" },
    Rule { name: "updates-without-space", kind: Cause, threshold: 0.05, find: updates::without_space,
           description: "updates that find no free space on their page" },
    Rule { name: "upserts", kind: Cause, threshold: 0.05, find: updates::upserts,
           description: "row locks that INSERT ... ON CONFLICT DO UPDATE takes before it updates" },
    Rule { name: "replica-identity", kind: Cause, threshold: 0.05, find: updates::replica_identity,
           description: "whole old rows logged for logical replication" },
    Rule { name: "bulk-delete", kind: Cause, threshold: 0.10, find: updates::bulk_delete,
           description: "one transaction that deletes most of a table, or several that delete many rows each" },
    Rule { name: "partition-moves", kind: Cause, threshold: 0.10, find: updates::partition_moves,
           description: "updates that move rows to another partition" },
    Rule { name: "toast-rewrites", kind: Cause, threshold: 0.10, find: rewrites::toast,
           description: "large values written again by updates" },
    Rule { name: "staging-table", kind: Cause, threshold: 0.10, find: rewrites::staging,
           description: "tables filled and then truncated or dropped" },
    Rule { name: "initial-copy", kind: Cause, threshold: 0.10, find: rewrites::initial_copy,
           description: "rows that a new subscription of logical replication copies" },
    Rule { name: "materialized-view-refresh", kind: Cause, threshold: 0.10, find: rewrites::refresh,
           description: "materialized views written whole" },
    Rule { name: "table-rewrite", kind: Cause, threshold: 0.10, find: rewrites::table,
           description: "tables written whole by VACUUM FULL, CLUSTER, REPACK or ALTER TABLE" },
    Rule { name: "index-build", kind: Cause, threshold: 0.10, find: rewrites::index_build,
           description: "indexes built" },
    Rule { name: "freezing", kind: Cause, threshold: 0.10, find: maintenance::freezing,
           description: "rows frozen by vacuum" },
    Rule { name: "hint-bits", kind: Cause, threshold: 0.05, find: maintenance::hint_bits,
           description: "images written because a hint bit was set" },
    Rule { name: "pruning", kind: Cause, threshold: 0.05, find: maintenance::pruning,
           description: "pages pruned by queries" },
    Rule { name: VACUUM, kind: Cause, threshold: 0.20, find: maintenance::vacuum,
           description: "vacuum that no other finding explains" },
    Rule { name: "row-locks", kind: Cause, threshold: 0.05, find: locks::rows,
           description: "SELECT FOR UPDATE and its weaker forms" },
    Rule { name: "foreign-key-locks", kind: Cause, threshold: 0.05, find: locks::foreign_keys,
           description: "share locks and multixacts of foreign keys" },
    Rule { name: "tiny-transactions", kind: Cause, threshold: 0.10, find: transactions::tiny,
           description: "commit records of transactions that change a row or two" },
    Rule { name: "savepoints", kind: Cause, threshold: 0.02, find: transactions::savepoints,
           description: "subtransactions" },
    Rule { name: "two-phase-commit", kind: Cause, threshold: 0.10, find: transactions::two_phase,
           description: "transactions that are prepared before they commit" },
    Rule { name: "rolled-back", kind: Cause, threshold: 0.10, find: transactions::rolled_back,
           description: "transactions that were rolled back, or that a crash ended" },
    Rule { name: "large-objects", kind: Cause, threshold: 0.10, find: catalogs::large_objects,
           description: "large objects" },
    Rule { name: "catalog-churn", kind: Cause, threshold: 0.15, find: catalogs::churn,
           description: "changes of system catalogs" },
    Rule { name: "sequences", kind: Cause, threshold: 0.10, find: catalogs::sequences,
           description: "numbers drawn from sequences" },
    Rule { name: "logical-messages", kind: Cause, threshold: 0.10, find: transactions::messages,
           description: "messages for logical decoding" },
    Rule { name: "segment-switches", kind: Cause, threshold: 0.20, find: settings::manual_switches,
           description: "segments switched by commands" },
    Rule { name: TABLE, kind: Cause, threshold: 0.25, find: tables::main_tables,
           description: "a table with its indexes, where no other rule explains most of its bytes" },
    Rule { name: "large-transaction", kind: Cause, threshold: 0.25, find: transactions::large,
           description: "one transaction, if there is no other cause" },
    Rule { name: "checkpoint-images", kind: Setting, threshold: 0.30, find: settings::checkpoint_images,
           description: "images of pages changed for the first time after a checkpoint" },
    Rule { name: COMPRESSION, kind: Setting, threshold: 0.20, find: settings::uncompressed_images,
           description: "full-page images without compression" },
    Rule { name: "logical-level", kind: Setting, threshold: 0.15, find: settings::logical_level,
           description: "whole rows in updates for logical decoding" },
    Rule { name: "consistency-images", kind: Setting, threshold: 0.01, find: settings::consistency_images,
           description: "images for wal_consistency_checking" },
    Rule { name: "switch-padding", kind: Setting, threshold: 0.20, find: settings::switch_padding,
           description: "padding after segment switches" },
    Rule { name: "no-full-page-writes", kind: Setting, threshold: 0.0, find: settings::no_full_page_writes,
           description: "full_page_writes is off (at any share)" },
];

/// The rule for WAL that no other cause explains.
const FALLBACK: &str = "large-transaction";

/// The rule for the consequences of all updates and deletes.
const VACUUM: &str = "vacuum";

/// The rule for the compression of all images.
const COMPRESSION: &str = "uncompressed-images";

/// The rule that names tables with many bytes that no other cause has.
const TABLE: &str = "main-table";

/// Returns all causes of the WAL, the largest first, and the findings.
pub(crate) fn find(
    explanation: &Explanation,
    labels: &Labels<'_>,
    checkpoints: &[Checkpoint],
    settings: &BTreeMap<String, String>,
) -> (Vec<causes::Cause>, Vec<Finding>) {
    let facts = Facts::new(explanation, &explanation.cells, labels, checkpoints, settings);
    let causes = causes::sum(&facts, &causes::assign(&facts));
    (causes, find_notable(&facts))
}

/// Returns the causes of a part of an explanation's WAL, the largest first. The evidence of the whole WAL
/// divides the bytes of a cell among causes.
pub(crate) fn causes_of(
    explanation: &Explanation,
    cells: &[(Cell, Tally)],
    labels: &Labels<'_>,
) -> Vec<causes::Cause> {
    let settings = BTreeMap::new();
    let facts = Facts::new(explanation, cells, labels, &[], &settings);
    causes::sum(&facts, &causes::assign(&facts))
}

fn find_notable(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gone = gone_relations(facts);
    for kind in [Cause, Setting] {
        let mut candidates: Vec<(&Rule, Candidate)> = RULES
            .iter()
            .filter(|rule| rule.kind == kind)
            .flat_map(|rule| (rule.find)(facts).into_iter().map(move |candidate| (rule, candidate)))
            .map(|(rule, candidate)| (rule, without_harm(&gone, rule, candidate)))
            .collect();
        // Tables, the vacuum of all tables, and the fallback come last; the others are sorted by saving, then
        // by bytes.
        candidates.sort_by_key(|(rule, candidate)| {
            let saves = candidate.saves.map_or(0, |(saves, _)| saves);
            let order = [TABLE, VACUUM, FALLBACK].iter().position(|name| *name == rule.name);
            (order, std::cmp::Reverse((saves, candidate.claim.bytes())))
        });
        let mut ledger = Ledger::new(facts.explanation, kind);
        let mut found: Vec<Finding> = Vec::new();
        for (rule, candidate) in candidates {
            if rule.name == FALLBACK && !found.is_empty() {
                continue;
            }
            found.extend(settle(facts, rule, candidate, &mut ledger));
        }
        rank(&mut found);
        findings.extend(found);
    }
    findings
}

/// Rules about relations that are dropped, with remedies for the next time.
const OF_DROPPED: [&str; 4] = ["staging-table", "index-build", "table-rewrite", TABLE];

/// Names of tables and indexes that were dropped within the WAL.
fn gone_relations<'a>(facts: &'a Facts<'_>) -> BTreeSet<&'a str> {
    let mut gone = BTreeSet::new();
    for table in facts.user_tables() {
        if table.is_gone(facts) {
            gone.insert(table.name.as_str());
        }
        gone.extend(table.indexes().into_iter().filter(|one| facts.is_gone(one.last)).map(|one| one.name));
    }
    gone
}

/// Removes a remedy for a relation that no longer exists.
fn without_harm(gone: &BTreeSet<&str>, rule: &Rule, candidate: Candidate) -> Candidate {
    if OF_DROPPED.contains(&rule.name) || !gone.contains(candidate.points_at.as_str()) {
        return candidate;
    }
    let remedy = format!("nothing: {} was dropped within this WAL", candidate.points_at);
    Candidate { remedy, saves: None, try_settings: Vec::new(), ..candidate }
}

/// Returns the bytes of images that fewer checkpoints by volume save at most, in addition to a saving of
/// `most` bytes, which may itself contain `images` bytes of images.
///
/// Without the saved bytes, `max_wal_size` is reached later. If a cycle writes as many images as before,
/// their number falls by the share of the WAL that is saved, including these images; if it writes more, by
/// less. One checkpoint more may follow the end of the WAL.
fn saved_by_fewer_checkpoints(facts: &Facts<'_>, most: u64, images: u64) -> u64 {
    let checkpoints = facts.checkpoints.len().max(1) as f64;
    let by_volume =
        facts.checkpoints.iter().filter(|one| one.cause == CheckpointCause::Volume).count() as f64;
    if by_volume == 0.0 || most == 0 {
        return 0;
    }
    let of_checkpoints = facts.explanation.buckets.get(Bucket::ImageCheckpoint).saturating_sub(images);
    let others = of_checkpoints as f64 * by_volume / checkpoints;
    let share = others / facts.explanation.wal_bytes().max(1) as f64;
    (most as f64 * share / (1.0 - share).max(0.01) + others / by_volume).min(others) as u64
}

/// Returns a finding with the bytes that remain for a candidate, if they reach the rule's threshold.
fn settle(facts: &Facts<'_>, rule: &Rule, candidate: Candidate, ledger: &mut Ledger) -> Option<Finding> {
    let wanted = candidate.claim.bytes();
    let left = ledger.left(&candidate.claim);
    // Bytes that mostly belong to another finding make no finding of their own. Neither does a table if other
    // findings explain more than a fifth of its bytes.
    let is_explained = match rule.name {
        TABLE => left * 5 < wanted * 4,
        _ => rule.threshold > 0.0 && left * 2 < wanted,
    };
    if facts.share(left) < rule.threshold || is_explained {
        return None;
    }
    ledger.take(&candidate.claim);
    let images = candidate.claim.image_bytes();
    let mut text = candidate.text;
    if rule.name == TABLE && facts.share(wanted - left) >= 0.02 {
        text += &format!("; other findings explain {} of the WAL in it", facts.percent(wanted - left));
    }
    let of_left = |bytes: u64| (bytes as f64 * left as f64 / wanted.max(1) as f64) as u64;
    let saves = candidate.saves.map(|(saves, error)| (of_left(saves), of_left(error)));
    let most = saves.filter(|_| candidate.try_settings.is_empty()).map_or(0, |(saves, error)| saves + error);
    Some(Finding {
        kind: rule.kind,
        rule: rule.name,
        bytes: left,
        share: facts.share(left),
        text,
        points_at: candidate.points_at,
        remedy: candidate.remedy,
        saves_bytes: saves.map(|(saves, _)| saves),
        saves_error_bytes: saves.map(|(_, error)| error),
        saves_more_bytes: saved_by_fewer_checkpoints(facts, most, of_left(images)),
        image_bytes: if rule.kind == Cause { of_left(images) } else { 0 },
        try_settings: candidate.try_settings.into_iter().map(|(name, value)| (name.into(), value)).collect(),
    })
}

/// Sorts findings: causes before settings, each list by [`Finding::priority_bytes`]. Descriptions of tables
/// come after causes whose remedy has a notable saving. Frequent checkpoints come before the lack of
/// compression of the images that they cause.
pub fn rank(findings: &mut [Finding]) {
    /// Share of the WAL that a remedy saves.
    const NOTABLE_SAVING: f64 = 0.05;
    let place = |one: &Finding| {
        let saves = one.saves_bytes.unwrap_or(0) as f64 * one.share / one.bytes.max(1) as f64;
        // Pruning is a consequence of updates, which a table's description names.
        let is_of_table = [TABLE, "pruning"].contains(&one.rule);
        let is_first = one.kind == Cause && !is_of_table && saves >= NOTABLE_SAVING;
        (one.kind, !is_first, std::cmp::Reverse(one.priority_bytes()))
    };
    findings.sort_by_key(place);
    let place = |rule: &str| findings.iter().position(|one| one.rule == rule);
    if let Some(images) = place(COMPRESSION)
        && let Some(checkpoints) = place("checkpoint-images")
        && images < checkpoints
        && findings[images].bytes <= 2 * findings[checkpoints].bytes
    {
        findings[images..=checkpoints].rotate_right(1);
    }
}

/// Merges the two lists of ranked findings into one.
pub fn merge_lists(findings: &[Finding]) -> Vec<&Finding> {
    let (causes, settings): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|one| one.kind == Cause);
    let mut settings = settings.into_iter().peekable();
    let mut merged = Vec::with_capacity(findings.len());
    for cause in causes {
        while let Some(setting) = settings.next_if(|one| precedes(one, cause)) {
            merged.push(setting);
        }
        merged.push(cause);
    }
    merged.extend(settings);
    merged
}

/// Whether a setting comes before a cause. Compression treats a symptom, and may save more bytes than the
/// cause has. A description of a table comes after a setting that explains half of its bytes.
fn precedes(setting: &Finding, cause: &Finding) -> bool {
    match (setting.rule, cause.rule) {
        (COMPRESSION, _) => setting.priority_bytes() > cause.bytes,
        (_, TABLE) => setting.bytes * 2 > cause.bytes,
        _ => setting.priority_bytes() > cause.priority_bytes(),
    }
}

/// Names the commit records that a claim includes.
fn with_commits(transactions: u64) -> String {
    match transactions {
        0 => String::new(),
        count => format!(", with the commits of {} that did nothing else,", counted(count, "transaction")),
    }
}

pub(crate) fn percent_text(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(rule: &'static str, kind: FindingKind, bytes: u64, saves_bytes: Option<u64>) -> Finding {
        Finding {
            kind,
            rule,
            bytes,
            share: 0.0,
            text: String::new(),
            points_at: String::new(),
            remedy: String::new(),
            saves_bytes,
            saves_error_bytes: None,
            saves_more_bytes: 0,
            image_bytes: 0,
            try_settings: BTreeMap::new(),
        }
    }

    #[test]
    fn causes_come_before_what_they_make_worse() {
        let ranked = |mut findings: Vec<Finding>| {
            rank(&mut findings);
            findings.iter().map(|one| one.rule).collect::<Vec<_>>()
        };
        let settings = |checkpoints| {
            let images = finding("uncompressed-images", Setting, 900, Some(700));
            ranked(vec![images, finding("checkpoint-images", Setting, checkpoints, Some(600))])
        };
        assert_eq!(settings(800), ["checkpoint-images", "uncompressed-images"]);
        assert_eq!(settings(400), ["uncompressed-images", "checkpoint-images"]);
        let causes = |deletes| {
            let table = finding(TABLE, Cause, 800, None);
            let setting = finding("switch-padding", Setting, 900, None);
            let pruning = finding("pruning", Cause, 100, Some(60));
            ranked(vec![pruning, setting, table, finding("bulk-delete", Cause, 600, Some(deletes))])
        };
        assert_eq!(causes(390), [TABLE, "bulk-delete", "pruning", "switch-padding"]);
        assert_eq!(causes(410), ["bulk-delete", TABLE, "pruning", "switch-padding"]);
        let with_share = |share| {
            let locks = Finding { share, ..finding("row-locks", Cause, 100, Some(60)) };
            ranked(vec![finding(TABLE, Cause, 800, None), locks])
        };
        assert_eq!(with_share(0.09), ["row-locks", TABLE], "it saves 5.4 % of the WAL");
        assert_eq!(with_share(0.08), [TABLE, "row-locks"]);
    }

    #[test]
    fn compression_does_not_come_before_a_larger_cause() {
        let merged =
            |findings: &[Finding]| merge_lists(findings).into_iter().map(|one| one.rule).collect::<Vec<_>>();
        let with_table = |bytes| {
            let table = finding(TABLE, Cause, bytes, None);
            let images = finding(COMPRESSION, Setting, 500, Some(300));
            merged(&[table, finding("pruning", Cause, 80, Some(60)), images])
        };
        assert_eq!(with_table(400), [TABLE, COMPRESSION, "pruning"]);
        assert_eq!(with_table(290), [COMPRESSION, TABLE, "pruning"]);
        let with_level = |bytes| {
            let table = finding(TABLE, Cause, 900, None);
            merged(&[table, finding("logical-level", Setting, bytes, None)])
        };
        assert_eq!(with_level(500), ["logical-level", TABLE]);
        assert_eq!(with_level(400), [TABLE, "logical-level"]);
    }

    #[test]
    fn an_unknown_saving_counts_half_of_the_bytes_without_images() {
        assert_eq!(
            [None, Some(60), Some(0)].map(|saves| finding(FALLBACK, Cause, 100, saves).priority_bytes()),
            [50, 60, 0]
        );
        let with_images = |saves| Finding { image_bytes: 80, ..finding(TABLE, Cause, 100, saves) };
        assert_eq!([None, Some(60)].map(|saves| with_images(saves).priority_bytes()), [10, 60]);
    }

    #[test]
    fn rules_have_distinct_names() {
        let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RULES.len());
        assert!(names.contains(&FALLBACK));
    }
}
