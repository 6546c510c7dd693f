//! Causes in the upkeep of tables: freezing, hint bits, pruning, vacuum.

use rustc_hash::FxHashSet;
use walden_format::rmgr::info::{heap2, xlog};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_source::counted;

use super::Candidate;
use super::facts::{Facts, Relation, Table, is_delete, is_heap_vacuum, is_index_vacuum, is_update};
use super::ledger::Claim;
use crate::evidence::Evidence;

/// Remedy for a table that is written once and then vacuumed.
const LOAD_FROZEN: &str =
    "COPY ... WITH (FREEZE) into a table that the same transaction creates or truncates";

pub(super) fn freezing(facts: &Facts<'_>) -> Vec<Candidate> {
    let version = facts.explanation.version;
    let is_freeze = |manager: u8, info: u8| {
        let kind = info & heap2::OPMASK;
        manager == rmid::HEAP2
            && if version >= Major::V17 {
                kind == heap2::PRUNE_VACUUM_SCAN
            } else if version >= Major::V14 {
                kind == heap2::FREEZE_PAGE
            } else {
                kind == heap2::FREEZE_PAGE_UNTIL_13
            }
    };
    let is_visible = |manager: u8, info: u8| {
        manager == rmid::HEAP2 && version < Major::V19 && info & heap2::OPMASK == heap2::VISIBLE
    };
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let freezing = table.evidence().freezing;
        if freezing.count == 0 {
            continue;
        }
        let all = facts.records(facts.cells(table.heaps(), is_freeze)).max(1);
        let share = freezing.count as f64 / all as f64;
        let mut claim = facts.claim(facts.cells(table.heaps(), is_freeze), share, share);
        facts.extend(&mut claim, facts.cells(table.heaps(), is_visible), 1.0, 1.0);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "vacuum froze rows of {} of {name}; that takes {} of the WAL, images of pages that nothing else changed \
                 included",
                counted(freezing.count, "page"),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: format!(
                "{LOAD_FROZEN}; or VACUUM (FREEZE) right after a load, before the next checkpoint, so that it writes no images"
            ),
            ..Candidate::new(claim, (0.7, 1.0))
        });
    }
    found
}

/// The cells of images that hint bits cause on the pages of a table and its indexes.
fn hint_cells<'a>(facts: &'a Facts<'_>, table: &'a Table) -> impl Iterator<Item = usize> {
    table.relations.iter().flat_map(|one| hint_cells_of(facts, one))
}

fn hint_cells_of<'a>(facts: &'a Facts<'_>, relation: &'a Relation) -> impl Iterator<Item = usize> {
    let is_hint = |manager: u8, info: u8| manager == rmid::XLOG && info == xlog::FPI_FOR_HINT;
    // VACUUM writes the maps, with the same record.
    let is_its = move |cell: &usize| facts.kind(*cell).is_some_and(|kind| is_hint(kind.rmid(), kind.info()));
    facts.main_fork(relation).filter(is_its)
}

fn hint_images(facts: &Facts<'_>, table: &Table) -> u64 {
    images_of(facts, hint_cells(facts, table))
}

/// The share of a relation's images for hint bits that vacuum set itself.
pub(super) fn share_of_vacuum(facts: &Facts<'_>, table: &Table, relation: &Relation) -> f64 {
    let all = images_of(facts, hint_cells_of(facts, relation));
    hints_of_vacuum(facts, table, relation) as f64 / all.max(1) as f64
}

fn hints_of_vacuum(facts: &Facts<'_>, table: &Table, relation: &Relation) -> u64 {
    let Evidence { vacuum_hints, prune_hints, .. } = relation.evidence;
    let Evidence { prunes, prunes_in_transactions, .. } = table.evidence();
    let is_by_queries = is_by_queries(facts, table, prunes.count, prunes_in_transactions);
    vacuum_hints.count + if is_by_queries { 0 } else { prune_hints.count }
}

/// Whether the hint bits of a table cost images only because checkpoints are frequent: its rows change all
/// the time, so that each of these pages had an image when it was changed, and needs one again after each
/// checkpoint.
fn are_first_touches(facts: &Facts<'_>, table: &Table) -> bool {
    /// Fewer intervals are not frequent.
    const MIN_INTERVALS: usize = 3;
    let intervals = facts.checkpoints.iter().filter(|checkpoint| checkpoint.interval.is_some()).count();
    let is_change = |manager: u8, info: u8| is_update(manager, info) || is_delete(manager, info);
    intervals >= MIN_INTERVALS
        && facts.records(facts.cells(table.heaps(), is_change)) >= hint_images(facts, table)
}

