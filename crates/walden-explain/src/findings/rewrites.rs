//! Causes in relations that are written whole.

use std::collections::BTreeSet;

use super::facts::{Facts, Relation, Table, is_delete, is_insert, is_page_image};
use super::ledger::Claim;
use super::{Candidate, bytes_text};
use crate::labels::Part;
use crate::tally::Bucket;

/// Minimum number of values that are replaced.
const MIN_VALUES: u64 = 50;

/// TOAST values that are deleted about as often as they are inserted: updates replace them.
pub(super) fn toast(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let toasts = || table.relations.iter().filter(|one| one.is_toast());
        let inserts = facts.records(facts.cells(toasts(), is_insert));
        let deletes = facts.records(facts.cells(toasts(), is_delete));
        if inserts < MIN_VALUES || deletes * 2 < inserts {
            continue;
        }
        let indexes = table.relations.iter().filter(|one| one.part == Part::ToastIndex);
        let cells = toasts().chain(indexes).flat_map(|one| one.cells.iter().copied());
        let claim = facts.claim(cells, 1.0, 1.0);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "updates of {name} write its large values (TOAST) again whole: {inserts} chunks written and {deletes} deleted, \
                 {} of the WAL",
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "keep what changes often apart from the large value, in columns or a table of its own, and do not set the \
                     value where it stays the same; compression by lz4 (default_toast_compression) makes it smaller"
                .into(),
            ..Candidate::new(claim, (0.5, 1.0))
        });
    }
    found
}

/// Tables that are filled, and then truncated or dropped.
pub(super) fn staging(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    // Of a table that was dropped nothing is known but its numbers.
    let mut nameless = Claim::default();
    let mut nameless_files = Vec::new();
    for table in facts.user_tables().filter(|table| table.part != Part::MaterializedView) {
        let is_filled = |one: &Relation| facts.records(facts.cells([one], is_insert)) > 0;
        let emptied =
            table.relations.iter().filter(|one| one.was_dropped && !one.is_replaced && !one.is_index);
        let fills = emptied.filter(|one| is_filled(one)).count();
        let is_nameless_index = table.part == Part::Relation
            && table.relations.iter().all(|one| one.was_created && one.was_dropped);
        if fills == 0 && !is_nameless_index {
            continue;
        }
        let cells = table.relations.iter().flat_map(|one| one.cells.iter().copied());
        if table.part == Part::Relation {
            facts.extend(&mut nameless, cells, 1.0, 1.0);
            if fills > 0 {
                nameless_files.push(table.name.clone());
            }
            continue;
        }
        let claim = facts.claim(cells, 1.0, 1.0);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{name} was filled and truncated {fills} {}; with its indexes it takes {} of the WAL",
                if fills == 1 { "time" } else { "times" },
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: format!(
                "ALTER TABLE {name} SET UNLOGGED, or a temporary table: a crash then empties it, and standbys do not have it"
            ),
            ..Candidate::new(claim, (0.95, 1.0))
        });
    }
    if let Some(first) = nameless_files.first() {
        let count = nameless_files.len();
        found.push(Candidate {
            text: format!(
                "{count} {} filled and then truncated or dropped; they take {} of the WAL",
                if count == 1 { "table was" } else { "tables were" },
                facts.percent(nameless.bytes())
            ),
            points_at: if count == 1 { first.clone() } else { format!("{first} and {} more", count - 1) },
            remedy: "CREATE UNLOGGED TABLE or CREATE TEMPORARY TABLE: a crash then empties it, and standbys do not have it".into(),
            ..Candidate::new(nameless, (0.95, 1.0))
        });
    }
    found
}

