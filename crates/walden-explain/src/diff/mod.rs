//! Compares two ranges of WAL: the JSON of `walden diff --format json`.
//!
//! The WAL of A is scaled to the length of B (its seconds, or its transactions), and subtracted from the WAL
//! of B. The scaled bytes of the parts are rounded so that they add up to the scaled whole. The changes of
//! the parts therefore add up to the change of the whole, to the byte, in every list. `docs/json.md`
//! describes the fields.

mod document;
mod findings;
mod noise;

use std::collections::BTreeMap;

use serde_json::Value;

pub use self::document::{
    Change, Diff, DiffFinding, FORMAT_VERSION, ImageChange, Per, Rates, SideDocument, Status, ViewChange,
};
use self::noise::Series;
use crate::document::{Context, Document, GroupDocument, TallyDocument, ViewDocument};
use crate::explanation::Explanation;
use crate::group::{Dimension, ViewSpec};
use crate::labels::{Label, Labels, Part, databases_of};
use crate::tally::{Bucket, ImageCause};

/// Returns the views that compared documents must have after the user's.
pub fn views() -> [ViewSpec; 2] {
    [ViewSpec::by(Dimension::Time), ViewSpec { dimensions: vec![Dimension::Time, Dimension::Relation] }]
}

/// Builds the documents of two ranges so that the same relation has the same label in both.
///
/// Labels contain the database if there are several. Within one cluster, the databases of both ranges count
/// together. Otherwise, if one database wrote a whole range, its labels would not match the other range, and
/// `public.t` of two databases would be one table. The databases of two clusters may have different names, so
/// they are omitted unless one range has several.
pub fn documents(a: (&Explanation, &Context<'_>), b: (&Explanation, &Context<'_>)) -> [Document; 2] {
    let [in_a, in_b] = [a, b].map(|(explanation, _)| databases_of(explanation));
    let is_one_cluster = a.0.system_id == b.0.system_id;
    let several = in_a.len().max(in_b.len()) > 1 || (is_one_cluster && in_a.union(&in_b).count() > 1);
    [a, b].map(|(explanation, context)| {
        Document::with_labels(explanation, context, &Labels::from_names(context.names, several))
    })
}

/// One of the two ranges.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Name of the range, such as `before`.
    pub name: &'a str,
    /// From [`documents`], with all groups, and [`views`] as its last views.
    pub document: &'a Document,
    /// The explanation that the document is built from.
    pub explanation: &'a Explanation,
    /// Length of the range, in microseconds.
    pub micros: u64,
}

/// Compares two ranges.
pub fn diff(a: Side<'_>, b: Side<'_>, per: Option<Per>) -> Diff {
    let (of_a, of_b) = (Numbers::from_side(a), Numbers::from_side(b));
    let per = per.unwrap_or_else(|| usual(&of_a, &of_b));
    let scale = Scale::new(per, &of_a, &of_b);
    let compare = Comparison { a: &of_a, b: &of_b, per, scale };
    let total = compare.total();
    let buckets = compare.all(bucket_rows(a), bucket_rows(b));
    let mut relations = compare.all(relation_rows(a), relation_rows(b));
    mark_noise(&compare, &mut relations);
    let total = Change {
        beyond_noise: compare.total_noise().map(|noise| noise < total.change_bytes.unsigned_abs()),
        ..total
    };
    let causes = compare.all(cause_rows(a), cause_rows(b));
    let record_kinds = compare.all(kind_rows(a), kind_rows(b));
    let images = image_changes(&compare, a, b);
    let own = a.document.views.len().saturating_sub(views().len());
    let views = a.document.views.iter().zip(&b.document.views).take(own);
    let views: Vec<ViewChange> = views
        .map(|(in_a, in_b)| ViewChange {
            by: in_a.by.clone(),
            groups: compare.all(view_rows(in_a), view_rows(in_b)),
        })
        .collect();
    let notes = notes_of(&compare, a, b, &total);
    let findings = findings::find(&compare, a, b, &total, &buckets, &relations, &images);
    Diff {
        format: "walden diff",
        format_version: FORMAT_VERSION,
        a: side(a, &of_a),
        b: side(b, &of_b),
        per,
        total,
        buckets,
        causes,
        relations,
        record_kinds,
        images,
        views,
        findings,
        notes,
    }
}