/// The images of hint bits that frequent checkpoints cause.
pub(super) fn hint_images_of_checkpoints(facts: &Facts<'_>) -> Claim {
    let tables = facts.user_tables().filter(|table| are_first_touches(facts, table));
    facts.claim(tables.flat_map(|table| hint_cells(facts, table)), 1.0, 1.0)
}

pub(super) fn hint_bits(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables().filter(|table| !are_first_touches(facts, table)) {
        let name = &table.name;
        let images = images_of(facts, hint_image_cells(facts, table, false));
        if images > 0 {
            let claim = facts.claim(hint_image_cells(facts, table, false), 1.0, 1.0);
            let heaps = table.relations.iter().filter(|one| !one.is_index);
            let of_vacuum: u64 = heaps.map(|one| hints_of_vacuum(facts, table, one)).sum();
            let who = match of_vacuum.min(images) {
                0 => "reads of",
                // Reads at the same time hide some of vacuum's.
                by_vacuum if by_vacuum * 20 >= images * 19 => "vacuum of",
                _ => "reads and vacuum of",
            };
            found.push(Candidate {
                text: format!(
                    "{who} {name} set hint bits on {}, each logged as an image because of data checksums or \
                     wal_log_hints: {} of the WAL",
                    counted(images, "page"),
                    facts.percent(claim.bytes())
                ),
                points_at: name.clone(),
                remedy: format!("VACUUM right after a load, before the next checkpoint; or {LOAD_FROZEN}"),
                ..Candidate::new(claim, (0.7, 1.0))
            });
        }
        let images = images_of(facts, hint_image_cells(facts, table, true));
        if images > 0 {
            let claim = facts.claim(hint_image_cells(facts, table, true), 1.0, 1.0);
            let bytes = claim.bytes().max(1);
            found.push(Candidate {
                text: format!(
                    "scans of indexes of {name} marked entries of dead rows on {}, each logged as an image because of data checksums or \
                     wal_log_hints: {} of the WAL",
                    counted(images, "page"),
                    facts.percent(claim.bytes())
                ),
                points_at: name.clone(),
                remedy: table.sql.statement(
                    "VACUUM",
                    " after many deletes or updates, and before queries scan these entries: it removes them, and the changes of the pages need \
                     fewer images if checkpoints are farther apart (max_wal_size, checkpoint_timeout)",
                ),
                // Vacuum also prunes the pages that queries would prune when they find dead rows.
                ..Candidate::new(claim, (0.0, 1.0 + pruned_by_reads(facts, table) as f64 / bytes as f64))
            });
        }
    }
    found
}

/// Bytes of records in which queries prune pages of a table, unless updates or deletes need that.
fn pruned_by_reads(facts: &Facts<'_>, table: &Table) -> u64 {
    let is_change = |manager: u8, info: u8| is_update(manager, info) || is_delete(manager, info);
    let prunes = table.evidence().prunes;
    let changes = facts.records(facts.cells(table.heaps(), is_change));
    if changes > prunes.count { 0 } else { prunes.bytes + prunes.image_bytes }
}

/// Returns the cells of images that hints cause on the pages of a table's indexes (`_bt_killitems`), or on
/// the pages of the table and its TOAST table.
fn hint_image_cells<'a>(
    facts: &'a Facts<'_>,
    table: &'a Table,
    of_indexes: bool,
) -> impl Iterator<Item = usize> + 'a {
    let of_index: FxHashSet<usize> =
        table.relations.iter().filter(|one| one.is_index).flat_map(|one| one.cells.iter().copied()).collect();
    hint_cells(facts, table).filter(move |cell| of_index.contains(cell) == of_indexes)
}

fn images_of(facts: &Facts<'_>, cells: impl Iterator<Item = usize>) -> u64 {
    cells.map(|cell| facts.tally(cell).images).sum()
}

