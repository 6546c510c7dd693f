//! Causes in updates and deletes of rows.

use walden_format::record::Fork;
use walden_format::rmgr::info::{heap, heap2};
use walden_format::rmgr::rmid;
use walden_source::counted;

use super::facts::{
    Facts, Index, Table, is_delete, is_heap_vacuum, is_index_manager, is_index_vacuum, is_insert, is_lock,
    is_update,
};
use super::indexes::{drop_statement, is_droppable};
use super::ledger::Claim;
use super::{Candidate, percent_text, with_commits};
use crate::evidence::Evidence;
use crate::group::Owner;
use crate::labels::Part;

/// Minimum number of updates for a finding about a table's updates.
const MIN_UPDATES: u64 = 100;
/// Minimum number of rows that one transaction changes in bulk.
const MIN_BULK: u64 = 5000;
/// Minimum number of updates that must have been compared.
const MIN_COMPARED: u64 = 20;

/// Bytes of the record of a HOT update that changes a column or two.
const SHORT_UPDATE_BYTES: u64 = 80;

/// A table's updates.
struct Updates<'a> {
    table: &'a Table,
    evidence: Evidence,
    all: u64,
    hot: u64,
    moved: u64,
    /// Number of updates within the page that were not HOT: an indexed column changed.
    indexed: u64,
    /// Share of updates in the entries of an index that does not show for what its entries are.
    of_index_tuples: f64,
}

/// Shares of an index's bytes that are for updates.
struct IndexShare {
    /// Of records without their images.
    plain: f64,
    /// Of images.
    images: f64,
}

/// Returns the share of updates in the WAL of a B-tree index. This includes splits, which insert the entry
/// for which there was no space.
///
/// The share is that among the index's own entries. The inserts of the table do not show it: rows inserted
/// before the index was built have no entries in the WAL. `walden-whatif` divides the records of indexes by
/// the same rule (`objects.rs`).
fn share_of_updates(evidence: &Evidence) -> IndexShare {
    let Evidence { leaf_inserts, update_entries, leaf_images, update_images, .. } = *evidence;
    let plain = update_entries as f64 / leaf_inserts.max(1) as f64;
    // Entries of updates go all over an index and have more than their share of its images, where inserts
    // have ascending keys.
    let images = if leaf_images > 0 { update_images as f64 / leaf_images as f64 } else { plain };
    IndexShare { plain, images }
}

