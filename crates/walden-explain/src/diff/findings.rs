//! Explains a change in text.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use walden_format::payload::xlog::WalLevel;
use walden_source::counted;

use super::{Change, Comparison, DiffFinding, ImageChange, Per, Side, Status, difference};
use crate::document::Document;
use crate::evidence::DecodingEvidence;
use crate::explanation::Explanation;
use crate::findings::{bytes_text, percent_text};
use crate::labels::Part;
use crate::tally::{Bucket, ImageCause};

/// Maximum number of findings about amounts of single relations.
const MAX_RELATIONS: usize = 10;
/// Minimum share of the larger range for a finding.
const MIN_SHARE: f64 = 0.01;
/// Minimum share at which a single cause precedes changes of amounts.
const MIN_CAUSE: f64 = 0.05;

/// The rules that find single causes, which come first.
const CAUSES: [&str; 5] = ["new-relation", "gone-relation", "padding", "compression", "setting"];

pub(super) fn find(
    compare: &Comparison<'_>,
    a: Side<'_>,
    b: Side<'_>,
    total: &Change,
    buckets: &[Change],
    relations: &[Change],
    images: &[ImageChange],
) -> Vec<DiffFinding> {
    let finder = Finder { compare, a, b, total, per: compare.per, files: Files::from_sides([a, b]) };
    let larger = finder.larger();
    let is_large = |change: i64| change.unsigned_abs() as f64 >= MIN_SHARE * larger;
    // The findings that follow are disjoint, and add up to the change.
    let mut findings = Vec::new();
    let explained = finder.relations_that_come_or_go(relations, &mut findings);
    let (padding, framing): (Vec<&Change>, Vec<&Change>) = framing_of(buckets);
    finder.padding(&padding, &mut findings);
    finder.framing(&framing, &mut findings);
    finder.work(&padding, relations, &explained, &mut findings);
    finder.amounts(relations, &explained, &mut findings);
    findings.retain(|one| is_large(one.change_bytes));
    finder.others(is_large, &mut findings);
    // The findings that follow explain parts of the previous findings.
    let mut causes = Vec::new();
    let explained_images = finder.compression(&mut causes) | finder.settings(images, &mut causes);
    finder.checkpoint_images(explained_images, relations, &mut causes);
    causes.retain(|one| is_large(one.change_bytes) || one.rule == "setting");
    findings.extend(causes);
    let is_cause = |one: &DiffFinding| {
        CAUSES.contains(&one.rule) && one.change_bytes.unsigned_abs() as f64 >= MIN_CAUSE * larger
    };
    findings.sort_by_key(|one| (!is_cause(one), std::cmp::Reverse(one.change_bytes.unsigned_abs())));
    findings
}

struct Finder<'a> {
    compare: &'a Comparison<'a>,
    a: Side<'a>,
    b: Side<'a>,
    total: &'a Change,
    per: Per,
    files: Files<'a>,
}

/// Formats a change over the length of B, in the unit of the comparison, with its sign.
pub(super) fn amount(compare: &Comparison<'_>, per: Per, change: i64) -> String {
    let (by, unit) = match per {
        Per::Second => (compare.b.micros as f64 / 1e6, "/s"),
        Per::Transaction => (compare.b.transactions as f64, " per transaction"),
        Per::Total => (1.0, ""),
    };
    let sign = if change < 0 { '-' } else { '+' };
    format!("{sign}{}{unit}", bytes_text((change.unsigned_abs() as f64 / by.max(1e-6)).round() as u64))
}