/// Compares rates if both ranges are long enough, otherwise transactions, otherwise bytes.
fn usual(a: &Numbers, b: &Numbers) -> Per {
    if has_rates(a, b) {
        Per::Second
    } else if a.transactions.min(b.transactions) > 0 {
        Per::Transaction
    } else {
        Per::Total
    }
}

/// Whether both ranges are long enough for bytes per second.
fn has_rates(a: &Numbers, b: &Numbers) -> bool {
    a.micros.min(b.micros) >= 1_000_000
}

/// The numbers of one range that comparisons are based on.
struct Numbers {
    bytes: u64,
    micros: u64,
    transactions: u64,
    whole_cycles: u64,
    /// Bytes over time.
    series: Option<Series>,
    /// Bytes over time by relation.
    by_relation: BTreeMap<String, Series>,
}

impl Numbers {
    fn from_side(side: Side<'_>) -> Numbers {
        let document = side.document;
        let (of_time, relation_view) = (own_view(document, 0), own_view(document, 1));
        let series = of_time.and_then(|view| Series::from_view(view, |_| Some(String::new())).remove(""));
        let frame = of_time.and_then(noise::Frame::from_view);
        let by_relation = match (relation_view, frame) {
            (Some(view), Some(frame)) => Series::in_frame(view, frame, |group| {
                group.keys.get(1).map(|key| key.unmarked_text().to_owned())
            }),
            _ => BTreeMap::new(),
        };
        let inside = |lsn: &str| {
            let Ok(lsn) = lsn.parse() else { return false };
            side.explanation.ranges.iter().any(|range| range.start <= lsn && lsn <= range.end)
        };
        let redos = document.checkpoints.list.iter().filter(|one| inside(&one.redo)).count() as u64;
        Numbers {
            bytes: document.wal_bytes,
            micros: side.micros,
            transactions: document.transactions.committed,
            whole_cycles: redos.saturating_sub(1),
            series,
            by_relation,
        }
    }
}

/// One of the document's last views, requested by [`views`].
fn own_view(document: &Document, index: usize) -> Option<&ViewDocument> {
    document.views.get((document.views.len() + index).checked_sub(views().len())?)
}

/// A fraction that bytes of A are multiplied by.
#[derive(Clone, Copy)]
struct Scale {
    numerator: u64,
    denominator: u64,
}

impl Scale {
    fn new(per: Per, a: &Numbers, b: &Numbers) -> Scale {
        let (numerator, denominator) = match per {
            Per::Second => (b.micros, a.micros),
            Per::Transaction => (b.transactions, a.transactions),
            Per::Total => (1, 1),
        };
        Scale { numerator, denominator: denominator.max(1) }
    }

    fn apply(self, bytes: u64) -> u64 {
        let product = u128::from(bytes) * u128::from(self.numerator) / u128::from(self.denominator);
        u64::try_from(product).unwrap_or(u64::MAX)
    }

    /// Scales parts so that the scaled parts add up to the scaled total.
    fn apply_to_all(self, parts: impl Iterator<Item = u64>) -> Vec<u64> {
        let (mut sum, mut scaled) = (0, 0);
        let mut all = Vec::new();
        for bytes in parts {
            sum += bytes;
            let until = self.apply(sum);
            all.push(until - scaled);
            scaled = until;
        }
        all
    }
}

/// A row before it is compared.
#[derive(Clone, Default)]
struct Bytes {
    bytes: u64,
    images: u64,
    forced: u64,
    checkpoint: u64,
    part: Option<Part>,
    table: Option<String>,
    relation: Option<String>,
}

impl Bytes {
    fn from_tally(sum: &TallyDocument) -> Bytes {
        let of = |bucket: Bucket| sum.buckets.get(bucket.name()).and_then(Value::as_u64).unwrap_or(0);
        let (forced, checkpoint) = (of(Bucket::ImageForced), of(Bucket::ImageCheckpoint));
        Bytes { bytes: sum.wal_bytes(), images: sum.images, forced, checkpoint, ..Bytes::default() }
    }

    fn merge(&mut self, other: Bytes) {
        let Bytes { bytes, images, forced, checkpoint, .. } = *self;
        *self = other;
        self.bytes += bytes;
        self.images += images;
        self.forced += forced;
        self.checkpoint += checkpoint;
    }
}

type Rows = BTreeMap<String, Bytes>;

