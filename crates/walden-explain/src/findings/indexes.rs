//! Causes in indexes.

use std::collections::BTreeSet;

use walden_format::rmgr::info::{btree, gin};
use walden_format::rmgr::rmid;
use walden_source::counted;

use super::Candidate;
use super::facts::{Facts, Index, Relation, SqlName, Table};
use super::ledger::Claim;
use crate::evidence::Evidence;
use crate::group::Owner;
use crate::labels::Part;
use crate::tally::Bucket;
use walden_format::record::Fork;

/// Minimum number of index tuples for a finding about where they go.
const MIN_INSERTS: u64 = 500;

/// Each server has statistics of its own, and names may be from a standby.
const UNUSED_ELSEWHERE: &str = ", if no other server (primary or standby) uses it either and the statistics cover all jobs, also monthly ones";

/// Statistics of a new index say little.
const TOO_NEW: &str = "nothing yet, as it was built within this WAL: see pg_stat_user_indexes once its statistics cover all jobs that may use it";

/// Whether an index may be dropped to save WAL: it existed before the WAL, still exists, and no constraint is
/// known to need it.
pub(super) fn is_droppable(facts: &Facts<'_>, index: &Index<'_>) -> bool {
    let owner = Owner::Relation(index.last.file, Fork::MAIN);
    let is_of_table = index.last.part != Part::ToastIndex;
    is_of_table
        && index.is_old()
        && !facts.is_gone(index.last)
        && facts.labels.is_required_index(owner) != Some(true)
}

/// An index that no query has used and no constraint needs. The finding leaves out the build of the index,
/// which is over.
pub(super) fn unused(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        for index in table.indexes() {
            let owner = Owner::Relation(index.last.file, Fork::MAIN);
            let whole = facts.labels.root_of_index(owner);
            let is_used = match &whole {
                Some(_) => facts.labels.is_partitioned_index_used(owner) != Some(false),
                None => facts.labels.index_scans(owner) != Some(0),
            };
            if is_used
                || index.last.part != Part::Index
                || facts.is_gone(index.last)
                || facts.labels.is_required_index(owner) != Some(false)
            {
                continue;
            }
            let mut claim = Claim::default();
            index.files.iter().for_each(|file| claim_without_build(facts, file, &mut claim));
            let name = whole.map_or_else(|| index.name.to_owned(), |whole| whole.text);
            let parts: BTreeSet<&str> = index.files.iter().map(|file| file.name.as_str()).collect();
            let text = format!(
                "index {name}{}{} takes {} of the WAL; no query has used it {}, and it enforces no constraint",
                table.behind(index.last),
                if parts.len() > 1 { format!(", in {} partitions,", parts.len()) } else { String::new() },
                facts.percent(claim.bytes()),
                facts.labels.statistics_since(owner)
            );
            let (remedy, candidate) = match index.is_old() {
                true => {
                    (drop_statement(facts, index.last, UNUSED_ELSEWHERE), Candidate::new(claim, (1.0, 1.0)))
                }
                false => (TOO_NEW.into(), Candidate { saves: None, ..Candidate::new(claim, (0.0, 1.0)) }),
            };
            found.push(Candidate { text, points_at: name, remedy, ..candidate });
        }
    }
    found
}

/// An index whose columns another index of the table starts with. The finding leaves out the build of the
/// index, which is over.
pub(super) fn redundant(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        for one in table.indexes().into_iter().filter(|index| is_droppable(facts, index)) {
            let Index { name, last: index, files, .. } = one;
            let owner = Owner::Relation(index.file, Fork::MAIN);
            let Some(covering) = facts.labels.covering_index(owner).filter(|_| index.part == Part::Index)
            else {
                continue;
            };
            let mut claim = Claim::default();
            files.iter().for_each(|file| claim_without_build(facts, file, &mut claim));
            found.push(Candidate {
                text: format!(
                    "index {name}{} takes {} of the WAL; {covering} starts with the same columns in the same order, and serves the same queries",
                    table.behind(index),
                    facts.percent(claim.bytes())
                ),
                points_at: name.to_owned(),
                remedy: drop_statement(
                    facts,
                    index,
                    &format!(", unless queries need it because it is smaller than {covering}"),
                ),
                ..Candidate::new(claim, (0.9, 1.0))
            });
        }
    }
    found
}

/// Adds to `claim` the bytes that were logged for a file of an index, except those that its build logged.
fn claim_without_build(facts: &Facts<'_>, file: &Relation, claim: &mut Claim) {
    let (mut plain_of_build, mut images_of_build) = logged_build(facts, file);
    for cell in &file.cells {
        let tally = facts.tally(*cell);
        let plain = tally.bytes() - tally.buckets.images();
        let images = tally.buckets.images() - tally.buckets.get(Bucket::ImageForced);
        claim.add_plain(*cell, plain.saturating_sub(plain_of_build));
        claim.add_images(*cell, images.saturating_sub(images_of_build));
        plain_of_build = plain_of_build.saturating_sub(plain);
        images_of_build = images_of_build.saturating_sub(images);
    }
}