impl Finder<'_> {
    fn larger(&self) -> f64 {
        self.total.a_scaled_bytes.max(self.total.b_bytes) as f64
    }

    fn finding(&self, rule: &'static str, text: String, points_at: String, change_bytes: i64) -> DiffFinding {
        let whole = self.total.change_bytes;
        let share_of_change = (whole != 0).then(|| change_bytes as f64 / whole as f64);
        let text = format!("{text}: {}", amount(self.compare, self.per, change_bytes));
        DiffFinding { rule, text, points_at, change_bytes, share_of_change }
    }

    /// Finds relations that only one of the ranges contains. Returns the labels of all these relations.
    fn relations_that_come_or_go(
        &self,
        relations: &[Change],
        findings: &mut Vec<DiffFinding>,
    ) -> Vec<String> {
        // Grouped by table or relation: all its forks, and a table's indexes, unless only some of them appear
        // or disappear.
        let of_relations = || relations.iter().filter(|change| change.relation.is_some());
        let mut tables: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
        for change in of_relations() {
            tables.entry(change.table.as_deref().unwrap_or(&change.label)).or_default().push(change);
        }
        let mut explained = Vec::new();
        for (table, parts) in tables {
            let one = |status| parts.iter().all(|part| part.status == status);
            let groups: Vec<Vec<&Change>> = match one(Status::New) || one(Status::Gone) {
                true => vec![parts],
                false => {
                    let mut by_relation: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
                    for part in parts {
                        by_relation
                            .entry(part.relation.as_deref().unwrap_or_default())
                            .or_default()
                            .push(part);
                    }
                    let is_whole = |parts: &Vec<&Change>| {
                        parts.iter().all(|part| part.status == parts[0].status)
                            && parts[0].status != Status::Both
                    };
                    by_relation.into_values().filter(is_whole).collect()
                }
            };
            for parts in groups {
                explained.extend(parts.iter().map(|part| part.label.clone()));
                findings.push(self.comes_or_goes(table, &parts));
            }
        }
        explained
    }

    fn comes_or_goes(&self, table: &str, parts: &[&Change]) -> DiffFinding {
        let main = parts.iter().find(|part| !is_fork(part.part)).unwrap_or(&parts[0]);
        let name = main.relation.clone().unwrap_or_else(|| table.to_owned());
        let indexes =
            parts.iter().filter(|part| part.part == Some(Part::Index) && part.label != main.label).count();
        let with = match (main.part, indexes) {
            (Some(Part::Index), _) | (_, 0) => String::new(),
            (_, 1) => " with its index".to_owned(),
            (_, many) => format!(" with its {many} indexes"),
        };
        let kind = match main.part {
            Some(Part::Table) => "table ",
            Some(Part::Index) => "index ",
            Some(Part::Toast) => "TOAST table ",
            Some(Part::Sequence) => "sequence ",
            Some(Part::MaterializedView) => "materialized view ",
            _ => "relation ",
        };
        let change: i64 = parts.iter().map(|part| part.change_bytes).sum();
        if main.status == Status::New {
            let bytes: u64 = parts.iter().map(|part| part.b_bytes).sum();
            let mains = parts.iter().filter(|part| !is_fork(part.part));
            let forced: u64 = mains.map(|part| part.b_forced).sum();
            let share = percent_text(bytes as f64 / self.compare.b.bytes.max(1) as f64);
            let is_created = self.files.has_any_of(parts, &self.files.created);
            let verb = if is_created { "is new and writes" } else { "has no WAL before, and writes" };
            let build = match forced as f64 / bytes.max(1) as f64 {
                share @ 0.1.. => format!(" ({} of that is its build)", percent_text(share)),
                _ => String::new(),
            };
            let text = format!("{kind}{name}{with} {verb} {share} of the WAL{build}");
            self.finding("new-relation", text, name, change)
        } else {
            let bytes: u64 = parts.iter().map(|part| part.a_bytes).sum();
            let share = percent_text(bytes as f64 / self.compare.a.bytes.max(1) as f64);
            let is_dropped = self.files.has_any_of(parts, &self.files.dropped);
            let verb = if is_dropped { "was dropped" } else { "has no WAL any more" };
            let text = format!("{kind}{name}{with} {verb}, and wrote {share} of the WAL");
            self.finding("gone-relation", text, name, change)
        }
    }

    /// Finds a different compression of images. Returns whether it differs.
    fn compression(&self, findings: &mut Vec<DiffFinding>) -> bool {
        let (a, b) = (Methods::from_document(self.a.document), Methods::from_document(self.b.document));
        let (Some(from), Some(to)) = (a.usual(), b.usual()) else { return false };
        if from == to || a.plain == 0 || b.plain == 0 {
            return false;
        }
        // Expected size of B's images at the compression of A's.
        let expected = (u128::from(b.plain) * u128::from(a.bytes) / u128::from(a.plain)) as u64;
        let change = difference(b.bytes, expected);
        let method = |name: &str| {
            if name == "none" { "not compressed".to_owned() } else { format!("compressed by {name}") }
        };
        let mean = |methods: &Methods| bytes_text(methods.bytes / methods.count.max(1));
        let text = format!(
            "full-page images are {} and were {} (wal_compression): {} on average instead of {}",
            method(&to),
            method(&from),
            mean(&b),
            mean(&a)
        );
        findings.push(self.finding("compression", text, "wal_compression".to_owned(), change));
        true
    }

    /// Finds settings in the WAL that differ between A and B. Returns whether `full_page_writes` differs.
    fn settings(&self, images: &[ImageChange], findings: &mut Vec<DiffFinding>) -> bool {
        let mut changes_images = false;
        let has_decoding = self.decoding(findings);
        for (name, to) in &self.b.document.settings {
            let Some(from) = self.a.document.settings.get(name).filter(|from| *from != to) else { continue };
            let is_said = match name.as_str() {
                "wal_level" => has_decoding,
                "effective_wal_level" => has_decoding || self.differs("wal_level"),
                _ => false,
            };
            if is_said {
                continue;
            }
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let change = match name.as_str() {
                "full_page_writes" => change_of(images, ImageCause::Checkpoint),
                "wal_log_hints" => change_of(images, ImageCause::Hint),
                _ => 0,
            };
            changes_images |= name == "full_page_writes";
            let text = format!("{name} is {} and was {}", word(to), word(from));
            let mut finding = self.finding("setting", text.clone(), name.clone(), change);
            if change == 0 {
                finding.text = text + "; the kinds of records show the change";
            }
            findings.push(finding);
        }
        changes_images
    }

    fn differs(&self, setting: &str) -> bool {
        let (a, b) = (&self.a.document.settings, &self.b.document.settings);
        a.get(setting).zip(b.get(setting)).is_some_and(|(from, to)| from != to)
    }

    /// Finds a difference in logical decoding. Records contain more data for logical decoding if `wal_level`
    /// is `logical` or, since 19, a logical slot exists. Returns whether this differs between A and B.
    ///
    /// The records show it. Before 17, the WAL contains the setting only when a server starts with changed
    /// settings.
    fn decoding(&self, findings: &mut Vec<DiffFinding>) -> bool {
        let (a, b) = (&self.a.explanation.decoding, &self.b.explanation.decoding);
        let (Some(from), Some(to)) = (is_logical(a), is_logical(b)) else { return false };
        if from == to {
            return false;
        }
        let decoding_side = if to { self.b } else { self.a };
        let (setting, points_at) = match has_raised_level(decoding_side.explanation) {
            true => ("effective_wal_level", "logical slots"),
            false => ("wal_level", "wal_level"),
        };
        let mut text = match to {
            true => format!("{setting} is logical and was not"),
            false => format!("{setting} is not logical and was"),
        };
        if setting != "wal_level" {
            text += ", as it is under wal_level=replica while there is a logical slot or REPACK (CONCURRENTLY) runs";
        }
        text += "; tuples beside full-page images and old keys, for decoding alone";
        let change = difference(b.bytes, self.compare.scale.apply(a.bytes));
        findings.push(self.finding("setting", text, points_at.to_owned(), change));
        true
    }

    /// Finds changed images of first touches, and the checkpoints that cause them.
    ///
    /// Counts only relations that both ranges contain: other relations have their own finding.
    fn checkpoint_images(&self, is_explained: bool, relations: &[Change], findings: &mut Vec<DiffFinding>) {
        if is_explained {
            return;
        }
        let images =
            relations.iter().filter(|change| change.status == Status::Both).map(|one| one.checkpoint_images);
        let (a, b) = images.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let change = difference(b, self.compare.scale.apply(a));
        let every = |side: Side<'_>| {
            let checkpoints = &side.document.checkpoints;
            match (checkpoints.mean_interval_seconds, checkpoints.mean_distance) {
                (Some(seconds), Some(distance)) => {
                    format!("one checkpoint in {seconds:.0} s or {}", bytes_text(distance))
                }
                _ => counted(checkpoints.count, "checkpoint"),
            }
        };
        let share = |bytes: u64, all: u64| percent_text(bytes as f64 / all.max(1) as f64);
        let text = format!(
            "images after checkpoints, of relations that both have, are {} of the WAL and were {} ({}, before {})",
            share(b, self.compare.b.bytes),
            share(a, self.compare.a.bytes),
            every(self.b),
            every(self.a)
        );
        // If the setting changed before the range, no record in the range shows it.
        let (text, points_at) = match b == 0 && a > 0 {
            true => (
                text + "; none at all is left: full_page_writes may be off (SHOW full_page_writes), or no checkpoint came since these pages \
                        had an image",
                "full_page_writes, max_wal_size, checkpoint_timeout",
            ),
            false => (text, "max_wal_size, checkpoint_timeout"),
        };
        findings.push(self.finding("checkpoint-images", text, points_at.to_owned(), change));
    }

    /// Padding after segment switches, which does not depend on the number of transactions.
    fn padding(&self, padding: &[&Change], findings: &mut Vec<DiffFinding>) {
        let change = sum(padding.iter().map(|one| one.change_bytes));
        if change != 0 {
            let switches = |side: Side<'_>| side.explanation.switches;
            let text = format!(
                "padding after segment switches {} (switches: {}, before {})",
                self.shares(padding),
                switches(self.b),
                switches(self.a)
            );
            findings.push(self.finding("padding", text, "segment switches".to_owned(), change));
        }
    }

    /// Finds changes of all other bytes outside of whole records.
    fn framing(&self, framing: &[&Change], findings: &mut Vec<DiffFinding>) {
        let change = sum(framing.iter().map(|one| self.own_change(one)));
        if change != 0 {
            let text = format!("page headers and pieces of records: their share {}", self.shares(framing));
            findings.push(self.finding("framing", text, "page headers".to_owned(), change));
        }
    }

    /// The current and the previous share of the WAL.
    fn shares(&self, changes: &[&Change]) -> String {
        let share = |bytes: u64, all: u64| percent_text(bytes as f64 / all.max(1) as f64);
        let a: u64 = changes.iter().map(|one| one.a_bytes).sum();
        let b: u64 = changes.iter().map(|one| one.b_bytes).sum();
        let (of_a, of_b) = (self.compare.a.bytes, self.compare.b.bytes);
        format!("is {} of the WAL and was {}", share(b, of_b), share(a, of_a))
    }

    /// Finds more or fewer transactions, each with the previous amount of WAL, excluding amounts that have
    /// their own finding.
    fn work(
        &self,
        padding: &[&Change],
        relations: &[Change],
        explained: &[String],
        findings: &mut Vec<DiffFinding>,
    ) {
        if self.per != Per::Second || self.total.change_at_same_transactions.is_none() {
            return;
        }
        let by_number = |change: &Change| {
            change
                .change_at_same_transactions
                .map_or(0, |at_same| change.change_bytes.saturating_sub(at_same))
        };
        let come_or_go = || relations.iter().filter(|change| explained.contains(&change.label));
        let apart = || padding.iter().copied().chain(come_or_go());
        let change = by_number(self.total).saturating_sub(sum(apart().map(by_number)));
        let rate =
            |numbers: &super::Numbers| numbers.transactions as f64 * 1e6 / numbers.micros.max(1) as f64;
        let (from, to) = (rate(self.compare.a), rate(self.compare.b));
        let bytes = self.compare.a.bytes.saturating_sub(apart().map(|change| change.a_bytes).sum());
        let has_gone = come_or_go().any(|change| change.a_bytes > 0);
        let without = match (padding.iter().any(|change| change.a_bytes > 0), has_gone) {
            (true, true) => ", without padding and relations that are gone",
            (true, false) => ", without padding",
            (false, true) => ", without relations that are gone",
            (false, false) => "",
        };
        let text = format!(
            "{to:.1} transactions are committed per second and were {from:.1}, at the {} that each wrote before{without}",
            bytes_text(bytes / self.compare.a.transactions.max(1))
        );
        findings.push(self.finding("work", text, "the number of transactions".to_owned(), change));
    }

    /// Adds the remaining change if it is notable or the other findings exceed the whole change.
    fn others(&self, is_large: impl Fn(i64) -> bool, findings: &mut Vec<DiffFinding>) {
        /// A share that is displayed as more than 100 %.
        const MORE_THAN_ALL: f64 = 1.0005;
        let change = self.total.change_bytes.saturating_sub(sum(findings.iter().map(|one| one.change_bytes)));
        let exceeds =
            findings.iter().any(|one| one.share_of_change.is_some_and(|share| share > MORE_THAN_ALL));
        if !findings.is_empty() && change != 0 && (is_large(change) || exceeds) {
            let text = "all else, such as relations that change less and records of none".to_owned();
            findings.push(self.finding("others", text, "all else".to_owned(), change));
        }
    }

    /// A change without the effect of the number of transactions, if that is a finding of its own.
    fn own_change(&self, change: &Change) -> i64 {
        match (self.per, change.change_at_same_transactions) {
            (Per::Second, Some(at_same)) => at_same,
            _ => change.change_bytes,
        }
    }

    /// Finds relations that write a different amount: per transaction, or per second without transactions, or
    /// in the unit of the comparison.
    fn amounts(&self, relations: &[Change], explained: &[String], findings: &mut Vec<DiffFinding>) {
        let mut left: Vec<&Change> = relations
            .iter()
            .filter(|change| change.relation.is_some() && !explained.contains(&change.label))
            .filter(|change| change.beyond_noise != Some(false))
            .collect();
        left.sort_by_key(|change| std::cmp::Reverse(self.own_change(change).unsigned_abs()));
        for change in left.into_iter().take(MAX_RELATIONS) {
            let name = &change.label;
            let per_transaction = change.per_transaction.map(|rates| (rates, "per transaction"));
            let per_second = change.per_second.map(|rates| (rates, "per second"));
            let rates = match self.per {
                Per::Second => per_transaction.or(per_second),
                Per::Transaction => per_transaction,
                Per::Total => None,
            };
            let text = match rates {
                Some((rates, unit)) => {
                    let word = |rate: f64| bytes_text(rate.round() as u64);
                    format!("{name} writes {} {unit} and wrote {}", word(rates.b), word(rates.a))
                }
                None => format!(
                    "{name} writes {} and wrote {}",
                    bytes_text(change.b_bytes),
                    bytes_text(change.a_bytes)
                ),
            };
            let images = match change.images {
                (a, b) if a != b => format!(" ({}, before {a})", counted(b, "image")),
                _ => String::new(),
            };
            findings.push(self.finding("amount", text + &images, name.clone(), self.own_change(change)));
        }
    }
}