impl<'a> Updates<'a> {
    fn for_table(facts: &Facts<'_>, table: &'a Table) -> Option<Updates<'a>> {
        let evidence = table.evidence();
        let count = |kind: u8| {
            let is_kind = move |manager: u8, info: u8| manager == rmid::HEAP && info & heap::OPMASK == kind;
            facts.records(facts.cells(table.heaps(), is_kind))
        };
        let (other, hot) = (count(heap::UPDATE), count(heap::HOT_UPDATE));
        let all = other + hot;
        if all < MIN_UPDATES {
            return None;
        }
        let moved = evidence.moved_updates.min(other);
        // A `MULTI_INSERT` record inserts many rows. The leaf inserts of the busiest index are the number of
        // rows.
        let entries = table.indexes().iter().map(|index| index.evidence.leaf_inserts).max().unwrap_or(0);
        let inserts = facts.records(facts.cells(table.heaps(), is_insert)).max(entries.saturating_sub(other));
        let of_index_tuples = other as f64 / (other + inserts).max(1) as f64;
        Some(Updates { table, evidence, all, hot, moved, indexed: other - moved, of_index_tuples })
    }

    /// Whether most updates come from one transaction, or from several transactions that each changed many
    /// rows.
    fn are_bulk(&self) -> bool {
        let most = self.bulk_rows();
        most >= MIN_BULK && most * 2 >= self.all
    }

    /// Rows that these transactions updated.
    fn bulk_rows(&self) -> u64 {
        self.evidence.updates_by.count.max(self.evidence.update_batches.rows).min(self.all)
    }

    /// Claims a share of the update records with their locks. An update to another page locks the old row
    /// first, and that record has the image of the old row's page.
    fn claim_heap(&self, facts: &Facts<'_>, claim: &mut Claim, share: f64, images: f64) {
        facts.extend(claim, facts.cells(self.table.heaps(), is_update), share, images);
        let locks = (self.evidence.update_locks.bytes as f64 * share) as u64;
        facts.extend_plain(claim, facts.cells(self.table.heaps(), is_lock), locks);
        let lock_images = (self.evidence.update_locks.image_bytes as f64 * images) as u64;
        facts.extend_images(claim, facts.cells(self.table.heaps(), is_lock), lock_images);
    }

    /// Returns the share of images of the table's pages that the WAL would lack without a share of the
    /// updates: the images of pages that no other update changes until the next checkpoint.
    fn share_of_images(&self, facts: &Facts<'_>, share: f64) -> f64 {
        let cells = facts.cells(self.table.heaps(), is_update);
        let images: u64 = cells.map(|cell| facts.tally(cell).images).sum();
        share.powf(self.all as f64 / images.clamp(1, self.all) as f64)
    }

    /// Claims a share of what updates wrote to the table's indexes.
    fn claim_indexes(&self, facts: &Facts<'_>, claim: &mut Claim, share: f64) {
        let is_written = |manager: u8, info: u8| manager == rmid::BTREE && !is_index_vacuum(manager, info);
        let others = |manager: u8, _: u8| manager != rmid::BTREE && is_index_manager(manager);
        let updates = self.indexed + self.moved;
        for index in self.table.index_files() {
            let of_updates = share_of_updates(&index.evidence);
            let (plain, images) = (share * of_updates.plain, share * of_updates.images);
            facts.extend(claim, facts.cells([index], is_written), plain, images);
            // Most other access methods have a record for each entry at least.
            let records = facts.records(facts.cells([index], others));
            let of_others = self.of_index_tuples.max((updates as f64 / records.max(1) as f64).min(1.0));
            facts.extend(claim, facts.cells([index], others), share * of_others, share * of_others);
        }
    }

    /// Bytes, without images, by which an update that is not HOT is longer than a HOT one on average: its
    /// record has the whole row if the old one is on another page.
    fn excess_bytes(&self, facts: &Facts<'_>) -> u64 {
        let mean = |kind: u8| {
            let is_its = move |manager: u8, info: u8| manager == rmid::HEAP && info & heap::OPMASK == kind;
            let claim = facts.claim(facts.cells(self.table.heaps(), is_its), 1.0, 0.0);
            (facts.records(facts.cells(self.table.heaps(), is_its)), claim.bytes())
        };
        let (others, bytes) = mean(heap::UPDATE);
        let (hot, hot_bytes) = mean(heap::HOT_UPDATE);
        let of_hot = if hot >= MIN_UPDATES { hot_bytes / hot } else { SHORT_UPDATE_BYTES };
        (bytes / others.max(1)).saturating_sub(of_hot)
    }

    /// Claims a share of the WAL that vacuum and pruning wrote for these updates.
    fn claim_vacuum(&self, facts: &Facts<'_>, claim: &mut Claim, share: f64) {
        facts.extend(claim, facts.cells(self.table.heaps(), is_heap_vacuum), share, share);
        facts.extend(claim, facts.cells(self.table.index_files(), is_index_vacuum), share, share);
    }
}

fn all_updates<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = Updates<'a>> {
    facts
        .user_tables()
        .filter(|table| !matches!(table.part, Part::Toast | Part::MaterializedView))
        .filter_map(|table| Updates::for_table(facts, table))
}

