//! Renders a check of replay: as JSON, and as tables for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use walden_format::rmgr::Kind;
use walden_format::version::Major;
use walden_redo::Family;
use walden_redo::check::{Check, Counts, Difference};
use walden_source::replay_check::Outcome;

use crate::table::{Look, Row};
use crate::units;

/// Returns the JSON of a check.
pub fn document(outcome: &Outcome) -> Value {
    let version = outcome.version.unwrap_or(Major::V18);
    let (check, pages) = (&outcome.images, outcome.pages.total());
    let total = check.total();
    json!({
        "records": check.records,
        "end_lsn": outcome.end.to_string(),
        "images_compared": total.compared(),
        "pages_compared": pages.compared(),
        "different": outcome.different(),
        "untracked_images": total.untracked,
        "images": total,
        "pages": {
            "exact": pages.exact,
            "masked": pages.masked,
            "copied_maps": pages.copied_maps,
            "different": pages.different,
        },
        "by_record": by_record(check, version),
        "pages_by_last_record": by_record(&outcome.pages, version),
        "displaced_data": displaced_data(check, version),
        "misfits": misfits(check, version),
        "differences": outcome.differences().map(difference).collect::<Vec<_>>(),
    })
}

fn by_record(check: &Check, version: Major) -> Vec<Value> {
    let row = |((kind, family), counts): (&(Kind, Family), &Counts)| {
        json!({
            "resource_manager": kind.resource_manager(version),
            "record": kind.name(version),
            "page": family.name(),
            "counts": counts,
        })
    };
    check.counts.iter().map(row).collect()
}

fn displaced_data(check: &Check, version: Major) -> Vec<Value> {
    let row = |(kind, [exact, differs, unknown]): (&Kind, &[u64; 3])| {
        json!({
            "resource_manager": kind.resource_manager(version),
            "record": kind.name(version),
            "exact": exact,
            "differs": differs,
            "unknown": unknown,
        })
    };
    check.reconstructed.iter().map(row).collect()
}

fn misfits(check: &Check, version: Major) -> Vec<Value> {
    let row = |((kind, what), count): (&(Kind, &str), &u64)| {
        json!({
            "record": kind.name(version),
            "resource_manager": kind.resource_manager(version),
            "what": what,
            "count": count,
        })
    };
    check.misfits.iter().map(row).collect()
}

fn difference(difference: &Difference) -> Value {
    let Difference { key, family, lsn, kind, version, offset, field, expected, found } = difference;
    json!({
        "block": key.to_string(),
        "page": family.name(),
        "lsn": lsn.to_string(),
        "resource_manager": kind.resource_manager(*version),
        "record": kind.name(*version),
        "offset": offset,
        "field": field,
        "expected": hex(expected),
        "found": hex(found),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a check as tables.
pub fn table(outcome: &Outcome, look: Look) -> String {
    let version = outcome.version.unwrap_or(Major::V18);
    let (images, pages) = (&outcome.images, &outcome.pages);
    let mut text = counts_table(look, "Images against replay", images, version) + "\n";
    if !pages.counts.is_empty() {
        text += &(counts_table(look, "Data files against replay, by last record", pages, version) + "\n");
    }
    let total = images.total();
    let count = units::count;
    let _ = writeln!(
        text,
        "{} records replayed; {} images and {} pages of data files compared: {}",
        count(images.records),
        count(total.compared()),
        count(pages.total().compared()),
        match outcome.different() {
            0 => "none differs".to_owned(),
            different => look.alarm(&format!("{} differ", count(different))),
        }
    );
    let explained = [
        (
            total.copied_maps + pages.total().copied_maps,
            "visibility maps whose bits CREATE DATABASE does not log: PostgreSQL's recovery lacks them, too",
        ),
        (
            total.cleared_early,
            "visibility maps in which PostgreSQL cleared a bit before it wrote the record that clears it",
        ),
    ];
    for (pages, why) in explained.into_iter().filter(|(pages, _)| *pages > 0) {
        let _ = writeln!(text, "  {} explained: {why}", count(pages));
    }
    let reasons = [
        (total.unknown_before, "the page before is not known"),
        (total.whole_pages, "the image is the change itself"),
        (
            total.untracked,
            "the page is changed by records that are not replayed (the free space map, extensions)",
        ),
        (total.unpredicted, "the data displaced by the image cannot be reconstructed"),
    ];
    for (images, why) in reasons.into_iter().filter(|(images, _)| *images > 0) {
        let _ = writeln!(text, "  {} not compared: {why}", count(images));
    }
    for ((kind, what), times) in &images.misfits {
        let kind = kind_name(*kind, version);
        let times = if *times == 1 { "once".to_owned() } else { format!("{} times", count(*times)) };
        let _ = writeln!(text, "{}: {kind}: {what}, {times}", look.alarm("does not fit"));
    }
    for difference in outcome.differences().take(20) {
        let Difference { key, family, lsn, kind, version, offset, field, expected, found } = difference;
        let _ = writeln!(
            text,
            "{}: {key} ({}) after {} at {lsn}\n  {field} (byte {offset}): expected {}, replay has {}",
            look.alarm("different"),
            family.name(),
            kind_name(*kind, *version),
            hex(expected),
            hex(found)
        );
    }
    text
}

/// Formats the counts by owner of the page, and below that by kind of record.
fn counts_table(look: Look, title: &str, check: &Check, version: Major) -> String {
    let mut families: BTreeMap<Family, (Counts, Vec<Row>)> = BTreeMap::new();
    let cells = |counts: &Counts| {
        let other = counts.unknown_before + counts.untracked + counts.unpredicted + counts.whole_pages;
        [counts.exact, counts.masked, counts.explained(), counts.different, other].map(units::count).to_vec()
    };
    for ((kind, family), counts) in &check.counts {
        let (sum, rows) = families.entry(*family).or_default();
        sum.merge(counts);
        rows.push(Row { depth: 1, label: kind_name(*kind, version), cells: cells(counts), share: None });
    }
    let with_sum = |(family, (sum, rows)): (Family, (Counts, Vec<Row>))| {
        let label = family.name().to_owned();
        std::iter::once(Row { depth: 0, label, cells: cells(&sum), share: None }).chain(rows)
    };
    let rows: Vec<Row> = families.into_iter().flat_map(with_sum).collect();
    let head: &[&str] = &["exact", "but for hints", "explained", "different", "not compared"];
    crate::table::table(look, title, ("page, record", head), &rows)
}

fn kind_name(kind: Kind, version: Major) -> String {
    format!("{} {}", kind.resource_manager(version), kind.name(version))
}
