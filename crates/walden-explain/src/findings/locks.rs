//! Causes in row locks.

use walden_format::rmgr::info::{heap2, multixact};
use walden_format::rmgr::rmid;
use walden_source::counted;

use super::facts::{Facts, is_delete, is_insert, is_lock, is_update};
use super::ledger::Claim;
use super::{Candidate, with_commits};

/// Minimum number of locks.
const MIN_LOCKS: u64 = 100;

pub(super) fn rows(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let locks = table.evidence().row_locks;
        if locks.count < MIN_LOCKS {
            continue;
        }
        let mut claim = Claim::default();
        facts.extend_plain(&mut claim, facts.cells(table.heaps(), is_lock), locks.bytes);
        // An image of a page that only row locks change is caused by the locks.
        let is_change = |manager: u8, info: u8| {
            is_insert(manager, info) || is_update(manager, info) || is_delete(manager, info)
        };
        let has_images = facts.records(facts.cells(table.heaps(), is_change)) * 10 < locks.count;
        if has_images {
            facts.extend_images(&mut claim, facts.cells(table.heaps(), is_lock), locks.image_bytes);
        }
        let emptied = table.emptied(table.evidence().only_row_locks);
        facts.extend_commits(&mut claim, emptied);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{} rows of {name} were locked by SELECT FOR UPDATE or FOR SHARE; these locks{} take {} of the WAL{}",
                locks.count,
                with_commits(emptied),
                facts.percent(claim.bytes()),
                if has_images { "" } else { ", images left out" }
            ),
            points_at: name.clone(),
            remedy: "FOR UPDATE only for rows that will be changed (LIMIT with SKIP LOCKED for queues); an advisory lock writes no \
                     WAL"
                .into(),
            ..Candidate::new(claim, (0.9, 1.0))
        });
    }
    found
}

/// Checks of foreign keys lock the row that is referred to; several transactions at a time need a multixact
/// for that.
pub(super) fn foreign_keys(facts: &Facts<'_>) -> Vec<Candidate> {
    let multixacts = facts
        .cells_without_relation(|manager, info| manager == rmid::MULTIXACT && info != multixact::TRUNCATE_ID);
    let is_share_lock = |manager: u8, info: u8| {
        is_lock(manager, info) || (manager == rmid::HEAP2 && info & heap2::OPMASK == heap2::LOCK_UPDATED)
    };
    let all: u64 = facts.user_tables().map(|table| table.evidence().key_share_locks.count).sum();
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let locks = table.evidence().key_share_locks;
        if locks.count < MIN_LOCKS {
            continue;
        }
        let mut claim = Claim::default();
        facts.extend_plain(&mut claim, facts.cells(table.heaps(), is_share_lock), locks.bytes);
        let share = locks.count as f64 / all as f64;
        facts.extend(&mut claim, multixacts.iter().copied(), share, share);
        let transactions = table.evidence().key_share_transactions;
        facts.extend_commits(&mut claim, transactions);
        let created = facts.records(multixacts.iter().copied());
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "{} rows of {name} were locked by FOR KEY SHARE, as checks of foreign keys do for the row that is referred to; with \
                 {} of rows locked by several transactions at a time, and the commits of these {transactions} transactions, that takes {} \
                 of the WAL",
                locks.count,
                counted(created, "multixact"),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "insert rows that refer to the same row in one transaction, which locks it once; a foreign key to rows that never \
                     go away can be dropped if something else checks the values"
                .into(),
            ..Candidate::new(claim, (0.5, 1.0))
        });
    }
    found
}