pub(super) fn unchanged(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for updates in all_updates(facts) {
        let Evidence { compared_updates: compared, unchanged_updates: unchanged, .. } = updates.evidence;
        if compared < MIN_COMPARED || unchanged * 3 < compared {
            continue;
        }
        let share = unchanged as f64 / compared as f64;
        let mut claim = Claim::default();
        updates.claim_heap(facts, &mut claim, share, updates.share_of_images(facts, share));
        updates.claim_indexes(facts, &mut claim, share);
        updates.claim_vacuum(facts, &mut claim, share);
        let emptied = updates.table.emptied(updates.evidence.only_unchanged);
        facts.extend_commits(&mut claim, emptied);
        // Twice the standard error of a share, if only some of the updates could be compared.
        let sampled = 1.0 - compared as f64 / updates.all as f64;
        let error = 2.0 * (share * (1.0 - share) / compared as f64).sqrt() * sampled;
        // Only updates with an image of their page can be compared; other updates may differ from these.
        let is_sample = compared * 2 < updates.all;
        let least = if is_sample { 0.0 } else { 1.0 - (error / share).min(0.5) - 0.05 };
        let of_all = match compared < updates.all {
            true => format!(
                "{unchanged} of the {compared} updates whose old and new row the WAL shows (of {} updates)",
                updates.all
            ),
            false => format!("{unchanged} of {compared} updates"),
        };
        let name = &updates.table.name;
        found.push(Candidate {
            text: format!(
                "{of_all} of {name} wrote a row that is the same as before; with their index entries{} they take {} of \
                 the WAL",
                with_commits(emptied).trim_end_matches(','),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "update only rows that change: WHERE (a, b) IS DISTINCT FROM (new a, new b), or the trigger \
                     suppress_redundant_updates_trigger()"
                .into(),
            ..Candidate::new(claim, (least, 1.0))
        });
    }
    found
}

/// Minimum percentage of updates that must change a row that was just updated, for the finding that a few
/// rows are updated all the time.
const HOT_ROWS: u64 = 95;
const MIN_HOT_ROW_UPDATES: u64 = 2000;
const MIN_HOT_ROWS_SHARE: f64 = 0.10;

pub(super) fn repeated(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for updates in all_updates(facts) {
        let Evidence { same_transaction_updates: same, recent_updates: recent, .. } = updates.evidence;
        let name = &updates.table.name;
        let mut claim = Claim::default();
        if same >= MIN_UPDATES && same * 5 >= updates.all {
            let share = same as f64 / updates.all as f64;
            updates.claim_heap(facts, &mut claim, share, 0.0);
            updates.claim_vacuum(facts, &mut claim, share);
            found.push(Candidate {
                text: format!(
                    "{same} of {} updates of {name} changed a row that the same transaction had written before; they take {} of \
                     the WAL",
                    updates.all,
                    facts.percent(claim.bytes())
                ),
                points_at: name.clone(),
                remedy: "compute the last value first, and update each row once in a transaction".into(),
                ..Candidate::new(claim, (0.9, 1.0))
            });
        } else if updates.all >= MIN_HOT_ROW_UPDATES && recent * 100 >= updates.all * HOT_ROWS {
            let share = recent as f64 / updates.all as f64;
            updates.claim_heap(facts, &mut claim, share, 0.0);
            updates.claim_indexes(facts, &mut claim, share);
            updates.claim_vacuum(facts, &mut claim, share);
            let emptied = updates.table.emptied(updates.evidence.only_updates);
            facts.extend_commits(&mut claim, emptied);
            if facts.share(claim.bytes()) < MIN_HOT_ROWS_SHARE {
                continue;
            }
            found.push(Candidate {
                text: format!(
                    "few rows of {name} are updated all the time: {} of {} updates changed a row that had been updated shortly \
                     before; they{} take {} of the WAL",
                    recent,
                    updates.all,
                    with_commits(emptied),
                    facts.percent(claim.bytes())
                ),
                points_at: name.clone(),
                remedy: "collect the changes, in memory or as inserted rows, and apply them to a row at once".into(),
                ..Candidate::new(claim, (0.3, 1.0))
            });
        }
    }
    found
}

pub(super) fn bulk(facts: &Facts<'_>) -> Vec<Candidate> {
    all_updates(facts).filter(Updates::are_bulk).map(|updates| bulk_update(facts, &updates)).collect()
}

fn bulk_update(facts: &Facts<'_>, updates: &Updates<'_>) -> Candidate {
    let rows = updates.bulk_rows();
    let share = rows as f64 / updates.all as f64;
    let mut claim = Claim::default();
    updates.claim_heap(facts, &mut claim, share, share);
    updates.claim_indexes(facts, &mut claim, share);
    updates.claim_vacuum(facts, &mut claim, share);
    let mut avoidable = Claim::default();
    let of_moved = updates.moved as f64 / (updates.indexed + updates.moved).max(1) as f64;
    updates.claim_indexes(facts, &mut avoidable, share * of_moved);
    let of_indexes = avoidable.bytes() as f64;
    let excess = (updates.excess_bytes(facts) * updates.moved) as f64 * share;
    let locks = updates.evidence.update_locks.bytes as f64 * share;
    // Splits depend on the order of the keys. A HOT update logs the part of the row that changes, and needs
    // no lock.
    let saves = (
        (of_indexes + 0.8 * excess + 0.9 * locks) as u64,
        (0.1 * of_indexes + 0.4 * excess + 0.1 * locks) as u64,
    );
    let saves = (updates.moved > 0).then_some(saves);
    let Evidence { updates_by, update_batches, .. } = updates.evidence;
    let by = match update_batches.transactions > 1 && update_batches.rows > updates_by.count {
        true => format!("{} transactions", update_batches.transactions),
        false => format!("transaction {}", updates_by.xid),
    };
    let name = &updates.table.name;
    Candidate {
        text: format!(
            "{by} updated at least {rows} rows of {name}; {} takes {} of the WAL",
            match updates.table.indexes().len() {
                0 => "that".into(),
                1 => "with its index that".into(),
                indexes => format!("with its {indexes} indexes that"),
            },
            facts.percent(claim.bytes())
        ),
        points_at: name.clone(),
        remedy: format!(
            "update only rows that change; where all change again and again: {}, which leaves space for a new version of each row on its page, \
             so that the updates are HOT and write into no index (unless they change an indexed column); to change all rows of a table once, \
             without other writers, CREATE TABLE AS writes less WAL; create indexes, constraints and privileges afterwards",
            updates.table.sql.statement("ALTER TABLE", " SET (fillfactor = 50) and VACUUM FULL once")
        ),
        // The entries of indexes, and most of each row, which the record of a HOT update leaves out.
        saves,
        ..Candidate::new(claim, (0.0, 1.0))
    }
}

/// The indexes of columns that updates change.
struct ChangedIndexes<'a, 'b> {
    /// One index, or all that are possible, the most probable first.
    indexes: Vec<&'b Index<'a>>,
    /// Whether the records of the index show that its keys change.
    is_sure: bool,
    /// Other indexes whose columns the updates may change as well.
    others: Vec<&'b Index<'a>>,
}

pub(super) fn indexed_columns(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for updates in all_updates(facts).filter(|updates| !updates.are_bulk()) {
        if updates.indexed < MIN_UPDATES || updates.indexed * 3 < updates.all {
            continue;
        }
        let indexes = updates.table.indexes();
        let ChangedIndexes { indexes: changed, is_sure, others } = changed_indexes(facts, &updates, &indexes);
        let Some(index) = changed.first() else { continue };
        let share = updates.indexed as f64 / (updates.indexed + updates.moved) as f64;
        let mut claim = Claim::default();
        updates.claim_indexes(facts, &mut claim, share);
        updates.claim_vacuum(facts, &mut claim, updates.indexed as f64 / updates.all as f64);
        // One without entries was built later, or has none of these rows.
        let has_entries = |index: &&Index<'_>| index.has_entries(facts) && !index.is_summarizing(facts);
        let into = match indexes.iter().filter(has_entries).count() {
            0 | 1 => "its index".to_owned(),
            count => format!("all of its {count} indexes"),
        };
        let can_drop = is_droppable(facts, index);
        let name = &updates.table.name;
        let which = match changed.len() {
            1 if is_sure => format!("of {}", index.name),
            1 => format!("probably of {}", index.name),
            _ => format!("one of {}", list_of(&changed, "and")),
        };
        let text = format!(
            "{} of {} updates of {name} are not HOT although their page had space: they changed a column of an index, {which}, and so \
             inserted into {into}, which takes {} of the WAL",
            updates.indexed,
            updates.all,
            facts.percent(claim.bytes())
        );
        if changed.len() > 1 {
            found.push(Candidate {
                text,
                points_at: list_of(&changed, "or"),
                remedy: format!(
                    "compare the columns that the updates set (walden rows shows rows before and after) with those of these indexes \
                     (\\d {name} in psql): leave a column that changes out of its indexes, or drop these if few queries need them; updates \
                     are HOT if they change no column of an index"
                ),
                saves: None,
                ..Candidate::new(claim, (0.0, 1.0))
            });
            continue;
        }
        let (index_name, index) = (index.name, index.last);
        let unless = match others.as_slice() {
            [] => String::new(),
            others => format!(", unless they also change a column of {}", list_of(others, "or")),
        };
        let without_column = format!(
            "leave the changing column out of it; then these updates are HOT and write to no index{unless}"
        );
        found.push(Candidate {
            text,
            points_at: index_name.to_owned(),
            remedy: match facts.labels.is_required_index(Owner::Relation(index.file, Fork::MAIN)) {
                Some(true) => format!(
                    "a constraint needs {index_name}: take a column that does not change for it, or update the row without that column where \
                     its value stays; then these updates are HOT and write to no index{unless}"
                ),
                _ if !can_drop => {
                    format!("for {index_name}, which was built within this WAL: {without_column}")
                }
                is_required => {
                    // Saved names of an earlier version do not contain this field.
                    let by = if is_required.is_none() { "no constraint and few queries need" } else { "few queries need" };
                    let sure = if is_sure { "" } else { " and its column is the one that changes" };
                    drop_statement(facts, index, &format!(", if {by} it{sure}, or {without_column}"))
                }
            },
            ..Candidate::new(claim, (if others.is_empty() { 0.6 } else { 0.0 }, 1.0))
        });
    }
    found
}

/// Lists names of indexes, as `a, b or c`.
fn list_of(indexes: &[&Index<'_>], conjunction: &str) -> String {
    /// More are counted.
    const MAX_NAMES: usize = 6;
    let mut names: Vec<String> = indexes.iter().take(MAX_NAMES).map(|index| index.name.to_owned()).collect();
    if indexes.len() > MAX_NAMES {
        names.push(format!("{} more", indexes.len() - MAX_NAMES));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} {conjunction} {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Finds the indexes of columns that updates change. Only the entries of B-trees show whether their keys
/// change; any index can be the reason that does not show equal keys, is not required, and does not
/// summarize.
fn changed_indexes<'a, 'b>(
    facts: &Facts<'_>,
    updates: &Updates<'_>,
    indexes: &'b [Index<'a>],
) -> ChangedIndexes<'a, 'b> {
    let shown = indexes
        .iter()
        .filter(|index| {
            let Evidence { changed_keys, same_keys, .. } = index.evidence;
            changed_keys >= MIN_COMPARED && changed_keys * 2 > changed_keys + same_keys
        })
        .max_by_key(|index| index.evidence.changed_keys);
    let is_candidate = |index: &&Index<'a>| {
        let owner = Owner::Relation(index.last.file, Fork::MAIN);
        let Evidence { changed_keys, same_keys, leaf_inserts, .. } = index.evidence;
        let is_entry = |manager: u8, info: u8| {
            manager != rmid::BTREE && is_index_manager(manager) && !is_index_vacuum(manager, info)
        };
        let entries = || leaf_inserts.max(facts.records(facts.cells(index.files.iter().copied(), is_entry)));
        // Updates before an index was built are not for its sake.
        let could_be = index.is_old() || entries() * 2 >= updates.indexed;
        could_be
            && facts.labels.is_required_index(owner) != Some(true)
            && same_keys <= changed_keys
            && !index.is_summarizing(facts)
    };
    let mut candidates: Vec<&Index<'a>> = indexes.iter().filter(is_candidate).collect();
    // A column that changes with each update mostly ascends, such as a time. The entries of other access
    // methods do not show their order.
    candidates.sort_by_key(|index| {
        let Evidence { leaf_changes, leaf_inserts, .. } = index.evidence;
        (leaf_inserts == 0, leaf_changes * 1000 / leaf_inserts.max(1), index.name)
    });
    match shown {
        Some(index) => {
            candidates.retain(|other| other.name != index.name);
            ChangedIndexes { indexes: vec![index], is_sure: true, others: candidates }
        }
        None => ChangedIndexes { indexes: candidates, is_sure: false, others: Vec::new() },
    }
}

/// Returns updates that leave their page, without updates in bulk.
fn leaving_updates<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = Updates<'a>> {
    let is_leaving = |updates: &Updates<'_>| {
        !updates.are_bulk() && updates.moved >= MIN_UPDATES && updates.moved * 5 >= updates.all
    };
    all_updates(facts).filter(is_leaving)
}