/// Returns the statement that drops an index, followed by a condition. The server refuses to drop a part of a
/// partitioned index ("cannot drop index ... because index ... requires it"), and to drop a partitioned one
/// concurrently.
pub(super) fn drop_statement(facts: &Facts<'_>, index: &Relation, behind: &str) -> String {
    let owner = Owner::Relation(index.file, Fork::MAIN);
    if let Some(whole) = facts.labels.root_of_index(owner) {
        let behind = format!(", the partitioned index of {}{behind}", index.name);
        return SqlName::from_label(&whole).statement("DROP INDEX", &behind);
    }
    match facts.labels.is_index_partition(owner) {
        true => format!(
            "drop the index of the partitioned table that {} is a part of, as the server refuses to drop a part{behind}",
            index.name
        ),
        // Without CONCURRENTLY, the statement waits for a lock on the table, and all queries of the table
        // queue up after it.
        false => index.sql.statement("DROP INDEX CONCURRENTLY", behind),
    }
}

/// Bytes without images and of images that the build of an index wrote, at most, where it logs what inserts
/// log as well. Builds of other access methods log an image of each page.
fn logged_build(facts: &Facts<'_>, index: &Relation) -> (u64, u64) {
    let is_logged = |manager: u8, _: u8| matches!(manager, rmid::HASH | rmid::BRIN | rmid::GENERIC);
    let is_its = facts.cells([index], is_logged).next().is_some();
    facts.creator_of(index.file).filter(|_| is_its).map_or((0, 0), |xid| facts.bytes_of(xid))
}

/// An index whose new keys are spread over its leaf pages: each page gets an image after each checkpoint, and
/// splits leave pages half full. Ascending keys all go to the last page.
pub(super) fn random_keys(facts: &Facts<'_>) -> Vec<Candidate> {
    let indexes = facts.user_tables().flat_map(Table::indexes);
    indexes
        .filter(|index| has_random_keys(&index.evidence))
        .map(|index| random_index(facts, &index))
        .collect()
}

fn has_random_keys(evidence: &Evidence) -> bool {
    // Updates of rows all over a table insert all over its indexes too.
    let is_by_inserts = evidence.update_entries * 2 <= evidence.leaf_inserts;
    let is_random = evidence.leaf_changes * 2 > evidence.leaf_inserts;
    evidence.leaf_inserts >= MIN_INSERTS && is_random && is_by_inserts
}

fn random_index(facts: &Facts<'_>, one: &Index<'_>) -> Candidate {
    let Index { name, last: index, files, evidence } = one;
    let mut claim = Claim::default();
    let files = || files.iter().copied();
    let inserts = |manager: u8, info: u8| manager == rmid::BTREE && is_leaf_insert_or_split(info);
    for cell in facts.cells(files(), inserts) {
        claim.add_images(cell, facts.tally(cell).buckets.get(Bucket::ImageCheckpoint));
    }
    let images = claim.bytes();
    let splits =
        |manager: u8, info: u8| manager == rmid::BTREE && matches!(info, btree::SPLIT_L | btree::SPLIT_R);
    // Half of a page moves where the last page of an ascending index moves next to nothing.
    facts.extend(&mut claim, facts.cells(files(), splits), 0.8, 0.0);
    let pages = 100.0 * evidence.leaf_changes as f64 / evidence.leaf_inserts as f64;
    let text = format!(
        "new keys of index {name} are spread over its pages: {pages:.0} % of {} went to another leaf page than the key before. Images of \
         these pages after checkpoints take {} of the WAL, and splits {}",
        evidence.leaf_inserts,
        facts.percent(images),
        facts.percent(claim.bytes() - images)
    );
    const ASCENDING: &str = "keys that ascend, such as UUIDv7 or bigint: they all go to the last page";
    const FEWER: &str =
        "checkpoints farther apart (max_wal_size, checkpoint_timeout) write fewer images of it";
    let owner = Owner::Relation(index.file, Fork::MAIN);
    // Only names show the purpose of an index. Values of columns that are not keys cannot be chosen.
    let (remedy, saves) = match facts.labels.is_required_index(owner) {
        Some(true) => {
            (format!("{ASCENDING}; if the application cannot choose the values, {FEWER}"), (0.7, 1.05))
        }
        Some(false) if is_droppable(facts, one) => {
            (drop_statement(facts, index, &format!(", if few queries need it; {FEWER}")), (0.0, 1.0))
        }
        Some(false) => (FEWER.to_owned(), (0.0, 1.0)),
        None => (format!("if it is an index of keys, {ASCENDING}; else {FEWER}"), (0.0, 1.0)),
    };
    Candidate { text, points_at: (*name).to_owned(), remedy, ..Candidate::new(claim, saves) }
}

