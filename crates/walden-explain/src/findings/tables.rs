//! The table that writes most, where no other rule has a cause for it.

use std::collections::BTreeMap;

use walden_format::rmgr::info::{heap, heap2};
use walden_format::rmgr::rmid;
use walden_source::counted;

use super::Candidate;
use super::facts::{Facts, Relation, Table, is_delete, is_heap_vacuum, is_index_manager, is_lock, is_update};

/// Parts of the table's bytes that the text names.
const NAMED_PARTS: usize = 3;

/// A source of a table's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Images,
    SingleInserts,
    BatchInserts,
    Updates,
    Deletes,
    Locks,
    Vacuum,
    Index(&'a str),
    Toast,
    Other,
}

impl<'a> Part<'a> {
    fn new(relation: &'a Relation, manager: u8, info: u8) -> Part<'a> {
        match manager {
            _ if relation.is_toast() => Part::Toast,
            manager if is_index_manager(manager) => Part::Index(&relation.name),
            rmid::HEAP if info & heap::OPMASK == heap::INSERT => Part::SingleInserts,
            rmid::HEAP2 if info & heap2::OPMASK == heap2::MULTI_INSERT => Part::BatchInserts,
            _ if is_update(manager, info) => Part::Updates,
            _ if is_delete(manager, info) => Part::Deletes,
            _ if is_lock(manager, info) => Part::Locks,
            _ if is_heap_vacuum(manager, info) => Part::Vacuum,
            _ => Part::Other,
        }
    }

    fn describe(self, records: u64, percent: &str) -> String {
        match self {
            Part::Images => format!("full-page images {percent}"),
            Part::SingleInserts => format!("{} of one row each {percent}", counted(records, "insert")),
            Part::BatchInserts => {
                format!(
                    "{} of several rows each (COPY, INSERT ... SELECT into a new table) {percent}",
                    counted(records, "insert")
                )
            }
            Part::Updates => format!("{} {percent}", counted(records, "update")),
            Part::Deletes => format!("{} {percent}", counted(records, "delete")),
            Part::Locks => format!("{} {percent}", counted(records, "row lock")),
            Part::Vacuum => format!("pruning and vacuum {percent}"),
            Part::Index(name) => format!("index {name} {percent}"),
            Part::Toast => format!("large values (TOAST) {percent}"),
            Part::Other => format!("other records {percent}"),
        }
    }

    /// A change of the work that writes less.
    fn remedy(self) -> &'static str {
        match self {
            Part::SingleInserts => {
                "COPY, or INSERT with VALUES of many rows into few indexes; an insert that a trigger makes for each row can be one for a \
                 statement, with transition tables (REFERENCING NEW TABLE)"
            }
            Part::BatchInserts => "load only rows that are new, and make indexes after a large load",
            Part::Updates => "update only rows and columns that change, several changes of a row at once",
            Part::Deletes => {
                "drop or truncate partitions in place of deletes; a delete of a referenced row deletes those that refer to it, where the \
                 foreign key says ON DELETE CASCADE"
            }
            Part::Locks => "fewer explicit row locks",
            Part::Vacuum => "fewer updates and deletes of its rows",
            Part::Index(_) => {
                "drop indexes that few queries need; each row that is inserted or not updated by HOT writes into all of them"
            }
            Part::Images | Part::Toast | Part::Other => {
                "--by relation,record shows the records that wrote it"
            }
        }
    }
}

/// Bytes and records of a table by their source, the largest first.
fn parts_of<'a>(facts: &Facts<'_>, table: &'a Table) -> Vec<(Part<'a>, (u64, u64))> {
    let mut parts: BTreeMap<Part<'_>, (u64, u64)> = BTreeMap::new();
    for relation in &table.relations {
        for &cell in &relation.cells {
            let (Some(kind), tally) = (facts.kind(cell), facts.tally(cell)) else { continue };
            let images = tally.buckets.images();
            let part = parts.entry(Part::new(relation, kind.rmid(), kind.info())).or_default();
            *part = (part.0 + tally.bytes() - images, part.1 + tally.records);
            parts.entry(Part::Images).or_default().0 += images;
        }
    }
    let mut parts: Vec<_> = parts.into_iter().filter(|(_, (bytes, _))| *bytes > 0).collect();
    parts.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    parts
}

/// The table that writes most bytes with its indexes and TOAST table, unless nearly all of them are images:
/// settings explain these.
pub(super) fn main_table(facts: &Facts<'_>) -> Vec<Candidate> {
    /// The least share of records without their images.
    const MIN_PLAIN: f64 = 0.15;
    let claim_of = |table: &Table| {
        facts.claim(table.relations.iter().flat_map(|one| one.cells.iter().copied()), 1.0, 1.0)
    };
    let largest = facts.user_tables().map(|table| (claim_of(table), table));
    let Some((claim, table)) = largest.max_by_key(|(claim, _)| claim.bytes()) else { return Vec::new() };
    let parts = parts_of(facts, table);
    let plain = || parts.iter().filter(|(part, _)| *part != Part::Images);
    let plain_bytes: u64 = plain().map(|(_, (bytes, _))| bytes).sum();
    let Some((first, _)) = plain().next().filter(|_| facts.share(plain_bytes) >= MIN_PLAIN) else {
        return Vec::new();
    };
    let named = parts.iter().take(NAMED_PARTS);
    let named: Vec<String> =
        named.map(|(part, (bytes, records))| part.describe(*records, &facts.percent(*bytes))).collect();
    // A transaction that writes at least half of the WAL has written most of the table.
    let largest = facts.explanation.transactions.first().filter(|one| facts.share(one.bytes) >= 0.5);
    let by = largest.map_or_else(String::new, |one| {
        format!("; transaction {} writes {} of the WAL", one.xid, facts.percent(one.bytes))
    });
    let subject = match table.indexes().len() {
        0 => format!("{} writes", table.name),
        1 => format!("{} and its index write", table.name),
        count => format!("{} and its {count} indexes write", table.name),
    };
    let remedy = first.remedy().to_owned();
    vec![Candidate {
        text: format!("{subject} {} of the WAL: {}{by}", facts.percent(claim.bytes()), named.join(", ")),
        points_at: table.name.clone(),
        remedy,
        saves: None,
        ..Candidate::new(claim, (0.0, 1.0))
    }]
}