/// Claims the bytes that updates write because they leave their page.
fn claim_moves(facts: &Facts<'_>, updates: &Updates<'_>, claim: &mut Claim) {
    let share = updates.moved as f64 / (updates.indexed + updates.moved) as f64;
    updates.claim_indexes(facts, claim, share);
    let locks = updates.evidence.update_locks;
    facts.extend_plain(claim, facts.cells(updates.table.heaps(), is_lock), locks.bytes);
    let moved = |manager: u8, info: u8| manager == rmid::HEAP && info & heap::OPMASK == heap::UPDATE;
    let excess = updates.excess_bytes(facts) * updates.moved;
    facts.extend_plain(claim, facts.cells(updates.table.heaps(), moved), excess);
}

/// Whether an old snapshot keeps the row versions of updates: most of these update a row that was updated
/// shortly before, so that pruning would have made space on the page. A snapshot without a transaction ID is
/// in no record, but without one, pages that have no space left are pruned.
fn are_kept(facts: &Facts<'_>, updates: &Updates<'_>) -> bool {
    let is_prune = |manager: u8, info: u8| {
        let is_kind = |kind| info & heap2::OPMASK == kind;
        manager == rmid::HEAP2
            && (is_kind(heap2::PRUNE) || is_kind(heap2::PRUNE_ON_ACCESS) || is_kind(heap2::PRUNE_VACUUM_SCAN))
    };
    let is_pruned = || facts.records(facts.cells(updates.table.heaps(), is_prune)) * 20 >= updates.moved;
    updates.evidence.recent_updates * 2 >= updates.all && (facts.old_transaction().is_some() || !is_pruned())
}