/// Whether data is logged for logical decoding although `wal_level` is not `logical`.
fn has_raised_level(explanation: &Explanation) -> bool {
    let logged = &explanation.logged_settings;
    logged.logical_decoding.is_some() && logged.wal_level.is_some_and(|level| level != WalLevel::Logical)
}

/// Whether tuples are logged for logical decoding; `None` if there are too few tuples to decide.
fn is_logical(evidence: &DecodingEvidence) -> Option<bool> {
    /// Under `logical`, a few records lack the data for decoding too: records of a rewrite or a materialized
    /// view.
    const ENOUGH: u64 = 100;
    match evidence {
        DecodingEvidence { logical: 1.., .. } => Some(true),
        DecodingEvidence { stored: ENOUGH.., .. } => Some(false),
        _ => None,
    }
}

/// Padding after segment switches, and all other bytes outside of whole records.
fn framing_of(buckets: &[Change]) -> (Vec<&Change>, Vec<&Change>) {
    let framing = |change: &Change| {
        Bucket::all().find(|bucket| bucket.is_framing() && bucket.description() == change.label)
    };
    let changes = buckets.iter().filter(|change| framing(change).is_some());
    changes.partition(|change| framing(change) == Some(Bucket::SwitchPadding))
}

fn sum(changes: impl Iterator<Item = i64>) -> i64 {
    changes.fold(0, i64::saturating_add)
}