fn is_leaf_insert_or_split(info: u8) -> bool {
    matches!(info, btree::INSERT_LEAF | btree::INSERT_POST | btree::SPLIT_L | btree::SPLIT_R)
}

/// A GIN index without `fastupdate`: each row inserts its keys into the tree one by one.
pub(super) fn gin_entries(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_pending = |manager: u8, info: u8| manager == rmid::GIN && info == gin::INSERT_LISTPAGE;
    let is_update_of_list = |manager: u8, info: u8| manager == rmid::GIN && info == gin::UPDATE_META_PAGE;
    let is_entry = |manager: u8, info: u8| manager == rmid::GIN && matches!(info, gin::INSERT | gin::SPLIT);
    let found = |table: &Table, index: Index<'_>| {
        let files = || index.files.iter().copied();
        let has_list = facts.cells(files(), is_pending).chain(facts.cells(files(), is_update_of_list)).next();
        let count = facts.records(facts.cells(files(), is_entry));
        if has_list.is_some() || count < MIN_INSERTS {
            return None;
        }
        let claim = facts.claim(facts.cells(files(), is_entry), 1.0, 0.0);
        Some(Candidate {
            text: format!(
                "the GIN index {}{} takes {} of the WAL, images left out: {count} records insert keys one by one, as it has no pending list \
                 (fastupdate = off)",
                index.name,
                table.behind(index.last),
                facts.percent(claim.bytes())
            ),
            points_at: index.name.to_owned(),
            remedy: index.sql().statement(
                "ALTER INDEX",
                " SET (fastupdate = on), which collects rows and inserts the entries of a key together; it saves most where keys repeat, \
                 and searches read the list as well",
            ),
            ..Candidate::new(claim, (0.0, 0.9))
        })
    };
    index_candidates(facts, found)
}

/// A hash index logs each entry with the page that counts them all, and splits buckets.
pub(super) fn hash_entries(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_hash = |manager: u8, _: u8| manager == rmid::HASH;
    let found = |table: &Table, index: Index<'_>| {
        // The build of the index logs the same records.
        let cells =
            || index.files.iter().filter(|file| file.dropped_at.is_none() && !file.was_created).copied();
        let count = facts.records(facts.cells(cells(), is_hash));
        let claim = facts.claim(facts.cells(cells(), is_hash), 1.0, 0.0);
        (count >= MIN_INSERTS).then(|| Candidate {
            text: format!(
                "the hash index {}{} takes {} of the WAL in {}, images left out",
                index.name,
                table.behind(index.last),
                facts.percent(claim.bytes()),
                counted(count, "record")
            ),
            points_at: index.name.to_owned(),
            remedy: "a B-tree index in its place, which logs less for each entry and splits fewer pages, unless the indexed values are longer \
                     than about 8 bytes"
                .into(),
            // Entries of B-trees contain the value, whose length these records do not show.
            saves: None,
            ..Candidate::new(claim, (0.0, 1.0))
        })
    };
    index_candidates(facts, found)
}

fn index_candidates(
    facts: &Facts<'_>,
    found: impl Fn(&Table, Index<'_>) -> Option<Candidate>,
) -> Vec<Candidate> {
    facts
        .user_tables()
        .flat_map(|table| table.indexes().into_iter().filter_map(|index| found(table, index)))
        .collect()
}

/// A GIN index with `fastupdate`: entries are logged when they get into the pending list, and again when they
/// get from there into the tree.
pub(super) fn pending_list(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_pending = |manager: u8, info: u8| {
        manager == rmid::GIN
            && matches!(info, gin::UPDATE_META_PAGE | gin::INSERT_LISTPAGE | gin::DELETE_LISTPAGE)
    };
    let is_entry = |manager: u8, info: u8| {
        manager == rmid::GIN && matches!(info, gin::INSERT | gin::SPLIT | gin::CREATE_PTREE)
    };
    let found = |table: &Table, index: Index<'_>| {
        let files = || index.files.iter().copied();
        let claim = facts.claim(facts.cells(files(), is_pending), 1.0, 0.0);
        let count = facts.records(facts.cells(files(), is_pending));
        let entries = facts.claim(facts.cells(files(), is_entry), 1.0, 0.0).bytes();
        (count > 0).then(|| Candidate {
            text: format!(
                "the pending list of the GIN index {}{} takes {} of the WAL in {}, and moving its entries into \
                 the index {}: with fastupdate each entry is logged twice",
                index.name,
                table.behind(index.last),
                facts.percent(claim.bytes()),
                counted(count, "record"),
                facts.percent(entries)
            ),
            points_at: index.name.to_owned(),
            remedy: index.sql().statement(
                "ALTER INDEX",
                " SET (fastupdate = off) where most keys are different, so that moving entries of a key together saves little; else a \
                 larger gin_pending_list_limit, so that more of them are moved at once",
            ),
            // Entries that go into the tree one by one can take more than the list did.
            ..Candidate::new(claim, (0.0, 1.0))
        })
    };
    index_candidates(facts, found)
}