/// How to find what keeps old row versions. A transaction that wrote has a `backend_xid`, between statements
/// often without a `backend_xmin`; a snapshot has only the latter, as has the walsender of a standby without
/// a slot that sends feedback.
const HOLDERS: &str = "SELECT greatest(age(backend_xid), age(backend_xmin)), backend_type, pid::text FROM pg_stat_activity UNION ALL \
                       SELECT age(transaction), 'prepared transaction', gid FROM pg_prepared_xacts UNION ALL \
                       SELECT greatest(age(xmin), age(catalog_xmin)), 'replication slot', slot_name FROM pg_replication_slots \
                       ORDER BY 1 DESC NULLS LAST lists what holds row versions, the oldest first";

/// Updates that find no space because a transaction that stays open keeps old row versions from being
/// removed.
pub(super) fn old_transaction(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut claim = Claim::default();
    let (mut largest, mut moved, mut all) = ((0, String::new()), 0, 0);
    for updates in leaving_updates(facts).filter(|updates| are_kept(facts, updates)) {
        claim_moves(facts, &updates, &mut claim);
        (moved, all) = (moved + updates.moved, all + updates.all);
        if updates.moved > largest.0 {
            largest = (updates.moved, updates.table.name.clone());
        }
    }
    let (_, name) = largest;
    if moved == 0 {
        return Vec::new();
    }
    let effect = format!(
        "{moved} of {all} updates, most of {name}, found no space on their page, and write into each index; that takes {} of the WAL",
        facts.percent(claim.bytes())
    );
    const TIMEOUTS: &str = "idle_in_transaction_session_timeout ends sessions that stay idle in a transaction (transaction_timeout, since 17, all that \
                            take too long); split a long batch into transactions";
    let (text, points_at, remedy) = match facts.old_transaction() {
        Some(old) => {
            let seconds = old.times.map_or(0, |(first, last)| (last - first) / 1_000_000);
            let time = if seconds > 0 { format!(" for {seconds} s") } else { String::new() };
            (
                format!(
                    "transaction {} stayed open{time} while {} younger ones started, so that row versions which these replaced could not be \
                     pruned or vacuumed: {effect}",
                    old.xid, old.younger
                ),
                format!("transaction {}", old.xid),
                format!("{HOLDERS}: end it (pg_terminate_backend, or ROLLBACK PREPARED); {TIMEOUTS}"),
            )
        }
        None => (
            format!(
                "row versions that were replaced shortly before were not pruned, as if an old snapshot, replication slot or standby needed \
                 them: {effect}"
            ),
            "an old snapshot".to_owned(),
            format!(
                "{HOLDERS}: end it (pg_terminate_backend, ROLLBACK PREPARED, pg_drop_replication_slot; a walsender with such an \
                 age is a standby with hot_standby_feedback); {TIMEOUTS}"
            ),
        ),
    };
    vec![Candidate { text, points_at, remedy, ..Candidate::new(claim, (0.4, 1.05)) }]
}