fn is_fork(part: Option<Part>) -> bool {
    matches!(part, Some(Part::FreeSpaceMap | Part::VisibilityMap | Part::InitFork))
}

fn change_of(images: &[ImageChange], cause: ImageCause) -> i64 {
    images
        .iter()
        .find(|image| image.change.label == cause.name())
        .map_or(0, |image| image.change.change_bytes)
}

/// The files of relations in both ranges, as text.
struct Files<'a> {
    by_label: FxHashMap<&'a str, Vec<&'a str>>,
    created: FxHashSet<String>,
    dropped: FxHashSet<String>,
}

impl<'a> Files<'a> {
    fn from_sides(sides: [Side<'a>; 2]) -> Files<'a> {
        let parts = sides.iter().flat_map(|side| &side.document.relations).flat_map(|one| &one.parts);
        let mut by_label: FxHashMap<&str, Vec<&str>> = FxHashMap::default();
        for label in parts.filter_map(|part| part.keys.first()) {
            by_label.entry(label.unmarked_text()).or_default().extend(label.file.as_deref());
        }
        let explanations = || sides.iter().map(|side| side.explanation);
        Files {
            by_label,
            created: explanations().flat_map(|one| &one.created).map(ToString::to_string).collect(),
            dropped: explanations().flat_map(|one| one.dropped.keys()).map(ToString::to_string).collect(),
        }
    }

    /// Whether a file of one of these relations is among `wanted`.
    fn has_any_of(&self, parts: &[&Change], wanted: &FxHashSet<String>) -> bool {
        let files = parts.iter().filter_map(|part| self.by_label.get(part.label.as_str())).flatten();
        files.copied().any(|file| wanted.contains(file))
    }
}

/// Full-page images by compression method.
#[derive(Default)]
struct Methods {
    count: u64,
    bytes: u64,
    plain: u64,
    plain_by_method: BTreeMap<String, u64>,
}

impl Methods {
    fn from_document(document: &Document) -> Methods {
        let mut methods = Methods::default();
        for cause in document.images.values() {
            let by = cause.get("by_compression").and_then(Value::as_object);
            for (method, sum) in by.into_iter().flatten() {
                let number = |name: &str| sum.get(name).and_then(Value::as_u64).unwrap_or(0);
                methods.count += number("count");
                methods.bytes += number("bytes");
                methods.plain += number("uncompressed_bytes");
                *methods.plain_by_method.entry(method.clone()).or_default() += number("uncompressed_bytes");
            }
        }
        methods
    }

    /// The method of more than half of the images. Images that compression did not make smaller count as
    /// uncompressed.
    fn usual(&self) -> Option<String> {
        let most = self.plain_by_method.iter().max_by_key(|(_, plain)| **plain)?;
        (*most.1 * 2 > self.plain).then(|| most.0.clone())
    }
}