fn bucket_rows(side: Side<'_>) -> Rows {
    let row = |(bucket, bytes): (Bucket, u64)| {
        (bucket.description().to_owned(), Bytes { bytes, ..Bytes::default() })
    };
    side.document.wal_buckets().into_iter().map(row).collect()
}

fn relation_rows(side: Side<'_>) -> Rows {
    let mut rows = Rows::new();
    for relation in &side.document.relations {
        for part in &relation.parts {
            let Some(label) = part.keys.first() else { continue };
            // Includes the database if labels do.
            let fork = label.fork.as_deref().filter(|fork| *fork != "main");
            let text = label.unmarked_text();
            let base = fork.and_then(|fork| text.strip_suffix(fork)?.strip_suffix(' ')).unwrap_or(text);
            let row = Bytes {
                part: Some(label.part),
                table: (relation.label.text != text).then(|| relation.label.text.clone()),
                relation: label.file.is_some().then(|| base.to_owned()),
                ..Bytes::from_tally(&part.sum)
            };
            if row.bytes > 0 {
                rows.entry(text.to_owned()).or_default().merge(row);
            }
        }
    }
    rows
}

fn cause_rows(side: Side<'_>) -> Rows {
    let mut rows = Rows::new();
    for cause in &side.document.causes {
        let text = if cause.folded.is_some() { "(smaller causes)".to_owned() } else { cause.label() };
        let row = Bytes { bytes: cause.bytes, images: cause.images, ..Bytes::default() };
        rows.entry(text).or_default().merge(row);
    }
    rows
}

fn kind_rows(side: Side<'_>) -> Rows {
    group_rows(side.document.record_kinds.iter())
}

fn view_rows(view: &ViewDocument) -> Rows {
    let mut rows = group_rows(view.groups.iter());
    if let Some(rest) = &view.rest {
        rows.entry("(smaller groups)".to_owned()).or_default().merge(Bytes::from_tally(&rest.sum));
    }
    rows
}

fn group_rows<'a>(groups: impl Iterator<Item = &'a GroupDocument>) -> Rows {
    let mut rows = Rows::new();
    for group in groups {
        let text = group.keys.iter().map(Label::unmarked_text).collect::<Vec<_>>().join(", ");
        let row = Bytes { part: group.keys.first().map(|key| key.part), ..Bytes::from_tally(&group.sum) };
        if row.bytes > 0 {
            rows.entry(text).or_default().merge(row);
        }
    }
    rows
}

/// Two ranges and the scale between them.
struct Comparison<'a> {
    a: &'a Numbers,
    b: &'a Numbers,
    per: Per,
    scale: Scale,
}