pub(super) fn without_space(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for updates in leaving_updates(facts).filter(|updates| !are_kept(facts, updates)) {
        // Updates that change a column of an index cannot be HOT, whatever the space. Among the updates that
        // found space, their share is known.
        let with_space = updates.hot + updates.indexed;
        let can_be_hot = if with_space < MIN_COMPARED { 1.0 } else { updates.hot as f64 / with_space as f64 };
        if can_be_hot < 0.1 {
            continue;
        }
        let mut claim = Claim::default();
        claim_moves(facts, &updates, &mut claim);
        let locks = updates.evidence.update_locks;
        let name = &updates.table.name;
        found.push(Candidate {
            text: format!(
                "{} of {} updates of {name} found no free space on their page ({} are HOT): the new row goes to another page, and \
                 into each index; index records with their images, and {} that such updates take, are {} of the WAL",
                updates.moved,
                updates.all,
                percent_text(updates.hot as f64 / updates.all as f64),
                counted(locks.count, "lock"),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: updates.table.sql.statement(
                "ALTER TABLE",
                " SET (fillfactor = 90), or less than it has, which holds for pages that are filled from then on (VACUUM FULL rewrites \
                 the others, and locks the table for that long); vacuum it more often if it has dead rows",
            ),
            // Rows that grow need more space than that.
            ..Candidate::new(claim, (0.15 * can_be_hot, can_be_hot))
        });
    }
    found
}

pub(super) fn upserts(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for updates in all_updates(facts) {
        let locks = updates.evidence.upsert_locks;
        if locks.count < MIN_UPDATES {
            continue;
        }
        let mut claim = Claim::default();
        facts.extend_plain(&mut claim, facts.cells(updates.table.heaps(), is_lock), locks.bytes);
        let name = &updates.table.name;
        found.push(Candidate {
            text: format!(
                "{} of {} updates of {name} locked their row first, as INSERT ... ON CONFLICT DO UPDATE and SELECT FOR NO KEY \
                 UPDATE do; these locks take {} of the WAL",
                locks.count,
                updates.all,
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "where the row mostly exists: UPDATE first, and INSERT ... ON CONFLICT only if that found none (or MERGE, \
                     since 15, which fails if another session inserts the same key meanwhile); leave out updates that change \
                     nothing"
                .into(),
            ..Candidate::new(claim, (0.85, 1.1))
        });
    }
    found
}

pub(super) fn replica_identity(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let evidence = table.evidence();
        if evidence.whole_old_tuples < MIN_UPDATES {
            continue;
        }
        let is_change = |manager: u8, info: u8| is_update(manager, info) || is_delete(manager, info);
        let mut claim = Claim::default();
        facts.extend_plain(&mut claim, facts.cells(table.heaps(), is_change), evidence.old_tuples.bytes);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{} updates and deletes of {name} log the whole old row for logical replication; these rows take {} of the WAL",
                evidence.whole_old_tuples,
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: table.sql.statement(
                "ALTER TABLE",
                " REPLICA IDENTITY DEFAULT, with a primary key, or REPLICA IDENTITY USING INDEX, if no subscriber and no row filter needs \
                 other columns of the old row (without a key, the server refuses updates of published tables)",
            ),
            ..Candidate::new(claim, (0.9, 1.0))
        });
    }
    found
}

