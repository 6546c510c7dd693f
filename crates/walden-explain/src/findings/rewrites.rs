//! Causes in relations that are written whole.

use std::collections::BTreeSet;

use walden_format::lsn::Lsn;
use walden_format::rmgr::rmid;
use walden_format::version::Major;

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
            remedy: "keep what changes often within the large value apart from it, in columns or a table of its own, and do not set \
                     the value where it stays the same"
                .into(),
            ..Candidate::new(claim, (0.5, 1.0))
        });
    }
    found
}

/// Tables that are filled, and then truncated or dropped.
pub(super) fn staging(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_named = |table: &&Table| !matches!(table.part, Part::Relation | Part::MaterializedView);
    let named = facts.user_tables().filter(is_named).filter_map(|table| emptied(facts, table));
    named.chain(dropped(facts)).collect()
}

/// How often a table was filled and then emptied.
fn fills(facts: &Facts<'_>, table: &Table) -> usize {
    let is_filled = |one: &Relation| facts.records(facts.cells([one], is_insert)) > 0;
    let was_emptied = |one: &&Relation| one.dropped_at.is_some() && !one.is_replaced && !one.is_index;
    table.relations.iter().filter(was_emptied).filter(|one| is_filled(one)).count()
}

fn emptied(facts: &Facts<'_>, table: &Table) -> Option<Candidate> {
    let fills = fills(facts, table);
    if fills == 0 {
        return None;
    }
    let claim = facts.claim(table.relations.iter().flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    let name = &table.name;
    Some(Candidate {
        text: format!(
            "{name} was filled and truncated {fills} {}; with its indexes it takes {} of the WAL",
            if fills == 1 { "time" } else { "times" },
            facts.percent(claim.bytes())
        ),
        points_at: name.clone(),
        remedy: table.sql.statement(
            "if its rows can be lost in a crash: ALTER TABLE",
            " SET UNLOGGED, or a temporary table: a crash then empties it, and standbys do not have it (the server refuses it for a \
             table of a publication, and for one that foreign keys of logged tables refer to)",
        ),
        ..Candidate::new(claim, (0.95, 1.0))
    })
}

/// Tables of which nothing is known but the numbers of their files, as they were dropped.
fn dropped(facts: &Facts<'_>) -> Option<Candidate> {
    let files = || facts.user_tables().filter(|table| table.part == Part::Relation);
    let filled: Vec<&Table> = files().filter(|table| fills(facts, table) > 0).collect();
    let relations = filled.iter().flat_map(|table| &table.relations);
    // A commit record drops indexes with their table. Others are of tables that are still there.
    let commits: BTreeSet<Lsn> = relations.filter_map(|one| one.dropped_at).collect();
    let is_of_them =
        |one: &&Relation| one.dropped_at.is_some_and(|commit| commits.contains(&commit)) && !one.is_replaced;
    let relations = files().flat_map(|table| &table.relations).filter(is_of_them);
    let claim = facts.claim(relations.flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    let tables: Vec<&str> = filled
        .iter()
        .filter(|table| !table.relations.iter().any(Relation::is_toast))
        .map(|table| table.name.as_str())
        .collect();
    let first = *tables.first()?;
    let share = facts.percent(claim.bytes());
    let (text, points_at) = match tables.len() {
        1 => (
            format!(
                "1 table was filled and then truncated or dropped; with its indexes it takes {share} of the WAL"
            ),
            first.to_owned(),
        ),
        count => (
            format!(
                "{count} tables were filled and then truncated or dropped; with their indexes they take {share} of the WAL"
            ),
            format!("{first} and {} more", count - 1),
        ),
    };
    Some(Candidate {
        text,
        points_at,
        remedy: "for intermediate results, which can be lost in a crash: CREATE TEMPORARY TABLE or CREATE UNLOGGED TABLE (a crash empties \
                 it, and standbys do not have it); for partitions that expire, nothing: dropping them is the cheapest way to delete"
            .into(),
        // Which of the two it is, the WAL does not show.
        ..Candidate::new(claim, (0.0, 1.0))
    })
}

pub(super) fn refresh(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for view in facts.user_tables().filter(|table| table.part == Part::MaterializedView) {
        // CREATE MATERIALIZED VIEW writes it whole, too, but replaces no file.
        let refreshes = view.heaps().filter(|one| one.written_by.is_some() && !one.is_index).count();
        if refreshes == 0 {
            found.extend(refresh_by_rows(facts, view));
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
            remedy: view.sql.statement(
                "REFRESH MATERIALIZED VIEW CONCURRENTLY",
                ", which writes only rows that differ (it needs a unique index); or refresh it less often",
            ),
            ..Candidate::new(claim, (0.1, 0.95))
        });
    }
    found
}

/// `REFRESH MATERIALIZED VIEW CONCURRENTLY`, which deletes and inserts the rows that differ
/// (`refresh_by_match_merge`).
fn refresh_by_rows(facts: &Facts<'_>, view: &Table) -> Option<Candidate> {
    let old = || view.heaps().filter(|one| !one.was_created);
    let [inserted, deleted] =
        [is_insert as fn(u8, u8) -> bool, is_delete].map(|is_its| facts.records(facts.cells(old(), is_its)));
    if inserted + deleted == 0 {
        return None;
    }
    let claim = facts.claim(view.relations.iter().flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    let name = &view.name;
    Some(Candidate {
        text: format!(
            "REFRESH MATERIALIZED VIEW CONCURRENTLY of {name} deleted {deleted} rows and inserted {inserted}; with its indexes it takes {} of \
             the WAL",
            facts.percent(claim.bytes())
        ),
        points_at: name.clone(),
        remedy: "refresh it less often; where most rows differ each time, REFRESH without CONCURRENTLY writes them once, and locks readers \
                 out meanwhile"
            .into(),
        ..Candidate::new(claim, (0.1, 0.9))
    })
}

pub(super) fn table(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let Some(way) = rewritten_in(facts, table) else { continue };
        let claim = written_whole(facts, table);
        let name = &table.name;
        let share = facts.percent(claim.bytes());
        let has_repack = facts.explanation.version >= Major::V19;
        let (text, remedy, saves) = match way {
            Way::Images if has_repack => (
                format!(
                    "{name} and its indexes were written whole, as REPACK, VACUUM FULL, CLUSTER and some forms of ALTER TABLE do: \
                     {share} of the WAL"
                ),
                "plain VACUUM often enough that the space is used again; to give much space back, REPACK (CONCURRENTLY), which writes \
                 about as much but lets queries and changes go on (it needs a primary key or another identity index)",
                Some((0.9, 1.0)),
            ),
            Way::Concurrent => (
                format!(
                    "{name} and its indexes were written whole by REPACK (CONCURRENTLY), row by row: {share} of the WAL"
                ),
                "plain VACUUM often enough that the space is used again; REPACK only to give much space back",
                Some((0.9, 1.0)),
            ),
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
                    "{name} and its indexes were written whole, row by row, as ALTER TABLE does for a column of another type, with a \
                     volatile default, or to SET LOGGED: {share} of the WAL"
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
        let is_built = |one: &&Relation| {
            let is_new = one.was_created && one.written_by.is_none() && !facts.is_copied(one);
            is_new && (one.is_index || is_index_by_its_images(facts, one))
        };
        for index in table.relations.iter().filter(is_built) {
            let mut claim = Claim::default();
            for cell in facts.main_fork(index) {
                claim.add_images(cell, facts.tally(cell).buckets.get(Bucket::ImageForced));
            }
            if claim.bytes() == 0 {
                continue;
            }
            let name = &index.name;
            let of_table = table.behind(index);
            found.push(Candidate {
                text: format!(
                    "index {name}{of_table} was built: images of all of its pages, {}, take {} of the WAL, whatever the checkpoints",
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

/// Whether a new file without a name is that of an index, as images filled it and nothing else. A table has records of its rows, unless
/// a rewrite wrote it or `CREATE DATABASE` copied it, catalogs and all.
fn is_index_by_its_images(facts: &Facts<'_>, relation: &Relation) -> bool {
    let has_image = |cell| facts.kind(cell).is_some_and(|kind| kind.rmid() == rmid::XLOG);
    relation.part == Part::Relation && facts.main_fork(relation).all(has_image)
}

/// How many times as many bytes a file's rows may take as the images of all of its pages: more rows than that were not added
/// since it was rewritten.
const MAX_ROWS_TO_IMAGES: u64 = 10;

/// How a table was written whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// By images of its pages.
    Images,
    /// Row by row by `REPACK (CONCURRENTLY)`; since 19.
    Concurrent,
    /// Row by row (`ATRewriteTable`).
    Rows,
    /// By images, to another tablespace.
    Move,
}

fn rewritten_in(facts: &Facts<'_>, table: &Table) -> Option<Way> {
    let is_new = |one: &&Relation| {
        let is_heap = !one.is_index && !one.is_toast() && one.part != Part::Relation;
        is_heap && one.was_created && !facts.is_copied(one)
    };
    let way = |one: &Relation| match one.written_by {
        Some(by) if by.is_move => Some(Way::Move),
        Some(by) if by.is_concurrent => Some(Way::Concurrent),
        _ if is_written_by_images(facts, one) => Some(Way::Images),
        Some(by) => by.has_logged_rows.then_some(Way::Rows),
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
        facts.extend_plain(&mut claim, rows, facts.bytes_of(xid).0);
    }
    claim
}