pub(super) fn refresh(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for view in facts.user_tables().filter(|table| table.part == Part::MaterializedView) {
        // CREATE MATERIALIZED VIEW writes it whole, too, but replaces no file.
        let refreshes = view.heaps().filter(|one| one.written_by.is_some() && !one.is_index).count();
        if refreshes == 0 {
            continue;
        }
        let written = view.relations.iter().filter(|one| one.written_by.is_some());
        let claim = facts.claim(written.flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
        let name = &view.name;
        let each = claim.bytes() / refreshes as u64;
        found.push(Candidate {
            text: format!(
                "the materialized view {name} was written whole {refreshes} {}, {} each, {} of the WAL",
                if refreshes == 1 { "time" } else { "times" },
                bytes_text(each),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: format!(
                "REFRESH MATERIALIZED VIEW CONCURRENTLY {name}, which writes only rows that differ (it needs a unique index); or \
                 refresh it less often"
            ),
            ..Candidate::new(claim, (0.1, 0.95))
        });
    }
    found
}

pub(super) fn table(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let Some(way) = rewritten_in(facts, table) else { continue };
        let claim = written_whole(facts, table);
        let name = &table.name;
        let share = facts.percent(claim.bytes());
        let (text, remedy, saves) = match way {
            Way::Images => (
                format!(
                    "{name} and its indexes were written whole, as VACUUM FULL, CLUSTER and some forms of ALTER TABLE do: {share} of \
                     the WAL"
                ),
                "plain VACUUM often enough that the space is used again; VACUUM FULL only to give much space back",
                Some((0.9, 1.0)),
            ),
            Way::Rows => (
                format!(
                    "{name} and its indexes were written whole, row by row, as ALTER TABLE does for a column of another type or with \
                     a volatile default: {share} of the WAL"
                ),
                "all such changes of a table in one ALTER TABLE, which writes it once; a default that is a constant, or that is set \
                 after the column was added and holds for new rows, rewrites nothing",
                Some((0.0, 1.0)),
            ),
            Way::Move => (
                format!("{name} was copied to another tablespace: {share} of the WAL"),
                "tables that are created where they are to stay (TABLESPACE, default_tablespace); wal_compression compresses the \
                 images of their pages",
                None,
            ),
        };
        let candidate = Candidate::new(claim, saves.unwrap_or_default());
        let saves = candidate.saves.filter(|_| saves.is_some());
        found.push(Candidate { text, points_at: name.clone(), remedy: remedy.into(), saves, ..candidate });
    }
    found
}

pub(super) fn index_build(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables().filter(|table| rewritten_in(facts, table).is_none()) {
        let is_built = |one: &&Relation| one.is_index && one.was_created && one.written_by.is_none();
        for index in table.relations.iter().filter(is_built) {
            let mut claim = Claim::default();
            for cell in facts.main_fork(index) {
                claim.add_images(cell, facts.tally(cell).buckets.get(Bucket::ImageForced));
            }
            if claim.bytes() == 0 {
                continue;
            }
            let name = &index.name;
            found.push(Candidate {
                text: format!(
                    "index {name} of {} was built: images of all of its pages, {}, take {} of the WAL, whatever the checkpoints",
                    table.name,
                    bytes_text(claim.bytes()),
                    facts.percent(claim.bytes())
                ),
                points_at: name.clone(),
                remedy: "wal_compression compresses these images; an index that is built once after its table was loaded takes \
                         less WAL than one that grows with it"
                    .into(),
                try_settings: vec![("wal_compression", super::settings::compression_method(facts).into())],
                saves: None,
                ..Candidate::new(claim, (0.0, 1.0))
            });
        }
    }
    found
}

/// How many times as many bytes a file's rows may take as the images of all of its pages: more rows than that were not added
/// since it was rewritten.
const MAX_ROWS_TO_IMAGES: u64 = 10;

/// How a table was written whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// By images of its pages.
    Images,
    /// Row by row (`ATRewriteTable`).
    Rows,
    /// By images, to another tablespace.
    Move,
}

fn rewritten_in(facts: &Facts<'_>, table: &Table) -> Option<Way> {
    let is_new =
        |one: &&Relation| one.was_created && !one.is_index && !one.is_toast() && one.part != Part::Relation;
    let way = |one: &Relation| match one.written_by {
        Some(by) if by.is_move => Some(Way::Move),
        _ if is_written_by_images(facts, one) => Some(Way::Images),
        Some(_) => Some(Way::Rows),
        None => None,
    };
    let heaps = table.relations.iter().filter(|_| table.part != Part::MaterializedView).filter(is_new);
    heaps.filter_map(way).min()
}

/// Whether images filled a file, and not rows: vacuum logs an image of an empty page now and then (`lazy_scan_new_or_empty`).
fn is_written_by_images(facts: &Facts<'_>, relation: &Relation) -> bool {
    let images = facts.bucket(facts.main_fork(relation), Bucket::ImageForced);
    let rows: u64 = facts.cells([relation], is_insert).map(|cell| facts.tally(cell).bytes()).sum();
    images > 0 && rows <= MAX_ROWS_TO_IMAGES * images
}

/// What a rewrite wrote: images of the pages of the new files, with their records, and rows that are inserted one by one. What was
/// written to the new files later is left out; of rows, as far as there are more of them than the transaction wrote.
fn written_whole(facts: &Facts<'_>, table: &Table) -> Claim {
    let mut claim = Claim::default();
    let created = || table.relations.iter().filter(|one| one.was_created);
    for relation in created() {
        for cell in facts.main_fork(relation) {
            let tally = facts.tally(cell);
            if facts.kind(cell).is_some_and(|kind| is_page_image(kind.rmid(), kind.info())) {
                claim.add_share(cell, tally, 1.0, 1.0);
            } else {
                claim.add_images(cell, tally.buckets.get(Bucket::ImageForced));
            }
        }
    }
    let transactions: BTreeSet<u32> = created().filter_map(|one| one.written_by).map(|by| by.xid).collect();
    for xid in transactions {
        // VACUUM FULL inserts the rows of TOAST tables only.
        let has_rows = |one: &&Relation| {
            one.written_by.is_some_and(|by| by.xid == xid)
                && !one.is_index
                && (one.is_toast() || !is_written_by_images(facts, one))
        };
        let rows = facts.cells(table.relations.iter().filter(has_rows), is_insert);
        facts.extend_plain(&mut claim, rows, facts.plain_bytes_of(xid));
    }
    claim
}