/// Updates that move rows from one partition to another: a delete there and an insert here, with entries in
/// each index.
pub(super) fn partition_moves(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let moves = table.evidence().partition_moves;
        if moves < MIN_UPDATES {
            continue;
        }
        let count = |is_its: fn(u8, u8) -> bool| facts.records(facts.cells(table.heaps(), is_its)).max(1);
        let of_inserts = (moves as f64 / count(is_insert) as f64).min(1.0);
        let of_deletes = (moves as f64 / count(is_delete) as f64).min(1.0);
        let mut claim = facts.claim(facts.cells(table.heaps(), is_delete), of_deletes, 0.0);
        let deleted = claim.bytes();
        facts.extend(&mut claim, facts.cells(table.heaps(), is_insert), of_inserts, 0.0);
        let is_entry = |manager: u8, info: u8| is_index_manager(manager) && !is_index_vacuum(manager, info);
        facts.extend(&mut claim, facts.cells(table.index_files(), is_entry), of_inserts, 0.0);
        let bytes = claim.bytes().max(1);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{moves} updates of {name} moved their row to another partition, which is a delete and an insert with entries in all \
                 indexes; that takes {} of the WAL, images left out",
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "partition by a column that does not change, such as the time at which a row is created".into(),
            // An update that is not HOT writes the row and its index entries as well.
            ..Candidate::new(claim, (0.8 * deleted as f64 / bytes as f64, 0.9))
        });
    }
    found
}