impl Comparison<'_> {
    /// Compares rows with the same key. The largest changes come first.
    fn all(&self, a: Rows, mut b: Rows) -> Vec<Change> {
        let mut pairs: Vec<(String, Bytes, Bytes)> = Vec::new();
        for (key, row) in a {
            let in_b = b.remove(&key).unwrap_or_default();
            pairs.push((key, row, in_b));
        }
        pairs.extend(b.into_iter().map(|(key, row)| (key, Bytes::default(), row)));
        let of_a = || pairs.iter().map(|(_, in_a, _)| in_a.bytes);
        let scaled = self.scale.apply_to_all(of_a());
        let at_same = self.transactions().map(|scale| scale.apply_to_all(of_a()));
        let mut changes: Vec<Change> = pairs
            .iter()
            .zip(scaled)
            .enumerate()
            .map(|(at, ((key, in_a, in_b), scaled))| {
                let at_same = at_same.as_ref().and_then(|all| all.get(at)).copied();
                self.change(key, in_a, in_b, scaled, at_same)
            })
            .collect();
        changes.sort_by(|one, other| {
            let size = |change: &Change| std::cmp::Reverse(change.change_bytes.unsigned_abs());
            size(one).cmp(&size(other)).then_with(|| one.label.cmp(&other.label))
        });
        changes
    }

    fn total(&self) -> Change {
        let row = |bytes| Bytes { bytes, ..Bytes::default() };
        let at_same = self.transactions().map(|scale| scale.apply(self.a.bytes));
        self.change("all", &row(self.a.bytes), &row(self.b.bytes), self.scale.apply(self.a.bytes), at_same)
    }

    /// The scale by transactions, if both ranges have some.
    fn transactions(&self) -> Option<Scale> {
        (self.a.transactions > 0 && self.b.transactions > 0)
            .then(|| Scale::new(Per::Transaction, self.a, self.b))
    }

    fn change(&self, key: &str, a: &Bytes, b: &Bytes, scaled: u64, at_same: Option<u64>) -> Change {
        let of = if b.bytes > 0 { b } else { a };
        let change_bytes = difference(b.bytes, scaled);
        let whole = difference(self.b.bytes, self.scale.apply(self.a.bytes));
        let rates = |in_a: f64, in_b: f64| {
            let (a, b) = (a.bytes as f64 / in_a, b.bytes as f64 / in_b);
            Rates { a, b, change: b - a }
        };
        let seconds = |numbers: &Numbers| numbers.micros as f64 / 1e6;
        let (transactions, micros) =
            (|numbers: &Numbers| numbers.transactions as f64, self.a.micros.min(self.b.micros));
        Change {
            label: key.to_owned(),
            part: of.part,
            table: of.table.clone(),
            status: match (a.bytes, b.bytes) {
                (0, _) => Status::New,
                (_, 0) => Status::Gone,
                _ => Status::Both,
            },
            a_bytes: a.bytes,
            b_bytes: b.bytes,
            a_scaled_bytes: scaled,
            change_bytes,
            share_of_change: (whole != 0).then(|| change_bytes as f64 / whole as f64),
            per_second: (micros > 0).then(|| rates(seconds(self.a), seconds(self.b))),
            per_transaction: self.transactions().map(|_| rates(transactions(self.a), transactions(self.b))),
            change_at_same_transactions: at_same.map(|at_same| difference(b.bytes, at_same)),
            beyond_noise: None,
            images: (a.images, b.images),
            b_forced: b.forced,
            checkpoint_images: (a.checkpoint, b.checkpoint),
            relation: of.relation.clone(),
        }
    }

    /// The change of the whole that may be chance, in bytes over the length of B.
    fn total_noise(&self) -> Option<u64> {
        let (a, b) = (self.a.series.as_ref()?, self.b.series.as_ref()?);
        self.noise(a, b)
    }

    fn noise(&self, a: &Series, b: &Series) -> Option<u64> {
        let per_second = noise::estimate_change_noise(a, b)?;
        Some((per_second * self.b.micros as f64 / 1e6) as u64)
    }
}

fn difference(b: u64, a: u64) -> i64 {
    i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(i64::MAX)
}

/// Marks the relations whose rate changed by more than it varies within the ranges.
fn mark_noise(compare: &Comparison<'_>, relations: &mut [Change]) {
    for change in relations {
        let of = |numbers: &Numbers| {
            let empty = || numbers.series.as_ref().map(Series::empty);
            numbers.by_relation.get(&change.label).cloned().or_else(empty)
        };
        let noise = of(compare.a).zip(of(compare.b)).and_then(|(a, b)| compare.noise(&a, &b));
        change.beyond_noise = noise.map(|noise| noise < change.change_bytes.unsigned_abs());
    }
}

fn image_changes(compare: &Comparison<'_>, a: Side<'_>, b: Side<'_>) -> Vec<ImageChange> {
    let number = |side: Side<'_>, cause: &str, what: &str| {
        side.document.images.get(cause).and_then(|sum| sum.get(what)?.as_u64()).unwrap_or(0)
    };
    let rows = |side: Side<'_>| -> Rows {
        let causes = ImageCause::ALL.iter().map(|cause| (cause.name(), number(side, cause.name(), "bytes")));
        let mut rows: Rows = causes
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(cause, bytes)| (cause.to_owned(), Bytes { bytes, ..Bytes::default() }))
            .collect();
        let images: u64 = rows.values().map(|row| row.bytes).sum();
        let bytes = side.document.wal_bytes.saturating_sub(images);
        rows.insert("no image".to_owned(), Bytes { bytes, ..Bytes::default() });
        rows
    };
    let mean = |count: u64, bytes: u64| bytes.checked_div(count);
    let with_counts = |change: Change| {
        let (a_count, b_count) = (number(a, &change.label, "count"), number(b, &change.label, "count"));
        ImageChange {
            a_mean_bytes: mean(a_count, change.a_bytes),
            b_mean_bytes: mean(b_count, change.b_bytes),
            a_count,
            b_count,
            change,
        }
    };
    compare.all(rows(a), rows(b)).into_iter().map(with_counts).collect()
}