pub(super) fn pruning(facts: &Facts<'_>) -> Vec<Candidate> {
    let kind = if facts.explanation.version >= Major::V17 { heap2::PRUNE_ON_ACCESS } else { heap2::PRUNE };
    let is_prune = |manager: u8, info: u8| manager == rmid::HEAP2 && info & heap2::OPMASK == kind;
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let evidence = table.evidence();
        if evidence.prunes.count == 0 {
            continue;
        }
        // Images of pages that are pruned first after a checkpoint are none of pruning's: the update would
        // have them. Since 19, some records of the kind do not prune.
        let mut claim = Claim::default();
        facts.extend_plain(&mut claim, facts.cells(table.heaps(), is_prune), evidence.prunes.bytes);
        let who = match is_by_queries(facts, table, evidence.prunes.count, evidence.prunes_in_transactions) {
            true => "queries and updates prune",
            false => "queries or vacuum prune",
        };
        let updates = facts.records(facts.cells(table.heaps(), is_update));
        // In a narrow table, few pages need an image; but most images follow checkpoints.
        let changes = facts.cells(table.heaps(), is_update).chain(facts.cells(table.heaps(), is_prune));
        let images: u64 = changes.map(|cell| facts.tally(cell).buckets.images()).sum();
        let most = 0.9 + (images as f64 / claim.bytes().max(1) as f64).min(0.4);
        // With more rows on a page, a narrower table is pruned as often: at each change, because a page with
        // less free space than its fillfactor leaves is pruned (`heap_page_prune_opt`).
        let is_wide = evidence.update_offsets <= MAX_WIDE_ROWS * updates;
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{who} old row versions from pages of {name}, {} for {}, {} of the WAL",
                counted(evidence.prunes.count, "time"),
                counted(updates, "update"),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "a higher fillfactor if it is low, as a page is pruned at each change once it has less free space than fillfactor \
                     leaves, or 10 %; keep columns that change often in a narrow table of its own, where a page has space for many \
                     versions and is pruned once for all of them"
                .into(),
            ..Candidate::new(claim, (if is_wide { 0.3 } else { 0.0 }, most))
        });
    }
    found
}

/// Rows on a page that each take more than the tenth of the page at which queries prune.
const MAX_WIDE_ROWS: u64 = 10;

/// Since 17 a record shows who prunes. Before, vacuum has no transaction ID, and leaves other records as
/// well.
pub(super) fn is_by_queries(facts: &Facts<'_>, table: &Table, prunes: u64, in_transactions: u64) -> bool {
    let version = facts.explanation.version;
    let is_vacuum = |manager: u8, info: u8| {
        manager == rmid::HEAP2 && matches!(info & heap2::OPMASK, heap2::VACUUM | heap2::VISIBLE)
    };
    version >= Major::V17
        || in_transactions * 2 > prunes
        || facts.records(facts.cells(table.heaps(), is_vacuum)) == 0
}

pub(super) fn vacuum(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut claim = Claim::default();
    let mut largest: Option<(u64, &str)> = None;
    for table in facts.user_tables() {
        let mut of_table = Claim::default();
        let evidence = table.evidence();
        let is_by_queries =
            is_by_queries(facts, table, evidence.prunes.count, evidence.prunes_in_transactions);
        let is_vacuum = |manager: u8, info: u8| {
            is_heap_vacuum(manager, info) && !(is_by_queries && info & heap2::OPMASK == heap2::PRUNE)
        };
        for cells in [
            facts.cells(&table.relations, is_vacuum).collect::<Vec<_>>(),
            facts.cells(&table.relations, is_index_vacuum).collect(),
        ] {
            facts.extend(&mut of_table, cells.iter().copied(), 1.0, 0.0);
            facts.extend(&mut claim, cells.into_iter(), 1.0, 0.0);
        }
        if largest.is_none_or(|(bytes, _)| of_table.bytes() > bytes) {
            largest = Some((of_table.bytes(), &table.name));
        }
    }
    let Some((bytes, name)) = largest.filter(|(bytes, _)| *bytes > 0) else { return Vec::new() };
    vec![Candidate {
        text: format!(
            "vacuum takes {} of the WAL, {} of it for {name}; images left out",
            facts.percent(claim.bytes()),
            super::percent_text(bytes as f64 / claim.bytes().max(1) as f64)
        ),
        points_at: name.to_owned(),
        remedy: "fewer updates and deletes of its rows; vacuum does less for each row if it comes often"
            .into(),
        saves: None,
        ..Candidate::new(claim, (0.0, 1.0))
    }]
}