pub(super) fn bulk_delete(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables().filter(|table| table.part != Part::MaterializedView) {
        let evidence = table.evidence();
        let all = facts.records(facts.cells(table.heaps(), is_delete));
        let Evidence { deletes_by, delete_batches, .. } = evidence;
        let rows = deletes_by.count.max(delete_batches.rows).min(all);
        if rows < MIN_BULK || rows * 2 < all {
            continue;
        }
        let by = match delete_batches.transactions > 1 && delete_batches.rows > deletes_by.count {
            true => format!("{} transactions", delete_batches.transactions),
            false => format!("transaction {}", deletes_by.xid),
        };
        let mut claim = facts.claim(facts.cells(table.heaps(), is_delete), 1.0, 1.0);
        facts.extend(&mut claim, facts.cells(&table.relations, is_heap_vacuum), 1.0, 1.0);
        facts.extend(&mut claim, facts.cells(&table.relations, is_index_vacuum), 1.0, 1.0);
        let toasts = table.relations.iter().filter(|one| one.is_toast());
        facts.extend(&mut claim, facts.cells(toasts, is_delete), 1.0, 1.0);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{by} deleted at least {rows} rows of {name}; with the vacuum of the table that takes {} of the WAL",
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "partition the table so that rows deleted together share a partition, and drop the partition instead; to delete most of a table, lock it, \
                     copy the remaining rows, TRUNCATE and insert them again, in one transaction (not where foreign keys refer to it)"
                .into(),
            ..Candidate::new(claim, (0.9, 1.0))
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_updates_have_their_share_of_records_and_another_one_of_images() {
        let share = |[leaf_inserts, update_entries, leaf_images, update_images]: [u64; 4]| {
            let evidence =
                Evidence { leaf_inserts, update_entries, leaf_images, update_images, ..Evidence::default() };
            let IndexShare { plain, images } = share_of_updates(&evidence);
            (plain, images)
        };
        assert_eq!(share([2000, 2000, 80_000, 80_000]), (1.0, 1.0));
        assert_eq!(share([4000, 1600, 100_000, 80_000]), (0.4, 0.8));
        assert_eq!(share([4000, 1000, 0, 0]), (0.25, 0.25));
        assert_eq!(share([0; 4]), (0.0, 0.0));
    }
}