fn side(side: Side<'_>, numbers: &Numbers) -> SideDocument {
    let document = side.document;
    let range = |index: Option<&crate::document::RangeDocument>, end: bool| {
        index.map(|range| if end { range.end.clone() } else { range.start.clone() }).unwrap_or_default()
    };
    let checkpoints = &document.checkpoints;
    SideDocument {
        name: side.name.to_owned(),
        postgresql: document.postgresql.clone(),
        system_identifier: document.system_identifier.clone(),
        start: range(document.ranges.first(), false),
        end: range(document.ranges.last(), true),
        first_time: document.time.as_ref().map(|time| time.first.clone()),
        last_time: document.time.as_ref().map(|time| time.last.clone()),
        seconds: numbers.micros as f64 / 1e6,
        bytes: numbers.bytes,
        transactions: numbers.transactions,
        checkpoints: checkpoints.count,
        whole_cycles: numbers.whole_cycles,
        checkpoints_by_cause: checkpoints.by_cause.clone(),
        mean_checkpoint_distance: checkpoints.mean_distance,
        mean_checkpoint_interval_seconds: checkpoints.mean_interval_seconds,
        settings: document.settings.clone(),
        rate: numbers.series.as_ref().map(Series::rate).unwrap_or_default(),
        span_seconds: numbers.series.as_ref().map(|series| series.width),
    }
}

/// Lists the limits of the comparison.
fn notes_of(compare: &Comparison<'_>, a: Side<'_>, b: Side<'_>, total: &Change) -> Vec<String> {
    let (per, mut notes) = (compare.per, Vec::new());
    match per {
        Per::Transaction if !has_rates(compare.a, compare.b) => {
            notes.push("a range is shorter than a second: the WAL per transaction is compared".to_owned())
        }
        Per::Second | Per::Transaction => {}
        Per::Total => notes
            .push("the bytes are compared as they are, independent of the length of the ranges".to_owned()),
    }
    match total.beyond_noise.filter(|_| per == Per::Second) {
        Some(false) => notes.push(format!(
            "the total change is within the noise: the rates vary within the ranges, so {} more or less may be chance",
            findings::amount(compare, per, difference(compare.total_noise().unwrap_or(0), 0)).trim_start_matches('+')
        )),
        None if per == Per::Second => notes.push(
            "a range is too short to distinguish a change from noise: it has fewer than 8 spans of time".to_owned(),
        ),
        _ => {}
    }
    for (side, numbers) in [(a, compare.a), (b, compare.b)] {
        if numbers.bytes == 0 {
            notes
                .push(format!("range {} has no WAL: the WAL that was read is outside this range", side.name));
        } else if numbers.whole_cycles == 0
            && side.document.settings.get("full_page_writes") != Some(&"off".into())
        {
            notes.push(format!(
                "{} holds no whole checkpoint cycle: most images come right after a checkpoint, so a part of a cycle has more or \
                 fewer of them than a whole one",
                side.name
            ));
        }
        if side.document.damage.is_some() {
            notes.push(format!("{} ends early, at damage", side.name));
        }
    }
    if a.document.postgresql != b.document.postgresql {
        let (one, other) = (&a.document.postgresql, &b.document.postgresql);
        notes.push(format!("PostgreSQL {one} wrote {}, PostgreSQL {other} wrote {}", a.name, b.name));
    }
    if a.document.system_identifier != b.document.system_identifier {
        notes.push(
            "the ranges are of two clusters: relations without a name match by the number of their file, which is the same relation's only \
             where both clusters were made by the same statements; names of both (--names) match by name"
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_parts_add_up() {
        let scale = Scale { numerator: 10_000_019, denominator: 29_999_999 };
        let parts: Vec<u64> = (0..1000).map(|n| n * n * 7919 % 100_003).collect();
        let scaled = scale.apply_to_all(parts.iter().copied());
        assert_eq!(scaled.iter().sum::<u64>(), scale.apply(parts.iter().sum()));
        for (bytes, scaled) in parts.iter().zip(scaled) {
            assert!(scale.apply(*bytes).abs_diff(scaled) <= 1);
        }
        assert_eq!(Scale { numerator: u64::MAX, denominator: 1 }.apply(u64::MAX), u64::MAX);
    }
}
